"""A message found by its place: the part of a capture that holds one exchange, as a capture of its own.

In: a capture's file, and where in it the packets of an exchange are. Out: a smaller file that begins at the request's
first packet. Rules: only plain files have places; what comes out is a guess that whoever reads it checks, because its
first packet may begin inside of another message.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

_HEADER: Final = 24
_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_PACKETS: Final = (2, 3, 6)
_MAGIC: Final = frozenset((0xA1B2C3D4, 0xA1B23C4D))
_SLACK: Final = 4 << 20
"""Bytes of other traffic that may lie between a message's first packet and its last, besides its own."""

MOST: Final = 256 << 20
"""An excerpt is no larger: from there on reading the whole is as good."""


def excerpt(path: str, row: dict[str, Any], into: Path) -> bool:
    """Write the part of a file with both messages of an exchange; False: it cannot be told where that is."""
    places = [row[name] for name in ("request_offset", "response_offset") if row[name] is not None]
    if not places or (row["request_offset"] is None) != (row["exchange"] is None):
        return False
    start = min(places)
    end = max(places) + 2 * ((row["request_bytes"] or 0) + (row["response_bytes"] or 0)) + _SLACK
    if end - start > MOST:
        return False
    try:
        with open(path, "rb") as file:
            head = _head(file)
            if head is None or start < len(head):
                return False
            file.seek(start)
            with open(os.open(into, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
                out.write(head)
                left = end - start
                while left > 0 and (piece := file.read(min(left, 1 << 20))):
                    out.write(piece)
                    left -= len(piece)
    except OSError:
        return False
    return True


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
