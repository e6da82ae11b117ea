"""Packets -> which TCP connection each belongs to.

In: a `Packets` batch. Out: for each packet its connection slot and direction, and the moments at which a connection
ends for good. A *flow* is a four-tuple; a *connection* is one use of it, numbered 1, 2 ... for each reuse; a *slot* is
a small integer that stands for a connection while it is open and is used again later.

Rules: a connection begins with a SYN, or with payload where the capture began later. A SYN with another initial
sequence number on the same four-tuple is a new connection. After both FINs or a RST a connection lingers for
`LINGER_NS` of capture time, so that late retransmissions still find it; then it ends, and what follows on the
four-tuple is a new one. All of it depends on the packets alone, never on where a window ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from captures.kernels import inline, kernel
from captures.packets import Packets

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

LINGER_NS = 5_000_000_000
"""How long a closed connection still takes packets. TCP's own TIME_WAIT is 30 to 120 s, but brokers and clients
behind NAT reuse ports sooner than that; retransmissions of a last segment come within a few seconds."""

FRESH_PACKETS = 16
"""A connection without a SYN may get one late (reordered) while it is at most this many packets old."""

# Columns of the flow table (one row a four-tuple, int64; addresses are kept in `flow_key`).
_FLOW_SLOT, _FLOW_USES, _FLOW_COLUMNS = 0, 1, 2

# Columns of the connection table (one row a slot).
(
    CONN_FLOW,  # row in the flow table
    CONN_REUSE,  # 1, 2, ...
    CONN_SERIAL,  # order of creation in the capture point, from 0; -1 once it has ended
    CONN_BORN,  # the same, and stays
    CONN_ISN_0,  # initial sequence number seen from side 0, or -1
    CONN_ISN_1,
    CONN_SEQ_0,  # sequence number of the first packet from side 0 (to recognise a late SYN), or -1
    CONN_SEQ_1,
    CONN_ENDS,  # bit 0: FIN from side 0, bit 1: FIN from side 1, bit 2: RST
    CONN_CLOSED_NS,  # capture clock when it was first seen closed, or NONE
    CONN_PACKETS,
    CONN_OPENER,  # side that sent the SYN, or -1
    CONN_COLUMNS,
) = range(13)

_NONE = -(1 << 62)

# Columns of the flow state vector.
_S_FLOWS, _S_CLOCK, _S_SERIAL, _S_FREE, _S_QUEUE_HEAD, _S_QUEUE_TAIL, _S_SLOTS, _S_COLUMNS = 0, 1, 2, 3, 4, 5, 6, 8

OK, NEED_FLOWS, NEED_SLOTS, NEED_QUEUE, NEED_ENDS = 0, 1, 2, 3, 4


@inline
def _hash(a_hi: Any, a_lo: Any, b_hi: Any, b_lo: Any, ports: Any) -> Any:
    h = a_hi * np.uint64(0x9E3779B97F4A7C15) ^ a_lo * np.uint64(0xC2B2AE3D27D4EB4F)
    h ^= h >> np.uint64(29)
    h += b_hi * np.uint64(0x165667B19E3779F9) ^ b_lo * np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    h = (h ^ ports) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@inline
def _near(a: Any, b: Any) -> Any:
    """Whether two 32-bit sequence numbers are within 1 MiB of each other, wrap included."""
    distance = (a - b) & 0xFFFFFFFF
    return distance < (1 << 20) or distance > (1 << 32) - (1 << 20)


@kernel
def rebuild_buckets(buckets: Any, flow_key: Any, flows: Any) -> None:
    """Fill the (larger, empty) bucket array from the flow keys."""
    mask = np.int64(len(buckets) - 1)
    for i in range(len(buckets)):
        buckets[i] = -1
    for f in range(flows):
        h = _hash(flow_key[f, 0], flow_key[f, 1], flow_key[f, 2], flow_key[f, 3], flow_key[f, 4])
        at = np.int64(h & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask
        while buckets[at] >= 0:
            at = (at + 1) & mask
        buckets[at] = f


@kernel
def assign(
    begin: Any,
    time_ns: Any,
    src_hi: Any,
    src_lo: Any,
    dst_hi: Any,
    dst_lo: Any,
    src_port: Any,
    dst_port: Any,
    seq: Any,
    ack: Any,
    flags: Any,
    payload_length: Any,
    buckets: Any,
    flow_key: Any,
    flow: Any,
    conn: Any,
    free: Any,
    queue: Any,
    state: Any,
    out_slot: Any,
    out_side: Any,
    ends: Any,
    ends_used: Any,
) -> tuple[Any, Any, Any]:
    """Give packets [begin, n) their slot and side. Returns (status, next packet, ends used): on a NEED_ status the
    caller grows that table and calls again from the packet named.

    `out_slot` is -1 for a packet that belongs to no connection (no payload, no SYN, nothing known of it).
    Rows of `ends`: (index of the packet before which it ended, slot).
    """
    n = len(time_ns)
    mask = np.int64(len(buckets) - 1)
    clock = state[_S_CLOCK]
    queue_mask = np.int64(len(queue) - 1)
    for i in range(begin, n):
        # Room for whatever this packet may need; checked first so that a call can be resumed.
        if (state[_S_FLOWS] + 1) * 2 > len(buckets) or state[_S_FLOWS] + 1 > len(flow):
            state[_S_CLOCK] = clock
            return NEED_FLOWS, i, ends_used
        if state[_S_FREE] == 0 and state[_S_SLOTS] >= len(conn):
            state[_S_CLOCK] = clock
            return NEED_SLOTS, i, ends_used
        if state[_S_QUEUE_TAIL] - state[_S_QUEUE_HEAD] + 1 >= len(queue):
            state[_S_CLOCK] = clock
            return NEED_QUEUE, i, ends_used
        clock = max(clock, time_ns[i])
        while state[_S_QUEUE_HEAD] < state[_S_QUEUE_TAIL]:
            if ends_used + 2 > len(ends):
                state[_S_CLOCK] = clock
                return NEED_ENDS, i, ends_used
            head = state[_S_QUEUE_HEAD] & queue_mask
            slot = queue[head, 0]
            # A slot whose connection was replaced meanwhile has another serial: its entry is void.
            if conn[slot, CONN_SERIAL] == queue[head, 1]:
                if clock - conn[slot, CONN_CLOSED_NS] <= LINGER_NS:
                    break
                ends[ends_used, 0] = i
                ends[ends_used, 1] = slot
                ends_used += 1
                flow[conn[slot, CONN_FLOW], _FLOW_SLOT] = -1
                conn[slot, CONN_SERIAL] = -1
            state[_S_QUEUE_HEAD] += 1
        if ends_used + 2 > len(ends):
            state[_S_CLOCK] = clock
            return NEED_ENDS, i, ends_used

        # The four-tuple, smaller end point first.
        side = 0
        a_hi, a_lo, a_port = src_hi[i], src_lo[i], np.int64(src_port[i])
        b_hi, b_lo, b_port = dst_hi[i], dst_lo[i], np.int64(dst_port[i])
        if a_hi > b_hi or (a_hi == b_hi and (a_lo > b_lo or (a_lo == b_lo and a_port > b_port))):
            a_hi, b_hi = b_hi, a_hi
            a_lo, b_lo = b_lo, a_lo
            a_port, b_port = b_port, a_port
            side = 1
        ports = np.uint64(a_port) << np.uint64(16) | np.uint64(b_port)
        h = _hash(a_hi, a_lo, b_hi, b_lo, ports)
        at = np.int64(h & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask
        f = buckets[at]
        while f >= 0 and not (
            flow_key[f, 1] == a_lo
            and flow_key[f, 3] == b_lo
            and flow_key[f, 4] == ports
            and flow_key[f, 0] == a_hi
            and flow_key[f, 2] == b_hi
        ):
            at = (at + 1) & mask
            f = buckets[at]
        flag = np.int64(flags[i])
        opens = flag & SYN != 0 and flag & RST == 0
        slot = np.int64(-1)
        if f >= 0:
            slot = flow[f, _FLOW_SLOT]
        replaces = False
        if slot >= 0:
            if opens:
                isn = conn[slot, CONN_ISN_0 + side]
                first = conn[slot, CONN_SEQ_0 + side]
                if isn >= 0:
                    replaces = isn != seq[i]
                elif flag & ACK != 0 and conn[slot, CONN_ISN_0 + 1 - side] >= 0:
                    replaces = (conn[slot, CONN_ISN_0 + 1 - side] + 1) & 0xFFFFFFFF != ack[i]
                elif conn[slot, CONN_OPENER] == 1 - side and flag & ACK == 0:
                    replaces = False  # both ends opened at once
                elif conn[slot, CONN_PACKETS] <= FRESH_PACKETS:
                    replaces = first >= 0 and not _near(first, seq[i])
                else:
                    replaces = True
            elif (
                payload_length[i] > 0
                and conn[slot, CONN_CLOSED_NS] != _NONE
                and clock - conn[slot, CONN_CLOSED_NS] > LINGER_NS
            ):
                replaces = True
        if slot < 0 or replaces:
            if not opens and payload_length[i] == 0:
                out_slot[i] = -1
                out_side[i] = side
                continue
            if f < 0:
                f = state[_S_FLOWS]
                state[_S_FLOWS] += 1
                flow_key[f, 0] = a_hi
                flow_key[f, 1] = a_lo
                flow_key[f, 2] = b_hi
                flow_key[f, 3] = b_lo
                flow_key[f, 4] = ports
                flow[f, _FLOW_USES] = 0
                buckets[at] = f
            if replaces:
                ends[ends_used, 0] = i
                ends[ends_used, 1] = slot
                ends_used += 1
                conn[slot, CONN_SERIAL] = -1
            if state[_S_FREE] > 0:
                state[_S_FREE] -= 1
                slot = free[state[_S_FREE]]
            else:
                slot = state[_S_SLOTS]
                state[_S_SLOTS] += 1
            flow[f, _FLOW_SLOT] = slot
            flow[f, _FLOW_USES] += 1
            conn[slot, CONN_FLOW] = f
            conn[slot, CONN_REUSE] = flow[f, _FLOW_USES]
            conn[slot, CONN_SERIAL] = state[_S_SERIAL]
            conn[slot, CONN_BORN] = state[_S_SERIAL]
            state[_S_SERIAL] += 1
            conn[slot, CONN_ISN_0] = -1
            conn[slot, CONN_ISN_1] = -1
            conn[slot, CONN_SEQ_0] = -1
            conn[slot, CONN_SEQ_1] = -1
            conn[slot, CONN_ENDS] = 0
            conn[slot, CONN_CLOSED_NS] = _NONE
            conn[slot, CONN_PACKETS] = 0
            conn[slot, CONN_OPENER] = -1
        out_slot[i] = slot
        out_side[i] = side
        conn[slot, CONN_PACKETS] += 1
        if opens:
            conn[slot, CONN_ISN_0 + side] = seq[i]
            if flag & ACK == 0 and conn[slot, CONN_OPENER] < 0:
                conn[slot, CONN_OPENER] = side
            elif flag & ACK != 0 and conn[slot, CONN_OPENER] < 0:
                conn[slot, CONN_OPENER] = 1 - side
        if conn[slot, CONN_SEQ_0 + side] < 0:
            conn[slot, CONN_SEQ_0 + side] = seq[i]
        if flag & (FIN | RST) != 0:
            if flag & RST != 0:
                conn[slot, CONN_ENDS] |= 4
            else:
                conn[slot, CONN_ENDS] |= 1 << side
            if conn[slot, CONN_CLOSED_NS] == _NONE and conn[slot, CONN_ENDS] >= 3:
                conn[slot, CONN_CLOSED_NS] = clock
                tail = state[_S_QUEUE_TAIL] & queue_mask
                queue[tail, 0] = slot
                queue[tail, 1] = conn[slot, CONN_SERIAL]
                state[_S_QUEUE_TAIL] += 1
    state[_S_CLOCK] = clock
    return OK, n, ends_used


@dataclass(slots=True)
class Assigned:
    """Connections of one `Packets` batch.

    `slot` int32[n] (-1: a stray packet of no known connection) and `side` int8[n] (which end point sent it; side 0 is
    the end point that sorts first). `ends` int64[k, 2]: (index of the packet before which a connection ended, slot).
    `conn` and `flow_key` are the tables as they were then; rows of a slot stay right until it is recycled.
    """

    slot: np.ndarray
    side: np.ndarray
    ends: np.ndarray
    conn: np.ndarray
    flow_key: np.ndarray


@dataclass(slots=True)
class Flows:
    """The state of connection tracking over a capture point. Not safe to share between threads."""

    buckets: np.ndarray = field(default_factory=lambda: np.full(1 << 12, -1, np.int64))
    flow_key: np.ndarray = field(default_factory=lambda: np.zeros((1 << 10, 5), np.uint64))
    flow: np.ndarray = field(default_factory=lambda: np.zeros((1 << 10, _FLOW_COLUMNS), np.int64))
    conn: np.ndarray = field(default_factory=lambda: np.zeros((1 << 10, CONN_COLUMNS), np.int64))
    free: np.ndarray = field(default_factory=lambda: np.zeros(1 << 10, np.int64))
    queue: np.ndarray = field(default_factory=lambda: np.zeros((1 << 10, 2), np.int64))
    state: np.ndarray = field(default_factory=lambda: _fresh_state())
    _ends: np.ndarray = field(default_factory=lambda: np.zeros((1 << 10, 2), np.int64))
    _out: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def assign(self, packets: Packets) -> Assigned:
        """Give each packet its connection."""
        n = len(packets)
        slot, side = np.empty(n, np.int32), np.empty(n, np.int8)
        used, at = 0, 0
        while True:
            status, at, used = assign(
                at,
                packets.time_ns,
                packets.src_hi,
                packets.src_lo,
                packets.dst_hi,
                packets.dst_lo,
                packets.src_port,
                packets.dst_port,
                packets.seq,
                packets.ack,
                packets.flags,
                packets.payload_length,
                self.buckets,
                self.flow_key,
                self.flow,
                self.conn,
                self.free,
                self.queue,
                self.state,
                slot,
                side,
                self._ends,
                used,
            )
            if status == OK:
                break
            self._grow(status)
        return Assigned(slot, side, self._ends[:used].copy(), self.conn, self.flow_key)

    def all_end(self) -> Assigned:
        """The capture is over: every open connection ends, in order of creation."""
        slots = self.open_slots()
        ends = np.zeros((len(slots), 2), np.int64)
        ends[:, 1] = slots
        return Assigned(np.zeros(0, np.int32), np.zeros(0, np.int8), ends, self.conn, self.flow_key)

    def _grow(self, status: int) -> None:
        if status == NEED_FLOWS:
            self.flow_key = _doubled(self.flow_key)
            self.flow = _doubled(self.flow)
            self.buckets = np.full(len(self.flow) * 4, -1, np.int64)
            rebuild_buckets(self.buckets, self.flow_key, self.state[_S_FLOWS])
        elif status == NEED_SLOTS:
            self.conn = _doubled(self.conn)
            self.free = _doubled(self.free)
        elif status == NEED_QUEUE:
            queue = np.zeros((len(self.queue) * 2, 2), np.int64)
            head, tail = int(self.state[_S_QUEUE_HEAD]), int(self.state[_S_QUEUE_TAIL])
            order = np.arange(head, tail)
            queue[order & (len(queue) - 1)] = self.queue[order & (len(self.queue) - 1)]
            self.queue = queue
        else:
            self._ends = _doubled(self._ends)

    @property
    def slots(self) -> int:
        """How many slots were ever used: tables indexed by slot need that many rows."""
        return int(self.state[_S_SLOTS])

    def recycle(self, slots: np.ndarray) -> None:
        """Take back slots whose end every later stage has handled."""
        count = int(self.state[_S_FREE])
        self.free[count : count + len(slots)] = slots
        self.state[_S_FREE] = count + len(slots)

    def open_slots(self) -> np.ndarray:
        """The slots of connections that have not ended, in order of their creation."""
        serial = self.conn[: self.slots, CONN_SERIAL]
        live = np.flatnonzero(serial >= 0)
        return live[np.argsort(serial[live], kind="stable")]

    def born(self, slots: np.ndarray) -> np.ndarray:
        """Order of creation of the connections in these slots."""
        found: np.ndarray = self.conn[slots, CONN_BORN]
        return found

    def end_points(self, slot: int) -> tuple[tuple[int, int], tuple[int, int], int, int]:
        """((address of side 0, its port), (address of side 1, its port), reuse number, order of creation) of a slot;
        addresses are 128-bit integers, IPv4 as ::ffff:a.b.c.d."""
        row = self.conn[slot]
        key = self.flow_key[row[CONN_FLOW]]
        a = int(key[0]) << 64 | int(key[1])
        b = int(key[2]) << 64 | int(key[3])
        return (a, int(key[4]) >> 16), (b, int(key[4]) & 0xFFFF), int(row[CONN_REUSE]), int(row[CONN_BORN])


def _fresh_state() -> np.ndarray:
    state = np.zeros(_S_COLUMNS, np.int64)
    state[_S_CLOCK] = _NONE
    return state


def _doubled(array: np.ndarray) -> np.ndarray:
    """A copy with room for twice the rows; the new ones are zero."""
    larger = np.zeros((len(array) * 2, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
