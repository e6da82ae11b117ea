"""Memory for chunks of captured packets, used again once nobody refers to a chunk.

In: an address and a length. Out: a copy of the bytes there. Rule: fresh memory is cleared by the kernel, page by page,
which costs twice what the copy into it does where a gigabyte comes in two seconds.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any, Final

CHUNK_BYTES: Final = 1 << 20
"""Target size of a chunk: a piece that stays in a core's own cache until it is copied."""

_SIZES: Final = range(16, 22)
"""Powers of two that pieces of memory are, so that a chunk takes at least half of its piece; a smaller chunk is a
Python object of its own, as cheap as one of these, and so is a larger one."""

_MOST_KEPT: Final = 8


class ChunkMemory:
    """See above. A chunk may be let go of by any thread."""

    def __init__(self) -> None:
        self._kinds: dict[int, Any] = {power: ctypes.c_char * (1 << power) for power in _SIZES}
        self._free: dict[int, deque[bytearray]] = {power: deque(maxlen=_MOST_KEPT) for power in _SIZES}

    def copied(self, address: int, size: int) -> bytes | memoryview:
        """Return a copy of the bytes at an address."""
        power = (size - 1).bit_length()
        free = self._free.get(power)
        if free is None:
            return ctypes.string_at(address, size)
        try:
            memory = free.pop()
        except IndexError:
            memory = bytearray(1 << power)
        # All views of a view refer to this object, and so it lives as long as the last of them.
        lent = self._kinds[power].from_buffer(memory)
        weakref.finalize(lent, free.append, memory).atexit = False
        ctypes.memmove(lent, address, size)
        return memoryview(lent).cast("B")[:size]
