"""Test `kwire analyze FOLDER --follow`: each step leaves the dataset of one pass over all files so far.

`python -m tests.bench.follow` kills the command twenty times at random while files grow and rotate.

(proves: analyzer/live/follow.py)
"""

from __future__ import annotations

import gzip
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.checkpoints.codec import CheckpointError
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset, DatasetError, concatenated
from kwire.analyzer.dataset.manifest import MANIFEST, read_manifest
from kwire.analyzer.live import follow
from kwire.analyzer.live.follow import FolderAnalysis
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.errors import KwireError
from tests.analyzer.checkpoints import cutting
from tests.shared import KWIRE, ROOT, SAMPLES

CAPTURE = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A capture in five files; connections go on from one to the next."""
    folder = tmp_path / "parts"
    folder.mkdir()
    count = len(cutting.packets(CAPTURE.read_bytes())[1])
    return [Path(path) for path in cutting.cut(CAPTURE, range(count // 5, count - 5, count // 5), folder)]


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is followed; its newest files are always read."""
    monkeypatch.setattr(follow, "FRESH_SECONDS", -1.0)
    (tmp_path / "ring").mkdir()
    return tmp_path / "ring"


def follower(ring: Path, **options: Any) -> FolderAnalysis:
    return FolderAnalysis(str(ring), str(ring.parent / "data"), ReadOptions(**options), AnalysisOptions.of())


def stored(ring: Path) -> Dataset:
    """The dataset, as `analyze` gives one in memory; the summary is not stored."""
    data = analyzer.open_dataset(ring.parent / "data")
    rows = {name: getattr(data, name).to_table() for name in tables.TABLES}
    manifest = data.manifest
    return Dataset(
        {name: concatenated(name, [table]) for name, table in rows.items()},
        data.captures,
        data.coverage,
        manifest["unrecognised"],
        {},
        manifest["notes"],
    )


def is_one_pass(ring: Path, findings: bool = True) -> None:
    expected = analyzer.analyze(ring)
    expected.summary = {}
    if not findings:
        del expected.tables["findings"]
    assert cutting.differences(stored(ring), expected) == []
    data = ring.parent / "data"
    manifest = read_manifest(data)
    listed = {MANIFEST, *(entry["path"] for entry in manifest["files"])}
    there = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}
    assert there - listed == ({manifest["follow"]["snapshot"]} if manifest["follow"]["snapshot"] else set())


def test_each_step_is_one_pass_over_all_files_so_far(ring: Path, parts: list[Path]) -> None:
    for place, part in enumerate(parts):
        shutil.move(part, ring)
        following = follower(ring)  # a new follower knows only what is in the dataset
        assert following.step()
        if place % 2:
            is_one_pass(ring, findings=place < 2)
    assert not following.step()
    assert follower(ring).step(last=True)
    is_one_pass(ring)


def test_the_newest_file_may_grow(ring: Path, parts: list[Path]) -> None:
    following = follower(ring)
    data = parts[0].read_bytes()
    for size in (24, len(data) // 2, len(data)):  # its header alone; up to the middle of a packet; all
        (ring / "a.pcap").write_bytes(data[:size])
        assert following.step() == (size > 24)
    is_one_pass(ring)
    shutil.copy(parts[1], ring / "b.pcap")
    following.step(last=True)
    is_one_pass(ring)


def test_a_file_that_is_packed_or_renamed_is_not_read_again(ring: Path, parts: list[Path]) -> None:
    for part in parts[:3]:
        shutil.move(part, ring)
    follower(ring).step()
    first = ring / parts[0].name
    (ring / f"{first.name}.gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()
    (ring / parts[1].name).rename(ring / "another-name.pcap")
    for part in parts[3:]:
        shutil.move(part, ring)
    (ring / f"{parts[3].name}.gz").write_bytes(gzip.compress((ring / parts[3].name).read_bytes())[:-20])  # being packed
    following = follower(ring)
    following.step()
    assert following.result is not None
    assert [file["name"] for file in following.result.captures[0]["files"]] == [part.name for part in parts]
    renamed = ring / "another-name.pcap"
    (ring / "another-name.pcap.gz").write_bytes(gzip.compress(renamed.read_bytes()))
    renamed.unlink()
    again = follower(ring)
    again.step(last=True)
    assert again.result is not None
    assert again.result.captures[0]["files"] == following.result.captures[0]["files"]


def test_what_another_process_changed_is_not_added_to(ring: Path, parts: list[Path]) -> None:
    shutil.move(parts[0], ring)
    first, second = follower(ring), follower(ring)
    first.step()
    with pytest.raises(DatasetError, match="another process"):
        second.step()


def test_a_dataset_of_another_kind_is_left_alone(ring: Path, parts: list[Path]) -> None:
    analyzer.analyze(parts[0], ring.parent / "data")
    with pytest.raises(DatasetError, match="did not write"):
        follower(ring)


def test_a_snapshot_that_is_damaged_is_told_at_once(ring: Path, parts: list[Path]) -> None:
    for part in parts[:2]:
        shutil.move(part, ring)
    follower(ring).step()
    [snapshot] = (ring.parent / "data").glob("*.snapshot")
    assert stat.S_IMODE(snapshot.stat().st_mode) == 0o600
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError):
        follower(ring)
    snapshot.unlink()
    with pytest.raises(KwireError):
        follower(ring)


KILLS = """
import os, shutil, signal, sys
from pathlib import Path
from kwire.analyzer.live import follow as following
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.pipeline.points import AnalysisOptions

following.FRESH_SECONDS = -1.0
ring, parts, points = Path(sys.argv[1]), sorted(Path(sys.argv[2]).iterdir()), [int(at) for at in sys.argv[3].split(",")]

def counted(module, name, at):
    plain = getattr(module, name)
    def call(*arguments, **options):
        global count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return plain(*arguments, **options)
    setattr(module, name, call)

for at, part in zip(points, parts):
    shutil.move(part, ring)
    child = os.fork()
    if child == 0:
        count = 0
        for name in "replace rename fsync open mkdir unlink rmdir chmod".split():
            counted(os, name, at)
        one = following.FolderAnalysis(str(ring), str(ring.parent / "data"), ReadOptions(), AnalysisOptions.of())
        one.step()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_killed_at_any_step_no_row_is_lost_and_none_doubled(ring: Path, parts: list[Path]) -> None:
    """The process kills itself at its n-th call that changes the disk: before the commit, within, after it."""
    command = [sys.executable, "-c", KILLS, str(ring), str(parts[0].parent), "60,5,75,100,20"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    codes = list(map(int, result.stdout.split()))
    assert codes.count(-signal.SIGKILL) >= 4, result.stderr
    follower(ring).step(last=True)
    is_one_pass(ring)
    assert not [path for path in ring.parent.glob(".*") if path.is_dir()]


def test_the_command_follows_for_a_while_and_prints_the_summary(ring: Path, parts: list[Path]) -> None:
    for part in parts:
        shutil.move(part, ring)
    data = ring.parent / "data"
    command = [*KWIRE, "analyze", str(ring), "--follow", "-o", str(data), "--for", "10ms", "--json"]
    for _ in range(2):  # the second time there is nothing new
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert '"exchanges": ' in done.stdout
    is_one_pass(ring)


@pytest.mark.parametrize(
    "arguments",
    [("{0}", "--append"), ("{0}", "{0}"), ("{0}", "--engine", "spark")],
)
def test_what_does_not_go_with_it(arguments: tuple[str, ...], tmp_path: Path) -> None:
    named = [argument.format(tmp_path) for argument in arguments]
    command = [*KWIRE, "analyze", *named, "--follow", "-o", str(tmp_path / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "hint: " in done.stderr
