"""Produce requests the short way (`values.Quick`): bytes replaced in place, a plain success read without decoding.

In: a captured frame and what the target has in place of its values; the answer's frame. Out: the frame to send; where
its records were stored. None wherever the way of every other request (`engine`) has to be taken. Layouts: Kafka's
ProduceRequest and ProduceResponse, versions 3 to 13.
"""

from __future__ import annotations

import base64
import struct
from typing import Final

from replay.plan import batches
from replay.plan.values import PRODUCE_BY_ID, Quick
from replay.remap.remap import Remap

FIRST_FLEXIBLE: Final = 9
_CORRELATION: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ihq")  # index, error, base offset
_TIME: Final = struct.Struct(">q")


def frame(quick: Quick, data: bytes, correlation: int, remap: Remap) -> bytearray | None:
    """The request with its length, as it is sent; None where something is not known yet."""
    out = bytearray(4)
    out += data
    _CORRELATION.pack_into(out, 0, len(data))
    _CORRELATION.pack_into(out, 8, correlation)
    if quick.id_at >= 0:
        topic_id = remap.topics.id(quick.topic)
        if topic_id is None:
            return None
        out[4 + quick.id_at : 20 + quick.id_at] = base64.urlsafe_b64decode(topic_id + "==")
    for at, batch, producer in quick.spots:
        if producer.id < 0:
            continue
        given = remap.producers.given(producer)
        if given is None:
            return None
        sequence = remap.producers.sequence(producer, given, quick.topic, quick.partition, batch)
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
        at = 6 + (16 if version >= PRODUCE_BY_ID else data[6])
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
