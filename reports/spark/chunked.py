"""A capture point read in chunks, each byte by one task, and decoded by connection.

In: a capture point. Out: the dataset files that the local engine would write for it, row for row and in the same order.

```
 capture ──▶ chunk 0 ──▶ packets of group 0 ... n ─┐              ┌──▶ share 0 of k ─┐
 capture ──▶ chunk 1 ──▶ packets of group 0 ... n ─┼── verified ──┼──▶ share 1 of k ─┼──▶ as in `split`
 capture ──▶ ...              (in files)          ─┘              └──▶ ...          ─┘
```

A chunk's task finds packets, and sorts them by four-tuple into a file: columns, nothing pickled, and bytes, but for
those that are reached with less work where they lie in the capture. Sharing tasks read, of all files, the time of each
packet (4 bytes) and the packets of their own connections; so all see the same batches, clock and order, as in `split`,
and nothing is guessed of what a connection said before. Only where so many connections come and go, for so long, that
some are forgotten, they read what tells connections apart of all packets (some 40 bytes each).

What is guessed is where a chunk's first record is and how it is to be read. The driver takes what chunks say in order,
and has those read again whose guess was wrong (`captures.chunks.chunk_reader.ChunkJoiner`). Where that is more than a
tenth, the
capture point is decoded as before: each share reads all of it. What it costs is room for up to a second copy of what
TCP packets hold, in the folder of the unfinished dataset.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.dataset.dataset import DatasetError
from analyzer.pipeline.points import Choice
from analyzer.pipeline.shares import Share, Shared, ShareOfPackets, ShareOfPairs
from captures.chunks.chunk_reader import Chunk, ChunkJoiner, ChunkReader, ChunkResult, ChunkStart, chunks_of
from captures.chunks.routing import MOST_IN_PLACE, RoutedReader, check_same
from captures.chunks.sorting import Stored, apart, divided, store
from captures.files import CaptureError, CapturePoint, stored_bytes
from reports.spark import split
from reports.spark.tasks import Done, Refused, attempt

if TYPE_CHECKING:
    from pyspark import SparkContext

    from analyzer.pipeline.read_options import Settings

LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 1 << 30, 4 << 30
"""Bytes of a task that reads: some seconds, or a part of one. The first that a Python process reads, and each that a
task begins with, take it a twentieth of a second more, and memory of a host is dear: so not more tasks than cores."""

FEW_SHARES = 4
"""So many tasks read all of a capture in less processor time than it takes to sort its packets first."""

SMALLEST_BYTES = 1 << 15
"""A chunk is not smaller."""

GROUPS = 4
"""Groups of four-tuples a share, which is given some of them by how much there is to do for each."""

MOST_AGAIN = 0.1
"""The part of a point's chunks that may have to be read again, one after the other."""

WINDOW_BYTES = 16 << 20
"""Bytes of a window whose packets are copied, but for how many tasks have a part of it: two take a tenth less time of
twice as many, sixteen a third of four times as many. Where they stay in the capture, `sorting` reads fewer at once."""

RECORDS_IN_PLACE = MOST_IN_PLACE // 2
"""The same as MOST_IN_PLACE where record sets are kept until a batch is worked off: memory is fresh once in each task,
and of more of it a task is slower by a tenth."""

Tell = Callable[[str], None]


class _TooMany(Exception):
    """Chunks were guessed wrong."""


def chunk_point(
    context: SparkContext,
    point: CapturePoint,
    settings: Settings,
    choice: Choice,
    folder: Path,
    label: str,
    chunk_bytes: int | None = None,
    tell: Tell = lambda _: None,
) -> Done | Refused:
    """Decode one capture point into files in `folder`, whose names begin with `label`, in chunks of so many bytes (0:
    not in chunks, None: where that pays). `tell` hears why it is not done in chunks although it was to be."""
    count = split.share_count(context.defaultParallelism)
    if chunk_bytes is None:
        chunk_bytes = chunk_bytes_of(point, context.defaultParallelism) if count > FEW_SHARES else 0
    if not chunk_bytes:
        return split.split_point(context, point, settings, choice, folder, label)
    try:
        chunks = chunks_of(point, max(chunk_bytes, SMALLEST_BYTES))
    except CaptureError as failure:
        return Refused(str(failure), failure.hint)
    if len(chunks) < 2:
        return split.split_point(context, point, settings, choice, folder, label)
    (folder / split.PIECES).mkdir(mode=0o700, exist_ok=True)
    made: list[str] = []
    try:
        reading = _Reading(context, chunks, count, window_bytes(settings, count), folder, label, made)
        said, stored = reading.verified(point)
        return _shared(context, point, settings, choice, folder, label, said, stored, count)
    except _TooMany as found:
        tell(f"{point.name}: not read in chunks: {found}; each task reads all of it")
        return split.split_point(context, point, settings, choice, folder, label)
    except (CaptureError, DatasetError) as failure:
        return Refused(str(failure), failure.hint)
    finally:
        for path in made:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def chunk_bytes_of(point: CapturePoint, cores: int) -> int:
    """As large as chunks are where nobody says it: as many as there are cores, or several times that. Where the point's
    files cannot be looked at, whoever reads them says so."""
    try:
        size = stored_bytes(point)
    except (CaptureError, OSError):
        return LEAST_CHUNK_BYTES
    tasks = cores * max(1, -(-size // (cores * MOST_CHUNK_BYTES)))
    return max(LEAST_CHUNK_BYTES, -(-size // tasks))


def window_bytes(settings: Settings, shares: int) -> int:
    """Bytes of a batch that so many tasks share."""
    return min(settings.window_bytes, WINDOW_BYTES) * max(2, shares // FEW_SHARES)


def in_place_bytes(choice: Choice) -> int:
    """Bytes of a batch that lies in the capture, at most."""
    return RECORDS_IN_PLACE if choice.keep_records else MOST_IN_PLACE


class _Reading:
    """The chunks of one point, read by tasks; `made` gets the files that they wrote."""

    def __init__(
        self,
        context: SparkContext,
        chunks: list[Chunk],
        shares: int,
        window_bytes: int,
        folder: Path,
        label: str,
        made: list[str],
    ) -> None:
        self._context, self._chunks, self._made = context, chunks, made
        self._how = (shares, window_bytes, str(folder / split.PIECES / f"{label}-chunk"))

    def verified(self, point: CapturePoint) -> tuple[ChunkJoiner, list[Stored]]:
        """What all chunks say together, and where their packets lie. Raises CaptureError, and `_TooMany`."""
        how, chunks = self._how, self._chunks
        found = (
            self._context.parallelize(range(len(chunks)), len(chunks))
            .map(lambda number: _read(chunks[number], number, None, *how))
            .collect()
        )
        self._made += [one[1].path for one in found if not isinstance(one, Refused)]
        joining = ChunkJoiner(point)
        stored: list[Stored] = []
        again = 0
        for number, (chunk, one) in enumerate(zip(chunks, found, strict=True)):
            if not joining.wants(chunk):
                continue
            said, kept = _accepted(one)
            if not joining.fits(chunk, said):
                again += 1
                if again > max(2, len(chunks) * MOST_AGAIN):
                    raise _TooMany(f"{again} of {number + 1} chunks were guessed wrong")
                said, kept = self._again(number, joining.begin(chunk))
            joining.take(chunk, said)
            stored.append(kept._replace(number=joining.numbers[-1]))
        return joining, stored

    def _again(self, number: int, known: ChunkStart) -> tuple[ChunkResult, Stored]:
        how, chunk = self._how, self._chunks[number]
        [one] = self._context.parallelize([number], 1).map(lambda number: _read(chunk, number, known, *how)).collect()
        said, kept = _accepted(one)
        self._made.append(kept.path)
        return said, kept


def _accepted(one: tuple[ChunkResult, Stored] | Refused) -> tuple[ChunkResult, Stored]:
    if isinstance(one, Refused):
        raise CaptureError(one.message, one.hint)
    return one


def _read(
    chunk: Chunk, number: int, known: ChunkStart | None, shares: int, window_bytes: int, name: str
) -> tuple[ChunkResult, Stored] | Refused:
    """One chunk, in a task. What is wrong with it is a value."""
    path = Path(f"{name}{number:06d}-{'true' if known else 'guess'}-{attempt()}")
    try:
        return store(ChunkReader(chunk, known, window_bytes), GROUPS * shares, shares, path)
    except CaptureError as failure:
        path.unlink(missing_ok=True)
        return Refused(str(failure), failure.hint)
    except OSError as failure:
        path.unlink(missing_ok=True)
        hint = "-o: a folder that all machines may write to, with room for a copy of the capture, or --chunk-bytes 0"
        return Refused(f"{path.parent}: cannot be written: {failure.strerror or failure}", hint)


def _shared(
    context: SparkContext,
    point: CapturePoint,
    settings: Settings,
    choice: Choice,
    folder: Path,
    label: str,
    said: ChunkJoiner,
    stored: list[Stored],
    count: int,
) -> Done | Refused:
    packets, whole = split.range_packets(choice), said.summary()
    groups, every = divided(stored, count), not apart(stored)

    def read(number: int) -> tuple[Share, RoutedReader]:
        mine = groups[number]
        part = ShareOfPairs(number, count, mine, GROUPS * count) if every else ShareOfPackets(number, count)
        return part, RoutedReader(point, whole, stored, mine, every, in_place_bytes(choice))

    topics = split.names_of(context, point, settings, choice, read, count)
    if isinstance(topics, Refused):
        return topics

    def decode(number: int) -> Shared | Refused:
        path = folder / split.PIECES / f"{label}-{number:02d}-{attempt()}"
        part, reader = read(number)
        return split.shared(point, settings, choice, part, packets, path, reader, topics)

    try:
        shares = context.parallelize(range(count), count).map(decode).collect()
    except Exception:
        check_same(point, whole.files)
        raise
    return split.together(context, shares, point, choice, folder, label)
