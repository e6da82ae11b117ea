"""Ladders, timelines, and exported files.

Proves: reports/view/drawings, timeline, exporting, packets
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dpkt
import pyarrow.parquet
import pytest

from kwire import analyzer
from kwire.captures.files import write
from kwire.reports.view.answers import answer_call
from kwire.reports.view.tables import format_key, parse_key
from tests.captures import forge
from tests.reports.forging import Forged, at
from tests.reports.view.conftest import TXN, Asking, viewed
from tests.shared import SAMPLES


def test_a_ladder_has_every_exchange_with_its_ends_and_times(txn: Asking) -> None:
    rows = txn("rows", filter="api == Produce", count=1000)
    answer = txn("ladder", filter="api == Produce")
    assert answer["keys"] == rows["keys"]
    assert answer["total"] == rows["total"]
    columns = rows["columns"]
    for place, (broker, client, sent, answered_at, api, code) in enumerate(answer["arrows"]):
        assert answer["actors"][broker] == f"client {columns['client_ip'][place]} {columns['client_id'][place]}"
        assert answer["actors"][client] == "broker 1"  # the sample has one broker, and Metadata tells its id
        assert (sent, answered_at) == (columns["request_time"][place], columns["response_time"][place])
        assert (api, code) == ("Produce", columns["error_code"][place])
    part = txn("ladder", filter="api == Produce", start=5, count=3)
    assert part["keys"] == rows["keys"][5:8]


def test_a_ladder_knows_brokers_by_their_ids_and_who_led(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    for client, broker in ((1, 2), (3, 3)):
        forged.exchange("Produce", second=client, broker_ip=f"10.0.0.{broker}", topics=["orders"])
    for node in (2, 3):
        forged.add("brokers", node_id=node, host=f"10.0.0.{node}", port=9092)
    for second, leader, epoch in ((0, 1, 4), (0.5, 2, 5), (2, 3, 6), (9, 1, 7)):
        forged.add("leaders", time=at(second), topic="orders", partition=0, leader=leader, leader_epoch=epoch)
    forged.add("leaders", time=at(1), topic="others", partition=0, leader=1, leader_epoch=1)
    with contextlib.ExitStack() as stack:
        answer = Asking(viewed(stack, forged.write()))("ladder")
    assert answer["actors"][1:] == ["broker 2", "broker 3"]
    # The one before the first exchange, and those up to the last answer.
    assert [(change["leader"], change["epoch"]) for change in answer["leaders"]] == [(2, 5), (3, 6)]


def test_bands_count_every_exchange_by_who_asked_whom_and_when(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    for number in range(300):
        forged.exchange(
            "Produce",
            second=number / 10,
            client_id=f"app-{number % 20 if number < 200 else 0}",
            exchange=number,
            broker_ip=f"10.0.0.{number % 3}",
            error="NOT_LEADER_OR_FOLLOWER" if number % 50 == 0 else None,
        )
    for node, host in ((7, "10.0.0.2"), (8, "elsewhere")):
        forged.add("brokers", node_id=node, host=host, port=9092)
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        answer, rows = asking("ladder", bands=40), asking("rows", count=1000)["columns"]
        assert asking("ladder", bands=40, filter="api == Fetch")["total"] == 0
    assert answer["total"] == 300 == sum(cell[3] for cell in answer["cells"])
    clients, brokers = answer["actors"][:12], answer["actors"][12:]
    assert clients[-1] == "client others"
    assert "client 10.0.0.1 app-0" in clients
    assert brokers == ["broker 10.0.0.0:9092", "broker 10.0.0.1:9092", "broker 7"]
    wanted: Counter[tuple[str, str, int, str]] = Counter()
    names = ("request_time", "client_id", "broker_ip", "error_code")
    for time, client, ip, code in zip(*(rows[name] for name in names), strict=True):
        who = f"client 10.0.0.1 {client}"
        where = "broker 7" if ip == "10.0.0.2" else f"broker {ip}:9092"
        place = (who if who in clients else "client others", where, (time - answer["first"]) // answer["step"])
        wanted[*place, "all"] += 1
        wanted[*place, "wrong"] += bool(code)
    cells = {
        (answer["actors"][client], answer["actors"][other], row, what): count
        for client, other, row, *both in answer["cells"]
        for what, count in zip(("all", "wrong"), both, strict=True)
    }
    assert cells == dict(wanted)
    starts = [
        sum((time - answer["first"]) // answer["step"] < row for time in rows["request_time"])
        for row in range(answer["rows"])
    ]
    assert answer["starts"] == starts


@pytest.mark.parametrize("by", ["connection", "client", "group", "member"])
def test_tracks_have_the_longest_exchange_of_each_interval(
    txn: Asking, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.analyzer.frame.counting.CACHE_BLOCK", 16)  # tracks and intervals are in several
    answer = txn("timeline", by=by, width=50)
    rows = txn("rows", count=1000)["columns"]
    name = {"client": "client_id", "group": "group_id", "member": "member_id"}.get(by, by)
    counts = Counter(value for value in rows[name] if value is not None)  # a member that joins has an empty id
    assert {track["name"]: track["exchanges"] for track in answer["tracks"]} == counts
    for track in answer["tracks"]:
        expected: dict[int, int] = {}
        for value, time, lasting in zip(rows[name], rows["request_time"], rows["total_us"], strict=True):
            if value == track["name"]:
                column = (time - answer["first"]) // answer["step"]
                expected[column] = max(expected.get(column, 0), lasting or 0)
        assert dict(zip(track["column"], track["lasting"], strict=True)) == expected
        assert txn("rows", filter=track["filter"], count=0)["total"] == track["exchanges"]
        named = zip(track["link"], track["exchange"], track["reply"], strict=True)
        for column, lasting, error, (link, exchange, reply) in zip(
            track["column"], track["lasting"], track["error"], named, strict=True
        ):
            key = format_key((*answer["links"][link], exchange, None if reply < 0 else reply))
            row = txn("exchange", key=key)["row"]
            assert ((row["request_time"] - answer["first"]) // answer["step"], row["total_us"] or 0) == (
                column,
                lasting,
            )
            assert error or not row["errors"]
    assert len(answer["tracks"]) + answer["others"] == len(counts)


def test_a_timeline_has_what_groups_and_transactions_did(txn: Asking) -> None:
    dataset = analyzer.analyze(TXN)
    bands = Counter(band["kind"] for band in txn("timeline")["bands"])
    assert bands["transaction"] == len(dataset.transactions) > 0
    assert bands["rebalance"] == len(dataset.rebalances) > 0
    first = txn("rows", count=1)["columns"]["request_time"][0]
    part = txn("timeline", first=first, last=first + 10)
    assert sum(track["exchanges"] for track in part["tracks"]) == 1
    assert part["bands"] == []
    assert txn("timeline", filter="latency > 60m")["tracks"] == []
    assert "member" in txn.refused("timeline", by="nothing")["hint"]


# --- files ------------------------------------------------------------------------------------------------------------


def exported(asking: Asking, **query: str) -> bytes:
    answer = answer_call(asking.view, "export", query)
    assert answer.status == 200, answer.content
    assert answer.pieces is not None
    return b"".join(answer.pieces)


def test_rows_are_exported_as_they_are_listed(txn: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.reports.view.exporting.AT_ONCE", 10)
    query = {"filter": "api == Produce", "sort": "latency"}
    keys = [parse_key(key) for key in txn("rows", **query, count=1000)["keys"]]
    table = pyarrow.parquet.read_table(io.BytesIO(exported(txn, **query, format="parquet")))
    assert [(row["capture"], row["connection"], row["exchange"], row["reply"]) for row in table.to_pylist()] == keys
    expected = {
        (exchange.row["connection"], exchange.row["exchange"]): exchange.row
        for exchange in analyzer.exchanges(TXN, bodies=False)
    }
    for row in table.to_pylist():
        known = expected[row["connection"], row["exchange"]]
        assert {name: value for name, value in row.items() if known[name] != value} == {}
    lines = exported(txn, **query, format="json").splitlines()
    assert [json.loads(line)["exchange"] for line in lines] == [key[2] for key in keys]
    listed = list(csv.DictReader(io.StringIO(exported(txn, **query, format="csv").decode())))
    assert [row["connection"] for row in listed] == [key[1] for key in keys]
    assert exported(txn, filter="latency > 60m", format="csv").count(b"\n") == 1
    assert "parquet" in txn.refused("export", format="xls")["hint"]


@pytest.mark.parametrize("kind", ["pcap", "pcapng", "other order"])
def test_packets_of_chosen_connections_are_all_that_is_in_their_file(tmp_path: Path, kind: str) -> None:
    link, records = forge.loaded(TXN)
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(
        write.pcap(records, link, nanoseconds=True, big_endian=True)
        if kind == "other order"
        else write.pcapng(records, [link], comment="kept")
        if kind == "pcapng"
        else TXN.read_bytes()
    )
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, capture))
        text = "transactional_id == lab-tx or group is not null"
        links = {parse_key(key)[1] for key in asking("rows", filter=text, count=1000)["keys"]}
        content = exported(asking, filter=text, format="pcapng")
        whole = asking("rows", count=1000)
    # Read by others' code: packets of these connections, each as it was captured, none of others.
    packets = [bytes(data) for _, data in dpkt.pcapng.Reader(io.BytesIO(content))]
    assert 0 < len(packets) < len(records)
    in_file = set(packets)
    assert [record.data for record in records if record.data in in_file] == packets
    # And by our own: the same exchanges, at the same times.
    again = tmp_path / "again.pcapng"
    again.write_bytes(content)
    read = [
        (exchange.row["connection"], exchange.row["exchange"], exchange.row["latency_us"])
        for exchange in analyzer.exchanges(again)
    ]
    columns: dict[str, list[Any]] = whole["columns"]
    every = zip(columns["connection"], columns["exchange"], columns["latency_us"], strict=True)
    assert sorted(read) == sorted(identity for identity in every if identity[0] in links)


def test_packets_are_those_of_the_chosen_capture_where_both_ends_have_the_connection(points: Asking) -> None:
    content = exported(points, filter='capture == "client.pcap" and api == EndTxn', format="pcapng")
    times_in_file = [when for when, _ in dpkt.pcapng.Reader(io.BytesIO(content))]
    times = points("rows", filter='capture == "client.pcap"', count=1000)["columns"]["request_time"]
    assert times_in_file
    assert max(times_in_file) * 1_000_000 < max(times) < min(times_in_file) * 1_000_000 + 10_000_000
    assert len(times_in_file) == len(set(times_in_file))  # the broker's packets are the same ones, 5 s later


def test_packets_of_a_capture_that_is_gone_or_another_are_refused(tmp_path: Path) -> None:
    """The export used to be an empty file without an error."""
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(TXN.read_bytes())
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, capture))
        assert "no packet" in asking.refused("export", format="pcapng", filter="latency > 60m")["message"]
        assert asking("export", format="pcapng", check="1") == {}
        other = SAMPLES / "admin-kafkapython-3.9" / "capture.pcap"
        capture.write_bytes(other.read_bytes())
        assert "changed" in asking.refused("export", format="pcapng")["hint"]
        capture.unlink()
        for check in ("", "1"):
            assert "no such file" in asking.refused("export", format="pcapng", check=check)["message"]
        assert "unknown format" in asking.refused("export", format="png", check="1")["message"]


def test_without_the_capture_there_are_no_packets(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    forged.exchange("Fetch")
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        assert "not available" in asking.refused("export", format="pcapng")["message"]
