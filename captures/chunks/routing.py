"""One share's packets of all chunks of a capture point, in order.

In: what `sorting` stored of all chunks, and which groups of four-tuples are the share's. Out: its packets as a `Reader`
gives all: the same batches, the same rows. Of packets of others only the time is known, and that they are others'
(their number is OTHERS); or, where a share is to see all, what tells connections apart.

Rules: a group has both directions of its four-tuples, so a share knows its connections by its own packets and by the
clock, unless so many four-tuples come and go in so long a time that some are forgotten (`sorting.apart`): which, and so
how connections are numbered afterwards, all of them decide together. Files are read as they were written.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Sequence
from typing import Final

import numpy as np

from captures.chunks.reading import Heard, changed
from captures.chunks.rows import WAY_WORDS, WORDS, as_words, draw_together, place_rows, tell_rows
from captures.chunks.sorting import LINE, Scratch, Stored
from captures.files import CaptureError, CapturePoint, FileInfo
from captures.flows import OTHERS
from captures.kernels import NULL
from captures.packed import ABOUT, Packed
from captures.packets import Packets, Reader, batch
from captures.windows import SMALLEST_ROW_BYTES, Pool, Window

_KNOWN: Final = 0
"""The number of a packet of others of which more is known than its time."""


class Routed(Reader):
    """A share's packets of all chunks; `said` is what they say together. Packets of others are rows too, of which only
    the time is right, and `number`, which is OTHERS; of `every` one, what tells connections apart. `groups`: those of
    the share."""

    def __init__(
        self, point: CapturePoint, said: Heard, stored: Sequence[Stored], groups: Sequence[int], every: bool = False
    ) -> None:
        super().__init__(point)
        self.files = list(said.files)
        self.notes = list(said.notes)
        self.secrets, self.secrets_at = list(said.secrets), list(said.secrets_at)
        self._counts, self._dropped = said.counts, said.dropped
        self._parts, self._groups, self._every = stored, groups, every
        self._most = 0
        self._memory = Scratch()

    def _read(self) -> Generator[Packets, None, None]:
        for one in self._parts:
            capture = _InPlace(self.point, one.file, self.files[one.file])
            with open(one.path, "rb", buffering=0) as file, capture:
                file.seek(one.size - 16)
                batches, groups = np.frombuffer(file.read(16), np.int64).tolist()
                words = 2 * groups + LINE
                file.seek(one.size - 16 - 8 * batches * words)
                lines = _whole(file, 8 * batches * words).view(np.int64).reshape(batches, words)
                for line in lines.tolist():
                    yield self._batch(file, capture, one, line)

    def _batch(self, file: io.FileIO, capture: _InPlace, one: Stored, line: list[int]) -> Packets:
        count, first, stay, times_at, ways_at, rows_at, content_at = line[:LINE]
        groups = (len(line) - LINE) // 2
        row_ends, byte_ends = ([0, *line[begin : begin + groups]] for begin in (LINE, LINE + groups))
        lengths = [byte_ends[group + 1] - byte_ends[group] for group in self._groups]
        window = self._room(max(stay or sum(lengths), count * SMALLEST_ROW_BYTES))
        packets = batch(window, count)
        columns = as_words(packets.columns)
        _packed(file, times_at, ways_at).spread(0, columns.time_ns)
        columns.number[:] = _KNOWN if self._every else OTHERS
        columns.file[:] = one.file
        file.seek(ways_at)
        ways = _whole(file, rows_at - ways_at).view(np.int64).reshape(-1, WAY_WORDS)
        put = window.spare
        for group in range(groups) if self._every else self._groups:
            begin, end = (rows_at + 8 * WORDS * row for row in row_ends[group : group + 2])
            rows = self._rows_at(file, begin, end)
            tell_rows(rows, ways, columns)
            if group in self._groups:
                place_rows(rows, first + one.number, NULL if stay else put, columns)
                put += byte_ends[group + 1] - byte_ends[group]
        content = memoryview(packets.buffer.data)[window.spare :]
        if stay:
            places = np.empty((2, count), np.int64)
            stretches = draw_together(columns, window.spare, *places)
            begins, lengths = places[:, :stretches].tolist()
            capture.read(begins, lengths, content)
        else:
            begins = [content_at + byte_ends[group] for group in self._groups]
            _read_stretches(file, begins, lengths, content)
        return packets

    def _rows_at(self, file: io.FileIO, at: int, end: int) -> np.ndarray:
        """int64[n, WORDS] that lie there, until the next are read."""
        file.seek(at)
        data = self._memory.take(end - at)
        _fill(file, memoryview(data.data))
        return data.view(np.int64).reshape(-1, WORDS)

    def _room(self, size: int) -> Window:
        """Memory for a batch, used again once that is released."""
        if size > self._most:
            self._most = size + size // 4
            self._pool = Pool(self._most, 0)
        return self._pool.take(size)


def _packed(file: io.FileIO, at: int, end: int) -> Packed:
    """Columns that are stored from `at` to `end`."""
    file.seek(at)
    data = _whole(file, end - at)
    rows, size = data[:16].view(np.int64).tolist()
    begin = len(data) - size
    about = data[16:begin].view(np.int64).reshape(-1, ABOUT)
    return Packed(rows, np.arange(len(about)), about, data[begin:])


class _InPlace:
    """Reads stretches of a capture's file, which is opened where there are any. It is the one that chunks were read of,
    or CaptureError is raised. Use as a context manager."""

    def __init__(self, point: CapturePoint, file: int, info: FileInfo) -> None:
        self._path, self._beside, self._info = point.paths[file], point.folder, info
        self._file: io.FileIO | None = None

    def __enter__(self) -> _InPlace:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, places: list[int], lengths: list[int], into: memoryview) -> None:
        """One behind the other."""
        if self._file is None:
            self._file = self._opened()
        _read_stretches(self._file, places, lengths, into)

    def _opened(self) -> io.FileIO:
        path = self._path
        try:
            file = open(os.path.join(self._beside, path), "rb", buffering=0)  # noqa: SIM115 (`__exit__` closes it)
        except OSError as failure:
            hint = "all machines must have it under the same path"
            raise CaptureError(f"{path}: {failure.strerror}", hint) from failure
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (self._info.size, self._info.mtime_ns):
            file.close()
            raise changed(path)
        return file


def _whole(file: io.FileIO, size: int) -> np.ndarray:
    """uint8: the next so many bytes, in memory of their own, which kernels may take."""
    data = np.empty(size, np.uint8)
    _fill(file, memoryview(data.data))
    return data


def _read_stretches(file: io.FileIO, places: list[int], lengths: list[int], into: memoryview) -> None:
    """One behind the other."""
    at = 0
    for place, length in zip(places, lengths, strict=True):
        file.seek(place)
        _fill(file, into[at : at + length])
        at += length


def _fill(file: io.FileIO, view: memoryview) -> None:
    """Read its next bytes, as many as there is room for. Raises OSError where it ends before."""
    at = 0
    while at < len(view):
        count = file.readinto(view[at:])
        if not count:
            raise OSError(f"{file.name!s}: ends before its end")
        at += count
