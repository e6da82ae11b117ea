"""Offsets as replicas are sent them: against what clients committed on the same wire, and forged by hand.

(proves: analyzer/analysis/replicated_offsets.py)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.analysis.offsets import Offsets
from tests.analyzer import forging
from tests.analyzer.analysis.joining import collected
from tests.bench import messages
from tests.captures.forge import Write, converse, pcap, rendered
from tests.shared import capture_files, shared_folder

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"


@pytest.mark.parametrize("name", ["cluster-kraft-3.9", "cluster-zk-2.8"])
def test_what_replicas_are_sent_is_what_clients_committed(name: str) -> None:
    """Two brokers copy the topic from a third: each record is one row, whoever was sent it. The coordinator answers a
    commit when they have it."""
    files = [str(path) for path in capture_files(shared_folder(name))]
    rows = analyzer.analyze(files, rotated=True).tables["offsets"].to_pylist()
    committed = {_place(row): row["time"] for row in reversed(rows) if row["kind"] == "commit" and row["error"] is None}
    copied = [row for row in rows if row["kind"] == "replica"]
    assert len(copied) > 8
    assert {_place(row) for row in copied} <= set(committed)
    assert sum(row["time"] < committed[_place(row)] for row in copied) > len(copied) / 2
    steps = [row for row in copied if row["previous"] is not None]
    assert steps
    assert all(row["step"] == row["offset"] - row["previous"] for row in steps)


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["group_id"], row["topic"], row["partition"], row["offset"]


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit(number: int, offset: int | None, group: str = "g", key: int = 1) -> bytes:
    """A record as GroupMetadataManager writes it (value version 3), None: a tombstone."""
    named = struct.pack(">h", key) + _text(group) + _text("orders") + bytes(4)
    if offset is not None:
        return messages.record(number, named, struct.pack(">hqi", 3, offset, 7) + _text("") + struct.pack(">q", 1))
    whole = messages.record(number, named, b"")[1:]  # both lengths take a byte; an empty value's is 0, none's is -1
    return messages.varint(len(whole)) + whole[:-2] + messages.varint(-1) + whole[-1:]


def copies(number: int, topic_id: str, records: list[bytes], replica: int = 2) -> list[Write]:
    """A Fetch v13 of a replica, which names topics by their ids."""
    place = {
        "partition": 7,
        "currentLeaderEpoch": 1,
        "fetchOffset": 0,
        "logStartOffset": 0,
        "partitionMaxBytes": 1 << 20,
    }
    request = {
        "replicaId": replica,
        "maxWaitMs": 500,
        "minBytes": 1,
        "maxBytes": 1 << 20,
        "isolationLevel": 0,
        "sessionId": 0,
        "sessionEpoch": -1,
        "forgottenTopicsData": [],
        "rackId": "",
        "topics": [{"topicId": topic_id, "partitions": [place]}],
    }
    answer = {
        "partitionIndex": 7,
        "errorCode": 0,
        "highWatermark": 9,
        "lastStableOffset": 9,
        "logStartOffset": 0,
        "abortedTransactions": None,
        "preferredReadReplica": -1,
        "records": messages.batch(records),
    }
    response = {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "sessionId": 0,
        "responses": [{"topicId": topic_id, "partitions": [answer]}],
    }
    return [
        forging.asking(forging.request(forging.FETCH, 13, number, request)),
        forging.answering(forging.response(forging.FETCH, 13, number, response)),
    ]


def named(number: int, topic_id: str, topic: str) -> list[Write]:
    """Metadata v12 that says a topic's id and name."""
    request = {
        "topics": [{"topicId": topic_id, "name": topic}],
        "allowAutoTopicCreation": False,
        "includeTopicAuthorizedOperations": False,
    }
    response = {
        "throttleTimeMs": 0,
        "clusterId": "c",
        "controllerId": 1,
        "brokers": [],
        "topics": [
            {
                "errorCode": 0,
                "name": topic,
                "topicId": topic_id,
                "isInternal": True,
                "partitions": [],
                "topicAuthorizedOperations": 0,
            }
        ],
    }
    return [
        forging.asking(forging.request(forging.METADATA, 12, number, request)),
        forging.answering(forging.response(forging.METADATA, 12, number, response)),
    ]


def written(folder: Path, *parts: list[Write]) -> Path:
    path = folder / "capture.pcap"
    path.write_bytes(pcap(rendered(converse([write for part in parts for write in part]))))
    return path


ROWS = [("g", "orders", 0, 40, None, 7), ("g", "orders", 0, 43, 40, 7), ("g", "orders", 0, None, 43, None)]


def replicated(path: Path, **how: Any) -> list[tuple[Any, ...]]:
    names = ("group_id", "topic", "partition", "offset", "previous", "leader_epoch")
    rows = [row for row in analyzer.analyze(str(path), **how).offsets.to_pylist() if row["kind"] == "replica"]
    return [tuple(row[name] for name in names) for row in rows]


def test_a_record_is_one_row_whoever_is_sent_it_again(tmp_path: Path) -> None:
    sent = [commit(0, 40), commit(1, 43), commit(2, None)]
    name = named(1, forging.TOPIC_ID, "__consumer_offsets")
    path = written(tmp_path, name, copies(2, forging.TOPIC_ID, sent[:2]), copies(3, forging.TOPIC_ID, sent))
    assert replicated(path) == ROWS
    assert replicated(path, records="none") == []
    whole = collected(path, Offsets)["offsets"]
    assert collected(path, Offsets, window_bytes=500)["offsets"] == whole


def test_a_topic_that_nobody_names_is_known_by_what_its_records_are(tmp_path: Path) -> None:
    assert replicated(written(tmp_path, copies(2, forging.TOPIC_ID, [commit(0, 40), commit(1, 43), commit(2, None)])))
    strange = [commit(0, 40), messages.record(1, b"\x00\x01no", b"offset")]
    assert replicated(written(tmp_path, copies(2, OTHER_ID, strange))) == []


@pytest.mark.parametrize(("replica", "topic"), [(-1, "__consumer_offsets"), (2, "orders")])
def test_consumers_and_other_topics_are_left_alone(tmp_path: Path, replica: int, topic: str) -> None:
    name = named(1, forging.TOPIC_ID, topic)
    assert replicated(written(tmp_path, name, copies(2, forging.TOPIC_ID, [commit(0, 40)], replica))) == []
