"""What is done with each API by default: the table of replay/README.md in code.

A policy (may it be sent, and what for), a route (which broker has to serve it), and where a request names topics.
Source: Kafka's definitions (listeners, fields) and KafkaApis; what was measured on brokers is in the README.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from analyzer import schema
from replay.steps import Route

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
INCREMENTAL_ALTER_CONFIGS: Final = 44
OFFSET_DELETE: Final = 47
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE_TRANSACTIONS: Final = 65
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
DESCRIBE_TOPIC_PARTITIONS: Final = 75
SHARE_GROUP_HEARTBEAT: Final = 76
SHARE_GROUP_DESCRIBE: Final = 77
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79

GROUP_HEARTBEATS: Final = (CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT)
"""By which members join, stay and leave where the broker assigns (KIP-848, KIP-932)."""


class Policy(Enum):
    """May a request of this API be sent? Values are the rule's name where it may not."""

    SEND = "sent"
    REMAP = "sent, with what the target assigns"
    ALLOW = "mutating"
    INTERNAL = "internal"
    REPLAYER = "replayer"
    LOGIN = "login"
    STREAMS = "streams_group"


@dataclass(frozen=True, slots=True)
class Api:
    """An API's policy and route."""

    policy: Policy
    route: Route = Route.ANY


_SEND = (3, 10, 16, 29, 35, 46, 48, 50, 55, 60, 66, 74, 75)
_GROUP_SEND = (15, 69, 77, 89, 90)
_GROUP_REMAP = (8, 9, 11, 12, 13, 14, 28, 68, 76)
_LEADER_REMAP = (0, 1, 2, 23, 78, 79)
_TRANSACTION_REMAP = (22, 24, 25, 26)
_ALLOW = (19, 20, 30, 31, 34, 37, 38, 39, 40, 41, 43, 45, 49, 51, 57, 64, 71, 72, 80, 81, 94)
_GROUP_ALLOW = (42, 47, 91, 92)
_INTERNAL = (4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 83, 84, 85, 86, 87, 93)

APIS: Final[dict[int, Api]] = {
    **{key: Api(Policy.SEND) for key in _SEND},
    **{key: Api(Policy.SEND, Route.GROUP) for key in _GROUP_SEND},
    32: Api(Policy.SEND, Route.BROKER),
    33: Api(Policy.ALLOW, Route.BROKER),
    44: Api(Policy.ALLOW, Route.BROKER),
    61: Api(Policy.SEND, Route.LEADER),
    65: Api(Policy.SEND, Route.TRANSACTION),
    **{key: Api(Policy.REMAP, Route.GROUP) for key in _GROUP_REMAP},
    **{key: Api(Policy.REMAP, Route.LEADER) for key in _LEADER_REMAP},
    **{key: Api(Policy.REMAP, Route.TRANSACTION) for key in _TRANSACTION_REMAP},
    **{key: Api(Policy.ALLOW) for key in _ALLOW},
    **{key: Api(Policy.ALLOW, Route.GROUP) for key in _GROUP_ALLOW},
    21: Api(Policy.ALLOW, Route.LEADER),
    **{key: Api(Policy.INTERNAL) for key in _INTERNAL},
    88: Api(Policy.STREAMS, Route.GROUP),
    18: Api(Policy.REPLAYER),
    17: Api(Policy.LOGIN),
    36: Api(Policy.LOGIN),
}


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
    PRODUCE: (TopicField(("topicData",), "name", "topicId", "partitionData", "index"),),
    FETCH: (
        TopicField(("topics",), "topic", "topicId", "partitions", "partition"),
        TopicField(("forgottenTopicsData",), "topic", "topicId", "partitions", ""),
    ),
    LIST_OFFSETS: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    OFFSET_FOR_LEADER_EPOCH: (TopicField(("topics",), "topic", "", "partitions", "partition"),),
    DELETE_RECORDS: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    DESCRIBE_PRODUCERS: (TopicField(("topics",), "name", "", "partitionIndexes", ""),),
    OFFSET_COMMIT: (TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),),
    OFFSET_FETCH: (
        TopicField(("topics",), "name", "topicId", "partitionIndexes", ""),
        TopicField(("groups", "topics"), "name", "topicId", "partitionIndexes", ""),
    ),
    TXN_OFFSET_COMMIT: (TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),),
    ADD_PARTITIONS_TO_TXN: (TopicField(("v3AndBelowTopics",), "name", "", "partitions", ""),),
    METADATA: (TopicField(("topics",), "name", "topicId", "", ""),),
    CREATE_TOPICS: (TopicField(("topics",), "name", "", "", ""),),
    DELETE_TOPICS: (TopicField(("topics",), "name", "topicId", "", ""),),
    CREATE_PARTITIONS: (TopicField(("topics",), "name", "", "", ""),),
    OFFSET_DELETE: (TopicField(("topics",), "name", "", "partitions", "partitionIndex"),),
    DESCRIBE_TOPIC_PARTITIONS: (TopicField(("topics",), "name", "", "", ""),),
    CONSUMER_GROUP_HEARTBEAT: (TopicField(("topicPartitions",), "", "topicId", "partitions", ""),),
    SHARE_FETCH: (
        TopicField(("topics",), "", "topicId", "partitions", "partitionIndex"),
        TopicField(("forgottenTopicsData",), "", "topicId", "partitions", ""),
    ),
    SHARE_ACKNOWLEDGE: (TopicField(("topics",), "", "topicId", "partitions", "partitionIndex"),),
}

NAME: Final = "_topic"
"""Key of a topic's struct under which the replayer keeps the topic's name, whatever the message's version says."""

RESPONSE_LISTS: Final[dict[int, TopicField]] = {
    PRODUCE: TopicField(("responses",), "name", "topicId", "partitionResponses", "index"),
    FETCH: TopicField(("responses",), "topic", "topicId", "partitions", "partitionIndex"),
    LIST_OFFSETS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    OFFSET_FOR_LEADER_EPOCH: TopicField(("topics",), "topic", "", "partitions", "partition"),
    DELETE_RECORDS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    DESCRIBE_PRODUCERS: TopicField(("topics",), "name", "", "partitions", "partitionIndex"),
    SHARE_FETCH: TopicField(("responses",), "", "topicId", "partitions", "partitionIndex"),
    SHARE_ACKNOWLEDGE: TopicField(("responses",), "", "topicId", "partitions", "partitionIndex"),
    OFFSET_COMMIT: TopicField(("topics",), "name", "topicId", "partitions", "partitionIndex"),
}
"""Where answers list topics: those that may have to be merged, and those that teach."""


def structs(body: dict[str, Any], path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The structs of the array at a path; nothing where it is absent or null."""
    first, *rest = path
    for one in body.get(first) or ():
        if rest:
            yield from structs(one, tuple(rest))
        else:
            yield one


TOPIC_RESOURCE: Final = 2
BROKER_RESOURCES: Final = (4, 8)
"""Resource types of the configuration APIs (`ConfigResource.Type`): a topic; a broker, and its loggers."""


def topics(api_key: int, body: dict[str, Any]) -> Iterator[tuple[TopicField, dict[str, Any]]]:
    """Every struct of a request that names a topic."""
    for where in _LISTS.get(api_key, ()):
        for one in structs(body, where.path):
            yield where, one


def partitions(api_key: int, body: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any] | None]]:
    """(topic, partition, the partition's struct if it is one) of a request whose topics were named (`NAME`)."""
    for where, topic in topics(api_key, body):
        if where.partitions:
            for one in topic.get(where.partitions) or ():
                if where.number:
                    yield topic.get(NAME, ""), one[where.number], one
                else:
                    yield topic.get(NAME, ""), one, None


def api(api_key: int) -> Api:
    """What is done with an API; what Kafka never had is internal to somebody else."""
    return APIS.get(api_key, Api(Policy.INTERNAL))


def name(api_key: int) -> str:
    """`Produce` for 0."""
    return schema.api_name(api_key)


def key(text: str) -> int | None:
    """The number of an API's name, in any case; None where there is none."""
    return schema.api_keys().get(text.lower())


def lists(api_key: int) -> tuple[TopicField, ...]:
    """Where a request of this API lists topics."""
    return _LISTS.get(api_key, ())
