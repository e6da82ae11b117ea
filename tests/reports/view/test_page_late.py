"""Late answers: an answer to an earlier action never undoes a later one.

Each answer in question is kept back until the later thing is done. All tests of the page with late answers: `browsing`.

Proves: reports/view/page (view.js, filter.js, detail.js, exchanges.js, notes.js)
"""

from __future__ import annotations

from tests.reports.view.browsing import Late, Look


def test_a_word_on_what_was_typed_does_not_hide_what_is_said_of_the_whole(look: Look) -> None:
    with look("above=none") as opened:
        page = opened.page
        late = Late(page, "check")
        page.keyboard.press("/")
        page.keyboard.insert_text("latencyy > 1ms")
        late.wait(1)
        page.keyboard.press("Enter")
        page.locator("#mistake", has_text="did you mean `latency`").wait_for()
        late.go()
        assert page.locator("#mistake").is_visible()
        assert all("400" in complaint for complaint in opened.complaints)  # the browser logs answers that refuse
        opened.complaints.clear()


def test_a_page_says_that_it_waits_for_the_first_exchanges(look: Look) -> None:
    """A first run compiles for a minute, and the page used to be empty meanwhile."""
    with look("above=none") as opened:
        late = Late(opened.page, "info")
        opened.page.reload()
        opened.page.locator("#status", has_text="opening").wait_for()
        late.go()
        opened.total("188")
        opened.wait("document.querySelector('#status').textContent === ''")


def test_messages_that_come_late_do_not_overwrite_what_was_said_meanwhile(look: Look) -> None:
    with look("above=none&filter=api+%3D%3D+ApiVersions", "") as opened:
        page = opened.page
        late = Late(page, "message")
        page.keyboard.press("n")  # evidence, which the filter does not let through
        late.wait(2)
        page.keyboard.press("c")
        page.locator("#status", has_text="kwire show").wait_for()
        late.go()
        page.locator("#request .row", has_text="clientId").wait_for()
        assert "kwire show" in page.locator("#status").inner_text()
        # The next one is chosen, and then a row: the way to the next ends there.
        late = Late(page, "exchange")
        page.keyboard.press("n")
        late.wait(1)
        page.locator("#list .row").nth(2).click()
        chosen = opened.chosen()
        page.locator("#request .row", has_text="clientSoftwareName").wait_for()
        address = page.url
        late.go()
        assert (opened.chosen(), page.url) == (chosen, address)


def test_nothing_that_is_asked_for_while_a_filter_is_on_its_way_is_lost(look: Look) -> None:
    with look("above=none") as opened:
        page = opened.page
        marked = page.locator('#list .row[aria-rowindex="12"]', has_text="◆")
        page.locator('#list .row[aria-rowindex="12"]').click()
        late = Late(page, "rows")
        page.locator("#filter").fill("api == InitProducerId")
        page.keyboard.press("Enter")
        late.wait(1)
        page.keyboard.press("m")  # before the filter is there
        marked.wait_for()
        page.locator("#head button", has_text="latency").click()
        late.wait(2)
        page.locator('#list .row[aria-rowindex="13"]').click()  # of those that are still there
        late.go()
        opened.total("4")
        opened.wait("new URLSearchParams(location.search).get('sort') === 'latency_us'")
        assert "filter=api" in page.url
        page.locator("#status", has_text="the filter excludes the chosen exchange").wait_for()
        page.go_back()
        opened.total("188")
        assert page.locator('#list .row[aria-selected="true"]').get_attribute("aria-rowindex") == "13"
        page.keyboard.press("k")
        page.keyboard.press("m")
        marked.wait_for(state="detached")


def test_rows_of_the_list_before_do_not_come_into_the_one_that_is_shown(look: Look) -> None:
    with look("above=none&filter=api+%3D%3D+InitProducerId", "4") as opened:
        page = opened.page
        page.locator("#filter").fill("")
        page.keyboard.press("Enter")
        opened.total("188")
        late = Late(page, "rows")
        page.go_back()
        late.wait(2)  # of the list that comes, and what is in sight of the one that is still there
        late.go()
        opened.total("4")
        opened.drawn()
        shown = page.locator("#list .row:visible [data-id=api]").all_inner_texts()
        assert [text.split()[0] for text in shown] == 4 * ["InitProducerId"]
