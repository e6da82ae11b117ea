"""Members that the target does not let into their group, in conversations: what the others of the group had from them
in the capture never comes here, and nobody waits for it. See `test_engine.py` for how these tests read.

Proves: replay/remap/groups.py, replay/remap/retry.py, replay/send/engine.py, replay/send/keep_alive.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.remap import retry
from tests.replay.conversation import Captured, Played, Target, replayed
from tests.replay.send import group_bodies as bodies

FULL = errors.GROUP_MAX_SIZE_REACHED
REFUSED: Body = {"errorCode": FULL, "generationId": -1, "protocolName": "", "leader": "", "memberId": "", "members": []}


def captures(count: int) -> list[Captured]:
    """Connections of so many members."""
    return [Captured(f"10.0.0.{number}:5000-10.0.0.9:9092#1") for number in range(1, count + 1)]


def test_a_heartbeat_does_not_wait_for_the_rebalance_of_who_is_kept_out() -> None:
    first, second = captures(2)
    first.add(0.0, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("a", 1))
    second.add(1.0, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("b", 2), took=0.5)
    first.add(1.2, api_keys.HEARTBEAT, 3, bodies.beat("a", 1), {"errorCode": errors.REBALANCE_IN_PROGRESS})
    first.add(1.3, api_keys.JOIN_GROUP, 3, bodies.join("a"), bodies.joined("a", 2))
    second.add(1.6, api_keys.HEARTBEAT, 3, bodies.beat("b", 2), {"errorCode": 0})
    first.add(1.7, api_keys.HEARTBEAT, 3, bodies.beat("a", 2), {"errorCode": errors.REBALANCE_IN_PROGRESS})
    target = Target().on(api_keys.JOIN_GROUP, bodies.joined("here", 1), REFUSED, bodies.joined("here", 2))
    target.on(api_keys.HEARTBEAT, {"errorCode": 0})

    run = replayed([first, second], target)

    # At first the second one was still joining.
    retries: tuple[list[str], ...] = (["rebalance_awaited", "rebalance_in_vain"], [], ["rebalance_in_vain"])
    assert tuple(outcome.retries for outcome in run.of(api_keys.HEARTBEAT)) == retries
    assert [outcome.rule for outcome in run.of(api_keys.HEARTBEAT)] == [None, "not_joined", None]
    assert run.seconds < retry.Limits().rebalance


def test_while_somebody_is_joining_it_waits() -> None:
    """The second join is refused at once, the third one waits for the first member, which has to hear of it."""
    first, second, third = captures(3)
    first.add(0.0, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("a", 1))
    second.add(0.5, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("b", 2), took=2.0)
    third.add(1.0, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("c", 2), took=1.5)
    first.add(1.2, api_keys.HEARTBEAT, 3, bodies.beat("a", 1), {"errorCode": errors.REBALANCE_IN_PROGRESS})
    rebalances = [{"errorCode": 0}] * 3 + [{"errorCode": errors.REBALANCE_IN_PROGRESS}]
    target = Target().on(api_keys.HEARTBEAT, *rebalances)
    target.on(api_keys.JOIN_GROUP, bodies.joined("here", 1), REFUSED, bodies.joined("there", 2), delay=0.2)

    run = replayed([first, second, third], target)

    assert run.of(api_keys.HEARTBEAT)[0].retries == ["rebalance_awaited"] * 3


@pytest.mark.parametrize(("falls_silent", "waits"), [(True, True), (False, False)])
def test_who_may_be_expired_is_waited_for(falls_silent: bool, waits: bool) -> None:
    """Three members, of whom the target takes two; then the first one hears of a rebalance."""
    first, second, third = captures(3)
    first.add(0.0, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("a", 1))
    second.add(0.5, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("b", 2))
    third.add(1.0, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("c", 3))
    first.add(9.0, api_keys.HEARTBEAT, 3, bodies.beat("a", 3), {"errorCode": errors.REBALANCE_IN_PROGRESS})
    if not falls_silent:
        second.add(9.5, api_keys.HEARTBEAT, 3, bodies.beat("b", 3), {"errorCode": 0})
    expired = [{"errorCode": 0}] * 2 + [{"errorCode": errors.REBALANCE_IN_PROGRESS}]
    target = Target().on(api_keys.JOIN_GROUP, bodies.joined("here", 1), bodies.joined("there", 2), REFUSED)
    target.on(api_keys.HEARTBEAT, *expired)

    run = replayed([first, second, third], target)

    assert run.of(api_keys.HEARTBEAT)[0].retries == (["rebalance_awaited"] * 2 if waits else ["rebalance_in_vain"])


def test_partitions_of_who_is_kept_out_are_not_waited_for() -> None:
    """KIP-848: the first member keeps all; in the capture it was told to give up some."""
    run = _assigned(1)

    assert run.of(api_keys.CONSUMER_GROUP_HEARTBEAT)[2].retries == ["rebalance_in_vain"]
    assert run.seconds < 1


def test_partitions_that_another_member_may_give_up_are_waited_for_less() -> None:
    """Nobody can tell whether they were about whom the target keeps out."""
    run = _assigned(2)

    heartbeat = run.of(api_keys.CONSUMER_GROUP_HEARTBEAT)[3]
    assert set(heartbeat.retries) == {"rebalance_awaited"}
    assert retry.Limits().records < run.seconds < retry.Limits().rebalance


def test_who_was_not_let_in_does_not_leave() -> None:
    (capture,) = captures(1)
    capture.add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.entry("m"), bodies.assigned("m", 1, [0]))
    capture.add(
        1.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, {**bodies.entry("m"), "memberEpoch": -1}, bodies.assigned("m", -1)
    )
    refused = {"errorCode": FULL, "memberId": None, "memberEpoch": 0, "assignment": None}
    target = Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, refused)

    run = replayed([capture], target)

    assert [request.body["memberEpoch"] for request in target.received] == [0]
    assert [outcome.rule for outcome in run.of(api_keys.CONSUMER_GROUP_HEARTBEAT)] == [None, "not_joined"]


def test_a_rebalance_that_the_capture_begins_in_is_over_when_its_members_are_joined() -> None:
    """The second member's JoinGroup was sent before. Nobody waits until the first hears of it; and where the first
    joins all the same, as captured, the second does too, or the target would wait for it."""
    first, second = captures(2)
    first.add(0.0, api_keys.HEARTBEAT, 3, bodies.beat("a", 1), {"errorCode": errors.REBALANCE_IN_PROGRESS})
    first.add(0.1, api_keys.JOIN_GROUP, 3, bodies.join("a"), bodies.joined("a", 2))
    first.add(0.3, api_keys.SYNC_GROUP, 3, {**bodies.beat("a", 2), "assignments": []}, bodies.synced())
    second.add(0.2, api_keys.SYNC_GROUP, 3, {**bodies.beat("b", 2), "assignments": []}, bodies.synced())
    second.add(0.4, api_keys.HEARTBEAT, 3, bodies.beat("b", 2), {"errorCode": 0})
    target = Target().on(api_keys.JOIN_GROUP, lambda body: bodies.joined(body["memberId"] or "new", 1), delay=2.0)
    moving = {**bodies.synced(), "errorCode": errors.REBALANCE_IN_PROGRESS}
    target.on(api_keys.SYNC_GROUP, bodies.synced(), bodies.synced(), moving, bodies.synced())
    target.on(api_keys.HEARTBEAT, {"errorCode": 0})

    run = replayed([first, second], target)

    assert run.of(api_keys.HEARTBEAT)[0].retries == ["rebalance_in_vain"]
    assert ["rejoined" in outcome.retries for outcome in run.of(api_keys.SYNC_GROUP)] == [True, False]
    assert run.seconds < retry.Limits().rebalance


@pytest.mark.parametrize("leaves", [False, True])
def test_a_rebalance_that_its_member_has_been_through_is_not_awaited(leaves: bool) -> None:
    """Its client joined again on another connection, before the target knew of the rebalance; or has left by now."""
    beating, joining = captures(2)
    joining.add(0.0, api_keys.JOIN_GROUP, 3, bodies.join(""), bodies.joined("a", 1))
    joining.add(0.1, api_keys.SYNC_GROUP, 3, {**bodies.beat("a", 1), "assignments": []}, bodies.synced())
    rebalancing = {"errorCode": errors.REBALANCE_IN_PROGRESS}
    beating.add(1.0, api_keys.HEARTBEAT, 3, bodies.beat("a", 1), rebalancing, took=0.3)
    if leaves:
        joining.add(1.1, api_keys.LEAVE_GROUP, 2, {"groupId": "g", "memberId": "a"}, {"errorCode": 0})
    else:
        joining.add(1.1, api_keys.JOIN_GROUP, 3, bodies.join("a"), bodies.joined("a", 2))
    target = Target().on(api_keys.JOIN_GROUP, bodies.joined("a", 1), bodies.joined("a", 2))
    target.on(api_keys.SYNC_GROUP, bodies.synced()).on(api_keys.LEAVE_GROUP, {"errorCode": 0})
    target.on(api_keys.HEARTBEAT, {"errorCode": errors.UNKNOWN_MEMBER_ID if leaves else 0})

    run = replayed([beating, joining], target)

    (heartbeat,) = run.of(api_keys.HEARTBEAT)
    assert heartbeat.retries == ([] if leaves else ["rebalance_in_vain"])
    assert len(target.requests(api_keys.JOIN_GROUP)) == 1 + (not leaves)
    assert run.seconds < retry.Limits().rebalance


def test_early_members_whose_broker_assigns_have_what_each_gets_in_the_end() -> None:
    """KIP-848: the first one to join has all, and has to give some up before the second gets any."""
    first, second = captures(2)
    first.add(0.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m0", 1), bodies.assigned("m0", 1, [0]))
    first.add(
        0.1,
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        1,
        {**bodies.epoch_beat("m0", 1), "topicPartitions": []},
        bodies.assigned("m0", 2),
    )
    second.add(0.2, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m1", 2), bodies.assigned("m1", 2, [1]))
    second.add(0.3, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.entry("m9"), bodies.assigned("m9", 3, []))
    first.add(0.4, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.epoch_beat("m0", 2), bodies.assigned("m0", 2))
    released: list[Body] = []
    second_has: list[int] = []

    def answer(body: Body) -> Body:
        member, owned = body["memberId"], body["topicPartitions"]
        if body["memberEpoch"] == 0:
            return bodies.assigned(member, *((1, [0, 1]) if member == "m0" else (2, [])))
        if member == "m0":
            released.extend(assigned for assigned in owned or () if assigned["partitions"] == [0])
            return bodies.assigned("m0", 2) if released else bodies.assigned("m0", 1, [0])
        given = [1] if released and owned is None and not second_has else None
        second_has.extend(given or ())
        return bodies.assigned("m1", 2, given)

    run = replayed([first, second], Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, answer))

    assert second_has == [1]
    assert [outcome.retries for outcome in run.of(api_keys.CONSUMER_GROUP_HEARTBEAT)][:3] == [
        ["rebalance_in_vain"],
        [],
        ["rebalance_in_vain"],
    ]
    assert run.seconds < retry.Limits().records


def _assigned(size: int) -> Played:
    """Members join one after the other, of whom the target takes so many; the first is then told what it has now."""
    members = captures(size + 1)
    for number, capture in enumerate(members):
        given = bodies.assigned(f"m{number}", 1, [number])
        capture.add(number / 10, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, bodies.entry(f"m{number}"), given)
    beats = {"groupId": "g", "memberId": "m0", "memberEpoch": 1}
    members[0].add(1.0, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, beats, bodies.assigned("m0", 2, [0]))

    def answer(body: Body) -> Body:
        if int(body["memberId"][1:]) >= size:
            return {"errorCode": FULL, "memberId": None, "memberEpoch": 0, "assignment": None}
        return bodies.assigned(body["memberId"], 1, [0] if body["memberEpoch"] == 0 else None)

    return replayed(members, Target().on(api_keys.CONSUMER_GROUP_HEARTBEAT, answer))
