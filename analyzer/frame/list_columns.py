"""Columns of lists (topics, errors), with equal lists stored once.

In: the lengths of n lists and their concatenated elements. Out: the number of each row's distinct list. Rules: few
lists are distinct, however many rows there are, so elements are tested rarely; equal lists are found by a fingerprint
and then compared, so the result is exact.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.common import compute

NULL: Final = -(1 << 63)

HASHED: Final = 1 << 20
"""Values from which Arrow numbers distinct ones faster: loading its functions takes as long as sorting that many."""


@dataclass(frozen=True)
class ListColumn:
    """A column of lists.

    of      int[n]        number of each row's list
    ends    int64[l + 1]  where each list's elements begin, and the last one's end
    code    int[m]        each element's index in the values, -1 for null, or its number if there are no values
    count   int32[m]      how often an error occurs
    values  distinct texts of the elements
    """

    of: np.ndarray
    ends: np.ndarray
    code: np.ndarray
    count: np.ndarray | None = None
    values: Sequence[str] | None = None
    _pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list, init=False, repr=False)

    @property
    def lists(self) -> int:
        """Number of distinct lists."""
        return len(self.ends) - 1

    def elements(self, row: int) -> slice:
        """Get the slice of a row's elements."""
        number = int(self.of[row])
        return slice(int(self.ends[number]), int(self.ends[number + 1]))

    def filled(self) -> np.ndarray:
        """Mark lists that have an element: bool[l]."""
        return np.diff(self.ends) > 0

    def extremes(self, values: np.ndarray, largest: bool) -> np.ndarray:
        """Get the largest or smallest of each list's values: int64[l], NULL if it has none. `values`: int64[m], one per
        element, NULL for none."""
        none = NULL if largest else np.iinfo(np.int64).max
        extremes = np.full(self.lists, none, np.int64)
        filled = self.filled()
        if filled.any():  # an empty list begins where the next one does
            given = np.where(values == NULL, none, values)
            extremes[filled] = (np.maximum if largest else np.minimum).reduceat(given, self.ends[:-1][filled])
        extremes[extremes == none] = NULL
        return extremes

    def having(self, passed: np.ndarray) -> np.ndarray:
        """Mark lists with an element that passed (bool[m]): bool[l]."""
        lists = np.zeros(self.lists, np.bool_)
        lists[self.places()[passed]] = True
        return lists

    def places(self) -> np.ndarray:
        """Get the list of each element: int64[m]."""
        return np.repeat(np.arange(self.lists), np.diff(self.ends))

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Get lists and their elements' codes, each code once per list. Cached."""
        if not self._pairs:
            low = int(self.code.min()) if len(self.code) else 0
            span = int(self.code.max()) - low + 1 if len(self.code) else 1
            both = np.unique(self.places() * span + (self.code.astype(np.int64) - low))
            self._pairs.append((both // span, both % span + low))
        return self._pairs[0]


def distinct(lengths: np.ndarray, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number equal lists by their first occurrence: each row's list (int64[n]), and the first row of each list
    (int64[l]). `lengths`: int64[n]; `elements`: int64[sum of lengths]."""
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(elements)) - starts[row]
    while True:  # repeated only if two lists share a fingerprint by chance
        of = numbered(_fingerprints(lengths, elements, place))
        first = np.zeros(int(of.max()) + 1 if len(of) else 0, np.int64)
        first[of[::-1]] = np.arange(len(of))[::-1]
        like = first[of]
        if (lengths[like] != lengths).any():
            continue
        if (elements[starts[like][row] + place] == elements).all():
            return of, first


def numbered(values: np.ndarray) -> np.ndarray:
    """Number distinct values by their first occurrence: int64[n]."""
    if len(values) > HASHED:
        indices = compute.dictionary_encode(pa.array(values)).indices
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
    """Hash lists: uint64[n], sums of mixed elements, with random multipliers so that collisions cannot be forged."""
    a, b, c, d = (np.uint64(secrets.randbits(64) | 1) for _ in range(4))
    mixed = (elements.astype(np.uint64) + a) * b + place.astype(np.uint64) * c
    mixed ^= mixed >> np.uint64(31)
    mixed *= d
    mixed ^= mixed >> np.uint64(29)
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(mixed, out=sums[1:])
    ends = np.cumsum(lengths)
    return np.asarray(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64) * c)
