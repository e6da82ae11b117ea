"""How far readers are behind the ends of partitions, in records and in time, and how long batches took to them.

In: batches that were written, high watermarks, and answers that brought records to readers. Out: `Behind` by reader and
topic, and delays from a batch's Produce to the answer that brought it. Rules: a reader is behind since its next record
was sent, exactly; of records whose Produce was not seen, since they were first known to be there, to a second, so a lag
is at least what is said. A reader that has not been seen for `GONE_NS` is forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

GONE_NS: Final = 300 * 10**9
_SECOND_NS: Final = 10**9
_SAMPLES: Final = 600
"""High watermarks of a partition that are remembered, one a second, and batches."""
_ANSWERS: Final = 8
"""Answers to a reader that are remembered: it may have a batch before the batch's producer has its acknowledgement."""
MOST_PARTITIONS: Final = 5000
MOST_READERS: Final = 20_000
"""Partitions of readers."""

Place = tuple[str, int]
"""Topic and partition."""


class Behind(NamedTuple):
    """A lag: of all partitions together in records, and of the one that is furthest behind in seconds."""

    records: int
    seconds: float


class ReaderStanding(NamedTuple):
    """A reader of a topic: how many records it has not got, and since when the next has been there (ns), None: it has
    all."""

    reader: str
    topic: str
    records: int
    since_ns: int | None


@dataclass(slots=True)
class ReaderLag:
    """Ends of partitions, batches (first offset, the one behind the last, when sent), and positions of readers by
    topic, reader and partition: when they read last, and what comes next. answers: when, from and to which offset."""

    ends: dict[Place, deque[tuple[int, int]]] = field(default_factory=dict)
    written: dict[Place, deque[tuple[int, int, int]]] = field(default_factory=dict)
    positions: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    answers: dict[Place, dict[str, deque[tuple[int, int, int]]]] = field(default_factory=dict)

    def reaches(self, topic: str, partition: int, when: int, end: int) -> None:
        """Learn the high watermark of a partition."""
        samples = self.ends.get((topic, partition))
        if samples is None:
            if len(self.ends) >= MOST_PARTITIONS:
                self.ends.pop(next(iter(self.ends)))
            samples = self.ends[topic, partition] = deque(maxlen=_SAMPLES)
        if samples and end < samples[-1][1] and when >= samples[-1][0]:
            samples.clear()  # the log was cut, or is another one
            self.written.pop((topic, partition), None)
        if not samples or (end > samples[-1][1] and when - samples[-1][0] >= _SECOND_NS):
            samples.append((when, end))
        elif end > samples[-1][1]:
            samples[-1] = samples[-1][0], end

    def writes(self, topic: str, partition: int, sent: int, begin: int, end: int) -> list[tuple[str, int]]:
        """Learn a batch. Returns readers that had it before its acknowledgement, and how long it took to them (ns)."""
        batches = self.written.get((topic, partition))
        if batches is None:
            if len(self.written) >= MOST_PARTITIONS:
                self.written.pop(next(iter(self.written)))
            batches = self.written[topic, partition] = deque(maxlen=_SAMPLES)
        while batches and batches[-1][1] > begin:
            batches.pop()  # acknowledged again, or the log was cut
        batches.append((begin, end, sent))
        return [
            (reader, when - sent)
            for reader, answers in self.answers.get((topic, partition), {}).items()
            for when, low, high in answers
            if low <= begin < high and when >= sent
        ]

    def reads(
        self, topic: str, reader: str, partition: int, when: int, position: int, begin: int | None = None
    ) -> list[int]:
        """Learn the next offset that a reader has not got yet. Returns how long each batch took (ns) that an answer
        brought it for the first time, from the offset `begin` on."""
        key = topic, reader, partition
        known = self.positions.pop(key, None)
        if len(self.positions) >= MOST_READERS:
            self._forget(next(iter(self.positions)))
        self.positions[key] = when, position
        if begin is None or position <= begin:
            return []
        low = begin if known is None else max(begin, known[1])
        if position <= low:
            return []
        readers = self.answers.setdefault((topic, partition), {})
        readers.setdefault(reader, deque(maxlen=_ANSWERS)).append((when, low, position))
        took = []
        for first, end, sent in reversed(self.written.get((topic, partition), ())):
            if end <= low:
                break
            if low <= first < position and when >= sent:
                took.append(when - sent)
        return took

    def _forget(self, key: tuple[str, str, int]) -> None:
        topic, reader, partition = key
        self.positions.pop(key, None)
        readers = self.answers.get((topic, partition), {})
        readers.pop(reader, None)
        if not readers:
            self.answers.pop((topic, partition), None)

    def standing(self, now: int) -> list[ReaderStanding]:
        """Return how it stands, by reader and topic."""
        for key in [key for key, (when, _) in self.positions.items() if when < now - GONE_NS]:
            self._forget(key)
        lags: dict[tuple[str, str], ReaderStanding] = {}
        for (topic, reader, partition), (_, position) in self.positions.items():
            end = self._end(topic, partition)
            if end is None:
                continue
            since = self._since(topic, partition, position)
            before = lags.get((reader, topic), ReaderStanding(reader, topic, 0, None))
            earliest = min((time for time in (before.since_ns, since) if time is not None), default=None)
            lags[reader, topic] = ReaderStanding(reader, topic, before.records + max(0, end - position), earliest)
        return list(lags.values())

    def behind(self, now: int) -> dict[tuple[str, str], Behind]:
        """Return how it stands, by reader and topic."""
        return {
            (entry.reader, entry.topic): Behind(
                entry.records, 0.0 if entry.since_ns is None else max(0, now - entry.since_ns) / 1e9
            )
            for entry in self.standing(now)
        }

    def _end(self, topic: str, partition: int) -> int | None:
        """The offset that a partition is known to reach."""
        samples, batches = self.ends.get((topic, partition)), self.written.get((topic, partition))
        return max((ends[-1][1] for ends in (samples, batches) if ends), default=None)

    def _since(self, topic: str, partition: int, position: int) -> int | None:
        """Since when the record at an offset has been there (ns); None: it is not."""
        batches = self.written.get((topic, partition), ())
        batch = next((batch for batch in batches if batch[1] > position), None)
        if batch is not None and batch[0] <= position:
            return batch[2]
        seen = next((when for when, end in self.ends.get((topic, partition), ()) if end > position), None)
        return min((time for time in (seen, batch[2] if batch is not None else None) if time is not None), default=None)
