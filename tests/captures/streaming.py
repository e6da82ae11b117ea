"""How tests of `flows` and `streams` say what was on the wire, and read what came of it.

In: TCP packets by hand (`c` and `b`: client and broker, in bytes from the start of what each says), or any forged
`Segment`s. Out: `Followed`, one for each connection: what was handed on, in its order, as values that can be read.
No file and no `Reader` is between: only the two stages at hand.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from kwire.captures import out_of_order, stream_tables
from kwire.captures.flows import Flows
from kwire.captures.packets import Packets, no_packets
from kwire.captures.streams import Streams
from kwire.captures.windows import PacketColumns
from tests.captures.forge import ACK, SYN, Segment, tcp_ip

CLIENT, BROKER = ("10.0.0.1", 40_000), ("10.0.0.2", 9092)
CLIENT_ISN, BROKER_ISN = 1_000, 2_000_000_000
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def c(at: int, data: bytes = b"", ack: int = 0, flags: int = ACK, ms: int | None = None, window: int = 9999) -> Segment:
    """A packet of the client: `at` bytes after the first one it says, acknowledging `ack` bytes of the broker, at a
    time in milliseconds (by default one after the packet before it)."""
    time_ns = -1 if ms is None else START_NS + ms * MS
    return Segment(
        time_ns, CLIENT, BROKER, (CLIENT_ISN + 1 + at) % 2**32, (BROKER_ISN + 1 + ack) % 2**32, flags, data, window
    )


def b(at: int, data: bytes = b"", ack: int = 0, flags: int = ACK, ms: int | None = None, window: int = 9999) -> Segment:
    """Like `c`, for the broker."""
    time_ns = -1 if ms is None else START_NS + ms * MS
    return Segment(
        time_ns, BROKER, CLIENT, (BROKER_ISN + 1 + at) % 2**32, (CLIENT_ISN + 1 + ack) % 2**32, flags, data, window
    )


HANDSHAKE = (c(-1, flags=SYN), b(-1, flags=SYN | ACK), c(0))


def timed(segments: Sequence[Segment]) -> list[Segment]:
    """Packets without a time come a millisecond after the one before."""
    out: list[Segment] = []
    for segment in segments:
        before = out[-1].time_ns if out else START_NS - MS
        out.append(segment if segment.time_ns >= 0 else replace(segment, time_ns=before + MS))
    return out


def packets_of(segments: Sequence[Segment], first: int = 1, snaplen: int = 1 << 20, interface: int = 0) -> Packets:
    """Packets as the `Reader` gives them: real IP packets in a buffer, cut to `snaplen` bytes each, numbered from
    `first` on. Every packet has an identification of its own, as a host's have."""
    buffer = bytearray()
    rows: dict[str, list[int]] = {name: [] for name in PacketColumns._fields}
    for index, segment in enumerate(segments):
        packet = tcp_ip(segment, identification=(first + index) % 2**16)
        begin, size = len(buffer), 20 + 20 if "." in segment.source[0] else 40 + 20
        buffer += packet[:snaplen]
        source, target = (_address(end[0]) for end in segment.flow)
        for name, value in {
            "number": first + index,
            "file": 0,
            "record_at": 1000 * (first + index),
            "time_ns": segment.time_ns,
            "interface": interface,
            "src_hi": source >> 64,
            "src_lo": source % 2**64,
            "dst_hi": target >> 64,
            "dst_lo": target % 2**64,
            "src_port": segment.source[1],
            "dst_port": segment.target[1],
            "seq": segment.sequence,
            "ack": segment.acknowledgement,
            "window": segment.window,
            "flags": segment.flags,
            "payload_at": begin + size,
            "payload_captured": max(0, min(snaplen, len(packet)) - size),
            "payload_length": len(segment.payload),
            "tcp_at": begin + size - 20,
            "identity": ((first + index) % 2**16 if size == 40 else 0) << 16
            | int.from_bytes(packet[size - 4 : size - 2], "big"),
        }.items():
            rows[name].append(value)
    empty = no_packets()
    columns = (np.array(rows[name], getattr(empty.columns, name).dtype) for name in PacketColumns._fields)
    return replace(
        empty, buffer=np.frombuffer(bytes(buffer) or b"\0", np.uint8).copy(), columns=PacketColumns(*columns)
    )


def _address(text: str) -> int:
    address = ipaddress.ip_address(text)
    return int(address) | (0xFFFF << 32 if address.version == 4 else 0)


@dataclass(frozen=True)
class Gap:
    """Bytes that the capture lost."""

    length: int


@dataclass(frozen=True)
class Cut:
    """Bytes that the snap length cut off."""

    length: int


FIN_SEEN, RST_SEEN, OVER = "FIN", "RST", "over"
Event = bytes | Gap | Cut | str


@dataclass
class Followed:
    """One connection. `events`: (who, what) in the order in which it was handed on, runs of bytes joined. `origins`:
    for each byte, who said it and the number of the packet it came with. `counters`: of the client, of the broker."""

    events: list[tuple[str, Event]] = field(default_factory=list)
    origins: list[tuple[str, int]] = field(default_factory=list)
    counters: tuple[dict[str, int], dict[str, int]] = ({}, {})
    rtt_ns: int = -1
    client_opened: bool | None = None

    def sent(self, who: str) -> bytes:
        """All bytes of one end."""
        return b"".join(what for end, what in self.events if end == who and isinstance(what, bytes))

    def gaps(self, who: str) -> list[int]:
        return [what.length for end, what in self.events if end == who and isinstance(what, Gap)]

    def add(self, who: str, what: Event) -> None:
        """Append an event; bytes that follow bytes of the same end are joined with them."""
        if isinstance(what, bytes) and self.events and self.events[-1][0] == who:
            before = self.events[-1][1]
            if isinstance(before, bytes):
                self.events[-1] = (who, before + what)
                return
        self.events.append((who, what))


COUNTERS = (
    "packets",
    "captured",
    "duplicate",
    "late",
    "retransmissions",
    "out_of_order",
    "zero_windows",
    "gaps",
    "gap_bytes",
    "snaplen",
    "duplicate_packets",
    "conflicts",
)


def follow(
    segments: Sequence[Segment],
    *,
    batches: Sequence[int] = (),
    shards: int = 1,
    snaplen: int = 1 << 20,
    ended: bool = True,
    waiting_bytes: int = out_of_order.WAITING_BYTES,
) -> list[Followed]:
    """Put packets through `Flows` and `Streams`; one result a connection, in order of their first packets.

    `batches` are numbers of packets after which a window ends; `ended`: the capture is over after them. Checked for
    every input: what was captured is handed on, a duplicate, or late; nothing comes before it is certain."""
    every = timed(segments)
    flows = Flows()
    stages = [Streams(shard, shards, waiting_bytes) for shard in range(shards)]
    by_slot: dict[int, Followed] = {}
    trigger = [-1] * shards
    cuts = [0, *sorted(batches), len(every)]
    steps = [(i, packets_of(every[i:j], i + 1, snaplen)) for i, j in pairwise(cuts)]
    for base, packets in [*steps, *([(len(every), None)] if ended else [])]:
        assigned = flows.all_end() if packets is None else flows.assign(packets)
        for slot in assigned.slot[assigned.slot >= 0].tolist():
            by_slot.setdefault(slot, Followed())
        for shard, stage in enumerate(stages):
            handed_on = stage.advance(no_packets() if packets is None else packets, assigned, base, flows.slots)
            for row in handed_on.rows.tolist():
                assert row[stream_tables.SEG_COMPLETED_BY] >= trigger[shard], (
                    "rows are in order of what made them certain"
                )
                assert row[stream_tables.SEG_PACKET_INDEX] <= row[stream_tables.SEG_COMPLETED_BY]
                trigger[shard] = row[stream_tables.SEG_COMPLETED_BY]
                _take(by_slot[(row[stream_tables.SEG_KEY] >> 1) * shards + shard], row, handed_on.sources)
    for slot, followed in by_slot.items():
        stage, own = stages[slot % shards], slot // shards
        names = {name: getattr(stream_tables, "D_" + name.upper()) for name in COUNTERS}
        rows = stage.directions[2 * own : 2 * own + 2]
        sides = [{name: int(row[column]) for name, column in names.items()} for row in rows]
        followed.counters = (sides[0], sides[1])
        followed.rtt_ns = int(stage.connections[own, stream_tables.C_RTT_NS])
        opener = int(stage.connections[own, stream_tables.C_SYN_SIDE])
        followed.client_opened = None if opener < 0 else opener == 0
        if ended:
            for who, counted in zip(("client", "broker"), followed.counters, strict=True):
                handed = len(followed.sent(who))
                assert counted["captured"] == handed + counted["duplicate"] + counted["late"], (who, counted, handed)
    if ended:
        assert all(stage.waiting == 0 for stage in stages)
    return [by_slot[slot] for slot in sorted(by_slot)]


def _take(followed: Followed, row: list[int], sources: tuple[np.ndarray, np.ndarray]) -> None:
    who = "client" if row[stream_tables.SEG_KEY] % 2 == 0 else "broker"
    kind, length = row[stream_tables.SEG_KIND], row[stream_tables.SEG_LENGTH]
    if kind == stream_tables.DATA:
        at = row[stream_tables.SEG_AT]
        followed.add(who, sources[row[stream_tables.SEG_SOURCE]][at : at + length].tobytes())
        followed.origins += [(who, row[stream_tables.SEG_NUMBER])] * length
    elif kind == stream_tables.GAP:
        followed.add(who, Gap(length))
    elif kind == stream_tables.SNAPLEN:
        followed.add(who, Cut(length))
    elif kind == stream_tables.END:
        followed.add("both", OVER)
    else:
        followed.add(who, FIN_SEEN if kind == stream_tables.FINISH else RST_SEEN)


def follow_one(segments: Sequence[Segment], **how: Any) -> Followed:
    """Like `follow`, for packets of one connection."""
    (followed,) = follow(segments, **how)
    return followed
