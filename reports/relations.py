"""Datasets as relations of a Spark session: tables, what is known of the captures, Kafka's own lists, and the views.

In: a session and the folders of datasets. Out: temporary views, and nothing read yet but the manifests. Only files
that a manifest lists are read.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from analyzer import dataset as datasets
from analyzer import errors, tables
from analyzer import schema as definitions
from reports import catalog, releases

_SPARK_TYPES = {
    pa.string(): "STRING", pa.binary(): "BINARY", pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT",
    pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", tables.TIME: "TIMESTAMP",
}  # fmt: skip

CAPTURES = (
    "dataset STRING, capture STRING, files INT, file_bytes BIGINT, packets BIGINT, tcp_packets BIGINT, "
    "dropped_packets BIGINT, link_types ARRAY<STRING>, first_time TIMESTAMP, last_time TIMESTAMP"
)
UNRECOGNISED = "dataset STRING, capture STRING, connection STRING, payload_bytes BIGINT, looks_like STRING"
KAFKA_ERRORS = "error_code SMALLINT, error STRING, retriable BOOLEAN, message STRING"
KAFKA_RELEASES = "release STRING, position INT, api_key SMALLINT, api STRING, min SMALLINT, max SMALLINT"

_BESIDES = {
    "captures": CAPTURES, "unrecognised": UNRECOGNISED, "kafka_errors": KAFKA_ERRORS, "kafka_releases": KAFKA_RELEASES,
}  # fmt: skip
"""What there is beside the tables of the contract, in the manifests or here."""

EXACT_EXCHANGES = 2_000_000
"""Up to so many exchanges quantiles are exact. Above, each value counts as the middle of its bucket, 48 or more to each
power of two, which puts quantiles at most 0.8 % off: of ten million latencies most are distinct, and counting them
one by one is what Spark would do most of the time."""

_BUCKETS = " ".join(
    f"WHEN value < {256 << 2 * n} THEN (value & {-(1 << 2 * n)}) | {1 << 2 * n - 1}" for n in range(1, 17)
)
_BUCKETED = f"CASE WHEN value < 256 OR value IS NULL THEN value {_BUCKETS} ELSE (value & {-(1 << 32)}) | {1 << 31} END"
"""Steps of 4 from 256 on, of 16 from 1,024 on, and so forth: comparisons and masks, for logarithms are slow."""


def spark_type(kind: pa.DataType) -> str:
    """A type of `analyzer/tables.py` as Spark SQL writes it."""
    if pa.types.is_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{one.name}: {spark_type(one.type)}' for one in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    return _SPARK_TYPES[kind]


def names() -> list[str]:
    """All that `register` makes."""
    return [*tables.TABLES, *_BESIDES, *(view.name for view in catalog.views())]


def register(
    spark: Any, paths: Sequence[str | os.PathLike[str]], only: Container[str] | None = None
) -> tuple[str, ...]:
    """See `reports.register`. `only`: of the tables and views those of these names; None: all."""
    opened = [datasets.open_dataset(path) for path in paths]
    made = _tables(spark, opened, only)
    rows = (_capture_rows(opened), _unrecognised_rows(opened), _error_rows(), _release_rows())
    for (name, schema), some in zip(_BESIDES.items(), rows, strict=True):
        _literal(spark, schema, some).createOrReplaceTempView(name)
        made.append(name)
    _function(spark, opened)
    for view in catalog.views():
        if only is None or view.name in only:
            spark.sql(view.sql).createOrReplaceTempView(view.name)
            made.append(view.name)
    return tuple(made)


def _tables(spark: Any, opened: Sequence[datasets.StoredDataset], only: Container[str] | None) -> list[str]:
    """Every table of the contract, or some, over all datasets."""
    renamed = _renamed_captures(opened)
    names = [name for name in tables.TABLES if only is None or name in only]
    for name in names:
        columns = tables.TABLES[name]
        schema = ", ".join(f"`{column.name}` {spark_type(column.type)}" for column in columns)
        parts = []
        for one, new_names in zip(opened, renamed):
            files = [str(one.path / entry["path"]) for entry in one.manifest["files"] if entry["table"] == name]
            if files:
                part = spark.read.schema(schema).parquet(*[_escaped(file) for file in files])
                parts.append(part.replace(new_names, subset=["capture"]) if new_names else part)
        table = parts[0] if parts else _literal(spark, schema, [])
        for part in parts[1:]:
            table = table.union(part)
        table.createOrReplaceTempView(name)
    return names


def _function(spark: Any, opened: Sequence[datasets.StoredDataset]) -> None:
    """`bucketed(value)`: what a number of microseconds or bytes counts as in quantiles."""
    exchanges = sum(file["rows"] for one in opened for file in one.manifest["files"] if file["table"] == "exchanges")
    value = "value" if exchanges <= EXACT_EXCHANGES else _BUCKETED
    spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION bucketed(value BIGINT) RETURNS BIGINT RETURN {value}")


def _renamed_captures(opened: Sequence[datasets.StoredDataset]) -> list[dict[str, str]]:
    """For each dataset, its capture points whose name another dataset has too, with the name they get."""
    names = [[entry["name"] for entry in one.captures] for one in opened]
    shared = Counter(name for own in names for name in set(own))
    return [{name: f"{label}/{name}" for name in own if shared[name] > 1} for label, own in zip(_labels(opened), names)]


def _labels(opened: Sequence[datasets.StoredDataset]) -> list[str]:
    """A short name for each dataset: its folder's, or its whole path where two folders are called the same."""
    short = [one.path.resolve().name for one in opened]
    return [name if short.count(name) == 1 else str(one.path) for name, one in zip(short, opened)]


def _escaped(path: str) -> str:
    """A path that Spark takes literally: it reads `*`, `?`, `[`, `{` as patterns."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", str(Path(path).resolve()))


def _literal(spark: Any, schema: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Rows that are known here as a data frame that needs no Python in Spark's workers."""
    names = [part.split()[0].strip("`") for part in re.split(r", (?![^<]*>)", schema)]
    text = json.dumps([dict(zip(names, row)) for row in rows])
    query = f"SELECT inline(from_json(:rows, 'ARRAY<STRUCT<{schema.replace('`', '')}>>'))"
    return spark.sql(query, args={"rows": text})


def _capture_rows(opened: Sequence[datasets.StoredDataset]) -> list[list[Any]]:
    rows = []
    for one, label, renamed in zip(opened, _labels(opened), _renamed_captures(opened)):
        for entry in one.captures:
            packets = entry.get("packets", {})
            rows.append([
                label, renamed.get(entry["name"], entry["name"]), len(entry["files"]),
                sum(file["size"] for file in entry["files"]), packets.get("packets"), packets.get("tcp"),
                packets.get("dropped_by_capture"), entry["link_types"], entry["first_time"], entry["last_time"],
            ])  # fmt: skip
    return rows


def _unrecognised_rows(opened: Sequence[datasets.StoredDataset]) -> list[list[Any]]:
    rows = []
    for one, label, renamed in zip(opened, _labels(opened), _renamed_captures(opened)):
        for entry in one.manifest["unrecognised"]["listed"]:
            capture = renamed.get(entry["capture"], entry["capture"])
            rows.append([label, capture, entry["connection"], entry["payload_bytes"], entry["looks_like"]])
    return rows


def _error_rows() -> list[list[Any]]:
    return [[one.code, one.name, one.retriable, one.message] for one in errors.errors().values()]


def _release_rows() -> list[list[Any]]:
    names = {api.api_key: api.name for api in definitions.apis()}
    return [
        [release.name, position, api_key, names.get(api_key), lowest, highest]
        for position, release in enumerate(releases.releases())
        for api_key, (lowest, highest) in release.apis.items()
    ]
