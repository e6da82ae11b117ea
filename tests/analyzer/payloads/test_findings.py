"""Findings about keys and values, from captures on: what the command says of them, and where it says nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kwire import open_dataset
from tests.analyzer.cli.test_parser import kwire, printed, refused
from tests.analyzer.findings.evaluating import Traffic, judged
from tests.analyzer.findings.payload_cases import CUT, cut, decoded, fetch, stuck, write
from tests.analyzer.forging import answering, asking, fetch_answer
from tests.analyzer.forging import fetch as fetch_request
from tests.analyzer.payloads.golden_payloads import golden, golden_capture, record, write_capture, write_schemas
from tests.bench.messages import batch
from tests.captures.forge import converse, pcap, rendered
from tests.shared import SAMPLES

CODES = "payload-undecodable,schema-unknown-id,mixed-formats,schema-changed"
AVRO = next(case for case in golden()[1] if case.format == "avro" and case.side == "value" and case.topic == "orders")


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_schemas(tmp_path_factory.mktemp("payload-findings") / "schemas")


def printed_findings(*arguments: Any) -> dict[str, dict[str, Any]]:
    """Findings about payloads that the command prints, by code."""
    lines = printed("findings", *arguments, "--only", CODES, "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == len({row["code"] for row in rows}), rows
    return {row["code"]: row for row in rows}


def test_a_topic_with_one_of_each(tmp_path: Path, schemas: Path) -> None:
    values = [AVRO.data, AVRO.data, AVRO.data[:-1], b'{"id": 1}', b"\0\0\0\0\x63abcdef", AVRO.data]
    capture = write_capture(tmp_path / "orders.pcap", [("orders", None, value, ()) for value in values])
    rows = printed_findings(capture, "--schemas", schemas)
    assert sorted(rows) == ["mixed-formats", "payload-undecodable", "schema-unknown-id"]
    pill = rows["payload-undecodable"]
    assert (pill["severity"], pill["count"]) == ("error", 1)
    assert pill["text"].startswith("orders-app (10.0.0.1) wrote a value that does not decode: orders-0@40 (avro of ")
    assert pill["what"] == {"topic": "orders", "partition": "0", "offset": "40", "part": "value", "schema_id": "2"}
    assert pill["who"]["client_id"] == "orders-app"
    assert pill["first"]["exchange"] == 3 - 1
    assert rows["schema-unknown-id"]["what"]["schema_id"] == "99"
    assert "(avro: 5) and 1 that names none (json)" in rows["mixed-formats"]["text"]
    printed("analyze", capture, "-o", tmp_path / "dataset", "--schemas", schemas)
    assert printed_findings(tmp_path / "dataset") == rows
    assert [entry["schema_sources"] for entry in open_dataset(tmp_path / "dataset").captures] == [["folder"]]
    assert printed_findings(capture) == {}
    assert sorted(printed_findings(capture, "--payloads")) == ["mixed-formats"]


def test_a_new_schema_is_a_note(tmp_path: Path, schemas: Path) -> None:
    other = next(case for case in golden()[1] if case.format == "avro" and case.data[4] not in (AVRO.data[4], 0))
    values = [AVRO.data] * 3 + [other.data] * 2
    capture = write_capture(tmp_path / "orders.pcap", [("orders", None, value, ()) for value in values])
    (row,) = printed_findings(capture, "--schemas", schemas).values()
    assert (row["code"], row["severity"], row["count"]) == ("schema-changed", "note", 2)
    assert (row["what"]["before"], row["what"]["schema_id"]) == (str(AVRO.data[4]), str(other.data[4]))


def test_who_fetched_a_record_is_told_where_nobody_was_seen_to_write_it(tmp_path: Path, schemas: Path) -> None:
    writes = []
    for number, value in enumerate((AVRO.data, *[AVRO.data[:-1]] * 3), 1):
        writes.append(asking(fetch_request(number)))
        writes.append(answering(fetch_answer(number, batch([record(0, None, value)]))))
    capture = tmp_path / "orders.pcap"
    capture.write_bytes(pcap(rendered(converse(writes)), nanoseconds=True))
    row = printed_findings(capture, "--schemas", schemas)["payload-undecodable"]
    assert row["count"] == 1
    assert "fetched a value that does not decode" in row["text"]
    assert "; who wrote it was not captured; " in row["text"]
    assert row["text"].endswith(" fetched it 3 times.")


def test_clean_values_raise_nothing(tmp_path: Path, schemas: Path) -> None:
    assert printed_findings(golden_capture(tmp_path / "golden.pcap"), "--schemas", schemas) == {}


@pytest.mark.parametrize("name", ["client-kafkajs-3.9", "codecs-franzgo-4.3"])
def test_captures_without_schemas_raise_nothing(name: str) -> None:
    assert printed_findings(SAMPLES / name / "capture.pcap", "--payloads") == {}


def test_a_dataset_was_decoded_when_it_was_made(tmp_path: Path, schemas: Path) -> None:
    capture = golden_capture(tmp_path / "golden.pcap")
    printed("analyze", capture, "-o", tmp_path / "dataset")
    refused(kwire("findings", tmp_path / "dataset", "--schemas", schemas), "decoded when it was made")


def test_the_reader_that_stands_at_it_is_told(tmp_path: Path) -> None:
    for wrong in (True, False):
        traffic = Traffic(tmp_path / str(wrong))
        stuck(traffic, wrong)
        finding = next(finding for finding in judged(traffic) if finding.code == "payload-undecodable")
        assert finding.text.startswith("app (10.0.0.1) wrote a value that does not decode: orders-1@43 (avro of ")
        assert ("reader (10.0.0.1) fetched it 20 times" in finding.text) == wrong
        assert finding.cause == ("reader (10.0.0.1) does not get past it (partition-stuck)" if wrong else None)


def test_a_reader_that_stops_after_a_change_makes_it_a_warning(tmp_path: Path) -> None:
    for wrong in (True, False):
        traffic = Traffic(tmp_path / str(wrong))
        stuck(traffic, wrong)
        new = next(row for row in traffic.rows["records"] if row["side"] == "produce" and "undecodable" in row)
        new["value_schema_id"] = "18"
        finding = next(finding for finding in judged(traffic) if finding.code == "schema-changed")
        assert finding.severity == ("warning" if wrong else "note")
        assert ("reader (10.0.0.1) does not get on in orders-1" in finding.text) == wrong


def test_what_cannot_be_asked_for_is_a_note(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    decoded(traffic, "registry")
    write(traffic, 1, 40, value_schema_id="99", undecodable="value: schema 99: the registry did not answer")
    (finding,) = [finding for finding in judged(traffic) if finding.code == "schema-unknown-id"]
    assert finding.severity == "note"
    assert "could not be looked up (schema 99: the registry did not answer)" in finding.text


def test_a_topic_of_which_nothing_decodes_may_have_another_schema(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    decoded(traffic, "folder")
    write(traffic, 1, 40, 3, value_format="avro", value_schema_id="17", undecodable=CUT)
    (finding,) = [finding for finding in judged(traffic) if finding.code == "payload-undecodable"]
    assert (finding.severity, finding.count) == ("warning", 3)
    assert finding.text.endswith("and 2 more; no value of orders decodes.")


def test_records_that_do_not_decode_are_counted_where_they_are_too_many_to_be_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.analyzer.findings.decoded_records.MOST_PLACES", 2)
    traffic = Traffic(tmp_path / "dataset")
    cut(traffic, True)
    for number in range(5):
        fetch(traffic, 10 + number, 44 + number, value_format="avro", value_schema_id="17", undecodable=CUT)
    counts = {finding.who["client_id"]: finding.count for finding in judged(traffic) if "undecodable" in finding.code}
    assert counts["app"] == 1


def test_personal_data_is_counted_and_never_told(tmp_path: Path) -> None:
    customer = {"contact": {"mail": "zoe@example.com"}, "pan": "4111111111111111", "by": {"bob@example.org": 1}}
    capture = write_capture(
        tmp_path / "c.pcap",
        [("customers", b"anna@example.com", json.dumps(customer).encode(), ()), ("clean", b"k", b'{"a": 1}', ())],
    )
    rows = [json.loads(line) for line in printed("findings", capture, "--json", "--look-for", "pii").splitlines()]
    by_part = {row["what"]["part"]: row for row in rows if row["code"] == "payload-personal-data"}
    assert "Keys of customers hold personal data: e-mail address (1); orders-app (" in by_part["key"]["text"]
    text = by_part["value"]["text"]
    assert "card number in pan (1), e-mail address in by.* (1), e-mail address in contact.mail (1)" in text
    for secret in ("zoe", "anna", "bob", "4111"):
        assert secret not in json.dumps(rows)
    assert "payload-personal-data" not in printed("findings", capture, "--json", "--payloads")
    printed("analyze", capture, "-o", tmp_path / "bare")
    refused(kwire("findings", tmp_path / "bare", "--look-for", "pii"), "were not decoded")
    refused(kwire("findings", capture, "--look-for", "gold"), "nothing that kwire looks for")
    printed("analyze", capture, "-o", tmp_path / "dataset", "--payloads")
    assert "payload-personal-data" in printed("findings", tmp_path / "dataset", "--look-for", "pii", "--json")
