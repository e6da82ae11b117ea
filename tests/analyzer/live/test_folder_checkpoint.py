"""Test `kwire watch FOLDER`, ended, killed and restarted: each exchange and each finding is reported once.

(proves: analyzer/live/folder_checkpoint.py, analyzer/live/watch_session.py, analyzer/live/live_counts.py)
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.checkpoints.codec import CheckpointError
from kwire.analyzer.live import folder_checkpoint as places
from kwire.analyzer.live.folder_checkpoint import FolderCheckpoint, FolderWatchedError
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from tests.analyzer.checkpoints import cutting
from tests.shared import ROOT, SAMPLES

SAMPLE = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
PARTS = 5

WATCHES = """
import os, shutil, signal, sys
from pathlib import Path
from kwire.analyzer.cli import parser as cli
from kwire.analyzer.live import folder_checkpoint as places, watch as watching, watch_session as session

ring, parts, cache, out = map(Path, sys.argv[1:5])
points, totals = ([int(at) for at in words.split(",")] for words in sys.argv[5:7])
places.cache_root = lambda: cache

def counted(module, name, at, half=None):
    plain = getattr(module, name)
    def call(*arguments, **options):
        global count
        if count == at:
            if half is not None:
                half(plain, *arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return plain(*arguments, **options)
    setattr(module, name, call)

class Ends(session.WatchSession):
    # Reads until all packets of the files were seen, and ends there; or is killed there.
    def _take(self, window):
        super()._take(window)
        if self.engine.reader.counts["packets"] >= total:
            self._files.stop()

    def run(self):
        super().run()
        if at >= 0:
            os.kill(os.getpid(), signal.SIGKILL)

watching.WatchSession = Ends
for at, total, part in zip(points, totals, sorted(parts.iterdir())):
    shutil.move(part, ring)
    child = os.fork()
    if child == 0:
        count = 0
        if at >= 0:
            for name in "replace open unlink mkdir".split():
                counted(os, name, at)
            counted(places, "_put_out", at, lambda plain, data: plain(data[: len(data) // 2]))
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        code = cli.main(["watch", str(ring), "--json", "--threads", "4"])
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Ring:
    """A folder that gets a capture's files one by one, each of them watched by a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts = folder / "ring", folder / "parts"
        self.folder.mkdir()
        self.parts.mkdir()
        self.cache, self.out = folder / "cache", folder / "out.jsonl"
        count = len(cutting.packets(SAMPLE.read_bytes())[1])
        places = range(count // PARTS, count - PARTS, count // PARTS)
        cutting.cut(SAMPLE, places, self.parts)
        self._totals = [*places, count]

    def watched(self, ends: list[int]) -> list[int]:
        """Run a process for each of `ends`, and return their exit codes.

        -1: it ends by itself when everything is read; N: it is killed at its N-th change of the disk or of stdout, or
        when everything is read."""
        words = [",".join(map(str, numbers)) for numbers in (ends, self._totals[-len(ends) :])]
        paths = [str(path) for path in (self.folder, self.parts, self.cache, self.out)]
        done = subprocess.run([sys.executable, "-c", WATCHES, *paths, *words], cwd=ROOT, capture_output=True, text=True)
        codes = list(map(int, done.stdout.split()))
        assert len(codes) == len(ends), done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return codes

    def printed(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]


def tallies(printed: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for line in printed:
        for api in line.get("apis", ()):
            counts[api["api"], api["broker"]] += round(api["exchanges"])
    return counts


def seconds(printed: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (line["time"], line["exchanges"], line["errors"], line["bytes"], line["clients"], line["apis"])
        for line in printed
        if "time" in line
    ]


def findings(printed: list[dict[str, Any]]) -> list[str]:
    return [line["finding"]["code"] + str(line["finding"]["who"]) for line in printed if "finding" in line]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Lines of a watch that runs until everything is read."""
    ring = Ring(tmp_path_factory.mktemp("once"))
    for part in sorted(ring.parts.iterdir())[:-1]:
        shutil.move(part, ring.folder)
    assert ring.watched([-1]) == [0]
    printed = ring.printed()
    assert findings(printed)
    assert len(seconds(printed)) > PARTS
    return printed


def test_killed_at_any_step_each_line_comes_once(once: list[dict[str, Any]], tmp_path: Path) -> None:
    """Before the first checkpoint, between a line and its note, in the middle of a line, between two files."""
    ring = Ring(tmp_path)
    codes = ring.watched([6, 9, 14, 23, -1])
    assert codes == [-signal.SIGKILL] * 4 + [0]
    printed = ring.printed()
    assert seconds(printed) == seconds(once)
    assert sorted(findings(printed)) == sorted(set(findings(printed)))
    assert set(findings(printed)) >= set(findings(once))


def test_ended_and_begun_again_each_exchange_is_told_once(once: list[dict[str, Any]], tmp_path: Path) -> None:
    """Ended in the middle of a second: the exchanges after it count in the next."""
    ring = Ring(tmp_path)
    assert ring.watched([-1, -1, 400, -1, -1]) == [0, 0, -signal.SIGKILL, 0, 0]
    printed = ring.printed()
    assert tallies(printed) == tallies(once)
    assert sum(line["bytes"] for line in printed if "time" in line) == sum(
        line["bytes"] for line in once if "time" in line
    )
    times = [line["time"] for line in printed if "time" in line]
    assert times == sorted(set(times))
    assert sorted(findings(printed)) == sorted(set(findings(printed)))
    assert len(list((ring.cache / "data" / "watched").iterdir())) == 1


def place(folder: Path, **more: Any) -> FolderCheckpoint:
    return FolderCheckpoint(
        str(folder), "ring", ReadOptions(threads=4).settings(), AnalysisOptions.of(records="none"), **more
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "cache_root", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_one_watch_keeps_a_place_and_others_have_their_own(cache: Path, tmp_path: Path) -> None:
    checkpoint = place(tmp_path)
    with pytest.raises(FolderWatchedError, match="watches it in the same way"):
        place(tmp_path)
    place(tmp_path, way="screen").close()
    (tmp_path / "other").mkdir()
    place(tmp_path / "other").close()
    checkpoint.close()
    place(tmp_path).close()


def test_lines_that_may_have_come_are_told_from_those_that_did(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Into a pipe nobody knows how far they came: they are written again, and counted."""
    checkpoint = place(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(places, "_put_out", lambda data: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            checkpoint.tell(["first", "second"], 7, {("code", ("client_id", "a")): 5})
    checkpoint.close()
    again = place(tmp_path)
    assert (again.second, again.findings, again.known) == (7, {("code", ("client_id", "a")): 5}, True)
    monkeypatch.setattr(places, "_out", lambda: None)
    assert again.recover() == 2
    assert again.recover() == 0
    again.close()
    after = place(tmp_path)
    assert after.recover() == 0
    after.close()
    assert place(tmp_path, anew=True).known is False
    assert capfd.readouterr().out == "first\nsecond\n"


def test_what_is_damaged_or_of_another_version_is_told(cache: Path, tmp_path: Path) -> None:
    checkpoint = place(tmp_path)
    checkpoint.tell([], 7, {}, (3, 7))
    checkpoint.close()
    [folder] = (cache / "data" / "watched").iterdir()
    for name in ("told", "snapshot"):
        (folder / name).write_bytes(b"[]")
        with pytest.raises(CheckpointError, match="the watch before it") as raised:
            place(tmp_path)
        assert "--from-start" in raised.value.hint
    assert place(tmp_path, anew=True).second == -1


def test_how_packets_are_divided_into_windows_changes_no_second(tmp_path: Path) -> None:
    from kwire.analyzer.live.watch_session import WatchSession
    from kwire.captures.files import capture_points

    results = []
    for window_bytes in (4096, 65_536, 1 << 20):
        settings = ReadOptions(window_bytes=window_bytes).settings()
        session = WatchSession(capture_points([str(SAMPLE)])[0], settings, None, None, telling=True, find=False)
        session.run()
        results.append(
            [
                (moment.time_ns, moment.exchanges, moment.errors, moment.bytes, moment.lines)
                for moment in session.counts.told
            ]
        )
    assert results[0] == results[1] == results[2]
