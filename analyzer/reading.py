"""Captures read to the end: `analyze` makes a dataset of them, `exchanges` yields one exchange after the other.

In: capture arguments as on the command line. Out: a `Dataset` (in memory, or written to a folder), or `Exchange`
objects with decoded bodies. This is the Python door; the command line goes through it too.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import heapq
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

import analyzer
from analyzer import embedded, tables, tree
from analyzer import state as s
from analyzer.columns import Columns, Rows, plain
from analyzer.conversation import Batch
from analyzer.dataset import ROW_GROUP_ROWS, Dataset, DatasetError, Writer, concatenated
from analyzer.embedded import Opened
from analyzer.engine import Engine, Settings
from analyzer.log_reading import log_points, read_log
from analyzer.record_batches import Limits
from analyzer.record_reading import OpenedRecords, RowGroups
from analyzer.record_tables import BATCHES, NO_RECORDS, WITHOUT, empty_table
from analyzer.schema import REQUEST, RESPONSE
from analyzer.segment_names import LogPoint, SegmentError
from analyzer.summary import Summary
from captures.files import CaptureError, CapturePoint, capture_points, stored_bytes

Progress = Callable[[str, int, int], None]
"""Called with the capture point's name, the bytes read so far, and their number where it is known (else 0)."""


def _arguments(captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(captures, str | os.PathLike):
        return [os.fspath(captures)]
    return [os.fspath(capture) for capture in captures]


def reading_settings(
    threads: int | None, window_bytes: int | None, ports: Sequence[int], keep: bool, frame_limit: int | None
) -> Settings:
    """Arguments as settings; None is the default."""
    default = Settings()
    return Settings(
        threads=threads or min(default.threads, os.cpu_count() or 1),
        window_bytes=window_bytes or default.window_bytes,
        ports=tuple(ports),
        keep_messages=keep,
        frame_limit=frame_limit or default.frame_limit,
    )


def _size(point: CapturePoint) -> int:
    """Bytes of a capture point's files, 0 where that cannot be known."""
    try:
        return stored_bytes(point)
    except (OSError, CaptureError):
        return 0


def analyze(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    filter: Any = None,
    connection: str | None = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    threads: int | None = None,
    window_bytes: int | None = None,
    frame_limit: int | None = None,
    records: str = BATCHES,
    decompressed_limit: int | None = None,
    decompressed_ratio: int | None = None,
    keep_bytes: bool = False,
    append: bool = False,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Dataset:
    """Decode captures, or read log segments. Without `out` the tables come back in memory; with it they are written
    there as a dataset, and the `Dataset` that comes back has no tables (`open_dataset(out)` has them).

    filter: an expression (`analyzer/FILTER.md`), and connection: the name of one, limit the exchanges, and the rows of
    other tables below them, that are kept; connections and coverage stay whole. ports: server ports that are Kafka
    whatever their content; threads: kernels at work at once; window_bytes: capture bytes read at a time; frame_limit:
    bytes of unfinished frames kept. records: `none`, `batches` (their headers, checksums checked), `meta` (a row a
    record, without content) or `full` (with it); decompressed_limit, decompressed_ratio: what one batch may become, in
    bytes and times its size. keep_bytes: also the table `messages`; append: add to the dataset at `out`. Raises
    CaptureError, SegmentError and DatasetError.
    """
    logs, rest = log_points(_arguments(captures))
    points: list[CapturePoint | LogPoint] = [*(capture_points(rest, rotated) if rest else ()), *logs]
    limits = Limits(decompressed_limit or Limits.bytes, decompressed_ratio or Limits.ratio)
    choice = Choice.of(filter, connection, keep_bytes, records, limits)
    settings = reading_settings(threads, window_bytes, ports, choice.keep, frame_limit)
    without = {*tables.RUN_TABLES, *(() if keep_bytes else ("messages",)), *WITHOUT[records]}
    kept: dict[str, list[pa.Table]] = {name: [] for name in tables.TABLES if name not in without}
    if out is None:

        def keep(name: str, table: pa.Table) -> None:
            kept[name].append(table)

        result = joined([read_point(point, settings, choice, keep, progress, stdin) for point in points])
        result.tables = {name: concatenated(name, parts) for name, parts in kept.items()}
        return result
    with Writer(out, append) as writer:
        check_names(points, writer)
        result = joined([read_point(point, settings, choice, writer.write, progress, stdin) for point in points])
        writer.commit(manifest(result))
    return result


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a capture point is kept: `filter` (parsed) and `connection` (a name) limit the exchanges; `keep_bytes`
    asks for the table `messages`, `records` says how far batches are opened, within `limits`. Picklable, as tasks of
    Spark get it."""

    filter: Any = None
    connection: str | None = None
    keep_bytes: bool = False
    records: str = BATCHES
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(
        cls,
        filter: Any = None,
        connection: str | None = None,
        keep_bytes: bool = False,
        records: str = BATCHES,
        limits: Limits | None = None,
    ) -> Choice:
        """The same, the filter as text or parsed. Raises FilterError, and ValueError for `records` unknown."""
        if records not in WITHOUT:
            raise ValueError(f"records={records!r}: there are {', '.join(WITHOUT)}")
        return cls(_parsed(filter), connection, keep_bytes, records, limits or Limits())

    @property
    def everything(self) -> bool:
        """No exchange is left out."""
        return self.filter is None and self.connection is None

    @property
    def keep(self) -> bool:
        """Raw messages are needed on the way."""
        return self.keep_bytes or (self.filter is not None and self.filter.needs_bodies)


@dataclass(frozen=True, slots=True)
class PointRead:
    """What is known of a capture point when all of it has been read, besides its rows: its entry in `_kwire.json`, what
    the user should know, its part of the summary, coverage included, and the ends (`ip:port-ip:port`) of connections
    that began before it and of those that it left open."""

    capture: dict[str, Any]
    notes: list[str]
    summary: Summary
    from_before: frozenset[str] = frozenset()
    left_open: frozenset[str] = frozenset()


def read_point(
    point: CapturePoint | LogPoint,
    settings: Settings,
    choice: Choice,
    put: Callable[[str, pa.Table], None],
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> PointRead:
    """Decode one capture point, or read a partition's log segments. `put` gets the rows, table by table, each table at
    least once (it may be empty)."""
    if isinstance(point, LogPoint):
        return _read_log(point, settings, choice, put, progress)
    parts = point_tables(point, settings, choice, progress, stdin)
    while True:
        try:
            name, table = next(parts)
        except StopIteration as end:
            read: PointRead = end.value
            return read
        put(name, table)


def _read_log(
    point: LogPoint,
    settings: Settings,
    choice: Choice,
    put: Callable[[str, pa.Table], None],
    progress: Progress | None,
) -> PointRead:
    if not choice.everything:
        raise SegmentError(f"{point.name}: a log segment has no exchanges to filter", "leave out --filter")

    def report(read: int, size: int) -> None:
        if progress is not None:
            progress(point.name, read, size)

    groups = RowGroups()

    def gather(name: str, table: pa.Table) -> None:
        for group in groups.put(name, table):
            put(*group)

    read = read_log(point, choice.records, settings.threads, choice.limits, gather, report)
    for group in groups.rest():
        put(*group)
    for name in ("batches", "records"):
        if name not in WITHOUT[choice.records]:
            put(name, empty_table(name))
    summary = Summary()
    summary.finish_log(read)
    return PointRead(read.capture, read.notes, summary)


def point_tables(
    point: CapturePoint,
    settings: Settings,
    choice: Choice,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Generator[tuple[str, pa.Table], None, PointRead]:
    """The same of a capture point as an iterator of (name of the table, rows), which may be left early."""
    engine = Engine(point, dataclasses.replace(settings, keep_records=choice.records != NO_RECORDS), stdin)
    columns = Columns(engine, point.name, _ahead(point, settings))
    opened = OpenedRecords(columns, choice.records, settings.threads, choice.limits)
    made = PointTables(columns, choice, opened)
    size = _size(point)

    def report(read: int) -> None:
        if progress is not None:
            progress(point.name, read, size)

    for batches in engine.batches(report):
        yield from made.take(batches)
        if made.rows >= ROW_GROUP_ROWS:
            yield from made.flush()
    yield from made.flush()
    yield from opened.finish(choice.everything)
    return made.finish(point, engine)


class PointTables:
    """The batches of one capture point as tables. `waiting`: the rows of windows that are in no table yet, `rows` of
    them. Record batches are opened where `opened` is given."""

    def __init__(self, columns: Columns, choice: Choice, opened: OpenedRecords | None = None) -> None:
        self.columns = columns
        self.summary = Summary()
        self.waiting: list[Rows] = []
        self._choice = choice
        self._bodies = _Bodies(columns)
        self._opened = opened
        self.rows = 0

    def take(self, batches: list[Batch]) -> Iterator[tuple[str, pa.Table]]:
        """Take one window's batches, one a shard; its raw messages come at once, where they are asked for."""
        choice, columns = self._choice, self.columns
        every = taken = columns.take(batches)
        if choice.keep:
            self._bodies.take(batches)
        if not choice.everything:
            chosen = _chosen(columns, taken, self._bodies, choice.filter, choice.connection)
            if choice.keep:
                self._bodies.forget(taken, chosen)
            taken = chosen
        self.summary.add(taken, columns)
        if self._opened is not None:
            yield from self._opened.take(batches, every, taken)
        if choice.keep_bytes:
            yield "messages", self._bodies.table(taken, choice.everything)
        if taken.x.shape[1]:
            self.waiting.append(taken)
            self.rows += taken.x.shape[1]

    def flush(self) -> Iterator[tuple[str, pa.Table]]:
        """Tables of all rows that wait."""
        yield "exchanges", self.columns.exchanges(self.waiting)
        yield "partitions", self.columns.partitions(self.waiting)
        self.waiting, self.rows = [], 0
        small = self.columns.small_tables()
        self.summary.add_connections(small["connections"])
        yield from small.items()
        self.columns.release()

    def finish(self, point: CapturePoint, engine: Engine) -> PointRead:
        """All has been taken: what is known besides the rows."""
        columns = self.columns
        if self._opened is not None:
            self.summary.records.join(self._opened.counts)
        self.summary.finish(point, engine, columns)
        notes = list(engine.reader.notes)
        ends = frozenset(columns.from_before), frozenset(columns.left_open)
        return PointRead(_capture(point, engine), notes, self.summary, *ends)


def _ahead(point: CapturePoint, settings: Settings) -> Callable[[], dict[str, str]] | None:
    """What names topic ids before the messages that do are reached; None for stdin, which is read once."""
    if "-" in point.paths:
        return None

    def read() -> dict[str, str]:
        engine = Engine(point, dataclasses.replace(settings, keep_messages=False, keep_records=False))
        columns = Columns(engine, point.name)
        for batches in engine.batches():
            columns.take(batches)
        return columns.topic_names

    return read


def joined(reads: Sequence[PointRead]) -> Dataset:
    """What is known of all capture points together, without tables."""
    summary = Summary()
    for read in reads:
        summary.join(read.summary)
    return Dataset(
        {},
        captures=[read.capture for read in reads],
        coverage=summary.coverage.as_dict(),
        unrecognised=summary.unrecognised(),
        summary=summary.as_dict(),
        notes=[note for read in reads for note in read.notes],
        hints=list(_continued(reads)),
    )


def _continued(reads: Sequence[PointRead]) -> Iterator[str]:
    """A hint for each capture point that goes on with the connections of an earlier one: they may be one capture in
    several files. Two points that were captured at the same time (client's and broker's side) are not that."""
    for later in reads:
        for earlier in reads:
            ended, begun = earlier.capture["last_time"], later.capture["first_time"]
            shared = len(earlier.left_open & later.from_before)
            if shared and earlier is not later and ended <= begun:
                yield (
                    f"{later.capture['name']} goes on with {shared} connection{'s' * (shared > 1)} of "
                    f"{earlier.capture['name']}: --rotated reads them as one capture"
                )


def manifest(result: Dataset) -> dict[str, Any]:
    """`_kwire.json` but for the list of files."""
    return {
        "format_version": tables.FORMAT_VERSION,
        "kwire_version": analyzer.__version__,
        "captures": result.captures,
        "coverage": result.coverage,
        "unrecognised": result.unrecognised,
        "notes": result.notes,
    }


def check_names(points: Sequence[CapturePoint | LogPoint], writer: Writer) -> None:
    """Raise DatasetError where a dataset that is added to holds a capture point of the same name."""
    taken = set(writer.captures)
    for point in points:
        if point.name in taken:
            raise DatasetError(
                f"{writer.path}: has a capture point {point.name!r} already",
                "rename the capture, or leave out --append",
            )


def _capture(point: CapturePoint, engine: Engine) -> dict[str, Any]:
    """A capture point's entry in `_kwire.json`."""
    files = engine.reader.files
    first = min((info.first_ns for info in files if info.first_ns is not None), default=None)
    last = max((info.last_ns for info in files if info.last_ns is not None), default=None)
    return {
        "name": point.name,
        "first_time": rfc3339(first // 1000) if first is not None else None,
        "last_time": rfc3339(last // 1000) if last is not None else None,
        "link_types": sorted({link for info in files for link in info.link_types}),
        "packets": engine.reader.counts,
        "files": [
            {
                "name": info.name,
                "size": info.size,
                "mtime": rfc3339(info.mtime_ns // 1000) if info.mtime_ns else None,
                "crc32c": f"{info.crc32c:08x}",
                "packets": info.packets,
                "first_time": rfc3339(info.first_ns // 1000) if info.first_ns is not None else None,
                "last_time": rfc3339(info.last_ns // 1000) if info.last_ns is not None else None,
                "link_types": list(info.link_types),
            }
            for info in files
        ],
    }


def rfc3339(micros: int) -> str:
    """RFC 3339 in UTC with six decimals."""
    return _moment(micros).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(micros: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=micros)


# --- raw messages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """The bytes of one frame, its length field included; `complete`: none is missing."""

    data: bytes = field(repr=False)
    complete: bool


@dataclass(slots=True)
class _Kept:
    """A message's bytes with what the table `messages` says of it."""

    message: Message
    row: list[int]


class _Bodies:
    """The raw messages of a capture point whose exchanges have not been handed on yet."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._requests: dict[tuple[int, int], _Kept] = {}
        self._responses: dict[tuple[int, int], _Kept] = {}

    def take(self, batches: list[Batch]) -> None:
        """Add one window's messages."""
        for batch in batches:
            heap = batch.message_bytes
            numbers = self._columns.message_connections(batch)
            for number, row in zip(numbers.tolist(), batch.messages.tolist(), strict=True):
                data = heap[row[s.MSG_AT] : row[s.MSG_AT] + row[s.MSG_LENGTH]].tobytes()
                into = self._requests if row[s.MSG_DIRECTION] == 0 else self._responses
                into[number, row[s.MSG_ORDINAL]] = _Kept(Message(data, bool(row[s.MSG_COMPLETE])), row)

    def pop(self, number: int, exchange: int, reply: int) -> tuple[Message | None, Message | None]:
        """Request and response of an exchange; they are not kept any longer."""
        asked = self._requests.pop((number, exchange), None)
        answered = self._responses.pop((number, reply), None)
        return asked.message if asked else None, answered.message if answered else None

    def peek(self, number: int, exchange: int, reply: int) -> tuple[Message | None, Message | None]:
        """The same, and they are kept."""
        asked = self._requests.get((number, exchange))
        answered = self._responses.get((number, reply))
        return asked.message if asked else None, answered.message if answered else None

    def forget(self, every: Rows, kept: Rows) -> None:
        """Let go of the messages of exchanges that were not chosen."""
        stay = set(zip(kept.connection.tolist(), kept.x[s.X_EXCHANGE].tolist(), strict=True))
        replies = set(zip(kept.connection.tolist(), kept.x[s.X_REPLY].tolist(), strict=True))
        for number, exchange, reply in zip(
            every.connection.tolist(), every.x[s.X_EXCHANGE].tolist(), every.x[s.X_REPLY].tolist(), strict=True
        ):
            if (number, exchange) not in stay:
                self._requests.pop((number, exchange), None)
            if (number, reply) not in replies:
                self._responses.pop((number, reply), None)

    def table(self, rows: Rows, everything: bool) -> pa.Table:
        """The table `messages`, secrets overwritten: of these exchanges, or (`everything`) all at hand."""
        found: list[tuple[int, _Kept]] = []
        if everything:
            for kept in (self._requests, self._responses):
                found += [(key[0], one) for key, one in kept.items()]
                kept.clear()
        else:
            for number, exchange, reply in zip(
                rows.connection.tolist(), rows.x[s.X_EXCHANGE].tolist(), rows.x[s.X_REPLY].tolist(), strict=True
            ):
                for kept, ordinal in ((self._requests, exchange), (self._responses, reply)):
                    one = kept.pop((number, ordinal), None)
                    if one is not None:
                        found.append((number, one))
        found.sort(key=lambda pair: (pair[1].row[s.MSG_TRIGGER], self._columns.connection_born(pair[0])))
        return pa.Table.from_pylist([self._row(*pair) for pair in found], schema=tables.schema("messages"))

    def _row(self, number: int, one: _Kept) -> dict[str, Any]:
        row = one.row
        request = row[s.MSG_DIRECTION] == 0
        return {
            "capture": self._columns.capture,
            "connection": self._columns.connection_name(number),
            "exchange": row[s.MSG_ORDINAL] if request else None,
            "reply": None if request else row[s.MSG_ORDINAL],
            "direction": "request" if request else "response",
            "first_time": row[s.MSG_FIRST_NS] // 1000,
            "last_time": row[s.MSG_LAST_NS] // 1000 if row[s.MSG_LAST_NS] != s.NULL else None,
            "complete": one.message.complete,
            "bytes": masked(one.message.data, row[s.MSG_API_KEY], row[s.MSG_API_VERSION], request),
        }


def _parsed(filter: Any) -> Any:
    """A filter expression, parsed; None stays None."""
    if filter is None or not isinstance(filter, str):
        return filter
    from analyzer import filtering

    return filtering.parse(filter)


def _chosen(columns: Columns, rows: Rows, bodies: _Bodies, chosen: Any, connection: str | None) -> Rows:
    """The rows of a window that a filter and the name of a connection let through, cheap tests first."""
    if connection is not None:
        names = np.array([columns.connection_name(n) == connection for n in np.unique(rows.connection).tolist()], bool)
        rows = rows.where(np.isin(rows.connection, np.unique(rows.connection)[names]))
    if chosen is None or not rows.x.shape[1]:
        return rows
    yes, no = chosen.rows_verdict(rows.x, rows.connection, columns.names())
    rows, yes = rows.where(~no), yes[~no]
    if yes.all():
        return rows
    keep = yes.copy()
    table = columns.exchanges([rows])
    for i in np.flatnonzero(~yes).tolist():
        row = plain(table.slice(i, 1), "exchanges").to_pylist()[0]
        columns.resolve_topics(row)
        messages = bodies.peek(int(rows.connection[i]), int(rows.x[s.X_EXCHANGE, i]), int(rows.x[s.X_REPLY, i]))
        exchange = Exchange(row, *messages)
        bodied = (exchange.request, exchange.response) if chosen.needs_bodies else (None, None)
        keep[i] = chosen.matches(row, *bodied)
    return rows.where(keep)


def masked(data: bytes, api_key: int, version: int, request: bool) -> bytes:
    """A frame with its secrets overwritten with `*`."""
    if api_key == s.NULL:
        return data
    direction = REQUEST if request else RESPONSE
    spans = tree.secret_spans(data[4:], api_key, version, direction, frame=True)
    if (api_key, direction) in embedded.RECORD_FIELDS:
        from analyzer import record_tree

        spans += record_tree.message_secrets(data[4:], api_key, version, direction)
    if not spans:
        return data
    changed = bytearray(data)
    for start, stop in spans:
        changed[4 + start : 4 + stop] = b"*" * (stop - start)
    return bytes(changed)


# --- one exchange at a time -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Exchange:
    """One exchange: `row` has the columns of the table `exchanges`, also reachable as attributes (`exchange.api`);
    `request` and `response` are the decoded bodies in Kafka's JSON names, None where not decoded or not seen.
    `capture_start` is the time of the capture's first packet."""

    row: dict[str, Any]
    request_message: Message | None = field(default=None, repr=False)
    response_message: Message | None = field(default=None, repr=False)
    capture_start: datetime.datetime | None = None
    _topic_name: Callable[[str], str] = field(default=str, repr=False)
    _bodies: dict[str, Any] = field(default_factory=dict, repr=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "row")[name]
        except (KeyError, AttributeError):
            raise AttributeError(f"an exchange has no {name!r}") from None

    @property
    def request(self) -> dict[str, Any] | None:
        """The request's body."""
        return self._body("request")

    @property
    def response(self) -> dict[str, Any] | None:
        """The response's body."""
        return self._body("response")

    def _body(self, side: str) -> dict[str, Any] | None:
        if side not in self._bodies:
            decoded = self.decoded(side) if self.row[f"{side}_state"] == "decoded" else None
            self._bodies[side] = decoded.body if decoded is not None else None
        body: dict[str, Any] | None = self._bodies[side]
        return body

    def decoded(self, side: str, *, nodes: bool = False) -> tree.Decoded | None:
        """`request` or `response` decoded as far as it goes, with its tree of nodes if asked for, embedded formats
        nested in it; None: not at hand."""
        decoded = self._decoded(side, nodes)
        if decoded is None or not nodes:
            return decoded
        return dataclasses.replace(decoded, nodes=self._opened(decoded, side, nodes=True)[0])

    def embedded(self) -> list[dict[str, Any]]:
        """What `bytes` fields of both messages hold, and records that have a format of their own (`embedded.listed`);
        `path` as in what `json` returns."""
        found: list[dict[str, Any]] = []
        for side, direction in (("request", REQUEST), ("response", RESPONSE)):
            key = self.row["api_key"], direction
            records = key in embedded.RECORD_FIELDS and _has_records(self._body(side))
            if not records and not embedded.has_embedded(*key):
                continue
            decoded = self._decoded(side, True) if self.row[f"{side}_state"] == "decoded" else None
            if decoded is not None:
                found += embedded.listed(self._opened(decoded, side, nodes=False)[1], f"{side}.")
        return found

    def _opened(
        self, decoded: tree.Decoded, side: str, *, nodes: bool
    ) -> tuple[tuple[tree.Node, ...], Sequence[tuple[str, Opened]]]:
        """A message's tree with embedded formats and records as children, and these by path; `nodes=False`: nobody
        wants the trees of records."""
        key = decoded.api_key, decoded.direction
        if key not in embedded.RECORD_FIELDS:
            return embedded.in_message(decoded, self._asked(side))
        from analyzer import record_tree

        return embedded.nested(decoded.nodes, record_tree.openers(*key, self._topic_name, nodes=nodes), {})

    def _asked(self, side: str) -> dict[str, Any] | None:
        return self.request if side == "response" else None

    def _decoded(self, side: str, nodes: bool) -> tree.Decoded | None:
        message = self.request_message if side == "request" else self.response_message
        if message is None or len(message.data) < 4:
            return None
        frame = message.data[4:]
        if side == "request":
            return tree.decode_request(frame, tree=nodes)
        if self.row["api_key"] is None or self.row["api_version"] is None:
            return None
        inner = None
        if self.row["api_key"] == tree.ENVELOPE and self.request_message is not None:
            inner = tree.envelope_inner(self.request_message.data[4:])
        return tree.decode_response(frame, self.row["api_key"], self.row["api_version"], tree=nodes, inner=inner)

    def json(self) -> dict[str, Any]:
        """What `kwire show --json` prints: the row, the two bodies, and `embedded` where they have any.

        The bodies stay as Kafka's own JSON converters print them, with base64 where a format of its own is inside; so
        what is inside stands beside them."""
        shown = {name: _json_value(value) for name, value in self.row.items()}
        shown |= {"request": self.request, "response": self.response}
        inside = self.embedded()
        return {**shown, "embedded": inside} if inside else shown


def _has_records(body: Any) -> bool:
    """Are there bytes in any records field of a body?"""
    if isinstance(body, dict):
        return any(
            bool(value) if key.endswith("ecordsSizeInBytes") else _has_records(value) for key, value in body.items()
        )
    return isinstance(body, list) and any(_has_records(item) for item in body)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def exchanges(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    filter: Any = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    threads: int | None = None,
    window_bytes: int | None = None,
    frame_limit: int | None = None,
    bodies: bool = True,
    ordered: bool | None = None,
    notes: list[str] | None = None,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Iterator[Exchange]:
    """The exchanges of captures, one by one: in order of their requests from files, as they complete from stdin
    (`ordered` chooses). `bodies=False` keeps no message bytes: `request` and `response` are then None.

    `filter`: an expression (`analyzer/FILTER.md`). `notes` is filled with what the user should know.
    """
    chosen = _parsed(filter)
    keep = bodies or (chosen is not None and chosen.needs_bodies)
    settings = reading_settings(threads, window_bytes, ports, keep, frame_limit)
    for point in capture_points(_arguments(captures), rotated):
        engine = Engine(point, settings, stdin)
        columns = Columns(engine, point.name, _ahead(point, settings))
        size = _size(point)

        def report(read: int, name: str = point.name, size: int = size) -> None:
            if progress is not None:
                progress(name, read, size)

        in_order = "-" not in point.paths if ordered is None else ordered
        yield from _exchanges(engine, columns, chosen, in_order, report)
        if notes is not None:
            notes += engine.reader.notes
            notes += unrecognised_lines(columns)


def _exchanges(
    engine: Engine, columns: Columns, chosen: Any, ordered: bool, report: Callable[[int], None]
) -> Iterator[Exchange]:
    bodies = _Bodies(columns)
    waiting: list[tuple[int, int, int, Exchange]] = []
    count = 0
    start: datetime.datetime | None = None
    for batches in engine.batches(report):
        if start is None:
            first_ns = min((info.first_ns for info in engine.reader.files if info.first_ns is not None), default=None)
            start = _moment(first_ns // 1000) if first_ns is not None else None
        rows = columns.take(batches)
        bodies.take(batches)
        if chosen is not None:
            kept = _chosen(columns, rows, bodies, chosen, None)
            bodies.forget(rows, kept)
            rows = kept
        x = rows.x
        asked, answered = x[s.X_EXCHANGE].tolist(), x[s.X_REPLY].tolist()
        first = np.where(x[s.X_ORDINAL] != s.NULL, x[s.X_ORDINAL], x[s.X_TRIGGER]).tolist()
        table = plain(columns.exchanges([rows]), "exchanges")
        numbers = rows.connection.tolist()
        at = 0
        for part in table.to_batches(max_chunksize=4096):
            for row in part.to_pylist():
                columns.resolve_topics(row)
                exchange = Exchange(row, *bodies.pop(numbers[at], asked[at], answered[at]), start, columns.topic_name)
                if ordered:
                    heapq.heappush(waiting, (first[at], columns.connection_born(numbers[at]), count, exchange))
                    count += 1
                else:
                    yield exchange
                at += 1
        columns.release()
        # What may still end and began earlier goes before what has ended.
        limit = min([batch.oldest for batch in batches if batch.oldest is not None] + [engine.done_packets])
        while waiting and waiting[0][0] < limit:
            yield heapq.heappop(waiting)[3]
    while waiting:
        yield heapq.heappop(waiting)[3]


def unrecognised_lines(columns: Columns) -> list[str]:
    """What was seen that is not Kafka, and what to try."""
    if not columns.unrecognised_connections:
        return []
    looks: dict[str, int] = {}
    ports: dict[str, int] = {}
    for one in columns.unrecognised:
        looks[one.looks_like] = looks.get(one.looks_like, 0) + 1
        port = one.connection.rsplit("#", 1)[0].rsplit(":", 1)[-1]
        ports[port] = ports.get(port, 0) + one.payload_bytes
    seen = ", ".join(f"{name} ({count})" for name, count in sorted(looks.items(), key=lambda item: -item[1]))
    port = max(ports, key=lambda port: ports[port])
    return [
        f"{columns.capture}: {columns.unrecognised_connections} connections are not recognised as Kafka "
        f"({columns.unrecognised_bytes:,} bytes; look like: {seen}); --port {port} insists"
    ]

