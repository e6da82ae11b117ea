"""Who has which partitions of a group, where that stood for a while: members without any, and shares that differ much.

In: the tables `rebalances` and `groups`. Rules: what a rebalance led to stands from its end until the next begins, or a
member leaves or expires; a capture that lacks packets does not show how long, and so says nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analyzer.findings.capture import SECOND, CaptureFrame, once
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.wording import client, count, lasting, listed, name
from analyzer.frame import arrow
from analyzer.frame.frame import NULL, codes_of

_PROTOCOLS: Final = ("classic", "consumer")
"""Groups in which a partition has one member. Connect gives out tasks, and streams groups theirs."""
_OF_STREAMS: Final = re.compile(r"-StreamThread-\d+-consumer$")
"""Client ids of Kafka Streams: without a partition of its own a member may keep a copy of a store."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """An assignment that stood. has: by member its partitions; members: also those without any; us."""

    group: str
    members: list[str]
    has: dict[str, set[tuple[str, int]]]
    since: int
    until: int
    row: int | None

    @property
    def stood(self) -> int:
        return self.until - self.since


def _standing(seen: CaptureFrame, least_us: int, wanted: Any) -> Iterator[_Standing]:
    """Assignments that stood for so long, of those with as many members and partitions as `wanted` (arrays of both)
    says, in order of groups, the one that stood for longest first."""
    table = seen.table("rebalances")
    if not len(table) or seen.loses or not seen.unbroken.all():
        return
    group, groups = table.text("group_id")
    protocol, protocols = table.text("protocol")
    until = _until(seen)
    members, partitions = _sizes(seen)
    ended = table["ended"]
    long = (ended != NULL) & (until - ended >= least_us) & (partitions > 0) & (group >= 0)
    chosen = np.flatnonzero(long & arrow.among(protocol, codes_of(protocols, *_PROTOCOLS)))
    chosen = chosen[wanted(members[chosen], partitions[chosen])]
    chosen = chosen[np.lexsort((ended[chosen] - until[chosen], group[chosen]))]
    columns = ["protocol", "evidence", "members_after", "assignment_after"]
    for at, one in zip(chosen.tolist(), table.rows(chosen, columns), strict=True):
        has: dict[str, set[tuple[str, int]]] = {}
        for part in one["assignment_after"]:
            has.setdefault(part["member_id"], set()).add((part["topic"], part["partition"]))
        named = groups[group[at]]
        shown = one["evidence"] or {}
        known = shown.get("connection") is not None and shown.get("exchange") is not None
        row = seen.row_of(shown["connection"], shown["exchange"]) if known else None
        # Of the newer protocol members say only what changes: what those had that were there before is not known.
        if one["protocol"] == "classic" or all((named, member) in _joined(seen) for member in one["members_after"]):
            yield _Standing(named, one["members_after"], has, int(ended[at]), int(until[at]), row)


@once
def _until(seen: CaptureFrame) -> np.ndarray:
    """int64[rebalances]: when the next rebalance of the group began, or a member of it left or expired, after each."""
    table, events = seen.table("rebalances"), seen.table("groups")
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
    asked = order[~is_end[order]]
    there = following < len(order)
    found = order[np.where(there, following, 0)]
    there &= keys[found] == keys[asked]
    out = np.full(len(group), seen.span[1], np.int64)
    out[asked[there]] = times[found[there]]
    return out


@once
def _sizes(seen: CaptureFrame) -> list[np.ndarray]:
    """int64[rebalances] each: how many members and partitions there were after each."""
    sizes = []
    for column in ("members_after", "assignment_after"):
        read = seen.table("rebalances").read([column])
        chunks = [chunk for part in read for chunk in part.column(column).chunks]
        lengths = (np.diff(chunk.offsets.to_numpy()) for chunk in chunks)
        sizes.append(np.concatenate([np.zeros(0, np.int64), *lengths]))
    return sizes


@once
def _joined(seen: CaptureFrame) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """(client id, address) of members that were seen to join a group."""
    wanted = ["group_id", "member_id", "client_id", "client_ip", "event", "error"]
    told = [row for row in seen.table("groups").every(wanted) if row["event"] == "join" and row["error"] is None]
    return {(row["group_id"], row["member_id"]): (row["client_id"], row["client_ip"]) for row in told}


def _who(seen: CaptureFrame, group: str, member: str) -> dict[str, str | None]:
    client_id, client_ip = _joined(seen).get((group, member), (None, None))
    return {"client_id": client_id, "client_ip": client_ip}


def _named(seen: CaptureFrame, group: str, member: str) -> str:
    who = _who(seen, group, member)
    return client(who) if who["client_ip"] is not None else name(member)


def _is_streams(seen: CaptureFrame, one: _Standing) -> bool:
    ids = (_who(seen, one.group, member)["client_id"] or member for member in one.members)
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
    unless="It stood for less than a minute; the group's rebalance was not captured; packets are missing; Kafka "
    "Streams, Connect, share groups.",
    advice="More partitions, or fewer members; those that wait to take over are meant to be idle.",
    judge="forged: three members and two partitions for 60 s, and for 59; a real group of two members and a partition",
    stood_s=60,
    by_clock=True,
)
def unassigned(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    told = set()
    for one in _standing(seen, int(at.stood_s * SECOND), lambda members, partitions: members > partitions):
        idle = [member for member in one.members if member not in one.has]
        partitions = set().union(*one.has.values())
        if one.group in told or not idle or len(one.members) <= len(partitions) or _is_streams(seen, one):
            continue
        told.add(one.group)
        shown = listed([_named(seen, one.group, member) for member in idle[:_SHOWN]], len(idle))
        text = f"{count(len(idle), 'member')} of group {name(one.group)} had nothing to read for {lasting(one.stood)}: "
        text += f"{count(len(one.members), 'member')} share {count(len(partitions), 'partition')} ({shown})."
        yield Found(
            text,
            len(idle),
            one.since,
            one.until,
            _who(seen, one.group, idle[0]),
            {"group_id": one.group},
            () if one.row is None else (one.row,),
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
    unless="They have partitions of other topics, as members may that read others; the rest as unassigned-consumers.",
    advice="An assignor that counts all topics: cooperative-sticky, round robin; the newer protocol's uniform.",
    judge="forged: three partitions and one of the same topic, and two and one; of two topics",
    stood_s=60,
    apart=2,
    times=2,
    by_clock=True,
)
def skewed(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    told = set()
    for one in _standing(seen, int(at.stood_s * SECOND), lambda members, partitions: (members > 1) & (partitions > 3)):
        if one.group in told or _is_streams(seen, one):
            continue
        topics = {member: frozenset(topic for topic, _ in has) for member, has in one.has.items()}
        apart = []
        for kind in Counter(topics.values()):
            alike = sorted((len(has), member) for member, has in one.has.items() if topics[member] == kind)
            apart.append((alike[-1][0] - alike[0][0], alike[-1], alike[0], len(kind)))
        _, (most, busy), (fewest, idle), many = max(apart)
        if most - fewest < at.apart or most < at.times * fewest:
            continue
        told.add(one.group)
        text = f"Members of group {name(one.group)} had from {fewest} to {most} partitions of the same "
        text += f"{'topic' if many == 1 else f'{many} topics'} for {lasting(one.stood)}: "
        text += f"{_named(seen, one.group, busy)} the most, {_named(seen, one.group, idle)} the fewest."
        yield Found(
            text,
            most - fewest,
            one.since,
            one.until,
            _who(seen, one.group, busy),
            {"group_id": one.group},
            () if one.row is None else (one.row,),
        )
