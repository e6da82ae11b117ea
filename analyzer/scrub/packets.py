"""A captured packet -> the same packet without what tells of anybody.

In: a packet with its anatomy (`kwire.captures.dissect`), and what its payload becomes. Out: as many bytes. Rules

- The packet is made of zeros, and only what is understood is written into it: a field that nobody here knows is zero.
- Addresses become others (`addresses`), and so do the numbers that name networks (GRE keys, ids of VXLAN and GENEVE,
  MPLS labels, sessions of PPPoE), equal ones equal ones; ports, sequence numbers, flags, windows, lengths,
  identifications, VLANs and the TCP options that only TCP needs stay. What lies in other protocols than TCP is zeros
  behind their first header.
- A checksum that was right is right afterwards, one that was wrong is wrong, and one that was left to the network card
  is left to it. Where the capture cut the packet, nobody can tell: then it is the sum of what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kwire.analyzer.scrub.addresses import Addresses
from kwire.captures import dissect as d
from kwire.captures.links import (
    APPLE_IP_OVER_IEEE1394,
    ATM_RFC1483,
    C_HDLC,
    C_HDLC_WITH_DIR,
    CISCO_CMD,
    ENC,
    ETHERNET,
    FRAGMENT,
    FRAGMENT_HEADER,
    GENEVE_PORT,
    GRE,
    HSR,
    I_TAG,
    IP_OVER_FC,
    IPNET,
    LINUX_SLL,
    LINUX_SLL2,
    MPLS,
    MPLS_LABELS,
    MPLS_PORT,
    NFLOG,
    PFLOG,
    PKTAP,
    PKTAP_OF_MACOS,
    PPI,
    PPP_ETHER,
    TCP,
    TZSP_PORT,
    UDP,
    VLAN_TAGS,
    VN_TAG,
)

_ICMP: Final = (1, 58)
_TYPES: Final = {
    ETHERNET: (12, 14),
    LINUX_SLL: (14, 16),
    LINUX_SLL2: (0, 20),
    C_HDLC: (2, 4),
    C_HDLC_WITH_DIR: (3, 5),
    APPLE_IP_OVER_IEEE1394: (16, 18),
}
"""Where a link header says what follows, and its bytes."""
_UNTYPED: Final = {
    IP_OVER_FC: (16, 0),
    ATM_RFC1483: (0, 0),
    PPP_ETHER: (0, 0x8864),
    MPLS: (0, 0x8847),
    MPLS_LABELS: (0, 0x8847),
}
"""Bytes of the link headers that do not say what follows, and what follows (0: a SNAP header)."""
_SHORT_LINK: Final = 14  # Ethernet's header, and no more
_MOST_PPP: Final = 5
_TAGS: Final = {**dict.fromkeys(VLAN_TAGS, 4), VN_TAG: 6, HSR: 6, CISCO_CMD: 8}
_FRAME_TYPES: Final = (0x0800, 0x86DD, 0x8100, 0x88A8, 0x8847, 0x8848)  # kwire.captures.links.is_ethertype
_RESERVED_LABELS: Final = 16

_TCP_OPTIONS: Final = {2: 4, 3: 3, 4: 2, 8: 10}
"""Options that stay, by kind, and how long each is (RFC 9293, 7323, 2018): segment size, window scale, SACK permitted,
timestamps. SACK (5) has any number of ranges."""

Payload = Callable[[bytes], bytes]


def checksum(data: bytes) -> int:
    """The internet checksum (RFC 1071) of bytes, as it is written: 0 where the checksum among them is right."""
    total = int.from_bytes(data + b"\0" * (len(data) & 1), "big") % 0xFFFF
    return 0xFFFF - total if total else (0 if any(data) else 0xFFFF)


_MOST_LINKS: Final = 1 << 12
_MOST_PAIRS: Final = 1 << 16
"""Link headers and pairs of addresses that are remembered: each packet of a capture may have its own."""


class Packets:
    """Makes packets anew. `replaced`: is given what of a packet, its TCP payload apart, becomes something else."""

    def __init__(self, addresses: Addresses, replaced: Callable[[bytes], object] = len) -> None:
        self.addresses = addresses
        self._replaced = replaced
        self._links: dict[tuple[int, bytes], bytes] = {}
        self._pairs: dict[bytes, tuple[bytes, int, int]] = {}

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
                self._replaced(data[start:frame])
                self._tunnel(data, out, start, frame, tunnel)
            if ip - frame > _SHORT_LINK:
                self._replaced(data[frame:ip])
            self._link(data, out, frame, ip, link)
            self._ip(data, out, ip, transport, version)
            after.append((ip, transport, min(ip_end, len(data)), protocol, version))
            start, tunnel = transport, protocol
        if not depth:
            self._replaced(data)
            self._alone(data, out, row[d.FIRST_LAYER + d.LINK_TYPE])
            return bytes(out)
        ip, transport, end, protocol, version = after[-1]
        self._replaced(data[end:] if protocol == TCP and row[d.KIND] == TCP else data[transport + 8 :])
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
        """Clean the link headers before an IP header; MPLS and what programs add may have others inside. Most
        packets of a capture have one of few, whose addresses are hashed once."""
        key = link, data[start:end]
        clean = self._links.get(key)
        if clean is None:
            at = start
            while at < end:
                behind, link = self._one_header(data, out, at, end, link)
                at = behind if behind > at else end
            if len(self._links) == _MOST_LINKS:
                self._links.clear()
            self._links[key] = bytes(out[start:end])
        else:
            out[start:end] = clean

    def _one_header(self, data: bytes, out: bytearray, start: int, end: int, link: int) -> tuple[int, int]:
        """Clean one link header; return where the next one begins, and its type."""
        link_address = self.addresses.link
        if link == ETHERNET:
            for at in (start, start + 6):
                out[at : at + 6] = link_address(data[at : at + 6])
        elif link in (LINUX_SLL, LINUX_SLL2):
            at = start + (6 if link == LINUX_SLL else 12)
            out[start:at] = data[start:at]
            if data[at - 1] == 6:  # the address's length
                out[at : at + 6] = link_address(data[at : at + 6])
        elif link in (C_HDLC, C_HDLC_WITH_DIR):
            out[start : start + 2] = data[start : start + 2]
        if link in _TYPES:
            type_at, size = _TYPES[link]
            type_at += start
            out[type_at : type_at + 2] = data[type_at : type_at + 2]
            return self._types(data, out, start + size, end, int.from_bytes(data[type_at : type_at + 2], "big"))
        if link in _UNTYPED:
            size, what = _UNTYPED[link]
            return self._types(data, out, start + size, end, what)
        if link in (PFLOG, ENC, IPNET):  # names of interfaces and rule sets
            out[start : start + 4] = data[start : start + 4]
        elif link == NFLOG:
            self._nflog(data, out, start, end)
        elif link in (PPI, PKTAP, PKTAP_OF_MACOS):  # names of interfaces and programs
            size_at = start + 2 if link == PPI else start
            size = int.from_bytes(data[size_at : start + 4], "little")
            head = 8 if link == PPI else 12
            out[start : start + head] = data[start : start + head]
            inner = int.from_bytes(data[start + head - 4 : start + head], "little")
            return start + size, inner
        else:  # a family or a protocol of PPP, no more
            stop = min(end, start + _MOST_PPP)
            out[start:stop] = data[start:stop]
        return end, link

    def _types(self, data: bytes, out: bytearray, at: int, end: int, what: int) -> tuple[int, int]:
        """Clean what lies between a type field, which said `what`, and IP or a further frame, as
        `kwire.captures.links.find_ip` reads it; return where that begins, and its type."""
        label = self.addresses.label
        if what < 0x600 and at + 8 <= end:  # a SNAP header
            out[at : at + 8] = data[at : at + 8]
            what = int.from_bytes(data[at + 6 : at + 8], "big")
            at += 8
        while what in _TAGS and at + 4 <= end:
            size, copied = _TAGS[what], 2
            if what == CISCO_CMD:
                size = 4 + 4 * data[at + 1]
            elif what in (VN_TAG, HSR) or what in VLAN_TAGS:
                copied = size
            if at + size > end:
                return end, ETHERNET
            out[at : at + copied] = data[at : at + copied]
            out[at + size - 2 : at + size] = data[at + size - 2 : at + size]
            what = int.from_bytes(data[at + size - 2 : at + size], "big")
            at += size
        if what == I_TAG and at + 4 <= end:
            out[at : at + 4] = data[at : at + 1] + label(data[at + 1 : at + 4])
            return at + 4, ETHERNET
        if what == 0x8864 and at + 8 <= end:
            out[at : at + 8] = data[at : at + 2] + label(data[at + 2 : at + 4]) + data[at + 4 : at + 8]
        elif what in (0x8847, 0x8848):
            while at + 4 <= end:
                number = int.from_bytes(data[at : at + 3], "big") >> 4
                if number >= _RESERVED_LABELS:
                    clean = int.from_bytes(label(number.to_bytes(3, "big")), "big") >> 4
                    number = clean if clean >= _RESERVED_LABELS else clean + _RESERVED_LABELS
                out[at : at + 3] = (number << 4 | data[at + 2] & 15).to_bytes(3, "big")
                out[at + 3] = data[at + 3]
                at += 4
                if data[at - 2] & 1:
                    break
            if at < end:  # a frame of Ethernet, behind a control word or not
                word = data[at] < 16 and int.from_bytes(data[at + 16 : at + 18], "big") in _FRAME_TYPES
                return at + 4 * word, ETHERNET
        return end, ETHERNET

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

    def _tunnel(self, data: bytes, out: bytearray, start: int, end: int, protocol: int) -> None:
        """Clean the bytes between an IP header and the frame that it carries: options and checksums go."""
        label = self.addresses.label
        if protocol == UDP:  # no checksum is none (RFC 768)
            out[start : start + 6] = data[start : start + 6]
            at, port = start + 8, int.from_bytes(data[start + 2 : start + 4], "big")
            if port == MPLS_PORT:
                return
            if port == TZSP_PORT:
                self._tzsp(data, out, at, end)
                return
            if port == GENEVE_PORT:
                out[at : at + 4] = bytes([data[at], data[at + 1] & 0xC0]) + data[at + 2 : at + 4]
            else:
                out[at] = 8  # VXLAN: "its id is valid"
            out[at + 4 : at + 7] = label(data[at + 4 : at + 7])
        elif protocol == GRE:
            flags = data[start]
            out[start : start + 4] = bytes([flags & 0xB0, 0]) + data[start + 2 : start + 4]
            at = start + 4 + (flags >> 5 & 4)
            if flags & 0x20:
                out[at : at + 4] = label(data[at : at + 4])
                at += 4
            if flags & 0x10:
                out[at : at + 4] = data[at : at + 4]
                at += 4
            if at < end:  # ERSPAN: its version, and in III what it carries and whether 8 bytes follow
                out[at] = data[at] & 0xF0
                if at + 12 <= end:
                    out[at + 10 : at + 12] = bytes([data[at + 10] & 0x7C, data[at + 11] & 1])

    @staticmethod
    def _tzsp(data: bytes, out: bytearray, at: int, end: int) -> None:
        """TZSP's header, and of its fields the numbers and lengths."""
        out[at : at + 4] = data[at : at + 4]
        at += 4
        while at < end:
            size = 1 if data[at] < 2 or at + 2 > end else 2 + data[at + 1]
            out[at : at + min(size, 2)] = data[at : at + min(size, 2)]
            at += size

    # -- IP ------------------------------------------------------------------------------------------------------------

    def _pair(self, pair: bytes) -> tuple[bytes, int, int]:
        """Two addresses of an IP header, clean, and what they add to TCP's checksum, before and after."""
        known = self._pairs.get(pair)
        if known is None:
            half = len(pair) // 2
            clean = self.addresses.address(pair[:half]) + self.addresses.address(pair[half:])
            was, now = (checksum(side + b"\0\6") ^ 0xFFFF for side in (pair, clean))
            if len(self._pairs) == _MOST_PAIRS:
                self._pairs.clear()
            known = self._pairs[pair] = clean, was, now
        return known

    def _ip(self, data: bytes, out: bytearray, ip: int, transport: int, version: int) -> None:
        if version == 4:
            out[ip : ip + 12] = data[ip : ip + 12]
            out[ip + 12 : ip + 20] = self._pair(data[ip + 12 : ip + 20])[0]
            if transport > ip + 20:
                self._replaced(data[ip + 20 : transport])
                out[ip + 20 : transport] = b"\x01" * (transport - ip - 20)  # options that do nothing
            return
        out[ip : ip + 8] = data[ip : ip + 8]
        out[ip + 8 : ip + 40] = self._pair(data[ip + 8 : ip + 40])[0]
        self._replaced(data[ip + 40 : transport])
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
        if len(data) < at + 18:
            return  # cut off before the end of its checksum
        begin = min(at + (data[at + 12] >> 4) * 4, end)
        self._replaced(_options(data, out, at + 20, begin))
        if begin < end and payload is not None:
            out[begin:end] = payload(data[begin:end])
        place = slice(ip + 12, ip + 20) if version == 4 else slice(ip + 8, ip + 40)
        size = end - at
        _, was, now = self._pair(data[place])  # of the pseudo-header
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


def _options(data: bytes, out: bytearray, at: int, end: int) -> bytes:
    """TCP's: of those that may hold anything (MD5, fast open, multipath ...) kind and length; return what they held."""
    replaced = b""
    while at < end:
        kind = data[at]
        if kind <= 1:
            out[at] = kind
            if kind == 0:
                return replaced + data[at:end]
            at += 1
            continue
        size = data[at + 1] if at + 1 < end else 0
        if size < 2 or at + size > end:
            out[at:end] = b"\x01" * (end - at)
            return replaced + data[at:end]
        out[at : at + 2] = data[at : at + 2]
        if _TCP_OPTIONS.get(kind) == size or (kind == 5 and size % 8 == 2):
            out[at : at + size] = data[at : at + size]
        else:
            replaced += data[at + 2 : at + size] + b"\0"
        at += size
    return replaced


def _padding(size: int) -> bytes:
    """Options of IPv6 that are nothing but so many bytes."""
    padding = b""
    while size:
        part = min(size, 255)
        padding += b"\0" if part == 1 else bytes([1, part - 2]) + bytes(part - 2)
        size -= part
    return padding
