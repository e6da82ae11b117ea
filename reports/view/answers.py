"""HTTP API version 1 (API.md): functions from a view and a query to an answer's bytes, without network or files.

In: a `DataView`, and the query's parameters. Out: an `Answer`. Rules: an invalid query gives an answer with status 400,
the problem, a hint and, for a filter, its position; every count is exact; integers that a browser cannot hold are text.
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

from kwire.analyzer import __version__
from kwire.analyzer.cli import exchange_lines
from kwire.analyzer.common import address_names
from kwire.analyzer.common.times import micros
from kwire.analyzer.dataset import tables
from kwire.analyzer.filter.values import ENUMERATED
from kwire.analyzer.findings.query import SEVERITIES
from kwire.analyzer.frame.spill import Cancelled, check_cancelled
from kwire.captures.errors import KwireError
from kwire.reports.view import (
    drawings,
    exchange_pairs,
    exporting,
    filter_completion,
    frames,
    heatmap,
    message_diff,
    other_tables,
    sql_questions,
    summary_counts,
    timeline,
)
from kwire.reports.view.exchange_pairs import ExchangePairs
from kwire.reports.view.filter_values import quoted
from kwire.reports.view.messages import Messages
from kwire.reports.view.notes import Notes
from kwire.reports.view.record_list import RecordList
from kwire.reports.view.source_captures import SIDES
from kwire.reports.view.sql_questions import SqlQuestions
from kwire.reports.view.tables import BadRequestError, Key, Tables, format_key, parse_key
from kwire.reports.view.tcp_events import EventReader

Query = Mapping[str, str]

POLL_SECONDS: Final = 0.2
"""Between two checks whether the client still waits."""

MAX_ROWS: Final = 1000
"""Rows in one answer: a few screens."""

MAX_BYTES: Final = 64 << 10
"""Bytes of a message in one answer."""

MAX_SAFE_INTEGER: Final = (1 << 53) - 1
"""Larger integers are sent as text: a browser's numbers are exact up to here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response: status, content and its type. `pieces`: the content in pieces, instead of `content`."""

    status: int
    content: bytes
    type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterator[bytes] | None = None


@dataclass(frozen=True, slots=True)
class DataView:
    """A dataset or captures as the page shows them.

    command  the command line that shows the same, to which the page appends a filter
    first    the filter that the page begins with
    growing  True if more exchanges will follow
    pairs    exchanges that were recorded twice, if there are any
    records  the records in the messages
    questions  questions in SQL about the dataset
    tcp      events of TCP, read from the captures when they are asked for
    """

    tables: Tables
    messages: Messages
    name: str
    command: tuple[str, ...]
    first: str = ""
    growing: bool = False
    notes: Notes = field(default_factory=Notes)
    pairs: ExchangePairs | None = None
    records: RecordList = None  # type: ignore[assignment]
    questions: SqlQuestions = None  # type: ignore[assignment]
    tcp: EventReader = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.records is None:
            object.__setattr__(self, "records", RecordList(self.tables, self.messages))
        if self.questions is None:
            object.__setattr__(self, "questions", SqlQuestions(self.tables.dataset.path, not self.growing))
        if self.tcp is None:
            connections = partial(self.tables.other, "connections")
            object.__setattr__(self, "tcp", EventReader(connections, self.messages.captures))


def answer_call(view: DataView, what: str, query: Query) -> Answer:
    """Answer one call. An invalid query gives an answer, not an exception."""
    call = CALLS.get(what)
    if call is None:
        return error_answer(404, BadRequestError(f"no such call: {what}", "API.md lists them"))
    began = time.perf_counter()
    try:
        result = call(_within(view, query), query)
    except KwireError as problem:
        return error_answer(400, problem)
    except Cancelled:
        return error_answer(503, BadRequestError("the client has disconnected"))
    answer = result if isinstance(result, Answer) else Answer(200, _json(result))
    answer.headers["Server-Timing"] = f"answer;dur={(time.perf_counter() - began) * 1000:.1f}"
    return answer


def _within(view: DataView, query: Query) -> DataView:
    """Restrict the view to the partition in the query (TOPIC-NUMBER), if there is one."""
    partition = query.get("partition", "")
    if not partition:
        return view
    topic, _, number = partition.rpartition("-")
    if not topic or not (number.isascii() and number.isdigit()) or len(number) > 10:
        raise BadRequestError(f"partition={partition[:40]}: not TOPIC-NUMBER")
    return replace(view, tables=view.tables.about_partition(topic, int(number)))


def store_notes(view: DataView, content: bytes) -> Answer:
    """Store the notes that the page sent: marks with their notes, and colour rules."""
    try:
        view.notes.store(content)
    except KwireError as problem:
        return error_answer(400, problem)
    return Answer(200, _json(view.notes.content()))


def error_answer(status: int, problem: KwireError) -> Answer:
    """Build an answer that describes an error."""
    error: dict[str, Any] = {"message": problem.message, "hint": problem.hint}
    if isinstance(problem, BadRequestError) and problem.place is not None:
        error |= {"start": problem.place[0], "length": problem.place[1]}
    return Answer(status, _json({"error": error}))


_PLACEHOLDER: Final = secrets.token_hex(16)
"""Stands for an array in JSON text; random, so that no capture can contain it."""

ARROW_NUMBERS: Final = 10_000
"""Numbers in an answer's arrays from which loading pyarrow.compute pays off."""


def _json(value: Any) -> bytes:
    arrays: list[np.ndarray] = []

    def put(array: np.ndarray) -> str:
        arrays.append(array)
        return _PLACEHOLDER

    # Text of captures may hold lone surrogates, which UTF-8 cannot encode; JSON's escapes can.
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=put)
    if arrays:
        first, *rest = text.split(f'"{_PLACEHOLDER}"')
        text = first + "".join(array + more for array, more in zip(_lists(arrays), rest, strict=True))
    return text.encode()


def _lists(arrays: list[np.ndarray]) -> list[str]:
    """Write arrays of integers and booleans as JSON lists, faster than Python's encoder does for many numbers."""
    if sum(map(len, arrays)) < ARROW_NUMBERS:
        return [json.dumps(array.tolist(), separators=(",", ":")) for array in arrays]
    import pyarrow.compute as pc

    texts_by_array = [""] * len(arrays)
    for kind in (np.bool_, np.int64):
        places = [at for at, array in enumerate(arrays) if (array.dtype == np.bool_) == (kind == np.bool_)]
        flat = np.concatenate([np.zeros(0, kind), *(arrays[at].astype(kind, copy=False) for at in places)])
        ends = pa.array(np.cumsum([0, *(len(arrays[at]) for at in places)]), pa.int64())
        texts = pa.LargeListArray.from_arrays(ends, pa.array(flat).cast(pa.string()))
        for at, text in zip(places, pc.binary_join(texts, ",").to_pylist(), strict=True):
            texts_by_array[at] = f"[{text}]"
    return texts_by_array


def _safe(value: Any) -> Any:
    """Replace integers beyond 2^53 by text."""
    if isinstance(value, np.ndarray):
        safe = not len(value) or max(-int(value.min()), int(value.max())) <= MAX_SAFE_INTEGER
        return value if safe else _safe(value.tolist())
    if isinstance(value, int) and not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return str(value)
    if isinstance(value, dict):
        return {name: _safe(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(element) for element in value]
    return value


def _number(query: Query, name: str, default: int, most: int = 1 << 53) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > most:
        raise BadRequestError(f"{name}={text[:40]}: not a number from 0 to {most}")
    return int(text)


def _side(query: Query) -> str:
    side = query.get("side", "request")
    if side not in SIDES:
        raise BadRequestError(f"side={side[:40]}: neither request nor response")
    return side


# --- the dataset ------------------------------------------------------------------------------------------------------


def info(view: DataView, query: Query) -> Any:
    """Describe the view: captures, range of times, columns with their types, coverage."""
    columns = view.tables.columns
    dataset = view.tables.dataset
    unread = dataset.manifest.get("unrecognised", {})
    ends = [end for name in ("request_time", "response_time") for end in columns.range(name) or ()]
    # Times count from the first packet of any kind, as in `kwire show` and Wireshark.
    capture_times = [capture.get(end) for capture in dataset.captures for end in ("first_time", "last_time")]
    ends += [at for time in capture_times if (at := micros(time, None)) is not None]
    return {
        "api": 1,
        "version": __version__,
        "name": view.name,
        "growing": view.growing,
        "exchanges": columns.n,
        "filter": view.first,
        "first_time": min(ends, default=None),
        "last_time": max(ends, default=None),
        "captures": [capture["name"] for capture in dataset.captures],
        "coverage": _safe(dataset.coverage),
        "notes": list(dataset.manifest.get("notes", ())),
        "meaning": any(capture.get("meaning") for capture in dataset.captures),
        "encrypted": sum(stream["looks_like"] == "TLS" for stream in unread.get("listed", ())),
        "command": list(view.command),
        "bytes": view.messages.available,
        "pairs": _pairs(view),
        "columns": [_column(view, column) for column in view.tables.described()],
    }


def _pairs(view: DataView) -> Any:
    """Describe the pairs of exchanges: names of the sides, and number of pairs."""
    pairs = view.pairs
    if pairs is None:
        return None
    return {
        "replay": pairs.replay,
        "names": pairs.names,
        "count": int(np.count_nonzero(pairs.left & (pairs.of >= 0))),
        "judging": pairs.comparison is not None,
    }


def _column(view: DataView, column: tables.Column) -> dict[str, Any]:
    """Describe a column: its values, its kind in filters, whether it is empty, and whether all rows have one value."""
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
    columns = view.tables.columns
    return {
        "name": name,
        "kind": kind,
        "about": column.about,
        "empty": name in columns.empty,
        "constant": columns.is_constant(name),
        "stated": name in ENUMERATED,
    }


def check(view: DataView, query: Query) -> Any:
    """Check a filter."""
    try:
        parsed = view.tables.parse(query.get("filter", ""))
    except BadRequestError as wrong:
        start, length = wrong.place or (0, 1)
        return {"ok": False, "message": wrong.message, "hint": wrong.hint, "start": start, "length": length}
    return {"ok": True, "bodies": parsed is not None and parsed.needs_bodies}


def complete(view: DataView, query: Query) -> Any:
    """Complete a filter at the cursor."""
    text = query.get("text", "")
    at = _number(query, "at", len(text))
    return filter_completion.candidates(view.tables, text, min(at, len(text)))


# --- rows -------------------------------------------------------------------------------------------------------------


_LINE_COLUMNS: Final = (
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
"""Columns that `outcome` and `subject` need."""


def rows(view: DataView, query: Query) -> Any:
    """Get a window of the exchanges that a filter chooses, sorted: columns as lists, and the total."""
    start = _number(query, "start", 0)
    count = min(_number(query, "count", 100), MAX_ROWS)
    selection, numbers = view.tables.window(query.get("filter", ""), query.get("sort", ""), start, count)
    requested = query.get("columns", "")
    names = (
        [view.tables.column_of(name) for name in requested.split(",")]
        if requested
        else [column.name for column in view.tables.described()]
    )
    selected = view.tables.rows_at(numbers, dict.fromkeys((*names, *_LINE_COLUMNS)))
    return {
        "total": len(selection.rows),
        "of": view.tables.columns.n,
        "start": start,
        "filter": selection.text,
        "keys": list(map(format_key, view.tables.keys_of(numbers))),
        "outcome": list(map(exchange_lines.outcome, selected)),
        "subject": list(map(exchange_lines.subject, selected)),
        "columns": {name: [_safe(row[name]) for row in selected] for name in names},
        "rule": _rules(view, numbers),
    }


def _rules(view: DataView, numbers: np.ndarray) -> list[int | None]:
    """Find the first colour rule that chooses each row; an invalid rule chooses none."""
    rules = np.full(len(numbers), -1)
    for rule in range(len(view.notes.rules) - 1, -1, -1):
        text = view.notes.rules[rule]
        with contextlib.suppress(BadRequestError):
            parsed = view.tables.parse(text)
            if parsed is not None and not parsed.needs_bodies:  # listing must not wait until messages are read
                rules[view.tables.among(text, numbers)] = rule
    return [None if rule < 0 else rule for rule in rules.tolist()]


def notes(view: DataView, query: Query) -> Any:
    """Get marks with their notes, and colour rules."""
    return view.notes.content()


def marked(view: DataView, query: Query) -> Any:
    """Locate the marked exchanges that a filter chooses, in an order."""
    marks = []
    for key, note in list(view.notes.marks.items()):
        row = view.tables.place_of(query.get("filter", ""), query.get("sort", ""), parse_key(key))
        if row is not None:
            marks.append({"row": row, "key": key, "note": note})
    return {"marked": sorted(marks, key=lambda mark: mark["row"])}


def table(view: DataView, query: Query) -> Any:
    """Get a window of another list: of a table of the dataset (`filters` choose the exchanges of a row), of the frames
    or pairs of the chosen exchanges (`keys` identify them), or of questions in SQL or the answer to one."""
    start, count = _number(query, "start", 0), min(_number(query, "count", 100), MAX_ROWS)
    name, text, sort = (query.get(parameter, "") for parameter in ("name", "filter", "sort"))
    if name == "frames":
        return _safe(frames.window(view.tables, text, sort, start, count))
    if name == "records":
        return _safe(view.records.window(view.tables, text, sort, start, count))
    if name == "pairs":
        differing = query.get("only", "") == "differing"
        return _safe(_pairs_of(view).window(view.tables, text, sort, differing, start, count))
    if name == "questions":
        return sql_questions.listed(start, count)
    if name == "answer":
        return _safe(view.questions.window(query.get("question", ""), sort, start, count))
    return _safe(other_tables.window(view.tables, name, sort, start, count))


def ladder(view: DataView, query: Query) -> Any:
    """Draw messages between clients and brokers, with changes of leaders. `bands`: counts in that many intervals of
    time instead of single messages."""
    if query.get("bands"):
        return _safe(drawings.bands(view.tables, query.get("filter", ""), _number(query, "bands", 1)))
    start, count = _number(query, "start", 0), _number(query, "count", drawings.ARROWS)
    return _safe(drawings.ladder(view.tables, query.get("filter", ""), start, count))


def tracks(view: DataView, query: Query) -> Any:
    """Draw tracks of exchanges over time, with rebalances and transactions."""
    first, last = (_number(query, name, -1) if query.get(name) else None for name in ("first", "last"))
    by, width = query.get("by", "connection"), _number(query, "width", 1000)
    return _safe(timeline.timeline(view.tables, query.get("filter", ""), by, width, first, last))


def tcp(view: DataView, query: Query) -> Any:
    """Count events of TCP by the intervals of a timeline, of the connections that the chosen exchanges have."""
    begin, step, shown = (_number(query, name, 1) for name in ("first", "step", "columns"))
    selection = view.tables.chosen(query.get("filter", ""))
    events = None if view.growing else view.tcp.read()
    if events is None:
        return {"known": False, "first": None, "last": None, "links": [], "filters": [], "lanes": []}
    links = None if selection.every else set(view.tables.links_of(selection.rows)[0])
    chosen = events.chosen(links)
    first, last = (int(chosen.times[end]) if len(chosen.times) else None for end in (0, -1))
    return _safe(
        {
            "known": True,
            "first": first,
            "last": last,
            "links": chosen.links,
            "filters": [f"connection == {quoted(connection)}" for _, connection in chosen.links],
            "lanes": chosen.lanes(begin, max(step, 1), min(shown, timeline.WIDEST)),
        }
    )


def export(view: DataView, query: Query) -> Any:
    """Export the chosen exchanges as a file. `check`: only report errors that can be found at once."""
    text, sort, form, check = (query.get(name, "") for name in ("filter", "sort", "format", "check"))
    pieces: Callable[[], Iterator[bytes]]
    if form == "pcapng":
        there = exporting.connections_to_export(view.tables, view.messages.captures, text)
        kind, pieces = "application/x-pcapng", partial(exporting.export_packets, there)
    else:
        kind, pieces = exporting.export_rows(view.tables, text, sort, form)
    name = {"Content-Disposition": f'attachment; filename="kwire.{"jsonl" if form == "json" else form}"'}
    return {} if check else Answer(200, b"", kind, name, pieces())


def report(view: DataView, query: Query) -> Answer:
    """Get the report on all exchanges as a page, which brings its styles and its only script itself."""
    page = view.questions.report(view.name)
    digest = page.partition("script-src '")[2].partition("'")[0]
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{digest}'; base-uri 'none'; "
    policy += "form-action 'none'; frame-ancestors 'none'"
    return Answer(200, page.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})


def batch(view: DataView, query: Query) -> Any:
    """Get a filter for all exchanges that carry the first batch of one; null if it has none."""
    return {"filter": other_tables.resend_filter(view.tables, parse_key(query.get("key", "")))}


def partitions(view: DataView, query: Query) -> Any:
    """List the partitions that an exchange names."""
    return {"partitions": other_tables.partitions_of(view.tables, parse_key(query.get("key", "")))}


def facets(view: DataView, query: Query) -> Any:
    """Count values of some columns among the chosen exchanges, most frequent first."""
    requested = query.get("fields", "")
    # Each costs a pass over all.
    names = dict.fromkeys(requested.split(",")) if requested else summary_counts.fields(view.tables)
    return {"facets": summary_counts.facets(view.tables, view.tables.chosen(query.get("filter", "")), names)}


def stats(view: DataView, query: Query) -> Any:
    """Summarise the chosen exchanges: counts, bytes and quantiles."""
    return _safe(summary_counts.stats(view.tables, view.tables.chosen(query.get("filter", ""))))


def heat(view: DataView, query: Query) -> Answer:
    """Count the chosen exchanges by time and latency: a line of JSON, then the counts."""
    chosen = view.tables.chosen(query.get("filter", ""))
    grid = heatmap.grid(view.tables, chosen, _number(query, "width", 300))
    return Answer(200, grid.packed(), "application/octet-stream")


def locate(view: DataView, query: Query) -> Any:
    """Locate an exchange under a filter and an order; null if the filter excludes it."""
    key = parse_key(query.get("key", ""))
    return {"row": view.tables.place_of(query.get("filter", ""), query.get("sort", ""), key)}


def neighbour(view: DataView, query: Query) -> Any:
    """Find the exchange before or after one in its connection, whatever the filter; null if there is none."""
    key = view.tables.beside(parse_key(query.get("key", "")), -1 if query.get("step") == "back" else 1)
    return {"key": None if key is None else format_key(key)}


def exchange(view: DataView, query: Query) -> Any:
    """Get all columns of one exchange."""
    key = parse_key(query.get("key", ""))
    row = view.tables.row(view.tables.require_row(key))
    outcome, subject = exchange_lines.outcome(row), exchange_lines.subject(row)
    return {"key": format_key(key), "outcome": outcome, "subject": subject, "row": _safe(row)}


# --- exchanges recorded twice -----------------------------------------------------------------------------------------


def _pairs_of(view: DataView) -> ExchangePairs:
    if view.pairs is None:
        raise BadRequestError(
            "there are no pairs of exchanges", "a RUN of kwire replay has pairs; so have captures of both ends"
        )
    return view.pairs


def _other_side(view: DataView, key: Key) -> tuple[int, Key | None]:
    """Get the row of an exchange, and the other exchange of its pair."""
    pairs, row = _pairs_of(view), view.tables.require_row(key)
    return row, None if pairs.of[row] < 0 else view.tables.key_of(int(pairs.of[row]))


def other_side(view: DataView, query: Query) -> Any:
    """Get the other exchange of a pair, what the replay did, and the differences as far as they were compared."""
    pairs, key = _pairs_of(view), parse_key(query.get("key", ""))
    row, other = _other_side(view, key)
    first = bool(pairs.left[row])
    differing_fields = pairs.differences(key if first or other is None else other)
    return _safe(
        {
            "key": None if other is None else format_key(other),
            "first": first,
            "names": pairs.names,
            "outcome": pairs.outcome(view.tables, row if first else int(pairs.of[row])),
            "judged": pairs.comparison is None or pairs.comparison.done,
            "differences": [
                {"text": exchange_pairs.difference_text(difference), "rule": difference[5]}
                for difference in differing_fields
            ],
            "sides": [_side_summary(view, side_key) for side_key in ((key, other) if first else (other, key))],
        }
    )


def _side_summary(view: DataView, key: Key | None) -> Any:
    """Summarise one side of a pair."""
    row = None if key is None else view.tables.row_of(key)
    if row is None:
        return None
    columns = view.tables.row(row)
    return {"outcome": exchange_lines.outcome(columns), "latency_us": columns["latency_us"]}


def differences(view: DataView, query: Query) -> Any:
    """List the fields that differ between both messages of a pair: their paths in both trees."""
    key, side = parse_key(query.get("key", "")), _side(query)
    _, other = _other_side(view, key)
    if other is None:
        return {"total": 0, "differences": []}
    shown, total = message_diff.differences(
        *(view.messages.of(exchange_key).tree(side)[0] for exchange_key in (key, other))
    )
    return {"total": total, "differences": [difference._asdict() for difference in shown]}


def counterpart(view: DataView, query: Query) -> Any:
    """Find a field in the other message of a pair; null if it is not there."""
    key, side = parse_key(query.get("key", "")), _side(query)
    _, other = _other_side(view, key)
    if other is None:
        return {"path": None}
    here, there = (view.messages.of(exchange_key).tree(side)[0] for exchange_key in (key, other))
    return {"path": message_diff.counterpart(here, there, _path(query))}


def judged(view: DataView, query: Query) -> Any:
    """Wait for `kwire diff` of a RUN: its verdict in a line, and the number of pairs by result."""
    pairs = _pairs_of(view)
    if pairs.comparison is not None:
        while not pairs.comparison.wait(POLL_SECONDS):
            check_cancelled()
    verdicts = pairs.verdicts(view.tables)[pairs.left]
    return {
        "verdict": "" if pairs.comparison is None else pairs.comparison.line,
        "counts": {name: int(np.count_nonzero(verdicts == at)) for at, name in enumerate(exchange_pairs.VERDICTS)},
    }


def findings(view: DataView, query: Query) -> Any:
    """List findings, worst first: each with its text, advice and the exchanges that show it."""
    rows = view.tables.other("findings")
    worst = sorted(rows, key=lambda row: (-SEVERITIES.index(row["severity"]), row["since"] or 0))
    return {"findings": [_finding(row) for row in worst]}


def _finding(row: dict[str, Any]) -> dict[str, Any]:
    keys: dict[str, str] = {}
    for which in ("first", "worst", "last"):
        if (place := row[which]) is not None:
            key = format_key((row["capture"], place["connection"], place["exchange"], place["reply"]))
            keys.setdefault(key, which)
    names = ("severity", "code", "text", "cause", "proven", "advice", "count", "since")
    columns = {name: _safe(row[name]) for name in names}
    columns |= {name: row[name] and address_names.in_text(row[name]) for name in ("text", "cause")}
    return {**columns, "evidence": [{"which": which, "key": key} for key, which in keys.items()]}


# --- messages ---------------------------------------------------------------------------------------------------------


def message_tree(view: DataView, query: Query) -> Any:
    """Get the tree of a message: the children of the node at `path`, from `first` on."""
    from kwire.reports.view import trees  # loads the decoders

    messages, side = view.messages.of(parse_key(query.get("key", ""))), _side(query)
    tree, reason, _ = messages.tree(side)
    path = _path(query)
    try:
        page = trees.page(tree, side, path, _number(query, "first", 0))
    except LookupError:
        raise BadRequestError("path: no such field in this message") from None
    frame = messages.frame(side)
    return {
        **_safe(page),
        "reason": reason,
        "source": messages.source,
        "bytes": 0 if frame is None else len(frame),
        "incomplete": messages.missing(side),
    }


def _path(query: Query) -> list[int]:
    text = query.get("path", "")
    steps = text.split(".") if text else []
    if not all(step.isascii() and step.isdigit() and len(step) < 10 for step in steps):
        raise BadRequestError("path: not positions joined by points", "for example 3.0.2")
    return [int(step) for step in steps]


def field_at(view: DataView, query: Query) -> Any:
    """Find the path of the innermost field that contains a byte."""
    from kwire.reports.view import trees

    messages = view.messages.of(parse_key(query.get("key", "")))
    return {"path": trees.at(messages.tree(_side(query))[0], _number(query, "offset", 0))}


def octets(view: DataView, query: Query) -> Any:
    """Get bytes of a message, with its length field; secrets are `*`."""
    messages = view.messages.of(parse_key(query.get("key", "")))
    frame = messages.frame(_side(query))
    if frame is None:
        raise BadRequestError("this message is not in the capture")
    start = _number(query, "start", 0)
    count = min(_number(query, "count", MAX_BYTES), MAX_BYTES)
    return Answer(
        200, bytes(frame[start : start + count]), "application/octet-stream", {"X-Kwire-Total": str(len(frame))}
    )


# fmt: off
CALLS: Final[dict[str, Callable[[DataView, Query], Any]]] = {
    "info": info, "check": check, "complete": complete, "rows": rows, "locate": locate, "neighbour": neighbour,
    "findings": findings, "facets": facets, "stats": stats, "heatmap": heat, "exchange": exchange,
    "message": message_tree, "field": field_at, "bytes": octets, "table": table, "batch": batch, "notes": notes,
    "marked": marked, "ladder": ladder, "timeline": tracks, "tcp": tcp, "export": export, "report": report,
    "twin": other_side, "partitions": partitions,
    "differences": differences, "counterpart": counterpart, "judged": judged,
}
# fmt: on
