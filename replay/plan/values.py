"""Small values that the plan and what sends it have in common.

`Offers`: what a target offers; `Producer`: an id with its epoch; `Quick`: the short way for what makes up most of a
busy capture, a Produce request for one partition. Such a request is sent as captured, with a few bytes replaced in
place (`send.produce_in_place`). Whatever is not as plain as that takes the way of every other request: this changes how
fast a request is sent, never what is sent.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final, NamedTuple

from analyzer.protocol import errors, names
from analyzer.protocol.tree import Body
from replay.plan import batches
from replay.plan.parts import NAME

Offers = dict[int, tuple[int, int]]
"""The versions that a target offers, by API."""

NO_COORDINATOR: Final = (
    errors.COORDINATOR_LOAD_IN_PROGRESS, errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR,
)  # fmt: skip
"""Answers to a client that asked a coordinator too early, or another broker: it asks again."""

PRODUCE_BY_ID: Final = 13
"""The first version of Produce that names topics by id (KIP-516)."""


def offers_of(answer: Body) -> Offers:
    """The versions in an ApiVersions answer. Produce 0 to 2 are advertised by 4.x for an old client's sake, and their
    connection is closed (KAFKA-18659): such a broker lacks Fetch 0 to 3 too."""
    offers = {api["apiKey"]: (api["minVersion"], api["maxVersion"]) for api in answer["apiKeys"]}
    if names.PRODUCE in offers and offers.get(names.FETCH, (0, 0))[0] >= 4:
        offers[names.PRODUCE] = max(offers[names.PRODUCE][0], 3), offers[names.PRODUCE][1]
    return offers


class Producer(NamedTuple):
    """A producer id with its epoch. (A tuple, because it is looked up several times a request.)"""

    id: int
    epoch: int


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
    (partition,) = topic["partitionData"]
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
    spots = tuple((at + batch.at, batch, Producer(batch.producer_id, batch.producer_epoch)) for batch in inside)
    count = sum(batch.last_offset_delta + 1 for batch in inside)
    return Quick(topic[NAME], partition["index"], spots, id_at, answered["baseOffset"], count)
