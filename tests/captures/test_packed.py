"""Columns packed and put elsewhere again are the same numbers, whatever these are. (proves: captures/packed.py)"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.captures.kernels import NULL
from kwire.captures.packed import WIDTH, pack, picked

EDGES = (NULL, NULL + 1, -1, 0, 1, 254, 255, 256, 65534, 65535, 65536, 2**32 - 2, 2**32 - 1, 2**32, 2**63 - 1)
NUMBERS = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 300)


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    rows = draw(st.integers(0, 9))
    columns = draw(st.lists(st.lists(NUMBERS, min_size=rows, max_size=rows), min_size=1, max_size=4))
    return np.array(columns, np.int64).reshape(len(columns), rows)


@given(tables(), st.data())
def test_all_rows_come_back(table: np.ndarray, data: st.DataObject) -> None:
    columns, rows = table.shape
    which = data.draw(st.lists(st.integers(0, columns - 1), unique=True))
    packed = pickle.loads(pickle.dumps(pack(table, which)))
    assert packed.rows == rows
    for column in range(columns):
        expected = table[column] if column in which else np.full(rows, NULL)
        assert (packed.column(column) == expected).all()
    places = np.array(data.draw(st.permutations(range(rows))), np.int64)
    out = np.full((columns, rows), 7)
    packed.into(out, places)
    for column in range(columns):
        expected = table[column] if column in which else np.full(rows, 7)
        assert (out[column, places] == expected).all()


@given(tables(), st.data())
def test_some_rows_come_back_and_what_is_no_row_is_null(table: np.ndarray, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(-2, table.shape[1] + 1), max_size=12)), np.int64)
    packed = pack(table, range(len(table)), rows)
    there = (rows >= 0) & (rows < table.shape[1])
    for column in range(len(table)):
        unpacked = packed.column(column)
        assert (unpacked[there] == table[column][rows[there]]).all()
        assert (unpacked[~there] == NULL).all()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 40])
def test_columns_are_picked_of_rows(count: int) -> None:
    """Blocks of eight rows, the last of fewer; a column more than once, and one that is none."""
    rows = np.arange(5 * count, dtype=np.int64).reshape(count, 5)
    unpacked = picked(rows, (3, 0, 5, -1, 3))
    assert (unpacked[[0, 1, 4]] == rows.T[[3, 0, 3]]).all()
    assert (unpacked[[2, 3]] == NULL).all()


@pytest.mark.parametrize(
    ("numbers", "width"),
    [
        ([NULL, NULL], 0),
        ([5, 5, 5], 0),
        ([5, NULL], 1),
        ([10**15, 10**15 + 253], 1),
        ([10**15, 10**15 + 300, NULL], 2),
        ([-1, 2**31], 4),
        ([0, 2**40], 8),
        ([NULL + 1, 2**63 - 1], 8),
    ],
)
def test_a_number_takes_as_few_bytes_as_it_can(numbers: list[int], width: int) -> None:
    packed = pack(np.array([numbers]), (0,))
    assert packed.about[0, WIDTH] == width
    assert packed.content.nbytes == (width * len(numbers) + 7) // 8 * 8


def test_what_fills_up_words_is_zero() -> None:
    """It is stored too, and memory may have held anything."""
    for _ in range(20):
        np.full(64, 0xAA, np.uint8)  # freed at once: the next piece of its size has it
        packed = pack(np.array([[1, 2, NULL]] * 8), range(8))
        assert (packed.content.reshape(8, 8)[:, 3:] == 0).all()


def test_what_was_cut_off_is_not_read() -> None:
    packed = pack(np.array([np.arange(100), np.arange(100) * 10**9]), (0, 1))
    short = packed._replace(content=packed.content[:16])
    out = np.full((2, 100), 7)
    short.into(out)
    assert (out == 7).all()
    short._replace(which=np.array([5, -1])).into(out)
    packed.into(out, np.full(100, 100))
    assert (out == 7).all()
