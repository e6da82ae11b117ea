"""Prove that the first screen of `kwire findings` names the cause of incidents at real brokers, and nothing false.

Ten of them, at one cluster; `python -m tests.incidents` has all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import live
from tests.brokers.fixtures import Start
from tests.incidents import all_incidents
from tests.incidents.lab import THREE, Incident, Truth, Verdict, judge

TEN = (
    "seek-back-loop",
    "too-large",
    "txid-shared",
    "wrong-partitioner",
    "acl-group",
    "connection-limit",
    "metadata-storm",
    "old-client",
    "cross-rack",
    "frozen-broker",
)


@pytest.mark.parametrize("name", TEN)
def test_the_first_screen_names_the_cause(name: str, shared_brokers: Start, tmp_path: Path) -> None:
    if os.geteuid():
        live.missing.append("incidents: root is needed to capture on the loopback")
        pytest.skip(live.missing[-1])
    brokers, incident = shared_brokers(THREE), all_incidents()[name]
    verdict = judge(incident, brokers, tmp_path / "first")
    if not verdict.good:  # a real broker on a busy machine may have another trouble as well: what comes again is ours
        verdict = judge(incident, brokers, tmp_path / "again")
    assert verdict.good, str(verdict)


def test_each_incident_tells_its_cause_and_truth() -> None:
    incidents = all_incidents()
    assert set(TEN) <= set(incidents)
    for incident in incidents.values():
        assert incident.cause.endswith("."), incident.name
        assert incident.truth.codes or incident.truth.hidden, incident.name


def _row(code: str, severity: str = "warning", text: str = "app") -> dict[str, str]:
    return {"code": code, "severity": severity, "text": text}


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([_row("hot-partition")], "right"),
        ([_row("hot-partition", text="other")], "silent"),
        ([_row("tiny-batches", "note")] * 4 + [_row("hot-partition")], "silent"),
        ([_row("hot-partition"), _row("broker-lost")], "false"),
        ([_row("tcp-retransmission")] * 4 + [_row("hot-partition")], "right"),
    ],
    ids=["named", "of another", "below the screen", "beside a false one", "below what is of the machine"],
)
def test_a_verdict_goes_by_codes_and_who(rows: list[dict[str, str]], word: str) -> None:
    incident = Incident("made", Truth("hot-partition", ("app",)), THREE, lambda lab: None)
    assert Verdict(incident, rows).word == word
