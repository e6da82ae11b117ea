"""Finds long pauses between the requests of a capture, and shortens them. Pure.

In: when requests were sent (ns). Out: the longest pause, for a line before anything is sent (`Pauses`), and when a
request is due, counted from the first one, if no pause is longer than it may be (`ReplayClock`). A clock that was set,
by years or back and forth, makes such pauses too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

LONG_SECONDS: Final = 3600.0
"""Seconds of a replay's pause above which it is announced."""
_LEAST_NS: Final = 10**9
"""Nanoseconds between two requests that are a pause."""
_MOST: Final = 1024
"""Pauses that are held; beyond them the shortest are forgotten."""
_SETTLED: Final = 1 << 16

Pause = tuple[int, int]
"""Begin and end in ns."""


@dataclass(slots=True)
class Pauses:
    """Pauses between requests. `_busy`: int64[n, 2], begin and end of the times without a pause, in order."""

    _busy: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    _single: list[int] = field(default_factory=list)

    def add(self, sent_ns: int) -> None:
        """Take the time of one request."""
        self._single.append(sent_ns)
        if len(self._single) >= _SETTLED:
            self._settle()

    def take(self, sent_ns: np.ndarray) -> None:
        """Take the times of requests, int64[n], in any order."""
        times = np.sort(sent_ns)
        if len(times):
            starts, ends = _bounds(np.diff(times) > _LEAST_NS)
            every = np.concatenate((self._busy, np.stack((times[starts], times[ends]), axis=1)))
            every = every[np.argsort(every[:, 0], kind="stable")]
            reached = np.maximum.accumulate(every[:, 1])
            gaps = every[1:, 0] - reached[:-1]
            least = max(_LEAST_NS, np.partition(gaps, -_MOST)[-_MOST]) if len(gaps) > _MOST else _LEAST_NS
            starts, ends = _bounds(gaps > least)
            self._busy = np.stack((every[starts, 0], reached[ends]), axis=1)

    def longest(self) -> Pause | None:
        """The longest pause; None if there is none."""
        self._settle()
        if len(self._busy) < 2:
            return None
        at = int(np.argmax(self._busy[1:, 0] - self._busy[:-1, 1]))
        return int(self._busy[at, 1]), int(self._busy[at + 1, 0])

    def _settle(self) -> None:
        single, self._single = self._single, []
        self.take(np.array(single, np.int64))


def _bounds(is_apart: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last index of each run of rows. `is_apart`: bool[n - 1], between a row and the next."""
    begins = np.flatnonzero(is_apart) + 1
    return np.concatenate(([0], begins)), np.concatenate((begins - 1, [len(is_apart)]))


class ReplayClock:
    """Counts time from the first request on, with pauses cut to `longest_ns` (None: as captured). Requests come in
    order of their times. `longest`: the longest pause so far that was not cut."""

    def __init__(self, start_ns: int, longest_ns: int | None) -> None:
        self.longest: Pause = start_ns, start_ns
        self._longest_ns = longest_ns
        self._latest_ns = self._begin_ns = start_ns

    def at_ns(self, sent_ns: int) -> int:
        """When the next request is due at speed 1, in ns from the start."""
        pause = sent_ns - self._latest_ns
        if pause > 0:
            if self._longest_ns is not None and pause > self._longest_ns:
                self._begin_ns += pause - self._longest_ns
            elif pause > self.longest[1] - self.longest[0]:
                self.longest = self._latest_ns, sent_ns
            self._latest_ns = sent_ns
        return sent_ns - self._begin_ns
