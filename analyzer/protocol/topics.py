"""Where messages list topics and partitions, by API.

In: bodies in Kafka's JSON naming (`tree`), in any version. Out: the structs that name a topic, each with the fields
that do. Rule: what stands here the definitions have, in one version or another (the test follows every path).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from analyzer.protocol import names
from analyzer.protocol.tree import Body


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
    names.PRODUCE: (TopicField(("topicData",), "name", "topicId", "partitionData", "index"),),
    names.FETCH: (
        TopicField(("topics",), "topic", "topicId", "partitions", "partition"),
        TopicField(("forgottenTopicsData",), "topic", "topicId", "partitions", ""),
    ),
    names.LIST_OFFSETS: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    names.OFFSET_FOR_LEADER_EPOCH: (TopicField(("topics",), "topic", "", "partitions", "partition"),),
    names.DELETE_RECORDS: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    names.DESCRIBE_PRODUCERS: (TopicField(("topics",), "name", "", "partitionIndexes", ""),),
    names.OFFSET_COMMIT: (TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),),
    names.OFFSET_FETCH: (
        TopicField(("topics",), "name", "topicId", "partitionIndexes", ""),
        TopicField(("groups", "topics"), "name", "topicId", "partitionIndexes", ""),
    ),
    names.TXN_OFFSET_COMMIT: (TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),),
    names.ADD_PARTITIONS_TO_TXN: (TopicField(("v3AndBelowTopics",), "name", "", "partitions", ""),),
    names.METADATA: (TopicField(("topics",), "name", "topicId", "", ""),),
    names.CREATE_TOPICS: (TopicField(("topics",), "name", "", "", ""),),
    names.DELETE_TOPICS: (TopicField(("topics",), "name", "topicId", "", ""),),
    names.CREATE_PARTITIONS: (TopicField(("topics",), "name", "", "", ""),),
    names.OFFSET_DELETE: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    names.DESCRIBE_TOPIC_PARTITIONS: (TopicField(("topics",), "name", "", "", ""),),
    names.CONSUMER_GROUP_HEARTBEAT: (TopicField(("topicPartitions",), "", "topicId", "partitions", ""),),
    names.SHARE_FETCH: (
        TopicField(("topics",), "", "topicId", "partitions", "partitionIndex"),
        TopicField(("forgottenTopicsData",), "", "topicId", "partitions", ""),
    ),
    names.SHARE_ACKNOWLEDGE: (TopicField(("topics",), "", "topicId", "partitions", "partitionIndex"),),
    names.DESCRIBE_SHARE_GROUP_OFFSETS: (TopicField(("groups", "topics"), "topicName", "", "partitions", ""),),
    names.ALTER_SHARE_GROUP_OFFSETS: (TopicField(("topics",), "topicName", "", "partitions", "partitionIndex"),),
    names.DELETE_SHARE_GROUP_OFFSETS: (TopicField(("topics",), "topicName", "", "", ""),),
}

RESPONSE_LISTS: Final[dict[int, TopicField]] = {
    names.PRODUCE: TopicField(("responses",), "name", "topicId", "partitionResponses", "index"),
    names.FETCH: TopicField(("responses",), "topic", "topicId", "partitions", "partitionIndex"),
    names.LIST_OFFSETS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    names.OFFSET_FOR_LEADER_EPOCH: TopicField(("topics",), "topic", "", "partitions", "partition"),
    names.DELETE_RECORDS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    names.DESCRIBE_PRODUCERS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    names.SHARE_FETCH: TopicField(("responses",), "", "topicId", "partitions", "partitionIndex"),
    names.SHARE_ACKNOWLEDGE: TopicField(("responses",), "", "topicId", "partitions", "partitionIndex"),
    names.OFFSET_COMMIT: TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),
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
