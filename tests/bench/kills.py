"""Kill what writes, at random moments: nothing is lost that was said to be there, and nothing is there twice.

    python -m tests.bench.kills [--kills 20] [--seed N] [watch] [workers] [dataset] [record]

- `watch`: `kwire watch FOLDER`, killed at random changes of the disk or of stdout, over five files: each second and
  each finding is told once.
- `workers`: a worker of `kwire replay` after a random number of its requests: `tests/replay/test_lost_workers.py`.
- `dataset`: `kwire analyze -o DATA`, replacing and appending, after a random time: the old dataset or the new one.
- `record`: `kwire record` with rotation on a disk of random size that gets full (a tmpfs, so root is needed), killed
  after a random time: the files together are a beginning of what was sent, each packet once.

The suite has these at chosen moments. Exit code 1: something was lost, or is there twice.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from kwire import analyzer
from kwire.analyzer.dataset import tables
from tests.analyzer.live.running import capturing
from tests.analyzer.live.test_folder_checkpoint import PARTS, Ring, findings, seconds
from tests.live import Wire, sample_records
from tests.replay.test_lost_workers import test_what_a_killed_worker_did_is_kept as lose_a_worker
from tests.shared import KWIRE, ROOT, SAMPLES, capture_files

CHANGES = 40
"""Changes of the disk and of stdout that one process of a watched folder makes, about."""


def watch(kills: int, rng: random.Random, folder: Path) -> Iterator[str]:
    """Kill watches of a folder: all but the last of each row."""
    whole = Ring(_new(folder / "once"))
    for part in sorted(whole.parts.iterdir())[:-1]:
        shutil.move(part, whole.folder)
    assert whole.watched([-1]) == [0]
    expected = whole.printed()
    for number in range(-(-kills // (PARTS - 1))):
        ring = Ring(_new(folder / f"ring{number}"))
        ends = [*(rng.randrange(CHANGES) for _ in range(PARTS - 1)), -1]
        codes, printed = ring.watched(ends), ring.printed()
        assert codes == [-signal.SIGKILL] * (PARTS - 1) + [0], codes
        assert seconds(printed) == seconds(expected), f"seconds differ: {ends}"
        assert len(set(findings(printed))) == len(findings(printed)) >= len(set(findings(expected))), ends
        yield from ["killed"] * (PARTS - 1)


def workers(kills: int, rng: random.Random, folder: Path) -> Iterator[str]:
    """Kill a worker of a replay."""
    for number in range(kills):
        lose_a_worker(rng.randrange(45), _new(folder / f"run{number}"))
        yield "killed"


def dataset(kills: int, rng: random.Random, folder: Path) -> Iterator[str]:
    """Kill a command that replaces a dataset, or appends to it."""
    old, new = (capture_files(SAMPLES / name)[0] for name in ("client-kafkajs-3.9", "group-kip848-librdkafka-4.3"))
    base, added, data = folder / "base", _new(folder / "added") / "added.pcap", folder / "data"
    shutil.copy(new, added)
    analyzer.analyze(old, base)
    before, alone = _rows(base), analyzer.analyze(added, folder / "alone")
    del alone
    after = {"replace": _rows(folder / "alone"), "append": Counter(before) + Counter(_rows(folder / "alone"))}
    longest = 3.0
    for number in range(kills):
        mode = ("replace", "append")[number % 2]
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(base, data)
        words = [*KWIRE, "analyze", str(added), "-o", str(data), *(["--append"] if mode == "append" else [])]
        began = time.monotonic()
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(0, longest))
            longest = max(1.0, time.monotonic() - began)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        rows = _rows(data)
        assert rows in (before, after[mode]), f"{mode}: neither the old dataset nor the new one"
        yield f"{mode}: {'old' if rows == before else 'new'}"
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert done.returncode == (2 if mode == "append" and rows != before else 0), done.stderr
        assert _rows(data) == after[mode], f"{mode}: what the next run makes is not whole"


def record(kills: int, rng: random.Random, folder: Path) -> Iterator[str]:
    """Kill a recording in files of 40 kB on a disk that gets full."""
    frames = [entry.data for entry in sample_records()]
    for number in range(kills):
        with _disk(_new(folder / f"disk{number}"), rng.randint(60, 400)) as disk, contextlib.closing(Wire()) as wire:
            out, sent = _new(disk / "row"), 0
            options = ["-i", wire.name, "-o", out, "--rotate-bytes", "40kB", "--keep", "1000"]
            over = threading.Event()
            with capturing("record", *options) as recording:
                timer = threading.Timer(rng.uniform(0.2, 6.0), over.set)
                timer.start()
                for frame in itertools.cycle(frames):
                    if over.is_set() or recording.process.poll() is not None:
                        break
                    wire.send([frame])
                    sent += 1
                    over.wait(0.001)
                timer.cancel()
                recording.process.kill()
                code = recording.wait()
            errors = "".join(recording.stderr_lines)
            assert code in (-signal.SIGKILL, 2), (code, errors)
            assert "Traceback" not in errors, errors
            stored = [frame for path in sorted(out.glob("*.pcap")) for frame in _frames(path)]
            expected = list(itertools.islice(itertools.cycle(frames), len(stored)))
            assert stored == expected, f"{len(stored)} packets of {sent} are not those that were sent"
            if code == 2:
                assert f"{len(stored):,} packets are kept" in errors, errors
            analyzer.analyze(out, rotated=True)
            yield "killed" if code != 2 else "the disk was full"


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextlib.contextmanager
def _disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A file system of this size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _frames(path: Path) -> Iterator[bytes]:
    """The whole packets of a pcap file; the last one may be cut off."""
    data, at = path.read_bytes(), 24
    while at + 16 <= len(data):
        (size,) = struct.unpack_from("<I", data, at + 8)
        if at + 16 + size > len(data):
            return
        yield data[at + 16 : at + 16 + size]
        at += 16 + size


def _rows(path: Path) -> Counter[tuple[str, str, str, int]]:
    """Exchanges of a dataset, each with how often it is there; every file as long as the manifest says."""
    data = analyzer.open_dataset(path)
    for entry in data.manifest["files"]:
        assert (path / entry["path"]).stat().st_size == entry["size"], entry["path"]
    counts = dict.fromkeys(tables.TABLES, 0)
    for entry in data.manifest["files"]:
        counts[entry["table"]] += entry["rows"]
    columns = ["capture", "connection", "api", "exchange"]
    rows = data.exchanges.to_table().select(columns).to_pylist()
    assert len(rows) == counts["exchanges"]
    return Counter(tuple(row[name] for name in columns) for row in rows)


KINDS: dict[str, Callable[[int, random.Random, Path], Iterator[str]]] = {
    "watch": watch,
    "workers": workers,
    "dataset": dataset,
    "record": record,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kills", description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all")
    parser.add_argument("--kills", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    for kind in options.kinds or KINDS:
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(prefix="kwire-kills-") as folder:
            try:
                for outcome in KINDS[kind](options.kills, random.Random(f"{kind}/{options.seed}"), Path(folder)):
                    counts[outcome] += 1
            except AssertionError as failure:
                failed += 1
                print(f"FAILED {kind} after {counts.total()} kills: {failure}", flush=True)
        print(f"{kind}: {counts.total()} kills: {dict(counts)}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
