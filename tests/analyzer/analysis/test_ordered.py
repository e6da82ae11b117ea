"""Rows that come in one order and stand in another (proves: analyzer/analysis/ordered.py)."""

from __future__ import annotations

from typing import Any

import pytest

from analyzer.analysis import ordered
from analyzer.analysis.ordered import Ordered
from analyzer.dataset import tables


def row(number: int) -> dict[str, Any]:
    return {"time": number, "group_id": f"group-{number}", "event": "join"}


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_rows_stand_in_their_order_and_as_they_came_where_that_is_the_same(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered, "MOST_AT_ONCE", at_once)
    rows = Ordered("groups")
    for number, order in enumerate((3, 1, 1, 2, 0)):
        rows.put((order, "a"), row(number))
    found = rows.table("point")
    assert found.schema == tables.schema("groups")
    assert [one["group_id"] for one in found.to_pylist()] == [f"group-{number}" for number in (4, 1, 2, 3, 0)]
    assert set(found["capture"].to_pylist()) == {"point"}


def test_few_rows_are_dicts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "MOST_AT_ONCE", 10)
    rows = Ordered("groups")
    for number in range(95):
        rows.put(number, row(number))
        assert len(rows._rows) < 10
    assert len(rows.table("point")) == 95


def test_no_rows_are_a_table_too() -> None:
    assert Ordered("rebalances").table("point").schema == tables.schema("rebalances")
