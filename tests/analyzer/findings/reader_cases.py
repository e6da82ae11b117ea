"""Cases of readers: held, sent the same again, sent elsewhere; groups that are mixed, stuck, or read again."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.analyzer.findings.reading_cases import fetch
from tests.reports.forging import at

OTHER: dict[str, Any] = {"broker_ip": "10.0.0.8", "connection": "10.0.0.1:5001-10.0.0.8:9092#1"}
"""Columns of an exchange with another broker."""


# ---------------------------------------------------------------------------------------------------- held, again, away


def waits(traffic: Traffic, seconds: int, level: int = 1, stable: int = 100) -> None:
    """A reader at 100 while the log goes on."""
    for second in range(seconds + 1):
        fetch(traffic, second, 100, 110 + 50 * second, last_stable_offset=stable, lag=10, isolation_level=level)


@case("reader-held-by-transaction")
def held(traffic: Traffic, wrong: bool) -> None:
    waits(traffic, 10 if wrong else 9)
    traffic.ask("Metadata", 12, on=1, client_id="other")


@case("reader-held-by-transaction", "not of who reads uncommitted data")
def held_uncommitted(traffic: Traffic, wrong: bool) -> None:
    waits(traffic, 12, level=1 if wrong else 0)


@case("reader-held-by-transaction", "not where it went on")
def held_and_went_on(traffic: Traffic, wrong: bool) -> None:
    waits(traffic, 12)
    if not wrong:
        fetch(traffic, 13, 100, 800, last_stable_offset=800, lag=0, got=1000, isolation_level=1)


@case("reader-held-by-transaction", "not where transactions last that long")
def held_as_usual(traffic: Traffic, wrong: bool) -> None:
    """The transaction before lasted 8 s, or 4 s."""
    lasted = 4 if wrong else 8
    for second in range(lasted):
        fetch(traffic, second, 50, 110 + second, last_stable_offset=50, lag=60, isolation_level=1)
    for second in range(lasted, lasted + 13):
        fetch(traffic, second, 100, 150 + second, last_stable_offset=100, lag=50 + second, isolation_level=1)


@case("lag-grows", "not of who reads committed data, and all of it")
def lag_behind_a_transaction(traffic: Traffic, wrong: bool) -> None:
    for window in range(11):
        end = 12_000 + 1100 * window
        more: dict[str, Any] = {"lag": end - 100, "last_stable_offset": end if wrong else 100, "isolation_level": 1}
        fetch(traffic, 10 * window, 100, end, **more)


@case("fetch-repeats")
def repeats(traffic: Traffic, wrong: bool) -> None:
    for number in range(8 if wrong else 7):
        fetch(traffic, number, 100, 200, got=300, lag=97)
        traffic.rows["partitions"][-1]["record_count"] = 3


@case("fetch-repeats", "not where the group commits beyond it")
def repeats_with_commits(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Heartbeat", 0, group_id="g", member_id="m")
    for number in range(10):
        fetch(traffic, number + 0.1, 100, 200, got=300, lag=97)
        traffic.rows["partitions"][-1]["record_count"] = 3
    commit = {"kind": "commit", "group_id": "g", "topic": "t", "partition": 0, "offset": 100 if wrong else 103}
    traffic.add("offsets", time=at(5), **commit)


@case("fetch-repeats", "not where it rewinds, and other records come")
def rewinds(traffic: Traffic, wrong: bool) -> None:
    for number in range(12):
        fetch(traffic, number, 100, 200, got=300 if wrong else 300 + number, lag=97)
        traffic.rows["partitions"][-1]["record_count"] = 3


@case("fetch-repeats", "not where a session goes on, and its requests are answered with other partitions")
def goes_on_in_a_session(traffic: Traffic, wrong: bool) -> None:
    for number in range(12):
        read = 0 if wrong else number
        fetch(traffic, number, 100, 200 + read, got=300, lag=97)
        traffic.rows["partitions"][-1] |= {"record_count": 3, **({"offset": None} if number else {})}


def bounces(traffic: Traffic, times: int, **more: Any) -> None:
    traffic.link(1, **OTHER)
    for number in range(times):
        fetch(traffic, number, 100, 140, lag=40, preferred_replica=2)
        fetch(traffic, number + 0.1, 100, -1, error="OFFSET_OUT_OF_RANGE", on=1, **OTHER)
    fetch(traffic, times, 100, 140, lag=40, **more)


@case("replica-bounce")
def bounce(traffic: Traffic, wrong: bool) -> None:
    bounces(traffic, 3 if wrong else 2)


@case("offset-out-of-range", "not where another replica has the offset")
def bounce_without_loss(traffic: Traffic, wrong: bool) -> None:
    if not wrong:
        bounces(traffic, 4)
        return
    fetch(traffic, 0, 0, 100, lag=0, got=1000)
    fetch(traffic, 1, 100, -1, error="OFFSET_OUT_OF_RANGE")
    fetch(traffic, 2, 150, 160, lag=10)


def _racks(traffic: Traffic, fetches: int, racks: tuple[str | None, ...], **more: Any) -> None:
    for node, rack in enumerate(racks):
        traffic.add("brokers", node_id=node, host=f"10.0.0.{9 - node}", port=9092, rack=rack)
    for number in range(fetches):
        fetch(traffic, number, 0, 100, **{"rack_id": "a", "api_version": 12, **more})


@case("rack-ignored")
def racks(traffic: Traffic, wrong: bool) -> None:
    _racks(traffic, 20 if wrong else 19, (None, None))


@case("rack-ignored", "not where the leader is in that rack")
def same_rack(traffic: Traffic, wrong: bool) -> None:
    _racks(traffic, 20, ("b", "a") if wrong else ("a", "b"))
    traffic.add("leaders", time=at(0), topic="t", partition=0, leader=0, isr=[0, 1])


@case("rack-ignored", "not where a replica is named")
def replica_named(traffic: Traffic, wrong: bool) -> None:
    _racks(traffic, 20, (None, None), preferred_replica=None if wrong else 1)


@case("rack-ignored", "not of a group of which nobody says a rack")
def member_without_rack(traffic: Traffic, wrong: bool) -> None:
    _racks(traffic, 0, ("a", None))
    for number, rack in enumerate(("a" if wrong else None, None)):
        who: dict[str, Any] = {"client_id": f"app-{number}", "rack_id": rack, "on": number + 1}
        for second in (0, 21):
            traffic.ask("Heartbeat", second, group_id="g", member_id=f"m{number}", **who)
        for times in range(20):
            fetch(traffic, times, 0, 100, api_version=12, **who)


@case("rack-ignored", "not where an address is that of no broker")
def beside_a_follower(traffic: Traffic, wrong: bool) -> None:
    who = {"client_id": "alone", "client_ip": "10.0.0.8" if wrong else "10.0.0.7", "rack_id": None}
    _racks(traffic, 20, ("b", "a"), **who)
    traffic.add("leaders", time=at(0), topic="t", partition=0, leader=0, isr=[0, 1])


# -------------------------------------------------------------------------------------------------------------- groups


def life(
    traffic: Traffic, number: int, offset: int, got: int = 1000, leaves: bool = False, client_id: str = "app"
) -> None:
    """A member that joins, reads from an offset on, and is gone."""
    who = {"group_id": "g", "member_id": f"m{number}", "client_id": client_id, "client_ip": "10.0.0.1"}
    traffic.add("groups", time=at(10 * number), event="join", protocol="classic", generation=number, **who)
    traffic.ask("JoinGroup", 10 * number, group_id="g", member_id=f"m{number}", client_id=client_id)
    fetch(traffic, 10 * number + 1, offset, 900, ("t", 4), got=got, lag=900 - offset - 20, client_id=client_id)
    if leaves:
        traffic.add("groups", time=at(10 * number + 5), event="leave", protocol="classic", **who)


@case("partition-stuck", "members that read the same again, and vanish")
def crashes(traffic: Traffic, wrong: bool) -> None:
    for number in range(3 if wrong else 2):
        life(traffic, number, 28)


@case("partition-stuck", "tasks of Kafka Connect, which leave in order")
def connect_task(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 0, leaves=True, client_id="connector-consumer-files-0" if wrong else "app")


@case("partition-stuck", "not members that go on where the one before was")
def restarts(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 28 if wrong else 28 + 20 * number)


@case("partition-stuck", "not members without records")
def restarts_without_records(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 28, got=1000 if wrong else 0)


@case("partition-stuck", "not a script that reads all without commits, and leaves")
def script(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 0, leaves=not wrong)


@case("partition-stuck", "not where the group commits beyond it")
def crashes_with_commits(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 28)
        offset = 28 if wrong else 48
        traffic.add(
            "offsets", time=at(10 * number + 5), kind="commit", group_id="g", topic="t", partition=4, offset=offset
        )


@case("member-session-timeout", "not where a record ended it")
def crashed(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 28 + 20 * number * wrong)
    who = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1", "member_id": "m0"}
    traffic.add("groups", time=at(40), event="expired", protocol="classic", **who)


@case("member-session-timeout", "not of another life of the client that a record ended")
def crashed_before(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        life(traffic, number, 28)
    who = {"group_id": "g", "client_id": "other" if wrong else "app", "client_ip": "10.0.0.1", "member_id": "before"}
    traffic.add("groups", time=at(5), event="expired", protocol="classic", **who)


def _in_background(traffic: Traffic, **more: Any) -> None:
    """A member that fetches and beats until it leaves after 10 s, and joins again over the same connection."""
    who = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1", "event": "join", "protocol": "classic"}
    traffic.add("groups", time=at(0), member_id="m", rebalance_timeout_ms=6000, **who)
    traffic.ask("JoinGroup", 0, group_id="g", member_id="m")
    for second in range(1, 10):
        fetch(traffic, second, 100 + second, 200, got=100, on=1)
        traffic.ask("Heartbeat", second, group_id="g", member_id="m")
    for second in more.pop("commits", ()):
        traffic.ask("OffsetCommit", second, group_id="g", member_id="m", place=("t", 0), part={"offset": 103})
    traffic.ask("LeaveGroup", 10, group_id="g", member_id="m")
    traffic.ask("JoinGroup", more.pop("back", 13), group_id="g", member_id="m2", **more)


@case("poll-interval-exceeded", "by a client that fetches in the background")
def poll_in_background(traffic: Traffic, wrong: bool) -> None:
    _in_background(traffic, commits=(5,) if wrong else (5, 9.9))


@case("poll-interval-exceeded", "not of who subscribes anew")
def subscribes_anew(traffic: Traffic, wrong: bool) -> None:
    _in_background(traffic, back=13 if wrong else 10.1)


@case("poll-interval-exceeded", "not of who comes back over another connection")
def comes_back(traffic: Traffic, wrong: bool) -> None:
    _in_background(traffic, **({} if wrong else {"on": 2}))


def _member(traffic: Traffic, member: str, topics: list[str], second: float = 0, **more: Any) -> None:
    who = {"group_id": "g", "member_id": member, "event": "join", "protocol": "classic", "generation": 1}
    traffic.add("groups", time=at(second), subscribed=topics, **{**who, **more})


@case("group-mixed")
def mixed(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Heartbeat", 60)
    _member(traffic, "a", ["emails"], client_id="email-1", client_ip="10.0.0.1")
    _member(traffic, "b", ["sms"] if wrong else ["emails", "sms"], client_id="sms-1", client_ip="10.0.0.2")


@case("group-mixed", "not one application's consumers on a host")
def listeners(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Heartbeat", 60)
    _member(traffic, "a", ["emails"], client_id="app-1", client_ip="10.0.0.1")
    _member(traffic, "b", ["sms"], client_id="app-2", client_ip="10.0.0.2" if wrong else "10.0.0.1")


@case("group-mixed", "not a deployment in which one follows the other")
def follows(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Heartbeat", 60)
    _member(traffic, "a", ["emails"], client_id="app-1", client_ip="10.0.0.1")
    _member(traffic, "b", ["sms"], second=10, client_id="app-1", client_ip="10.0.0.2")
    if not wrong:
        traffic.add("groups", time=at(15), group_id="g", member_id="a", event="leave", protocol="classic")


@case("group-mixed", "not Kafka Connect")
def connect(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Heartbeat", 60)
    protocol = "consumer" if wrong else "connect"
    _member(traffic, "a", ["emails"], client_id="email", client_ip="10.0.0.1", protocol=protocol)
    _member(traffic, "b", ["sms"], client_id="sms", client_ip="10.0.0.2", protocol=protocol)


def _grows(traffic: Traffic, until: float, takes_up: bool = False, written: bool = True) -> None:
    """A topic of one partition that gets another after 10 s, and a group that reads the first."""
    traffic.ask("Heartbeat", 0, group_id="g", member_id="m")
    for partition in (0, 1):
        traffic.add("leaders", time=at(10 * partition), topic="t", partition=partition, leader=1, isr=[1])
    if written:
        traffic.ask("Produce", 11, on=1, place=("t", 1), part={"offset": 0, "offset_kind": "base"}, client_id="writer")
    for second in (1, until):
        fetch(traffic, second, 0, 10, ("t", 0))
    if takes_up:
        fetch(traffic, until, 0, 10, ("t", 1))


@case("unread-partitions")
def unread(traffic: Traffic, wrong: bool) -> None:
    _grows(traffic, 15.1 if wrong else 14)


@case("unread-partitions", "not where the group takes them up")
def taken_up(traffic: Traffic, wrong: bool) -> None:
    _grows(traffic, 20, takes_up=not wrong)


@case("unread-partitions", "not where nothing was written")
def unwritten(traffic: Traffic, wrong: bool) -> None:
    _grows(traffic, 20, written=wrong)


@case("unread-partitions", "not where another member may have them since a rebalance")
def taken_elsewhere(traffic: Traffic, wrong: bool) -> None:
    _grows(traffic, 20)
    assigned = [{"member_id": "m", "topic": "t", "partition": 0}] if wrong else []
    traffic.add("rebalances", group_id="g", began=at(12), ended=at(13), assignment_after=assigned)


def _follows(traffic: Traffic, stood: int, begins: int = 0, until: float = 5, **later: Any) -> None:
    """A group that reads up to an offset until 5 s, and one that reads 500 records from an offset on after 10 s."""
    traffic.ask("Heartbeat", 0, group_id="old")
    fetch(traffic, 1, stood - 10, 1000, lag=1000 - stood, got=1000)
    fetch(traffic, until, stood, 1000, lag=1000 - stood)
    traffic.ask("Heartbeat", 10, group_id="new", **{"on": 1, **later})
    fetch(traffic, 11, begins, 1000, lag=500 - begins, got=1000, **{"on": 1, **later})
    for row in traffic.rows["partitions"]:
        row["log_start_offset"] = 0


@case("group-reads-again")
def again(traffic: Traffic, wrong: bool) -> None:
    _follows(traffic, 200 if wrong else 199)


@case("group-reads-again", "not another application")
def another_application(traffic: Traffic, wrong: bool) -> None:
    _follows(traffic, 400, client_id="app" if wrong else "audit", client_ip="10.0.0.1" if wrong else "10.0.0.7")


@case("group-reads-again", "not where it does not begin at the start")
def begins_elsewhere(traffic: Traffic, wrong: bool) -> None:
    _follows(traffic, 400, begins=0 if wrong else 100)


@case("group-reads-again", "not where the other group goes on")
def goes_on(traffic: Traffic, wrong: bool) -> None:
    _follows(traffic, 400, client_id="app-2", client_ip="10.0.0.7")
    if not wrong:
        traffic.ask("Heartbeat", 29, group_id="old")
        fetch(traffic, 30, 400, 1000, lag=600)


def hot_batches(traffic: Traffic, batches: int, in_one: int, records: int = 10) -> None:
    """Batches over six partitions, so many of them in the first."""
    for partition in range(6):
        traffic.add("leaders", time=at(0), topic="t", partition=partition, leader=1, isr=[1])
    for number in range(batches):
        partition = 0 if number < in_one else 1 + number % 5
        part = {"record_bytes": 1000, "record_count": records, "offset": number, "offset_kind": "base"}
        traffic.ask("Produce", number / 10, place=("t", partition), part=part)


@case("hot-partition")
def hot_soon(traffic: Traffic, wrong: bool) -> None:
    hot_batches(traffic, 50, 25 if wrong else 24)


@case("hot-partition", "not in few batches")
def hot_few(traffic: Traffic, wrong: bool) -> None:
    hot_batches(traffic, 50 if wrong else 49, 30)


@case("authorization-failed", "FindCoordinator, with the group")
def no_coordinator(traffic: Traffic, wrong: bool) -> None:
    error = "GROUP_AUTHORIZATION_FAILED" if wrong else None
    traffic.ask("FindCoordinator", 0, error=error)
    row = traffic.rows["exchanges"][-1]
    key = {"connection": row["connection"], "exchange": row["exchange"]}
    traffic.add("groups", time=at(0), group_id="g", event="coordinator_refused", error=error, **key)
