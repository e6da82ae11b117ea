"""Commits and resets: against the bodies read one by one, against what happened, in any number of shares.

(proves: analyzer/analysis/offsets.py, reader_positions.py, event_columns.py)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.analysis.event_columns import EVENT_ORDER
from kwire.analyzer.analysis.offsets import Offsets
from kwire.analyzer.frame.log import Log
from kwire.analyzer.protocol.api_keys import OFFSET_COMMIT
from kwire.captures.kernels import NULL
from tests.analyzer import forging
from tests.analyzer.analysis.joining import collected
from tests.captures.forge import START_NS, Write, converse, interleaved
from tests.shared import SAMPLES, capture_files, real_folder

TXN = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
OLD = SAMPLES / "old-java-0.8.2" / "capture.pcap"


def _body(body: dict[str, Any] | None) -> dict[str, Any]:
    assert body is not None
    return body


def slowly(capture: Path) -> list[tuple[Any, ...]]:
    """Commits as the bodies of requests and answers say them, in order of their answers."""
    every = [
        exchange
        for exchange in analyzer.exchanges(capture)
        if exchange.api in ("OffsetCommit", "TxnOffsetCommit", "EndTxn")
    ]
    every.sort(key=lambda exchange: exchange.response_end or exchange.request_end)
    outcome: dict[int, bool] = {}
    for i, exchange in enumerate(every):
        if exchange.api == "TxnOffsetCommit":
            ends = (
                end for end in every[i:] if end.api == "EndTxn" and end.transactional_id == exchange.transactional_id
            )
            outcome[i] = next((_body(end.request)["committed"] for end in ends if end.error_code == 0), False)
    last: dict[tuple[Any, ...], int] = {}
    rows = []
    for i, exchange in enumerate(every):
        if exchange.api == "EndTxn":
            continue
        zookeeper = exchange.api == "OffsetCommit" and exchange.api_version == 0
        kind = "zookeeper" if zookeeper else "commit" if exchange.api == "OffsetCommit" else "txn_commit"
        request, response = _body(exchange.request), _body(exchange.response)
        for requested, answered in zip(request["topics"], response["topics"], strict=True):
            for part, answer in zip(requested["partitions"], answered["partitions"], strict=True):
                key = zookeeper, request["groupId"], requested["name"], part["partitionIndex"]
                offset, before = part["committedOffset"], last.get(key)
                step = offset - before if before is not None else None
                rows.append((*key[1:], kind, offset, before, step, exchange.connection, exchange.exchange))
                if answer["errorCode"] == 0 and outcome.get(i, True):
                    last[key] = offset
    return rows


@pytest.mark.parametrize(
    "name", ["txn-librdkafka-4.3", "old-java-0.8.2", "group-kip848-librdkafka-4.3", "group-classic-librdkafka-4.3"]
)
def test_commits_are_what_the_bodies_say(name: str) -> None:
    capture = capture_files(real_folder(name))[0]
    rows = analyzer.analyze(capture).tables["offsets"].to_pylist()
    actual = [
        (
            row["group_id"],
            row["topic"],
            row["partition"],
            row["kind"],
            row["offset"],
            row["previous"],
            row["step"],
            row["connection"],
            row["exchange"],
        )
        for row in rows
        if row["kind"] != "reset"
    ]
    expected = slowly(capture)
    assert sorted(map(repr, actual)) == sorted(map(repr, expected))
    assert expected


def test_commits_to_zookeeper_and_what_the_coordinator_refused_are_told_apart() -> None:
    rows = analyzer.analyze(OLD).tables["offsets"].to_pylist()
    kinds = {(row["group_id"], row["kind"], row["error"]) for row in rows if row["kind"] != "reset"}
    assert kinds >= {
        ("old-group-v0", "zookeeper", None),
        ("old-group-v1", "commit", "COORDINATOR_NOT_AVAILABLE"),
    }


def test_a_simple_consumer_that_was_out_of_range_and_one_that_began_at_the_start() -> None:
    rows = [row for row in analyzer.analyze(OLD).tables["offsets"].to_pylist() if row["kind"] == "reset"]
    refused = [row for row in rows if row["error"] is not None]
    assert [(row["client_id"], row["previous"], row["offset"], row["error"]) for row in refused] == [
        ("old-simple", 999999, None, "OFFSET_OUT_OF_RANGE")
    ] * 3
    began = [row for row in rows if row["error"] is None]
    assert {(row["client_id"], row["group_id"], row["offset"]) for row in began} == {("old-hl", "old-hl", 0)}
    assert len(began) == 3


@pytest.mark.parametrize("capture", [TXN, OLD, capture_files(SAMPLES / "group-kip848-librdkafka-4.3")[0]])
def test_shares_and_windows_change_nothing(capture: Path) -> None:
    whole = collected(capture, Offsets)["offsets"]
    assert len(whole) > 10
    assert collected(capture, Offsets, shares=3)["offsets"] == whole
    assert collected(capture, Offsets, window_bytes=4096)["offsets"] == whole


def committing(number: int, offset: int, time_ns: int) -> list[Write]:
    """A commit of one partition, and its answer a millisecond later."""
    request = {
        "groupId": "g",
        "generationIdOrMemberEpoch": -1,
        "memberId": "",
        "retentionTimeMs": -1,
        "topics": [
            {
                "name": "orders",
                "partitions": [{"partitionIndex": 0, "committedOffset": offset, "committedMetadata": None}],
            }
        ],
    }
    response = {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    return [
        forging.asking(forging.request(OFFSET_COMMIT, 2, number, request), time_ns),
        forging.answering(forging.response(OFFSET_COMMIT, 2, number, response), time_ns + 1_000_000),
    ]


def test_what_stands_behind_a_lost_packet_is_no_later_commit(tmp_path: Path) -> None:
    second = 10**9
    whole = converse([*forging.turns([1]), *committing(2, 10, START_NS + second)], acks=False, close=None)
    lost = forging.payloads(whole, to_broker=False)[0]
    other = converse(committing(1, 20, START_NS + 2 * second), client=("10.0.0.1", 40001), close=None)
    forging.read(tmp_path, interleaved(forging.without(whole, lost), other))
    rows = analyzer.analyze(tmp_path / "capture.pcap").tables["offsets"].to_pylist()
    # The lost packet is given up last, so that the first commit is the last one known of.
    assert [(row["offset"], row["previous"], row["step"]) for row in rows] == [(20, 10, 10), (10, None, None)]


def test_topics_of_which_only_ids_are_known_are_not_one_another(tmp_path: Path) -> None:
    """OffsetCommit says ids from its version 10 on; a capture that begins midway may lack their names."""
    ids = ("r-4vlSNsTw2Wmvo_qD_U_A", "s-4vlSNsTw2Wmvo_qD_U_A")
    writes = []
    for number, offsets in enumerate(((100, 0), (110, 0)), 1):
        request = {
            "groupId": "g",
            "generationIdOrMemberEpoch": 1,
            "memberId": "m",
            "groupInstanceId": None,
            "topics": [
                {
                    "topicId": topic_id,
                    "partitions": [
                        {
                            "partitionIndex": 0,
                            "committedOffset": offset,
                            "committedLeaderEpoch": -1,
                            "committedMetadata": "",
                        }
                    ],
                }
                for topic_id, offset in zip(ids, offsets, strict=True)
            ],
        }
        parts = [{"topicId": topic_id, "partitions": [{"partitionIndex": 0, "errorCode": 0}]} for topic_id in ids]
        writes += [
            forging.asking(forging.request(OFFSET_COMMIT, 10, number, request)),
            forging.answering(forging.response(OFFSET_COMMIT, 10, number, {"throttleTimeMs": 0, "topics": parts})),
        ]
    forging.read(tmp_path, converse(writes, close=None))
    rows = analyzer.analyze(tmp_path / "capture.pcap").tables["offsets"].to_pylist()
    actual = {(row["topic"], row["topic_id"], row["offset"], row["previous"]) for row in rows}
    assert actual == {
        (None, ids[0], 100, None),
        (None, ids[0], 110, 100),
        (None, ids[1], 0, None),
        (None, ids[1], 0, 0),
    }


# --- readers, forged --------------------------------------------------------------------------------------------------


def fetching(number: int, offset: int, error: int = 0) -> list[Write]:
    """A fetch of one partition that gives no record."""
    request = {
        "replicaId": -1,
        "maxWaitMs": 500,
        "minBytes": 1,
        "maxBytes": 1 << 20,
        "isolationLevel": 0,
        "topics": [
            {"topic": "orders", "partitions": [{"partition": 0, "fetchOffset": offset, "partitionMaxBytes": 1 << 20}]}
        ],
    }
    response = {
        "throttleTimeMs": 0,
        "responses": [
            {
                "topic": "orders",
                "partitions": [
                    {
                        "partitionIndex": 0,
                        "errorCode": error,
                        "highWatermark": 900,
                        "lastStableOffset": 900,
                        "abortedTransactions": None,
                        "records": None,
                    }
                ],
            }
        ],
    }
    return [
        forging.asking(forging.request(forging.FETCH, 4, number, request)),
        forging.answering(forging.response(forging.FETCH, 4, number, response)),
    ]


def listing(number: int, timestamp: int, offset: int, error: int = 0) -> list[Write]:
    request = {
        "replicaId": -1,
        "topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "timestamp": timestamp}]}],
    }
    response = {
        "topics": [
            {
                "name": "orders",
                "partitions": [{"partitionIndex": 0, "errorCode": error, "timestamp": -1, "offset": offset}],
            }
        ]
    }
    return [
        forging.asking(forging.request(forging.LIST_OFFSETS, 1, number, request)),
        forging.answering(forging.response(forging.LIST_OFFSETS, 1, number, response)),
    ]


def resets(folder: Path, *conversation: list[Write]) -> list[tuple[Any, ...]]:
    writes = [write for part in conversation for write in part]
    path = folder / "capture.pcap"
    forging.read(folder, converse(writes))
    rows = analyzer.analyze(path).tables["offsets"].to_pylist()
    assert {row["kind"] for row in rows} <= {"reset"}
    return [(row["previous"], row["offset"], row["step"], row["error"], row["exchange"]) for row in rows]


def test_out_of_range_then_the_earliest(tmp_path: Path) -> None:
    rows = resets(tmp_path, fetching(1, 5), fetching(2, 5, error=1), listing(3, -2, 100), fetching(4, 100))
    assert rows == [(5, 100, 95, "OFFSET_OUT_OF_RANGE", 1)]


def test_out_of_range_again_and_again_and_never_elsewhere(tmp_path: Path) -> None:
    rows = resets(tmp_path, fetching(1, 5, error=1), fetching(2, 5, error=1))
    assert rows == [(5, None, None, "OFFSET_OUT_OF_RANGE", 0), (5, None, None, "OFFSET_OUT_OF_RANGE", 1)]


def test_a_reader_begins_at_the_end_and_one_that_only_looks_at_it_goes_on(tmp_path: Path) -> None:
    assert resets(tmp_path, listing(1, -1, 900), fetching(2, 900)) == [(None, 900, None, None, 0)]
    assert resets(tmp_path, fetching(1, 900), listing(2, -1, 900), fetching(3, 900)) == []
    assert resets(tmp_path, fetching(1, 7), listing(2, -1, 900), fetching(3, 7)) == []


def test_moves_that_nobody_told_a_reader_to_make_change_nothing(tmp_path: Path) -> None:
    """It jumps about before, between and after; of these jumps only the first and the last of a window are kept."""
    talk = [
        fetching(1, 7),
        fetching(2, 3),
        fetching(3, 50),
        listing(4, -1, 900),
        fetching(5, 900),
        fetching(6, 4),
        fetching(7, 60),
        fetching(8, 12),
        fetching(9, 12, error=1),
        fetching(10, 100),
        fetching(11, 2),
        fetching(12, 1),
    ]
    expected = [(50, 900, 850, None, 3), (12, 100, 88, "OFFSET_OUT_OF_RANGE", 8)]
    assert resets(tmp_path, *talk) == expected
    whole = collected(tmp_path / "capture.pcap", Offsets)["offsets"]
    for window_bytes in (400, 900, 2000):
        assert collected(tmp_path / "capture.pcap", Offsets, window_bytes=window_bytes)["offsets"] == whole


def test_a_reset_that_is_refused(tmp_path: Path) -> None:
    rows = resets(tmp_path, fetching(1, 5, error=1), listing(2, -2, -1, error=6), listing(3, -2, 50), fetching(4, 50))
    assert rows == [
        (5, 50, 45, "OFFSET_OUT_OF_RANGE", 0),
        (5, None, None, "NOT_LEADER_OR_FOLLOWER", 1),
    ]


def test_texts_of_joined_logs_have_numbers_of_their_own() -> None:
    columns = ("completed_by", "serial", "who")
    first, second = (Log(columns, ("who",), EVENT_ORDER) for _ in range(2))

    def rows(*values: tuple[int, int, int]) -> dict[str, np.ndarray]:
        return dict(zip(columns, np.array(values, np.int64).T, strict=True))

    first.append(rows((5, 0, 2), (7, 0, NULL)), ["x", "y", "ann"], [])
    second.append(rows((6, 1, 0), (5, 1, 1)), ["ben", "ann"], [])
    first.join(second)
    merged = first.read()
    assert merged["completed_by"].tolist() == [5, 5, 6, 7]
    assert [first.text(who) for who in merged["who"].tolist()] == ["ann", "ann", "ben", None]
