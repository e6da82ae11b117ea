"""Finds connections that were captured at two points, in hand-made sessions.

Proves: replay/plan/duplicate_points.py
"""

from __future__ import annotations

import dataclasses

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.duplicate_points import duplicate_points
from kwire.replay.plan.sessions import Session
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import Captured

PRODUCED = produced(batch())


FIRST = "10.0.0.1:5000-10.0.0.9:9092#1"


def session(capture: str, *bodies: tuple[float, int, int, Body], connection: str = FIRST) -> Session:
    conversation = Captured(connection)
    for at, key, version, body in bodies:
        conversation.add(at, key, version, body, produced_answer(0) if key == api_keys.PRODUCE else None)
    session = conversation.session()
    return dataclasses.replace(session, capture=capture)


def fetch(replica: int) -> Body:
    return {
        "replicaId": replica,
        "maxWaitMs": 500,
        "minBytes": 1,
        "maxBytes": 1,
        "isolationLevel": 0,
        "sessionId": 0,
        "sessionEpoch": -1,
        "topics": [],
        "forgottenTopicsData": [],
        "rackId": "",
    }


def test_the_same_request_at_two_points_though_their_clocks_differ() -> None:
    client = session("client.pcap", (0.0, api_keys.PRODUCE, 9, PRODUCED))
    broker = session("broker.pcap", (2.5, api_keys.PRODUCE, 9, PRODUCED), connection="10.0.0.1:5000-10.0.0.9:9092#3")
    assert duplicate_points([client, broker]) == ("client.pcap", "broker.pcap", 1)
    assert duplicate_points([client, client]) is None  # one point
    other = session("broker.pcap", (2.5, api_keys.PRODUCE, 9, PRODUCED), connection="10.0.0.2:5000-10.0.0.9:9092#1")
    assert duplicate_points([client, other]) is None


def test_a_connection_that_goes_on_in_the_next_file_is_there_once() -> None:
    first = session("0.pcap", (0.0, api_keys.PRODUCE, 9, PRODUCED))
    second = session("1.pcap", (1.0, api_keys.METADATA, 9, {"topics": None}), (1.1, api_keys.PRODUCE, 9, PRODUCED))
    assert duplicate_points([first, second]) is None  # its second request has another correlation id


def test_addresses_that_are_used_again_later_are_another_connection() -> None:
    first, later = (session(str(at), (at, api_keys.PRODUCE, 9, PRODUCED)) for at in (0.0, 300.0))
    assert duplicate_points([first, later]) is None


def test_what_brokers_say_to_each_other_is_in_both_captures() -> None:
    for replica, expected in ((2, None), (-1, ("a", "b", 1))):
        points = [session(name, (0.0, api_keys.FETCH, 11, fetch(replica))) for name in "ab"]
        assert duplicate_points(points) == expected
