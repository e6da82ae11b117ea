"""Is one side slower than the other, beyond noise? By API, of latencies that were not the wait for something else.

In: latencies of both sides. Out: by how much the median has shifted at least, with 95 % confidence, where that is more
than `SHARE` and `MICROSECONDS`. Pure. The interval of a difference of two medians is Price and Bonett's (2002), from
order statistics, which no outlier moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

ENOUGH: Final = 30
"""Answers on each side below which nothing is said."""
SHARE: Final = 0.2
MICROSECONDS: Final = 5_000
_CONFIDENCE: Final = 1.96


def shift(left: Sequence[int], right: Sequence[int]) -> tuple[float, float, float] | None:
    """(median there, median here, the least by which it is more with 95 % confidence), us; None where the right is not
    slower beyond noise."""
    if min(len(left), len(right)) < ENOUGH:
        return None
    (before, error_before), (after, error_after) = _median(left), _median(right)
    least = after - before - _CONFIDENCE * math.hypot(error_before, error_after)
    return (before, after, least) if least > MICROSECONDS and least > SHARE * before else None


def _median(values: Sequence[int]) -> tuple[float, float]:
    """The median, and its standard error."""
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    # The ranks between which the median lies with a confidence of two standard deviations.
    low = max(math.floor((count + 1) / 2 - math.sqrt(count)), 1)
    return middle, (ordered[count - low] - ordered[low - 1]) / 4
