"""Compare raw messages read a column at a time with those read one by one.

(proves: analyzer/messages/raw_messages.py, `Window.raw`)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.messages import raw_messages
from tests.analyzer.forging import FETCH, framed, heartbeat, heartbeat_answer, request
from tests.analyzer.records.test_record_trees import SECRETS, scram_fetch
from tests.captures.forge import TO_BROKER, TO_CLIENT, Write, converse, pcap, rendered
from tests.shared import SAMPLES, capture_files

ALL = "request_bytes >= 0 or response_bytes >= 0"
"""A filter that lets everything through: messages then wait for their exchanges, each an object."""

FOLDERS = sorted(path.parent for path in SAMPLES.glob("*/truth.json"))


def rows(folder: Path, **how: Any) -> list[dict[str, Any]]:
    paths = [str(path) for path in capture_files(folder)]
    result = analyzer.analyze(paths, rotated=True, keep_bytes=True, **how)
    return list(result.tables["messages"].to_pylist())


def by_place(messages: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row.values())) for row in messages)


@pytest.mark.parametrize("secrets", [False, True])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_each_message_is_what_it_is_by_itself(folder: Path, secrets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = rows(folder, filter=ALL, keep_secrets=secrets)
    at_once = rows(folder, keep_secrets=secrets)
    assert by_place(at_once) == by_place(one_by_one)
    assert len(at_once) > 20
    monkeypatch.setattr(raw_messages, "MOST_BYTES", 300)
    assert rows(folder, keep_secrets=secrets, window_bytes=20_000, threads=4) == at_once


def test_records_with_secrets_are_overwritten_in_whole_windows(tmp_path: Path) -> None:
    """A controller's Fetch between answers that look like it."""
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
    others = [heartbeat_answer(number) for number in (2, 3)]
    number = int.from_bytes(answer[:4], "big")
    asking = [heartbeat(2), request(FETCH, 17, number, fetch), heartbeat(3)]
    writes = [
        write
        for message, reply in zip(asking, [others[0], framed(answer), others[1]], strict=True)
        for write in (Write(TO_BROKER, message), Write(TO_CLIENT, reply))
    ]
    path = tmp_path / "controller.pcap"
    path.write_bytes(pcap(rendered(converse(writes))))
    for secrets in (False, True):
        messages = analyzer.analyze(path, keep_bytes=True, keep_secrets=secrets).tables["messages"].to_pylist()
        answers = [row["bytes"] for row in messages if row["direction"] == "response"]
        assert [len(content) for content in answers] == [len(others[0]), len(answer) + 4, len(others[1])]
        assert [answers[0], answers[2]] == others
        assert b"604800000" in answers[1]  # only secrets are overwritten
        assert [secret in answers[1] for secret in SECRETS] == [secrets] * len(SECRETS)


def test_what_may_be_records_with_secrets_is_looked_into_wherever_it_begins() -> None:
    marker = bytes(15) + b"\x01"
    parts = marker[:8], marker[8:]
    named = b"__cluster_metadata"
    content = [b"", marker, bytes(range(40)), named, bytes(64), b"yyy" + parts[0], parts[1], b"", marker]
    data = bytearray().join(content)
    ends = np.cumsum([len(part) for part in content])
    positions = set(raw_messages._with_markers(data, ends))
    assert {1, 3, 8} <= positions <= {1, 3, 4, 5, 8}
