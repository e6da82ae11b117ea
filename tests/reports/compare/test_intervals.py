"""Intervals: what is drawn twice from one distribution does not differ, what was changed does, and what is too little
or comes in bursts is not sure. Everything is drawn with seeds.

Proves: reports/compare/intervals.py, analyzer/common/statistics.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from kwire.reports.compare import intervals
from kwire.reports.compare.intervals import BLOCKS, Sums, Values

MANY = 200
"""Comparisons at once, as of a capture with many clients."""


def sums(counts: np.ndarray, each: float = 1.0) -> Sums:
    return Sums(counts.astype(np.float64), np.full(BLOCKS, each))


def drawn(seed: int, mean: float) -> Sums:
    return sums(np.random.default_rng(seed).poisson(mean, BLOCKS))


def test_a_rate_that_stays_is_hardly_ever_a_change() -> None:
    changed = 0
    for seed in range(2_000):
        interval = intervals.of_ratio(drawn(seed, 5), drawn(seed + 10_000, 5), 1)
        assert interval is not None
        changed += intervals.factor_changed(interval)
    assert changed <= 10


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_rate_that_changes_is_one_and_its_interval_has_the_factor(factor: float) -> None:
    inside = 0
    for seed in range(100):
        interval = intervals.of_ratio(drawn(seed, 100), drawn(seed + 10_000, 100 * factor), MANY)
        assert interval is not None
        assert intervals.factor_changed(interval)
        inside += interval.low < factor < interval.high
    assert inside == 100


def test_bursts_are_no_many_observations() -> None:
    """A hundred requests in one block, and a hundred everywhere: nobody knows what the first rate is."""
    burst = np.zeros(BLOCKS)
    burst[3] = 100
    even = np.full(BLOCKS, 100 / BLOCKS * 3)
    interval = intervals.of_ratio(sums(burst), sums(even), 1)
    assert interval is None or not intervals.factor_changed(interval)
    interval = intervals.of_ratio(sums(np.full(BLOCKS, 100 / BLOCKS)), sums(even), 1)
    assert interval is not None
    assert intervals.factor_changed(interval)


def test_a_machine_that_is_busy_for_a_while_is_no_change() -> None:
    """Half of a run sends twice as many requests a record: which half of the next run does nobody knows."""
    calm, busy = np.full(BLOCKS, 30.0), np.full(BLOCKS, 30.0)
    busy[: BLOCKS // 2] = 70
    interval = intervals.of_ratio(sums(calm), sums(busy), MANY)
    assert interval is not None
    assert not intervals.factor_changed(interval)
    always = intervals.of_ratio(sums(calm), sums(np.full(BLOCKS, 50.0)), MANY)
    assert always is not None
    assert intervals.factor_changed(always)


def test_blocks_of_another_length_do_not_matter() -> None:
    counts = np.random.default_rng(1).poisson(20, BLOCKS)
    interval = intervals.of_ratio(sums(counts, 1.0), sums(counts * 10, 10.0), 1)
    assert interval is not None
    assert interval.before == interval.after
    assert not intervals.factor_changed(interval)


def test_little_is_not_judged() -> None:
    few = np.zeros(BLOCKS)
    few[:7] = 1
    assert intervals.of_ratio(sums(few), drawn(1, 50), 1) is None
    assert intervals.of_ratio(sums(np.zeros(BLOCKS), 0.0), drawn(1, 50), 1) is None


def test_what_was_never_there_is_sure_if_it_would_have_shown() -> None:
    some, none = drawn(1, 2), sums(np.zeros(BLOCKS))
    appeared, vanished = intervals.of_ratio(none, some, MANY), intervals.of_ratio(some, none, MANY)
    assert appeared is not None
    assert vanished is not None
    assert (appeared.low, vanished.high) == (math.inf, 0.0)
    assert intervals.factor_changed(appeared)
    assert intervals.factor_changed(vanished)
    # In a tenth of a thousandth of the time nothing was to be expected.
    assert intervals.of_ratio(sums(np.zeros(BLOCKS), 1e-4), some, MANY) is None
    never = intervals.of_ratio(none, none, MANY)
    assert never is not None
    assert not intervals.factor_changed(never)


def test_bytes_are_no_events() -> None:
    """A sum of sizes has no Poisson error: sizes that hardly vary are sure of few."""
    size = Sums(np.full(BLOCKS, 100.0), np.full(BLOCKS, 1.0), is_count=False)
    half = Sums(np.full(BLOCKS, 50.0), np.full(BLOCKS, 1.0), is_count=False)
    interval = intervals.of_ratio(size, half, MANY)
    assert interval is not None
    assert interval.low == pytest.approx(0.5)
    assert interval.high == pytest.approx(0.5)


def values(seed: int, middle: float, count: int = 400, drift: float = 0.0) -> Values:
    chance = np.random.default_rng(seed)
    blocks = np.arange(count) * BLOCKS // count
    shift = np.repeat(chance.normal(0, drift, BLOCKS), -(-count // BLOCKS))[:count] if drift else 0.0
    return Values((middle * chance.lognormal(0, 0.5, count) + shift).astype(np.int64), blocks)


def test_medians_that_stay_and_medians_that_move() -> None:
    for seed in range(100):
        same = intervals.of_median(values(seed, 20_000), values(seed + 1000, 20_000), 1)
        moved = intervals.of_median(values(seed, 20_000), values(seed + 1000, 60_000), MANY)
        assert same is not None
        assert moved is not None
        assert not intervals.amount_changed(same, 5_000)
        assert intervals.amount_changed(moved, 5_000)
        assert moved.low < 40_000 < moved.high


def test_a_median_that_wanders_is_less_sure_than_its_values_say() -> None:
    """Latencies of one moment are alike: blocks tell how far their median wanders."""
    steady = intervals.of_median(values(1, 20_000), values(2, 20_000), 1)
    wandering = intervals.of_median(values(1, 20_000, drift=15_000), values(2, 20_000, drift=15_000), 1)
    assert steady is not None
    assert wandering is not None
    assert wandering.high - wandering.low > 2 * (steady.high - steady.low)


def test_a_median_needs_values_and_load_is_no_change() -> None:
    assert intervals.of_median(values(1, 20_000, count=29), values(2, 20_000), 1) is None
    interval = intervals.of_median(values(1, 20_000), values(2, 36_000), 1, load=1.8)
    assert interval is not None
    assert not intervals.amount_changed(interval, 5_000, load=1.8)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"none": 1}, {"zstd": 1}, True),
        ({"none": 50}, {"none": 50}, False),
        ({"none": 100}, {"none": 50, "zstd": 50}, True),
        ({"none": 10}, {"none": 9, "zstd": 1}, False),
        ({"none": 900, "zstd": 100}, {"none": 950, "zstd": 50}, False),
        ({}, {"zstd": 5}, False),
    ],
)
def test_shares(before: dict[str, int], after: dict[str, int], changed: bool) -> None:
    assert intervals.shares_changed(before, after, MANY) is changed
    assert intervals.shares_changed(after, before, MANY) is changed


def test_more_comparisons_need_more() -> None:
    assert intervals.critical(1) == pytest.approx(1.96, abs=0.001)
    assert intervals.critical(100) > 3.4
    # Student's t, 0.975, of 10 degrees of freedom is 2.228.
    assert intervals.critical(1, 10) == pytest.approx(2.228, abs=0.03)
