"""Read the chunks of a capture point's files independently, and join their results.

In: a capture point. Out: `Chunk`s; for each its packets, batch by batch, and a `ChunkResult`; for all of these, in
order, the `PointSummary` that a `Reader` of the whole would give. Rules

- A chunk begins with the first record at or behind its border and ends with the one before the next chunk's. The start
  can only be guessed (`starts`), and so can the layout that earlier bytes define: the one at the file's beginning.
- A guess is never trusted: `ChunkJoiner` takes results in order, and knows where each chunk begins and how it is to be
  read. A chunk that was guessed wrong must be read again, from the state that is `known` there. So must those with more
  than packets: a comment, which names its packet by number, a packet without a time, damage, keys of TLS, fragments of
  IP packets where an earlier chunk had some.
- A compressed file, or one behind a URL, is one chunk.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kwire.captures.chunks import starts
from kwire.captures.chunks.checksums import combined
from kwire.captures.errors import CaptureError
from kwire.captures.files import CapturePoint, FileInfo, layouts, sidecar, urls
from kwire.captures.files.layouts import Layout
from kwire.captures.files.sources import Source, Stored
from kwire.captures.fragments import SERIAL, FragmentTables
from kwire.captures.frame_kinds import add_counts
from kwire.captures.packets import Packets, Reader, batch
from kwire.captures.windows import WINDOW_BYTES, Pool, Windows

_READING: Final = [layouts.FORMAT, layouts.BIG, layouts.RECORD_HEADER, layouts.SECTION, layouts.INTERFACES]
"""What of a layout's state says how records are to be read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes [begin, end) of one of a point's files, give or take a record; `end` None: all there is, in one go. `last`:
    of its file; `size`: of the file as stored, when it was divided, 0 where it was not looked at."""

    file: int
    path: str
    folder: str
    begin: int = 0
    end: int | None = None
    last: bool = True
    size: int = 0


@dataclass(frozen=True, slots=True)
class ChunkStart:
    """State of reading where a chunk begins.

    at: offset of its first record; layout: how to read on, None where a file begins; fragments: fragments of IP
    packets in progress, None if there never were any."""

    at: int = 0
    layout: Layout | None = None
    fragments: FragmentTables | None = None


@dataclass(slots=True)
class ChunkResult:
    """Result of reading one chunk.

    known: the state that its reader began with, None if no start was found; after: the state where it stopped;
    ended: its file ends there; stored, crc32c: bytes of the file as stored that were read, and their CRC-32C; rows:
    TCP packets; statistics: what is known of a file that ended outside its bytes."""

    known: ChunkStart | None
    after: ChunkStart
    guessed: bool
    ended: bool = True
    stored: int = 0
    crc32c: int = 0
    rows: int = 0
    counts: np.ndarray | None = None
    info: FileInfo | None = None
    statistics: sidecar.CaptureStatistics = sidecar.NOTHING
    notes: list[str] = field(default_factory=list)
    secrets: list[bytes] = field(default_factory=list)
    secrets_at: list[int] = field(default_factory=list)


def chunks_of(point: CapturePoint, chunk_bytes: int) -> list[Chunk]:
    """The chunks of a capture point, each of `chunk_bytes` or, the last of a file, up to half more. Raises
    CaptureError."""
    chunks = []
    for file, path in enumerate(point.paths):
        size = 0
        if not urls.is_url(path):
            with Source(path, None, point.folder) as source:
                size = 0 if source.compressed else source.size
        count = max(1, (size + chunk_bytes // 2) // chunk_bytes)
        if count == 1:
            chunks.append(Chunk(file, path, point.folder))
            continue
        for number in range(count):
            last = number == count - 1
            end = size if last else (number + 1) * chunk_bytes
            chunks.append(Chunk(file, path, point.folder, number * chunk_bytes, end, last, size))
    return chunks


class _Range(Source):
    """Bytes [begin, limit) of a file that is not compressed."""

    def __init__(self, chunk: Chunk, begin: int) -> None:
        super().__init__(chunk.path, None, chunk.folder)
        if self.compressed or self.size != chunk.size:
            self.close()
            raise changed(self.path)
        self._handle.seek(begin)
        self._stored = self._stream = Stored(self._handle)
        self.begin, self.limit = begin, chunk.end or 0

    def readinto(self, into: memoryview) -> int:
        return super().readinto(into[: max(0, self.limit - self.begin - self.bytes_read)])


def changed(path: str) -> CaptureError:
    """A file is no longer as it was when it was divided."""
    return CaptureError(f"{path}: it changed while it was read", "analyse it when it is complete, or a copy of it")


def guessed(chunk: Chunk, look_bytes: int, ahead_bytes: int) -> ChunkStart | None:
    """Guess the state where a chunk begins, from its file's first bytes and some around its border.

    Returns None if these bytes do not tell. Raises CaptureError."""
    if chunk.begin == 0:
        return ChunkStart()
    with open(os.path.join(chunk.folder, chunk.path), "rb") as file:
        head = file.read(min(starts.HEAD_BYTES, chunk.begin))
        guess = starts.begun(head, layouts.LARGEST_RECORD_BYTES)
        if guess is None:
            return None
        layout, form = guess
        base = max(0 if form.pcapng else layouts.PCAP_HEADER_BYTES, chunk.begin - look_bytes) & ~3
        file.seek(base)
        data = np.frombuffer(file.read(chunk.begin - base + ahead_bytes), np.uint8)
    at = starts.first_record(data, chunk.begin - base, form)
    if at is None:
        return None
    layout.notes.clear()
    layout.secrets.clear()
    return ChunkStart(base + at, layout)


class ChunkReader(Reader):
    """Reads a chunk's packets, as `Reader` a point's; `result` is its result once all were read.

    known: state where it begins; None: guess it, from `look_bytes` before its border and four times as many behind,
    unless `guess` is given. Numbers of packets count from the chunk's first one if it was guessed.

    `buffer_at`: how far behind the places of the last batch's buffer the same bytes stand in the file, for those at or
    behind `Packets.spare`; None where the file is to be had as a stream only. Raises CaptureError."""

    def __init__(
        self,
        chunk: Chunk,
        known: ChunkStart | None = None,
        window_bytes: int = WINDOW_BYTES,
        look_bytes: int = starts.LOOK_BYTES,
        guess: ChunkStart | None = None,
        pool: Pool | None = None,
    ) -> None:
        super().__init__(CapturePoint("", (chunk.path,), (), chunk.folder), window_bytes)
        self._pool = pool or self._pool
        self.chunk, self.window_bytes = chunk, window_bytes
        self._guessed = known is None
        self._known = known or guess or guessed(chunk, look_bytes, 4 * look_bytes)
        self.result: ChunkResult | None = None
        self.buffer_at: int | None = None

    def _read(self) -> Generator[Packets, None, None]:
        chunk, known = self.chunk, self._known
        if known is None or (chunk.end is not None and not chunk.last and known.at >= chunk.end):
            self.result = ChunkResult(known, known or ChunkStart(), self._guessed, False, counts=self._counts)
            return
        if known.fragments is not None:
            self._fragments.tables = copy.deepcopy(known.fragments)
        source = Source(chunk.path, None, chunk.folder) if chunk.end is None else _Range(chunk, known.at)
        with source:
            yield from self._read_chunk(source, known)

    def _read_chunk(self, source: Source, known: ChunkStart) -> Generator[Packets, None, None]:
        chunk = self.chunk
        layout = Layout(self._largest_record_bytes) if known.layout is None else copy.deepcopy(known.layout)
        self.files.append(FileInfo(source.name, source.path, source.size, source.mtime_ns, 0, source.compressed))
        begun = known.layout is not None
        windows = Windows(source, self._pool, known.at)
        ended = stopped = done = False
        rows = 0
        while not done:
            base = windows.base
            window, count, needed, stopped = self._next(windows, 0, layout, source, begun)
            begun = True
            self.buffer_at = base - window.spare if isinstance(source, _Range) else None
            ended = stopped or (windows.ended and not self._goes_on(source, windows, needed))
            done = ended or self._passed(source, windows)
            if ended and not stopped and (windows.left or source.problem):
                self._note_cut(source, layout, windows.base, windows.left)
            rows += count
            self._rows = rows
            yield batch(window, count)
        if ended:
            if isinstance(source, _Range):
                source.limit = chunk.size
            source.drain()
        fragments = self._fragments.tables if self._fragments.tables.state[SERIAL] else None
        self.result = ChunkResult(
            known,
            ChunkStart(windows.base, layout, fragments),
            self._guessed,
            ended,
            source.bytes_read,
            source.crc32c,
            rows,
            self._counts,
            self.files[0],
            source.statistics() if ended else sidecar.NOTHING,
            self.notes,
            self.secrets,
            self.secrets_at,
        )

    def _passed(self, source: Source, windows: Windows) -> bool:
        """Whether the next record is another chunk's."""
        chunk = self.chunk
        return isinstance(source, _Range) and not chunk.last and windows.base >= (chunk.end or 0)

    def _goes_on(self, source: Source, windows: Windows, needed: int) -> bool:
        """All of the chunk was read: whether more of its last record is to be had, behind its end."""
        if not isinstance(source, _Range):
            return False
        if self._passed(source, windows):
            return True
        limit = min(self.chunk.size, max(source.limit, windows.base + needed))
        if limit == source.limit:
            return False
        source.limit = limit
        windows.ended = False
        return True


@dataclass(frozen=True, slots=True)
class PointSummary:
    """Files, notes and counters of all chunks of a capture point."""

    files: list[FileInfo]
    notes: list[str]
    counts: np.ndarray
    dropped: int | None
    secrets: list[bytes]
    secrets_at: list[int]


@dataclass(slots=True)
class _Whole:
    """A source whose end was reached, with the attributes that `Reader` needs."""

    path: str
    size: int
    bytes_read: int
    crc32c: int
    beside: sidecar.CaptureStatistics

    def statistics(self) -> sidecar.CaptureStatistics:
        """Return the facts about it outside its bytes."""
        return self.beside

    def drain(self) -> None:
        """It was."""


class ChunkJoiner(Reader):
    """Joins the results of chunks to those of a reader of the whole point.

    `files`, `notes`, `counts` and `secrets` are as such a reader has them. numbers: for each chunk taken, the offset
    to add to its packets' numbers. Its packets are read elsewhere."""

    def __init__(self, point: CapturePoint) -> None:
        super().__init__(point)
        self.known = ChunkStart()
        self.numbers: list[int] = []
        self._stored = self._crc32c = 0
        self._file = -1
        self._over = False

    def summary(self) -> PointSummary:
        """All were taken."""
        return PointSummary(self.files, self.notes, self._counts, self._dropped, self.secrets, self.secrets_at)

    def wants(self, chunk: Chunk) -> bool:
        """Whether anything of this chunk, the next one, is its own: a record may be longer than a chunk, and damage
        ends a file."""
        if chunk.file != self._file:
            return True
        return not self._over and (chunk.last or self.known.at < (chunk.end or 0))

    def fits(self, chunk: Chunk, result: ChunkResult) -> bool:
        """Whether a chunk was read from what is known where it begins, or would say the same."""
        known = self._at(chunk)
        if result.known is None or result.known.at != known.at:
            return False
        if result.after.fragments is not None and known.fragments is not None and result.guessed:
            return False
        if not result.guessed or known.layout is None:
            return True
        assumed, after = result.known.layout, result.after.layout
        plain = not (result.notes or result.secrets or after is None or after.notes)
        return (
            plain
            and after is not None
            and assumed is not None
            and after.state[layouts.COMMENTS] == after.state[layouts.UNTIMED] == 0
            and _alike(assumed, known.layout)
            and _alike(after, known.layout)
        )

    def _at(self, chunk: Chunk) -> ChunkStart:
        return self.known if chunk.file == self._file else ChunkStart(0, None, self.known.fragments)

    def begin(self, chunk: Chunk) -> ChunkStart:
        """Return the state where a chunk begins, to read it again."""
        return self._at(chunk)

    def take(self, chunk: Chunk, result: ChunkResult) -> None:
        """The next chunk, which fits. Raises CaptureError."""
        known = self._at(chunk)
        assert result.info is not None
        assert result.after.layout is not None
        assert result.counts is not None
        if chunk.file != self._file:
            self._file, self._over = chunk.file, False
            self.files.append(result.info)
            self._stored = self._crc32c = 0
        elif result.info.mtime_ns != self.files[-1].mtime_ns:
            raise changed(result.info.path)
        moved = result.guessed and known.layout is not None
        self.numbers.append(int(known.layout.state[layouts.NUMBER]) if moved and known.layout is not None else 0)
        layout = (
            _joined(known.layout, result.after.layout) if moved and known.layout is not None else result.after.layout
        )
        self.known = ChunkStart(result.after.at, layout, result.after.fragments or known.fragments)
        add_counts(self._counts, result.counts)
        self.notes += result.notes
        self.secrets += result.secrets
        self.secrets_at += [self._rows + at for at in result.secrets_at]
        self._rows += result.rows
        self._crc32c = combined(self._crc32c, result.crc32c, result.stored)
        self._stored += result.stored
        self._over = result.ended
        whole = _Whole(result.info.path, result.info.size, self._stored, self._crc32c, result.statistics)
        if result.ended:
            self._finish(whole, layout)  # type: ignore[arg-type]  # has what it asks for
        self._describe(len(self.files) - 1, whole, layout)  # type: ignore[arg-type]  # the same


def _alike(layout: Layout, other: Layout) -> bool:
    """Whether two layouts read records alike."""
    count = int(layout.state[layouts.INTERFACES])
    return bool(
        (layout.state[_READING] == other.state[_READING]).all()
        and (layout.interfaces[:count, : layouts.SEEN] == other.interfaces[:count, : layouts.SEEN]).all()
    )


def _joined(before: Layout, after: Layout) -> Layout:
    """A file's layout behind a chunk that knew nothing of what came `before`."""
    joined = copy.deepcopy(before)
    state, more = joined.state, after.state
    if more[layouts.EARLIEST] <= more[layouts.LATEST]:
        state[layouts.TIME] = more[layouts.TIME]
    for column in (layouts.NUMBER, layouts.DROPS):
        state[column] += more[column]
    state[layouts.EARLIEST] = min(state[layouts.EARLIEST], more[layouts.EARLIEST])
    state[layouts.LATEST] = max(state[layouts.LATEST], more[layouts.LATEST])
    count = int(more[layouts.INTERFACES])
    joined.interfaces[:count, layouts.SEEN] += after.interfaces[:count, layouts.SEEN]
    joined.take_drops(after)
    return joined
