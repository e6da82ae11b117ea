"""Slices of capture files: the bytes around one exchange, readable as a capture of their own.

In: a capture's file, and the offsets of an exchange's packets in it. Out: a stream, as of a smaller file that begins at
the request's first packet. Rules: only uncompressed files have offsets; callers check what they read, because the first
packet may begin inside another message.
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
"""Bytes of other traffic between a message's first packet and its last."""

MAX_SLICE_BYTES: Final = 256 << 20
"""Largest slice: beyond, reading the whole file is as good."""


def exchange_slice(path: str, row: dict[str, Any]) -> BinaryIO | None:
    """Open the slice of a file with both messages of an exchange; None if their offsets are unknown or far apart."""
    places = [row[name] for name in ("request_offset", "response_offset") if row[name] is not None]
    if not places or (row["request_offset"] is None) != (row["exchange"] is None):
        return None
    start = min(places)
    end = max(places) + 2 * ((row["request_bytes"] or 0) + (row["response_bytes"] or 0)) + _SLACK
    return None if end - start > MAX_SLICE_BYTES else file_slice(path, start, end - start)


def file_slice(path: str, start: int, length: int) -> BinaryIO | None:
    """Open a file's header followed by `length` bytes from a packet's offset; None if the file cannot be sliced."""
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
        return io.BufferedReader(_SliceReader(file, head, length))


class _SliceReader(io.RawIOBase):
    """A raw stream of a header, then of `length` bytes from a file's current position."""

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
    """Read a capture's bytes before its first packet; None for unknown formats."""
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
