"""Record sets -> one row a batch, with the headers of record batches and old messages.

In: the bytes of records fields (of Produce, Fetch, ShareFetch, or a log segment), each a *record set*: batches of magic
2 (KIP-98) and messages of magic 0 and 1 (KIP-31, KIP-32), one after another, in any mixture. Out: a table of integers,
one column a row of `Batches.table`, in order. A set is never refused: bytes that cannot be a batch become a row with a
reason, and reading continues behind it if its size is plausible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.frame.buffer_pool import BufferPool
from kwire.analyzer.protocol.record_batches import HEADER_ALONE, HEADER_V2
from kwire.captures.kernels import NULL, Bytes, Flag, Int, Table, inline, kernel

(
    B_SET,  # which record set
    B_AT,  # where the batch starts
    B_LENGTH,  # bytes of it that are there
    B_SIZE,  # bytes that it says it has, the 12 of offset and size included
    B_STATE,  # WHOLE, PARTIAL, BROKEN
    B_REASON,  # REASON_NONE, or what is wrong
    B_REASON_A,  # a number that goes with it
    B_OFFSET,  # base offset; magic 0 and 1: the message's
    B_MAGIC,
    B_ATTRIBUTES,
    B_CRC,  # as stored
    B_CRC_OK,  # 1 right, 0 wrong, NULL not known (not whole)
    B_LAST_DELTA,
    B_FIRST_TIMESTAMP,  # ms
    B_LAST_TIMESTAMP,  # ms
    B_DELETE_HORIZON,  # ms
    B_PRODUCER_ID,
    B_PRODUCER_EPOCH,
    B_BASE_SEQUENCE,
    B_LEADER_EPOCH,
    B_COUNT,  # records; magic 0 and 1: 1, or NULL for a compressed one until it is opened
    B_RECORDS_AT,  # where the records start: magic 2 behind the header, else the value of the message
    B_RECORDS_LENGTH,
    B_UNCOMPRESSED,  # bytes of the records when decompressed, NULL until they are
    B_COLUMNS,
) = range(25)

WHOLE, PARTIAL, BROKEN = 0, 1, 2
(
    REASON_NONE,
    REASON_NOT_CAPTURED,  # it is a header alone: A bytes of its records are not in the capture
    REASON_SIZE,  # the size field says A, less than any batch has
    REASON_MAGIC,  # magic A
    REASON_HEADER,  # A bytes are fewer than the header has
    REASON_COUNT,  # says A records
    REASON_CODEC,  # codec number A
    REASON_FIELD,  # key or value at byte A reach beyond the message
    REASON_RECORD,  # record A is not what it should be
    REASON_LEFT,  # A bytes behind the last record
    REASON_DATA,  # the compressed bytes are not of their codec
    REASON_BOMB,  # decompresses to more than is allowed
    REASON_DEPTH,  # compressed more than A times over
    REASON_INNER_CRC,  # the checksum of message A inside is wrong
    REASON_NOT_KEPT,  # its exchange ended too late for its bytes to be kept
) = range(15)

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK: Final = 7
LOG_APPEND_TIME: Final = 1 << 3
TRANSACTIONAL: Final = 1 << 4
CONTROL: Final = 1 << 5
DELETE_HORIZON: Final = 1 << 6  # KIP-534: the base timestamp field holds the delete horizon

ENTRY_HEADER: Final = 12  # offset and size, the same for all magics
SMALLEST: Final = 14  # bytes behind them: a message of magic 0 with neither key nor value
SMALLEST_V1: Final = 22
CRC_FROM_V2: Final = 21  # CRC32C of everything from the attributes on
CRC_FROM_OLD: Final = 16  # CRC32 of everything from the magic on

DECOMPRESSED_LIMIT: Final = 256 << 20
"""Bytes that one batch may become. Kafka's own batches stay under `message.max.bytes`, 1 MiB unless raised."""
RATIO_LIMIT: Final = 1000
"""How many times larger a batch may become: gzip can do 1032, real records hardly 100. Small ones are let through."""
RATIO_FREE: Final = 1 << 20
"""Bytes that are allowed whatever the ratio: a megabyte of zeros is an ordinary test message."""
BOMB: Final = "the records decompress to more than is allowed"
SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers."""
RECORD_RATIO: Final = 125
"""Eight records a compressed byte are allowed: the smallest records, which differ in their offsets alone, have hardly
one, and a row of a table costs more than its decompressed bytes."""

# The walk's own state: where it goes on after the table was grown.
W_SET, W_AT, W_ROWS, W_COLUMNS = range(4)


@inline
def int16_at(b: Bytes, at: Int) -> Int:
    return np.int64(np.int16((np.int64(b[at]) << 8) | np.int64(b[at + 1])))


@inline
def int32_at(b: Bytes, at: Int) -> Int:
    value = (np.int64(b[at]) << 24) | (np.int64(b[at + 1]) << 16) | (np.int64(b[at + 2]) << 8) | np.int64(b[at + 3])
    return value - ((value >> 31) << 32)


@inline
def int64_at(b: Bytes, at: Int) -> Int:
    high = int32_at(b, at)
    low = int32_at(b, at + 4) & np.int64(0xFFFFFFFF)
    return (high << 32) | low


@inline
def _old_message(heap: Bytes, at: Int, have: Int, magic: Int, out: Table, row: Int) -> None:
    """A whole message of magic 0 or 1 (KIP-32 adds the timestamp): crc, magic, attributes, [timestamp], key, value."""
    attributes = np.int64(heap[at + 17])
    out[B_ATTRIBUTES, row] = attributes
    fields = at + 18
    end = at + have
    if magic == 1:
        if have < ENTRY_HEADER + SMALLEST_V1:
            out[B_STATE, row] = BROKEN
            out[B_REASON, row] = REASON_HEADER
            out[B_REASON_A, row] = have
            return
        timestamp = int64_at(heap, fields)
        out[B_LAST_TIMESTAMP, row] = timestamp
        if attributes & CODEC_MASK == NONE:
            out[B_FIRST_TIMESTAMP, row] = timestamp
        fields += 8
    key = int32_at(heap, fields)
    value_at = fields + 4 + max(key, np.int64(0))
    if key < -1 or value_at + 4 > end:
        out[B_STATE, row] = BROKEN
        out[B_REASON, row] = REASON_FIELD
        out[B_REASON_A, row] = fields - at
        return
    value = int32_at(heap, value_at)
    if value < -1 or value_at + 4 + value > end:
        out[B_STATE, row] = BROKEN
        out[B_REASON, row] = REASON_FIELD
        out[B_REASON_A, row] = value_at - at
        return
    if attributes & CODEC_MASK == NONE:
        # One message, one record: its fields are read where they lie.
        out[B_COUNT, row] = 1
        out[B_RECORDS_AT, row] = fields
        out[B_RECORDS_LENGTH, row] = end - fields
    else:
        out[B_RECORDS_AT, row] = value_at + 4
        out[B_RECORDS_LENGTH, row] = max(value, np.int64(0))


@inline
def _header_v2(heap: Bytes, at: Int, out: Table, row: Int) -> None:
    """The fixed header of magic 2."""
    attributes = int16_at(heap, at + 21)
    base = int64_at(heap, at + 27)
    out[B_LEADER_EPOCH, row] = int32_at(heap, at + 12)
    out[B_CRC, row] = int32_at(heap, at + 17) & np.int64(0xFFFFFFFF)
    out[B_ATTRIBUTES, row] = attributes
    out[B_LAST_DELTA, row] = int32_at(heap, at + 23)
    if attributes & DELETE_HORIZON:
        out[B_DELETE_HORIZON, row] = base
    else:
        out[B_FIRST_TIMESTAMP, row] = base
    out[B_LAST_TIMESTAMP, row] = int64_at(heap, at + 35)
    out[B_PRODUCER_ID, row] = int64_at(heap, at + 43)
    out[B_PRODUCER_EPOCH, row] = int16_at(heap, at + 51)
    out[B_BASE_SEQUENCE, row] = int32_at(heap, at + 53)
    out[B_COUNT, row] = int32_at(heap, at + 57)


@inline
def _entry(heap: Bytes, at: Int, left: Int, bridged: Flag, out: Table, row: Int) -> Int:
    """Write the row of what starts at `at`, of which at most `left` bytes are there; `bridged`: it may be a
    HEADER_ALONE. Returns how far to go on, 0: nothing behind it can be found."""
    for column in range(B_COLUMNS):
        out[column, row] = NULL
    out[B_AT, row] = at
    out[B_LENGTH, row] = left
    out[B_STATE, row] = PARTIAL
    out[B_REASON, row] = REASON_NONE
    if left >= 8:
        out[B_OFFSET, row] = int64_at(heap, at)
    if left < ENTRY_HEADER:
        return np.int64(0)
    size = int32_at(heap, at + 8)
    if size < SMALLEST:
        out[B_STATE, row] = BROKEN
        out[B_REASON, row] = REASON_SIZE
        out[B_REASON_A, row] = size
        return np.int64(0)
    total = size + ENTRY_HEADER
    out[B_SIZE, row] = total
    if bridged and left >= HEADER_V2 and heap[at + 16] == HEADER_ALONE:
        out[B_LENGTH, row] = HEADER_V2
        out[B_MAGIC, row] = 2
        out[B_REASON, row] = REASON_NOT_CAPTURED
        out[B_REASON_A, row] = total - HEADER_V2
        _header_v2(heap, at, out, row)
        return np.int64(HEADER_V2)
    whole = total <= left
    magic = np.int64(-1)
    if left > 16:
        magic = np.int64(np.int8(heap[at + 16]))
        out[B_MAGIC, row] = magic
    if not whole:
        if magic == 2 and left >= HEADER_V2:
            _header_v2(heap, at, out, row)
        elif (magic == 0 or magic == 1) and left > 17:
            out[B_ATTRIBUTES, row] = np.int64(heap[at + 17])
        return np.int64(0)
    out[B_LENGTH, row] = total
    out[B_STATE, row] = WHOLE
    if magic == 2:
        if total < HEADER_V2:
            out[B_STATE, row] = BROKEN
            out[B_REASON, row] = REASON_HEADER
            out[B_REASON_A, row] = total
            return total
        _header_v2(heap, at, out, row)
        out[B_RECORDS_AT, row] = at + HEADER_V2
        out[B_RECORDS_LENGTH, row] = total - HEADER_V2
        if out[B_COUNT, row] < 0:
            out[B_STATE, row] = BROKEN
            out[B_REASON, row] = REASON_COUNT
            out[B_REASON_A, row] = out[B_COUNT, row]
            out[B_COUNT, row] = NULL
    elif magic == 0 or magic == 1:
        out[B_CRC, row] = int32_at(heap, at + 12) & np.int64(0xFFFFFFFF)
        _old_message(heap, at, total, magic, out, row)
    else:
        out[B_STATE, row] = BROKEN
        out[B_REASON, row] = REASON_MAGIC
        out[B_REASON_A, row] = magic
    if out[B_STATE, row] == WHOLE and out[B_ATTRIBUTES, row] & CODEC_MASK > ZSTD:
        out[B_STATE, row] = BROKEN
        out[B_REASON, row] = REASON_CODEC
        out[B_REASON_A, row] = out[B_ATTRIBUTES, row] & CODEC_MASK
    return total


@kernel
def walk(heap: Bytes, at: Table, length: Table, bridged: Table, out: Table, walked: Table) -> Flag:
    """Walk record sets. at, length, bridged: int64[n], where each lies in `heap`, its bytes, and 1 if batches in it may
    be HEADER_ALONE. out: int64[B_COLUMNS, capacity]; walked: int64[W_COLUMNS], zeros to begin with.
    False: `out` is full; call again with a larger one that keeps the rows so far."""
    capacity = out.shape[1]
    row = walked[W_ROWS]
    while walked[W_SET] < len(at):
        which = walked[W_SET]
        have = min(length[which], np.int64(len(heap)) - at[which])
        done = walked[W_AT]
        while done < have:
            if row >= capacity:
                walked[W_AT] = done
                walked[W_ROWS] = row
                return False
            step = _entry(heap, at[which] + done, have - done, bridged[which] != 0, out, row)
            out[B_SET, row] = which
            row += 1
            done = done + step if step > 0 else have
        walked[W_AT] = 0
        walked[W_SET] = which + 1
    walked[W_ROWS] = row
    return True


class BatchLimits(NamedTuple):
    """Limits of one batch's decompressed size: `bytes` in all, and `ratio` times its compressed size.

    has_record_limit    its records are limited too; not where callers stop after some of them
    """

    bytes: int = DECOMPRESSED_LIMIT
    ratio: int = RATIO_LIMIT
    has_record_limit: bool = True

    def allowed(self, compressed: int) -> int:
        """Bytes that so many compressed ones may become."""
        return min(self.bytes, max(compressed * self.ratio, RATIO_FREE))

    def has_too_many(self, records: Any, compressed: Any) -> Any:
        """Whether batches, int64[n] or one, say that they have more records than may be in so many compressed bytes."""
        most = np.maximum(compressed * (self.ratio // RECORD_RATIO), RATIO_FREE // SMALLEST_RECORD)
        return (records > most) & self.has_record_limit


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of some record sets: `table` int64[B_COLUMNS, n], whose places are in `heap` uint8[:]."""

    table: np.ndarray
    heap: np.ndarray

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def where(self, mask: np.ndarray) -> Batches:
        """The rows that a mask lets through."""
        return self if mask.all() else Batches(self.table[:, mask], self.heap)


def batches(
    heap: np.ndarray,
    at: np.ndarray,
    length: np.ndarray,
    bridged: np.ndarray | None = None,
    buffers: BufferPool | None = None,
) -> Batches:
    """The batches of record sets: `at`, `length` and `bridged` int64[n] as for `walk`; `bridged` None: of none a header
    alone. `buffers`: where memory of earlier tables is used again."""
    at, length = np.ascontiguousarray(at, np.int64), np.ascontiguousarray(length, np.int64)
    bridged = np.zeros(len(at), np.int64) if bridged is None else np.ascontiguousarray(bridged, np.int64)
    walked = np.zeros(W_COLUMNS, np.int64)
    rows = len(at) + len(at) // 8 + 64
    table = np.empty((B_COLUMNS, rows), np.int64) if buffers is None else buffers.numbers(B_COLUMNS, rows)
    while not walk(heap, at, length, bridged, table, walked):
        larger = np.empty((B_COLUMNS, 2 * table.shape[1]), np.int64)
        larger[:, : walked[W_ROWS]] = table[:, : walked[W_ROWS]]
        table = larger
    return Batches(table[:, : walked[W_ROWS]], heap)


def view(heap: np.ndarray) -> memoryview:
    """An array of bytes as what the libraries take, not copied."""
    return memoryview(heap)  # type: ignore[arg-type]  # arrays do have the buffer protocol


def codec(table: np.ndarray) -> np.ndarray:
    """Each batch's codec number; NULL where its attributes are not known."""
    attributes = table[B_ATTRIBUTES]
    return np.where(attributes == NULL, NULL, attributes & CODEC_MASK)


def reason(code: int, number: int) -> str | None:
    """Return the error of a batch as a sentence; None if it has none."""
    if code == REASON_NONE:
        return None
    return {
        REASON_NOT_CAPTURED: f"{number} bytes of the records were not captured",
        REASON_SIZE: f"size field {number}: no batch is so small",
        REASON_MAGIC: f"magic {number} is not known",
        REASON_HEADER: f"{number} bytes are fewer than its header has",
        REASON_COUNT: f"record count {number}",
        REASON_CODEC: f"codec {number} is not known",
        REASON_FIELD: f"the field at byte {number} reaches beyond the message",
        REASON_RECORD: f"record {number} cannot be read",
        REASON_LEFT: f"{number} bytes behind the last record",
        REASON_DATA: "the compressed records cannot be decompressed",
        REASON_BOMB: BOMB,
        REASON_DEPTH: f"compressed more than {number} times over",
        REASON_INNER_CRC: f"the checksum of message {number} inside is wrong",
        REASON_NOT_KEPT: "its exchange ended too late: the records were not kept",
    }[code]
