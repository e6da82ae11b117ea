"""Clients that are told an address and do not go there (`kwire.analyzer.findings.advertised`), as warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.findings.rules import Finding
from tests.analyzer.findings.advertised_cases import balanced
from tests.analyzer.findings.evaluating import SEVERE, Traffic, codes, judged, link
from tests.reports.forging import at

CODE = "advertised-address-unreachable"


def asks(traffic: Traffic, times: int, every: float = 1, **columns: Any) -> None:
    """A client that asks for one topic again and again, on a connection of its own each time."""
    for number in range(times):
        traffic.ask("Metadata", number * every, **{"topics": ["t"], "on": number, **columns})
        last = traffic.rows["connections"][-1]
        last |= {"first_time": at(number * every), "last_time": at(number * every + 0.5)}


def leads(traffic: Traffic, **of_partition: int) -> None:
    """Leaders of the partitions of topic t: `p0=1` is node 1 of partition 0."""
    for partition, node in of_partition.items():
        number = int(partition[1:])
        traffic.add("leaders", time=at(0), topic="t", partition=number, leader=node, leader_epoch=0, isr=[node])


def unreachable(traffic: Traffic) -> list[Finding]:
    return [finding for finding in judged(traffic) if finding.code == CODE]


@pytest.mark.parametrize("host", ["kafka-1.internal", "172.17.0.2"])
def test_clients_that_only_ask_again_do_not_reach_what_they_are_told(host: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.tells(host)
    leads(traffic, p0=1)
    asks(traffic, 6)
    traffic.ask("Metadata", 2, on=50, client_id="other", client_ip="10.0.0.7")
    (finding,) = unreachable(traffic)
    assert finding.severity == "warning"
    assert f"Metadata of 10.0.0.9:9092 sends clients to {host}:9092" in finding.text
    assert "none of 2 clients that were told so (app (10.0.0.1), other (10.0.0.7)) connected there" in finding.text
    assert "ask again (5 times)" in finding.text
    assert finding.who["broker"] == f"{host}:9092"


@pytest.mark.parametrize(
    ("times", "every", "topics"),
    [(3, 1, ["t"]), (6, 30, ["t"]), (6, 1, []), (6, 1, ["led elsewhere"])],
    ids=["too seldom", "too slowly", "for all topics", "for what another node leads"],
)
def test_who_asks_for_little_may_just_look(times: int, every: float, topics: list[str], tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.tells("kafka-1.internal")
    leads(traffic, p0=1)
    asks(traffic, times, every, topics=topics)
    assert not unreachable(traffic)


@pytest.mark.parametrize(("refused", "findings"), [("[::1]:9092", 0), ("[::1]:9093", 1)])
def test_a_name_of_both_families_may_be_the_advertised_one(refused: str, findings: int, tmp_path: Path) -> None:
    """`::1` refuses each time before `127.0.0.1` lets it in (localhost-ipv6-refused): connect-failed says so."""
    traffic = Traffic(tmp_path)
    traffic.tells("broker-1", by="127.0.0.1:9092")
    leads(traffic, p0=1)
    for number in range(6):
        ends: dict[str, Any] = {
            "connection": f"127.0.0.1:{number}-127.0.0.1:9092#1",
            "broker_ip": "127.0.0.1",
            "client_ip": "127.0.0.1",
        }
        traffic.link(number, **ends, first_time=at(number), last_time=at(number + 0.5))
        traffic.ask("Metadata", number, topics=["t"], on=number, **ends)
    traffic.missed("::1", refused, 6)
    assert len(unreachable(traffic)) == findings


def test_a_client_that_works_reached_the_one_broker_by_its_name(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.tells("kafka-1.internal")
    leads(traffic, p0=1)
    asks(traffic, 6)
    traffic.ask("Produce", 3, on=3, place=("t", 0))
    assert not unreachable(traffic)


def test_a_client_that_asks_on_its_second_connection_has_gone_there(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.tells("kafka-1.internal")
    leads(traffic, p0=1)
    for number in range(6):
        traffic.ask("Metadata", number, on=min(number, 1), topics=["t"])
    traffic.rows["connections"][1]["first_time"] = at(0.5)
    assert not unreachable(traffic)


@pytest.mark.parametrize(("needs", "findings"), [(True, 1), (False, 0)])
@pytest.mark.parametrize("host", ["kafka-{}.internal", "10.0.0.{}"])
def test_one_of_three_addresses_is_told_where_somebody_needs_it(
    host: str, needs: bool, findings: int, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path)
    for node in (1, 2, 3):
        traffic.tells(host.format(node + 8), nodes=(node,))
    leads(traffic, p0=1, p1=2, p2=3 if needs else 2)
    elsewhere = link(1, "10.0.0.10")
    traffic.link(1, **elsewhere)
    for number in range(8):
        traffic.ask("Metadata", number, topics=["t"])
        traffic.ask("Produce", number + 0.2, place=("t", 0))
        traffic.ask("Produce", number + 0.3, place=("t", 1), **elsewhere)
    matches = unreachable(traffic)
    assert len(matches) == findings
    assert all(finding.who["broker"] == f"{host.format(11)}:9092" for finding in matches)


def test_a_capture_at_one_broker_shows_nothing_of_others(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for node in (1, 2, 3):
        traffic.tells(f"10.0.0.{node + 8}", nodes=(node,))
    leads(traffic, p0=1, p1=2)
    for number in range(8):
        traffic.ask("Metadata", number, topics=["t"])
        traffic.ask("Produce", number + 0.2, place=("t", 0))
    assert not unreachable(traffic)


@pytest.mark.parametrize(("client_ip", "findings"), [("10.0.0.1", 1), ("10.0.0.9", 0)])
def test_localhost_is_no_address_for_another_host(client_ip: str, findings: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.tells("localhost")
    traffic.ask("Metadata", 0, topics=["t"], client_ip=client_ip)
    matches = unreachable(traffic)
    assert len(matches) == findings
    assert all(finding.cause and "loopback" in finding.cause for finding in matches)


@pytest.mark.parametrize(("nodes", "findings"), [(1, 1), (2, 0)])
def test_a_client_that_waits_after_its_first_answer_was_sent_nowhere(nodes: int, findings: int, tmp_path: Path) -> None:
    """As Java's does; where there are several brokers it may be at another one."""
    traffic = Traffic(tmp_path)
    for node in range(nodes):
        traffic.tells(f"kafka-{node}.internal", nodes=(node,))
    traffic.ask("Metadata", 0, topics=["t"])
    traffic.rows["connections"][0]["closed"] = "open"
    assert len(unreachable(traffic)) == findings


def test_one_address_of_three_nodes_explains_its_refusals(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    balanced(traffic, 20)
    findings = judged(traffic)
    assert codes(findings, *SEVERE) == {"advertised-address-shared": 1}
    (finding,) = [finding for finding in findings if finding.severity == "warning"]
    assert (
        "gives nodes 1, 2, 3 one address, kafka.example.com:9092: 20 of 30 requests of app (10.0.0.1)" in finding.text
    )


def test_errors_that_alternate_are_told_as_a_share(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for number in range(30):
        error = "NOT_LEADER_OR_FOLLOWER" if number % 3 else None
        traffic.ask("Produce", number / 2, error=error, place=("t", 0))
    findings = [finding for finding in judged(traffic) if finding.severity in SEVERE]
    assert [finding.code for finding in findings] == ["wrong-leader-fetch"]
    assert "20 of 29 times" in findings[0].text
