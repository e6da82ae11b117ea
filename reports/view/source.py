"""The filter language over mapped columns.

In: `Columns`. Out: a source of `analyzer.filter`, so that the page's filter is the one of `kwire show`. Rules: a test
is asked of distinct values and lists, of which there are few, and once; rows only see which of them passed. They come
in parts, so that what is worked on stays in the processor's cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from analyzer.filter.conditions import Test, apply_test
from analyzer.filter.sources import Coded, ExchangeColumns, Ints, TextLists
from analyzer.frame.counting import select_codes
from reports.view.columns import Columns

Memory = dict[Any, np.ndarray]
"""What tests said of distinct values."""


class MappedColumns(ExchangeColumns):
    """A part of the rows of a view's columns; `memory` is shared by the parts."""

    def __init__(self, columns: Columns, part: slice, memory: Memory) -> None:
        self.columns = columns
        self.n = part.stop - part.start
        self._part = part
        self._memory = memory

    def integers(self, name: str) -> Ints | None:
        if name == "api":
            keys, present = self._integer("api_key")
            return keys, present & (self.columns.codes["api"][self._part] >= 0)
        return self._integer(name) if name in self.columns.integers else None

    def _integer(self, name: str) -> Ints:
        values = self.columns.integers[name][self._part]
        return values, values != np.iinfo(values.dtype).min

    def texts(self, name: str) -> Coded | None:
        codes = self.columns.codes[name][self._part]
        return codes, codes >= 0, self.columns.values[name]

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        return self.texts(_ADDRESS[names[0]])

    def test_texts(self, test: Test, texts: Coded) -> np.ndarray:
        codes, _, values = texts
        name = (test, id(values))
        if name not in self._memory:
            self._memory[name] = np.fromiter(map(test, values), np.bool_, len(values))
        return select_codes(self._memory[name], codes)

    def topics(self, name: str) -> TextLists | None:
        topics = self.columns.topics
        there = topics.code >= 0
        places, codes = topics.places()[there], topics.code[there].astype(np.int64)
        return _Lists(
            topics.of[self._part],
            topics.lists,
            places,
            codes,
            np.zeros(len(codes), np.bool_),
            self.columns.values["topics"],
        )

    def rows_with_text(self, name: str, test: Test | None) -> tuple[np.ndarray, np.ndarray]:
        topics, values = self.columns.topics, self.columns.values["topics"]
        if (name, test) not in self._memory:
            right = np.fromiter((test is None or test(value) for value in values), np.bool_, len(values))
            self._memory[name, test] = topics.having(np.append(right, False)[topics.code])
        true = select_codes(self._memory[name, test], topics.of[self._part])
        return true, ~true

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        raise NotImplementedError("of lists of errors only `rows_with_error` and `error_counts` are used")

    def rows_with_error(self, test: Test | None) -> np.ndarray:
        errors = self.columns.errors
        if ("errors", test) not in self._memory:
            right = errors.filled() if test is None else errors.having(apply_test(test, errors.code))
            self._memory["errors", test] = right
        return select_codes(self._memory["errors", test], errors.of[self._part])

    def error_counts(self) -> np.ndarray:
        errors = self.columns.errors
        return np.asarray(np.diff(errors.ends)[errors.of[self._part]])


class _Lists(TextLists):
    """Lists of which rows know the number."""

    def rows(self, passed: np.ndarray) -> np.ndarray:
        lists = np.zeros(self.lists, np.bool_)
        lists[self.element[passed]] = True
        return select_codes(lists, self.list_of)


_ADDRESS: Final = {"client_ip": "client", "broker_ip": "broker"}
