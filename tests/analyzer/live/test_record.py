"""Test `kwire record` as a user runs it: packets of an interface are in the file, however the command ends.

(proves: analyzer/live/record.py, analyzer/live/startup.py, analyzer/live/preparation.py,
analyzer/options/values.py, analyzer/live/stop_conditions.py)
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kwire import analyzer
from kwire.analyzer.options import values
from tests.analyzer.live.running import SECONDS, capturing, refused, running
from tests.captures import forge
from tests.live import Wire, sample_records
from tests.shared import KWIRE, ROOT, SAMPLES

RECORDS = sample_records()
FRAMES = [record.data for record in RECORDS]


def frames_of(path: Path) -> list[bytes]:
    return [record.data for record in forge.loaded(path)[1]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_well_and_all_that_came_is_kept(number: int, wire: Wire, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    with capturing("record", "-i", wire.name, "-o", path) as recording:
        wire.send(FRAMES)
        assert recording.end(number) == 0
    assert frames_of(path) == FRAMES
    mean = (24 + sum(16 + len(frame) for frame in FRAMES)) / len(FRAMES)  # with the headers of file and records
    assert (
        recording.stderr_lines[-1]
        == f"kwire: {len(FRAMES)} packets, 0.1 MB; none dropped; {mean:,.0f} bytes a packet in the mean\n"
    )
    assert json.loads((tmp_path / "a.pcap.stats.json").read_text())["packets"] == len(FRAMES)


def test_a_killed_one_leaves_a_file_that_can_be_read(wire: Wire, tmp_path: Path) -> None:
    """Once a line says that the packets are written, they are."""
    path = tmp_path / "a.pcap"
    with capturing("record", "-i", wire.name, "-o", path) as recording:
        wire.send(FRAMES)
        recording.wait_for(f" {len(FRAMES)} packets")
        recording.process.kill()
        recording.wait()
    assert frames_of(path) == FRAMES
    result = analyzer.analyze(path)
    assert not [note for note in result.notes if "ends" in note]
    assert result.captures[0]["packets"]["dropped_by_capture"] == 0


def test_it_ends_by_itself_after_a_time(wire: Wire, tmp_path: Path) -> None:
    with running("record", "-i", wire.name, "-o", tmp_path / "a.pcap", "--for", "100ms") as recording:
        assert recording.wait() == 0
    assert frames_of(tmp_path / "a.pcap") == []


def test_a_share_of_the_connections_is_said_from_beginning_to_end(wire: Wire, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    with capturing("record", "-i", wire.name, "-o", path, "--sample", "1/2") as recording:
        wire.send(FRAMES)
        assert recording.end(signal.SIGINT) == 0
    assert "one of 2 connections (--sample)" in "".join(recording.stderr_lines[:2])
    assert recording.stderr_lines[-1].endswith("; one of 2 connections (--sample)\n")
    ports = {ends(frame) for frame in frames_of(path)}
    assert frames_of(path) == [frame for frame in FRAMES if ends(frame) in ports]
    assert 0 < len(ports) < len({ends(frame) for frame in FRAMES})
    assert any("one of 2 connections was captured" in note for note in analyzer.analyze(path).notes)


def test_content_of_batches_is_left_out_where_that_is_asked_for(wire: Wire, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    frames = [record.data for record in forge.loaded(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap")[1]]
    with capturing("record", "-i", wire.name, "-o", path, "--no-payload") as recording:
        wire.send(frames)
        assert recording.end(signal.SIGINT) == 0
    statistics = json.loads((tmp_path / "a.pcap.stats.json").read_text())
    assert statistics["left_out_bytes"] > 40_000
    assert sum(map(len, frames_of(path))) < sum(map(len, frames)) - 40_000
    assert (
        f"; {statistics['left_out_bytes'] / 1e6:.1f} MB of records left out (--no-payload)"
        in recording.stderr_lines[-1]
    )
    assert any("record batches was left out" in note for note in analyzer.analyze(path).notes)


def ends(frame: bytes) -> frozenset[bytes]:
    """The two ports of a frame."""
    return frozenset((frame[34:36], frame[36:38]))


@pytest.mark.parametrize("how", ["--for", "SIGINT", "SIGTERM"])
def test_it_ends_while_packets_keep_coming(how: str, wire: Wire, tmp_path: Path) -> None:
    """Send a packet every few milliseconds until it has ended, or the limit of the test is reached."""
    path, begun, ended = tmp_path / "a.pcap", threading.Event(), threading.Event()
    limit = time.monotonic() + SECONDS / 2
    sent = before = 0

    def send() -> None:
        nonlocal sent
        while not ended.wait(0.003) and time.monotonic() < limit:
            wire.send(FRAMES[:1])
            sent += 1
            if sent > 10:
                begun.set()

    sending = threading.Thread(target=send)
    with capturing("record", "-i", wire.name, "-o", path, *(["--for", "300ms"] if how == "--for" else [])) as recording:
        sending.start()
        try:
            if how == "--for":
                assert recording.wait() == 0
            else:
                assert begun.wait(SECONDS)
                before = sent
                assert recording.end(getattr(signal, how)) == 0
            assert time.monotonic() < limit
        finally:
            ended.set()
            sending.join()
    frames = frames_of(path)
    assert frames == FRAMES[:1] * len(frames)
    assert len(frames) >= before
    assert f"kwire: {len(frames)} packets" in recording.stderr_lines[-1]


def test_a_row_of_files_is_bounded(wire: Wire, tmp_path: Path) -> None:
    command = ["record", "-i", wire.name, "-o", f"{tmp_path}/row/", "--rotate-bytes", "20kB", "--keep", "2"]
    with capturing(*command) as recording:
        wire.send(FRAMES)
        assert recording.end() == 0
    files = sorted((tmp_path / "row").glob("*.pcap"))
    assert len(files) == 2
    frames = [frame for path in files for frame in frames_of(path)]
    assert frames == FRAMES[-len(frames) :]
    assert "files; none dropped" in recording.stderr_lines[-1]


def test_another_command_reads_it_as_it_is_captured(wire: Wire) -> None:
    """`-o -`, as through ssh."""
    command = [*KWIRE, "record", "-i", wire.name, "-o", "-"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as recording:
        assert recording.stdout is not None
        assert recording.stderr is not None
        assert b"capturing on" in recording.stderr.readline()
        head = recording.stdout.read(24)
        wire.send(FRAMES[:1])
        size = 16 + len(FRAMES[0])
        assert recording.stdout.read(size)[16:] == FRAMES[0]
        recording.stdout.close()
        wire.send(FRAMES[:1])
        recording.stderr.read()
        assert recording.wait() == 0
    assert len(head) == 24


def test_lost_packets_are_said_and_no_failure(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads the queue until all packets have come, and it has room for half of them."""
    from kwire.analyzer.cli import parser
    from kwire.captures.live import capture_queue, taps

    monkeypatch.setattr(taps, "MOST_PACKETS", 10)
    monkeypatch.setattr("kwire.captures.live.libpcap.MOST_PACKETS", 10)
    room = sum(len(frame) + 16 for frame in FRAMES) // 2
    original = capture_queue.CaptureQueue.__init__

    def small(self: capture_queue.CaptureQueue, tap: taps.Tap, spool: str | None = None) -> None:
        original(self, tap, spool, room)
        start = self.start

        def begin() -> capture_queue.CaptureQueue:
            start()
            wire.send(FRAMES)
            self.stop()
            self._thread.join()
            return self

        self.start = begin  # type: ignore[method-assign]

    monkeypatch.setattr(capture_queue.CaptureQueue, "__init__", small)
    path = tmp_path / "a.pcapng"
    assert parser.main(["record", "-i", wire.name, "-o", str(path)]) == 0
    statistics = json.loads((tmp_path / "a.pcapng.stats.json").read_text())
    assert 0 < statistics["dropped_by_kwire"] < len(FRAMES)
    assert statistics["packets"] + statistics["dropped_by_kwire"] == len(FRAMES)
    result = analyzer.analyze(path)
    assert result.captures[0]["packets"]["dropped_by_capture"] == statistics["dropped"]
    assert "capture-lost-packets" in result.findings.column("code").to_pylist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "nosuch0", "-o", "{tmp}/a.pcap"], "-i nosuch0: no such interface"),
        (["-i", "lo", "-f", "tcp porrt", "-o", "{tmp}/a.pcap"], "-f 'tcp porrt': "),
        (["-i", "lo", "-o", "{tmp}/no/a.pcap"], "{tmp}/no/a.pcap: cannot be written: No such file or directory"),
        (["-i", "lo", "-o", "{tmp}/a.pcap", "--keep", "3"], "--keep goes with several files"),
        (["-i", "lo", "-o", "-", "--rotate-bytes", "3"], "-o -: what goes to stdout does not rotate"),
        (["-i", "lo", "-o", "{tmp}/a.pcap", "--rotate-bytes", "many"], "argument --rotate-bytes: 'many' is not"),
        (["-i", "lo", "-o", "{tmp}/a.pcap", "--for", "ever"], "argument --for: 'ever' is not a duration"),
        (["-o", "{tmp}/a.pcap"], "the following arguments are required: -i/--interface"),
    ],
)
def test_what_cannot_be_is_one_line_and_a_hint(
    arguments: list[str], message: str, wire: Wire, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused("record", arguments, message, tmp_path, capsys)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_line_and_what_was_written_is_kept(wire: Wire, tmp_path: Path) -> None:
    """A limit on the size of files (with its signal ignored, as Python does) stands for the disk."""
    program = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
from kwire.analyzer.cli.parser import main
sys.exit(main(["record", "-i", {wire.name!r}, "-o", {str(tmp_path / "a.pcap")!r}]))
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True) as recording:
        assert recording.stderr is not None
        assert "capturing on" in recording.stderr.readline()
        wire.send(FRAMES)
        lines = [line for line in recording.stderr if not line.startswith(" ")]
        assert recording.wait() == 2
    frames = frames_of(tmp_path / "a.pcap")
    assert frames == FRAMES[: len(frames)]
    assert len(frames) > 100
    assert lines[0] == f"kwire: {tmp_path}/a.pcap: cannot be written: File too large; {len(frames)} packets are kept\n"
    assert lines[1].startswith("hint: free some space")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("500ms", 0.5), ("5m", 300), ("1.5h", 5400), ("90", 90), ("2min", 120), ("1 d", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "number"), [("1000", 1000), ("100MB", 10**8), ("64MiB", 1 << 26), ("1g", 10**9), ("2 kB", 2000)]
)
def test_sizes(text: str, number: int) -> None:
    assert values.size(text) == number


def test_shares() -> None:
    assert [values.share(text) for text in ("1/2", "1/8", "1/1000")] == [2, 8, 1000]
    for text in ("1/1", "2/8", "8", "1/0", "1/08", "1/10000000", "", "1/8x"):
        with pytest.raises(argparse.ArgumentTypeError, match="as 1/8"):
            values.share(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1x", "s", "0s", "1e3", "nan", "1.5.2s", "9" * 40, "٣s"])
def test_what_is_no_duration_and_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        values.duration(text)
    with pytest.raises(argparse.ArgumentTypeError):
        values.size(text)
