"""Read several captures at once, and names that a capture gives only after their first use."""

from __future__ import annotations

from pathlib import Path

import pytest

from kwire import analyzer
from kwire.analyzer.pipeline.read_options import ReadOptions
from tests.analyzer.forging import answering, asking, heartbeat, heartbeat_answer, request, response, turns
from tests.captures.forge import Segment, converse, pcap, rendered
from tests.shared import SAMPLES, capture_files

ORDERS_ID = "ObXz43PrTLe1nQPaj6eWiQ"


def written(path: Path, segments: list[Segment]) -> str:
    path.write_bytes(pcap(rendered(segments, 1), 1, nanoseconds=True))
    return str(path)


def halves(folder: Path) -> tuple[str, str]:
    """Write one capture, rotated in the middle of its connection."""
    segments = list(converse(turns(range(20))))
    middle = len(segments) // 2
    return written(folder / "one.pcap", segments[:middle]), written(folder / "two.pcap", segments[middle:])


def test_a_file_that_goes_on_with_anothers_connections_gets_a_hint(tmp_path: Path) -> None:
    first, second = halves(tmp_path)
    assert analyzer.analyze([first, second]).hints == [
        "two.pcap goes on with 1 connection of one.pcap: --rotated reads them as one capture"
    ]
    assert analyzer.analyze([second, first]).hints == analyzer.analyze([first, second]).hints, "whatever their order"


def test_no_hint_where_nothing_is_continued(tmp_path: Path) -> None:
    first, second = halves(tmp_path)
    assert analyzer.analyze([first, second], rotated=True).hints == []
    whole = written(tmp_path / "whole.pcap", list(converse(turns(range(3)))))
    assert analyzer.analyze([first, whole]).hints == [], "its connection was opened in it"
    same_time = written(tmp_path / "other-side.pcap", list(converse(turns(range(20))))[4:])
    assert analyzer.analyze([first, same_time]).hints == [], "captured at the same time, at another place"


def id_before_name(folder: Path) -> str:
    """Write a capture with a Fetch by topic id, and Metadata that names the topic afterwards."""
    fetch_body = {
        "maxWaitMs": 500,
        "minBytes": 1,
        "maxBytes": 1000,
        "isolationLevel": 0,
        "sessionId": 0,
        "sessionEpoch": -1,
        "topics": [
            {
                "topicId": ORDERS_ID,
                "partitions": [
                    {
                        "partition": 0,
                        "currentLeaderEpoch": -1,
                        "fetchOffset": 0,
                        "lastFetchedEpoch": -1,
                        "logStartOffset": -1,
                        "partitionMaxBytes": 100,
                    }
                ],
            }
        ],
        "forgottenTopicsData": [],
        "rackId": "",
    }
    metadata_body = {
        "topics": None,
        "allowAutoTopicCreation": False,
        "includeClusterAuthorizedOperations": False,
        "includeTopicAuthorizedOperations": False,
    }
    metadata_answer = {
        "throttleTimeMs": 0,
        "brokers": [],
        "clusterId": None,
        "controllerId": 1,
        "topics": [
            {
                "errorCode": 0,
                "name": "orders",
                "topicId": ORDERS_ID,
                "isInternal": False,
                "partitions": [],
                "topicAuthorizedOperations": -2147483648,
            }
        ],
    }
    wire = [
        asking(heartbeat(1)),
        answering(heartbeat_answer(1)),
        asking(request(1, 13, 2, fetch_body)),
        answering(response(1, 13, 2, {"throttleTimeMs": 0, "errorCode": 0, "sessionId": 0, "responses": []})),
        asking(request(3, 10, 3, metadata_body)),
        answering(response(3, 10, 3, metadata_answer)),
    ]
    return written(folder / "capture.pcap", list(converse(wire)))


def test_a_topic_id_that_is_named_later_is_resolved_on_files(tmp_path: Path) -> None:
    capture = id_before_name(tmp_path)
    # Windows so small that the fetch is handed on long before the answer that names its topic is read.
    fetches = [exchange for exchange in analyzer.exchanges(capture, window_bytes=200) if exchange.row["api"] == "Fetch"]
    assert [exchange.row["topics"] for exchange in fetches] == [["orders"]]


def test_a_filter_knows_a_topic_by_a_name_that_comes_later(tmp_path: Path) -> None:
    capture = id_before_name(tmp_path)
    result = analyzer.analyze(capture, filter='topic == "orders" and api == Fetch', window_bytes=200)
    assert result.exchanges["api"].to_pylist() == ["Fetch"]
    assert result.exchanges["topics"].to_pylist() == [[ORDERS_ID]], "tables hold what the message said"


@pytest.mark.parametrize("wanted", ["latency > 1ms", 'topic == "grp" and response.throttleTimeMs == 0'])
def test_messages_that_a_filter_lets_through_stand_in_the_order_of_their_exchanges(wanted: str) -> None:
    capture = capture_files(SAMPLES / "group-kip848-librdkafka-4.3")[0]
    results = [
        analyzer.analyze(capture, filter=wanted, keep_bytes=True, window_bytes=size) for size in (20_000, 1 << 20)
    ]
    assert results[0].tables["messages"].equals(results[1].tables["messages"])
    from_exchanges, from_messages = (
        [
            (row["connection"], name, row[name])
            for row in rows
            for name in ("exchange", "reply")
            if row[name] is not None
        ]
        for rows in (results[0].exchanges.to_pylist(), results[0].tables["messages"].to_pylist())
    )
    assert from_messages == from_exchanges
    assert len(from_exchanges) > 100


@pytest.mark.parametrize("cores, threads", [(1, 1), (3, 3), (40, 16)])
def test_threads_are_the_cores_that_the_process_may_use(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert ReadOptions().settings().threads == threads
    assert ReadOptions(threads=5).settings().threads == 5


@pytest.mark.parametrize("threads, shards", [(1, 1), (2, 1), (3, 1), (5, 2), (16, 8)])
def test_half_of_the_threads_decode(threads: int, shards: int) -> None:
    assert ReadOptions(threads=threads).settings().shards == shards
