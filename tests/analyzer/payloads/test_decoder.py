"""Which format bytes are taken for: frames of registries, schemas of topics, and what names itself."""

from __future__ import annotations

import base64
import io
import json
import uuid
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pytest

from kwire.analyzer.payloads.avro import AvroCodec
from kwire.analyzer.payloads.decoder import NO_HEADERS
from kwire.analyzer.payloads.folder import SchemaFolder
from kwire.analyzer.payloads.limits import PayloadLimits
from tests.analyzer.payloads.golden_payloads import GOLDEN, decoder

POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "long"}]}
GUID = uuid.UUID("7f2d0d5c-8f2e-4a8e-9d2e-0c5f1d1a2b3c")
MANY = (
    'syntax = "proto3"; message A { map<string, int32> m = 1; message B { string s = 1; } message C { int64 n = 1; } }'
)


def avro(value: Any, schema: Any = POINT) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("7", str(GUID), "points-value", "both-key"):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(POINT))
    (tmp_path / "9.proto").write_text(MANY)
    (tmp_path / "10.json").write_text('{"type": "object", "properties": {}}')
    return tmp_path


def decoded(folder: Path, data: bytes | None, topic: str = "t", side: str = "value", headers: Any = NO_HEADERS) -> Any:
    payload = decoder(SchemaFolder(str(folder), PayloadLimits())).decode(data, topic, side, headers)
    return payload.format, payload.schema_id, payload.json and json.loads(payload.json), payload.reason


def test_confluents_frames(folder: Path) -> None:
    assert decoded(folder, b"\0\0\0\0\7" + avro({"x": 5})) == ("avro", "7", {"x": 5}, None)
    header = {"__value_schema_id": b"\1" + GUID.bytes}
    assert decoded(folder, avro({"x": 5}), headers=header) == ("avro", str(GUID), {"x": 5}, None)
    assert decoded(folder, avro({"x": 5}), headers={"__value_schema_id": b"\0\0\0\0\7"})[:3] == ("avro", "7", {"x": 5})
    of_key = {"__key_schema_id": b"\1" + GUID.bytes}
    assert decoded(folder, b"text", headers=of_key) == ("text", None, "text", None)
    assert decoded(folder, avro({"x": 1}), side="key", headers=of_key)[:3] == ("avro", str(GUID), {"x": 1})
    assert decoded(folder, b"\0\0\0\0\x0a" + b'{"a":1}') == ("json_schema", "10", {"a": 1}, None)


def test_apicurios_frames(folder: Path) -> None:
    assert decoded(folder, b"\0" + (7).to_bytes(8, "big") + avro({"x": 5})) == ("avro", "7", {"x": 5}, None)
    for kind in ("globalId", "contentId"):
        headers = {f"apicurio.value.{kind}": (7).to_bytes(8, "big")}
        assert decoded(folder, avro({"x": 5}), headers=headers)[:3] == ("avro", "7", {"x": 5})


def test_glues_frames(folder: Path) -> None:
    head = b"\3%c" + GUID.bytes
    assert decoded(folder, b"\3\0" + GUID.bytes + avro({"x": 5})) == ("avro", str(GUID), {"x": 5}, None)
    assert decoded(folder, b"\3\5" + GUID.bytes + zlib.compress(avro({"x": 5})))[:3] == ("avro", str(GUID), {"x": 5})
    broken = decoded(folder, b"\3\5" + GUID.bytes + zlib.compress(avro({"x": 5}))[:-3])
    assert "ends too early" in broken[3], head


def test_message_indexes_of_clients_that_count_entries_of_maps_and_others(folder: Path) -> None:
    """`A` has the nested messages `MEntry`, `B`, `C`: for Java `B` is 0, for Python 1."""
    frame = b"\0\0\0\0\x09"
    assert decoded(folder, frame + b"\0")[:3] == ("protobuf", "9", {})
    assert decoded(folder, frame + b"\4\0\0" + b"\x0a\1s")[2] == {"s": "s"}  # only Java counts so
    assert decoded(folder, frame + b"\4\0\4" + b"\x08\7")[2] == {"n": 7}  # only Python does
    assert decoded(folder, frame + b"\4\0\2" + b"\x0a\1s")[2] == {"s": "s"}  # C for Java, B for Python
    assert decoded(folder, frame + b"\4\0\2" + b"\x08\7")[2] == {"n": 7}
    assert "may mean A.C or A.B" in decoded(folder, frame + b"\4\0\2")[3]
    assert "no message with the indexes 0, 16" in decoded(folder, frame + b"\4\0\x20\1")[3]
    assert "message indexes" in decoded(folder, frame + b"\xff\xff\xff\xff\x0f")[3]


def test_an_unknown_id_has_a_reason(folder: Path) -> None:
    assert decoded(folder, b"\0\0\0\0\x63" + avro({"x": 5})) == (None, "99", None, "schema 99 is not known")
    assert decoded(folder, b"\0\0\0\0\x63" + b'{"a":1}') == ("json_schema", "99", {"a": 1}, None)


@pytest.mark.parametrize("number", [0, 5, 1_700_000_000_000, 1 << 40])
def test_a_long_is_not_taken_for_a_frame(folder: Path, number: int) -> None:
    """Kafka's serializer for longs writes 8 bytes, the first of which are those of a frame."""
    payload = decoded(folder, number.to_bytes(8, "big"))
    assert payload[1] is None
    assert payload[3] == "8 bytes of no known format"


def test_a_topics_schema_reads_what_has_no_frame(folder: Path) -> None:
    assert decoded(folder, avro({"x": 5}), "points") == ("avro", None, {"x": 5}, None)
    assert decoded(folder, avro({"x": 5}), "both", "key")[:3] == ("avro", None, {"x": 5})
    assert decoded(folder, avro({"x": 5}), "both")[0] != "avro"
    other = decoded(folder, b'{"x": 5}', "points")
    assert (other[0], other[2]) == ("json", {"x": 5})
    assert "the topic's schema" in other[3]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": [1, 2.5, null], "b": "\xc3\xa9"}', ("json", {"a": [1, 2.5, None], "b": "é"})),
        (b' [1] \n', ("json", [1])),
        (b"{not json}", ("text", "{not json}")),
        (b"order-7", ("text", "order-7")),
        (b"42", ("text", "42")),
        (b"", ("text", "")),
        (b"\x82\xa1a\x01\xa1b\x93\x01\xc0\xc3", ("messagepack", {"a": 1, "b": [1, None, True]})),
        (b"\x81\xa1t\xd6\xff\x65\x00\x00\x00", ("messagepack", {"t": "2023-09-12T06:06:56.000000Z"})),
        (b"\x81\xa1a\x01\x00", (None, None)),
        (b"\x81\x01\x01", (None, None)),
        (b"\xff\xfe\x00", (None, None)),
    ],
)  # fmt: skip
def test_what_names_itself(folder: Path, data: bytes, expected: tuple[str | None, Any]) -> None:
    payload = decoded(folder, data)
    assert (payload[0], payload[2]) == expected
    assert (payload[3] is None) == (expected[0] is not None)


def test_null_is_neither_decoded_nor_wrong(folder: Path) -> None:
    assert decoded(folder, None, "points") == (None, None, None, None)


def test_numbers_that_json_has_not_are_strings(folder: Path) -> None:
    schema = {"type": "array", "items": ["null", "double", "float"]}
    (folder / "8.avsc").write_text(json.dumps(schema))
    values = [float("inf"), None, 1.5, float("-inf"), float("nan")]
    payload = decoded(folder, b"\0\0\0\0\x08" + avro(values, schema))
    assert payload[2] == ["Infinity", None, 1.5, "-Infinity", "NaN"]


def test_a_time_that_no_calendar_has_is_the_number_that_was_sent(folder: Path) -> None:
    schema = {"type": "long", "logicalType": "timestamp-micros"}
    (folder / "8.avsc").write_text(json.dumps(schema))
    assert decoded(folder, b"\0\0\0\0\x08" + avro((1 << 63) - 1, "long"))[2] == (1 << 63) - 1


def test_schemas_of_a_folder_refer_to_each_other(tmp_path: Path) -> None:
    inner = {"type": "record", "name": "Inner", "namespace": "a.b", "fields": [{"name": "x", "type": "int"}]}
    outer = {"type": "record", "name": "Outer", "namespace": "a.b", "fields": [{"name": "inner", "type": "Inner"}]}
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "inner.avsc").write_text(json.dumps(inner))
    (tmp_path / "5.avsc").write_text(json.dumps(outer))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "money.proto").write_text((GOLDEN / "shop" / "money.proto").read_text())
    (tmp_path / "6.proto").write_text('import "shop/money.proto"; message A { optional shop.Money m = 1; }')
    (tmp_path / "11.desc").write_bytes(base64.b64decode((GOLDEN / "order.desc.base64").read_text()))
    assert decoded(tmp_path, b"\0\0\0\0\5\x06")[:3] == ("avro", "5", {"inner": {"x": 3}})
    assert decoded(tmp_path, b"\0\0\0\0\6\0\x0a\3\x0a\1C")[2] == {"m": {"currency": "C"}}
    assert decoded(tmp_path, b"\0\0\0\0\x0b\0\x0a\1C")[:2] == ("protobuf", "11")


JAVA_NAMES = """{"type": "record", "name": "Order", "namespace": "n", "fields": [
  {"name": "price", "type": {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}},
  {"name": "tax", "type": {"type": "n.Money"}},
  {"name": "more", "type": ["null", {"type": "Money", "java-class": "x"}]},
  {"name": "all", "type": {"type": "array", "items": {"type": "n.Money"}}},
  {"name": "by", "type": {"type": "map", "values": {"type": "Money"}}},
  {"name": "plain", "type": {"type": "string", "avro.java.string": "String"}}]}"""


def test_a_name_may_stand_in_an_object_as_java_takes_it() -> None:
    data = b"\x02\x04\x02\x06\x02\x08\x00\x02\x02k\x0a\x00\x02s"
    codec = AvroCodec(JAVA_NAMES)
    wanted = {"price": {"cents": 1}, "tax": {"cents": 2}, "more": {"cents": 3}, "all": [{"cents": 4}]}
    wanted |= {"by": {"k": {"cents": 5}}, "plain": "s"}
    assert json.loads(codec.decode(data)) == wanted
    assert [node.name for node in codec.nodes(data)] == ["price", "tax", "more", "all", "by", "plain"]
