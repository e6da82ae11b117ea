"""Is one side slower than the other, beyond noise? By API, of latencies that were not the wait for something else.

In: latencies of both sides. Out: by how much the median has shifted at least, with 95 % confidence, where that is more
than `SHARE` and `MICROSECONDS`. Pure. The interval of a difference of two medians is Price and Bonett's (2002), from
order statistics, which no outlier moves.

Whatever else a machine does makes all APIs slower together. So what all have in common is load (`load`), and an API is
slower by what goes beyond that; where it is more than `MOST_LOAD` it is no other load, but the target. At `--speed max`
a side is as busy as its machine lets it be, so load is presumed where there is no other API to tell it by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from kwire.analyzer.common import statistics
from kwire.analyzer.options.values import SLOWER_FACTOR

ENOUGH: Final = 30
"""Answers on each side below which nothing is said."""
ENOUGH_OF_TAILS: Final = 200
TAIL: Final = 0.98
"""Answers on each side from which the slowest are judged by themselves, and the quantile where they begin."""
SHARE: Final = SLOWER_FACTOR - 1
"""Of the latency, more than which is slower."""
MICROSECONDS: Final = 5_000
MOST_LOAD: Final = 2.0
"""So many times longer is what a busy machine explains at most."""
_CONFIDENCE: Final = 1.96


def shift(
    left: Sequence[int], right: Sequence[int], load: float = 1.0, share: float = SHARE
) -> tuple[float, float, float] | None:
    """(median there, median here, the least by which it is more with 95 % confidence), us; None where the right is not
    slower beyond noise. `load`: how many times longer all answers take on the right; `share`: of the latency, more than
    which is slower."""
    if min(len(left), len(right)) < ENOUGH:
        return None
    (before, error_before), (after, error_after) = statistics.median(left), statistics.median(right)
    expected = load * before
    least = after - expected - _CONFIDENCE * math.hypot(load * error_before, error_after)
    return (before, after, least) if least > MICROSECONDS and least > share * expected else None


def tail(left: Sequence[int], right: Sequence[int]) -> tuple[float, float, float] | None:
    """(98th percentile there, here, the least by which it is more with 95 % confidence), us; None where either has too
    few. The bounds are order statistics, by the binomial distribution of how many lie below the percentile."""
    if min(len(left), len(right)) < ENOUGH_OF_TAILS:
        return None
    bounds = []
    for values, sign in ((sorted(left), 1), (sorted(right), -1)):
        count = len(values)
        spread = _CONFIDENCE * math.sqrt(count * TAIL * (1 - TAIL))
        at, bound = (min(max(math.ceil(place), 1), count) for place in (count * TAIL, count * TAIL + sign * spread))
        bounds.append((values[at - 1], values[bound - 1]))
    (before, most_before), (after, least_after) = bounds
    return before, after, least_after - most_before


def load(others: Iterable[tuple[Sequence[int], Sequence[int]]], presumed: float = 1.0) -> float:
    """How many times longer the right took for load alone, by the latencies of all APIs but one: as the one of them
    that is slower by most. `presumed`: where no other has enough answers."""
    ratios = [
        statistics.median(right)[0] / max(statistics.median(left)[0], 1.0)
        for left, right in others
        if min(len(left), len(right)) >= ENOUGH
    ]
    return max(min(max(ratios, default=presumed), MOST_LOAD), 1.0)
