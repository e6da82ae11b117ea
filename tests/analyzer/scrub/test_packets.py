"""Packets without what names a network: tunnels are read as before, and none of their keys and addresses is left.

proves: kwire.analyzer.scrub.packets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kwire.analyzer.scrub.rewrite import Task, scrub
from kwire.captures.files import capture_points
from kwire.captures.files.write import pcap
from kwire.captures.links import ETHERNET
from tests.analyzer.forging import answering, asking, heartbeat, heartbeat_answer
from tests.captures import forge
from tests.captures.reading import read
from tests.captures.test_tunnels import MACS, TUNNELS, outer, recorded, scapy

Wrap = Callable[[bytes, int], bytes]
SEGMENTS = forge.converse([asking(heartbeat(1)), answering(heartbeat_answer(1))])
IDENTITY = b"TeN4"


def framed(ip: bytes) -> bytes:
    return forge.framed(ip, ETHERNET)


def gre_key(key: bytes) -> Wrap:
    header = b"\x20\0\x08\0" + key

    def wrap(ip: bytes, version: int) -> bytes:
        whole = outer(version)
        setattr(whole.payload, "proto" if version == 4 else "nh", 47)
        return bytes(whole / scapy().Raw(header + ip))

    return wrap


def datagram(port: int, header: bytes, ethernet: bool = True) -> Wrap:
    def wrap(ip: bytes, version: int) -> bytes:
        s = scapy()
        return bytes(outer(version) / s.UDP(sport=55555, dport=port) / s.Raw(header + (framed(ip) if ethernet else ip)))

    return wrap


def vxlan(key: bytes) -> Wrap:
    return datagram(4789, b"\x0f" + IDENTITY[:3] + key[:3] + b"\0")


def geneve(key: bytes) -> Wrap:
    option = IDENTITY[:2] + b"\x80\x02" + IDENTITY * 2
    return datagram(6081, bytes([len(option) // 4, 0x3F]) + b"\x65\x58" + key[:3] + b"T" + option)


def mpls(key: bytes) -> Wrap:
    labels = key[:2] + b"\x40\x40" + key[:2] + b"\x51\x41"

    def wrap(ip: bytes, version: int) -> bytes:
        return bytes(scapy().Ether(**MACS, type=0x8847) / scapy().Raw(labels + framed(ip)))

    return wrap


def pppoe(key: bytes) -> Wrap:
    def wrap(ip: bytes, version: int) -> bytes:
        header = b"\x11\0" + key[:2] + (len(ip) + 2).to_bytes(2, "big") + b"\0\x21"
        return bytes(scapy().Ether(**MACS, type=0x8864) / scapy().Raw(header + ip))

    return wrap


def cleaned(wraps: list[Wrap], version: int, folder: Path) -> tuple[list[bytes], list[bytes]]:
    """The packets of a conversation, each in the next tunnel, before and after; it must be read as before."""
    frames = [wraps[i % len(wraps)](forge.tcp_ip(segment), version) for i, segment in enumerate(SEGMENTS)]
    records = [recorded(segment.time_ns, frame) for segment, frame in zip(SEGMENTS, frames, strict=True)]
    path, out = folder / "capture.pcap", folder / "clean.pcapng"
    path.write_bytes(pcap(records, nanoseconds=True))
    scrub(capture_points([str(path)])[0], str(out), Task(b"k" * 32))
    before, after = read(path), read(out)
    assert after.nonzero == before.nonzero == {"tcp": len(frames)}
    assert [(row.time_ns, row.seq, row.ack, len(row.payload)) for row in after.rows] == [
        (row.time_ns, row.seq, row.ack, len(row.payload)) for row in before.rows
    ]
    _, again = forge.loaded(out)
    return frames, [record.data for record in again]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("name", TUNNELS)
def test_a_tunnel_is_read_as_before_and_names_nobody(name: str, version: int, tmp_path: Path) -> None:
    inner = framed(forge.tcp_ip(SEGMENTS[0]))
    before, after = cleaned([TUNNELS[name]], version, tmp_path)
    for frame, clean in zip(before, after, strict=True):
        assert len(frame) == len(clean)
        for address in (frame[:6], frame[6:12], inner[:6], inner[6:12], b"\xc0\0\2\1", b"\xc0\0\2\2"):
            assert address not in clean


def tagged(tags: bytes) -> Wrap:
    """Put tags behind the addresses of a frame, before IP."""

    def wrap(ip: bytes, version: int) -> bytes:
        kind = b"\x08\x00" if ip[0] >> 4 == 4 else b"\x86\xdd"
        return bytes.fromhex("020000000002 020000000001") + tags + kind + ip

    return wrap


TAGS = {
    "VN-tag": b"\x89\x26\0\1\0\2",
    "HSR": b"\x89\x2f\x10\x34\0\1",
    "Cisco's metadata": b"\x89\x09\1\2\0\1\0\7\0\2\0\7",
    "802.1ah": b"\x88\xa8\0\1\x88\xe7\0\0\1\7" + bytes.fromhex("020000000004 020000000003"),
}


@pytest.mark.parametrize("name", TAGS)
def test_a_tagged_frame_is_read_as_before_and_names_nobody(name: str, tmp_path: Path) -> None:
    before, after = cleaned([tagged(TAGS[name])], 4, tmp_path)
    for frame, clean in zip(before, after, strict=True):
        assert len(frame) == len(clean)
        for address in (frame[:6], frame[6:12], bytes.fromhex("020000000004"), bytes.fromhex("020000000003")):
            assert address not in clean


@pytest.mark.parametrize(
    ("wrap", "at", "size"),
    [(gre_key, 38, 4), (vxlan, 46, 3), (geneve, 46, 3), (mpls, 14, 2), (pppoe, 16, 2)],
    ids=["GRE", "VXLAN", "GENEVE", "MPLS", "PPPoE"],
)
def test_equal_keys_become_equal_keys_and_others_others(
    wrap: Callable[[bytes], Wrap], at: int, size: int, tmp_path: Path
) -> None:
    keys = IDENTITY, b"KEYq"
    before, after = cleaned([wrap(key) for key in keys], 4, tmp_path)
    assert {frame[at : at + size] for frame in before} == {key[:size] for key in keys}
    pairs = {(frame[at : at + size], clean[at : at + size]) for frame, clean in zip(before, after, strict=True)}
    assert len(pairs) == len({clean for _, clean in pairs}) == 2
    for clean in after:
        assert not any(text in clean for key in keys for text in (key[:size], key[:3]))


def test_names_of_discovery_and_trailers_are_zeros(tmp_path: Path) -> None:
    """PPPoE's discovery has tags with the names of hosts and services."""
    tags = b"\x11\x09\0\0" + struct.pack(">HHHH", 0, 4 + 8, 0x0103, 8) + IDENTITY * 2
    frame = bytes(scapy().Ether(**MACS, type=0x8863) / scapy().Raw(tags))
    records = [recorded(segment.time_ns, framed(forge.tcp_ip(segment))) for segment in SEGMENTS]
    path, out = tmp_path / "capture.pcap", tmp_path / "clean.pcapng"
    path.write_bytes(pcap([*records, recorded(10**12, frame)], nanoseconds=True))
    scrub(capture_points([str(path)])[0], str(out), Task(b"k" * 32))
    _, again = forge.loaded(out)
    assert again[-1].data[12:] == b"\x88\x63" + bytes(len(tags))


def test_any_number_of_frames_in_frames(tmp_path: Path) -> None:
    def wrap(ip: bytes, version: int) -> bytes:
        head = framed(ip)[:12] + b"\x88\x47" + b"\x12\x34\x51\x40"
        return head * 3000 + framed(ip)

    before, after = cleaned([wrap], 4, tmp_path)
    assert before[0][:6] not in after[0]


@pytest.mark.parametrize("size", range(34, 55))
def test_a_tcp_header_may_be_cut_off_anywhere(size: int, tmp_path: Path) -> None:
    records = [recorded(segment.time_ns, framed(forge.tcp_ip(segment))) for segment in SEGMENTS]
    path, out = tmp_path / "capture.pcap", tmp_path / "clean.pcapng"
    path.write_bytes(pcap([*records, recorded(10**12, records[0].data[:size])], nanoseconds=True))
    scrub(capture_points([str(path)])[0], str(out), Task(b"k" * 32))
    _, again = forge.loaded(out)
    assert len(again[-1].data) == size
