"""`python -m tests.replay.healthy [CAPTURE ...] [--runs N]`: replays at healthy targets, against each other.

Each capture is replayed N times, each time at fresh brokers, and the RUNs are compared as `kwire diff A B` does: each
with the next one and with the first, both ways. Whatever is unexpected is a false alarm. One line each; exit code 1
where there is one. (Minutes.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kwire.analyzer.protocol import schema
from kwire.replay.diff.compare import compare
from kwire.replay.diff.differences import grouped
from kwire.replay.diff.pairs import from_runs
from tests.brokers import jars
from tests.replay.replaying import replay_capture
from tests.replay.sweep import one_cluster
from tests.shared import SHARED

CAPTURES = ("cluster-zk-2.8", "group-classic-librdkafka-4.3", "codecs-franzgo-4.3", "txn-librdkafka-4.3")
"""A leader that dies, a group that rebalances, a coordinator that was loading, transactions."""


def compared(runs: int) -> Iterator[tuple[int, int]]:
    """Which are compared, both ways: neighbours, and each with the first."""
    pairs = {(first, first + 1) for first in range(runs - 1)} | {(0, other) for other in range(1, runs)}
    for left, right in sorted(pairs):
        yield left, right
        yield right, left


def healthy(name: str, version: str, nodes: int, runs: int, folder: Path) -> int:
    """How many alarms there are."""
    out = [folder / f"run-{number}" for number in range(runs)]
    for path in out:
        with one_cluster(name, version, nodes) as cluster:
            replay_capture(SHARED / name, cluster, path)
    alarms = 0
    pairs = list(compared(runs))
    for left, right in pairs:
        comparison = compare(from_runs(out[left], out[right]))
        bad = [difference for difference in grouped(comparison.differences) if difference.unexpected]
        alarms += bool(bad)
        for difference in bad:
            print(
                f"      {left} against {right}: {difference.count} x {schema.api_name(difference.api_key)} "
                f"{difference.path}  {difference.kind}"
                f" {difference.left} -> {difference.right}",
                flush=True,
            )
            for example in difference.examples[:2]:
                print(
                    f"          packet {example.row['request_packet']} {example.row['connection']}"
                    f" #{example.row['exchange']} {'/'.join(example.key)}: {example.left} -> {example.right}",
                    flush=True,
                )
    print(f"{name:<34} {version}  {runs} runs, {len(pairs)} comparisons, {alarms} with an alarm", flush=True)
    return alarms


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay.healthy", description=__doc__)
    parser.add_argument("captures", nargs="*", help=f"default: {' '.join(CAPTURES)}")
    parser.add_argument("--version", choices=jars.VERSIONS, default=jars.NEWEST)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="a folder that keeps the RUNs")
    options = parser.parse_args()
    alarms = 0
    for name in options.captures or CAPTURES:
        with tempfile.TemporaryDirectory(prefix="kwire-healthy-") as folder:
            into = options.keep / name if options.keep is not None else Path(folder)
            into.mkdir(parents=True, exist_ok=True)
            alarms += healthy(name, options.version, options.nodes, options.runs, into)
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
