"""Collects when the records of a plan were made, by topic: the settings of the target's topics act on them.

In: a plan. Out: `Times`. Pure. Times are milliseconds since the epoch, as in the batches' headers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kwire.analyzer.protocol import api_keys
from kwire.replay.plan import batches
from kwire.replay.plan.steps import Plan
from kwire.replay.plan.topic_partitions import NAME


@dataclass(slots=True)
class Times:
    """The records of a topic: how many, their bytes as sent, the oldest and the newest time (-1 if none has a time)."""

    records: int = 0
    bytes: int = 0
    oldest_ms: int = -1
    newest_ms: int = -1

    def add(self, batch: batches.Batch, delta_ms: int) -> None:
        self.records += max(batch.count, 0)
        self.bytes += batch.size
        for time in (batch.base_timestamp, batch.max_timestamp):
            if time >= 0:
                moved = max(time + delta_ms, 0)
                self.oldest_ms = moved if self.oldest_ms < 0 else min(self.oldest_ms, moved)
                self.newest_ms = max(self.newest_ms, moved)

    def join(self, other: Times) -> None:
        """Add records of the same topic."""
        self.records += other.records
        self.bytes += other.bytes
        if other.oldest_ms >= 0:
            self.oldest_ms = other.oldest_ms if self.oldest_ms < 0 else min(self.oldest_ms, other.oldest_ms)
        self.newest_ms = max(self.newest_ms, other.newest_ms)

    def shifted(self, delta_ms: int) -> Times:
        """Move the times."""
        if self.oldest_ms < 0:
            return self
        return Times(self.records, self.bytes, max(self.oldest_ms + delta_ms, 0), max(self.newest_ms + delta_ms, 0))


def note(into: Times, data: bytes, at: int, end: int) -> None:
    """Add the batches between these positions, as captured; bytes that are not batches have no time."""
    with memoryview(data)[at:end] as records:
        try:
            for batch in batches.batches(records):
                into.add(batch, 0)
        except batches.BadRecordsError:
            return


def record_times(planned: Plan, delta_ms: int) -> dict[str, Times]:
    """Collect times by captured topic. `delta_ms`: by how much timestamps are moved."""
    times: dict[str, Times] = {}
    for step in planned.steps:
        if step.request.api_key != api_keys.PRODUCE:
            continue
        if step.fast_path is not None and step.request.data is not None:
            into = times.setdefault(step.fast_path.topic, Times())
            with memoryview(step.request.data)[step.fast_path.at : step.fast_path.end] as records:
                for batch in batches.batches(records):
                    into.add(batch, delta_ms)
            continue
        for topic in step.fresh().get("topicData", ()):
            name = topic.get(NAME)
            if not name:
                continue
            into = times.setdefault(name, Times())
            for part in topic["partitionData"]:
                for batch in batches.produced(part["records"]):
                    into.add(batch, delta_ms)
    return times
