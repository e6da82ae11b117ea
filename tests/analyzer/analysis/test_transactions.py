"""Transactions: against the broker's request log, the markers that consumers read, and the bodies read one by one.

(proves: analyzer/analysis/transactions.py, producers.py)
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.analysis.producers import Producer, ProducerEvent, Transaction
from kwire.analyzer.analysis.transactions import Transactions
from tests.analyzer import forging
from tests.analyzer.analysis.joining import collected
from tests.captures.forge import converse, loaded, pcap, rendered, segments_of
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
            change = json.loads(line[line.index("{") : line.rindex("}") + 1])
            request = change["request"]
            if change["response"]["errorCode"] == 0:
                end = "committed" if request["committed"] else "aborted"
                logged.append((request["transactionalId"], request["producerId"], request["producerEpoch"], end))
    rows = [
        (row["transactional_id"], row["producer_id"], row["producer_epoch"], row["outcome"])
        for row in transactions(folder / "capture.pcap")
        if row["outcome"] != "fenced"
    ]
    assert rows == logged
    assert len(rows) > 2


def test_each_partition_got_the_markers_of_its_transactions() -> None:
    dataset = analyzer.analyze(TXN / "capture.pcap", records="full")
    written = {  # fetched by the id of the one topic there is
        (row["partition"], row["offset"], row["control_type"])
        for row in dataset.tables["records"].to_pylist()
        if row["side"] == "fetch" and row["control_type"] in ("commit", "abort")
    }
    markers = Counter((partition, kind) for partition, _, kind in written)
    counts = Counter(
        (place["partition"], "commit" if row["outcome"] == "committed" else "abort")
        for row in dataset.tables["transactions"].to_pylist()
        for place in row["partitions"]
        if row["outcome"] in ("committed", "aborted")
    )
    assert counts == markers
    assert len(counts) == 6


def slowly(capture: Path) -> list[tuple[Any, ...]]:
    """Transactions as a reader of the requests, in the order in which they were made, would note them down."""
    every = [
        exchange for exchange in analyzer.exchanges(capture, partitions=True) if exchange.transactional_id is not None
    ]
    every.sort(key=lambda exchange: exchange.request_time)
    done: list[tuple[Any, ...]] = []
    open_ones: dict[str, dict[str, Any]] = {}
    for exchange in every:
        name, request, response = exchange.transactional_id, exchange.request or {}, exchange.response or {}
        if exchange.api == "InitProducerId" or (exchange.api == "AddPartitionsToTxn" and exchange.api_version >= 4):
            continue
        now = open_ones.setdefault(
            name, {"began": exchange.request_time, "parts": set(), "records": 0, "offsets": set()}
        )
        if exchange.api == "Produce":
            now["parts"] |= {(part["topic"], part["partition"]) for part in exchange.partitions}
            now["records"] += sum(part["record_count"] for part in exchange.partitions)
        elif exchange.api == "AddPartitionsToTxn":
            results = response["resultsByTopicV3AndBelow"]
            errors = {part["partitionErrorCode"] for topic in results for part in topic["resultsByPartition"]}
            if errors == {0}:
                now["parts"] |= {(part["topic"], part["partition"]) for part in exchange.partitions}
            elif 47 in errors:
                done.append((name, "fenced", now["began"], exchange.response_end, set(), 0, set()))
                del open_ones[name]
        elif exchange.api == "TxnOffsetCommit":
            for topic in request["topics"]:
                for part in topic["partitions"]:
                    place = request["groupId"], topic["name"], part["partitionIndex"]
                    now["offsets"].add((*place, part["committedOffset"]))
        elif exchange.api == "EndTxn" and response["errorCode"] == 0:
            outcome = "committed" if request["committed"] else "aborted"
            results = now["parts"], now["records"], now["offsets"]
            done.append((name, outcome, now["began"], exchange.response_end, *results))
            del open_ones[name]
    assert not open_ones
    return done


@pytest.mark.parametrize("folder", [TXN, JS])
def test_rows_are_what_the_bodies_say(folder: Path) -> None:
    rows = [
        (
            row["transactional_id"],
            row["outcome"],
            row["began"],
            row["ended"],
            {(place["topic"], place["partition"]) for place in row["partitions"]},
            row["records"],
            {tuple(offset.values()) for offset in row["offsets"]},
        )
        for row in transactions(folder / "capture.pcap")
    ]
    assert rows == slowly(folder / "capture.pcap")
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
    whole = collected(capture, Transactions)["transactions"]
    assert len(whole) > 2
    assert collected(capture, Transactions, shares=3)["transactions"] == whole
    assert collected(capture, Transactions, window_bytes=4096)["transactions"] == whole


def test_what_only_markers_tell_of_has_a_producer_id_alone(tmp_path: Path) -> None:
    """Without the producers' connections: what is left is the coordinator's word to the leader."""
    link, records = loaded(TXN / "capture.pcap")
    [sender] = {
        exchange.client_port
        for exchange in analyzer.exchanges(TXN / "capture.pcap")
        if exchange.api == "WriteTxnMarkers"
    }
    chosen = [segment for segment in segments_of(records, link) if sender in (segment.source[1], segment.target[1])]
    (tmp_path / "capture.pcap").write_bytes(pcap(rendered(chosen)))
    rows = transactions(tmp_path / "capture.pcap")
    assert {(row["transactional_id"], row["producer_id"], row["client_id"], row["began"]) for row in rows} == {
        (None, 1, None, None)
    }
    whole = [row for row in transactions(TXN / "capture.pcap") if row["outcome"] != "fenced"]

    def brief(row: dict[str, Any]) -> tuple[Any, ...]:
        places = [place for place in row["partitions"] if place["topic"] != "__consumer_offsets"]  # offsets, told apart
        return row["outcome"], row["producer_epoch"], places

    assert [brief(row) for row in rows] == [brief(row) for row in whole]


# --- captures that lack packets ---------------------------------------------------------------------------------------


def lacking(tmp_path: Path, folder: Path, first: int, last: int) -> list[dict[str, Any]]:
    """Transactions of a capture without its packets `first` to `last`, numbered as Wireshark does, in order of time."""
    link, records = loaded(folder / "capture.pcap")
    chosen = [record for number, record in enumerate(records, 1) if not first <= number <= last]
    (tmp_path / "capture.pcap").write_bytes(pcap(chosen, link, nanoseconds=True))
    return sorted(transactions(tmp_path / "capture.pcap"), key=lambda row: row["began"] or row["ended"])


def test_markers_of_the_transaction_before_do_not_end_the_next(tmp_path: Path) -> None:
    """It was refused for the moment before these were asked for, and the capture ends while it is open."""
    last = lacking(tmp_path, TXN, 316, 630)[-1]
    assert (last["outcome"], last["ended"], last["duration_us"], last["records"]) == ("open", None, None, 23)


def test_two_transactions_whose_border_was_lost_are_not_one(tmp_path: Path) -> None:
    """The end of the fourth, which was committed, and the beginning of the fifth, which was aborted."""
    rows = [(row["outcome"], row["records"], row["began"] is None) for row in lacking(tmp_path, TXN, 316, 346)]
    assert rows == [
        ("committed", 20, False),
        ("aborted", 21, False),
        ("committed", 22, False),
        ("unknown", 23, False),
        ("aborted", None, True),
        ("committed", 25, False),
        ("fenced", 0, False),
        ("committed", 1, False),
    ]


def test_a_marker_that_was_captured_says_how_what_lacks_its_end_ended(tmp_path: Path) -> None:
    """Only the fourth one's EndTxn is lost."""
    whole = [(row["outcome"], row["records"]) for row in transactions(TXN / "capture.pcap")]
    assert [(row["outcome"], row["records"]) for row in lacking(tmp_path, TXN, 327, 328)] == whole


@pytest.mark.parametrize(("folder", "size", "step"), [(TXN, 31, 12), (TXN, 6, 17), (JS, 9, 8)])
def test_no_certain_outcome_is_wrong_wherever_packets_are_lost(
    folder: Path, size: int, step: int, tmp_path: Path
) -> None:
    whole = [row for row in transactions(folder / "capture.pcap") if row["outcome"] != "fenced"]
    wrote = [exchange for exchange in analyzer.exchanges(folder / "capture.pcap") if exchange.api == "Produce"]
    of = {
        exchange.request_time: row
        for exchange in wrote
        for row in whole
        if row["transactional_id"] == exchange.transactional_id
        and row["began"] <= exchange.request_time <= row["ended"]
    }
    _, records = loaded(folder / "capture.pcap")
    certain = 0
    for first in range(1, len(records), step):
        for row in lacking(tmp_path, folder, first, first + size - 1):
            if row["outcome"] in ("committed", "aborted") and row["began"] is not None:
                there = [row_there for at, row_there in of.items() if row["began"] <= at <= row["ended"]]
                there = [row_there for row_there in there if row_there["transactional_id"] == row["transactional_id"]]
                assert {row_there["outcome"] for row_there in there} <= {row["outcome"]}, first
                certain += 1
    assert certain > 0.85 * len(whole) * len(range(1, len(records), step))


@pytest.mark.parametrize("bytes_left", [14, 30])
def test_an_end_that_was_cut_off_is_not_passed_over(bytes_left: int, tmp_path: Path) -> None:
    """A snap length that leaves of EndTxn its header, or its transactional id too."""
    link, records = loaded(TXN / "capture.pcap")
    [cut] = {
        exchange.request_packet
        for exchange in analyzer.exchanges(TXN / "capture.pcap", filter="api == EndTxn")
        if exchange.correlation_id == 16
    }
    [markers] = {
        exchange.request_packet
        for exchange in analyzer.exchanges(TXN / "capture.pcap", filter="api == WriteTxnMarkers")
        if exchange.correlation_id == 4
    }
    whole = records[cut - 1]
    records[cut - 1] = replace(whole, data=whole.data[: len(whole.data) - 45 + bytes_left])
    del records[markers - 1]
    (tmp_path / "capture.pcap").write_bytes(pcap(records, link, nanoseconds=True))
    rows = [(row["outcome"], row["records"]) for row in transactions(tmp_path / "capture.pcap")]
    assert rows[3:5] == [("unknown", 23), ("aborted", 24)]


# --- one producer, told event by event --------------------------------------------------------------------------------


class Script:
    """Events of one transactional id, a second apart."""

    def __init__(self) -> None:
        self.producer = Producer("pay")
        self._now = 0

    def event(
        self, who: str, error: int | None = 0, epoch: int | None = 0, on: str = "c", holes: int = 0
    ) -> ProducerEvent:
        self._now += 1
        place = (self._now, 0)
        sent = self._now * 1_000_000
        key = (on, self._now, self._now)
        return ProducerEvent(place, place, key, who, "10.0.0.1", sent, sent + 5, error, 7, epoch, holes)

    def init(self, who: str, epoch: int, error: int = 0, asked_id: int = -1) -> None:
        self.producer.took(self.event(who, error, epoch), asked_id)

    def add(
        self, who: str, epoch: int = 0, error: int = 0, partition: int = 0, on_behalf: bool = False, **where: Any
    ) -> None:
        event = self.event(who, error, epoch, **where)
        self.producer.added(event, [("t", partition)] if not error else [], on_behalf)

    def write(self, who: str, error: int | None = 0, records: int | None = 3) -> None:
        self.producer.wrote(self.event(who, error, None), ("t", 0), records)

    def end(
        self, who: str, committed: bool = True, error: int | None = 0, epoch: int = 0, given: Any = None, **where: Any
    ) -> None:
        self.producer.ended(self.event(who, error, epoch, **where), committed, given or (None, None))

    def mark(self, committed: bool = True, partition: int = 0, noticed: int = -1) -> None:
        self.producer.marked(self.event("broker"), committed, [("t", partition)], noticed)

    def finish(self) -> list[Transaction]:
        self.producer.finish()
        return self.producer.transactions

    def outcomes(self) -> list[tuple[str, str | None, str | None]]:
        return [(transaction.outcome, transaction.who[0], transaction.fenced_by) for transaction in self.finish()]


def test_an_open_transaction_is_fenced_by_who_takes_the_id() -> None:
    script = Script()
    script.init("a", 0)
    script.add("a")
    script.init("b", 1, error=51)
    script.init("b", 1)
    script.add("b", 1)
    script.write("a", error=47)  # the victim learns of it
    script.add("a", error=90)
    script.end("b", epoch=1)
    assert script.outcomes() == [("fenced", "a", "b@10.0.0.1"), ("committed", "b", None)]


def test_who_is_fenced_keeps_its_own_timeout() -> None:
    script = Script()
    script.producer.took(script.event("a", epoch=0), -1, 30_000)
    script.producer.took(script.event("b", epoch=1), -1, 60_000)
    script.add("a", error=47)
    script.add("b", 1)
    script.end("b", epoch=1)
    assert [(transaction.who[0], transaction.timeout_ms) for transaction in script.finish()] == [
        ("a", 30_000),
        ("b", 60_000),
    ]


def test_a_coordinator_that_gave_up_fences_without_anybody_having_come() -> None:
    script = Script()
    script.init("a", 0)
    script.add("a")
    script.end("a", error=47)
    assert script.outcomes() == [("fenced", "a", None)]


def test_a_transaction_that_the_coordinator_gave_up_ended_when_it_told_the_leaders() -> None:
    script = Script()
    script.init("a", 0)
    script.add("a")
    script.mark(committed=False)
    script.end("a", error=47)  # its producer hears of it later
    (transaction,) = script.finish()
    assert (transaction.outcome, transaction.ended) == ("aborted", 3_000_005)


def test_a_producer_that_raises_its_own_epoch_aborts_what_is_open() -> None:
    script = Script()
    script.init("a", 0)
    script.add("a")
    script.init("a", 1, asked_id=7)
    script.add("a", 1)
    script.end("a", epoch=1)
    assert script.outcomes() == [("aborted", "a", None), ("committed", "a", None)]


def test_what_was_refused_for_the_moment_is_where_it_began() -> None:
    script = Script()
    script.init("a", 0)
    script.add("a", error=51)
    script.add("a", error=51)
    script.add("a")
    script.end("a")
    assert [(transaction.began, transaction.ended) for transaction in script.finish()] == [(2_000_000, 5_000_005)]


def test_ends_that_were_not_seen() -> None:
    script = Script()
    script.end("a")  # begun before the capture
    script.add("a")
    script.end("a", error=None)  # no answer
    script.add("a")
    script.write("a", records=None)
    script.write("a")
    finished = script.finish()
    assert [(transaction.began, transaction.outcome, transaction.records) for transaction in finished] == [
        (None, "committed", None),
        (2_000_000, "unknown", 0),
        (4_000_000, "open", None),
    ]


def test_an_end_that_is_asked_again() -> None:
    script = Script()
    script.add("a")
    script.end("a", error=None)
    script.end("a")
    assert script.outcomes() == [("committed", "a", None)]


def test_the_first_produce_begins_and_the_end_gives_the_next_epoch(tmp_path: Path) -> None:
    """KIP-890: no AddPartitionsToTxn, and a new epoch with each end."""

    def produce(number: int) -> list[Any]:
        request = {
            "transactionalId": "pay",
            "acks": -1,
            "timeoutMs": 1000,
            "topicData": [{"name": "orders", "partitionData": [{"index": 2, "records": forging.batch(4)}]}],
        }
        response = {
            "throttleTimeMs": 0,
            "responses": [
                {
                    "name": "orders",
                    "partitionResponses": [
                        {
                            "index": 2,
                            "errorCode": 0,
                            "baseOffset": 10,
                            "logAppendTimeMs": -1,
                            "logStartOffset": 0,
                            "recordErrors": [],
                            "errorMessage": None,
                        }
                    ],
                }
            ],
        }
        return [
            forging.asking(forging.request(0, 12, number, request)),
            forging.answering(forging.response(0, 12, number, response)),
        ]

    def end(number: int, epoch: int, committed: bool) -> list[Any]:
        request = {"transactionalId": "pay", "producerId": 9, "producerEpoch": epoch, "committed": committed}
        response = {"throttleTimeMs": 0, "errorCode": 0, "producerId": 9, "producerEpoch": epoch + 1}
        return [
            forging.asking(forging.request(26, 5, number, request)),
            forging.answering(forging.response(26, 5, number, response)),
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


def brief(script: Script) -> list[tuple[str, int | None]]:
    return [(transaction.outcome, transaction.records) for transaction in script.finish()]


def test_what_is_added_again_is_of_another_transaction() -> None:
    script = Script()
    script.add("a")
    script.write("a")
    script.add("a")  # an end was lost before it, and nothing says which
    script.write("a", records=4)
    script.end("a")
    assert brief(script) == [("unknown", 3), ("committed", 4)]


def test_what_is_added_again_on_another_connection_may_be_a_retry() -> None:
    """The capture saw an answer that the client gave up waiting for."""
    script = Script()
    script.add("a", on="c")
    script.add("a", on="d")
    script.write("a")
    script.end("a", on="d")
    assert brief(script) == [("committed", 3)]


def test_brokers_may_add_twice() -> None:
    """KIP-890: two requests to write to a partition are under way, and the leader asks for each."""
    script = Script()
    script.write("a")
    script.add("broker", on_behalf=True, on="b")
    script.add("broker", on_behalf=True, on="b")
    script.add("broker", on_behalf=True, on="b", partition=1, error=51)
    script.end("a")
    assert brief(script) == [("committed", 3)]


def test_what_is_refused_for_the_moment_was_asked_to_end() -> None:
    script = Script()
    script.add("a")
    script.write("a")
    script.add("a", error=51)
    script.add("a")
    script.write("a", records=4)
    script.end("a", committed=False)
    finished = script.finish()
    assert [(transaction.outcome, transaction.records, transaction.began) for transaction in finished] == [
        ("unknown", 3, 1_000_000),
        ("aborted", 4, 3_000_000),
    ]


@pytest.mark.parametrize("error", [0, 47])
def test_requests_that_may_have_been_lost_may_have_been_an_end(error: int) -> None:
    script = Script()
    script.add("a", holes=1)
    script.write("a")
    script.end("a", holes=2, error=error)
    [first, second] = script.finish()
    assert (first.outcome, first.records, first.ended) == ("unknown", 3, None)
    assert (second.outcome, second.began) == (("committed", None) if error == 0 else ("fenced", 3_000_000))


def test_holes_before_it_and_on_other_connections_leave_an_end_as_it_is() -> None:
    script = Script()
    script.add("a", holes=3)
    script.end("a", holes=3)
    script.add("a", holes=4)
    script.write("a")
    script.end("a", on="d", holes=9)
    assert brief(script) == [("committed", 0), ("committed", 3)]


def test_an_epoch_for_each_transaction_is_as_good_as_hearing_all() -> None:
    """KIP-890: the answer to EndTxn says the next one."""
    script = Script()
    script.add("a")
    script.end("a", given=(7, 1))
    script.write("a")
    script.end("a", epoch=1, holes=1, given=(7, 2))  # whatever was lost, it was no end
    script.write("a", records=4)
    script.end("a", epoch=3, holes=1, given=(7, 4))  # one was, though no hole shows it
    assert brief(script) == [("committed", 0), ("committed", 3), ("unknown", 4), ("committed", None)]


def test_markers_end_what_was_not_heard_to_end() -> None:
    script = Script()
    script.add("a")
    script.write("a")
    script.mark(committed=False)
    script.add("a", partition=1)  # the next has begun
    script.write("a", records=4)
    script.end("a")
    assert brief(script) == [("aborted", 3), ("committed", 4)]


def test_markers_that_contradict_the_end_are_of_a_transaction_before() -> None:
    script = Script()
    script.add("a")
    script.write("a")
    script.mark(committed=True)
    script.end("a", committed=False)
    assert brief(script) == [("committed", 3), ("aborted", None)]


def test_an_end_that_is_asked_again_after_its_markers() -> None:
    script = Script()
    script.add("a")
    script.write("a")
    script.end("a", error=None)
    script.mark()
    script.end("a")
    assert brief(script) == [("committed", 3)]


def test_who_takes_the_id_fences_nobody_whose_transaction_was_committed() -> None:
    script = Script()
    script.init("a", 0)
    script.add("a")
    script.write("a")
    script.mark()
    script.init("b", 1)
    assert brief(script) == [("committed", 3)]


def test_markers_that_say_nothing_for_certain() -> None:
    """Two ends, and nothing between them; markers that may have been lost; a partition that nothing was written to."""
    script = Script()
    script.add("a")
    script.mark(committed=True)
    script.mark(committed=False)
    script.add("a", partition=1)
    script.mark(partition=1, noticed=5)
    script.add("a", partition=2)
    script.mark(partition=3)
    assert brief(script) == [("unknown", 0), ("unknown", 0), ("open", 0)]


def test_an_end_on_a_connection_that_was_not_heard_before_is_not_of_nothing() -> None:
    script = Script()
    script.init("a", 0)
    script.end("a", on="d")
    script.add("a", on="d")
    script.end("a", on="d")
    script.end("a", on="d")  # there, all was heard
    assert [
        (transaction.outcome, transaction.records, transaction.began is None) for transaction in script.finish()
    ] == [
        ("committed", None, True),
        ("committed", 0, False),
        ("committed", 0, False),
    ]


def test_a_duration_is_none_where_the_clock_stepped_back(tmp_path: Path) -> None:
    link, records = loaded(JS / "capture.pcap")
    half = len(records) // 2
    records = [
        record if at < half else replace(record, time_ns=record.time_ns - 10**9) for at, record in enumerate(records)
    ]
    (tmp_path / "capture.pcap").write_bytes(pcap(records, link, nanoseconds=True))
    rows = transactions(tmp_path / "capture.pcap")
    backwards = [row["ended"] < row["began"] for row in rows]
    assert any(backwards)
    assert [row["duration_us"] is None for row in rows] == backwards
