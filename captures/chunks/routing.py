"""A chunk's packets, sorted by four-tuple, in a file; and those of all chunks for one share of the work, in order.

In: a chunk's batches of packets. Out: files, with the packets of each *group* of four-tuples apart; of all of them a
`Routed`, which gives one share, that of some groups, its packets as a `Reader` gives all: the same batches, the same
rows. There are several groups a share, so that each can be given about as much work (`divided`). Of packets of others
only the time is known, and that they are others' (their number is OTHERS); or, where a share is to see all, what tells
connections apart.

Rules: a group has both directions of its four-tuples (`groups_of`), so a share knows its connections by its own
packets and by the clock, unless so many four-tuples come and go in so long a time that some are forgotten (`apart`):
which, and so how connections are numbered afterwards, all of them decide together. Columns are stored in as few bytes
as they take (`captures.packed`). Bytes are copied into the file, or stay where they are and are read from the capture,
as stretches of it, where that takes less (`_stretches`). Files are written by tasks of one user into a folder that is
theirs alone, and are read as they are.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from captures.chunks.reading import ChunkReader, Heard, Said, changed
from captures.files import CaptureError, CapturePoint, FileInfo
from captures.flows import FORGET_NS, OTHERS, REMEMBERED
from captures.kernels import NULL, Array, Bytes, Int, Table, copy_bytes, inline, kernel
from captures.packed import ABOUT, AT, LEAST, WIDTH, Packed, pack, width_of, words
from captures.packets import Packets, Reader, batch
from captures.windows import SMALLEST_ROW_BYTES, PacketColumns, Pool, Window

_TELLING: Final = (
    "interface", "src_hi", "src_lo", "dst_hi", "dst_lo", "src_port", "dst_port", "seq", "ack", "window", "flags",
    "payload_length", "identity",
)  # fmt: skip
"""Columns that `captures.flows` looks at, besides times: of a share's own packets, or of all."""

_OWN: Final = ("number", "record_at", "payload_captured")
"""The other ones, of a share's own; the rest follows from where the bytes are put."""

_STORED: Final = (*_TELLING, *_OWN)
_ROW, _HEADER, _AT = range(len(_STORED), len(_STORED) + 3)
"""Columns behind these: which row of the batch it is, bytes of its TCP header, where that is: among those of its group,
or in the capture."""
_PLACED: Final = _ROW, _AT, _HEADER, _STORED.index("payload_captured")
_COLUMNS: Final = len(_STORED) + 3

_GAP_BYTES: Final = 1 << 12
"""What stands between two packets of a share and is read with them: a page."""

_PACKET_WORK, _BYTE_WORK = 500, 1
"""What a packet, and a byte, cost in decoding."""

_COPIED: Final = 3
"""How often a byte is touched that is copied: gathered, written and read."""

_STRETCH_BYTES: Final = 1 << 13
"""Shorter stretches cost more in calls than their bytes do as a copy."""

_KNOWN: Final = 0
"""The number of a packet of others of which more is known than its time."""

_MOST_MET: Final = 1 << 20
"""Four-tuples that are told apart in a chunk: 32 MB. Of more, it counts packets."""

_LATEST_NS: Final = (1 << 63) - 1

_HASHES: Final = tuple(np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x94D049BB133111EB))


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


@inline
def _mixed(hi: Int, lo: Int, port: Int) -> Int:
    found = (hi ^ lo) * _HASHES[0] + (np.uint64(port) + np.uint64(1)) * _HASHES[1]
    found ^= found >> np.uint64(32)
    return found * _HASHES[0]


@kernel
def hash_pairs(
    a_hi: Array, a_lo: Array, a_port: Array, b_hi: Array, b_lo: Array, b_port: Array, out: Array
) -> None:
    """A number for each four-tuple, the same whichever end point comes first."""
    for i in range(len(out)):
        both = _mixed(a_hi[i], a_lo[i], a_port[i]) + _mixed(b_hi[i], b_lo[i], b_port[i])
        both ^= both >> np.uint64(29)
        out[i] = both * _HASHES[2]


def pairs_of(a: tuple[Array, Array, Array], b: tuple[Array, Array, Array]) -> np.ndarray:
    """uint64[n]: `hash_pairs` of end points: both halves of an address (uint64), a port (int32)."""
    out = np.empty(len(a[0]), np.uint64)
    hash_pairs(*_end(*a), *_end(*b), out)
    return out


def _end(hi: Array, lo: Array, port: Array) -> tuple[Array, Array, Array]:
    address = np.ascontiguousarray(hi, np.uint64), np.ascontiguousarray(lo, np.uint64)
    return *address, np.ascontiguousarray(port, np.int32)


@kernel
def meet(begin: Int, hashes: Array, known: Array, count: Int) -> tuple[Int, Int]:
    """Put hashes from `begin` on among those `known` (0: a free place), which are `count`. Returns which one has no
    place, for half of these are taken, and how many are known."""
    mask = np.int64(len(known) - 1)
    last = np.uint64(0)
    for i in range(begin, len(hashes)):
        value = hashes[i] | np.uint64(1)
        if value == last:
            continue
        last = value
        at = np.int64(value >> np.uint64(20)) & mask
        while known[at] != 0 and known[at] != value:
            at = (at + 1) & mask
        if known[at] == 0:
            if 2 * count >= len(known):
                return i, count
            known[at] = value
            count += 1
    return np.int64(len(hashes)), count


def groups_of(pairs: np.ndarray, groups: int) -> np.ndarray:
    """int64[n]: the group, of so many, of each of `pairs_of`."""
    found: np.ndarray = (pairs >> np.uint64(33)).astype(np.int64) % groups
    return found


@kernel
def gather(buffer: Bytes, at: Table, size: Table, into: Bytes) -> None:
    """Copy pieces of the buffer, one behind the other."""
    to = 0
    for i in range(len(at)):
        copy_bytes(into, to, buffer, at[i], size[i])
        to += size[i]


class _Met:
    """The four-tuples of a chunk: `pairs` at most, captured between `first_ns` and `last_ns`."""

    def __init__(self) -> None:
        self._known = np.zeros(1 << 10, np.uint64)
        self._count = self._rows = 0
        self.first_ns, self.last_ns = _LATEST_NS, -_LATEST_NS

    def take(self, times: Table, hashes: np.ndarray) -> None:
        """Packets, as `pairs_of` numbers them."""
        self._rows += len(hashes)
        self.first_ns = min(self.first_ns, int(times.min()))
        self.last_ns = max(self.last_ns, int(times.max()))
        at = 0
        while self._count <= _MOST_MET:
            at, self._count = meet(at, hashes, self._known, self._count)
            if at == len(hashes):
                break
            before = self._known[self._known != 0]
            self._known = np.zeros(4 * len(self._known), np.uint64)
            meet(0, before, self._known, 0)

    @property
    def pairs(self) -> int:
        return self._count if self._count <= _MOST_MET else self._rows


def store(reader: ChunkReader, groups: int, shares: int, path: Path) -> tuple[Said, Stored]:
    """Read a chunk, and sort its packets into a file of that name; so many shares will read it. Raises CaptureError and
    OSError."""
    index: list[list[int]] = []
    met, work, scratch = _Met(), np.zeros(groups, np.int64), (_Scratch(), _Scratch())
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        for packets in reader:
            if len(packets):
                index.append(_store_batch(file, packets, work, shares, reader.buffer_at, met, scratch))
            packets.release()
        places = np.array(index, np.int64).reshape(-1, 2 * groups + 4)
        file.write(places.tobytes())
        file.write(np.array([len(places), groups], np.int64).tobytes())
        size = file.tell()
    assert reader.said is not None
    kept = Stored(str(path), size, reader.chunk.file, 0, met.pairs, met.first_ns, met.last_ns, work)
    return reader.said, kept


@inline
def _narrowed(values: Table, less: Int, at: Int, out: Array) -> None:
    if at + len(values) <= len(out):
        for i in range(len(values)):
            out[at + i] = values[i] - less


@kernel
def sort_column(
    column: Array, rows: Table, ends: Table, begins: Table, used: Table, about: Table, gathered: Table, ones: Array,
    twos: Array, fours: Array, eights: Table,
) -> None:  # fmt: skip
    """Pack a column, group by group, as `captures.packed` does: group k has rows[ends[k - 1]:ends[k]], and used[k]
    bytes from begins[k] on have something already; about[k] gets what is to be said of its part. `gathered`: room for
    as many numbers as there are rows."""
    begin = np.int64(0)
    for k in range(len(ends)):
        end = ends[k]
        if end == begin:
            continue
        least = np.int64(0x7FFFFFFFFFFFFFFF)
        most = np.int64(NULL)
        for i in range(begin, end):
            value = np.int64(column[rows[i]])
            least = min(least, value)
            most = max(most, value)
            gathered[i] = value
        at = begins[k] + used[k]
        width = np.int64(0) if least == most else width_of(least, most)
        less = least - 1
        values = gathered[begin:end]
        if width == 1:
            _narrowed(values, less, at, ones)
        elif width == 2:
            _narrowed(values, less, at >> 1, twos)
        elif width == 4:
            _narrowed(values, less, at >> 2, fours)
        elif width == 8:
            less = np.int64(0)
            _narrowed(values, less, at >> 3, eights)
        about[k, LEAST] = least if width == 0 else less
        about[k, WIDTH] = width
        about[k, AT] = used[k]
        used[k] += (width * (end - begin) + 7) & ~7
        begin = end


class _Scratch:
    """Memory that is used again for each batch: fresh memory takes longer to get than to fill."""

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """uint8[size]; what was taken before is overwritten."""
        if size > len(self._bytes):
            self._bytes = np.empty(size + size // 4, np.uint8)
        return self._bytes[:size]


class _Sorting:
    """Columns of a batch, group by group, packed: rows[ends[k - 1]:ends[k]] are those of group k."""

    def __init__(self, rows: np.ndarray, ends: np.ndarray, scratch: _Scratch) -> None:
        self._rows, self._ends = rows, ends
        self._counts = np.diff(ends, prepend=0)
        self._begins = 8 * _COLUMNS * (ends - self._counts)
        self._used = np.zeros(len(ends), np.int64)
        self._about = np.zeros((_COLUMNS, len(ends), ABOUT), np.int64)
        content = scratch.take(8 * (_COLUMNS + 1) * len(rows))
        self._content, gathered = np.split(content, [8 * _COLUMNS * len(rows)])
        self._gathered = gathered.view(np.int64)
        self._words = words(self._content)

    def take(self, which: int, column: np.ndarray) -> None:
        """The next column; its rows are as in the batch."""
        about = self._about[which]
        sort_column(column, self._rows, self._ends, self._begins, self._used, about, self._gathered, *self._words)

    def put(self, file: io.BufferedWriter, group: int) -> None:
        """What `_Parts.packed` reads."""
        begin, size = int(self._begins[group]), int(self._used[group])
        file.write(np.array([self._counts[group], size], np.int64).tobytes())
        if self._counts[group]:
            file.write(self._about[:, group].tobytes())
            file.write(self._content[begin : begin + size].data)


def _store_batch(
    file: io.BufferedWriter, packets: Packets, work: np.ndarray, shares: int, buffer_at: int | None, met: _Met,
    scratch: tuple[_Scratch, _Scratch],
) -> list[int]:  # fmt: skip
    """Write a batch's parts; returns how many packets it has, where the times of all begin, whether bytes stay in the
    capture, where of each group the bytes and the columns begin, and where the last ones end. `work`: of each group so
    far; `buffer_at`: see `ChunkReader`."""
    columns = packets.columns
    places = [len(packets), file.tell()]
    _put(file, columns.time_ns[None])
    pairs = pairs_of(
        (columns.src_hi, columns.src_lo, columns.src_port), (columns.dst_hi, columns.dst_lo, columns.dst_port)
    )
    met.take(columns.time_ns, pairs)
    whose = groups_of(pairs, len(work))
    order = np.argsort(whose.astype(np.uint16), kind="stable")  # by digits: it is that narrow
    counts = np.bincount(whose, minlength=len(work))
    ends = np.cumsum(counts)
    headers = np.where(columns.payload_captured > 0, columns.payload_at - columns.tcp_at, 0)
    sizes, at = headers + columns.payload_captured, columns.tcp_at
    share = whose % shares
    most = share == np.bincount(share).argmax()
    stays = buffer_at is not None and _stay(at, sizes, most, packets.spare)
    places.append(int(stays))
    sorting = _Sorting(order, ends, scratch[0])
    for which, name in enumerate(_STORED):
        sorting.take(which, _signed(getattr(columns, name)))
    sorting.take(_ROW, np.arange(len(packets)))
    sorting.take(_HEADER, headers)
    slices = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    if stays and buffer_at is not None:
        sorting.take(_AT, at + buffer_at)
    else:
        placed = np.empty(len(packets), np.int64)
        for mine in slices:
            placed[mine] = np.cumsum(sizes[mine]) - sizes[mine]
        sorting.take(_AT, placed)
    for group, mine in enumerate(slices):
        work[group] += _PACKET_WORK * len(mine) + _BYTE_WORK * int(sizes[mine].sum())
        places.append(file.tell())
        if not stays:
            content = scratch[1].take(int(sizes[mine].sum()))
            gather(packets.buffer, at[mine], sizes[mine], content)
            file.write(content.data)
            file.write(bytes(-len(content) % 8))
        places.append(file.tell())
        sorting.put(file, group)
    places.append(file.tell())
    return places


def _stay(at: np.ndarray, size: np.ndarray, some: np.ndarray, spare: int) -> bool:
    """Whether bytes of packets, at these places of the buffer, are read with less work where they lie in the capture:
    by what a share of about `some` of them takes."""
    at, size, some = (values[size > 0] for values in (at, size, some))
    if not some.any() or int(at.min()) < spare or (at[1:] < (at + size)[:-1]).any():
        return False
    _, lengths = _stretches(at[some], size[some])
    total = int(lengths.sum())
    return _STRETCH_BYTES * len(lengths) <= total <= _COPIED * int(size[some].sum())


def _stretches(at: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places, and the lengths, of stretches that have all these bytes, which come in order."""
    ends = at + size
    apart = at[1:] - ends[:-1] > _GAP_BYTES
    begins = at[np.append(True, apart)]
    return begins, ends[np.append(apart, True)] - begins


def _within(begins: np.ndarray, lengths: np.ndarray, places: np.ndarray) -> np.ndarray:
    """int64 like `places`: where each place is among the stretches, one behind the other."""
    which = np.searchsorted(begins, places, side="right") - 1
    found: np.ndarray = (np.cumsum(lengths) - lengths)[which] + places - begins[which]
    return found


def _put(file: io.BufferedWriter, table: np.ndarray) -> None:
    """Columns of int64[columns, n]: how many rows, and bytes; where there are any, what is said of each column, then
    the bytes."""
    found = pack(table, range(len(table)))
    file.write(np.array([found.rows, len(found.content)], np.int64).tobytes())
    if found.rows:
        file.write(found.about.tobytes())
        file.write(found.content.data)


def _signed(values: np.ndarray) -> np.ndarray:
    """Numbers that int64 holds, or the same bits."""
    return values.view(np.int64) if values.dtype == np.uint64 else values


class _Parts:
    """Tables and bytes of a part, one after the other."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def table(self, columns: int) -> np.ndarray:
        """int64[columns, n]."""
        packed = self.packed(columns)
        found = np.empty((columns, packed.rows), np.int64)
        packed.into(found)
        return found

    def packed(self, columns: int) -> Packed:
        """The same, as it lies there."""
        rows, size = self._taken(8 * 2).view(np.int64).tolist()
        about = self._taken(8 * ABOUT * columns if rows else 0).view(np.int64).reshape(-1, ABOUT)
        return Packed(rows, np.arange(len(about)), about, self._taken(size))

    def _taken(self, size: int) -> np.ndarray:
        found, self.data = self.data[:size], self.data[size:]
        return found


@inline
def _widened(values: Array, at: Int, less: Int, rows: Table, out: Array) -> None:
    if at + len(rows) <= len(values):
        for i in range(len(rows)):
            if 0 <= rows[i] < len(out):
                out[rows[i]] = np.int64(values[at + i]) + less


@kernel
def spread_column(
    ones: Array, twos: Array, fours: Array, eights: Table, about: Table, rows: Table, out: Array
) -> None:
    """Put a packed column into some rows of another one."""
    less, width, at = about[LEAST], about[WIDTH], about[AT]
    if at < 0:
        return
    if width == 1:
        _widened(ones, at, less, rows, out)
    elif width == 2:
        _widened(twos, at >> 1, less, rows, out)
    elif width == 4:
        _widened(fours, at >> 2, less, rows, out)
    elif width == 8:
        _widened(eights, at >> 3, less, rows, out)
    else:
        for i in range(len(rows)):
            if 0 <= rows[i] < len(out):
                out[rows[i]] = less


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
                places = np.frombuffer(_whole(file, 8 * batches * row), np.int64).reshape(batches, row)
                for place in places.tolist():
                    yield self._batch(file, capture, one, place)

    def _batch(self, file: io.FileIO, capture: _InPlace, one: Stored, place: list[int]) -> Packets:
        count, times_at, stays = place[:3]
        mine = [self._part(file, place, group) for group in self._groups]
        none = np.zeros(0, np.int64)
        rows, at, headers, captured = (
            np.concatenate([none, *(part.columns.column(which) for part in mine)]) for which in _PLACED
        )
        if stays:
            size = headers + captured
            order = np.argsort(rows)
            order = order[size[order] > 0]
            begins, lengths = _stretches(at[order], size[order]) if len(order) else (at[:0], at[:0])
            within = _within(begins, lengths, at[order])
            at[:] = 0
            at[order] = within
        else:
            begins = np.array([part.bytes_at for part in mine], np.int64)
            lengths = np.array([part.size for part in mine], np.int64)
            at += np.repeat(np.cumsum(lengths) - lengths, [len(part.rows) for part in mine])
        total = int(lengths.sum())
        window = self._room(max(total, count * SMALLEST_ROW_BYTES))
        packets = batch(window, count)
        columns = packets.columns
        file.seek(times_at)
        columns.time_ns[:] = _Parts(_whole(file, place[3] - times_at)).table(1)[0]
        columns.number[:] = _KNOWN if self._every else OTHERS
        columns.file[:] = one.file
        if self._every:
            for group in range(len(place) // 2 - 2):
                _spread(self._part(file, place, group), columns, _TELLING)
        for part in mine:
            _spread(part, columns, _STORED)
        columns.number[rows] += one.number
        columns.tcp_at[rows] = at + window.spare
        columns.payload_at[rows] = columns.tcp_at[rows] + headers
        read = capture.read if stays else partial(_read_stretches, file)
        read(begins.tolist(), lengths.tolist(), memoryview(packets.buffer.data)[window.spare : window.spare + total])
        return packets

    def _part(self, file: io.FileIO, place: list[int], group: int) -> _Part:
        bytes_at, at, end = place[3 + 2 * group : 6 + 2 * group]
        file.seek(at)
        columns = _Parts(_whole(file, end - at)).packed(_COLUMNS)
        return _Part(columns.column(_ROW), columns, bytes_at, at - bytes_at)

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
    if part.columns.rows:
        parts = words(part.columns.content)
        for which, name in enumerate(_STORED):
            if name in names:
                spread_column(*parts, part.columns.about[which], part.rows, _signed(getattr(columns, name)))


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
