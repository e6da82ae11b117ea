"""Read capture points to their end.

In: a capture point or a partition of log files, how to read it and what to keep of it (`AnalysisOptions`). Out: (name
of a table, rows), and a `PointResult`. The public functions (`kwire.analyzer.api`), the tasks of Spark and shares of a
point (`shares`) are made of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa

from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.analysis.journeys_of_points import JourneysOfPoints
from kwire.analyzer.analysis.record_sets import RowGroupBuffer, payload_columns
from kwire.analyzer.analysis.summary import Summary
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.dataset.dataset import DatasetError, Writer
from kwire.analyzer.dataset.parquet_files import LazyTable, as_table
from kwire.analyzer.payloads.options import of_point
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions, parsed
from kwire.analyzer.pipeline.drive import drive, topic_names
from kwire.analyzer.pipeline.point_result import PointResult, joined, manifest, nothing_matches
from kwire.analyzer.pipeline.point_tables import PointTables
from kwire.analyzer.records.arrow_tables import BATCHES, FULL, META, NO_RECORDS, WITHOUT, empty_table
from kwire.analyzer.records.log_names import LogError, LogPoint
from kwire.analyzer.records.log_reader import read_log
from kwire.captures.files import CaptureError, CapturePoint, stored_bytes
from kwire.captures.packets import Reader
from kwire.captures.windows import LARGE_BYTES, USUAL_BYTES, WINDOW_BYTES

__all__ = [
    "BATCHES",
    "FULL",
    "LARGE_POINT",
    "META",
    "NO_RECORDS",
    "WITHOUT",
    "AnalysisOptions",
    "NamesAhead",
    "PointResult",
    "Progress",
    "check_names",
    "how_to_read",
    "joined",
    "manifest",
    "nothing_matches",
    "parsed",
    "point_tables",
    "read_point",
    "read_point_later",
    "size_of",
]

LARGE_POINT: Final = 768 << 20
"""Bytes of a capture point of which more is read at a time: of a smaller one, to get the memory for it takes longer."""

MANY_THREADS: Final = 4
"""From so many on, several threads find packets: for fewer, one does that ahead of them and is seldom waited for."""

Progress = Callable[[str, int, int], None]
"""Called with the capture point's name, the bytes read so far, and their number where it is known (else 0)."""

TOPIC_ID_LENGTH = 22
"""Characters of a uuid as Kafka prints it."""


def size_of(point: CapturePoint) -> int:
    """Bytes of a capture point's files, 0 where that cannot be known."""
    try:
        return stored_bytes(point)
    except (OSError, CaptureError):
        return 0


def read_point(
    point: CapturePoint | LogPoint,
    settings: Settings,
    options: AnalysisOptions,
    put: Callable[[str, pa.Table], None],
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
    joint: JourneysOfPoints | None = None,
) -> PointResult:
    """Decode one capture point, or read a partition's log segments. `put` gets the rows, table by table, each table at
    least once (it may be empty); `joint`: takes the journeys, where several points have one clock."""
    return read_point_later(
        point, settings, options, lambda name, rows: put(name, as_table(rows)), progress, stdin, joint
    )


def read_point_later(
    point: CapturePoint | LogPoint,
    settings: Settings,
    options: AnalysisOptions,
    put: Callable[[str, LazyTable], None],
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
    joint: JourneysOfPoints | None = None,
) -> PointResult:
    """Like `read_point`; `put` may also get a function that makes the table, to be called in any thread."""
    if isinstance(point, LogPoint):
        return _read_log(point, settings, options, put, progress)
    parts = _point_rows(point, settings, options, progress, stdin, joint)
    while True:
        try:
            name, rows = next(parts)
        except StopIteration as end:
            read: PointResult = end.value
            return read
        put(name, rows)


def _read_log(
    point: LogPoint,
    settings: Settings,
    options: AnalysisOptions,
    put: Callable[[str, pa.Table], None],
    progress: Progress | None,
) -> PointResult:
    if not options.everything:
        raise LogError(f"{point.name}: a log segment has no exchanges to filter", "leave out --filter")

    def report(read: int, size: int) -> None:
        if progress is not None:
            progress(point.name, read, size)

    payloads = options.payloads if options.records == FULL else None
    decoded = None if payloads is None else payload_columns(payloads, str)
    groups = RowGroupBuffer(None if decoded is None else decoded.fill)

    def gather(name: str, table: pa.Table) -> None:
        for group in groups.put(name, table):
            put(*group)

    read = read_log(point, options.records, settings.threads, options.limits, gather, report)
    for group in groups.rest():
        put(*group)
    for name in ("batches", "records"):
        if name not in WITHOUT[options.records]:
            put(name, empty_table(name))
    if decoded is not None:
        put("schemas", decoded.schemas(point.name))
    summary = Summary()
    summary.finish_log(read)
    return PointResult(read.capture, read.notes, summary)


def point_tables(
    point: CapturePoint,
    settings: Settings,
    options: AnalysisOptions,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Generator[tuple[str, pa.Table], None, PointResult]:
    """Like `read_point` of a capture point, as an iterator of (name of the table, rows) that may be left early."""
    parts = _point_rows(point, settings, options, progress, stdin)
    while True:
        try:
            name, rows = next(parts)
        except StopIteration as end:
            read: PointResult = end.value
            return read
        yield name, as_table(rows)


def _point_rows(
    point: CapturePoint,
    settings: Settings,
    options: AnalysisOptions,
    progress: Progress | None,
    stdin: BinaryIO | None,
    joint: JourneysOfPoints | None = None,
) -> Generator[tuple[str, LazyTable], None, PointResult]:
    size = size_of(point)
    if options.records == FULL or (options.filter is not None and options.filter.needs_payloads):
        options = dataclasses.replace(options, payloads=of_point(options.payloads, point))
    how = how_to_read(settings, options, size)
    engine = Engine(point, how, stdin, reader=_reader(point, how))
    topics = TopicIds()
    ahead = NamesAhead(topics, point, settings)
    sink = PointTables(engine.merging.names, options, settings.threads, topics, ahead.look_up, joint=joint)

    def report(read: int) -> None:
        if progress is not None:
            progress(point.name, read, size)

    yield from drive(engine, [sink], report)
    return sink.result(point, engine.reader, engine.attempts())


def how_to_read(settings: Settings, options: AnalysisOptions, size: int) -> Settings:
    """How the engine is to read for what is chosen, of a capture point of so many bytes (0: nobody knows, and what
    comes live is handed on soon, however much there is room for). Of a large one it reads more at a time, unless
    somebody said how much, or rows are made of all that it read: one a record, or raw messages."""
    how = dataclasses.replace(settings, keep_records=options.keep_records)
    few_rows = options.records in (NO_RECORDS, BATCHES) and not options.keep_bytes
    if not few_rows or settings.window_bytes != Settings().window_bytes:
        return how
    large = USUAL_BYTES if 0 < size < LARGE_POINT else LARGE_BYTES
    return dataclasses.replace(how, window_bytes=WINDOW_BYTES, large_bytes=large)


def _reader(point: CapturePoint, settings: Settings) -> Reader | None:
    """Return the reader of a capture point for many threads; None for few, where the engine makes its own."""
    if settings.threads < MANY_THREADS:
        return None
    from kwire.captures.chunks import parallel_scan  # large captures, on large machines

    return parallel_scan.reader_of(point, settings.threads, settings.window_bytes)


class NamesAhead:
    """Names for topic ids that messages say only later: `look_up` reads the capture to its end for them, once, and only
    for an id that nothing has named so far. stdin is read once: of it nothing is known ahead."""

    def __init__(self, topics: TopicIds, point: CapturePoint, settings: Settings) -> None:
        self._topics = topics
        self._point = point
        self._settings = dataclasses.replace(settings, keep_messages=False, keep_records=False)
        self._read = "-" in point.paths

    def look_up(self, topic: str) -> str:
        """The name for a topic's id, where some message says it; else what was given."""
        if not self._read and topic not in self._topics.names and len(topic) == TOPIC_ID_LENGTH:
            self._read = True
            self._topics.learn(topic_names(Engine(self._point, self._settings)))
        return self._topics.name(topic)

    def resolve(self, row: dict[str, Any]) -> None:
        """Put names for topic ids in a row of `exchanges`."""
        if row["topics"]:
            row["topics"] = list(dict.fromkeys(map(self.look_up, row["topics"])))


def check_names(points: Sequence[CapturePoint | LogPoint], writer: Writer) -> None:
    """Raise DatasetError where a dataset that is added to holds a capture point of the same name."""
    names = set(writer.captures)
    for point in points:
        if point.name in names:
            raise DatasetError(
                f"{writer.path}: has a capture point {point.name!r} already",
                "rename the capture, or leave out --append",
            )
