"""A ring's blocks to pcap records, pcap records to pcapng blocks, records that fit: against reference implementations.

(proves: captures/live/records.py)
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kwire.captures.files.write import Record, pcap
from kwire.captures.live import records
from tests.captures.live.scripted import HEADER_BYTES, packets_in
from tests.captures.reading import read_bytes

PACKET = st.binary(max_size=70)
LARGEST = 1 << 20


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def stored(packets: list[bytes]) -> bytes:
    """Records without file header; packet i came at i seconds and i nanoseconds, 3 bytes longer than it is."""
    packet_records = [Record(i * 10**9 + i, data, len(data) + 3) for i, data in enumerate(packets)]
    return pcap(packet_records, nanoseconds=True)[HEADER_BYTES:]


@given(st.lists(PACKET, max_size=8), st.integers(0, 600), st.booleans(), st.integers(0, 40))
def test_as_many_whole_records_as_fit(packets: list[bytes], room: int, blocks: bool, cut: int) -> None:
    overhead = records.BLOCK_OVERHEAD if blocks else records.RECORD_HEADER
    data = stored(packets)
    data = data[: max(0, len(data) - cut)]
    end = count = used = 0
    for packet in packets:
        size = overhead + len(packet)
        size += -size % 4 if blocks else 0
        if end + 16 + len(packet) > len(data) or used + size > room:
            break
        end, count, used = end + 16 + len(packet), count + 1, used + size
    assert records.fit(as_array(data), 0, len(data), room, overhead, LARGEST) == (end, count, used)


def test_a_record_that_claims_too_much_is_no_record() -> None:
    data = stored([b"x"]) + struct.pack("<IIII", 0, 0, LARGEST + 1, LARGEST + 1)
    assert records.fit(as_array(data), 0, len(data), 1 << 30, records.RECORD_HEADER, LARGEST)[0] == -1


@given(st.lists(PACKET, max_size=8))
def test_packet_blocks_hold_the_same(packets: list[bytes]) -> None:
    data = stored(packets)
    end, _, size = records.fit(as_array(data), 0, len(data), 1 << 30, records.BLOCK_OVERHEAD, LARGEST)
    out = np.full(size, 0xAA, np.uint8)
    assert records.to_blocks(as_array(data), 0, end, out, 10**9) == size
    expected = b""
    for i, packet in enumerate(packets):
        body = struct.pack("<IIIII", 0, *divmod(i * 10**9 + i, 1 << 32), len(packet), len(packet) + 3)
        body += packet + bytes(-len(packet) % 4)
        expected += struct.pack("<II", 6, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
    assert out.tobytes() == expected


SEEN = st.tuples(
    PACKET, st.sampled_from([0, 16, 80]), st.integers(0, 4095), st.sampled_from([1, 772]), st.sampled_from([0, 4])
)
"""Bytes, VLAN status bits, tag, kind of hardware, direction."""


def ring_block(packets: list[tuple[bytes, int, int, int, int]], size: int = 1 << 12) -> bytes:
    """A block as Linux fills one."""
    out = bytearray(struct.pack("<IIIIII", 1, 48, 1, len(packets), 48, 0)) + bytes(24)
    for i, (data, status, tag, kind, direction) in enumerate(packets):
        mac = 68 + 14
        length = -(-(mac + len(data)) // 16) * 16
        following = length if i + 1 < len(packets) else 0
        head = struct.pack("<IIIIIIHH", following, i, i * 7, len(data), len(data) + 5, status | 1, mac, mac)
        head += struct.pack("<IIHH", 0, tag, 0x88A8, 0) + bytes(8)
        address = struct.pack("<H", 17) + b"\x08\x00" + struct.pack("<iHBB8s", 3, kind, direction, 6, b"abcdef")
        out += (head + address + bytes(14) + data).ljust(length, b"\0")
    assert len(out) <= size
    return bytes(out.ljust(size, b"\0"))


@given(st.lists(SEEN, max_size=8), st.booleans(), st.sampled_from([262_144, 40]))
def test_a_ring_block_as_records(packets: list[tuple[bytes, int, int, int, int]], cooked: bool, snaplen: int) -> None:
    """VLAN tags, which the kernel strips, are back; a cooked packet says where it was seen; what loopback sends, and
    so receives, is there once."""
    block = ring_block(packets)
    out = np.empty(2 * len(block), np.uint8)
    filled, count = records.from_ring(as_array(block), 0, len(block), out, snaplen, int(cooked))
    expected = []
    for i, (data, status, tag, kind, direction) in enumerate(packets):
        if (kind, direction) == (772, 4):
            continue
        whole = data
        if cooked:
            whole = struct.pack(">2sHIHBB8s", b"\x08\x00", 0, 3, kind, direction, 6, b"abcdef") + data
        elif status and len(data) >= 12:
            whole = data[:12] + struct.pack(">HH", 0x88A8 if status & 64 else 0x8100, tag) + data[12:]
        length = len(whole) + 5
        expected.append(struct.pack("<IIII", i, i * 7, min(len(whole), snaplen), length) + whole[:snaplen])
    assert packets_in(out[:filled].tobytes()) == expected
    assert count == len(expected)


@given(st.binary(min_size=200, max_size=400), st.integers(0, 399))
def test_no_block_makes_it_read_or_write_outside(noise: bytes, place: int) -> None:
    """The kernel fills blocks; still, what claims to lie outside is left out."""
    block = bytearray(ring_block([(b"abc", 0, 0, 1, 0), (b"defgh", 0, 0, 1, 0)], 400))
    block[place : place + 4] = noise[:4]
    block = block[:400]
    out = np.full(800, 0x55, np.uint8)
    filled, count = records.from_ring(as_array(bytes(block)), 0, 400, out, 262_144, 0)
    assert 0 <= filled <= 800
    assert len(packets_in(out[:filled].tobytes())) == count


def test_blocks_are_what_readers_of_captures_take(tmp_path: Path) -> None:
    data = stored([bytes([i]) * i for i in range(5)])
    end, _, size = records.fit(as_array(data), 0, len(data), 1 << 30, records.BLOCK_OVERHEAD, LARGEST)
    out = np.empty(size, np.uint8)
    records.to_blocks(as_array(data), 0, end, out, 10**9)
    from kwire.captures.files.write import pcapng

    head = pcapng([], resolution=9)
    reading = read_bytes(head + out.tobytes(), tmp_path)
    assert reading.counts["packets"] == 5
    assert (reading.files[0].first_ns, reading.files[0].last_ns) == (0, 4 * 10**9 + 4)
