"""The engine in conversations: what the capture says, what the target answers, what must have been sent.

Each test reads top to bottom. There is no network and no real time (`conversation.py`).

Proves: replay/send/engine.py, step_sender.py, session_state.py, preparation.py, dependencies.py, routing.py,
own_requests.py, channel.py, settings.py (all in replay/send), replay/remap/topology.py,
replay/remap/transactions.py, replay/remap/share_sessions.py
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from collections import Counter
from typing import Any

import pytest

from kwire.analyzer.dataset.locks import DatasetError
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.outcome import Outcome
from kwire.replay.plan import batches
from kwire.replay.plan.sessions import Request
from kwire.replay.remap import offsets, remap, retry
from kwire.replay.send.link import Receiver
from tests.replay.batching import batch, produced, produced_answer, producer_of
from tests.replay.conversation import Captured, Target, replayed
from tests.replay.forging import batch as stored
from tests.replay.send import group_bodies as bodies


def test_a_producer_gets_the_targets_id_and_its_batches_are_sealed_again() -> None:
    capture = (
        Captured()
        .add(0.0, api_keys.INIT_PRODUCER_ID, 4, _asks_id(), {"errorCode": 0, "producerId": 7, "producerEpoch": 0})
        .add(0.1, api_keys.PRODUCE, 9, produced(batch(producer=(7, 0), sequence=0)), produced_answer(0))
        .add(0.2, api_keys.PRODUCE, 9, produced(batch(producer=(7, 0), sequence=3)), produced_answer(3))
    )
    target = Target()
    target.on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 5})
    target.on(api_keys.PRODUCE, produced_answer(100), produced_answer(103))

    run = replayed([capture], target, topics={"orders": 1})

    assert [producer_of(request.body) for request in target.requests(api_keys.PRODUCE)] == [(900, 5, 0), (900, 5, 3)]
    assert [outcome.verdict for outcome in run.outcomes] == ["answered"] * 3


def test_a_capture_that_begins_later_asks_for_a_producer_id_of_its_own_and_counts_from_0() -> None:
    capture = Captured().add(
        0.0, api_keys.PRODUCE, 9, produced(batch(producer=(7, 2), sequence=500)), produced_answer(9)
    )
    capture.add(0.1, api_keys.PRODUCE, 9, produced(batch(producer=(7, 2), sequence=503)), produced_answer(12))
    target = Target()
    target.on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 0})
    target.on(api_keys.PRODUCE, produced_answer(0), produced_answer(3))

    run = replayed([capture], target, topics={"orders": 1})

    assert [producer_of(request.body) for request in target.requests(api_keys.PRODUCE)] == [(900, 0, 0), (900, 0, 3)]
    assert run.of(api_keys.PRODUCE)[0].retries == ["producer_asked"]


def test_not_leader_right_after_the_topic_was_made_is_retried_and_no_difference() -> None:
    capture = Captured().add(0.0, api_keys.PRODUCE, 9, produced(batch()), produced_answer(0))
    target = Target()
    target.on(api_keys.METADATA, _metadata(orders=1))
    target.on(api_keys.PRODUCE, produced_answer(-1, error=6), produced_answer(-1, error=6), produced_answer(0))

    run = replayed([capture], target, topics={"orders": 1})

    (outcome,) = run.outcomes
    assert outcome.retries == ["leader_moved", "leader_moved"]
    assert outcome.verdict == "answered"
    assert len(target.requests(api_keys.PRODUCE)) == 3


def test_an_error_that_the_capture_has_too_is_the_answer() -> None:
    capture = Captured().add(0.0, api_keys.FIND_COORDINATOR, 2, _asks_coordinator(), _coordinator(error=15))
    target = Target().on(api_keys.FIND_COORDINATOR, _coordinator(error=15))

    run = replayed([capture], target)

    assert run.outcomes[0].retries == []
    assert len(target.requests(api_keys.FIND_COORDINATOR)) == 1


def test_retries_have_a_bound() -> None:
    capture = Captured().add(0.0, api_keys.FIND_COORDINATOR, 2, _asks_coordinator(), _coordinator())
    target = Target().on(api_keys.FIND_COORDINATOR, _coordinator(error=15))

    run = replayed([capture], target, limits=retry.Limits(errors=2.0))

    assert 2.0 < run.seconds < 4.0
    assert set(run.outcomes[0].retries) == {"coordinator_loads"}
    assert run.outcomes[0].verdict == "answered"  # with the error, which a comparison then finds


@pytest.mark.parametrize("recorded", [0, 1, 2])
def test_where_nothing_more_can_be_recorded_the_run_ends_and_says_so_once(
    recorded: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The last answers come when all has been sent."""
    left = [None] * recorded

    def record(_: Outcome) -> None:
        if not left:
            raise DatasetError("run: cannot be written: No space left on device")
        left.pop()

    captures = [Captured(f"10.0.0.1:{port}-10.0.0.9:9092#1") for port in (1, 2, 3)]
    for capture in captures:
        capture.add(0.0, api_keys.METADATA, 9, {"topics": None}, _metadata(), took=0.5)
    target = Target().on(api_keys.METADATA, _metadata(), delay=0.2)

    with pytest.raises(DatasetError, match="No space left"):
        replayed(captures, target, record=record)
    gc.collect()  # what a task or a future did not tell anybody is logged then
    assert not caplog.records


def test_pipelined_requests_are_pipelined_and_others_wait_for_their_answer() -> None:
    capture = Captured()
    capture.add(0.00, api_keys.METADATA, 9, {"topics": None}, _metadata(), took=0.5)
    capture.add(0.01, api_keys.METADATA, 9, {"topics": None}, _metadata(), took=0.5)  # before the first answer
    capture.add(0.60, api_keys.METADATA, 9, {"topics": None}, _metadata())  # after both
    target = Target().on(api_keys.METADATA, _metadata(), delay=0.2)

    replayed([capture], target)

    first, second, third = (request.at for request in target.requests(api_keys.METADATA))
    assert second - first < 0.01
    assert third - first > 0.39


@pytest.mark.parametrize("producer", [(-1, -1), (7, 0)])
def test_a_client_that_connects_again_does_not_overtake_itself(producer: tuple[int, int]) -> None:
    """At full speed nothing but the partition tells that the second connection goes on where the first one ended."""
    first, second = Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.1:2-10.0.0.9:9092#1")
    for number in range(3):
        first.add(0.1 * number, api_keys.PRODUCE, 9, produced(batch(producer, number * 3)), produced_answer(number * 3))
    second.add(1.0, api_keys.PRODUCE, 9, produced(batch(producer, 9)), produced_answer(9))
    target = Target().on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 0})
    target.on(api_keys.PRODUCE, *[produced_answer(number * 3) for number in range(4)], delay=0.5)

    replayed([first, second], target, topics={"orders": 1})

    links = [request.link for request in target.requests(api_keys.PRODUCE)]
    assert len(set(links[:3])) == 1
    assert links[3] != links[0]
    assert target.requests(api_keys.PRODUCE)[3].at >= 1.5


@pytest.mark.parametrize("producer", [(-1, -1), (5000, 0)])
def test_a_client_that_had_several_connections_overtakes_none_that_had_ended(producer: tuple[int, int]) -> None:
    """The third connection goes on where the first one ended, not only the second, which is still in use."""
    first, second, third = (Captured(f"10.0.0.1:{port}-10.0.0.9:9092#1") for port in (1, 2, 3))
    first.add(0.0, api_keys.PRODUCE, 9, produced(batch(producer, 0)), produced_answer(0))
    second.add(1.1, api_keys.PRODUCE, 9, produced(batch(producer, 3)), produced_answer(3), took=0.2)
    third.add(1.2, api_keys.PRODUCE, 9, produced(batch(producer, 6)), produced_answer(6))
    second.add(2.0, api_keys.PRODUCE, 9, produced({1: batch(producer, 0)}), produced_answer({1: 3}))
    target = Target().on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 0})
    target.on(api_keys.PRODUCE, lambda body: produced_answer({_partitions(body)[0]: 0}), delay=0.5)

    replayed([first, second, third], target, topics={"orders": 2})

    into = [request for request in target.requests(api_keys.PRODUCE) if _partitions(request.body)[0] == 0]
    assert len({request.link for request in into}) == 3
    assert into[1].at >= into[0].at + 0.5
    assert into[2].at >= into[0].at + 0.5
    assert abs(into[2].at - into[1].at) < 0.1  # these two were on their way at the same time


def test_a_client_that_writes_on_two_connections_in_turn_does_not_overtake_itself() -> None:
    """Neither has ended; each was used when the other's answer was there. What was on its way then has no order."""
    sides = Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.1:2-10.0.0.9:9092#1")
    for number in range(4):
        sides[number % 2].add(0.1 * number, api_keys.PRODUCE, 9, produced(batch()), produced_answer(3 * number))
    sides[0].add(0.401, api_keys.PRODUCE, 9, produced(batch()), produced_answer(12), took=0.2)
    sides[1].add(0.402, api_keys.PRODUCE, 9, produced(batch()), produced_answer(15), took=0.2)
    sides[0].add(0.7, api_keys.PRODUCE, 9, produced({1: batch()}), produced_answer({1: 0}))
    answers = [produced_answer(3 * number) for number in range(6)]
    target = Target().on(api_keys.PRODUCE, *answers, produced_answer({1: 0}), delay=0.5)

    replayed(sides, target, topics={"orders": 2})

    requests = target.requests(api_keys.PRODUCE)[:6]
    assert [request.link == requests[0].link for request in requests[:4]] == [True, False, True, False]
    moments = [request.at - requests[0].at for request in requests]
    assert moments == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.0], abs=0.1)


@pytest.mark.parametrize(("partition", "client", "last"), [(1, "client", 0.1), (0, "other", 2.0), (0, "client", 2.0)])
def test_what_has_no_order_does_not_wait(partition: int, client: str, last: float) -> None:
    """Another partition, another client, or one whose answer was not there yet."""
    first, second = Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.1:2-10.0.0.9:9092#1")
    took = 1.5 if (partition, client) == (0, "client") else 0.05
    first.add(0.0, api_keys.PRODUCE, 9, produced(batch()), produced_answer(0), took=took)
    first.add(last, api_keys.PRODUCE, 9, produced(batch()), produced_answer(3))
    records = {partition: batch()}
    second.add(1.0, api_keys.PRODUCE, 9, produced(records), produced_answer({partition: 6}), client_id=client)
    target = Target().on(api_keys.PRODUCE, lambda body: produced_answer({_partitions(body)[0]: 0}), delay=0.5)

    replayed([first, second], target, topics={"orders": 2})

    at = {request.link: request.at for request in reversed(target.requests(api_keys.PRODUCE))}
    assert abs(at[1] - at[2]) < 0.1


def test_one_absolute_schedule_a_slow_answer_delays_only_what_waits_for_it() -> None:
    capture = Captured()
    for number in range(4):
        capture.add(number * 1.0, api_keys.METADATA, 9, {"topics": None}, _metadata())
    target = Target().on(api_keys.METADATA, _metadata(), delay=0.4)

    run = replayed([capture], target, speed=2.0)

    moments = [request.at for request in target.requests(api_keys.METADATA)]
    assert [round(moment - moments[0], 1) for moment in moments] == [0.0, 0.5, 1.0, 1.5]
    assert run.seconds < 2.1


def test_topics_have_their_new_names_everywhere() -> None:
    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, 9, produced(batch()), produced_answer(0))
    capture.add(0.1, api_keys.FETCH, 4, _fetch(0), _fetched(b""))
    copied = produced_answer(50)
    copied["responses"][0]["name"] = "copy"
    target = Target().on(api_keys.PRODUCE, copied).on(api_keys.FETCH, _fetched(b""))

    replayed([capture], target, topics={"copy": 1}, options=remap.RemapOptions(map_topic={"orders": "copy"}))

    assert target.requests(api_keys.PRODUCE)[0].body["topicData"][0]["name"] == "copy"
    fetch = target.requests(api_keys.FETCH)[0].body["topics"][0]
    assert (fetch["topic"], fetch["partitions"][0]["fetchOffset"]) == ("copy", 50)


def test_shifted_timestamps_move_the_records_and_keep_their_distances() -> None:
    capture = Captured().add(0.0, api_keys.PRODUCE, 9, produced(batch((7, 0), 0)), produced_answer(0))
    target = Target().on(api_keys.PRODUCE, produced_answer(0))
    target.on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 0})

    options = remap.RemapOptions(timestamps="shift", time_delta_ms=5000)
    replayed([capture], target, topics={"orders": 1}, options=options)

    (request,) = target.requests(api_keys.PRODUCE)
    assert producer_of(request.body) == (900, 0, 0)  # which checks the checksum too
    records = request.body["topicData"][0]["partitionData"][0]["records"]
    (header,) = batches.batches(records)
    assert (header.base_timestamp, header.max_timestamp) == (6000, 6000)


def test_a_kip_848_member_has_the_target_s_epoch_and_owns_what_the_target_assigned() -> None:
    topic_id, there = "zizHtibnSdSFmiPSHtiLWA", "AAAAAAAAAAAAAAAAAAAAAQ"
    assigned = [{"topicId": there, "partitions": [4]}]
    capture = Captured()
    beats = [(0, []), (3, [{"topicId": topic_id, "partitions": [0, 1]}]), (4, None), (-1, None)]
    for number, (epoch, owned) in enumerate(beats):
        request_body = {"groupId": "g", "memberId": "m", "memberEpoch": epoch, "topicPartitions": owned}
        given = {"topicPartitions": [{"topicId": topic_id, "partitions": [0, 1]}]} if number == 0 else None
        answer = {"errorCode": 0, "memberId": "m", "memberEpoch": (3, 4, 4, -1)[number], "assignment": given}
        capture.add(number * 0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, request_body, answer)
    target = Target()
    target.on(
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        {"errorCode": 0, "memberId": "m", "memberEpoch": 70, "assignment": {"topicPartitions": assigned}},
        {"errorCode": 0, "memberId": "m", "memberEpoch": 71, "assignment": None},
    )

    replayed([capture], target)

    sent = [(request.body["memberEpoch"], request.body["topicPartitions"]) for request in target.received]
    assert sent == [(0, []), (70, assigned), (71, None), (-1, None)]


def test_acks_0_has_no_answer_and_nobody_waits_for_one() -> None:
    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, 9, produced(batch(), acks=0))
    capture.add(0.1, api_keys.METADATA, 9, {"topics": None}, _metadata())
    target = Target().on(api_keys.METADATA, _metadata())

    run = replayed([capture], target, topics={"orders": 1})

    assert [request.api_key for request in target.received] == [api_keys.PRODUCE, api_keys.METADATA]
    assert (run.of(api_keys.PRODUCE)[0].verdict, run.of(api_keys.PRODUCE)[0].rule) == (
        "not_comparable",
        "no_answer_expected",
    )


def test_a_fetch_waits_for_the_records_that_another_connection_produced() -> None:
    records = batch()
    producer = Captured("10.0.0.1:1-10.0.0.9:9092#1")
    producer.add(0.0, api_keys.PRODUCE, 9, produced(records), produced_answer(0), took=0.5)
    consumer = Captured("10.0.0.2:2-10.0.0.9:9092#1")
    consumer.add(0.1, api_keys.FETCH, 4, _fetch(0), _fetched(records), took=0.6)  # sent before, answered after
    target = Target()
    target.on(api_keys.PRODUCE, produced_answer(50), delay=0.3)
    target.on(api_keys.FETCH, _fetched(_at(50, records)))

    replayed([producer, consumer], target, topics={"orders": 1})

    assert [request.api_key for request in target.received] == [api_keys.PRODUCE, api_keys.FETCH]
    assert target.requests(api_keys.FETCH)[0].at >= 0.3
    assert target.requests(api_keys.FETCH)[0].body["topics"][0]["partitions"][0]["fetchOffset"] == 50


def test_a_commit_waits_for_what_is_below_its_offset() -> None:
    """It is sent to the coordinator, on another connection than that on which its client had read: the answer to what
    wrote the records says where its offset is on the target."""
    old = Captured("10.0.0.1:1-10.0.0.9:9092#1")
    old.add(0.0, api_keys.PRODUCE, 9, produced(batch(count=3)), produced_answer(0))
    new = Captured("10.0.0.1:2-10.0.0.8:9092#1")
    new.add(0.1, api_keys.PRODUCE, 9, produced(batch(count=3)), produced_answer(3))
    coordinator = Captured("10.0.0.2:3-10.0.0.9:9092#1")
    places = [{"partitionIndex": 0, "committedOffset": 6, "committedMetadata": ""}]
    topics = [{"name": "orders", "partitions": places}]
    request_body = {"groupId": "billing", "generationIdOrMemberEpoch": -1, "memberId": "", "topics": topics}
    done = {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]}
    coordinator.add(0.9, api_keys.OFFSET_COMMIT, 7, request_body, done)
    # Between the two batches the target has stored another two: nobody had answered those when they were captured.
    target = (
        Target()
        .on(api_keys.PRODUCE, produced_answer(0), produced_answer(5), delay=0.3)
        .on(api_keys.OFFSET_COMMIT, done)
    )

    replayed([old, new, coordinator], target, topics={"orders": 1})

    (committed,) = target.requests(api_keys.OFFSET_COMMIT)
    assert committed.body["topics"][0]["partitions"][0]["committedOffset"] == 8


@pytest.mark.parametrize(("mode", "expected"), [(offsets.AS_IS, 10), (offsets.SHIFT, 110), (offsets.POSITION, 110)])
def test_offsets_by_mode(mode: str, expected: int) -> None:
    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, 9, produced(batch(count=10)), produced_answer(0))
    capture.add(0.1, api_keys.FETCH, 4, _fetch(10), _fetched(b""))
    target = Target().on(api_keys.PRODUCE, produced_answer(100)).on(api_keys.FETCH, _fetched(b""))

    replayed([capture], target, topics={"orders": 1}, options=remap.RemapOptions(offsets=mode))

    assert target.requests(api_keys.FETCH)[0].body["topics"][0]["partitions"][0]["fetchOffset"] == expected


@pytest.mark.parametrize("mode", [offsets.SHIFT, offsets.POSITION])
def test_a_reader_is_never_ahead_of_what_it_has_read(mode: str) -> None:
    """The target is late: the first fetch finds nothing, so the second one asks for the same records, not for those
    that the captured client asked for next; what it read then is behind it."""
    first, second = batch(count=3), _at(3, batch(count=3))
    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, 9, produced(first), produced_answer(0))
    capture.add(0.1, api_keys.PRODUCE, 9, produced(second), produced_answer(3))
    for number, (offset, read) in enumerate([(0, first), (3, second), (6, b"")]):
        capture.add(1.0 + number, api_keys.FETCH, 4, _fetch(offset), _fetched(read))
    target = Target().on(api_keys.PRODUCE, produced_answer(50), produced_answer(53))
    both = _at(50, first) + _at(53, second)
    target.on(api_keys.FETCH, *[_fetched(b"")] * 3, _fetched(both), _fetched(b""))

    limits = retry.Limits(records=0.05)
    options = remap.RemapOptions(offsets=mode)
    replayed([capture], target, topics={"orders": 1}, limits=limits, options=options)

    asked_there = [
        request.body["topics"][0]["partitions"][0]["fetchOffset"] for request in target.requests(api_keys.FETCH)
    ]
    assert asked_there == [50, 50, 50, 50, 56]  # the first one three times, until its wait for records is over


@pytest.mark.parametrize(("speed", "waits"), [(None, [500, 0, 500]), (2.0, [500, 250, 500]), (1.0, [500, 500, 500])])
def test_a_reader_that_is_ahead_does_not_wait_for_what_it_has_read(speed: float | None, waits: list[int]) -> None:
    """It got in one answer what the captured one got in two, each as it was written: the second fetch finds nothing,
    and is not repeated. What is not written yet is waited for."""
    first, second, third = batch(count=3), _at(3, batch(count=3)), _at(6, batch(count=3))
    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, 9, produced(first), produced_answer(0))
    capture.add(0.01, api_keys.PRODUCE, 9, produced(second), produced_answer(3))
    for number, (offset, read) in enumerate([(0, first), (3, second), (6, third)]):
        capture.add(
            0.1 + number / 10, api_keys.FETCH, 4, {**_fetch(offset), "maxWaitMs": 500}, _fetched(read), took=0.05
        )
    target = Target().on(api_keys.PRODUCE, produced_answer(50), produced_answer(53))
    target.on(api_keys.FETCH, _fetched(_at(50, first) + _at(53, second)), _fetched(b""))

    options = remap.RemapOptions(offsets=offsets.POSITION)
    run = replayed([capture], target, topics={"orders": 1}, speed=speed, options=options)

    fetches = [request.body for request in target.requests(api_keys.FETCH)]
    assert [fetch["topics"][0]["partitions"][0]["fetchOffset"] for fetch in fetches] == [50, 56, 56]
    assert [fetch["maxWaitMs"] for fetch in fetches] == waits
    assert "records_awaited" not in run.engine.notes


def test_a_reader_of_old_message_sets_is_not_ahead_either() -> None:
    """A broker that makes message sets of batches gives what fits; the rest is asked for next (KIP-283)."""

    def old(offset: int, count: int) -> bytes:
        message = struct.pack(">IbbiI", 0, 0, 0, -1, 1) + b"v"
        return b"".join(struct.pack(">qi", offset + index, len(message)) + message for index in range(count))

    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, 9, produced(batch(count=3)), produced_answer(0))
    capture.add(0.1, api_keys.PRODUCE, 9, produced(batch(count=3)), produced_answer(3))
    for number, (offset, read) in enumerate([(0, old(0, 3)), (3, old(3, 3)), (6, b"")]):
        capture.add(1.0 + number, api_keys.FETCH, 4, _fetch(offset), _fetched(read))
    target = Target().on(api_keys.PRODUCE, produced_answer(50), produced_answer(53))
    target.on(api_keys.FETCH, _fetched(old(50, 1)), _fetched(old(51, 5)), _fetched(b""))

    replayed([capture], target, topics={"orders": 1})

    asked_there = [
        request.body["topics"][0]["partitions"][0]["fetchOffset"] for request in target.requests(api_keys.FETCH)
    ]
    assert asked_there == [50, 51, 56]


def test_a_reader_that_was_moved_when_captured_is_moved_to_the_same_record() -> None:
    records = batch(count=3)
    capture = Captured().add(0.0, api_keys.PRODUCE, 9, produced(records), produced_answer(0))
    for number, offset in enumerate((0, 1, 0)):  # the offset behind its records would be 3
        capture.add(1.0 + number, api_keys.FETCH, 4, _fetch(offset), _fetched(records))
    target = Target().on(api_keys.PRODUCE, produced_answer(50)).on(api_keys.FETCH, _fetched(_at(50, records)))

    replayed([capture], target, topics={"orders": 1})

    asked_there = [
        request.body["topics"][0]["partitions"][0]["fetchOffset"] for request in target.requests(api_keys.FETCH)
    ]
    assert asked_there == [50, 51, 50]


def test_a_fetch_session_has_the_targets_id_and_an_epoch_of_its_own() -> None:
    capture = Captured()
    capture.add(0.0, api_keys.FETCH, 11, _session_fetch(0, 0, 0), _session_answer(77))
    capture.add(0.1, api_keys.FETCH, 11, _session_fetch(77, 1), _session_answer(77))
    capture.add(0.2, api_keys.FETCH, 11, _session_fetch(77, 2), _session_answer(77))
    target = Target().on(api_keys.FETCH, _session_answer(1234))

    replayed([capture], target, topics={"orders": 1})

    sent = [
        (request.body["sessionId"], request.body["sessionEpoch"], len(request.body["topics"]))
        for request in target.received
    ]
    assert sent == [(0, 0, 1), (1234, 1, 0), (1234, 2, 0)]


def test_a_fetch_session_that_the_target_lost_is_made_again_with_all_its_partitions() -> None:
    capture = Captured()
    capture.add(0.0, api_keys.FETCH, 11, _session_fetch(0, 0, 0), _session_answer(77))
    capture.add(0.1, api_keys.FETCH, 11, _session_fetch(77, 1), _session_answer(77))
    target = Target().on(api_keys.FETCH, _session_answer(1234), _session_answer(0, error=70), _session_answer(1235))

    run = replayed([capture], target, topics={"orders": 1})

    sent = [
        (request.body["sessionId"], request.body["sessionEpoch"], len(request.body["topics"]))
        for request in target.received
    ]
    assert sent == [(0, 0, 1), (1234, 1, 0), (0, 0, 1)]
    assert "session_remade" in run.of(api_keys.FETCH)[1].retries


def test_a_target_without_fetch_sessions_gets_whole_fetches() -> None:
    """Nothing is made again: before KIP-227 there are none."""
    capture = Captured()
    capture.add(0.0, api_keys.FETCH, 11, _session_fetch(0, 0, 0), _session_answer(77))
    capture.add(0.1, api_keys.FETCH, 11, _session_fetch(77, 1), _session_answer(77))
    target = Target().on(api_keys.FETCH, {"responses": []})

    run = replayed([capture], target, topics={"orders": 1}, offers={api_keys.FETCH: (0, 6)}, speed=1.0)

    assert [len(request.body["topics"]) for request in target.received] == [1, 1]
    assert [outcome.retries for outcome in run.of(api_keys.FETCH)] == [["sessionless"]] * 2


def test_a_fetch_session_without_its_start_is_built_from_what_the_capture_names() -> None:
    capture = Captured().add(0.0, api_keys.FETCH, 11, _session_fetch(77, 15, 0), _session_answer(77))
    capture.add(0.1, api_keys.FETCH, 11, _session_fetch(77, 16), _session_answer(77))
    target = Target().on(api_keys.FETCH, _session_answer(1234))

    replayed([capture], target, topics={"orders": 1})

    sent = [(request.body["sessionId"], request.body["sessionEpoch"]) for request in target.received]
    assert sent == [(0, 0), (1234, 1)]


def test_a_reader_that_had_found_its_place_before_the_capture_reads_as_far_from_the_end_of_the_target() -> None:
    """Offset 500 of 520 is out of range on a target that ends at 30."""

    def answer(error: int, end: int) -> Body:
        return {
            **_session_answer(1234),
            "responses": [
                {
                    "topic": "orders",
                    "partitions": [{"partitionIndex": 0, "errorCode": error, "highWatermark": end, "records": b""}],
                }
            ],
        }

    capture = Captured().add(0.0, api_keys.FETCH, 11, _session_fetch(77, 15, 500), answer(0, 520))
    capture.add(0.1, api_keys.FETCH, 11, _session_fetch(77, 16), _session_answer(77))
    ends = {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "errorCode": 0, "offset": 30}]}]}
    target = (
        Target().on(api_keys.FETCH, answer(1, -1), answer(0, 30), _session_answer(1234)).on(api_keys.LIST_OFFSETS, ends)
    )

    run = replayed([capture], target, topics={"orders": 1})

    fetches = [request.body for request in target.requests(api_keys.FETCH)]
    assert [(fetch["sessionId"], fetch["sessionEpoch"]) for fetch in fetches] == [(0, 0), (0, 0), (1234, 1)]
    places = [fetch["topics"][0]["partitions"][0]["fetchOffset"] for fetch in fetches[:2]]
    assert places == [500, 10]
    assert run.engine.notes == {"position_asked": 1}


@pytest.mark.parametrize(("out_of_range", "places"), [(1, [22, 7]), (9, [22, 7, 7, 7])])
def test_what_was_said_of_the_start_of_a_log_is_no_place_for_one_that_is_out_of_range(
    out_of_range: int, places: list[int]
) -> None:
    """Only readers were chosen: on a target that ends at 10 they are as far from its end, or give up soon."""

    def answer(error: int, end: int) -> Body:
        part = {"partitionIndex": 0, "errorCode": error, "highWatermark": end, "records": b""}
        return {"responses": [{"topic": "orders", "partitions": [part]}]}

    def listed(offset: int) -> Body:
        part = {"partitionIndex": 0, "errorCode": 0, "offset": offset, "timestamp": -1}
        return {"topics": [{"name": "orders", "partitions": [part]}]}

    request_body = [{"partition": 0, "fetchOffset": 22, "partitionMaxBytes": 1000}]
    fetch: Body = {"maxWaitMs": 0, "minBytes": 1, "topics": [{"topic": "orders", "partitions": request_body}]}
    first = {"partitionIndex": 0, "currentLeaderEpoch": -1, "timestamp": -2}
    asks: Body = {"replicaId": -1, "isolationLevel": 0, "topics": [{"name": "orders", "partitions": [first]}]}
    capture = Captured().add(0.0, api_keys.LIST_OFFSETS, 5, asks, listed(0))
    capture.add(0.1, api_keys.FETCH, 4, fetch, answer(0, 25))
    target = Target().on(api_keys.LIST_OFFSETS, listed(0), listed(10))
    target.on(api_keys.FETCH, *[answer(1, -1)] * out_of_range, answer(0, 10))

    run = replayed([capture], target, topics={"orders": 1})

    sent = [request.body["topics"][0]["partitions"][0]["fetchOffset"] for request in target.requests(api_keys.FETCH)]
    assert sent == places
    assert run.engine.notes["position_asked"] == len(places) - 1


def test_a_reader_that_begins_before_the_capture_reads_from_the_first_replayed_record_on() -> None:
    """The captured log had 20 records of before, the target's has none: at 10 it would skip the first ones."""

    def listed(offset: int) -> Body:
        part = {"partitionIndex": 0, "errorCode": 0, "offset": offset, "timestamp": -1}
        return {"topics": [{"name": "orders", "partitions": [part]}]}

    first = {"partitionIndex": 0, "currentLeaderEpoch": -1, "timestamp": -2}
    asks: Body = {"replicaId": -1, "isolationLevel": 0, "topics": [{"name": "orders", "partitions": [first]}]}
    capture = Captured().add(0.0, api_keys.LIST_OFFSETS, 5, asks, listed(0))
    for number in range(4):
        answer = produced_answer(20 + 3 * number)
        capture.add(0.1 + 0.1 * number, api_keys.PRODUCE, 9, produced(batch()), answer)
    for number, offset in enumerate((10, 20, 23)):
        capture.add(0.6 + 0.1 * number, api_keys.FETCH, 4, _fetch(offset), _fetched(b""))
    target = Target().on(api_keys.LIST_OFFSETS, listed(0)).on(api_keys.FETCH, _fetched(b""))
    target.on(api_keys.PRODUCE, *[produced_answer(3 * number) for number in range(4)])

    run = replayed([capture], target, topics={"orders": 1})

    sent = [request.body["topics"][0]["partitions"][0]["fetchOffset"] for request in target.requests(api_keys.FETCH)]
    assert sent == [0, 0, 3]
    assert run.engine.remap.offsets.read_older() == [("orders", 0)]


@pytest.mark.parametrize(
    ("speed", "written", "waits"),
    [(None, False, 0), (2.0, False, 30), (1.0, False, 60), (None, True, 500), (1.0, True, 500)],
)
def test_a_fetch_of_what_nobody_here_writes_waits_as_long_as_it_had_waited(
    speed: float | None, written: bool, waits: int
) -> None:
    """The records are there at once, or never: only readers were chosen, and a long poll each would take for ever."""
    part = {"partitionIndex": 0, "errorCode": 0, "highWatermark": 6, "records": stored("v", base_offset=5)}
    answer: Body = {"responses": [{"topic": "orders", "partitions": [part]}]}
    empty: Body = {"responses": [{"topic": "orders", "partitions": [{**part, "records": b""}]}]}
    request_body = [{"partition": 0, "fetchOffset": 5, "partitionMaxBytes": 1000}]
    fetch: Body = {"maxWaitMs": 500, "minBytes": 1, "topics": [{"topic": "orders", "partitions": request_body}]}
    capture = Captured()
    if written:
        capture.add(0.0, api_keys.PRODUCE, 9, produced(batch()), produced_answer(5))
    capture.add(0.1, api_keys.FETCH, 4, fetch, answer, took=0.0599)
    target = Target().on(api_keys.FETCH, answer if written else empty).on(api_keys.PRODUCE, produced_answer(5))

    run = replayed([capture], target, topics={"orders": 1}, speed=speed)

    (request,) = target.requests(api_keys.FETCH)
    assert request.body["maxWaitMs"] == waits
    assert run.of(api_keys.FETCH)[0].retries == ([] if written else ["long_poll_scaled"])


@pytest.mark.parametrize("newest", [9, 11, 12])
def test_metadata_asked_by_topic_id_is_asked_by_name_where_the_target_is_not_asked_by_id(newest: int) -> None:
    topic_id = "zizHtibnSdSFmiPSHtiLWA"
    answer_body = {"brokers": [], "topics": [{"name": "orders", "topicId": topic_id, "partitions": []}]}
    capture = Captured().add(0.0, api_keys.METADATA, 12, {"topics": [{"topicId": topic_id, "name": None}]}, answer_body)
    target = Target().on(api_keys.METADATA, {**_metadata(), "topics": []})

    options = remap.RemapOptions(map_topic={"orders": "there"})
    replayed([capture], target, offers={api_keys.METADATA: (0, newest)}, options=options)

    (request,) = target.requests(api_keys.METADATA)
    assert request.body["topics"][0]["name"] == ("there" if newest < 12 else None)


def test_offsets_asked_by_topic_id_are_asked_by_name_where_the_target_has_no_ids() -> None:
    topic_id = "zizHtibnSdSFmiPSHtiLWA"
    capture = Captured()
    answer_body = {"brokers": [], "topics": [{"name": "orders", "topicId": topic_id, "partitions": []}]}
    capture.add(0.0, api_keys.METADATA, 12, {"topics": None}, answer_body)
    request_body = {"groups": [{"groupId": "g", "topics": [{"topicId": topic_id, "partitionIndexes": [0, 1]}]}]}
    capture.add(0.1, api_keys.OFFSET_FETCH, 10, request_body, {"groups": []})
    target = Target().on(api_keys.METADATA, _metadata()).on(api_keys.OFFSET_FETCH, {"topics": []})

    replayed([capture], target, offers={api_keys.METADATA: (0, 9), api_keys.OFFSET_FETCH: (0, 7)})

    (request,) = target.requests(api_keys.OFFSET_FETCH)
    assert (request.version, request.body["groupId"]) == (7, "g")
    assert request.body["topics"] == [{"name": "orders", "partitionIndexes": [0, 1]}]


def test_another_member_leads_on_the_target_and_gets_the_captured_assignment() -> None:
    first = _member("10.0.0.1:1-10.0.0.9:9092#1", "a", leader="a", at=0.0, assigns=[("a", b"A"), ("b", b"B")])
    second = _member("10.0.0.2:2-10.0.0.9:9092#1", "b", leader="a", at=0.01, assigns=[])
    target = Target()
    joins = iter(["x", "y"])

    def join(body: Body) -> Body:
        me = next(joins)
        return _joined(me, leader="y", generation=9)

    target.on(api_keys.JOIN_GROUP, join, delay=0.1)
    target.on(api_keys.SYNC_GROUP, {"errorCode": 0, "assignment": b""})

    replayed([first, second], target)

    synced = {entry.body["memberId"]: entry.body for entry in target.requests(api_keys.SYNC_GROUP)}
    assert synced["x"]["assignments"] == []
    assert [(entry["memberId"], entry["assignment"]) for entry in synced["y"]["assignments"]] == [
        ("x", b"A"),
        ("y", b"B"),
    ]
    assert {entry["generationId"] for entry in synced.values()} == {9}


def test_member_id_required_on_the_target_only_is_answered_with_the_id() -> None:
    capture = Captured().add(0.0, api_keys.JOIN_GROUP, 4, _join(""), _joined("old", leader="old", generation=1))
    capture.add(0.2, api_keys.HEARTBEAT, 1, bodies.beat("old", 1), {"errorCode": 0})
    target = Target()
    target.on(api_keys.JOIN_GROUP, _joined("new", error=79), _joined("new", leader="new", generation=5))
    target.on(api_keys.HEARTBEAT, {"errorCode": 0})

    run = replayed([capture], target)

    assert [request.body["memberId"] for request in target.requests(api_keys.JOIN_GROUP)] == ["", "new"]
    assert run.of(api_keys.JOIN_GROUP)[0].retries == ["member_id_given"]
    (beat,) = target.requests(api_keys.HEARTBEAT)
    assert (beat.body["memberId"], beat.body["generationId"]) == ("new", 5)


def test_concurrent_transactions_right_after_the_last_one_ended_are_retried() -> None:
    capture = Captured()
    capture.add(
        0.0, api_keys.INIT_PRODUCER_ID, 4, _asks_id("tx"), {"errorCode": 0, "producerId": 7, "producerEpoch": 0}
    )
    capture.add(0.1, api_keys.ADD_PARTITIONS_TO_TXN, 0, _adds((7, 0)), _added())
    target = Target()
    target.on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 3})
    target.on(api_keys.ADD_PARTITIONS_TO_TXN, _added(error=51), _added())

    run = replayed([capture], target)

    assert run.of(api_keys.ADD_PARTITIONS_TO_TXN)[0].retries == ["transaction_ends"]
    sent = target.requests(api_keys.ADD_PARTITIONS_TO_TXN)[0].body
    assert (sent["v3AndBelowProducerId"], sent["v3AndBelowProducerEpoch"]) == (900, 3)


def test_a_transaction_of_version_2_gets_its_partitions_added_where_the_target_demands_it() -> None:
    inside = batch(producer=(7, 0), sequence=0, transactional=True)
    later = batch(producer=(7, 1), sequence=0, transactional=True)
    capture = Captured()
    capture.add(
        0.0, api_keys.INIT_PRODUCER_ID, 5, _asks_id("tx"), {"errorCode": 0, "producerId": 7, "producerEpoch": 0}
    )
    capture.add(0.1, api_keys.PRODUCE, 12, produced(inside, name="tx"), produced_answer(0))
    capture.add(0.2, api_keys.END_TXN, 5, _ends((7, 0)), {"errorCode": 0, "producerId": 7, "producerEpoch": 1})
    capture.add(0.3, api_keys.PRODUCE, 12, produced(later, name="tx"), produced_answer(4))
    target = Target()
    target.on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 0})
    target.on(api_keys.ADD_PARTITIONS_TO_TXN, _added())
    target.on(api_keys.PRODUCE, produced_answer(0), produced_answer(4))
    target.on(api_keys.END_TXN, {"errorCode": 0})
    old = {
        api_keys.INIT_PRODUCER_ID: (0, 4),
        api_keys.PRODUCE: (0, 11),
        api_keys.END_TXN: (0, 4),
        api_keys.METADATA: (0, 12),
        api_keys.ADD_PARTITIONS_TO_TXN: (0, 3),
        api_keys.FIND_COORDINATOR: (0, 4),
    }

    replayed([capture], target, offers=old, topics={"orders": 1})

    assert [(api_keys.name(request.api_key), request.version) for request in target.received] == [
        ("InitProducerId", 4),
        ("AddPartitionsToTxn", 3),
        ("Produce", 11),
        ("EndTxn", 4),
        ("AddPartitionsToTxn", 3),
        ("Produce", 11),
    ]
    # The epoch stays on the old target, so the sequence goes on where the first transaction's records ended.
    assert [producer_of(request.body) for request in target.requests(api_keys.PRODUCE)] == [(900, 0, 0), (900, 0, 3)]


@pytest.mark.parametrize("together", [False, True])
def test_a_transaction_ends_when_all_that_it_writes_is_answered(together: bool) -> None:
    """Its last batch is answered first: of the one before a broker has to be asked again. `together`: its coordinator
    leads the partition, so that all was said on one connection."""

    def inside(partition: int) -> Body:
        return produced({partition: batch(producer=(7, 0), sequence=0, transactional=True)}, name="tx")

    writer, coordinator = Captured(), Captured("10.0.0.1:5001-10.0.0.9:9092#1")
    coordinator = writer if together else coordinator
    coordinator.add(
        0.0, api_keys.INIT_PRODUCER_ID, 4, _asks_id("tx"), {"errorCode": 0, "producerId": 7, "producerEpoch": 0}
    )
    coordinator.add(0.1, api_keys.ADD_PARTITIONS_TO_TXN, 0, _adds((7, 0)), _added())
    writer.add(0.2, api_keys.PRODUCE, 9, inside(0), produced_answer({0: 0}))
    writer.add(0.2001, api_keys.PRODUCE, 9, inside(1), produced_answer({1: 0}))
    coordinator.add(0.3, api_keys.END_TXN, 3, _ends((7, 0)), {"errorCode": 0})
    target = Target().on(api_keys.INIT_PRODUCER_ID, {"errorCode": 0, "producerId": 900, "producerEpoch": 0})
    target.on(api_keys.ADD_PARTITIONS_TO_TXN, _added()).on(api_keys.END_TXN, {"errorCode": 0})
    target.on(api_keys.METADATA, _metadata(orders=1))
    target.on(
        api_keys.PRODUCE, produced_answer({0: -1}, errors={0: 19}), produced_answer({1: 0}), produced_answer({0: 0})
    )

    sessions = [writer] if together else [writer, coordinator]
    run = replayed(sessions, target, topics={"orders": 2})

    assert run.of(api_keys.PRODUCE)[0].retries == ["leader_moved"]
    sent = [api_keys.name(request.api_key) for request in target.received if request.api_key != api_keys.METADATA]
    assert sent == ["InitProducerId", "AddPartitionsToTxn", "Produce", "Produce", "Produce", "EndTxn"]


def test_one_request_for_two_leaders_is_split_and_its_answers_are_merged() -> None:
    both = produced({0: batch(), 1: batch()})
    capture = Captured().add(0.0, api_keys.PRODUCE, 9, both, produced_answer({0: 0, 1: 0}))
    target = Target(nodes={1: ("one", 1), 2: ("two", 2)})
    target.on(api_keys.PRODUCE, lambda body: produced_answer({_partitions(body)[0]: 40}))

    run = replayed([capture], target, topics={"orders": 2}, leaders={("orders", 0): 1, ("orders", 1): 2})

    assert sorted((request.node, _partitions(request.body)) for request in target.requests(api_keys.PRODUCE)) == [
        (1, [0]),
        (2, [1]),
    ]
    (outcome,) = run.outcomes
    assert outcome.targets == ["one:1", "two:2"]
    assert outcome.answer is not None
    answer = apis_answer(api_keys.PRODUCE, 9, outcome.answer)
    assert [partition["index"] for partition in answer["responses"][0]["partitionResponses"]] == [0, 1]


def test_a_broker_s_configuration_is_asked_of_the_broker_that_stands_for_it() -> None:
    capture = Captured()
    brokers = {11: ("a", 1), 12: ("b", 2)}
    capture.add(0.0, api_keys.METADATA, 9, {"topics": None}, _metadata(brokers=brokers))
    request_body = {"resources": [{"resourceType": 4, "resourceName": "12", "configurationKeys": None}]}
    capture.add(0.1, api_keys.DESCRIBE_CONFIGS, 2, request_body, {"results": []})
    target = Target(nodes={1: ("one", 1), 2: ("two", 2)})
    target.on(api_keys.METADATA, _metadata(brokers=target.nodes)).on(api_keys.DESCRIBE_CONFIGS, {"results": []})

    replayed([capture], target, nodes={11: 1, 12: 2})

    (request,) = target.requests(api_keys.DESCRIBE_CONFIGS)
    assert (request.node, request.body["resources"][0]["resourceName"]) == (2, "2")


def test_transactions_are_described_by_their_coordinators() -> None:
    def described(body: Body) -> Body:
        return {
            "transactionStates": [
                {"errorCode": 0, "transactionalId": name, "transactionState": "Empty"}
                for name in body["transactionalIds"]
            ]
        }

    request_body = {"transactionalIds": ["a", "b", "c"]}
    capture = Captured().add(0.0, api_keys.DESCRIBE_TRANSACTIONS, 0, request_body, described(request_body))
    target = Target(nodes={1: ("one", 1), 2: ("two", 2)}).on(api_keys.DESCRIBE_TRANSACTIONS, described)
    target.on(
        api_keys.FIND_COORDINATOR,
        lambda body: {"errorCode": 0, "nodeId": 1 if body["key"] == "b" else 2, "host": "of", "port": 9},
    )

    run = replayed([capture], target)

    requests = [
        (state.node, state.body["transactionalIds"]) for state in target.requests(api_keys.DESCRIBE_TRANSACTIONS)
    ]
    assert sorted(requests) == [(1, ["b"]), (2, ["a", "c"])]
    assert run.outcomes[0].answer is not None
    states = apis_answer(api_keys.DESCRIBE_TRANSACTIONS, 0, run.outcomes[0].answer)["transactionStates"]
    assert sorted(state["transactionalId"] for state in states) == ["a", "b", "c"]


def test_only_the_partition_that_moved_is_sent_again_to_its_new_leader() -> None:
    both = produced({0: batch(), 1: batch()})
    capture = Captured().add(0.0, api_keys.PRODUCE, 9, both, produced_answer({0: 0, 1: 0}))
    target = Target(nodes={1: ("one", 1), 2: ("two", 2)})
    target.on(api_keys.PRODUCE, produced_answer({0: 0, 1: -1}, errors={1: 6}), produced_answer({1: 0}))
    target.on(api_keys.METADATA, _metadata({"orders": {0: 1, 1: 2}}, brokers={1: ("one", 1), 2: ("two", 2)}))

    run = replayed([capture], target, topics={"orders": 2})

    assert [(request.node, _partitions(request.body)) for request in target.requests(api_keys.PRODUCE)] == [
        (1, [0, 1]),
        (2, [1]),
    ]
    assert run.outcomes[0].answer is not None
    answer = apis_answer(api_keys.PRODUCE, 9, run.outcomes[0].answer)
    assert {
        partition["index"]: partition["errorCode"] for partition in answer["responses"][0]["partitionResponses"]
    } == {0: 0, 1: 0}


def test_a_closed_connection_is_opened_again_and_the_request_sent_again() -> None:
    capture = Captured().add(0.0, api_keys.FIND_COORDINATOR, 2, _asks_coordinator(), _coordinator())
    target = Target().on(api_keys.FIND_COORDINATOR, None, _coordinator()).on(api_keys.METADATA, _metadata())

    run = replayed([capture], target)

    assert run.outcomes[0].retries == ["reconnected"]
    assert run.outcomes[0].verdict == "answered"
    first, second = target.requests(api_keys.FIND_COORDINATOR)
    assert first.link != second.link


def test_a_request_that_closes_the_connection_twice_is_unanswered_and_the_session_goes_on() -> None:
    capture = Captured().add(0.0, api_keys.FIND_COORDINATOR, 2, _asks_coordinator(), _coordinator())
    capture.add(0.1, api_keys.METADATA, 9, {"topics": None}, _metadata())
    target = Target().on(api_keys.FIND_COORDINATOR, None).on(api_keys.METADATA, _metadata())

    run = replayed([capture], target)

    assert [outcome.verdict for outcome in sorted(run.outcomes, key=lambda outcome: outcome.step or 0)] == [
        "unanswered",
        "answered",
    ]
    assert "closed by the target" in (run.of(api_keys.FIND_COORDINATOR)[0].reason or "")


def test_a_target_that_goes_away_leaves_every_step_with_an_outcome() -> None:
    capture = Captured()
    for number in range(3):
        capture.add(number * 0.1, api_keys.FIND_COORDINATOR, 2, _asks_coordinator(), _coordinator())
    target = Target(down={1})

    run = replayed([capture], target)

    assert [outcome.verdict for outcome in run.outcomes] == ["not_sent"] * 3
    assert {outcome.rule for outcome in run.outcomes} == {"unreachable", "session_lost"}


_MISSING, _DENIED = 3, 29


@pytest.mark.parametrize(("version", "error"), [(9, _MISSING), (13, 100)])
def test_a_topic_that_does_not_appear_is_waited_for_once(version: int, error: int) -> None:
    """By the two requests that were on their way; not by those behind, on this connection and another."""
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"

    def by_id(body: Body, where: str) -> Body:
        """As version 13 has it."""
        return body if version < 13 else {**body, where: [{**_without(body[where][0], "name"), "topicId": topic_id}]}

    captured = [Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.2:1-10.0.0.9:9092#1")]
    known = _metadata(orders=1)
    known["topics"][0]["topicId"] = topic_id
    for capture in captured:
        capture.add(0.0, api_keys.METADATA, 12, {"topics": None}, known)
        for number in range(5):
            capture.add(
                1 + number * 0.01,
                api_keys.PRODUCE,
                version,
                by_id(produced(batch()), "topicData"),
                by_id(produced_answer(0), "responses"),
                took=0.015,
            )
    target = Target().on(api_keys.PRODUCE, by_id(produced_answer(-1, error=error), "responses"))
    target.on(api_keys.METADATA, _metadata())

    run = replayed(captured, target, limits=retry.Limits(errors=10.0))

    assert 10 < run.seconds < 13
    outcomes = run.of(api_keys.PRODUCE)
    assert {outcome.verdict for outcome in outcomes} == {"answered"}
    waited = [outcome for outcome in outcomes if len(outcome.retries) > 1]
    assert {outcome.retries[0] for outcome in waited} == {"topic_appears"}
    assert len(waited) == 4
    assert [outcome.retries for outcome in outcomes if outcome not in waited] == [["topic_absent"]] * 6


def _without(body: Body, name: str) -> Body:
    return {key: value for key, value in body.items() if key != name}


def test_a_topic_that_is_created_after_all_is_waited_for_again() -> None:
    created: Body = {
        "topics": [{"name": "orders", "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": []}],
        "timeoutMs": 1,
        "validateOnly": False,
    }
    capture = Captured()
    capture.add(0.0, api_keys.PRODUCE, 9, produced(batch()), produced_answer(0))
    capture.add(1.0, api_keys.CREATE_TOPICS, 4, created, {"topics": [{"name": "orders", "errorCode": 0}]})
    capture.add(2.0, api_keys.PRODUCE, 9, produced(batch()), produced_answer(3))
    missing = produced_answer(-1, error=_MISSING)
    target = Target().on(api_keys.METADATA, _metadata())
    target.on(api_keys.CREATE_TOPICS, {"topics": [{"name": "orders", "errorCode": 0}]})

    since = 0

    def late(body: Body) -> Body:
        nonlocal since
        since += bool(target.requests(api_keys.CREATE_TOPICS))
        return produced_answer(0) if since > 1 else missing

    target.on(api_keys.PRODUCE, late)

    run = replayed([capture], target, limits=retry.Limits(errors=10.0), allow=frozenset((api_keys.CREATE_TOPICS,)))

    assert "topic_absent" not in run.engine.notes
    assert since == 2
    assert run.of(api_keys.PRODUCE)[1].retries == ["topic_appears"]


def _creates(topic: str) -> tuple[Body, Body]:
    request_body = {"name": topic, "numPartitions": 2, "replicationFactor": 1, "assignments": [], "configs": []}
    wanted: Body = {"topics": [request_body], "timeoutMs": 1, "validateOnly": False}
    return wanted, {"topics": [{"name": topic, "errorCode": 0}]}


def _deletes(topic: str) -> tuple[Body, Body]:
    return {"topicNames": [topic], "timeoutMs": 1}, {"responses": [{"name": topic, "errorCode": 0}]}


def _listed(error: int) -> Body:
    parts = [{"partitionIndex": number, "errorCode": error, "offset": 0, "timestamp": -1} for number in range(2)]
    return {"topics": [{"name": "orders", "partitions": parts}]}


def test_who_waits_for_a_topic_that_the_replay_makes_waits_until_its_leaders_know_it() -> None:
    """Its client had waited a moment. At full speed pipelined requests would be refused, and sent again in another
    order."""
    maker, producer = Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.2:1-10.0.0.9:9092#1")
    maker.add(0.0, api_keys.CREATE_TOPICS, 4, *_creates("orders"))
    for number in range(3):
        producer.add(0.5 + number * 0.001, api_keys.PRODUCE, 9, produced(batch()), produced_answer(number), took=0.1)
    target = Target().on(api_keys.CREATE_TOPICS, _creates("orders")[1])
    target.on(api_keys.METADATA, *[_metadata()] * 3, _metadata(orders=2))
    target.on(api_keys.LIST_OFFSETS, _listed(_MISSING), _listed(0))
    target.on(api_keys.PRODUCE, *map(produced_answer, range(3)))

    run = replayed([maker, producer], target, allow=frozenset((api_keys.CREATE_TOPICS,)))

    sent = [request.at for request in target.requests(api_keys.PRODUCE)]
    assert len(sent) == 3
    assert min(sent) > target.requests(api_keys.LIST_OFFSETS)[1].at
    assert [outcome.retries for outcome in run.of(api_keys.PRODUCE)] == [[]] * 3


def test_a_session_that_is_met_first_waits_for_one_that_speaks_first() -> None:
    """When the first one looks, the other one has not begun yet."""
    first, second = Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.2:1-10.0.0.9:9092#1")
    second.add(0.0, api_keys.DELETE_TOPICS, 4, *_deletes("orders"))
    first.add(0.5, api_keys.CREATE_TOPICS, 4, *_creates("orders"))
    target = (
        Target().on(api_keys.CREATE_TOPICS, _creates("orders")[1]).on(api_keys.DELETE_TOPICS, _deletes("orders")[1])
    )
    target.on(api_keys.METADATA, _metadata())

    run = replayed([first, second], target, allow=frozenset((api_keys.CREATE_TOPICS, api_keys.DELETE_TOPICS)))

    assert [request.api_key for request in target.requests(api_keys.CREATE_TOPICS, api_keys.DELETE_TOPICS)] == [20, 19]
    assert run.engine.notes["wait_released"] == 0


def test_what_makes_a_topic_again_waits_until_it_is_gone() -> None:
    maker, eraser = Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.2:1-10.0.0.9:9092#1")
    eraser.add(0.0, api_keys.DELETE_TOPICS, 4, *_deletes("orders"))
    maker.add(0.5, api_keys.CREATE_TOPICS, 4, *_creates("orders"))
    target = (
        Target().on(api_keys.CREATE_TOPICS, _creates("orders")[1]).on(api_keys.DELETE_TOPICS, _deletes("orders")[1])
    )
    target.on(api_keys.LIST_OFFSETS, _listed(0))
    target.on(api_keys.METADATA, *[_metadata(orders=2)] * 3, _metadata(), _metadata(orders=2))

    replayed([maker, eraser], target, allow=frozenset((api_keys.CREATE_TOPICS, api_keys.DELETE_TOPICS)))

    (creation,) = target.requests(api_keys.CREATE_TOPICS)
    assert [request.at < creation.at for request in target.requests(api_keys.METADATA)] == [True] * 4 + [False]


def test_a_topic_that_the_target_denies_is_not_waited_for() -> None:
    capture = Captured()
    for number in range(5):
        capture.add(number * 0.01, api_keys.PRODUCE, 9, produced(batch()), produced_answer(number * 3))
    target = Target().on(api_keys.PRODUCE, produced_answer(-1, error=_DENIED))
    target.on(
        api_keys.METADATA, {**_metadata(), "topics": [{"errorCode": _DENIED, "name": "orders", "partitions": []}]}
    )

    run = replayed([capture], target)

    assert run.seconds < 1
    assert [(outcome.verdict, outcome.retries) for outcome in run.outcomes] == [("answered", [])] * 5


def test_no_more_is_in_flight_than_the_bound_where_the_capture_lacks_the_answers() -> None:
    """Seen from one side only, nothing in the capture says when to wait."""
    capture = Captured()
    for number in range(30):
        capture.add(number * 0.001, api_keys.METADATA, 9, {"topics": None})
    target = Target().on(api_keys.METADATA, _metadata(), delay=1.0)

    run = replayed([capture], target, in_flight=10)

    moments = [request.at for request in target.requests(api_keys.METADATA)]
    assert max(sum(sent <= other < sent + 1.0 for other in moments) for sent in moments) <= 10
    assert run.engine.notes["back_pressure"] == 20
    assert len(run.outcomes) == 30


def test_a_connection_that_takes_nothing_holds_back_what_expects_no_answer_and_then_ends() -> None:
    """acks=0: no answer ever says that the target is behind."""
    capture = Captured()
    for number in range(100):
        capture.add(number * 0.001, api_keys.PRODUCE, 9, produced(batch(), acks=0))
    other = Captured("10.0.0.2:1-10.0.0.9:9092#1").add(0.0, api_keys.PRODUCE, 9, produced(batch(), acks=0))
    target = Target(deaf=True)
    size = len(capture.requests[0].data or b"") + 4

    run = replayed([capture, other], target, topics={"orders": 1}, backlog_bytes=10 * size)

    assert target.most_unsent == 11 * size
    verdicts = [
        (outcome.verdict, outcome.rule) for outcome in sorted(run.outcomes, key=lambda outcome: outcome.step or 0)
    ]
    assert Counter(verdicts) == {
        ("not_comparable", "no_answer_expected"): 12,
        ("not_sent", "unreachable"): 1,
        ("not_sent", "session_lost"): 88,
    }
    assert run.engine.failure is not None
    assert run.engine.failure.message == "target:9092: takes no more data"
    assert 180 < run.seconds < 182  # once for the first, and in the end once more for the other


def test_a_target_that_is_slower_with_each_answer_slows_the_run_and_then_ends_it() -> None:
    """Four requests a second, pipelined by two; each answer takes twice as long as the one before."""
    capture = Captured()
    for number in range(40):
        capture.add(number * 0.25, api_keys.METADATA, 9, {"topics": None}, _metadata(), took=0.4)
    target = Target()

    def slower(body: Body) -> Body:
        target.delay[api_keys.METADATA] *= 2
        return _metadata()

    target.on(api_keys.METADATA, slower, delay=0.1)

    run = replayed([capture], target, speed=1.0, silence=120.0)

    assert run.engine.failure is not None
    assert run.engine.failure.message == "target:9092: no answer to anything for 122 s"
    verdicts = [
        (outcome.verdict, outcome.rule) for outcome in sorted(run.outcomes, key=lambda outcome: outcome.step or 0)
    ]
    # The tenth answer would take 102 s: its connection ends after 90 s, and what was sent on the next goes unanswered.
    assert verdicts == (
        [("answered", None)] * 9
        + [("unanswered", None)] * 2
        + [("unanswered", "aborted")] * 2
        + [("not_sent", "aborted")] * 27
    )
    lateness = [(outcome.sent_ns or 0) - (outcome.scheduled_ns or 0) for outcome in run.of(api_keys.METADATA)[1:10]]
    assert lateness == sorted(lateness)
    assert lateness[-1] > 40e9
    assert 220 < run.seconds < 240


def test_a_target_that_never_answers_ends_the_run() -> None:
    capture = Captured()
    for number in range(3):
        capture.add(number * 0.1, api_keys.METADATA, 9, {"topics": None}, _metadata())
    target = Target().on(api_keys.METADATA, _metadata(), delay=1e9)

    run = replayed([capture], target, silence=120.0)

    verdicts = [
        (outcome.verdict, outcome.rule) for outcome in sorted(run.outcomes, key=lambda outcome: outcome.step or 0)
    ]
    assert verdicts == [("unanswered", None), ("unanswered", "aborted"), ("not_sent", "aborted")]
    first, second = target.received
    assert first.link != second.link  # the first answer was waited for, then its connection ended
    assert 120 < run.seconds < 130


@pytest.mark.parametrize("moment", [0.0, 0.00005, 0.00015, 0.0005, 0.0205, 0.2, 0.5, 1.5, 5.5])
def test_every_step_has_one_outcome_whenever_the_run_is_interrupted(moment: float) -> None:
    """Before the first turn, while dialling, asking, sending, waiting for a time, an answer or another connection."""
    records = batch()
    writer = Captured("10.0.0.1:1-10.0.0.9:9092#1")
    for number in range(5):
        writer.add(number * 0.02, api_keys.PRODUCE, 9, produced(records), produced_answer(number * 3))
    reader = Captured("10.0.0.2:1-10.0.0.9:9092#1")
    for number in range(5):
        reader.add(number * 1.0, api_keys.METADATA, 9, {"topics": None}, _metadata(), took=2.0)
    silent = Captured("10.0.0.3:1-10.0.0.9:9092#1").add(0.0, api_keys.METADATA, 9, {"topics": None})
    target = Target().on(api_keys.METADATA, _metadata(), delay=0.4).on(api_keys.PRODUCE, produced_answer(0), delay=0.1)

    run = replayed([writer, reader, silent], target, topics={"orders": 1}, speed=1.0, interrupted_after=moment)

    assert sorted(outcome.step or 0 for outcome in run.outcomes) == list(range(11))
    assert {(outcome.verdict, outcome.rule) for outcome in run.outcomes} <= {
        ("answered", None),
        ("not_comparable", "not_captured"),
        ("unanswered", "aborted"),
        ("not_sent", "aborted"),
    }
    assert {outcome.verdict for outcome in run.outcomes if outcome.action == "not_sent"} <= {"not_sent"}
    answered = [outcome for outcome in run.outcomes if outcome.verdict == "answered"]
    assert bool(answered) == (moment > 0.1)


def test_silence_counts_only_while_an_answer_is_owed() -> None:
    capture = Captured()
    for number in range(3):
        capture.add(number * 1000.0, api_keys.METADATA, 9, {"topics": None}, _metadata())
    target = Target().on(api_keys.METADATA, _metadata())

    run = replayed([capture], target, speed=1.0)

    assert [outcome.verdict for outcome in run.outcomes] == ["answered"] * 3


def test_who_waits_for_what_never_comes_is_released_and_nothing_hangs() -> None:
    """The second connection's heartbeat waits for the first one's join, which the target cannot take; so the target has
    no such member, and nothing is sent in its name."""
    first = Captured("10.0.0.1:1-10.0.0.8:9092#1", broker=("10.0.0.8", 9092))
    first.add(0.0, api_keys.JOIN_GROUP, 4, _join(""), _joined("a", leader="a", generation=1))
    second = Captured("10.0.0.2:2-10.0.0.9:9092#1")
    second.add(1.0, api_keys.HEARTBEAT, 1, bodies.beat("a", 1), {"errorCode": 0})
    target = (
        Target()
        .on(api_keys.JOIN_GROUP, None)
        .on(api_keys.HEARTBEAT, {"errorCode": 25})
        .on(api_keys.METADATA, _metadata())
    )

    run = replayed([first, second], target)

    assert [outcome.verdict for outcome in run.of(api_keys.JOIN_GROUP)] == ["unanswered"]
    assert [(outcome.verdict, outcome.rule) for outcome in run.of(api_keys.HEARTBEAT)] == [("skipped", "not_joined")]


def test_every_captured_exchange_has_one_outcome() -> None:
    capture = Captured()
    capture.add(0.0, api_keys.API_VERSIONS, 0, {}, {"errorCode": 0, "apiKeys": []})
    capture.add(0.1, api_keys.METADATA, 9, {"topics": None}, _metadata())
    capture.add(0.2, api_keys.DELETE_TOPICS, 3, {"topicNames": ["orders"], "timeoutMs": 1}, {"responses": []})
    target = Target().on(api_keys.METADATA, _metadata())

    run = replayed([capture], target)

    planned = run.engine.plan
    assert len(run.outcomes) + len(planned.skips) == len(capture.requests)
    assert {skip.rule for skip in planned.skips} == {"replayer", "mutating"}


# --- what is said ---------------------------------------------------------------------------------------------------


def apis_answer(api_key: int, version: int, frame: bytes) -> Body:
    from kwire.analyzer.protocol import tree

    body = tree.decode_response(frame, api_key, version, exact=True).body
    assert body is not None
    return body


def _asks_id(name: str | None = None) -> Body:
    return {"transactionalId": name, "transactionTimeoutMs": 1000}


def _asks_coordinator() -> Body:
    return {"key": "g", "keyType": 0}


def _coordinator(error: int = 0) -> Body:
    return {"errorCode": error, "errorMessage": None, "nodeId": 1, "host": "h", "port": 1}


def _metadata(
    leaders: dict[str, dict[int, int]] | None = None, brokers: dict[int, tuple[str, int]] | None = None, **topics: int
) -> Body:
    known = leaders or {name: dict.fromkeys(range(count), 1) for name, count in topics.items()}
    there = brokers or {1: ("target", 9092)}
    return {
        "brokers": [{"nodeId": n, "host": host, "port": port, "rack": None} for n, (host, port) in there.items()],
        "clusterId": "c",
        "controllerId": 1,
        "topics": [
            {
                "errorCode": 0,
                "name": name,
                "isInternal": False,
                "partitions": [
                    {
                        "errorCode": 0,
                        "partitionIndex": p,
                        "leaderId": leader,
                        "replicaNodes": [leader],
                        "isrNodes": [leader],
                        "offlineReplicas": [],
                    }
                    for p, leader in partitions.items()
                ],
            }
            for name, partitions in known.items()
        ],
    }


def _fetch(offset: int) -> Body:
    return {
        "replicaId": -1,
        "maxWaitMs": 500,
        "minBytes": 1,
        "maxBytes": 1000,
        "isolationLevel": 0,
        "topics": [
            {"topic": "orders", "partitions": [{"partition": 0, "fetchOffset": offset, "partitionMaxBytes": 1000}]}
        ],
    }


def _fetched(records: bytes) -> Body:
    return {
        "responses": [
            {
                "topic": "orders",
                "partitions": [
                    {
                        "partitionIndex": 0,
                        "errorCode": 0,
                        "highWatermark": 10,
                        "lastStableOffset": 10,
                        "abortedTransactions": None,
                        "records": records,
                    }
                ],
            }
        ]
    }


def _at(offset: int, records: bytes) -> bytes:
    """A batch as it is stored at an offset."""
    return offset.to_bytes(8, "big") + records[8:]


def _session_fetch(session: int, epoch: int, *offsets_asked: int) -> Body:
    topics = (
        [
            {
                "topic": "orders",
                "partitions": [
                    {"partition": p, "fetchOffset": offset, "partitionMaxBytes": 1000}
                    for p, offset in enumerate(offsets_asked)
                ],
            }
        ]
        if offsets_asked
        else []
    )
    return {
        "replicaId": -1,
        "maxWaitMs": 5,
        "minBytes": 1,
        "maxBytes": 1000,
        "isolationLevel": 0,
        "sessionId": session,
        "sessionEpoch": epoch,
        "topics": topics,
        "forgottenTopicsData": [],
    }


def _session_answer(session: int, error: int = 0) -> Body:
    return {"errorCode": error, "sessionId": session, "responses": []}


def _join(member: str) -> Body:
    return bodies.join(member, rebalance_ms=6000)


def _joined(member: str, leader: str = "", generation: int = -1, error: int = 0) -> Body:
    return bodies.joined(member, generation, "range", leader, error)


def _member(connection: str, member: str, leader: str, at: float, assigns: list[tuple[str, bytes]]) -> Captured:
    """A member that joins and syncs in generation 1."""
    capture = Captured(connection)
    capture.add(at, api_keys.JOIN_GROUP, 2, _join(""), _joined(member, leader, 1), took=0.5)
    given = [{"memberId": member, "assignment": content} for member, content in assigns]
    body = {"groupId": "g", "generationId": 1, "memberId": member, "assignments": given}
    return capture.add(at + 0.6, api_keys.SYNC_GROUP, 1, body, {"errorCode": 0, "assignment": b""})


def _adds(producer: tuple[int, int]) -> Body:
    return {
        "v3AndBelowTransactionalId": "tx",
        "v3AndBelowProducerId": producer[0],
        "v3AndBelowProducerEpoch": producer[1],
        "v3AndBelowTopics": [{"name": "orders", "partitions": [0]}],
    }


def _added(error: int = 0) -> Body:
    return {
        "resultsByTopicV3AndBelow": [
            {"name": "orders", "resultsByPartition": [{"partitionIndex": 0, "partitionErrorCode": error}]}
        ]
    }


def _ends(producer: tuple[int, int]) -> Body:
    return {"transactionalId": "tx", "producerId": producer[0], "producerEpoch": producer[1], "committed": True}


def _partitions(body: Body) -> list[int]:
    return [partition["index"] for partition in body["topicData"][0]["partitionData"]]


def test_a_captured_answer_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what is sent, whether it is sent again and what is learned all depend on it."""
    decodings: Counter[int] = Counter()
    decoded = Request.decoded_answer

    def counted(request: Request) -> Any:
        decodings[request.exchange] += 1
        return decoded(request)

    monkeypatch.setattr(Request, "decoded_answer", counted)
    capture = Captured()
    for number in range(3):
        capture.add(number / 10, api_keys.FETCH, 4, _fetch(0), _fetched(b""))
    run = replayed([capture], Target().on(api_keys.FETCH, _fetched(b"")), topics={"orders": 1})
    assert [outcome.verdict for outcome in run.outcomes] == ["answered"] * 3
    assert decodings == {0: 1, 1: 1, 2: 1}


def test_a_run_does_not_look_for_garbage_among_its_outcomes_and_leaves_that_as_it_was() -> None:
    """Outcomes are new objects that stay: each look for garbage would go through all of them."""
    captured = Captured()
    for number in range(3):
        captured.add(0.0, api_keys.PRODUCE, 9, produced(batch(), acks=1), produced_answer(number))
    before = gc.get_threshold()
    during: list[int] = []

    def answer(_: Body) -> Body:
        during.append(gc.get_threshold()[0])
        return produced_answer(0)

    replayed([captured], Target().on(api_keys.PRODUCE, answer), topics={"orders": 1})

    assert min(during) > 10_000
    assert gc.get_threshold() == before


def test_a_session_that_does_not_notice_that_the_run_ends_is_told_again() -> None:
    """`asyncio.wait_for` loses a cancellation that comes together with its result: Ctrl-C left a worker that waited an
    hour for the next step."""

    class Unnoticing(Target):
        async def dial(self, host: str, port: int, receiver: Receiver) -> Any:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10.0)
            return await super().dial(host, port, receiver)

    captured = Captured()
    for at in (0.0, 3600.0):
        captured.add(at, api_keys.PRODUCE, 9, produced(batch()), produced_answer(0))

    run = replayed([captured], Unnoticing(), topics={"orders": 1}, speed=1.0, interrupted_after=1.0)

    assert run.seconds < 60
    assert [outcome.verdict for outcome in run.outcomes if outcome.step == 1] == ["not_sent"]
