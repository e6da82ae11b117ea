"""Judge packets that TCP did not deliver: who is blamed, and who is not.

(proves: analyzer/findings/undelivered.py, analyzer/findings/sending.py, analyzer/findings/sessions.py)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.findings.rules import Finding
from tests.analyzer.findings.evaluating import codes, judged
from tests.analyzer.forging import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    fetch,
    fetch_answer,
    heartbeat,
    heartbeat_answer,
    produce,
    produce_answer,
    request,
    response,
)
from tests.captures.forge import TO_BROKER, TO_CLIENT, Segment, interleaved, pcap, rendered
from tests.captures.talk import Talk

USUAL = ("plain-traffic", "api-versions-missing")
"""Findings of all these captures."""

RETRIES = (0.2, 0.6, 1.4, 3, 6.2)
"""Seconds after which Linux sends again."""


def findings_of(folder: Path, *talks: Talk) -> list[Finding]:
    segments: list[Segment] = interleaved(*(talk.seen for talk in talks))
    path = folder / "capture.pcap"
    path.write_bytes(pcap(rendered(segments), nanoseconds=True))
    return [finding for finding in judged(analyzer.analyze(str(path))) if finding.code not in USUAL]


def only(findings: list[Finding]) -> Finding:
    assert [finding.code for finding in findings] == ["request-undelivered"], [f.text for f in findings]
    return findings[0]


def talk(port: int = 40000, at: float = 0, exchanges: int = 3, **ends: Any) -> Talk:
    """A connection on which requests were answered."""
    wire = Talk(client=("10.0.0.1", port), **ends)
    wire.open(at)
    for number in range(exchanges):
        wire.exchange(at + 0.1 + number / 10, produce(number), produce_answer(number))
    return wire


def resent(wire: Talk, to_broker: bool, at: float, data: bytes, times: int = 5, segment: int = 1448) -> None:
    """Bytes of which nothing is acknowledged, the first segment sent again as often."""
    first = data[:segment]
    position = wire.send(to_broker, at, first)
    for begin in range(segment, len(data), segment):
        wire.send(to_broker, at + begin / 1e9, data[begin : begin + segment])
    for wait in RETRIES[:times]:
        wire.again(to_broker, at + wait, position, first)


# ---------------------------------------------------------------------------------------------------------- the cases


def test_nobody_is_heard_and_one_segment_comes_again_and_again(tmp_path: Path) -> None:
    """The capture began when the connection was dead already."""
    wire = talk()
    wire.seen.clear()
    resent(wire, TO_BROKER, 9, produce(9))
    finding = only([f for f in findings_of(tmp_path, wire, talk(40001, 20)) if f.code != "capture-midstream"])
    assert "never acknowledged by TCP, though sent 6 times" in finding.text


def test_of_a_side_that_goes_on_the_other_was_not_captured(tmp_path: Path) -> None:
    wire = talk()
    resent(wire, TO_BROKER, 9, produce(9))
    for number in range(10, 20):
        wire.send(TO_BROKER, 10 + number, produce(number))
    wire.seen = [segment for segment in wire.seen if segment.source == wire.client]
    assert "capture-one-way" in codes(findings_of(tmp_path, wire, talk(40001, 40)))


@pytest.mark.parametrize("idle", [9.0, 245.0, 1800.0])
def test_every_packet_was_captured_twice(idle: float, tmp_path: Path) -> None:
    wire = talk(exchanges=12)
    resent(wire, TO_BROKER, idle, produce(99))
    wire.fin(True, idle + 60)
    once = rendered(interleaved(wire.seen, talk(40001, idle + 61).seen))
    twice = sorted(
        [*once, *(replace(record, time_ns=record.time_ns + 3000) for record in once)], key=attrgetter("time_ns")
    )
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(twice, nanoseconds=True))
    findings = {f.code: f for f in judged(analyzer.analyze(str(path))) if f.code not in USUAL}
    assert findings.keys() == {"request-undelivered", "capture-duplicated"}
    assert "1 Produce request" in findings["request-undelivered"].text
    assert "sent 6 times" in findings["request-undelivered"].text
    assert f"holds {len(once)} packets twice (50.0 %)" in findings["capture-duplicated"].text


@pytest.mark.parametrize("idle", [9.0, 245.0, 1800.0])
def test_a_connection_that_a_middlebox_forgot(idle: float, tmp_path: Path) -> None:
    wire = talk()
    resent(wire, TO_BROKER, idle, produce(9))
    wire.fin(True, idle + 60)
    finding = only(findings_of(tmp_path, wire, talk(40001, idle + 61)))
    assert finding.severity == "warning"
    assert "1 Produce request of orders-app" in finding.text
    assert "the broker never had it" in finding.text
    assert "had been idle for" in finding.text
    assert "middlebox" in (finding.cause or "")
    assert "connections.max.idle.ms" in finding.advice
    assert finding.who["broker"] == "10.0.0.2:9092"
    assert finding.what["topic"] == "orders"


def test_a_load_balancer_that_resets_what_it_forgot(tmp_path: Path) -> None:
    wire = talk()
    wire.send(TO_BROKER, 355, produce(9))
    wire.reset(False, 355.0005)
    finding = only(findings_of(tmp_path, wire, talk(40001, 356)))
    assert "but by a reset" in finding.text
    assert "5 min 55 s" in finding.text
    assert finding.proven is False


def test_a_reset_without_a_silence_is_another_matter(tmp_path: Path) -> None:
    wire = talk()
    wire.send(TO_BROKER, 2, produce(9))
    wire.reset(False, 2.0005)
    assert codes(findings_of(tmp_path, wire)) == {"connection-reset": 1, "request-unanswered": 1}


def test_a_longer_silence_that_the_connection_survived_is_not_blamed(tmp_path: Path) -> None:
    wire = talk()
    wire.exchange(60, produce(7), produce_answer(7))
    resent(wire, TO_BROKER, 90, produce(9))
    finding = only(findings_of(tmp_path, wire))
    assert "idle" not in finding.text
    assert "middlebox" not in (finding.cause or "")


def test_large_segments_alone_are_lost_seen_before_the_loss(tmp_path: Path) -> None:
    large = produce(9, records=bytes(5000))
    wire = talk()
    resent(wire, TO_BROKER, 1, large)
    base = wire.sent[TO_BROKER] - len(large)
    wire.ack(TO_BROKER, 1.1, sack=(base + 4344, base + len(large)))
    finding = only(findings_of(tmp_path, wire))
    assert "MTU" in (finding.cause or "")
    assert finding.proven is True
    assert finding.what["passed_bytes"] == str(len(large) - 4344)
    assert "those of 1.4 kB did not" in finding.text


def test_large_segments_alone_are_lost_seen_behind_the_loss(tmp_path: Path) -> None:
    large = produce(9, records=bytes(5000))
    talks = []
    for number in range(2):
        wire = talk(40000 + number, at=10.0 * number)
        base = wire.sent[TO_BROKER]
        for begin in range(0, 4344, 1448):
            wire.send(TO_BROKER, 10 * number + 1, large[begin : begin + 1448], captured=False)
        wire.send(TO_BROKER, 10 * number + 1.001, large[4344:])
        wire.ack(TO_BROKER, 10 * number + 1.002, sack=(base + 4344, base + len(large)))
        talks.append(wire)
    finding = only(findings_of(tmp_path, *talks, talk(40009, at=20)))
    assert "MTU" in (finding.cause or "")
    assert "on 2 connections" in finding.text
    assert finding.who["client_id"] == "orders-app"


def test_large_answers_alone_are_lost(tmp_path: Path) -> None:
    large = fetch_answer(9, bytes(5000))
    for at_broker in (True, False):
        wire = talk()
        wire.send(TO_BROKER, 1, fetch(9))
        wire.ack(TO_BROKER, 1.0001)
        base = wire.sent[TO_CLIENT]
        if at_broker:
            resent(wire, TO_CLIENT, 1.01, large)
        else:
            for begin in range(0, 4344, 1448):
                wire.send(TO_CLIENT, 1.01, large[begin : begin + 1448], captured=False)
            wire.send(TO_CLIENT, 1.02, large[4344:])
        wire.ack(TO_CLIENT, 1.03, sack=(base + 4344, base + len(large)))
        (tmp_path / str(at_broker)).mkdir()
        finding = only(findings_of(tmp_path / str(at_broker), wire, talk(40001, at=20)))
        assert finding.what["direction"] == "to the client", at_broker
        assert "the client never had it" in finding.text
        assert "Fetch answer" in finding.text
        assert "MTU" in (finding.cause or "")


def test_of_an_answer_that_large_segments_begin_the_client_has_those_before(tmp_path: Path) -> None:
    """The broker sends what fits into its window; at the end a small answer is on its way again too."""
    wires = [talk(port, at=5 * port) for port in (1, 2)]
    for begun, wire in zip((6, 11), wires, strict=True):
        wire.send(TO_BROKER, begun, fetch(9))
        wire.ack(TO_BROKER, begun + 0.0001)
        resent(wire, TO_CLIENT, begun + 0.01, fetch_answer(9, bytes(20_000))[:2896])
    small = talk(3, at=17)
    small.send(TO_BROKER, 18, produce(9))
    small.ack(TO_BROKER, 18.0001)
    resent(small, TO_CLIENT, 18.01, produce_answer(9), times=2)
    finding = only(findings_of(tmp_path, *wires, small))
    assert finding.text.startswith("2 Fetch answers "), finding.text
    assert "MTU" in (finding.cause or ""), finding.cause


def test_answers_that_nobody_acknowledges(tmp_path: Path) -> None:
    wire = talk()
    wire.send(TO_BROKER, 1, produce(9))
    wire.ack(TO_BROKER, 1.0001)
    resent(wire, TO_CLIENT, 1.01, produce_answer(9))
    finding = only(findings_of(tmp_path, wire))
    assert "1 Produce answer of 10.0.0.2:9092 to orders-app" in finding.text


def test_a_path_that_breaks(tmp_path: Path) -> None:
    wire = talk()
    resent(wire, TO_BROKER, 1, produce(9))
    finding = only(findings_of(tmp_path, wire))
    assert finding.cause == "nothing that was sent from then on arrived"


# --------------------------------------------------------------------------------------------------------- near misses


def in_flight(wire: Talk) -> None:
    """The capture ends a moment after."""
    wire.send(TO_BROKER, 1, produce(9))


def in_repair(wire: Talk) -> None:
    """The capture ends while TCP repairs."""
    resent(wire, TO_BROKER, 1, produce(9), times=2)


def repaired(wire: Talk) -> None:
    resent(wire, TO_BROKER, 1, produce(9), times=2)
    wire.ack(TO_BROKER, 1.7)
    wire.send(TO_CLIENT, 1.71, produce_answer(9))
    wire.ack(TO_CLIENT, 1.72)


def hole_at_the_end(wire: Talk) -> None:
    base = wire.send(TO_BROKER, 1, produce(9)[:50], captured=False)
    wire.send(TO_BROKER, 1.001, produce(9)[50:])
    wire.ack(TO_BROKER, 1.002, sack=(base + 50, base + len(produce(9))))


def half_open(wire: Talk) -> None:
    wire.fin(True, 2)


def client_gone(wire: Talk) -> None:
    """It closes with an answer on its way."""
    wire.exchange(60, produce(7), produce_answer(7))
    wire.send(TO_BROKER, 120, produce(9))
    wire.ack(TO_BROKER, 120.0001)
    wire.send(TO_CLIENT, 120.001, produce_answer(9))
    wire.reset(True, 120.002)


@pytest.mark.parametrize("happens", [in_flight, in_repair, repaired, hole_at_the_end, half_open, client_gone])
def test_nothing_is_said_of_what_is_on_its_way_or_came_late(happens: Callable[[Talk], None], tmp_path: Path) -> None:
    wire = talk()
    happens(wire)
    counts = codes(findings_of(tmp_path, wire))
    assert not {"request-undelivered", "capture-lost-packets"} & set(counts), counts


# ------------------------------------------------------------------------------------------------- delayed, and expired


def delayed(wire: Talk, number: int, wait: float = 0.04, held: float = 0.0001) -> None:
    at, data = 1 + number / 2, produce(number)
    wire.send(TO_BROKER, at, data[:30])
    wire.ack(TO_BROKER, at + wait)
    wire.send(TO_BROKER, at + wait + held, data[30:])
    wire.send(TO_CLIENT, at + wait + held + 0.002, produce_answer(number))
    wire.ack(TO_CLIENT, at + wait + held + 0.0021)


@pytest.mark.parametrize(("wait", "held", "number"), [(0.04, 0.0001, 3), (0.2, 0.001, 20)])
def test_requests_that_wait_for_a_delayed_acknowledgement(
    wait: float, held: float, number: int, tmp_path: Path
) -> None:
    wire = talk()
    for each in range(number):
        delayed(wire, each, wait, held)
    findings = findings_of(tmp_path, wire)
    assert codes(findings) == {"send-delayed": 1}
    assert findings[0].severity == "note"
    assert findings[0].count == number
    assert f"{number} Produce requests" in findings[0].text
    assert "TCP_NODELAY" in findings[0].advice


@pytest.mark.parametrize(("wait", "held", "number"), [(0.04, 0.0001, 2), (0.04, 0.1, 9), (0.001, 0.05, 9)])
def test_parts_that_the_application_writes_late_are_its_own(
    wait: float, held: float, number: int, tmp_path: Path
) -> None:
    wire = talk()
    for each in range(number):
        delayed(wire, each, wait, held)
    assert "send-delayed" not in codes(findings_of(tmp_path, wire))


def login(wire: Talk, at: float, number: int, lifetime_ms: int) -> None:
    shaken = response(SASL_HANDSHAKE, 1, number, {"errorCode": 0, "mechanisms": ["PLAIN"]})
    wire.exchange(at, request(SASL_HANDSHAKE, 1, number, {"mechanism": "PLAIN"}), shaken)
    token = {"errorCode": 0, "errorMessage": None, "authBytes": b"", "sessionLifetimeMs": lifetime_ms}
    answer = response(SASL_AUTHENTICATE, 2, number + 1, token)
    wire.exchange(at + 0.1, request(SASL_AUTHENTICATE, 2, number + 1, {"authBytes": b"\0bob\0secret"}), answer)


@pytest.mark.parametrize(
    ("requested", "lifetime_ms", "expires"), [(11.5, 10_000, True), (9.9, 10_000, False), (11.5, 0, False)]
)
def test_a_session_that_ran_out(requested: float, lifetime_ms: int, expires: bool, tmp_path: Path) -> None:
    wire = Talk()
    wire.open(0)
    login(wire, 0.1, 1, lifetime_ms)
    wire.exchange(5, produce(5), produce_answer(5))
    wire.send(TO_BROKER, requested, produce(6))
    wire.ack(TO_BROKER, requested + 0.0005)
    wire.fin(False, requested + 0.001)
    wire.fin(True, requested + 0.002)
    counts = codes(findings_of(tmp_path, wire))
    assert ("session-expired" in counts, "request-unanswered" in counts) == (expires, not expires), counts


def test_who_authenticates_again_has_a_session(tmp_path: Path) -> None:
    wire = Talk()
    wire.open(0)
    login(wire, 0.1, 1, 10_000)
    login(wire, 8, 3, 10_000)
    wire.send(TO_BROKER, 12, produce(6))
    wire.ack(TO_BROKER, 12.0005)
    wire.fin(False, 12.001)
    wire.fin(True, 12.002)
    assert "session-expired" not in codes(findings_of(tmp_path, wire))


# ---------------------------------------------------------------------------------------------------- address families


@pytest.mark.parametrize(("works", "after", "severity"), [(True, 0.0001, "note"), (True, 5, "warning")])
def test_the_other_address_family_lets_the_client_in(works: bool, after: float, severity: str, tmp_path: Path) -> None:
    talks = []
    for number in range(4):
        refused = Talk(client=("::1", 42000 + number), broker=("::1", 9092))
        refused.packet(TO_BROKER, 20 * number, 2, 0)
        refused.packet(TO_CLIENT, 20 * number + 0.00002, 20, 0)
        there = Talk(client=("127.0.0.1", 43000 + number), broker=("127.0.0.1", 9092))
        there.open(20 * number + after)
        there.exchange(20 * number + after + 0.1, heartbeat(1), heartbeat_answer(1))
        talks += [refused, there]
    findings = [finding for finding in findings_of(tmp_path, *talks) if finding.code == "connect-failed"]
    assert [finding.severity for finding in findings] == [severity], [finding.text for finding in findings]
    assert ("broker.address.family" in findings[0].advice) == (severity == "note")
