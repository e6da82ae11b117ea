"""What a capture point of any size costs by `kwire analyze --engine spark` in chunks, step by step, without Spark.

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

from analyzer.api import findings_of
from analyzer.bulk.engine import Settings
from analyzer.dataset import tables
from analyzer.dataset.dataset import Parts
from analyzer.pipeline import shares
from analyzer.pipeline.points import AnalysisOptions, joined
from analyzer.pipeline.read_options import ReadOptions
from captures.chunks.chunk_reader import ChunkReader, Heard, Joining, Said, chunks_of
from captures.chunks.routing import Routed
from captures.chunks.sorting import Stored, divided, store
from captures.files import CapturePoint, capture_points
from reports.spark import chunked, merging
from reports.spark.chunked import GROUPS, in_place_bytes, window_bytes
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
        """The same of a capture so many times as large."""
        return Cost(*(factor * one for one in astuple(self)))

    @property
    def alone(self) -> float:
        """What is not divided."""
        return self.seen + self.facts + self.judge

    def seconds(self, cores: int) -> float:
        """How long it takes, where nothing else is waited for."""
        count = chunked.share_count(cores)
        return self.sort / cores + self.decode / count + self.merge / cores + self.alone

    def processor(self, cores: int) -> float:
        """Seconds of processor time of all cores together."""
        return self.sort + chunked.share_count(cores) * self.seen + self.decode + self.facts + self.merge + self.judge


def taken(work: Callable[[], T]) -> tuple[float, T]:
    """Processor time, and what came of it."""
    begin = time.process_time()
    found = work()
    return time.process_time() - begin, found


def cost(path: Path, choice: AnalysisOptions, folder: Path) -> Cost:
    """Of one capture."""
    [point] = capture_points([str(path)])
    settings = ReadOptions().settings(choice.keep)
    by_count = {}
    for count in (FEW, MANY):
        sort, (whole, stored) = taken(lambda count=count: _sorted(point, count, folder))  # type: ignore[misc]
        by_count[count] = sort, _shared(point, whole, stored, count, settings, choice, folder)
    few, many = (sum(one for one, _ in by_count[count][1]) for count in (FEW, MANY))
    seen = max(many - few, 0.0) / (MANY - FEW)
    made = [one for _, one in by_count[FEW][1]]
    ranges, pieces = shares.by_range(made)
    small = Parts(folder, "facts")
    decided = folder / "decided" if choice.meaning else None
    facts, (read, _, told) = taken(lambda: shares.take_facts(pieces, made, point, choice, small, folder / "decided"))
    merge, rows = taken(lambda: shares.merge(point, whole.files, ranges, Parts(folder, "rows"), decided))
    files: dict[str, list[Path]] = {name: [] for name in tables.TABLES}
    for entry in (*rows, *told):
        files[entry["table"]].append(folder / entry["path"])
    judge, _ = taken(lambda: findings_of(joined([read]), files))
    return Cost(by_count[MANY][0], seen, few - FEW * seen, facts, merge, judge)


def _sorted(point: CapturePoint, count: int, folder: Path) -> tuple[Heard, list[Stored]]:
    """A point's chunks, sorted for so many shares."""
    joining = Joining(point)
    size = window_bytes(ReadOptions().settings(False), MANY)  # of both alike, or shares could not be compared
    stored = []
    for number, chunk in enumerate(chunks_of(point, CHUNK_BYTES)):
        found = store(ChunkReader(chunk, None, size), GROUPS * count, count, folder / f"chunk-{count}-{number}")
        said: Said = found[0]
        if not joining.wants(chunk):
            continue
        if not joining.fits(chunk, said):
            reader = ChunkReader(chunk, joining.begin(chunk), size)
            said, _ = found = store(reader, GROUPS * count, count, folder / f"again-{count}-{number}")
        joining.take(chunk, said)
        stored.append(found[1]._replace(number=joining.numbers[-1]))
    return joining.said(), stored


def _shared(
    point: CapturePoint,
    whole: Heard,
    stored: list[Stored],
    count: int,
    settings: Settings,
    choice: AnalysisOptions,
    folder: Path,
) -> list[tuple[float, shares.ShareResult]]:
    """Each share, with its processor time."""
    packets, groups = merging.range_packets(choice), divided(stored, count)
    return [
        taken(
            lambda number=number: shares.share(  # type: ignore[misc]
                point,
                settings,
                choice,
                shares.ShareOfPackets(number, count),
                packets,
                folder / "pieces" / f"{count}-{number}",
                Routed(point, whole, stored, groups[number], most_in_place=in_place_bytes(choice)),
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
            found = cost(path, choice, folder / "work")
        say(f"{case}, {size / 1e9:.2f} GB, --records {chosen.records}; seconds of processor time: {found}")
        of_terabyte = found.times(TERABYTE / size)
        for cores in CORES:
            minutes, hours = of_terabyte.seconds(cores) / 60, of_terabyte.processor(cores) / 3600
            say(f"  a terabyte on {cores:>5} cores: {minutes:6.1f} minutes, {hours:5.2f} hours of one core")
        say(f"  not divided: {of_terabyte.alone / 60:.1f} minutes")


if __name__ == "__main__":
    main()
