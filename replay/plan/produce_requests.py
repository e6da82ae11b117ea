"""Read simple Produce requests without decoding: one partition, answered without an error.

In: frames. Out: a `FastPath`, which has all that the plan and fast path (`send.produce_in_place`) need of it, so that
nobody makes a body of it; None for whatever is not as plain as that, which is decoded as every other request. This
changes how fast a request is planned and sent, never what is sent. Layouts: Kafka's ProduceRequest and ProduceResponse,
versions 3 to 13.
"""

from __future__ import annotations

import base64
import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.topic_partitions import NAME

_FIRST: Final = 3
_FIRST_FLEXIBLE: Final = 9
PRODUCE_BY_ID: Final = 13
"""The first version of Produce that names topics by id (KIP-516)."""
_NO_ID: Final = bytes(16)

_SHORT: Final = struct.Struct(">h")
_BATCH: Final = struct.Struct(">8xi4xb6xi16xqhi")
"""Of a batch's header: length, magic, last offset delta, producer id, epoch and base sequence."""
_OFFSET_AND_SIZE: Final = 12
"""Bytes of a batch that its length does not count."""
_ACKS: Final = struct.Struct(">hi")  # and the timeout
_TOPICS: Final = struct.Struct(">ih")  # how many, and the length of the first one's name
_PARTITIONS: Final = struct.Struct(">iii")  # how many, the number of the first, the size of its records
_INT: Final = struct.Struct(">i")
_ANSWERED: Final = struct.Struct(">ihqq")  # partition, error, base offset, log append time


class Spot(NamedTuple):
    """A batch of a frame: where it starts, its size with its header, and what its header says."""

    at: int
    size: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_offset_delta: int


@dataclass(slots=True)
class FastPath:
    """Such a request: its topic (`topic_id`: instead of the name, which is then empty until it is known; else empty),
    the place of its batches in the frame, [at, end), and of the topic id, or -1; `base`: the captured base offset, -1
    without one; `count`: of records; `producers`: ids that are none of -1."""

    topic: str
    topic_id: str
    partition: int
    at: int
    end: int
    id_at: int
    base: int
    count: int
    transactional_id: str | None
    producers: tuple[int, ...]

    def spots(self, data: bytes | bytearray) -> Iterator[Spot]:
        """Its batches, as they stand in its frame."""
        at = self.at
        while at < self.end:
            length, _, delta, producer, epoch, sequence = _BATCH.unpack_from(data, at)
            yield Spot(at, length + _OFFSET_AND_SIZE, producer, epoch, sequence, delta)
            at += length + _OFFSET_AND_SIZE


def read(data: bytes, answer: bytes) -> FastPath | None:
    """A request by its frame and its answer's, both without their lengths."""
    try:
        key, version = _TWO_SHORTS.unpack_from(data)
        if key != api_keys.PRODUCE or not _FIRST <= version <= PRODUCE_BY_ID:
            return None
        quick = _flexible(data, version, answer) if version >= _FIRST_FLEXIBLE else _fixed(data, version, answer)
        return quick if quick is not None and _has_batches(quick, data) else None
    except (struct.error, IndexError):
        return None  # it ends before it should: who decodes it says where


_TWO_SHORTS: Final = struct.Struct(">hh")


def _fixed(data: bytes, version: int, answer: bytes) -> FastPath | None:
    """Of version 3 to 8."""
    at = _after_string(data, 8)
    if at < 0:
        return None
    start, at = at + 2, _after_string(data, at)
    if at < 0:
        return None
    transaction = None if data[start - 2] == 0xFF else _text(data[start:at])
    acks, _ = _ACKS.unpack_from(data, at)
    topics, length = _TOPICS.unpack_from(data, at + 6)
    name_at = at + 12
    at = name_at + length
    partitions, partition, size = _PARTITIONS.unpack_from(data, at)
    at += 12
    if topics != 1 or length <= 0 or partitions != 1 or acks == 0 or size <= 0 or at + size != len(data):
        return None
    name = data[name_at : name_at + length]
    base = _base(answer, version, partition, name)
    if base is None:
        return None
    return FastPath(_text(name), "", partition, at, at + size, -1, base, 0, transaction, ())


def _flexible(data: bytes, version: int, answer: bytes) -> FastPath | None:
    """Of version 9 and newer, where nothing is tagged."""
    at = _after_string(data, 8)
    if at < 0 or data[at] != 0 or data[at + 1] > 127:
        return None
    start = at + 2
    at = start + max(data[at + 1] - 1, 0)
    transaction = _text(data[start:at]) if data[start - 1] else None
    acks, _ = _ACKS.unpack_from(data, at)
    if data[at + 6] != 2 or acks == 0:
        return None
    at += 7
    by_id = version >= PRODUCE_BY_ID
    if by_id:
        name = data[at : at + 16]
        id_at, at = at, at + 16
    elif 1 < data[at] < 128:
        name = data[at + 1 : at + data[at]]
        id_at, at = -1, at + data[at]
    else:
        return None
    if data[at] != 2:
        return None
    partition = int.from_bytes(data[at + 1 : at + 5], "big", signed=True)
    at += 5
    size = shift = 0
    while data[at] > 127 and shift < 21:
        size |= (data[at] & 127) << shift
        shift += 7
        at += 1
    if data[at] > 127:
        return None
    size = (size | data[at] << shift) - 1
    at += 1
    # No tags, of the partition, of the topic, and of the request; and that is all.
    if size <= 0 or len(data) != at + size + 3 or data[at + size :] != b"\0\0\0" or (by_id and name == _NO_ID):
        return None
    base = _base(answer, version, partition, name)
    if base is None:
        return None
    topic, topic_id = ("", _id(name)) if by_id else (_text(name), "")
    return FastPath(topic, topic_id, partition, at, at + size, id_at, base, 0, transaction, ())


def _has_batches(quick: FastPath, data: bytes) -> bool:
    """Note how many records there are, and whose; False where the records are no whole batches."""
    at, end = quick.at, quick.end
    producers: tuple[int, ...] = ()
    while at < end:
        length, magic, delta, producer, _, _ = _BATCH.unpack_from(data, at)
        if magic != 2 or length + _OFFSET_AND_SIZE < batches.HEADER:
            return False
        at += length + _OFFSET_AND_SIZE
        quick.count += delta + 1
        if producer != batches.NO_PRODUCER:
            producers = _single(producer) if not producers else (*producers, producer)
    quick.producers = producers if len(producers) < 2 else tuple(set(producers))
    return at == end


def _base(answer: bytes, version: int, partition: int, topic: bytes) -> int | None:
    """The base offset of an answer that says that all is well with just this partition of this topic (name or id)."""
    stored = success(answer, version, partition)
    at = 6 if version >= PRODUCE_BY_ID else 7 if version >= _FIRST_FLEXIBLE else 10
    if stored is None or answer[at : at + len(topic)] != topic:
        return None
    length = answer[6] - 1 if version >= _FIRST_FLEXIBLE else answer[8] << 8 | answer[9]
    return stored[0] if version >= PRODUCE_BY_ID or length == len(topic) else None


def _after_string(data: bytes, at: int) -> int:
    """Where a nullable string of the old form ends; -1: its length is none."""
    (length,) = _SHORT.unpack_from(data, at)
    return -1 if length < -1 else at + 2 + max(length, 0)


@functools.lru_cache(maxsize=1 << 12)
def _text(data: bytes) -> str:
    return str(data, "utf-8", "surrogateescape")


@functools.lru_cache(maxsize=1 << 12)
def _id(data: bytes) -> str:
    return base64.urlsafe_b64encode(data)[:22].decode()


@functools.lru_cache(maxsize=1 << 12)
def _single(producer: int) -> tuple[int, ...]:
    return (producer,)


def success(data: bytes, version: int, partition: int) -> tuple[int, int] | None:
    """(base offset, log append time) of an answer (without its length) that says that all is well; None where it says
    anything else, or anything more."""
    at = _answered_at(data, version)
    if at < 0:
        return None
    index, error, base, appended = _ANSWERED.unpack_from(data, at)
    return None if index != partition or error or base < 0 else (base, appended)


class StoredAnswer(NamedTuple):
    """The content of such an answer: the topic (or its id) and the partition, base offset, log append time, throttle
    time in milliseconds."""

    topic: str
    partition: int
    base: int
    appended: int
    throttle_ms: int


def stored(data: bytes, version: int) -> StoredAnswer | None:
    """The whole of an answer as `success` takes it."""
    at = _answered_at(data, version)
    if at < 0:
        return None
    index, error, base, appended = _ANSWERED.unpack_from(data, at)
    if error or base < 0:
        return None
    if version < _FIRST_FLEXIBLE:
        return StoredAnswer(_text(data[10 : at - 4]), index, base, appended, _INT.unpack_from(data, len(data) - 4)[0])
    topic = _id(data[6 : at - 1]) if version >= PRODUCE_BY_ID else _text(data[7 : at - 1])
    return StoredAnswer(topic, index, base, appended, _INT.unpack_from(data, len(data) - 5)[0])


def _answered_at(data: bytes, version: int) -> int:
    """Where an answer says of its only partition how it went; -1 where it has none or several, or says anything more
    than that: no errors of records and no message, no tags, the throttle time, and that is all."""
    at = 4
    if version >= _FIRST_FLEXIBLE:
        # No tags; one topic; its name or id; one partition.
        if data[4:6] != b"\0\2" or len(data) < 7:
            return -1
        at = 6 + (16 if version >= PRODUCE_BY_ID else data[6])
        if data[at : at + 1] != b"\2":
            return -1
        at += 1
    else:
        if data[4:8] != b"\0\0\0\1":
            return -1
        at = 10 + int.from_bytes(data[8:10], "big")
        if data[at : at + 4] != b"\0\0\0\1":
            return -1
        at += 4
    after = at + 22 + (8 if version >= 5 else 0)
    if len(data) < after:
        return -1
    if version >= _FIRST_FLEXIBLE:
        rest = b"\1\0\0\0"
        end = len(data) == after + 9 and data[after : after + 4] == rest and data[-1] == 0
    elif version == 8:
        end = len(data) == after + 10 and data[after : after + 6] == b"\0\0\0\0\xff\xff"
    else:
        end = len(data) == after + 4
    return at if end else -1


def plain(version: int, body: Body, data: bytes, answer: Body | None) -> FastPath | None:
    """Like `read`, for a decoded request, whatever else its frames hold; None where there is no fast path."""
    if version < _FIRST or body["acks"] == 0 or len(body["topicData"]) != 1 or answer is None:
        return None
    (topic,) = body["topicData"]
    if len(topic["partitionData"]) != 1 or not topic.get(NAME) or len(answer["responses"]) != 1:
        return None
    (partition,) = topic["partitionData"]
    if len(answer["responses"][0]["partitionResponses"]) != 1:
        return None
    (answered,) = answer["responses"][0]["partitionResponses"]
    inside = batches.produced(partition["records"])
    at = data.find(partition["records"]) if inside else -1
    id_at = -1
    if version >= PRODUCE_BY_ID:
        id_at = data.find(base64.urlsafe_b64decode(topic["topicId"] + "=="))
        if id_at < 0:
            return None
    if at < 0 or answered["errorCode"] or sum(batch.size for batch in inside) != len(partition["records"]):
        return None
    count = sum(batch.last_offset_delta + 1 for batch in inside)
    producers = tuple({batch.producer_id for batch in inside} - {batches.NO_PRODUCER})
    return FastPath(
        topic[NAME],
        topic.get("topicId", ""),
        partition["index"],
        at,
        at + len(partition["records"]),
        id_at,
        answered["baseOffset"],
        count,
        body.get("transactionalId"),
        producers,
    )
