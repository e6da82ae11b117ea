"""Read the conversations of clients and brokers with ZooKeeper, in the same capture as Kafka.

In: the segments of a shard. Out: `ZooKeeper` events, one an operation on a node that was answered. Rules: a connection
is recognised by the server's port (2181) or by its client's first message; such traffic is little, so it is read by
plain Python; of values only those of nodes that Kafka keeps offsets, leaders and brokers in are taken along.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.protocol.jute import Conversation, looks_like
from kwire.captures import stream_tables as t
from kwire.captures.streams import Segments

PORT: Final = 2181
_NODES: Final = re.compile(r"/(consumers/[^/]+/offsets/|brokers/ids/\d|brokers/topics/[^/]+/partitions/|controller$)")

_NOT_SEEN, _READ, _OTHER = 0, 1, 2


class ZooKeeper(NamedTuple):
    """An operation on a node of ZooKeeper.

    `slot`: a shard's, in a `Window` the number of the connection; `client_side`: which side of it asks; `completed_by`:
    ordinal of the packet that completed the answer; time in nanoseconds."""

    slot: int
    client_side: int
    completed_by: int
    time_ns: int
    operation: str
    path: str
    data: bytes | None
    error: int


def wanted(path: str) -> bool:
    """Whether Kafka keeps something there that tables tell of."""
    # A client below a chroot (zookeeper.connect=host:2181/kafka) names nodes without it.
    return _NODES.match(path) is not None


class ZooKeeperConversations:
    """The connections of one shard that speak to ZooKeeper."""

    def __init__(self) -> None:
        self._kind = np.zeros(256, np.int8)  # by slot
        self._spoken: dict[int, tuple[int, Conversation]] = {}  # by slot: the client's side, what was said

    def take(self, segments: Segments, pairs: np.ndarray) -> list[ZooKeeper]:
        """One window. `pairs`: the ends of the connection in each slot, as `kwire.captures.flows` has them."""
        rows = segments.rows
        if not len(rows):
            return []
        slots = rows[:, t.SEG_KEY] >> 1
        top = int(slots.max()) + 1
        if top > len(self._kind):
            self._kind = np.append(self._kind, np.zeros(2 * top, np.int8))
        self._decide(segments, slots, pairs)
        what = rows[:, t.SEG_KIND]
        events: list[ZooKeeper] = []
        if self._spoken:
            for row in np.flatnonzero((self._kind[slots] == _READ) & (what <= t.SNAPLEN)).tolist():
                events += self._row(segments, rows[row], int(slots[row]))
        over = slots[what == t.END]  # no slot is another's within a window
        self._kind[over] = _NOT_SEEN
        for slot in over.tolist() if self._spoken else ():
            self._spoken.pop(slot, None)
        return events

    def _decide(self, segments: Segments, slots: np.ndarray, pairs: np.ndarray) -> None:
        """Classify connections that send their first bytes."""
        fresh = np.flatnonzero((self._kind[slots] == _NOT_SEEN) & (segments.rows[:, t.SEG_KIND] <= t.SNAPLEN))
        for first in fresh[np.unique(slots[fresh], return_index=True)[1]].tolist() if len(fresh) else ():
            row, slot = segments.rows[first], int(slots[first])
            client = _client_side(int(pairs[slot, 4]), int(row[t.SEG_KEY]) & 1, _data(segments, row)[:8])
            self._kind[slot] = _OTHER if client is None else _READ
            if client is not None:
                self._spoken[slot] = client, Conversation(wanted)

    def _row(self, segments: Segments, row: np.ndarray, slot: int) -> list[ZooKeeper]:
        side = int(row[t.SEG_KEY]) & 1
        client, conversation = self._spoken[slot]
        if row[t.SEG_KIND] != t.DATA:
            conversation.lose(side == client)
            return []
        origin = int(row[t.SEG_COMPLETED_BY]), int(row[t.SEG_TIME_NS])
        return [
            ZooKeeper(slot, client, *event.origin, event.operation, event.path, event.data, event.error)
            for event in conversation.take(side == client, _data(segments, row), origin)
        ]


def _data(segments: Segments, row: np.ndarray) -> bytes:
    """The bytes of a segment; none of what is missing."""
    at, length = int(row[t.SEG_AT]), int(row[t.SEG_LENGTH])
    if row[t.SEG_KIND] != t.DATA:
        return b""
    return segments.sources[int(row[t.SEG_SOURCE])][at : at + length].tobytes()


def _client_side(ports: int, side: int, data: bytes) -> int | None:
    """Which side asks, where it is a connection to ZooKeeper. `ports`: of side 0 above that of side 1."""
    servers = [number for number, port in enumerate((ports >> 16, ports & 0xFFFF)) if port == PORT]
    if len(servers) == 1:
        return 1 - servers[0]
    return side if looks_like(data) else None
