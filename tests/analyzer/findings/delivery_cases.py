"""Cases of rules about what TCP delivered, and when. `test_undelivered` has the same from packets on."""

from __future__ import annotations

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.reports.forging import at


@case("request-undelivered")
def sent_in_vain(traffic: Traffic, wrong: bool) -> None:
    lost(traffic, sends=4 if wrong else 3)


def lost(traffic: Traffic, sends: int, **columns: object) -> None:
    """A request of 100 bytes, sent so often at second 10, on a connection that the capture leaves open."""
    traffic.ask("Produce", 1)
    traffic.ask("Produce", 10, None, status="in_flight", reply=None, response_end=None)
    traffic.rows["connections"][0] |= {
        "closed": "open",
        "longest_silence_us": 9_000_000,
        "unacknowledged_bytes_to_broker": 100,
        "unacknowledged_sends_to_broker": sends,
        "unacknowledged_segment_to_broker": 100 if sends > 1 else None,
        "unacknowledged_since_to_broker": at(10.2) if sends > 1 else None,
        **columns,
    }


@case("request-undelivered", "three times where the connection ended after")
def sent_until_the_end(traffic: Traffic, wrong: bool) -> None:
    lost(traffic, sends=3, closed="fin" if wrong else "open")


@case("request-undelivered", "a hole that nobody fills")
def never_came(traffic: Traffic, wrong: bool) -> None:
    lost(traffic, sends=0, closed="fin", unacknowledged_since_to_broker=at(10))
    traffic.rows["connections"][0]["last_time"] = at(12 if wrong else 11.9)


@case("request-undelivered", "a reset after a silence")
def forgotten(traffic: Traffic, wrong: bool) -> None:
    lost(traffic, sends=1, closed="rst", closed_by="broker", closed_after="request", closed_after_us=500)
    quiet = 30 if wrong else 29
    traffic.rows["exchanges"][1] |= {"request_time": at(1.001 + quiet), "status": "unanswered"}
    traffic.rows["connections"][0] |= {"longest_silence_us": quiet * 1_000_000, "last_time": at(2 + quiet)}


@case("request-undelivered", "not of a packet that the capture holds several times")
def several_copies(traffic: Traffic, wrong: bool) -> None:
    lost(traffic, sends=4, duplicates=12 if wrong else 10, client_packets=12, broker_packets=12, retransmissions=3)


@case("request-undelivered", "not of one of many packets that are lost")
def lossy_path(traffic: Traffic, wrong: bool) -> None:
    lost(traffic, sends=6 if wrong else 5, client_packets=1000, requests=1000, retransmissions=120)


@case("connect-failed", "not where the other family lets it in when the capture is over")
def other_family_at_the_end(traffic: Traffic, wrong: bool) -> None:
    other_family(traffic, False)
    traffic.rows["connections"].pop()
    for row in traffic.rows["connections"]:
        row["last_time"] = at(60 if wrong else 10)


@case("send-delayed")
def held_back(traffic: Traffic, wrong: bool) -> None:
    for number in range(3 if wrong else 2):
        traffic.ask("Produce", number, 42)
        traffic.rows["exchanges"][number]["request_end"] = at(number + 0.04)
    traffic.rows["connections"][0]["delayed_sends"] = 3


@case("send-delayed", "not where the application wrote the rest late")
def written_late(traffic: Traffic, wrong: bool) -> None:
    held_back(traffic, True)
    traffic.rows["connections"][0]["delayed_sends"] = 3 if wrong else 2


@case("send-delayed", "not where TCP sent something again")
def sent_again(traffic: Traffic, wrong: bool) -> None:
    held_back(traffic, True)
    traffic.rows["connections"][0]["retransmissions"] = 0 if wrong else 1


@case("session-expired")
def expired(traffic: Traffic, wrong: bool) -> None:
    traffic.add("clients", client_id="app", client_ip="10.0.0.1", session_lifetime_ms=10_000)
    traffic.ask("SaslAuthenticate", 0, 0)
    traffic.ask("Produce", 10 if wrong else 9.9, None, status="unanswered", reply=None, response_end=None)
    traffic.rows["connections"][0] |= {"closed_by": "broker", "last_time": at(10.5)}


@case("session-expired", "not where the client closes")
def closed_by_client(traffic: Traffic, wrong: bool) -> None:
    expired(traffic, True)
    traffic.rows["connections"][0]["closed_by"] = "broker" if wrong else "client"


@case("connect-failed", "not of an address whose other family lets the client in")
def other_family(traffic: Traffic, wrong: bool) -> None:
    traffic.missed("::1", "[::1]:9092", 3)
    for number in range(3):
        who = {"connection": f"127.0.0.1:{number}-127.0.0.1:9092#1", "client_ip": "127.0.0.1", "broker_ip": "127.0.0.1"}
        begun = 5 * number + (1.5 if wrong else 0.5)
        traffic.link(number, **who, first_time=at(begun), broker_bytes=100)
