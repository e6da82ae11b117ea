"""The two captures that the numbers to hold are measured on, made from a seed.

    python -m tests.bench.generate large out/bench/large.pcap --size 1G
    python -m tests.bench.generate small out/bench/small.pcap --size 300M

*large*: Produce and Fetch with record batches of 100 kB and more, all codecs, valid checksums, in segments of 1,448
bytes with a pure ACK for every two, connections interleaved a few packets at a time. *small*: one record a request,
pipelined, sometimes two requests in a packet, an answer a packet, ACKs between: some 170 bytes a packet.
Ethernet, IPv4, TCP with timestamps, opened by SYN and closed by FIN; IP and TCP checksums are right.

Arrays of packets are filled column by column: a gigabyte takes seconds, not the hours of one object a packet.
"""

from __future__ import annotations

import argparse
import itertools
import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench import messages
from tests.captures.forge import ACK, FIN, PSH, SYN

MSS: Final = 1448
START_US: Final = 1_700_000_000_000_000
BROKER: Final = (0x0A000001, 9092)
BLOCK: Final = 16
"""Data segments of one connection in a row; then another's turn."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# One packet before its payload: pcap record header, Ethernet, IPv4, TCP with the timestamp option.
# fmt: off
HEAD: Final = np.dtype(
    [
        ("seconds", "<u4"), ("micros", "<u4"), ("captured", "<u4"), ("wire", "<u4"),
        ("mac_to", "S6"), ("mac_from", "S6"), ("ethertype", ">u2"),
        ("version", "u1"), ("tos", "u1"), ("ip_length", ">u2"), ("ip_id", ">u2"), ("fragment", ">u2"),
        ("ttl", "u1"), ("protocol", "u1"), ("ip_sum", ">u2"), ("source", ">u4"), ("target", ">u4"),
        ("source_port", ">u2"), ("target_port", ">u2"), ("sequence", ">u4"), ("acknowledgement", ">u4"),
        ("offset", "u1"), ("flags", "u1"), ("window", ">u2"), ("tcp_sum", ">u2"), ("urgent", ">u2"),
        ("nops", ">u2"), ("ts_kind", ">u2"), ("ts_value", ">u4"), ("ts_echo", ">u4"),
    ]
)
# fmt: on
IP_AT: Final = 16 + 14
TCP_AT: Final = IP_AT + 20


@dataclass(frozen=True)
class GeneratedCapture:
    """Counts of a generated capture, which an analyzer must report."""

    path: str
    file_bytes: int
    packets: int
    exchanges: int
    connections: int
    payload_bytes: int


@dataclass
class Connection:
    """A client's connection while it is written: whose turn, and which bytes come next."""

    address: int
    port: int
    client_id: str
    topic: str
    sent: list[int]
    """Payload bytes so far, to and from the broker."""
    isn: tuple[int, int]
    correlation_id: int = 0


def connection(number: int, rng: random.Random) -> Connection:
    return Connection(
        address=0x0A010000 + number // 20_000 + 1,
        port=20_000 + number % 20_000,
        client_id=f"client-{number:05d}",
        topic=f"orders-{number % 16:02d}",
        sent=[0, 0],
        isn=(rng.randrange(2**32), rng.randrange(2**32)),
    )


def empty_packets(count: int, payload: int) -> Bytes:
    """`count` packets of `payload` bytes each, with all that does not differ between packets filled in."""
    out = np.zeros((count, HEAD.itemsize + payload), np.uint8)
    head = heads(out)
    head["captured"] = head["wire"] = HEAD.itemsize - 16 + payload
    head["mac_to"], head["mac_from"], head["ethertype"] = b"\x02\0\0\0\0\x02", b"\x02\0\0\0\0\x01", 0x0800
    head["version"], head["ip_length"], head["fragment"] = 0x45, 52 + payload, 0x4000
    head["ttl"], head["protocol"], head["offset"], head["window"] = 64, 6, 0x80, 4096
    head["nops"], head["ts_kind"] = 0x0101, 0x080A
    return out


def heads(packets: Bytes) -> Any:
    """The packets' headers as a record array over the same memory."""
    return np.ndarray(packets.shape[0], HEAD, buffer=packets, strides=(packets.strides[0],))


def address(head: Any, link: Connection, to_broker: bool | np.ndarray[Any, Any]) -> None:
    """Set addresses and ports of one connection's packets, by direction (one, or one a packet)."""
    head["source"] = np.where(to_broker, link.address, BROKER[0])
    head["target"] = np.where(to_broker, BROKER[0], link.address)
    head["source_port"] = np.where(to_broker, link.port, BROKER[1])
    head["target_port"] = np.where(to_broker, BROKER[1], link.port)


def seal(packets: Bytes, times_us: np.ndarray[Any, Any]) -> None:
    """Set the times and, at last, both checksums. `packets` of one length; `times_us` int64, one a packet."""
    head = heads(packets)
    head["seconds"], head["micros"] = times_us // 10**6, times_us % 10**6
    head["ts_value"] = head["ts_echo"] = (times_us // 1000) & 0xFFFFFFFF
    head["ip_sum"] = head["tcp_sum"] = 0
    head["ip_sum"] = folded(words(packets[:, IP_AT:TCP_AT]))
    # The pseudo header: addresses, protocol 6, length of TCP.
    length = packets.shape[1] - TCP_AT
    pseudo = words(packets[:, IP_AT + 12 : IP_AT + 20]) + 6 + length
    head["tcp_sum"] = folded(words(packets[:, TCP_AT:]) + pseudo)


def words(columns: Bytes) -> np.ndarray[Any, Any]:
    """Row sums of big-endian 16-bit words; an odd last byte counts as a word's high byte."""
    even = columns[:, 0::2].sum(axis=1, dtype=np.int64)
    return np.asarray((even << 8) + columns[:, 1::2].sum(axis=1, dtype=np.int64))


def folded(total: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while (total >> 16).any():
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def edge(link: Connection, times_us: Iterator[int], opening: bool) -> bytes:
    """A connection's three first packets (SYN, SYN ACK, ACK) or three last ones (FIN ACK, FIN ACK, ACK)."""
    packets = empty_packets(3, 0)
    head = heads(packets)
    address(head, link, np.array([True, False, True]))
    head["flags"] = (SYN, SYN | ACK, ACK) if opening else (FIN | ACK, FIN | ACK, ACK)
    isn = np.array(link.isn, np.int64)
    to_broker, from_broker = isn if opening else isn + 1 + np.array(link.sent)
    head["sequence"] = np.array([to_broker, from_broker, to_broker + 1]) % 2**32
    head["acknowledgement"] = np.array([0 if opening else from_broker, to_broker + 1, from_broker + 1]) % 2**32
    seal(packets, next_times(times_us, 3))
    return packets.tobytes()


def next_times(times_us: Iterator[int], count: int) -> np.ndarray[Any, Any]:
    """The clock's next `count` times."""
    return np.fromiter(itertools.islice(times_us, count), np.int64, count)


def clock(step_us: int) -> Iterator[int]:
    now = START_US
    while True:
        yield now
        now += step_us


# --------------------------------------------------------------------------------------------------------------- large


def segmented(link: Connection, message: bytes, to_broker: bool) -> Iterator[tuple[Bytes, Bytes]]:
    """A message's packets, `BLOCK` data segments at a time and their ACKs, one for every two, all but times and
    checksums; the connection's counters move on."""
    at = 0
    own, other = (0, 1) if to_broker else (1, 0)
    while at < len(message):
        count = min(BLOCK, (len(message) - at) // MSS)
        payload = MSS if count else len(message) - at
        count = max(count, 1)
        data = empty_packets(count, payload)
        data[:, HEAD.itemsize :] = np.frombuffer(message, np.uint8, count * payload, at).reshape(count, payload)
        sequence = link.isn[own] + 1 + link.sent[own] + np.arange(count) * payload
        acknowledged = (link.isn[other] + 1 + link.sent[other]) % 2**32
        at += count * payload
        link.sent[own] += count * payload
        head = heads(data)
        address(head, link, to_broker)
        head["sequence"], head["acknowledgement"], head["flags"] = sequence % 2**32, acknowledged, ACK
        if at == len(message):
            head["flags"][-1] |= PSH
        acks = empty_packets((count + 1) // 2, 0)
        head = heads(acks)
        address(head, link, not to_broker)
        reached = sequence[1::2] if count % 2 == 0 else np.append(sequence[1::2], sequence[-1])
        head["sequence"], head["acknowledgement"], head["flags"] = acknowledged, (reached + payload) % 2**32, ACK
        yield data, acks


def in_order(data: Bytes, acks: Bytes, times_us: np.ndarray[Any, Any]) -> bytes:
    """The packets of a block as they pass, an ACK after every two segments, sealed with these times."""
    segments = np.arange(len(data))
    seal(data, times_us[segments + segments // 2])
    seal(acks, times_us[np.minimum(3 * np.arange(len(acks)) + 2, len(times_us) - 1)])
    turns = range(len(acks))
    return b"".join(data[2 * turn : 2 * turn + 2].tobytes() + acks[turn : turn + 1].tobytes() for turn in turns)


def exchange_packets(link: Connection, talk: Iterator[tuple[bytes, bool]]) -> Iterator[tuple[Bytes, Bytes]]:
    """The packets of a conversation's next request and of its answer."""
    for _ in range(2):
        message, to_broker = next(talk)
        yield from segmented(link, message, to_broker)


def large_messages(link: Connection, batches: list[bytes], rng: random.Random) -> Iterator[tuple[bytes, bool]]:
    """An endless conversation: a producer's or a consumer's, one request and its answer after the other. Batches keep
    their checksums whatever base offset they get: it is not covered."""
    offset = 0
    partition = rng.randrange(12)
    produces = rng.random() < 0.5
    while True:
        records = rng.choice(batches)
        count = struct.unpack_from(">i", records, 57)[0]
        link.correlation_id += 1
        if produces:
            yield messages.produce_request(link.correlation_id, link.client_id, link.topic, partition, records), True
            yield messages.produce_response(link.correlation_id, link.topic, partition, offset), False
        else:
            yield messages.fetch_request(link.correlation_id, link.client_id, link.topic, partition, offset), True
            stored = struct.pack(">q", offset) + records[8:]
            yield messages.fetch_response(link.correlation_id, link.topic, partition, offset + count, stored), False
        offset += count


def large(path: Path, size: int, connections: int = 8, seed: int = 1, batch_bytes: int = 100_000) -> GeneratedCapture:
    """Write the *large* capture: at least `size` bytes, batches of `batch_bytes` to a few times that."""
    rng = random.Random(seed)
    batches = [
        messages.large_batch(rng, codec, rng.randint(batch_bytes, 2 * batch_bytes))
        for codec in messages.CODECS
        for _ in range(4)
    ]
    everyone = [connection(number, rng) for number in range(connections)]
    times = clock(2)
    written = packets = exchanges = 0
    with path.open("wb") as file:
        written += file.write(file_header())
        for link in everyone:
            written += file.write(edge(link, times, opening=True))
        talks = [large_messages(link, batches, rng) for link in everyone]
        running: dict[int, Iterator[tuple[Bytes, Bytes]]] = {}
        while running or written < size:
            # Whose turn is random; when the size is reached, the exchanges under way are finished.
            number = rng.choice(range(connections) if written < size else list(running))
            if number not in running:
                running[number] = exchange_packets(everyone[number], talks[number])
                exchanges += 1
            block = next(running[number], None)
            if block is None:
                del running[number]
                continue
            count = len(block[0]) + len(block[1])
            written += file.write(in_order(*block, next_times(times, count)))
            packets += count
        for link in everyone:
            written += file.write(edge(link, times, opening=False))
    return GeneratedCapture(str(path), written, packets + 6 * connections, exchanges, connections, payload(everyone))


# --------------------------------------------------------------------------------------------------------------- small

# A group of exchanges on one connection, as packets: (to the broker?, which messages). Requests 0 to 3, answers 4 to 7;
# request 3 is a Fetch, the others are Produce. The second packet holds two requests; requests run ahead of answers.
GROUP: Final[tuple[tuple[bool, tuple[int, ...]], ...]] = (
    (True, (0,)),
    (True, (1, 2)),
    (False, ()),
    (False, (4,)),
    (True, (3,)),
    (False, (5,)),
    (True, ()),
    (False, (6,)),
    (False, (7,)),
    (True, ()),
)
EXCHANGES: Final = 4


def small_group(link: Connection, value: bytes) -> list[bytes]:
    """The eight messages of a group, with correlation ids 0 to 3 to be patched. Same sizes for every connection."""
    records = messages.batch([messages.record(0, b"k" * 8, value)])
    requests = [messages.produce_request(index, link.client_id, link.topic, index, records) for index in range(3)]
    requests.append(messages.fetch_request(3, link.client_id, link.topic, 3, 0))
    answers = [messages.produce_response(index, link.topic, index, 0) for index in range(3)]
    answers.append(messages.fetch_response(3, link.topic, 3, 1, records))
    return requests + answers


def small(path: Path, size: int, connections: int = 50, seed: int = 1, value_bytes: int = 8) -> GeneratedCapture:
    """Write the *small* capture: at least `size` bytes, connections taking turns group by group."""
    rng = random.Random(seed)
    everyone = [connection(number, rng) for number in range(connections)]
    variants = max(1, min(16, 16_000 // connections))  # templates take memory: fewer for very many connections
    times = clock(1)
    written = packets = exchanges = 0
    # Every connection's group in every variant of its record's value, as templates of packets: [connection * variant].
    stack: list[list[Bytes]] = [[] for _ in GROUP]
    sizes = [len(message) for message in small_group(everyone[0], bytes(value_bytes))]
    for link in everyone:
        for _ in range(variants):
            group = small_group(link, messages.text(rng, value_bytes))
            for place, (to_broker, inside) in enumerate(GROUP):
                content = b"".join(group[index] for index in inside)
                packet = empty_packets(1, len(content))
                packet[0, HEAD.itemsize :] = np.frombuffer(content, np.uint8)
                address(heads(packet), link, to_broker)
                stack[place].append(packet[0])
    templates = [np.stack(place) for place in stack]
    isns = np.array([link.isn for link in everyone], np.int64)
    lengths = (sum(sizes[:EXCHANGES]), sum(sizes[EXCHANGES:]))
    group_bytes = sum(HEAD.itemsize + sum(sizes[index] for index in inside) for _, inside in GROUP)
    groups = max(1, (size + group_bytes - 1) // group_bytes)
    numbers = np.random.default_rng(seed)
    ordinals = np.zeros(connections, np.int64)
    with path.open("wb") as file:
        written += file.write(file_header())
        for link in everyone:
            written += file.write(edge(link, times, opening=True))
        now = next(times)
        for begin in range(0, groups, 20_000):
            count = min(20_000, groups - begin)
            who = (np.arange(begin, begin + count) + numbers.integers(0, connections)) % connections
            # The ordinal of each group in its connection: those before this chunk, and those before it inside.
            order = np.argsort(who, kind="stable")
            first = np.searchsorted(who[order], np.arange(connections))
            within = np.empty(count, np.int64)
            within[order] = np.arange(count) - first[who[order]]
            ordinal = ordinals[who] + within
            ordinals += np.bincount(who, minlength=connections)
            chunk = small_chunk(
                templates, who, ordinal, isns, sizes, lengths, numbers.integers(0, variants, count), now
            )
            now += count * len(GROUP)
            written += file.write(chunk)
            packets += count * len(GROUP)
            exchanges += count * EXCHANGES
        times = iter(range(now, now + 10 * connections))
        for link, done in zip(everyone, ordinals.tolist(), strict=True):
            link.sent[:] = [done * lengths[0], done * lengths[1]]
            written += file.write(edge(link, times, opening=False))
    return GeneratedCapture(str(path), written, packets + 6 * connections, exchanges, connections, payload(everyone))


def small_chunk(
    templates: list[Bytes],
    who: np.ndarray[Any, Any],
    ordinal: np.ndarray[Any, Any],
    isns: np.ndarray[Any, Any],
    sizes: list[int],
    lengths: tuple[int, int],
    variant: np.ndarray[Any, Any],
    now: int,
) -> bytes:
    """Groups of packets, one row a group: connection `who`, its `ordinal`-th group, record `variant`, times from `now`
    a microsecond apart. All index arrays have one element a group."""
    count = len(who)
    variants = len(templates[0]) // len(isns)
    columns = []
    sent = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
    for place, (to_broker, inside) in enumerate(GROUP):
        packets = templates[place][who * variants + variant]
        own, other = (0, 1) if to_broker else (1, 0)
        head = heads(packets)
        head["sequence"] = (isns[who, own] + 1 + ordinal * lengths[own] + sent[own]) % 2**32
        head["acknowledgement"] = (isns[who, other] + 1 + ordinal * lengths[other] + sent[other]) % 2**32
        head["flags"] = ACK | PSH if inside else ACK
        at = HEAD.itemsize
        for index in inside:
            id_at = at + (8 if index < EXCHANGES else 4)
            ids = (ordinal * EXCHANGES + index % EXCHANGES).astype(">i4")
            packets[:, id_at : id_at + 4] = ids.view(np.uint8).reshape(count, 4)
            at += sizes[index]
        sent[own] = sent[own] + at - HEAD.itemsize
        seal(packets, now + np.arange(count, dtype=np.int64) * len(GROUP) + place)
        columns.append(packets)
    return np.concatenate(columns, axis=1).tobytes()


# ---------------------------------------------------------------------------------------------------------------- both


def file_header() -> bytes:
    return struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1)


def payload(everyone: list[Connection]) -> int:
    return sum(sum(link.sent) for link in everyone)


def one_packet(path: Path) -> GeneratedCapture:
    """A capture of one packet, a Produce request in mid-stream: what starting up costs."""
    link = connection(0, random.Random(0))
    message = small_group(link, b"v" * 24)[0]
    data = next(segmented(link, message, True))[0]
    seal(data, np.array([START_US]))
    written = file_header() + data.tobytes()
    path.write_bytes(written)
    return GeneratedCapture(str(path), len(written), 1, 1, 1, len(message))


def size_of(text: str) -> int:
    """`300M`, `1.5G` or a number of bytes."""
    factor = {"K": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if factor > 1 else text) * factor)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.generate", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=("large", "small"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", type=size_of, default=300_000_000, help="bytes, or 300M, 1.5G (default 300M)")
    parser.add_argument("--connections", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    chosen.path.parent.mkdir(parents=True, exist_ok=True)
    make = large if chosen.kind == "large" else small
    extra = {} if chosen.connections is None else {"connections": chosen.connections}
    print(make(chosen.path, chosen.size, seed=chosen.seed, **extra), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
