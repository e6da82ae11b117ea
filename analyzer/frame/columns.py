"""Build columns of a table from chunks: rows of a file, or rows that are on their way to one.

In: Arrow chunks, in order. Out: an array a column: codes of text, -1 where null; of others the least value of the type
where null. A column that has one value in all rows takes no memory; what is cached of rows that are being written is
what reading them back would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.common import compute
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL

_MANY_UNUSED: Final = 8
"""Where not even one in so many texts of a dictionary is used, those that are used are looked at one by one."""


class ColumnSet(NamedTuple):
    """Columns of a table: numbers with their types, texts, and those of which the greatest value is enough."""

    numbers: Mapping[str, Any]
    texts: Sequence[str]
    greatest: Sequence[str] = ()


class ColumnBuilder:
    """A column that is filled chunk by chunk: codes of text, -1 where null; of others the least value of the type where
    null. While it has one value in all rows, it takes no memory. `known`: codes that texts already have; None: it is no
    text."""

    def __init__(self, rows: int, dtype: np.dtype[Any], known: dict[str, int] | None = None) -> None:
        self.known = known or {}
        self._is_text = known is not None
        self._null = -1 if self._is_text else int(np.iinfo(dtype).min)
        self._rows = rows
        self.dtype = dtype
        self._end = 0
        self._constant: int | None = None
        self._values: np.ndarray | None = None

    def repeat(self, value: int | str | None, count: int) -> None:
        """Append one value `count` times."""
        if isinstance(value, str):
            number = self.known.setdefault(value, len(self.known))
        else:
            number = self._null if value is None else int(value)
        if self._values is None and (self._end == 0 or self._constant == number):
            self._constant = number
        else:
            self._array()[self._end : self._end + count] = number
        self._end += count

    def append(self, chunk: pa.Array) -> None:
        """Append values as they are stored."""
        part = self._array()[self._end : self._end + len(chunk)]
        if self._is_text:
            part[:] = encode(chunk, self.known)
        else:
            arrow.put_numbers(chunk, self._null, part)
        self._end += len(chunk)

    def _array(self) -> np.ndarray:
        if self._values is None:
            self._values = spill.empty(self._rows, self.dtype)
            if self._end:
                self._values[: self._end] = self._constant
        return self._values

    def array(self) -> np.ndarray:
        """All rows."""
        if self._values is None and self._end:
            return np.broadcast_to(np.array(self._constant, self.dtype), self._rows)
        return self._array()


def append_rows(builders: Mapping[str, ColumnBuilder], rows: pa.Table) -> None:
    """Append rows of a table to the builders of its columns."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for chunk in column.chunks:
            builders[name].append(chunk)


class CachedColumns:
    """Columns of a large table that are copied as its rows are made; `rows` of them are there."""

    def __init__(self, columns: ColumnSet, most_rows: int) -> None:
        # Memory that nobody writes to is none yet, so there may be room for more rows than will come.
        self._builders = {name: ColumnBuilder(most_rows, np.dtype(dtype)) for name, dtype in columns.numbers.items()}
        self._builders |= {name: ColumnBuilder(most_rows, np.dtype(np.int32), {}) for name in columns.texts}
        self._greatest = dict.fromkeys(columns.greatest, NULL)
        self.rows = 0

    def append(self, table: pa.Table) -> None:
        """Copy the next rows, which may share their memory with a hundred columns."""
        for name, builder in self._builders.items():
            chunks = table.column(name).chunks
            is_constant, value = _constant(chunks)
            if is_constant:
                builder.repeat(value, len(table))
            else:
                for chunk in chunks:
                    builder.append(chunk)
        for name, greatest in self._greatest.items():
            self._greatest[name] = max(greatest, *map(_greatest, table.column(name).chunks))
        self.rows += len(table)

    def has(self, column: str, dtype: np.dtype[Any]) -> bool:
        """Whether a column is cached as that type, texts as their codes."""
        return column in self._builders and self._builders[column].dtype == dtype

    def array(self, column: str) -> np.ndarray:
        """All rows of a cached column."""
        return self._builders[column].array()[: self.rows]

    def values(self, column: str) -> list[str]:
        """The texts that the codes of a cached column mean."""
        return list(self._builders[column].known)

    def greatest(self, column: str) -> int | None:
        """The greatest value of a column, NULL if all are null; None if it is not cached."""
        return self._greatest.get(column)


def _constant(chunks: Sequence[pa.Array]) -> tuple[bool, int | str | None]:
    """Whether rows have one value, as far as a quick look tells, and that value; None: all are null."""
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return True, None
    if len(chunks) != 1 or chunks[0].null_count:
        return False, None
    (chunk,) = chunks
    if pa.types.is_dictionary(chunk.type):
        is_constant, code = _constant([chunk.indices])
        return (True, chunk.dictionary[code].as_py()) if is_constant else (False, None)
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


def encode(chunk: pa.Array, known: dict[str, int]) -> np.ndarray:
    """int32[n]: the code of each text, -1 where null; new texts get the next code in `known`."""
    if pa.types.is_null(chunk.type):
        chunk = pa.nulls(len(chunk), pa.string())
    encoded = chunk if pa.types.is_dictionary(chunk.type) else compute.dictionary_encode(chunk)
    indices = arrow.numbers(encoded.indices, -1) if encoded.null_count else arrow.stored(encoded.indices)
    texts = encoded.dictionary
    used = np.zeros(len(texts) + 1, np.bool_)
    used[indices] = True
    used[-1] = False
    if (few := np.flatnonzero(used)).size < len(texts) // _MANY_UNUSED:
        # A window's dictionary holds all strings of the capture so far.
        some = np.full(len(used), -1, np.int32)
        for place in few.tolist():
            text = texts[place].as_py()
            some[place] = -1 if text is None else known.setdefault(text, len(known))
        return np.asarray(some[indices])
    codes = [-1 if text is None else known.setdefault(text, len(known)) for text in texts.to_pylist()]
    result: np.ndarray = np.array([*codes, -1], np.int32)[indices]  # -1 takes the last
    return result
