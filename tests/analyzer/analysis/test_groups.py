"""Events of groups, against the brokers' request logs, a slow reading of the bodies, and forged cases.

(proves: analyzer/analysis/groups.py, analyzer/analysis/group_events.py, analyzer/analysis/rebalances.py)
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.protocol import errors
from tests.analyzer import forging
from tests.analyzer.analysis.read_modes import every_way, rows
from tests.captures.forge import START_NS, converse, interleaved, pcap, rendered
from tests.shared import capture_files, real_folder
from tests.witness import requestlog
from tests.witness.requestlog import Logged

SAMPLES = ("group-kip848-librdkafka-4.3", "client-kafkajs-3.9", "codecs-franzgo-4.3", "txn-librdkafka-4.3")
SHARED = (
    "group-classic-librdkafka-4.3",
    "group-share-java-4.3",
    "zoo-streams-classic-4.3",
    "zoo-streams-proto-4.3",
    "zoo-connect-sessioned-4.3",
    "old-java-0.10.2",
    "zoo-pykafka-2.8-on-2.8",
)
LOGGED = (
    "group-classic-librdkafka-4.3",
    "group-kip848-librdkafka-4.3",
    "group-share-java-4.3",
    "zoo-connect-sessioned-4.3",
)
HEARTBEATS = {68: "consumer", 76: "share", 88: "streams"}
INFERRED = ("expired", "coordinator_moved")


def read(name: str) -> analyzer.Dataset:
    return analyzer.analyze([str(path) for path in capture_files(real_folder(name))], rotated=True)


def events(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read(name).groups.to_pylist()
    return rows


# --- rows: what each exchange says ------------------------------------------------------------------------------------


def slow_rows(exchange: Any) -> Iterator[tuple[str, str | None, int | None, str | None]]:
    """Event, member, generation and error of an exchange, from its bodies."""
    request, response = exchange.request, exchange.response
    error = exchange.error
    if exchange.api == "JoinGroup" and request is not None:
        member = (response or {}).get("memberId") or request["memberId"]
        yield (
            "join",
            member or None,
            response["generationId"] if response and not response["errorCode"] else None,
            error,
        )
    elif exchange.api == "SyncGroup" and request is not None:
        yield "sync", request["memberId"], request["generationId"], error
    elif exchange.api == "Heartbeat" and exchange.error_code:
        yield "heartbeat_failed", request["memberId"], request["generationId"], error
    elif exchange.api == "LeaveGroup" and request is not None:
        for member in request.get("members") or [request]:
            yield "leave", member["memberId"], None, error
    elif exchange.api in ("OffsetCommit", "TxnOffsetCommit") and exchange.error_code:
        generation = request.get("generationIdOrMemberEpoch", request.get("generationId"))
        yield "commit_failed", request.get("memberId") or None, generation if generation != -1 else None, error
    elif exchange.api_key in HEARTBEATS and response is not None:
        epoch, member = request["memberEpoch"], request["memberId"] or response["memberId"]
        given = response.get("activeTasks") if exchange.api_key == 88 else response["assignment"]
        if epoch == 0:
            yield "join", member, response["memberEpoch"] if not error else None, error
        elif epoch < 0:
            yield "leave", member, None, error
        elif error:
            yield "heartbeat_failed", member, epoch, error
        elif given is not None:
            yield "sync", member, response["memberEpoch"], error


@pytest.mark.parametrize("name", [*SAMPLES, *SHARED])
def test_rows_are_what_each_exchange_says(name: str) -> None:
    actual = [row for row in events(name) if row["event"] not in INFERRED]
    wanted = [
        (
            (exchange.connection, exchange.exchange, exchange.reply),
            exchange.group_id,
            exchange.client_id,
            exchange.response_end or exchange.request_end,
            *row,
        )
        for exchange in analyzer.exchanges(capture_files(real_folder(name))[0])
        for row in slow_rows(exchange)
    ]
    expected = [
        (
            (row["connection"], row["exchange"], row["reply"]),
            row["group_id"],
            row["client_id"],
            row["time"],
            row["event"],
            row["member_id"],
            row["generation"],
            row["error"],
        )
        for row in actual
    ]
    assert wanted
    assert Counter(expected) == Counter(wanted)
    assert [row["time"] for row in actual] == sorted(row["time"] for row in actual)


def logged(name: str) -> list[Logged]:
    """Return the lines that the broker logged during the capture."""
    folder = real_folder(name)
    meta = json.loads((folder / "truth.json").read_text())["meta"]
    first, last = meta.get("first_packet", 0), meta.get("last_packet", float("inf"))
    return [line for line in requestlog.read(folder) if first <= line.time <= last + 1]


def logged_event(line: Logged) -> str | None:
    """Return the row of a line of a broker's log."""
    request, response = line.request or {}, line.response or {}
    kinds = {11: "join", 14: "sync", 13: "leave"}
    if line.api_key in kinds:
        return kinds[line.api_key]
    if line.api_key == 12 and response["errorCode"]:
        return "heartbeat_failed"
    if line.api_key == 8 and any(part["errorCode"] for topic in response["topics"] for part in topic["partitions"]):
        return "commit_failed"
    if line.api_key in HEARTBEATS:
        epoch = request["memberEpoch"]
        given = response["activeTasks"] if line.api_key == 88 else response["assignment"]
        return "join" if epoch == 0 else "leave" if epoch < 0 else "sync" if given is not None else None
    return None


@pytest.mark.parametrize("name", LOGGED)
def test_the_brokers_logged_the_same_events(name: str) -> None:
    logged_counts = Counter(
        (line.client_id, f"{line.client[0]}:{line.client[1]}", kind)
        for line in logged(name)
        if (kind := logged_event(line)) is not None
    )
    row_counts = Counter(
        (row["client_id"], row["connection"].partition("-")[0], row["event"])
        for row in events(name)
        if row["event"] not in INFERRED
    )
    assert row_counts == logged_counts
    assert len(row_counts) > 4


# --- what was inferred, and why groups rebalanced ---------------------------------------------------------------------


def test_a_member_joins_leaves_and_is_killed() -> None:
    dataset = read("group-classic-librdkafka-4.3")
    rows, rebalanced = dataset.groups.to_pylist(), dataset.rebalances.to_pylist()
    member = {row["client_id"]: row["member_id"] for row in rows if row["event"] == "join" and row["generation"]}
    [expired] = [row for row in rows if row["event"] == "expired"]
    assert (expired["member_id"], expired["client_id"], expired["generation"]) == (member["member-3"], "member-3", 4)
    first, second, third = (member[f"member-{number}"] for number in (1, 2, 3))
    assert [(row["generation"], row["trigger"], row["trigger_member"]) for row in rebalanced] == [
        (1, "join", first),
        (2, "join", second),
        (3, "join", third),
        (4, "leave", second),
        (5, "expired", third),
    ]
    assert [set(row["members_after"]) for row in rebalanced] == [
        {first},
        {first, second},
        {first, second, third},
        {first, third},
        {first},
    ]
    for earlier, later in itertools.pairwise(rebalanced):
        assert later["members_before"] == earlier["members_after"]
        assert later["assignment_before"] == earlier["assignment_after"]
    # The session timeout of 6 s, from the last heartbeat of member-3 that was answered well.
    last = max(
        exchange.request_end
        for exchange in analyzer.exchanges(capture_files(real_folder("group-classic-librdkafka-4.3"))[0])
        if exchange.member_id == third and exchange.status == "answered" and not exchange.error_code
    )
    assert (rebalanced[-1]["began"] - last).total_seconds() == 6.0


def test_epochs_of_the_newer_protocol_have_their_triggers() -> None:
    dataset = read("group-kip848-librdkafka-4.3")
    rows, rebalanced = dataset.groups.to_pylist(), dataset.rebalances.to_pylist()
    member = {row["client_id"]: row["member_id"] for row in rows if row["event"] == "join"}
    first, second, third = (member[f"member-{number}"] for number in (1, 2, 3))
    assert [(row["generation"], row["trigger"], row["trigger_member"]) for row in rebalanced] == [
        (2, "join", first),
        (3, "join", second),
        (4, "join", third),
        (5, "leave", second),
    ]
    had = [
        {
            id_: sorted(assigned["partition"] for assigned in row["assignment_after"] if assigned["member_id"] == id_)
            for id_ in member.values()
        }
        for row in rebalanced
    ]
    assert had == [
        {first: [0, 1, 2, 3, 4, 5], second: [], third: []},
        {first: [0, 1, 2], second: [3, 4, 5], third: []},
        {first: [0, 1], second: [3, 4], third: [2, 5]},
        {first: [0, 1, 3], second: [], third: [2, 4, 5]},
    ]
    assert {assigned["topic"] for row in rebalanced for assigned in row["assignment_after"]} == {"grp"}
    assert all(row["ended"] > row["began"] for row in rebalanced)


@pytest.mark.parametrize("name", ["cluster-zk-2.8", "cluster-kraft-3.9"])
def test_a_coordinator_that_dies_costs_a_rebalance(name: str) -> None:
    dataset = read(name)
    rows, rebalanced = dataset.groups.to_pylist(), dataset.rebalances.to_pylist()
    assert [row["event"] for row in rows].count("coordinator_moved") == 2
    assert [row["trigger"] for row in rebalanced] == ["join", "coordinator"]
    [stopped] = rebalanced[1]["stopped"]
    # Until the new coordinator no longer waits for the member of before: its session timeout of 8 s, and what it took
    # to find the coordinator.
    assert 8_000_000 < stopped["stopped_us"] < 30_000_000
    [expired] = [row for row in rows if row["event"] == "expired"]
    assert [expired["member_id"]] == rebalanced[0]["members_after"]
    assert rebalanced[1]["evidence"] == {
        name: next(row for row in rows if row["event"] == "coordinator_moved")[name]
        for name in ("connection", "exchange", "reply")
    }


def test_connect_adds_to_what_workers_have() -> None:
    rebalanced = [
        row for row in read("zoo-connect-sessioned-4.3").rebalances.to_pylist() if row["protocol"] == "connect"
    ]
    assert [row["trigger"] for row in rebalanced] == ["join", *["metadata"] * 4, "join", "unknown"]
    had = [{(assigned["topic"], assigned["partition"]) for assigned in row["assignment_after"]} for row in rebalanced]
    everything = {("src", None), ("src", 0), ("snk", None), ("snk", 0), ("snk", 1)}
    assert had[4] == had[6] == everything
    assert had[5] < everything  # between, what the new worker shall have is revoked (KIP-415)
    assert len({assigned["member_id"] for assigned in rebalanced[6]["assignment_after"]}) == 2
    assert rebalanced[6]["trigger_member"] in rebalanced[6]["members_before"]  # the second step


def test_streams_and_share_groups_have_theirs() -> None:
    streams = read("zoo-streams-proto-4.3").rebalances.to_pylist()
    assert {row["protocol"] for row in streams} == {"streams"}
    assert {(assigned["topic"], assigned["partition"]) for assigned in streams[-1]["assignment_after"]} == {
        ("0", 0),
        ("0", 1),
        ("1", 0),
        ("1", 1),
    }
    share = read("group-share-java-4.3").rebalances.to_pylist()
    assert [(row["protocol"], row["trigger"]) for row in share] == [
        ("share", "join"),
        ("share", "unknown"),
        ("share", "leave"),
    ]
    assert [len(row["members_after"]) for row in share] == [2, 2, 1]


# --- assignments, from the broker's log -------------------------------------------------------------------------------


def by_hand(text: str) -> set[tuple[str, int]]:
    """ConsumerProtocolAssignment without our decoder (ConsumerProtocol.java)."""
    data = base64.b64decode(text)
    at, tasks = 6, set()
    for _ in range(struct.unpack_from(">i", data, 2)[0]):
        (length,) = struct.unpack_from(">h", data, at)
        topic = data[at + 2 : at + 2 + length].decode()
        (count,) = struct.unpack_from(">i", data, at + 2 + length)
        at += 6 + length
        tasks |= {(topic, number) for number in struct.unpack_from(f">{count}i", data, at)}
        at += 4 * count
    return tasks


def test_assignments_are_those_that_the_broker_logged() -> None:
    name = "group-classic-librdkafka-4.3"
    assigned: dict[int, set[tuple[str, str, int]]] = {}
    for line in logged(name):
        if line.api_key == 14 and line.request and line.response and not line.response["errorCode"]:
            into = assigned.setdefault(line.request["generationId"], set())
            into |= {(line.request["memberId"], *member) for member in by_hand(line.response["assignment"])}
    by_generation = {
        row["generation"]: {
            (assigned["member_id"], assigned["topic"], assigned["partition"]) for assigned in row["assignment_after"]
        }
        for row in read(name).rebalances.to_pylist()
    }
    assert by_generation == assigned
    assert len(by_generation) == 5


# --- forged: what is proven, and what is not --------------------------------------------------------------------------

SECOND = 10**9


def join(member: str, topics: list[str], instance: str | None = None) -> bytes:
    """JoinGroup v5 of a group whose session timeout is 10 s."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    metadata = struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)
    body = {
        "groupId": "g",
        "sessionTimeoutMs": 10_000,
        "rebalanceTimeoutMs": 60_000,
        "memberId": member,
        "groupInstanceId": instance,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": base64.b64encode(metadata).decode()}],
    }
    return forging.request(11, 5, 1, body)


def joined(member: str, generation: int, members: list[str], error: int = 0) -> bytes:
    listed = [{"memberId": member_id, "groupInstanceId": None, "metadata": ""} for member_id in members]
    body = {
        "throttleTimeMs": 0,
        "errorCode": error,
        "generationId": generation,
        "protocolName": "range",
        "leader": "a",
        "memberId": member,
        "members": listed,
    }
    return forging.response(11, 5, 1, body)


def synced(member: str, *given: str) -> tuple[bytes, bytes]:
    """SyncGroup v0 of generation 1; `given`: whom the leader gives something."""
    listed = [{"memberId": member_id, "assignment": base64.b64encode(bytes(10)).decode()} for member_id in given]
    request = {"groupId": "g", "generationId": 1, "memberId": member, "assignments": listed}
    answer = {"errorCode": 0, "assignment": base64.b64encode(bytes(10)).decode()}
    return forging.request(14, 0, 1, request), forging.response(14, 0, 1, answer)


def beat(member: str, error: int = 0) -> tuple[bytes, bytes]:
    request = forging.request(12, 0, 1, {"groupId": "g", "generationId": 1, "memberId": member})
    return request, forging.response(12, 0, 1, {"errorCode": error})


def left(member: str) -> tuple[bytes, bytes]:
    return forging.request(13, 0, 1, {"groupId": "g", "memberId": member}), forging.response(13, 0, 1, {"errorCode": 0})


def found_at(node: int) -> tuple[bytes, bytes]:
    response = {"errorCode": 0, "nodeId": node, "host": "b", "port": 9092}
    return forging.request(10, 0, 1, {"key": "g"}), forging.response(10, 0, 1, response)


Turn = tuple[float, bytes, bytes]


def analyzed(tmp_path: Path, *connections: list[Turn]) -> analyzer.Dataset:
    """A capture of connections, each a list of (seconds, request, answer a millisecond later)."""
    segments = []
    for port, turns in enumerate(connections, 5001):
        writes = [
            write
            for seconds, request, answer in turns
            for write in (
                forging.asking(request, START_NS + int(seconds * SECOND)),
                forging.answering(answer, START_NS + int(seconds * SECOND) + 1_000_000),
            )
        ]
        segments.append(converse(writes, client=("10.0.0.1", port), start_ns=START_NS))
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(interleaved(*segments))))
    return analyzer.analyze(path)


def expiries(dataset: analyzer.Dataset) -> list[tuple[str, str | None]]:
    return [(row["member_id"], row["error"]) for row in dataset.groups.to_pylist() if row["event"] == "expired"]


def first_of(*members: str) -> list[Turn]:
    """The leader `a` joins, and lists the members of generation 1."""
    return [(1, join("a", ["t"]), joined("a", 1, list(members)))]


def test_who_is_unknown_and_did_not_leave_has_expired(tmp_path: Path) -> None:
    joins = (1.0, join("b", ["t"]), joined("b", 1, []))
    assert expiries(analyzed(tmp_path, [joins, (2, *beat("b")), (9, *beat("b", 25)), (10, *beat("b", 25))])) == [
        ("b", "UNKNOWN_MEMBER_ID")
    ]
    assert not expiries(analyzed(tmp_path, [joins, (2, *left("b")), (3, *beat("b", 25))]))
    assert not expiries(analyzed(tmp_path, [joins, (2, *found_at(1)), (3, *found_at(2)), (4, *beat("b", 25))]))
    assert not expiries(analyzed(tmp_path, [(4, *beat("b", 25))]))
    assert not expiries(analyzed(tmp_path, [joins, (2, *beat("b", 27)), (3, *beat("b", 22))]))


def test_who_is_not_in_the_next_generation_has_expired_if_its_time_was_over(tmp_path: Path) -> None:
    b = [(1.5, join("b", ["t"]), joined("b", 1, []))]
    later = [(20.0, join("a", ["t"]), joined("a", 2, ["a"]))]
    sooner = [(8.0, join("a", ["t"]), joined("a", 2, ["a"]))]
    assert expiries(analyzed(tmp_path, [*first_of("a", "b"), *later], b)) == [("b", None)]
    assert not expiries(analyzed(tmp_path, [*first_of("a", "b"), *sooner], b))
    assert not expiries(analyzed(tmp_path, [*first_of("a", "b"), *later], [*b, (2, *left("b"))]))
    assert not expiries(analyzed(tmp_path, [*first_of("a", "b"), *later], [*b, (15, *beat("b"))]))
    assert not expiries(analyzed(tmp_path, [*first_of("a", "b"), *later], []))  # how long it may be silent was not seen


def test_a_static_member_that_comes_back_under_another_id_is_the_same_and_costs_no_rebalance(tmp_path: Path) -> None:
    a = [*first_of("a", "s1"), (1.1, *synced("a", "a", "s1")), (18.0, join("a", ["t"]), joined("a", 2, ["a"]))]
    before = [(1.0, join("s1", ["t"], "i"), joined("s1", 1, [])), (1.1, *synced("s1"))]
    after = [(3.0, join("", ["t"], "i"), joined("s2", 1, [])), (3.1, *synced("s2")), (5.0, *beat("s2"))]
    dataset = analyzed(tmp_path, a, before, after)
    assert expiries(dataset) == [("s2", None)]
    first, second = dataset.rebalances.to_pylist()
    assert first["members_after"] == ["a", "s1"]
    assert (first["ended"] - first["began"]).total_seconds() < 1
    assert (second["trigger"], second["trigger_member"]) == ("expired", "s2")
    assert (second["members_before"], second["members_after"]) == (["a", "s2"], ["a"])
    assert (second["began"] - first["began"]).total_seconds() == pytest.approx(14, abs=0.1)  # 10 s after its last beat


@pytest.mark.parametrize("generations", [1, 2])
def test_a_group_that_comes_about_again_counts_anew(generations: int, tmp_path: Path) -> None:
    """It was deleted, or forgotten for nobody was in it."""
    again = [(5.0, join("a", ["t"]), joined("a", 2, ["a"]))][: generations - 1]
    before = [*first_of("a"), (1.1, *synced("a", "a")), *again, (8, *left("a"))]
    dataset = analyzed(tmp_path, before, [(20, join("b", ["t"]), joined("b", 1, ["b"])), (20.1, *synced("b", "b"))])
    rows = dataset.rebalances.to_pylist()
    assert [row["generation"] for row in rows] == [*range(1, generations + 1), 1]
    assert [(row["members_before"], row["members_after"]) for row in rows[::generations]] == [([], ["a"]), ([], ["b"])]
    assert all((row["ended"] - row["began"]).total_seconds() < 1 for row in rows if row["generation"] == 1)


def test_who_only_beat_was_a_member_when_the_capture_began(tmp_path: Path) -> None:
    again = (9.0, join("a", ["t"]), joined("a", 2, ["a"]))
    dataset = analyzed(tmp_path, [(2.0, *beat("a")), again], [(3.0, *beat("b"))])
    (row,) = dataset.rebalances.to_pylist()
    assert (row["members_before"], row["members_after"]) == (["a", "b"], ["a"])


def triggers(dataset: analyzer.Dataset) -> list[tuple[str, str | None]]:
    return [(row["trigger"], row["trigger_member"]) for row in dataset.rebalances.to_pylist()]


def test_other_topics_are_a_trigger(tmp_path: Path) -> None:
    again = [(5.0, join("a", ["t", "u"]), joined("a", 2, ["a"])), (9.0, join("a", ["u", "t"]), joined("a", 3, ["a"]))]
    assert triggers(analyzed(tmp_path, [*first_of("a"), *again])) == [
        ("join", "a"),
        ("metadata", "a"),
        ("unknown", "a"),
    ]


def test_who_is_listed_and_was_not_seen_joined_elsewhere(tmp_path: Path) -> None:
    again = [(4.0, *beat("a", 27)), (5.0, join("a", ["t"]), joined("a", 2, ["a", "z"]))]
    assert triggers(analyzed(tmp_path, [*first_of("a"), *again])) == [("join", "a"), ("join", "z")]
    gone = [(4.0, *beat("a", 27)), (5.0, join("a", ["t"]), joined("a", 2, ["a"]))]
    assert triggers(analyzed(tmp_path, [*first_of("a", "z"), *gone])) == [("join", "a"), ("unknown", None)]


def test_a_rebalance_without_an_end_is_one(tmp_path: Path) -> None:
    dataset = analyzed(tmp_path, [*first_of("a"), (4.0, *beat("a", 27))])
    last = dataset.rebalances.to_pylist()[-1]
    assert (last["generation"], last["ended"], last["members_before"]) == (None, None, ["a"])


def newer(
    member: str,
    epoch: int,
    answered: int,
    given: list[int] | None,
    owned: list[int] | None = None,
    instance: str | None = None,
) -> tuple[bytes, bytes]:
    def of(partitions: list[int]) -> list[dict[str, Any]]:
        return [{"topicId": "r-4vlSNsTw2Wmvo_qD_U_A", "partitions": partitions}]

    request = {
        "groupId": "g",
        "memberId": member,
        "memberEpoch": epoch,
        "instanceId": instance,
        "rackId": None,
        # Java's consumer says that it reads nothing when it goes.
        "rebalanceTimeoutMs": -1,
        "subscribedTopicNames": ["t"] if epoch == 0 else [] if epoch < 0 else None,
        "serverAssignor": None,
        "topicPartitions": of(owned) if owned is not None else None,
    }
    response = {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "errorMessage": None,
        "memberId": member,
        "memberEpoch": answered,
        "heartbeatIntervalMs": 1000,
        "assignment": {"topicPartitions": of(given)} if given is not None else None,
    }
    return forging.request(68, 0, 1, request), forging.response(68, 0, 1, response)


def test_what_a_silent_member_had_and_another_gets_proves_that_it_expired(tmp_path: Path) -> None:
    a = [(1.0, *newer("a", 0, 1, [0, 1])), (2.0, *newer("a", 1, 1, None, [0, 1]))]
    b = [(1.5, *newer("b", 0, 2, []))]
    gets = (9.0, *newer("b", 2, 3, [0, 1]))
    dataset = analyzed(tmp_path, a, [*b, gets])
    assert expiries(dataset) == [("a", None)]
    assert triggers(dataset) == [("join", "a"), ("join", "b"), ("expired", "a")]
    gave = (2.5, *newer("a", 1, 2, [], []))
    assert not expiries(analyzed(tmp_path, [*a, gave], [*b, gets]))  # it gave them back
    assert not expiries(analyzed(tmp_path, [*a, (8.5, *newer("a", 1, 1, None))], [*b, gets]))  # it is not silent
    assert not expiries(analyzed(tmp_path, [*a, (3.0, *newer("a", -1, -1, None))], [*b, gets]))  # it left


def test_a_static_member_that_stops_for_a_while_keeps_its_place(tmp_path: Path) -> None:
    """KIP-848: it says epoch -2, and comes back in the same epoch under another id."""
    a = [(1.0, *newer("a", 0, 1, [0, 1])), (2.0, *newer("a", 1, 2, [0], [0]))]
    before = [(1.5, *newer("s1", 0, 2, [1], instance="i")), (3.0, *newer("s1", -2, -2, None, instance="i"))]
    back = [(4.0, *newer("s2", 0, 2, [1], instance="i"))]
    dataset = analyzed(tmp_path, [*a, (9.0, *newer("a", 2, 3, [0, 1]))], before, back)
    assert expiries(dataset) == [("s2", None)]
    assert triggers(dataset) == [("join", "a"), ("join", "s1"), ("expired", "s2")]
    _, second, third = dataset.rebalances.to_pylist()
    assert (second["members_after"], third["members_before"]) == (["a", "s1"], ["a", "s2"])
    assert (second["ended"] - second["began"]).total_seconds() < 1
    assert third["members_after"] == ["a"]
    stays = analyzed(tmp_path, [*a, (9.0, *newer("a", 2, 3, [0, 1]))], before)
    assert triggers(stays)[-1] == ("expired", "s1")  # it did not come back in time


def test_a_static_member_that_comes_back_to_who_was_there_before_the_capture_begins_no_other_group(
    tmp_path: Path,
) -> None:
    a = [(1.0, *newer("a", 2, 2, None, [0])), (9.0, *newer("a", 2, 3, [0, 1]))]
    dataset = analyzed(tmp_path, a, [(4.0, *newer("s2", 0, 2, [1], instance="i"))])
    rows = [(row["generation"], row["trigger"], row["members_before"]) for row in dataset.rebalances.to_pylist()]
    assert rows[-1] == (3, "expired", ["a", "s2"])


def test_a_static_member_that_comes_back_too_late_is_another(tmp_path: Path) -> None:
    a = [(1.0, *newer("a", 0, 1, [0, 1])), (2.0, *newer("a", 1, 2, [0], [0])), (9.0, *newer("a", 2, 3, [0, 1]))]
    before = [(1.5, *newer("s1", 0, 2, [1], instance="i")), (3.0, *newer("s1", -2, -2, None, instance="i"))]
    back = [(9.5, *newer("s2", 0, 3, [], instance="i")), (11.0, *newer("s2", 3, 4, [1], instance="i"))]
    rows = analyzed(tmp_path, [*a, (10.0, *newer("a", 3, 4, [0]))], before, back).rebalances.to_pylist()
    assert [(row["generation"], row["trigger"], row["members_after"]) for row in rows[2:]] == [
        (3, "expired", ["a", "s2"]),
        (4, "unknown", ["a", "s2"]),
    ]


def test_a_coordinator_that_takes_over_gives_what_members_have_again_and_no_rebalance_is_longer_for_it(
    tmp_path: Path,
) -> None:
    a = [(1.0, *newer("a", 0, 2, [0, 1])), (8.0, *newer("a", 2, 2, [0, 1], [0, 1]))]
    [row] = analyzed(tmp_path, a).rebalances.to_pylist()
    assert (row["ended"] - row["began"]).total_seconds() < 1
    [row] = analyzed(tmp_path, [*a, (9.0, *newer("a", 2, 2, [0], [0, 1]))]).rebalances.to_pylist()
    assert (row["ended"] - row["began"]).total_seconds() > 7  # it is given something else


def test_partitions_that_somebody_had_are_not_new(tmp_path: Path) -> None:
    """The next epoch assigns to a new member what another gave back before it joined in the same epoch."""
    a = [(1.0, *newer("a", 0, 2, [0, 1])), (2.0, *newer("a", 2, 2, [0])), (3.0, *newer("a", 2, 3, None, [0]))]
    b = [(1.5, *newer("b", 0, 2, [])), (4.0, *newer("b", 2, 3, [1]))]
    assert triggers(analyzed(tmp_path, a, b)) == [("join", "a"), ("unknown", None)]


def test_a_member_of_before_that_leaves_a_newer_group_is_why_it_rebalances(tmp_path: Path) -> None:
    """A heartbeat tells members of the classic protocol to join again, which is no reason for an epoch."""
    old = [*first_of("a"), (2.0, *synced("a", "a")), (3.0, *beat("a")), (5.0, *beat("a", 27)), (8.0, *left("a"))]
    new = [(4.0, *newer("b", 0, 2, [])), (9.0, *newer("b", 2, 3, [0, 1]))]
    rows = [row for row in analyzed(tmp_path, old, new).rebalances.to_pylist() if row["protocol"] == "consumer"]
    assert [(row["generation"], row["trigger"], row["trigger_member"]) for row in rows] == [
        (2, "join", "b"),
        (3, "leave", "a"),
    ]


def shared(member: str, epoch: int, answered: int, given: list[int] | None = None) -> tuple[bytes, bytes]:
    """ShareGroupHeartbeat v1."""
    request = {
        "groupId": "g",
        "memberId": member,
        "memberEpoch": epoch,
        "rackId": None,
        "subscribedTopicNames": ["t"] if epoch == 0 else None,
    }
    parts = {"topicPartitions": [{"topicId": "r-4vlSNsTw2Wmvo_qD_U_A", "partitions": given or []}]}
    response = {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "errorMessage": None,
        "memberId": member,
        "memberEpoch": answered,
        "heartbeatIntervalMs": 1000,
        "assignment": parts if given is not None else None,
    }
    return forging.request(76, 1, 1, request), forging.response(76, 1, 1, response)


def test_what_a_silent_member_of_a_share_group_had_and_another_gets_proves_it_where_nothing_else_changed(
    tmp_path: Path,
) -> None:
    a, b = [(1.0, *shared("a", 0, 1, [0])), (2.0, *shared("a", 1, 2))], [(1.5, *shared("b", 0, 2, [1]))]
    gets = (9.0, *shared("b", 2, 3, [0, 1]))
    dataset = analyzed(tmp_path, a, [*b, gets])
    assert expiries(dataset) == [("a", None)]
    assert triggers(dataset)[-1] == ("expired", "a")
    assert dataset.rebalances.to_pylist()[-1]["members_after"] == ["b"]
    c = [(1.7, *shared("c", 0, 2, [2])), (8.9, *shared("c", 2, 3))]  # it is told of the epoch first, and has as before
    last = analyzed(tmp_path, a, [*b, gets], c).rebalances.to_pylist()[-1]
    assert (last["trigger"], last["members_before"], last["members_after"]) == ("expired", ["a", "b", "c"], ["b", "c"])
    assert not expiries(analyzed(tmp_path, [*a, (8.5, *shared("a", 2, 2))], [*b, gets]))  # it is not silent
    assert not expiries(analyzed(tmp_path, a, [*b, gets], [(5.0, *shared("c", 0, 2, []))]))  # members may share
    assert not expiries(analyzed(tmp_path, a, [*b, (9.0, *shared("b", 2, 3, [0, 1, 2]))]))  # there are more partitions
    assert not expiries(
        analyzed(tmp_path, [*a, (3.0, *shared("a", 2, 2, [1]))], [*b, gets])
    )  # it was taken from it before


# --- the same rows however they are read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["group-kip848-librdkafka-4.3", "group-classic-librdkafka-4.3", "zoo-connect-sessioned-4.3"]
)
def test_rows_are_the_same_however_the_capture_is_read(name: str, tmp_path: Path) -> None:
    [path] = capture_files(real_folder(name))
    wanted = rows(analyzer.analyze(path).tables, ("groups", "rebalances"))
    assert wanted["groups"]
    for how, actual in every_way(path, ("groups", "rebalances"), tmp_path):
        for table, those in wanted.items():
            assert actual[table] == those, (how, table)


def test_error_names_are_kafkas() -> None:
    named = {row["error"] for row in events("group-classic-librdkafka-4.3")} - {None}
    assert named == {errors.name(code) for code in (16, 14, 79, 27)}
