"""Records as a list: what `kwire show --records` reads of the same captures, with exchanges, paths and offsets.

Proves: reports/view/record_list
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.messages.exchange import Exchange
from kwire.reports.view import bodies, record_list
from kwire.reports.view.bodies import MessageReader
from tests.analyzer.payloads.golden_payloads import golden, golden_capture, write_capture, write_schemas
from tests.reports.forging import Forged, at
from tests.reports.view.conftest import TXN, Asking, viewed
from tests.shared import SAMPLES, capture_files

Row = dict[str, Any]


def listed(asking: Asking, filter: str = "", **query: Any) -> list[Row]:
    """Get all records of the chosen exchanges, a window at a time."""
    rows: list[Row] = []
    while True:
        answer = asking("table", name="records", filter=filter, start=len(rows), count=97, **query)
        columns = answer["columns"]
        for number, (key, side, path) in enumerate(zip(answer["keys"], answer["sides"], answer["paths"], strict=True)):
            rows.append({name: values[number] for name, values in columns.items()} | {"is": (key, side, path)})
        if len(rows) == answer["total"]:
            return rows
        assert answer["keys"], (len(rows), answer["total"])


def shown(capture: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Row]:
    """Get what `kwire show --records --json` prints."""
    assert parser.main(["show", "--records", "--json", str(capture)]) == 0
    yield from map(json.loads, capsys.readouterr().out.splitlines())


def text(row: Row, name: str) -> str:
    """Write a key or value of `kwire show` as the list does."""
    if f"{name}_base64" in row:
        return "0x"
    value = row[name]
    return "null" if value is None else str(value)[:200]


@pytest.mark.parametrize("sample", ["txn-librdkafka-4.3", "old-java-0.8.2", "codecs-franzgo-4.3"])
def test_records_are_those_that_show_reads(sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    (capture,) = capture_files(SAMPLES / sample)
    with contextlib.ExitStack() as stack:
        rows = listed(Asking(viewed(stack, capture)))
    plain = [row for row in shown(capture, capsys) if row["decoded"] is None]
    in_view = [row for row in rows if not row["topic"].startswith("__") and "version=" not in row["value"]]
    assert len(in_view) == len(plain) > 500

    def about(row: Row, key: str, value: str) -> tuple[Any, ...]:
        return row["topic"], row["partition"], key[:200], value[:200]

    wanted = Counter(about(row, text(row, "key"), text(row, "value")) for row in plain)
    shown_there = Counter(
        about(row, *("0x" if row[k].startswith("0x") else row[k] for k in ("key", "value"))) for row in in_view
    )
    assert shown_there == wanted


@pytest.mark.parametrize(("ending", "at_once", "most"), [("pcap", 200, 0), ("pcap.gz", 200, 1), ("pcap.gz", 3, 3)])
def test_a_window_of_records_reads_a_compressed_capture_once(
    ending: str, at_once: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (capture,) = capture_files(SAMPLES / "txn-librdkafka-4.3")
    path = tmp_path / f"capture.{ending}"
    path.write_bytes(capture.read_bytes() if ending == "pcap" else gzip.compress(capture.read_bytes()))
    passes: list[str] = []
    whole = MessageReader._exchanges

    def counted(reader: MessageReader, arguments: Sequence[str], text: str, bodies: bool) -> Iterator[Exchange]:
        passes.append(text)
        return whole(reader, arguments, text, bodies)

    monkeypatch.setattr(MessageReader, "_exchanges", counted)
    monkeypatch.setattr(bodies, "MOST_NAMED", at_once)
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, path))
        for _ in range(2):
            answer = asking("table", name="records", start=100, count=150)
        assert len(set(answer["keys"])) > 5
        assert len(passes) == most
        monkeypatch.undo()
        assert answer["columns"]["value"] == [row["value"] for row in listed(asking)][100:250]


def test_a_produced_record_has_the_offset_that_consumers_read(txn: Asking) -> None:
    offsets = defaultdict(set)
    for row in listed(txn):
        if row["value"].startswith("in"):
            offsets[row["partition"], row["value"]].add((row["direction"], row["offset"]))
    both = [place for place in offsets.values() if len({direction for direction, _ in place}) == 2]
    assert len(both) > 50
    assert all(len({offset for _, offset in place}) == 1 for place in both)


def test_a_record_leads_to_its_node_and_its_bytes(txn: Asking) -> None:
    rows = listed(txn, "topic == idem")
    for row in rows[::25]:
        key, side, path = row["is"]
        parent, _, number = path.rpartition(".")
        node = txn("message", key=key, side=side, path=parent)["children"][int(number)]
        assert node["type"] == "record"
        bytes_of_it = txn.raw("bytes", key=key, side=side, start=node["start"], count=node["end"] - node["start"])
        assert row["value"].encode() in bytes_of_it


def test_a_filter_and_a_partition_choose_records(txn: Asking) -> None:
    every = listed(txn)
    topics = {row["topic"] for row in every}
    assert {"idem", "tx-in", "tx-out"} <= topics
    for topic in topics:
        assert listed(txn, f'topic == "{topic}"') == [row for row in every if row["topic"] == topic]
    either = listed(txn, 'api == Fetch and (topic == "tx-in" or topic == "tx-out") and not topic == "tx-in"')
    assert either
    assert {(row["topic"], row["direction"]) for row in either} == {("tx-out", "fetch")}
    only = listed(txn, partition="tx-in-1")
    assert only == [row for row in every if (row["topic"], row["partition"]) == ("tx-in", 1)]
    assert listed(txn, "api == Heartbeat") == []
    assert "records are in order" in txn.refused("table", name="records", sort="offset")["message"]


def test_the_producer_of_a_fetched_record_is_known_by_its_id(txn: Asking) -> None:
    producers = {row["producer"] for row in listed(txn, "api == Fetch") if row["topic"] == "tx-in"}
    assert producers == {"lab-idem (id 0)"}


def test_markers_and_internal_topics_are_told_by_their_fields() -> None:
    with contextlib.ExitStack() as stack:
        rows = listed(Asking(viewed(stack, TXN)), "topic == tx-out and api == Fetch")
    markers = [row for row in rows if "coordinatorEpoch=" in row["value"]]
    assert markers
    assert all("type=" in row["key"] for row in markers)


def test_a_dataset_shows_the_records_that_it_keeps(tmp_path: Path) -> None:
    shutil.copy(TXN, tmp_path / "moved.pcap")
    wanted: list[Row] = []
    for level in ("full", "meta", "batches"):
        analyzer.analyze(tmp_path / "moved.pcap", tmp_path / level, records=level)
    (tmp_path / "moved.pcap").unlink()
    with contextlib.ExitStack() as stack:
        wanted = listed(Asking(viewed(stack, TXN)))
        full, meta, batches = (listed(Asking(viewed(stack, tmp_path / level))) for level in ("full", "meta", "batches"))
    assert len(full) == len(meta) == len(batches) == len(wanted)
    names = ("topic", "partition", "timestamp", "direction", "producer", "client_id")
    assert [[row[name] for name in names] for row in full] == [[row[name] for name in names] for row in wanted]
    plain = [
        (stored["key"], stored["value"]) for stored, row in zip(full, wanted, strict=True) if "=" not in row["value"]
    ]
    assert plain == [(row["key"], row["value"]) for row in wanted if "=" not in row["value"]]
    assert {row["value"] for row in meta if row["topic"] == "idem"} <= {f"({size} bytes)" for size in range(10)}
    assert all("--records full" in row["value"] for row in batches)


def test_batches_that_do_not_say_their_number_are_a_row_where_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (capture,) = capture_files(SAMPLES / "old-java-0.8.2")
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, capture))
        opened = listed(asking, 'topic == "old-gzip"')
    monkeypatch.setattr(record_list, "UNOPENED", 0)
    with contextlib.ExitStack() as stack:
        closed = listed(Asking(viewed(stack, capture)), 'topic == "old-gzip"')
    assert 0 < len(closed) < len(opened)


def test_counts_that_lie_are_bounded_and_those_cut_off_by_a_fetch_do_not_count(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    forged.exchange("Fetch", topics=["orders"])
    batch = {"exchange": 0, "reply": 0, "topic": "orders", "partition": 0, "side": "fetch", "magic": 2, "codec": "none"}
    forged.add("batches", **batch, base_offset=0, record_count=2**31 - 1, batch_bytes=700, partial=False)
    forged.add("batches", **batch, base_offset=9, record_count=50, batch_bytes=700, partial=True)
    forged.add("batches", **batch, base_offset=9, record_count=3, batch_bytes=700, partial=True, reason="cut")
    forged.add("records", **{name: batch[name] for name in ("exchange", "reply", "topic", "partition", "side")},
               batch=0, offset=0, timestamp=at(0), value=b"\x1b[31mred\xff", value_bytes=9)  # fmt: skip
    with contextlib.ExitStack() as stack:
        rows = listed(Asking(viewed(stack, forged.write())))
    assert len(rows) == 100 + 0 + 3
    assert rows[0]["value"] == "0x1b5b33316d726564ff"
    assert rows[-1]["value"] == "(cut)"


def test_batches_without_records_are_passed_over(tmp_path: Path) -> None:
    """Compaction leaves their headers; an exchange may have none but such."""
    forged = Forged(tmp_path / "forged")
    for number, count in enumerate((0, 2, 0, 0, 1, 0)):
        forged.exchange("Fetch", second=number, topics=["orders"])
        batch = {"exchange": number, "reply": number, "topic": "orders", "partition": 0, "side": "fetch", "magic": 2}
        forged.add("batches", **batch, codec="none", base_offset=9 * number, record_count=count, batch_bytes=700)
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        assert len(listed(asking)) == 3
        assert [len(asking("table", name="records", start=start, count=1)["keys"]) for start in range(4)] == [
            1,
            1,
            1,
            0,
        ]


def test_numbers_of_records_are_those_of_headers() -> None:
    table = pa.table(
        {
            "record_count": pa.array([5, None, 3], pa.int32()),
            "batch_bytes": pa.array([500, 40, 500], pa.int64()),
            "codec": ["none", "gzip", "zstd"],
            "magic": pa.array([2, 1, 2], pa.int8()),
            "partial": [False, False, None],
            "reason": pa.array([None, None, None], pa.string()),
        }
    )
    assert record_list._counts(table).tolist() == [5, -1, 3]


def test_keys_and_values_are_decoded(tmp_path: Path) -> None:
    case = next(case for case in golden()[1] if case.format == "avro" and case.topic == "orders")
    capture = write_capture(tmp_path / "c.pcap", [(case.topic, b'{"k": 1}', case.data, case.headers)])
    schemas = str(write_schemas(tmp_path / "schemas"))
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, capture, schemas=schemas))
        (row,) = listed(asking)
        key, side, path = row["is"]
        node = asking("message", key=key, side=side, path=f"{path}.5")
        sql = asking.view.tables.dataset.records.to_table().to_pylist()[0]
    assert row["key"] == "k=1"
    assert row["value"].startswith(f"id={case.json['id']} address.city={case.json['address']['city']} ")
    assert [child["name"] for child in node["children"]][:3] == ["framing", "id", "address"]
    assert json.loads(sql["value_json"]) == case.json
    with contextlib.ExitStack() as stack:  # a dataset keeps the schemas, with what they refer to
        analyzer.analyze(capture, tmp_path / "dataset", schemas=schemas, records="full", keep_bytes=True)
        (stored,) = listed(Asking(viewed(stack, tmp_path / "dataset")))
        assert stored["key"] == "k=1"
        assert stored["value"] == row["value"]
        (given,) = listed(Asking(viewed(stack, tmp_path / "dataset", schemas=schemas)))
        assert given["value"] == row["value"]
    with contextlib.ExitStack() as stack:
        analyzer.analyze(capture, tmp_path / "bare", schemas=schemas, records="full")
        moved = capture.rename(tmp_path / "moved.pcap")
        (row,) = listed(Asking(viewed(stack, tmp_path / "bare")))
        assert json.loads(row["key"]) == {"k": 1}
        assert row["value"][:5] == '{"id"'
        assert moved.exists()


def test_a_filter_tests_decoded_keys_and_values(tmp_path: Path) -> None:
    """The capture's own messages are read again; those of a dataset come from its table `messages`."""
    capture, schemas = golden_capture(tmp_path / "c.pcap"), str(write_schemas(tmp_path / "schemas"))
    dataset = tmp_path / "dataset"
    analyzer.analyze(capture, out=dataset, keep_bytes=True, records="full", schemas=schemas)
    with contextlib.ExitStack() as stack:
        for source, options in ((capture, {"schemas": schemas}), (dataset, {})):
            view = Asking(viewed(stack, source, **options))
            assert view("check", filter="value.cents == 5")["bodies"]
            assert view("rows", filter="value.cents == 5", count=0)["total"] == 1, source
            assert view("rows", filter="value.amount < 0 and value.cents == 5", count=0)["total"] == 0
            assert view("rows", filter="key == customer-7 or value.number == 4111", count=0)["total"] == 2, source
        assert Asking(viewed(stack, capture))("rows", filter="value.amount < 0", count=0)["total"] == 0
