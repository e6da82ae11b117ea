"""Captures cut at every hundredth packet, stored and taken up at each cut, against one pass over all of it.

    python -m tests.bench.cuts [--every 100] [CAPTURE ...]

In: captures (default: samples, and those beside the repository). Out: a line a capture: cuts, the largest snapshot, and
what is different, which is nothing; exit code 1 where it is not. Each piece is read by a `ResumableReader` that knows
of those before what the snapshot says, in all tables and with all messages; once more without, over one thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from tests.analyzer.checkpoints import cutting
from tests.shared import capture_files, sample_folders, shared_folders


def differences(capture: Path, every: int, how: ReadOptions, choice: AnalysisOptions) -> tuple[int, int, list[str]]:
    """(cuts, bytes of the largest snapshot, what is different)."""
    count = len(cutting.packets(cutting.content(capture))[1])
    with tempfile.TemporaryDirectory() as folder:
        paths = cutting.cut(capture, range(every, count, every), Path(folder))
        expected, name = cutting.at_once(paths, how, choice)
        actual, sizes = cutting.resumed(paths, how, choice, name)
    return len(paths) - 1, max(sizes), cutting.differences(actual, expected)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=100, metavar="N", help="packets between cuts (default: 100)")
    parser.add_argument("captures", nargs="*", type=Path, metavar="CAPTURE")
    options = parser.parse_args()
    captures = options.captures or [capture_files(folder)[0] for folder in [*sample_folders(), *shared_folders()]]
    different = 0
    for capture in captures:
        keys = [str(path) for path in capture.parent.glob("keys*.log")]
        for whole, threads in ((True, 4), (False, 2)):
            how = ReadOptions(threads=threads, keylogs=keys)
            choice = AnalysisOptions.of(keep_bytes=whole, records="meta" if whole else "batches")
            cuts, largest, differing = differences(capture, options.every, how, choice)
            different += bool(differing)
            print(f"{capture.parent.name:40} {cuts:6} cuts  {largest:9,} bytes  {differing or 'equal'}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
