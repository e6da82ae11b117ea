"""Queries in Spark SQL that the embedded engine takes, and that it leaves to Spark. Proves:
kwire.reports.embedded.translation."""

from __future__ import annotations

import pytest

from kwire.reports import catalog, relations
from kwire.reports.embedded import engine
from kwire.reports.embedded.translation import translated
from kwire.reports.engine_protocol import UnsupportedSqlError

NAMES = frozenset(relations.names())


@pytest.mark.parametrize("view", [view.name for view in catalog.views()])
def test_every_view_is_taken(view: str) -> None:
    assert translated(catalog.view(view).sql, NAMES)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT latency_us * 1.5 AS x FROM exchanges",  # a decimal: its type has digits of Spark's own rule
        "SELECT regexp_extract(api, 'F.*') AS x FROM exchanges",  # Java's expressions
        "SELECT * FROM range(3)",
        "SELECT * FROM parquet.`/etc/passwd`",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT kwire_list(api) AS x FROM exchanges",
        "SELECT try_cast(api AS INT) AS x FROM exchanges",
        "SELECT CAST(latency_us AS DECIMAL(10, 2)) AS x FROM exchanges",
        "SELECT element_at(topics, 0) AS x FROM exchanges",  # an error
        "SELECT element_at(topics, -1) AS x FROM exchanges",
        "SELECT element_at(topics, length(api)) AS x FROM exchanges",
        "SELECT get(topics, -1) AS x FROM exchanges",
        "SELECT api LIKE 'a\\\\_b' AS x FROM exchanges",
        "SELECT latency_us + 1 FROM exchanges",  # Spark's name of the column
        "SELECT * FROM exchanges TABLESAMPLE (1 PERCENT)",
        "SELECT api FROM exchanges GROUP BY ROLLUP (api)",
        "CREATE TEMPORARY VIEW mine AS SELECT 1 AS x",
        "SELECT 1 AS x; SELECT 2 AS x",
        "SET spark.sql.ansi.enabled = false",
    ],
)
def test_what_was_not_compared_is_left_to_spark(query: str) -> None:
    with pytest.raises(UnsupportedSqlError):
        translated(query, NAMES)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("array('a', 'b')[1]", "b"),
        ("get(array('a', 'b'), 1)", "b"),
        ("get(array('a', 'b'), 2)", None),
        ("element_at(array('a', 'b'), 1)", "a"),
        ("try_element_at(array('a', 'b'), 2)", "b"),
        ("try_element_at(array('a', 'b'), 3)", None),
    ],
)
def test_elements_are_counted_as_spark_counts_them(column: str, value: str | None) -> None:
    with engine.opened([]) as empty:
        assert empty.ask(f"SELECT {column} AS x")[0].to_pylist() == [{"x": value}]


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("count(*)", "count(1)"),
        ("count(DISTINCT api)", "count(DISTINCT api)"),
        ("MAX(latency_us)", "max(latency_us)"),
        ("x.API", "API"),
        ("1", "1"),
        ("'a'", "a"),
        ("sum(latency_us) AS s", "s"),
        ("explode(topics)", "col"),
    ],
)
def test_columns_are_called_as_spark_calls_them(column: str, name: str) -> None:
    assert translated(f"SELECT {column} FROM exchanges AS x", NAMES).split(" FROM ")[0].endswith(f' AS "{name}"')


def test_only_as_many_rows_as_are_wanted_are_asked_for() -> None:
    assert translated("SELECT * FROM exchanges", NAMES, 11).endswith("LIMIT 11")
    assert translated("SELECT * FROM exchanges LIMIT 3", NAMES, 11).endswith("LIMIT 3")
