"""An answer taken apart into facts that can be compared one by one.

In: a decoded answer with its request. Out: facts, each under its place: the field's path, and the key of the element
it belongs to (`orders`, `3`). Structs are known by what they are about (a topic's name, a partition's number, a group),
not by where they stand in their array, so the order of maps is no difference; an element that is there is a fact
itself. Shapes of different versions are brought together: topic ids become names, one group or coordinator becomes a
list of one.

`kind_of` says what a field's value may be compared as; it is the only place that knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.protocol import schema
from kwire.analyzer.protocol.program import FieldInfo
from kwire.analyzer.protocol.schema import RESPONSE, ZERO_UUID, Field
from kwire.analyzer.protocol.tree import Body


class Kind(Enum):
    """The way in which a field is compared. Values name the rule in the report."""

    STRICT = "strict"
    ERROR = "error"
    ID = "id"
    COMMITTED = "committed offset"
    LISTED = "listed offset"
    APPENDED = "append time"
    CONFIG = "config"
    ELSEWHERE = "elsewhere"  # records and assignments, which are compared over many answers
    THROTTLE = "throttle"
    PLACE = "place"
    EPOCH = "epoch"
    TEXT = "text"
    INSTANT = "instant"
    ASSIGNED = "assigned"
    SECRET = "secret"


NOISE: Final[dict[Kind, str]] = {
    Kind.THROTTLE: "how long a quota held the client back",
    Kind.PLACE: "hosts, ports, racks, which broker leads, follows or coordinates, cluster id",
    Kind.EPOCH: "leader, member and group epochs, generations",
    Kind.TEXT: "error messages and documentation",
    Kind.INSTANT: "what was so at that instant: high watermarks, states, sizes, clocks",
    Kind.ASSIGNED: "ids that only say that something exists: producers, fetch sessions, topic ids",
    Kind.SECRET: "secrets, which are not compared",
}
"""Fields that are not compared, by why."""

# fmt: off
ERRORS_ONLY: Final = frozenset((
    names.LIST_GROUPS, names.DESCRIBE_ACLS, names.DESCRIBE_LOG_DIRS, names.LIST_PARTITION_REASSIGNMENTS,
    names.DESCRIBE_CLIENT_QUOTAS, names.DESCRIBE_USER_SCRAM_CREDENTIALS, names.DESCRIBE_QUORUM,
    names.DESCRIBE_PRODUCERS, names.DESCRIBE_TRANSACTIONS, names.LIST_TRANSACTIONS, names.LIST_CONFIG_RESOURCES,
    names.SHARE_GROUP_DESCRIBE, names.SHARE_FETCH, names.SHARE_ACKNOWLEDGE, names.STREAMS_GROUP_DESCRIBE,
    names.DESCRIBE_SHARE_GROUP_OFFSETS, names.DESCRIBE_GROUPS, names.CONSUMER_GROUP_DESCRIBE,
))
# fmt: on
"""Answers that tell the state of the whole cluster at an instant, or what requests that are not replayed have made of
it: of them, errors are compared. (ShareFetch and ShareAcknowledge: which consumer acquires what is a race.)"""

_LOOSE: Final = ERRORS_ONLY | {names.FETCH}
"""Answers whose set of elements is no promise. (A fetch names the partitions that have news.)"""

# fmt: off
_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("throttleTimeMs",), Kind.THROTTLE),
    **dict.fromkeys(
        ("host", "port", "rack", "clusterId", "controllerId", "nodeId", "leaderId", "replicaNodes", "isrNodes",
         "offlineReplicas", "eligibleLeaderReplicas", "lastKnownElr", "preferredReadReplica", "brokers",
         "nodeEndpoints", "replicationFactor", "currentLeader", "nextCursor", "oldStyleOffsets"), Kind.PLACE),
    **dict.fromkeys(
        ("leaderEpoch", "committedLeaderEpoch", "generationId", "memberEpoch", "producerEpoch",
         "ongoingTxnProducerEpoch"),
        Kind.EPOCH),
    **dict.fromkeys(("errorMessage", "batchIndexErrorMessage", "acknowledgeErrorMessage", "documentation"), Kind.TEXT),
    **dict.fromkeys(
        ("highWatermark", "lastStableOffset", "logStartOffset", "lowWatermark", "endOffset", "divergingEpoch",
         "snapshotId", "skipAssignment", "recordErrors", "ongoingTxnProducerId", "members", "isFenced"), Kind.INSTANT),
    **dict.fromkeys(("producerId", "sessionId", "topicId", "sessionLifetimeMs"), Kind.ASSIGNED),
    **dict.fromkeys(("memberId", "leader"), Kind.ID),
    **dict.fromkeys(("records", "abortedTransactions", "assignment", "baseOffset"), Kind.ELSEWHERE),
    **dict.fromkeys(("heartbeatIntervalMs", "acquisitionLockTimeoutMs"), Kind.CONFIG),
    "logAppendTimeMs": Kind.APPENDED,
    "committedOffset": Kind.COMMITTED,
}
# fmt: on
_OF_API: Final[dict[tuple[int, str], Kind]] = {
    (names.LIST_OFFSETS, "offset"): Kind.LISTED,
    (names.LIST_OFFSETS, "timestamp"): Kind.LISTED,
    (names.LEAVE_GROUP, "members"): Kind.STRICT,
    (names.DESCRIBE_CONFIGS, "configs"): Kind.CONFIG,
    (names.DESCRIBE_CONFIGS, "value"): Kind.CONFIG,
    (names.CREATE_TOPICS, "configs"): Kind.CONFIG,
    (names.CREATE_TOPICS, "value"): Kind.CONFIG,
    **{
        (key, name): Kind.INSTANT
        for key in (names.DESCRIBE_CONFIGS, names.CREATE_TOPICS)
        for name in ("readOnly", "isDefault", "configSource", "isSensitive", "synonyms", "configType")
    },
}


def kind_of(api_key: int, field: Field | FieldInfo) -> Kind:
    """Return the way in which values of a field of an answer are compared."""
    name = field.name if isinstance(field, Field) else field.path.rpartition(".")[2]
    if field.secret == "always":
        return Kind.SECRET
    if name.lower().endswith("errorcode"):
        return Kind.ERROR
    kind = _OF_API.get((api_key, name)) or _KINDS.get(name, Kind.STRICT)
    if api_key in ERRORS_ONLY and field.kind not in ("struct", "array") and kind not in NOISE:
        return Kind.INSTANT
    return kind


def identifies(name: str) -> bool:
    """May a field of this name say which element of an array something is about?"""
    return name in (*_TOPIC_NAMES, *_NAMES, "resourceType")


PRESENT: Final = object()
"""The value of a fact that says no more than that an element is there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fact stands: the field's path, and the keys of the elements around it."""

    path: str
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """`value` is what the answer says there; an array of plain values is a sorted tuple."""

    kind: Kind
    value: Any


@dataclass(frozen=True, slots=True)
class Naming:
    """Names for the ids of a side. `topic`: the name for a topic id; `member`: the name that both sides share for a
    member; each returns an unknown id as it is."""

    topic: Callable[[str], str]
    member: Callable[[str], str]


Facts = dict[Place, Fact]

_TOPIC_NAMES: Final = ("topic", "name", "topicName")
_NAMES: Final = (
    "partitionIndex",
    "partition",
    "index",
    "groupId",
    "memberId",
    "key",
    "resourceName",
    "user",
    "mechanism",
    "entityType",
    "logDir",
    "batchIndex",
    "principal",
    "transactionalId",
)


def facts(api_key: int, version: int, answer: Body, request: Callable[[], Body | None], naming: Naming) -> Facts:
    """The facts of an answer in this version. `request`: gives its request's body, where that is needed."""
    layout = schema.layout(api_key, version, RESPONSE)
    if layout is None:
        return {}
    fields, body = _lifted(api_key, version, layout.fields, answer, request)
    out: Facts = {}
    _struct(api_key, fields, body, "", (), naming, out)
    return out


@functools.cache
def paths(api_key: int, version: int) -> frozenset[str]:
    """The paths that an answer of this version can have; a difference at another path is one of versions only."""
    layout = schema.layout(api_key, version, RESPONSE)
    if layout is None:
        return frozenset()
    fields, _ = _lifted(api_key, version, layout.fields, {}, lambda: None)
    return frozenset(_paths(fields, ""))


def _paths(fields: tuple[Field, ...], prefix: str) -> Iterator[str]:
    for item in fields:
        yield prefix + item.name
        yield from _paths(item.fields, f"{prefix}{item.name}.")


def _list_of(name: str, fields: tuple[Field, ...]) -> Field:
    return Field(name, name, "array", "struct", fields, False, False, None, (), "", "")


def _lifted(
    api_key: int, version: int, fields: tuple[Field, ...], answer: Body, request: Callable[[], Body | None]
) -> tuple[tuple[Field, ...], Body]:
    """One group, or one coordinator, as the lists that newer versions have (KIP-709, KIP-699)."""
    if api_key == names.OFFSET_FETCH and version < 8:
        body = request() or {}
        name, key, value = "groups", "groupId", body.get("groupId", "")
    elif api_key == names.FIND_COORDINATOR and version < 4:
        body = request() or {}
        name, key, value = "coordinators", "key", body.get("key", body.get("groupId", ""))
    else:
        return fields, answer
    rest = tuple(item for item in fields if item.name == "throttleTimeMs")
    inner = tuple(item for item in fields if item.name != "throttleTimeMs")
    identity = Field(key, f"{name}.{key}", "string", None, (), False, False, None, "", "", "")
    return (*rest, _list_of(name, (identity, *inner))), {**answer, name: [{**answer, key: value}]}


def _identity(fields: tuple[Field, ...], element: Body, index: int, naming: Naming) -> tuple[str, tuple[str, ...]]:
    """(what an element is known by, names of the fields that say so)"""
    names: set[str] = {item.name for item in fields}
    used: tuple[str, ...] = tuple(name for name in _TOPIC_NAMES if name in names)
    for name in used:
        if element.get(name):
            return str(element[name]), (*used, "topicId")
    if "topicId" in names and element.get("topicId", ZERO_UUID) != ZERO_UUID:
        return naming.topic(element["topicId"]), (*used, "topicId")
    for name in _NAMES:
        if name in names:
            if name == "resourceName":
                return f"{element.get('resourceType')}:{element[name]}", ("resourceType", name)
            if name == "memberId":
                return naming.member(element[name]), (name,)
            return str(element.get(name)), (name,)
    return f"[{index}]", used


def _struct(
    api_key: int,
    fields: tuple[Field, ...],
    body: Body,
    prefix: str,
    key: tuple[str, ...],
    naming: Naming,
    out: Facts,
    skip: tuple[str, ...] = (),
) -> None:
    for item in fields:
        if item.name in skip or item.name not in body:
            continue
        value = body[item.name]
        path = prefix + item.name
        kind = kind_of(api_key, item)
        if kind in NOISE or kind is Kind.ELSEWHERE or value is None:
            out[Place(path, key)] = Fact(kind, value)
        elif item.kind == "struct":
            _struct(api_key, item.fields, value, f"{path}.", key, naming, out)
        elif item.element == "struct":
            for index, element in enumerate(value):
                identity, used = _identity(item.fields, element, index, naming)
                inner = (*key, identity)
                out[Place(path, inner)] = Fact(Kind.INSTANT if api_key in _LOOSE else kind, PRESENT)
                _struct(api_key, item.fields, element, f"{path}.", inner, naming, out, used)
        elif item.kind == "array":
            out[Place(path, key)] = Fact(kind, tuple(sorted(value, key=str)))
        else:
            out[Place(path, key)] = Fact(kind, value)
