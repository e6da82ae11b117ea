"""Quantiles asked outright are those that counting by bucket finds.

Proves: kwire.reports.embedded.quantiles.
"""

from __future__ import annotations

from typing import Any

import duckdb
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kwire.reports import catalog, relations
from kwire.reports.embedded import functions, quantiles, translation

NAMES = frozenset(("rows",))

COUNTED = """
WITH counted AS (
  SELECT who, n DIV 2 AS half, bucketed(v) AS bucket, count(*) AS seen, count_if(n > 1) AS some, sum(n) AS added,
    max(v) AS top, min(v) AS least
  FROM rows WHERE n < 9 GROUP BY ALL
), placed AS (
  SELECT *, sum(if(bucket IS NULL, 0, seen)) OVER (PARTITION BY who, half ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, seen)) OVER (PARTITION BY who, half) AS timed
  FROM counted
)
SELECT half, sum(seen) AS seen, sum(some) AS some, if(sum(some) = 0, NULL, sum(added) DIV sum(some)) AS share,
  max(timed) AS timed, min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50,
  min(if(100 * upto >= 99 * timed, bucket, NULL)) AS p99, max(top) AS top, min(least) AS least
FROM placed GROUP BY who, half ORDER BY seen DESC, half, p50, p99, top, least, some, share, timed
"""

WHOLE = """
WITH counted AS (
  SELECT bucketed(v) AS bucket, count(*) AS seen, max(v) AS top FROM rows WHERE n < 9 GROUP BY ALL
), placed AS (
  SELECT *, sum(if(bucket IS NULL, 0, seen)) OVER (PARTITION BY true ORDER BY bucket) AS upto,
    sum(if(bucket IS NULL, 0, seen)) OVER (PARTITION BY true) AS timed
  FROM counted
)
SELECT coalesce(max(timed), 0) AS timed, min(if(100 * upto >= 50 * timed, bucket, NULL)) AS p50, max(top) AS top
FROM placed
"""
"""Without keys: one row, of no rows too."""

rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 9), st.none() | st.integers(-3, 1 << 40)), max_size=60
)


def answers(text: str, held: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """DuckDB's answer to a query written for it, of these rows."""
    with duckdb.connect() as connection:
        functions.install(connection, "CASE WHEN value < 256 OR value IS NULL THEN value ELSE (value & -4) | 2 END")
        connection.execute("CREATE TABLE rows (who VARCHAR, n INTEGER, v BIGINT)")
        if held:
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", held)
        return list(connection.execute(text).fetchall())


@pytest.fixture(scope="module", params=[COUNTED, WHOLE], ids=["by key", "of all"])
def texts(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The query as it is written, and asked outright."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "outright", lambda tree: None)
        written = translation.translated(request.param, NAMES)
    return written, translation.translated(request.param, NAMES)


@settings(max_examples=60, deadline=None)
@given(held=rows)
def test_they_are_those_of_counting(texts: tuple[str, str], held: list[tuple[Any, ...]]) -> None:
    written, direct = texts
    assert "OVER" in written
    assert "OVER" not in direct
    assert answers(direct, held) == answers(written, held)


def test_the_views_about_latency_are_asked_outright() -> None:
    every = frozenset(relations.names())
    counting = {view.name: translation.translated(view.sql, every) for view in catalog.views() if "upto" in view.sql}
    direct = {name for name, text in counting.items() if "quantile_disc" in text.lower()}
    # They have few rows, or one for each batch and reader, and keep them.
    windowed = {"connection_health", "client_wait", "end_to_end", "replica_delay", "time_to_commit"}
    assert counting.keys() - direct == windowed
    assert all(" OVER " not in counting[name] for name in direct - {"producers"})


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("PARTITION BY who, half ORDER BY", "PARTITION BY who ORDER BY"),
        ("PARTITION BY who, half)", "PARTITION BY half)"),
        ("GROUP BY who, half ORDER BY", "GROUP BY half ORDER BY"),
        ("ORDER BY bucket)", "ORDER BY bucket DESC)"),
        ("count(*) AS seen", "count(n) AS seen"),
        ("n < 9 GROUP BY ALL", "n < 9 GROUP BY ALL HAVING count(*) > 1"),
        ("FROM counted\n", "FROM counted WHERE seen > 1\n"),
        ("FROM placed GROUP", "FROM placed WHERE upto > 1 GROUP"),
        ("100 * upto >= 50 * timed", "100 * timed >= 50 * upto"),
        ("max(top) AS top", "sum(top) AS top"),
        ("sum(some) AS some", "max(some) AS some"),
        ("max(top) AS top", "max(bucket) AS top"),
    ],
)
def test_what_differs_from_the_shape_stays(was: str, becomes: str) -> None:
    text = COUNTED.replace(was, becomes)
    assert text != COUNTED
    assert "quantile_disc" not in translation.translated(text, NAMES).lower()


def test_a_bucket_is_made_of_the_quantile_not_of_each_row() -> None:
    text = translation.translated(COUNTED, NAMES)
    assert 'KWIRE_BUCKETED(LIST_EXTRACT(QUANTILE_DISC("v", [0.50, 0.99]), 1))' in text
    assert text.count("KWIRE_BUCKETED") == 2


def test_a_part_that_is_read_elsewhere_too_stays() -> None:
    inner = COUNTED.replace("SELECT half, sum(seen)", "SELECT (SELECT count(*) FROM counted) AS all, half, sum(seen)")
    assert "quantile_disc" not in translation.translated(inner, NAMES).lower()
