"""Leaders and names of topic ids as they are kept (proves: `Leaders` and `TopicIds` of
analyzer/analysis/cluster_metadata.py)."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kwire.analyzer.analysis import cluster_metadata as names_of
from kwire.analyzer.analysis.cluster_metadata import METADATA_TOPIC, Leaders, TopicIds
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Names, Window

Statement = tuple[str | None, str | None, int, int, int, tuple[int, ...] | None]
"""Topic, its id, partition, leader, epoch, in-sync replicas."""


def window(names: Names, statements: list[Statement], ids: list[tuple[str, str]] | None = None) -> Window:
    rows = np.full((len(statements), s.L_COLUMNS), s.NULL, np.int64)
    for row, (topic, topic_id, partition, leader, epoch, isr) in zip(rows, statements, strict=True):
        row[s.L_NS], row[s.L_PARTITION], row[s.L_LEADER], row[s.L_EPOCH] = 5000, partition, leader, epoch
        if topic is not None:
            row[s.L_TOPIC] = names.string(topic)
        if topic_id is not None:
            row[s.L_TOPIC_ID] = names.string(topic_id)
        if isr is not None:
            row[s.L_ISR] = names.list_of(isr)
    named = [(names.string(topic_id), names.string(name), 0) for topic_id, name in ids or ()]
    topic_ids = np.array(named, np.int64).reshape(-1, 3)
    return cast(Window, SimpleNamespace(names=names, leaders=rows, zookeeper=(), topic_ids=topic_ids))


def drawn(seed: int, count: int) -> list[Statement]:
    """Few partitions, often the same said again, replicas not always; partitions as no broker numbers them too."""
    draw = random.Random(seed)
    statements: list[Statement] = []
    for _ in range(count):
        topic, topic_id = draw.choice([("a", None), (None, "id-a"), ("b", "id-b"), (None, "id-c"), ("", None)])
        isr = draw.choice([None, (1,), (1, 2), (2, 1)])
        where = draw.choice([0, 1, 2, -1, -(1 << 31)])
        statements.append((topic, topic_id, where, draw.choice([1, 2, s.NULL]), draw.choice([s.NULL, 3]), isr))
    return statements


def slow(statements: list[Statement], known: dict[str, str]) -> list[tuple[Any, ...]]:
    """One after the other, as the rule says it."""
    last: dict[tuple[str, int], tuple[int, int, tuple[int, ...] | None]] = {}
    rows = []
    for topic, topic_id, partition, leader, epoch, isr in statements:
        key = (topic or known.get(topic_id or "", topic_id or ""), partition)
        before = last.get(key)
        now = (leader, epoch, isr if isr is not None or before is None else before[2])
        if now != before:
            last[key] = now
            numbers = [None if number == s.NULL else number for number in (leader, epoch)]
            rows.append((topic, topic_id, partition, *numbers, None if isr is None else list(isr)))
    return rows


def rows(leaders: Leaders) -> list[tuple[Any, ...]]:
    [(_, table)] = leaders.tables()
    wanted = ("topic", "topic_id", "partition", "leader", "leader_epoch", "isr")
    return [tuple(row[name] for name in wanted) for row in table.to_pylist()]


@pytest.mark.parametrize("late", [0, 3, 1024])
@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_row_is_what_was_not_said_last(size: int, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_of, "_LATE", late)
    topics, names = TopicIds(), Names("a")
    topics.take(window(names, [], [("id-a", "a")]))
    leaders, statements = Leaders(topics), drawn(size, 400)
    for at in range(0, len(statements), size):
        leaders.take(window(names, statements[at : at + size]))
    assert rows(leaders) == slow(statements, {"id-a": "a"})


def test_what_several_know_is_joined() -> None:
    statements: list[list[Statement]] = [
        [("a", None, 0, 1, 1, (1,)), ("b", None, 0, 1, 1, (1, 2))],
        [("c", None, 3, 2, 2, (2,))],
    ]
    first, second = Leaders(TopicIds()), Leaders(TopicIds())
    first.take(window(Names("a"), statements[0]))
    second.take(window(Names("a"), statements[1]))
    first.join(second)
    assert len(rows(first)) == 3
    first.take(window(Names("a"), [*statements[1], *statements[0], ("c", None, 3, 2, 3, None)]))
    assert rows(first) == [("c", None, 3, 2, 3, None)]


def test_a_partition_takes_some_ten_bytes() -> None:
    leaders, names, count = Leaders(TopicIds()), Names("a"), 20_000
    leaders.take(window(names, [("topic", None, number, 1, 1, (1, 2)) for number in range(count)]))
    assert len(rows(leaders)) == count
    held = leaders._known.nbytes + sys.getsizeof(leaders._late) + 200 * len(leaders._late)
    assert held + sum(map(sys.getsizeof, (leaders._lists, leaders._list_numbers))) < 50 * count


def pairs_of(topics: TopicIds) -> list[tuple[str, str]]:
    [(_, table)] = topics.tables()
    return [(row["topic_id"], row["topic"]) for row in table.to_pylist()]


def test_each_pair_of_id_and_name_is_told_once() -> None:
    """The name that was said first is the id's: it does not depend on how far a capture has been read."""
    topics, names = TopicIds(), Names("a")
    for pairs, fresh in (
        ([("x", "a"), ("y", "b"), ("x", "a")], [("x", "a"), ("y", "b")]),
        ([("x", "c"), ("x", "a")], [("x", "c")]),
        ([("x", "c"), ("y", "b")], []),
    ):
        topics.take(window(names, [], pairs))
        assert pairs_of(topics) == fresh
    assert (topics.name("x"), topics.name("y"), topics.name("z")) == ("a", "b", "z")
    after = topics.onward("b")
    assert pairs_of(after) == [("x", "a"), ("x", "c"), ("y", "b")]
    after.take(window(names, [], [("x", "a"), ("x", "c"), ("y", "b"), ("y", "d")]))
    assert pairs_of(after) == [("y", "d")]


def test_a_name_that_was_looked_up_ahead_is_a_row_once_it_is_said() -> None:
    topics, names = TopicIds(), Names("a")
    topics.take(window(names, [], [("x", "a")]))
    pairs_of(topics)
    topics.learn({"x": "later", "y": "b"})
    assert (topics.name("x"), topics.name("y")) == ("a", "b")
    topics.take(window(names, [], [("y", "b"), ("y", "b")]))
    assert pairs_of(topics) == [("y", "b")]


def test_ids_of_several_are_joined() -> None:
    first, second, names = TopicIds(), TopicIds(), Names("a")
    first.take(window(names, [], [("x", "a"), ("y", "b")]))
    second.take(window(names, [], [("x", "c"), ("z", "d")]))
    first.join(second)
    assert pairs_of(first) == [("x", "a"), ("y", "b"), ("x", "c"), ("z", "d")]
    first.take(window(names, [], [("x", "a"), ("x", "c"), ("y", "b"), ("z", "d")]))
    assert pairs_of(first) == []
    assert first.name("x") == "a"


def test_the_topic_of_metadata_keeps_its_name() -> None:
    [(metadata, name)] = METADATA_TOPIC.items()
    topics = TopicIds()
    topics.take(window(Names("a"), [], [(metadata, "forged"), (metadata, name)]))
    assert pairs_of(topics) == [(metadata, "forged"), (metadata, name)]
    assert topics.name(metadata) == name


def test_an_id_with_its_name_is_kept_once() -> None:
    topics, names = TopicIds(), Names("a")
    topics.take(window(names, [], [(f"id-{number}", f"topic-{number}") for number in range(1000)]))
    assert (len(topics.names), len(topics._unnamed), len(topics._others)) == (1001, 1, 0)
