"""The few Kafka messages that the benchmarks' captures are made of, written by hand from Kafka's protocol guide.

Produce v7 and Fetch v11: the newest that tshark 4.0 decodes without giving up, so that both tools do the same work.
They share no code with the encoder under test.
"""

from __future__ import annotations

import gzip
import random
import struct
from typing import Final

import crc32c
import lz4.frame
import snappy
import zstandard

PRODUCE, FETCH = 0, 1
FIRST_MS: Final = 1_700_000_000_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""In the order of the codec's number in a batch's attributes."""


def varint(value: int) -> bytes:
    """A zigzag varint, as inside records."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def record(delta: int, key: bytes, value: bytes) -> bytes:
    """One record of a batch v2 (KIP-98), `delta` being both its offset and its milliseconds since the first."""
    body = b"\0" + varint(delta) + varint(delta) + varint(len(key)) + key + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def compressed(codec: str, data: bytes) -> bytes:
    """As clients do it: snappy in xerial's framing, lz4 in its frame format, zstd with its content size."""
    if codec == "gzip":
        return gzip.compress(data, 6, mtime=0)
    if codec == "snappy":
        blocks = [snappy.compress(data[at : at + 32768]) for at in range(0, len(data), 32768)]
        return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    if codec == "lz4":
        return bytes(lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, store_size=False))
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=3).compress(data)
    return data


def batch(records: list[bytes], codec: str = "none") -> bytes:
    """A record batch v2 at offset 0 with a right CRC32C, which covers everything from the attributes on."""
    count = len(records)
    head = struct.pack(">hiqqqhii", CODECS.index(codec), count - 1, FIRST_MS, FIRST_MS + count - 1, -1, -1, -1, count)
    covered = head + compressed(codec, b"".join(records))
    head = struct.pack(">qiibI", 0, 9 + len(covered), 0, 2, crc32c.crc32c(covered))
    return head + covered


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api_key: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    return framed(struct.pack(">hhi", api_key, version, correlation_id) + string(client_id) + body)


def produce_request(correlation_id: int, client_id: str, topic: str, partition: int, records: bytes) -> bytes:
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + string(topic)
    body += struct.pack(">iii", 1, partition, len(records)) + records
    return request(PRODUCE, 7, correlation_id, client_id, body)


def produce_response(correlation_id: int, topic: str, partition: int, base_offset: int) -> bytes:
    body = struct.pack(">ii", correlation_id, 1) + string(topic)
    return framed(body + struct.pack(">iihqqqi", 1, partition, 0, base_offset, -1, 0, 0))


def fetch_request(correlation_id: int, client_id: str, topic: str, partition: int, offset: int) -> bytes:
    body = struct.pack(">iiiibii", -1, 500, 1, 52_428_800, 0, 0, -1) + struct.pack(">i", 1) + string(topic)
    body += struct.pack(">iiiqqi", 1, partition, -1, offset, -1, 1_048_576) + struct.pack(">i", 0) + string("")
    return request(FETCH, 11, correlation_id, client_id, body)


def fetch_response(correlation_id: int, topic: str, partition: int, high_watermark: int, records: bytes) -> bytes:
    body = struct.pack(">iihii", correlation_id, 0, 0, 0, 1) + string(topic)
    body += struct.pack(">iihqqqii", 1, partition, 0, high_watermark, high_watermark, 0, -1, -1)
    return framed(body + struct.pack(">i", len(records)) + records)


WORDS: Final = (
    "order",
    "customer",
    "invoice",
    "created",
    "shipped",
    "pending",
    "region",
    "north",
    "south",
    "amount",
    "currency",
    "quantity",
    "warehouse",
    "carrier",
    "tracking",
    "status",
    "priority",
    "returned",
    "refunded",
    "channel",
    "online",
)


def text(rng: random.Random, size: int) -> bytes:
    """JSON-like text that compresses about as real events do (three to five times)."""
    parts = []
    length = 0
    while length < size:
        part = f'"{rng.choice(WORDS)}_{rng.choice(WORDS)}":"{rng.choice(WORDS)}-{rng.randrange(10**6)}",'
        parts.append(part)
        length += len(part)
    return "".join(parts).encode()[:size]


def large_batch(rng: random.Random, codec: str, at_least: int) -> bytes:
    """A batch of at least `at_least` bytes on the wire, records of 100 to 1,000 bytes."""
    records: list[bytes] = []
    size = 0
    # Compressed sizes are known afterwards only: begin with a guess of the ratio, grow until it is enough.
    wanted = at_least * {"none": 1, "gzip": 4, "snappy": 2, "lz4": 2, "zstd": 4}[codec]
    while True:
        while size < wanted:
            new = record(len(records), b"key-%08d" % rng.randrange(10**8), text(rng, rng.randint(100, 1000)))
            records.append(new)
            size += len(new)
        data = batch(records, codec)
        if len(data) >= at_least:
            return data
        wanted = wanted * 5 // 4
