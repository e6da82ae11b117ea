"""A message found by its place: the part of a capture that holds one exchange, as a capture of its own.

In: a capture's file, and where in it the packets of an exchange are. Out: a stream, as of a smaller file that begins at
the request's first packet. Rules: only plain files have places; what comes out is a guess that whoever reads it checks,
because its first packet may begin inside of another message.
"""

from __future__ import annotations

import contextlib
import io
import struct
from typing import Any, BinaryIO, Final

_HEADER: Final = 24
_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_PACKETS: Final = (2, 3, 6)
_MAGIC: Final = frozenset((0xA1B2C3D4, 0xA1B23C4D))
_SLACK: Final = 4 << 20
"""Bytes of other traffic that may lie between a message's first packet and its last, besides its own."""

MOST: Final = 256 << 20
"""An excerpt is no larger: from there on reading the whole is as good."""


def excerpt(path: str, row: dict[str, Any]) -> BinaryIO | None:
    """The part of a file with both messages of an exchange, to be read once and closed; None: it cannot be told where
    that is."""
    places = [row[name] for name in ("request_offset", "response_offset") if row[name] is not None]
    if not places or (row["request_offset"] is None) != (row["exchange"] is None):
        return None
    start = min(places)
    end = max(places) + 2 * ((row["request_bytes"] or 0) + (row["response_bytes"] or 0)) + _SLACK
    return None if end - start > MOST else part(path, start, end - start)


def part(path: str, start: int, length: int) -> BinaryIO | None:
    """What a file says before its first packet, then so many bytes from one of its packets on, to be read once and
    closed; None: they cannot be told."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb", buffering=0))
            head = _head(file)
            if head is None or start < len(head):
                return None
            file.seek(start)
        except OSError:
            return None
        stack.pop_all()
        return io.BufferedReader(_Part(file, head, length))


class _Part(io.RawIOBase):
    """What a capture says before its first packet, then so many bytes of it from where it stands."""

    def __init__(self, file: io.FileIO, head: bytes, length: int) -> None:
        self._file = file
        self._head = head
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        room = memoryview(into)
        if self._head:
            count = min(len(room), len(self._head))
            room[:count], self._head = self._head[:count], self._head[count:]
            return count
        count = self._file.readinto(room[: min(len(room), self._left)]) or 0
        self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _head(file: BinaryIO) -> bytes | None:
    """What a capture says before its first packet; None: it is none that is known here."""
    first = file.read(_HEADER)
    if first[:4] != _SECTION:
        known = len(first) == _HEADER and {struct.unpack(order + "I", first[:4])[0] for order in "<>"} & _MAGIC
        return first if known else None
    order = "<" if first[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
    file.seek(0)
    whole = b""
    while len(whole) < _SLACK:
        head = file.read(8)
        if len(head) < 8:
            return None
        kind, length = struct.unpack(order + "II", head)
        if kind in _PACKETS:
            return whole
        if not 12 <= length <= _SLACK:
            return None
        whole += head + file.read(length - 8)
    return None
