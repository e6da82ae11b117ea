"""The report in a real browser: a phone, legends, what is copied. Proves `page/report.html`, `.css`, `.js`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.reports.embedded import engine
from kwire.reports.page import rendering
from kwire.reports.page.report import make
from tests.reports.view.browsing import CONTRAST, launched
from tests.shared import SAMPLES

OVERLAPS = """[...document.querySelectorAll('.lane.axis .line span')].filter(one => one.offsetWidth)
    .map(one => one.getBoundingClientRect()).filter((one, at, all) => at && all[at - 1].right > one.left)"""
"""Script: the times below events that stand on the one before."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a capture with many findings."""
    folder = tmp_path_factory.mktemp("report")
    analyzer.analyze(SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap", out=folder / "data")
    with engine.opened([folder / "data"]) as embedded:
        (folder / "report.html").write_text(rendering.as_html(make(embedded, ("sasl",), None, "1")), encoding="utf-8")
    return folder / "report.html"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
def test_a_report_fits_and_is_readable(chromium: Any, page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints: list[str] = []
    shown = context.new_page()
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.on("console", lambda message: complaints.append(message.text))
    shown.goto(page.as_uri())
    shown.locator(".u-legend .u-value").first.wait_for()
    shown.wait_for_timeout(100)
    folder = Path(os.environ.get("KWIRE_SCREENSHOTS", tmp_path))
    shown.screenshot(path=folder / f"report-{width}-{scheme}.png", full_page=True)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.evaluate(CONTRAST) == []
    assert shown.evaluate(OVERLAPS) == []
    values = shown.locator("#chart-latency .u-value, #latency .u-value").all_inner_texts()
    assert values
    assert all(value not in ("", "–", "--") for value in values)
    if width == 390:
        assert shown.evaluate("document.documentElement.scrollHeight") < 10_000
        table = shown.locator("#latency .rows").first
        assert table.get_attribute("open") is None
        table.locator("summary").click()
        assert table.locator("tbody tr").first.is_visible()
    else:
        high = shown.evaluate(
            "Math.max(...[...document.querySelectorAll('#clients tbody tr')].map(row => row.offsetHeight))"
        )
        assert high < 60  # two lines of a long value
    group = shown.locator(".findings li", has_text="authentication-failed").locator("details")
    assert "sasl-bob-PLAIN" in group.locator("summary").inner_text()
    group.locator("summary").click()
    assert (
        group.locator("code.command").first.inner_text().startswith("kwire show capture.pcap --filter 'connection ==")
    )
    assert complaints == []
    context.close()
