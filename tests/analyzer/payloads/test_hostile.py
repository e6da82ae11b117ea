"""Payloads and schemas that mean harm: each has a reason, soon, and nothing becomes larger than its limits."""

from __future__ import annotations

import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads import proto_text, protobuf
from kwire.analyzer.payloads.avro import AvroCodec
from kwire.analyzer.payloads.folder import SchemaFolder
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError
from kwire.analyzer.payloads.schemas import Schema
from tests.analyzer.cli.test_parser import kwire, refused
from tests.analyzer.payloads.golden_payloads import GOLDEN, decoder, golden, golden_capture, write_schemas

LIST = '{"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}'
NULLS = '{"type": "array", "items": "null"}'
EMPTY = '{"type": "array", "items": {"type": "record", "name": "E", "fields": []}}'
LONGS = '{"type": "array", "items": "long"}'
STRING = '"string"'
MESSAGE = 'syntax = "proto3"; message M { M inner = 1; repeated M more = 2; string text = 3; int64 n = 4; }'


def doubling() -> str:
    """A schema whose value without bytes has a billion fields."""
    kind: Any = "null"
    for level in range(30):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": kind if level == 0 else f"R{level - 1}"}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(kind)


def nested_schema(levels: int) -> AvroCodec:
    return AvroCodec('{"type":"array","items":' * levels + '"int"' + "}" * levels)


def avro(schema: str, data: bytes) -> bytes:
    return AvroCodec(schema, (), PayloadLimits(nodes=20_000)).decode(data)


def proto(data: bytes) -> bytes:
    return protobuf.ProtobufCodec(MESSAGE).decode(data)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "avro: deep": (lambda: avro(LIST, b"\2" * 1_000_000 + b"\0"), "nested deeper than"),
    "avro: deep, and small": (lambda: avro(LIST, b"\2" * 5_000 + b"\0"), "nested deeper than"),
    "avro: nulls without end": (lambda: avro(NULLS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1"), "more than"),
    "avro: records without bytes": (lambda: avro(EMPTY, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1"), "more than"),
    "avro: fields without bytes": (lambda: avro(doubling(), b""), "more than"),
    "avro: negative count": (lambda: avro(LONGS, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1\0"), "ends too early"),
    "avro: negative count of nulls": (lambda: avro(NULLS, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1\0"), "more than"),
    "avro: number without end": (lambda: avro(LONGS, b"\2" + b"\xff" * 100), "more than 64 bits"),
    "avro: size beyond the end": (lambda: avro(STRING, b"\xfe\xff\xff\xff\x0f"), "bytes where"),
    "avro: negative size": (lambda: avro(STRING, b"\1"), "-1 bytes"),
    "avro: branch that is none": (lambda: avro('["null", "int"]', b"\x08"), "branch 4 of a union of 2"),
    "avro: no UTF-8": (lambda: avro(STRING, b"\4\xff\xfe"), "no UTF-8"),
    "avro: bytes left over": (lambda: avro(STRING, b"\2aXX"), "2 bytes are left over"),
    "avro: large": (lambda: avro(STRING, b"\0" * (5 << 20)), "more than"),
    "avro: schema of 10 MB": (lambda: AvroCodec('{"type": "record", "doc": "' + "x" * 10_000_000), "the schema has"),
    "avro: deep schema": (lambda: nested_schema(900), "too deeply"),
    "avro: deeper schema": (lambda: nested_schema(20_000), "too deeply"),
    "avro: schema of lists": (lambda: AvroCodec("[" * 100_000), "schema"),
    "avro: unknown name": (lambda: AvroCodec('{"type": "array", "items": "B"}'), "B"),
    "avro: no schema": (lambda: AvroCodec("{}"), "no Avro"),
    "avro: fields that are none": (lambda: AvroCodec('{"type": "record", "name": "R", "fields": 7}'), "no Avro"),
    "protobuf: deep": (lambda: proto(_nested(5_000)), "deeper"),
    "protobuf: group without end": (lambda: proto(b"\x2b" * 50), "group"),
    "protobuf: groups in groups": (lambda: proto(b"\x2b" * 100_000), "deeper"),
    "protobuf: number without end": (lambda: proto(b"\x20" + b"\xff" * 20), "64 bits"),
    "protobuf: size beyond the end": (lambda: proto(b"\x1a\xff\xff\xff\x7f"), "bytes where"),
    "protobuf: many messages": (lambda: proto(b"\x12\0" * 1_000_000), "more than"),
    "protobuf: field 0": (lambda: proto(b"\0\0"), "begins no field"),
    "protobuf: large": (lambda: proto(b"\x1a" + b"\0" * (5 << 20)), "more than"),
    "protobuf: deep schema": (lambda: protobuf.ProtobufCodec("message A {" * 10_000), "deeper"),
    "protobuf: schema of 10 MB": (lambda: protobuf.ProtobufCodec("//" + "x" * 10_000_000), "the schema has"),
    "protobuf: imports itself": (lambda: _importing(), "import"),
    "protobuf: unknown type": (lambda: protobuf.ProtobufCodec("message A { B b = 1; }"), "cannot be used"),
    "protobuf: no text": (lambda: protobuf.ProtobufCodec("\0\1\2"), "line 1"),
}  # fmt: skip


def _nested(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        size = len(data)
        length = bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        data = b"\x0a" + bytes([*length, size]) + data
    return data


def _importing() -> None:
    """A thousand files, each of which imports the next."""
    files = {f"{n}.proto": f'syntax = "proto3"; import "{n + 1}.proto";' for n in range(1000)}
    protobuf.ProtobufCodec('import "0.proto"; message A {}', files)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_payload_has_a_reason(name: str) -> None:
    run, expected = CASES[name]
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(UndecodableError, match=expected):
            run()
        assert tracemalloc.get_traced_memory()[1] < 256 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 30  # hours, if it were not bounded


def test_json_of_100_mb_has_a_reason() -> None:
    payload = decoder().decode(b"[" + b"1," * 50_000_000 + b"1]", "t", "value")
    assert (payload.format, payload.json) == (None, None)
    assert payload.reason is not None
    assert "more than" in payload.reason


def test_deep_json_is_text() -> None:
    payload = decoder().decode(b"[" * 100_000 + b"]" * 100_000, "t", "value")
    assert payload.format == "text"


def test_a_glue_payload_that_decompresses_to_gigabytes_has_a_reason() -> None:
    bomb = zlib.compress(b"\0" * (64 << 20), 9)
    payload = decoder().decode(b"\3\5" + bytes(16) + bomb, "t", "value")
    assert payload.reason is not None
    assert "decompressed" in payload.reason


class Everything:
    """A source that has the same schema under every id."""

    def __init__(self, format: str, text: str) -> None:
        self._schema = Schema(None, format, None, "folder", text)

    def by_id(self, schema_id: str) -> Schema | None:
        return self._schema

    def by_subject(self, subject: str) -> Schema | None:
        return self._schema

    def every(self) -> Iterator[Schema]:
        yield self._schema


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["orders", "avro", "protobuf", "any"]))
def test_nothing_raises_whatever_the_bytes_are(data: bytes, kind: str) -> None:
    order = (GOLDEN / "order.proto").read_text()
    sources = {
        "orders": [],
        "avro": [Everything("avro", golden()[0]["1"]["schema"])],
        "protobuf": [Everything("protobuf", order)],
        "any": [Everything("json_schema", "{}")],
    }
    for prefix in (b"", b"\0\0\0\0\2", b"\3\0" + bytes(16), b"\x81\xa1"):
        for side in ("key", "value"):
            payload = decoder(*sources[kind]).decode(prefix + data, "plain", side, {"__value_schema_id": data})
            assert payload.json is not None or payload.reason is not None
            if payload.json is not None:
                json.loads(payload.json)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_broken_golden_payloads_have_a_value_or_a_reason(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(golden()[1]))
    broken = bytearray(case.data)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    payload = decoder().decode(bytes(broken), case.topic, case.side, dict(case.headers))
    assert payload.json is not None or payload.reason is not None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_broken_proto_text_has_a_reason(data: st.DataObject) -> None:
    text = (GOLDEN / "order.proto").read_text()
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(
        st.sampled_from(["}", "{", ";", '"', "message", "=", "0x", "/*", "map<", "option", "\\", "9" * 400])
    )
    try:
        proto_text.parse(text[:at] + piece + text[at:], "order.proto")
    except UndecodableError as failure:
        reason = str(failure)
    else:
        return
    assert "line" in reason


def test_limits_are_arguments() -> None:
    small = PayloadLimits(payload_bytes=10)
    assert decoder(limits=small).decode(b'{"a": "bcdefghi"}', "t", "value").reason is not None
    assert decoder().decode(b'{"a": "bcdefghi"}', "t", "value").reason is None


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    schemas = write_schemas(tmp_path / "schemas")
    for folder, content, expected in (
        (tmp_path / "none", None, "not a folder"),
        (tmp_path / "empty", None, "no schemas"),
        (schemas, '{"schema": "{}", "schemaType": "XML"}', "99.json"),
        (schemas, '{"a": ' + '"x' * 1_000_000, "more than"),
        (schemas, "{", "99.json: no JSON"),
    ):
        if content is not None:
            (schemas / "99.json").write_text(content)
        with pytest.raises(UsageError, match=expected):
            SchemaFolder(str(folder), PayloadLimits())
    capture = golden_capture(tmp_path / "golden.pcap")
    refused(kwire("show", "--records", capture, "--schemas", tmp_path / "none"), "not a folder")
    refused(kwire("analyze", capture, "--records", "meta", "--schemas", schemas), "--schemas does not go with")
    refused(kwire("show", capture, "--schemas", schemas), "--schemas goes with --records")
