"""Numbers for columns, by kernels and by what is plainly the same.

(proves: captures/cast.py)
"""

from __future__ import annotations

import numpy as np
import pytest

from kwire.captures import cast as f
from kwire.captures.kernels import NULL

LARGEST = (1 << 63) - 1


@pytest.fixture
def x() -> np.ndarray:
    """Rows of which some numbers are absent, some columns wholly or nowhere."""
    random = np.random.default_rng(7)
    rows = random.integers(-50, 50, (10, 301))
    rows[random.random(rows.shape) < 0.3] = NULL
    rows[0], rows[1] = NULL, 7
    rows.flags.writeable = False
    return rows


def test_what_is_known_of_columns(x: np.ndarray) -> None:
    which = np.array([0, 1, 5, 9], np.int64)
    summaries = np.zeros((10, 3), np.int64)
    f.look(x, which, summaries)
    for column in which.tolist():
        there = [value for value in x[column].tolist() if value != NULL]
        least, greatest = (min(there), max(there)) if there else (LARGEST, NULL)
        assert summaries[column].tolist() == [x.shape[1] - len(there), least, greatest]
    assert not summaries[2:5].any()


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32])
def test_narrow_numbers_stand_where_those_of_their_window_do(x: np.ndarray, kind: type[np.generic]) -> None:
    which = np.array([5, 1, 0], np.int64)
    out = np.full((3, 310), 9, kind)
    f.narrow(x, which, out, 4)
    assert (out[:, 4:305] == np.where(x[which] == NULL, 0, x[which])).all()
    assert (out[:, :4] == 9).all()
    assert (out[:, 305:] == 9).all()


@pytest.mark.parametrize("at", [0, 1, 8, 13])
def test_marks_are_arrows_bits(x: np.ndarray, at: int) -> None:
    bits = np.zeros(50, np.uint8)
    f.marks(x[5], bits, at)
    there = np.zeros(400, np.bool_)
    there[at : at + x.shape[1]] = x[5] != NULL
    assert bits.tolist() == np.packbits(there, bitorder="little").tolist()


def test_numbers_in_use_are_counted_anew(x: np.ndarray) -> None:
    values = np.where(x[5] < 0, NULL, x[5])
    values.flags.writeable = False
    place, local = np.empty(60, np.int32), np.empty(len(values), np.int32)
    used = f.compact(values, place, local)
    numbers = sorted({value for value in values.tolist() if value != NULL})
    assert used == len(numbers)
    assert np.flatnonzero(place >= 0).tolist() == numbers
    assert local.tolist() == [0 if value == NULL else numbers.index(value) for value in values.tolist()]


def test_a_row_has_what_is_said_of_its_number() -> None:
    table, local = np.array([[5, 6, 7], [1, 2, 3]], np.int32), np.array([2, 0, 0, 1], np.int32)
    out = np.empty((2, 4), np.int32)
    f.take(table, local, out)
    assert out.tolist() == table[:, local].tolist()


def test_lists_one_after_the_other() -> None:
    lists = [[4, 5], [], [6], [7, 8, 9]]
    ends = np.cumsum([len(values_of_list) for values_of_list in lists], dtype=np.int64)
    items = np.array([item for values_of_list in lists for item in values_of_list], np.int32)
    rows = [3, None, 0, 1, 0, 2, None]
    local = np.array([row or 0 for row in rows], np.int32)
    values = np.array([NULL if row is None else row for row in rows], np.int64)
    values.flags.writeable = False
    expected = [[] if row is None else lists[row] for row in rows]
    offsets = np.empty(len(rows) + 1, np.int32)
    total = f.list_ends(local, values, ends, offsets)
    assert offsets.tolist() == [0, *np.cumsum([len(values_of_list) for values_of_list in expected]).tolist()]
    out = np.empty(total, np.int32)
    f.list_items(local, values, ends, items, out)
    assert out.tolist() == [item for values_of_list in expected for item in values_of_list]
