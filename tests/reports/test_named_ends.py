"""Names of addresses (`--names`) in SQL: both engines have the same.

Proves: reports/named_ends.py, reports/relations.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kwire.analyzer.common import address_names
from kwire.reports.embedded import engine
from kwire.reports.spark.engine import Spark
from tests.reports.forging import Forged

QUERIES = (
    "SELECT client_ip, client_name, broker_name, count(*) AS n FROM exchanges GROUP BY ALL ORDER BY client_ip",
    "SELECT * FROM address_names ORDER BY address",
    "SELECT count(*) AS n FROM exchanges WHERE client_name = broker_name OR client_name IS NULL",
)


def test_spark_has_the_names_that_the_embedded_engine_has(spark: Any, forged: Forged, tmp_path: Path) -> None:
    for number, client in enumerate(("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.7")):
        forged.exchange("Produce", second=number, client_ip=client, broker_ip="10.0.0.9")
        forged.connection(connection=f"{client}:{number}", client_ip=client, broker_ip="10.0.0.9")
    path, hosts = forged.write(), tmp_path / "hosts"
    hosts.write_text("10.0.0.1 orders-0\n10.0.0.2 orders-1 reader\n10.0.0.9 kafka-0\n10.0.0.50 nobody\n")
    with address_names.opened([str(hosts)]):
        reference = Spark(spark, [path])
        with engine.opened([path]) as embedded:
            answers = [embedded.ask(query)[0].to_pylist() for query in QUERIES]
            assert [reference.ask(query)[0].to_pylist() for query in QUERIES] == answers
    ends = [(row["client_name"], row["broker_name"], row["n"]) for row in answers[0]]
    assert ends == [("orders-0", "kafka-0", 2), ("orders-1", "kafka-0", 1), (None, "kafka-0", 1)]
    assert answers[1:] == [
        [
            {"address": "10.0.0.1", "name": "orders-0"},
            {"address": "10.0.0.2", "name": "orders-1"},
            {"address": "10.0.0.9", "name": "kafka-0"},
        ],
        [{"n": 1}],
    ]
