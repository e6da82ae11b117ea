"""Tell what happened to the cluster: leaders, topics created and deleted, and findings.

In: the tables `leaders`, `exchanges` and `findings`. Out: events.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pyarrow.compute as pc

from kwire.analyzer.common.leader_epochs import Epochs
from kwire.analyzer.findings.wording import unsaid_cause
from kwire.analyzer.story.events import Event, Row, places, some, who
from kwire.analyzer.story.sources import Source, names_in

_TOGETHER = datetime.timedelta(seconds=1)
_SEVERITY = {"note": 30, "warning": 75, "error": 90}
_ADMIN = {
    "CreateTopics": "created {}",
    "DeleteTopics": "deleted {}",
    "CreatePartitions": "gave {} more partitions",
    "DeleteRecords": "deleted records of {}",
    "AlterPartitionReassignments": "reassigned replicas of {}",
    "ElectLeaders": "had leaders of {} elected",
}


def events(source: Source) -> Iterator[Event]:
    """Events of the cluster."""
    yield from _leaders(source)
    yield from _admin(source)
    yield from _findings(source)


def _leaders(source: Source) -> Iterator[Event]:
    """Events of leaders: the first ones stated, and changes; those of one moment are one event."""
    now: dict[tuple[str | None, int], int | None] = {}
    runs: list[tuple[datetime.datetime, str, list[Row]]] = []
    current = Epochs()
    for row in source.rows("leaders"):
        if current.passed(row["topic"], row["topic_id"], row["partition"], row["leader_epoch"]):
            continue
        key = row["topic"], row["partition"]
        before = now.get(key)
        known = key in now
        if known and before == row["leader"]:
            continue
        now[key] = row["leader"]
        new = f"broker {row['leader']}" if row["leader"] is not None else "nobody"
        old = f"broker {before}" if before is not None else "nobody"
        change = f"from {old} to {new}" if known else f"by {new}"
        last = runs[-1] if runs else None
        if last is not None and last[1] == change and row["time"] - last[0] < _TOGETHER:
            last[2].append(row)
        else:
            runs.append((row["time"], change, [row]))
    for time, change, rows in runs:
        topics = tuple(dict.fromkeys(row["topic"] for row in rows if row["topic"]))
        where = places((row["topic"], row["partition"]) for row in rows)
        changed = change.startswith("from")
        are = "are" if len(rows) > 1 else "is"
        text = f"the leader of {where} moved {change}" if changed else f"{where} {are} led {change}"
        weight = 56 if changed and "nobody" in change else 48 if changed else 1
        first = rows[0]
        yield Event(
            time,
            "leader_moved" if changed else "leader",
            "cluster",
            text,
            weight,
            topics=topics,
            topic=first["topic"] if len(topics) == 1 else None,
            partition=first["partition"] if len(rows) == 1 else None,
        )


def _admin(source: Source) -> Iterator[Event]:
    """Events of topics that were created, changed and deleted."""
    rows = source.rows(
        "exchanges",
        (
            "connection",
            "exchange",
            "reply",
            "client_id",
            "client_ip",
            "api",
            "response_end",
            "topics",
            "error",
            "request_state",
        ),
        pc.field("api").isin(list(_ADMIN)) & pc.is_valid(pc.field("response_end")) & ~pc.is_valid(pc.field("error")),
    )
    there = _topics_there(
        source, {topic for row in rows if row["api"] == "CreateTopics" for topic in row["topics"] or ()}
    )
    for row in rows:
        topics = tuple(row["topics"] or ())
        if not topics and row["request_state"] == "decoded":
            continue  # of none: nothing happened
        named = f"topic{'s' if len(topics) > 1 else ''} {some(topics)}"
        named = named if topics else "topics whose names were not captured"
        text = _ADMIN[row["api"]].format(named)
        if row["api"] == "CreateTopics" and topics and not there.intersection(topics):
            text = f"asked to create {named}, and was not refused (it may have been a trial: nothing shows the topic)"
        yield Event(
            row["response_end"],
            "admin",
            who(row["client_id"], row["client_ip"]),
            text,
            13,
            topics=topics,
            topic=topics[0] if len(topics) == 1 else None,
            client_id=row["client_id"],
            connection=row["connection"],
            exchange=row["exchange"],
            reply=row["reply"],
        )


def _topics_there(source: Source, topics: set[str]) -> set[str]:
    """Which of some topics an answer states to exist. One that was only validated (`validate_only`) has no id."""
    here, well = pc.field("capture") == source.capture, pc.field("error_code") == 0
    there = topics.intersection(source.topics.values())
    for table, condition in ((source.dataset.leaders, here), (source.dataset.partitions, here & well)):
        if others := sorted(topics - there):
            there |= names_in(table, "topic", condition & pc.field("topic").isin(others))
    return there


_STANDING = ("quality", "security", "versions")
"""Families whose notes describe a state, not an event."""


def _findings(source: Source) -> Iterator[Event]:
    for row in source.rows("findings"):
        if row["since"] is None or (row["severity"] == "note" and row["family"] in _STANDING):
            continue
        whom, what = dict(row["who"] or ()), dict(row["what"] or ())
        first = row["first"] or {}
        text = row["text"]
        if cause := unsaid_cause(row):
            text += f" Because: {cause}" if row["proven"] else f" Probably: {cause}"
        partition = what.get("partition", "")
        yield Event(
            row["since"],
            "finding",
            f"{row['severity']} {row['code']}",
            text,
            _SEVERITY[row["severity"]],
            bool(row["proven"]) or not row["cause"],
            topic=what.get("topic"),
            partition=int(partition) if partition.isdigit() else None,
            group_id=what.get("group_id"),
            client_id=whom.get("client_id"),
            connection=first.get("connection"),
            exchange=first.get("exchange"),
            reply=first.get("reply"),
            transactional_id=what.get("transactional_id"),
            severity=row["severity"],
        )
