"""The target's brokers, and which of them serves what. Learned from its Metadata and FindCoordinator answers.

Pure: others ask, this remembers. A request for several leaders is split here, and its answers are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer.schema import ZERO_UUID
from replay import apis
from replay.apis import NAME

Body = dict[str, Any]
Partition = tuple[str, int]

GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types of FindCoordinator."""


@dataclass(slots=True)
class Topology:
    """nodes: address by node id; leaders, partitions, ids and leader epochs of topics by their names on the target;
    coordinators by (key type, key). `absent`: topics that were waited for in vain, until they appear."""

    nodes: dict[int, tuple[str, int]] = field(default_factory=dict)
    leaders: dict[Partition, int] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    leader_epochs: dict[Partition, int] = field(default_factory=dict)
    coordinators: dict[tuple[int, str], int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    def learn_metadata(self, answer: Body) -> None:
        """Take what a Metadata answer says; a partition without a leader has none here either."""
        self.nodes = {one["nodeId"]: (one["host"], one["port"]) for one in answer["brokers"]} or self.nodes
        for topic in answer["topics"]:
            name = topic["name"]
            if name is None or topic["errorCode"]:
                continue
            self.absent.discard(name)
            self.partitions[name] = len(topic["partitions"])
            if topic.get("topicId", ZERO_UUID) != ZERO_UUID:
                self.topic_ids[name] = topic["topicId"]
            for one in topic["partitions"]:
                where = name, one["partitionIndex"]
                if one["leaderId"] < 0:
                    self.leaders.pop(where, None)
                else:
                    self.leaders[where] = one["leaderId"]
                if one.get("leaderEpoch", -1) >= 0:
                    self.leader_epochs[where] = one["leaderEpoch"]

    def learn_coordinator(self, key_type: int, key: str, node: int, host: str, port: int) -> None:
        """A coordinator was named."""
        self.coordinators[key_type, key] = node
        self.nodes.setdefault(node, (host, port))

    def forget_node(self, node: int) -> None:
        """A broker cannot be reached: what it led has to be asked for again."""
        self.leaders = {where: leader for where, leader in self.leaders.items() if leader != node}
        self.coordinators = {key: one for key, one in self.coordinators.items() if one != node}

    def home(self, captured: Sequence[tuple[str, int]], broker: tuple[str, int]) -> int:
        """The node that stands for a captured broker: in order of their ids and addresses, again from the first."""
        nodes = sorted(self.nodes)
        return nodes[captured.index(broker) % len(nodes)]


def named(api_key: int, body: Body) -> list[Partition]:
    """The partitions of a request by their names on the target, each once."""
    return list(dict.fromkeys((topic, partition) for topic, partition, _ in apis.partitions(api_key, body)))


def named_broker(body: Body) -> int | None:
    """The broker whose configuration a request is about: only it answers; None where it is about none, or several."""
    found = {
        int(one["resourceName"])
        for one in body["resources"]
        if one["resourceType"] in apis.BROKER_RESOURCES and one["resourceName"].isdigit()
    }
    return found.pop() if len(found) == 1 else None


def subset(api_key: int, body: Body, wanted: set[Partition]) -> Body:
    """The request with these captured (topic, partition) only; topics that have none left are left out."""
    out = dict(body)
    for where in apis.lists(api_key):
        if len(where.path) != 1 or where.path[0] not in body or not where.partitions:
            continue
        kept = []
        for topic in body[where.path[0]] or ():
            some = [
                one
                for one in topic.get(where.partitions) or ()
                if (topic.get(NAME), one[where.number] if where.number else one) in wanted
            ]
            if some:
                kept.append({**topic, where.partitions: some})
        out[where.path[0]] = kept
    return out


def without(api_key: int, answer: Body, failed: set[Partition]) -> Body:
    """The answer without these partitions, by their names on the target; topics that have none left are left out."""
    where = apis.RESPONSE_LISTS[api_key]
    good = []
    for topic in apis.structs(answer, where.path):
        name = topic.get(NAME) or topic.get(where.name) or ""
        some = [one for one in topic[where.partitions] if (name, one[where.number]) not in failed]
        if some:
            good.append({**topic, where.partitions: some})
    return {**answer, where.path[0]: good}


def merged(api_key: int, answers: Iterable[Body]) -> Body:
    """One answer of several to parts of a request: arrays are joined (a topic's partitions too), the longest throttle
    and the first error stay."""
    out: Body | None = None
    for answer in answers:
        if out is None:
            out = dict(answer)
            continue
        for name, value in answer.items():
            if isinstance(value, list):
                out[name] = _joined(api_key, name, out.get(name) or [], value)
            elif name == "throttleTimeMs":
                out[name] = max(out[name], value)
            elif name == "errorCode" and not out[name]:
                out[name] = value
    assert out is not None
    return out


def _joined(api_key: int, name: str, first: list[Any], second: list[Any]) -> list[Any]:
    where = apis.RESPONSE_LISTS.get(api_key)
    if where is None or where.path != (name,):
        return first + second
    by_topic: dict[Any, Body] = {}
    for topic in first + second:
        key = topic.get(where.name) or topic.get(where.id)
        if key in by_topic:
            by_topic[key][where.partitions] = by_topic[key][where.partitions] + topic[where.partitions]
        else:
            by_topic[key] = dict(topic)
    return list(by_topic.values())
