"""Times at which clients got records of their partitions, which show for how long a group's member was stopped.

In: windows. Out: for a client, partitions and a time, the records before, after, and the largest gap between. Rules: by
columns, no object a row. Times are kept in bins, of each its first and its last time; bins begin at `BIN_NS` and double
if there would be more than `MAX_BINS`, so that state is bounded, and the same for all windows and shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kwire.analyzer.analysis.combinations import combinations, largest, smallest
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.frame import arrow
from kwire.analyzer.protocol import api_keys as apis

BIN_NS: Final = 1 << 24
"""17 ms: the precision of a stop, where more than two fetches in that time brought records of the partition."""
MAX_BINS: Final = 1 << 20
"""Bins of all clients and partitions together; one takes 32 bytes."""
MAX_QUIET: Final = 100_000
"""Clients and partitions without recent records that are remembered from one rotation to the next."""

Key = tuple[str | None, str, str, int]
"""Client id, address, topic or its id, partition."""
Client = tuple[str | None, str]

_READING: Final = np.array([apis.FETCH, apis.SHARE_FETCH])


def _none() -> np.ndarray:
    return np.zeros((4, 0), np.int64)


@dataclass(slots=True)
class DeliveryTimes:
    """Bins int64[4, n]: number of the key, number of the bin, first and last time. `_fresh`: rows not put in order."""

    _numbers: dict[Key, int] = field(default_factory=dict)
    _bins: np.ndarray = field(default_factory=_none)
    _fresh: list[np.ndarray] = field(default_factory=list)
    _waiting: int = 0
    _bin_ns: int = BIN_NS

    @property
    def keys(self) -> int:
        """Number of clients and partitions with records."""
        return len(self._numbers)

    def take(self, window: Window) -> None:
        """Fetches of a window that brought records."""
        every = window.every
        parts = every.partitions
        rows = np.flatnonzero(arrow.among(every.column("api_key"), _READING)[every.owner])
        records = parts[s.P_RECORDS, rows]
        rows = rows[(records > 0) | ((records == s.NULL) & (parts[s.P_RECORD_BYTES, rows] > 0))]
        rows = rows[every.column("response_end")[every.owner[rows]] != s.NULL]
        if not len(rows):
            return
        owner = every.owner[rows]
        time = every.column("response_end")[owner]
        topic = np.where(parts[s.P_TOPIC, rows] != s.NULL, parts[s.P_TOPIC, rows], parts[s.P_TOPIC_ID, rows])
        columns = every.column("client_id")[owner], every.connection[owner], topic, parts[s.P_PARTITION, rows]
        first, which = combinations(*columns)
        names, strings = window.names, window.names.strings
        number_of = np.empty(len(first), np.int64)
        for i, (client, connection, named, partition) in enumerate(
            zip(*(c[first].tolist() for c in columns), strict=True)
        ):
            ip = strings[names.ends[connection][0]]
            key = (
                strings[client] if client != s.NULL else None,
                ip,
                strings[named] if named != s.NULL else "",
                partition,
            )
            number_of[i] = self._numbers.setdefault(key, len(self._numbers))
        key_numbers, bins = number_of[which], time // self._bin_ns
        at, place = combinations(key_numbers, bins)
        fresh = np.stack([key_numbers[at], bins[at], smallest(time, place, len(at)), largest(time, place, len(at))])
        self._add(fresh)

    def _add(self, fresh: np.ndarray) -> None:
        self._fresh.append(fresh)
        self._waiting += fresh.shape[1]
        if self._waiting > max(1 << 16, self._bins.shape[1]):
            self._settle()

    def _settle(self) -> None:
        """Put all rows in order, one a bin, and widen the bins until there are not too many."""
        self._merge()
        while self._bins.shape[1] > MAX_BINS and self._bins.shape[1] > len(self._numbers):
            self._widen()

    def _widen(self) -> None:
        self._bin_ns *= 2
        self._bins[1] //= 2
        self._merge()

    def _merge(self) -> None:
        bins = np.concatenate([self._bins, *self._fresh], axis=1)
        self._fresh, self._waiting = [], 0
        order = np.lexsort((bins[2], bins[1], bins[0]))
        bins = bins[:, order]
        if bins.shape[1]:
            new = np.append(True, (bins[0, 1:] != bins[0, :-1]) | (bins[1, 1:] != bins[1, :-1]))
            starts = np.flatnonzero(new)
            last = np.maximum.reduceat(bins[3], starts)
            bins = bins[:, starts]
            bins[3] = last
        self._bins = bins

    def onward(self, since_ns: int) -> DeliveryTimes:
        """Return the times since `since_ns`, and the last one before of each client and partition."""
        self._settle()
        bins, after = self._bins, DeliveryTimes()
        last = np.append(bins[0, 1:] != bins[0, :-1], True) if bins.shape[1] else np.zeros(0, bool)
        before = np.flatnonzero(last & (bins[3] < since_ns))
        chosen = (bins[3] >= since_ns) | last
        chosen[before[np.argsort(bins[3, before])][:-MAX_QUIET]] = False
        names = list(self._numbers)
        after._bins = bins[:, chosen].copy()
        used, after._bins[0] = np.unique(after._bins[0], return_inverse=True)
        after._numbers = {names[number]: place for place, number in enumerate(used.tolist())}
        after._bins[1] = after._bins[2] // after._bin_ns
        return after

    def join(self, other: DeliveryTimes) -> None:
        self._settle()
        other._settle()
        while self._bin_ns < other._bin_ns:
            self._widen()
        while other._bin_ns < self._bin_ns:
            other._widen()
        numbers = np.array([self._numbers.setdefault(key, len(self._numbers)) for key in other._numbers], np.int64)
        other_bins = other._bins.copy()
        if other_bins.shape[1]:
            other_bins[0] = numbers[other_bins[0]]
        self._add(other_bins)
        self._settle()

    def by_client(self, topic_name: Callable[[str], str]) -> ClientDeliveryTimes:
        """To be asked."""
        self._settle()
        starts = np.searchsorted(self._bins[0], np.arange(len(self._numbers) + 1))
        times_by_client: dict[Client, dict[tuple[str, int], list[np.ndarray]]] = {}
        for (client, ip, topic, partition), number in self._numbers.items():
            times = self._bins[2:, starts[number] : starts[number + 1]]
            times_by_client.setdefault((client, ip), {}).setdefault((topic_name(topic), partition), []).append(times)
        return ClientDeliveryTimes(times_by_client)


@dataclass(slots=True)
class ClientDeliveryTimes:
    """Times at which records came, int64[2, n] of bins, by client and partition."""

    _times: dict[Client, dict[tuple[str, int], list[np.ndarray]]]

    def stopped_ns(
        self,
        client: Client,
        before: Iterable[tuple[str, int]] | None,
        after: Iterable[tuple[str, int]] | None,
        stop_ns: int,
        go_ns: int,
    ) -> int | None:
        """Return how long a member was stopped that had to stop at `stop_ns` and could go on at `go_ns`.

        That is the largest gap in its records, from its last of the partitions `before` until then to its first of
        those `after` from then on (None: of any). None if it had none before or none after, or the times contradict
        each other.
        """
        of = self._times.get(client)
        if of is None:
            return None
        had, has = (self._of(of, partitions) for partitions in (before, after))
        until = had[0][had[0] <= stop_ns]
        since = has[1][has[1] >= go_ns]
        if not len(until) or not len(since):
            return None
        begin = min(int(had[1][had[0] <= stop_ns].max()), stop_ns)
        end = max(int(has[0][has[1] >= go_ns].min()), go_ns)
        both = np.concatenate([had, has], axis=1)
        inside = both[:, (both[1] > begin) & (both[0] < end)]
        order = np.argsort(inside[0])
        starts = np.append(np.maximum(inside[0, order], begin), end)
        ends = np.maximum.accumulate(np.append(begin, np.minimum(inside[1, order], end)))
        longest = int((starts - ends).max())
        return longest if longest >= 0 else None

    def unread_ns(self, client: Client, heirs: Mapping[tuple[str, int], Client], stop_ns: int) -> int | None:
        """Return how long nobody got records of partitions whose reader had gone by `stop_ns`.

        That is from the last records that `client` got of any of them to the first that its heirs, by partition, got
        after that. None if there are none before, or none after.
        """
        before = self._of(self._times.get(client, {}), heirs)
        begun = before[0][before[0] <= stop_ns]
        if not len(begun):
            return None
        begin = min(int(before[1][before[0] <= stop_ns].max()), stop_ns)
        later = [self._of(self._times.get(heir, {}), [partition])[0] for partition, heir in heirs.items()]
        times = np.concatenate(later)
        return int(times[times > begin].min()) - begin if (times > begin).any() else None

    @staticmethod
    def _of(of: dict[tuple[str, int], list[np.ndarray]], partitions: Iterable[tuple[str, int]] | None) -> np.ndarray:
        chosen = of.values() if partitions is None else [of[partition] for partition in partitions if partition in of]
        return np.concatenate([_none()[2:], *(times for several in chosen for times in several)], axis=1)
