"""Captures as a data source: the tables of `analyze`, with and without filters pushed down."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource

from kwire import analyzer, reports
from kwire.analyzer.dataset import tables
from kwire.reports.spark.source import CaptureSource, PushingReader, condition
from tests.analyzer import forging
from tests.analyzer.analysis import test_replicated_offsets as replicas
from tests.shared import SAMPLES

CAPTURES = [str(SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"), str(SAMPLES / "codecs-franzgo-4.3")]


@pytest.fixture(params=["true", "false"], ids=["pushing", "not pushing"])
def session(spark: Any, request: pytest.FixtureRequest) -> Any:
    own = spark.newSession()
    own.conf.set("spark.sql.python.filterPushdown.enabled", request.param)
    reports.register_source(own)
    return own


def test_rows_are_those_of_analyze(session: Any) -> None:
    local = analyzer.analyze(CAPTURES, keep_bytes=True, records="meta")
    local.tables["batches"] = analyzer.analyze(CAPTURES).batches  # as they are without decompressing
    for name in local.tables:
        rows = session.read.format("kafka-capture").option("table", name).load(CAPTURES).toArrow()
        assert rows.cast(tables.schema(name)).equals(local.tables[name]), name


def test_offsets_that_replicas_are_sent_are_rows_of_offsets_too(tmp_path: Path) -> None:
    name = replicas.named(1, forging.TOPIC_ID, "__consumer_offsets")
    capture = replicas.written(tmp_path, name, replicas.copies(2, forging.TOPIC_ID, [replicas.commit(0, 40)]))
    source = CaptureSource({"path": str(capture), "table": "offsets"})
    reader = source.reader(source.schema())
    loaded = pa.Table.from_batches([rows for part in reader.partitions() for rows in reader.read(part)])
    assert loaded["kind"].to_pylist() == ["replica"]
    assert loaded.equals(analyzer.analyze(capture).offsets)


def test_captures_behind_urls_are_loaded(session: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(CAPTURES[0], "day/capture.pcap")
    urls = [f"zip://day::{tmp_path}/archive.zip", Path(CAPTURES[0]).as_uri()]
    for url in urls:
        assert session.read.format("kafka-capture").load(url).count() == analyzer.analyze(url).exchanges.num_rows


def test_a_condition_gives_the_same_rows_whoever_applies_it(session: Any) -> None:
    frame = session.read.format("kafka-capture").option("columns", "api,latency_us,error").load(CAPTURES)
    assert frame.columns == ["api", "latency_us", "error"]
    rows = analyzer.analyze(CAPTURES).exchanges.to_pandas()
    filtered = frame.where("api IN ('Produce', 'Fetch') AND latency_us >= 5000 AND NOT (error IS NOT NULL)")
    expected = rows[rows.api.isin(["Produce", "Fetch"]) & (rows.latency_us >= 5000) & rows.error.isna()]
    assert 0 < filtered.count() == len(expected)


def test_a_table_that_is_none_is_told(session: Any) -> None:
    with pytest.raises(Exception, match="no table 'nothing'; there are exchanges"):
        session.read.format("kafka-capture").option("table", "nothing").load(CAPTURES).count()


def test_pushed_filters_thin_out_and_are_all_given_back() -> None:
    reader = PushingReader({"path": CAPTURES[0]}, "exchanges", ["api"])
    pushed = [datasource.EqualTo(("api",), "Produce"), datasource.EqualTo(("errors", "code"), 3)]
    assert list(reader.pushFilters(pushed)) == pushed
    rows = pa.concat_tables(pa.Table.from_batches([batch]) for batch in reader.read(reader.partitions()[0]))
    assert set(rows["api"].to_pylist()) == {"Produce"}


def test_a_filter_that_arrow_cannot_say_is_left_to_spark() -> None:
    assert condition(datasource.EqualTo(("errors", "code"), 3)) is None
    assert condition(datasource.Not(datasource.EqualTo(("errors", "code"), 3))) is None
    assert condition(object()) is None
