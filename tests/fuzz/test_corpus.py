"""The corpus of the fuzzers: what is kept, what is made of it, and how a failure is made small.

proves: tests/fuzz/corpus.py, tests/fuzz/farm.py
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from kwire import analyzer
from tests.captures import forge
from tests.captures.forge import Record
from tests.fuzz import __main__ as fuzz
from tests.fuzz import corpus, farm
from tests.fuzz.corpus import Corpus
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "old-java-0.8.2" / "capture.pcap"


def test_what_shows_nothing_new_is_not_kept(tmp_path: Path) -> None:
    first = Corpus(tmp_path / "corpus")
    assert first.keep(b"one", {"a", "b"})
    assert not first.keep(b"two", {"a"})
    assert not first.keep(bytes(corpus.MOST_BYTES + 1), {"large"})
    assert first.keep(b"three", {"a", "c"})
    again = Corpus(tmp_path / "corpus")
    assert again.known == {"a", "b", "c"}
    assert [path.read_bytes() for path in again.captures()] in ([b"one", b"three"], [b"three", b"one"])
    assert not again.keep(b"four", {"c"})


def test_features_are_free_of_numbers() -> None:
    seen = corpus.features(analyzer.analyze(CAPTURE))
    assert "exchanges.status: answered" in seen
    assert any(feature.startswith("findings.code: ") for feature in seen)
    assert not any(character.isdigit() for feature in seen for character in feature)


@pytest.mark.parametrize("seed", range(50))
def test_a_capture_is_broken_further_in_the_same_way_again(seed: int) -> None:
    data = CAPTURE.read_bytes()[:20_000]
    changed = corpus.broken_further(data, random.Random(seed))
    assert changed == corpus.broken_further(data, random.Random(seed))
    assert changed[:4] == data[:4]
    assert corpus.broken_further(b"no capture at all", random.Random(seed))
    assert corpus.broken_further(b"", random.Random(seed)) == b""


def test_a_failure_is_made_as_small_as_it_goes() -> None:
    """Two packets make it fail, and only together."""
    records = [Record(number, b"packet %03d" % number, 10) for number in range(100)]
    data = forge.pcap(records)
    tries = 0

    def fails(part: bytes) -> bool:
        nonlocal tries
        tries += 1
        return b"packet 017" in part and b"packet 081" in part

    smallest = corpus.minimised(data, fails)
    assert [record[16:] for record in corpus.records_of(smallest) or []] == [b"packet 017", b"packet 081"]
    assert tries < 300
    assert corpus.minimised(data, fails, seconds=0.0) == data
    assert corpus.minimised(b"no capture", lambda _: True) == b"no capture"


def test_each_door_has_its_share_and_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[tuple[str, float]] = []

    def fuzzed(door: str, seed: int, seconds: float, out: str) -> farm.Share:
        shares.append((door, seconds))
        return farm.Share(door, seed, 10, int(door == "show"), "")

    monkeypatch.setattr(farm, "fuzzed", fuzzed)
    done = farm.farm(["captures", "show", "segments"], 7, minutes=3.0, jobs=2, out="out")
    assert sorted(shares) == [("captures", 120.0), ("segments", 120.0), ("show", 120.0)]
    assert sum(share.failed for share in done) == 1
    monkeypatch.setattr("sys.argv", ["farm", "--minutes", "1", "--doors", "show", "--seed", "3"])
    assert farm.main() == 1


def test_a_run_that_ignores_interrupts_ends_by_one_and_says_its_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shells have what they start in the background ignore them; the farm ends a door by one."""

    def interrupted(run: fuzz.Run, start: int, count: int) -> None:
        run.done = 3
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fuzz.Run, "process", interrupted)
    monkeypatch.setattr("sys.argv", ["fuzz", "--forever", "--seed", "5"])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert fuzz.main() == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().out.startswith("interrupted\n3 mutants: 0 failed")


def test_a_worker_that_waits_for_the_processor_is_no_hang() -> None:
    used = fuzz._processor_seconds(os.getpid())
    assert used is not None
    assert used == pytest.approx(time.process_time(), abs=1)
    assert fuzz._processor_seconds(-1) is None
