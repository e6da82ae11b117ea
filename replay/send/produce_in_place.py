"""Sends Produce requests on the fast path: bytes replaced in place, a success read without decoding.

In: a captured frame and the target's values. Out: the frame to send; None if it has to be decoded like every other
request (`engine`). Answers are read by `produce_requests.success`.
"""

from __future__ import annotations

import base64
import struct
from typing import Final

from kwire.replay.plan import batches
from kwire.replay.plan.produce_requests import FastPath
from kwire.replay.plan.values import Producer
from kwire.replay.remap.remap import Remap

_CORRELATION: Final = struct.Struct(">i")


def frame(fast_path: FastPath, data: bytes, correlation: int, remap: Remap) -> bytearray | None:
    """The request with its length, as it is sent; None if something is not known yet."""
    out = bytearray(4)
    out += data
    _CORRELATION.pack_into(out, 0, len(data))
    _CORRELATION.pack_into(out, 8, correlation)
    if fast_path.id_at >= 0:
        topic_id = remap.topics.id(fast_path.topic)
        if topic_id is None:
            return None
        out[4 + fast_path.id_at : 20 + fast_path.id_at] = base64.urlsafe_b64decode(topic_id + "==")
    for spot in fast_path.spots(data) if fast_path.producers else ():
        if spot.producer_id < 0:
            continue
        producer = Producer(spot.producer_id, spot.producer_epoch)
        given = remap.producers.given(producer)
        if given is None:
            return None
        sequence = remap.producers.sequence(producer, given, fast_path.topic, fast_path.partition, spot)
        batches.set_producer(out, 4 + spot.at, spot.size, given.id, given.epoch, sequence)
    return out
