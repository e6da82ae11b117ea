"""Time kwire against tshark on generated captures and on real ones, and print how the figures stand to the bars.

    python -m tests.bench                                   # small, 300 MB, and the three real captures
    python -m tests.bench --case large --size 1.5G --case small --size 1G
    python -m tests.bench --case small --records none --records batches --threads 1 --threads 2
    python -m tests.bench --case big64k --against 'OTHER/.venv/bin/kwire'   # in turn with another version

*small* and *large* are generated, *small-reqs*, *big* and *big64k* real traffic that `tests.bench.real` makes once;
results name their digests. `--against` runs another kwire in turn with this one, all defaults on, and prints the ratio
of their processor times, least of the runs: a figure that other work on the machine disturbs least.

Both tools run as whole processes on the same file in the same run, the file warm in the page cache, the kernels warm
in theirs. Every kwire run writes its dataset, and its rows are counted: a fast wrong answer is no figure. Memory is the
largest RssAnon that was seen (the kernel's number for memory that is no file) and the peak RSS.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench import generate
from tests.shared import KWIRE, ROOT

RESULTS = Path(__file__).resolve().parent / "results"
FIELDS = (
    "frame.number",
    "kafka.api_key",
    "kafka.api_version",
    "kafka.correlation_id",
    "kafka.topic_name",
    "kafka.error",
)
CASES = ("small", "large", "small-reqs", "big", "big64k")
# Times tshark, from DESIGN: (bar, aim) by case and --records.
BARS = {
    ("large", "none"): (10, 20),
    ("small", "none"): (15, 30),
    ("large", "batches"): (8, 16),
    ("small", "batches"): (8, 16),
    ("large", "meta"): (4, 10),
    ("small", "meta"): (4, 10),
}


@dataclass
class Run:
    """One process, from start to exit."""

    what: str
    seconds: float
    user_seconds: float
    system_seconds: float
    peak_rss_mb: float
    peak_anonymous_mb: float


def measured(what: str, command: list[str], environment: dict[str, str] | None = None) -> Run:
    """Run a command with its output thrown away. RuntimeError: it failed (with what it said)."""
    peaks = {"VmHWM": 0, "RssAnon": 0}
    done = threading.Event()
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)

        def sample() -> None:
            # The peak that wait4 reports is no use: it begins with what this process had when it forked.
            while not done.wait(0.02):
                for name, value in memory_kb(process.pid).items():
                    peaks[name] = max(peaks[name], value)

        sampler = threading.Thread(target=sample)
        sampler.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        done.set()
        sampler.join()
        if process.returncode:
            errors.seek(0)
            error_text = errors.read()[-2000:].decode(errors="replace")
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {error_text}")
    return Run(what, seconds, usage.ru_utime, usage.ru_stime, peaks["VmHWM"] / 1024, peaks["RssAnon"] / 1024)


def memory_kb(pid: int) -> dict[str, int]:
    """VmHWM and RssAnon of a process in kB; empty where it has ended or the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmHWM:", "RssAnon:"))}


def kwire(path: str, records: str, threads: int, dataset: Path) -> list[str]:
    options = ["--records", records, "--threads", str(threads), "-o", str(dataset)]
    return [*KWIRE, "analyze", path, *options]


def tshark(path: str, port: int = 9092) -> list[str]:
    fields = [part for field in FIELDS for part in ("-e", field)]
    return ["tshark", "-r", path, "-T", "fields", *fields, "-d", f"tcp.port=={port},kafka"]


def rows_of(dataset: Path) -> int:
    """Exchanges in a dataset, counted from the files' footers."""
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(file).metadata.num_rows for file in sorted((dataset / "exchanges").rglob("*.parquet")))


def versions() -> dict[str, str]:
    out = {name: version(name) for name in ("kwire", "numba", "numpy", "pyarrow")}
    out["python"] = platform.python_version()
    if shutil.which("tshark"):
        tshark_version = subprocess.run(["tshark", "--version"], capture_output=True, text=True, check=True).stdout
        out["tshark"] = tshark_version.split()[2]
    command = ["git", "rev-parse", "--short", "HEAD"]
    out["commit"] = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return out


def machine() -> dict[str, Any]:
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {"cpus": os.cpu_count(), "cpu": model, "system": platform.system(), "load": os.getloadavg()[0]}


def begin_result(what: str = "") -> dict[str, Any]:
    """Return the head of a result: what is measured, when, of which versions, and on which machine."""
    time_ = datetime.now(UTC).isoformat(timespec="seconds")
    return {**({"what": what} if what else {}), "time": time_, "versions": versions(), "machine": machine()}


def add_save(parser: argparse.ArgumentParser) -> None:
    """Add the option `--save`, which each benchmark has."""
    parser.add_argument("--save", action=argparse.BooleanOptionalAction, default=True, help="a JSON file in results/")


def save(result: dict[str, Any]) -> None:
    """Write a result to a file whose name begins with what was measured."""
    RESULTS.mkdir(exist_ok=True)
    begin = f"{result['what']}-" if "what" in result else ""
    file = RESULTS / f"{begin}{result['time'].replace(':', '')[:15]}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    say(f"== written to {os.path.relpath(file)}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bench_case(case: str, size: int, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Get the capture, warm up, run kwire in every way asked for, and tshark and `cat` once."""
    from tests.bench import real

    if case in real.CASES:
        real_capture = real.capture(case)
        path, exchanges, port = Path(real_capture.path), None, real_capture.port
        capture: dict[str, Any] = asdict(real_capture) | {"path": path.name}
        say(f"== {case}: {real_capture.file_bytes / 1e6:.0f} MB, sha256 {real_capture.sha256[:16]}")
    else:
        path, port = folder / f"{case}-{size}.pcap", 9092
        say(f"== {case}: generating {size / 1e6:.0f} MB")
        make = generate.large if case == "large" else generate.small
        generated = make(path, size, **({"connections": chosen.connections} if chosen.connections else {}))
        exchanges = generated.exchanges
        capture = asdict(generated) | {"path": path.name}
        say(f"   {generated.packets:,} packets, {generated.exchanges:,} exchanges, {generated.connections} connections")
    into_page_cache(path)
    dataset = folder / "dataset"
    warm = generate.small(folder / "warm.pcap", 100_000)
    runs: list[dict[str, Any]] = []
    for records in chosen.records:
        measured("warm up", kwire(warm.path, records, max(chosen.threads), dataset))
        for threads in chosen.threads:
            tries = [measured("kwire", kwire(str(path), records, threads, dataset)) for _ in range(chosen.runs)]
            rows = rows_of(dataset)
            if rows != (exchanges := rows if exchanges is None else exchanges):
                raise RuntimeError(f"{case}: the dataset has {rows} exchanges, the capture has {exchanges}")
            best = min(tries, key=lambda run: run.seconds)
            all_seconds = [run.seconds for run in tries]
            runs.append({"records": records, "threads": threads, "all_seconds": all_seconds, **asdict(best)})
            say(f"   kwire --records {records} --threads {threads}: {best.seconds:.2f} s")
    paired = in_turn(chosen.against, path, dataset, chosen.runs) if chosen.against else None
    other = None
    if chosen.tshark:
        say("   tshark (takes a while)")
        into_page_cache(path)
        other = measured("tshark", tshark(str(path), port))
        say(f"   tshark: {other.seconds:.2f} s")
    read = min((measured("cat", ["cat", str(path)]) for _ in range(chosen.runs)), key=lambda run: run.seconds)
    if case not in real.CASES:
        path.unlink()
    return {
        "case": case,
        "capture": capture,
        "kwire": runs,
        "against": paired,
        "tshark": asdict(other) if other else None,
        "cat": asdict(read),
    }


def in_turn(against: str, path: Path, dataset: Path, runs: int) -> dict[str, Any]:
    """Run this kwire and another in turn, all defaults on -> processor seconds of each run, and the least one's ratio.

    against: the other's command, as a shell would split it."""
    processor: dict[str, list[float]] = {"this": [], "other": []}
    commands = {"this": list(KWIRE), "other": shlex.split(against)}
    for _ in range(runs + 1):  # the first warms up
        for name, command in commands.items():
            run = measured(name, [*command, "analyze", str(path), "-o", str(dataset)])
            processor[name].append(run.user_seconds + run.system_seconds)
    this, other = (min(seconds[1:]) for seconds in processor.values())
    say(f"   in turn: {this:.2f} s of processor, the other {other:.2f} s: {this / other:.2f}")
    return {"other": against, "processor_seconds": processor, "ratio": this / other}


def into_page_cache(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(2**24):
            pass


def bench_start(folder: Path) -> dict[str, float]:
    """`kwire --help`, and a capture of one packet: kernels warm, and the first run ever (an empty kernel cache)."""
    say("== start-up: a capture of one packet")
    capture = generate.one_packet(folder / "one.pcap")
    dataset = folder / "dataset-one"
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        fresh = {**os.environ, "KWIRE_CACHE_DIR": cache}
        first = measured("first run ever", kwire(capture.path, "none", 1, dataset), fresh)
        tries = [measured("warm", kwire(capture.path, "none", 1, dataset), fresh) for _ in range(3)]
        warm = min(tries, key=lambda run: run.seconds)
    helped = min(measured("help", [*KWIRE, "--help"]).seconds for _ in range(5))
    say(f"   first run ever {first.seconds:.2f} s, then {warm.seconds:.2f} s; --help {helped:.2f} s")
    return {"first_seconds": first.seconds, "warm_seconds": warm.seconds, "help_seconds": helped}


def report(result: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| capture | records | threads | kwire s | tshark s | times | bar | aim | RssAnon MB | peak RSS MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in result["cases"]:
        for run in case["kwire"]:
            against = case["tshark"]["seconds"] if case["tshark"] else None
            bar, aim = BARS.get((case["case"], run["records"]), ("", ""))
            seconds, times = (f"{against:.1f}", f"{against / run['seconds']:.1f}") if against else ("-", "-")
            lines.append(
                f"| {case['case']} {case['capture']['file_bytes'] / 1e6:.0f} MB | {run['records']} | {run['threads']} "
                f"| {run['seconds']:.2f} | {seconds} | {times} | {bar} | {aim} "
                f"| {run['peak_anonymous_mb']:.0f} | {run['peak_rss_mb']:.0f} |"
            )
    for case in result["cases"]:
        lines.append("")
        name = f"{case['case']} ({case['capture'].get('sha256', 'generated')[:16]})"
        times = ", ".join(f"{run['seconds'] / case['cat']['seconds']:.1f}" for run in case["kwire"])
        lines.append(f"{name}: times cat {times}")
        if case["against"]:
            lines.append(f"{name}: {case['against']['ratio']:.2f} of the processor time of {case['against']['other']}")
    if result["start"]:
        start = result["start"]
        lines.append("")
        warm, first = start["warm_seconds"], start["first_seconds"]
        lines.append(f"One packet: {warm:.2f} s warm (bar 1), {first:.2f} s on the first run ever (bar 30 more).")
        lines.append(f"--help: {start['help_seconds']:.2f} s (bar 0.3).")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--case", action="append", choices=CASES, help="repeatable (default: all but large)")
    parser.add_argument("--size", action="append", type=generate.size_of, help="of each case in turn (default 300M)")
    parser.add_argument("--against", metavar="COMMAND", help="another version's kwire, run in turn with this one")
    parser.add_argument("--records", action="append", choices=("none", "batches", "meta"), help="(default none)")
    parser.add_argument("--threads", action="append", type=int, help="repeatable (default 2)")
    parser.add_argument("--connections", type=int, help="default: 8 in large, 50 in small")
    parser.add_argument("--runs", type=int, default=3, help="of kwire, the best counts (default 3)")
    parser.add_argument("--no-tshark", dest="tshark", action="store_false")
    parser.add_argument("--no-start", dest="start", action="store_false", help="leave the one-packet runs out")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench", help="for captures and datasets")
    add_save(parser)
    chosen = parser.parse_args(arguments)
    chosen.records, chosen.threads = chosen.records or ["none"], chosen.threads or [2]
    cases = chosen.case or [case for case in CASES if case != "large"]
    sizes = (chosen.size or [])[: len(cases)]
    sizes += [300_000_000] * (len(cases) - len(sizes))
    if chosen.tshark and not shutil.which("tshark"):
        say("tshark is not installed\nhint: install it, or pass --no-tshark for kwire's figures alone")
        return 2
    chosen.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        **begin_result(),
        "start": bench_start(chosen.folder) if chosen.start else None,
        "cases": [bench_case(case, size, chosen, chosen.folder) for case, size in zip(cases, sizes, strict=True)],
    }
    print(report(result))
    if chosen.save:
        save(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
