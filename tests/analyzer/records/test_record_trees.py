"""Record sets as trees, and records of internal topics as real brokers wrote them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.cli.exchange_lines import Lines
from kwire.analyzer.messages import raw_messages
from kwire.analyzer.protocol import embedded, encoding, schema, tree
from kwire.analyzer.protocol.budget import Budget
from kwire.analyzer.protocol.encoding import encode_data
from kwire.analyzer.protocol.schema import RESPONSE
from kwire.analyzer.protocol.tree import Node
from kwire.analyzer.records import record_trees as record_tree
from kwire.analyzer.records.record_trees import CLUSTER_METADATA_ID, record_set
from tests.analyzer.protocol.test_embedded import damaged, metadata_value
from tests.analyzer.protocol.test_tree import check_spans
from tests.analyzer.records import recordsets
from tests.shared import capture_files, real_folder


def batch(*records: tuple[bytes | None, bytes | None], codec: int = 0, control: bool = False) -> bytes:
    """A batch of magic 2, by aiokafka, an independent writer."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, (key, value) in enumerate(records):
        builder.append(offset, timestamp=1000 + offset, key=key, value=value, headers=[("h", b"1"), ("null", None)])
    data = bytearray(builder.build())
    if control:
        data[22] |= 0x20
    return bytes(data)


def flat(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from flat(node.children)


def named(nodes: tuple[Node, ...], name: str) -> list[Node]:
    return [node for node in flat(nodes) if node.name == name]


# --- trees ------------------------------------------------------------------------------------------------------------


def test_a_batch_field_by_field_with_its_bytes() -> None:
    data = batch((b"key", b"value"), (None, None))
    result = record_set(data, "orders")
    assert (result.label(len(data)), result.typed) == (f"1 batch, {len(data)} bytes", ())
    check_spans(result.nodes, 0, len(data))
    (whole,) = result.nodes
    assert whole.value == "base offset 0, 2 records"
    values = {node.name: node.value for node in whole.children}
    assert values["magic"] == 2
    assert values["attributes"] == "0 (none, CreateTime)"
    assert values["crc"].endswith("(right)")
    assert values["recordsCount"] == 2
    first, second = whole.children[-1].children
    assert (first.value, second.value) == ("offset 0, timestamp 1000", "offset 1, timestamp 1001")
    key, value, headers = first.children[4:]
    assert (key.value, data[key.start : key.end]) == ("key", b"\x06key")
    assert (value.value, data[value.start : value.end]) == ("value", b"\x0avalue")
    assert [header.value for header in headers.children] == ["h=1", "null=null"]
    assert data[headers.children[0].start : headers.children[0].end] == b"\x02h\x021"
    assert second.end == len(data)
    assert [node.null for node in second.children[4:6]] == [True, True]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_of_a_compressed_batch_have_no_bytes_of_their_own(codec: int) -> None:
    data = batch(*[(b"k", b"repeat " * 20)] * 3, codec=codec)
    result = record_set(data, "orders")
    check_spans(result.nodes, 0, len(data))
    records = result.nodes[0].children[-1]
    assert "decompressed" in records.value
    assert [node.value for node in named(records.children, "value")] == ["repeat " * 20] * 3
    assert all(node.start == node.end for node in flat(records.children))


def test_old_messages() -> None:
    data = recordsets.old_message(0, 7, b"k", b"v") + recordsets.old_message(1, 8, None, b"w", timestamp=5)
    result = record_set(data, "orders")
    check_spans(result.nodes, 0, len(data))
    assert [node.value for node in result.nodes] == ["base offset 7, 1 record", "base offset 8, 1 record"]
    assert [node.type for node in result.nodes] == ["message", "message"]
    assert [node.value for node in named(result.nodes, "crc")] == [
        f"0x{int.from_bytes(data[12:16], 'big'):08x} (right)",
        f"0x{int.from_bytes(data[40:44], 'big'):08x} (right)",
    ]
    value = named(result.nodes, "value")[0]
    assert data[value.start : value.end] == b"\x00\x00\x00\x01v"
    assert [node.value for node in result.nodes[1].children[-1].children] == ["offset 8, timestamp 5"]


def test_a_batch_that_is_cut_off_or_broken_says_so() -> None:
    data = batch((b"key", b"value"))
    result = record_set(data + data[:-5], "orders")
    check_spans(result.nodes, 0, 2 * len(data) - 5)
    assert result.nodes[1].value == f"base offset 0, 1 record, cut off: {len(data) - 5} of {len(data)} bytes"
    wrong = bytearray(data)
    wrong[-1] ^= 1
    assert "(wrong)" in named(record_set(bytes(wrong), "orders").nodes, "crc")[0].value
    wrong[16] = 9
    assert record_set(bytes(wrong), "orders").nodes[0].value == "base offset 0, magic 9 is not known"


def test_only_so_many_records_become_nodes_and_the_rest_is_counted() -> None:
    data = b"".join(batch(*[(None, b"v")] * 4000) for _ in range(3))
    result = record_set(data, "orders", budget=Budget(seconds=3600))
    assert len(named(result.nodes, "value")) == Budget().nodes == 10_000
    why = "the records of one message that are shown are limited (--page)"
    assert result.label(len(data)) == f"3 batches, {len(data)} bytes (and 2,000 records more: {why})"
    assert result.listed("p") == [{"path": "p", "left_out": 2000, "reason": why}]


def test_time_ends_within_a_batch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.analyzer.records.record_trees.LOOKS", 4)
    stopped = record_set(batch(*((None, b"x") for _ in range(10))), "orders", budget=Budget(nodes=10, seconds=-1.0))
    assert (stopped.left_out, stopped.stopped) == (7, "stopped after -1 s"), "and it is the time that is named"


def test_all_fields_of_a_message_share_one_budget() -> None:
    budget = Budget(nodes=10)
    data = batch(*[(None, b"v")] * 12)
    assert record_set(data, "orders", budget=budget).left_out == 2
    assert record_set(data, "orders", budget=budget).left_out == 12
    assert record_set(data, "orders", budget=Budget(nodes=12)).stopped is None


def test_what_is_decompressed_and_how_long_it_takes_is_limited_and_said() -> None:
    data = batch(*[(None, b"v" * 100)] * 5)
    late = record_set(data * 20, "orders", budget=Budget(seconds=-1.0))
    assert (late.left_out, late.stopped) == (60, "stopped after -1 s"), "a few batches are always opened"
    used = record_set(data, "orders", budget=Budget(bytes=0))
    assert (used.left_out, used.stopped) == (5, "what is decompressed of one message is limited (--budget)")


def test_long_and_binary_content_is_cut_for_people() -> None:
    data = batch((b"\xff\x00", b"x" * 5000))
    key, value = record_set(data, "orders").nodes[0].children[-1].children[0].children[4:6]
    assert (key.value, value.value) == ("0xff00", "x" * 200 + "... (5,000 bytes)")


# --- records with a format of their own -------------------------------------------------------------------------------


def fetch(topic_id: str, data: bytes, version: int = 17) -> bytes:
    """A Fetch response's frame."""
    partition = {"partitionIndex": 0, "records": data}
    return encoding.encode_response(1, version, 7, {"responses": [{"topicId": topic_id, "partitions": [partition]}]})


def opened(frame: bytes, name: str = "?") -> tuple[tuple[Node, ...], list[dict[str, Any]]]:
    decoded = tree.decode_response(frame, 1, 17, tree=True)
    openers = record_tree.openers(1, RESPONSE, lambda topic: name)
    nodes, nested = embedded.nested(decoded.nodes, openers, {})
    return nodes, embedded.listed(nested, "response.")


def test_records_of_cluster_metadata_are_known_by_its_topic_id() -> None:
    topic_id = "B" * 21 + "A"
    value = metadata_value("TopicRecord", 0, {"name": "orders", "topicId": topic_id})
    frame = fetch(CLUSTER_METADATA_ID, batch((None, value)))
    nodes, listed = opened(frame)
    assert listed == [
        {
            "path": "response.responses[0].partitions[0].records[0]",
            "offset": 0,
            "type": "TopicRecord",
            "version": 0,
            "value": {"name": "orders", "topicId": topic_id},
        }
    ]
    check_spans(nodes, 0, len(frame))
    (name,) = [node for node in named(nodes, "name") if node.value == "orders"]
    assert frame[name.start : name.end] == b"\x07orders"


def test_control_records_are_typed_in_any_topic() -> None:
    marker = b"\x00\x00" + encode_data({"coordinatorEpoch": 3}, "EndTxnMarker", 0)
    _, listed = opened(fetch("B" * 21 + "A", batch((b"\x00\x00\x00\x01", marker), control=True)), "orders")
    assert [(entry["type"], entry["value"]) for entry in listed] == [("commit", {"coordinatorEpoch": 3})]


def test_a_snapshot_of_cluster_metadata() -> None:
    header = {"version": 0, "lastContainedLogTimestamp": 9}
    records = batch((b"\x00\x00\x00\x03", encode_data(header, "SnapshotHeaderRecord", 0)), control=True)
    records += batch((None, metadata_value("NoOpRecord", 0, {})))
    topic = {"name": "__cluster_metadata", "partitions": [{"index": 0, "unalignedRecords": records}]}
    frame = encoding.encode_response(59, 0, 7, {"topics": [topic]})
    openers = record_tree.openers(59, RESPONSE, str, nodes=False)
    _, nested = embedded.nested(tree.decode_response(frame, 59, 0, tree=True).nodes, openers, {})
    assert [(entry["path"], entry["type"], entry["value"]) for entry in embedded.listed(nested)] == [
        ("topics[0].partitions[0].unalignedRecords[0]", "SnapshotHeader", header),
        ("topics[0].partitions[0].unalignedRecords[1]", "NoOpRecord", {}),
    ]


SECRETS = (b"S4ltS4lt", b"St0redKey", b"S3rverKey")


def scram_fetch(*, broken: bool = False, codec: int = 0) -> bytes:
    scram = {"name": "alice", "mechanism": 1, "salt": SECRETS[0], "storedKey": SECRETS[1], "serverKey": SECRETS[2]}
    value = metadata_value("UserScramCredentialRecord", 0, {**scram, "iterations": 4096})
    if broken:
        value = b"\x01\x7f" + value[2:]
    config = metadata_value("ConfigRecord", 0, {"name": "retention.ms", "value": "604800000"})
    return fetch(CLUSTER_METADATA_ID, batch((None, config), (None, value), codec=codec))


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("codec", [0, 1])
def test_secrets_of_cluster_metadata_are_not_shown(broken: bool, codec: int) -> None:
    frame = scram_fetch(broken=broken, codec=codec)
    nodes, listed = opened(frame)
    lines: list[str] = []
    assert Lines()._nodes(nodes, frame, 1, lines) == 0
    text = "\n".join(lines) + json.dumps(listed) + repr(nodes)
    assert "604800000" in text
    for secret in SECRETS:
        assert secret.decode() not in text
        assert secret.hex(" ") not in text
    if not broken:
        assert listed[1]["value"]["salt"] == {"redactedBytes": 8}


@pytest.mark.parametrize("codec", [0, 1])
def test_secrets_of_cluster_metadata_are_overwritten_in_stored_bytes(codec: int) -> None:
    frame = scram_fetch(codec=codec)
    stored = raw_messages.masked(len(frame).to_bytes(4, "big") + frame, 1, 17, request=False)[4:]
    assert len(stored) == len(frame)
    for secret in SECRETS:
        assert secret not in stored
    if codec == 0:
        assert b"604800000" in stored  # only secrets are overwritten
        changed = sum(a != b for a, b in zip(stored, frame, strict=True))
        assert changed == sum(map(len, SECRETS))
    cut = raw_messages.masked(len(frame).to_bytes(4, "big") + frame[:-9], 1, 17, request=False)[4:]
    assert cut == frame[:4] + b"*" * (len(frame) - 13)
    harmless = fetch("B" * 21 + "A", batch((None, b"v")))
    assert raw_messages.masked(harmless, 1, 17, request=False) == harmless


def test_hostile_record_sets_become_trees() -> None:
    source = random.Random(7)
    value = metadata_value("TopicRecord", 0, {"name": "orders", "topicId": CLUSTER_METADATA_ID})
    sets = [batch((b"k", value), (None, None), codec=codec) for codec in range(5)]
    sets += [batch((b"\x00\x00\x00\x01", b"\x00\x00\x00"), control=True), recordsets.old_message(1, 8, None, b"w")]
    for _ in range(1500):
        data = damaged(source.choice(sets) + source.choice(sets), source)
        for topic in ("__cluster_metadata", "__consumer_offsets", "orders"):
            result = record_set(data, topic)
            check_spans(result.nodes, 0, len(data))
            for whole in result.nodes:  # a batch by itself, its records made later
                part = data[whole.start : whole.end]
                alone = record_set(part, topic).nodes[0]
                assert plain(record_tree.later(part, topic, 0, Budget())[0]) == plain(alone)
            json.dumps(result.listed("records"), allow_nan=False)
        for start, end in record_tree.secret_spans(data, "__cluster_metadata"):
            assert 0 <= start < end <= len(data)


# --- records that become nodes when they are looked at ----------------------------------------------------------------


def plain(node: Node) -> Node:
    """Return the node with all its children made."""
    return node._replace(children=tuple(map(plain, node.children)))


def inside(node: Node) -> record_tree.Records:
    children = next(child.children for child in node.children if child.type == "records")
    assert isinstance(children, record_tree.Records)
    return children


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("topic", ["orders", "__consumer_offsets"])
def test_records_looked_at_later_are_those_made_at_once(codec: int, topic: str) -> None:
    group = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    data = batch((b"k", b"v" * 300), (None, None), (group, b""), (b"", b"w"), codec=codec)
    (whole,) = record_set(data, topic).nodes
    node, stopped = record_tree.later(data, topic, 0, Budget())
    assert stopped is None
    assert plain(node) == plain(whole)
    records = inside(node)
    assert len(records) == 4
    assert [records[at] for at in (3, 0, 2, 1)] == [inside_of(whole)[at] for at in (3, 0, 2, 1)]
    for offset in range(-1, len(data) + 1):
        holds = [at for at, child in enumerate(records) if child.start <= offset < child.end]
        assert records.holding(offset) == (holds[0] if holds else None)
        assert len(holds) < 2
    further = record_tree.later(data, topic, 1000, Budget())[0]
    assert plain(further) == plain(embedded.shifted((whole,), 1000)[0])
    assert {inside(further).holding(1000 + offset) for offset in range(len(data))} == {
        records.holding(offset) for offset in range(len(data))
    }


def inside_of(node: Node) -> tuple[Node, ...]:
    return next(child.children for child in node.children if child.type == "records")


def test_of_the_records_of_a_batch_those_are_made_that_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(b"key-%d" % at, b"value") for at in range(5_000)]
    names: list[str] = []
    real = record_tree._record

    def counted(name: str, *rest: Any) -> Node:
        names.append(name)
        return real(name, *rest)

    monkeypatch.setattr(record_tree, "_record", counted)
    node, _ = record_tree.later(batch(*records, codec=1), "orders", 0, Budget(nodes=5_000))
    assert len(inside(node)) == 5_000
    assert names == []
    looked = inside(node)[4_000:4_200]
    assert names == [record.name for record in looked] == [f"[{at}]" for at in range(4_000, 4_200)]
    assert [child.value for record in looked[:2] for child in record.children if child.name == "key"] == [
        "key-4000",
        "key-4001",
    ]


def test_so_many_records_of_a_batch_may_be_looked_at_and_why_not_more() -> None:
    data = batch(*[(b"k", b"v")] * 20)
    node, stopped = record_tree.later(data, "orders", 0, Budget(nodes=5))
    assert [child.name for child in inside(node)] == [f"[{at}]" for at in range(5)]
    assert stopped is not None
    assert "--page" in stopped
    assert record_tree.later(data[:-4], "orders", 0, Budget())[0].value.endswith("bytes")


# --- what real brokers wrote ------------------------------------------------------------------------------------------


def records_of(name: str, expression: str) -> list[dict[str, Any]]:
    """The records with a format in the exchanges of a capture that an expression lets through."""
    records = []
    for exchange in analyzer.exchanges(capture_files(real_folder(name)), filter=expression):
        for entry in exchange.embedded():
            assert "reason" not in entry, entry
            records.append(entry)
        decoded = exchange.decoded("response", nodes=True)
        if decoded is not None and exchange.response_message is not None:
            check_spans(decoded.nodes, 0, len(exchange.response_message.data) - 4)
    return records


def test_every_kraft_record_that_controllers_fetched_is_decoded() -> None:
    """Three controllers and brokers of 3.9, from before their start."""
    records = records_of("cluster-kraft-3.9", 'api == Fetch and client_id ~ "raft-client" and response_bytes > 99')
    counts = Counter(entry["type"] for entry in records)
    assert counts == {
        "NoOpRecord": 203,
        "PartitionChangeRecord": 73,
        "PartitionRecord": 18,
        "BrokerRegistrationChangeRecord": 18,
        "RegisterBrokerRecord": 8,
        "RegisterControllerRecord": 8,
        "TopicRecord": 6,
        "ConfigRecord": 6,
        "LeaderChange": 3,
        "FeatureLevelRecord": 2,
        "BeginTransactionRecord": 2,
        "EndTransactionRecord": 2,
        "ZkMigrationStateRecord": 2,
        "RemoveTopicRecord": 2,
    }
    assert {entry["value"]["name"] for entry in records if entry["type"] == "TopicRecord"} >= {"__consumer_offsets"}
    brokers = [entry["value"] for entry in records if entry["type"] == "RegisterBrokerRecord"]
    assert {point["port"] for broker in brokers for point in broker["endPoints"]} == {9092, 9102, 9112}
    assert all(entry["value"]["leaderId"] in (1, 2, 3) for entry in records if entry["type"] == "LeaderChange")


def test_the_offsets_that_replicas_fetched_are_those_that_clients_committed() -> None:
    folder = real_folder("cluster-zk-2.8")
    committed = {
        (exchange.request["groupId"], topic["name"], partition["partitionIndex"], partition["committedOffset"])
        for exchange in analyzer.exchanges(capture_files(folder), filter="api == OffsetCommit and error_code == 0")
        if exchange.request is not None
        for topic in exchange.request["topics"]
        for partition in topic["partitions"]
    }
    fetched = 'api == Fetch and topics == "__consumer_offsets" and response_bytes > 99'
    records = records_of("cluster-zk-2.8", fetched)
    offsets = [entry for entry in records if entry["type"] == "OffsetCommit"]
    stored = {(*entry["key"].values(), entry["value"]["offset"]) for entry in offsets}
    assert len(offsets) == 24
    assert stored <= committed
    assert stored
    groups = [entry for entry in records if entry["type"] == "GroupMetadata"]
    assert len(groups) == 5
    assert all(entry["value"]["protocolType"] == "consumer" for entry in groups)


def test_the_ends_of_transactions_are_as_many_as_were_ended() -> None:
    folder = real_folder("txn-librdkafka-4.3")
    ended = [
        exchange.request["committed"]
        for exchange in analyzer.exchanges(capture_files(folder), filter="api == EndTxn and error_code == 0")
        if exchange.request is not None
    ]
    records = records_of("txn-librdkafka-4.3", "api == Fetch")
    epochs = {entry["value"]["coordinatorEpoch"] for entry in records}
    assert (ended.count(True), ended.count(False), epochs) == (5, 2, {0})
    # Several consumers read the same markers, some partitions of several.
    markers = {(entry["path"].partition(".records")[0], entry["offset"], entry["type"]) for entry in records}
    assert {kind for _, _, kind in markers} == {"commit", "abort"}


def test_internal_topics_have_their_definitions() -> None:
    for topic in schema.TOPICS:
        assert embedded.read_record(topic, None, None) is not None
