"""Cases of journeys: groups that are seconds behind, and records that come again."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic, link
from tests.analyzer.findings.reader_cases import life
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


@case("end-to-end-slow", "not of timestamps that are older than a producer waits")
def old_timestamps(traffic: Traffic, wrong: bool) -> None:
    span(traffic, 200)
    age = 100 if wrong else 3600
    batch(traffic, 0, 0, 0)
    for number in range(1, 101):
        sent = 1 + number / 10
        batch(traffic, number, sent, sent + 1, created=at(sent - age))


@case("redelivered-records")
def again(traffic: Traffic, wrong: bool) -> None:
    span(traffic, 60)
    batch(traffic, 0, 1, 2, records=1000 if wrong else 999, fetches=2)
    batch(traffic, 1000, 1, 2, records=19_000)


@case("redelivered-records", "not where a record stops its readers, which is told")
def again_and_stuck(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 30 * number if wrong else 0)
    batch(traffic, 0, 1, 2, records=1000, fetches=4)


@case("redelivered-records", "not of fewer than one in twenty")
def few_again(traffic: Traffic, wrong: bool) -> None:
    span(traffic, 60)
    batch(traffic, 0, 1, 2, records=1000, fetches=3)
    batch(traffic, 1000, 1, 2, records=19_000 if wrong else 19_100)


def replaced(traffic: Traffic, mark: int, *, by_client: bool = False, records: int = 2) -> None:
    """A follower gets a batch of its leader, whose high watermark is `mark`; clients get another one of the next."""
    place, key = ("orders", 1), {"producer_id": 7, "producer_epoch": 0, "base_sequence": 40}
    follower, reader = {"client_id": "broker-2-fetcher-0"}, {"client_id": "app", "client_ip": "10.0.0.1"}
    on_next = {**link(2, "10.0.0.8"), "on": 2}

    def fetched(second: float, crc: int, count: int, mark: int, **columns: Any) -> None:
        part = {"offset_kind": "fetch", "offset": 497, "high_watermark": mark}
        content = {**key, "base_offset": 497, "crc": crc, "record_count": count}
        traffic.ask("Fetch", second, place=place, part=part, batch=content, **columns)

    refused = {"base_offset": 0, "crc": 11, **key}
    traffic.ask("Produce", 1, 400, "NOT_LEADER_OR_FOLLOWER", on=3, place=place, batch=refused, client_id="lab", acks=-1)
    fetched(1.1, 11, 1, mark, on=1, **(reader if by_client else follower))
    fetched(2, 22, records, 497, **on_next, **follower)
    fetched(2.1, 22, records, 500, **{**on_next, **link(4, "10.0.0.8"), "on": 4}, **reader)


@case("replaced-uncommitted")
def replaced_batch(traffic: Traffic, wrong: bool) -> None:
    replaced(traffic, 497 if wrong else 498)


@case("replaced-uncommitted", "not where a client had read the first one")
def replaced_and_read(traffic: Traffic, wrong: bool) -> None:
    replaced(traffic, 497, by_client=not wrong)


@case("replaced-uncommitted", "not where compaction took records")
def compacted(traffic: Traffic, wrong: bool) -> None:
    replaced(traffic, 497, records=2 if wrong else 1)
