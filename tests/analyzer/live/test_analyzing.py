"""`kwire analyze -i`: the same rows as of a recording of the same traffic; ended as a recording is.

(proves: analyzer/live/analyzing.py, analyzer/live/listening.py)
"""

from __future__ import annotations

import contextlib
import io
import signal
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

import analyzer
from analyzer import reading, tables
from analyzer.live.ending import ended_by
from analyzer.options import Reading
from analyzer.points import Choice
from captures.files import CapturePoint
from captures.live.belt import Belt
from captures.live.recording import Recording, Target
from captures.live.stream import LiveStream
from captures.live.taps import Counts
from tests.analyzer.live.running import capturing, refused
from tests.captures.live.scripted import ScriptedTap, chunks_of
from tests.live import Wire, sample_records

RECORDS = sample_records()
FILED = {"capture", "request_file", "response_file", "request_offset", "response_offset", "offset", "file"}
"""Columns about files: what comes live lies in none."""


def rows(table: pa.Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.drop_columns([n for n in table.column_names if n in FILED]).to_pylist()
    return found


@pytest.mark.parametrize("each", [1, 40])
def test_a_recording_and_the_live_capture_give_the_same_rows(each: int, tmp_path: Path) -> None:
    """All tables, from the very same chunks."""
    chunks = chunks_of(RECORDS, each)
    recording = Recording(ScriptedTap([]), Target(str(tmp_path / "a.pcap")))
    for chunk in chunks:
        recording.take(chunk)
    recording.close()
    of_file = analyzer.analyze(tmp_path / "a.pcap", records="full")
    with Belt(ScriptedTap(chunks, Counts(3, None))) as belt:
        live = reading.decode(
            CapturePoint("eth7", ("-",)), None, Reading(window_bytes=1 << 20), Choice.of(records="full"),
            stdin=cast(io.BufferedReader, LiveStream(belt)),
        )  # fmt: skip
    assert live.captures[0]["name"] == "eth7"
    assert live.captures[0]["packets"]["dropped_by_capture"] == 3
    assert set(live.tables) == set(of_file.tables)
    for name in sorted(set(of_file.tables) - {"findings"}):
        assert rows(live.tables[name]) == rows(of_file.tables[name]), name
    assert len(live.exchanges) == 188
    said = [row["code"] for row in live.findings.to_pylist()]
    assert [code for code in said if code != "capture-lost-packets"] == [
        row["code"] for row in of_file.findings.to_pylist()
    ]
    assert "capture-lost-packets" in said


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
    assert not [line for line in analysing.said if "Traceback" in line]
    for name in sorted(set(of_file.tables) - {"messages", "findings", *tables.RUN_TABLES}):
        assert rows(getattr(live, name).to_table()) == rows(of_file.tables[name]), name
    assert len(of_file.exchanges) == 188
    assert live.captures[0]["name"] == wire.name
    assert live.captures[0]["packets"]["dropped_by_capture"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    with contextlib.suppress(KeyboardInterrupt), ended_by(lambda: stopped.append(1)):
        interrupt()
        assert stopped == [1]
        interrupt()
        raise AssertionError("not reached")
    assert signal.getsignal(signal.SIGINT) == before
