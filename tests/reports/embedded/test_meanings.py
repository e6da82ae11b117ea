"""Where Spark and DuckDB mean something else by the same words, the embedded engine says what Spark says, or leaves the
question to Spark. Proves: reports.embedded.translation.

Each query is asked of both. What Spark refuses with an error must be left to it, for that is how people hear of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import analyzer
from reports.asking import Untaken
from reports.embedded import engine
from reports.embedded.engine import Embedded
from reports.spark.engine import Spark
from tests.reports.agreement import difference
from tests.shared import SAMPLES

READ = frozenset(("exchanges", "connections"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("meanings") / "dataset"
    analyzer.analyze(SAMPLES / "txn-librdkafka-4.3" / "capture.pcap", out)
    return str(out)


@pytest.fixture(scope="module")
def reference(spark: Any, dataset: str) -> Spark:
    return Spark(spark, [dataset], only=READ)


@pytest.fixture(scope="module")
def embedded(dataset: str) -> Iterator[Embedded]:
    with engine.opened([dataset]) as opened:
        yield opened


SAME = (
    # texts
    "SELECT 'it''s' AS a, \"say \"\"hi\"\"\" AS b, '''' AS c, 'x''''y' AS d, 'a''b''c' AS e, 'a''' AS f, '''a' AS g",
    "SELECT 'a' 'b' AS a, 'a'\"b\" AS b, 'a\\'b''c' AS c, '' AS d, 'a\"\"b' AS e",
    "SELECT 'it''s'",
    "SELECT count(*) AS n FROM exchanges WHERE client_id = 'lab''-tx'",
    # numbers
    "SELECT NULL / 0 AS a, 7e0 / 2 AS b, 1e300 * 1e300 AS c, 7e0 % 2 AS d",
    # order
    "SELECT sort_array(array(3, NULL, 1)) AS a, sort_array(array(3, NULL, 1), false) AS b, "
    "sort_array(array(3, NULL, 1), true) AS c, array_sort(array(3, NULL, 1)) AS d",
    "SELECT sort_array(collect_set(api), false)[0] AS last FROM exchanges",
)  # fmt: skip
"""Taken, with Spark's answer."""

LEFT = (
    # numbers
    "SELECT 1/0 AS x", "SELECT latency_us / api_key AS x FROM exchanges", "SELECT 7e0 / 0e0 AS x",
    "SELECT sum(latency_us) / 0 AS x FROM exchanges", "SELECT 7e0 % 0 AS x", "SELECT 7 % 0 AS x",
)  # fmt: skip
"""Not taken: DuckDB's answer would be another."""


@pytest.mark.parametrize("query", SAME)
def test_it_means_the_same(query: str, reference: Spark, embedded: Embedded) -> None:
    expected, found = reference.ask(query)[0], embedded.ask(query)[0]
    assert difference(expected, found, "ORDER BY" in query) is None


@pytest.mark.parametrize("query", LEFT)
def test_what_would_mean_something_else_is_left_to_spark(query: str, embedded: Embedded) -> None:
    with pytest.raises(Untaken):
        embedded.ask(query)
