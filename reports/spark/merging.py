"""Merge the shares of a capture point into the dataset's files, in Spark's tasks.

In: the shares of a capture point, which tasks decoded (`kwire.analyzer.pipeline.shares`). Out: the dataset files that
the local engine would write for it, row for row and in the same order.

```
 share 0 of k ──▶ rows, facts ─┐
 share 1 of k ──▶ rows, facts ─┼──▶ merge, a task for each range of packets ──▶ Parquet
 ...              (in files)  ─┘    beside one for the facts ──▶ small tables, coverage
```

What one connection tells may matter for others (names for topic ids, brokers, leaders). Such *facts* are few: one task
takes those of all shares in order, window by window, as the local engine does. Its decisions about rows are a file for
each range of packets, which the driver looks for, so ranges are merged while facts of later ones are taken. Rows carry
the packet that completed them and their connection's number, and merging sorts by both. Rows and facts go from task to
task in *pieces*, files in the folder of the unfinished dataset, which all machines share: Spark and the driver carry
only their paths and positions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.pipeline.points import META, AnalysisOptions
from kwire.analyzer.pipeline.shares import Piece, ShareResult, by_range, decided_path, merge, take_facts
from kwire.captures.files import CapturePoint
from kwire.reports.spark.tasks import Failed, WrittenPoint, attempt

if TYPE_CHECKING:
    from pyspark import SparkContext

S = TypeVar("S")
T = TypeVar("T")

RANGE_PACKETS = 1 << 18
"""Packets whose rows are merged at once; a quarter of it where there is a row a record. Not more: fresh memory is dear,
and a range uses the memory of the one before."""

RANGES_A_TASK = 4, 16
"""Ranges that a merging task takes, one after the other, into one file a table: at least, and at most."""

LEAST_BYTES = 2 << 20
"""Bytes of rows that a merging task takes at least: less takes it as long as to begin."""

TASKS_A_CORE = 4
"""Merging tasks for each core, where there are enough ranges: to begin one takes a fifth of the time of four ranges."""

MERGES_AT_ONCE = 4
"""Jobs that merge ranges while facts are taken."""

POLL_SECONDS = 0.02
"""Time between two looks for ranges that are decided."""

PIECES = "pieces"
"""The folder of pieces, in that of the unfinished dataset."""


def range_packets(choice: AnalysisOptions) -> int:
    """Packets whose rows are merged at once."""
    return RANGE_PACKETS // 4 if choice.records == META else RANGE_PACKETS


def merge_shares(
    context: SparkContext,
    results: Sequence[ShareResult | Failed],
    point: CapturePoint,
    choice: AnalysisOptions,
    folder: Path,
    label: str,
) -> WrittenPoint | Failed:
    """Write all shares of a capture point as files in `folder`, whose names begin with `label`."""
    shares: list[ShareResult] = []
    for result in results:
        if isinstance(result, Failed):
            return result
        shares.append(result)
    if any(share.files != shares[0].files for share in shares):
        return Failed(f"{point.name}: it changed while it was read", "analyse it when it is complete, or a copy of it")
    ranges, facts = by_range(shares)
    merging = _ranges_by_task(ranges, TASKS_A_CORE * context.defaultParallelism)
    last = len(merging)
    deciding = folder / PIECES / f"{label}-decided"
    decided = deciding if choice.meaning else None

    def take(number: int) -> Any:
        parts = TableFiles(folder, f"{label}-{number:05d}-{attempt()}")
        try:
            return take_facts(facts, shares, point, choice, parts, deciding)
        except BaseException:
            parts.abandon()
            raise

    files = shares[0].files  # alone in a task's closure: the shares are not sent to it

    def write(numbered: tuple[int, list[list[Piece]]]) -> Any:
        number, task_ranges = numbered
        parts = TableFiles(folder, f"{label}-{number:05d}-{attempt()}")
        try:
            return merge(point, files, task_ranges, parts, decided)
        except BaseException:
            parts.abandon()
            raise

    def is_decided(numbered: tuple[int, list[list[Piece]]]) -> bool:
        return decided is None or decided_path(decided, numbered[1][-1][0].range).exists()

    (read, names, small), merged = _side_by_side(context, take, last, write, list(enumerate(merging)), is_decided)
    used = {path for share in shares for path in share.paths}
    if decided is not None:
        used |= {str(decided_path(decided, piece.range)) for piece in facts}
    for path in used:
        os.unlink(path)
    for _, own in merged:
        read.summary.own.join(own)
    return WrittenPoint(read, names, [*(entry for files, _ in merged for entry in files), *small])


def _ranges_by_task(ranges: Sequence[list[Piece]], tasks: int) -> list[list[list[Piece]]]:
    """Divide ranges, in order, among about `tasks` tasks; a small rest goes to the last one."""
    least, most = RANGES_A_TASK
    each = min(max(least, len(ranges) // tasks), most)
    by_task: list[list[list[Piece]]] = []
    current: list[list[Piece]] = []
    size = 0
    for pieces in ranges:
        current.append(pieces)
        size += sum(piece.size for piece in pieces)
        if len(current) >= each and size >= LEAST_BYTES:
            by_task.append(current)
            current, size = [], 0
    if current and by_task and size < LEAST_BYTES:
        by_task[-1] += current
    elif current:
        by_task.append(current)
    return by_task


def _side_by_side(
    context: SparkContext,
    work: Callable[[S], Any],
    value: S,
    each: Callable[[T], Any],
    values: Sequence[T],
    is_ready: Callable[[T], bool],
) -> tuple[Any, list[Any]]:
    """Run `work` as one task, and `each` as a task for every value, in order, as values become ready.

    While `work` runs, values that are not ready wait; at its end all of them are. Returns the result of `work`, and
    those of `each` in order.
    """
    results: list[Any] = []
    with ThreadPoolExecutor(1 + MERGES_AT_ONCE) as pool:

        def run(task: Callable[[Any], Any], values: Sequence[Any]) -> Future[list[Any]]:
            return pool.submit(lambda: context.parallelize(values, len(values)).map(task).collect())

        [first] = running = [run(work, [value])]
        at = 0
        while at < len(values):
            is_over = first.done()
            if is_over:
                first.result()  # raises what it raised
            end = at
            while end < len(values) and (is_over or is_ready(values[end])):
                end += 1
            if end > at and (is_over or sum(not job.done() for job in running) <= MERGES_AT_ONCE):
                running.append(run(each, values[at:end]))
                at = end
            else:
                wait([first], POLL_SECONDS)
        [result] = first.result()
        for job in running[1:]:
            results += job.result()
    return result, results
