"""Causes, counts and warnings of findings about producers, beside the cases (`sequences`, `produce`,
`transactions`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.findings.rules import Finding
from tests.analyzer.findings.evaluating import SEVERE, Traffic, codes, judged
from tests.analyzer.findings.reading_cases import fetch
from tests.analyzer.findings.writing_cases import PLACE, in_turn, write
from tests.reports.forging import at

GAP = "OUT_OF_ORDER_SEQUENCE_NUMBER"


def of(traffic: Traffic, code: str) -> list[Finding]:
    return [finding for finding in judged(traffic) if finding.code == code]


@pytest.mark.parametrize(
    ("second", "sequence", "cause", "proven"),
    [
        (1, 4, "the client skipped sequence numbers: 3 expected, 4 sent", True),
        (660, 3, "producer state expired while idle: the sequence is unbroken, nothing was written for 11 min", False),
        (1, 3, "the sequence is unbroken: the broker does not know the last batch any more", False),
        (1, 2, "the client went back: 3 expected, 2 sent", True),
    ],
)
def test_a_gap_says_why(second: float, sequence: int, cause: str, proven: bool, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    write(traffic, 0, 0, offset=100)
    write(traffic, second, sequence, error=GAP, crc=12)
    write(traffic, second + 1, sequence, error=GAP, crc=12)
    (finding,) = of(traffic, "sequence-gap")
    assert (finding.cause, finding.proven) == (cause, proven)
    assert cause in finding.text


def test_a_gap_after_an_election_is_the_new_leaders(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for second, leader in ((0, 1), (5, 2)):
        traffic.add(
            "leaders", time=at(second), topic="t", partition=0, leader=leader, leader_epoch=second, isr=[leader]
        )
    write(traffic, 1, 0, offset=100)
    write(traffic, 120, 3, error=GAP, crc=12)
    (finding,) = of(traffic, "sequence-gap")
    assert finding.cause == "the sequence is unbroken, and the leader moved: the new one lacks the last batches"


def test_a_gap_without_the_batch_before_has_no_cause(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    write(traffic, 0, 4, error=GAP)
    (finding,) = of(traffic, "sequence-gap")
    assert finding.cause is None


def test_records_that_are_not_in_the_log_are_told_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    write(traffic, 0, 0, offset=100)
    write(traffic, 1, 0, offset=100, crc=12)
    write(traffic, 2, 0, error=GAP, crc=13)
    findings = judged(traffic)
    assert codes(findings, *SEVERE) == {"sequence-reused": 1}
    (finding,) = [finding for finding in findings if finding.code == "sequence-reused"]
    assert "2 batches (6 records) for t-0" in finding.text
    assert "they are refused (OUT_OF_ORDER_SEQUENCE_NUMBER (45)) or answered ok, as duplicates are," in finding.text


def test_records_that_are_too_large_are_counted_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for second, crc in ((0, 1), (1, 1), (2, 2)):
        batch = {"record_count": 1, "batch_bytes": 2_000_000, "crc": crc}
        traffic.ask("Produce", second, error="MESSAGE_TOO_LARGE", place=PLACE, batch=batch, request_bytes=2_000_100)
        traffic.ask("Produce", second + 0.1, place=PLACE, batch={"crc": 9})
    (finding,) = of(traffic, "message-too-large")
    assert finding.severity == "error"
    assert "MESSAGE_TOO_LARGE (10), 3 times" in finding.text
    assert "2 records were not written. The request had 2.0 MB" in finding.text


def test_producers_that_fence_each_other_are_both_named(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    in_turn(traffic, True)
    (finding,) = of(traffic, "producer-fenced")
    assert "is used by 2 clients in turn (app-0 (10.0.0.0), app-1 (10.0.0.1)): 3 fencings" in finding.text


def hangs(traffic: Traffic, until: float, *, waits: bool = True, writes: bool = False, usual_us: int = 400_000) -> None:
    """A transaction that is left open from second 1 on; `waits`: for a reader of committed data."""
    its: dict[str, Any] = {"transactional_id": "tx-1", "client_id": "bank", "on": 1}
    row: dict[str, Any] = {"transactional_id": "tx-1", "client_id": "bank", "timeout_ms": 600_000}
    row["partitions"] = [{"topic": "t", "partition": 0}]
    traffic.add("transactions", outcome="committed", duration_us=usual_us, began=at(0), ended=at(0.4), **row)
    traffic.add("transactions", outcome="open", began=at(1), **row)
    traffic.ask("Produce", 1, place=PLACE, part={"offset": 100, "offset_kind": "base"}, **its)
    for second in range(2, int(until) + 1):
        fetch(traffic, second, 100, 103 + second, last_stable_offset=100, isolation_level=1 if waits else 0)
        if writes:
            traffic.ask("Produce", second, place=PLACE, part={"offset": 100 + second, "offset_kind": "base"}, **its)
    for row in traffic.rows["connections"]:
        row["last_time"] = at(until)


@pytest.mark.parametrize(
    ("until", "columns", "severities"),
    [
        (12, {}, ["warning"]),
        (8, {}, ["note"]),
        (4, {}, []),
        (30, {"writes": True}, []),
        (30, {"usual_us": 60_000_000}, []),
        (30, {"waits": False}, ["note"]),
    ],
    ids=["stands still", "for a moment", "for less", "is written to", "is as long as others", "nobody waits"],
)
def test_a_reader_that_waits_for_an_open_transaction_is_told_before_its_timeout(
    until: float, columns: dict[str, Any], severities: list[str], tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path)
    hangs(traffic, until, **columns)
    findings = of(traffic, "hanging-transaction")
    assert [finding.severity for finding in findings] == severities
    if severities == ["warning"]:
        text = "The transaction of tx-1 that bank (10.0.0.1) began at 03:04:06 stays open"
        assert findings[0].text.startswith(text)
        assert "app (10.0.0.1) waits at 100 of t-0 (15 offsets behind it)" in findings[0].text


def test_a_leader_that_moves_back_and_forth_is_a_warning(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.link(0)
    for partition, nodes in ((0, (1, 2, 1, 2)), (1, (1, 2, 1)), (2, (1, 2, 3, 4))):
        for number, node in enumerate(nodes):
            its = {"topic": "t", "partition": partition, "leader": node, "leader_epoch": number, "isr": [node]}
            traffic.add("leaders", time=at(15 * number), **its)
    findings = of(traffic, "leaders-moved")
    (warning,) = [finding for finding in findings if finding.severity == "warning"]
    assert "moved back and forth" in warning.text
    assert "t-0 3 times (nodes 1, 2, 1, 2)." in warning.text
    assert all("t-0" not in finding.text for finding in findings if finding.severity == "note")


def test_a_node_with_two_listeners_is_lost_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for port, who in ((9092, "app-{}"), (9093, "broker-{}-fetcher-0")):
        for number in range(2):
            on = number + (10 if port == 9093 else 0)
            its: dict[str, Any] = {"connection": f"10.0.0.1:{5000 + on}-10.0.0.9:{port}#1", "broker_port": port}
            traffic.link(on, client_id=who.format(number), closed="rst", last_time=at(6), **its)
            traffic.ask("Produce", 5, None, on=on, status="unanswered", client_id=who.format(number), **its)
            back: dict[str, Any] = {"connection": f"10.0.0.1:{6000 + on}-10.0.0.9:{port}#1", "broker_port": port}
            traffic.link(100 + on, client_id=who.format(number), first_time=at(12), **back)
    (finding,) = of(traffic, "broker-lost")
    assert finding.text.startswith("10.0.0.9:9092 went away at 03:04:11 (and 10.0.0.9:9093, where only brokers were")


def test_clients_that_leave_their_first_connections_lost_no_broker(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for number in range(2):
        traffic.ask("Metadata", 5, None, on=number, status="unanswered", client_id=f"app-{number}")
        traffic.rows["connections"][number] |= {"closed": "fin", "last_time": at(6)}
        traffic.ask("Produce", 12, on=10 + number, client_id=f"app-{number}")
        traffic.rows["connections"][-1] |= {"first_time": at(12)}
    assert not of(traffic, "broker-lost")


@pytest.mark.parametrize(("more", "severity"), [(0, "note"), (30, "error")])
def test_a_producer_that_exits_leaves_requests_open(more: float, severity: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for number in range(4):
        traffic.ask("Metadata", 1, on=number)
        traffic.ask("Produce", 5, None, on=number, status="unanswered")
        traffic.rows["connections"][number] |= {"closed": "fin", "last_time": at(6)}
    traffic.link(9, last_time=at(6 + more))
    assert {finding.severity for finding in of(traffic, "request-unanswered")} == {severity}


@pytest.mark.parametrize(("apart_ms", "words"), [(1, "linger.ms=5 would"), (6, "linger.ms=20 would"), (7, "=20 would")])
def test_a_client_that_lingers_is_not_told_to(apart_ms: float, words: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for number in range(2000):
        traffic.ask("Produce", number * apart_ms / 1000, place=PLACE, batch={"crc": number})
    (finding,) = of(traffic, "tiny-batches")
    assert words in finding.text


def test_a_challenge_alone_refuses_a_login(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.ask("SaslAuthenticate", 0, response_bytes=48)
    traffic.rows["connections"][0]["sasl_mechanism"] = "OAUTHBEARER"
    times = {name: at(0) for name in ("first_time", "last_time")}
    traffic.add("clients", client_ip="10.0.0.1", client_id="app", refused_status="invalid_token", apis=[], **times)
    (finding,) = of(traffic, "authentication-failed")
    assert finding.severity == "error"
    assert "by OAUTHBEARER by a challenge: invalid_token, 1 time" in finding.text
