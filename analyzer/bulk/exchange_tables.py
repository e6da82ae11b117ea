"""Rows of integers -> Arrow tables.

In: `Exchanges` of some windows of a capture point, in order. Out: the tables `exchanges` and `partitions`, with the
columns of `tables.py`. Strings travel as numbers until here; a column of strings is built as indices into the few
distinct ones, so no row makes a Python object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk import cast, projection
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.column_names import COLUMNS
from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.frame.numbers import IntegerColumns, frozen, in_use, joined, narrow
from kwire.analyzer.protocol import api_keys as api_names
from kwire.analyzer.protocol import errors as kafka_errors
from kwire.analyzer.protocol import schema as definitions
from kwire.analyzer.protocol.decoding import REASONS
from kwire.analyzer.protocol.program import Program, load
from kwire.captures.cast import list_ends, list_items, take

if TYPE_CHECKING:
    from kwire.analyzer.bulk.rows import Exchanges, Names
    from kwire.captures.files import FileInfo

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
    column_of = {projection.TOPIC: "topics"} | dict.fromkeys(
        (projection.ERROR, projection.PART_ERROR, projection.PART_ERROR_EARLY), "errors"
    )
    return [column_of.get(role) for role in projection.roles(program)[0].tolist()]


Columns: TypeAlias = np.ndarray
"""int64[columns, n]."""


class _Texts(NamedTuple):
    """Meanings of numbers at this moment: `Names.forget` leaves these lists alone."""

    capture: str
    files: list[FileInfo]
    strings: list[str]
    lists: list[tuple[int, ...]]

    @classmethod
    def of(cls, names: Names) -> _Texts:
        return cls(names.capture, names.files, names.strings, names.lists)


class _Connections(NamedTuple):
    """Which connections some rows are of, by what they are called now: their numbers may be given again.

    local    int32[n]: the place of each row's connection in `names` and `ends`
    ends     (client address, client port, broker address, broker port) of each
    """

    local: np.ndarray
    names: list[str]
    ends: list[tuple[str, int, str, int]]

    @classmethod
    def of(cls, names: Names, connection: np.ndarray) -> _Connections:
        used, local = in_use(connection, len(names.connections))
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
    """Return a function that makes the table, in any thread and while further windows come.

    Values that later windows may change are looked up now."""
    connections = _Connections.of(names, joined([rows.connection for rows in windows]))
    columns = tuple(rows.columns for rows in windows)
    return functools.partial(_exchanges, _Texts.of(names), columns, connections)


_TIMES: Final = {
    "request_time": cast.T_REQUEST,
    "request_end": cast.T_REQUEST_END,
    "response_time": cast.T_RESPONSE,
    "response_end": cast.T_RESPONSE_END,
}

_CODED: Final = (
    s.X_API_KEY,
    s.X_CAUSE,
    s.X_STATUS,
    s.X_REQUEST_STATE,
    s.X_RESPONSE_STATE,
    s.X_REQUEST_FILE,
    s.X_RESPONSE_FILE,
)
"""Columns of which the numbers are places among few strings."""


_AS_THEY_STAND: Final = {
    column.name: COLUMNS[column.name]
    for column in tables.EXCHANGES
    if column.name in COLUMNS and column.name not in (*_TIMES, "cause", "status", "request_state", "response_state")
}
"""Columns of `exchanges` that rows of integers have under the same name."""
_WANTED: Final = {
    *_AS_THEY_STAND.values(),
    *_CODED,
    s.X_ERROR,
    s.X_ERRORS,
    s.X_TOPICS,
    s.X_REQUEST_REASON,
    s.X_RESPONSE_REASON,
    s.X_REQUEST_RECORD_AT,
    s.X_RESPONSE_RECORD_AT,
}
_OF_EXCHANGES: Final = narrow(
    ((_AS_THEY_STAND[column.name], column.type) for column in tables.EXCHANGES if column.name in _AS_THEY_STAND), _CODED
)


def _exchanges(names: _Texts, windows: tuple[np.ndarray, ...], connections: _Connections) -> pa.Table:
    x = IntegerColumns(windows, _WANTED, _OF_EXCHANGES)
    n = x.rows
    strings, files = names.strings, [info.name for info in names.files]
    timed, backwards = _timed(x)
    columns: dict[str, pa.Array] = {
        "capture": arrow.dictionary(arrow.zeros(n, np.int32), [names.capture]),
        **_ends(connections),
        "api": _api(x),
        "latency_us": timed.formed(cast.T_LATENCY, pa.int64()),
        "total_us": timed.formed(cast.T_TOTAL, pa.int64()),
        "queue_us": timed.formed(cast.T_QUEUE, pa.int64()),
        "broker_low_us": timed.formed(cast.T_BROKER_LOW, pa.int64()),
        "broker_high_us": timed.formed(cast.T_BROKER_HIGH, pa.int64()),
        "throttle_us": timed.formed(cast.T_THROTTLE, pa.int64()),
        "cause": x.coded(s.X_CAUSE, CAUSES),
        "status": x.coded(s.X_STATUS, STATUSES),
        "request_state": x.coded(s.X_REQUEST_STATE, STATES),
        "response_state": x.coded(s.X_RESPONSE_STATE, STATES),
        "reason": _reasons(x, backwards),
        "error": _error_names(x, s.X_ERROR),
        "errors": _errors(x, names),
        "topics": _topics(x, names),
        "request_file": x.coded(s.X_REQUEST_FILE, files),
        "response_file": x.coded(s.X_RESPONSE_FILE, files),
        "request_offset": _offsets(x, s.X_REQUEST_RECORD_AT, s.X_REQUEST_FILE, names.files),
        "response_offset": _offsets(x, s.X_RESPONSE_RECORD_AT, s.X_RESPONSE_FILE, names.files),
    }
    for name, which in _TIMES.items():
        columns[name] = timed.formed(which, tables.TIME)
    for column in tables.EXCHANGES:
        if column.name not in columns:
            columns[column.name] = _as_it_stands(column, x, strings)
    wanted = [column.name for column in tables.EXCHANGES]
    return pa.Table.from_arrays([columns[name] for name in wanted], names=wanted)


def _timed(x: IntegerColumns) -> tuple[IntegerColumns, np.ndarray]:
    """(the rows of `forming.timed`, by its numbers; the rows whose latency would be negative)."""
    out, backwards = np.empty((cast.T_COLUMNS, x.rows), np.int64), np.empty(x.rows, np.bool_)
    odd = 0
    for part, at in x.each():
        odd += cast.timed(part, out, backwards, at)
    return IntegerColumns([out], range(cast.T_COLUMNS), {}), np.flatnonzero(backwards) if odd else _NONE


_NONE: Final = np.zeros(0, np.int64)


def _ends(connections: _Connections) -> dict[str, pa.Array]:
    """Names and addresses: of strings that repeat, as connections share addresses, each once. (Writing repeated ones
    takes three times as long.)"""
    clients, ports, brokers, others = zip(*connections.ends, strict=True) if connections.ends else ((),) * 4
    addresses = [{value: i for i, value in enumerate(dict.fromkeys(values))} for values in (clients, brokers)]
    table = np.array(
        [
            [addresses[0][value] for value in clients],
            ports,
            [addresses[1][value] for value in brokers],
            others,
        ],
        np.int32,
    ).reshape(4, -1)
    out = np.empty((4, len(connections.local)), np.int32)
    take(table, connections.local, out)
    client_ip, client_port, broker_ip, broker_port = (arrow.formed(row, pa.int32(), None, 0) for row in out)
    return {
        "connection": arrow.dictionary(connections.local, connections.names),
        "client_ip": arrow.coded(client_ip, list(addresses[0])),
        "client_port": client_port,
        "broker_ip": arrow.coded(broker_ip, list(addresses[1])),
        "broker_port": broker_port,
    }


def _as_it_stands(column: tables.Column, x: IntegerColumns, strings: list[str]) -> pa.Array:
    """A column of `exchanges` that rows of integers have under the same name, or that is reserved."""
    if column.name not in _AS_THEY_STAND:
        return pa.nulls(x.rows, column.type)
    which = _AS_THEY_STAND[column.name]
    return x.formed(which, column.type) if pa.types.is_integer(column.type) else x.strings(which, strings)


def partitions(names: Names, windows: Sequence[Exchanges]) -> pa.Table:
    """The topic-partitions of the exchanges of some windows, in their order."""
    return later_partitions(names, windows)()


def later_partitions(names: Names, windows: Sequence[Exchanges]) -> Callable[[], pa.Table]:
    """As `later_exchanges`."""
    connections = _Connections.of(names, joined([rows.connection for rows in windows]))
    return functools.partial(_partitions, _Texts.of(names), tuple(windows), connections)


# fmt: off
_PARTITIONS: Final = {
    "partition": s.P_PARTITION, "error_code": s.P_ERROR, "offset": s.P_OFFSET, "high_watermark": s.P_HIGH_WATERMARK,
    "last_stable_offset": s.P_LAST_STABLE, "log_start_offset": s.P_LOG_START, "leader_epoch": s.P_EPOCH,
    "record_bytes": s.P_RECORD_BYTES, "batch_count": s.P_BATCHES, "record_count": s.P_RECORDS,
    "diverging_offset": s.P_DIVERGES, "acquired": s.P_ACQUIRED, "redelivered": s.P_REDELIVERED,
    "delivery_count": s.P_DELIVERIES,
}
# fmt: on
"""Columns of `partitions` that rows of integers have as they are."""
_OF_EACH: Final = {*_PARTITIONS.values(), s.P_TOPIC, s.P_TOPIC_ID}
_OF_PARTITIONS: Final = narrow(
    (_PARTITIONS[column.name], column.type) for column in tables.PARTITIONS if column.name in _PARTITIONS
)


def _partitions(names: _Texts, windows: tuple[Exchanges, ...], connections: _Connections) -> pa.Table:
    p = IntegerColumns([rows.partitions for rows in windows], _OF_EACH, _OF_PARTITIONS)
    before = np.cumsum([0, *(len(rows) for rows in windows)])
    owner = joined([rows.owner + at if at else rows.owner for rows, at in zip(windows, before[:-1], strict=True)])
    used, local = in_use(connections.local[owner].astype(np.int64), len(connections.names))
    n = p.rows
    kinds = sorted(set(OFFSET_KINDS.values()))
    kind_of = np.full(len(_api_names()) + 1, s.NULL, np.int64)
    for key, kind in OFFSET_KINDS.items():
        kind_of[key] = kinds.index(kind)
    out = np.empty((4, n), np.int64)
    for rows, (part, at) in zip(windows, p.each(), strict=True):
        cast.belong(part, frozen(rows.columns), frozen(rows.owner), kind_of, api_names.FETCH, out, at)
    of = IntegerColumns([out], range(len(out)), {32: [_KIND]})
    arrays = {
        "capture": arrow.dictionary(arrow.zeros(n, np.int32), [names.capture]),
        "connection": arrow.dictionary(local, [connections.names[i] for i in used.tolist()]),
        "exchange": of.formed(_EXCHANGE, pa.int64()),
        "reply": of.formed(_REPLY, pa.int64()),
        "topic": p.strings(s.P_TOPIC, names.strings),
        "topic_id": p.strings(s.P_TOPIC_ID, names.strings),
        "error": _error_names(p, s.P_ERROR),
        "offset_kind": of.coded(_KIND, kinds),
        "lag": of.formed(_LAG, pa.int64()),
    }
    for column in tables.PARTITIONS:
        if column.name not in arrays:
            arrays[column.name] = p.formed(_PARTITIONS[column.name], column.type)
    wanted = [column.name for column in tables.PARTITIONS]
    return pa.Table.from_arrays([arrays[name] for name in wanted], names=wanted)


_EXCHANGE, _REPLY, _LAG, _KIND = range(4)
"""Rows of `forming.belong`."""


@functools.cache
def _api_names() -> list[str]:
    return [api.name for api in definitions.apis()]


def _api(x: IntegerColumns) -> pa.Array:
    if x.within(s.X_API_KEY, len(_api_names())):
        return x.coded(s.X_API_KEY, _api_names())
    keys = x[s.X_API_KEY]
    known = (keys >= 0) & (keys < len(_api_names()))
    return arrow.dictionary(np.where(known, keys, s.NULL), _api_names())


def _error_names(x: IntegerColumns, column: int) -> pa.Array:
    if x.only(column, 0):
        return arrow.coded(arrow.nothing(pa.int32(), x.rows), [])
    codes = x[column]
    bad = (codes != s.NULL) & (codes != 0)
    known = distinct(codes[bad])
    where = np.where(bad, np.searchsorted(known, codes), s.NULL)
    return arrow.dictionary(where, [kafka_errors.name(code) for code in known.tolist()])


def _topics(x: IntegerColumns, names: _Texts) -> pa.Array:
    """Lists of topics; empty where the messages name none, null where no message was decoded."""
    values = x[s.X_TOPICS]
    used, local = in_use(values, len(names.lists))
    lists = [names.lists[i] for i in used.tolist()]
    numbers = np.array([i for entry in lists for i in entry], np.int64)
    of_all, items = in_use(numbers, len(names.strings))
    offsets, topic_places = _listed(local, values, [len(entry) for entry in lists], items)
    topics = arrow.coded(arrow.formed(topic_places, pa.int32(), None, 0), [names.strings[i] for i in of_all.tolist()])
    return pa.ListArray.from_arrays(_list_offsets(offsets, _without_list(x, values)), topics)


def _listed(
    local: np.ndarray, values: np.ndarray, lengths: Sequence[int], items: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(int32[rows + 1]: where the list of each row begins; int32: the items of all of them). A row has one of some
    lists, which stand one after the other in `items` and are so long, as `in_use` says of `values`."""
    ends = np.cumsum(lengths, dtype=np.int64)
    offsets = np.empty(len(values) + 1, np.int32)
    listed = np.empty(list_ends(local, values, ends, offsets), np.int32)
    list_items(local, values, ends, items, listed)
    return offsets, listed


def _list_offsets(offsets: np.ndarray, without: np.ndarray | None) -> pa.Array:
    """As Arrow wants them; `without`: rows that are null."""
    return arrow.over(offsets, pa.int32(), None if without is None else np.append(without, False))


def _without_list(x: IntegerColumns, values: np.ndarray) -> np.ndarray | None:
    """Where no message was decoded; None: nowhere."""
    if any(not x.absent(state) and x.only(state, 0) for state in (s.X_REQUEST_STATE, s.X_RESPONSE_STATE)):
        return None
    without = (x[s.X_REQUEST_STATE] != 0) & (x[s.X_RESPONSE_STATE] != 0) & (values == s.NULL)
    return without if without.any() else None


def _errors(x: IntegerColumns, names: _Texts) -> pa.Array:
    """Lists of (code, name, count); empty on success, null where no response was decoded."""
    read = not x.absent(s.X_RESPONSE_STATE) and x.only(s.X_RESPONSE_STATE, 0)
    if read and x.absent(s.X_ERRORS) == x.rows:
        return pa.ListArray.from_arrays(_list_offsets(arrow.zeros(x.rows + 1, np.int32), None), _error_structs([]))
    seen = x[s.X_RESPONSE_STATE] == 0
    values = x[s.X_ERRORS]
    used, local = in_use(values, len(names.lists))
    lists = [names.lists[i] for i in used.tolist()]
    pairs = [pair for entry in lists for pair in zip(entry[::2], entry[1::2], strict=True)]
    offsets, places = _listed(
        local, values, [len(entry) // 2 for entry in lists], np.arange(len(pairs), dtype=np.int32)
    )
    without = ~(seen | (values != s.NULL))
    structs = compute.take(_error_structs(pairs), places)
    return pa.ListArray.from_arrays(_list_offsets(offsets, without if without.any() else None), structs)


def _error_structs(pairs: Sequence[tuple[int, int]]) -> pa.Array:
    """(code, count) with names."""
    return pa.StructArray.from_arrays(
        [
            pa.array([code for code, _ in pairs], pa.int16()),
            pa.array([kafka_errors.name(code) for code, _ in pairs], pa.string()),
            pa.array([count for _, count in pairs], pa.int32()),
        ],
        names=["code", "error", "count"],
    )


def _reasons(x: IntegerColumns, backwards: np.ndarray) -> pa.Array:
    """Sentences for the few rows that have something to say; `backwards`: rows whose response came before its
    request."""
    if not len(backwards) and x.only(s.X_REQUEST_REASON, s.R_NONE) and x.only(s.X_RESPONSE_REASON, s.R_NONE):
        return arrow.coded(arrow.nothing(pa.int32(), x.rows), [])
    requested, answered = x[s.X_REQUEST_REASON], x[s.X_RESPONSE_REASON]
    early = np.zeros(x.rows, np.bool_)
    early[backwards] = True
    odd = np.flatnonzero(
        ((requested != s.NULL) & (requested != s.R_NONE)) | ((answered != s.NULL) & (answered != s.R_NONE)) | early
    )
    sentences: dict[str, int] = {}
    numbers = np.full(x.rows, s.NULL, np.int64)
    sides = [
        (side, [x[column + more][odd].tolist() for more in range(3)])
        for side, column in (("request", s.X_REQUEST_REASON), ("response", s.X_RESPONSE_REASON))
        if len(odd)
    ]
    for at, row in enumerate(odd.tolist()):
        sentence = []
        for side, (reasons, of_a, of_b) in sides:
            if reasons[at] != s.NULL and reasons[at] != s.R_NONE:
                sentence.append(f"{side}: {_reason(reasons[at], of_a[at], of_b[at])}")
        if early[row]:
            sentence.append("response: captured before the end of its request")
        numbers[row] = sentences.setdefault("; ".join(sentence), len(sentences))
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
    if reason == s.R_LENGTH:
        return f"its length field holds {a}, which no message has"
    if reason == s.R_CUT:
        return f"the last {a} bytes never came"
    if reason == s.R_LIMIT:
        return f"limit: {a} bytes are more than may be kept"
    return {
        s.R_UNKNOWN_API: "unknown_api",
        s.R_UNSUPPORTED_VERSION: "unsupported_version",
        s.R_NO_REQUEST: "its request was not seen",
        s.R_TOO_MANY: "too many requests without an answer before it",
        s.R_SHUT: "the broker had closed the connection before",
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


def _offsets(x: IntegerColumns, at: int, file: int, files: Sequence[FileInfo]) -> pa.Array:
    """Return positions of records in their files; null if a file is compressed."""
    if not any(info.compressed for info in files):
        return x.formed(at, pa.int64())
    plain_file = np.array([not info.compressed for info in files])
    values = x[at]
    seen = values != s.NULL
    readable = seen & plain_file[np.where(seen, x[file], 0)]
    return arrow.integers(np.where(readable, values, s.NULL), pa.int64())
