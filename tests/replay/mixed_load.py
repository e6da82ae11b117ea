"""`python -m tests.replay.mixed_load HOST:PORT [SECONDS]`: a load in which each fault of the proxy has its place.

Topics orders (3 partitions, idempotent, a group that rebalances), audit (without ids, large records between small
ones), pay (transactions, each third aborted, a reader of committed records) and turns (one client that writes on two
connections in turn). Capture it beside, as `kwire record -i lo`; the topics must not exist.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = {"orders": 3, "audit": 1, "pay": 2, "turns": 1}


def _orders(bootstrap: str, end: float) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "orders-app",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
        }
    )
    number = 0
    while time.monotonic() < end - 3:
        for _ in range(3):
            producer.produce("orders", key=f"key {number % 17}", value=f"order {number} " * 5)
            number += 1
        producer.poll(0)
        time.sleep(0.05)
    producer.flush()


def _payments(bootstrap: str, end: float) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": "pay-app", "transactional.id": "pay-tx", "linger.ms": 2}
    )
    producer.init_transactions(20)
    number = 0
    while time.monotonic() < end - 3:
        producer.begin_transaction()
        for each in range(6):
            producer.produce("pay", key=f"payment {number}", value=f"payment {number}, line {each}")
        producer.flush()
        (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)(20)
        number += 1
        time.sleep(0.2)


def _read(bootstrap: str, end: float, group: str, topic: str, wait: float = 0.0, isolation: str = "") -> None:
    time.sleep(wait)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": f"{group}-{wait:g}",
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "isolation.level": isolation or "read_uncommitted",
        }
    )
    consumer.subscribe([topic])
    committed, new = time.monotonic(), False
    while time.monotonic() < end:
        message = consumer.poll(0.2)
        new |= message is not None and not message.error()
        if new and time.monotonic() - committed > 0.5:
            consumer.commit(asynchronous=False)
            committed, new = time.monotonic(), False
    consumer.close()


def _read_twice(bootstrap: str, end: float) -> None:
    """Read as a member that leaves, and another one that goes on where it committed."""
    begin = time.monotonic()
    _read(bootstrap, begin + 4.5, "restarted", "orders", 2)
    _read(bootstrap, time.monotonic() + 4, "restarted", "orders", 1)


async def _audit(bootstrap: str, end: float) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, client_id="audit-app", acks=1, enable_idempotence=False
    ) as producer:
        number = 0
        while time.monotonic() < end - 3:
            await producer.send("audit", f"audit {number} ".encode() * 3)
            number += 1
            if number % 20 == 0:
                await producer.send("audit", b"x" * 30_000)
            await asyncio.sleep(0.06)


async def _read_audit(bootstrap: str, end: float) -> None:
    async with AIOKafkaConsumer(
        "audit",
        bootstrap_servers=bootstrap,
        group_id="auditors",
        client_id="audit-reader",
        auto_offset_reset="earliest",
        auto_commit_interval_ms=700,
    ) as consumer:
        while time.monotonic() < end:
            await consumer.getmany(timeout_ms=300)


async def _turns(bootstrap: str, end: float) -> None:
    """Write by two producers of one client id in turn, each time when the other's answer is there."""
    how: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": "turns-app", "acks": 1}
    async with AIOKafkaProducer(**how) as first, AIOKafkaProducer(**how) as second:
        number = 0
        while time.monotonic() < end - 3:
            await (first, second)[number % 2].send_and_wait("turns", f"turn {number}".encode())
            number += 1
            await asyncio.sleep(0.05)


def main() -> None:
    """Make the topics, and the load."""
    bootstrap, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 14.0
    topics = [NewTopic(name, partitions, 1) for name, partitions in TOPICS.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "setup"})
    for created in admin.create_topics(topics).values():
        created.result()
    time.sleep(1)
    end = time.monotonic() + seconds

    def run(load: Callable[[str, float], Coroutine[Any, Any, None]]) -> Callable[[str, float], None]:
        return lambda *where: asyncio.run(load(*where))

    loads: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (_orders, ()),
        (_payments, ()),
        (run(_audit), ()),
        (run(_read_audit), ()),
        (run(_turns), ()),
        (_read, ("shippers", "orders")),
        (_read, ("shippers", "orders", 3)),
        (_read, ("bankers", "pay", 0, "read_committed")),
        (_read_twice, ()),
    ]
    threads = [threading.Thread(target=load, args=(bootstrap, end, *more)) for load, more in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
