"""Numbers for columns, by kernels and by what is plainly the same.

(proves: analyzer/bulk/forming.py)
"""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.bulk import forming as f
from analyzer.bulk import state as s
from captures.kernels import NULL

LARGEST = (1 << 63) - 1


@pytest.fixture
def x() -> np.ndarray:
    """Rows of which some numbers are absent, some columns wholly or nowhere."""
    random = np.random.default_rng(7)
    rows = random.integers(-50, 50, (s.X_COLUMNS, 301))
    rows[random.random(rows.shape) < 0.3] = NULL
    rows[0], rows[1] = NULL, 7
    rows[[s.X_REQUEST_FIRST_NS, s.X_RESPONSE_LAST_NS]] *= random.integers(1, 10**6)
    rows[rows < -(1 << 62)] = NULL
    rows.flags.writeable = False
    return rows


def test_what_is_known_of_columns(x: np.ndarray) -> None:
    which = np.array([0, 1, 5, 9], np.int64)
    found = np.zeros((10, 3), np.int64)
    f.look(x, which, found)
    for column in which.tolist():
        there = [value for value in x[column].tolist() if value != NULL]
        least, greatest = (min(there), max(there)) if there else (LARGEST, NULL)
        assert found[column].tolist() == [x.shape[1] - len(there), least, greatest]
    assert not found[2:5].any()


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


def test_times(x: np.ndarray) -> None:
    out, backwards = np.empty((f.T_COLUMNS, 303), np.int64), np.zeros(303, np.bool_)
    odd = f.timed(x, out, backwards, 2)
    assert odd == backwards.sum() > 0
    for i, row in enumerate(x.T.tolist()):
        request, request_end, response, response_end, earlier = (
            None if row[column] == NULL else row[column] // 1000
            for column in (
                s.X_REQUEST_FIRST_NS, s.X_REQUEST_LAST_NS, s.X_RESPONSE_FIRST_NS, s.X_RESPONSE_LAST_NS, s.X_EARLIER_NS,
            )
        )  # fmt: skip
        latency = None if response is None or request_end is None else response - request_end
        assert backwards[i + 2] == (latency is not None and latency < 0)
        latency = None if latency is not None and latency < 0 else latency
        total = None if response_end is None or request is None else response_end - request
        queue = None
        if latency is not None and request_end is not None:
            queue = min(max(earlier - request_end, 0), latency) if earlier is not None else 0
        throttle = None if row[s.X_THROTTLE] == NULL else row[s.X_THROTTLE] * 1000
        expected = [request, request_end, response, response_end, latency, total, queue, throttle]
        assert out[:, i + 2].tolist() == [NULL if value is None else value for value in expected]


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
    ends = np.cumsum([len(one) for one in lists], dtype=np.int64)
    items = np.array([item for one in lists for item in one], np.int32)
    rows = [3, None, 0, 1, 0, 2, None]
    local = np.array([row or 0 for row in rows], np.int32)
    values = np.array([NULL if row is None else row for row in rows], np.int64)
    values.flags.writeable = False
    expected = [[] if row is None else lists[row] for row in rows]
    offsets = np.empty(len(rows) + 1, np.int32)
    total = f.list_ends(local, values, ends, offsets)
    assert offsets.tolist() == [0, *np.cumsum([len(one) for one in expected]).tolist()]
    out = np.empty(total, np.int32)
    f.list_items(local, values, ends, items, out)
    assert out.tolist() == [item for one in expected for item in one]


def test_topic_partitions_have_what_their_exchanges_say(x: np.ndarray) -> None:
    random = np.random.default_rng(11)
    p = random.integers(0, 1000, (s.P_COLUMNS, 97))
    p[random.random(p.shape) < 0.3] = NULL
    x = np.where(x == NULL, NULL, abs(x) % 3)
    owner = np.sort(random.integers(0, x.shape[1], 97))
    x[s.X_API_KEY] = random.integers(0, 3, x.shape[1])
    for array in (p, x, owner):
        array.flags.writeable = False
    out = np.zeros((4, 99), np.int64)
    f.belong(p, x, owner, np.array([5, NULL, 6], np.int64), 1, out, 2)
    for i, of in enumerate(owner.tolist()):
        key, (following, offset, watermark) = x[s.X_API_KEY, of], p[[s.P_FOLLOWING, s.P_OFFSET, s.P_HIGH_WATERMARK], i]
        after = offset if following == NULL else following
        lag = watermark - after if key == 1 and NULL not in (watermark, after) else NULL
        kind = NULL if offset == NULL else (5, NULL, 6)[key]
        assert out[:, i + 2].tolist() == [x[s.X_EXCHANGE, of], x[s.X_REPLY, of], lag, kind]
    assert not out[:, :2].any()
