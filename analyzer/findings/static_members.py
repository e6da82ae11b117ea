"""Static members of groups (KIP-345): one name, several processes."""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings.capture import SECOND, CaptureFrame
from kwire.analyzer.findings.error_answers import claim
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.runs import runs
from kwire.analyzer.findings.wording import client, count, listed, moment, name
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.grouping import busiest_window, split
from kwire.analyzer.protocol import api_keys

_STATIC = claim(
    (
        api_keys.JOIN_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.HEARTBEAT,
        api_keys.LEAVE_GROUP,
        api_keys.OFFSET_COMMIT,
        api_keys.TXN_OFFSET_COMMIT,
        api_keys.OFFSET_FETCH,
        api_keys.CONSUMER_GROUP_HEARTBEAT,
    ),
    (82,),
)


@rule(
    "groups",
    "instance-id-duplicate",
    "error",
    "Static member i-1 of group g is 2 clients at once, svc-a (10.0.0.4), svc-b (10.0.0.5): FENCED_INSTANCE_ID (82), "
    "3 times, 10:01:03 to 10:01:09.",
    why="The coordinator answers so to a member whose group.instance.id another one has taken: the first was still "
    "alive. Where it happens to two members within ten minutes, they take it from each other: who lost it is started "
    "again within five, Kubernetes' longest back-off.",
    suppressed_when="Only one member was fenced, or each later than that after the one before (a warning): at a "
    "restart the old process may still have been there.",
    advice="A group.instance.id for each process: from the host's or the pod's name, not from a file that all share.",
    evidence="forged: two members fenced in turn, and one; two within ten minutes, and an hour apart; a real group of "
    "two members of one name",
    often=2,
    window_s=600,
)
def instance_twice(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    some = [run for run in runs(capture) if _STATIC(run)]
    if not some:
        return
    joined = _joined_as(capture)
    instance = {(group, who): named for (group, named), some in joined.items() for _, who, _ in some}
    member, members = capture.table("exchanges").text("member_id")
    fenced: dict[tuple[str | None, str | None], list[tuple[str, np.ndarray]]] = defaultdict(list)
    for run in some:
        for group_rows in split(run.rows, member[run.rows]):
            who = members[member[group_rows[0]]] if member[group_rows[0]] >= 0 else ""
            matched = _OF_STATIC.fullmatch(who)  # where its join was not captured
            named = instance.get((run.thing.group, who), matched.group(1) if matched else None)
            fenced[run.thing.group, named].append((who, group_rows))
    for (group, named), fencings in fenced.items():
        rows = arrow.distinct(np.concatenate([group_rows for _, group_rows in fencings]))
        clients = {capture.clients[client_number] for client_number in arrow.distinct(capture.client[rows]).tolist()}
        when = capture.exchanges.response_end[rows]
        if (group, named) in joined:
            clients |= _takers(
                joined[group, named],
                [(who, capture.exchanges.response_end[group_rows]) for who, group_rows in fencings],
            )
        who_ = capture.who(int(capture.client[rows[0]]))
        if len(clients) > 1 and named is not None:
            shown = sorted(client({"client_id": id_, "client_ip": ip}) for ip, id_ in clients)
            text = f"Static member {name(named)} of group {name(group)} is {count(len(clients), 'client')} at once, "
            text += f"{listed(shown[:3], len(shown))}: "
        else:
            text = f"{client(who_)} lost its place in group {name(group)}: another member has its static name"
            text += (f", {name(named)}" if named is not None else "") + ": "
        text += f"FENCED_INSTANCE_ID (82), {count(len(rows), 'time')}, {moment(int(when.min()))}"
        text += f" to {moment(int(when.max()))}." if len(rows) > 1 else "."
        firsts: dict[str, int] = {}
        for who, group_rows in fencings:
            first = int(capture.exchanges.response_end[group_rows].min())
            firsts[who] = min(first, firsts.get(who, first))
        often = busiest_window(np.sort([*firsts.values()]), int(at.window_s * SECOND))[0] >= at.often
        yield Match(
            text,
            len(rows),
            int(when.min()),
            int(when.max()),
            who_,
            {"group_id": group, "group_instance_id": named},
            tuple(rows[[0, -1, -1]].tolist()),
            severity=None if often else "warning",
            cause="several members of one group.instance.id",
            proven=True,
        )


_OF_STATIC = re.compile(r"(.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Member ids that a coordinator made for static members: their names, and a UUID."""

_Client = tuple[str, str | None]
"""Address, client id."""


def _joined_as(capture: CaptureFrame) -> dict[tuple[str | None, str | None], list[tuple[int, str, _Client]]]:
    """Joins by group and static name, in order of time: (time, member, client)."""
    wanted = ["time", "group_id", "member_id", "group_instance_id", "client_id", "client_ip", "event", "error"]
    joins: dict[tuple[str | None, str | None], list[tuple[int, str, _Client]]] = defaultdict(list)
    for row in capture.table("groups").every(wanted):
        named = row["group_instance_id"]
        if named is not None and row["event"] == "join" and row["error"] is None and row["member_id"]:
            join = row["time"], row["member_id"], (row["client_ip"], row["client_id"])
            joins[row["group_id"], named].append(join)
    return joins


def _takers(joined: list[tuple[int, str, _Client]], fenced: list[tuple[str, np.ndarray]]) -> set[_Client]:
    """Clients that held the name of members when these were told that they had lost it."""
    times = [time for time, _, _ in joined]
    takers = set()
    for who, when in fenced:
        before = joined[: bisect.bisect_right(times, int(when.min()))]
        takers |= {taker for _, other, taker in before[-1:] if other != who}
    return takers
