"""An answer with an error teaches nothing: what needs the value that it did not bring is not sent, and the RUN says by
which rule. Conversations; see `test_engine.py` for how they read.

Proves: replay/send/preparation.py, replay/remap/groups.py, replay/remap/producers.py, replay/diff/pairs.py
"""

from __future__ import annotations

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.diff.pairs import Side, against_capture
from kwire.replay.outcome import Outcome
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import Captured, Target, replayed

ASKS: Body = {"transactionalId": "tx", "transactionTimeoutMs": 1_200_000}
REFUSED: Body = {"errorCode": errors.INVALID_TRANSACTION_TIMEOUT, "producerId": -1, "producerEpoch": -1}
JOIN: Body = {
    "groupId": "g",
    "sessionTimeoutMs": 6000,
    "rebalanceTimeoutMs": 6000,
    "memberId": "",
    "protocolType": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}


def what_became(outcomes: list[Outcome]) -> list[tuple[str, str | None]]:
    return [(outcome.verdict, outcome.rule) for outcome in sorted(outcomes, key=lambda outcome: outcome.step or 0)]


def in_a_transaction(capture: Captured) -> Captured:
    """Partitions added, records, the end."""
    adds = {
        "v3AndBelowTransactionalId": "tx",
        "v3AndBelowProducerId": 7,
        "v3AndBelowProducerEpoch": 0,
        "v3AndBelowTopics": [{"name": "orders", "partitions": [0]}],
    }
    added = {
        "resultsByTopicV3AndBelow": [
            {"name": "orders", "resultsByPartition": [{"partitionIndex": 0, "partitionErrorCode": 0}]}
        ]
    }
    capture.add(0.1, api_keys.ADD_PARTITIONS_TO_TXN, 0, adds, added)
    inside = batch((7, 0), 0, transactional=True)
    capture.add(0.2, api_keys.PRODUCE, 9, produced(inside, name="tx"), produced_answer(0))
    end = {"transactionalId": "tx", "producerId": 7, "producerEpoch": 0, "committed": False}
    return capture.add(0.3, api_keys.END_TXN, 1, end, {"errorCode": 0})


def test_a_transaction_whose_producer_the_target_refused_is_not_sent() -> None:
    capture = Captured().add(
        0.0, api_keys.INIT_PRODUCER_ID, 2, ASKS, {"errorCode": 0, "producerId": 7, "producerEpoch": 0}
    )
    target = Target().on(api_keys.INIT_PRODUCER_ID, REFUSED)

    run = replayed([in_a_transaction(capture)], target, topics={"orders": 1})

    assert [request.api_key for request in target.received] == [api_keys.INIT_PRODUCER_ID]
    assert what_became(run.outcomes) == [("answered", None)] + [("skipped", "no_producer")] * 3
    assert run.of(api_keys.PRODUCE)[0].reason == "InitProducerId was answered INVALID_TRANSACTION_TIMEOUT (50)"


def test_a_producer_id_that_the_replayer_asks_for_in_vain_is_asked_for_once_and_nothing_is_sent_under_it() -> None:
    target = Target().on(api_keys.INIT_PRODUCER_ID, REFUSED)

    run = replayed([in_a_transaction(Captured())], target, topics={"orders": 1})

    assert [request.api_key for request in target.received] == [api_keys.INIT_PRODUCER_ID]
    assert what_became(run.outcomes) == [("skipped", "no_producer")] * 3


def test_a_member_that_the_target_did_not_take_says_nothing() -> None:
    """Its group is full: the answer has an id in it, and means nobody."""
    took = {"errorCode": 0, "generationId": 4, "protocolName": "range", "leader": "m", "memberId": "m", "members": []}
    capture = Captured().add(0.0, api_keys.JOIN_GROUP, 2, JOIN, took)
    sync = {"groupId": "g", "generationId": 4, "memberId": "m", "assignments": []}
    capture.add(0.1, api_keys.SYNC_GROUP, 1, sync, {"errorCode": 0, "assignment": b""})
    capture.add(0.2, api_keys.HEARTBEAT, 1, {"groupId": "g", "generationId": 4, "memberId": "m"}, {"errorCode": 0})
    commit = {"groupId": "g", "generationIdOrMemberEpoch": 4, "memberId": "m", "topics": []}
    capture.add(0.3, api_keys.OFFSET_COMMIT, 5, commit, {"topics": []})
    capture.add(0.4, api_keys.LEAVE_GROUP, 1, {"groupId": "g", "memberId": "m"}, {"errorCode": 0})
    full = {**took, "errorCode": errors.GROUP_MAX_SIZE_REACHED, "generationId": -1, "memberId": "somebody"}
    target = Target().on(api_keys.JOIN_GROUP, full)

    run = replayed([capture], target)

    assert [request.api_key for request in target.received] == [api_keys.JOIN_GROUP]
    assert what_became(run.outcomes) == [("answered", None)] + [("skipped", "not_joined")] * 4


def test_a_member_of_a_848_group_without_an_epoch_does_not_join_by_accident() -> None:
    """Epoch 0, which nothing was learned into, would mean a join."""
    beats = {
        "groupId": "g",
        "memberId": "m",
        "memberEpoch": 0,
        "subscribedTopicNames": ["orders"],
        "topicPartitions": [],
    }
    back = {"errorCode": 0, "memberId": "m", "memberEpoch": 3, "heartbeatIntervalMs": 1, "assignment": None}
    capture = Captured().add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, beats, back)
    capture.add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, {**beats, "memberEpoch": 3}, back)
    denied = {**back, "errorCode": errors.GROUP_AUTHORIZATION_FAILED, "memberEpoch": 9}
    target = Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, denied)

    run = replayed([capture], target)

    assert [request.body["memberEpoch"] for request in target.received] == [0]
    assert what_became(run.outcomes) == [("answered", None), ("skipped", "not_joined")]


def test_a_share_session_that_the_target_did_not_make_is_not_gone_on_with() -> None:
    fetch = {
        "groupId": "g",
        "memberId": "m",
        "shareSessionEpoch": 0,
        "maxWaitMs": 1,
        "minBytes": 1,
        "maxBytes": 1,
        "maxRecords": 1,
        "batchSize": 1,
        "topics": [],
        "forgottenTopicsData": [],
    }
    back: Body = {"errorCode": 0, "errorMessage": None, "responses": [], "nodeEndpoints": []}
    capture = Captured()
    beats = {"groupId": "g", "memberId": "m", "memberEpoch": 0, "subscribedTopicNames": ["orders"]}
    beaten = {"errorCode": 0, "memberId": "m", "memberEpoch": 1, "heartbeatIntervalMs": 1, "assignment": None}
    capture.add(0.0, api_keys.SHARE_GROUP_HEARTBEAT, 1, beats, beaten)
    capture.add(0.1, api_keys.SHARE_FETCH, 1, fetch, back)
    capture.add(0.2, api_keys.SHARE_FETCH, 1, {**fetch, "shareSessionEpoch": 1}, back)
    target = Target().on(api_keys.SHARE_GROUP_HEARTBEAT, beaten)
    target.on(api_keys.SHARE_FETCH, {**back, "errorCode": errors.GROUP_AUTHORIZATION_FAILED})

    run = replayed([capture], target)

    assert [request.body["shareSessionEpoch"] for request in target.requests(api_keys.SHARE_FETCH)] == [0]
    assert what_became(run.outcomes) == [("answered", None), ("answered", None), ("skipped", "no_session")]


def test_what_is_not_sent_because_of_the_targets_answer_is_a_difference() -> None:
    assert against_capture(Side("skipped", rule="no_producer"), api_keys.PRODUCE).state == "skipped"
    assert against_capture(Side("skipped", rule="not_joined"), api_keys.PRODUCE).state == "skipped"
    assert against_capture(Side("skipped", rule="mutating"), api_keys.PRODUCE).state == "not_planned"


def test_a_member_that_was_only_given_its_id_leaves_by_it() -> None:
    """As librdkafka does when it ends while its JoinGroup is still waiting (net-lossy-4.3)."""
    given = {
        "errorCode": errors.MEMBER_ID_REQUIRED,
        "generationId": -1,
        "protocolName": "",
        "leader": "",
        "memberId": "m",
        "members": [],
    }
    capture = Captured().add(0.0, api_keys.JOIN_GROUP, 5, JOIN, given)
    capture.add(0.1, api_keys.LEAVE_GROUP, 1, {"groupId": "g", "memberId": "m"}, {"errorCode": 0})
    target = Target().on(api_keys.JOIN_GROUP, {**given, "memberId": "new"}).on(api_keys.LEAVE_GROUP, {"errorCode": 0})

    run = replayed([capture], target)

    assert run.of(api_keys.LEAVE_GROUP)[0].verdict == "answered"
