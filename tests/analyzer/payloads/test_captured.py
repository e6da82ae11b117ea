"""Schemas from the capture itself: a registry's traffic in clear HTTP, beside the records that name them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kwire import analyze
from kwire.analyzer.payloads import captured
from kwire.analyzer.payloads.captured import CapturedSource, may_have_any, read_schemas
from kwire.captures.files import CapturePoint
from tests.analyzer.forging import answering, asking, produce, produce_answer
from tests.analyzer.payloads.golden_payloads import golden, record
from tests.bench.messages import batch
from tests.captures.forge import Segment, Write, converse, pcap, rendered

CLIENT, REGISTRY = ("10.0.0.1", 50_000), ("10.0.0.9", 8081)


def get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: registry:8081\r\nAuthorization: Basic c2VjcmV0\r\n{more}\r\n".encode()


def post(path: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: registry\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


def ok(body: Any, form: str = "plain") -> bytes:
    text = json.dumps(body).encode()
    if form == "chunked":
        pieces = [text[at : at + 100] for at in range(0, len(text), 100)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    if form == "gzip":
        text = gzip.compress(text)
        return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(text) + text
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text


def schema(number: str) -> dict[str, Any]:
    """An answer to `GET /schemas/ids/N`."""
    known = golden()[0][number]
    references = [{"name": name, "subject": name, "version": 1} for name in known["references"]]
    return {"schema": known["schema"], "schemaType": known["type"], "references": references}


def spoken(form: str = "plain") -> list[Write]:
    """A client asks a registry, and gets answers."""
    order = schema("2")
    address = next(iter(golden()[0]["2"]["references"].values()))
    return [
        asking(get("/subjects/shop.shared.Address/versions/1")),
        answering(ok({"subject": "shop.shared.Address", "version": 1, "id": 1, "schema": address}, form)),
        asking(get("/schemas/ids/9999?fetchMaxId=false")),
        answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"),
        asking(get("/schemas/ids/2?subject=orders-value", "Expect: 100-continue\r\n")),
        answering(b"HTTP/1.1 100 Continue\r\n\r\n" + ok(order, form)),
        asking(post("/subjects/payments-value/versions?normalize=false", schema("4"))),
        answering(ok({"id": 4}, form)),
        asking(post("/subjects/orders-key", {"schema": golden()[0]["3"]["schema"]})),
        answering(ok({"subject": "orders-key", "id": 3, "version": 1, "schema": golden()[0]["3"]["schema"]}, form)),
    ]


def capture(path: Path, segments: Sequence[Segment]) -> Path:
    """Write a capture of registry traffic, and of the golden records."""
    writes = []
    for number, case in enumerate(golden()[1], 1):
        key, value = (case.data, None) if case.side == "key" else (None, case.data)
        writes.append(asking(produce(number, records=batch([record(0, key, value)]), topic=case.topic)))
        writes.append(answering(produce_answer(number, topic=case.topic)))
    path.write_bytes(pcap(rendered([*segments, *converse(writes)]), nanoseconds=True))
    return path


def talk(writes: list[Write], **more: Any) -> list[Segment]:
    return converse(writes, client=CLIENT, broker=REGISTRY, **more)


@pytest.mark.parametrize("form", ["plain", "chunked", "gzip"])
def test_records_are_decoded_with_what_the_registry_said(form: str, tmp_path: Path) -> None:
    path = capture(tmp_path / "c.pcap", talk(spoken(form)))
    dataset = analyze(path, records="full", meaning=False)
    decoded = {}
    for row, case in zip(dataset.records.to_pylist(), golden()[1], strict=True):
        if row["topic"] in ("orders", "payments"):
            assert json.loads(row[f"{case.side}_json"]) == case.json
            decoded[row[f"{case.side}_schema_id"]] = row[f"{case.side}_format"]
    assert decoded == {"2": "avro", "3": "avro", "4": "json_schema"}
    rows = {row["schema_id"]: row for row in dataset.schemas.to_pylist()}
    assert {number: row["subject"] for number, row in rows.items()} == {
        "1": "shop.shared.Address",
        "2": None,
        "3": "orders-key",
        "4": "payments-value",
    }
    assert {row["source"] for row in rows.values()} == {"capture"}
    assert "c2VjcmV0" not in json.dumps(dataset.schemas.to_pylist())


def test_packets_of_any_size_order_and_number_say_the_same(tmp_path: Path) -> None:
    small = talk(spoken(), mss=37, acks=False)
    disordered = [*small[:3], *(small[at ^ 1] if at ^ 1 < len(small) else small[at] for at in range(4, len(small)))]
    for segments in (small, [segment for segment in small for _ in range(2)], [small[3], *disordered]):
        path = capture(tmp_path / "c.pcap", segments)
        assert set(read_schemas(CapturePoint("c", (str(path),))).by_id) == {"1", "2", "3", "4"}


def test_what_was_not_captured_ends_what_is_known(tmp_path: Path) -> None:
    segments = talk(spoken())
    answers = [at for at, segment in enumerate(segments) if segment.payload and segment.source == REGISTRY]
    del segments[answers[2]]
    path = capture(tmp_path / "c.pcap", segments)
    assert set(read_schemas(CapturePoint("c", (str(path),))).by_id) == {"1"}


def test_a_capture_without_a_registry_is_not_read_for_one(tmp_path: Path) -> None:
    path = capture(tmp_path / "c.pcap", [])
    point = CapturePoint("c", (str(path),))
    assert not may_have_any(point, compressed=True)
    compressed = tmp_path / "c.pcap.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    assert may_have_any(CapturePoint("c", (str(compressed),)), compressed=True)
    assert not may_have_any(CapturePoint("c", (str(compressed),)), compressed=False)
    assert not may_have_any(CapturePoint("-", ("-",)), compressed=True)
    assert set(analyze(path, records="full", meaning=False).records["value_format"].to_pylist()) == {None}


@pytest.mark.parametrize("at", range(40))
def test_a_request_is_found_wherever_blocks_of_a_file_end(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "_BLOCK_BYTES", 16)
    (tmp_path / "c").write_bytes(b"x" * at + b"/schemas/ids/" + b"x" * 7)
    assert may_have_any(CapturePoint("c", (str(tmp_path / "c"),)), compressed=False)
    (tmp_path / "c").write_bytes(b"x" * at + b"/schemas/ids" + b"x" * 27)
    assert not may_have_any(CapturePoint("c", (str(tmp_path / "c"),)), compressed=False)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nTrailer: x",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"schema":7}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n{"schema":"x","references":[1,2]}',
        b"\0" * 1000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"",
    ],
)
def test_answers_that_mean_harm_say_nothing(answer: bytes, tmp_path: Path) -> None:
    path = capture(tmp_path / "c.pcap", talk([asking(get("/schemas/ids/7")), answering(answer)]))
    schemas = read_schemas(CapturePoint("c", (str(path),)))
    assert not [schema for schema in CapturedSource(schemas).every() if schema.text != "x"]
