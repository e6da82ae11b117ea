"""A healthy hour: nothing happens but a deployment, and nothing may be said but a few notes."""

from __future__ import annotations

from collections.abc import Callable

from tests.incidents.lab import Client, Lab, Truth, incident, sleep

PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@incident(Truth(None, hidden="nothing is wrong", notes=5))
def healthy_hour(lab: Lab) -> None:
    """Nothing: clients of four libraries, three groups, transactions; each client is deployed once."""
    orders, payments = lab.topic("orders", 6), lab.topic("payments", 3)
    group = f"billing-{lab.name}"
    linger = {"linger.ms": 50, "compression.type": "lz4", "acks": "all"}
    committed = {"isolation.level": "read_committed"}
    bank = {"transactional.id": f"bank-{lab.name}", "compression.type": "lz4"}
    java = ("--command-property", "client.id=billing-java", "--command-property", "auto.offset.reset=earliest")

    def java_writer() -> Client:
        options = ("--topic", orders, "--throughput", "20", "--bootstrap-server", lab.bootstrap)
        return lab.run(lab.java(PRODUCER, *options))

    def java_reader() -> Client:
        options = ("--topic", orders, "--bootstrap-server", lab.bootstrap, "--group", group, *java)
        return lab.run(lab.java(CONSUMER, *options))

    def aio_writer() -> Client:
        config = {"acks": "all", "linger_ms": 50}
        return lab.start("aio_write", "shop-aio", topic=orders, config=config)

    def aio_reader() -> Client:
        config = {"group_id": f"mail-{lab.name}"}
        return lab.start("aio_read", "mailer", topics=[orders], config=config)

    def pure_writer() -> Client:
        config = {"acks": "all", "linger_ms": 50, "compression_type": "gzip"}
        return lab.start("pure_write", "shop-pure", topic=orders, config=config)

    def pure_reader() -> Client:
        config = {"group_id": f"mail-{lab.name}"}
        return lab.start("pure_read", "mailer-pure", topics=[orders], config=config)

    starts: list[Callable[[], Client]] = [
        lambda: lab.write("shop", orders, rate=50, config=linger),
        aio_writer,
        pure_writer,
        java_writer,
        lambda: lab.start("transact", "bank", topic=payments, pause=1, config=bank),
        lambda: lab.read("billing-0", "billing", orders),
        java_reader,
        aio_reader,
        pure_reader,
        lambda: lab.read("ledger", "ledger", payments, config={"group.protocol": "consumer", **committed}),
    ]
    seconds = 60 * lab.minutes
    with lab.capture():
        running = [start() for start in starts]
        sleep(0.3 * seconds)
        for number, start in enumerate(starts):  # a deployment, one after the other
            running[number].stop()
            running[number] = start()
            sleep(0.5 * seconds / len(starts))
        sleep(0.2 * seconds)
