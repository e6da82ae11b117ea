"""Kernels that number, count and follow rows, against plain Python.

(proves: analyzer/bulk/row_groups.py)
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from kwire.analyzer.bulk import row_groups as c
from kwire.analyzer.bulk import state as s
from kwire.captures.kernels import NULL


@pytest.mark.parametrize("spread", [1, 3, 1 << 62])
def test_combinations_have_numbers_in_the_order_in_which_they_come(spread: int) -> None:
    rng = random.Random(spread)
    rows = [tuple(rng.choice([NULL, -1, rng.randrange(spread)]) for _ in range(3)) for _ in range(500)]
    first, place = c.numbered(*np.array(rows, np.int64).T)
    known = list(dict.fromkeys(rows))
    assert place.tolist() == [known.index(row) for row in rows]
    assert first.tolist() == [rows.index(row) for row in known]
    assert [len(part) for part in c.numbered(*np.zeros((2, 0), np.int64))] == [0, 0]


_KEY_COLUMNS = (s.X_CLIENT_ID, s.X_API_KEY, s.X_API_VERSION, s.X_GROUP)
_TIMES = (s.X_REQUEST_FIRST_NS, s.X_REQUEST_LAST_NS, s.X_RESPONSE_FIRST_NS, s.X_RESPONSE_LAST_NS)


def test_exchanges_are_counted_by_whose_and_what_they_are() -> None:
    rng = random.Random(7)
    x = np.full((s.X_COLUMNS, 400), NULL, np.int64)
    for column in _KEY_COLUMNS:
        x[column] = [rng.choice([NULL, 0, 1, 3, 1 << 16]) for _ in range(400)]
    for column in _TIMES:
        x[column] = [rng.choice([NULL, rng.randrange(1000)]) for _ in range(400)]
    x[s.X_ERROR] = [rng.choice([NULL, 0, -1, 6]) for _ in range(400)]
    connection = np.array([rng.randrange(3) for _ in range(400)], np.int64)
    uses, place = c.used(x, connection)
    keys = [(int(connection[i]), *(int(x[column, i]) for column in _KEY_COLUMNS)) for i in range(400)]
    known = list(dict.fromkeys(keys))
    assert place.tolist() == [known.index(key) for key in keys]
    for key, row in zip(known, uses.tolist(), strict=True):
        rows_of_key = [i for i in range(400) if keys[i] == key]
        first, _, answer, _ = _TIMES
        began = [int(x[first, i]) if x[first, i] != NULL else int(x[answer, i]) for i in rows_of_key]
        times = [int(x[column, i]) for column in _TIMES for i in rows_of_key if x[column, i] != NULL]
        ended = [max(began[k], int(x[_TIMES[1], i]), int(x[_TIMES[3], i])) for k, i in enumerate(rows_of_key)]
        assert tuple(row[:5]) == key
        assert row[c.U_FIRST : c.U_BEGAN] == [
            rows_of_key[0],
            len(rows_of_key),
            sum(x[s.X_ERROR, i] not in (NULL, 0) for i in rows_of_key),
        ]
        assert row[c.U_BEGAN] == min((time for time in began if time != NULL), default=NULL)
        assert row[c.U_ENDED] == max(ended)
        assert times or row[c.U_ENDED] == NULL


def test_readers_are_followed_fetch_by_fetch() -> None:
    """A row that says nothing leaves its reader where it is."""
    rows = [(0, 5, NULL), (0, 5, 8), (1, 3, 4), (0, 8, 9), (0, NULL, NULL), (0, 2, NULL), (1, 9, NULL), (0, 2, 3)]
    reader, offsets, after = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    now = np.array([NULL, 3], np.int64)
    expected, moved = np.empty((2, len(rows)), np.int64)
    c.follow(reader, c.steady(offsets), c.steady(after), now, expected, moved)
    assert expected.tolist() == [NULL, 5, 3, 8, 9, 9, 4, 2]
    assert moved.tolist() == [1, 0, 0, 0, 0, 1, 1, 0]
    assert now.tolist() == [3, 9]
