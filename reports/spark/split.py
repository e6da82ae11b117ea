"""A capture point too big for one task, decoded by connection.

In: a capture point. Out: the dataset files that the local engine would write for it, row for row and in the same order.

```
 capture ──▶ share 0 of k ──▶ rows, facts ─┐
 capture ──▶ share 1 of k ──▶ rows, facts ─┼──▶ merge, a task for each range of packets ──▶ Parquet
 capture ──▶ ...              (in files)  ─┘    beside one for the facts ──▶ small tables, coverage
```

Every sharing task reads the whole capture point as the local engine does, and decodes only the connections of its share
(`Share` of the analyzer's engine). So all of them see the same windows, clock, fragments and numbers of packets and
connections, and nothing of that has to be told between tasks. Finding packets and connections is the small part of the
work: 10 % of it where messages are small, 40 % where they are large. The other way, packets through Spark's shuffle to
the task of their connection, was built and measured first: five to twenty times slower than the local engine, for every
payload byte was pickled, sorted, stored and read again. What it costs is that shares read k times what there is, so
that more than `MOST_SHARES` of them would only heat the machines.

Filters and records of internal topics ask for names of topic ids that any connection may say, later ones too: for them
the shares are asked for all names first (`names_of`), in a stage that makes no rows.

What one connection said may matter for others (names for topic ids, brokers, leaders). Such *facts* are few: one task
takes those of all shares in order, window by window, as the local engine does. What it decides of rows is a file for
each range of packets, which the driver looks for, so ranges are merged while facts of later ones are taken. Rows carry
the packet that completed them and their connection's number, and merging sorts by both. Rows and facts go from task to
task in *pieces*, files in the folder of the unfinished dataset, which all machines share: Spark and the driver carry
only where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from analyzer.dataset.dataset import DatasetError, Parts
from analyzer.pipeline.points import LARGE_POINT, META, AnalysisOptions, how_to_read
from analyzer.pipeline.shares import (
    Piece,
    Share,
    ShareResult,
    by_range,
    decided_path,
    merge,
    share,
    take_facts,
    topic_names_of_share,
)
from captures.files import CaptureError, CapturePoint
from captures.packets import Reader
from reports.spark.tasks import Done, Refused, attempt

if TYPE_CHECKING:
    from pyspark import SparkContext

    from analyzer.pipeline.read_options import Settings

S = TypeVar("S")
T = TypeVar("T")

MOST_SHARES = 16
"""Tasks that a capture point is decoded by. Each reads all of it: where that is a tenth to a third of one task's work
on the whole, sixteen take a seventh to a third of the time, and twice as many would hardly take less."""

RANGE_PACKETS = 1 << 18
"""Packets whose rows are merged at once; a quarter of it where there is a row a record. Not more: fresh memory is dear,
and what a range has used serves the next one."""

RANGES_A_TASK = 4, 16
"""Ranges that a merging task takes, one after the other, into one file a table: at least, and at most."""

LEAST_BYTES = 2 << 20
"""Bytes of rows that a merging task takes at least: less takes it as long as to begin."""

TASKS_A_CORE = 4
"""Merging tasks for each core, where there are enough ranges: to begin one takes a fifth of the time of four ranges."""

MERGES_AT_ONCE = 4
"""Jobs that merge what is decided, while facts are taken."""

LOOK_SECONDS = 0.02
"""How often is looked for what has been decided."""


def range_packets(choice: AnalysisOptions) -> int:
    """Packets whose rows are merged at once."""
    return RANGE_PACKETS // 4 if choice.records == META else RANGE_PACKETS


def shared(
    point: CapturePoint,
    settings: Settings,
    choice: AnalysisOptions,
    part: Share,
    packets: int,
    path: Path,
    reader: Reader | None = None,
    topics: Mapping[str, str] = MappingProxyType({}),
) -> ShareResult | Refused:
    """`share`, with what is wrong as a value."""
    try:
        return share(point, settings, choice, part, packets, path, reader, topics)
    except (CaptureError, DatasetError) as failure:
        return Refused(str(failure), failure.hint)
    except OSError as failure:
        hint = "give a folder to -o that all machines may write to"
        return Refused(f"{path.parent}: cannot be written: {failure.strerror or failure}", hint)


def share_count(cores: int) -> int:
    """How many tasks share a capture point where Spark has so many cores."""
    return max(1, min(MOST_SHARES, cores))


def split_point(
    context: SparkContext, point: CapturePoint, settings: Settings, choice: AnalysisOptions, folder: Path, label: str
) -> Done | Refused:
    """Decode one capture point by connection into files in `folder`, whose names begin with `label`."""
    count = share_count(context.defaultParallelism)
    packets = range_packets(choice)
    how = how_to_read(settings, choice, LARGE_POINT)  # or it would not be divided
    settings = replace(settings, window_bytes=how.large_bytes or settings.window_bytes)  # all shares have the same
    topics = names_of(context, point, settings, choice, lambda number: (Share(number, count), None), count)
    if isinstance(topics, Refused):
        return topics

    def decode(number: int) -> ShareResult | Refused:
        path = folder / PIECES / f"{label}-{number:02d}-{attempt()}"
        return shared(point, settings, choice, Share(number, count), packets, path, topics=topics)

    shares = context.parallelize(range(count), count).map(decode).collect()
    return together(context, shares, point, choice, folder, label)


def names_of(
    context: SparkContext,
    point: CapturePoint,
    settings: Settings,
    choice: AnalysisOptions,
    read: Callable[[int], tuple[Share, Reader | None]],
    count: int,
) -> dict[str, str] | Refused:
    """The names for topic ids that a capture point says, where the choice asks for them: a stage of its own, before any
    row is made. `read` gives the share with a number, of so many, and what it reads."""
    if not choice.asks_names:
        return {}

    def said(number: int) -> dict[str, str] | Refused:
        try:
            part, reader = read(number)
            return topic_names_of_share(point, settings, part, reader)
        except CaptureError as failure:
            return Refused(str(failure), failure.hint)

    topics: dict[str, str] = {}
    for one in context.parallelize(range(count), count).map(said).collect():
        if isinstance(one, Refused):
            return one
        topics |= one
    return topics


def together(
    context: SparkContext,
    found: Sequence[ShareResult | Refused],
    point: CapturePoint,
    choice: AnalysisOptions,
    folder: Path,
    label: str,
) -> Done | Refused:
    """The shares of a capture point, all of them, as files in `folder`, whose names begin with `label`."""
    shares: list[ShareResult] = []
    for one in found:
        if isinstance(one, Refused):
            return one
        shares.append(one)
    if any(one.files != shares[0].files for one in shares):
        return Refused(f"{point.name}: it changed while it was read", "analyse it when it is complete, or a copy of it")
    ranges, facts = by_range(shares)
    merging = _for_tasks(ranges, TASKS_A_CORE * context.defaultParallelism)
    last = len(merging)
    deciding = folder / PIECES / f"{label}-decided"
    decided = deciding if choice.meaning else None

    def tell(number: int) -> Any:
        parts = Parts(folder, f"{label}-{number:05d}-{attempt()}")
        try:
            return take_facts(facts, shares, point, choice, parts, deciding)
        except BaseException:
            parts.abandon()
            raise

    files = shares[0].files  # each task is sent what it names

    def write(numbered: tuple[int, list[list[Piece]]]) -> Any:
        number, mine = numbered
        parts = Parts(folder, f"{label}-{number:05d}-{attempt()}")
        try:
            return merge(point, files, mine, parts, decided)
        except BaseException:
            parts.abandon()
            raise

    def is_decided(numbered: tuple[int, list[list[Piece]]]) -> bool:
        return decided is None or decided_path(decided, numbered[1][-1][0].range).exists()

    (read, names, small), merged = _side_by_side(context, tell, last, write, list(enumerate(merging)), is_decided)
    used = {path for one in shares for path in one.paths}
    if decided is not None:
        used |= {str(decided_path(decided, piece.range)) for piece in facts}
    for path in used:
        os.unlink(path)
    return Done(read, names, [*(entry for files in merged for entry in files), *small])


def _for_tasks(ranges: Sequence[list[Piece]], tasks: int) -> list[list[list[Piece]]]:
    """Ranges that follow one another, for each of about so many tasks; what is left at the end, and is not worth a task
    of its own, comes to the last one."""
    least, most = RANGES_A_TASK
    each = min(max(least, len(ranges) // tasks), most)
    found: list[list[list[Piece]]] = []
    taken: list[list[Piece]] = []
    held = 0
    for pieces in ranges:
        taken.append(pieces)
        held += sum(piece.size for piece in pieces)
        if len(taken) >= each and held >= LEAST_BYTES:
            found.append(taken)
            taken, held = [], 0
    if taken and found and held < LEAST_BYTES:
        found[-1] += taken
    elif taken:
        found.append(taken)
    return found


def _side_by_side(
    context: SparkContext,
    work: Callable[[S], Any],
    on: S,
    each: Callable[[T], Any],
    of: Sequence[T],
    ready: Callable[[T], bool],
) -> tuple[Any, list[Any]]:
    """What came of one task, and of one for each of several things, which begin when they are `ready`: in order, while
    that one is at work, and all of them at its end."""
    found: list[Any] = []
    with ThreadPoolExecutor(1 + MERGES_AT_ONCE) as pool:

        def run(task: Callable[[Any], Any], things: Sequence[Any]) -> Future[list[Any]]:
            return pool.submit(lambda: context.parallelize(things, len(things)).map(task).collect())

        [one] = running = [run(work, [on])]
        at = 0
        while at < len(of):
            over = one.done()
            if over:
                one.result()  # raises what it raised
            end = at
            while end < len(of) and (over or ready(of[end])):
                end += 1
            if end > at and (over or sum(not job.done() for job in running) <= MERGES_AT_ONCE):
                running.append(run(each, of[at:end]))
                at = end
            else:
                wait([one], LOOK_SECONDS)
        [told] = one.result()
        for job in running[1:]:
            found += job.result()
    return told, found


PIECES = "pieces"
"""The folder of pieces, in that of the unfinished dataset."""
