"""A chunk's packets, sorted by four-tuple into a file.

In: a chunk's batches of packets. Out: a file with the packets of each *group* of four-tuples apart (`groups`), as rows
(`rows`), and their bytes; of all packets, their times. There are several groups a share of the work, so that each share
can be given about as much (`divided`).

Rules: bytes are copied into the file, or stay where they are, in the capture, where that takes less (`_stay`); either
way they are summed up while they are at hand. Files are written by tasks of one user, into a folder that is theirs
alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kwire.captures.chunks.chunk_reader import ChunkReader, ChunkResult
from kwire.captures.chunks.groups import Met, pairs_of
from kwire.captures.chunks.marks import NO_MARKS, Marks, together
from kwire.captures.chunks.rows import WORDS, as_words, extent, gather, group_rows, grouped, put_rows, sum_up, ways_of
from kwire.captures.flows import FORGET_NS, REMEMBERED
from kwire.captures.kernels import NULL
from kwire.captures.packed import Packed, pack
from kwire.captures.packets import Packets

LINE: Final = 8
"""Numbers in the index of a file of each batch: how many packets it has, the number of the first, where in the capture
their bytes begin and end (0: they were copied), and where its times, ways, rows and bytes are. Behind these, for each
group, where its rows end, and where its bytes do."""

_PACKET_WORK, _BYTE_WORK = 500, 1
"""What a packet, and a byte, cost in decoding."""

_COPIED: Final = 3
"""How often a byte is touched that is copied: gathered, written and read."""

_READ_BYTES: Final = 8 << 20
"""A window is not larger where bytes stay in the capture: it is in the cache when it is summed up, then."""

_HELD_PACKETS, _HELD_BYTES = 1 << 18, 64 << 20
"""What a batch of several windows may hold: whoever reads it pays a price for each."""

_PIECE_BYTES: Final = 1 << 20
"""Bytes written at a time. Of more the system keeps two megabytes in a piece, and such are mostly fresh memory, which a
host may take longer to lend than it takes to sort: writing was measured to take three times as long, or six."""


class StoredChunk(NamedTuple):
    """A chunk's packets in the file `path`: where each batch's parts lie is said at its end. `number`: what is to be
    added to their numbers; `file`: the index of the file that they came from; `pairs`: at most how many four-tuples
    they have; `first_ns`, `last_ns`: the times between which they were captured; `work` int64[groups]: how much there
    is to do for each group, in about ns; `marks`: see `marks.Marks.rows`."""

    path: str
    size: int
    file: int
    number: int = 0
    pairs: int = 0
    first_ns: int = 0
    last_ns: int = 0
    work: np.ndarray = np.zeros(0, np.int64)
    marks: np.ndarray = NO_MARKS


def apart(stored: Sequence[StoredChunk]) -> bool:
    """Whether shares need but their own packets of these: nobody forgets a four-tuple."""
    there = [chunk for chunk in stored if chunk.pairs]
    span = max((chunk.last_ns for chunk in there), default=0) - min((chunk.first_ns for chunk in there), default=0)
    return sum(chunk.pairs for chunk in there) <= REMEMBERED or span <= FORGET_NS


def divided(stored: Sequence[StoredChunk], shares: int) -> list[tuple[int, ...]]:
    """The groups of so many shares, each with about as much work: the next largest goes to who has least. Groups with
    legs of one connection stay together."""
    work = np.stack([chunk.work for chunk in stored]).sum(axis=0)
    first = together([chunk.marks for chunk in stored], len(work))
    work = np.bincount(first, work, len(work)).astype(np.int64)
    shares_groups: list[list[int]] = [[] for _ in range(shares)]
    load = [0] * shares
    for group in np.argsort(-work, kind="stable").tolist():
        if first[group] != group:
            continue
        share = load.index(min(load))
        members = np.flatnonzero(first == group).tolist()
        shares_groups[share] += members
        load[share] += int(work[group]) + len(members)
    return [tuple(sorted(groups)) for groups in shares_groups]


def store(reader: ChunkReader, groups: int, shares: int, path: Path) -> tuple[ChunkResult, StoredChunk]:
    """Read a chunk, and sort its packets into a file of that name; so many shares will read it. Raises CaptureError and
    OSError."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        sorter = _Sorter(file, groups, shares, Marks(reader.chunk.file << 40 ^ reader.chunk.begin, groups))
        small, stay = min(reader.window_bytes, _READ_BYTES), True
        reader.resize(small)
        for packets in reader:
            if len(packets):
                stayed, stay = stay, sorter.take(packets, reader.buffer_at)
                if stay != stayed:
                    reader.resize(small if stay else reader.window_bytes)
            packets.release()
        sorter.write()
        lines = np.array(sorter.index, np.int64).reshape(-1, 2 * groups + LINE)
        file.write(lines.tobytes())
        file.write(np.array([len(lines), groups], np.int64).tobytes())
        size = file.tell()
    assert reader.result is not None
    met = sorter.met
    about = met.pairs, met.first_ns, met.last_ns, sorter.work, sorter.marks.rows
    entry = StoredChunk(str(path), size, reader.chunk.file, 0, *about)
    return reader.result, entry


class Scratch:
    """Memory that is used again for each batch: fresh memory takes longer to get than to fill."""

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """uint8[size]; what was taken before is overwritten."""
        if size > len(self._bytes):
            self._bytes = np.empty(size + size // 4, np.uint8)
        return self._bytes[:size]


class _Window(NamedTuple):
    """Columns of a window to be written besides its rows.

    They are times, groups and directions of packets, packets and bytes of each group, the number of the first
    packet, and where in the capture its bytes begin and end (0: they do not stay there)."""

    time_ns: np.ndarray
    whose: np.ndarray
    ways: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray
    first: int
    begin: int
    end: int


class _Sorter:
    """Writes batches, and the `index` of them. `met`: their four-tuples; `marks`: what tells legs among these; `work`
    int64[groups]: how much there is to do for each group. A batch is a window whose bytes are copied, or several, one
    behind the other, whose bytes stay."""

    def __init__(self, file: io.BufferedWriter, groups: int, shares: int, marks: Marks) -> None:
        self._file, self._shares = file, shares
        self.marks = marks
        self.index: list[list[int]] = []
        self.met = Met()
        self.work = np.zeros(groups, np.int64)
        self._windows: list[_Window] = []
        self._arrived = np.empty((_HELD_PACKETS, WORDS), np.int64)
        self._count = self._ways = 0
        self._rows, self._content = Scratch(), Scratch()

    def take(self, packets: Packets, buffer_at: int | None) -> bool:
        """Sort a window's packets; whether its bytes stay in the capture. `buffer_at`: see `ChunkReader`."""
        columns, groups = packets.columns, len(self.work)
        sums = np.empty(len(packets), np.int32)
        sum_up(packets.content, columns, sums)
        pairs = pairs_of(
            (columns.src_hi, columns.src_lo, columns.src_port), (columns.dst_hi, columns.dst_lo, columns.dst_port)
        )
        columns = as_words(columns)
        self.met.take(columns.time_ns, pairs)
        self.marks.take(pairs, columns)
        whose, counts, sizes = grouped(columns, pairs, groups)
        self.work += _PACKET_WORK * counts + _BYTE_WORK * sizes
        most = int(np.bincount(np.arange(groups) % self._shares, counts).argmax())
        begin = end = 0
        base = NULL
        if buffer_at is not None:
            first, last, *touched = extent(columns, whose, self._shares, most, packets.spare, buffer_at)
            if _stay(*touched):
                begin, end, base = first + buffer_at, last + buffer_at, buffer_at
        stay = end > 0
        if self._windows and not (stay and self._has_room(len(pairs), end)):
            self.write()
        ways, way = ways_of(columns, pairs)
        way += self._ways
        window = _Window(columns.time_ns.copy(), whose, ways, counts, sizes, int(columns.number[0]), begin, end)
        self._windows.append(window)
        before, self._count, self._ways = self._count, self._count + len(pairs), self._ways + len(ways)
        if self._count > len(self._arrived):  # of one window: of several there are no more
            self._arrived = np.empty((self._count, WORDS), np.int64)
        beyond = put_rows(columns, sums, way, base, self._windows[0].first, before, self._arrived[: self._count])
        assert beyond == 0
        if not stay:
            self.write(packets)
        return stay

    def _has_room(self, packets: int, end: int) -> bool:
        """Whether a window whose bytes end there comes to the same batch as those before it."""
        return self._count + packets <= _HELD_PACKETS and end - self._windows[0].begin <= _HELD_BYTES

    def write(self, packets: Packets | None = None) -> None:
        """The batch at hand, if there is one, with bytes of these packets, if they are copied."""
        if not self._windows:
            return
        file, windows = self._file, self._windows
        whose = np.concatenate([window.whose for window in windows])
        counts, sizes = (
            np.sum(of, axis=0) for of in zip(*((window.counts, window.sizes) for window in windows), strict=True)
        )
        ends = np.cumsum(counts)
        rows = self._rows.take(self._count * 8 * WORDS).view(np.int64).reshape(-1, WORDS)
        group_rows(self._arrived[: self._count], whose, ends - counts, rows)
        content = self._content.take(0 if packets is None else int(sizes.sum()))
        if packets is not None:
            gather(packets.buffer, as_words(packets.columns), rows, content)
        line = [self._count, windows[0].first, windows[0].begin, windows[-1].end, file.tell()]
        _put(file, pack(np.concatenate([window.time_ns for window in windows])[None], (0,)))
        for part in (np.concatenate([window.ways for window in windows]), rows, content):
            line.append(file.tell())
            _in_pieces(file, part)
        self.index.append([*line, *ends.tolist(), *np.cumsum(sizes).tolist()])
        windows.clear()
        self._count = self._ways = 0


def _in_pieces(file: io.BufferedWriter, values: np.ndarray) -> None:
    """Write an array in pieces of `_PIECE_BYTES`."""
    content = values.reshape(-1).view(np.uint8)
    for begin in range(0, len(content), _PIECE_BYTES):
        file.write(content[begin : begin + _PIECE_BYTES].data)


def _put(file: io.BufferedWriter, packed: Packed) -> None:
    """Write the number of rows and bytes, then the description of each column and its bytes."""
    file.write(np.array([packed.rows, len(packed.content)], np.int64).tobytes())
    if packed.rows:
        file.write(packed.about.tobytes())
        file.write(packed.content.data)


def _stay(total: int, own: int) -> bool:
    """Whether bytes of packets are reached with less work where they lie in the capture, by what a share takes: `total`
    bytes, `own` of these those of its packets."""
    return 0 < total <= _COPIED * own
