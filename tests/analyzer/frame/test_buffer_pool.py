"""Memory for the rows of windows: what somebody still has is never lent a second time.

proves: kwire.analyzer.frame.buffer_pool.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kwire.analyzer.frame import buffer_pool
from kwire.analyzer.frame.buffer_pool import BufferPool, lent

MANY = 1 << 18
"""Numbers, 2 MiB of them: enough to be worth lending."""


def test_what_nobody_has_any_more_is_lent_again() -> None:
    buffers = BufferPool()
    first = buffers.numbers(2, MANY)
    at = first.ctypes.data
    del first
    assert buffers.numbers(2, MANY).ctypes.data == at


def test_a_view_holds_on_to_what_it_is_a_view_of() -> None:
    buffers = BufferPool()
    rows = buffers.numbers(4, MANY)
    at, column = rows.ctypes.data, rows[2][5:9]
    column[:] = 7
    del rows
    other = buffers.numbers(4, MANY)
    other[:] = 8
    assert other.ctypes.data != at
    assert column.tolist() == [7] * 4
    del column
    assert buffers.numbers(4, MANY).ctypes.data == at


def test_all_of_it_is_told_from_a_view_and_from_what_was_not_lent() -> None:
    rows = BufferPool().numbers(3, MANY)
    rows.flags.writeable = False
    rows.flags.writeable = True  # as whoever has all of it may do
    assert rows.shape == (3, MANY)
    assert lent(rows)
    assert not lent(rows[1])
    assert not lent(np.zeros((3, MANY), np.int64))
    assert not lent(np.zeros((3, MANY), np.int64)[1:])


def test_little_is_kept_whatever_is_given_back() -> None:
    buffers = BufferPool()
    several = [buffers.numbers(MANY + i) for i in range(3 * buffer_pool._MOST_FREE)]
    small = buffers.numbers(5)
    assert not lent(small)
    del several, small
    assert len(buffers._free) == buffer_pool._MOST_FREE


def test_threads_that_give_back_while_more_is_asked_for_never_share_memory() -> None:
    buffers = BufferPool()
    rng = random.Random(1)

    def looked_at(rows: np.ndarray, mark: int) -> bool:
        return bool((rows[:, ::997] == mark).all())

    with ThreadPoolExecutor(4) as pool:
        coming = []
        for mark in range(200):
            rows = buffers.numbers(2, MANY // 2 + rng.randrange(MANY // 8))
            rows[:] = mark
            coming.append(pool.submit(looked_at, rows, mark))
            del rows
        assert all(future.result() for future in coming)
