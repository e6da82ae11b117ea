"""Each case of `../shared/cases` gets the finding that its README asks for, with who, and no other warning or error."""

from __future__ import annotations

import pytest

import kwire
from tests.shared import SHARED, case_capture

EXPECTED = {
    "advertised-localhost": "error advertised-address-unreachable: 10.0.0.2:9092 sends clients to localhost:9092",
    "advertised-unresolvable-real": "warning advertised-address-unreachable: 1cbfdb9e8dc6:31092; in 8.9 s none of 2",
    "answers-out-of-order": "error answers-out-of-order: 10.0.0.2:9092 answered orders-app",
    "apiversions-v4-closed": "error no-kafka-answer: 10.0.0.2:9093 closed 8 connections of orders-app",
    "azure-240s-idle-drop": "warning request-undelivered: had been idle for 4 min 5 s",
    "closed-at-accept": "error no-kafka-answer: before it was asked",
    "docker-dnat-any-real": "note connection-legs: 192.168.1.10:9092 were captured under 172.17.0.2:9092",
    "fetch-same-offset-again": "warning fetch-repeats: got the same 3 records of orders-0 at 100",
    "http-server-answers-kafka-real": "error not-kafka: 127.0.0.1:31800 answers in HTTP",
    "istio-redirect-real": "note connection-legs: 192.168.1.10:9092 were captured under 127.0.0.1:15001",
    "kafka-client-at-zookeeper": "error no-kafka-answer: the port is ZooKeeper's",
    "link-vntag": "",
    "localhost-ipv6-refused": "note connect-failed: each time 127.0.0.1:9092 let it in right after",
    "lso-stuck-consumer-only": "warning reader-held-by-transaction: waits at 1,000 in orders-0",
    "mtu-black-hole-real": "warning request-undelivered: segments of 328 bytes arrived, those of 1.4 kB did not",
    "nagle-delayed-ack": "note send-delayed: 40 Produce requests of orders-app",
    "oauth-rejected-after-ctrl": "error authentication-failed: invalid_token",
    "one-address-for-all-brokers": "warning advertised-address-shared: 20 of 30 requests of orders-app",
    "preferred-replica-bounce": "warning replica-bounce: replica 2 (10.0.0.3:9092, rack b)",
    "produce-length-negative": "error frame-length-impossible: length is -1,431,655,766",
    "reauth-then-session-expired": "note session-expired: 10.0.0.2:9092 closed a connection of orders-app",
    "scanner-at-kafka-port": "error not-kafka: SMB, SMTP, SSH, TLS, ZooKeeper's four-letter words",
    "sequence-forgotten-after-idle": "error sequence-gap: producer state expired while idle",
    "sequence-jump-kafkajs": "error sequence-gap: the client skipped sequence numbers: 3 expected, 4 sent",
    "sequence-reused-between-transactions": "error sequence-reused: 3 batches (9 records) for orders-0",
    "tunnel-tzsp": "",
    "acl-group": "error authorization-failed: group rep2",
    "advertised-name": "warning advertised-address-unreachable: kafka-1.internal:39092",
    "cross-rack": "note rack-ignored: geo-reader",
    "dup-group-id": "warning group-mixed: Group sender",
    "frozen-broker-2": "warning broker-stall: 10.88.0.1:19102 answered nobody for 5.2 s",
    "hanging-txn": "warning hanging-transaction: bank-tx-1 that bank-core-1",
    "hot-key": "warning hot-partition: 10.88.0.102), is 1,141 records behind",
    "idle-kill-client": "warning request-undelivered: the connection had been idle for 9.9 s",
    "leader-pingpong": "warning leaders-moved: events-0 3 times",
    "long-poll": "note fetch-wait: dashboard",
    "max-poll-librdkafka": "warning poll-interval-exceeded: thumb-1",
    "metadata-storm": "warning metadata-storm: health-check",
    "mtu-blackhole": "warning request-undelivered: segments of 349 bytes arrived, none longer",
    "old-client-on-4": "error version-refused: legacy-app",
    "partitions-added": "warning unread-partitions: Group cart has not read carts 2 to 5",
    "poison-pill": "warning partition-stuck: invoices-1@28 was read 7 times by invoice-worker",
    "replay-from-start": "note group-reads-again: Group posting-v2",
    "slow-disk-2": "warning replication-slow: for 10.88.0.1:19112",
    "too-large": "error message-too-large: 4 records were not written",
    "txid-shared": "error producer-fenced: stock-a",
}
"""Of each case its finding: severity, code, and words of its text. Frames that are read by now need none."""

ALSO_TRUE = {
    "acl-group": {"credentials-in-clear"},
    "closed-at-accept": {"advertised-address-unreachable"},
    "oauth-rejected-after-ctrl": {"credentials-in-clear"},
    "old-client-on-4": {"version-removed-in-target"},
    "reauth-then-session-expired": {"credentials-in-clear"},
    "scanner-at-kafka-port": {"advertised-address-unreachable"},
}
"""Warnings and errors beside it that the capture shows as well."""

WITHOUT_EXCHANGES = {"http-server-answers-kafka-real", "localhost-ipv6-refused"}
"""Cases in which no message of Kafka was captured."""

FOLDER = SHARED.parent / "cases"


def capture_of(case: str) -> str:
    """The capture of a case, or a skip that says what is missing."""
    captures = [*FOLDER.glob(f"wire/{case}.pcap*"), *FOLDER.glob(f"incidents/{case}/capture.pcap*")]
    return str(captures[0] if captures else case_capture(f"wire/{case}.pcap"))


def test_no_case_is_left_out() -> None:
    """Every capture that is there is looked at."""
    there = {path.name.split(".")[0] for path in FOLDER.glob("wire/*.pcap*")}
    there |= {path.parent.name for path in FOLDER.glob("incidents/*/capture.pcap*")}
    assert there <= EXPECTED.keys(), "cases without a line here"


@pytest.mark.parametrize("case", EXPECTED)
def test_a_case_gets_its_finding_and_no_other(case: str) -> None:
    """The first screen has the finding that its README asks for, and no other alarm."""
    dataset = kwire.analyze(capture_of(case))
    findings = dataset.findings.to_pylist()
    alarms = {finding["code"] for finding in findings if finding["severity"] != "note"}
    head, _, words = EXPECTED[case].partition(": ")
    severity, _, code = head.partition(" ")
    texts = [finding["text"] for finding in findings if (finding["severity"], finding["code"]) == (severity, code)]
    if code:
        assert any(words in text for text in texts), f"{head} with {words!r} is not among {findings}"
    assert alarms - {code} == ALSO_TRUE.get(case, set())
    assert dataset.exchanges.num_rows or case in WITHOUT_EXCHANGES
