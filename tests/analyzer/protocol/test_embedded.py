"""Formats inside formats: group protocols, records of internal topics, control records; hostile bytes give a reason.

The witness is Kafka: its generated code wrote the golden data and its JSON converters say what they are;
`GoldenEmbedded` does the same for what Kafka has in Java code only; and there is what real brokers and clients said.
"""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.protocol import embedded, encoding, schema, tree
from kwire.analyzer.protocol.embedded import ASSIGNMENT, METADATA, decode_record, member_data
from kwire.analyzer.protocol.encoding import encode_data
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from tests.analyzer.protocol import golden
from tests.analyzer.protocol.test_tree import check_spans, equal
from tests.shared import capture_files, real_folder


def prefixed(name: str, version: int, body: dict[str, Any]) -> bytes:
    """Data after an int16 that says its version."""
    return version.to_bytes(2, "big") + encode_data(body, name, version)


def coordinator_key(topic: str, record_type: int, body: dict[str, Any]) -> bytes:
    name = schema.record_types(topic)[record_type][0]
    return record_type.to_bytes(2, "big") + encode_data(body, name, 0)


def metadata_value(name: str, version: int, body: dict[str, Any]) -> bytes:
    """A record as `__cluster_metadata` has it: all three varints are below 128."""
    record_type = next(number for number, pair in schema.record_types("__cluster_metadata").items() if pair[1] == name)
    return bytes([1, record_type, version]) + encode_data(body, name, version)


def decoded(topic: str, key: bytes | None, value: bytes | None, *, control: bool = False) -> Any:
    text = decode_record(topic, key, value, control=control)
    assert text is not None
    return json.loads(text)


COMMIT = {"group": "g", "topic": "orders", "partition": 3}
OFFSET = {"offset": 7, "leaderEpoch": 1, "metadata": "", "commitTimestamp": 9}


STREAMS = {"SubscriptionInfoData": METADATA, "AssignmentInfo": ASSIGNMENT}


# --- Kafka as a witness -----------------------------------------------------------------------------------------------


def test_every_data_definition_of_kafka_has_golden_data() -> None:
    layouts = {(name, version) for name, version, _ in schema.data_layouts()}
    by_hand = {(message.name, message.version) for message in golden.by_hand()}
    headers = {(name, version) for name, version in layouts if name in ("RequestHeader", "ResponseHeader")}
    assert {(message.name, message.version) for message in golden.data()} == layouts - by_hand - headers
    assert len(by_hand) == 2 + 1 + 3 + 3 + 11 + 11


def test_data_is_what_kafkas_json_converters_print_and_encodes_to_kafkas_bytes() -> None:
    for message in golden.data():
        decoded = tree.decode_data(message.data, message.name, message.version)
        assert decoded.reason is None, (message.name, message.version)
        assert equal(decoded.body, message.body, {}), f"{message.name}\n{decoded.body}\n{message.json}"
        exact = tree.decode_data(message.data, message.name, message.version, exact=True).body
        assert exact is not None
        assert encode_data(exact, message.name, message.version) == message.data


def test_what_is_defined_by_hand_is_what_kafkas_code_writes_and_reads() -> None:
    for message in golden.by_hand():
        if message.name in STREAMS:
            continue
        start = 2 if message.name.startswith("Connect") else 0
        decoded = tree.decode_data(message.data, message.name, message.version, start=start)
        assert (decoded.reason, decoded.body) == (None, message.body)
        assert message.data[:start] + encode_data(message.body, message.name, message.version) == message.data
        if start:
            role = METADATA if message.name.endswith("Metadata") else ASSIGNMENT
            opened = member_data(message.data, role, "connect", "sessioned")
            assert (opened.type, opened.version, opened.body) == (message.name, message.version, message.body)
            assert member_data(message.data, role, None, None).type == message.name
            check_spans(opened.nodes, 0, len(message.data))


def test_records_of_internal_topics_are_what_kafkas_own_serdes_read() -> None:
    """Every type in every version, with what says type and version, and a tombstone of each type that has a key."""
    seen: Counter[str] = Counter()
    for topic, key, value, body in golden.records():
        opened = decoded(topic, key, value)
        opened.pop("embedded", None)  # arbitrary bytes in golden data
        assert equal(opened, body, {}), f"{opened}\n{body}"
        seen[topic] += 1
        if topic != "__cluster_metadata":
            assert embedded.record_secrets(topic, key, value) == []
    assert seen == {
        "__consumer_offsets": 22 + 22 + 8,  # types, tombstones, and four versions more of two types
        "__transaction_state": 3,
        "__share_group_state": 4,
        "__cluster_metadata": 27 + 11,
    }


# --- group protocols --------------------------------------------------------------------------------------------------


def subscription(user_data: bytes | None, version: int = 1) -> bytes:
    return prefixed("ConsumerProtocolSubscription", version, {"topics": ["orders"], "userData": user_data})


def test_a_subscription_with_user_data_of_the_sticky_assignors() -> None:
    for message in golden.by_hand():
        if "Sticky" in message.name:
            assignor = "sticky" if message.name.startswith("Sticky") else "cooperative-sticky"
            opened = member_data(subscription(message.data), METADATA, "consumer", assignor)
            ((path, inside),) = opened.inside
            assert (path, inside.type, inside.version, inside.body) == (
                "userData",
                message.name,
                message.version,
                message.body,
            )
            check_spans(opened.nodes, 0, len(subscription(message.data)))


def test_librdkafkas_cooperative_assignor_sends_user_data_as_the_sticky_one_does() -> None:
    data = encode_data({"previousAssignment": [], "generation": 4}, "StickyAssignorUserData", 1)
    opened = member_data(subscription(data), METADATA, "consumer", "cooperative-sticky")
    assert opened.inside[0][1].body == {"previousAssignment": [], "generation": 4}


def part_of(part: Any, whole: Any) -> bool:
    """Is our body what a generated class of Kafka's holds, but for fields that this version does not have?"""
    if isinstance(part, dict):
        return all(part_of(value, whole[name]) for name, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(part_of(a, b) for a, b in zip(part, whole, strict=True))
    return bool(part == whole)


def as_assignment_info(body: dict[str, Any]) -> dict[str, Any]:
    """A body as the getters of Kafka's AssignmentInfo say it: tasks and partitions by name."""
    topics = {message["topicIndex"]: message["topic"] for message in body.get("topics", ())}

    def task(message: dict[str, Any]) -> str:
        name = "".join(map(chr, message.get("namedTopology", ())))
        return f"{name + '__' if name else ''}{message['topicGroupId']}_{message['partition']}"

    def partitions(some: list[dict[str, Any]]) -> list[str]:
        named = (
            (message["topic"] if "topic" in message else topics[message["topicIndex"]], message["partition"])
            for message in some
        )
        return sorted(f"{topic}-{partition}" for topic, partition in named)

    def by_host(some: list[dict[str, Any]]) -> dict[str, list[str]]:
        return {f"{message['host']}:{message['port']}": partitions(message["partitions"]) for message in some}

    return {
        "version": body["version"],
        "commonlySupportedVersion": body.get("commonlySupportedVersion", -1),
        "activeTasks": [task(message) for message in body["activeTasks"]],
        "standbyTasks": {task(message): partitions(message["partitions"]) for message in body["standbyTasks"]},
        "partitionsByHost": by_host(body.get("partitionsByHost", [])),
        "standbyPartitionsByHost": by_host(body.get("standbyPartitionsByHost", [])),
        "errCode": body.get("errCode", 0),
        "nextRebalanceMs": body.get("nextRebalanceMs", (1 << 63) - 1),
    }


def test_user_data_of_streams_in_every_version_is_what_streams_own_classes_read() -> None:
    seen: Counter[str] = Counter()
    for message in golden.by_hand():
        if message.name not in STREAMS:
            continue
        if message.name == "AssignmentInfo":
            body = {"assignedPartitions": [], "userData": message.data}
            blob = prefixed("ConsumerProtocolAssignment", 3, body)
        else:
            blob = subscription(message.data)
        opened = member_data(blob, STREAMS[message.name], "consumer", "stream")
        ((path, inside),) = opened.inside
        assert (path, inside.type, inside.version, inside.reason) == ("userData", message.name, message.version, None)
        assert inside.body is not None
        if message.name == "AssignmentInfo":
            assert as_assignment_info(inside.body) == message.body
        else:
            assert part_of(inside.body, message.body)
        assert encode_data(inside.body, message.name, message.version) == message.data
        check_spans(opened.nodes, 0, len(blob))
        seen[message.name] += 1
    assert seen == dict.fromkeys(STREAMS, 22)


@pytest.mark.parametrize(
    ("assignor", "user_data", "reason"),
    [
        ("mine", b"abc", "no definition for user data of assignor 'mine'"),
        ("stream", b"abc", "3 bytes have no room for a version"),
        ("stream", b"\0\0\0\x0c\0\0\0\x0c", "SubscriptionInfoData has no version 12"),
        (None, b"abc", "no assignor is said here"),
        ("sticky", b"abc", "StickyAssignorUserData.previousAssignment at byte 0: runs past the message"),
    ],
)
def test_other_user_data_stays_bytes_with_a_reason(assignor: str | None, user_data: bytes, reason: str) -> None:
    opened = member_data(subscription(user_data), METADATA, "consumer", assignor)
    assert opened.reason is None
    assert opened.body is not None
    assert opened.body["userData"] == base64.b64encode(user_data).decode()
    inside = opened.inside[0][1]
    assert (inside.body, inside.reason) == (None, reason)


def test_an_unknown_protocol_type_stays_bytes_with_a_reason() -> None:
    opened = member_data(b"{}", METADATA, "sr", "v0")
    assert (opened.type, opened.body, opened.reason) == (None, None, "no definition for protocol type 'sr'")
    opened = member_data(b"what", METADATA, None, None)
    assert opened.reason == "no protocol type is said here, and the bytes do not tell"


def test_a_later_version_is_read_as_the_last_known_one() -> None:
    """As Kafka does: what it adds lies behind."""
    data = b"\x00\x09" + subscription(None, 3)[2:]
    opened = member_data(data + b"new", METADATA, "consumer", "range")
    assert opened.body is not None
    assert (opened.version, opened.body["topics"], opened.reason) == (9, ["orders"], "3 trailing bytes")


def test_a_group_whose_protocol_is_not_said_is_read_by_content() -> None:
    """SyncGroup says it from version 5 on (KIP-559)."""
    blob = prefixed("ConsumerProtocolAssignment", 0, {"assignedPartitions": [{"topic": "t", "partitions": [1]}]})
    frame = encoding.encode_response(14, 3, 7, {"assignment": blob})
    nodes, opened = embedded.in_message(tree.decode_response(frame, 14, 3, tree=True), {"groupId": "g"})
    assert embedded.listed(opened) == [
        {
            "path": "assignment",
            "type": "ConsumerProtocolAssignment",
            "version": 0,
            "by_content": True,
            "value": {"assignedPartitions": [{"topic": "t", "partitions": [1]}], "userData": None},
        }
    ]
    check_spans(nodes, 0, len(frame))


def test_paths_lead_to_the_fields_of_the_body_and_spans_lie_in_the_frame() -> None:
    user_data = encode_data({"generation": 4}, "CooperativeStickyAssignorUserData", 0)
    blob = subscription(user_data)
    protocols = [{"name": "range", "metadata": subscription(None)}, {"name": "cooperative-sticky", "metadata": blob}]
    body = {"groupId": "g", "memberId": "", "protocolType": "consumer", "protocols": protocols}
    frame = encoding.encode_request(11, 7, 7, "me", body)
    decoded = tree.decode_request(frame, tree=True)
    nodes, opened = embedded.in_message(decoded)
    assert [(entry["path"], entry["type"]) for entry in embedded.listed(opened, "request.")] == [
        ("request.protocols[0].metadata", "ConsumerProtocolSubscription"),
        ("request.protocols[1].metadata", "ConsumerProtocolSubscription"),
        ("request.protocols[1].metadata.userData", "CooperativeStickyAssignorUserData"),
    ]
    check_spans(nodes, 0, len(frame))
    metadata = nodes[-1].children[1].children[1]
    assert metadata.value == "ConsumerProtocolSubscription v1"
    version, topics, inner, _ = metadata.children
    assert frame[version.start : version.end] == b"\x00\x01"
    assert frame[topics.children[0].start : topics.children[0].end] == b"\x00\x06orders"
    assert inner.value == "CooperativeStickyAssignorUserData v0"
    assert frame[inner.children[0].start : inner.children[0].end] == user_data


def test_members_of_a_group_record_are_opened_by_its_protocol() -> None:
    member = {"memberId": "m", "clientId": "c", "clientHost": "h", "sessionTimeout": 1, "rebalanceTimeout": 1}
    blob = prefixed("ConsumerProtocolAssignment", 0, {"assignedPartitions": [{"topic": "t", "partitions": [1]}]})
    value = prefixed(
        "GroupMetadataValue",
        3,
        {
            "protocolType": "consumer",
            "generation": 1,
            "protocol": "range",
            "leader": "m",
            "members": [{**member, "subscription": subscription(None), "assignment": blob}],
        },
    )
    key = coordinator_key("__consumer_offsets", 2, {"group": "g"})
    opened = decoded("__consumer_offsets", key, value)
    assert opened["value"]["members"][0]["assignment"] == base64.b64encode(blob).decode()
    assert [(entry["path"], entry["type"]) for entry in opened["embedded"]] == [
        ("value.members[0].subscription", "ConsumerProtocolSubscription"),
        ("value.members[0].assignment", "ConsumerProtocolAssignment"),
    ]


def blobs(body: Any, path: str) -> list[str]:
    """Paths of what a body has of members' metadata and assignments."""
    if isinstance(body, list):
        return [opened for index, item in enumerate(body) for opened in blobs(item, f"{path}[{index}]")]
    if isinstance(body, dict):
        return [opened for name, item in body.items() for opened in blobs(item, f"{path}.{name}")]
    names = ("metadata", "assignment", "memberMetadata", "memberAssignment")
    return [path] if isinstance(body, str) and body and path.rpartition(".")[2] in names else []


def at(body: Any, path: str) -> Any:
    """Follow a path as in `members[0].metadata`."""
    for step in path.replace("[", ".").replace("]", "").split("."):
        body = body[int(step)] if isinstance(body, list) else body[step]
    return body


# --- what real clients said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("group-classic-librdkafka-4.3", {"JoinGroup": 23, "SyncGroup": 18, "DescribeGroups": 2}),
        ("codecs-java-2.8", {"JoinGroup": 3, "SyncGroup": 2}),
        ("codecs-franzgo-4.3", {"JoinGroup": 6, "SyncGroup": 2}),
        ("client-kafkajs-3.9", {"JoinGroup": 3, "SyncGroup": 2}),
        ("zoo-streams-classic-4.3", {"JoinGroup": 22, "SyncGroup": 16}),
    ],
)
def test_every_group_message_of_real_clients_is_opened_to_the_last_byte(name: str, expected: dict[str, int]) -> None:
    counts: Counter[str] = Counter()
    (path,) = capture_files(real_folder(name))
    for exchange in analyzer.exchanges(path, filter="api in (JoinGroup, SyncGroup, DescribeGroups)"):
        entries = exchange.embedded()
        assert all("reason" not in entry for entry in entries), entries
        paths = [entry["path"] for entry in entries if not entry["path"].endswith(".userData")]
        assert paths == [*blobs(exchange.request, "request"), *blobs(exchange.response, "response")]
        counts[exchange.api] += len(entries)
        shown = exchange.json()
        assert shown.get("embedded", []) == entries
        assert all(base64.b64decode(at(shown, path)) for path in paths)
        for side in ("request", "response"):
            opened = exchange.decoded(side, nodes=True)
            message = exchange.request_message if side == "request" else exchange.response_message
            if opened is not None and message is not None:
                check_spans(opened.nodes, 0, len(message.data) - 4)
    assert counts == expected


# --- records of internal topics ---------------------------------------------------------------------------------------


def test_an_offset_commit() -> None:
    key = coordinator_key("__consumer_offsets", 1, COMMIT)
    value = prefixed("OffsetCommitValue", 3, OFFSET)
    text = decode_record("__consumer_offsets", key, value)
    assert text == (
        '{"type":"OffsetCommit","key":{"group":"g","topic":"orders","partition":3},"version":3,'
        '"value":{"offset":7,"leaderEpoch":1,"metadata":"","commitTimestamp":9}}'
    )


def test_a_tombstone_has_a_value_of_null() -> None:
    key = coordinator_key("__consumer_offsets", 1, COMMIT)
    assert decoded("__consumer_offsets", key, None) == {"type": "OffsetCommit", "key": COMMIT, "value": None}


def test_the_first_key_format_may_have_a_value_of_any_version() -> None:
    key = coordinator_key("__consumer_offsets", 0, COMMIT)
    old = {"offset": 7, "metadata": "", "commitTimestamp": 9}
    opened = decoded("__consumer_offsets", key, prefixed("LegacyOffsetCommitValue", 0, old))
    assert (opened["type"], opened["value"]) == ("LegacyOffsetCommit", old)
    opened = decoded("__consumer_offsets", key, prefixed("OffsetCommitValue", 3, OFFSET))
    assert (opened["type"], opened["version"], opened["value"]) == ("LegacyOffsetCommit", 3, OFFSET)


def test_records_of_other_topics_are_not_decoded() -> None:
    assert decode_record("orders", b"\x00\x01", b"") is None


@pytest.mark.parametrize(
    ("topic", "key", "value", "reason"),
    [
        ("__consumer_offsets", None, b"", "value: a record without a key"),
        ("__consumer_offsets", b"\x00", b"", "value: key: 1 bytes have no room for a type"),
        ("__consumer_offsets", b"\x00\x63", b"", "key: unknown record type 99; value: the key has no known type"),
        ("__cluster_metadata", None, b"", "value: frameVersion at byte 0: no varint"),
        ("__cluster_metadata", None, b"\x00\x00\x00", "value: unknown frame version 0"),
        ("__cluster_metadata", None, b"\x01\xff\x01\x00", "value: unknown record type 255"),
        ("__cluster_metadata", None, b"\x01\x02\x09", "value: TopicRecord has no version 9"),
        ("__cluster_metadata", None, b"\x01\x02\xff\xff\xff\xff\xff", "value: version at byte 2: no varint"),
        ("__cluster_metadata", None, b"\x01\x02\x00\x05a", "value: TopicRecord.name at byte 3: runs past the message"),
        ("__transaction_state", b"\x00\x00\x00\x01t", b"\x00", "value: 1 bytes have no room for a version"),
    ],
)
def test_what_cannot_be_decoded_says_why(topic: str, key: bytes | None, value: bytes, reason: str) -> None:
    opened = decoded(topic, key, value)
    assert opened["reason"] == reason
    assert opened["value"] is None


def test_secrets_of_metadata_records_are_lengths() -> None:
    scram = {
        "name": "alice",
        "mechanism": 1,
        "salt": b"saltsalt",
        "storedKey": b"stored",
        "serverKey": b"server",
        "iterations": 4096,
    }
    value = metadata_value("UserScramCredentialRecord", 0, scram)
    assert decoded("__cluster_metadata", None, value)["value"] == {
        "name": "alice",
        "mechanism": 1,
        "salt": {"redactedBytes": 8},
        "storedKey": {"redactedBytes": 6},
        "serverKey": {"redactedBytes": 6},
        "iterations": 4096,
    }
    spans = embedded.record_secrets("__cluster_metadata", None, value)
    assert [value[start:end] for start, end in spans] == [b"saltsalt", b"stored", b"server"]
    config = {"resourceType": 4, "resourceName": "", "name": "ssl.key.password", "value": "hunter2"}
    value = metadata_value("ConfigRecord", 0, config)
    assert decoded("__cluster_metadata", None, value)["value"]["value"] == {"redactedBytes": 7}
    assert embedded.record_secrets("__cluster_metadata", None, value[:-1] + b"!") != []
    harmless = metadata_value("ConfigRecord", 0, {**config, "name": "retention.ms", "value": "9"})
    assert decoded("__cluster_metadata", None, harmless)["value"]["value"] == "9"
    assert embedded.record_secrets("__cluster_metadata", None, harmless) == []
    assert embedded.record_secrets("__cluster_metadata", None, b"\x01\x7f\x00abc") == [(0, 6)]
    assert embedded.record_secrets("orders", b"k", b"v") == []


# --- control records --------------------------------------------------------------------------------------------------


def control_key(number: int) -> bytes:
    return b"\x00\x00" + number.to_bytes(2, "big")


def test_the_end_of_a_transaction() -> None:
    for number, name in ((0, "abort"), (1, "commit")):
        value = prefixed("EndTxnMarker", 0, {"coordinatorEpoch": 5})
        assert decoded("orders", control_key(number), value, control=True) == {
            "type": name,
            "key": {"type": number},
            "version": 0,
            "value": {"coordinatorEpoch": 5},
        }
        assert embedded.control_type(control_key(number)) == name


def test_every_control_record_that_kafka_defines() -> None:
    seen = set()
    for number, (name, definition) in embedded.CONTROL_TYPES.items():
        for message in golden.data():
            if message.name == definition and name != "abort":
                # The version is KRaft's first field; what lies there in golden data is arbitrary.
                prefix = message.version.to_bytes(2, "big")
                value = prefix + (message.data if definition == "EndTxnMarker" else message.data[2:])
                opened = decoded("any", control_key(number), value, control=True)
                body = message.body if definition == "EndTxnMarker" else {**message.body, "version": message.version}
                assert (opened["type"], opened["version"], opened["value"]) == (name, message.version, body)
                seen.add((name, message.version))
    assert len(seen) == 7


def test_control_records_that_are_not_known() -> None:
    opened = decoded("t", control_key(77), b"abc", control=True)
    assert opened["type"] == "UNKNOWN_77"
    assert opened["reason"] == "value: unknown control record type 77"
    assert decoded("t", None, b"abc", control=True)["reason"] == "value: a control record without a key"
    assert decoded("t", b"\x00", b"abc", control=True)["value"] is None
    assert decoded("t", control_key(2), b"\x00", control=True)["reason"].endswith("no room for a version")
    assert embedded.control_type(b"\x00") is embedded.control_type(None) is None


# --- hostile bytes ----------------------------------------------------------------------------------------------------


def damaged(data: bytes, source: random.Random) -> bytes:
    """Cut, changed, grown, or something else altogether."""
    kind = source.randrange(5)
    if kind == 0:
        return data[: source.randrange(len(data) + 1)]
    if kind == 1:
        return data + source.randbytes(source.randrange(1, 20))
    if kind == 2:
        return source.randbytes(source.randrange(64))
    changed = bytearray(data)
    for _ in range(source.randrange(1, 4)):
        if changed:
            changed[source.randrange(len(changed))] = source.choice((0, 0x7F, 0x80, 0xFF, source.randrange(256)))
    return bytes(changed)


def test_hostile_bytes_give_a_reason_never_an_exception() -> None:
    source = random.Random(5)
    blobs = [message.data for message in golden.data()] + [message.data for message in golden.by_hand()]
    topics = [*schema.TOPICS, "orders"]
    assignors = ("sticky", "cooperative-sticky", "stream", None)
    for _ in range(6000):
        data = damaged(source.choice(blobs), source)
        number = source.randrange(-1, 32) & 0xFFFF
        key = damaged(number.to_bytes(2, "big") + source.choice(blobs), source)
        value = source.choice((data, b"\x00\x00" + data, bytes([1, number & 0x7F, source.randrange(4)]) + data))
        for topic in topics:
            for control in (False, True):
                text = decode_record(topic, key, value, control=control)
                if text is not None:
                    parsed = json.loads(text)
                    assert parsed["value"] is not None or "reason" in parsed
            for start, end in embedded.record_secrets(topic, key, value):
                assert 0 <= start < end <= len(value)
        for role in (METADATA, ASSIGNMENT):
            for protocol_type in ("consumer", "connect", None, "other"):
                opened = member_data(value, role, protocol_type, source.choice(assignors))
                assert opened.body is not None or opened.reason
                check_spans(opened.nodes, 0, len(value))
                json.dumps(embedded.listed(opened.inside), allow_nan=False)


def test_a_blob_that_claims_endless_elements_is_refused_at_once() -> None:
    endless = b"\x00\x00\x7f\xff\xff\xff" + bytes(4000)
    opened = member_data(endless, METADATA, "consumer", None)
    assert opened.reason == "ConsumerProtocolSubscription.topics at byte 2: has more elements than bytes are left"
    deep = prefixed("ConsumerProtocolSubscription", 0, {"topics": [""] * (embedded.MAX_ROWS + 1)})
    opened = member_data(deep, METADATA, "consumer", None)
    assert opened.reason is not None
    assert opened.reason.endswith("has more fields than the limit allows")


def test_messages_with_hostile_blobs_are_shown() -> None:
    source = random.Random(6)
    blobs = [message.data for message in golden.data() if message.name.startswith("Consumer")]
    for _ in range(300):
        members = [{"memberId": "m", "metadata": damaged(source.choice(blobs), source)} for _ in range(3)]
        protocol_type = source.choice(("consumer", "connect", None))
        body = {"protocolName": "sticky", "protocolType": protocol_type, "members": members}
        frame = encoding.encode_response(11, 7, 7, body)
        nodes, opened = embedded.in_message(tree.decode_response(frame, 11, 7, tree=True), {"protocolType": None})
        check_spans(nodes, 0, len(frame))
        for entry in embedded.listed(opened):
            assert entry["value"] is not None or entry["reason"]
    assert (embedded.has_embedded(11, REQUEST), embedded.has_embedded(3, RESPONSE)) == (True, False)


# --- as clients of other makes write them -----------------------------------------------------------------------------


def test_what_ends_after_user_data_is_what_was_written() -> None:
    """kafka-go, kafkajs 1.4 and others say version 1, and write the fields of version 0; pykafka leaves out more."""
    newest = prefixed("ConsumerProtocolSubscription", 0, {"topics": ["orders"], "userData": b"abc"})
    opened = member_data(b"\x00\x01" + newest[2:], METADATA, "consumer", "range")
    assert (opened.type, opened.version) == ("ConsumerProtocolSubscription", 1)
    assert opened.body == {"topics": ["orders"], "userData": "YWJj"}
    assert opened.reason == f"ConsumerProtocolSubscription.ownedPartitions at byte {len(newest)}: runs past the message"
    assert [path for path, _ in opened.inside] == ["userData"]
    whole = {"assignedPartitions": [{"topic": "orders", "partitions": [0, 1]}], "userData": None}
    data = prefixed("ConsumerProtocolAssignment", 1, whole)[:-4]
    for protocol_type in ("consumer", None):
        cut = member_data(data, ASSIGNMENT, protocol_type, None)
        assert cut.body == {"assignedPartitions": whole["assignedPartitions"]}
        assert cut.reason == f"ConsumerProtocolAssignment.userData at byte {len(data)}: runs past the message"
        assert cut.by_content == (protocol_type is None)


def test_what_ends_inside_a_field_is_no_value() -> None:
    data = prefixed("ConsumerProtocolSubscription", 1, {"topics": ["orders"], "userData": None})
    for size in range(3, len(data)):
        opened = member_data(data[:size], METADATA, "consumer", "range")
        fields = {12 + 2: ["topics"], 12 + 6: ["topics", "userData"]}
        assert list(opened.body or ()) == fields.get(size, []), size
        assert opened.reason is not None


@pytest.mark.parametrize("name", ["zoo-kafka-go-0.4.51-on-4.3", "zoo-kafkajs-1.4.5-on-2.8", "zoo-pykafka-2.8-on-2.8"])
def test_members_of_other_makes(name: str) -> None:
    """And what JoinGroup said of the group holds for SyncGroup, which did not say it yet."""
    opened = [
        (exchange.api, entry)
        for exchange in analyzer.exchanges(capture_files(real_folder(name))[0])
        if exchange.api in ("JoinGroup", "SyncGroup")
        for entry in exchange.embedded()
        if not entry["path"].endswith("userData")
    ]
    assert {entry["type"] for _, entry in opened} == {"ConsumerProtocolSubscription", "ConsumerProtocolAssignment"}
    assert all(entry["value"] for _, entry in opened)
    assert not any("by_content" in entry for _, entry in opened)


def test_what_a_group_said_is_kept_by_group() -> None:
    groups = embedded.GroupProtocols()
    assert groups.learn({"groupId": "a", "protocolType": "connect"}, None) == {"protocolType": "connect"}
    assert groups.learn({"groupId": "b"}, {"protocolName": ""}) == {}
    chosen = groups.learn({"groupId": "a", "protocolType": "connect"}, {"protocolName": "sessioned"})
    assert groups.learn({"groupId": "a"}, None) == chosen == {"protocolType": "connect", "protocolName": "sessioned"}
    assert groups.learn(None, {"protocolName": "x"}) == {}
