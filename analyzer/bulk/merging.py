"""The tables of several shards into one.

In: rows of several shards, one after the other. Out: each row's place in the whole; the whole, filled in; symbols of a
shard as numbers of the capture point. Apart from other kernels, because editing a file with kernels makes all of them
compile again.
"""

from __future__ import annotations

from captures.kernels import NULL, Flag, Table, kernel

_BLOCK = 32
"""Rows moved at a time: so many of them, and the lines of the columns that they go to, stay in the cache."""


@kernel
def merge(begins: Table, at: Table, first: Table, second: Table, place: Table) -> Flag:
    """place[i]: where row i stands when all are ordered by `first`, then `second`. They are lists in order, one after
    the other: list k is rows [begins[k], begins[k + 1]). Equal rows keep their order. `at` int64[lists]: for the kernel
    alone. False: a list is not in order, and `place` means nothing."""
    lists, rows = len(begins) - 1, len(place)
    if len(first) != rows or len(second) != rows or len(at) != lists or begins[0] != 0 or begins[lists] != rows:
        return False
    for k in range(lists):
        at[k] = begins[k]
        if begins[k] > begins[k + 1]:
            return False
        for i in range(begins[k] + 1, begins[k + 1]):
            if first[i] < first[i - 1] or (first[i] == first[i - 1] and second[i] < second[i - 1]):
                return False
    for to in range(rows):
        best = -1
        for k in range(lists):
            i = at[k]
            if i < begins[k + 1]:
                if best < 0:
                    best = k
                else:
                    j = at[best]
                    if first[i] < first[j] or (first[i] == first[j] and second[i] < second[j]):
                        best = k
        place[at[best]] = to
        at[best] += 1
    return True


@kernel
def move_columns(columns: Table, place: Table, out: Table) -> None:
    """out[:, place[i]] = columns[:, i]; places outside `out` are left out. `columns` may lie row by row."""
    rows = min(columns.shape[1], len(place))
    for start in range(0, rows, _BLOCK):
        stop = min(start + _BLOCK, rows)
        for column in range(min(columns.shape[0], out.shape[0])):
            for row in range(start, stop):
                to = place[row]
                if 0 <= to < out.shape[1]:
                    out[column, to] = columns[column, row]


@kernel
def rename(values: Table, place: Table, numbers: Table) -> None:
    """values[place[i]] = numbers[values[place[i]]] for all i; NULL stays, and so does what has no number."""
    for row in range(len(place)):
        at = place[row]
        if 0 <= at < len(values):
            value = values[at]
            if value != NULL and 0 <= value < len(numbers):
                values[at] = numbers[value]
