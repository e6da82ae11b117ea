"""The tables of several shards into one.

In: rows of several shards, some of one shard's at a time. Out: what orders them; each row's place in the whole; the
whole, filled in, with symbols of a shard as numbers of the capture point. Rule: only `merge` and `place_parts` see the
rows of all shards. The others work on any rows of one, in any order and on any thread, and write what is theirs alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.captures.kernels import BLOCK, NULL, Flag, Int, Table, inline, kernel, prefetch_block

SAME, STRING, TOPICS, OTHERS, OWNER, SET = range(6)
"""What becomes of a column: it stays; NULL; a symbol of a string, of a list of strings or of another list becomes its
number; so does a record set; the row that it belongs to is said anew."""


class Numbers(NamedTuple):
    """The capture point's numbers of a shard's symbols, -1: not needed yet.

    shard int64[2], for record sets: number of shards, and which this is."""

    strings: Table
    topics: Table
    others: Table
    shard: Table


class Orders(NamedTuple):
    """Columns that order exchanges, int64[n] each.

    They are the packet that completed them, the number of their connection, -1 if it has none yet, and its age."""

    completed_by: Table
    connection: Table
    age: Table


@kernel
def look(rows: Table, slots: Table, serials: Table, numbers: Numbers, orders: Orders, wanted: Table) -> tuple[Int, Int]:
    """Read the columns that order exchanges, int64[n, X_ENDED_COLUMNS].

    slots: number of the connection in each slot; serials: the connection's serial, by number. Into `wanted`
    int64[2, n] go symbols of lists of strings, and of other lists, that have no number yet, some of them several
    times. Returns how many of each."""
    topics = np.int64(0)
    others = np.int64(0)
    for i in range(len(rows)):
        slot = rows[i, s.X_SLOT]
        number = slots[slot] if 0 <= slot < len(slots) else np.int64(-1)
        orders.completed_by[i] = rows[i, s.X_COMPLETED_BY]
        orders.connection[i] = number
        orders.age[i] = serials[number] if 0 <= number < len(serials) else np.int64(-1)
        symbol = rows[i, s.X_TOPICS]
        if 0 <= symbol < len(numbers.topics) and numbers.topics[symbol] < 0:
            wanted[0, topics] = symbol
            topics += 1
        symbol = rows[i, s.X_ERRORS]
        if 0 <= symbol < len(numbers.others) and numbers.others[symbol] < 0:
            wanted[1, others] = symbol
            others += 1
    return topics, others


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
def look_at_parts(rows: Table, place: Table, owner: Table) -> Int:
    """owner[i]: the place of the exchange that topic-partition i of int64[m, P_COLUMNS] belongs to; place int64[n]: of
    the shard's exchanges. Of those that are taken out of a session it is -1 - place; returns how many these are."""
    forgotten = np.int64(0)
    for i in range(len(rows)):
        of = rows[i, s.P_OWNER]
        owner[i] = place[of] if 0 <= of < len(place) else np.int64(0)
        if rows[i, s.P_ANSWERED] == s.FORGOTTEN:
            owner[i] = -1 - owner[i]
            forgotten += 1
    return forgotten


@kernel
def place_parts(owner: Table, forgotten: Flag, next_of: Table, place: Table) -> Int:
    """place[i]: where topic-partition i stands when those that are (`forgotten`) or are not taken out of a session are
    ordered by owner, equal ones as they are; -1: it is of the others. Returns how many they are. next_of
    int64[exchanges]: for the kernel alone."""
    for k in range(len(next_of)):
        next_of[k] = 0
    for i in range(len(owner)):
        of = -1 - owner[i] if forgotten else owner[i]
        if 0 <= of < len(next_of):
            next_of[of] += 1
    before = np.int64(0)
    for k in range(len(next_of)):
        here = next_of[k]
        next_of[k] = before
        before += here
    for i in range(len(owner)):
        of = -1 - owner[i] if forgotten else owner[i]
        place[i] = -1
        if 0 <= of < len(next_of):
            place[i] = next_of[of]
            next_of[of] += 1
    return before


@inline
def _numbered(rows: Table, begin: Int, end: Int, column: Int, place: Table, numbers: Table, out: Table) -> None:
    """A column of symbols; what has no number stays."""
    for row in range(begin, end):
        to = place[row]
        if 0 <= to < out.shape[1]:
            value = rows[row, column]
            out[column, to] = numbers[value] if 0 <= value < len(numbers) else value


@inline
def _as_they_are(rows: Table, begin: Int, column: Int, place: Table, out: Table) -> None:
    """Copy a column of a whole block whose places are all in `out`.

    Unsigned: see `kernels.copy_bytes`."""
    for row in range(np.uint64(begin), np.uint64(begin + BLOCK)):
        out[np.uint64(column), np.uint64(place[row])] = rows[row, np.uint64(column)]


@kernel
def move(rows: Table, place: Table, becomes: Table, numbers: Numbers, owner: Table, out: Table) -> None:
    """Set out[:, place[i]] = rows[i], each column as `becomes` says; places outside `out` are left out.

    owner int64[n]: see `look_at_parts`, for rows that have an owner."""
    count = min(len(rows), len(place))
    width = rows.shape[1]
    for begin in range(0, count, BLOCK):
        end = min(begin + BLOCK, count)
        prefetch_block(rows, begin)
        whole = end - begin == BLOCK
        for row in range(begin, end):
            whole = whole and 0 <= place[row] < out.shape[1]
        for column in range(min(width, out.shape[0], len(becomes))):
            kind = becomes[column]
            if kind == SAME and whole:
                _as_they_are(rows, begin, column, place, out)
            elif kind == STRING:
                _numbered(rows, begin, end, column, place, numbers.strings, out)
            elif kind == TOPICS:
                _numbered(rows, begin, end, column, place, numbers.topics, out)
            elif kind == OTHERS:
                _numbered(rows, begin, end, column, place, numbers.others, out)
            else:
                for row in range(begin, end):
                    to = place[row]
                    if 0 <= to < out.shape[1]:
                        value = rows[row, column]
                        if kind == OWNER:
                            value = max(owner[row], -1 - owner[row])
                        elif kind == SET and value != NULL:
                            value = value * numbers.shard[0] + numbers.shard[1]
                        out[column, to] = value
