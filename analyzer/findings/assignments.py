"""Rules about assignments of a group that stood for a while: members without partitions, and uneven shares.

In: the tables `rebalances` and `groups`. Rules: what a rebalance led to stands from its end until the next begins, or a
member leaves or expires; a capture that lacks packets does not show how long, and so says nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame, once
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, listed, name
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.frame import NULL, codes_of

_PROTOCOLS: Final = ("classic", "consumer")
"""Groups in which a partition has one member. Connect gives out tasks, and streams groups theirs."""
_OF_STREAMS: Final = re.compile(r"-StreamThread-\d+-consumer$")
"""Client ids of Kafka Streams: without a partition of its own a member may keep a copy of a store."""


class _Standing(NamedTuple):
    """An assignment that stood. has: partitions by member; members: also those without any; times in us."""

    group: str
    members: list[str]
    has: dict[str, set[tuple[str, int]]]
    since: int
    until: int
    row: int | None

    @property
    def stood(self) -> int:
        return self.until - self.since


def _standing(capture: CaptureFrame, least_us: int, wanted: Any) -> Iterator[_Standing]:
    """Assignments that stood for `stood` us or longer and whose numbers of members and partitions are `wanted`, in
    order of groups, the longest first."""
    table = capture.table("rebalances")
    if not len(table) or capture.loses or not capture.unbroken.all():
        return
    group, groups = table.text("group_id")
    protocol, protocols = table.text("protocol")
    until = _until(capture)
    members, partitions = _sizes(capture)
    ended = table["ended"]
    long = (ended != NULL) & (until - ended >= least_us) & (partitions > 0) & (group >= 0)
    chosen = np.flatnonzero(long & arrow.among(protocol, codes_of(protocols, *_PROTOCOLS)))
    chosen = chosen[wanted(members[chosen], partitions[chosen])]
    chosen = chosen[np.lexsort((ended[chosen] - until[chosen], group[chosen]))]
    columns = ["protocol", "evidence", "members_after", "assignment_after"]
    for at, standing in zip(chosen.tolist(), table.rows(chosen, columns), strict=True):
        has: dict[str, set[tuple[str, int]]] = {}
        for part in standing["assignment_after"]:
            has.setdefault(part["member_id"], set()).add((part["topic"], part["partition"]))
        named = groups[group[at]]
        shown = standing["evidence"] or {}
        known = shown.get("connection") is not None and shown.get("exchange") is not None
        row = capture.row_of(shown["connection"], shown["exchange"]) if known else None
        # Of the newer protocol members say only what changes: what those had that were there before is not known.
        if standing["protocol"] == "classic" or all(
            (named, member) in _joined(capture) for member in standing["members_after"]
        ):
            yield _Standing(named, standing["members_after"], has, int(ended[at]), int(until[at]), row)


@once
def _until(capture: CaptureFrame) -> np.ndarray:
    """int64[rebalances]: when the next rebalance of the group began, or a member of it left or expired, after each."""
    table, events = capture.table("rebalances"), capture.table("groups")
    group, groups = table.text("group_id")
    ended = table["ended"]
    whose, _ = events.gather({}, {"group_id": {named: number for number, named in enumerate(groups)}}).text("group_id")
    kind, kinds = events.text("event")
    gone = arrow.among(kind, codes_of(kinds, "leave", "expired"))
    began = table["began"]
    ends = [began[began != NULL], events["time"][gone]]
    keys = np.concatenate([group, group[began != NULL], whose[gone]])
    times = np.concatenate([ended, *ends])
    is_end = np.arange(len(keys)) >= len(group)
    order = np.lexsort((is_end, times, keys))
    at_end = np.append(np.flatnonzero(is_end[order]), len(order))
    following = at_end[np.searchsorted(at_end, np.flatnonzero(~is_end[order]))]
    real_rows = order[~is_end[order]]
    there = following < len(order)
    following_row = order[np.where(there, following, 0)]
    there &= keys[following_row] == keys[real_rows]
    out = np.full(len(group), capture.span[1], np.int64)
    out[real_rows[there]] = times[following_row[there]]
    return out


@once
def _sizes(capture: CaptureFrame) -> list[np.ndarray]:
    """int64[rebalances] each: how many members and partitions there were after each."""
    sizes = []
    for column in ("members_after", "assignment_after"):
        read = capture.table("rebalances").read([column])
        chunks = [chunk for part in read for chunk in part.column(column).chunks]
        lengths = (np.diff(chunk.offsets.to_numpy()) for chunk in chunks)
        sizes.append(np.concatenate([np.zeros(0, np.int64), *lengths]))
    return sizes


@once
def _joined(capture: CaptureFrame) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """(client id, address) of members that were seen to join a group."""
    wanted = ["group_id", "member_id", "client_id", "client_ip", "event", "error"]
    joins = [row for row in capture.table("groups").every(wanted) if row["event"] == "join" and row["error"] is None]
    return {(row["group_id"], row["member_id"]): (row["client_id"], row["client_ip"]) for row in joins}


def _who(capture: CaptureFrame, group: str, member: str) -> dict[str, str | None]:
    client_id, client_ip = _joined(capture).get((group, member), (None, None))
    return {"client_id": client_id, "client_ip": client_ip}


def _named(capture: CaptureFrame, group: str, member: str) -> str:
    who = _who(capture, group, member)
    return client(who) if who["client_ip"] is not None else name(member)


def _is_streams(capture: CaptureFrame, standing: _Standing) -> bool:
    ids = (_who(capture, standing.group, member)["client_id"] or member for member in standing.members)
    return any(_OF_STREAMS.search(text) for text in ids)


_SHOWN: Final = 3


@rule(
    "groups",
    "unassigned-consumers",
    "note",
    "2 members of group g had nothing to read for 62.0 s: 5 members share 3 partitions (svc-d (10.0.0.4), svc-e "
    "(10.0.0.5)).",
    why="A partition has one member of a group. A minute is longer than members need that are replaced one after the "
    "other.",
    suppressed_when="It stood for less than a minute; the group's rebalance was not captured; packets are missing; "
    "Kafka Streams, Connect, share groups.",
    advice="More partitions, or fewer members; those that wait to take over are meant to be idle.",
    evidence="forged: three members and two partitions for 60 s, and for 59; a real group of two members and a "
    "partition",
    stood_s=60,
    by_clock=True,
)
def unassigned(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    reported = set()
    for standing in _standing(capture, int(at.stood_s * SECOND), lambda members, partitions: members > partitions):
        idle = [member for member in standing.members if member not in standing.has]
        partitions = set().union(*standing.has.values())
        if (
            standing.group in reported
            or not idle
            or len(standing.members) <= len(partitions)
            or _is_streams(capture, standing)
        ):
            continue
        reported.add(standing.group)
        shown = listed([_named(capture, standing.group, member) for member in idle[:_SHOWN]], len(idle))
        text = f"{count(len(idle), 'member')} of group {name(standing.group)} had nothing to read for "
        text += f"{lasting(standing.stood)}: "
        text += f"{count(len(standing.members), 'member')} share {count(len(partitions), 'partition')} ({shown})."
        yield Match(
            text,
            len(idle),
            standing.since,
            standing.until,
            _who(capture, standing.group, idle[0]),
            {"group_id": standing.group},
            () if standing.row is None else (standing.row,),
        )


@rule(
    "groups",
    "assignment-skew",
    "note",
    "Members of group g had from 10 to 20 partitions of the same 10 topics for 62.0 s: svc-a (10.0.0.4) the most, "
    "svc-b (10.0.0.5) the fewest.",
    why="Twice as many partitions, by two at least, are twice the work where partitions are alike. Java's range "
    "assignor, which stands first by default, divides each topic by itself, and the first members get what is left "
    "over of every one.",
    suppressed_when="They have partitions of other topics, as members may that read others; the rest as "
    "unassigned-consumers.",
    advice="An assignor that counts all topics: cooperative-sticky, round robin; the newer protocol's uniform.",
    evidence="forged: three partitions and one of the same topic, and two and one; of two topics",
    stood_s=60,
    apart=2,
    times=2,
    by_clock=True,
)
def skewed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    reported = set()
    for standing in _standing(
        capture, int(at.stood_s * SECOND), lambda members, partitions: (members > 1) & (partitions > 3)
    ):
        if standing.group in reported or _is_streams(capture, standing):
            continue
        topics = {member: frozenset(topic for topic, _ in has) for member, has in standing.has.items()}
        apart = []
        for kind in Counter(topics.values()):
            alike = sorted((len(has), member) for member, has in standing.has.items() if topics[member] == kind)
            apart.append((alike[-1][0] - alike[0][0], alike[-1], alike[0], len(kind)))
        _, (most, busy), (fewest, idle), many = max(apart)
        if most - fewest < at.apart or most < at.times * fewest:
            continue
        reported.add(standing.group)
        text = f"Members of group {name(standing.group)} had from {fewest} to {most} partitions of the same "
        text += f"{'topic' if many == 1 else f'{many} topics'} for {lasting(standing.stood)}: "
        text += f"{_named(capture, standing.group, busy)} the most, {_named(capture, standing.group, idle)} the fewest."
        yield Match(
            text,
            most - fewest,
            standing.since,
            standing.until,
            _who(capture, standing.group, busy),
            {"group_id": standing.group},
            () if standing.row is None else (standing.row,),
        )
