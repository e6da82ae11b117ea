"""Rows of numbers with something said beside each, as bytes: a third of what they take as objects of Python.

In: a row of integers, one of which is the number of a text (`number`), and a list of plain values (None, truths,
numbers, text, lists and tuples of these). Out: the rows as one array; what was said, lists in place of tuples. Rule:
nothing is an object while it waits, and so nothing makes nodes where it is stored (`analyzer.checkpoints`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_text = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True)
class SaidRows:
    """So many rows of `width` numbers, in the order in which they came, the one in column `named` that of a text in
    `names`, which are in order of their first row. What is said ends in the heap where a column after these says, and
    begins where that of the row before ends."""

    width: int
    named: int
    names: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _table: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    _count: int = 0
    _heap: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._table = np.zeros((64, self.width + 1), np.int64)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> np.ndarray:
        """int64[n, width]; a view."""
        return self._table[: self._count, : self.width]

    @property
    def nbytes(self) -> int:
        """Memory that is taken."""
        return self._table.nbytes + len(self._heap)

    def number(self, name: str) -> int:
        """Of a text, a new one if it is new."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number

    def known(self, name: str) -> int | None:
        """Of a text that was said; None: it was not."""
        return self._numbers.get(name)

    def put(self, row: Sequence[int], said: list[Any]) -> None:
        """One more."""
        while said and said[-1] is None:
            said.pop()
        self._heap += _text(said).encode()
        if self._count == len(self._table):
            self._grow(self._count + (self._count >> 1))
        self._table[self._count] = (*row, len(self._heap))
        self._count += 1

    def _grow(self, size: int) -> None:
        larger = np.zeros((size, self.width + 1), np.int64)
        larger[: self._count] = self._table[: self._count]
        self._table = larger

    def said(self, place: int, count: int) -> list[Any]:
        """What was said beside a row, so many values of it."""
        found: list[Any] = json.loads(self._heap[self._begin(place) : self._table[place, self.width]])
        return found + [None] * (count - len(found))

    def _begin(self, place: int) -> int:
        return int(self._table[place - 1, self.width]) if place else 0

    def join(self, other: SaidRows) -> None:
        """Take in those of another, after these."""
        more = other._table[: other._count].copy()
        more[:, self.width] += len(self._heap)
        more[:, self.named] = np.array([self.number(name) for name in other.names], np.int64)[more[:, self.named]]
        self._grow(max(self._count + len(more), len(self._table)))
        self._table[self._count : self._count + len(more)] = more
        self._count += len(more)
        self._heap += other._heap

    def some(self, places: np.ndarray) -> SaidRows:
        """Some of them as a collection of their own."""
        made = SaidRows(self.width, self.named)
        taken = self._table[places]
        begins = np.where(places > 0, self._table[places - 1, self.width], 0)
        # Those that stand side by side are taken at once: mostly all do, and as pieces they would be there twice.
        first = np.append(True, places[1:] != places[:-1] + 1)[: len(places)]
        ends = taken[np.append(np.flatnonzero(first)[1:] - 1, len(places) - 1)[: int(first.sum())], self.width]
        heap = memoryview(self._heap)
        for begin, end in zip(begins[first].tolist(), ends.tolist(), strict=True):
            made._heap += heap[begin:end]
        taken[:, self.width] = np.cumsum(taken[:, self.width] - begins)
        taken[:, self.named] = [made.number(self.names[number]) for number in taken[:, self.named].tolist()]
        made._table, made._count = taken, len(taken)
        made._grow(max(len(taken), 64))
        return made
