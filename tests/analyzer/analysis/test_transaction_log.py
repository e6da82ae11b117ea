"""Messages about transactional ids as bytes (proves: analyzer/analysis/transaction_log.py)."""

from __future__ import annotations

import pickle
import random
import sys

import numpy as np

from kwire.analyzer.analysis.producers import ProducerEvent
from kwire.analyzer.analysis.transaction_log import TransactionLog, TransactionMessage
from kwire.analyzer.protocol import api_keys as apis
from tests.analyzer.analysis.joining import log_bytes

FULL = TransactionMessage(
    apis.ADD_PARTITIONS_TO_TXN,
    "tx-ß\ud800",
    ProducerEvent((9, 1), (7, 1), ("a-b#0", 3, None), None, "10.0.0.1", None, 5, 0, 8, 9, 2),
    (("orders", 1), ("orders", 2)),
    7,
    True,
    (8, None),
    60_000,
    True,
)
EMPTY = TransactionMessage(apis.END_TXN, "", ProducerEvent((1, 0), (1, 0), ("", None, None), "", "", 1, None, None))


def log_of(messages: list[TransactionMessage]) -> TransactionLog:
    log = TransactionLog()
    for message in messages:
        log.append(message)
    return log


def some(count: int, seed: int) -> list[TransactionMessage]:
    """In no order; each is told apart by its exchange."""
    drawn = random.Random(seed)
    return [
        TransactionMessage(
            apis.END_TXN,
            f"tx-{drawn.randrange(20)}",
            ProducerEvent(
                (1, 1), (drawn.randrange(50), drawn.randrange(2)), ("a-b#0", number, None), "app", "ip", 1, 2, 0
            ),
        )
        for number in range(count)
    ]


def by_id(messages: list[TransactionMessage]) -> list[tuple[str, list[TransactionMessage]]]:
    grouped: dict[str, list[TransactionMessage]] = {}
    for message in messages:
        grouped.setdefault(message.transactional_id, []).append(message)
    return list(grouped.items())


def test_what_was_said_is_again_what_it_was() -> None:
    messages = [FULL, EMPTY]
    assert list(log_of(messages).by_id()) == by_id(messages)
    assert list(pickle.loads(pickle.dumps(log_of(messages))).by_id()) == by_id(messages)
    assert list(TransactionLog().by_id()) == []


def test_ids_come_in_order_of_what_was_said_first_and_each_as_it_was_said() -> None:
    messages = some(300, 1)
    assert list(log_of(messages).by_id()) == by_id(messages)


def test_those_of_another_come_after() -> None:
    messages = some(300, 2)
    log = log_of(messages[:90])
    log.join(log_of(messages[90:]))
    assert list(log.by_id()) == by_id(messages)


def test_some_of_it_waits() -> None:
    messages = some(300, 3)
    log = log_of(messages)
    for which in (log.packets >= 25, log.packets < 25, log.packets < 0, log.packets >= 0):
        expected = [message for message, yes in zip(messages, which.tolist(), strict=True) if yes]
        left = log.take(which)
        assert list(left.by_id()) == by_id(expected)
        left.append(FULL)
        assert len(left) == len(expected) + 1


def test_first_packets_of_an_id_are_in_order() -> None:
    messages = some(300, 4)
    packets_of = log_of(messages).packets_of()
    for transactional_id, those in by_id(messages):
        assert packets_of(transactional_id).tolist() == sorted(message.event.order[0] for message in those)
    assert packets_of("never said").tolist() == []


def test_it_takes_some_hundred_bytes() -> None:
    count = 3000
    log = log_of(
        [
            TransactionMessage(
                apis.ADD_PARTITIONS_TO_TXN,
                f"transaction-{number:09}",
                ProducerEvent(
                    (number, 0),
                    (number, 0),
                    ("10.1.0.0:10000-10.0.0.1:9092#0", number, number),
                    "app",
                    "10.1.0.0",
                    1_700_000_000_000_000,
                    1_700_000_000_001_000,
                    0,
                    number,
                    0,
                ),
                (("orders", 0),),
            )
            for number in range(count)
        ]
    )
    assert np.all(log.packets == np.arange(count))
    assert log_bytes(log._log) + sum(map(sys.getsizeof, log._log.strings)) < 400 * count
