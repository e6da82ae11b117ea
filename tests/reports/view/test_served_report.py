"""The report that `kwire view` serves: made once, under the server's policy, and its evidence leads into the page.

Proves: reports/view/sql_questions, reports/page/rendering
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from kwire.reports import engines
from kwire.reports.view.answers import answer_call
from tests.reports.view.browsing import Look
from tests.reports.view.conftest import Asking


def test_a_report_is_made_once_when_all_is_read(txn: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Asking(replace(txn.view, questions=None))  # type: ignore[arg-type]
    answer = answer_call(fresh.view, "report", {})
    assert (answer.status, answer.type) == (200, "text/html; charset=utf-8")
    page = answer.content.decode()
    assert "Health at a glance" in page
    digest = re.search(r"script-src ('sha256-[^']+')", page)
    assert digest is not None
    assert f"script-src {digest[1]}; base-uri 'none'" in answer.headers["Content-Security-Policy"]
    monkeypatch.setattr(engines, "installed", lambda: False)
    assert fresh.raw("report") == answer.content  # cached
    growing = replace(fresh.view, questions=None, growing=True)  # type: ignore[arg-type]
    assert "still being read" in Asking(growing).refused("report")["message"]
    another = replace(fresh.view, questions=None)  # type: ignore[arg-type]
    assert "kwire[sql]" in Asking(another).refused("report")["hint"]


def test_the_evidence_of_a_report_leads_into_the_page(look: Look) -> None:
    with look("above=none") as opened:
        opened.page.locator("#exporting").click()
        with opened.context.expect_page() as coming:
            opened.page.get_by_role("menuitem", name="report on all exchanges").click()
        report = coming.value
        complaints: list[str] = []
        report.on("console", lambda message: complaints.append(message.text))
        report.on("pageerror", lambda error: complaints.append(str(error)))
        report.locator(".u-legend .u-value").first.wait_for(state="attached")
        report.locator("#theme").click()  # its script runs under the server's policy, too
        assert report.evaluate("document.documentElement.dataset.theme") == "dark"
        command = report.locator(".shown", has=report.locator("a")).first
        expression = shlex.split(command.locator("code").inner_text())[-1]
        command.locator("a").click()
        report.locator("#count", has_text=re.compile("^1 of ")).wait_for()
        assert report.locator("#filter").input_value() == expression
        assert complaints == []
