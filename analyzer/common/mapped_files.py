"""Memory in a file that is written: its blocks are reserved first, so that a full disk is an error and ends no process.

In: a file and a size. Out: a mapping. Rule: every mapping of a file that is written to comes from here. (Where a page
of a mapped file finds no room on the disk, the process dies by SIGBUS; a test looks for other mappings.)
"""

from __future__ import annotations

import mmap
import os
from typing import Final

_ZEROS: Final = bytes(1 << 20)


def reserve(descriptor: int, size: int) -> None:
    """Make a new file `size` bytes long, with a block of the disk behind each of them. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    at = os.fstat(descriptor).st_size  # macOS
    while at < size:
        at += os.pwrite(descriptor, _ZEROS[: size - at], at)


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """Map a new file, to be written: at least one byte. Raises OSError where there is no room."""
    size = max(size, 1)
    reserve(descriptor, size)
    return mmap.mmap(descriptor, size)


def write_all(descriptor: int, data: bytes, at: int) -> None:
    """Write all of `data`, also where the system takes it piece by piece. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written
