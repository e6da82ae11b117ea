"""Many mutations, one after another, with bounds checks: `python -m tests.fuzz --count 5000`.

The mutants are read in one warm process of its own, so that a crash or a hang of it is told, not suffered: then the
next one goes on behind. For each mutant: no exception but CaptureError, `--seconds` and 1 GiB at most, and what
`checking` holds. `--forever` goes on with new seeds until interrupted. What failed is written to `--out`, as a capture
file and a line that says how to make it again. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.checking import Outcome

MAX_GROWTH_BYTES = 1 << 30
HANG_SECONDS = 120.0
MOST_WAITS = 10
"""How often a worker may go on that had less than half of the processor for so long: the machine is busy."""
MINIMISING_SECONDS = 30.0
TELL_SECONDS = 60.0
"""How often a run says how far it is."""
WARM_SECONDS = 1800.0
"""Compiling the kernels with bounds checks takes minutes where the machine is busy."""

CAPTURES = "captures"
CORPUS = "corpus"
CONVERSATIONS = "conversations"
DOORS = (CAPTURES, CORPUS, CONVERSATIONS, "show", "segments", "asking", "planning", "rogue")

ROOT = Path(__file__).resolve().parent.parent.parent


def _memory(name: str) -> int:
    """A line of /proc/self/status in bytes; 0 where there is none."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _processor_seconds(pid: int) -> float | None:
    """Processor time of a process so far; None where it is not told (proc(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _forget_peak() -> None:
    """Start measuring the peak anew (Linux: proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def worker(options: argparse.Namespace) -> int:
    """Check mutants [start, start + count); one JSON line before and after each."""
    from kwire import analyzer
    from tests.fuzz.checking import Broken, check_evolved, check_number
    from tests.fuzz.corpus import FOLDER, Corpus
    from tests.fuzz.mutations import bases

    if options.door == CORPUS:
        check: Callable[[int, int, Path], Outcome] = check_evolved
    elif options.door == CONVERSATIONS:
        from tests.fuzz import conversations

        check = conversations.check_number
    elif options.door != CAPTURES:
        from tests.fuzz import doors

        check = doors.DOORS[options.door]
    else:
        check = check_number
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for base in bases():
            warm = folder / "warm.pcap"
            warm.write_bytes(base.whole())
            analyzer.analyze(warm)
        _say(warm=True)
        number, corpus = options.start, Corpus(FOLDER)
        while options.forever or number < options.start + options.count:
            _say(begin=number)
            _forget_peak()
            before = _memory("VmRSS")
            report: dict[str, object] = {}
            try:
                outcome = check(number, options.seed, folder)
                if outcome.seconds > options.seconds:
                    outcome = check(number, options.seed, folder)  # a kernel may just have been compiled
                    if outcome.seconds > options.seconds:
                        raise Broken(f"took {outcome.seconds:.1f} s")
                grown = (_memory("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) - before
                if before and grown > MAX_GROWTH_BYTES:
                    raise Broken(f"took {grown >> 20} MiB")
                if outcome.features:
                    corpus.keep((folder / "capture.pcap").read_bytes(), outcome.features)
                report = {
                    "seconds": outcome.seconds,
                    "exchanges": outcome.exchanges,
                    "refused": outcome.refused,
                    "mutants": outcome.mutants,
                    "grown": grown,
                }
            except Exception as failure:
                report = {"failure": f"{type(failure).__name__}: {failure}", "trace": traceback.format_exc()[-3000:]}
                if options.door in (CAPTURES, CORPUS):
                    _save_smallest(folder / "capture.pcap", failure, options, number)
                elif options.door == CONVERSATIONS:
                    _say(begin=number)  # it is no hang
                    _save_connections(folder, failure, options, number)
            _say(end=number, **report)
            number += 1
    return 0


def _save_smallest(path: Path, failure: Exception, options: argparse.Namespace, number: int) -> None:
    """Write the capture that failed, and its smallest part that fails in the same way by itself, if any does."""
    import random

    from tests.fuzz import checking, corpus, mutations

    data, failing = path.read_bytes(), type(failure)

    def fails(part: bytes) -> bool:
        with tempfile.TemporaryDirectory() as name:
            try:
                broken = mutations.Mutant(part, "part")
                checking.check(mutations.bases()[0], broken, random.Random(0), Path(name), deep=1.0)
            except Exception as again:
                return type(again) is failing
        return False

    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{options.door}-seed{options.seed}-{number}"
    (out / f"{stem}.capture").write_bytes(data)
    if fails(data):
        (out / f"{stem}.smallest.capture").write_bytes(corpus.minimised(data, fails, MINIMISING_SECONDS))


def _save_connections(folder: Path, failure: Exception, options: argparse.Namespace, number: int) -> None:
    """Write the fewest connections of a case that fail in the same way, and what was done to them."""
    from tests.fuzz import conversations

    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    talks = conversations.smallest(number, options.seed, type(failure), folder)
    stem = f"{options.door}-seed{options.seed}-{number}"
    (out / f"{stem}.smallest.capture").write_bytes(conversations.capture(talks))
    what = "\n".join(talk.what for talk in talks[:10])
    (out / f"{stem}.what").write_text(f"{len(talks)} connections\n{what}\n")


class Run:
    """The parent: starts workers, keeps count, writes down what failed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.done = self.refused = self.exchanges = self.failed = 0
        self._told = time.monotonic()
        self.slowest = 0.0
        self.largest = 0

    def _fail(self, number: int, why: str) -> None:
        from tests.fuzz.mutations import mutant

        self.failed += 1
        if self._options.door == CORPUS:
            print(
                f"FAILED {CORPUS} {number}: {why.splitlines()[0][:400]} (its capture is in {self._options.out})",
                flush=True,
            )
            return
        if self._options.door != CAPTURES:
            from tests.fuzz.doors import again

            out = Path(self._options.out)
            out.mkdir(parents=True, exist_ok=True)
            how = again(self._options.door, number, self._options.seed)
            (out / f"{self._options.door}-seed{self._options.seed}-{number}.txt").write_text(f"{how}\n{why}\n")
            print(f"FAILED {how}\n    {why.splitlines()[0][:400]}", flush=True)
            return
        base, broken, _ = mutant(number, self._options.seed)
        out = Path(self._options.out)
        out.mkdir(parents=True, exist_ok=True)
        name = f"seed{self._options.seed}-{number}"
        (out / f"{name}.capture").write_bytes(broken.data)
        (out / f"{name}.txt").write_text(f"{base.name}\n{broken.what}\n{why}\n")
        print(f"FAILED {number}: {base.name}; {broken.what[:200]}\n    {why.splitlines()[0][:300]}", flush=True)

    def process(self, start: int, count: int) -> int | None:
        """One worker, until it is done (None) or died (the number to go on with)."""
        command = [
            sys.executable,
            "-m",
            "tests.fuzz",
            "--worker",
            "--start",
            str(start),
            "--count",
            str(count),
            "--seed",
            str(self._options.seed),
            "--seconds",
            str(self._options.seconds),
            "--door",
            self._options.door,
            "--out",
            self._options.out,
        ]
        if self._options.forever:
            command.append("--forever")
        environment = dict(os.environ)
        if not self._options.no_bounds:
            environment["NUMBA_BOUNDSCHECK"] = "1"
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as child:
            lines: queue.Queue[str | None] = queue.Queue()
            assert child.stdout is not None
            pipe = child.stdout

            def read() -> None:
                for line in pipe:
                    lines.put(line)
                lines.put(None)

            threading.Thread(target=read, daemon=True).start()
            number: int | None = None
            patience, since, waits = WARM_SECONDS, 0.0, 0
            try:
                while True:
                    try:
                        line = lines.get(timeout=patience)
                    except queue.Empty:
                        used = _processor_seconds(child.pid)
                        if used is not None and used - since < patience / 2 and waits < MOST_WAITS:
                            since, waits = used, waits + 1  # others have the machine
                            continue
                        child.kill()
                        if number is None:
                            raise SystemExit("the worker did not get ready") from None
                        self._fail(number, f"hang: nothing for {patience:.0f} s")
                        return number + 1
                    if line is None:
                        code = child.wait()
                        if code == 0:
                            return None
                        if number is None:
                            raise SystemExit(f"the worker ended with {code} before it was ready")
                        self._fail(number, f"crash: the process ended with {code}")
                        return number + 1
                    report = json.loads(line)
                    patience, since, waits = HANG_SECONDS, _processor_seconds(child.pid) or 0.0, 0
                    if "begin" in report:
                        number = report["begin"]
                    elif "end" in report:
                        self.done += report.get("mutants", 1)
                        if "failure" in report:
                            self._fail(report["end"], report["failure"] + "\n" + report["trace"])
                        else:
                            self.refused += report["refused"]
                            self.exchanges += report["exchanges"]
                            self.slowest = max(self.slowest, report["seconds"])
                            self.largest = max(self.largest, report["grown"])
                        if time.monotonic() - self._told > TELL_SECONDS:
                            self._told = time.monotonic()
                            print(self, flush=True)
            finally:
                child.kill()

    def __str__(self) -> str:
        return (
            f"{self.done} mutants: {self.failed} failed, {self.refused} refused as no capture, "
            f"{self.exchanges} exchanges, slowest {self.slowest:.2f} s, largest growth {self.largest / 2**20:.0f} MiB"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Break captures on purpose and check.")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument(
        "--door",
        default=CAPTURES,
        choices=DOORS,
        help="where the broken input goes (default: analyze, with all that must hold of its tables)",
    )
    parser.add_argument("--seconds", type=float, help="processor time that one may take (default: 2, other doors 5)")
    parser.add_argument("--out", default=str(ROOT / "out" / "fuzz"), help="where failures are written")
    parser.add_argument(
        "--no-bounds", action="store_true", help="without bounds checks: starts at once where kernels are warm"
    )
    parser.add_argument("--forever", action="store_true", help="until interrupted")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seconds is None:
        options.seconds = 2.0 if options.door == CAPTURES else 5.0
    if options.worker:
        return worker(options)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what they start with `&` ignore it
    run = Run(options)
    began = time.monotonic()
    start: int | None = options.start
    end = options.start + options.count
    try:
        while start is not None and (options.forever or start < end):
            start = run.process(start, end - start)
    except KeyboardInterrupt:
        print("interrupted")
    print(f"{run}; {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
