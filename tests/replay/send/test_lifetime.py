"""Which records a topic's settings delete or refuse; with which settings topics are made.

Proves: replay/send/lifetime.py, replay/plan/record_times.py, replay/send/seeding.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.replay.plan import decisions
from kwire.replay.plan.record_times import Times, record_times
from kwire.replay.send import lifetime, seeding
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import EVERYTHING, Captured

DAY = 86_400_000
NOW = 1_700_000_000_000


def judged(settings: dict[str, str], oldest: int, newest: int | None = None) -> list[str]:
    newest = oldest if newest is None else newest
    return lifetime.judged(settings, Times(10, 1000, NOW - oldest, NOW - newest), NOW)


@pytest.mark.parametrize(
    ("settings", "beginning"),
    [
        (
            {"retention.ms": str(7 * DAY)},
            "deletes all of these records, which are up to 30 days old, by its retention.ms of 7 days",
        ),
        ({"retention.ms": "-1"}, ""),
        ({"retention.ms": str(40 * DAY)}, ""),
        ({"retention.ms": "1000", "cleanup.policy": "compact", "min.compaction.lag.ms": str(31 * DAY)}, ""),
        ({"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}, ""),
        (
            {"message.timestamp.before.max.ms": str(DAY)},
            "refuses records, which are up to 30 days old, by its message.timestamp.before.max.ms of 1 day",
        ),
        (
            {"message.timestamp.difference.max.ms": str(DAY)},
            "refuses records, which are up to 30 days old, by its message.timestamp.difference.max.ms of 1 day",
        ),
        ({"message.timestamp.before.max.ms": str((1 << 63) - 1), "message.timestamp.difference.max.ms": "1"}, ""),
        ({"retention.bytes": "999"}, "may delete records: 1,000 bytes are sent, and its retention.bytes is 999"),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": "0"}, "is compacted: of records with equal keys"),
        ({"retention.ms": "nonsense"}, ""),
    ],
)
def test_old_records(settings: dict[str, str], beginning: str) -> None:
    lines = judged(settings, 30 * DAY)
    assert [line.startswith(beginning) for line in lines] == ([True] if beginning else [])


def test_some_of_the_records_and_those_from_the_future() -> None:
    (line,) = judged({"retention.ms": str(7 * DAY)}, 30 * DAY, DAY)
    assert line.startswith("deletes records, which are up to 30 days old")
    (line,) = judged({"message.timestamp.after.max.ms": "3600000"}, DAY, -2 * DAY)
    assert line == "refuses records, which are of up to 2 days from now, by its bound of 1 hour"


def test_records_without_times_are_not_judged_by_them() -> None:
    assert lifetime.judged({"retention.ms": "1"}, Times(1, 10), NOW) == []


def test_the_times_of_what_a_plan_sends_as_they_will_be() -> None:
    captured = Captured()
    captured.add(0.0, api_keys.PRODUCE, 8, produced({0: batch(), 1: batch() * 2}), produced_answer({0: 0, 1: 0}))
    planned, _ = decisions.make([captured.session()], EVERYTHING, decisions.PlanOptions())
    size = len(batch())
    assert record_times(planned, 0) == {"orders": Times(9, 3 * size, 1000, 1000)}
    assert record_times(planned, 500) == {"orders": Times(9, 3 * size, 1500, 1500)}
    assert record_times(planned, -9999)["orders"].oldest_ms == 0


def test_topics_are_made_so_that_they_keep_what_is_written() -> None:
    captured = {"retention.ms": "60000", "segment.bytes": "1048576", "message.timestamp.before.max.ms": "5"}
    settings = {"retention.ms": "-1", "retention.bytes": "-1"}
    assert seeding.surviving(captured) == {"segment.bytes": "1048576", **settings}
    compacted = seeding.surviving({"cleanup.policy": "compact,delete", "max.compaction.lag.ms": "1"})
    assert compacted == {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": str((1 << 63) - 1), **settings}
