"""Long arrays in temporary files that are mapped: the system may drop them from memory and read them again.

In: an array, part by part. Out: one array over a file without a name, which ends with the array. So how many exchanges
a RUN has is a matter of disk, and of what is looked at, not of memory. Files are for their owner only.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from analyzer.dataset.dataset import DatasetError

PART: Final = 1 << 16
"""Numbers that are worked on at a time, in memory."""

RECENT: Final = 1 << 14
"""Bytes that wait in memory, of each of what may be a hundred thousand partitions."""


def slices(count: int) -> Iterator[slice]:
    """Parts of so many."""
    return (slice(first, first + PART) for first in range(0, count, PART))


def mapped(parts: Iterable[npt.NDArray[Any]], kind: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
    """The parts, one behind the other. Raises DatasetError where there is no room."""

    def write(file: BinaryIO) -> None:
        for part in parts:
            file.write(np.ascontiguousarray(part, kind).data)

    return _kept(write, np.dtype(kind), "c")


def filled(count: int, value: int) -> npt.NDArray[np.int64]:
    """So many numbers, to be written to. Raises DatasetError where there is no room."""

    def write(file: BinaryIO) -> None:
        for part in slices(count):
            file.write(np.full(min(part.stop, count) - part.start, value, np.int64).data)

    return _kept(write, np.dtype(np.int64), "r+")


class Heap:
    """A temporary file without a name, for what many `Growing`s do not keep in memory. Raises DatasetError where there
    is no room."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._end = 0

    def put(self, data: bytes | bytearray) -> tuple[int, int]:
        """Keep bytes: where they begin, and how many there are."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="kwire-diff-")  # noqa: SIM115 (it ends with this)
            self._file.seek(self._end)
            self._file.write(data)
        except OSError as failure:
            raise no_room(Path(tempfile.gettempdir()), "what was read", failure) from None
        self._end += len(data)
        return self._end - len(data), len(data)

    def get(self, at: int, size: int) -> bytes:
        """Bytes that were kept. Raises DatasetError where those that waited find no room."""
        assert self._file is not None
        try:
            self._file.seek(at)
            return self._file.read(size)
        except OSError as failure:
            raise no_room(Path(tempfile.gettempdir()), "what was read", failure) from None

    def __del__(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


class Growing:
    """Bytes that only grow: the last `RECENT` of them are in memory, the others in a heap's file."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._places: list[tuple[int, int]] = []
        self._recent = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, data: bytes) -> None:
        """Add some."""
        self._recent += data
        self._size += len(data)
        if len(self._recent) >= RECENT:
            self._places.append(self._heap.put(self._recent))
            self._recent = bytearray()

    def data(self) -> bytes:
        """All of them."""
        return b"".join([*(self._heap.get(*place) for place in self._places), self._recent])


def _kept(write: Any, kind: np.dtype[Any], mode: Any) -> npt.NDArray[Any]:
    """`mode`: of `np.memmap`; what is only read is private and may be written to, for kernels are compiled for that."""
    descriptor, path = tempfile.mkstemp(prefix="kwire-diff-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        if not os.stat(path).st_size:
            return np.empty(0, kind)
        return np.memmap(path, kind, mode).view(np.ndarray)
    except OSError as failure:
        if failure.errno is None:
            raise  # of Arrow: the table is damaged
        raise no_room(Path(path).parent, "an index", failure) from None
    finally:
        with contextlib.suppress(PermissionError):  # Windows: it is mapped
            os.unlink(path)


def no_room(folder: Path, what: str, failure: OSError) -> DatasetError:
    """What is said where a temporary file cannot be written."""
    return DatasetError(
        f"{folder}: cannot unpack {what}: {failure.strerror or failure}", "TMPDIR names a folder with more space"
    )
