"""Find the prefixes of balancers and proxies before a connection's first byte, and the answers to them.

In: the first bytes of a direction. Out: how many of them are such a prefix, and where it names the two ends. Rules

- The client's side: the PROXY protocol, version 1 (a line) and 2 (binary, with whatever TLVs), as haproxy, Envoy and
  cloud balancers send it; the handshake of SOCKS5 (RFC 1928, 1929); HTTP CONNECT. The broker's side: answers to the
  last two.
- A prefix is whole, or none; it stands only at a connection's first byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures.kernels import Array, Bytes, Int, inline, kernel

NO_PREFIX, PROXY_LINE, PROXY_BINARY, SOCKS5, CONNECT = 0, 1, 2, 3, 4

MORE_BYTES: Final = -1
"""In the place of a length: what is there may become a prefix."""

_LINE: Final = np.frombuffer(b"PROXY ", np.uint8).copy()
_SIGNATURE: Final = np.frombuffer(b"\r\n\r\n\0\r\nQUIT\n", np.uint8).copy()
_CONNECT: Final = np.frombuffer(b"CONNECT ", np.uint8).copy()
_HTTP: Final = np.frombuffer(b"HTTP/1.", np.uint8).copy()

MAX_LINE: Final = 107
"""Bytes of a PROXY line, its end included (proxy-protocol.txt, 2.1)."""

MAX_HEAD: Final = 16 << 10
"""Bytes of the head of an HTTP message; servers take 8 to 16 KiB."""

V2_HEAD: Final = 16
_V2_ADDRESSES: Final = 36
"""Of IPv6, the longest that are kept: two addresses and two ports."""


@inline
def _starts(b: Bytes, at: Int, end: Int, text: Array) -> Int:
    """1: b[at:end] starts with a text; MORE_BYTES: it ends inside; 0: no."""
    for i in range(min(len(text), end - at)):
        if b[at + i] != text[i]:
            return 0
    return 1 if end - at >= len(text) else MORE_BYTES


@inline
def _line_end(b: Bytes, at: Int, end: Int, lines: Int, most: Int) -> Int:
    """How many bytes until `lines` line ends (CR LF) stand one behind the other; 0: more than `most`."""
    stop = min(end, at + most)
    place = at
    while place + 2 * lines <= stop:
        whole = True
        for i in range(lines):
            if b[place + 2 * i] != 13 or b[place + 2 * i + 1] != 10:
                whole = False
        if whole:
            return place + 2 * lines - at
        place += 1
    return MORE_BYTES if end - at < most else 0


@inline
def _address(b: Bytes, at: Int, end: Int) -> Int:
    """Bytes of a SOCKS5 address and port at `at`: type, address, port. 0: no such type."""
    if end <= at:
        return MORE_BYTES
    if b[at] == 1:
        return 7
    if b[at] == 4:
        return 19
    if b[at] != 3:
        return 0
    return 4 + np.int64(b[at + 1]) if end - at >= 2 else MORE_BYTES


@kernel
def client_prefix(b: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int, Int]:
    """Find the opener's prefix at b[at:end] -> (kind, length, position and length of the named ends).

    Length 0: no prefix; MORE_BYTES: it may become one."""
    none = np.int64(0)
    like = _starts(b, at, end, _LINE)
    if like != 0:
        size = _line_end(b, at, end, 1, MAX_LINE) if like == 1 else np.int64(MORE_BYTES)
        return np.int64(PROXY_LINE), np.int64(size), at, max(np.int64(size) - 2, none)
    like = _starts(b, at, end, _SIGNATURE)
    if like != 0:
        if like < 0 or end - at < V2_HEAD:
            return np.int64(PROXY_BINARY), np.int64(MORE_BYTES), at, none
        if b[at + 12] >> 4 != 2:
            return np.int64(NO_PREFIX), none, at, none
        size = V2_HEAD + (np.int64(b[at + 14]) << 8) + np.int64(b[at + 15])
        if end - at < size:
            return np.int64(PROXY_BINARY), np.int64(MORE_BYTES), at, none
        return np.int64(PROXY_BINARY), size, at, min(size, np.int64(V2_HEAD + _V2_ADDRESSES))
    like = _starts(b, at, end, _CONNECT)
    if like != 0:
        size = _line_end(b, at, end, 2, MAX_HEAD) if like == 1 else np.int64(MORE_BYTES)
        named = np.int64(8)
        while size > 0 and named < size and b[at + named] > 32:
            named += 1
        return np.int64(CONNECT), np.int64(size), at + 8, named - 8
    if end > at and b[at] == 5:
        place, size = _socks_request(b, at, end)
        return np.int64(SOCKS5), size, place, at + size - place if size > 0 else none
    return np.int64(NO_PREFIX), none, at, none


@inline
def _socks_request(b: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """The client's half of a SOCKS5 handshake -> (where the address is, length of the half)."""
    more = np.int64(MORE_BYTES)
    if end - at < 2:
        return at, more
    methods = np.int64(b[at + 1])
    if methods == 0 or methods > 16:
        return at, np.int64(0)
    for i in range(min(methods, end - at - 2)):
        if b[at + 2 + i] > 9 and b[at + 2 + i] < 128:
            return at, np.int64(0)  # numbers that nobody has assigned
    place = at + 2 + methods
    if end <= place:
        return at, more
    if b[place] == 1:  # name and password
        if end - place < 2:
            return at, more
        place += 2 + np.int64(b[place + 1])
        if end <= place:
            return at, more
        place += 1 + np.int64(b[place])
        if end <= place:
            return at, more
    if b[place] != 5 or (end - place >= 2 and b[place + 1] != 1) or (end - place >= 3 and b[place + 2] != 0):
        return at, np.int64(0)
    size = _address(b, place + 3, end)
    if size == 0:
        return at, np.int64(0)
    if size < 0 or end - place < 3 + size:
        return at, more
    return place + 3, place + 3 + size - at


@kernel
def broker_prefix(b: Bytes, at: Int, end: Int, kind: Int) -> Int:
    """How many of the answering side's first bytes answer a prefix of this kind. 0: none; MORE_BYTES: it may become."""
    if kind == CONNECT:
        like = _starts(b, at, end, _HTTP)
        if like <= 0:
            return np.int64(like)
        return np.int64(_line_end(b, at, end, 2, MAX_HEAD))
    if kind != SOCKS5 or (end > at and b[at] != 5):
        return np.int64(0)
    if end - at < 3:
        return np.int64(MORE_BYTES)
    place = at + 2
    if b[at + 1] == 2:
        if b[place] != 1:
            return np.int64(0)
        place += 2
    if end - place < 4:
        return np.int64(MORE_BYTES)
    if b[place] != 5:
        return np.int64(0)
    size = _address(b, place + 3, end)
    if size <= 0:
        return np.int64(size)
    return np.int64(place + 3 + size - at) if end - place >= 3 + size else np.int64(MORE_BYTES)
