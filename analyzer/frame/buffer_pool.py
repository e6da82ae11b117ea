"""Memory for the rows of windows, lent again and again.

In: how many numbers are wanted. Out: an array, not filled. Rules: what was lent comes back by itself, once nobody has
the array or a view of it any more; few pieces are kept. A window of small messages has tens of megabytes of rows, which
a few windows later nobody needs: fresh memory for each costs more (the system clears it, page by page) than filling it.
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
"""Below it fresh memory is as good."""

_MOST_FREE: Final = 8
"""Pieces that wait to be lent: two for each window that is put together, waits for more to make a row group, or is
being stored. More are forgotten, the oldest first."""


class Lender:
    """Lends memory. To be asked from one thread; any may give back."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque(maxlen=_MOST_FREE)

    def numbers(self, *shape: int) -> np.ndarray:
        """int64 of this shape, of any content."""
        count = prod(shape)
        if 8 * count < _LEAST_BYTES:
            return np.empty(shape, np.int64)
        piece = self._piece(count)
        # A memoryview between: else views of the array would hold on to the piece, and not to the array.
        array = np.frombuffer(piece.data, np.int64, count)
        weakref.finalize(array, self._free.append, piece).atexit = False
        return array.reshape(shape)

    def _piece(self, count: int) -> np.ndarray:
        """The smallest piece of those that wait that is large enough, else a new one, with room for a window that is
        somewhat larger."""
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
    """Whether this is all of an array that was lent, rather than a view of some of it."""
    whole = array.base
    return isinstance(whole, np.ndarray) and isinstance(whole.base, memoryview) and array.size == whole.size


def give_back() -> None:
    """Look for garbage, and give the system what is free of the memory that this process has: of many pieces large and
    small, each allocator keeps some hundred megabytes."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # where there is no glibc
        ctypes.CDLL(None).malloc_trim(0)
