"""Members of KIP-848 groups in conversations: what a target that rebalances at other moments than the captured cluster
is told. See `test_engine.py` for how these tests read.

Proves: replay/plan/early_members.py, replay/remap/groups.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from tests.replay.conversation import Captured, Target, replayed
from tests.replay.send import group_bodies as bodies

SUBSCRIPTION: Body = {"rebalanceTimeoutMs": 300_000, "subscribedTopicNames": ["orders"], "rackId": "a"}
FENCED, UNKNOWN = 110, 25


def test_a_heartbeat_that_awaits_partitions_goes_on_with_the_epoch_of_its_last_answer() -> None:
    """A broker fences the epoch before, unless the member says what it owns."""
    capture = Captured().add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, _joins("m"), bodies.assigned("m", 1, []))
    capture.add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m", 1), bodies.assigned("m", 2, [0, 1]))
    target = Target().on(
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        bodies.assigned("m", 70, []),
        bodies.assigned("m", 71),
        bodies.assigned("m", 72, []),
        bodies.assigned("m", 73, [4]),
    )

    run = replayed([capture], target)

    assert [request.body["memberEpoch"] for request in target.received] == [0, 70, 71, 72]
    assert run.of(api_keys.CONSUMER_GROUP_HEARTBEAT)[1].retries == ["rebalance_awaited"] * 2


@pytest.mark.parametrize("error", [FENCED, UNKNOWN])
def test_a_member_that_the_target_fenced_joins_again_with_all_that_it_subscribed_to(error: int) -> None:
    capture = Captured().add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, _joins("m"), bodies.assigned("m", 1, [0]))
    capture.add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m", 1), bodies.assigned("m", 1))
    capture.add(0.2, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m", 1), bodies.assigned("m", 1))
    target = Target().on(
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        bodies.assigned("m", 70, [0]),
        _failed(error),
        bodies.assigned("m", 90, [0]),
        bodies.assigned("m", 90),
    )

    run = replayed([capture], target)

    assert [request.body["memberEpoch"] for request in target.received] == [0, 70, 0, 90]
    again = target.received[2].body
    assert {name: again[name] for name in SUBSCRIPTION} == SUBSCRIPTION
    assert again["topicPartitions"] == []
    assert run.of(api_keys.CONSUMER_GROUP_HEARTBEAT)[1].retries == ["rejoined"]
    assert run.engine.notes == {"rejoined": 1}


def test_who_leaves_does_not_join_again() -> None:
    capture = Captured().add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, _joins("m"), bodies.assigned("m", 1, [0]))
    capture.add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m", -1), bodies.assigned("m", -1))
    target = Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, bodies.assigned("m", 70, [0]), _failed(UNKNOWN))

    replayed([capture], target)

    assert [request.body["memberEpoch"] for request in target.received] == [0, -1]


def test_a_member_that_the_capture_fenced_too_stays_fenced() -> None:
    capture = Captured().add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, _joins("m"), bodies.assigned("m", 1, [0]))
    capture.add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m", 1), _failed(FENCED))
    target = Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, bodies.assigned("m", 70, [0]), _failed(FENCED))

    run = replayed([capture], target)

    assert len(target.received) == 2
    assert run.engine.notes == {}


def test_while_one_member_awaits_partitions_the_other_goes_on_and_gives_them_up() -> None:
    """The other one's heartbeat came later in the capture, after this one's answer; here the answer needs it."""
    capture = [Captured(f"10.0.0.{number}:5000-10.0.0.9:9092#1") for number in (1, 2)]
    capture[0].add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, _joins("old"), bodies.assigned("old", 1, [0, 1]))
    capture[1].add(1.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, _joins("new"), bodies.assigned("new", 2, [1]))
    capture[0].add(
        2.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("old", 1), bodies.assigned("old", 2, [0])
    )
    given_up = False

    def target_says(body: Body) -> Body:
        nonlocal given_up
        if body["memberId"] == "old":
            given_up = body["memberEpoch"] > 0
            return bodies.assigned("old", 2, [0]) if given_up else bodies.assigned("old", 1, [0, 1])
        return bodies.assigned("new", 2, [1] if given_up else None)

    run = replayed(capture, Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, target_says))

    assert [outcome.verdict for outcome in run.outcomes] == ["answered"] * 3
    assert run.engine.notes["rebalance_awaited"] >= 1
    assert run.seconds < 1


def test_two_members_that_joined_without_an_id_have_an_epoch_each() -> None:
    """Version 0: the broker makes the ids."""
    capture = [Captured(f"10.0.0.{number}:5000-10.0.0.9:9092#1") for number in (1, 2)]
    capture[0].add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 0, _joins(""), bodies.assigned("a", 1, [0]))
    capture[1].add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 0, _joins(""), bodies.assigned("b", 2, [1]))
    capture[0].add(0.2, api_keys.CONSUMER_GROUP_HEARTBEAT, 0, bodies.epoch_beat("a", 1), bodies.assigned("a", 1))
    target = Target().on(
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        bodies.assigned("x", 70, [0]),
        bodies.assigned("y", 71, [1]),
        bodies.assigned("x", 70),
    )

    replayed(capture, target)

    assert [(request.body["memberId"], request.body["memberEpoch"]) for request in target.received] == [
        ("", 0),
        ("", 0),
        ("x", 70),
    ]


def test_a_commit_that_crossed_a_new_epoch_is_sent_again_with_it() -> None:
    capture = Captured().add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, _joins("m"), bodies.assigned("m", 1, [0]))
    capture.add(0.1, api_keys.OFFSET_COMMIT, 9, bodies.commit("m", 1), bodies.committed(0))
    target = Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, bodies.assigned("m", 70, [0]))
    target.on(api_keys.OFFSET_COMMIT, bodies.committed(113), bodies.committed(0))

    run = replayed([capture], target, topics={"orders": 1})

    assert run.of(api_keys.OFFSET_COMMIT)[0].retries == ["member_epoch_moved"]
    assert [request.body["generationIdOrMemberEpoch"] for request in target.requests(api_keys.OFFSET_COMMIT)] == [
        70,
        70,
    ]


def _joins(member: str) -> Body:
    return bodies.entry(member, **SUBSCRIPTION)


def _failed(error: int) -> Body:
    return {"errorCode": error, "memberId": None, "memberEpoch": 0, "assignment": None}
