"""Partitions that get most of a topic's records, and how far their readers are behind.

In: what Produce was answered for. Rule: bytes, not requests; the lag of a group is told by its commits and by the
position of its fetches side by side, because a client may fetch far ahead of what it processes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame
from kwire.analyzer.findings.fetched import READ_COMMITTED, of_readers, reads
from kwire.analyzer.findings.group_reads import committed, groups_of_fetches
from kwire.analyzer.findings.produce import batches
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, name, partition_name, share, size
from kwire.analyzer.frame import spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import rows_by_key, sum_positive_by
from kwire.analyzer.protocol import api_keys

_LONG_US: Final = 30 * SECOND
"""A capture that is shorter does not show whether readers fall behind."""


@rule(
    "produce",
    "hot-partition",
    "warning",
    "sessions-2 gets 87.0 % of the bytes of sessions, 6 partitions: 1,150 records in 4.4 s, written by web-tracker "
    "(10.0.0.4).",
    why="A partition has one reader of a group: more members do not help. Half of all bytes, and three times its "
    "share, in fifty batches are a key that most records have, not a partitioner that stays with one partition for a "
    "batch. From twenty records a second, or 100 kB, a warning. Of ten partitions and much data (10,000 records, or "
    "100 MB) five times its share is a note: a queue for one consumer while others idle.",
    suppressed_when="Fewer than three partitions are known; fewer than fifty batches, or twenty of them in that "
    "partition; less than two seconds of writing; topics of Kafka's own. Much data: under 30 %.",
    advice="A key with more values, or none where order does not matter; another partitioner; kwire analyze --records "
    "meta shows sizes of keys. Lag by commit counts where the reader fetches ahead.",
    evidence="hot-key; forged: half of the bytes in one of six partitions, and less; forty-nine batches; one of "
    "twelve partitions with half of the records; all alike",
    share=0.5,
    times=3,
    batches=50,
    least=20,
    records_s=20,
    bytes_s=100_000,
    seconds=2,
    partitions=10,
    bytes=100_000_000,
    records=10_000,
    fair=5,
    large_share=0.3,
)
def hot(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    topics = set()
    for match in _hot(capture, at):
        topics.add(match.what["topic"])
        yield match
    yield from (match for match in _of_much(capture, at) if match.what["topic"] not in topics)


def _hot(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    """The matches of topics with enough batches to tell a key from a partitioner."""
    table, parts = capture.table("partitions"), capture.partitions
    amount, many = table.together(("record_bytes", "record_count"))

    def are_written(block: slice) -> Any:
        of_produce = capture.api_of(parts.owner[block]) == api_keys.PRODUCE
        return of_produce & (parts.error[block] == 0) & (amount[block] > 0)

    rows = spill.where(len(amount), are_written)
    if len(rows) < at.batches:
        return
    by_topic: dict[str, dict[int, np.ndarray]] = {}
    for (number,), some in rows_by_key(rows, parts.topic_partition[rows]).items():
        by_topic.setdefault(capture.topic_partitions[number][0], {})[number] = some
    known: dict[str, int] = {}
    for topic, partition in capture.known_topic_partitions:
        known[topic] = max(known.get(topic, 0), partition + 1)
    for topic, written in by_topic.items():
        batches = sum(len(some) for some in written.values())
        partitions = max(known.get(topic, 0), len(written))
        if batches < at.batches or partitions < at.times or topic.startswith("__"):
            continue
        weight = {number: int(amount[some].sum()) for number, some in written.items()}
        most, whole = max(weight, key=lambda number: weight[number]), sum(weight.values())
        own = written[most]
        if len(own) < at.least or weight[most] < max(at.share, at.times / partitions) * whole:
            continue
        owner = parts.owner[own]
        when = capture.exchanges.request_time[owner]
        when = when[when != NULL]
        spent = (int(when.max()) - int(when.min())) / SECOND if len(when) else 0
        if spent < at.seconds:
            continue
        records = int(np.maximum(many[own], 0).sum())
        is_fast = records >= at.records_s * spent or weight[most] >= at.bytes_s * spent
        where = capture.topic_partitions[most]
        writers = capture.client[owner]
        writer = int(np.bincount(writers).argmax())
        who = capture.who(writer)
        text = f"{partition_name(where)} gets {share(weight[most], whole)} of the bytes of {name(topic)}, "
        text += f"{partitions} partitions: {count(records, 'record')} in {lasting(spent * SECOND)}, "
        text += f"{size(weight[most])}, written by {client(who)}."
        behind = _behind(capture, where, most)
        text += f" {behind[0]}" if behind is not None else ""
        if capture.span[1] - capture.span[0] < _LONG_US:
            text += " A capture of half a minute or longer would tell whether its readers fall behind."
        yield Match(
            text,
            len(own),
            int(when.min()),
            int(when.max()),
            who,
            {
                "topic": topic,
                "partition": str(where[1]),
                "share": f"{weight[most] / whole:.3f}",
                **(behind[1] if behind is not None else {}),
            },
            (int(owner[0]), int(owner[0]), int(owner[-1])),
            severity=None if is_fast else "note",
            cause="most records have one key, or the partitioner chooses one partition",
            proven=False,
        )


def _of_much(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    """The matches of topics with many partitions and much data, however few batches it came in."""
    written = batches(capture)
    if max(Counter(topic for topic, _ in written.topic_partitions).values(), default=0) < at.partitions:
        return
    valid = spill.true_rows(written.owner >= 0)
    where = spill.take(written.topic_partition, valid)
    amounts = sum_positive_by(where, spill.take(written.size, valid), len(written.topic_partitions))
    records = sum_positive_by(where, spill.take(written.records, valid), len(written.topic_partitions))
    topics: dict[str, list[int]] = defaultdict(list)
    for number, (topic, _) in enumerate(written.topic_partitions):
        if amounts[number]:
            topics[topic].append(number)
    for topic, numbers in topics.items():
        whole, many = float(amounts[numbers].sum()), float(records[numbers].sum())
        hot = max(numbers, key=lambda number: float(amounts[number]))
        fair = whole / len(numbers)
        enough = len(numbers) >= at.partitions and (whole >= at.bytes or many >= at.records)
        if enough and amounts[hot] >= at.fair * fair and amounts[hot] >= at.large_share * whole:
            partition = written.topic_partitions[hot][1]
            text = f"{partition_name((topic, partition))} takes {share(float(amounts[hot]), whole)} of the bytes of "
            rows = written.owner[valid[where == hot]]
            yield Match(
                text + f"{len(numbers)} partitions of {name(topic)}.",
                int(amounts[hot]),
                *capture.span,
                {},
                {"topic": topic, "partition": str(partition)},
                tuple(rows[[0, 0, -1]].tolist()),
                severity="note",
            )


def _behind(capture: CaptureFrame, where: tuple[str, int], number: int) -> tuple[str, dict[str, str | None]] | None:
    """How far the group that is behind most is, by its commits and by its fetches, as a sentence and as columns."""
    read, until = reads(capture), capture.span[1]
    position = read.position()
    here = spill.true_rows((read.topic_partition == number) & (read.end >= 0))
    group = groups_of_fetches(capture)
    isolation = capture.column("isolation_level")
    worst: tuple[int, str, dict[str, str | None]] | None = None
    end = int(read.end[here].max()) if len(here) else 0
    for rows in of_readers(capture, here):
        own = int(group[read.owner[rows[-1]]])
        if own < 0:
            continue
        is_committed = isolation[read.owner[rows[-1]]] == READ_COMMITTED and read.stable[rows[-1]] >= 0
        readable = min(end, int(read.stable[rows].max())) if is_committed else end
        named = capture.groups[1][own]
        fetched = max(readable - int(position[rows].max()), 0)
        last_commit = committed(capture, named, where, until)
        began = read.at[rows][read.at[rows] != NULL]
        stood = last_commit if last_commit is not None else int(began.min()) if len(began) else readable
        lag = max(readable - stood, 0)
        reader = client(capture.who(int(capture.client[read.owner[rows[-1]]])))
        text = f"Its reader in group {name(named)}, {reader}, is "
        text += (
            f"{count(lag, 'record')} behind by its commits{'' if last_commit is not None else ' (none so far)'} and "
        )
        text += f"{fetched:,} by its fetches."
        if worst is None or lag > worst[0]:
            worst = lag, text, {"group_id": named, "commit_lag": str(lag), "fetch_lag": str(fetched)}
    return None if worst is None else (worst[1], worst[2])
