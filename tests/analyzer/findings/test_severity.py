"""How severe the same thing is under other circumstances, and what explains it away."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.findings import error_answers, evaluate, runs
from kwire.analyzer.findings.query import Query
from kwire.analyzer.findings.rules import Finding
from kwire.analyzer.findings.runs import Run, Thing
from kwire.analyzer.protocol import errors, schema
from kwire.analyzer.protocol.error_severity import judge
from tests.analyzer.findings.cases import CASES, Case
from tests.analyzer.findings.evaluating import Traffic, codes, judged
from tests.analyzer.findings.group_cases import assigned, until
from tests.analyzer.findings.other_cases import storm
from tests.analyzer.findings.reading_cases import commits, fetch
from tests.analyzer.findings.test_rules import queued, tiny
from tests.reports.forging import at


def of(traffic: Traffic, code: str, query: Query | None = None) -> list[Finding]:
    """Findings of one code."""
    if not traffic.rows["connections"]:
        traffic.link(0)
    return [finding for finding in judged(traffic, query or Query()) if finding.code == code]


@pytest.mark.parametrize(
    ("goes_on", "severity", "words"),
    [
        (5000, "error", "4,900 records skipped"),
        (40, "warning", "60 records may be read again"),
    ],
)
def test_records_skipped_are_an_error_and_those_read_again_a_warning(
    goes_on: int, severity: str, words: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    fetch(traffic, 0, 0, 100, lag=0, got=1000)
    fetch(traffic, 1, 100, -1, error="OFFSET_OUT_OF_RANGE")
    fetch(traffic, 2, goes_on, goes_on + 100, lag=100)
    (finding,) = of(traffic, "offset-out-of-range")
    assert finding.severity == severity
    assert words in finding.text


def test_a_reader_beyond_the_end_of_the_log_reads_no_more_again_than_there_is(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    fetch(traffic, 0, 99_999, -1, error="OFFSET_OUT_OF_RANGE")
    fetch(traffic, 1, 0, 4, lag=4)
    (finding,) = of(traffic, "offset-out-of-range")
    assert "asked 99,999, beyond the end of the log (4), goes on at 0: 4 records may be read again." in finding.text
    assert finding.cause is None


def test_a_place_that_is_lost_several_times_is_not_lost_from_the_first_to_the_last(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    fetch(traffic, 0, 0, 100, lag=0, got=1000)
    for turn, (offset, then) in enumerate(((100, 500), (900, 1000), (1400, 1390))):
        fetch(traffic, 100 * turn + 1, offset, -1, error="OFFSET_OUT_OF_RANGE")
        fetch(traffic, 100 * turn + 2, then, then + 400, lag=0, got=1000)
    (finding,) = of(traffic, "offset-out-of-range")
    assert finding.severity == "error"
    assert "asked 100, goes on at 500: 400 records skipped. It did so 3 times, " in finding.text
    assert finding.text.endswith("500 records skipped and 10 records that may be read again in all.")


def test_a_broker_that_pauses_a_client_reads_nothing_and_no_packet_was_lost_by_it(tmp_path: Path) -> None:
    for pause_us in (0, 1_200_000):
        traffic = Traffic(tmp_path / str(pause_us))
        late: dict[str, Any] = {"request_end": at(2), "network_us": 2_000_000}
        traffic.ask("Produce", 0, throttle_us=pause_us)
        traffic.ask("Produce", 0, latency_ms=2001, **late)  # its last bytes found no room for two seconds
        traffic.rows["connections"][0].update(zero_windows=3, retransmissions=2, client_packets=300)
        (full,) = of(traffic, "tcp-zero-window")
        assert (full.severity, full.cause) == (
            ("note", "a quota: the broker does not read during its pauses")
            if pause_us
            else ("warning", "the broker does not read")
        )
        assert not of(traffic, "tcp-retransmission")


@pytest.mark.parametrize(("waited_ms", "behind"), [(1900, True), (900, False)])
def test_a_broker_reads_one_request_of_a_connection_at_a_time(waited_ms: int, behind: bool, tmp_path: Path) -> None:
    """Kafka's `SocketServer` mutes a connection until the answer: an acks=all that waits is not a broker that hangs."""
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask("Produce", 0, latency_ms=waited_ms)
    traffic.ask("Produce", 0, latency_ms=2001, request_end=at(2), network_us=2_000_000)
    traffic.rows["connections"][0].update(zero_windows=3, client_packets=300)
    (full,) = of(traffic, "tcp-zero-window")
    cause = "a broker reads the next request of a connection once it has answered the one before"
    expected = ("note", cause) if behind else ("warning", "the broker does not read")
    assert (full.severity, full.cause) == expected


def made_anew(traffic: Traffic) -> None:
    for topic_id in ("6hWhQvmDS1S79-tG9HZ0dw", "r-4vlSNsTw2Wmvo_qD_U_A"):
        traffic.add("topic_ids", topic_id=topic_id, topic="t")


def test_of_a_topic_that_was_made_anew_no_record_is_skipped_or_cut(tmp_path: Path) -> None:
    for anew in (False, True):
        traffic = Traffic(tmp_path / str(anew))
        fetch(traffic, 0, 0, 100, lag=0, got=1000)
        fetch(traffic, 1, 100, -1, error="OFFSET_OUT_OF_RANGE")
        fetch(traffic, 2, 0, 30, lag=30)
        for epoch, row in enumerate(traffic.rows["partitions"]):
            row["leader_epoch"] = epoch
        for time, leader, topic_id in ((0, 1, "6hWhQvmDS1S79-tG9HZ0dw"), (1, 2, "r-4vlSNsTw2Wmvo_qD_U_A")):
            traffic.add("leaders", time=at(time), topic="t", topic_id=topic_id, partition=0, leader=leader)
        if anew:
            made_anew(traffic)
        (lost,) = of(traffic, "offset-out-of-range")
        assert (lost.severity, "again" in lost.text) == (("note", False) if anew else ("warning", True))
        assert bool(of(traffic, "log-truncated")) == bool(of(traffic, "leaders-moved")) == (not anew)


def test_an_answer_that_was_held_says_nothing_of_where_a_reader_goes_on(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    fetch(traffic, 0, 0, 100, lag=0, got=1000)
    fetch(traffic, 0.1, 900, 900, on=1, latency_ms=5000)  # by an earlier run of the same client
    fetch(traffic, 1, 100, -1, error="OFFSET_OUT_OF_RANGE")
    fetch(traffic, 6, 600, 900, lag=300)
    (finding,) = of(traffic, "offset-out-of-range")
    assert "goes on at 600: 500 records skipped" in finding.text


@pytest.mark.parametrize(
    ("ids", "severity"),
    [
        (("tx-1", "tx-1"), "error"),
        (("tx-1", "tx-2"), "note"),
        ((None, None), "note"),
    ],
)
def test_producers_of_one_topic_share_no_transactional_id(
    ids: tuple[str | None, ...], severity: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number, name in enumerate(ids):
        who: dict[str, Any] = {"client_id": f"app-{number}", "transactional_id": name, "place": ("t", 0)}
        traffic.ask("Produce", number, error="INVALID_PRODUCER_EPOCH", on=number, **who)
    assert {finding.severity for finding in of(traffic, "producer-fenced")} == {severity}


def test_a_transaction_that_timed_out_was_taken_over_by_nobody(tmp_path: Path) -> None:
    for others in (False, True):
        traffic = Traffic(tmp_path / str(others))
        writer: dict[str, Any] = {"client_id": "app", "transactional_id": "tx-1"}
        traffic.ask("InitProducerId", 0, **writer)
        if others:
            traffic.ask("InitProducerId", 1, on=1, client_id="other", transactional_id="tx-1")
        traffic.ask("EndTxn", 2, error="PRODUCER_FENCED", **writer)
        (finding,) = of(traffic, "producer-fenced")
        assert ("nobody else was seen to take it" in finding.text) == (not others)
        assert finding.cause == ("another producer took over" if others else "its transaction timed out")


@pytest.mark.parametrize(("goes_on", "words"), [(5000, "goes on at 5,000."), (None, "and was not seen to go on.")])
def test_an_offset_that_was_not_captured_is_not_told(goes_on: int | None, words: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    fetch(traffic, 0, 0, -1)
    fetch(traffic, 1, 0, -1, error="OFFSET_OUT_OF_RANGE")
    for row in traffic.rows["partitions"]:  # nor where it stood before
        row["offset"] = None
    if goes_on is not None:
        fetch(traffic, 2, goes_on, goes_on + 100, lag=100)
    (finding,) = of(traffic, "offset-out-of-range")
    assert finding.severity == "note"
    assert finding.text.endswith(f"asked for an offset that was not captured, {words}")


def test_how_long_is_not_told_of_an_answer_that_seems_to_come_before_its_request(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask("Produce", 0, 30_000, error="REQUEST_TIMED_OUT", place=("t", 0), latency_us=None)
    (finding,) = of(traffic, "produce-timed-out-on-broker")
    assert "(REQUEST_TIMED_OUT): the records" in finding.text
    assert (finding.cause, finding.proven) == (None, None)


def test_an_answer_that_came_at_once_is_not_said_to_have_waited_for_followers(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask("Produce", 0, 2, error="REQUEST_TIMED_OUT", place=("t", 0))
    (finding,) = of(traffic, "produce-timed-out-on-broker")
    assert "t-0 was answered REQUEST_TIMED_OUT (7) after 2.0 ms, long before the 30 s" in finding.text
    assert finding.proven is False


@pytest.mark.parametrize(("unknown", "words"), [(500, None), (400, "with 1.0 records (100 bytes)")])
def test_batches_that_do_not_say_how_many_records_they_hold_are_not_taken_for_small(
    unknown: int, words: str | None, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(1000):
        batch = {"record_count": None if number < unknown else 1}
        traffic.ask("Produce", number / 100, place=("t", 0), batch=batch)
    assert [str(words) in finding.text for finding in of(traffic, "tiny-batches")] == ([True] if words else [])


def test_a_log_is_cut_where_its_watermark_falls_with_a_later_leader(tmp_path: Path) -> None:
    for epoch in (4, 5):
        traffic = Traffic(tmp_path / str(epoch))
        for second, end, of_leader in ((0, 440, 4), (1, 400, epoch)):
            part = {"offset": 400, "high_watermark": end, "leader_epoch": of_leader}
            traffic.ask("Fetch", second, place=("t", 2), part=part)
        findings = of(traffic, "log-truncated")
        assert [finding.count for finding in findings] == ([40] if epoch == 5 else [])


def test_a_static_member_whose_join_was_not_captured_has_its_name_in_its_id(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    ids = [f"i-1-{number}0d5067b-873a-4be4-bd4c-ff98df7ead81" for number in range(2)]
    who: dict[str, Any] = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1"}
    traffic.add("groups", time=at(1), event="join", group_instance_id="i-1", member_id=ids[1], **who)
    for number, member in enumerate(ids):
        traffic.ask("Heartbeat", number + 2, error="FENCED_INSTANCE_ID", on=number, member_id=member, **who)
    (finding,) = of(traffic, "instance-id-duplicate")
    assert (finding.severity, finding.count) == ("error", 2)
    assert "i-1" in finding.text


@pytest.mark.parametrize(("answered", "severity"), [(0.7, "note"), (2, "error")])
def test_who_waits_for_a_watermark_for_less_than_a_second_is_told_as_a_note(
    answered: float, severity: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(60):
        fetch(traffic, number / 100, 559, 558)
    fetch(traffic, answered, 559, 565, got=1000)
    assert [finding.severity for finding in of(traffic, "fetch-above-high-watermark")] == [severity]


@pytest.mark.parametrize("first", [1, 0])
def test_a_topic_that_is_made_anew_is_no_log_that_was_cut(first: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    other: dict[str, Any] = {"broker_ip": "10.0.0.8", "connection": "10.0.0.1:5001-10.0.0.8:9092#1"}
    traffic.link(1, **other)
    traffic.ask("Produce", 0, place=("t", 0), part={"offset": 440})
    traffic.ask("Produce", 1, on=1, place=("t", 0), part={"offset": first}, **other)
    assert len(of(traffic, "log-truncated")) == first


def rebalances(traffic: Traffic, triggers: list[str], step: int = 60, **columns: Any) -> None:
    for number, trigger in enumerate(triggers):
        usual = {"members_before": ["m"], "trigger_member": "m"}
        began, ended = at(step * number), at(step * number + 1)
        row = {"began": began, "ended": ended, "trigger": trigger, **usual, **columns}
        traffic.add("rebalances", group_id="g", generation=number, **row)


def test_members_that_stand_still_make_a_storm_of_planned_rebalances(tmp_path: Path) -> None:
    for stopped_s in (13, 9):
        traffic = Traffic(tmp_path / str(stopped_s))
        rebalances(traffic, ["leave"] * 6, stopped=[{"member_id": "m", "stopped_us": stopped_s * 1_000_000}])
        assert bool(of(traffic, "rebalance-storm")) == (stopped_s == 13)


def test_members_that_stand_still_over_several_rebalances_do_so_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    rebalances(traffic, ["leave"] * 6, step=20, stopped=[{"member_id": "m", "stopped_us": 100_000_000}])
    (finding,) = of(traffic, "rebalance-storm")
    assert "no record reached a member for up to 3 min of it" in finding.text  # five times 20 s, and 100 s: not 10 min


def test_the_first_minute_of_a_group_is_no_storm_nor_is_the_second_step_of_a_cooperative_one(tmp_path: Path) -> None:
    starting = Traffic(tmp_path / "starting")
    rebalances(starting, ["metadata"] * 7, step=9, members_before=[])
    assert not of(starting, "rebalance-storm")
    cooperative = Traffic(tmp_path / "cooperative")
    rebalances(cooperative, ["expired", "unknown"] * 4, step=3)
    assert not of(cooperative, "rebalance-storm")
    apart = Traffic(tmp_path / "apart")
    rebalances(apart, ["expired", "unknown"] * 4, step=30)
    assert of(apart, "rebalance-storm")


def test_a_session_that_ended_for_its_coordinator_had_moved_is_a_note(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    who = {"group_id": "g", "client_id": "app", "client_ip": "10.0.0.1", "member_id": "m"}
    traffic.add("groups", time=at(10), event="coordinator_moved", **who)
    traffic.add("groups", time=at(20), event="expired", **who)
    (finding,) = of(traffic, "member-session-timeout")
    assert (finding.severity, finding.proven) == ("note", False)


def test_heartbeats_that_are_late_three_times_are_a_warning(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(4):
        traffic.ask("Heartbeat", 32 * number, group_id="g", member_id="m")
    (finding,) = of(traffic, "heartbeat-late")
    assert (finding.severity, finding.count) == ("warning", 3)


def test_members_that_are_fenced_for_another_reason_each_have_their_own(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for second in (0, 1):
        traffic.ask("ConsumerGroupHeartbeat", second, error="FENCED_MEMBER_EPOCH", group_id="g", member_id="m")
    for second in (0, 30, 61):
        who: dict[str, Any] = {"on": 1, "client_id": "other", "group_id": "g", "member_id": "n"}
        traffic.ask("ConsumerGroupHeartbeat", 2 + second, error="UNRELEASED_INSTANCE_ID", **who)
    by_client = {finding.who["client_id"]: finding.text for finding in of(traffic, "kip848-member-fenced")}
    assert by_client["app"].endswith("was fenced 2 times: FENCED_MEMBER_EPOCH (110).")
    assert by_client["other"].endswith("was fenced 3 times: UNRELEASED_INSTANCE_ID (111).")


def test_a_hundred_commits_a_second_are_a_warning(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(1000):
        traffic.ask("OffsetCommit", number / 100, group_id="g")
    (finding,) = of(traffic, "commit-storm")
    assert finding.severity == "warning"


def test_a_member_that_leaves_while_others_wait_explains_a_sync_that_never_came(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask("SyncGroup", 0, 5000, "REBALANCE_IN_PROGRESS", group_id="g", generation=12)
    traffic.ask("LeaveGroup", 4, on=1, group_id="g")
    assert not of(traffic, "sync-never-came")


def test_a_login_that_succeeds_after_is_a_warning_and_one_that_is_never_used_is_none(tmp_path: Path) -> None:
    for used in (True, False):
        traffic = Traffic(tmp_path / str(used))
        traffic.ask("SaslAuthenticate", 0, error="SASL_AUTHENTICATION_FAILED")
        traffic.ask("SaslAuthenticate", 1, on=1)
        if used:
            traffic.ask("Metadata", 2, on=1)
        (finding,) = of(traffic, "authentication-failed")
        assert finding.severity == ("warning" if used else "error")


@pytest.mark.parametrize(("times", "severity"), [(3, "warning"), (2, "note")])
def test_a_login_that_was_closed_on_and_then_let_in_is_a_warning(times: int, severity: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(times + 1):
        traffic.ask("SaslHandshake", number, on=number, api_version=0, response_bytes=50)
        columns: dict[str, Any] = {"sasl_mechanism": "PLAIN", "opaque_sasl_bytes": 20, "broker_bytes": 50}
        traffic.rows["connections"][number] |= {**columns, "first_time": at(number), "last_time": at(number + 0.3)}
    traffic.ask("Metadata", times + 0.1, on=times)
    (finding,) = of(traffic, "authentication-failed")
    assert finding.severity == severity
    assert finding.text.startswith(
        f"{times} connections of app (10.0.0.1) to 10.0.0.9:9092 ended on the login by PLAIN"
    )
    assert finding.text.endswith("; it was let in after.")


def test_what_got_no_answer_is_told_by_what_became_of_its_connection(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number, end in enumerate(("rst", "rst", "fin", "fin")):
        traffic.ask("Produce", 10 * number, None, on=number, status="unanswered")
        traffic.rows["connections"][number] |= {"closed": end, "last_time": at(10 * number + 5)}
    traffic.ask("Produce", 36, on=3)  # a later one
    outcomes = {
        finding.text.partition("got no answer: ")[2]: (finding.count, finding.severity)
        for finding in of(traffic, _UNANSWERED)
    }
    assert outcomes == {
        "the connection was reset.": (2, "error"),
        "the connection was closed in order.": (1, "note"),
        "later requests of the same connection were answered.": (1, "error"),
    }


_UNANSWERED = "request-unanswered"


def test_policies_make_facts_rules(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.link(0)
    dataset = traffic.write()
    for query, severity in ((Query(), "note"), (Query(policies={"tls": "required"}), "warning")):
        (finding,) = [finding for finding in judged(dataset, query) if finding.code == "plain-traffic"]
        assert finding.severity == severity


def test_a_version_that_goes_is_a_note_until_there_is_a_target(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask("Fetch", api_version=3)
    (finding,) = of(traffic, "version-removed-in-target")
    assert finding.severity == "note"
    assert "Fetch 3: refused by Kafka 4.0" in finding.text


@pytest.mark.parametrize(
    ("asks", "on", "version", "severity"),
    [
        (3, 0, 3, "warning"),
        (4, 0, 3, "warning"),
        (2, 0, 3, "error"),  # as clients before 2.4 do: Java 0.10.2 asks a broker of 0.10.2 so
        (3, 0, 2, "error"),  # it could use a newer one
        (3, 1, 3, "error"),  # on that connection it did not ask
    ],
)
def test_a_client_that_was_offered_nothing_newer_may_have_it(
    asks: int, on: int, version: int, severity: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.add("api_versions", broker="10.0.0.9:9092", api_key=1, min=0, max=3)
    traffic.ask("ApiVersions", api_version=asks)
    traffic.ask("Fetch", api_version=3)
    traffic.ask("Fetch", api_version=version, on=on)
    (finding,) = of(traffic, "version-removed-in-target", Query(target={1: (4, 17)}, target_name="4.0"))
    assert finding.severity == severity
    assert ("so may have newer" in finding.text) == (severity == "warning")
    assert finding.advice.startswith("See whether" if severity == "warning" else "Upgrade these clients")


@pytest.mark.parametrize("missing", [False, True])
def test_a_broker_that_went_is_not_counted_answers_that_may_be_missing(missing: bool, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(2):
        who: dict[str, Any] = {"client_id": f"app-{number}"}
        traffic.ask("Produce", 5, None, on=number, status="unanswered", **who)
        traffic.rows["connections"][-1] |= {"closed": "rst", "last_time": at(6 + number / 10)}
    for number in range(2):  # they come back
        traffic.ask("Produce", 12, on=10 + number, client_id=f"app-{number}")
        traffic.rows["connections"][-1] |= {"first_time": at(12)}
    traffic.rows["connections"][-1]["gaps"] = int(missing)
    (finding,) = of(traffic, "broker-lost")
    assert ("2 requests had no answer" in finding.text) != missing


@pytest.mark.parametrize(
    ("first", "last", "cause", "proven"),
    [
        (22, 29, "it listened for a part of that time", True),
        (22, 40, "it listened for a part of that time", True),
        (5, 25, "nothing listens there", False),  # a connection goes on meanwhile
        (5, 20, "the broker had closed its last connections", True),
        (31, 40, "the broker did not listen yet", True),
    ],
)
def test_nothing_listens_where_nobody_got_in(first: int, last: int, cause: str, proven: bool, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.missed("10.0.0.4", "10.0.0.9:9092", 30, 20)  # until 30
    traffic.link(0, first_time=at(first), last_time=at(last))
    (finding,) = of(traffic, "connect-failed")
    assert (finding.cause, finding.proven) == (cause, proven)
    assert ("1 connection to it came about meanwhile" in finding.text) == (20 < first < 30)


@pytest.mark.parametrize(
    ("apis", "client_id", "is_reported"),
    [
        (["Fetch"], "id_1-host_10.0.0.9-port_9092", False),  # the controller of Kafka 0.8.2
        (["Fetch"], "ReplicaFetcherThread-0-1", False),
        (["LeaderAndIsr", "Fetch"], "somebody", False),
        (["LeaderAndIsr", "Fetch"], None, True),  # they may be two
        (["LeaderAndIsr", "UpdateMetadata"], None, False),
        (["Fetch"], "somebody", True),
        (["Fetch"], "7", True),  # a node id is anybody's
        (["LeaderAndIsr", "ListOffsets"], "7", False),
        (["WriteTxnMarkers"], "broker-1-txn-marker-sender", False),
    ],
)
def test_brokers_among_themselves_are_known_by_their_ids_and_by_what_they_ask(
    apis: list[str], client_id: str | None, is_reported: bool, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for api in apis:
        traffic.ask(api, api_version=0, client_id=client_id)
    for target in (Query(), Query(target={1: (4, 17)}, target_name="4.0")):
        assert bool(of(traffic, "version-removed-in-target", target)) == is_reported


def test_a_client_whose_first_request_says_no_id_has_the_one_that_it_says_then(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number, named in enumerate(("simple", None)):
        traffic.ask("Metadata", on=number, api_version=0, client_id="")
        traffic.ask("Fetch", on=number, api_version=0, client_id=named or "")
    by_client = {
        finding.text.partition(" uses")[0]: finding.who for finding in of(traffic, "version-removed-in-target")
    }
    assert by_client == {
        "simple (10.0.0.1)": {"client_id": "simple", "client_ip": "10.0.0.1"},
        "a client without id (10.0.0.1)": {"client_id": "", "client_ip": "10.0.0.1"},
    }


@pytest.mark.parametrize(
    ("links", "whole", "named"),
    [
        (1, False, "a client whose id was not captured (10.0.0.1)"),
        (2, False, "a set of clients whose ids were not captured (10.0.0.1)"),
        (2, True, "a client without id (10.0.0.1)"),
    ],
)
def test_clients_whose_ids_were_not_captured_are_no_client_without_id(
    links: int, whole: bool, named: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(links):
        state = "decoded" if whole else "truncated"
        traffic.ask("Fetch", api_version=3, on=number, client_id=None, request_state=state)
        traffic.rows["connections"][number] |= {"client_id": None, "snaplen_bytes": 100, "requests": 1}
    (finding,) = of(traffic, "version-removed-in-target")
    assert finding.text.startswith(f"{named} uses Fetch 3")
    assert finding.who == {"client_ip": "10.0.0.1"}


@pytest.mark.parametrize(
    ("code", "case"),
    [
        ("queue-behind-own-requests", queued),
        ("commit-storm", commits),
        ("metadata-storm", storm),
        ("tiny-batches", tiny),
    ],
)
def test_what_clients_whose_ids_were_not_captured_do_together_nobody_does(
    code: str, case: Case, tmp_path: Path
) -> None:
    """Each case as it stands, its connections without an id: told of one connection, and not of two."""
    for links in (1, 2):
        traffic = Traffic(tmp_path / str(links))
        case(traffic, True)
        for number in range(links):
            traffic.ask("ApiVersions", 0, on=number, client_id=None)
        for row in traffic.rows["exchanges"]:
            row |= {"client_id": None, "request_state": "truncated"}
        for row in traffic.rows["connections"]:
            row |= {"client_id": None, "snaplen_bytes": 100, "requests": 1}
        assert bool(of(traffic, code)) == (links == 1)


@pytest.mark.parametrize(("amount", "words"), [(1, "1 byte trailing"), (2, "2 bytes trailing")])
def test_one_byte_is_no_bytes(amount: int, words: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.link(0, payload_bytes=100, opaque_trailing_bytes=amount)
    (finding,) = of(traffic, "opaque-bytes")
    assert finding.text.endswith(f"could not be decoded: {words}.")


@pytest.mark.parametrize(
    ("muted_s", "cause"),
    [
        (10, "a quota, whose pauses came before"),
        (3, "its own requests in flight"),
    ],
)
def test_who_queues_behind_pauses_of_a_quota_waits_for_the_quota(muted_s: int, cause: str, tmp_path: Path) -> None:
    """The first answer comes after 12 s, of which it was muted so long; all others wait for it from 1 s on."""
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask("Produce", 0, 12_000, queue_us=0, muted_us=muted_s * 1_000_000, throttle_us=1)
    for _ in range(29):
        traffic.ask("Produce", 1, 11_100, queue_us=11_000_000, muted_us=0)
    for on in (1, 2):  # others' pauses are not theirs
        traffic.ask("Produce", 0, 10_000, on=on, queue_us=0, muted_us=10_000_000, client_id="other", throttle_us=1)
    (finding,) = of(traffic, "queue-behind-own-requests")
    assert finding.cause == cause
    assert ("it while these waited for pauses" in finding.text) == (muted_s == 10)


@pytest.mark.parametrize("corrected", [False, True])
def test_a_commit_goes_back_in_the_capture_too_and_not_by_a_clock_that_was_corrected(
    corrected: bool, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    steps = ((1.0, 59), (0.8, 62), (1.2, 66)) if corrected else ((0.8, 62), (1.0, 59), (1.2, 66))
    for second, offset in steps:
        traffic.ask("OffsetCommit", second, group_id="g", member_id="m", place=("t", 0), part={"offset": offset})
    assert bool(of(traffic, "commit-goes-back")) != corrected


ERRORS = [error for error in errors.errors().values() if error.code != 0]


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("part", range(3))
def test_every_error_of_kafka_is_told_as_its_judgement_has_it(part: int, stays: bool, tmp_path: Path) -> None:
    """A client an error: once and then a good answer, or three times within 61 s and none. In parts, for of one code
    and severity fifty are told one by one."""
    traffic = Traffic(tmp_path / "dataset")
    codes = ERRORS[part::3]
    assert 40 < len(codes) < evaluate.MOST
    for number, error in enumerate(codes):
        who: dict[str, Any] = {"on": number, "client_id": f"app-{error.code}"}
        for second in (0, 20, 61) if stays else (0,):
            traffic.ask("DescribeCluster", second, error=error.name, **who)
        if not stays:
            traffic.ask("DescribeCluster", 1, **who)
    by_error: dict[str, list[str]] = {}
    for finding in judged(traffic):
        if finding.what.get("error"):
            by_error.setdefault(finding.who["client_id"], []).append(finding.severity)
    for error in codes:
        judgement = judge(error.code, "DescribeCluster")
        severities = by_error.get(f"app-{error.code}", [])
        if judgement.kind == "admin":
            assert severities == ["note"], error.name
        elif judgement.grace_s is None or (judgement.grace_s > 0 and not stays):
            assert severities == [], error.name
        else:
            loading = error.name == "COORDINATOR_LOAD_IN_PROGRESS"  # a rule of its own
            assert severities == ["warning" if loading else "error"], error.name


NEVER_MET = {("JoinGroup", 128), ("Heartbeat", 128), ("ShareGroupHeartbeat", 128)}
"""Only subscriptions of KIP-848 hold regular expressions."""


def test_a_rule_that_takes_an_error_tells_it() -> None:
    """Else nobody does: what is taken is neither in error-answers nor in admin-refused."""
    for api, code in itertools.product(schema.apis(), (error.code for error in ERRORS)):
        run = Run(0, api.api_key, code, Thing(topic="t"), np.arange(3), 0, 61_000_000, False)
        takes = any(is_claimed(run) for is_claimed in error_answers.CLAIMS)
        every = any(asks(api.api_key, code) for asks in runs.EVERY) or run.code == 17  # topic-missing asks for all
        assert not takes or run.lasting or every or (api.name, code) in NEVER_MET, (api.name, errors.name(code))


@pytest.mark.parametrize(
    ("partitions", "code", "words"),
    [
        (1, "admin-refused", "was refused Metadata for topic bad name: INVALID_TOPIC_EXCEPTION (17), 1 time"),
        (3, "topic-missing", "keeps asking for topic bad name, a name that no topic can have: 3 times"),
    ],
)
def test_a_name_that_no_topic_can_have_is_told(partitions: int, code: str, words: str, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number in range(partitions):
        traffic.ask("Metadata", 3 * number, error="INVALID_TOPIC_EXCEPTION", topics=["bad name"])
    (finding,) = [finding for finding in judged(traffic) if finding.code in ("admin-refused", "topic-missing")]
    assert finding.code == code
    assert words in finding.text


@pytest.mark.parametrize(
    ("api", "error", "expected"),
    [
        ("ConsumerGroupDescribe", "UNSUPPORTED_VERSION", {}),  # Java's tools ask so first what a group is
        ("AlterUserScramCredentials", "REQUEST_TIMED_OUT", {"admin-refused": 1}),
        ("ConsumerGroupHeartbeat", "INVALID_REGULAR_EXPRESSION", {"join-refused": 1}),
    ],
)
def test_an_error_means_what_its_api_makes_of_it(
    api: str, error: str, expected: dict[str, int], tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask(api, error=error, group_id="g")
    counts = codes(judged(traffic))
    assert {
        code: counts[code] for code in ("error-answers", "admin-refused", "join-refused") if code in counts
    } == expected


@pytest.mark.parametrize(("copies", "again", "doubled"), [(48, 400, True), (0, 448, False), (48, 300, False)])
def test_what_the_capture_holds_twice_was_not_sent_again(
    copies: int, again: int, doubled: bool, tmp_path: Path
) -> None:
    """The copies of a burst come when more packets passed than are remembered."""
    traffic = Traffic(tmp_path / "dataset")
    traffic.link(0, duplicates=copies, retransmissions=again, client_packets=850, broker_packets=100)
    traffic.ask("Fetch", 0, 1)
    counts = codes(judged(traffic))
    assert ("capture-duplicated" in counts, "tcp-retransmission" in counts) == (doubled, not doubled)


@pytest.mark.parametrize(
    ("api", "columns", "words"),
    [
        ("Metadata", {}, "for topics mixed-a, mixed-b or some of these"),
        ("CreateTopics", {}, "for topic mixed-a or others of these requests"),
        ("ConsumerGroupHeartbeat", {"group_id": "g"}, "for group g, topic mixed-a or others of these requests"),
    ],
)
def test_a_topic_that_is_not_known_to_be_the_refused_one_is_not_said_to_be(
    api: str, columns: dict[str, Any], words: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask(api, error="TOPIC_AUTHORIZATION_FAILED", topics=["mixed-a", "mixed-b"], **columns)
    (finding,) = of(traffic, "authorization-failed")
    assert f"may not use {api} {words}: TOPIC_AUTHORIZATION_FAILED" in finding.text
    assert "mixed" not in finding.advice


@pytest.mark.parametrize(
    ("api", "error", "columns", "advice"),
    [
        ("Produce", "TOPIC_AUTHORIZATION_FAILED", {"topics": ["t"]}, "Write on topic t"),
        (
            "Metadata",
            "TOPIC_AUTHORIZATION_FAILED",
            {"topics": ["t"]},
            "Describe (which Read and Write include) on topic t",
        ),
        ("Heartbeat", "GROUP_AUTHORIZATION_FAILED", {"group_id": "g"}, "Read on group g"),
        ("EndTxn", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", {"transactional_id": "x"}, "Write on transactional id x"),
        ("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED", {}, "IdempotentWrite on the cluster"),
    ],
)
def test_the_acl_that_was_missing_is_named(
    api: str, error: str, columns: dict[str, Any], advice: str, tmp_path: Path
) -> None:
    """Operations and resources as in Kafka's documentation of its protocols."""
    traffic = Traffic(tmp_path / "dataset")
    traffic.ask(api, error=error, **columns)
    (finding,) = of(traffic, "authorization-failed")
    assert finding.advice == f"An ACL that allows that principal {advice}."


@pytest.mark.parametrize(
    ("events", "severity", "words"),
    [
        (["join"], "warning", "no heartbeat reached the coordinator"),
        (["join", "leave"], "note", "it had stopped in order"),
        (["join", "leave", "join"], "warning", "no heartbeat reached the coordinator"),
    ],
)
def test_a_static_member_that_stopped_and_came_back_too_late_did_not_crash(
    events: list[str], severity: str, words: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for second, event in enumerate([*events, "expired"]):
        traffic.add("groups", time=at(second), group_id="g", member_id="m", protocol="consumer", event=event)
    (finding,) = of(traffic, "member-session-timeout")
    assert finding.severity == severity
    assert words in (finding.cause or "")
    assert ("crash" in finding.advice) == (severity == "warning")


def test_what_a_shorter_capture_holds_is_told_for_as_long_as_it_is(tmp_path: Path) -> None:
    for length_s, words in (
        (4, "sends 250 Produce requests a second to 10.0.0.9:9092 (in the 4.0 s of the capture)"),
        (20, "sends 100 Produce requests a second to 10.0.0.9:9092 with 1.0 records"),
    ):
        traffic = Traffic(tmp_path / str(length_s))
        for number in range(1000):
            traffic.ask("Produce", number / 250, place=("t", 0), batch={})
            if number % 10 == 0:
                traffic.ask("OffsetCommit", number / 250, group_id="g")
        traffic.rows["connections"][0]["last_time"] = at(length_s)
        (finding,) = of(traffic, "tiny-batches")
        assert words in finding.text
        assert finding.severity == "note"
        (finding,) = of(traffic, "commit-storm")
        assert f"commits {25 if length_s == 4 else 10} times a second" in finding.text


def test_a_static_member_that_lost_its_place_once_may_have_been_restarted(tmp_path: Path) -> None:
    for known in (True, False):
        traffic = Traffic(tmp_path / str(known))
        CASES["instance-id-duplicate"](traffic, False)
        if not known:
            traffic.rows["groups"].clear()
        (finding,) = of(traffic, "instance-id-duplicate")
        assert finding.severity == "warning"
        named = "Static member i-1 of group g is 2 clients at once, app-0 (10.0.0.1), app-1 (10.0.0.1): "
        alone = "app-0 (10.0.0.1) lost its place in group g: another member has its static name: "
        assert finding.text == f"{named if known else alone}FENCED_INSTANCE_ID (82), 1 time, 03:04:07."


def test_a_group_without_an_assignment_is_told_once(tmp_path: Path) -> None:
    for stable in (False, True):
        traffic = Traffic(tmp_path / str(stable))
        CASES["group-never-stable"](traffic, not stable)
        assert bool(of(traffic, "sync-never-came")) == stable


def test_a_transaction_that_went_on_beyond_its_timeout_is_told_once(tmp_path: Path) -> None:
    for late in (False, True):
        traffic = Traffic(tmp_path / str(late))
        CASES["transaction-timed-out"](traffic, late)
        assert bool(of(traffic, "producer-fenced")) == (not late)
        text = "1 transaction of app (tx-1) went on beyond its timeout of 60.0 s, for 60.0 s: "
        assert [text in finding.text for finding in of(traffic, "transaction-timed-out")] == [True] * late
        traffic = Traffic(tmp_path / f"none {late}")
        CASES["transaction-timed-out: whose end found none open, as its producer is told since KIP-890"](traffic, late)
        assert bool(of(traffic, "error-answers")) == (not late)


def test_members_with_nothing_to_read_are_named(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    CASES["unassigned-consumers"](traffic, True)
    (finding,) = of(traffic, "unassigned-consumers")
    text = "1 member of group g had nothing to read for 60.0 s: 3 members share 2 partitions (app-2 (10.0.0.1))."
    assert (finding.text, finding.count) == (text, 1)
    skewed = Traffic(tmp_path / "skewed")
    CASES["assignment-skew"](skewed, True)
    (finding,) = of(skewed, "assignment-skew")
    assert finding.text == (
        "Members of group g had from 1 to 3 partitions of the same topic for 89.0 s: app-0 (10.0.0.1) the most, "
        "app-1 (10.0.0.1) the fewest."
    )


def test_only_the_assignment_that_stood_for_longest_is_told(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "dataset")
    for number, began in enumerate((0, 70, 200, 270)):
        assigned(traffic, {"a": [("t", 0)], "b": []}, began + 1, began=at(began), generation=number)
    until(traffic, 340)
    assert [finding.text.partition(": ")[0] for finding in of(traffic, "unassigned-consumers")] == [
        "1 member of group g had nothing to read for 2 min"
    ]


@pytest.mark.parametrize(
    ("often", "expired", "severity"), [(2, True, "note"), (2, False, "warning"), (5, True, "warning")]
)
def test_records_that_come_again_since_their_lock_expired_are_told_by_that(
    often: int, expired: bool, severity: str, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path / "dataset")
    part = {"redelivered": 50, "delivery_count": often, "record_count": 100}
    traffic.ask("ShareFetch", 0, group_id="s1", place=("t", 0), part=part)
    if expired:
        traffic.ask("ShareAcknowledge", 1, error="INVALID_RECORD_STATE", group_id="s1", topics=["abc"])
        traffic.add("topic_ids", topic_id="abc", topic="orders")
    (finding,) = of(traffic, "share-redelivery")
    assert (finding.severity, finding.cause is not None) == (severity, expired)
    assert ["of topic orders were" in finding.text for finding in of(traffic, "share-lock-expired")] == [True] * expired
