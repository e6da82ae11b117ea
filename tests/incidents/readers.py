"""Incidents of readers: at wrong offsets, behind transactions, in the wrong rack, or without a right to read."""

from __future__ import annotations

from tests.brokers.cluster import SECRETS
from tests.incidents.lab import Lab, Truth, incident, sleep


@incident(Truth("redelivered-records", ("replayer", "seek"), also=("commit-goes-back",)))
def seek_back_loop(lab: Lab) -> None:
    """A consumer seeks back to its first record after each 200 records."""
    topic = lab.topic("orders", 1)
    with lab.capture():
        lab.write("shop", topic, rate=100)
        lab.read("replayer", "replay", topic, seek_back=200)
        sleep(12)


@incident(Truth("fetch-wait", ("dashboard",)))
def long_poll(lab: Lab) -> None:
    """fetch.min.bytes is 1 MB and fetch.wait.max.ms 5 s: records come 5 s late."""
    topic = lab.topic("metrics", 1)
    with lab.capture():
        lab.write("agent", topic)
        lab.read("dashboard", "dash", topic, config={"fetch.min.bytes": 1_000_000, "fetch.wait.max.ms": 5000})
        sleep(20)


@incident(Truth("rack-ignored", ("geo-reader",)))
def cross_rack(lab: Lab) -> None:
    """client.rack is set, and no broker has a rack."""
    topic = lab.topic("tiles")
    with lab.capture():
        lab.write("mapper", topic)
        lab.read("geo-reader", "geo", topic, config={"client.rack": "az2"})
        sleep(7)


@incident(Truth("hanging-transaction", ("bank-core-1",), also=("reader-held-by-transaction",)))
def hanging_transaction(lab: Lab) -> None:
    """A transaction stays open; readers of committed records stop at its first record."""
    topic = lab.topic("statement", 1)
    with lab.capture():
        lab.start("transact", "bank-core-2", topic=topic, config={"transactional.id": f"bank-2-{lab.name}"})
        lab.read("statement-reader", "statements", topic, config={"isolation.level": "read_committed"})
        sleep(3)
        lab.start("transact", "bank-core-1", topic=topic, hang_at=3, config={"transactional.id": f"bank-1-{lab.name}"})
        sleep(22)


@incident(Truth("authorization-failed", ("bob", "reports")))
def acl_group(lab: Lab) -> None:
    """A user may read a topic, and not its group."""
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    topic = lab.topic("facts")
    kinds = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.ALL)
    for future in lab.admin().create_acls([AclBinding(*kinds, AclPermissionType.ALLOW)]).values():
        future.result(30)
    login = {
        "bootstrap.servers": lab.addresses("SASL"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "bob",
        "sasl.password": SECRETS["bob"],
    }
    with lab.capture():
        lab.read("report-reader", "reports", topic, config=login)
        sleep(7)


@incident(
    Truth(None, hidden="Offsets without records are as usual in a compacted topic as behind aborted transactions")
)
def compaction_removes(lab: Lab) -> None:
    """Compaction removes the values that a reader, begun late, wanted to see."""
    lab.set_broker("log.cleaner.backoff.ms", "200")
    topic = lab.topic(
        "prices",
        1,
        cleanup_policy="compact",
        segment_ms="1000",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="1000",
    )
    lab.write("pricer", topic, rate=500, keys=3, seconds=8).process.wait()
    lab.write("pricer", topic, rate=20, keys=3, seconds=10).process.wait()
    with lab.capture():
        lab.write("pricer", topic, rate=20, keys=3)
        lab.read("chart", "charts", topic)
        sleep(8)
