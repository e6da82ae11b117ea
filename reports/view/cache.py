"""Arrays that took time to make, kept by name, bounded in bytes.

Rules: those not asked for longest go first; what two ask for at once is made once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

Name = tuple[str, str]


class Kept:
    """Arrays by name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._arrays: OrderedDict[Name, np.ndarray] = OrderedDict()
        self._making: dict[Name, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, name: Name) -> np.ndarray | None:
        """What is kept under a name."""
        with self._lock:
            found = self._arrays.get(name)
            if found is not None:
                self._arrays.move_to_end(name)
            return found

    def made(self, name: Name, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What is kept under a name, or what `make` makes, which is kept. Who comes while it is being made waits."""
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            found = self.get(name)
            if found is None:
                found = make()
                self._put(name, found)
        with self._lock:
            self._making.pop(name, None)
        return found

    def _put(self, name: Name, array: np.ndarray) -> None:
        with self._lock:
            self._arrays[name] = array
            self._bytes += array.nbytes
            while self._bytes > self._limit and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes
