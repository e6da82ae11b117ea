"""A cache of arrays by name, bounded in bytes.

Rules: the least recently used arrays are evicted first; an array that two threads need at once is made once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

Name = tuple[str, str]


class ArrayCache:
    """A cache of arrays by name, of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._arrays: OrderedDict[Name, np.ndarray] = OrderedDict()
        self._making: dict[Name, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, name: Name) -> np.ndarray | None:
        """Get a cached array; None if it is not there."""
        with self._lock:
            array = self._arrays.get(name)
            if array is not None:
                self._arrays.move_to_end(name)
            return array

    def get_or_make(self, name: Name, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Get a cached array, or make and cache it. Other callers wait while it is being made."""
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            array = self.get(name)
            if array is None:
                array = make()
                self._put(name, array)
        with self._lock:
            self._making.pop(name, None)
        return array

    def _put(self, name: Name, array: np.ndarray) -> None:
        with self._lock:
            self._arrays[name] = array
            self._bytes += array.nbytes
            while self._bytes > self._limit and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes
