"""Measure `kwire analyze --engine spark` in chunks, step by step, without Spark, for any size.

    python -m tests.bench.cost                       # small and large, 4 GB each, and a terabyte of either
    python -m tests.bench.cost --case small --size 300M --records meta

The tasks of `reports/spark/chunked.py` run here one after the other, in one process, and their processor time is taken:
chunks being sorted, shares of four and of sixteen being decoded, facts being put together, ranges being merged,
findings being looked for. What each share does for all packets, whoever they belong to, follows from shares of two
sizes: it is what more cores do not divide, with the facts, which one task puts together, and the findings, which are
the driver's. Times of a terabyte are these figures made as many times larger, divided by the cores as the engine
divides them: a calculation, no measurement.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeVar

from kwire.analyzer.api import findings_of
from kwire.analyzer.bulk.engine import Settings
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.pipeline import shares
from kwire.analyzer.pipeline.points import AnalysisOptions, joined
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.chunks.chunk_reader import ChunkJoiner, ChunkReader, ChunkResult, PointSummary, chunks_of
from kwire.captures.chunks.routing import RoutedReader
from kwire.captures.chunks.sorting import StoredChunk, divided, store
from kwire.captures.files import CapturePoint, capture_points
from kwire.reports.spark import chunked, merging
from kwire.reports.spark.chunked import GROUPS, in_place_bytes, window_bytes
from tests.bench import generate
from tests.bench.__main__ import say
from tests.shared import ROOT

CHUNK_BYTES = 512 << 20
FEW, MANY = 4, 16
"""Numbers of shares of which the cost is taken."""
CORES = (10, 100, 1000)
TERABYTE = 10**12

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of processor time for a capture point. `sort`: finding packets and storing them by share; `seen`: what
    one share does for packets of all; `decode`: what all shares do for their own, together; `facts`; `merge`; `judge`:
    the findings."""

    sort: float
    seen: float
    decode: float
    facts: float
    merge: float
    judge: float

    def times(self, factor: float) -> Cost:
        """Scale to a capture so many times as large."""
        return Cost(*(factor * seconds for seconds in astuple(self)))

    @property
    def alone(self) -> float:
        """Seconds that more cores do not divide."""
        return self.seen + self.facts + self.judge

    def seconds(self, cores: int) -> float:
        """How long it takes, where nothing else is waited for."""
        count = chunked.share_count(cores)
        return self.sort / cores + self.decode / count + self.merge / cores + self.alone

    def processor(self, cores: int) -> float:
        """Seconds of processor time of all cores together."""
        return self.sort + chunked.share_count(cores) * self.seen + self.decode + self.facts + self.merge + self.judge


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Processor time, and what came of it."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def cost(path: Path, choice: AnalysisOptions, folder: Path) -> Cost:
    """Of one capture."""
    [point] = capture_points([str(path)])
    settings = ReadOptions().settings(choice.keep)
    by_count = {}
    for count in (FEW, MANY):
        sort, (whole, stored) = timed(lambda count=count: _sorted(point, count, folder))  # type: ignore[misc]
        by_count[count] = sort, _shared(point, whole, stored, count, settings, choice, folder)
    few, many = (sum(seconds for seconds, _ in by_count[count][1]) for count in (FEW, MANY))
    seen = max(many - few, 0.0) / (MANY - FEW)
    parts = [part for _, part in by_count[FEW][1]]
    ranges, pieces = shares.by_range(parts)
    small = TableFiles(folder, "facts")
    decided = folder / "decided" if choice.meaning else None
    facts, (read, _, written) = timed(
        lambda: shares.take_facts(pieces, parts, point, choice, small, folder / "decided")
    )
    merge, (rows, _) = timed(lambda: shares.merge(point, whole.files, ranges, TableFiles(folder, "rows"), decided))
    files: dict[str, list[Path]] = {name: [] for name in tables.TABLES}
    for entry in (*rows, *written):
        files[entry["table"]].append(folder / entry["path"])
    judge, _ = timed(lambda: findings_of(joined([read]), files))
    return Cost(by_count[MANY][0], seen, few - FEW * seen, facts, merge, judge)


def _sorted(point: CapturePoint, count: int, folder: Path) -> tuple[PointSummary, list[StoredChunk]]:
    """A point's chunks, sorted for so many shares."""
    joining = ChunkJoiner(point)
    size = window_bytes(ReadOptions().settings(False), MANY)  # of both alike, or shares could not be compared
    stored = []
    for number, chunk in enumerate(chunks_of(point, CHUNK_BYTES)):
        pair = store(ChunkReader(chunk, None, size), GROUPS * count, count, folder / f"chunk-{count}-{number}")
        result: ChunkResult = pair[0]
        if not joining.wants(chunk):
            continue
        if not joining.fits(chunk, result):
            reader = ChunkReader(chunk, joining.begin(chunk), size)
            result, _ = pair = store(reader, GROUPS * count, count, folder / f"again-{count}-{number}")
        joining.take(chunk, result)
        stored.append(pair[1]._replace(number=joining.numbers[-1]))
    return joining.summary(), stored


def _shared(
    point: CapturePoint,
    whole: PointSummary,
    stored: list[StoredChunk],
    count: int,
    settings: Settings,
    choice: AnalysisOptions,
    folder: Path,
) -> list[tuple[float, shares.ShareResult]]:
    """Each share, with its processor time."""
    packets, groups = merging.range_packets(choice), divided(stored, count)
    return [
        timed(
            lambda number=number: shares.share(  # type: ignore[misc]
                point,
                settings,
                choice,
                shares.ShareOfPackets(number, count),
                packets,
                folder / "pieces" / f"{count}-{number}",
                RoutedReader(point, whole, stored, groups[number], most_in_place=in_place_bytes(choice)),
            )
        )
        for number in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cost")
    parser.add_argument("--case", action="append", choices=("large", "small"), help="default: both")
    parser.add_argument("--size", default="4G", help="of less, fresh memory counts for more (default: 4G)")
    parser.add_argument("--records", choices=("none", "batches", "meta"), default="batches")
    chosen = parser.parse_args()
    for case in chosen.case or ("large", "small"):
        with tempfile.TemporaryDirectory(dir=ROOT / "out" if (ROOT / "out").is_dir() else None) as name:
            folder = Path(name)
            path, warm = folder / f"{case}.pcap", folder / "warm.pcap"
            choice = AnalysisOptions.of(records=chosen.records)
            getattr(generate, case)(warm, 2_000_000)
            (folder / "first").mkdir()
            cost(warm, choice, folder / "first")  # kernels and layouts are loaded
            shutil.rmtree(folder / "first")
            getattr(generate, case)(path, generate.size_of(chosen.size))
            size = path.stat().st_size
            (folder / "work").mkdir()
            seconds = cost(path, choice, folder / "work")
        say(f"{case}, {size / 1e9:.2f} GB, --records {chosen.records}; seconds of processor time: {seconds}")
        of_terabyte = seconds.times(TERABYTE / size)
        for cores in CORES:
            minutes, hours = of_terabyte.seconds(cores) / 60, of_terabyte.processor(cores) / 3600
            say(f"  a terabyte on {cores:>5} cores: {minutes:6.1f} minutes, {hours:5.2f} hours of one core")
        say(f"  not divided: {of_terabyte.alone / 60:.1f} minutes")


if __name__ == "__main__":
    main()
