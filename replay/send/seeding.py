"""Creates the captured topics on the target where they are missing, and checks whether they are empty.

In: the captured cluster, a `Target`. Out: what was created, and lines for the user. Rules: nothing that is there is
changed; a topic that the capture itself creates is left to it, if that is allowed; what is created has the settings
that captured requests left it with (groups too), if those requests are not sent themselves, and keeps what is written
to it, however old that is, unless the captured settings are wanted as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.common.listing import listed
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.captures.errors import KwireError
from kwire.replay.plan.cluster import Cluster, Topic
from kwire.replay.plan.config_changes import GROUP_RESOURCE, Settings
from kwire.replay.remap.topology import Topology
from kwire.replay.send.target import Target

_LONGEST: Final = str((1 << 63) - 1)
_SURVIVING: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
_UNCOMPACTED: Final = {"min.compaction.lag.ms": _LONGEST}
_REFUSING: Final = (
    "message.timestamp.difference.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "max.compaction.lag.ms",
)
"""Settings that would refuse old records, or that do not go with the others."""

_LEAST_IN_SYNC: Final = "min.insync.replicas"
_ALTERS: Final = frozenset((api_keys.ALTER_CONFIGS, api_keys.INCREMENTAL_ALTER_CONFIGS))

_CREATED: Final = (errors.NONE, errors.TOPIC_ALREADY_EXISTS)
"""Errors of CreateTopics after which the topic exists."""


_NAMED: Final = 5
"""Topics that an error names."""


class NotEmptyError(KwireError):
    """The target has records in topics that would be written to."""

    def __init__(self, topics: list[str]) -> None:
        text = f"the target's {', '.join(topics)} {'is' if len(topics) == 1 else 'are'} not empty"
        super().__init__(text, "--yes writes to them all the same")


class TooFewPartitionsError(KwireError):
    """Topics of the target have fewer partitions than captured."""

    def __init__(self, short: list[str]) -> None:
        super().__init__("; ".join(short), "--partial sends what is for the partitions that are there")


class MissingTopicsError(KwireError):
    """The target lacks topics that would be written to."""

    def __init__(self, topics: list[str]) -> None:
        super().__init__(
            f"the target has no topic {listed(topics[:_NAMED], len(topics))}, to which the capture writes",
            "--seed-topics makes what it lacks; --missing-topics-ok takes its errors as answers",
        )


async def not_empty(written: Iterable[str], target: Target, map_topic: Mapping[str, str]) -> list[str]:
    """List the captured topics that have records on the target, of those that records would be added to."""
    full = []
    for name in sorted(written):
        there = map_topic.get(name, name)
        if await target.ends([there], api_keys.START_OF_LOG) != await target.ends([there], api_keys.END_OF_LOG):
            full.append(there)
    return full


def too_few(used: Iterable[tuple[str, Topic]], topology: Topology) -> list[str]:
    """Lines for topics that have fewer partitions on the target than captured, of (name on the target, captured
    topic)."""
    there = topology.partitions
    return [
        f"{name} has {there[name]} partitions, the captured one {topic.partitions}"
        for name, topic in used
        if there.get(name, topic.partitions) < topic.partitions
    ]


def absent(
    used: Iterable[tuple[str, Topic]], topology: Topology, cluster: Cluster, allow: Collection[int]
) -> list[str]:
    """Lines for topics that the target lacks and the capture does not create."""
    there = topology.partitions
    lacks = [name for name, topic in used if name not in there and not cluster.makes(topic.name, allow)]
    return [f"the target has no topic {name}; --seed-topics makes it" for name in lacks]


def lacking(
    written: Iterable[str], topology: Topology, cluster: Cluster, map_topic: Mapping[str, str], allow: Collection[int]
) -> list[str]:
    """List the topics that records would be written to and the target lacks, by its names; not those that the capture
    lacked as well, or that captured requests create."""
    return [
        there
        for name in sorted(written)
        if name in cluster.topics and not cluster.makes(name, allow)
        if (there := map_topic.get(name, name)) not in topology.partitions
    ]


@dataclass(slots=True)
class Seeded:
    """The result of seeding. `notes`: lines for the user; `changed`: the settings in which new topics differ from the
    captured ones, by captured name."""

    notes: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)


def surviving(configs: Mapping[str, str | None]) -> Settings:
    """Settings with which a topic keeps what is written to it."""
    settings = {name: value for name, value in configs.items() if name not in _REFUSING}
    compacted = "compact" in (configs.get("cleanup.policy") or "")
    return {**settings, **_SURVIVING, **(_UNCOMPACTED if compacted else {})}


async def seed(
    cluster: Cluster, target: Target, map_topic: Mapping[str, str], allow: Collection[int], as_captured: bool = False
) -> Seeded:
    """Create the captured topics that the target lacks. `as_captured`: with the captured retention too."""
    done = Seeded()
    notes = done.notes
    alters = not _ALTERS.isdisjoint(allow)
    if not alters:
        notes += await _seed_groups(cluster, target)
    wanted = [
        topic
        for topic in cluster.topics.values()
        if not topic.internal
        and not topic.name.startswith("__")
        and map_topic.get(topic.name, topic.name) not in target.topology.partitions
        and not cluster.makes(topic.name, allow)
    ]
    if not wanted:
        return done
    replicas = len(target.topology.nodes)
    left = {topic.name: topic.configs if alters else cluster.altered.get(topic.name, topic.configs) for topic in wanted}
    chosen: dict[str, Settings] = {}
    for topic in wanted:
        settings = dict(left[topic.name]) if as_captured else surviving(left[topic.name])
        chosen[topic.name] = _acknowledgeable(settings, _replicas(topic, replicas))
    version = target.version(api_keys.CREATE_TOPICS, 4)
    plain: Settings = {}
    refused: list[str] = []
    otherwise = [dict.fromkeys(chosen, plain)] if as_captured else [dict.fromkeys(chosen, surviving({})), {}]
    for configs in (chosen, *otherwise):
        body = {
            "topics": [_creation(topic, map_topic, replicas, configs.get(topic.name, plain)) for topic in wanted],
            "timeoutMs": 30_000,
            "validateOnly": False,
        }
        answer = await target.ask(api_keys.CREATE_TOPICS, version, body, 60.0)
        failed = {topic["name"]: topic["errorCode"] for topic in answer["topics"] if topic["errorCode"] not in _CREATED}
        for topic in wanted:
            topic_settings = configs.get(topic.name, plain).items()
            changed = {
                name
                for name, _ in (topic_settings ^ topic.configs.items()) | (topic_settings ^ left[topic.name].items())
            }
            if changed and map_topic.get(topic.name, topic.name) not in failed:
                done.changed[topic.name] = sorted(changed)
        wanted = [topic for topic in wanted if map_topic.get(topic.name, topic.name) in failed]
        refused = refused or list(failed)
        if not wanted:
            break
    notes += [
        f"{name} could not be created: {errors.label(failed[name])}"
        if name in failed
        else f"{name} was refused with its captured configuration; created without"
        for name in refused
    ]
    await _settle(cluster, target, map_topic)
    return done


def _replicas(topic: Topic, brokers: int) -> int:
    return max(1, min(topic.replicas, brokers))


def _acknowledgeable(configs: Settings, replicas: int) -> Settings:
    """Settings of a topic with this many replicas: with fewer than it requires it would accept no record (acks=all)."""
    minimum = configs.get(_LEAST_IN_SYNC) or ""
    return {**configs, _LEAST_IN_SYNC: str(replicas)} if minimum.isdigit() and int(minimum) > replicas else configs


async def _seed_groups(cluster: Cluster, target: Target) -> list[str]:
    """Give groups the settings that captured requests gave them; lines for the user."""
    wanted = {name: configs for name, configs in sorted(cluster.group_configs.items()) if configs}
    if not wanted:
        return []
    if api_keys.INCREMENTAL_ALTER_CONFIGS not in target.offers:
        return ["the target cannot be told settings of groups, which the capture changes"]
    resources = [
        {
            "resourceType": GROUP_RESOURCE,
            "resourceName": group,
            "configs": [{"name": name, "configOperation": 0, "value": value} for name, value in configs.items()],
        }
        for group, configs in wanted.items()
    ]
    body = {"resources": resources, "validateOnly": False}
    version = target.version(api_keys.INCREMENTAL_ALTER_CONFIGS, 1)
    answer = await target.ask(api_keys.INCREMENTAL_ALTER_CONFIGS, version, body, 30.0)
    return [
        f"group {response['resourceName']}: its captured settings were refused: {errors.label(response['errorCode'])}"
        for response in answer["responses"]
        if response["errorCode"]
    ]


def _creation(topic: Topic, map_topic: Mapping[str, str], replicas: int, configs: Mapping[str, str | None]) -> Body:
    return {
        "name": map_topic.get(topic.name, topic.name),
        "numPartitions": topic.partitions,
        "replicationFactor": _replicas(topic, replicas),
        "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in configs.items()],
    }


async def _settle(cluster: Cluster, target: Target, map_topic: Mapping[str, str]) -> None:
    """Wait, with a bound, until every partition has a leader that knows it: right after CreateTopics brokers answer
    UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER for a while."""
    wanted = [map_topic.get(name, name) for name, topic in cluster.topics.items() if not topic.internal]
    for _ in range(100):
        if await target.learn(wanted) >= set(wanted) and None not in await target.ends(wanted, api_keys.END_OF_LOG):
            return
        await asyncio.sleep(0.1)
