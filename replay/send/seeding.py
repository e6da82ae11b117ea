"""The captured topics on the target: whether they are empty, and made where they are missing.

In: what the capture says of its cluster, a `Target`. Out: what the user should know. Rule: nothing that is there is
changed; a topic that the capture itself creates is left to it, where that is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from analyzer.protocol import errors, names
from analyzer.protocol.tree import Body
from replay.plan.cluster import Cluster, Topic
from replay.send.target import Target

_MADE: Final = (errors.NONE, errors.TOPIC_ALREADY_EXISTS)
"""What CreateTopics answers where the topic is there afterwards."""


async def not_empty(cluster: Cluster, target: Target, map_topic: Mapping[str, str]) -> list[str]:
    """The target's topics that captured records would be added to, and that have others."""
    full = []
    for name in sorted(cluster.produced):
        there = map_topic.get(name, name)
        if await target.ends([there], names.START_OF_LOG) != await target.ends([there], names.END_OF_LOG):
            full.append(there)
    return full


async def seed(
    cluster: Cluster, target: Target, map_topic: Mapping[str, str], allow: Collection[int]
) -> list[str]:  # fmt: skip
    """Create the captured topics that the target lacks; returns what the user should know."""
    notes: list[str] = []
    wanted = [
        topic
        for topic in cluster.topics.values()
        if not topic.internal
        and not topic.name.startswith("__")
        and map_topic.get(topic.name, topic.name) not in target.topology.partitions
        and not (topic.created and names.CREATE_TOPICS in allow)
    ]
    if not wanted:
        return notes
    version = target.version(names.CREATE_TOPICS, 4)
    replicas = len(target.topology.nodes)
    for with_configs in (True, False):
        body = {
            "topics": [_creation(topic, map_topic, replicas, with_configs) for topic in wanted],
            "timeoutMs": 30_000,
            "validateOnly": False,
        }
        answer = await target.ask(names.CREATE_TOPICS, version, body, 60.0)
        failed = {topic["name"]: topic["errorCode"] for topic in answer["topics"] if topic["errorCode"] not in _MADE}
        wanted = [topic for topic in wanted if map_topic.get(topic.name, topic.name) in failed]
        if not wanted:
            break
        if not with_configs:
            notes += [f"{name} could not be created: error {code}" for name, code in failed.items()]
        else:
            notes += [f"{name} was refused with its captured configuration; created without" for name in failed]
    await _settle(cluster, target, map_topic)
    return notes


def _creation(topic: Topic, map_topic: Mapping[str, str], replicas: int, with_configs: bool) -> Body:
    return {
        "name": map_topic.get(topic.name, topic.name),
        "numPartitions": topic.partitions,
        "replicationFactor": max(1, min(topic.replicas, replicas)),
        "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()] if with_configs else [],
    }


async def _settle(cluster: Cluster, target: Target, map_topic: Mapping[str, str]) -> None:
    """Wait, with a bound, until every partition has a leader that knows it: right after CreateTopics brokers answer
    UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER for a while."""
    wanted = [map_topic.get(name, name) for name, topic in cluster.topics.items() if not topic.internal]
    for _ in range(100):
        if await target.learn(wanted) >= set(wanted) and None not in await target.ends(wanted, names.END_OF_LOG):
            return
        await asyncio.sleep(0.1)
