"""Members whose joining the capture does not show, or that the target lost, in conversations. See `test_engine.py` for
how these tests read; `test_members.py` has what the broker assigns (KIP-848).

Proves: replay/send/joining.py
"""

from __future__ import annotations

from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.analyzer.protocol.tree import Body
from kwire.replay.remap import retry
from tests.replay.conversation import Captured, ReceivedRequest, Target, replayed
from tests.replay.send import group_bodies as bodies

UNKNOWN_MEMBER, errors.ILLEGAL_GENERATION, REBALANCE, NOT_COORDINATOR, INCONSISTENT = 25, 22, 27, 16, 23
SUBSCRIBED = [{"name": "roundrobin", "metadata": b"\0\0anything"}]


# --- before the capture began ---


def test_a_member_that_had_joined_before_the_capture_is_joined_first() -> None:
    capture = Captured().add(0.0, api_keys.HEARTBEAT, 3, bodies.beat("m", 5), _fine())
    capture.add(0.1, api_keys.OFFSET_COMMIT, 7, bodies.commit("m", 5), bodies.committed())
    target = _coordinator().on(api_keys.JOIN_GROUP, _joined("new", 1)).on(api_keys.SYNC_GROUP, bodies.synced())

    run = replayed([capture], target, topics={"orders": 1})

    assert [request.api_key for request in target.received] == [
        api_keys.JOIN_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.HEARTBEAT,
        api_keys.OFFSET_COMMIT,
    ]
    assert _who(target.requests(api_keys.HEARTBEAT)) == [("new", 1)]
    assert _who(target.requests(api_keys.OFFSET_COMMIT)) == [("new", 1)]
    assert run.engine.notes == {"joined_early": 1}
    assert [outcome.rule for outcome in run.outcomes] == ["joined_early", None]


def test_it_subscribes_to_what_its_group_commits_where_nothing_else_says_it() -> None:
    capture = Captured().add(0.0, api_keys.OFFSET_COMMIT, 7, bodies.commit("m", 5), bodies.committed())
    capture.add(0.1, api_keys.HEARTBEAT, 3, bodies.beat("m", 5), _fine())
    target = _coordinator().on(api_keys.JOIN_GROUP, _joined("new", 1)).on(api_keys.SYNC_GROUP, bodies.synced())

    replayed([capture], target, topics={"orders": 1})

    (joins,) = target.requests(api_keys.JOIN_GROUP)
    (protocol,) = joins.body["protocols"]
    subscription = tree.decode_data(protocol["metadata"][2:], "ConsumerProtocolSubscription", 0, exact=True)
    assert (protocol["name"], subscription.body) == ("range", {"topics": ["orders"], "userData": None})


def test_it_joins_as_it_does_later_in_the_capture() -> None:
    """Else its group would have members that share no protocol (INCONSISTENT_GROUP_PROTOCOL)."""
    capture = Captured().add(0.0, api_keys.HEARTBEAT, 3, bodies.beat("m", 5), _failed(REBALANCE))
    capture.add(0.1, api_keys.JOIN_GROUP, 5, _joins("m"), _joined("m", 6))
    capture.add(0.2, api_keys.SYNC_GROUP, 3, {**bodies.beat("m", 6), "assignments": []}, bodies.synced())
    target = (
        _coordinator()
        .on(api_keys.JOIN_GROUP, _joined("new", 1), _joined("new", 2))
        .on(api_keys.SYNC_GROUP, bodies.synced())
    )
    target.on(api_keys.HEARTBEAT, _failed(REBALANCE))

    replayed([capture], target)

    early, captured = target.requests(api_keys.JOIN_GROUP)
    assert [protocol["name"] for protocol in early.body["protocols"]] == ["roundrobin"]
    assert (early.body["memberId"], captured.body["memberId"]) == ("", "new")
    assert _who(target.requests(api_keys.SYNC_GROUP)) == [("new", 1), ("new", 2)]


def test_members_that_were_together_are_together_again() -> None:
    """The first is alone in its generation until the second joins: then it has to join again, as it is told."""
    capture = Captured().add(0.0, api_keys.HEARTBEAT, 3, bodies.beat("a", 5), _fine())
    capture.add(0.1, api_keys.HEARTBEAT, 3, bodies.beat("b", 5), _fine())
    members: list[str] = []

    def join(body: Body) -> Body:
        if not body["memberId"]:
            members.append(f"new-{len(members) + 1}")
        return _joined(body["memberId"] or members[-1], len(members))

    def beat(body: Body) -> Body:
        return _fine() if body["generationId"] == len(members) else _failed(REBALANCE)

    target = (
        _coordinator()
        .on(api_keys.JOIN_GROUP, join)
        .on(api_keys.SYNC_GROUP, bodies.synced())
        .on(api_keys.HEARTBEAT, beat)
    )

    run = replayed([capture], target)

    assert sorted(_who(target.requests(api_keys.HEARTBEAT)[-2:])) == [("new-1", 2), ("new-2", 2)]
    assert run.engine.notes == {"joined_early": 2}


def test_the_assignment_is_for_the_ids_that_all_of_them_have_now() -> None:
    """The capture begins between the answers to JoinGroup and SyncGroup."""
    given = [{"memberId": "a", "assignment": b"some"}, {"memberId": "b", "assignment": b"others"}]
    capture = Captured().add(
        0.0, api_keys.SYNC_GROUP, 3, {**bodies.beat("a", 5), "assignments": given}, bodies.synced()
    )
    capture.add(0.1, api_keys.SYNC_GROUP, 3, {**bodies.beat("b", 5), "assignments": []}, bodies.synced())
    joined = [_joined("new-a", 1), {**_joined("new-b", 1), "leader": "new-a"}]
    target = _coordinator().on(api_keys.JOIN_GROUP, *joined).on(api_keys.SYNC_GROUP, bodies.synced())

    replayed([capture], target)

    assert [
        request.body["assignments"]
        for request in target.requests(api_keys.SYNC_GROUP)
        if request.body["memberId"] == "new-a"
    ] == [[{"memberId": "new-a", "assignment": b"some"}, {"memberId": "new-b", "assignment": b"others"}]] * 2


def test_in_a_group_whose_broker_assigns_it_joins_with_epoch_0() -> None:
    """KIP-848: a commit with the epoch of the capture would be refused."""
    capture = Captured().add(0.0, api_keys.OFFSET_COMMIT, 9, bodies.commit("m", 7), bodies.committed())
    beats = {"groupId": "g", "memberId": "m", "memberEpoch": 7}
    back = {"errorCode": 0, "memberId": "m", "memberEpoch": 7, "assignment": None}
    capture.add(0.1, api_keys.CONSUMER_GROUP_HEARTBEAT, 1, beats, back)
    target = _coordinator().on(api_keys.CONSUMER_GROUP_HEARTBEAT, {**back, "memberEpoch": 1})

    replayed([capture], target, topics={"orders": 1})

    joins, beat = target.requests(api_keys.CONSUMER_GROUP_HEARTBEAT)
    assert (joins.body["memberEpoch"], joins.body["subscribedTopicNames"]) == (0, ["orders"])
    assert beat.body["memberEpoch"] == 1
    assert [request.body["generationIdOrMemberEpoch"] for request in target.requests(api_keys.OFFSET_COMMIT)] == [1]


def test_a_target_that_does_not_take_it_is_told_nothing_more_by_it() -> None:
    capture = Captured().add(0.0, api_keys.HEARTBEAT, 3, bodies.beat("m", 5), _fine())
    target = _coordinator().on(api_keys.JOIN_GROUP, _failed_join(INCONSISTENT))

    run = replayed([capture], target)

    assert target.requests(api_keys.HEARTBEAT) == []
    (outcome,) = run.outcomes
    assert (outcome.verdict, outcome.rule) == ("skipped", "no_member")
    assert outcome.reason == "JoinGroup of group g: error 23"


def test_whom_the_captured_cluster_did_not_know_is_not_joined() -> None:
    capture = Captured().add(0.0, api_keys.HEARTBEAT, 3, bodies.beat("m", 5), _failed(UNKNOWN_MEMBER))
    capture.add(0.1, api_keys.JOIN_GROUP, 3, _joins(""), _joined("m2", 6))
    target = _coordinator().on(api_keys.HEARTBEAT, _failed(UNKNOWN_MEMBER)).on(api_keys.JOIN_GROUP, _joined("new", 1))

    run = replayed([capture], target)

    assert [request.api_key for request in target.received] == [api_keys.JOIN_GROUP]
    assert [outcome.rule for outcome in run.outcomes] == [None]


def test_a_cluster_that_was_never_asked_for_a_coordinator_is_asked() -> None:
    """Its answer to everything is NOT_COORDINATOR until FindCoordinator makes the topic of the offsets."""
    capture = Captured().add(0.0, api_keys.OFFSET_COMMIT, 7, bodies.commit("", -1), bodies.committed())
    target = _coordinator().on(api_keys.OFFSET_COMMIT, bodies.committed(NOT_COORDINATOR), bodies.committed())

    run = replayed([capture], target, topics={"orders": 1})

    assert [request.api_key for request in target.received] == [
        api_keys.OFFSET_COMMIT,
        api_keys.FIND_COORDINATOR,
        api_keys.OFFSET_COMMIT,
    ]
    assert run.engine.notes == {"coordinator_loads": 1}


# --- lost by the target ---


def test_a_member_that_the_target_lost_joins_again_and_assigns_what_the_captured_leader_did() -> None:
    given = [{"memberId": "m", "assignment": b"all of it"}]
    capture = _member("m", given).add(0.2, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), _fine())
    target = (
        _coordinator()
        .on(api_keys.JOIN_GROUP, _joined("first", 1), _joined("second", 2))
        .on(api_keys.SYNC_GROUP, bodies.synced())
    )
    target.on(api_keys.HEARTBEAT, _failed(UNKNOWN_MEMBER), _fine())

    run = replayed([capture], target)

    assert _who(target.requests(api_keys.HEARTBEAT)) == [("first", 1), ("second", 2)]
    assert target.requests(api_keys.SYNC_GROUP)[1].body["assignments"] == [
        {"memberId": "second", "assignment": b"all of it"}
    ]
    assert run.of(api_keys.HEARTBEAT)[0].retries == ["rejoined"]


def test_the_others_join_again_too() -> None:
    """They are told so by a rebalance that their capture does not have."""
    other = Captured("10.0.0.2:5000-10.0.0.9:9092#1")
    capture = [_member("a"), _member("b", start=0.5, into=other)]
    capture[0].add(1.0, api_keys.HEARTBEAT, 3, bodies.beat("a", 6), _fine())
    capture[1].add(1.1, api_keys.HEARTBEAT, 3, bodies.beat("b", 6), _fine())
    target = _coordinator().on(
        api_keys.JOIN_GROUP, _joined("a1", 1), _joined("b1", 1), _joined("a2", 2), _joined("b1", 2)
    )
    target.on(api_keys.SYNC_GROUP, bodies.synced())
    target.on(api_keys.HEARTBEAT, _failed(UNKNOWN_MEMBER), _fine(), _failed(REBALANCE), _fine())

    run = replayed(capture, target, speed=1.0)

    assert _who(target.requests(api_keys.HEARTBEAT)) == [("a1", 1), ("a2", 2), ("b1", 1), ("b1", 2)]
    assert run.engine.notes["rejoined"] == 2


def test_members_of_one_generation_of_which_the_target_makes_two_join_again() -> None:
    """One joins too late there. It waits for the others, and they had its answer when they went on in the capture."""
    late = Captured("10.0.0.2:5000-10.0.0.9:9092#1")
    capture = [Captured(), late]
    capture[0].add(0.0, api_keys.JOIN_GROUP, 3, _joins(""), _joined("a", 6))
    late.add(0.0, api_keys.JOIN_GROUP, 3, _joins(""), _joined("b", 6))
    for who, member in zip(capture, "ab", strict=True):
        who.add(0.1, api_keys.SYNC_GROUP, 3, {**bodies.beat(member, 6), "assignments": []}, bodies.synced())
        who.add(0.2, api_keys.HEARTBEAT, 3, bodies.beat(member, 6), _fine())
    target = _coordinator().on(api_keys.JOIN_GROUP, _joined("a", 1), _joined("b", 2), _joined("a", 2))
    target.held[api_keys.JOIN_GROUP] = lambda _: 3.0 if len(target.requests(api_keys.JOIN_GROUP)) == 2 else 0.0
    target.on(api_keys.SYNC_GROUP, bodies.synced(REBALANCE), bodies.synced())

    run = replayed(capture, target)

    assert [outcome.verdict for outcome in run.outcomes] == ["answered"] * 6
    assert run.of(api_keys.SYNC_GROUP)[0].retries == ["rejoined"]
    assert set(_who(target.requests(api_keys.HEARTBEAT))) == {("a", 2), ("b", 2)}
    assert run.seconds < 4


def test_a_rebalance_that_nobody_s_rejoining_made_is_the_answer() -> None:
    """The capture's own join follows."""
    capture = _member("m").add(0.2, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), _fine())
    target = _coordinator().on(api_keys.JOIN_GROUP, _joined("new", 1)).on(api_keys.SYNC_GROUP, bodies.synced())
    target.on(api_keys.HEARTBEAT, _failed(REBALANCE))

    run = replayed([capture], target)

    assert len(target.requests(api_keys.JOIN_GROUP)) == 1
    assert run.engine.notes == {}


def test_a_commit_of_a_generation_that_the_member_left_is_made_in_its_new_one() -> None:
    capture = _member("m").add(0.2, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), _fine())
    capture.add(0.3, api_keys.JOIN_GROUP, 3, _joins("m"), _joined("m", 7), took=0.2)
    capture.add(0.4, api_keys.OFFSET_COMMIT, 7, bodies.commit("m", 6), bodies.committed(), took=0.2)
    target = (
        _coordinator()
        .on(api_keys.JOIN_GROUP, _joined("new", 1), _joined("new", 2))
        .on(api_keys.SYNC_GROUP, bodies.synced())
    )
    target.on(api_keys.OFFSET_COMMIT, bodies.committed(errors.ILLEGAL_GENERATION), bodies.committed())

    run = replayed([capture], target, topics={"orders": 1})

    assert _who(target.requests(api_keys.OFFSET_COMMIT)) == [("new", 1), ("new", 2)]
    assert len(target.requests(api_keys.JOIN_GROUP)) == 2
    assert run.of(api_keys.OFFSET_COMMIT)[0].retries == ["rejoined"]


def test_a_join_with_an_id_that_the_target_has_forgotten_is_made_without() -> None:
    capture = _member("m").add(0.2, api_keys.JOIN_GROUP, 5, _joins("m"), _joined("m", 7))
    required = {**_failed_join(79), "memberId": "second"}
    target = (
        _coordinator()
        .on(api_keys.SYNC_GROUP, bodies.synced())
        .on(api_keys.JOIN_GROUP, _joined("first", 1), _failed_join(UNKNOWN_MEMBER), required, _joined("second", 2))
    )

    run = replayed([capture], target)

    assert [request.body["memberId"] for request in target.requests(api_keys.JOIN_GROUP)] == ["", "first", "", "second"]
    assert run.of(api_keys.JOIN_GROUP)[1].retries == ["rejoined", "member_id_given"]


def test_a_target_that_never_takes_the_member_is_asked_for_so_long_and_no_longer() -> None:
    capture = _member("m").add(0.2, api_keys.HEARTBEAT, 3, bodies.beat("m", 6), _fine())
    target = _coordinator().on(api_keys.JOIN_GROUP, _joined("new", 1)).on(api_keys.SYNC_GROUP, bodies.synced())
    target.on(api_keys.HEARTBEAT, _failed(UNKNOWN_MEMBER))

    run = replayed([capture], target, limits=retry.Limits(errors=2.0))

    assert run.seconds < 4
    assert run.of(api_keys.HEARTBEAT)[0].verdict == "answered"
    assert run.engine.notes["rejoined"] > 1


# --- what they say ---


def _coordinator() -> Target:
    there = {"errorCode": 0, "nodeId": 1, "host": "target", "port": 9092}
    target = Target().on(api_keys.HEARTBEAT, _fine()).on(api_keys.OFFSET_COMMIT, bodies.committed())
    return target.on(api_keys.FIND_COORDINATOR, there)


def _member(
    member: str, assignments: list[Body] | None = None, *, start: float = 0.0, into: Captured | None = None
) -> Captured:
    """A member that joins and syncs, into generation 6."""
    capture = into or Captured()
    capture.add(start, api_keys.JOIN_GROUP, 3, _joins(""), _joined(member, 6))
    return capture.add(
        start + 0.1,
        api_keys.SYNC_GROUP,
        3,
        {**bodies.beat(member, 6), "assignments": assignments or []},
        bodies.synced(),
    )


def _who(requests: list[ReceivedRequest]) -> list[tuple[str, int]]:
    """Members and generations, as the target heard them."""
    field = {api_keys.OFFSET_COMMIT: "generationIdOrMemberEpoch"}
    return [
        (request.body["memberId"], request.body[field.get(request.api_key, "generationId")]) for request in requests
    ]


def _joins(member: str) -> Body:
    return bodies.join(member, SUBSCRIBED)


def _joined(member: str, generation: int) -> Body:
    return bodies.joined(member, generation, "roundrobin")


def _failed_join(error: int) -> Body:
    return {"errorCode": error, "generationId": -1, "protocolName": "", "leader": "", "memberId": "", "members": []}


def _fine() -> Body:
    return {"errorCode": 0}


def _failed(error: int) -> Body:
    return {"errorCode": error}
