"""A run whose steps are planned while others are sent.

Proves: replay/send/engine.py, replay/send/timetable.py, replay/send/dependencies.py, replay/send/keep_alive.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kwire.analyzer.dataset.dataset import Writer
from kwire.analyzer.protocol import api_keys
from kwire.replay.plan.steps import Plan
from kwire.replay.run_writer import Recorder
from kwire.replay.send.engine import Engine
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import Captured, Target, replayed

COUNT = 40


def sessions() -> list[Captured]:
    captures = []
    for number in range(3):
        capture = Captured(f"10.0.0.{number + 1}:5000-10.0.0.9:9092#1")
        for at in range(COUNT):
            body = produced(batch(), acks=1)
            capture.add(at / 10 + number / 100, api_keys.PRODUCE, 7, body, produced_answer(at * 9), took=0.03)
        captures.append(capture)
    return captures


def target() -> Target:
    return Target().on(api_keys.PRODUCE, *[produced_answer(offset * 3) for offset in range(3 * COUNT)])


async def in_tens(engine: Engine, planned: Plan) -> None:
    """Ten steps at a time; each session is over with its last one."""
    engine.begin_now()
    for at in range(0, len(planned.steps), 10):
        while not engine.has_room():
            await asyncio.sleep(0.01)
        window = planned.steps[at : at + 10]
        engine.add(window)
        for step in window:
            if step.number == planned.sessions[step.session][-1]:
                engine.over(step.session)


@pytest.mark.parametrize("speed", [1.0, None])
def test_steps_that_come_in_parts_are_sent_as_all_at_once(speed: float | None) -> None:
    whole = replayed(sessions(), target(), topics={"orders": 1}, speed=speed)
    parts = replayed(
        sessions(), target(), topics={"orders": 1}, speed=speed, feeding=in_tens, ahead_requests=15, ahead=1
    )

    assert [outcome.verdict for outcome in parts.outcomes] == ["answered"] * 3 * COUNT
    assert sorted(outcome.step or 0 for outcome in parts.outcomes) == sorted(
        outcome.step or 0 for outcome in whole.outcomes
    )
    assert parts.seconds == pytest.approx(whole.seconds, abs=0.1)
    times = [
        {outcome.step: (outcome.scheduled_ns or 0) - parts.engine.timetable.epoch_ns for outcome in run.outcomes}
        for run in (parts,)
    ]
    assert times[0] == {
        outcome.step: (outcome.scheduled_ns or 0) - whole.engine.timetable.epoch_ns for outcome in whole.outcomes
    }


def test_a_plan_is_never_further_ahead_than_there_is_room_and_forgets_what_is_done() -> None:
    most = 0

    async def watched(engine: Engine, planned: Plan) -> None:
        nonlocal most
        engine.begin_now()
        for step in planned.steps:
            while not engine.has_room():
                await asyncio.sleep(0.001)
            engine.add([step])
            most = max(most, len(engine._undone))
        while engine._undone:
            await asyncio.sleep(0.01)
        for index in range(3):
            engine.over(index)
        await asyncio.sleep(1)
        assert not engine.states  # their connections are closed

    run = replayed(sessions(), target(), topics={"orders": 1}, feeding=watched, ahead_requests=7)

    assert most == 7
    assert len(run.outcomes) == 3 * COUNT


def test_a_request_that_was_planned_too_late_is_the_replayers_own_lag(tmp_path: Path) -> None:
    async def slow(engine: Engine, planned: Plan) -> None:
        engine.begin_now()
        engine.add(planned.steps[:60])
        await asyncio.sleep(3.0)
        engine.add(planned.steps[60:])

    run = replayed(sessions(), target(), topics={"orders": 1}, speed=1.0, feeding=slow)
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        for outcome in run.outcomes:
            recorder.add(outcome)
        recorder.settle()

    assert max(recorder.counts.lags_us) == pytest.approx(1_000_000, rel=0.05)
    assert max(recorder.counts.queues_us) < 300_000


def test_bytes_that_wait_to_be_recorded_take_room_of_what_is_planned() -> None:
    async def full(engine: Engine, planned: Plan) -> None:
        assert engine.has_room(engine.settings.ahead_bytes - 1)
        assert not engine.has_room(engine.settings.ahead_bytes)
        engine.add(planned.steps[:60])
        assert not engine.has_room(engine.settings.ahead_bytes - 1)
        engine.add(planned.steps[60:])

    assert len(replayed(sessions(), target(), topics={"orders": 1}, feeding=full).outcomes) == 3 * COUNT


def test_nothing_more_is_sent_while_who_records_is_behind_and_that_is_the_replayers_own_lag(tmp_path: Path) -> None:
    async def behind(engine: Engine, planned: Plan) -> None:
        engine.begin_now()
        engine.add(planned.steps)
        await asyncio.sleep(0.105)
        engine.hold_back()
        await asyncio.sleep(0.1)
        sent = engine.waiting.sent_count()
        await asyncio.sleep(0.9)
        assert engine.waiting.sent_count() == sent < 3 * COUNT
        engine.go_on()

    run = replayed(sessions(), target(), topics={"orders": 1}, speed=1.0, feeding=behind)
    with Writer(tmp_path / "run") as writer:
        recorder = Recorder(writer)
        for outcome in run.outcomes:
            recorder.add(outcome)
        recorder.settle()

    assert recorder.counts.verdicts == {"answered": 3 * COUNT}
    assert run.engine.notes["recording_behind"] == 3
    assert max(recorder.counts.lags_us) == pytest.approx(900_000, rel=0.1)
    assert max(recorder.counts.queues_us) < 100_000


def test_each_connection_has_its_part_of_what_all_may_have_unsent() -> None:
    parts = []

    async def meeting(engine: Engine, planned: Plan) -> None:
        parts.append(engine.most_unsent)
        for index in range(3, 300):
            engine.meet(index, ("10.0.0.9", 9092), None)
        parts.append(engine.most_unsent)
        engine.add(planned.steps)

    replayed(sessions(), target(), topics={"orders": 1}, feeding=meeting)
    assert parts == [4 << 20, (256 << 20) // 300]


def test_what_fails_while_planning_ends_the_run() -> None:
    async def broken(engine: Engine, planned: Plan) -> None:
        engine.add(planned.steps[:5])
        raise OSError("the capture is gone")

    with pytest.raises(OSError, match="the capture is gone"):
        replayed(sessions(), target(), topics={"orders": 1}, feeding=broken)
