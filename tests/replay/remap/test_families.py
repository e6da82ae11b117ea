"""Each family of values by itself: what it writes into a request, and what it has learned from a pair of answers.

Proves: replay/remap/remap.py, family.py, topics.py, producers.py, groups.py, fetches.py (all in replay/remap)
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import convert
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME, without_names
from kwire.replay.plan.values import Producer
from kwire.replay.remap.remap import Remap, RemapOptions
from kwire.replay.remap.topology import Topology
from tests.replay.batching import batch, produced, produced_answer, producer_of
from tests.replay.remap.steps import answer_of, planned

NEW_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

# --- topics ---


def test_a_topic_has_its_name_and_id_on_the_target() -> None:
    (step,) = planned((api_keys.PRODUCE, 9, produced(batch()), produced_answer(5)))
    remap = Remap(RemapOptions(map_topic={"orders": "copy"}))
    remap.topics.learn_from(Topology(topic_ids={"copy": NEW_ID}))
    (topic,) = remap.request(step)["topicData"]
    assert (topic["name"], topic["topicId"], topic[NAME]) == ("copy", NEW_ID, "orders")
    assert remap.topics.captured("copy") == "orders"
    assert not remap.in_place


@pytest.mark.parametrize("version", [1, 5, 6])
def test_a_topic_is_deleted_by_its_name_on_the_target(version: int) -> None:
    """Up to version 5 the request lists names only: under another name the target's own topic must stay."""
    by_name: Body = {"topicNames": ["orders"], "timeoutMs": 1}
    request_body = by_name if version < 6 else {"topics": [{"name": "orders"}], "timeoutMs": 1}
    (step,) = planned((api_keys.DELETE_TOPICS, version, request_body, None), allow=frozenset((api_keys.DELETE_TOPICS,)))
    sent = Remap(RemapOptions(map_topic={"orders": "copy"})).request(step)
    for offered in (1, 5, 6):
        sent_body = convert.fit(api_keys.DELETE_TOPICS, offered, sent)
        assert sent_body.get("topicNames") == (["copy"] if offered < 6 else None)
        assert [topic["name"] for topic in sent_body.get("topics", ())] == (["copy"] if offered >= 6 else [])


@pytest.mark.parametrize(
    ("api_key", "request_body"),
    [
        (
            api_keys.ALTER_SHARE_GROUP_OFFSETS,
            {
                "groupId": "g",
                "topics": [{"topicName": "orders", "partitions": [{"partitionIndex": 0, "startOffset": 12}]}],
            },
        ),
        (api_keys.DELETE_SHARE_GROUP_OFFSETS, {"groupId": "g", "topics": [{"topicName": "orders"}]}),
        (
            api_keys.DESCRIBE_SHARE_GROUP_OFFSETS,
            {"groups": [{"groupId": "g", "topics": [{"topicName": "orders", "partitions": [0]}]}]},
        ),
    ],
)
def test_offsets_of_a_share_group_are_those_of_the_topic_on_the_target(api_key: int, request_body: Body) -> None:
    """Under another name, the target's own topic of the captured name is none of this group's business."""
    (step,) = planned((api_key, 0, request_body, None), allow=frozenset((api_key,)))
    remap = Remap(RemapOptions(map_topic={"orders": "copy"}))
    remap.offsets.appended(("orders", 0), 10, 0, 5)

    sent = without_names(remap.request(step))

    (topic,) = sent.get("topics") or sent["groups"][0]["topics"]
    assert topic["topicName"] == "copy"
    if api_key == api_keys.ALTER_SHARE_GROUP_OFFSETS:
        assert topic["partitions"] == [{"partitionIndex": 0, "startOffset": 2}]


def test_an_epoch_that_is_asked_about_is_the_targets_and_others_are_unknown() -> None:
    request_body = {"partition": 0, "currentLeaderEpoch": 7, "leaderEpoch": 6}
    (step,) = planned(
        (
            api_keys.OFFSET_FOR_LEADER_EPOCH,
            3,
            {"replicaId": -1, "topics": [{"topic": "orders", "partitions": [request_body]}]},
            None,
        )
    )
    remap = Remap()
    remap.topics.learn_from(Topology(leader_epochs={("orders", 0): 2}))
    (partition,) = remap.request(step)["topics"][0]["partitions"]
    assert (partition["currentLeaderEpoch"], partition["leaderEpoch"]) == (-1, 2)


def test_a_brokers_configuration_is_the_one_of_the_broker_that_stands_for_it() -> None:
    listed = [{"resourceType": 4, "resourceName": "1"}, {"resourceType": 2, "resourceName": "orders"}]
    resources = [{**resource, "configurationKeys": None} for resource in listed]
    (step,) = planned((api_keys.DESCRIBE_CONFIGS, 1, {"resources": resources, "includeSynonyms": False}, None))
    sent = Remap(RemapOptions(map_topic={"orders": "copy"}), nodes={1: 5}).request(step)
    assert [resource["resourceName"] for resource in sent["resources"]] == ["5", "copy"]


# --- producers ---


def given_id(remap: Remap, captured: Producer, given: Producer) -> None:
    """InitProducerId, answered on both sides."""
    answers = [
        {"errorCode": 0, "producerId": capture.id, "producerEpoch": capture.epoch} for capture in (captured, given)
    ]
    request_body = {"transactionalId": None, "transactionTimeoutMs": 1000}
    (step,) = planned((api_keys.INIT_PRODUCER_ID, 1, request_body, answers[0]))
    remap.learn(step, request_body, answers[0], answers[1])


def sequences(remap: Remap, *captured: tuple[tuple[int, int], int]) -> list[tuple[int, int, int]]:
    """(producer id, epoch, base sequence) that batches of these captured ones get."""
    steps = planned(
        *((api_keys.PRODUCE, 9, produced(batch(*batch_options)), produced_answer(5)) for batch_options in captured)
    )
    return [producer_of(remap.request(step)) for step in steps]


def test_a_producer_that_an_answer_brought_keeps_its_sequences() -> None:
    remap = Remap()
    given_id(remap, Producer(7, 0), Producer(900, 3))
    assert sequences(remap, ((7, 0), 12), ((7, 0), 15)) == [(900, 3, 12), (900, 3, 15)]


def test_a_producer_that_was_asked_for_begins_at_0_and_keeps_its_gaps() -> None:
    remap = Remap()
    (step,) = planned((api_keys.PRODUCE, 9, produced(batch((7, 0), 12)), produced_answer(5)))
    assert step.body is not None
    assert remap.producers.unknown(api_keys.PRODUCE, step.body) == [(Producer(7, 0), None)]
    remap.producers.give(Producer(7, 0), None, Producer(900, 0))
    assert remap.producers.unknown(api_keys.PRODUCE, step.body) == []
    assert sequences(remap, ((7, 0), 12), ((7, 0), 18)) == [(900, 0, 0), (900, 0, 6)]


def test_an_answer_with_an_error_brings_no_producer() -> None:
    remap = Remap()
    request_body = {"transactionalId": None, "transactionTimeoutMs": 1000}
    captured: Body = {"errorCode": 0, "producerId": 7, "producerEpoch": 0}
    (step,) = planned((api_keys.INIT_PRODUCER_ID, 1, request_body, captured))
    refused = {"errorCode": errors.INVALID_TRANSACTION_TIMEOUT, "producerId": -1, "producerEpoch": -1}
    remap.learn(step, request_body, captured, refused)
    assert remap.producers.given(Producer(7, 0)) is None
    assert remap.producers.refused(Producer(7, 0)) == errors.INVALID_TRANSACTION_TIMEOUT
    # Its client tries again: what counts is the last answer.
    remap.learn(step, request_body, captured, {"errorCode": 0, "producerId": 900, "producerEpoch": 0})
    assert (remap.producers.given(Producer(7, 0)), remap.producers.refused(Producer(7, 0))) == (Producer(900, 0), None)


def test_who_asks_for_a_new_epoch_of_an_id_that_the_target_never_gave_asks_for_a_new_id() -> None:
    request_body = {"transactionalId": "tx", "transactionTimeoutMs": 1000, "producerId": 7, "producerEpoch": 3}
    (step,) = planned(
        (api_keys.INIT_PRODUCER_ID, 3, request_body, {"errorCode": 0, "producerId": 7, "producerEpoch": 4})
    )
    sent = Remap().request(step)
    assert (sent["producerId"], sent["producerEpoch"]) == (-1, -1)


def test_a_new_epoch_goes_on_where_the_targets_epoch_already_wrote() -> None:
    remap = Remap()
    given_id(remap, Producer(7, 0), Producer(900, 0))
    given_id(remap, Producer(7, 1), Producer(900, 0))
    assert sequences(remap, ((7, 0), 0), ((7, 1), 0)) == [(900, 0, 0), (900, 0, 3)]


# --- groups ---

JOIN: Body = {
    "groupId": "g",
    "memberId": "",
    "sessionTimeoutMs": 1,
    "rebalanceTimeoutMs": 1,
    "protocolType": "consumer",
    "protocols": [],
}
SYNC: Body = {
    "groupId": "g",
    "generationId": 4,
    "memberId": "old",
    "assignments": [{"memberId": "old", "assignment": b"x"}, {"memberId": "other", "assignment": b"y"}],
}
BEAT: Body = {"groupId": "g", "generationId": 4, "memberId": "old"}


def joined(member: str, generation: int, leader: str) -> Body:
    return {
        "errorCode": 0,
        "memberId": member,
        "generationId": generation,
        "leader": leader,
        "protocolName": "range",
        "members": [],
    }


def classic(leader: str) -> tuple[Remap, Step, Step]:
    """A member that led when captured, whose group on the target has this leader; its SyncGroup and its Heartbeat."""
    join, sync, beat = planned(
        (api_keys.JOIN_GROUP, 2, JOIN, joined("old", 4, "old")),
        (api_keys.SYNC_GROUP, 1, SYNC, {"errorCode": 0, "assignment": b""}),
        (api_keys.HEARTBEAT, 1, BEAT, {"errorCode": 0}),
    )
    remap = Remap(assignments={("g", 4): SYNC["assignments"]})
    remap.learn(join, remap.request(join), answer_of(join), joined("new", 9, leader))
    return remap, sync, beat


def test_a_member_speaks_by_its_id_and_generation_on_the_target() -> None:
    remap, _, beat = classic("new")
    sent = remap.request(beat)
    assert (sent["memberId"], sent["generationId"]) == ("new", 9)


@pytest.mark.parametrize(("leader", "handed_out"), [("new", ["new", "other"]), ("somebody", [])])
def test_who_leads_on_the_target_hands_out_what_the_captured_leader_did(leader: str, handed_out: list[str]) -> None:
    remap, sync, _ = classic(leader)
    assert [given["memberId"] for given in remap.request(sync)["assignments"]] == handed_out


def test_a_member_that_was_forgotten_may_join_again_and_not_because_of_a_captured_rebalance() -> None:
    remap, _, beat = classic("new")
    assert remap.groups.can_rejoin(beat, {"errorCode": 0}, {errors.UNKNOWN_MEMBER_ID})
    assert not remap.groups.can_rejoin(beat, {"errorCode": 0}, {errors.REBALANCE_IN_PROGRESS})
    remap.groups.rejoins("g", "other")
    assert remap.groups.can_rejoin(beat, {"errorCode": 0}, {errors.REBALANCE_IN_PROGRESS})


def heartbeat(epoch: int, **more: object) -> Body:
    return {
        "groupId": "g",
        "memberId": "m",
        "memberEpoch": epoch,
        "instanceId": None,
        "rackId": None,
        "rebalanceTimeoutMs": -1,
        "subscribedTopicNames": None,
        "topicPartitions": None,
        **more,
    }


def test_a_member_of_a_848_group_has_its_epoch_and_its_partitions_from_the_target() -> None:
    there = [{"topicId": NEW_ID, "partitions": [0]}]
    joins = heartbeat(0, subscribedTopicNames=["orders"], topicPartitions=[], rebalanceTimeoutMs=1000)
    answer = {"errorCode": 0, "memberId": "m", "memberEpoch": 5, "heartbeatIntervalMs": 1, "assignment": None}
    first, second = planned(
        (api_keys.CONSUMER_GROUP_HEARTBEAT, 0, joins, answer),
        (api_keys.CONSUMER_GROUP_HEARTBEAT, 0, heartbeat(5), answer),
    )
    remap = Remap()
    assigned = {**answer, "memberEpoch": 2, "assignment": {"topicPartitions": there}}
    remap.learn(first, remap.request(first), answer_of(first), assigned)
    sent = remap.request(second)
    assert (sent["memberEpoch"], sent["topicPartitions"]) == (2, there)
    # Fenced, it joins with all that it has said of itself, and owns nothing.
    again = remap.again(second, sent, "rejoined", answer_of(second), None)
    assert (again["memberEpoch"], again["topicPartitions"], again["subscribedTopicNames"]) == (0, [], ["orders"])


def test_a_group_that_the_target_does_not_serve_commits_without_members() -> None:
    commit = {"groupId": "g", "generationIdOrMemberEpoch": 4, "memberId": "old", "groupInstanceId": None, "topics": []}
    _, step = planned(
        (api_keys.JOIN_GROUP, 2, JOIN, joined("old", 4, "old")),
        (api_keys.OFFSET_COMMIT, 7, commit, {"topics": []}),
    )
    remap = Remap()
    remap.groups.refuse("g")
    sent = remap.request(step)
    assert (sent["memberId"], sent["generationIdOrMemberEpoch"]) == ("", -1)


# --- fetches ---


def fetch(session: int, epoch: int, *partitions: int) -> Body:
    partition_bodies = [{"partition": number, "fetchOffset": 5, "partitionMaxBytes": 10} for number in partitions]
    return {
        "maxWaitMs": 0,
        "minBytes": 1,
        "sessionId": session,
        "sessionEpoch": epoch,
        "rackId": "",
        "topics": [{"topic": "orders", "partitions": partition_bodies}] if partition_bodies else [],
        "forgottenTopicsData": [],
    }


def fetched(session: int) -> Body:
    return {"errorCode": 0, "sessionId": session, "responses": []}


def entered(remap: Remap, step: Step, several: bool = False) -> tuple[str | None, Body]:
    body = remap.request(step)
    return remap.fetches.enter(step, body, answer_of(step), several), body


def two_fetches() -> list[Step]:
    return planned(
        (api_keys.FETCH, 11, fetch(0, 0, 0, 1), fetched(33)), (api_keys.FETCH, 11, fetch(33, 1), fetched(33))
    )


def test_a_fetch_session_is_the_targets_and_its_epochs_are_counted_anew() -> None:
    first, second = two_fetches()
    remap = Remap()
    rule, entry = entered(remap, first)
    assert (rule, entry["sessionId"], entry["sessionEpoch"]) == (None, 0, 0)
    remap.learn(first, entry, answer_of(first), fetched(800))
    rule, follows = entered(remap, second)
    assert (rule, follows["sessionId"], follows["sessionEpoch"]) == (None, 800, 1)
    again = remap.again(second, follows, "session_remade", answer_of(second), {"errorCode": 70, "responses": []})
    assert (again["sessionId"], again["sessionEpoch"]) == (0, 0)
    assert [partition["partition"] for partition in again["topics"][0]["partitions"]] == [0, 1]


def test_with_several_brokers_fetches_are_outside_of_sessions() -> None:
    first, _ = two_fetches()
    rule, entry = entered(Remap(), first, several=True)
    assert (rule, entry["sessionId"], entry["sessionEpoch"]) == ("sessionless", 0, -1)
    assert [partition["partition"] for partition in entry["topics"][0]["partitions"]] == [0, 1]


def test_with_several_brokers_what_follows_in_a_session_names_all_its_partitions() -> None:
    first, second = two_fetches()
    remap = Remap()
    _, entry = entered(remap, first, several=True)
    remap.learn(first, entry, answer_of(first), fetched(0))
    rule, follows = entered(remap, second, several=True)
    assert (rule, follows["sessionId"], follows["sessionEpoch"]) == ("sessionless", 0, -1)
    assert [partition["partition"] for partition in follows["topics"][0]["partitions"]] == [0, 1]


def test_a_session_that_the_target_refused_is_made_by_the_next_fetch() -> None:
    first, second = two_fetches()
    remap = Remap()
    _, entry = entered(remap, first)
    remap.learn(first, entry, answer_of(first), {"errorCode": errors.KAFKA_STORAGE_ERROR, "sessionId": 0})
    rule, follows = entered(remap, second)
    assert (rule, follows["sessionId"], follows["sessionEpoch"]) == ("session_remade", 0, 0)
    assert [partition["partition"] for partition in follows["topics"][0]["partitions"]] == [0, 1]


def test_a_session_that_nobody_made_has_no_partitions() -> None:
    (step,) = planned((api_keys.FETCH, 11, fetch(33, 7), fetched(33)))
    assert entered(Remap(), step)[0] == "no_session"
