"""Captures in which ever more is seen and little is open: distinct clients, groups, offsets, transactions, topics.

In: a kind of `KINDS`, how many of it, how many connections. Out: a pcap file. Connections come one after the other,
each opened by SYN and closed by FIN, with as many exchanges as are its share: at no moment more than one is open. So
what a process holds of them in memory when all have been read is what it keeps of things that are over.

Messages are those of Kafka's protocol guide, in versions without tagged fields, written by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.bench.messages import framed, request, string

_BROKER: Final = (0x0A000001, 9092)
_FIN, _SYN, _PSH, _ACK = 1, 2, 8, 16
_STEP_US: Final = 1000

_MACS: Final = b"\2\0\0\0\0\1\2\0\0\0\0\2"

Talk = tuple[bytes, bytes]
"""A request, and its answer."""


_PACKET: Final = struct.Struct(">12sHBBHHHBBHIIHHIIBBHHH")


class _Writing:
    """Packets of one connection after the other. `now_us`: the time of the next."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)
        self._file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1))
        self.now_us = 1_700_000_000_000_000

    def close(self) -> None:
        self._file.close()

    def connection(self, number: int, talks: Iterator[Talk]) -> None:
        client = (0x0A010000 + number // 50_000, 10_000 + number % 50_000)
        at = [1000, 5000]  # the next byte of the client, of the broker

        def put(to_broker: bool, flags: int, payload: bytes = b"") -> None:
            (source, port), (target, to) = (client, _BROKER) if to_broker else (_BROKER, client)
            own, other = at if to_broker else at[::-1]
            size = 54 + len(payload)
            self._file.write(struct.pack("<IIII", self.now_us // 10**6, self.now_us % 10**6, size, size))
            named, acknowledged = self.now_us // _STEP_US & 0xFFFF, other if flags & _ACK else 0
            internet = (0x45, 0, size - 14, named, 0, 64, 6, 0, source, target)
            self._file.write(
                _PACKET.pack(_MACS, 0x0800, *internet, port, to, own, acknowledged, 0x50, flags, 65_000, 0, 0)
            )
            self._file.write(payload)
            at[not to_broker] += len(payload) + bool(flags & (_SYN | _FIN))
            self.now_us += _STEP_US

        put(True, _SYN)
        put(False, _SYN | _ACK)
        for asking, answered in talks:
            put(True, _PSH | _ACK, asking)
            put(False, _PSH | _ACK, answered)
        put(True, _FIN | _ACK)
        put(False, _FIN | _ACK)
        put(True, _ACK)


def _talk(api_key: int, version: int, number: int, client: str, body: bytes, answer: bytes) -> Talk:
    correlation_id = number & 0x7FFFFFFF
    return request(api_key, version, correlation_id, client, body), framed(struct.pack(">i", correlation_id) + answer)


def _commit(number: int, client: str, group: str, topic: str, first: int, count: int, offset: int) -> Talk:
    """OffsetCommit v2 of some partitions in a row."""
    partitions = [struct.pack(">iq", n, offset) + string("") for n in range(first, first + count)]
    answered = b"".join(struct.pack(">ih", n, 0) for n in range(first, first + count))
    head_of_topic = struct.pack(">i", 1) + string(topic) + struct.pack(">i", count)
    head = string(group) + struct.pack(">i", -1) + string("") + struct.pack(">q", -1)
    return _talk(8, 2, number, client, head + head_of_topic + b"".join(partitions), head_of_topic + answered)


def clients(number: int) -> Iterator[Talk]:
    """A client id said once (ListGroups v0)."""
    yield _talk(16, 0, number, f"client-{number:09}", b"", struct.pack(">hi", 0, 0))


def groups(number: int) -> Iterator[Talk]:
    """A group whose only member joins, is heard and commits."""
    group, member = f"group-{number:09}", f"member-{number:09}-5fd4e0b1-7c9a-4f3e-b7e3-{number:012}"
    subscription = struct.pack(">h", 0) + struct.pack(">i", 1) + string("orders") + struct.pack(">i", -1)
    protocol = struct.pack(">i", 1) + string("range") + struct.pack(">i", len(subscription)) + subscription
    head = string(group) + struct.pack(">ii", 10_000, 60_000)
    yield _talk(
        11,
        1,
        number,
        "app",
        head + string("") + string("consumer") + protocol,
        struct.pack(">hi", 0, 1)
        + string("range")
        + string(member) * 2
        + struct.pack(">i", 1)
        + string(member)
        + struct.pack(">i", len(subscription))
        + subscription,
    )
    yield _talk(12, 0, number, "app", string(group) + struct.pack(">i", 1) + string(member), struct.pack(">h", 0))
    yield _commit(number, "app", group, "orders", 0, 1, number)


PARTITIONS: Final = 50


def offsets(number: int) -> Iterator[Talk]:
    """Fifty partitions of which a group commits an offset, twice."""
    for offset in (10, 20):
        yield _commit(
            number, "app", f"group-{number % 100:03}", "orders", number // 100 * PARTITIONS, PARTITIONS, offset
        )


def transactions(number: int) -> Iterator[Talk]:
    """A transactional id with one transaction."""
    name = string(f"transaction-{number:09}")
    who = name + struct.pack(">qh", number, 0)
    partition = struct.pack(">i", 1) + string("orders") + struct.pack(">ii", 1, 0)
    yield _talk(22, 0, number, "app", name + struct.pack(">i", 60_000), struct.pack(">ihqh", 0, 0, number, 0))
    yield _talk(24, 0, number, "app", who + partition, struct.pack(">i", 0) + partition + struct.pack(">h", 0))
    yield _talk(26, 0, number, "app", who + b"\1", struct.pack(">ih", 0, 0))


def producers(number: int) -> Iterator[Talk]:
    """A producer id (InitProducerId v0) that is given and not used."""
    request = struct.pack(">hi", -1, 60_000)
    yield _talk(22, 0, number, "app", request, struct.pack(">ihqh", 0, 0, number, 0))


def topics(number: int) -> Iterator[Talk]:
    """A topic that somebody asks about (Metadata v1), and fetches from (Fetch v4)."""
    topic = string(f"topic-{number:09}")
    broker = struct.pack(">ii", 1, 1) + string("broker") + struct.pack(">ih", 9092, -1)
    nodes = struct.pack(">ii", 1, 1)
    topics_answer = struct.pack(">iih", 1, 1, 0) + topic + b"\0" + struct.pack(">ihii", 1, 0, 0, 1) + nodes + nodes
    yield _talk(3, 1, number, "app", struct.pack(">i", 1) + topic, broker + topics_answer)
    request = struct.pack(">iiiibi", -1, 500, 1, 1 << 20, 0, 1) + topic + struct.pack(">iiqi", 1, 0, number, 1 << 20)
    answer = struct.pack(">ii", 0, 1) + topic + struct.pack(">iihqqii", 1, 0, 0, number, number, -1, 0)
    yield _talk(1, 4, number, "app", request, answer)


KINDS: Final[dict[str, Callable[[int], Iterator[Talk]]]] = {
    kind.__name__: kind for kind in (clients, groups, offsets, transactions, producers, topics)
}


def capture(path: Path, kind: str, count: int, connections: int) -> None:
    """So many of a kind over so many connections."""
    writing = _Writing(path)
    make = KINDS[kind]
    for number in range(connections):
        numbers = range(number * count // connections, (number + 1) * count // connections)
        writing.connection(number, (talk for number_of_kind in numbers for talk in make(number_of_kind)))
    writing.close()
