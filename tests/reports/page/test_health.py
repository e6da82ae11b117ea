"""Health at a glance says what findings say, with who shows it, and what is well. Proves `page/health.py` and how its
statements are shown; thresholds are proved in `tests/analyzer/findings`."""

from __future__ import annotations

import html
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.findings.rules import FAMILIES
from kwire.reports.embedded import engine
from kwire.reports.page import rendering, sections
from kwire.reports.page.health import SECTIONS, Statement
from kwire.reports.page.report import Report, make
from tests.reports.forging import Forged, at
from tests.shared import SAMPLES

CLEAN = "codecs-franzgo-4.3"
FAULTY = "sasl-librdkafka-4.3"


def report(*datasets: Path, target: str | None = None) -> Report:
    with engine.opened(datasets) as embedded:
        return make(embedded, ("it",), target, "1")


def of_sample(name: str, folder: Path, **how: Any) -> Path:
    analyzer.analyze(SAMPLES / name / "capture.pcap", out=folder / name, **how)
    return folder / name


def of(health: Report, subject: str) -> list[Statement]:
    return [statement for statement in health.statements if statement.subject == subject]


def finding(forged: Forged, code: str, severity: str = "warning", **columns: Any) -> None:
    """A row of `findings`."""
    shown = {"connection": "10.0.0.1:5000-10.0.0.9:9092#1", "exchange": 3, "reply": 3}
    forged.add(
        "findings",
        **{
            "severity": severity,
            "code": code,
            "family": "network",
            "text": f"{code} is so.",
            "count": 1,
            "since": at(1),
            "advice": "Mend it.",
            "who": [],
            "what": [],
            "first": shown,
            "worst": shown,
            "last": {**shown, "exchange": 9},
            **columns,
        },
    )


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    return Forged(tmp_path / "forged", meaning=True)


def test_a_clean_capture_is_well(tmp_path: Path) -> None:
    health = report(of_sample(CLEAN, tmp_path))
    assert {statement.verdict for statement in health.statements} <= {"good", "note"}
    assert [statement.verdict for statement in of(health, "Findings")] == ["good"]
    assert {statement.subject for statement in health.statements if statement.verdict == "good"} >= {
        "Errors",
        "Latency",
        "Coverage",
    }


def test_every_error_and_warning_of_the_table_is_told_with_its_evidence(tmp_path: Path) -> None:
    dataset = of_sample(FAULTY, tmp_path)
    health = report(dataset)
    rows = analyzer.open_dataset(dataset).findings.to_table().to_pylist()
    refused = [row for row in rows if row["code"] == "authentication-failed"]
    statements = of(health, "authentication-failed")
    assert {statement.text for statement in statements} == {row["text"] for row in refused}
    assert {statement.verdict for statement in statements} == {"error"}
    first = refused[0]["first"]
    shown = next(statement for statement in statements if statement.text == refused[0]["text"])
    assert f"exchange {first['exchange']} of {first['connection']}" in " ".join(shown.evidence)
    assert shown.advice == refused[0]["advice"]
    assert [statement.verdict for statement in health.statements] == sorted(
        (statement.verdict for statement in health.statements), key=["error", "warning", "note", "good"].index
    )
    assert len(health.answers["findings"].rows) == len(rows)
    command = f'connection == "{first["connection"]}" and exchange == {first["exchange"]}'
    assert any(command in text for text in shown.commands)
    for shown_as in (rendering.as_html(health), rendering.as_markdown(health).replace("\\", "")):
        assert f"exchange {first['exchange']} of {first['connection']}" in shown_as
    whole = json.loads(rendering.as_json(health))
    assert [row["text"] for row in whole["findings"]] == [statement.text for statement in health.statements]
    assert whole["findings"][0]["evidence"]


def test_severities_become_verdicts_and_causes_say_how_sure_they_are(forged: Forged) -> None:
    finding(forged, "a", "error", cause="the disk", proven=True)
    finding(forged, "b", "warning", cause="the disk", proven=False)
    finding(forged, "c", "note")
    health = report(forged.write())
    by_subject = {statement.subject: (statement.verdict, statement.text) for statement in health.statements}
    assert by_subject["a"] == ("error", "a is so. Because: the disk.")
    assert by_subject["b"] == ("warning", "b is so. Probably: the disk.")
    assert by_subject["c"] == ("note", "c is so.")
    (evidence,) = {statement.evidence for statement in of(health, "a")}
    link = "10.0.0.1:5000-10.0.0.9:9092#1"
    assert evidence == (f"first, worst: exchange 3 of {link}", f"last: exchange 9 of {link}")
    assert "Findings" not in by_subject


def test_of_many_alike_the_first_are_told_and_the_others_counted(forged: Forged) -> None:
    for number in range(7):
        finding(forged, "alike", text=f"number {number}", since=at(number))
    texts = [statement.text for statement in of(report(forged.write()), "alike")]
    assert texts == [*(f"number {number}" for number in range(4)), "3 more like these: see Findings."]


def test_findings_of_one_rule_stand_together_with_whom_they_are_about(forged: Forged) -> None:
    for number, name in enumerate(["bob", "carol", "bob", "dave", "eve", "eve"]):
        who = [("client_id", name), ("client_ip", "10.0.0.1")]
        finding(forged, "authentication-failed", "error", who=who, count=number + 1, since=at(number))
    finding(forged, "authentication-failed", "note", who=[("broker", "<b>&")])
    finding(forged, "skew", what=[("topic", "orders")])
    health = report(forged.write())
    groups = {(group.subject, group.verdict): group for group in rendering.groups(health.statements)}
    refused = groups["authentication-failed", "error"]
    assert refused.text == "eve 11, bob 4, dave 4, carol 2"  # those that are not told one by one, too
    assert len(refused.statements) == 5
    assert groups["authentication-failed", "note"].text == "authentication-failed is so."
    assert groups["skew", "warning"].statements[0].names == (("orders", 1),)
    page, text = rendering.as_html(health), rendering.as_markdown(health)
    assert page.count("eve 11, bob 4, dave 4, carol 2") == 1
    assert "**authentication-failed: error.** eve 11, bob 4, dave 4, carol 2" in text.replace("\\", "")
    link = "10.0.0.1:5000-10.0.0.9:9092#1"
    command = f"kwire show forged.pcap --filter 'connection == \"{link}\" and exchange == 9'"
    assert refused.statements[0].commands[-1] == command
    assert html.escape(command, quote=True).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page


def test_commands_are_safe_to_paste(forged: Forged) -> None:
    forged.capture = "a'; rm -rf ~; '.pcap"
    finding(forged, "odd")
    (statement,) = of(report(forged.write()), "odd")
    assert shlex.split(statement.commands[0])[:3] == ["kwire", "show", forged.capture]


def test_facts_are_good_only_where_nothing_of_their_kind_was_found(forged: Forged) -> None:
    for number in range(3):
        forged.exchange("Produce", second=number, error="NOT_LEADER_OR_FOLLOWER" if number else None)
    forged.connection(payload_bytes=10, decoded_bytes=10)
    finding(forged, "broker-slow", family="latency")
    health = report(forged.write())
    assert of(health, "Latency")[0].verdict == "note"
    assert of(health, "Errors") == [
        Statement("Errors", "good", "2 answers of 3 hold an error, none of them a fault.", "errors")
    ]
    assert of(health, "Coverage")[0].verdict == "good"


@pytest.mark.parametrize(("latency_ms", "verdict"), [(5, "good"), (2500, "note")])
def test_latency_is_not_good_where_requests_take_seconds(forged: Forged, latency_ms: int, verdict: str) -> None:
    """Produce with acks=all: nobody knows how long it waited for replicas."""
    for number in range(3):
        forged.exchange("Metadata", second=number, hold_us=0, broker_us=900, cause="broker")
        forged.exchange("Produce", latency_ms, second=number, acks=-1, cause="unknown")
    (statement,) = of(report(forged.write()), "Latency")
    assert statement.verdict == verdict
    assert "This leaves out 3 requests that may have waited for replicas" in statement.text
    assert ("3 requests took a second or more" in statement.text) == (verdict == "note")


def test_answers_that_were_cut_off_are_not_called_well(forged: Forged) -> None:
    for number in range(3):
        forged.exchange("Produce", second=number)
    forged.exchange("Produce", second=3, error_code=None, response_state="truncated")
    forged.connection(payload_bytes=10, decoded_bytes=10)
    text = "None of 3 answers holds an error. Of 1 more too little was captured, or could be read, to tell."
    assert of(report(forged.write()), "Errors") == [Statement("Errors", "note", text, "errors")]


def test_without_meaning_nothing_is_called_well(tmp_path: Path) -> None:
    health = report(of_sample(CLEAN, tmp_path, meaning=False))
    (statement,) = of(health, "Findings")
    assert statement.verdict == "warning"
    assert "Not analysed: what the traffic of capture.pcap means" in statement.text
    assert of(health, "Latency")[0].verdict == "note"


def test_what_an_upgrade_removes_names_its_clients(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "old", meaning=True)
    forged.exchange("Fetch", api_version=2)
    (statement,) = of(report(forged.write(), target="4.0"), "Upgrade")
    assert (statement.verdict, statement.text) == ("error", "Kafka 4.0 has removed what 1 client uses: app.")


def test_all_clients_of_an_upgrade_are_counted_also_beyond_the_rows_of_its_table(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "old", meaning=True)
    for number in range(600):
        forged.exchange("Fetch", api_version=2, client_id=f"app-{number:03}")
    forged.exchange("Fetch", api_version=2, client_id="app-000", client_ip="10.0.0.2")
    forged.exchange("Fetch", api_version=2, client_id=None, client_ip="10.0.0.3")
    (statement,) = of(report(forged.write(), target="4.0"), "Upgrade")
    named = "app-000, app-001, app-002 and 599 more"
    assert statement.text == f"Kafka 4.0 has removed what 602 clients use: {named}."


def test_clients_without_an_id_are_named_once(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "old", meaning=True)
    for client_id in (None, "", "app"):
        forged.exchange("Fetch", api_version=2, client_id=client_id)
    (statement,) = of(report(forged.write(), target="4.0"), "Upgrade")
    assert statement.text == "Kafka 4.0 has removed what 3 clients use: a client without id, app and 1 more."


def test_clients_that_were_offered_nothing_newer_may_live_through_an_upgrade(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "old", meaning=True)
    forged.add("api_versions", broker="10.0.0.9:9092", api_key=1, min=0, max=3)
    forged.exchange("Fetch", api_version=3)
    statements = of(
        report(forged.write(), target="4.0"), "Upgrade"
    )  # a client before 2.4 has no newer ones for all we know
    assert [(statement.verdict, statement.text) for statement in statements] == [
        ("error", "Kafka 4.0 has removed what 1 client uses: app.")
    ]
    forged.exchange("ApiVersions", api_version=3)
    newest = "Kafka 4.0 has removed what 1 client uses, though no newer version was offered to it, which may have one: "
    statements = of(report(forged.write(), target="4.0"), "Upgrade")
    assert [(statement.verdict, statement.text) for statement in statements] == [("warning", f"{newest}app.")]
    forged.exchange("Fetch", api_version=2)  # older than it could
    statements = of(report(forged.write(), target="4.0"), "Upgrade")
    assert [(statement.verdict, statement.text) for statement in statements] == [
        ("error", "Kafka 4.0 has removed what 1 client uses: app.")
    ]


def test_an_upgrade_is_called_well_as_far_as_requests_were_read(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "new", meaning=True)
    (statement,) = of(report(forged.write(), target="4.0"), "Upgrade")
    assert (statement.verdict, statement.text) == (
        "warning",
        "No request was seen: nobody knows which API versions clients use.",
    )
    forged.exchange("Fetch", api_version=4)
    forged.exchange("UpdateMetadata", api_version=7, client_id="1")
    (statement,) = of(report(forged.write(), target="4.0"), "Upgrade")
    text = "Kafka 4.0 has every API version that clients use in the 2 requests seen here."
    assert (statement.verdict, statement.text) == ("good", text)
    sealed = {"capture": forged.capture, "connection": "a", "payload_bytes": 10, "looks_like": "TLS"}
    forged.unrecognised.append(sealed)
    (statement,) = of(report(forged.write(), target="4.0"), "Upgrade")
    assert (statement.verdict, "what is encrypted may need others" in statement.text) == ("note", True)


def test_every_family_has_its_place() -> None:
    assert set(SECTIONS) == set(FAMILIES)
    assert set(SECTIONS.values()) <= {section.name for section in sections.SECTIONS}
