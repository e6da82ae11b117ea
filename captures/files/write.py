"""Captures written: records -> the bytes of a pcap or pcapng file.

In: `Record`s, a packet each. Out: a file's bytes, in any byte order, resolution and kind of block; or a pcapng file
that grows. Rule: what is written here `layouts` reads back, and so do others' tools.

Sources: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal

ETHERNET: Final = 1
_ENHANCED: Final = struct.Struct("<IIIIIII")


@dataclass(frozen=True, slots=True)
class Record:
    """One packet as a capture file holds it."""

    time_ns: int
    data: bytes
    wire_length: int
    """The packet's length on the wire; more than `len(data)` where the capture cut it."""
    interface: int = 0


def pcap(
    records: Iterable[Record],
    link: int = ETHERNET,
    *,
    nanoseconds: bool = False,
    big_endian: bool = False,
    snaplen: int = 262_144,
) -> bytes:
    """A pcap file: either byte order, times in micro- or nanoseconds."""
    order = ">" if big_endian else "<"
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link)]
    for record in records:
        seconds, rest = divmod(record.time_ns, 10**9)
        fraction = rest if nanoseconds else rest // 1000
        out.append(struct.pack(order + "IIII", seconds, fraction, len(record.data), record.wire_length))
        out.append(record.data)
    return b"".join(out)


def option(order: str, code: int, value: bytes) -> bytes:
    """An option of a pcapng block, padded; `order` as struct has it."""
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def block_of(order: str, kind: int, body: bytes) -> bytes:
    """A pcapng block."""
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def pcapng(
    records: Iterable[Record],
    links: Sequence[int] = (ETHERNET,),
    *,
    block: Literal["enhanced", "simple", "obsolete"] = "enhanced",
    big_endian: bool = False,
    resolution: int | None = 9,
    offset_seconds: int = 0,
    snaplen: int = 0,
    comment: str = "",
) -> bytes:
    """One section of a pcapng file (join several for a file of several sections), one interface for each of `links`.

    `resolution`: if_tsresol as a power of ten, or of two where its high bit is set; None leaves the option out, which
    means microseconds. `offset_seconds`: if_tsoffset. Simple blocks have no time and belong to interface 0. `comment`
    goes on the section and on each enhanced block. Records carry their interface.
    """
    order = ">" if big_endian else "<"
    whole = functools.partial(block_of, order)

    def ticks(time_ns: int) -> int:
        since = time_ns - offset_seconds * 10**9
        power = 6 if resolution is None else resolution
        return (since << (power & 127)) // 10**9 if power & 128 else since * 10**power // 10**9

    remark = option(order, 1, comment.encode()) if comment else b""
    end = option(order, 0, b"")
    out = [whole(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + (remark + end if remark else b""))]
    for link in links:
        options = option(order, 9, bytes([resolution])) if resolution is not None else b""
        options += option(order, 14, struct.pack(order + "q", offset_seconds)) if offset_seconds else b""
        out.append(whole(1, struct.pack(order + "HHI", link, 0, snaplen) + (options + end if options else b"")))
    for record in records:
        padded = record.data + bytes(-len(record.data) % 4)
        when = ticks(record.time_ns)
        lengths = (when >> 32, when & 0xFFFFFFFF, len(record.data), record.wire_length)
        if block == "enhanced":
            body = struct.pack(order + "IIIII", record.interface, *lengths) + padded + (remark + end if remark else b"")
            out.append(whole(6, body))
        elif block == "obsolete":
            out.append(whole(2, struct.pack(order + "HHIIII", record.interface, 0xFFFF, *lengths) + padded))
        else:
            out.append(whole(3, struct.pack(order + "I", record.wire_length) + padded))
    return b"".join(out)


class Growing:
    """A growing pcapng file of one section, little-endian, in nanoseconds, with few options. Raises OSError."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._interfaces = 0
        self._block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))

    def _block(self, kind: int, body: bytes) -> None:
        body += bytes(-len(body) % 4)
        size = struct.pack("<I", len(body) + 12)
        self._file.write(struct.pack("<I", kind) + size + body + size)

    def interface(self, link: int, snaplen: int) -> int:
        """Another interface; returns its number. Times are nanoseconds (if_tsresol 9)."""
        self._block(1, struct.pack("<HHI", link, 0, snaplen) + struct.pack("<HHB3xHH", 9, 1, 9, 0, 0))
        self._interfaces += 1
        return self._interfaces - 1

    def packet(self, time_ns: int, data: bytes, wire_length: int, interface: int = 0) -> None:
        """An enhanced packet block. `wire_length`: as of `Record`."""
        padding = -len(data) & 3
        size = 32 + len(data) + padding
        time = time_ns & (1 << 64) - 1
        head = _ENHANCED.pack(6, size, interface, time >> 32, time & 0xFFFFFFFF, len(data), wire_length)
        self._file.write(b"".join((head, data, bytes(padding), head[4:8])))

    def dropped(self, interface: int, time_ns: int, count: int) -> None:
        """Statistics: so many packets were lost by the capture (isb_ifdrop)."""
        time = time_ns & (1 << 64) - 1
        body = struct.pack("<III", interface, time >> 32, time & 0xFFFFFFFF) + struct.pack("<HHQHH", 5, 8, count, 0, 0)
        self._block(5, body)
