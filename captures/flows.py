"""Packets -> which TCP connection each belongs to.

In: a `Packets` batch. Out: for each packet its connection slot and direction, and the moments at which a connection
ends for good. A *flow* is a four-tuple; a *connection* is one use of it, numbered 1, 2 ... for each reuse; a *slot* is
a small integer that stands for a connection while it is open and is used again later.

Rules: a connection begins with a SYN, or with payload where the capture began later. A SYN with another initial
sequence number on the same four-tuple is a new connection. After both FINs or a RST a connection lingers for
`LINGER_NS` of capture time, so that late retransmissions still find it; then it ends, and what follows on the
four-tuple is a new one. A four-tuple that ended long ago is forgotten when there are many; one that is not known is
numbered above the largest number ever forgotten, so that no two connections have one name. All of it depends on the
packets alone, never on where a window ends.

A connection of which nothing but a SYN was seen has no slot yet: it is a row among the four-tuples, with what is to be
known of that packet, until a second one comes (`Assigned.woken`). A scan of a million ports costs 150 bytes each, and
what never becomes a connection, or is refused, costs later stages nothing.

Several four-tuples are one connection where the packets say so (`kwire.captures.legs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from kwire.captures import flow_tables as ft
from kwire.captures import legs
from kwire.captures.copies import is_same
from kwire.captures.flow_tables import (
    CONN_CLOSED_NS,
    CONN_COLUMNS,
    CONN_ENDS,
    CONN_FLOW,
    CONN_ISN_0,
    CONN_ISN_1,
    CONN_LEGS,
    CONN_OPEN_SERIAL,
    CONN_OPENER,
    CONN_PACKETS,
    CONN_REUSE,
    CONN_SEQ_0,
    CONN_SEQ_1,
    CONN_SERIAL,
    CONN_SPOKE,
    PARKED,
    FlowTables,
)
from kwire.captures.kernels import Array, Flag, Int, Table, grown, inline, kernel, shared
from kwire.captures.packets import Packets
from kwire.captures.windows import PacketColumns

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

LINGER_NS = 5_000_000_000
"""How long a closed connection still takes packets. TCP's own TIME_WAIT is 30 to 120 s, but brokers and clients
behind NAT reuse ports sooner than that; retransmissions of a last segment come within a few seconds."""

FRESH_PACKETS = 16
"""A connection without a SYN may get one late (reordered) while it is at most this many packets old."""

FORGET_NS = 3_600_000_000_000
"""How long a four-tuple without an open connection is remembered whatever their number. A client comes back on a port
of its own minutes or hours later; numbers go on from there as long as the four-tuple is known."""

REMEMBERED = 100_000
"""Four-tuples without an open connection that are kept however old they are: 20 MB."""

OTHERS = -1
"""The number (`PacketColumns`) of a packet of which only the time is known: its connection is somebody else's."""

# Columns of `Assigned.woken`.
(
    WOKEN_INDEX,  # of the packet that was the second of its connection
    WOKEN_SLOT,
    WOKEN_NS,  # of the SYN: when
    WOKEN_NUMBERS,  # sequence number, and 32 bits above it the acknowledged one
    WOKEN_SHAPE,  # flags, bit 9: from side 1, bit 10: its window was 0, and WOKEN_LATER and what follows it
    WOKEN_MARK,  # IP identification and interface, as `kwire.captures.copies` keeps them
    WOKEN_COLUMNS,
) = range(7)

_NONE = -(1 << 62)

_APART = -3
"""The slot of a four-tuple whose packets were another leg's until now."""

OK, NEED_FLOWS, NEED_SLOTS, NEED_QUEUE, NEED_ENDS, NEED_PAST, NEED_WOKEN, NEED_LEGS, NEED_ADVERTISED = range(9)

_FULL = {
    NEED_FLOWS: ("flows", "keys"),
    NEED_SLOTS: ("connections", "pairs", "named", "free"),
    NEED_QUEUE: ("queue",),
    NEED_ENDS: ("ends",),
    NEED_PAST: ("past",),
    NEED_WOKEN: ("woken",),
    NEED_LEGS: ("legs", "leg_ends"),
}
"""The tables that a status says are full."""


@inline
def _hash(a_hi: Int, a_lo: Int, b_hi: Int, b_lo: Int, ports: Int) -> Int:
    h = a_hi * np.uint64(0x9E3779B97F4A7C15) ^ a_lo * np.uint64(0xC2B2AE3D27D4EB4F)
    h ^= h >> np.uint64(29)
    h += b_hi * np.uint64(0x165667B19E3779F9) ^ b_lo * np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    h = (h ^ ports) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@inline
def _near(a: Int, b: Int) -> Flag:
    """Whether two 32-bit sequence numbers are within 1 MiB of each other, wrap included."""
    distance = (a - b) & 0xFFFFFFFF
    return distance < (1 << 20) or distance > (1 << 32) - (1 << 20)


@inline
def _home(keys: Array, f: Int, mask: Int) -> Int:
    """Where a flow stands in the hash table if nothing is in its way."""
    h = _hash(keys[f, 0], keys[f, 1], keys[f, 2], keys[f, 3], keys[f, 4])
    return np.int64(h & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask


@kernel
def rebuild_buckets(buckets: Table, flow_key: Array, flows: Int) -> None:
    """Fill the (larger, empty) bucket array from the flow keys."""
    mask = np.int64(len(buckets) - 1)
    for i in range(len(buckets)):
        buckets[i] = -1
    for f in range(flows):
        at = _home(flow_key, f, mask)
        while buckets[at] >= 0:
            at = (at + 1) & mask
        buckets[at] = f


@inline
def _remember(flow: Table, past: Table, state: Table, f: Int, clock: Int) -> None:
    """This four-tuple has no open connection any more. Room was made sure of before."""
    flow[f, ft.FLOW_SLOT] = -1
    flow[f, ft.FLOW_ENDED_NS] = clock
    tail = state[ft.S_PAST_TAIL] & np.int64(len(past) - 1)
    past[tail, 0] = f
    past[tail, 1] = flow[f, ft.FLOW_SERIAL]
    state[ft.S_PAST_TAIL] += 1
    state[ft.S_PAST] += 1


@inline
def _remember_all(tables: FlowTables, slot: Int, clock: Int) -> None:
    """The connection in this slot is over: `_remember` its four-tuples."""
    flow, conn, past, state = tables.flows, tables.connections, tables.past, tables.state
    _remember(flow, past, state, conn[slot, CONN_FLOW], clock)
    _part(tables, slot, clock)


@inline
def _part(tables: FlowTables, slot: Int, clock: Int) -> None:
    """`_remember` the other legs of the connection in this slot."""
    flow, rows = tables.flows, tables.legs
    row = tables.connections[slot, CONN_LEGS] - 1
    while row >= 0:
        f = rows[row, ft.LEG_FLOW]
        if flow[f, ft.FLOW_SLOT] == slot and flow[f, ft.FLOW_SERIAL] == rows[row, ft.LEG_SERIAL]:
            _remember(flow, tables.past, tables.state, f, clock)
        row = rows[row, ft.LEG_NEXT] - 1


@inline
def _full_of_past(tables: FlowTables, slot: Int) -> Flag:
    """Whether there is no room to `_remember` all four-tuples of the connection in this slot."""
    state = tables.state
    legs_at_most = legs.MOST_LEGS if tables.connections[slot, CONN_LEGS] != 0 else 0
    return state[ft.S_PAST_TAIL] - state[ft.S_PAST_HEAD] + legs_at_most >= len(tables.past)


@shared
def _forget(tables: FlowTables, clock: Int) -> None:
    """Forget the four-tuples that ended first, as far as they are old and too many."""
    buckets, keys, flow, past, state = tables.buckets, tables.keys, tables.flows, tables.past, tables.state
    mask = np.int64(len(buckets) - 1)
    past_mask = np.int64(len(past) - 1)
    while state[ft.S_PAST_HEAD] < state[ft.S_PAST_TAIL]:
        head = state[ft.S_PAST_HEAD] & past_mask
        f = past[head, 0]
        if flow[f, ft.FLOW_SERIAL] == past[head, 1] and flow[f, ft.FLOW_SLOT] < 0:  # else it was used again meanwhile
            if state[ft.S_PAST] <= state[ft.S_REMEMBERED] or clock - flow[f, ft.FLOW_ENDED_NS] <= FORGET_NS:
                break
            hole = _home(keys, f, mask)
            while buckets[hole] != f:
                hole = (hole + 1) & mask
            # What stands behind it moves up, as far as its own place in the hash table lets it.
            at = (hole + 1) & mask
            while buckets[at] >= 0:
                if (at - _home(keys, buckets[at], mask)) & mask >= (at - hole) & mask:
                    buckets[hole] = buckets[at]
                    hole = at
                at = (at + 1) & mask
            buckets[hole] = -1
            state[ft.S_FORGOTTEN] = max(state[ft.S_FORGOTTEN], flow[f, ft.FLOW_USES])
            flow[f, ft.FLOW_USES] = state[ft.S_FREE_FLOW]
            flow[f, ft.FLOW_SERIAL] = -1
            state[ft.S_FREE_FLOW] = f
            state[ft.S_PAST] -= 1
        state[ft.S_PAST_HEAD] += 1


@inline
def _occupy(tables: FlowTables, f: Int) -> Int:
    """A slot for the open connection of a four-tuple, its row as no packet has touched it yet."""
    flow, conn, state = tables.flows, tables.connections, tables.state
    if state[ft.S_FREE] > 0:
        state[ft.S_FREE] -= 1
        slot = tables.free[state[ft.S_FREE]]
    else:
        slot = state[ft.S_SLOTS]
        state[ft.S_SLOTS] += 1
    flow[f, ft.FLOW_SLOT] = slot
    for part in range(5):
        tables.pairs[slot, part] = tables.keys[f, part]
        tables.named[slot, part] = tables.keys[f, part]
    legs.free(tables, slot)
    conn[slot, CONN_FLOW] = f
    conn[slot, CONN_REUSE] = flow[f, ft.FLOW_USES]
    conn[slot, CONN_OPEN_SERIAL] = flow[f, ft.FLOW_SERIAL]
    conn[slot, CONN_SERIAL] = flow[f, ft.FLOW_SERIAL]
    conn[slot, CONN_ISN_0] = -1
    conn[slot, CONN_ISN_1] = -1
    conn[slot, CONN_SEQ_0] = -1
    conn[slot, CONN_SEQ_1] = -1
    conn[slot, CONN_ENDS] = 0
    conn[slot, CONN_CLOSED_NS] = _NONE
    conn[slot, CONN_PACKETS] = 0
    conn[slot, CONN_OPENER] = -1
    conn[slot, CONN_SPOKE] = 0
    return slot


@inline
def _wake(tables: FlowTables, f: Int, i: Int) -> Int:
    """The second packet of a connection that was a SYN so far: give it a slot, and say so."""
    flow, conn, woken, state = tables.flows, tables.connections, tables.woken, tables.state
    slot = _occupy(tables, f)
    first = flow[f, ft.FLOW_SYN_NUMBERS] & 0xFFFFFFFF
    side = flow[f, ft.FLOW_SYN_SHAPE] >> 9 & 1
    conn[slot, CONN_ISN_0 + side] = first
    conn[slot, CONN_SEQ_0 + side] = first
    conn[slot, CONN_PACKETS] = 1
    conn[slot, CONN_OPENER] = side
    row = state[ft.S_WOKEN]
    state[ft.S_WOKEN] = row + 1
    woken[row, WOKEN_INDEX] = i
    woken[row, WOKEN_SLOT] = slot
    for column in range(4):
        woken[row, WOKEN_NS + column] = flow[f, ft.FLOW_SYN_NS + column]
    return slot


@kernel
def assign(
    begin: Int,
    packets: PacketColumns,
    tables: FlowTables,
    out_slot: Array,
    out_side: Array,
    ends_used: Int,
    base: Int,
) -> tuple[Int, Int, Int]:
    """Give packets [begin, n) their slot and side. Returns (status, next packet, ends used): on a NEED_ status the
    caller grows that table and calls again from the packet named. Connections are numbered one by one, or, where
    `base` is not negative, by the packet that began them: it is the number of the first one.

    `out_slot` is -1 for a packet that belongs to no connection (no payload, no SYN, nothing known of it), and for one
    that is all of it so far. `out_side` is the side of the sender, and 2 more if it is a copy of another leg's.
    """
    buckets, flow_key, flow, conn = tables.buckets, tables.keys, tables.flows, tables.connections
    queue, past, ends, state = tables.queue, tables.past, tables.ends, tables.state
    number, time_ns, seq, ack, flags = packets.number, packets.time_ns, packets.seq, packets.ack, packets.flags
    src_hi, src_lo, dst_hi, dst_lo = packets.src_hi, packets.src_lo, packets.dst_hi, packets.dst_lo
    src_port, dst_port, payload_length = packets.src_port, packets.dst_port, packets.payload_length
    n = len(time_ns)
    mask = np.int64(len(buckets) - 1)
    clock = state[ft.S_CLOCK]
    queue_mask = np.int64(len(queue) - 1)
    for i in range(begin, n):
        # Room for whatever this packet may need; checked first so that a call can be resumed.
        if ((state[ft.S_FLOWS] + 1) * 2 > len(buckets) or state[ft.S_FLOWS] + 1 > len(flow)) and state[
            ft.S_FREE_FLOW
        ] < 0:
            state[ft.S_CLOCK] = clock
            return NEED_FLOWS, i, ends_used
        if state[ft.S_FREE] == 0 and state[ft.S_SLOTS] >= len(conn):
            state[ft.S_CLOCK] = clock
            return NEED_SLOTS, i, ends_used
        if state[ft.S_WOKEN] >= len(tables.woken):
            state[ft.S_CLOCK] = clock
            return NEED_WOKEN, i, ends_used
        if state[ft.S_FREE_LEG] == 0 and state[ft.S_LEGS] >= len(tables.legs):
            state[ft.S_CLOCK] = clock
            return NEED_LEGS, i, ends_used
        if state[ft.S_QUEUE_TAIL] - state[ft.S_QUEUE_HEAD] + 1 >= len(queue):
            state[ft.S_CLOCK] = clock
            return NEED_QUEUE, i, ends_used
        clock = max(clock, time_ns[i])
        while state[ft.S_QUEUE_HEAD] < state[ft.S_QUEUE_TAIL]:
            if ends_used + 2 > len(ends):
                state[ft.S_CLOCK] = clock
                return NEED_ENDS, i, ends_used
            head = state[ft.S_QUEUE_HEAD] & queue_mask
            slot = queue[head, 0]
            # A slot whose connection was replaced meanwhile has another serial: its entry is void.
            if conn[slot, CONN_OPEN_SERIAL] == queue[head, 1]:
                if clock - conn[slot, CONN_CLOSED_NS] <= LINGER_NS:
                    break
                ends[ends_used, 0] = i
                ends[ends_used, 1] = slot
                if _full_of_past(tables, slot):
                    state[ft.S_CLOCK] = clock
                    return NEED_PAST, i, ends_used
                ends_used += 1
                _remember_all(tables, slot, clock)
                conn[slot, CONN_OPEN_SERIAL] = -1
            state[ft.S_QUEUE_HEAD] += 1
        if ends_used + 2 > len(ends):
            state[ft.S_CLOCK] = clock
            return NEED_ENDS, i, ends_used
        if number[i] == OTHERS:
            out_slot[i] = -1
            out_side[i] = 0
            continue

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
            slot = flow[f, ft.FLOW_SLOT]
        replaces = False
        joined = False
        own = side
        copy = np.int64(0)
        if slot == PARKED:
            first = flow[f, ft.FLOW_SYN_NUMBERS] & 0xFFFFFFFF
            if flag & RST != 0 and payload_length[i] == 0:  # refused: it never was one
                if state[ft.S_PAST_TAIL] - state[ft.S_PAST_HEAD] >= len(past):
                    state[ft.S_CLOCK] = clock
                    return NEED_PAST, i, ends_used
                _remember(flow, past, state, f, clock)
                if flow[f, ft.FLOW_SYN_SHAPE] >> 9 & 1 != side:
                    flow[f, ft.FLOW_SYN_SHAPE] |= ft.SYN_REFUSED
                out_slot[i] = -1
                out_side[i] = side
                continue
            syn = flow[f, ft.FLOW_SYN_SHAPE]
            if syn & 0x1FF == flag and syn >> 9 & 1 == side and syn & ft.SYN_COPIES != ft.SYN_COPIES:
                numbers, apart = seq[i] | ack[i] << 32, legs.apart(time_ns[i], flow[f, ft.FLOW_SYN_NS])
                identity = packets.identity[i] | np.int64(packets.interface[i]) << 32
                if numbers == flow[f, ft.FLOW_SYN_NUMBERS] and payload_length[i] == 0:
                    if is_same(identity, flow[f, ft.FLOW_SYN_MARK], apart):
                        flow[f, ft.FLOW_SYN_SHAPE] += ft.SYN_COPY
                        out_slot[i] = -1
                        out_side[i] = side
                        continue
            if syn >> 9 & 1 == side:
                gone = opens and first != seq[i]
            else:
                gone = opens and flag & ACK != 0 and (first + 1) & 0xFFFFFFFF != ack[i]
            if gone:
                slot = np.int64(PARKED)
            else:
                what, other, sender, asks = legs.other_leg(tables, f, packets, i, True, opens, flag & ACK != 0)
                if what == legs.TWIN and state[ft.S_ADVERTISED] == 0:
                    state[ft.S_CLOCK] = clock
                    return NEED_ADVERTISED, i, ends_used
                if what == legs.NONE:
                    slot = _wake(tables, f, i)
                else:
                    slot = flow[other, ft.FLOW_SLOT]
                    legs.join(tables, f, slot, what, packets, i, own, sender, asks)
                    joined = True
        if slot >= 0:
            shape = flow[f, ft.FLOW_SYN_SHAPE]
            if shape & ft.LEG_BITS != 0:
                side = own ^ (1 if shape & ft.LEG_FLIPPED != 0 else 0)
                copy = shape >> (14 + own) & 1
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
            if replaces and joined:
                replaces = False
            elif replaces and flow[f, ft.FLOW_SYN_SHAPE] & ft.LEG_JOINED != 0:  # the connection goes on without it
                replaces = False
                slot = np.int64(_APART)
            elif replaces and conn[slot, CONN_LEGS] != 0 and _full_of_past(tables, slot):
                state[ft.S_CLOCK] = clock
                return NEED_PAST, i, ends_used
        if slot < 0 or replaces:
            side = own
            copy = np.int64(0)
            if not opens and payload_length[i] == 0:
                out_slot[i] = -1
                out_side[i] = side
                continue
            what, other, sender, asks = legs.other_leg(tables, f, packets, i, False, opens, flag & ACK != 0)
            if what != legs.NONE and replaces and flow[other, ft.FLOW_SLOT] == slot:
                what = np.int64(legs.NONE)
            if what == legs.TWIN and state[ft.S_ADVERTISED] == 0:
                state[ft.S_CLOCK] = clock
                return NEED_ADVERTISED, i, ends_used
            if f < 0:
                if state[ft.S_PAST] > state[ft.S_REMEMBERED]:
                    _forget(tables, clock)
                    at = np.int64(h & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask
                    while buckets[at] >= 0:  # others have moved up
                        at = (at + 1) & mask
                f = state[ft.S_FREE_FLOW]
                if f >= 0:
                    state[ft.S_FREE_FLOW] = flow[f, ft.FLOW_USES]
                else:
                    f = state[ft.S_FLOWS]
                    state[ft.S_FLOWS] += 1
                flow_key[f, 0] = a_hi
                flow_key[f, 1] = a_lo
                flow_key[f, 2] = b_hi
                flow_key[f, 3] = b_lo
                flow_key[f, 4] = ports
                flow[f, ft.FLOW_USES] = state[ft.S_FORGOTTEN]
                buckets[at] = f
            elif slot == -1:
                state[ft.S_PAST] -= 1
            if replaces:
                ends[ends_used, 0] = i
                ends[ends_used, 1] = slot
                ends_used += 1
                conn[slot, CONN_OPEN_SERIAL] = -1
                _part(tables, slot, clock)
            flow[f, ft.FLOW_USES] += 1
            if base >= 0:
                state[ft.S_SERIAL] = base + i
            flow[f, ft.FLOW_SERIAL] = state[ft.S_SERIAL]
            state[ft.S_SERIAL] += 1
            if flag & (SYN | ACK | FIN | RST) == SYN and payload_length[i] == 0:
                flow[f, ft.FLOW_SLOT] = PARKED
                flow[f, ft.FLOW_SYN_NS] = time_ns[i]
                flow[f, ft.FLOW_SYN_NUMBERS] = seq[i] | ack[i] << 32
                flow[f, ft.FLOW_SYN_SHAPE] = flag | side << 9 | (ft.WOKEN_NO_WINDOW if packets.window[i] == 0 else 0)
                flow[f, ft.FLOW_SYN_MARK] = packets.identity[i] | np.int64(packets.interface[i]) << 32
                legs.remember_syn(tables, f, packets, i, own)
                out_slot[i] = -1
                out_side[i] = side
                continue
            flow[f, ft.FLOW_SLOT] = -1
            if what == legs.NONE:
                slot = _occupy(tables, f)
                legs.begin(flow, f, time_ns[i])
            else:
                slot = flow[other, ft.FLOW_SLOT]
                if slot == PARKED:
                    slot = _wake(tables, other, i)
                legs.join(tables, f, slot, what, packets, i, own, sender, asks)
                side = sender
                copy = flow[f, ft.FLOW_SYN_SHAPE] >> (14 + own) & 1
        out_slot[i] = slot
        out_side[i] = side | copy << 1
        if copy != 0:
            continue
        conn[slot, CONN_PACKETS] += 1
        if conn[slot, CONN_PACKETS] <= legs.FIRST_PACKETS:
            answers = opens and flag & ACK != 0
            if payload_length[i] > 0 or answers:
                flow[conn[slot, CONN_FLOW], ft.FLOW_SYN_SHAPE] |= ft.SYN_ANSWERED
            legs.remember_beginning(tables, f, slot, packets, i, side, own, answers)
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
                if conn[slot, CONN_OPENER] == 1 - side:
                    flow[conn[slot, CONN_FLOW], ft.FLOW_SYN_SHAPE] |= ft.SYN_REFUSED
            else:
                conn[slot, CONN_ENDS] |= 1 << side
            if conn[slot, CONN_CLOSED_NS] == _NONE and conn[slot, CONN_ENDS] >= 3:
                conn[slot, CONN_CLOSED_NS] = clock
                tail = state[ft.S_QUEUE_TAIL] & queue_mask
                queue[tail, 0] = slot
                queue[tail, 1] = conn[slot, CONN_OPEN_SERIAL]
                state[ft.S_QUEUE_TAIL] += 1
    state[ft.S_CLOCK] = clock
    return OK, n, ends_used


class Assigned(NamedTuple):
    """Connections of one `Packets` batch.

    `slot` int32[n] (-1: a stray packet of no known connection) and `side` int8[n] (which end point sent it; side 0 is
    the end point that sorts first; of another leg that the connection began with; 2 more: it is a copy of another
    leg's). `ends` int64[k, 2]: (index of the packet before which a connection ended, slot).
    `woken` int64[m, WOKEN_COLUMNS]: connections whose second packet came, with what their first one said.
    `connections` and `pairs` are the tables as they were then; rows of a slot stay right until it is recycled.
    """

    slot: Array
    side: Array
    ends: Table
    woken: Table
    connections: Table
    pairs: Array


class Flows:
    """The state of connection tracking over a capture point. Not safe to share between threads. `remembered`: how many
    four-tuples without an open connection are kept however old they are; `alone`: packets of others are not there
    (OTHERS), and connections are numbered so that they are in the same order for who sees all; `most_legs`: of a
    connection, 0: each four-tuple is one of its own; `advertised`: who knows the (address, port) that servers of this
    capture name as theirs, asked once, where a connection has legs."""

    _advertised: Callable[[], Iterable[tuple[int, int]]] | None = None

    def __init__(
        self,
        remembered: int = REMEMBERED,
        alone: bool = False,
        most_legs: int = legs.MOST_LEGS,
        advertised: Callable[[], Iterable[tuple[int, int]]] | None = None,
    ) -> None:
        self._advertised = advertised
        self._packets = 0 if alone else _NONE
        state = np.zeros(ft.S_COLUMNS, np.int64)
        state[ft.S_CLOCK] = _NONE
        state[ft.S_FREE_FLOW] = -1
        state[ft.S_REMEMBERED] = remembered
        state[ft.S_MOST_LEGS] = min(most_legs, legs.MOST_LEGS)
        self.tables = FlowTables(
            buckets=np.full(1 << 12, -1, np.int64),
            keys=np.zeros((1 << 10, 5), np.uint64),
            flows=np.zeros((1 << 10, ft.FLOW_COLUMNS), np.int64),
            connections=np.zeros((1 << 10, CONN_COLUMNS), np.int64),
            pairs=np.zeros((1 << 10, 5), np.uint64),
            named=np.zeros((1 << 10, 5), np.uint64),
            legs=np.zeros((1 << 6, ft.LEG_COLUMNS), np.int64),
            leg_ends=np.zeros((1 << 6, 5), np.uint64),
            begun=np.zeros((legs.BEGUN, ft.B_COLUMNS), np.int64),
            advertised=np.zeros((0, 3), np.uint64),
            free=np.zeros(1 << 10, np.int64),
            queue=np.zeros((1 << 10, 2), np.int64),
            past=np.zeros((1 << 10, 2), np.int64),
            ends=np.zeros((1 << 10, 2), np.int64),
            woken=np.zeros((1 << 10, WOKEN_COLUMNS), np.int64),
            state=state,
        )

    def assign(self, packets: Packets) -> Assigned:
        """Give each packet its connection."""
        n = len(packets)
        slot, side = np.empty(n, np.int32), np.empty(n, np.int8)
        used, at = 0, 0
        self.tables.state[ft.S_WOKEN] = 0
        while True:
            status, at, used = assign(at, packets.columns, self.tables, slot, side, used, self._packets)
            if status == OK:
                break
            self._grow(status)
        self._packets += n
        woken = self.tables.woken[: int(self.tables.state[ft.S_WOKEN])].copy()
        return self._assigned(slot, side, self.tables.ends[:used].copy(), woken)

    def all_end(self) -> Assigned:
        """The capture is over: every open connection ends, in order of creation. (What was a SYN and no more has said
        nothing that anyone asks for.)"""
        slots = self.open_slots()
        ends = np.zeros((len(slots), 2), np.int64)
        ends[:, 1] = slots
        return self._assigned(np.zeros(0, np.int32), np.zeros(0, np.int8), ends, self.tables.woken[:0])

    def _assigned(self, slot: np.ndarray, side: np.ndarray, ends: np.ndarray, woken: np.ndarray) -> Assigned:
        return Assigned(slot, side, ends, woken, self.tables.connections, self.tables.pairs)

    def _grow(self, status: int) -> None:
        if status == NEED_PAST and self._forget_reused():
            return
        if status == NEED_ADVERTISED:
            ends = [] if self._advertised is None else sorted(self._advertised())
            rows = [(address >> 64, address & 0xFFFFFFFFFFFFFFFF, port) for address, port in ends]
            self.tables = self.tables._replace(advertised=np.array(rows, np.uint64).reshape(-1, 3))
            self.tables.state[ft.S_ADVERTISED] = 1
            return
        before = self.tables
        self.tables = grown(before, status, _FULL)
        if status == NEED_FLOWS:
            buckets = np.full(len(self.tables.flows) * 4, -1, np.int64)
            rebuild_buckets(buckets, self.tables.keys, before.state[ft.S_FLOWS])
            self.tables = self.tables._replace(buckets=buckets)
        elif status == NEED_QUEUE:  # a ring: what is in it has other places in a larger one
            queue = self.tables.queue
            order = np.arange(int(before.state[ft.S_QUEUE_HEAD]), int(before.state[ft.S_QUEUE_TAIL]))
            queue[order & (len(queue) - 1)] = before.queue[order & (len(before.queue) - 1)]

    def _forget_reused(self) -> bool:
        """Put the ring of past four-tuples in order from its beginning on, without those that were used again. Returns
        whether half of it is free then."""
        past, flows, state = self.tables.past, self.tables.flows, self.tables.state
        order = np.arange(int(state[ft.S_PAST_HEAD]), int(state[ft.S_PAST_TAIL])) & (len(past) - 1)
        rows = past[order]
        rows = rows[(flows[rows[:, 0], ft.FLOW_SERIAL] == rows[:, 1]) & (flows[rows[:, 0], ft.FLOW_SLOT] < 0)]
        past[: len(rows)] = rows
        state[ft.S_PAST_HEAD], state[ft.S_PAST_TAIL] = 0, len(rows)
        return 2 * len(rows) <= len(past)

    @property
    def remembered(self) -> int:
        """How many four-tuples are known."""
        return int((self.tables.flows[: int(self.tables.state[ft.S_FLOWS]), ft.FLOW_SERIAL] >= 0).sum())

    @property
    def slots(self) -> int:
        """How many slots were ever used: tables indexed by slot need that many rows."""
        return int(self.tables.state[ft.S_SLOTS])

    def recycle(self, slots: np.ndarray) -> None:
        """Take back slots whose end every later stage has handled."""
        count = int(self.tables.state[ft.S_FREE])
        self.tables.free[count : count + len(slots)] = slots
        self.tables.state[ft.S_FREE] = count + len(slots)

    def open_slots(self) -> np.ndarray:
        """The slots of connections that have not ended, in order of their creation."""
        serial = self.tables.connections[: self.slots, CONN_OPEN_SERIAL]
        live = np.flatnonzero(serial >= 0)
        return live[np.argsort(serial[live], kind="stable")]

    def serials(self, slots: np.ndarray) -> np.ndarray:
        """Order of creation of the connections in these slots."""
        serials: np.ndarray = self.tables.connections[slots, CONN_SERIAL]
        return serials

    def end_points(self, slot: int) -> tuple[tuple[int, int], tuple[int, int], int, int]:
        """Return a slot's ends, each (address, port), its reuse number and its serial.

        Addresses are 128-bit integers, IPv4 as ::ffff:a.b.c.d."""
        row = self.tables.connections[slot]
        return *_ends(self.tables.named[slot]), int(row[CONN_REUSE]), int(row[CONN_SERIAL])

    def other_end_points(self, slots: np.ndarray) -> dict[int, list[tuple[tuple[int, int], tuple[int, int]]]]:
        """Return the ends, as in `end_points`, of the other legs of connections in these slots, of those that have any,
        in the order in which they came."""
        having = slots[self.tables.connections[slots, CONN_LEGS] != 0]
        return {slot: self._leg_ends(slot) for slot in having.tolist()}

    def _leg_ends(self, slot: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        ends: list[tuple[tuple[int, int], tuple[int, int]]] = []
        row = int(self.tables.connections[slot, CONN_LEGS]) - 1
        while row >= 0:
            ends.insert(0, _ends(self.tables.leg_ends[row]))
            row = int(self.tables.legs[row, ft.LEG_NEXT]) - 1
        return ends


def _ends(key: np.ndarray) -> tuple[tuple[int, int], tuple[int, int]]:
    a = int(key[0]) << 64 | int(key[1])
    b = int(key[2]) << 64 | int(key[3])
    return (a, int(key[4]) >> 16), (b, int(key[4]) & 0xFFFF)
