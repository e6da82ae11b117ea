"""What each view answers, over rows that the test wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reports
from analyzer import tables
from analyzer.dataset import DatasetError
from reports import catalog
from tests.reports.forging import Forged


class Asked:
    """Views over forged rows."""

    def __init__(self, spark: Any, *paths: Path) -> None:
        self.spark = spark.newSession()
        self.names = reports.register(self.spark, paths)

    def __call__(self, query: str) -> list[dict[str, Any]]:
        query = query if " " in query else f"SELECT * FROM {query}"
        return [row.asDict(recursive=True) for row in self.spark.sql(query).collect()]


def test_tables_that_a_dataset_lacks_are_there_and_empty(spark: Any, forged: Forged) -> None:
    asked = Asked(spark, forged.write())
    for name, columns in tables.TABLES.items():
        assert asked(name) == []
        assert asked.spark.table(name).columns == [column.name for column in columns]
    for view in catalog.views():
        assert asked.spark.table(view.name).columns == list(view.columns), view.name
        assert asked(view.name) == [], view.name
    assert set(asked.names) >= {*tables.TABLES, "captures", "kafka_errors", "latency_by_api"}


def test_a_folder_that_is_no_dataset_is_said(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="not a dataset"):
        reports.register(spark.newSession(), tmp_path)
