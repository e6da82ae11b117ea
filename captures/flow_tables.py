"""The tables of connection tracking: their columns, and nothing else.

In and out: nothing. Rules: all are int64 but for addresses; `flows.Flows` grows them between calls of the kernel.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kwire.captures.kernels import Array, Table

# Columns of the flow table (one row a four-tuple, int64; addresses are kept in `keys`).
(
    FLOW_SLOT,  # of its open connection, or -1
    FLOW_USES,  # number of its latest connection; of a free row the next free one, or -1
    FLOW_SERIAL,  # order of creation of its latest connection; -1 in a free row
    FLOW_ENDED_NS,  # capture clock when that ended
    FLOW_SYN_NS,  # PARKED: of the SYN, as in `Assigned.woken`
    FLOW_SYN_NUMBERS,
    FLOW_SYN_SHAPE,
    FLOW_SYN_MARK,
    FLOW_COLUMNS,
) = range(9)

# Columns of the connection table (a row a slot).
(
    CONN_FLOW,  # row in the flow table
    CONN_REUSE,  # 1, 2, ...
    CONN_OPEN_SERIAL,  # order of creation in the capture point, from 0; -1 once it has ended
    CONN_SERIAL,  # the same, and stays
    CONN_ISN_0,  # initial sequence number seen from side 0, or -1
    CONN_ISN_1,
    CONN_SEQ_0,  # sequence number of the first packet from side 0 (to recognise a late SYN), or -1
    CONN_SEQ_1,
    CONN_ENDS,  # bit 0: FIN from side 0, bit 1: FIN from side 1, bit 2: RST
    CONN_CLOSED_NS,  # capture clock when it was first seen closed, or NONE
    CONN_PACKETS,
    CONN_OPENER,  # side that sent the SYN, or -1
    CONN_SPOKE,  # 1: payload was seen; looked at while it is fresh
    CONN_LEGS,  # 1 + the first row of its other legs in `FlowTables.legs`, or 0
    CONN_LEG_COUNT,
    CONN_INTERFACE,  # of one of its first packets
    CONN_COLUMNS,
) = range(17)

PARKED: Final = -2
"""In FLOW_SLOT: its open connection is a SYN so far."""

WOKEN_SIDE, WOKEN_NO_WINDOW = 1 << 9, 1 << 10
SYN_REFUSED, SYN_ANSWERED = 1 << 11, 1 << 12
"""In FLOW_SYN_SHAPE: the other side reset what the SYN asked for; it became a connection, or was one without a SYN."""

LEG_FLIPPED: Final = 1 << 13
LEG_COPY: Final = 1 << 14
LEG_JOINED: Final = 1 << 16
LEG_BITS: Final = LEG_FLIPPED | LEG_COPY | LEG_COPY << 1 | LEG_JOINED
"""In FLOW_SYN_SHAPE of a four-tuple whose connection has several (`captures.legs`): its side 0 is the connection's side
1; packets from its side 0, and, a bit above, from its side 1, are copies of another leg's; the connection has its name
from another one."""

WOKEN_LATER, WOKEN_COPY, WOKEN_NEARER = 1 << 13, 1 << 14, 1 << 15
"""In WOKEN_SHAPE: the connection has begun before; the SYN is a copy of another leg's; it is that of the leg nearer to
the client, and what came before are copies."""

SYN_COPY: Final = 1 << 20
SYN_COPIES: Final = 0xFF * SYN_COPY
"""In FLOW_SYN_SHAPE and WOKEN_SHAPE: how many copies of the SYN came before anything else did."""

# Columns of `FlowTables.legs`.
LEG_FLOW, LEG_SERIAL, LEG_NEXT, LEG_COLUMNS = range(4)

# Columns of `FlowTables.begun`.
(
    B_KEY,
    B_FLOW,
    B_SERIAL,  # FLOW_SERIAL then
    B_NS,
    B_NUMBERS,  # sequence number, and 32 bits above it the acknowledged one
    B_SIDES,  # bits: the sender's side of its connection, its side of the four-tuple, whether it is the client
    B_NAMED,  # IP identification
    B_COLUMNS,
) = range(8)

# Columns of the flow state vector.
(
    S_FLOWS,  # rows of the flow table in use or free
    S_CLOCK,
    S_SERIAL,
    S_FREE,
    S_QUEUE_HEAD,
    S_QUEUE_TAIL,
    S_SLOTS,
    S_FREE_FLOW,  # first free row of the flow table, or -1
    S_PAST,  # four-tuples without an open connection
    S_PAST_HEAD,
    S_PAST_TAIL,
    S_REMEMBERED,
    S_FORGOTTEN,  # the largest number of a connection of a four-tuple that was forgotten
    S_WOKEN,
    S_LEGS,  # rows of the legs in use or free
    S_FREE_LEG,  # 1 + the first free one, or 0
    S_MOST_LEGS,  # of a connection, besides the one that names it
    S_ADVERTISED,  # 1: whoever knows was asked for `FlowTables.advertised`
    S_COLUMNS,
) = range(19)


class FlowTables(NamedTuple):
    """The state of connection tracking, as the kernel takes it.

    buckets      hash table: row in `flows`, or -1
    keys         uint64[n, 5]: the four-tuple of each flow, smaller end point first: two addresses in halves, the ports
    flows        [n, FLOW_COLUMNS]
    connections  [n, CONN_COLUMNS], a row a slot
    pairs        uint64[n, 5]: the four-tuple of each slot that its connection began with, as in `keys`, whose rows may
                 be another's by the time that the end of a connection is handled
    named        uint64[n, 5]: the same of the leg that its connection has its name from, side 0 of the connection first
    legs         [n, LEG_COLUMNS]: the other legs of connections, and leg_ends, uint64[n, 5]: their ends as in `named`
    begun        [2**k, B_COLUMNS]: how connections began lately, by what another leg's packets have in common with
                 theirs (`kwire.captures.legs`)
    advertised   uint64[n, 3]: addresses, in halves, and ports that servers of the capture name as theirs
    free         slots to be used again
    queue        ring of closed connections that linger: slot, serial number
    past         ring of four-tuples whose connection ended, in order of its end: row in `flows`, FLOW_SERIAL then
    ends         of the window: index of the packet before which a connection ended, slot
    woken        of the window, as in `Assigned`; how many, in the state vector
    state        [S_COLUMNS]
    """

    buckets: Table
    keys: Array
    flows: Table
    connections: Table
    pairs: Array
    named: Array
    legs: Table
    leg_ends: Array
    begun: Table
    advertised: Array
    free: Table
    queue: Table
    past: Table
    ends: Table
    woken: Table
    state: Table
