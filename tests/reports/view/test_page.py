"""The page in a real browser: Debian's Chromium, driven by Playwright. Nothing of it is downloaded.

One server looks at a real capture, another at a dataset whose names try to become markup. What needs no browser is in
`test_answers`.

Proves: reports/view/page
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kwire
from kwire.analyzer.cli import parser
from kwire.analyzer.common.errors import UsageError
from kwire.reports.view import columns, open_view
from kwire.reports.view.partial_view import PartialViews
from tests.bench.view import view_of
from tests.reports.forging import Forged
from tests.reports.view.browsing import CONTRAST, Look, Opened, Place
from tests.reports.view.conftest import TXN, Asking, served, viewed
from tests.reports.view.test_current_view import Slow, options_of
from tests.shared import ROOT

PAGE = ROOT / "reports" / "view" / "page"
SNAPSHOTS = Path(__file__).parent / "page"
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"
TURNED = "user\u202egnp.exe\x00\x1b[31m"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    forged = Forged(tmp_path_factory.mktemp("view") / "hostile")
    for number in range(3_000):
        forged.exchange(
            "Fetch",
            latency_ms=number % 90,
            second=number / 10,
            client_id=(HOSTILE, TURNED)[number % 2],
            topics=[HOSTILE, TURNED],
            exchange=number,
            reply=2**63 - 1 - number,
            reason=HOSTILE,
        )
    with contextlib.ExitStack() as stack, served(viewed(stack, forged.write())) as address:
        yield address


def test_where_all_is_encrypted_the_page_says_so(chromium: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "shut")
    for link in "ab":
        connection = {"capture": forged.capture, "connection": link, "payload_bytes": 9, "looks_like": "TLS"}
        forged.unrecognised.append(connection)
    with (
        contextlib.ExitStack() as stack,
        served(viewed(stack, forged.write())) as place,
        Look(chromium, place)(total="0") as opened,
    ):
        opened.page.locator(
            "#none", has_text="2 of its connections are TLS and could not be decrypted: --keylog"
        ).wait_for()


def test_a_capture_that_was_not_read_to_its_end_says_so(chromium: Any, tmp_path: Path) -> None:
    capture = tmp_path / "cut.pcap"
    capture.write_bytes(TXN.read_bytes()[:60_001])
    with (
        contextlib.ExitStack() as stack,
        served(viewed(stack, capture)) as place,
        Look(chromium, place)(total="114") as opened,
    ):
        note = opened.page.locator("#noted", has_text="ends in the middle of packet 368")
        note.wait_for()
        opened.page.get_by_role("button", name="dismiss").click()
        note.wait_for(state="hidden")


def test_from_a_filter_to_a_field_to_its_bytes_and_back_by_keys_alone(look: Look) -> None:
    with look() as opened:
        page = opened.page
        page.keyboard.press("/")
        page.keyboard.insert_text("api == Prod")
        page.locator("#option-0", has_text="Produce").wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")  # takes the candidate
        opened.wait("document.querySelector('#filter').value === 'api == Produce '")
        page.keyboard.insert_text("and latencyy > 1ms")
        page.locator("#mark").wait_for()
        page.locator("#mistake", has_text="did you mean `latency`").wait_for()  # who rests is told, without Enter
        assert page.locator("#filter").get_attribute("aria-invalid") == "true"
        page.keyboard.press("Enter")
        page.locator("#mistake", has_text="did you mean `latency`").wait_for()
        opened.total("188")  # what was there stays
        page.locator("#filter").fill("api == Produce and latency > 1ms")
        page.keyboard.press("Enter")
        opened.total("29")
        # A row, its fields, a field's bytes.
        page.keyboard.press("j")
        assert "Produce v10" in opened.chosen()
        page.locator("#request .row", has_text="clientId").wait_for()
        page.keyboard.press("Enter")
        for _ in range(5):
            page.keyboard.press("ArrowDown")
        page.locator('#request .row[aria-selected="true"]', has_text="lab-idem").wait_for()
        opened.wait("document.querySelectorAll('#bytes .hex.on').length === 10")
        assert page.locator("#bytes .char.on").all_inner_texts() == list("··lab-idem")
        # A byte leads back to its field, inside the record batch.
        page.keyboard.press("b")
        page.keyboard.press("End")
        for _ in range(6):
            page.keyboard.press("ArrowLeft")
        page.locator('#request .row[aria-selected="true"]', has_text="value").wait_for()
        # The other side, the list, the next exchange of the connection, and what may be done with a value.
        page.keyboard.press("r")
        opened.wait("document.activeElement.id === 'response'")
        page.keyboard.press("Escape")
        opened.wait("document.activeElement.id === 'list'")
        before = page.url
        page.keyboard.press(".")
        opened.wait(f"location.href !== {before!r}")
        page.go_back()
        opened.wait(f"location.href === {before!r}")
        page.keyboard.press("?")
        page.locator("#keys dt", has_text="PgUp").wait_for()
        assert page.evaluate("document.querySelector('#keys').scrollTop") == 0
        page.keyboard.press("Escape")
        assert all("400" in complaint for complaint in opened.complaints)  # the browser logs answers that refuse
        opened.complaints.clear()


def test_a_value_becomes_a_filter_and_the_choice_survives_filter_sort_and_reload(look: Look) -> None:
    with look() as opened:
        page = opened.page
        page.locator("#list .row", has_text="COORDINATOR_LOAD_IN_PROGRESS").click()
        chosen = opened.chosen()
        page.locator("#list .row[aria-selected=true] [data-id=api]").click(button="right")
        page.get_by_role("menuitem", name="filter to api == InitProducerId").click()
        opened.total("4")
        assert page.locator("#filter").input_value() == "api == InitProducerId"
        assert opened.chosen() == chosen
        page.locator("#head button", has_text="latency").click()
        opened.wait("document.querySelector('#head [data-id=latency_us]').ariaSort === 'descending'")
        assert opened.chosen() == chosen
        opened.drawn()
        latencies = page.locator("#list .row:visible [data-id=latency_us]").all_inner_texts()
        page.reload()
        opened.total("4")
        opened.drawn()
        assert opened.chosen() == chosen
        assert page.locator("#list .row:visible [data-id=latency_us]").all_inner_texts() == latencies
        page.locator("#request .row", has_text="transactionalId").wait_for()
        # Filtered out, it says so; going back brings it back.
        page.locator("#filter").fill("api == Fetch")
        page.keyboard.press("Enter")
        opened.total("11")
        page.locator("#status", has_text="the filter excludes the chosen exchange").wait_for()
        page.go_back()
        opened.total("4")
        assert opened.chosen() == chosen
        # Columns: one more, from a value of the tree.
        page.locator("#request .row", has_text="clientId").first.click(button="right")
        page.get_by_role("menuitem", name="copy value").wait_for()
        page.keyboard.press("Escape")
        page.locator("#columns").click()
        page.locator("#choices label", has_text="correlation id").locator("input").check()
        page.keyboard.press("Escape")
        page.locator("#head button", has_text="correlation id").wait_for()
        page.locator("#list").focus()
        page.keyboard.press("n")  # what is wrong, and an exchange that shows it, whatever is filtered
        page.locator("#findings [aria-current=true]").wait_for()
        evidence = page.locator("#findings [aria-current=true]").get_attribute("data-key")
        opened.wait(f"new URLSearchParams(location.search).get('key') === {json.dumps(evidence)}")
        page.locator("#list").focus()
        page.keyboard.press("f")
        page.locator("#counts table").wait_for()
        assert page.locator("#counts [data-name=api]").all_inner_texts() == ["InitProducerId\n4"]
        page.locator("#command").click()
        page.locator("#status", has_text="kwire show").wait_for()
        assert "--filter 'api == InitProducerId' --sort=latency_us" in page.locator("#status").inner_text()


def test_a_cell_of_the_heatmap_becomes_a_filter_and_a_span_one_of_times(look: Look) -> None:
    with look("above=heat") as opened:
        page = opened.page
        page.locator("#cell", has_text="latency (log scale) of 1").wait_for()
        assert page.locator("#heat").aria_snapshot() == (SNAPSHOTS / "heat.aria").read_text(encoding="utf-8").strip()
        page.locator("#cells").focus()
        page.keyboard.press("End")
        # The last column has an exchange: upwards to its cell.
        for _ in range(80):
            if " 0" not in page.locator("#cell").inner_text()[-3:]:
                break
            page.keyboard.press("ArrowUp")
        held = re.search(r": ([\d,]+)", page.locator("#cell").inner_text())
        assert held is not None
        page.keyboard.press("Enter")
        opened.total(held[1])
        assert "latency >= " in page.locator("#filter").input_value()
        page.go_back()
        opened.total("188")
        page.locator("#list").focus()
        page.locator("#cell", has_text=re.compile(r"of 18\d exchanges")).wait_for()
        # By mouse: the first half of the time.
        box = page.locator("#cells").bounding_box()
        page.mouse.move(box["x"] + 63, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30, steps=3)
        page.mouse.up()
        opened.wait("new URLSearchParams(location.search).get('filter')?.startsWith('request_time >= ')")
        assert "latency" not in page.locator("#filter").input_value()
        opened.wait("!document.querySelector('#count').textContent.startsWith('188 ')")
        # It goes, and comes back.
        page.locator("#list").focus()
        page.keyboard.press("h")
        page.locator("#heat").wait_for(state="hidden")


def test_columns_of_the_heatmap_are_fine_where_a_pause_is_folded(chromium: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "paused")
    for number in range(400):
        forged.exchange("Fetch", latency_ms=number % 90, second=number / 100 + 3600 * (number // 200), exchange=number)
    with (
        contextlib.ExitStack() as stack,
        served(viewed(stack, forged.write())) as place,
        Look(chromium, place)("above=heat", "400") as opened,
    ):
        page = opened.page
        page.locator("#cell", has_text="400 exchanges").wait_for()
        page.locator("#cells").focus()
        page.keyboard.press("Home")
        page.locator("#cell", has_text=re.compile(r"^0\.000000 to [12]\.\d+ s")).wait_for()  # of an hour in 230: 15 s


def test_hostile_names_stay_text_and_large_numbers_whole(chromium: Any, hostile: tuple[str, str]) -> None:
    with Opened(chromium, hostile, "columns=client_id,topics,reply,reason,result") as opened:
        page = opened.page
        opened.total("3,000")
        page.locator("#list .row").first.click()
        assert str(2**63 - 1) in opened.chosen()
        assert HOSTILE in page.locator("#list .row").first.inner_text()
        turned = page.locator("#list .row").nth(1).inner_text()
        assert "user\\u202egnp.exe\\x00\\x1b[31m" in turned
        page.locator("#list .row").nth(1).locator("[data-id=client_id]").click(button="right")
        page.get_by_role("menuitem", name="filter to client_id").click()
        opened.total("1,500")
        page.locator("#status", has_text="--keep-bytes").wait_for()  # there are no bytes, and that is said
        assert page.locator("img").count() == 0
        assert "owned" not in page.title()
        assert "\u202e" not in page.content()
        assert opened.complaints == []
        opened.applied('client_id ~ "user"', "latency < 5ms", "latency == 7ms")
        opened.total("34")
        opened.wait("new URLSearchParams(location.search).get('filter') === 'latency == 7ms'")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Serve more rows than fit into the height of an element."""
    folder = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KWIRE_CACHE_DIR", str(folder / "cache"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        with view_of(ROWS, folder) as view, served(view) as address:
            yield address


ROWS = 700_000


def test_a_notch_of_the_wheel_moves_the_same_rows_anywhere_and_none_is_blank(
    chromium: Any, large: tuple[str, str]
) -> None:
    with Opened(chromium, large, "above=none&columns=time,exchange") as opened:
        page = opened.page
        opened.total(f"{ROWS:,}")
        rows = """() => [...document.querySelectorAll('#list .row:not([hidden])')]
            .map(row => [Number(row.ariaRowIndex), row.children[2].textContent]).sort((a, b) => a[0] - b[0])"""
        first = (
            "Math.min(...[...document.querySelectorAll('#list .row:not([hidden])')].map(row => "
            "Number(row.ariaRowIndex)))"
        )
        for place in ("top", "middle", "end"):
            if place == "middle":
                bar = page.locator("#list .bar").bounding_box()
                assert bar is not None
                page.mouse.click(bar["x"] + 5, bar["y"] + bar["height"] / 2)
                opened.wait(f"Math.abs({first} - {ROWS // 2}) < {ROWS // 10}")
            else:
                page.locator("#list").focus()
                page.keyboard.press("Home" if place == "top" else "End")
                last = 1 if place == "top" else ROWS
                opened.wait(f"document.querySelector('#list .row[aria-selected=true]')?.ariaRowIndex === '{last}'")
            page.locator("#list").hover()
            before, step = page.evaluate(first), -6 if place == "end" else 6
            page.mouse.wheel(0, 22 * step)  # rows of 22 pixels
            opened.wait(f"{first} === {before + step}")
            seen = page.evaluate(rows)
            assert [index for index, _ in seen] == list(range(seen[0][0], seen[0][0] + len(seen)))
            assert all(text == str(index - 1) for index, text in seen)
        # The largest of a column at once, whatever is sorted behind it; the last filter counts.
        page.locator("#head button", has_text="exchange").click()
        opened.wait(f"document.querySelector('#head [data-id=exchange]').ariaSort === 'descending' && {first} === 1")
        opened.applied('client_id ~ "1"', "api == Produce", "exchange < 7")
        opened.total("7")
        assert opened.complaints == []


def test_many_exchanges_are_bands_that_lead_to_their_arrows(chromium: Any, hostile: Place) -> None:
    with Look(chromium, hostile)("above=none", "3,000") as opened:
        page = opened.page
        page.keyboard.press("l")
        page.locator("#drawn", has_text="3,000 exchanges as bands").wait_for()
        page.keyboard.press("Home")
        page.keyboard.press("j")
        page.locator("#drawn", has_text="exchanges, 0 with errors; Enter: their arrows").wait_for()
        page.keyboard.press("Enter")
        page.locator("#drawn", has_text="of 3,000 exchanges").wait_for()
        page.keyboard.press("Backspace")
        page.locator("#drawn", has_text="3,000 exchanges as bands").wait_for()


def test_one_clock_for_all_moments_of_the_page(look: Look, txn: Asking) -> None:
    began = str(np.datetime64(txn("rows", count=1)["columns"]["request_time"][0], "us"))[11:]
    with look("above=heat") as opened:
        page = opened.page
        first = page.locator("#list .row [data-id=time]").first
        assert first.inner_text() == "0.000092"
        page.keyboard.press("u")
        page.locator("#clock[aria-pressed=true]").wait_for()
        opened.wait(f"document.querySelector('#list .row [data-id=time]').textContent === '{began}'")
        page.keyboard.press("o")
        page.locator("#other .row [data-id=timestamp]", has_text="01:49:14.630000").first.wait_for()
        page.keyboard.press("l")
        page.keyboard.press("t")
        page.locator("#drawn", has_text="tracks by").wait_for()
        page.keyboard.press("ArrowRight")
        page.locator("#drawn", has_text=" UTC, longest").wait_for()
        page.reload()
        page.locator("#clock[aria-pressed=true]").wait_for()
        page.locator("#drawn", has_text="tracks by").wait_for()
        page.locator("#clock").click()
        page.locator("#timeline").focus()
        page.locator("#drawn", has_text="tracks by").wait_for()
        page.keyboard.press("ArrowRight")
        page.locator("#drawn", has_text=" s, longest").wait_for()


def test_details_are_open_while_an_exchange_is_chosen_and_panels_leave_the_result(look: Look) -> None:
    with look("above=none", width=1300) as opened:
        page = opened.page
        assert not page.locator("#detail").is_visible()
        page.locator("#list .row:visible").last.click()
        page.locator("#detail").wait_for()
        opened.drawn()
        assert page.locator('#list .row[aria-selected="true"]').is_visible()  # half the list is left
        page.keyboard.press("i")
        page.locator("#findings article").first.wait_for()
        opened.wait("!document.querySelector('#head [data-id=request_bytes]')")
        result = page.locator("#head [data-id=result]").bounding_box()
        panel = page.locator("#findings").bounding_box()
        assert result["x"] + result["width"] <= panel["x"]
        footer = page.locator("#status").bounding_box()
        assert panel["y"] + panel["height"] == pytest.approx(footer["y"], abs=2)  # the full height
        page.keyboard.press("Escape")
        page.locator("#detail").wait_for(state="hidden")
        page.go_back()
        page.locator("#detail").wait_for()
        page.locator("#close").click()
        page.locator("#detail").wait_for(state="hidden")
        opened.wait("document.activeElement.id === 'list'")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
def test_a_browser_without_the_token_is_asked_for_it(
    chromium: Any, txn: Asking, tmp_path: Path, width: int, scheme: str
) -> None:
    folder = Path(os.environ.get("KWIRE_SCREENSHOTS", tmp_path))
    with served(txn.view) as (address, token):
        context = chromium.new_context(viewport={"width": width, "height": 600}, color_scheme=scheme)
        page = context.new_page()
        assert page.goto(address).status == 403
        field = page.get_by_label("The secret in the file of --token-file")
        assert field.get_attribute("type") == "password"
        page.screenshot(path=folder / f"view-token-{width}-{scheme}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []
        page.keyboard.insert_text("another")  # the field has the focus
        page.keyboard.press("Enter")
        field.wait_for()
        field.fill(token)
        page.get_by_role("button", name="open").click()
        page.locator("#count", has_text="188 of 188").wait_for()
        assert token not in page.url
        context.close()


def test_wireshark_is_opened_by_a_command_that_is_copied(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with look("filter=api+%3D%3D+Fetch", "11") as opened:
        page = opened.page
        for number, clicked in ((11, "#exporting"), (1, "")):
            if clicked:
                page.locator(clicked).click()
            else:
                page.locator("#list .row").first.click(button="right")
            page.get_by_role("menuitem", name="open in Wireshark").click()
            page.locator("#status", has_text="connection ==" if number == 1 else "api == Fetch").wait_for()
            text = page.locator("#status").inner_text().removeprefix("copied: ")
            program, *arguments = shlex.split(text.removesuffix(" && wireshark exchanges.pcapng"))
            assert program == "kwire"
            assert parser.main(arguments) == 0
            assert len(kwire.analyze("exchanges.pcapng").exchanges) == number


def test_two_tabs_look_at_one_server(look: Look) -> None:
    with look("filter=api+%3D%3D+Fetch", "11") as opened:
        other = opened.context.new_page()
        other.goto(f"{look.place[0]}?filter=api+%3D%3D+InitProducerId")  # the cookie is enough
        other.locator("#count", has_text=re.compile("^4 of ")).wait_for()
        opened.page.reload()
        opened.total("11")


def test_every_key_is_listed_and_every_region_has_a_name(look: Look) -> None:
    """The accessibility tree equals the stored snapshots."""
    with look("filter=api+%3D%3D+Heartbeat+or+api+%3D%3D+FindCoordinator&above=none", "", height=1600) as opened:
        page = opened.page
        page.locator("#list .row").first.click()
        page.locator("#request .row", has_text="clientId").wait_for()
        source = (PAGE / "view.js").read_text(encoding="utf-8")
        bound = {key for keys in re.findall(r"\{ keys: \[([^]]*)\]", source) for key in re.findall(r'"([^"]+)"', keys)}
        page.keyboard.press("?")
        listed = set(" ".join(page.locator("#keys dt").all_inner_texts()).replace(",", " , ").split())
        assert {key for key in bound if key not in listed} == {"Escape", "\\\\"}  # shown as Esc and as one stroke
        assert {"Esc", "\\"} <= listed
        page.keyboard.press("Escape")
        for region in ("#tabs", "#head", "#saved", "#request", "#response"):
            snapshot = SNAPSHOTS / f"{region[1:]}.aria"
            assert page.locator(region).aria_snapshot() == snapshot.read_text(encoding="utf-8").strip(), snapshot.name
        unnamed = page.evaluate("""() =>
            [...document.querySelectorAll('button, input, canvas, [role=grid], [role=tree]')]
            .filter(one => one.checkVisibility() && !(one.ariaLabel || one.textContent.trim()))
            .map(one => one.outerHTML)""")
        assert unnamed == []


@pytest.mark.parametrize(("width", "scheme"), [(1500, "dark"), (390, "light")])
def test_both_themes_are_readable_and_a_phone_shows_a_message(look: Look, width: int, scheme: str) -> None:
    with look("filter=api+%3D%3D+Fetch", "11", width=width, scheme=scheme) as opened:
        page = opened.page
        page.locator("#list .row").first.click()
        page.locator("#request .row", has_text="maxWaitMs").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('#scroll'))")
        poor = page.evaluate(CONTRAST)
        assert poor == []
        shown = page.locator("#main").aria_snapshot()
        assert "grid" in shown
        assert 'tree "request"' in shown


def test_lists_lead_to_exchanges_and_marks_colours_and_followed_ones_are_a_key_away(look: Look) -> None:
    with look("above=none") as opened:
        page = opened.page
        for _ in range(3):
            page.keyboard.press("o")  # records, frames, then connections
        page.locator("#status", has_text="connections").wait_for()
        page.locator("#other .row").first.wait_for()
        snapshot = (SNAPSHOTS / "connections.aria").read_text(encoding="utf-8").strip()
        assert page.locator("#others-head").aria_snapshot() == snapshot
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        opened.wait("new URLSearchParams(location.search).get('filter')?.startsWith('connection == ')")
        opened.wait("document.activeElement.id === 'list'")
        page.go_back()
        page.locator("#other .row").first.wait_for()
        page.get_by_role("tab", name="exchanges").click()
        opened.total("188")
        # A mark with a note, another, and from one to the other.
        page.locator("#list").focus()
        page.keyboard.press("j")
        page.keyboard.press("e")
        page.locator("#note-text").fill("odd <b>one</b>")
        page.get_by_role("button", name="keep").click()
        page.locator("#list .row > [title='marked: odd <b>one</b>']", has_text="◆").wait_for()
        page.locator("#list").focus()
        for _ in range(5):
            page.keyboard.press("j")
        page.keyboard.press("m")
        opened.wait(
            "[...document.querySelectorAll('#list .row > :first-child')]"
            ".filter(one => one.textContent.includes('◆')).length === 2"
        )
        page.keyboard.press("[")
        opened.wait("document.querySelector('#list .row[aria-selected=true]')?.ariaRowIndex === '1'")
        # What is filtered now gets a colour and a letter, also where it is not filtered any more.
        page.locator("#filter").fill("api == InitProducerId")
        page.keyboard.press("Enter")
        opened.total("4")
        page.locator("#colouring").click()
        page.get_by_role("button", name="colour api == InitProducerId").click()
        page.locator("#rules code", has_text="api == InitProducerId").wait_for()
        page.keyboard.press("Escape")
        page.locator("#list .row.rule-0", has_text="a").first.wait_for()
        # All of a connection.
        page.locator("#list").focus()
        page.keyboard.press("j")
        page.keyboard.press("Shift+F")
        page.get_by_role("menuitem", name="follow connection").click()
        opened.wait("new URLSearchParams(location.search).get('filter')?.startsWith('connection == ')")
        assert page.locator("b", has_text="one").count() == 0


def test_a_ladder_and_a_timeline_lead_to_exchanges_and_what_is_chosen_becomes_a_file(look: Look) -> None:
    with look("above=none&filter=api+%3D%3D+Produce", "") as opened:
        page = opened.page
        page.locator("#count", has_text="of 188").wait_for()
        page.keyboard.press("l")
        page.locator("#drawn", has_text="arrows: requests").wait_for()
        page.keyboard.press("j")
        page.locator("#drawn", has_text="Produce from client 127.0.0.1 lab-idem to broker 1, answered after").wait_for()
        opened.wait("document.querySelector('#facts').textContent.startsWith('Produce')")
        page.keyboard.press("t")
        page.locator("#drawn", has_text="tracks by connection").wait_for()
        page.keyboard.press("y")
        page.locator("#drawn", has_text="tracks by client").wait_for()
        page.keyboard.press("ArrowRight")
        page.locator("#drawn", has_text="s, longest").wait_for()
        page.keyboard.press("Enter")
        opened.wait("new URLSearchParams(location.search).get('filter')?.includes('client_id == ')")
        page.keyboard.press("Escape")
        opened.wait("document.activeElement.id === 'list'")
        page.keyboard.press("x")
        with page.expect_download() as download:
            page.get_by_role("menuitem", name="rows as CSV").click()
        total = page.locator("#count").inner_text().split(" of ")[0]
        assert len(Path(download.value.path()).read_bytes().splitlines()) == int(total) + 1


def test_an_export_that_is_refused_says_why(chromium: Any, tmp_path: Path) -> None:
    """The browser itself only reports that a download failed."""
    capture = tmp_path / "capture.pcap"
    shutil.copy(TXN, capture)
    with contextlib.ExitStack() as stack, served(viewed(stack, capture)) as place, Look(chromium, place)() as opened:
        page = opened.page
        capture.unlink()
        page.keyboard.press("x")
        page.get_by_role("menuitem", name="pcapng").click()
        page.locator("#status", has_text="no such file").wait_for()
        opened.complaints.clear()  # the browser's own line of an answer that is an error


def test_what_was_not_analysed_says_so_and_the_rest_works(chromium: Any, tmp_path: Path) -> None:
    """A dataset of `--no-meaning`: no parts of latencies, no findings."""
    assert parser.main(["analyze", str(TXN), "--no-meaning", "--keep-bytes", "-o", str(tmp_path / "data")]) == 0
    with contextlib.ExitStack() as stack, served(viewed(stack, tmp_path / "data")) as address:
        with Look(chromium, address)("beside=findings") as opened:
            opened.page.locator("#findings", has_text="The dataset was made without analysis.").wait_for()
        with Look(chromium, address)("above=heat") as opened:
            opened.page.locator("#cell", has_text="latency (log scale) of 1").wait_for()
            opened.page.keyboard.press("j")
            opened.page.locator("#request .row", has_text="clientId").wait_for()


def test_first_exchanges_are_shown_while_the_rest_is_analysed(chromium: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(TXN)], options_of(), stack)
        stack.callback(slow.go_on.set)
        opened = Opened(chromium, stack.enter_context(served(current)))
        opened.page.locator("#progress", has_text="analysing").wait_for()
        opened.page.locator("#list .row").nth(2).click()
        chosen = opened.chosen()
        slow.go_on.set()
        opened.page.locator("#progress").wait_for(state="hidden")
        opened.total("188")
        assert opened.chosen() == chosen
        opened.page.keyboard.press("n")
        opened.page.locator("#findings [aria-current=true]").wait_for()
        assert opened.complaints == []
        opened.context.close()


def test_first_exchanges_of_a_dataset_are_shown_while_its_columns_are_made(
    chromium: Any, in_two_steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), PartialViews.progress

    def slowly(self_: PartialViews, *how: Any) -> None:
        real(self_, *how)
        assert how[1] < 20 or go_on.wait(60)

    monkeypatch.setattr(PartialViews, "progress", slowly)
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([in_two_steps], options_of(), stack)
        stack.callback(go_on.set)
        with Look(chromium, stack.enter_context(served(current)))(total="20") as opened:
            progress = opened.page.locator("#progress", has_text=f" {100 * 20 // columns.COUNT} %: the first 20")
            progress.filter(has_text="preparing the dataset's columns").wait_for()
            go_on.set()
            opened.page.locator("#progress").wait_for(state="hidden")
            opened.total("188")


def test_a_dataset_that_is_replaced_and_a_full_disk_are_told_and_the_page_lives(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    dataset = tmp_path / "dataset"
    with contextlib.ExitStack() as stack, io.StringIO() as output, contextlib.redirect_stdout(output):
        assert parser.main(["analyze", str(TXN), "-o", str(dataset), "--keep-bytes"]) == 0
        view = viewed(stack, dataset, cache=True)
        place = stack.enter_context(served(view))
        with Look(chromium, place)() as opened:
            page = opened.page
            page.locator("#list .row").first.click()
            page.locator("#request .row", has_text="clientId").wait_for()
            # Another one takes its place: its messages are gone, and what is mapped stays.
            shutil.rmtree(dataset)
            assert parser.main(["analyze", str(TXN), "-o", str(dataset), "--filter", "api == Fetch"]) == 0
            page.keyboard.press("End")
            page.locator("#status.bad", has_text="dataset").wait_for()
            page.locator("#filter").fill("api == InitProducerId")
            page.keyboard.press("Enter")
            opened.total("4")

            def full(*_: Any, **__: Any) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            with monkeypatch.context() as patch:
                patch.setattr("kwire.reports.view.notes.os.open", full)
                page.locator("#list").focus()
                page.keyboard.press("m")
                page.locator("#status.bad", has_text="notes cannot be stored: No space left on device").wait_for()
            assert all("400" in complaint for complaint in opened.complaints)
            opened.complaints.clear()


def test_an_analysis_for_which_the_disk_is_full_leaves_what_was_read(
    chromium: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch, UsageError("the disk is full", "make room"))
    with contextlib.ExitStack() as stack:
        current = open_view.begin_view([str(TXN)], options_of(), stack)
        stack.callback(slow.go_on.set)
        with Look(chromium, stack.enter_context(served(current)))(total="") as opened:
            opened.page.locator("#list .row").first.wait_for()
            slow.go_on.set()
            opened.page.locator("#progress.bad", has_text="ended early: the disk is full — make room").wait_for()
            opened.page.keyboard.press("j")
            opened.page.locator("#request .row", has_text="clientId").wait_for()


def test_a_server_that_is_gone_leaves_a_page_that_says_so(chromium: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "gone")
    forged.exchange("Fetch")
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as server:
        opened = Opened(chromium, server.enter_context(served(viewed(stack, forged.write()))))
        opened.total("1")
        server.close()
        opened.page.locator("#filter").fill("api == Produce")
        opened.page.keyboard.press("Enter")
        opened.page.locator("#status", has_text="does not answer any more").wait_for()
        assert opened.page.locator("#list .row:visible").count() == 1
        opened.context.close()
