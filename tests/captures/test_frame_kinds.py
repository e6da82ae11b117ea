"""Frames that are not understood are counted, named and said; protocols that carry no TCP are not among them.

(proves: captures/frame_kinds.py)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kwire.captures import frame_kinds, links
from tests.captures import forge
from tests.captures.forge import Record
from tests.captures.reading import read_bytes

MACS = bytes.fromhex("020000000002 020000000001")
IP = forge.tcp_ip(forge.Segment(0, ("10.0.0.1", 40000), ("10.0.0.2", 9092), 7, 8, forge.ACK, b"payload"))


def ip(protocol: int, payload: bytes) -> bytes:
    """An IPv4 packet of another protocol."""
    whole = bytearray(IP[:20] + payload)
    whole[2:4], whole[9] = len(whole).to_bytes(2, "big"), protocol
    return bytes(whole)


def udp(port: int) -> bytes:
    return ip(17, b"\xc0\x00" + port.to_bytes(2, "big") + b"\0\x48\0\0" + bytes(64))


KINDS = [
    (links.ETHERNET, MACS + b"\x89\x03" + bytes(60), "ethertype 0x8903 (FabricPath)"),
    (links.ETHERNET, MACS + b"\x81\0\0\1\x88\xe5" + bytes(60), "ethertype 0x88e5 (MACsec)"),
    (links.ETHERNET, MACS + b"\xbe\xef" + bytes(60), "ethertype 0xbeef"),
    (links.ETHERNET, MACS + b"\x00\x26\x06\x06\x03" + bytes(60), "802.2 SAP 0x06"),
    (links.ETHERNET, MACS + b"\x88\x64\x11\0\0\1\0\x31\0\x3d" + bytes(60), "PPP protocol 0x003d"),
    (links.ETHERNET, MACS + b"\x08\0" + ip(50, bytes(40)), "IP protocol 50 (ESP)"),
    (links.ETHERNET, MACS + b"\x08\0" + udp(2152), "UDP port 2152 (GTP)"),
    (links.NULL, b"\x07\0\0\0" + IP, "address family 7"),
    (links.RAW, b"\x70" + IP[1:], "malformed"),
]


@pytest.mark.parametrize(("link", "frame", "kind"), KINDS, ids=[kind for _, _, kind in KINDS])
def test_a_frame_that_is_not_understood_has_a_name(link: int, frame: bytes, kind: str, tmp_path: Path) -> None:
    records = [Record(number, frame, len(frame)) for number in range(3)]
    assert read_bytes(forge.pcap(records, link), tmp_path).not_understood == {kind: 3}


NO_TCP = [
    (links.ETHERNET, MACS + b"\x08\x06" + bytes(28)),
    (links.ETHERNET, MACS + b"\x88\xcc" + bytes(50)),
    (links.ETHERNET, MACS + b"\x00\x26\x42\x42\x03" + bytes(50)),
    (links.ETHERNET, MACS + b"\x00\x46\xaa\xaa\x03\0\0\x0c\x20\x00" + bytes(50)),
    (links.ETHERNET, MACS + b"\x88\x64\x11\0\0\1\0\x31\xc0\x21" + bytes(40)),
    (links.ETHERNET, MACS + b"\x08\0" + ip(1, bytes(40))),
    (links.ETHERNET, MACS + b"\x08\0" + udp(53)),
]


@pytest.mark.parametrize(("link", "frame"), NO_TCP)
def test_what_carries_no_tcp_is_not_among_them(link: int, frame: bytes, tmp_path: Path) -> None:
    assert read_bytes(forge.pcap([Record(0, frame, len(frame))], link), tmp_path).not_understood == {}


def test_kinds_beyond_the_most_are_not_told_apart(tmp_path: Path) -> None:
    frames = [MACS + (0xB000 + number).to_bytes(2, "big") + bytes(50) for number in range(frame_kinds.MOST_KINDS + 5)]
    reading = read_bytes(forge.pcap([Record(0, frame, len(frame)) for frame in frames]), tmp_path)
    assert reading.nonzero == {"not_ip": len(frames)}
    assert len(reading.not_understood) == frame_kinds.MOST_KINDS


def test_counters_of_chunks_add_up() -> None:
    into, more = (np.zeros(frame_kinds.COUNTERS, np.int64) for _ in range(2))
    first = len(frame_kinds.COUNTED)
    for counts, numbers in ((into, (0x8903, 0x88E5)), (more, (0xBEEF, 0x8903))):
        counts[1] = 2
        for slot, number in enumerate(numbers):
            counts[first + 2 * slot : first + 2 * slot + 2] = links.FIRST_KIND - number, 1
    frame_kinds.add_counts(into, more)
    assert into[1] == 4
    assert frame_kinds.not_understood(into) == {
        "ethertype 0x8903 (FabricPath)": 2,
        "ethertype 0x88e5 (MACsec)": 1,
        "ethertype 0xbeef": 1,
    }


def test_a_line_says_what_was_not_understood() -> None:
    counts = {"packets": 8, **dict.fromkeys(frame_kinds.COUNTED, 0), "dropped_by_capture": None}
    unread = {"ethertype 0x8903 (FabricPath)": 5, "IP protocol 50 (ESP)": 1}
    assert frame_kinds.unread_lines("a.pcap", {**counts, "tcp": 2, "not_understood": unread}) == [
        "a.pcap: 6 packets are not understood: ethertype 0x8903 (FabricPath) (5), IP protocol 50 (ESP) (1)"
    ]
    assert frame_kinds.unread_lines("a.pcap", {**counts, "not_ip": 8}) == [
        "a.pcap: no TCP among its 8 packets: not ip (8)"
    ]
    assert frame_kinds.unread_lines("a.pcap", {**counts, "tcp": 1, "not_ip": 7}) == []
