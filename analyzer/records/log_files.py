"""Kafka's own files on disk: log segments, and the small files beside them.

In: a `.log` segment (any magic) or a KRaft snapshot (`.checkpoint`). Out: batches window by window, read as Kafka's
recovery reads (LogSegment.recover): up to the first batch whose size or checksum is wrong; what is behind is told
apart, in bytes.

`.index`, `.timeindex`, `.txnindex` and producer `.snapshot` files are small: `entries` reads them whole.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.records import batches as b
from kwire.analyzer.records import checksums
from kwire.analyzer.records.batches import Batches, batches
from kwire.analyzer.records.log_names import LogError, beside_kind
from kwire.captures.crc32c_sums import crc32c
from kwire.captures.kernels import NULL

WINDOW_BYTES: Final = 16 << 20


class Damage(NamedTuple):
    """Where recovery stops: `at` the byte, `offset` the base offset that stands there (None: not even that), `reason`
    what is wrong there, `left` how many bytes are there and behind."""

    at: int
    offset: int | None
    reason: str
    left: int

    def __str__(self) -> str:
        where = f"byte {self.at}" + (f" (offset {self.offset})" if self.offset is not None else "")
        return f"{where}: {self.reason}; {self.left} bytes from there on are not read"


class SegmentPart(NamedTuple):
    """Some batches of a segment: good ones, and, where recovery stops there, the bad one as last row. `at` is where in
    the file `batches.heap` begins."""

    batches: Batches
    at: int
    damage: Damage | None


def read(path: Path, window_bytes: int = WINDOW_BYTES) -> Iterator[SegmentPart]:
    """The batches of a segment, window by window, their checksums checked. A heap is valid until the next part.
    Raises LogError."""
    try:
        with open(path, "rb") as file:
            yield from _parts(file, os.fstat(file.fileno()).st_size, window_bytes)
    except OSError as failure:
        raise LogError(f"{path}: {failure.strerror}", "check the name and its permissions") from None


def _parts(file: Any, size: int, window_bytes: int) -> Iterator[SegmentPart]:
    heap = np.empty(min(window_bytes, size), np.uint8)
    at = 0
    while at < size:
        file.seek(at)
        have = file.readinto(heap)
        if not have:
            return
        opened = batches(heap, np.zeros(1, np.int64), np.full(1, have, np.int64))
        last = opened.table[:, -1]
        whole = len(opened)
        if last[b.B_STATE] == b.PARTIAL and at + have < size:
            need = int(last[b.B_SIZE]) if last[b.B_SIZE] != NULL else 2 * len(heap)
            if whole > 1:
                whole -= 1
            elif need <= size - at:  # larger than the window; else it says more than there is
                heap = np.empty(need, np.uint8)
                continue
        opened = Batches(opened.table[:, :whole], heap)
        checksums.check(opened.table, heap)
        bad = np.flatnonzero(
            (opened.table[b.B_STATE] != b.WHOLE) & (opened.table[b.B_REASON] != b.REASON_CODEC)
            | (opened.table[b.B_CRC_OK] == 0)
        )
        if len(bad):
            stop = int(bad[0])
            table = opened.table[:, : stop + 1].copy()
            where = at + int(table[b.B_AT, stop])
            damage = Damage(where, _known(table[b.B_OFFSET, stop]), _why(table[:, stop], heap[:have]), size - where)
            # The bad one's records are not to be believed; nothing behind it is.
            table[b.B_STATE, stop] = b.BROKEN if table[b.B_STATE, stop] == b.WHOLE else table[b.B_STATE, stop]
            yield SegmentPart(Batches(table, heap), at, damage)
            return
        yield SegmentPart(opened, at, None)
        at += int(opened.table[b.B_AT, -1] + opened.table[b.B_LENGTH, -1])


def _known(value: Any) -> int | None:
    return None if value == NULL else int(value)


def _why(row: np.ndarray, heap: np.ndarray) -> str:
    at = int(row[b.B_AT])
    if not heap[at:].any():
        return "zeros, as a broker preallocates"
    if row[b.B_STATE] == b.PARTIAL:
        size = f" of {row[b.B_SIZE]}" if row[b.B_SIZE] != NULL else ""
        return f"the batch ends after {row[b.B_LENGTH]}{size} bytes"
    if row[b.B_CRC_OK] == 0:
        return "the checksum is wrong"
    return b.reason(int(row[b.B_REASON]), int(row[b.B_REASON_A])) or "not a batch"


# --- the files beside -------------------------------------------------------------------------------------------------


class Entries(NamedTuple):
    """A small file's rows: `names` of the columns, `rows`, and `notes`: what a reader should know (bytes left over, a
    wrong checksum)."""

    kind: str
    names: tuple[str, ...]
    rows: Sequence[tuple[int, ...]]
    notes: tuple[str, ...] = ()


_ENTRY: Final = {
    # OffsetIndex, TimeIndex: offsets are relative to the base offset in the file's name.
    "index": (">ii", ("offset", "position")),
    "timeindex": (">qi", ("timestamp", "offset")),
    # TransactionIndex (AbortedTxn): one aborted transaction each
    "txnindex": (">hqqqq", ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")),
}
_PRODUCER: Final = ">qhiqiqiq"  # ProducerStateManager's snapshot, version 1, for each producer
_PRODUCER_NAMES: Final = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_offset",
    "offset_delta",
    "timestamp",
    "coordinator_epoch",
    "current_txn_first_offset",
)


def entries(path: Path) -> Entries:
    """Read an index or a producer snapshot. Raises LogError."""
    kind = beside_kind(path)
    if kind is None:
        raise LogError(f"{path}: not named as Kafka names its files", "a name like 00000000000000000000.index")
    try:
        data = path.read_bytes()
    except OSError as failure:
        raise LogError(f"{path}: {failure.strerror}", "check the name and its permissions") from None
    return _snapshot(data) if kind == "snapshot" else _index(kind, data, int(path.name[:20]))


def _index(kind: str, data: bytes, base: int) -> Entries:
    layout, names = _ENTRY[kind]
    size = struct.calcsize(layout)
    rows = list(struct.iter_unpack(layout, data[: len(data) // size * size]))
    notes = []
    if len(data) % size:
        notes.append(f"{len(data) % size} bytes behind the last entry")
    if kind != "txnindex":
        # A broker that was killed leaves the file at its preallocated size: zeros behind what it wrote.
        written = len(rows)
        while written and not any(rows[written - 1]):
            written -= 1
        if written < len(rows):
            notes.append(f"{len(rows) - written} empty entries behind, as a broker preallocates")
        rows = rows[:written]
        at = names.index("offset")
        rows = [(*row[:at], row[at] + base, *row[at + 1 :]) for row in rows]
    return Entries(kind, names, rows, tuple(notes))


def _snapshot(data: bytes) -> Entries:
    """int16 version, uint32 CRC32C of what follows, int32 count, producers."""
    if len(data) < 10:
        return Entries("snapshot", _PRODUCER_NAMES, [], (f"{len(data)} bytes are no snapshot",))
    version, stored, count = struct.unpack_from(">hIi", data)
    notes = []
    if version != 1:
        return Entries("snapshot", _PRODUCER_NAMES, [], (f"version {version} is not known",))
    if crc32c(data[6:]) != stored:
        notes.append("the checksum is wrong")
    size = struct.calcsize(_PRODUCER)
    there = max(min(count, (len(data) - 10) // size), 0)
    rows = list(struct.iter_unpack(_PRODUCER, data[10 : 10 + there * size]))
    if 10 + count * size != len(data):
        notes.append(f"{len(data)} bytes are not those of {count} producers")
    return Entries("snapshot", _PRODUCER_NAMES, rows, tuple(notes))
