"""On a real cluster: analyze, sql and report on executors that have kwire only by what the job shipped."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from kwire import analyzer
from tests.reports.equality import assert_same_dataset
from tests.reports.spark.cluster import SECONDS, Cluster, kill, kwire, shipped
from tests.shared import SAMPLES, sample_folders, shared_folders

CAPTURES = [str(folder) for folder in (shared_folders() or sample_folders())]
SAMPLE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def on_cluster(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that ship kwire and use the cluster."""
    archive = shipped(tmp_path_factory.mktemp("shipped"))
    # What kwire depends on is on the cluster's machines; kwire itself (editable here) is not on these paths.
    installed = ":".join(dict.fromkeys([*site.getsitepackages(), str(Path(numpy.__file__).parents[1])]))
    return [
        "--master",
        cluster.master,
        "--conf",
        f"spark.archives={archive}#kwire-env",
        "--conf",
        f"spark.executorEnv.PYTHONPATH=kwire-env:{installed}",
        "--conf",
        "spark.executor.memory=512m",
        # Two machines with a core each: of Spark's 200 parts a shuffle nearly all are empty, and each has its file.
        "--conf",
        "spark.sql.shuffle.partitions=4",
    ]


@pytest.fixture
def environment() -> dict[str, str]:
    """Executors run a Python that knows nothing of our virtual environment."""
    return {"PYSPARK_PYTHON": os.path.realpath(sys.executable)}


def finished(process: subprocess.Popen[str]) -> str:
    """stdout of a command that must end well."""
    out, err = process.communicate(timeout=5 * SECONDS)
    assert process.returncode == 0, err[-3000:]
    return out


@pytest.mark.parametrize(
    "split", [[], ["--split-bytes", "1", "--chunk-bytes", "65536"]], ids=["by capture point", "in chunks"]
)
def test_analyze_on_a_cluster_is_equal(
    on_cluster: list[str], environment: dict[str, str], tmp_path: Path, split: list[str]
) -> None:
    captures = [str(SAMPLE), str(SAMPLES / "codecs-franzgo-4.3")]
    command = ["analyze", *captures, "-o", str(tmp_path / "spark"), "--engine", "spark", *split, *on_cluster]
    finished(kwire(*command, environment=environment))
    analyzer.analyze(captures, tmp_path / "local")
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


def test_a_lost_executor_neither_doubles_nor_loses_rows(
    cluster: Cluster, on_cluster: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    command = ["analyze", *CAPTURES, "-o", str(tmp_path / "spark"), "--engine", "spark", *on_cluster]
    process = kwire(*command, environment=environment)
    try:
        # Some capture points are written, others are not: now a machine goes.
        until = time.monotonic() + SECONDS
        while not list(tmp_path.glob(".spark.*.new/exchanges/*.parquet")):
            assert time.monotonic() < until
            assert process.poll() is None, process.communicate()[1][-3000:]
            time.sleep(0.02)
        kill(cluster.executors()[0])
        finished(process)
    finally:
        process.kill()
    analyzer.analyze(CAPTURES, tmp_path / "local")
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


def test_sql_and_report_on_a_cluster(on_cluster: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    dataset = analyzer.analyze(SAMPLE, tmp_path / "dataset")
    query = "SELECT count(*) AS n, count(DISTINCT connection) AS connections FROM exchanges"
    process = kwire("sql", str(tmp_path / "dataset"), query, "--format", "csv", *on_cluster, environment=environment)
    rows = analyzer.open_dataset(tmp_path / "dataset").exchanges.to_table()
    assert finished(process).split() == ["n,connections", f"{len(rows)},{len(rows['connection'].unique())}"]
    page = tmp_path / "report.html"
    finished(kwire("report", str(tmp_path / "dataset"), "-o", str(page), *on_cluster, environment=environment))
    assert "InitProducerId" in page.read_text("utf-8")
    assert dataset.summary["exchanges"] == len(rows)
