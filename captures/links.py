"""Links, IP and tunnels: from the first byte of a captured frame to its transport header.

In: a frame in the window (its captured end and its end on the wire) and its link type. Out: where the IP packet
begins, then where its transport header begins and where the IP packet ends. `find_ip` and `walk_ip` are two small
steps on purpose: behind a tunnel's header (`enter_tunnel`) and in a reassembled packet they are taken again.

The rule: lengths come from the IP header, never from the frame, so link-layer padding is never payload. What is not
readable has a reason (a negative number), never an exception.
"""

from __future__ import annotations

import numpy as np

from kwire.captures.kernels import MACHINE_CODE, Bytes, Flag, Int, big16, big32, inline, shared

# Link types, as tcpdump.org/linktypes.html numbers them.
NULL, ETHERNET, PPP, RAW_BSD, RAW_OPENBSD, PPP_HDLC, PPP_ETHER, ATM_RFC1483, RAW = 0, 1, 9, 12, 14, 50, 51, 100, 101
C_HDLC, LOOP, ENC, LINUX_SLL, PFLOG, IP_OVER_FC, APPLE_IP_OVER_IEEE1394 = 104, 108, 109, 113, 117, 122, 138
PPP_PPPD, PPI, PPP_WITH_DIR, C_HDLC_WITH_DIR, MPLS, IPNET, IPV4, IPV6 = 166, 192, 204, 205, 219, 226, 228, 229
NFLOG, PKTAP, LINUX_SLL2 = 239, 258, 276
PKTAP_OF_MACOS = 149  # LINKTYPE_USER2, which macOS' tcpdump writes for PKTAP

LINK_NAMES = {
    NULL: "NULL",
    ETHERNET: "ETHERNET",
    PPP: "PPP",
    RAW_BSD: "RAW",
    RAW_OPENBSD: "RAW",
    PPP_HDLC: "PPP_HDLC",
    PPP_ETHER: "PPP_ETHER",
    ATM_RFC1483: "ATM_RFC1483",
    RAW: "RAW",
    C_HDLC: "C_HDLC",
    LOOP: "LOOP",
    ENC: "ENC",
    LINUX_SLL: "LINUX_SLL",
    PFLOG: "PFLOG",
    IP_OVER_FC: "IP_OVER_FC",
    APPLE_IP_OVER_IEEE1394: "APPLE_IP_OVER_IEEE1394",
    PPP_PPPD: "PPP_PPPD",
    PPI: "PPI",
    PPP_WITH_DIR: "PPP_WITH_DIR",
    C_HDLC_WITH_DIR: "C_HDLC_WITH_DIR",
    MPLS: "MPLS",
    IPNET: "IPNET",
    IPV4: "IPV4",
    IPV6: "IPV6",
    NFLOG: "NFLOG",
    PKTAP: "PKTAP",
    PKTAP_OF_MACOS: "PKTAP",
    LINUX_SLL2: "LINUX_SLL2",
}
"""The link types that `find_ip` knows, with their official names (LINKTYPE_...)."""

UNREAD_NAMES = {
    3: "AX25",
    6: "IEEE802_5",
    7: "ARCNET_BSD",
    8: "SLIP",
    10: "FDDI",
    105: "IEEE802_11",
    106: "ATM_CLIP",
    107: "FRELAY",
    119: "IEEE802_11_PRISM",
    123: "SUNATM",
    127: "IEEE802_11_RADIOTAP",
    129: "ARCNET_LINUX",
    143: "DOCSIS",
    163: "IEEE802_11_AVS",
    206: "FRELAY_WITH_DIR",
    242: "IPOIB",
    247: "INFINIBAND",
    289: "ETW",
}
"""Link types that may carry IP and that `find_ip` does not know: a message about one says what it is."""

# Why there is no answer. Every captured packet is counted under exactly one of these, or as TCP.
NOT_IP, NOT_TCP, FRAGMENT, MALFORMED, HEADERS_CUT, UNKNOWN_LINK, REASSEMBLED = -1, -2, -3, -4, -5, -6, -7

BY_ETHERTYPE, BY_SAP, BY_VENDOR, BY_PPP, BY_FAMILY, BY_PROTOCOL, BY_PORT = range(7)
"""What the number of an unread kind of frame is: an Ethernet type, a destination SAP of IEEE 802.2, the lower half of a
SNAP header's vendor, PPP's protocol, an address family, IP's protocol, the UDP port of a tunnel."""

FIRST_KIND = -1024
"""Reasons from here down are NOT_IP, or NOT_TCP, of a kind of frame that has a number (`unread_kind`)."""

IP_IN_IP, TCP, UDP, IPV6_IN_IP, GRE, FRAGMENT_HEADER = 4, 6, 17, 41, 47, 44

VXLAN_PORT, VXLAN_PORT_OF_LINUX, GENEVE_PORT, MPLS_PORT, TZSP_PORT = 4789, 8472, 6081, 6635, 37008

UNREAD_PORTS = (1701, 2152, 3544, 4341, 4500, 4790, 5247, 5555, 6080, 51820)
"""UDP ports of tunnels that are not read: L2TP, GTP, Teredo, LISP, IPsec, VXLAN-GPE, CAPWAP, FOU, GUE, WireGuard."""

VLAN_TAGS = (0x8100, 0x88A8, 0x9100, 0x9200)
CISCO_CMD, VN_TAG, HSR, I_TAG = 0x8909, 0x8926, 0x892F, 0x88E7

MPLS_LABELS = 1 << 16
"""Not a link type of files (those have 16 bits): what lies in a GRE tunnel that carries MPLS."""


def link_name(link: int) -> str:
    """The official name of a link type, or its number."""
    return LINK_NAMES.get(link, str(link))


def unread_link(link: int) -> str:
    """A link type that is not read, as messages name it: its number, and its official name where that is at hand."""
    return f"{link} ({UNREAD_NAMES[link]})" if link in UNREAD_NAMES else str(link)


@inline
def net16(b: Bytes, at: Int) -> Int:
    """The unsigned 16-bit number in network order at `at`, as int64."""
    if MACHINE_CODE:
        return big16(b, at)
    return np.int64(b[at]) << 8 | np.int64(b[at + 1])


@inline
def net32(b: Bytes, at: Int) -> Int:
    """The unsigned 32-bit number in network order at `at`, as int64."""
    if MACHINE_CODE:
        return big32(b, at)
    return np.int64(b[at]) << 24 | np.int64(b[at + 1]) << 16 | np.int64(b[at + 2]) << 8 | np.int64(b[at + 3])


@inline
def short_of(needed: Int, wire_end: Int) -> Int:
    """Why a header that should reach to `needed` is not there: cut by the snap length, or never sent."""
    return np.int64(MALFORMED) if needed > wire_end else np.int64(HEADERS_CUT)


@inline
def unread_kind(category: Int, number: Int) -> Int:
    """The reason for a frame that is not read, by what it is: a category (BY_ETHERTYPE ...) and a number of 16 bits."""
    return np.int64(FIRST_KIND) - (np.int64(category) << 16 | np.int64(number))


@inline
def is_ethertype(protocol: Int) -> Flag:
    """Whether this is an Ethernet type that `find_ip` goes on from: the test of "is this an Ethernet frame?"."""
    return protocol in (0x0800, 0x86DD, 0x8100, 0x88A8, 0x8847, 0x8848)


@inline
def is_ip_family(family: Int) -> Flag:
    """Whether this is the number of IPv4's or IPv6's address family on some system: Linux 10, BSD 24, Solaris 26,
    FreeBSD 28, macOS 30."""
    return family in (2, 10, 24, 26, 28, 30)


@inline
def little16(b: Bytes, at: Int) -> Int:
    """The unsigned 16-bit little-endian number at `at`, as int64."""
    return np.int64(b[at + 1]) << 8 | np.int64(b[at])


@inline
def little32(b: Bytes, at: Int) -> Int:
    """The unsigned 32-bit little-endian number at `at`, as int64."""
    return little16(b, at + 2) << 16 | little16(b, at)


@shared
def unwrap_frame(b: Bytes, at: Int, end: Int, wire_end: Int, link: Int) -> tuple[Int, Int]:
    """Behind a header that a system or a capturing card put before a frame or a packet: (link type, offset) of what it
    says that follows, for `find_ip`, or (reason, 0).

    PPI and PKTAP name the link type of the frame behind them; PFLOG and ENC (OpenBSD's packet filter and IPsec), IPNET
    (Solaris) and NFLOG (Linux' netfilter) have an IP packet there.
    """
    zero = np.int64(0)
    least = 24 if link == IPNET else (12 if link in (ENC, PKTAP, PKTAP_OF_MACOS) else (8 if link == PPI else 4))
    if at + least > end:
        return short_of(at + least, wire_end), zero
    if link in (PPI, PKTAP, PKTAP_OF_MACOS):
        size = little16(b, at + 2) if link == PPI else little32(b, at)
        inner = little32(b, at + (4 if link == PPI else 8))
        if size < least:
            return np.int64(MALFORMED), zero
        return (inner if inner <= 0xFFFF else np.int64(UNKNOWN_LINK)), at + size
    if link == NFLOG:
        at += 4
        while at + 4 <= end:
            # A row of lengths, types and values; the lengths are in the order of the machine, which hardly ever is big-
            # endian. The type 9 is the packet.
            size = little16(b, at)
            if size < 4:
                return np.int64(MALFORMED), zero
            if little16(b, at + 2) & 0x7FFF == 9:
                return np.int64(RAW), at + 4
            at += (size + 3) // 4 * 4
        if at >= wire_end:
            return np.int64(NOT_IP), zero
        return short_of(at + 4, wire_end), zero
    if link == ENC:
        family = net32(b, at)
        if family > 0xFFFF:
            family = little16(b, at)
        at += 12
    else:
        family = np.int64(b[at + 1])
        at += 24 if link == IPNET else (np.int64(b[at]) + 3) // 4 * 4
    return (np.int64(RAW) if is_ip_family(family) else np.int64(NOT_IP)), at


@shared
def pop_labels(b: Bytes, at: Int, end: Int, wire_end: Int) -> tuple[Int, Int]:
    """Behind the MPLS labels at `at`: (RAW, offset of an IP header), (ETHERNET, offset of a frame) or (a reason, 0).

    Labels do not say what they carry. The first four bits tell IP (RFC 4928); a pseudowire's Ethernet frame (RFC 4448)
    is known by its type field, behind a control word or not.
    """
    zero = np.int64(0)
    while True:
        if at + 4 > end:
            return short_of(at + 4, wire_end), zero
        bottom = b[at + 2] & 1 != 0
        at += 4
        if bottom:
            break
    if at + 1 > end:
        return short_of(at + 1, wire_end), zero
    first = np.int64(b[at]) >> 4
    if first == 4 or first == 6:
        return np.int64(RAW), at
    if at + 18 > end:
        return short_of(at + 18, wire_end), zero
    if first == 0 and is_ethertype(net16(b, at + 16)):
        return np.int64(ETHERNET), at + 4
    if is_ethertype(net16(b, at + 12)):
        return np.int64(ETHERNET), at
    return np.int64(NOT_IP), zero


@shared
def pop_tags(b: Bytes, at: Int, end: Int, wire_end: Int, protocol: Int) -> tuple[Int, Int]:
    """Behind the tags at `at` that an Ethernet type, `protocol`, announces: (the type that follows, its offset), or (a
    reason, 0).

    IEEE 802.1Q and 802.1ad, VN-tags (IEEE 802.1BR's predecessor), HSR and PRP (IEC 62439-3), and Cisco's metadata
    (TrustSec), which says how many words of four bytes it has.
    """
    zero = np.int64(0)
    while True:
        if protocol in VLAN_TAGS:
            size = np.int64(4)
        elif protocol == VN_TAG or protocol == HSR:
            size = np.int64(6)
        elif protocol == CISCO_CMD:
            if at + 2 > end:
                return short_of(at + 2, wire_end), zero
            size = 4 + 4 * np.int64(b[at + 1])
        else:
            return protocol, at
        at += size
        if at > end:
            return short_of(at, wire_end), zero
        protocol = net16(b, at - 2)


@inline
def find_ip(b: Bytes, at: Int, end: Int, wire_end: Int, link: Int) -> Int:
    """Offset of the IP header in the frame at `at`, or a negative reason.

    `end` bounds the captured bytes, `wire_end` is where the frame ended on the wire (>= end).
    """
    while True:
        if link == ETHERNET:
            header, type_at = 14, 12
        elif link == LINUX_SLL:
            header, type_at = 16, 14
        elif link == LINUX_SLL2:
            header, type_at = 20, 0
        elif link in (RAW, RAW_BSD, RAW_OPENBSD, IPV4, IPV6):
            return at
        elif link in (NULL, LOOP):
            if at + 4 > end:
                return short_of(at + 4, wire_end)
            # NULL has the capturing machine's byte order, which need not be the file's: families are small numbers.
            family = net32(b, at)
            if family > 0xFFFF:
                family = np.int64(b[at + 1]) << 8 | np.int64(b[at])
            if is_ip_family(family):
                return at + 4
            return unread_kind(BY_FAMILY, family & 0xFFFF)
        elif link in (PPP, PPP_HDLC, PPP_PPPD, PPP_WITH_DIR):
            if link == PPP_WITH_DIR:
                at += 1
            if at + 4 > end:
                return short_of(at + 4, wire_end)
            # pppd has the direction where the address is.
            if b[at + 1] == 0x03 and (b[at] == 0xFF or (link == PPP_PPPD and b[at] <= 1)):
                at += 2
            protocol = net16(b, at)
            if protocol == 0x0021 or protocol == 0x0057:
                return at + 2
            return unread_kind(BY_PPP, protocol)
        elif link in (PPI, PKTAP, PKTAP_OF_MACOS, PFLOG, ENC, IPNET, NFLOG):
            link, at = unwrap_frame(b, at, end, wire_end, link)
            if link < 0:
                return link
            continue
        elif link == C_HDLC:
            header, type_at = 4, 2
        elif link == C_HDLC_WITH_DIR:
            header, type_at = 5, 3
        elif link == APPLE_IP_OVER_IEEE1394:
            header, type_at = 18, 16
        elif link == PPP_ETHER or link == MPLS or link == MPLS_LABELS or link == ATM_RFC1483:
            header, type_at = 0, 0
        elif link == IP_OVER_FC:
            header, type_at = 16, 0
        else:
            return np.int64(UNKNOWN_LINK)

        if at + header > end:
            return short_of(at + header, wire_end)
        if link == MPLS or link == MPLS_LABELS:
            protocol = np.int64(0x8847)
        elif link == PPP_ETHER:
            protocol = np.int64(0x8864)
        elif link == IP_OVER_FC or link == ATM_RFC1483:
            protocol = np.int64(0)
        else:
            protocol = net16(b, at + type_at)
        at += header
        if protocol < 0x600 and link in (ETHERNET, IP_OVER_FC, ATM_RFC1483):
            # IEEE 802.3 with a length: IP only behind a SNAP header (RFC 1042, 2625, 2684).
            if at + 8 > end:
                return np.int64(NOT_IP) if link == ETHERNET else short_of(at + 8, wire_end)
            if net32(b, at) & 0xFFFFFF00 != 0xAAAA0300:
                return unread_kind(BY_SAP, b[at])
            if b[at + 3] != 0 or b[at + 4] != 0 or b[at + 5] != 0:
                return unread_kind(BY_VENDOR, net16(b, at + 4))
            protocol = net16(b, at + 6)
            at += 8
        if protocol != 0x0800 and protocol != 0x86DD:
            protocol, at = pop_tags(b, at, end, wire_end, protocol)
            if protocol < 0:
                return protocol
        if protocol == 0x0800 or protocol == 0x86DD:
            return at
        if protocol == I_TAG:  # IEEE 802.1ah: a frame behind 4 bytes that name its service
            link, at = np.int64(ETHERNET), at + 4
            continue
        if protocol == 0x8864:  # PPPoE session (RFC 2516)
            if at + 8 > end:
                return short_of(at + 8, wire_end)
            protocol = net16(b, at + 6)
            at += 8
            if protocol == 0x0021 or protocol == 0x0057:
                return at
            return unread_kind(BY_PPP, protocol)
        if protocol != 0x8847 and protocol != 0x8848:
            return unread_kind(BY_ETHERTYPE, protocol)
        link, at = pop_labels(b, at, end, wire_end)
        if link < 0:
            return link


@inline
def walk_ip(b: Bytes, at: Int, end: Int, wire_end: Int) -> Int:
    """Walk the IP packet at `at` to its transport header.

    Returns (protocol, transport_at, ip_end, version): `protocol` is the IP protocol number or a negative reason,
    `ip_end` where the IP packet ended on the wire, by its own length (RFC 791, RFC 8200). A length of 0 is what
    segmentation offload leaves in a packet captured before the card filled it in: the frame's length counts then.
    Of a FRAGMENT, `transport_at` is where its bytes begin (IPv4), or its fragment header (IPv6).
    """
    zero = np.int64(0)
    if at + 20 > end:
        return short_of(at + 20, wire_end), zero, zero, zero
    version = np.int64(b[at]) >> 4
    if version == 4:
        header = (np.int64(b[at]) & 15) * 4
        length = net16(b, at + 2)
        if header < 20 or (length != 0 and length < header):
            return np.int64(MALFORMED), zero, zero, version
        ip_end = at + length if length != 0 else wire_end
        if at + header > end:
            return short_of(at + header, wire_end), zero, zero, version
        if net16(b, at + 6) & 0x3FFF != 0:
            return np.int64(FRAGMENT), at + header, ip_end, version
        return np.int64(b[at + 9]), at + header, ip_end, version
    if version != 6:
        return np.int64(MALFORMED), zero, zero, version

    if at + 40 > end:
        return short_of(at + 40, wire_end), zero, zero, version
    length = net16(b, at + 4)
    ip_end = at + 40 + length if length != 0 else wire_end
    protocol = np.int64(b[at + 6])
    next_at = at + 40
    while True:
        # Hop-by-hop, routing, destination, mobility, HIP, shim6: length in 8 bytes after the first 8.
        if protocol == 0 or protocol == 43 or protocol == 60 or protocol == 135 or protocol == 139 or protocol == 140:
            unit, first = 8, 8
        elif protocol == FRAGMENT_HEADER:  # fragment: no length
            unit, first = 0, 8
        elif protocol == 51:  # authentication header: length in 4 bytes after the first 8
            unit, first = 4, 8
        else:
            return protocol, next_at, ip_end, version
        if next_at + 8 > end:
            return short_of(next_at + 8, min(ip_end, wire_end)), zero, zero, version
        # A fragment that is the whole packet (offset 0, none to follow) is legal: RFC 6946.
        if protocol == FRAGMENT_HEADER and net16(b, next_at + 2) & 0xFFF9 != 0:
            return np.int64(FRAGMENT), next_at, ip_end, version
        protocol = np.int64(b[next_at])
        next_at += first + np.int64(b[next_at + 1]) * unit
        if next_at > ip_end:
            return np.int64(MALFORMED), zero, zero, version


@shared
def open_tzsp(b: Bytes, at: Int, end: Int, wire_end: Int) -> tuple[Int, Int]:
    """Behind the header of TZSP at `at`: (ETHERNET, offset of the frame), or (a reason, 0)."""
    zero = np.int64(0)
    if at + 4 > end:
        return short_of(at + 4, wire_end), zero
    # Version 1; received, or to be sent; Ethernet. Keep-alive and configuration packets carry no frame.
    if b[at] != 1 or b[at + 1] > 1 or net16(b, at + 2) != 1:
        return unread_kind(BY_PORT, TZSP_PORT), zero
    at += 4
    while at < end:
        tag = b[at]
        if tag == 1:
            return np.int64(ETHERNET), at + 1
        if tag == 0:
            at += 1
        elif at + 2 > end:
            break
        else:
            at += 2 + np.int64(b[at + 1])
    return short_of(max(at, end) + 1, wire_end), zero


@shared
def enter_tunnel(b: Bytes, protocol: Int, at: Int, end: Int, wire_end: Int) -> tuple[Int, Int]:
    """Find the inner packet of an IP payload if `protocol` is a tunnel.

    Returns (link type, offset) for `find_ip`, or (reason, 0). `end` and `wire_end` are the outer IP packet's. A
    protocol that is no known tunnel is NOT_TCP.

    VXLAN (RFC 7348; also on the port that Linux first used), GENEVE (RFC 8926), GRE (RFC 2784, 2890; as NVGRE too),
    ERSPAN I to III in it (draft-foschiano-erspan), IP in IP (RFC 2003, 4213, 2473), MPLS in UDP (RFC 7510), TZSP
    (TaZmen Sniffer Protocol, as MikroTik's routers and wireless sensors send it).
    """
    zero = np.int64(0)
    if protocol in (IP_IN_IP, IPV6_IN_IP):
        return np.int64(RAW), at
    if protocol == UDP:
        if at + 8 > end:
            return np.int64(NOT_TCP), zero
        port = net16(b, at + 2)
        at += 8
        if port in (VXLAN_PORT, VXLAN_PORT_OF_LINUX):
            if at + 8 > end:
                return short_of(at + 8, wire_end), zero
            # Without the "I" flag, or with something in the reserved byte, it is another protocol on that port.
            if b[at] & 0x08 == 0 or b[at + 7] != 0:
                return np.int64(NOT_TCP), zero
            return np.int64(ETHERNET), at + 8
        if port == MPLS_PORT:
            return np.int64(MPLS_LABELS), at
        if port == TZSP_PORT:
            return open_tzsp(b, at, end, wire_end)
        if port != GENEVE_PORT:
            return (unread_kind(BY_PORT, port) if port in UNREAD_PORTS else np.int64(NOT_TCP)), zero
        if at + 8 > end:
            return short_of(at + 8, wire_end), zero
        if b[at] & 0xC0 != 0:  # a version that is not known
            return np.int64(NOT_TCP), zero
        kind = net16(b, at + 2)
        at += 8 + (np.int64(b[at]) & 0x3F) * 4
    elif protocol == GRE:
        if at + 4 > end:
            return short_of(at + 4, wire_end), zero
        flags = net16(b, at)
        kind = net16(b, at + 2)
        if flags & 0x4007 != 0:  # source routes (given up by RFC 2784), or the version that carries PPP (RFC 2637)
            return np.int64(NOT_TCP), zero
        # Four bytes each for checksum, key and sequence number.
        at += 4 + 4 * ((flags >> 15 & 1) + (flags >> 13 & 1) + (flags >> 12 & 1))
        if kind == 0x88BE:
            # ERSPAN II has a header of its own and numbers its packets; ERSPAN I does neither.
            if flags & 0x1000 != 0:
                at += 8
            kind = np.int64(0x6558)
        elif kind == 0x22EB:
            if at + 12 > end:
                return short_of(at + 12, wire_end), zero
            payload = np.int64(b[at + 10]) >> 2 & 31
            at += 20 if b[at + 11] & 1 != 0 else 12  # "O": a platform's own 8 bytes
            if payload == 0:
                kind = np.int64(0x6558)
            elif payload == 2:
                return np.int64(RAW), at
    else:
        return unread_kind(BY_PROTOCOL, protocol), zero
    if kind == 0x6558:
        return np.int64(ETHERNET), at
    if kind == 0x0800 or kind == 0x86DD:
        return np.int64(RAW), at
    if kind == 0x8847 or kind == 0x8848:
        return np.int64(MPLS_LABELS), at
    return unread_kind(BY_ETHERTYPE, kind), zero
