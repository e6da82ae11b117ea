"""The tables `batches` and `records` on real captures: against what clients say they sent and got, and against each
other; and what must not change them."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kwire import analyzer
from kwire.analyzer.dataset.dataset import Dataset
from kwire.analyzer.records import arrow_tables as record_tables
from tests.captures import forge
from tests.shared import SAMPLES, capture_files, shared_folder, shared_folders

OLD = SAMPLES / "old-java-0.8.2" / "capture.pcap"
TXN = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


@functools.cache
def analyzed(folder: Path) -> Dataset:
    """A capture folder, with the contents of its records."""
    return analyzer.analyze(capture_files(folder), rotated=True, records="full")


def rows(dataset: Dataset, side: str) -> list[dict[str, Any]]:
    """The records of a side, with their topics' names."""
    names = {row["topic_id"]: row["topic"] for row in dataset.topic_ids.to_pylist()}
    own_rows: list[dict[str, Any]] = dataset.records.filter(pc.equal(dataset.records["side"], side)).to_pylist()
    for row in own_rows:
        row["topic"] = row["topic"] or names.get(row["topic_id"])
    return own_rows


def fetched_once(dataset: Dataset) -> dict[str, list[dict[str, Any]]]:
    """The data records that were fetched, by topic, each offset of a partition once."""
    once = {(row["topic"], row["partition"], row["offset"]): row for row in rows(dataset, "fetch")}
    topics: dict[str, list[dict[str, Any]]] = {}
    for _, row in sorted(once.items()):
        if row["control_type"] is None:
            topics.setdefault(row["topic"], []).append(row)
    return topics


def content(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = tuple((header["key"], header["value"]) for header in row["headers"])
    return row["partition"], row["key"], row["value"], headers, row["timestamp"]


# --- what clients say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["codecs-java-2.8", "codecs-librdkafka-4.3", "codecs-aiokafka-2.8", "codecs-kafkapython-3.9"],
)
def test_records_are_what_the_clients_sent_and_got(name: str) -> None:
    """Every codec: messages, null keys, tombstones, headers and bytes of values, topic by topic."""
    folder = shared_folder(name)
    truth = json.loads((folder / "truth.json").read_bytes())
    fetched = fetched_once(analyzed(folder))
    for topic, partitions in truth["topics"].items():
        got = fetched[topic]
        assert len(got) == partitions["messages"] == truth["consumed"][topic]
        assert sum(row["key"] is None for row in got) == partitions["null_keys"]
        assert sum(row["value"] is None for row in got) == partitions["tombstones"]
        assert sum(bool(row["headers"]) for row in got) == partitions["with_headers"]
        assert sum(len(row["value"] or b"") for row in got) == partitions["value_bytes"]
    codecs = set(analyzed(folder).batches["codec"].to_pylist())
    assert codecs == {"none", "gzip", "snappy", "lz4", "zstd"}


@pytest.mark.parametrize("name", ["codecs-franzgo-4.3", "old-kafkapython14-0.8.2", "old-librdkafka-0.10.2"])
def test_as_many_records_as_the_clients_sent(name: str) -> None:
    folder = shared_folder(name)
    truth = json.loads((folder / "truth.json").read_bytes())
    fetched = fetched_once(analyzed(folder))
    for topic, partitions in truth["topics"].items():
        assert len(fetched[topic]) == (partitions if isinstance(partitions, int) else partitions["messages"])


@pytest.mark.parametrize("name", ["old-java-0.8.2", "old-java-0.10.2", "old-java-0.8.2-on-2.8"])
def test_old_brokers_records_gzip_and_snappy(name: str) -> None:
    """Message sets of Scala clients, as brokers of then (and one of 2.8, which converts down) store them."""
    folder = shared_folder(name)
    truth = json.loads((folder / "truth.json").read_bytes())
    dataset = analyzed(folder)
    fetched, produced = fetched_once(dataset), Counter(row["topic"] for row in rows(dataset, "produce"))
    for topic in ("old-none", "old-gzip", "old-snappy"):
        sent = sum(count for key, count in truth["topics"].items() if key.startswith(f"{topic}/"))
        assert len(fetched[topic]) == produced[topic] == sent == truth["simple_consumer"][topic]["messages"]
    assert {"none", "gzip", "snappy"} <= set(dataset.batches["codec"].to_pylist())
    assert set(dataset.batches["magic"].to_pylist()) <= {0, 1, None}


@pytest.mark.parametrize(
    "name",
    [
        "codecs-java-2.8",
        "codecs-librdkafka-4.3",
        "codecs-aiokafka-2.8",
        "codecs-kafkapython-3.9",
        "codecs-franzgo-4.3",
        "client-kafkajs-3.9",
        "old-java-0.8.2",
        "old-java-0.10.2",
        "old-kafkapython14-0.8.2",
        "old-librdkafka-0.10.2",
    ],
)
def test_what_was_fetched_is_what_was_produced(name: str) -> None:
    """Two paths through the wire, two clients: key, value, headers, time and partition of each record are the same,
    and offsets have no holes but markers'."""
    dataset = analyzed(shared_folder(name))
    produced = Counter((row["topic"], *content(row)) for row in rows(dataset, "produce"))
    for topic, got in fetched_once(dataset).items():
        if topic.startswith("__"):
            continue
        assert not Counter((topic, *content(row)) for row in got) - produced, topic
    markers = {(row["topic"], row["partition"], row["offset"]) for row in rows(dataset, "fetch") if row["control_type"]}
    offsets: dict[tuple[str, int], set[int]] = {}
    for row in rows(dataset, "fetch"):
        offsets.setdefault((row["topic"], row["partition"]), set()).add(row["offset"])
    for place, seen in offsets.items():
        assert seen == set(range(min(seen), max(seen) + 1)), (place, markers)


@pytest.mark.parametrize("folder", shared_folders() or sorted(SAMPLES.glob("*/")), ids=lambda folder: folder.name)
def test_every_checksum_is_right_and_every_batch_opens(folder: Path) -> None:
    """All captures, those with losses too: what is decoded was captured whole."""
    dataset = analyzed(folder)
    batches = dataset.batches
    whole = batches.filter(pc.invert(batches["partial"]))

    assert set(whole["crc_ok"].to_pylist()) <= {True}
    assert whole["reason"].null_count == len(whole)
    assert pc.sum(whole["record_count"]).as_py() in (None, len(dataset.records))


# --- what is inside ---------------------------------------------------------------------------------------------------


def test_control_batches_and_aborted_transactions() -> None:
    """txn-librdkafka-4.3 read uncommitted shows all; read committed is what is left without aborted ones."""
    truth = json.loads((TXN.parent / "truth.json").read_bytes())
    dataset = analyzed(TXN.parent)
    once = {(row["partition"], row["offset"]): row for row in rows(dataset, "fetch") if row["topic"] == "tx-out"}
    producers = {
        (row["partition"], row["base_offset"]): row["producer_id"]
        for row in dataset.batches.to_pylist()
        if row["side"] == "fetch"
    }
    committed = 0
    open_records: Counter[tuple[int, int]] = Counter()
    for (partition, _), row in sorted(once.items()):
        transaction = partition, producers[partition, row["batch"]]
        if row["control_type"] is None:
            open_records[transaction] += 1
        elif row["control_type"] == "commit":
            committed += open_records.pop(transaction, 0)
        else:
            assert row["control_type"] == "abort"
            open_records.pop(transaction, None)

    assert sum(row["control_type"] is None for row in once.values()) == truth["read_uncommitted_messages"]
    assert committed == truth["read_committed_messages"]
    assert not open_records
    control = {row["batch"] for row in once.values() if row["control_type"]}
    assert control
    markers = dataset.batches.filter(dataset.batches["is_control"])
    assert set(markers["is_transactional"].to_pylist()) == {True}
    assert set(markers["record_count"].to_pylist()) == {1}


def test_control_records_say_what_they_mean() -> None:
    markers = [row for row in rows(analyzed(TXN.parent), "fetch") if row["control_type"] == "abort"]

    assert json.loads(markers[0]["decoded"])["value"] == {"coordinatorEpoch": 0}


def test_tombstones() -> None:
    """A null value is null, an empty one is empty."""
    records = analyzed(shared_folder("codecs-java-2.8")).records

    assert records["value"].null_count == 2 * 5 * 13
    assert records["value_bytes"].null_count == records["value"].null_count
    assert pc.min(records["value_bytes"]).as_py() >= 0


def test_null_keys() -> None:
    records = analyzed(shared_folder("codecs-java-2.8")).records

    assert records["key"].null_count == records["key_bytes"].null_count == 2 * 5 * 50


def test_headers() -> None:
    """In their order, with values; 28 records of each of five topics, produced and fetched."""
    records = analyzed(shared_folder("codecs-java-2.8")).records
    having = records.filter(pc.greater(pc.list_value_length(records["headers"]), 0))

    assert len(having) == 2 * 5 * 28
    assert all(
        isinstance(header["key"], str) and isinstance(header["value"], bytes | None)
        for headers in having["headers"].to_pylist()
        for header in headers
    )


def test_records_of_internal_topics_are_decoded() -> None:
    """A cluster's brokers fetch each other's logs: what these hold is there as JSON."""
    dataset = analyzed(shared_folder("cluster-kraft-3.9"))
    internal = [row for row in rows(dataset, "fetch") if row["topic"] == "__consumer_offsets"]
    kinds = Counter(json.loads(row["decoded"])["type"] for row in internal)

    assert kinds["OffsetCommit"] > 0
    assert kinds["GroupMetadata"] > 0
    metadata = dataset.records.filter(pc.equal(dataset.records["topic_id"], "AAAAAAAAAAAAAAAAAAAAAQ"))
    kinds = Counter(json.loads(decoded)["type"] for decoded in metadata["decoded"].to_pylist())
    assert kinds["TopicRecord"] > 0
    assert kinds["PartitionChangeRecord"] > 0
    assert kinds["LeaderChange"] > 0
    data = pc.invert(pc.is_in(dataset.records["topic"], value_set=pa.array(["__consumer_offsets"])))
    plain = dataset.records.filter(pc.and_(data, pc.is_null(dataset.records["control_type"])))
    assert plain.filter(pc.equal(plain["side"], "produce"))["decoded"].null_count == len(
        plain.filter(pc.equal(plain["side"], "produce"))
    )


def test_a_batch_cut_off_at_the_end_of_a_fetch_is_partial() -> None:
    """A broker of 2.8 fills up to the fetch's size; clients of 0.8 skip the rest."""
    dataset = analyzed(shared_folder("old-java-0.8.2-on-2.8"))
    partial = dataset.batches.filter(dataset.batches["partial"])

    assert len(partial) == 22
    assert set(partial["side"].to_pylist()) == {"fetch"}
    assert partial["crc_ok"].null_count == partial["reason"].null_count == 22


# --- what changes them, and what does not -----------------------------------------------------------------------------


def test_how_far_records_are_opened() -> None:
    none, batches, meta, full = (analyzer.analyze(OLD, records=mode) for mode in ("none", "batches", "meta", "full"))

    assert "batches" not in none.tables
    assert "records" not in batches.tables
    assert batches.batches["uncompressed_bytes"].null_count == len(batches.batches)
    assert meta.batches.equals(full.batches)
    assert meta.batches["uncompressed_bytes"].null_count == 0
    content = ["key", "value", "headers", "decoded"]
    assert meta.records.drop_columns(content).equals(full.records.drop_columns(content))
    assert all(meta.records[name].null_count == len(meta.records) for name in content)
    sizes = pc.binary_length(full.records["value"])
    assert sizes.cast(pa.int64()).equals(full.records["value_bytes"])


@pytest.mark.parametrize("settings", [{"window_bytes": 3000}, {"threads": 1}, {"threads": 6, "window_bytes": 50_000}])
@pytest.mark.parametrize("capture", [OLD, TXN], ids=["old", "txn"])
def test_neither_windows_nor_threads_change_a_row(capture: Path, settings: dict[str, Any]) -> None:
    """Also where a set's exchange ends in a later window than its message came."""
    usual, other = (analyzer.analyze(capture, records="full", **options) for options in (dict[str, Any](), settings))

    assert other.batches.equals(usual.batches)
    assert other.records.equals(usual.records)
    assert other.summary["records"] == usual.summary["records"]


def test_rows_are_in_the_order_of_their_exchanges() -> None:
    dataset = analyzer.analyze(TXN, records="meta")
    place = {(row["connection"], row["exchange"]): i for i, row in enumerate(dataset.exchanges.to_pylist())}
    for table in (dataset.batches, dataset.records):
        order = [place[row["connection"], row["exchange"]] for row in table.to_pylist()]
        assert order == sorted(order)


def test_a_filter_limits_them_with_their_exchanges() -> None:
    everything = analyzer.analyze(TXN, records="meta")
    some = analyzer.analyze(TXN, records="meta", filter="api == Produce", window_bytes=5000)

    for name in ("batches", "records"):
        table = everything.tables[name]
        assert some.tables[name].equals(table.filter(pc.equal(table["side"], "produce")))


def test_batches_that_wait_for_their_exchange_may_not_pile_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A capture of requests alone: no exchange ends before the last packet. What is not kept says so."""
    link, records = forge.loaded(TXN)
    requests = [record for record in records if forge.segments_of([record], link)[0].target[1] == 9092]
    path = tmp_path / "requests.pcap"
    path.write_bytes(forge.pcap(requests, link))

    dataset = analyzer.analyze(path, records="meta", window_bytes=5000)
    monkeypatch.setattr(record_tables, "HELD_BYTES", 0)
    not_kept = analyzer.analyze(path, records="meta", window_bytes=5000)

    assert len(dataset.batches) == len(not_kept.batches) > 20
    assert dataset.batches["crc_ok"].to_pylist() == not_kept.batches["crc_ok"].to_pylist()
    assert set(dataset.batches["reason"].to_pylist()) == {None}
    assert "its exchange ended too late: the records were not kept" in not_kept.batches["reason"].to_pylist()
    assert len(not_kept.records) < len(dataset.records)
