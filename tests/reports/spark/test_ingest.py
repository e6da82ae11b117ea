"""Spark's engine writes what the local engine writes: every table, every row, every column, in the same order."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kwire import analyzer
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import DatasetError, TableFiles, Writer
from kwire.analyzer.pipeline.points import manifest
from kwire.captures.files import CaptureError, CapturePoint, capture_points, stored_bytes
from kwire.reports.spark import chunked, ingest, merging
from tests.captures import forge
from tests.reports.equality import assert_same_dataset, fragmented, rotated
from tests.shared import ROOT, SAMPLES, capture_files, sample_folders, shared_folder, shared_folders

CAPTURE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


@pytest.fixture
def crumbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks, shares and ranges small: some connections a task, some hundred packets a range."""
    monkeypatch.setattr(chunked, "share_count", lambda _: 5)
    monkeypatch.setattr(chunked, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(merging, "RANGE_PACKETS", 300)
    monkeypatch.setattr(merging, "LEAST_BYTES", 0)


@pytest.fixture(scope="module")
def every_capture() -> list[str]:
    """The shared captures; the shipped samples, which are some of them, where those are absent."""
    return [str(folder) for folder in shared_folders() or sample_folders()]


@pytest.fixture(scope="module")
def local(every_capture: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them by the local engine, one capture point each."""
    out = tmp_path_factory.mktemp("local") / "dataset"
    analyzer.analyze(every_capture, out, keep_bytes=True, records="meta")
    return out


def test_by_capture_point_every_capture_is_equal(
    spark: Any, every_capture: list[str], local: Path, tmp_path: Path
) -> None:
    ingest.analyze(every_capture, tmp_path / "dataset", spark=spark, keep_bytes=True, records="meta")
    assert_same_dataset(local, tmp_path / "dataset")


def test_a_large_capture_point_is_divided_where_there_are_enough_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [point] = capture_points([str(CAPTURE)])
    size = stored_bytes(point)
    monkeypatch.setattr(ingest, "SPLIT_BYTES", size - 1)
    assert [ingest.Split().is_large(point, cores) for cores in (1, 4, 5, 100)] == [False, False, True, True]
    chunks = ingest.Split(chunk_bytes=1 << 20)
    assert [chunks.is_large(point, cores) for cores in (1, 2, 3, 100)] == [False, False, True, True]
    assert not ingest.Split(chunk_bytes=0).is_large(point, 100)
    monkeypatch.setattr(ingest, "SPLIT_BYTES", size)
    assert not ingest.Split().is_large(point, 100)
    assert ingest.Split(size - 1).is_large(point, 1)
    assert not ingest.Split(size - 1, 0).is_large(point, 1)


@pytest.mark.usefixtures("crumbs")
@pytest.mark.parametrize("split_bytes", [1 << 40, 0], ids=["by capture point", "in chunks"])
def test_a_capture_rotated_into_twenty_files_is_equal(spark: Any, tmp_path: Path, split_bytes: int) -> None:
    capture = shared_folder("net-lossy-4.3") / "capture.pcap.gz"
    rotated(capture, tmp_path / "rotated", 20)
    analyzer.analyze(tmp_path / "rotated", tmp_path / "local")
    ingest.analyze(tmp_path / "rotated", tmp_path / "spark", spark=spark, split_bytes=split_bytes, window_bytes=50_000)
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


CHUNKED = ("midstream-4.3", "net-lossy-4.3", "pcapng-comments-4.3", "snaplen-96-4.3", "tls13-aiokafka-4.3")


def _unpacked(folder: Path, into: Path) -> list[str]:
    """A capture's files as they are before they are compressed: compressed ones are not divided."""
    paths = []
    for capture in capture_files(folder):
        path = into / f"{folder.name}-{capture.name.removesuffix('.gz')}"
        data = capture.read_bytes()
        path.write_bytes(gzip.decompress(data) if capture.suffix == ".gz" else data)
        paths.append(str(path))
    return paths


def test_in_chunks_captures_are_equal(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lossy, begun in the middle, with comments (read again), cut, encrypted. KWIRE_CHUNKED=all: every capture."""
    monkeypatch.setattr(merging, "RANGE_PACKETS", 1000)
    monkeypatch.setattr(merging, "LEAST_BYTES", 0)
    monkeypatch.setattr(chunked, "share_count", lambda _: 3)
    monkeypatch.setattr(chunked, "MOST_AGAIN", 1.0)
    every = os.environ.get("KWIRE_CHUNKED") == "all"
    folders = shared_folders() if every else [shared_folder(name) for name in CHUNKED]
    captures = [path for folder in folders for path in _unpacked(folder, tmp_path)]
    options: dict[str, Any] = {"keep_bytes": True, "records": "meta"}
    notes: list[str] = []
    analyzer.analyze(captures, tmp_path / "local", **options)
    ingest.analyze(
        captures,
        tmp_path / "spark",
        spark=spark,
        split_bytes=0,
        chunk_bytes=64_000 if not every else 256_000,
        tell=notes.append,
        window_bytes=50_000,
        **options,
    )
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")
    assert notes == []
    assert not list((tmp_path / "spark").glob(f"**/{merging.PIECES}"))


@pytest.mark.usefixtures("crumbs")
@pytest.mark.parametrize(
    "chunk_bytes, wanted",
    [
        (64_000, {"filter": "api == Fetch and latency > 100ms or response.brokers.port > 0"}),
        (64_000, {"filter": 'topic == "grp" or topic ~ "^js-" or group is not null', "keep_bytes": True}),
        (64_000, {"records": "full"}),
    ],
    ids=["by body", "by topic", "records in full"],
)
def test_what_asks_for_names_that_others_say_is_divided_too(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, wanted: dict[str, Any]
) -> None:
    """Filters, and records of internal topics: names of topic ids may come from another connection, and later."""
    monkeypatch.setattr(chunked, "MOST_AGAIN", 1.0)
    folders = [SAMPLES / name for name in ("group-kip848-librdkafka-4.3", "client-kafkajs-3.9")]
    captures = [path for folder in folders for path in _unpacked(folder, tmp_path)]
    notes: list[str] = []
    analyzer.analyze(captures, tmp_path / "local", **wanted)
    ingest.analyze(
        captures, tmp_path / "spark", spark=spark, split_bytes=0, chunk_bytes=chunk_bytes, tell=notes.append, **wanted
    )
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")
    assert notes == []
    assert len(analyzer.open_dataset(tmp_path / "spark").exchanges.to_table()) > 0


@pytest.mark.usefixtures("crumbs")
@pytest.mark.parametrize("alone", [True, False])
def test_in_chunks_shares_of_their_own_packets_or_of_all_see_the_same(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr(chunked, "MOST_AGAIN", 1.0)
    monkeypatch.setattr(chunked, "apart", lambda _: alone)
    [capture] = _unpacked(SAMPLES / "group-kip848-librdkafka-4.3", tmp_path)
    analyzer.analyze(capture, tmp_path / "local")
    ingest.analyze(capture, tmp_path / "spark", spark=spark, split_bytes=0, chunk_bytes=32_000, window_bytes=20_000)
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


@pytest.mark.parametrize(
    ("gib", "cores", "chunks"),
    [(1, 8, 1), (8, 2, 2), (8, 16, 8), (20, 2, 6), (1000, 10, 250), (1001, 10, 260)],
)
def test_there_are_as_many_chunks_as_cores_or_several_times_that(
    tmp_path: Path, gib: int, cores: int, chunks: int
) -> None:
    with (tmp_path / "large.pcap").open("wb") as file:
        file.truncate(gib << 30)  # nothing of it is on the disk
    point = CapturePoint("large", ("large.pcap",), (), str(tmp_path))
    size = chunked.chunk_bytes_of(point, cores)
    assert -(-(gib << 30) // size) == chunks
    assert chunked.LEAST_CHUNK_BYTES <= size <= chunked.MOST_CHUNK_BYTES
    missing = CapturePoint("none", ("none.pcap",), (), str(tmp_path))
    assert chunked.chunk_bytes_of(missing, cores) == chunked.LEAST_CHUNK_BYTES


@pytest.mark.usefixtures("crumbs")
def test_where_too_much_was_guessed_wrong_one_task_reads_all_and_a_note_tells(spark: Any, tmp_path: Path) -> None:
    link, records = forge.loaded(CAPTURE)
    capture = tmp_path / "commented.pcapng"
    capture.write_bytes(forge.pcapng(records, (link,), comment="each packet has one"))
    notes: list[str] = []
    analyzer.analyze(capture, tmp_path / "local")
    ingest.analyze(capture, tmp_path / "spark", spark=spark, split_bytes=0, chunk_bytes=16_000, tell=notes.append)
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")
    assert notes == ["commented.pcapng: not read in chunks: 3 of 4 chunks were guessed wrong; one task reads it whole"]


@pytest.mark.usefixtures("crumbs")
def test_in_chunks_the_summary_is_equal_too(spark: Any, tmp_path: Path) -> None:
    notes: list[str] = []
    local = analyzer.analyze(CAPTURE, tmp_path / "local")
    in_chunks = ingest.analyze(
        CAPTURE, tmp_path / "spark", spark=spark, split_bytes=0, chunk_bytes=32_000, tell=notes.append
    )
    assert in_chunks.summary == local.summary
    assert notes == []
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


@pytest.mark.usefixtures("crumbs")
def test_ip_packets_whose_fragments_lie_in_two_files_are_whole(spark: Any, tmp_path: Path) -> None:
    fragmented(CAPTURE, tmp_path / "fragmented", 5)
    analyzer.analyze(tmp_path / "fragmented", tmp_path / "local")
    ingest.analyze(tmp_path / "fragmented", tmp_path / "spark", spark=spark, split_bytes=0, window_bytes=50_000)
    counts = analyzer.open_dataset(tmp_path / "local").captures[0]["packets"]
    assert counts["reassembled"] > 5
    assert counts["fragment"] == 0
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


def test_options_mean_the_same(spark: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"filter": "api == Produce and latency > 5ms", "ports": [9092], "keep_bytes": True}
    analyzer.analyze(CAPTURE, tmp_path / "local", **options)
    ingest.analyze(CAPTURE, tmp_path / "spark", spark=spark, split_bytes=0, chunk_bytes=1 << 15, **options)
    assert 0 < analyzer.open_dataset(tmp_path / "local").exchanges.count_rows() < 100
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


@pytest.mark.parametrize("keep_secrets", [False, True])
def test_secrets_are_masked_or_kept_as_by_the_local_engine(spark: Any, tmp_path: Path, keep_secrets: bool) -> None:
    options: dict[str, Any] = {"keep_bytes": True, "keep_secrets": keep_secrets}
    capture = ROOT / "tests" / "fuzz" / "cases" / "sasl-v0-no-handshake.capture"
    analyzer.analyze(capture, tmp_path / "local", **options)
    ingest.analyze(capture, tmp_path / "spark", spark=spark, **options)
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")
    rows = analyzer.open_dataset(tmp_path / "spark").messages.to_table(["bytes"]).to_pylist()
    assert any(b"\0alice\0" in row["bytes"] for row in rows) == keep_secrets


def test_relative_paths_start_where_the_driver_stands(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CAPTURE.parent)
    ingest.analyze("capture.pcap", tmp_path / "spark", spark=spark)
    analyzer.analyze("capture.pcap", tmp_path / "local")
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


@pytest.mark.parametrize("split_bytes", [1 << 40, 0], ids=["by capture point", "in chunks"])
def test_captures_behind_urls_are_read_by_tasks(spark: Any, tmp_path: Path, split_bytes: int) -> None:
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(CAPTURE, "capture.pcap")
    captures = [f"zip://capture.pcap::{tmp_path}/archive.zip", CAPTURE.as_uri()]
    ingest.analyze(captures, tmp_path / "spark", spark=spark, split_bytes=split_bytes)
    analyzer.analyze(captures, tmp_path / "local")
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


def test_a_dataset_is_added_to(spark: Any, tmp_path: Path) -> None:
    other = SAMPLES / "codecs-franzgo-4.3"
    for out, analyze in ((tmp_path / "local", analyzer.analyze), (tmp_path / "spark", _through(spark))):
        analyze(CAPTURE, out)
        analyze(other, out, append=True)
    assert_same_dataset(tmp_path / "local", tmp_path / "spark")


def _through(spark: Any) -> Any:
    return lambda *arguments, **options: ingest.analyze(*arguments, spark=spark, **options)


@pytest.mark.parametrize("split_bytes", [1 << 40, 0], ids=["by capture point", "in chunks"])
def test_where_one_capture_cannot_be_read_the_old_dataset_stays(spark: Any, tmp_path: Path, split_bytes: int) -> None:
    out = tmp_path / "dataset"
    ingest.analyze(CAPTURE, out, spark=spark)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    unknown = tmp_path / "unknown.pcap"
    unknown.write_bytes(CAPTURE.read_bytes()[:20] + (4242).to_bytes(4, "little") + CAPTURE.read_bytes()[24:])
    with pytest.raises(DatasetError, match="link type 4242 is not known") as raised:
        ingest.analyze([CAPTURE, unknown], out, spark=spark, split_bytes=split_bytes, chunk_bytes=1 << 15)
    assert raised.value.hint
    unknown.unlink()
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_stdin_is_not_for_tasks(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot read stdin"):
        ingest.analyze("-", tmp_path / "dataset", spark=spark)


def test_a_file_that_a_task_wrote_where_the_driver_cannot_see_it_is_an_error(tmp_path: Path) -> None:
    entry = {"table": "exchanges", "path": "exchanges/part-x.parquet", "rows": 1, "size": 10}
    with Writer(tmp_path / "dataset") as writer, pytest.raises(DatasetError, match="was written elsewhere"):
        writer.adopt([entry])
    assert not (tmp_path / "dataset").exists()


def test_what_a_lost_attempt_wrote_is_not_in_the_dataset(tmp_path: Path) -> None:
    """A task that was killed leaves a file nobody lists; its second attempt writes another."""
    row = pa.Table.from_pylist([{"capture": "c", "topic_id": "i", "topic": "t"}], schema=tables.schema("topic_ids"))
    result = analyzer.analyze(CAPTURE)
    with Writer(tmp_path / "dataset") as writer:
        lost, written = TableFiles(writer.folder, f"{writer.run}-0-1"), TableFiles(writer.folder, f"{writer.run}-0-2")
        for parts in (lost, written):
            parts.write("topic_ids", row)
        lost.close()
        writer.adopt(written.close())
        writer.commit(manifest(result))
    assert [path.name for path in (tmp_path / "dataset" / "topic_ids").iterdir()] == [f"part-{writer.run}-0-2.parquet"]
    assert analyzer.open_dataset(tmp_path / "dataset").topic_ids.to_table().num_rows == 1
