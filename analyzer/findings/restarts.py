"""Members of groups that come back, read the same records again, and go without a commit: one record stops them.

In: the tables `groups` and `offsets`, and fetched topic-partitions. Out: `Restarts`. Rules: a life of a member begins
with its join under a new member id. Lives of one group begin at one offset of a topic-partition, got records there, and
the group committed nothing beyond that offset. Where the group was never seen to have a commit, its members have to
vanish: who reads without commits and leaves in order is a script. Kafka Connect is none: a task that fails leaves in
order, and one that does not commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kwire.analyzer.findings.capture import CaptureFrame, once
from kwire.analyzer.findings.fetched import reads
from kwire.analyzer.findings.group_reads import committed_beyond, groups_of_fetches
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import split
from kwire.analyzer.protocol import api_keys

TopicPartition = tuple[str, int]


class Restarts(NamedTuple):
    """Lives of members that ended without progress. members: their ids, in order; client: number of the last one's
    client; starts: offset at which all of them began, by topic-partition; until: offset that all of them reached;
    rows: exchanges in which each began; since, until_us: us; vanished: how many did not leave in order; suspect:
    topic-partition, offset and size of the one record unlike the others, and their median size."""

    group: str
    members: list[str]
    client: int
    starts: dict[TopicPartition, int]
    rows: list[int]
    since: int
    until: int
    vanished: int
    suspect: tuple[TopicPartition, int, int, int] | None


@dataclass(slots=True)
class _Life:
    """One member from its join on: where it began, and how far it got, by topic-partition (a number)."""

    member: str
    client: int
    since: int
    until: int
    left: bool
    first: dict[int, tuple[int, int]]  # offset and row of reads
    reached: dict[int, int]


@once
def restarts(capture: CaptureFrame) -> list[Restarts]:
    """Groups whose members restarted at the same offsets, three times or more."""
    events = capture.table("groups")
    if len(events) < LEAST:
        return []
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    wanted = ["time", "group_id", "protocol", "event", "member_id", "client_id", "client_ip", "generation", "error"]
    for row in events.every(wanted):
        if row["event"] in ("join", "leave") and row["error"] is None and row["protocol"] in ("classic", "consumer"):
            by_group[row["group_id"]].append(row)
    out: list[Restarts] = []
    for group, rows in by_group.items():
        if len({row["member_id"] for row in rows if row["event"] == "join"}) >= LEAST:
            out += _of_group(capture, group, rows)
    return out


LEAST = 3
"""Lives that begin at one offset."""

CONNECTOR = "connector-consumer-"
"""What the client ids of Kafka Connect's sink tasks begin with."""


def _of_group(capture: CaptureFrame, group: str, events: list[dict[str, Any]]) -> Iterator[Restarts]:
    lives = _lives(capture, group, sorted(events, key=lambda row: row["time"]))
    begun = sorted({where for life in lives for where in life.first})
    stuck: dict[int, list[_Life]] = {}
    for where in begun:
        here = [life for life in lives if where in life.first]
        run = _longest_run(capture, group, where, here)
        if len(run) >= LEAST:
            stuck[where] = run
    if not stuck:
        return
    longest = max(stuck.values(), key=len)
    together = {where: run for where, run in stuck.items() if len(run) == len(longest)}
    vanished = sum(not life.left for life in longest)
    connector = (capture.clients[longest[-1].client][1] or "").startswith(CONNECTOR)
    if vanished < LEAST - 1 and not connector and not _has_commits(capture, group, longest[0].since):
        return
    starts = {capture.topic_partitions[where]: run[0].first[where][0] for where, run in together.items()}
    read = reads(capture)
    shown = [min(life.first[where][1] for where in together if where in life.first) for life in longest]
    yield Restarts(
        group,
        [life.member for life in longest],
        longest[-1].client,
        starts,
        [int(read.owner[row]) for row in shown],
        int(read.time[shown[0]]),
        int(read.time[shown[-1]]),
        vanished,
        _suspect(capture, together),
    )


def _lives(capture: CaptureFrame, group: str, events: list[dict[str, Any]]) -> list[_Life]:
    """The members of a group that were seen to join and to fetch, in order."""
    read, numbers = reads(capture), {client: number for number, client in enumerate(capture.clients)}
    own = capture.groups[1].index(group) if group in capture.groups[1] else -1
    rows = spill.where(len(read.owner), lambda block: groups_of_fetches(capture)[read.owner[block]] == own)
    rows = rows[(spill.take(read.time, rows) != NULL)]
    by_client = {
        int(capture.client[read.owner[some[0]]]): some for some in split(rows, capture.client[read.owner[rows]])
    }
    joins: dict[int, list[tuple[int, str]]] = defaultdict(list)
    seen = set[str]()
    left = {row["member_id"] for row in events if row["event"] == "leave"}
    for row in events:
        number = numbers.get((row["client_ip"], row["client_id"]))
        if row["event"] == "join" and row["member_id"] not in seen and number is not None:
            seen.add(row["member_id"])
            joins[number].append((row["time"], row["member_id"]))
    position, lives = read.position(), []
    for number, some in joins.items():
        if len({time for time, _ in some}) < len(some) or number not in by_client:
            continue
        own_rows = by_client[number]
        requested = capture.exchanges.request_time[read.owner[own_rows]]
        for (since, member), following in zip(some, [*some[1:], (int(capture.span[1]) + 1, "")], strict=True):
            inside = own_rows[(requested >= since) & (requested < following[0])]
            life = _Life(member, number, since, following[0], member in left, {}, {})
            for answers in split(inside, read.topic_partition[inside]):
                named = np.flatnonzero(read.at[answers] != NULL)
                if not len(named) or not (read.size[answers] > 0).any():
                    continue
                answers = answers[named[0] :]
                where = int(read.topic_partition[answers[0]])
                life.first[where] = int(read.at[answers[0]]), int(answers[0])
                if (position[answers] != NULL).any():
                    life.reached[where] = max(0, int(position[answers].max()))
            if life.first:
                lives.append(life)
    return sorted(lives, key=lambda life: life.since)


def _longest_run(capture: CaptureFrame, group: str, where: int, lives: list[_Life]) -> list[_Life]:
    """The most successive lives that began at one offset, without a commit beyond it."""
    best: list[_Life] = []
    run: list[_Life] = []
    named = capture.topic_partitions[where]
    for life in lives:
        offset = life.first[where][0]
        same = bool(run) and run[0].first[where][0] == offset
        run = [*run, life] if same else [life]
        if len(run) > len(best):
            best = run
    if len(best) >= LEAST:
        offset, until = best[0].first[where][0], best[-1].since
        if committed_beyond(capture, group, named, offset, best[0].since, until):
            return []
    return best


def _has_commits(capture: CaptureFrame, group: str, since: int) -> bool:
    """Whether a group had offsets: it committed, or was told of some."""
    number = capture.groups[1].index(group)
    rows = capture.of_api(api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT, api_keys.OFFSET_FETCH)
    rows = rows[(capture.groups[0][rows] == number) & (capture.exchanges.error[rows] == 0)]
    parts, offset = capture.partitions, capture.table("partitions")["offset"]
    own = spill.where(len(offset), lambda block: arrow.among(parts.owner[block], rows) & (offset[block] >= 0))
    return bool(len(own))


_UNLIKE = 2
"""A record is unlike all others if none of them is larger than half of it and smaller than its double."""


def _suspect(capture: CaptureFrame, stuck: dict[int, list[_Life]]) -> tuple[TopicPartition, int, int, int] | None:
    """The one record among those that every life got which is unlike the rest by its size, if there is one."""
    table = capture.table("batches")
    if not len(table):
        return None
    numbers, places = capture.number_topic_partitions(table)
    reached = {
        capture.topic_partitions[where]: (
            run[0].first[where][0],
            min(life.reached.get(where, run[0].first[where][0]) for life in run),
        )
        for where, run in stuck.items()
    }
    side, sides = table.text("side")
    fetched = arrow.among(side, [number for number, text in enumerate(sides) if text == "fetch"])
    base, batch_bytes, many = table["base_offset"], table["batch_bytes"], table["record_count"]
    sizes: dict[tuple[TopicPartition, int], int] = {}
    for number, where in enumerate(places):
        if where in reached:
            first, past = reached[where]
            rows = np.flatnonzero(fetched & (numbers == number) & (base >= first) & (base < past))
            for row in rows[many[rows] > 0].tolist():
                sizes[where, int(base[row])] = int(batch_bytes[row]) // int(many[row])
    if len(sizes) < _ENOUGH:
        return None
    ordered = np.sort(np.array([*sizes.values()], np.int64))
    alone = [
        (key, amount)
        for key, amount in sizes.items()
        if np.searchsorted(ordered, _UNLIKE * amount, "right") - np.searchsorted(ordered, amount / _UNLIKE) == 1
    ]
    if len(alone) != 1:
        return None
    (where, offset), amount = alone[0]
    return where, offset, amount, int(np.median(ordered))


_ENOUGH = 10
"""Records without which it cannot be said what the others are like."""
