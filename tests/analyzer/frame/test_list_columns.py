"""Columns of lists against plain Python.

Proves: analyzer/frame/list_columns
"""

from __future__ import annotations

import numpy as np
import pytest

from kwire.analyzer.frame import list_columns


@pytest.mark.parametrize("largest", [True, False])
def test_of_a_list_the_largest_or_the_smallest_value_is_told(largest: bool) -> None:
    random = np.random.default_rng(7)
    rows = [random.integers(-3, 3, random.integers(0, 4)).tolist() for _ in range(200)]
    flat = np.array([list_columns.NULL if value == -3 else value for row in rows for value in row], np.int64)
    lists = list_columns.ListColumn(np.arange(200), np.cumsum([0, *map(len, rows)]), flat)
    chosen = [[value for value in row if value != -3] for row in rows]
    expected = [(max(row) if largest else min(row)) if row else list_columns.NULL for row in chosen]
    assert lists.extremes(flat, largest).tolist() == expected


def test_equal_lists_are_one_and_others_are_not() -> None:
    random = np.random.default_rng(6)
    rows = [random.integers(-1, 4, random.integers(0, 4)).tolist() for _ in range(2_000)]
    lengths = np.array([len(row) for row in rows])
    of, first = list_columns.distinct(lengths, np.array([value for row in rows for value in row], np.int64))
    assert [rows[first[number]] for number in of] == rows
    assert len(first) == len({tuple(row) for row in rows})
    assert [len(part) for part in list_columns.distinct(np.zeros(0, np.int64), np.zeros(0, np.int64))] == [0, 0]


def test_fingerprints_that_agree_by_chance_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [np.zeros(3, np.uint64), np.array([0, 1, 1], np.uint64), np.arange(3, dtype=np.uint64)]
    monkeypatch.setattr(list_columns, "_fingerprints", lambda *_: drawn.pop(0))
    of, first = list_columns.distinct(np.array([1, 2, 2]), np.array([7, 7, 8, 7, 9]))
    assert (of.tolist(), first.tolist(), drawn) == ([0, 1, 2], [0, 1, 2], [])
