"""Fuzz all doors for some minutes, several at a time: `python -m tests.fuzz.farm --minutes 30 --jobs 4` (`make fuzz`).

Each door gets the same share of the time, in a process of its own, with a seed that is printed (and `--seed` repeats).
What fails lies in `--out`, as a capture, its smallest part that still fails, and a line that makes it again; what
showed something new is kept in the corpus (`tests.fuzz.corpus`) for the runs to come. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.__main__ import DOORS, ROOT

ENDING_SECONDS = 120.0
"""How long a door may take to end: the mutant that it is at, and what it writes."""
_SUMMARY = re.compile(r"(\d+) mutants: (\d+) failed")


@dataclass(frozen=True, slots=True)
class Share:
    """Result of a door's share of the time."""

    door: str
    seed: int
    mutants: int
    failed: int
    output: str


def command(door: str, seed: int, out: str) -> list[str]:
    options = ["--no-bounds", "--forever", "--door", door, "--seed", str(seed), "--out", out]
    return [sys.executable, "-m", "tests.fuzz", *options]


def fuzzed(door: str, seed: int, seconds: float, out: str) -> Share:
    """Fuzz a door for so long."""
    with subprocess.Popen(
        command(door, seed, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as child:
        try:
            output, _ = child.communicate(timeout=seconds)  # it ends by itself only where it cannot go on
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            try:
                output, _ = child.communicate(timeout=ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                output, _ = child.communicate()
    counts = _SUMMARY.findall(output)
    mutants, failed = map(int, counts[-1]) if counts else (0, 1)
    return Share(door, seed, mutants, failed, output)


def farm(doors: list[str], seed: int, minutes: float, jobs: int, out: str) -> list[Share]:
    """Fuzz all doors, so many at a time, within so many minutes in all."""
    jobs = min(jobs, len(doors))
    seconds = minutes * 60 * jobs / len(doors)
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for door in doors:
        waiting.put(door)
    shares: list[Share] = []

    def work() -> None:
        while True:
            try:
                door = waiting.get_nowait()
            except queue.Empty:
                return
            share = fuzzed(door, seed, seconds, out)
            shares.append(share)
            print(f"-- {door}: {share.mutants:,} mutants, {share.failed} failed, seed {seed}", flush=True)
            if share.failed:
                print(share.output, flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return shares


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.farm", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="in all (default: 30)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="doors at a time (default: cores)")
    parser.add_argument("--seed", type=int, default=None, help="default: another each time, and printed")
    parser.add_argument("--doors", default=",".join(DOORS), help="default: %(default)s")
    parser.add_argument("--out", default=str(ROOT / "out" / "fuzz"), help="where failures are written")
    options = parser.parse_args()
    doors = [door for door in options.doors.split(",") if door]
    if not doors or not set(doors) <= set(DOORS):
        parser.error(f"--doors: some of {', '.join(DOORS)}")
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}, {options.minutes:g} minutes, {options.jobs} at a time", flush=True)
    began = time.monotonic()
    shares = farm(doors, seed, options.minutes, options.jobs, options.out)
    mutants, failed = (sum(getattr(share, name) for share in shares) for name in ("mutants", "failed"))
    count = len(list((Path(options.out) / "corpus").glob("*.capture")))
    print(f"{mutants:,} mutants, {failed} failed, {count} in the corpus; {time.monotonic() - began:.0f} s, seed {seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
