"""`python -m tests.replay.sweep [CAPTURE ...] [--version V]`: every replayable shared capture at fresh brokers.

Each capture is replayed with seeded topics as fast as answers allow, compared, and what the target then holds is read
back. One line each; what is unexpected below it. Exit code 1 where something is. (Minutes; the suite has a part of it.)
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.protocol import schema
from kwire.replay.diff.differences import grouped
from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec
from tests.replay.auditing import audit
from tests.replay.replaying import (
    AUTHORIZER,
    AUTHORIZER_OF_ZOOKEEPER,
    BEFORE_ACLS_ARE_READ,
    LIKE_CAPTURED,
    WITH_KIP_848,
    replay_capture,
    replayable,
)
from tests.shared import SHARED

LACKING = {
    ("group-share-java-4.3", jars.LAST_OF_3): (names.SHARE_GROUP_HEARTBEAT, "state", "skipped (target_lacks_api)"),
}
"""True differences, which must be told: what a release cannot do. What follows from that must be told as that."""


@contextlib.contextmanager
def one_cluster(name: str, version: str, nodes: int) -> Iterator[Cluster]:
    """Fresh brokers for a capture, ended when it is done."""
    authorizer = AUTHORIZER_OF_ZOOKEEPER if version == jars.WITH_ZOOKEEPER else AUTHORIZER
    several = BEFORE_ACLS_ARE_READ if nodes > 1 and version != jars.WITH_ZOOKEEPER else ()
    settings = WITH_KIP_848 if version == jars.LAST_OF_3 else ()
    spec = Spec(version, nodes, (*authorizer, *several, *settings, *LIKE_CAPTURED.get(name, ())))
    with tempfile.TemporaryDirectory(prefix="kwire-sweep-") as folder:
        cluster = Cluster(spec, Path(folder, "cluster"), jars.find_java(), jars.fetch(version))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def sweep(name: str, version: str, nodes: int) -> bool:
    """One capture at one fresh cluster; whether all is well."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kwire-sweep-") as folder:
        try:
            with one_cluster(name, version, nodes) as cluster:
                done = replay_capture(SHARED / name, cluster, Path(folder, "run"))
                comparison = done.comparison
                problems = list(audit(done.pairs, cluster.bootstrap))
        except Exception:
            print(f"{name:<34} {version}  FAILED\n{traceback.format_exc()}", flush=True)
            return False
    unexpected = [difference for difference in grouped(comparison.differences) if difference.unexpected]
    examples = [
        (difference.api_key, difference.kind, example.right)
        for difference in unexpected
        for example in difference.examples
    ]
    lacking = LACKING.get((name, version))
    bad = unexpected if lacking is None or examples != [lacking] else []
    rules: Counter[str] = Counter()
    for difference in grouped(comparison.differences):
        if difference.rule:
            rules[difference.rule] += difference.count
    print(
        f"{name:<34} {version}  {comparison.total:>6} exchanges  {comparison.compared:>6} compared"
        f"  {comparison.same:>6} same"
        f"  {comparison.expected:>4} expected  {comparison.unexpected:>4} unexpected  {len(problems):>3} in the audit"
        f"  {time.monotonic() - started:5.1f} s  {dict(rules)}",
        flush=True,
    )
    for difference in bad:
        print(
            f"      {difference.count} x {schema.api_name(difference.api_key)} v{difference.version}"
            f"  {difference.path}  {difference.kind}"
            f" {difference.left} -> {difference.right}",
            flush=True,
        )
        for example in difference.examples[:2]:
            row = example.row
            print(
                f"          packet {row['request_packet']} {row['connection']} #{row['exchange']}"
                f" {'/'.join(example.key)}: {example.left} -> {example.right}",
                flush=True,
            )
    for problem in problems[:10]:
        print(f"      audit: {problem}", flush=True)
    return not bad and not problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay.sweep", description=__doc__)
    parser.add_argument("captures", nargs="*", help="default: all that can be replayed")
    parser.add_argument("--version", action="append", choices=jars.VERSIONS)
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    names = options.captures or list(replayable())
    versions = options.version or [jars.NEWEST, jars.LAST_OF_3]
    results = [sweep(name, version, options.nodes) for version in versions for name in names]
    print(f"{sum(results)} of {len(results)} as they must be")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
