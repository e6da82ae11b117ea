"""Record batches and Produce bodies for tests; the batches are made by aiokafka's writer where that is the witness, and
here by hand, field by field (KIP-98)."""

from __future__ import annotations

import struct

import crc32c

from kwire.analyzer.protocol.tree import Body


def batch(
    producer: tuple[int, int] = (-1, -1), sequence: int = -1, count: int = 3, transactional: bool = False
) -> bytes:
    """A batch of `count` records without keys, values `v0`, `v1` ..."""
    records = b""
    for index in range(count):
        value = b"v%d" % index
        body = b"\0" + b"\0" + bytes([index << 1]) + b"\1" + bytes([len(value) << 1]) + value + b"\0"
        records += bytes([len(body) << 1]) + body
    rest = struct.pack(
        ">hiqqqhii", 16 if transactional else 0, count - 1, 1000, 1000, producer[0], producer[1], sequence, count
    )
    sealed = rest + records
    return struct.pack(">qiibI", 0, len(sealed) + 9, -1, 2, crc32c.crc32c(sealed)) + sealed


def produced(records: bytes | dict[int, bytes], acks: int = -1, name: str | None = None) -> Body:
    """A Produce request for the topic `orders`: partition 0, or records by partition."""
    some = records if isinstance(records, dict) else {0: records}
    return {
        "transactionalId": name,
        "acks": acks,
        "timeoutMs": 1000,
        "topicData": [
            {"name": "orders", "partitionData": [{"index": p, "records": capture} for p, capture in some.items()]}
        ],
    }


def produced_answer(
    base: int | dict[int, int], error: int = 0, errors: dict[int, int] | None = None, appended: int = -1
) -> Body:
    """Its answer: base offsets by partition."""
    bases = base if isinstance(base, dict) else {0: base}
    return {
        "responses": [
            {
                "name": "orders",
                "partitionResponses": [
                    {
                        "index": p,
                        "errorCode": (errors or {}).get(p, error),
                        "baseOffset": offset,
                        "logAppendTimeMs": appended,
                        "logStartOffset": 0,
                    }
                    for p, offset in bases.items()
                ],
            }
        ]
    }


def producer_of(body: Body) -> tuple[int, int, int]:
    """(producer id, epoch, base sequence) of a Produce request's first batch, whose checksum must be right."""
    records = body["topicData"][0]["partitionData"][0]["records"]
    (length,) = struct.unpack_from(">i", records, 8)
    (checksum,) = struct.unpack_from(">I", records, 17)
    assert crc32c.crc32c(records[21 : 12 + length]) == checksum
    producer: tuple[int, int, int] = struct.unpack_from(">qhi", records, 43)
    return producer
