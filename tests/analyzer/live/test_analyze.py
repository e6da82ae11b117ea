"""Test `kwire analyze -i`: it gives the rows of a recording of the same traffic, and ends like a recording.

(proves: analyzer/live/analyze.py, analyzer/live/continuation.py, analyzer/live/rotations.py, analyzer/live/startup.py)
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from kwire import analyzer
from kwire.analyzer import api
from kwire.analyzer.cli import parser
from kwire.analyzer.common.signals import interrupted_by_others
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset, StoredDataset
from kwire.analyzer.live import analyze
from kwire.analyzer.live.rotations import Rotations
from kwire.analyzer.live.stop_conditions import ended_by
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint
from kwire.captures.files.write import Record, pcap
from kwire.captures.live.capture_queue import CaptureQueue
from kwire.captures.live.recording import Recording, Target
from kwire.captures.live.stream import LiveStream
from kwire.captures.live.taps import Counts
from tests.analyzer.live.running import capturing, refused
from tests.captures.live.scripted import ScriptedTap, chunks_of
from tests.live import Wire, sample_records

RECORDS = sample_records()
FILED = {"capture", "request_file", "response_file", "request_offset", "response_offset", "offset", "file"}
"""Columns about files: live traffic has none."""


def rows(table: pa.Table) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = table.drop_columns([n for n in table.column_names if n in FILED]).to_pylist()
    return listed


@pytest.mark.parametrize("each", [1, 40])
def test_a_recording_and_the_live_capture_give_the_same_rows(each: int, tmp_path: Path) -> None:
    """All tables, from the very same chunks."""
    chunks = chunks_of(RECORDS, each)
    recording = Recording(ScriptedTap([]), Target(str(tmp_path / "a.pcap")))
    for chunk in chunks:
        recording.take(chunk)
    recording.close()
    of_file = analyzer.analyze(tmp_path / "a.pcap", records="full")
    with CaptureQueue(ScriptedTap(chunks, Counts(3, None))) as belt:
        live = api.decode(
            CapturePoint("eth7", ("-",)),
            None,
            ReadOptions(window_bytes=1 << 20),
            AnalysisOptions.of(records="full"),
            stdin=cast(io.BufferedReader, LiveStream(belt)),
        )
    assert live.captures[0]["name"] == "eth7"
    assert live.captures[0]["packets"]["dropped_by_capture"] == 3
    assert set(live.tables) == set(of_file.tables)
    for name in sorted(set(of_file.tables) - {"findings"}):
        assert rows(live.tables[name]) == rows(of_file.tables[name]), name
    assert len(live.exchanges) == 188
    live_codes, file_codes = ([row["code"] for row in dataset.findings.to_pylist()] for dataset in (live, of_file))
    # The answer may have been in one of the three packets that were lost.
    assert [code for code in live_codes if code != "capture-lost-packets"] == [
        code for code in file_codes if code != "request-unanswered"
    ]
    assert "capture-lost-packets" in live_codes
    assert "request-unanswered" in file_codes


def test_two_processes_on_one_interface_give_the_same_rows(wire: Wire, tmp_path: Path) -> None:
    """One records, one decodes, at the same time; a signal ends both."""
    capture, dataset = tmp_path / "a.pcap", tmp_path / "dataset"
    with (
        capturing("record", "-i", wire.name, "-o", capture) as recording,
        capturing("analyze", "-i", wire.name, "-o", dataset) as analysing,
    ):
        wire.send(record.data for record in RECORDS)
        assert analysing.end(signal.SIGINT) == 0
        assert recording.end(signal.SIGINT) == 0
    live, of_file = analyzer.open_dataset(dataset), analyzer.analyze(capture)
    assert not [line for line in analysing.stderr_lines if "Traceback" in line]
    for name in sorted(set(of_file.tables) - {"messages", "findings", *tables.RUN_TABLES}):
        assert rows(getattr(live, name).to_table()) == rows(of_file.tables[name]), name
    assert len(of_file.exchanges) == 188
    assert live.captures[0]["name"] == wire.name
    assert live.captures[0]["packets"]["dropped_by_capture"] == 0


def analysed(tap: ScriptedTap, *arguments: object) -> None:
    """Run `kwire analyze -i` on a scripted tap."""
    options = parser.parse(["analyze", "-i", "any", "--rotate-bytes", "30000", *map(str, arguments)])[1]
    assert analyze.analyze(options, tap) == 0


def pieces() -> list[list[Record]]:
    """The sample's records as a rotation after 30,000 bytes divides them, 20 at a time."""
    groups: list[list[Record]] = [[]]
    for i in range(0, len(RECORDS), 20):
        if sum(16 + len(record.data) for record in groups[-1]) >= 30_000:
            groups.append([])
        groups[-1] += RECORDS[i : i + 20]
    return groups


BY_STRETCH = {"connections", "topic_ids", "brokers", "api_versions", "leaders", "findings", *tables.MEANING}
"""Tables that each rotated dataset has for itself, so that rows may repeat."""


def recorded(folder: Path) -> Dataset:
    """Write the groups of `pieces` as files of one capture, and read them in one pass."""
    names = []
    for i, records in enumerate(pieces()):
        names.append(folder / f"a{i}.pcap")
        names[-1].write_bytes(pcap(records, nanoseconds=True))
    return analyzer.analyze(names, rotated=True, records="full", keep_bytes=True)


def stretches_of(out: Path) -> list[StoredDataset]:
    datasets = [analyzer.open_dataset(path) for path in sorted(out.iterdir())]
    assert len(datasets) == len(pieces()) == 4
    return datasets


def test_a_row_of_datasets_has_every_exchange_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows of one pass, in its order, though connections and exchanges cross the borders of the datasets."""
    out, folder = tmp_path / "row", tmp_path / "files"
    folder.mkdir()
    analysed(ScriptedTap(chunks_of(RECORDS, 20), Counts(0, None)), "-o", out, "--records", "full", "--keep-bytes")
    datasets, expected = stretches_of(out), recorded(folder)
    assert [data.path.name[:14] for data in datasets] == [f"script0-{i:05d}-" for i in range(1, 5)]
    for name in sorted(set(expected.tables) - BY_STRETCH):
        together = [row for data in datasets for row in rows(getattr(data, name).to_table())]
        assert together == rows(expected.tables[name]), name
    assert len(expected.exchanges) == 188
    assert max(len(data.connections.to_table()) for data in datasets) > 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [data.path.name for data in datasets]
    assert sum(int(line.split()[1]) for line in lines) == len(RECORDS)


def test_what_stretches_count_adds_up(tmp_path: Path) -> None:
    """Packets and bytes of connections, and coverage: each dataset counts its own."""
    out, folder = tmp_path / "row", tmp_path / "files"
    folder.mkdir()
    analysed(ScriptedTap(chunks_of(RECORDS, 20)), "-o", out)
    datasets, expected = stretches_of(out), recorded(folder)
    total: Counter[str] = Counter()
    for data in datasets:
        classes = ("duplicate_bytes", "decoded_bytes", "opaque_bytes", "skipped_bytes", "incomplete_bytes")
        assert data.coverage["payload_bytes"] == sum(data.coverage[name] for name in classes) > 0
        total.update({name: value for name, value in data.coverage.items() if isinstance(value, int)})
    assert total["payload_bytes"] == expected.coverage["payload_bytes"]
    assert total["decoded_bytes"] + total["incomplete_bytes"] == sum(
        expected.coverage[name] for name in ("decoded_bytes", "incomplete_bytes")
    )
    counted = ("client_packets", "broker_packets", "client_bytes", "broker_bytes", "requests", "errors")
    sums: dict[str, Counter[str]] = {}
    for data in datasets:
        for row in data.connections.to_table().to_pylist():
            sums.setdefault(row["connection"], Counter()).update({name: row[name] for name in counted})
            assert all(row[name] >= 0 for name in counted)
    assert sums == {
        row["connection"]: Counter({name: row[name] for name in counted}) for row in expected.connections.to_pylist()
    }


def test_names_and_offers_of_earlier_stretches_are_known(tmp_path: Path) -> None:
    """Each dataset holds all names that are needed to read it alone."""
    out, folder = tmp_path / "row", tmp_path / "files"
    folder.mkdir()
    analysed(ScriptedTap(chunks_of(RECORDS, 20)), "-o", out)
    datasets, expected = stretches_of(out), recorded(folder)
    for name in ("topic_ids", "brokers"):
        rows_by_window = [set(map(str, rows(getattr(data, name).to_table()))) for data in datasets]
        assert all(earlier <= later for earlier, later in pairwise(rows_by_window))
        assert rows_by_window[-1] == set(map(str, rows(expected.tables[name])))
    clients = {row["connection"]: row["client_id"] for row in expected.connections.to_pylist()}
    for data in datasets:
        named = {row["connection"] for row in data.connections.to_table().to_pylist()}
        assert {row["connection"] for row in data.exchanges.to_table(["connection"]).to_pylist()} <= named
        for row in data.connections.to_table().to_pylist():
            assert row["client_id"] == clients[row["connection"]]


def test_what_is_open_when_nothing_follows_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture ends right after a rotation: exchanges in flight become a dataset without packets."""
    out = tmp_path / "row"
    over = iter([False])
    monkeypatch.setattr(Rotations, "over", property(lambda self: next(over, True)))
    records = RECORDS[:100]
    analysed(ScriptedTap(chunks_of(records, 100)), "-o", out)
    (tmp_path / "a.pcap").write_bytes(pcap(records, nanoseconds=True))
    expected = analyzer.analyze(tmp_path / "a.pcap")
    datasets = [analyzer.open_dataset(path) for path in sorted(out.iterdir())]
    assert len(datasets) == 2
    exchanges = [row for data in datasets for row in rows(data.exchanges.to_table())]
    assert exchanges == rows(expected.exchanges)
    assert [row["response_end"] for row in rows(datasets[1].exchanges.to_table())] == [None] * (
        len(exchanges) - len(rows(datasets[0].exchanges.to_table()))
    )
    assert datasets[1].captures[0]["packets"]["packets"] == 0
    over = iter([False])
    analysed(ScriptedTap(chunks_of(records, 100)), "-o", tmp_path / "kept", "--keep", "1")
    assert [path.name[:13] for path in (tmp_path / "kept").iterdir()] == ["script0-00002"]


def test_a_row_keeps_the_last_and_what_somebody_reads(tmp_path: Path) -> None:
    row = tmp_path / "row"
    analysed(ScriptedTap(chunks_of(RECORDS, 20)), "-o", row, "--keep", "2", "--records", "none")
    assert [path.name[:13] for path in sorted(row.iterdir())] == ["script0-00003", "script0-00004"]
    (row / "script0-00002-20260101T000000").mkdir()
    (row / "notes").mkdir()
    read = analyzer.open_dataset(sorted(row.glob("script0-00003-*"))[0])
    analysed(ScriptedTap(chunks_of(RECORDS[:40], 20)), "-o", row, "--keep", "1", "--records", "none")
    assert sorted(path.name[:13] for path in row.iterdir()) == ["notes", *(f"script0-0000{i}" for i in (2, 3, 5))]
    assert read.exchanges.count_rows() > 0


def test_stretches_of_one_dataset_are_capture_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dataset"
    for _ in range(2):
        analysed(ScriptedTap(chunks_of(RECORDS, 20)), "-o", out, "--append", "--json", "--records", "none")
    dataset = analyzer.open_dataset(out)
    names = [capture["name"] for capture in dataset.captures]
    assert len(set(names)) == len(names) == 8
    assert sum(capture["packets"]["packets"] for capture in dataset.captures) == 2 * len(RECORDS)
    assert set(dataset.exchanges.to_table(["capture"]).column(0).to_pylist()) == set(names)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["capture"] for line in printed] == names
    assert {line["dataset"] for line in printed} == {str(out)}


@pytest.mark.parametrize(("most", "seconds"), [(None, None), (5000, None), (1, None), (None, 1e-9)])
def test_stretches_lose_nothing_between_them(most: int | None, seconds: float | None) -> None:
    chunks = chunks_of(RECORDS, 7)
    contents: list[bytes] = []
    with CaptureQueue(ScriptedTap(chunks)) as belt:
        stretches = Rotations(belt, most, seconds)
        while stretches.more():
            stream, data = cast(LiveStream, stretches.next()), b""
            room = memoryview(bytearray(1000))
            while count := stream.readinto1(room):
                data += room[:count].tobytes()
            assert data.startswith(belt.tap.header)
            assert not stream.waits(0.0)
            contents.append(data.removeprefix(belt.tap.header))
    assert b"".join(contents) == b"".join(chunk.data for chunk in chunks)
    if most is None and seconds is None:
        assert len(contents) == 1
    elif most != 5000:
        assert contents == [chunk.data for chunk in chunks]
    else:
        assert all(5000 <= len(data) < 5000 + max(len(chunk.data) for chunk in chunks) for data in contents[:-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "lo", "-o", "{tmp}/d", "--keep", "2"], "--keep goes with a row of datasets"),
        (["-i", "lo", "-o", "{tmp}/d", "--keep", "2", "--append", "--rotate-bytes", "1MB"], "--keep goes with a row"),
        (["a.pcap", "--rotate-seconds", "60s", "-o", "{tmp}/d"], "--rotate-seconds goes with -i"),
        (["-o", "{tmp}/d"], "the following arguments are required: CAPTURE, or -i IFACE"),
        (["a.pcap", "-i", "lo", "-o", "{tmp}/d"], "-i captures itself: a CAPTURE beside it is one too many"),
        (["a.pcap", "--for", "60s", "-o", "{tmp}/d"], "--for goes with -i"),
        (["a.pcap", "-f", "tcp", "-o", "{tmp}/d"], "-f goes with -i"),
        (["-i", "nosuch0", "-o", "{tmp}/d"], "-i nosuch0: no such interface"),
        (["-i", "lo", "--engine", "spark", "-o", "{tmp}/d"], "-i is captured and decoded in this process"),
        (["-i", "lo", "--rotated", "-o", "{tmp}/d"], "--rotated goes with several captures"),
        (["-i", "lo", "--spool", "/dev/null/x", "-o", "{tmp}/d"], "--spool /dev/null/x: "),
    ],
)
def test_what_cannot_be_is_one_line_and_a_hint(
    arguments: list[str], message: str, wire: Wire, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused("analyze", arguments, message, tmp_path, capsys)
    assert not list(tmp_path.iterdir())


def test_the_first_signal_ends_the_capture_and_another_interrupt_all() -> None:
    stopped: list[int] = []
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where tests are started
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    try:
        with contextlib.suppress(KeyboardInterrupt), ended_by(lambda: stopped.append(1)):
            interrupt()
            assert stopped == [1]
            interrupt()
            raise AssertionError("not reached")
        assert signal.getsignal(signal.SIGINT) == before
    finally:
        signal.signal(signal.SIGINT, outside)


def test_what_ends_a_service_interrupts_once_and_the_tidying_up_is_left_alone() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    outside = [signal.signal(number, signal.SIG_DFL) for number in numbers]  # may be ignored outside
    interruptions = 0
    try:
        with interrupted_by_others():
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                interruptions += 1
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
        assert interruptions == 1
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 2
    finally:
        for number, handler in zip(numbers, outside, strict=True):
            signal.signal(number, handler)
