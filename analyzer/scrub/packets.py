"""A captured packet -> the same packet without what tells of anybody.

In: a packet with its anatomy (`captures.dissect`), and what its payload becomes. Out: as many bytes. Rules

- The packet is made of zeros, and only what is understood is written into it: a field that nobody here knows is zero.
- Addresses become others (`addresses`); ports, sequence numbers, flags, windows, lengths, identifications, VLANs and
  the TCP options that only TCP needs stay. What lies in other protocols than TCP is zeros behind their first header.
- A checksum that was right is right afterwards, one that was wrong is wrong, and one that was left to the network card
  is left to it. Where the capture cut the packet, nobody can tell: then it is the sum of what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from analyzer.scrub.addresses import Addresses
from captures import dissect as d
from captures.links import (
    APPLE_IP_OVER_IEEE1394,
    ENC,
    ETHERNET,
    FRAGMENT,
    FRAGMENT_HEADER,
    GRE,
    IP_OVER_FC,
    IPNET,
    LINUX_SLL,
    LINUX_SLL2,
    NFLOG,
    PFLOG,
    PKTAP,
    PPI,
    TCP,
    UDP,
)

_ICMP: Final = (1, 58)
_MOST_PLAIN: Final = 40
"""Bytes of a link header without addresses (PPP, MPLS labels, PPPoE, VLAN tags) that stay: numbers, no more."""

_TCP_OPTIONS: Final = {2: 4, 3: 3, 4: 2, 8: 10}
"""Options that stay, by kind, and how long each is (RFC 9293, 7323, 2018): segment size, window scale, SACK permitted,
timestamps. SACK (5) has any number of ranges."""

Payload = Callable[[bytes], bytes]


def checksum(data: bytes) -> int:
    """The internet checksum (RFC 1071) of bytes, as it is written: 0 where the checksum among them is right."""
    total = int.from_bytes(data + b"\0" * (len(data) & 1), "big") % 0xFFFF
    return 0xFFFF - total if total else (0 if any(data) else 0xFFFF)


class Packets:
    """Makes packets anew. `kinds`: how many of each IP protocol that is no TCP had content, by name."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    def clean(self, data: bytes, row: list[int], payload: Payload | None) -> bytes:
        """A captured packet: `row` is one of `dissect`, `data` its bytes; `payload` gives what becomes of TCP's."""
        base = row[d.AT]
        out = bytearray(len(data))
        start, tunnel = 0, None
        depth = row[d.DEPTH]
        whole = row[d.CAPTURED] >= row[d.ORIGINAL]
        after: list[tuple[int, int, int, int, int]] = []
        for layer in range(depth):
            place = d.FIRST_LAYER + layer * d.LAYER_COLUMNS
            frame, link, ip, transport, ip_end, protocol, version = row[place : place + d.LAYER_COLUMNS]
            frame, ip, transport, ip_end = frame - base, ip - base, transport - base, ip_end - base
            if tunnel is not None:
                self._tunnel(data, out, start, frame, tunnel)
            self._link(data, out, frame, ip, link)
            self._ip(data, out, ip, transport, version)
            after.append((ip, transport, min(ip_end, len(data)), protocol, version))
            start, tunnel = transport, protocol
        if not depth:
            self._alone(data, out, row[d.FIRST_LAYER + d.LINK_TYPE])
            return bytes(out)
        ip, transport, end, protocol, version = after[-1]
        if protocol == TCP and row[d.KIND] == TCP:
            self._tcp(data, out, ip, transport, end, version, payload, whole)
        elif protocol == UDP and transport + 8 <= end:
            out[transport : transport + 6] = data[transport : transport + 6]
        elif protocol in _ICMP and transport + 2 <= end:
            out[transport : transport + 2] = data[transport : transport + 2]
        elif protocol == FRAGMENT and version == 6 and transport + 8 <= end:
            out[transport : transport + 8] = data[transport : transport + 8]
        for ip, transport, _, _, version in after:
            if version == 4:
                self._sum_ip(data, out, ip, transport)
        return bytes(out)

    # -- below IP ------------------------------------------------------------------------------------------------------

    def _alone(self, data: bytes, out: bytearray, link: int) -> None:
        """No IP: of an Ethernet frame its addresses and type, of Linux' own its header."""
        size = {ETHERNET: 14, LINUX_SLL: 16, LINUX_SLL2: 20}.get(link, 0)
        if 0 < size <= len(data):
            self._link(data, out, 0, size, link)

    def _link(self, data: bytes, out: bytearray, start: int, end: int, link: int) -> None:
        """A link header."""
        link_address = self._addresses.link
        if end <= start:
            return
        if link == ETHERNET:
            for at in (start, start + 6):
                out[at : at + 6] = link_address(data[at : at + 6])
            self._plain(data, out, start + 12, end)
        elif link in (LINUX_SLL, LINUX_SLL2):
            at = start + (6 if link == LINUX_SLL else 12)
            self._plain(data, out, start, at)
            if data[at - 1] == 6:  # the address's length
                out[at : at + 6] = link_address(data[at : at + 6])
            self._plain(data, out, at + 8, end)
        elif link in (IP_OVER_FC, APPLE_IP_OVER_IEEE1394):
            self._plain(data, out, start + 16, end)
        elif link in (PFLOG, ENC, IPNET):  # names of interfaces and rule sets
            out[start : start + 4] = data[start : start + 4]
        elif link == NFLOG:
            self._nflog(data, out, start, end)
        elif link in (PPI, PKTAP):  # names of interfaces and programs
            size_at = start if link == PKTAP else start + 2
            size = int.from_bytes(data[size_at : start + 4], "little")
            head = 12 if link == PKTAP else 8
            out[start : start + head] = data[start : start + head]
            inner = int.from_bytes(data[start + head - 4 : start + head], "little")
            self._link(data, out, start + size, end, inner)
        else:
            self._plain(data, out, start, end)

    @staticmethod
    def _nflog(data: bytes, out: bytearray, start: int, end: int) -> None:
        """Netfilter's: a row of values with their lengths; the last one's is the packet."""
        out[start : start + 4] = data[start : start + 4]
        at = start + 4
        while at + 4 <= end:
            size = int.from_bytes(data[at : at + 2], "little")
            out[at : at + 4] = data[at : at + 4]
            if size < 4:
                break
            at += (size + 3) // 4 * 4

    @staticmethod
    def _plain(data: bytes, out: bytearray, start: int, end: int) -> None:
        """A header of numbers."""
        end = min(end, start + _MOST_PLAIN)
        if end > start:
            out[start:end] = data[start:end]

    @staticmethod
    def _tunnel(data: bytes, out: bytearray, start: int, end: int, protocol: int) -> None:
        """Clean the bytes between an IP header and the frame that it carries: options, keys and checksums go."""
        if protocol == UDP:  # and VXLAN, or GENEVE, whose options may hold anything; no checksum is none (RFC 768)
            out[start : start + 6] = data[start : start + 6]
            out[start + 8 : start + 16] = data[start + 8 : start + 16]
        elif protocol == GRE:
            flags = data[start]
            out[start:end] = data[start : min(end, start + _MOST_PLAIN)].ljust(end - start, b"\0")
            if flags & 0x80:
                out[start + 4 : start + 8] = bytes(4)

    # -- IP ------------------------------------------------------------------------------------------------------------

    def _ip(self, data: bytes, out: bytearray, ip: int, transport: int, version: int) -> None:
        address = self._addresses.address
        if version == 4:
            out[ip : ip + 12] = data[ip : ip + 12]
            for at in (ip + 12, ip + 16):
                out[at : at + 4] = address(data[at : at + 4])
            out[ip + 20 : transport] = b"\x01" * max(transport - ip - 20, 0)  # options that do nothing
            return
        out[ip : ip + 8] = data[ip : ip + 8]
        for at in (ip + 8, ip + 24):
            out[at : at + 16] = address(data[at : at + 16])
        protocol, at = data[ip + 6], ip + 40
        while at + 8 <= transport:
            size = 8 + data[at + 1] * 8
            if protocol == FRAGMENT_HEADER:
                size = 8
                out[at : at + 8] = data[at : at + 8]
            elif protocol == 51:
                size = 8 + data[at + 1] * 4
            out[at : at + 2] = data[at : at + 2]
            if protocol in (0, 60) and at + size <= transport:  # options: padding of the same length (RFC 8200, 4.2)
                out[at + 2 : at + size] = _padding(size - 2)
            protocol, at = data[at], at + size

    @staticmethod
    def _sum_ip(data: bytes, out: bytearray, ip: int, transport: int) -> None:
        """The header checksum of IPv4."""
        end = min(ip + (data[ip] & 15) * 4, len(data))
        if data[ip + 10 : ip + 12] == b"\0\0":
            return  # left to the card
        right = checksum(data[ip:end]) == 0
        out[ip + 10 : ip + 12] = b"\0\0"
        total = checksum(bytes(out[ip:end]))
        out[ip + 10 : ip + 12] = (total if right else total ^ 0x55).to_bytes(2, "big")

    # -- TCP -----------------------------------------------------------------------------------------------------------

    def _tcp(
        self,
        data: bytes,
        out: bytearray,
        ip: int,
        at: int,
        end: int,
        version: int,
        payload: Payload | None,
        whole: bool,
    ) -> None:
        out[at : at + 16] = data[at : at + 16]
        out[at + 18 : at + 20] = data[at + 18 : at + 20]
        begin = min(at + (data[at + 12] >> 4) * 4, end)
        _options(data, out, at + 20, begin)
        if begin < end and payload is not None:
            out[begin:end] = payload(data[begin:end])
        place = slice(ip + 12, ip + 20) if version == 4 else slice(ip + 8, ip + 40)
        size = end - at
        was, now = (checksum(bytes(side[place]) + b"\0\6") ^ 0xFFFF for side in (data, out))  # pseudo-headers
        field = int.from_bytes(data[at + 16 : at + 18], "big")
        if field == 0:
            return  # left to the card, as the next two are, which begin the sum
        if (was - field) % 0xFFFF == 0:
            total = now
        elif (was + size - field) % 0xFFFF == 0:
            total = (now + size) % 0xFFFF
        else:
            behind = size.to_bytes(4, "big") + b"\0\0\0\6"
            right = not whole or checksum(data[place] + behind + data[at:end]) == 0
            total = checksum(bytes(out[place]) + behind + bytes(out[at:end]))
            total = total if right else total ^ 0x55
        out[at + 16 : at + 18] = total.to_bytes(2, "big")


def _options(data: bytes, out: bytearray, at: int, end: int) -> None:
    """TCP's: of those that may hold anything (MD5, fast open, multipath ...) kind and length."""
    while at < end:
        kind = data[at]
        if kind <= 1:
            out[at] = kind
            if kind == 0:
                return
            at += 1
            continue
        size = data[at + 1] if at + 1 < end else 0
        if size < 2 or at + size > end:
            out[at:end] = b"\x01" * (end - at)
            return
        out[at : at + 2] = data[at : at + 2]
        if _TCP_OPTIONS.get(kind) == size or (kind == 5 and size % 8 == 2):
            out[at : at + size] = data[at : at + size]
        at += size


def _padding(size: int) -> bytes:
    """Options of IPv6 that are nothing but so many bytes."""
    padding = b""
    while size:
        part = min(size, 255)
        padding += b"\0" if part == 1 else bytes([1, part - 2]) + bytes(part - 2)
        size -= part
    return padding
