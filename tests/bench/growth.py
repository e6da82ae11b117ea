"""How kwire's time and memory grow with the capture, and what a filter costs.

    python -m tests.bench.growth             # sizes 0.25 to 6 GB, connections 10 to 100,000, things seen, a filter
    python -m tests.bench.growth --sizes 250M 500M --connections 10 1000 --seen clients

Sizes and connections: whole processes on *small* captures, `--records none`, two threads, the best of three. Filter: in
one process, on one thread, in turns: framing and matching alone (`Columns.take`), and the same with a filter that lets
one exchange in about a thousand through, its rows made into tables. What was seen: captures of `seen` in which few
things are open and ever more were, once and four times as many: memory that grows is memory of what is over.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench import generate, seen
from tests.bench.__main__ import add_save, begin_result, into_page_cache, kwire, measured, rows_of, save, say
from tests.shared import ROOT


def timed(folder: Path, size: int, connections: int, runs: int) -> dict[str, Any]:
    """One capture of that size and that many connections."""
    path = folder / "growth.pcap"
    capture = generate.small(path, size, connections)
    into_page_cache(path)
    dataset = folder / "dataset"
    best = min(
        (measured("kwire", kwire(capture.path, "none", 2, dataset)) for _ in range(runs)), key=lambda r: r.seconds
    )
    if rows_of(dataset) != capture.exchanges:
        raise RuntimeError(f"the dataset lacks rows: {rows_of(dataset)} of {capture.exchanges}")
    path.unlink()
    say(
        f"   {capture.file_bytes / 1e6:.0f} MB, {connections} connections: {best.seconds:.2f} s, "
        f"{best.user_seconds + best.system_seconds:.2f} s of processor, {best.peak_anonymous_mb:.0f} MB RssAnon"
    )
    return {
        "file_bytes": capture.file_bytes,
        "packets": capture.packets,
        "exchanges": capture.exchanges,
        "connections": connections,
        "seconds": best.seconds,
        "processor_seconds": best.user_seconds + best.system_seconds,
        "rss_anon_mb": best.peak_anonymous_mb,
    }


SEEN: dict[str, tuple[int, int]] = {
    "clients": (250_000, 25_000),
    "groups": (50_000, 5000),
    "offsets": (10_000, 1000),
    "transactions": (50_000, 5000),
    "producers": (50_000, 5000),
    "topics": (50_000, 5000),
}
"""Of each kind of `seen` how many, over how many connections; of `offsets` each is a hundred commits."""


def memory_of(folder: Path, kind: str, times: int) -> dict[str, Any]:
    """Memory for a capture in which so many times as much of a kind was seen."""
    count, connections = (number * times for number in SEEN[kind])
    path = folder / "seen.pcap"
    seen.capture(path, kind, count, connections)
    run = measured("kwire", kwire(str(path), "none", 2, folder / "dataset"))
    exchanges = rows_of(folder / "dataset")
    path.unlink()
    say(f"   {count:,} {kind}, {exchanges:,} exchanges: {run.peak_anonymous_mb:.0f} MB RssAnon, {run.seconds:.1f} s")
    return {"kind": kind, "count": count, "exchanges": exchanges, "rss_anon_mb": run.peak_anonymous_mb}


def filter_cost(folder: Path, size: int, runs: int) -> dict[str, float]:
    """Seconds of framing and matching alone, and with a filter of 1 in 1,000."""
    from kwire import analyzer
    from kwire.analyzer.bulk.engine import Engine, Settings
    from kwire.captures.files import capture_points

    path = folder / "filter.pcap"
    capture = generate.small(path, size)
    into_page_cache(path)
    per_connection = capture.exchanges // capture.connections
    expression = f"correlation_id < {max(1, per_connection // 1000)}"

    def alone() -> float:
        point = capture_points([str(path)], False)[0]
        began = time.perf_counter()
        engine = Engine(point, Settings(threads=1))
        for window in engine.windows():
            window.names.release()
        return time.perf_counter() - began

    matched = 0

    def filtered() -> float:
        nonlocal matched
        began = time.perf_counter()
        matched = len(analyzer.analyze(str(path), filter=expression, threads=1, records="none").exchanges)
        return time.perf_counter() - began

    alone(), filtered()
    pairs = [(alone(), filtered()) for _ in range(max(runs, 5))]
    path.unlink()
    base, cost = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    say(f"   {expression}: {matched:,} of {capture.exchanges:,}; {base:.3f} s alone, {cost:.3f} s filtered")
    return {"exchanges": capture.exchanges, "matched": matched, "alone_seconds": base, "filtered_seconds": cost}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__.split("\n")[0])
    sizes = [250_000_000, 500_000_000, 10**9, 2 * 10**9, 6 * 10**9]
    parser.add_argument("--sizes", nargs="*", type=generate.size_of, default=sizes)
    parser.add_argument("--connections", nargs="*", type=int, default=[10, 1000, 10_000, 100_000])
    parser.add_argument("--seen", nargs="*", choices=list(SEEN), default=list(SEEN))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench")
    add_save(parser)
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    result = begin_result("growth")
    say("== size")
    result["sizes"] = [timed(chosen.folder, size, 50, chosen.runs) for size in chosen.sizes]
    say("== connections")
    result["connections"] = [timed(chosen.folder, 250_000_000, count, chosen.runs) for count in chosen.connections]
    say("== what was seen")
    result["seen"] = [memory_of(chosen.folder, kind, times) for kind in chosen.seen for times in (1, 4)]
    say("== a filter")
    result["filter"] = filter_cost(chosen.folder, 250_000_000, chosen.runs)
    print(report(result))
    if chosen.save:
        save(result)
    return 0


def report(result: dict[str, Any]) -> str:
    """The figures as Markdown: the time of a megabyte should stay what it is."""
    lines = ["| MB | connections | s | ms a MB | RssAnon MB |", "|---|---|---|---|---|"]
    for run in (*result["sizes"], *result["connections"]):
        size = run["file_bytes"] / 1e6
        lines.append(
            f"| {size:.0f} | {run['connections']:,} | {run['seconds']:.2f} | {1000 * run['seconds'] / size:.2f} "
            f"| {run['rss_anon_mb']:.0f} |"
        )
    lines += ["", "| seen | how many | exchanges | RssAnon MB |", "|---|---|---|---|"]
    for kind in result["seen"]:
        lines.append(f"| {kind['kind']} | {kind['count']:,} | {kind['exchanges']:,} | {kind['rss_anon_mb']:.0f} |")
    cost = result["filter"]
    share = cost["filtered_seconds"] / cost["alone_seconds"] - 1
    lines += ["", f"A filter that lets 1 in 1,000 through costs {share:+.1%} over framing and matching (bar +10 %)."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
