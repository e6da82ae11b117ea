"""Where Spark and DuckDB mean something else by the same words, the embedded engine says what Spark says, or leaves the
question to Spark. Proves: kwire.reports.embedded.translation.

Each query is asked of both. What Spark refuses with an error must be left to it, for that is how people hear of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from kwire import analyzer
from kwire.reports.embedded.engine import Embedded
from kwire.reports.engine_protocol import UnsupportedSqlError
from kwire.reports.spark.engine import Spark
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


# fmt: off
SAME = (
    # texts
    "SELECT 'it''s' AS a, \"say \"\"hi\"\"\" AS b, '''' AS c, 'x''''y' AS d, 'a''b''c' AS e, 'a''' AS f, '''a' AS g",
    "SELECT 'a' 'b' AS a, 'a'\"b\" AS b, 'a\\'b''c' AS c, '' AS d, 'a\"\"b' AS e",
    "SELECT 'it''s'",
    "SELECT count(*) AS n FROM exchanges WHERE client_id = 'lab''-tx'",
    # numbers
    "SELECT api_key + 1 AS a, api_key * 2 AS b, api_key + api_key AS c, api_key % 5 AS d, -api_key AS e, -(5) + "
    "api_key AS f, coalesce(api_key, 0) AS g, greatest(api_key, 1) AS h, if(api_key > 1, api_key, 0) AS i, "
    "array(api_key, 1) AS j, nullif(api_key, 0) AS k, CASE WHEN api_key > 3 THEN 0 ELSE api_key END AS l, "
    "api_key + 40000 AS m, api_key + 3000000000 AS n, api_key - 9999 AS o FROM exchanges ORDER BY "
    "connection, exchange, reply",
    "SELECT api_key, -5 DIV 2 AS a, api_key DIV 2 AS b, (sum(api_key) DIV 3) DIV 2 AS c FROM exchanges GROUP BY "
    "api_key ORDER BY api_key",
    "SELECT NULL / 0 AS a, 7e0 / 2 AS b, 1e300 * 1e300 AS c, 7e0 % 2 AS d",
    # order
    "SELECT sort_array(array(3, NULL, 1)) AS a, sort_array(array(3, NULL, 1), false) AS b, "
    "sort_array(array(3, NULL, 1), true) AS c, array_sort(array(3, NULL, 1)) AS d",
    "SELECT sort_array(collect_set(api), false)[0] AS last FROM exchanges",
    "SELECT array_sort(collect_set(struct(latency_us, api)))[0] AS a, sort_array(collect_set(struct(error, api)), "
    "false) AS b, transform(array_sort(collect_list(struct(error, api))), e -> e.api) AS c FROM exchanges",
    "SELECT max_by(api, struct(error, latency_us, connection, exchange)) AS a FROM exchanges",
    "SELECT array(NULL, 1) = array(NULL, 1) AS a, struct(1, NULL) = struct(1, 2) AS b, true > false AS c",
    "SELECT count_if(error IS NOT NULL) AS errors, api FROM exchanges GROUP BY api ORDER BY errors DESC, api",
    "SELECT topic, count(*) AS n FROM (SELECT explode(topics) AS topic FROM exchanges) GROUP BY topic ORDER BY topic",
    "WITH x (a, b) AS (SELECT api, max(latency_us) FROM exchanges GROUP BY ALL) SELECT * FROM x WHERE b > 5 ORDER BY a",
    "SELECT api, lead(api) OVER w AS x FROM exchanges WINDOW w AS (ORDER BY connection, exchange) ORDER BY connection, "
    "exchange",
    # kinds
    "SELECT count(*) AS n FROM exchanges WHERE request_time > '2026-11-21 01:49:20' AND api_key = '18'",
    "SELECT 1 AS x UNION ALL SELECT 1.5e0 UNION ALL SELECT NULL",
    "SELECT concat('a', 1, true) AS a, concat(api, ':', latency_us) AS b, concat(array(1), array(2)) AS c, "
    "array_join(topics, ',') AS d, array_join(array('a', NULL), ',') AS e FROM exchanges ORDER BY connection, exchange",
    "SELECT latency_us AS l, l * 2 AS m, if(error = 'x', 1, 2e0) AS n FROM exchanges WHERE NOT (api = 'x' OR error "
    "> '') ORDER BY connection, exchange",
    "SELECT 1 AS x; -- note",
)
# fmt: on
"""Taken, with Spark's answer."""

# fmt: off
LEFT = (
    # numbers
    "SELECT 1/0 AS x", "SELECT latency_us / api_key AS x FROM exchanges", "SELECT 7e0 / 0e0 AS x",
    "SELECT sum(latency_us) / 0 AS x FROM exchanges", "SELECT 7e0 % 0 AS x", "SELECT 7 % 0 AS x",
    "SELECT 7.5e0 DIV 2 AS x",
    # order
    "SELECT max(struct(latency_us, api)) AS x FROM exchanges", "SELECT min(array(latency_us)) AS x FROM exchanges",
    "SELECT struct(error, api) AS x FROM exchanges ORDER BY x LIMIT 1", "SELECT topics FROM exchanges ORDER BY 1",
    "SELECT api FROM exchanges ORDER BY struct(error, api) LIMIT 1", "SELECT topics FROM exchanges ORDER BY ALL",
    "SELECT struct(1) > struct(2) AS x", "SELECT array(NULL, 1) < array(0, 1) AS x",
    "SELECT greatest(array(1), array(NULL)) AS x", "SELECT array(1) BETWEEN array(NULL) AND array(2) AS x",
    "SELECT array_sort(errors) AS x FROM exchanges", "SELECT max_by(api, topics) AS x FROM exchanges",
    "SELECT max(x) AS x FROM (SELECT *, topics AS x FROM exchanges)", "SELECT max(e) AS x FROM exchanges AS e",
    "WITH x (a) AS (SELECT errors[0] FROM exchanges) SELECT max(a) AS b FROM x",
    "SELECT rank() OVER (ORDER BY topics) AS x FROM exchanges", "SELECT max(errors) AS x FROM failed_exchanges",
    "SELECT topics FROM exchanges UNION SELECT topics FROM exchanges ORDER BY topics",
    # rows
    "SELECT explode(array(1, 2)) AS a, explode(array(1, 2, 3)) AS b",
    # kinds
    "SELECT concat(request_time, '') AS x FROM exchanges", "SELECT concat(1e10, '') AS x",
    "SELECT array_join(array(1e10), ',') AS x", "SELECT array_join(array(request_time), ',') AS x FROM exchanges",
    "SELECT request_time FROM exchanges UNION ALL SELECT '2026-11-21'", "SELECT 1 AS x UNION ALL SELECT 'x'",
    "SELECT true AS x UNION ALL SELECT 1", "SELECT api FROM exchanges WHERE latency_us",
    "SELECT 1 AS x FROM connections HAVING count(*)", "SELECT NOT 1 AS x", "SELECT 1 AND true AS x",
    "SELECT if(1, 'a', 'b') AS x", "SELECT CASE WHEN 1 THEN 2 END AS x", "SELECT count_if(api_key) AS x FROM exchanges",
    "SELECT count(*) FILTER (WHERE api_key) AS x FROM exchanges", "SELECT sum(api = 'x') AS x FROM exchanges",
    "SELECT count(*) AS x FROM exchanges WHERE (api = 'x') = 1", "SELECT concat('a', NULL) AS x",
    "SELECT coalesce(latency_us, 'none') AS x FROM exchanges",
    "SELECT api FROM exchanges WHERE api_key = '18.0'", "SELECT greatest('10', 9) AS x", "SELECT array('a', 1) AS x",
    "SELECT api IN ('Fetch', 1) AS x FROM exchanges", "SELECT CASE api WHEN 1 THEN 2 END AS x FROM exchanges",
    # names, windows
    "SELECT row_number() OVER () AS x FROM exchanges", "SELECT lag(api) OVER (PARTITION BY api) AS x FROM exchanges",
    "SELECT lead(api) OVER w AS x FROM exchanges WINDOW w AS (PARTITION BY api)",
    "SELECT latency_us * 2 AS twice FROM exchanges WHERE twice > 5",
)
# fmt: on
"""Not taken: DuckDB's answer would be another."""


@pytest.mark.parametrize("query", SAME)
def test_it_means_the_same(query: str, reference: Spark, embedded: Embedded) -> None:
    expected, rows = reference.ask(query)[0], embedded.ask(query)[0]
    assert difference(expected, rows, "ORDER BY" in query) is None


@pytest.mark.parametrize("query", LEFT)
def test_what_would_mean_something_else_is_left_to_spark(query: str, embedded: Embedded) -> None:
    with pytest.raises(UnsupportedSqlError):
        embedded.ask(query)
