"""A regression shown for real: one capture replayed at two clusters of which one is broken on purpose. `kwire diff`
must name exactly what was broken, and nothing else.

Proves: `kwire diff` at real brokers
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kwire.replay.diff.compare import compare
from kwire.replay.diff.differences import grouped
from kwire.replay.diff.pairs import from_run, from_runs
from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec
from tests.brokers.fixtures import Start, launch
from tests.replay.replaying import AUTHORIZER, replay_capture
from tests.shared import KWIRE, SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3"
"""Idempotent producers of five topics, one a codec, then a group that reads them all. One batch of franz-none is of
2.2 kB; the others, and what the broker writes about the group, stay below 2 kB."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A RUN at a cluster with nothing broken."""
    cluster = launch(Spec(jars.NEWEST, 1, AUTHORIZER), tmp_path_factory)
    try:
        yield replay_capture(CAPTURE, cluster, tmp_path_factory.mktemp("good") / "run").out
    finally:
        cluster.stop()


def _unexpected(run: Path, good: Path | None = None) -> list[tuple[str, str, str]]:
    """(field, kind, what appeared) of each group of unexpected differences."""
    run_pairs = from_run(run) if good is None else from_runs(good, run)
    groups = [difference for difference in grouped(compare(run_pairs).differences) if difference.unexpected]
    return [(group.path, group.kind, group.right) for group in groups]


def _check(broken: Path, good: Path, wanted: list[tuple[str, str, str]]) -> None:
    assert _unexpected(good) == []
    assert _unexpected(broken) == wanted
    assert _unexpected(broken, good) == wanted


def _replay(cluster: Cluster, out: Path) -> Path:
    return replay_capture(CAPTURE, cluster, out).out


def test_a_smaller_largest_message(fresh_brokers: Start, tmp_path: Path, good: Path) -> None:
    cluster = fresh_brokers(Spec(jars.NEWEST, 1, (*AUTHORIZER, ("message.max.bytes", "2000"))))
    wanted = [("responses.partitionResponses.errorCode", "error appeared", "MESSAGE_TOO_LARGE (10)")]
    _check(_replay(cluster, tmp_path / "run"), good, wanted)


def test_a_right_that_is_missing(fresh_brokers: Start, tmp_path: Path, good: Path) -> None:
    cluster = fresh_brokers(Spec(jars.NEWEST, 1, AUTHORIZER))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    # A topic with any ACL is no longer everybody's: all is allowed again, but writing.
    rules = (AclOperation.ALL, AclPermissionType.ALLOW), (AclOperation.WRITE, AclPermissionType.DENY)
    for operation, permission in rules:
        acl = AclBinding(
            ResourceType.TOPIC, "franz-zstd", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
        )
        admin.create_acls([acl])[acl].result(30)
    wanted = [("responses.partitionResponses.errorCode", "error appeared", "TOPIC_AUTHORIZATION_FAILED (29)")]
    _check(_replay(cluster, tmp_path / "run"), good, wanted)


def test_a_shorter_largest_session_timeout(fresh_brokers: Start, tmp_path: Path, good: Path) -> None:
    cluster = fresh_brokers(Spec(jars.NEWEST, 1, (*AUTHORIZER, ("group.max.session.timeout.ms", "30000"))))
    wanted = [("errorCode", "error appeared", "INVALID_SESSION_TIMEOUT (26)")]
    broken = _replay(cluster, tmp_path / "run")
    _check(broken, good, wanted)
    # The same on the command line, as a pipeline sees it.
    process = subprocess.run([*KWIRE, "diff", str(broken), "--json"], capture_output=True, text=True, check=False)
    assert process.returncode == 1, process.stderr
    (only,) = [
        difference for difference in json.loads(process.stdout)["differences"] if difference["verdict"] == "unexpected"
    ]
    assert (only["api"], only["field"], only["kind"]) == ("JoinGroup", "errorCode", "error appeared")
    (example, *_) = only["examples"]
    assert (example["file"], example["right"]) == ("capture.pcap", "INVALID_SESSION_TIMEOUT (26)")
    assert example["packet"] > 0
    text_process = subprocess.run([*KWIRE, "diff", str(good)], capture_output=True, text=True, check=False)
    assert text_process.returncode == 0
    assert text_process.stdout.splitlines()[0] == "verdict: same"
