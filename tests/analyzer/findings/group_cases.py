"""Cases of groups: rebalances, members that vanish or come late, who has which partitions, coordinators."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.reports.forging import at


@case("rebalance-storm")
def storm(traffic: Traffic, wrong: bool) -> None:
    unplanned = 3 if wrong else 2
    for number in range(6):
        traffic.add(
            "rebalances",
            group_id="g",
            generation=7 + number,
            began=at(60 * number),
            ended=at(60 * number + 1),
            trigger="expired" if number < unplanned else "join",
            members_before=["m"],
        )


@case("rebalance-storm", "not where members are replaced one after the other")
def deploy(traffic: Traffic, wrong: bool) -> None:
    """Six members leave, each of another client, or one client's again and again."""
    for number in range(6):
        who = {"client_ip": "10.0.0.1" if wrong else f"10.0.0.{number}", "client_id": "app", "member_id": f"m-{number}"}
        traffic.add("groups", time=at(60 * number), group_id="g", event="leave", **who)
        traffic.add(
            "rebalances",
            group_id="g",
            generation=number,
            began=at(60 * number),
            ended=at(60 * number + 20),
            trigger="leave",
            trigger_member=f"m-{number}",
            members_before=["m"],
            stopped=[{"member_id": "m", "stopped_us": 20_000_000}],
        )


@case("member-session-timeout")
def expired(traffic: Traffic, wrong: bool) -> None:
    who = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1", "member_id": "m"}
    if not wrong:
        traffic.add("groups", time=at(10), event="coordinator_moved", **who)
    traffic.add("groups", time=at(20), event="expired", **who)


@case("member-session-timeout", "not where it may have left in what is missing")
def not_captured(traffic: Traffic, wrong: bool) -> None:
    who = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1", "member_id": "m"}
    traffic.ask("Heartbeat", 0, group_id="g", member_id="m")
    traffic.ask("Heartbeat", 0, on=1, group_id="g", member_id="other")
    traffic.rows["connections"][0 if not wrong else 1]["gaps"] = 1
    traffic.add("groups", time=at(20), event="expired", **who)


@case("member-session-timeout", "not where packets are missing and its connection has no end")
def end_not_captured(traffic: Traffic, wrong: bool) -> None:
    who = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1", "member_id": "m"}
    traffic.ask("Heartbeat", 0, group_id="g", member_id="m")
    traffic.link(1, gaps=1)
    traffic.rows["connections"][0]["closed"] = "fin" if wrong else "open"
    traffic.add("groups", time=at(20), event="expired", **who)


@case("poll-interval-exceeded")
def poll(traffic: Traffic, wrong: bool) -> None:
    left = 301 if wrong else 200
    traffic.ask("Fetch", 0)
    for second in range(50, left, 50):
        traffic.ask("Heartbeat", second, group_id="g", member_id="m")
    traffic.ask("LeaveGroup", left, group_id="g", member_id="m")
    traffic.ask("JoinGroup", left + 1, group_id="g", member_id="m2")


@case("poll-interval-exceeded", "as JoinGroup says it")
def own_poll(traffic: Traffic, wrong: bool) -> None:
    left = 31 if wrong else 29
    who = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1", "event": "join"}
    traffic.add("groups", time=at(0), member_id="m", rebalance_timeout_ms=30_000, **who)
    traffic.add("groups", time=at(left + 1), member_id="m2", rebalance_timeout_ms=5000, **who)
    traffic.ask("Fetch", 0)
    traffic.ask("Heartbeat", 20, group_id="g", member_id="m")
    traffic.ask("LeaveGroup", left, group_id="g", member_id="m")
    traffic.ask("JoinGroup", left + 1, group_id="g", member_id="m2")


@case("poll-interval-exceeded", "not of who was never seen to read")
def reads_elsewhere(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Fetch" if wrong else "OffsetCommit", 0, group_id="g", member_id="m")
    _waits_and_leaves(traffic)


@case("poll-interval-exceeded", "not of who may have no partition")
def idle_member(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Fetch", 2 if wrong else 0)
    traffic.ask("JoinGroup", 1, group_id="g", member_id="m")
    _waits_and_leaves(traffic)


def _waits_and_leaves(traffic: Traffic) -> None:
    traffic.ask("Heartbeat", 50, group_id="g", member_id="m")
    traffic.ask("LeaveGroup", 305, group_id="g", member_id="m")
    traffic.ask("JoinGroup", 306, group_id="g", member_id="m2")


@case("heartbeat-late", "as JoinGroup says it")
def own_late(traffic: Traffic, wrong: bool) -> None:
    traffic.add("groups", time=at(0), group_id="g", member_id="m", event="join", session_timeout_ms=10_000)
    for second in (0, 3, 11 if wrong else 9):
        traffic.ask("Heartbeat", second, group_id="g", member_id="m")


def assigned(
    traffic: Traffic, has: dict[str, list[tuple[str, int]]], ended: float = 1, *, joined: bool = True, **columns: Any
) -> None:
    """A rebalance that gave these members these partitions."""
    for number, member in enumerate(has):
        who = {"member_id": member, "client_id": f"app-{number}", "client_ip": "10.0.0.1"}
        traffic.add("groups", time=at(0), group_id="g", event="join" if joined else "heartbeat_failed", **who)
    parts = [
        {"member_id": member, "topic": topic, "partition": partition}
        for member, some in has.items()
        for topic, partition in some
    ]
    usual = {"group_id": "g", "protocol": "classic", "generation": 1, "began": at(0), "trigger": "join"}
    row = {"members_after": sorted(has), "assignment_after": parts, "ended": at(ended)}
    traffic.add("rebalances", **{**usual, **row, **columns})


def until(traffic: Traffic, second: float) -> None:
    """The capture goes on until then."""
    traffic.ask("Heartbeat", second, 0, group_id="other")


_IDLE: dict[str, list[tuple[str, int]]] = {"a": [("t", 0)], "b": [("t", 1)], "c": []}


@case("unassigned-consumers")
def idle(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, _IDLE)
    until(traffic, 61 if wrong else 60.9)


@case("unassigned-consumers", "not where the next rebalance came soon")
def idle_until_the_next(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, _IDLE)
    assigned(traffic, {"a": [("t", 0)], "b": [("t", 1)]}, 70, began=at(65 if wrong else 30), generation=2)
    until(traffic, 90)


@case("unassigned-consumers", "not where a member left soon")
def idle_until_one_left(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, _IDLE)
    traffic.add("groups", time=at(20), group_id="other" if wrong else "g", event="leave", member_id="a")
    until(traffic, 90)


@case("unassigned-consumers", "not where there are partitions enough: members may read others")
def idle_by_choice(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, {"a": [("t", 0)] + [("t", 1)] * (not wrong), "b": [("t", 2)] * (not wrong)})
    until(traffic, 90)


@case("unassigned-consumers", "not of members that may have had partitions before the capture")
def idle_since_when(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, _IDLE, joined=wrong, protocol="consumer")
    until(traffic, 90)


@case("unassigned-consumers", "not where packets are missing")
def idle_and_missing(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, _IDLE)
    until(traffic, 90)
    traffic.rows["connections"][0]["gaps"] = 0 if wrong else 1


@case("unassigned-consumers", "not of Kafka Streams")
def idle_streams(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, _IDLE)
    traffic.rows["groups"][2]["client_id"] = f"app-1-StreamThread-{'x' if wrong else 1}-consumer"
    until(traffic, 90)


@case("unassigned-consumers", "not of groups that share out something else")
def idle_workers(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, _IDLE, protocol="classic" if wrong else "connect")
    until(traffic, 90)


@case("assignment-skew")
def skew(traffic: Traffic, wrong: bool) -> None:
    assigned(
        traffic, {"a": [("t", partition) for partition in range(3 if wrong else 2)], "b": [("t", 3)], "c": [("u", 0)]}
    )
    until(traffic, 90)


@case("assignment-skew", "not of members of other topics")
def skew_of_topics(traffic: Traffic, wrong: bool) -> None:
    assigned(traffic, {"a": [("t", 0), ("u", 0), ("u", 1), ("u", 2)], "b": [("t", 1), *[("u", 3)] * wrong]})
    until(traffic, 90)


@case("group-never-stable")
def never_stable(traffic: Traffic, wrong: bool) -> None:
    _generations(traffic, 30 if wrong else 29)


@case("group-never-stable", "not where some assignment came")
def stable_once(traffic: Traffic, wrong: bool) -> None:
    _generations(traffic, 40)
    traffic.ask("SyncGroup", 39, error="REBALANCE_IN_PROGRESS" if wrong else None, group_id="g", generation=3)


@case("group-never-stable", "not where an answer was not decoded")
def stable_maybe(traffic: Traffic, wrong: bool) -> None:
    _generations(traffic, 40)
    status = "unanswered" if wrong else "answered"
    traffic.ask("SyncGroup", 39, on=1, group_id="g", generation=3, error_code=None, status=status)


@case("group-never-stable", "not where an answer may be missing")
def stable_unseen(traffic: Traffic, wrong: bool) -> None:
    _generations(traffic, 40)
    traffic.rows["connections"][0]["snaplen_bytes"] = 0 if wrong else 9


def _generations(traffic: Traffic, last: float) -> None:
    for number, second in enumerate((0, 15, last)):
        traffic.ask("JoinGroup", second, group_id="g", generation=number)
        traffic.ask("SyncGroup", second + 1, 5000, "REBALANCE_IN_PROGRESS", group_id="g", generation=number)


@case("instance-id-duplicate")
def twice(traffic: Traffic, wrong: bool) -> None:
    for number in range(2):
        who: dict[str, Any] = {"member_id": f"m-{number}", "client_id": f"app-{number}", "client_ip": "10.0.0.1"}
        traffic.add("groups", time=at(number), group_id="g", event="join", group_instance_id="i-1", **who)
        error = "FENCED_INSTANCE_ID" if wrong or not number else None
        traffic.ask("Heartbeat", number + 2, error=error, on=number, group_id="g", **who)


@case("instance-id-duplicate", "not where a new process begins now and then before the old one has ended")
def one_after_another(traffic: Traffic, wrong: bool) -> None:
    apart = 600 if wrong else 601
    for number in range(3):
        who: dict[str, Any] = {"member_id": f"m-{number}", "client_ip": "10.0.0.1"}
        traffic.add("groups", time=at(number * apart), group_id="g", event="join", group_instance_id="i-1", **who)
        if number < 2:
            second = (number + 1) * apart
            traffic.ask("Heartbeat", second, error="FENCED_INSTANCE_ID", on=number, group_id="g", **who)


@case("share-lock-expired")
def lock(traffic: Traffic, wrong: bool) -> None:
    error = "INVALID_RECORD_STATE" if wrong else None
    traffic.ask("ShareAcknowledge", 0, error=error, group_id="s1", place=("t", 0))


@case("share-lock-expired", "not after a member left")
def lock_and_left(traffic: Traffic, wrong: bool) -> None:
    for second in (5, 120):
        traffic.add("groups", time=at(second), group_id="s1", event="leave")
    second = 66 if wrong else 65
    traffic.ask("ShareAcknowledge", second, 0, error="INVALID_RECORD_STATE", group_id="s1", place=("t", 0))


@case("share-redelivery")
def redelivered(traffic: Traffic, wrong: bool) -> None:
    for again in (0, 5 if wrong else 4):
        _shared(traffic, 100, 50, again)


@case("share-redelivery", "the last time that it is given out")
def last_time(traffic: Traffic, wrong: bool) -> None:
    _shared(traffic, 100, 10, 1, 5 if wrong else 4)


@case("share-redelivery", "not after a member left")
def given_to_others(traffic: Traffic, wrong: bool) -> None:
    traffic.add("groups", time=at(100 if wrong else 150), group_id="s1", event="expired")
    _shared(traffic, 170, 100, 50)


@case("share-redelivery", "of what was given out, not of whole batches")
def of_those_given(traffic: Traffic, wrong: bool) -> None:
    for again in (0, 5 if wrong else 4):
        _shared(traffic, 100, 50, again, batches=1000)


def _shared(
    traffic: Traffic, second: float, records: int, again: int, often: int = 2, batches: int | None = None
) -> None:
    """Records given out; `batches`: how many come with them in whole batches, None: nobody says how many of them."""
    part = {"redelivered": again, "delivery_count": often if again else 1, "record_count": batches or records}
    if batches is not None:
        part["acquired"] = records
    traffic.ask("ShareFetch", second, group_id="s1", place=("t", 0), part=part)


@case("heartbeat-late")
def late(traffic: Traffic, wrong: bool) -> None:
    for second in (0, 3, 35 if wrong else 33):
        traffic.ask("Heartbeat", second, group_id="g", member_id="m")
    for second in (0, 40):  # who is no member owes none
        traffic.ask("OffsetCommit", second, group_id="g", member_id="", on=1)


@case("heartbeat-late", "not where the coordinator may have been at a broker that was not captured")
def late_elsewhere(traffic: Traffic, wrong: bool) -> None:
    traffic.add("brokers", node_id=1, host="10.0.0.9", port=9092)
    if not wrong:
        traffic.add("brokers", node_id=2, host="10.0.0.8", port=9092)
    for second in (0, 3, 35):
        traffic.ask("Heartbeat", second, on=int(second > 3), group_id="g", member_id="m")


@case("rebalance-slow-member")
def slow(traffic: Traffic, wrong: bool) -> None:
    joined = (0, 0.1, 11) if wrong else (0, 3, 6, 9, 12)  # these arrive in an empty group
    for number, second in enumerate(joined):
        took = (joined[-1] + 0.1 - second) * 1000
        who, member = f"app-{number}", f"m-{number}"
        traffic.ask("JoinGroup", second, took, on=number, group_id="g", generation=5, client_id=who, member_id=member)


@case("sync-never-came")
def sync(traffic: Traffic, wrong: bool) -> None:
    for number in range(2):
        traffic.ask("SyncGroup", 0, 5000, "REBALANCE_IN_PROGRESS", on=number, group_id="g", generation=12)
    if not wrong:
        traffic.ask("SyncGroup", 1, on=2, group_id="g", generation=12)


@case("join-refused")
def refused(traffic: Traffic, wrong: bool) -> None:
    error = "INCONSISTENT_GROUP_PROTOCOL" if wrong else "MEMBER_ID_REQUIRED"
    traffic.ask("JoinGroup", error=error, group_id="g")


@case("coordinator-loading")
def loading(traffic: Traffic, wrong: bool) -> None:
    for second in (0, 15, 31 if wrong else 29):
        traffic.ask("JoinGroup", second, error="COORDINATOR_LOAD_IN_PROGRESS", group_id="g")


@case("coordinator-flaps")
def flaps(traffic: Traffic, wrong: bool) -> None:
    for number in range(10 if wrong else 9):
        traffic.ask("Heartbeat", number / 8, error="NOT_COORDINATOR", group_id="g")


@case("kip848-member-fenced")
def fenced(traffic: Traffic, wrong: bool) -> None:
    for second in (0, 299 if wrong else 301):
        traffic.ask("ConsumerGroupHeartbeat", second, error="FENCED_MEMBER_EPOCH", group_id="g")
        traffic.ask("ConsumerGroupHeartbeat", second + 0.5, group_id="g")


def _beats(traffic: Traffic, *seconds: float, error_at: tuple[float, ...]) -> None:
    for second in seconds:
        error = "UNKNOWN_MEMBER_ID" if second in error_at else None
        traffic.ask("ConsumerGroupHeartbeat", second, error=error, group_id="g", member_id="m")


@case("kip848-member-fenced", "once, after a silence of three of its intervals")
def put_out(traffic: Traffic, wrong: bool) -> None:
    late = 12 if wrong else 10
    _beats(traffic, 0, 3, 6, *((6 + late, 7 + late, 10 + late) if wrong else (9, 6 + late)), error_at=(6 + late,))


@case("kip848-member-fenced", "not where the coordinator had moved")
def put_out_by_a_move(traffic: Traffic, wrong: bool) -> None:
    _beats(traffic, 0, 3, 6, 20, 21, 24, error_at=(20,))
    traffic.add("groups", time=at(15), group_id="g" if not wrong else "other", event="coordinator_moved")


@case("kip848-member-fenced", "one member, not one each of several")
def fenced_each(traffic: Traffic, wrong: bool) -> None:
    for number in range(2):
        member = "m" if wrong else f"m-{number}"
        traffic.ask("ConsumerGroupHeartbeat", number, error="FENCED_MEMBER_EPOCH", group_id="g", member_id=member)
        traffic.ask("ConsumerGroupHeartbeat", number + 0.5, group_id="g", member_id=member)
