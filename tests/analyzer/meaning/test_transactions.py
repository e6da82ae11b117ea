"""Transactions: against the broker's request log, the markers that consumers read, and the bodies read one by one.

(proves: analyzer/meaning/transactions.py, producers.py)
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import analyzer
from analyzer.meaning.producers import Asked, Producer, Transaction
from analyzer.meaning.transactions import Transactions
from captures.forge import converse, loaded, pcap, rendered, segments_of
from tests.analyzer import forging
from tests.analyzer.meaning.joining import heard_by
from tests.shared import SAMPLES

TXN = SAMPLES / "txn-librdkafka-4.3"
JS = SAMPLES / "client-kafkajs-3.9"


def transactions(capture: Path, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = analyzer.analyze(capture, **options).tables["transactions"].to_pylist()
    return rows


@pytest.mark.parametrize("folder", [TXN, JS])
def test_each_end_is_one_that_the_broker_logged(folder: Path) -> None:
    logged = []
    for line in gzip.decompress((folder / "requests.log.gz").read_bytes()).decode().splitlines():
        if '"END_TXN"' in line:
            said = json.loads(line[line.index("{") : line.rindex("}") + 1])
            request = said["request"]
            if said["response"]["errorCode"] == 0:
                end = "committed" if request["committed"] else "aborted"
                logged.append((request["transactionalId"], request["producerId"], request["producerEpoch"], end))
    found = [
        (row["transactional_id"], row["producer_id"], row["producer_epoch"], row["outcome"])
        for row in transactions(folder / "capture.pcap")
        if row["outcome"] != "fenced"
    ]
    assert found == logged
    assert len(found) > 2


def test_each_partition_got_the_markers_of_its_transactions() -> None:
    dataset = analyzer.analyze(TXN / "capture.pcap", records="full")
    written = {  # fetched by the id of the one topic there is
        (row["partition"], row["offset"], row["control_type"])
        for row in dataset.tables["records"].to_pylist()
        if row["side"] == "fetch" and row["control_type"] in ("commit", "abort")
    }
    markers = Counter((partition, kind) for partition, _, kind in written)
    told = Counter(
        (place["partition"], "commit" if row["outcome"] == "committed" else "abort")
        for row in dataset.tables["transactions"].to_pylist()
        for place in row["partitions"]
        if row["outcome"] in ("committed", "aborted")
    )
    assert told == markers
    assert len(told) == 6


def slowly(capture: Path) -> list[tuple[Any, ...]]:
    """Transactions as a reader of the requests, in the order in which they were made, would note them down."""
    every = [one for one in analyzer.exchanges(capture, partitions=True) if one.transactional_id is not None]
    every.sort(key=lambda one: one.request_time)
    done: list[tuple[Any, ...]] = []
    open_ones: dict[str, dict[str, Any]] = {}
    for one in every:
        name, request, response = one.transactional_id, one.request or {}, one.response or {}
        if one.api == "InitProducerId" or (one.api == "AddPartitionsToTxn" and one.api_version >= 4):
            continue
        now = open_ones.setdefault(name, {"began": one.request_time, "parts": set(), "records": 0, "offsets": set()})
        if one.api == "Produce":
            now["parts"] |= {(part["topic"], part["partition"]) for part in one.partitions}
            now["records"] += sum(part["record_count"] for part in one.partitions)
        elif one.api == "AddPartitionsToTxn":
            told = response["resultsByTopicV3AndBelow"]
            errors = {part["partitionErrorCode"] for topic in told for part in topic["resultsByPartition"]}
            if errors == {0}:
                now["parts"] |= {(part["topic"], part["partition"]) for part in one.partitions}
            elif 47 in errors:
                done.append((name, "fenced", now["began"], one.response_end, set(), 0, set()))
                del open_ones[name]
        elif one.api == "TxnOffsetCommit":
            for topic in request["topics"]:
                for part in topic["partitions"]:
                    place = request["groupId"], topic["name"], part["partitionIndex"]
                    now["offsets"].add((*place, part["committedOffset"]))
        elif one.api == "EndTxn" and response["errorCode"] == 0:
            outcome = "committed" if request["committed"] else "aborted"
            told = now["parts"], now["records"], now["offsets"]
            done.append((name, outcome, now["began"], one.response_end, *told))
            del open_ones[name]
    assert not open_ones
    return done


@pytest.mark.parametrize("folder", [TXN, JS])
def test_rows_are_what_the_bodies_say(folder: Path) -> None:
    found = [
        (row["transactional_id"], row["outcome"], row["began"], row["ended"],
         {(place["topic"], place["partition"]) for place in row["partitions"]}, row["records"],
         {tuple(offset.values()) for offset in row["offsets"]})
        for row in transactions(folder / "capture.pcap")
    ]  # fmt: skip
    assert found == slowly(folder / "capture.pcap")
    assert all(
        row["duration_us"] == (row["ended"] - row["began"]).total_seconds() * 1e6
        for row in transactions(folder / "capture.pcap")
    )


def test_who_was_fenced_by_whom() -> None:
    fenced = [row for row in transactions(TXN / "capture.pcap") if row["outcome"] == "fenced"]
    assert [(row["client_id"], row["fenced_by"], row["producer_epoch"]) for row in fenced] == [
        ("lab-tx", "lab-tx-fencer@127.0.0.1", 0)
    ]


@pytest.mark.parametrize("folder", [TXN, JS])
def test_shares_and_windows_change_nothing(folder: Path) -> None:
    capture = folder / "capture.pcap"
    whole = heard_by(capture, Transactions)["transactions"]
    assert len(whole) > 2
    assert heard_by(capture, Transactions, shares=3)["transactions"] == whole
    assert heard_by(capture, Transactions, window_bytes=4096)["transactions"] == whole


def test_what_only_markers_tell_of_has_a_producer_id_alone(tmp_path: Path) -> None:
    """Without the producers' connections: what is left is the coordinator's word to the leader."""
    link, records = loaded(TXN / "capture.pcap")
    [sender] = {one.client_port for one in analyzer.exchanges(TXN / "capture.pcap") if one.api == "WriteTxnMarkers"}
    kept = [one for one in segments_of(records, link) if sender in (one.source[1], one.target[1])]
    (tmp_path / "capture.pcap").write_bytes(pcap(rendered(kept)))
    found = transactions(tmp_path / "capture.pcap")
    assert {(row["transactional_id"], row["producer_id"], row["client_id"], row["began"]) for row in found} == {
        (None, 1, None, None)
    }
    whole = [row for row in transactions(TXN / "capture.pcap") if row["outcome"] != "fenced"]

    def brief(row: dict[str, Any]) -> tuple[Any, ...]:
        places = [place for place in row["partitions"] if place["topic"] != "__consumer_offsets"]  # offsets, told apart
        return row["outcome"], row["producer_epoch"], places

    assert [brief(row) for row in found] == [brief(row) for row in whole]


# --- one producer, told event by event --------------------------------------------------------------------------------


class Told:
    """Events of one transactional id, a second apart."""

    def __init__(self) -> None:
        self.producer = Producer("pay")
        self._now = 0

    def event(self, who: str, error: int | None = 0, epoch: int | None = 0) -> Asked:
        self._now += 1
        place = (self._now, 0)
        asked = self._now * 1_000_000
        return Asked(place, place, ("c", self._now, self._now), who, "10.0.0.1", asked, asked + 5, error, 7, epoch)

    def init(self, who: str, epoch: int, error: int = 0, asked_id: int = -1) -> None:
        self.producer.took(self.event(who, error, epoch), asked_id)

    def add(self, who: str, epoch: int = 0, error: int = 0) -> None:
        self.producer.added(self.event(who, error, epoch), [("t", 0)] if not error else [])

    def write(self, who: str, error: int | None = 0, records: int | None = 3) -> None:
        self.producer.wrote(self.event(who, error, None), ("t", 0), records)

    def end(self, who: str, committed: bool = True, error: int | None = 0, epoch: int = 0, given: Any = None) -> None:
        self.producer.ended(self.event(who, error, epoch), committed, given or (None, None))

    def finish(self) -> list[Transaction]:
        self.producer.finish()
        return self.producer.transactions

    def outcomes(self) -> list[tuple[str, str | None, str | None]]:
        return [(one.outcome, one.who[0], one.fenced_by) for one in self.finish()]


def test_an_open_transaction_is_fenced_by_who_takes_the_id() -> None:
    told = Told()
    told.init("a", 0)
    told.add("a")
    told.init("b", 1, error=51)
    told.init("b", 1)
    told.add("b", 1)
    told.write("a", error=47)  # the victim learns of it
    told.add("a", error=90)
    told.end("b", epoch=1)
    assert told.outcomes() == [("fenced", "a", "b@10.0.0.1"), ("committed", "b", None)]


def test_a_coordinator_that_gave_up_fences_without_anybody_having_come() -> None:
    told = Told()
    told.init("a", 0)
    told.add("a")
    told.end("a", error=47)
    assert told.outcomes() == [("fenced", "a", None)]


def test_a_producer_that_raises_its_own_epoch_aborts_what_is_open() -> None:
    told = Told()
    told.init("a", 0)
    told.add("a")
    told.init("a", 1, asked_id=7)
    told.add("a", 1)
    told.end("a", epoch=1)
    assert told.outcomes() == [("aborted", "a", None), ("committed", "a", None)]


def test_what_was_refused_for_the_moment_is_where_it_began() -> None:
    told = Told()
    told.init("a", 0)
    told.add("a", error=51)
    told.add("a", error=51)
    told.add("a")
    told.end("a")
    assert [(one.began, one.ended) for one in told.finish()] == [(2_000_000, 5_000_005)]


def test_ends_that_were_not_seen() -> None:
    told = Told()
    told.end("a")  # begun before the capture
    told.add("a")
    told.end("a", error=None)  # no answer
    told.add("a")
    told.write("a", records=None)
    told.write("a")
    found = told.finish()
    assert [(one.began, one.outcome, one.records) for one in found] == [
        (None, "committed", None),
        (2_000_000, "unknown", 0),
        (4_000_000, "open", None),
    ]


def test_an_end_that_is_asked_again() -> None:
    told = Told()
    told.add("a")
    told.end("a", error=None)
    told.end("a")
    assert told.outcomes() == [("committed", "a", None)]


def test_the_first_produce_begins_and_the_end_gives_the_next_epoch(tmp_path: Path) -> None:
    """KIP-890: no AddPartitionsToTxn, and a new epoch with each end."""

    def produce(number: int) -> list[Any]:
        asked = {
            "transactionalId": "pay", "acks": -1, "timeoutMs": 1000,
            "topicData": [{"name": "orders", "partitionData": [{"index": 2, "records": forging.batch(4)}]}],
        }  # fmt: skip
        told = {
            "throttleTimeMs": 0,
            "responses": [{"name": "orders", "partitionResponses": [
                {"index": 2, "errorCode": 0, "baseOffset": 10, "logAppendTimeMs": -1, "logStartOffset": 0,
                 "recordErrors": [], "errorMessage": None}]}],
        }  # fmt: skip
        return [
            forging.asking(forging.request(0, 12, number, asked)),
            forging.answering(forging.response(0, 12, number, told)),
        ]

    def end(number: int, epoch: int, committed: bool) -> list[Any]:
        asked = {"transactionalId": "pay", "producerId": 9, "producerEpoch": epoch, "committed": committed}
        told = {"throttleTimeMs": 0, "errorCode": 0, "producerId": 9, "producerEpoch": epoch + 1}
        return [
            forging.asking(forging.request(26, 5, number, asked)),
            forging.answering(forging.response(26, 5, number, told)),
        ]

    forging.read(
        tmp_path, converse([*produce(1), *produce(2), *end(3, 4, True), *produce(4), *end(5, 5, False), *produce(6)])
    )
    rows = transactions(tmp_path / "capture.pcap")
    assert [
        (row["producer_id"], row["producer_epoch"], row["outcome"], row["records"], row["partitions"]) for row in rows
    ] == [
        (9, 4, "committed", 8, [{"topic": "orders", "partition": 2}]),
        (9, 5, "aborted", 4, [{"topic": "orders", "partition": 2}]),
        (9, 6, "open", 4, [{"topic": "orders", "partition": 2}]),
    ]
