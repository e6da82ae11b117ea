"""Tunnels and fragments: however a packet was wrapped or cut up on its way, its row is that of the plain packet."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.captures import dpkt_reference, forge
from tests.captures.dpkt_reference import Row
from tests.captures.forge import ETHERNET, RAW, TO_BROKER, TO_CLIENT, Record, Write
from tests.captures.reading import Reading, read_bytes

WRITES = [Write(TO_BROKER, bytes(range(256)) * 8), Write(TO_CLIENT, b"answer"), Write(TO_CLIENT, b"x" * 3000)]
FOUR = forge.converse(WRITES)
SIX = forge.converse(WRITES, client=("2001:db8::1", 40000), broker=("2001:db8::ffff:2", 9092))
MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}


def scapy() -> Any:
    from scapy import all as everything
    from scapy.contrib import erspan, geneve, mpls  # noqa: F401  (they bind their layers)

    return everything


def outer(version: int) -> Any:
    s = scapy()
    ip = s.IP(src="192.0.2.1", dst="192.0.2.2") if version == 4 else s.IPv6(src="2001:db8:f::1", dst="2001:db8:f::2")
    return s.Ether(**MACS) / ip


def vxlan(port: int) -> Callable[[bytes, int], bytes]:
    def wrap(ip: bytes, version: int) -> bytes:
        s = scapy()
        frame = forge.framed(ip, ETHERNET)
        return bytes(outer(version) / s.UDP(sport=55555, dport=port) / s.VXLAN(vni=7, flags=8) / s.Raw(frame))

    return wrap


def geneve(options: int, ethernet: bool) -> Callable[[bytes, int], bytes]:
    def wrap(ip: bytes, version: int) -> bytes:
        from scapy.contrib.geneve import GENEVE, GeneveOptions

        s = scapy()
        kind = 0x6558 if ethernet else (0x0800 if ip[0] >> 4 == 4 else 0x86DD)
        some = [GeneveOptions(classid=0x0102, type=0x80, data=bytes(range(each * 4))) for each in range(options)]
        inside = forge.framed(ip, ETHERNET) if ethernet else ip
        return bytes(outer(version) / s.UDP(dport=6081) / GENEVE(proto=kind, vni=9, options=some) / s.Raw(inside))

    return wrap


def gre(ethernet: bool, **fields: Any) -> Callable[[bytes, int], bytes]:
    def wrap(ip: bytes, version: int) -> bytes:
        s = scapy()
        kind = 0x6558 if ethernet else (0x0800 if ip[0] >> 4 == 4 else 0x86DD)
        return bytes(
            outer(version) / s.GRE(proto=kind, **fields) / s.Raw(forge.framed(ip, ETHERNET) if ethernet else ip)
        )

    return wrap


def erspan(kind: str) -> Callable[[bytes, int], bytes]:
    def wrap(ip: bytes, version: int) -> bytes:
        from scapy.contrib import erspan as e

        s = scapy()
        header = {
            "I": lambda: s.GRE(proto=0x88BE),
            "II": lambda: s.GRE(proto=0x88BE, seqnum_present=1, sequence_number=5) / e.ERSPAN_II(session_id=3),
            "III": lambda: s.GRE(proto=0x22EB, seqnum_present=1, sequence_number=5) / e.ERSPAN_III(session_id=3),
            "III with a platform's header": lambda: (
                s.GRE(proto=0x22EB, seqnum_present=1, sequence_number=5)
                / e.ERSPAN_III(session_id=3, o=1)
                / e.ERSPAN_PlatformSpecific()
            ),
        }[kind]()
        return bytes(outer(version) / header / s.Raw(forge.framed(ip, ETHERNET)))

    return wrap


def ip_in_ip(ip: bytes, version: int) -> bytes:
    whole = outer(version)
    setattr(whole.payload, "proto" if version == 4 else "nh", 4 if ip[0] >> 4 == 4 else 41)
    return bytes(whole / scapy().Raw(ip))


def mpls(labels: int, inside: str) -> Callable[[bytes, int], bytes]:
    def wrap(ip: bytes, version: int) -> bytes:
        from scapy.contrib.mpls import MPLS

        s = scapy()
        stack: Any = MPLS(label=1000, s=labels == 1)
        for label in range(1, labels):
            stack = stack / MPLS(label=1000 + label, s=label == labels - 1)
        frame = forge.framed(ip, ETHERNET)
        load = {"IP": ip, "frame": frame, "control word": b"\0\0\0\5" + frame}[inside]
        if version == 4:
            return bytes(s.Ether(**MACS, type=0x8847) / stack / s.Raw(load))
        return bytes(outer(4) / s.GRE(proto=0x8847) / stack / s.Raw(load))

    return wrap


def mpls_in_udp(ip: bytes, version: int) -> bytes:
    from scapy.contrib.mpls import MPLS

    s = scapy()
    return bytes(outer(version) / s.UDP(sport=49152, dport=6635, chksum=0) / MPLS(label=1000, s=1) / s.Raw(ip))


def tzsp(*fields: bytes) -> Callable[[bytes, int], bytes]:
    """As MikroTik's routers send it: version 1, a received packet, Ethernet, fields, and their end."""

    def wrap(ip: bytes, version: int) -> bytes:
        s = scapy()
        load = b"\1\0\0\1" + b"".join(fields) + b"\1" + forge.framed(ip, ETHERNET)
        return bytes(outer(version) / s.UDP(sport=50000, dport=37008, chksum=0) / s.Raw(load))

    return wrap


UNKNOWN_TO_DPKT = ("MPLS in UDP", "MPLS pseudowire", "TZSP")
"""Beginnings of names of tunnels."""

TUNNELS: dict[str, Callable[[bytes, int], bytes]] = {
    "VXLAN": vxlan(4789),
    "VXLAN on Linux's first port": vxlan(8472),
    "GENEVE": geneve(0, True),
    "GENEVE with options": geneve(3, True),
    "GENEVE with IP": geneve(1, False),
    "GRE": gre(False),
    "GRE with Ethernet": gre(True),
    "NVGRE": gre(True, key_present=1, key=0x123400),
    "GRE with all fields": gre(False, chksum_present=1, key_present=1, key=1, seqnum_present=1, sequence_number=2),
    "ERSPAN I": erspan("I"),
    "ERSPAN II": erspan("II"),
    "ERSPAN III": erspan("III"),
    "ERSPAN III with a platform's header": erspan("III with a platform's header"),
    "IP in IP": ip_in_ip,
    "MPLS": mpls(1, "IP"),
    "MPLS, three labels": mpls(3, "IP"),
    "MPLS pseudowire": mpls(2, "frame"),
    "MPLS pseudowire with a control word": mpls(2, "control word"),
    "MPLS in UDP": mpls_in_udp,
    "TZSP": tzsp(),
    "TZSP with fields": tzsp(b"\x0a\1\xd8", b"\0\0", b"\x29\2\0\x50"),
}


def plain(segments: list[forge.Segment], folder: Path) -> list[Row]:
    return read_bytes(forge.pcap(forge.rendered(segments)), folder).rows


def placeless(rows: list[Row]) -> list[Row]:
    return [replace(row, record_at=0) for row in rows]


def recorded(time_ns: int, data: bytes) -> Record:
    return Record(time_ns, data, len(data))


@pytest.mark.parametrize("version", [4, 6], ids=["over IPv4", "over IPv6"])
@pytest.mark.parametrize("segments", [FOUR, SIX], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("name", TUNNELS)
def test_a_tunnel_is_looked_through(name: str, segments: list[forge.Segment], version: int, tmp_path: Path) -> None:
    data = forge.pcap(
        [recorded(segment.time_ns, TUNNELS[name](forge.tcp_ip(segment), version)) for segment in segments]
    )
    reading = read_bytes(data, tmp_path)
    assert placeless(reading.rows) == placeless(plain(segments, tmp_path))
    assert reading.rows == read_bytes(data, tmp_path, window_bytes=300).rows
    assert reading.nonzero == {"tcp": len(segments)}
    if not name.startswith(UNKNOWN_TO_DPKT):
        assert reading.rows == dpkt_reference.rows(data)


@pytest.mark.parametrize("outside", ["VXLAN", "GENEVE with IP", "GRE", "IP in IP", "ERSPAN II"])
@pytest.mark.parametrize("inside", ["VXLAN", "GENEVE with options", "GRE with Ethernet", "IP in IP", "ERSPAN III"])
def test_a_tunnel_in_a_tunnel(outside: str, inside: str, tmp_path: Path) -> None:
    records = []
    for segment in FOUR:
        wrapped = TUNNELS[inside](forge.tcp_ip(segment), 6)[14:]
        records.append(recorded(segment.time_ns, TUNNELS[outside](wrapped, 4)))
    data = forge.pcap(records)
    reading = read_bytes(data, tmp_path)
    assert placeless(reading.rows) == placeless(plain(FOUR, tmp_path))
    assert reading.rows == dpkt_reference.rows(data)


def test_what_is_wrapped_too_often_is_counted(tmp_path: Path) -> None:
    packet = forge.tcp_ip(FOUR[3])
    for depth in range(1, 9):
        packet = ip_in_ip(packet, 4)[14:]
        reading = read_bytes(forge.pcap([recorded(0, packet)], RAW), tmp_path)
        assert reading.nonzero == ({"tcp": 1} if depth <= 4 else {"not_tcp": 1}), depth


@pytest.mark.parametrize("name", TUNNELS)
def test_a_wrapped_frame_cut_at_any_byte_is_counted_once(name: str, tmp_path: Path) -> None:
    frame = TUNNELS[name](forge.tcp_ip(replace(FOUR[3], payload=b"some payload")), 4)
    seen = set()
    for size in range(len(frame)):
        reading = read_bytes(forge.pcap([Record(0, frame[:size], len(frame))]), tmp_path)
        [(what, count)] = reading.nonzero.items()
        assert count == 1
        if what == "tcp":
            assert b"some payload".startswith(reading.rows[0].payload)
            assert reading.rows[0].payload_length == 12
        seen.add(what)
    assert seen <= {"tcp", "headers_cut", "not_tcp", "not_ip"}
    assert {"tcp", "headers_cut"} <= seen


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (b"\1\4\0\1\1", "UDP port 37008 (TZSP without a frame of Ethernet)"),  # a keep-alive
        (b"\1\0\0\x12\1", "UDP port 37008 (TZSP without a frame of Ethernet)"),  # IEEE 802.11
    ],
)
def test_tzsp_without_a_frame_of_ethernet_is_counted(what: bytes, kind: str, tmp_path: Path) -> None:
    s = scapy()
    frame = bytes(outer(4) / s.UDP(dport=37008) / s.Raw(what + bytes(40)))
    reading = read_bytes(forge.pcap([recorded(0, frame)]), tmp_path)
    assert (reading.nonzero, reading.not_understood) == ({"not_tcp": 1}, {kind: 1})


@pytest.mark.parametrize(
    ("what", "at", "value"),
    [
        ("another UDP port", 36, 0x13),
        ("no VNI flag", 42, 0x00),
        ("reserved byte in use", 49, 0x01),
    ],
)
def test_what_only_looks_like_vxlan_is_udp(what: str, at: int, value: int, tmp_path: Path) -> None:
    frame = bytearray(vxlan(4789)(forge.tcp_ip(FOUR[3]), 4))
    frame[at] = value
    assert read_bytes(forge.pcap([recorded(0, bytes(frame))]), tmp_path).nonzero == {"not_tcp": 1}, what


def test_ethernet_padding_inside_and_outside_is_never_payload(tmp_path: Path) -> None:
    ack = replace(FOUR[3], payload=b"")
    frame = vxlan(4789)(forge.tcp_ip(ack), 4) + b"\xee" * 20
    [row] = read_bytes(forge.pcap([recorded(0, frame)]), tmp_path).rows
    assert (row.payload, row.payload_length) == (b"", 0)


# ------------------------------------------------------------------------------------------------------------ fragments


def fragments(ip: bytes, size: int, number: int) -> list[bytes]:
    """An IP packet in fragments of `size` payload bytes, made by scapy."""
    s = scapy()
    if ip[0] >> 4 == 4:
        packet = s.IP(ip)
        packet.flags, packet.id, packet.chksum = 0, number, None
        return [bytes(each) for each in s.fragment(packet, fragsize=size)]
    packet = s.IPv6(ip[:40]) / s.IPv6ExtHdrFragment(id=number) / s.Raw(ip[40:])
    packet.nh = 44
    packet.payload.nh = 6
    packet.plen = None
    out = [bytes(each) for each in s.fragment6(packet, size + 48)]
    assert out[0][40] == 6, "scapy leaves the protocol alone"
    return out


def cut_up(segments: list[forge.Segment], size: int = 400) -> list[tuple[int, list[bytes]]]:
    return [
        (segment.time_ns, fragments(forge.tcp_ip(segment), size, number + 1)) for number, segment in enumerate(segments)
    ]


def as_capture(groups: list[tuple[int, list[bytes]]]) -> bytes:
    return forge.pcap([recorded(time_ns, piece) for time_ns, pieces in groups for piece in pieces], RAW)


def numberless(rows: list[Row]) -> list[Row]:
    return [replace(row, record_at=0, number=0) for row in rows]


@pytest.mark.parametrize("segments", [FOUR, SIX], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("order", ["in order", "reversed", "shuffled", "twice each", "all twice"])
def test_fragments_are_put_together(segments: list[forge.Segment], order: str, tmp_path: Path) -> None:
    rng = random.Random(4)
    groups = cut_up(segments)
    assert max(len(pieces) for _, pieces in groups) == 4
    for _, pieces in groups:
        if order == "reversed":
            pieces.reverse()
        elif order == "shuffled":
            rng.shuffle(pieces)
        elif order == "twice each":
            pieces[:] = [piece for piece in pieces for _ in range(2 if len(pieces) > 1 else 1)]
        elif order == "all twice":
            pieces *= 2 if len(pieces) > 1 else 1
    data = as_capture(groups)
    reading = read_bytes(data, tmp_path)
    assert numberless(reading.rows) == numberless(plain(segments, tmp_path))
    captured = sum(len(pieces) for _, pieces in groups)
    assert reading.nonzero == {"tcp": len(segments), "reassembled": captured - len(segments)}
    for window_bytes in (600, 2000, 5000):
        assert read_bytes(data, tmp_path, window_bytes=window_bytes).rows == reading.rows
    if order in ("in order", "reversed", "shuffled"):
        assert reading.rows == dpkt_reference.rows(data), "numbers and places are those of the fragment that came last"


@pytest.mark.parametrize("segments", [FOUR, SIX], ids=["IPv4", "IPv6"])
def test_a_missing_fragment_leaves_the_others_counted(segments: list[forge.Segment], tmp_path: Path) -> None:
    for missing in range(4):
        [(_, pieces)] = cut_up([segments[3]])
        del pieces[missing]
        reading = read_bytes(as_capture([(0, pieces), *cut_up([segments[4]])]), tmp_path)
        assert reading.nonzero["fragment"] == 3
        assert len(reading.rows) == 1


def rewritten(pieces: list[bytes], index: int, offset: int, data: bytes, more: bool) -> bytes:
    """Another fragment of the same IPv4 packet, put together by hand."""
    head = bytearray(pieces[index][:20])
    head[2:4] = (20 + len(data)).to_bytes(2, "big")
    head[6:8] = (offset // 8 | (0x2000 if more else 0)).to_bytes(2, "big")
    return bytes(head) + data


def test_of_overlapping_fragments_the_first_copy_of_a_byte_counts(tmp_path: Path) -> None:
    segment = replace(FOUR[3], payload=b"a" * 480)  # 500 bytes with TCP's header: 200, 200, 100
    pieces = fragments(forge.tcp_ip(segment), 200, 7)
    assert len(pieces) == 3
    evil = rewritten(pieces, 0, 96, b"E" * 208, True)
    first = read_bytes(as_capture([(0, [evil, *pieces])]), tmp_path)
    assert [row.payload for row in first.rows] == [b"a" * 76 + b"E" * 208 + b"a" * 196]
    last = read_bytes(as_capture([(0, [*pieces[:2], evil, pieces[2]])]), tmp_path)
    assert [row.payload for row in last.rows] == [segment.payload]


def test_fragments_that_contradict_the_length_are_malformed(tmp_path: Path) -> None:
    segment = replace(FOUR[3], payload=b"a" * 480)
    pieces = fragments(forge.tcp_ip(segment), 200, 7)
    beyond = rewritten(pieces, 0, 504, b"E" * 8, True)
    other_end = rewritten(pieces, 0, 400, b"E" * 40, False)
    for evil in (beyond, other_end):
        reading = read_bytes(as_capture([(0, [pieces[2], evil, *pieces[:2]])]), tmp_path)
        assert reading.nonzero == {"tcp": 1, "malformed": 1, "reassembled": 2}
        assert reading.rows[0].payload == segment.payload
    too_long = rewritten(pieces, 0, 65_528, b"E" * 8, False)
    assert read_bytes(as_capture([(0, [too_long])]), tmp_path).nonzero == {"malformed": 1}


def test_a_fragment_that_the_snap_length_cut_completes_nothing(tmp_path: Path) -> None:
    [(_, pieces)] = cut_up([FOUR[3]])
    records = [Record(0, piece[:300] if index == 1 else piece, len(piece)) for index, piece in enumerate(pieces)]
    assert read_bytes(forge.pcap(records, RAW), tmp_path).nonzero == {"fragment": 4}


def test_a_number_that_is_used_again_later_is_another_packet(tmp_path: Path) -> None:
    """Half of a packet, and 31 s later a whole one of the same identification."""
    [(_, old)] = cut_up([replace(FOUR[3], payload=b"o" * 800)])
    [(_, new)] = cut_up([replace(FOUR[3], payload=b"n" * 800)])
    reading = read_bytes(as_capture([(0, old[:1]), (31 * 10**9, new)]), tmp_path)
    assert [row.payload for row in reading.rows] == [b"n" * 800]
    assert reading.nonzero == {"tcp": 1, "fragment": 1, "reassembled": 2}
    patient = read_bytes(as_capture([(0, old[:1]), (31 * 10**9, new)]), tmp_path, fragment_linger_ns=60 * 10**9)
    assert [row.payload[:1] for row in patient.rows] == [b"o"]


def test_packets_in_progress_are_bounded_and_the_oldest_gives_way(tmp_path: Path) -> None:
    groups = cut_up([replace(FOUR[3], payload=bytes([65 + number]) * 500) for number in range(5)])
    begun = [(0, pieces[:1]) for _, pieces in groups]
    ended = [(0, pieces[1:]) for _, pieces in groups]
    assert len(read_bytes(as_capture(begun + ended), tmp_path).rows) == 5
    reading = read_bytes(as_capture(begun + ended), tmp_path, fragmented_packets=3)
    assert reading.counts["tcp"] < 5
    # The newest three were there; the oldest one's end then took the place of the first of them, and so on.
    assert read_bytes(as_capture(begun + ended[2:]), tmp_path, fragmented_packets=3).counts["tcp"] == 3


@pytest.mark.parametrize("name", ["VXLAN", "GRE with Ethernet", "IP in IP"])
def test_fragments_of_a_tunnels_packets_and_in_them(name: str, tmp_path: Path) -> None:
    outside = [
        (segment.time_ns, fragments(TUNNELS[name](forge.tcp_ip(segment), 4)[14:], 700, n + 1))
        for n, segment in enumerate(FOUR)
    ]
    reading = read_bytes(as_capture(outside), tmp_path)
    assert numberless(reading.rows) == numberless(plain(FOUR, tmp_path))
    assert reading.rows == dpkt_reference.rows(as_capture(outside))
    inside = [(time, [TUNNELS[name](piece, 6)[14:] for piece in pieces]) for time, pieces in cut_up(SIX)]
    assert numberless(read_bytes(as_capture(inside), tmp_path).rows) == numberless(plain(SIX, tmp_path))
    both = [
        (time, [each for n, piece in enumerate(pieces) for each in fragments(piece, 120, 1000 * number + n)])
        for number, (time, pieces) in enumerate(
            (time, [TUNNELS[name](piece, 4)[14:] for piece in pieces]) for time, pieces in cut_up(SIX)
        )
    ]
    assert numberless(read_bytes(as_capture(both), tmp_path).rows) == numberless(plain(SIX, tmp_path))


def largest(number: int) -> tuple[forge.Segment, list[bytes]]:
    segment = replace(FOUR[3], payload=random.Random(number).randbytes(65_000))
    return segment, fragments(forge.tcp_ip(segment), 1480, number)


def test_more_whole_packets_than_a_window_has_room_for(tmp_path: Path) -> None:
    """Small fragments pile up, then each of many last ones completes a large packet: the batch ends early."""
    fragmented = [largest(number) for number in range(1, 31)]
    begun = [(0, pieces[:-1]) for _, pieces in fragmented]
    ended = [(0, pieces[-1:]) for _, pieces in fragmented]
    data = as_capture(begun + ended)
    reading: Reading = read_bytes(data, tmp_path, window_bytes=1 << 16)
    assert [row.payload for row in reading.rows] == [segment.payload for segment, _ in fragmented]
    assert reading.rows == read_bytes(data, tmp_path).rows
