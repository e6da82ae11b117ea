"""Which answers are sent again, by which rule, for how long, and what of them is kept. No engine, no clock: times are
handed in.

Proves: replay/remap/retry.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.steps import Step
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.retry import History, Limits, Retries
from kwire.replay.remap.topology import Topology
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.forging import batch as stored
from tests.replay.remap.steps import answer_of, planned

PRODUCE = produced(batch())
LIMITS = Limits(errors=10.0, records=2.0, rebalance=20.0, first_pause=1.0, longest_pause=4.0)


def retries(step: Step, history: History | None = None, topology: Topology | None = None) -> Retries:
    return Retries(step, answer_of(step), history or History(), Remap(), topology or Topology(), LIMITS, 0.0)


def test_an_error_is_sent_again_with_growing_pauses_until_its_bound() -> None:
    (step,) = planned((api_keys.PRODUCE, 9, PRODUCE, produced_answer(5)))
    policy = retries(step)
    failed = produced_answer(5, errors.NOT_LEADER_OR_FOLLOWER)
    pauses = [policy.after(PRODUCE, failed, now).pause for now in (0.0, 1.0, 3.0, 7.0)]
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    assert policy.after(PRODUCE, failed, 9.9).rule == "leader_moved"
    assert policy.after(PRODUCE, failed, 10.1).rule is None


@pytest.mark.parametrize(("fewer", "waited"), [(False, 20.0), (True, 2.0)])
def test_partitions_that_may_not_move_where_there_are_fewer_are_not_awaited_for_long(
    fewer: bool, waited: float
) -> None:
    """With --partial: a member that gave some up when captured may have none too many here (KIP-848)."""
    body: Body = {"groupId": "g", "memberId": "m", "memberEpoch": 0, "subscribedTopicNames": ["orders"]}
    given = {"topicPartitions": [{"topicId": ZERO_UUID, "partitions": [0]}]}
    answer_body: Body = {
        "errorCode": 0,
        "memberId": "m",
        "memberEpoch": 2,
        "heartbeatIntervalMs": 5,
        "assignment": given,
    }
    beat: Body = {"groupId": "g", "memberId": "m", "memberEpoch": 1}
    _, step = planned(
        (api_keys.CONSUMER_GROUP_HEARTBEAT, 1, body, answer_body),
        (api_keys.CONSUMER_GROUP_HEARTBEAT, 1, beat, answer_body),
    )
    known = Remap()
    known.groups.fewer = fewer
    policy = Retries(step, answer_of(step), History(), known, Topology(), LIMITS, 0.0)
    nothing = {**answer_body, "assignment": None}
    assert policy.after(beat, nothing, waited - 0.1).rule == "rebalance_awaited"
    assert policy.after(beat, nothing, waited + 0.1).rule is None


def test_an_error_that_the_capture_has_too_is_the_answer() -> None:
    body: Body = {"groupId": "g", "generationId": 1, "memberId": "m"}
    captured = {"errorCode": errors.NOT_COORDINATOR}
    early = {"groupId": "g", "memberId": "m", "sessionTimeoutMs": 1, "protocolType": "consumer", "protocols": []}
    joined = {"errorCode": 0, "generationId": 1, "protocolName": "", "leader": "m", "memberId": "m", "members": []}
    _, step = planned(
        (api_keys.JOIN_GROUP, 3, {**early, "rebalanceTimeoutMs": 1}, joined), (api_keys.HEARTBEAT, 3, body, captured)
    )
    assert retries(step).after(body, {"errorCode": errors.NOT_COORDINATOR}, 0.0).rule is None
    assert retries(step).after(body, {"errorCode": errors.COORDINATOR_NOT_AVAILABLE}, 0.0).rule == "coordinator_loads"


@pytest.mark.parametrize(
    ("code", "rule"),
    [(errors.UNSTABLE_OFFSET_COMMIT, "transaction_ends"), (errors.COORDINATOR_LOAD_IN_PROGRESS, "coordinator_loads")],
)
def test_offsets_that_a_transaction_commits_are_asked_for_until_it_has_ended(code: int, rule: str) -> None:
    """As a client does that reads after its own EndTxn: the markers are written a moment later."""
    body: Body = {"groupId": "g", "topics": None, "requireStable": True}
    (step,) = planned((api_keys.OFFSET_FETCH, 7, body, {"topics": [], "errorCode": 0}))
    assert retries(step).after(body, {"topics": [], "errorCode": code}, 0.0).rule == rule


def test_a_lost_connection_is_made_again_once_where_the_capture_has_an_answer() -> None:
    answered, unanswered = planned(
        (api_keys.PRODUCE, 9, PRODUCE, produced_answer(5)), (api_keys.PRODUCE, 9, PRODUCE, None)
    )
    policy = retries(answered)
    assert policy.after(PRODUCE, None, 0.0).rule == "reconnected"
    assert policy.after(PRODUCE, None, 1.0).rule is None
    assert retries(unanswered).after(PRODUCE, None, 0.0).rule is None


def test_records_without_a_producer_id_that_are_sent_again_may_be_there_twice() -> None:
    """Where the connection ended, or the answer does not say that nothing was stored: told once."""
    plain, idempotent = produced(stored("a")), produced(stored("a", producer=7))
    (step,) = planned((api_keys.PRODUCE, 9, plain, produced_answer(5)))
    policy = retries(step)
    assert policy.after(plain, None, 0.0).also == ("perhaps_twice",)
    assert policy.after(plain, produced_answer(5, errors.REQUEST_TIMED_OUT), 1.0).also == ()
    for code, also in (
        (errors.NOT_LEADER_OR_FOLLOWER, ()),
        (errors.NOT_ENOUGH_REPLICAS, ()),
        (errors.REQUEST_TIMED_OUT, ("perhaps_twice",)),
        (errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ("perhaps_twice",)),
    ):
        decision = retries(step).after(plain, produced_answer(5, code), 0.0)
        assert (decision.rule, decision.also) == ("leader_moved", also)
    assert retries(step).after(idempotent, None, 0.0).also == ()
    gone = retries(step)
    gone.after(idempotent, None, 0.0)
    assert gone.after(plain, None, 0.0).also == ()  # it is not sent again


def test_a_topic_is_waited_for_once_and_then_absent_for_all() -> None:
    (step,) = planned((api_keys.PRODUCE, 9, PRODUCE, produced_answer(5)))
    topology = Topology()
    missing = produced_answer(5, errors.UNKNOWN_TOPIC_OR_PARTITION)
    first = retries(step, topology=topology)
    assert first.after(PRODUCE, missing, 0.0).rule == "topic_appears"
    assert first.after(PRODUCE, missing, 11.0).rule is None
    assert topology.absent == {"orders"}
    later = retries(step, topology=topology).after(PRODUCE, missing, 0.0)
    assert (later.rule, later.also) == (None, ("topic_absent",))


def test_a_topic_that_brokers_make_themselves_is_waited_for_once() -> None:
    """The target makes it when somebody first asks for a coordinator, and not every broker knows it at once."""

    def answer_with(error: int) -> Body:
        topic = {"name": "__consumer_offsets", "errorCode": error, "isInternal": True, "partitions": []}
        return {"brokers": [], "controllerId": 1, "topics": [topic]}

    asks: Body = {"topics": [{"name": "__consumer_offsets"}]}
    good, bad = planned(
        *((api_keys.METADATA, 1, asks, answer_with(error)) for error in (0, errors.UNKNOWN_TOPIC_OR_PARTITION))
    )
    missing, topology = answer_with(errors.UNKNOWN_TOPIC_OR_PARTITION), Topology()
    first = retries(good, topology=topology)
    assert first.after(asks, missing, 0.0).rule == "topic_appears"
    assert retries(bad, topology=topology).after(asks, missing, 0.0).rule is None
    assert first.after(asks, missing, 31.0).rule is None
    assert retries(good, topology=topology).after(asks, missing, 40.0).rule is None


@pytest.mark.parametrize("api_key", [api_keys.METADATA, api_keys.DESCRIBE_CONFIGS])
def test_a_topic_that_this_replay_has_made_is_waited_for_by_who_asks_what_it_is(api_key: int) -> None:
    """Brokers know it a moment after CreateTopics was answered, for which the client had waited. Without that it is the
    answer."""

    def answer_with(error: int) -> Body:
        if api_key == api_keys.METADATA:
            topic = {"name": "orders", "errorCode": error, "isInternal": False, "partitions": []}
            return {"brokers": [], "clusterId": "c", "controllerId": 1, "topics": [topic]}
        result = {"resourceType": 2, "resourceName": "orders", "errorCode": error, "errorMessage": "", "configs": []}
        return {"results": [result]}

    asks: Body = {"topics": [{"name": "orders"}]}
    if api_key == api_keys.DESCRIBE_CONFIGS:
        asks = {"resources": [{"resourceType": 2, "resourceName": "orders", "configurationKeys": None}]}
    good, bad = planned(*((api_key, 4, asks, answer_with(error)) for error in (0, errors.UNKNOWN_TOPIC_OR_PARTITION)))
    missing = answer_with(errors.UNKNOWN_TOPIC_OR_PARTITION)
    topology = Topology(created={"orders"})
    assert retries(good, topology=topology).after(asks, missing, 0.0).rule == "topic_appears"
    assert retries(good).after(asks, missing, 0.0).rule is None
    assert retries(bad, topology=topology).after(asks, missing, 0.0).rule is None


@pytest.mark.parametrize(("retried", "rule"), [(False, None), (True, "leader_moved")])
def test_a_sequence_out_of_order_follows_from_an_earlier_retry_or_is_the_answer(
    retried: bool, rule: str | None
) -> None:
    (step,) = planned((api_keys.PRODUCE, 9, PRODUCE, produced_answer(5)))
    policy = retries(step, History(retried=retried))
    assert policy.after(PRODUCE, produced_answer(5, errors.OUT_OF_ORDER_SEQUENCE_NUMBER), 0.0).rule == rule


def test_only_failed_partitions_are_sent_again_and_the_others_answers_kept() -> None:
    (step,) = planned((api_keys.PRODUCE, 9, produced({0: batch(), 1: batch()}), produced_answer({0: 5, 1: 5})))
    assert step.body is not None
    rest, answers = retries(step).parted(
        step.body, produced_answer({0: 5, 1: 5}, errors={1: errors.NOT_LEADER_OR_FOLLOWER})
    )
    assert [partition["index"] for partition in rest["topicData"][0]["partitionData"]] == [1]
    (good,) = answers
    assert [partition["index"] for partition in good["responses"][0]["partitionResponses"]] == [0]


def test_where_all_partitions_failed_the_whole_request_is_sent_again() -> None:
    (step,) = planned((api_keys.PRODUCE, 9, PRODUCE, produced_answer(5)))
    assert step.body is not None
    failed = produced_answer(5, errors.NOT_LEADER_OR_FOLLOWER)
    assert retries(step).parted(step.body, failed) == (step.body, [])


def fetch() -> Body:
    request_body = [{"partition": 0, "fetchOffset": 5, "partitionMaxBytes": 1000}]
    return {"maxWaitMs": 0, "minBytes": 1, "topics": [{"topic": "orders", "partitions": request_body}]}


def fetched(records: bytes | None) -> Body:
    part = {"partitionIndex": 0, "errorCode": 0, "highWatermark": 6, "records": records}
    return {"responses": [{"topic": "orders", "partitions": [part]}]}


def test_records_of_this_plan_are_awaited_until_it_was_in_vain_once() -> None:
    _, step = planned(
        (api_keys.PRODUCE, 9, PRODUCE, produced_answer(5)),
        (api_keys.FETCH, 4, fetch(), fetched(stored("v", base_offset=5))),
    )
    assert step.expects
    history = History()
    policy = retries(step, history)
    assert policy.after(fetch(), fetched(None), 0.0).rule == "records_awaited"
    assert policy.after(fetch(), fetched(None), 2.5).rule is None
    assert history.waited_in_vain
    assert retries(step, history).after(fetch(), fetched(None), 0.0).rule is None
