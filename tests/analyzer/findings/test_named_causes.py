"""Prove that findings name the cause and who, where real incidents (`tests/incidents`) had shown another one, or none.

(proves: analyzer/findings/seeks.py, and parts of network, root_causes, transactions, fetch and cli/finding_lines)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.findings.rules import Finding
from tests.analyzer.findings.evaluating import Traffic, judged
from tests.analyzer.findings.journey_cases import batch, span
from tests.analyzer.findings.reading_cases import fetch
from tests.analyzer.findings.test_command import run
from tests.reports.forging import at

TOPIC_ID = "6hWhQvmDS1S79-tG9HZ0dw"


def of(traffic: Traffic, code: str) -> list[Finding]:
    return [finding for finding in judged(traffic) if finding.code == code]


def goes_back(traffic: Traffic, rejoins: bool = False, fell: bool = False) -> None:
    """A member that reads a thousand records, asks for the first one again and commits it; `rejoins`: in between."""
    who: dict[str, Any] = {"group_id": "g", "member_id": "m", "client_id": "app"}
    traffic.ask("JoinGroup", 0, **who)
    traffic.add("groups", time=at(0), event="join", protocol="classic", client_ip="10.0.0.1", **who)
    if rejoins:
        traffic.add("groups", time=at(25), event="join", protocol="classic", client_ip="10.0.0.1", **who)
    for second, offset, committed in ((10, 0, 1000), (20, 1000, 2000), (30, 0, 10), (40, 1000, 2000)):
        fetch(traffic, second, offset, 2000, got=1000, lag=2000 - offset - 1000)
        if fell:
            part = {"offset": committed, "offset_kind": "committed"}
            traffic.ask("OffsetCommit", second + 1, place=("t", 0), part=part, **who)
    traffic.ask("Metadata", 60)
    batch(traffic, 0, 1, 10, records=1000, fetches=2)


def test_who_seeks_back_is_named_with_the_records_that_come_again(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    goes_back(traffic, fell=True)
    (again,) = of(traffic, "redelivered-records")
    cause = "app (10.0.0.1) went back by itself (a seek) 1 time, with no rebalance between: in t-0 from 2,000 to 0"
    assert again.cause == cause
    assert again.who["client_id"] == "app"
    (commit,) = of(traffic, "commit-goes-back")
    assert commit.cause == cause


def test_a_member_that_joins_between_has_not_sought(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    goes_back(traffic, rejoins=True)
    (again,) = of(traffic, "redelivered-records")
    assert again.cause is None


def test_several_rebalances_are_counted_together(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    span(traffic, 60)
    for number in range(4):
        batch(traffic, 500 * number, 1, 10 * number + 5, records=500, fetches=2)
        traffic.add("rebalances", group_id="g", began=at(10 * number + 8), ended=at(10 * number + 9))
    (again,) = of(traffic, "redelivered-records")
    assert again.cause is not None
    assert again.cause.startswith("4 rebalances from ")
    assert again.cause.endswith(" on: 2,000 of them had been fetched before one and not committed")


def test_the_producer_of_an_open_transaction_is_named_not_the_broker_that_adds_its_partitions(tmp_path: Path) -> None:
    """Since KIP-890 the partition's leader asks the coordinator."""
    traffic = Traffic(tmp_path)
    row: dict[str, Any] = {"transactional_id": "tx-1", "client_id": "bank", "timeout_ms": 60_000}
    row["partitions"] = [{"topic": "t", "partition": 0}]
    traffic.add("transactions", outcome="open", began=at(1), **row)
    its: dict[str, Any] = {"transactional_id": "tx-1", "place": ("t", 0)}
    traffic.ask("Produce", 1, on=1, part={"offset": 100, "offset_kind": "base"}, client_id="bank", **its)
    traffic.ask("AddPartitionsToTxn", 2, on=2, client_id="AddPartitionsManager-client-2", **its)
    traffic.ask("Metadata", 40, on=3)
    (hanging,) = of(traffic, "hanging-transaction")
    assert hanging.who["client_id"] == "bank"


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_redirect_of_who_had_not_heard_moves_no_leader(epoch: int, tmp_path: Path) -> None:
    """Produce says where the leader is by name; Metadata had said the topic's id."""
    traffic = Traffic(tmp_path)
    traffic.link(0)
    its = {"topic": "t", "topic_id": TOPIC_ID, "partition": 0, "isr": [1, 3]}
    traffic.add("leaders", time=at(0), leader=3, leader_epoch=0, **its)
    traffic.add("leaders", time=at(5), leader=1, leader_epoch=1, **its)
    for second in (6, 8):
        traffic.add("leaders", time=at(second), topic="t", partition=0, leader=3, leader_epoch=epoch)
        traffic.add("leaders", time=at(second + 1), leader=1, leader_epoch=1 + epoch, **its)
    (moved,) = of(traffic, "leaders-moved")
    assert (moved.severity, moved.count) == (("note", 1) if epoch == 0 else ("warning", 3))


@pytest.mark.parametrize("later", [1, 0])
def test_clients_that_leave_as_the_capture_ends_have_lost_no_broker(later: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for number in range(2):
        traffic.ask("Fetch", 5, None, on=number, status="unanswered", client_id=f"app-{number}")
        ended = {"closed": "fin", "closed_by": "client", "last_time": at(6 + number / 10)}
        traffic.rows["connections"][number] |= ended
    for second, leader in ((0, 1), (3, 2)):
        traffic.add("leaders", time=at(second), topic="t", partition=0, leader=leader)
    traffic.ask("Metadata", 8 if later else 6, on=9, client_id="other", broker_ip="10.0.0.8")
    traffic.rows["connections"][-1] |= {"last_time": at(8 if later else 6.1), "broker_ip": "10.0.0.8"}
    assert len(of(traffic, "broker-lost")) == later


@pytest.mark.parametrize("by", ["client", "broker"])
def test_who_reset_a_connection_is_told(by: str, tmp_path: Path) -> None:
    """A client that was killed with requests open, and a broker that broke off."""
    traffic = Traffic(tmp_path)
    for number in range(4):
        traffic.ask("Produce", number / 10, None, status="unanswered", exchange=number)
    traffic.rows["connections"][0] |= {"closed": "rst", "closed_by": by, "last_time": at(1)}
    traffic.ask("Metadata", 60, on=9, client_id="other")
    (silent,) = of(traffic, "request-unanswered")
    assert silent.cause == ("the client reset the connection" if by == "client" else "the connection was reset")
    assert silent.severity == ("note" if by == "client" else "error")


@pytest.mark.parametrize("moved", [True, False])
def test_a_reader_ahead_of_a_new_leader_is_a_note(moved: bool, tmp_path: Path) -> None:
    """It spins for two seconds until the new leader knows the watermark."""
    traffic = Traffic(tmp_path)
    for second, leader in ((0, 1), (10, 2 if moved else 1)):
        traffic.add("leaders", time=at(second), topic="t", partition=0, leader=leader)
    for number in range(200):
        fetch(traffic, 10 + number / 100, 559, 558)
    fetch(traffic, 12.2, 559, 565, got=1000)
    (spin,) = of(traffic, "fetch-above-high-watermark")
    assert spin.severity == ("note" if moved else "error")


@pytest.mark.parametrize("left", [0, 400])
def test_a_log_that_is_gone_as_a_whole_is_no_lagging_replica(left: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    fetch(traffic, 0, 400, 440, lag=0, got=1000)
    traffic.ask("OffsetForLeaderEpoch", 1, place=("t", 0), part={"offset": left, "offset_kind": "end"})
    (cut,) = of(traffic, "log-truncated")
    assert cut.cause is not None
    assert cut.cause.startswith("the log was lost as a whole" if left == 0 else "a leader that had not all records")


def test_the_first_finding_of_each_code_comes_before_the_second_of_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Many clients of one kind of trouble do not push another cause off the first screen."""
    traffic = Traffic(tmp_path)
    for number in range(5):
        traffic.link(number, client_id=f"app-{number}", retransmissions=60, client_packets=500, broker_packets=500)
    for second, nodes in enumerate((1, 2, 1, 2)):
        traffic.add("leaders", time=at(100 + second), topic="t", partition=0, leader=nodes)
    traffic.ask("Metadata", 200, on=9)
    out = run(capsys, str(traffic.write()), "--json")[1]
    codes = [row["code"] for line in out.splitlines() if (row := json.loads(line))["severity"] == "warning"]
    assert codes == ["tcp-retransmission", "leaders-moved", *["tcp-retransmission"] * 4]


@pytest.mark.parametrize("answered", [False, True])
def test_an_old_client_that_no_broker_answers_is_an_error(answered: bool, tmp_path: Path) -> None:
    """Nobody in the capture asked which versions the broker offers."""
    traffic = Traffic(tmp_path)
    for number in range(3):
        alone: dict[str, Any] = {"status": "unanswered", "latency_ms": None} if number < 2 or not answered else {}
        traffic.ask("Produce", number, on=number, api_version=1, **alone)
    (old,) = of(traffic, "version-removed-in-target")
    assert old.severity == ("note" if answered else "error")
    assert ("none of its 3 requests got an answer" in old.text) != answered


@pytest.mark.parametrize("same", [False, True])
def test_a_topic_that_only_another_cluster_has_is_missing(same: bool, tmp_path: Path) -> None:
    """Of one cluster the brokers' Metadata have an address in common: then the topic is there later."""
    traffic = Traffic(tmp_path)
    for number in range(10):
        traffic.ask("Metadata", number / 2, error="UNKNOWN_TOPIC_OR_PARTITION", topics=["t"])
        traffic.ask("Produce", number, error="UNKNOWN_TOPIC_OR_PARTITION", place=("t", 0), part={"error_code": 3})
    traffic.ask("Produce", 12, on=1, place=("t", 0), client_id="other", broker_ip="10.0.0.8")
    traffic.rows["connections"][-1]["broker_ip"] = "10.0.0.8"
    traffic.rows["connections"][-1]["connection"] = traffic.rows["exchanges"][-1]["connection"]
    traffic.tells("10.0.0.9", by="10.0.0.9:9092")
    traffic.tells("10.0.0.8", by="10.0.0.8:9092")
    if same:
        traffic.tells("10.0.0.8", by="10.0.0.9:9092", nodes=(2,))
    missing = of(traffic, "topic-missing")
    assert len(missing) == (not same)
    assert bool(of(traffic, "wrong-leader-fetch")) == same  # one cause, one finding
    if missing:
        assert "which does not exist at 10.0.0.9:9092: 10 times" in missing[0].text
        assert (missing[0].cause or "").startswith("another cluster has it (10.0.0.8:9092)")
