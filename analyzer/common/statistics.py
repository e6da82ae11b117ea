"""Statistics that comparisons share: a median with its error, and how likely it is that something is more frequent.

In: numbers. Out: numbers. Pure, without NumPy, so that whoever compares a few values needs nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def median(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and its standard error, from order statistics, which no outlier moves (Price, Bonett 2002)."""
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    # The ranks between which the median lies with a confidence of two standard deviations.
    low = max(math.floor((count + 1) / 2 - math.sqrt(count)), 1)
    return middle, (ordered[count - low] - ordered[low - 1]) / 4


def more_often(before: int, of_before: int, after: int, of_after: int) -> float:
    """Return the chance that `after` of `of_after` or more differ, where both differ equally often and that many differ
    in all (Fisher's exact test, one-sided)."""
    both, total = before + after, of_before + of_after
    if after <= max(both - of_before, 0):
        return 1.0
    whole = _choose(total, both)
    chances = (
        _choose(of_after, count) + _choose(of_before, both - count) - whole
        for count in range(after, min(both, of_after) + 1)
    )
    return min(sum(map(math.exp, chances)), 1.0)


def _choose(count: int, some: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(some + 1) - math.lgamma(count - some + 1)
