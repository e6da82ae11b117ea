"""Cases of reading: positions, readers behind, sessions, transfers, commits."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.reports.forging import at


def fetch(
    traffic: Traffic, second: float, offset: int, end: int, place: tuple[str, int] = ("t", 0), **more: Any
) -> None:
    """A Fetch at an offset of a log with that high watermark: empty, unless `got` says how many bytes came."""
    got = more.pop("got", 0)
    part = {"offset": offset, "offset_kind": "fetch", "high_watermark": end, "record_bytes": got, "record_count": 0}
    part |= {name: more.pop(name) for name in ("lag", "last_stable_offset") if name in more}
    traffic.ask("Fetch", second, place=place, part=part, **{"max_wait_ms": 500, "min_bytes": 1, **more})


@case("fetch-above-high-watermark")
def above(traffic: Traffic, wrong: bool) -> None:
    for number in range(50 if wrong else 49):
        fetch(traffic, number / 50, 559, 554)


@case("fetch-spin", "not where a reader waited for the watermark, and goes on within a second")
def went_on(traffic: Traffic, wrong: bool) -> None:
    for number in range(100):
        fetch(traffic, number / 150, 559, 559 if wrong else 558)
    fetch(traffic, 0.7, 559, 565, got=1000)


@case("fetch-spin")
def spin(traffic: Traffic, wrong: bool) -> None:
    for number in range(100 if wrong else 99):
        fetch(traffic, number / 100, 554, 554)


@case("offset-out-of-range")
def out_of_range(traffic: Traffic, wrong: bool) -> None:
    if wrong:
        fetch(traffic, 0, 0, 100, lag=0, got=1000)  # it stood there; else a tool chose the offset
    fetch(traffic, 1, 100, -1, error="OFFSET_OUT_OF_RANGE")
    fetch(traffic, 2, 5000, 6000, lag=1000)


@case("log-truncated")
def truncated(traffic: Traffic, wrong: bool) -> None:
    other: dict[str, Any] = {"broker_ip": "10.0.0.8", "connection": "10.0.0.1:5001-10.0.0.8:9092#1"}
    traffic.link(1, **other)
    written = {"offset": 440, "offset_kind": "base", "record_count": 10}
    traffic.ask("Produce", 0, place=("t", 0), part=written)
    # What is sent again to the next leader gets its old offset.
    traffic.ask("Produce", 1, on=1, place=("t", 0), part=written | {"offset": 445} if wrong else written, **other)


@case("log-truncated", "the reader is told where its epoch ends")
def ended_before(traffic: Traffic, wrong: bool) -> None:
    fetch(traffic, 0, 400, 440, lag=0, got=1000)
    answer = {"offset": 430 if wrong else 440, "offset_kind": "end"}
    traffic.ask("OffsetForLeaderEpoch", 1, place=("t", 0), part=answer)
    traffic.ask("OffsetForLeaderEpoch", 2, on=1, place=("t", 0), part=answer, client_id="broker-1-fetcher-0")


@case("log-truncated", "not where the log goes on behind the old end")
def high_watermark_fell(traffic: Traffic, wrong: bool) -> None:
    """A replica led, followed and leads again: it knows a lower high watermark for a moment."""
    for second, end, epoch in ((0, 305, 4), (1, 304, 6)):
        fetch(traffic, second, 304, end)
        traffic.rows["partitions"][-1]["leader_epoch"] = epoch
    part = {"offset": 304 if wrong else 305, "offset_kind": "base", "record_count": 1}
    traffic.ask("Produce", 2, place=("t", 0), part=part)


@case("log-truncated", "and not where it stands at the end of the capture")
def ended_before_all(traffic: Traffic, wrong: bool) -> None:
    if wrong:
        fetch(traffic, 0, 400, 440, lag=0, got=1000)
    answer = {"offset": 430, "offset_kind": "end"}
    traffic.ask("OffsetForLeaderEpoch", 1, place=("t", 0), part=answer)
    fetch(traffic, 60, 900, 900, latency_ms=None)


@case("log-truncated", "Fetch says that the epochs diverge")
def diverging(traffic: Traffic, wrong: bool) -> None:
    who = "app" if wrong else "broker-1-fetcher-0"  # replicas are told so in the course of things
    part = {"offset": 440, "offset_kind": "fetch", "diverging_offset": 430}
    traffic.ask("Fetch", 1, place=("t", 0), part=part, client_id=who)


@case("lag-grows")
def lag(traffic: Traffic, wrong: bool) -> None:
    for window in range(11):
        if wrong or window < 10:
            fetch(traffic, 10 * window, 100 * window, 12_000 + 1100 * window, lag=12_000 + 1000 * window)
        left = 50_000 - 1000 * window  # one that catches up
        fetch(traffic, 10 * window, 0, 100_000, ("t", 1), lag=left, on=1, client_id="late")


@case("partition-stuck")
def stuck(traffic: Traffic, wrong: bool) -> None:
    for second in (0, 61 if wrong else 59):
        fetch(traffic, second, 900, 40_000, ("t", 4))
    for second in (0, 30, 100):  # asked for no more after 59 s, somebody else may have it
        fetch(traffic, second, second, 1000, ("t", 5), got=100)


@case("partition-stuck", "and was asked for once more, without an answer")
def stuck_unanswered(traffic: Traffic, wrong: bool) -> None:
    stuck(traffic, wrong)
    fetch(traffic, 62, 900, 40_000, ("t", 4), latency_ms=None)


@case("partition-stuck", "since the last rebalance")
def stuck_since(traffic: Traffic, wrong: bool) -> None:
    for second in (0, 61):
        fetch(traffic, second, 900, 40_000, ("t", 4), got=100, lag=39_100)
    for second in (0, 30, 100):
        fetch(traffic, second, second, 1000, ("t", 5), got=100)
    traffic.add("clients", client_ip="10.0.0.1", client_id="app", group_ids=["g"])
    traffic.add("rebalances", group_id="other" if wrong else "g", began=at(10), ended=at(12))


@case("fetch-session-churn")
def churn(traffic: Traffic, wrong: bool) -> None:
    for number in range(20 if wrong else 19):
        traffic.ask("Fetch", 6 * number, error="FETCH_SESSION_ID_NOT_FOUND")
        traffic.ask("Fetch", 6 * number + 1)


@case("fetch-session-churn", "not while leaders move")
def churn_of_moves(traffic: Traffic, wrong: bool) -> None:
    churn(traffic, True)
    for number in range(7):
        traffic.add("leaders", time=at(20 * number), topic="t", partition=0, leader=1 if wrong else number)


def _names_many(traffic: Traffic, partitions: int, session: int | None, **more: Any) -> None:
    """A hundred requests of 10 kB, each for so many partitions."""
    for number in range(100):
        columns: dict[str, Any] = {"api_version": 11, "request_bytes": 10_000, **more}
        traffic.ask("Fetch", number, place=("t", 0), part={"offset_kind": "fetch"}, **columns)
        row = traffic.rows["partitions"][-1]
        for partition in range(1, partitions):
            traffic.add("partitions", **{**row, "partition": partition})
    traffic.add("readers", session_id=session, topic="t", partition=0)


@case("no-fetch-sessions")
def sessionless(traffic: Traffic, wrong: bool) -> None:
    _names_many(traffic, 100 if wrong else 99, None)


@case("no-fetch-sessions", "not with one")
def with_session(traffic: Traffic, wrong: bool) -> None:
    _names_many(traffic, 100, None if wrong else 7)


@case("no-fetch-sessions", "not before there were any")
def before_sessions(traffic: Traffic, wrong: bool) -> None:
    _names_many(traffic, 100, None, api_version=7 if wrong else 6)


@case("no-fetch-sessions", "not of little")
def small_requests(traffic: Traffic, wrong: bool) -> None:
    _names_many(traffic, 100, None, request_bytes=10_000 if wrong else 9_999)


@case("wrong-leader-fetch")
def wrong_leader(traffic: Traffic, wrong: bool) -> None:
    for number in range(10 if wrong else 9):
        fetch(traffic, number / 4, 0, -1, error="NOT_LEADER_OR_FOLLOWER")


@case("slow-transfer")
def slow_transfer(traffic: Traffic, wrong: bool) -> None:
    size = 5_000_000 if wrong else 20_000_000
    traffic.ask("Fetch", response_time=at(0.001), response_end=at(1.501), response_bytes=size)


@case("down-conversion")
def conversion(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, on=1, place=("t", 0), batch={"magic": 2 if wrong else 1}, client_id="writer")
    traffic.ask("Fetch", 1, place=("t", 0), batch={"magic": 1}, api_version=2)


@case("commit-storm")
def commits(traffic: Traffic, wrong: bool) -> None:
    for number in range(100 if wrong else 99):
        traffic.ask("OffsetCommit", number / 10, group_id="g")


@case("commit-failed")
def commit_failed(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("OffsetCommit", 0, error="UNKNOWN_MEMBER_ID", place=("t", 0), group_id="g")
    if not wrong:
        traffic.ask("OffsetCommit", 5, place=("t", 0), group_id="g", on=1)


@case("commit-failed", "long before the capture's end, and shortly before")
def commit_failed_to_the_end(traffic: Traffic, wrong: bool) -> None:
    """The connections end at 60 s."""
    for second in (45 if wrong else 51, 58):
        traffic.ask("OffsetCommit", second, error="UNKNOWN_MEMBER_ID", place=("t", 0), group_id="g")
    for second in (0, 40, 55):  # a rebalance that goes on: they may be committed when it is over
        traffic.ask("OffsetCommit", second, error="REBALANCE_IN_PROGRESS", place=("t", 1), group_id="g", on=1)


@case("commit-failed", "not where the right to it is lacking: that is told once")
def no_right(traffic: Traffic, wrong: bool) -> None:
    error = "UNKNOWN_MEMBER_ID" if wrong else "GROUP_AUTHORIZATION_FAILED"
    traffic.ask("OffsetCommit", 0, error=error, place=("t", 0), group_id="g")


@case("commit-failed", "of one of two groups of a client")
def commit_failed_of_one_group(traffic: Traffic, wrong: bool) -> None:
    for second, group, error in ((0, "g1", "UNKNOWN_MEMBER_ID"), (1, "g2", "UNKNOWN_MEMBER_ID"), (5, "g2", None)):
        traffic.ask("OffsetCommit", second, error=error, place=("t", 0), group_id=group)
    if not wrong:
        traffic.ask("OffsetCommit", 5, place=("t", 0), group_id="g1")


@case("commit-failed", "not of what had been committed before")
def commit_failed_again(traffic: Traffic, wrong: bool) -> None:
    for second, offset, error in ((0, 4, None), (1, 6 if wrong else 4, "REBALANCE_IN_PROGRESS")):
        part = {"offset": offset, "offset_kind": "committed"}
        traffic.ask("OffsetCommit", second, error=error, place=("t", 0), part=part, group_id="g")


@case("commit-failed", "what was refused is read again")
def read_again(traffic: Traffic, wrong: bool) -> None:
    refused = {"offset": 900, "offset_kind": "committed"}
    traffic.ask("OffsetCommit", 0, error="UNKNOWN_MEMBER_ID", place=("t", 0), part=refused, group_id="g")
    traffic.ask("OffsetCommit", 5, place=("t", 0), group_id="g", on=1)
    fetch(traffic, 20, 840 if wrong else 900, 1000)
    fetch(traffic, 90, 800, 1000)  # much later: for another reason


@case("commit-goes-back")
def commit_back(traffic: Traffic, wrong: bool) -> None:
    for second, offset in enumerate((900, 840)):
        part = {"offset": offset, "offset_kind": "committed"}
        member = "m" if wrong else ""  # a tool is no member
        traffic.ask("OffsetCommit", second, place=("t", 0), part=part, group_id="g", member_id=member)


@case("commit-goes-back", "not of a topic that was made anew")
def of_another_topic(traffic: Traffic, wrong: bool) -> None:
    commit_back(traffic, True)
    for topic_id in ("6hWhQvmDS1S79-tG9HZ0dw", "6hWhQvmDS1S79-tG9HZ0dw" if wrong else "r-4vlSNsTw2Wmvo_qD_U_A"):
        traffic.add("topic_ids", topic_id=topic_id, topic="t")
