"""Evaluate all rules over all capture points of a dataset.

In: `RowGroups`. Out: `Finding`s by capture point, and the table `findings`. A cause that explains other findings is
reported once, with their number (`root_causes`); of one code the `MOST` worst are listed, and the rest is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from kwire.analyzer.dataset import tables
from kwire.analyzer.findings import (  # noqa: F401  (each registers its rules)
    advertised,
    assignments,
    capture_quality,
    cluster,
    commits,
    error_answers,
    extensions,
    fetch,
    fetch_waits,
    foreign_protocols,
    groups,
    journeys,
    latency,
    malformed,
    network,
    not_kafka,
    payloads,
    personal_data,
    produce,
    readers,
    replaced_records,
    replication,
    root_causes,
    security,
    sending,
    sequences,
    sessions,
    share_groups,
    skew,
    static_members,
    subscriptions,
    tls,
    transactions,
    undelivered,
    versions,
)
from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.query import SEVERITIES, Evidence, Query, Severity
from kwire.analyzer.findings.rules import FAMILIES, RULES, Finding, Match, Rule, concerns, limits_of
from kwire.analyzer.findings.wording import UNREAD, count
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.parquet import RowGroups
from kwire.analyzer.frame.spill import Cancelled, reuse
from kwire.captures.errors import KwireError

MOST = 50
"""Findings of one code and severity that are listed for a capture point; more are counted."""

USUAL = Query()

_ORDER = {family: number for number, family in enumerate(FAMILIES)}


def judged(source: RowGroups, query: Query = USUAL) -> list[tuple[str, Finding]]:
    """(capture point, finding) of a dataset, worst first, then by time. Raises DatasetError where files are damaged."""
    findings = [
        (entry["name"], finding)
        for entry in source.captures
        for finding in of_point(CaptureFrame(source, entry, query))
    ]
    return sorted(findings, key=lambda pair: (_rank(pair[1]), pair[0]))


def concerned(query: Query) -> frozenset[str]:
    """Rules whose findings may differ from those that `analyze` stored; packages may have come, gone or changed."""
    return extensions.codes() | {code for code, rule in RULES.items() if concerns(query, rule)}


def of_point(capture: CaptureFrame, only: Collection[str] | None = None) -> list[Finding]:
    """Findings of one capture point, of these rules or of all, worst first, then by time."""
    if not has_traffic(capture):
        return []
    rules = [rule for rule in _in_order() if only is None or rule.code in only]
    if any(rule.by_clock for rule in rules) and capture.set_back is not None:
        rules = [rule for rule in rules if not rule.by_clock]
    findings: list[Finding] = []
    with reuse():
        if only is None:
            capture.load()
        for rule in rules:
            findings += _reported(rule, _matched(capture, rule))
    return sorted(findings, key=_rank)


def has_traffic(capture: CaptureFrame) -> bool:
    """Whether there is anything that a rule applies to: not so of log segments, nor where nothing is Kafka."""
    return bool(
        len(capture.table("connections"))
        or len(capture.table("exchanges"))
        or capture.sealed
        or capture.attempts
        or capture.entry.get("not_understood", ())
    )


def _in_order() -> Iterable[Rule]:
    """Rules by family, as the files have them; those of packages last: what they do to an array harms no other."""
    return sorted(RULES.values(), key=lambda rule: (rule.package is not None, _ORDER[rule.family]))


def _matched(capture: CaptureFrame, rule: Rule) -> list[Finding]:
    """Findings of one rule. Where a package's rule fails, a finding says so."""
    limits = limits_of(rule, capture.query)
    if rule.package is None:
        return [_finding(capture, rule, match) for match in rule.check(capture, limits)]
    try:
        return [_finding(capture, rule, extensions.checked(match)) for match in rule.check(capture, limits)]
    except (KwireError, Cancelled):
        raise
    except Exception as failure:
        return [extensions.unfinished(rule, failure)]


def _rank(finding: Finding) -> tuple[Any, ...]:
    """Sort key of findings: severity, quality of the capture before the rest, time."""
    severity = -SEVERITIES.index(finding.severity)
    since = finding.since if finding.since is not None else -1
    return severity, finding.family != "quality", since, _ORDER[finding.family], finding.code, finding.text


def _finding(capture: CaptureFrame, rule: Rule, match: Match) -> Finding:
    rows = [capture.key(row) for row in match.rows]
    proof: list[Evidence] = rows or [(capture.links[link], None, None) for link in match.links]
    proof = proof * 3 if len(proof) == 1 else [proof[0], proof[-1], proof[-1]] if len(proof) == 2 else proof
    first, worst, last = (proof[0], proof[1], proof[-1]) if proof else (None, None, None)
    return Finding(
        match.severity or rule.severity,
        rule.code,
        rule.family,
        match.text,
        _words(match.who),
        _words(match.what),
        match.count,
        _moment(match.since),
        _moment(match.until),
        match.cause,
        match.proven,
        match.advice or rule.advice,
        first,
        worst,
        last,
    )


def _words(texts: Mapping[str, str | None]) -> dict[str, str]:
    return {name: str(value) for name, value in texts.items() if value is not None and name != UNREAD}


def _moment(time: int | None) -> int | None:
    return None if time is None or time == NULL else time


def _reported(rule: Rule, some: list[Finding]) -> Iterator[Finding]:
    """Yield the largest findings of each severity, and one for the rest."""
    for severity in SEVERITIES:
        same = [finding for finding in some if finding.severity == severity]
        if len(same) <= MOST:
            yield from same
            continue
        by_size = sorted(same, key=lambda finding: (-finding.count, _rank(finding)))
        yield from by_size[:MOST]
        yield _rest(rule, severity, by_size[MOST:])


def _rest(rule: Rule, severity: Severity, some: list[Finding]) -> Finding:
    since = [finding.since for finding in some if finding.since is not None]
    until = [finding.until for finding in some if finding.until is not None]
    text = f"{count(len(some), 'more finding')} like these {MOST}, of smaller counts."
    return Finding(
        severity,
        rule.code,
        rule.family,
        text,
        {},
        {"findings": str(len(some))},
        sum(finding.count for finding in some),
        min(since, default=None),
        max(until, default=None),
        None,
        None,
        rule.advice,
        some[0].first,
        some[0].worst,
        some[-1].last,
    )


# ------------------------------------------------------------------------------------------------------- as a table


def as_table(findings: Iterable[tuple[str, Finding]]) -> pa.Table:
    """Rows of `findings`."""
    return pa.Table.from_pylist([row(*pair) for pair in findings], schema=tables.described("findings"))


def row(capture: str, finding: Finding) -> dict[str, Any]:
    """A finding's columns by name."""
    evidence = {name: _evidence(getattr(finding, name)) for name in ("first", "worst", "last")}
    names = ("severity", "code", "family", "text", "count", "since", "until", "cause", "proven", "advice")
    values = {name: getattr(finding, name) for name in names}
    pairs = {name: sorted(getattr(finding, name).items()) for name in ("who", "what")}
    return {"capture": capture, **values, **pairs, **evidence}


def _evidence(key: Evidence | None) -> dict[str, Any] | None:
    return None if key is None else dict(zip(("connection", "exchange", "reply"), key, strict=True))


def stored(source: RowGroups) -> list[tuple[str, Finding]]:
    """Findings that `analyze` stores: of the capture points that it analysed."""
    return [
        (entry["name"], finding)
        for entry in source.captures
        if entry.get("meaning")
        for finding in of_point(CaptureFrame(source, entry, USUAL))
    ]


LISTED = 10
"""Findings that the summary of `kwire analyze` shows."""


def summary(findings: Iterable[tuple[str, Finding]]) -> dict[str, Any]:
    """Count findings by severity, and list the worst."""
    ordered = sorted(findings, key=lambda pair: (_rank(pair[1]), pair[0]))
    severities = [finding.severity for _, finding in ordered]
    counts: dict[str, Any] = {severity: severities.count(severity) for severity in reversed(SEVERITIES)}
    worst = [
        {"capture": capture, "severity": finding.severity, "code": finding.code, "text": finding.text}
        for capture, finding in ordered[:LISTED]
    ]
    return {**counts, "worst": worst}


extensions.load()
