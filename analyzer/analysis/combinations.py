"""Combinations of values in rows of integers, and values reduced by them.

In: columns of equal length, of symbols, keys or numbers, `NULL` where absent. Out: the different combinations, which of
them each row has, and the smallest, largest and last of each. Rule: no object a row.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import row_groups
from kwire.captures.kernels import NULL

combinations: Final = row_groups.numbered
"""Return (int64[k], the first row of each different combination; int64[n], the number of each row's combination)."""


def pairs(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int64[k] each: the different pairs of two columns, which are not empty and hold no NULL, in any order."""
    lows = int(left.min()), int(right.min())
    spans = int(left.max()) - lows[0] + 1, int(right.max()) - lows[1] + 1
    if spans[0] * spans[1] > 8 * len(left) + 4096:
        first, _ = combinations(left, right)
        return left[first], right[first]
    key = left - lows[0]
    key *= spans[1]
    key += right
    key -= lows[1]
    there = np.zeros(spans[0] * spans[1], np.bool_)
    there[key] = True
    used = np.flatnonzero(there)
    return used // spans[1] + lows[0], used % spans[1] + lows[1]


def smallest(values: np.ndarray, which: np.ndarray, count: int) -> np.ndarray:
    """Return int64[count]: the smallest value of the rows of each combination, NULL if they have none."""
    highest = np.iinfo(np.int64).max
    out = np.full(count, highest)
    np.minimum.at(out, which, np.where(values == NULL, highest, values))
    return np.where(out == highest, NULL, out)


def largest(values: np.ndarray, which: np.ndarray, count: int) -> np.ndarray:
    """Return int64[count]: the largest value of the rows of each combination, NULL if they have none."""
    out = np.full(count, NULL)  # below all numbers
    np.maximum.at(out, which, values)
    return out


def last_of_each(which: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Return bool[n]: of the rows that a mask selects, the last of each combination of values."""
    is_last = np.zeros(len(which), bool)
    rows = np.flatnonzero(which)
    if len(rows):
        first, of = combinations(*(column[rows] for column in columns))
        last = np.empty(len(first), np.int64)
        last[of] = rows  # of several the last stays
        is_last[last] = True
    return is_last
