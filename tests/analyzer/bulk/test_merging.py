"""Kernels that make one table of the shards': against NumPy's sort and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.bulk.merging import merge, move_columns, rename
from captures.kernels import NULL

Pairs = list[list[tuple[int, int]]]
LISTS = st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12), min_size=1, max_size=5)


def arrays(lists: Pairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(where each list begins, first, second)."""
    begins = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    rows = np.array([pair for one in lists for pair in one], np.int64).reshape(-1, 2)
    return begins, rows[:, 0].copy(), rows[:, 1].copy()


@given(LISTS)
def test_lists_in_order_are_merged_as_a_stable_sort_does(lists: Pairs) -> None:
    begins, first, second = arrays([sorted(one) for one in lists])
    place = np.empty(len(first), np.int64)
    assert merge(begins, np.zeros(len(lists), np.int64), first, second, place)
    assert np.argsort(place).tolist() == np.lexsort((second, first)).tolist()


@given(LISTS)
def test_a_list_that_is_not_in_order_is_told(lists: Pairs) -> None:
    begins, first, second = arrays(lists)
    sound = merge(begins, np.zeros(len(lists), np.int64), first, second, np.empty(len(first), np.int64))
    assert sound == all(one == sorted(one) for one in lists)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 100])
def test_columns_are_moved_to_their_places(rows: int, by_rows: bool) -> None:
    table = np.arange(5 * rows, dtype=np.int64).reshape(rows, 5).T
    given_ = table if by_rows else np.ascontiguousarray(table)
    place = np.random.default_rng(rows).permutation(rows)
    out = np.full((5, rows), -1, np.int64)
    move_columns(given_, place, out)
    assert (out[:, place] == table).all()


def test_symbols_become_numbers_where_they_stand() -> None:
    values = np.array([0, NULL, 2, 1, 9, 0], np.int64)
    rename(values, np.array([0, 1, 3, 4]), np.array([70, 71, 72]))
    assert values.tolist() == [70, NULL, 2, 71, 9, 0]  # places 2 and 5 are others'; 9 has no number
