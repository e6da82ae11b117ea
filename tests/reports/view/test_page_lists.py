"""The page's other lists in a real browser: pairs of a RUN and of two capture points, frames, one partition.

What stands in them is proved in `test_pairing`.

Proves: reports/view/page (detail.js, lists.js, tabs.js)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli import _judged
from tests.reports.view.browsing import Look, Place
from tests.reports.view.conftest import Asking, served, viewed


@pytest.fixture(scope="module")
def replayed(run: Path) -> Iterator[Place]:
    with contextlib.ExitStack() as stack, served(viewed(stack, run, judge=_judged)) as place:
        yield place


DIFFERS = "#{} .row.differs:visible"
MARKED = "[...document.querySelectorAll('#bytes .row:not([hidden]) .hex.on')].map(one => one.textContent).join('')"
"""Of the page: the marked bytes as hex digits."""


def test_a_runs_sides_stand_side_by_side_with_what_differs(chromium: Any, replayed: Place) -> None:
    with Look(chromium, replayed)(total="") as opened:
        page = opened.page
        page.locator("#verdict", has_text="unexpected differences").wait_for()
        page.keyboard.press("d")  # those that differ
        page.locator("#other .row[data-verdict='different']").first.wait_for()
        assert page.locator("#other .row[data-verdict='not compared']:visible").count() == 0
        assert page.locator("#only").get_attribute("aria-pressed") == "true"
        page.keyboard.press("j")
        page.locator("#pair p", has_text="replayed: ok").wait_for()
        page.locator("#title-request", has_text="captured: response").wait_for()
        page.locator("#title-response", has_text="replayed: response").wait_for()
        page.locator("#status", has_text="fields differ").wait_for()
        for pane in ("request", "response"):
            page.locator(DIFFERS.format(pane), has_text="≠ port").wait_for()
        # A field on one side, and the same one beside it; its bytes.
        page.keyboard.press("Enter")
        opened.wait("document.activeElement.id === 'request'")
        page.locator(DIFFERS.format("request"), has_text="≠ port").click()
        page.locator('#response .row[aria-selected="true"]', has_text="≠ port").wait_for()
        opened.wait(f"{MARKED} === '00002384'")  # 9092
        page.locator(DIFFERS.format("response"), has_text="≠ port").click()
        opened.wait("document.querySelector('button.side[data-side=response]').ariaPressed === 'true'")
        opened.wait(f"{MARKED}.length === 8 && {MARKED} !== '00002384'")
        page.keyboard.press("r")  # the requests
        page.locator("#title-response", has_text="replayed: request").wait_for()
        page.locator("#response .row", has_text="clientId").wait_for()
        page.keyboard.press("=")  # request and response of the captured one
        opened.wait("document.querySelector('#title-response').textContent === 'response'")
        page.locator("#pair").wait_for(state="hidden")
        chosen = page.url
        page.reload()
        page.locator("#request .row", has_text="clientId").wait_for()
        assert page.url == chosen


def test_two_capture_points_stand_side_by_side(chromium: Any, points: Asking) -> None:
    with served(points.view) as place, Look(chromium, place)("list=pairs&against=twin", "", scheme="dark") as opened:
        page = opened.page
        page.locator("#verdict", has_text="at client.pcap and broker.pcap").wait_for()
        page.locator("#others-head button", has_text="broker.pcap").wait_for()
        page.locator("#other .row").nth(3).click()
        page.locator("#title-response", has_text="broker.pcap: request").wait_for()
        page.locator("#status", has_text="every field is the same").wait_for()
        page.locator("#filter").fill("api == Fetch")
        page.keyboard.press("Enter")
        page.locator("#status", has_text="11 pairs").wait_for()  # the list stays, and follows the filter


def test_frames_lead_to_messages_and_a_partition_is_all_there_is(look: Look) -> None:
    with look("above=none") as opened:
        page = opened.page
        page.get_by_role("tab", name="frames").click()
        page.locator("#status", has_text="375 frames").wait_for()
        response = page.locator("#other .row", has_text="response").first
        response.click()
        opened.wait("document.querySelector('#detail').dataset.side === 'response'")
        page.locator("#response .row", has_text="errorCode").first.wait_for()
        page.keyboard.press("Escape")
        opened.wait("document.activeElement.id === 'list'")
        # All of a partition: who writes it, who reads it.
        page.locator("#list .row", has_text="Produce v10").first.click()
        page.keyboard.press("Shift+F")
        page.get_by_role("menuitem", name="follow partition").click()
        page.locator("#part", has_text="only partition idem-0").wait_for()
        opened.wait("!document.querySelector('#count').textContent.startsWith('188 ')")
        some = page.locator("#count").inner_text().split(" of ")[0]
        assert 0 < int(some) < 100
        page.keyboard.press("f")
        page.locator("#counts [data-name=api]", has_text="Produce").wait_for()
        assert page.locator("#counts [data-name=api]", has_text="FindCoordinator").count() == 0
        page.reload()
        opened.total(some)
        page.locator("#part").click()
        opened.total("188")
        page.go_back()
        opened.total(some)
