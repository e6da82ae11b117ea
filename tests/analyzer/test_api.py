"""What several capture files say together, and what a file says later than it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

import analyzer
from analyzer.pipeline.read_options import ReadOptions
from tests.analyzer.forging import answering, asking, heartbeat, heartbeat_answer, request, response, turns
from tests.captures.forge import Segment, converse, pcap, rendered
from tests.shared import SAMPLES, capture_files

ORDERS_ID = "ObXz43PrTLe1nQPaj6eWiQ"


def written(path: Path, segments: list[Segment]) -> str:
    path.write_bytes(pcap(rendered(segments, 1), 1, nanoseconds=True))
    return str(path)


def halves(folder: Path) -> tuple[str, str]:
    """One capture, rotated in the middle of its connection."""
    segments = list(converse(turns(range(20))))
    middle = len(segments) // 2
    return written(folder / "one.pcap", segments[:middle]), written(folder / "two.pcap", segments[middle:])


def test_a_file_that_goes_on_with_anothers_connections_gets_a_hint(tmp_path: Path) -> None:
    one, two = halves(tmp_path)
    assert analyzer.analyze([one, two]).hints == [
        "two.pcap goes on with 1 connection of one.pcap: --rotated reads them as one capture"
    ]
    assert analyzer.analyze([two, one]).hints == analyzer.analyze([one, two]).hints, "whatever their order"


def test_no_hint_where_nothing_is_continued(tmp_path: Path) -> None:
    one, two = halves(tmp_path)
    assert analyzer.analyze([one, two], rotated=True).hints == []
    whole = written(tmp_path / "whole.pcap", list(converse(turns(range(3)))))
    assert analyzer.analyze([one, whole]).hints == [], "its connection was opened in it"
    same_time = written(tmp_path / "other-side.pcap", list(converse(turns(range(20))))[4:])
    assert analyzer.analyze([one, same_time]).hints == [], "captured at the same time, at another place"


def id_before_name(folder: Path) -> str:
    """A fetch that says a topic id only, and Metadata that names it afterwards."""
    asked = {
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
    all_topics = {
        "topics": None,
        "allowAutoTopicCreation": False,
        "includeClusterAuthorizedOperations": False,
        "includeTopicAuthorizedOperations": False,
    }
    named = {
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
        asking(request(1, 13, 2, asked)),
        answering(response(1, 13, 2, {"throttleTimeMs": 0, "errorCode": 0, "sessionId": 0, "responses": []})),
        asking(request(3, 10, 3, all_topics)),
        answering(response(3, 10, 3, named)),
    ]
    return written(folder / "capture.pcap", list(converse(wire)))


def test_a_topic_id_that_is_named_later_is_resolved_on_files(tmp_path: Path) -> None:
    capture = id_before_name(tmp_path)
    # Windows so small that the fetch is handed on long before the answer that names its topic is read.
    fetches = [one for one in analyzer.exchanges(capture, window_bytes=200) if one.row["api"] == "Fetch"]
    assert [one.row["topics"] for one in fetches] == [["orders"]]


def test_a_filter_knows_a_topic_by_a_name_that_comes_later(tmp_path: Path) -> None:
    capture = id_before_name(tmp_path)
    found = analyzer.analyze(capture, filter='topic == "orders" and api == Fetch', window_bytes=200)
    assert found.exchanges["api"].to_pylist() == ["Fetch"]
    assert found.exchanges["topics"].to_pylist() == [[ORDERS_ID]], "tables hold what the message said"


@pytest.mark.parametrize("wanted", ["latency > 1ms", 'topic == "grp" and response.throttleTimeMs == 0'])
def test_messages_that_a_filter_lets_through_stand_in_the_order_of_their_exchanges(wanted: str) -> None:
    capture = capture_files(SAMPLES / "group-kip848-librdkafka-4.3")[0]
    found = [analyzer.analyze(capture, filter=wanted, keep_bytes=True, window_bytes=size) for size in (20_000, 1 << 20)]
    assert found[0].tables["messages"].equals(found[1].tables["messages"])
    of, told = (
        [
            (row["connection"], name, row[name])
            for row in rows
            for name in ("exchange", "reply")
            if row[name] is not None
        ]
        for rows in (found[0].exchanges.to_pylist(), found[0].tables["messages"].to_pylist())
    )
    assert told == of
    assert len(of) > 100


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
