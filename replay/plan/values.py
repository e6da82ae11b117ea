"""Small values that planning and sending share: the versions that a target offers, a producer id with its epoch."""

from __future__ import annotations

from typing import Final, NamedTuple

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body

Offers = dict[int, tuple[int, int]]
"""The versions that a target offers, by API."""

NO_COORDINATOR: Final = (
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
)
"""Errors for a client that asked a coordinator too early, or the wrong broker: it asks again."""


def offers_of(answer: Body) -> Offers:
    """The versions in an ApiVersions answer. Kafka 4.x advertises Produce 0 to 2 for the sake of an old client, and
    closes their connections (KAFKA-18659): such a broker lacks Fetch 0 to 3 too."""
    offers = {api["apiKey"]: (api["minVersion"], api["maxVersion"]) for api in answer["apiKeys"]}
    if api_keys.PRODUCE in offers and offers.get(api_keys.FETCH, (0, 0))[0] >= 4:
        offers[api_keys.PRODUCE] = max(offers[api_keys.PRODUCE][0], 3), offers[api_keys.PRODUCE][1]
    return offers


class Producer(NamedTuple):
    """A producer id with its epoch. (A tuple, because it is looked up several times a request.)"""

    id: int
    epoch: int
