"""The embedded engine gives Spark's rows, and Spark answers what it does not take.

All shared captures lie in one dataset here, so that Spark plans each view once; `python -m tests.reports.agreement`
compares them one by one. Proves: kwire.reports.engines, kwire.reports.embedded.engine.
"""

from __future__ import annotations

import datetime
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.options.common import EngineOptions
from kwire.captures.errors import KwireError
from kwire.reports import catalog, engines, relations
from kwire.reports.embedded import engine
from kwire.reports.embedded.engine import Embedded
from kwire.reports.page import sections
from kwire.reports.spark.engine import Spark
from tests.reports.agreement import difference
from tests.reports.forging import Forged
from tests.shared import sample_folders, shared_folders

DAY = sections.Span(
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
)
OWN = [
    question
    for question in sections.questions(DAY, "4.0")
    if question.name not in {view.name for view in catalog.views()}
]

QUERIES = (
    "SELECT capture, timestamp_micros(max(unix_micros(request_time)) DIV 1000000 * 1000000) AS last FROM exchanges "
    "GROUP BY capture ORDER BY capture",
    "SELECT api, count(*), max(latency_us), avg(latency_us) AS mean FROM exchanges GROUP BY api ORDER BY api",
    "SELECT api, round(avg(latency_us) / 1000, 2) AS ms FROM exchanges WHERE latency_us IS NOT NULL GROUP BY 1 "
    "ORDER BY 1",
    "SELECT latency_us DIV 7 AS a, latency_us % 7 AS b, -latency_us DIV 7 AS c, latency_us / 7 AS d, "
    "CAST(latency_us / 7 AS INT) AS e, floor(latency_us / 7) AS f FROM exchanges ORDER BY a, b, c LIMIT 50",
    "SELECT client_id, topics[0] AS topic, errors[0].code AS code FROM exchanges WHERE NOT array_contains(topics, 'x') "
    "AND error_code > 0 AND topics IS NOT NULL AND topics <> array() ORDER BY capture, connection, exchange LIMIT 20",
    "SELECT get(topics, 0) AS a, get(topics, 1) AS b, try_element_at(topics, 1) AS c, try_element_at(topics, 2) AS d, "
    "if(topics <> array(), element_at(topics, 1), 'none') AS e FROM exchanges ORDER BY capture, connection, exchange, "
    "reply LIMIT 50",
    "SELECT date_trunc('hour', request_time) AS hour, percentile(latency_us, 0.9) AS p90 FROM exchanges GROUP BY ALL "
    "ORDER BY hour",
    "SELECT capture, row_number() OVER (PARTITION BY capture ORDER BY first_time, connection) AS number, "
    "lag(connection) OVER (PARTITION BY capture ORDER BY first_time, connection) AS before FROM connections "
    "ORDER BY capture, number",
    "SELECT group_id, max_by(client_id, struct(generation, request_time, connection, exchange)) AS last, "
    "array_sort(collect_set(member_id)) AS members FROM exchanges GROUP BY group_id ORDER BY group_id",
    "SELECT capture, api, error FROM exchanges WHERE api LIKE 'F%' AND client_id IN ('rdkafka', 'lab-tx') "
    "AND request_time >= timestamp'2020-01-01 00:00:00' ORDER BY capture, connection, exchange LIMIT 30",
    "SELECT upper(api) AS a, length(client_id) AS b, concat(client_ip, ':', client_port) AS c, "
    "CAST(client_port AS STRING) AS d FROM exchanges ORDER BY capture, connection, exchange, reply LIMIT 30",
)
"""Questions as people ask them; none depends on how an engine happens to order equal rows."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every shared capture; the shipped samples, which are some of them, where those are absent."""
    out = tmp_path_factory.mktemp("engines") / "dataset"
    analyzer.analyze([str(folder) for folder in shared_folders() or sample_folders()], out, records="meta")
    return str(out)


@pytest.fixture(scope="module")
def reference(spark: Any, dataset: str) -> Spark:
    return Spark(spark, [dataset])


@pytest.mark.parametrize("view", catalog.views(), ids=lambda view: str(view.name))
def test_every_view_has_the_same_rows(view: catalog.View, reference: Spark, embedded: Embedded) -> None:
    query = f"SELECT * FROM {view.name}"
    expected, rows = reference.ask(query)[0], embedded.ask(query)[0]
    assert difference(expected, rows, ordered="ORDER BY" in view.sql) is None
    assert rows.column_names == list(view.columns)


@pytest.mark.parametrize("question", OWN, ids=lambda question: str(question.name))
def test_every_question_of_a_report_has_the_same_rows(question: Any, reference: Spark, embedded: Embedded) -> None:
    expected, rows = reference.ask(question.sql)[0], embedded.ask(question.sql)[0]
    assert difference(expected, rows, ordered="ORDER BY" in question.sql) is None


@pytest.mark.parametrize("query", QUERIES)
def test_questions_of_people_have_the_same_rows(query: str, reference: Spark, embedded: Embedded) -> None:
    expected, rows = reference.ask(query)[0], embedded.ask(query)[0]
    assert len(expected)
    assert difference(expected, rows) is None


def test_every_table_has_the_same_columns(reference: Spark, embedded: Embedded) -> None:
    for name in relations.names():
        query = f"SELECT * FROM {name}"
        assert difference(reference.ask(query, 0)[0], embedded.ask(query, 0)[0]) is None, name
        assert embedded.ask(query, 0)[0].column_names == list(relations.columns(name))


def test_threads_that_ask_at_once_are_answered_as_one_is(dataset: str, embedded: Embedded) -> None:
    """Each has a session of its own, and relations are made once for all of them."""
    queries = [*(question.sql for question in OWN), *QUERIES, "SELECT * FROM error_runs"]
    with engine.opened([dataset]) as shared, ThreadPoolExecutor(4) as pool:
        for query, rows in zip(queries, pool.map(lambda query: shared.ask(query)[0], queries), strict=True):
            assert difference(embedded.ask(query)[0], rows, ordered="ORDER BY" in query) is None, query


@pytest.fixture
def halves(tmp_path: Path, forged: Forged) -> list[str]:
    """Two datasets with a capture point of one name: 31 exchanges and 12."""
    other = Forged(tmp_path / "other")
    for half, count in ((forged, 31), (other, 12)):
        for number in range(count):
            failed = "NOT_LEADER_OR_FOLLOWER" if number % 5 == 1 else None
            api = "Produce" if number % 3 else "Fetch"
            half.exchange(api, second=number, latency_ms=number * 0.037 + 0.001, error=failed, topics=["t"], acks=-1)
    return [str(forged.write()), str(other.write())]


def test_capture_points_of_one_name_stay_apart(halves: list[str], spark: Any) -> None:
    reference = Spark(spark, halves)
    with engine.opened(halves) as embedded:
        for name in ("connection_apis", "latency_by_client", "producers", "error_runs", "slowest_exchanges"):
            query = f"SELECT * FROM {name}"
            expected = reference.ask(query)[0]
            assert len(expected)
            assert difference(expected, embedded.ask(query)[0], "ORDER BY" in catalog.view(name).sql) is None, name


# --- which engine -----------------------------------------------------------------------------------------------------


def options(**chosen: Any) -> EngineOptions:
    return EngineOptions(**chosen)


@pytest.fixture
def small(forged: Forged) -> list[str]:
    """A dataset of two exchanges."""
    forged.exchange("Produce")
    forged.exchange("Fetch")
    return [str(forged.write())]


def test_spark_answers_only_where_it_is_named() -> None:
    assert engines.choose(options()) == engines.EMBEDDED
    assert engines.choose(options(engine="embedded")) == engines.EMBEDDED
    assert engines.choose(options(engine="spark")) == engines.SPARK
    assert engines.choose(options(master="local[2]")) == engines.SPARK
    assert engines.choose(options(conf=["spark.sql.ansi.enabled=false"])) == engines.SPARK


def test_a_dataset_of_any_size_is_asked_here_and_spills_to_disk(small: list[str]) -> None:
    """A sort of four times the memory that DuckDB may use goes to files, which end with the engine."""
    with engine.opened(small) as opened:
        settings = "SELECT current_setting('memory_limit'), current_setting('temp_directory')"
        [(limit, folder)] = opened._connection.execute(settings).fetchall()
        assert limit == "2.0 GiB"
        opened._connection.execute("SET memory_limit = '32MiB'; SET threads = 1")
        sort = "SELECT hash(range) AS h, range FROM range(8000000) ORDER BY h, range"
        [(rows,)] = opened._connection.execute(f"SELECT count(h) FROM ({sort} LIMIT 7999999)").fetchall()
        assert rows == 7_999_999
        assert Path(folder).is_dir()
    assert not Path(folder).exists()


CLUSTER = "spark://host:7077"


@pytest.mark.parametrize(("few", "master", "quick"), [(3, CLUSTER, True), (2, CLUSTER, False), (2, None, False)])
def test_java_compiles_at_length_only_where_there_is_much_to_do(
    small: list[str], few: int, master: str | None, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    def of_command(_: EngineOptions, quick: bool) -> None:
        raise Started(quick)

    monkeypatch.setattr(engines, "QUICK_EXCHANGES", few)
    monkeypatch.setattr("kwire.reports.spark.session.of_command", of_command)
    with pytest.raises(Started) as raised, engines.opened(options(engine="spark", master=master), small):
        pass
    assert raised.value.args == (quick,)


def test_without_the_extra_it_is_spark_and_who_insists_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "installed", lambda: False)
    assert engines.choose(options()) == engines.SPARK
    with pytest.raises(KwireError, match="not installed") as raised:
        engines.choose(options(engine="embedded"))
    assert "kwire[sql]" in raised.value.hint
    with pytest.raises(KwireError, match="--master is a matter of Spark"):
        engines.choose(options(engine="embedded", master="local[2]"))


def test_what_the_embedded_engine_does_not_take_goes_to_spark(
    spark: Any, small: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.reports.spark.session.end", lambda at_once=False: None)
    with engines.opened(options(verbose=True), small) as opened:
        assert opened.ask("SELECT count(*) AS n FROM exchanges")[0].to_pylist() == [{"n": 2}]
        assert capsys.readouterr().err == ""
        rows = opened.ask("SELECT regexp_extract(api, '(F)', 1) AS f FROM exchanges ORDER BY f")[0]
        assert rows["f"].to_pylist() == ["", "F"]
        assert "note: Spark answers this" in capsys.readouterr().err
        # From a view on that Spark alone has, the questions are Spark's.
        opened.ask("CREATE TEMPORARY VIEW few AS SELECT api FROM exchanges LIMIT 1")
        assert opened.own() == ["few"]
        assert len(opened.ask("SELECT * FROM few")[0]) == 1


def test_ctrl_c_ends_a_question(forged: Forged) -> None:
    for _ in range(200):
        forged.exchange("Fetch")
    others = " ".join(f"CROSS JOIN exchanges AS x{number}" for number in range(5))
    soon = threading.Timer(2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    soon.start()
    with engine.opened([forged.write()]) as opened:
        with pytest.raises(KeyboardInterrupt):
            opened.ask(f"SELECT sum(x.exchange * x0.exchange % (7 + x4.exchange)) AS n FROM exchanges AS x {others}")
        assert len(opened.ask("SELECT count(*) FROM exchanges")[0]) == 1
    soon.join()


@pytest.mark.parametrize("where", ["install", "need"])
def test_ctrl_c_while_it_opens_or_makes_relations_is_no_error_of_its_own(
    where: str, forged: Forged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB hears of it in the main thread, where Python cannot."""

    def long(connection: Any, *_: Any) -> None:
        soon = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        soon.start()
        connection.execute("SELECT sum(a.range * b.range % 7) FROM range(30000) a, range(30000) b")

    forged.exchange("Fetch")
    path = forged.write()
    if where == "install":
        monkeypatch.setattr("kwire.reports.embedded.functions.install", long)
    else:
        monkeypatch.setattr(Embedded, "_make", lambda self, name: long(self._connection))
    with pytest.raises(KeyboardInterrupt), engine.opened([path]) as opened:
        opened.ask("SELECT count(*) FROM exchanges")


def test_a_name_of_a_file_is_no_pattern_and_no_other_file_is_read(forged: Forged) -> None:
    forged.path = forged.path.with_name("a=1 [x]*?'{y}")
    forged.exchange("Produce")
    path = forged.write()
    (path / "exchanges" / "part-left.parquet").write_bytes(b"what a lost attempt wrote")
    with engine.opened([path]) as opened:
        table = opened.ask("SELECT * FROM exchanges")[0]
    assert table["api"].to_pylist() == ["Produce"]
    assert table.column_names == list(relations.columns("exchanges"))  # no column `a` from the folder's name
