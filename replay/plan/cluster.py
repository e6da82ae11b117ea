"""Learns from a capture about its cluster: topics with their ids and settings, nodes, groups. Pure.

In: both bodies of each request, in any order. Out: a `Cluster`. Rules: only answers count, and requests that were
answered without an error; a topic id that no message names is named by records that were both produced (by name) and
fetched (by id), then by other sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.topic_lists import RESPONSE_LISTS, structs, topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis, batches
from kwire.replay.plan.config_changes import ConfigRequest, Settings, changed
from kwire.replay.plan.early_members import Early
from kwire.replay.plan.sessions import Decoded, decoded

if TYPE_CHECKING:
    from kwire.analyzer.analysis.traffic_summary import TopicActivity


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the capture: partitions (the most that were seen), replicas, and its configuration as far as
    CreateTopics and requests that alter it say it."""

    name: str
    partitions: int
    replicas: int
    configs: dict[str, str | None]
    internal: bool


@dataclass(slots=True)
class Cluster:
    """The captured cluster.

    - `early`: members that had joined before the capture began, by group; `members`: those, and members that joined
      while it ran
    - `assignments`: what leaders handed out, by group and generation
    - `altered`: settings of topics that requests changed, as they were at the end; `group_configs`: of groups
    - `ids`, `brokers`: of the captured cluster
    - `created`, `deleted`: when requests first created and first deleted each topic, in nanoseconds
    """

    topic_names: dict[str, str] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    assignments: dict[tuple[str, int], list[Body]] = field(default_factory=dict)
    produced: set[str] = field(default_factory=set)
    members: set[tuple[str, str]] = field(default_factory=set)
    early: dict[str, tuple[Early, ...]] = field(default_factory=dict)
    altered: dict[str, Settings] = field(default_factory=dict)
    group_configs: dict[str, Settings] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    brokers: set[tuple[str, int]] = field(default_factory=set)
    created: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)

    def makes(self, name: str, allow: Collection[int]) -> bool:
        """Whether captured requests of allowed APIs create this topic. Not if it was there before, or if the deletion
        before it is created again is not sent."""
        created, deleted = self.created.get(name), self.deleted.get(name)
        if created is None or api_keys.CREATE_TOPICS not in allow:
            return False
        return deleted is None or (created < deleted and api_keys.DELETE_TOPICS in allow)

    # --- what is noted ---

    def note_id(self, topic: Body) -> None:
        """Learn from a struct that has a topic's name and perhaps its id."""
        if topic.get("topicId", ZERO_UUID) != ZERO_UUID:
            self.topic_names[topic["topicId"]] = topic["name"]

    def note(
        self,
        name: str,
        partitions: int,
        replicas: int = 1,
        configs: dict[str, str | None] | None = None,
        internal: bool = False,
    ) -> None:
        """Learn of a topic with at least this many partitions and replicas. `configs`: it was created with them."""
        old = self.topics.get(name)
        self.topics[name] = Topic(
            name,
            max(partitions, old.partitions if old else 0),
            max(replicas, old.replicas if old else 1),
            configs if configs is not None else (old.configs if old else {}),
            internal or (old is not None and old.internal),
        )


class Learning:
    """Learns from both bodies of each request (`take`), in any order; `cluster` is what is known so far. Members that
    had joined before the capture began are not learned here (`early_members`: that depends on the order)."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._settings: list[ConfigRequest] = []
        self._ids = _Ids()
        self._fast_paths: set[tuple[str, str, int]] = set()

    def take(self, message: Decoded) -> None:
        """Learn from both bodies of a request."""
        if message.fast_path is not None:
            self._fast_paths.add((message.fast_path.topic, message.fast_path.topic_id, message.fast_path.partition))
            return
        if message.body is None:
            return
        body, key, answer = message.body, message.request.api_key, message.answer
        _learn_request(self.cluster, key, body, answer)
        self._ids.use(key, body)
        if answer is None:
            return
        _learn_answer(self.cluster, key, body, answer)
        _learn_life(self.cluster, key, body, answer, message.request.sent_ns)
        if key == api_keys.FETCH:
            for fetched in _fetched_by_id(answer, self.cluster.topic_names):
                self._ids.fetch(fetched)
        elif key in _SETTING:
            self._settings.append(ConfigRequest(message.request.sent_ns, key, body, answer))

    def touch(self, some: TopicActivity) -> None:
        """Learn what many requests of one API say of a topic."""
        if some.api_key == api_keys.PRODUCE and some.requested >= 0:
            self.cluster.produced.add(some.topic or some.topic_id)
        if some.topic and some.served >= 0:
            self.cluster.note(some.topic, some.served + 1)
        elif some.topic_id and some.requested >= 0:
            self._ids.used[some.topic_id] = max(some.requested, self._ids.used.get(some.topic_id, 0))

    def fetched(self, topic_id: str, partition: int, checksum: bytes) -> None:
        """Learn the first batch that was read of a topic without a name."""
        self._ids.fetch((topic_id, partition, checksum))

    def finish(self, requests: Callable[[], Iterable[Decoded]] | None, elsewhere: Mapping[str, str]) -> Cluster:
        """Finish learning. `requests`: goes through all requests once more, which only topic ids without a name need;
        `elsewhere`: names of topic ids that the capture may lack."""
        cluster = self.cluster
        self.note_fast_paths()
        cluster.produced = {cluster.topic_names.get(name, name) for name in cluster.produced}
        changes = changed(self._settings, {name: topic.configs for name, topic in cluster.topics.items()})
        cluster.altered, cluster.group_configs = changes.topics, changes.groups
        unnamed = [fetched for fetched in self._ids.fetched if fetched[0] not in cluster.topic_names]
        if unnamed and requests is not None:
            _match_ids(cluster, requests(), unnamed)
        captured = set(cluster.topic_names)
        for topic_id, last in self._ids.used.items():
            if topic_id not in captured and topic_id in elsewhere:
                name = cluster.topic_names[topic_id] = elsewhere[topic_id]
                cluster.note(name, last + 1)
        return cluster

    def so_far(self, elsewhere: Mapping[str, str]) -> Cluster:
        """Learn what can be learned while more requests come. `elsewhere`: as for `finish`."""
        cluster = self.cluster
        self.note_fast_paths()
        self._fast_paths.clear()
        for topic_id, last in self._ids.used.items():
            if topic_id not in cluster.topic_names and topic_id in elsewhere:
                cluster.topic_names[topic_id] = elsewhere[topic_id]
                cluster.note(elsewhere[topic_id], last + 1)
        cluster.produced = {cluster.topic_names.get(name, name) for name in cluster.produced}
        self._ids.fetched.clear()
        return cluster

    def note_fast_paths(self) -> None:
        """Learn the topics of requests that took the fast path."""
        for topic, topic_id, partition in sorted(self._fast_paths):
            self.cluster.produced.add(topic or topic_id)
            if topic:
                self.cluster.note(topic, partition + 1)
            else:
                self._ids.used[topic_id] = max(self._ids.used.get(topic_id, 0), partition)


_SETTING: Final = (api_keys.CREATE_TOPICS, api_keys.ALTER_CONFIGS, api_keys.INCREMENTAL_ALTER_CONFIGS)


def _learn_request(cluster: Cluster, api_key: int, body: Body, answer: Body | None) -> None:
    if api_key == api_keys.JOIN_GROUP or (api_key in apis.GROUP_HEARTBEATS and body["memberEpoch"] == 0):
        cluster.members.add((body["groupId"], body["memberId"]))
        cluster.members.add((body["groupId"], (answer or {}).get("memberId") or ""))
    elif api_key == api_keys.SYNC_GROUP and body["assignments"]:
        cluster.assignments[body["groupId"], body["generationId"]] = body["assignments"]
    elif api_key == api_keys.PRODUCE:
        cluster.produced.update(topic.get("name") or topic.get("topicId") for topic in body["topicData"])


_SERVED: Final = (api_keys.PRODUCE, api_keys.FETCH, api_keys.LIST_OFFSETS)
"""APIs whose requests show that a topic exists: a capture that began later may have no Metadata."""


def _learn_answer(cluster: Cluster, api_key: int, body: Body, answer: Body) -> None:
    if api_key == api_keys.METADATA:
        cluster.nodes.update(broker["nodeId"] for broker in answer["brokers"])
        cluster.brokers.update((broker["host"], broker["port"]) for broker in answer["brokers"])
        cluster.ids.update(cluster_id for cluster_id in (answer.get("clusterId"),) if cluster_id)
        for topic in answer["topics"]:
            if not topic["errorCode"] and topic["name"] is not None:
                cluster.note_id(topic)
                replicas = max((len(partition["replicaNodes"]) for partition in topic["partitions"]), default=1)
                internal = topic.get("isInternal", False)
                cluster.note(topic["name"], len(topic["partitions"]), replicas, internal=internal)
    elif api_key == api_keys.DESCRIBE_CLUSTER and not answer["errorCode"]:
        cluster.brokers.update((broker["host"], broker["port"]) for broker in answer["brokers"])
        cluster.ids.update(cluster_id for cluster_id in (answer["clusterId"],) if cluster_id)
    elif api_key == api_keys.DESCRIBE_TOPIC_PARTITIONS:
        for topic in answer["topics"]:
            if not topic["errorCode"]:
                cluster.note_id(topic)
    elif api_key == api_keys.CREATE_TOPICS:
        topics_by_name = {topic["name"]: topic for topic in body["topics"]}
        for topic in answer["topics"]:
            wanted = topics_by_name.get(topic["name"])
            if topic["errorCode"] or wanted is None or body.get("validateOnly"):
                continue
            cluster.note_id(topic)
            count = max(wanted["numPartitions"], len(wanted["assignments"]), topic.get("numPartitions", 0))
            configs = {config["name"]: config["value"] for config in wanted["configs"]}
            cluster.note(topic["name"], count, wanted["replicationFactor"], configs)
    elif api_key in _SERVED:
        where = RESPONSE_LISTS[api_key]
        for topic in structs(answer, where.path):
            for partition in topic[where.partitions]:
                if not partition["errorCode"] and topic.get(where.name):
                    cluster.note(topic[where.name], partition[where.number] + 1)


def _learn_life(cluster: Cluster, api_key: int, body: Body, answer: Body, sent_ns: int) -> None:
    """Learn when topics were created and deleted."""
    if api_key == api_keys.CREATE_TOPICS and not body.get("validateOnly"):
        first, topics = cluster.created, answer["topics"]
    elif api_key == api_keys.DELETE_TOPICS:
        first, topics = cluster.deleted, answer["responses"]
    else:
        return
    for topic in topics:
        if not topic["errorCode"] and topic["name"] is not None:
            first[topic["name"]] = min(sent_ns, first.get(topic["name"], sent_ns))


# --- names of topic ids ---


_ENOUGH: Final = 1_000
"""Batches of a partition of an unnamed topic that are compared to find its name."""


@dataclass(slots=True)
class _Ids:
    """Topic ids in requests, with the highest partition, and in what was fetched (`_fetched_by_id`)."""

    used: dict[str, int] = field(default_factory=dict)
    fetched: list[tuple[str, int, bytes]] = field(default_factory=list)
    often: Counter[tuple[str, int]] = field(default_factory=Counter)

    def fetch(self, fetched: tuple[str, int, bytes]) -> None:
        """Add a batch, unless there are enough of its partition to find one of them among what was produced."""
        self.often[fetched[:2]] += 1
        if self.often[fetched[:2]] <= _ENOUGH:
            self.fetched.append(fetched)

    def use(self, api_key: int, body: Body) -> None:
        for where, topic in topics_of(api_key, body):
            topic_id = topic.get(where.id) if where.id else None
            if topic_id is not None:
                listed = topic.get(where.partitions) or () if where.partitions else ()
                last = max((part[where.number] if where.number else part for part in listed), default=0)
                self.used[topic_id] = max(last, self.used.get(topic_id, 0))


def _match_ids(cluster: Cluster, requests: Iterable[Decoded], fetched: Iterable[tuple[str, int, bytes]]) -> None:
    """Name topic ids that no Metadata names, by records that were both produced (by name) and fetched (by id). A
    batch's checksum is the same in both, because the broker's own fields lie before it."""
    wanted = {(partition, checksum) for _, partition, checksum in fetched}
    produced: dict[tuple[int, bytes], str] = {}
    for _, message in decoded(
        (0, request) for request in requests if request.request.row["api_key"] == api_keys.PRODUCE
    ):
        for where, name in _produced_by_name(message):
            if where in wanted:
                produced[where] = name
    for topic_id, partition, checksum in fetched:
        if (partition, checksum) in produced:
            cluster.topic_names[topic_id] = produced[partition, checksum]


def _produced_by_name(message: Decoded) -> Iterator[tuple[tuple[int, bytes], str]]:
    """Give ((partition, checksum), topic) of each produced batch."""
    for topic in (message.body or {}).get("topicData", ()):
        if not topic.get("name"):
            continue
        for partition in topic["partitionData"]:
            for batch in batches.produced(partition["records"]):
                yield (partition["index"], batches.checksum(partition["records"], batch)), topic["name"]


def _fetched_by_id(answer: Body, known_names: Mapping[str, str]) -> Iterator[tuple[str, int, bytes]]:
    """Give (topic id, partition, checksum) of the first batch of each partition whose topic has no name."""
    for topic in answer["responses"]:
        topic_id = topic.get("topicId", ZERO_UUID)
        if topic_id == ZERO_UUID or topic_id in known_names:
            continue
        for partition in topic["partitions"]:
            for batch in batches.produced(partition.get("records"))[:1]:
                yield topic_id, partition["partitionIndex"], batches.checksum(partition["records"], batch)
