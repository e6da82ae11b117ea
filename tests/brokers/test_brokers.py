"""The brokers that other tests rely on are what they say: real, of the version asked for, whole, and ended."""

from __future__ import annotations

import socket
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.brokers import jars
from tests.brokers.cluster import SECRETS, START_SECONDS, Cluster, Spec, scram_users
from tests.brokers.fixtures import Start


def _make_topic(cluster: Cluster, copies: int = 1) -> str:
    topic = f"brokers-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, copies)])[topic].result(START_SECONDS)
    return topic


def _write_and_read(cluster: Cluster, topic: str, **settings: str) -> list[bytes]:
    client = {"bootstrap.servers": cluster.bootstrap, **settings}
    producer = Producer(client)
    for number in range(3):
        producer.produce(topic, value=b"%d" % number)
    assert producer.flush(START_SECONDS) == 0
    consumer = Consumer({**client, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + START_SECONDS
    while len(values) < 3 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:  # a node may not know the new topic yet, and says so
            values.append(message.value() or b"")
    consumer.close()
    return values


@pytest.mark.parametrize("version", jars.VERSIONS)
def test_a_single_node_stores_and_returns(shared_brokers: Start, version: str) -> None:
    cluster = shared_brokers(Spec(version))
    assert _write_and_read(cluster, _make_topic(cluster)) == [b"0", b"1", b"2"]


def test_equal_specs_share_a_cluster_and_others_do_not(shared_brokers: Start) -> None:
    assert shared_brokers(Spec(jars.NEWEST)) is shared_brokers(Spec(jars.NEWEST))


SECURE = Spec(jars.NEWEST, listeners=(("SASL", "SASL_PLAINTEXT"), ("SSL", "SSL"), ("SASL_SSL", "SASL_SSL")))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL", "SASL_SSL"])
def test_users_log_in(shared_brokers: Start, listener: str, mechanism: str) -> None:
    cluster = shared_brokers(SECURE)
    scram_users(cluster)
    settings = {
        "bootstrap.servers": cluster.address(listener),
        "security.protocol": dict(SECURE.listeners)[listener],
        "ssl.ca.location": str(cluster.certificate),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": SECRETS["alice"],
    }
    assert len(_write_and_read(cluster, _make_topic(cluster), **settings)) == 3


def test_tls_with_the_clusters_own_certificate(shared_brokers: Start) -> None:
    cluster = shared_brokers(SECURE)
    settings = {
        "bootstrap.servers": cluster.address("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(cluster.certificate),
    }
    assert len(_write_and_read(cluster, _make_topic(cluster), **settings)) == 3


def test_three_nodes_survive_one(fresh_brokers: Start) -> None:
    cluster = fresh_brokers(Spec(jars.NEWEST, nodes=3))
    topic = _make_topic(cluster, copies=3)
    cluster.kill(2)
    host, _, port = cluster.address(node=2).partition(":")
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=5)
    assert len(_write_and_read(cluster, topic)) == 3
    processes = [node.process for node in cluster.nodes if node.process is not None]
    cluster.stop()
    assert all(process.poll() is not None for process in processes)
    assert not cluster.folder.exists()
