"""Which requests are sent, which are skipped and by which rule, and what waits for what. Nothing is sent here.

Proves: replay/plan/decisions.py, order.py, cluster.py, topic_partitions.py, steps.py (all in replay/plan)
"""

from __future__ import annotations

import struct

import pytest

from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.analyzer.protocol.tree import Body
from kwire.replay import run_plan
from kwire.replay.plan import decisions, sessions
from kwire.replay.plan.steps import Plan
from kwire.replay.plan.topic_partitions import NAME, partitions
from kwire.replay.plan.values import Offers, offers_of
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import EVERYTHING, Captured
from tests.replay.plan.test_batches import old

STREAMS_GROUP_HEARTBEAT = 88


def planned(*captured: Captured, offers: Offers | None = None, allow: tuple[int, ...] = ()) -> Plan:
    sessions = [capture.session() for capture in captured]
    return decisions.make(sessions, offers or EVERYTHING, decisions.PlanOptions(frozenset(allow)))[0]


def _old_produce(records: bytes) -> Body:
    body = produced(records)
    del body["transactionalId"]
    return body


def rules(plan: Plan) -> list[str]:
    return [skip.rule for skip in plan.skips]


def test_admin_requests_are_sent_only_when_allowed() -> None:
    capture = Captured().add(0.0, api_keys.DELETE_TOPICS, 3, {"topicNames": ["t"], "timeoutMs": 1}, {"responses": []})
    assert rules(planned(capture)) == ["mutating"]
    assert len(planned(capture, allow=(api_keys.DELETE_TOPICS,)).steps) == 1


def test_a_secret_is_not_sent_even_when_allowed() -> None:
    upsertion = {"name": "u", "mechanism": 1, "iterations": 4096, "salt": b"salt", "saltedPassword": b"secret"}
    capture = Captured().add(0.0, 51, 0, {"deletions": [], "upsertions": [upsertion]}, {"results": []})
    assert rules(planned(capture, allow=(51,))) == ["secret"]


def test_brokers_and_logins_are_left_out() -> None:
    capture = Captured()
    capture.add(0.0, api_keys.API_VERSIONS, 0, {})
    capture.add(0.1, api_keys.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    capture.add(0.2, 27, 0, {"markers": []})
    capture.add(0.3, api_keys.FETCH, 4, {"replicaId": 2, "maxWaitMs": 1, "minBytes": 1, "topics": []})
    assert rules(planned(capture)) == ["replayer", "login", "internal", "follower"]


def test_an_api_or_a_version_that_the_target_lacks() -> None:
    capture = Captured().add(
        0.0, api_keys.SHARE_GROUP_HEARTBEAT, 1, {"groupId": "g", "memberId": "m", "memberEpoch": 0}
    )
    assert rules(planned(capture, offers={api_keys.METADATA: (0, 9)})) == ["target_lacks_api"]
    static = {"groupId": "g", "sessionTimeoutMs": 1, "memberId": "m", "groupInstanceId": "i", "protocolType": "c"}
    capture = Captured().add(0.0, api_keys.JOIN_GROUP, 7, static)
    assert rules(planned(capture, offers={api_keys.JOIN_GROUP: (0, 4)})) == ["target_lacks_version"]


def test_message_sets_become_batches_only_where_the_target_demands_it() -> None:
    capture = Captured().add(0.0, api_keys.PRODUCE, 2, _old_produce(old(1)))
    (new,) = planned(capture, offers={api_keys.PRODUCE: (3, 9), api_keys.FETCH: (4, 12)}).steps
    assert (new.version, new.rules) == (3, ("version", "batches"))
    (same,) = planned(capture).steps
    assert (same.version, same.rules) == (2, ())


def test_records_that_cannot_become_batches_are_a_skip_with_its_reason() -> None:
    capture = Captured().add(0.0, api_keys.PRODUCE, 2, _old_produce(old(1)[:-3]))
    (skip,) = planned(capture, offers={api_keys.PRODUCE: (3, 9)}).skips
    assert skip.rule == "bad_records"
    assert "at byte" in skip.reason


def test_produce_0_to_2_of_a_broker_that_lacks_fetch_0_to_3_is_not_to_be_believed() -> None:
    answer = {
        "apiKeys": [{"apiKey": 0, "minVersion": 0, "maxVersion": 13}, {"apiKey": 1, "minVersion": 4, "maxVersion": 18}]
    }
    assert offers_of(answer)[api_keys.PRODUCE] == (3, 13)


def test_null_records_are_never_sent() -> None:
    body = produced(batch())
    body["topicData"][0]["partitionData"][0]["records"] = None
    assert rules(planned(Captured().add(0.0, api_keys.PRODUCE, 9, body))) == ["null_records"]


def test_what_failed_in_the_capture_and_was_sent_again_is_sent_once() -> None:
    capture = Captured()
    capture.add(
        0.0, api_keys.PRODUCE, 9, produced({0: batch(), 1: batch()}), produced_answer({0: -1, 1: 5}, errors={0: 6})
    )
    capture.add(0.1, api_keys.PRODUCE, 9, produced({0: batch()}), produced_answer(0))
    first, second = planned(capture).steps
    assert [partition[1] for partition in partitions(api_keys.PRODUCE, first.body or {})] == [1]
    assert first.rules == ("client_retried",)
    assert [partition[1] for partition in partitions(api_keys.PRODUCE, second.body or {})] == [0]


@pytest.mark.parametrize(("newest", "sent"), [(9, ["", "m-1"]), (4, ["", "m-1"]), (3, ["m-1"]), (2, ["m-1"])])
def test_a_member_without_an_id_joins_once_where_the_target_gives_ids_only_to_who_has_joined(
    newest: int, sent: list[str]
) -> None:
    """Before KIP-394 its first request joins, and waits for the others of its group, who rejoin after its second."""
    joins: Body = {"groupId": "g", "sessionTimeoutMs": 1, "memberId": "", "protocolType": "consumer", "protocols": []}
    capture = Captured()
    capture.add(0.0, api_keys.JOIN_GROUP, 5, joins, {"errorCode": errors.MEMBER_ID_REQUIRED, "memberId": "m-1"})
    capture.add(0.1, api_keys.JOIN_GROUP, 5, {**joins, "memberId": "m-1"}, {"memberId": "m-1", "generationId": 1})

    plan = planned(capture, offers={api_keys.JOIN_GROUP: (0, newest)})

    assert [(step.body or {})["memberId"] for step in plan.steps] == sent
    skipped = [(skip.rule, skip.reason) for skip in plan.skips]
    assert skipped == [("client_retried", "MEMBER_ID_REQUIRED (79)")] * (2 - len(sent))


def test_a_request_of_millions_of_fields_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MB of empty topic names took 14 s and 2 GB (`metadata-4M-empty-topics` of the hostile captures)."""
    monkeypatch.setattr(sessions, "FIELDS", 100)
    monkeypatch.setattr(tree, "decode_frames", lambda frames: [None] * len(frames))  # as of more than a million fields
    capture = Captured()
    for topics in (40, 400):
        capture.add(
            topics / 100, api_keys.METADATA, 4, {"topics": [{"name": "t"}] * topics, "allowAutoTopicCreation": False}
        )
    plan = planned(capture)
    assert [step.request.sent_ns for step in plan.steps] == [capture.session().requests[0].sent_ns]
    ((rule, reason),) = [(skip.rule, skip.reason) for skip in plan.skips]
    assert (rule, reason.partition(": ")[2]) == ("incomplete", "has more fields than the limit allows")


def test_metadata_never_makes_topics() -> None:
    capture = Captured().add(0.0, api_keys.METADATA, 1, {"topics": [{"name": "t"}]})
    (step,) = planned(capture).steps
    assert (step.version, step.rules) == (4, ("no_auto_create",))


def test_a_member_of_a_share_group_that_joined_before_the_capture_cannot_be_joined() -> None:
    """Nothing says what it subscribed to: its heartbeats do not, and nobody commits for a share group."""
    capture = Captured().add(
        0.0, api_keys.SHARE_GROUP_HEARTBEAT, 1, {"groupId": "g", "memberId": "m", "memberEpoch": 5}
    )
    assert rules(planned(capture)) == ["no_member"]


def test_a_commit_in_a_group_of_which_nothing_else_is_known_is_made_without_membership() -> None:
    commit: Body = {"groupId": "g", "generationIdOrMemberEpoch": 5, "memberId": "m", "topics": []}
    (step,) = planned(Captured().add(0.1, api_keys.OFFSET_COMMIT, 9, commit)).steps
    assert step.rules == ("committed_alone",)
    assert step.body is not None
    assert (step.body["memberId"], step.body["generationIdOrMemberEpoch"]) == ("", -1)


def test_a_heartbeat_in_a_streams_group_is_not_sent_and_says_so() -> None:
    """Its tasks are its own kind of assignment, which nothing here maps (KIP-1071)."""
    beats = {"groupId": "g", "memberId": "m", "memberEpoch": 1}
    capture = Captured().add(0.0, STREAMS_GROUP_HEARTBEAT, 0, beats)
    assert rules(planned(capture)) == rules(planned(capture, allow=(STREAMS_GROUP_HEARTBEAT,))) == ["streams_group"]


def test_a_topic_id_that_nobody_names_is_named_by_the_user_the_dataset_or_the_target() -> None:
    request_body = {
        "replicaState": {},
        "maxWaitMs": 1,
        "minBytes": 1,
        "topics": [{"topicId": "zizHtibnSdSFmiPSHtiLWA", "partitions": [{"partition": 3, "fetchOffset": 7}]}],
    }
    capture = Captured().add(0.0, api_keys.FETCH, 16, request_body)
    (skip,) = planned(capture).skips
    assert (skip.rule, skip.reason) == (
        "unknown_topic_id",
        "zizHtibnSdSFmiPSHtiLWA: --map-topic zizHtibnSdSFmiPSHtiLWA=NAME names it",
    )
    (line,) = run_plan.unnamed(planned(capture))
    assert line == (
        "nothing says the name of topic id zizHtibnSdSFmiPSHtiLWA: 1 requests are not sent; "
        "--map-topic zizHtibnSdSFmiPSHtiLWA=NAME"
    )

    elsewhere = {"zizHtibnSdSFmiPSHtiLWA": "orders", "AAAAAAAAAAAAAAAAAAAAAQ": "not in the capture"}
    plan, facts = decisions.make([capture.session()], EVERYTHING, decisions.PlanOptions(topic_ids=elsewhere))
    assert (plan.steps[0].body or {})["topics"][0][NAME] == "orders"
    assert facts.topic_names == {"zizHtibnSdSFmiPSHtiLWA": "orders"}
    assert facts.topics["orders"].partitions == 4


def test_a_topic_id_is_named_by_the_records_that_were_produced_by_name() -> None:
    records = batch(count=4)
    producer = Captured("10.0.0.1:1-10.0.0.9:9092#1").add(
        0.0, api_keys.PRODUCE, 9, produced(records), produced_answer(7)
    )
    request_body = {
        "replicaState": {},
        "maxWaitMs": 1,
        "minBytes": 1,
        "topics": [{"topicId": "zizHtibnSdSFmiPSHtiLWA", "partitions": [{"partition": 0, "fetchOffset": 7}]}],
    }
    answer = {
        "responses": [
            {
                "topicId": "zizHtibnSdSFmiPSHtiLWA",
                "partitions": [{"partitionIndex": 0, "highWatermark": 11, "records": records}],
            }
        ]
    }
    consumer = Captured("10.0.0.1:2-10.0.0.9:9092#1").add(0.1, api_keys.FETCH, 16, request_body, answer)
    plan = planned(producer, consumer)
    assert plan.skips == ()
    assert NAME in (plan.steps[1].body or {})["topics"][0]


def test_a_connection_waits_for_answers_that_its_client_had_and_for_no_others() -> None:
    capture = Captured()
    for at in (0.0, 0.001, 0.5):
        capture.add(
            at, api_keys.FIND_COORDINATOR, 1, {"key": str(at), "keyType": 0}, {"nodeId": 1, "host": "h", "port": 1}
        )
    assert [step.waits for step in planned(capture).steps] == [(), (), (1,)]


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (1, 0), (1, 2)])
@pytest.mark.parametrize("writes_batches", [True, False], ids=["batches", "sets"])
def test_a_reader_of_old_message_sets_waits_for_what_it_reads(magic: int, codec: int, writes_batches: bool) -> None:
    """A compressed message stands at the offset of the last one inside, which only its writer's request tells."""
    writers = [Captured(f"10.0.0.1:{number}-10.0.0.9:9092#1") for number in range(3)]
    for number, writer in enumerate(writers):
        version, body = (9, produced(batch())) if writes_batches else (2, _old_produce(old(magic, codec)))
        answer = produced_answer(3 * number)
        if not writes_batches:
            del answer["responses"][0]["partitionResponses"][0]["logStartOffset"]
        writer.add(number / 10, api_keys.PRODUCE, version, body, answer)
    read = b"".join(
        struct.pack(">q", offset) + message[8:]
        for offset, message in (
            [(5, old(magic, codec))] if codec else zip((3, 4, 5), _messages(old(magic)), strict=True)
        )
    )
    place = {"partition": 0, "fetchOffset": 3, "partitionMaxBytes": 1 << 20}
    request_body = {
        "replicaId": -1,
        "maxWaitMs": 1,
        "minBytes": 1,
        "topics": [{"topic": "orders", "partitions": [place]}],
    }
    answer_body = {
        "responses": [
            {
                "topic": "orders",
                "partitions": [{"partitionIndex": 0, "errorCode": 0, "highWatermark": 9, "records": read}],
            }
        ]
    }
    reader = Captured("10.0.0.2:1-10.0.0.9:9092#1").add(1.0, api_keys.FETCH, 2, request_body, answer_body)

    last = planned(*writers, reader).steps[-1]

    # The first one wrote what is below the offset that is asked for; the third one nothing that is read.
    assert (last.request.api_key, last.waits, last.expects) == (api_keys.FETCH, (0, 1), True)


def _messages(records: bytes) -> list[bytes]:
    """The messages of a set, one by one."""
    if not records:
        return []
    (length,) = struct.unpack_from(">i", records, 8)
    return [records[: 12 + length], *_messages(records[12 + length :])]


def test_connections_wait_for_each_other_only_where_they_share_state() -> None:
    capture = Captured("10.0.0.1:1-10.0.0.9:9092#1")
    capture.add(
        0.0,
        api_keys.INIT_PRODUCER_ID,
        1,
        {"transactionalId": "tx", "transactionTimeoutMs": 1},
        {"producerId": 7, "producerEpoch": 0},
    )
    two = Captured("10.0.0.1:2-10.0.0.9:9092#1")
    two.add(0.1, api_keys.PRODUCE, 9, produced(batch(producer=(7, 0), sequence=0)), produced_answer(0))
    other = Captured("10.0.0.1:3-10.0.0.9:9092#1")
    other.add(0.2, api_keys.PRODUCE, 9, produced({1: batch(producer=(8, 0), sequence=0)}), produced_answer({1: 3}))
    assert [step.waits for step in planned(capture, two, other).steps] == [(), (0,), ()]


def test_producers_that_ran_one_after_the_other_write_to_a_partition_in_that_order() -> None:
    """Whichever client they belong to: what is read of it, and how much at a time, depends on how it is laid out."""
    sides = [Captured(f"10.0.0.1:{number}-10.0.0.9:9092#1") for number in range(4)]
    for number, (start, producer) in enumerate([(0.0, 7), (0.2, 8), (0.3, 9), (0.5, 7)]):
        for again in range(2):
            records = produced(batch(producer=(producer, 0), sequence=2 * number + again))
            sides[number].add(start + 0.15 * again, api_keys.PRODUCE, 9, records, produced_answer(4 * number + again))
    # 7 at 0.0 and 0.15; 8 at 0.2 and 0.35, 9 at 0.3 and 0.45 at the same time; 7 again, at 0.5 and 0.65.
    waits = {step.at_ns: step.waits for step in planned(*sides).steps}
    assert [waits[at] for at in sorted(waits)] == [(), (0,), (1,), (1,), (2,), (3,), (1, 4, 5), (6,)]


def test_who_joins_is_sent_after_who_made_it_join() -> None:
    join: Body = {"groupId": "g", "sessionTimeoutMs": 1, "memberId": "", "protocolType": "consumer"}
    capture = Captured("10.0.0.1:1-10.0.0.9:9092#1").add(0.0, api_keys.JOIN_GROUP, 2, join, {"memberId": "a"}, took=1.0)
    two = Captured("10.0.0.1:2-10.0.0.9:9092#1").add(0.5, api_keys.JOIN_GROUP, 2, join, {"memberId": "b"}, took=0.5)
    first, second = planned(capture, two).steps
    assert (first.waits, first.after) == ((), ())
    assert (second.waits, second.after) == ((), (0,))
