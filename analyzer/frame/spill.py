"""Arrays with a value for each of very many rows: where they lie, and how rows of them are chosen and taken.

In: arrays, and how many rows. Out: arrays. Rules: a large one lies in a file without a name, which the system may write
out and read back, so that what a process holds does not grow with what was captured (and fresh pages of a file cost a
fraction of what those of memory cost where a host lends it); what is worked out on the way is as large as a block.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from analyzer.frame import arrow

BLOCK: Final = 1 << 20
"""Rows worked on at a time."""

LARGE_BYTES: Final = 32 << 20
"""What an array has that lies in a file."""


class _Files:
    """Files whose arrays are gone, kept while somebody works who may need the like: their pages are there, and to get
    pages takes longer than to fill them."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        self._workers = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._workers += 1

    def end(self) -> None:
        with self._lock:
            self._workers -= 1
            if not self._workers:
                self._free = []

    def take(self, size: int) -> mmap.mmap:
        """One of at least so many bytes: the smallest that is not much larger, or a new one. Raises OSError where there
        is no room for that."""
        with self._lock:
            fitting = [(len(one), at) for at, one in enumerate(self._free) if size <= len(one) <= 2 * size]
            if fitting:
                return self._free.pop(min(fitting)[1])
        with tempfile.TemporaryFile(dir=_folder()) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would end the process at some access
            return mmap.mmap(file.fileno(), size)

    def give_back(self, memory: mmap.mmap) -> None:
        """Without the lock: an array may end while this thread has it."""
        if self._workers:
            self._free.append(memory)


_files: Final = _Files()


@contextlib.contextmanager
def reuse() -> Iterator[None]:
    """Large arrays that are gone make room for others meanwhile."""
    _files.begin()
    try:
        yield
    finally:
        _files.end()


def empty(rows: int, dtype: Any) -> np.ndarray:
    """An array, whatever is in it. Where a file cannot be made so large, it is in memory."""
    kind = np.dtype(dtype)
    size = rows * kind.itemsize
    if size < LARGE_BYTES:
        return np.empty(rows, kind)
    try:
        memory = _files.take(size)
    except (OSError, AttributeError):  # no room, no folder; macOS has no such call
        return np.empty(rows, kind)
    array = np.frombuffer(memory, kind, rows)
    # What is a part of the array has it as its base, so nothing is left of it when it is gone.
    weakref.finalize(array, _files.give_back, memory).atexit = False
    return array


def full(rows: int, value: int, dtype: Any) -> np.ndarray:
    """An array of one value, which is going to be written to."""
    out = empty(rows, dtype)
    out.fill(value)
    return out


@functools.cache
def _folder() -> str:
    """Where large temporary files belong: often `/tmp` is memory itself."""
    usual = "/var/tmp"
    return usual if "TMPDIR" not in os.environ and os.access(usual, os.W_OK) else tempfile.gettempdir()


def blocks(rows: int) -> Iterator[slice]:
    """So many rows, a block at a time."""
    for begin in range(0, rows, BLOCK):
        yield slice(begin, min(begin + BLOCK, rows))


def made(rows: int, dtype: Any, values: Callable[[slice], Any]) -> np.ndarray:
    """An array of what `values` gives for each block."""
    if rows <= BLOCK:
        only: np.ndarray = values(slice(0, rows))
        return only
    out = empty(rows, dtype)
    for block in blocks(rows):
        out[block] = values(block)
    return out


def where(rows: int, test: Callable[[slice], Any]) -> np.ndarray:
    """int64: the rows of which `test` is true; it gives bool for each of a block."""
    return true(made(rows, np.bool_, test))


def true(values: np.ndarray) -> np.ndarray:
    """int64: which of bool[n] are true."""
    if len(values) <= BLOCK:
        return np.flatnonzero(values)
    out = empty(int(np.count_nonzero(values)), np.int64)
    at = 0
    for block in blocks(len(values)):
        some = np.flatnonzero(values[block])
        np.add(some, block.start, out=out[at : at + len(some)])
        at += len(some)
    return out


def taken(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """values[at]; where all values are one, they still take no memory."""
    if values.strides == (0,):
        return np.broadcast_to(values[:1], len(at))
    return made(len(at), values.dtype, lambda block: values[at[block]])


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, in order."""
    found = values[:0]
    for block in blocks(len(values)):
        found = arrow.distinct(np.concatenate([found, arrow.distinct(values[block])]))
    return found


def extent(values: np.ndarray, absent: int) -> tuple[int, int] | None:
    """The least and the greatest value that are not `absent`; None: there is none."""
    found = []
    for block in blocks(len(values)):
        some = values[block]
        known = some[some != absent]
        if len(known):
            found += [int(known.min()), int(known.max())]
    return (min(found), max(found)) if found else None
