"""Long arrays in temporary files that are mapped: the system may drop them from memory and read them again.

In: an array, part by part. Out: one array over a file without a name, which ends with the array. So how many exchanges
a RUN has is a matter of disk, and of what is looked at, not of memory. Files are for their owner only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from analyzer.dataset import DatasetError

PART: Final = 1 << 16
"""Numbers that are worked on at a time, in memory."""


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
        os.unlink(path)


def no_room(folder: Path, what: str, failure: OSError) -> DatasetError:
    """What is said where a temporary file cannot be written."""
    return DatasetError(
        f"{folder}: cannot unpack {what}: {failure.strerror or failure}", "TMPDIR names a folder with more space"
    )
