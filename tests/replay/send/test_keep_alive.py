"""Members that wait for other answers than their own, in conversations. See `test_engine.py` for how these tests read.

Proves: replay/send/keep_alive.py
"""

from __future__ import annotations

import asyncio
import itertools

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.remap.groups import MOST_REJOINS
from tests.replay.conversation import Captured, Target, replayed
from tests.replay.send import group_bodies as bodies

UNKNOWN_MEMBER = 25
SESSION_TIMEOUT_MS = 6000


def test_a_member_whose_turn_does_not_come_is_not_expired() -> None:
    """The target expires who is silent for its session timeout; something slow keeps the member's heartbeat back."""
    capture = _slow_between(_member(Captured()))
    last_beat = 0.0

    def beat(_: Body) -> Body:
        nonlocal last_beat
        now, last_beat = asyncio.get_running_loop().time(), last_beat or asyncio.get_running_loop().time()
        silent, last_beat = now - last_beat, now
        return {"errorCode": UNKNOWN_MEMBER if silent * 1000 > SESSION_TIMEOUT_MS else 0}

    target = _coordinator().on(api_keys.HEARTBEAT, beat)

    run = replayed([capture], target)

    beats = target.requests(api_keys.HEARTBEAT)
    times = [request.at for request in target.requests(api_keys.SYNC_GROUP)] + [request.at for request in beats]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 3
    assert {(request.body["memberId"], request.body["generationId"]) for request in beats} == {("new", 1)}
    assert run.engine.notes == {"kept_alive": len(beats) - 1}
    assert run.engine.own_requests["Heartbeat"] == len(beats) - 1
    assert [request.retries for request in run.of(api_keys.HEARTBEAT)] == [[]]


def test_an_error_that_only_such_a_heartbeat_met_is_kept() -> None:
    """It stands with the member's next request, which was sent once."""
    answers = iter((UNKNOWN_MEMBER, 27))
    capture = _slow_between(_member(Captured()))
    target = _coordinator().on(api_keys.HEARTBEAT, lambda _: {"errorCode": next(answers, 0)})

    run = replayed([capture], target)

    (own,) = run.of(api_keys.HEARTBEAT)
    assert own.discarded == [("kept_alive", UNKNOWN_MEMBER, False), ("kept_alive", 27, False)]
    assert own.retries == []


def test_for_who_has_nothing_left_to_say_nothing_is_said() -> None:
    """A client that died in the capture dies on the target."""
    capture = _slow_between(_member(Captured()), then=False)
    target = _coordinator()

    run = replayed([capture], target)

    assert target.requests(api_keys.HEARTBEAT) == []
    assert run.seconds > SESSION_TIMEOUT_MS / 1000


def test_a_silence_of_the_capture_is_not_filled() -> None:
    capture = _member(Captured())
    capture.add(20.0, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), {"errorCode": UNKNOWN_MEMBER})
    target = _coordinator().on(api_keys.HEARTBEAT, {"errorCode": UNKNOWN_MEMBER})

    replayed([capture], target, speed=1.0)

    assert [round(request.at - target.received[0].at) for request in target.requests(api_keys.HEARTBEAT)] == [20]


def test_a_replay_in_slow_motion_keeps_its_members() -> None:
    """Two seconds between heartbeats are twenty at a tenth of the speed."""
    capture = _member(Captured()).add(2.0, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), {"errorCode": 0})
    target = _coordinator().on(api_keys.HEARTBEAT, {"errorCode": 0})

    run = replayed([capture], target, speed=0.1)

    times = [request.at for request in target.requests(api_keys.SYNC_GROUP, api_keys.HEARTBEAT)]
    assert times[-1] - times[0] > 15
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 3
    # Counted when answered: the last may be on its way as the run ends.
    assert run.engine.notes["kept_alive"] in (len(times) - 2, len(times) - 3)


def test_an_assignment_that_came_apart_is_told_again_to_the_member_s_own_heartbeat() -> None:
    """KIP-848: a broker says an assignment once, and again to who says everything."""
    capture = Captured().add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.entry("m"), bodies.assigned("m", 1, [0]))
    capture.add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m", 1), bodies.assigned("m", 1))
    _slow_between(capture, then=False)
    capture.add(0.4, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m", 1), bodies.assigned("m", 2, [0, 1]))
    was_told = False

    def answer(body: Body) -> Body:
        nonlocal was_told
        says_all = body["subscribedTopicNames"] is not None and body["topicPartitions"] is not None
        if body["memberEpoch"] == 0:
            return bodies.assigned("m", 70, [0])
        if len(target.requests(api_keys.CONSUMER_GROUP_HEARTBEAT)) < 3:
            return bodies.assigned("m", 70)
        first, was_told = not was_told, True
        return bodies.assigned("m", 71, [0, 1] if first or says_all else None)

    target = Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, answer).on(api_keys.LIST_GROUPS, _listed(), delay=25.0)

    run = replayed([capture], target)

    own = run.engine.notes["kept_alive"]
    assert own >= 1
    beats = target.requests(api_keys.CONSUMER_GROUP_HEARTBEAT)
    assert [request.body["memberEpoch"] for request in beats] == [0, 70, 70, *[71] * own]
    assert beats[-1].body["topicPartitions"] == [{"topicId": bodies.TOPIC, "partitions": [0, 1]}]
    assert run.of(api_keys.CONSUMER_GROUP_HEARTBEAT)[-1].retries == []


def test_a_member_that_is_lost_again_and_again_is_given_up() -> None:
    capture = _member(Captured())
    for turn in range(3 * MOST_REJOINS):
        capture.add(1.0 + turn, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), {"errorCode": 0})
    is_member = True

    def beat(_: Body) -> Body:
        nonlocal is_member
        is_member = not is_member
        return {"errorCode": 0 if is_member else UNKNOWN_MEMBER}

    target = _coordinator().on(api_keys.HEARTBEAT, beat)

    run = replayed([capture], target)

    assert len(target.requests(api_keys.JOIN_GROUP)) == 1 + MOST_REJOINS
    assert run.engine.notes["rejoined"] == MOST_REJOINS
    assert run.engine.notes["rejoins_spent"] >= 1


def _member(capture: Captured) -> Captured:
    """A member that joins and syncs, into generation 6."""
    join = {
        "groupId": "g",
        "memberId": "",
        "sessionTimeoutMs": SESSION_TIMEOUT_MS,
        "rebalanceTimeoutMs": 60_000,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    capture.add(0.0, api_keys.JOIN_GROUP, 3, join, bodies.joined("m", 6))
    return capture.add(0.1, api_keys.SYNC_GROUP, 3, {**bodies.beat("m", 6), "assignments": []}, bodies.synced())


def _slow_between(capture: Captured, then: bool = True) -> Captured:
    """A question that was answered at once and takes the target 20 seconds, and a heartbeat after it."""
    capture.add(0.3, api_keys.LIST_GROUPS, 0, {}, _listed())
    return capture.add(0.4, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), {"errorCode": 0}) if then else capture


def _coordinator() -> Target:
    target = Target().on(api_keys.JOIN_GROUP, bodies.joined("new", 1)).on(api_keys.SYNC_GROUP, bodies.synced())
    return target.on(api_keys.LIST_GROUPS, _listed(), delay=20.0)


def _listed() -> Body:
    return {"errorCode": 0, "groups": []}
