"""Kinds of captured frames that hold no readable TCP: counted by the packet scan, named for users.

In: the reason of a frame whose kind has a number (`links.unread_kind`). Out: counters behind the classes of `COUNTED`,
and by name those that may hide traffic. What never carries TCP (ARP, spanning tree, ICMP) is not among these.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kwire.captures.kernels import Array, Int, shared
from kwire.captures.links import (
    BY_ETHERTYPE,
    BY_FAMILY,
    BY_PORT,
    BY_PPP,
    BY_PROTOCOL,
    BY_SAP,
    FIRST_KIND,
    NOT_IP,
    NOT_TCP,
)

COUNTED = ("tcp", "not_ip", "not_tcp", "fragment", "malformed", "headers_cut", "unknown_link", "reassembled")
"""The classes of captured packets: slot 0 is a row, slot n is the reason -n of `kwire.captures.links`. A fragment is a
`fragment` until its packet is whole: then the one that completed it counts as what the packet is, all others as
`reassembled`."""

MOST_KINDS: Final = 32
"""Kinds that are counted one by one; those of further kinds are not told apart."""

_KINDS_AT: Final = len(COUNTED)

# fmt: off
_NO_TCP: Final[dict[int, frozenset[int]]] = {
    BY_ETHERTYPE: frozenset((
        0x0806, 0x0842, 0x2000, 0x2004, 0x22EA, 0x22F0, 0x8035, 0x809B, 0x80F3, 0x8137, 0x8808, 0x8809, 0x8863,
        0x8892, 0x8899, 0x88A2, 0x88A4, 0x88B8, 0x88BA, 0x88CC, 0x888E, 0x88E1, 0x88E3, 0x88F5, 0x88F7, 0x88FB,
        0x8902, 0x8906, 0x8912, 0x8914, 0x893A, 0x9000,
    )),
    BY_PROTOCOL: frozenset((1, 2, 3, 8, 9, 17, 33, 46, 58, 59, 88, 89, 103, 112, 113, 124, 132, 133, 136)),
}
# fmt: on
"""By category, numbers of protocols that never carry TCP: of neighbours, of links, of routing, of storage."""

_NAMES: Final[dict[tuple[int, int], str]] = {
    (BY_ETHERTYPE, 0x22F3): "TRILL",
    (BY_ETHERTYPE, 0x4305): "B.A.T.M.A.N.",
    (BY_ETHERTYPE, 0x880B): "PPP",
    (BY_ETHERTYPE, 0x88E5): "MACsec",
    (BY_ETHERTYPE, 0x8903): "FabricPath",
    (BY_ETHERTYPE, 0x893F): "E-tag",
    (BY_ETHERTYPE, 0x894F): "NSH",
    (BY_PORT, 1701): "L2TP",
    (BY_PORT, 2152): "GTP",
    (BY_PORT, 3544): "Teredo",
    (BY_PORT, 4341): "LISP",
    (BY_PORT, 4500): "IPsec",
    (BY_PORT, 4790): "VXLAN-GPE",
    (BY_PORT, 5247): "CAPWAP",
    (BY_PORT, 5555): "FOU",
    (BY_PORT, 6080): "GUE",
    (BY_PORT, 37008): "TZSP without a frame of Ethernet",
    (BY_PORT, 51820): "WireGuard",
}


@shared
def count_kind(counts: Array, reason: Int) -> Int:
    """Count a frame whose kind has a number, `reason`, and return its class: NOT_IP or NOT_TCP.

    counts int64[COUNTERS]: behind the classes, MOST_KINDS times the reason of a kind (0: not used) and its frames."""
    for at in range(_KINDS_AT, len(counts), 2):
        if counts[at] == 0:
            counts[at] = reason
        if counts[at] == reason:
            counts[at + 1] += 1
            break
    return np.int64(NOT_IP if FIRST_KIND - reason < BY_PROTOCOL << 16 else NOT_TCP)


COUNTERS: Final = _KINDS_AT + 2 * MOST_KINDS
"""The length of an array of counters."""


def add_counts(into: np.ndarray, more: np.ndarray) -> None:
    """Add the counters of further packets to those of the packets before them."""
    into[:_KINDS_AT] += more[:_KINDS_AT]
    pairs = into[_KINDS_AT:].reshape(-1, 2)
    for reason, count in more[_KINDS_AT:].reshape(-1, 2).tolist():
        slots = np.flatnonzero((pairs[:, 0] == reason) | (pairs[:, 0] == 0))
        if reason and len(slots):
            pairs[slots[0], 0] = reason
            pairs[slots[0], 1] += count


def not_understood(counts: np.ndarray) -> dict[str, int]:
    """Return how many frames were not understood, by what they are, the most frequent first."""
    named = {}
    for reason, count in counts[_KINDS_AT:].reshape(-1, 2).tolist():
        category, number = (FIRST_KIND - reason) >> 16, (FIRST_KIND - reason) & 0xFFFF
        if count and _may_hide_tcp(category, number):
            named[_name(category, number)] = count
    if malformed := int(counts[COUNTED.index("malformed")]):
        named["malformed"] = malformed
    return dict(sorted(named.items(), key=lambda item: (-item[1], item[0])))


def _may_hide_tcp(category: int, number: int) -> bool:
    if category in _NO_TCP:
        return number not in _NO_TCP[category]
    if category == BY_SAP:
        return number == 0x06  # IP; all others are of link protocols, NetBIOS, IPX
    if category == BY_PPP:
        return number < 0x4000  # what is above negotiates (RFC 1661)
    return category in (BY_FAMILY, BY_PORT)


def _name(category: int, number: int) -> str:
    forms = {
        BY_ETHERTYPE: f"ethertype 0x{number:04x}",
        BY_SAP: f"802.2 SAP 0x{number:02x}",
        BY_PPP: f"PPP protocol 0x{number:04x}",
        BY_FAMILY: f"address family {number}",
        BY_PROTOCOL: f"IP protocol {number}",
        BY_PORT: f"UDP port {number}",
    }
    name = _NAMES.get((category, number)) or _usual_name(category, number)
    return f"{forms[category]} ({name})" if name else forms[category]


def _usual_name(category: int, number: int) -> str | None:
    """Return the name that dpkt has for the number of a protocol."""
    if category not in (BY_ETHERTYPE, BY_PROTOCOL):
        return None
    import dpkt  # seldom needed

    names, prefix = (dpkt.ethernet, "ETH_TYPE_") if category == BY_ETHERTYPE else (dpkt.ip, "IP_PROTO_")
    known = sorted(name for name, value in vars(names).items() if name.startswith(prefix) and value == number)
    return known[0].removeprefix(prefix) if known else None


def unread_lines(capture: str, counts: dict[str, Any]) -> list[str]:
    """Say which packets of a capture point were not understood, and if it has no TCP at all. In: `Reader.counts`."""
    unread = counts.get("not_understood", {})
    if unread:
        kinds = ", ".join(f"{kind} ({count:,})" if len(unread) > 1 else kind for kind, count in unread.items())
        total = sum(unread.values())
        are = "packets are" if total != 1 else "packet is"
        return [f"{capture}: {total:,} {are} not understood: {kinds}"]
    if counts["packets"] and not counts["tcp"]:
        classes = ", ".join(
            f"{name.replace('_', ' ')} ({counts[name]:,})" for name in COUNTED if name != "tcp" and counts[name]
        )
        return [f"{capture}: no TCP among its {counts['packets']:,} packets: {classes}"]
    return []
