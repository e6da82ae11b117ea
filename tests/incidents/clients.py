"""`python -m tests.incidents.clients WRITE|READ JSON`: a client in a process of its own, which can be frozen or killed.

In: the name of one of the functions here, its arguments as JSON. It works until SIGTERM, or until it has done what it
was told to do. Out: nothing; what happened is in the capture.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from tests.incidents import packages

_stopped: list[int] = []
"""Signals to end that came."""


def _going(until: float | None) -> bool:
    return not _stopped and (until is None or time.monotonic() < until)


def _ends(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def write(
    config: dict[str, Any],
    topic: str,
    rate: float = 20,
    size: int = 100,
    keys: int = 100,
    partition: int = -1,
    large: tuple[int, int] | None = None,
    poison: int | None = None,
    seconds: float | None = None,
) -> None:
    """Write so many records a second. `large`: each so many-th record has so many bytes; `poison`: this one is bad."""
    producer = Producer({"linger.ms": 5, **config})
    until, number, due = _ends(seconds), 0, time.monotonic()
    while _going(until):
        length = large[1] if large and number % large[0] == large[0] - 1 else size
        value = b"poison" if number == poison else b"%08d" % number + os.urandom(length // 2).hex().encode()
        try:
            producer.produce(topic, value, b"key-%d" % (number % keys), partition)
        except BufferError:
            producer.poll(0.5)
            continue
        except KafkaException:
            producer.poll(0.2)
        number += 1
        due = max(due + 1 / rate, time.monotonic())
        while (left := due - time.monotonic()) > 0 and _going(until):
            producer.poll(min(left, 0.2))  # it returns as soon as a record was delivered
    producer.flush(5)


def transact(config: dict[str, Any], topic: str, records: int = 10, pause: float = 0.2, hang_at: int = -1) -> None:
    """Write transactions of so many records; the one numbered `hang_at` is never ended. Begins again when fenced."""
    number = 0
    while not _stopped:
        producer = Producer({**config})
        try:
            producer.init_transactions(10)
            while not _stopped:
                producer.begin_transaction()
                for record in range(records):
                    producer.produce(topic, b"%d-%d" % (number, record), b"%d" % record)
                producer.flush(5)
                while number == hang_at:
                    producer.poll(0.2)
                    if _stopped:
                        os._exit(0)  # the transaction stays open
                producer.commit_transaction(10)
                number += 1
                time.sleep(pause)
        except KafkaException:
            time.sleep(1)


def read(
    config: dict[str, Any],
    topics: list[str],
    work: float = 0,
    stall: tuple[int, float] | None = None,
    crashes: bool = False,
    seek_back: int = 0,
    seconds: float | None = None,
) -> None:
    """Read as a member of a group. `work`: seconds for each record; `stall`: the record of this number takes so many;
    `crashes`: a bad record ends the process at once; `seek_back`: after so many records it seeks to the first again."""
    consumer = Consumer({"auto.offset.reset": "earliest", **config})
    consumer.subscribe(topics)
    until, number, first = _ends(seconds), 0, None
    while _going(until):
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        if crashes and message.value() == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
        first = first or message
        number += 1
        time.sleep(stall[1] if stall and number % stall[0] == 0 else work)
        if seek_back and number % seek_back == 0:
            from confluent_kafka import TopicPartition

            consumer.seek(TopicPartition(first.topic(), first.partition(), first.offset()))
    consumer.close()


def administrate(config: dict[str, Any], every: float) -> None:
    """Ask for the metadata of all topics, again and again."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(config)
    while not _stopped:
        admin.list_topics(timeout=5)
        time.sleep(every)


def aio_write(config: dict[str, Any], topic: str, rate: float = 20) -> None:
    """`write` with aiokafka; a transactional id makes a transaction of each ten records."""
    from aiokafka import AIOKafkaProducer

    async def main() -> None:
        producer = AIOKafkaProducer(**config)
        await producer.start()
        number = 0
        while not _stopped:
            if "transactional_id" in config:
                async with producer.transaction():
                    for _ in range(10):
                        await producer.send(topic, b"value %d" % number, key=b"%d" % number)
                        number += 1
                await asyncio.sleep(10 / rate)
            else:
                await producer.send_and_wait(topic, b"value %d" % number, key=b"%d" % number)
                number += 1
                await asyncio.sleep(1 / rate)
        await producer.stop()

    asyncio.run(main())


def aio_read(config: dict[str, Any], topics: list[str]) -> None:
    """`read` with aiokafka."""
    from aiokafka import AIOKafkaConsumer

    async def main() -> None:
        consumer = AIOKafkaConsumer(*topics, auto_offset_reset="earliest", **config)
        await consumer.start()
        while not _stopped:
            await consumer.getmany(timeout_ms=200)
        await consumer.stop()

    asyncio.run(main())


def pure_write(config: dict[str, Any], topic: str, rate: float = 20) -> None:
    """`write` with kafka-python."""
    kafka = packages.load(packages.KAFKA_PYTHON)
    producer, number = kafka.KafkaProducer(**config), 0
    while not _stopped:
        producer.send(topic, b"value %d" % number, b"%d" % number)
        number += 1
        time.sleep(1 / rate)
    producer.close(5)


def pure_read(config: dict[str, Any], topics: list[str]) -> None:
    """`read` with kafka-python."""
    kafka = packages.load(packages.KAFKA_PYTHON)
    consumer = kafka.KafkaConsumer(*topics, auto_offset_reset="earliest", **config)
    while not _stopped:
        consumer.poll(200)
    consumer.close()


PROGRAMS = {
    program.__name__: program
    for program in (write, transact, read, administrate, aio_write, aio_read, pure_write, pure_read)
}

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: _stopped.append(number))
    PROGRAMS[sys.argv[1]](**json.loads(sys.argv[2]))
