"""Cases of transactions, the cluster, security, versions, and of the protocol itself."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic, link
from tests.analyzer.findings.reading_cases import fetch
from tests.reports.forging import at

# ------------------------------------------------------------------------------------------------------- transactions


@case("producer-fenced")
def fenced(traffic: Traffic, wrong: bool) -> None:
    for number in range(2 if wrong else 1):
        who = f"app-{number}"
        traffic.ask("EndTxn", number, error="PRODUCER_FENCED", on=number, client_id=who, transactional_id="tx-1")


@case("hanging-transaction")
def hanging(traffic: Traffic, wrong: bool) -> None:
    for second, end in ((0, 4500), (901 if wrong else 899, 91_000)):
        fetch(traffic, second, 4410, end, last_stable_offset=4410)


@case("hanging-transaction", "as InitProducerId says it")
def own_timeout(traffic: Traffic, wrong: bool) -> None:
    traffic.add(
        "transactions",
        transactional_id="tx-1",
        outcome="open",
        timeout_ms=60_000,
        partitions=[{"topic": "t", "partition": 0}],
    )
    for second, end in ((0, 4500), (80 if wrong else 70, 91_000)):
        fetch(traffic, second, 4410, end, last_stable_offset=4410)


@case("transaction-retries")
def retries(traffic: Traffic, wrong: bool) -> None:
    for number in range(10 if wrong else 9):
        traffic.ask("AddPartitionsToTxn", number / 8, error="CONCURRENT_TRANSACTIONS", transactional_id="tx-1")


@case("transaction-retries", "not where each retry passed")
def retries_that_pass(traffic: Traffic, wrong: bool) -> None:
    for number in range(40):
        error = "CONCURRENT_TRANSACTIONS" if wrong or number % 2 else "NONE"
        traffic.ask("AddPartitionsToTxn", number, error=error, transactional_id="tx-1")


@case("aborts-many")
def aborts(traffic: Traffic, wrong: bool) -> None:
    for number in range(20):
        aborted = number < (2 if wrong else 1)
        outcome = "aborted" if aborted else "committed"
        traffic.add("transactions", transactional_id="tx-1", outcome=outcome, client_id="app")


@case("transaction-timed-out")
def late_end(traffic: Traffic, wrong: bool) -> None:
    fate(traffic, duration_us=60_000_000 if wrong else 59_999_000)


@case("transaction-timed-out", "not where somebody took it over")
def taken_over(traffic: Traffic, wrong: bool) -> None:
    fate(traffic, fenced_by=None if wrong else "other@10.0.0.2")


@case("transaction-timed-out", "aborted by the coordinator, not by its producer")
def ended_late(traffic: Traffic, wrong: bool) -> None:
    fate(traffic, "WriteTxnMarkers" if wrong else "EndTxn", outcome="aborted")


@case("transaction-timed-out", "whose end found none open, as its producer is told since KIP-890")
def found_none(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("EndTxn", 60 if wrong else 59.9, error="INVALID_TXN_STATE", transactional_id="tx-1")
    who = {"transactional_id": "tx-1", "client_id": "app", "timeout_ms": 60_000}
    traffic.add("transactions", outcome="open", began=at(0), **who)


def fate(traffic: Traffic, end: str = "EndTxn", **columns: Any) -> None:
    """A transaction, and what ended it."""
    traffic.ask("InitProducerId", 0, transactional_id="tx-1")
    error = "PRODUCER_FENCED" if "outcome" not in columns else None
    traffic.ask(end, 75, error=error, transactional_id="tx-1")
    shown = {name: traffic.rows["exchanges"][1][name] for name in ("connection", "exchange", "reply")}
    usual = {"duration_us": 75_000_000, "timeout_ms": 60_000, "outcome": "fenced", "began": at(0), "ended": at(75)}
    who = {"transactional_id": "tx-1", "client_id": "app", "evidence": shown}
    traffic.add("transactions", **{**usual, **who, **columns})


@case("tiny-transactions")
def small_transactions(traffic: Traffic, wrong: bool) -> None:
    _transactions(traffic, 100 if wrong else 99, 9)


@case("tiny-transactions", "not where they hold more")
def larger_transactions(traffic: Traffic, wrong: bool) -> None:
    _transactions(traffic, 100, 9 if wrong else 10)


@case("tiny-transactions", "not in a shorter capture")
def transactions_of_a_moment(traffic: Traffic, wrong: bool) -> None:
    _transactions(traffic, 100, 1)
    traffic.rows["connections"][0] |= {"last_time": at(10 if wrong else 9.99)}


def _transactions(traffic: Traffic, number: int, records: int) -> None:
    traffic.link(0)
    for attempt in range(number):
        who = {"transactional_id": "tx-1", "outcome": "committed", "client_id": "app"}
        traffic.add("transactions", began=at(attempt / 10.1), records=records, **who)


@case("producer-id-churn")
def churn(traffic: Traffic, wrong: bool) -> None:
    _producers(traffic, 10 if wrong else 9, 5, 1)


@case("producer-id-churn", "not of processes that start together")
def started_together(traffic: Traffic, wrong: bool) -> None:
    _producers(traffic, 10, 3.4 if wrong else 3.3, 1)


@case("producer-id-churn", "not of producers that live on")
def living_on(traffic: Traffic, wrong: bool) -> None:
    _producers(traffic, 10, 5, 60 if wrong else 61)


@case("producer-id-churn", "not of those with a transactional id")
def of_transactions(traffic: Traffic, wrong: bool) -> None:
    _producers(traffic, 10, 5, 1, transactional_id=None if wrong else "tx-1")


@case("producer-id-churn", "not of one producer that asks again")
def asks_again(traffic: Traffic, wrong: bool) -> None:
    _producers(traffic, 10 if wrong else 9, 5, 1)
    traffic.ask("InitProducerId", 40.5, on=0, client_id="app")


def _producers(traffic: Traffic, number: int, apart: float, life: float, **columns: Any) -> None:
    for attempt in range(number):
        traffic.ask("InitProducerId", attempt * apart, on=attempt, client_id="app", **columns)
        traffic.rows["connections"][attempt] |= {
            "first_time": at(attempt * apart),
            "last_time": at(attempt * apart + life),
        }


# ------------------------------------------------------------------------------------------------------------ cluster


@case("metadata-storm")
def storm(traffic: Traffic, wrong: bool) -> None:
    for number in range(20):  # whoever begins may ask more
        traffic.ask("Metadata", number / 10)
    for number in range(50 if wrong else 49):
        traffic.ask("Metadata", 10 + number / 5)


@case("metadata-storm", "in the first seconds of a capture, of a client that was there before")
def storm_from_before(traffic: Traffic, wrong: bool) -> None:
    traffic.link(7, opened=not wrong)
    for number in range(50):
        traffic.ask("Metadata", number / 12)


_ALL_TOPICS: dict[str, Any] = {"request_bytes": 21, "response_bytes": 1_000_000}
"""Metadata 1 of client `app`."""


@case("metadata-all-topics")
def all_topics(traffic: Traffic, wrong: bool) -> None:
    for number in range(3):
        traffic.ask("Metadata", number, **{**_ALL_TOPICS, "response_bytes": 1_000_000 if wrong else 999_999})


@case("metadata-all-topics", "again and again")
def all_topics_often(traffic: Traffic, wrong: bool) -> None:
    for number in range(10 if wrong else 9):
        traffic.ask("Metadata", 60 * number, **{**_ALL_TOPICS, "response_bytes": 100_000})


@case("metadata-all-topics", "not in a moment")
def all_topics_at_once(traffic: Traffic, wrong: bool) -> None:
    for number in range(10):
        traffic.ask("Metadata", number * (35 if wrong else 30), **{**_ALL_TOPICS, "response_bytes": 100_000})


@case("metadata-all-topics", "not of a topic of many partitions")
def many_partitions(traffic: Traffic, wrong: bool) -> None:
    for number in range(3):
        traffic.ask("Metadata", number, **{**_ALL_TOPICS, "request_bytes": 21 if wrong else 24})


def _leaves(
    traffic: Traffic, *isr: tuple[float, list[int]], again: float, topic_id: str | None = "6hWhQvmDS1S79-tG9HZ0dw"
) -> None:
    """In-sync sets, and when Metadata said the last one again."""
    its = {"topic": "t", "topic_id": topic_id, "partition": 0}
    for second, nodes in isr:
        traffic.add("leaders", time=at(second), leader=nodes[0], isr=nodes, **its)
    traffic.ask("Metadata", again, 0, topics=["t", "u"])
    traffic.ask("Metadata", 200, 0, topics=["u"])


@case("under-replicated")
def leaves(traffic: Traffic, wrong: bool) -> None:
    _leaves(traffic, (0, [1, 2, 3]), (10, [1, 2]), again=70 if wrong else 69.9)


@case("under-replicated", "not of one that comes back")
def comes_back(traffic: Traffic, wrong: bool) -> None:
    _leaves(traffic, (0, [1, 2, 3]), (10, [1, 2]), (71 if wrong else 69, [1, 2, 3]), again=70)


@case("under-replicated", "not of one that came back before what is told late, as connections with holes tell it")
def told_late(traffic: Traffic, wrong: bool) -> None:
    late = 21 if wrong else 15
    _leaves(traffic, (0, [1, 2, 3]), (10, [1, 2]), (20, [1, 2, 3]), (late, [1, 2]), again=90)


@case("under-replicated", "not where replicas are moved")
def moved_away(traffic: Traffic, wrong: bool) -> None:
    after = [1, 2] if wrong else [1, 2, 4]
    _leaves(traffic, (0, [1, 2, 3]), (10, [1, 2, 3, 4]), (11, after), again=90)


@case("under-replicated", "not of a topic of another cluster")
def elsewhere(traffic: Traffic, wrong: bool) -> None:
    _leaves(traffic, (0, [1, 2, 3]), (10, [1, 2]), again=90, **({} if wrong else {"topic_id": None}))


@case("under-replicated", "not where somebody asked for it")
def taken_away(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("AlterPartitionReassignments", 11 if wrong else 9)
    _leaves(traffic, (0, [1, 2, 3]), (10, [1, 2]), again=90)


@case("leader-missing")
def leaderless(traffic: Traffic, wrong: bool) -> None:
    for second in (0, 15, 31 if wrong else 29):
        traffic.ask("Metadata", second, error="LEADER_NOT_AVAILABLE", topics=["t"])


# ----------------------------------------------------------------------------------------------------------- security


@case("authentication-failed")
def login(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("SaslAuthenticate", 0, error="SASL_AUTHENTICATION_FAILED")
    if not wrong:
        traffic.ask("SaslAuthenticate", 1, on=1)
        traffic.ask("Metadata", 2, on=1)


@case("authentication-failed", "by closing the connection")
def shut_out(traffic: Traffic, wrong: bool) -> None:
    """After a token that is no request: Kafka 3.9 does so to SaslHandshake 0."""
    for number in range(4):
        traffic.ask("SaslHandshake", number, on=number, api_version=0, response_bytes=50)
        columns = {
            "sasl_mechanism": "PLAIN",
            "opaque_sasl_bytes": 20,
            "broker_bytes": 50,
            "last_time": at(number + 0.3),
        }
        traffic.rows["connections"][number] |= columns
    traffic.rows["connections"][2]["broker_bytes"] = 50 if wrong else 54  # it was answered
    traffic.rows["connections"][3]["last_time"] = at(6)  # it may have waited for something else


@case("authorization-failed")
def rights(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", error="TOPIC_AUTHORIZATION_FAILED" if wrong else None, topics=["secret"])


@case("security-changed")
def changed(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("CreateAcls", error=None if wrong else "CLUSTER_AUTHORIZATION_FAILED")
    traffic.ask("DeleteAcls", 1, None, status="unanswered")
    traffic.ask("DescribeAcls", 2)


@case("security-changed", "not where nothing was asked to be changed")
def changed_nothing(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("CreateAcls", response_bytes=19 if wrong else 15)
    traffic.ask("CreateAcls", 1, api_version=1, response_bytes=20 if wrong else 16)


@case("security-changed", "also by several in turn")
def changed_in_turn(traffic: Traffic, wrong: bool) -> None:
    for number, api in enumerate(("AlterUserScramCredentials", "AlterClientQuotas", "IncrementalAlterConfigs")):
        traffic.ask(api if wrong else "Metadata", number, on=number, client_id=f"admin-{number}")


@case("credentials-in-clear")
def clear(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, sasl_mechanism="PLAIN" if wrong else "SCRAM-SHA-256")
    traffic.link(1, sasl_mechanism="PLAIN", client_ip="127.0.0.1")
    traffic.link(2, sasl_mechanism="PLAIN", tls=True)


@case("plain-traffic")
def plain(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, client_ip="10.0.0.1" if wrong else "::1")


@case("certificate-expired")
def certificate(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, first_time=at(1), tls=True, tls_subject="CN=b", tls_not_after=at(0.999999 if wrong else 15 * 86400))
    traffic.link(1, first_time=at(0), tls=True, tls_subject="CN=b", tls_not_after=at(13 * 86400))  # a warning


@case("tls-alert")
def alert(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, first_time=at(1), tls=True, tls_failure="client: unknown_ca" if wrong else "broker: no answer")


@case("tls-alert: nobody opened it")
def alert_unopened(traffic: Traffic, wrong: bool) -> None:
    _shut(traffic, 9093 if wrong else 443, "broker: handshake_failure")


@case("not-tls")
def not_tls(traffic: Traffic, wrong: bool) -> None:
    _shut(traffic, 9093, "broker: no answer" if wrong else "broker: unexpected_message")
    traffic.link(1, first_time=at(0), tls=True, tls_version="1.3")


def _shut(traffic: Traffic, port: int, failure: str) -> None:
    """A TLS connection in which no Kafka was found."""
    facts = {"first_time": "2026-11-20T10:00:00.000000Z", "tls_failure": failure}
    traffic.unrecognised.append(
        {
            "capture": traffic.capture,
            "connection": f"10.0.0.1:5000-10.0.0.9:{port}#1",
            "payload_bytes": 10,
            "looks_like": "TLS",
            "tls": facts,
        }
    )


# ----------------------------------------------------------------------------------------------------------- versions


@case("version-removed-in-target")
def removed(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Fetch", api_version=3 if wrong else 4)


@case("version-removed-in-target", "not an error of clients that were offered nothing newer")
def offered_nothing_newer(traffic: Traffic, wrong: bool) -> None:
    traffic.add("api_versions", broker="10.0.0.9:9092", api_key=1, min=0, max=3)
    traffic.ask("ApiVersions", api_version=3)
    traffic.ask("Fetch", api_version=2 if wrong else 3)


@case("version-refused", "of Produce, which Kafka 4 offers and refuses")
def refused_since_4(traffic: Traffic, wrong: bool) -> None:
    traffic.add("api_versions", broker="10.0.0.9:9092", api_key=0, min=0, max=13)
    traffic.add("api_versions", broker="10.0.0.9:9092", api_key=1, min=4 if wrong else 0, max=18)
    traffic.ask("Produce", 0, None, status="unanswered", api_version=1)


@case("version-refused", "as the other brokers say")
def refused_elsewhere(traffic: Traffic, wrong: bool) -> None:
    for broker, low in (("10.0.0.7:9092", 4), ("10.0.0.8:9092", 4 if wrong else 0)):
        traffic.add("api_versions", broker=broker, api_key=1, min=low, max=18)
    traffic.ask("Fetch", 0, None, status="unanswered", api_version=2)


@case("version-refused")
def refused(traffic: Traffic, wrong: bool) -> None:
    traffic.add("api_versions", broker="10.0.0.9:9092", api_key=3, min=0, max=12)
    traffic.ask("Metadata", 0, None, status="unanswered", api_version=13 if wrong else 12)


@case("version-refused", "of what Kafka 4 removed, where nobody asked what brokers offer")
def refused_unasked(traffic: Traffic, wrong: bool) -> None:
    closed = {"closed": "fin", "closed_by": "broker" if wrong else "client", "closed_after": "request"}
    for number in range(3):
        on = 50 + number
        traffic.link(on, **closed)
        traffic.ask("Produce", number, None, on=on, status="unanswered", api_version=1)


def _speaks(traffic: Traffic, client_id: str = "app", **apis: int) -> None:
    """A client, with the one version that it speaks of each API."""
    used = [
        {"api": api, "min_version": version, "max_version": version, "exchanges": 1} for api, version in apis.items()
    ]
    times = {name: at(0) for name in ("first_time", "last_time")}
    traffic.add("clients", client_ip="10.0.0.1", client_id=client_id, apis=used, exchanges=len(used), **times)


@case("api-versions-missing")
def unasked(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", api_version=7)
    traffic.ask("Metadata" if wrong else "ApiVersions", on=1, api_version=3)
    traffic.ask("SaslHandshake", on=2, client_id="other")
    traffic.ask("Fetch", on=3, client_id="broker-1-fetcher-0", api_version=11)
    _speaks(traffic, Metadata=7)
    _speaks(traffic, "other", SaslHandshake=1)
    _speaks(traffic, "broker-1-fetcher-0", Fetch=11)


@case("api-versions-missing", "not where it may have")
def unasked_maybe(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", api_version=7)
    traffic.ask("Metadata", on=1, api_version=7)
    traffic.rows["connections"][1]["opened"] = wrong
    _speaks(traffic, Metadata=7)


@case("api-versions-missing", "not of whom an upgrade shuts out")
def unasked_and_old(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Fetch", api_version=11)
    traffic.ask("Fetch", 1, api_version=4 if wrong else 3)
    _speaks(traffic, Fetch=4 if wrong else 3)


def _offered(traffic: Traffic, number: int, fetch: int, since: float = 0, until: float = 700) -> None:
    """A connection to a broker of its own, which says what it offers."""
    connection = link(number, f"10.0.0.{number}")
    traffic.link(number, **connection, first_time=at(since), last_time=at(until))
    for key, high in ((0, 9), (1, fetch), (52, number)):  # Vote only controllers answer
        traffic.add(
            "api_versions",
            connection=connection["connection"],
            broker=f"10.0.0.{number}:9092",
            api_key=key,
            min=0,
            max=high,
        )
    traffic.add("brokers", node_id=number, host=f"10.0.0.{number}", port=9092)


def _in_sync(traffic: Traffic, *nodes: int) -> None:
    traffic.add("leaders", time=at(1), topic="t", partition=0, leader=nodes[0], isr=list(nodes))


@case("brokers-differ")
def differ(traffic: Traffic, wrong: bool) -> None:
    for number, fetch_version, since in ((1, 17, 0), (2, 17, 0), (3, 16, 100 if wrong else 101)):
        _offered(traffic, number, fetch_version, since)
    _in_sync(traffic, 1, 2, 3)


@case("brokers-differ", "not in what only controllers or some of them have")
def differ_elsewhere(traffic: Traffic, wrong: bool) -> None:
    for number in (1, 2):
        _offered(traffic, number, 15 + number if wrong else 17)
    _in_sync(traffic, 1, 2)


@case("brokers-differ", "not of two clusters")
def differ_apart(traffic: Traffic, wrong: bool) -> None:
    for number in (1, 2):
        _offered(traffic, number, 15 + number)
        topic = {"topic": None, "topic_id": "6hWhQvmDS1S79-tG9HZ0dw" if wrong else f"6hWhQvmDS1S79-tG9HZ0d{number}"}
        for part in (topic, {"topic": None, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"}):
            connection = link(number, f"10.0.0.{number}")
            traffic.ask("Fetch", number, on=number, place=("t", 0), part=part, **connection)
    traffic.add("brokers", node_id=2, host="10.0.0.1", port=9092)  # the same ids in both
    _in_sync(traffic, 1, 2)


@case("brokers-differ", "not of one that was upgraded meanwhile")
def differ_for_now(traffic: Traffic, wrong: bool) -> None:
    _offered(traffic, 1, 17, until=700)
    _offered(traffic, 2, 16, until=700)
    if not wrong:
        again = "10.0.0.1:6000-10.0.0.2:9092#1"
        traffic.link(9, connection=again, client_port=6000, broker_ip="10.0.0.2", first_time=at(701), last_time=at(702))
        for key, high in ((0, 9), (1, 17)):
            traffic.add("api_versions", connection=again, broker="10.0.0.2:9092", api_key=key, min=0, max=high)
    _in_sync(traffic, 1, 2)


@case("message-format-old")
def old_format(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", place=("t", 0), batch={"magic": 1 if wrong else 2})


@case("zookeeper-consumer")
def in_zookeeper(traffic: Traffic, wrong: bool) -> None:
    kind = "zookeeper" if wrong else "commit"
    traffic.ask("OffsetCommit", 0, api_version=0, group_id="g")
    traffic.add(
        "offsets",
        time=at(0),
        group_id="g",
        topic="t",
        partition=0,
        offset=5,
        kind=kind,
        client_id="app",
        exchange=0,
        reply=0,
        connection=traffic.rows["exchanges"][0]["connection"],
    )


@case("zookeeper-consumer", "not where it was refused")
def not_in_zookeeper(traffic: Traffic, wrong: bool) -> None:
    in_zookeeper(traffic, True)
    traffic.rows["offsets"][0]["error"] = None if wrong else "UNSUPPORTED_VERSION"


# ----------------------------------------------------------------------------------------------------------- protocol


@case("correlation-mismatch")
def mismatch(traffic: Traffic, wrong: bool) -> None:
    traffic.link(0, opened=wrong)
    traffic.ask("Metadata", status="orphan_response", exchange=None)


@case("frame-malformed")
def malformed(traffic: Traffic, wrong: bool) -> None:
    reason = "response: malformed: apiKeys at byte 10" if wrong else "request: 1 trailing bytes"
    traffic.ask("Metadata", reason=reason)


@case("unknown-api")
def unknown(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata" if wrong else "ApiVersions", api_version=99, reason="request: unsupported_version")


@case("frame-oversized")
def oversized(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, None, status="unanswered", request_bytes=104_857_605 if wrong else 104_857_604)
    traffic.ask("Produce", 1, on=1, request_bytes=200_000_000)
    traffic.ask("Produce", 2, None, on=2, status="in_flight", request_bytes=200_000_000)


@case("frame-oversized", "not where bytes are missing")
def oversized_maybe(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, None, status="unanswered", request_bytes=200_000_000)
    traffic.rows["connections"][0]["gaps"] = 0 if wrong else 1


@case("frame-oversized", "not where the connection went on")
def oversized_open(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, None, status="unanswered", request_bytes=200_000_000)
    traffic.rows["connections"][0]["closed"] = "rst" if wrong else "open"


@case("opaque-bytes", "not of requests that are too large")
def oversized_bytes(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, None, status="unanswered", request_bytes=1000 if wrong else 200_000_000)
    traffic.rows["connections"][0]["opaque_limit_bytes"] = 5000


@case("frame-length-impossible")
def impossible(traffic: Traffic, wrong: bool) -> None:
    reason = "request: its length field holds -1431655766, which no message has"
    traffic.ask("Produce", 0)
    traffic.ask("Produce", 1, None, status="unanswered", request_bytes=None, reason=reason if wrong else None)


@case("frame-length-impossible", "of an answer")
def impossible_answer(traffic: Traffic, wrong: bool) -> None:
    reason = "response: its length field holds 1347571524, which no message has"
    traffic.ask("Fetch", 0, reason=reason if wrong else "response: 4 bytes missing inside")


@case("frame-length-impossible", "not where bytes are missing")
def impossible_maybe(traffic: Traffic, wrong: bool) -> None:
    impossible(traffic, True)
    traffic.rows["connections"][0]["gaps"] = 0 if wrong else 1


@case("frame-length-impossible", "not behind a message that cannot be decoded")
def impossible_behind(traffic: Traffic, wrong: bool) -> None:
    impossible(traffic, True)
    traffic.rows["exchanges"][0]["reason"] = None if wrong else "request: malformed: header at byte 4"


@case("request-unanswered", "not where a length before is impossible")
def impossible_before(traffic: Traffic, wrong: bool) -> None:
    impossible(traffic, not wrong)
    traffic.ask("Fetch", 2, None, status="unanswered")
    for number in range(3):
        traffic.ask("Produce", 3 + number, None, status="unanswered")
    traffic.rows["exchanges"][1]["request_state"] = "undecoded"


@case("answers-out-of-order")
def overtaken(traffic: Traffic, wrong: bool) -> None:
    """A Heartbeat that is answered before the Fetch that came before it."""
    traffic.ask("Fetch", 0, 400, exchange=0, reply=1 if wrong else 0, correlation_id=1)
    traffic.ask("Heartbeat", 0.01, 40, exchange=1, reply=0 if wrong else 1, correlation_id=2)


@case("answers-out-of-order", "three requests deep")
def overtaken_deep(traffic: Traffic, wrong: bool) -> None:
    for exchange, reply in enumerate((3, 0, 1, 2) if wrong else (0, 1, 2, 3)):
        traffic.ask("Produce", exchange, 10, exchange=exchange, reply=reply, correlation_id=exchange)


@case("answers-out-of-order", "not where a request was not answered")
def one_unanswered(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Produce", 0, 10, exchange=0, reply=0, correlation_id=1)
    traffic.ask("Produce", 1, None, status="unanswered", exchange=1, reply=None, correlation_id=2)
    traffic.ask("Metadata", 2, 10, exchange=2, reply=2 if wrong else 1, correlation_id=3)
    traffic.ask("Metadata", 3, 10, exchange=3, reply=1 if wrong else 2, correlation_id=4)


@case("answers-out-of-order", "not where bytes are missing")
def overtaken_maybe(traffic: Traffic, wrong: bool) -> None:
    overtaken(traffic, True)
    traffic.rows["connections"][0]["gaps"] = 0 if wrong else 1


@case("not-kafka")
def http(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata")
    _stranger(traffic, "HTTP", 9092 if wrong else 8080)
    _stranger(traffic, "unknown", 9092)  # Kafka that was not recognised, maybe


@case("not-kafka", "every protocol that is told apart")
def scanner(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata")
    for like in ("SSH", "RDP", "SMB", "MQTT", "Redis", "AMQP", "SMTP", "PostgreSQL"):
        _stranger(traffic, like, 9092 if wrong else 9093)


@case("not-kafka", "an unknown protocol that nobody answered")
def unknown_protocol(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata")
    _stranger(traffic, "unknown", 9092, **({"unanswered": True} if wrong else {}))


@case("not-kafka", "TLS, not where its hello says why it failed")
def hello(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata")
    facts = {"tls": {"first_time": "2026-01-02T03:04:05Z", "tls_failure": "broker: no answer"}}
    _stranger(traffic, "TLS", 9092, unanswered=True, **({} if wrong else facts))


@case("not-kafka", "of who answers")
def web_server(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("ApiVersions", 0, None, status="unanswered")
    link = {"connection": traffic.rows["connections"][0]["connection"], "looks_like": "HTTP"}
    traffic.facts["answered_otherwise"] = [link] if wrong else []


@case("no-kafka-answer")
def no_answers(traffic: Traffic, wrong: bool) -> None:
    for number in range(3 if wrong else 2):
        _closed_without_a_byte(traffic, number)


@case("no-kafka-answer", "not where the client was answered once")
def answered_once(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        _closed_without_a_byte(traffic, number)
    if not wrong:
        traffic.ask("ApiVersions", 9, on=9)


@case("no-kafka-answer", "not where others are answered, if it was asked")
def others_answered(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        _closed_without_a_byte(traffic, number, early=wrong)
    traffic.ask("ApiVersions", 9, on=9, client_ip="10.0.0.7", client_id="other")


@case("no-kafka-answer", "on ApiVersions, while others are answered")
def limited(traffic: Traffic, wrong: bool) -> None:
    """A limit of connections; what comes before and after is no sign of one."""
    for number in range(4):
        _closed_without_a_byte(traffic, number, "ApiVersions" if wrong else "Metadata")
    for second in (0, 2, 9):
        traffic.ask("Produce", second, on=9, client_ip="10.0.0.7", client_id="other")


@case("no-kafka-answer", "not where the client was answered between")
def answered_between(traffic: Traffic, wrong: bool) -> None:
    for number in range(4):
        _closed_without_a_byte(traffic, number)
    for second in (0, 2, 9):
        traffic.ask("Produce", second, on=9, client_ip="10.0.0.7", client_id="other")
    if not wrong:
        traffic.ask("ApiVersions", 2, on=8)
        traffic.rows["connections"][-1]["first_time"] = at(2)


@case("no-kafka-answer", "of several clients, each less than three times, and answered between")
def limited_together(traffic: Traffic, wrong: bool) -> None:
    """A limit of connections that clients meet in turn; one client alone may have another reason."""
    for number in range(4):
        client_id = ("first", "second")[number % 2 if wrong else 0]
        _closed_without_a_byte(traffic, number, client_id=client_id)
    for second in (0, 1.5, 2.5, 9):
        traffic.ask("Produce", second, on=9, client_id="first")
        traffic.rows["connections"][-1]["first_time"] = at(1.5)


@case("no-kafka-answer", "not where the version is refused")
def refused_instead(traffic: Traffic, wrong: bool) -> None:
    traffic.add("api_versions", broker="10.0.0.9:9092", api_key=0, min=3, max=12)
    for number in range(3):
        _closed_without_a_byte(traffic, number, "Produce", api_version=3 if wrong else 1)


@case("no-kafka-answer", "not where packets are missing")
def maybe_answered(traffic: Traffic, wrong: bool) -> None:
    for number in range(3):
        _closed_without_a_byte(traffic, number)
    traffic.link(9, gaps=0 if wrong else 1)


def _closed_without_a_byte(
    traffic: Traffic, number: int, api: str = "ApiVersions", early: bool = False, **columns: Any
) -> None:
    """A connection that ends with its first request; `early`: it was closed before."""
    reason = "response: the broker had closed the connection before" if early else None
    columns = {"status": "unanswered", "reason": reason, **columns}
    traffic.ask(api, number, None, on=number, reply=None, **columns)
    traffic.rows["connections"][-1] |= {
        "client_packets": 5,
        "broker_packets": 4,
        "requests": 1,
        "first_time": at(number),
        "last_time": at(number + 1),
    }


@case("not-kafka", "not where nobody speaks Kafka")
def http_alone(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata", latency_ms=1 if wrong else None, status="answered" if wrong else "unanswered")
    _stranger(traffic, "HTTP", 9092)


@case("not-kafka", "not at a proxy")
def http_proxy(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Metadata")
    traffic.rows["connections"][0]["opaque_prefix_bytes"] = 0 if wrong else 40
    _stranger(traffic, "HTTP", 9092)


def _stranger(traffic: Traffic, like: str, port: int, **facts: Any) -> None:
    """A connection in which no Kafka was found."""
    traffic.unrecognised.append(
        {
            "capture": traffic.capture,
            "connection": f"10.0.0.5:5000-10.0.0.9:{port}#1",
            "payload_bytes": 60,
            "looks_like": like,
            **facts,
        }
    )


@case("decompression-bomb")
def bomb(traffic: Traffic, wrong: bool) -> None:
    batch = {"codec": "gzip", "batch_bytes": 1_000_000 if wrong else 4_000_000, "uncompressed_bytes": 200_000_000}
    traffic.ask("Produce", place=("t", 0), batch=batch)


@case("wait-too-long")
def long_wait(traffic: Traffic, wrong: bool) -> None:
    traffic.ask("Fetch", max_wait_ms=360_000 if wrong else 300_000, min_bytes=1)
