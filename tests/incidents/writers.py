"""Incidents of producers: records that are refused, misplaced, fenced or held back."""

from __future__ import annotations

import socket
import struct
import time

from tests.incidents.lab import Lab, Truth, incident, sleep


@incident(Truth("hot-partition", ("web-tracker", "sessions")))
def hot_key(lab: Lab) -> None:
    """Nearly all records have one key; one reader falls behind."""
    topic = lab.topic("sessions", 6)
    with lab.capture():
        lab.write("web-tracker", topic, rate=200, keys=1, size=400)
        lab.write("web-tracker", topic, rate=20, keys=100)
        lab.read("sessionizer", "sessions", topic, work=0.02)
        sleep(12)


@incident(Truth("hot-partition", ("orders-writer", "orders")))
def wrong_partitioner(lab: Lab) -> None:
    """A producer puts all its records into partition 0, whatever their keys."""
    topic = lab.topic("orders", 6)
    with lab.capture():
        lab.write("orders-writer", topic, rate=200, partition=0)
        lab.read("orders-reader", "orders", topic)
        sleep(8)


@incident(Truth("message-too-large", ("photos",)))
def too_large(lab: Lab) -> None:
    """Each fiftieth record is larger than the topic takes, and is lost."""
    topic = lab.topic("photos", 1, max_message_bytes="100000")
    with lab.capture():
        lab.write("camera", topic, rate=40, large=(50, 200_000))
        sleep(6)


@incident(Truth("producer-fenced", ("pay-a", "pay-b"), also=("aborts-many", "transaction-timed-out")))
def txid_shared(lab: Lab) -> None:
    """Two instances share one transactional id and fence each other."""
    topic = lab.topic("payments", 1)
    config = {"transactional.id": f"payments-{lab.name}"}
    with lab.capture():
        for instance in ("pay-a", "pay-b"):
            lab.start("transact", instance, topic=topic, config=config)
        sleep(10)


@incident(Truth("client-throttled", ("etl",), also=("request-unanswered",)))
def request_quota(lab: Lab) -> None:
    """A client may use 0.1 % of the brokers' threads, and asks for much more."""
    topic = lab.topic("rows")
    quota = ["--alter", "--add-config", "request_percentage=0.1", "--entity-type", "clients", "--entity-name", "etl"]
    lab.tool("kafka.admin.ConfigCommand", *quota)
    with lab.capture():
        lab.write("etl", topic, rate=300, config={"linger.ms": 0})
        lab.write("other", topic)
        sleep(15)


@incident(Truth("metadata-storm", ("inventory",)))
def metadata_storm(lab: Lab) -> None:
    """A tool asks for the metadata of all topics some fifty times a second."""
    topic = lab.topic("stock")
    with lab.capture():
        lab.write("shelf", topic)
        lab.start("administrate", "inventory", every=0.01)
        sleep(6)


@incident(Truth(("version-refused", "version-removed-in-target"), ("old-app",), also=("request-unanswered",)))
def old_client(lab: Lab) -> None:
    """A client of 2015 writes with Produce 1, which Kafka 4 has not; the broker closes the connection each time."""
    host, _, port = lab.bootstrap.partition(",")[0].rpartition(":")
    name = b"\0\x07old-app"
    produce = struct.pack(">hhi", 0, 1, 7) + name + struct.pack(">hii", 1, 1000, 0)
    with lab.capture():
        lab.write("new-app", lab.topic("notes"))
        for _ in range(6):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(struct.pack(">i", len(produce)) + produce)
                connection.settimeout(5)
                connection.recv(1000)
            time.sleep(0.5)
