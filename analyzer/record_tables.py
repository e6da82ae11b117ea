"""Record sets -> the tables `batches` and `records`.

In: `RecordSets`: bytes, where each set lies in them, and what the message or the file around it said. Out: Arrow tables
with the columns of `tables.py`, in order of the sets. Checksums and opening are split into tasks that a pool's threads
work on side by side; what is ready waits for its turn, and no more than a few tasks are ahead, so memory is bounded by
what so many pieces hold. No row makes a Python object, but for records of internal topics and control records with
`full`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer import checksums, tables
from analyzer import record_batches as b
from analyzer.columns import _dictionary, _integers, _strings
from analyzer.record_batches import Batches, batches
from analyzer.state import NULL

NO_BATCHES, BATCHES, META, FULL = "none", "batches", "meta", "full"
"""How far records are opened: `--records`."""

SIDES: Final = ("produce", "fetch")
PRODUCE, FETCH = 0, 1
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")

TASK_BYTES: Final = 4 << 20
"""Bytes of batches (as they lie there) that one task opens, if one batch is not larger."""
TASK_ROWS: Final = 1 << 16
"""Records, as headers count them, that one task opens: about a row group."""
AHEAD: Final = 2
"""Tasks a thread that may be done before their turn."""

FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The years 1 and 9999: what Python, and so most readers of the tables, can represent."""


@dataclass(frozen=True, slots=True)
class RecordSets:
    """Record sets of one window, in order: one row a set in every array, int64, NULL where absent.

    heap          uint8: the bytes
    at, length    where each lies in it, and how many bytes are there
    size          bytes that the field says it has
    connection    index in `connections`; exchange, reply: ordinals of its frames
    side          PRODUCE or FETCH
    topic, topic_id    indices in `strings`; partition
    """

    heap: np.ndarray
    at: np.ndarray
    length: np.ndarray
    size: np.ndarray
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


@dataclass(slots=True)
class RecordCounts:
    """What a summary says of batches and records, of each side."""

    sides: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, table: np.ndarray, side: np.ndarray) -> None:
        """Count the batches of a table; side int64[n]: of each."""
        codec = b.codec(table)
        for number in np.unique(side).tolist():
            here = side == number
            into = self.sides.setdefault(SIDES[number] if number != NULL else "segment", {})
            counts = table[b.B_COUNT, here]
            found = {
                "batches": int(here.sum()),
                "records": int(counts[counts != NULL].sum()),
                "bytes": int(table[b.B_LENGTH, here].sum()),
                "control_batches": int((_flag(table, b.CONTROL) & here).sum()),
                "bad_checksums": int((table[b.B_CRC_OK, here] == 0).sum()),
                "partial": int((table[b.B_STATE, here] == b.PARTIAL).sum()),
                "bombs": int((table[b.B_REASON, here] == b.REASON_BOMB).sum()),
                "not_read": int((_unread(table) & here).sum()),
            }
            for code, name in enumerate(b.CODECS):
                found[name] = int((codec[here] == code).sum())
            for name, count in found.items():
                into[name] = into.get(name, 0) + count

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


def _unread(table: np.ndarray) -> np.ndarray:
    """Batches that are all there, and whose records cannot all be read; bombs are counted apart."""
    reason = table[b.B_REASON]
    known = (reason != b.REASON_NONE) & (reason != b.REASON_NOT_CAPTURED) & (reason != b.REASON_BOMB)
    unread: np.ndarray = known & (reason != b.REASON_INNER_CRC)
    return unread


def _flag(table: np.ndarray, bit: int) -> np.ndarray:
    """Batches of magic 2 with a bit among their attributes."""
    attributes = table[b.B_ATTRIBUTES]
    has: np.ndarray = (table[b.B_MAGIC] == 2) & (attributes != NULL) & (attributes & bit != 0)
    return has


class RecordTables:
    """Makes the tables, window by window. `mode`: BATCHES, META or FULL; `limits`: see `analyzer.records.Limits`."""

    def __init__(self, mode: str, pool: Executor, threads: int, limits: Any = None) -> None:
        self.counts = RecordCounts()
        self._mode = mode
        self._pool = pool
        self._threads = threads
        self._limits = limits
        self._openers: list[Any] = []

    def tables(self, sets: RecordSets, found: Batches | None = None) -> Iterator[tuple[str, pa.Table]]:
        """(name, rows) of one window's record sets: `records` in several parts, then `batches`. `found`: their batches,
        where they have been walked already; `sets` then says only where they come from."""
        if found is None:
            found = batches(sets.heap, sets.at, sets.length, sets.size)
        if not len(found):
            return
        tasks = [self._task(found, sets, first, stop) for first, stop in _ranges(found.table)]
        for table in in_order(self._pool, tasks, AHEAD * self._threads):
            yield "records", table
        self.counts.add(found.table, sets.side[found.table[b.B_SET]])
        yield "batches", batches_table(found, sets)

    def _task(self, found: Batches, sets: RecordSets, first: int, stop: int) -> Iterator[pa.Table]:
        """Check and open batches first .. stop - 1."""
        checksums.check(found.table, found.heap, first, stop)
        if self._mode == BATCHES:
            return
        from analyzer import records

        opener = self._openers.pop() if self._openers else records.Opener(self._limits)
        for piece in opener.open(found, first, stop):
            yield records_table(piece, found, sets, full=self._mode == FULL)
        self._openers.append(opener)


def _ranges(table: np.ndarray) -> Iterator[tuple[int, int]]:
    """Split batches into tasks of about TASK_BYTES or TASK_ROWS."""
    counts = np.clip(np.where(table[b.B_COUNT] == NULL, 1, table[b.B_COUNT]), 1, TASK_ROWS)
    weight = np.maximum(table[b.B_LENGTH] * (TASK_ROWS / TASK_BYTES), counts)
    task = (np.cumsum(weight) // TASK_ROWS).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(task)) + 1).tolist(), table.shape[1]]
    return pairwise(edges)


def in_order(pool: Executor, tasks: Sequence[Iterator[pa.Table]], ahead: int) -> Iterator[pa.Table]:
    """What the tasks give, task after task. Each step of a task runs in the pool; up to `ahead` tasks have made their
    first step before their turn."""
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


def _of_sets(sets: RecordSets, which: np.ndarray) -> dict[str, pa.Array]:
    """The columns that tell where rows come from; which: int64[n], the set of each."""
    return {
        "capture": _dictionary(np.zeros(len(which), np.int32), [sets.capture]),
        "connection": _strings(sets.connection[which], list(sets.connections)),
        "exchange": _integers(sets.exchange[which], pa.int64()),
        "reply": _integers(sets.reply[which], pa.int64()),
        "topic": _strings(sets.topic[which], list(sets.strings)),
        "topic_id": _strings(sets.topic_id[which], list(sets.strings)),
        "partition": _integers(sets.partition[which], pa.int32()),
        "side": _dictionary(sets.side[which], SIDES),
    }


def batches_table(found: Batches, sets: RecordSets) -> pa.Table:
    """The table `batches`; strings come as dictionaries, as in `columns.py`."""
    t = found.table
    known = t[b.B_ATTRIBUTES] != NULL
    codec = b.codec(t)
    appended = np.where(known & (t[b.B_MAGIC] > 0), (t[b.B_ATTRIBUTES] & b.LOG_APPEND_TIME) >> 3, NULL)
    columns = {
        **_of_sets(sets, t[b.B_SET]),
        "base_offset": _integers(t[b.B_OFFSET], pa.int64()),
        "magic": _integers(t[b.B_MAGIC], pa.int8()),
        "codec": _dictionary(np.where(codec > b.ZSTD, NULL, codec), b.CODECS),
        "timestamp_type": _dictionary(appended, TIMESTAMP_TYPES),
        "is_transactional": _booleans(_flag(t, b.TRANSACTIONAL), known),
        "is_control": _booleans(_flag(t, b.CONTROL), known),
        "producer_id": _integers(_not_negative(t[b.B_PRODUCER_ID]), pa.int64()),
        "producer_epoch": _integers(_not_negative(t[b.B_PRODUCER_EPOCH]), pa.int16()),
        "base_sequence": _integers(_not_negative(t[b.B_BASE_SEQUENCE]), pa.int32()),
        "record_count": _integers(t[b.B_COUNT], pa.int32()),
        "batch_bytes": _integers(t[b.B_SIZE], pa.int64()),
        "uncompressed_bytes": _integers(t[b.B_UNCOMPRESSED], pa.int64()),
        "first_timestamp": _millis(t[b.B_FIRST_TIMESTAMP]),
        "last_timestamp": _millis(t[b.B_LAST_TIMESTAMP]),
        "delete_horizon": _millis(t[b.B_DELETE_HORIZON]),
        "crc_ok": _booleans(t[b.B_CRC_OK] == 1, t[b.B_CRC_OK] != NULL),
        "partial": pa.array(t[b.B_STATE] == b.PARTIAL),
        "reason": _reasons(t),
    }
    return pa.Table.from_arrays([columns[name] for name in _names("batches")], names=_names("batches"))


def records_table(piece: Any, found: Batches, sets: RecordSets, full: bool) -> pa.Table:
    """The table `records` for a piece (`analyzer.records.Piece`)."""
    from analyzer import records as r

    t = piece.table
    which = found.table[b.B_SET, t[r.R_BATCH]]
    columns = {
        **_of_sets(sets, which),
        "batch": _integers(found.table[b.B_OFFSET, t[r.R_BATCH]], pa.int64()),
        "offset": _integers(t[r.R_OFFSET], pa.int64()),
        "timestamp": _millis(t[r.R_TIMESTAMP]),
        "key_bytes": _integers(t[r.R_KEY_LENGTH], pa.int64()),
        "value_bytes": _integers(t[r.R_VALUE_LENGTH], pa.int64()),
        "control_type": _control_types(t[r.R_CONTROL]),
    }
    if full:
        from analyzer import record_contents

        names = [_topic(sets, number) for number in range(len(sets.at))]
        columns.update(record_contents.columns(piece, which, names))
    arrays = [
        columns[column.name] if column.name in columns else pa.nulls(t.shape[1], column.type)
        for column in tables.RECORDS
    ]
    return pa.Table.from_arrays(arrays, names=_names("records"))


def _topic(sets: RecordSets, number: int) -> str | None:
    """The name of a set's topic, by its id if need be and some message has told."""
    if sets.topic[number] != NULL:
        return sets.strings[int(sets.topic[number])]
    if sets.topic_id[number] != NULL:
        return sets.topic_name(sets.strings[int(sets.topic_id[number])])
    return None


def _names(table: str) -> list[str]:
    return [column.name for column in tables.TABLES[table]]


def _not_negative(values: np.ndarray) -> np.ndarray:
    """-1 is Kafka's "none"."""
    return np.where(values < 0, NULL, values)


def _millis(values: np.ndarray) -> pa.Array:
    """Times of Kafka, in ms; -1 is none."""
    fine = (values >= FIRST_MS) & (values <= LAST_MS) & (values != -1)
    micros = pa.array(np.where(fine, values, 0) * 1000, pa.int64(), mask=None if fine.all() else ~fine)
    return micros.cast(tables.TIME)


def _booleans(values: np.ndarray, known: np.ndarray) -> pa.Array:
    return pa.array(values, mask=None if known.all() else ~known)


def _reasons(table: np.ndarray) -> pa.Array:
    """Sentences for the few rows that have something to say."""
    odd = np.flatnonzero(table[b.B_REASON] != b.REASON_NONE)
    pairs, where = np.unique(table[b.B_REASON : b.B_REASON_A + 1, odd], axis=1, return_inverse=True)
    numbers = np.full(table.shape[1], NULL, np.int64)
    numbers[odd] = where.reshape(-1)
    return _dictionary(numbers, [b.reason(code, number) for code, number in pairs.T.tolist()])


def _control_types(types: np.ndarray) -> pa.Array:
    if (types == NULL).all():
        return pa.nulls(len(types), pa.string())
    from analyzer.records import CONTROL_TYPES

    distinct = np.unique(types[types != NULL])
    names = [CONTROL_TYPES[n] if 0 <= n < len(CONTROL_TYPES) else str(n) for n in distinct.tolist()]
    return _dictionary(np.where(types == NULL, NULL, np.searchsorted(distinct, types)), names)
