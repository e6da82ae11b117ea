"""A connection under several addresses is one: its exchanges are rows once, however the capture is read.

(proves: captures/legs.py, captures/chunks/marks.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kwire.analyzer as analyzer
from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.pipeline import shares
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.chunks.chunk_reader import ChunkJoiner, ChunkReader, chunks_of
from kwire.captures.chunks.routing import RoutedReader
from kwire.captures.chunks.sorting import apart, divided, store
from kwire.captures.files import capture_points
from kwire.replay import inputs
from tests.analyzer.analysis.read_modes import every_way
from tests.analyzer.forging import (
    answering,
    asking,
    batch,
    metadata,
    metadata_answer,
    produce,
    produce_answer,
    read,
    turns,
)
from tests.captures.forge import End, Segment, Write, converse, interleaved, pcap, rendered
from tests.shared import case_capture

US = 1000
CLIENT, BROKER = ("10.0.0.1", 40_000), ("10.0.0.2", 9092)
INSIDE, GATEWAY, PROXY = ("172.17.0.2", 9092), ("172.17.0.1", 50_123), ("127.0.0.1", 15_001)


def conversation() -> list[Write]:
    return [
        asking(metadata(1)),
        answering(metadata_answer(1)),
        asking(produce(2, records=batch())),
        answering(produce_answer(2)),
        asking(produce(3, records=batch(5))),
        answering(produce_answer(3)),
        *turns(range(4, 9)),
    ]


def as_leg(segments: Sequence[Segment], client: End, broker: End, delay_ns: int = 5 * US) -> list[Segment]:
    """A connection as it is seen under other addresses: what the client sends later, what it is sent sooner."""
    ends = {segments[0].source: client, segments[0].target: broker}
    return [
        replace(
            segment,
            source=ends[segment.source],
            target=ends[segment.target],
            time_ns=segment.time_ns + (delay_ns if segment.source == segments[0].source else -delay_ns),
        )
        for segment in segments
    ]


def redirected(segments: Sequence[Segment]) -> list[Segment]:
    return [replace(segment, target=PROXY) if segment.source == CLIENT else segment for segment in segments]


COUNTED = {"duplicates", "duplicate_bytes", "payload_bytes", "client_packets", "broker_packets", "client_bytes",
           "broker_bytes", "other_addresses", "longest_silence_end"}  # fmt: skip
"""Columns of connections that tell of copies, and which of the equally long silences here is kept."""


def rows_of(result: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Exchanges and connections, but for where in the file their bytes are, and how many copies there are."""
    exchanges = [
        {name: value for name, value in row.items() if "packet" not in name and "offset" not in name}
        for row in result.exchanges
    ]
    return exchanges, [
        {name: value for name, value in row.items() if name not in COUNTED} for row in result.connections
    ]


@pytest.mark.parametrize(
    ("client", "broker", "others"),
    [
        (CLIENT, INSIDE, ["172.17.0.2:9092"]),
        (GATEWAY, BROKER, ["172.17.0.1:50123"]),
        (GATEWAY, ("172.17.0.2", 31_092), ["172.17.0.1:50123", "172.17.0.2:31092"]),
        (("10.0.0.9", 40_000), ("10.0.0.0", 9092), ["10.0.0.9:40000", "10.0.0.0:9092"]),
    ],
    ids=["DNAT", "SNAT", "all", "sorts otherwise"],
)
def test_its_exchanges_are_those_of_one_leg(client: End, broker: End, others: list[str], tmp_path: Path) -> None:
    own = converse(conversation())
    once = read(tmp_path, own)
    twice = read(tmp_path, interleaved(own, as_leg(own, client, broker)))
    assert rows_of(twice) == rows_of(once)
    assert twice.connection["other_addresses"] == others
    assert once.connection["other_addresses"] is None
    payload = sum(len(segment.payload) for segment in own)
    assert (twice.connection["duplicates"], twice.connection["duplicate_bytes"]) == (len(own), payload)


@pytest.mark.parametrize("window_bytes", [200, 1 << 20])
@pytest.mark.parametrize("leg", ["another", "redirect"])
def test_each_interface_has_every_packet_twice(leg: str, window_bytes: int, tmp_path: Path) -> None:
    """Also the SYN of both, so that neither waits for its answer alone."""
    own = converse(conversation())
    records = rendered(redirected(own) if leg == "redirect" else interleaved(own, as_leg(own, CLIENT, INSIDE)))
    copies = [replace(record, time_ns=record.time_ns + US) for record in records]
    both = sorted([*records, *copies], key=lambda record: record.time_ns)
    result = read(tmp_path, both, window_bytes=window_bytes)
    (exchanges, [connection]), (once, [expected]) = rows_of(result), rows_of(read(tmp_path, own))
    assert exchanges == once
    assert connection == expected | {name: connection[name] for name in ("last_time", "longest_silence_us")}
    assert result.connection["other_addresses"] == ["127.0.0.1:15001" if leg == "redirect" else "172.17.0.2:9092"]
    assert result.connection["duplicates"] == len(both) - len(own)
    counted = result.connection["client_packets"] + result.connection["broker_packets"]
    assert counted == len(both)


def test_midway_too(tmp_path: Path) -> None:
    own = converse(conversation(), handshake=False, close=None)
    twice = read(tmp_path, interleaved(own, as_leg(own, CLIENT, INSIDE)))
    assert rows_of(twice) == rows_of(read(tmp_path, own))
    assert twice.connection["other_addresses"] == ["172.17.0.2:9092"]


@pytest.mark.parametrize("window_bytes", [200, 1 << 20])
def test_metadata_says_which_of_two_legs_on_one_interface_is_the_broker(window_bytes: int, tmp_path: Path) -> None:
    """Also of requests before it, and in windows that end before it."""
    own = converse([*turns([1]), asking(metadata(2)), answering(metadata_answer(2, host="172.17.0.2")), *turns([3])])
    result = read(tmp_path, interleaved(own, as_leg(own, CLIENT, INSIDE)), window_bytes=window_bytes)
    assert set(result.column("broker_ip")) == {"172.17.0.2"}
    assert len(result.exchanges) == 3
    assert result.connection["other_addresses"] == ["10.0.0.2:9092"]


def test_a_redirect_is_answered(tmp_path: Path) -> None:
    own = converse(conversation())
    result = read(tmp_path, redirected(own))
    assert rows_of(result) == rows_of(read(tmp_path, own))
    assert result.connection["other_addresses"] == ["127.0.0.1:15001"]
    assert result.connection["duplicates"] == 0


def test_a_proxy_has_two_connections(tmp_path: Path) -> None:
    """They have the same bytes and ports, and other sequence numbers."""
    own = converse(conversation())
    other = as_leg(converse(conversation(), client_isn=7_000_000, broker_isn=9_000_000), GATEWAY, INSIDE)
    result = read(tmp_path, interleaved(own, other))
    assert len(result.connections) == 2
    assert [row["other_addresses"] for row in result.connections] == [None, None]


def many(count: int = 12) -> list[Segment]:
    """Connections of several clients, each with another leg, some redirected."""
    every = []
    for number in range(count):
        client = ("10.0.1.1", 41_000 + number)
        own = converse(
            conversation(), client=client, client_isn=1000 + 70_001 * number, broker_isn=5 + 90_007 * number,
            start_ns=1_700_000_000_000_000_000 + number * 1_300_000,
        )  # fmt: skip
        if number % 4 == 3:
            own = [replace(segment, target=PROXY) if segment.source == client else segment for segment in own]
            every.append(own)
        else:
            inner = as_leg(own, ("172.17.0.1", 50_000 + number) if number % 4 == 2 else client, INSIDE)
            every += [own, inner]
    return interleaved(*every)


def test_whatever_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(many()), 1, nanoseconds=True))
    whole = analyzer.analyze(path)
    connections = by_name(whole.connections)
    assert len(connections) == 12
    assert all(row["other_addresses"] for row in connections)
    assert len(whole.exchanges) == 12 * 8
    for how, rows in every_way(path, ("connections",), tmp_path / "ways"):
        assert sorted(rows["connections"], key=lambda row: str(row["connection"])) == connections, how


def by_name(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of connections in order of their names."""
    rows: list[dict[str, Any]] = table.drop_columns(["capture"]).to_pylist()
    return sorted(rows, key=lambda row: str(row["connection"]))


def test_shares_that_read_their_own_packets_alone(tmp_path: Path) -> None:
    """Chunks say which groups of four-tuples have legs of one connection."""
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(many()), 1, nanoseconds=True))
    [point] = capture_points([str(path)], False)
    count = 3
    joining, stored = ChunkJoiner(point), []
    for number, chunk in enumerate(chunks_of(point, 8 << 10)):
        result, file = store(ChunkReader(chunk, joining.begin(chunk)), 4 * count, count, tmp_path / f"chunk-{number}")
        joining.take(chunk, result)
        stored.append(file._replace(number=joining.numbers[-1]))
    assert len(stored) > 3
    assert apart(stored)
    choice = AnalysisOptions.of()
    settings = ReadOptions().settings(choice.keep)
    written = [
        shares.share(
            point, settings, choice, shares.ShareOfPackets(number, count), 1 << 18, tmp_path / "pieces" / str(number),
            RoutedReader(point, joining.summary(), stored, groups),
        )
        for number, groups in enumerate(divided(stored, count))
    ]  # fmt: skip
    _, facts = shares.by_range(written)
    _, _, files = shares.take_facts(facts, written, point, choice, TableFiles(tmp_path, "facts"), tmp_path / "decided")
    tables = [pq.read_table(tmp_path / entry["path"], partitioning=None) for entry in files]
    [connections] = [table for table, entry in zip(tables, files, strict=True) if entry["table"] == "connections"]
    assert by_name(connections) == by_name(analyzer.analyze(path).connections)


def test_a_replay_sends_each_request_once(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(many(3)), 1, nanoseconds=True))
    sessions = inputs.read([str(path)])
    assert [len(session.requests) for session in sessions] == [8, 8, 8]


@pytest.mark.parametrize(("case", "exchanges"), [("docker-dnat-any-real", 30), ("istio-redirect-real", 48)])
def test_the_cases(case: str, exchanges: int) -> None:
    dataset = analyzer.analyze(case_capture(f"wire/{case}.pcap"))
    rows = dataset.exchanges.to_pylist()
    assert len(rows) == exchanges
    assert {row["status"] for row in rows} == {"answered"}
    codes = [finding["code"] for finding in dataset.findings.to_pylist()]
    assert "connection-legs" in codes
    assert "capture-duplicated" not in codes
