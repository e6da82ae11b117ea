"""Keys and values in the trees of messages: their fields with their bytes, in batches of any codec.

Proves: analyzer/payloads/trees
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.payloads.trees import PayloadTrees
from kwire.analyzer.protocol.budget import Budget
from kwire.analyzer.protocol.tree import Node
from kwire.analyzer.records import record_trees
from tests.analyzer.cli.test_parser import kwire, printed, refused
from tests.analyzer.payloads.golden_payloads import Case, decoder, golden, record, write_capture, write_schemas
from tests.bench.messages import batch


def leaves(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield from leaves(node.children) if node.children else [node]


@pytest.mark.parametrize("case", golden()[1], ids=lambda case: case.name)
def test_fields_have_their_bytes(case: Case) -> None:
    opened = PayloadTrees(decoder())(case.data, case.topic, case.side, dict(case.headers))
    assert opened is not None
    assert (opened.reason, opened.body) == (None, {})
    assert opened.type is not None
    assert opened.type.lower().replace(" ", "_").startswith(case.format)
    names = {node.name for node in opened.nodes if node.type != "framing"}
    if case.format == "json_schema":
        assert names == set(case.json)
        return
    if isinstance(case.json, dict) and case.format == "avro":
        assert names == set(case.json)
    spans = [(node.start, node.end) for node in leaves(opened.nodes)]
    assert spans == sorted(spans)
    assert spans[-1][1] <= len(case.data)
    for node in leaves(opened.nodes):
        if node.type == "string" and node.value:
            assert node.value.encode() in case.data[node.start : node.end]


def value_of(data: bytes, topic: str, **more: Any) -> Node:
    """The node of the only record's value."""
    nodes = record_trees.record_set(data, topic, payloads=PayloadTrees(decoder()), **more).nodes
    (inside,) = next(child.children for child in nodes[0].children if child.type == "records")
    return next(child for child in inside.children if child.name == "value")


def test_fields_of_a_compressed_batch_have_no_bytes() -> None:
    case = golden()[1][0]
    records = [record(0, None, case.data)]
    plain = value_of(batch(records), case.topic)
    packed = value_of(batch(records, "gzip"), case.topic)
    assert [(node.name, node.value) for node in leaves((plain,))] == [
        (node.name, node.value) for node in leaves((packed,))
    ]
    assert len({(node.start, node.end) for node in leaves((packed,))}) == 1


def test_one_message_shows_no_more_than_its_budget() -> None:
    value = json.dumps({"a": list(range(1000))}).encode()
    data = batch([record(i, None, value) for i in range(20)])
    nodes = record_trees.record_set(data, "t", budget=Budget(nodes=3000), payloads=PayloadTrees(decoder())).nodes
    records = next(child.children for child in nodes[0].children if child.type == "records")
    values = [child for inside in records for child in inside.children if child.name == "value"]
    assert [bool(child.children) for child in values] == [True] * 3 + [False] * 17
    assert values[-1].value.startswith('{"a": [0, 1,')


def test_what_does_not_decode_has_its_reason() -> None:
    read = PayloadTrees(decoder())
    case = golden()[1][0]
    opened = read(case.data[:-1], case.topic, case.side, dict(case.headers))
    assert opened is not None
    assert opened.body is None
    assert "avro of schema" in opened.label(9)
    assert read(b"text", "t", "value", {}) is None
    assert read(b"\xff\xfe\xfd", "t", "value", {}) is None
    deep = read(b"[" * 150 + b"]" * 150, "t", "value", {})
    assert deep is not None
    assert [node.value for node in leaves(deep.nodes)] == ["nested too deeply"]


def test_show_prints_them_below_their_record(tmp_path: Path) -> None:
    case = next(case for case in golden()[1] if case.format == "avro" and case.topic == "orders")
    capture = write_capture(tmp_path / "c.pcap", [(case.topic, b'{"k": [true, null]}', case.data, case.headers)])
    lines = printed("show", capture, "--tree", "--schemas", write_schemas(tmp_path / "schemas")).splitlines()
    shown = [re.sub(r"\s*\[\d+, \d+\)$", "", line).strip() for line in lines]
    at = shown.index("key: JSON")
    assert shown[at + 1 : at + 4] == ["k: 2 elements", "[0]: true", "[1]: null"]
    assert any(line.startswith("value: Avro, schema ") for line in shown)
    assert f"city: {case.json['address']['city']}" in shown
    assert not any("Avro" in line for line in printed("show", capture, "--tree").splitlines())
    refused(kwire("show", capture, "--payloads"), "--payloads goes with --records, --tree and --filter")
