"""The captured topics on the target: whether they are empty, and made where they are missing.

In: what the capture says of its cluster, a `Target`. Out: what was made, and what the user should know. Rules: nothing
that is there is changed; a topic that the capture itself creates is left to it, where that is allowed; what is made
keeps what is written to it, however old that is, unless the captured settings are wanted as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from analyzer.protocol import errors, names
from analyzer.protocol.tree import Body
from replay.plan.cluster import Cluster, Topic
from replay.send.target import Target

_LONGEST: Final = str((1 << 63) - 1)
_SURVIVING: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
_UNCOMPACTED: Final = {"min.compaction.lag.ms": _LONGEST}
_REFUSING: Final = (
    "message.timestamp.difference.max.ms", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
    "max.compaction.lag.ms",
)  # fmt: skip
"""Settings that would refuse old records, or that do not go with the others."""

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


@dataclass(slots=True)
class Seeded:
    """`notes`: what the user should know; `changed`: the settings in which topics that were made differ from the
    captured ones, by captured name."""

    notes: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)


def surviving(configs: Mapping[str, str | None]) -> dict[str, str | None]:
    """Settings with which a topic keeps what is written to it."""
    kept = {name: value for name, value in configs.items() if name not in _REFUSING}
    compacted = "compact" in (configs.get("cleanup.policy") or "")
    return {**kept, **_SURVIVING, **(_UNCOMPACTED if compacted else {})}


async def seed(
    cluster: Cluster, target: Target, map_topic: Mapping[str, str], allow: Collection[int], as_captured: bool = False
) -> Seeded:  # fmt: skip
    """Create the captured topics that the target lacks. `as_captured`: with the captured retention too."""
    done = Seeded()
    notes = done.notes
    wanted = [
        topic
        for topic in cluster.topics.values()
        if not topic.internal
        and not topic.name.startswith("__")
        and map_topic.get(topic.name, topic.name) not in target.topology.partitions
        and not (topic.created and names.CREATE_TOPICS in allow)
    ]
    if not wanted:
        return done
    chosen = {topic.name: dict(topic.configs) if as_captured else surviving(topic.configs) for topic in wanted}
    version = target.version(names.CREATE_TOPICS, 4)
    replicas = len(target.topology.nodes)
    plain: dict[str, str | None] = {}
    otherwise = [dict.fromkeys(chosen, plain)] if as_captured else [dict.fromkeys(chosen, surviving({})), {}]
    for attempt, configs in enumerate((chosen, *otherwise)):
        body = {
            "topics": [_creation(topic, map_topic, replicas, configs.get(topic.name, plain)) for topic in wanted],
            "timeoutMs": 30_000,
            "validateOnly": False,
        }
        answer = await target.ask(names.CREATE_TOPICS, version, body, 60.0)
        failed = {topic["name"]: topic["errorCode"] for topic in answer["topics"] if topic["errorCode"] not in _MADE}
        for topic in wanted:
            changed = {name for name, _ in configs.get(topic.name, plain).items() ^ topic.configs.items()}
            if changed and map_topic.get(topic.name, topic.name) not in failed:
                done.changed[topic.name] = sorted(changed)
        wanted = [topic for topic in wanted if map_topic.get(topic.name, topic.name) in failed]
        if not wanted:
            break
        if attempt == len(otherwise):
            notes += [f"{name} could not be created: error {code}" for name, code in failed.items()]
        elif not attempt:
            notes += [f"{name} was refused with its captured configuration; created without" for name in failed]
    await _settle(cluster, target, map_topic)
    return done


def _creation(
    topic: Topic, map_topic: Mapping[str, str], replicas: int, configs: Mapping[str, str | None]
) -> Body:  # fmt: skip
    return {
        "name": map_topic.get(topic.name, topic.name),
        "numPartitions": topic.partitions,
        "replicationFactor": max(1, min(topic.replicas, replicas)),
        "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in configs.items()],
    }


async def _settle(cluster: Cluster, target: Target, map_topic: Mapping[str, str]) -> None:
    """Wait, with a bound, until every partition has a leader that knows it: right after CreateTopics brokers answer
    UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER for a while."""
    wanted = [map_topic.get(name, name) for name, topic in cluster.topics.items() if not topic.internal]
    for _ in range(100):
        if await target.learn(wanted) >= set(wanted) and None not in await target.ends(wanted, names.END_OF_LOG):
            return
        await asyncio.sleep(0.1)
