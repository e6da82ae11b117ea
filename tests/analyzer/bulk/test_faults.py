"""Every way in which captures are known to mislead an analyzer, each a test of its own.

The first part are faults measured in tshark 4.0.17; then what else real captures hold. Conversations are forged, top
to bottom, and read through the same door as a user has; `read` checks each time that the coverage adds up.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.bulk.partitions import MAX_NAMED
from tests.analyzer import forging
from tests.analyzer.forging import (
    API_VERSIONS,
    CLIENT_ID,
    CONSUMER_GROUP_HEARTBEAT,
    JOIN_GROUP,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SYNC_GROUP,
    TOPIC_ID,
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
    response,
    swapped,
    turns,
    without,
)
from tests.captures.forge import (
    ACK,
    FIN,
    PSH,
    SLL,
    Record,
    Segment,
    converse,
    cut,
    framed,
    interleaved,
    rendered,
    tcp_ip,
)

DECODED = ("answered", "decoded", "decoded")


def outcomes(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(correlation id, status, request state, response state) of each exchange."""
    return [(row["correlation_id"], row["status"], row["request_state"], row["response_state"]) for row in rows]


def bodies(folder: Path) -> list[Any]:
    """The capture's exchanges with their bodies, in order of their requests."""
    return list(analyzer.exchanges(folder / "capture.pcap"))


# ------------------------------------------------------------------------------------- what tshark 4.0.17 got wrong


@pytest.mark.parametrize("version", range(9, 14))
def test_produce_v9_and_newer(tmp_path: Path, version: int) -> None:
    """tshark: request Malformed, response "Request Missing"."""
    records = batch()
    segments = converse([asking(produce(1, version, records=records)), answering(produce_answer(1, version))])
    seen = read(tmp_path, segments)
    assert outcomes(seen.exchanges) == [(1, *DECODED)]
    assert seen.only["acks"] == 1
    assert seen.only["topics"] == (["orders"] if version < 13 else [TOPIC_ID])
    (exchange,) = bodies(tmp_path)
    (topic,) = exchange.request["topicData"]
    assert topic["partitionData"][0]["recordsSizeInBytes"] == len(records)
    assert exchange.response["responses"][0]["partitionResponses"][0]["baseOffset"] == 40


def test_api_versions_v4_answered_by_error_35_in_the_layout_of_v0(tmp_path: Path) -> None:
    """KIP-511: an older broker answers what it does not know in v0. tshark: Malformed."""
    software = {"clientSoftwareName": "orders", "clientSoftwareVersion": "1.0"}
    keys = [{"apiKey": 18, "minVersion": 0, "maxVersion": 3}]
    writes = [
        asking(request(API_VERSIONS, 4, 1, software)),
        answering(response(API_VERSIONS, 0, 1, {"errorCode": 35, "apiKeys": keys})),
        asking(request(API_VERSIONS, 3, 2, software)),
        answering(response(API_VERSIONS, 3, 2, {"errorCode": 0, "apiKeys": keys, "throttleTimeMs": 0})),
        *turns([3]),
    ]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED), (3, *DECODED)]
    assert seen.column("error_code") == [35, 0, 0]
    assert seen.column("error") == ["UNSUPPORTED_VERSION", None, None]
    assert [exchange.response["apiKeys"] for exchange in bodies(tmp_path)[:2]] == [keys, keys]


@pytest.mark.parametrize("window_bytes", [200, 1 << 20])
def test_what_a_connection_is_offered_twice_is_one_row(tmp_path: Path, window_bytes: int) -> None:
    """A refusal (KIP-511) offers ApiVersions, and the answer to the second attempt offers it again."""
    software = {"clientSoftwareName": "orders", "clientSoftwareVersion": "1.0"}
    offer = {"apiKey": 18, "minVersion": 0, "maxVersion": 3}
    more = {"apiKey": 3, "minVersion": 0, "maxVersion": 9}
    writes = [
        asking(request(API_VERSIONS, 4, 1, software)),
        answering(response(API_VERSIONS, 0, 1, {"errorCode": 35, "apiKeys": [offer]})),
        asking(request(API_VERSIONS, 3, 2, software)),
        answering(response(API_VERSIONS, 3, 2, {"errorCode": 0, "apiKeys": [more, offer], "throttleTimeMs": 0})),
    ]
    seen = read(tmp_path, converse(writes), window_bytes=window_bytes)
    rows = seen.tables["api_versions"].to_pylist()
    assert [(row["api_key"], row["min"], row["max"]) for row in rows] == [(18, 0, 3), (3, 0, 9)]


def test_a_capture_that_starts_inside_a_long_response(tmp_path: Path) -> None:
    """tshark loses every later response of that direction."""
    long = fetch_answer(41, batch(20, 9_000))
    segments = converse([asking(fetch(41)), answering(long), *turns(range(42, 48))], acks=False)
    begin = payloads(segments, False)[40]
    rest = sum(len(segment.payload) for segment in segments[begin:] if segment.source[1] == 9092) - 6 * len(
        heartbeat_answer(1)
    )
    seen = read(tmp_path, segments[begin:])
    assert outcomes(seen.exchanges) == [(number, *DECODED) for number in range(42, 48)]
    assert seen.coverage["skipped_bytes"] == rest > 100_000


STREAM = [(number, heartbeat(number, "m" * (20 + number % 7)), heartbeat_answer(number)) for number in range(1, 61)]


def pipelined(to_broker: bool, mss: int) -> list[Segment]:
    """60 exchanges of which one direction is written at once, in segments that no message ends with."""
    requests, answered = b"".join(message for _, message, _ in STREAM), b"".join(message for _, _, message in STREAM)
    if to_broker:
        return converse([asking(requests), *(answering(message) for _, _, message in STREAM)], mss=mss)
    return converse([*(asking(message) for _, message, _ in STREAM), answering(answered)], mss=mss)


@pytest.mark.parametrize("to_broker", [True, False], ids=["requests", "responses"])
@pytest.mark.parametrize("lost", range(1, 9))
def test_a_lost_segment_with_the_next_message_inside_a_segment(tmp_path: Path, to_broker: bool, lost: int) -> None:
    """tshark: all later messages lost. The bytes up to the next message's start are skipped, and counted."""
    mss = 301 if to_broker else 57
    segments = pipelined(to_broker, mss)
    positions = payloads(segments, to_broker)
    hole = (lost * mss, lost * mss + len(segments[positions[lost]].payload))
    seen = read(tmp_path, without(segments, positions[lost]))
    sizes = [len(request if to_broker else answered) for _, request, answered in STREAM]
    ends = [sum(sizes[: index + 1]) for index in range(60)]
    starts = [end - size for end, size in zip(ends, sizes, strict=True)]
    # A message cut by the hole is followed by its length where that is known: then nothing has to be sought.
    cut_off = [index for index in range(60) if starts[index] < hole[0] < ends[index]]
    followed = bool(cut_off) and hole[0] - starts[cut_off[0]] >= 4 and ends[cut_off[0]] >= hole[1]
    first = next(index for index in range(60) if starts[index] >= hole[1])
    skipped = 0 if followed else starts[first] - hole[1]
    assert seen.coverage["gap_bytes"] == hole[1] - hole[0]
    assert seen.coverage["skipped_bytes"] == skipped
    whole = {index + 1 for index in range(60) if ends[index] <= hole[0] or starts[index] >= hole[1]}
    decoded = {row["correlation_id"] for row in seen.exchanges if outcomes([row])[0][1:] == DECODED}
    assert decoded == whole


@pytest.mark.parametrize("to_broker", [True, False], ids=["request", "response"])
def test_a_lost_segment_with_the_next_message_at_a_segment_start(tmp_path: Path, to_broker: bool) -> None:
    """tshark recovers, and the damaged response silently has no line."""
    large_ask, large_answer = produce(2, records=batch(20, 200)), fetch_answer(2, batch(20, 200))
    pair = (large_ask, produce_answer(2)) if to_broker else (fetch(2), large_answer)
    segments = converse([*turns([1]), asking(pair[0]), answering(pair[1]), *turns([3, 4])], mss=1000)
    second = payloads(segments, to_broker)[2]
    seen = read(tmp_path, without(segments, second))
    assert [row["correlation_id"] for row in seen.exchanges] == [1, 2, 3, 4]
    damaged = seen.where(correlation_id=2)
    assert (damaged["request_state"], damaged["response_state"]) == (
        ("truncated", "decoded") if to_broker else ("decoded", "truncated")
    )
    assert damaged["status"] == "answered"
    assert damaged["request_bytes"] == len(pair[0])
    assert damaged["response_bytes"] == len(pair[1])
    assert damaged["reason"] == ("request" if to_broker else "response") + ": 1000 bytes missing inside"
    assert seen.coverage["incomplete_bytes"] == len(pair[0] if to_broker else pair[1]) - 1000
    assert seen.coverage["skipped_bytes"] == 0


def test_two_equal_correlation_ids_in_one_packet(tmp_path: Path) -> None:
    """tshark decodes the first response with the second one's schema. A broker answers in order."""
    writes = [
        asking(metadata(7) + heartbeat(7)),
        answering(metadata_answer(7)),
        answering(heartbeat_answer(7, error=27)),
    ]
    seen = read(tmp_path, converse(writes))
    assert [(row["api"], *outcomes([row])[0][1:], row["error_code"]) for row in seen.exchanges] == [
        ("Metadata", *DECODED, 0),
        ("Heartbeat", *DECODED, 27),
    ]
    assert seen.column("request_packet") == [4, 4]


def test_a_correlation_id_used_again(tmp_path: Path) -> None:
    """tshark links the second response to the first request."""
    seen = read(tmp_path, converse([*turns([5]), asking(metadata(5)), answering(metadata_answer(5)), *turns([5])]))
    assert [(row["api"], row["exchange"], row["reply"]) for row in seen.exchanges] == [
        ("Heartbeat", 0, 0),
        ("Metadata", 1, 1),
        ("Heartbeat", 2, 2),
    ]
    assert [outcomes([row])[0][1:] for row in seen.exchanges] == [DECODED] * 3


@pytest.mark.parametrize("to_broker", [True, False], ids=["requests", "responses"])
def test_swapped_segments(tmp_path: Path, to_broker: bool) -> None:
    """tshark with default preferences: "Request Missing", then loss."""
    writes = [
        asking(produce(1, records=batch())),
        answering(produce_answer(1)),
        asking(fetch(2)),
        answering(fetch_answer(2, batch())),
        *turns([3]),
    ]
    segments = converse(writes, mss=60)
    for first in payloads(segments, to_broker)[:-1]:
        following = first + 1
        if not segments[following].payload or segments[following].flow != segments[first].flow:
            continue
        seen = read(tmp_path, swapped(segments, first, following))
        assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED), (3, *DECODED)]
        assert seen.connection["out_of_order"] == 1
        assert seen.coverage["decoded_bytes"] == seen.coverage["payload_bytes"]


def test_a_broker_on_29092(tmp_path: Path) -> None:
    """tshark: not Kafka at all. Nothing here depends on a port."""
    seen = read(tmp_path, converse(turns([1, 2]), broker=("10.0.0.2", 29092), client=("10.0.0.1", 9092)))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.column("connection") == ["10.0.0.1:9092-10.0.0.2:29092#1"] * 2


PASSWORD = "hunter2-of-alice"


def test_sasl_handshake_v0_then_raw_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """KIP-43: tokens without a header, which are no exchanges. tshark: "Unknown 117 v29541"."""
    token = forging.framed(b"\0alice\0" + PASSWORD.encode())
    writes = [
        asking(request(SASL_HANDSHAKE, 0, 1, {"mechanism": "PLAIN"})),
        answering(response(SASL_HANDSHAKE, 0, 1, {"errorCode": 0, "mechanisms": ["PLAIN"]})),
        asking(token),
        answering(forging.framed(b"")),
        *turns([2, 3]),
    ]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED), (3, *DECODED)]
    assert seen.coverage["opaque"]["sasl"] == len(token) + 4
    assert seen.coverage["opaque_bytes"] == len(token) + 4
    assert seen.connection["sasl_mechanism"] == "PLAIN"
    assert_secret_nowhere(tmp_path, capsys)


def test_sasl_authenticate_keeps_its_tokens_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """KIP-152: the same tokens inside requests."""
    token = b"\0alice\0" + PASSWORD.encode()
    writes = [
        asking(request(SASL_HANDSHAKE, 1, 1, {"mechanism": "PLAIN"})),
        answering(response(SASL_HANDSHAKE, 1, 1, {"errorCode": 0, "mechanisms": ["PLAIN"]})),
        asking(request(SASL_AUTHENTICATE, 2, 2, {"authBytes": token})),
        answering(
            response(
                SASL_AUTHENTICATE,
                2,
                2,
                {"errorCode": 0, "errorMessage": None, "authBytes": b"", "sessionLifetimeMs": 0},
            )
        ),
        *turns([3]),
    ]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED), (3, *DECODED)]
    assert_secret_nowhere(tmp_path, capsys)


def assert_secret_nowhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The password is in no table, message, body, representation, file or line of output."""
    from kwire.analyzer.cli.parser import main

    path = folder / "capture.pcap"
    dataset = analyzer.analyze(path, out=folder / "dataset", keep_bytes=True)
    with_bytes = analyzer.analyze(path, keep_bytes=True)
    texts = [
        repr(dataset),
        repr(with_bytes),
        repr(with_bytes.tables),
        *(str(table.to_pylist()) for table in with_bytes.tables.values()),
    ]
    for exchange in analyzer.exchanges(path):
        texts += [
            repr(exchange),
            str(exchange.json()),
            repr(exchange.request),
            repr(exchange.decoded("request", nodes=True)),
        ]
    capsys.readouterr()
    for options in (["--json"], ["--tree", "--hex"], ["--frames"], []):
        assert main(["show", str(path), *options]) == 0
    printed = capsys.readouterr()
    texts += [printed.out, printed.err]
    secret = PASSWORD.encode()
    hidden = [
        PASSWORD,
        secret.hex(),
        secret.hex(" "),
        __import__("base64").b64encode(secret).decode().rstrip("=")[2:-2],
    ]
    for text in texts:
        for form in hidden:
            assert form not in text
    for file in (folder / "dataset").rglob("*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file
    for row in with_bytes.messages.to_pylist():
        assert secret not in row["bytes"]


def test_join_and_sync_group_v1_bytes(tmp_path: Path) -> None:
    """`bytes` has a 32-bit length; tshark reads 16 bits of it."""
    blob = bytes(range(40))
    join = {
        "groupId": "g",
        "sessionTimeoutMs": 10_000,
        "rebalanceTimeoutMs": 20_000,
        "memberId": "",
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": blob}],
    }
    joined = {
        "errorCode": 0,
        "generationId": 3,
        "protocolName": "range",
        "leader": "m-1",
        "memberId": "m-1",
        "members": [{"memberId": "m-1", "metadata": blob}],
    }
    sync = {
        "groupId": "g",
        "generationId": 3,
        "memberId": "m-1",
        "assignments": [{"memberId": "m-1", "assignment": blob}],
    }
    writes = [
        asking(request(JOIN_GROUP, 1, 1, join)),
        answering(response(JOIN_GROUP, 1, 1, joined)),
        asking(request(SYNC_GROUP, 1, 2, sync)),
        answering(response(SYNC_GROUP, 1, 2, {"throttleTimeMs": 0, "errorCode": 0, "assignment": blob})),
    ]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.column("group_id") == ["g", "g"]
    assert seen.column("member_id") == ["m-1", "m-1"]
    assert seen.column("generation") == [3, 3]
    assert seen.coverage["opaque_bytes"] == 0
    joining, syncing = bodies(tmp_path)
    assert joining.request["protocols"][0]["name"] == "range"
    assert joining.response["members"][0]["memberId"] == "m-1"
    assert syncing.request["assignments"][0]["memberId"] == "m-1"


def test_consumer_group_heartbeat(tmp_path: Path) -> None:
    """KIP-848. tshark: "Unknown 68"."""
    ask = {
        "groupId": "g",
        "memberId": "m-1",
        "memberEpoch": 5,
        "instanceId": None,
        "rackId": None,
        "rebalanceTimeoutMs": -1,
        "subscribedTopicNames": ["orders"],
        "serverAssignor": None,
        "topicPartitions": None,
    }
    answer = {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "errorMessage": None,
        "memberId": "m-1",
        "memberEpoch": 6,
        "heartbeatIntervalMs": 5000,
        "assignment": {"topicPartitions": [{"topicId": TOPIC_ID, "partitions": [0, 2]}]},
    }
    writes = [
        asking(request(CONSUMER_GROUP_HEARTBEAT, 0, 1, ask)),
        answering(response(CONSUMER_GROUP_HEARTBEAT, 0, 1, answer)),
    ]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(1, *DECODED)]
    row = seen.only
    assert (row["api"], row["group_id"], row["member_id"], row["generation"]) == (
        "ConsumerGroupHeartbeat",
        "g",
        "m-1",
        5,
    )
    (exchange,) = bodies(tmp_path)
    assert exchange.response["assignment"]["topicPartitions"] == [{"topicId": TOPIC_ID, "partitions": [0, 2]}]


def message_set(magic: int, values: list[bytes]) -> bytes:
    """A message set of before Kafka 0.11: offset, size, CRC-32, magic, attributes, time (magic 1), key, value."""
    import zlib

    out = b""
    for offset, value in enumerate(values):
        body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 1_400_000_000_000) if magic else b"")
        body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
        out += struct.pack(">qi", offset, len(body) + 4) + struct.pack(">I", zlib.crc32(body)) + body
    return out


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
@pytest.mark.parametrize("acks", [1, -1])
def test_requests_with_old_message_sets(tmp_path: Path, version: int, magic: int, acks: int) -> None:
    records = message_set(magic, [b"first", b"second"])
    writes = [asking(produce(1, version, acks, records)), answering(produce_answer(1, version)), *turns([2])]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.exchanges[0]["acks"] == acks
    (partition,) = bodies(tmp_path)[0].request["topicData"][0]["partitionData"]
    assert partition["recordsSizeInBytes"] == len(records)


# ------------------------------------------------------------------------------------- requests, answers and neither


@pytest.mark.parametrize("version", [0, 3, 9])
def test_produce_that_wants_no_answer(tmp_path: Path, version: int) -> None:
    """acks=0, in a field that moves with the version; the next response belongs to the next request."""
    writes = [
        asking(produce(1, version, acks=0, records=batch())),
        asking(produce(2, version, acks=1, records=batch())),
        answering(produce_answer(2, version)),
        asking(produce(3, version, acks=0, records=batch()) + heartbeat(4)),
        answering(heartbeat_answer(4)),
    ]
    seen = read(tmp_path, converse(writes))
    none = ("no_response_expected", "decoded", None)
    assert outcomes(seen.exchanges) == [(1, *none), (2, *DECODED), (3, *none), (4, *DECODED)]
    assert seen.column("acks") == [0, 1, 0, None]
    assert seen.column("reply") == [None, 0, None, 1]


def test_an_orphan_is_a_row(tmp_path: Path) -> None:
    segments = converse([*turns([10]), answering(heartbeat_answer(99)), *turns([11])])
    seen = read(tmp_path, segments)
    assert outcomes(seen.exchanges) == [
        (10, *DECODED),
        (99, "orphan_response", None, "undecoded"),
        (11, *DECODED),
    ]
    orphan = seen.exchanges[1]
    assert (orphan["exchange"], orphan["reply"], orphan["api"], orphan["request_time"]) == (None, 1, None, None)
    assert orphan["reason"] == "response: its request was not seen"
    assert seen.exchanges[2]["reply"] == 2


def test_unanswered_because_a_later_request_was_answered(tmp_path: Path) -> None:
    writes = [asking(heartbeat(1)), asking(heartbeat(2)), asking(heartbeat(3)), answering(heartbeat_answer(3))]
    seen = read(tmp_path, converse(writes))
    unanswered = ("unanswered", "decoded", None)
    assert outcomes(seen.exchanges) == [(3, *DECODED), (1, *unanswered), (2, *unanswered)]  # those wait to the end
    assert seen.column("total_us")[1:] == [None, None]


@pytest.mark.parametrize("close", ["fin", "rst"])
def test_unanswered_because_the_connection_closed(tmp_path: Path, close: Any) -> None:
    seen = read(tmp_path, converse([*turns([1]), asking(heartbeat(2))], close=close))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, "unanswered", "decoded", None)]
    assert seen.connection["closed"] == close


def test_in_flight_when_the_capture_ends(tmp_path: Path) -> None:
    seen = read(tmp_path, converse([*turns([1]), asking(heartbeat(2)), asking(heartbeat(3)[:-3])], close=None))
    assert outcomes(seen.exchanges) == [
        (1, *DECODED),
        (2, "in_flight", "decoded", None),
        (3, "in_flight", "truncated", None),
    ]
    assert seen.connection["closed"] == "open"
    assert seen.exchanges[2]["reason"] == "request: the last 3 bytes never came"
    assert seen.exchanges[2]["request_end"] is None
    assert seen.coverage["incomplete_bytes"] == len(heartbeat(3)) - 3


def test_two_requests_in_one_packet(tmp_path: Path) -> None:
    writes = [asking(heartbeat(1) + fetch(2)), answering(heartbeat_answer(1) + fetch_answer(2, batch()))]
    seen = read(tmp_path, converse(writes, mss=60_000))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.column("request_packet") == [4, 4]
    assert seen.column("response_packet") == [6, 6]


def test_one_response_over_many_packets(tmp_path: Path) -> None:
    answer = fetch_answer(1, batch(10, 9000))
    segments = converse([asking(fetch(1)), answering(answer), *turns([2])], acks=False)
    seen = read(tmp_path, segments)
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    row = seen.exchanges[0]
    parts = payloads(segments, False)[:-1]
    assert len(parts) > 60
    assert row["response_packet"] == parts[0] + 1
    assert row["response_bytes"] == len(answer)
    span = (segments[parts[-1]].time_ns - segments[parts[0]].time_ns) // 1000
    assert (row["response_end"] - row["response_time"]).total_seconds() * 1e6 == span > 0
    assert row["latency_us"] == (segments[parts[0]].time_ns - segments[payloads(segments, True)[0]].time_ns) // 1000


@pytest.mark.parametrize("window_bytes", [200, 1 << 20])
def test_a_request_waits_behind_the_one_before_it(tmp_path: Path, window_bytes: int) -> None:
    """A broker takes up a request once it has answered those before it; one that has no answer hides nothing."""
    writes = [
        asking(fetch(1)),
        asking(heartbeat(2)),
        answering(fetch_answer(1, batch())),
        answering(heartbeat_answer(2)),
        *turns([3]),
    ]
    seen = read(tmp_path, converse(writes), window_bytes=window_bytes)
    first, second, third = seen.exchanges
    assert (first["queue_us"], third["queue_us"]) == (0, 0)
    assert second["queue_us"] == (first["response_end"] - second["request_end"]) // timedelta(microseconds=1) > 0
    assert second["latency_us"] > second["queue_us"]


# --------------------------------------------------------------------------------------------- messages that are odd


@pytest.mark.parametrize("extra", [1, 5])
def test_trailing_bytes(tmp_path: Path, extra: int) -> None:
    """librdkafka sends one byte too many in AlterUserScramCredentials, and brokers do not mind."""
    odd = forging.framed(heartbeat(2)[4:] + bytes(extra))
    answer = forging.framed(heartbeat_answer(3)[4:] + bytes(extra))
    writes = [
        *turns([1]),
        asking(odd),
        answering(heartbeat_answer(2)),
        asking(heartbeat(3)),
        answering(answer),
        *turns([4]),
    ]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(number, *DECODED) for number in range(1, 5)]
    assert seen.column("reason") == [
        None,
        f"request: {extra} trailing bytes",
        f"response: {extra} trailing bytes",
        None,
    ]
    assert seen.coverage["opaque"]["trailing"] == seen.coverage["opaque_bytes"] == 2 * extra
    assert bodies(tmp_path)[1].request["memberId"] == "member-1"


def test_a_malformed_body_is_a_row_with_the_place(tmp_path: Path) -> None:
    good = bytearray(metadata(2))
    at = 4 + 8 + 2 + len(CLIENT_ID) + 1  # length, header v2 with its empty tag section, then the array's length
    assert good[at] == 2
    good[at] = 0x70  # 111 topics in a few bytes
    answer = bytearray(fetch_answer(3, batch()))
    topics = 4 + 4 + 4 + 2 + 4
    answer[topics : topics + 4] = (1_000_000).to_bytes(4, "big")
    writes = [
        *turns([1]),
        asking(bytes(good)),
        answering(metadata_answer(2)),
        asking(fetch(3)),
        answering(bytes(answer)),
        *turns([4]),
    ]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [
        (1, *DECODED),
        (2, "answered", "undecoded", "decoded"),
        (3, "answered", "decoded", "undecoded"),
        (4, *DECODED),
    ]
    reasons = seen.column("reason")
    assert reasons[1] == f"request: malformed: topics at byte {at}: has more elements than bytes are left"
    assert reasons[2] == f"response: malformed: responses at byte {topics}: has more elements than bytes are left"
    assert seen.coverage["opaque"]["malformed"] == len(good) + len(answer)
    assert (seen.exchanges[1]["api"], seen.exchanges[1]["client_id"]) == ("Metadata", CLIENT_ID)


@pytest.mark.parametrize(("api_key", "version", "reason"), [(900, 1, "unknown_api"), (3, 19, "unsupported_version")])
def test_an_unknown_api_and_an_unknown_version(tmp_path: Path, api_key: int, version: int, reason: str) -> None:
    """The row exists, with what its header says."""
    strange = (
        struct.pack(">hhi", api_key, version, 2) + struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode() + b"what"
    )
    writes = [*turns([1]), asking(forging.framed(strange)), answering(forging.framed(b"\0\0\0\2hello")), *turns([3])]
    seen = read(tmp_path, converse(writes))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, "answered", "undecoded", "undecoded"), (3, *DECODED)]
    row = seen.exchanges[1]
    assert (row["api_key"], row["api_version"], row["client_id"]) == (api_key, version, CLIENT_ID)
    assert row["api"] == (None if api_key == 900 else "Metadata")
    assert row["reason"] == f"request: {reason}; response: {reason}"
    assert seen.coverage["opaque"][reason] == seen.coverage["opaque_bytes"] == len(strange) + 4 + 13


@pytest.mark.parametrize("distinct", [False, True])
def test_a_message_that_names_more_than_may_be_kept_is_opaque(tmp_path: Path, distinct: bool) -> None:
    """Four million empty topics are 8 MB on the wire, and 2.5 kB in a zstd capture; they took 30 GB."""
    names = [b"\0\5%05x" % number if distinct else b"\0\0" for number in range(MAX_NAMED + 1)]
    empty = request(METADATA, 0, 0, {"topics": []})
    requests = []
    for number, count in ((1, MAX_NAMED + 1), (2, MAX_NAMED), (3, 1)):
        header = empty[4:8] + struct.pack(">i", number) + empty[12:-4]
        requests.append(forging.framed(header + struct.pack(">i", count) + b"".join(names[:count])))
    seen = read(tmp_path, converse([asking(message) for message in requests], mss=60_000))
    first, second, third = seen.exchanges
    assert (first["api"], first["request_state"], first["topics"]) == ("Metadata", "undecoded", None)
    assert first["reason"] == f"request: limit: {len(requests[0])} bytes are more than may be kept"
    assert seen.coverage["opaque"]["limit"] == seen.coverage["opaque_bytes"] == len(requests[0])
    assert (second["request_state"], second["reason"]) == ("decoded", None)
    assert len(second["topics"]) == (MAX_NAMED if distinct else 0)
    assert third["topics"] == (["00000"] if distinct else [])


def test_a_frame_over_the_limit_is_counted(tmp_path: Path) -> None:
    """512 MiB by default; here less. Its header is read, its bytes are not kept, what follows is found."""
    large = produce(2, records=batch(30, 90_000))
    writes = [*turns([1]), asking(large), answering(produce_answer(2)), *turns([3])]
    seen = read(tmp_path, converse(writes, mss=60_000), frame_limit=1 << 20)
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, "answered", "undecoded", "decoded"), (3, *DECODED)]
    row = seen.exchanges[1]
    assert (row["api"], row["client_id"], row["request_bytes"]) == ("Produce", CLIENT_ID, len(large))
    assert row["reason"] == f"request: limit: {len(large)} bytes are more than may be kept"
    assert seen.coverage["opaque"]["limit"] == seen.coverage["opaque_bytes"] == len(large)


# ------------------------------------------------------------------------------------------------- below the messages


def test_cut_by_the_snap_length(tmp_path: Path) -> None:
    """96 bytes of each packet: headers are read, sizes are known, what is missing is counted."""
    writes = [
        asking(produce(1, records=batch(3, 400))),
        answering(produce_answer(1)),
        asking(fetch(2)),
        answering(fetch_answer(2, batch(4, 1000))),
        *turns([3]),
    ]
    whole = rendered(converse(writes, mss=1000))
    records = cut(whole, 110)
    seen = read(tmp_path, records)
    assert [(row["correlation_id"], row["api"], row["status"]) for row in seen.exchanges] == [
        (1, "Produce", "answered"),
        (2, "Fetch", "answered"),
        (3, "Heartbeat", "answered"),
    ]
    assert [row["request_bytes"] for row in seen.exchanges] == [
        len(writes[0].data),
        len(writes[2].data),
        len(writes[4].data),
    ]
    assert seen.exchanges[0]["request_state"] == "truncated"
    assert seen.coverage["snaplen_bytes"] == sum(record.wire_length - len(record.data) for record in records)
    assert seen.coverage["payload_bytes"] + seen.coverage["snaplen_bytes"] == sum(len(write.data) for write in writes)


def test_an_answer_captured_before_the_reset_is_an_answer(tmp_path: Path) -> None:
    """A client that closes with data unread sends RST. The answer waits for a hole before it; it still came first."""
    segments = converse([*turns([1]), asking(heartbeat(2)), answering(heartbeat_answer(2))], close="rst", mss=10)
    lost = payloads(segments, True)[2]
    seen = read(tmp_path, without(segments, lost))
    assert [(row["correlation_id"], row["status"]) for row in seen.exchanges] == [(1, "answered"), (2, "answered")]
    assert seen.connection["closed"] == "rst"


def test_half_closed_connections_go_on(tmp_path: Path) -> None:
    """The client has said all that it wants to, and the broker still answers."""
    segments = converse([*turns([1]), asking(fetch(2))], close=None, acks=False)
    last = segments[-1]
    client, broker = last.source, last.target
    done = (last.sequence + len(last.payload)) % 2**32
    there = last.acknowledgement
    answer = fetch_answer(2, batch())
    now = last.time_ns
    segments += [
        Segment(now + 1000, client, broker, done, there, FIN | ACK),
        Segment(now + 2000, broker, client, there, done + 1, ACK),
        Segment(now + 9000, broker, client, there, done + 1, PSH | ACK, answer),
        Segment(now + 9500, broker, client, there + len(answer), done + 1, FIN | ACK),
        Segment(now + 9900, client, broker, done + 1, there + len(answer) + 1, ACK),
    ]
    seen = read(tmp_path, segments)
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.connection["closed"] == "fin"


def test_keep_alives_are_no_data(tmp_path: Path) -> None:
    """One byte before the next one, or none: not a retransmission, and the byte counts as a duplicate."""
    segments = converse(turns([1, 2, 3]), close=None)
    for position in (payloads(segments, True)[1], payloads(segments, True)[2] + 1):
        segment = segments[position]
        alive = replace(segment, sequence=(segment.sequence - 1) % 2**32, payload=b"\0", flags=ACK)
        segments.insert(position, alive)
        segments.insert(position, replace(alive, payload=b""))
    seen = read(tmp_path, segments)
    assert outcomes(seen.exchanges) == [(number, *DECODED) for number in (1, 2, 3)]
    assert seen.coverage["duplicate_bytes"] == 2
    assert seen.connection["retransmissions"] == 0


def test_a_port_used_again(tmp_path: Path) -> None:
    """A four-tuple used twice is two connections: #1 and #2."""
    first = converse(turns([1, 2]), client_isn=1000, broker_isn=5000)
    second = converse(turns([1, 2, 3]), client_isn=777_000, broker_isn=900_000, start_ns=first[-1].time_ns + 10_000_000)
    seen = read(tmp_path, first + second)
    uses = [row["connection"].rpartition("#")[2] for row in seen.exchanges]
    assert uses == ["1", "1", "2", "2", "2"]
    assert seen.column("correlation_id") == [1, 2, 1, 2, 3]
    assert seen.column("exchange") == [0, 1, 0, 1, 2]
    assert all(outcomes([row])[0][1:] == DECODED for row in seen.exchanges)
    assert [row["requests"] for row in seen.connections] == [2, 3]


def test_a_port_used_again_without_any_goodbye(tmp_path: Path) -> None:
    """A client was killed and its address came back: a new SYN is a new connection, what waited is unanswered."""
    first = converse([*turns([1]), asking(heartbeat(2))], close=None)
    second = converse(turns([1]), client_isn=777_000, broker_isn=900_000, start_ns=first[-1].time_ns + 10_000_000)
    seen = read(tmp_path, first + second)
    assert [(row["connection"].rpartition("#")[2], *outcomes([row])[0]) for row in seen.exchanges] == [
        ("1", 1, *DECODED),
        ("1", 2, "unanswered", "decoded", None),
        ("2", 1, *DECODED),
    ]


@pytest.mark.parametrize("before", [1, 40, 100, 1500])
def test_sequence_numbers_wrap(tmp_path: Path, before: int) -> None:
    """2^32 bytes are a matter of seconds; the wrap may come anywhere."""
    writes = [
        *turns([1, 2]),
        asking(produce(3, records=batch())),
        answering(produce_answer(3)),
        asking(fetch(4)),
        answering(fetch_answer(4, batch(5, 500))),
        *turns([5]),
    ]
    segments = converse(writes, mss=120, client_isn=2**32 - before, broker_isn=2**32 - 1 - before // 2)
    plain = read(tmp_path, converse(writes, mss=120))
    seen = read(tmp_path, segments)
    assert outcomes(seen.exchanges) == [(number, *DECODED) for number in range(1, 6)]
    assert seen.exchanges == plain.exchanges


def test_a_syn_sent_again(tmp_path: Path) -> None:
    """A SYN with an equal initial sequence number belongs to the connection."""
    segments = converse(turns([1, 2]))
    again = [replace(segments[0], time_ns=segments[0].time_ns - 1_000_000_000), segments[0], *segments[1:2]]
    seen = read(tmp_path, [*again, replace(segments[1], time_ns=segments[1].time_ns + 1), *segments[2:]])
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.connection["opened"] is True


@pytest.mark.parametrize("vlans", [[(0x8100, 42)], [(0x88A8, 7), (0x8100, 42)]], ids=["802.1Q", "QinQ"])
def test_vlan_tags(tmp_path: Path, vlans: list[tuple[int, int]]) -> None:
    seen = read(tmp_path, rendered(converse(turns([1, 2])), vlans=vlans))
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.connection["connection"] == "10.0.0.1:40000-10.0.0.2:9092#1"


def test_ipv6(tmp_path: Path) -> None:
    segments = converse(turns([1, 2]), client=("2001:db8::1", 40000), broker=("2001:db8:0:0:1::2", 9092))
    seen = read(tmp_path, rendered(segments, SLL), link=SLL)
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]
    assert seen.connection["connection"] == "[2001:db8::1]:40000-[2001:db8::1:0:0:2]:9092#1"  # RFC 5952


def test_offloaded_segments_with_an_ip_length_of_zero(tmp_path: Path) -> None:
    """Segmentation offload leaves the IP total length 0 where it does not fit into 16 bits."""
    large = fetch_answer(1, batch(10, 9000))
    assert len(large) > 65_535
    segments = converse([asking(fetch(1)), answering(large), *turns([2])], mss=1 << 20)
    records = [
        Record(record_segment.time_ns, framed(tcp_ip(record_segment, zero_length=True), 1, pad=False), 0)
        for record_segment in segments
    ]
    seen = read(tmp_path, [replace(record, wire_length=len(record.data)) for record in records])
    assert outcomes(seen.exchanges) == [(1, *DECODED), (2, *DECODED)]


@pytest.mark.parametrize("first", ["request", "response"])
def test_a_capture_that_starts_in_the_middle(tmp_path: Path, first: str) -> None:
    """No SYN: whichever side is heard first, and inside whatever, both are understood."""
    segments: list[Segment] = []
    request_ids: list[int] = []
    answered: list[int] = []
    now, client_at, broker_at = 1_700_000_000_000_000_000, 1000, 5000
    for number in range(100, 110):
        part = converse(
            [asking(fetch(number)), answering(fetch_answer(number, batch()))],
            handshake=False,
            close=None,
            mss=60,
            client_isn=client_at - 1,
            broker_isn=broker_at - 1,
            start_ns=now,
        )
        request_ids.append(len(segments) + payloads(part, True)[0])
        answered.append(len(segments) + payloads(part, False)[0])
        segments += part
        now = part[-1].time_ns + 50_000
        client_at += len(fetch(number))
        broker_at += len(fetch_answer(number, batch()))
    start = (request_ids[1] if first == "request" else answered[1]) + 1
    seen = read(tmp_path, segments[start:])
    assert [
        (row["correlation_id"], *outcomes([row])[0][1:]) for row in seen.exchanges if row["exchange"] is not None
    ] == [(number, *DECODED) for number in range(102, 110)]
    assert seen.connection["broker_port"] == 9092
    assert seen.connection["opened"] is False


@pytest.mark.parametrize("client_id", [None, "", "orders app (new)"])
def test_a_client_without_a_usual_name_in_the_middle(tmp_path: Path, client_id: str | None) -> None:
    """Clients may say no name. Then a request alone proves little, and the next one decides."""
    writes = turns(range(30, 40), ask=lambda number: heartbeat(number, client_id=client_id))
    seen = read(tmp_path, converse(writes, handshake=False, close=None))
    assert outcomes(seen.exchanges) == [(number, *DECODED) for number in range(30, 40)]
    assert seen.coverage["decoded_bytes"] == seen.coverage["payload_bytes"]


def test_port_insists(tmp_path: Path) -> None:
    """Traffic that proves nothing by its content (requests of an API that nobody knows, responses only) is opaque
    Kafka where the user says so, and counted."""
    answers = [answering(forging.framed(struct.pack(">i", number) + b"?" * 9)) for number in range(5)]
    segments = converse(answers, handshake=False, close=None)
    without_port = read(tmp_path, segments)
    assert without_port.exchanges == []
    assert without_port.unrecognised["connections"] == 1
    seen = read(tmp_path, segments, ports=[9092])
    assert seen.unrecognised["connections"] == 0
    assert seen.coverage["payload_bytes"] == 5 * 17
    assert seen.connection["broker_port"] == 9092


def test_port_insists_on_a_broker_that_asks_first_for_nothing_known(tmp_path: Path) -> None:
    strange = forging.framed(struct.pack(">hhi", 2000, 1, 1) + struct.pack(">h", -1) + bytes(300))
    seen = read(
        tmp_path, converse([asking(strange), answering(forging.framed(struct.pack(">i", 1) + b"no"))]), ports=[9092]
    )
    assert [(row["api_key"], row["status"]) for row in seen.exchanges] == [(2000, "answered")]
    assert seen.coverage["opaque"]["unknown_api"] == seen.coverage["payload_bytes"]


def test_many_connections_at_once(tmp_path: Path) -> None:
    """Interleaved packet by packet, each is read by itself, whatever shard it falls to."""
    conversations = [
        converse(turns(range(1, 9)), client=("10.0.0.1", 40_000 + n), start_ns=1_700_000_000_000_000_000 + 7_000 * n)
        for n in range(40)
    ]
    seen = read(tmp_path, interleaved(*conversations), threads=4)
    assert len(seen.exchanges) == 40 * 8
    assert {outcomes([row])[0][1:] for row in seen.exchanges} == {DECODED}
    assert len(seen.connections) == 40


# ------------------------------------------------------------------------------------------------------ lost packets


def test_a_lost_request_near_the_end_leaves_requests_and_answers_in_order(tmp_path: Path) -> None:
    """All that waits behind the hole comes out when the connection ends: still each request before its answer."""
    segments = converse(turns(range(1, 20)), acks=False)
    seen = read(tmp_path, without(segments, payloads(segments, True)[9]))
    assert [(row["correlation_id"], row["status"]) for row in seen.exchanges] == [
        (number, "orphan_response" if number == 10 else "answered") for number in range(1, 20)
    ]
    assert seen.coverage["gap_bytes"] == len(heartbeat(10))
    assert seen.coverage["skipped_bytes"] == 0


def test_a_large_frame_beside_a_small_unfinished_one(tmp_path: Path) -> None:
    """The room for frames in progress is nearly empty, and one more frame asks for all of it: it must grow."""
    small = converse(turns([1]), mss=20, client=("10.0.0.1", 40000))
    large = fetch_answer(7, batch(40, 90_000))
    assert len(large) > 3 << 20
    big = converse([asking(fetch(7)), answering(large)], mss=60_000, client=("10.0.0.1", 40001), acks=False)
    half = payloads(small, True)[1]
    packets = small[:half] + [replace(segment, time_ns=small[half].time_ns) for segment in big] + small[half:]
    seen = read(tmp_path, packets)
    assert outcomes(seen.exchanges) == [(7, *DECODED), (1, *DECODED)]


def test_records_full_of_zeros_are_not_taken_for_an_early_answer(tmp_path: Path) -> None:
    """After a hole in a response, `01 00 00 00 | 00 00 00 00` inside the records looks like an answer of 16 MiB to
    request 0, from before the capture; the answers behind it must be found."""
    records = bytes([1, 0, 0, 0]) + bytes(540)
    body = fetch_answer(6, records)
    writes = [*turns(range(3, 6)), asking(fetch(6)), answering(body[: -len(records)]), answering(records)]
    segments = converse([*writes, *turns(range(7, 12))], acks=False)
    lost = payloads(segments, False)[3]
    seen = read(tmp_path, without(segments, lost))
    assert [row["correlation_id"] for row in seen.exchanges] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [row["status"] for row in seen.exchanges] == ["answered"] * 3 + ["unanswered"] + ["answered"] * 5
    assert seen.coverage["skipped_bytes"] == len(records)
    assert seen.coverage["gap_bytes"] == len(segments[lost].payload)
