"""`kwire analyze --engine spark`: the local engine's work in tasks of Spark, and one commit by the driver.

In: capture arguments and a session. Out: a dataset, row for row what the local engine writes. Spark decides the split
and starts again what was lost; decoding is `kwire.analyzer.pipeline.points.read_point`, the same as everywhere.

Rules
- A task writes its Parquet files under a name of its own attempt into the folder beside the dataset, and says which.
  The driver lists the files of the attempts that succeeded, and no others: a retry neither doubles nor loses rows.
- What is wrong with the input comes back as a value, so that Spark does not try it four times.
- All machines see captures and dataset under the same paths.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from kwire.analyzer.api import findings_of, load_extensions
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset, DatasetError, TableFiles, Writer
from kwire.analyzer.pipeline.points import BATCHES, AnalysisOptions, check_names, joined, manifest, read_point
from kwire.analyzer.pipeline.read_options import FEW_THREADS, ReadOptions
from kwire.captures.files import CaptureError, CapturePoint, capture_points, stored_bytes
from kwire.reports.spark.chunked import FEW_SHARES, Tell, chunk_point
from kwire.reports.spark.merging import PIECES
from kwire.reports.spark.session import cancel
from kwire.reports.spark.tasks import Failed, WrittenPoint, attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kwire.analyzer.pipeline.read_options import Settings

SPLIT_BYTES = 16 << 30
"""A capture point this large takes one task of two threads half a minute to some minutes."""

AT_ONCE = 3
"""Large capture points at work at once: steps of one that keep a single task busy leave room for others."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Split:
    """How large capture points are divided: those whose files hold more than `more_than` bytes (None: where that pays),
    into chunks of `chunk_bytes` (0: none is divided; None: by its size and the cores). `tell` gets a line about each
    that could not be."""

    more_than: int | None = None
    chunk_bytes: int | None = None
    tell: Tell = lambda _: None

    def is_large(self, point: CapturePoint, cores: int) -> bool:
        """Whether a capture point is divided among so many cores."""
        if self.chunk_bytes == 0:
            return False
        if self.more_than is None:
            return cores > (FEW_THREADS if self.chunk_bytes else FEW_SHARES) and stored_bytes(point) > SPLIT_BYTES
        return stored_bytes(point) > self.more_than


def analyze(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    spark: SparkSession,
    filter: Any = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    threads: int | None = None,
    window_bytes: int | None = None,
    frame_limit: int | None = None,
    keylogs: Sequence[str | os.PathLike[str]] = (),
    records: str = BATCHES,
    decompressed_limit: int | None = None,
    decompressed_ratio: int | None = None,
    keep_bytes: bool = False,
    keep_secrets: bool = False,
    meaning: bool = True,
    journeys: bool = True,
    append: bool = False,
    wait: bool = False,
    split_bytes: int | None = None,
    chunk_bytes: int | None = None,
    tell: Tell = lambda _: None,
) -> Dataset:
    """Decode captures in Spark and write them to `out` as a dataset; arguments as in `kwire.analyze`.

    threads: of each task; split_bytes: a capture point whose files hold more is read in chunks (None: more than 16 GiB,
    where Spark has five cores or more), all others by one task each; chunk_bytes: the size of a chunk, each read by one
    task (0: no capture point is divided; None: by its size and the cores). `tell` gets a line for each that could not
    be divided. The `Dataset` that comes back has no tables. Raises CaptureError,
    DatasetError, and `pyspark.errors.PySparkException` or py4j's error where Spark itself fails; the dataset is then as
    it was.
    """
    choice = AnalysisOptions.of(
        filter, None, keep_bytes, records, decompressed_limit, decompressed_ratio, keep_secrets, meaning, journeys
    )
    how = ReadOptions(rotated, ports, threads, window_bytes, frame_limit, keylogs)
    split = Split(split_bytes, chunk_bytes, tell)
    return decode(captures, out, how, choice, spark=spark, append=append, split=split, wait=wait)


def decode(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    how: ReadOptions,
    choice: AnalysisOptions,
    *,
    spark: SparkSession,
    append: bool = False,
    split: Split | None = None,
    wait: bool = False,
) -> Dataset:
    """`analyze`, with how to read, what is wanted and how to divide as objects."""
    points = task_points(captures, how.rotated)
    load_extensions(choice)
    settings = how.settings(choice.keep, most=FEW_THREADS)
    with Writer(Path(out).absolute(), append, wait) as writer:
        check_names(points, writer)
        done = _decoded(spark, points, settings, choice, writer, split or Split())
        for point in done:
            writer.adopt(point.files)
        _add_empty(writer, done)
        result = joined([point.read for point in done])
        writer.write("findings", findings_of(result, writer.settle()))
        writer.commit(manifest(result))
    return result


def task_points(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], rotated: bool = False
) -> list[CapturePoint]:
    """The capture points of arguments, for processes that stand in other folders. Raises CaptureError."""
    arguments = [captures] if isinstance(captures, str | os.PathLike) else list(captures)
    points = capture_points([os.fspath(argument) for argument in arguments], rotated)
    if any("-" in point.paths for point in points):
        raise CaptureError("-: tasks of Spark cannot read stdin", "save it to a file, or use --engine local")
    return [point._replace(folder=os.getcwd()) for point in points]


def _decoded(
    spark: SparkSession,
    points: list[CapturePoint],
    settings: Settings,
    choice: AnalysisOptions,
    writer: Writer,
    how: Split,
) -> list[WrittenPoint]:
    """Decode each capture point in one task, and each that is large in many."""
    folder, run = writer.folder, writer.run
    labels = [f"{run}-{number:05d}" for number in range(len(points))]
    context = spark.sparkContext
    large = [i for i, point in enumerate(points) if how.is_large(point, context.defaultParallelism)]
    small = [i for i in range(len(points)) if i not in set(large)]

    def work(chosen: Iterable[int]) -> Iterator[tuple[int, WrittenPoint | Failed]]:
        for i in chosen:
            yield i, decode_point(points[i], settings, choice, folder, f"{labels[i]}-{attempt()}")

    def whole(chosen: Sequence[int]) -> dict[int, WrittenPoint | Failed]:
        return dict(context.parallelize(chosen, len(chosen)).mapPartitions(work).collect()) if chosen else {}

    results = whole(small)

    def split(i: int) -> WrittenPoint | Failed:
        done = chunk_point(context, points[i], settings, choice, folder, labels[i], how.chunk_bytes, how.tell)
        return whole([i])[i] if done is None else done

    with ThreadPoolExecutor(AT_ONCE) as pool:
        splits = [pool.submit(split, i) for i in large]
        try:
            results.update((i, future.result()) for i, future in zip(large, splits, strict=True))
        except BaseException:
            cancel(spark, [future for future in splits if not future.cancel()])
            raise
    with contextlib.suppress(OSError):  # none was made, or a task that Spark gave up is not at its end
        (folder / PIECES).rmdir()
    return accepted([results[i] for i in range(len(points))])


def decode_point(
    point: CapturePoint, settings: Settings, choice: AnalysisOptions, folder: Path, label: str
) -> WrittenPoint | Failed:
    """Decode a capture point into files in `folder`. What was written goes away where it fails."""
    parts = TableFiles(folder, label)
    known: dict[str, None] = {}

    def put(name: str, table: pa.Table) -> None:
        known[name] = None
        if len(table):
            parts.write(name, table)

    try:
        read = read_point(point, settings, choice, put)
        return WrittenPoint(read, tuple(known), parts.close())
    except (CaptureError, DatasetError) as failure:
        parts.abandon()
        return Failed(failure.message, failure.hint)
    except OSError as failure:
        parts.abandon()
        reason = failure.strerror or str(failure)
        return Failed(f"{folder}: cannot be written: {reason}", "give a folder to -o that all machines may write to")
    except BaseException:
        parts.abandon()
        raise


def accepted(results: Sequence[T | Failed]) -> list[T]:
    """The results of tasks, all of them. Raises DatasetError with the first refusal."""
    for result in results:
        if isinstance(result, Failed):
            raise DatasetError(result.message, result.hint)
    return [result for result in results if not isinstance(result, Failed)]


def _add_empty(writer: Writer, done: Sequence[WrittenPoint]) -> None:
    """A table without rows has a file too."""
    known = dict.fromkeys(name for point in done for name in point.tables)
    filled = {entry["table"] for point in done for entry in point.files}
    for name in known:
        if name not in filled:
            writer.write(name, tables.schema(name).empty_table())
