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
import mmap
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kwire.captures.chunks.chunk_reader import PointSummary, changed
from kwire.captures.chunks.rows import WAY_WORDS, WORDS, as_words, place_rows, tell_rows
from kwire.captures.chunks.sorting import LINE, Scratch, StoredChunk
from kwire.captures.files import CaptureError, CapturePoint, FileInfo, urls
from kwire.captures.flows import OTHERS
from kwire.captures.packed import ABOUT, Packed
from kwire.captures.packets import Packets, Reader, batch
from kwire.captures.windows import SMALLEST_ROW_BYTES, PacketColumns, Pool, Window

MOST_PACKETS: Final = 1 << 18
MOST_COPIED: Final = 128 << 20
MOST_IN_PLACE: Final = 256 << 20
"""What a batch may hold, of all shares, that is put together of stored ones: each has a price of its own, milliseconds
of Python, and of large messages a share has but a few dozen in one. What is in place is memory of the file's, but some
who watch how much a process has count it."""

_KNOWN: Final = 0
"""The number of a packet of others of which more is known than its time."""


class RoutedReader(Reader):
    """Reads a share's packets from the sorted files of all chunks.

    said: summary of all chunks; groups: the share's. Packets of others are rows too, with only their time and with
    OTHERS as `number`; with `every` also with the columns that tell connections apart."""

    def __init__(
        self,
        point: CapturePoint,
        summary: PointSummary,
        stored: Sequence[StoredChunk],
        groups: Sequence[int],
        every: bool = False,
        most_in_place: int = MOST_IN_PLACE,
    ) -> None:
        super().__init__(point)
        self.files = list(summary.files)
        self.notes = list(summary.notes)
        self.secrets, self.secrets_at = list(summary.secrets), list(summary.secrets_at)
        self._counts, self._dropped = summary.counts, summary.dropped
        self._parts, self._groups, self._every = stored, groups, every
        self._most_in_place = most_in_place
        self._most = 0
        self._memory = Scratch()

    def _read(self) -> Generator[Packets, None, None]:
        for stored in self._parts:
            capture = _InPlace(self.point, stored.file, self.files[stored.file])
            with open(stored.path, "rb", buffering=0) as file, capture:
                file.seek(stored.size - 16)
                batches, groups = np.frombuffer(file.read(16), np.int64).tolist()
                words = 2 * groups + LINE
                file.seek(stored.size - 16 - 8 * batches * words)
                lines = _whole(file, 8 * batches * words).view(np.int64).reshape(batches, words)
                for some in _at_once([_Line(line, groups) for line in lines.tolist()], self._most_in_place):
                    yield self._batch(file, capture, stored, some)

    def _batch(self, file: io.FileIO, capture: _InPlace, stored: StoredChunk, lines: Sequence[_Line]) -> Packets:
        """Stored batches that follow one another, as one."""
        stay = lines[0].stays
        sizes = [0 if stay else sum(line.lengths(self._groups)) for line in lines]
        count = sum(line.count for line in lines)
        window = self._room(max(sum(sizes), count * SMALLEST_ROW_BYTES))
        packets = batch(window, count)
        sums = np.zeros(count, np.int32)
        buffer, put = capture.bytes(lines[0].begin, lines[-1].end) if stay else (packets.buffer, window.spare)
        packets = replace(packets, buffer=buffer, sums=sums)
        columns = as_words(packets.columns)
        columns.number[:] = _KNOWN if self._every else OTHERS
        columns.file[:] = stored.file
        at = 0
        for line, size in zip(lines, sizes, strict=True):
            line_columns = PacketColumns(*(column[at : at + line.count] for column in columns))
            self._fill_in(file, stored, line, line_columns, sums[at : at + line.count], put)
            if not stay:
                begins = [line.content_at + line.bytes(group)[0] for group in self._groups]
                _read_stretches(file, begins, line.lengths(self._groups), memoryview(packets.buffer.data)[put:])
            at, put = at + line.count, put + size
        return packets

    def _fill_in(
        self, file: io.FileIO, stored: StoredChunk, line: _Line, columns: PacketColumns, sums: np.ndarray, put: int
    ) -> None:
        """One stored batch, its bytes from `put` on; of those that stay, where in the capture the buffer begins."""
        _packed(file, line.times_at, line.ways_at).spread(0, columns.time_ns)
        file.seek(line.ways_at)
        ways = _whole(file, line.rows_at - line.ways_at).view(np.int64).reshape(-1, WAY_WORDS)
        stay = line.stays
        for group in range(line.groups) if self._every else self._groups:
            rows = self._rows_at(file, *(line.rows_at + 8 * WORDS * row for row in line.rows(group)))
            tell_rows(rows, ways, columns)
            if group in self._groups:
                place_rows(rows, line.first + stored.number, put, stay, columns, sums)
                if not stay:
                    begin, end = line.bytes(group)
                    put += end - begin

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


class _Line:
    """Index entry of one batch in a sorted file (`kwire.captures.chunks.sorting.LINE`).

    stays: its bytes are in the capture, from `begin` to `end`."""

    def __init__(self, line: list[int], groups: int) -> None:
        self.groups = groups
        self.count, self.first, self.begin, self.end = line[:4]
        self.times_at, self.ways_at, self.rows_at, self.content_at = line[4:LINE]
        self.stays = self.end > 0
        self._rows, self._bytes = ([0, *line[at : at + groups]] for at in (LINE, LINE + groups))

    def rows(self, group: int) -> tuple[int, int]:
        """Where a group's rows begin, and where they end."""
        return self._rows[group], self._rows[group + 1]

    def bytes(self, group: int) -> tuple[int, int]:
        """Where a group's bytes begin, and where they end."""
        return self._bytes[group], self._bytes[group + 1]

    def lengths(self, groups: Sequence[int]) -> list[int]:
        """How many bytes groups have."""
        return [self._bytes[group + 1] - self._bytes[group] for group in groups]

    @property
    def size(self) -> int:
        """Bytes of all groups."""
        return self.end - self.begin or self._bytes[-1]


def _at_once(lines: Sequence[_Line], most_in_place: int) -> Iterator[list[_Line]]:
    """Batches that follow one another, as many as are to be one; so for all shares. Either all bytes of one stay in the
    capture, or none."""
    group: list[_Line] = []
    count = size = 0
    for line in lines:
        count, size = count + line.count, size + line.size
        most = most_in_place if line.stays else MOST_COPIED
        if group and (count > MOST_PACKETS or size > most or line.stays != group[-1].stays):
            yield group
            group, count, size = [], line.count, line.size
        group.append(line)
    if group:
        yield group


def _packed(file: io.FileIO, at: int, end: int) -> Packed:
    """Columns that are stored from `at` to `end`."""
    file.seek(at)
    data = _whole(file, end - at)
    rows, size = data[:16].view(np.int64).tolist()
    begin = len(data) - size
    about = data[16:begin].view(np.int64).reshape(-1, ABOUT)
    return Packed(rows, np.arange(len(about)), about, data[begin:])


class _InPlace:
    """Bytes of a capture's file where they lie, which is opened where any are wanted. It is the one that chunks were
    read of, or CaptureError is raised. Use as a context manager."""

    def __init__(self, point: CapturePoint, file: int, info: FileInfo) -> None:
        self._path, self._beside, self._info = point.paths[file], point.folder, info
        self._file: io.FileIO | None = None

    def __enter__(self) -> _InPlace:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def bytes(self, begin: int, end: int) -> tuple[np.ndarray, int]:
        """(uint8: some that end at `end`, where the first of them is, at or before `begin`). Kernels want them
        writable, and words of eight to be where they are in memory, too."""
        if self._file is None:
            self._file = self._opened()
        file = self._file
        if not _is(os.fstat(file.fileno()), self._info):
            raise changed(self._path)
        at = begin - begin % mmap.ALLOCATIONGRANULARITY
        try:
            return np.frombuffer(mmap.mmap(file.fileno(), end - at, access=mmap.ACCESS_COPY, offset=at), np.uint8), at
        except OSError:  # not every file system can
            file.seek(at)
            return _whole(file, end - at), at

    def _opened(self) -> io.FileIO:
        try:
            return open(os.path.join(self._beside, self._path), "rb", buffering=0)
        except OSError as failure:
            hint = "all machines must have it under the same path"
            raise CaptureError(f"{self._path}: {failure.strerror}", hint) from failure


def _is(status: os.stat_result, info: FileInfo) -> bool:
    return (status.st_size, status.st_mtime_ns) == (info.size, info.mtime_ns)


def check_same(point: CapturePoint, files: Sequence[FileInfo]) -> None:
    """A process was ended by the system, which is what it does to one that reads in place what is there no more. Raises
    CaptureError where a file is not the one that chunks were read of."""
    for path, info in zip(point.paths, files, strict=True):
        if urls.is_url(path):
            continue
        try:
            same = _is(os.stat(os.path.join(point.folder, path)), info)
        except OSError:
            same = False
        if not same:
            raise changed(path)


def _whole(file: io.FileIO, size: int) -> np.ndarray:
    """uint8: the next so many bytes, in memory of their own, which kernels may take."""
    data = np.empty(size, np.uint8)
    _fill(file, memoryview(data.data))
    return data


def _read_stretches(file: io.FileIO, places: list[int], lengths: list[int], into: memoryview) -> None:
    """One behind the other."""
    at = 0
    seek, read = file.seek, file.readinto
    for place, length in zip(places, lengths, strict=True):
        seek(place)
        stretch = into[at : at + length]
        count = read(stretch)
        if count != length:  # hardly ever
            _fill(file, stretch[count:])
        at += length


def _fill(file: io.FileIO, view: memoryview) -> None:
    """Read its next bytes, as many as there is room for. Raises OSError where it ends before."""
    at = 0
    while at < len(view):
        count = file.readinto(view[at:])
        if not count:
            raise OSError(f"{file.name!s}: ends before its end")
        at += count
