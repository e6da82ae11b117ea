"""Formats inside formats: what `bytes` fields of messages, and keys and values of records, hold.

In: the bytes of such a field, with what the message around it says of them; or key and value of a record with the name
of its topic. Out: an `Embedded` or a `Record`. The layouts are definitions as those of messages are (`schema.py`), so
the same program and kernel decode them; what is here by hand is only how each format says its type and version, with
the Kafka class that writes it. Rules: what cannot be decoded, or what nobody says the type of, is a value with a
reason and stays bytes in the message; secrets are lengths, as in `tree.py`.

    consumer groups          int16 version, then ConsumerProtocolSubscription or -Assignment (ConsumerProtocol.java);
                             in the subscription, user data of the sticky assignors, which has no version
                             (StickyAssignor.java, CooperativeStickyAssignor.java); of Kafka Streams, in both, an
                             int32 version as their first field (SubscriptionInfo.java, AssignmentInfo.java)
    Connect                  int16 version, then worker metadata or assignment; in the metadata of versions 1 and 2 the
                             worker's present assignment in the same form (ConnectProtocol.java,
                             IncrementalCooperativeConnectProtocol.java, KIP-415, KIP-507)
    group, transaction and   key: int16 record type, then the key; value: int16 version, then the value
    share coordinator        (CoordinatorRecordSerde.java; before 4.0 GroupMetadataManager.scala, TransactionLog.scala)
    __cluster_metadata       value: three unsigned varints (frame version, record type, version), then the record
                             (AbstractApiMessageSerde.java, KIP-631)
    control records          key: int16 version, int16 type; EndTxnMarker after an int16 version, KRaft's records have
                             their version as their first field (ControlRecordType.java, ControlRecordUtils.java)
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kwire.analyzer.protocol import schema, tree
from kwire.analyzer.protocol.decoding import SHORT
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from kwire.analyzer.protocol.tree import Body, Node

JOIN_GROUP: Final = 11
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
ENVELOPE: Final = 58

MAX_ROWS: Final = 1_000_000
"""Fields and elements that one embedded value may have (see `plans.MAX_ROWS`). A group of 10,000 members of 10 topics,
in one GroupMetadataValue, has a third of it."""


class Embedded(NamedTuple):
    """The decoded content of some bytes.

    `type` is the definition's name; None where nobody says what it is. `version` is the one that the bytes say, or,
    where a format has none, the one whose layout fits; None where it could not be read. `body` is as in `tree.py`, and
    None unless decoded; where only fields at the end are missing it is what was written. `nodes` have spans in these
    bytes. `reason` is None if and only if all bytes were decoded. `inside` is what the body's own `bytes` fields hold,
    by path. `by_content`: no protocol type was named, and this is the only format that the bytes fit.
    """

    type: str | None
    version: int | None
    body: Body | None
    nodes: tuple[Node, ...]
    reason: str | None
    inside: tuple[tuple[str, Embedded], ...] = ()
    by_content: bool = False

    def label(self, size: int) -> str:
        """For people, of `size` bytes: `ConsumerProtocolAssignment v3`, or `17 bytes (why they stay bytes)`."""
        what = f"{size} bytes" if self.body is None else str(self.type)
        if self.body is not None and self.version is not None:
            what += f" v{self.version}"
        if self.by_content:
            what += " (by its content)"
        return what if self.reason is None else f"{what} ({self.reason})"

    def listed(self, path: str) -> list[dict[str, Any]]:
        """As JSON, in order and flat: what is inside of something follows it. `path`: where it is."""
        entry: dict[str, Any] = {"path": path, "type": self.type, "version": self.version, "value": self.body}
        if self.by_content:
            entry["by_content"] = True
        if self.reason is not None:
            entry["reason"] = self.reason
        return [entry, *listed(self.inside, f"{path}.")]


GroupFacts = Mapping[str, Any]
"""What a message says before a field: values by path, as in `protocols.name`."""


class Opened(Protocol):
    """The decoded content of a field: `Embedded`, or a set of records (`record_trees.py`)."""

    @property
    def nodes(self) -> tuple[Node, ...]: ...
    def label(self, size: int) -> str: ...
    def listed(self, path: str) -> list[dict[str, Any]]: ...


class PayloadReader(Protocol):
    """Reads keys and values of records whose topics are not Kafka's own."""

    def __call__(self, data: bytes, topic: str, side: str, headers: Mapping[str, bytes]) -> Embedded | None:
        """Return what a key or value (`side`) is; None: text, or bytes of no known format."""


AnyOpened = TypeVar("AnyOpened", bound=Opened)
_Opener = Callable[[bytes, GroupFacts], Embedded]


def _unknown(reason: str) -> Embedded:
    return Embedded(None, None, None, (), reason)


def _open(data: bytes, name: str, version: int, start: int, prefix: tuple[Node, ...], facts: GroupFacts) -> Embedded:
    """Decode data by definition and version; it starts at `start`, after `prefix`."""
    decoded = tree.decode_data(data, name, version, start=start, tree=True, max_rows=MAX_ROWS)
    body = decoded.body
    if body is None and decoded.status == SHORT and start < decoded.end == len(data):
        # Clients that say a version and write the fields of an earlier one: what they wrote is whole.
        body = _written(decoded.nodes)
    nodes, inside = nested(decoded.nodes, _INSIDE.get(name, {}), facts)
    return Embedded(name, version, body, prefix + nodes, decoded.reason, inside)


def _written(nodes: tuple[Node, ...]) -> Body | None:
    """The values of the fields at a tree's top, as in a body; None where one of them is not whole."""
    body: Body = {}
    for node in nodes:
        whole, body[node.name] = _value(node)
        if not whole:
            return None
    return body


def _value(node: Node) -> tuple[bool, Any]:
    """-> (whether all of it was read, its value as in a body)."""
    if node.null or node.type not in ("array", "struct"):
        return True, None if node.null else node.value
    parts = [_value(child) for child in node.children]
    whole = all(part[0] for part in parts) and (node.type == "struct" or len(parts) == node.value)
    if node.type == "array":
        return whole, [value for _, value in parts]
    return whole, {child.name: value for child, (_, value) in zip(node.children, parts, strict=True)}


def _short(data: bytes) -> Embedded:
    return _unknown(f"{len(data)} bytes have no room for a version")


def _versioned(data: bytes, name: str, facts: GroupFacts, *, newest: bool = False) -> Embedded:
    """An int16 version and the data. `newest`: later versions than those known are read as the last known one."""
    if len(data) < 2:
        return _short(data)._replace(type=name)
    version = int.from_bytes(data[:2], "big", signed=True)
    prefix = (Node("version", "int16", version, 0, 2),)
    layout = version
    if newest and schema.data_layout(name, version) is None and version > 0:
        layout = max(known for known, _ in schema.data_versions(name))
    return _open(data, name, layout, 2, prefix, facts)._replace(version=version)


# --- group protocols ------------------------------------------------------------------------------------------------

METADATA: Final = "metadata"
ASSIGNMENT: Final = "assignment"

_PROTOCOLS: Final = {
    # protocol type: definition of what a member says when it joins, and of what it is assigned
    "consumer": {METADATA: "ConsumerProtocolSubscription", ASSIGNMENT: "ConsumerProtocolAssignment"},
    "connect": {METADATA: "ConnectProtocolMetadata", ASSIGNMENT: "ConnectProtocolAssignment"},
}


def member_data(data: bytes, role: str, protocol_type: str | None, protocol: str | None) -> Embedded:
    """Decode the metadata of a classic group's member (`METADATA`) or its assignment (`ASSIGNMENT`).

    protocol_type as the group says it (`consumer`, `connect`, …; None or empty: not said there, then the bytes must fit
    one format exactly); protocol is the assignor's name, for its user data."""
    facts = {"protocol": protocol}
    if protocol_type:
        known = _PROTOCOLS.get(protocol_type)
        if known is None:
            return _unknown(f"no definition for protocol type {protocol_type!r}")
        # As Kafka does (ConsumerProtocol.java, IncrementalCooperativeConnectProtocol.java): what later versions add
        # lies behind what earlier ones have.
        return _versioned(data, known[role], facts, newest=True)
    tried = [_versioned(data, known[role], facts) for known in _PROTOCOLS.values()]
    fitting = [opened for opened in tried if opened.reason is None] or [
        opened for opened in tried if opened.body is not None
    ]
    if len(fitting) != 1:
        return _unknown("no protocol type is said here, and the bytes do not tell")
    return fitting[0]._replace(by_content=True)


def _user_data(data: bytes, facts: GroupFacts) -> Embedded:
    """User data in a subscription, by the assignor's name."""
    assignor = facts.get("protocol")
    if assignor == "cooperative-sticky" and len(data) == 4:
        return _open(data, "CooperativeStickyAssignorUserData", 0, 0, (), facts)
    if assignor in ("sticky", "cooperative-sticky"):
        # There is no version: StickyAssignor tries 1, then 0. librdkafka sends it for its cooperative assignor too.
        newer = _open(data, "StickyAssignorUserData", 1, 0, (), facts)
        older = _open(data, "StickyAssignorUserData", 0, 0, (), facts) if newer.reason is not None else newer
        return older if older.reason is None else newer
    return _streams_user_data(data, "SubscriptionInfoData", facts)


def _assigned_user_data(data: bytes, facts: GroupFacts) -> Embedded:
    """User data in an assignment; of Kafka's own assignors only that of Streams writes any."""
    return _streams_user_data(data, "AssignmentInfo", facts)


STREAMS_ASSIGNOR: Final = "stream"
"""As StreamsPartitionAssignor.java calls itself."""


def _streams_user_data(data: bytes, name: str, facts: GroupFacts) -> Embedded:
    assignor = facts.get("protocol")
    if assignor != STREAMS_ASSIGNOR:
        return _unknown(
            f"no definition for user data of assignor {assignor!r}" if assignor else "no assignor is said here"
        )
    if len(data) < 4:
        return _short(data)._replace(type=name)
    return _open(data, name, int.from_bytes(data[:4], "big", signed=True), 0, (), facts)


def _member(role: str, protocol_type: str, protocol: str) -> _Opener:
    """Opens a member's data; the arguments are paths of the fields that say protocol type and protocol."""

    def opener(data: bytes, facts: GroupFacts) -> Embedded:
        return member_data(data, role, facts.get(protocol_type), facts.get(protocol))

    return opener


# --- where embedded formats are ---------------------------------------------------------------------------------------

_IN_MESSAGES: Final[dict[tuple[int, int], dict[str, _Opener]]] = {
    # (api_key, direction): path: what opens it
    (JOIN_GROUP, REQUEST): {"protocols.metadata": _member(METADATA, "protocolType", "protocols.name")},
    (JOIN_GROUP, RESPONSE): {"members.metadata": _member(METADATA, "protocolType", "protocolName")},
    (SYNC_GROUP, REQUEST): {"assignments.assignment": _member(ASSIGNMENT, "protocolType", "protocolName")},
    (SYNC_GROUP, RESPONSE): {"assignment": _member(ASSIGNMENT, "protocolType", "protocolName")},
    (DESCRIBE_GROUPS, RESPONSE): {
        "groups.members.memberMetadata": _member(METADATA, "groups.protocolType", "groups.protocolData"),
        "groups.members.memberAssignment": _member(ASSIGNMENT, "groups.protocolType", "groups.protocolData"),
    },
    # DefaultKafkaPrincipalBuilder.java; a broker with another principal builder writes another format.
    (ENVELOPE, REQUEST): {"requestPrincipal": lambda data, facts: _versioned(data, "DefaultPrincipalData", facts)},
}

_INSIDE: Final[dict[str, dict[str, _Opener]]] = {
    # The same in data, by definition.
    "ConsumerProtocolSubscription": {"userData": _user_data},
    "ConsumerProtocolAssignment": {"userData": _assigned_user_data},
    "ConnectProtocolMetadata": {
        "allocation": lambda data, facts: _versioned(data, "ConnectProtocolAssignment", facts, newest=True)
    },
    "GroupMetadataValue": {
        "members.subscription": _member(METADATA, "protocolType", "protocol"),
        "members.assignment": _member(ASSIGNMENT, "protocolType", "protocol"),
    },
    "ConsumerGroupMemberMetadataValue": {
        "classicMemberMetadata.supportedProtocols.metadata": lambda data, facts: member_data(
            data, METADATA, "consumer", facts.get("classicMemberMetadata.supportedProtocols.name")
        )
    },
}


RECORD_FIELDS: Final[dict[tuple[int, int], tuple[str, tuple[str, ...]]]] = {
    # (api_key, direction): path of record sets, and of their topic's name or id; opened by `record_trees.py`
    (0, REQUEST): ("topicData.partitionData.records", ("topicData.name", "topicData.topicId")),
    (1, RESPONSE): ("responses.partitions.records", ("responses.topic", "responses.topicId")),
    (59, RESPONSE): ("topics.partitions.unalignedRecords", ("topics.name",)),
    (78, RESPONSE): ("responses.partitions.records", ("responses.topicId",)),
}


def has_embedded(api_key: int, direction: int) -> bool:
    """May a message of this API and direction have `bytes` fields with a format of their own inside?"""
    return (api_key, direction) in _IN_MESSAGES


def nested(
    nodes: tuple[Node, ...], openers: Mapping[str, Callable[[bytes, GroupFacts], AnyOpened]], facts: GroupFacts
) -> tuple[tuple[Node, ...], tuple[tuple[str, AnyOpened], ...]]:
    """A tree's nodes with what their bytes hold as their children, and the same by path (`members[0].metadata`).

    `openers`: by path of the field, without indices. `said`: what is known beside what the tree says."""
    if not openers:
        return nodes, ()
    contents: list[tuple[str, AnyOpened]] = []
    latest = dict(facts)

    def visit(node: Node, path: str, shown: str) -> Node:
        if node.children:
            return node._replace(children=each(node.children, path, shown))
        if isinstance(node.value, str):
            latest[path] = node.value
        opener = openers.get(path)
        if opener is None or node.type not in ("bytes", "records") or not isinstance(node.value, str):
            return node
        data = base64.b64decode(node.value)
        if not data:
            return node
        opened = opener(data, latest)
        contents.append((shown, opened))
        return node._replace(value=opened.label(len(data)), children=shifted(opened.nodes, node.end - len(data)))

    def each(children: tuple[Node, ...], path: str, shown: str) -> tuple[Node, ...]:
        out = []
        for child in children:
            if child.name.startswith("["):
                out.append(visit(child, path, shown + child.name))
            elif child.type == "tags":
                out.append(visit(child, path, shown))
            else:
                joint = "." if path else ""
                out.append(visit(child, path + joint + child.name, shown + joint + child.name))
        return tuple(out)

    changed = each(nodes, "", "")
    return changed, tuple(contents)


def shifted(nodes: tuple[Node, ...], by: int) -> tuple[Node, ...]:
    """The nodes with spans `by` bytes further on."""
    return tuple(
        node._replace(start=node.start + by, end=node.end + by, children=shifted(node.children, by)) for node in nodes
    )


MOST_GROUPS: Final = 100_000
"""Groups whose protocol is remembered, a third of a kilobyte each."""


class GroupProtocols:
    """Protocol types and assignors of classic groups, as far as messages have named them. SyncGroup names neither
    before its version 5. Of too many groups the least recently used are forgotten."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[str, str]] = {}

    def learn(self, request: Body | None, response: Body | None) -> GroupFacts:
        """From an exchange of GROUP_APIS; returns what is known of its group from now on."""
        if request is None:
            return {}
        facts = self._facts.get(request["groupId"], {})
        for body in (request, response or {}):
            facts = facts | {name: body[name] for name in _GROUP_FIELDS if body.get(name)}
        self._facts.pop(request["groupId"], None)
        self._facts[request["groupId"]] = facts
        if len(self._facts) > MOST_GROUPS:
            del self._facts[next(iter(self._facts))]
        return facts


GROUP_APIS: Final = (JOIN_GROUP, SYNC_GROUP)
_GROUP_FIELDS: Final = ("protocolType", "protocolName")


def in_message(
    decoded: tree.Decoded, request: Body | None = None, known: GroupFacts | None = None
) -> tuple[tuple[Node, ...], tuple[tuple[str, Embedded], ...]]:
    """A decoded message's nodes with embedded formats as children, and these by path. `asked` is the body of the
    request that a response answers: old responses do not say the group's protocol. Where neither does,
    `known` may tell (`GroupProtocols.learn`)."""
    about = request or {}
    facts = dict(known or {}) | {name: about[name] for name in _GROUP_FIELDS if about.get(name)}
    return nested(decoded.nodes, _IN_MESSAGES.get((decoded.api_key, decoded.direction), {}), facts)


def listed(opened: Sequence[tuple[str, Opened]], prefix: str = "") -> list[dict[str, Any]]:
    """Everything that was opened as JSON; `prefix` goes before each path."""
    return [entry for path, content in opened for entry in content.listed(prefix + path)]


# --- records ----------------------------------------------------------------------------------------------------------

CONTROL_TYPES: Final = {
    # ControlRecordType.java: number: its name, the definition of its value
    0: ("abort", "EndTxnMarker"),
    1: ("commit", "EndTxnMarker"),
    2: ("LeaderChange", "LeaderChangeMessage"),
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}
METADATA_FRAME_VERSION: Final = 1


class Record(NamedTuple):
    """A record of an internal topic, or a control record.

    `type` is Kafka's name for what it is (`OffsetCommit`, `RegisterBrokerRecord`, `commit`), None where unknown. `key`
    is None where the record has none, `value` None for a tombstone.
    """

    type: str | None
    key: Embedded | None
    value: Embedded | None


def control_type(key: bytes | None) -> str | None:
    """The type of a control record by its key (`commit`, …); `UNKNOWN_n` for one that Kafka did not have in the
    newest release known here, None where the key is too short to say."""
    if key is None or len(key) < 4:
        return None
    number = int.from_bytes(key[2:4], "big", signed=True)
    return CONTROL_TYPES[number][0] if number in CONTROL_TYPES else f"UNKNOWN_{number}"


def read_control(key: bytes | None, value: bytes | None) -> Record:
    """A control record, typed."""
    if key is None:
        return Record(None, None, _unknown("a control record without a key"))
    opened = _versioned(key, "ControlRecordTypeSchema", {}, newest=True)
    number = opened.body["type"] if opened.body is not None else None
    if number not in CONTROL_TYPES:
        why = _unknown(f"unknown control record type {number}") if number is not None else _unknown("no type")
        return Record(control_type(key), opened, why if value is not None else None)
    name, definition = CONTROL_TYPES[number]
    if value is None:
        return Record(name, opened, None)
    if definition == "EndTxnMarker":
        return Record(name, opened, _versioned(value, definition, {}, newest=True))
    if len(value) < 2:
        return Record(name, opened, _short(value)._replace(type=definition))
    version = int.from_bytes(value[:2], "big", signed=True)
    return Record(name, opened, _open(value, definition, version, 0, (), {}))


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    """An unsigned varint of at most 32 bits -> (value, where it ends); None: cut off or too large."""
    value = 0
    for index, byte in enumerate(data[at : at + 5]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return (value, at + index + 1) if value < 1 << 32 else None
    return None


def _metadata_value(value: bytes) -> tuple[str | None, Embedded]:
    """A record of `__cluster_metadata` -> its type, and what it is."""
    prefix: list[Node] = []
    numbers = []
    at = 0
    for name in ("frameVersion", "type", "version"):
        read = _varint(value, at)
        if read is None:
            return None, _unknown(f"{name} at byte {at}: no varint")._replace(nodes=tuple(prefix))
        prefix.append(Node(name, "varint", read[0], at, read[1]))
        numbers.append(read[0])
        at = read[1]
    frame_version, record_type, version = numbers
    if frame_version != METADATA_FRAME_VERSION:
        # 0 was the preview's of Kafka 2.8; Kafka does not read it either.
        return None, _unknown(f"unknown frame version {frame_version}")._replace(nodes=tuple(prefix))
    known = schema.record_types("__cluster_metadata").get(record_type)
    if known is None:
        return None, _unknown(f"unknown record type {record_type}")._replace(nodes=tuple(prefix))
    return known[1], _open(value, known[1], version, at, tuple(prefix), {})


def _value_definition(record_type: int, definition: str, value: bytes) -> str:
    """The definition of a coordinator's value. An offset committed under the first key format may have a value of any
    version: brokers before 4.0 chose them apart."""
    if definition == "LegacyOffsetCommitValue" and value[:2] != b"\x00\x00":
        return schema.record_types("__consumer_offsets")[record_type + 1][1]
    return definition


def read_record(topic: str, key: bytes | None, value: bytes | None) -> Record | None:
    """A record of an internal topic; None where the topic is another. (Control records: `read_control`.)"""
    if topic not in schema.TOPICS:
        return None
    if topic == "__cluster_metadata":
        if value is None:
            return Record(None, None, None)
        name, opened = _metadata_value(value)
        return Record(name, None, opened)
    if key is None or len(key) < 2:
        reason = "a record without a key" if key is None else f"key: {len(key)} bytes have no room for a type"
        return Record(None, None, _unknown(reason))
    record_type = int.from_bytes(key[:2], "big", signed=True)
    prefix = (Node("type", "int16", record_type, 0, 2),)
    known = schema.record_types(topic).get(record_type)
    if known is None:
        unknown = _unknown(f"unknown record type {record_type}")._replace(nodes=prefix)
        return Record(None, unknown, _unknown("the key has no known type") if value is not None else None)
    key_name, value_name = known
    opened_key = _open(key, key_name, 0, 2, prefix, {})
    opened_value = None
    if value is not None:
        opened_value = _versioned(value, _value_definition(record_type, value_name, value), {})
    return Record(key_name.removesuffix("Key"), opened_key, opened_value)


def record_json(record: Record) -> dict[str, Any]:
    """A record as JSON: type, key, version (of the value), value (null: a tombstone), `embedded` for what the value's
    own `bytes` fields hold, and `reason` for what could not be decoded. `key` is left out where there is none."""
    out: dict[str, Any] = {"type": record.type}
    reasons = []
    if record.key is not None:
        out["key"] = record.key.body
        if record.key.reason is not None:
            reasons.append(f"key: {record.key.reason}")
    if record.value is None:
        out["value"] = None
    else:
        out["version"] = record.value.version
        out["value"] = record.value.body
        if record.value.reason is not None:
            reasons.append(f"value: {record.value.reason}")
        inside = listed(record.value.inside, "value.")
        if inside:
            out["embedded"] = inside
    if reasons:
        out["reason"] = "; ".join(reasons)
    return out


def decode_record(topic: str, key: bytes | None, value: bytes | None, *, control: bool = False) -> str | None:
    """A record of an internal topic, or (`control`, from its batch's attributes) a control record of any topic, as
    compact JSON (`record_json`); None for other records. Never raises: what cannot be decoded is a `reason`."""
    record = read_control(key, value) if control else read_record(topic, key, value)
    if record is None:
        return None
    return json.dumps(record_json(record), ensure_ascii=False, separators=(",", ":"))


def copied_secrets(value: bytes) -> list[tuple[int, int]]:
    """Like `secrets`, for a record of a log that may be a copy of `__cluster_metadata`: none, unless the value is a
    metadata record to its last byte."""
    name, opened = _metadata_value(value)
    if name is None or opened.version is None or opened.body is None or opened.reason is not None:
        return []
    return tree.data_secret_spans(value, name, opened.version, start=opened.nodes[2].end)


@functools.cache
def secret_record_types() -> frozenset[int]:
    """The types of records of `__cluster_metadata` that may hold secrets."""
    return frozenset(
        number
        for number, (_, name) in schema.record_types("__cluster_metadata").items()
        if schema.data_has_secrets(name)
    )


def record_secrets(topic: str, key: bytes | None, value: bytes | None) -> list[tuple[int, int]]:
    """[start, end) of every secret in a record's value, for masking stored bytes. In a record of a type that may hold
    secrets, what cannot be decoded counts as one; so does a record of `__cluster_metadata` of unknown type."""
    record = read_record(topic, key, value)
    if record is None or record.value is None or not value:
        return []
    opened = record.value
    if opened.type is None or opened.version is None:
        return [(0, len(value))] if topic == "__cluster_metadata" else []
    start = opened.nodes[2].end if topic == "__cluster_metadata" else 2
    return tree.data_secret_spans(value, opened.type, opened.version, start=start)
