"""How large windows are, by what they hold; what is read does not depend on it.

(proves: captures/windows.py)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kwire.analyzer.api import decode
from kwire.analyzer.pipeline import points
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures import windows
from kwire.captures.chunks.parallel_scan import AheadReader
from kwire.captures.files import CapturePoint
from kwire.captures.packets import Packets, Reader
from kwire.captures.windows import LARGE_BYTES, LESS_FOR, MOST_HELD, MOST_ROWS, USUAL_BYTES, Pool, WindowSize
from tests.bench import generate
from tests.captures import forge
from tests.captures.chunks.chunking import read_by, whole

MIB = 1 << 20


def _sizes(size: WindowSize, *held: int) -> list[int]:
    """Of windows in MiB, the first one's and that after each that held so much a MiB."""
    sizes = [size.size // MIB]
    for rows in held:
        before = size.size
        assert size.after(rows * before // MIB) == (size.size != before)
        sizes.append(size.size // MIB)
    return sizes


def test_windows_are_large_once_one_did_not_hold_much() -> None:
    assert _sizes(WindowSize(8 * MIB, 32 * MIB), *[MOST_HELD] * 100) == [8, *[32] * 100]


def test_what_holds_much_is_read_less_at_a_time_for_a_while() -> None:
    size = WindowSize(8 * MIB, 32 * MIB)
    until = LESS_FOR // (8 * MIB)
    assert _sizes(size, 1, MOST_HELD + 1, *[1] * until) == [8, 32, *[8] * until, 32]
    assert set(_sizes(WindowSize(8 * MIB, 32 * MIB), *[MOST_HELD + 1] * 200)) == {8}


def test_one_window_that_held_too_much_is_enough_for_so_long() -> None:
    until = LESS_FOR // (8 * MIB)
    size = WindowSize(8 * MIB, 32 * MIB)
    size.after(MOST_HELD * 8 + 8)
    once = [1, MOST_HELD + 1, *[1] * (until - 2)]
    assert _sizes(size, *once, *[1] * until) == [*[8] * 2 * until, 32]


def test_the_same_is_always_read_where_it_is_said_how_much() -> None:
    assert set(_sizes(WindowSize(16 * MIB, 16 * MIB), *[1] * 100, MOST_HELD + 1, *[1] * 100)) == {16}


def test_a_pool_hands_out_the_new_size_and_keeps_no_other() -> None:
    pool = Pool(1000, 0)
    old = pool.take(10)
    assert len(old.buffer) - old.spare == 1000
    pool.resize(3000, 20)
    larger = pool.take(2000)
    assert len(larger.buffer) - larger.spare == 3000
    assert len(larger.columns.number) == 20
    old.give_back()
    larger.give_back()
    assert pool.take(10) is larger
    other = pool.take(10)
    assert other is not old
    assert len(other.buffer) - other.spare == 3000
    pool.resize(500, 20)
    assert len(pool.take(501).buffer) == 2 * 501, "an outsized one"


def test_of_what_is_read_more_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "LARGE_POINT", 1000)

    def large_bytes_of(how: ReadOptions, size: int = 1000, **choice: Any) -> int:
        return points.how_to_read(how.settings(), AnalysisOptions.of(**choice), size).large_bytes

    default = ReadOptions()
    assert [large_bytes_of(default, records=records) for records in ("none", "batches", "meta", "full")] == [
        LARGE_BYTES
    ] * 2 + [0] * 2
    assert large_bytes_of(default) == LARGE_BYTES > large_bytes_of(default, 999) == USUAL_BYTES
    assert large_bytes_of(default, 0) == LARGE_BYTES, "what comes live"
    assert large_bytes_of(default, keep_bytes=True) == large_bytes_of(ReadOptions(window_bytes=5000)) == 0


@pytest.mark.parametrize("records", ["none", "batches"])
def test_rows_are_the_same_however_much_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: str
) -> None:
    paths = [tmp_path / f"{case}.pcap" for case in ("large", "small")]
    generate.large(paths[0], 3_000_000)
    generate.small(paths[1], 1_000_000)
    paths += paths

    def tables(how: ReadOptions) -> dict[str, pa.Table]:
        return decode(
            CapturePoint("two", tuple(map(str, paths))), None, how, AnalysisOptions.of(records=records)
        ).tables

    sizes: list[int] = []
    resize = Reader.resize

    def noted_resize(self: Reader, window_bytes: int) -> None:
        sizes.append(window_bytes)
        resize(self, window_bytes, 500)

    monkeypatch.setattr(Reader, "resize", noted_resize)
    expected = tables(ReadOptions(window_bytes=30_000))
    assert sizes == []
    monkeypatch.setattr(windows, "LESS_FOR", 100_000)
    monkeypatch.setattr(windows, "MOST_HELD", 4000)
    monkeypatch.setattr(
        points,
        "how_to_read",
        lambda settings, choice, _: replace(
            settings, keep_records=choice.records != "none", window_bytes=20_000, large_bytes=60_000
        ),
    )
    resized = tables(ReadOptions())
    assert len(sizes) >= 4, "more and less by turns"
    assert set(sizes) == {60_000, 20_000}
    assert resized.keys() == expected.keys()
    for name, table in expected.items():
        assert resized[name].equals(table), name


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_packets_for_which_there_is_no_room_come_with_the_next_window(tmp_path: Path, rows: int) -> None:
    records = forge.rendered(forge.converse([forge.Write(bool(n % 2), bytes(50)) for n in range(200)]))
    (tmp_path / "a.pcapng").write_bytes(forge.pcapng(records))
    (tmp_path / "b.pcap").write_bytes(forge.pcap(records)[:-1])
    point = CapturePoint("point", (str(tmp_path / "a.pcapng"), str(tmp_path / "b.pcap")))
    sizes: list[int] = []

    class CountingReader(Reader):
        def __next__(self) -> Packets:
            packets = super().__next__()
            sizes.append(len(packets))
            return packets

    reader = CountingReader(point)
    reader.resize(10_000, rows)
    assert read_by(reader).differences(whole(point)) == []
    assert max(sizes) == min(rows, max(sizes))
    assert len(sizes) >= len(records) // rows


@pytest.mark.parametrize("rows", [17, MOST_ROWS])
def test_several_threads_put_chunks_together(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "a.pcap"
    writes = [forge.Write(bool(n % 2), bytes(100 + n % 700)) for n in range(4000)]
    path.write_bytes(forge.pcap(forge.rendered(forge.converse(writes, mss=300))))
    point = CapturePoint("point", (str(path), str(path)))
    reader = AheadReader(point, 3, 8 << 10)
    batches: list[int] = []
    scanned = reader._scanned

    def counted(*how: object) -> object:
        scan = scanned(*how)  # type: ignore[arg-type]
        batches.append(scan[0].stored)
        reader.resize((8 << 10) * (2 + len(batches) % 5), rows)
        return scan

    reader._scanned = counted  # type: ignore[method-assign, assignment]
    assert read_by(reader).differences(whole(point)) == []
    assert max(batches) > 30 << 10
    assert min(batches[5:-5]) < 30 << 10
