"""Convert rows of integers to the columns of a table.

In: int64[columns, n] of some windows, `NULL` where null. Out: an Arrow array for each column, assembled when it is
used. The numbers of nulls, minima and maxima of all columns are computed in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.frame import arrow
from kwire.captures import cast
from kwire.captures.kernels import NULL

_WIDE: Final = 64
_LARGEST: Final = (1 << 63) - 1


def frozen(array: np.ndarray) -> np.ndarray:
    """Return a read-only view of an array, because kernels are compiled for that once."""
    frozen_array = np.ascontiguousarray(array).view()
    frozen_array.flags.writeable = False
    return frozen_array


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate parts; a single part is not copied."""
    return frozen(parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts]))


class IntegerColumns:
    """Columns of integers of some windows, each assembled when it is used, because together they would be tens of
    megabytes of fresh memory. `wanted`: all columns that will be used; `narrow`: those of 8, 16 or 32 bits."""

    def __init__(self, parts: Sequence[np.ndarray], wanted: Iterable[int], narrow: Mapping[int, Sequence[int]]) -> None:
        self.parts = [frozen(part) for part in parts]
        *self._begins, self.rows = np.cumsum([0, *(part.shape[1] for part in self.parts)]).tolist()
        self._found = self._look(np.array(sorted(wanted), np.int64))
        self._narrow = {bits: self._narrowed(bits, columns) for bits, columns in narrow.items()}

    def _look(self, wanted: np.ndarray) -> list[list[int]]:
        statistics = np.zeros((len(self.parts), int(wanted.max(initial=0)) + 1, 3), np.int64)
        for part, its in zip(self.parts, statistics, strict=True):
            cast.look(part, wanted, its)
        absent, least, greatest = statistics.transpose(2, 1, 0)
        together = absent.sum(axis=1), least.min(axis=1, initial=_LARGEST), greatest.max(axis=1, initial=NULL)
        known: list[list[int]] = np.stack(together, axis=1).tolist()
        return known

    def _narrowed(self, bits: int, columns: Sequence[int]) -> dict[int, np.ndarray]:
        there = [column for column in columns if self.absent(column) < self.rows]
        out = np.empty((len(there), self.rows), f"i{bits // 8}")
        which = np.array(there, np.int64)
        for part, at in self.each():
            cast.narrow(part, which, out, at)
        return dict(zip(there, out, strict=True))

    def __getitem__(self, column: int) -> np.ndarray:
        """A column as int64[rows]."""
        return joined([part[column] for part in self.parts])

    def each(self) -> Iterator[tuple[np.ndarray, int]]:
        """Windows, and where the rows of each begin."""
        return zip(self.parts, self._begins, strict=True)

    def absent(self, column: int) -> int:
        """Number of nulls of a column."""
        return self._found[column][cast.ABSENT]

    def within(self, column: int, count: int) -> bool:
        """Whether all numbers of a column are from 0 to `count` - 1."""
        return self._found[column][cast.LEAST] >= 0 and self._found[column][cast.GREATEST] < count

    def only(self, column: int, value: int) -> bool:
        """Whether a column has no other number than this one."""
        return self.absent(column) == self.rows or self._found[column][1:] == [value, value]

    def bits(self, column: int) -> np.ndarray | None:
        """Validity bits of a column, as Arrow has them; None without nulls."""
        if not self.absent(column):
            return None
        bits = np.zeros(-(-self.rows // 8), np.uint8)
        for part, at in self.each():
            cast.marks(part[column], bits, at)
        return bits

    def formed(self, column: int, kind: pa.DataType) -> pa.Array:
        """A column of integers or times."""
        absent = self.absent(column)
        if absent == self.rows:
            return arrow.nothing(kind, self.rows)
        values = self[column] if kind.bit_width == _WIDE else self._narrow[kind.bit_width][column]
        return arrow.formed(values, kind, self.bits(column), absent)

    def coded(self, column: int, values: Sequence[str]) -> pa.Array:
        """A column of strings, by their indices in `values`."""
        return arrow.coded(self.formed(column, pa.int32()), values)

    def strings(self, column: int, values: list[str]) -> pa.Array:
        """Like `coded`, for few of many `values`: the column's dictionary has only those in use."""
        absent = self.absent(column)
        if absent == self.rows:
            return arrow.coded(arrow.nothing(pa.int32(), self.rows), [])
        used, local = in_use(self[column], len(values))
        where = arrow.formed(local, pa.int32(), self.bits(column), absent)
        return arrow.coded(where, [values[i] for i in used.tolist()])


def in_use(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(numbers in use below `count`, ascending; int32[n]: position of each row's number among them, 0 where null)."""
    place, local = np.empty(count, np.int32), np.empty(len(values), np.int32)
    cast.compact(frozen(values), place, local)
    return np.flatnonzero(place >= 0), local


def narrow(columns: Iterable[tuple[int, pa.DataType]], more: Sequence[int] = ()) -> dict[int, list[int]]:
    """Map 8, 16 and 32 bits to those of the columns that have this width; `more`: further columns of 32."""
    by_bits: dict[int, list[int]] = {8: [], 16: [], 32: [*more]}
    for column, kind in columns:
        if pa.types.is_integer(kind) and kind.bit_width < _WIDE:
            by_bits[kind.bit_width].append(column)
    return by_bits
