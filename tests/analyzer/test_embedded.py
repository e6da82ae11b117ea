"""Formats inside formats: group protocols, records of internal topics, control records; hostile bytes give a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analyzer import embedded, schema
from analyzer.embedded import decode_record
from analyzer.encoding import encode_data


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
    found = decoded("__consumer_offsets", key, prefixed("LegacyOffsetCommitValue", 0, old))
    assert (found["type"], found["value"]) == ("LegacyOffsetCommit", old)
    found = decoded("__consumer_offsets", key, prefixed("OffsetCommitValue", 3, OFFSET))
    assert (found["type"], found["version"], found["value"]) == ("LegacyOffsetCommit", 3, OFFSET)


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
    found = decoded(topic, key, value)
    assert found["reason"] == reason
    assert found["value"] is None


def test_secrets_of_metadata_records_are_lengths() -> None:
    scram = {
        "name": "alice", "mechanism": 1, "salt": b"saltsalt", "storedKey": b"stored", "serverKey": b"server",
        "iterations": 4096,
    }  # fmt: skip
    value = metadata_value("UserScramCredentialRecord", 0, scram)
    assert decoded("__cluster_metadata", None, value)["value"] == {
        "name": "alice", "mechanism": 1, "salt": {"redactedBytes": 8}, "storedKey": {"redactedBytes": 6},
        "serverKey": {"redactedBytes": 6}, "iterations": 4096,
    }  # fmt: skip
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
