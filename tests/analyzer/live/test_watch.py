"""Test `kwire watch` as a user runs it: an interface, a growing folder, a pipe; lines of JSON, and the screen.

(proves: analyzer/live/watch.py, analyzer/live/screen.py, analyzer/live/evaluation_windows.py)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.cli import parser
from kwire.captures.files.write import pcap
from tests.analyzer.live.running import Running, capturing, refused, running
from tests.live import SAMPLE, Wire, sample_records
from tests.reports.terminal import terminal
from tests.shared import KWIRE, ROOT

RECORDS = sample_records()
HEAD = pcap([], nanoseconds=True)
ALL = 188


def packed(begin: int, end: int) -> bytes:
    return pcap(RECORDS[begin:end], nanoseconds=True)[24:]


def exchanges_in(printed: list[dict[str, Any]]) -> float:
    return float(sum(line["exchanges"] for line in printed if "exchanges" in line))


def lines_until(watching: Running, count: int) -> list[dict[str, Any]]:
    """Read lines of JSON until they count so many exchanges."""
    assert watching.process.stdout is not None
    printed: list[dict[str, Any]] = []
    while exchanges_in(printed) < count:
        line = watching.process.stdout.readline()
        assert line, "it ended"
        printed.append(json.loads(line))
    return printed


def test_a_pipe_as_lines_of_json() -> None:
    with open(SAMPLE, "rb") as file:
        done = subprocess.run([*KWIRE, "watch", "-"], cwd=ROOT, stdin=file, capture_output=True, text=True, check=True)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert exchanges_in(printed) == ALL
    seconds = [line for line in printed if "time" in line]
    assert set(seconds[0]) == {
        "time",
        "exchanges",
        "errors",
        "bytes",
        "dropped",
        "clients",
        "apis",
        "rebalancing",
        "readers",
        "seconds",
        "open",
    }
    assert seconds[0]["time"] == "2026-11-21T01:49:14.000000Z"
    assert [line["finding"]["code"] for line in printed if "finding" in line]


def test_a_folder_once_is_what_is_there_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends by itself, whether it holds several captures, or none."""
    assert parser.main(["watch", str(tmp_path), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["exchanges"] == 0
    for name in ("a.pcap", "b.pcap"):
        shutil.copy(SAMPLE, tmp_path / name)
    assert parser.main(["watch", str(tmp_path), "--once", "--json"]) == 0
    capsys.readouterr()


def test_a_capture_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser.main(["watch", str(SAMPLE), "--once", "--filter", "api == EndTxn"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert {line["api"] for line in first["apis"]} == {"EndTxn"}


def test_an_interface_until_it_is_ended(wire: Wire) -> None:
    with capturing("watch", "-i", wire.name, stdout=subprocess.PIPE) as watching:
        wire.send(record.data for record in RECORDS)
        printed = lines_until(watching, ALL - 3)  # some are answered by the end alone
        watching.process.send_signal(signal.SIGINT)
        assert watching.process.stdout is not None
        printed += [json.loads(line) for line in watching.process.stdout]
        assert watching.wait() == 0
    assert exchanges_in(printed) == ALL
    assert all(line["dropped"] == 0 for line in printed if "dropped" in line)


def test_a_share_of_the_connections_is_said_in_each_line(wire: Wire) -> None:
    with capturing("watch", "-i", wire.name, "--sample", "1/2", stdout=subprocess.PIPE) as watching:
        wire.send(record.data for record in RECORDS)
        printed = lines_until(watching, 1)
        watching.process.send_signal(signal.SIGINT)
        assert watching.wait() == 0
    assert {line["sample"] for line in printed if "dropped" in line} == {"1/2"}
    assert any("one of 2 connections was captured" in line for line in watching.stderr_lines)


def test_a_folder_that_grows_from_its_oldest_file(tmp_path: Path) -> None:
    (tmp_path / "b.pcap").write_bytes(HEAD + packed(0, 100))
    (tmp_path / "a.pcap").write_bytes(HEAD + packed(100, 300))
    with running("watch", tmp_path, "--from-start", stdout=subprocess.PIPE) as watching:
        watching.wait_for("begins at the oldest of 2 files, b.pcap")
        printed = lines_until(watching, 20)
        with open(tmp_path / "c.pcap", "wb", buffering=0) as file:
            file.write(HEAD + packed(300, 500))
            printed += lines_until(watching, 20)
            file.write(packed(500, len(RECORDS)))
        printed += lines_until(watching, 10)
        watching.process.send_signal(signal.SIGTERM)
        assert watching.process.stdout is not None
        printed += [json.loads(line) for line in watching.process.stdout]
        assert watching.wait() == 0
    assert exchanges_in(printed) <= ALL
    assert exchanges_in(printed) > 100


@pytest.mark.parametrize("source", ["interface", "capture", "folder"])
def test_names_beyond_a_bound_begin_anew_and_exchanges_go_on(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of clients with ids of their own must not fill the memory: every packet is read, and only exchanges that
    were in flight when an engine was replaced are missing."""
    from kwire.analyzer.live import watch_session as module
    from kwire.analyzer.pipeline.read_options import ReadOptions
    from kwire.captures.files import CapturePoint
    from kwire.captures.live.capture_queue import CaptureQueue
    from kwire.captures.live.follow import Follower
    from kwire.captures.live.stream import LiveStream
    from tests.captures.live.scripted import ScriptedTap, chunks_of

    monkeypatch.setattr(module, "MOST_NAMES", 12)
    stream: Any = None
    paths: Any = (str(SAMPLE),)
    belt = CaptureQueue(ScriptedTap(chunks_of(RECORDS, 20)))
    if source == "interface":
        stream, paths = LiveStream(belt.start()), ("-",)
    elif source == "folder":
        shutil.copy(SAMPLE, tmp_path / "a.pcap")
        stream = paths = Follower(str(tmp_path))
    watched = module.WatchSession(
        CapturePoint("eth7", paths), ReadOptions(window_bytes=4096).settings(), stream, None, telling=True
    )

    def seen() -> None:
        if source == "folder" and watched.engine.reader.counts["packets"] == len(RECORDS):
            stream.stop()

    watched.after = seen
    watched.run()
    exchanges = sum(moment.exchanges for moment in watched.counts.told)
    assert watched.renewals >= 1
    assert ALL / 2 < exchanges == watched.exchanges
    assert watched.engine.reader.counts["packets"] == len(RECORDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "what is to be watched: -i IFACE, or one of FOLDER, CAPTURE, -"),
        (["-i", "lo", "{tmp}"], "what is to be watched: -i IFACE, or one of FOLDER, CAPTURE, -"),
        (["{tmp}", "-f", "tcp"], "-f goes with -i"),
        (["{tmp}/none.pcap"], "{tmp}/none.pcap: no such file"),
        (["{tmp}/none.pcap", "--from-start"], "--from-start goes with a folder"),
        (["-i", "lo", "--from-start"], "--from-start goes with a folder"),
        (["{tmp}", "--filter", "api = ("], "filter"),
        (["-i", "nosuch0"], "-i nosuch0: no such interface"),
    ],
)
def test_what_cannot_be_is_one_line_and_a_hint(
    arguments: list[str], message: str, wire: Wire, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused("watch", arguments, message, tmp_path, capsys)


def test_a_reader_that_has_seen_enough_ends_it(tmp_path: Path) -> None:
    command = [*KWIRE, "watch", str(SAMPLE)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        watching.stdout.close()
        assert b"Traceback" not in watching.stderr.read()
        assert watching.wait() == 0


# -- the screen ------------------------------------------------------------------------------------------------------
def test_the_screen_and_its_keys(tmp_path: Path) -> None:
    """The capture comes through a pipe, as by `tcpdump -w - |`; keys come from the terminal."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = shutil.which("sh")
    assert program
    command = f'exec "$0" -c "from kwire.analyzer.cli.parser import command; command()" watch - < {pipe}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "LINES": "40"}
    words = ["/usr/bin/env", "TERM=xterm", program, "-c", command, sys.executable]
    with terminal(words, environment) as screen, open(pipe, "wb", buffering=0) as feed:
        feed.write(HEAD + packed(0, 400))
        screen.wait_for(r"exchanges/s")
        screen.wait_for(r"by rate.*q quit")
        screen.wait_for(r"Produce +127\.0\.0\.1:9092")
        screen.type("s")
        screen.wait_for(r"by errors")
        screen.type("/")
        screen.wait_for(r"filter: _")
        screen.type("api == (\r")
        screen.wait_for(r"filter: api == \(_ +\S")
        screen.type("\x1b")
        screen.wait_for(r"by errors")
        screen.type("/")
        screen.wait_for(r"filter: _")
        screen.type("api == EndTxn\r")
        screen.wait_for(r"filter: api == EndTxn ")
        screen.type(" ")
        screen.wait_for(r"FROZEN")
        feed.write(packed(400, len(RECORDS)))
        screen.type(" ")
        screen.wait_for(r"by errors, filter")
        screen.type("\r")
        screen.wait_for(r"request[\s\S]*esc back")
        screen.type("\x1b")
        screen.wait_for(r"q quit")
        screen.type("q")
        assert screen.process.wait(60) == 0, "though the pipe is open still"
