"""Ctrl-C in the middle of `kwire analyze --engine spark`, and what killed processes left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kwire import analyzer
from kwire.reports.spark import session
from tests.bench import generate
from tests.shared import ROOT, SAMPLES

CAPTURE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
RUN = """
from kwire.reports.spark import merging
merging.RANGE_PACKETS = 3000  # so that there soon are pieces
from kwire.analyzer.cli.parser import command
command()
"""


def wait_until(happened: Callable[[], bool], what: str, process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + 90
    while not happened():
        assert process is None or process.poll() is None, f"it ended: {process.communicate()}"
        assert time.monotonic() < until, what
        time.sleep(0.05)


def processes_of(leader: int) -> list[str]:
    """The processes of a session, as Linux tells them, zombies left out."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, owner, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(owner) == leader and state != "Z":
                processes.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # gone meanwhile
            continue
    return processes


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are told by /proc (Linux)")
@pytest.mark.parametrize("way", ["by capture point", "in chunks"])
def test_ctrl_c_leaves_the_old_dataset_and_no_process(way: str, tmp_path: Path) -> None:
    out, capture = tmp_path / "dataset", tmp_path / "capture.pcap"
    analyzer.analyze(CAPTURE, out)
    options = []
    if way != "by capture point":
        generate.small(capture, 60 << 20)
        options = ["--split-bytes", "1", "--window-bytes", "20000", "--chunk-bytes", str(20 << 20)]
    else:
        os.mkfifo(capture)  # a capture that never ends
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    # With settings of a cluster no class archive is made, which would take the end of the session some seconds.
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "analyze", str(capture), "-o", str(out), "--engine", "spark", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "SPARK_CONF_DIR": str(ROOT / "reports")},
    )
    if way != "by capture point":  # in chunks, tasks have ended by then
        pieces = ".dataset.*.new/pieces/*-0[0-9]-*"
        wait_until(lambda: any(tmp_path.glob(pieces)), "no piece is written", process)
    else:
        pipe = os.open(capture, os.O_RDWR)
        os.write(pipe, CAPTURE.read_bytes()[:20_000])
        wait_until(lambda: not waiting_in(pipe), "nobody reads the capture", process)
    os.killpg(process.pid, signal.SIGINT)
    printed, complaints = process.communicate(timeout=60)
    ending = f"kwire: interrupted; {out} is as it was before\n"
    assert (process.returncode, printed, complaints) == (130, "", ending)
    wait_until(lambda: not processes_of(process.pid), "a process is left behind")
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capture.pcap", "dataset"]


BUSY = """
import threading, time
from pyspark.sql import SparkSession
from kwire.analyzer.cli.parser import command

def look():
    jobs = []
    while not jobs:
        time.sleep(0.1)
        spark = SparkSession._instantiatedSession
        jobs = spark.sparkContext.statusTracker().getActiveJobsIds() if spark is not None else []
    print("busy", flush=True)

threading.Thread(target=look, daemon=True).start()
command()
"""


def test_ctrl_c_ends_a_query_that_has_begun(tmp_path: Path) -> None:
    """PySpark waits for the answer, whatever comes."""
    analyzer.analyze(CAPTURE, tmp_path / "dataset")
    query = "SELECT count(*) FROM exchanges AS e CROSS JOIN range(1000000000000) AS r WHERE r.id % 7 = e.exchange"
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, "sql", str(tmp_path / "dataset"), query, "--engine", "spark"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "SPARK_CONF_DIR": str(ROOT / "reports"), "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n", process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    printed, complaints = process.communicate(timeout=60)
    assert (process.returncode, printed, complaints) == (130, "", "kwire: interrupted\n")
    assert list(tmp_path.glob("kwire-spark-*")) == []


def waiting_in(pipe: int) -> int:
    """Bytes that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_folders_of_killed_processes_go_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = {name: tmp_path / f"kwire-spark-{name}" for name in ("killed", "alive", "young")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "held").write_bytes(b"")
    for name in ("killed", "alive"):
        os.utime(folders[name], (0, 0))
    with open(folders["alive"] / "held", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        session._clear_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kwire-spark-alive", "kwire-spark-young"]
