"""The tables of connection tracking: their columns, and nothing else.

In and out: nothing. Rules: all are int64 but for addresses; `flows.Flows` grows them between calls of the kernel.
"""

from __future__ import annotations

from typing import NamedTuple

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

WOKEN_SIDE, WOKEN_NO_WINDOW = 1 << 9, 1 << 10
SYN_REFUSED, SYN_ANSWERED = 1 << 11, 1 << 12
"""In FLOW_SYN_SHAPE: the other side reset what the SYN asked for; it became a connection, or was one without a SYN."""

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
    S_COLUMNS,
) = range(15)


class FlowTables(NamedTuple):
    """The state of connection tracking, as the kernel takes it.

    buckets      hash table: row in `flows`, or -1
    keys         uint64[n, 5]: the four-tuple of each flow, smaller end point first: two addresses in halves, the ports
    flows        [n, FLOW_COLUMNS]
    connections  [n, CONN_COLUMNS], a row a slot
    pairs        uint64[n, 5]: the four-tuple of each slot, as in `keys`, whose rows may be another's by the time
                 that the end of a connection is handled
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
    free: Table
    queue: Table
    past: Table
    ends: Table
    woken: Table
    state: Table
