"""Rows of integers by what they have in common, counted and followed in one pass.

In: columns of a window's exchanges or topic-partitions. Out: which different combinations there are, what each row is
of them, and what is counted of each. Rules: combinations are numbered in the order in which they come; how they are
looked up depends on a number that nobody outside knows, lest a capture choose rows that all meet in one place.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.captures.kernels import NULL, Int, Table, inline, kernel

# What is counted of a combination of connection, client id, API, version and group.
(
    U_CONNECTION,
    U_CLIENT,
    U_API,
    U_VERSION,
    U_GROUP,
    U_FIRST,  # row
    U_EXCHANGES,
    U_ERRORS,
    U_BEGAN,  # first byte of the earliest, ns
    U_ENDED,  # last byte of the latest
    U_COLUMNS,
) = range(11)

_SECRET: Final = np.int64(int.from_bytes(os.urandom(7), "big"))


def places(rows: int) -> Table:
    """A table for `number` and `count_uses` of so many rows, empty."""
    return np.full(1 << (2 * max(rows, 1) - 1).bit_length(), -1, np.int64)


@inline
def _mixed(h: Int, value: Int) -> Int:
    h = (np.uint64(h) ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(29))


@kernel
def number(columns: Table, slots: Table, secret: Int, place: Table, first: Table) -> Int:
    """Number the different combinations of columns int64[k, n]; returns how many there are. slots: `places(n)`; place
    int64[n]: which each row is; first int64[n]: of each combination the first row."""
    count = np.int64(0)
    mask = np.uint64(len(slots) - 1)
    width = columns.shape[0]
    for i in range(columns.shape[1]):
        h = np.uint64(secret)
        for column in range(width):
            h = _mixed(h, columns[column, i])
        at = np.int64(h & mask)
        while True:
            known = slots[at]
            if known < 0:
                slots[at] = count
                first[count] = i
                place[i] = count
                count += 1
                break
            row = first[known]
            same = True
            for column in range(width):
                same = same and columns[column, row] == columns[column, i]
            if same:
                place[i] = known
                break
            at = np.int64(np.uint64(at + 1) & mask)
    return count


def numbered(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64[k]: the first row of each different combination, in order; int64[n]: which each row is) of columns of
    equal length."""
    table = np.empty((len(columns), len(columns[0])), np.int64)
    for row, column in zip(table, columns, strict=True):
        row[:] = column
    place, first = np.empty((2, table.shape[1]), np.int64)
    count = number(table, places(table.shape[1]), _SECRET, place, first)
    return first[:count].copy(), place


@kernel
def count_uses(x: Table, connection: Table, slots: Table, secret: Int, place: Table, uses: Table) -> Int:
    """Count exchanges x [X_COLUMNS, n] by connection, client id, API, version and group.

    connection int64[n]; place int64[n]: the combination of each row; uses int64[n, U_COLUMNS]. Returns the number of
    combinations."""
    count = np.int64(0)
    mask = np.uint64(len(slots) - 1)
    for i in range(x.shape[1]):
        link, client, api = connection[i], x[s.X_CLIENT_ID, i], x[s.X_API_KEY, i]
        version, group = x[s.X_API_VERSION, i], x[s.X_GROUP, i]
        h = _mixed(_mixed(_mixed(secret, link), client), (api << 32) ^ (version << 48) ^ group)
        at = np.int64(h & mask)
        known = slots[at]
        while known >= 0 and not (
            uses[known, U_CONNECTION] == link
            and uses[known, U_CLIENT] == client
            and uses[known, U_API] == api
            and uses[known, U_VERSION] == version
            and uses[known, U_GROUP] == group
        ):
            at = np.int64(np.uint64(at + 1) & mask)
            known = slots[at]
        if known < 0:
            known = count
            count += 1
            slots[at] = known
            uses[known, U_CONNECTION] = link
            uses[known, U_CLIENT] = client
            uses[known, U_API] = api
            uses[known, U_VERSION] = version
            uses[known, U_GROUP] = group
            uses[known, U_FIRST] = i
            uses[known, U_EXCHANGES] = 0
            uses[known, U_ERRORS] = 0
            uses[known, U_BEGAN] = NULL
            uses[known, U_ENDED] = NULL
        place[i] = known
        began = x[s.X_REQUEST_FIRST_NS, i]
        if began == NULL:
            began = x[s.X_RESPONSE_FIRST_NS, i]
        ended = max(began, x[s.X_REQUEST_LAST_NS, i], x[s.X_RESPONSE_LAST_NS, i])
        error = x[s.X_ERROR, i]
        uses[known, U_EXCHANGES] += 1
        if error != NULL and error != 0:
            uses[known, U_ERRORS] += 1
        if began != NULL and (uses[known, U_BEGAN] == NULL or began < uses[known, U_BEGAN]):
            uses[known, U_BEGAN] = began
        uses[known, U_ENDED] = max(uses[known, U_ENDED], ended)
    return count


def used(x: np.ndarray, connection: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64[k, U_COLUMNS]: what was counted, in order of the first exchange of each; int64[n]: which of them each
    exchange is)."""
    rows = x.shape[1]
    place, uses = np.empty(rows, np.int64), np.empty((rows, U_COLUMNS), np.int64)
    count = count_uses(steady(x), steady(connection), places(rows), _SECRET, place, uses)
    return uses[:count].copy(), place


@kernel
def follow(place: Table, offsets: Table, after: Table, now: Table, expected: Table, moved: Table) -> None:
    """Fetches of readers in order. place int64[n]: whose each is; asked, after int64[n]: the offset asked for and the
    one after what came, NULL: not said; now int64[readers]: where each stands, before and then after them; expected
    int64[n]: where it stood; moved int64[n]: 1 where it asks for another offset."""
    for i in range(len(place)):
        stands = now[place[i]]
        expected[i] = stands
        moved[i] = 1 if offsets[i] != NULL and offsets[i] != stands else 0
        if after[i] != NULL:
            now[place[i]] = after[i]
        elif offsets[i] != NULL:
            now[place[i]] = offsets[i]


def steady(values: np.ndarray) -> np.ndarray:
    """Return the values in rows, and read-only, as kernels take them.

    Each other kind of array would be a kernel of its own."""
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view
