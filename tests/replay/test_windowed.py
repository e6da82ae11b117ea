"""A capture sent in windows comes to what it comes to at once.

Proves: replay/windowed.py, replay/source.py, replay/inputs.py, replay/request.py
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.dataset import dataset
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys
from kwire.replay import inputs, run, windowed
from kwire.replay.live_traffic import LiveSource
from kwire.replay.options import Options
from kwire.replay.outcome import Durations, Outcome, quantiles
from kwire.replay.plan import windows
from kwire.replay.plan.sessions import CapturedExchange
from kwire.replay.plan.windows import TwoPassReader
from kwire.replay.remap.offsets import OffsetMap
from kwire.replay.request import ReplayRequest, resolve
from kwire.replay.run_writer import Recorder
from kwire.replay.send import link
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource, TwoPassSource
from tests.bench.replay import VERSION
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import Captured
from tests.replay.test_commands import CAPTURE, kwire, refused, sinking
from tests.shared import SAMPLES

ANOTHER = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
COUNT = 300


def produced_by(clients: int) -> list[Captured]:
    captures = []
    for number in range(clients):
        capture = Captured(f"10.0.0.{number + 1}:5000-10.0.0.9:9092#1")
        for at in range(COUNT):
            capture.add(at / 1000 + number / 1e5, api_keys.PRODUCE, VERSION, produced(batch()), produced_answer(at * 3))
        captures.append(capture)
    return captures


def telling(captured: list[Captured]) -> Callable[[], Iterator[CapturedExchange]]:
    every = sorted((request for each in captured for request in each.requests), key=lambda request: request.sent_ns)

    def exchanges() -> Iterator[CapturedExchange]:
        for request in every:
            row = {**request.row, "broker_ip": "10.0.0.9", "broker_port": 9092}
            row["response_end"] = row["request_time"]
            yield CapturedExchange(row, request.data, request.answer, None)

    return exchanges


def rows(out: Path, table: str, *columns: str) -> list[Any]:
    stored = getattr(dataset.open_dataset(out), table).to_table().to_pylist()
    return sorted(tuple(str(row[name]) for name in columns) for row in stored)


def options(port: int, **others: Any) -> Options:
    return Options(
        "127.0.0.1", port, settings=Settings(speed=None), yes=True, missing_topics_ok=True, audit=False, **others
    )


def test_a_flow_and_sessions_come_to_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW", 20)
    captured = produced_by(3)
    through = TwoPassReader(telling(captured))
    through.read_first_pass()
    with sinking() as port:
        small = dataclasses.replace(options(port), settings=Settings(speed=None, ahead_requests=50))
        asyncio.run(run.replay(TwoPassSource(through), small, link.tcp(), tmp_path / "flow", []))
        sessions = [largest_outcome.session() for largest_outcome in captured]
        asyncio.run(run.replay(MemorySource(sessions), options(port), link.tcp(), tmp_path / "whole", []))

    columns = ("connection", "exchange", "step", "action", "verdict", "rule")
    assert rows(tmp_path / "flow", "outcomes", *columns) == rows(tmp_path / "whole", "outcomes", *columns)
    assert len(rows(tmp_path / "flow", "outcomes", *columns)) == 3 * COUNT
    keys = ("capture", "connection", "exchange", "reply", "direction")
    assert rows(tmp_path / "flow", "messages", *keys) == rows(tmp_path / "whole", "messages", *keys)


def test_a_live_run_names_its_capture_and_tells_what_it_learned(tmp_path: Path) -> None:
    live = LiveSource(telling(produced_by(2)))
    assert live.begin()
    with sinking() as port:
        asyncio.run(run.replay(live, options(port), link.tcp(), tmp_path / "live", []))
        through = TwoPassReader(telling(produced_by(2)))
        through.read_first_pass()
        asyncio.run(run.replay(TwoPassSource(through), options(port), link.tcp(), tmp_path / "flow", []))
    for out in (tmp_path / "live", tmp_path / "flow"):
        assert dataset.open_dataset(out).manifest["captures"] == [{"name": "shop.pcap", "files": []}]
        kinds = rows(out, "remaps", "capture", "kind")
        assert ("shop.pcap", "offset") in kinds
        assert {capture for capture, _ in kinds} == {"shop.pcap"}


def test_a_run_that_ends_early_has_a_row_for_what_was_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW", 20)
    through = TwoPassReader(telling(produced_by(2)))
    through.read_first_pass()

    async def interrupted(port: int, out: Path, notes: list[str]) -> run.Result:
        slow = dataclasses.replace(options(port), settings=Settings(speed=0.01, ahead=0.1))
        sending = asyncio.create_task(run.replay(TwoPassSource(through), slow, link.tcp(), out, notes))
        await asyncio.sleep(1.0)
        sending.cancel()
        return await sending

    with sinking() as port:
        result = asyncio.run(interrupted(port, tmp_path / "run", []))
        assert result.interrupted
        assert result.counts.total == 2 * COUNT
        assert result.counts.actions["not_sent"] > COUNT

        monkeypatch.setattr(windowed, "READ_ON", 0.0)
        notes: list[str] = []
        result = asyncio.run(interrupted(port, tmp_path / "less", notes))
    left = 2 * COUNT - len(rows(tmp_path / "less", "outcomes", "verdict"))
    assert (result.counts.total, 0 < left < 2 * COUNT) == (2 * COUNT, True)
    assert f"{left:,} captured requests were not read any more, and have no row" in notes


def test_a_run_that_ends_while_it_plans_has_a_row_for_what_it_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 20)
    through = TwoPassReader(telling(produced_by(2)))
    through.read_first_pass()
    planned = threading.Event()
    original = windowed.WindowFeed._next

    def slow(self: windowed.WindowFeed) -> Any:
        planned_window = original(self)
        planned.set()
        time.sleep(0.2)  # it is cancelled meanwhile
        return planned_window

    monkeypatch.setattr(windowed.WindowFeed, "_next", slow)

    async def interrupted(port: int) -> run.Result:
        sending = asyncio.create_task(
            run.replay(TwoPassSource(through), options(port), link.tcp(), tmp_path / "run", [])
        )
        while not planned.is_set():
            await asyncio.sleep(0.01)
        monkeypatch.setattr(windowed.WindowFeed, "_next", original)
        sending.cancel()
        return await sending

    with sinking() as port:
        result = asyncio.run(interrupted(port))
    assert result.interrupted
    assert result.counts.total == 2 * COUNT


@pytest.mark.parametrize("ahead", [50, 20_000], ids=["while_it_plans", "when_all_is_planned"])
def test_what_has_no_row_yet_is_bounded_however_slowly_rows_are_made(
    ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 20)
    monkeypatch.setattr(windowed, "UNRECORDED", 3_000)
    monkeypatch.setattr(windowed, "_RECORDED_BYTES", 500)
    largest = largest_outcome = 0
    take, row = windowed.WindowFeed.record, Recorder.add

    def record(self: windowed.WindowFeed, outcome: Outcome) -> None:
        nonlocal largest, largest_outcome
        take(self, outcome)
        largest = max(largest, self._unrecorded)
        largest_outcome = max(largest_outcome, windowed._size(outcome))

    def slow(self: Recorder, outcome: Outcome) -> None:
        time.sleep(0.001)
        row(self, outcome)

    monkeypatch.setattr(windowed.WindowFeed, "record", record)
    monkeypatch.setattr(Recorder, "add", slow)
    through = TwoPassReader(telling(produced_by(3)))
    through.read_first_pass()
    with sinking() as port:
        how = dataclasses.replace(options(port), settings=Settings(speed=None, ahead_requests=ahead))
        result = asyncio.run(run.replay(TwoPassSource(through), how, link.tcp(), tmp_path / "run", []))
    assert result.counts.verdicts == {"answered": 3 * COUNT}
    # Each session has one on its way, and one that had only that to wait for.
    assert 3_000 < largest <= 3_000 + 3 * 2 * largest_outcome
    assert result.engine_notes["recording_behind"] > 3


def test_the_command_sends_a_capture_in_windows(tmp_path: Path) -> None:
    with sinking() as port:
        where = ("--to", f"127.0.0.1:{port}", "--speed", "max", "--yes", "--missing-topics-ok", "--no-audit")
        once = kwire("replay", CAPTURE, *where, "-o", tmp_path / "whole")
        flown = kwire("replay", CAPTURE, *where, "-o", tmp_path / "flow", "--in-windows")
    assert flown.returncode == once.returncode, flown.stderr
    columns = ("connection", "exchange", "step", "action", "verdict", "rule")
    assert rows(tmp_path / "flow", "outcomes", *columns) == rows(tmp_path / "whole", "outcomes", *columns)


def test_a_dry_run_in_windows_says_what_one_of_the_whole_does() -> None:
    command = ("replay", CAPTURE, "--dry-run", "--assume", "3.9", "--json")
    whole, flown = (json.loads(kwire(*command, *how).stdout) for how in ((), ("--in-windows",)))
    assert flown == whole
    assert sum(row["sent"] + row["converted"] for row in flown["apis"]) > 40
    with sinking() as port:
        there = ("replay", CAPTURE, "--dry-run", "--to", f"127.0.0.1:{port}")
        once, again = kwire(*there), kwire(*there, "--in-windows")
    assert (once.returncode, once.stdout, once.stderr) == (again.returncode, again.stdout, again.stderr)


@pytest.mark.parametrize(
    "other",
    [("--workers", "2"), ("--times", "2"), ("--loop",), ("--rate", "5"), ("--clients", "true"), ("--from", "1s")],
)
def test_what_needs_the_whole_capture_does_not_go_with_it(other: tuple[str, ...], tmp_path: Path) -> None:
    line = refused(kwire("replay", CAPTURE, "--to", "h:1", "-o", tmp_path / "run", "--in-windows", *other))
    assert line == f"kwire: --in-windows does not go with {other[0]}"


def test_only_one_capture_point_can_be_gone_through_twice() -> None:
    with pytest.raises(Exception, match="one capture point"):
        inputs.open_source([CAPTURE, CAPTURE], options(1, in_windows=True), how=ReadOptions(), notes=[])
    with pytest.raises(Exception, match="one capture point"):
        inputs.open_source("-", options(1, in_windows=True), how=ReadOptions(), notes=[])


def test_a_large_capture_goes_in_windows_unless_something_needs_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(captures: Any, **request_options: Any) -> Any:
        return inputs.open_source(
            captures, resolve("h", 1, ReplayRequest(**request_options)), how=ReadOptions(), notes=[]
        )

    assert isinstance(given(CAPTURE), MemorySource)
    monkeypatch.setattr(inputs, "LARGE", Path(CAPTURE).stat().st_size)
    assert isinstance(given(CAPTURE), TwoPassSource)
    for whole in ({"in_windows": False}, {"times": 2}, {"rate": 5.0}, {"since": "0s"}, {"seed_fetched": True}):
        assert isinstance(given(CAPTURE, **whole), MemorySource), whole
    assert isinstance(given([CAPTURE, ANOTHER]), MemorySource)
    for hurried in ({"speed": None}, {"speed": 50_000}, {"speed": "0s:1,1s:max"}):
        assert isinstance(given(CAPTURE, **hurried), MemorySource), hurried
        assert isinstance(given(CAPTURE, in_windows=True, **hurried), TwoPassSource), hurried
    monkeypatch.setattr(inputs, "HELD", 10)
    assert isinstance(given(CAPTURE, speed=None), TwoPassSource)
    monkeypatch.setattr(inputs, "LARGE", Path(CAPTURE).stat().st_size + 1)
    assert isinstance(given(CAPTURE), MemorySource)


def test_a_large_dataset_goes_in_windows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, captures in {"one": [CAPTURE], "two": [CAPTURE, ANOTHER]}.items():
        copies = [shutil.copy(capture, tmp_path / f"{name}-{at}.pcap") for at, capture in enumerate(captures)]
        analyzer.analyze(copies, out=tmp_path / name, keep_bytes=True)

    def given(name: str, **how: Any) -> Any:
        return inputs.open_source(tmp_path / name, options(1), how=ReadOptions(), notes=[], **how)

    assert isinstance(given("one"), MemorySource)
    monkeypatch.setattr(inputs, "LARGE", 1)
    monkeypatch.setattr(inputs, "HELD", 0)
    assert isinstance(given("one"), TwoPassSource)
    assert isinstance(given("two"), MemorySource)
    assert isinstance(given("one", filter="api == Fetch"), MemorySource)
    with sinking() as port:
        asyncio.run(run.replay(given("one"), options(port), link.tcp(), tmp_path / "flow", []))
        whole = inputs.open_source(CAPTURE, options(port, in_windows=False), how=ReadOptions(), notes=[])
        asyncio.run(run.replay(whole, options(port), link.tcp(), tmp_path / "whole", []))
    columns = ("connection", "exchange", "step", "action", "verdict", "rule")
    assert rows(tmp_path / "flow", "outcomes", *columns) == rows(tmp_path / "whole", "outcomes", *columns)


def test_many_durations_are_right_to_a_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [number * 7 % 100_003 for number in range(3_000)]
    few = Durations(values)
    assert quantiles(few) == quantiles(values)
    assert (len(few), list(few)) == (len(values), sorted(values))
    monkeypatch.setattr(Durations, "DISTINCT", 100)
    many = Durations()
    for value in values:
        many.append(value)
    many += few
    for name, value in quantiles(values + values).items():
        assert quantiles(many)[name] == pytest.approx(value, rel=0.01)
    assert len(many._often) < 2_000


def test_batches_that_follow_each_other_on_both_sides_are_kept_as_one() -> None:
    apart, joined = OffsetMap(), OffsetMap(joined=True)
    for each in (apart, joined):
        for base, there, count in ((0, 100, 3), (3, 103, 3), (6, 106, 1), (7, 200, 5), (12, 205, 1), (20, 213, 1)):
            each.learn(base, there, count)
    assert joined.produced == [(0, 100, 7), (7, 200, 6), (20, 213, 1)]
    assert [joined.replayed(at) for at in range(25)] == [apart.replayed(at) for at in range(25)]
    assert [joined.start(at) for at in range(25)] == [apart.start(at) for at in range(25)]
