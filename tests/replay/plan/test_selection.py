"""Which clients, and which span of time, are replayed.

Proves: replay/plan/selection.py
"""

from __future__ import annotations

import dataclasses

import pytest

from kwire.analyzer.filter.evaluation import parse
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys
from kwire.replay import inputs
from kwire.replay.plan import decisions
from kwire.replay.plan.selection import Moment, NothingChosenError, Selection, chosen, matching, moment
from kwire.replay.plan.sessions import Session
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import EVERYTHING, START_NS, Captured
from tests.shared import capture_files, shared_folder

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def connection(port: int, client: str, topic: str, *at: float) -> Session:
    """A client that asks for a topic and then writes to it, at these times."""
    captured = Captured(f"10.0.0.1:{port}-10.0.0.9:9092#1")
    parts = [{"partitionIndex": index, "leaderId": 1, "replicaNodes": [1], "errorCode": 0} for index in range(3)]
    described = {"name": topic, "topicId": TOPIC_ID, "errorCode": 0, "partitions": parts}
    answer = {"brokers": [], "clusterId": "c", "controllerId": 1, "topics": [described]}
    captured.add(at[0], api_keys.METADATA, 12, {"topics": [{"name": topic}]}, answer, client_id=client)
    for when in at[1:]:
        captured.add(when, api_keys.PRODUCE, 9, produced(batch()), produced_answer(0), client_id=client)
    session = captured.session()
    rows = tuple(
        dataclasses.replace(request, row={**request.row, "topics": [topic], "client_ip": "10.0.0.1"})
        for request in session.requests
    )
    return dataclasses.replace(session, requests=rows)


SESSIONS = [
    connection(1, "orders-1", "orders", 0.0, 1.0, 2.0),
    connection(2, "orders-1", "audit", 0.5, 3.0),  # the same client, which speaks of something else there
    connection(3, "billing", "bills", 0.1, 1.5),
]


def ports(sessions: list[Session]) -> list[int]:
    return [int(session.connection.partition("-")[0].rpartition(":")[2]) for session in sessions]


def select(**how: object) -> list[Session]:
    return chosen(SESSIONS, Selection(**how), [])  # type: ignore[arg-type]


def test_a_client_is_chosen_with_all_of_its_connections() -> None:
    assert ports(select(clients=parse("topic == audit"))) == [1, 2]
    assert ports(select(clients=parse("client_id == billing"))) == [3]
    # By a field that only the body has.
    assert ports(select(clients=parse("request.topicData[].partitionData[].index == 0"))) == [1, 2, 3]
    assert ports(select(topics=("bil*", "nothing"))) == [3]
    assert ports(select(topics=("orders",))) == [1, 2]
    assert ports(select(topics=("orders", "bills"), clients=parse("client_id == billing"))) == [3]


def test_a_span_of_time_has_what_was_sent_in_it() -> None:
    selected = select(since=moment("1s"), until=moment("2s"))
    times = [[request.sent_ns for request in session.requests] for session in selected]
    assert list(zip(ports(selected), times, strict=True)) == [
        (1, [START_NS + 10**9]),
        (3, [START_NS + 15 * 10**8]),
    ]


def test_what_was_left_out_still_tells_of_the_captured_cluster() -> None:
    """Its partitions, ids and the cluster's own id; the requests themselves are not sent."""
    planned, cluster = decisions.make(select(since=moment("1s")), EVERYTHING, decisions.PlanOptions())
    assert {step.request.api_key for step in planned.steps} == {api_keys.PRODUCE}
    assert cluster.topics["orders"].partitions == 3
    assert cluster.topic_names[TOPIC_ID]
    assert cluster.ids == {"c"}


def test_nothing_chosen_is_no_replay() -> None:
    with pytest.raises(NothingChosenError):
        select(clients=parse("client_id == nobody"))
    with pytest.raises(NothingChosenError):
        select(since=moment("1h"))


def test_it_says_how_much_it_chose() -> None:
    notes: list[str] = []
    chosen(SESSIONS, Selection(topics=("bills",)), notes)
    assert notes == ["chosen: 2 of 7 requests, on 1 of 3 connections"]
    assert chosen(SESSIONS, Selection(), notes) == SESSIONS


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", Moment(90 * 10**9)),
        ("1.5m", Moment(90 * 10**9)),
        ("2h", Moment(7200 * 10**9)),
        ("250ms", Moment(250 * 10**6)),
        ("7", Moment(7 * 10**9)),
        ("2023-11-14T22:13:20Z", Moment(START_NS, True)),
        ("2023-11-14T22:13:20", Moment(START_NS, True)),
        ("2023-11-14T23:13:20.5+01:00", Moment(START_NS + 5 * 10**8, True)),
    ],
)
def test_times_of_the_capture(text: str, wanted: Moment) -> None:
    assert moment(text) == wanted
    assert wanted.since_1970(START_NS) == (wanted.ns if wanted.absolute else START_NS + wanted.ns)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "yesterday", "1e5s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        moment(text)


def test_requests_of_a_dataset_are_filtered_as_those_of_a_capture() -> None:
    selected = matching(SESSIONS, "api == Produce")
    assert {request.api_key for session in selected for request in session.requests} == {api_keys.PRODUCE}
    assert matching(SESSIONS, None) == SESSIONS
    written = matching(SESSIONS, "value ~ ^v[0-9]$ and client_id == billing")  # of `batch`
    assert [request.api_key for session in written for request in session.requests] == [api_keys.PRODUCE]
    assert not any(session.requests for session in matching(SESSIONS, "value == v3"))
    assert ports(select(clients=parse("value == v2 and client_id == billing"))) == [3]


def test_a_member_of_a_captured_group_is_chosen_with_the_others() -> None:
    files = [str(path) for path in capture_files(shared_folder("group-kip848-librdkafka-4.3"))]
    sessions = inputs.read(files, how=ReadOptions())
    notes: list[str] = []
    selected = chosen(sessions, Selection(parse("client_id == member-2")), notes)
    clients = {request.row["client_id"] for session in selected for request in session.requests}
    assert clients == {"member-1", "member-2", "member-3"}
    assert notes[0] == "chosen with them, as members of group grp-1: member-1, member-3"
    requests = [request for session in sessions for request in session.requests if request.row["client_id"] in clients]
    assert sum(len(session.requests) for session in selected) == len(requests)
    assert {"ConsumerGroupHeartbeat", "Fetch", "OffsetCommit"} <= {request.row["api"] for request in requests}
