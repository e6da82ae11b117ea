"""Broken conversations, many in a capture: they hold, a seed tells all of them, and what fails is found among them.

(proves: tests/fuzz/conversations.py)
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kwire import analyzer
from kwire.analyzer.protocol import schema
from tests.fuzz import conversations
from tests.fuzz.checking import Broken, Outcome
from tests.fuzz.conversations import Conversation, Reading

COUNT = 300
PLAIN = Reading({"threads": 1}, {"threads": 2}, False)


@pytest.mark.parametrize("number", range(4))
def test_conversations_hold(number: int, tmp_path: Path) -> None:
    analyzer.analyze(capture(tmp_path, 0), records="full")  # kernels may have to be compiled
    talks = conversations.case(number, 1, COUNT)
    outcome = conversations.check(talks, Reading.of(number, 1), tmp_path)
    assert outcome.mutants == COUNT
    assert outcome.exchanges > COUNT, "so broken that nothing is tested"


def capture(folder: Path, number: int) -> Path:
    path = folder / "case.pcap"
    path.write_bytes(conversations.capture(conversations.case(number, 1, COUNT)))
    return path


def test_a_seed_tells_all_connections() -> None:
    first, again, other = (conversations.case(number, 7, 20) for number in (3, 3, 4))
    assert first == again
    assert first != other
    assert Reading.of(3, 7) == Reading.of(3, 7)


def test_every_api_and_version_is_made() -> None:
    """With bodies that its own definition reads to their ends."""
    import random

    rng = random.Random(1)
    pairs = [conversations.synthetic(rng) for _ in range(3000)]
    assert {pair.api_key for pair in pairs} == {api.api_key for api in schema.apis()}
    for pair in pairs[:200]:
        assert struct.unpack_from(">i", pair.request)[0] == len(pair.request) - 4


def test_the_connection_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talks = conversations.case(0, 1, 40)
    wrong = talks[17]

    def check(part: list[Conversation], *_: object) -> Outcome:
        if wrong in part:
            raise Broken("one of them")
        return Outcome(0.0, 0, False)

    monkeypatch.setattr(conversations, "case", lambda *_: talks)
    monkeypatch.setattr(conversations, "check", check)
    assert conversations.smallest(0, 1, Broken, tmp_path) == [wrong]
    assert conversations.smallest(0, 1, KeyError, tmp_path) == talks, "it fails in another way"


def test_a_wrong_sum_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talks = conversations.case(0, 1, 20)
    conversations.check(talks, PLAIN, tmp_path)
    monkeypatch.setattr(conversations, "capture", lambda part: original(part[1:]))
    with pytest.raises(Broken, match="payload bytes accounted for"):
        conversations.check(talks, PLAIN, tmp_path)


original = conversations.capture
