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
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from captures.chunks.reading import Heard, changed
from captures.chunks.sorting import AT, HEADER, ROW, STORED, TELLING, Stored, signed, stretches
from captures.files import CaptureError, CapturePoint, FileInfo
from captures.flows import OTHERS
from captures.packed import ABOUT, Packed
from captures.packets import Packets, Reader, batch
from captures.windows import SMALLEST_ROW_BYTES, PacketColumns, Pool, Window

_PLACED: Final = ROW, AT, HEADER, STORED.index("payload_captured")

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

    def _read(self) -> Generator[Packets, None, None]:
        for one in self._parts:
            capture = _InPlace(self.point, one.file, self.files[one.file])
            with open(one.path, "rb", buffering=0) as file, capture:
                file.seek(one.size - 16)
                batches, groups = np.frombuffer(file.read(16), np.int64).tolist()
                row = 2 * groups + 4
                file.seek(one.size - 16 - 8 * batches * row)
                places = _whole(file, 8 * batches * row).view(np.int64).reshape(batches, row)
                for place in places.tolist():
                    yield self._batch(file, capture, one, place)

    def _batch(self, file: io.FileIO, capture: _InPlace, one: Stored, place: list[int]) -> Packets:
        count, times_at, stays = place[:3]
        groups = len(place) // 2 - 2
        parts = {group: self._part(file, place, group) for group in (range(groups) if self._every else self._groups)}
        mine = [parts[group] for group in self._groups]
        none = np.zeros(0, np.int64)
        rows, at, headers, captured = (
            np.concatenate([none, *(part.columns.column(which) for part in mine)]) for which in _PLACED
        )
        if stays:
            begins, lengths, at = _stretched(rows, at, headers + captured)
        else:
            begins = np.array([part.bytes_at for part in mine], np.int64)
            lengths = np.array([part.size for part in mine], np.int64)
            at += np.repeat(np.cumsum(lengths) - lengths, [part.columns.rows for part in mine])
        total = int(lengths.sum())
        window = self._room(max(total, count * SMALLEST_ROW_BYTES))
        packets = batch(window, count)
        columns = packets.columns
        _packed(file, times_at, place[3]).spread(0, columns.time_ns)
        columns.number[:] = _KNOWN if self._every else OTHERS
        columns.file[:] = one.file
        for group, part in parts.items():
            _spread(part, columns, STORED if group in self._groups else TELLING)
        columns.number[rows] += one.number
        columns.tcp_at[rows] = at + window.spare
        columns.payload_at[rows] = columns.tcp_at[rows] + headers
        read = capture.read if stays else partial(_read_stretches, file)
        read(begins.tolist(), lengths.tolist(), memoryview(packets.buffer.data)[window.spare : window.spare + total])
        return packets

    def _part(self, file: io.FileIO, place: list[int], group: int) -> _Part:
        bytes_at, at, end = place[3 + 2 * group : 6 + 2 * group]
        columns = _packed(file, at, end)
        return _Part(columns.column(ROW), columns, bytes_at, at - bytes_at)

    def _room(self, size: int) -> Window:
        """Memory for a batch, used again once that is released."""
        if size > self._most:
            self._most = size + size // 4
            self._pool = Pool(self._most, 0)
        return self._pool.take(size)


class _Part(NamedTuple):
    """Of one group: the rows of its packets in the batch, its columns, and where its bytes are that were copied."""

    rows: np.ndarray
    columns: Packed
    bytes_at: int
    size: int


def _spread(part: _Part, columns: PacketColumns, names: Sequence[str]) -> None:
    """Put some columns of a group into its rows of a batch."""
    for name in names:
        part.columns.spread(STORED.index(name), signed(getattr(columns, name)), part.rows)


def _stretched(rows: np.ndarray, at: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(places and lengths of the stretches of a capture that packets are read with, where each packet is among these).
    `rows`: their order; packets without bytes are nowhere."""
    order = np.argsort(rows)
    order = order[size[order] > 0]
    found = np.zeros(len(at), np.int64)
    if not len(order):
        return found[:0], found[:0], found
    begins, lengths = stretches(at[order], size[order])
    which = np.searchsorted(begins, at[order], side="right") - 1
    found[order] = (np.cumsum(lengths) - lengths)[which] + at[order] - begins[which]
    return begins, lengths, found


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
