"""Copy packets of a capture file to a pcapng section, with comments.

In: a file, and the places of the packets in it. Out: blocks. Rules: packets are copied as captured, in their order; a
pcapng file's interfaces, names and secrets are copied too; a packet that is cut off at the end of a file is left out; a
simple packet block has no room for a comment.

Source: draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kwire.captures.files.sources import Source
from kwire.captures.files.write import block_of, option

SECTION: Final = 0x0A0D0D0A
_INTERFACE, _OLD, _SIMPLE, _NAMES, _ENHANCED, _SECRETS = 1, 2, 3, 4, 6, 0xA
_PACKETS: Final = (_OLD, _SIMPLE, _ENHANCED)
_COMMENT: Final = 1
_APPLICATION: Final = 4
_KEY_LOG: Final = 0x544C534B
_IPV4, _IPV6 = 1, 2

_PCAP: Final = {0xA1B2C3D4: 6, 0xA1B23C4D: 9}
"""Magic numbers of pcap, and their resolution as a power of ten."""
_LARGEST: Final = 1 << 28
"""Bytes of the largest record; a larger length means a damaged file."""
_FIXED: Final = 20
"""Bytes of a packet block before the packet."""
LONGEST_COMMENT: Final = 4000
"""Bytes of a comment: it is read in a line of a window; the format takes 65,535."""

Comment = Callable[[int], str]
"""The comment of the packet at a place, empty for none."""


def no_comment(place: int) -> str:
    """Comment no packet."""
    return ""


class Additions:
    """Contents of the first section besides packets: secrets of TLS sessions, as lines of a key log, and names by
    address. application: who writes the file."""

    def __init__(self, secrets: bytes = b"", names: Iterable[tuple[str, str]] = (), application: str = "") -> None:
        self.application = application
        self._secrets = secrets
        self._names = list(names)

    def blocks(self, order: str) -> Iterator[bytes]:
        """Yield the blocks, which go before the packets that they are about."""
        if self._secrets:
            head = struct.pack(order + "II", _KEY_LOG, len(self._secrets))
            yield block_of(order, _SECRETS, head + self._secrets)
        if self._names:
            records = b"".join(_name_record(order, address, name) for address, name in self._names)
            yield block_of(order, _NAMES, records + struct.pack(order + "HH", 0, 0))


def _name_record(order: str, address: str, name: str) -> bytes:
    import ipaddress

    ip = ipaddress.ip_address(address)
    return option(order, _IPV4 if ip.version == 4 else _IPV6, ip.packed + name.encode() + b"\0")


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


def copied_packets(
    source: Source, places: set[int], comment: Comment = no_comment, additions: Additions | None = None
) -> Iterator[bytes]:
    """Yield a section with one file's packets at the given offsets. Raises CaptureError."""
    file = _Bytes(source)
    head = file.take(4)
    additions = additions or Additions()
    if head == b"\x0a\x0d\x0d\x0a":
        yield from _blocks(file, head, places, comment, additions)
        return
    order = "<" if struct.unpack("<I", head)[0] in _PCAP else ">"
    resolution = _PCAP.get(struct.unpack(order + "I", head)[0], 6)
    rest = file.take(20)
    snaplen, link = struct.unpack_from(order + "II", rest, 12)
    end = option("<", 0, b"")
    application = option("<", _APPLICATION, additions.application.encode()) + end if additions.application else b""
    yield block_of("<", SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + application)
    options = option("<", 9, bytes([resolution])) + end
    yield block_of("<", _INTERFACE, struct.pack("<HHI", link & 0xFFFF, 0, snaplen) + options)
    yield from additions.blocks("<")
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
            head = struct.pack("<IIIII", 0, when >> 32, when & 0xFFFFFFFF, captured, wire)
            yield _packet("<", _ENHANCED, head + data, comment(at))


def empty_section() -> bytes:
    """Return a section without packets."""
    return block_of("<", SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))


def _packet(order: str, kind: int, body: bytes, comment: str) -> bytes:
    """Return the block of a packet; options that it has stay."""
    if not comment or kind == _SIMPLE or len(body) < _FIXED:
        return block_of(order, kind, body)
    (captured,) = struct.unpack_from(order + "I", body, 12)
    packet, options = body[: _FIXED + captured], body[_FIXED + captured + -captured % 4 :]
    packet += bytes(-len(packet) % 4)
    return block_of(order, kind, packet + option(order, _COMMENT, _short(comment)) + (options or option(order, 0, b"")))


def _short(comment: str) -> bytes:
    text = comment.encode()
    if len(text) <= LONGEST_COMMENT:
        return text
    return text[:LONGEST_COMMENT].decode(errors="ignore").encode() + b" ..."


def _blocks(file: _Bytes, head: bytes, places: set[int], comment: Comment, additions: Additions) -> Iterator[bytes]:
    """Copy a pcapng file's blocks, but only packets at the given offsets. What is added stands before the first."""
    order, added = "<", False
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
        if kind == SECTION:
            yield head + rest[:12] + b"\xff" * 8 + rest[20:]  # its length is another now: not given
        elif kind not in _PACKETS:
            yield head + rest
        elif at in places:
            if not added:
                yield from additions.blocks(order)
                added = True
            remark = comment(at)
            yield _packet(order, kind, rest[4:-4], remark) if remark else head + rest
        head = file.take(4)
