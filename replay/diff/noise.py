"""Noise, learned: what differs between two replays at the same target differs by itself.

In: the comparison of old against old, and that of old against new. Out: which kinds of difference are noise in the
second; by how much quantiles of latencies have shifted, and which of these shifts are more than noise. Pure; the
resampling begins from a fixed seed, so the same RUNs give the same verdict.

Rules. A difference counts where new differs *more* than old from old: one that old against old does not show counts at
once; one that it shows too (same API, field and kind, in either direction) counts where it is more often than that with
a confidence of `CONFIDENCE` (Fisher's exact test, one-sided, by answers of the API). A latency is slower where the
lower end of the bootstrap interval (percentile, `CONFIDENCE`) of a quantile's shift is above what old differs from old
(the end of that interval farther from 0), above `SHARE` of the quantile and above `MICROSECONDS`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kwire.analyzer.common import statistics
from kwire.analyzer.options.values import SLOWER_FACTOR
from kwire.replay.diff.differences import Difference, Grouped

CONFIDENCE: Final = 0.95
SHARE: Final = SLOWER_FACTOR - 1
MICROSECONDS: Final = 1_000
"""A shift below these is nothing that anybody would act on, however sure it is."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_BEYOND: Final = 10
"""Answers that must lie beyond a quantile on each side: with fewer its interval says nothing."""
_RESAMPLES: Final = 4000
_SEED: Final = 18

Kind = tuple[int, str, str, frozenset[str]]
"""API, field path, kind of difference without its direction, the errors (or states) of it."""

_EITHER_WAY: Final = {
    "error appeared": "error",
    "error vanished": "error",
    "error changed": "error",
    "missing": "presence",
    "extra": "presence",
    "record missing": "record",
    "record extra": "record",
}


def kind_of(difference: Difference | Grouped) -> Kind:
    """Key of a difference that is the same where comparing the old run with itself shows it."""
    named = difference.row["api_key"] if isinstance(difference, Difference) else difference.api_key
    by_values = difference.kind.startswith(("error", "state"))
    values = frozenset((difference.left, difference.right)) if by_values else frozenset[str]()
    return named, difference.path, _EITHER_WAY.get(difference.kind, difference.kind), values


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much a quantile is more on the right, us: the figure, and its interval; `noise`: how far old is from old
    at most, by the same interval; `before`: the quantile on the left; `share`: of it, more than which is slower."""

    quantile: str
    before: float
    shift: float
    low: float
    high: float
    noise: float
    share: float = SHARE

    @property
    def slower(self) -> bool:
        return self.low > max(self.noise, MICROSECONDS, self.share * self.before)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        figures = {"shift_us": self.shift, "low_us": self.low, "high_us": self.high, "noise_us": self.noise}
        return {name: round(value) for name, value in figures.items()} | {"slower": self.slower}


@dataclass(frozen=True, slots=True)
class Noise:
    """Differences of the old run from itself: kinds of difference with their counts, whatever the reason; answers
    compared by API; latencies by API, of both."""

    kinds: Counter[Kind] = field(default_factory=Counter)
    compared: Counter[int] = field(default_factory=Counter)
    latencies: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict)

    def explains(self, groups: Iterable[Grouped], compared: Mapping[int, int]) -> frozenset[Kind]:
        """The kinds of unexpected difference that old against old shows as often. `compared`: answers of old against
        new by API."""
        counts: Counter[Kind] = Counter()
        for group in groups:
            if group.unexpected:
                counts[kind_of(group)] += group.count
        return frozenset(kind for kind, count in counts.items() if self._as_often(kind, count, compared))

    def _as_often(self, kind: Kind, count: int, compared: Mapping[int, int]) -> bool:
        there = self.kinds[kind]
        if not there:
            return False
        # An answer can differ in several places: then there are more differences than answers.
        of_old = max(self.compared[kind[0]], there)
        of_new = max(compared.get(kind[0], 0), count)
        return statistics.more_often(there, of_old, count, of_new) > 1 - CONFIDENCE

    def shifts(
        self, latencies: Mapping[str, tuple[Sequence[int], Sequence[int]]], share: float = SHARE
    ) -> dict[str, list[Shift]]:
        """Of old against new, by API. `share`: of a quantile, more than which is slower."""
        by_api = {}
        for api, (left, right) in sorted(latencies.items()):
            shifts = list(_shifts((left, right), self.latencies.get(api, ((), ())), share))
            if shifts:
                by_api[api] = shifts
        return by_api


def learn(groups: Iterable[Grouped], compared: Counter[int], latencies: Mapping[str, Any]) -> Noise:
    """From a comparison of old against old: expected differences teach too."""
    kinds: Counter[Kind] = Counter()
    for group in groups:
        kinds[kind_of(group)] += group.count
    return Noise(kinds, compared, latencies)


def _shifts(
    both: tuple[Sequence[int], Sequence[int]], old: tuple[Sequence[int], Sequence[int]], share: float
) -> Iterable[Shift]:
    """Of each quantile that has enough answers beyond it, on both sides and in both old runs."""
    sides = [np.sort(np.asarray(side, np.float64)) for side in (*both, *old)]
    fewest = min(map(len, sides))
    for name, part in QUANTILES.items():
        if fewest * (1 - part) < _BEYOND:
            continue
        figure, low, high = shift(sides[0], sides[1], part)
        _, noise_low, noise_high = shift(sides[2], sides[3], part)
        before = _quantile(sides[0], part)
        yield Shift(name, before, figure, low, high, max(abs(noise_low), abs(noise_high)), share)


Ordered = npt.NDArray[np.float64]


def shift(left: Ordered, right: Ordered, part: float) -> tuple[float, float, float]:
    """(by how much a quantile is more on the right, the bootstrap interval's ends) of ordered values."""
    chance = np.random.default_rng(_SEED)
    differences = _resampled(right, part, chance) - _resampled(left, part, chance)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, (tail, 1 - tail))
    return _quantile(right, part) - _quantile(left, part), float(low), float(high)


def _rank(count: int, part: float) -> int:
    return max(math.ceil(part * count), 1)


def _quantile(ordered: Ordered, part: float) -> float:
    return float(ordered[_rank(len(ordered), part) - 1])


def _resampled(ordered: Ordered, part: float, chance: np.random.Generator) -> Ordered:
    """The quantile of each of many samples drawn from these values. Not drawn value by value: the k-th smallest of n
    draws is the value at the k-th smallest of n uniform ranks, which has a Beta distribution."""
    count = len(ordered)
    rank = _rank(count, part)
    ranks = chance.beta(rank, count - rank + 1, _RESAMPLES)
    at = np.minimum((ranks * count).astype(np.int64), count - 1)
    drawn: Ordered = ordered[at]
    return drawn


def lines(shifts: Mapping[str, Sequence[Shift]]) -> list[str]:
    """For a person."""
    lines = []
    for api, some in shifts.items():
        quantiles = ", ".join(
            f"{shift.quantile} {shift.shift / 1000:+.2f} ms ({shift.low / 1000:+.2f} to {shift.high / 1000:+.2f}, "
            f"noise {shift.noise / 1000:.2f}){' slower' if shift.slower else ''}"
            for shift in some
        )
        lines.append(f"  {api:<24}{quantiles}")
    return lines
