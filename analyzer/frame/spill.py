"""Arrays of very many rows, in files without a name where they are large, computed block by block.

In: sizes, functions of a block of rows, or parts of unknown number. Out: arrays. A large array is mapped from a file
that the system may write out and read back, so that the memory of a process does not grow with the capture (fresh pages
of a file cost a fraction of fresh memory where a host lends it); temporary results are as large as a block. A
computation whose caller has gone ends between two blocks.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final

import numpy as np

from kwire.analyzer.common import mapped_files
from kwire.analyzer.dataset.dataset import DatasetError
from kwire.analyzer.frame import arrow

BLOCK: Final = 1 << 20
"""Rows computed at a time."""

LARGE_BYTES: Final = 32 << 20
"""An array of as many bytes goes to a file."""


class Cancelled(Exception):
    """Nobody waits for the result any more."""


_cancelled: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("_cancelled", default=None)


@contextlib.contextmanager
def cancellable(cancelled: threading.Event) -> Iterator[None]:
    """Make loops over `blocks` in this context raise Cancelled once the event is set."""
    token = _cancelled.set(cancelled)
    try:
        yield
    finally:
        _cancelled.reset(token)


def check_cancelled() -> None:
    """Raise Cancelled if nobody waits for the result of this context any more."""
    cancelled = _cancelled.get()
    if cancelled is not None and cancelled.is_set():
        raise Cancelled


def blocks(rows: int, size: int | None = None) -> Iterator[slice]:
    """Slices of `size` rows, or `BLOCK`, that cover `rows`. Raises Cancelled."""
    size = size or BLOCK
    for begin in range(0, rows, size):
        check_cancelled()
        yield slice(begin, min(begin + size, rows))


# --- files ------------------------------------------------------------------------------------------------------------


class _FilePool:
    """Files of arrays that are gone, for reuse while a computation runs: getting pages takes longer than filling
    them."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        self._users = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._users += 1

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._free = []

    def acquire(self, size: int) -> mmap.mmap:
        """Return a file of at least `size` bytes: the smallest that is not much larger, or a new one. Raises OSError
        where there is no room."""
        with self._lock:
            fitting = [
                (len(memory), position) for position, memory in enumerate(self._free) if size <= len(memory) <= 2 * size
            ]
            if fitting:
                return self._free.pop(min(fitting)[1])
        with tempfile.TemporaryFile(dir=folder()) as file:
            return mapped_files.mapped(file.fileno(), size)

    def release(self, memory: mmap.mmap) -> None:
        """Offer a file for reuse. Takes no lock, because an array may end while this thread holds it."""
        if self._users:
            self._free.append(memory)


_files: Final = _FilePool()


@contextlib.contextmanager
def reuse() -> Iterator[None]:
    """Let new large arrays take over the files of arrays that are gone."""
    _files.begin()
    try:
        yield
    finally:
        _files.end()


@functools.cache
def folder() -> str:
    """Folder for large temporary files: often `/tmp` is memory itself."""
    usual = "/var/tmp"
    return usual if "TMPDIR" not in os.environ and os.access(usual, os.W_OK) else tempfile.gettempdir()


def no_room(what: str, error: OSError) -> DatasetError:
    """Describe why a temporary file could not be written."""
    hint = "TMPDIR names a folder with more space"
    return DatasetError(f"{folder()}: cannot unpack {what}: {error.strerror or error}", hint)


class Heap:
    """A temporary file without a name that holds the older bytes of many `GrowingBytes`. Raises DatasetError where
    there is no room."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._end = 0

    def put(self, data: bytes | bytearray) -> tuple[int, int]:
        """Append bytes and return their offset and size."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder())  # noqa: SIM115 (it ends with this object)
            self._file.seek(self._end)
            self._file.write(data)
        except OSError as error:
            raise no_room("what was read", error) from None
        self._end += len(data)
        return self._end - len(data), len(data)

    def get(self, offset: int, size: int) -> bytes:
        """Read bytes back. Raises DatasetError if bytes that were still buffered find no room."""
        assert self._file is not None
        try:
            self._file.seek(offset)
            return self._file.read(size)
        except OSError as error:
            raise no_room("what was read", error) from None

    def __del__(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


RECENT_BYTES: Final = 1 << 14
"""Bytes of each `GrowingBytes` that wait in memory: there may be one for each of a hundred thousand partitions."""


class GrowingBytes:
    """Bytes that only grow: the last `RECENT_BYTES` are in memory, the others in a heap."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._stored: list[tuple[int, int]] = []
        self._recent = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, data: bytes) -> None:
        """Append bytes."""
        self._recent += data
        self._size += len(data)
        if len(self._recent) >= RECENT_BYTES:
            self._stored.append(self._heap.put(self._recent))
            self._recent = bytearray()

    def data(self) -> bytes:
        """Return all bytes."""
        return b"".join([*(self._heap.get(*extent) for extent in self._stored), self._recent])


# --- arrays -----------------------------------------------------------------------------------------------------------


def empty(rows: int, dtype: Any, large_bytes: int | None = None) -> np.ndarray:
    """Return an array of any content; it is in memory where a file cannot be made so large."""
    kind = np.dtype(dtype)
    size = rows * kind.itemsize
    if size < (LARGE_BYTES if large_bytes is None else large_bytes) or not size:
        return np.empty(rows, kind)
    try:
        memory = _files.acquire(size)
    except (OSError, AttributeError):  # no room, no folder; macOS has no such call
        return np.empty(rows, kind)
    array = np.frombuffer(memory, kind, rows)
    # Views of the array have it as their base, so the file is released when the last of them is gone.
    weakref.finalize(array, _files.release, memory).atexit = False
    return array


def full(rows: int, value: int, dtype: Any, large_bytes: int | None = None) -> np.ndarray:
    """Return an array of one value that will be written to."""
    out = empty(rows, dtype, large_bytes)
    out.fill(value)
    return out


def concat(parts: Iterable[np.ndarray], dtype: Any = np.int64) -> np.ndarray:
    """Return parts of any number, one after the other, mapped from a file; writes to it stay in memory. Raises
    DatasetError where there is no room."""
    kind = np.dtype(dtype)
    try:
        with tempfile.TemporaryFile(dir=folder()) as file:
            for part in parts:
                file.write(np.ascontiguousarray(part, kind).data)
            file.flush()
            size = file.tell()
            if not size:
                return np.empty(0, kind)
            return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY), kind)
    except OSError as error:
        if error.errno is None:
            raise  # of Arrow: the table is damaged
        raise no_room("an index", error) from None


def compute(rows: int, dtype: Any, values: Callable[[slice], Any]) -> np.ndarray:
    """Return an array of what `values` returns for each block of rows."""
    if rows <= BLOCK:
        single: np.ndarray = values(slice(0, rows))
        return single
    out = empty(rows, dtype)
    for block in blocks(rows):
        out[block] = values(block)
    return out


def where(rows: int, test: Callable[[slice], Any]) -> np.ndarray:
    """int64: the rows for which `test`, which returns bool for each row of a block, is true."""
    return true_rows(compute(rows, np.bool_, test))


def true_rows(mask: np.ndarray) -> np.ndarray:
    """int64: the rows where bool[n] is true."""
    if len(mask) <= BLOCK:
        return np.flatnonzero(mask)
    out = empty(int(np.count_nonzero(mask)), np.int64)
    end = 0
    for block in blocks(len(mask)):
        rows = np.flatnonzero(mask[block])
        np.add(rows, block.start, out=out[end : end + len(rows)])
        end += len(rows)
    return out


def take(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """values[rows]; a column of one repeated value stays without memory."""
    if values.strides == (0,):
        return np.broadcast_to(values[:1], len(rows))
    return compute(len(rows), values.dtype, lambda block: values[rows[block]])


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, in ascending order."""
    result = values[:0]
    for block in blocks(len(values)):
        result = arrow.distinct(np.concatenate([result, arrow.distinct(values[block])]))
    return result


def value_range(values: np.ndarray, null: int) -> tuple[int, int] | None:
    """The least and the greatest value, or None if all are `null`."""
    extremes = []
    for block in blocks(len(values)):
        part = values[block]
        known = part[part != null]
        if len(known):
            extremes += [int(known.min()), int(known.max())]
    return (min(extremes), max(extremes)) if extremes else None
