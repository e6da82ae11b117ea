"""`python -m tests.bench.survey`: what a replay's first pass costs, beside `kwire analyze --records none`.

Both are whole processes, one after the other, in turns; the ratio is of processor time (bar 1.3), median of the pairs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.replay.plan import sessions
from kwire.replay.plan.windows import TwoPassReader
from tests.bench import generate
from tests.bench.__main__ import Run, kwire, measured, say


def survey(capture: str) -> int:
    """Go through it; how many requests it has."""
    how = ReadOptions(threads=2)
    flow = TwoPassReader(
        lambda: sessions.read_exchanges(capture, how=how),
        by_columns=lambda look: sessions.read_exchanges(capture, how=how, look=look),
    )
    flow.read_first_pass()
    return flow.first.requests


def processor(run: Run) -> float:
    return run.user_seconds + run.system_seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.survey", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", type=generate.size_of, default=300_000_000, help="bytes, or 300M, 1.5G")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--look", metavar="CAPTURE", help="survey this one, and nothing else")
    options = parser.parse_args()
    if options.look:
        print(survey(options.look))
        return 0
    with tempfile.TemporaryDirectory(prefix="kwire-bench-") as folder:
        for case in ("small", "large"):
            capture = str(Path(folder, f"{case}.pcap"))
            generate.main([case, capture, "--size", str(options.size)])
            ratios = []
            for number in range(options.rounds):
                analysed = measured("analyze", kwire(capture, "none", 2, Path(folder, f"{case}-{number}")))
                looked = measured("survey", [sys.executable, "-m", "tests.bench.survey", "--look", capture])
                ratios.append(processor(looked) / processor(analysed))
                say(
                    f"{case}: analyze {processor(analysed):.2f} s of processor, survey {processor(looked):.2f} s, "
                    f"{looked.peak_anonymous_mb:.0f} MB RssAnon"
                )
            say(f"== {case}: {statistics.median(ratios):.2f} times analyze (bar 1.3)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
