"""A plan made window by window, after a survey, is the plan made at once.

Proves: replay/plan/first_pass.py, replay/plan/decisions.py, replay/plan/order.py
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys
from kwire.replay import inputs
from kwire.replay.plan import decisions
from kwire.replay.plan.decisions import Planner, PlanOptions
from kwire.replay.plan.first_pass import FirstPass
from kwire.replay.plan.sessions import Decoded, Session
from kwire.replay.plan.steps import Plan, Skip, Step
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import EVERYTHING, Captured
from tests.shared import capture_files, sample_folders, shared_folders

CAPTURES = {folder.name: folder for folder in (*shared_folders(), *sample_folders())}
SHUT = "tls13-aiokafka-4.3"  # needs keys to be read
WINDOW = 37
HORIZON = 64


def in_time(sessions: Sequence[Session]) -> Iterator[tuple[int, Decoded]]:
    every = sorted(
        (request.sent_ns, index, place)
        for index, each in enumerate(sessions)
        for place, request in enumerate(each.requests)
    )
    for _, index, place in every:
        request = sessions[index].requests[place]
        yield index, Decoded(request, decisions.fast_path(request))


def in_windows(sessions: Sequence[Session], horizon: int | None) -> tuple[list[Step], list[Skip]]:
    survey = FirstPass()
    for index, message in in_time(sessions):
        survey.take(index, message)
    cluster = survey.finish(lambda: (message for _, message in in_time(sessions)), {})
    planner = Planner(cluster, EVERYTHING, PlanOptions(), survey.start_ns or 0, survey.ends, horizon=horizon)
    steps: list[Step] = []
    skips: list[Skip] = []
    waiting = list(in_time(sessions))
    while waiting:
        window, waiting = waiting[:WINDOW], waiting[WINDOW:]
        planned, skipped = planner.take(window)
        steps += planned
        skips += skipped
    return steps, skips


@functools.cache
def captured(folder: Path) -> tuple[list[Session], Plan]:
    files = [str(path) for path in capture_files(folder)]
    sessions = inputs.read(files, how=ReadOptions(rotated=len(files) > 1))
    return sessions, decisions.make(sessions, EVERYTHING, PlanOptions())[0]


def step_fields(step: Step, *without: str) -> dict[str, Any]:
    fields = (
        "number",
        "session",
        "request",
        "at_ns",
        "version",
        "route",
        "waits",
        "after",
        "rules",
        "changed",
        "group",
        "expects",
        "fast_path",
    )
    return {name: getattr(step, name) for name in fields if name not in without}


@pytest.mark.parametrize("name", sorted(CAPTURES.keys() - {SHUT}))
def test_windows_make_the_same_plan_step_for_step(name: str) -> None:
    sessions, whole = captured(CAPTURES[name])

    steps, skips = in_windows(sessions, None)

    assert [step_fields(step) for step in steps] == [step_fields(step) for step in whole.steps]
    orphans = sum(len(session.orphans) for session in sessions)
    assert skips == list(whole.skips[orphans:])


@pytest.mark.parametrize("name", sorted(CAPTURES.keys() - {SHUT}))
def test_what_lies_behind_the_horizon_is_not_waited_for_and_nothing_else_changes(name: str) -> None:
    sessions, whole = captured(CAPTURES[name])

    steps, _ = in_windows(sessions, HORIZON)

    for step, same in zip(steps, whole.steps, strict=True):
        floor = step.number - HORIZON
        assert step_fields(step, "waits", "after") == step_fields(same, "waits", "after")
        late = {other for other in step.waits if other not in same.waits}
        # Whoever was to be waited for once, long ago, may be named again by somebody who is not that far back.
        assert all(other >= floor for other in (*step.waits, *step.after))
        assert {other for other in same.waits if other >= floor} <= set(step.waits)
        assert not late


def test_the_order_of_a_long_capture_keeps_as_much_as_of_a_short_one() -> None:
    def entries(requests: int) -> int:
        session = Captured()
        other = Captured("10.0.0.2:5000-10.0.0.9:9092#1")
        for number in range(requests):
            for index, each in enumerate((session, other)):
                body = produced(batch(producer=(1 + index, 0), sequence=number * 3), acks=1)
                offset = (number * 2 + index) * 3
                each.add(number / 100 + index / 1000, api_keys.PRODUCE, 7, body, produced_answer(offset))
        sessions = [session.session(), other.session()]
        planner = Planner(
            decisions.make(sessions, EVERYTHING, PlanOptions())[1], EVERYTHING, PlanOptions(), 0, horizon=HORIZON
        )
        planner.take(in_time(sessions))
        order = planner._order
        return sum(len(written.bases) for written in order.produced.values()) + sum(map(len, order.awaited.values()))

    assert entries(2000) <= entries(200) + HORIZON
