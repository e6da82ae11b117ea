"""Which group each Fetch was for, and what a group committed: what rules about readers of groups share.

In: a capture point. Out: numbers of groups by exchange, and commits by group and topic-partition. A Fetch does not say
its group: it is the one that the same client named last before it, else the first one after.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict

import numpy as np

from kwire.analyzer.findings.capture import CaptureFrame, once
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.protocol import api_keys

_OF_MEMBERS = (
    api_keys.JOIN_GROUP,
    api_keys.SYNC_GROUP,
    api_keys.HEARTBEAT,
    api_keys.OFFSET_FETCH,
    api_keys.OFFSET_COMMIT,
    api_keys.CONSUMER_GROUP_HEARTBEAT,
)

_SUFFIX = re.compile(r"([-_.#@]?(\d+|[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}|v\d+|[0-9a-f]{8,}))+$")
"""What instances and versions of one application add to its name."""
_BY_DEFAULT = re.compile(r"(rdkafka|consumer|sarama|kafkajs|kafka-python.*|aiokafka.*|confluent.*|consumer-.*|kgo)?$")
"""Client ids that libraries give where the application names none, without their suffix."""


def application(client_id: str | None) -> str | None:
    """A client id without what tells instances apart; None where it is a library's default."""
    named = _SUFFIX.sub("", client_id or "")
    return None if _BY_DEFAULT.fullmatch(named) else named


@once
def groups_of_fetches(capture: CaptureFrame) -> np.ndarray:
    """int32[exchanges]: the group that a client reads for, by its Fetch exchanges; -1 where none is known."""
    rows, out = capture.exchanges, spill.full(len(capture.exchanges), -1, np.int32)
    number, _ = capture.groups
    named = capture.of_api(*_OF_MEMBERS)
    named = named[(number[named] >= 0) & (rows.request_time[named] != NULL)]
    if not len(named):
        return out
    fetches = capture.of_api(api_keys.FETCH, api_keys.SHARE_FETCH)
    fetches = fetches[arrow.among(capture.client[fetches], arrow.distinct(capture.client[named]))]
    fetches = fetches[~capture.mixed[capture.client[fetches]]]
    every = np.concatenate([named, fetches])
    is_named = np.arange(len(every)) < len(named)
    order = np.lexsort((~is_named, rows.request_time[every], capture.client[every]))
    client, tells = capture.client[every][order], is_named[order]
    place = np.arange(len(every))
    before = np.maximum.accumulate(np.where(tells, place, -1))
    after = np.minimum.accumulate(np.where(tells, place, len(every))[::-1])[::-1]
    ordered = number[every][order]
    known = (before >= 0) & (client[np.maximum(before, 0)] == client)
    later = (after < len(every)) & (client[np.minimum(after, len(every) - 1)] == client)
    value = np.where(
        known, ordered[np.maximum(before, 0)], np.where(later, ordered[np.minimum(after, len(every) - 1)], -1)
    )
    out[every[order][~tells]] = value[~tells]
    return out


@once
def commits(capture: CaptureFrame) -> dict[tuple[str, str, int], tuple[list[int], list[int]]]:
    """Accepted commits of clients, in order: times (us) and offsets, by group, topic and partition."""
    table = capture.table("offsets")
    by: dict[tuple[str, str, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    if not len(table):
        return by
    wanted = ["time", "group_id", "topic", "topic_id", "partition", "offset", "kind", "error"]
    rows = [
        row
        for row in table.every(wanted)
        if row["kind"] in ("commit", "txn_commit") and row["error"] is None and row["offset"] is not None
    ]
    for row in sorted(rows, key=lambda row: row["time"]):
        topic = row["topic"] or capture.topic_names.get(row["topic_id"], row["topic_id"])
        times, offsets = by[row["group_id"], topic, row["partition"]]
        times.append(row["time"])
        offsets.append(row["offset"])
    return by


def committed(capture: CaptureFrame, group: str, where: tuple[str, int], until: int) -> int | None:
    """The last offset that a group had committed by a time, in the capture."""
    times, offsets = commits(capture).get((group, *where), ([], []))
    at = bisect.bisect_right(times, until)
    return offsets[at - 1] if at else None


def committed_beyond(
    capture: CaptureFrame, group: str, where: tuple[str, int], offset: int, since: int, until: int
) -> bool:
    """Whether a group committed an offset above this one between two times."""
    times, offsets = commits(capture).get((group, *where), ([], []))
    return any(
        value > offset for value in offsets[bisect.bisect_left(times, since) : bisect.bisect_right(times, until)]
    )
