"""Keys and values as real serializers wrote them (Confluent's for Python, fastavro, protobuf): each is decoded to what
was serialized. `proto_text` is compared with protoc."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format

from kwire import open_dataset
from kwire.analyzer.payloads import proto_text, protobuf
from kwire.analyzer.payloads.framing import CONFLUENT
from tests.analyzer.cli.test_parser import kwire, printed, refused
from tests.analyzer.payloads.golden_payloads import (
    GOLDEN,
    Case,
    decoder,
    golden,
    golden_capture,
    write_capture,
    write_schemas,
)

DESCRIPTORS = json.loads((GOLDEN / "descriptors.json").read_text())


@pytest.mark.parametrize("case", golden()[1], ids=lambda case: case.name)
def test_a_payload_is_what_was_serialized(case: Case) -> None:
    payload = decoder().decode(case.data, case.topic, case.side, dict(case.headers))
    assert (payload.format, payload.reason) == (case.format, None)
    assert payload.json is not None
    assert json.loads(payload.json) == case.json


def test_records_of_a_dataset_have_the_values_in_columns(tmp_path: Path) -> None:
    capture = golden_capture(tmp_path / "golden.pcap")
    schemas = write_schemas(tmp_path / "schemas")
    printed("analyze", capture, "-o", tmp_path / "dataset", "--schemas", schemas)
    rows = open_dataset(tmp_path / "dataset").records.to_table().to_pylist()
    for row, case in zip(rows, golden()[1], strict=True):
        assert row["undecodable"] is None, (case.name, row["undecodable"])
        assert row[f"{case.side}_format"] == case.format
        assert json.loads(row[f"{case.side}_json"]) == case.json
        schema_id = row[f"{case.side}_schema_id"]
        assert schema_id == (None if case.name == "fastavro" else str(int.from_bytes(case.data[1:5], "big")))
    shown = [
        json.loads(line) for line in printed("show", capture, "--records", "--json", "--schemas", schemas).splitlines()
    ]
    assert [row["value_json"] for row in shown] == [row["value_json"] for row in rows]
    refused(kwire("show", tmp_path / "dataset", "--records", "--schemas", schemas), "decoded when it is made")
    lines = printed("show", capture, "--records", "--schemas", schemas).splitlines()
    assert lines[4].split("\t")[-1] == '{"cents":5,"to":"Zoë"}'


def test_without_options_about_payloads_nothing_is_decoded(tmp_path: Path) -> None:
    capture = golden_capture(tmp_path / "golden.pcap")
    for line in printed("show", capture, "--records", "--json").splitlines():
        row = json.loads(line)
        assert {row[name] for name in ("value_format", "key_format", "value_json", "key_json", "undecodable")} == {None}


def _pool(files: list[descriptor_pb2.FileDescriptorProto]) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in protobuf._OWN.values():
        file = descriptor_pb2.FileDescriptorProto()
        __import__(module, fromlist=["DESCRIPTOR"]).DESCRIPTOR.CopyToProto(file)
        if file.name not in ("google/protobuf/type.proto", "google/protobuf/api.proto"):
            pool.Add(file)
    for file in files:
        pool.Add(file)
    return pool


def _described(message: Any) -> list[Any]:
    fields = [
        (
            field.name,
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            field.message_type.full_name if field.message_type else None,
            [(value.name, value.number) for value in field.enum_type.values] if field.enum_type else None,
            field.containing_oneof.name if field.containing_oneof else None,
        )
        for field in message.fields
    ]
    return [message.full_name, fields, [_described(nested) for nested in message.nested_types]]


def test_proto_text_means_what_protoc_makes_of_it() -> None:
    names = ["shop/money.proto", "order.proto", "legacy.proto"]
    parsed = _pool([proto_text.parse((GOLDEN / name).read_text(), name) for name in names])
    compiled = _pool([json_format.ParseDict(DESCRIPTORS[name], descriptor_pb2.FileDescriptorProto()) for name in names])
    for name in names:
        parsed_file, compiled_file = parsed.FindFileByName(name), compiled.FindFileByName(name)
        assert [_described(message) for message in parsed_file.message_types_by_name.values()] == [
            _described(message) for message in compiled_file.message_types_by_name.values()
        ]


@pytest.mark.parametrize("kind", ["text", "descriptor set"])
def test_protobuf_schemas_come_as_text_or_descriptors(kind: str) -> None:
    """The serializer for Python registers descriptors; others register text."""
    case = next(case for case in golden()[1] if case.name == "protobuf-shop.orders.v1.Order")
    if kind == "text":
        files = {"shop/money.proto": (GOLDEN / "shop" / "money.proto").read_text()}
        codec = protobuf.ProtobufCodec((GOLDEN / "order.proto").read_text(), files)
    else:
        packed = base64.b64decode((GOLDEN / "order.desc.base64").read_text())
        _, files = protobuf.of_descriptor_set(packed)
        codec = protobuf.ProtobufCodec(files["order.proto"], files)
    assert json.loads(codec.decode(case.data, 5, None, CONFLUENT)) == case.json


@pytest.mark.parametrize("case", golden()[1], ids=lambda case: case.name)
def test_nodes_have_the_bytes_of_each_field(case: Case) -> None:
    schemas = decoder().schemas
    codec = schemas.by_subject("plain-value") if case.name == "fastavro" else schemas.by_id(str(case.data[4]))
    if case.format == "json_schema":
        return
    start = 0 if case.name == "fastavro" else 5
    more = (None, CONFLUENT) if case.format == "protobuf" else ()
    nodes = codec.nodes(case.data, start, *more)  # type: ignore[union-attr]
    assert nodes[-1].end == len(case.data)
    for left, right in pairwise(nodes):
        assert left.end == right.start
    if isinstance(case.json, dict) and case.format == "avro":
        assert {node.name for node in nodes} == set(case.json)


def test_every_command_that_reads_records_decodes_them(tmp_path: Path) -> None:
    capture = golden_capture(tmp_path / "golden.pcap")
    schemas = write_schemas(tmp_path / "schemas")
    query = "SELECT topic, value_format FROM records WHERE value_format IN ('avro', 'protobuf') ORDER BY 1, 2"
    answer = printed("sql", capture, query, "--format", "csv", "--schemas", schemas)
    assert {line.partition(",")[2] for line in answer.split()} == {"value_format", "avro", "protobuf"}
    assert "avro" not in kwire("sql", capture, query, "--format", "csv").stdout
    assert kwire("report", capture, "--format", "md", "--schemas", schemas).returncode == 0
    printed("story", capture, "--schemas", schemas)
    printed("analyze", capture, "-o", tmp_path / "dataset")
    for command in (["sql"], ["report"], ["story"]):
        rest = ["SELECT 1"] if command == ["sql"] else []
        refused(kwire(*command, tmp_path / "dataset", *rest, "--schemas", schemas), "go with a CAPTURE")


def test_a_clean_capture_keeps_the_ids_of_schemas_and_nothing_else(tmp_path: Path) -> None:
    capture, clean = golden_capture(tmp_path / "golden.pcap"), tmp_path / "clean.pcapng"
    printed("scrub", capture, "-o", clean, "--keep-schema")

    def rows(path: Path, *more: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in printed("show", path, "--records", "--json", *more).splitlines()]

    before, after = (rows(path, "--schemas", write_schemas(tmp_path / "schemas")) for path in (capture, clean))
    names = ("key_schema_id", "value_schema_id")
    assert [[row[name] for name in names] for row in after] == [[row[name] for name in names] for row in before]
    assert {row["value_schema_id"] for row in after} > {"2", "4"}
    assert not {row["value_json"] for row in after if row["value_json"]} & {row["value_json"] for row in before}
    content = clean.read_bytes()
    for case in golden()[1]:
        assert case.data[5:] not in content or len(case.data) < 13
    printed("scrub", capture, "-o", tmp_path / "bare.pcapng")
    assert {row["value_schema_id"] for row in rows(tmp_path / "bare.pcapng", "--payloads")} == {None}


def test_fields_of_keys_and_values_are_shown(tmp_path: Path) -> None:
    value = json.dumps({"order": {"id": 7, "lines": [{"sku": "a"}, {"sku": "b\t"}, {}]}, "ok": True}).encode()
    written = [("orders", b'{"k": "x"}', value, ()), ("orders", None, b"text", ()), ("orders", None, None, ())]
    capture = write_capture(tmp_path / "c.pcap", written)
    names = "topic,key.k,value.order.id,value.order.lines.sku,value.ok,value_format"
    lines = printed("show", capture, "--records", "--fields", names).splitlines()
    assert lines[0] == names.replace(",", "\t")
    assert lines[1:] == ['orders\tx\t7\t["a","b\\t"]\ttrue\tjson', "orders\t\t\t\t\ttext", "orders\t\t\t\t\t"]
    printed("analyze", capture, "-o", tmp_path / "dataset", "--payloads")
    assert printed("show", tmp_path / "dataset", "--records", "--fields", names).splitlines() == lines
    refused(kwire("show", capture, "--records", "--fields", "value.,x"), "records have no 'value.'")
