"""Prove what findings about readers say: names, numbers, and severities other than their rules'
(`kwire.analyzer.findings.readers`, `restarts`, `skew`, `subscriptions`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzer.findings.evaluating import Traffic, judged
from tests.analyzer.findings.reader_cases import bounces, hot_batches, life, no_coordinator, waits
from tests.analyzer.findings.reading_cases import fetch
from tests.reports.forging import at


@pytest.mark.parametrize("grows", [100, 90])
def test_a_reader_that_falls_behind_in_a_short_capture_is_a_note(grows: int, tmp_path: Path) -> None:
    """Eleven windows of two seconds, and a lag that grows by a thousand records, or by less."""
    traffic = Traffic(tmp_path / "dataset")
    for window in range(12):
        end, lag = 3000 * window, grows * window
        fetch(traffic, 2 * window, end - 10 * lag, end, lag=10 * lag)
    findings = [finding for finding in judged(traffic) if finding.code == "lag-grows"]
    assert [finding.severity for finding in findings] == (["note"] if grows == 100 else [])
    assert all("would tell whether it goes on" in finding.text for finding in findings)


@pytest.mark.parametrize("records", [9000, 1000])
def test_a_partition_with_much_of_twelve_is_a_note(records: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for partition in range(12):
        batch = {"record_count": records if partition == 7 else 1000}
        batch["batch_bytes"] = batch["record_count"] * 100
        traffic.ask("Produce", partition, place=("t", partition), batch=batch)
    findings = [finding for finding in judged(traffic) if finding.code == "hot-partition"]
    assert [finding.severity for finding in findings] == (["note"] if records == 9000 else [])


def test_a_record_unlike_the_others_is_named_where_members_crash(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(3):
        life(traffic, number, 0)
    row = traffic.rows["partitions"][-1]
    key = {name: row[name] for name in ("connection", "exchange", "reply", "topic", "partition")}
    for offset in range(20):
        amount = 76 if offset == 7 else 300
        traffic.add(
            "batches", **key, side="fetch", magic=2, base_offset=offset, record_count=1, batch_bytes=amount, crc_ok=True
        )
    stuck = next(finding for finding in judged(traffic) if finding.code == "partition-stuck")
    assert (stuck.what["topic"], stuck.what["partition"], stuck.what["offset"]) == ("t", "4", "7")
    assert stuck.text.startswith("t-4@7 was read 3 times by app (10.0.0.1) of group g")
    assert "76 bytes" in (stuck.cause or "")
    assert stuck.proven is False


def test_lag_by_commit_and_by_fetch_stand_side_by_side(tmp_path: Path) -> None:
    """A client that fetched all, and committed a tenth."""
    traffic = Traffic(tmp_path / "dataset")
    hot_batches(traffic, 60, 40)
    traffic.ask("Heartbeat", 0, on=1, group_id="g", member_id="m", client_id="reader")
    fetch(traffic, 5, 0, 400, on=1, client_id="reader", lag=0, got=1000)
    traffic.add("offsets", time=at(5), kind="commit", group_id="g", topic="t", partition=0, offset=40)
    hot = next(finding for finding in judged(traffic) if finding.code == "hot-partition")
    assert (hot.what["commit_lag"], hot.what["fetch_lag"]) == ("360", "0")
    assert "360 records behind by its commits and 0 by its fetches" in hot.text


def test_a_transaction_that_holds_a_reader_is_named(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    waits(traffic, 20)
    where = [{"topic": "t", "partition": 0}]
    traffic.add("transactions", transactional_id="tx-1", producer_id=7, client_id="bank", began=at(0), partitions=where)
    held = next(finding for finding in judged(traffic) if finding.code == "reader-held-by-transaction")
    assert held.what["transactional_id"] == "tx-1"
    assert held.cause == "the transaction of tx-1 (bank)"


def test_a_bounce_names_replica_rack_and_price(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    bounces(traffic, 5)
    traffic.add("brokers", node_id=2, host="10.0.0.8", port=9092, rack="b")
    bounce = next(finding for finding in judged(traffic) if finding.code == "replica-bounce")
    assert {name: bounce.what[name] for name in ("replica", "rack", "price_us")} == {
        "replica": "2",
        "rack": "b",
        "price_us": "1000000",
    }
    assert bounce.who["broker"] == "10.0.0.8:9092"


def test_the_group_that_may_not_be_used_is_named(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    no_coordinator(traffic, True)
    refused = next(finding for finding in judged(traffic) if finding.code == "authorization-failed")
    assert refused.what["group_id"] == "g"
    assert "FindCoordinator for group g" in refused.text
