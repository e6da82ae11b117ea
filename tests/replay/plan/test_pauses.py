"""Long pauses of a capture: found, said before anything is sent, and cut.

Proves: replay/plan/pauses.py, replay/run_plan.py
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from kwire.analyzer.cli import parser
from kwire.analyzer.protocol import api_keys
from kwire.replay.plan import decisions, pauses
from kwire.replay.plan.pauses import Pause, Pauses, ReplayClock
from kwire.replay.plan.schedule import schedule
from kwire.replay.run_plan import pause_warnings
from kwire.replay.send.settings import Settings
from tests.replay.conversation import EVERYTHING, Captured
from tests.reports.test_clock_jumps import jumping

S = 10**9
YEAR = 365 * 86400 * S


def reference(times: list[int]) -> Pause | None:
    """The longest pause, by sorting all times."""
    ordered = sorted(times)
    longest = max(itertools.pairwise(ordered), key=lambda pair: pair[1] - pair[0], default=(0, 0))
    return longest if longest[1] - longest[0] > S else None


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_pause_is_that_of_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order of the times, however they come, and however few pauses are held."""
    monkeypatch.setattr(pauses, "_MOST", 3)
    monkeypatch.setattr(pauses, "_SETTLED", 7)
    rng = random.Random(seed)
    jumps = [rng.choice((0, 0, 5 * S, 3600 * S, 80 * YEAR)) for _ in range(200)]
    times = [rng.randrange(20 * S) + jump + rng.choice((0, 0, jump // 3)) for jump in jumps]
    pauses_seen = Pauses()
    for at in range(0, 200, 10):
        if rng.random() < 0.5:
            pauses_seen.take(np.array(times[at : at + 10], np.int64))
        else:
            for sent_ns in times[at : at + 10]:
                pauses_seen.add(sent_ns)
    assert pauses_seen.longest() == reference(times)


def test_no_request_no_pause() -> None:
    pauses_seen = Pauses()
    pauses_seen.take(np.zeros(0, np.int64))
    assert pauses_seen.longest() is None
    pauses_seen.add(80 * YEAR)
    assert pauses_seen.longest() is None


def test_a_clock_that_jumps_forth_and_back_is_cut_both_ways() -> None:
    clock = ReplayClock(100 * S, 60 * S)
    times = [100, 130, 130 + 80 * 365 * 86400, 131 + 80 * 365 * 86400]
    assert [clock.at_ns(at * S) for at in times] == [0, 30 * S, 90 * S, 91 * S]
    late = clock.at_ns(131 * S)
    assert late < 0, "what comes after its time is due at once"
    as_captured = ReplayClock(100 * S, None)
    assert [as_captured.at_ns(at * S) for at in times] == [(at - 100) * S for at in times]
    assert as_captured.longest == (130 * S, times[2] * S)


def test_steps_are_due_after_cut_pauses() -> None:
    capture = Captured()
    for at in (0.0, 10.0, 10.0 + 80 * 365 * 86400, 11.0 + 80 * 365 * 86400):
        capture.add(at, api_keys.METADATA, 9, {"topics": None}, {"brokers": [], "topics": []})
    options = decisions.PlanOptions(longest_pause_ns=30 * S)
    planned, _ = decisions.make([capture.session()], EVERYTHING, options)
    assert [round(step.at_ns / S) for step in planned.steps] == [0, 10, 40, 41]


def test_pauses_of_more_than_an_hour_are_said() -> None:
    pause = 5 * S, (5 + 7200) * S
    (line,) = pause_warnings(Settings(speed=1.0), pause, 0)
    assert line.startswith("the capture pauses for 2 hours after 1970-01-01T00:00:05.000000Z, and so will the replay:")
    assert pause_warnings(Settings(speed=1.9), pause, 0)
    for settings in (
        Settings(speed=2.0),  # of an hour
        Settings(speed=None),
        Settings(speed=1.0, schedule=schedule("0s:1,10s:max")),
    ):
        assert not pause_warnings(settings, pause, 0)
    assert not pause_warnings(Settings(speed=1.0), None, 0)


@pytest.mark.parametrize("windows", ["--in-windows", "--no-in-windows"])
@pytest.mark.parametrize(("option", "is_said"), [((), True), (("--longest-pause", "5m"), False)])
def test_the_command_says_it_before_anything_is_sent(
    windows: str, option: tuple[str, ...], is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = jumping(tmp_path / "jumping.pcap", "old-java-0.8.2", is_back=False)
    command = ["replay", str(capture), "--dry-run", "--assume", "2.8", "--json", windows, *option]
    assert parser.main(command) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [warning.startswith("the capture pauses for 29,200 days after 2000-01-01T") for warning in warnings] == (
        [True] if is_said else []
    )
