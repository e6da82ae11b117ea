"""Seeded mutations of captures: (base, seed) -> the bytes of a capture file, and what was done to it.

Four families. `bytes`: what one application sent, with right TCP around it. `tcp`: the packets of one connection.
`packet`: link, IP and TCP headers of one connection's records. `file`: anything in the file, headers first.
The first three touch one connection only, and say which, so that all others can be held to be as they were.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tests.captures import forge
from tests.captures.forge import (
    ACK,
    ETHERNET,
    FIN,
    PSH,
    RAW,
    RST,
    SLL,
    SLL2,
    SYN,
    TO_BROKER,
    TO_CLIENT,
    End,
    Record,
    Segment,
    Write,
)
from tests.shared import capture_files, sample_folders

Flow = tuple[End, End]
"""Client end and broker end of a connection."""

EVIL_BYTES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
EVIL_INT32 = (-1, -2, 0, 1, 2, 3, 4, 0x7FFFFFFF, 0x7FFFFFFE, -0x80000000, 100 << 20, (100 << 20) + 1, 1 << 24, 65536)
EVIL_INT16 = (-1, -2, 0, 1, 0x7FFF, -0x8000, 255, 256)
VARINTS = (
    b"\xff" * 20,
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\x07",
    b"\x80" * 10,
    b"\x80\x00",
)
PATTERNS = (
    b"\0",
    b"\1",
    b"\2",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\0\0\0\1",
    b"\0\1",
    b"\2\2\0",
    b"\xff\xff\xff\xff\x07",
    b"\0\0\x10\0",
    b"\x81\x80\x01",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken capture. `touched`: the only connection that may differ from the base's, None where any may.
    `payload`: captured TCP payload bytes, where the forger knows them."""

    data: bytes
    what: str
    touched: Flow | None = None
    payload: int | None = None


@dataclass(slots=True)
class Base:
    """A capture to break: `segments[i]` is what `records[i]` holds."""

    name: str
    link: int
    records: list[Record]
    segments: list[Segment]
    flows: list[Flow] = field(default_factory=list)

    def __post_init__(self) -> None:
        seen: dict[frozenset[End], Flow] = {}
        for segment in self.segments:
            key = frozenset(segment.flow)
            if key not in seen:
                # A SYN tells the client; else the lower port is the broker's, as in all our samples.
                client_first = bool(segment.flags & SYN and not segment.flags & ACK) or (
                    not segment.flags & SYN and segment.source[1] > segment.target[1]
                )
                seen[key] = segment.flow if client_first else (segment.target, segment.source)
        self.flows = list(seen.values())

    def whole(self) -> bytes:
        """The base itself, as a capture file."""
        return forge.pcap(self.records, self.link, nanoseconds=True)

    def of(self, flow: Flow) -> list[int]:
        """Which records are one connection's."""
        return [i for i, segment in enumerate(self.segments) if set(segment.flow) == set(flow)]


def _base(name: str, link: int, segments: Sequence[Segment]) -> Base:
    return Base(name, link, forge.rendered(segments, link), list(segments))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def request(api_key: int, version: int, correlation_id: int, body: bytes, client_id: str = "forged") -> bytes:
    """A request frame with header version 1."""
    content = struct.pack(">hhi", api_key, version, correlation_id) + _string(client_id) + body
    return struct.pack(">i", len(content)) + content


def response(correlation_id: int, body: bytes) -> bytes:
    """A response frame with header version 0."""
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def forged_writes(count: int = 12, topic: str = "orders") -> list[Write]:
    """ApiVersions v0, then Metadata v1 (KIP-4) and pipelined Heartbeats v0."""
    offered = b"".join(struct.pack(">hhh", key, 0, 9) for key in range(20))
    writes = [
        Write(TO_BROKER, request(18, 0, 0, b"")),
        Write(TO_CLIENT, response(0, struct.pack(">hi", 0, 20) + offered)),
    ]
    broker = struct.pack(">ii", 1, 1) + _string("broker") + struct.pack(">i", 9092) + struct.pack(">h", -1)
    partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
    topics = struct.pack(">ih", 1, 0) + _string(topic) + struct.pack(">bi", 0, 1) + partition
    for number in range(1, count):
        if number % 3:
            body = struct.pack(">i", 1) + _string(topic)
            writes.append(Write(TO_BROKER, request(3, 1, number, body)))
            writes.append(Write(TO_CLIENT, response(number, broker + struct.pack(">i", 1) + topics)))
        else:
            body = _string("group") + struct.pack(">i", number) + _string("member")
            writes.append(Write(TO_BROKER, request(12, 0, number, body) + request(12, 0, 1000 + number, body)))
            writes.append(
                Write(
                    TO_CLIENT, response(number, struct.pack(">h", 27)) + response(1000 + number, struct.pack(">h", 0))
                )
            )
    return writes


@cache
def bases() -> tuple[Base, ...]:
    """The samples, parts of them in other link layers, and forged conversations over IPv6 and at a capture's middle."""
    results: list[Base] = []
    for folder in sample_folders():
        link, records = forge.loaded(capture_files(folder)[0])
        # Only IP over TCP here: what else a capture holds is `file`'s to break.
        pairs = []
        for record in records[:1500]:
            segments = forge.segments_of([record], link)
            if segments:
                pairs.append((record, segments[0]))
        results.append(Base(folder.name, link, [record for record, _ in pairs], [record for _, record in pairs]))
    plain = results[[base.name for base in results].index("client-kafkajs-3.9")]
    small = [segment for segment in plain.segments if len(segment.payload) < 60_000]
    for link in (RAW, SLL, SLL2):
        results.append(_base(f"kafkajs in link type {link}", link, small))
    six = [
        forge.converse(
            forged_writes(),
            client=("2001:db8::1", 40000 + number),
            broker=("2001:db8::2", 9092),
            handshake=number != 1,
            close="fin" if number != 2 else None,
            client_isn=2**32 - 100,
            broker_isn=2**32 - 300,
            mss=100,
            start_ns=forge.START_NS + number * 20_000,
        )
        for number in range(4)
    ]
    results.append(_base("forged over IPv6", ETHERNET, forge.interleaved(*six)))
    return tuple(results)


# --------------------------------------------------------------------------------------------------- what was said


def _frames(stream: bytes | bytearray) -> list[tuple[int, int]]:
    """Where the length-prefixed units of a stream lie, as far as they follow one another."""
    out, at = [], 0
    while at + 4 <= len(stream):
        (size,) = struct.unpack_from(">i", stream, at)
        if size < 4:
            break
        out.append((at, min(at + 4 + size, len(stream))))
        at += 4 + size
    return out or [(0, len(stream))]


Edit = tuple[int, int, bytes]
"""Bytes [start, stop) of a stream become these."""


def _edit_size(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    honest = stop - start - 4
    sizes = (
        *EVIL_INT32,
        honest + 1,
        honest - 1,
        honest + 4,
        honest // 2,
        len(stream) - start - 4,
        len(stream) - start - 3,
    )
    return start, start + 4, struct.pack(">i", rng.choice(sizes))


def _edit_int32(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    at = rng.randrange(start, max(start + 1, stop - 3))
    return at, at + 4, struct.pack(">i", rng.choice(EVIL_INT32))


def _edit_int16(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    at = rng.randrange(start, max(start + 1, stop - 1))
    return at, at + 2, struct.pack(">h", rng.choice(EVIL_INT16))


def _edit_varint(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    at = rng.randrange(start, stop)
    evil = rng.choice(VARINTS)
    return at, (at if rng.random() < 0.3 else min(len(stream), at + len(evil))), evil


def _edit_bit(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    at = rng.randrange(start, stop)
    return at, at + 1, bytes([stream[at] ^ 1 << rng.randrange(8)])


def _edit_byte(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    at = rng.randrange(start, stop)
    return at, at + 1, bytes([rng.choice(EVIL_BYTES)])


def _edit_delete(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    at = rng.randrange(start, stop)
    return at, min(len(stream), at + rng.choice((1, 2, 3, 4, 8, 100, stop - at))), b""


def _edit_insert(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    at = rng.choice((start, rng.randrange(start, stop)))
    return at, at, rng.randbytes(rng.choice((1, 2, 3, 4, 17, 1000)))


def _edit_truncate(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    return rng.randrange(start, stop), len(stream), b""


def _edit_header(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    """Another API, another version, another correlation id."""
    if rng.random() < 0.3:
        return start + 8, start + 12, rng.randbytes(4)
    if rng.random() < 0.5:
        return start + 6, start + 8, struct.pack(">h", rng.choice((*range(20), *EVIL_INT16)))
    return start + 4, start + 6, struct.pack(">h", rng.choice((*range(95), *EVIL_INT16)))


def _edit_nest(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    """A piece of a frame many times over, with a size that says so."""
    at = rng.randrange(start + min(12, stop - start - 1), stop)
    piece = stream[at : min(stop, at + rng.choice((1, 2, 3, 4, 8, 20)))]
    more = piece * rng.choice((3, 100, 5000))
    content = stream[start + 4 : at] + more + stream[at:stop]
    return start, stop, struct.pack(">i", len(content)) + content


def _edit_twice(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    return start, start, stream[start:stop]


def _edit_monster(rng: random.Random, stream: bytes, start: int, stop: int) -> Edit:
    """A frame of any API whose body is one pattern: arrays of arrays, empty elements, endless tags."""
    pattern = rng.choice(PATTERNS)
    size = rng.choice((1, 10, 300, 5000, 60_000))
    body = (pattern * (size // len(pattern) + 1))[:size]
    header = struct.pack(">hhi", rng.randrange(95), rng.randrange(18), rng.choice((0, 1, 7, -1)))
    client = rng.choice((b"\xff\xff", b"\0\1x", b"\xff\xff\0", b"\0\1x\0", b""))
    if rng.random() < 0.5:
        header, client = stream[start + 4 : start + 12], b""
        if rng.random() < 0.7:
            client = stream[start + 12 : start + 12 + rng.choice((0, 1, 2, 8))]
    content = header + client + body
    return (start if rng.random() < 0.5 else stop), stop, struct.pack(">i", len(content)) + content


EDITS: tuple[Callable[[random.Random, bytes, int, int], Edit], ...] = (
    _edit_size,
    _edit_size,
    _edit_int32,
    _edit_int32,
    _edit_int16,
    _edit_varint,
    _edit_varint,
    _edit_bit,
    _edit_byte,
    _edit_delete,
    _edit_insert,
    _edit_truncate,
    _edit_header,
    _edit_header,
    _edit_nest,
    _edit_twice,
    _edit_monster,
    _edit_monster,
)


def _spliced(writes: list[Write], to_broker: bool, edit: Edit) -> list[Write]:
    """The writes with an edit of one direction's stream."""
    start, stop, new = edit
    out, at, placed = [], 0, False
    for write in writes:
        if write.to_broker != to_broker:
            out.append(write)
            continue
        end = at + len(write.data)
        data = write.data
        if not placed and start <= end and (start < end or end > at):
            data = data[: start - at] + new + data[max(0, min(stop, end) - at) :]
            placed = True
        elif placed and stop > at:
            data = data[min(stop, end) - at :]
        out.append(replace(write, data=data))
        at = end
    return out


def _writes(segments: Sequence[Segment], flow: Flow) -> list[Write]:
    """Return the writes of one connection's applications, each byte once."""
    following: dict[End, int] = {}
    out = []
    for segment in segments:
        if segment.flags & SYN:
            following[segment.source] = (segment.sequence + 1) % 2**32
        if segment.payload:
            expected = following.get(segment.source, segment.sequence)
            if segment.sequence != expected:
                continue  # a retransmission
            following[segment.source] = (expected + len(segment.payload)) % 2**32
            out.append(Write(segment.source == flow[0], segment.payload, segment.time_ns))
    return out


def _merged(base: Base, indices: list[int], new: list[Record]) -> list[Record]:
    """The base's records with one connection's replaced: the others keep their order."""
    gone = set(indices)
    others = [record for i, record in enumerate(base.records) if i not in gone]
    out: list[Record] = []
    at = 0
    for record in others:
        while at < len(new) and new[at].time_ns <= record.time_ns:
            out.append(new[at])
            at += 1
        out.append(record)
    return out + new[at:]


def _payload(base: Base, indices: list[int], new: Sequence[Segment]) -> int:
    gone = set(indices)
    others = sum(len(segment.payload) for i, segment in enumerate(base.segments) if i not in gone)
    return others + sum(len(segment.payload) for segment in new)


def _written(records: list[Record], base: Base, rng: random.Random) -> bytes:
    """As one of the formats that files have."""
    form = rng.randrange(6)
    if form == 0:
        return forge.pcapng(records, (base.link,))
    if form == 1:
        return forge.pcap(records, base.link, nanoseconds=True, big_endian=True)
    return forge.pcap(records, base.link, nanoseconds=True)


def sent_bytes(base: Base, rng: random.Random) -> Mutant:
    """Family `bytes`: what one side sent."""
    candidates = [flow for flow in base.flows if any(base.segments[i].payload for i in base.of(flow))]
    flow = rng.choice(candidates)
    indices = base.of(flow)
    segments = [base.segments[i] for i in indices]
    writes = _writes(segments, flow)
    what = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        direction = rng.random() < 0.5
        stream = b"".join(write.data for write in writes if write.to_broker == direction)
        if not stream:
            direction = not direction
            stream = b"".join(write.data for write in writes if write.to_broker == direction)
        if not stream:
            break
        start, stop = rng.choice(_frames(stream))
        edit = rng.choice(EDITS)
        change = edit(rng, stream, start, stop)
        change = (change[0], min(len(stream), change[1]), change[2])
        if change[0] >= len(stream):
            continue
        writes = _spliced(writes, direction, change)
        what.append(f"{edit.__name__.removeprefix('_edit_')} at {change[0]} {'to' if direction else 'from'} the broker")
    first = segments[0]
    new = forge.converse(
        writes,
        client=flow[0],
        broker=flow[1],
        mss=rng.choice((50, 536, 1448, 16_000, 60_000)),
        handshake=bool(first.flags & SYN),
        close=rng.choice(("fin", "fin", "rst", None)),
        acks=rng.random() < 0.7,
        client_isn=rng.choice((1000, 2**32 - 50)),
        broker_isn=rng.choice((5000, 2**32 - 50)),
        start_ns=first.time_ns,
        step_ns=1000,
    )
    records = _merged(base, indices, forge.rendered(new, base.link))
    return Mutant(_written(records, base, rng), "bytes: " + ", ".join(what), flow, _payload(base, indices, new))


# ------------------------------------------------------------------------------------------------------- packets


def _numbers_off(segment: Segment, rng: random.Random) -> Segment:
    delta = rng.choice((1, -1, 100, -100, 65_536, -65_536, 1 << 24, 1 << 30, 1 << 31, (1 << 31) - 1, -(1 << 30)))
    if rng.random() < 0.5:
        return replace(segment, sequence=(segment.sequence + delta) % 2**32)
    return replace(segment, acknowledgement=(segment.acknowledgement + delta) % 2**32)


def packets(base: Base, rng: random.Random) -> Mutant:
    """Family `tcp`: sequence numbers, flags, times, order and copies of one connection's packets."""
    flow = rng.choice(base.flows)
    indices = base.of(flow)
    new = [base.segments[i] for i in indices]
    what = []
    for _ in range(rng.choice((1, 2, 5))):
        if not new:
            break
        stroke = rng.randrange(10)
        at = rng.randrange(len(new))
        segment = new[at]
        if stroke == 0:
            new[at] = _numbers_off(segment, rng)
        elif stroke == 1:
            new[at] = replace(
                segment,
                flags=rng.choice((0, SYN, SYN | ACK, FIN, FIN | ACK, RST, RST | ACK, ACK, 0xFF, segment.flags ^ SYN)),
            )
        elif stroke == 2:
            new = forge.dropped(new, rng, rng.choice((0.02, 0.2, 0.7)))
        elif stroke == 3:
            new = forge.reordered(new, rng, rng.choice((0.1, 0.9)), rng.choice((3, 300)))
        elif stroke == 4:
            new = forge.overlapped(new, rng, 0.3, 2000) if max(len(other.payload) for other in new) < 50_000 else new
        elif stroke == 5:
            new = forge.retransmitted(new, rng, 0.3, 50)
        elif stroke == 6:
            new = forge.stepped(new, at, rng.choice((-(10**9), 10**9, -(10**15), 10**15, 4 * 10**17)))
            new = [replace(other, time_ns=max(0, min(other.time_ns, 2**32 * 10**9 - 1))) for other in new]
        elif stroke == 7:
            new[at] = replace(segment, payload=rng.randbytes(len(segment.payload)))
        elif stroke == 8:
            new = [other for other in new if rng.random() < 0.9 or not other.flags & (SYN | FIN | RST)]
            new = new[rng.randrange(len(new)) :] if new else new
        else:
            new[at : at + 1] = [
                segment,
                replace(segment, payload=rng.randbytes(rng.choice((1, 1000))), flags=ACK | PSH),
            ]
        what.append(f"stroke {stroke} at packet {at}")
    records = _merged(base, indices, forge.rendered(new, base.link))
    if rng.random() < 0.15:
        # The whole capture cut: then everybody's bytes may be missing.
        return Mutant(
            _written(forge.cut(records, rng.choice((60, 96, 200))), base, rng), "tcp, cut: " + ", ".join(what)
        )
    return Mutant(_written(records, base, rng), "tcp: " + ", ".join(what), flow, _payload(base, indices, new))


LINK_BYTES = {ETHERNET: 14, RAW: 0, SLL: 16, SLL2: 20, 0: 4, 108: 4}


def headers(base: Base, rng: random.Random) -> Mutant:
    """Family `packet`: bytes of one connection's records, headers for the most part."""
    flow = rng.choice(base.flows)
    indices = base.of(flow)
    records = list(base.records)
    touched: Flow | None = flow
    what = []
    for _ in range(rng.choice((1, 3, 10))):
        i = rng.choice(indices)
        data = bytearray(records[i].data)
        if not data:
            continue
        at = rng.randrange(min(len(data), 80) if rng.random() < 0.8 else len(data))
        inside = at - LINK_BYTES.get(base.link, 0)
        if inside < 40 + 4:
            touched = None  # addresses, ports, fragments: the packet may become another connection's
        if rng.random() < 0.5:
            data[at] = rng.choice(EVIL_BYTES)
        else:
            data[at] ^= 1 << rng.randrange(8)
        if rng.random() < 0.15:
            del data[rng.randrange(len(data)) :]
        records[i] = replace(records[i], data=bytes(data))
        what.append(f"record {i} byte {at}")
    return Mutant(_written(records, base, rng), "packet: " + ", ".join(what), touched)


# ---------------------------------------------------------------------------------------------------------- files


def files(base: Base, rng: random.Random) -> Mutant:
    """Family `file`: bytes of the file, those of its headers most often."""
    few = base.records[: rng.choice((20, 100, len(base.records)))]
    form = rng.randrange(4)
    blocks = []  # where record headers and blocks start
    if form == 0:
        comment, resolution = rng.choice(("", "a comment")), rng.choice((None, 9, 0x80 | 30))
        offset = 1_600_000_000 if rng.random() < 0.3 else 0
        whole = forge.pcapng(few, (base.link,), comment=comment, resolution=resolution, offset_seconds=offset)
        data = bytearray(whole)
        at = 0
        while at + 8 <= len(data):
            blocks.append(at)
            at += struct.unpack_from("<I", data, at + 4)[0]
    else:
        data = bytearray(forge.pcap(few, base.link, nanoseconds=form == 1))
        at = 24
        while at + 16 <= len(data):
            blocks.append(at)
            at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    what = [f"form {form}"]
    for _ in range(rng.choice((1, 1, 3, 20))):
        place = rng.randrange(4)
        if place == 0:
            at = rng.randrange(min(len(data), 64))
        elif place == 3:
            at = rng.randrange(len(data))
        else:
            at = min(len(data) - 1, rng.choice(blocks) + rng.randrange(32))
        stroke = rng.randrange(6)
        if stroke == 0:
            data[at] = rng.choice(EVIL_BYTES)
        elif stroke == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif stroke == 2:
            at = at // 4 * 4
            data[at : at + 4] = struct.pack(rng.choice("<>") + "i", rng.choice(EVIL_INT32))
        elif stroke == 3:
            del data[at : at + rng.choice((1, 4, 100))]
        elif stroke == 4:
            data[at:at] = data[at : at + rng.choice((1, 4, 100, 1000))]
        elif rng.random() < 0.3:
            del data[at:]
        what.append(f"stroke {stroke} at {at}")
        if len(data) < 8:
            break
    out = bytes(data)
    if rng.random() < 0.1:
        packed = bytearray(gzip.compress(out, 1, mtime=0))
        packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
        out = bytes(packed if rng.random() < 0.8 else packed[: rng.randrange(1, len(packed))])
        what.append("gzip")
    return Mutant(out, "file: " + ", ".join(what))


FAMILIES = (sent_bytes, sent_bytes, sent_bytes, sent_bytes, sent_bytes, packets, packets, headers, files, files)


def mutant(number: int, seed: int = 0) -> tuple[Base, Mutant, random.Random]:
    """Mutation `number` of a seed: always the same one. The generator comes back for what else is to be chosen."""
    rng = random.Random(f"{seed}/{number}")
    every = bases()
    base = every[number % len(every)]
    return base, rng.choice(FAMILIES)(base, rng), rng
