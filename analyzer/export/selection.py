"""Choose packets by connection, direction and time.

In: intervals of directions, and the columns of packets. Out: which packets lie in one. Rules: any number of intervals
and packets; addresses, ports and times alone choose, so a packet that was captured twice is chosen twice.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

End = tuple[str, int]
"""Address and port."""

_KEY: Final = ("src_hi", "src_lo", "dst_hi", "dst_lo", "src_port", "dst_port")
"""Columns that name a direction, as 64-bit numbers."""
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


class Interval(NamedTuple):
    """Packets that one end of a connection sent to the other in a span of time: ns since 1970, both ends included."""

    sender: End
    receiver: End
    first_ns: int
    last_ns: int


def halves(address: str) -> tuple[int, int]:
    """Get the high and low 64 bits of an IPv6 address, or of an IPv4-mapped one."""
    ip = ipaddress.ip_address(address)
    number = int(ip) | (0xFFFF << 32 if ip.version == 4 else 0)
    return number >> 64, number & (1 << 64) - 1


class Directions:
    """Numbers of directions by addresses and ports."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[End, End], int] = {}
        self._keys: list[tuple[int, ...]] = []
        self._sorted: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def number(self, sender: End, receiver: End) -> int:
        """Return the number of a direction, a new one if it has none yet."""
        number = self._numbers.get((sender, receiver))
        if number is None:
            number = self._numbers[sender, receiver] = len(self._keys)
            self._keys.append((*halves(sender[0]), *halves(receiver[0]), sender[1], receiver[1]))
            self._sorted = None
        return number

    def of_packets(self, columns: Any) -> np.ndarray:
        """int64[packets]: the number of each packet's direction, -1 for those that have none."""
        if self._sorted is None:
            keys = np.array(self._keys, np.uint64).reshape(-1, len(_KEY))
            hashes = _hashes(keys.T)
            order = np.argsort(hashes, kind="stable")
            self._sorted = hashes[order], order, keys
        hashes, order, keys = self._sorted
        numbers = np.full(len(columns.time_ns), -1, np.int64)
        if not len(hashes):
            return numbers
        values = [getattr(columns, name).astype(np.uint64) for name in _KEY]
        wanted = _hashes(values)
        at = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
        near = np.flatnonzero(hashes[at] == wanted)
        candidate = order[at[near]]
        # Two directions of one hash, 1 in 2**64, are told apart by their numbers; the second of them is then not found.
        same = np.all([keys[candidate, column] == values[column][near] for column in range(len(_KEY))], axis=0)
        numbers[near[same]] = candidate[same]
        return numbers


def _hashes(values: Iterable[np.ndarray]) -> np.ndarray:
    """uint64: one number for several columns of uint64."""
    mixed: np.ndarray | None = None
    for column in values:
        mixed = column if mixed is None else mixed * _FACTOR + column
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _FACTOR
    assert mixed is not None
    return mixed


class PacketSelection:
    """Intervals to choose packets by."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.directions = Directions()
        rows = [
            (self.directions.number(interval.sender, interval.receiver), interval.first_ns, interval.last_ns)
            for interval in intervals
        ]
        number, first, last = np.array(sorted(rows), np.int64).reshape(-1, 3).T
        starts = np.flatnonzero(np.r_[True, number[1:] != number[:-1]][: len(number)])
        for begin, end in zip(starts, [*starts[1:], len(number)]):
            last[begin:end] = np.maximum.accumulate(last[begin:end])  # the last end of all that began before
        self._number, self._last = number, last
        self._times = np.unique(first)
        self._key = self._keyed(number, first)

    def _keyed(self, numbers: np.ndarray, times: np.ndarray) -> np.ndarray:
        """int64: direction and time as one number: between two beginnings of intervals all times are one."""
        key: np.ndarray = numbers * (len(self._times) + 1) + np.searchsorted(self._times, times, side="right")
        return key

    def chosen(self, columns: Any) -> np.ndarray:
        """Return the indexes of the packets that lie in an interval of their direction."""
        numbers = self.directions.of_packets(columns)
        near = np.flatnonzero(numbers >= 0)
        if not len(near):
            return near
        times = columns.time_ns[near]
        before = np.searchsorted(self._key, self._keyed(numbers[near], times), side="right") - 1
        inside = (before >= 0) & (self._number[before] == numbers[near]) & (times <= self._last[before])
        chosen: np.ndarray = near[inside]
        return chosen
