"""A capture point too big for one task, decoded by connection.

In: a capture point. Out: the dataset files that the local engine would write for it, row for row and in the same order.

```
 capture ──▶ share 0 of k ──▶ rows, facts ─┐
 capture ──▶ share 1 of k ──▶ rows, facts ─┼──▶ merge, a task for each range of packets ──▶ Parquet
 capture ──▶ ...              (in files)  ─┘    after one for the facts ──▶ small tables, coverage
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
takes those of all shares in order, window by window, as the local engine does. Rows carry the packet that completed
them and their connection's number, and merging sorts by both. Rows and facts go from task to task in *pieces*, files in
the folder of the unfinished dataset, which all machines share: Spark and the driver carry only where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from analyzer.dataset import DatasetError, Parts
from analyzer.points import META, Choice
from analyzer.shares import Share, Shared, by_range, merge, names_said, share, take_facts
from captures.files import CaptureError, CapturePoint
from captures.packets import Reader
from reports.spark.tasks import Done, Refused, attempt

if TYPE_CHECKING:
    from pyspark import SparkContext

    from analyzer.options import Settings

MOST_SHARES = 16
"""Tasks that a capture point is decoded by. Each reads all of it: where that is a tenth to a third of one task's work
on the whole, sixteen take a seventh to a third of the time, and twice as many would hardly take less."""

RANGE_PACKETS = 1 << 18
"""Packets whose rows are merged at once; a quarter of it where there is a row a record. Not more: fresh memory is dear,
and what a range has used serves the next one."""

RANGES_A_TASK = 4
"""Ranges that a merging task takes, one after the other, into one file a table."""


def range_packets(choice: Choice) -> int:
    """Packets whose rows are merged at once."""
    return RANGE_PACKETS // 4 if choice.records == META else RANGE_PACKETS


def shared(
    point: CapturePoint, settings: Settings, choice: Choice, part: Share, packets: int, path: Path,
    reader: Reader | None = None, topics: Mapping[str, str] = MappingProxyType({}),
) -> Shared | Refused:  # fmt: skip
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
    context: SparkContext, point: CapturePoint, settings: Settings, choice: Choice, folder: Path, label: str
) -> Done | Refused:
    """Decode one capture point by connection into files in `folder`, whose names begin with `label`."""
    count = share_count(context.defaultParallelism)
    packets = range_packets(choice)
    topics = names_of(context, point, settings, choice, lambda number: (Share(number, count), None), count)
    if isinstance(topics, Refused):
        return topics

    def decode(number: int) -> Shared | Refused:
        path = folder / PIECES / f"{label}-{number:02d}-{attempt()}"
        return shared(point, settings, choice, Share(number, count), packets, path, topics=topics)

    shares = context.parallelize(range(count), count).map(decode).collect()
    return together(context, shares, point, choice, folder, label)


def names_of(
    context: SparkContext, point: CapturePoint, settings: Settings, choice: Choice,
    read: Callable[[int], tuple[Share, Reader | None]], count: int,
) -> dict[str, str] | Refused:  # fmt: skip
    """The names for topic ids that a capture point says, where the choice asks for them: a stage of its own, before any
    row is made. `read` gives the share with a number, of so many, and what it reads."""
    if not choice.asks_names:
        return {}

    def said(number: int) -> dict[str, str] | Refused:
        try:
            part, reader = read(number)
            return names_said(point, settings, part, reader)
        except CaptureError as failure:
            return Refused(str(failure), failure.hint)

    topics: dict[str, str] = {}
    for one in context.parallelize(range(count), count).map(said).collect():
        if isinstance(one, Refused):
            return one
        topics |= one
    return topics


def together(
    context: SparkContext, found: Sequence[Shared | Refused], point: CapturePoint, choice: Choice, folder: Path,
    label: str,
) -> Done | Refused:  # fmt: skip
    """The shares of a capture point, all of them, as files in `folder`, whose names begin with `label`."""
    shares: list[Shared] = []
    for one in found:
        if isinstance(one, Refused):
            return one
        shares.append(one)
    if any(one.files != shares[0].files for one in shares):
        return Refused(f"{point.name}: it changed while it was read", "analyse it when it is complete, or a copy of it")
    ranges, facts = by_range(shares)
    merging = [ranges[at : at + RANGES_A_TASK] for at in range(0, len(ranges), RANGES_A_TASK)]

    last = len(merging)

    def tell(number: int) -> Any:
        parts = Parts(folder, f"{label}-{number:05d}-{attempt()}")
        try:
            path = folder / PIECES / f"{label}-decided-{attempt()}"
            return take_facts(facts, shares, point, choice, parts, path)
        except BaseException:
            parts.abandon()
            raise

    [(read, names, small, decided)] = context.parallelize([last], 1).map(tell).collect()

    def write(number: int) -> Any:
        parts = Parts(folder, f"{label}-{number:05d}-{attempt()}")
        try:
            return merge(point, shares[0].files, merging[number], parts, decided)
        except BaseException:
            parts.abandon()
            raise

    merged = context.parallelize(range(last), last).map(write).collect() if last else []
    for path in {piece.path for one in shares for piece in one.pieces} | {piece.path for piece in decided.values()}:
        os.unlink(path)
    return Done(read, names, [*(entry for files in merged for entry in files), *small])


PIECES = "pieces"
"""The folder of pieces, in that of the unfinished dataset."""
