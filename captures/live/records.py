"""Records between one form and another: a ring's blocks to pcap, pcap to pcapng, a stream cut where records end.

In: bytes. Out: bytes, and how many packets they are. Kernels, because nothing here may cost a Python object a packet.
Rules: numbers are little-endian, as on every machine that this runs on; lengths come from the kernel or from a tool,
and are checked all the same.

Sources: linux/if_packet.h (TPACKET_V3), draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng,
tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html.
"""

from __future__ import annotations

import numpy as np

from kwire.captures.kernels import Bytes, Int, copy_bytes, inline, kernel
from kwire.captures.links import little16, little32

RECORD_HEADER = 16
BLOCK_OVERHEAD = 32
"""Bytes of an enhanced packet block besides the packet."""

COOKED_HEADER = 20
ETHERNET_ADDRESSES = 12

# Where things are in a TPACKET_V3 block, its packets' headers, and the address behind each.
_BLOCK_PACKETS, _BLOCK_FIRST = 12, 16
_NEXT, _SECONDS, _NANOSECONDS, _CAPTURED, _LENGTH, _STATUS, _MAC, _TCI, _TPID = 0, 4, 8, 12, 16, 20, 24, 32, 36
_PROTOCOL, _INDEX, _KIND, _DIRECTION, _ADDRESS_LENGTH, _ADDRESS = 50, 52, 56, 58, 59, 60
_HEADER = 68
_LOOPBACK, _OUTGOING = 772, 4
_VLAN_VALID, _TPID_VALID = 1 << 4, 1 << 6


def as_bytes(data: bytes | memoryview) -> np.ndarray:
    """uint8: bytes for kernels, read-only, so that all kinds of memory are one kind of argument, compiled once."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


@inline
def put32(b: Bytes, at: Int, value: Int) -> None:
    for i in range(4):
        b[at + i] = np.uint8((value >> (8 * i)) & 255)


@inline
def put16(b: Bytes, at: Int, value: Int) -> None:
    """In network order."""
    b[at] = np.uint8((value >> 8) & 255)
    b[at + 1] = np.uint8(value & 255)


@kernel
def fit(b: Bytes, at: Int, end: Int, room: Int, overhead: Int, largest: Int) -> Int:
    """Whole pcap records of b[at:end] that fit in `room` bytes, where each takes its packet, padded to four bytes if
    `overhead` is that of a block, and `overhead`. Returns (where they end, packets, bytes they take); where they end is
    -1 where a record claims more than `largest`."""
    packets, used = np.int64(0), np.int64(0)
    while end - at >= RECORD_HEADER:
        captured = little32(b, at + 8)
        if captured > largest:
            return np.int64(-1), packets, used
        size = overhead + captured
        if overhead == BLOCK_OVERHEAD:
            size = (size + 3) & ~3
        if end - at < RECORD_HEADER + captured or used + size > room:
            break
        at += RECORD_HEADER + captured
        used += size
        packets += 1
    return np.int64(at), packets, used


@kernel
def to_blocks(b: Bytes, at: Int, end: Int, out: Bytes, ticks: Int) -> Int:
    """Whole pcap records b[at:end] as enhanced packet blocks of interface 0 in `out`, which has room for what `fit`
    says. `ticks`: of the clock, in a second. Returns how far `out` was filled."""
    to = np.int64(0)
    while at < end:
        captured = little32(b, at + 8)
        size = (BLOCK_OVERHEAD + captured + 3) & ~3
        time = little32(b, at) * ticks + little32(b, at + 4)
        put32(out, to, np.int64(6))
        put32(out, to + 4, size)
        put32(out, to + 8, np.int64(0))
        put32(out, to + 12, time >> 32)
        put32(out, to + 16, time)
        put32(out, to + 20, captured)
        put32(out, to + 24, little32(b, at + 12))
        copy_bytes(out, to + 28, b, at + RECORD_HEADER, captured)
        for i in range(28 + captured, size - 4):
            out[to + i] = 0
        put32(out, to + size - 4, size)
        to += size
        at += RECORD_HEADER + captured
    return to


@kernel
def from_ring(b: Bytes, at: Int, size: Int, out: Bytes, snaplen: Int, cooked: Int) -> Int:
    """The packets of a TPACKET_V3 block, b[at:at + size], as pcap records in `out`, which is twice as large. `cooked`:
    packets come without link header, and get one that says where they were seen (LINUX_SLL2). What loopback sends
    comes again as what it receives, and is left out. Returns (how far `out` was filled, packets)."""
    packets = little32(b, at + _BLOCK_PACKETS)
    p = at + little32(b, at + _BLOCK_FIRST)
    to, packets_out = np.int64(0), np.int64(0)
    for _ in range(packets):
        if p + _HEADER > at + size:
            break
        mac = p + little16(b, p + _MAC)
        captured = little32(b, p + _CAPTURED)
        length = little32(b, p + _LENGTH)
        if mac + captured > at + size:
            break
        if not (little16(b, p + _KIND) == _LOOPBACK and b[p + _DIRECTION] == _OUTGOING):
            vlan = (little32(b, p + _STATUS) & _VLAN_VALID) != 0 and cooked == 0 and captured >= ETHERNET_ADDRESSES
            added = COOKED_HEADER if cooked != 0 else 4 if vlan else 0
            stored = min(captured + added, snaplen)
            put32(out, to, little32(b, p + _SECONDS))
            put32(out, to + 4, little32(b, p + _NANOSECONDS))
            put32(out, to + 8, stored)
            put32(out, to + 12, length + added)
            to += RECORD_HEADER
            if cooked != 0:
                out[to], out[to + 1] = b[p + _PROTOCOL], b[p + _PROTOCOL + 1]
                out[to + 2], out[to + 3] = 0, 0
                index = little32(b, p + _INDEX)
                put16(out, to + 4, index >> 16)
                put16(out, to + 6, index)
                put16(out, to + 8, little16(b, p + _KIND))
                out[to + 10], out[to + 11] = b[p + _DIRECTION], b[p + _ADDRESS_LENGTH]
                copy_bytes(out, to + 12, b, p + _ADDRESS, np.int64(8))
                copy_bytes(out, to + COOKED_HEADER, b, mac, captured)
            elif vlan:
                copy_bytes(out, to, b, mac, np.int64(ETHERNET_ADDRESSES))
                tag = little16(b, p + _TPID) if (little32(b, p + _STATUS) & _TPID_VALID) != 0 else np.int64(0x8100)
                put16(out, to + ETHERNET_ADDRESSES, tag)
                put16(out, to + ETHERNET_ADDRESSES + 2, little32(b, p + _TCI))
                copy_bytes(out, to + ETHERNET_ADDRESSES + 4, b, mac + ETHERNET_ADDRESSES, captured - ETHERNET_ADDRESSES)
            else:
                copy_bytes(out, to, b, mac, captured)
            to += stored
            packets_out += 1
        following = little32(b, p + _NEXT)
        if following == 0:
            break
        p += following
    return to, packets_out
