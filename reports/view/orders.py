"""Stable orders of rows: a window without sorting all rows, or the whole order.

In: sort keys, an unsigned number per row, smallest first. Out: positions of rows. Rule: a window equals that part of
the whole order; equal keys keep the order of their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from kwire.analyzer.frame.counting import blocks

NEAR: Final = 10_000
"""Rows from either end up to which a window is found by one pass over the keys."""


def keys(values: Callable[[slice], np.ndarray], n: int, low: int, high: int, descending: bool) -> np.ndarray:
    """Make unsigned sort keys of values, nulls last: [n]. `values` returns a slice of them, with the type's smallest
    number for null; all are from `low` to `high`."""
    span = max(high - low, 0) + 1
    sort_keys = np.empty(n, np.min_scalar_type(span))
    for part in blocks(n):
        here = values(part)
        kind = here.dtype.type
        # The differences may wrap around in the values' own type; as unsigned numbers they are right.
        there = (kind(high) - here if descending else here - kind(low)).view(f"u{here.dtype.itemsize}")
        sort_keys[part] = there
        sort_keys[part][here == np.iinfo(here.dtype).min] = span
    return sort_keys


def whole(ordered_by: np.ndarray) -> np.ndarray:
    """Sort all rows: uint32[n] positions."""
    n = len(ordered_by)
    if ordered_by.itemsize <= 2:  # a radix sort
        return np.argsort(ordered_by, kind="stable").astype(np.uint32)
    bits = max(n - 1, 1).bit_length()
    if n and int(ordered_by.max()).bit_length() + bits <= 64:  # key and position in one number
        packed = ordered_by.astype(np.uint64)
        packed <<= np.uint64(bits)
        packed |= np.arange(n, dtype=np.uint64)
        packed.sort()
        packed &= np.uint64((1 << bits) - 1)
        return packed.astype(np.uint32)
    return np.argsort(ordered_by, kind="stable").astype(np.uint32)


def window(ordered_by: np.ndarray, start: int, count: int) -> np.ndarray:
    """Get `count` positions from `start` on, without sorting the other rows."""
    n = len(ordered_by)
    end = min(start + count, n)
    if start >= end:
        return np.zeros(0, np.int64)
    if end <= NEAR:
        return first(ordered_by, end)[start:]
    if n - start <= NEAR:  # the reverse order is that of opposite keys from the last row on
        return (n - 1 - first(ordered_by[::-1], n - start, opposite=True))[::-1][: end - start]
    parted = np.partition(ordered_by, (start, end - 1))
    low, high = parted[start], parted[end - 1]
    near = np.flatnonzero((ordered_by >= low) & (ordered_by <= high))
    before = start - int(np.count_nonzero(ordered_by < low))
    order = np.argsort(ordered_by[near], kind="stable")
    return np.asarray(near[order[before : before + end - start]])


def first(ordered_by: np.ndarray, count: int, opposite: bool = False) -> np.ndarray:
    """Get the first `count` positions; `opposite`: largest key first."""
    places, best = np.zeros(0, np.int64), np.zeros(0, ordered_by.dtype)
    for part in blocks(len(ordered_by)):
        here = ordered_by[part]
        if opposite:
            here = ~here
        if len(best) < count:
            better = np.arange(len(here))
        else:
            better = np.flatnonzero(here < best[-1])  # a key that equals the last one comes after it
            if not len(better):
                continue
        new = here[better]
        if len(new) > 4 * count:
            some = new <= np.partition(new, count - 1)[count - 1]
            better, new = better[some], new[some]
        best, places = np.concatenate([best, new]), np.concatenate([places, better + part.start])
        order = np.argsort(best, kind="stable")[:count]
        best, places = best[order], places[order]
    return places


def position(ordered_by: np.ndarray, at: int) -> int:
    """Get the position in the order of the row at `at`."""
    key, before = ordered_by[at], 0
    for part in blocks(len(ordered_by)):
        before += int(np.count_nonzero(ordered_by[part] < key))
    return before + int(np.count_nonzero(ordered_by[:at] == key))
