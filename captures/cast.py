"""Rows of integers as the numbers that columns of tables are made of.

In: columns of rows, window by window. Out: what is in them (how many are absent, the least and the greatest), and the
same numbers as narrow as a column has them. Rules: `at` is where a window's rows begin among those of all; an absent
number is 0 where it is narrow, and `marks` tells where those are. Each kernel does in one pass what would be a pass for
each step; `tests/captures/test_cast.py` has their reference implementations.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures.kernels import NULL, Array, Int, Table, kernel

ABSENT, LEAST, GREATEST = range(3)
"""What is known of a column: how many numbers are absent, and the least and the greatest of the others."""

_LARGEST: Final = (1 << 63) - 1


@kernel
def look(x: Table, which: Table, summaries: Table) -> None:
    """Into found[which[j]] of int64[columns, 3] what is known of the column which[j] of x[columns, n]: of one of which
    all is absent the least is the largest number there is."""
    n = x.shape[1]
    for j in range(len(which)):
        column = which[j]
        absent = np.int64(0)
        least = np.int64(_LARGEST)
        greatest = np.int64(NULL)
        for i in range(n):
            value = x[column, i]
            absent += np.int64(value == NULL)
            greatest = max(greatest, value)
            least = min(least, np.int64(_LARGEST) if value == NULL else value)
        summaries[column, ABSENT] = absent
        summaries[column, LEAST] = least
        summaries[column, GREATEST] = greatest


@kernel
def narrow(x: Table, which: Table, out: Array, at: Int) -> None:
    """out[j, at + i] = x[which[j], i], in as many bits as `out` has; absent ones are 0."""
    for j in range(len(which)):
        column = which[j]
        for i in range(x.shape[1]):
            value = x[column, i]
            out[j, at + i] = np.int64(0) if value == NULL else value


@kernel
def marks(values: Table, bits: Array, at: Int) -> None:
    """Set the bits, from bit `at` on, of the numbers that are there, as Arrow wants them; they are 0 before."""
    for i in range(len(values)):
        if values[i] != NULL:
            bits[(at + i) >> 3] |= np.uint8(1) << np.uint8((at + i) & 7)


@kernel
def compact(values: Table, place: Array, local: Array) -> Int:
    """Number those that are in use of the numbers below len(place), in their order: place int32[numbers] becomes which
    of them each is, -1 where it is not in use; local int32[n]: the same of each value, 0 where it is absent. Returns
    how many are in use."""
    for k in range(len(place)):
        place[k] = -1
    for i in range(len(values)):
        if 0 <= values[i] < len(place):
            place[values[i]] = 0
    used = np.int32(0)
    for k in range(len(place)):
        if place[k] == 0:
            place[k] = used
            used += np.int32(1)
    for i in range(len(values)):
        local[i] = place[values[i]] if 0 <= values[i] < len(place) else np.int32(0)
    return np.int64(used)


@kernel
def take(table: Array, local: Array, out: Array) -> None:
    """out[j, i] = table[j, local[i]], all int32."""
    for j in range(table.shape[0]):
        for i in range(len(local)):
            out[j, i] = table[j, local[i]]


@kernel
def list_ends(local: Array, values: Table, ends: Table, offsets: Array) -> Int:
    """offsets int32[n + 1]: where the list of each row begins, if they stand one after the other; row i has none where
    values[i] is absent, else the list local[i] of those that end at `ends`. Returns how many items these have."""
    total = np.int64(0)
    for i in range(len(local)):
        offsets[i] = total
        if values[i] != NULL:
            k = local[i]
            total += ends[k] - (ends[k - 1] if k > 0 else np.int64(0))
    offsets[len(local)] = total
    return total


@kernel
def list_items(local: Array, values: Table, ends: Table, items: Array, out: Array) -> None:
    """The items of those lists, one after the other: out int32[`list_ends`]; `items` int32: those of the lists that end
    at `ends`."""
    at = np.int64(0)
    for i in range(len(local)):
        if values[i] != NULL:
            k = local[i]
            for j in range(ends[k - 1] if k > 0 else np.int64(0), ends[k]):
                out[at] = items[j]
                at += 1
