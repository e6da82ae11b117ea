"""The target's brokers, and which of them serves what; learned from Metadata and FindCoordinator answers.

Pure: others ask, this remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.tree import Body

Partition = tuple[str, int]


@dataclass(slots=True)
class Topology:
    """The target's brokers and topics.

    - `nodes`: address by node id
    - leaders, partitions, ids and leader epochs of topics by their names on the target; coordinators by (key type,
      key)
    - `absent`: topics that were waited for in vain, until they appear
    - `created`: topics that the target said it created, which each of its brokers knows a moment later
    - `cluster_id`: None if the target does not say
    """

    nodes: dict[int, tuple[str, int]] = field(default_factory=dict)
    leaders: dict[Partition, int] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    leader_epochs: dict[Partition, int] = field(default_factory=dict)
    coordinators: dict[tuple[int, str], int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    created: set[str] = field(default_factory=set)
    cluster_id: str | None = None

    def learn_metadata(self, answer: Body) -> None:
        """Take what a Metadata answer says; a partition without a leader has none here either."""
        brokers = {broker["nodeId"]: (broker["host"], broker["port"]) for broker in answer["brokers"]}
        self.nodes = brokers or self.nodes
        self.cluster_id = answer.get("clusterId") or self.cluster_id
        for topic in answer["topics"]:
            name = topic["name"]
            if name is None or topic["errorCode"]:
                continue
            self.absent.discard(name)
            self.partitions[name] = len(topic["partitions"])
            if topic.get("topicId", ZERO_UUID) != ZERO_UUID:
                self.topic_ids[name] = topic["topicId"]
            for partition in topic["partitions"]:
                where = name, partition["partitionIndex"]
                if partition["leaderId"] < 0:
                    self.leaders.pop(where, None)
                else:
                    self.leaders[where] = partition["leaderId"]
                if partition.get("leaderEpoch", -1) >= 0 and not partition["errorCode"]:
                    self.leader_epochs[where] = partition["leaderEpoch"]

    def learn_coordinator(self, key_type: int, key: str, node: int, host: str, port: int) -> None:
        """Take a coordinator from an answer."""
        self.coordinators[key_type, key] = node
        self.nodes.setdefault(node, (host, port))

    def forget_node(self, node: int) -> None:
        """Forget a broker that cannot be reached: the leaders of its partitions have to be asked for again."""
        self.leaders = {where: leader for where, leader in self.leaders.items() if leader != node}
        self.coordinators = {key: coordinator for key, coordinator in self.coordinators.items() if coordinator != node}

    def names_by_id(self) -> dict[str, str]:
        """The target's topics by id."""
        return {topic_id: name for name, topic_id in self.topic_ids.items()}

    def home(self, captured: Sequence[tuple[str, int]], broker: tuple[str, int]) -> int:
        """The node that stands for a captured broker: in order of their ids and addresses, again from the first."""
        nodes = sorted(self.nodes)
        return nodes[captured.index(broker) % len(nodes)]
