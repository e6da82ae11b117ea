"""Topics, leaders, addresses: what clients ask about the cluster, and how often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kwire.analyzer.common.leader_epochs import Epochs
from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import SECOND, CaptureFrame
from kwire.analyzer.findings.error_answers import about, claim, match_of, of, times
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, moment, partition_name, size, some
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.columns import encode
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import busiest_window, max_by, split
from kwire.analyzer.protocol import api_keys

_NO_LEADER = claim((api_keys.METADATA, api_keys.LIST_OFFSETS, api_keys.FETCH, api_keys.PRODUCE), (5,))


@rule(
    "cluster",
    "metadata-storm",
    "warning",
    "svc-a (10.0.0.4) asks for Metadata 10.0 times a second.",
    why="Usual is once in five minutes, and bursts at a back-off of 0.1 to 1 s; healthy clients were seen to ask up "
    "to 1.3 times a second over ten seconds, for an unknown topic twice.",
    suppressed_when="In the first five seconds of a client that began in the capture; within ten seconds of a lost "
    "broker or a moved leader.",
    advice="Look for an unknown topic, a partition without a leader, a client that asks for each message.",
    evidence="forged: fifty in ten seconds, and forty-nine",
    rate=5,
    window_s=10,
    start_s=5,
    by_clock=True,
)
def metadata_storm(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.of_one(capture.of_api(api_keys.METADATA))
    if len(rows) < at.rate * at.window_s:
        return
    known = capture.exchanges.request_time != NULL
    first = -max_by(
        capture.client[known], -capture.exchanges.request_time[known], len(capture.clients), -np.iinfo(np.int64).max
    )
    started = np.ones(len(capture.clients), bool)  # in the capture
    ended = len(capture.table("connections"))  # of those that go on nobody knows yet
    started[capture.client_of[:ended][capture.link_numbers("opened")[:ended] == 0]] = False
    for group_rows in split(rows, capture.client[rows], least=at.rate * at.window_s):
        number = int(capture.client[group_rows[0]])
        begun = int(first[number]) + int(at.start_s * SECOND) * int(started[number])
        every = group_rows[np.argsort(capture.exchanges.request_time[group_rows], kind="stable")]
        group_rows = every[capture.exchanges.request_time[every] >= begun]
        requested = capture.exchanges.request_time[group_rows]
        most, start, past = busiest_window(requested, int(at.window_s * SECOND))
        if most < at.rate * at.window_s or root_causes.near(capture, int(requested[start]), int(requested[past - 1])):
            continue
        group_rows, requested = every, capture.exchanges.request_time[every]
        most, start, past = busiest_window(requested, int(at.window_s * SECOND))
        who = capture.who(int(capture.client[group_rows[0]]))
        rate = _rate(requested[start:past])
        text = f"{client(who)} asks for Metadata {rate:.1f} times a second."
        yield Match(
            text,
            most,
            int(requested[start]),
            int(requested[past - 1]),
            who,
            {"api": "Metadata"},
            (int(group_rows[start]), int(group_rows[start]), int(group_rows[past - 1])),
        )


def _rate(times: np.ndarray) -> float:
    """Events a second between the first and the last of sorted times, us."""
    lasted = int(times[-1] - times[0])
    return (len(times) - 1) * SECOND / lasted if lasted else float(len(times))


@rule(
    "cluster",
    "metadata-all-topics",
    "note",
    "svc-a (10.0.0.4) asks for the metadata of all topics, up to 1.3 MB each time: 14 times, 10:01:03 to 10:12:40.",
    why="Usual is once in five minutes, and of the topics that a client uses. Such an answer grows with the cluster, "
    "and is made and sent whole for each client that asks so.",
    suppressed_when="Fewer than three answers of a megabyte, and fewer than ten of a tenth of that within ten minutes, "
    "or all of these within five; the request names topics, as its size shows.",
    advice="Subscribe to topics by name, not by a pattern; let monitoring ask less often (metadata.max.age.ms, "
    "topic.metadata.refresh.interval.ms, its own interval).",
    evidence="forged: three answers of a megabyte, and two; ten of 100 kB, and nine; requests that name a topic",
    bytes=1_000_000,
    answers=3,
    small=100_000,
    times=10,
    window_s=600,
    spread_s=300,
    by_clock=True,
)
def all_topics(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    least = min(at.small, at.bytes)
    rows = capture.of_one(capture.of_api(api_keys.METADATA))
    if not len(rows) or capture.greatest("response_bytes") < least:
        return
    asked_bytes, told_bytes = (np.zeros(len(rows), np.int64) for _ in range(2))
    for places, part in capture.table("exchanges").chosen(rows, ["request_bytes", "response_bytes"]):
        for column, values in zip(part.columns, (asked_bytes, told_bytes), strict=True):
            values[places] = arrow.numbers(column.combine_chunks(), NULL)
    large = (told_bytes >= least) & (asked_bytes == _bytes_without_topics(capture, rows))
    rows, told_bytes = rows[large], told_bytes[large]
    requested = capture.exchanges.request_time[rows]
    for group_rows in split(np.arange(len(rows)), capture.client[rows], least=min(at.answers, at.times)):
        group_rows = group_rows[np.argsort(requested[group_rows], kind="stable")]
        most, start, past = busiest_window(requested[group_rows], int(at.window_s * SECOND))
        spread = int(requested[group_rows[past - 1]] - requested[group_rows[start]]) >= at.spread_s * SECOND
        if (told_bytes[group_rows] >= at.bytes).sum() < at.answers and not (most >= at.times and spread):
            continue
        who, worst = capture.who(int(capture.client[rows[group_rows[0]]])), group_rows[told_bytes[group_rows].argmax()]
        since, until = int(requested[group_rows[0]]), int(requested[group_rows[-1]])
        text = f"{client(who)} asks for the metadata of all topics, up to {size(int(told_bytes[worst]))} each time: "
        text += f"{count(len(group_rows), 'time')}, {moment(since)} to {moment(until)}."
        what = {"api": "Metadata", "bytes": str(int(told_bytes[group_rows].sum()))}
        yield Match(
            text, len(group_rows), since, until, who, what, tuple(rows[[group_rows[0], worst, group_rows[-1]]].tolist())
        )


_HEADER, _BODIES = 14, (4, 4, 4, 4, 5, 5, 5, 5, 7, 6, 6, 5, 5, 5)
"""Bytes of a request's header but its client id, and of a Metadata without topics by its version, with the tagged
fields of its header from 9 on."""


def _bytes_without_topics(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """int64[rows]: the size of a Metadata request of that version and client that names no topic; -1 where it is not
    known."""
    ids = np.array([len((named or "").encode()) for _, named in capture.clients], np.int64)
    version = capture.exchanges.version[rows].astype(np.int64)
    known = (version >= 0) & (version < len(_BODIES))
    body = np.array(_BODIES, np.int64)[np.where(known, version, 0)]
    sizes: np.ndarray = np.where(known, _HEADER + ids[capture.client[rows]] + body, -1)
    return sizes


@rule(
    "cluster",
    "leader-missing",
    "error",
    "There is no leader for orders-3, svc-a (10.0.0.4) is told: LEADER_NOT_AVAILABLE (5), 40 times, 10:01:03 to "
    "10:01:40.",
    why="A topic that was made a moment ago has its leaders within 0.3 s; an election takes seconds: 30 s.",
    suppressed_when="It passed within 30 s.",
    advice="Bring back a replica of it; unclean elections lose records.",
    evidence="forged: three such answers over 31 s, and over 29 s",
)
def leader_missing(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _NO_LEADER):
        text = f"There is no leader{about(trouble)}, {client(capture.who(trouble.client))} is told: {trouble.error}, "
        yield match_of(capture, trouble, f"{text}{times(trouble)}.")


class _Shrunk(NamedTuple):
    """Nodes that left the in-sync replicas of a partition: when an answer first stated it, and when another state
    followed."""

    topic_partition: tuple[str, int]
    missing: tuple[int, ...]
    since: int
    until: int


@rule(
    "cluster",
    "under-replicated",
    "warning",
    "By 10:01:03 node 3 had left the in-sync replicas of 6 partitions, and was not back 12 min later: orders-0, "
    "orders-1, orders-2 and 3 more.",
    why="A replica that is behind for 30 s (replica.lag.time.max.ms) leaves the in-sync set; one that is not back a "
    "minute later is down, or too slow, and one loss more is lost records or a partition that nobody can write to.",
    suppressed_when="No answer to Metadata said the same of that topic a minute later; a reassignment was asked for "
    "before, or others came into the set; the topic was made anew, or its id is not said (Metadata before version 10). "
    "What was so from the beginning is not told, for how many replicas there are to be the tables do not have.",
    advice="Look after that node, its disks and its network. Where replicas were taken away on purpose, nothing.",
    evidence="Kafka 4.3, a node of which was killed; cluster-kraft-3.9 and cluster-zk-2.8 with a threshold of a "
    "second; forged: an in-sync set that is smaller for a minute, and for less; one that grows again; a reassignment",
    seconds=60,
    by_clock=True,
)
def under_replicated(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    least = int(at.seconds * SECOND)
    if capture.span[1] - capture.span[0] < least:
        return
    reassigned = capture.exchanges.request_time[capture.of_api(api_keys.ALTER_PARTITION_REASSIGNMENTS)]
    by_then = int(reassigned.min(initial=capture.span[1]))
    shrunk = [
        shrinking
        for shrinking in _shrunk(capture)
        if shrinking.until - shrinking.since >= least and shrinking.since <= by_then
    ]
    reports = _told_of(
        capture,
        {shrinking.topic_partition[0] for shrinking in shrunk},
        least + min((shrinking.since for shrinking in shrunk), default=0),
    )
    by: dict[tuple[int, ...], list[tuple[_Shrunk, int]]] = defaultdict(list)
    for shrinking in shrunk:
        rows, times_ = reports.get(shrinking.topic_partition[0], (_NONE, _NONE))
        after = int(np.searchsorted(times_, shrinking.until))
        if after and int(times_[after - 1]) - shrinking.since >= least:
            by[shrinking.missing].append((shrinking, int(rows[after - 1])))
    for missing, group in by.items():
        places, lasts = sorted({shrinking.topic_partition for shrinking, _ in group}), [row for _, row in group]
        ends = [int(capture.exchanges.response_end[row]) for row in lasts]
        since = min(shrinking.since for shrinking, _ in group)
        lasted = min(end - shrinking.since for end, (shrinking, _) in zip(ends, group, strict=True))
        nodes = f"node{'s' * (len(missing) > 1)} {some([str(node) for node in missing])}"
        text = f"By {moment(since)} {nodes} had left the in-sync replicas of {count(len(places), 'partition')}, and "
        text += f"{'was' if len(missing) == 1 else 'were'} not back {lasting(lasted)} later: "
        text += f"{some([partition_name(where) for where in places])}."
        yield Match(
            text,
            len(places),
            since,
            max(ends),
            {},
            {"partitions": str(len(places)), "nodes": ",".join(map(str, missing))},
            (max(lasts),),
            proven=False,
            cause="replicas that are down, or too slow to keep up",
        )


_NONE = np.zeros(0, np.int64)


def _shrunk(capture: CaptureFrame) -> Iterator[_Shrunk]:
    """In-sync sets that became smaller, until they grew or changed."""
    full: dict[tuple[str, int], tuple[frozenset[int], int]] = {}  # the last, and the smallest size
    open_: dict[tuple[str, int], _Shrunk] = {}
    current = Epochs()
    for row in root_causes.leaders_in_time(capture, ["time", "topic", "topic_id", "partition", "leader_epoch", "isr"]):
        if not row["isr"] or not row["topic"] or row["topic_id"] is None or row["topic"] in capture.remade:
            continue  # two clusters may have topics of one name
        if current.passed(row["topic"], row["topic_id"], row["partition"], row["leader_epoch"]):
            continue
        where, nodes = (row["topic"], row["partition"]), frozenset(row["isr"])
        before, least = full.get(where, (nodes, len(nodes)))
        missing: tuple[int, ...] = ()
        if len(nodes) < least and nodes < before:
            missing = tuple(sorted(before - nodes))
        else:  # while replicas are moved there are more of them, or others
            full[where] = nodes, min(least, len(nodes))
        was = open_.get(where)
        if was is not None and was.missing != missing:
            yield open_.pop(where)._replace(until=row["time"])
        if missing and where not in open_:
            open_[where] = _Shrunk(where, missing, row["time"], capture.span[1] + 1)
    yield from open_.values()


def _told_of(capture: CaptureFrame, topics: set[str], since: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows and times of Metadata answers that named these topics since then, by topic, in order of time."""
    rows = capture.of_api(api_keys.METADATA) if topics else _NONE
    rows = rows[(capture.exchanges.error[rows] == 0) & (capture.exchanges.response_end[rows] >= since)]
    known = {topic: number for number, topic in enumerate(topics)}
    matches = []
    for places, part in capture.table("exchanges").chosen(rows, ["topics"]):
        lists, text = part.column(0).combine_chunks(), dict(known)
        items = encode(lists.values, text)
        owners = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy().astype(np.int64)))
        is_listed = np.flatnonzero((items >= 0) & (items < len(topics)))
        matches.append((items[is_listed], rows[places[owners[is_listed]]]))
    if not matches:
        return {}
    topic, row = (np.concatenate(parts) for parts in zip(*matches, strict=True))
    order = np.argsort(capture.exchanges.response_end[row], kind="stable")
    topic, row, listed = topic[order], row[order], list(known)
    time = capture.exchanges.response_end[row]
    return {listed[int(topic[group_rows[0]])]: (row[group_rows], time[group_rows]) for group_rows in split(None, topic)}
