"""Numbers of integer keys, in the order in which the keys come.

In: keys, many at a time. Out: the number of each, a new one for a new key. Rule: no object a key, so that a hundred
thousand take 3 MB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kwire.analyzer.frame import arrow

_FEW: Final = 256
"""Keys that stand apart, or one in so many of those that do not."""


def _none() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class NumberedKeys:
    """Keys, and numbers from 0 on.

    _ordered, _numbers      int64[n]: keys in order, and their numbers
    _late, _late_numbers    the latest, which stand apart, so that a new one is put among few
    _by_number              int64[m]: the key of each number; what is behind the last one means nothing
    """

    _ordered: np.ndarray = field(default_factory=_none)
    _numbers: np.ndarray = field(default_factory=_none)
    _late: np.ndarray = field(default_factory=_none)
    _late_numbers: np.ndarray = field(default_factory=_none)
    _by_number: np.ndarray = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self._ordered) + len(self._late)

    @property
    def keys(self) -> np.ndarray:
        """int64[len(self)]: the key of each number."""
        return self._by_number[: len(self)]

    def numbers(self, keys: np.ndarray, most: int | None = None) -> np.ndarray:
        """Return int64[n]: the number of each key, -1 of one that is new where there are `most` already."""
        numbers, missing = _looked_up(self._ordered, self._numbers, keys)
        if not missing.any():
            return numbers
        late = keys[missing]
        of_late, unknown = _looked_up(self._late, self._late_numbers, late)
        if unknown.any():
            fresh = arrow.distinct(late[unknown])
            self._add(fresh if most is None else fresh[: max(most - len(self), 0)])
            of_late, unknown = _looked_up(self._late, self._late_numbers, late)
        numbers[missing] = np.where(unknown, -1, of_late)
        if len(self._late) > max(_FEW, len(self._ordered) // _FEW):
            self._ordered, self._numbers = _put(self._ordered, self._numbers, self._late, self._late_numbers)
            self._late, self._late_numbers = _none(), _none()
        return numbers

    def _add(self, fresh: np.ndarray) -> None:
        """Number keys that are in order, each once."""
        begin, end = len(self), len(self) + len(fresh)
        if end > len(self._by_number):
            grown = np.empty(max(end, len(self._by_number) + (len(self._by_number) >> 1)), np.int64)
            grown[:begin] = self.keys
            self._by_number = grown
        self._by_number[begin:end] = fresh
        self._late, self._late_numbers = _put(self._late, self._late_numbers, fresh, np.arange(begin, end))


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (the value of each key that is wanted, bool: it has none). keys int64[n] in order; values int64[n]."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64), np.ones(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return values[at], keys[at] != wanted


def _put(keys: np.ndarray, values: np.ndarray, more: np.ndarray, of_more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Insert keys with their values, in order."""
    at = np.searchsorted(keys, more)
    return np.insert(keys, at, more), np.insert(values, at, of_more)
