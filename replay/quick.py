"""The short way for what makes up most of a busy capture: a Produce request for one partition.

Such a request is sent as captured, with a few bytes replaced in place, and a plain success is read without decoding the
answer. Whatever is not as plain as that takes the way of every other request (`engine`): this changes how fast a
request is sent, never what is sent. Layouts: Kafka's ProduceRequest and ProduceResponse, versions 3 to 13.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Any, Final

from replay import batches
from replay.apis import NAME
from replay.remap import Producer, Remap

Body = dict[str, Any]

FIRST_FLEXIBLE: Final = 9
FIRST_BY_ID: Final = 13
_CORRELATION: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ihq")  # index, error, base offset
_TIME: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Quick:
    """Where a request's bytes have to be replaced, and what its captured answer said. `spots`: its batches, with the
    place of each in the frame; `id_at`: of the topic id, or -1; `base`: the captured base offset, -1 without one."""

    topic: str
    partition: int
    spots: tuple[tuple[int, batches.Batch, Producer], ...]
    id_at: int
    base: int
    count: int


def plain(version: int, body: Body, data: bytes, answer: Body | None) -> Quick | None:
    """The short way for a request that is sent in its captured version; None where there is none."""
    if version < 3 or body["acks"] == 0 or len(body["topicData"]) != 1 or answer is None:
        return None
    (topic,) = body["topicData"]
    if len(topic["partitionData"]) != 1 or not topic.get(NAME) or len(answer["responses"]) != 1:
        return None
    (one,) = topic["partitionData"]
    (answered,) = answer["responses"][0]["partitionResponses"]
    found = batches.produced(one["records"])
    at = data.find(one["records"]) if found else -1
    id_at = -1
    if version >= FIRST_BY_ID:
        id_at = data.find(base64.urlsafe_b64decode(topic["topicId"] + "=="))
        if id_at < 0:
            return None
    if at < 0 or answered["errorCode"] or sum(batch.size for batch in found) != len(one["records"]):
        return None
    spots = tuple((at + batch.at, batch, Producer(batch.producer_id, batch.producer_epoch)) for batch in found)
    count = sum(batch.last_offset_delta + 1 for batch in found)
    return Quick(topic[NAME], one["index"], spots, id_at, answered["baseOffset"], count)


def frame(quick: Quick, data: bytes, correlation: int, learned: Remap) -> bytearray | None:
    """The request with its length, as it is sent; None where something is not known yet."""
    out = bytearray(4)
    out += data
    _CORRELATION.pack_into(out, 0, len(data))
    _CORRELATION.pack_into(out, 8, correlation)
    if quick.id_at >= 0:
        topic_id = learned.topic_ids.get(quick.topic)
        if topic_id is None:
            return None
        out[4 + quick.id_at : 20 + quick.id_at] = base64.urlsafe_b64decode(topic_id + "==")
    for at, batch, producer in quick.spots:
        if producer.id < 0:
            continue
        given = learned.producers.get(producer)
        if given is None:
            return None
        sequence = learned.sequence(producer, given, quick.topic, quick.partition, batch)
        batches.set_producer(out, 4 + at, batch.size, given.id, given.epoch, sequence)
    return out


def success(data: bytes, version: int, partition: int) -> tuple[int, int] | None:
    """(base offset, log append time) of an answer (without its length) that says that all is well; None where it says
    anything else, or anything more."""
    at = 4
    if version >= FIRST_FLEXIBLE:
        # No tags; one topic; its name or id; one partition.
        if data[4:6] != b"\0\2" or len(data) < 7:
            return None
        at = 6 + (16 if version >= FIRST_BY_ID else data[6])
        if data[at : at + 1] != b"\2":
            return None
        at += 1
    else:
        if data[4:8] != b"\0\0\0\1":
            return None
        at = 10 + int.from_bytes(data[8:10], "big")
        if data[at : at + 4] != b"\0\0\0\1":
            return None
        at += 4
    if len(data) < at + 22:
        return None
    index, error, base = _PARTITION.unpack_from(data, at)
    (appended,) = _TIME.unpack_from(data, at + 14)
    if index != partition or error or base < 0:
        return None
    at += 22 + (8 if version >= 5 else 0)
    # No errors of records and no message, no tags, the throttle time, and that is all.
    if version >= FIRST_FLEXIBLE:
        rest = b"\1\0\0\0"
        end = len(data) == at + 9 and data[at : at + 4] == rest and data[-1] == 0
    elif version == 8:
        end = len(data) == at + 10 and data[at : at + 6] == b"\0\0\0\0\xff\xff"
    else:
        end = len(data) == at + 4
    return (base, appended) if end else None
