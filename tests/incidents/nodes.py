"""Incidents of brokers: nodes that die, freeze, refuse, are full, or are not where Metadata says."""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.brokers.cluster import Cluster, Spec
from tests.incidents.lab import SETTINGS, Lab, Truth, incident, sleep


def _traffic(lab: Lab, name: str) -> str:
    """A topic with two writers and two readers; it returns its name."""
    topic = lab.topic(name, 6)
    for number in range(2):
        lab.write(f"{name}-writer-{number}", topic, rate=50, config={"acks": "all"})
        lab.read(f"{name}-reader-{number}", f"{name}-readers", topic)
    return topic


@incident(Truth("broker-stall", also=("replication-slow",)))
def frozen_broker(lab: Lab) -> None:
    """A node stands still for 3 s."""
    with lab.capture():
        _traffic(lab, "clicks")
        sleep(6)
        with lab.frozen_node(2):
            sleep(3)
        sleep(6)


@incident(Truth("broker-lost", also=("leader-missing",)))
def controller_failover(lab: Lab) -> None:
    """The node that is the active controller dies; another one takes over."""
    described = lab.admin().describe_cluster().result(30)
    active = described.controller.id
    with lab.capture():
        _traffic(lab, "clicks")
        sleep(5)
        lab.cluster.kill(active)
        sleep(12)


@incident(Truth(("broker-lost", "error-answers"), also=("leader-missing",)))
def log_directory_full(lab: Lab) -> None:
    """A node cannot write to its log directory any more, and ends itself."""
    with lab.capture():
        _traffic(lab, "clicks")
        sleep(6)
        process = lab.cluster.nodes[1].process
        assert process is not None
        subprocess.run(["prlimit", f"--pid={process.pid}", "--fsize=1000"], check=True)
        sleep(12)


_FOLLOWS = ("broker-lost", "leader-missing", "produce-timed-out-on-broker", "fetch-above-high-watermark")


@incident(Truth("under-replicated", ("node 3",), also=_FOLLOWS))
def follower_throttled(lab: Lab) -> None:
    """A throttle was forgotten: a node that was away gets 100 bytes a second, and never is in sync again."""
    every = {"follower.replication.throttled.replicas": "*", "leader.replication.throttled.replicas": "*"}
    topic = lab.topic("moves", 3, config=every)
    asks = {"topic.metadata.refresh.interval.ms": 3000, "acks": 1}  # all waits, and what waits lets the node catch up
    sides = [(f"{side}.replication.throttled.rate", node) for side in ("leader", "follower") for node in (1, 2, 3)]
    for key, node in sides:
        lab.set_broker(key, "100", node)
    try:
        with lab.capture():
            lab.write("mover", topic, rate=50, size=1000, config=asks)
            lab.read("moved", "moved", topic)
            sleep(5)
            lab.cluster.kill(3)
            sleep(10)
            lab.cluster.restart(3)
            sleep(75)
    finally:
        for key, node in sides:
            lab.set_broker(key, None, node)


@incident(Truth(("no-kafka-answer", "connect-failed")))
def connection_limit(lab: Lab) -> None:
    """A node takes no more connections from the clients' address: max.connections.per.ip is reached."""
    topic = lab.topic("beacons")
    lab.set_broker("max.connections.per.ip", "5", 1)
    try:
        with lab.capture():
            for number in range(4):
                lab.write(f"beacon-{number}", topic)
            sleep(8)
    finally:
        lab.end_clients()
        lab.set_broker("max.connections.per.ip", None, 1)


@incident(Truth("leaders-moved", ("bounces",)))
def leader_pingpong(lab: Lab) -> None:
    """An operator's script moves a leader back and forth."""
    from confluent_kafka import ElectionType, TopicPartition

    topic = lab.topic("bounces", 1)
    plan = lab.capture_path.with_suffix(".json")
    with lab.capture():
        lab.write("bouncer", topic)
        lab.read("bounced", "bounced", topic)
        for turn in range(6):
            nodes = [[1, 2, 3], [2, 1, 3]][turn % 2]
            partition = {"topic": topic, "partition": 0, "replicas": nodes}
            plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
            main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
            lab.tool(main, "--execute", "--reassignment-json-file", str(plan))
            sleep(1)
            lab.admin().elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(30)
            sleep(1)


@incident(
    Truth(("log-truncated", "offset-out-of-range", "sequence-gap"), ("meter",), also=("broker-lost", "leader-missing"))
)
def data_loss_idempotent(lab: Lab) -> None:
    """A topic without copies loses its log with its node's disk; an idempotent producer and a reader go on."""
    topic = lab.topic("meters", 1, copies=1)
    where = lab.admin().list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    with lab.capture():
        lab.write("meter", topic, config={"enable.idempotence": True})
        lab.read("meter-reader", "meters", topic)
        sleep(6)
        lab.cluster.kill(where)
        for log in (lab.cluster.nodes[where - 1].folder / "data").glob(f"{topic}-*"):
            shutil.rmtree(log)
        lab.cluster.restart(where)
        sleep(12)


@incident(Truth(("advertised-address-unreachable", "connect-failed"), ("broker-3.lab",)))
def name_of_one_broker_wrong(lab: Lab) -> None:
    """The name of node 3 resolves to an address at which nobody listens."""
    node = lab.cluster.nodes[2]
    port, file = node.ports["EXTERNAL"], node.folder / "server.properties"
    right = file.read_text()
    external = f"EXTERNAL://127.0.0.1:{port}"
    file.write_text(
        right + f"advertised.listeners={_advertised(right).replace(external, f'EXTERNAL://broker-3.lab:{port}')}\n"
    )
    hosts = lab.capture_path.with_suffix(".hosts")
    hosts.write_text("127.0.0.1 localhost\n127.0.0.77 broker-3.lab\n")
    resolving = ("unshare", "-m", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh")
    try:
        lab.cluster.kill(3)
        lab.cluster.restart(3)
        topic = lab.topic("mails", 6)
        external_addresses = {"bootstrap.servers": ",".join(lab.addresses("EXTERNAL").split(",")[:2])}
        with lab.capture():
            lab.write("mailer", topic, config=external_addresses, before=resolving)
            lab.read("mail-reader", "mail", topic, config=external_addresses, before=resolving)
            sleep(15)
    finally:
        file.write_text(right)
        lab.cluster.kill(3)
        lab.cluster.restart(3)


def _advertised(properties: str) -> str:
    """Listeners of a node but the controller's."""
    line = next(line for line in properties.splitlines() if line.startswith("listeners="))
    return ",".join(part for part in line.partition("=")[2].split(",") if not part.startswith("CONTROLLER"))


@incident(Truth("topic-missing", ("bridge", "another cluster"), also=("metadata-storm",)))
def clusters_mixed(lab: Lab) -> None:
    """The bootstrap list of an application names brokers of two clusters; its topic is in one of them."""
    topic = lab.topic("shared")
    spec = Spec(settings=SETTINGS, cluster_id="b3RoZXItY2x1c3Rlci0wMQ")
    other = Cluster(spec, lab.capture_path.with_suffix(".other"), lab.cluster.java, lab.cluster.lib)
    try:
        other.start()
        both = {"bootstrap.servers": f"{lab.addresses()},{other.bootstrap}", "topic.metadata.refresh.interval.ms": 1000}
        with lab.capture((other.nodes[0].ports["PLAINTEXT"],)):
            for number in range(8):  # each takes one of the four
                lab.write(f"bridge-{number}", topic, config=both)
            lab.write("plain", topic)
            sleep(15)
    finally:
        other.stop()
