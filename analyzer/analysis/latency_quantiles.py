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

_NEVER: Final = np.iinfo(np.int64).max

_WAITING: Final = (apis.FETCH, apis.SHARE_FETCH, apis.JOIN_GROUP, apis.SYNC_GROUP)
"""APIs whose answers brokers hold on purpose until there is data, or until all members are there."""


def _buckets(micros: np.ndarray) -> np.ndarray:
    """The bucket of each latency: exact below 128 us, then 64 for each doubling."""
    values = np.maximum(micros, 1).astype(np.int64)
    exponent = np.frexp(values.astype(np.float64))[1] - 1
    shift = np.maximum(exponent - _FINE_BITS, 0)
    buckets: np.ndarray = (shift << _FINE_BITS) + (values >> shift)
    return buckets


_COUNT, _LEAST, _MOST = range(3)


def _no_buckets() -> np.ndarray:
    buckets = np.zeros((3, 1 << _FINE_BITS), np.int64)
    buckets[_LEAST] = _NEVER
    return buckets


@dataclass(slots=True)
class Histogram:
    """Latencies in microseconds, by bucket.

    buckets   int64[3, n]: how many, the smallest and the largest of each bucket's
    """

    buckets: np.ndarray = field(default_factory=_no_buckets)

    def add(self, micros: np.ndarray) -> None:
        """Add latencies, int64[n], none below 0."""
        if not len(micros):
            return
        numbers = _buckets(micros)
        counts = np.bincount(numbers)
        self._grow(len(counts))
        self.buckets[_COUNT, : len(counts)] += counts
        np.minimum.at(self.buckets[_LEAST], numbers, micros)
        np.maximum.at(self.buckets[_MOST], numbers, micros)

    def join(self, other: Histogram) -> None:
        """Add the latencies of another one."""
        count = other.buckets.shape[1]
        self._grow(count)
        own = self.buckets[:, :count]
        own[_COUNT] += other.buckets[_COUNT]
        np.minimum(own[_LEAST], other.buckets[_LEAST], out=own[_LEAST])
        np.maximum(own[_MOST], other.buckets[_MOST], out=own[_MOST])

    def _grow(self, count: int) -> None:
        """Make room for so many buckets."""
        while self.buckets.shape[1] < count:
            empty = _no_buckets()
            self.buckets = np.concatenate([self.buckets] + [empty] * (self.buckets.shape[1] // empty.shape[1]), axis=1)

    def quantile(self, percent: int) -> int | None:
        """The smallest latency in us that at least so many of a hundred do not exceed: itself where it is the first or
        the last of its bucket, else the middle between these, which is at most 1.6 % off."""
        until = np.cumsum(self.buckets[_COUNT])
        rank = -(-percent * int(until[-1]) // 100)
        if not until[-1]:
            return None
        number = int(np.searchsorted(until, max(rank, 1)))
        count, least, most = map(int, self.buckets[:, number])
        first, last = rank == int(until[number]) - count + 1, rank == int(until[number])
        return least if first else most if last else (least + most) // 2

    def as_dict(self) -> dict[str, int | None]:
        """The quantiles that a summary has, and the largest."""
        most = int(self.buckets[_MOST].max()) if self.buckets[_COUNT].any() else None
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
