"""Intervals of changes: by how much a figure is more or less after than before, at least and at most.

In: sums by block of time, values by block of time, or counts of values, of both sides. Out: an `Interval`, and whether
it is beyond what counts as a change. Pure.

Rules. A ratio's error comes from its blocks, so that what comes in bursts is not taken for many observations; a count
has Poisson's error at least. A median's is the larger of Price and Bonett's and that of the blocks' medians. Intervals
are simultaneous: `CONFIDENCE` holds for all figures of a comparison together (Bonferroni). A figure has changed where
the end of its interval that is nearer to "no change" is more than `SHARE` away from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from kwire.analyzer.common import statistics

CONFIDENCE: Final = 0.95
SHARE: Final = 0.2
"""A change below it is nothing that anybody would act on, however sure it is; as of `kwire diff`."""
BLOCKS: Final = 24
"""Blocks of time that a side is divided into: enough for an error, and each long beside a burst."""
ENOUGH: Final = 30
"""Values on each side below which no median is compared; as of `kwire diff`."""
FEWEST: Final = 8
"""Events, and blocks with any, on each side below which no ratio is compared."""
RUNS: Final = 6.0
"""So many times the variance between blocks is that between runs: a machine that is busy for a while is so in one run
and not in the other."""
POINTS: Final = 0.1
"""By so much of all observations a value's share must have changed, where both sides have values in common."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure before and after, and its change with its ends: as a factor, or, where `is_difference`, as an amount."""

    before: float
    after: float
    low: float
    high: float
    is_difference: bool = False


@dataclass(frozen=True, slots=True)
class Sums:
    """A ratio by block of time: float64[BLOCKS] each. `is_count`: its numerator counts events."""

    numerator: np.ndarray
    denominator: np.ndarray
    is_count: bool = True

    @property
    def value(self) -> float | None:
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else None

    @property
    def blocks(self) -> int:
        """Blocks in which there is anything to divide by."""
        return int(np.count_nonzero(self.denominator))

    def relative_error(self) -> float:
        """Standard error of the ratio, as a part of it."""
        numerator, denominator = self.numerator, self.denominator
        total, whole = float(numerator.sum()), float(denominator.sum())
        residual = numerator - total / whole * denominator
        count = self.blocks
        variance = count / max(count - 1, 1) * float((residual**2).sum()) / total**2
        chance = 1 / total if self.is_count else 0.0
        return math.sqrt(chance + RUNS * max(variance - chance, 0.0))


@dataclass(frozen=True, slots=True)
class Values:
    """Values with the block of time of each."""

    values: np.ndarray
    blocks: np.ndarray


def critical(comparisons: int, freedom: float = math.inf) -> float:
    """How many standard errors an interval reaches to each side, if there are so many of them. `freedom`: degrees of
    it, for an error that was estimated from few blocks (two terms of Student's t, Cornish and Fisher)."""
    normal = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / max(comparisons, 1))
    freedom = max(freedom, 1)
    first = (normal**3 + normal) / (4 * freedom)
    return normal + first + (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * freedom**2)


def of_ratio(before: Sums, after: Sums, comparisons: int) -> Interval | None:
    """The factor of change; None where there is too little on a side."""
    first, second = before.value, after.value
    if first is None or second is None:
        return None
    if not first or not second:
        return _from_nothing(before, after, comparisons)
    if min(before.blocks, after.blocks) < FEWEST:
        return None
    if before.is_count and min(before.numerator.sum(), after.numerator.sum()) < FEWEST:
        return None
    error = math.hypot(before.relative_error(), after.relative_error())
    reach = critical(comparisons, min(before.blocks, after.blocks) - 1) * error
    factor = math.log(second / first)
    return Interval(first, second, _exp(factor - reach), _exp(factor + reach))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _from_nothing(before: Sums, after: Sums, comparisons: int) -> Interval | None:
    """Of a count that is 0 on a side: sure where the other side's rate would have shown it there."""
    some, none = (after, before) if after.value else (before, after)
    if not some.value:
        return Interval(0.0, 0.0, 1.0, 1.0)
    total = float(some.numerator.sum())
    # Events that come in bursts tell less than as many that come singly.
    bursts = max((some.relative_error() * math.sqrt(total)) ** 2, 1.0)
    expected = some.value * float(none.denominator.sum()) / bursts
    if total < FEWEST or math.exp(-expected) > (1 - CONFIDENCE) / max(comparisons, 1):
        return None
    low, high = (0.0, 0.0) if none is after else (math.inf, math.inf)
    return Interval(before.value or 0.0, after.value or 0.0, low, high)


def of_median(before: Values, after: Values, comparisons: int, load: float = 1.0) -> Interval | None:
    """The difference of two medians; None where there is too little on a side. `load`: how many times longer all takes
    after."""
    if min(len(before.values), len(after.values)) < ENOUGH:
        return None
    (first, first_error), (second, second_error) = _median(before), _median(after)
    reach = critical(comparisons) * math.hypot(load * first_error, second_error)
    shift = second - load * first
    return Interval(first, second, shift - reach, shift + reach, is_difference=True)


def _median(side: Values) -> tuple[float, float]:
    """The median, and its standard error."""
    median, error = statistics.median(side.values.tolist())
    medians = [float(np.median(side.values[side.blocks == block])) for block in np.unique(side.blocks).tolist()]
    if len(medians) < FEWEST:
        return median, error
    return median, max(error, float(np.std(medians, ddof=1)) * math.sqrt(RUNS / len(medians)))


def factor_changed(interval: Interval) -> bool:
    """Whether a factor is beyond what counts as no change."""
    return interval.low > 1 + SHARE or interval.high < 1 / (1 + SHARE)


def amount_changed(interval: Interval, least: float, load: float = 1.0) -> bool:
    """Whether a difference is beyond `SHARE` of what it was, and beyond `least`."""
    beyond = max(least, SHARE * load * interval.before)
    # Of what has become less, the share is of what is left, so that before and after can change places.
    below = max(least, SHARE * max(interval.after, 0.0))
    return interval.low > beyond or interval.high < -below


def shares_changed(before: Mapping[str, int], after: Mapping[str, int], comparisons: int) -> bool:
    """Whether values differ: sides that have none in common do; else a value whose share has changed, surely and by
    `POINTS` at least."""
    if not before or not after:
        return False
    if not set(before) & set(after):
        return True
    of_before, of_after = sum(before.values()), sum(after.values())
    for value in {*before, *after}:
        first, second = before.get(value, 0), after.get(value, 0)
        if abs(first / of_before - second / of_after) < POINTS:
            continue
        chance = min(
            statistics.more_often(first, of_before, second, of_after),
            statistics.more_often(second, of_after, first, of_before),
        )
        if chance < (1 - CONFIDENCE) / 2 / max(comparisons, 1):
            return True
    return False


def merged(*counters: Mapping[str, int]) -> Counter[str]:
    """The sum of counts."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total
