"""Whole captures replayed at real brokers, and what these then hold, read back by librdkafka.

A part of `python -m tests.replay.sweep`, so that the suite stays quick: the shipped samples, whose topics and groups
have different names, at one cluster a version.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from analyzer.dataset import open_dataset
from replay import run, steps
from replay.compare import Comparison, grouped
from tests.brokers import jars
from tests.brokers.cluster import Spec
from tests.brokers.fixtures import Start
from tests.replay.auditing import audit
from tests.replay.replaying import AUTHORIZER, Replayed, replay_capture
from tests.shared import SAMPLES, shared_folder

SAMPLE_NAMES = (
    "admin-kafkapython-3.9", "client-kafkajs-3.9", "codecs-franzgo-4.3", "group-kip848-librdkafka-4.3",
    "old-java-0.8.2", "sasl-librdkafka-4.3", "txn-librdkafka-4.3",
)  # fmt: skip

WITH_KIP_848 = (("group.coordinator.rebalance.protocols", "classic,consumer"),)


def unexpected(comparison: Comparison) -> list[tuple[Any, ...]]:
    return [(one.api_key, one.path, one.kind, one.left, one.right, one.count)
            for one in grouped(comparison.differences) if one.unexpected]  # fmt: skip


def check_outcomes(done: Replayed) -> None:
    """Every captured exchange has one outcome, and what was not sent a rule that has a sentence."""
    stored = open_dataset(done.out)
    rows = stored.outcomes.to_table().to_pylist()
    captured = stored.exchanges.to_table(filter=~pc.starts_with(pc.field("capture"), "replay:"))
    assert len(rows) == captured.num_rows == done.result.counts.total
    keys = Counter((row["capture"], row["connection"], row["exchange"], row["reply"]) for row in rows)
    assert set(keys.values()) == {1}
    assert {row["action"] for row in rows} <= {"sent", "converted", "skipped"}
    for row in rows:
        assert row["rule"] is None or row["rule"] in steps.RULES
        assert row["action"] != "skipped" or row["rule"]
        assert set(row["retries"]) <= steps.RULES.keys()


@pytest.mark.parametrize("version", [jars.NEWEST, jars.LAST_OF_3])
@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_a_sample_at_a_new_cluster(shared_brokers: Start, tmp_path: Path, name: str, version: str) -> None:
    # KIP-848 is a preview in 3.9, and off by default.
    settings = AUTHORIZER if version == jars.NEWEST else (*AUTHORIZER, *WITH_KIP_848)
    cluster = shared_brokers(Spec(version, 1, settings))
    done = replay_capture(SAMPLES / name, cluster, tmp_path / "run")
    check_outcomes(done)
    assert unexpected(done.comparison) == []
    assert list(audit(done.pairs, cluster.bootstrap)) == []


def test_a_shared_capture_of_a_classic_group(fresh_brokers: Start, tmp_path: Path) -> None:
    cluster = fresh_brokers(Spec(jars.LAST_OF_3))
    done = replay_capture(shared_folder("group-classic-librdkafka-4.3"), cluster, tmp_path / "run")
    check_outcomes(done)
    assert unexpected(done.comparison) == []
    assert list(audit(done.pairs, cluster.bootstrap)) == []


def test_twice_is_twice(shared_brokers: Start, tmp_path: Path) -> None:
    """Idempotent producers are mapped: their batches, sent again as they are, would be taken for duplicates."""
    cluster = shared_brokers(Spec(jars.WITH_ZOOKEEPER))
    folder = SAMPLES / "txn-librdkafka-4.3"
    first = replay_capture(folder, cluster, tmp_path / "first")
    assert list(audit(first.pairs, cluster.bootstrap)) == []
    with pytest.raises(run.NotEmpty):
        replay_capture(folder, cluster, tmp_path / "refused")
    second = replay_capture(folder, cluster, tmp_path / "second", yes=True)
    assert second.result.counts.duplicates == 0
    assert list(audit(second.pairs, cluster.bootstrap, times=2)) == []
    assert unexpected(second.comparison) == []


def test_under_another_name(shared_brokers: Start, tmp_path: Path) -> None:
    """`--map-topic`: the comparison calls topics as they were called when captured."""
    cluster = shared_brokers(Spec(jars.NEWEST, 1, AUTHORIZER))
    names = {f"franz-{codec}": f"copy-of-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    done = replay_capture(SAMPLES / "codecs-franzgo-4.3", cluster, tmp_path / "run", map_topic=names, yes=True)
    assert unexpected(done.comparison) == []
    assert done.comparison.same > 0
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert set(names.values()) <= set(admin.list_topics(timeout=30).topics)


def test_a_leader_dies_on_the_way(fresh_brokers: Start, tmp_path: Path) -> None:
    """Three nodes, so other leaders than in the capture; one is killed while the replay sends."""
    cluster = fresh_brokers(Spec(jars.NEWEST, nodes=3))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("grp", 6, 3)])["grp"].result(30)

    def kill_one() -> None:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".run.*/messages")) and time.monotonic() < deadline:
            time.sleep(0.02)  # the captured side is written when the sending begins
        time.sleep(1.0)
        cluster.kill(3)

    killer = threading.Thread(target=kill_one)
    killer.start()
    done = replay_capture(SAMPLES / "group-kip848-librdkafka-4.3", cluster, tmp_path / "run", speed=8.0)
    killer.join()
    check_outcomes(done)
    assert done.result.counts.retries.keys() & {"reconnected", "leader_moved"}
    # How far consumers had read when the leader died, and so what they committed, is chance. What producers were told
    # is not, and that nothing is lost is what the audit says.
    assert [one for one in unexpected(done.comparison) if one[0] == 0] == []
    problems = list(audit(done.pairs, cluster.bootstrap))
    assert [one for one in problems if "missing" in one or "order" in one] == []
