"""Read a stored dataset of format 1: missing columns are null, missing tables empty, and reports say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.dataset import tables
from kwire.reports.embedded import engine
from kwire.reports.page import rendering
from kwire.reports.page.report import make
from tests.shared import SAMPLES

DATASET = Path(__file__).with_name("format_1") / "sasl-librdkafka-4.3"
"""Written by kwire before the tables of `MEANING` were there, from the sample of that name."""

CAPTURE = SAMPLES / DATASET.name / "capture.pcap"

# fmt: off
LATER = {
    "exchanges": {
        "queue_us", "muted_us", "network_us", "hold_us", "broker_us", "broker_low_us", "broker_high_us", "cause",
        "rack_id", "preferred_replica",
    },
    "connections": {
        "capture_point", "opaque_prefix_bytes", "proxied_from", "proxied_to", "tls_version", "tls_cipher", "tls_sni",
        "tls_alpn", "tls_subject", "tls_not_after", "tls_failure", "decrypted",
        "other_addresses", "longest_silence_us", "longest_silence_end", "closed_by", "closed_after", "closed_after_us",
        "delayed_sends",
        "snaplen_record_bytes",
        *(f"{name}_to_{side}" for side in ("broker", "client") for name in (
            "unacknowledged_bytes", "unacknowledged_since", "unacknowledged_sends", "unacknowledged_segment",
            "sacked_bytes", "sacked_segment",
        )),
    },
}
# fmt: on
"""Columns that format 1 may lack."""


def test_its_tables_are_as_they_are_today_but_for_what_came_later() -> None:
    stored, today = analyzer.open_dataset(DATASET), analyzer.analyze(CAPTURE)
    assert stored.manifest["format_version"] == 1
    for name in ("exchanges", "partitions", "connections", "leaders", "brokers", "topic_ids", "api_versions"):
        old, new = getattr(stored, name).to_table(), today.tables[name]
        assert old.schema.names == [column.name for column in tables.TABLES[name]]
        for column in set(old.column_names) - LATER.get(name, set()):
            assert old.column(column).to_pylist() == new.column(column).to_pylist(), (name, column)


def test_its_meaning_is_empty_and_what_was_not_worked_out_null() -> None:
    stored = analyzer.open_dataset(DATASET)
    for name in tables.MEANING:
        assert getattr(stored, name).to_table().num_rows == 0
        assert getattr(stored, name).to_table().schema.names == [column.name for column in tables.TABLES[name]]
    exchanges = stored.exchanges.to_table()
    assert exchanges.num_rows == exchanges.column("hold_us").null_count > 0


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = parser.main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_its_findings_are_those_that_need_no_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output_of(capsys, "findings", str(DATASET), "--fail-on", "error")
    assert code == 1
    assert "authentication-failed" in out
    assert "was not analysed" in err


def test_its_story_says_what_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = output_of(capsys, "story", str(DATASET))
    assert out
    assert "was not worked out" in err


def test_its_report_says_that_it_was_not_analysed() -> None:
    with engine.opened([DATASET]) as embedded:
        report = make(embedded, ("kept",), None, "1")
    (statement,) = [statement for statement in report.statements if statement.subject == "Findings"]
    assert statement.verdict == "warning"
    assert statement.text.startswith("Not analysed: what the traffic of capture.pcap means")
    assert "Not analysed" in rendering.as_html(report)
