"""Outcomes are counted and stored.

Proves: replay/outcome.py, replay/run_writer.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.dataset.dataset import Writer, open_dataset
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.encoding import encode_response
from kwire.replay import run_writer
from kwire.replay.outcome import Outcome
from kwire.replay.run_writer import Recorder
from tests.analyzer.records.test_record_trees import SECRETS, scram_fetch
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import START_NS, Captured

NOW = 1_700_000_000_000
LearnedPair = tuple[int, int]
"""A base offset and a log append time."""


@pytest.mark.parametrize(
    ("captured", "replayed", "duplicates"),
    [
        pytest.param([(0, -1), (3, -1)], [(0, -1), (3, -1)], 0, id="stored"),
        pytest.param([(0, -1), (3, -1)], [(0, -1), (0, NOW)], 1, id="the base offset of the batch before"),
        pytest.param([(0, -1), (3, -1)], [(0, NOW), (3, NOW)], 0, id="a target with LogAppendTime"),
        pytest.param([(0, -1), (3, -1)], [(0, NOW), (0, NOW)], 1, id="a duplicate on such a target"),
        pytest.param([(0, -1), (0, NOW)], [(0, -1), (0, NOW)], 0, id="a duplicate when captured, too"),
    ],
)
def test_a_duplicate_is_told_by_its_base_offset(
    tmp_path: Path, captured: list[LearnedPair], replayed: list[LearnedPair], duplicates: int
) -> None:
    capture = Captured()
    for number, (base, appended) in enumerate(captured):
        capture.add(number, api_keys.PRODUCE, 8, produced(batch((7, 0))), produced_answer(base, appended=appended))
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        for number, (request, (base, appended)) in enumerate(zip(capture.requests, replayed, strict=True)):
            answer = encode_response(api_keys.PRODUCE, 8, 0, produced_answer(base, appended=appended))
            outcome = Outcome(
                request.row,
                number,
                "sent",
                "answered",
                sent_version=8,
                sent_ns=START_NS,
                answered_ns=START_NS,
                answer=answer,
                captured_answer=request.answer,
            )
            recorder.add(outcome)
        recorder.settle()
    assert recorder.counts.duplicates == duplicates


@pytest.mark.parametrize("level", [0, 1])
def test_the_replayed_side_has_what_its_request_asked_for(tmp_path: Path, level: int) -> None:
    fetch = {
        "replicaId": -1,
        "maxWaitMs": 500,
        "minBytes": 7,
        "maxBytes": 1000,
        "isolationLevel": level,
        "topics": [],
    }
    (request,) = Captured().add(0, api_keys.FETCH, 4, fetch).requests
    assert isinstance(request.row, dict)
    request.row.update(isolation_level=level, min_bytes=7, max_wait_ms=500)
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        recorder.add(Outcome(request.row, 0, "sent", "unanswered", sent_version=4, sent_ns=START_NS))
        recorder.finish([], [], {})
    (row,) = open_dataset(tmp_path / "run").exchanges.to_table().to_pylist()
    assert row["capture"].startswith("replay:")
    assert (row["isolation_level"], row["min_bytes"], row["max_wait_ms"]) == (level, 7, 500)


def test_secrets_in_records_of_the_cluster_are_not_written(tmp_path: Path) -> None:
    """Of the captured side and of the replayed one: a controller's Fetch holds what logins are checked with."""
    fetch = {
        "maxWaitMs": 500,
        "minBytes": 1,
        "maxBytes": 1000,
        "isolationLevel": 0,
        "sessionId": 0,
        "sessionEpoch": -1,
        "topics": [],
        "forgottenTopicsData": [],
        "rackId": "",
    }
    answer = scram_fetch()
    (captured,) = Captured().add(0, api_keys.FETCH, 17, fetch).requests
    request = dataclasses.replace(captured, answer=answer)
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        recorder.add_exchange(request)
        recorder.add(
            Outcome(
                request.row,
                0,
                "sent",
                "answered",
                sent_version=17,
                sent_ns=START_NS,
                answered_ns=START_NS,
                request=request.data,
                answer=answer,
            )
        )
        recorder.finish([], [], {})
    stored = open_dataset(tmp_path / "run").messages.to_table().to_pylist()
    answers = [row["bytes"] for row in stored if row["direction"] == "response"]
    assert len(answers) == 2
    for written in answers:
        assert len(written) == len(answer) + 4
        assert b"604800000" in written  # only secrets are overwritten
        assert not any(secret in written for secret in SECRETS)


def test_requests_of_members_that_are_lost_are_counted_by_group(tmp_path: Path) -> None:
    (request,) = Captured().add(0, api_keys.HEARTBEAT, 3, {"groupId": "g", "memberId": "m", "generationId": 1}).requests
    assert isinstance(request.row, dict)
    request.row.update(group_id="g")
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        for number, retries in enumerate((["rejoined", "rejoins_spent"], ["rejoined"], [])):
            recorder.add(Outcome(request.row, number, "sent", "unanswered", retries=retries))
        recorder.finish([], [], {})
    assert recorder.counts.as_dict()["groups_apart"] == {"g": 1}
    assert recorder.counts.silent == {request.row["api"]: 3}


def test_what_a_run_learned_is_written_as_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long run that are a million rows."""
    monkeypatch.setattr(run_writer, "_ROWS", 10)
    count = 0
    written: list[int] = []

    def learned() -> Iterator[dict[str, Any]]:
        nonlocal count
        for number in range(25):
            count += 1
            yield {
                "capture": "shop.pcap",
                "kind": "offset",
                "scope": "orders-0",
                "captured": str(number),
                "replayed": str(number + 7),
                "records": 1,
            }

    with Writer(tmp_path / "run") as writer:
        write = writer.write

        def noted(name: str, rows: Any) -> None:
            if name == "remaps":
                written.append(count)
            write(name, rows)

        monkeypatch.setattr(writer, "write", noted)
        Recorder(writer).finish(learned(), [], {})
    assert written == [10, 20, 25]
    stored = open_dataset(tmp_path / "run").remaps.to_table()
    assert stored.column("captured").to_pylist() == [str(number) for number in range(25)]
