"""The forger is right: dpkt and scapy, which share nothing with it, read back what it wrote."""

from __future__ import annotations

import io
import random
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import forge
from tests.captures.forge import (
    ETHERNET,
    IPV4,
    IPV6,
    LOOP,
    NULL,
    RAW,
    SLL,
    SLL2,
    TO_BROKER,
    TO_CLIENT,
    Record,
    Segment,
    Write,
    converse,
)
from tests.shared import capture_files, sample_folders

SIX = {"client": ("2001:db8::1", 40000), "broker": ("2001:db8::2", 9092)}
WRITES = [
    Write(TO_BROKER, bytes(range(256)) * 10),
    Write(TO_CLIENT, b"answer"),
    Write(TO_BROKER, b"second", time_ns=forge.START_NS + 10**9),
    Write(TO_CLIENT, b"x" * 5000),
]
SENT = {
    direction: b"".join(write.data for write in WRITES if write.to_broker == direction) for direction in (True, False)
}


def stream(segments: list[Segment], source: tuple[str, int], start: int) -> bytes:
    """Reassemble one direction, a byte at a time: the first copy of each byte, holes as zeros."""
    there: dict[int, int] = {}
    for segment in segments:
        if segment.source == source:
            for position, byte in enumerate(segment.payload, (segment.sequence - start + 2**31) % 2**32 - 2**31):
                there.setdefault(position, byte)
    return bytes(there.get(position, 0) for position in range(max(there, default=-1) + 1))


def both(segments: list[Segment], client_isn: int = 1000, broker_isn: int = 500_000) -> dict[bool, bytes]:
    client, broker = segments[0].source, segments[0].target
    return {
        TO_BROKER: stream(segments, client, client_isn + 1),
        TO_CLIENT: stream(segments, broker, broker_isn + 1),
    }


def test_a_conversation_carries_what_was_written_in_order() -> None:
    segments = converse(WRITES)
    assert both(segments) == SENT
    assert [segment.time_ns for segment in segments] == sorted(segment.time_ns for segment in segments)
    assert max(len(segment.payload) for segment in segments) == 1448
    assert Counter(bool(segment.flags & forge.SYN) for segment in segments)[True] == 2
    assert next(segment for segment in segments if segment.payload == b"second").time_ns == forge.START_NS + 10**9


def test_every_acknowledgement_is_what_the_other_side_has_sent() -> None:
    following: dict[Any, int] = {}
    for segment in converse(WRITES, client_isn=2**32 - 700, broker_isn=2**32 - 1):
        if segment.flags & forge.ACK:
            assert segment.acknowledgement == following[segment.target, segment.source]
        assert segment.sequence == following.get((segment.source, segment.target), segment.sequence)
        length = len(segment.payload) + bool(segment.flags & (forge.SYN | forge.FIN))
        following[segment.source, segment.target] = (segment.sequence + length) % 2**32


def test_sequence_numbers_wrap() -> None:
    segments = converse(WRITES, client_isn=2**32 - 700)
    assert min(segment.sequence for segment in segments if segment.source[1] == 40000) < 3000
    assert both(segments, client_isn=2**32 - 700)[TO_BROKER] == SENT[TO_BROKER]


def test_midstream_has_no_handshake_and_no_close() -> None:
    segments = converse(WRITES, handshake=False, close=None, acks=False)
    assert not any(segment.flags & (forge.SYN | forge.FIN | forge.RST) for segment in segments)
    assert all(segment.payload for segment in segments)
    assert both(segments) == SENT


def test_a_reset_is_the_last_packet() -> None:
    assert converse(WRITES, close="rst")[-1].flags & forge.RST


@pytest.mark.parametrize("ends", [{}, SIX], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 1447, 1448])
def test_scapy_finds_the_checksums_right(ends: Any, length: int) -> None:
    from scapy.layers.inet import IP, TCP
    from scapy.layers.inet6 import IPv6

    segment = converse([Write(TO_BROKER, bytes(range(251)) * 6)], **ends)[3]
    data = forge.tcp_ip(replace(segment, payload=bytes(length)))
    kind = IPv6 if ends else IP
    read = kind(data)
    sums = (read[TCP].chksum, getattr(read, "chksum", None))
    del read[TCP].chksum
    if not ends:
        del read.chksum
    again = kind(bytes(read))
    assert (again[TCP].chksum, getattr(again, "chksum", None)) == sums
    assert bytes(read[TCP].payload) == bytes(length)


def test_a_wrong_checksum_is_wrong_on_request() -> None:
    segment = converse(WRITES)[3]
    right, wrong = forge.tcp_ip(segment), forge.tcp_ip(segment, wrong_checksum=True)
    assert right[36:38] != wrong[36:38]
    assert right[:36] + right[38:] == wrong[:36] + wrong[38:]


@given(st.binary(max_size=200))
def test_the_internet_checksum_is_the_sum_of_rfc_1071(data: bytes) -> None:
    total = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert forge.internet_checksum(data) == total ^ 0xFFFF


def test_ip_options_extension_headers_and_tcp_options_are_where_dpkt_looks() -> None:
    four = converse([Write(TO_BROKER, b"data")])[3]
    ip = dpkt.ip.IP(forge.tcp_ip(four, ip_options=b"\x01" * 8, tcp_options=b"\x01" * 12))
    assert (ip.hl, ip.data.off, ip.data.data) == (7, 8, b"data")
    six = converse([Write(TO_BROKER, b"data")], client=("::1", 40000), broker=("::2", 9092))[3]
    ip6 = dpkt.ip6.IP6(forge.tcp_ip(six, extension_headers=[(0, bytes(8)), (60, bytes(16))]))
    assert [type(header).__name__ for header in ip6.all_extension_headers] == ["IP6HopOptsHeader", "IP6DstOptsHeader"]
    assert ip6.data.data == b"data"


@pytest.mark.parametrize("link", [ETHERNET, RAW, NULL, LOOP, SLL, SLL2, IPV4, IPV6])
@pytest.mark.parametrize("ends", [{}, SIX], ids=["ipv4", "ipv6"])
def test_what_is_rendered_reads_back(link: int, ends: Any) -> None:
    if (link, bool(ends)) in ((IPV4, True), (IPV6, False)):
        pytest.skip("this link type carries the other IP version only")
    segments = converse(WRITES, **ends)
    assert forge.segments_of(forge.rendered(segments, link), link) == segments


def test_vlan_tags_nest_and_padding_is_not_payload() -> None:
    segments = converse([Write(TO_BROKER, b"q")])
    records = forge.rendered(segments, vlans=[(0x88A8, 7), (0x8100, 42)])
    frame = dpkt.ethernet.Ethernet(records[3].data)
    assert [tag.id for tag in frame.vlan_tags] == [7, 42]
    assert all(len(record.data) >= 60 for record in records)
    assert forge.segments_of(records) == segments


@pytest.mark.parametrize("nanoseconds", [False, True])
@pytest.mark.parametrize("big_endian", [False, True])
def test_a_pcap_file_reads_back_by_dpkt_and_by_us(nanoseconds: bool, big_endian: bool, tmp_path: Path) -> None:
    segments = converse(WRITES, start_ns=forge.START_NS + 123, step_ns=1_001_000)
    records = forge.rendered(segments)
    data = forge.pcap(forge.cut(records, 80), nanoseconds=nanoseconds, big_endian=big_endian)
    by_dpkt = list(dpkt.pcap.Reader(io.BytesIO(data)))
    assert [bytes(frame) for _, frame in by_dpkt] == [record.data[:80] for record in records]
    path = tmp_path / "forged.pcap"
    path.write_bytes(data)
    link, again = forge.loaded(path)
    unit = 1 if nanoseconds else 1000
    assert link == ETHERNET
    assert [record.time_ns for record in again] == [record.time_ns // unit * unit for record in records]
    assert [record.wire_length for record in again] == [record.wire_length for record in records]


@pytest.mark.parametrize("resolution", [None, 6, 9, 3, 0x80 | 20])
@pytest.mark.parametrize("block", ["enhanced", "obsolete"])
@pytest.mark.parametrize("big_endian", [False, True])
def test_a_pcapng_file_reads_back_by_scapy(resolution: int | None, block: Any, big_endian: bool) -> None:
    from scapy.utils import RawPcapNgReader

    records = forge.rendered(converse(WRITES, start_ns=forge.START_NS))
    data = forge.pcapng(records, block=block, big_endian=big_endian, resolution=resolution, comment="why")
    reader = RawPcapNgReader(io.BytesIO(data))
    power = 6 if resolution is None else resolution
    per_second = 2 ** (power & 127) if power & 128 else 10**power
    for record in records:
        frame, meta = reader._read_packet()
        assert frame == record.data
        assert meta.linktype == ETHERNET
        ticks = (meta.tshigh << 32) + meta.tslow
        assert ticks == record.time_ns * per_second // 10**9
        assert meta.tsresol == per_second
    reader.close()


def test_pcapng_interfaces_offsets_and_simple_blocks() -> None:
    records = [Record(5_000_000_000, b"a" * 61, 61, 0), Record(6_000_000_000, b"b" * 62, 62, 1)]
    data = forge.pcapng(records, links=(ETHERNET, RAW), offset_seconds=2)
    blocks = []
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        assert struct.unpack_from("<I", data, at + size - 4)[0] == size
        blocks.append((kind, data[at : at + size]))
        at += size
    assert [kind for kind, _ in blocks] == [0x0A0D0D0A, 1, 1, 6, 6]
    assert struct.unpack_from("<H", blocks[2][1], 8)[0] == RAW
    interface, high, low = struct.unpack_from("<III", blocks[4][1], 8)
    assert (interface, (high << 32) + low) == (1, 4_000_000_000)
    simple = forge.pcapng(records[:1], block="simple")
    assert simple.endswith(b"a" * 61 + bytes(3) + struct.pack("<I", 80))


# --------------------------------------------------------------------------------------------------------- impairments


def test_impairments_of_tcp_keep_the_bytes() -> None:
    """Whatever the seed: splitting, merging, overlapping, duplicating, retransmitting and reordering lose nothing."""
    for seed in range(20):
        rng = random.Random(seed)
        segments = converse(WRITES, mss=300)
        segments = forge.resegmented(segments, rng, 100) if seed % 2 else forge.split(segments, rng, 0.5)
        segments = forge.overlapped(segments, rng, 0.5)
        segments = forge.merged(segments, rng, 0.3)
        segments = forge.duplicated(segments, rng, 0.2)
        segments = forge.retransmitted(segments, rng, 0.2)
        segments = [segments[0], *forge.reordered(segments[1:], rng, 0.3)]
        assert both(segments) == SENT, f"seed {seed}"


def test_each_impairment_does_what_it_says() -> None:
    segments = converse(WRITES, mss=100)
    count = len(segments)
    rng = random.Random(7)
    assert 0.5 * count < len(forge.dropped(segments, rng, 0.3)) < 0.9 * count
    assert len(forge.duplicated(segments, rng, 1.0)) == 2 * count
    assert len(forge.retransmitted(segments, rng, 1.0)) == 2 * count
    late = forge.reordered(segments, rng, 0.5, within=3)
    assert [segment.sequence for segment in late] != [segment.sequence for segment in segments]
    assert [segment.time_ns for segment in late] == [segment.time_ns for segment in segments]
    places = {
        (segment.flow, segment.sequence, segment.flags, segment.acknowledgement): index
        for index, segment in enumerate(segments)
    }
    moves = [
        index - places[segment.flow, segment.sequence, segment.flags, segment.acknowledgement]
        for index, segment in enumerate(late)
    ]
    assert max(map(abs, moves)) >= 1
    assert max(moves) <= 3
    assert max(len(segment.payload) for segment in forge.merged(segments, rng, 1.0)) > 1000
    assert len(forge.split(segments, rng, 1.0)) > count
    assert sum(len(segment.payload) for segment in forge.overlapped(segments, rng, 1.0)) > sum(map(len, SENT.values()))
    stepped = forge.stepped(segments, 5, -(10**9))
    assert [segment.time_ns - other.time_ns for segment, other in zip(stepped, segments, strict=True)][4:6] == [
        0,
        -(10**9),
    ]


def test_the_same_seed_makes_the_same_capture() -> None:
    def once(seed: int) -> list[Segment]:
        rng = random.Random(seed)
        return forge.reordered(forge.dropped(forge.split(converse(WRITES), rng, 0.5), rng, 0.1), rng, 0.2)

    assert once(1) == once(1)
    assert once(1) != once(2)


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_a_real_capture_reads_the_same_as_by_dpkt_and_comes_back(folder: Path, tmp_path: Path) -> None:
    (path,) = capture_files(folder)
    link, records = forge.loaded(path)
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(forge.pcap(records, link))
    assert forge.loaded(copy) == (link, records)
    with copy.open("rb") as file:
        assert [bytes(data) for _, data in dpkt.pcap.Reader(file)] == [record.data for record in records]
    segments = forge.segments_of(records, link)
    assert len(segments) == len(records)
    assert forge.segments_of(forge.rendered(segments, link), link) == segments


def test_what_cannot_be_forged_is_said() -> None:
    with pytest.raises(ValueError, match="zero_length"):
        forge.tcp_ip(converse([Write(TO_BROKER, bytes(70_000))], mss=70_000)[3])
    with pytest.raises(ValueError, match="IP version"):
        forge.tcp_ip(converse([Write(TO_BROKER, b"q")], client=("::1", 1))[0])
    with pytest.raises(ValueError, match="mss"):
        converse(WRITES, mss=0)
    with pytest.raises(ValueError, match="link type"):
        forge.framed(forge.tcp_ip(converse(WRITES)[0]), 147)
