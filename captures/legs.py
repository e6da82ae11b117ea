"""Legs: the same connection captured under several addresses, or each way of it under others.

In: a packet with which a four-tuple begins, and how others began lately. Out: the connection that it is another leg of,
and the four-tuple joined to that.

Rules
- Who rewrites addresses or ports (NAT, a load balancer, a container's network) leaves sequence numbers as they are. So
  two four-tuples are legs of one connection where their SYN-ACKs, or their first payload, have the same sequence and
  acknowledgement numbers within moments. 64 random bits are never the same by chance, but forged ones are, so the IPv4
  identification of these packets, or of their SYNs, is to be the same too. Where a host sets none, or who forwards them
  gives new ones, copies come closer together, and no two ports of one client are legs.
- Who redirects a connection (a sidecar's proxy) rewrites one way of it only: of two four-tuples of one client's port
  one has all requests, the other all answers, and each acknowledges what the other says.
- One leg names the connection: the nearest to the client, whose SYN or first request was captured first, or whose
  address answers come from; of two on one interface the one whose server's address is `advertised`. Its packets count;
  those of other legs are copies, but where its own are missing.
- All of it depends on packets and their order alone. The name is decided before anything but a handshake, or what
  `kwire.captures.streams` still holds of a connection without SYN, was seen; after that it stays.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures import flow_tables as ft
from kwire.captures.copies import COPY_NS
from kwire.captures.flow_tables import FlowTables
from kwire.captures.kernels import Array, Flag, Int, Table, inline, shared
from kwire.captures.windows import PacketColumns

UNNAMED_LEG_NS: Final = 500_000
"""Capture time within which a packet without an identification in common is another leg's copy. Legs on one host are
microseconds apart."""

UNNAMED_IDS: Final = 1
"""Identifications up to this one say nothing: 0 is none, and programs that forge packets say 1 in all of them."""

MOST_LEGS: Final = 8
"""Legs of a connection besides the one that names it."""

FIRST_PACKETS: Final = 16
"""Packets of a connection by which another leg of it is known."""

RENAMED_WITHIN: Final = 8
"""Packets of a connection without SYN within which its name may change: `kwire.captures.streams` holds so many."""

BEGUN: Final = 1 << 11
"""Beginnings that are remembered, each in one place: copies come within moments."""

NONE, TWIN, HALF = range(3)
"""What a packet shows of its four-tuple: nothing; it is another leg; it is the other way of a connection."""

HANDSHAKE, PAYLOAD, CLIENT = 1, 2, 3
"""Kinds of what legs have in common: numbers of a SYN-ACK, of a packet with payload, the client's end."""

_SENDER, _OWN, _ASKS = 1, 2, 4


@inline
def key_of(kind: Int, first: Int, second: Int) -> Int:
    """A number for what legs have in common."""
    h = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    h ^= h >> np.uint64(32)
    h = (h + np.uint64(kind)) * np.uint64(0x94D049BB133111EB)
    return np.int64((h ^ (h >> np.uint64(31))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@inline
def client_key(packets: PacketColumns, i: Int, asks: Flag) -> Int:
    """Of the client's end of a packet: who sent it, if that `asks`, else who is to have it."""
    # Chunks have addresses as signed numbers, which plain Python would not combine with these.
    if asks:
        low, port = np.uint64(packets.src_lo[i]), np.uint64(packets.src_port[i])
        return key_of(CLIENT, packets.src_hi[i], low ^ port << np.uint64(48))
    low, port = np.uint64(packets.dst_lo[i]), np.uint64(packets.dst_port[i])
    return key_of(CLIENT, packets.dst_hi[i], low ^ port << np.uint64(48))


@inline
def _near(a: Int, b: Int) -> Flag:
    distance = (a - b) & 0xFFFFFFFF
    return distance < (1 << 20) or distance > (1 << 32) - (1 << 20)


@inline
def apart(a: Int, b: Int) -> Int:
    """How far two times are apart. Halves, because the difference of two hostile times may not fit in 64 bits."""
    return abs((a >> 1) - (b >> 1)) << 1


@inline
def _look(tables: FlowTables, f: Int, key: Int) -> Int:
    """The row of `begun` with this key, of another four-tuple that is as it was then; -1: there is none."""
    begun, flow = tables.begun, tables.flows
    row = key & np.int64(len(begun) - 1)
    if begun[row, ft.B_KEY] != key:
        return np.int64(-1)
    other = begun[row, ft.B_FLOW]
    if other == f or flow[other, ft.FLOW_SERIAL] != begun[row, ft.B_SERIAL]:
        return np.int64(-1)
    return row


@inline
def _put(
    tables: FlowTables, key: Int, f: Int, packets: PacketColumns, i: Int, sender: Int, own: Int, asks: Flag
) -> None:
    begun = tables.begun
    row = key & np.int64(len(begun) - 1)
    begun[row, ft.B_KEY] = key
    begun[row, ft.B_FLOW] = f
    begun[row, ft.B_SERIAL] = tables.flows[f, ft.FLOW_SERIAL]
    begun[row, ft.B_NS] = packets.time_ns[i]
    begun[row, ft.B_NUMBERS] = packets.seq[i] | packets.ack[i] << 32
    begun[row, ft.B_SIDES] = sender * _SENDER | own * _OWN | (_ASKS if asks else 0)
    begun[row, ft.B_NAMED] = packets.identity[i] >> 16 & 0xFFFF


@shared
def remember_syn(tables: FlowTables, f: Int, packets: PacketColumns, i: Int, own: Int) -> None:
    """Packet i, from side `own` of four-tuple f, is a SYN with which a connection may begin."""
    key = client_key(packets, i, True)
    row = _look(tables, f, key)
    if row >= 0 and tables.begun[row, ft.B_SIDES] & _ASKS == 0:
        if tables.begun[row, ft.B_NUMBERS] >> 32 & 0xFFFFFFFF == (packets.seq[i] + 1) & 0xFFFFFFFF:
            return  # its answer came before
    _put(tables, key, f, packets, i, np.int64(0), own, True)


@shared
def remember_beginning(
    tables: FlowTables, f: Int, slot: Int, packets: PacketColumns, i: Int, sender: Int, own: Int, answers: Flag
) -> None:
    """Packet i is among the first of its connection. `sender`, `own`: its side of the connection, and of four-tuple f;
    `answers`: it is a SYN-ACK."""
    conn = tables.connections
    opener = conn[slot, ft.CONN_OPENER]
    asks = opener == sender if opener >= 0 else packets.src_port[i] > packets.dst_port[i]
    numbers = packets.seq[i] | packets.ack[i] << 32
    conn[slot, ft.CONN_INTERFACE] = packets.interface[i]
    if answers:
        _put(tables, key_of(HANDSHAKE, numbers, 0), f, packets, i, sender, own, False)
    elif packets.payload_length[i] > 0:
        conn[slot, ft.CONN_SPOKE] = 1
        _put(tables, key_of(PAYLOAD, numbers, packets.payload_length[i]), f, packets, i, sender, own, asks)
    if conn[slot, ft.CONN_SEQ_0 + 1 - sender] < 0:
        _put(tables, client_key(packets, i, asks), f, packets, i, sender, own, asks)


@inline
def _is_copy(
    tables: FlowTables, row: Int, f: Int, packets: PacketColumns, i: Int, asks: Flag, parked: Flag, ns: Int
) -> Flag:
    """Whether a packet with the same numbers as one of another four-tuple is a copy of that. `parked`: a SYN of
    four-tuple f came before; `ns`: how far the two are apart."""
    begun, flow, keys = tables.begun, tables.flows, tables.keys
    other = begun[row, ft.B_FLOW]
    named = packets.identity[i] >> 16 & 0xFFFF
    same = named > UNNAMED_IDS and named == begun[row, ft.B_NAMED]
    if parked:
        syn = flow[f, ft.FLOW_SYN_MARK] >> 16 & 0xFFFF
        same = same or (syn > UNNAMED_IDS and syn == flow[other, ft.FLOW_SYN_MARK] >> 16 & 0xFFFF)
        ns = max(ns, apart(flow[f, ft.FLOW_SYN_NS], flow[other, ft.FLOW_SYN_NS]))
    if same:
        return ns <= COPY_NS
    if ns == 0 or ns > UNNAMED_LEG_NS:
        return False
    # The client's end of both: no port of it stands for another one.
    second = (begun[row, ft.B_SIDES] & _OWN != 0) == (begun[row, ft.B_SIDES] & _ASKS != 0)
    hi = keys[other, 2] if second else keys[other, 0]
    lo = keys[other, 3] if second else keys[other, 1]
    port = np.int64(keys[other, 4] & np.uint64(0xFFFF)) if second else np.int64(keys[other, 4] >> np.uint64(16))
    if asks:
        return not (hi == packets.src_hi[i] and lo == packets.src_lo[i] and port != packets.src_port[i])
    return not (hi == packets.dst_hi[i] and lo == packets.dst_lo[i] and port != packets.dst_port[i])


@inline
def _has_room(tables: FlowTables, slot: Int) -> Flag:
    conn = tables.connections
    most = tables.state[ft.S_MOST_LEGS]
    return slot >= 0 and conn[slot, ft.CONN_OPEN_SERIAL] >= 0 and conn[slot, ft.CONN_LEG_COUNT] < most


@shared
def other_leg(
    tables: FlowTables, f: Int, packets: PacketColumns, i: Int, parked: Flag, opens: Flag, acks: Flag
) -> tuple[Int, Int, Int, Flag]:
    """Tell by packet i of four-tuple f, which has no connection yet, whether it is a leg.

    parked: a SYN of f came before; opens, acks: the packet has these flags. Returns (NONE, TWIN or HALF; the other
    four-tuple, the sender's side of its connection, whether the sender is the client)."""
    begun, flow, conn = tables.begun, tables.flows, tables.connections
    seq, ack, length = packets.seq[i], packets.ack[i], packets.payload_length[i]
    asks = False if opens else (parked or packets.src_port[i] > packets.dst_port[i])
    nothing = np.int64(-1)
    if not acks or tables.state[ft.S_MOST_LEGS] == 0:
        return np.int64(NONE), nothing, nothing, asks
    if opens or parked:  # by the SYN-ACK, or by what acknowledges it
        row = _look(tables, f, key_of(HANDSHAKE, seq | ack << 32 if opens else (ack - 1) & 0xFFFFFFFF | seq << 32, 0))
        if row >= 0:
            other = begun[row, ft.B_FLOW]
            sides = begun[row, ft.B_SIDES]
            ns = apart(packets.time_ns[i], begun[row, ft.B_NS]) if opens else np.int64(0)
            slot = flow[other, ft.FLOW_SLOT]
            whole = True
            if not opens:
                sides ^= _SENDER
                whole = slot >= 0 and conn[slot, ft.CONN_SEQ_0 + (sides & _SENDER)] >= 0
            if whole and _has_room(tables, slot) and _is_copy(tables, row, f, packets, i, asks, parked, ns):
                return np.int64(TWIN), other, sides & _SENDER, asks
    if length > 0 and not opens:
        row = _look(tables, f, key_of(PAYLOAD, seq | ack << 32, length))
        if row >= 0:
            other = begun[row, ft.B_FLOW]
            ns = apart(packets.time_ns[i], begun[row, ft.B_NS])
            if _has_room(tables, flow[other, ft.FLOW_SLOT]) and _is_copy(tables, row, f, packets, i, asks, False, ns):
                asks = begun[row, ft.B_SIDES] & _ASKS != 0
                return np.int64(TWIN), other, begun[row, ft.B_SIDES] & _SENDER, asks
    if parked and opens:  # both ways have been seen
        return np.int64(NONE), nothing, nothing, asks
    row = _look(tables, f, client_key(packets, i, asks))
    if row < 0 or (begun[row, ft.B_SIDES] & _ASKS != 0) == asks:
        return np.int64(NONE), nothing, nothing, asks
    other = begun[row, ft.B_FLOW]
    slot = flow[other, ft.FLOW_SLOT]
    reached, acknowledged = begun[row, ft.B_NUMBERS] & 0xFFFFFFFF, begun[row, ft.B_NUMBERS] >> 32 & 0xFFFFFFFF
    if slot == ft.PARKED:  # its SYN, and here the answer to that
        if opens and (reached + 1) & 0xFFFFFFFF == ack:
            return np.int64(HALF), other, (begun[row, ft.B_SIDES] >> 1 & 1) ^ 1, asks
    elif _has_room(tables, slot):
        sender = (begun[row, ft.B_SIDES] & _SENDER) ^ 1
        if conn[slot, ft.CONN_SEQ_0 + sender] < 0 and _near(seq, acknowledged) and _near(ack, reached):
            return np.int64(HALF), other, sender, asks
    return np.int64(NONE), nothing, nothing, asks


@inline
def _may_rename(conn: Table, slot: Int) -> Flag:
    """Whether no later stage may have named the connection yet."""
    if conn[slot, ft.CONN_ENDS] != 0:
        return False
    if conn[slot, ft.CONN_ISN_0] < 0 and conn[slot, ft.CONN_ISN_1] < 0:
        return conn[slot, ft.CONN_PACKETS] < RENAMED_WITHIN
    return conn[slot, ft.CONN_SPOKE] == 0 and conn[slot, ft.CONN_PACKETS] <= 2 * RENAMED_WITHIN


@inline
def _name(named: Array, at: Int, keys: Array, f: Int) -> None:
    """Write a four-tuple's ends as its connection has its sides."""
    for part in range(5):
        named[at, part] = keys[f, part]


@inline
def _swap(named: Array, at: Int) -> None:
    for part in range(2):
        low = named[at, part]
        named[at, part] = named[at, 2 + part]
        named[at, 2 + part] = low
    ports = named[at, 4]
    named[at, 4] = ports >> np.uint64(16) | (ports & np.uint64(0xFFFF)) << np.uint64(16)


@inline
def _new_row(tables: FlowTables, slot: Int) -> Int:
    legs, conn, state = tables.legs, tables.connections, tables.state
    row = state[ft.S_FREE_LEG] - 1
    if row >= 0:
        state[ft.S_FREE_LEG] = legs[row, ft.LEG_NEXT]
    else:
        row = state[ft.S_LEGS]
        state[ft.S_LEGS] += 1
    legs[row, ft.LEG_NEXT] = conn[slot, ft.CONN_LEGS]
    conn[slot, ft.CONN_LEGS] = row + 1
    conn[slot, ft.CONN_LEG_COUNT] += 1
    return row


@inline
def _is_advertised(advertised: Array, ends: Array, row: Int, second: Flag) -> Flag:
    """Whether one of a four-tuple's ends, the `second` or the first, is among the advertised ones."""
    hi = ends[row, 2] if second else ends[row, 0]
    lo = ends[row, 3] if second else ends[row, 1]
    port = ends[row, 4] & np.uint64(0xFFFF) if second else ends[row, 4] >> np.uint64(16)
    for k in range(len(advertised)):
        if advertised[k, 1] == lo and advertised[k, 2] == port and advertised[k, 0] == hi:
            return True
    return False


@inline
def begin(flow: Table, f: Int, time_ns: Int) -> None:
    """A four-tuple begins without a SYN, or with more than that."""
    flow[f, ft.FLOW_SYN_NS] = time_ns
    flow[f, ft.FLOW_SYN_MARK] = 0
    flow[f, ft.FLOW_SYN_SHAPE] = ft.SYN_ANSWERED


@inline
def free(tables: FlowTables, slot: Int) -> None:
    """A slot is used again: nobody asks for the legs of the connection before any more."""
    legs, conn, state = tables.legs, tables.connections, tables.state
    row = conn[slot, ft.CONN_LEGS] - 1
    while row >= 0:
        following = legs[row, ft.LEG_NEXT]
        legs[row, ft.LEG_NEXT] = state[ft.S_FREE_LEG]
        state[ft.S_FREE_LEG] = row + 1
        row = following - 1
    conn[slot, ft.CONN_LEGS] = 0
    conn[slot, ft.CONN_LEG_COUNT] = 0


@shared
def join(
    tables: FlowTables, f: Int, slot: Int, what: Int, packets: PacketColumns, i: Int, own: Int, sender: Int, asks: Flag
) -> None:
    """Four-tuple f is one of the connection in this slot from packet i on, whose sender has side `own` of the one and
    side `sender` of the other. Room was made sure of before."""
    flow, conn, woken, state = tables.flows, tables.connections, tables.woken, tables.state
    before = conn[slot, ft.CONN_FLOW]
    parked = flow[f, ft.FLOW_SLOT] == ft.PARKED
    flipped = own != sender
    nearer = not asks
    if what == TWIN and parked:
        opener = conn[slot, ft.CONN_OPENER]
        has_syn = opener >= 0 and conn[slot, ft.CONN_ISN_0 + max(opener, np.int64(0))] >= 0
        earlier = flow[f, ft.FLOW_SYN_NS] < flow[before, ft.FLOW_SYN_NS] or (
            flow[f, ft.FLOW_SYN_NS] == flow[before, ft.FLOW_SYN_NS]
            and flow[f, ft.FLOW_SERIAL] < flow[before, ft.FLOW_SERIAL]
        )
        nearer = earlier or not has_syn
    elif what == TWIN and conn[slot, ft.CONN_OPENER] >= 0:
        nearer = False
    if what == TWIN and conn[slot, ft.CONN_INTERFACE] == packets.interface[i]:
        known = _is_advertised(tables.advertised, tables.named, slot, (sender == 1) != asks)
        new = _is_advertised(tables.advertised, tables.keys, f, (own == 1) != asks)
        if known != new:
            nearer = new
    nearer = nearer and _may_rename(conn, slot)
    if parked:
        row = state[ft.S_WOKEN]
        state[ft.S_WOKEN] = row + 1
        shape = flow[f, ft.FLOW_SYN_SHAPE]
        side = (shape >> 9 & 1) ^ np.int64(flipped)
        woken[row, 0] = i
        woken[row, 1] = slot
        for column in range(4):
            woken[row, 2 + column] = flow[f, ft.FLOW_SYN_NS + column]
        shape = shape & 0x1FF | side << 9 | (shape & (ft.WOKEN_NO_WINDOW | ft.SYN_COPIES)) | ft.WOKEN_LATER
        if what == TWIN:
            shape |= ft.WOKEN_NEARER if nearer else ft.WOKEN_COPY
        else:
            conn[slot, ft.CONN_PACKETS] += 1
            conn[slot, ft.CONN_SEQ_0 + side] = flow[f, ft.FLOW_SYN_NUMBERS] & 0xFFFFFFFF
        woken[row, 4] = shape
        if conn[slot, ft.CONN_OPENER] < 0:
            conn[slot, ft.CONN_OPENER] = side
        conn[slot, ft.CONN_ISN_0 + side] = flow[f, ft.FLOW_SYN_NUMBERS] & 0xFFFFFFFF
    bits = ft.LEG_FLIPPED if flipped else 0
    if what == HALF:
        bits |= ft.LEG_COPY << (1 - own)
        # What the other one has of this packet's way was never seen; if it comes it is a copy.
        flow[before, ft.FLOW_SYN_SHAPE] |= ft.LEG_COPY << (
            sender ^ np.int64(flow[before, ft.FLOW_SYN_SHAPE] & ft.LEG_FLIPPED != 0)
        )
    elif nearer:
        flow[before, ft.FLOW_SYN_SHAPE] |= ft.LEG_COPY | ft.LEG_COPY << 1
        row = conn[slot, ft.CONN_LEGS] - 1
        while row >= 0:
            if flow[tables.legs[row, ft.LEG_FLOW], ft.FLOW_SLOT] == slot:
                flow[tables.legs[row, ft.LEG_FLOW], ft.FLOW_SYN_SHAPE] |= ft.LEG_COPY | ft.LEG_COPY << 1
            row = tables.legs[row, ft.LEG_NEXT] - 1
    else:
        bits |= ft.LEG_COPY | ft.LEG_COPY << 1
    shape = flow[f, ft.FLOW_SYN_SHAPE] & (ft.LEG_FLIPPED - 1)
    if not parked:
        shape = np.int64(0)
        begin(flow, f, packets.time_ns[i])
    flow[f, ft.FLOW_SLOT] = slot
    flow[f, ft.FLOW_SYN_SHAPE] = shape | bits | ft.SYN_ANSWERED
    row = _new_row(tables, slot)
    other = before if nearer else f
    tables.legs[row, ft.LEG_FLOW] = other
    tables.legs[row, ft.LEG_SERIAL] = flow[other, ft.FLOW_SERIAL]
    flow[other, ft.FLOW_SYN_SHAPE] |= ft.LEG_JOINED | ft.SYN_ANSWERED
    if nearer:
        for part in range(5):
            tables.leg_ends[row, part] = tables.named[slot, part]
        _name(tables.named, slot, tables.keys, f)
        if flipped:
            _swap(tables.named, slot)
        conn[slot, ft.CONN_FLOW] = f
        conn[slot, ft.CONN_REUSE] = flow[f, ft.FLOW_USES]
        conn[slot, ft.CONN_OPEN_SERIAL] = flow[f, ft.FLOW_SERIAL]
        conn[slot, ft.CONN_SERIAL] = flow[f, ft.FLOW_SERIAL]
    else:
        _name(tables.leg_ends, row, tables.keys, f)
        if flipped:
            _swap(tables.leg_ends, row)
