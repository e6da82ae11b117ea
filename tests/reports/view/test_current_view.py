"""First rows while a capture is being analysed, or a large dataset's columns are made; then all rows.

Proves: reports/view/current_view, growing, opening
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.dataset import locks
from kwire.analyzer.options.questions import ViewOptions
from kwire.captures.errors import KwireError
from kwire.reports.view import columns, open_view
from kwire.reports.view.answers import DataView
from kwire.reports.view.current_view import CurrentView
from kwire.reports.view.open_view import _CaptureSource, _DatasetSource
from kwire.reports.view.partial_view import PartialViews, ViewClosedError
from tests.reports.view.conftest import TXN, Asking
from tests.shared import ROOT


def options_of(**options: Any) -> ViewOptions:
    return ViewOptions(
        **{
            "sources": [],
            "cache": False,
            **options,
        }
    )


class Slow:
    """Make an analysis that pauses after the first exchanges until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Exception | None = None) -> None:
        self.go_on = threading.Event()
        real = _CaptureSource.analyse

        def analyse(
            self_: _CaptureSource, progress: Any = None, seen: Callable[[str, Any], None] | None = None
        ) -> None:
            def slowly(name: str, table: Any) -> None:
                assert seen is not None
                seen(name, table)
                if name == "exchanges" and len(table) and not self.go_on.is_set():
                    assert self.go_on.wait(60)
                    if fails is not None:
                        raise fails

            real(self_, progress, slowly)

        monkeypatch.setattr(_CaptureSource, "analyse", analyse)


def test_first_rows_are_there_before_the_rest_and_all_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(TXN)], options_of(), stack)
        stack.callback(slow.go_on.set)
        first = Asking(current.first_view())
        assert not current.done
        assert first("info")["growing"] is True
        begins = first("info")["first_time"]
        assert first("findings")["findings"] == []
        keys = first("rows", count=1000)["keys"]
        assert keys
        answer = first("message", key=keys[0])  # its bytes are in the capture, whatever is analysed of it
        assert answer["bytes"]
        assert current.progress()["size"] == TXN.stat().st_size
        slow.go_on.set()
        current.settled()
        assert Asking(current.first_view())("info")["first_time"] == begins  # else all times would become others
    assert current.failure is None
    assert current.round > 1
    assert current.progress()["exchanges"] == 188 >= len(keys)


def waited(monkeypatch: pytest.MonkeyPatch, current: CurrentView) -> None:
    """Count the times that the view waited for another one's analysis."""
    given_up, times = time.monotonic() + 60, 0

    def met(seconds: float) -> None:
        nonlocal times
        times += 1
        threading.Event().wait(0.01)

    monkeypatch.setattr(open_view, "time", SimpleNamespace(sleep=met))
    while times < 3:
        assert time.monotonic() < given_up, current.failure
        threading.Event().wait(0.01)


def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ViewOptions, Path]:
    """Get options of a view with a cache, and the path of TXN's dataset in it."""
    monkeypatch.setattr("kwire.reports.view.open_view.cache_root", lambda: tmp_path / "cache")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = options_of(cache=True)
    with contextlib.ExitStack() as stack:
        return options, open_view._capture_source([str(TXN)], options, stack).dataset_path


@pytest.mark.parametrize("done", [False, True])
def test_a_capture_that_another_view_is_analysing_is_there_when_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """It used to end with a hint at an option that the command lacks. `done`: the other analysis succeeds."""
    options, dataset_path = kept_in(tmp_path, monkeypatch)
    writing = locks.WriteLock(dataset_path)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(TXN)], options, stack)
        waited(monkeypatch, current)
        if done:
            analyzer.analyze(TXN, tmp_path / "made")
            (tmp_path / "made").rename(dataset_path)
        else:
            writing.release()
        assert current.first_view().tables.columns.n == 188
        current.settled()
        assert current.failure is None
    writing.release()


def test_who_waits_for_another_views_analysis_may_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, dataset_path = kept_in(tmp_path, monkeypatch)
    writing = locks.WriteLock(dataset_path)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(TXN)], options, stack)
        waited(monkeypatch, current)
    assert not dataset_path.exists()
    writing.release()
    assert not dataset_path.exists()  # nobody waits for the turn any more


def test_what_a_large_capture_begins_with_is_there_before_it_is_analysed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_view, "SMALL_BYTES", 0)
    go_on, real = threading.Event(), _CaptureSource.analyse

    def later(self_: _CaptureSource, *how: Any) -> None:
        assert go_on.wait(60)
        real(self_, *how)

    monkeypatch.setattr(_CaptureSource, "analyse", later)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(TXN)], options_of(), stack)
        stack.callback(go_on.set)
        first = Asking(current.first_view())
        assert first("info")["growing"] is True
        answer = first("rows", count=1000)
        assert answer["keys"]
        assert first("message", key=answer["keys"][0])["bytes"]
        go_on.set()
        current.settled()
        every = Asking(current.first_view())
        assert every("info")["growing"] is False
        rows = every("rows", count=1000)
    assert len(rows["keys"]) == 188
    places = [rows["keys"].index(key) for key in answer["keys"]]
    for name, values in answer["columns"].items():
        assert values == [rows["columns"][name][place] for place in places], name


def test_what_a_large_dataset_begins_with_is_there_before_its_columns(
    in_two_steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), _DatasetSource.view

    def later(self_: _DatasetSource, *how: Any) -> DataView:
        assert go_on.wait(60)
        return real(self_, *how)

    monkeypatch.setattr(_DatasetSource, "view", later)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([in_two_steps], options_of(), stack)
        stack.callback(go_on.set)
        first = Asking(current.first_view())
        assert first("info")["growing"] is True
        answer = first("rows", count=1000)
        assert len(answer["keys"]) == 20
        go_on.set()
        current.settled()
        every = Asking(current.first_view())
        assert every("info")["growing"] is False
        rows = every("rows", count=1000)
    assert len(rows["keys"]) == 188
    places = [rows["keys"].index(key) for key in answer["keys"]]
    for name, values in answer["columns"].items():
        assert values == [rows["columns"][name][place] for place in places], name


@pytest.mark.parametrize("ended", [False, True])
def test_how_many_columns_of_a_large_dataset_are_made_is_told_and_nobody_s_are_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: bool
) -> None:
    analyzer.analyze(TXN, tmp_path / "data")
    monkeypatch.setattr(open_view, "FEW_ROWS", 0)
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    events: list[dict[str, Any]] = []
    tenth, real = threading.Event(), PartialViews.progress

    def noted(self_: PartialViews, name: str, count: int, every: int) -> None:
        if count == 10:
            current.ended = ended
            tenth.set()
        real(self_, name, count, every)
        events.append(current.progress())

    monkeypatch.setattr(PartialViews, "progress", noted)
    with contextlib.ExitStack() as stack:
        current = CurrentView()
        open_view.begin_view([str(tmp_path / "data")], options_of(cache=True), stack, current)
        assert tenth.wait(60)
        if not ended:
            current.settled()
    assert {(event["doing"], event["size"], event["exchanges"]) for event in events} == {
        ("columns", columns.COUNT, 188)
    }
    counts = [event["read"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == (9 if ended else columns.COUNT - 1)
    assert current.done is not ended
    names = {path.name for path in (tmp_path / "cache" / "view").glob("*/*")}
    assert names == (set() if ended else {"columns"})


def test_what_nobody_thought_of_is_told_with_a_hint_that_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    analyzer.analyze(TXN, tmp_path / "data")
    monkeypatch.setattr(open_view, "FEW_ROWS", 0)
    monkeypatch.setattr(_DatasetSource, "view", lambda self_, progress: 1 / 0)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(tmp_path / "data")], options_of(), stack)
        current.settled()
    assert current.failure is not None
    assert (current.progress()["doing"], current.failure.hint) == ("columns", "kwire sql DATASET does without them")


FIRST_ROWS = """
import sys
from kwire.analyzer.cli import parser as cli
from kwire.reports.view import open_view
from kwire.reports.view.answers import answer_call
from kwire.reports.view.current_view import CurrentView
import contextlib
sys.meta_path.insert(0, cli._WithoutPandas)
options = cli.parse(["view", sys.argv[1], "--no-cache"])[1]
open_view.FEW_ROWS = 0
open_view._DatasetSource.view = lambda source, progress: None
with contextlib.ExitStack() as stack:
    current = CurrentView()
    open_view.begin_view([sys.argv[1]], options, stack, current)
    view = current._ready.wait(60) and current.view
    assert [answer_call(view, what, {}).status for what in ("info", "notes", "rows")] == [200, 200, 200]
    print(*sorted(sys.modules))
"""


def test_what_the_first_rows_of_a_dataset_do_not_need_is_not_loaded_before_them(tmp_path: Path) -> None:
    analyzer.analyze(TXN, tmp_path / "data")
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_ROWS, str(tmp_path / "data")], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stdout.split())
    assert "kwire.reports.view.columns" in loaded
    assert not loaded & {
        "kwire.analyzer.bulk.engine",
        "kwire.analyzer.pipeline.points",
        "kwire.analyzer.api",
        "lark",
        "pandas",
        "pyarrow.dataset",
        "pyarrow.compute",
        "kwire.reports.view.bodies",
        "kwire.reports.view.packets",
    }


def test_a_large_dataset_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    analyzer.analyze(TXN, tmp_path / "data")
    monkeypatch.setattr(open_view, "FEW_ROWS", 0)
    for path in (tmp_path / "data" / "exchanges").iterdir():
        data = bytearray(path.read_bytes())
        data[4:2000] = bytes(1996)  # its pages; what is told of them at its end stays
        path.write_bytes(data)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(tmp_path / "data")], options_of(), stack)
        current.settled()
    assert current.failure is not None
    assert "exchanges" in str(current.failure)


def test_what_goes_wrong_on_the_way_is_told_and_what_was_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, UsageError("the disk is full", "make room"))
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(TXN)], options_of(), stack)
        current.first_view()
        slow.go_on.set()
        current.settled()
    assert current.progress()["error"] == {"message": "the disk is full", "hint": "make room"}
    assert current.first_view().tables.columns.n


def test_what_goes_wrong_at_once_is_raised(tmp_path: Path) -> None:
    nothing = tmp_path / "capture.pcap"
    nothing.write_bytes(b"no capture at all")
    with contextlib.ExitStack() as stack, pytest.raises(KwireError):
        open_view.begin_view([str(nothing)], options_of(), stack)


def test_an_analysis_that_nobody_looks_at_ends() -> None:
    current = CurrentView()
    growing = PartialViews(current, Path("."), None, lambda tables, messages: pytest.fail("no view is wanted"))
    growing.progress("a", 10, 100)
    growing.progress("a", 30, 100)
    growing.progress("b", 5, 50)
    assert (current.read, current.size) == (35, 150)
    current.ended = True
    with pytest.raises(ViewClosedError):
        growing.progress("a", 40, 100)
    with pytest.raises(ViewClosedError):
        growing.take_rows("exchanges", None)


def test_views_grow_by_multiples_and_not_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.reports.view.partial_view.SHOWN", 800)
    table = analyzer.analyze(TXN).tables["exchanges"]
    current = CurrentView()
    seen: list[int] = []

    def named(tables: Any, messages: Any) -> Any:
        seen.append(tables.columns.n)
        return Asking  # whatever a view is

    growing = PartialViews(current, tmp_path, None, named)
    for _ in range(12):
        growing.take_rows("exchanges", table)
    assert seen == [188, 752]
    assert not growing._rows
    assert not list(tmp_path.iterdir())


def test_the_page_is_told_how_far_it_is() -> None:
    import asyncio

    from kwire.reports.view.server import _events

    current = CurrentView()
    current.fail(UsageError("it ends here", ""))
    current.read, current.size = 5, 10

    async def all_of_it() -> list[str]:
        return [line async for line in _events(current)]

    (line,) = asyncio.run(all_of_it())
    assert json.loads(line.removeprefix("data: "))["read"] == 5


def test_a_capture_that_grows_meanwhile_is_never_more_than_whole() -> None:
    current = CurrentView()
    growing = PartialViews(current, Path("."), None, lambda tables, messages: pytest.fail("no view is wanted"))
    growing.progress("grows", 150, 100)
    assert (current.progress()["read"], current.progress()["size"]) == (100, 100)
    growing.progress("grows", 150, 0)
    growing.progress("pipe", 50, 100)
    assert (current.progress()["read"], current.progress()["size"]) == (200, 200)
