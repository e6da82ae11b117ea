"""Keys and values that Kafka's own classes wrote: MirrorMaker, Connect, Kafka Streams.

Proves: analyzer/payloads/kafka_topics.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.payloads.limits import PayloadLimits
from tests.analyzer.cli.test_parser import printed
from tests.analyzer.payloads.golden_payloads import decoder, write_capture
from tests.shared import ROOT

WRITTEN = [
    (topic, side, bytes.fromhex(data), json.loads(read))
    for topic, side, data, read in (
        line.split("\t") for line in (ROOT / "tests" / "golden" / "payloads-4.3.1.tsv").read_text("utf-8").splitlines()
    )
]
FORMATS = {"heartbeats": "mirrormaker", "internal": "mirrormaker", "changelog": "streams", "topic": "streams"}
WINDOW = bytes.fromhex("0000019ac7bbe07b")


@pytest.mark.parametrize(("topic", "side", "data", "read"), WRITTEN, ids=range(len(WRITTEN)))
def test_what_kafkas_own_classes_wrote_is_read(topic: str, side: str, data: bytes, read: Any) -> None:
    payload = decoder().decode(data, topic, side)
    assert payload.json is not None, payload.reason
    assert json.loads(payload.json) == read
    if payload.format not in ("json", "text"):
        assert payload.format == FORMATS.get(topic.replace("-", ".").rpartition(".")[2], "streams")


def test_there_is_each_kind() -> None:
    assert {topic.partition("-")[0] for topic, *_ in WRITTEN} >= {"connect", "app", "mm2", "heartbeats"}
    assert len(WRITTEN) > 50


@pytest.mark.parametrize("topic", sorted({topic for topic, *_ in WRITTEN}))
def test_other_topics_do_not_have_these_forms(topic: str) -> None:
    for written, side, data, _ in WRITTEN:
        if written == topic and decoder().decode(data, topic, side).format in ("mirrormaker", "streams"):
            assert decoder().decode(data, f"{topic}.mine", side).format not in ("mirrormaker", "streams")


@pytest.mark.parametrize(
    ("topic", "side", "data"),
    [
        ("app-counts-changelog", "key", b"customer-7" + (123).to_bytes(8, "big") + bytes(4)),  # no time of this century
        ("app-counts-changelog", "key", b"customer-7" + WINDOW + b"\x7f\0\0\0"),  # no sequence number
        ("app-counts-changelog", "key", WINDOW + bytes(4)),  # no key
        ("app-counts-changelog", "key", b"customer-1764288000123"),  # text
        ("app-counts-changelog", "value", b"customer-7" + WINDOW + bytes(4)),
        ("us.checkpoints.internal", "key", b"\0\1g\0\6orders\0\0\0\0more"),
        ("us.checkpoints.internal", "key", b"\xff\xffg"),
        ("us.checkpoints.internal", "value", b"\0\1" + bytes(18)),  # a version to come
        ("heartbeats", "value", b"\0\0" + (5).to_bytes(8, "big")),
        ("heartbeats", "key", b"\0\2\xff\xfe\0\1a"),
        ("x-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic", "value", b"\x80\x09order"),
        ("x-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic", "value", b"\x00\x01order"),
        ("x-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000012-topic", "value", b"\x81{}"),
        ("x-KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000005-changelog", "key", b"\0\0\0\x40ab"),
        ("x-KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000005-changelog", "key", b"\xff\0\0\0ab"),
    ],
)
def test_near_misses_are_what_they_were(topic: str, side: str, data: bytes) -> None:
    payload = decoder().decode(data, topic, side)
    assert payload == decoder().decode(data, "another", side)
    assert payload.format not in ("mirrormaker", "streams")


def test_a_session_ends_after_it_began() -> None:
    start, later = WINDOW, (int.from_bytes(WINDOW, "big") + 1).to_bytes(8, "big")
    topic = "app-counts-changelog"
    assert decoder().decode(b"k" + later + start, topic, "key").format == "streams"
    assert decoder().decode(b"k" + start + later, topic, "key").format != "streams"


def test_values_in_it_are_decoded_as_others() -> None:
    """A key of the schema registry within a window's key."""
    key = next(case for case in golden_cases() if case.name == "avro-string-key")
    payload = decoder().decode(key.data + WINDOW + bytes(4), "app-counts-changelog", "key")
    assert payload.json is not None
    assert json.loads(payload.json)["key"] == key.json


def golden_cases() -> Any:
    from tests.analyzer.payloads.golden_payloads import golden

    return golden()[1]


def test_hostile_bytes_raise_nothing() -> None:
    chosen = random.Random(54)
    reader = decoder(limits=PayloadLimits(payload_bytes=1 << 12))
    for topic, side, data, _ in WRITTEN:
        for _ in range(40):
            broken = bytearray(data)
            for _ in range(chosen.randrange(1, 4)):
                broken[chosen.randrange(len(broken))] = chosen.randrange(256)
            broken = broken[: chosen.randrange(len(broken) + 1)]
            payload = reader.decode(bytes(broken), topic, side)
            assert payload.json is not None or payload.reason
    large = reader.decode(bytes(1 << 13), "us.checkpoints.internal", "key")
    assert (large.json, large.format) == (None, None)


def test_they_are_shown(tmp_path: Path) -> None:
    by_topic = {(topic, side): data for topic, side, data, _ in WRITTEN}
    topic = "mm2-offset-syncs.eu.internal"
    capture = write_capture(tmp_path / "c.pcap", [(topic, by_topic[topic, "key"], by_topic[topic, "value"], ())])
    (row,) = map(json.loads, printed("show", capture, "--records", "--payloads", "--json").splitlines())
    assert (row["key_format"], row["value_format"]) == ("mirrormaker", "mirrormaker")
    assert json.loads(row["key_json"]) == {"topic": "orders", "partition": 7}
    assert "upstreamOffset" in printed("show", capture, "--tree", "--payloads")
    assert printed("show", capture, "--filter", "value.upstreamOffset == 123456").count("Produce") == 1
