"""Share groups (KIP-932): records that come again, and locks that end before they are acknowledged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame
from kwire.analyzer.findings.error_answers import claim, match_of, of
from kwire.analyzer.findings.rules import Limits, Match, replaced, rule
from kwire.analyzer.findings.runs import runs
from kwire.analyzer.findings.wording import client, count, moment, name, share
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import split
from kwire.analyzer.protocol import api_keys

_LOCK = claim((api_keys.SHARE_FETCH, api_keys.SHARE_ACKNOWLEDGE), (121,), every=True)


@rule(
    "groups",
    "share-redelivery",
    "warning",
    "12.0 % of the records of topic t that share group s1 got came a second time or more (120 of 1,000), some for the "
    "5th time: the broker gives none out more often than group.share.delivery.count.limit, 5 unless set.",
    why="Ours: one record in twenty, of a hundred at least. One that comes for the fifth time is archived when it "
    "fails again: it is lost to the group.",
    suppressed_when="Within a minute after a member of the group left or expired: what it held is given to others. A "
    "note: none came for the fifth time, and locks of the group expired (share-lock-expired).",
    advice="Handlers that are slow (record.lock.duration.ms, 30 s) or crash, and records that nobody can process.",
    evidence="forged: five of a hundred again, and four; one for the fifth time; the same after a member left",
    share=0.05,
    records=100,
    deliveries=5,
    left_s=60,
)
def share_redelivery(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table, parts = capture.table("partitions"), capture.partitions
    most = table["delivery_count"]
    rows = np.flatnonzero((parts.owner >= 0) & (most > 0))
    if not len(rows):
        return
    groups, named = capture.groups
    gone = _gone(capture)
    locked = {run.thing.group for run in runs(capture) if _LOCK(run)}
    # Batches come whole; what is not given out of them is others', or done. Older datasets lack how many that are.
    again, acquired = table["redelivered"], table["acquired"]
    given = np.where(acquired >= 0, acquired, table["record_count"])
    topics: dict[str, int] = {}
    topic_of = np.array([topics.setdefault(topic, len(topics)) for topic, _ in capture.topic_partitions], np.int64)
    for group_rows in split(rows, groups[parts.owner[rows]], topic_of[parts.topic_partition[rows]]):
        group = named[groups[parts.owner[group_rows[0]]]] if groups[parts.owner[group_rows[0]]] >= 0 else None
        group_rows = group_rows[
            ~_soon(gone.get(group), capture.exchanges.response_end[parts.owner[group_rows]], int(at.left_s * SECOND))
        ]
        twice = group_rows[again[group_rows] > 0]
        whole, many = int(np.maximum(given[group_rows], 0).sum()), int(again[twice].sum())
        often = int(most[group_rows].max(initial=0))
        if not len(twice) or not (often >= at.deliveries or (whole >= at.records and many >= at.share * whole)):
            continue
        owner = parts.owner[twice]
        topic = capture.topic_partitions[parts.topic_partition[twice[0]]][0]
        text = f"{share(many, whole)} of the records of topic {name(topic)} that share group {name(group)} got came a "
        text += f"second time or more ({many:,} of {whole:,}), some for the {_ordinal(often)} time"
        if often >= at.deliveries:
            text += ": the broker gives none out more often than group.share.delivery.count.limit, 5 unless set"
        when = capture.exchanges.response_end[owner]
        rows_ = int(owner[0]), int(owner[most[twice].argmax()]), int(owner[-1])
        explained = group in locked
        yield Match(
            f"{text}.",
            many,
            int(when.min()),
            int(when.max()),
            capture.who(int(capture.client[owner[0]])),
            {"group_id": group, "topic": topic},
            rows_,
            cause=_LOCKED if explained else None,
            proven=False if explained else None,
            severity="note" if explained and often < at.deliveries else None,
        )


@rule(
    "groups",
    "share-lock-expired",
    "warning",
    "12 answers told svc-a (10.0.0.4) that records of topic t were not its own any more when it acknowledged them in "
    "share group s1: INVALID_RECORD_STATE (121), 10:01:03 to 10:01:09; they are given out again.",
    why="A record is a member's own for group.share.record.lock.duration.ms (30 s unless set). What it acknowledges "
    "after that the broker refuses, as somebody else has it by then, or will.",
    suppressed_when="Within a minute after a member of the group left or expired: what it had is taken from it then.",
    advice="Less at a time (max.poll.records), faster handlers, or a longer lock (share.record.lock.duration.ms of the "
    "group).",
    evidence="forged: one such answer, and one after a member left; a real consumer that takes longer than the lock",
    left_s=60,
)
def share_lock(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    troubles = of(capture, _LOCK, lasting=False)
    gone = _gone(capture) if troubles else {}
    for trouble in troubles:
        answered = capture.exchanges.response_end[trouble.rows]
        held = ~_soon(gone.get(trouble.thing.group), answered, int(at.left_s * SECOND))
        rows, answered = trouble.rows[held], answered[held]
        if not len(rows):
            continue
        text = f"{count(len(rows), 'answer')} told {client(capture.who(trouble.client))} that records"
        topic = capture.topic_names.get(trouble.thing.topic or "", trouble.thing.topic)
        text += f"{f' of topic {name(topic)}' if topic else ''} were not its own any more "
        text += f"when it acknowledged them in share group {name(trouble.thing.group)}: {trouble.error}, "
        text += moment(int(answered.min())) + (f" to {moment(int(answered.max()))}" if len(rows) > 1 else "")
        match = match_of(capture, trouble, f"{text}; they are given out again.", None, _LOCKED, False)
        yield replaced(
            match,
            count=len(rows),
            since=int(answered.min()),
            until=int(answered.max()),
            what={**match.what, "topic": topic},
            rows=tuple(rows[[0, -1, -1]].tolist()),
        )


_LOCKED = "members hold records for longer than their lock"


def _gone(capture: CaptureFrame) -> dict[Any, np.ndarray]:
    """Times when members left or expired, by group, in order."""
    events = capture.table("groups").every(["time", "group_id", "event"])
    by_group: dict[Any, list[int]] = defaultdict(list)
    for row in events:
        if row["event"] in ("leave", "expired"):
            by_group[row["group_id"]].append(row["time"])
    return {group: np.sort(np.array(times_, np.int64)) for group, times_ in by_group.items()}


def _soon(events: np.ndarray | None, times_: np.ndarray, within: int) -> np.ndarray:
    """bool[times]: at most so long after one of the events; also if the time is null."""
    if events is None:
        return np.asarray(times_ == NULL)
    last = np.searchsorted(events, times_, side="right") - 1
    soon: np.ndarray = (last >= 0) & (times_ - events[np.maximum(last, 0)] <= within) | (times_ == NULL)
    return soon


def _ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number if number < 20 else number % 10, 'th') }"
