"""Whole captures replayed at real brokers, and what these then hold, read back by librdkafka.

A part of `python -m tests.replay.sweep`, so that the suite stays quick: the shipped samples, whose topics and groups
have different names, at one cluster a version.

Proves: replay/run.py, replay/outcome.py, replay/diff/audit_results.py
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.analyzer.cli import parser
from kwire.analyzer.dataset.dataset import open_dataset
from kwire.analyzer.protocol import api_keys
from kwire.replay import commands
from kwire.replay.audit.auditor import Audit
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import grouped
from kwire.replay.plan import steps
from kwire.replay.send import seeding
from tests.brokers import jars
from tests.brokers.cluster import Spec
from tests.brokers.fixtures import Start
from tests.replay.auditing import audit, more_than_sent
from tests.replay.replaying import AUTHORIZER, WITH_KIP_848, Replayed, replay_capture
from tests.shared import SAMPLES, shared_folder

SAMPLE_NAMES = (
    "admin-kafkapython-3.9",
    "client-kafkajs-3.9",
    "codecs-franzgo-4.3",
    "group-kip848-librdkafka-4.3",
    "old-java-0.8.2",
    "sasl-librdkafka-4.3",
    "txn-librdkafka-4.3",
)

Answer = TypeVar("Answer")


def unexpected(comparison: Comparison) -> list[tuple[Any, ...]]:
    return [
        (difference.api_key, difference.path, difference.kind, difference.left, difference.right, difference.count)
        for difference in grouped(comparison.differences)
        if difference.unexpected
    ]


def audit_of(done: Replayed) -> Audit:
    """The RUN's own."""
    assert done.result.audit is not None
    return done.result.audit


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
    # The RUN's own audit, and the other client's above, are of one mind.
    own = audit_of(done)
    assert own.clean
    assert not own.unread
    assert (own.total("acknowledged") > 0) == any(pair.api_key == api_keys.PRODUCE for pair in done.pairs)


def test_a_shared_capture_of_a_classic_group(fresh_brokers: Start, tmp_path: Path) -> None:
    cluster = fresh_brokers(Spec(jars.LAST_OF_3))
    done = replay_capture(shared_folder("group-classic-librdkafka-4.3"), cluster, tmp_path / "run")
    check_outcomes(done)
    assert unexpected(done.comparison) == []
    assert list(audit(done.pairs, cluster.bootstrap)) == []


@pytest.mark.parametrize("name", ["group-classic-librdkafka-4.3", "group-kip848-librdkafka-4.3"])
def test_a_capture_that_begins_when_its_groups_are_full(fresh_brokers: Start, tmp_path: Path, name: str) -> None:
    """At 10 s all three members have joined; then one leaves, one dies, and the group goes on without them."""
    cluster = fresh_brokers(Spec(jars.NEWEST))
    done = replay_capture(shared_folder(name), cluster, tmp_path / "run", since=10.0)
    check_outcomes(done)
    assert done.result.engine_notes["joined_early"] == 3
    assert "no_member" not in done.result.counts.skipped
    assert unexpected(done.comparison) == []
    assert list(audit(done.pairs, cluster.bootstrap)) == []


def test_twice_is_twice(shared_brokers: Start, tmp_path: Path) -> None:
    """Idempotent producers are mapped: their batches, sent again as they are, would be taken for duplicates."""
    cluster = shared_brokers(Spec(jars.WITH_ZOOKEEPER))
    folder = SAMPLES / "txn-librdkafka-4.3"
    first = replay_capture(folder, cluster, tmp_path / "first")
    assert list(audit(first.pairs, cluster.bootstrap)) == []
    with pytest.raises(seeding.NotEmptyError):
        replay_capture(folder, cluster, tmp_path / "refused")
    second = replay_capture(folder, cluster, tmp_path / "second", yes=True)
    assert second.result.counts.duplicates == 0
    assert list(audit(second.pairs, cluster.bootstrap, times=2)) == []
    assert unexpected(second.comparison) == []


def test_under_another_name(shared_brokers: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--map-topic`: the comparison calls topics as they were called when captured."""
    cluster = shared_brokers(Spec(jars.NEWEST, 1, AUTHORIZER))
    copies = {f"franz-{codec}": f"copy-of-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    done = replay_capture(SAMPLES / "codecs-franzgo-4.3", cluster, tmp_path / "run", map_topic=copies, yes=True)
    assert unexpected(done.comparison) == []
    assert done.comparison.same > 0
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert set(copies.values()) <= set(admin.list_topics(timeout=30).topics)
    # What is deleted later a second audit finds missing, and the comparison says it first.
    copy = TopicPartition("copy-of-gzip", 0, 2)
    admin.delete_records([copy])[copy].result(30)
    again = ["replay", "--audit", str(done.out), "--to", cluster.bootstrap]
    assert parser.main(again) == commands.EXIT_DIFFERS
    (row,) = [row for row in open_dataset(done.out).audit.to_table().to_pylist() if row["missing"]]
    assert (row["topic"], row["partition"], row["missing"], row["first_missing_offset"]) == ("copy-of-gzip", 0, 2, 0)
    assert parser.main(["diff", str(done.out)]) == commands.EXIT_DIFFERS
    first = capsys.readouterr().out.splitlines()[1]
    assert first.startswith("verdict: 1 unexpected difference: Produce v13 acknowledged records missing")
    assert first.endswith("(franz-gzip/0)")


def test_a_leader_dies_on_the_way(fresh_brokers: Start, tmp_path: Path) -> None:
    """Three nodes, so other leaders than in the capture; one is killed while the replay sends."""
    cluster = fresh_brokers(Spec(jars.NEWEST, nodes=3))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("grp", 6, 3)])["grp"].result(30)
    doomed = 3
    wrote: list[int] = []

    def kill_one() -> None:
        # In the thick of it: a third of the capture's 750 records are for this node.
        led = _patiently(lambda: _led_by(doomed, cluster.bootstrap))
        deadline = time.monotonic() + 120
        while (written := _patiently(lambda: _records(led, cluster.bootstrap))) < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.kill(doomed)
        wrote.append(written)
        done.wait()
        wrote.append(_patiently(lambda: _records(led, cluster.bootstrap)))

    done = threading.Event()
    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        replayed = replay_capture(SAMPLES / "group-kip848-librdkafka-4.3", cluster, tmp_path / "run", speed=8.0)
    finally:
        done.set()
        killer.join()
    before, after = wrote
    assert 20 <= before < after  # what the dead one led went on elsewhere
    check_outcomes(replayed)
    # Chance: how far consumers had read when the leader died, and so what they committed; and whether it had stored a
    # batch that it never answered. That batch is sent again, its producer has no id, and both clients must see it; that
    # its connection ended is told. Not chance: what producers were told otherwise, and that nothing is lost.
    told_otherwise = [
        problem
        for problem in unexpected(replayed.comparison)
        if problem[0] == api_keys.PRODUCE and problem[1:3] != ("(records)", "stored twice")
    ]
    ended = [problem[4] for problem in told_otherwise if problem[1:4] == ("(retries)", "unsteady", "captured 0")]
    assert len(told_otherwise) == len(ended) <= 1
    assert all(re.fullmatch(r"connection ended before an answer: \d+ of \d+ Produce", text) for text in ended)
    problems = list(audit(replayed.pairs, cluster.bootstrap))
    assert [problem for problem in problems if "missing" in problem or "order" in problem] == []
    twice = {
        problem.key: problem.right for problem in replayed.comparison.differences if problem.kind == "stored twice"
    }
    there = more_than_sent(replayed.pairs, cluster.bootstrap)
    again = "1 request sent again, {} record{} more than acknowledged"
    wanted = {where: again.format(more, "s" * (more > 1)) for where, more in there.items()}
    assert twice == {(topic, str(index)): count for (topic, index), count in wanted.items()}
    assert audit_of(replayed).total("unclaimed") == sum(there.values())


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """The answer of a cluster once it can give one: a new topic and a new leader take their time."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return ask()
        except (KafkaException, KeyError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _led_by(node: int, bootstrap: str) -> list[int]:
    watcher = Consumer({"bootstrap.servers": bootstrap, "group.id": "watching"})
    partitions = watcher.list_topics("grp", timeout=10).topics["grp"].partitions
    watcher.close()
    return [index for index in range(6) if partitions[index].leader == node]


def _records(partitions: list[int], bootstrap: str) -> int:
    # A new client each time: one that knew the dead leader takes its time to forget it.
    watcher = Consumer({"bootstrap.servers": bootstrap, "group.id": "watching"})
    try:
        return sum(
            watcher.get_watermark_offsets(TopicPartition("grp", partition), timeout=5)[1] for partition in partitions
        )
    finally:
        watcher.close()
