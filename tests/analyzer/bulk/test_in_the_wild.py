"""Recognise real clients, balancers and brokers of other makes, and explain their bytes.

(proves: captures/prefixes.py, analyzer/bulk/proxy_prefixes.py; resync.py: what counts as a request; pending.py:
answers to acks=0)
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.bulk.proxy_prefixes import named_ends
from kwire.captures.kernels import Bytes
from kwire.captures.prefixes import (
    CONNECT,
    MORE_BYTES,
    PROXY_BINARY,
    PROXY_LINE,
    SOCKS5,
    broker_prefix,
    client_prefix,
)
from tests.analyzer import forging
from tests.analyzer.forging import (
    CLIENT_ID,
    CaptureRows,
    answering,
    asking,
    heartbeat,
    heartbeat_answer,
    payloads,
    produce,
    produce_answer,
    read,
    read_files,
    turns,
    without,
)
from tests.captures.forge import Write, converse
from tests.shared import shared_folder

DECODED = ("answered", "decoded", "decoded")

OLD = ("old-librdkafka-0.11.4-on-1.1", "old-librdkafka-1.3.0-on-3.9")
PROXIED = ("zoo-prefix-proxy1", "zoo-prefix-proxy2", "zoo-prefix-socks5")
# fmt: off
OTHERS = (
    "zoo-sarama-new-on-tansu", "zoo-confluent-2.5.3-on-mock-2.0.2", "zoo-kafka-go-0.4.51-on-4.3",
    "zoo-kafkajs-1.4.5-on-2.8", "zoo-streams-classic-4.3", "zoo-streams-proto-4.3", "zoo-pykafka-2.8-on-2.8",
    "zoo-connect-sessioned-4.3", "zoo-sasl-raw-sarama-1.19", "zoo-confluent-2.0.2-on-2.8",
    "zoo-kafka-python-1.0.2-on-0.9",
)
# fmt: on


def of(name: str) -> CaptureRows:
    """A shared capture, read as a user reads it: no port is named."""
    return read_files(shared_folder(name) / "capture.pcap")


@pytest.mark.parametrize("name", [*OLD, *PROXIED, *OTHERS])
def test_every_connection_is_recognised_without_a_port(name: str) -> None:
    """And every byte that is not decoded has its reason: nothing is passed over, no answer is without its request."""
    result = of(name)
    assert result.unrecognised["connections"] == 0
    assert result.coverage["skipped_bytes"] == 0
    assert Counter(result.column("status"))["orphan_response"] == 0
    reasons = {reason for reason, amount in result.coverage["opaque"].items() if amount}
    broken = {"malformed"} if "mock" in name else set()  # the ApiVersions answers of librdkafka's mock cluster
    assert reasons <= {"trailing", "prefix", "sasl"} | broken


# ---------------------------------------------------------------------------------- trailing bytes (librdkafka to 1.3)


def api_versions_with_rest(number: int, rest: bytes = bytes(4), client_id: str | None = "rdkafka") -> bytes:
    """ApiVersions v0 as librdkafka up to 1.3 sends it: an empty array of a draft of KIP-35 behind its empty body."""
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    return forging.framed(struct.pack(">hhi", 18, 0, number) + name + rest)


def api_versions_answer(number: int) -> bytes:
    keys = [{"apiKey": api, "minVersion": 0, "maxVersion": 3} for api in range(20)]
    return forging.response(18, 0, number, {"errorCode": 0, "apiKeys": keys})


@pytest.mark.parametrize("name", OLD)
def test_an_old_librdkafka(name: str) -> None:
    result = of(name)
    first = [row for row in result.exchanges if row["api"] == "ApiVersions"]
    assert first
    assert all(row["reason"] == "request: 4 trailing bytes" for row in first)
    assert result.coverage["opaque"]["trailing"] == 4 * len(first)
    assert {row["response_state"] for row in first} == {"decoded"}


@pytest.mark.parametrize("ports", [[], [9092]], ids=["by content", "by port"])
def test_its_request_in_the_middle_of_a_capture(tmp_path: Path, ports: list[int]) -> None:
    writes = [asking(api_versions_with_rest(7)), answering(api_versions_answer(7))]
    result = read(tmp_path, converse(writes, handshake=False, close=None), ports=ports)
    assert result.brief() == [("ApiVersions", 7, *DECODED)]
    assert result.coverage["skipped_bytes"] == 0


@pytest.mark.parametrize("handshake", [True, False], ids=["from its beginning", "from the middle"])
def test_without_a_client_id_the_answer_proves_it(tmp_path: Path, handshake: bool) -> None:
    writes = [asking(api_versions_with_rest(7, client_id=None)), answering(api_versions_answer(7))]
    result = read(tmp_path, converse(writes, handshake=handshake, close=None))
    assert result.brief() == [("ApiVersions", 7, *DECODED)]
    alone = read(tmp_path, converse(writes[:1], handshake=handshake, close=None))
    assert alone.unrecognised["connections"] == 1


def test_a_long_rest_proves_nothing(tmp_path: Path) -> None:
    """So a plausible header before a stream of other bytes is no Kafka."""
    writes = [asking(api_versions_with_rest(7, bytes(1000))), answering(b"220 ready\r\n")]
    assert read(tmp_path, converse(writes)).unrecognised["connections"] == 1


# ------------------------------------------------------------------------------------------ a request and its answer


def test_a_request_and_its_answer_prove_a_connection_in_the_middle(tmp_path: Path) -> None:
    """One exchange, no client id, no beginning."""
    writes = [asking(heartbeat(30, client_id=None)), answering(heartbeat_answer(30))]
    result = read(tmp_path, converse(writes, handshake=False, close=None))
    assert result.brief() == [("Heartbeat", 30, *DECODED)]
    for answer in (heartbeat_answer(31), heartbeat_answer(30)[:-1]):  # another number; an answer that is not whole
        other = read(tmp_path, converse([writes[0], answering(answer)], handshake=False, close=None))
        assert other.exchanges == []


def test_an_answer_in_several_segments(tmp_path: Path) -> None:
    ask = forging.request(3, 0, 9, {"topics": [{"name": "orders"}]}, client_id=None)
    topic = {"errorCode": 0, "name": "orders", "partitions": []}
    answer = forging.response(3, 0, 9, {"brokers": [], "topics": [topic | {"name": "x" * 3000}]})
    result = read(tmp_path, converse([asking(ask), answering(answer)], handshake=False, close=None, mss=500))
    assert result.brief() == [("Metadata", 9, *DECODED)]


# --------------------------------------------------------------------------------------------- something before Kafka


def v2(command: int, family: int, body: bytes) -> bytes:
    return b"\r\n\r\n\0\r\nQUIT\n" + struct.pack(">BBH", 0x20 | command, family, len(body)) + body


TLVS = b"\x03\x00\x04\x12\x34\x56\x78" + b"\xea\x00\x17\x01vpce-08d2bf15fac5001c9"
"""A checksum, and AWS's id of the endpoint."""
V4 = socket.inet_aton("10.1.2.3") + socket.inet_aton("10.9.9.9") + struct.pack(">HH", 4711, 9092)
V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::1") + socket.inet_pton(socket.AF_INET6, "::2") + V4[-4:]
SOCKS_TARGET = b"\x03\x0akafka.test" + struct.pack(">H", 9092)

# fmt: off
BEFORE = {
    "PROXY v1": (b"PROXY TCP4 10.1.2.3 10.9.9.9 4711 9092\r\n", b"", "10.1.2.3:4711", "10.9.9.9:9092"),
    "PROXY v1, IPv6": (b"PROXY TCP6 2001:db8::1 ::2 4711 9092\r\n", b"", "[2001:db8::1]:4711", "[::2]:9092"),
    "PROXY v1, unknown": (b"PROXY UNKNOWN\r\n", b"", None, None),
    "PROXY v2": (v2(1, 0x11, V4), b"", "10.1.2.3:4711", "10.9.9.9:9092"),
    "PROXY v2, IPv6 and TLVs": (v2(1, 0x21, V6 + TLVS), b"", "[2001:db8::1]:4711", "[::2]:9092"),
    "PROXY v2, local": (v2(0, 0, b""), b"", None, None),
    "PROXY v2, a socket's path": (v2(1, 0x31, bytes(216)), b"", None, None),
    "SOCKS5": (b"\x05\x01\x00" + b"\x05\x01\x00" + SOCKS_TARGET, b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6), None,
               "kafka.test:9092"),
    "SOCKS5 with a password": (
        b"\x05\x02\x00\x02" + b"\x01\x03bob\x06secret" + b"\x05\x01\x00\x01" + V4[4:8] + V4[-2:],
        b"\x05\x02" + b"\x01\x00" + b"\x05\x00\x00\x04" + bytes(18), None, "10.9.9.9:9092",
    ),
    "HTTP CONNECT": (b"CONNECT kafka.test:9092 HTTP/1.1\r\nHost: kafka.test\r\nProxy-Authorization: Basic Ym9i\r\n\r\n",
                     b"HTTP/1.1 200 Connection established\r\n\r\n", None, "kafka.test:9092"),
}
# fmt: on
"""What the client says first, what it is answered, and what that names."""


def behind(name: str) -> list[Write]:
    ask, answer, *_ = BEFORE[name]
    return [asking(ask), *([answering(answer)] if answer else []), *turns(range(1, 4))]


@pytest.mark.parametrize("ports", [[], [9092]], ids=["by content", "by port"])
@pytest.mark.parametrize("name", BEFORE)
def test_what_stands_before_the_first_message_is_skipped_and_told(tmp_path: Path, name: str, ports: list[int]) -> None:
    ask, answer, source, target = BEFORE[name]
    for mss in (1448, 7):  # in one segment, in many
        result = read(tmp_path, converse(behind(name), mss=mss), ports=ports)
        assert result.brief() == [("Heartbeat", number, *DECODED) for number in (1, 2, 3)]
        assert result.coverage["opaque"]["prefix"] == len(ask) + len(answer) == result.connection["opaque_prefix_bytes"]
        assert result.coverage["skipped_bytes"] == result.coverage["incomplete_bytes"] == 0
        assert (result.connection["proxied_from"], result.connection["proxied_to"]) == (source, target)


@pytest.mark.parametrize("name", BEFORE)
def test_it_may_share_a_segment_with_the_first_message(tmp_path: Path, name: str) -> None:
    ask, answer, *_ = BEFORE[name]
    if answer:
        return
    result = read(tmp_path, converse([asking(ask + heartbeat(1)), answering(heartbeat_answer(1))]))
    assert result.brief() == [("Heartbeat", 1, *DECODED)]
    assert result.coverage["opaque"]["prefix"] == len(ask)


@pytest.mark.parametrize("name", BEFORE)
def test_a_prefix_is_a_prefix_only_when_it_is_whole(name: str) -> None:
    """Byte by byte: never more than is there, always the same in the end."""
    ask, answer, *_ = BEFORE[name]
    kind = {"P": PROXY_BINARY if "v2" in name else PROXY_LINE, "S": SOCKS5, "H": CONNECT}[name[0]]

    def of_client(raw: Bytes, end: int) -> int:
        return int(client_prefix(raw, 0, end)[1])

    def of_broker(raw: Bytes, end: int) -> int:
        return int(broker_prefix(raw, 0, end, kind))

    for text, length in ((ask, of_client), (answer, of_broker)):
        raw = np.frombuffer(text + bytes(4), np.uint8)
        for end in range(1, len(text)):
            assert length(raw, end) == MORE_BYTES, (name, end)
        assert length(raw, len(text)) == len(text)
        assert length(raw, len(raw)) == len(text)


@pytest.mark.parametrize("kind", [PROXY_LINE, PROXY_BINARY, SOCKS5, CONNECT])
def test_a_prefix_that_lies_names_nobody(kind: int) -> None:
    lies = (b"", b"PROXY TCP4 a b c d", b"PROXY TCP4 10.1.2.3", bytes(16), v2(1, 0x11, b"")[:14], b"\xff" * 40)
    for text in lies:
        ends = named_ends(kind, text.hex())
        assert all(end is None or isinstance(end, str) for end in ends)


def test_other_things_behind_a_prefix_are_still_not_kafka(tmp_path: Path) -> None:
    writes = [asking(BEFORE["PROXY v1"][0]), asking(b"GET / HTTP/1.1\r\n\r\n"), answering(b"HTTP/1.1 200 OK\r\n\r\n")]
    result = read(tmp_path, converse(writes))
    assert result.unrecognised["connections"] == 1
    assert result.unrecognised["payload_bytes"] == sum(len(write.data) for write in writes)


@pytest.mark.parametrize("name", PROXIED)
def test_real_proxies(name: str) -> None:
    result = of(name)
    assert all(row["opaque_prefix_bytes"] > 0 for row in result.connections)
    assert result.coverage["opaque"]["prefix"] == result.coverage["opaque_bytes"]
    if name != "zoo-prefix-socks5":
        assert {row["proxied_to"] for row in result.connections} == {"10.9.9.9:9092"}
        assert all(row["proxied_from"].startswith("10.1.2.3:") for row in result.connections)
    else:
        assert {(row["proxied_from"], row["proxied_to"]) for row in result.connections} == {(None, "kafka.test:9092")}


def test_under_port_a_first_frame_that_cannot_be_one_leads_to_seeking(tmp_path: Path) -> None:
    """A text that says nothing of itself: read as a length it would be 1.2 GB, and swallow all that follows."""
    banner = b"HELLO this is a tunnel\r\n"
    result = read(tmp_path, converse([asking(banner), *turns(range(1, 4))]), ports=[9092])
    assert result.brief() == [("Heartbeat", number, *DECODED) for number in (1, 2, 3)]
    assert result.coverage["skipped_bytes"] == len(banner)


# ------------------------------------------------------------------------------------------------ answers to acks=0


def test_an_answer_to_acks_0_belongs_to_its_request(tmp_path: Path) -> None:
    """Some brokers of other makes answer."""
    result = read(tmp_path, converse(turns(range(1, 4), lambda n: produce(n, acks=0), produce_answer)))
    assert result.brief() == [("Produce", number, *DECODED) for number in (1, 2, 3)]


def test_kafkas_own_broker_does_not_answer(tmp_path: Path) -> None:
    """An answer that passes over such a request says so."""
    writes = [asking(produce(1, acks=0) + produce(2, acks=0)), *turns([3]), asking(produce(4, acks=0)), *turns([5])]
    result = read(tmp_path, converse(writes, close=None))
    assert [(row["correlation_id"], row["status"]) for row in result.exchanges] == [
        (1, "no_response_expected"),
        (2, "no_response_expected"),
        (3, "answered"),
        (4, "no_response_expected"),
        (5, "answered"),
    ]


def test_a_producer_that_never_asks_for_an_answer(tmp_path: Path) -> None:
    """Its requests are rows all the same, each once, also when there are more than may wait."""
    writes = [asking(produce(number, acks=0)) for number in range(300)]
    result = read(tmp_path, converse(writes, close=None))
    assert result.column("status") == ["no_response_expected"] * 300
    assert result.column("correlation_id") == list(range(300))


def test_equal_correlation_ids_do_not_give_an_answer_to_acks_0(tmp_path: Path) -> None:
    result = read(tmp_path, converse([asking(produce(0, acks=0)), *turns([0])]))
    assert [(row["api"], row["status"]) for row in result.exchanges] == [
        ("Produce", "no_response_expected"),
        ("Heartbeat", "answered"),
    ]


def test_a_lost_answer_to_acks_0_is_none(tmp_path: Path) -> None:
    segments = converse(turns(range(1, 4), lambda n: produce(n, acks=0), produce_answer))
    result = read(tmp_path, without(segments, payloads(segments, to_broker=False)[1]))
    assert [(row["correlation_id"], row["status"]) for row in result.exchanges] == [
        (1, "answered"),
        (2, "no_response_expected"),
        (3, "answered"),
    ]


@pytest.mark.parametrize("name", ["zoo-sarama-new-on-tansu", "zoo-confluent-2.5.3-on-mock-2.0.2"])
def test_brokers_that_answer_it(name: str) -> None:
    silent = [row for row in of(name).exchanges if row["api"] == "Produce" and row["acks"] == 0]
    assert sum(row["status"] == "answered" for row in silent) >= 4
    assert {row["status"] for row in silent} <= {"answered", "no_response_expected"}


# -------------------------------------------------------------------------------- an answer of which little is readable


def test_the_error_code_of_a_broken_answer(tmp_path: Path) -> None:
    """librdkafka's mock answers ApiVersions v3 with UNSUPPORTED_VERSION and a body in no version's layout."""
    result = of("zoo-confluent-2.5.3-on-mock-2.0.2")
    broken = [row for row in result.exchanges if row["response_state"] == "undecoded"]
    assert len(broken) == 10
    assert {(row["api"], row["error"]) for row in broken} == {("ApiVersions", "UNSUPPORTED_VERSION")}
    whole = next(analyzer.exchanges(shared_folder("zoo-confluent-2.5.3-on-mock-2.0.2") / "capture.pcap"))
    assert whole.row["client_id"] != CLIENT_ID
