"""Rows of integers by what they have in common.

In: columns of equal length, of symbols, keys or numbers, `NULL` where absent. Out: the different combinations, and
which of them each row is. Rule: no object a row, and no sorting where the numbers lie close together, as symbols do.
"""

from __future__ import annotations

import numpy as np

from captures.kernels import NULL


def combinations(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64[k], the first row of each different combination, int64[n], which combination each row is): numbered from
    0, in no order that means anything. The columns have at least one row."""
    key, span = _from_zero(columns[0])
    for column in columns[1:]:
        local, width = _from_zero(column)
        if span * width > _spread(len(key)):
            key, span = _numbered(key, span)
        if span * width > _spread(len(key)):
            local, width = _numbered(local, width)
        key, span = key * width + local, span * width
    place, count = _numbered(key, span)
    first = np.empty(count, np.int64)
    first[place[::-1]] = np.arange(len(place) - 1, -1, -1)  # of what is written twice the last stays
    return first, place


def pairs(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[k] each: the different pairs of numbers in two columns of equal length, which are not empty and have no
    NULL, in no order that means anything."""
    lows = int(left.min()), int(right.min())
    spans = int(left.max()) - lows[0] + 1, int(right.max()) - lows[1] + 1
    if spans[0] * spans[1] > _spread(len(left)):
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


def _spread(rows: int) -> int:
    """How many numbers there may be from the smallest to the largest of so many rows, lest they be sorted."""
    return 8 * rows + 4096


def _from_zero(values: np.ndarray) -> tuple[np.ndarray, int]:
    """(numbers that are equal where the values are, and not negative; one more than the largest may be)."""
    low = int(values.min())
    if low == NULL:
        present = values != NULL
        some = values[present]
        if not len(some):
            return np.zeros(len(values), np.int64), 1
        low = int(some.min()) - 1
        values = np.where(present, values, low)
    span = int(values.max()) - low + 1
    if span > _LARGEST:
        used, place = np.unique(values, return_inverse=True)
        return place.reshape(-1), len(used)
    return values - low, span


_LARGEST = 1 << 31
"""Of two that are below it the product is an int64."""


def _numbered(values: np.ndarray, span: int) -> tuple[np.ndarray, int]:
    """(each row's number from 0, how many different ones there are) of values from 0 to below `span`."""
    if span > _spread(len(values)):
        used, place = np.unique(values, return_inverse=True)
        return place.reshape(-1), len(used)
    there = np.zeros(span, np.bool_)
    there[values] = True
    number = np.cumsum(there) - 1
    return number[values], int(number[-1]) + 1


def smallest(values: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    """int64[count]: the smallest value of the rows of each combination, NULL where all are."""
    out = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(out, place, np.where(values == NULL, np.iinfo(np.int64).max, values))
    return np.where(out == np.iinfo(np.int64).max, NULL, out)


def largest(values: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    """The same of the largest."""
    out = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(out, place, np.where(values == NULL, np.iinfo(np.int64).min, values))
    return np.where(out == np.iinfo(np.int64).min, NULL, out)


def last_of_each(which: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """bool[n]: of the rows that `which` (bool[n]) says, the last of each combination of values."""
    chosen = np.zeros(len(which), bool)
    rows = np.flatnonzero(which)
    if len(rows):
        first, of = combinations(*(column[rows] for column in columns))
        last = np.empty(len(first), np.int64)
        last[of] = rows  # of what is written twice the last stays
        chosen[last] = True
    return chosen
