"""Speeds that change over the capture.

Proves: replay/plan/schedule.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.replay.outcome import Counts
from kwire.replay.pace import pace
from kwire.replay.plan.schedule import schedule
from tests.replay.conversation import Captured, Target, replayed
from tests.replay.test_pace import plan

S = 10**9


def test_what_is_due_when() -> None:
    parsed = schedule("0s:1,60s:5,2m:0.5")
    assert [parsed.due(at * S) for at in (0, 30, 60, 65, 120, 121)] == [0, 30, 60, 61, 72, 74]
    assert [parsed.speed(at * S) for at in (0, 59, 60, 500)] == [1, 1, 5, 0.5]
    assert parsed.wanted(121 * S) == 74


def test_full_speed_comes_last_and_all_of_it_is_due_at_once() -> None:
    parsed = schedule("0s:2,60s:max")
    assert [parsed.due(at * S) for at in (59, 60, 61, 900)] == [29.5, 30, 30, 30]
    assert (parsed.speed(0), parsed.speed(60 * S)) == (2, None)
    assert parsed.wanted(100 * S) == 70


@pytest.mark.parametrize(
    "text", ["", "1,2", "5s:1", "0s:1,0s:2", "0s:1,9s:2,5s:3", "0s:max,9s:1", "0s:0", "0s:-1", "0s:x", "2026-01-01:1"]
)
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        schedule(text)


def test_a_run_keeps_it() -> None:
    capture = Captured()
    answer = {"brokers": [{"nodeId": 1, "host": "target", "port": 9092}], "clusterId": "c", "topics": []}
    for number in range(6):
        capture.add(number * 1.0, api_keys.METADATA, 9, {"topics": None}, answer)
    target = Target().on(api_keys.METADATA, answer)
    replayed([capture], target, speed=1.0, schedule=schedule("0s:1,2s:4,4s:max"))
    moments = [request.at for request in target.requests(api_keys.METADATA)]
    assert [round(moment - moments[0], 2) for moment in moments] == [0.0, 1.0, 2.0, 2.25, 2.5, 2.5]


def test_its_pace_is_told_by_it() -> None:
    parsed = pace(Counts(), plan(100.0), 1.0, 300.0, schedule=schedule("0s:1,50s:5"))
    assert parsed.wanted == 60
    expected = "slower than at --speed 0s:1,50s:5: took 300.0 s in place of 60.0 s, 20 % of that rate"
    assert parsed.text().startswith(expected)
    at_full = pace(Counts(queues_us=[10**8] * 100), plan(100.0), 1.0, 60.0, schedule=schedule("0s:1,50s:max"))
    assert not at_full.slower
