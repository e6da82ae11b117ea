"""Pairs of a RUN and of two capture points, frames, and exchanges about a partition.

Pairs are compared with the RUN's tables and `kwire diff`; a partition's exchanges with the bodies of all messages.

Proves: reports/view/exchange_pairs, message_diff, frames
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.cli.parser import _judged
from kwire.analyzer.protocol.tree import Node
from kwire.replay.diff import pairs
from kwire.replay.diff.by_exchange import differing
from kwire.replay.diff.compare import compare
from kwire.replay.diff.differences import grouped
from kwire.reports.view import message_diff
from tests.reports.view.conftest import TXN, Asking, viewed


@pytest.fixture(scope="module")
def both(run: Path) -> Iterator[Asking]:
    """Open the RUN like `kwire view RUN`, and wait for its comparison."""
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, run, judge=_judged))
        asking("judged")
        yield asking


def columns(asking: Asking, **query: Any) -> list[dict[str, Any]]:
    """Get all rows of the list of pairs."""
    answer = asking("table", name="pairs", count=1000, **query)
    rows = [
        dict(zip(answer["columns"], values, strict=True)) for values in zip(*answer["columns"].values(), strict=True)
    ]
    assert len(rows) == answer["total"]
    return [{**row, "key": key} for row, key in zip(rows, answer["keys"], strict=True)]


# --- a RUN ---


def test_a_runs_pairs_are_those_of_its_tables(both: Asking, run: Path) -> None:
    stored = analyzer.open_dataset(run)
    rows = stored.exchanges.to_table().to_pylist()
    captured = [row for row in rows if not row["capture"].startswith("replay:")]
    replayed = {(row["capture"], row["connection"], row["exchange"]): row for row in rows}
    listed = columns(both)
    assert len(listed) == len(captured)
    for row in listed:
        capture, connection, exchange, _ = json.loads(row["key"])
        other = replayed.get((f"replay:{capture}", connection, exchange))
        assert (row["replayed"] is None) == (other is None)
        assert row["replayed_latency_us"] == (None if other is None else other["latency_us"])
        twin = both("twin", key=row["key"])
        assert twin["first"]
        if other is None:
            assert twin["key"] is None
            assert twin["outcome"]["verdict"] == "skipped"
        else:
            assert json.loads(twin["key"]) == [f"replay:{capture}", connection, exchange, other["reply"]]
            back = both("twin", key=twin["key"])
            assert (back["first"], back["key"], back["outcome"]) == (False, row["key"], twin["outcome"])
    assert both("info")["pairs"]["count"] == sum(row["replayed"] is not None for row in listed)


def test_what_differs_is_what_kwire_diff_says(both: Asking, run: Path) -> None:
    line, by_exchange = differing(run)
    assert both("judged")["verdict"] == line
    for group in grouped(compare(pairs.from_run(run)).differences):
        for example in group.examples:
            row = example.row
            expected = by_exchange[row["capture"], row["connection"], row["exchange"]]
            values = (example.kind, example.left, example.right, example.rule)
            assert (example.path, "/".join(example.key), *values) in expected
    for row in columns(both):
        capture, connection, exchange, _ = json.loads(row["key"])
        rules = [difference[5] for difference in by_exchange.get((capture, connection, exchange), [])]
        listed_rules = [difference["rule"] for difference in both("twin", key=row["key"])["differences"]]
        assert listed_rules == rules
        if rules:
            assert row["verdict"] == ("different" if None in rules else "expected")
        else:
            assert row["verdict"] in ("same", "not compared")
    different = columns(both, only="differing")
    assert {row["verdict"] for row in different} == {"expected", "different"}
    assert len(different) == len(by_exchange)
    assert next(row["verdict"] for row in columns(both, sort="verdict")) == "different"
    shifts = [row["shift_us"] for row in columns(both, sort="shift_us") if row["shift_us"] is not None]
    assert shifts == sorted(shifts, reverse=True)


def test_a_pair_is_chosen_where_either_side_is(both: Asking) -> None:
    every = columns(both)
    for text in ("status == unanswered", "error is null and api == Metadata"):
        chosen = set(both("rows", filter=text, count=1000)["keys"])
        twins = {row["key"]: both("twin", key=row["key"])["key"] for row in every}
        assert chosen
        wanted = [row["key"] for row in every if row["key"] in chosen or twins[row["key"]] in chosen]
        assert [row["key"] for row in columns(both, filter=text)] == wanted


def test_fields_that_differ_have_their_places_on_both_sides(both: Asking) -> None:
    key = next(row["key"] for row in columns(both) if row["api"] == "Metadata v13" and row["replayed"] is not None)
    twin = both("twin", key=key)["key"]
    answer = both("differences", key=key, side="response")

    def named(of: str, path: list[int]) -> tuple[str, str]:
        tree = both("message", key=of, side="response", path=".".join(map(str, path[:-1])))
        node = tree["children"][path[-1]]
        return node["name"], node["value"]

    changed = {
        named(key, difference["left"])[0]: difference
        for difference in answer["differences"]
        if difference["what"] == "changed"
    }
    assert {"port", "clusterId"} <= set(changed)
    port = changed["port"]
    assert named(key, port["left"])[0] == named(twin, port["right"])[0] == "port"
    assert named(key, port["left"])[1] != named(twin, port["right"])[1]
    place = ".".join(map(str, port["left"]))
    assert both("counterpart", key=key, side="response", path=place)["path"] == port["right"]
    assert both("differences", key=key, side="request")["total"] >= 1  # another version asks in other fields


def test_what_is_there_once_has_no_other_side(txn: Asking) -> None:
    key = txn("rows", count=1)["keys"][0]
    assert txn("info")["pairs"] is None
    for what in ("twin", "differences", "counterpart", "judged"):
        assert "no pairs" in txn.refused(what, key=key)["message"]
    assert "no pairs" in txn.refused("table", name="pairs")["message"]


# --- two capture points ---


def test_two_points_are_aligned_by_exchange_whatever_their_clocks_say(points: Asking, txn: Asking) -> None:
    listed = columns(points)
    assert len(listed) == len(txn("rows", count=1000)["keys"]) == 188
    paired = [row for row in listed if row["second"] is not None]
    assert 150 < len(paired) < 188  # the other point stopped earlier
    for row in paired:
        capture, *identity = json.loads(row["key"])
        twin = json.loads(points("twin", key=row["key"])["key"])
        assert (capture, twin[0]) == ("client.pcap", "broker.pcap")
        assert twin[1:3] == identity[:2]
    whole = [row for row in paired if row["second"] == row["first"]]
    assert len(whole) > 150
    assert {row["shift_us"] for row in whole} <= {0, None}
    assert points("differences", key=whole[0]["key"], side="request") == {"total": 0, "differences": []}
    alone = [row for row in columns(points, only="differing") if row["second"] is None]
    assert alone
    assert {row["differences"] for row in alone} == {"only client.pcap"}
    assert points("judged")["counts"]["same"] == len(whole)


# --- trees ---


def tree(*named: tuple[str, Any]) -> tuple[Node, ...]:
    """Build a tree of fields with values; elements of lists are fields again."""
    nodes = []
    for name, value in named:
        if isinstance(value, list):
            elements = tuple(Node(f"[{at}]", "struct", None, 0, 0, tree(*fields)) for at, fields in enumerate(value))
            nodes.append(Node(name, "array", len(value), 0, 0, elements))
        else:
            nodes.append(Node(name, "int32", value, 0, 0))
    return tuple(nodes)


def test_elements_go_by_what_they_are_about_and_else_by_their_place() -> None:
    left = tree(("topics", [[("name", "a"), ("error", 0)], [("name", "b"), ("error", 3)]]), ("late", 1))
    right = tree(("topics", [[("name", "b"), ("error", 6)], [("name", "c"), ("error", 0)]]), ("extra", 1))
    differing, count = message_diff.differences(left, right)
    assert count == 5
    assert [tuple(difference) for difference in differing] == [
        ((0, 0), None, "left"),
        ((0, 1, 1), (0, 0, 1), "changed"),
        (None, (0, 1), "right"),
        ((1,), None, "left"),
        (None, (1,), "right"),
    ]
    assert message_diff.counterpart(left, right, [0, 1, 1]) == [0, 0, 1]
    assert message_diff.counterpart(left, right, [0, 0, 1]) == [0]  # the list; the element is not there
    assert message_diff.counterpart(left, right, [1]) is None
    twice = tree(("all", [[("name", "a"), ("error", 0)], [("name", "a"), ("error", 1)]]))
    assert [
        tuple(difference)
        for difference in message_diff.differences(twice, tree(("all", [[("name", "a"), ("error", 1)]])))[0]
    ] == [
        ((0, 0, 1), (0, 0, 1), "changed"),
        ((0, 1), None, "left"),
    ]


def test_lengths_and_secrets_are_no_differences() -> None:
    left, right = tree(("length", 1), ("correlationId", 1)), tree(("length", 2), ("correlationId", 2))
    assert message_diff.differences(left, right) == ([], 0)
    here, there = (Node("password", "bytes", value, 0, 1, secret=True) for value in (b"a", b"b"))
    assert message_diff.differences((here,), (there,)) == ([], 0)
    many = tuple(Node(f"f{at}", "int32", 0, 0, 0) for at in range(message_diff.MAX_DIFFERENCES + 5))
    differing, count = message_diff.differences(many, tuple(node._replace(value=1) for node in many))
    assert (len(differing), count) == (message_diff.MAX_DIFFERENCES, message_diff.MAX_DIFFERENCES + 5)


# --- frames ---


def test_frames_are_all_messages_in_order_of_time(txn: Asking) -> None:
    rows = analyzer.analyze(TXN).tables["exchanges"].to_pylist()
    wanted = sorted(
        (row[f"{side}_time"], row[f"{side}_packet"], side, row[f"{side}_bytes"])
        for row in rows
        for side in ("request", "response")
        if row[f"{side}_time"] is not None
    )
    answer = txn("table", name="frames", count=1000)
    assert answer["total"] == len(wanted)
    listed = answer["columns"]
    assert listed["time"] == sorted(listed["time"])
    assert sorted(zip(listed["packet"], listed["direction"], listed["bytes"], strict=True)) == sorted(
        frame[1:] for frame in wanted
    )
    for key, side, packet in list(zip(answer["keys"], answer["sides"], listed["packet"], strict=True))[::20]:
        assert txn("exchange", key=key)["row"][f"{side}_packet"] == packet
    some = txn("table", name="frames", filter="api == InitProducerId")
    assert (some["total"], set(some["columns"]["api"])) == (8, {"InitProducerId v4"} & set(some["columns"]["api"]))
    assert "in order of time" in txn.refused("table", name="frames", sort="bytes")["message"]


# --- a partition ---


def about(body: Any, topics: set[str], partition: int, inside: bool = False) -> bool:
    """Tell whether a body names a partition of a topic (by name or id) anywhere."""
    if isinstance(body, list):
        return any(about(element, topics, partition, inside) for element in body)
    if not isinstance(body, dict):
        return False
    names = [body.get(name) for name in ("name", "topic", "topicName", "topicId")]
    inside = inside or any(name in topics for name in names)
    numbers = [body.get(name) for name in ("index", "partition", "partitionIndex")]
    if inside and partition in numbers:
        return True
    if inside and partition in (body.get("partitions") or []):
        return True
    return any(about(element, topics, partition, inside) for element in body.values())


def test_a_partition_is_followed_through_all_who_write_read_and_commit_it(txn: Asking) -> None:
    wanted, topics = set(), {"tx-in"}
    for exchange in analyzer.exchanges(TXN, filter="api == Metadata"):
        topics |= {
            topic["topicId"] for topic in (exchange.response or {}).get("topics", []) if topic["name"] == "tx-in"
        }
    for exchange in analyzer.exchanges(TXN):
        row = exchange.row
        if row["api"] == "Metadata" or row["exchange"] is None:
            continue  # names every partition there is
        if any(about(body, topics, 0) for body in (exchange.request, exchange.response) if body):
            wanted.add((row["connection"], row["exchange"]))
    followed = txn("rows", partition="tx-in-0", count=1000)
    keys = {tuple(json.loads(key)[1:3]) for key in followed["keys"]}
    assert keys
    assert keys <= wanted
    missing = wanted - keys
    apis = {
        row["api"]
        for row in analyzer.analyze(TXN).tables["exchanges"].to_pylist()
        if (row["connection"], row["exchange"]) in missing
    }
    assert apis <= {"AddPartitionsToTxn"}  # which the table of partitions leaves out
    # Everything else is within it, too.
    assert txn("stats", partition="tx-in-0", filter="")["exchanges"] == followed["total"]
    produced = txn("rows", partition="tx-in-0", filter="api == Produce", sort="latency")
    assert 0 < produced["total"] < txn("rows", filter="api == Produce")["total"]
    assert "tx-in-0" in txn("partitions", key=produced["keys"][0])["partitions"]
    assert txn("rows", partition="tx-in-99")["total"] == 0
    assert "TOPIC-NUMBER" in txn.refused("rows", partition="tx-in")["message"]
