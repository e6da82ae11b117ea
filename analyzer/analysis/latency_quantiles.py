"""Quantiles of latencies by API, from histograms that add up over windows, shares and capture points.

In: exchanges whose latency's parts are known (`latency.py`). Out: the smallest latency that at least q of all do not
exceed, as everywhere in kwire. Buckets are 1.6 % wide, so they cost no memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.exchange_tables import latency_us, queue_us
from kwire.analyzer.bulk.rows import Exchanges
from kwire.analyzer.frame import arrow
from kwire.analyzer.protocol import api_keys as apis

_FINE_BITS: Final = 6
"""Bits after the leading one that tell buckets apart: 2**-6 is 1.6 %."""

_WAITING: Final = (apis.FETCH, apis.SHARE_FETCH, apis.JOIN_GROUP, apis.SYNC_GROUP)
"""APIs whose answers brokers hold on purpose until there is data, or until all members are there."""


def _buckets(micros: np.ndarray) -> np.ndarray:
    """The bucket of each latency: exact below 128 us, then 64 for each doubling."""
    values = np.maximum(micros, 1).astype(np.int64)
    exponent = np.frexp(values.astype(np.float64))[1] - 1
    shift = np.maximum(exponent - _FINE_BITS, 0)
    buckets: np.ndarray = (shift << _FINE_BITS) + (values >> shift)
    return buckets


@dataclass(slots=True)
class Bucket:
    """Latencies that are nearly the same: how many, the smallest and the largest."""

    count: int
    least: int
    most: int


@dataclass(slots=True)
class Histogram:
    """Latencies in microseconds, by bucket."""

    buckets: dict[int, Bucket] = field(default_factory=dict)

    def add(self, micros: np.ndarray) -> None:
        """Add latencies, int64[n], none below 0."""
        if not len(micros):
            return
        timed = np.sort(micros)
        numbers = _buckets(timed)  # in order too
        starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        ends = np.append(starts[1:], len(numbers))
        columns = numbers[starts], ends - starts, timed[starts], timed[ends - 1]
        for bucket in zip(*(values.tolist() for values in columns), strict=True):
            self._put(*bucket)

    def join(self, other: Histogram) -> None:
        """Add the latencies of another one."""
        for number, bucket in other.buckets.items():
            self._put(number, bucket.count, bucket.least, bucket.most)

    def _put(self, number: int, count: int, least: int, most: int) -> None:
        bucket = self.buckets.get(number)
        if bucket is None:
            self.buckets[number] = Bucket(count, least, most)
        else:
            bucket.count += count
            bucket.least, bucket.most = min(bucket.least, least), max(bucket.most, most)

    def quantile(self, percent: int) -> int | None:
        """The smallest latency in us that at least so many of a hundred do not exceed: itself where it is the first or
        the last of its bucket, else the middle between these, which is at most 1.6 % off."""
        total = sum(bucket.count for bucket in self.buckets.values())
        before, rank = 0, -(-percent * total // 100)
        for number in sorted(self.buckets):
            bucket = self.buckets[number]
            if before + bucket.count >= rank:
                first, last = rank == before + 1, rank == before + bucket.count
                return bucket.least if first else bucket.most if last else (bucket.least + bucket.most) // 2
            before += bucket.count
        return None

    def as_dict(self) -> dict[str, int | None]:
        """The quantiles that a summary has, and the largest."""
        most = max((bucket.most for bucket in self.buckets.values()), default=None)
        return {"p50": self.quantile(50), "p95": self.quantile(95), "p99": self.quantile(99), "max": most}


@dataclass(slots=True)
class OwnLatencies:
    """Latencies without what was waited behind a connection's earlier requests, for a throttle or on purpose.

    They are what percentiles of views and reports are of (`timed_exchanges.own_us`). `apis`: by API key.
    """

    apis: dict[int, Histogram] = field(default_factory=dict)

    def take(self, rows: Iterable[Exchanges]) -> None:
        """Add exchanges that are about to become rows, so that no part of their latency changes any more."""
        for exchanges in rows:
            x = exchanges.columns
            own = own_us(x)
            keys = x[s.X_API_KEY]
            for key in arrow.distinct(keys).tolist():
                here = own[(keys == key) & (own >= 0)]
                if len(here):
                    self.of(key).add(here)

    def of(self, key: int) -> Histogram:
        """The latencies of an API."""
        return self.apis.setdefault(key, Histogram())

    def join(self, other: OwnLatencies) -> None:
        """Add those of further exchanges."""
        for key, histogram in other.apis.items():
            self.of(key).join(histogram)


def own_us(x: np.ndarray) -> np.ndarray:
    """Return int64[n]: latencies of exchanges as `timed_exchanges.own_us` has them, NULL where that cannot be told.

    x   int64[X_COLUMNS, n]
    """
    latency, _ = latency_us(x)
    own = latency - queue_us(x, latency) - np.maximum(x[s.X_MUTED_US], 0)  # NULL is below 0
    held = x[s.X_HOLD_US]
    waits = arrow.among(x[s.X_API_KEY], _WAITING) & (x[s.X_CAUSE] != s.NULL)
    own = np.where(waits, own - np.maximum(held, 0), own)
    unknown = (latency == s.NULL) | (waits & (held == s.NULL))
    return np.where(unknown, s.NULL, own)
