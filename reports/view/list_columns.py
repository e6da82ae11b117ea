"""Columns of lists (topics, errors), in which equal lists are one.

In: the lengths of n lists and their elements, one behind the other. Out: which distinct list each row has. Rules: few
lists are different, however many rows there are, so what is asked of elements is asked of few; which ones are equal is
told by a fingerprint and then compared, so that it is exact.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

NULL: Final = -(1 << 63)

HASHED: Final = 1 << 20
"""Of more values Arrow finds the distinct ones: loading its functions takes as long as sorting so many."""


@dataclass(frozen=True)
class Listed:
    """A column of lists. `of` int[n]: the list of each row; `ends` int64[l + 1]: where each list's elements begin;
    `code` [m]: which of the column's values an element is, or the error's number; `count` [m]: how often (errors)."""

    of: np.ndarray
    ends: np.ndarray
    code: np.ndarray
    count: np.ndarray | None = None
    _pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list, init=False, repr=False)

    @property
    def lists(self) -> int:
        """How many are different."""
        return len(self.ends) - 1

    def elements(self, row: int) -> slice:
        """The elements of one row."""
        number = int(self.of[row])
        return slice(int(self.ends[number]), int(self.ends[number + 1]))

    def filled(self) -> np.ndarray:
        """bool[l]: lists that have an element."""
        return np.diff(self.ends) > 0

    def extremes(self, values: np.ndarray, largest: bool) -> np.ndarray:
        """int64[l]: the largest, or the smallest, of each list's values (int64[m], one an element; NULL is none); NULL:
        it has none."""
        none = NULL if largest else np.iinfo(np.int64).max
        found = np.full(self.lists, none, np.int64)
        filled = self.filled()
        if filled.any():  # an empty list begins where the next one does
            told = np.where(values == NULL, none, values)
            found[filled] = (np.maximum if largest else np.minimum).reduceat(told, self.ends[:-1][filled])
        found[found == none] = NULL
        return found

    def having(self, passed: np.ndarray) -> np.ndarray:
        """bool[l]: lists with an element that passed (bool[m])."""
        found = np.zeros(self.lists, np.bool_)
        found[self.places()[passed]] = True
        return found

    def places(self) -> np.ndarray:
        """int64[m]: the list of each element."""
        return np.repeat(np.arange(self.lists), np.diff(self.ends))

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Lists and their elements' codes, each code once a list. Made once."""
        if not self._pairs:
            low = int(self.code.min()) if len(self.code) else 0
            span = int(self.code.max()) - low + 1 if len(self.code) else 1
            both = np.unique(self.places() * span + (self.code.astype(np.int64) - low))
            self._pairs.append((both // span, both % span + low))
        return self._pairs[0]


def distinct(lengths: np.ndarray, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which lists are equal: the number of each row's list (int64[n]) and a row that has each (int64[l]), in order of
    first sight. `lengths` int64[n], `elements` int64[sum of lengths]."""
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(elements)) - starts[row]
    while True:  # once, but for a fingerprint that two lists share by chance
        of = numbered(_fingerprints(lengths, elements, place))
        first = np.zeros(int(of.max()) + 1 if len(of) else 0, np.int64)
        first[of[::-1]] = np.arange(len(of))[::-1]
        like = first[of]
        if (lengths[like] != lengths).any():
            continue
        if (elements[starts[like][row] + place] == elements).all():
            return of, first


def numbered(values: np.ndarray) -> np.ndarray:
    """int64[n]: which of the distinct values each is, in order of first sight."""
    if len(values) > HASHED:
        indices = pa.array(values).dictionary_encode().indices
        return np.asarray(indices.to_numpy(zero_copy_only=False).astype(np.int64))
    order = np.argsort(values, kind="stable")
    new = np.ones(len(values), np.bool_)
    new[1:] = values[order[1:]] != values[order[:-1]]
    place = np.empty(len(values), np.int64)
    place[order] = np.cumsum(new) - 1
    rank = np.empty(int(np.count_nonzero(new)), np.int64)
    rank[np.argsort(order[new], kind="stable")] = np.arange(len(rank))
    return rank[place]


def _fingerprints(lengths: np.ndarray, elements: np.ndarray, place: np.ndarray) -> np.ndarray:
    """uint64[n]: sums of mixed elements; the numbers to mix with are drawn, so that nobody can aim at equal ones."""
    a, b, c, d = (np.uint64(secrets.randbits(64) | 1) for _ in range(4))
    mixed = (elements.astype(np.uint64) + a) * b + place.astype(np.uint64) * c
    mixed ^= mixed >> np.uint64(31)
    mixed *= d
    mixed ^= mixed >> np.uint64(29)
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(mixed, out=sums[1:])
    ends = np.cumsum(lengths)
    return np.asarray(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64) * c)
