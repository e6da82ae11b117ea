"""Test the screen of `kwire watch` and its keys, without a terminal.

(proves: analyzer/live/screen.py)
"""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from kwire.analyzer.live.screen import SORTS, Screen
from tests.analyzer.live.test_live_counts import session_of
from tests.live import SAMPLE


@pytest.fixture(scope="module")
def screen() -> Screen:
    session = session_of(SAMPLE, window_bytes=1 << 20)
    return Screen(session, "cap\x1b[31mture", lambda: 7, Console(file=io.StringIO(), width=120, height=40))


def text_of(screen: Screen) -> str:
    console = Console(file=io.StringIO(), width=120, height=40)
    console.print(screen.shown())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_all_is_on_it_and_others_text_is_escaped(screen: Screen) -> None:
    shown = text_of(screen)
    assert "\x1b[31m" not in shown
    assert "7 packets lost" in shown
    assert re.search(r"Produce +127\.0\.0\.1:9092 +[\d.]+", shown)
    assert "clients: " in shown
    assert "groups in rebalance: " in shown
    assert "request-unanswered" in shown
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize("order", list(SORTS))
def test_lines_are_sorted_as_asked(order: str, screen: Screen) -> None:
    while screen.sort != order:
        screen.press("s")
    lines = screen._lines(screen._now())
    keys = [SORTS[order](line) for line in lines]
    assert keys == sorted(keys)
    assert f"by {order}" in text_of(screen)


def test_a_filter_that_says_nothing_is_told_and_stays_to_be_mended(screen: Screen) -> None:
    screen.press("/")
    for key in "apj == ":
        screen.press(key)
    screen.press("\r")
    assert screen.typing == "apj == "
    assert screen.problem
    assert screen.problem[:20] in text_of(screen)
    for _ in range(3):
        screen.press("\x7f")
    assert screen.typing == "apj "
    screen.press("\x1b")
    assert screen.typing is None
    assert screen._session.wanted is None


def test_a_frozen_screen_stays(screen: Screen) -> None:
    screen.press(" ")
    before = screen._now()
    screen._session.counts.advance(screen._session.counts.time_ns + 10**9)
    assert screen._now() is before
    assert "FROZEN" in text_of(screen)
    screen.press(" ")
    assert screen._now() is not before


def test_the_tree_of_an_exchange_opens_and_scrolls(screen: Screen) -> None:
    screen.sort, screen.chosen = "api", 0
    lines = screen._lines(screen._now())
    for _ in range(len(lines) + 5):
        screen.press("\x1b[B")
    assert screen.chosen == len(lines) - 1
    for _ in range(len(lines) + 5):
        screen.press("\x1b[A")
    assert screen.chosen == 0
    screen.press("\r")
    assert screen.opened is not None
    assert any("request" in line for line in screen.opened)
    first = text_of(screen)
    screen.press("\x1b[6~")
    assert text_of(screen) != first
    screen.press("\x1b")
    assert screen.opened is None
    assert screen.press("x"), "a key that does nothing"
    assert not screen.press("q")
