"""Counts and quantiles of columns of many rows, block by block.

In: arrays of codes or numbers. Out: arrays with a value for each code, or quantiles. A block fits a processor's cache;
between two blocks a computation that nobody waits for any more ends (`spill.cancellable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from kwire.analyzer.frame import spill

CACHE_BLOCK: Final = 1 << 17
"""Rows of a block that fits a processor's cache."""

_FEW: Final = 3
"""Up to so many codes are compared one by one; more are looked up."""


def blocks(rows: int, least: int = 0) -> Iterator[slice]:
    """Slices of `CACHE_BLOCK` rows, of `least` at least, that cover `rows`. Raises Cancelled."""
    return spill.blocks(rows, max(least, CACHE_BLOCK))


def select_codes(selected: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """bool[n]: whether the code of each row is selected (bool[values]); -1, null, never is."""
    true = np.flatnonzero(selected).tolist()
    if not true:
        return np.zeros(len(codes), np.bool_)
    if len(true) <= _FEW:
        result = codes == true[0]
        for code in true[1:]:
            result |= codes == code
        return np.asarray(result)
    false = np.flatnonzero(~selected).tolist()
    if len(false) <= _FEW:
        result = codes >= 0
        for code in false:
            result &= codes != code
        return np.asarray(result)
    table = np.append(selected, False)
    result = np.empty(len(codes), np.bool_)
    for block in blocks(len(codes)):
        result[block] = table[codes[block]]
    return result


def count_codes(codes: np.ndarray, rows: np.ndarray | None, size: int) -> np.ndarray:
    """int64[size]: how often each code occurs in `rows`, or in all; -1, null, is not counted."""
    counts = np.zeros(size + 1, np.int64)
    is_short = codes.itemsize <= 2
    for block in blocks(len(codes) if rows is None else len(rows), 4 * size):
        part = codes[block] if rows is None else codes[rows[block]]
        if is_short:  # -1 is the greatest number without a sign, behind all codes
            part_counts = np.bincount(part.view(f"u{part.itemsize}"))[:size]
            counts[1 : 1 + len(part_counts)] += part_counts
        else:
            counts += np.bincount(part.astype(np.int64) + 1, minlength=size + 1)
    return counts[1:]


def count_before(times: np.ndarray, rows: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """int64: for each moment, how many of `rows`, which are in order of their times, are before it. (Their times need
    not be copied for that.)"""
    low, high = np.zeros(len(moments), np.int64), np.full(len(moments), len(rows))
    while (low < high).any():
        middle = (low + high) >> 1
        less = (low < high) & (times[rows[np.minimum(middle, len(rows) - 1)]] < moments)
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    return low


_CELLS: Final = 1 << 16
"""Numbers are counted in so many intervals to find those in which quantiles are."""


def quantiles(parts: Callable[[], Iterator[np.ndarray]], high: int, shares: tuple[float, ...]) -> list[float] | None:
    """Quantiles as Spark's `percentile` interpolates them, or None without numbers. `parts` iterates over the numbers,
    which are from 0 to `high`; it is called twice."""
    shift = max(high.bit_length() - _CELLS.bit_length() + 1, 0)
    counts = np.zeros((high >> shift) + 1, np.int64)
    for part in parts():
        counts += np.bincount(part >> shift, minlength=len(counts))
    ends = np.cumsum(counts)
    total = int(ends[-1])
    if not total:
        return None
    positions = [share * (total - 1) for share in shares]
    ranks = sorted({min(int(position) + step, total - 1) for position in positions for step in (0, 1)})
    cells = np.searchsorted(ends, ranks, "right")
    near = np.zeros(len(counts), np.bool_)
    near[cells] = True
    ordered = np.sort(np.concatenate([part[near[part >> shift]] for part in parts()]))
    # Before the numbers of a cell stand, in `ordered`, those of the near cells before it.
    before = np.cumsum(np.where(near, counts, 0)) - counts
    values = {
        rank: int(ordered[rank - (ends[cell] - counts[cell]) + before[cell]])
        for rank, cell in zip(ranks, cells.tolist(), strict=True)
    }
    results = []
    for position in positions:
        low = int(position)
        results.append(values[low] + (values[min(low + 1, total - 1)] - values[low]) * (position - low))
    return results
