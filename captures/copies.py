"""Copies: is a packet one that was seen before, do its bytes differ.

In: a packet's numbers and the ring of its direction's recent packets. Out: answers, and the ring brought up to date.
Rules: a packet that the capture holds twice (two interfaces, both directions of a mirror) is a copy, not a
retransmission. Bytes handed on are not kept; of a copy of them only the sum tells whether it differs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.kernels import Flag, Int, Table, inline

COPY_NS = 100_000_000
"""Capture time within which a packet with the same IPv4 identification is a copy. Copies are taken microseconds apart,
on both sides of a router or in a mirror milliseconds; TCP sends again after 200 ms, with another identification."""

UNNAMED_COPY_NS = 1_000_000
"""The same where there is no identification (IPv6, or 0). The TCP checksum then tells, which covers the timestamps
that most hosts send, or that it is another interface: so no longer than a retransmission can be quick."""


_SUM_AT: Final = 41
"""Bits of a packet's length and flags: a length has 32, as the capture's."""
_SHAPE: Final = (1 << _SUM_AT) - 1


@inline
def is_same(identity: Int, other: Int, apart: Int) -> Flag:
    """Whether packets that are equal otherwise are one, by their identities (and the interface, 32 bits above)."""
    if (identity | other) >> 16 & 0xFFFF != 0:
        return (identity ^ other) >> 16 & 0xFFFF == 0 and apart <= COPY_NS
    return apart <= UNNAMED_COPY_NS and ((identity ^ other) & 0xFFFF == 0 or identity >> 32 != other >> 32)


@inline
def same_packet(recent: Table, d: Table, key: Int, numbers: Int, shape: Int, time_ns: Int, identity: Int) -> Flag:
    """Whether this packet is one of the last of its direction, seen again. The TTL may differ."""
    for row in range(min(d[key, t.D_PACKETS], t.RECENT)):
        if recent[key, row, t.R_NUMBERS] != numbers or recent[key, row, t.R_SHAPE] & _SHAPE != shape:
            continue
        # Halves, because the difference of two hostile times may not fit in 64 bits.
        apart = abs((time_ns >> 1) - (recent[key, row, t.R_TIME_NS] >> 1)) << 1
        if is_same(identity, recent[key, row, t.R_IDENTITY], apart):
            return True
    return False


@inline
def remember(
    recent: Table, d: Table, key: Int, numbers: Int, shape: Int, time_ns: Int, identity: Int, total: Int
) -> None:
    """Write a packet into the ring; before it is counted in D_PACKETS. `shape`: 512 * its length + its flags; `total`:
    its `payload_sum`, or -1."""
    row = d[key, t.D_PACKETS] & (t.RECENT - 1)
    recent[key, row, t.R_NUMBERS] = numbers
    recent[key, row, t.R_SHAPE] = shape & _SHAPE | (total + 1) << _SUM_AT
    recent[key, row, t.R_TIME_NS] = time_ns
    recent[key, row, t.R_IDENTITY] = identity


@inline
def differs(recent: Table, d: Table, key: Int, numbers: Int, shape: Int, total: Int) -> Flag:
    """Whether the last of the recent packets with the same bytes of the stream had another `payload_sum`."""
    count = d[key, t.D_PACKETS]
    for back in range(1, min(count, t.RECENT) + 1):
        row = (count - back) & (t.RECENT - 1)
        same = (recent[key, row, t.R_NUMBERS] ^ numbers) & 0xFFFFFFFF == 0
        if same and (recent[key, row, t.R_SHAPE] & _SHAPE) >> 9 == shape >> 9:
            other = (recent[key, row, t.R_SHAPE] >> _SUM_AT) - 1
            return total >= 0 and other >= 0 and other != total
    return False


@inline
def duplicate(d: Table, key: Int, start: Int, stop: Int, captured_stop: Int) -> None:
    """Captured bytes [start, min(stop, captured_stop)) came before, or belong to a gap already declared."""
    stop = min(stop, captured_stop)
    if stop <= start:
        return
    late = np.int64(0)
    for i in range(t.LATE_RANGES):
        low = max(start, d[key, t.D_LATE_0 + 2 * i])
        high = min(stop, d[key, t.D_LATE_0 + 2 * i + 1])
        if high > low:
            late += high - low
    late = min(late, stop - start)
    d[key, t.D_LATE] += late
    d[key, t.D_DUPLICATE] += stop - start - late
