"""Append-only logs and ordered rows (proves: analyzer/frame/log.py)."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import log
from kwire.analyzer.frame.log import Log, OrderedRows
from kwire.captures.kernels import NULL

COLUMNS = ("trigger", "born", "connection", "name", "value")
Event = tuple[int, int, str, str | None, int]


def log_of(parts: list[list[Event]]) -> Log:
    """Append each part as one window gives it: its texts numbered as that window does."""
    events_log = Log(COLUMNS, ("connection", "name"), ("trigger", "born"))
    for events in parts:
        texts = sorted({name for *_, name, _ in events if name is not None}, reverse=True)
        connections = sorted({event[2] for event in events})
        rows = [
            (trigger, born, connections.index(connection), NULL if name is None else texts.index(name), value)
            for trigger, born, connection, name, value in events
        ]
        columns = np.array(rows, np.int64).reshape(-1, len(COLUMNS)).T
        events_log.append(dict(zip(COLUMNS, columns, strict=True)), texts, connections)
    return events_log


def events_of(events_log: Log) -> list[Event]:
    columns, text = events_log.read(), events_log.text
    rows = zip(*(columns[name].tolist() for name in COLUMNS), strict=True)
    return [(trigger, born, text(of) or "", text(name), value) for trigger, born, of, name, value in rows]


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
    joined = log_of(parts)
    for _ in range(2):
        assert len(joined) == sum(sizes)
        assert events_of(joined) == in_order([event for part in parts for event in part])
    more = some(5, 99)
    joined.join(log_of([more]))
    assert events_of(joined) == in_order([*(event for part in parts for event in part), *more])


def test_those_that_are_in_order_already_stay_so() -> None:
    parts = [in_order(some(20, 1)), [(60, 0, "c9", "z", 1), (60, 0, "c9", None, 2), (60, 1, "c8", "z", 3)]]
    assert events_of(log_of(parts)) == [event for part in parts for event in part]


def test_some_of_them_have_their_texts() -> None:
    events = some(40, 2)
    whole = log_of([events[:20], events[20:]])
    values = whole.read()["value"]
    assert events_of(whole.take(values % 2 == 0)) == in_order(events[::2])
    low, high = whole.take(values < 10), whole.take(values >= 10)
    assert (events_of(low), events_of(high)) == (in_order(events[:10]), in_order(events[10:]))
    assert events_of(whole.take(values < 0)) == []
    assert [sorted(part.strings) for part in (low, high)] == [
        sorted({text for event in part for text in event[2:4] if text is not None})
        for part in (events[:10], events[10:])
    ]
    replaced = whole.take(values % 2 == 0, value=np.zeros(40, np.int64))
    assert events_of(replaced) == [(*event[:4], 0) for event in in_order(events[::2])]


def test_a_column_of_one_value_takes_no_memory_until_there_is_another() -> None:
    def stored(events_log: Log) -> int:
        return sum(column.strides[0] * len(column) for column in events_log.read().values())

    same: list[Event] = [(number, 0, "c", None, 7) for number in range(1000)]
    assert stored(log_of([same[:400], same[400:]])) == 8 * 1000
    others: list[Event] = [(1000, 0, "c", None, 8)]
    mixed = log_of([same, others])
    assert stored(mixed) == 2 * 8 * 1001
    assert events_of(mixed) == [*same, *others]


def rows_of(rows_log: Log) -> list[tuple[int, str | None, list[Any]]]:
    columns = rows_log.read()
    numbers, names = columns["number"].tolist(), map(rows_log.text, columns["name"].tolist())
    values = [rows_log.values(position, 3) for position in range(len(rows_log))]
    return list(zip(numbers, names, values, strict=True))


def single(rows: list[tuple[int, str | None, list[Any]]]) -> Log:
    rows_log = Log(("number", "name"), ("name",))
    for number, name, values in rows:
        rows_log.append_row((number, rows_log.number(name)), list(values))
    return rows_log


def test_single_rows_have_their_values_as_they_came() -> None:
    rows: list[tuple[int, str | None, list[Any]]] = [
        (number % 7, None if number % 5 == 0 else f"name-{number % 9}", [number, None, ["ß\ud800", True]])
        for number in range(300)
    ]
    rows[3] = rows[100] = (1, "empty", [None, None, None])
    rows_log = single(rows[:90])
    rows_log.join(single(rows[90:]))
    rows_log.join(single([]))
    assert rows_of(rows_log) == rows
    assert rows_of(pickle.loads(pickle.dumps(rows_log))) == rows
    for chosen in (np.arange(0, 300, 3), np.arange(299, -1, -1), np.arange(40, 60), np.zeros(0, np.int64)):
        chosen_rows = rows_log.take(chosen)
        assert rows_of(chosen_rows) == [rows[position] for position in chosen.tolist()]
        chosen_rows.append_row((1, chosen_rows.number("later")), [5, 6])
        assert rows_of(chosen_rows)[-1] == (1, "later", [5, 6, None])
    rows_log.replace("number", np.zeros(300, np.int64))
    assert rows_of(rows_log) == [(0, *row[1:]) for row in rows]


def group_row(number: int) -> dict[str, Any]:
    return {"time": number, "group_id": f"group-{number}", "event": "join"}


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_rows_stand_in_their_order_and_as_they_came_where_that_is_the_same(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOST_AT_ONCE", at_once)
    rows = OrderedRows("groups")
    for number, order in enumerate((3, 1, 1, 2, 0)):
        rows.append((order, "a"), group_row(number))
    table = rows.table("point")
    assert table.schema == tables.schema("groups")
    assert [row["group_id"] for row in table.to_pylist()] == [f"group-{number}" for number in (4, 1, 2, 3, 0)]
    assert set(table["capture"].to_pylist()) == {"point"}


def test_few_rows_are_dicts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_AT_ONCE", 10)
    rows = OrderedRows("groups")
    for number in range(95):
        rows.append(number, group_row(number))
        assert len(rows._rows) < 10
    assert len(rows.table("point")) == 95


def test_no_rows_are_a_table_too() -> None:
    assert OrderedRows("rebalances").table("point").schema == tables.schema("rebalances")
