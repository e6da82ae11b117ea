"""Checksums of batches: CRC32C of magic 2 (KIP-98), CRC32 of the messages before.

In: `Batches`. Out: their column B_CRC_OK. Small batches are checked by a kernel, all in one call; for large ones the
libraries are faster (`crc32c` uses the processor's own instruction), at a third of a microsecond a call.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from kwire.analyzer.records.batches import (
    B_AT,
    B_CRC,
    B_CRC_OK,
    B_LENGTH,
    B_MAGIC,
    B_STATE,
    CRC_FROM_OLD,
    CRC_FROM_V2,
    PARTIAL,
    view,
)
from kwire.captures.crc32c_sums import crc32c
from kwire.captures.kernels import Array, Bytes, Int, Table, inline, kernel

CASTAGNOLI: Final = 0x82F63B78
IEEE: Final = 0xEDB88320
SMALL_BYTES: Final = 1024
"""Batches up to this size are checked by the kernel: there it is as fast as a call of the library (measured)."""


def _tables(polynomial: int) -> np.ndarray:
    """uint32[8, 256]: the checksum of each byte, followed by 0 to 7 zero bytes ("slicing by 8")."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(polynomial), table >> 1).astype(np.uint32)
    rows = [table]
    for _ in range(7):
        last = rows[-1]
        rows.append((last >> 8) ^ table[last & 0xFF])
    return np.ascontiguousarray(np.stack(rows))


CRC32C_TABLES: Final = _tables(CASTAGNOLI)
CRC32_TABLES: Final = _tables(IEEE)


@inline
def crc(tables: Array, heap: Bytes, start: Int, stop: Int) -> Int:
    """The checksum of heap[start:stop], eight bytes a step."""
    crc = np.uint32(0xFFFFFFFF)
    at = np.uint64(start)
    end = np.uint64(stop)
    eight = np.uint64(8)
    while at + eight <= end:
        low = crc ^ (
            np.uint32(heap[at])
            | (np.uint32(heap[at + np.uint64(1)]) << np.uint32(8))
            | (np.uint32(heap[at + np.uint64(2)]) << np.uint32(16))
            | (np.uint32(heap[at + np.uint64(3)]) << np.uint32(24))
        )
        crc = (
            tables[7, low & np.uint32(0xFF)]
            ^ tables[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, np.uint32(heap[at + np.uint64(4)])]
            ^ tables[2, np.uint32(heap[at + np.uint64(5)])]
            ^ tables[1, np.uint32(heap[at + np.uint64(6)])]
            ^ tables[0, np.uint32(heap[at + np.uint64(7)])]
        )
        at += eight
    while at < end:
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ np.uint32(heap[at])) & np.uint32(0xFF)]
        at += np.uint64(1)
    return crc ^ np.uint32(0xFFFFFFFF)


@kernel
def checksum(tables: Array, heap: Bytes, start: Int, stop: Int) -> Int:
    """The checksum of heap[start:stop] with one polynomial's tables."""
    return np.int64(crc(tables, heap, start, stop))


@kernel
def check_small(
    heap: Bytes,
    magic: Table,
    state: Table,
    at: Table,
    length: Table,
    stored: Table,
    ok: Table,
    large: Table,
    castagnoli: Array,
    ieee: Array,
    limit: Int,
) -> Int:
    """Fill `ok` for whole batches of up to `limit` bytes; the numbers of larger ones go to `large`, whose count comes
    back. Batches that are not whole, or have no checksum where one is looked for, keep what `ok` holds."""
    many = np.int64(0)
    for i in range(len(at)):
        if state[i] == PARTIAL or magic[i] < 0 or magic[i] > 2 or length[i] < CRC_FROM_V2:
            continue
        if length[i] > limit:
            large[many] = i
            many += 1
        elif magic[i] == 2:
            ok[i] = np.int64(crc(castagnoli, heap, at[i] + CRC_FROM_V2, at[i] + length[i])) == stored[i]
        else:
            ok[i] = np.int64(crc(ieee, heap, at[i] + CRC_FROM_OLD, at[i] + length[i])) == stored[i]
    return many


def check(table: np.ndarray, heap: np.ndarray, first: int = 0, stop: int | None = None) -> None:
    """Fill B_CRC_OK of batches first .. stop - 1 of a table. Holds the GIL only between large batches."""
    table = table[:, first:stop]
    large = np.empty(table.shape[1], np.int64)
    many = check_small(
        heap,
        table[B_MAGIC],
        table[B_STATE],
        table[B_AT],
        table[B_LENGTH],
        table[B_CRC],
        table[B_CRC_OK],
        large,
        CRC32C_TABLES,
        CRC32_TABLES,
        SMALL_BYTES,
    )
    data = view(heap)
    where = large[:many]
    magics, ats, lengths = table[B_MAGIC, where], table[B_AT, where], table[B_LENGTH, where]
    partitions = [
        crc32c(data[at + CRC_FROM_V2 : at + length])
        if magic == 2
        else zlib.crc32(data[at + CRC_FROM_OLD : at + length])
        for magic, at, length in zip(magics.tolist(), ats.tolist(), lengths.tolist(), strict=True)
    ]
    table[B_CRC_OK, where] = table[B_CRC, where] == np.array(partitions, np.int64)
