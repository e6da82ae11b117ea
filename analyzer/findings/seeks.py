"""Readers of groups that go back by themselves: a seek, which no rebalance, restart or refusal explains.

In: Fetch exchanges, events of groups and rebalances. Out: `Seek`s by group and topic-partition. Rules: a client asked
for an offset below the one that it had asked for before, with a good answer before; between the two no member of its
group came, went or was refused, and no rebalance went on; no broker was lost and no leader moved nearby.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import CaptureFrame, once
from kwire.analyzer.findings.fetched import of_readers, reads
from kwire.analyzer.findings.group_reads import groups_of_fetches
from kwire.analyzer.findings.wording import client, count, partition_name
from kwire.analyzer.frame import spill
from kwire.analyzer.frame.frame import NULL

TopicPartition = tuple[str, int]


class Seek(NamedTuple):
    """A step back: number of the client, the exchange that asked for less, its time (us), from which position to which
    offset."""

    client: int
    row: int
    time: int
    position: int
    offset: int


@once
def seeks(capture: CaptureFrame) -> dict[tuple[str, TopicPartition], list[Seek]]:
    """Steps back by group and topic-partition, in order of time."""
    out: dict[tuple[str, TopicPartition], list[Seek]] = defaultdict(list)
    if not len(capture.table("groups")):
        return out
    read, events = reads(capture), _events(capture)
    groups, named = groups_of_fetches(capture), capture.groups[1]
    error, position = capture.partitions.error, read.position()
    wanted = spill.where(len(read.owner), lambda block: (groups[read.owner[block]] >= 0) & (read.at[block] != NULL))
    for rows in of_readers(capture, wanted):
        at, good = read.at[rows], error[read.part[rows]] == 0
        back = 1 + np.flatnonzero((at[1:] < at[:-1]) & good[1:] & good[:-1])
        for number in back.tolist():
            row, before = int(rows[number]), int(rows[number - 1])
            owner = int(read.owner[row])
            group, since = named[groups[owner]], int(read.time[before])
            until = int(capture.exchanges.request_time[owner])
            if groups[read.owner[before]] != groups[owner] or until == NULL or root_causes.near(capture, since, until):
                continue
            times = events.get(group, [])
            if bisect.bisect_left(times, min(since, until)) < bisect.bisect_right(times, until):
                continue
            where = capture.topic_partitions[read.topic_partition[row]]
            seek = Seek(int(capture.client[owner]), owner, until, int(position[before]), int(at[number]))
            out[group, where].append(seek)
    return out


def describe(capture: CaptureFrame, where: TopicPartition, some: list[Seek]) -> str:
    """Say who went back, how often, and the longest way."""
    longest = max(some, key=lambda seek: seek.position - seek.offset)
    who = client(capture.who(longest.client))
    text = f"{who} went back by itself (a seek) {count(len(some), 'time')}, with no rebalance between"
    return f"{text}: in {partition_name(where)} from {longest.position:,} to {longest.offset:,}"


def _events(capture: CaptureFrame) -> dict[str, list[int]]:
    """Times (us) at which members of a group came, went or were refused, or a rebalance began or ended; in order."""
    out: dict[str, list[int]] = defaultdict(list)
    for row in capture.table("groups").every(["time", "group_id", "event"]):
        if row["event"] != "commit_failed" and row["time"] is not None:
            out[row["group_id"]].append(row["time"])
    table = capture.table("rebalances")
    for row in table.every(["group_id", "began", "ended"]) if len(table) else ():
        out[row["group_id"]] += [time for time in (row["began"], row["ended"]) if time is not None]
    return {group: sorted(times) for group, times in out.items()}
