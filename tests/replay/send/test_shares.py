"""Members of share groups (KIP-932) in conversations: their sessions, and when they fetch. See `test_engine.py` for how
these tests read.

Proves: replay/remap/share_sessions.py, replay/send/dependencies.py
"""

from __future__ import annotations

from analyzer.protocol import names
from analyzer.protocol.tree import Body
from tests.replay.conversation import Captured, Target, replayed

TOPIC_ID = "zizHtibnSdSFmiPSHtiLWA"
DONE: Body = {"errorCode": 0, "errorMessage": None, "responses": [], "nodeEndpoints": []}


def test_a_member_fetches_once_it_has_been_assigned_what_it_fetches() -> None:
    """The broker assigns partitions whose state the share coordinator has made; before that who fetches them gets an
    error. What other members do goes on meanwhile."""
    beats, fetches, others = (Captured(f"10.0.0.1:500{number}-10.0.0.9:9092#1") for number in range(3))
    topics = [{"name": "orders", "topicId": TOPIC_ID, "errorCode": 0, "partitions": []}]
    beats.said(0.0, names.METADATA, 12, {"topics": None}, {"brokers": [], "topics": topics})
    beats.said(0.1, names.SHARE_GROUP_HEARTBEAT, 1, _beat("m", 0), _beaten("m", 1))
    beats.said(0.2, names.SHARE_GROUP_HEARTBEAT, 1, _beat("m", 1), _beaten("m", 2, [0]))
    fetches.said(0.3, names.SHARE_FETCH, 1, _fetch("m", 0, 0), DONE)
    others.said(0.3, names.SHARE_GROUP_HEARTBEAT, 1, _beat("n", 0), _beaten("n", 3))
    made = [_beaten("m", 7)] * 4 + [_beaten("m", 8, [0])]

    def beaten(asked: Body) -> Body:
        return made.pop(0) if asked["memberId"] == "m" else _beaten("n", 3)

    target = Target().on(names.SHARE_GROUP_HEARTBEAT, beaten).on(names.SHARE_FETCH, DONE)
    target.on(names.METADATA, {"brokers": [{"nodeId": 1, "host": "target", "port": 9092}], "topics": topics})

    run = replayed([beats, fetches, others], target, topics={"orders": 1})

    assert made == []
    said = [(one.api_key, one.body["memberId"]) for one in target.said(names.SHARE_GROUP_HEARTBEAT, names.SHARE_FETCH)]
    assert said[-1] == (names.SHARE_FETCH, "m")
    assert said[-2] == (names.SHARE_GROUP_HEARTBEAT, "m")
    assert (names.SHARE_GROUP_HEARTBEAT, "n") in said[:-2]
    assert run.engine.notes["rebalance_awaited"] == 3


def _beat(member: str, epoch: int) -> Body:
    return {"groupId": "g", "memberId": member, "memberEpoch": epoch, "subscribedTopicNames": ["orders"]}


def _beaten(member: str, epoch: int, partitions: list[int] | None = None) -> Body:
    given = None
    if partitions is not None:
        given = {"topicPartitions": [{"topicId": TOPIC_ID, "partitions": partitions}]}
    return {"errorCode": 0, "memberId": member, "memberEpoch": epoch, "heartbeatIntervalMs": 1, "assignment": given}


def _fetch(member: str, epoch: int, *partitions: int) -> Body:
    listed = [{"partitionIndex": one, "acknowledgementBatches": []} for one in partitions]
    return {"groupId": "g", "memberId": member, "shareSessionEpoch": epoch, "maxWaitMs": 1, "minBytes": 1,
            "maxBytes": 1, "maxRecords": 1, "batchSize": 1, "forgottenTopicsData": [],
            "topics": [{"topicId": TOPIC_ID, "partitions": listed}] if listed else []}  # fmt: skip
