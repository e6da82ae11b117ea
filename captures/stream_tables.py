"""The tables of TCP streams: what each column means, and the columns of the rows that come out.

All are int64, one row a thing. They live in `StreamTables`, which kernels take as they are: `copies` writes the ring of
recent packets, `out_of_order` the waiting segments, `streams` all else.
"""

from __future__ import annotations

from typing import NamedTuple

from kwire.captures.kernels import Bytes, Int, Table

RECENT = 16
"""Packets of a direction that are remembered to know a copy by: copies come within a few packets, but for a card's
batch (both sides of a bridge)."""

# Kinds of segment rows.
DATA, GAP, SNAPLEN, FINISH, RESET, END = 0, 1, 2, 3, 4, 5

# Columns of a segment row (int64).
(
    SEG_KEY,  # 2 * slot + side
    SEG_KIND,
    SEG_SOURCE,  # 0: `at` is in the window's buffer, 1: in the waiting bytes
    SEG_AT,
    SEG_LENGTH,
    SEG_TIME_NS,
    SEG_NUMBER,
    SEG_FILE,
    SEG_RECORD_AT,
    SEG_PACKET_INDEX,  # of the packet that brought the bytes, over the whole capture point
    SEG_COMPLETED_BY,  # of the packet that made the row certain: never falls from row to row
    SEG_COLUMNS,
) = range(12)

# Columns of the connection table.
(
    C_STARTED,
    C_HOLD,
    C_BLOCKED,
    C_BLOCKED_NS,
    C_FIRST_NS,
    C_LAST_NS,
    C_SYN_NS,
    C_SYN_SIDE,
    C_ANSWERED,
    C_RTT_NS,
    C_PATH_DELAY_NS,  # from the SYN to the SYN-ACK, where both came before any payload; else -1
    C_SILENCE_NS,  # the longest time between two packets
    C_SILENCE_END_NS,  # when it ended
    C_CLOSER,  # 1 + the side whose FIN or RST came first; 0: none
    C_CLOSED_AFTER,  # 1 + the side that had last sent payload then; 0: none
    C_CLOSED_AFTER_NS,  # how long before
    C_LEGS,  # 1: packets of other legs were seen
    C_COLUMNS,
) = range(18)

SACK_RANGES = 4
"""Ranges that a receiver holds beyond a hole, as far as a direction remembers them: an ACK has room for four."""

LATE_RANGES = 4
"""Gaps a direction remembers, to tell a byte that came too late from one that came twice."""

# Columns of the direction table.
(
    D_REF,  # D_NEXT holds a number that others can be measured against
    D_SYNCED,  # D_NEXT is the next byte to hand on
    D_NEXT,
    D_HEAD,  # first waiting segment, or -1
    D_COUNT,
    D_BYTES,
    D_FIN,
    D_RST,
    D_RST_ACK,  # what the RST acknowledges, or -1
    D_DONE,
    D_MAX_ACK,
    D_OLD_ACK,
    D_HIGH,
    D_HIGH_NS,
    D_LATE_AT,
    D_LATE_0,  # LATE_RANGES pairs (start, stop)
    D_PACKETS,
    D_CAPTURED,
    D_DUPLICATE,
    D_LATE,
    D_RETRANSMISSIONS,
    D_OUT_OF_ORDER,
    D_ZERO_WINDOWS,
    D_GAPS,
    D_GAP_BYTES,
    D_SNAPLEN,
    D_DUPLICATE_PACKETS,  # sightings of a packet after its first
    D_CONFLICTS,  # bytes that differ from the copy that waited; of bytes handed on, one for each copy that differs
    D_LIES,  # segments with a wrong checksum that were acknowledged all the same
    D_ACK_NS,  # when D_MAX_ACK rose last
    D_DELAYED,  # segments that waited for a delayed acknowledgement of the one before
    D_AGAIN_AT,  # the first byte not acknowledged when its segment was last sent again, or -1
    D_AGAIN_NS,  # when that segment was first sent again
    D_AGAIN,  # how often
    D_AGAIN_LENGTH,  # its length
    D_HOLE_NS,  # when the first segment came that waits behind a hole
    D_BEFORE,  # end of the bytes that were sent before a capture without SYN began, or 0
    D_UNSENT_GAPS,  # of D_GAPS: bytes that never arrived, or were sent before the capture; it lost none of them
    D_UNSENT_BYTES,  # of D_GAP_BYTES
    D_NEVER_BYTES,  # of these, bytes that were never acknowledged
    D_SACK_LENGTH,  # the longest segment that the receiver got behind a hole
    D_SACK_AT,
    D_SACK_0,  # SACK_RANGES pairs (start, stop) that the receiver holds; above D_MAX_ACK, or void
) = (*range(16), *range(16 + 2 * LATE_RANGES - 1, 43 + 2 * LATE_RANGES - 1))
D_COLUMNS = D_SACK_0 + 2 * SACK_RANGES

# Columns of the recent packets: of each direction a ring of RECENT.
# Half a line of the cache each, so the sum of its bytes stands above its length and flags (`copies.remember`).
R_NUMBERS, R_SHAPE, R_TIME_NS, R_IDENTITY, R_COLUMNS = 0, 1, 2, 3, 4

# Columns of a waiting segment.
(
    W_SEQ,
    W_LENGTH,
    W_CAPTURED,
    W_AT,
    W_ACK,
    W_NEXT,
    W_TIME_NS,
    W_NUMBER,
    W_FILE,
    W_RECORD_AT,
    W_PACKET_INDEX,
    W_SUM,  # of its packet's headers for the TCP checksum (see `header_sum`), -1, or RIGHT
    W_DOUBT,  # WRONG, LEG, or 0; until its receiver has acknowledged it
    W_COLUMNS,
) = range(14)

WRONG, LEG = 1, 2
"""W_DOUBT: its checksum is wrong; another leg's packet brought it, so that its own may still come."""

RIGHT = -2
"""W_SUM of a part of a packet whose checksum was right."""

# Columns of the state vector.
V_OUT, V_FREE, V_ROWS, V_BYTES, V_LIVE, V_COLUMNS = 0, 1, 2, 3, 4, 5


class StreamTables(NamedTuple):
    """TCP state of the connections of one shard, as kernels take it; a slot is one of that shard (`Streams.slots`).

    connections  [n, C_COLUMNS], a row a slot
    directions   [2 * n, D_COLUMNS]: key 2 * slot + side
    recent       [2 * n, RECENT, R_COLUMNS]
    waiting      [n, W_COLUMNS]: out-of-order segments
    held         their bytes
    counters     [V_COLUMNS]
    out          [n, SEG_COLUMNS]: the rows of this window
    """

    connections: Table
    directions: Table
    recent: Table
    waiting: Table
    held: Bytes
    counters: Table
    out: Table


class Origin(NamedTuple):
    """The packet that bytes came in, all int64."""

    time_ns: Int
    number: Int
    file: Int
    record_at: Int
    packet_index: Int
