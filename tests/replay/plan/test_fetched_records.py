"""Records that were read and not produced: which they are, and that they are written before a replay.

Proves: replay/plan/fetched_records.py, replay/send/seeding_records.py
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.replay import run
from kwire.replay.diff import pairs, text
from kwire.replay.diff.compare import compare
from kwire.replay.options import Options
from kwire.replay.plan import batches, fetched_records
from kwire.replay.plan.cluster import Cluster
from kwire.replay.send import seeding
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource
from tests.replay.conversation import Captured, play
from tests.replay.forging import batch
from tests.replay.shop import ORDERS, Shop, captured

COMMIT = 1


def fetch(records: bytes, aborted: list[tuple[int, int]] | None = None) -> Captured:
    """A reader of orders-0."""
    part = {"partition": 0, "currentLeaderEpoch": -1, "fetchOffset": 0, "logStartOffset": -1, "partitionMaxBytes": 1}
    request_body = {
        "replicaId": -1,
        "maxWaitMs": 1,
        "minBytes": 1,
        "maxBytes": 1,
        "isolationLevel": 1,
        "sessionId": 0,
        "sessionEpoch": -1,
        "topics": [{"topic": ORDERS, "partitions": [part]}],
        "forgottenTopicsData": [],
        "rackId": "",
    }
    aborted_transactions = [{"producerId": producer, "firstOffset": first} for producer, first in aborted or ()]
    answer = {
        "errorCode": 0,
        "sessionId": 0,
        "responses": [
            {
                "topic": ORDERS,
                "partitions": [
                    {
                        "partitionIndex": 0,
                        "errorCode": 0,
                        "highWatermark": 9,
                        "lastStableOffset": 9,
                        "logStartOffset": 0,
                        "abortedTransactions": aborted_transactions,
                        "preferredReadReplica": -1,
                        "records": records,
                    }
                ],
            }
        ],
    }
    return Captured().add(1.0, api_keys.FETCH, 11, request_body, answer)


def unproduced(*some: Captured) -> fetched_records.Fetched:
    return fetched_records.unproduced([capture.session() for capture in some], Cluster())


def test_what_was_produced_meanwhile_is_left_to_the_replay() -> None:
    """Two records were there; two batches in one answer were produced, one to another partition at the same offset."""
    writer = Captured("10.0.0.2:1-10.0.0.9:9092#1")
    part = {"index": 0, "records": batch("mine")}
    topics = [{"name": ORDERS, "partitionData": [part]}]
    request_body = {"transactionalId": None, "acks": -1, "timeoutMs": 1, "topicData": topics}
    answer_body = {"index": 0, "errorCode": 0, "baseOffset": 2, "logAppendTimeMs": -1, "logStartOffset": 0}
    writer.add(
        0.0, api_keys.PRODUCE, 7, request_body, {"responses": [{"name": ORDERS, "partitionResponses": [answer_body]}]}
    )
    there = batch("a", "b", producer=7, base_offset=0)
    reader = fetch(there + batch("mine", base_offset=2) + batch("other", base_offset=3))
    some = unproduced(writer, reader, fetch(there)).batches
    assert [(offset, count) for offset, count, _ in some[ORDERS, 0]] == [(0, 2), (3, 1)]
    first = some[ORDERS, 0][0][2]
    (header,) = batches.batches(first)
    assert (header.base_offset, header.producer_id, header.base_sequence, header.attributes) == (0, -1, -1, 0)
    sealed = bytearray(first)
    batches.seal(sealed, 0, len(sealed))
    assert sealed == first  # its checksum is right
    assert first[batches.HEADER :] == there[batches.HEADER :]


def test_aborted_transactions_and_markers_are_no_records() -> None:
    log = [
        batch("aborted", producer=5, base_offset=0, transactional=True),
        batch("kept", producer=6, base_offset=1, transactional=True),
        batch(producer=5, base_offset=2, control=0),
        batch(producer=6, base_offset=3, control=COMMIT),
        batch("kept too", producer=5, base_offset=4, transactional=True),
        batch(producer=5, base_offset=5, control=COMMIT),
    ]
    some = unproduced(fetch(b"".join(log), [(5, 0)])).batches[ORDERS, 0]
    assert [offset for offset, *_ in some] == [1, 4]
    assert all(not batches.produced(data)[0].transactional for *_, data in some)


def test_what_could_not_be_produced_is_counted() -> None:
    holes = bytearray(batch("a", "b", base_offset=0))
    struct.pack_into(">i", holes, 23, 5)  # the last of its records is five behind the first
    batches.seal(holes, 0, len(holes))
    old = b"\0" * 8 + struct.pack(">i", 14) + b"\0" * 4 + b"\0" + b"\0" * 9
    assert unproduced(fetch(bytes(holes))).left_out == {fetched_records.HOLES: 1}
    assert unproduced(fetch(old)).left_out == {fetched_records.NO_BATCHES: 1}
    assert not unproduced(fetch(b"")).batches


def test_records_of_a_topic_that_nothing_names_are_counted() -> None:
    unknown = "zizHtibnSdSFmiPSHtiLWA"
    part = {
        "partition": 0,
        "currentLeaderEpoch": -1,
        "fetchOffset": 0,
        "lastFetchedEpoch": -1,
        "logStartOffset": -1,
        "partitionMaxBytes": 1,
    }
    request_body = {
        "maxWaitMs": 1,
        "minBytes": 1,
        "maxBytes": 1,
        "isolationLevel": 1,
        "sessionId": 0,
        "sessionEpoch": -1,
        "topics": [{"topicId": unknown, "partitions": [part]}],
        "forgottenTopicsData": [],
        "rackId": "",
    }
    answer = {
        "errorCode": 0,
        "sessionId": 0,
        "responses": [
            {
                "topicId": unknown,
                "partitions": [
                    {
                        "partitionIndex": 0,
                        "errorCode": 0,
                        "highWatermark": 9,
                        "lastStableOffset": 9,
                        "logStartOffset": 0,
                        "abortedTransactions": [],
                        "preferredReadReplica": -1,
                        "records": batch("a"),
                    }
                ],
            }
        ],
    }
    some = unproduced(Captured().add(1.0, api_keys.FETCH, 13, request_body, answer))
    assert (some.left_out, some.batches) == ({fetched_records.UNNAMED: 1}, {})


def test_times_can_be_moved() -> None:
    before = unproduced(fetch(batch("a")))
    after = fetched_records.shifted(before, 5000)
    ((_, _, was),), ((_, _, now),) = before.batches[ORDERS, 0], after.batches[ORDERS, 0]
    assert batches.produced(now)[0].base_timestamp - batches.produced(was)[0].base_timestamp == 5000
    assert fetched_records.shifted(before, 0) is before


def at(shop: Shop, out: Path, **options: Any) -> tuple[run.Result, list[str]]:
    """The reader alone, without those that wrote."""
    *_, reader = captured()
    notes: list[str] = []
    wanted = Options(shop.host, 9092, settings=Settings(speed=None), audit=False, **options)
    return play(run.replay(MemorySource([reader.session()]), wanted, shop.dial, out, notes)), notes


def test_a_reader_alone_reads_what_it_read(tmp_path: Path) -> None:
    """Without them it finds nothing, which is told; with them the same answers, record by record."""
    at(Shop(), tmp_path / "without")
    without = compare(pairs.from_run(tmp_path / "without"))
    assert list(without.differences)
    shop = Shop()
    _, notes = at(shop, tmp_path / "with", seed_fetched=True)
    assert notes == ["--seed-fetched: wrote 121 records of 2 partitions, which the capture shows being read"]
    assert [log.end for (name, _), log in shop.logs.items() if name == ORDERS] == [60, 61]
    comparison = compare(pairs.from_run(tmp_path / "with"))
    assert list(comparison.differences) == []
    assert text.as_text(comparison, ("captured", "replayed")).startswith("verdict: same answers, not audited")
    # A second time they would be there twice.
    with pytest.raises(seeding.NotEmptyError):
        at(shop, tmp_path / "again", seed_fetched=True)


def test_a_partition_that_the_target_lacks_or_refuses_is_told(tmp_path: Path) -> None:
    _, notes = at(Shop(partitions=1), tmp_path / "fewer", seed_fetched=True, partial=True)
    assert "--seed-fetched: orders-1: the target has no such partition; --seed-topics makes topics" in notes
    _, notes = at(Shop(no_write=frozenset((ORDERS,))), tmp_path / "refused", seed_fetched=True)
    assert "--seed-fetched: orders-0: TOPIC_AUTHORIZATION_FAILED (29)" in notes
