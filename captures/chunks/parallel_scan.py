"""Scan a capture point's files with several threads at once, and give the packets in order.

In: a capture point. Out: what a `Reader` gives. Rules: chunks are read ahead, each from a guessed start, by threads
that know nothing of one another; each guess is verified by where the chunk before it ended, and one that was wrong is
read again (`kwire.captures.chunks.chunk_reader`). So a wrong guess costs time and changes nothing. While too many are
wrong, nothing is guessed. How far is read ahead is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from kwire.captures.chunks.chunk_reader import (
    Chunk,
    ChunkJoiner,
    ChunkReader,
    ChunkResult,
    ChunkStart,
    chunks_of,
    guessed,
)
from kwire.captures.errors import CaptureError
from kwire.captures.files import CapturePoint, layouts, urls
from kwire.captures.files.sources import Source
from kwire.captures.packets import SPARE_BYTES, Packets, Reader
from kwire.captures.windows import MOST_ROWS, Pool

WORKERS: Final = 4
"""Threads that decode what one of these finds, about."""

LEAST_BYTES: Final = 256 << 20
"""A smaller capture point has been read before several threads would have gained anything."""

LOOK_BYTES: Final = 16 << 10
"""Bytes looked at before a border, for a guess; behind it four times as many. Less than where a chunk is a gigabyte: it
takes a millisecond, in which nothing else is guessed."""

MOST_AGAIN: Final = 0.1
"""The part of the chunks so far that may have been guessed wrong where another one is guessed."""

IN_USE: Final = 3
"""Windows that those have who take packets: one waits, one is worked on, one is being put together."""

_Read = tuple[ChunkResult, list[Packets]]


def reader_of(point: CapturePoint, threads: int, window_bytes: int) -> Reader | None:
    """Return a reader that scans a point with several threads, or None if `Reader` is as good.

    It is as good if the point is small, or if its files can only be read from their beginning on."""
    if "-" in point.paths or any(map(urls.is_url, point.paths)):
        return None
    total = 0
    for path in point.paths:
        try:
            with Source(path, None, point.folder) as source:
                if source.compressed:
                    return None
                total += source.size
        except CaptureError:
            return None  # it is for the reader to say, when it comes to that file
    return AheadReader(point, threads // WORKERS + 1, window_bytes) if total >= LEAST_BYTES else None


class AheadReader(ChunkJoiner):
    """A `Reader` whose files are scanned by several threads, in chunks that are a window each.

    again: number of chunks that were guessed wrong."""

    def __init__(self, point: CapturePoint, threads: int, chunk_bytes: int) -> None:
        super().__init__(point)
        self._threads, self._chunk_bytes = threads, chunk_bytes
        self._wanted = chunk_bytes
        self._pool = Pool(self._window_bytes, SPARE_BYTES, threads + 1 + IN_USE)
        self.again = 0

    @property
    def _window_bytes(self) -> int:
        return self._wanted + self._chunk_bytes // 2 + layouts.PCAP_HEADER_BYTES  # the last one is longer

    def resize(self, window_bytes: int, rows: int = MOST_ROWS) -> None:
        """Chunks are put together as far as they have so many bytes."""
        self._wanted = max(window_bytes, self._chunk_bytes)
        self._pool.resize(self._window_bytes, rows)

    def _read(self) -> Generator[Packets, None, None]:
        pool = ThreadPoolExecutor(self._threads, "kwire-scan")
        try:
            for chunk, coming in self._coming(pool):
                if not self.wants(chunk):
                    continue
                result, batches = coming.result() if coming is not None else self._scanned(chunk, self.begin(chunk))
                if not self.fits(chunk, result):
                    self.again += 1
                    for packets in batches:
                        packets.release()
                    result, batches = self._scanned(chunk, self.begin(chunk))
                self.take(chunk, result)
                self._read_before += result.stored
                for packets in batches:
                    packets.columns.number[:] += self.numbers[-1]
                    packets.columns.file[:] = chunk.file
                    yield packets
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _coming(self, pool: ThreadPoolExecutor) -> Iterator[tuple[Chunk, Future[_Read] | None]]:
        """The chunks in order, the next ones being read meanwhile; None: this one is not."""
        chunks = deque(chunks_of(self.point, self._chunk_bytes))
        ahead: deque[tuple[Chunk, Future[_Read] | None]] = deque()
        begins: ChunkStart | None = ChunkStart()
        yielded = 0
        while chunks or ahead:
            while chunks and len(ahead) <= self._threads:
                chunk = self._next_chunk(chunks)
                following = _guessed(chunks[0]) if chunks and self.again <= max(2, yielded * MOST_AGAIN) else None
                if following is not None and chunks[0].file == chunk.file:
                    chunk = replace(chunk, end=following.at)  # no rest of a record is to be read behind its end
                ahead.append((chunk, None if begins is None else pool.submit(self._scanned, chunk, None, begins)))
                begins = following
            yielded += 1
            yield ahead.popleft()

    def _next_chunk(self, chunks: deque[Chunk]) -> Chunk:
        chunk = chunks.popleft()
        most = chunk.begin + self._wanted + self._chunk_bytes // 2
        while chunks and chunks[0].file == chunk.file and (chunks[0].end or 0) <= most:
            following = chunks.popleft()
            chunk = replace(chunk, end=following.end, last=following.last)
        return chunk

    def _scanned(self, chunk: Chunk, known: ChunkStart | None, guess: ChunkStart | None = None) -> _Read:
        reader = ChunkReader(chunk, known, self._window_bytes, guess=guess, pool=self._pool)
        batches = list(reader)
        assert reader.result is not None
        return reader.result, batches


def _guessed(chunk: Chunk) -> ChunkStart | None:
    """Like `guessed`, but None on errors: the reader of the chunk reports them."""
    try:
        return guessed(chunk, LOOK_BYTES, 4 * LOOK_BYTES)
    except (OSError, CaptureError):
        return None
