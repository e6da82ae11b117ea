"""Reuse memory for the rows of windows.

In: a shape. Out: an array of any content. Memory returns to the pool by itself when the array and all its views are
gone; the pool keeps few pieces. A window of small messages has tens of megabytes of rows that are not needed a few
windows later, and fresh memory, which the system clears page by page, costs more than filling it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections import deque
from math import prod
from typing import Final

import numpy as np
import pyarrow as pa

_LEAST_BYTES: Final = 1 << 20
"""Smaller arrays get fresh memory, which is as fast."""

_MOST_FREE: Final = 8
"""Free pieces in the pool: two for each window that is assembled, waits for a row group, or is being stored. The oldest
are dropped."""


class BufferPool:
    """A pool of memory. One thread may take from it; any thread may release."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque(maxlen=_MOST_FREE)

    def numbers(self, *shape: int) -> np.ndarray:
        """Return int64 of this shape, of any content."""
        count = prod(shape)
        if 8 * count < _LEAST_BYTES:
            return np.empty(shape, np.int64)
        piece = self._piece(count)
        # A memoryview between: else views of the array would hold on to the piece, and not to the array.
        array = np.frombuffer(piece.data, np.int64, count)
        weakref.finalize(array, self._free.append, piece).atexit = False
        return array.reshape(shape)

    def _piece(self, count: int) -> np.ndarray:
        """Return the smallest free piece that is large enough, else a new one, with room for a somewhat larger
        window."""
        fitting = [piece for piece in list(self._free) if count <= len(piece) <= 4 * count]
        if not fitting:
            return np.empty(count + count // 4, np.int64)
        smallest = min(fitting, key=len)
        for _ in range(len(self._free)):
            piece = self._free.popleft()
            if piece is smallest:
                break
            self._free.append(piece)
        return smallest


def lent(array: np.ndarray) -> bool:
    """Whether this is a whole array of the pool, rather than a view of a part."""
    whole = array.base
    return isinstance(whole, np.ndarray) and isinstance(whole.base, memoryview) and array.size == whole.size


def give_back() -> None:
    """Collect garbage, and return free memory to the system, because each allocator keeps some hundred megabytes."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # where there is no glibc
        ctypes.CDLL(None).malloc_trim(0)
