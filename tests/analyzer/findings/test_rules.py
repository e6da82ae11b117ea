"""Every rule raises its finding where it should, and keeps silent where it nearly should.

The cases of reading, groups and others stand in modules of their own (`cases` says what a case is). Real captures are
judged in `test_gate`.

Proves: analyzer/findings/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.findings.query import LOOK_FOR, Query
from kwire.analyzer.findings.rules import RULES
from tests.analyzer.findings import (
    advertised_cases,
    delivery_cases,
    group_cases,
    journey_cases,
    latency_cases,
    other_cases,
    payload_cases,
    reader_cases,
    reading_cases,
    writing_cases,
)
from tests.analyzer.findings.cases import CASES, case
from tests.analyzer.findings.evaluating import Traffic, codes, judged
from tests.reports.forging import at

MODULES = (
    advertised_cases,
    reading_cases,
    reader_cases,
    group_cases,
    journey_cases,
    latency_cases,
    other_cases,
    payload_cases,
    writing_cases,
    delivery_cases,
)
"""Each brings its cases."""


# ------------------------------------------------------------------------------------------------------------ quality


@case("capture-lost-packets")
def lost_packets(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, gaps=1, gap_bytes=100 if wrong else 0, payload_bytes=10_000)


@case("capture-clock-back")
def clock_back(traffic: Traffic, wrong: bool) -> None:
    for second in (10, *(9.5 if wrong or number < 4 else 9.6 for number in range(5))):
        traffic.ask("Metadata", second)


@case("capture-clock-back", "not by answers that were complete late")
def complete_late(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", 10)
    for number in range(5):
        traffic.ask("Metadata", number, on=1)
    traffic.rows["connections"][1]["retransmissions"] = 0 if wrong else 1


@case("capture-snaplen")
def snaplen(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, snaplen_bytes=100 if wrong else 0)


@case("capture-midstream")
def midstream(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, opened=not wrong)


@case("capture-one-way")
def one_way(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, client_packets=10, broker_packets=0 if wrong else 1)


@case("capture-one-way", "also of short connections where it lacks one side of all")
def one_way_of_all(traffic: Traffic, wrong: bool) -> None:
    for number in range(2):
        traffic.link(number, client_packets=5, broker_packets=0 if wrong or number else 1, gaps=1, gap_bytes=9)


@case("capture-lost-packets", "not of the direction that it lacks wholly")
def lost_of_one_way(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, client_packets=10, broker_packets=1 if wrong else 0, gaps=1, gap_bytes=9000, payload_bytes=1000)
    traffic.link(1, client_packets=3, broker_packets=0, gaps=1, gap_bytes=900)


@case("capture-duplicated")
def duplicated(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, client_packets=60, broker_packets=60, duplicates=12 if wrong else 11)


@case("capture-duplicated", "not of connections under several addresses")
def duplicated_legs(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, client_packets=60, broker_packets=60, duplicates=12)
    traffic.link(1, client_packets=60, broker_packets=60, duplicates=60, other_addresses=["172.17.0.2:9092"])
    if not wrong:
        traffic.rows["connections"][0]["duplicates"] = 11


@case("connection-legs")
def connection_legs(traffic: Traffic, wrong: bool) -> None:
    for number in range(3):
        others = ["172.17.0.2:9092"] if wrong and number else None
        traffic.link(number, client_packets=9, broker_packets=9, other_addresses=others)


@case("tls-not-decoded")
def encrypted(traffic: Traffic, wrong: bool) -> None:
    looks = "TLS" if wrong else "HTTP"
    traffic.unrecognised.append(
        {"capture": traffic.capture, "connection": "a", "payload_bytes": 10, "looks_like": looks}
    )


@case("opaque-bytes")
def opaque(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, payload_bytes=10_000, opaque_malformed_bytes=100 if wrong else 99)


@case("opaque-bytes", "not where a length is impossible")
def impossible_bytes(traffic: Traffic, wrong: bool) -> None:
    reason = "its length field holds -7, which no message has" if not wrong else "malformed: header"
    traffic.ask("Produce", 0, None, status="unanswered", reason=f"request: {reason}")
    traffic.rows["connections"][0]["skipped_bytes"] = 500


@case("opaque-bytes", "not of answers in another protocol")
def other_answers(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("ApiVersions", 0, None, status="unanswered")
    link = traffic.rows["connections"][0]
    link["skipped_bytes"] = 500
    traffic.facts["answered_otherwise"] = [] if wrong else [{"connection": link["connection"], "looks_like": "HTTP"}]


@case("frames-not-understood")
def unread_frames(traffic: Traffic, wrong: bool) -> None:
    traffic.facts["not_understood"] = {"ethertype 0x8903 (FabricPath)": 60} if wrong else {}


@case("tls-not-decoded", "not of a hello to a listener in the clear that did not answer it")
def probed(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", latency_ms=None if wrong else 1, status="unanswered" if wrong else "answered")
    link = {"connection": "10.0.0.5:5000-10.0.0.9:9092#1", "payload_bytes": 10, "looks_like": "TLS", "unanswered": True}
    traffic.unrecognised.append({"capture": traffic.capture, **link})


@case("opaque-bytes", "not of answers without their requests")
def without_requests(traffic: Traffic, wrong: bool) -> None:
    for _ in range(2):
        traffic.ask("Metadata", status="orphan_response", exchange=None, api_key=None, response_bytes=1000)
    traffic.rows["connections"][0] |= {"opened": False, "opaque_unknown_api_bytes": 2100 if wrong else 2099}


# ------------------------------------------------------------------------------------------------------------ network


@case("request-unanswered")
def unanswered(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, None, status="unanswered", reply=None, response_end=None)
    traffic.ask("Produce", 1) if wrong else None  # a later answer: the broker was there
    if not wrong:
        traffic.ask("Fetch", 2, None, on=1, status="unanswered")  # what a client leaves open that goes
        traffic.ask("Produce", 2, None, on=2, status="unanswered")
        traffic.rows["connections"][2]["gaps"] = 1  # what the capture may have missed


@case("request-unanswered", "not where one direction only was captured")
def one_direction(traffic: Traffic, wrong: bool) -> None:
    for number in range(3):
        traffic.ask("Produce", number, None, on=number, status="unanswered")
        packets = {"client_packets": 9, "broker_packets": 9 if wrong else 0}
        traffic.rows["connections"][number] |= {**packets, "broker_bytes": 10 if wrong else 0}


@case("request-unanswered", "not the last where packets are missing")
def last_of_all(traffic: Traffic, wrong: bool) -> None:
    for number in range(3):
        traffic.ask("Produce", number, None, status="unanswered", reply=None, response_end=None)
    traffic.ask("Produce", 4) if wrong else None  # a hole before it would show
    traffic.link(1, gaps=1)


@case("answer-after-client-timeout", "not where the answer may be missing")
def late_and_missing(traffic: Traffic, wrong: bool) -> None:
    late_answer(traffic, True)
    traffic.link(1, gaps=0 if wrong else 1)


@case("answer-after-client-timeout")
def late_answer(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", 0, None, status="unanswered")
    traffic.rows["connections"][0]["last_time"] = at(30.5 if wrong else 20)


@case("answer-after-client-timeout", "an answer to who had connected again")
def to_who_is_back(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, 35_000)
    traffic.rows["connections"][0]["last_time"] = at(35)
    traffic.link(1, first_time=at(30.1 if wrong else 32))


@case("answer-after-client-timeout", "not of an answer that was taken")
def taken_in_time(traffic: Traffic, wrong: bool) -> None:
    """The broker says after 30 s that followers are late, and the client goes, and comes again."""
    traffic.ask("Produce", 0, 30_010, "REQUEST_TIMED_OUT", place=("t", 0))
    traffic.rows["connections"][0]["last_time"] = at(30.02)
    traffic.link(1, first_time=at(30.005 if wrong else 30.5))


@case("answer-after-client-timeout", "not of who asks on")
def asks_on(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, 35_000)
    traffic.ask("Produce", 29 if wrong else 31, 6_000)
    traffic.link(1, first_time=at(30.1))


@case("tcp-retransmission")
def retransmission(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, retransmissions=10 if wrong else 9, client_packets=150, broker_packets=150)


@case("tcp-retransmission", "few of which nobody waited for are a note")
def retransmission_unfelt(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, retransmissions=12, client_packets=200, broker_packets=200 if wrong else 201)


@case("tcp-retransmission", "an answer that waited for a packet, not a large one")
def repaired(traffic: Traffic, wrong: bool) -> None:
    for number, size in enumerate((1000 if wrong else 50_000_000, 1000)):
        traffic.ask("Fetch", number, 600, on=number, network_us=500_000, response_bytes=size)
    traffic.rows["connections"][0] |= {"retransmissions": 1, "client_packets": 900}
    traffic.ask("Fetch", 9, 600, on=2, network_us=300_000)  # a long way
    traffic.rows["connections"][2] |= {"retransmissions": 1, "client_packets": 900, "rtt_us": 150_000}


@case("tcp-zero-window")
def zero_window(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Fetch", 0, 1)
    traffic.rows["exchanges"][0]["response_end"] = at(0.201 if wrong else 0.2)
    traffic.rows["connections"][0]["zero_windows"] = 3


@case("connection-reset")
def reset(traffic: Traffic, wrong: bool) -> None:
    for number in range(3 if wrong else 2):
        traffic.ask("Produce", number * 10, None, on=number, status="unanswered")
        traffic.rows["connections"][number] |= {"closed": "rst", "last_time": at(number * 10 + 5)}


@case("connection-reset", "not where answers may be missing")
def reset_and_missing(traffic: Traffic, wrong: bool) -> None:
    reset(traffic, True)
    traffic.link(3, gaps=0 if wrong else 1)  # what is lost at the end of the others leaves no hole


@case("connection-reset", "not where bytes were cut off")
def reset_and_cut(traffic: Traffic, wrong: bool) -> None:
    reset(traffic, True)
    traffic.rows["connections"][0]["snaplen_bytes"] = 0 if wrong else 1


@case("connect-failed")
def in_vain(traffic: Traffic, wrong: bool) -> None:
    traffic.missed("10.0.0.4", "10.0.0.9:9092", 3 if wrong else 2)


@case("connect-failed", "not of a broker that starts")
def starting(traffic: Traffic, wrong: bool) -> None:
    traffic.missed("10.0.0.4", "10.0.0.9:9092", 3)
    traffic.link(0, first_time=at(5 if wrong else 11))  # before the last of them, or after


@case("connect-failed", "not of a broker that stops")
def stopping(traffic: Traffic, wrong: bool) -> None:
    traffic.missed("10.0.0.4", "10.0.0.9:9092", 3, 20)
    traffic.link(0, first_time=at(0), last_time=at(25 if wrong else 19))
    traffic.link(1, first_time=at(0), last_time=at(15))


@case("connect-failed", "not of a broker that starts, serves and stops")
def serving_meanwhile(traffic: Traffic, wrong: bool) -> None:
    traffic.missed("10.0.0.4", "10.0.0.9:9092", 30, 20)
    traffic.link(0, first_time=at(22), last_time=at(29))
    traffic.link(1, first_time=at(23), last_time=at(31 if wrong else 28))  # open at the last try, or ended


@case("connect-failed", "not where nobody would have been heard")
def not_heard(traffic: Traffic, wrong: bool) -> None:
    traffic.missed("10.0.0.4", "10.0.0.9:9092", 0, 0)
    traffic.attempts[0] |= {"unanswered": 3, "most_in_a_minute": 3}
    traffic.link(0, client_packets=9, broker_packets=0)
    traffic.link(1, first_time=at(0), client_packets=9, broker_packets=9 if wrong else 0)


@case("connect-failed", "not where the few answers that are missing may be missing from the capture")
def not_captured(traffic: Traffic, wrong: bool) -> None:
    traffic.missed("10.0.0.4", "10.0.0.9:9092", 0, 0)
    traffic.attempts[0] |= {"unanswered": 3, "most_in_a_minute": 3}
    for number in range(29 if wrong else 30):
        traffic.link(number, first_time=at(1 + number / 10), opened=True, gaps=int(not number))


@case("idle-close")
def idle(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", 0)
    traffic.rows["connections"][0]["last_time"] = at(600 if wrong else 500)


@case("reconnect-loop")
def reconnects(traffic: Traffic, wrong: bool) -> None:
    for number in range(30 if wrong else 29):
        traffic.ask("Produce", number, on=number)
        traffic.rows["connections"][number] |= {"first_time": at(number), "last_time": at(number + 0.1)}


@case("reconnect-loop", "not of a tool that looks")
def tools(traffic: Traffic, wrong: bool) -> None:
    for number in range(30):
        error = "UNKNOWN_SERVER_ERROR" if wrong and number == 7 else None
        traffic.ask("ListGroups", number, error=error, on=number)
        traffic.rows["connections"][number] |= {"first_time": at(number), "last_time": at(number + 0.1)}


@case("reconnect-loop", "not of clients whose ids were not captured")
def many_reconnect(traffic: Traffic, wrong: bool) -> None:
    for number in range(30):
        traffic.ask("Produce", number, on=number, client_id=None, request_state="decoded" if wrong else "truncated")
        times = {"first_time": at(number), "last_time": at(number + 0.1)}
        traffic.rows["connections"][number] |= {"client_id": None, "snaplen_bytes": 100, "requests": 1, **times}


@case("connection-storm")
def storm(traffic: Traffic, wrong: bool) -> None:
    for second in range(80):
        traffic.link(second, first_time=at(second), last_time=at(80))
    for number in range(100, 240 if wrong else 180):
        traffic.link(number, first_time=at(62 + number / 1000), last_time=at(80), client_ip=f"10.0.1.{number}")


# ------------------------------------------------------------------------------------------- errors, roots, topics


@case("error-answers")
def faults(traffic: Traffic, wrong: bool) -> None:
    for number in range(10):  # ten over a second, no good one between
        traffic.ask("ListOffsets", number / 8, error="NOT_LEADER_OR_FOLLOWER", topics=["t"])
    if not wrong:
        traffic.rows["exchanges"][5] |= {"error_code": 0, "error": None}


@case("admin-refused")
def admin(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("CreateTopics", error="TOPIC_ALREADY_EXISTS" if wrong else None)


@case("admin-refused", "not of brokers that all make an internal topic")
def admin_of_brokers(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("BrokerHeartbeat", client_id="1")
    who = "app" if wrong else "1"
    traffic.ask("CreateTopics", 1, on=1, error="TOPIC_ALREADY_EXISTS", topics=["__consumer_offsets"], client_id=who)


@case("topic-missing")
def missing(traffic: Traffic, wrong: bool) -> None:
    for number in range(10):
        traffic.ask("Metadata", number / 2, error="UNKNOWN_TOPIC_OR_PARTITION", topics=["ordres"])
    traffic.add("leaders", time=at(9), topic="orders" if wrong else "ordres", partition=0, leader=1)


@case("broker-lost")
def broker_lost(traffic: Traffic, wrong: bool) -> None:
    for number in range(2):
        traffic.ask("Produce", 5, None, on=number, status="unanswered", client_id=f"app-{number}")
        traffic.rows["connections"][number] |= {"closed": "rst", "last_time": at(6 + number / 10)}
    for number in range(2 if wrong else 1):  # of those that leave, one comes back
        traffic.ask("Produce", 12, on=10 + number, client_id=f"app-{number}")
        traffic.rows["connections"][-1] |= {"first_time": at(12)}


@case("broker-lost", "not where one direction only was captured")
def not_lost(traffic: Traffic, wrong: bool) -> None:
    broker_lost(traffic, True)
    for row in traffic.rows["connections"]:
        row |= {"client_packets": 9, "broker_packets": 9 if wrong else 0}


@case("leaders-moved")
def leaders_moved(traffic: Traffic, wrong: bool) -> None:
    for second, leader in ((0, 1), (30, 2 if wrong else 1)):
        traffic.add("leaders", time=at(second), topic="t", partition=0, leader=leader)


@case("leaders-moved", "not back, by who had not heard of it")
def not_back(traffic: Traffic, wrong: bool) -> None:
    its = {"topic": "t", "topic_id": "6hWhQvmDS1S79-tG9HZ0dw", "partition": 0}
    for second, leader, epoch in ((0, 2, 5), (1, 1, 6 if wrong else 4), (2, 2, 7 if wrong else 5)):
        traffic.add("leaders", time=at(second), leader=leader, leader_epoch=epoch, **its)


# ------------------------------------------------------------------------------------------------------------ produce


@case("message-too-large")
def too_large(traffic: Traffic, wrong: bool) -> None:
    place = ("t", 0)
    traffic.ask("Produce", 0, error="MESSAGE_TOO_LARGE", place=place, batch={"record_count": 4})
    if not wrong:
        for number in range(2):
            traffic.ask("Produce", 1 + number, place=place, batch={"record_count": 2})


@case("not-enough-replicas")
def replicas(traffic: Traffic, wrong: bool) -> None:
    for second in range(0, 31 if wrong else 29, 2):
        traffic.ask("Produce", second, error="NOT_ENOUGH_REPLICAS", place=("t", 0))
    traffic.ask("Produce", 40, place=("t", 0))


@case("produce-timed-out-on-broker")
def timed_out(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, 30_000, error="REQUEST_TIMED_OUT" if wrong else None, place=("t", 0))


@case("acks-zero")
def acks_zero(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", acks=0 if wrong else 1, place=("t", 0))


_BATCH = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 10}


@case("produce-retried")
def retried(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, place=("t", 0), batch=_BATCH, error="NOT_LEADER_OR_FOLLOWER")
    traffic.ask("Produce", 1, place=("t", 0), batch=_BATCH if wrong else {**_BATCH, "base_sequence": 11})


@case("produce-retried", "not by a proxy that hands it on")
def handed_on(traffic: Traffic, wrong: bool) -> None:
    """The proxy's own request lies within the client's, and is the same message."""
    traffic.ask("Produce", 0.001, 2, on=1, place=("t", 0), batch=_BATCH, correlation_id=7)
    traffic.ask("Produce", 0, 5, place=("t", 0), batch=_BATCH, correlation_id=8 if wrong else 7)


@case("duplicate-records")
def duplicates(traffic: Traffic, wrong: bool) -> None:
    for second, offset in ((0, 100), (1, 140 if wrong else 100)):
        traffic.ask("Produce", second, place=("t", 0), batch=_BATCH, part={"offset": offset, "offset_kind": "base"})


@case("duplicate-records", "after a first attempt that failed")
def third_attempt(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, place=("t", 0), batch=_BATCH, error="NOT_LEADER_OR_FOLLOWER")
    for second, offset in ((1, 100), (2, 140 if wrong else 100)):
        traffic.ask("Produce", second, place=("t", 0), batch=_BATCH, part={"offset": offset, "offset_kind": "base"})


@case("retry-may-reorder")
def reorder(traffic: Traffic, wrong: bool) -> None:
    for turn in range(2 if wrong else 1):
        early, late = ({"first_timestamp": at(turn + part)} for part in (0, 0.5))
        traffic.ask("Produce", turn, 50, "NOT_LEADER_OR_FOLLOWER", place=("t", 0), batch=early)
        traffic.ask("Produce", turn + 0.01, 50, place=("t", 0), batch=late, part={"offset": 10 * turn})
        traffic.ask("Produce", turn + 0.2, 50, place=("t", 0), batch=early, part={"offset": 10 * turn + 1})


@case("mixed-idempotence")
def mixed(traffic: Traffic, wrong: bool) -> None:
    for number, producer in enumerate((7, None if wrong else 8)):
        traffic.ask("Produce", number, place=("t", 0), batch={"producer_id": producer}, client_id=f"app-{number}")


@case("tiny-batches")
def tiny(traffic: Traffic, wrong: bool) -> None:
    for number in range(1000):
        traffic.ask("Produce", number / 100 if wrong else number / 99, place=("t", 0), batch={})


@case("tiny-batches", "not where each is a transaction")
def tiny_transactions_each(traffic: Traffic, wrong: bool) -> None:
    for number in range(1000):
        traffic.ask("Produce", number / 100, place=("t", 0), batch={})
        if number % (3 if wrong else 2) == 0:
            traffic.ask("EndTxn", number / 100, transactional_id="tx-1")


@case("tiny-batches", "not of less than a second")
def tiny_for_a_moment(traffic: Traffic, wrong: bool) -> None:
    for number in range(1000):
        traffic.ask("Produce", number / (1000 if wrong else 1010), 1, place=("t", 0), batch={})
    traffic.rows["connections"][0]["last_time"] = at(1 if wrong else 0.99)


@case("no-compression")
def uncompressed(traffic: Traffic, wrong: bool) -> None:
    for number in range(10):
        batch = {"batch_bytes": 12_000_000, "codec": "none" if wrong else "lz4"}
        traffic.ask("Produce", number, place=("t", 0), batch=batch)


@case("codec-recompressed")
def recompressed(traffic: Traffic, wrong: bool) -> None:
    stored_as(traffic, 10 if wrong else 9)


@case("codec-recompressed", "not another batch at that offset")
def stored_anew(traffic: Traffic, wrong: bool) -> None:
    stored_as(traffic, 10, read={} if wrong else {"base_sequence": 8})


@case("codec-recompressed", "not of the old formats")
def converted(traffic: Traffic, wrong: bool) -> None:
    stored_as(traffic, 10, read={"magic": 2 if wrong else 1})


@case("codec-recompressed", "not where the topic is written with both")
def written_with_both(traffic: Traffic, wrong: bool) -> None:
    stored_as(traffic, 10)
    traffic.ask("Produce", 20, place=("t", 0), batch={"codec": "lz4" if wrong else "zstd"})


@case("codec-recompressed", "not of a topic that was made anew")
def made_anew(traffic: Traffic, wrong: bool) -> None:
    stored_as(traffic, 10)
    for topic_id in ("6hWhQvmDS1S79-tG9HZ0dw", "6hWhQvmDS1S79-tG9HZ0dw" if wrong else "r-4vlSNsTw2Wmvo_qD_U_A"):
        traffic.add("topic_ids", topic_id=topic_id, topic="t")


def stored_as(traffic: Traffic, number: int, read: dict[str, Any] | None = None) -> None:
    """Batches of lz4 that are read with zstd, and a marker between them."""
    for turn in range(number):
        batch = {"codec": "lz4", "last_timestamp": at(turn), "producer_id": 7, "base_sequence": turn}
        traffic.ask("Produce", turn, place=("t", 0), batch=batch, part={"offset": 10 * turn, "offset_kind": "base"})
        got = {**batch, "codec": "zstd", "base_offset": 10 * turn, "base_sequence": turn, **(read or {})}
        traffic.ask("Fetch", turn + 0.5, on=1, place=("t", 0), batch=got, client_id="reader")
    marker = {"codec": "none", "base_offset": 10 * number, "is_control": True}
    traffic.ask("Fetch", number, on=1, place=("t", 0), batch=marker, client_id="reader")


@case("batch-crc-bad")
def damaged(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", place=("t", 0), batch={"crc_ok": False if wrong else None})


@case("record-timestamps-off")
def timestamps(traffic: Traffic, wrong: bool) -> None:
    ahead = 2 * 3600 if wrong else 60
    traffic.ask("Produce", place=("t", 0), batch={"first_timestamp": at(0), "last_timestamp": at(ahead)})


# ------------------------------------------------------------------------------------------------------------ latency


@case("broker-slow")
def slow(traffic: Traffic, wrong: bool) -> None:
    for number in range(100):
        late = number >= 98
        took = 600_000 if late else 1000
        held = 0 if wrong or not late else 599_000
        traffic.ask("Produce", number / 10, took / 1000, broker_us=took - held, hold_us=held)


@case("broker-slow", "not where packets were lost")
def slow_and_lossy(traffic: Traffic, wrong: bool) -> None:
    slow(traffic, True)
    traffic.rows["connections"][-1] |= {
        "client_packets": 300,
        "broker_packets": 300,
        "retransmissions": 6 + 12 * (not wrong),
    }


@case("broker-slow", "not for a moment")
def slow_moment(traffic: Traffic, wrong: bool) -> None:
    for number in range(100):
        took = 600_000 if number >= 98 else 1000
        traffic.ask("Produce", number / (10 if wrong else 11), took / 1000, broker_us=took)


@case("broker-stall")
def stall(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", 0)
    for number in range(5 if wrong else 2):
        traffic.ask("Produce", 0.1, 2000 + number, on=number, client_ip=f"10.0.0.{number}")
    for number in range(3 if not wrong else 0):
        traffic.ask("Produce", 2, 100 + number, on=10 + number)
    traffic.ask("Metadata", 0.9, 1300, on=1)


@case("replication-slow")
def replication(traffic: Traffic, wrong: bool) -> None:
    for number in range(100):
        traffic.ask("Produce", number, 600, acks=-1)
        if number < 30:
            traffic.ask("Heartbeat", number + 0.7, 4 if wrong else 100, on=1)


@case("replication-slow", "not of a broker that is slow as a whole for a while")
def slow_for_a_while(traffic: Traffic, wrong: bool) -> None:
    for number in range(1000):
        for on, api in enumerate(("Produce", "Heartbeat")):
            took = 2000 if 500 <= number < 530 and not (wrong and on) else 4
            traffic.ask(api, number, took, on=on, acks=None if on else -1)


@case("client-throttled")
def throttled(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", throttle_us=1_000_000 if wrong else 10_000)


@case("client-throttled", "in a minute of an hour")
def throttled_for_a_minute(traffic: Traffic, wrong: bool) -> None:
    for number in range(12 if wrong else 11):
        traffic.ask("Produce", 5 * number, throttle_us=500_000)
    traffic.ask("Produce", 3600, throttle_us=500_000)


@case("throttle-ignored")
def ignored(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, throttle_us=1_000_000)
    traffic.ask("Produce", 0.5 if wrong else 1.0)


@case("queue-behind-own-requests")
def queued(traffic: Traffic, wrong: bool) -> None:
    for number in range(30 if wrong else 29):
        traffic.ask("Produce", number, 300, queue_us=200_000)


@case("queue-behind-own-requests", "not for a moment")
def queued_for_a_moment(traffic: Traffic, wrong: bool) -> None:
    for number in range(60):
        waits = number % 6 == 0 if wrong else 20 <= number < 28
        traffic.ask("Produce", number, 2100 if waits else 3, queue_us=2_000_000 if waits else 0)


# -------------------------------------------------------------------------------------------------------------- tests
# Here, where every case is known.


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_raises_what_it_should_and_nothing_near_it(name: str, tmp_path: Path) -> None:
    code = name.partition(":")[0]
    to_4 = Query(target={0: (0, 13), 1: (4, 17)}, target_name="4.0")
    query = to_4 if code == "version-removed-in-target" else Query(look_for=frozenset(LOOK_FOR))
    for wrong in (True, False):
        traffic = Traffic(tmp_path / str(wrong))
        CASES[name](traffic, wrong)
        if not traffic.rows["connections"]:
            traffic.link(0)
        findings = judged(traffic, query)
        severe = [finding for finding in findings if finding.code == code and finding.severity == RULES[code].severity]
        assert bool(severe) == wrong, (wrong, codes(findings), [finding.text for finding in findings])


@pytest.mark.parametrize("name", sorted(name for name in CASES if RULES[name.partition(":")[0]].by_clock))
def test_what_argues_with_time_keeps_silent_where_the_clock_was_set_back(name: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    CASES[name](traffic, True)
    for second in (100_000, *range(5)):
        traffic.ask("ListGroups", second, on=900, client_id="clock")
    counts = codes(judged(traffic))
    assert counts["capture-clock-back"] == 1
    assert name.partition(":")[0] not in counts


def test_every_case_is_of_a_rule() -> None:
    assert {name.partition(":")[0] for name in CASES} == set(RULES)
