"""Events as columns (proves: analyzer/analysis/event_columns.py)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from analyzer.analysis.event_columns import Noted
from captures.kernels import NULL

COLUMNS = ("trigger", "born", "connection", "name", "value")
Event = tuple[int, int, str, str | None, int]


def noted(parts: list[list[Event]]) -> Noted:
    """Each part as one window gives it: its texts numbered as that window does."""
    made = Noted(COLUMNS, ("connection", "name"))
    for events in parts:
        texts = sorted({name for *_, name, _ in events if name is not None}, reverse=True)
        connections = sorted({event[2] for event in events})
        rows = [
            (trigger, born, connections.index(connection), NULL if name is None else texts.index(name), value)
            for trigger, born, connection, name, value in events
        ]
        columns = np.array(rows, np.int64).reshape(-1, len(COLUMNS)).T
        made.put(dict(zip(COLUMNS, columns, strict=True)), texts, connections)
    return made


def events_of(one: Noted) -> list[Event]:
    inside = one.inside()
    rows = zip(*(inside[name].tolist() for name in COLUMNS), strict=True)
    return [(trigger, born, one.text(of) or "", one.text(name), value) for trigger, born, of, name, value in rows]


def some(count: int, seed: int) -> list[Event]:
    drawn = random.Random(seed)
    return [
        (drawn.randrange(50), drawn.randrange(3), f"c{drawn.randrange(4)}", drawn.choice([None, "a", "b"]), number)
        for number in range(count)
    ]


def in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event[:2])


@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 3, 0], [7, 1, 30]])
def test_events_come_in_order_however_often_they_are_asked_for(sizes: list[int]) -> None:
    parts = [some(size, seed) for seed, size in enumerate(sizes)]
    one = noted(parts)
    for _ in range(2):
        assert one.count == sum(sizes)
        assert events_of(one) == in_order([event for part in parts for event in part])
    more = some(5, 99)
    one.join(noted([more]))
    assert events_of(one) == in_order([*(event for part in parts for event in part), *more])


def test_those_that_are_in_order_already_stay_so() -> None:
    parts = [in_order(some(20, 1)), [(60, 0, "c9", "z", 1), (60, 0, "c9", None, 2), (60, 1, "c8", "z", 3)]]
    assert events_of(noted(parts)) == [event for part in parts for event in part]


def test_some_of_them_have_their_texts() -> None:
    events = some(40, 2)
    one = noted([events[:20], events[20:]])
    inside = one.inside()
    assert events_of(one.some(inside, inside["value"] % 2 == 0)) == in_order(events[::2])
    low, high = one.divided("value", 10)
    assert (events_of(low), events_of(high)) == (in_order(events[:10]), in_order(events[10:]))
    assert events_of(one.some(inside, inside["value"] < 0)) == []


def test_a_column_of_one_value_takes_no_memory_until_there_is_another() -> None:
    def stored(one: Noted) -> int:
        return sum(column.strides[0] * len(column) for column in one.inside().values())

    same: list[Event] = [(number, 0, "c", None, 7) for number in range(1000)]
    assert stored(noted([same[:400], same[400:]])) == 8 * 1000
    others: list[Event] = [(1000, 0, "c", None, 8)]
    mixed = noted([same, others])
    assert stored(mixed) == 2 * 8 * 1001
    assert events_of(mixed) == [*same, *others]
