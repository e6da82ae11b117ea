"""Judge journeys of batches: groups that fall behind in seconds, slow legs, and records that a group gets again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame
from kwire.analyzer.findings.restarts import restarts
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, rule
from kwire.analyzer.findings.seeks import Seek, describe, seeks
from kwire.analyzer.findings.wording import count, lasting, moment, name, partition_name, share
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.frame import NULL, codes_of
from kwire.analyzer.frame.grouping import split

_NEVER = np.iinfo(np.int64).max


def _of_groups(capture: CaptureFrame) -> np.ndarray:
    """Rows of `journeys` that a group of consumers fetched. Where there are none, rules read no other column."""
    table = capture.table("journeys")
    kind, kinds = table.text("kind")
    rows = np.flatnonzero(arrow.among(kind, codes_of(kinds, "consumer")))
    if len(rows):
        group, _ = table.text("group_id")
        rows = rows[(group[rows] >= 0) & (table["fetched"][rows] != NULL)]
    return rows


@rule(
    "fetch",
    "lag-seconds",
    "warning",
    "Group g-app is 3.0 min behind in t-4 and falls further back: it was 1.1 min behind 2.0 min before.",
    why="The age of the oldest batch that the group has not fetched, exactly: no offsets are interpolated. A minute is "
    "more than a rebalance and a restart take. Behind twice as long ago by less, and before that by less again, is no "
    "burst.",
    suppressed_when="The group fetched for less than two minutes; it catches up. What was sent before the capture has "
    "no age. After its last fetch a group that ended is not behind.",
    advice="More consumers (up to the number of partitions), or less work between polls. The view lag_seconds has each "
    "partition over time, end_to_end the leg that is late.",
    evidence="forged: a group that is 61 s behind after five minutes, and 59 s; one that catches up",
    behind_s=60,
    span_s=120,
    by_clock=True,
)
def lag_seconds(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("journeys")
    if not len(table) or capture.seconds < at.span_s:
        return
    rows = _of_groups(capture)
    if not len(rows):
        return
    base, sent, fetched = table["base_offset"], table["sent"], table["fetched"]
    rows = rows[(base[rows] != NULL) & (sent[rows] != NULL)]
    if not len(rows):
        return
    group, groups = table.text("group_id")
    where, places = capture.number_topic_partitions(table)
    known = np.flatnonzero((base != NULL) & (sent != NULL))
    known = known[np.lexsort((sent[known], base[known], where[known]))]
    ordered = where[known]
    first, last = np.full(len(groups), _NEVER), np.full(len(groups), NULL)
    np.minimum.at(first, group[rows], fetched[rows])
    np.maximum.at(last, group[rows], fetched[rows])
    behind: dict[tuple[int, str], list[tuple[int, int, int]]] = defaultdict(list)
    for some in split(rows, group[rows], where[rows]):
        of, place = int(group[some[0]]), int(where[some[0]])
        begin, end = int(first[of]), int(last[of])
        if end - begin < at.span_s * SECOND:
            continue
        batches = known[slice(*np.searchsorted(ordered, [place, place + 1]))]
        some = some[np.argsort(base[some], kind="stable")]
        batches = batches[base[batches] >= base[some[0]]]
        # What lies before a batch that the group fetched is behind it.
        earliest = np.append(np.minimum.accumulate(fetched[some][::-1])[::-1], _NEVER)
        passed = earliest[np.searchsorted(base[some], base[batches])]
        third = (end - begin) // 3
        ages = [_oldest(sent[batches], passed, moment_) for moment_ in (end - 2 * third, end - third, end)]
        if ages[2] >= at.behind_s * SECOND and ages[0] < ages[1] < ages[2]:
            behind[of, places[place][0]].append((ages[2], ages[1], places[place][1]))
    for (of, topic), partitions in behind.items():
        age, before, partition = max(partitions)
        third = (int(last[of]) - int(first[of])) // 3
        text = f"Group {name(groups[of])} is {lasting(age)} behind in {partition_name((topic, partition))}"
        if len(partitions) > 1:
            text += f" and less in {count(len(partitions) - 1, 'other partition')} of the topic"
        text += f", and falls further back: it was {lasting(before)} behind {lasting(third)} before."
        yield Match(
            text,
            len(partitions),
            int(first[of]),
            int(last[of]),
            {},
            {"topic": topic, "partition": str(partition), "group_id": groups[of]},
        )


def _oldest(sent: np.ndarray, passed: np.ndarray, time: int) -> int:
    """The age of the oldest batch that was sent and not passed at a time, 0 if there is none."""
    waiting = sent[(sent <= time) & (passed > time)]
    return time - int(waiting.min()) if len(waiting) else 0


_LEGS = {
    "client": "in the producer, before they were sent",
    "request": "on their way to the broker",
    "broker": "until the broker acknowledged them",
    "reader": "until a fetch brought them",
}


@rule(
    "fetch",
    "end-to-end-slow",
    "warning",
    "Half of 1,200 batches of topic t took 12.0 s and more from producer to group g-app, the slowest 30.0 s; most of "
    "it (11.5 s on average) until a fetch brought them.",
    why="Ours: ten seconds for every other batch. Rebalances and leader changes delay some batches, not half of them. "
    "A producer gives a batch up after two minutes (delivery.timeout.ms): what has an older timestamp when it is sent "
    "got it elsewhere (mirrored, read from a database, read again), and counts from when it was sent.",
    suppressed_when="Fewer than a hundred batches that were sent while the group was reading their partition; the "
    "group falls further and further behind (lag-seconds).",
    advice="In the producer: linger.ms, batch.size, requests in flight. Until the acknowledgement: followers that lag "
    "(the view replica_delay), a slow broker. Until a fetch: the consumer's work between polls, its transaction's end, "
    "rebalances. The views end_to_end and journey_legs have each of them.",
    evidence="forged: a hundred batches of 10 s and ninety-nine; of 9.9 s; from before the group read the partition; "
    "timestamps an hour old",
    slow_s=10,
    given_up_s=120,
    batches=100,
    by_clock=True,
)
def end_to_end_slow(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("journeys")
    if not len(table) or capture.seconds < at.slow_s:
        return
    rows = _of_groups(capture)
    if len(rows) < at.batches:
        return
    columns = ("created", "sent", "received", "acked", "fetched")
    created, sent, received, acked, fetched = (table[column] for column in columns)
    rows = rows[(sent[rows] != NULL) & (received[rows] != NULL)]
    if len(rows) < at.batches:
        return
    group, groups = table.text("group_id")
    where, places = capture.number_topic_partitions(table)
    topics: dict[str, int] = {}
    topic_of = np.array([topics.setdefault(topic, len(topics)) for topic, _ in places], np.int64)
    falling = {(match.what["group_id"], match.what["topic"]) for match in _falling_behind(capture)}
    following = []
    for some in split(rows, group[rows], where[rows]):
        following.append(some[sent[some] >= int(fetched[some].min())])
    rows = np.sort(np.concatenate(following))
    waited = sent[rows] - created[rows]
    by_producer = (created[rows] != NULL) & (waited >= 0) & (waited <= at.given_up_s * SECOND)
    began = np.where(by_producer, created[rows], sent[rows])
    for picked in split(np.arange(len(rows)), group[rows], topic_of[where[rows]]):
        some, begins = rows[picked], began[picked]
        took = fetched[some] - begins
        if len(some) < at.batches or np.median(took) < at.slow_s * SECOND:
            continue
        named, topic = groups[group[some[0]]], places[where[some[0]]][0]
        if (named, topic) in falling:
            continue
        there = np.where(acked[some] == NULL, received[some], np.minimum(acked[some], fetched[some]))
        legs = {
            "client": sent[some] - begins,
            "request": received[some] - sent[some],
            "broker": there - received[some],
            "reader": fetched[some] - there,
        }
        leg = max(legs, key=lambda name_: float(legs[name_].mean()))
        text = f"Half of {count(len(some), 'batch', 'batches')} of topic {name(topic)} took "
        text += f"{lasting(int(np.median(took)))} and more from producer to group {name(named)}, the slowest "
        text += f"{lasting(int(took.max()))}; most of it ({lasting(int(legs[leg].mean()))} on average) {_LEGS[leg]}."
        yield Match(
            text,
            len(some),
            int(sent[some].min()),
            int(fetched[some].max()),
            {},
            {"topic": topic, "group_id": named, "leg": leg},
        )


def _falling_behind(capture: CaptureFrame) -> Iterator[Match]:
    """The matches of lag-seconds."""
    behind = RULES["lag-seconds"]
    return behind.check(capture, limits_of(behind, capture.query))


@rule(
    "groups",
    "redelivered-records",
    "warning",
    "Group g-app got 12.0 % of the records of topic t more than once (1,200 of 10,000), some 3 times.",
    why="Ours: one record in twenty, of a thousand at least. A consumer that is not idempotent processes each again.",
    suppressed_when="Fewer; share groups (share-redelivery); its members restart at one offset (partition-stuck). Of "
    "rebalances and restarts it is said how many of them the group had fetched before and not committed; of seeks, who "
    "went back, and how often.",
    advice="Commit before partitions are given up (onPartitionsRevoked), and more often; a handler that takes longer "
    "than max.poll.interval.ms; a seek. The view redelivered has each partition, kwire story --offset one record.",
    evidence="forged: a thousand records of twenty thousand again, and 999, and of 20,100; tests/incidents "
    "seek-back-loop",
    records=1000,
    share=0.05,
)
def redelivered(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("journeys")
    if not len(table):
        return
    rows = _of_groups(capture)
    if not len(rows):
        return
    fetches = table["fetches"]
    if int(fetches[rows].max()) < 2:
        return
    group, groups = table.text("group_id")
    where, places = capture.number_topic_partitions(table)
    topics: dict[str, int] = {}
    topic_of = np.array([topics.setdefault(topic, len(topics)) for topic, _ in places], np.int64)
    records, fetched, committed = np.maximum(table["records"], 0), table["fetched"], table["committed"]
    restarted = {each.group for each in restarts(capture)}
    for some in split(rows, group[rows], topic_of[where[rows]]):
        if groups[group[some[0]]] in restarted:
            continue
        again = some[fetches[some] > 1]
        many, whole = int(records[again].sum()), int(records[some].sum())
        if many < at.records or many < at.share * whole:
            continue
        named, topic = groups[group[some[0]]], places[where[some[0]]][0]
        text = f"Group {name(named)} got {share(many, whole)} of the records of topic {name(topic)} more than once "
        text += f"({many:,} of {whole:,}), some {count(int(fetches[again].max()), 'time')}."
        cause = None
        began = _rebalances_since(capture, named, int(fetched[again].min()))
        if len(began):
            following = np.searchsorted(began, fetched[again])
            next_one = began[np.minimum(following, len(began) - 1)]
            open_ = (following < len(began)) & ((committed[again] == NULL) | (committed[again] > next_one))
            lost = int(records[again[open_]].sum())
            if 2 * lost >= many:
                times = arrow.distinct(next_one[open_])
                cause = f"a rebalance at {moment(int(times[0]))}: {lost:,} of them had been fetched before it "
                if len(times) > 1:
                    cause = (
                        f"{len(times)} rebalances from {moment(int(times[0]))} on: {lost:,} of them had been fetched "
                    )
                    cause += "before one "
                cause += "and not committed"
        who: dict[str, Any] = {}
        went_back = _most_seeks(capture, named, topic) if cause is None else None
        if went_back is not None:
            cause, who = describe(capture, *went_back), capture.who(went_back[1][0].client)
        yield Match(
            text,
            many,
            int(fetched[again].min()),
            int(fetched[again].max()),
            who,
            {"topic": topic, "group_id": named},
            tuple(seek.row for seek in went_back[1][:1] + went_back[1][-1:]) if went_back is not None else (),
            cause=cause,
            proven=True if cause else None,
            advice=_SEEKS if went_back is not None else None,
        )


_SEEKS = (
    "Look at where the application seeks (seek, seekToBeginning, a retry that goes back to the batch's start): each "
    "time it gets the same records again."
)


def _most_seeks(capture: CaptureFrame, group: str, topic: str) -> tuple[tuple[str, int], list[Seek]] | None:
    """The topic-partition of a topic in which a group's readers went back most often by themselves, and these steps."""
    own = [(where, some) for (named, where), some in seeks(capture).items() if named == group and where[0] == topic]
    return max(own, key=lambda pair: len(pair[1]), default=None)


def _rebalances_since(capture: CaptureFrame, group: str, since: int) -> np.ndarray:
    """When the rebalances of a group began, from a time on; in order."""
    table = capture.table("rebalances")
    if not len(table):
        return np.zeros(0, np.int64)
    of, groups = table.text("group_id")
    began = table["began"]
    rows = np.flatnonzero(arrow.among(of, codes_of(groups, group)) & (began >= since))
    return np.sort(began[rows])
