"""MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md): keys and values that are one map.

A value is taken for MessagePack only if it is a map with names for keys and nothing is left over, because any byte
begins some value.
"""

from __future__ import annotations

import datetime
import struct
from typing import Any, Final

from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError

_FIXED: Final = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_SIZED: Final = {
    0xD9: ("text", 1),
    0xDA: ("text", 2),
    0xDB: ("text", 4),
    0xC4: ("bytes", 1),
    0xC5: ("bytes", 2),
    0xC6: ("bytes", 4),
    0xDC: ("list", 2),
    0xDD: ("list", 4),
    0xDE: ("map", 2),
    0xDF: ("map", 4),
    0xC7: ("extension", 1),
    0xC8: ("extension", 2),
    0xC9: ("extension", 4),
}
_TIMESTAMP: Final = -1
"""The type of extensions that are times."""


def looks_like(data: bytes) -> bool:
    """Return whether bytes begin as a map with a name for its first key does."""
    if len(data) < 3:
        return False
    first = data[0]
    at = 1 if 0x80 < first <= 0x8F else 3 if first == 0xDE else 5 if first == 0xDF else 0
    return bool(at) and at < len(data) and (0xA0 < data[at] <= 0xBF or data[at] in (0xD9, 0xDA, 0xDB))


def decode(data: bytes, limits: PayloadLimits) -> dict[str, Any]:
    """Return the map that bytes are. Raises UndecodableError."""
    reader = _Reader(data, limits)
    value = reader.read(0)
    if reader.at != len(data):
        raise UndecodableError(f"{len(data) - reader.at} bytes are left over")
    if not isinstance(value, dict):
        raise UndecodableError("no map")
    return value


class _Reader:
    def __init__(self, data: bytes, limits: PayloadLimits) -> None:
        self.at = 0
        self._data = data
        self._limits = limits
        self._nodes = 0

    def read(self, depth: int) -> Any:
        self._nodes += 1
        if depth > self._limits.depth or self._nodes > self._limits.nodes:
            raise UndecodableError("more levels or elements than are decoded")
        first = self._take(1)[0]
        if first <= 0x7F:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first <= 0x8F:
            return self._sized("map", first & 0x0F, depth)
        if first <= 0x9F:
            return self._sized("list", first & 0x0F, depth)
        if first <= 0xBF:
            return self._sized("text", first & 0x1F, depth)
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        if first in _FIXED:
            return struct.unpack(_FIXED[first], self._take(struct.calcsize(_FIXED[first])))[0]
        if first in _SIZED:
            kind, width = _SIZED[first]
            return self._sized(kind, int.from_bytes(self._take(width), "big"), depth)
        if 0xD4 <= first <= 0xD8:
            return self._sized("extension", 1 << (first - 0xD4), depth)
        raise UndecodableError(f"byte 0x{first:02x} begins no value")

    def _sized(self, kind: str, size: int, depth: int) -> Any:
        if size > len(self._data) - self.at:
            raise UndecodableError("the value ends too early")
        if kind == "text":
            try:
                return self._take(size).decode()
            except UnicodeDecodeError:
                raise UndecodableError("a text is no UTF-8") from None
        if kind == "bytes":
            return self._take(size)
        if kind == "list":
            return [self.read(depth + 1) for _ in range(size)]
        if kind == "map":
            values = {}
            for _ in range(size):
                name = self.read(depth + 1)
                if not isinstance(name, str):
                    raise UndecodableError("a key of a map is no text")
                values[name] = self.read(depth + 1)
            return values
        return self._extension(int.from_bytes(self._take(1), "big", signed=True), self._take(size))

    def _extension(self, kind: int, data: bytes) -> Any:
        """Return a time as one, and other extensions with their type."""
        if kind != _TIMESTAMP or len(data) not in (4, 8, 12):
            return {"type": kind, "data": data}
        if len(data) == 12:
            nanos, seconds = struct.unpack(">Iq", data)
        else:
            number = int.from_bytes(data, "big")
            nanos, seconds = (number >> 34, number & (1 << 34) - 1) if len(data) == 8 else (0, number)
        try:
            return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
                seconds=seconds, microseconds=nanos // 1000
            )
        except OverflowError:
            return {"type": kind, "data": data}

    def _take(self, size: int) -> bytes:
        data = self._data[self.at : self.at + size]
        if len(data) < size:
            raise UndecodableError("the value ends too early")
        self.at += size
        return data
