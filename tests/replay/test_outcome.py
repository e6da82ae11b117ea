"""What is counted of outcomes.

Proves: replay/outcome.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.dataset import Writer
from analyzer.protocol import names
from analyzer.protocol.encoding import encode_response
from replay.outcome import Outcome, Recorder
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import START_NS, Captured

NOW = 1_700_000_000_000
Told = tuple[int, int]
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
    tmp_path: Path, captured: list[Told], replayed: list[Told], duplicates: int
) -> None:
    capture = Captured()
    for number, (base, appended) in enumerate(captured):
        capture.said(number, names.PRODUCE, 8, produced(batch((7, 0))), produced_answer(base, appended=appended))
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        for number, (request, (base, appended)) in enumerate(zip(capture.requests, replayed, strict=True)):
            answer = encode_response(names.PRODUCE, 8, 0, produced_answer(base, appended=appended))
            outcome = Outcome(request.row, number, "sent", "answered", sent_version=8, sent_ns=START_NS,
                              answered_ns=START_NS, answer=answer, captured_answer=request.answer)  # fmt: skip
            recorder.add(outcome)
        recorder.settle()
    assert recorder.counts.duplicates == duplicates
