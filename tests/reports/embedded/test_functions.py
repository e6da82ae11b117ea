"""Quantiles of the embedded engine are Spark's, as a list written out gives them.

Proves: kwire.reports.embedded.functions.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kwire.reports.embedded.functions import percentiles

COUNTED = st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(1, 50)), min_size=1, max_size=30)


@given(COUNTED, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_a_quantile_lies_between_its_neighbours_in_the_sorted_list(
    counted: list[tuple[int, int]], wanted: list[float]
) -> None:
    whole = sorted(value for value, count in counted for _ in range(count))
    values, counts = (np.array(column) for column in zip(*counted))
    quantiles = percentiles(values.astype(float), counts, np.array(wanted))
    assert quantiles == percentiles(np.array(whole[::-1], float), None, np.array(wanted))
    for quantile, value in zip(wanted, quantiles, strict=True):
        place = (len(whole) - 1) * quantile
        low, high = whole[int(np.floor(place))], whole[int(np.ceil(place))]
        assert value == low + (high - low) * (place - np.floor(place))


def test_the_median_of_one_value_is_that_value() -> None:
    assert percentiles(np.array([7.0]), np.array([3]), np.array([0.0, 0.5, 1.0])) == [7.0, 7.0, 7.0]
