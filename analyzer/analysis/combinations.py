"""Combinations of values in rows of integers, and values reduced by them.

In: columns of equal length, of symbols, keys or numbers, `NULL` where absent. Out: the different combinations, which of
them each row has, and the smallest, largest and last of each. Rule: no object a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from kwire.analyzer.bulk import row_groups
from kwire.captures.kernels import NULL

combinations: Final = row_groups.numbered
"""Return (int64[k], the first row of each different combination; int64[n], the number of each row's combination)."""


def few_combinations(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Like `combinations`, for far fewer combinations than rows, of which there are some.

    Returns (int64[k], some row of each combination; int64[n], the number of each row's combination). Columns that do
    not vary are passed over, and numbers of combinations so far are looked up in a table: a fifth of the time.
    """
    varying = [column for column in columns if column.strides[0] and (column != column[0]).any()]
    rows = np.arange(len(columns[0]))
    key, first = np.zeros(0, np.int64), rows[:1]
    for column in varying:
        if len(first) > 1 and (column[first][key] == column).all():
            continue  # the columns before it decide it, as a connection does its client
        low, high = int(column.min()), int(column.max())
        if low == NULL:
            low = int(column[column != NULL].min()) - 1
            column = np.maximum(column, low)  # NULL is below all numbers
        span = high - low + 1
        if len(first) * span > len(column) + 4096:
            return combinations(*varying)
        key = column - low if len(first) == 1 else key * span + (column - low)
        there = np.zeros(len(first) * span, np.bool_)
        there[key] = True
        used = np.flatnonzero(there)
        number = np.empty(len(there), np.int64)
        number[used] = np.arange(len(used))
        key, first = number[key], np.empty(len(used), np.int64)
        first[key] = rows
    return first, key if varying else np.zeros(len(rows), np.int64)


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
