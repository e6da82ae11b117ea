"""HTTP API version 1 (API.md): functions from a view and a query to an answer's bytes. No network, no files of its own.

In: a `View`, and the query's words. Out: an `Answer`. Rules: what is asked wrongly is an answer too (400, with what is
wrong, a hint and, of a filter, the place); every count is exact; integers that a browser cannot hold are text.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer import __version__
from analyzer.cli import exchange_lines
from analyzer.common.times import micros
from analyzer.dataset import tables
from analyzer.filter.values import ENUMERATED
from analyzer.findings.query import SEVERITIES
from captures.errors import KwireError
from reports.view import (
    drawings,
    exporting,
    filter_completion,
    frames,
    heatmap,
    message_diff,
    other_tables,
    summary_counts,
    timeline,
)
from reports.view import (
    exchange_pairs as pairing,
)
from reports.view.exchange_pairs import Pairing
from reports.view.messages import Messages
from reports.view.notes import Notes
from reports.view.source_captures import SIDES
from reports.view.tables import Key, Tables, Wrong, key_read, key_text
from reports.view.value_counts import GivenUp, wanted

Query = Mapping[str, str]

WAITED_SECONDS: Final = 0.2
"""Between two looks at whether somebody still waits."""

ROWS_AT_ONCE: Final = 1000
"""Rows of one answer: a few screens."""

BYTES_AT_ONCE: Final = 64 << 10
"""Bytes of a message in one answer."""

SAFE: Final = (1 << 53) - 1
"""Integers beyond are text: a browser has no larger ones."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: a status of HTTP, and bytes of a type; `pieces`: bytes that come one after the other instead."""

    status: int
    content: bytes
    type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterator[bytes] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at. `command`: how to ask the same in a terminal, a filter and the like left to be added; `first`:
    the filter that the page begins with; `growing`: more exchanges are to come; `pairing`: what is there twice."""

    tables: Tables
    messages: Messages
    name: str
    command: tuple[str, ...]
    first: str = ""
    growing: bool = False
    notes: Notes = field(default_factory=Notes)
    pairing: Pairing | None = None


def answered(view: View, what: str, query: Query) -> Answer:
    """The answer to one call. Never raises for what is asked."""
    call = CALLS.get(what)
    if call is None:
        return refusal(404, Wrong(f"no such call: {what}", "API.md lists them"))
    began = time.perf_counter()
    try:
        found = call(_within(view, query), query)
    except KwireError as problem:
        return refusal(400, problem)
    except GivenUp:
        return refusal(503, Wrong("nobody waits for this answer"))
    answer = found if isinstance(found, Answer) else Answer(200, _json(found))
    answer.headers["Server-Timing"] = f"answer;dur={(time.perf_counter() - began) * 1000:.1f}"
    return answer


def _within(view: View, query: Query) -> View:
    """The view of nothing but a partition, where one is asked for (TOPIC-NUMBER)."""
    asked = query.get("partition", "")
    if not asked:
        return view
    topic, _, number = asked.rpartition("-")
    if not topic or not (number.isascii() and number.isdigit()) or len(number) > 10:
        raise Wrong(f"partition={asked[:40]}: not TOPIC-NUMBER")
    return replace(view, tables=view.tables.about_partition(topic, int(number)))


def kept(view: View, content: bytes) -> Answer:
    """The answer to notes that are sent: marks with their notes, and colour rules."""
    try:
        view.notes.become(content)
    except KwireError as problem:
        return refusal(400, problem)
    return Answer(200, _json(view.notes.told()))


def refusal(status: int, problem: KwireError) -> Answer:
    """An answer that says what is wrong."""
    told: dict[str, Any] = {"message": str(problem), "hint": problem.hint}
    if isinstance(problem, Wrong) and problem.place is not None:
        told |= {"start": problem.place[0], "length": problem.place[1]}
    return Answer(status, _json({"error": told}))


_MARK: Final = secrets.token_hex(16)
"""Where an array comes in an answer; nobody can know it, and write it into a capture."""

MANY: Final = 10_000
"""Numbers in arrays that are worth loading what writes many at once."""


def _json(value: Any) -> bytes:
    arrays: list[np.ndarray] = []

    def put(array: np.ndarray) -> str:
        arrays.append(array)
        return _MARK

    # Text of captures may hold halves of surrogate pairs, which UTF-8 has not: JSON's escapes carry them.
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=put)
    if arrays:
        first, *rest = text.split(f'"{_MARK}"')
        text = first + "".join(array + more for array, more in zip(_lists(arrays), rest, strict=True))
    return text.encode()


def _lists(arrays: list[np.ndarray]) -> list[str]:
    """Arrays of whole numbers, and of truths, as JSON: Python's encoder takes an object for each number, a tenth of a
    microsecond."""
    if sum(map(len, arrays)) < MANY:
        return [json.dumps(array.tolist(), separators=(",", ":")) for array in arrays]
    import pyarrow.compute as pc

    found = [""] * len(arrays)
    for kind in (np.bool_, np.int64):
        places = [at for at, array in enumerate(arrays) if (array.dtype == np.bool_) == (kind == np.bool_)]
        flat = np.concatenate([np.zeros(0, kind), *(arrays[at].astype(kind, copy=False) for at in places)])
        ends = pa.array(np.cumsum([0, *(len(arrays[at]) for at in places)]), pa.int64())
        texts = pa.LargeListArray.from_arrays(ends, pa.array(flat).cast(pa.string()))
        for at, text in zip(places, pc.binary_join(texts, ",").to_pylist(), strict=True):
            found[at] = f"[{text}]"
    return found


def _safe(value: Any) -> Any:
    """Integers beyond 2^53 as text."""
    if isinstance(value, np.ndarray):
        safe = not len(value) or max(-int(value.min()), int(value.max())) <= SAFE
        return value if safe else _safe(value.tolist())
    if isinstance(value, int) and not -SAFE <= value <= SAFE:
        return str(value)
    if isinstance(value, dict):
        return {name: _safe(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(one) for one in value]
    return value


def _number(query: Query, name: str, default: int, most: int = 1 << 53) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > most:
        raise Wrong(f"{name}={text[:40]}: not a number from 0 to {most}")
    return int(text)


def _side(query: Query) -> str:
    side = query.get("side", "request")
    if side not in SIDES:
        raise Wrong(f"side={side[:40]}: neither request nor response")
    return side


# --- what there is ----------------------------------------------------------------------------------------------------


def info(view: View, query: Query) -> Any:
    """What is looked at: captures, the range of times, columns with their types, coverage."""
    columns = view.tables.columns
    dataset = view.tables.dataset
    unread = dataset.manifest.get("unrecognised", {})
    ends = [end for name in ("request_time", "response_time") for end in columns.range(name) or ()]
    # Times are told since the first packet, as `kwire show` and Wireshark do, whoever spoke first.
    told = [one.get(end) for one in dataset.captures for end in ("first_time", "last_time")]
    ends += [at for time in told if (at := micros(time, None)) is not None]
    return {
        "api": 1,
        "version": __version__,
        "name": view.name,
        "growing": view.growing,
        "exchanges": columns.n,
        "filter": view.first,
        "first_time": min(ends, default=None),
        "last_time": max(ends, default=None),
        "captures": [one["name"] for one in dataset.captures],
        "coverage": _safe(dataset.coverage),
        "notes": list(dataset.manifest.get("notes", ())),
        "meaning": any(one.get("meaning") for one in dataset.captures),
        "encrypted": sum(one["looks_like"] == "TLS" for one in unread.get("listed", ())),
        "command": list(view.command),
        "bytes": view.messages.at_hand,
        "pairs": _pairs(view),
        "columns": [_column(view, column) for column in tables.EXCHANGES],
    }


def _pairs(view: View) -> Any:
    """What is there twice: what the sides are called, and how many pairs."""
    pairs = view.pairing
    if pairs is None:
        return None
    return {
        "replay": pairs.replay,
        "names": pairs.names,
        "count": int(np.count_nonzero(pairs.left & (pairs.of >= 0))),
        "judging": pairs.judging is not None,
    }


def _column(view: View, column: tables.Column) -> dict[str, Any]:
    """A column: what it holds, how it is written in a filter, and whether anything is in it."""
    name, kind = column.name, "text"
    if column.type == tables.TIME:
        kind = "time"
    elif name.endswith("_us"):
        kind = "duration"
    elif name.endswith("_bytes"):
        kind = "size"
    elif name in ("topics", "errors"):
        kind = name
    elif name in view.tables.columns.integers:
        kind = "integer"
    empty = name in view.tables.columns.empty
    return {"name": name, "kind": kind, "about": column.about, "empty": empty, "stated": name in ENUMERATED}


def check(view: View, query: Query) -> Any:
    """Is a filter right?"""
    try:
        wanted = view.tables.parse(query.get("filter", ""))
    except Wrong as wrong:
        start, length = wrong.place or (0, 1)
        return {"ok": False, "message": str(wrong), "hint": wrong.hint, "start": start, "length": length}
    return {"ok": True, "bodies": wanted is not None and wanted.needs_bodies}


def complete(view: View, query: Query) -> Any:
    """What may stand at a place of a filter."""
    text = query.get("text", "")
    at = _number(query, "at", len(text))
    return filter_completion.candidates(view.tables, text, min(at, len(text)))


# --- rows -------------------------------------------------------------------------------------------------------------


_SAID: Final = (
    "status",
    "errors",
    "response_state",
    "throttle_us",
    "reason",
    "topics",
    "group_id",
    "transactional_id",
    "acks",
)
"""What `outcome` and `subject` are made of."""


def rows(view: View, query: Query) -> Any:
    """A window of the exchanges that a filter chooses, in an order: columns as lists, and how many there are."""
    start = _number(query, "start", 0)
    count = min(_number(query, "count", 100), ROWS_AT_ONCE)
    selection, numbers = view.tables.window(query.get("filter", ""), query.get("sort", ""), start, count)
    asked = query.get("columns", "")
    names = [view.tables.column_of(name) for name in asked.split(",")] if asked else tables.schema("exchanges").names
    found = view.tables.some(numbers, dict.fromkeys((*names, *_SAID)))
    return {
        "total": len(selection.rows),
        "of": view.tables.columns.n,
        "start": start,
        "filter": selection.text,
        "keys": list(map(key_text, view.tables.keys_of(numbers))),
        "outcome": list(map(exchange_lines.outcome, found)),
        "subject": list(map(exchange_lines.subject, found)),
        "columns": {name: [_safe(row[name]) for row in found] for name in names},
        "rule": _rules(view, numbers),
    }


def _rules(view: View, numbers: np.ndarray) -> list[int | None]:
    """Which of the colour rules is the first to choose each row; one that is not right (any more) chooses none."""
    found = np.full(len(numbers), -1)
    for rule in range(len(view.notes.rules) - 1, -1, -1):
        text = view.notes.rules[rule]
        with contextlib.suppress(Wrong):
            asked = view.tables.parse(text)
            if asked is not None and not asked.needs_bodies:  # a list does not wait for messages to be read
                found[view.tables.among(text, numbers)] = rule
    return [None if rule < 0 else rule for rule in found.tolist()]


def notes(view: View, query: Query) -> Any:
    """Marks with their notes, and colour rules."""
    return view.notes.told()


def marked(view: View, query: Query) -> Any:
    """Where the marked exchanges stand under a filter and an order, those that it chooses."""
    found = []
    for key, note in list(view.notes.marks.items()):
        row = view.tables.place_of(query.get("filter", ""), query.get("sort", ""), key_read(key))
        if row is not None:
            found.append({"row": row, "key": key, "note": note})
    return {"marked": sorted(found, key=lambda one: one["row"])}


def table(view: View, query: Query) -> Any:
    """A window of another list: of a table of the dataset (`filters`: what chooses the exchanges of a row), or of what
    a filter chooses its frames or its pairs (`keys`: their exchanges)."""
    start, count = _number(query, "start", 0), min(_number(query, "count", 100), ROWS_AT_ONCE)
    name, text, sort = (query.get(one, "") for one in ("name", "filter", "sort"))
    if name == "frames":
        return _safe(frames.window(view.tables, text, sort, start, count))
    if name == "pairs":
        differing = query.get("only", "") == "differing"
        return _safe(_paired(view).window(view.tables, text, sort, differing, start, count))
    return _safe(other_tables.window(view.tables, name, sort, start, count))


def ladder(view: View, query: Query) -> Any:
    """Who asked whom, and when it was answered; who led meanwhile. `bands`: all of it, by so many intervals of time."""
    if query.get("bands"):
        return _safe(drawings.bands(view.tables, query.get("filter", ""), _number(query, "bands", 1)))
    start, count = _number(query, "start", 0), _number(query, "count", drawings.ARROWS)
    return _safe(drawings.ladder(view.tables, query.get("filter", ""), start, count))


def tracks(view: View, query: Query) -> Any:
    """Tracks of exchanges over time, and what groups and transactions did."""
    first, last = (_number(query, name, -1) if query.get(name) else None for name in ("first", "last"))
    by, width = query.get("by", "connection"), _number(query, "width", 1000)
    return _safe(timeline.timeline(view.tables, query.get("filter", ""), by, width, first, last))


def export(view: View, query: Query) -> Any:
    """What a filter chooses, as a file; `check`: only what is wrong with that, as far as it takes no time to see."""
    text, sort, form, check = (query.get(name, "") for name in ("filter", "sort", "format", "check"))
    pieces: Callable[[], Iterator[bytes]]
    if form == "pcapng":
        there = exporting.with_packets(view.tables, view.messages.captures, text)
        kind, pieces = "application/x-pcapng", partial(exporting.packets, there)
    else:
        kind, pieces = exporting.exported(view.tables, text, sort, form)
    name = {"Content-Disposition": f'attachment; filename="kwire.{"jsonl" if form == "json" else form}"'}
    return {} if check else Answer(200, b"", kind, name, pieces())


def batch(view: View, query: Query) -> Any:
    """A filter for all exchanges that carry the first batch of one again; null where it has none."""
    return {"filter": other_tables.sent_again(view.tables, key_read(query.get("key", "")))}


def partitions(view: View, query: Query) -> Any:
    """The partitions that an exchange names."""
    return {"partitions": other_tables.partitions_of(view.tables, key_read(query.get("key", "")))}


def facets(view: View, query: Query) -> Any:
    """Values of some names among what a filter chooses, most frequent first."""
    asked = query.get("fields", "")
    names = asked.split(",") if asked else [*summary_counts.FACETS]
    return {"facets": summary_counts.facets(view.tables, view.tables.chosen(query.get("filter", "")), names)}


def stats(view: View, query: Query) -> Any:
    """Counts, bytes and quantiles of what a filter chooses."""
    return _safe(summary_counts.stats(view.tables, view.tables.chosen(query.get("filter", ""))))


def heat(view: View, query: Query) -> Answer:
    """Latencies over time of what a filter chooses: a line of JSON, then counts."""
    chosen = view.tables.chosen(query.get("filter", ""))
    grid = heatmap.grid(view.tables, chosen, _number(query, "width", 300))
    return Answer(200, grid.packed(), "application/octet-stream")


def locate(view: View, query: Query) -> Any:
    """Where an exchange stands under a filter and an order; null: the filter leaves it out. `step`: so many rows
    further in its connection instead."""
    key = key_read(query.get("key", ""))
    return {"row": view.tables.place_of(query.get("filter", ""), query.get("sort", ""), key)}


def neighbour(view: View, query: Query) -> Any:
    """The exchange before or after one in its connection, whatever is filtered; null where there is none."""
    key = view.tables.beside(key_read(query.get("key", "")), -1 if query.get("step") == "back" else 1)
    return {"key": None if key is None else key_text(key)}


def exchange(view: View, query: Query) -> Any:
    """One exchange: all its columns."""
    key = key_read(query.get("key", ""))
    number = view.tables.row_of(key)
    if number is None:
        raise Wrong("there is no such exchange", "it may be of another capture")
    row = view.tables.row(number)
    outcome, subject = exchange_lines.outcome(row), exchange_lines.subject(row)
    return {"key": key_text(key), "outcome": outcome, "subject": subject, "row": _safe(row)}


# --- what is there twice ---


def _paired(view: View) -> Pairing:
    if view.pairing is None:
        raise Wrong("nothing is here twice", "a RUN of kwire replay has pairs; so have captures of both ends")
    return view.pairing


def _twin(view: View, key: Key) -> tuple[int, Key | None]:
    """The row of an exchange, and its other side."""
    pairs, row = _paired(view), view.tables.row_of(key)
    if row is None:
        raise Wrong("there is no such exchange", "it may be of another capture")
    return row, None if pairs.of[row] < 0 else view.tables.key_of(int(pairs.of[row]))


def twin(view: View, query: Query) -> Any:
    """The other side of an exchange, what the replay did with it, and what differs as far as it was judged."""
    pairs, key = _paired(view), key_read(query.get("key", ""))
    row, other = _twin(view, key)
    first = bool(pairs.left[row])
    told = pairs.told(key if first or other is None else other)
    return _safe(
        {
            "key": None if other is None else key_text(other),
            "first": first,
            "names": pairs.names,
            "outcome": pairs.outcome(view.tables, row if first else int(pairs.of[row])),
            "judged": pairs.judging is None or pairs.judging.done,
            "differences": [{"text": pairing.said(one), "rule": one[5]} for one in told],
            "sides": [_side_told(view, one) for one in ((key, other) if first else (other, key))],
        }
    )


def _side_told(view: View, key: Key | None) -> Any:
    """What a pair's line says of one side."""
    row = None if key is None else view.tables.row_of(key)
    if row is None:
        return None
    told = view.tables.row(row)
    return {"outcome": exchange_lines.outcome(told), "latency_us": told["latency_us"]}


def differences(view: View, query: Query) -> Any:
    """The fields in which one side's message differs from the other's: places in both trees."""
    key, side = key_read(query.get("key", "")), _side(query)
    _, other = _twin(view, key)
    if other is None:
        return {"total": 0, "differences": []}
    found, total = message_diff.differences(*(view.messages.of(one).tree(side)[0] for one in (key, other)))
    return {"total": total, "differences": [one._asdict() for one in found]}


def counterpart(view: View, query: Query) -> Any:
    """Where the other side has a field; null: nowhere."""
    key, side = key_read(query.get("key", "")), _side(query)
    _, other = _twin(view, key)
    if other is None:
        return {"path": None}
    here, there = (view.messages.of(one).tree(side)[0] for one in (key, other))
    return {"path": message_diff.counterpart(here, there, _path(query))}


def judged(view: View, query: Query) -> Any:
    """What `kwire diff` says of a RUN, waited for: its verdict in a line, and how many pairs came to what."""
    pairs = _paired(view)
    if pairs.judging is not None:
        while not pairs.judging.wait(WAITED_SECONDS):
            wanted()
    found = pairs.verdicts(view.tables)[pairs.left]
    return {
        "verdict": "" if pairs.judging is None else pairs.judging.line,
        "counts": {name: int(np.count_nonzero(found == at)) for at, name in enumerate(pairing.VERDICTS)},
    }


def findings(view: View, query: Query) -> Any:
    """What is wrong, worst first: each with its text, advice and the exchanges that show it."""

    rows = view.tables.other("findings")
    worst = sorted(rows, key=lambda row: (-SEVERITIES.index(row["severity"]), row["since"] or 0))
    return {"findings": [_finding(row) for row in worst]}


def _finding(row: dict[str, Any]) -> dict[str, Any]:
    keys: dict[str, str] = {}
    for which in ("first", "worst", "last"):
        if (place := row[which]) is not None:
            key = key_text((row["capture"], place["connection"], place["exchange"], place["reply"]))
            keys.setdefault(key, which)
    names = ("severity", "code", "text", "cause", "proven", "advice", "count", "since")
    told = {name: _safe(row[name]) for name in names}
    return {**told, "evidence": [{"which": which, "key": key} for key, which in keys.items()]}


# --- messages ---------------------------------------------------------------------------------------------------------


def message(view: View, query: Query) -> Any:
    """The tree of one side of an exchange: the children of the node at `path`, from `first` on."""
    from reports.view import trees  # which the messages are decoded with

    found, side = view.messages.of(key_read(query.get("key", ""))), _side(query)
    tree, reason, _ = found.tree(side)
    path = _path(query)
    try:
        told = trees.page(tree, side, path, _number(query, "first", 0))
    except LookupError:
        raise Wrong("path: no such field in this message") from None
    frame = found.frame(side)
    return {
        **_safe(told),
        "reason": reason,
        "source": found.source,
        "bytes": 0 if frame is None else len(frame),
        "incomplete": found.missing(side),
    }


def _path(query: Query) -> list[int]:
    text = query.get("path", "")
    steps = text.split(".") if text else []
    if not all(step.isascii() and step.isdigit() and len(step) < 10 for step in steps):
        raise Wrong("path: not places joined by points", "as 3.0.2")
    return [int(step) for step in steps]


def field_at(view: View, query: Query) -> Any:
    """The path of the innermost field that holds a byte."""
    from reports.view import trees

    found = view.messages.of(key_read(query.get("key", "")))
    return {"path": trees.at(found.tree(_side(query))[0], _number(query, "offset", 0))}


def octets(view: View, query: Query) -> Any:
    """Bytes of one side, its length before it; secrets are `*`."""
    found = view.messages.of(key_read(query.get("key", "")))
    frame = found.frame(_side(query))
    if frame is None:
        raise Wrong("this message is not in the capture")
    start = _number(query, "start", 0)
    count = min(_number(query, "count", BYTES_AT_ONCE), BYTES_AT_ONCE)
    return Answer(
        200, bytes(frame[start : start + count]), "application/octet-stream", {"X-Kwire-Total": str(len(frame))}
    )


# fmt: off
CALLS: Final[dict[str, Callable[[View, Query], Any]]] = {
    "info": info, "check": check, "complete": complete, "rows": rows, "locate": locate, "neighbour": neighbour,
    "findings": findings, "facets": facets, "stats": stats, "heatmap": heat, "exchange": exchange,
    "message": message, "field": field_at, "bytes": octets, "table": table, "batch": batch, "notes": notes,
    "marked": marked, "ladder": ladder, "timeline": tracks, "export": export, "twin": twin,
    "partitions": partitions,
    "differences": differences, "counterpart": counterpart, "judged": judged,
}
# fmt: on
