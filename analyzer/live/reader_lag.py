"""How far readers are behind the ends of partitions, in records and in time.

In: high watermarks, and positions of readers. Out: `Behind` by client and topic. Rules: a reader is behind since the
first time at which its next record was known to be there, to a second; what was there before the first look counts from
then on, so a lag is at least what is said. A reader that has not been seen for `GONE_NS` is forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

GONE_NS: Final = 300 * 10**9
_SECOND_NS: Final = 10**9
_SAMPLES: Final = 600
"""High watermarks of a partition that are remembered, one a second."""
MOST_PARTITIONS: Final = 5000
MOST_READERS: Final = 20_000
"""Partitions of readers."""


class Behind(NamedTuple):
    """A lag: of all partitions together in records, and of the one that is furthest behind in seconds."""

    records: int
    seconds: float


@dataclass(slots=True)
class ReaderLag:
    """Ends of partitions, and positions of readers by topic, client id and partition: when they read last, and what
    comes next."""

    ends: dict[tuple[str, int], deque[tuple[int, int]]] = field(default_factory=dict)
    positions: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)

    def reaches(self, topic: str, partition: int, when: int, end: int) -> None:
        """Learn the high watermark of a partition."""
        samples = self.ends.get((topic, partition))
        if samples is None:
            if len(self.ends) >= MOST_PARTITIONS:
                self.ends.pop(next(iter(self.ends)))
            samples = self.ends[topic, partition] = deque(maxlen=_SAMPLES)
        if samples and end < samples[-1][1] and when >= samples[-1][0]:
            samples.clear()  # the log was cut, or is another one
        if not samples or (end > samples[-1][1] and when - samples[-1][0] >= _SECOND_NS):
            samples.append((when, end))
        elif end > samples[-1][1]:
            samples[-1] = samples[-1][0], end

    def reads(self, topic: str, client_id: str, partition: int, when: int, position: int) -> None:
        """Learn the next offset that a reader has not got yet."""
        key = topic, client_id, partition
        self.positions.pop(key, None)
        if len(self.positions) >= MOST_READERS:
            self.positions.pop(next(iter(self.positions)))
        self.positions[key] = when, position

    def behind(self, now: int) -> dict[tuple[str, str], Behind]:
        """Return how it stands, by client id and topic."""
        for key in [key for key, (when, _) in self.positions.items() if when < now - GONE_NS]:
            self.positions.pop(key)
        lags: dict[tuple[str, str], Behind] = {}
        for (topic, client_id, partition), (_, position) in self.positions.items():
            samples = self.ends.get((topic, partition))
            if not samples:
                continue
            since = next((seen for seen, end in samples if end > position), None)
            seconds = 0.0 if since is None else max(0, now - since) / 1e9
            before = lags.get((client_id, topic), Behind(0, 0.0))
            records = before.records + max(0, samples[-1][1] - position)
            lags[client_id, topic] = Behind(records, max(before.seconds, seconds))
        return lags
