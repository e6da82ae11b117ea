"""Captures as a data source of Spark: `spark.read.format("kafka-capture").option("table", "exchanges").load("day1")`.

In: a path and options. Out: rows of one table of `analyzer/dataset/tables.py`, decoded on the way; a task for each
capture point. Each table read is a decode of its own: to ask more than once, `kwire analyze` first.

Options (any case): `table` (default `exchanges`), `columns` (`a,b,c`: only these cross over to Java), and as of `kwire
analyze` `filter`, `rotated`, `port` (`9092,9093`), `threads`, `windowBytes`, `frameLimit`, `keylog`. The table
`messages` is there without being asked to keep bytes; secrets are overwritten.

`readStream` of folders where captures rotate is `stream.py`.

Rule: filters that Spark pushes down only thin out rows on our side; Spark applies them once more. So a filter that we
do not know costs time, never rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark_source
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kwire.analyzer.api import findings_of
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import concatenated
from kwire.analyzer.frame.arrow import plain
from kwire.analyzer.pipeline.points import BATCHES, META, NO_RECORDS, AnalysisOptions, joined, point_tables, read_point
from kwire.analyzer.pipeline.read_options import FEW_THREADS, ReadOptions
from kwire.captures.files import CapturePoint
from kwire.reports.spark.ingest import task_points

if TYPE_CHECKING:
    from kwire.analyzer.pipeline.read_options import Settings

BATCH_ROWS = 64_000
"""Rows of an Arrow batch handed to Spark."""


@dataclass
class PointPartition(InputPartition):
    """One capture point."""

    point: CapturePoint

    def __post_init__(self) -> None:
        super().__init__(self.point.name)


class CaptureReader(DataSourceReader):
    """Reads one table of some capture points."""

    def __init__(self, options: Mapping[str, str], table: str, columns: list[str]) -> None:
        self._points = task_points(_paths(options), _flag(options, "rotated"))
        self._choice = _choice(options, table)
        self._settings = _settings(options, self._choice)
        self._table = table
        self._columns = columns
        self._condition: pc.Expression | None = None

    def partitions(self) -> list[InputPartition]:
        return [PointPartition(point) for point in self._points]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        for name, rows in self._tables(partition.point):
            if name != self._table or not len(rows):
                continue
            chosen = plain(rows, name)
            if self._condition is not None:
                chosen = chosen.filter(self._condition)
            yield from chosen.select(self._columns).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)

    def _tables(self, point: CapturePoint) -> Iterator[tuple[str, pa.Table]]:
        if self._table != "findings":
            yield from point_tables(point, self._settings, self._choice)
            return
        # They come of all the others, when these are known to the end.
        filtered: dict[str, list[pa.Table]] = {}
        known = joined(
            [
                read_point(
                    point, self._settings, self._choice, lambda name, rows: filtered.setdefault(name, []).append(rows)
                )
            ]
        )
        yield "findings", findings_of(known, {name: concatenated(name, parts) for name, parts in filtered.items()})


class PushingReader(CaptureReader):
    """A CaptureReader for sessions that push filters: others refuse a reader that could take them."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        known = [
            known_condition
            for known_condition in (condition(pushed) for pushed in filters)
            if known_condition is not None
        ]
        self._condition = reduce(lambda a, b: a & b, known) if known else None
        return filters


class CaptureSource(DataSource):
    """The data source `kafka-capture`."""

    @classmethod
    def name(cls) -> str:
        return "kafka-capture"

    def schema(self) -> StructType:
        table = self._table()
        schema = tables.schema(table)
        names = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        unknown = [name for name in names if name not in schema.names]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r} in {table}; there are {', '.join(schema.names)}")
        return from_arrow_schema(pa.schema([schema.field(name) for name in names or schema.names]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return CaptureReader(self.options, self._table(), schema.names)

    def streamReader(self, schema: StructType) -> Any:
        """A stream: `stream.py`."""
        try:
            from kwire.reports.spark.stream import stream
        except ModuleNotFoundError as missing:
            raise ValueError("streams need PySpark 4.2 or newer") from missing

        options, table = self.options, self._table()
        choice = _choice(options, table)
        return stream(options, _paths(options), table, schema.names, _settings(options, choice), choice)

    def _table(self) -> str:
        table: str = self.options.get("table", "exchanges")
        if table not in tables.TABLES:
            raise ValueError(f"no table {table!r}; there are {', '.join(tables.TABLES)}")
        return table


class PushingSource(CaptureSource):
    """A CaptureSource for sessions that push filters."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushingReader(self.options, self._table(), schema.names)


def register_source(spark: Any) -> None:
    """See `kwire.register_source`."""
    pushes = spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    spark.dataSource.register(PushingSource if pushes else CaptureSource)


def _paths(options: Mapping[str, str]) -> list[str]:
    """The argument of `load`: one path, or several as a JSON list."""
    several = options.get("paths")
    paths = [str(path) for path in json.loads(several)] if several else []
    if options.get("path"):
        paths.insert(0, options["path"])
    if not paths:
        raise ValueError('no capture was named: spark.read.format("kafka-capture").load("day1")')
    return paths


def _flag(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def _choice(options: Mapping[str, str], table: str) -> AnalysisOptions:
    """The options of decoding for a table. Some of the rows of `offsets` are records that replicas are sent."""
    with_batches = dict.fromkeys(("batches", "offsets", "findings"), BATCHES)
    records = {**with_batches, "records": options.get("records", META)}.get(table, NO_RECORDS)
    return AnalysisOptions.of(options.get("filter"), None, table == "messages", records)


def _number(options: Mapping[str, str], name: str) -> int | None:
    return int(options[name]) if name in options else None


def _settings(options: Mapping[str, str], choice: AnalysisOptions) -> Settings:
    ports = [int(port) for port in options.get("port", "").split(",") if port.strip()]
    how = ReadOptions(
        ports=ports,
        threads=_number(options, "threads"),
        window_bytes=_number(options, "windowBytes"),
        frame_limit=_number(options, "frameLimit"),
        keylogs=[options["keylog"]] if options.get("keylog") else [],
    )
    return how.settings(choice.keep, most=FEW_THREADS)


def condition(pushed: Any) -> pc.Expression | None:
    """A filter of Spark as a condition of Arrow; None where there is none that keeps at least the same rows."""
    if isinstance(pushed, spark_source.Not):
        inner = condition(pushed.child)
        return None if inner is None else ~inner
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(path) != 1:
        return None  # inside a list or struct
    column = pc.field(path[0])
    value = getattr(pushed, "value", None)
    makers: dict[type, Any] = {
        spark_source.EqualTo: lambda: column == value,
        spark_source.GreaterThan: lambda: column > value,
        spark_source.GreaterThanOrEqual: lambda: column >= value,
        spark_source.LessThan: lambda: column < value,
        spark_source.LessThanOrEqual: lambda: column <= value,
        spark_source.In: lambda: column.isin(list(value or ())),
        spark_source.IsNull: column.is_null,
        spark_source.IsNotNull: column.is_valid,
        spark_source.StringStartsWith: lambda: pc.starts_with(column, value),
        spark_source.StringEndsWith: lambda: pc.ends_with(column, value),
        spark_source.StringContains: lambda: pc.match_substring(column, value),
    }
    make = makers.get(type(pushed))
    return make() if make is not None else None
