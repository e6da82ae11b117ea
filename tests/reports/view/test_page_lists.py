"""The page's other lists in a real browser: pairs of a RUN and of two capture points, frames, one partition.

Their content is tested in `test_exchange_pairs`.

Proves: reports/view/page (detail.js, lists.js, tabs.js)
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.cli.parser import _judged
from tests.reports.view.browsing import CONTRAST, Look, Place
from tests.reports.view.conftest import Asking, served, viewed
from tests.shared import SAMPLES

SNAPSHOTS = Path(__file__).parent / "page"


@pytest.fixture(scope="module")
def replayed(run: Path) -> Iterator[Place]:
    with contextlib.ExitStack() as stack, served(viewed(stack, run, judge=_judged)) as place:
        yield place


DIFFERS = "#{} .row.differs:visible"
MARKED = "[...document.querySelectorAll('#bytes .row:not([hidden]) .hex.on')].map(one => one.textContent).join('')"
"""Script: the marked bytes as hex digits."""


def test_a_runs_sides_stand_side_by_side_with_what_differs(chromium: Any, replayed: Place) -> None:
    with Look(chromium, replayed)(total="") as opened:
        page = opened.page
        page.locator("#verdict", has_text="unexpected differences").wait_for()
        page.keyboard.press("d")  # those that differ
        page.locator("#other .row[data-verdict='different']").first.wait_for()
        opened.wait(
            "[...document.querySelectorAll('#other .row:not([hidden])')]"
            ".every(row => row.dataset.verdict !== 'not compared')"
        )
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


def test_exchanges_of_several_captures_name_theirs(chromium: Any, points: Asking, look: Look) -> None:
    with served(points.view) as place, Look(chromium, place)("above=none", "") as opened:
        opened.page.locator("#head [data-id=capture]").wait_for()
        opened.page.locator("#list [data-id=capture]", has_text="client.pcap").first.wait_for()
    with look("above=none") as opened:
        assert opened.page.locator("#head [data-id=capture]").count() == 0


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


def shown(children: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Get the lines of a tree from the API: name, value, bytes."""
    for node in children:
        yield f"{node['name']}:" if node["value"] else node["name"], node["value"], f"{node['start']} to {node['end']}"
        if "children" in node:
            yield from shown(node["children"])
            if node["total"] > len(node["children"]):
                yield f"{node['total'] - len(node['children'])} more", "", ""


LINES = """async (side) => { await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return [...document.querySelectorAll(`#${side} .row`)].filter(row => !row.hidden).map(row =>
    [Number(row.ariaRowIndex), row.children[1].textContent, row.children[2].textContent,
     (row.title.match(/bytes (\\d+ to \\d+)/) ?? ['', ''])[1]]); }"""
"""Script: the lines of a tree, once it is drawn."""

PLACES = "[...document.querySelectorAll('#bytes .row:not([hidden]) .hex.on')].map(one => one.dataset.at).join()"
GO = """(key) => { history.pushState(null, '', `/?above=none&key=${encodeURIComponent(key)}`);
    dispatchEvent(new PopStateEvent('popstate')); }"""


def test_every_field_of_every_api_of_the_samples_is_shown_and_leads_to_its_bytes(chromium: Any) -> None:
    folders = [folder for folder in sorted(SAMPLES.iterdir()) if folder.is_dir()]
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, *folders))
        place = stack.enter_context(served(asking.view))
        opened = stack.enter_context(Look(chromium, place)("above=none", "", height=2000))
        page = opened.page
        opened.wait("document.querySelector('#count').textContent")
        page.evaluate("document.querySelector('#main').style.setProperty('--list', '15%')")
        shown_apis = 0
        for api in asking.view.tables.columns.values["api"]:
            some = f"api == {api} and request_bytes > 0"
            keys = [asking("rows", filter=text, count=1)["keys"] for text in (f"{some} and response_bytes > 0", some)]
            key = next(iter(keys[0] or keys[1]), None)
            if key is None:
                continue  # Kafka has it, the samples do not
            shown_apis += 1
            trees = {side: asking("message", key=key, side=side) for side in ("request", "response")}
            page.evaluate(GO, key)
            for side in (side for side in trees if trees[side]["bytes"]):
                wanted = list(shown(trees[side]["children"]))
                lines = _drawn(page, side, wanted)
                assert lines == {index: wanted[index - 1] for index in lines}, (api, side)
            # The last field that has bytes in the request: its bytes, and from them back.
            places = [(at, line[2]) for at, line in enumerate(shown(trees["request"]["children"])) if line[2]]
            at, span = next((at, span) for at, span in reversed(places) if len(set(span.split(" to "))) == 2)
            if at >= len(page.evaluate(LINES, "request")):
                continue
            start, end = map(int, span.split(" to "))
            page.locator(f'#request .row[aria-rowindex="{at + 1}"]').click()
            opened.wait(f"{PLACES} === '{','.join(map(str, range(start, end)))}'")
            page.locator(f'#bytes .hex[data-at="{start}"]').click()
            opened.wait(f"document.querySelector('#request .row[aria-selected=true]')?.ariaRowIndex === '{at + 1}'")
        assert shown_apis >= 40


def _drawn(page: Any, side: str, wanted: list[tuple[str, str, str]]) -> dict[int, tuple[str, str, str]]:
    """Wait until the visible lines of a tree, by number, are the expected ones."""
    given_up = time.monotonic() + 30
    while True:
        lines = {index: tuple(line) for index, *line in page.evaluate(LINES, side)}
        right = lines and all(index <= len(wanted) and line == wanted[index - 1] for index, line in lines.items())
        if right or time.monotonic() > given_up:
            return lines


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


def test_pairs_by_keys_alone_on_a_phone(chromium: Any, points: Asking) -> None:
    """Navigate from exchanges to a pair, its fields, its bytes and back, in the width of a phone."""
    with served(points.view) as place, Look(chromium, place)("above=none", "", width=390, height=780) as opened:
        page = opened.page
        for _ in range(3):
            page.keyboard.press("o")  # records, frames, then pairs
        opened.wait("document.activeElement.id === 'other'")
        page.locator("#others-head button", has_text="broker.pcap").wait_for()  # frames have such rows too
        page.locator("#other .row", has_text="ApiVersions").first.wait_for()
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.locator("#title-request", has_text="client.pcap: request").wait_for()
        page.locator("#status", has_text="every field is the same").wait_for()
        assert page.locator('#other .row[aria-selected="true"]').get_attribute("aria-rowindex") == "2"
        page.keyboard.press("Enter")
        opened.wait("document.activeElement.id === 'request'")
        page.keyboard.press("End")
        page.locator('#request .row[aria-selected="true"]').wait_for()
        page.keyboard.press("b")
        opened.wait("document.activeElement.id === 'bytes'")
        opened.wait(f"{MARKED} !== ''")
        page.keyboard.press("Home")
        page.locator("#status", has_text="length: int32").wait_for()
        page.locator("#sides [aria-selected=true]", has_text="bytes").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        page.locator('#request .row[aria-selected="true"]', has_text="length").wait_for()
        page.keyboard.press("r")  # the answers
        page.locator("#title-request", has_text="client.pcap: response").wait_for()
        opened.wait("document.querySelector('#request .row').textContent !== ''")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(CONTRAST) == []
        cut = page.evaluate(CUT, ["#twice", "#pair", "#status", "#bar"])
        assert cut == []
        snapshot = SNAPSHOTS / "pairs.aria"
        shown = "\n".join(page.locator(selector).aria_snapshot() for selector in ("#twice", "#others-head"))
        assert shown == snapshot.read_text(encoding="utf-8").strip()
        page.keyboard.press("Escape")
        opened.wait("document.activeElement.id === 'other'")
        page.keyboard.press("Escape")
        opened.wait("document.activeElement.id === 'list'")
        page.keyboard.press("d")  # those that differ: none was judged here, and all are there
        page.locator("#only[aria-pressed=true]").wait_for()


def test_records_lead_to_their_bytes_and_follow_the_filter(look: Look) -> None:
    with look("above=none") as opened:
        page = opened.page
        page.keyboard.press("o")
        page.locator("#status", has_text="806 records").wait_for()
        shown = page.locator("#others-head").aria_snapshot()
        assert shown == (SNAPSHOTS / "records.aria").read_text(encoding="utf-8").strip()
        page.keyboard.press("j")
        page.locator("#request .row[aria-selected=true]", has_text="offset 0").wait_for()
        opened.wait(f"{MARKED} === '100000000104693000'")  # i0
        page.keyboard.press("Enter")
        opened.wait("document.activeElement.id === 'request'")
        chosen = page.url
        page.reload()
        opened.wait(f"{MARKED} === '100000000104693000'")
        assert page.url == chosen
        opened.wait("document.activeElement.id === 'other'")
        opened.applied('topic == "tx-in" and api == Fetch')
        page.locator("#status", has_text=re.compile(r"^\d+ records")).wait_for()
        opened.wait(
            "[...document.querySelectorAll('#other .row:not([hidden])')].every(row => "
            "row.children[1].textContent === 'tx-in' && row.children[8].textContent === 'fetch')"
        )
        page.locator("#other .row").first.click()
        opened.wait("document.querySelector('#detail').dataset.side === 'response'")
        offset = page.locator("#other .row[aria-selected=true] [data-id=offset]").inner_text()
        page.locator("#response .row[aria-selected=true]", has_text=f"offset {offset}").wait_for()
        page.keyboard.press("Enter")
        opened.wait("document.activeElement.id === 'response'")


VIEWS = ("exchanges", "records", "frames", "connections", "clients", "groups", "rebalances", "transactions")
MORE_VIEWS = (*VIEWS, "journeys", "questions", "ladder", "timeline")
PANELS = ("details", "latencies", "findings", "counts", "columns", "colours", "keys")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
def test_every_view_fits_and_is_readable(look: Look, tmp_path: Path, width: int, scheme: str) -> None:
    """Screenshots of each: in the test's folder, or in that of KWIRE_SCREENSHOTS."""
    folder = Path(os.environ.get("KWIRE_SCREENSHOTS", tmp_path))
    with look("beside=&above=none", width=width, scheme=scheme) as opened:
        page = opened.page
        assert page.get_by_role("tab").all_inner_texts() == list(MORE_VIEWS)

        def fits(name: str) -> None:
            page.wait_for_load_state("networkidle")
            opened.drawn()
            page.screenshot(path=folder / f"view-{name}-{width}-{scheme}.png")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.evaluate(CONTRAST) == [], name
            assert page.evaluate(ASKEW) == [], name
            if name not in ("findings", "counts"):  # which a phone shows in the list's place
                assert page.evaluate(
                    "[...document.querySelectorAll('#listing, #tabs')].every(one => one.offsetHeight > 20)"
                ), name

        for name in MORE_VIEWS:
            page.get_by_role("tab", name=name, exact=True).click()
            fits(name)
        page.get_by_role("tab", name="exchanges", exact=True).click()
        for name in PANELS:
            if name == "details":
                page.locator("#list .row").first.click()
                page.locator("#request .row", has_text="clientId").wait_for()
            else:
                page.locator("#bar").get_by_role("button", name=name, exact=True).click()
            if name == "findings":
                page.locator("#findings article").first.wait_for()
            if name == "counts":
                page.locator("#counts table").first.wait_for()
            fits(name)
            if name in ("details", "columns", "colours", "keys"):
                page.keyboard.press("Escape")
            else:
                page.locator("#bar").get_by_role("button", name=name, exact=True).click()


ASKEW = """() => {
  const [row] = [...document.querySelectorAll('#other .row')].filter(each => each.checkVisibility());
  const left = each => Math.round(each.getBoundingClientRect().left);
  const heads = [...document.querySelectorAll('#others-head > *')].map(left);
  return row ? [...row.children].filter((cell, i) => left(cell) !== heads[i]).map(cell => cell.dataset.id) : [];
}"""
"""Script: the columns of a list whose cells do not begin where their heading does."""

CUT = """(places) => places.filter(one => {
  const box = document.querySelector(one), wide = box.scrollWidth > box.clientWidth + 1;
  return box.checkVisibility() && (wide || box.getBoundingClientRect().right > innerWidth + 1);
})"""
"""Script: the elements of the page that overflow."""
