"""Columns of a table as arrays, put together row group by row group, and those of a capture point that is being read.

In: chunks of columns, or the rows of a table as they are made. Out: an array a column: of strings their numbers, -1
where null; of others the least value of the type there. Rules: what has one value in all rows takes no memory; what is
kept of rows that are being written is what reading them back would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer.frame import arrow, spill

NULL: Final = np.iinfo(np.int64).min
"""Absent, in arrays of integers of any use."""

FEW_ROWS: Final = 10_000
"""Rows up to which strings are numbered one by one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns of a large table: numbers with their types, strings, and those of which the greatest value is enough."""

    numbers: Mapping[str, Any]
    strings: Sequence[str]
    greatest: Sequence[str] = ()


class Columns:
    """Columns of a large table that are taken as its rows are made. `rows` of them are there."""

    def __init__(self, wanted: Wanted, most_rows: int) -> None:
        # Memory that nobody writes to is none yet, so there may be room for more rows than will come.
        self._filled = {name: Filled(most_rows, np.dtype(dtype)) for name, dtype in wanted.numbers.items()}
        self._filled |= {name: Filled(most_rows, np.dtype(np.int32), {}) for name in wanted.strings}
        self._greatest = dict.fromkeys(wanted.greatest, NULL)
        self.rows = 0

    def take(self, table: pa.Table) -> None:
        """The next rows: copied, for these may share their memory with a hundred columns."""
        for name, out in self._filled.items():
            chunks = table.column(name).chunks
            same, one = _in_common(chunks)
            if same:
                out.repeat(one, len(table))
            else:
                for chunk in chunks:
                    out.put(chunk)
        for name, most in self._greatest.items():
            self._greatest[name] = max(most, *map(_greatest, table.column(name).chunks))
        self.rows += len(table)

    def has(self, column: str, dtype: np.dtype[Any]) -> bool:
        """It is kept as that type, strings as their numbers."""
        return column in self._filled and self._filled[column].dtype == dtype

    def whole(self, column: str) -> np.ndarray:
        """All rows of a column that is kept."""
        return self._filled[column].whole()[: self.rows]

    def strings(self, column: str) -> list[str]:
        """What the numbers of strings stand for."""
        return list(self._filled[column].known)

    def most(self, column: str) -> int | None:
        """The greatest value of a column, NULL where there is none; None: it is not kept."""
        return self._greatest.get(column)


def _in_common(chunks: Sequence[pa.Array]) -> tuple[bool, int | str | None]:
    """Whether rows have one value, as far as that is seen at a glance, and which: None, they have none."""
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return True, None
    if len(chunks) != 1 or chunks[0].null_count:
        return False, None
    (chunk,) = chunks
    if pa.types.is_dictionary(chunk.type):
        same, one = _in_common([chunk.indices])
        return (True, chunk.dictionary[one].as_py()) if same else (False, None)
    if not pa.types.is_integer(chunk.type) and not pa.types.is_timestamp(chunk.type):
        return False, None
    values = arrow.stored(chunk)
    if values[0] != values[-1] or (values != values[0]).any():
        return False, None
    return True, int(values[0])


def _greatest(chunk: pa.Array) -> int:
    if not chunk.null_count and len(chunk):
        return int(arrow.stored(chunk).max())
    return int(arrow.numbers(chunk, NULL).max(initial=NULL))


class Filled:
    """A column that is filled, row group by row group: of strings their numbers, -1 where null; of others the least
    value of the type there. As long as it has one value in all rows, it takes no memory."""

    def __init__(self, rows: int, dtype: np.dtype[Any], known: dict[str, int] | None = None) -> None:
        self.known = known or {}
        self._text = known is not None
        self._absent = -1 if self._text else int(np.iinfo(dtype).min)
        self._rows = rows
        self.dtype = dtype
        self._at = 0
        self._one: int | None = None
        self._values: np.ndarray | None = None

    def repeat(self, value: int | str | None, count: int) -> None:
        """One value in so many rows."""
        if isinstance(value, str):
            number = self.known.setdefault(value, len(self.known))
        else:
            number = self._absent if value is None else int(value)
        if self._values is None and (self._at == 0 or self._one == number):
            self._one = number
        else:
            self._array()[self._at : self._at + count] = number
        self._at += count

    def put(self, chunk: pa.Array) -> None:
        """Values as they are stored."""
        part = self._array()[self._at : self._at + len(chunk)]
        if self._text:
            part[:] = coded(chunk, self.known)
        else:
            arrow.put_numbers(chunk, self._absent, part)
        self._at += len(chunk)

    def _array(self) -> np.ndarray:
        if self._values is None:
            self._values = spill.empty(self._rows, self.dtype)
            if self._at:
                self._values[: self._at] = self._one
        return self._values

    def whole(self) -> np.ndarray:
        """All rows."""
        if self._values is None and self._at:
            return np.broadcast_to(np.array(self._one, self.dtype), self._rows)
        return self._array()


def fill(out: Mapping[str, Filled], part: pa.Table) -> None:
    """Put columns of some rows."""
    for name, column in zip(part.column_names, part.columns, strict=True):
        for chunk in column.chunks:
            out[name].put(chunk)


def standing_for(texts: Sequence[str], *wanted: str) -> list[int]:
    """The numbers that stand for one of the wanted in a column that is given as numbers and their texts."""
    these = frozenset(wanted)
    return [number for number, text in enumerate(texts) if text in these]


def coded(chunk: pa.Array, numbers: dict[str, int]) -> np.ndarray:
    """Strings by their numbers, -1 where null; new ones get the next."""
    if len(chunk) <= FEW_ROWS and not pa.types.is_dictionary(chunk.type):  # PyArrow's functions take time to load
        told = chunk.to_pylist()
        return np.array([-1 if text is None else numbers.setdefault(text, len(numbers)) for text in told], np.int32)
    if pa.types.is_null(chunk.type):
        chunk = pa.nulls(len(chunk), pa.string())
    coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
    mapped = [numbers.setdefault(text, len(numbers)) for text in coded.dictionary.to_pylist()]
    at = arrow.numbers(coded.indices, -1) if coded.null_count else arrow.stored(coded.indices)
    found: np.ndarray = np.array([*mapped, -1], np.int32)[at]  # -1 takes the last
    return found
