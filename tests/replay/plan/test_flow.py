"""A capture that is gone through twice, in windows, gives the plan of the capture that is read at once.

Proves: replay/plan/windows.py, replay/plan/first_pass.py, replay/plan/sessions.py, analyzer/analysis/traffic_summary.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.api import ChooseExchanges
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.replay import inputs
from kwire.replay.plan import decisions, renaming, sessions, windows
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.decisions import Planner, PlanOptions
from kwire.replay.plan.record_times import Times
from kwire.replay.plan.renaming import Renaming
from kwire.replay.plan.sessions import CapturedExchange
from kwire.replay.plan.steps import Skip, Step
from kwire.replay.plan.windows import TwoPassReader
from tests.replay.conversation import EVERYTHING
from tests.replay.plan.test_windows import CAPTURES, SHUT, step_fields
from tests.shared import SAMPLES, capture_files


def flowing(folder: Path, window_bytes: int | None = None, **options: Any) -> TwoPassReader:
    files = [str(path) for path in capture_files(folder)]
    how = ReadOptions(rotated=len(files) > 1, window_bytes=window_bytes)

    def glanced(look: ChooseExchanges) -> Iterator[CapturedExchange]:
        return sessions.read_exchanges(files, how=how, look=look)

    reader = TwoPassReader(lambda: sessions.read_exchanges(files, how=how), **({"by_columns": glanced} | options))
    reader.read_first_pass()
    return reader


def aged(through: TwoPassReader) -> dict[str, Times]:
    return {topic: times for topic, times in through.first.times.items() if times.bytes}


def planned(through: TwoPassReader) -> tuple[list[Step], list[Skip]]:
    cluster = through.first.finish(through.again, {})
    planner = Planner(cluster, EVERYTHING, PlanOptions(), through.first.start_ns or 0, through.first.ends)
    steps: list[Step] = []
    skips: list[Skip] = []
    for window in through.windows():
        some, others = planner.take(window.requests)
        steps += some
        skips += [Skip(row, "no_request") for row in window.orphans] + others
    return steps, skips


@pytest.mark.parametrize("name", sorted(CAPTURES.keys() - {SHUT}))
def test_a_capture_in_windows_is_planned_as_one_that_is_read_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 50)
    through = flowing(CAPTURES[name])
    files = [str(path) for path in capture_files(CAPTURES[name])]
    whole = inputs.read(files, how=ReadOptions(rotated=len(files) > 1))
    plan, cluster = decisions.make(whole, EVERYTHING, PlanOptions())

    steps, skips = planned(through)

    assert [step_fields(step) for step in steps] == [step_fields(step) for step in plan.steps]
    assert sorted(map(repr, skips)) == sorted(map(repr, plan.skips))
    alike = ("connection", "broker", "user")
    assert [[getattr(session, what) for what in alike] for session in through.sessions] == [
        [getattr(session, what) for what in alike] for session in whole
    ]
    named = through.first.topics(frozenset(), cluster)
    assert plan.topics <= named
    assert through.first.requests == sum(len(session.requests) for session in whole)


@pytest.mark.parametrize("name", sorted(CAPTURES.keys() - {SHUT}))
def test_a_survey_of_columns_finds_what_one_of_bodies_does(name: str) -> None:
    # So that requests and answers are often in different windows.
    small = max(30_000, sum(path.stat().st_size for path in capture_files(CAPTURES[name])) // 50)
    quick = flowing(CAPTURES[name], window_bytes=small)
    slow = flowing(CAPTURES[name], by_columns=None)

    assert [(reader.connection, reader.broker, reader.user) for reader in quick.sessions] == [
        (reader.connection, reader.broker, reader.user) for reader in slow.sessions
    ]
    for what in ("start_ns", "ends", "requests", "named", "subscribed"):
        assert getattr(quick.first, what) == getattr(slow.first, what), what
    assert aged(quick) == aged(slow)
    clusters = [reader.first.finish(reader.again, {}) for reader in (quick, slow)]
    for part in dataclasses.fields(Cluster):
        actual, expected = (getattr(cluster, part.name) for cluster in clusters)
        assert actual == expected, part.name


def test_sessions_are_met_before_their_first_request_and_over_with_their_last() -> None:
    through = flowing(SAMPLES / "codecs-franzgo-4.3")
    met: set[int] = set()
    over: set[int] = set()
    for window in through.windows():
        met.update(window.met)
        assert {number for number, _ in window.requests} <= met - over
        over.update(window.over)
    assert met == over
    assert met == {number for number, _ in enumerate(through.sessions)}


def test_groups_and_clients_are_renamed_on_the_way() -> None:
    names = Renaming(prefix="copy.")
    folder = SAMPLES / "group-kip848-librdkafka-4.3"
    whole = renaming.renamed(inputs.read(str(capture_files(folder)[0])), names)
    steps, _ = planned(flowing(folder, names=names))

    assert [step_fields(step) for step in steps] == [
        step_fields(step) for step in decisions.make(whole, EVERYTHING, PlanOptions())[0].steps
    ]
    assert any(step.group is not None and step.group.startswith("copy.") for step in steps)


def test_what_is_held_back_is_bounded_and_what_comes_too_late_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "HELD", 3)
    through = flowing(SAMPLES / "codecs-franzgo-4.3")
    every = list(through.exchanges())
    last = every.pop()
    every.insert(0, last)  # the one that was sent last is told first, and one long ago last

    def shuffled() -> Iterator[CapturedExchange]:
        yield from every[1:]
        yield every[0]

    through.exchanges = shuffled
    given = [message.request.exchange for window in through.windows() for _, message in window.requests]
    assert len(given) == through.first.requests
