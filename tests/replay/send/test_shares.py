"""Members of share groups (KIP-932) in conversations: their sessions, and when they fetch. See `test_engine.py` for how
these tests read.

Proves: replay/remap/share_sessions.py, replay/send/dependencies.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from tests.replay.conversation import Captured, ReceivedRequest, Target, replayed
from tests.replay.send.test_engine import apis_answer

TOPIC_ID = "zizHtibnSdSFmiPSHtiLWA"
DONE: Body = {"errorCode": 0, "errorMessage": None, "responses": [], "nodeEndpoints": []}
TOPICS = [{"name": "orders", "topicId": TOPIC_ID, "errorCode": 0, "partitions": []}]
ACKNOWLEDGED = [{"firstOffset": 0, "lastOffset": 4, "acknowledgeTypes": [1]}]
LEADERS = {("orders", 0): 1, ("orders", 1): 2, ("orders", 2): 3}
NODES = {1: ("one", 1), 2: ("two", 2), 3: ("three", 3)}
LOST = errors.SHARE_SESSION_NOT_FOUND


def test_a_member_fetches_once_it_has_been_assigned_what_it_fetches() -> None:
    """The broker assigns partitions whose state the share coordinator has made; before that who fetches them gets an
    error. What other members do goes on meanwhile."""
    beats, fetches, others = (Captured(f"10.0.0.1:500{number}-10.0.0.9:9092#1") for number in range(3))
    beats.add(0.0, api_keys.METADATA, 12, {"topics": None}, {"brokers": [], "topics": TOPICS})
    beats.add(0.1, api_keys.SHARE_GROUP_HEARTBEAT, 1, _beat("m", 0), _beaten("m", 1))
    beats.add(0.2, api_keys.SHARE_GROUP_HEARTBEAT, 1, _beat("m", 1), _beaten("m", 2, [0]))
    fetches.add(0.3, api_keys.SHARE_FETCH, 1, _fetch(0, 0), DONE)
    others.add(0.3, api_keys.SHARE_GROUP_HEARTBEAT, 1, _beat("n", 0), _beaten("n", 3))
    answers = [_beaten("m", 7)] * 4 + [_beaten("m", 8, [0])]

    def beaten(body: Body) -> Body:
        return answers.pop(0) if body["memberId"] == "m" else _beaten("n", 3)

    target = Brokers(1).target.on(api_keys.SHARE_GROUP_HEARTBEAT, beaten)

    run = replayed([beats, fetches, others], target, topics={"orders": 1})

    assert answers == []
    request = [
        (request.api_key, request.body["memberId"])
        for request in target.requests(api_keys.SHARE_GROUP_HEARTBEAT, api_keys.SHARE_FETCH)
    ]
    assert request[-1] == (api_keys.SHARE_FETCH, "m")
    assert request[-2] == (api_keys.SHARE_GROUP_HEARTBEAT, "m")
    assert (api_keys.SHARE_GROUP_HEARTBEAT, "n") in request[:-2]
    assert run.engine.notes["rebalance_awaited"] == 3


def test_a_session_becomes_one_at_each_leader_each_with_its_epoch() -> None:
    brokers = Brokers(3)

    brokers.play([_fetch(0, 0, 1), _fetch(1), _fetch(2, 2), _fetch(3), _acknowledge(-1)])

    assert {node: brokers.epochs(node) for node in NODES} == {1: [0, 1, 2, 3, -1], 2: [0, 1, 2, 3, -1], 3: [0, 1, -1]}
    assert {node: brokers.named(node) for node in NODES} == {
        1: [[0], [], [], [], []],
        2: [[1], [], [], [], []],
        3: [[2], [], []],
    }


@pytest.mark.parametrize("code", [LOST, errors.INVALID_SHARE_SESSION_EPOCH])
@pytest.mark.parametrize("count", [3, 1])
def test_a_session_that_a_broker_lost_is_begun_anew_there(code: int, count: int) -> None:
    """With all that it holds, and without what is acknowledged, which had been acquired in the lost one."""
    brokers = Brokers(count, loses={min(count, 2): 2}, code=code)
    request_body = [_fetch(0, 0, 1, 2), _fetch(1), _fetch(2, 1, acknowledges=True), _fetch(3)]

    retries = brokers.play(request_body)

    lossy = min(count, 2)
    epochs = {node: brokers.epochs(node) for node in brokers.target.nodes}
    assert epochs == {node: [0, 1, 2, 0, 1] if node == lossy else [0, 1, 2, 3] for node in brokers.target.nodes}
    assert brokers.named(lossy)[3] == ([1] if count == 3 else [0, 1, 2])
    assert [rules.count("session_remade") for rules in retries] == [0, 0, 1, 0]


def test_what_the_other_brokers_gave_is_in_the_answer() -> None:
    brokers = Brokers(3, loses={2: 1})

    brokers.play([_fetch(0, 0, 1, 2), _fetch(1)])

    assert brokers.given == [(0, [0, 1, 2])] * 2


def test_a_session_whose_connection_ended_is_begun_anew() -> None:
    brokers = Brokers(3, closes={2: 1})

    retries = brokers.play([_fetch(0, 0, 1, 2), _fetch(1), _fetch(2)])

    assert (brokers.epochs(2), brokers.named(2)) == ([0, 1, 0, 1], [[1], [], [1], []])
    assert "reconnected" in retries[1]
    assert brokers.given == [(0, [0, 1, 2])] * 3


def test_a_session_that_was_lost_when_something_was_acknowledged_is_begun_by_the_next_fetch() -> None:
    """Acknowledging begins none."""
    brokers = Brokers(3, loses={2: 1})

    brokers.play([_fetch(0, 0, 1, 2), _acknowledge(1, 1), _fetch(2)])

    assert (brokers.epochs(2), brokers.named(2)) == ([0, 1, 0], [[1], [1], [1]])
    assert (brokers.epochs(3), brokers.named(3)) == ([0, 1], [[2], []])


def test_a_session_that_is_lost_again_and_again_is_given_up() -> None:
    brokers = Brokers(1, loses={1: 1}, for_good=True)

    retries = brokers.play([_fetch(0, 0), _fetch(1)])

    assert brokers.epochs(1) == [0, 1, 0, 0, 0]
    assert retries[1] == ["session_remade"] * 3


def test_two_captured_connections_of_a_member_share_its_session_at_one_broker() -> None:
    """They led to two brokers; the target has one."""
    brokers = Brokers(1)
    first, second = (Captured(f"10.0.0.1:500{number}-10.0.0.{number}:9092#1") for number in (1, 2))
    _joined(first)
    for number, (capture, epoch) in enumerate(((first, 0), (second, 0), (first, 1), (second, 1))):
        capture.add(1.0 + number, api_keys.SHARE_FETCH, 1, _fetch(epoch, *([number] if number < 2 else [])), DONE)

    replayed([first, second], brokers.target, topics={"orders": 2}, speed=1.0)

    assert (brokers.epochs(1), brokers.named(1)) == ([0, 1, 2, 3], [[0], [1], [], []])


# --- the target -----------------------------------------------------------------------------------------------------


@dataclass
class Brokers:
    """So many, which keep sessions as Kafka's do. `loses`: at which of its requests (from 0) a node has lost its
    session, and says `code`, from then on where it is `for_good`; `closes`: at which it ends the connection."""

    count: int
    loses: dict[int, int] = field(default_factory=dict)
    closes: dict[int, int] = field(default_factory=dict)
    code: int = LOST
    for_good: bool = False
    given: list[tuple[int, list[int]]] = field(default_factory=list)
    target: Target = field(init=False)
    _sessions: dict[int, tuple[int, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = Target(nodes={node: NODES[node] for node in range(1, self.count + 1)})
        brokers = [{"nodeId": node, "host": at[0], "port": at[1]} for node, at in self.target.nodes.items()]
        self.target.on(api_keys.METADATA, {"brokers": brokers, "topics": TOPICS})
        self.target.on(api_keys.FIND_COORDINATOR, {"errorCode": 0, "nodeId": 1, "host": "one", "port": 1})
        self.target.on(api_keys.SHARE_GROUP_HEARTBEAT, _beaten("m", 1))
        self.target.on(api_keys.SHARE_FETCH, self._answer).on(api_keys.SHARE_ACKNOWLEDGE, self._answer)

    def play(self, bodies: list[Body]) -> list[list[str]]:
        """Play what a member sends one captured broker; return the rules that applied to each fetch."""
        capture = _joined(Captured())
        for number, body in enumerate(bodies):
            key = api_keys.SHARE_FETCH if "maxWaitMs" in body else api_keys.SHARE_ACKNOWLEDGE
            capture.add(1.0 + number, key, 1, body, DONE)
        leaders = {where: min(node, self.count) for where, node in LEADERS.items()}
        run = replayed([capture], self.target, topics={"orders": 3}, leaders=leaders)
        fetches = run.of(api_keys.SHARE_FETCH)
        for fetch in fetches:
            assert fetch.answer is not None
            answer = apis_answer(api_keys.SHARE_FETCH, 1, fetch.answer)
            parts = [part["partitionIndex"] for topic in answer["responses"] for part in topic["partitions"]]
            self.given.append((answer["errorCode"], sorted(parts)))
        return [fetch.retries for fetch in fetches]

    def epochs(self, node: int) -> list[int]:
        return [request.body["shareSessionEpoch"] for request in self._requests(node)]

    def named(self, node: int) -> list[list[int]]:
        """The partitions that each request names."""
        return [_listed(request.body) for request in self._requests(node)]

    def _requests(self, node: int) -> list[ReceivedRequest]:
        return [
            request
            for request in self.target.requests(api_keys.SHARE_FETCH, api_keys.SHARE_ACKNOWLEDGE)
            if request.node == node
        ]

    def _answer(self, body: Body) -> Body | None:
        node = self.target.received[-1].node
        turn = len(self._requests(node)) - 1
        lost = self.loses.get(node)
        if self.closes.get(node) == turn:
            self._sessions.pop(node)
            return None
        if lost is not None and (turn == lost or (self.for_good and turn > lost)):
            self._sessions.pop(node, None)
            return {**DONE, "errorCode": self.code}
        epoch, held = body["shareSessionEpoch"], _listed(body)
        if epoch == 0:
            assert not any(part["acknowledgementBatches"] for each in body["topics"] for part in each["partitions"])
        elif epoch > 0:
            expected, before = self._sessions[node]
            assert epoch == expected
            held = sorted({*before, *held})
        self._sessions[node] = epoch + 1, held
        empty: Body = {
            "errorCode": 0,
            "errorMessage": None,
            "acknowledgeErrorCode": 0,
            "acknowledgeErrorMessage": None,
            "currentLeader": {"leaderId": 0, "leaderEpoch": 0},
            "records": b"",
            "acquiredRecords": [],
        }
        parts = [{"partitionIndex": partition, **empty} for partition in held]
        return {**DONE, "responses": [{"topicId": TOPIC_ID, "partitions": parts}]}


def _listed(body: Body) -> list[int]:
    return [part["partitionIndex"] for topic in body["topics"] for part in topic["partitions"]]


def _joined(capture: Captured) -> Captured:
    capture.add(0.0, api_keys.METADATA, 12, {"topics": None}, {"brokers": [], "topics": TOPICS})
    return capture.add(0.1, api_keys.SHARE_GROUP_HEARTBEAT, 1, _beat("m", 0), _beaten("m", 1))


def _beat(member: str, epoch: int) -> Body:
    return {"groupId": "g", "memberId": member, "memberEpoch": epoch, "subscribedTopicNames": ["orders"]}


def _beaten(member: str, epoch: int, partitions: list[int] | None = None) -> Body:
    given = None
    if partitions is not None:
        given = {"topicPartitions": [{"topicId": TOPIC_ID, "partitions": partitions}]}
    return {"errorCode": 0, "memberId": member, "memberEpoch": epoch, "heartbeatIntervalMs": 1, "assignment": given}


def _fetch(epoch: int, *partitions: int, acknowledges: bool = False) -> Body:
    batches = ACKNOWLEDGED if acknowledges else []
    listed = [{"partitionIndex": partition, "acknowledgementBatches": batches} for partition in partitions]
    return {
        "groupId": "g",
        "memberId": "m",
        "shareSessionEpoch": epoch,
        "maxWaitMs": 1,
        "minBytes": 1,
        "maxBytes": 1,
        "maxRecords": 1,
        "batchSize": 1,
        "forgottenTopicsData": [],
        "topics": [{"topicId": TOPIC_ID, "partitions": listed}] if listed else [],
    }


def _acknowledge(epoch: int, *partitions: int) -> Body:
    body = _fetch(epoch, *partitions, acknowledges=True)
    return {name: body[name] for name in ("groupId", "memberId", "shareSessionEpoch", "topics")}
