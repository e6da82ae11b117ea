"""TCP checksums: is a segment's right, and what do its bytes add up to.

In: a segment's bytes in a buffer, and its end points. Out: sums of 16-bit numbers (RFC 1071), of headers and payload
apart: what of a payload is kept elsewhere can be summed up there. Rule: where none can be told, that is said.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures.kernels import Array, Bytes, Int, inline, shared

SUM_UNKNOWN, SUM_LEFT, SUM_RIGHT, SUM_BITS = 0, 1, 2, 2
"""What `checked` says of a checksum: it is wrong, and how much is to be looked up; none can be told; it is right."""

CHECKED_BITS: Final = 16 + SUM_BITS


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
def payload_sum(b: Bytes, words: Array, at: Int, count: Int) -> Int:
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
def checked(
    b: Bytes,
    words: Array,
    tcp_at: Int,
    payload_at: Int,
    length: Int,
    src_hi: Int,
    src_lo: Int,
    dst_hi: Int,
    dst_lo: Int,
) -> Int:
    """Check a segment whose bytes are all there against its checksum, as one number of CHECKED_BITS.

    The low SUM_BITS are its `payload_sum`, the flags are above. 0 if the checksum cannot be computed."""
    headers = header_sum(b, tcp_at, payload_at, length, src_hi, src_lo, dst_hi, dst_lo)
    total = payload_sum(b, words, payload_at, length)
    if headers < 0:
        return total << SUM_BITS | SUM_LEFT
    return total << SUM_BITS | SUM_RIGHT if (headers + total) % 0xFFFF == 0 else np.int64(SUM_UNKNOWN)


@inline
def sums_of(sums: Int) -> tuple[Int, Int]:
    """Return (`payload_sum`, `header_sum` modulo 65,535) of a segment from a result of `checked` other than 0."""
    total = sums >> SUM_BITS
    return total, 0xFFFF - total if sums & SUM_RIGHT != 0 else np.int64(-1)
