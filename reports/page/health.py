"""Health at a glance: what is wrong, as findings have it, and what is well.

In: answers. Out: statements, the worst first, each with a verdict in a word. Pure; what is wrong, and from which
threshold on, is said by `kwire.analyzer.findings` alone. A verdict never rests on colour alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from kwire.analyzer.cli.text import duration, printable, size
from kwire.analyzer.findings.wording import unsaid_cause
from kwire.reports.page.questions import AnsweredQuestion

Verdict = Literal["error", "warning", "note", "good"]
"""The severity of what is wrong, as findings have it; or that nothing is."""

SECTIONS = {
    "quality": "coverage",
    "network": "connections",
    "errors": "errors",
    "latency": "latency",
    "produce": "topics",
    "fetch": "topics",
    "groups": "groups",
    "transactions": "events",
    "cluster": "brokers",
    "security": "clients",
    "versions": "clients",
    "protocol": "coverage",
}
"""Where a report has more about a family of findings."""

CULPRITS = 4
"""Statements of one code and verdict at most: the table has the others."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement: what was looked at, the verdict, a sentence with the numbers. `section`: where more stands.
    `advice`: what to do; `evidence`: exchanges that show it, in words, and `commands`, which show them, with their
    `filters`. `names`: who it is about, and how often: of statements that the page groups."""

    subject: str
    verdict: Verdict
    text: str
    section: str
    advice: str = ""
    evidence: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    names: tuple[tuple[str, int], ...] = ()
    filters: tuple[str, ...] = ()


def statements(answers: Mapping[str, AnsweredQuestion], target: str | None) -> list[Statement]:
    """Every statement that the answers allow, the worst first."""
    order: dict[Verdict, int] = {"error": 0, "warning": 1, "note": 2, "good": 3}
    stated = [
        *_findings(answers),
        *_not_analysed(answers),
        *_upgrade(answers, target),
        *_errors(answers),
        *_latency(answers),
        *_coverage(answers),
    ]
    return sorted(stated, key=lambda statement: order[statement.verdict])


def count(number: int, singular: str, many: str = "") -> str:
    """`1 exchange`, `2,000 exchanges`."""
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def share(part: float, whole: float) -> str:
    """`3.7 %`; `under 0.1 %` rather than a zero that is none."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 99.95 or part == whole else "99.9 %"


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _findings(answers: Mapping[str, AnsweredQuestion]) -> Iterator[Statement]:
    """The findings; of one code and severity the first ones, of the others only how many there are."""
    rows = answers["findings"].dicts()
    several = len({row["capture"] for row in rows}) > 1
    counts: dict[tuple[str, str], int] = {}
    left: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = row["severity"], row["code"]
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= CULPRITS:
            yield _finding(row, several)
        else:
            left.setdefault(key, []).append(row)
    for (severity, code), others in left.items():
        text = f"{len(others):,} more like these: see Findings."
        yield Statement(code, cast("Verdict", severity), text, "findings", names=tuple(map(_named_by, others)))
    if not any(row["severity"] in ("error", "warning") for row in rows) and _analysed(answers):
        yield Statement("Findings", "good", "No rule found an error, or anything to look at.", "findings")


def _finding(row: Mapping[str, Any], several: bool) -> Statement:
    text = f"{printable(row['capture'])}: " if several else ""
    text += row["text"]
    if cause := unsaid_cause(row):
        text += f" {'Because' if row['proven'] else 'Probably'}: {cause}."
    section = SECTIONS.get(row["family"], "findings")
    filters = _filters(row)
    return Statement(
        row["code"],
        row["severity"],
        text,
        section,
        row["advice"],
        tuple(_evidence(row)),
        tuple(printable(shlex.join(["kwire", "show", row["capture"], "--filter", text])) for text in filters),
        (_named_by(row),),
        tuple(f"capture == {_quoted(row['capture'])} and {text}" if several else text for text in filters),
    )


def _named_by(row: Mapping[str, Any]) -> tuple[str, int]:
    """Name whom or what a finding is about, in a word, and count it."""
    return printable(row["named"] or "unnamed"), row["count"] or 1


def _filters(row: Mapping[str, Any]) -> list[str]:
    """Filters of the exchanges of its capture that show a finding, each once."""
    filters: dict[str, None] = {}
    for which in ("first", "worst", "last"):
        connection, exchange = row[f"{which}_connection"], row[f"{which}_exchange"]
        if connection is not None:
            filters[
                f"connection == {_quoted(connection)}" + ("" if exchange is None else f" and exchange == {exchange}")
            ] = None
    return list(filters)


def _quoted(text: str) -> str:
    """A value as a filter has it."""
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _evidence(row: Mapping[str, Any]) -> Iterator[str]:
    """`first: exchange 12 of 10.0.0.1:5000-10.0.0.9:9092#1`; what two of the three share is told once."""
    where: dict[str, list[str]] = {}
    for which in ("first", "worst", "last"):
        connection, exchange = row[f"{which}_connection"], row[f"{which}_exchange"]
        if connection is not None:
            place = printable(connection) if exchange is None else f"exchange {exchange} of {printable(connection)}"
            where.setdefault(place, []).append(which)
    for place, names in where.items():
        yield place if len(where) == 1 else f"{', '.join(names)}: {place}"


def _analysed(answers: Mapping[str, AnsweredQuestion]) -> bool:
    return all(row["meaning"] for row in answers["captured"].dicts())


def _not_analysed(answers: Mapping[str, AnsweredQuestion]) -> Iterator[Statement]:
    rows = [row for row in answers["captured"].dicts() if not row["meaning"]]
    if rows:
        named = ", ".join(printable(row["capture"]) for row in rows[:3])
        named += f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        text = f"Not analysed: what the traffic of {named} means (a dataset of an earlier version, --no-analysis, or a "
        text += "filter). kwire findings DATASET tells what can be told without; kwire analyze of the capture, all."
        yield Statement("Findings", "warning", text, "findings")


# --- facts ------------------------------------------------------------------------------------------------------------


def _well(answers: Mapping[str, AnsweredQuestion], *families: str) -> Verdict:
    """`good` where no finding of these families is an error or a warning, as far as that was looked at."""
    rows = answers["findings"].dicts()
    wrong = any(row["family"] in families and row["severity"] != "note" for row in rows)
    return "good" if _analysed(answers) and not wrong else "note"


_ABOUT_ERRORS = ("errors", "produce", "fetch", "groups", "transactions", "cluster", "security")


def _errors(answers: Mapping[str, AnsweredQuestion]) -> Iterator[Statement]:
    totals = answers["totals"].dicts()[0]
    errors, answered = totals["errors"], totals["answered"]
    if not answered:
        return
    unread = totals["unread"]
    read = answered - unread
    verdict = _well(answers, *_ABOUT_ERRORS) if errors else "good"
    if errors:
        text = f"{count(errors, 'answer')} of {read:,} {'holds an error' if errors == 1 else 'hold an error'}"
        text += ", none of them a fault." if verdict == "good" else "."
    else:
        text = f"None of {count(read, 'answer')} holds an error."
    if unread:
        verdict = "note" if verdict == "good" else verdict
        text += f" Of {unread:,} more too little was captured, or could be read, to tell."
    yield Statement("Errors", verdict, text, "errors")


def _latency(answers: Mapping[str, AnsweredQuestion]) -> Iterator[Statement]:
    totals = answers["totals"].dicts()[0]
    parts = []
    if totals["prompt"]:
        parts.append(
            "Half of the requests that do not wait for data, members or replicas are answered within "
            f"{duration(totals['p50_us'])}, 99 of 100 within {duration(totals['p99_us'])}; the slowest took "
            f"{duration(totals['max_us'])}."
        )
    if totals["untold"]:
        left_out = "This leaves out" if parts else "There are"
        parts.append(
            f"{left_out} {count(totals['untold'], 'request')} that may have waited for replicas (Produce with "
            f"acks=all, commits): 99 of 100 were answered within {duration(totals['untold_p99_us'])}, and the slowest "
            f"took {duration(totals['untold_max_us'])}."
        )
    if totals["slow"]:
        parts.append(f"{count(totals['slow'], 'request')} took a second or more, with what was queued before.")
    if parts:
        verdict = _well(answers, "latency")
        yield Statement(
            "Latency", "note" if verdict == "good" and totals["slow"] else verdict, " ".join(parts), "latency"
        )


def _upgrade(answers: Mapping[str, AnsweredQuestion], target: str | None) -> Iterator[Statement]:
    if target is None:
        return
    rows = {row["problem"]: row for row in answers["lacking"].dicts()}
    if gone := rows.get("gone"):
        text = f"Kafka {target} has removed what {count(gone['clients'], 'client')} {_uses(gone)}: {_named(gone)}."
        yield Statement("Upgrade", "error", text, "clients")
    if newest := rows.get("newest"):
        text = f"Kafka {target} has removed what {count(newest['clients'], 'client')} {_uses(newest)}, though no newer "
        text += f"version was offered to {'it' if newest['clients'] == 1 else 'them'}, which may have one: "
        yield Statement("Upgrade", "warning", f"{text}{_named(newest)}.", "clients")
    if gone or newest:
        return
    if newer := rows.get("not there yet"):
        text = f"Kafka {target} is older than what {count(newer['clients'], 'client')} spoke: {_named(newer)}."
        yield Statement("Upgrade", "note", text, "clients")
        return
    requests = answers["totals"].dicts()[0]["requests"]
    sealed = any(row["looks_like"] == "TLS" for row in answers["unrecognised"].dicts())
    sealed = sealed or bool(answers["links"].dicts()[0]["encrypted_bytes"])
    if not requests:
        text = "No request was seen: nobody knows which API versions clients use."
        yield Statement("Upgrade", "warning", text, "clients")
    elif sealed:
        text = f"Kafka {target} has every API version that clients use in the {count(requests, 'request')} that could "
        yield Statement("Upgrade", "note", f"{text}be read; what is encrypted may need others.", "clients")
    else:
        text = f"Kafka {target} has every API version that clients use in the {count(requests, 'request')} seen here."
        yield Statement("Upgrade", "good", text, "clients")


def _uses(row: Mapping[str, Any]) -> str:
    return "uses" if row["clients"] == 1 else "use"


_NAMELESS: Final = "a client without id"
"""One that says an empty id is called so, too."""


def _named(row: Mapping[str, Any]) -> str:
    """`app, billing and 6 more`: client ids, of which several addresses may have one."""
    ids = [printable(name) if name else _NAMELESS for name in row["named"]]
    if row["unnamed"] and len(ids) < 3 and _NAMELESS not in ids:
        ids.append(_NAMELESS)
    more = row["clients"] - len(ids)
    return ", ".join(ids) + (f" and {more:,} more" if more > 0 else "")


def _coverage(answers: Mapping[str, AnsweredQuestion]) -> Iterator[Statement]:
    links = answers["links"].dicts()[0]
    payload, missing = links["payload_bytes"] or 0, links["missing_bytes"] or 0
    if not payload:
        yield Statement("Coverage", "warning", "No Kafka traffic was found in the capture.", "coverage")
        return
    parts = [f"{share(links['understood_bytes'], payload)} of {size(payload)} of Kafka traffic was decoded"]
    if links["encrypted_bytes"]:
        parts.append(f"{size(links['encrypted_bytes'])} is encrypted")
    if missing:
        parts.append(f"{size(missing)} is missing from the capture")
    if lost := answers["captured"].total("dropped_packets"):
        parts.append(f"the capture itself lost {count(lost, 'packet')}")
    yield Statement("Coverage", _well(answers, "quality", "protocol"), "; ".join(parts) + ".", "coverage")
