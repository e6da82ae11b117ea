"""Where `kwire analyze` spends its processor time, stage by stage and thread by thread, and what it can do only one
thing after the other.

    python -m tests.bench.threads                                  # small and large, 300 MB each, 2 threads
    python -m tests.bench.threads --capture out/small.pcap --threads 4 --records batches --meaning

Each round is a process of its own that runs the command with its stages wrapped: each call's processor time is that of
the thread it ran in, without that of stages called inside it, so figures mean something on a busy machine too (the best
of the rounds counts). A stage is either *divided* (several threads may be in it at once: shards, columns made of row
groups) or *in order* (a window after the other: reading, following connections, putting the shards' rows together).
Stages in order work side by side, each on another window. So the serial part, time that no other thread could have
worked, is the longest of them, and what comes after the last window; start-up, until the first byte is asked for, is
told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import generate
from tests.bench.__main__ import into_page_cache, say
from tests.shared import ROOT

BAR_SECONDS = 0.25
"""The serial part of 300 MB of *small* and of 1 GB of *large*."""

IN_ORDER, DIVIDED = "in order", "divided"
SCANNING = "kwire-scan"
"""Threads that read and scan chunks of a large capture side by side: what they do is divided."""

STAGES = (
    # what, where, name of the function there, kind
    ("read and checksum", "kwire.captures.files.sources", "Source.readinto", IN_ORDER),
    ("find packets", "kwire.captures.packets", "Reader._scan", IN_ORDER),
    ("guess at chunks", "kwire.captures.chunks.parallel_scan", "_guessed", IN_ORDER),
    ("join chunks", "kwire.captures.chunks.chunk_reader", "ChunkJoiner.take", IN_ORDER),
    ("follow connections", "kwire.captures.flows", "Flows.assign", IN_ORDER),
    ("order payload", "kwire.captures.streams", "Streams.advance", DIVIDED),
    ("frame, decode, match", "kwire.analyzer.bulk.shard", "Conversations.take", DIVIDED),
    ("put shards together", "kwire.analyzer.bulk.rows", "ShardMerger.take", IN_ORDER),
    ("move shards' rows", "kwire.analyzer.bulk.merging", "look", DIVIDED),
    ("move shards' rows", "kwire.analyzer.bulk.merging", "look_at_parts", DIVIDED),
    ("move shards' rows", "kwire.analyzer.bulk.merging", "move", DIVIDED),
    ("summary", "kwire.analyzer.analysis.summary", "Summary.take", IN_ORDER),
    ("learn", "kwire.analyzer.pipeline.point_tables", "PointTables.learn", IN_ORDER),
    ("columns", "kwire.analyzer.bulk.exchange_tables", "_exchanges", DIVIDED),
    ("columns", "kwire.analyzer.bulk.exchange_tables", "_partitions", DIVIDED),
    ("latencies", "kwire.analyzer.analysis.latency", "Latency.take", IN_ORDER),
    ("analysis", "kwire.analyzer.pipeline.analysis_tables", "AnalysisTables.take", IN_ORDER),
    ("findings", "kwire.analyzer.findings.evaluate", "of_point", IN_ORDER),
    ("Parquet", "kwire.analyzer.dataset.parquet_files", "TableFiles._store", DIVIDED),
)


class Clock:
    """Processor time by (stage, thread), of each thread without what it spent in stages called from a stage."""

    def __init__(self) -> None:
        self.spent: dict[tuple[str, str], float] = defaultdict(float)
        self._here = threading.local()
        self._lock = threading.Lock()

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            inside = getattr(self._here, "inside", None)
            if inside is None:
                inside = self._here.inside = [0.0]
            inside.append(0.0)
            began = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                elapsed = time.thread_time() - began
                own = elapsed - inside.pop()
                inside[-1] += elapsed
                with self._lock:
                    self.spent[stage, threading.current_thread().name.split("_")[0]] += own

        return timed


def profiled(command: list[str]) -> dict[str, Any]:
    """Run the command in this process -> what each stage took. To be called once."""
    import importlib

    clock = Clock()
    marks: dict[str, float] = {}
    for stage, module, name, _ in STAGES:
        owner: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        setattr(owner, last, clock.wrap(stage, getattr(owner, last)))
    from kwire.analyzer.bulk import engine
    from kwire.analyzer.cli import parser as cli
    from kwire.analyzer.pipeline import point_tables

    ended = engine.Engine.ended

    def watched(self: Any, *arguments: Any) -> Any:
        marks["begun"] = time.process_time()
        yield from ended(self, *arguments)
        marks.setdefault("last", time.thread_time())  # of the main thread, which takes the windows

    setattr(engine.Engine, "ended", watched)  # noqa: B010  (the bench looks on)
    finish = point_tables.PointTables.result

    def finished(self: Any, *arguments: Any) -> Any:
        marks["finish"] = time.thread_time()
        return finish(self, *arguments)

    setattr(point_tables.PointTables, "result", finished)  # noqa: B010
    sys.argv[1:] = command
    setattr(cli, "_leave", lambda code: None)  # noqa: B010  (it would end the process before anything is told)
    with contextlib.suppress(SystemExit):
        cli.command()
    sys.stdout.flush()
    return {
        "start": marks["begun"],
        "end": time.thread_time() - marks["last"],
        "all": time.process_time(),
        "stages": [[stage, thread, seconds] for (stage, thread), seconds in clock.spent.items()],
    }


def measured(command: list[str]) -> dict[str, Any]:
    """Run `profiled` in a process of its own."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as output:
        work = [sys.executable, "-m", "tests.bench.threads", "--told", output.name, "--", *command]
        subprocess.run(work, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        figures: dict[str, Any] = json.load(output)
        return figures


def table(figures: dict[str, Any], size: int) -> list[str]:
    """Format the figures as lines, each with its processor time per GB."""
    kinds = {stage: kind for stage, _, _, kind in STAGES}
    by_stage: dict[str, float] = defaultdict(float)
    by_thread: dict[str, float] = defaultdict(float)
    for stage, thread, seconds in figures["stages"]:
        by_stage[stage] += seconds
        by_thread[thread] += seconds
    rest = figures["all"] - figures["start"] - sum(by_stage.values())
    per_gb = 1e9 / size
    lines = [f"{'':<22} {'':<9} {'s':>7} {'s/GB':>7}"]
    lines.append(f"{'start-up':<22} {'':<9} {figures['start']:7.3f} {figures['start'] * per_gb:7.2f}")
    for stage in dict.fromkeys(stage for stage, *_ in STAGES):
        seconds = by_stage[stage]
        lines.append(f"{stage:<22} {kinds[stage]:<9} {seconds:7.3f} {seconds * per_gb:7.2f}")
    lines.append(f"{'all else':<22} {'':<9} {rest:7.3f} {rest * per_gb:7.2f}")
    lines.append(f"{'together':<22} {'':<9} {figures['all']:7.3f} {figures['all'] * per_gb:7.2f}")
    threads = ", ".join(f"{thread} {seconds:.3f}" for thread, seconds in sorted(by_thread.items()))
    lines.append(f"stages by thread: {threads}")
    serial, longest = serial_part(figures)
    lines.append(
        f"serial part: {serial:.3f} s (longest stage in order: {longest}; after the last window {figures['end']:.3f} s)"
    )
    return lines


def serial_part(figures: dict[str, Any]) -> tuple[float, str]:
    """Seconds that no other thread could have worked, start-up apart, and the stage that is the longest in order. What
    one thread does in order is one stage: `learn` and what it calls."""
    joined = dict.fromkeys(("put shards together", "summary", "learn", "latencies", "analysis"), "main thread")
    kinds = {stage: kind for stage, _, _, kind in STAGES}
    by_stage: dict[str, float] = defaultdict(float)
    for stage, thread, seconds in figures["stages"]:
        if kinds[stage] == IN_ORDER and thread != SCANNING:
            by_stage[joined.get(stage, stage)] += seconds
    longest = max(by_stage, key=lambda stage: by_stage[stage])
    return by_stage[longest] + figures["end"], longest


def main(arguments: list[str] | None = None) -> int:
    """1: the serial part is longer than the bar."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.threads", description=__doc__.split("\n")[0])
    parser.add_argument("--capture", action="append", type=Path, default=[], help="instead of generated ones")
    parser.add_argument("--size", type=generate.size_of, default=300_000_000, help="of generated ones (300M)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--records", default="none")
    parser.add_argument("--meaning", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench")
    chosen = parser.parse_args(arguments)
    captures: list[Path] = chosen.capture
    paths: list[Path] = []
    if not captures:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        for case in ("small", "large"):
            paths.append(chosen.folder / f"threads-{case}.pcap")
            getattr(generate, case)(paths[-1], chosen.size)
    missed = False
    for path in captures or paths:
        into_page_cache(path)
        with tempfile.TemporaryDirectory() as folder:
            command = ["analyze", str(path), "--records", chosen.records, "--threads", str(chosen.threads)]
            command += [*(() if chosen.meaning else ("--no-meaning",)), "-o", str(Path(folder) / "dataset")]
            figures = min((measured(command) for _ in range(chosen.runs)), key=lambda run: float(run["all"]))
        say(f"== {path.name}: {path.stat().st_size / 1e6:.0f} MB, {chosen.threads} threads, {os.cpu_count()} cores")
        say("\n".join(table(figures, path.stat().st_size)))
        missed |= serial_part(figures)[0] > BAR_SECONDS
    for path in paths:
        path.unlink()
    return int(missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--told"]:
        output = Path(sys.argv[2])
        output.write_text(json.dumps(profiled(sys.argv[4:])))
        raise SystemExit(0)
    raise SystemExit(main())
