"""Kernels that make one table of the shards': against NumPy's sort and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.analyzer.bulk import merging as m
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.concat import Helpers, one_after_another
from kwire.captures.kernels import NULL

Pairs = list[list[tuple[int, int]]]
LISTS = st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12), min_size=1, max_size=5)


def arrays(lists: Pairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(where each list begins, first, second)."""
    begins = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    rows = np.array([pair for rows_of_list in lists for pair in rows_of_list], np.int64).reshape(-1, 2)
    return begins, rows[:, 0].copy(), rows[:, 1].copy()


@given(LISTS)
def test_lists_in_order_are_merged_as_a_stable_sort_does(lists: Pairs) -> None:
    begins, first, second = arrays([sorted(rows_of_list) for rows_of_list in lists])
    place = np.empty(len(first), np.int64)
    assert m.merge(begins, np.zeros(len(lists), np.int64), first, second, place)
    assert np.argsort(place).tolist() == np.lexsort((second, first)).tolist()


@given(LISTS)
def test_a_list_that_is_not_in_order_is_told(lists: Pairs) -> None:
    begins, first, second = arrays(lists)
    sound = m.merge(begins, np.zeros(len(lists), np.int64), first, second, np.empty(len(first), np.int64))
    assert sound == all(rows_of_list == sorted(rows_of_list) for rows_of_list in lists)


def numbers(strings: int = 0, topics: int = 0, others: int = 0, shard: int = 0, shards: int = 1) -> m.Numbers:
    """Of symbol i the number 100 + i, 200 + i, 300 + i."""
    named = np.arange(100, 100 + strings), np.arange(200, 200 + topics), np.arange(300, 300 + others)
    return m.Numbers(*named, np.array([shards, shard]))


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 31, 100])
def test_rows_become_columns_at_their_places(rows: int) -> None:
    table = np.arange(5 * rows, dtype=np.int64).reshape(rows, 5)
    place = np.random.default_rng(rows).permutation(rows)
    out = np.full((5, rows), -1, np.int64)
    m.move(table, place, np.full(5, m.SAME), numbers(), np.zeros(0, np.int64), out)
    assert (out[:, place] == table.T).all()


def test_symbols_become_numbers_and_what_has_none_stays() -> None:
    row = np.array([0, NULL, 2, 9])
    table = np.ascontiguousarray(np.tile(row, (6, 1)).T)
    becomes = np.array([m.SAME, m.STRING, m.TOPICS, m.OTHERS, m.OWNER, m.SET])
    out = np.zeros((6, 4), np.int64)
    owner = np.array([7, -1 - 7, 8, 9])
    m.move(table, np.arange(4), becomes, numbers(3, 3, 3, shard=1, shards=4), owner, out)
    assert out.tolist() == [
        row.tolist(),
        [100, NULL, 102, 9],
        [200, NULL, 202, 9],
        [300, NULL, 302, 9],
        [7, 7, 8, 9],
        [1, NULL, 9, 37],
    ]


def test_rows_without_a_place_are_left_out() -> None:
    out = np.full((1, 2), -5, np.int64)
    m.move(np.array([[1], [2], [3]]), np.array([1, -1, 2]), np.array([m.SAME]), numbers(), np.zeros(0, np.int64), out)
    assert out.tolist() == [[-5, 1]]


def test_what_orders_exchanges_is_read_and_what_has_no_number_is_told() -> None:
    rows = np.full((4, s.X_ENDED_COLUMNS), NULL)
    rows[:, s.X_SLOT] = 0, 2, 1, 5
    rows[:, s.X_COMPLETED_BY] = 10, 11, 12, 13
    rows[:, s.X_TOPICS] = 1, 0, NULL, 1
    rows[:, s.X_ERRORS] = NULL, 1, 0, 9
    known = m.Numbers(*(np.array(column) for column in ([0], [7, -1], [-1, 8], [1, 0])))
    orders, wanted = m.Orders(*np.zeros((3, 4), np.int64)), np.zeros((2, 4), np.int64)
    topics, others = m.look(rows, np.array([1, -1, 0]), np.array([70, 71]), known, orders, wanted)
    assert [values.tolist() for values in orders] == [[10, 11, 12, 13], [1, 0, -1, -1], [71, 70, -1, -1]]
    assert (wanted[0, :topics].tolist(), wanted[1, :others].tolist()) == ([1, 1], [0])


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_parts_follow_their_owners_in_a_stable_order_and_those_taken_out_of_a_session_are_apart(
    parts: list[tuple[int, bool]],
) -> None:
    place = np.array([3, 0, 5, 1, 4, 2])
    rows = np.full((len(parts), s.P_COLUMNS), NULL)
    rows[:, s.P_OWNER] = [row for row, _ in parts]
    rows[:, s.P_ANSWERED] = [s.FORGOTTEN if gone else 1 for _, gone in parts]
    owner = np.zeros(len(parts), np.int64)
    assert m.look_at_parts(rows, place, owner) == sum(gone for _, gone in parts)
    for gone in (False, True):
        places = np.zeros(len(parts), np.int64)
        chosen = [i for i, part in enumerate(parts) if part[1] == gone]
        assert m.place_parts(owner, gone, np.zeros(6, np.int64), places) == len(chosen)
        wanted = sorted(chosen, key=lambda i: place[parts[i][0]])  # stable
        assert places.tolist() == [wanted.index(i) if i in chosen else -1 for i in range(len(parts))]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_everything_is_done_once_on_any_number_of_threads_and_what_goes_wrong_is_raised(threads: int) -> None:
    helpers = Helpers(threads)
    try:
        done: list[int] = []
        helpers.each(done.append, range(50))
        assert sorted(done) == list(range(50))
        with pytest.raises(ZeroDivisionError):
            helpers.each(lambda number: done.append(1 // number), list(range(20)))
    finally:
        helpers.leave()
    one_after_another(done.append, [7])
    assert done[-1] == 7
