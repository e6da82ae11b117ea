"""Record sets -> the tables `batches` and `records`.

In: `RecordSetColumns`, the bytes of record sets, and `Origins`, the message or file around each. Out: Arrow tables with
the columns of `tables.py`, in order of the origins. Checksums and opening are split into tasks that a pool's threads
work on side by side; finished tables wait for their turn, and only a few tasks are ahead, so memory is bounded by what
so many pieces hold. No row makes a Python object, but for records of internal topics and control records with `full`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.buffer_pool import BufferPool
from kwire.analyzer.frame.numbers import IntegerColumns, frozen, narrow
from kwire.analyzer.records import batch_owners as p
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import checksums
from kwire.analyzer.records.batches import Batches, BatchLimits, batches
from kwire.captures.kernels import NULL

NO_RECORDS, BATCHES, META, FULL = "none", "batches", "meta", "full"
"""How far records are opened: `--records`."""
WITHOUT: Final = {NO_RECORDS: ("batches", "records"), BATCHES: ("records",), META: (), FULL: ()}
"""The tables that each leaves out."""

SIDES: Final = ("produce", "fetch")
PRODUCE, FETCH = 0, 1
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")

TASK_BYTES: Final = 4 << 20
"""Bytes of batches (as they lie there) that one task opens, if one batch is not larger."""
TASK_ROWS: Final = 1 << 16
"""Records, as headers count them, that one task opens: about a row group."""
HELD_BYTES: Final = 256 << 20
"""Bytes of record sets that wait for the end of their exchange. Sets beyond have no rows of `records`, and the reason
in
their batches: in a capture of requests alone, all sets would wait.
"""
AHEAD: Final = 2
"""Tasks a thread that may be done before their turn."""


@dataclass(frozen=True)
class Origins:
    """Where record sets come from: one row a set in every array, int64, NULL where absent.

    number        of the set, as `Kept` has it
    connection    index in `connections`; exchange, reply: ordinals of its frames
    side          PRODUCE or FETCH
    topic, topic_id    indices in `strings`; partition
    """

    number: np.ndarray
    connection: np.ndarray
    exchange: np.ndarray
    reply: np.ndarray
    side: np.ndarray
    topic: np.ndarray
    topic_id: np.ndarray
    partition: np.ndarray
    capture: str
    connections: Sequence[str]
    strings: Sequence[str]
    topic_name: Callable[[str], str] = field(default=str)

    @cached_property
    def table(self) -> np.ndarray:
        """int64[placing.O_COLUMNS, sets]."""
        return np.stack(
            [self.connection, self.exchange, self.reply, self.side, self.topic, self.topic_id, self.partition]
        )

    @cached_property
    def columns(self) -> dict[str, pa.Array]:
        """Return the columns that name where rows come from, a row a set."""
        return {
            "capture": arrow.dictionary(np.zeros(len(self.number), np.int32), [self.capture]),
            "connection": arrow.strings(self.connection, list(self.connections)),
            "exchange": arrow.integers(self.exchange, pa.int64()),
            "reply": arrow.integers(self.reply, pa.int64()),
            "topic": arrow.strings(self.topic, list(self.strings)),
            "topic_id": arrow.strings(self.topic_id, list(self.strings)),
            "partition": arrow.integers(self.partition, pa.int32()),
            "side": arrow.dictionary(self.side, SIDES),
        }

    def of(self, which: np.ndarray) -> dict[str, pa.Array]:
        """Return origins for rows of the sets `which` int64[n]."""
        if len(which) == len(self.number) and (which == np.arange(len(which))).all():
            return self.columns
        index = arrow.over(which, pa.int64())
        return {name: column.take(index) for name, column in self.columns.items()}


class RecordSetColumns(NamedTuple):
    """The record sets of one shard and window: `number`, and where each lies in `heap` uint8[:]; `bridged` as for
    `batches.walk`; int64[n]."""

    heap: np.ndarray
    number: np.ndarray
    at: np.ndarray
    length: np.ndarray
    bridged: np.ndarray


COUNTED: Final = (
    "batches",
    "records",
    "bytes",
    "control_batches",
    "bad_checksums",
    "partial",
    "bombs",
    "not_read",
    *b.CODECS,
)
"""What is counted, in the order of `placing.count`."""


@dataclass(slots=True)
class RecordCounts:
    """Counts of batches and records for the summary, of each side."""

    sides: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, table: np.ndarray, side: np.ndarray) -> None:
        """Count the batches of a table; side int64[sets]: of each set."""
        counts = np.zeros((len(SIDES) + 1, len(COUNTED)), np.int64)
        p.count(table, side, counts)
        for name, amounts in zip((*SIDES, "log"), counts.tolist(), strict=True):
            if amounts[p.C_BATCHES]:
                into = self.sides.setdefault(name, dict.fromkeys(COUNTED, 0))
                for what, count in zip(COUNTED, amounts, strict=True):
                    into[what] += count

    def join(self, other: RecordCounts) -> None:
        """Add another's."""
        for side, counts in other.sides.items():
            into = self.sides.setdefault(side, {})
            for name, count in counts.items():
                into[name] = into.get(name, 0) + count

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: of each side the counts, with the batches of each codec apart."""
        return {
            side: {
                **{name: count for name, count in counts.items() if name not in b.CODECS},
                "codecs": {name: counts[name] for name in b.CODECS if counts[name]},
            }
            for side, counts in sorted(self.sides.items(), reverse=True)
        }


class _Wanted:
    """Numbers of record sets, in an order."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = frozen(numbers)
        self._slots = np.full(1 << (2 * len(numbers)).bit_length(), -1, np.int64)
        p.learn(self._numbers, self._slots)

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, numbers: np.ndarray, after: np.ndarray | None = None) -> np.ndarray:
        """int64[n]: the place of each of some numbers, -1: it is not wanted. after[place + 1] grows by one for each."""
        positions = np.empty(len(numbers), np.int64)
        after = np.zeros(len(self) + 1, np.int64) if after is None else after
        p.owners(frozen(numbers), self._numbers, self._slots, positions, after)
        return positions


class RecordTables:
    """Makes the tables of one capture point, window by window. `mode`: BATCHES, META or FULL.

    A set is seen when its message is read, and its row comes when its exchange ends, mostly in the same window. Until
    then its batches wait, checked already; with META and FULL its bytes too, up to HELD_BYTES.
    """

    def __init__(self, mode: str, pool: Executor, threads: int, limits: BatchLimits | None = None) -> None:
        self.counts = RecordCounts()
        self._mode = mode
        self._pool = pool
        self._threads = threads
        self._limits = limits
        self._openers: list[Any] = []
        self._held = np.zeros((b.B_COLUMNS, 0), np.int64)
        self._held_bytes: dict[int, bytes] = {}
        self._held_size = 0
        self._heap = np.zeros(0, np.uint8)
        self._buffers = BufferPool()

    @property
    def waiting(self) -> int:
        """Number of batches in sets whose exchange has not ended."""
        return self._held.shape[1]

    def take(
        self, shards: Sequence[RecordSetColumns], origins: Origins, gone: np.ndarray
    ) -> Iterator[tuple[str, pa.Table]]:
        """(name, rows) of one window: `records` in several parts, then `batches`, of the sets in `origins`, in its
        order. gone: int64, the numbers of sets that are not wanted; all others wait."""
        wanted = _Wanted(origins.number)
        table = self._placed([self._held, *(self._walked(sets) for sets in shards)], wanted, gone)
        if self._mode != BATCHES:
            self._collect(shards, wanted, gone, table)
        yield from self.tables(Batches(table, self._heap), origins)

    def _placed(self, parts: Sequence[np.ndarray], wanted: _Wanted, gone: np.ndarray) -> np.ndarray:
        """The batches of the sets that are wanted, in their order, B_SET being which of them. Those of others wait, but
        for what is `gone`."""
        after = np.zeros(len(wanted) + 1, np.int64)
        owned = [(part, wanted.find(part[b.B_SET], after)) for part in parts]
        next_of = np.cumsum(after)
        table = self._buffers.numbers(b.B_COLUMNS, int(next_of[-1]))
        for part, owner in owned:
            p.put(part, owner, next_of, np.empty(len(owner), np.int64), table)
        waiting = [part[:, np.flatnonzero(owner < 0)] for part, owner in owned]
        self._held = np.concatenate([np.zeros((b.B_COLUMNS, 0), np.int64), *waiting], axis=1)
        if len(gone) and self._held.shape[1]:
            self._held = self._held[:, ~arrow.among(self._held[b.B_SET], gone)]
        return table

    def rest(self, origins: Origins) -> Iterator[tuple[str, pa.Table]]:
        """Yield rows of the sets that wait at the end, without an exchange (a message names a partition twice)."""
        numbers = arrow.distinct(self._held[b.B_SET])
        absent = np.full(len(numbers), NULL, np.int64)
        nobody = replace(
            origins,
            number=numbers,
            connection=absent,
            exchange=absent,
            reply=absent,
            side=absent,
            topic=absent,
            topic_id=absent,
            partition=absent,
        )
        yield from self.take([], nobody, numbers[:0])

    def _walked(self, sets: RecordSetColumns) -> np.ndarray:
        """The batches of one shard's sets, checked; places count from the start of their set, B_SET is its number."""
        own_batches = batches(sets.heap, sets.at, sets.length, sets.bridged, self._buffers)
        table = own_batches.table
        list(self._pool.map(lambda ends: checksums.check(table, sets.heap, *ends), _ranges(table)))
        p.settle(table, sets.at, sets.number)
        return table

    def _collect(
        self, shards: Sequence[RecordSetColumns], wanted: _Wanted, gone: np.ndarray, table: np.ndarray
    ) -> None:
        """Put the bytes of the sets that are wanted into one heap, in their order, and the batches' places in it; keep
        those that wait."""
        from kwire.analyzer.records.batch_reader import collect

        held = np.array(list(self._held_bytes), np.int64)
        whose = wanted.find(held)
        late = [(whose[i], self._held_bytes[int(held[i])]) for i in np.flatnonzero(whose >= 0)]
        for number in held[(whose >= 0) | arrow.among(held, gone)].tolist():
            self._held_size -= len(self._held_bytes.pop(number))
        length = np.zeros(len(wanted), np.int64)
        sources: list[tuple[RecordSetColumns, np.ndarray, np.ndarray]] = []
        for sets in shards:
            owner = wanted.find(sets.number)
            own = np.flatnonzero(owner >= 0)
            length[owner[own]] = sets.length[own]
            sources.append((sets, own, owner[own]))
            waiting = np.flatnonzero(owner < 0)
            for i in waiting[~arrow.among(sets.number[waiting], gone)].tolist():
                self._hold(int(sets.number[i]), sets.heap[sets.at[i] : sets.at[i] + sets.length[i]])
        for into, data in late:
            length[into] = len(data)
        start = np.cumsum(length) - length
        total = int(length.sum())
        if total > len(self._heap):
            self._heap = np.empty(total + total // 4, np.uint8)
        for sets, which, into in sources:
            collect(sets.heap, sets.at[which], length[into], self._heap, start[into])
        for into, data in late:
            self._heap[start[into] : start[into] + len(data)] = np.frombuffer(data, np.uint8)
        at = start[table[b.B_SET]]
        table[b.B_AT] += at
        known = table[b.B_RECORDS_AT] != NULL
        table[b.B_RECORDS_AT, known] += at[known]
        lost = known & (length[table[b.B_SET]] == 0)
        table[b.B_RECORDS_LENGTH, lost] = NULL
        table[b.B_REASON, lost & (table[b.B_REASON] == b.REASON_NONE)] = b.REASON_NOT_KEPT

    def _hold(self, number: int, data: np.ndarray) -> None:
        if self._held_size + len(data) <= HELD_BYTES:
            self._held_bytes[number] = data.tobytes()
            self._held_size += len(data)

    def tables(self, opened: Batches, origins: Origins) -> Iterator[tuple[str, pa.Table]]:
        """The tables of batches whose checksums have been checked, B_SET being their row in `origins`."""
        if not len(opened):
            return
        if self._mode != BATCHES:
            topics = topic_names(origins) if self._mode == FULL else None
            tasks = [self._task(opened, origins, topics, first, stop) for first, stop in _ranges(opened.table)]
            for table in in_order(self._pool, tasks, AHEAD * self._threads):
                yield "records", table
        opened = Batches(np.ascontiguousarray(opened.table), opened.heap)
        self.counts.add(opened.table, origins.side)
        yield "batches", batches_table(opened, origins, self._buffers)

    def _task(
        self, opened: Batches, origins: Origins, topics: list[str | None] | None, first: int, stop: int
    ) -> Iterator[pa.Table]:
        """Open batches first .. stop - 1."""
        from kwire.analyzer.records import batch_reader as records

        opener = self._openers.pop() if self._openers else records.BatchReader(self._limits)
        costs = None
        if topics is not None:
            from kwire.analyzer.records.internal_topics import Costs

            costs = Costs()
        for piece in opener.open(opened, first, stop):
            yield records_table(piece, opened, origins, topics, costs)
        self._openers.append(opener)


def _ranges(table: np.ndarray) -> Iterator[tuple[int, int]]:
    """Split batches into tasks of about TASK_BYTES or TASK_ROWS."""
    begins = np.empty(table.shape[1], np.int64)
    many = p.divide(table[b.B_LENGTH], table[b.B_COUNT], TASK_BYTES, TASK_ROWS, begins)
    return pairwise([*begins[:many].tolist(), table.shape[1]])


def in_order(pool: Executor, tasks: Sequence[Iterator[pa.Table]], ahead: int) -> Iterator[pa.Table]:
    """Yield the results of tasks, task after task.

    Each step of a task runs in the pool; up to `ahead` tasks have made their first step before their turn.
    """
    running: deque[tuple[Iterator[pa.Table], Future[pa.Table | None]]] = deque()
    waiting = iter(tasks)
    try:
        while True:
            while len(running) <= ahead and (task := next(waiting, None)) is not None:
                running.append((task, pool.submit(next, task, None)))
            if not running:
                return
            task, step = running[0]
            table = step.result()
            if table is None:
                running.popleft()
                continue
            running[0] = (task, pool.submit(next, task, None))
            yield table
    finally:
        for _, step in running:
            step.cancel()


_OF_BATCHES: Final = {
    "base_offset": b.B_OFFSET,
    "magic": b.B_MAGIC,
    "record_count": b.B_COUNT,
    "batch_bytes": b.B_SIZE,
    "uncompressed_bytes": b.B_UNCOMPRESSED,
    "crc": b.B_CRC,
}
"""Columns of `batches` that rows of batches have as they are."""
_OF_ROWS: Final = {
    "exchange": p.O_EXCHANGE,
    "reply": p.O_REPLY,
    "partition": p.O_PARTITION,
    "producer_id": p.R_PRODUCER_ID,
    "producer_epoch": p.R_PRODUCER_EPOCH,
    "base_sequence": p.R_BASE_SEQUENCE,
    "first_timestamp": p.R_FIRST_TIMESTAMP,
    "last_timestamp": p.R_LAST_TIMESTAMP,
    "delete_horizon": p.R_DELETE_HORIZON,
}
"""Columns of the two tables."""
_FLAGS: Final = {"is_transactional": p.R_TRANSACTIONAL, "is_control": p.R_CONTROL, "crc_ok": p.R_CRC_OK}
_NARROW_OF_BATCHES, _NARROW_OF_ROWS = (
    narrow(((which[column.name], column.type) for column in tables.TABLES["batches"] if column.name in which), more)
    for which, more in ((_OF_BATCHES, ()), (_OF_ROWS, (p.O_SIDE, p.R_CODEC, p.R_TIMESTAMP_TYPE)))
)


def batches_table(opened: Batches, origins: Origins, buffers: BufferPool | None = None) -> pa.Table:
    """The table `batches`; strings come as dictionaries, as in `columns.py`."""
    t = np.ascontiguousarray(opened.table)
    rows = (buffers or BufferPool()).numbers(p.R_COLUMNS, len(opened))
    p.tell(t, origins.table, rows)
    batch = IntegerColumns([t], _OF_BATCHES.values(), _NARROW_OF_BATCHES)
    row = IntegerColumns([rows], range(p.R_COLUMNS), _NARROW_OF_ROWS)
    strings = list(origins.strings)
    columns = {
        "capture": arrow.dictionary(arrow.zeros(len(opened), np.int32), [origins.capture]),
        "connection": row.strings(p.O_CONNECTION, list(origins.connections)),
        "topic": row.strings(p.O_TOPIC, strings),
        "topic_id": row.strings(p.O_TOPIC_ID, strings),
        "side": row.coded(p.O_SIDE, SIDES),
        "codec": row.coded(p.R_CODEC, b.CODECS),
        "timestamp_type": row.coded(p.R_TIMESTAMP_TYPE, TIMESTAMP_TYPES),
        "partial": arrow.flags(t[b.B_STATE] == b.PARTIAL),
        "reason": _reasons(t),
    }
    for column in tables.TABLES["batches"]:
        if column.name in _OF_BATCHES:
            columns[column.name] = batch.formed(_OF_BATCHES[column.name], column.type)
        elif column.name in _FLAGS:
            which = _FLAGS[column.name]
            columns[column.name] = arrow.flags(rows[which] == 1, rows[which] != NULL)
        elif column.name in _OF_ROWS:
            columns[column.name] = row.formed(_OF_ROWS[column.name], column.type)
    return pa.Table.from_arrays([columns[name] for name in _names("batches")], names=_names("batches"))


def records_table(
    piece: Any, opened: Batches, origins: Origins, topics: list[str | None] | None = None, costs: Any = None
) -> pa.Table:
    """Return the table `records` for some records (`batch_reader.RecordRows`).

    topics   names of the topics of `origins` (`topic_names`); given: the rows have their contents
    costs    `internal_topics.Costs` of the pieces before, if batches go on in this one
    """
    from kwire.analyzer.records import batch_reader as r

    t = piece.table
    which = opened.table[b.B_SET, t[r.R_BATCH]]
    columns = {
        **origins.of(which),
        "batch": arrow.integers(opened.table[b.B_OFFSET, t[r.R_BATCH]], pa.int64()),
        # Copies: the next piece is written where this one is.
        "offset": arrow.integers(t[r.R_OFFSET].copy(), pa.int64()),
        "timestamp": _millis(t[r.R_TIMESTAMP]),
        "key_bytes": arrow.integers(t[r.R_KEY_LENGTH].copy(), pa.int64()),
        "value_bytes": arrow.integers(t[r.R_VALUE_LENGTH].copy(), pa.int64()),
        "control_type": _control_types(t[r.R_CONTROL]),
    }
    if topics is not None:
        from kwire.analyzer.records import internal_topics as record_contents

        within = (costs or record_contents.Costs()).within(piece, opened.table[b.B_LENGTH, t[r.R_BATCH]])
        columns.update(record_contents.columns(piece, which, topics, within))
    arrays = [
        columns[column.name] if column.name in columns else pa.nulls(t.shape[1], column.type)
        for column in tables.RECORDS
    ]
    return pa.Table.from_arrays(arrays, names=_names("records"))


def empty_table(name: str) -> pa.Table:
    """`batches` or `records` without rows, of the types that the others have."""
    none = np.zeros(0, np.int64)
    origins = Origins(none, none, none, none, none, none, none, none, "", (), ())
    no_batches = Batches(np.zeros((b.B_COLUMNS, 0), np.int64), np.zeros(0, np.uint8))
    if name == "batches":
        return batches_table(no_batches, origins)
    from kwire.analyzer.records import batch_reader as r

    return records_table(
        r.RecordRows(np.zeros((r.R_COLUMNS, 0), np.int64), (no_batches.heap, no_batches.heap)), no_batches, origins
    )


def topic_names(origins: Origins) -> list[str | None]:
    """Return the name of each set's topic, by its id if a message names that; None if unknown."""
    from kwire.analyzer.records.record_trees import CLUSTER_METADATA, CLUSTER_METADATA_ID

    def named(topic: int, topic_id: int) -> str | None:
        if topic != NULL:
            return origins.strings[topic]
        if topic_id == NULL:
            return None
        name = origins.strings[topic_id]
        return CLUSTER_METADATA if name == CLUSTER_METADATA_ID else origins.topic_name(name)

    return [named(*pair) for pair in zip(origins.topic.tolist(), origins.topic_id.tolist(), strict=True)]


def _names(table: str) -> list[str]:
    return [column.name for column in tables.TABLES[table]]


def _millis(values: np.ndarray) -> pa.Array:
    """Times of Kafka, in ms; -1 is none."""
    fine = (values >= p.FIRST_MS) & (values <= p.LAST_MS) & (values != -1)
    return arrow.times(np.where(fine, np.where(fine, values, 0) * 1000, NULL))


def _reasons(table: np.ndarray) -> pa.Array:
    """Return sentences for the few rows with a reason."""
    odd = np.flatnonzero(table[b.B_REASON] != b.REASON_NONE)
    if not len(odd):
        return arrow.dictionary(np.full(table.shape[1], NULL, np.int64), [])
    pairs, where = np.unique(table[b.B_REASON : b.B_REASON_A + 1, odd], axis=1, return_inverse=True)
    numbers = np.full(table.shape[1], NULL, np.int64)
    numbers[odd] = where.reshape(-1)
    return arrow.dictionary(numbers, [b.reason(code, number) for code, number in pairs.T.tolist()])


def _control_types(types: np.ndarray) -> pa.Array:
    from kwire.analyzer.records.batch_reader import CONTROL_TYPES

    distinct = arrow.distinct(types[types != NULL])
    names = [CONTROL_TYPES[n] if 0 <= n < len(CONTROL_TYPES) else str(n) for n in distinct.tolist()]
    return arrow.dictionary(np.where(types == NULL, NULL, np.searchsorted(distinct, types)), names)
