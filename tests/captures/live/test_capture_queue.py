"""Between the thread that captures and whoever takes: order, bounds, drops, the spool; and as a reader's bytes.

(proves: captures/live/capture_queue.py, captures/live/stream.py)
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kwire.captures.errors import CaptureError
from kwire.captures.files import CapturePoint
from kwire.captures.live.capture_queue import CaptureQueue, Drops, Spool
from kwire.captures.live.stream import LiveStream
from kwire.captures.live.taps import Counts, PcapRecords
from kwire.captures.packets import Reader
from tests.captures.live.scripted import ScriptedTap, chunks_of
from tests.captures.reading import read_point, rows_of
from tests.live import SAMPLE, sample_records


def chunks_of_queue(queue: CaptureQueue) -> list[PcapRecords]:
    chunks = []
    while not queue.over:
        chunk = queue.take(60)
        if chunk is not None:
            chunks.append(chunk)
    return chunks


def numbered(count: int, size: int = 10) -> list[PcapRecords]:
    return [PcapRecords(bytes([i]) * size, i + 1) for i in range(count)]


def test_all_comes_in_order() -> None:
    chunks = numbered(50)
    with CaptureQueue(ScriptedTap(chunks)) as queue:
        assert chunks_of_queue(queue) == chunks
        assert queue.packets == sum(chunk.packets for chunk in chunks)
        assert queue.drops() == Drops(0, 0, 0)
        assert queue.take(0) is None


def test_what_finds_no_room_is_dropped_whole_and_counted() -> None:
    """Nobody takes until all was handed over: the first four fit."""
    chunks = numbered(10)
    tap = ScriptedTap(chunks, Counts(3, 2), stays=True)
    with CaptureQueue(tap, room=45) as queue:
        assert tap.handed.wait(60)
        queue.stop()
        assert chunks_of_queue(queue) == chunks[:4]
        lost = sum(chunk.packets for chunk in chunks[4:])
        assert queue.drops() == Drops(3, 2, lost)
        assert queue.drops().total == lost + 5


def test_one_chunk_larger_than_the_room_is_not_lost() -> None:
    chunk = PcapRecords(bytes(100), 7)
    with CaptureQueue(ScriptedTap([chunk]), room=45) as queue:
        assert chunks_of_queue(queue) == [chunk]


def test_a_spool_keeps_what_finds_no_room_and_the_order(tmp_path: Path) -> None:
    chunks = numbered(100)
    tap = ScriptedTap(chunks, stays=True)
    folder = tmp_path / "spool"
    with CaptureQueue(tap, str(folder), room=45) as queue:
        assert tap.handed.wait(60)
        queue.stop()
        assert chunks_of_queue(queue) == chunks
        assert queue.drops().queue == 0
    assert not list(folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_spool_is_begun_anew_when_it_is_empty(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    for _ in range(3):
        for chunk in numbered(5):
            assert spool.put(chunk)
        assert [spool.take() for _ in range(5)] == numbered(5)
        assert os.fstat(spool._file.fileno()).st_size == 0
    spool.close()


def test_a_spool_that_cannot_be_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match=r"--spool .*file"):
        Spool(str(tmp_path / "file"))


def test_what_ends_the_thread_is_told_where_it_is_taken() -> None:
    class Faulty(ScriptedTap):
        def read(self) -> PcapRecords | None:
            raise ValueError("a fault")

    with CaptureQueue(Faulty([])) as queue:
        queue.take(60)
        with pytest.raises(ValueError, match="a fault"):
            _ = queue.over


def test_a_reader_sees_the_same_packets_as_in_a_file() -> None:
    expected = read_point(CapturePoint("file", (str(SAMPLE),)))
    tap = ScriptedTap(chunks_of(sample_records(), 7), Counts(4, None))
    with (
        CaptureQueue(tap) as queue,
        Reader(CapturePoint("live", ("-",)), stdin=LiveStream(queue)) as reader,  # type: ignore[arg-type]
    ):
        rows = []
        for batch in reader:
            rows += rows_of(batch)
            batch.release()
    assert [replace(row, record_at=0) for row in rows] == [replace(row, record_at=0) for row in expected.rows]
    assert reader.counts["dropped_by_capture"] == 4
    assert not reader.notes


def test_a_reader_gets_what_is_there_and_does_not_wait_for_a_full_window() -> None:
    """The tap stays open: only a window that is handed on half full can be seen."""
    records = sample_records()
    tap = ScriptedTap(chunks_of(records[:5], 5), stays=True)
    with (
        CaptureQueue(tap) as queue,
        Reader(CapturePoint("live", ("-",)), stdin=LiveStream(queue)) as reader,  # type: ignore[arg-type]
    ):
        seen = 0
        while seen < 5:
            batch = next(reader)
            seen += len(batch)
            batch.release()
        queue.stop()
        assert sum(len(batch) for batch in reader) == 0
