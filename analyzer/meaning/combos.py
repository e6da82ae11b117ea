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
    place, count = _numbered(columns[0])
    for column in columns[1:]:
        local, different = _numbered(column)
        place, count = _numbered(place * different + local)
    first = np.empty(count, np.int64)
    first[place[::-1]] = np.arange(len(place) - 1, -1, -1)  # of what is written twice the last stays
    return first, place


def _numbered(values: np.ndarray) -> tuple[np.ndarray, int]:
    """(each row's number from 0, how many different ones there are); NULL is one of the values."""
    present = values != NULL
    some = values[present]
    low = int(some.min()) if len(some) else 0
    top = int(some.max()) - low + 2 if len(some) else 1
    if top > 8 * len(values) + 4096:
        used, place = np.unique(values, return_inverse=True)
        return place.reshape(-1), len(used)
    at = np.where(present, values - low + 1, 0)
    there = np.zeros(top, np.int64)
    there[at] = 1
    number = np.cumsum(there) - 1
    return number[at], int(number[-1]) + 1


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
