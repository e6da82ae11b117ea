"""Stalls, slow replicas and waits: who is named, and who is not blamed. Proves `kwire.analyzer.findings.stalls` and
`replication`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzer.findings.evaluating import Traffic, judged
from tests.analyzer.findings.latency_cases import NODES, ask, frozen, in_order, slow_replica
from tests.reports.forging import at


def _micros(second: float) -> int:
    return round(at(second).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("took", "in_sync", "broker"),
    [
        ({1: 800, 2: 790, 3: 1900}, None, "10.0.0.13:9092"),
        ({1: 1500, 2: 790, 3: 700}, None, "10.0.0.11:9092"),
        ({1: 800, 2: 4, 3: 800}, {1: [1, 3], 2: [2, 1], 3: [3, 1]}, "10.0.0.13:9092"),
        ({1: 800, 2: 4, 3: 4}, None, "10.0.0.11:9092"),  # only where it leads
        ({1: 800, 2: 790, 3: 780}, None, None),
        ({1: 800, 2: 4, 3: 4}, {1: [1, 3], 2: [2, 1], 3: [3, 2]}, "10.0.0.11:9092"),
    ],
)
def test_the_broker_that_slows_in_sync_sets_is_named_where_it_can_be_told(
    took: dict[int, float], in_sync: dict[int, list[int]] | None, broker: str | None, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    slow_replica(traffic, took, in_sync)
    (finding,) = (finding for finding in judged(traffic) if finding.code == "replication-slow")
    assert finding.who.get("broker") == broker
    last = max(late for late in took.values() if late > 4)
    assert finding.since == _micros(0)
    assert _micros(9.5) <= (finding.until or 0) <= _micros(9.5) + 1000 * round(last)


@pytest.mark.parametrize(
    ("took", "in_sync", "severity"),
    [
        ({1: 510, 2: 520, 3: 530}, None, "warning"),
        ({1: 310, 2: 320, 3: 330}, None, "note"),
        ({1: 310, 2: 4, 3: 310}, {1: [1, 3], 2: [2, 1], 3: [3, 1]}, "warning"),  # node 3 is known by the in-sync sets
    ],
)
def test_short_waits_that_nobody_is_known_for_are_a_note(
    took: dict[int, float], in_sync: dict[int, list[int]] | None, severity: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    slow_replica(traffic, took, in_sync)
    (finding,) = (finding for finding in judged(traffic) if finding.code == "replication-slow")
    assert finding.severity == severity


@pytest.mark.parametrize(("empty_ms", "cause"), [(2, "its disk"), (400, "the network between")])
def test_followers_fetches_tell_a_slow_disk_from_a_slow_network(empty_ms: int, cause: str, tmp_path: Path) -> None:
    """Node 3 takes 400 ms from an answer with records to its next request, and so long after one without or not."""
    traffic = Traffic(tmp_path / "dataset")
    slow_replica(traffic, {1: 800, 2: 790, 3: 780})
    for follower in NODES:
        for leader in NODES:
            second = 0.0
            for turn in range(20 if follower != leader else 0):
                part = {"record_bytes": 100 * (turn % 2), "offset_kind": "fetch", "offset": turn}
                fetcher = {"client_id": f"broker-{follower}-fetcher-0", "place": ("t", leader), "part": part}
                ask(traffic, "Fetch", leader, second, 5, 20 + follower, max_wait_ms=500, min_bytes=1, **fetcher)
                pause = 400 if turn % 2 else empty_ms
                second += 0.005 + (pause if 3 in (follower, leader) and (follower == 3 or empty_ms > 2) else 2) / 1000
    in_order(traffic)
    (finding,) = (finding for finding in judged(traffic) if finding.code == "replication-slow")
    assert finding.who == {"broker": "10.0.0.13:9092"}
    assert (finding.cause or "").startswith(cause)


def test_a_stall_counts_all_who_waited_and_nobody_else_is_blamed(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    frozen(traffic, True)
    findings = [finding for finding in judged(traffic) if finding.family in ("latency", "network", "produce")]
    assert [(finding.code, finding.who["broker"]) for finding in findings] == [("broker-stall", "10.0.0.12:9092")]
    assert "while 7 clients waited, 5 of them also at" in findings[0].text


def test_a_storm_is_divided_by_the_time_that_is_there(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(801):
        traffic.ask("Metadata", number / 100)
    (finding,) = (finding for finding in judged(traffic) if finding.code == "metadata-storm")
    assert "asks for Metadata 100.0 times a second" in finding.text


def test_a_pause_is_measured_in_the_time_that_is_there(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for second in (0, 10, 20):
        traffic.ask("Produce", second, throttle_us=6_000_000)
    traffic.rows["connections"][0]["last_time"] = at(22)
    (finding,) = (finding for finding in judged(traffic) if finding.code == "client-throttled")
    assert "pause 18.0 s in 22.0 s" in finding.text


@pytest.mark.parametrize("slow", [4, 5])
def test_a_short_capture_has_a_note_of_what_was_slow(slow: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(20):
        took = 700 if number < slow else 2
        traffic.ask("Metadata", number / 4, took, broker_us=took * 1000, hold_us=0)
    findings = [finding for finding in judged(traffic) if finding.code == "broker-slow"]
    assert [finding.severity for finding in findings] == ["note"] * (slow == 5)
    assert all("a longer capture would tell" in finding.text for finding in findings)


def test_a_client_of_a_connection_without_a_row_has_the_id_of_its_requests(tmp_path: Path) -> None:
    """Connections that go on have no row yet where a part of a capture is judged."""
    traffic = Traffic(tmp_path / "dataset")
    for number in range(801):
        traffic.ask("Metadata", number / 100, client_id="health")
    traffic.rows["connections"].clear()
    (finding,) = (finding for finding in judged(traffic) if finding.code == "metadata-storm")
    assert finding.who["client_id"] == "health"


@pytest.mark.parametrize(("sent_again", "is_told"), [(9, True), (11, False)])
def test_a_broker_is_not_blamed_for_what_tcp_repaired(sent_again: int, is_told: bool, tmp_path: Path) -> None:
    """Answers that came 220 ms late, where one in a hundred packets was sent again: TCP's least timeout is 200 ms."""
    traffic = Traffic(tmp_path / "dataset")
    for number in range(100):
        took = 220_000 if number >= 98 else 1000
        traffic.ask("Produce", number / 10, took / 1000, broker_us=took)
    packets = {"client_packets": 500, "broker_packets": 500, "retransmissions": sent_again}
    traffic.rows["connections"][-1] |= packets
    assert any(finding.code == "broker-slow" for finding in judged(traffic)) == is_told
