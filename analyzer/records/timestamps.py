"""Number and age of the records of a record set, by the headers of its batches alone.

In: record sets, where they lie. Out: a column of numbers each. Nothing is opened and no checksum computed: bytes that
are no batch of magic 2 (KIP-98), and all behind them, have no age here, because only their content has it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.protocol.record_batches import HEADER_V2
from kwire.analyzer.records.batches import ENTRY_HEADER, int32_at, int64_at
from kwire.captures.kernels import NULL, Bytes, Flag, Int, Table, inline, kernel

(
    A_RECORDS,
    A_BYTES,  # of the batches, headers included
    A_OLDEST,  # ms, NULL: none has a time
    A_NEWEST,
    A_CHECKSUM,  # of the first batch, as it stands there; NULL where anything in the set is no batch
    A_COLUMNS,
) = range(6)

_SMALLEST: Final = 17
"""Bytes up to the magic, which decides the format of the others."""


@inline
def _note(time: Int, out: Table, row: Int) -> None:
    if time >= 0:
        if out[A_OLDEST, row] == NULL or time < out[A_OLDEST, row]:
            out[A_OLDEST, row] = time
        out[A_NEWEST, row] = max(out[A_NEWEST, row], time)


@kernel
def look(heap: Bytes, at: Table, length: Table, headers: Flag, out: Table) -> None:
    """Fill `out` int64[A_COLUMNS, n] for the sets at heap[at[i] : at[i] + length[i]]; what is cut off at the end of a
    set is left out. `headers`: they are the headers of sets alone
    (`kwire.analyzer.bulk.engine.Settings.record_headers`)."""
    for row in range(min(len(at), len(length), out.shape[1])):
        out[A_RECORDS, row] = 0
        out[A_BYTES, row] = 0
        out[A_OLDEST, row] = NULL
        out[A_NEWEST, row] = NULL
        out[A_CHECKSUM, row] = NULL
        here = max(at[row], np.int64(0))
        end = min(at[row] + length[row], np.int64(len(heap)))
        while end - here >= _SMALLEST:
            size = ENTRY_HEADER + int32_at(heap, here + 8)
            if heap[here + 16] != 2 or size < HEADER_V2:
                out[A_CHECKSUM, row] = NULL
                break
            step = np.int64(HEADER_V2) if headers else size
            if step > end - here:
                break
            if out[A_BYTES, row] == 0:
                out[A_CHECKSUM, row] = int32_at(heap, here + 17) & np.int64(0xFFFFFFFF)
            out[A_RECORDS, row] += max(int32_at(heap, here + 57), np.int64(0))
            out[A_BYTES, row] += size
            _note(int64_at(heap, here + 27), out, row)
            _note(int64_at(heap, here + 35), out, row)
            here += step
