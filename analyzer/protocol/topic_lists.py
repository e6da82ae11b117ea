"""Where messages list topics and partitions, by API.

In: bodies in Kafka's JSON naming (`tree`), in any version. Out: the structs that name a topic, each with the fields
that do. Rule: what stands here the definitions have, in one version or another (the test follows every path).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body


class TopicField(NamedTuple):
    """Where a request (or its answer) lists topics: the path to the array of structs; the field with the topic's name
    and with its id (empty: there is none, or not in every version); the array of partitions, and the field of its
    structs with the partition's number (empty: the elements are numbers)."""

    path: tuple[str, ...]
    name: str
    id: str
    partitions: str
    number: str


_LISTS: Final[dict[int, tuple[TopicField, ...]]] = {
    api_keys.PRODUCE: (TopicField(("topicData",), "name", "topicId", "partitionData", "index"),),
    api_keys.FETCH: (
        TopicField(("topics",), "topic", "topicId", "partitions", "partition"),
        TopicField(("forgottenTopicsData",), "topic", "topicId", "partitions", ""),
    ),
    api_keys.LIST_OFFSETS: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    api_keys.OFFSET_FOR_LEADER_EPOCH: (TopicField(("topics",), "topic", "", "partitions", "partition"),),
    api_keys.DELETE_RECORDS: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    api_keys.DESCRIBE_PRODUCERS: (TopicField(("topics",), "name", "", "partitionIndexes", ""),),
    api_keys.OFFSET_COMMIT: (TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),),
    api_keys.OFFSET_FETCH: (
        TopicField(("topics",), "name", "topicId", "partitionIndexes", ""),
        TopicField(("groups", "topics"), "name", "topicId", "partitionIndexes", ""),
    ),
    api_keys.TXN_OFFSET_COMMIT: (TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),),
    api_keys.ADD_PARTITIONS_TO_TXN: (TopicField(("v3AndBelowTopics",), "name", "", "partitions", ""),),
    api_keys.METADATA: (TopicField(("topics",), "name", "topicId", "", ""),),
    api_keys.CREATE_TOPICS: (TopicField(("topics",), "name", "", "", ""),),
    api_keys.DELETE_TOPICS: (TopicField(("topics",), "name", "topicId", "", ""),),
    api_keys.CREATE_PARTITIONS: (TopicField(("topics",), "name", "", "", ""),),
    api_keys.OFFSET_DELETE: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    api_keys.DESCRIBE_TOPIC_PARTITIONS: (TopicField(("topics",), "name", "", "", ""),),
    api_keys.CONSUMER_GROUP_HEARTBEAT: (TopicField(("topicPartitions",), "", "topicId", "partitions", ""),),
    api_keys.SHARE_FETCH: (
        TopicField(("topics",), "", "topicId", "partitions", "partitionIndex"),
        TopicField(("forgottenTopicsData",), "", "topicId", "partitions", ""),
    ),
    api_keys.SHARE_ACKNOWLEDGE: (TopicField(("topics",), "", "topicId", "partitions", "partitionIndex"),),
    api_keys.DESCRIBE_SHARE_GROUP_OFFSETS: (TopicField(("groups", "topics"), "topicName", "", "partitions", ""),),
    api_keys.ALTER_SHARE_GROUP_OFFSETS: (TopicField(("topics",), "topicName", "", "partitions", "partitionIndex"),),
    api_keys.DELETE_SHARE_GROUP_OFFSETS: (TopicField(("topics",), "topicName", "", "", ""),),
}

RESPONSE_LISTS: Final[dict[int, TopicField]] = {
    api_keys.PRODUCE: TopicField(("responses",), "name", "topicId", "partitionResponses", "index"),
    api_keys.FETCH: TopicField(("responses",), "topic", "topicId", "partitions", "partitionIndex"),
    api_keys.LIST_OFFSETS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    api_keys.OFFSET_FOR_LEADER_EPOCH: TopicField(("topics",), "topic", "", "partitions", "partition"),
    api_keys.DELETE_RECORDS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    api_keys.DESCRIBE_PRODUCERS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    api_keys.SHARE_FETCH: TopicField(("responses",), "", "topicId", "partitions", "partitionIndex"),
    api_keys.SHARE_ACKNOWLEDGE: TopicField(("responses",), "", "topicId", "partitions", "partitionIndex"),
    api_keys.OFFSET_COMMIT: TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),
}
"""Where answers list topics: those that may have to be merged, and those that teach."""


def lists_of(api_key: int) -> tuple[TopicField, ...]:
    """Where a request of this API lists topics."""
    return _LISTS.get(api_key, ())


def structs(body: Body, path: tuple[str, ...]) -> Iterator[Body]:
    """The structs of the array at a path; nothing where it is absent or null."""
    first, *rest = path
    for element in body.get(first) or ():
        if rest:
            yield from structs(element, tuple(rest))
        else:
            yield element


def topics_of(api_key: int, body: Body) -> Iterator[tuple[TopicField, Body]]:
    """Every struct of a request that names a topic."""
    for where in _LISTS.get(api_key, ()):
        for topic in structs(body, where.path):
            yield where, topic
