"""Folders where captures rotate as a stream of Spark: each row of one read over all files, once.

Most tests do what Spark does with a reader, without Spark: the process is another each time, batches are tried again.

(proves: reports/spark/stream.py)
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from kwire import analyzer, reports
from kwire.analyzer.checkpoints.codec import CheckpointError
from kwire.analyzer.dataset import tables
from kwire.captures.errors import KwireError
from kwire.reports.spark import stream
from kwire.reports.spark.source import CaptureSource
from tests.analyzer.checkpoints import cutting
from tests.captures import forge
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A capture in five files; connections go on from one to the next."""
    folder = tmp_path / "parts"
    folder.mkdir()
    count = len(cutting.packets(CAPTURE.read_bytes())[1])
    return [Path(path) for path in cutting.cut(CAPTURE, range(count // 5, count - 5, count // 5), folder)]


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    (tmp_path / "ring").mkdir()
    return tmp_path / "ring"


class Query:
    """A query on a stream as Spark runs it. `rows`: of the batches that the sink has taken, by their number."""

    def __init__(self, ring: Path, table: str = "exchanges", limit: int | None = None, **options: str) -> None:
        self._options = {"path": str(ring), "state": str(ring.parent / "state"), "table": table, **options}
        self._limit = ReadAllAvailable() if limit is None else ReadMaxFiles(limit)
        self.table = table
        self.planned: list[Any] = []
        self.rows: dict[int, pa.Table] = {}

    def reader(self, **options: str) -> Any:
        source = CaptureSource({**self._options, **options})
        return source.streamReader(source.schema())

    def batch(self, break_after: int | None = None, **options: str) -> bool:
        """One batch by a new process; whether there was one. `break_after`: the task is killed after so many rows."""
        reader = self.reader(**options)
        try:
            return self._batch(reader, break_after)
        finally:
            reader.stop()

    def _batch(self, reader: Any, break_after: int | None) -> bool:
        number = len(self.rows)
        if len(self.planned) == number:
            start = self.planned[-1] if self.planned else reader.initialOffset()
            end = reader.latestOffset(start, self._limit)
            if end == start:
                return False
            self.planned.append(end)
        start = self.planned[number - 1] if number else reader.initialOffset()
        batches: list[pa.RecordBatch] = []
        for part in reader.partitions(start, self.planned[number]):
            task = pickle.loads(pickle.dumps(reader))
            for rows in task.read(pickle.loads(pickle.dumps(part))):
                batches.append(rows)
                if break_after is not None and sum(map(len, batches)) > break_after:
                    return True
        self.rows[number] = pa.Table.from_batches(batches, tables.schema(self.table)) if batches else self._none()
        reader.commit(self.planned[number])
        return True

    def _none(self) -> pa.Table:
        return tables.schema(self.table).empty_table()

    def all(self) -> pa.Table:
        return pa.concat_tables(self.rows.values())


def same_rows(rows: pa.Table, expected: pa.Table) -> bool:
    """Equal but for the order of rows: what is waited for comes later than what followed it."""
    return sorted(map(repr, rows.to_pylist())) == sorted(map(repr, expected.to_pylist()))


@pytest.mark.parametrize("table", ["exchanges", "partitions", "connections", "messages", "groups"])
def test_a_stream_gives_the_rows_of_one_read(ring: Path, parts: list[Path], table: str) -> None:
    query = Query(ring, table, limit=2)
    for part in parts:
        shutil.move(part, ring)
        query.batch()
    assert query.planned[-1] == {"files": {"ring": 4}, "over": False}, "the newest may still grow"
    assert not query.batch()
    assert query.batch(finish="true")
    assert not query.batch(finish="true")
    expected = getattr(analyzer.analyze(ring, keep_bytes=table == "messages"), table)
    assert len(expected)
    assert same_rows(query.all(), expected)


def test_tasks_that_are_killed_lose_and_double_nothing(ring: Path, parts: list[Path]) -> None:
    chance = random.Random(7)
    query = Query(ring, limit=1)
    rows = analyzer.analyze(CAPTURE).exchanges.num_rows
    killed = 0
    for part in [*parts, None]:
        if part is not None:
            shutil.move(part, ring)
        finish = "false" if part is not None else "true"
        while killed < 20 and query.batch(break_after=chance.randrange(rows // 8), finish=finish):
            killed += 1
            for snapshot in (ring.parent / "state").rglob("*.snapshot"):
                if chance.random() < 0.1:
                    snapshot.unlink()  # it is made again of the files
            if chance.random() < 0.5:
                break
        while query.batch(finish=finish):
            pass
    assert killed
    assert same_rows(query.all(), analyzer.analyze(ring).exchanges)


def test_a_file_that_is_renamed_or_packed_is_the_same(ring: Path, parts: list[Path]) -> None:
    query = Query(ring, limit=2)
    for part in parts[:3]:
        shutil.move(part, ring)
    assert query.batch(break_after=0)
    first = ring / parts[0].name
    (ring / f"{first.name}.gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()
    (ring / parts[1].name).rename(ring / "another-name.pcap")
    for part in parts[3:]:
        shutil.move(part, ring)
    while query.batch(finish="true"):
        pass
    assert query.planned[-1]["files"] == {"ring": 5}
    named = [
        "capture",
        *(f"{side}_{what}" for side in ("request", "response") for what in ("file", "offset", "packet")),
    ]
    rows, expected = query.all(), analyzer.analyze(CAPTURE).exchanges
    assert same_rows(rows.drop_columns(named), expected.drop_columns(named))


def test_a_file_that_vanishes_before_it_was_read_is_an_error(ring: Path, parts: list[Path]) -> None:
    query = Query(ring)
    for part in parts[:3]:
        shutil.move(part, ring)
    assert query.batch(break_after=0)
    (ring / parts[1].name).unlink()
    with pytest.raises(KwireError, match=f"{parts[1].name} is gone before it was read"):
        query.batch()


def test_the_newest_file_is_whole_when_nothing_was_written_for_a_while(ring: Path, parts: list[Path]) -> None:
    shutil.move(parts[0], ring)
    assert not Query(ring).batch(idleSeconds="86400")
    assert Query(ring).batch(idleSeconds="0")


def test_several_folders_are_several_tasks(ring: Path, parts: list[Path]) -> None:
    other = ring.parent / "other"
    shutil.copytree(ring, other)
    for folder in (ring, other):
        shutil.copy(parts[0], folder)
    query = Query(ring, limit=1, paths=f'["{other}"]')
    while query.batch(finish="true"):
        pass
    assert query.planned == [
        {"files": {"ring": 1, "other": 0}, "over": False},
        {"files": {"ring": 1, "other": 1}, "over": True},
    ]
    assert same_rows(query.all(), pa.concat_tables([analyzer.analyze(folder).exchanges for folder in (ring, other)]))


def test_what_cannot_go_on_is_told(ring: Path, parts: list[Path]) -> None:
    query = Query(ring)
    for part in parts[:2]:
        shutil.move(part, ring)
    while query.batch(finish="true"):
        pass
    shutil.move(parts[2], ring)
    with pytest.raises(KwireError, match="after the stream was finished"):
        query.batch(finish="true")
    [state] = (ring.parent / "state").rglob("files.json")
    state.write_text('{"count": 1, "files": []}')
    with pytest.raises(KwireError, match="files that the state folder does not"):
        query.reader().partitions({"files": {"ring": 0}, "over": False}, {"files": {"ring": 2}, "over": False})
    state.write_text("[")
    with pytest.raises(KwireError, match="not a stream's list of files"):
        query.batch()


def test_a_snapshot_that_another_wrote_is_refused(ring: Path, parts: list[Path]) -> None:
    query = Query(ring)
    for part in parts[:2]:
        shutil.move(part, ring)
    query.batch()
    [snapshot] = (ring.parent / "state").rglob("*.snapshot")
    content = snapshot.read_bytes()
    snapshot.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    shutil.move(parts[2], ring)
    with pytest.raises(CheckpointError, match="damaged, or that another user"):
        query.batch()


# --- the newest file, as it grows ------------------------------------------------------------------------------------


def _pcapng(part: Path) -> bytes:
    link, records = forge.loaded(part)
    return forge.pcapng(records, (link,))


@pytest.mark.parametrize("pcapng", [False, True], ids=["pcap", "pcapng"])
@pytest.mark.parametrize("table", ["exchanges", "partitions", "connections", "messages", "groups"])
def test_the_newest_file_is_followed_as_it_grows(ring: Path, parts: list[Path], table: str, pcapng: bool) -> None:
    """Each trigger sees it in the middle of some record."""
    chance = random.Random(3)
    query = Query(ring, table, limit=2, followNewest="true")
    there = 0
    for number, part in enumerate(parts):
        data = _pcapng(part) if pcapng else part.read_bytes()
        for size in sorted(chance.sample(range(200, len(data)), 3)):
            (ring / part.name).write_bytes(data[:size])
            assert query.batch()
            assert query.planned[-1] == {"files": {"ring": number}, "bytes": {"ring": size}, "over": False}
            there, before = query.all().num_rows, there
            assert there >= before
        assert not query.batch(), "nothing came"
        (ring / part.name).write_bytes(data)
    assert query.batch(finish="true")
    assert query.planned[-1] == {"files": {"ring": 5}, "over": True}
    expected = getattr(analyzer.analyze(ring, keep_bytes=table == "messages"), table)
    assert same_rows(query.all(), expected)
    assert there or table in ("connections", "groups")
    assert len(list((ring.parent / "state").rglob("*.snapshot"))) == 1


def test_tasks_that_are_killed_while_a_file_grows_lose_and_double_nothing(ring: Path, parts: list[Path]) -> None:
    chance = random.Random(11)
    query = Query(ring, followNewest="true")
    rows = analyzer.analyze(CAPTURE).exchanges.num_rows
    killed = 0
    for part in parts:
        data = part.read_bytes()
        for size in [*sorted(chance.sample(range(60, len(data)), 4)), len(data)]:
            (ring / part.name).write_bytes(data[:size])
            while killed < 30 and chance.random() < 0.6 and query.batch(break_after=chance.randrange(rows // 8)):
                killed += 1
                for snapshot in (ring.parent / "state").rglob("*.snapshot"):
                    if chance.random() < 0.1:
                        snapshot.unlink()  # it is made again of the files
            if chance.random() < 0.7:
                query.batch()
    while query.batch(finish="true"):
        pass
    assert killed > 10
    assert same_rows(query.all(), analyzer.analyze(ring).exchanges)


def test_a_file_that_is_renamed_or_packed_when_it_is_whole_is_gone_on_with(ring: Path, parts: list[Path]) -> None:
    query = Query(ring, followNewest="true")
    renamed = ring / "whole-1.pcap"
    for number, part in enumerate(parts[:2]):
        data, growing = part.read_bytes(), ring / "growing.pcap"
        growing.write_bytes(data[: len(data) // 2])
        assert query.batch()
        growing.write_bytes(data)
        if number:
            assert query.batch(break_after=0), "it is tried again when the file was packed"
            packed = ring / "whole-2.pcap.gz"
            (ring / "whole-2.pcap").write_bytes(data)
            packed.write_bytes(gzip.compress(data))
            growing.rename(ring / "whole-2.pcap")
            query.batch()
            (ring / "whole-2.pcap").unlink()
            assert not query.batch(), "a packed one waits until another comes"
        else:
            growing.rename(renamed)
    for part in parts[2:]:
        shutil.move(part, ring)
    while query.batch(finish="true"):
        pass
    assert query.planned[-1]["files"] == {"ring": 5}
    named = [
        "capture",
        *(f"{side}_{what}" for side in ("request", "response") for what in ("file", "offset", "packet")),
    ]
    rows, expected = query.all(), analyzer.analyze(CAPTURE).exchanges
    assert same_rows(rows.drop_columns(named), expected.drop_columns(named))


def test_whether_the_newest_file_is_followed_may_change(ring: Path, parts: list[Path]) -> None:
    query = Query(ring)
    for number, part in enumerate(parts):
        data = part.read_bytes()
        (ring / part.name).write_bytes(data[: len(data) // 3])
        query.batch()
        assert query.planned[-1:] == ([{"files": {"ring": number}, "over": False}] if number else [])
        assert query.batch(followNewest="true")
        (ring / part.name).write_bytes(data[: len(data) // 2])
        assert not query.batch(), "what follows waits again"
        (ring / part.name).write_bytes(data)
    assert query.batch(finish="true")
    assert same_rows(query.all(), analyzer.analyze(ring).exchanges)


def test_a_packed_newest_file_waits(ring: Path, parts: list[Path]) -> None:
    (ring / "a.pcap.gz").write_bytes(gzip.compress(parts[0].read_bytes()))
    query = Query(ring, followNewest="true")
    assert not query.batch()
    shutil.move(parts[1], ring)
    assert query.batch()
    assert query.planned[-1]["files"] == {"ring": 1}


@pytest.mark.parametrize("where", ["before it is planned", "before it is read"])
def test_a_file_that_became_shorter_is_told(ring: Path, parts: list[Path], where: str) -> None:
    growing, data = ring / "a.pcap", parts[0].read_bytes()
    growing.write_bytes(data[:5000])
    query = Query(ring, followNewest="true")
    assert query.batch()
    if where == "before it is read":
        growing.write_bytes(data[:6000])
        assert query.batch(break_after=0)
    growing.write_bytes(data[:4000])
    with pytest.raises(KwireError, match="4,000 bytes, and had"):
        query.batch()


def test_a_file_that_is_used_again_before_its_rest_was_read_is_told(ring: Path, parts: list[Path]) -> None:
    growing = ring / "a.pcap"
    growing.write_bytes(parts[0].read_bytes()[:5000])
    query = Query(ring, followNewest="true")
    assert query.batch()
    growing.write_bytes(parts[1].read_bytes())
    with pytest.raises(KwireError, match=r"a\.pcap is gone before it was read"):
        query.batch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": ""}, "a stream needs a folder of its own"),
        ({"table": "findings"}, "judged over all traffic"),
        ({"maxFilesPerTrigger": "0"}, "at least 1"),
        ({"path": "/nowhere"}, "no such folder"),
        ({"path": "s3://bucket/day1", "followNewest": "true"}, "not behind a URL"),
    ],
)
def test_what_is_asked_wrongly_is_told(ring: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises((ValueError, KwireError), match=message):
        Query(ring).reader(**options)


def test_of_two_queries_with_one_state_one_is_told(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOCK_SECONDS", 0.0)
    reader = Query(ring).reader()
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    other = Query(ring).reader()
    with pytest.raises(KwireError, match="process"):
        other.latestOffset(other.initialOffset(), ReadAllAvailable())
    reader.stop()
    other.latestOffset(other.initialOffset(), ReadAllAvailable())
    other.stop()


def test_spark_goes_on_from_its_checkpoint(spark: Any, ring: Path, parts: list[Path], tmp_path: Path) -> None:
    own = spark.newSession()
    reports.register_source(own)

    def run(**options: str) -> None:
        """All that is there, by a query of its own."""
        settings = {"state": str(tmp_path / "state"), "maxFilesPerTrigger": "1", **options}
        frame = own.readStream.format("kafka-capture").options(**settings).load(str(ring))
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        for _ in range(5):
            try:
                writer.trigger(availableNow=True).start(str(tmp_path / "rows"), "parquet").awaitTermination()
                return
            except StreamingQueryException as failure:
                # Spark gives a process of Python ten seconds to start, however busy the machine is.
                if "failed to connect back" not in str(failure):
                    raise
        raise AssertionError("the machine is too busy for Spark")

    for part in parts[:2]:
        shutil.move(part, ring)
    run()
    growing = parts[2].read_bytes()
    (ring / parts[2].name).write_bytes(growing[:5000])
    run(maxFilesPerTrigger="9", followNewest="true")
    for part in parts[2:]:
        shutil.copy(part, ring)
    run(maxFilesPerTrigger="9", finish="true")
    offsets = [path for path in sorted((tmp_path / "checkpoint" / "offsets").iterdir()) if path.name.isdecimal()]
    positions = [json.loads(path.read_text().splitlines()[-1]) for path in offsets]
    assert positions == [
        {"files": {"ring": 1}, "over": False},
        {"files": {"ring": 2}, "bytes": {"ring": 5000}, "over": False},
        {"files": {"ring": 5}, "over": True},
    ]
    rows = own.read.parquet(str(tmp_path / "rows")).toArrow().cast(tables.schema("exchanges"))
    assert same_rows(rows, analyzer.analyze(ring).exchanges)
