"""Counts and quantiles of columns against plain Python and the standard library's statistics.

Proves: analyzer/frame/counting
"""

from __future__ import annotations

import statistics
import threading

import numpy as np
import pytest

from kwire.analyzer.frame import counting, spill


def test_rows_are_selected_by_the_values_of_their_codes() -> None:
    codes = np.random.default_rng(7).integers(-1, 12, 300_000).astype(np.int8)
    for passed in (set[int](), {3}, {0, 11}, set(range(0, 12, 2)), set(range(12)) - {5}, set(range(12))):
        table = np.array([code in passed for code in range(12)])
        assert (counting.select_codes(table, codes) == np.isin(codes, list(passed))).all()


def test_codes_are_counted_in_all_rows_and_in_some() -> None:
    codes = np.random.default_rng(8).integers(-1, 9, 300_000).astype(np.int16)
    rows = np.flatnonzero(codes != 4)
    assert counting.count_codes(codes, None, 9).tolist() == [int((codes == code).sum()) for code in range(9)]
    assert counting.count_codes(codes, rows, 9).tolist() == [
        int((codes == code).sum()) * (code != 4) for code in range(9)
    ]


@pytest.mark.parametrize("high", [0, 9, 65_535, 65_536, 2**31 - 1, 2**62])
@pytest.mark.parametrize("count", [1, 2, 3, 100, 1001])
def test_quantiles_lie_between_their_neighbours(count: int, high: int) -> None:
    numbers = np.random.default_rng(9).integers(0, high, count, endpoint=True)
    expected = statistics.quantiles(numbers.tolist(), n=100, method="inclusive") if count > 1 else [numbers[0]] * 99
    result = counting.quantiles(lambda: iter(np.array_split(numbers, 3)), high, (0.5, 0.95, 0.99, 1.0))
    assert counting.quantiles(lambda: iter([numbers[:0]]), high, (0.5,)) is None
    assert result == pytest.approx([expected[49], expected[94], expected[98], numbers.max()])


def test_a_cancelled_computation_ends_between_two_blocks() -> None:
    cancelled = threading.Event()
    with spill.cancellable(cancelled):
        counting.count_codes(np.zeros(10, np.int8), None, 1)
        cancelled.set()
        with pytest.raises(spill.Cancelled):
            counting.count_codes(np.zeros(10, np.int8), None, 1)
    counting.count_codes(np.zeros(10, np.int8), None, 1)
