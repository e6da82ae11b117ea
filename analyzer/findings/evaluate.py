"""Evaluate all rules over all capture points of a dataset.

In: `RowGroups`. Out: `Finding`s by capture point, and the table `findings`. A cause that explains other findings is
reported once, with their number (`root_causes`); of one code the `MOST` worst are listed, and the rest is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from analyzer.dataset import tables
from analyzer.findings import (  # noqa: F401  (each registers its rules)
    assignments,
    capture_quality,
    cluster,
    commits,
    error_answers,
    fetch,
    groups,
    latency,
    malformed,
    network,
    produce,
    root_causes,
    security,
    share_groups,
    static_members,
    tls,
    transactions,
    versions,
)
from analyzer.findings.capture import CaptureFrame
from analyzer.findings.query import SEVERITIES, Asked, Evidence, Severity
from analyzer.findings.rules import FAMILIES, RULES, Finding, Found, Rule, concerns, limits_of
from analyzer.findings.wording import UNREAD, count
from analyzer.frame.frame import NULL
from analyzer.frame.parquet import RowGroups
from analyzer.frame.spill import reuse

MOST = 50
"""Findings of one code and severity that are told one by one in a capture point: more are no reading matter."""

USUAL = Asked()

_ORDER = {family: number for number, family in enumerate(FAMILIES)}


def judged(source: RowGroups, asked: Asked = USUAL) -> list[tuple[str, Finding]]:
    """(capture point, finding) of a dataset, worst first, then by time. Raises DatasetError where files are damaged."""
    found = [
        (entry["name"], finding)
        for entry in source.captures
        for finding in of_point(CaptureFrame(source, entry, asked))
    ]
    return sorted(found, key=lambda one: (_rank(one[1]), one[0]))


def concerned(asked: Asked) -> frozenset[str]:
    """The rules whose findings may not be those that `analyze` stored."""
    return frozenset(code for code, rule in RULES.items() if concerns(asked, rule))


def of_point(seen: CaptureFrame, only: Collection[str] | None = None) -> list[Finding]:
    """Findings of one capture point, of these rules or of all, worst first, then by time."""
    rows = len(seen.table("connections")) + len(seen.table("exchanges")) + len(seen.sealed) + len(seen.attempts)
    if not rows:
        return []  # log segments, or no Kafka: notes of the analysis say so
    rules = [rule for rule in _in_order() if only is None or rule.code in only]
    if any(rule.by_clock for rule in rules) and seen.set_back is not None:
        rules = [rule for rule in rules if not rule.by_clock]
    made: list[Finding] = []
    with reuse():
        if only is None:
            seen.load()
        for rule in rules:
            some = [_finding(seen, rule, found) for found in rule.look(seen, limits_of(rule, seen.asked))]
            made += _told(rule, some)
    return sorted(made, key=_rank)


def _in_order() -> Iterable[Rule]:
    return sorted(RULES.values(), key=lambda rule: _ORDER[rule.family])  # stable: as the files have them


def _rank(finding: Finding) -> tuple[Any, ...]:
    """Order of telling: severity, quality of the capture before the rest, time."""
    severity = -SEVERITIES.index(finding.severity)
    since = finding.since if finding.since is not None else -1
    return severity, finding.family != "quality", since, _ORDER[finding.family], finding.code, finding.text


def _finding(seen: CaptureFrame, rule: Rule, found: Found) -> Finding:
    rows = [seen.key(row) for row in found.rows]
    proof: list[Evidence] = rows or [(seen.links[link], None, None) for link in found.links]
    proof = proof * 3 if len(proof) == 1 else [proof[0], proof[-1], proof[-1]] if len(proof) == 2 else proof
    first, worst, last = (proof[0], proof[1], proof[-1]) if proof else (None, None, None)
    return Finding(
        found.severity or rule.severity,
        rule.code,
        rule.family,
        found.text,
        _words(found.who),
        _words(found.what),
        found.count,
        _moment(found.since),
        _moment(found.until),
        found.cause,
        found.proven,
        found.advice or rule.advice,
        first,
        worst,
        last,
    )


def _words(said: Mapping[str, str | None]) -> dict[str, str]:
    return {name: str(value) for name, value in said.items() if value is not None and name != UNREAD}


def _moment(time: int | None) -> int | None:
    return None if time is None or time == NULL else time


def _told(rule: Rule, some: list[Finding]) -> Iterator[Finding]:
    """Of each severity the largest; the rest as one."""
    for severity in SEVERITIES:
        mine = [one for one in some if one.severity == severity]
        if len(mine) <= MOST:
            yield from mine
            continue
        by_size = sorted(mine, key=lambda one: (-one.count, _rank(one)))
        yield from by_size[:MOST]
        yield _rest(rule, severity, by_size[MOST:])


def _rest(rule: Rule, severity: Severity, some: list[Finding]) -> Finding:
    since = [one.since for one in some if one.since is not None]
    until = [one.until for one in some if one.until is not None]
    text = f"{count(len(some), 'more finding')} like these {MOST}, of smaller counts."
    return Finding(
        severity,
        rule.code,
        rule.family,
        text,
        {},
        {"findings": str(len(some))},
        sum(one.count for one in some),
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


def as_table(found: Iterable[tuple[str, Finding]]) -> pa.Table:
    """Rows of `findings`."""
    return pa.Table.from_pylist([row(*one) for one in found], schema=tables.schema("findings"))


def row(capture: str, finding: Finding) -> dict[str, Any]:
    """A finding's columns by name."""
    evidence = {name: _evidence(getattr(finding, name)) for name in ("first", "worst", "last")}
    names = ("severity", "code", "family", "text", "count", "since", "until", "cause", "proven", "advice")
    said = {name: getattr(finding, name) for name in names}
    pairs = {name: sorted(getattr(finding, name).items()) for name in ("who", "what")}
    return {"capture": capture, **said, **pairs, **evidence}


def _evidence(key: Evidence | None) -> dict[str, Any] | None:
    return None if key is None else dict(zip(("connection", "exchange", "reply"), key, strict=True))


def stored(source: RowGroups) -> list[tuple[str, Finding]]:
    """What `analyze` stores of the capture points that it read: nothing of those whose meaning it left out."""
    return [
        (entry["name"], finding)
        for entry in source.captures
        if entry.get("meaning")
        for finding in of_point(CaptureFrame(source, entry, USUAL))
    ]


LISTED = 10
"""Findings that the summary of `kwire analyze` shows."""


def summary(found: Iterable[tuple[str, Finding]]) -> dict[str, Any]:
    """How many there are of each severity, and the worst."""
    ordered = sorted(found, key=lambda one: (_rank(one[1]), one[0]))
    severities = [one.severity for _, one in ordered]
    counts: dict[str, Any] = {severity: severities.count(severity) for severity in reversed(SEVERITIES)}
    worst = [
        {"capture": capture, "severity": one.severity, "code": one.code, "text": one.text}
        for capture, one in ordered[:LISTED]
    ]
    return {**counts, "worst": worst}
