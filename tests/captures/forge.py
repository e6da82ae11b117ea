"""Making and impairing captures, for tests and benchmarks.

In: what two applications wrote to each other (`Write`), or an existing capture. Out: TCP packets (`Segment`), impaired
as networks and capture points impair them, then rendered to capture records (`Record`) and to files. Everything is
a function of its arguments; what is random takes a `random.Random`, so a seed tells the whole story.

    writes = [Write(TO_BROKER, request), Write(TO_CLIENT, response)]
    segments = reordered(dropped(converse(writes), rng, 0.02), rng, 0.05)
    Path("lossy.pcap").write_bytes(pcap(rendered(segments)))

Written without scapy: it is a hundred times slower and GPL-2.0-only. The tests let scapy and dpkt read the result.
Sources: RFC 791, 8200, 9293, 1071 (checksum), IEEE 802.1Q, draft-ietf-opsawg-pcap and -pcapng, tcpdump.org/linktypes.
"""

from __future__ import annotations

import functools
import gzip
import ipaddress
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

from kwire.captures.files.write import Record as Record
from kwire.captures.files.write import pcap as pcap
from kwire.captures.files.write import pcapng as pcapng

End = tuple[str, int]
"""IP address (v4 or v6) and TCP port."""

TO_BROKER: Final = True
TO_CLIENT: Final = False

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16

NULL, ETHERNET, RAW, LOOP, SLL, IPV4, IPV6, SLL2 = 0, 1, 101, 108, 113, 228, 229, 276
"""Link types as capture files number them."""

START_NS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that an application hands to its socket at once."""

    to_broker: bool
    data: bytes
    time_ns: int | None = None
    """When; None is a little after the write before it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One TCP packet, before it has a link layer."""

    time_ns: int
    source: End
    target: End
    sequence: int
    acknowledgement: int
    flags: int
    payload: bytes = b""
    window: int = 65535
    options: bytes = b""
    """TCP options, a multiple of 4 bytes."""

    @property
    def flow(self) -> tuple[End, End]:
        return self.source, self.target


# -------------------------------------------------------------------------------------------------------- conversations


def converse(
    writes: Iterable[Write],
    *,
    client: End = ("10.0.0.1", 40000),
    broker: End = ("10.0.0.2", 9092),
    mss: int = 1448,
    handshake: bool = True,
    close: Literal["fin", "rst"] | None = "fin",
    acks: bool = True,
    client_isn: int = 1000,
    broker_isn: int = 500_000,
    start_ns: int = START_NS,
    step_ns: int = 50_000,
) -> list[Segment]:
    """One TCP connection in which the applications made these writes: each becomes segments of at most `mss` bytes,
    the last with PSH, answered by a pure ACK if `acks`. Without a handshake and a close it is a capture's middle.
    Initial sequence numbers near 2^32 make the numbers wrap. Packets are `step_ns` apart where writes name no time."""
    if mss < 1:
        raise ValueError(f"mss is {mss}: a segment holds at least one byte")
    out: list[Segment] = []
    now = start_ns
    ends = {TO_BROKER: (client, broker), TO_CLIENT: (broker, client)}
    following = {TO_BROKER: client_isn, TO_CLIENT: broker_isn}

    def send(direction: bool, flags: int, payload: bytes = b"") -> None:
        nonlocal now
        acknowledgement = following[not direction] if flags & ACK else 0
        out.append(Segment(now, *ends[direction], following[direction], acknowledgement, flags, payload))
        following[direction] = (following[direction] + len(payload) + bool(flags & (SYN | FIN))) % 2**32
        now += step_ns

    if handshake:
        send(TO_BROKER, SYN)
        send(TO_CLIENT, SYN | ACK)
        send(TO_BROKER, ACK)
    else:
        following = {TO_BROKER: (client_isn + 1) % 2**32, TO_CLIENT: (broker_isn + 1) % 2**32}
    for write in writes:
        if write.time_ns is not None:
            now = write.time_ns
        for begin in range(0, len(write.data), mss):
            last = begin + mss >= len(write.data)
            send(write.to_broker, ACK | (PSH if last else 0), write.data[begin : begin + mss])
        if acks and write.data:
            send(not write.to_broker, ACK)
    if close == "fin":
        send(TO_BROKER, FIN | ACK)
        send(TO_CLIENT, FIN | ACK)
        send(TO_BROKER, ACK)
    elif close == "rst":
        send(TO_BROKER, RST | ACK)
    return out


def interleaved(*conversations: Sequence[Segment]) -> list[Segment]:
    """Several connections as one capture point sees them: by time, each in its own order."""
    return sorted(
        (segment for conversation in conversations for segment in conversation), key=lambda segment: segment.time_ns
    )


# -------------------------------------------------------------------------------------- impairments of lists of packets

Packet = TypeVar("Packet", Segment, Record)


def dropped(packets: Sequence[Packet], rng: random.Random, share: float) -> list[Packet]:
    """Without a share of the packets: what a capture point lost."""
    return [packet for packet in packets if rng.random() >= share]


def duplicated(packets: Sequence[Packet], rng: random.Random, share: float, delay_ns: int = 1000) -> list[Packet]:
    """A share of the packets a second time, right after the first."""
    out = []
    for packet in packets:
        out.append(packet)
        if rng.random() < share:
            out.append(replace(packet, time_ns=packet.time_ns + delay_ns))
    return out


def retransmitted(packets: Sequence[Packet], rng: random.Random, share: float, within: int = 8) -> list[Packet]:
    """A share of the packets once more, up to `within` packets later."""
    return [packet for _, packet in sorted(_again(packets, rng, share, within), key=lambda placed: placed[0])]


def _again(packets: Sequence[Packet], rng: random.Random, share: float, within: int) -> list[tuple[float, Packet]]:
    placed: list[tuple[float, Packet]] = []
    for index, packet in enumerate(packets):
        placed.append((index, packet))
        if rng.random() < share:
            later = min(index + rng.randint(1, within), len(packets) - 1)
            placed.append((later + 0.5, replace(packet, time_ns=packets[later].time_ns)))
    return placed


def reordered(packets: Sequence[Packet], rng: random.Random, share: float, within: int = 4) -> list[Packet]:
    """A share of the packets come up to `within` places late. Times stay in order: they are the capture point's."""
    placed = [(index + (rng.randint(1, within) + 0.5 if rng.random() < share else 0)) for index in range(len(packets))]
    order = sorted(range(len(packets)), key=lambda index: placed[index])
    times = sorted(packet.time_ns for packet in packets)
    return [replace(packets[index], time_ns=time) for index, time in zip(order, times, strict=True)]


def stepped(packets: Sequence[Packet], at: int, by_ns: int) -> list[Packet]:
    """The capturing clock jumps by `by_ns` (which may be negative) from packet `at` on."""
    return [
        replace(packet, time_ns=packet.time_ns + by_ns) if index >= at else packet
        for index, packet in enumerate(packets)
    ]


def cut(records: Sequence[Record], snaplen: int) -> list[Record]:
    """Each record cut to `snaplen` bytes, as `tcpdump -s` does."""
    return [replace(record, data=record.data[:snaplen]) for record in records]


# --------------------------------------------------------------------------------------- impairments of TCP's own shape


def split(segments: Sequence[Segment], rng: random.Random, share: float) -> list[Segment]:
    """A share of the segments in two, at a random byte."""
    out = []
    for segment in segments:
        if len(segment.payload) > 1 and not segment.flags & SYN and rng.random() < share:
            at = rng.randint(1, len(segment.payload) - 1)
            out.append(replace(segment, payload=segment.payload[:at], flags=segment.flags & ~(PSH | FIN)))
            out.append(_moved(segment, at))
        else:
            out.append(segment)
    return out


def merged(segments: Sequence[Segment], rng: random.Random, share: float) -> list[Segment]:
    """A share of the pairs of adjacent data segments of one flow as one: receive offload does this."""
    out: list[Segment] = []
    for segment in segments:
        before = out[-1] if out else None
        if (
            before is not None
            and before.payload
            and segment.payload
            and before.flow == segment.flow
            and (before.sequence + len(before.payload)) % 2**32 == segment.sequence
            and not (before.flags | segment.flags) & (SYN | FIN | RST)
            and len(before.payload) + len(segment.payload) <= 60_000
            and rng.random() < share
        ):
            out[-1] = replace(segment, sequence=before.sequence, payload=before.payload + segment.payload)
        else:
            out.append(segment)
    return out


def overlapped(segments: Sequence[Segment], rng: random.Random, share: float, reach: int = 100) -> list[Segment]:
    """A share of the segments begin up to `reach` bytes earlier, repeating bytes of their flow already sent."""
    sent: dict[tuple[End, End], bytes] = {}
    out = []
    for segment in segments:
        before = sent.get(segment.flow, b"")
        if segment.flags & SYN:
            before = b""
        back = 0
        if segment.payload:
            if before and rng.random() < share:
                back = rng.randint(1, min(reach, len(before)))
            sent[segment.flow] = (before + segment.payload)[-reach:]
        again = before[len(before) - back :]
        out.append(replace(segment, sequence=(segment.sequence - back) % 2**32, payload=again + segment.payload))
    return out


def resegmented(segments: Sequence[Segment], rng: random.Random, mss: int) -> list[Segment]:
    """Every segment in pieces of random sizes up to `mss` bytes."""
    out = []
    for segment in segments:
        rest = segment
        while len(rest.payload) > 1:
            at = rng.randint(1, min(mss, len(rest.payload)))
            if at == len(rest.payload):
                break
            out.append(replace(rest, payload=rest.payload[:at], flags=rest.flags & ~(PSH | FIN)))
            rest = _moved(rest, at)
        out.append(rest)
    return out


def _moved(segment: Segment, by: int) -> Segment:
    """Return the rest of a segment behind its first `by` bytes."""
    return replace(segment, sequence=(segment.sequence + by) % 2**32, payload=segment.payload[by:])


# ----------------------------------------------------------------------------------------------- packets to their bytes


def internet_checksum(data: bytes) -> int:
    """RFC 1071. The one's complement sum is the big number's remainder by 65535, which is quick for long payloads."""
    if len(data) % 2:
        data += b"\0"
    total = int.from_bytes(data, "big")
    folded = total % 0xFFFF or (0xFFFF if total else 0)
    return folded ^ 0xFFFF


_address = functools.lru_cache(1 << 12)(ipaddress.ip_address)


def tcp_ip(
    segment: Segment,
    *,
    ip_options: bytes = b"",
    extension_headers: Sequence[tuple[int, bytes]] = (),
    tcp_options: bytes = b"",
    zero_length: bool = False,
    wrong_checksum: bool = False,
    identification: int = 1,
) -> bytes:
    """The segment as an IPv4 or IPv6 packet, checksums right unless asked otherwise.

    `ip_options`, `tcp_options`: multiples of 4 bytes. `extension_headers`: (protocol number, 8n bytes whose first two
    are filled in). `zero_length`: total length 0, as segmentation offload leaves it. `identification`: the IPv4
    header's. ValueError: too long, not told so.
    """
    source, target = _address(segment.source[0]), _address(segment.target[0])
    if source.version != target.version:
        raise ValueError(f"{segment.source[0]} and {segment.target[0]} are not of one IP version")
    tcp_options = tcp_options or segment.options
    if len(ip_options) % 4 or len(ip_options) > 40 or len(tcp_options) % 4 or len(tcp_options) > 40:
        raise ValueError("options take a multiple of 4 bytes, 40 at most")
    header = struct.pack(
        ">HHIIBBHHH",
        segment.source[1],
        segment.target[1],
        segment.sequence,
        segment.acknowledgement,
        (5 + len(tcp_options) // 4) << 4,
        segment.flags,
        segment.window,
        0,
        0,
    )
    tcp = header + tcp_options + segment.payload
    pseudo = source.packed + target.packed + struct.pack(">II", len(tcp), 6)
    checksum = internet_checksum(pseudo + tcp) ^ (0x5555 if wrong_checksum else 0)
    tcp = tcp[:16] + struct.pack(">H", checksum) + tcp[18:]
    if source.version == 4:
        size = 20 + len(ip_options) + len(tcp)
        if size > 0xFFFF and not zero_length:
            raise ValueError(f"an IPv4 packet of {size} bytes needs zero_length")
        ip = struct.pack(
            ">BBHHHBBH", 0x45 + len(ip_options) // 4, 0, 0 if zero_length else size, identification, 0x4000, 64, 6, 0
        ) + (source.packed + target.packed + ip_options)
        return ip[:10] + struct.pack(">H", internet_checksum(ip)) + ip[12:] + tcp
    extensions, following = b"", 6
    for protocol, body in reversed(extension_headers):
        if len(body) % 8 or not body:
            raise ValueError("an IPv6 extension header takes a multiple of 8 bytes")
        extensions = bytes([following, len(body) // 8 - 1]) + body[2:] + extensions
        following = protocol
    size = len(extensions) + len(tcp)
    if size > 0xFFFF and not zero_length:
        raise ValueError(f"an IPv6 payload of {size} bytes needs zero_length")
    fixed = struct.pack(">IHBB", 6 << 28, 0 if zero_length else size, following, 64)
    return fixed + source.packed + target.packed + extensions + tcp


def framed(ip: bytes, link: int, vlans: Sequence[tuple[int, int]] = (), pad: bool = True) -> bytes:
    """An IP packet in its link layer. `vlans`: (tag protocol, VLAN id) from the outside in, Ethernet only. Short
    Ethernet frames are padded to 60 bytes if `pad`, with bytes that are not zero so that nobody takes them for data."""
    version = ip[0] >> 4
    ethertype = 0x0800 if version == 4 else 0x86DD
    if link == ETHERNET:
        tags, following = b"", ethertype
        for protocol, vlan in reversed(vlans):
            tags = struct.pack(">HH", vlan, following) + tags
            following = protocol
        frame = bytes.fromhex("020000000002 020000000001") + struct.pack(">H", following) + tags + ip
        return frame + b"\xee" * (60 - len(frame)) if pad else frame
    if vlans:
        raise ValueError("VLAN tags go on Ethernet")
    if link in (RAW, IPV4, IPV6):
        return ip
    if link == NULL:
        return struct.pack("<I", 2 if version == 4 else 30) + ip  # the capturing host's order: ours is little-endian
    if link == LOOP:
        return struct.pack(">I", 2 if version == 4 else 24) + ip
    if link == SLL:
        return struct.pack(">HHH8sH", 0, 1, 6, bytes.fromhex("0200000000010000"), ethertype) + ip
    if link == SLL2:
        return struct.pack(">HHIHBB8s", ethertype, 0, 1, 1, 0, 6, bytes.fromhex("0200000000010000")) + ip
    raise ValueError(f"link type {link}: forged are Ethernet, raw, null, loop, Linux cooked v1 and v2")


def rendered(
    segments: Iterable[Segment],
    link: int = ETHERNET,
    *,
    vlans: Sequence[tuple[int, int]] = (),
    pad: bool = True,
    zero_length: bool = False,
) -> list[Record]:
    """Segments as capture records of one link type, each an IPv4 packet with an identification of its own, also where a
    segment is sent again: a record, not a segment, is what two capture interfaces see. For other wishes call `tcp_ip`
    and `framed`."""
    out = []
    for number, segment in enumerate(segments):
        packet = tcp_ip(segment, zero_length=zero_length, identification=number % 0xFFFF + 1)
        data = framed(packet, link, vlans, pad)
        out.append(Record(segment.time_ns, data, len(data)))
    return out


# ------------------------------------------------------------------------------------------ captures that exist already


def loaded(path: Path) -> tuple[int, list[Record]]:
    """The link type and the records of a capture file, gzip or not: whole in memory, for tests. pcapng is read with
    dpkt, which forgets wire lengths and is good to a microsecond. ValueError: a pcap cut off inside a packet."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        import io

        import dpkt

        reader = dpkt.pcapng.Reader(io.BytesIO(data))
        return reader.datalink(), [Record(round(time * 1e6) * 1000, bytes(frame), len(frame)) for time, frame in reader]
    order = "<" if data[0] in (0xD4, 0x4D) else ">"
    (magic,) = struct.unpack_from(order + "I", data)
    if magic not in (0xA1B2C3D4, 0xA1B23C4D):
        raise ValueError(f"{path}: neither pcap nor pcapng (begins with {data[:4].hex()})")
    unit = 1 if magic == 0xA1B23C4D else 1000
    records, at = [], 24
    while at < len(data):
        if at + 16 > len(data):
            raise ValueError(f"{path}: cut off inside a packet's header at byte {at}")
        seconds, fraction, captured, wire = struct.unpack_from(order + "IIII", data, at)
        at += 16 + captured
        if at > len(data):
            raise ValueError(f"{path}: cut off inside a packet at byte {len(data)}")
        records.append(Record(seconds * 10**9 + fraction * unit, data[at - captured : at], wire))
    return int(struct.unpack_from(order + "I", data, 20)[0]) & 0x0FFFFFFF, records


def segments_of(records: Iterable[Record], link: int = ETHERNET) -> list[Segment]:
    """The TCP packets among the records as segments, so that their TCP can be impaired; others are left out. Link
    headers, IP and TCP options and what a snap length cut away do not come back when they are rendered again."""
    import dpkt

    layers = {
        ETHERNET: dpkt.ethernet.Ethernet,
        SLL: dpkt.sll.SLL,
        SLL2: dpkt.sll2.SLL2,
        LOOP: dpkt.loopback.Loopback,
        NULL: dpkt.loopback.Loopback,
    }
    out = []
    for record in records:
        if link in (RAW, IPV4, IPV6):
            ip = (dpkt.ip.IP if record.data[0] >> 4 == 4 else dpkt.ip6.IP6)(record.data)
        else:
            ip = layers[link](record.data).data
        tcp = getattr(ip, "data", None)
        if not isinstance(tcp, dpkt.tcp.TCP):
            continue
        source, target = (str(ipaddress.ip_address(bytes(address))) for address in (ip.src, ip.dst))
        out.append(
            Segment(
                record.time_ns,
                (source, tcp.sport),
                (target, tcp.dport),
                tcp.seq,
                tcp.ack,
                tcp.flags,
                bytes(tcp.data),
                tcp.win,
            )
        )
    return out
