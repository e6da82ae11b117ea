"""Batches opened: records as columns of positions.

In: `Batches`. Out: `RecordRows` of up to `PIECE_ROWS` records, in order: offset, timestamp, and where key, value and
headers lie. Compressed batches are decompressed into a scratch heap that the next piece overwrites; so what is wanted
of a piece is taken before the next one. What turns out wrong on the way is written into the row of the batch.

Magic 2 holds varint records (KIP-98, KIP-82 for headers). Before, a compressed message held a message set: with
absolute offsets (magic 0), or relative ones that the wrapper's offset, the last one's, makes absolute (magic 1,
KIP-31), and with the wrapper's timestamp where the broker set it (KIP-32). Its messages could be compressed ones
again; `_flattened` takes those apart.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from kwire.analyzer.records import codecs, small_blocks
from kwire.analyzer.records.batches import (
    B_ATTRIBUTES,
    B_COUNT,
    B_CRC_OK,
    B_DELETE_HORIZON,
    B_FIRST_TIMESTAMP,
    B_LAST_TIMESTAMP,
    B_MAGIC,
    B_OFFSET,
    B_REASON,
    B_REASON_A,
    B_RECORDS_AT,
    B_RECORDS_LENGTH,
    B_STATE,
    B_UNCOMPRESSED,
    CODEC_MASK,
    CONTROL,
    CRC_FROM_OLD,
    ENTRY_HEADER,
    LOG_APPEND_TIME,
    NONE,
    REASON_BOMB,
    REASON_DATA,
    REASON_DEPTH,
    REASON_INNER_CRC,
    REASON_LEFT,
    REASON_NONE,
    REASON_RECORD,
    SMALLEST,
    WHOLE,
    Batches,
    BatchLimits,
    int16_at,
    int32_at,
    int64_at,
    view,
)
from kwire.analyzer.records.checksums import CRC32_TABLES, crc
from kwire.captures.kernels import NULL, Array, Bytes, Flag, Int, Table, copy_bytes, expect, inline, kernel

(
    R_BATCH,  # row of its batch
    R_OFFSET,
    R_TIMESTAMP,  # ms, NULL where there is none
    R_HEAP,  # 0: places are in the heap of the batches, 1: in the scratch heap
    R_KEY_AT,
    R_KEY_LENGTH,  # NULL: a null key
    R_VALUE_AT,
    R_VALUE_LENGTH,  # NULL: a null value, a tombstone
    R_HEADERS_AT,  # the first header
    R_HEADERS,  # how many
    R_CONTROL,  # type of a control record, else NULL
    R_COLUMNS,
) = range(12)

CONTROL_TYPES: Final = (
    "abort",
    "commit",
    "LeaderChange",
    "SnapshotHeader",
    "SnapshotFooter",
    "KRaftVersion",
    "KRaftVoters",
)
"""Kafka's ControlRecordType, by number."""

PIECE_ROWS: Final = 1 << 16
PIECE_BYTES: Final = 4 << 20
"""Decompressed bytes after which a piece ends, if the batch at hand allows: what is parsed is still in the cache."""
HEADERS_LIMIT: Final = 1 << 20
"""Headers of one record, and those after which a piece ends. Two bytes make one, so a batch could hold 128 million of
them, at 40 bytes each when they are taken apart."""
DEPTH_LIMIT: Final = 4
"""How many times over a message set may be compressed: clients do it once, and each time more multiplies its size."""

# Where the parser is: kept between pieces.
P_BATCH, P_AT, P_RECORD, P_BASE, P_HEADERS, P_COLUMNS = range(6)


@inline
def _varint(b: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """A zigzag varint (or varlong) of b[at:end]: (value, where it ends); where < 0: it does not."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(b[np.uint64(at)])  # an unsigned index: no negative one to mind
    at += 1
    if byte < np.uint64(0x80):
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), at
    raw = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(b[np.uint64(at)])
        at += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@inline
def _record_v2(b: Bytes, at: Int, end: Int, out: Table, row: Int) -> Int:
    """Read one record of magic 2 at `at`; offset and timestamp are left as the deltas that they are. Returns where it
    ends, or -1 where it is not one."""
    size, at = _varint(b, at, end)
    if at < 0 or size < 6 or size > end - at:
        return np.int64(-1)
    stop = at + size
    at += 1  # attributes, unused
    timestamp, at = _varint(b, at, stop)
    if at < 0:
        return np.int64(-1)
    offset, at = _varint(b, at, stop)
    if at < 0:
        return np.int64(-1)
    key, at = _varint(b, at, stop)
    if at < 0 or key > stop - at:
        return np.int64(-1)
    out[R_KEY_AT, row] = at
    out[R_KEY_LENGTH, row] = key if key >= 0 else NULL
    at += max(key, np.int64(0))
    value, at = _varint(b, at, stop)
    if at < 0 or value > stop - at:
        return np.int64(-1)
    out[R_VALUE_AT, row] = at
    out[R_VALUE_LENGTH, row] = value if value >= 0 else NULL
    at += max(value, np.int64(0))
    headers, at = _varint(b, at, stop)
    if at < 0 or headers < 0 or headers > HEADERS_LIMIT:
        return np.int64(-1)
    out[R_HEADERS_AT, row] = at
    out[R_HEADERS, row] = headers
    for _ in range(headers):
        name, at = _varint(b, at, stop)
        if at < 0 or name < 0 or name > stop - at:
            return np.int64(-1)
        at += name
        content, at = _varint(b, at, stop)
        if at < 0 or content > stop - at:
            return np.int64(-1)
        at += max(content, np.int64(0))
    out[R_OFFSET, row] = offset
    out[R_TIMESTAMP, row] = timestamp
    return stop if at == stop else np.int64(-1)


@inline
def _key_value(b: Bytes, at: Int, end: Int, out: Table, row: Int) -> Flag:
    """Key and value of an old message: int32 lengths, -1 null. False: they reach beyond it."""
    if end - at < 8:
        return False
    key = int32_at(b, at)
    if key < -1 or key > end - at - 8:
        return False
    out[R_KEY_AT, row] = at + 4
    out[R_KEY_LENGTH, row] = key if key >= 0 else NULL
    at += 4 + max(key, np.int64(0))
    value = int32_at(b, at)
    if value < -1 or value > end - at - 4:
        return False
    out[R_VALUE_AT, row] = at + 4
    out[R_VALUE_LENGTH, row] = value if value >= 0 else NULL
    out[R_HEADERS_AT, row] = 0
    out[R_HEADERS, row] = 0
    return True


@inline
def _base_of_set(b: Bytes, at: Int, end: Int, wrapper: Int) -> Int:
    """Return the base of the relative offsets of a message set of magic 1.

    The wrapper has the offset of the last message; librdkafka once produced with 0 there.
    """
    last = np.int64(0)
    while end - at >= ENTRY_HEADER + SMALLEST:
        size = int32_at(b, at + 8)
        if size < SMALLEST or size > end - at - ENTRY_HEADER:
            break
        last = int64_at(b, at)
        at += ENTRY_HEADER + size
    return wrapper - last if wrapper != 0 else np.int64(0)


@inline
def _control_type(b: Bytes, at: Int, length: Int) -> Int:
    """A control record's key is int16 version, int16 type."""
    return int16_at(b, at + 2) if length >= 4 else NULL


@inline
def _failed(table: Table, batch: Int, why: Int, number: Int) -> None:
    if table[B_REASON, batch] == REASON_NONE:
        table[B_REASON, batch] = why
        table[B_REASON_A, batch] = number


@inline
def _batch_v2(b: Bytes, start: Int, end: Int, which: Int, table: Table, i: Int, out: Table, row: Int, p: Table) -> Int:
    """Records of one batch of magic 2, from where `p` is; returns the next free row, and sets P_AT to -1 when done."""
    base = table[B_FIRST_TIMESTAMP, i]
    if base == NULL:
        base = table[B_DELETE_HORIZON, i]
    appended = table[B_ATTRIBUTES, i] & LOG_APPEND_TIME != 0
    control = table[B_ATTRIBUTES, i] & CONTROL != 0
    first = table[B_OFFSET, i]
    count = table[B_COUNT, i]
    at = p[P_AT]
    number = p[P_RECORD]
    capacity = out.shape[1]
    while number < count:
        if row >= capacity or p[P_HEADERS] >= HEADERS_LIMIT:
            p[P_AT] = at
            p[P_RECORD] = number
            return row
        after = _record_v2(b, at, end, out, row)
        if after < 0:
            _failed(table, i, REASON_RECORD, number)
            p[P_AT] = -1
            return row
        at = after
        out[R_BATCH, row] = i
        out[R_HEAP, row] = which
        out[R_OFFSET, row] += first
        out[R_TIMESTAMP, row] = table[B_LAST_TIMESTAMP, i] if appended else out[R_TIMESTAMP, row] + base
        out[R_CONTROL, row] = _control_type(b, out[R_KEY_AT, row], out[R_KEY_LENGTH, row]) if control else NULL
        p[P_HEADERS] += out[R_HEADERS, row]
        row += 1
        number += 1
    if at < end:
        _failed(table, i, REASON_LEFT, end - at)
    p[P_AT] = -1
    return row


@inline
def _message_set(
    b: Bytes, start: Int, end: Int, which: Int, table: Table, i: Int, out: Table, row: Int, p: Table, ieee: Array
) -> Int:
    """Messages inside a compressed one; the same way of going on as `_batch_v2`."""
    relative = table[B_MAGIC, i] == 1
    appended = relative and table[B_ATTRIBUTES, i] & LOG_APPEND_TIME != 0
    at = p[P_AT]
    number = p[P_RECORD]
    if number == 0:
        p[P_BASE] = _base_of_set(b, start, end, table[B_OFFSET, i]) if relative else 0
    capacity = out.shape[1]
    while at < end:
        if row >= capacity:
            p[P_AT] = at
            p[P_RECORD] = number
            return row
        size = int32_at(b, at + 8) if end - at >= ENTRY_HEADER + SMALLEST else np.int64(0)
        magic = np.int64(b[at + CRC_FROM_OLD]) if size >= SMALLEST else np.int64(-1)
        fields = at + 26 if magic == 1 else at + 18
        stop = at + ENTRY_HEADER + size
        if magic < 0 or magic > 1 or stop > end or not _key_value(b, fields, stop, out, row):
            _failed(table, i, REASON_RECORD, number)
            break
        if np.int64(crc(ieee, b, at + CRC_FROM_OLD, stop)) != int32_at(b, at + 12) & np.int64(0xFFFFFFFF):
            _failed(table, i, REASON_INNER_CRC, number)
            table[B_CRC_OK, i] = 0
        out[R_BATCH, row] = i
        out[R_HEAP, row] = which
        out[R_OFFSET, row] = int64_at(b, at) + p[P_BASE]
        out[R_TIMESTAMP, row] = (
            table[B_LAST_TIMESTAMP, i] if appended else (int64_at(b, at + 18) if magic == 1 else np.int64(-1))
        )
        out[R_CONTROL, row] = NULL
        row += 1
        number += 1
        at = stop
    table[B_COUNT, i] = number
    p[P_AT] = -1
    return row


@kernel
def parse(
    heap: Bytes, scratch: Bytes, place: Table, first: Int, stop: Int, table: Table, out: Table, p: Table, ieee: Array
) -> Int:
    """Read the records of batches P_BATCH .. stop - 1 of `table` into `out` int64[R_COLUMNS, rows], until it is full.

    place: int64[2, n]: where the bytes of each compressed batch from number `first` on lie in `scratch`, and how many;
    length NULL: not to be read. Returns the rows; `p` says where it is: done when P_BATCH == stop."""
    row = np.int64(0)
    p[P_HEADERS] = 0
    while p[P_BATCH] < stop:
        i = p[P_BATCH]
        if table[B_STATE, i] != WHOLE:
            p[P_BATCH] += 1
            continue
        plain = table[B_ATTRIBUTES, i] & CODEC_MASK == NONE
        which = np.int64(0 if plain else 1)
        start = table[B_RECORDS_AT, i] if plain else place[0, i - first]
        length = table[B_RECORDS_LENGTH, i] if plain else place[1, i - first]
        b = heap if plain else scratch
        if length == NULL:
            p[P_BATCH] += 1
            continue
        if p[P_AT] < 0:
            p[P_AT] = start
            p[P_RECORD] = 0
        if table[B_MAGIC, i] == 2:
            row = _batch_v2(b, start, start + length, which, table, i, out, row, p)
        elif plain:
            if row >= out.shape[1]:
                return row
            if _key_value(b, start, start + length, out, row):
                out[R_BATCH, row] = i
                out[R_HEAP, row] = 0
                out[R_OFFSET, row] = table[B_OFFSET, i]
                out[R_TIMESTAMP, row] = table[B_LAST_TIMESTAMP, i] if table[B_MAGIC, i] == 1 else np.int64(-1)
                out[R_CONTROL, row] = NULL
                row += 1
            p[P_AT] = -1
        else:
            row = _message_set(b, start, start + length, which, table, i, out, row, p, ieee)
        if p[P_AT] >= 0:
            return row
        p[P_BATCH] += 1
    return row


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Some records, in order: `table` int64[R_COLUMNS, n]; their places are in `heaps`, valid until the next piece."""

    table: np.ndarray
    heaps: tuple[np.ndarray, np.ndarray]

    def __len__(self) -> int:
        return int(self.table.shape[1])


class CompressedBatches:
    """Compressed batches of `batches`, by their rows: which are `small`, and, once decompressed, their `place`
    int64[2, n]: where in the scratch heap their bytes lie, and how many (NULL: they cannot be decompressed)."""

    def __init__(self, batches: Batches, rows: np.ndarray) -> None:
        self.batches = batches
        self.rows = rows
        self.small = small_blocks.are_small(batches.table[:, rows])
        self.place = np.full((2, len(rows)), NULL, np.int64)
        # As lists: an element of an array costs as much as decompressing a few hundred bytes.
        self.each_small = self.small.tolist()
        self.each = batches.table[[B_RECORDS_AT, B_RECORDS_LENGTH, B_ATTRIBUTES, B_MAGIC]][:, rows].T.tolist()


class BatchReader:
    """Opens batches, with buffers that are used again. One thread's at a time."""

    def __init__(self, limits: BatchLimits | None = None, rows: int = PIECE_ROWS) -> None:
        self._limits = limits or BatchLimits()
        self._scratch = codecs.Scratch()
        self._out = np.empty((R_COLUMNS, rows), np.int64)

    def open(self, batches: Batches, first: int = 0, stop: int | None = None) -> Iterator[RecordRows]:
        """The records of batches first .. stop - 1. B_UNCOMPRESSED, reasons and the counts of old messages are filled
        in their table."""
        table = batches.table
        last = len(batches) if stop is None else stop
        p = np.zeros(P_COLUMNS, np.int64)
        p[P_BATCH], p[P_AT] = first, -1
        here = slice(first, last)
        whole = table[B_STATE, here] == WHOLE
        plain = table[B_ATTRIBUTES, here] & CODEC_MASK == NONE
        table[B_UNCOMPRESSED, here][whole & plain] = table[B_RECORDS_LENGTH, here][whole & plain]
        known = whole & ~plain & (table[B_RECORDS_LENGTH, here] != NULL)
        crowded = known & self._limits.has_too_many(table[B_COUNT, here], table[B_RECORDS_LENGTH, here])
        table[B_REASON, here][crowded] = REASON_BOMB
        packed = CompressedBatches(batches, np.flatnonzero(known & ~crowded) + first)
        place = np.full((2, last - first), NULL, np.int64)
        done = 0
        while True:
            before, done = done, self.decompress(packed, done)
            place[:, packed.rows[before:done] - first] = packed.place[:, before:done]
            until = int(packed.rows[done]) if done < len(packed.rows) else last
            while p[P_BATCH] < until:
                rows = parse(batches.heap, self._scratch.data, place, first, until, table, self._out, p, CRC32_TABLES)
                if rows:
                    yield RecordRows(self._out[:, :rows], (batches.heap, self._scratch.data))
            if until == last:
                return

    def decompress(self, packed: CompressedBatches, done: int) -> int:
        """Decompress batches from number `done` on, until they fill a piece; the scratch heap then holds no others.
        Returns the number of the first that is left."""
        table, heap, scratch = packed.batches.table, packed.batches.heap, self._scratch
        data = view(heap)
        most = self._limits.allowed(0)
        scratch.used = 0
        while done < len(packed.rows) and scratch.used < PIECE_BYTES:
            if packed.each_small[done]:
                before = done
                done, scratch.used = small_blocks.decompress(
                    heap,
                    table,
                    packed.rows,
                    packed.small,
                    done,
                    most,
                    scratch.data,
                    scratch.used,
                    PIECE_BYTES,
                    packed.place,
                )
                if done > before:
                    continue
            self._decompress(packed, done, data)
            done += 1
        expect(scratch.used)  # a small capture may hold very many records
        return done

    def _decompress(self, packed: CompressedBatches, n: int, data: memoryview) -> None:
        """Decompress batch number `n` of `packed` behind what the scratch heap holds."""
        start, length, attributes, magic = packed.each[n]
        table, i = packed.batches.table, packed.rows[n]
        most = self._limits.allowed(length)
        out, at = self._scratch, self._scratch.used
        try:
            size = codecs.decompress(attributes & CODEC_MASK, data[start : start + length], most, out)
            if magic < 2 and _nested(out.data, at, at + size):
                flat = _flattened(out.data[at : at + size].tobytes(), most, DEPTH_LIMIT)
                out.used = at
                out.append(flat)
                size = len(flat)
        except _NestingError:
            out.used = at
            table[B_REASON, i], table[B_REASON_A, i] = REASON_DEPTH, DEPTH_LIMIT
        except codecs.DecompressedSizeError:
            table[B_REASON, i], table[B_REASON_A, i] = REASON_BOMB, most
        except codecs.CorruptDataError:
            table[B_REASON, i] = REASON_DATA
        else:
            table[B_UNCOMPRESSED, i] = size
            packed.place[0, n], packed.place[1, n] = at, size


class _NestingError(Exception):
    """Compressed in compressed in compressed ..."""


@kernel
def _nested(heap: Bytes, at: Int, end: Int) -> Flag:
    """Whether a message set holds compressed messages."""
    while end - at >= ENTRY_HEADER + SMALLEST:
        size = int32_at(heap, at + 8)
        if size < SMALLEST or size > end - at - ENTRY_HEADER:
            return False
        if heap[at + CRC_FROM_OLD] <= 1 and heap[at + 17] & CODEC_MASK != NONE:
            return True
        at += ENTRY_HEADER + size
    return False


def _flattened(messages: bytes, most: int, depth: int) -> bytes:
    """A message set whose compressed messages are replaced by what they hold, with absolute offsets in magic 1 too.
    Rare (clients of 0.8), so in plain Python. Raises as `codecs.decompress`, and _NestingError."""
    if depth <= 1:
        raise _NestingError
    flat = bytearray()
    at = 0
    while len(messages) - at >= ENTRY_HEADER + SMALLEST:
        offset, size = struct.unpack_from(">qi", messages, at)
        stop = at + ENTRY_HEADER + size
        if size < SMALLEST or stop > len(messages):
            break
        magic, attributes = messages[at + CRC_FROM_OLD], messages[at + 17]
        if magic > 1 or not attributes & CODEC_MASK:
            flat += messages[at:stop]
        else:
            flat += _inner(messages[at:stop], offset, magic, attributes, most - len(flat), depth)
        at = stop
        if len(flat) > most:
            raise codecs.DecompressedSizeError
    return bytes(flat) + messages[at:]


def _inner(message: bytes, offset: int, magic: int, attributes: int, most: int, depth: int) -> bytes:
    """The message set in one compressed message."""
    field = 18 + 8 * magic
    key = int.from_bytes(message[field : field + 4], "big", signed=True)
    field += 4 + max(key, 0)
    length = int.from_bytes(message[field : field + 4], "big", signed=True)
    packed = message[field + 4 : field + 4 + max(length, 0)]
    scratch = codecs.Scratch()
    size = codecs.decompress(attributes & CODEC_MASK, memoryview(packed), most, scratch)
    inner = scratch.data[:size].tobytes()
    if _nested(scratch.data, 0, size):
        inner = _flattened(inner, most, depth - 1)
    if magic == 0:
        return inner
    shifted = bytearray(inner)
    starts, at = [], 0
    while len(inner) - at >= ENTRY_HEADER + SMALLEST:
        size = int.from_bytes(inner[at + 8 : at + 12], "big", signed=True)
        if size < SMALLEST or at + ENTRY_HEADER + size > len(inner):
            break
        starts.append(at)
        at += ENTRY_HEADER + size
    last = struct.unpack_from(">q", inner, starts[-1])[0] if starts else 0
    for start in starts:
        relative = struct.unpack_from(">q", inner, start)[0]
        struct.pack_into(">q", shifted, start, (offset - last + relative) & 0x7FFFFFFFFFFFFFFF)
    return bytes(shifted)


@kernel
def collect(heap: Bytes, at: Table, length: Table, into: Bytes, start: Table) -> None:
    """into[start[i]:] = heap[at[i]:at[i] + length[i]], for each i."""
    for i in range(len(at)):
        copy_bytes(into, start[i], heap, at[i], length[i])


@kernel
def gather(heap: Bytes, scratch: Bytes, which: Table, at: Table, length: Table, offsets: Table, out: Bytes) -> None:
    """Copy the bytes of keys or values one behind the other: out[offsets[i]:offsets[i + 1]]; nulls have none."""
    for i in range(len(at)):
        if length[i] > 0:
            if which[i] == 0:
                copy_bytes(out, offsets[i], heap, at[i], length[i])
            else:
                copy_bytes(out, offsets[i], scratch, at[i], length[i])


@kernel
def headers_of(heap: Bytes, scratch: Bytes, which: Table, at: Table, count: Table, out: Table) -> None:
    """Where the names and values of headers lie: out int64[5, sum of count]: heap, name at, name length, value at,
    value length (NULL: null). The records have been read before, so no bound is crossed."""
    row = np.int64(0)
    for i in range(len(at)):
        b = heap if which[i] == 0 else scratch
        here = at[i]
        end = np.int64(len(b))
        for _ in range(count[i]):
            name, here = _varint(b, here, end)
            out[0, row] = which[i]
            out[1, row] = here
            out[2, row] = name
            here += name
            value, here = _varint(b, here, end)
            out[3, row] = here
            out[4, row] = value if value >= 0 else NULL
            here += max(value, np.int64(0))
            row += 1
