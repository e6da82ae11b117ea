"""Data that Kafka 0.8 kept in ZooKeeper, from packets to tables: offsets, leaders, brokers, the controller.

(proves: analyzer/analysis/zookeeper.py, analyzer/bulk/zookeeper.py)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kwire import analyzer
from kwire.analyzer.analysis import zookeeper as z
from kwire.analyzer.bulk.zookeeper import ZooKeeper
from kwire.analyzer.cli.parser import main
from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.pipeline import shares
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.analyzer.forging import heartbeat, heartbeat_answer
from tests.analyzer.zookeeper_traffic import connect, connected, get, login, make, ping, put, together
from tests.captures.forge import (
    START_NS,
    TO_BROKER,
    TO_CLIENT,
    Segment,
    Write,
    converse,
    interleaved,
    loaded,
    pcap,
    rendered,
    segments_of,
)
from tests.shared import SAMPLES

STATE = "/brokers/topics/orders/partitions/0/state"
OFFSET = "/consumers/billing/offsets/orders/0"


def value(**fields: Any) -> bytes:
    return json.dumps({"version": 1, **fields}).encode()


def spoken(turns: Sequence[tuple[bytes, bytes]], client: str, port: int = 2181, **how: Any) -> list[Segment]:
    """A connection to ZooKeeper on which this was asked and answered, a millisecond apart."""
    writes = [
        Write(way, data)
        for turn in [(connect(), connected()), *turns]
        for way, data in zip((TO_BROKER, TO_CLIENT), turn, strict=True)
    ]
    how = {"client": (client, 40_000), "broker": ("10.0.0.9", port), "step_ns": 1_000_000, **how}
    return converse(writes, **how)


# fmt: off
CONSUMER = (
    get(1, "/brokers/ids/1", value(host="kafka-1", port=9092, timestamp="1")),
    get(2, STATE, value(controller_epoch=1, leader=1, leader_epoch=0, isr=[1, 2])),
    make(3, "/consumers/billing/ids/billing_host-1", value(pattern="static")),
    get(4, OFFSET, None), make(5, OFFSET, b"40"),
    login(), put(6, OFFSET, b"42"), ping(), put(7, OFFSET, b"41"), put(8, OFFSET, b"99", -103),
    put(9, "/consumers/billing/offsets/payments/1", b"7"),
)
# fmt: on
CONTROLLER = (
    make(1, "/controller", value(brokerid=1, timestamp="1")),
    make(2, "/brokers/ids/2", value(host="kafka-2", port=9092, timestamp="2")),
    together(3, (5, put(0, STATE, value(leader=2, leader_epoch=1, isr=[2]))[0][12:])),
    put(4, STATE, value(leader=2, leader_epoch=1, isr=[2])),  # nothing new
)


@pytest.fixture
def capture(tmp_path: Path) -> str:
    path = tmp_path / "zoo.pcap"
    turns = [((TO_BROKER, heartbeat(n)), (TO_CLIENT, heartbeat_answer(n))) for n in range(3)]
    kafka = converse([Write(way, data) for turn in turns for way, data in turn])
    later = spoken(CONTROLLER, "10.0.0.2", start_ns=START_NS + 500_000_000)
    path.write_bytes(pcap(rendered(interleaved(kafka, spoken(CONSUMER, "10.0.0.1"), later))))
    return str(path)


def test_offsets_leaders_and_brokers_are_rows(capture: str) -> None:
    dataset = analyzer.analyze(capture)
    offsets = [
        (row["kind"], row["group_id"], row["topic"], row["partition"], row["offset"], row["previous"], row["step"])
        for row in dataset.offsets.to_pylist()
    ]
    assert offsets == [
        ("zookeeper", "billing", "orders", 0, 40, None, None),
        ("zookeeper", "billing", "orders", 0, 42, 40, 2),
        ("zookeeper", "billing", "orders", 0, 41, 42, -1),
        ("zookeeper", "billing", "payments", 1, 7, None, None),
    ]
    assert dataset.offsets["connection"].to_pylist() == ["10.0.0.1:40000-10.0.0.9:2181#1"] * 4
    leaders = [(row["topic"], row["leader"], row["leader_epoch"], row["isr"]) for row in dataset.leaders.to_pylist()]
    assert leaders == [("orders", 1, 0, [1, 2]), ("orders", 2, 1, [2])]
    brokers = [(row["node_id"], row["host"], row["port"]) for row in dataset.brokers.to_pylist()]
    assert brokers == [(1, "kafka-1", 9092), (2, "kafka-2", 9092)]


def test_requests_are_counted_by_kind_of_node(capture: str) -> None:
    (entry,) = analyzer.analyze(capture).captures
    zookeeper = entry["zookeeper"]
    counts = {
        (request["operation"], request["path"], request["error"]): request["count"] for request in zookeeper["requests"]
    }
    assert counts["setData", "/consumers/GROUP/offsets/TOPIC/PARTITION", 0] == 3
    assert counts["setData", "/consumers/GROUP/offsets/TOPIC/PARTITION", -103] == 1
    assert counts["getData", "/consumers/GROUP/offsets/TOPIC/PARTITION", -101] == 1
    assert counts["setData", "/brokers/topics/TOPIC/partitions/PARTITION/state", 0] == 2
    assert [controller["broker"] for controller in zookeeper["controllers"]] == [1]
    assert "billing" not in json.dumps(zookeeper)
    assert "geheim" not in json.dumps(zookeeper)


def test_windows_threads_and_another_port_change_nothing(capture: str, tmp_path: Path) -> None:
    whole = analyzer.analyze(capture)
    pieces = analyzer.analyze(capture, window_bytes=300, threads=6)
    moved = tmp_path / "moved" / "zoo.pcap"
    moved.parent.mkdir()
    both = (spoken(CONSUMER, "10.0.0.1", 2281), spoken(CONTROLLER, "10.0.0.2", 2281, start_ns=START_NS + 500_000_000))
    moved.write_bytes(pcap(rendered(interleaved(*both))))
    elsewhere = analyzer.analyze(str(moved))
    for name in ("offsets", "leaders", "brokers"):
        expected = whole.tables[name].to_pylist()
        assert pieces.tables[name].to_pylist() == expected
        for row in expected:
            if "connection" in row:
                row["connection"] = row["connection"].replace("2181", "2281")
        assert elsewhere.tables[name].to_pylist() == expected
    assert pieces.captures[0]["zookeeper"] == whole.captures[0]["zookeeper"]


def test_shares_of_the_connections_tell_the_same(capture: str, tmp_path: Path) -> None:
    [point] = capture_points([capture], False)
    choice, settings = AnalysisOptions.of(), ReadOptions(window_bytes=300).settings(False)
    written = [
        shares.share(point, settings, choice, shares.Share(number, 3), 5, tmp_path / "pieces" / str(number))
        for number in range(3)
    ]
    _, facts = shares.by_range(written)
    read, _, files = shares.take_facts(
        facts, written, point, choice, TableFiles(tmp_path, "facts"), tmp_path / "decided"
    )
    stored = {entry["table"]: pq.read_table(tmp_path / entry["path"], partitioning=None) for entry in files}
    expected = analyzer.analyze(capture)
    for name in ("offsets", "leaders", "brokers"):
        assert stored[name].cast(expected.tables[name].schema).to_pylist() == expected.tables[name].to_pylist()
    assert read.capture["zookeeper"] == expected.captures[0]["zookeeper"]


def of(path: str, data: bytes | None, operation: str = "getData", error: int = 0) -> ZooKeeper:
    return ZooKeeper(0, 0, 0, 0, operation, path, data, error)


NOTHING = (None, b"", b"x", b"[1]", b"{}", b'{"leader": "1"}', b"[" * 10_000, b"\xff", b"-1", b"1" * 30)


@pytest.mark.parametrize("data", NOTHING)
def test_what_kafka_does_not_write_there_says_nothing(data: bytes | None) -> None:
    assert z.offset_of(of(OFFSET, data, "setData")) is None
    assert z.broker_of(of("/brokers/ids/1", data)) is None
    assert z.controller_of(of("/controller", data)) is None
    led = z.leader_of(of(STATE, data))
    assert led is None or led == ("orders", 0, None, None, None)


def test_an_offset_that_is_read_is_no_commit() -> None:
    assert z.offset_of(of(OFFSET, b"42")) is None
    assert z.offset_of(of(OFFSET, b"42", "setData")) == ("billing", "orders", 0, 42)


def test_nodes_that_are_not_kafkas_are_not_named() -> None:
    assert z.kind_of("/hbase/master") == "OTHER"
    assert z.kind_of("/consumers/g/owners/t/1") == "/consumers/GROUP/owners/TOPIC/PARTITION"
    assert z.kind_of("/config/topics/orders") == "/config/topics/NAME"
    assert z.kind_of("/brokers/ids") == "/brokers/ids"


# --- a real broker and real consumers of 0.8 --------------------


REAL = SAMPLES / "zookeeper-java-0.8.2"
GROUP = "old-readers"


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    """Return the state that ZooKeeper and Kafka's own tools reported after the capture."""
    held: dict[str, Any] = json.loads((REAL / "truth.json").read_text())
    return held


@pytest.fixture(scope="module")
def real() -> Any:
    return analyzer.analyze(str(REAL / "capture.pcap.gz"))


def test_offsets_end_where_zookeeper_held_them(real: Any, truth: dict[str, Any]) -> None:
    rows = [row for row in real.offsets.to_pylist() if row["kind"] == "zookeeper"]
    assert {row["group_id"] for row in rows} == {GROUP}
    last = {(row["topic"], row["partition"]): row["offset"] for row in rows}
    held = truth["zookeeper_at_end"]
    assert last == {("orders", n): int(held[f"/consumers/{GROUP}/offsets/orders/{n}"]) for n in (0, 1)}
    checked = truth["offset_checker_at_end"]["rows"]
    assert last == {(row["topic"], row["partition"]): row["offset"] for row in checked}
    # The first began at offset 0 and all committed when they left, so the steps of each are what it printed.
    read: dict[str, int] = {}
    for row in rows:
        step = row["offset"] if row["previous"] is None else row["step"]
        read[row["connection"]] = read.get(row["connection"], 0) + step
    assert list(read.values()) == list(truth["consumed"].values())


def test_leaders_brokers_and_controller_are_those_zookeeper_held(real: Any, truth: dict[str, Any]) -> None:
    held = truth["zookeeper_at_end"]
    rows = [row for row in real.leaders.to_pylist() if row["leader_epoch"] is not None]  # Metadata v0 has none
    assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 0), ("orders", 1)}
    for row in rows:
        state = held[f"/brokers/topics/orders/partitions/{row['partition']}/state"]
        assert (row["leader"], row["leader_epoch"], row["isr"]) == (
            state["leader"],
            state["leader_epoch"],
            state["isr"],
        )
    registered = {n: held[f"/brokers/ids/{n}"] for n in held["/brokers/ids"]}
    brokers = {row["node_id"]: (row["host"], row["port"]) for row in real.brokers.to_pylist()}
    assert brokers == {n: (broker["host"], broker["port"]) for n, broker in registered.items()}
    (entry,) = real.captures
    assert [controller["broker"] for controller in entry["zookeeper"]["controllers"]] == [
        held["/controller"]["brokerid"]
    ]


def test_zookeeper_alone_tells_of_offsets_and_brokers(real: Any, truth: dict[str, Any], tmp_path: Path) -> None:
    """Without a byte of Kafka; and in windows, over threads."""
    link, records = loaded(REAL / "capture.pcap.gz")
    chosen = [
        record
        for record in records
        if any(2181 in (segment.source[1], segment.target[1]) for segment in segments_of([record], link))
    ]
    alone = tmp_path / "alone.pcap"
    alone.write_bytes(pcap(chosen, link))
    dataset = analyzer.analyze(str(alone), window_bytes=4000, threads=4)
    assert len(dataset.exchanges) == 0
    commits = [row for row in real.offsets.to_pylist() if row["kind"] == "zookeeper"]
    for name, expected in (("offsets", commits), ("brokers", real.brokers.to_pylist())):
        got = dataset.tables[name].to_pylist()
        assert [{**row, "capture": None} for row in got] == [{**row, "capture": None} for row in expected]
    assert dataset.captures[0]["zookeeper"] == real.captures[0]["zookeeper"]


def test_what_is_said_to_zookeeper_is_no_riddle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No advice to read it as Kafka; commits are told by who wrote them, once."""
    capture = str(REAL / "capture.pcap.gz")
    assert main(["analyze", capture, "-o", str(tmp_path / "dataset")]) == 0
    printed = capsys.readouterr()
    assert "\nZooKeeper: 6 connections, 29.2 kB\n" in printed.out
    assert "not Kafka" not in printed.out
    assert "not recognised" not in printed.err
    assert main(["story", str(tmp_path / "dataset"), "--group", GROUP]) == 0
    lines = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [" ".join(line.split()) for line in lines] == [
        "127.0.0.1:37962 committed orders-0 at 36, orders-1 at 24 for group old-readers to ZooKeeper",
        "127.0.0.1:37962 made its last commit for group old-readers: orders-0 at 60, orders-1 at 24; 2 commits in "
        "4.49 s",
        "127.0.0.1:37978 committed orders-1 at 40 for group old-readers to ZooKeeper",
        "127.0.0.1:55924 committed orders-0 at 67, orders-1 at 48 for group old-readers to ZooKeeper",
    ]
