"""Payloads that real serializers wrote (`tools/golden_payloads.py`), and captures with it."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kwire.analyzer.payloads.decoder import PayloadDecoder
from kwire.analyzer.payloads.limits import PayloadLimits
from kwire.analyzer.payloads.schemas import Schema, Schemas
from tests.analyzer.forging import answering, asking, produce, produce_answer
from tests.bench.messages import batch, varint
from tests.captures.forge import converse, pcap, rendered

GOLDEN = Path(__file__).parent / "golden"
FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}


@dataclass(frozen=True)
class Case:
    """A key or value as serialized, and the JSON that it means."""

    name: str
    topic: str
    side: str
    data: bytes
    headers: tuple[tuple[str, bytes], ...]
    format: str
    json: Any


@functools.cache
def golden() -> tuple[dict[str, Any], tuple[Case, ...]]:
    """Return schemas by id, and cases."""
    read = json.loads((GOLDEN / "payloads.json").read_text())
    cases = (
        Case(
            case["name"],
            case["topic"],
            case["side"],
            base64.b64decode(case["data"]),
            tuple((key, base64.b64decode(value)) for key, value in case["headers"]),
            case["format"],
            case["json"],
        )
        for case in read["cases"]
    )
    return read["schemas"], tuple(cases)


class GoldenSource:
    """The registry that the serializers used."""

    def by_id(self, schema_id: str) -> Schema | None:
        schema = golden()[0].get(schema_id)
        if schema is None:
            return None
        return Schema(schema_id, FORMATS[schema["type"]], None, "folder", schema["schema"], schema["references"])

    def by_subject(self, subject: str) -> Schema | None:
        if subject != "plain-value":
            return None
        text = '{"type": "record", "name": "Plain", "fields": [{"name": "n", "type": "int"}]}'
        return Schema(None, "avro", subject, "folder", text)

    def every(self) -> Iterator[Schema]:
        yield from ()


def decoder(*sources: Any, limits: PayloadLimits | None = None) -> PayloadDecoder:
    """Return a decoder with the golden schemas, or others."""
    limits = limits or PayloadLimits()
    return PayloadDecoder(Schemas(sources or [GoldenSource()], limits), limits)


def write_schemas(folder: Path) -> Path:
    """Write the golden schemas as `--schemas` takes them: answers of a registry, and what they refer to."""
    folder.mkdir(exist_ok=True)
    for schema_id, schema in golden()[0].items():
        answer = {"schema": schema["schema"], "schemaType": schema["type"], "id": int(schema_id)}
        (folder / f"{schema_id}.json").write_text(json.dumps(answer))
        for name, text in schema["references"].items():
            if schema["type"] == "AVRO":
                (folder / f"{name}.avsc").write_text(text)
    (folder / "shop").mkdir(exist_ok=True)
    (folder / "shop" / "money.proto").write_text((GOLDEN / "shop" / "money.proto").read_text())
    (folder / "plain-value.avsc").write_text(GoldenSource().by_subject("plain-value").text)  # type: ignore[union-attr]
    return folder


def record(
    delta: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()
) -> bytes:
    """One record of a batch v2."""
    body = b"\0" + varint(delta) + varint(delta)
    for data in (key, value):
        body += varint(-1) if data is None else varint(len(data)) + data
    body += varint(len(headers))
    for name, content in headers:
        body += varint(len(name)) + name.encode()
        body += varint(-1) if content is None else varint(len(content)) + content
    return varint(len(body)) + body


Written = tuple[str, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Topic, key, value and headers of a record."""


def write_capture(path: Path, written: Iterable[Written]) -> Path:
    """Write a capture in which a client sends these records, a request each."""
    writes = []
    for number, (topic, key, value, headers) in enumerate(written, 1):
        writes.append(asking(produce(number, records=batch([record(0, key, value, headers)]), topic=topic)))
        writes.append(answering(produce_answer(number, topic=topic)))
    path.write_bytes(pcap(rendered(converse(writes)), nanoseconds=True))
    return path


def golden_capture(path: Path) -> Path:
    """Write a capture with all golden cases."""
    return write_capture(
        path,
        [
            (case.topic, case.data, None, case.headers)
            if case.side == "key"
            else (case.topic, None, case.data, case.headers)
            for case in golden()[1]
        ],
    )
