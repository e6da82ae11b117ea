"""Tell other protocols from Kafka: no connection, no exchange, no byte in the coverage.

They are listed, with a guess and a way out (`--port`). Each protocol comes from its first byte, and from the middle
of a connection."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analyzer.forging import answering, asking, payloads, read, turns
from tests.captures.forge import Segment, Write, converse, interleaved

ROUNDS = 300


def http(rng: random.Random) -> list[Write]:
    """HTTP/1.1 with JSON and gzip bodies, keep-alive."""
    out = []
    for number in range(ROUNDS):
        head = f"GET /orders/{number}?page={rng.randrange(99)} HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n\r\n"
        body = rng.randbytes(rng.randrange(4000))
        if number % 2:
            body = zlib.compress(b'{"id": %d, "items": [1, 2, 3]}' % number * 50)
        reply = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
        out += [asking(head.encode()), answering(reply.encode() + body)]
    return out


def tls(rng: random.Random) -> list[Write]:
    """TLS 1.2 and 1.3 records (RFC 8446, 5.1): handshake, then application data."""

    def record(kind: int, size: int) -> bytes:
        return struct.pack(">BHH", kind, 0x0303, size) + rng.randbytes(size)

    hello = struct.pack(">BHHB", 22, 0x0301, 512, 1) + (508).to_bytes(3, "big") + rng.randbytes(508)
    out = [asking(hello), answering(record(22, 90) + record(20, 1) + record(23, 3000)), asking(record(20, 1))]
    for _ in range(ROUNDS):
        out += [asking(record(23, rng.randrange(20, 600))), answering(record(23, rng.randrange(20, 8000)))]
    return out


def dns(rng: random.Random) -> list[Write]:
    """DNS over TCP (RFC 1035, 4.2.2): a 16-bit length, then the message."""
    out = []
    for number in range(ROUNDS):
        ident = rng.randrange(1 << 16)
        name = b"".join(bytes([len(part)]) + part for part in (b"broker-%d" % number, b"example", b"org")) + b"\0"
        ask = struct.pack(">HHHHHH", ident, 0x0100, 1, 0, 0, 0) + name + struct.pack(">HH", 1, 1)
        answer = struct.pack(">HHHHHH", ident, 0x8180, 1, 4, 0, 0) + name + struct.pack(">HH", 1, 1)
        for _ in range(4):
            answer += struct.pack(">HHHIH", 0xC00C, 1, 1, rng.randrange(3600), 4) + rng.randbytes(4)
        out += [asking(struct.pack(">H", len(ask)) + ask), answering(struct.pack(">H", len(answer)) + answer)]
    return out


def postgresql(rng: random.Random) -> list[Write]:
    """PostgreSQL's protocol 3.0: a start-up message, then type byte and 32-bit length."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack(">i", len(body) + 4) + body

    parameters = b"user\0orders\0database\0shop\0application_name\0psql\0client_encoding\0UTF8\0\0"
    start = struct.pack(">ii", len(parameters) + 8, 196608) + parameters
    ready = message(b"R", struct.pack(">i", 0)) + message(b"S", b"server_version\x0016.1\0") + message(b"Z", b"I")
    out = [asking(start), answering(ready)]
    for number in range(ROUNDS):
        query = b"SELECT id, total FROM orders WHERE id > %d LIMIT 50\0" % number
        rows = message(b"T", struct.pack(">h", 2) + (b"id\0" + struct.pack(">ihihih", 16400, 1, 23, 4, -1, 0)) * 2)
        for row in range(rng.randrange(50)):
            rows += message(
                b"D", struct.pack(">hi", 2, 4) + struct.pack(">i", row) + struct.pack(">i", 6) + b"%6d" % row
            )
        out += [asking(message(b"Q", query)), answering(rows + message(b"C", b"SELECT 50\0") + message(b"Z", b"I"))]
    return out


def zookeeper(rng: random.Random) -> list[Write]:
    """ZooKeeper: 32-bit lengths like Kafka's, then xid and type; Kafka's old brokers speak it beside Kafka."""

    def framed(body: bytes) -> bytes:
        return struct.pack(">i", len(body)) + body

    def text(value: str) -> bytes:
        return struct.pack(">i", len(value)) + value.encode()

    session = rng.getrandbits(60)
    connect = struct.pack(">iqiqi", 0, 0, 18000, 0, 16) + bytes(16) + b"\0"
    out = [
        asking(framed(connect)),
        answering(framed(struct.pack(">iiqi", 0, 18000, session, 16) + rng.randbytes(16) + b"\0")),
    ]
    zxid = 4000
    for xid in range(1, ROUNDS):
        path = f"/brokers/topics/orders-{rng.randrange(40)}/partitions/{rng.randrange(9)}/state"
        zxid += rng.randrange(3)
        kind = rng.choice((1, 3, 4, 5, 8, 11))
        if kind == 11:
            out += [asking(framed(struct.pack(">ii", -2, 11))), answering(framed(struct.pack(">iqi", -2, zxid, 0)))]
            continue
        data = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
        ask = struct.pack(">ii", xid, kind) + text(path) + b"\1"
        if kind in (1, 5):
            ask += struct.pack(">i", len(data)) + data + struct.pack(">i", -1)
        stat = struct.pack(
            ">qqqqiiiqiiq", zxid, zxid, 1_700_000_000_000, 1_700_000_000_000, 0, 0, 0, 0, len(data), 0, zxid
        )
        answer = struct.pack(">iqi", xid, zxid, 0) + struct.pack(">i", len(data)) + data + stat
        out += [asking(framed(ask)), answering(framed(answer))]
    return out


def noise(rng: random.Random) -> list[Write]:
    """Megabytes of random bytes, both ways."""
    return [Write(bool(rng.getrandbits(1)), rng.randbytes(rng.randrange(1, 20_000))) for _ in range(500)]


def zeros(rng: random.Random) -> list[Write]:
    """Small numbers among zeros, as binary protocols are full of: lengths, ids and counts that look like Kafka's."""
    out = []
    for _ in range(ROUNDS):
        words = [rng.choice((0, 0, 0, 1, 2, 3, 18, 40, rng.randrange(200))) for _ in range(rng.randrange(4, 200))]
        out.append(Write(bool(rng.getrandbits(1)), struct.pack(f">{len(words)}i", *words)))
    return out


PROTOCOLS: dict[str, tuple[Callable[[random.Random], list[Write]], str]] = {
    "HTTP": (http, "HTTP"),
    "TLS": (tls, "TLS"),
    "DNS": (dns, "DNS"),
    "PostgreSQL": (postgresql, "PostgreSQL"),
    "ZooKeeper": (zookeeper, "ZooKeeper"),
    "random bytes": (noise, "unknown"),
    "zeros and small numbers": (zeros, "unknown"),
}


def conversation(name: str, seed: int, mss: int = 1448) -> tuple[list[Segment], int]:
    """Its packets, and how many payload bytes they have."""
    segments = converse(PROTOCOLS[name][0](random.Random(seed)), broker=("10.0.0.2", 7000), mss=mss)
    return segments, sum(len(segment.payload) for segment in segments)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_not_kafka(tmp_path: Path, name: str) -> None:
    for seed in (1, 2):
        segments, size = conversation(name, seed)
        seen = read(tmp_path, segments)
        assert seen.exchanges == []
        assert seen.connections == []
        assert seen.coverage["payload_bytes"] == 0
        assert seen.unrecognised["connections"] == 1
        assert seen.unrecognised["payload_bytes"] == size
        (listed,) = seen.unrecognised["listed"]
        assert listed["connection"] == "10.0.0.1:40000-10.0.0.2:7000#1"
        assert listed["payload_bytes"] == size
        assert listed["looks_like"] == PROTOCOLS[name][1]


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("mss", [1448, 97])
def test_not_kafka_from_the_middle(tmp_path: Path, name: str, mss: int) -> None:
    """Without a SYN any offset may be a message's start: many more chances to be wrong."""
    segments, _ = conversation(name, 3, mss)
    positions = payloads(segments, True, 7000)
    for begin in (positions[len(positions) // 3], positions[len(positions) // 2] + 1):
        rest = segments[begin:]
        seen = read(tmp_path, rest)
        assert seen.exchanges == [], seen.brief()[:3]
        assert seen.unrecognised["connections"] == 1
        assert seen.unrecognised["payload_bytes"] == sum(len(segment.payload) for segment in rest)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_not_kafka_with_packets_lost(tmp_path: Path, name: str) -> None:
    """Holes make an analyzer search as well."""
    segments, _ = conversation(name, 4)
    rng = random.Random(9)
    rest = [segment for index, segment in enumerate(segments) if index < 3 or rng.random() > 0.03]
    seen = read(tmp_path, rest)
    assert seen.exchanges == [], seen.brief()[:3]
    assert seen.unrecognised["payload_bytes"] == sum(len(segment.payload) for segment in rest)


def test_beside_kafka(tmp_path: Path) -> None:
    """All of them at once, with Kafka among them: Kafka is found, and nothing of the others is counted with it."""
    others = [
        converse(make(random.Random(5)), client=("10.0.0.1", 50_000 + number), broker=("10.0.0.2", 7000 + number))
        for number, (make, _) in enumerate(PROTOCOLS.values())
    ]
    kafka = converse(turns(range(1, 200)))
    seen = read(tmp_path, interleaved(kafka, *others))
    assert len(seen.exchanges) == 199
    assert {row["broker_port"] for row in seen.exchanges} == {9092}
    assert (
        seen.coverage["decoded_bytes"]
        == seen.coverage["payload_bytes"]
        == sum(len(segment.payload) for segment in kafka)
    )
    assert sorted(row["looks_like"] for row in seen.unrecognised["listed"]) == sorted(
        guess for _, guess in PROTOCOLS.values()
    )


def test_a_line_says_what_was_seen_and_names_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kwire.analyzer.cli.parser import main

    segments, _ = conversation("HTTP", 6)
    read(tmp_path, segments)
    assert main(["analyze", str(tmp_path / "capture.pcap"), "-o", str(tmp_path / "dataset")]) == 0
    printed = capsys.readouterr()
    hints = [line for line in (printed.out + printed.err).splitlines() if "--port" in line]
    assert hints, printed.out + printed.err
    assert any("HTTP" in line for line in (printed.out + printed.err).splitlines())
    capsys.readouterr()
    assert main(["show", str(tmp_path / "capture.pcap")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--port 7000" in printed.err
    assert "HTTP" in printed.err
