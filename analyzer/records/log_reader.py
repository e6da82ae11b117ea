"""Log segments read to the end: the rows of `batches` and `records` that they hold, and each batch for `kwire show`.

In: a `LogPoint`. Out: the same tables as from captures, with connection, exchange, reply and side null; or batch after
batch with its records, as plain values. What recovery would cut off is a note.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame.arrow import plain
from kwire.analyzer.records import arrow_tables as rt
from kwire.analyzer.records import batch_reader as r
from kwire.analyzer.records import log_files as segments
from kwire.analyzer.records.arrow_tables import Origins, RecordCounts, RecordTables
from kwire.analyzer.records.batches import BatchLimits
from kwire.analyzer.records.internal_topics import Costs
from kwire.analyzer.records.log_files import SegmentPart
from kwire.analyzer.records.log_names import LogPoint, log_point
from kwire.captures.kernels import NULL

SHOW_WINDOW_BYTES = 1 << 20
"""`show` makes Python values of a window's records: fewer at a time."""


@dataclass(slots=True)
class LogRead:
    """Result of reading a partition's segments: their entry in `_kwire.json`, notes, counts."""

    capture: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    counts: RecordCounts = field(default_factory=RecordCounts)


def read_log(
    point: LogPoint,
    mode: str,
    threads: int,
    limits: BatchLimits,
    put: Callable[[str, pa.Table], None],
    progress: Callable[[int, int], None] = lambda read, size: None,
) -> LogRead:
    """Read the segments of a partition; `put` gets the rows, table by table. Raises LogError."""
    origins = origin(point)
    result = LogRead(_capture(point))
    total = sum(path.stat().st_size for path in point.paths)
    done = 0
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="kwire") as pool:
        record_tables = RecordTables(mode, pool, threads, limits)
        for path in point.paths:
            for part in segments.read(path):
                for name, table in record_tables.tables(part.batches, origins):
                    put(name, table)
                if part.damage is not None:
                    result.notes.append(f"{path}: {part.damage}")
                progress(done + part.at, total)
            done += path.stat().st_size
        result.counts = record_tables.counts
    return result


def origin(point: LogPoint) -> Origins:
    """Where all batches of a partition come from: one record set."""
    absent = np.full(1, NULL, np.int64)
    return Origins(
        number=absent,
        connection=absent,
        exchange=absent,
        reply=absent,
        side=absent,
        topic=absent if point.topic is None else np.zeros(1, np.int64),
        topic_id=absent,
        partition=absent if point.partition is None else np.full(1, point.partition, np.int64),
        capture=point.name,
        connections=(),
        strings=() if point.topic is None else (point.topic,),
    )


def _capture(point: LogPoint) -> dict[str, Any]:
    files = []
    for path in point.paths:
        known = path.stat()
        modified = datetime.datetime.fromtimestamp(known.st_mtime, datetime.UTC)
        files.append({"name": path.name, "size": known.st_size, "mtime": rfc3339(modified)})
    return {
        "name": point.name,
        "topic": point.topic,
        "partition": point.partition,
        "first_time": None,
        "last_time": None,
        "link_types": [],
        "packets": {},
        "files": files,
    }


class Shown(NamedTuple):
    """A batch: its row of `batches`, and its records' rows of `records` (contents and all)."""

    row: dict[str, Any]
    records: list[dict[str, Any]]


def shown(point: LogPoint, notes: list[str]) -> Iterator[Shown]:
    """Batch after batch; `notes` is filled with what recovery would cut off. Raises LogError."""
    origins = origin(point)
    opener = r.BatchReader()
    for path in point.paths:
        for part in segments.read(path, SHOW_WINDOW_BYTES):
            yield from _of_part(part, origins, opener)
            if part.damage is not None:
                notes.append(f"{path}: {part.damage}")


def _of_part(part: SegmentPart, origins: Origins, opener: r.BatchReader) -> Iterator[Shown]:
    topics = rt.topic_names(origins)
    records: list[list[dict[str, Any]]] = [[] for _ in range(len(part.batches))]
    costs = Costs()
    for piece in opener.open(part.batches):
        rows = plain(rt.records_table(piece, part.batches, origins, topics, costs), "records").to_pylist()
        for number, row in zip(piece.table[r.R_BATCH].tolist(), rows, strict=True):
            records[number].append(row)
    rows = plain(rt.batches_table(part.batches, origins), "batches").to_pylist()
    for row, inside in zip(rows, records, strict=True):
        yield Shown(row, inside)


def log_points(arguments: list[str]) -> tuple[list[LogPoint], list[str]]:
    """(what of the arguments are logs, the rest)."""
    log_points_found, rest = [], []
    for argument in arguments:
        point = log_point(argument)
        if point is None:
            rest.append(argument)
        else:
            log_points_found.append(point)
    names = [point.name for point in log_points_found]
    return [
        LogPoint(os.fspath(Path(argument)), point.paths, point.topic, point.partition)
        if names.count(point.name) > 1
        else point
        for point, argument in zip(log_points_found, [a for a in arguments if a not in rest], strict=True)
    ], rest


COLUMNS = tuple(column.name for column in tables.BATCHES)
"""What `kwire show SEGMENT --fields` may name."""
