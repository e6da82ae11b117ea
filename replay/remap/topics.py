"""Translates topics, brokers and leader epochs: names, ids, numbers and epochs on the target. Pure.

Rules: a topic has the captured name there, or the one that the user gave; ids come from the target's Metadata; leader
epochs are sent as unknown (-1), which every broker accepts, and a request about one gets the target's current epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME
from kwire.replay.remap.topology import Topology

_BY_NAME_OR_ID: Final = (api_keys.METADATA, api_keys.DELETE_TOPICS)
"""Requests with names or ids of topics; brokers refuse both at once."""

_ASKS_BY_ID: Final = 12
"""The first version of Metadata that takes ids; before, a topic without a name counts as missing."""


class Topics:
    """Topics on the target. `renamed`: those that have another name there; `nodes`: captured broker ids to the
    target's."""

    def __init__(self, renamed: Mapping[str, str], nodes: Mapping[int, int]) -> None:
        self.renamed = dict(renamed)
        self.nodes = dict(nodes)
        self._ids: dict[str, str] = {}
        self._leader_epochs: dict[tuple[str, int], int] = {}
        self._captured = {new: old for old, new in reversed(list(renamed.items()))}

    def rename(self, captured: str, there: str) -> None:
        """Give a topic another name on the target during the run."""
        self.renamed[captured] = there
        self._captured[there] = captured

    def name(self, captured: str) -> str:
        """The topic's name on the target."""
        return self.renamed.get(captured, captured)

    def captured(self, name: str) -> str:
        """The captured name of a target's topic."""
        return self._captured.get(name, name)

    def id(self, captured: str) -> str | None:
        """The topic's id on the target; None if it has none, or none is known."""
        return self._ids.get(self.name(captured))

    def learn_from(self, topology: Topology) -> None:
        """Take the target's topic ids and leader epochs from its Metadata."""
        self._ids.update(topology.topic_ids)
        self._leader_epochs.update(topology.leader_epochs)

    def address(self, api_key: int, body: Body) -> None:
        """Give each topic of a request its name and id on the target."""
        for where, topic in topics_of(api_key, body):
            name = topic.get(NAME)
            if name is None:
                continue
            there = self.name(name)
            if where.name and (topic.get(where.name) is not None or api_key != api_keys.METADATA):
                topic[where.name] = there
            if where.id and (api_key not in _BY_NAME_OR_ID or topic.get(where.id, ZERO_UUID) != ZERO_UUID):
                topic[where.id] = self._ids.get(there, topic.get(where.id, ZERO_UUID))
        if api_key == api_keys.DELETE_TOPICS:  # up to version 5 it lists names only, and no structs
            body["topicNames"] = [
                self.name(topic[NAME]) if topic.get(NAME) else topic.get("name") for topic in body["topics"]
            ]

    # --- as a family ---

    def write(self, step: Step, body: Body) -> None:
        match step.request.api_key:
            case api_keys.METADATA:
                body["allowAutoTopicCreation"] = False
                if step.version < _ASKS_BY_ID:
                    self._by_name(body)
            case api_keys.LIST_OFFSETS:
                for _, _, partition in _partitions(body):
                    partition["currentLeaderEpoch"] = -1
            case api_keys.OFFSET_FOR_LEADER_EPOCH:
                self._epoch_ends(body)
            case api_keys.DESCRIBE_CONFIGS | api_keys.ALTER_CONFIGS | api_keys.INCREMENTAL_ALTER_CONFIGS:
                self._resources(body)

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """Do nothing: `learn_from` takes what the topology has learned."""

    def again(self, step: Step, body: Body, rule: str, captured: Body | None, replayed: Body | None) -> None:
        """Do nothing: topics are addressed again with every rule."""

    def _by_name(self, body: Body) -> None:
        for topic in body["topics"] or ():
            if topic.get("name") is None and NAME in topic:
                topic["name"], topic["topicId"] = self.name(topic[NAME]), ZERO_UUID

    def _epoch_ends(self, body: Body) -> None:
        for topic, number, partition in _partitions(body):
            partition["currentLeaderEpoch"] = -1
            # The epoch is the question: the target's epoch of now has what the capture's had.
            now = self._leader_epochs.get((self.name(topic[NAME]), number))
            partition["leaderEpoch"] = now if now is not None else partition["leaderEpoch"]

    def _resources(self, body: Body) -> None:
        """Name topics and brokers of configurations as the target does."""
        for resource in body["resources"]:
            name = resource["resourceName"]
            if resource["resourceType"] == api_keys.TOPIC_RESOURCE:
                resource["resourceName"] = self.name(name)
            elif resource["resourceType"] in api_keys.BROKER_RESOURCES and name.isdigit():
                resource["resourceName"] = str(self.nodes.get(int(name), int(name)))


def _partitions(body: Body) -> Iterator[tuple[Body, int, Body]]:
    for topic in body["topics"]:
        for partition in topic["partitions"]:
            yield topic, partition.get("partition", partition.get("partitionIndex", -1)), partition
