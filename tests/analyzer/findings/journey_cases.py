"""Cases of journeys: groups that are seconds behind, and records that come again."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.reports.forging import at

READER: dict[str, Any] = {"kind": "consumer", "group_id": "g", "reader_client": "app", "fetches": 1}


def batch(traffic: Traffic, base: int, sent: float, fetched: float | None, records: int = 1, **columns: Any) -> None:
    """A batch of topic `t`, partition 0, fetched by group `g`, or by nobody."""
    place = {"topic": "t", "partition": 0, "base_offset": base, "last_offset": base + records - 1, "records": records}
    times = {"sent": at(sent), "received": at(sent), "acked": at(sent)}
    read = {"reason": "not read"} if fetched is None else READER | {"fetched": at(fetched)}
    traffic.add("journeys", **{**place, **times, **read, **columns})


def span(traffic: Traffic, seconds: float) -> None:
    """Traffic from the capture's first second to its last."""
    for second in (0, seconds):
        traffic.ask("Metadata", second)


@case("lag-seconds")
def lag(traffic: Traffic, wrong: bool) -> None:
    """A batch each second, of which a group takes one in 1.26 s, or in 1.25 s: in the end it is 61 s behind, or 59."""
    span(traffic, 300)
    every = 1.26 if wrong else 1.25
    for number in range(300):
        read_at = number * every
        batch(traffic, number, number, read_at if read_at <= 300 else None)


@case("lag-seconds", "not of a group that catches up")
def catches_up(traffic: Traffic, wrong: bool) -> None:
    """It stands for 100 s; then it goes on at the same pace, or at one that makes up for it."""
    span(traffic, 400)
    for number in range(300):
        read_at = number * 1.5 if wrong else max(100.0, 100 + number * 0.8)
        batch(traffic, number, number, read_at if read_at <= 400 else None)


def slow(traffic: Traffic, batches: int, seconds: float, start: float = 0) -> None:
    """Batches that take so long until a fetch brings them, of a group that reads from `start` on."""
    span(traffic, 200)
    batch(traffic, 0, start, start)
    for number in range(1, batches + 1):
        batch(traffic, number, 1 + number / 10, 1 + number / 10 + seconds, received=at(1 + number / 10))


@case("end-to-end-slow")
def end_to_end(traffic: Traffic, wrong: bool) -> None:
    slow(traffic, 100, 10 if wrong else 9.9)


@case("end-to-end-slow", "not of fewer than a hundred batches")
def few_slow(traffic: Traffic, wrong: bool) -> None:
    slow(traffic, 100 if wrong else 98, 10)


@case("end-to-end-slow", "not of what was sent before the group read the partition")
def sent_before(traffic: Traffic, wrong: bool) -> None:
    slow(traffic, 100, 10, start=0 if wrong else 1.4)


@case("redelivered-records")
def again(traffic: Traffic, wrong: bool) -> None:
    span(traffic, 60)
    batch(traffic, 0, 1, 2, records=1000 if wrong else 999, fetches=2)
    batch(traffic, 1000, 1, 2, records=19_000)


@case("redelivered-records", "not of fewer than one in twenty")
def few_again(traffic: Traffic, wrong: bool) -> None:
    span(traffic, 60)
    batch(traffic, 0, 1, 2, records=1000, fetches=3)
    batch(traffic, 1000, 1, 2, records=19_000 if wrong else 19_100)
