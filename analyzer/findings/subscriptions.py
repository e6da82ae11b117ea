"""Groups and their topics: two applications under one name, new partitions that nobody reads, a new name for a group.

In: the tables `groups`, `rebalances`, `leaders` and `offsets`, and fetched topic-partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame, once
from kwire.analyzer.findings.fetched import of_readers, reads
from kwire.analyzer.findings.group_reads import application, groups_of_fetches
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, listed, name, some
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import rows_by_key
from kwire.analyzer.protocol import api_keys

_PROTOCOLS: Final = ("classic", "consumer")
"""Groups in which a partition has one member. Connect gives out tasks, and the members of streams groups and of share
groups read what they are given."""


@dataclass(slots=True)
class _Member:
    """A member of a group: its subscriptions, and from when to when it was there, us. row: of its first join."""

    who: tuple[str, str | None]
    topics: frozenset[str]
    since: int
    until: int
    row: int | None


@dataclass(slots=True)
class _Application:
    """Members whose subscriptions have topics in common."""

    topics: set[str] = field(default_factory=set)
    members: list[_Member] = field(default_factory=list)

    @property
    def names(self) -> set[str | None]:
        return {application(member.who[1]) for member in self.members}

    @property
    def addresses(self) -> set[str]:
        return {member.who[0] for member in self.members}


def _members(capture: CaptureFrame) -> dict[str, list[_Member]]:
    """Members with subscriptions by group, in order of their joins. A member that subscribes anew counts as it was
    last."""
    wanted = ["time", "group_id", "protocol", "event", "member_id", "client_ip", "client_id", "subscribed", "error"]
    members: dict[str, dict[str, _Member]] = defaultdict(dict)
    events = capture.table("groups").every([*wanted, "connection", "exchange"])
    for row in sorted(events, key=lambda row: row["time"]):
        if row["error"] is not None or row["protocol"] not in _PROTOCOLS or not row["member_id"]:
            continue
        own = members[row["group_id"]]
        known = own.get(row["member_id"])
        if row["subscribed"]:
            topics = frozenset(row["subscribed"])
            if known is None:
                shown = row["connection"] is not None and row["exchange"] is not None
                at = capture.row_of(row["connection"], row["exchange"]) if shown else None
                who = row["client_ip"], row["client_id"]
                own[row["member_id"]] = _Member(who, topics, row["time"], capture.span[1], at)
            else:
                known.topics = topics
        elif row["event"] in ("leave", "expired") and known is not None:
            known.until = row["time"]
    return {group: [*own.values()] for group, own in members.items()}


def _applications(members: list[_Member]) -> list[_Application]:
    """Divide members so that those who subscribe to a common topic are together, in order of their first joins."""
    out: list[_Application] = []
    for member in members:
        together = [entry for entry in out if entry.topics & member.topics]
        first = together[0] if together else _Application()
        for other in together[1:]:
            first.topics |= other.topics
            first.members += other.members
            out.remove(other)
        first.topics |= member.topics
        first.members.append(member)
        if not together:
            out.append(first)
    return out


def _common(left: _Application, right: _Application) -> int:
    """How long members of both were there at the same time, us, at most of any two."""
    return max(min(a.until, b.until) - max(a.since, b.since) for a in left.members for b in right.members)


@rule(
    "groups",
    "group-mixed",
    "warning",
    "Group sender has members of 2 applications: email-sender (librdkafka 2.16.0, 10.0.0.4) reads emails, sms-sender "
    "(librdkafka 2.16.0, 10.0.0.5) reads sms. Each that comes or goes stops the other.",
    why="All members of a group are rebalanced together, whatever they subscribe to. Members without any topic in "
    "common, of other names, are two applications; half a minute side by side tells them where names do not.",
    suppressed_when="They have a topic in common, directly or by way of others, as during a deployment that adds one; "
    "they were never there at the same time; one application's name without numbers, and one host or a shorter time "
    "side by side: several consumers of one process, or a deployment; Kafka Connect, streams and share groups; a "
    "subscription by pattern that the broker resolves. A note where other names stand for one host and one software.",
    advice="A group.id for each application.",
    evidence="dup-group-id; forged: two applications, and two with a topic in common; one application on one host",
    together_s=30,
    by_clock=True,
)
def mixed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if not len(capture.table("groups")):
        return
    numbers = {who: number for number, who in enumerate(capture.clients)}
    rebalanced: dict[str, int] = defaultdict(int)
    for row in capture.table("rebalances").every(["group_id"]):
        rebalanced[row["group_id"]] += 1
    for group, members in _members(capture).items():
        apps = _applications(members)
        if len(apps) < 2:
            continue
        side_by_side = [
            (left, right)
            for place, left in enumerate(apps)
            for right in apps[place + 1 :]
            if _are_two(left, right, int(at.together_s * SECOND))
        ]
        if not side_by_side:
            continue
        apart = [entry for entry in apps if any(entry in pair for pair in side_by_side)]
        firsts = [entry.members[0] for entry in apart]
        clients_named = [
            capture.who(numbers[first.who]) if first.who in numbers else _who(first.who) for first in firsts
        ]
        shown = [
            f"{client(who)} reads {some(sorted(entry.topics))}" for who, entry in zip(clients_named, apart, strict=True)
        ]
        text = (
            f"Group {name(group)} has members of {count(len(apart), 'application')}: {listed(shown[:3], len(shown))}. "
        )
        text += "Each that comes or goes stops the other" + ("s" if len(apart) > 2 else "") + "."
        if rebalanced[group] > 1:
            text += f" It rebalanced {count(rebalanced[group], 'time')}."
        one_host = all(left.addresses == right.addresses for left, right in side_by_side)
        alike = one_host and len({who.get("software") for who in clients_named}) == 1
        rows = [first.row for first in firsts if first.row is not None]
        since = min(max(left.members[0].since, right.members[0].since) for left, right in side_by_side)
        yield Match(
            text,
            sum(len(entry.members) for entry in apart),
            since,
            max(member.until for entry in apart for member in entry.members),
            clients_named[0],
            {"group_id": group, "topic": ",".join(sorted(topic for entry in apart for topic in entry.topics)[:20])},
            (rows[0], rows[-1], rows[-1]) if rows else (),
            severity="note" if alike else None,
            cause="several applications with one group.id",
            proven=not alike,
        )


def _are_two(left: _Application, right: _Application, together_us: int) -> bool:
    """Whether two sets of members are two applications that were there at the same time."""
    common = _common(left, right)
    if common <= 0:
        return False
    names = left.names & right.names
    if not names:
        return None not in left.names | right.names or left.addresses != right.addresses
    return left.addresses.isdisjoint(right.addresses) and common >= together_us


def _who(who: tuple[str, str | None]) -> dict[str, Any]:
    return {"client_ip": who[0], "client_id": who[1]}


# ---------------------------------------------------------------------------------------------------- new partitions


@once
def _begun(capture: CaptureFrame) -> dict[str, dict[int, int]]:
    """When each partition of a topic was first listed by Metadata, us; of topics that grew while the capture ran."""
    listed_at: dict[str, dict[int, int]] = defaultdict(dict)
    for row in capture.table("leaders").every(["time", "topic", "topic_id", "partition", "isr"]):
        if row["isr"] is None:
            continue  # a redirect names one partition
        topic = row["topic"] or capture.topic_names.get(row["topic_id"], row["topic_id"])
        known = listed_at[topic]
        known[row["partition"]] = min(known.get(row["partition"], row["time"]), row["time"])
    out = {}
    for topic, known in listed_at.items():
        first = min(known.values())
        if topic not in capture.remade and any(time > first for time in known.values()):
            out[topic] = known
    return out


@rule(
    "fetch",
    "unread-partitions",
    "warning",
    "Group cart has not read carts 2 to 5 for 13.7 s: partitions that were added. 541 records wait there.",
    why="A group learns of new partitions when its leader refreshes its metadata (metadata.max.age.ms, 5 min by "
    "default), and rebalances then. Five seconds are more than a refresh that was caused takes.",
    suppressed_when="A member has them by then; nothing was written to them; the group does not read the topic's other "
    "partitions any more; it rebalanced after they were there, and its whole assignment was not captured.",
    advice="Restart a member, or lower metadata.max.age.ms before adding partitions. With auto.offset.reset=latest "
    "what was written until then is never read: set it to earliest, or commit 0 for the new ones first.",
    evidence="partitions-added; forged: partitions that nobody reads for 5 s, and for 4; a group that takes them up",
    unread_s=5,
    by_clock=True,
)
def unread(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    begun = _begun(capture)
    if not begun or not len(capture.groups[1]):
        return
    ends, read = _ends(capture), reads(capture)
    group = spill.take(groups_of_fetches(capture), read.owner)
    topics = [topic for topic, _ in capture.topic_partitions]
    wanted = np.array([topic in begun for topic in topics], bool)
    rows = spill.where(
        len(group),
        lambda block: (group[block] >= 0) & wanted[read.topic_partition[block]] & (read.time[block] != NULL),
    )
    by_group: dict[tuple[int, str], list[int]] = defaultdict(list)
    for key, some_ in rows_by_key(rows, group[rows], read.topic_partition[rows]).items():
        by_group[key[0], topics[key[1]]] += some_.tolist()
    for (number, topic), own in by_group.items():
        yield from _unread(capture, capture.groups[1][number], topic, np.array(sorted(own), np.int64), ends, at)


def _unread(
    capture: CaptureFrame, group: str, topic: str, rows: np.ndarray, ends: dict[tuple[str, int], int], at: Limits
) -> Iterator[Match]:
    """The match of new partitions of a topic that a group does not read. rows: its reads of the topic."""
    read, begun = reads(capture), _begun(capture)[topic]
    until, first = int(read.time[rows[-1]]), min(begun.values())
    fetched = {capture.topic_partitions[number][1] for number in arrow.distinct(read.topic_partition[rows]).tolist()}
    assigned, last = _assigned(capture, group, topic)
    missing = sorted(
        partition
        for partition, time in begun.items()
        if time > first
        and until - time >= at.unread_s * SECOND
        and partition not in fetched | assigned
        and ends.get((topic, partition), 0) > 0
    )
    if not missing:
        return
    since = min(begun[partition] for partition in missing)
    old = {partition for partition, time in begun.items() if time == first}
    if last > since and not old <= assigned:
        return  # it may have taken them up by members that were not captured
    waiting = sum(ends[topic, partition] for partition in missing)
    whose = int(capture.client[read.owner[rows[-1]]])
    text = f"Group {name(group)} has not read {name(topic)} {_span(missing)} for {lasting(until - since)}: "
    text += f"{'partitions that were' if len(missing) > 1 else 'a partition that was'} added. "
    text += f"{count(waiting, 'record')} {'waits' if waiting == 1 else 'wait'} there."
    yield Match(
        text,
        waiting,
        since,
        until,
        capture.who(whose),
        {"group_id": group, "topic": topic, "partition": ",".join(map(str, missing[:20]))},
        (int(read.owner[rows[0]]), int(read.owner[rows[-1]]), int(read.owner[rows[-1]])),
        cause="the group has not refreshed its metadata",
        proven=False,
    )


def _span(partitions: list[int]) -> str:
    """`2 to 5`, or `2, 4, 7`."""
    if len(partitions) > 1 and partitions == [*range(partitions[0], partitions[-1] + 1)]:
        return f"{partitions[0]} to {partitions[-1]}"
    return some([str(partition) for partition in partitions], 8)


def _assigned(capture: CaptureFrame, group: str, topic: str) -> tuple[set[int], int]:
    """Partitions of a topic that the last rebalance of a group gave to a member, and when it ended, us."""
    last: tuple[int, set[int]] = (NULL, set())
    for row in capture.table("rebalances").every(["group_id", "began", "ended", "assignment_after"]):
        ended = row["ended"] or row["began"] or NULL
        if row["group_id"] == group and ended > last[0]:
            last = ended, {part["partition"] for part in row["assignment_after"] if part["topic"] == topic}
    return last[1], last[0]


@once
def _ends(capture: CaptureFrame) -> dict[tuple[str, int], int]:
    """Offsets written to each topic-partition while the capture ran: from the first that Produce was given on."""
    table, parts = capture.table("partitions"), capture.partitions
    offset, records = table.together(("offset", "record_count"))

    def are_written(block: slice) -> Any:
        of_produce = capture.api_of(parts.owner[block]) == api_keys.PRODUCE
        return of_produce & (parts.error[block] == 0) & (offset[block] >= 0)

    rows = spill.where(len(offset), are_written)
    out: dict[tuple[str, int], int] = {}
    for (number,), some_ in rows_by_key(rows, parts.topic_partition[rows]).items():
        end = int((offset[some_] + np.maximum(records[some_], 1)).max())
        out[capture.topic_partitions[number]] = end - int(offset[some_].min())
    return out


# ------------------------------------------------------------------------------------------------ a group's new name


@rule(
    "groups",
    "group-reads-again",
    "note",
    "Group posting-v2 of poster (10.0.0.4) began at the start of ledger: it reads 5,014 records again that lie before "
    "where group posting of the same client stood.",
    why="A group.id that is new has no offsets: with auto.offset.reset=earliest it begins where the log does. Two "
    "hundred records are more than a trial.",
    suppressed_when="The other group went on to read (then it is another application, or both versions run); clients "
    "of other names and, where the name is a library's, of other hosts; the new group had offsets; fewer records.",
    advice="Where it was not meant: the old group.id, or offsets of the old group for the new one before it starts "
    "(kafka-consumer-groups --reset-offsets). See that what it does twice does no harm.",
    evidence="replay-from-start; forged: 200 records again, and 199; another client; a group that goes on",
    records=200,
    gone_s=10,
    by_clock=True,
)
def again(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if len(capture.groups[1]) < 2:
        return
    applications = [_application(capture, client_) for client_ in range(len(capture.clients))]
    by_place: dict[tuple[int, tuple[str | None, str | None]], list[_Stay]] = defaultdict(list)
    for stay in _stays(capture):
        by_place[stay.where, applications[stay.client]].append(stay)
    counted: dict[tuple[int, int, int, str], list[tuple[int, _Stay]]] = defaultdict(list)
    for some_ in by_place.values():
        by_group, began, ended = (
            np.array([getattr(stay, name) for stay in some_]) for name in ("group", "since", "until")
        )
        for stay in some_ if len(set(by_group.tolist())) > 1 else ():
            if not stay.from_start:
                continue
            gone = (by_group != stay.group) & (began < stay.since) & (ended < stay.since + at.gone_s * SECOND)
            if gone.any():
                before = np.flatnonzero(gone)
                last = some_[before[ended[before].argmax()]]
                repeated = min(stay.reached, last.reached) - stay.first
                topic = capture.topic_partitions[stay.where][0]
                if repeated > 0:
                    counted[stay.group, last.group, stay.client, topic].append((repeated, stay))
    for (group, earlier, client_, topic), amounts in counted.items():
        records = sum(repeated for repeated, _ in amounts)
        if records < at.records:
            continue
        named = capture.groups[1]
        rows = [stay.row for _, stay in amounts]
        text = f"Group {name(named[group])} of {client(capture.who(client_))} began at the start of {name(topic)}: it "
        text += f"reads {count(records, 'record')} again that lie before where group {name(named[earlier])} of the "
        yield Match(
            f"{text}same client stood.",
            records,
            min(stay.since for _, stay in amounts),
            max(stay.until for _, stay in amounts),
            capture.who(client_),
            {
                "group_id": named[group],
                "earlier_group_id": named[earlier],
                "topic": topic,
                "partition": ",".join(str(capture.topic_partitions[stay.where][1]) for _, stay in amounts[:20]),
            },
            (rows[0], rows[0], rows[-1]),
            cause="a new group.id, without offsets",
            proven=True,
        )


class _Stay(NamedTuple):
    """Reads of a topic-partition (a number) by a client for one group: offsets first and reached, times in us.
    row: the first exchange."""

    where: int
    group: int
    client: int
    first: int
    reached: int
    from_start: bool
    since: int
    until: int
    row: int


def _stays(capture: CaptureFrame) -> list[_Stay]:
    """Reads of topic-partitions by client and group."""
    read = reads(capture)
    group = groups_of_fetches(capture)
    rows = spill.where(len(read.owner), lambda block: group[read.owner[block]] >= 0)
    if not len(rows):
        return []
    position, start = read.position(), capture.table("partitions")["log_start_offset"]
    had = _stored(capture)
    out = []
    for some_ in of_readers(capture, rows):
        for (number,), own in rows_by_key(some_, group[read.owner[some_]]).items():
            with_offset = own[read.at[own] != NULL]
            if not len(with_offset):
                continue
            where, row = int(read.topic_partition[own[0]]), int(with_offset[0])
            first, begins = int(read.at[row]), start[read.part[own]]
            begins = begins[begins >= 0]
            reached = int(position[own].max())
            named = capture.groups[1][number], *capture.topic_partitions[where]
            at_start = first <= (int(begins.min()) if len(begins) else 0) and named not in had
            out.append(
                _Stay(
                    where,
                    number,
                    int(capture.client[read.owner[row]]),
                    first,
                    max(reached, first),
                    at_start,
                    int(read.time[own[0]]),
                    int(read.time[own[-1]]),
                    int(read.owner[row]),
                )
            )
    return out


def _stored(capture: CaptureFrame) -> set[tuple[str, str, int]]:
    """Groups and topic-partitions for which OffsetFetch gave an offset."""
    rows = capture.of_api(api_keys.OFFSET_FETCH)
    if not len(rows):
        return set()
    parts, offset = capture.partitions, capture.table("partitions")["offset"]
    with_offset = spill.where(len(offset), lambda block: (offset[block] >= 0) & arrow.among(parts.owner[block], rows))
    numbers, named = capture.groups
    out = set()
    for owner, where in zip(
        parts.owner[with_offset].tolist(), parts.topic_partition[with_offset].tolist(), strict=True
    ):
        if numbers[owner] >= 0:
            out.add((named[numbers[owner]], *capture.topic_partitions[where]))
    return out


def _application(capture: CaptureFrame, client_: int) -> tuple[str | None, str | None]:
    """The name that clients of one application share, or their host where the name says nothing."""
    host, client_id = capture.clients[client_]
    named = application(client_id)
    return named, host if named is None else None
