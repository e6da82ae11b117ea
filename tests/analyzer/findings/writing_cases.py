"""Cases of what producers do: sequence numbers, batches that are too large, transactions that are left open."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.reports.forging import at

PLACE = ("t", 0)


def write(
    traffic: Traffic, second: float, sequence: int, *, error: str | None = None, offset: int | None = None, **more: Any
) -> None:
    """A batch of three records of an idempotent producer; `offset`: in the answer."""
    batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence, "record_count": 3, "crc": 11, **more}
    part = {"offset": offset, "offset_kind": "base", "record_count": 3}
    traffic.ask("Produce", second, error=error, place=PLACE, batch=batch, part=part)


@case("sequence-gap")
def gap(traffic: Traffic, wrong: bool) -> None:
    if not wrong:  # what goes after a batch that failed finds a hole before it
        traffic.ask("Produce", 0, 50, "NOT_LEADER_OR_FOLLOWER", place=PLACE)
    traffic.ask("Produce", 0.01, 60, "OUT_OF_ORDER_SEQUENCE_NUMBER", place=PLACE)


@case("sequence-gap", "not of other records under a number that was used")
def gap_or_reused(traffic: Traffic, wrong: bool) -> None:
    write(traffic, 0, 0, offset=100)
    write(traffic, 1, 4 if wrong else 0, error="OUT_OF_ORDER_SEQUENCE_NUMBER", crc=12)


@case("sequence-reused")
def reused(traffic: Traffic, wrong: bool) -> None:
    write(traffic, 0, 0, offset=100)
    write(traffic, 1, 0, error="OUT_OF_ORDER_SEQUENCE_NUMBER", crc=12 if wrong else 11)


@case("sequence-reused", "answered ok, as a duplicate is")
def as_duplicate(traffic: Traffic, wrong: bool) -> None:
    write(traffic, 0, 0, offset=100)
    write(traffic, 1, 0, offset=100 if wrong else 103, crc=12)


@case("sequence-reused", "with another number of records")
def other_count(traffic: Traffic, wrong: bool) -> None:
    write(traffic, 0, 0, offset=100, error=None if wrong else "MESSAGE_TOO_LARGE")  # else it was split
    write(traffic, 1, 0, error="DUPLICATE_SEQUENCE_NUMBER", record_count=2)


@case("sequence-reused", "not of a client that gives records new times when it sends them again")
def made_again(traffic: Traffic, wrong: bool) -> None:
    write(traffic, 0, 0, offset=100)
    batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "record_count": 3, "crc": 12}
    traffic.ask("Produce", 70 if not wrong else 50, on=1, place=PLACE, batch=batch, part={"offset": 100})


@case("produce-retried", "not of other records")
def retried_or_reused(traffic: Traffic, wrong: bool) -> None:
    write(traffic, 0, 0, offset=100)
    write(traffic, 1, 0, offset=100, crc=11 if wrong else 12)


@case("message-too-large", "of one record, which cannot be split, among others that are stored")
def single_record(traffic: Traffic, wrong: bool) -> None:
    large: dict[str, Any] = {"record_count": 1 if wrong else 2, "batch_bytes": 2_000_000, "crc": 1}
    large |= {"first_timestamp": at(0), "last_timestamp": at(0.2)}
    traffic.ask("Produce", 0.3, error="MESSAGE_TOO_LARGE", place=PLACE, batch=large)
    for number in range(2):
        part = {"batch_bytes": 500, **{f"{which}_timestamp": at(0.1 * number) for which in ("first", "last")}}
        traffic.ask("Produce", 0.5 + number, place=PLACE, batch=part)


@case("message-too-large", "not made good by records of later")
def later_records(traffic: Traffic, wrong: bool) -> None:
    large = {"record_count": 2, "batch_bytes": 2_000_000, "first_timestamp": at(0), "last_timestamp": at(0.2)}
    traffic.ask("Produce", 0.3, error="RECORD_LIST_TOO_LARGE", place=PLACE, batch=large)
    for number in range(2):
        time = at(number / 10 + (1 if wrong else 0))
        part = {"batch_bytes": 500, "first_timestamp": time, "last_timestamp": time}
        traffic.ask("Produce", 1.2 + number, place=PLACE, batch=part)


@case("producer-fenced", "in turn, as a coordinator says it")
def in_turn(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        for other in (number % 2, 1 - number % 2):
            its: dict[str, Any] = {"on": other, "client_id": f"app-{other}", "client_ip": f"10.0.0.{other}"}
            its["transactional_id"] = "tx-1"
            if other == number % 2:
                traffic.ask("InitProducerId", 2 * number, **its)
            elif number and (wrong or number == 1):
                traffic.ask("AddPartitionsToTxn", 2 * number + 1, error="INVALID_PRODUCER_EPOCH", **its)


@case("producer-fenced", "by two processes of one name")
def of_one_name(traffic: Traffic, wrong: bool) -> None:
    its: dict[str, Any] = {"transactional_id": "tx-1"}
    for number in range(4):
        traffic.ask("InitProducerId", 2 * number, on=number if wrong else 0, **its)
        if number:
            error = "INVALID_PRODUCER_EPOCH"
            traffic.ask("AddPartitionsToTxn", 2 * number + 1, error=error, on=number - 1 if wrong else 0, **its)
