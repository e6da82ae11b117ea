"""Links one frame at a time: frames forged by scapy, what each becomes, and that every known link type is tested."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from captures import forge, links
from captures.files import CaptureError
from captures.forge import Record
from tests.captures.reading import Reading, read_bytes

SEGMENT = forge.Segment(0, ("10.0.0.1", 40000), ("10.0.0.2", 9092), 7, 8, forge.ACK, b"payload")
SIX = forge.Segment(0, ("2001:db8::1", 40000), ("2001:db8::2", 9092), 7, 8, forge.ACK, b"payload")
IP = forge.tcp_ip(SEGMENT)
IP6 = forge.tcp_ip(SIX)
MACS = bytes.fromhex("020000000002 020000000001")


def read_frame(frame: bytes, link: int, folder: Path) -> Reading:
    return read_bytes(forge.pcap([Record(0, frame, len(frame))], link), folder)


TABLE: list[tuple[str, int, bytes, str]] = [
    ("Ethernet", links.ETHERNET, MACS + b"\x08\x00" + IP, "tcp"),
    ("Ethernet, IPv6", links.ETHERNET, MACS + b"\x86\xdd" + IP6, "tcp"),
    ("ARP", links.ETHERNET, MACS + b"\x08\x06" + bytes(28), "not_ip"),
    ("LLDP", links.ETHERNET, MACS + b"\x88\xcc" + bytes(50), "not_ip"),
    ("802.3, spanning tree", links.ETHERNET, MACS + b"\x00\x26\x42\x42\x03" + bytes(50), "not_ip"),
    ("802.3, SNAP", links.ETHERNET, MACS + b"\x00\x46\xaa\xaa\x03\0\0\0\x08\x00" + IP, "tcp"),
    ("802.3, SNAP of a vendor", links.ETHERNET, MACS + b"\x00\x46\xaa\xaa\x03\0\0\x0c\x08\x00" + IP, "not_ip"),
    ("802.3, nothing in it", links.ETHERNET, MACS + b"\x00\x03\xaa\xaa\x03", "not_ip"),
    ("three tags", links.ETHERNET, MACS + b"\x91\x00\0\1\x92\x00\0\2\x81\x00\0\3\x08\x00" + IP, "tcp"),
    ("a tag and an end", links.ETHERNET, MACS + b"\x81\x00\0", "malformed"),
    ("PPPoE session", links.ETHERNET, MACS + b"\x88\x64\x11\0\0\1\0\x31\0\x21" + IP, "tcp"),
    ("PPPoE session, LCP", links.ETHERNET, MACS + b"\x88\x64\x11\0\0\1\0\x31\xc0\x21" + bytes(40), "not_ip"),
    ("PPPoE and an end", links.ETHERNET, MACS + b"\x88\x64\x11\0\0\1", "malformed"),
    ("null, little-endian", links.NULL, struct.pack("<I", 2) + IP, "tcp"),
    ("null, big-endian", links.NULL, struct.pack(">I", 2) + IP, "tcp"),
    ("null, IPv6 of NetBSD", links.NULL, struct.pack("<I", 24) + IP6, "tcp"),
    ("null, IPv6 of FreeBSD", links.NULL, struct.pack("<I", 28) + IP6, "tcp"),
    ("null, IPv6 of macOS", links.NULL, struct.pack("<I", 30) + IP6, "tcp"),
    ("null, IPv6 of Linux", links.NULL, struct.pack("<I", 10) + IP6, "tcp"),
    ("null, another family", links.NULL, struct.pack("<I", 7) + IP, "not_ip"),
    ("null and an end", links.NULL, b"\x02\0", "malformed"),
    ("loop", links.LOOP, struct.pack(">I", 2) + IP, "tcp"),
    ("loop, IPv6", links.LOOP, struct.pack(">I", 24) + IP6, "tcp"),
    ("cooked", links.LINUX_SLL, bytes(14) + b"\x08\x00" + IP, "tcp"),
    ("cooked, tagged", links.LINUX_SLL, bytes(14) + b"\x81\x00\0\1\x08\x00" + IP, "tcp"),
    ("cooked, ARP", links.LINUX_SLL, bytes(14) + b"\x08\x06" + bytes(28), "not_ip"),
    ("cooked, 802.3 with a length is no IP", links.LINUX_SLL, bytes(14) + b"\x00\x04" + IP, "not_ip"),
    ("cooked v2", links.LINUX_SLL2, b"\x86\xdd" + bytes(18) + IP6, "tcp"),
    ("cooked v2, ARP", links.LINUX_SLL2, b"\x08\x06" + bytes(18) + bytes(28), "not_ip"),
    ("raw", links.RAW, IP, "tcp"),
    ("raw, IPv6", links.RAW, IP6, "tcp"),
    ("raw, neither", links.RAW, b"\x70" + IP[1:], "malformed"),
    ("raw, empty", links.RAW, b"", "malformed"),
    ("raw of BSD", links.RAW_BSD, IP, "tcp"),
    ("raw of OpenBSD", links.RAW_OPENBSD, IP6, "tcp"),
    ("IPv4", links.IPV4, IP, "tcp"),
    ("IPv6", links.IPV6, IP6, "tcp"),
    ("PPP", links.PPP, b"\x00\x21" + IP, "tcp"),
    ("PPP with address and control", links.PPP, b"\xff\x03\x00\x57" + IP6, "tcp"),
    ("PPP in HDLC framing", links.PPP_HDLC, b"\xff\x03\x00\x21" + IP, "tcp"),
    ("PPP, LCP", links.PPP_HDLC, b"\xff\x03\xc0\x21" + bytes(20), "not_ip"),
    ("PPP and an end", links.PPP, b"\xff\x03\x00", "malformed"),
]


@pytest.mark.parametrize(("what", "link", "frame", "becomes"), TABLE, ids=[row[0] for row in TABLE])
def test_a_frame_becomes(what: str, link: int, frame: bytes, becomes: str, tmp_path: Path) -> None:
    reading = read_frame(frame, link, tmp_path)
    assert reading.nonzero == {becomes: 1}
    assert [row.payload for row in reading.rows] == ([b"payload"] if becomes == "tcp" else [])


def test_the_table_has_every_known_link_type() -> None:
    assert {link for _, link, _, becomes in TABLE if becomes == "tcp"} == set(links.LINK_NAMES)


@pytest.mark.parametrize("row", [row for row in TABLE if row[3] == "tcp"], ids=lambda row: str(row[0]))
def test_a_frame_cut_at_any_byte_has_its_headers_cut_or_is_a_row(
    row: tuple[str, int, bytes, str], tmp_path: Path
) -> None:
    _, link, frame, _ = row
    for kept in range(len(frame)):
        reading = read_bytes(forge.pcap([Record(0, frame[:kept], len(frame))], link), tmp_path)
        # 27 bytes from the end the TCP header is whole. What is 802.3 behind the cut cannot be told.
        assert reading.nonzero in ({"tcp": 1} if kept >= len(frame) - 7 else {"headers_cut": 1}, {"not_ip": 1}), kept
        if reading.nonzero == {"not_ip": 1}:
            assert kept < 22
            assert frame[12:14] == b"\x00\x46"


def test_frames_by_scapy(tmp_path: Path) -> None:
    """An independent forger: every layer it stacks up to TCP gives the row, with ports, numbers and payload."""
    from scapy import all as scapy

    tcp = scapy.TCP(sport=40000, dport=9092, seq=4_000_000_000, ack=3_000_000_000, flags="PA", window=501)
    load = scapy.Raw(b"by scapy")
    four, six = scapy.IP(src="10.1.2.3", dst="10.3.2.1"), scapy.IPv6(src="2001:db8::a", dst="2001:db8::b")
    ether = scapy.Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    options = [("MSS", 1460), ("NOP", None), ("WScale", 7), ("Timestamp", (1, 2)), ("SAckOK", b"")]
    full = scapy.TCP(**{**tcp.fields, "options": options})
    frames = [
        (1, ether / four / tcp / load),
        (1, ether / scapy.Dot1Q(vlan=42) / four / full / load),
        (1, ether / scapy.Dot1AD(vlan=7) / scapy.Dot1Q(vlan=42) / six / tcp / load),
        (1, ether / scapy.IP(src="10.1.2.3", dst="10.3.2.1", options=[scapy.IPOption_Router_Alert()]) / full / load),
        (1, ether / six / scapy.IPv6ExtHdrHopByHop() / scapy.IPv6ExtHdrDestOpt() / full / load),
        (1, ether / six / scapy.IPv6ExtHdrRouting(addresses=["2001:db8::c"]) / tcp / load),
        (1, ether / six / scapy.IPv6ExtHdrFragment(offset=0, m=0) / tcp / load),
        (1, ether / scapy.PPPoE(sessionid=5) / scapy.PPP() / four / tcp / load),
        (0, scapy.Loopback(type=2) / four / tcp / load),
        (113, scapy.CookedLinux(proto=0x0800) / four / tcp / load),
        (276, scapy.CookedLinuxV2(proto=0x86DD) / six / tcp / load),
        (101, four / full / load),
        (101, six / full / load),
    ]
    for link, frame in frames:
        data = bytes(frame)
        [row] = read_frame(data, link, tmp_path).rows
        assert row.payload == b"by scapy", frame.summary()
        assert (row.src_port, row.dst_port) == (40000, 9092)
        assert (row.seq, row.ack, row.window, row.flags) == (4_000_000_000, 3_000_000_000, 501, 0x18)
        assert row.source in (bytes(10) + b"\xff\xff\x0a\x01\x02\x03", bytes.fromhex("20010db8" + "00" * 11 + "0a"))


def test_an_unknown_link_type_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="link type 147 is not known") as failure:
        read_frame(IP, 147, tmp_path)
    assert "ETHERNET (1)" in failure.value.hint


def test_the_check_sequence_bits_of_the_link_type_field_are_no_link_type(tmp_path: Path) -> None:
    data = bytearray(forge.pcap([Record(0, IP, len(IP))], links.RAW))
    data[23] = 0x54  # four bytes of frame check sequence
    assert read_bytes(bytes(data), tmp_path).nonzero == {"tcp": 1}
