"""Replaying a shared capture at a cluster, as tests and the sweep do it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.replay import inputs, run
from kwire.replay.diff import pairs
from kwire.replay.diff.compare import Comparison, compare
from kwire.replay.options import Options
from kwire.replay.plan.sessions import Session
from kwire.replay.run import Result
from kwire.replay.send import link
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource
from tests.brokers.cluster import Cluster
from tests.shared import SHARED, capture_files

AUTHORIZER = (
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("allow.everyone.if.no.acl.found", "true"),
)
"""Settings of a KRaft target on which requests about ACLs are answered, as they were in the captures."""

AUTHORIZER_OF_ZOOKEEPER = (
    ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer"),
    ("allow.everyone.if.no.acl.found", "true"),
)
"""The same of a target with ZooKeeper."""

BEFORE_ACLS_ARE_READ = (("super.users", "User:ANONYMOUS"),)
"""Of several KRaft nodes with an authorizer: they elect a leader by requests that no ACL allows yet, for the ACLs are
in the log that the leader writes. One node elects itself."""

WITH_KIP_848 = (("group.coordinator.rebalance.protocols", "classic,consumer"),)
"""A setting of 3.9, where KIP-848 is a preview, and off by default."""

LIKE_CAPTURED = {"errors-librdkafka-4.3": (("message.max.bytes", "100000"),)}
"""Settings of the captured brokers that their answers show and no request tells."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A RUN, what its engine says, and what the comparison says."""

    out: Path
    result: Result
    pairs: Sequence[pairs.Pair]
    comparison: Comparison
    notes: list[str]


def replay_capture(
    folder: Path, cluster: Cluster, out: Path, *, speed: float | None = None, since: float = 0.0, **options: Any
) -> Replayed:
    """Replay a capture folder as fast as answers allow (or at a speed), topics seeded, and compare. `since`: as if the
    capture had begun so many seconds later."""
    files = [str(path) for path in capture_files(folder)]
    host, _, port = cluster.bootstrap.rpartition(":")
    notes: list[str] = []
    sessions = _later(inputs.read(files, how=ReadOptions(rotated=len(files) > 1), notes=notes), since)
    chosen = dataclasses.replace(Options(host, int(port), settings=Settings(speed=speed), seed_topics=True), **options)
    result = asyncio.run(run.replay(MemorySource(sessions), chosen, link.tcp(), out, notes))
    run_pairs = pairs.from_run(out)
    return Replayed(out, result, run_pairs, compare(run_pairs), notes)


def replayed_at(capture: Path, port: int, out: Path) -> None:
    """Replay a capture at a server of the test's own, as fast as answers allow."""
    chosen = Options("127.0.0.1", port, settings=Settings(speed=None), yes=True, missing_topics_ok=True)
    asyncio.run(run.replay(MemorySource(inputs.read(capture)), chosen, link.tcp(), out, []))


def replayed_at_less(out: Path) -> Path:
    """A RUN of a real capture, most of which its target does not offer."""
    from tests.replay.test_commands import CAPTURE, sinking

    with sinking() as port:
        replayed_at(CAPTURE, port, out)
    return out


def _later(sessions: Sequence[Session], seconds: float) -> list[Session]:
    start = min(request.sent_ns for session in sessions for request in session.requests) + round(seconds * 1e9)
    later = [
        dataclasses.replace(
            session, requests=tuple(request for request in session.requests if request.sent_ns >= start)
        )
        for session in sessions
    ]
    return [session for session in later if session.requests or session.orphans]


def replayable() -> dict[str, str]:
    """Shared captures whose README row says `full` or `partial`, with that word."""
    rows = (SHARED / "README.md").read_text().splitlines()
    matches = (re.match(r"\| ([a-z0-9.-]+) \|.*\| (full|partial) \|$", row) for row in rows)
    return {row[1]: row[2] for row in matches if row is not None}
