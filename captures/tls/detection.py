"""A connection's first bytes, until it is known whether TLS begins there, and behind what.

In: rows of `Segments` with their bytes, from the connection's first payload on. Out: whether it is TLS; then, row by
row, how many bytes stand before it. Rules

- TLS begins with a handshake record that holds a hello (RFC 8446, 5.1), at once or behind what a balancer or a proxy is
  told (`kwire.captures.prefixes`).
- Where more bytes are needed to know, rows wait here; what becomes of them does not depend on how they are cut up.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures.prefixes import CONNECT, MAX_HEAD, MORE_BYTES, SOCKS5, broker_prefix, client_prefix
from kwire.captures.stream_tables import SEG_AT, SEG_KEY, SEG_LENGTH
from kwire.captures.tls.direction import Row

HEAD: Final = 6
"""Bytes that tell a handshake record: its header, and the type of the message in it."""

MOST_HELD: Final = 2 * MAX_HEAD
"""Bytes that wait, of both sides together."""

_BEFORE: Final = (b"PROXY ", b"\r\n\r\n\0\r", b"CONNEC", b"\x05")


def begins_tls(data: bytes) -> bool:
    """Whether these first bytes are a handshake record with a ClientHello or a ServerHello."""
    return len(data) >= 3 and data[0] == 22 and data[1] == 3 and data[2] <= 4 and (len(data) < 6 or data[5] in (1, 2))


def may_follow(data: bytes) -> bool:
    """Whether a connection's first bytes (up to HEAD) are no TLS, but of what may stand before it."""
    return any(data[: len(text)] == text[: len(data)] for text in _BEFORE)


class TlsDetector:
    """The rows that wait. `tls`: whether it is TLS; None: more bytes are needed."""

    def __init__(self) -> None:
        self.held: list[tuple[Row, bytes]] = []
        self.tls: bool | None = None
        self._first_bytes: dict[int, bytearray] = {}
        self._before: dict[int, int] = {}

    def take(self, row: Row, data: bytes) -> bool | None:
        """Payload in order; returns `tls`."""
        self.held.append((row, data))
        side = row[SEG_KEY] & 1
        self._first_bytes.setdefault(side, bytearray()).extend(data)
        self.tls = self._decided()
        return self.tls

    def _decided(self) -> bool | None:
        opener = self.held[0][0][SEG_KEY] & 1
        first = np.frombuffer(bytes(self._first_bytes[opener]), np.uint8)
        kind, size, _, _ = client_prefix(first, 0, len(first))
        if size == MORE_BYTES:
            return None if sum(map(len, self._first_bytes.values())) <= MOST_HELD else False
        behind = bytes(self._first_bytes[opener][size:])
        if len(behind) < HEAD:
            return None if size > 0 or not behind else begins_tls(behind)
        self._before[opener] = size
        answer = self._first_bytes.get(1 - opener)
        if answer and kind in (SOCKS5, CONNECT):
            answered = np.frombuffer(bytes(answer), np.uint8)
            self._before[1 - opener] = max(0, int(broker_prefix(answered, 0, len(answered), kind)))
        return begins_tls(behind)

    def parts(self) -> list[tuple[Row, bytes, bool]]:
        """All that waited, in order: what stands before TLS (False) and what belongs to it (True); all of it stands
        before where it is none."""
        out = []
        for row, data in self.held:
            side = row[SEG_KEY] & 1
            before = min(self._before.get(side, 0), len(data)) if self.tls else len(data)
            if side in self._before:
                self._before[side] -= before
            if before:
                out.append((_cut(row, 0, before), data[:before], False))
            if before < len(data):
                out.append((_cut(row, before, len(data)), data[before:], True))
        self.held = []
        return out


def _cut(row: Row, begin: int, end: int) -> Row:
    """A part of a row."""
    new = list(row)
    new[SEG_AT] += begin
    new[SEG_LENGTH] = end - begin
    return new
