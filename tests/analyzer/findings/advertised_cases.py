"""Cases of addresses that brokers advertise. Warnings of the one rule are in `test_advertised`."""

from __future__ import annotations

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.reports.forging import at


@case("advertised-address-unreachable")
def unreachable(traffic: Traffic, wrong: bool) -> None:
    traffic.add("brokers", node_id=1, host="10.1.0.5", port=9092)
    traffic.missed("10.0.0.4", "10.1.0.5:9092", 1)
    traffic.missed("10.0.0.5", "10.1.0.5:9092", 1)
    traffic.missed("10.0.0.5", "10.1.0.6:9092", 2)  # nobody is sent there
    if not wrong:
        traffic.link(0, broker_ip="10.1.0.5", connection="10.0.0.9:5000-10.1.0.5:9092#1")


@case("advertised-address-unreachable", "of the loopback interface, at which clients dial themselves")
def dials_itself(traffic: Traffic, wrong: bool) -> None:
    traffic.tells("localhost")
    traffic.ask("Metadata", 0, topics=["t"])
    traffic.missed("127.0.0.1", "127.0.0.1:9092" if wrong else "127.0.0.1:9093", 5)


def balanced(traffic: Traffic, refused: int, whole: int = 30, error: str = "NOT_LEADER_OR_FOLLOWER") -> None:
    """A client whose requests reach any of three nodes: so many of them are refused, in turn with good ones."""
    traffic.tells("kafka.example.com", nodes=(1, 2, 3))
    traffic.ask("Metadata", 0, topics=["t"])
    for number in range(whole):
        is_refused = (number * refused) % whole < refused
        traffic.ask("Produce", 1 + number / 2, error=error if is_refused else None, place=("t", 0))


@case("advertised-address-shared")
def shared_address(traffic: Traffic, wrong: bool) -> None:
    balanced(traffic, 20 if wrong else 2)


@case("advertised-address-shared", "also for coordinators")
def shared_coordinator(traffic: Traffic, wrong: bool) -> None:
    traffic.tells("10.0.0.9", nodes=(1, 2))
    traffic.ask("Metadata", 0)
    for number in range(12):
        error = "NOT_COORDINATOR" if number % 2 and (wrong or number < 4) else None
        traffic.ask("Heartbeat", 1 + number, error=error, group_id="g")


@case("advertised-address-shared", "not where each has its own, and the balancer's is that of the first connection")
def balancer_for_bootstrap(traffic: Traffic, wrong: bool) -> None:
    balanced(traffic, 20)
    if not wrong:
        for address in traffic.advertised:
            address |= {"shared": False, "nodes": [1]}
        traffic.tells("kafka-2.example.com", nodes=(2,))


@case("error-answers", "that alternate with good ones")
def alternating(traffic: Traffic, wrong: bool) -> None:
    for number in range(40):
        error = "NOT_COORDINATOR" if not (number + 1) % (2 if wrong else 8) else None
        traffic.ask("OffsetCommit", number / 2, error=error, group_id="g", topics=["t"])


@case("leaders-moved", "not said of a leader that moved back and forth")
def moved_once(traffic: Traffic, wrong: bool) -> None:
    """A note of what moved once; of what moved three times a warning."""
    leaders = (1, 2) if wrong else (1, 2, 1, 2)
    for number, leader in enumerate(leaders):
        traffic.add(
            "leaders", time=at(6 * number), topic="t", partition=0, leader=leader, leader_epoch=number, isr=[1, 2]
        )
