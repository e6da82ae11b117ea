"""Columns of n rows: integers, text as codes into its values, and lists as offsets.

In: arrays, or a function that loads a column by name. Out: arrays, and frames of some of the rows. The least value of
an array's type means null, and code -1. A column is loaded, or taken from the frame below, when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.grouping import Groups

NULL: Final = np.iinfo(np.int64).min
"""Null in an array of int64."""


class Codes(NamedTuple):
    """A column of text: codes int[n], which of `values` each row has, -1 where null."""

    codes: np.ndarray
    values: list[str]

    def codes_of(self, *texts: str) -> list[int]:
        """The codes of these texts."""
        return codes_of(self.values, *texts)

    def matches(self, *texts: str) -> np.ndarray:
        """bool[n]: whether a row has one of these texts."""
        codes = self.codes_of(*texts)
        return spill.compute(len(self.codes), np.bool_, lambda block: arrow.among(self.codes[block], codes))

    def rows(self, *texts: str) -> np.ndarray:
        """int64: the rows that have one of these texts."""
        return spill.true_rows(self.matches(*texts))

    def take(self, rows: np.ndarray) -> Codes:
        """Take these rows of the column."""
        return Codes(spill.take(self.codes, rows), self.values)

    def rename(self, name: Callable[[str], str]) -> Codes:
        """Replace each value by its name; values that get the same name become one."""
        positions: dict[str, int] = {}
        codes = np.array([*(positions.setdefault(name(value), len(positions)) for value in self.values), -1], np.int32)
        return Codes(spill.take(codes, self.codes), list(positions))


def codes_of(values: Sequence[str], *texts: str) -> list[int]:
    """The codes of those of `values` that are one of `texts`."""
    wanted = frozenset(texts)
    return [code for code, value in enumerate(values) if value in wanted]


class Lists(NamedTuple):
    """A column of lists: row i has the elements offsets[i] to offsets[i + 1]; a null has none."""

    offsets: np.ndarray
    elements: Frame

    def take(self, rows: np.ndarray) -> Lists:
        """Take these rows of the column."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        elements = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Lists(offsets, self.elements.take(elements))


Column: TypeAlias = "np.ndarray | Codes | Lists"


class Frame:
    """`rows` rows of named columns. `load` returns a column that is not in `columns`; without it, KeyError."""

    def __init__(
        self, rows: int, columns: Mapping[str, Column] | None = None, load: Callable[[str], Column] | None = None
    ) -> None:
        self.length = rows
        self._columns: dict[str, Column] = dict(columns or {})
        self._load = load

    def __len__(self) -> int:
        return self.length

    def column(self, name: str) -> Column:
        """A column of any kind. Raises KeyError."""
        if name not in self._columns and self._load is not None:
            self._columns[name] = self._load(name)
        return self._columns[name]

    def __getitem__(self, name: str) -> np.ndarray:
        """A column of integers, times (us) or truths. Raises KeyError."""
        column = self.column(name)
        assert isinstance(column, np.ndarray), name
        return column

    def text(self, name: str) -> Codes:
        """A column of text. Raises KeyError."""
        column = self.column(name)
        assert isinstance(column, Codes), name
        return column

    def lists(self, name: str) -> Lists:
        """A column of lists. Raises KeyError."""
        column = self.column(name)
        assert isinstance(column, Lists), name
        return column

    def take(self, rows: np.ndarray) -> Frame:
        """These rows, in this order."""

        def load(name: str) -> Column:
            column = self.column(name)
            return spill.take(column, rows) if isinstance(column, np.ndarray) else column.take(rows)

        return Frame(len(rows), load=load)

    def where(self, mask: np.ndarray) -> Frame:
        """The rows for which bool[n] is true."""
        return self.take(spill.true_rows(mask))

    def sort(self, *names: str) -> Frame:
        """The rows in order of columns, by their codes where they are text; equal ones as they stand."""
        return self.take(self.group(*names).order)

    def group(self, *names: str) -> Groups:
        """Group the rows by columns."""
        return grouping.group(*map(self._key, names))

    def with_columns(self, **columns: Column) -> Frame:
        """Add columns, or replace those of the same name."""
        return Frame(len(self), columns, self.column)

    def left_join(self, other: Frame, on: Sequence[str], take: Sequence[str]) -> Frame:
        """Add integer columns of the first row of `other` that has equal values in the columns `on`; null where there
        is none."""
        match = grouping.left_join([self[name] for name in on], [other[name] for name in on])
        is_complete = int(match.min(initial=0)) >= 0

        def joined(values: np.ndarray) -> np.ndarray:
            null = np.iinfo(values.dtype).min
            if is_complete:
                return spill.take(values, match)
            if not len(values):
                return np.full(len(match), null, values.dtype)

            def of_block(block: slice) -> np.ndarray:
                rows = match[block]
                return np.asarray(np.where(rows >= 0, values[rows], values.dtype.type(null)))

            return spill.compute(len(match), values.dtype, of_block)

        return self.with_columns(**{name: joined(other[name]) for name in take})

    def _key(self, name: str) -> np.ndarray:
        column = self.column(name)
        assert not isinstance(column, Lists), name
        return column.codes if isinstance(column, Codes) else column
