"""Export packets of chosen connections as a pcapng file.

In: captures, and connections with their first and last time. Out: a file in pieces, with a section for each file read.
Rules: packets are copied as captured, in their order; a pcapng file's interfaces and secrets are copied too; a packet
that is cut off at the end of a file is left out.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from kwire.captures.files import CapturePoint
from kwire.captures.files.sources import Source
from kwire.captures.files.write import block_of, option
from kwire.captures.packets import Reader

End = tuple[str, int]
"""Address and port."""

_PCAP: Final = {0xA1B2C3D4: 6, 0xA1B23C4D: 9}
"""Magic numbers of pcap, and their resolution as a power of ten."""

_SECTION, _INTERFACE, _OLD, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_PACKETS: Final = (_OLD, _SIMPLE, _ENHANCED)
_LARGEST: Final = 1 << 28
"""Bytes of the largest record; a larger length means a damaged file."""


@dataclass(frozen=True, slots=True)
class ConnectionSpan:
    """A connection and its time span, in ns since 1970, both ends included."""

    client: End
    broker: End
    first_ns: int
    last_ns: int


def extract_packets(
    point: CapturePoint, spans: Collection[ConnectionSpan], check: Callable[[], None]
) -> Iterator[bytes]:
    """Write the file in pieces; `check` may raise to stop. Raises CaptureError."""
    places: dict[int, list[int]] = {}
    with Reader(point) as reader:
        for packets in reader:
            check()
            columns = packets.columns
            chosen = _chosen(columns, spans)
            for file in np.unique(columns.file[chosen]).tolist():
                places.setdefault(file, []).extend(columns.record_at[chosen][columns.file[chosen] == file].tolist())
            packets.release()
    for number, path in enumerate(point.paths):
        check()
        if number in places:
            with Source(path, None, point.folder) as source:
                yield from _copy_packets(_Bytes(source), set(places[number]))


def _chosen(columns: object, spans: Collection[ConnectionSpan]) -> np.ndarray:
    """Select the packets of the connections, in either direction."""
    names = ("src_hi", "src_lo", "src_port", "dst_hi", "dst_lo", "dst_port", "time_ns")
    sender_hi, sender_lo, sender_port, receiver_hi, receiver_lo, receiver_port, times = (
        getattr(columns, name) for name in names
    )
    chosen = np.zeros(len(times), np.bool_)
    for span in spans:
        (a_hi, a_lo), (b_hi, b_lo) = halves(span.client[0]), halves(span.broker[0])
        a_port, b_port = span.client[1], span.broker[1]
        ports = ((sender_port == a_port) & (receiver_port == b_port)) | (
            (sender_port == b_port) & (receiver_port == a_port)
        )
        near = np.flatnonzero(ports & (times >= span.first_ns) & (times <= span.last_ns))
        there = (sender_port[near] == a_port) & (sender_hi[near] == a_hi) & (sender_lo[near] == a_lo)
        there &= (receiver_hi[near] == b_hi) & (receiver_lo[near] == b_lo)
        back = (sender_port[near] == b_port) & (sender_hi[near] == b_hi) & (sender_lo[near] == b_lo)
        back &= (receiver_hi[near] == a_hi) & (receiver_lo[near] == a_lo)
        chosen[near[there | back]] = True
    return np.flatnonzero(chosen)


def halves(address: str) -> tuple[int, int]:
    """Get the high and low 64 bits of an IPv6 address, or of an IPv4-mapped one."""
    ip = ipaddress.ip_address(address)
    number = int(ip) | (0xFFFF << 32 if ip.version == 4 else 0)
    return number >> 64, number & (1 << 64) - 1


class _Bytes:
    """A file read from its beginning; `at`: the offset reached."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rest = bytearray()
        self.at = 0

    def take(self, count: int) -> bytes:
        """Read the next bytes; fewer at the end of the file."""
        while len(self._rest) < count:
            room = bytearray(max(1 << 20, count - len(self._rest)))
            got = self._source.readinto(memoryview(room))
            if not got:
                break
            self._rest += memoryview(room)[:got]
        content = bytes(self._rest[:count])
        del self._rest[: len(content)]
        self.at += len(content)
        return content


def _copy_packets(file: _Bytes, places: set[int]) -> Iterator[bytes]:
    """Copy one file's packets at the given offsets."""
    head = file.take(4)
    if head == b"\x0a\x0d\x0d\x0a":
        yield from _blocks(file, head, places)
        return
    order = "<" if struct.unpack("<I", head)[0] in _PCAP else ">"
    resolution = _PCAP.get(struct.unpack(order + "I", head)[0], 6)
    rest = file.take(20)
    snaplen, link = struct.unpack_from(order + "II", rest, 12)
    end = option("<", 0, b"")
    yield block_of("<", _SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    options = option("<", 9, bytes([resolution])) + end
    yield block_of("<", _INTERFACE, struct.pack("<HHI", link & 0xFFFF, 0, snaplen) + options)
    while True:
        at, header = file.at, file.take(16)
        if len(header) < 16:
            return
        seconds, fraction, captured, wire = struct.unpack(order + "IIII", header)
        if captured > _LARGEST:
            return
        data = file.take(captured)
        if at in places and len(data) == captured:
            when = seconds * 10**resolution + fraction
            body = struct.pack("<IIIII", 0, when >> 32, when & 0xFFFFFFFF, captured, wire) + data
            yield block_of("<", _ENHANCED, body)


def _blocks(file: _Bytes, head: bytes, places: set[int]) -> Iterator[bytes]:
    """Copy a pcapng file's blocks, but only packets at the given offsets."""
    order = "<"
    while len(head) == 4:
        at = file.at - 4
        rest = file.take(4)
        if head == b"\x0a\x0d\x0d\x0a":
            rest += file.take(4)
            order = "<" if rest[4:8] == b"\x4d\x3c\x2b\x1a" else ">"
        if len(rest) < 4:
            return
        (kind,), (length,) = struct.unpack(order + "I", head), struct.unpack_from(order + "I", rest)
        if not 12 <= length <= _LARGEST:
            return
        rest += file.take(length - 4 - len(rest))
        if len(rest) < length - 4:
            return
        if kind not in _PACKETS or at in places:
            yield head + rest
        head = file.take(4)
