"""Announce the compilation of kernels: why, how many at most, and on a terminal which kernel.

(proves: analyzer/cli/commands.py and analyzer/live/preparation.py, their messages about compiling)
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from kwire.analyzer.cli import commands, parser
from kwire.analyzer.live import preparation, startup
from kwire.captures import kernels, native
from kwire.captures.errors import CaptureError
from kwire.captures.kernels import Compiling
from kwire.captures.live import interfaces
from kwire.captures.shipped import Shipped
from tests.shared import SAMPLES


class Terminal(io.StringIO):
    """Stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _compiled_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend that kernels were compiled before, and restore the listener afterwards."""
    monkeypatch.setattr(kernels, "warm", lambda: True)
    monkeypatch.setattr(kernels, "came_along", lambda: Shipped(None))
    before = kernels.tell(kernels._nobody)
    yield
    kernels.tell(before)


def compile_two() -> None:
    """Report two kernels to the listener, as a command does that needs them."""
    listener = kernels.tell(kernels._nobody)
    kernels.tell(listener)
    for number, name in enumerate(("kwire.captures.packets.scan", "kwire.captures.flows.assign"), 1):
        listener(Compiling(name, number, 7))
        listener(None)


def test_nothing_is_said_where_nothing_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    commands.announce_compilation()
    assert not capsys.readouterr().err


def test_a_line_says_how_many_once(capsys: pytest.CaptureFixture[str]) -> None:
    commands.announce_compilation()
    compile_two()
    assert capsys.readouterr().err == "kwire: compiling kernels, once on this machine: at most 7 ...\n"


def test_the_very_first_takes_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "warm", lambda: False)
    commands.announce_compilation()
    compile_two()
    assert "at most 7, a minute or two ...\n" in capsys.readouterr().err


def test_why_those_of_the_installation_are_not_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "came_along", lambda: Shipped(None, "for numba 1, this is 2"))
    commands.announce_compilation()
    compile_two()
    assert "once on this machine (not as installed: for numba 1, this is 2): at most 7" in capsys.readouterr().err


def test_a_terminal_shows_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    commands.announce_compilation()
    compile_two()
    line, *shown = terminal.getvalue().split(commands._CLEAR)
    assert line.endswith("at most 7 ...\n")
    assert [re.sub(r"\d+ s so", "0 s so", text) for text in shown] == [
        "kwire: kernel 1 of at most 7, scan, 0 s so far",
        "",
        "kwire: kernel 2 of at most 7, assign, 0 s so far",
        "",
    ]


def test_elsewhere_a_line_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    commands.announce_compilation()
    compile_two()
    clock[0] += 20
    compile_two()
    announced, *lines = capsys.readouterr().err.splitlines()
    assert announced.endswith("at most 7 ...")
    assert lines == ["kwire: kernel 1 of at most 7, scan, 20 s so far"]


def test_under_a_bar_it_is_a_line_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    commands.announce_compilation()
    before = kernels._listener
    with commands._progress() as progress:
        assert progress is not None
        progress("a capture", 5, 10)
        compile_two()
    assert "compiling kernels, once on this machine: at most 7 ..." in terminal.getvalue()
    assert kernels._listener is before


def test_watch_refuses_before_the_first_packet_where_nothing_can_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "has_compiler", lambda: False)
    with pytest.raises(kernels.CompilerMissingError) as refused:
        preparation.warm_up()
    assert "kwire[compile]" in refused.value.hint


def test_watch_of_a_small_capture_compiles_nothing_beforehand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is read as other commands read it: as plain Python, where nothing is compiled yet."""

    def compile_all() -> None:
        raise AssertionError("a minute and a half of compiling for a capture of a few kilobytes")

    monkeypatch.setattr(startup, "warm_up", compile_all)
    assert parser.main(["watch", str(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"), "--once"]) == 0
    assert '"clients":6' in capsys.readouterr().out


def test_watch_says_so_where_only_some_are_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some kernels are stored; reading a sample compiles the others, once."""
    (tmp_path / "kwire.captures.packets.scan.0123456789abcdef").touch()
    monkeypatch.setattr(kernels, "object_folder", lambda: tmp_path)
    monkeypatch.setattr(preparation, "rehearse", compile_two)
    preparation.warm_up()
    assert capsys.readouterr().err == "kwire: compiling kernels, once on this machine: at most 7 ...\n"
    preparation.warm_up()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("caller", "expected"), [(None, ["warm up", "sample", "listen"]), ((1000, 1000), ["listen"])])
def test_all_is_loaded_before_the_interface_is_opened(
    monkeypatch: pytest.MonkeyPatch, caller: tuple[int, int] | None, expected: list[str]
) -> None:
    """But not with the rights that sudo lent."""
    steps: list[str] = []

    def listen(_: object) -> NoReturn:
        steps.append("listen")
        raise CaptureError("no such interface", "see kwire record --list")

    monkeypatch.setattr(interfaces, "caller", lambda: caller)
    monkeypatch.setattr(startup, "warm_up", lambda: steps.append("warm up"))
    monkeypatch.setattr(startup, "rehearse", lambda: steps.append("sample"))
    monkeypatch.setattr(startup, "listening", listen)
    with pytest.raises(SystemExit):
        parser.main(["watch", "-i", "none0"])
    assert steps == expected
