"""Small values that the plan and what sends it have in common: what a target offers, a producer id with its epoch."""

from __future__ import annotations

from typing import Final, NamedTuple

from analyzer.protocol import api_keys, errors
from analyzer.protocol.tree import Body

Offers = dict[int, tuple[int, int]]
"""The versions that a target offers, by API."""

NO_COORDINATOR: Final = (
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
)
"""Answers to a client that asked a coordinator too early, or another broker: it asks again."""


def offers_of(answer: Body) -> Offers:
    """The versions in an ApiVersions answer. Produce 0 to 2 are advertised by 4.x for an old client's sake, and their
    connection is closed (KAFKA-18659): such a broker lacks Fetch 0 to 3 too."""
    offers = {api["apiKey"]: (api["minVersion"], api["maxVersion"]) for api in answer["apiKeys"]}
    if api_keys.PRODUCE in offers and offers.get(api_keys.FETCH, (0, 0))[0] >= 4:
        offers[api_keys.PRODUCE] = max(offers[api_keys.PRODUCE][0], 3), offers[api_keys.PRODUCE][1]
    return offers


class Producer(NamedTuple):
    """A producer id with its epoch. (A tuple, because it is looked up several times a request.)"""

    id: int
    epoch: int
