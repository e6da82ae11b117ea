"""Acknowledgements: what a direction's receiver confirmed, and what TCP sent again because it did not.

In: the acknowledged numbers, SACK blocks and repeated segments of a packet. Out: columns of the direction table. Rules:
bytes below the acknowledged number were delivered; SACK (RFC 2018) names bytes that the receiver holds beyond a hole,
which do not acknowledge the hole; all others that were sent never arrived, as far as the capture shows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.kernels import Bytes, Int, Table, inline, shared
from kwire.captures.links import net32

DELAYED_NS: Final = 20_000_000
"""An acknowledgement that comes later than this was delayed: Linux waits 40 ms, Windows and others up to 200 ms."""

RELEASED_NS: Final = 5_000_000
"""How soon after an acknowledgement a segment is sent that waited for it (Nagle), besides the path's delay."""

BEFORE_NS: Final = 1_000_000_000
"""For how long after the first packet of a connection without SYN an acknowledgement of bytes that were not captured
tells of a repair that the capture began in: TCP's retransmission timeout before any measurement is one second."""

LEAST_OPTIONS: Final = 12
"""Bytes of TCP options that hold one SACK block, with padding."""

_END, _PADDING, _SACK = 0, 1, 5


@inline
def unwrap(reference: Int, raw: Int) -> Int:
    """The 64-bit number nearest to `reference` whose low 32 bits are `raw`."""
    delta = (raw - reference) & 0xFFFFFFFF
    if delta >= 0x80000000:
        delta -= 0x100000000
    return reference + delta


@shared
def take_blocks(d: Table, key: Int, b: Bytes, at: Int, stop: Int) -> None:
    """Note the SACK blocks of TCP options b[at:stop], which are about the bytes of direction `key`."""
    stop = min(stop, np.int64(len(b)))
    while at + 1 < stop:
        kind, size = np.int64(b[at]), np.int64(b[at + 1])
        if kind == _END:
            return
        if kind == _PADDING:
            at += 1
            continue
        if size < 2 or at + size > stop:
            return
        if kind == _SACK:
            for block in range((size - 2) // 8):
                low = unwrap(d[key, t.D_NEXT], net32(b, at + 2 + 8 * block))
                high = unwrap(d[key, t.D_NEXT], net32(b, at + 6 + 8 * block))
                if low < high and high > d[key, t.D_MAX_ACK]:
                    _hold(d, key, low, high)
        at += size


@shared
def _hold(d: Table, key: Int, low: Int, high: Int) -> None:
    """Merge [low, high) into the ranges that the receiver holds; of too many the one noted first gives way. A block
    is of one segment when it first appears."""
    empty = np.int64(-1)
    length = high - low
    for i in range(t.SACK_RANGES):
        at = t.D_SACK_0 + 2 * i
        if d[key, at + 1] > d[key, t.D_MAX_ACK] and d[key, at] <= high and d[key, at + 1] >= low:
            low = min(low, d[key, at])
            high = max(high, d[key, at + 1])
            d[key, at + 1] = 0
            length = np.int64(0)
        if d[key, at + 1] <= d[key, t.D_MAX_ACK]:
            empty = np.int64(i)
    d[key, t.D_SACK_LENGTH] = max(d[key, t.D_SACK_LENGTH], length)
    if empty < 0:
        empty = d[key, t.D_SACK_AT] % t.SACK_RANGES
        d[key, t.D_SACK_AT] += 1
    d[key, t.D_SACK_0 + 2 * empty] = low
    d[key, t.D_SACK_0 + 2 * empty + 1] = high


@inline
def held_beyond(d: Table, key: Int) -> Int:
    """The end of what the receiver is known to hold: the acknowledged number, or the highest SACK block."""
    top = d[key, t.D_MAX_ACK]
    for i in range(t.SACK_RANGES):
        top = max(top, d[key, t.D_SACK_0 + 2 * i + 1])
    return top


@inline
def repeat(d: Table, key: Int, start: Int, stop: Int, time_ns: Int) -> None:
    """Count a segment [start, stop) that was sent again, if it holds the first byte that is not acknowledged; while
    nothing was acknowledged yet, any."""
    first = d[key, t.D_MAX_ACK]
    if first < 0:
        first = start
    if not start <= first < stop:
        return
    if d[key, t.D_AGAIN_AT] != first:
        d[key, t.D_AGAIN_AT] = first
        d[key, t.D_AGAIN_NS] = time_ns
        d[key, t.D_AGAIN] = 0
    d[key, t.D_AGAIN] += 1
    d[key, t.D_AGAIN_LENGTH] = stop - start


@shared
def was_released(d: Table, key: Int, here: Int, time_ns: Int, path_ns: Int) -> Int:
    """1 for a segment at `here` that its sender held back until a delayed acknowledgement of the one before (Nagle);
    `path_ns`: the connection's round trip, or -1."""
    sent, acked = d[key, t.D_HIGH_NS], d[key, t.D_ACK_NS]
    waited = d[key, t.D_HIGH] == here and d[key, t.D_MAX_ACK] == here and acked - sent >= DELAYED_NS
    quiet = d[key ^ 1, t.D_HIGH] < 0 or d[key ^ 1, t.D_HIGH_NS] < sent  # what follows an answer waited for that
    return np.int64(waited and quiet and time_ns - acked <= RELEASED_NS + max(path_ns, np.int64(0)))
