"""The page in a real browser: Debian's Chromium, driven by Playwright. Nothing of it is downloaded.

The dataset is hostile: client ids, topics, groups and names of files try to become markup, script, or Markdown.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markupsafe
import pytest

from kwire.reports.embedded import engine
from kwire.reports.page import rendering, sections
from kwire.reports.page.report import CONF, Report, make
from kwire.reports.spark.engine import Spark
from tests.reports.forging import Forged, at

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TURNED = "user\u202egnp.exe"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def busy(path: Path) -> Path:
    """Two minutes of traffic between clients with hostile names."""
    forged = Forged(path)
    for number in range(400):
        forged.exchange(
            ("Produce", "Fetch", "Metadata", "Heartbeat")[number % 4],
            latency_ms=1 + number % 37,
            second=number * 0.3,
            client_id=(HOSTILE, TURNED, "app", "long-" * 2000)[number % 3 if number % 50 else 3],
            topics=[HOSTILE, "orders"],
            group_id="| group |" if number % 4 == 3 else None,
            error="NOT_LEADER_OR_FOLLOWER" if number % 29 == 0 else None,
            api_version=9,
        )
    forged.connection(
        client_id=HOSTILE,
        software_name=HOSTILE,
        software_version="1",
        requests=400,
        payload_bytes=10,
        decoded_bytes=10,
        client_packets=500,
        broker_packets=500,
    )
    forged.add("leaders", time=at(0), topic=HOSTILE, partition=0, leader=1)
    forged.add("leaders", time=at(9), topic=HOSTILE, partition=0, leader=2)
    return forged.write()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(busy(tmp_path_factory.mktemp("page") / "busy"))


@pytest.fixture(scope="module")
def report(dataset: str) -> Report:
    with engine.opened([dataset]) as embedded:
        return make(embedded, (HOSTILE,), "4.0", "1.2.3")


@pytest.fixture(scope="module")
def page_file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(rendering.as_html(report), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium to look at reports with: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """The page in one width and theme, and all that it complained of or asked a network for."""

    def __init__(self, browser: Any, file: Path, width: int, scheme: str) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "request", lambda request: self.complaints.append(request.url) if request.url[:4] == "http" else None
        )
        self.page.goto(file.as_uri())
        self.page.wait_for_function("document.querySelectorAll('.plot canvas').length > 3")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_charts_are_drawn_nothing_overflows_nobody_complains(
    browser: Any, page_file: Path, width: int, scheme: str
) -> None:
    opened = Opened(browser, page_file, width, scheme)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    # A chart that drew has pixels of more than one colour.
    colours = page.evaluate(
        """() => [...document.querySelectorAll('.plot canvas')].map(canvas => {
             const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
             const seen = new Set();
             for (let i = 0; i < data.length; i += 4) if (data[i + 3]) seen.add(data.slice(i, i + 3).join());
             return seen.size; })"""
    )
    assert len(colours) == 4
    assert min(colours) > 5
    assert page.evaluate("document.title") != "owned"
    assert page.locator("img").count() == 0
    assert opened.complaints == []
    opened.context.close()


def test_the_theme_changes_by_hand_and_charts_with_it(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, 1280, "light")
    light = opened.page.locator(".plot canvas").first.evaluate("canvas => canvas.toDataURL()")
    opened.page.click("#theme")
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert opened.page.locator(".plot canvas").first.evaluate("canvas => canvas.toDataURL()") != light
    opened.context.close()


def test_a_chart_tells_values_under_the_mouse_and_zooms(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, 1280, "light")
    page = opened.page
    over = page.locator("#chart-load .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    values = page.locator("#chart-load .u-legend .u-value").all_inner_texts()
    assert any(value.endswith("/s") for value in values), values
    image = "() => document.querySelector('#chart-load canvas').toDataURL()"
    before = page.evaluate(image)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 100, steps=5)
    page.mouse.up()
    page.wait_for_function("before => document.querySelector('#chart-load canvas').toDataURL() !== before", arg=before)
    page.select_option("#chart-latency select", "Fetch")
    opened.context.close()


def test_tables_sort_and_filter(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, 1280, "light")
    page = opened.page
    table = page.locator("#slowest_exchanges")
    head = table.locator("th", has_text="latency")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    column = [text.strip() for text in table.locator("th").all_inner_texts()].index("latency")
    shown = table.locator(f"tbody tr td:nth-child({column + 1})").evaluate_all("cells => cells.map(c => +c.dataset.s)")
    assert shown == sorted(shown)
    table.locator("input").fill("fetch")
    visible = table.locator("tbody tr:visible")
    assert 0 < visible.count() < len(shown)
    assert all("Fetch" in text for text in visible.all_inner_texts())
    opened.context.close()


def test_events_are_marks_in_lanes(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, 390, "light")
    lanes = opened.page.locator("#chart-events .lane:not(.axis)")
    assert [text.split()[0] for text in lanes.all_inner_texts()] == ["leader", "errors"]
    leader = lanes.first.locator("i").first
    assert leader.get_attribute("title").startswith("03:04:14")  # nine seconds after the first
    assert leader.get_attribute("title").endswith("-0 1 to 2")
    box, line = leader.bounding_box(), lanes.first.locator(".line").bounding_box()
    assert box["x"] < line["x"] + line["width"] / 4
    opened.context.close()


def test_a_table_that_does_not_fit_says_what_is_to_the_right(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, 1280, "light")
    table = opened.page.locator("#slowest_exchanges")
    table.scroll_into_view_if_needed()
    assert table.locator(".rightward").inner_text().endswith("more columns to the right →")
    table.locator(".wrap").evaluate("wrap => { wrap.scrollLeft = wrap.scrollWidth }")
    table.locator(".rightward").wait_for(state="hidden")
    assert not opened.page.locator("#latency_by_api .rightward").is_visible()
    opened.context.close()


def test_on_a_phone_numbers_come_before_names_and_the_name_stays_in_sight(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, 390, "light")
    table = opened.page.locator("#latency_by_client")
    table.locator(".rows > summary").click()  # a phone begins with tables closed
    heads = table.locator("th")
    numbers = heads.evaluate_all("heads => heads.map(head => head.matches('.n, .spread'))")
    assert numbers == sorted(numbers, reverse=True)
    assert heads.first.inner_text().strip() == "exchanges"
    name = table.locator("tbody tr").first.locator("td.who").bounding_box()
    assert name["x"] + name["width"] <= 390
    # Sorting goes by the column that one sees.
    heads.first.locator("button").click()
    shown = table.locator("tbody tr td:first-child").evaluate_all("cells => cells.map(c => +c.textContent)")
    assert shown == sorted(shown, reverse=True)
    opened.context.close()


def test_it_prints_on_white_without_what_only_a_screen_can_do(browser: Any, page_file: Path, tmp_path: Path) -> None:
    opened = Opened(browser, page_file, 1280, "dark")
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("nav").is_visible()
    assert not opened.page.locator("#theme").is_visible()
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.page.pdf(path=str(tmp_path / "report.pdf"))
    opened.context.close()


# --- without a browser ------------------------------------------------------------------------------------------------


def test_the_page_holds_hostile_text_as_text(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "\u202e" not in text
    assert "user\\u202egnp.exe" in text
    assert len(text) < 1_000_000  # a client id of 10,000 characters is cut
    assert "Content-Security-Policy" in text


def test_every_table_shows_the_sql_that_made_it(report: Report, page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    shown = [answer for section in sections.SECTIONS for _, answer in report.tables(section) if answer.rows]
    assert len(shown) > 12
    for answer in shown:
        assert f'id="{answer.question.name}"' in text
        assert markupsafe.escape(answer.question.shown) in text


def test_a_chart_of_which_one_is_chosen_says_what_of(page_file: Path) -> None:
    chosen = {chart.name: chart.choice for chart in sections.CHARTS.values() if chart.kind == "choice"}
    assert chosen == {"latency": "API", "end_to_end": "reader", "lag": "group"}
    figure = page_file.read_text(encoding="utf-8").split('id="chart-latency"')[1].split("</figure>")[0]
    assert "<label>API <select>" in figure


def test_parts_of_no_bytes_are_left_out(report: Report) -> None:
    assert [row["bytes"] for row in report.answers["coverage"].dicts()] == [10]


def test_markdown_takes_hostile_text_literally(report: Report) -> None:
    text = rendering.as_markdown(report)
    assert "<img" not in text.replace("\\<", "")
    assert "\\| group \\|" in text
    table = text.split("### By API")[1].split("\n\n")[2].splitlines()
    assert table[0].startswith("| api | exchanges | errors |")
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_json_holds_everything(report: Report) -> None:
    whole = json.loads(rendering.as_json(report))
    assert whole["first_time"] == "2026-01-02T03:04:05.000000Z"
    assert {row["api"] for row in whole["answers"]["latency_by_api"]["rows"]} == {
        "Produce",
        "Fetch",
        "Metadata",
        "Heartbeat",
    }
    assert whole["findings"][0].keys() == {
        "subject",
        "verdict",
        "text",
        "advice",
        "evidence",
        "commands",
    }
    assert any(row["client_id"] == TURNED for row in whole["answers"]["clients_seen"]["rows"])


def test_spark_makes_the_same_report(spark: Any, dataset: str, report: Report) -> None:
    reference = make(Spark(spark, [dataset], conf=CONF), (HOSTILE,), "4.0", "1.2.3")
    assert rendering.as_json(reference) == rendering.as_json(report)


def test_an_empty_dataset_gives_a_page_that_says_so(tmp_path: Path) -> None:
    with engine.opened([Forged(tmp_path / "empty").write()]) as embedded:
        report = make(embedded, ("empty",), None, "1")
    page = rendering.as_html(report)
    assert "No Kafka traffic was found in the capture." in page
    assert "No request names a group." in page
    assert rendering.as_markdown(report).count("\n## ") == len(sections.SECTIONS)
    json.loads(rendering.as_json(report))
