"""Rows of integers -> Arrow tables.

In: `Exchanges` of some windows of a capture point, in order. Out: the tables `exchanges` and `partitions`, with the
columns of `tables.py`. Strings travel as numbers until here; a column of strings is built as indices into the few
distinct ones, so no row makes a Python object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from analyzer import arrow, tables
from analyzer.arrow import distinct
from analyzer.bulk import roles
from analyzer.bulk import state as s
from analyzer.bulk.named import COLUMNS
from analyzer.protocol import errors as kafka_errors
from analyzer.protocol import names as api_names
from analyzer.protocol import schema as definitions
from analyzer.protocol.decoding import REASONS
from analyzer.protocol.program import Program, load

if TYPE_CHECKING:
    from analyzer.bulk.rows import Exchanges, Names
    from captures.files import FileInfo

STATUSES = ("answered", "no_response_expected", "unanswered", "in_flight", "orphan_response")
STATES = ("decoded", "truncated", "undecoded")
CAUSES = ("hold", "broker", "network", "throttle", "client", "unknown")
"""The parts of a latency; where two are equal, the earlier is the cause."""
OFFSET_KINDS = {
    api_names.PRODUCE: "base",
    api_names.FETCH: "fetch",
    api_names.LIST_OFFSETS: "listed",
    api_names.OFFSET_COMMIT: "committed",
    api_names.OFFSET_FETCH: "committed",
    api_names.DELETE_RECORDS: "delete",
    api_names.OFFSET_FOR_LEADER_EPOCH: "end",
    api_names.TXN_OFFSET_COMMIT: "committed",
    api_names.DESCRIBE_SHARE_GROUP_OFFSETS: "start",
    api_names.ALTER_SHARE_GROUP_OFFSETS: "start",
}
"""What `partitions.offset` is, by API."""


def lists_of_fields(program: Program) -> list[str | None]:
    """By field of messages: the column of lists that has all of its values, `errors` or `topics`, if there is one."""
    kept = {roles.TOPIC: "topics"} | dict.fromkeys((roles.ERROR, roles.PART_ERROR, roles.PART_ERROR_EARLY), "errors")
    return [kept.get(role) for role in roles.roles(program)[0].tolist()]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of rows of integers of some windows, each put together when it is asked for: together they would be tens
    of megabytes of fresh memory."""

    parts: tuple[np.ndarray, ...]

    def __getitem__(self, column: int) -> np.ndarray:
        """int64[n]."""
        return _joined([part[column] for part in self.parts])

    def __len__(self) -> int:
        return sum(part.shape[1] for part in self.parts)


Columns: TypeAlias = np.ndarray | _Columns
"""int64[columns, n]: of one window, or of several."""


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The same numbers in a row; one part is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


class _Texts(NamedTuple):
    """What numbers stand for now: `Names.forget` leaves these lists alone."""

    capture: str
    files: list[FileInfo]
    strings: list[str]
    lists: list[tuple[int, ...]]

    @classmethod
    def of(cls, names: Names) -> _Texts:
        return cls(names.capture, names.files, names.strings, names.lists)


@dataclass(frozen=True, slots=True)
class _Connections:
    """Which connections some rows are of, by what they are called now: their numbers may be given again.

    local    int32[n]: the place of each row's connection in `names` and `ends`
    ends     (client address, client port, broker address, broker port) of each
    """

    local: np.ndarray
    names: list[str]
    ends: list[tuple[str, int, str, int]]

    @classmethod
    def of(cls, names: Names, connection: np.ndarray) -> _Connections:
        used, local = arrow.compact(connection, len(names.connections))
        numbers, strings = used.tolist(), names.strings
        ends = [names.ends[i] for i in numbers]
        return cls(
            local,
            [names.connections[i] for i in numbers],
            [(strings[client], port, strings[broker], other) for client, port, broker, other in ends],
        )


def exchanges(names: Names, windows: Sequence[Exchanges]) -> pa.Table:
    """The exchanges of some windows. Strings come as dictionaries: `plain` makes them what the contract says."""
    return later_exchanges(names, windows)()


def later_exchanges(names: Names, windows: Sequence[Exchanges]) -> Callable[[], pa.Table]:
    """What makes that table, in any thread and while further windows come: what they may change is looked up now."""
    connections = _Connections.of(names, _joined([rows.connection for rows in windows]))
    columns = _Columns(tuple(rows.columns for rows in windows))
    return functools.partial(_exchanges, _Texts.of(names), columns, connections)


def _exchanges(names: _Texts, x: _Columns, connections: _Connections) -> pa.Table:
    n = len(x)
    strings, files = names.strings, [info.name for info in names.files]
    local, ends = connections.local, connections.ends
    request_us, request_end_us = arrow.micros(x[s.X_REQUEST_FIRST_NS]), arrow.micros(x[s.X_REQUEST_LAST_NS])
    response_us, response_end_us = arrow.micros(x[s.X_RESPONSE_FIRST_NS]), arrow.micros(x[s.X_RESPONSE_LAST_NS])
    latency, backwards = latency_us(x)
    plain_file = np.array([not info.compressed for info in names.files] or [False])
    columns: dict[str, pa.Array] = {
        "capture": arrow.dictionary(np.zeros(n, np.int32), [names.capture]),
        "connection": arrow.dictionary(local, connections.names),
        "client_ip": arrow.repeated(local, [end[0] for end in ends]),
        "client_port": arrow.over(np.array([end[1] for end in ends], np.int32)[local], pa.int32()),
        "broker_ip": arrow.repeated(local, [end[2] for end in ends]),
        "broker_port": arrow.over(np.array([end[3] for end in ends], np.int32)[local], pa.int32()),
        "api": _api(x[s.X_API_KEY]),
        "request_time": arrow.times(request_us),
        "request_end": arrow.times(request_end_us),
        "response_time": arrow.times(response_us),
        "response_end": arrow.times(response_end_us),
        "latency_us": arrow.integers(latency, pa.int64()),
        "total_us": arrow.integers(arrow.minus(response_end_us, request_us), pa.int64()),
        "queue_us": arrow.integers(queue_us(x, latency), pa.int64()),
        "cause": arrow.dictionary(x[s.X_CAUSE], CAUSES),
        "throttle_us": arrow.integers(_times_1000(x[s.X_THROTTLE]), pa.int64()),
        "status": arrow.dictionary(x[s.X_STATUS], STATUSES),
        "request_state": arrow.dictionary(x[s.X_REQUEST_STATE], STATES),
        "response_state": arrow.dictionary(x[s.X_RESPONSE_STATE], STATES),
        "reason": _reasons(x, backwards),
        "error": _error_names(x[s.X_ERROR]),
        "errors": _errors(x, names),
        "topics": _topics(x, names),
        "request_file": arrow.dictionary(x[s.X_REQUEST_FILE], files),
        "response_file": arrow.dictionary(x[s.X_RESPONSE_FILE], files),
        "request_offset": _offsets(x[s.X_REQUEST_RECORD_AT], x[s.X_REQUEST_FILE], plain_file),
        "response_offset": _offsets(x[s.X_RESPONSE_RECORD_AT], x[s.X_RESPONSE_FILE], plain_file),
    }
    for column in tables.EXCHANGES:
        if column.name not in columns:
            columns[column.name] = _as_it_stands(column, x, strings)
    wanted = [column.name for column in tables.EXCHANGES]
    return pa.Table.from_arrays([columns[name] for name in wanted], names=wanted)


def _as_it_stands(column: tables.Column, x: _Columns, strings: list[str]) -> pa.Array:
    """A column of `exchanges` that rows of integers have under the same name, or that is reserved."""
    if column.name not in COLUMNS:
        return pa.nulls(len(x), column.type)
    values = x[COLUMNS[column.name]]
    return arrow.integers(values, column.type) if pa.types.is_integer(column.type) else arrow.strings(values, strings)


def partitions(names: Names, windows: Sequence[Exchanges]) -> pa.Table:
    """The topic-partitions of the exchanges of some windows, in their order."""
    return later_partitions(names, windows)()


def later_partitions(names: Names, windows: Sequence[Exchanges]) -> Callable[[], pa.Table]:
    """As `later_exchanges`."""
    connections = _Connections.of(names, _joined([rows.connection for rows in windows]))
    return functools.partial(_partitions, _Texts.of(names), tuple(windows), connections)


def _partitions(names: _Texts, windows: tuple[Exchanges, ...], connections: _Connections) -> pa.Table:
    x, p = _Columns(tuple(rows.columns for rows in windows)), _Columns(tuple(rows.partitions for rows in windows))
    before = np.cumsum([0, *(len(rows) for rows in windows)])
    owner = _joined([rows.owner + at if at else rows.owner for rows, at in zip(windows, before[:-1], strict=True)])
    exchange, reply, api = (x[column][owner] for column in (s.X_EXCHANGE, s.X_REPLY, s.X_API_KEY))
    used, local = arrow.compact(connections.local[owner].astype(np.int64), len(connections.names))
    n = len(p)
    strings = names.strings
    kinds = sorted(set(OFFSET_KINDS.values()))
    kind_of = np.full(len(_api_names()) + 1, s.NULL, np.int64)
    for key, kind in OFFSET_KINDS.items():
        kind_of[key] = kinds.index(kind)
    offset, watermark = p[s.P_OFFSET], p[s.P_HIGH_WATERMARK]
    after = np.where(p[s.P_FOLLOWING] != s.NULL, p[s.P_FOLLOWING], offset)
    lag = np.where(api == api_names.FETCH, arrow.minus(watermark, after), s.NULL)
    arrays = {
        "capture": arrow.dictionary(np.zeros(n, np.int32), [names.capture]),
        "connection": arrow.dictionary(local, [connections.names[i] for i in used.tolist()]),
        "exchange": arrow.integers(exchange, pa.int64()),
        "reply": arrow.integers(reply, pa.int64()),
        "topic": arrow.strings(p[s.P_TOPIC], strings),
        "topic_id": arrow.strings(p[s.P_TOPIC_ID], strings),
        "partition": arrow.integers(p[s.P_PARTITION], pa.int32()),
        "error_code": arrow.integers(p[s.P_ERROR], pa.int16()),
        "error": _error_names(p[s.P_ERROR]),
        "offset": arrow.integers(offset, pa.int64()),
        "offset_kind": arrow.dictionary(np.where(offset == s.NULL, s.NULL, kind_of[api]), kinds),
        "high_watermark": arrow.integers(watermark, pa.int64()),
        "last_stable_offset": arrow.integers(p[s.P_LAST_STABLE], pa.int64()),
        "log_start_offset": arrow.integers(p[s.P_LOG_START], pa.int64()),
        "leader_epoch": arrow.integers(p[s.P_EPOCH], pa.int32()),
        "record_bytes": arrow.integers(p[s.P_RECORD_BYTES], pa.int64()),
        "batch_count": arrow.integers(p[s.P_BATCHES], pa.int64()),
        "record_count": arrow.integers(p[s.P_RECORDS], pa.int64()),
        "lag": arrow.integers(lag, pa.int64()),
        "diverging_offset": arrow.integers(p[s.P_DIVERGES], pa.int64()),
        "redelivered": arrow.integers(p[s.P_REDELIVERED], pa.int64()),
        "delivery_count": arrow.integers(p[s.P_DELIVERIES], pa.int16()),
    }
    wanted = [column.name for column in tables.PARTITIONS]
    return pa.Table.from_arrays([arrays[name] for name in wanted], names=wanted)


@functools.cache
def _api_names() -> list[str]:
    return [api.name for api in definitions.apis()]


def _api(keys: np.ndarray) -> pa.Array:
    known = (keys >= 0) & (keys < len(_api_names()))
    return arrow.dictionary(np.where(known, keys, s.NULL), _api_names())


def _error_names(codes: np.ndarray) -> pa.Array:
    bad = (codes != s.NULL) & (codes != 0)
    known = distinct(codes[bad])
    where = np.where(bad, np.searchsorted(known, codes), s.NULL)
    return arrow.dictionary(where, [kafka_errors.name(code) for code in known.tolist()])


def _topics(x: _Columns, names: _Texts) -> pa.Array:
    """Lists of topics; empty where the messages name none, null where no message was decoded."""
    seen = (x[s.X_REQUEST_STATE] == 0) | (x[s.X_RESPONSE_STATE] == 0)
    used, local = arrow.compact(x[s.X_TOPICS], len(names.lists))
    lists = [names.lists[i] for i in used.tolist()]
    numbers = np.array([i for entry in lists for i in entry], np.int64)
    where, index = arrow.list_offsets(local, x[s.X_TOPICS] != s.NULL, seen, lists, 1)
    return pa.ListArray.from_arrays(where, arrow.strings(numbers[index], names.strings))


def _errors(x: _Columns, names: _Texts) -> pa.Array:
    """Lists of (code, name, count); empty on success, null where no response was decoded."""
    seen = x[s.X_RESPONSE_STATE] == 0
    used, local = arrow.compact(x[s.X_ERRORS], len(names.lists))
    lists = [names.lists[i] for i in used.tolist()]
    flat = [pair for entry in lists for pair in zip(entry[::2], entry[1::2], strict=True)]
    values = pa.StructArray.from_arrays(
        [
            pa.array([code for code, _ in flat], pa.int16()),
            pa.array([kafka_errors.name(code) for code, _ in flat], pa.string()),
            pa.array([count for _, count in flat], pa.int32()),
        ],
        names=["code", "error", "count"],
    )
    where, index = arrow.list_offsets(local, x[s.X_ERRORS] != s.NULL, seen, lists, 2)
    # Seldom any: `take` loads PyArrow's functions, a tenth of a small capture's time.
    return pa.ListArray.from_arrays(where, values.take(pa.array(index)) if len(index) else values[:0])


def _reasons(x: _Columns, backwards: np.ndarray) -> pa.Array:
    """Sentences for the few rows that have something to say."""
    asked, answered = x[s.X_REQUEST_REASON], x[s.X_RESPONSE_REASON]
    odd = np.flatnonzero(
        ((asked != s.NULL) & (asked != s.R_NONE)) | ((answered != s.NULL) & (answered != s.R_NONE)) | backwards
    )
    sentences: dict[str, int] = {}
    numbers = np.full(len(x), s.NULL, np.int64)
    sides = [
        (side, [x[column + more][odd].tolist() for more in range(3)])
        for side, column in (("request", s.X_REQUEST_REASON), ("response", s.X_RESPONSE_REASON))
        if len(odd)
    ]
    for at, row in enumerate(odd.tolist()):
        said = []
        for side, (reasons, of_a, of_b) in sides:
            if reasons[at] != s.NULL and reasons[at] != s.R_NONE:
                said.append(f"{side}: {_reason(reasons[at], of_a[at], of_b[at])}")
        if backwards[row]:
            said.append("response: captured before the end of its request")
        numbers[row] = sentences.setdefault("; ".join(said), len(sentences))
    return arrow.strings(numbers, list(sentences))


def _reason(reason: int, a: int, b: int) -> str:
    if reason == s.R_TRAILING:
        return f"{a} trailing bytes"
    if reason == s.R_MALFORMED:
        return f"malformed: {load().field_path(a // 16)} at byte {b}: {REASONS[a % 16]}"
    if reason == s.R_HEADER:
        return "malformed: header" + (f" at byte {b}" if b >= 0 else "")
    if reason == s.R_TRUNCATED:
        return f"{a} bytes missing inside"
    if reason == s.R_CUT:
        return f"the last {a} bytes never came"
    if reason == s.R_LIMIT:
        return f"limit: {a} bytes are more than may be kept"
    return {
        s.R_UNKNOWN_API: "unknown_api",
        s.R_UNSUPPORTED_VERSION: "unsupported_version",
        s.R_NO_REQUEST: "its request was not seen",
        s.R_TOO_MANY: "too many requests without an answer before it",
    }[reason]


def latency_us(x: Columns) -> tuple[np.ndarray, np.ndarray]:
    """(latencies of rows int64[X_COLUMNS, n], NULL where there is none; where it would be negative)."""
    latency = arrow.minus(arrow.micros(x[s.X_RESPONSE_FIRST_NS]), arrow.micros(x[s.X_REQUEST_LAST_NS]))
    backwards = (latency < 0) & (latency != s.NULL)
    latency[backwards] = s.NULL
    return latency, backwards


def queue_us(x: Columns, latency: np.ndarray) -> np.ndarray:
    """How long requests waited behind earlier ones of their connection: a broker takes up a request once it has
    answered those before it. NULL where the latency is."""
    earlier = arrow.micros(x[s.X_EARLIER_NS])
    behind = np.where(earlier == s.NULL, 0, earlier - arrow.micros(x[s.X_REQUEST_LAST_NS]))
    return np.where(latency == s.NULL, s.NULL, np.clip(behind, 0, np.maximum(latency, 0)))


def _times_1000(values: np.ndarray) -> np.ndarray:
    return np.where(values == s.NULL, s.NULL, values * 1000)


def _offsets(at: np.ndarray, file: np.ndarray, plain_file: np.ndarray) -> pa.Array:
    seen = at != s.NULL
    readable = seen & plain_file[np.where(seen, file, 0)]
    return arrow.integers(np.where(readable, at, s.NULL), pa.int64())
