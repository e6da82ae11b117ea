"""Keys and values as Apicurio's and AWS Glue's serializers for Java wrote them (`tools/refresh_golden.py`): each is
decoded to what was serialized.

Proves: analyzer/payloads (framing, avro, protobuf, proto_text, decoder)
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.payloads.decoder import PayloadDecoder
from kwire.analyzer.payloads.framing import APICURIO, CONFLUENT, GLUE
from kwire.analyzer.payloads.limits import UndecodableError
from kwire.analyzer.payloads.protobuf import ProtobufCodec
from kwire.analyzer.payloads.schemas import Schema
from tests.analyzer.cli.test_parser import printed
from tests.analyzer.payloads.golden_payloads import FORMATS, GOLDEN, Written, decoder, write_capture

CODES = "payload-undecodable,schema-unknown-id,mixed-formats,schema-changed"
READ = {name: json.loads((GOLDEN / f"{name}.json").read_text("utf-8")) for name in ("apicurio", "glue")}
SCHEMAS = {**READ["apicurio"]["schemas"], **READ["glue"]["schemas"]}
CASES = [case for read in READ.values() for case in read["cases"]]


class Registry:
    """The schemas that the serializers registered."""

    def by_id(self, schema_id: str) -> Schema | None:
        schema = SCHEMAS.get(schema_id)
        return schema and Schema(schema_id, FORMATS[schema["type"]], None, "folder", schema["schema"])

    def by_subject(self, subject: str) -> Schema | None:
        return None

    def every(self) -> Iterator[Schema]:
        yield from ()


def written(case: dict[str, Any]) -> tuple[bytes, dict[str, bytes]]:
    return base64.b64decode(case["data"]), {key: base64.b64decode(value) for key, value in case["headers"]}


def reader() -> PayloadDecoder:
    return decoder(Registry())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_payload_is_what_was_serialized(case: dict[str, Any]) -> None:
    data, headers = written(case)
    chosen = reader()
    for _ in range(2):  # the second time by what the first one learned
        payload = chosen.decode(data, case["topic"], case["side"], headers)
        assert (payload.format, payload.reason) == (case["format"], None)
        assert payload.json is not None
        assert json.loads(payload.json) == case["json"]
        assert payload.schema_id in SCHEMAS
    if case["format"] in ("avro", "protobuf"):
        nodes, _ = chosen.nodes(data, case["topic"], case["side"], headers)
        assert nodes is not None
        if isinstance(case["json"], dict):
            assert {node.name for node in nodes} == set(case["json"])


def test_there_is_each_kind_of_framing() -> None:
    assert {tuple(sorted(dict(case["headers"]))) for case in CASES} >= {
        (),
        ("apicurio.value.encoding", "apicurio.value.globalId"),
        ("apicurio.value.contentId", "apicurio.value.encoding"),
        ("apicurio.protobuf.type", "apicurio.value.globalId", "apicurio.value.msgType"),
    }
    assert {base64.b64decode(case["data"])[:2] for case in READ["glue"]["cases"]} == {b"\3\0", b"\3\5"}


PROTO = """syntax = "proto3"; package p;
message a { string n = 1; }
message B { message Z { message A { string n = 1; } string n = 1; } message C { string n = 1; } string n = 1; }
message A { string n = 1; }
message BB { string n = 1; repeated .p.B.Z all = 2; }"""
INDEXES = {"p.a": 6, "p.B": 1, "p.B.Z": 3, "p.B.Z.A": 4, "p.B.C": 2, "p.A": 0, "p.BB": 5}
"""What Glue's MessageIndexFinder says of this file."""


@pytest.mark.parametrize(("message", "index"), INDEXES.items())
def test_glue_counts_messages_by_their_names(message: str, index: int) -> None:
    assert ProtobufCodec(PROTO)._sorted(index) == message
    assert json.loads(ProtobufCodec(PROTO).decode(bytes([index]) + b"\x0a\x01x", 0, None, GLUE)) == {"n": "x"}


def test_a_message_is_named_in_each_registrys_way() -> None:
    codec = ProtobufCodec(PROTO)
    payload = b"\x0a\x01x\x12\x03\x0a\x01y"  # of BB, whose second field A has not
    wanted = {"n": "x", "all": [{"n": "y"}]}
    assert json.loads(codec.decode(b"\x04\x0a\x02BB" + payload, 0, None, APICURIO)) == wanted
    assert json.loads(codec.decode(b"\x04\x0a\x02BB" + payload, 0, None, CONFLUENT)) == wanted
    assert json.loads(codec.decode(b"\x02\x06" + payload, 0, None, CONFLUENT)) == wanted
    for name in ("BB", "p.BB", "com.acme.Shop$BB", "org.p.BB"):
        assert json.loads(codec.decode(payload, 0, name, APICURIO)) == wanted
    with pytest.raises(UndecodableError, match="index 7"):
        codec.decode(b"\x07" + payload, 0, None, GLUE)
    with pytest.raises(UndecodableError, match="no message"):
        codec.decode(payload, 0, "com.google.protobuf.DynamicMessage", APICURIO)
    # A reference that is none: the length does not fit, the name is of no message, or it is cut.
    for start in (b"\x05\x0a\x02BB", b"\x04\x0a\x02CC", b"\x04\x0a\x02B"):
        assert codec._referred(start, 0) is None


def folder_of(folder: Path) -> Path:
    folder.mkdir()
    for schema_id, schema in SCHEMAS.items():
        answer = {"schema": schema["schema"], "schemaType": schema["type"]}
        (folder / f"{schema_id}.json").write_text(json.dumps(answer))
    return folder


def records() -> list[Written]:
    rows: list[Written] = []
    for case in CASES:
        data, headers = written(case)
        key, value = (data, None) if case["side"] == "key" else (None, data)
        rows.append((case["topic"], key, value, list(headers.items())))
    return rows


def test_commands_decode_them(tmp_path: Path) -> None:
    capture, schemas = write_capture(tmp_path / "c.pcap", records()), folder_of(tmp_path / "schemas")
    shown = printed("show", capture, "--records", "--json", "--schemas", schemas).splitlines()
    for line, case in zip(shown, CASES, strict=True):
        row = json.loads(line)
        assert row["undecodable"] is None, case["name"]
        assert json.loads(row[f"{case['side']}_json"]) == case["json"]
    of_glue = printed("show", capture, "--filter", "value.id == -5", "--schemas", schemas)
    assert of_glue.count("Produce") == 2


AVRO_VALUES = [
    case for case in CASES if case["name"] in ("apicurio-avro-headers", "apicurio-avro-eight", "glue-avro-none")
]


def codes_of(capture: Path, schemas: Path) -> set[str]:
    """The codes of findings about payloads."""
    lines = printed("findings", capture, "--only", CODES, "--json", "--schemas", schemas).splitlines()
    return {json.loads(line)["code"] for line in lines}


def test_what_real_serializers_wrote_is_no_finding(tmp_path: Path) -> None:
    rows = [(case["name"], *row[1:]) for row, case in zip(records(), CASES, strict=True)]
    assert codes_of(write_capture(tmp_path / "c.pcap", rows * 2), folder_of(tmp_path / "schemas")) == set()


@pytest.mark.parametrize("case", AVRO_VALUES, ids=lambda case: case["name"])
def test_findings_about_them(tmp_path: Path, case: dict[str, Any]) -> None:
    """Each finding once, on topics of their own: a record that is cut, one of a schema that is nowhere, one without
    framing, and another schema from some record on."""
    data, headers = written(case)
    schemas = folder_of(tmp_path / "schemas")
    schema_id = reader().decode(data, "orders", "value", headers).schema_id
    assert schema_id is not None
    text = SCHEMAS[schema_id]["schema"]
    same = [name for name in SCHEMAS if name != schema_id and SCHEMAS[name]["schema"] == text]
    unknown = str(uuid.uuid5(uuid.NAMESPACE_OID, "x")) if "-" in schema_id else "999"
    renamed = _with_id(data, headers, schema_id, unknown)

    def capture(topic: str, *rows: tuple[bytes, dict[str, bytes]]) -> Path:
        content: list[Written] = [(topic, None, value, list(more.items())) for value, more in rows]
        return write_capture(tmp_path / f"{topic}.pcap", content)

    whole = (data, headers)
    assert codes_of(capture("pill", whole, (data[:-1], headers), whole), schemas) == {"payload-undecodable"}
    # A 0 and 8 bytes that are small may be a number of anybody's: that is no frame if nobody knows the id.
    nowhere = set() if case["name"] == "apicurio-avro-eight" else {"schema-unknown-id"}
    assert codes_of(capture("unknown", renamed, renamed), schemas) == nowhere
    assert codes_of(capture("mixed", whole, (b'{"id": 1}', {}), whole), schemas) == {"mixed-formats"}
    if same:
        changed = _with_id(data, headers, schema_id, same[0])
        assert codes_of(capture("changed", whole, whole, changed), schemas) == {"schema-changed"}
    assert codes_of(capture("clean", whole, whole, whole), schemas) == set()


def _with_id(data: bytes, headers: dict[str, bytes], old: str, new: str) -> tuple[bytes, dict[str, bytes]]:
    """A value as if another schema had been registered for it."""
    if "-" in old:
        return data.replace(uuid.UUID(old).bytes, uuid.UUID(new).bytes), headers
    before, after = (int(number).to_bytes(8, "big") for number in (old, new))
    if headers:
        return data, {key: value.replace(before, after) for key, value in headers.items()}
    size = 8 if data.startswith(b"\0" + before) else 4
    return data.replace(before[-size:], after[-size:], 1), headers
