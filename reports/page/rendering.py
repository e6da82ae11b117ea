"""A report as a page, as Markdown, as JSON.

In: a `Report`, everything known. Out: text. What comes from a capture is hostile: the page escapes it (Jinja2's
autoescape, and its own for data in scripts), characters that move a cursor or turn text round are shown as their
codes, and the page forbids itself all scripts but its own and every request to a network.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kwire.analyzer.cli.text import duration, printable, size
from kwire.analyzer.common.address_names import in_text
from kwire.analyzer.common.markdown import literal
from kwire.analyzer.common.times import rfc3339, utc
from kwire.captures.errors import KwireError
from kwire.captures.extras import install
from kwire.reports.page.health import Statement, count, share
from kwire.reports.page.questions import AnsweredQuestion
from kwire.reports.page.report import Report
from kwire.reports.page.sections import Section, Span

PAGE = Path(__file__).resolve().parent

LONGEST_TEXT = 200
"""Characters of a value that a table shows: a client id may have 32,767."""

MARKDOWN_ROWS = 20
"""Rows of a table in Markdown: it is read in a terminal or a ticket."""


# --- cells ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as it is shown, and what sorts it; `number`: set to the right."""

    text: str
    sort: str
    number: bool
    full: str = ""


_IDENTIFIER = re.compile(r"(_id|_key|_code|port|version|partition|leader|epoch|sequence|offset|exchange|^min|^max)$")
"""Numbers that name something: they are not counted in thousands."""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cell(column: str, value: Any, span: Span | None) -> Cell:
    """A value by its column's name, which says its unit (see `analyzer/dataset/tables.py`)."""
    if value is None:
        return Cell("", "", False)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", str(int(value)), False)
    if isinstance(value, datetime.datetime):
        when = utc(value)
        return Cell(clock(when, span), when.isoformat(), True, when.strftime("%Y-%m-%d %H:%M:%S.%f UTC"))
    if is_number(value):
        if column.endswith("_us"):
            text = duration(int(value))
        elif column.endswith("_ms"):
            text = f"{value:,} ms"
        elif column.endswith("_bytes") or column.startswith("bytes"):
            text = size(int(value))
        elif _IDENTIFIER.search(column):
            text = str(value)
        elif column.endswith("share"):
            text = share(value, 1)
        elif isinstance(value, float):
            text = f"{value:,.2f}"
        else:
            text = f"{value:,}"
        return Cell(text, repr(value), True, f"{value:,} {_unit(column)}".strip())
    text = printable(json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value))
    if len(text) > LONGEST_TEXT:
        return Cell(f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)", text[:LONGEST_TEXT], False)
    return Cell(text, text, False)


def _unit(column: str) -> str:
    return "us" if column.endswith("_us") else "B" if column.endswith("bytes") else ""


def clock(when: datetime.datetime, span: Span | None) -> str:
    """A time as short as the captures' span allows."""
    if span is not None and span.begin.date() == span.end.date():
        return when.strftime("%H:%M:%S.") + f"{when.microsecond // 1000:03d}"
    return when.strftime("%Y-%m-%d %H:%M:%S")


# fmt: off
_LABELS = {
    "rtt_us": "handshake", "rtt_p50_us": "handshake median", "rtt_max_us": "handshake longest", "p50_us": "median",
    "max_us": "longest", "request_p50_bytes": "request median", "response_p50_bytes": "response median",
    "file_bytes": "size",
    "record_bytes": "bytes", "min_bytes": "min bytes", "request_bytes": "asked", "response_bytes": "answered",
    "client_bytes": "sent", "broker_bytes": "received", "served_us": "served in", "queue_us": "queued",
    "held_us": "held on purpose", "late_leg_us": "time in it",
}
# fmt: on


def label(column: str) -> str:
    """A column's heading: its name without what its cells say themselves."""
    if column in _LABELS:
        return _LABELS[column]
    for suffix in ("_us", "_ms", "_bytes"):
        column = column.removesuffix(suffix)
    return column.replace("_", " ")


def shown_columns(answer: AnsweredQuestion) -> list[int]:
    """Columns worth a place: those with a value, and the capture point only where there are several."""
    columns = []
    for at, name in enumerate(answer.columns):
        values = {str(row[at]) for row in answer.rows if row[at] is not None}
        if values and not (name == "capture" and len(values) == 1 and answer.question.name != "captured"):
            columns.append(at)
    # Where an exchange is to be found comes after what it is about.
    names = answer.columns
    where = [at for at in columns if names[at] in ("connection", "exchange") and "api" in names]
    return [at for at in columns if at not in where] + where


# --- groups of findings -----------------------------------------------------------------------------------------------

NAMES = 8
"""Names that the head of a group has."""


@dataclass(frozen=True, slots=True)
class Group:
    """Statements of one subject and verdict. `text`: that of the only one, or whom they are about and how often."""

    subject: str
    verdict: str
    section: str
    text: str
    statements: tuple[Statement, ...]


def groups(statements: Sequence[Statement]) -> list[Group]:
    """Group statements by what they are about, in order of the first of each."""
    together: dict[tuple[str, str], list[Statement]] = {}
    for statement in statements:
        together.setdefault((statement.subject, statement.verdict), []).append(statement)
    return [
        Group(subject, verdict, some[0].section, some[0].text if len(some) == 1 else _names(some), tuple(some))
        for (subject, verdict), some in together.items()
    ]


def _names(statements: Sequence[Statement]) -> str:
    """`bob 11, carol 23 and 2 more`: whom statements are about, most often first."""
    counts: Counter[str] = Counter()
    for statement in statements:
        for name, times in statement.names:
            counts[name] += times
    named = ", ".join(f"{name} {times:,}" for name, times in counts.most_common(NAMES))
    more = len(counts) - NAMES
    return f"{named} and {more:,} more" if more > 0 else named


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(report: Report) -> str:
    """Everything, for programs: times RFC 3339, units in the columns' names."""
    whole = {
        "kwire_version": report.version,
        "sources": list(report.sources),
        "target": report.target,
        "first_time": rfc3339(report.span.begin) if report.span else None,
        "last_time": rfc3339(report.span.end) if report.span else None,
        "findings": [
            {
                "subject": statement.subject,
                "verdict": statement.verdict,
                "text": statement.text,
                "advice": statement.advice or None,
                "evidence": list(statement.evidence),
                "commands": list(statement.commands),
            }
            for statement in report.statements
        ],
        "answers": {
            name: {
                "question": answer.question.question,
                "columns": answer.question.columns,
                "rows": [{key: _json_value(value) for key, value in row.items()} for row in answer.dicts()],
                "more": answer.more,
                "sql": answer.question.shown,
            }
            for name, answer in report.answers.items()
        },
    }
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return rfc3339(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return value


# --- Markdown ---------------------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """The tables for a terminal or a ticket."""
    lines = [f"# Kafka traffic: {literal(', '.join(report.sources))}", ""]
    if report.span is not None:
        lines += [f"{_span_text(report.span)}, kwire {report.version}", ""]
    for group in groups(report.statements):
        head = f"- **{group.subject}: {group.verdict}.** "
        if len(group.statements) == 1:
            lines += [head + literal(group.text), *_markdown_details(group.statements[0], "  ")]
        else:
            lines.append(head + literal(group.text))
            for statement in group.statements:
                lines += [f"  - {literal(statement.text)}", *_markdown_details(statement, "    ")]
    for section in report.sections:
        lines += ["", f"## {section.title}"]
        tables = [(title, answer) for title, answer in report.tables(section) if answer.rows]
        if not tables:
            lines += ["", section.empty]
        for title, answer in tables:
            lines += ["", f"### {title}", "", answer.question.question, "", *_markdown_table(answer, report.span)]
    return "\n".join(lines) + "\n"


def _markdown_details(statement: Statement, indent: str) -> list[str]:
    lines = [f"{indent}- Do: {literal(statement.advice)}"] if statement.advice else []
    lines += [f"{indent}- See: {literal('; '.join(statement.evidence))}"] if statement.evidence else []
    return lines


def _markdown_table(answer: AnsweredQuestion, span: Span | None) -> list[str]:
    columns = shown_columns(answer)
    rows = [[cell(answer.columns[at], row[at], span) for at in columns] for row in answer.rows[:MARKDOWN_ROWS]]
    numbers = [any(row[at].number for row in rows) for at in range(len(columns))]
    lines = [
        "| " + " | ".join(label(answer.columns[at]) for at in columns) + " |",
        "|" + "|".join("---:" if number else "---" for number in numbers) + "|",
        *("| " + " | ".join(literal(cell.text) for cell in row) + " |" for row in rows),
    ]
    if left := len(answer.rows) - len(rows):
        lines += ["", f"{'More than ' if answer.more else ''}{count(left, 'row')} more."]
    return lines


def _span_text(span: Span) -> str:
    begin, end = utc(span.begin), utc(span.end)
    last = end.strftime("%H:%M:%S" if begin.date() == end.date() else "%Y-%m-%d %H:%M:%S")
    return f"{begin.strftime('%Y-%m-%d %H:%M:%S')} to {last} UTC ({_long(end - begin)})"


def _long(span: datetime.timedelta) -> str:
    """A duration of a capture: `8.0 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    seconds = span.total_seconds()
    if seconds < 60:
        return duration(round(seconds * 1e6))
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"


# --- HTML -------------------------------------------------------------------------------------------------------------


def as_html(report: Report, served: bool = False) -> str:
    """One page that needs nothing else. served: `kwire view` shows it, which links in it may lead to."""
    try:
        import jinja2
    except ModuleNotFoundError:
        raise KwireError("a page needs jinja2, which is not installed", f"{install('sql')}; or --format md") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (PAGE / "uPlot.iife.min.js").read_text(encoding="utf-8") + "\n" + (PAGE / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        report=report,
        served=served,
        title=printable(", ".join(report.sources)),
        when=_span_text(report.span) if report.span else "",
        tiles=_tiles(report),
        groups=groups(report.statements),
        sections=[_section(report, section) for section in report.sections],
        coverage=_coverage_bar(report),
        lanes=_lanes(report),
        ticks=_ticks(report),
        charts=_script_json(_charts(report)),
        style=(PAGE / "uPlot.min.css").read_text("utf-8") + (PAGE / "report.css").read_text("utf-8"),
        script=script,
        script_hash=digest,
    )


def _script_json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _tiles(report: Report) -> list[dict[str, str]]:
    """The figures at the top: what, how much, and one thing more."""
    totals, links = report.answers["totals"].dicts()[0], report.answers["links"].dicts()[0]
    traffic = (totals["request_bytes"] or 0) + (totals["response_bytes"] or 0)
    read = totals["answered"] - totals["unread"]
    tiles = [
        ("Exchanges", f"{totals['exchanges']:,}", f"on {count(links['connections'], 'connection')}"),
        ("Errors", share(totals["errors"], read), f"{count(totals['errors'], 'answer')}"),
    ]
    if totals["prompt"]:
        tiles += [
            ("Median latency", duration(totals["p50_us"]), "without long polls"),
            ("99th percentile", duration(totals["p99_us"]), f"longest {duration(totals['max_us'])}"),
        ]
    request_size, answered = size(totals["request_bytes"] or 0), size(totals["response_bytes"] or 0)
    clients = report.answers["clients_seen"]
    tiles += [
        ("Traffic", size(traffic), f"{request_size} asked, {answered} answered"),
        (
            "Clients",
            f"{len(clients.rows):,}{'+' if clients.more else ''}",
            f"at {count(links['clients'], 'address', 'addresses')}",
        ),
        ("Brokers", f"{links['brokers']:,}", "addresses that answered" if links["brokers"] != 1 else "address"),
    ]
    return [{"name": name, "value": value, "more": more} for name, value, more in tiles]


def _section(report: Report, section: Section) -> dict[str, Any]:
    tables = [_table(title, answer, report.span) for title, answer in report.tables(section)]
    shown = sorted({report.answers[chart.answer].question.shown for chart in section.charts})
    charts = [
        {"name": chart.name, "title": chart.title, "choice": chart.choice}
        for chart in section.charts
        if report.span is not None and any(chart.make(report.answers[chart.answer], report.span).choices.values())
    ]
    return {
        "name": section.name,
        "title": section.title,
        "lead": section.lead,
        "charts": charts,
        "tables": [table for table in tables if table["rows"]],
        "quiet": [table for table in tables if not table["rows"]],
        "chart_sql": shown if charts else [],
        "empty": section.empty if not any(table["rows"] for table in tables) else "",
    }


def _table(title: str, answer: AnsweredQuestion, span: Span | None) -> dict[str, Any]:
    columns = shown_columns(answer)
    names = answer.columns
    rows = [[cell(names[at], row[at], span) for at in columns] for row in answer.rows]
    numbers = [any(row[at].number for row in rows) for at in range(len(columns))]
    return {
        "name": answer.question.name,
        "title": title,
        "question": answer.question.question,
        "notes": answer.question.notes,
        "columns": [
            {
                "label": label(names[at]),
                "about": answer.question.columns[names[at]],
                "number": number,
                "measure": number
                and not _IDENTIFIER.search(names[at])
                and not any(isinstance(row[at], datetime.datetime) for row in answer.rows),
            }
            for at, number in zip(columns, numbers)
        ],
        "all_columns": answer.question.columns,
        "rows": rows,
        "spreads": _spreads(answer),
        "more": answer.more,
        "count": len(rows),
        "sql": answer.question.shown,
    }


def _spreads(answer: AnsweredQuestion) -> list[dict[str, float] | None]:
    """For tables of latencies, where each row's median, 99th percentile and longest lie, in percent of a logarithmic
    scale that all rows share."""
    if not {"p50_us", "p99_us", "max_us"} <= set(answer.columns):
        return []
    rows = answer.dicts()
    known = [max(row[name], 1) for row in rows for name in ("p50_us", "max_us") if row[name] is not None]
    if not known:
        return []
    low, high = math.log10(min(known)), math.log10(max(known))
    width = max(high - low, 1e-9)

    def place(value: int) -> float:
        return round(100 * (math.log10(max(value, 1)) - low) / width, 1)

    return [
        None
        if row["p50_us"] is None
        else {"p50": place(row["p50_us"]), "p99": place(row["p99_us"]), "max": place(row["max_us"])}
        for row in rows
    ]


_PARTS = ("decoded", "duplicate", "opaque", "skipped", "incomplete")


def _coverage_bar(report: Report) -> list[dict[str, Any]]:
    """The parts of the captured bytes, as widths of a bar."""
    sums: dict[str, int] = dict.fromkeys(_PARTS, 0)
    for row in report.answers["coverage"].dicts():
        if row["part"] in sums:
            sums[row["part"]] += row["bytes"] or 0
    whole = sum(sums.values())
    return [
        {
            "part": part,
            "width": round(100 * sums[part] / whole, 3),
            "bytes": size(sums[part]),
            "share": share(sums[part], whole),
        }
        for part in _PARTS
        if whole and sums[part]
    ]


_LANES = {
    "join": "joins",
    "leave": "leaves",
    "leader": "leader changes",
    "error": "errors",
    "transaction": "transactions",
    "login": "logins",
    "reset": "resets",
}
"""Kinds of events in the order of their lanes, and what these are called."""

TICKS = 4


def _lanes(report: Report) -> list[dict[str, Any]]:
    """Events as marks in lanes, one a kind: their places in percent of the captures' time."""
    if report.span is None:
        return []
    rows = [row for row in report.answers["events_over_time"].dicts() if row["interval"] is not None]
    whole = max((report.span.end - report.span.begin) / datetime.timedelta(microseconds=1), 1)
    lanes = []
    for kind, name in _LANES.items():
        own = [row for row in rows if row["kind"] == kind]
        marks = []
        for row in own:
            at = row["interval"] * report.span.width_us
            when = utc(report.span.begin + datetime.timedelta(microseconds=at))
            text = " ".join(printable(row[column]) for column in ("who", "what", "detail") if row[column])
            title = f"{clock(when, report.span)}: {row['events']:,}" + (f", {text}"[:LONGEST_TEXT] if text else "")
            left = round(min(max(100 * (at + report.span.width_us / 2) / whole, 0), 100), 2)
            marks.append({"left": left, "title": title, "many": row["events"] > 1})
        if own:
            events = f"{sum(row['events'] for row in own):,}"
            lanes.append({"kind": kind, "name": name, "count": events, "events": marks})
    return lanes


def _ticks(report: Report) -> list[dict[str, Any]]:
    """Times under the lanes."""
    if report.span is None:
        return []
    step = (report.span.end - report.span.begin) / TICKS
    return [
        {"left": 100 * number / TICKS, "text": utc(report.span.begin + number * step).strftime("%H:%M:%S")}
        for number in range(TICKS + 1)
    ]


def _charts(report: Report) -> dict[str, Any]:
    """The data of the charts that the page's script draws."""
    if report.span is None:
        return {}
    drawn = {}
    for section in report.sections:
        for chart in section.charts:
            data = chart.make(report.answers[chart.answer], report.span)
            if data.times and any(data.choices.values()):
                drawn[chart.name] = {
                    "kind": chart.kind,
                    "unit": chart.unit,
                    "step": report.span.width_us / 1e6,
                    "times": data.times,
                    "choices": {_label(name): _series(series) for name, series in data.choices.items()},
                }
    return drawn


def _label(name: str) -> str:
    """Label a line of a chart: addresses by their names."""
    return printable(in_text(name, brief=True))


def _series(series: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    return [{"label": _label(name), "values": list(values)} for name, values in series.items()]
