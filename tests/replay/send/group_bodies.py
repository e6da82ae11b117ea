"""Bodies of requests and answers of groups, classic and KIP-848, for conversations with the engine."""

from __future__ import annotations

from typing import Any

from kwire.analyzer.protocol.tree import Body

TOPIC = "zizHtibnSdSFmiPSHtiLWA"
"""The id of the topic `orders`."""


def join(member: str, protocols: list[Body] | None = None, rebalance_ms: int = 60_000) -> Body:
    """JoinGroup."""
    return {
        "groupId": "g",
        "memberId": member,
        "sessionTimeoutMs": 6000,
        "rebalanceTimeoutMs": rebalance_ms,
        "protocolType": "consumer",
        "protocols": protocols or [{"name": "range", "metadata": b""}],
    }


def joined(member: str, generation: int, protocol: str = "range", leader: str | None = None, error: int = 0) -> Body:
    """The answer to JoinGroup; the member leads by default, because the first to join does."""
    return {
        "errorCode": error,
        "generationId": generation,
        "protocolName": protocol,
        "leader": member if leader is None else leader,
        "memberId": member,
        "members": [],
    }


def synced(error: int = 0) -> Body:
    """The answer to SyncGroup."""
    return {"errorCode": error, "assignment": b""}


def beat(member: str, generation: int) -> Body:
    """Heartbeat; also what SyncGroup has besides assignments."""
    return {"groupId": "g", "memberId": member, "generationId": generation}


def entry(member: str, **others: Any) -> Body:
    """ConsumerGroupHeartbeat of a member that joins."""
    subscription = {"rebalanceTimeoutMs": 300_000, "subscribedTopicNames": ["orders"]}
    return {"groupId": "g", "memberId": member, "memberEpoch": 0, "topicPartitions": [], **subscription, **others}


def epoch_beat(member: str, epoch: int) -> Body:
    """ConsumerGroupHeartbeat of a member that says nothing new."""
    return {"groupId": "g", "memberId": member, "memberEpoch": epoch}


def assigned(member: str, epoch: int, partitions: list[int] | None = None) -> Body:
    """The answer to ConsumerGroupHeartbeat; `partitions`: of `TOPIC`, None if the assignment stays."""
    assignment = None
    if partitions is not None:
        assignment = {"topicPartitions": [{"topicId": TOPIC, "partitions": partitions}] if partitions else []}
    return {"errorCode": 0, "memberId": member, "memberEpoch": epoch, "assignment": assignment}


def commit(member: str, generation: int) -> Body:
    """OffsetCommit."""
    partition = {"partitionIndex": 0, "committedOffset": 5, "committedLeaderEpoch": -1, "committedMetadata": None}
    return {
        "groupId": "g",
        "memberId": member,
        "generationIdOrMemberEpoch": generation,
        "topics": [{"name": "orders", "partitions": [partition]}],
    }


def committed(error: int = 0) -> Body:
    """The answer to OffsetCommit."""
    return {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "errorCode": error}]}]}
