"""Copies: is a packet one that was seen before, do its bytes differ, is its checksum right.

In: a packet's numbers and the ring of its direction's recent packets. Out: answers, and the ring brought up to date.
Rules: a packet that the capture holds twice (two interfaces, both directions of a mirror) is a copy, not a
retransmission. Bytes handed on are not kept; of a copy of them only the sum tells whether it differs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from captures.kernels import Bytes, Flag, Int, Table, inline, shared
from captures.stream_tables import (
    D_DUPLICATE,
    D_LATE,
    D_LATE_0,
    D_PACKETS,
    LATE_RANGES,
    R_IDENTITY,
    R_NUMBERS,
    R_SHAPE,
    R_TIME_NS,
    RECENT,
)

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
def byte_sum(b: Bytes, at: Int, count: Int) -> Int:
    """The sum of the 16-bit numbers in network order in b[at:at + count], the last byte filled up with a zero."""
    start = np.uint64(at)
    high = np.int64(0)
    low = np.int64(0)
    for i in range(np.uint64(count >> 1)):
        high += np.int64(b[start + np.uint64(2) * i])
        low += np.int64(b[start + np.uint64(2) * i + np.uint64(1)])
    if count & 1:
        high += np.int64(b[at + count - 1])
    return (high << 8) + low


@inline
def payload_sum(b: Bytes, words: Int, at: Int, count: Int) -> Int:
    """`byte_sum` modulo 65,535, many times as fast: `words` are the bytes of b as uint64 of a little-endian host, all
    of b but for what does not fill one. Sums of this kind mind neither how many are added at a time, nor the byte order
    until the end (RFC 1071, 2.B and 2.C); most payloads are a dozen words, too few for wider registers."""
    if count <= 0:
        return np.int64(0)
    stop = at + count
    word = np.uint64(at >> 3)
    last = np.uint64(stop >> 3)  # the word that only its first bytes belong to, if any do
    before = np.uint64(at & 7) << np.uint64(3)
    behind = np.uint64(stop & 7) << np.uint64(3)
    low = np.uint64(0)
    high = np.uint64(0)  # halves of words apart: no sum of 8,192 runs over
    if before != np.uint64(0) and word < last:
        value = words[word] >> before << before
        low += value & np.uint64(0xFFFFFFFF)
        high += value >> np.uint64(32)
        word += np.uint64(1)
        before = np.uint64(0)
    while word < last:
        value = words[word]
        low += value & np.uint64(0xFFFFFFFF)
        high += value >> np.uint64(32)
        word += np.uint64(1)
    if behind != np.uint64(0):
        if last < np.uint64(len(words)):
            value = (words[last] & ((np.uint64(1) << behind) - np.uint64(1))) >> before << before
            low += value & np.uint64(0xFFFFFFFF)
            high += value >> np.uint64(32)
        else:  # at the very end of b
            for i in range(max(at, stop & ~7), stop):
                low += np.uint64(b[i]) << np.uint64((i & 1) << 3)
    folded = np.int64(low + high) % 0xFFFF
    # An even byte is a number's low one here, and its high one in network order where the payload begins at one.
    return folded if at & 1 else ((folded & 0xFF) << 8 | folded >> 8) % 0xFFFF


@inline
def _halves(number: Int) -> Int:
    """The sum of the four 16-bit parts of a uint64."""
    low = np.int64(number & np.uint64(0xFFFFFFFF))
    high = np.int64(number >> np.uint64(32))
    return (low & 0xFFFF) + (low >> 16) + (high & 0xFFFF) + (high >> 16)


@shared
def header_sum(
    b: Bytes, tcp_at: Int, payload_at: Int, length: Int, src_hi: Int, src_lo: Int, dst_hi: Int, dst_lo: Int
) -> Int:
    """The part of a segment's TCP checksum (RFC 9293, 3.1) that its headers make, or -1 if none can be told: the
    headers are cut, the packet is longer than the checksum's 16 bits of length, or the checksum was left to the network
    card, which shows as 0 or as the sum of the pseudo-header alone. The checksum is right if this plus the payload's
    `byte_sum` is a multiple of 65,535. (The ::ffff that maps an IPv4 address adds nothing.)"""
    size = payload_at - tcp_at
    if size < 20 or size != (np.int64(b[tcp_at + 12]) >> 4) * 4 or size + length > 0xFFFF:
        return np.int64(-1)
    field = np.int64(b[tcp_at + 16]) << 8 | np.int64(b[tcp_at + 17])
    pseudo = _halves(src_hi) + _halves(src_lo) + _halves(dst_hi) + _halves(dst_lo) + 6
    if field == 0 or (pseudo - field) % 0xFFFF == 0 or (pseudo + size + length - field) % 0xFFFF == 0:
        return np.int64(-1)
    return pseudo + size + length + byte_sum(b, tcp_at, size)


@inline
def same_packet(recent: Table, d: Table, key: Int, numbers: Int, shape: Int, time_ns: Int, identity: Int) -> Flag:
    """Whether this packet is one of the last of its direction, seen again. The TTL may differ."""
    named = identity >> 16 & 0xFFFF
    for row in range(min(d[key, D_PACKETS], RECENT)):
        if recent[key, row, R_NUMBERS] != numbers or recent[key, row, R_SHAPE] & _SHAPE != shape:
            continue
        # Halves, because the difference of two hostile times may not fit in 64 bits.
        apart = abs((time_ns >> 1) - (recent[key, row, R_TIME_NS] >> 1)) << 1
        other = recent[key, row, R_IDENTITY]
        if named != 0 or other >> 16 & 0xFFFF != 0:
            if named == other >> 16 & 0xFFFF and apart <= COPY_NS:
                return True
        elif apart <= UNNAMED_COPY_NS and ((identity ^ other) & 0xFFFF == 0 or identity >> 32 != other >> 32):
            return True
    return False


@inline
def remember(
    recent: Table, d: Table, key: Int, numbers: Int, shape: Int, time_ns: Int, identity: Int, total: Int
) -> None:
    """Write a packet into the ring; before it is counted in D_PACKETS. `shape`: 512 * its length + its flags; `total`:
    its `payload_sum`, or -1."""
    row = d[key, D_PACKETS] & (RECENT - 1)
    recent[key, row, R_NUMBERS] = numbers
    recent[key, row, R_SHAPE] = shape & _SHAPE | (total + 1) << _SUM_AT
    recent[key, row, R_TIME_NS] = time_ns
    recent[key, row, R_IDENTITY] = identity


@inline
def differs(recent: Table, d: Table, key: Int, numbers: Int, shape: Int, total: Int) -> Flag:
    """Whether the last of the recent packets with the same bytes of the stream had another `payload_sum`."""
    count = d[key, D_PACKETS]
    for back in range(1, min(count, RECENT) + 1):
        row = (count - back) & (RECENT - 1)
        same = (recent[key, row, R_NUMBERS] ^ numbers) & 0xFFFFFFFF == 0
        if same and (recent[key, row, R_SHAPE] & _SHAPE) >> 9 == shape >> 9:
            other = (recent[key, row, R_SHAPE] >> _SUM_AT) - 1
            return total >= 0 and other >= 0 and other != total
    return False


@inline
def duplicate(d: Table, key: Int, start: Int, stop: Int, captured_stop: Int) -> None:
    """Captured bytes [start, min(stop, captured_stop)) came before, or belong to a gap already declared."""
    stop = min(stop, captured_stop)
    if stop <= start:
        return
    late = np.int64(0)
    for i in range(LATE_RANGES):
        low = max(start, d[key, D_LATE_0 + 2 * i])
        high = min(stop, d[key, D_LATE_0 + 2 * i + 1])
        if high > low:
            late += high - low
    late = min(late, stop - start)
    d[key, D_LATE] += late
    d[key, D_DUPLICATE] += stop - start - late
