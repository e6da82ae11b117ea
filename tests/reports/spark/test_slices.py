"""What Spark has the embedded engine ask slice by slice has the rows of one walk. Proves: reports.spark.slices."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import analyzer
from analyzer.dataset import dataset as datasets
from reports import catalog
from reports.embedded import engine
from reports.embedded.engine import Embedded
from reports.page import report, sections
from reports.spark import slices
from reports.spark.engine import Spark
from tests.reports.agreement import difference
from tests.reports.forging import Forged
from tests.shared import sample_folders, shared_folders

DAY = sections.Span(
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
)


def taken(text: str, name: str) -> list[slices.Walk]:
    """The walks of a query that are asked slice by slice."""
    few = [(text, name in slices.FEW), *((one.text, one.name == "few") for one in slices._pieces(text)[:-1])]
    return [found for one in few if (found := slices.walk(*one)) is not None]


VIEWS = [view.name for view in catalog.views() if taken(view.sql, view.name)]
OWN = [one for one in sections.questions(DAY, "4.0") if one.shown == one.sql and taken(one.sql, one.name)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every shared capture; the shipped samples, which are some of them, where those are absent."""
    out = tmp_path_factory.mktemp("slices") / "dataset"
    analyzer.analyze([str(folder) for folder in shared_folders() or sample_folders()], out, records="meta")
    return str(out)


@pytest.fixture(scope="module")
def sliced(spark: Any, dataset: str) -> Spark:
    return Spark(spark, [dataset], sliced=True)


def test_what_walks_over_all_exchanges_is_taken() -> None:
    """What a report asks of all of them, by name: who adds a question sees whether it is."""
    assert {*VIEWS} >= {
        "connection_apis",
        "consumers",
        "error_runs",
        "events",
        "failed_exchanges",
        "fetch_efficiency",
        "groups_seen",
        "latency_by_api",
        "latency_by_broker",
        "latency_by_client",
        "latency_by_topic",
        "logins",
        "producers",
        "request_sizes",
        "slowest_exchanges",
        "unanswered",
    }
    assert {one.name for one in OWN} == {"totals", "over_time", "queued"}
    assert taken(report._SPAN, "")


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_rows_of_one_walk(name: str, sliced: Spark, embedded: Embedded) -> None:
    query = f"SELECT * FROM {name}"
    found, expected = sliced.ask(query, ours=True)[0], embedded.ask(query)[0]
    assert len(expected)
    assert difference(found, expected, ordered="ORDER BY" in catalog.view(name).sql) is None


@pytest.mark.parametrize("question", OWN, ids=lambda question: str(question.name))
def test_a_question_of_a_report_has_the_rows_of_one_walk(question: Any, sliced: Spark, embedded: Embedded) -> None:
    found, expected = sliced.ask(question.sql, ours=True)[0], embedded.ask(question.sql)[0]
    assert difference(found, expected, ordered="ORDER BY" in question.sql) is None


@pytest.fixture
def halves(tmp_path: Path, forged: Forged) -> list[str]:
    """Two datasets with a capture point of one name: 31 exchanges and 12."""
    other = Forged(tmp_path / "other")
    for one, count in ((forged, 31), (other, 12)):
        for number in range(count):
            failed = "NOT_LEADER_OR_FOLLOWER" if number % 5 == 1 else None
            api = "Produce" if number % 3 else "Fetch"
            one.exchange(api, second=number, latency_ms=number * 0.037 + 0.001, error=failed, topics=["t"], acks=-1)
    return [str(forged.write()), str(other.write())]


def test_capture_points_of_one_name_stay_apart(halves: list[str], spark: Any) -> None:
    asked = Spark(spark, halves, sliced=True)
    with engine.opened(halves) as one_walk:
        for name in ("connection_apis", "latency_by_client", "producers", "error_runs", "slowest_exchanges"):
            query = f"SELECT * FROM {name}"
            ordered = "ORDER BY" in catalog.view(name).sql
            expected = one_walk.ask(query)[0]
            assert len(expected)
            assert difference(asked.ask(query, ours=True)[0], expected, ordered) is None, name


def test_what_is_counted_by_clients_is_asked_at_once_or_in_parts(
    halves: list[str], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of few tasks has all exchanges of some clients; many would read all exchanges too often."""
    views = ("producers", "latency_by_client", "fetch_efficiency")
    for view in views:
        pieces = slices._pieces(catalog.view(view).sql)
        walks = [(piece, slices.walk(piece.text)) for piece in pieces[:-1]]
        found = [slices._quantiles(own, piece, pieces) for piece, own in walks if own is not None]
        assert [one[0].at_once for one in found if one is not None and {*one[0].keys} >= slices._CLIENT], view
    made = []
    for most in (0, slices.MOST_CLIENTS):
        monkeypatch.setattr(slices, "MOST_CLIENTS", most)
        asked = Spark(spark, halves, sliced=True)
        made.append([asked.ask(f"SELECT * FROM {view}", ours=True)[0] for view in views])
    with engine.opened(halves) as one_walk:
        for number, view in enumerate(views):
            expected = one_walk.ask(f"SELECT * FROM {view}")[0]
            assert len(expected)
            for found in made:
                assert difference(found[number], expected, ordered=True) is None, view


def test_shares_of_clients_are_all_exchanges_once(forged: Forged) -> None:
    for number in range(40):
        forged.exchange("Produce", second=number, topics=["t"], client_id=None if number % 9 == 0 else f"c{number % 5}")
    path = [str(forged.write())]
    query = "SELECT client_id, client_ip, exchange, connection FROM exchanges"
    seen: list[tuple[Any, ...]] = []
    for part in range(3):
        with engine.opened(path, engine.Share({}, slices.MEMORY, {}, (part, 3))) as opened:
            rows = [tuple(row.values()) for row in opened.ask(query)[0].to_pylist()]
        assert not {row[:2] for row in rows} & {row[:2] for row in seen}
        seen += rows
    assert len(seen) == len(set(seen)) == 40


def test_few_rows_of_few_tables_are_one_tasks(halves: list[str], spark: Any) -> None:
    """Of `error_runs` what is left when its failures are known is asked in the task that adds up."""
    text = catalog.view("error_runs").sql
    assert slices._alone(text, {}) is None
    given = dict.fromkeys(("failures", "things"), None)
    assert slices._alone(text, given) is None  # what went well is looked for among all exchanges
    asked = Spark(spark, halves, sliced=True)
    assert len(asked.ask("SELECT * FROM error_runs", ours=True)[0]) > 2
    assert asked._sliced is not None
    (key,) = (key for key in asked._sliced._made if "JOIN things" in key)
    assert "judged AS" in key
    assert {"failures", "things", "successes"}.isdisjoint(asked.own())


def test_views_are_made_when_they_are_needed_and_once(
    halves: list[str], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Spark(spark, halves, sliced=True)
    sliced = asked._sliced
    assert sliced is not None
    made: list[str] = []
    register = sliced._register

    def noted(view: str, text: str) -> None:
        made.append(view)
        register(view, text)

    monkeypatch.setattr(sliced, "_register", noted)
    with ThreadPoolExecutor(4) as pool:
        rows = pool.map(lambda _: asked.ask("SELECT * FROM errors_by_api", ours=True)[0].num_rows, range(4))
        assert set(rows) == {2}  # Produce and Fetch
    assert len(made) == len(set(made))
    assert {"failed_exchanges", "errors_by_api"} <= set(made)
    assert not {"error_runs", "producers"} & set(made)
    assert len(asked.ask("SHOW VIEWS")[0]) > len(made)  # who asks what there is gets all
    assert {*made} == {view.name for view in catalog.views()}


def test_what_is_too_much_to_give_to_each_task_is_joined_by_spark(
    halves: list[str], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "GIVEN_ROWS", 0)
    asked = Spark(spark, halves, sliced=True)
    with engine.opened(halves) as one_walk:
        query = "SELECT * FROM error_runs"
        assert difference(asked.ask(query, ours=True)[0], one_walk.ask(query)[0]) is None


def test_a_reports_span_is_that_of_all_slices(halves: list[str], spark: Any) -> None:
    with engine.opened(halves) as one_walk:
        assert report._span(Spark(spark, halves, {"exchanges"}, sliced=True)) == report._span(one_walk)


def test_one_row_over_all_exchanges_is_counted_by_the_driver(halves: list[str], spark: Any) -> None:
    """And nothing else is: what has keys, or reads other relations too, is for tasks and Spark."""
    asked = slices.Sliced(spark, [datasets.open_dataset(path) for path in halves])
    counted = "WITH counted AS (SELECT count(*) AS n FROM exchanges) SELECT n + 1 AS n FROM counted"
    with engine.opened(halves) as one_walk:
        [[expected]] = one_walk.ask(counted)[0].columns
    assert (found := asked.here(counted)) is not None
    assert found.column(0).to_pylist() == [expected.as_py()]
    for other in (
        "SELECT count(*) AS n FROM exchanges",  # a walk itself: its slices add up
        "WITH counted AS (SELECT api, count(*) AS n FROM exchanges GROUP BY ALL) SELECT * FROM counted",
        "WITH counted AS (SELECT count(*) AS n FROM exchanges) SELECT * FROM counted, connections",
        "WITH counted AS (SELECT count(*) AS n FROM connections) SELECT * FROM counted",
        "WITH counted AS (SELECT api FROM exchanges ORDER BY latency_us LIMIT 3) SELECT * FROM counted",
    ):
        assert asked.here(other) is None, other


def test_slices_are_all_rows_once(halves: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = [datasets.open_dataset(path) for path in halves]
    for cores, largest in ((1, 100), (2, 100), (3, 100), (7, 100), (2, 5), (50, 100)):
        monkeypatch.setattr(slices, "LARGEST_SLICE", largest)
        made = slices.slices(opened, cores)
        rows = [(path, row) for one in made for path, (first, end) in one.rows.items() for row in range(first, end)]
        assert len(rows) == len(set(rows)) == 43
        sizes = [sum(end - first for first, end in one.rows.values()) for one in made]
        assert max(sizes) <= largest
        assert max(sizes) - min(sizes) <= 1
    assert slices.slices([], 2) == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT api, avg(latency_us) AS mean FROM exchanges GROUP BY ALL",
        "SELECT api, max(latency_us) - min(latency_us) AS span FROM exchanges GROUP BY ALL",
        "SELECT api, count(DISTINCT client_id) AS clients FROM exchanges GROUP BY ALL",
        "SELECT api, sum(latency_us) / count(*) AS mean FROM exchanges GROUP BY ALL",
        "SELECT api, count(*) AS n FROM exchanges GROUP BY ALL HAVING n > 1",
        "SELECT api, count(*) AS n FROM exchanges GROUP BY ALL ORDER BY n LIMIT 3",
        "SELECT api, count(*) AS n FROM partitions GROUP BY ALL",
        "SELECT x.api, count(*) AS n FROM exchanges AS x JOIN batches AS b ON b.exchange = x.exchange GROUP BY ALL",
        "SELECT api, count(*) AS n FROM exchanges WHERE api = 'a' "
        "UNION ALL SELECT api, 1 AS n FROM exchanges GROUP BY ALL",
        "SELECT DISTINCT api FROM exchanges",
        "SELECT api, latency_us FROM exchanges WHERE api_key = 0",
        "SELECT api, row_number() OVER (ORDER BY api) AS n FROM exchanges GROUP BY ALL",
    ],
)
def test_what_does_not_add_up_is_left_to_spark(text: str) -> None:
    assert slices.walk(text) is None


def test_columns_are_told_apart_whatever_is_in_brackets_and_quotes() -> None:
    found = slices.walk(
        "-- FROM here, GROUP BY there\nSELECT api, if(api IN ('a, b', 'FROM x)'), 1, 2) AS kind, count(*) AS n, -- so\n"
        "  min(if(latency_us > 5, latency_us, NULL)) AS least FROM exchanges WHERE api <> 'GROUP BY ALL' GROUP BY ALL"
    )
    assert found is not None
    assert found.keys == ("api", "kind")
    assert found.added == "SELECT api, kind, sum(n) AS n, min(least) AS least FROM kwire_rows GROUP BY ALL"


@pytest.mark.parametrize(("master", "possible"), [(None, True), ("local[2]", True), ("spark://host:7077", False)])
def test_only_on_this_machine(master: str | None, possible: bool) -> None:
    assert slices.possible(master) is possible


def test_a_report_is_asked_slice_by_slice_where_there_is_an_engine_to_ask(
    halves: list[str], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import argparse

    from reports import engines

    monkeypatch.setattr("reports.spark.session.end", lambda at_once=False: None)
    options = argparse.Namespace(engine="spark", master=None, conf=[], verbose=False)
    for sliced in (True, False):
        if not sliced:
            monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "duckdb" else name)
        with engines.opened(options, halves, {"exchanges", "timed_exchanges", "latency_by_api"}) as opened:
            assert (opened._sliced is not None) is sliced  # type: ignore[attr-defined]
            assert opened.ask("SELECT sum(exchanges) AS n FROM latency_by_api")[0].to_pylist() == [{"n": 43}]
            assert opened.own() == []
