"""Mapped columns as columns that filters are evaluated on.

In: `Columns`. Out: `ExchangeColumns` of `kwire.analyzer.filter`, so that the page's filter is the one of `kwire show`.
Rules: a test is applied once to each distinct value and list, of which there are few, and rows only look up the result.
They are processed in slices that fit the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from kwire.analyzer.filter.conditions import Test
from kwire.analyzer.filter.sources import Coded, ExchangeColumns, null_of
from kwire.analyzer.frame.list_columns import ListColumn
from kwire.reports.view.columns import Columns

Memory = dict[Any, Any]
"""Results of tests on distinct values and lists."""


class MappedColumns(ExchangeColumns):
    """A slice of the rows of a view's columns; `memory` is shared by the slices."""

    def __init__(self, columns: Columns, part: slice, memory: Memory) -> None:
        self.columns = columns
        self.n = part.stop - part.start
        self._part = part
        self._memory = memory

    def integers(self, name: str) -> np.ndarray | None:
        if name == "api":
            keys, unknown = self.columns.integers["api_key"][self._part], self.columns.codes["api"][self._part] < 0
            return np.where(unknown, keys.dtype.type(null_of(keys)), keys) if unknown.any() else keys
        return self.columns.integers[name][self._part] if name in self.columns.integers else None

    def texts(self, name: str) -> Coded:
        return Coded(self.columns.codes[name][self._part], self.columns.values[name])

    def addresses(self, names: tuple[str, ...]) -> Coded:
        return self.texts(_ADDRESS[names[0]])

    def lists(self, name: str) -> ListColumn:
        column = self.columns.errors if name == "errors" else self.columns.topics
        return replace(column, of=column.of[self._part])

    def test_values(self, test: Callable[[Any], bool], coded: Coded) -> np.ndarray:
        key = (test, id(coded.values))
        if key not in self._memory:
            self._memory[key] = np.fromiter(map(test, coded.values), np.bool_, len(coded.values))
        return np.asarray(self._memory[key])

    def test_lists(self, column: ListColumn, test: Test | None) -> tuple[np.ndarray, np.ndarray | None]:
        key = (test, id(column.code))
        if key not in self._memory:
            self._memory[key] = super().test_lists(column, test)
        certain, perhaps = self._memory[key]
        return certain, perhaps


_ADDRESS: Final = {"client_ip": "client", "broker_ip": "broker"}
