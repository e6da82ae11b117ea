"""Reference implementation of `kwire.captures.packets`: its rows by dpkt and plain Python, a packet at a time.

dpkt reads links, IP and TCP; files are walked here with `struct`, because dpkt's readers give neither wire lengths nor
offsets, and know neither several sections nor interfaces. Only for well-formed captures: what is cut or damaged in the
headers is the kernel's business, and is tested by what it must say about it.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import dpkt


@dataclass(frozen=True)
class Captured:
    """One record of a capture file."""

    number: int
    at: int
    time_ns: int
    interface: int
    link: int
    data: bytes
    original: int


@dataclass(frozen=True)
class Row:
    """One TCP packet as `Packets` has it, its payload as bytes."""

    number: int
    record_at: int
    time_ns: int
    interface: int
    source: bytes
    target: bytes
    src_port: int
    dst_port: int
    seq: int
    ack: int
    window: int
    flags: int
    payload: bytes
    payload_length: int


def stored(path: Path) -> bytes:
    """A capture file's bytes, decompressed if it is gzip."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def captured(data: bytes) -> list[Captured]:
    """The records of a whole capture file."""
    return list(_pcapng(data) if data[:4] == b"\x0a\x0d\x0d\x0a" else _pcap(data))


def _pcap(data: bytes) -> Iterator[Captured]:
    order = "<" if data[0] in (0xD4, 0x4D) else ">"
    file = (dpkt.pcap.LEFileHdr if order == "<" else dpkt.pcap.FileHdr)(data[:24])
    tick = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}[file.magic]
    packet_header = dpkt.pcap.LEPktHdr if order == "<" else dpkt.pcap.PktHdr
    at, number = 24, 0
    while at < len(data):
        number += 1
        header = packet_header(data[at : at + 16])
        body = data[at + 16 : at + 16 + header.caplen]
        yield Captured(
            number, at, header.tv_sec * 10**9 + header.tv_usec * tick, 0, file.linktype & 0xFFFF, body, header.len
        )
        at += 16 + header.caplen


def _pcapng(data: bytes) -> Iterator[Captured]:
    interfaces: list[tuple[int, Fraction, int, int]] = []  # link, seconds a tick, offset in seconds, snap length
    section = number = at = last = 0
    order = "<"
    while at < len(data):
        if data[at : at + 4] == b"\x0a\x0d\x0d\x0a":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            section = len(interfaces)
        kind, length = struct.unpack_from(order + "II", data, at)
        block = data[at : at + length]
        if kind == 1:
            link, _, snaplen = struct.unpack_from(order + "HHI", block, 8)
            tick, offset, option = Fraction(1, 10**6), 0, 16
            while option < length - 4:
                code, size = struct.unpack_from(order + "HH", block, option)
                value = block[option + 4 : option + 4 + size]
                if code == 9:
                    power = value[0] & 127
                    tick = Fraction(1, 2**power if value[0] & 128 else 10**power)
                elif code == 14:
                    offset = struct.unpack(order + "q", value)[0]
                option += 4 + (size + 3) // 4 * 4
            interfaces.append((link, tick, offset, snaplen))
        elif kind in (2, 3, 6):
            number += 1
            if kind == 3:
                (original,) = struct.unpack_from(order + "I", block, 8)
                which, data_at = section, 12
                size = min(original, interfaces[which][3] or original)
            else:
                which = section + struct.unpack_from(order + ("I" if kind == 6 else "H"), block, 8)[0]
                high, low, size, original = struct.unpack_from(order + "IIII", block, 12)
                last = floor((high << 32 | low) * interfaces[which][1] * 10**9) + interfaces[which][2] * 10**9
                data_at = 28
            yield Captured(number, at, last, which, interfaces[which][0], block[data_at : data_at + size], original)
        at += length


def _cisco_hdlc(data: bytes) -> Any:
    """dpkt does not know it: address, control, and Ethernet's type."""
    return dpkt.ethernet.Ethernet(bytes(12) + data[2:])


_LAYERS: dict[int, Any] = {
    0: dpkt.loopback.Loopback,
    1: dpkt.ethernet.Ethernet,
    104: _cisco_hdlc,
    108: dpkt.loopback.Loopback,
    113: dpkt.sll.SLL,
    276: dpkt.sll2.SLL2,
}


def _ip(link: int, data: bytes) -> Any:
    """The IP packet in a frame, or something else."""
    if link == 192:  # PPI, which dpkt does not know: a header that says how long it is and what link type follows
        _, _, size, inner = struct.unpack_from("<BBHI", data)
        return _ip(inner, data[size:])
    if link in _LAYERS:
        return _LAYERS[link](data).data
    return (dpkt.ip.IP if data[0] >> 4 == 4 else dpkt.ip6.IP6)(data)


def _is_fragment(ip: Any) -> bool:
    if isinstance(ip, dpkt.ip.IP):
        return bool(ip.mf or ip.offset)
    parts = [each for each in ip.all_extension_headers if isinstance(each, dpkt.ip6.IP6FragmentHeader)]
    return any(each.frag_off or each.m_flag for each in parts)


def _whole(ip: Any, pieces: dict[Any, dict[int, bytes]]) -> Any:
    """The IP packet that this fragment completes, or None. For fragments that do not overlap."""
    if isinstance(ip, dpkt.ip.IP):
        key: Any = (ip.src, ip.dst, ip.p, ip.id)
        offset, more, body = ip.offset * 8, ip.mf, bytes(ip)[ip.hl * 4 : ip.len]
    else:
        raw = bytes(ip)[: 40 + ip.plen]
        header = ip.extension_hdrs[44]
        at = 40 + sum(each.length for each in ip.all_extension_headers)  # all before it, and itself
        key = (ip.src, ip.dst, header.id)
        offset, more, body = header.frag_off * 8, header.m_flag, raw[at:]
    rows_found = pieces.setdefault(key, {})
    rows_found[offset] = body
    if not more:
        rows_found[-1] = b""  # the end is known
    offsets = sorted(set(rows_found) - {-1})
    end = 0
    for each in offsets:
        if each != end:
            return None
        end += len(rows_found[each])
    if -1 not in rows_found:
        return None
    payload = b"".join(rows_found[each] for each in offsets)
    del pieces[key]
    if isinstance(ip, dpkt.ip.IP):
        return dpkt.ip.IP(struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + end, 0, 0, 1, ip.p, 0, ip.src, ip.dst) + payload)
    return dpkt.ip6.IP6(struct.pack(">IHBB16s16s", 6 << 28, end, header.nxt, 1, ip.src, ip.dst) + payload)


def _gre(data: bytes) -> Any:
    """Return the packet inside a GRE header."""
    flags, kind = struct.unpack_from(">HH", data)
    at = 4 + 4 * sum(bool(flags & bit) for bit in (0x8000, 0x2000, 0x1000))
    if kind == 0x88BE:
        return dpkt.ethernet.Ethernet(data[at + (8 if flags & 0x1000 else 0) :]).data
    if kind == 0x22EB:
        return dpkt.ethernet.Ethernet(data[at + (20 if data[at + 11] & 1 else 12) :]).data
    if kind == 0x6558:
        return dpkt.ethernet.Ethernet(data[at:]).data
    if kind == 0x8847:
        return dpkt.ethernet.Ethernet(bytes(12) + b"\x88\x47" + data[at:]).data
    return {0x0800: dpkt.ip.IP, 0x86DD: dpkt.ip6.IP6}[kind](data[at:])


def _innermost(ip: Any, pieces: dict[Any, dict[int, bytes]]) -> Any:
    """The IP packet in the tunnels around it, if there are any, put together if it was fragmented."""
    while isinstance(ip, dpkt.ip.IP | dpkt.ip6.IP6):
        inner = ip.data
        if _is_fragment(ip):
            ip = _whole(ip, pieces)
        elif isinstance(inner, dpkt.ip.IP | dpkt.ip6.IP6):
            ip = inner
        elif isinstance(inner, dpkt.udp.UDP) and inner.dport in (4789, 8472):
            ip = dpkt.ethernet.Ethernet(inner.data[8:]).data
        elif isinstance(inner, dpkt.udp.UDP) and inner.dport == 6081:
            kind = struct.unpack_from(">H", inner.data, 2)[0]
            ip = _gre(struct.pack(">HH", 0, kind) + inner.data[8 + (inner.data[0] & 63) * 4 :])
        elif ip.p == 47:
            ip = _gre(bytes(inner))
        else:
            return ip
    return None


def rows(data: bytes) -> list[Row]:
    """The TCP packets of a whole capture file."""
    out = []
    pieces: dict[Any, dict[int, bytes]] = {}
    for row in captured(data):
        ip = _innermost(_ip(row.link, row.data), pieces)
        if ip is None or not isinstance(ip.data, dpkt.tcp.TCP):
            continue
        tcp = ip.data
        if isinstance(ip, dpkt.ip.IP):
            length = ip.len and ip.len - ip.hl * 4
        else:
            length = ip.plen and ip.plen - sum(each.length for each in ip.all_extension_headers)
        if not length:  # left out by segmentation offload: all that the frame had on the wire from TCP's header on
            length = row.original - row.data.index(tcp.pack_hdr())
        out.append(
            Row(
                row.number,
                row.at,
                row.time_ns,
                row.interface,
                _mapped(ip.src),
                _mapped(ip.dst),
                tcp.sport,
                tcp.dport,
                tcp.seq,
                tcp.ack,
                tcp.win,
                tcp.flags,
                bytes(tcp.data),
                length - tcp.off * 4,
            )
        )
    return out


def _mapped(address: bytes) -> bytes:
    return address if len(address) == 16 else bytes(10) + b"\xff\xff" + address
