"""Which side asks, where the beginning of a connection was not captured: an answer is not taken for a request.

(proves: analyzer/bulk/resync.py. The header of a request, `[API][version][correlation id][client id]`, fits on the
beginning of an old answer, `[correlation id][how many topics][topic]`: a Produce of the version that is the number.)
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from kwire import analyzer
from tests.analyzer import forging
from tests.analyzer.forging import answering, asking, batch, produce, produce_answer, read, request, response
from tests.captures.forge import Write, converse, cut, loaded, pcap, rendered
from tests.shared import shared_folder

OFFSET_COMMIT, LIST_OFFSETS = 8, 2


def commit(number: int) -> bytes:
    """OffsetCommit v2."""
    partition = {"partitionIndex": 0, "committedOffset": 7, "committedMetadata": ""}
    body = {
        "groupId": "g",
        "generationIdOrMemberEpoch": 1,
        "memberId": "m",
        "retentionTimeMs": -1,
        "topics": [{"name": "orders", "partitions": [partition]}],
    }
    return request(OFFSET_COMMIT, 2, number, body)


def committed(number: int) -> bytes:
    """Its answer, which is a whole Produce v0 to v2 without topics, and without an answer."""
    partitions = [{"partitionIndex": 0, "errorCode": 0}]
    return response(OFFSET_COMMIT, 2, number, {"topics": [{"name": "orders", "partitions": partitions}]})


def listing(number: int) -> bytes:
    """ListOffsets v1."""
    partitions = [{"partitionIndex": 0, "timestamp": -1}]
    return request(LIST_OFFSETS, 1, number, {"replicaId": -1, "topics": [{"name": "orders", "partitions": partitions}]})


def listed(number: int) -> bytes:
    """Its answer, which is a Produce with some bytes behind it."""
    partitions = [{"partitionIndex": 0, "errorCode": 0, "timestamp": -1, "offset": 7}]
    return response(LIST_OFFSETS, 1, number, {"topics": [{"name": "orders", "partitions": partitions}]})


PAIRS = {"OffsetCommit": (commit, committed), "ListOffsets": (listing, listed)}


@pytest.mark.parametrize("first", [0, 1, 2, 5, 8, 14, 20])
@pytest.mark.parametrize("api", PAIRS)
def test_an_answer_that_is_captured_first(api: str, first: int, tmp_path: Path) -> None:
    ask, answer = PAIRS[api]
    writes = [answering(answer(first))]
    for number in range(first + 1, first + 6):
        writes += [asking(ask(number)), answering(answer(number))]
    seen = read(tmp_path, converse(writes, handshake=False, close=None))
    assert seen.connection["broker_port"] == 9092
    requests = [row for row in seen.exchanges if row["exchange"] is not None]
    assert [(row["api"], row["correlation_id"], row["status"]) for row in requests] == [
        (api, number, "answered") for number in range(first + 1, first + 6)
    ]


@pytest.mark.parametrize("api", PAIRS)
def test_answers_alone_say_nothing(api: str, tmp_path: Path) -> None:
    answers = [answering(PAIRS[api][1](number)) for number in range(20)]
    seen = read(tmp_path, converse(answers, handshake=False, close=None))
    assert seen.connections == []
    assert seen.unrecognised["connections"] == 1


@pytest.mark.parametrize("first", [1, 5, 14])
def test_an_answer_that_the_snap_length_cut(first: int, tmp_path: Path) -> None:
    many = [{"partitionIndex": index, "errorCode": 0, "timestamp": -1, "offset": 7} for index in range(50)]
    whole = response(LIST_OFFSETS, 1, first, {"topics": [{"name": "orders", "partitions": many}]})
    writes = [answering(whole), *(asking(listing(first + 1 + turn)) for turn in range(3))]
    seen = read(tmp_path, cut(rendered(list(converse(writes, handshake=False, close=None))), 54 + 60))
    assert seen.connection["broker_port"] == 9092
    assert [row["api"] for row in seen.exchanges if row["exchange"] is not None] == ["ListOffsets"] * 3


@pytest.mark.parametrize("version", [2, 3, 8, 9, 12])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_a_producer_of_which_all_is_cut_still_asks(version: int, acks: int, tmp_path: Path) -> None:
    writes: list[Write] = []
    for number in range(1, 5):
        writes.append(asking(produce(number, version, acks, batch(20))))
        if acks:
            writes.append(answering(produce_answer(number, version)))
    seen = read(tmp_path, cut(rendered(list(converse(writes, handshake=False, close=None))), 54 + 60))
    assert seen.connection["broker_port"] == 9092
    assert seen.connection["requests"] == 4


def test_two_requests_of_a_version_of_the_future_vouch_for_each_other(tmp_path: Path) -> None:
    def ask(number: int) -> bytes:
        return forging.framed(struct.pack(">hhih", 0, 15, number, 6) + b"orders" + bytes(range(1, 60)))

    seen = read(tmp_path, converse([asking(ask(number)) for number in range(40, 44)], handshake=False, close=None))
    assert seen.connection["broker_port"] == 9092
    assert [(row["api"], row["api_version"], row["correlation_id"]) for row in seen.exchanges] == [
        ("Produce", 15, number) for number in range(40, 44)
    ]


REAL = {
    "old-java-0.8.2": 9092,
    "old-librdkafka-0.10.2": 9092,
    "old-librdkafka-1.3.0-on-3.9": 9392,
    "zoo-kafka-go-0.4.51-on-4.3": 9510,
    "zoo-kafka-python-1.0.2-on-0.9": 9520,
    "zoo-pykafka-2.8-on-2.8": 9500,
    "zoo-sasl-raw-sarama-1.19": 9544,
    "snaplen-96-4.3": 9092,
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_capture_that_begins_anywhere_names_no_broker_as_a_client(name: str, tmp_path: Path) -> None:
    link, records = loaded(shared_folder(name) / "capture.pcap")
    rng = random.Random(name)
    for _ in range(20):
        start = rng.randrange(len(records) - 5)
        kept_records = [record for record in records[start : start + 300] if rng.random() > 0.1]
        path = tmp_path / "capture.pcap"
        path.write_bytes(pcap(kept_records, link, nanoseconds=True))
        connections = analyzer.analyze(path, records="none", meaning=False).connections
        assert set(connections["broker_port"].to_pylist()) <= {REAL[name]}, f"from packet {start}"
