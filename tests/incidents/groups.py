"""Incidents of consumer groups: members that stall, freeze, crash or do not belong together."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

from tests.brokers import jars
from tests.brokers.cluster import free_port
from tests.incidents.lab import Client, Lab, Truth, incident, sleep

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@incident(Truth("poll-interval-exceeded", ("thumb-1",)))
def max_poll_librdkafka(lab: Lab) -> None:
    """A record takes 9 s, max.poll.interval.ms is 6 s: librdkafka leaves the group and joins again."""
    topic = lab.topic("images", 4)
    short = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
    with lab.capture():
        lab.write("uploader", topic, rate=40)
        lab.read("thumb-0", "thumbs", topic, config=short)
        lab.read("thumb-1", "thumbs", topic, config=short, stall=(30, 9))
        sleep(22)


@incident(Truth("poll-interval-exceeded", ("report-java",)))
def max_poll_java(lab: Lab) -> None:
    """A Java consumer cannot write on what it reads for 9 s; max.poll.interval.ms is 4 s."""
    topic = lab.topic("reports", 4)
    options = (
        "max.poll.interval.ms=4000",
        "client.id=report-java",
        "max.poll.records=10",
        "auto.offset.reset=earliest",
    )
    command = lab.java(CONSOLE_CONSUMER, "--bootstrap-server", lab.bootstrap, "--topic", topic)
    command += ["--group", f"reporting-{lab.name}"]
    for option in options:
        command += ["--command-property", option]
    with lab.capture():
        lab.write("ledger", topic, rate=40, size=2000)
        lab.read("report-rdkafka", "reporting", topic)
        slow = lab.run(command, stdout=subprocess.PIPE)
        assert slow.process.stdout is not None
        for _ in range(2):
            read = 0
            while read < 100_000:  # the pipe holds 64 kB: then it stands
                read += len(slow.process.stdout.read(1000))
            sleep(9)
        sleep(1)


@incident(Truth("kip848-member-fenced", ("billing-1",), also=("redelivered-records",)))
def kip848_member_fenced(lab: Lab) -> None:
    """A process of a KIP-848 group freezes for 9 s, three times; its session ends after 6 s each time."""
    topic = lab.topic("bills", 4)
    new = {"group.protocol": "consumer"}
    with lab.capture():
        lab.write("till", topic)
        lab.read("billing-0", "billing", topic, config=new)
        freezing = lab.read("billing-1", "billing", topic, config=new)
        sleep(4)
        for _ in range(3):
            with freezing.frozen():
                sleep(9)
            sleep(3)


@incident(Truth("partition-stuck", ("invoice-worker",), also=("member-session-timeout",)))
def poison_pill(lab: Lab) -> None:
    """A record crashes its consumer, which is started again and reads the same offset again."""
    topic = lab.topic("invoices", 1)
    with lab.capture():
        lab.write("invoicing", topic, poison=100)
        for _ in range(6):
            worker = lab.read("invoice-worker", "invoices", topic, crashes=True, config={"session.timeout.ms": 3000})
            worker.process.wait()


@incident(Truth("partition-stuck", ("connector-consumer-files",)))
def connect_task_fails(lab: Lab) -> None:
    """A task of Kafka Connect fails on a record that is no JSON, and is started again every 2 s."""
    lib = jars.fetch_more(lab.cluster.spec.version, "connect-file")
    topic, port = lab.topic("events", 1), free_port()
    folder = lab.capture_path.parent
    worker, connector = folder / "worker.properties", folder / "connector.properties"
    worker.write_text(
        f"bootstrap.servers={lab.bootstrap}\nlisteners=http://127.0.0.1:{port}\n"
        f"offset.storage.file.filename={folder}/offsets\n"
        "key.converter=org.apache.kafka.connect.storage.StringConverter\n"
        "value.converter=org.apache.kafka.connect.json.JsonConverter\nvalue.converter.schemas.enable=false\n"
    )
    connector.write_text(
        f"name=files-{lab.name}\nconnector.class=org.apache.kafka.connect.file.FileStreamSinkConnector\ntasks.max=1\n"
        f"topics={topic}\nfile={folder}/sink.txt\n"
    )
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with lab.capture():
        lab.write("tracker", topic)  # what it writes is no JSON
        lab.run(lab.java(main, str(worker), str(connector), lib=lib))
        url = f"http://127.0.0.1:{port}/connectors/files-{lab.name}"
        restarts = 0
        for _ in range(60):
            sleep(2)
            try:
                with urllib.request.urlopen(f"{url}/status", timeout=5) as answer:
                    tasks = json.load(answer)["tasks"]
                if tasks and tasks[0]["state"] == "FAILED":
                    urllib.request.urlopen(urllib.request.Request(f"{url}/tasks/0/restart", method="POST"), timeout=5)
                    restarts += 1
            except OSError:
                continue
            if restarts == 6:
                break


STREAMS = Path(__file__).parent / "Totals.java"


@incident(
    Truth(
        ("member-session-timeout", "producer-fenced"),
        ("totals",),
        also=("commit-failed", "member-session-timeout", "producer-fenced"),
    )
)
def streams_task_migration(lab: Lab) -> None:
    """One of two instances of a Kafka Streams application freezes for 12 s: its tasks go to the other one."""
    lib = jars.fetch_more(lab.cluster.spec.version, "kafka-streams")
    topic = lab.topic("sales", 4)
    folder = lab.capture_path.parent

    def instance(number: int) -> Client:
        state = str(folder / f"state-{lab.name}-{number}")
        return lab.run(lab.java(str(STREAMS), lab.bootstrap, f"totals-{lab.name}", topic, state, lib=lib))

    with lab.capture():
        lab.write("shop", topic, rate=50)
        instance(0)
        second = instance(1)
        sleep(20)
        with second.frozen():
            sleep(12)
        sleep(8)


@incident(Truth("group-mixed", ("email-sender", "sms-sender")))
def dup_group_id(lab: Lab) -> None:
    """Two applications with different topics use one group id."""
    emails, texts = lab.topic("emails"), lab.topic("texts")
    with lab.capture():
        lab.write("mailer", emails)
        lab.write("texter", texts)
        lab.read("email-sender", "sender", emails)
        sleep(4)
        lab.read("sms-sender", "sender", texts)
        sleep(12)


@incident(Truth("unread-partitions", ("carts",)))
def partitions_added(lab: Lab) -> None:
    """A topic gets four partitions more, and its readers do not look for them (topic.metadata.refresh is 5 min)."""
    from confluent_kafka.admin import NewPartitions

    topic = lab.topic("carts", 2)
    never = {"topic.metadata.refresh.interval.ms": 300_000, "metadata.max.age.ms": 300_000}
    with lab.capture():
        lab.read("cart-0", "cart", topic, config=never)
        lab.read("cart-1", "cart", topic, config=never)
        writer = lab.write("shop", topic)
        sleep(6)
        lab.admin().create_partitions([NewPartitions(topic, 6)])[topic].result(30)
        sleep(1)
        writer.stop()
        lab.write("shop", topic)
        sleep(14)


@incident(Truth("group-reads-again", ("posting-v2",)))
def replay_from_start(lab: Lab) -> None:
    """A deployment changes the group's name: everything is read again from the start."""
    topic = lab.topic("ledger", 1)
    lab.write("book", topic, rate=2000, seconds=4).process.wait()
    with lab.capture():
        lab.write("book", topic)
        poster = lab.read("poster", "posting", topic)
        sleep(8)
        poster.stop()
        lab.read("poster", "posting-v2", topic)
        sleep(8)
