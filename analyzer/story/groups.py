"""Tell what happened in groups: members that came and went, reasons of rebalances, and how long members stopped.

In: the tables `groups` and `rebalances`. Out: events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from kwire.analyzer.story.events import WHY, Event, Row, between, count, of_group, places, some, span, who, within
from kwire.analyzer.story.sources import Source

_WEIGHT = {
    "join": 5,
    "sync": 1,
    "heartbeat_failed": 8,
    "leave": 10,
    "expired": 58,
    "commit_failed": 40,
    "coordinator_moved": 36,
    "coordinator_refused": 40,
}

_TRIGGERS = {
    "join": "{who} joined",
    "leave": "{who} left",
    "expired": "{who} was not heard of any more and was thrown out",
    "metadata": "the topics that it reads, or their partitions, changed",
    "coordinator": "its coordinator moved",
    "unknown": "",
}


def events(source: Source) -> Iterator[Event]:
    """Events of consumer groups."""
    rows = source.rows("groups")
    clients = {row["member_id"]: row["client_id"] for row in rows if row["member_id"] and row["client_id"]}
    runs = _once(rows)
    for row, number, last in runs:
        yield _event(row, number, last)
    by_group: dict[str, list[Row]] = defaultdict(list)
    for row in source.rows("rebalances"):
        by_group[row["group_id"]].append(row)
        yield from _rebalance(row, clients)
    for group, rebalances in by_group.items():
        yield from _all(group, rebalances, clients)


def _once(rows: list[Row]) -> list[tuple[Row, int, Row]]:
    """(first, number, last) of successive events that differ only in time."""
    runs: list[tuple[Row, int, Row]] = []
    at: dict[tuple[Any, ...], int] = {}
    for row in sorted(rows, key=lambda row: row["time"]):
        key = tuple(row[name] for name in ("group_id", "event", "member_id", "client_id", "generation", "error"))
        before = at.get(key)
        if before is not None and row["error"] is not None:
            first, number, _ = runs[before]
            runs[before] = first, number + 1, row
        else:
            at[key] = len(runs)
            runs.append((row, 1, row))
    return runs


def _event(row: Row, number: int, last: Row) -> Event:
    group, failed = of_group(row["group_id"]), row["error"]
    in_generation = f", generation {row['generation']}" if row["generation"] not in (None, -1) else ""
    why = f"{failed}" + (f": {WHY[failed]}" if failed in WHY else "")
    text = {
        "join": f"joined {group}{in_generation}",
        "sync": f"got its assignment in {group}{in_generation}",
        "heartbeat_failed": f"was told in a heartbeat to {group}",
        "leave": f"left {group}",
        "expired": f"was thrown out of {group}: its heartbeats had stopped",
        "commit_failed": f"could not commit for {group}",
        "coordinator_moved": f"found that the coordinator of {group} has moved",
        "coordinator_refused": f"asked for the coordinator of {group}",
    }[row["event"]]
    if failed is not None:
        tried = {
            "join": f"tried to join {group}",
            "sync": f"asked {group} for its assignment",
            "leave": f"tried to leave {group}",
        }
        text = f"{tried.get(row['event'], text)}: {why}"
    if row["group_instance_id"]:
        text += f" (static member {row['group_instance_id']})"
    if number > 1:
        text += f", {number:,} times{within(row['time'], last['time'])}"
    normal = failed in ("MEMBER_ID_REQUIRED", "REBALANCE_IN_PROGRESS")
    weight = 2 if normal else _WEIGHT[row["event"]] + (20 if failed and row["event"] in ("join", "sync") else 0)
    return Event(
        row["time"],
        row["event"],
        who(row["client_id"], row["client_ip"]),
        text,
        weight,
        row["event"] != "expired",
        group_id=row["group_id"],
        client_id=row["client_id"],
        connection=row["connection"],
        exchange=row["exchange"],
        reply=row["reply"],
    )


def _cause(row: Row, clients: dict[str, str]) -> str:
    member = row["trigger_member"]
    if (row["trigger"], row["protocol"]) == ("metadata", "connect"):
        return "its connectors or their tasks changed"
    cause = _TRIGGERS.get(row["trigger"] or "unknown", "")
    return cause.format(who=clients.get(member, member) if member else "a member")


def _stopped(row: Row) -> int:
    """The longest stop of a member, us."""
    return max((stop["stopped_us"] or 0 for stop in row["stopped"] or ()), default=0)


def _rebalance(row: Row, clients: dict[str, str]) -> Iterator[Event]:
    cause = _cause(row, clients)
    evidence = row["evidence"] or {}
    proven = bool(cause) and evidence.get("connection") is not None
    because = f": {cause}" if proven else f": probably {cause}" if cause else ""
    generation = f" to generation {row['generation']}" if row["generation"] is not None else ""
    before, after = row["members_before"] or [], row["members_after"] or []
    parts = [f"rebalanced{generation}{because}"]
    if before:
        parts.append(f"{count(len(before), 'member')} before, {len(after)} after")
    elif after:  # who was in it before may have been said before the capture began
        parts.append(f"{count(len(after), 'member')} after")
    if row["ended"] is not None and row["began"] is not None and row["ended"] >= row["began"]:
        parts.append(f"took {between(row['began'], row['ended'])}")
    if _stopped(row):
        parts.append(f"no record reached a member for up to {span(_stopped(row))}")
    moved = _moved(row)
    if moved:
        parts.append(moved)
    time = row["began"] or row["ended"]
    if time is None:
        return
    weight = 34 + min(20, _stopped(row) // 500_000) + (10 if row["trigger"] == "expired" else 0)
    yield Event(
        time,
        "rebalance",
        of_group(row["group_id"]),
        "; ".join(parts),
        weight,
        proven or not cause,
        group_id=row["group_id"],
        connection=evidence.get("connection"),
        exchange=evidence.get("exchange"),
        reply=evidence.get("reply"),
    )


def _moved(row: Row) -> str:
    """Describe the partitions that moved to another member."""
    before = {
        (assigned["topic"], assigned["partition"]): assigned["member_id"] for assigned in row["assignment_before"] or ()
    }
    after = {
        (assigned["topic"], assigned["partition"]): assigned["member_id"] for assigned in row["assignment_after"] or ()
    }
    moved = [place for place, member in after.items() if place in before and before[place] != member]
    return f"{places(moved)} moved" if moved else ""


def _all(group: str, rows: list[Row], clients: dict[str, str]) -> Iterator[Event]:
    """One line for all rebalances of a group, for the capture as a whole."""
    times = [row["ended"] or row["began"] for row in rows if row["ended"] or row["began"]]
    if len(rows) < 2 or not times:
        return
    causes = Counter(_cause(row, clients) for row in rows)
    riddles = causes.pop("", 0)
    longest = max(_stopped(row) for row in rows)
    still = f"; no record reached a member for up to {span(longest)}" if longest else ""
    causes_text = some(f"{cause} ({number:,} times)" if number > 1 else cause for cause, number in causes.most_common())
    if riddles:
        why = "for a reason that was not captured"
        causes_text = f"{causes_text}; {riddles:,} {'time ' if riddles == 1 else 'times '}{why}" if causes else why
    yield Event(
        max(times),
        "rebalances",
        of_group(group),
        f"rebalanced {len(rows):,} times: {causes_text}{still}",
        52 + min(20, longest // 500_000),
        group_id=group,
    )
