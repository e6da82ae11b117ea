"""SQL on decoded keys and values: the examples of the guide, by Spark (`kwire sql` gives them to it) and DuckDB alone.

Proves: docs/guides/payloads.md
"""

from __future__ import annotations

import json
import re
from typing import Any

import duckdb
import pytest

from kwire.reports.embedded.engine import opened
from kwire.reports.engine_protocol import UnsupportedSqlError
from kwire.reports.spark.engine import Spark
from tests.analyzer.cli.test_parser import printed
from tests.analyzer.payloads.golden_payloads import write_capture
from tests.shared import ROOT

GUIDE = (ROOT / "docs" / "guides" / "payloads.md").read_text("utf-8")
CITIES = [("orders", "Bern", 1), ("orders", "Zürich", 2)]


def statements(mark: str) -> list[str]:
    """The statements of the guide's blocks of SQL in which a mark stands."""
    (block,) = [block for block in re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL) if mark in block]
    return [text for part in block.split(";") if (text := re.sub(r"--[^\n]*", "", part).strip())]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("payload-sql")
    values: list[dict[str, Any]] = [
        {"address": {"city": "Zürich"}, "amount": "150.10"},
        {"address": {"city": "Zürich"}, "amount": 1000},
        {"address": {"city": "Bern"}, "amount": "100.01"},
        {"address": {"city": "Bern"}, "amount": "100.00"},  # not more than 100
        {"address": {"city": "Genf"}},
    ]
    rows = [("orders", b"k", json.dumps(value, ensure_ascii=False).encode(), ()) for value in values]
    schema = folder / "schemas" / "bills-value.avsc"
    schema.parent.mkdir()
    schema.write_text('"long"')
    written = [*rows, ("bills", None, b"\xff\xff\x01\x02\x03", ()), ("bills", None, b"text", ())]
    capture = write_capture(folder / "orders.pcap", written)
    printed("analyze", capture, "-o", folder / "orders.kwire", "--schemas", schema.parent)
    return str(folder / "orders.kwire")


def test_the_guide_has_examples_of_both() -> None:
    assert len(statements("get_json_object")) == 2
    assert len(statements("->>")) == 1


def test_the_embedded_engine_leaves_them_to_spark(dataset: str) -> None:
    with opened([dataset]) as engine, pytest.raises(UnsupportedSqlError):
        engine.ask(statements("get_json_object")[0])


def test_spark_answers_the_guides_examples(dataset: str, spark: Any) -> None:
    engine = Spark(spark.newSession(), [dataset], only=frozenset(["records"]))
    cities, undecodable = (engine.ask(text)[0].to_pylist() for text in statements("get_json_object"))
    assert sorted((row["topic"], row["city"], row["records"]) for row in cities) == CITIES
    assert [row["topic"] for row in undecodable] == ["bills", "bills"]
    assert all("avro" in row["undecodable"] for row in undecodable)


def test_duckdb_alone_answers_the_guides_example(dataset: str) -> None:
    (query,) = statements("->>")
    rows = duckdb.sql(query.replace("orders.kwire", dataset)).fetchall()
    assert sorted(rows) == CITIES
