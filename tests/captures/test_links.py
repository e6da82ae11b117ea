"""Links one frame at a time: frames forged by scapy, what each becomes, and that every known link type is tested."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kwire.captures import links
from kwire.captures.files import CaptureError
from tests.captures import dpkt_reference, forge
from tests.captures.forge import Record
from tests.captures.reading import Reading, read_bytes

SEGMENT = forge.Segment(0, ("10.0.0.1", 40000), ("10.0.0.2", 9092), 7, 8, forge.ACK, b"payload")
SIX = forge.Segment(0, ("2001:db8::1", 40000), ("2001:db8::2", 9092), 7, 8, forge.ACK, b"payload")
IP = forge.tcp_ip(SEGMENT)
IP6 = forge.tcp_ip(SIX)
MACS = bytes.fromhex("020000000002 020000000001")


def read_frame(frame: bytes, link: int, folder: Path) -> Reading:
    return read_bytes(forge.pcap([Record(0, frame, len(frame))], link), folder)


def ppi(link: int, frame: bytes, fields: bytes = b"") -> bytes:
    """A frame behind a per-packet information header (AirPcap's PPI 1.0.10): version, flags, length, link type."""
    return struct.pack("<BBHI", 0, 0, 8 + len(fields), link) + fields + frame


def pktap(link: int, frame: bytes) -> bytes:
    """A frame as macOS' pktap writes it: length of the header, type of the record, link type, interface and process."""
    return struct.pack("<III", 108, 1, link) + b"en0".ljust(96, b"\0") + frame


def nflog(*fields: tuple[int, bytes]) -> bytes:
    """A packet of netfilter's log: family, version and group, types with values, each at a multiple of four."""
    out = b"\2\0\0\5"
    for kind, value in fields:
        out += bytes(-len(out) % 4) + struct.pack("<HH", 4 + len(value), kind) + value
    return out


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
    ("VN-tag", links.ETHERNET, MACS + b"\x89\x26\0\1\0\2\x08\x00" + IP, "tcp"),
    ("VN-tag and an end", links.ETHERNET, MACS + b"\x89\x26\0\1\0", "malformed"),
    ("VN-tag before a VLAN's", links.ETHERNET, MACS + b"\x89\x26\0\1\0\2\x81\x00\0\1\x86\xdd" + IP6, "tcp"),
    ("HSR", links.ETHERNET, MACS + b"\x89\x2f\x10\x34\0\1\x08\x00" + IP, "tcp"),
    ("Cisco's metadata", links.ETHERNET, MACS + b"\x89\x09\1\1\0\1\0\7\x08\x00" + IP, "tcp"),
    ("Cisco's metadata, two", links.ETHERNET, MACS + b"\x89\x09\1\2\0\1\0\7\0\2\0\7\x08\x00" + IP, "tcp"),
    (
        "Cisco's metadata behind a VLAN's tag",
        links.ETHERNET,
        MACS + b"\x81\0\0\1\x89\x09\1\1\0\1\0\7\x08\x00" + IP,
        "tcp",
    ),
    ("Cisco's metadata and an end", links.ETHERNET, MACS + b"\x89\x09\1", "malformed"),
    ("802.1ah", links.ETHERNET, MACS + b"\x88\xa8\0\1\x88\xe7\0\0\0\7" + MACS + b"\x08\x00" + IP, "tcp"),
    ("802.1ah, ARP", links.ETHERNET, MACS + b"\x88\xe7\0\0\0\7" + MACS + b"\x08\x06" + bytes(28), "not_ip"),
    ("FabricPath", links.ETHERNET, MACS + b"\x89\x03" + bytes(60), "not_ip"),
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
    ("PPP of pppd, sent", links.PPP_PPPD, b"\x01\x03\x00\x21" + IP, "tcp"),
    ("PPP of pppd, received", links.PPP_PPPD, b"\x00\x03\x00\x57" + IP6, "tcp"),
    ("PPP with its direction", links.PPP_WITH_DIR, b"\x01\xff\x03\x00\x21" + IP, "tcp"),
    ("PPPoE without Ethernet", links.PPP_ETHER, b"\x11\0\0\1\0\x31\0\x21" + IP, "tcp"),
    ("Cisco HDLC", links.C_HDLC, b"\x0f\0\x08\0" + IP, "tcp"),
    ("Cisco HDLC, broadcast, IPv6", links.C_HDLC, b"\x8f\0\x86\xdd" + IP6, "tcp"),
    ("Cisco HDLC, MPLS", links.C_HDLC, b"\x0f\0\x88\x47" + b"\0\1\1\x40" + IP, "tcp"),
    ("Cisco HDLC, keep-alive", links.C_HDLC, b"\x8f\0\x80\x35" + bytes(18), "not_ip"),
    ("Cisco HDLC, OSI", links.C_HDLC, b"\x0f\0\xfe\xfe\x03" + bytes(18), "not_ip"),
    ("Cisco HDLC and an end", links.C_HDLC, b"\x0f\0\x08", "malformed"),
    ("Cisco HDLC with its direction", links.C_HDLC_WITH_DIR, b"\x01\x0f\0\x08\0" + IP, "tcp"),
    ("PPI, Ethernet", links.PPI, ppi(links.ETHERNET, MACS + b"\x08\x00" + IP), "tcp"),
    ("PPI with a field, raw", links.PPI, ppi(links.RAW_BSD, IP6, struct.pack("<HH", 2, 4) + bytes(4)), "tcp"),
    ("PPI in PPI", links.PPI, ppi(links.PPI, ppi(links.RAW, IP)), "tcp"),
    ("PPI, a link type that is not known", links.PPI, ppi(105, bytes(60)), "unknown_link"),
    ("PPI, a link type that is none", links.PPI, ppi(1 << 16, IP), "unknown_link"),
    ("PPI, shorter than itself", links.PPI, struct.pack("<BBHI", 0, 0, 7, 1) + bytes(60), "malformed"),
    ("PPI, longer than the frame", links.PPI, struct.pack("<BBHI", 0, 0, 9999, 1) + bytes(60), "malformed"),
    ("PPI and an end", links.PPI, struct.pack("<BBHI", 0, 0, 8, 1)[:7], "malformed"),
    ("PKTAP of macOS", links.PKTAP, pktap(links.ETHERNET, MACS + b"\x08\x00" + IP), "tcp"),
    ("PKTAP, loopback", links.PKTAP, pktap(links.NULL, struct.pack("<I", 30) + IP6), "tcp"),
    ("PKTAP, shorter than itself", links.PKTAP, struct.pack("<III", 4, 1, 1) + bytes(60), "malformed"),
    ("PKTAP of macOS' tcpdump", links.PKTAP_OF_MACOS, pktap(links.ETHERNET, MACS + b"\x08\x00" + IP), "tcp"),
    ("USER2, not PKTAP", links.PKTAP_OF_MACOS, bytes(60), "malformed"),
    ("PFLOG", links.PFLOG, bytes([61, 2]) + bytes(62) + IP, "tcp"),
    ("PFLOG, IPv6 of OpenBSD", links.PFLOG, bytes([100, 24]) + bytes(98) + IP6, "tcp"),
    ("PFLOG, another family", links.PFLOG, bytes([61, 7]) + bytes(62) + IP, "not_ip"),
    ("ENC", links.ENC, struct.pack("<III", 2, 0x1234, 0) + IP, "tcp"),
    ("ENC, big-endian", links.ENC, struct.pack(">III", 24, 0x1234, 0) + IP6, "tcp"),
    ("IPNET", links.IPNET, bytes([1, 2]) + bytes(22) + IP, "tcp"),
    ("IPNET, IPv6", links.IPNET, bytes([1, 26]) + bytes(22) + IP6, "tcp"),
    ("NFLOG", links.NFLOG, nflog((1, bytes(4)), (10, b"prefix\0"), (9, IP)), "tcp"),
    ("NFLOG, IPv6", links.NFLOG, nflog((9, IP6)), "tcp"),
    ("NFLOG without a packet", links.NFLOG, nflog((1, bytes(4))), "not_ip"),
    ("NFLOG, a field shorter than itself", links.NFLOG, bytes(4) + struct.pack("<HH", 3, 9) + IP, "malformed"),
    ("MPLS", links.MPLS, b"\0\1\1\x40" + IP, "tcp"),
    ("ATM, RFC 2684", links.ATM_RFC1483, b"\xaa\xaa\x03\0\0\0\x08\0" + IP, "tcp"),
    ("Fibre Channel", links.IP_OVER_FC, bytes(16) + b"\xaa\xaa\x03\0\0\0\x86\xdd" + IP6, "tcp"),
    ("FireWire", links.APPLE_IP_OVER_IEEE1394, bytes(16) + b"\x08\0" + IP, "tcp"),
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
    for size in range(len(frame)):
        reading = read_bytes(forge.pcap([Record(0, frame[:size], len(frame))], link), tmp_path)
        # 27 bytes from the end the TCP header is whole. What is 802.3 behind the cut cannot be told.
        assert reading.nonzero in ({"tcp": 1} if size >= len(frame) - 7 else {"headers_cut": 1}, {"not_ip": 1}), size
        if reading.nonzero == {"not_ip": 1}:
            assert size < 22
            assert frame[12:14] == b"\x00\x46"


@pytest.mark.parametrize("link", [links.C_HDLC, links.PPI])
def test_frames_as_dpkt_reads_what_is_in_them(link: int, tmp_path: Path) -> None:
    frames = [frame for _, number, frame, becomes in TABLE if number == link and becomes in ("tcp", "not_ip")]
    data = forge.pcap([Record(0, frame, len(frame)) for frame in frames], link)
    assert read_bytes(data, tmp_path).rows == dpkt_reference.rows(data)


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


def test_a_link_type_that_is_not_read_is_said_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"link type 105 \(IEEE802_11\) is not known"):
        read_frame(IP, 105, tmp_path)
    assert not set(links.UNREAD_NAMES) & set(links.LINK_NAMES)


def test_an_unknown_link_type_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="link type 147 is not known") as failure:
        read_frame(IP, 147, tmp_path)
    assert "ETHERNET (1)" in failure.value.hint


def test_the_check_sequence_bits_of_the_link_type_field_are_no_link_type(tmp_path: Path) -> None:
    data = bytearray(forge.pcap([Record(0, IP, len(IP))], links.RAW))
    data[23] = 0x54  # four bytes of frame check sequence
    assert read_bytes(bytes(data), tmp_path).nonzero == {"tcp": 1}
