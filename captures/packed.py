"""Columns of whole numbers in as few bytes as they take, to be stored or handed to another process.

In: int64 columns of a table, all rows or some. Out: `Packed`: of each column what its numbers exceed one of them by, in
1, 2, 4 or 8 bytes; of that, the same numbers again, in any rows of another table. Rules: 0 stands for NULL, so what is
absent costs nothing more; a column of one number, or of NULL alone, has no bytes at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kwire.captures.kernels import BLOCK, NULL, Array, Int, Table, inline, kernel, prefetch_block

LEAST, WIDTH, AT = range(3)
"""Of a column, in `Packed.about`: what its numbers exceed; bytes of each of them, 0: all are that; where they begin."""
ABOUT: Final = 3

_ALL: Final = np.zeros(0, np.int64)


class Packed(NamedTuple):
    """Some columns of a table, `rows` int64 numbers each. `which` int64[k]: what they are called by; `about`
    int64[k, 3]; `content` uint8[...], in which each column begins at a whole word."""

    rows: int
    which: np.ndarray
    about: np.ndarray
    content: np.ndarray

    def column(self, which: int) -> np.ndarray:
        """int64[rows], of one's own; what it has not is NULL."""
        out = np.full(self.rows, NULL)
        place = self.which == which
        if place.any():
            self._unpack(self.about[place], np.zeros(1, np.int64), _ALL, out[None])
        return out

    def into(self, table: np.ndarray, places: np.ndarray | None = None) -> None:
        """Put all columns into int64[columns, n], each where it is called: the i-th row at places[i], or at i."""
        self._unpack(self.about, self.which, _ALL if places is None else places, table)

    def spread(self, which: int, into: np.ndarray, places: np.ndarray | None = None) -> None:
        """Put one column, the `which`-th of them, into an array of numbers of any width: the i-th row at places[i], or
        at i."""
        if self.rows:
            where = _ALL if places is None else places
            unpack_column(*_words(self.content), self.about[which], self.rows, where, into)

    def _unpack(self, about: np.ndarray, which: np.ndarray, places: np.ndarray, table: np.ndarray) -> None:
        if self.rows:
            unpack(*_words(self.content), about, which, self.rows, places, table)


def pack(table: np.ndarray, which: Sequence[int], rows: np.ndarray | None = None) -> Packed:
    """Columns of int64[columns, n]; of all rows, or of some (int64 numbers of rows; what is none gives NULL)."""
    columns = np.array(which, np.int64)
    count = table.shape[1] if rows is None else len(rows)
    about = np.zeros((len(columns), ABOUT), np.int64)
    about[:, LEAST] = NULL
    if not count:
        return Packed(0, columns, about, np.zeros(0, np.uint8))
    of = _ALL if rows is None else rows
    content = np.zeros(look(table, columns, count, of, about), np.uint8)  # what fills up words is stored too
    fill(table, columns, count, of, about, *_words(content))
    return Packed(count, columns, about, content)


def picked(rows: np.ndarray, which: Sequence[int]) -> np.ndarray:
    """Some columns of int64[n, columns], where rows lie one by one, as int64[len(which), n]."""
    out = np.empty((len(which), len(rows)), np.int64)
    pick(rows, np.array(which, np.int64), out)
    return out


def _words(content: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return views of the same memory as numbers of 1, 2, 4 and 8 bytes."""
    whole = content[: len(content) & ~7]
    return content, whole.view(np.uint16), whole.view(np.uint32), whole.view(np.int64)


@kernel
def pick(rows: Table, which: Table, out: Table) -> None:
    """out[k, i] = rows[i, which[k]], NULL where there is no such column. Few rows at a time, which are read once."""
    columns, count, width = min(len(which), out.shape[0]), min(rows.shape[0], out.shape[1]), rows.shape[1]
    for begin in range(0, count, BLOCK):
        end = min(begin + BLOCK, count)
        prefetch_block(rows, begin)
        for k in range(columns):
            column = which[k]
            there = 0 <= column < width
            for i in range(begin, end):
                out[k, i] = rows[i, column] if there else NULL


@inline
def _width(least: Int, most: Int) -> Int:
    """Bytes for what numbers exceed the one before the least of them by."""
    apart = np.uint64(most) - np.uint64(least)  # their difference may be no int64
    if apart < np.uint64(0xFF):
        return np.int64(1)
    if apart < np.uint64(0xFFFF):
        return np.int64(2)
    if apart < np.uint64(0xFFFF_FFFF):
        return np.int64(4)
    return np.int64(8)


@inline
def _look(values: Table, count: Int, rows: Table, at: Int, about: Table) -> Int:
    """Describe a column: the offset of its numbers, bytes of each, and the position `at`; return its size.

    count: of rows, or of the first numbers if no rows are named."""
    n = len(values)
    least = np.int64(0x7FFFFFFFFFFFFFFF)
    most = np.int64(NULL)
    # Most columns have no NULL, or nothing else: one quick look tells.
    if len(rows) == 0:
        for i in range(min(count, n)):
            least = min(least, values[i])
            most = max(most, values[i])
    else:
        for i in range(len(rows)):
            row = rows[i]
            value = values[row] if 0 <= row < n else np.int64(NULL)
            least = min(least, value)
            most = max(most, value)
    known = least != NULL
    if not known and most != NULL:
        least = np.int64(0x7FFFFFFFFFFFFFFF)
        for i in range(min(count, n) if len(rows) == 0 else len(rows)):
            row = i if len(rows) == 0 else rows[i]
            if 0 <= row < n and values[row] != NULL:
                least = min(least, values[row])
    width = np.int64(0)
    if most == NULL:
        least = np.int64(NULL)
    elif not known or least != most:
        width = _width(least, most)
        least = least - 1 if width < 8 else np.int64(0)
    about[LEAST], about[WIDTH], about[AT] = least, width, at
    return (width * count + 7) & ~7


@kernel
def look(table: Table, which: Table, count: Int, rows: Table, about: Table) -> Int:
    """`_look` at columns, which are to stand one behind the other; returns the bytes of all."""
    at = np.int64(0)
    for k in range(len(which)):
        if 0 <= which[k] < len(table):
            at += _look(table[which[k]], count, rows, at, about[k])
        else:
            about[k, LEAST], about[k, WIDTH], about[k, AT] = NULL, 0, at
    return at


@inline
def _narrow(values: Table, count: Int, rows: Table, less: Int, begin: Int, out: Array) -> None:
    if begin + count > len(out):
        return
    n = len(values)
    if len(rows) == 0:
        for i in range(min(count, n)):
            out[begin + i] = values[i] - less if values[i] != NULL else 0
        return
    for i in range(min(count, len(rows))):
        row = rows[i]
        there = 0 <= row < n and values[row] != NULL
        out[begin + i] = values[row] - less if there else 0


@inline
def _fill(
    values: Table,
    count: Int,
    rows: Table,
    about: Table,
    begin: Int,
    ones: Array,
    twos: Array,
    fours: Array,
    eights: Table,
) -> None:
    """Write a column as `_look` described it, behind `begin`, which is a whole word's."""
    less, width, at = about[LEAST], about[WIDTH], begin + about[AT]
    if width == 1:
        _narrow(values, count, rows, less, at, ones)
    elif width == 2:
        _narrow(values, count, rows, less, at >> 1, twos)
    elif width == 4:
        _narrow(values, count, rows, less, at >> 2, fours)
    elif width == 8 and (at >> 3) + count <= len(eights):
        for i in range(count):
            row = i if len(rows) == 0 else rows[i]
            eights[(at >> 3) + i] = values[row] if 0 <= row < len(values) else NULL


@kernel
def fill(
    table: Table,
    which: Table,
    count: Int,
    rows: Table,
    about: Table,
    ones: Array,
    twos: Array,
    fours: Array,
    eights: Table,
) -> None:
    """Write columns as `look` described them."""
    for k in range(len(which)):
        if 0 <= which[k] < len(table):
            _fill(table[which[k]], count, rows, about[k], np.int64(0), ones, twos, fours, eights)


@inline
def _widen(values: Array, begin: Int, count: Int, less: Int, places: Table, out: Array) -> None:
    if begin + count > len(values):
        return
    n = len(out)
    if len(places) == 0:
        for i in range(min(count, n)):
            value = np.int64(values[begin + i])
            out[i] = value + less if value != 0 else NULL
        return
    for i in range(min(count, len(places))):
        value = np.int64(values[begin + i])
        place = places[i]
        if 0 <= place < n:
            out[place] = value + less if value != 0 else NULL


@inline
def _unpack(
    ones: Array, twos: Array, fours: Array, eights: Table, about: Table, count: Int, places: Table, out: Array
) -> None:
    less, width, at = about[LEAST], about[WIDTH], about[AT]
    if at < 0:
        return
    if width == 1:
        _widen(ones, at, count, less, places, out)
    elif width == 2:
        _widen(twos, at >> 1, count, less, places, out)
    elif width == 4:
        _widen(fours, at >> 2, count, less, places, out)
    else:
        for i in range(count if len(places) == 0 else min(count, len(places))):
            place = i if len(places) == 0 else places[i]
            if 0 <= place < len(out) and (width == 0 or (at >> 3) + i < len(eights)):
                out[place] = less if width == 0 else eights[(at >> 3) + i]


@kernel
def unpack(
    ones: Array,
    twos: Array,
    fours: Array,
    eights: Table,
    about: Table,
    which: Table,
    count: Int,
    places: Table,
    out: Table,
) -> None:
    """The other way: column k of them goes to which[k] of int64[columns, n], its rows to `places`, without these to the
    first of the table."""
    for k in range(len(which)):
        if 0 <= which[k] < len(out):
            _unpack(ones, twos, fours, eights, about[k], count, places, out[which[k]])


@kernel
def unpack_column(
    ones: Array, twos: Array, fours: Array, eights: Table, about: Table, count: Int, places: Table, out: Array
) -> None:
    """Unpack one column into numbers of any width that holds its values."""
    _unpack(ones, twos, fours, eights, about, count, places, out)
