"""Names of addresses that a capture itself holds: name resolution blocks of pcapng, and answers of DNS.

In: a capture. Out: pairs of an address, as text, and a name, those that say most first. Rules: a name of a block counts
before one of DNS; of several names of DNS that have an address, the one that the fewest addresses have counts, because
a name of many is a bootstrap server or a headless service; what is damaged is passed over. DNS is read over UDP (ports
53 and 5353) by dpkt; a name is what was asked for, not what an alias leads to.

Sources: draft-ietf-opsawg-pcapng, RFC 1035, RFC 3596.
"""

from __future__ import annotations

import io
import ipaddress
import struct
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kwire.captures.files import CapturePoint, capture_points
from kwire.captures.files.layouts import LARGEST_RECORD_BYTES, PCAP_MAGICS, PCAPNG_MAGIC
from kwire.captures.files.sources import Source

if TYPE_CHECKING:
    from kwire.captures.dissect import Dissected

MOST_NAMES: Final = 1_000_000
"""Names that are taken from a capture: a cluster has thousands, a hostile file may have as many as it likes."""

_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_NAMES_BLOCK: Final = 4
_ADDRESS_BYTES: Final = {1: 4, 2: 16}
"""By kind of a record: IPv4, IPv6."""
_HEAD: Final = 8
"""Bytes of a block's kind and length."""
_CHUNK: Final = 1 << 20
_UDP: Final = 17
_PORTS: Final = (53, 5353)
"""Of DNS, and of multicast DNS."""
_UDP_BYTES: Final = 8
_LEAST: Final = _UDP_BYTES + 12
"""Bytes of a UDP header and a DNS header."""

Pair = tuple[str, str]


def is_capture(head: bytes) -> bool:
    """Tell a capture by its first bytes, which may be compressed."""
    return head[:4] in PCAP_MAGICS or head[:4] == PCAPNG_MAGIC or head.startswith(_COMPRESSED)


def names_in(path: str) -> Iterator[Pair]:
    """Yield (address, name) of a capture's blocks, then of its DNS answers. Raises CaptureError."""
    (point,) = capture_points([path])
    for file in point.paths:
        with Source(file, None, point.folder) as source:
            yield from _of_blocks(source)
    yield from _of_answers(point)


# -------------------------------------------------------------------------------------------- name resolution blocks


class _Raw(io.RawIOBase):
    """A source as Python's own files are, for a buffer on top of it."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        return self._source.readinto(into)


def _of_blocks(source: Source) -> Iterator[Pair]:
    """Yield the names in name resolution blocks of a pcapng file, up to where it is damaged; of other files none."""
    file = io.BufferedReader(_Raw(source), _CHUNK)
    if file.peek(4)[:4] != PCAPNG_MAGIC:
        return
    order = "<"
    while len(head := file.read(_HEAD)) == _HEAD:
        if head[:4] == PCAPNG_MAGIC:
            order = "<" if file.peek(4)[:4] == b"\x4d\x3c\x2b\x1a" else ">"
        kind, length = struct.unpack(order + "II", head)
        if not _HEAD + 4 <= length <= LARGEST_RECORD_BYTES:
            return
        body = file.read(length - _HEAD)
        if len(body) < length - _HEAD:
            return
        if kind == _NAMES_BLOCK:
            yield from _of_block(body[:-4], order)


def _of_block(records: bytes, order: str) -> Iterator[Pair]:
    """Yield the names of one block: records of an address and names that end in a zero each; the first counts."""
    at = 0
    while at + 4 <= len(records):
        kind, length = struct.unpack_from(order + "HH", records, at)
        value = records[at + 4 : at + 4 + length]
        size = _ADDRESS_BYTES.get(kind)
        if size is not None and len(value) == length > size:
            name = value[size:].split(b"\0")[0].decode("utf-8", "replace")
            yield str(ipaddress.ip_address(value[:size])), name
        at += 4 + length + -length % 4


# ----------------------------------------------------------------------------------------------------- answers of DNS


def _of_answers(point: CapturePoint) -> Iterator[Pair]:
    """Yield the names in answers of DNS, those that the fewest addresses have first."""
    from kwire.captures.dissect import Dissector  # loads kernels

    pairs: dict[Pair, None] = {}
    for packets in Dissector(point):
        for message in _messages(packets):
            if len(pairs) < MOST_NAMES:
                pairs.update(dict.fromkeys(_of_message(message)))
    addresses = Counter(name for _, name in pairs)
    yield from sorted(pairs, key=lambda pair: addresses[pair[1]])  # equal ones stay in order of time


def _messages(packets: Dissected) -> Iterator[bytes]:
    """Yield what servers of DNS sent, in the innermost IP packets of some packets."""
    from kwire.captures.dissect import AT, CAPTURED, DEPTH, FIRST_LAYER, IP_END, LAYER_COLUMNS, PROTOCOL, TRANSPORT

    rows = packets.rows[packets.rows[:, DEPTH] > 0]
    layer = FIRST_LAYER + (rows[:, DEPTH] - 1) * LAYER_COLUMNS
    at = np.arange(len(rows))
    udp = rows[at, layer + PROTOCOL] == _UDP
    start, end = rows[at, layer + TRANSPORT][udp], rows[at, layer + IP_END][udp]
    end = np.minimum(end, (rows[:, AT] + rows[:, CAPTURED])[udp])
    whole = end - start >= _LEAST
    start, end = start[whole], end[whole]
    port = packets.buffer[start].astype(np.int64) << 8 | packets.buffer[start + 1]
    is_answer = np.isin(port, _PORTS) & (packets.buffer[start + _UDP_BYTES + 2] >= 0x80)
    for first, last in zip(start[is_answer].tolist(), end[is_answer].tolist(), strict=True):
        yield bytes(packets.buffer[first + _UDP_BYTES : last])


def _of_message(message: bytes) -> Iterator[Pair]:
    """Yield the names in one answer: of A and AAAA what was asked for, of PTR what was answered."""
    import dpkt

    try:
        answer = dpkt.dns.DNS(message)
    except (dpkt.Error, ValueError, IndexError, KeyError, struct.error):
        return
    question = answer.qd[0].name if answer.qd else ""
    for record in answer.an:
        if record.type == dpkt.dns.DNS_A and len(record.rdata) == 4:
            yield str(ipaddress.IPv4Address(record.rdata)), question or record.name
        elif record.type == dpkt.dns.DNS_AAAA and len(record.rdata) == 16:
            yield str(ipaddress.IPv6Address(record.rdata)), question or record.name
        elif record.type == dpkt.dns.DNS_PTR and (known := _reversed(record.name)) is not None:
            yield known, record.ptrname


def _reversed(name: str) -> str | None:
    """The address that a name of `in-addr.arpa` or `ip6.arpa` stands for; None: it is none."""
    labels = name.lower().rstrip(".").split(".")[::-1]
    try:
        if labels[:2] == ["arpa", "in-addr"]:
            return str(ipaddress.IPv4Address(".".join(labels[2:])))
        if labels[:2] == ["arpa", "ip6"]:
            digits = "".join(labels[2:])
            return str(ipaddress.IPv6Address(":".join(digits[at : at + 4] for at in range(0, 32, 4))))
    except ValueError:
        return None
    return None
