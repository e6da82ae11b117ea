"""A dataset of format 1, kept as it was written, is read: what it lacks is null or empty, and said."""

from __future__ import annotations

from pathlib import Path

import pytest

import analyzer
from analyzer.cli import parser
from analyzer.dataset import tables
from reports.embedded import engine
from reports.page import rendering
from reports.page.report import make
from tests.shared import SAMPLES

KEPT = Path(__file__).with_name("format_1") / "sasl-librdkafka-4.3"
"""Written by kwire before the tables of `MEANING` were there, from the sample of that name."""

CAPTURE = SAMPLES / KEPT.name / "capture.pcap"

# fmt: off
LATER = {
    "exchanges": {"queue_us", "muted_us", "network_us", "hold_us", "broker_us", "cause"},
    "connections": {
        "capture_point", "opaque_prefix_bytes", "proxied_from", "proxied_to", "tls_version", "tls_cipher", "tls_sni",
        "tls_alpn", "tls_subject", "tls_not_after", "tls_failure", "decrypted",
    },
}
# fmt: on
"""Columns that format 1 may lack."""


def test_its_tables_are_as_they_are_today_but_for_what_came_later() -> None:
    kept, today = analyzer.open_dataset(KEPT), analyzer.analyze(CAPTURE)
    assert kept.manifest["format_version"] == 1
    for name in ("exchanges", "partitions", "connections", "leaders", "brokers", "topic_ids", "api_versions"):
        old, new = getattr(kept, name).to_table(), today.tables[name]
        assert old.schema.names == [column.name for column in tables.TABLES[name]]
        for column in set(old.column_names) - LATER.get(name, set()):
            assert old.column(column).to_pylist() == new.column(column).to_pylist(), (name, column)


def test_its_meaning_is_empty_and_what_was_not_worked_out_null() -> None:
    kept = analyzer.open_dataset(KEPT)
    for name in tables.MEANING:
        assert getattr(kept, name).to_table().num_rows == 0
        assert getattr(kept, name).to_table().schema.names == [column.name for column in tables.TABLES[name]]
    exchanges = kept.exchanges.to_table()
    assert exchanges.num_rows == exchanges.column("hold_us").null_count > 0


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = parser.main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_its_findings_are_those_that_need_no_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "findings", str(KEPT), "--fail-on", "error")
    assert code == 1
    assert "authentication-failed" in out
    assert "was not analysed" in err


def test_its_story_says_what_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = said(capsys, "story", str(KEPT))
    assert out
    assert "was not worked out" in err


def test_its_report_says_that_it_was_not_analysed() -> None:
    with engine.opened([KEPT]) as embedded:
        report = make(embedded, ("kept",), None, "1")
    (statement,) = [one for one in report.statements if one.subject == "Findings"]
    assert statement.verdict == "look"
    assert statement.text.startswith("Not analysed: what the traffic of capture.pcap means")
    assert "Not analysed" in rendering.as_html(report)
