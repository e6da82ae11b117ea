"""Questions asked of datasets in Spark SQL (`views/`), and their answers rendered as a page, Markdown or JSON.

`register(spark, dataset)` is the door for one's own SQL; `kwire report` is the door for people.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def register(spark: Any, datasets: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Make the tables of one dataset or several, and the views over them, temporary views of a Spark session.

    Returns their names. A table that a dataset lacks is there and empty. Where several datasets hold a capture point
    of the same name, it becomes `DATASET/CAPTURE`, so that keys stay unique. Raises
    `kwire.analyzer.dataset.dataset.DatasetError`.
    """
    from kwire.reports import relations

    paths = [datasets] if isinstance(datasets, str | os.PathLike) else list(datasets)
    return relations.register(spark, paths)


def register_source(spark: Any) -> None:
    """Make captures a data source of a Spark session:
    `spark.read.format("kafka-capture").option("table", "exchanges").load("day1")`; `reports/spark/source.py` has the
    options.

    Filters are pushed down where the session's `spark.sql.python.filterPushdown.enabled` is true at this moment.
    """
    from kwire.reports.spark import source

    source.register_source(spark)
