"""A chunk's packets, sorted by four-tuple into a file.

In: a chunk's batches of packets. Out: a file with the packets of each *group* of four-tuples apart (`groups`): the
columns of `STORED`, and bytes; of all packets, their times. There are several groups a share of the work, so that each
share can be given about as much (`divided`).

Rules: columns are stored in as few bytes as they take (`captures.packed`). Bytes are copied into the file, or stay
where they are and are read from the capture, as stretches of it, where that takes less (`_stay`). Files are written by
tasks of one user into a folder that is theirs alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from captures.chunks.groups import Met, groups_of, pairs_of
from captures.chunks.reading import ChunkReader, Said
from captures.flows import FORGET_NS, REMEMBERED
from captures.kernels import Bytes, Table, copy_bytes, kernel
from captures.packed import Packed, Packing, pack
from captures.packets import Packets

TELLING: Final = (
    "interface", "src_hi", "src_lo", "dst_hi", "dst_lo", "src_port", "dst_port", "seq", "ack", "window", "flags",
    "payload_length", "identity",
)  # fmt: skip
"""Columns that `captures.flows` looks at, besides times: of a share's own packets, or of all."""

STORED: Final = (*TELLING, "number", "record_at", "payload_captured")
"""All that are stored of a group's packets; the rest follows from where the bytes are put."""

ROW, HEADER, AT = range(len(STORED), len(STORED) + 3)
"""Columns behind these: which row of the batch it is, bytes of its TCP header, where that is: among those of its group,
or in the capture."""
COLUMNS: Final = len(STORED) + 3

_GAP_BYTES: Final = 1 << 12
"""What stands between two packets of a share and is read with them: a page."""

_PACKET_WORK, _BYTE_WORK = 500, 1
"""What a packet, and a byte, cost in decoding."""

_COPIED: Final = 3
"""How often a byte is touched that is copied: gathered, written and read."""

_STRETCH_BYTES: Final = 1 << 13
"""Shorter stretches cost more in calls than their bytes do as a copy."""


class Stored(NamedTuple):
    """A chunk's packets in the file `path`: where each batch's parts lie is said at its end. `number`: what is to be
    added to their numbers; `file`: the index of the file that they came from; `pairs`: at most how many four-tuples
    they have; `first_ns`, `last_ns`: the times between which they were captured; `work` int64[groups]: how much there
    is to do for each group, in about ns."""

    path: str
    size: int
    file: int
    number: int = 0
    pairs: int = 0
    first_ns: int = 0
    last_ns: int = 0
    work: np.ndarray = np.zeros(0, np.int64)


def apart(stored: Sequence[Stored]) -> bool:
    """Whether shares need but their own packets of these: nobody forgets a four-tuple."""
    there = [one for one in stored if one.pairs]
    span = max((one.last_ns for one in there), default=0) - min((one.first_ns for one in there), default=0)
    return sum(one.pairs for one in there) <= REMEMBERED or span <= FORGET_NS


def divided(stored: Sequence[Stored], shares: int) -> list[tuple[int, ...]]:
    """The groups of so many shares, each with about as much work: the next largest goes to who has least."""
    work = np.stack([one.work for one in stored]).sum(axis=0)
    found: list[list[int]] = [[] for _ in range(shares)]
    load = [0] * shares
    for group in np.argsort(-work, kind="stable").tolist():
        share = load.index(min(load))
        found[share].append(group)
        load[share] += int(work[group]) + 1
    return [tuple(sorted(groups)) for groups in found]


@kernel
def gather(buffer: Bytes, at: Table, size: Table, into: Bytes) -> None:
    """Copy pieces of the buffer, one behind the other."""
    to = 0
    for i in range(len(at)):
        copy_bytes(into, to, buffer, at[i], size[i])
        to += size[i]


def store(reader: ChunkReader, groups: int, shares: int, path: Path) -> tuple[Said, Stored]:
    """Read a chunk, and sort its packets into a file of that name; so many shares will read it. Raises CaptureError and
    OSError."""
    index: list[list[int]] = []
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        sorter = _Sorter(file, groups, shares)
        for packets in reader:
            if len(packets):
                index.append(sorter.take(packets, reader.buffer_at))
            packets.release()
        places = np.array(index, np.int64).reshape(-1, 2 * groups + 4)
        file.write(places.tobytes())
        file.write(np.array([len(places), groups], np.int64).tobytes())
        size = file.tell()
    assert reader.said is not None
    met = sorter.met
    kept = Stored(str(path), size, reader.chunk.file, 0, met.pairs, met.first_ns, met.last_ns, sorter.work)
    return reader.said, kept


class _Scratch:
    """Memory that is used again for each batch: fresh memory takes longer to get than to fill."""

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """uint8[size]; what was taken before is overwritten."""
        if size > len(self._bytes):
            self._bytes = np.empty(size + size // 4, np.uint8)
        return self._bytes[:size]


class _Sorter:
    """Writes batches. `met`: their four-tuples; `work` int64[groups]: how much there is to do for each group."""

    def __init__(self, file: io.BufferedWriter, groups: int, shares: int) -> None:
        self._file, self._shares = file, shares
        self.met = Met()
        self.work = np.zeros(groups, np.int64)
        self._columns, self._content = _Scratch(), _Scratch()

    def take(self, packets: Packets, buffer_at: int | None) -> list[int]:
        """Write a batch's parts; returns how many packets it has, where the times of all begin, whether bytes stay in
        the capture, where of each group the bytes and the columns begin, and where the last ones end. `buffer_at`: see
        `ChunkReader`."""
        columns, file, groups = packets.columns, self._file, len(self.work)
        places = [len(packets), file.tell()]
        _put(file, pack(columns.time_ns[None], (0,)))
        pairs = pairs_of(
            (columns.src_hi, columns.src_lo, columns.src_port), (columns.dst_hi, columns.dst_lo, columns.dst_port)
        )
        self.met.take(columns.time_ns, pairs)
        whose = groups_of(pairs, groups)
        order = np.argsort(whose.astype(np.uint16), kind="stable")  # by digits: it is that narrow
        ends = np.cumsum(np.bincount(whose, minlength=groups))
        headers = np.where(columns.payload_captured > 0, columns.payload_at - columns.tcp_at, 0)
        sizes, at = headers + columns.payload_captured, columns.tcp_at
        share = whose % self._shares
        most = share == np.bincount(share).argmax()
        stays = buffer_at is not None and _stay(at, sizes, most, packets.spare)
        places.append(int(stays))
        slices = np.split(order, ends[:-1])
        packing = Packing(order, ends, COLUMNS, self._columns.take(Packing.room(len(order), COLUMNS)))
        for which, name in enumerate(STORED):
            packing.take(which, signed(getattr(columns, name)))
        packing.take(ROW, np.arange(len(packets)))
        packing.take(HEADER, headers)
        packing.take(AT, at + buffer_at if stays and buffer_at is not None else _behind(sizes, slices))
        for group, mine in enumerate(slices):
            size = int(sizes[mine].sum())
            self.work[group] += _PACKET_WORK * len(mine) + _BYTE_WORK * size
            places.append(file.tell())
            if not stays:
                content = self._content.take(size)
                gather(packets.buffer, at[mine], sizes[mine], content)
                file.write(content.data)
                file.write(bytes(-size % 8))
            places.append(file.tell())
            _put(file, packing.part(group))
        places.append(file.tell())
        return places


def _behind(sizes: np.ndarray, slices: Sequence[np.ndarray]) -> np.ndarray:
    """int64 like `sizes`: where each begins, those of a slice one behind the other."""
    begins = np.empty(len(sizes), np.int64)
    for mine in slices:
        begins[mine] = np.cumsum(sizes[mine]) - sizes[mine]
    return begins


def _put(file: io.BufferedWriter, packed: Packed) -> None:
    """How many rows, and bytes; where there are any, what is said of each column, then the bytes."""
    file.write(np.array([packed.rows, len(packed.content)], np.int64).tobytes())
    if packed.rows:
        file.write(packed.about.tobytes())
        file.write(packed.content.data)


def signed(values: np.ndarray) -> np.ndarray:
    """Numbers that int64 holds, or the same bits."""
    return values.view(np.int64) if values.dtype == np.uint64 else values


def _stay(at: np.ndarray, size: np.ndarray, some: np.ndarray, spare: int) -> bool:
    """Whether bytes of packets, at these places of the buffer, are read with less work where they lie in the capture:
    by what a share of about `some` of them takes."""
    at, size, some = (values[size > 0] for values in (at, size, some))
    if not some.any() or int(at.min()) < spare or (at[1:] < (at + size)[:-1]).any():
        return False
    _, lengths = stretches(at[some], size[some])
    total = int(lengths.sum())
    return _STRETCH_BYTES * len(lengths) <= total <= _COPIED * int(size[some].sum())


def stretches(at: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places, and the lengths, of stretches that have all these bytes, which come in order."""
    ends = at + size
    apart = at[1:] - ends[:-1] > _GAP_BYTES
    begins = at[np.append(True, apart)]
    return begins, ends[np.append(apart, True)] - begins
