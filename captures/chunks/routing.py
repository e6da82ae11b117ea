"""A chunk's packets, sorted by who is to work on them, in a file; and those of all chunks for one of these, in order.

In: a chunk's batches of packets. Out: files; of all of them a `Routed`, which gives one share its packets as a `Reader`
gives all: the same batches, the same rows, with what tells connections apart in each; all else, the bytes too, only of
the share's own packets.

Rules: a share has both directions of its four-tuples (`shares_of`). Columns are stored in as few bytes as they take
(`captures.packed`). Bytes are copied into the file, or stay where they are and are read from the
capture, as stretches of it, where that takes less (`_stretches`). Files are written by tasks of one user into a folder
that is theirs alone, and are read as they are.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from captures.chunks.reading import ChunkReader, Heard, Said, changed
from captures.files import CaptureError, CapturePoint, FileInfo
from captures.kernels import Array, Bytes, Table, copy_bytes, kernel
from captures.packed import ABOUT, Packed, pack
from captures.packets import Packets, Reader, batch
from captures.windows import SMALLEST_ROW_BYTES, Pool, Window

_ALL: Final = (
    "time_ns", "interface", "src_hi", "src_lo", "dst_hi", "dst_lo", "src_port", "dst_port", "seq", "ack", "window",
    "flags", "payload_length", "identity",
)  # fmt: skip
"""Columns that `captures.flows` looks at: of all packets."""

_OWN: Final = ("number", "record_at", "payload_captured")
"""The other ones, of a share's own; the rest follows from where the bytes are put."""

_GAP_BYTES: Final = 1 << 12
"""What stands between two packets of a share and is read with them: a page."""

_COPIED: Final = 3
"""How often a byte is touched that is copied: gathered, written and read."""

_STRETCH_BYTES: Final = 1 << 13
"""Shorter stretches cost more in calls than their bytes do as a copy."""

_FIRST: Final = np.zeros(1, np.int64)
_NO_STRETCHES: Final = np.zeros((2, 0), np.int64)

_HASHES: Final = tuple(np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x94D049BB133111EB))


class Stored(NamedTuple):
    """A chunk's packets in the file `path`: where each batch's parts lie is said at its end. `number`: what is to be
    added to their numbers; `file`: the index of the file that they came from."""

    path: str
    size: int
    file: int
    number: int = 0


def shares_of(a: tuple[Array, Array, Array], b: tuple[Array, Array, Array], of: int) -> np.ndarray:
    """int64[n]: the share of each four-tuple, whichever end point comes first; these are uint64 arrays: both halves of
    an address, a port."""
    both = _mixed(a) + _mixed(b)
    both ^= both >> np.uint64(29)
    found: np.ndarray = (both * _HASHES[2] >> np.uint64(33)).astype(np.int64) % of
    return found


def _mixed(end: tuple[Array, Array, Array]) -> np.ndarray:
    hi, lo, port = (part.astype(np.uint64, copy=False) for part in end)
    found: np.ndarray = (hi ^ lo) * _HASHES[0] + (port + np.uint64(1)) * _HASHES[1]
    found ^= found >> np.uint64(32)
    return found * _HASHES[0]


@kernel
def gather(buffer: Bytes, at: Table, size: Table, into: Bytes) -> None:
    """Copy pieces of the buffer, one behind the other."""
    to = 0
    for i in range(len(at)):
        copy_bytes(into, to, buffer, at[i], size[i])
        to += size[i]


def store(reader: ChunkReader, shares: int, path: Path) -> tuple[Said, Stored]:
    """Read a chunk, and sort its packets into a file of that name. Raises CaptureError and OSError."""
    index: list[list[int]] = []
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        for packets in reader:
            if len(packets):
                index.append(_store_batch(file, packets, shares, reader.buffer_at))
            packets.release()
        places = np.array(index, np.int64).reshape(-1, 2 * shares + 3)
        file.write(places.tobytes())
        file.write(np.array([len(places), shares], np.int64).tobytes())
        size = file.tell()
    assert reader.said is not None
    return reader.said, Stored(str(path), size, reader.chunk.file)


def _store_batch(file: io.BufferedWriter, packets: Packets, shares: int, buffer_at: int | None) -> list[int]:
    """Write a batch's parts; returns how many packets it has, where the columns of all begin, of each share the bytes
    and the columns, and where the last ones end. `buffer_at`: see `ChunkReader`."""
    columns = packets.columns
    places = [len(packets), file.tell()]
    _put(file, [getattr(columns, name) for name in _ALL])
    whose = shares_of(
        (columns.src_hi, columns.src_lo, columns.src_port), (columns.dst_hi, columns.dst_lo, columns.dst_port), shares
    )
    order = np.argsort(whose.astype(np.uint16), kind="stable")  # by digits: it is that narrow
    ends = np.cumsum(np.bincount(whose, minlength=shares))
    full = columns.payload_captured > 0
    headers = np.where(full, columns.payload_at - columns.tcp_at, 0)
    sizes = headers + columns.payload_captured
    for share in range(shares):
        mine = order[ends[share - 1] if share else 0 : ends[share]]
        size, from_ = sizes[mine], columns.tcp_at[mine]
        stretches = None if buffer_at is None else _stretches(from_[full[mine]], size[full[mine]], packets.spare)
        places.append(file.tell())
        if stretches is None:
            content = np.empty(int(size.sum()), np.uint8)
            gather(packets.buffer, from_, size, content)
            file.write(content.data)
            file.write(bytes(-len(content) % 8))
            at, stretches = np.cumsum(size) - size, _NO_STRETCHES
        else:
            at = np.where(full[mine], _within(stretches, from_), 0)
            stretches = stretches + np.array([[buffer_at], [0]])
        places.append(file.tell())
        _put(file, [mine, headers[mine], at, *stretches])
        _put(file, [getattr(columns, name) for name in _OWN], mine)
    places.append(file.tell())
    return places


def _stretches(at: np.ndarray, size: np.ndarray, spare: int) -> np.ndarray | None:
    """int64[2, n]: the stretches of the buffer, place and length, that these packets are read with where they lie; None
    where it is less work to copy them."""
    ends = at + size
    if not len(at) or int(at.min()) < spare or (at[1:] < ends[:-1]).any():
        return None
    apart = at[1:] - ends[:-1] > _GAP_BYTES
    begins = at[np.append(True, apart)]
    lengths = ends[np.append(apart, True)] - begins
    total = int(lengths.sum())
    if total > _COPIED * int(size.sum()) or total < _STRETCH_BYTES * len(begins):
        return None
    return np.stack([begins, lengths])


def _within(stretches: np.ndarray, places: np.ndarray) -> np.ndarray:
    """int64 like `places`: where each place of the buffer is among the stretches, one behind the other."""
    begins, lengths = stretches
    which = np.searchsorted(begins, places, side="right") - 1
    found: np.ndarray = (np.cumsum(lengths) - lengths)[which] + places - begins[which]
    return found


def _put(file: io.BufferedWriter, columns: Sequence[np.ndarray], rows: np.ndarray | None = None) -> None:
    """Columns, or some rows of them, one by one: how many numbers, bytes and what is said of these; then the bytes."""
    for column in columns:
        found = pack(_signed(column)[None], (0,), rows)
        file.write(np.array([found.rows, len(found.content), *found.about[0]], np.int64).tobytes())
        file.write(found.content.data)


def _signed(values: np.ndarray) -> np.ndarray:
    """The same bits as int64."""
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


class _Parts:
    """Columns and bytes of a part, one after the other."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def column(self) -> np.ndarray:
        """int64[n]."""
        return self._packed().column(0)

    def into(self, column: np.ndarray) -> None:
        """The same, into a column of packets."""
        if column.dtype == np.int32:
            column[:] = self.column()
        else:
            self._packed().into(column.view(np.int64)[None])

    def _packed(self) -> Packed:
        rows, size, *about = self._taken(8 * (2 + ABOUT)).view(np.int64).tolist()
        return Packed(rows, _FIRST, np.array([about]), self._taken(size))

    def _taken(self, size: int) -> np.ndarray:
        found, self.data = self.data[:size], self.data[size:]
        return found


class Routed(Reader):
    """A share's packets of all chunks; `said` is what they say together. Packets of others are rows too, of which only
    what tells connections apart is right."""

    def __init__(self, point: CapturePoint, said: Heard, stored: Sequence[Stored], share: int) -> None:
        super().__init__(point)
        self.files = list(said.files)
        self.notes = list(said.notes)
        self.secrets, self.secrets_at = list(said.secrets), list(said.secrets_at)
        self._counts, self._dropped = said.counts, said.dropped
        self._parts, self._share = stored, share
        self._most = 0

    def _read(self) -> Generator[Packets, None, None]:
        for one in self._parts:
            capture = _InPlace(self.point, one.file, self.files[one.file])
            with open(one.path, "rb", buffering=0) as file, capture:
                file.seek(one.size - 16)
                batches, shares = np.frombuffer(file.read(16), np.int64).tolist()
                row = 2 * shares + 3
                file.seek(one.size - 16 - 8 * batches * row)
                places = np.frombuffer(_whole(file, 8 * batches * row), np.int64).reshape(batches, row)
                for place in places.tolist():
                    yield self._batch(file, capture, one, place)

    def _batch(self, file: io.FileIO, capture: _InPlace, one: Stored, place: list[int]) -> Packets:
        count, begin, end = place[:3]
        bytes_at, own_at, own_end = place[2 + 2 * self._share : 5 + 2 * self._share]
        file.seek(own_at)
        own = _Parts(_whole(file, own_end - own_at))
        mine, headers, at = (own.column() for _ in range(3))
        stretches = [own.column().tolist() for _ in range(2)]
        size = sum(stretches[1]) or own_at - bytes_at
        window = self._room(max(size, count * SMALLEST_ROW_BYTES))
        packets = batch(window, count)
        columns = packets.columns
        for name in _OWN:
            getattr(columns, name)[mine] = own.column()
        file.seek(begin)
        every = _Parts(_whole(file, end - begin))
        for name in _ALL:
            every.into(getattr(columns, name))
        content = memoryview(packets.buffer.data)[window.spare : window.spare + size]
        if stretches[0]:
            capture.read(stretches[0], stretches[1], content)
        else:
            file.seek(bytes_at)
            _fill(file, content)
        columns.number[mine] += one.number
        columns.file[:] = one.file
        columns.payload_at[mine] = at + (headers + window.spare)
        columns.tcp_at[mine] = at + window.spare
        return packets

    def _room(self, size: int) -> Window:
        """Memory for a batch, used again once that is released."""
        if size > self._most:
            self._most = size + size // 4
            self._pool = Pool(self._most, 0)
        return self._pool.take(size)


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
        at = 0
        for place, length in zip(places, lengths, strict=True):
            self._file.seek(place)
            _fill(self._file, into[at : at + length])
            at += length

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


def _fill(file: io.FileIO, view: memoryview) -> None:
    """Read its next bytes, as many as there is room for. Raises OSError where it ends before."""
    at = 0
    while at < len(view):
        count = file.readinto(view[at:])
        if not count:
            raise OSError(f"{file.name!s}: ends before its end")
        at += count
