"""Datasets as relations: tables, what is known of the captures, Kafka's own lists, and the views.

In: folders of datasets. Out: what there is and what it holds, the same for both engines; and, in a Spark session,
temporary views, with nothing read yet but the manifests. Only files that a manifest lists are read.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

import pyarrow as pa

from kwire.analyzer.dataset import dataset as datasets
from kwire.analyzer.dataset import tables
from kwire.analyzer.protocol import error_severity, errors
from kwire.analyzer.protocol import schema as definitions
from kwire.reports import catalog, named_ends, releases, zones

_SPARK_TYPES = {
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    tables.TIME: "TIMESTAMP",
}

_STRING, _INT, _LONG, _SHORT = pa.string(), pa.int32(), pa.int64(), pa.int16()

# fmt: off
BESIDES: dict[str, pa.Schema] = {
    "captures": pa.schema([
        ("dataset", _STRING), ("capture", _STRING), ("files", _INT), ("file_bytes", _LONG), ("packets", _LONG),
        ("tcp_packets", _LONG), ("dropped_packets", _LONG), ("link_types", tables.STRINGS),
        ("first_time", tables.TIME), ("last_time", tables.TIME), ("meaning", pa.bool_()),
    ]),
    "unrecognised": pa.schema([
        ("dataset", _STRING), ("capture", _STRING), ("connection", _STRING), ("payload_bytes", _LONG),
        ("looks_like", _STRING),
    ]),
    "address_zones": pa.schema([("address", _STRING), ("zone", _STRING)]),
    "address_names": pa.schema([("address", _STRING), ("name", _STRING)]),
    "kafka_errors": pa.schema([
        ("error_code", _SHORT), ("error", _STRING), ("retriable", pa.bool_()), ("message", _STRING),
    ]),
    "error_judgements": pa.schema([
        ("error_code", _SHORT), ("api", _STRING), ("judgement", _STRING), ("grace_us", _LONG), ("why", _STRING),
    ]),
    "kafka_releases": pa.schema([
        ("release", _STRING), ("position", _INT), ("api_key", _SHORT), ("api", _STRING), ("min", _SHORT),
        ("max", _SHORT),
    ]),
}
# fmt: on
"""What there is beside the tables of the contract, in the manifests or here."""

ABOUT = {
    "exchanges": "What was asked and answered? A row for each request with its response.",
    "partitions": "What did an exchange say of each partition? Offsets, errors, sizes.",
    "batches": "Which record batches were in it? With `--records batches` or more.",
    "records": "Which records were in them? With `--records meta` or more.",
    "connections": "Which connections spoke Kafka, and how did they fare?",
    "leaders": "Who leads a partition, and since when?",
    "brokers": "Which brokers does the cluster say it has?",
    "topic_ids": "Which topic has which id?",
    "api_versions": "Which versions did a broker offer?",
    "messages": "What are the bytes of a message? With `--keep-bytes`.",
    "clients": "Who are the clients, with which software, and what do they use?",
    "readers": "Who reads which partition, from where to where?",
    "groups": "What happened to the members of groups?",
    "rebalances": "Which rebalances were there, what set them off, what did they cost?",
    "offsets": "Which offsets were committed, or gone to by a reset?",
    "transactions": "Which transactions were there, and how did they end?",
    "journeys": "When was each produced batch created, sent, acknowledged, fetched by whom, and committed?",
    "findings": "What is wrong, why, and what is to be done?",
    "schemas": "Which schemas were keys and values decoded with?",
    "outcomes": "What became of each request of a replay?",
    "remaps": "Which captured value became which at a replay's target?",
    "audit": "Is what a replay's target acknowledged there, and in order?",
    "captures": "Which captures are in the dataset?",
    "unrecognised": "Which connections spoke something else?",
    "address_zones": "In which zone is an address? As `--zones FILE` says.",
    "address_names": "What is the name of an address? As `--names FILE` says.",
    "kafka_errors": "Which errors does Kafka have?",
    "error_judgements": "Which errors are part of the protocol's course, which pass, which are faults?",
    "kafka_releases": "Which API versions does a Kafka release have?",
}
"""What each relation that is no view answers."""

# fmt: off
_BESIDES_ABOUT = {
    "dataset": "Name of the dataset's folder.", "capture": "Name of the capture point.",
    "files": "Files it is made of.", "file_bytes": "Their sizes together.", "packets": "Packets in them.",
    "tcp_packets": "Of these TCP.", "dropped_packets": "Packets that the capture itself lost, where its files say so.",
    "link_types": "Link types of its interfaces.", "first_time": "First packet.", "last_time": "Last packet.",
    "meaning": "What its traffic means was worked out: it has findings, groups, offsets and so forth.",
    "connection": "The two ends.", "payload_bytes": "Captured payload.",
    "looks_like": "What its first bytes look like.", "address": "Address of a client or broker.",
    "zone": "Its zone.", "name": "Its name.", "error_code": "Kafka's number of the error.",
    "error": "Its name.", "retriable": "Kafka's clients send the same request again after it.",
    "message": "What Kafka says of it.",
    "judgement": "`normal`, `transient`, `bad` or `admin`: see `analyzer/protocol/error_severity.py`.",
    "grace_us": "How long a client may keep getting it before that is a fault; null: for ever.",
    "why": "What the error means.", "release": "Name of the release, as `4.0`.",
    "position": "Its place in the order of releases.", "api_key": "Kafka's number of the API.",
    "api": "Kafka's name of the API.", "min": "Lowest version that the release has.",
    "max": "Highest version that the release has.",
}
# fmt: on

EXACT_EXCHANGES = 2_000_000
"""Up to so many exchanges quantiles are exact. Above, each value counts as the middle of its bucket, 48 or more to each
power of two, which puts quantiles at most 0.8 % off: of ten million latencies most are distinct, and counting them
one by one is what Spark would do most of the time."""

MATERIALIZED: dict[str, tuple[str, ...]] = {
    "failed_exchanges": (),
    "connection_apis": (),
    "error_runs": ("failures", "things", "successes"),
    "broker_addresses": (),
}
"""Views that several questions of a report read, whose few rows cost a walk over all exchanges: made once. Each with
those of its common tables that are small, which nobody knows before they are there: the embedded engine makes them
first, else it puts ten million successes into a hash table to look up a few failures in it."""

_BUCKETS = " ".join(
    f"WHEN value < {256 << 2 * n} THEN (value & {-(1 << 2 * n)}) | {1 << 2 * n - 1}" for n in range(1, 17)
)
BUCKETED = f"CASE WHEN value < 256 OR value IS NULL THEN value {_BUCKETS} ELSE (value & {-(1 << 32)}) | {1 << 31} END"
"""Steps of 4 from 256 on, of 16 from 1,024 on, and so forth: comparisons and masks, for logarithms are slow."""


def spark_type(kind: pa.DataType) -> str:
    """A type of `analyzer/dataset/tables.py` as Spark SQL writes it."""
    if pa.types.is_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {spark_type(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    return _SPARK_TYPES[kind]


def spark_schema(schema: pa.Schema) -> str:
    """Columns as Spark SQL writes them."""
    return ", ".join(f"`{column.name}` {spark_type(column.type)}" for column in schema)


_reading: weakref.WeakKeyDictionary[Any, list[datasets.StoredDataset]] = weakref.WeakKeyDictionary()
"""The datasets that a session has views of, by session: their files stay while it does."""


def names() -> list[str]:
    """All that `register` makes."""
    return [*tables.TABLES, *BESIDES, *(view.name for view in catalog.views())]


def question(name: str) -> str:
    """The question that a table or view answers."""
    return ABOUT[name] if name in ABOUT else catalog.view(name).question


def columns(name: str) -> dict[str, str]:
    """The columns of a table or view, and what each holds."""
    if name in tables.TABLES:
        named = {column: named_ends.ABOUT[column] for column in named_ends.columns(name)}
        return {column.name: column.about for column in tables.TABLES[name]} | named
    if name in BESIDES:
        return {column: _BESIDES_ABOUT[column] for column in BESIDES[name].names}
    return catalog.view(name).columns


def register(
    spark: Any,
    paths: Sequence[str | os.PathLike[str]],
    only: Container[str] | None = None,
) -> tuple[str, ...]:
    """See `kwire.register`. `only`: of the tables and views those of these names; None: all."""
    opened = [datasets.open_dataset(path) for path in paths]
    _reading.setdefault(spark, []).extend(opened)
    made_names = _tables(spark, opened, only)
    for name, rows in besides(opened).items():
        _literal(spark, BESIDES[name], rows).createOrReplaceTempView(name)
        made_names.append(name)
    _function(spark, opened)
    for view in catalog.views():
        if only is None or view.name in only:
            try:
                rows = spark.sql(view.sql)
            except Exception as failure:
                failure.add_note(f"{view.name}.sql")  # whose lines are those that Spark counts
                raise
            (rows.persist() if view.name in MATERIALIZED else rows).createOrReplaceTempView(view.name)
            made_names.append(view.name)
    return tuple(made_names)


def _tables(spark: Any, opened: Sequence[datasets.StoredDataset], only: Container[str] | None) -> list[str]:
    """Every table of the contract, or some, over all datasets."""
    names = [name for name in tables.TABLES if only is None or name in only]
    for name in names:
        schema = spark_schema(tables.schema(name))
        parts = []
        for files, new_names in listed(opened, name):
            part = spark.read.schema(schema).parquet(*[_escaped(file) for file in files])
            parts.append(part.replace(new_names, subset=["capture"]) if new_names else part)
        table = parts[0] if parts else _literal(spark, tables.schema(name), [])
        for part in parts[1:]:
            table = table.union(part)
        _with_names(spark, table, named_ends.columns(name), opened).createOrReplaceTempView(name)
    return names


def _with_names(spark: Any, table: Any, columns: dict[str, str], opened: Sequence[datasets.StoredDataset]) -> Any:
    """A table with the names of its addresses as its last columns."""
    if not columns:
        return table
    from pyspark.sql import functions

    names = _literal(spark, BESIDES["address_names"], named_ends.rows(opened))
    for column, ip in columns.items():
        named = names.withColumnsRenamed({"address": ip, "name": column})
        table = table.join(functions.broadcast(named), ip, "left").select(*table.columns, column)
    return table


def listed(opened: Sequence[datasets.StoredDataset], name: str) -> list[tuple[list[str], dict[str, str]]]:
    """The files of a table by dataset, those without left out, and the names that its capture points get."""
    tables_of = []
    for dataset, new_names in zip(opened, _renamed_captures(opened)):
        files = [
            str((dataset.path / entry["path"]).resolve())
            for entry in dataset.manifest["files"]
            if entry["table"] == name
        ]
        if files:
            tables_of.append((files, new_names))
    return tables_of


def exchanges(opened: Sequence[datasets.StoredDataset]) -> int:
    """How many exchanges the manifests say there are."""
    return sum(file["rows"] for dataset in opened for file in dataset.manifest["files"] if file["table"] == "exchanges")


def bucketed(opened: Sequence[datasets.StoredDataset]) -> str:
    """The body of `bucketed(value)`: what a number of microseconds or bytes counts as in quantiles."""
    return "value" if exchanges(opened) <= EXACT_EXCHANGES else BUCKETED


def besides(opened: Sequence[datasets.StoredDataset]) -> dict[str, list[list[Any]]]:
    """The rows of what there is beside the tables, by name."""
    rows = (
        _capture_rows(opened),
        _unrecognised_rows(opened),
        zones.rows(opened),
        named_ends.rows(opened),
        _error_rows(),
        _judgement_rows(),
        _release_rows(),
    )
    return dict(zip(BESIDES, rows, strict=True))


def _function(spark: Any, opened: Sequence[datasets.StoredDataset]) -> None:
    body = bucketed(opened)
    spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION bucketed(value BIGINT) RETURNS BIGINT RETURN {body}")


def _renamed_captures(opened: Sequence[datasets.StoredDataset]) -> list[dict[str, str]]:
    """For each dataset, its capture points whose name another dataset has too, with the name they get."""
    names = [[entry["name"] for entry in dataset.captures] for dataset in opened]
    shared = Counter(name for own in names for name in set(own))
    return [{name: f"{label}/{name}" for name in own if shared[name] > 1} for label, own in zip(_labels(opened), names)]


def _labels(opened: Sequence[datasets.StoredDataset]) -> list[str]:
    """A short name for each dataset: its folder's, or its whole path where two folders are called the same."""
    short = [dataset.path.resolve().name for dataset in opened]
    return [name if short.count(name) == 1 else str(dataset.path) for name, dataset in zip(short, opened)]


def _escaped(path: str) -> str:
    """A path that Spark takes literally: it reads `*`, `?`, `[`, `{` as patterns."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def _literal(spark: Any, schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> Any:
    """Rows that are known here as a data frame that needs no Python in Spark's workers."""
    text = json.dumps([dict(zip(schema.names, row)) for row in rows])
    query = f"SELECT inline(from_json(:rows, 'ARRAY<STRUCT<{spark_schema(schema).replace('`', '')}>>'))"
    return spark.sql(query, args={"rows": text})


def _capture_rows(opened: Sequence[datasets.StoredDataset]) -> list[list[Any]]:
    rows = []
    for dataset, label, renamed in zip(opened, _labels(opened), _renamed_captures(opened)):
        for entry in dataset.captures:
            packets = entry.get("packets", {})
            rows.append(
                [
                    label,
                    renamed.get(entry["name"], entry["name"]),
                    len(entry["files"]),
                    sum(file.get("size", 0) for file in entry["files"]),
                    packets.get("packets"),
                    packets.get("tcp"),
                    packets.get("dropped_by_capture"),
                    entry.get("link_types", []),
                    entry.get("first_time"),
                    entry.get("last_time"),
                    bool(entry.get("meaning")),
                ]
            )
    return rows


def _unrecognised_rows(opened: Sequence[datasets.StoredDataset]) -> list[list[Any]]:
    rows = []
    for dataset, label, renamed in zip(opened, _labels(opened), _renamed_captures(opened)):
        for entry in dataset.manifest["unrecognised"]["listed"]:
            capture = renamed.get(entry["capture"], entry["capture"])
            rows.append([label, capture, entry["connection"], entry["payload_bytes"], entry["looks_like"]])
    return rows


def _error_rows() -> list[list[Any]]:
    return [[error.code, error.name, error.retriable, error.message] for error in errors.errors().values()]


def _judgement_rows() -> list[list[Any]]:
    return [
        [of.code, of.api, of.kind, None if of.grace_s is None else of.grace_s * 1_000_000, of.why]
        for of in error_severity.judgements()
    ]


def _release_rows() -> list[list[Any]]:
    names = {api.api_key: api.name for api in definitions.apis()}
    return [
        [release.name, position, api_key, names.get(api_key), lowest, highest]
        for position, release in enumerate(releases.releases())
        for api_key, (lowest, highest) in release.apis.items()
    ]
