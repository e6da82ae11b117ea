"""Time Spark's engine against the local one, and how both grow.

    python -m tests.bench.spark                                  # large and small, 0.5, 1 and 2 GB
    python -m tests.bench.spark --case small --size 1G --records none

Two threads on one side, two cores of Spark (`local[2]`) on the other, in one process each, the file warm in the page
cache and the kernels in theirs. The JVM's start and a first small job, which starts Spark's Python workers, are not
counted. By capture point is one task of two threads; by connection and in chunks (as large as the engine has them where
there are more cores, of small files less) are all that `docs/guides/scale-on-spark.md` draws.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import generate
from tests.shared import ROOT

WAYS = ("local", "by capture point", "by connection", "in chunks")

_RUN = """
import json, os, sys, time
way, path, out, records = sys.argv[1:5]
from kwire.analyzer import api
begin = lambda: api.analyze(path, out, records=records, threads=2)
if way != "local":
    from kwire.captures.files import capture_points
    from kwire.reports.spark import chunked, ingest, session
    spark = session.session("local[2]", quick=True)  # as `kwire analyze` has it
    warm = sys.argv[5]  # Spark's first job starts its Python workers
    split = 1 << 60 if way == "by capture point" else 0
    [point] = capture_points([path])
    chunk = min(chunked.chunk_bytes_of(point, 2), -(-os.stat(path).st_size // 2)) if way == "in chunks" else 0
    how = {"spark": spark, "split_bytes": split, "chunk_bytes": chunk, "records": records, "threads": 2}
    ingest.analyze(warm, out + "-warm", **how)
    begin = lambda: ingest.analyze(path, out, **how)
else:
    api.analyze(sys.argv[5], out + "-warm", records=records, threads=2)
at = time.perf_counter()
rows = begin().summary["exchanges"]
print(json.dumps({"seconds": time.perf_counter() - at, "exchanges": rows}))
"""


def measured(way: str, path: Path, records: str, warm: Path, folder: Path) -> dict[str, Any]:
    """One run in a process of its own. Raises RuntimeError where it fails."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [sys.executable, "-c", _RUN, way, str(path), os.path.join(out, "dataset"), records, str(warm)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{way} on {path.name}: {ran.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark")
    parser.add_argument("--case", action="append", choices=("large", "small"), help="default: both")
    parser.add_argument("--size", action="append", metavar="SIZE", help="default: 500M, 1G and 2G")
    parser.add_argument("--records", choices=("none", "batches", "meta"), default="none")
    parser.add_argument("--runs", type=int, default=2, help="of each, the best counts (default: 2)")
    chosen = parser.parse_args(arguments)
    print(f"load average at the start: {os.getloadavg()[0]:.1f}; --records {chosen.records}")
    print("seconds, and the local engine's speed as 1")
    print(f"{'case':8}{'size':>8}{'exchanges':>12}" + "".join(f"{way:>20}" for way in WAYS))
    with tempfile.TemporaryDirectory(dir=ROOT / "out" if (ROOT / "out").is_dir() else None) as name:
        folder = Path(name)
        warm = folder / "warm.pcap"
        generate.small(warm, 1_000_000)
        for case in chosen.case or ("large", "small"):
            for size in chosen.size or ("500M", "1G", "2G"):
                path = folder / f"{case}.pcap"
                getattr(generate, case)(path, generate.size_of(size))
                best = {
                    way: min(
                        (measured(way, path, chosen.records, warm, folder) for _ in range(chosen.runs)),
                        key=lambda run: float(run["seconds"]),
                    )
                    for way in WAYS
                }
                counts = {run["exchanges"] for run in best.values()}
                if len(counts) != 1:
                    raise RuntimeError(f"{path.name}: the engines count {counts} exchanges")
                local = best["local"]["seconds"]
                cells = "".join(f"{run['seconds']:>13.2f} {local / run['seconds']:>5.2f}x" for run in best.values())
                print(f"{case:8}{size:>8}{counts.pop():>12,}{cells}", flush=True)
                path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
