"""Questions in SQL on the page: kwire's views, and those of `--views DIR`.

Proves: reports/view/sql_questions, own_views
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kwire
from kwire.analyzer.cli import parser
from kwire.reports import catalog, engines, own_views
from kwire.reports.view import sql_questions
from kwire.reports.view.sql_questions import SqlQuestions
from tests.reports.view.browsing import Look
from tests.reports.view.conftest import TXN, Asking, served, viewed
from tests.reports.view.test_server import Client
from tests.shared import ROOT

VIEWS = ROOT / "tests" / "analyzer" / "extension" / "views"
MARKUP = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """The sample with transactions, and questions of a folder: a good one, a broken one, one with hostile text."""
    folder = tmp_path_factory.mktemp("queries")
    (folder / "busy_clients.sql").write_text((VIEWS / "busy_clients.sql").read_text())
    (folder / "broken.sql").write_text(
        "-- Does it break?\nSELECT CAST(concat(client_id, 'x') AS INT) AS n FROM exchanges"
    )
    (folder / "hostile.sql").write_text(
        f"-- Is {MARKUP} text?\n-- name: as {MARKUP}.\n"
        f"SELECT '{MARKUP}' AS name, 9007199254740993 AS large, array(1, 2) AS list, request_time, latency_us, "
        "CAST(NULL AS STRING) AS nothing, CAST(latency_us AS DOUBLE) AS real_us FROM exchanges"
    )
    kwire.analyze(TXN, folder / "data")
    with own_views.opened(folder), contextlib.ExitStack() as stack:
        yield Asking(viewed(stack, folder / "data"))


def test_questions_are_listed_those_of_the_folder_first(questions: Asking) -> None:
    answer = questions("table", name="questions", count=1000)
    names = answer["columns"]["view"]
    assert names[:3] == ["broken", "busy_clients", "hostile"] == sorted(names[:3])
    assert answer["opens"] == names
    assert answer["total"] == len(names) == len(catalog.shipped()) + 3
    assert answer["columns"]["from"] == ["--views"] * 3 + ["kwire"] * len(catalog.shipped())
    assert dict(zip(names, answer["columns"]["question"], strict=True))["busy_clients"] == "Which clients ask most?"
    assert questions("table", name="questions", start=3, count=1)["opens"] == [names[3]]


@pytest.mark.parametrize("name", ["busy_clients", "latency_by_api"])
def test_an_answer_is_that_of_kwire_sql(questions: Asking, name: str) -> None:
    expected = kwire.sql(str(questions.view.tables.dataset.path), f"SELECT * FROM {name}", engine="embedded")
    answer = questions("table", name="answer", question=name, count=1000)
    assert len(expected) > 3
    assert answer["total"] == len(expected)
    assert not answer["more"]
    assert answer["columns"] == expected.to_pydict()
    assert [column["about"] for column in answer["about"]] == list(catalog.view(name).columns.values())
    window = questions("table", name="answer", question=name, start=2, count=1)
    assert window["columns"] == expected.slice(2, 1).to_pydict()


def test_an_answer_is_sorted_as_other_lists(questions: Asking) -> None:
    for sort, reverse in (("bytes", True), ("-bytes", False)):
        shown = questions("table", name="answer", question="busy_clients", sort=sort)["columns"]["bytes"]
        assert shown == sorted(shown, reverse=reverse)
        assert len(set(shown)) > 1
    latencies = questions("table", name="answer", question="hostile", sort="-latency_us", count=1000)
    assert latencies["columns"]["latency_us"][-1] is None  # one was not answered
    for sort in ("list", "nowhere"):
        assert "sort" in questions.refused("table", name="answer", question="hostile", sort=sort)["message"]


def test_values_are_fit_for_a_browser_and_hostile_text_is_text(questions: Asking) -> None:
    answer = questions("table", name="answer", question="hostile", count=1)
    kinds = {column["name"]: column["kind"] for column in answer["about"]}
    assert (kinds["request_time"], kinds["latency_us"], kinds["real_us"]) == ("time", "duration", "text")
    shown = {name: values[0] for name, values in answer["columns"].items()}
    assert (shown["name"], shown["nothing"]) == (MARKUP, None)
    assert (shown["large"], shown["list"]) == ("9007199254740993", "[1,2]")
    first = questions("rows", count=1)["columns"]
    assert (shown["request_time"], shown["latency_us"]) == (first["request_time"][0], first["latency_us"][0])
    assert shown["real_us"] == f"{first['latency_us'][0]:.1f}"


def test_rows_are_bounded_and_it_says_so(questions: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_questions, "MAX_ANSWER_ROWS", 3)
    fresh = Asking(replace(questions.view, questions=None))  # type: ignore[arg-type]
    answer = fresh("table", name="answer", question="busy_clients", count=1000)
    assert (answer["total"], answer["more"], len(answer["columns"]["bytes"])) == (3, True, 3)


def test_an_answer_is_asked_for_once_and_few_are_cached(questions: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    ask = sql_questions._ask

    def counted(path: Path, name: str) -> Any:
        calls.append(name)
        return ask(path, name)

    monkeypatch.setattr(sql_questions, "_ask", counted)
    monkeypatch.setattr(sql_questions, "MAX_ANSWERS", 2)
    fresh = SqlQuestions(questions.view.tables.dataset.path, True)
    for name in ("busy_clients", "throttled", "busy_clients", "retries", "throttled"):
        fresh.window(name, "", 0, 1)
    assert calls == ["busy_clients", "throttled", "retries", "throttled"]


def test_no_answer_is_a_line_with_a_hint(questions: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = questions.refused("table", name="answer", question="broken")
    assert broken["message"].startswith("broken cannot be answered here: ")
    assert "\n" not in broken["message"]
    assert "kwire sql DATASET" in broken["hint"]
    assert questions.refused("report")["message"].startswith("the report cannot be answered here: ")  # it has them all
    for unknown in ("", "exchanges", "SELECT 1", "busy_clients; DROP TABLE exchanges"):
        assert "unknown" in questions.refused("table", name="answer", question=unknown)["message"]
    fresh = replace(questions.view, questions=None, growing=True)  # type: ignore[arg-type]
    refused = Asking(fresh).refused("table", name="answer", question="busy_clients")
    assert "still being read" in refused["message"]
    monkeypatch.setattr(engines, "installed", lambda: False)
    missing = questions.refused("table", name="answer", question="retries")
    assert "not installed" in missing["message"]
    assert "kwire[sql]" in missing["hint"]


def test_pages_of_others_get_no_answer(questions: Asking) -> None:
    client = Client(questions)
    address = "/api/1/table?name=answer&question=busy_clients"
    assert client.get(address)[0] == 403
    client.get("/?token=s3cret-of-the-link")
    assert client.get(address, origin="http://127.0.0.1:1")[0] == 403
    assert client.get(address, sec_fetch_site="cross-site")[0] == 403
    assert client.get(address, method="POST")[0] == 405
    status, _, body = client.get(address)
    assert (status, json.loads(body)["question"]) == (200, "Which clients ask most?")


def test_a_folder_with_mistakes_is_refused_before_the_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.sql").write_text("-- Who?\nSELECT nothing FROM exchanges")
    with pytest.raises(SystemExit, match="2"):
        parser.main(["view", str(TXN), "--views", str(tmp_path), "--no-open"])
    out, err = capsys.readouterr()
    assert out == ""
    assert "a.sql: [UNRESOLVED_COLUMN" in err


def test_the_page_lists_questions_and_shows_their_answers(chromium: Any, questions: Asking) -> None:
    with served(questions.view) as place, Look(chromium, place)("above=none") as opened:
        page = opened.page
        page.locator("#tabs button", has_text="questions").click()
        page.locator("#other .row", has_text="Which clients ask most?").dblclick()
        page.locator("#asked", has_text="Which clients ask most?").wait_for()
        page.locator("#others-head", has_text="requests").wait_for()
        page.locator("#status", has_text="9 rows").wait_for()
        address = page.url
        page.reload()
        page.locator("#status", has_text="9 rows").wait_for()
        assert page.url == address
        page.locator("#other").focus()
        page.keyboard.press("Backspace")
        page.locator("#status", has_text="questions").wait_for()
        page.locator("#asked").wait_for(state="hidden")
        for _ in range(3):  # the third
            page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.locator("#question", has_text="<img src=x onerror=alert(1)>").wait_for()
        page.locator("#other .row", has_text="<img src=x onerror=alert(1)>\\u202e").first.wait_for()
        assert page.locator("#others img").count() == 0
        page.go_back()
        page.locator("#other .row", has_text="Does it break?").dblclick()
        page.locator("#status.bad", has_text="broken cannot be answered here").wait_for()
        assert page.locator("#other .row:visible").count() == 0
        opened.complaints.clear()  # the browser logs answers that refuse
