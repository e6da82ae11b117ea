"""Tables `partitions`, `leaders` and `brokers`, against a plain walk over the decoded bodies.

The bodies are what `test_witness.py` proves equal to the brokers' own JSON, so this is the brokers' word too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.bulk import projection
from kwire.analyzer.protocol import schema
from kwire.analyzer.protocol.program import load
from tests.analyzer.forging import answering, asking, fetch, produce, produce_answer, read, request, response
from tests.captures.forge import converse
from tests.shared import capture_files, sample_folders, shared_folder

SHARED = (
    "group-classic-librdkafka-4.3",
    "group-kip848-librdkafka-4.3",
    "group-share-java-4.3",
    "txn-librdkafka-4.3",
    "old-java-0.8.2",
    "old-librdkafka-0.10.2",
    "admin-librdkafka-4.3",
    "errors-librdkafka-4.3",
    "cluster-kraft-3.9",
    "cluster-zk-2.8",
    "idle-longpoll-librdkafka-4.3",
)
EVERY = [f"samples/{folder.name}" for folder in sample_folders()] + list(SHARED)

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def folder_of(name: str) -> Path:
    return next((f for f in sample_folders() if f"samples/{f.name}" == name), None) or shared_folder(name)


# --- the plain walk -------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """A topic-partition as one message names it."""

    section: str | None
    topic: str | None
    topic_id: str | None
    partition: int
    values: dict[str, Any] = field(default_factory=dict)


# Where each API keeps its topics and their partitions: (request, response), each (lists of topics, list of partitions).
TOPICS = {
    0: (("topicData", "partitionData"), ("responses", "partitionResponses")),
    1: (("topics", "partitions"), ("responses", "partitions")),
    2: (("topics", "partitions"), ("topics", "partitions")),
    8: (("topics", "partitions"), ("topics", "partitions")),
    9: (("topics", "partitionIndexes"), ("topics", "partitions")),
    21: (("topics", "partitions"), ("topics", "partitions")),
    23: (("topics", "partitions"), ("topics", "partitions")),
    24: (("v3AndBelowTopics", "partitions"), ("resultsByTopicV3AndBelow", "resultsByPartition")),
    28: (("topics", "partitions"), ("topics", "partitions")),
    47: (("topics", "partitions"), ("topics", "partitions")),
    61: (("topics", "partitionIndexes"), ("topics", "partitions")),
    78: (("topics", "partitions"), ("responses", "partitions")),
    79: (("topics", "partitions"), ("responses", "partitions")),
    90: (("topics", "partitions"), ("topics", "partitions")),
    91: (("topics", "partitions"), ("responses", "partitions")),
}
SECTIONS = {
    9: [("groups", "groupId")],
    24: [("transactions", "transactionalId"), ("resultsByTransaction", "transactionalId")],
    90: [("groups", "groupId")],
}
KINDS = {
    0: "base",
    1: "fetch",
    2: "listed",
    8: "committed",
    9: "committed",
    21: "delete",
    23: "end",
    28: "committed",
    90: "start",
    91: "start",
}
# (API, is response): what the table's columns are called there.
# fmt: off
FIELDS = {
    (0, False): {"record_bytes": "recordsSizeInBytes"},
    (0, True): {"offset": "baseOffset", "log_start_offset": "logStartOffset"},
    (1, False): {"offset": "fetchOffset", "leader_epoch": "currentLeaderEpoch"},
    (1, True): {
        "high_watermark": "highWatermark", "last_stable_offset": "lastStableOffset",
        "log_start_offset": "logStartOffset", "record_bytes": "recordsSizeInBytes",
    },
    (2, False): {"leader_epoch": "currentLeaderEpoch"},
    (2, True): {"offset": "offset", "leader_epoch": "leaderEpoch"},
    (8, False): {"offset": "committedOffset", "leader_epoch": "committedLeaderEpoch"},
    (9, True): {"offset": "committedOffset", "leader_epoch": "committedLeaderEpoch"},
    (21, False): {"offset": "offset"},
    (21, True): {"log_start_offset": "lowWatermark"},
    (23, False): {"leader_epoch": "leaderEpoch"},
    (23, True): {"offset": "endOffset", "leader_epoch": "leaderEpoch"},
    (28, False): {"offset": "committedOffset", "leader_epoch": "committedLeaderEpoch"},
    (78, True): {"record_bytes": "recordsSizeInBytes"},
    (90, True): {"offset": "startOffset", "leader_epoch": "leaderEpoch"},
    (91, False): {"offset": "startOffset"},
}
# fmt: on


SELDOM = ("diverging_offset", "acquired", "redelivered", "delivery_count")


def sides(api: int, response: bool, body: dict[str, Any]) -> Iterator[Side]:
    """The topic-partitions that a body names, in its order."""
    topics_key, partitions_key = TOPICS[api][response]
    if api == 24 and ("resultsByTransaction" if response else "transactions") in body:
        topics_key = "topicResults" if response else "topics"
    parts: list[tuple[str | None, Any]] = [(None, body)]
    for listed, named in SECTIONS.get(api, ()):
        parts += [(section_body[named], section_body) for section_body in body.get(listed, ())]
    for section, part in parts:
        for topic in part.get(topics_key) or []:
            name = topic.get("name") or topic.get("topic") or topic.get("topicName") or None
            topic_id = topic.get("topicId")
            for entry in topic[partitions_key]:
                if isinstance(entry, int):
                    yield Side(section, name, None if topic_id == NO_ID else topic_id, entry)
                    continue
                index = next(entry[key] for key in ("index", "partition", "partitionIndex") if key in entry)
                values = {}
                for column, key in FIELDS.get((api, response), {}).items():
                    value = entry.get(key)
                    if column == "offset" and "oldStyleOffsets" in entry and entry["oldStyleOffsets"]:
                        value = entry["oldStyleOffsets"][0]
                    if value is not None and value >= 0:
                        values[column] = value
                diverging = entry.get("divergingEpoch", {}).get("endOffset", -1)
                if diverging >= 0:
                    values["diverging_offset"] = diverging
                if given := entry.get("acquiredRecords"):
                    again = [some for some in given if some["deliveryCount"] > 1]
                    values["acquired"] = sum(some["lastOffset"] - some["firstOffset"] + 1 for some in given)
                    values["redelivered"] = sum(some["lastOffset"] - some["firstOffset"] + 1 for some in again)
                    values["delivery_count"] = max(some["deliveryCount"] for some in given)
                if response:
                    values["error_code"] = entry.get("errorCode", entry.get("partitionErrorCode"))
                yield Side(section, name, None if topic_id == NO_ID else topic_id, index, values)


def joined(api: int, request: dict[str, Any] | None, response: dict[str, Any] | None) -> list[Side]:
    """Request and response side as rows."""
    rows = list(sides(api, False, request)) if request else []
    waiting = list(rows)
    for answer in sides(api, True, response) if response else ():
        for row in waiting:
            if (row.section, row.topic or row.topic_id, row.partition) == (
                answer.section,
                answer.topic or answer.topic_id,
                answer.partition,
            ):
                row.topic_id = row.topic_id or answer.topic_id
                row.values.update(answer.values)
                waiting.remove(row)
                break
        else:
            rows.append(answer)
    return rows


@pytest.mark.parametrize("name", EVERY)
def test_partitions_are_what_the_bodies_say(name: str) -> None:
    files = [str(path) for path in capture_files(folder_of(name))]
    table = analyzer.analyze(files, rotated=True).partitions.to_pylist()
    expected = []
    for exchange in analyzer.exchanges(files, rotated=True):
        row = exchange.row
        if row["api_key"] not in TOPICS:
            continue
        request = exchange.request if row["request_state"] == "decoded" else None
        response = exchange.response if row["response_state"] == "decoded" else None
        for side in joined(row["api_key"], request, response):
            key = (row["connection"], row["exchange"], row["reply"])
            offset = side.values.get("offset")
            expected.append(
                (
                    *key,
                    side.topic,
                    side.topic_id,
                    side.partition,
                    side.values.get("error_code"),
                    offset,
                    KINDS.get(row["api_key"]) if offset is not None else None,
                    side.values.get("high_watermark"),
                    side.values.get("last_stable_offset"),
                    side.values.get("log_start_offset"),
                    side.values.get("leader_epoch"),
                    side.values.get("record_bytes"),
                    *(side.values.get(name) for name in SELDOM),
                )
            )
    columns = (
        "connection",
        "exchange",
        "reply",
        "topic",
        "topic_id",
        "partition",
        "error_code",
        "offset",
        "offset_kind",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "leader_epoch",
        "record_bytes",
        *SELDOM,
    )
    actual = [tuple(row[column] for column in columns) for row in table]
    assert len(actual) == len(expected)
    assert sorted(actual, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("name", EVERY)
def test_leaders_and_brokers_are_what_metadata_says(name: str) -> None:
    files = [str(path) for path in capture_files(folder_of(name))]
    dataset = analyzer.analyze(files, rotated=True)
    last: dict[tuple[str, int], dict[str, Any]] = {}
    brokers = set()
    names: dict[str, str] = {}
    for exchange in sorted(
        (e for e in analyzer.exchanges(files, rotated=True) if e.row["api_key"] in (3, 75) and e.response),
        key=lambda e: e.row["response_end"],
    ):
        assert exchange.response is not None
        for broker in exchange.response.get("brokers", []):
            brokers.add((broker["nodeId"], broker["host"], broker["port"], broker.get("rack")))
        for topic in exchange.response["topics"]:
            if topic.get("topicId", NO_ID) != NO_ID and topic["name"]:
                names[topic["topicId"]] = topic["name"]
            for partition in topic["partitions"]:
                last[topic["name"], partition["partitionIndex"]] = partition
    actual = {(row["node_id"], row["host"], row["port"], row["rack"]) for row in dataset.brokers.to_pylist()}
    assert brokers <= actual
    assert len(actual) == len(dataset.brokers)
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in dataset.leaders.to_pylist():
        rows.setdefault((row["topic"] or names.get(row["topic_id"], row["topic_id"]), row["partition"]), []).append(row)
    assert rows.keys() >= last.keys()
    for key, partition in last.items():
        described = [row for row in rows[key] if row["isr"] is not None][-1]
        assert described["isr"] == partition["isrNodes"]
        assert described["leader"] == (partition["leaderId"] if partition["leaderId"] >= 0 else None)
        for before, after in zip(rows[key], rows[key][1:], strict=False):
            assert [before[k] for k in ("leader", "leader_epoch", "isr")] != [
                after[k] for k in ("leader", "leader_epoch", "isr")
            ], "only changes are rows"


def test_a_partition_field_stands_before_what_belongs_to_it() -> None:
    """Kernels start a row at the partition's index. Where the error code comes first it has a role of its own."""
    role, _ = projection.roles(load())
    belongs = {
        projection.PART_ERROR,
        projection.PART_OFFSET,
        projection.RECORDS,
        projection.HIGH_WATERMARK,
        projection.LAST_STABLE,
        projection.LOG_START,
        projection.PART_EPOCH,
    }
    kinds = {(info.api_key, info.direction, info.path): int(role[info.id]) for info in load().fields}

    def check(key: tuple[int, int], fields: tuple[schema.Field, ...], early: bool) -> None:
        started = early
        for layout_field in fields:
            kind = kinds.get((*key, layout_field.path), projection.NONE)
            started = started or kind == projection.PARTITION
            assert started or kind not in belongs, (key, layout_field.path)
            assert not started or kind != projection.PART_ERROR_EARLY, (key, layout_field.path)
            # An array of plain numbers is one field here, and its elements start a row each.
            check(key, layout_field.fields, started and layout_field.element is None)

    for api_key, _, direction, layout in schema.layouts():
        if api_key in projection.PARTITION_APIS:
            check((api_key, direction), layout.fields, early=False)


# --- forged exchanges ---------------------------------------------------------------------------------------------


def listing(partitions: list[int]) -> dict[str, Any]:
    """ListOffsets v1 of some partitions."""
    return {
        "replicaId": -1,
        "topics": [{"name": "orders", "partitions": [{"partitionIndex": n, "timestamp": -1} for n in partitions]}],
    }


def listed(partitions: list[int]) -> dict[str, Any]:
    answers = [{"partitionIndex": n, "errorCode": 0, "timestamp": -1, "offset": 100 + n} for n in partitions]
    return {"topics": [{"name": "orders", "partitions": answers}]}


@pytest.mark.parametrize("count", [2, 8, 9, 300])
def test_answers_in_another_order_meet_their_partitions(tmp_path: Path, count: int) -> None:
    partitions_asked, answered = list(range(count)), list(reversed(range(count)))
    result = read(
        tmp_path,
        converse([asking(request(2, 1, 7, listing(partitions_asked))), answering(response(2, 1, 7, listed(answered)))]),
    )
    rows = result.tables["partitions"].to_pylist()
    assert [(row["partition"], row["offset"], row["error_code"]) for row in rows] == [
        (n, 100 + n, 0) for n in partitions_asked
    ]


def test_a_partition_asked_for_twice_is_two_rows(tmp_path: Path) -> None:
    wire = [asking(request(2, 1, 7, listing([5, 5]))), answering(response(2, 1, 7, listed([5])))]
    rows = read(tmp_path, converse(wire)).tables["partitions"].to_pylist()
    assert [(row["partition"], row["offset"], row["error_code"]) for row in rows] == [(5, 105, 0), (5, None, None)]


def test_a_partition_only_the_answer_names_is_a_row(tmp_path: Path) -> None:
    """As in an incremental fetch session (KIP-227), whose requests name what has changed."""
    wire = [asking(request(2, 1, 7, listing([1]))), answering(response(2, 1, 7, listed([2, 1])))]
    rows = read(tmp_path, converse(wire)).tables["partitions"].to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [(1, 101), (2, 102)]


def test_a_request_without_an_answer_keeps_its_partitions(tmp_path: Path) -> None:
    result = read(tmp_path, converse([asking(produce(1, acks=0)), asking(fetch(2))]))
    rows = result.tables["partitions"].to_pylist()
    assert [(row["exchange"], row["topic"], row["partition"], row["error_code"]) for row in rows] == [
        (0, "orders", 0, None),
        (1, "orders", 0, None),
    ]
    assert sorted(result.column("status")) == ["no_response_expected", "unanswered"]


def test_an_error_is_its_partitions_own(tmp_path: Path) -> None:
    wire = [asking(produce(1)), answering(produce_answer(1, error=6)), asking(produce(2)), answering(produce_answer(2))]
    rows = read(tmp_path, converse(wire)).tables["partitions"].to_pylist()
    assert [(row["error_code"], row["error"]) for row in rows] == [(6, "NOT_LEADER_OR_FOLLOWER"), (0, None)]


def test_a_message_with_too_many_partitions_is_the_limits(tmp_path: Path) -> None:
    """Two million partitions in eight megabytes of a DescribeProducers request: counted, not kept."""
    body = {"topics": [{"name": "orders", "partitionIndexes": list(range(2_000_000))}]}
    result = read(tmp_path, converse([asking(produce(1)), asking(request(61, 0, 2, body)), asking(produce(3))]))
    assert result.where(correlation_id=2)["reason"].startswith("request: limit")
    assert result.connection["opaque_limit_bytes"] > 8_000_000
    assert len(result.tables["partitions"]) == 2


def test_groups_of_one_message_are_told_apart(tmp_path: Path) -> None:
    """OffsetFetch v8 asks for several groups (KIP-709); the same partition of each is a row of its own."""

    def group_request(group: str) -> dict[str, Any]:
        return {"groupId": group, "topics": [{"name": "orders", "partitionIndexes": [0]}]}

    def answered(group: str, offset: int) -> dict[str, Any]:
        partition: dict[str, Any] = {"partitionIndex": 0, "committedOffset": offset, "committedLeaderEpoch": 3}
        partition |= {"metadata": "", "errorCode": 0}
        return {"groupId": group, "topics": [{"name": "orders", "partitions": [partition]}], "errorCode": 0}

    wire = [
        asking(request(9, 8, 4, {"groups": [group_request("a"), group_request("b")], "requireStable": False})),
        answering(response(9, 8, 4, {"throttleTimeMs": 0, "groups": [answered("b", 20), answered("a", 10)]})),
    ]
    rows = read(tmp_path, converse(wire)).tables["partitions"].to_pylist()
    assert [(row["offset"], row["leader_epoch"]) for row in rows] == [(10, 3), (20, 3)]
