"""Events of groups as bytes (proves: analyzer/analysis/event_log.py)."""

from __future__ import annotations

import pickle
import random
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.analysis import group_events as g
from kwire.analyzer.analysis.event_log import EventLog
from kwire.analyzer.analysis.group_events import GroupEvent
from tests.analyzer.analysis.joining import log_bytes

KINDS = (g.JOIN, g.SYNC, g.HEARTBEAT_FAILED, g.LEAVE, g.COMMIT_FAILED, g.COORDINATOR_FOUND, g.UPDATE)
FREQUENT = (g.HEARTBEAT_FAILED, g.COMMIT_FAILED, g.COORDINATOR_FOUND)


def make_event(place: tuple[int, int], kind: str, group: str, order: int = 0, **values: Any) -> GroupEvent:
    values = {"member": "member-1", "client": "app", "exchange": 1, "reply": None, **values}
    return GroupEvent(
        place,
        order,
        kind,
        group,
        values.pop("member"),
        5,
        6,
        values.pop("client"),
        "10.0.0.1",
        "10.0.0.2:9092",
        "a-b#0",
        values.pop("exchange"),
        values.pop("reply"),
        **values,
    )


# fmt: off
FULL = make_event(
    (7, 1), g.SYNC, "Gruppe-ß\ud800", 2, protocol=g.CLASSIC, instance="i", generation=3, request_epoch=4, code=0,
    leader="m", members=("m", "n"), subscribed=(), session_ms=10, rebalance_ms=20,
    assigned=(("m", (("orders", 0), ("orders", None))), ("n", ())), by_leader=True, revoked=(("m", ()),),
    owned=(("orders", 1),), interval_ms=5, node=9, reported=True, settled=True,
)
# fmt: on
EMPTY = make_event((8, 1), g.COORDINATOR_FOUND, "", member=None, client=None, exchange=None)


def log_of(events: list[GroupEvent]) -> EventLog:
    log = EventLog()
    for event in events:
        log.append(event)
    return log


def by_group(log: EventLog) -> dict[str, list[GroupEvent]]:
    return {group: events for group, _, events in log.by_group()}


@pytest.mark.parametrize("original", [FULL, EMPTY], ids=["all is said", "nothing is said"])
def test_an_event_is_again_what_it_was(original: GroupEvent) -> None:
    assert by_group(log_of([original])) == {original.group: [original]}
    assert by_group(pickle.loads(pickle.dumps(log_of([original])))) == {original.group: [original]}


def some(count: int, seed: int) -> list[GroupEvent]:
    """In no order, some in the same place; each is told apart by its connection's exchange."""
    drawn = random.Random(seed)
    return [
        make_event(
            (drawn.randrange(count), drawn.randrange(3)),
            drawn.choice(KINDS),
            f"group-{drawn.randrange(9)}",
            drawn.randrange(2),
            exchange=number,
        )
        for number in range(count)
    ]


def order(event: GroupEvent) -> tuple[Any, ...]:
    return event.place, event.order, event.kind


def slow_by_group(events: list[GroupEvent]) -> dict[str, list[GroupEvent]]:
    grouped: dict[str, list[GroupEvent]] = defaultdict(list)
    for event in sorted(events, key=order):
        grouped[event.group].append(event)
    return dict(grouped)


@pytest.mark.parametrize("count", [0, 1, 30, 500])
def test_groups_come_in_order_of_their_first_event(count: int) -> None:
    events = some(count, 1)
    actual, expected = by_group(log_of(events)), slow_by_group(events)
    assert (actual, list(actual)) == (expected, list(expected))


def test_those_of_another_come_after() -> None:
    events = some(300, 2)
    log = log_of(events[:100])
    log.join(log_of(events[100:]))
    log.join(EventLog())
    assert len(log) == 300
    assert by_group(log) == slow_by_group(events)
    log.append(FULL)
    assert by_group(log)[FULL.group] == [FULL]


def slow_latest(events: list[GroupEvent], most: int, most_of_all: int) -> list[GroupEvent]:
    """As sentences say it: from the last on, of each group so many, then groups as long as there is room."""
    count: dict[tuple[str, bool], int] = defaultdict(int)
    latest = []
    for event in sorted(events, key=order, reverse=True):
        key = event.group, event.kind in FREQUENT
        count[key] += 1
        if count[key] <= most:
            latest.append(event)
    size: dict[str, int] = defaultdict(int)
    for event in latest:
        size[event.group] += 1
    room, remembered = most_of_all, set()
    for group, several in size.items():
        room -= several
        if room >= 0:
            remembered.add(group)
    if len(latest) > most_of_all:
        latest = [event for event in latest if event.group in remembered]
    return latest[::-1]


@pytest.mark.parametrize(("most", "of_all"), [(1000, 1000), (3, 1000), (1000, 60), (4, 20), (0, 0)])
def test_the_latest_are_remembered_as_told(most: int, of_all: int) -> None:
    events = some(400, 3)
    log = log_of(events)
    places = log.latest(FREQUENT, most, of_all)
    expected = slow_latest(events, most, of_all)
    assert [events[place] for place in places.tolist()] == expected
    assert log.groups_of(places) == {event.group for event in expected}
    after = log.reported(places)
    for event in expected:
        event.reported = True
    assert by_group(after) == slow_by_group(expected)
    after.append(EMPTY)
    assert by_group(after)[""] == [EMPTY]


def test_of_which_rebalances_were_told_is_known() -> None:
    log = log_of(some(50, 4))
    settled, flags = {}, np.zeros(50, np.bool_)
    for _, positions, events in log.by_group():
        wanted = [event.exchange is not None and event.exchange % 3 == 0 for event in events]
        flags[positions] = wanted
        settled.update({event.exchange: yes for event, yes in zip(events, wanted, strict=True)})
    log.settle(flags)
    assert {event.exchange: event.settled for _, _, events in log.by_group() for event in events} == settled


def test_an_event_takes_some_hundred_bytes() -> None:
    """As an object a thousand: its texts alone are several."""
    count = 3000
    log = log_of(
        [
            make_event(
                (number, 0),
                g.JOIN,
                f"group-{number:09}",
                member=f"member-{number:09}-5fd4e0b1-7c9a-4f3e-b7e3-0",
                leader=f"member-{number:09}-5fd4e0b1-7c9a-4f3e-b7e3-0",
                generation=1,
                code=0,
                session_ms=10_000,
                members=(f"member-{number:09}-5fd4e0b1-7c9a-4f3e-b7e3-0",),
                subscribed=("orders",),
            )
            for number in range(count)
        ]
    )
    held = log_bytes(log._log) + sum(map(sys.getsizeof, log.groups))
    assert held < 650 * count
