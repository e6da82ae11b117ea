"""A chunk's packets, sorted by who is to work on them, in a file; and those of all chunks for one of these, in order.

In: a chunk's batches of packets. Out: files; of all of them a `Routed`, which gives one share its packets as a `Reader`
gives all: the same batches, the same rows, with what tells connections apart in each; all else, the bytes too, only of
the share's own packets.

Rules: a share has both directions of its four-tuples (`shares_of`). Columns are stored as what they exceed their least
value by, in as few bytes as that takes. Files are written by tasks of one user into a folder that is theirs alone, and
are read as they are.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from captures.chunks.reading import ChunkReader, Heard, Said
from captures.files import CapturePoint
from captures.kernels import Array, Bytes, Table, copy_bytes, kernel
from captures.packets import Packets, Reader
from captures.windows import Window, room_for

_ALL: Final = (
    "time_ns", "interface", "src_hi", "src_lo", "dst_hi", "dst_lo", "src_port", "dst_port", "seq", "ack", "window",
    "flags", "payload_length", "identity",
)  # fmt: skip
"""Columns that `captures.flows` looks at: of all packets."""

_OWN: Final = ("number", "record_at", "payload_captured")
"""The other ones, of a share's own; the rest follows from where the bytes are put."""

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
                index.append(_store_batch(file, packets, shares))
            packets.release()
        places = np.array(index, np.int64).reshape(-1, 2 * shares + 3)
        file.write(places.tobytes())
        file.write(np.array([len(places), shares], np.int64).tobytes())
        size = file.tell()
    assert reader.said is not None
    return reader.said, Stored(str(path), size, reader.chunk.file)


def _store_batch(file: io.BufferedWriter, packets: Packets, shares: int) -> list[int]:
    """Write a batch's parts; returns how many packets it has, where the columns of all begin, of each share the bytes
    and the columns, and where the last ones end."""
    columns = packets.columns
    places = [len(packets), file.tell()]
    for name in _ALL:
        _put(file, getattr(columns, name))
    whose = shares_of(
        (columns.src_hi, columns.src_lo, columns.src_port), (columns.dst_hi, columns.dst_lo, columns.dst_port), shares
    )
    order = np.argsort(whose, kind="stable")
    ends = np.searchsorted(whose[order], np.arange(shares + 1))
    headers = np.where(columns.payload_captured > 0, columns.payload_at - columns.tcp_at, 0)
    sizes = headers + columns.payload_captured
    for share in range(shares):
        mine = order[ends[share] : ends[share + 1]]
        size = sizes[mine]
        content = np.empty(int(size.sum()), np.uint8)
        gather(packets.buffer, columns.tcp_at[mine], size, content)
        places.append(file.tell())
        file.write(content.data)
        places.append(file.tell())
        for column in (mine, headers[mine], *(getattr(columns, name)[mine] for name in _OWN)):
            _put(file, column)
    places.append(file.tell())
    return places


def _put(file: io.BufferedWriter, values: np.ndarray) -> None:
    """A column: how many values, the bytes of each, the least one; then what they exceed it by."""
    least = int(values.min()) if len(values) else 0
    # Modulo 2**64: what exceeds the least value of int64 may be no int64.
    above = values.astype(np.uint64) - np.uint64(least & 0xFFFF_FFFF_FFFF_FFFF)
    most = int(above.max()) if len(values) else 0
    width = next(width for width in (0, 1, 2, 4, 8) if most < 1 << 8 * width)
    file.write(np.array([len(values), width, least & 0xFFFF_FFFF_FFFF_FFFF], np.uint64).tobytes())
    if width:
        file.write(above.astype(f"u{width}").tobytes())


class _Parts:
    """Columns and bytes of a part, one after the other."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def column(self) -> np.ndarray:
        """uint64[n]."""
        count, width, least = (int(number) for number in self._taken(24).view(np.uint64))
        if not width:
            return np.full(count, least, np.uint64)
        return self._taken(count * width).view(f"u{width}") + np.uint64(least)

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

    def _read(self) -> Generator[Packets, None, None]:
        for one in self._parts:
            with open(one.path, "rb", buffering=0) as file:
                file.seek(one.size - 16)
                batches, shares = np.frombuffer(file.read(16), np.int64).tolist()
                row = 2 * shares + 3
                file.seek(one.size - 16 - 8 * batches * row)
                places = np.frombuffer(_whole(file, 8 * batches * row), np.int64).reshape(batches, row)
                for place in places.tolist():
                    yield self._batch(file, one, place)

    def _batch(self, file: io.FileIO, one: Stored, place: list[int]) -> Packets:
        count, begin, end = place[:3]
        bytes_at, own_at, own_end = place[2 + 2 * self._share : 5 + 2 * self._share]
        file.seek(begin)
        parts = _Parts(_whole(file, end - begin))
        columns = room_for(count)
        for name in _ALL:
            getattr(columns, name)[:] = parts.column().astype(getattr(columns, name).dtype, copy=False)
        file.seek(bytes_at)
        buffer = _whole(file, max(own_at - bytes_at, 16))  # columns follow, so there are as many
        file.seek(own_at)
        parts = _Parts(_whole(file, own_end - own_at))
        mine, headers = parts.column().astype(np.int64), parts.column().astype(np.int64)
        for name in _OWN:
            getattr(columns, name)[mine] = parts.column().astype(np.int64)
        columns.number[mine] += one.number
        columns.file[:] = one.file
        ends = np.cumsum(headers + columns.payload_captured[mine])
        columns.payload_at[mine] = ends - columns.payload_captured[mine]
        columns.tcp_at[mine] = columns.payload_at[mine] - headers
        return Packets(buffer, columns, _NOT_LENT)


_NOT_LENT: Final = Window(0, 0, deque(maxlen=0))
"""Memory that nobody wants back."""


def _whole(file: io.FileIO, size: int) -> np.ndarray:
    """uint8: the next so many bytes, in memory of their own, which kernels may take."""
    data = np.empty(size, np.uint8)
    view, at = memoryview(data.data), 0
    while at < size:
        count = file.readinto(view[at:])
        if not count:
            raise OSError(f"{file.name!s}: ends before its end")
        at += count
    return data
