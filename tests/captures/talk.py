"""Two TCP ends that a test lets speak packet by packet: sent again, lost, acknowledged or not.

In: what each end does, in order, with times in seconds. Out: `Segment`s as a capture point would see them. Unlike
`forge.converse`, nothing is acknowledged unless the test says so.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.captures.forge import ACK, FIN, PSH, RST, START_NS, SYN, TO_BROKER, TO_CLIENT, End, Segment


@dataclass
class Talk:
    """One connection; `seen` are the packets that were captured."""

    client: End = ("10.0.0.1", 40000)
    broker: End = ("10.0.0.2", 9092)
    isn: dict[bool, int] = field(default_factory=lambda: {TO_BROKER: 1000, TO_CLIENT: 500_000})
    seen: list[Segment] = field(default_factory=list)
    sent: dict[bool, int] = field(default_factory=lambda: {TO_BROKER: 0, TO_CLIENT: 0})
    """Bytes that each side has sent."""
    held: dict[bool, int] = field(default_factory=lambda: {TO_BROKER: 0, TO_CLIENT: 0})
    """Bytes of each direction that its receiver acknowledges."""

    def packet(
        self, to_broker: bool, at: float, flags: int, position: int, data: bytes = b"", sack: tuple[int, ...] = ()
    ) -> None:
        """A packet that begins at this byte of its direction; sack: pairs of positions of the other direction."""
        ends = (self.client, self.broker) if to_broker else (self.broker, self.client)
        other = not to_broker
        options = b""
        if sack:
            edges = [(self.isn[other] + 1 + edge) % 2**32 for edge in sack]
            options = struct.pack(f">BBBB{len(edges)}I", 1, 1, 5, 2 + 4 * len(edges), *edges)
        number = (self.isn[to_broker] + position + (0 if flags & SYN else 1)) % 2**32
        acknowledged = (self.isn[other] + 1 + self.held[other]) % 2**32 if flags & ACK else 0
        when = START_NS + round(at * 1e9)
        self.seen.append(Segment(when, *ends, number, acknowledged, flags, data, 65535, options))

    def open(self, at: float) -> None:
        """The handshake."""
        self.packet(TO_BROKER, at, SYN, 0)
        self.packet(TO_CLIENT, at + 0.0001, SYN | ACK, 0)
        self.packet(TO_BROKER, at + 0.0002, ACK, 0)

    def send(self, to_broker: bool, at: float, data: bytes, captured: bool = True) -> int:
        """New bytes in one segment; returns where they begin."""
        position = self.sent[to_broker]
        self.sent[to_broker] += len(data)
        if captured:
            self.packet(to_broker, at, ACK | PSH, position, data)
        return position

    def again(self, to_broker: bool, at: float, position: int, data: bytes) -> None:
        """Send bytes again."""
        self.packet(to_broker, at, ACK | PSH, position, data)

    def ack(self, of_broker_bound: bool, at: float, sack: tuple[int, ...] = (), captured: bool = True) -> None:
        """The receiver of a direction acknowledges all that was sent in it; with `sack` nothing more than before, but
        these blocks."""
        if not sack:
            self.held[of_broker_bound] = self.sent[of_broker_bound]
        if captured:
            self.packet(not of_broker_bound, at, ACK, self.sent[not of_broker_bound], b"", sack)

    def exchange(self, at: float, request: bytes, response: bytes, took: float = 0.001) -> None:
        """A request and its answer, both acknowledged."""
        self.send(TO_BROKER, at, request)
        self.ack(TO_BROKER, at + took / 2)
        self.send(TO_CLIENT, at + took, response)
        self.ack(TO_CLIENT, at + took + 0.0001)

    def fin(self, by_client: bool, at: float) -> None:
        self.packet(by_client, at, FIN | ACK, self.sent[by_client])

    def reset(self, by_client: bool, at: float) -> None:
        self.packet(by_client, at, RST, self.sent[by_client])
