"""Read a capture point in chunks, each byte by one task, and decode it in shares of its connections.

In: a capture point. Out: the dataset files that the local engine would write for it, row for row and in the same order.

```
 capture ──▶ chunk 0 ──▶ packets of group 0 ... n ─┐              ┌──▶ share 0 of k ─┐
 capture ──▶ chunk 1 ──▶ packets of group 0 ... n ─┼── verified ──┼──▶ share 1 of k ─┼──▶ `merging`
 capture ──▶ ...              (in files)          ─┘              └──▶ ...          ─┘
```

A chunk's task finds packets, and sorts them by four-tuple into a file: columns, nothing pickled, and bytes, but for
those that are reached with less work where they lie in the capture. Sharing tasks read, of all files, the time of each
packet (4 bytes) and the packets of their own connections; so all see the same batches, clock and order. Only where so
many connections come and go, for so long, that some are forgotten, they read the columns that tell connections apart
of all packets (some 40 bytes each).

Where a chunk's first record is, and how it is to be read, is a guess. The driver takes the chunks' results in order,
and has those read again whose guess was wrong (`kwire.captures.chunks.chunk_reader.ChunkJoiner`). Where that is more
than a tenth, or where there is but one chunk (as of compressed files), the caller decodes the point whole, in one task.
The cost is room for up to a second copy of all TCP packets, in the folder of the unfinished dataset.

Filters and records of internal topics need names of topic ids that any connection may tell, later ones too: for them
the shares are read for all names first (`_topic_names`), in a stage that makes no rows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kwire.analyzer.dataset.dataset import DatasetError
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.shares import Share, ShareOfPackets, ShareResult, share, topic_names_of_share
from kwire.captures.chunks.chunk_reader import Chunk, ChunkJoiner, ChunkReader, ChunkResult, ChunkStart, chunks_of
from kwire.captures.chunks.routing import MOST_IN_PLACE, RoutedReader, check_same
from kwire.captures.chunks.sorting import StoredChunk, apart, divided, store
from kwire.captures.files import CaptureError, CapturePoint, stored_bytes
from kwire.reports.spark.merging import PIECES, merge_shares, range_packets
from kwire.reports.spark.tasks import Failed, WrittenPoint, attempt

if TYPE_CHECKING:
    from pyspark import SparkContext

    from kwire.analyzer.pipeline.read_options import Settings

LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 1 << 30, 4 << 30
"""Bytes of a task that reads: some seconds, or a part of one. The first that a Python process reads, and each that a
task begins with, take it a twentieth of a second more, and memory of a host is dear: so not more tasks than cores."""

MOST_SHARES = 16
"""Tasks that decode a capture point. Each reads the times of all packets, and more of them gain hardly any time."""

FEW_SHARES = 4
"""With so many cores or fewer, one task with threads is about as fast as sorting the packets for shares first."""

SMALLEST_BYTES = 1 << 15
"""A chunk is not smaller."""

GROUPS = 4
"""Groups of four-tuples for each share, which gets some of them by the work that each group is."""

MOST_AGAIN = 0.1
"""The part of a point's chunks that may have to be read again, one after the other."""

WINDOW_BYTES = 16 << 20
"""Bytes of a window whose packets are copied, but for how many tasks have a part of it: two take a tenth less time of
twice as many, sixteen a third of four times as many. Where they stay in the capture, `sorting` reads fewer at once."""

RECORDS_IN_PLACE = MOST_IN_PLACE // 2
"""Like MOST_IN_PLACE, where record sets are held until a batch is worked off: memory is fresh once in each task, and
with more of it a task is slower by a tenth."""

Tell = Callable[[str], None]


class _TooManyWrongGuesses(Exception):
    """More chunks than may be read again began or read otherwise than guessed."""


def chunk_point(
    context: SparkContext,
    point: CapturePoint,
    settings: Settings,
    choice: AnalysisOptions,
    folder: Path,
    label: str,
    chunk_bytes: int | None = None,
    tell: Tell = lambda _: None,
) -> WrittenPoint | Failed | None:
    """Decode one capture point in chunks of `chunk_bytes` (None: by its size and the cores).

    Writes files into `folder`, whose names begin with `label`. None: it cannot be divided into chunks, and nothing was
    written; `tell` gets a line that says why, if guesses were wrong.
    """
    count = share_count(context.defaultParallelism)
    try:
        chunks = chunks_of(point, max(chunk_bytes or chunk_bytes_of(point, context.defaultParallelism), SMALLEST_BYTES))
    except CaptureError as failure:
        return Failed(failure.message, failure.hint)
    if len(chunks) < 2:
        return None
    (folder / PIECES).mkdir(mode=0o700, exist_ok=True)
    written: list[str] = []
    try:
        reading = _ChunkReading(context, chunks, count, window_bytes(settings, count), folder, label, written)
        joined, stored = reading.verified(point)
        return _decode_shares(context, point, settings, choice, folder, label, joined, stored, count)
    except _TooManyWrongGuesses as failure:
        tell(f"{point.name}: not read in chunks: {failure}; one task reads it whole")
        return None
    except (CaptureError, DatasetError) as failure:
        return Failed(failure.message, failure.hint)
    finally:
        for path in written:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def share_count(cores: int) -> int:
    """The number of tasks that decode a capture point where Spark has so many cores."""
    return max(1, min(MOST_SHARES, cores))


def chunk_bytes_of(point: CapturePoint, cores: int) -> int:
    """The default size of a chunk: as many chunks as there are cores, or several times that.

    If the point's files cannot be looked at, the task that reads them says so.
    """
    try:
        size = stored_bytes(point)
    except (CaptureError, OSError):
        return LEAST_CHUNK_BYTES
    tasks = cores * max(1, -(-size // (cores * MOST_CHUNK_BYTES)))
    return max(LEAST_CHUNK_BYTES, -(-size // tasks))


def window_bytes(settings: Settings, shares: int) -> int:
    """Bytes of a batch that so many tasks share."""
    return min(settings.window_bytes, WINDOW_BYTES) * max(2, shares // FEW_SHARES)


def in_place_bytes(choice: AnalysisOptions) -> int:
    """Bytes of a batch that lies in the capture, at most."""
    return RECORDS_IN_PLACE if choice.keep_records else MOST_IN_PLACE


class _ChunkReading:
    """The chunks of one point, read by tasks; the paths of the files that they write are appended to `written`."""

    def __init__(
        self,
        context: SparkContext,
        chunks: list[Chunk],
        shares: int,
        window_bytes: int,
        folder: Path,
        label: str,
        written: list[str],
    ) -> None:
        self._context, self._chunks, self._written = context, chunks, written
        self._how = (shares, window_bytes, str(folder / PIECES / f"{label}-chunk"))

    def verified(self, point: CapturePoint) -> tuple[ChunkJoiner, list[StoredChunk]]:
        """The results of all chunks joined, and their packets' files. Raises CaptureError, _TooManyWrongGuesses."""
        how, chunks = self._how, self._chunks
        results = (
            self._context.parallelize(range(len(chunks)), len(chunks))
            .map(lambda number: _read(chunks[number], number, None, *how))
            .collect()
        )
        self._written += [result[1].path for result in results if not isinstance(result, Failed)]
        joining = ChunkJoiner(point)
        stored: list[StoredChunk] = []
        again = 0
        for number, (chunk, result) in enumerate(zip(chunks, results, strict=True)):
            if not joining.wants(chunk):
                continue
            chunk_result, file = _accepted(result)
            if not joining.fits(chunk, chunk_result):
                again += 1
                if again > max(2, len(chunks) * MOST_AGAIN):
                    raise _TooManyWrongGuesses(f"{again} of {number + 1} chunks were guessed wrong")
                chunk_result, file = self._again(number, joining.begin(chunk))
            joining.take(chunk, chunk_result)
            stored.append(file._replace(number=joining.numbers[-1]))
        return joining, stored

    def _again(self, number: int, known: ChunkStart) -> tuple[ChunkResult, StoredChunk]:
        how, chunk = self._how, self._chunks[number]
        [result] = (
            self._context.parallelize([number], 1).map(lambda number: _read(chunk, number, known, *how)).collect()
        )
        chunk_result, file = _accepted(result)
        self._written.append(file.path)
        return chunk_result, file


def _accepted(result: tuple[ChunkResult, StoredChunk] | Failed) -> tuple[ChunkResult, StoredChunk]:
    if isinstance(result, Failed):
        raise CaptureError(result.message, result.hint)
    return result


def _read(
    chunk: Chunk, number: int, known: ChunkStart | None, shares: int, window_bytes: int, name: str
) -> tuple[ChunkResult, StoredChunk] | Failed:
    """Read one chunk, in a task. An error of its input is a value."""
    path = Path(f"{name}{number:06d}-{'true' if known else 'guess'}-{attempt()}")
    try:
        return store(ChunkReader(chunk, known, window_bytes), GROUPS * shares, shares, path)
    except CaptureError as failure:
        path.unlink(missing_ok=True)
        return Failed(failure.message, failure.hint)
    except OSError as failure:
        path.unlink(missing_ok=True)
        hint = "-o: a folder that all machines may write to, with room for a copy of the capture, or --chunk-bytes 0"
        return Failed(f"{path.parent}: cannot be written: {failure.strerror or failure}", hint)


def _decode_shares(
    context: SparkContext,
    point: CapturePoint,
    settings: Settings,
    choice: AnalysisOptions,
    folder: Path,
    label: str,
    joined: ChunkJoiner,
    stored: list[StoredChunk],
    count: int,
) -> WrittenPoint | Failed:
    packets, whole = range_packets(choice), joined.summary()
    groups, every = divided(stored, count), not apart(stored)

    def read(number: int) -> tuple[Share, RoutedReader]:
        own = groups[number]
        part = Share(number, count, own, GROUPS * count) if every else ShareOfPackets(number, count)
        return part, RoutedReader(point, whole, stored, own, every, in_place_bytes(choice))

    topics = _topic_names(context, point, settings, read, count) if choice.asks_names else {}
    if isinstance(topics, Failed):
        return topics

    def decode(number: int) -> ShareResult | Failed:
        path = folder / PIECES / f"{label}-{number:02d}-{attempt()}"
        part, reader = read(number)
        try:
            return share(point, settings, choice, part, packets, path, reader, topics)
        except (CaptureError, DatasetError) as failure:
            return Failed(failure.message, failure.hint)
        except OSError as failure:
            hint = "give a folder to -o that all machines may write to"
            return Failed(f"{path.parent}: cannot be written: {failure.strerror or failure}", hint)

    try:
        shares = context.parallelize(range(count), count).map(decode).collect()
    except Exception:
        check_same(point, whole.files)
        raise
    return merge_shares(context, shares, point, choice, folder, label)


def _topic_names(
    context: SparkContext,
    point: CapturePoint,
    settings: Settings,
    read: Callable[[int], tuple[Share, RoutedReader]],
    count: int,
) -> dict[str, str] | Failed:
    """The names of topic ids that all shares tell, by id: a stage of its own, before any row is made."""

    def names(number: int) -> dict[str, str] | Failed:
        try:
            return topic_names_of_share(point, settings, *read(number))
        except CaptureError as failure:
            return Failed(failure.message, failure.hint)

    topics: dict[str, str] = {}
    for result in context.parallelize(range(count), count).map(names).collect():
        if isinstance(result, Failed):
            return result
        topics |= result
    return topics
