"""Captures read to the end: `analyze` makes a dataset of them, `exchanges` yields one exchange after the other.

In: capture arguments as on the command line. Out: a `Dataset` (in memory, or written to a folder), or `Exchange`
objects with decoded bodies. This is the Python door; the command line goes through it too.
"""

from __future__ import annotations

import base64
import datetime
import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

import analyzer
from analyzer import state as s
from analyzer import tables, tree
from analyzer.columns import Columns, Rows, plain
from analyzer.conversation import Batch
from analyzer.dataset import ROW_GROUP_ROWS, Dataset, DatasetError, Writer, concatenated
from analyzer.engine import Engine, Settings
from analyzer.schema import REQUEST, RESPONSE
from analyzer.summary import Summary
from captures.files import CapturePoint, capture_points

ENVELOPE = 58

Progress = Callable[[str, int, int], None]
"""Called with the capture point's name, the bytes read so far, and their number where it is known (else 0)."""


def _arguments(captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(captures, str | os.PathLike):
        return [os.fspath(captures)]
    return [os.fspath(capture) for capture in captures]


def _settings(
    threads: int | None, window_bytes: int | None, ports: Sequence[int], keep: bool, frame_limit: int | None
) -> Settings:
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
        return sum(os.path.getsize(path) for path in point.paths)
    except OSError:
        return 0


def analyze(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    rotated: bool = False,
    ports: Sequence[int] = (),
    threads: int | None = None,
    window_bytes: int | None = None,
    frame_limit: int | None = None,
    keep_bytes: bool = False,
    append: bool = False,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Dataset:
    """Decode captures. Without `out` the tables come back in memory; with it they are written there as a dataset, and
    the `Dataset` that comes back has no tables (`open_dataset(out)` has them).

    ports: server ports that are Kafka whatever their content; threads: kernels at work at once; window_bytes: capture
    bytes read at a time; frame_limit: bytes of unfinished frames kept; keep_bytes: also the table `messages`;
    append: add to the dataset at `out`. Raises CaptureError and DatasetError.
    """
    points = capture_points(_arguments(captures), rotated)
    settings = _settings(threads, window_bytes, ports, keep_bytes, frame_limit)
    writer = Writer(out, append) if out is not None else None
    kept: dict[str, list[pa.Table]] = {name: [] for name in tables.TABLES if name != "messages" or keep_bytes}
    result = Dataset({})
    summary = Summary()

    def put(name: str, table: pa.Table) -> None:
        if len(table) or (writer is not None and name not in written):
            written.add(name)
            if writer is not None:
                writer.write(name, table)
            else:
                kept[name].append(table)

    written: set[str] = set()
    try:
        taken = set(writer.captures) if writer is not None else set()
        for point in points:
            if point.name in taken:
                raise DatasetError(
                    f"{out}: has a capture point {point.name!r} already", "rename the capture, or leave out --append"
                )
            engine = Engine(point, settings, stdin)
            columns = Columns(engine, point.name)
            size = _size(point)
            waiting: list[Rows] = []
            rows = 0

            def report(read: int, name: str = point.name, size: int = size) -> None:
                if progress is not None:
                    progress(name, read, size)

            for batches in engine.batches(report):
                taken_rows = columns.take(batches)
                summary.add(taken_rows, columns)
                if keep_bytes:
                    put("messages", _messages(columns, batches))
                if taken_rows.x.shape[1]:
                    waiting.append(taken_rows)
                    rows += taken_rows.x.shape[1]
                if rows >= ROW_GROUP_ROWS:
                    put("exchanges", columns.exchanges(waiting))
                    waiting, rows = [], 0
                    for name, table in _small(columns, summary).items():
                        put(name, table)
            put("exchanges", columns.exchanges(waiting))
            for name, table in _small(columns, summary).items():
                put(name, table)
            summary.finish(point, engine, columns)
            result.notes += [f"{point.name}: {note}" for note in engine.reader.notes]
            result.captures.append(_capture(point, engine))
        result.coverage = summary.coverage.as_dict()
        result.unrecognised = summary.unrecognised()
        result.summary = summary.as_dict()
        if writer is not None:
            writer.commit(
                {
                    "format_version": tables.FORMAT_VERSION,
                    "kwire_version": analyzer.__version__,
                    "captures": result.captures,
                    "coverage": result.coverage,
                    "unrecognised": result.unrecognised,
                    "notes": result.notes,
                }
            )
        else:
            result.tables = {name: concatenated(name, parts) for name, parts in kept.items()}
    finally:
        if writer is not None:
            writer.__exit__()
    return result


def _small(columns: Columns, summary: Summary) -> dict[str, pa.Table]:
    summary.add_connections(columns.connections)
    return columns.small_tables()


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
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=micros)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond:06d}Z"


# --- raw messages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """The bytes of one frame, its length field included; `complete`: none is missing."""

    data: bytes
    complete: bool


def _messages(columns: Columns, batches: list[Batch]) -> pa.Table:
    """The table `messages` of one window, secrets overwritten."""
    rows: list[tuple[int, int, dict[str, Any]]] = []
    for batch in batches:
        heap = batch.message_bytes
        numbers = columns.message_connections(batch)
        for number, row in zip(numbers.tolist(), batch.messages.tolist(), strict=True):
            name = columns.connection_name(number)
            request = row[s.MSG_DIRECTION] == 0
            data = heap[row[s.MSG_AT] : row[s.MSG_AT] + row[s.MSG_LENGTH]].tobytes()
            rows.append(
                (
                    row[s.MSG_TRIGGER],
                    columns.connection_born(number),
                    {
                        "capture": columns.capture,
                        "connection": name,
                        "exchange": row[s.MSG_ORDINAL] if request else None,
                        "reply": None if request else row[s.MSG_ORDINAL],
                        "direction": "request" if request else "response",
                        "first_time": row[s.MSG_FIRST_NS] // 1000,
                        "last_time": row[s.MSG_LAST_NS] // 1000 if row[s.MSG_LAST_NS] != s.NULL else None,
                        "complete": bool(row[s.MSG_COMPLETE]),
                        "bytes": masked(data, row[s.MSG_API_KEY], row[s.MSG_API_VERSION], request),
                    },
                )
            )
    rows.sort(key=lambda row: row[:2])
    return pa.Table.from_pylist([row for _, _, row in rows], schema=tables.schema("messages"))


def masked(data: bytes, api_key: int, version: int, request: bool) -> bytes:
    """A frame with its secrets overwritten with `*`."""
    if api_key == s.NULL:
        return data
    spans = tree.secret_spans(data[4:], api_key, version, REQUEST if request else RESPONSE, frame=True)
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
    `request` and `response` are the decoded bodies in Kafka's JSON names, None where not decoded or not seen."""

    row: dict[str, Any]
    request_message: Message | None = None
    response_message: Message | None = None
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
        """`request` or `response` decoded as far as it goes, with its tree of nodes if asked for; None: not at hand."""
        message = self.request_message if side == "request" else self.response_message
        if message is None or len(message.data) < 4:
            return None
        frame = message.data[4:]
        if side == "request":
            return tree.decode_request(frame, tree=nodes)
        if self.row["api_key"] is None or self.row["api_version"] is None:
            return None
        return tree.decode_response(
            frame, self.row["api_key"], self.row["api_version"], tree=nodes, inner=self._inner()
        )

    def _inner(self) -> tuple[int, int] | None:
        """API and version of the request inside an Envelope."""
        if self.row["api_key"] != ENVELOPE or self.request_message is None:
            return None
        asked = tree.decode_request(self.request_message.data[4:], exact=True).body
        inside = (asked or {}).get("requestData")
        if not isinstance(inside, bytes) or len(inside) < 4:
            return None
        return int.from_bytes(inside[:2], "big", signed=True), int.from_bytes(inside[2:4], "big", signed=True)

    def json(self) -> dict[str, Any]:
        """What `kwire show --json` prints: the row, then the two bodies."""
        shown = {name: _json_value(value) for name, value in self.row.items()}
        return {**shown, "request": self.request, "response": self.response}


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
    chosen = None
    if filter is not None:
        from analyzer import filtering

        chosen = filtering.parse(filter) if isinstance(filter, str) else filter
    keep = bodies or (chosen is not None and chosen.needs_bodies)
    settings = _settings(threads, window_bytes, ports, keep, frame_limit)
    for point in capture_points(_arguments(captures), rotated):
        engine = Engine(point, settings, stdin)
        columns = Columns(engine, point.name)
        size = _size(point)

        def report(read: int, name: str = point.name, size: int = size) -> None:
            if progress is not None:
                progress(name, read, size)

        in_order = "-" not in point.paths if ordered is None else ordered
        yield from _exchanges(engine, columns, chosen, in_order, report)
        if notes is not None:
            notes += [f"{point.name}: {note}" for note in engine.reader.notes]
            notes += unrecognised_lines(columns)


def _exchanges(
    engine: Engine, columns: Columns, chosen: Any, ordered: bool, report: Callable[[int], None]
) -> Iterator[Exchange]:
    requests: dict[tuple[int, int], Message] = {}
    waiting: list[tuple[int, int, int, Exchange]] = []
    count = 0
    for batches in engine.batches(report):
        rows = columns.take(batches)
        responses: dict[tuple[int, int], Message] = {}
        for batch in batches:
            heap = batch.message_bytes
            numbers = columns.message_connections(batch)
            for number, row in zip(numbers.tolist(), batch.messages.tolist(), strict=True):
                data = heap[row[s.MSG_AT] : row[s.MSG_AT] + row[s.MSG_LENGTH]].tobytes()
                into = requests if row[s.MSG_DIRECTION] == 0 else responses
                into[number, row[s.MSG_ORDINAL]] = Message(data, bool(row[s.MSG_COMPLETE]))
        mask = chosen.rows_mask(rows.x) if chosen is not None else None
        for exchange, ordinal, born in _window(columns, rows, requests, responses, mask):
            columns.resolve_topics(exchange.row)
            if chosen is not None and not chosen.matches(
                exchange.row,
                exchange.request if chosen.needs_bodies else None,
                exchange.response if chosen.needs_bodies else None,
            ):
                continue
            if ordered:
                heapq.heappush(waiting, (ordinal, born, count, exchange))
                count += 1
            else:
                yield exchange
        limits = [batch.oldest for batch in batches if batch.oldest is not None]
        limit = min([*limits, engine.done_packets])
        while waiting and waiting[0][0] < limit:
            yield heapq.heappop(waiting)[3]
    while waiting:
        yield heapq.heappop(waiting)[3]


def _window(
    columns: Columns,
    rows: Rows,
    requests: dict[tuple[int, int], Message],
    responses: dict[tuple[int, int], Message],
    mask: np.ndarray | None,
) -> Iterator[tuple[Exchange, int, int]]:
    """One window's exchanges with their bytes, the ordinal of their first packet and the age of their connection."""
    x = rows.x
    connections = rows.connection.tolist()
    asked, answered = x[s.X_EXCHANGE].tolist(), x[s.X_REPLY].tolist()
    if mask is not None:
        for i in np.flatnonzero(~mask).tolist():
            requests.pop((connections[i], asked[i]), None)
        keep = np.flatnonzero(mask)
        rows = Rows(x[:, keep], rows.connection[keep])
        x = rows.x
        connections = rows.connection.tolist()
        asked, answered = x[s.X_EXCHANGE].tolist(), x[s.X_REPLY].tolist()
    first = np.where(x[s.X_ORDINAL] != s.NULL, x[s.X_ORDINAL], x[s.X_TRIGGER]).tolist()
    table = plain(columns.exchanges([rows]), "exchanges")
    for i, row in enumerate(table.to_pylist()):
        number = connections[i]
        exchange = Exchange(row, requests.pop((number, asked[i]), None), responses.pop((number, answered[i]), None))
        yield exchange, first[i], columns.connection_born(number)


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

