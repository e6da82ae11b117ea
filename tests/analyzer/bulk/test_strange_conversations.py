"""Answers that overtake others, lengths that no message has, and end points that are asked for Kafka and have none.

(proves: the rules on order in analyzer/bulk/matching.py and pending.py, and on lengths in framing.py)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from tests.analyzer.forging import (
    API_VERSIONS,
    CLIENT_ID,
    CaptureRows,
    answering,
    asking,
    batch,
    fetch,
    fetch_answer,
    heartbeat,
    heartbeat_answer,
    metadata,
    metadata_answer,
    payloads,
    produce,
    produce_answer,
    read,
    request,
    turns,
    without,
)
from tests.captures.forge import Write, converse, interleaved

ANSWERED = ("answered", "decoded", "decoded")
UNANSWERED = ("unanswered", "decoded", None)


def outcomes(rows: CaptureRows) -> dict[int, tuple[Any, ...]]:
    """(status, request state, response state) by correlation id."""
    states = ("status", "request_state", "response_state")
    return {row["correlation_id"]: tuple(row[name] for name in states) for row in rows.exchanges}


def codes(folder: Path) -> dict[str, dict[str, Any]]:
    """Findings of the capture that was read last, by code."""
    findings = analyzer.analyze(folder / "capture.pcap").findings.to_pylist()
    return {row["code"]: row for row in findings}


# ----------------------------------------------------------------------------------------------------- out of order


def test_an_answer_that_overtakes_gives_up_none_before_it(tmp_path: Path) -> None:
    writes = turns([1])
    writes += [asking(fetch(2)), asking(heartbeat(3)), asking(produce(4)), asking(metadata(5))]
    writes += [answering(metadata_answer(5)), answering(heartbeat_answer(3)), answering(produce_answer(4))]
    writes += [answering(fetch_answer(2, batch())), *turns([6])]
    rows = read(tmp_path, converse(writes))
    assert outcomes(rows) == dict.fromkeys(range(1, 7), ANSWERED)
    finding = codes(tmp_path)["answers-out-of-order"]
    assert (finding["severity"], finding["count"]) == ("error", 3)
    assert dict(finding["what"])["correlation_ids"] == "3,4,2"  # as they were answered
    assert "Metadata 5 before Fetch 2" in finding["text"]
    assert not {"request-unanswered", "correlation-mismatch"} & set(codes(tmp_path))


def test_one_that_is_overtaken_and_never_answered_stays_unanswered(tmp_path: Path) -> None:
    writes = [asking(fetch(1)), *turns([2, 3])]
    rows = read(tmp_path, converse(writes))
    assert outcomes(rows)[1] == UNANSWERED
    rows = read(tmp_path, without(converse(writes), -1, -2, -3))  # the capture ends first
    assert outcomes(rows)[1] == UNANSWERED
    assert {"request-unanswered"} == set(codes(tmp_path)) & {"request-unanswered", "answers-out-of-order"}


def test_answers_in_order_say_nothing(tmp_path: Path) -> None:
    writes = [asking(fetch(1)), asking(heartbeat(2)), answering(fetch_answer(1)), answering(heartbeat_answer(2))]
    read(tmp_path, converse(writes))
    assert "answers-out-of-order" not in codes(tmp_path)


def test_where_answers_are_missing_those_before_are_given_up(tmp_path: Path) -> None:
    """Ids may repeat: an answer belongs to no request whose own answer is in the hole."""
    writes = [*turns([1, 1, 1]), *turns([1])]
    segments = converse(writes)
    lost = payloads(segments, False)[1]
    rows = read(tmp_path, without(segments, lost))
    assert [row["status"] for row in rows.exchanges].count("answered") == 3
    assert "answers-out-of-order" not in codes(tmp_path)


def test_the_wait_of_one_that_was_overtaken_is_not_its_queue(tmp_path: Path) -> None:
    writes = [asking(fetch(1)), asking(heartbeat(2)), answering(heartbeat_answer(2)), answering(fetch_answer(1))]
    rows = read(tmp_path, converse(writes))
    assert rows.where(correlation_id=1)["queue_us"] in (0, None)


# ------------------------------------------------------------------------------------------------ impossible lengths

LENGTHS = [-1431655766, -1, 0, 3, 0x50524F44, 0x7FFFFFFF, struct.unpack(">i", b"GET ")[0]]


def with_length(message: bytes, length: int) -> bytes:
    return struct.pack(">i", length) + message[4:]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_that_no_request_has(length: int, tmp_path: Path) -> None:
    writes = [*turns([1], produce, produce_answer), asking(with_length(produce(2, records=batch()), length))]
    rows = read(tmp_path, converse(writes))
    broken = rows.where(correlation_id=2)
    assert (broken["api"], broken["status"], broken["request_state"]) == ("Produce", "unanswered", "undecoded")
    assert broken["reason"] == f"request: its length field holds {length}, which no message has"
    assert broken["request_bytes"] is None
    findings = codes(tmp_path)
    assert findings["frame-length-impossible"]["severity"] == "error"
    assert dict(findings["frame-length-impossible"]["what"]) == {
        "api": "Produce",
        "length": str(length),
        "side": "request",
    }
    assert dict(findings["frame-length-impossible"]["who"])["client_id"] == CLIENT_ID
    assert not {"opaque-bytes", "request-unanswered", "frame-oversized", "frame-malformed"} & set(findings)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mss", [1448, 7])
def test_what_follows_is_found_again(length: int, mss: int, tmp_path: Path) -> None:
    broken = with_length(produce(2, records=batch()), length)
    writes = [*turns([1], produce, produce_answer), asking(broken), *turns([3, 4, 5])]
    rows = read(tmp_path, converse(writes, mss=mss))
    assert [outcomes(rows)[number] for number in (3, 4, 5)] == [ANSWERED] * 3
    assert "frame-length-impossible" in codes(tmp_path)


@pytest.mark.parametrize("length", [-7, 3, 0x50524F44])
def test_a_length_that_no_answer_has(length: int, tmp_path: Path) -> None:
    writes = [*turns([1]), asking(heartbeat(2)), answering(with_length(heartbeat_answer(2), length)), *turns([3, 4])]
    rows = read(tmp_path, converse(writes))
    assert rows.where(correlation_id=2)["response_state"] == "undecoded"
    assert {outcomes(rows)[3], outcomes(rows)[4]} == {ANSWERED}
    finding = codes(tmp_path)["frame-length-impossible"]
    assert finding["text"].startswith("10.0.0.2:9092 sent ")
    assert dict(finding["what"])["side"] == "response"


def test_a_length_that_is_possible_is_waited_for(tmp_path: Path) -> None:
    writes = [*turns([1]), asking(with_length(produce(2, records=batch()), 200_000_000))]
    read(tmp_path, converse(writes))
    findings = codes(tmp_path)
    assert "frame-length-impossible" not in findings


# ------------------------------------------------------------------------------------------- no Kafka where it is asked


def ask_versions(number: int) -> bytes:
    body = {"clientSoftwareName": "librdkafka", "clientSoftwareVersion": "2.3.0"}
    return request(API_VERSIONS, 3, number, body)


def connections(writes: list[Write], count: int, **ends: Any) -> list[Any]:
    return [converse(writes, client=("10.0.0.1", 41_000 + number), **ends) for number in range(count)]


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.0\r\n", "SSH"),
        (b"-ERR unknown command\r\n", "Redis"),
        (b"220 mail.example.org ESMTP\r\n", "SMTP or FTP"),
        (b"\x4a\0\0\0\x0a8.0.36\0", "MySQL"),
        (b"\x99\x98\x97\x96\x95\x94\x93\x92", "unknown"),
    ],
)
def test_a_server_of_another_protocol(answer: bytes, protocol: str, tmp_path: Path) -> None:
    read(tmp_path, interleaved(*connections([asking(ask_versions(1)), answering(answer)], 4)))
    findings = codes(tmp_path)
    assert findings["not-kafka"]["severity"] == "error"
    assert dict(findings["not-kafka"]["what"])["protocol"] == protocol
    assert dict(findings["not-kafka"]["who"])["broker"] == "10.0.0.2:9092"
    assert "no broker there" in findings["not-kafka"]["text"]
    assert not {"opaque-bytes", "request-unanswered", "frame-length-impossible", "no-kafka-answer"} & set(findings)


@pytest.mark.parametrize(
    ("port", "cause"), [(9093, "a listener of TLS, another service"), (2181, "the port is ZooKeeper's")]
)
def test_an_end_point_that_closes_on_each_request(port: int, cause: str, tmp_path: Path) -> None:
    read(tmp_path, interleaved(*connections([asking(ask_versions(1))], 4, broker=("10.0.0.2", port))))
    finding = codes(tmp_path)["no-kafka-answer"]
    assert (finding["severity"], finding["count"]) == ("error", 4)
    assert cause in finding["cause"]
    assert "request-unanswered" not in codes(tmp_path)


def test_a_request_after_the_brokers_fin_says_so(tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.captures.forge import ACK, FIN

    segments = []
    for number in range(3):
        link = converse([asking(ask_versions(1))], client=("10.0.0.1", 41_000 + number))
        (asks,) = payloads(link, True)
        handshake = link[asks - 1]
        closing = replace(
            link[1], time_ns=handshake.time_ns + 10, flags=FIN | ACK, sequence=link[1].sequence + 1, payload=b""
        )
        segments.append([*link[:asks], closing, link[asks]])
    rows = read(tmp_path, interleaved(*segments))
    assert {row["reason"] for row in rows.exchanges} == {"response: the broker had closed the connection before"}
    assert "closed before it was asked" in codes(tmp_path)["no-kafka-answer"]["cause"]


def test_the_only_packet_is_an_old_librdkafkas(tmp_path: Path) -> None:
    """ApiVersions v0 with an empty array of a draft of KIP-35 behind it, in the middle of nothing."""
    ask = request(API_VERSIONS, 0, 1, {}, client_id="rdkafka")
    ask = struct.pack(">i", len(ask)) + ask[4:] + bytes(4)
    segments = converse([asking(ask)])
    (only,) = payloads(segments, True)
    assert read(tmp_path, [segments[only]]).only["api"] == "ApiVersions"
