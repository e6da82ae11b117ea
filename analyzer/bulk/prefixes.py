"""What may stand before Kafka's first byte: what a balancer or a proxy is told, and what it answers.

In: the first bytes of a direction. Out: how many of them are such a prefix, and where it names the two ends. Rules

- The client's side: the PROXY protocol, version 1 (a line) and 2 (binary, with whatever TLVs), as haproxy, Envoy and
  cloud balancers send it; the handshake of SOCKS5 (RFC 1928, 1929); HTTP CONNECT. The broker's side: answers to the
  last two.
- A prefix is skipped whole or not at all, and only at a connection's first byte. Kafka never starts so: as a length,
  each of these is more than brokers accept.
- What is kept of it is the part that names the ends, never what logs in.
"""

from __future__ import annotations

import contextlib
import struct
from ipaddress import ip_address
from typing import Final

import numpy as np

from analyzer.bulk import state as s
from analyzer.bulk.regions import release
from analyzer.bulk.symbols import intern
from captures.kernels import Array, Bytes, Flag, Int, inline, kernel

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

MAX_NAMED: Final = 512
"""Bytes kept of what names the two ends: a host's name has 255 at most."""

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
_V2_HEAD: Final = 16
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
    """What the opener says first, at b[at:end] -> (kind, length, where the ends are named, bytes there). Length 0: no
    prefix; MORE_BYTES: it may become one."""
    none = np.int64(0)
    like = _starts(b, at, end, _LINE)
    if like != 0:
        size = _line_end(b, at, end, 1, MAX_LINE) if like == 1 else np.int64(MORE_BYTES)
        return np.int64(PROXY_LINE), np.int64(size), at, max(np.int64(size) - 2, none)
    like = _starts(b, at, end, _SIGNATURE)
    if like != 0:
        if like < 0 or end - at < _V2_HEAD:
            return np.int64(PROXY_BINARY), np.int64(MORE_BYTES), at, none
        if b[at + 12] >> 4 != 2:
            return np.int64(NO_PREFIX), none, at, none
        size = _V2_HEAD + (np.int64(b[at + 14]) << 8) + np.int64(b[at + 15])
        if end - at < size:
            return np.int64(PROXY_BINARY), np.int64(MORE_BYTES), at, none
        return np.int64(PROXY_BINARY), size, at, min(size, np.int64(_V2_HEAD + _V2_ADDRESSES))
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


@inline
def _skip_prefix(fr: s.Framing, mt: s.Matching, key: Int, client: Int) -> Int:
    """Skip what stands before a direction's first message, if anything does. F_PREFIX says afterwards whether more
    bytes are needed to know. OK or NEED_STRINGS."""
    f = fr.f
    k = fr.k
    slot = key >> 1
    at = f[key, s.F_AT] + f[key, s.F_FROM]
    end = f[key, s.F_AT] + f[key, s.F_HAVE]
    if client:
        kind, length, named, size = client_prefix(fr.slab, at, end)
        if length > 0:
            size = min(size, np.int64(MAX_NAMED))
            for i in range(size):  # in hexadecimal: a string, whatever the bytes are
                mt.scratch[2 * i] = _HEX[fr.slab[named + i] >> 4]
                mt.scratch[2 * i + 1] = _HEX[fr.slab[named + i] & 15]
            symbol = intern(mt.strings, mt.scratch, 0, 2 * size)
            if symbol < 0:
                return s.NEED_STRINGS
            k[slot, s.K_PREFIX_TEXT] = symbol
            k[slot, s.K_PREFIX_KIND] = kind
    else:
        length = broker_prefix(fr.slab, at, end, k[slot, s.K_PREFIX_KIND])
    if length >= 0:
        f[key, s.F_PREFIX] = 0
        f[key, s.F_FROM] += length
        f[key, s.F_SCANNED] = f[key, s.F_FROM]
        f[key, s.F_STALLED] = -1
        k[slot, s.K_PREFIX] += length
    return s.OK


@inline
def first_bytes(fr: s.Framing, slot: Int, side: Int, source: Bytes, at: Int, length: Int) -> None:
    """Keep the first 8 bytes a side says (in one number, its length in the low bits of none: zero is nothing)."""
    column = s.K_FIRST_0 + side
    if fr.k[slot, column] != 0:
        return
    value = np.int64(0)
    for i in range(8):
        byte = np.int64(source[at + i]) if i < length else np.int64(0)
        value = value << 8 | byte
    fr.k[slot, column] = value
    # TLS records: handshake or alert, version 3.x (RFC 8446, 5.1).
    if length >= 3 and 20 <= source[at] <= 23 and source[at + 1] == 3 and source[at + 2] <= 4:
        fr.k[slot, s.K_TLS] = 1


@inline
def is_sealed(fr: s.Framing, slot: Int) -> Flag:
    """A connection that `--port` says is Kafka, and that is TLS."""
    return fr.k[slot, s.K_TLS] != 0 and fr.k[slot, s.K_REQUESTS] == 0


@inline
def before_first(fr: s.Framing, mt: s.Matching, slot: Int, key: Int, client: Int, final: Flag) -> Int:
    """The first bytes of a direction are there, or some of them. OK or NEED_STRINGS."""
    f = fr.f
    k = fr.k
    status = _skip_prefix(fr, mt, key, client)
    if f[key, s.F_PREFIX] != 0 and final:
        f[key, s.F_PREFIX] = 0
    start = f[key, s.F_FROM]
    balanced = k[slot, s.K_PREFIX_KIND] == PROXY_LINE or k[slot, s.K_PREFIX_KIND] == PROXY_BINARY
    if f[key, s.F_PREFIX] == 0 and start > 0 and client and balanced:
        # What comes behind a balancer's line is what the client said first, as if there were no balancer.
        side = key & 1
        k[slot, s.K_FIRST_0 + side] = 0
        if f[key, s.F_HAVE] > start:
            first_bytes(fr, slot, side, fr.slab, f[key, s.F_AT] + start, f[key, s.F_HAVE] - start)
        if k[slot, s.K_CLASS] == s.KAFKA and is_sealed(fr, slot):
            k[slot, s.K_ENCRYPTED] += f[key, s.F_HAVE] - start
            release(fr, key)
    return status


def named_ends(kind: int, text: str) -> tuple[str | None, str | None]:
    """What a prefix names, of its kind and K_PREFIX_TEXT: whom the connection comes from and where it was meant to go,
    as `ip:port` (a name in the place of the address where only that was said). None where it does not say."""
    said = bytes.fromhex(text)
    with contextlib.suppress(ValueError, IndexError, struct.error):
        if kind == PROXY_LINE:
            _, family, source, target, source_port, target_port = said.decode("ascii").split(" ")
            if family in ("TCP4", "TCP6"):
                return _end(source, int(source_port)), _end(target, int(target_port))
        elif kind == PROXY_BINARY and said[12] & 15 == 1:  # LOCAL is the balancer's own
            size = {1: 4, 2: 16}.get(said[13] >> 4)  # families: IPv4, IPv6
            if size is not None:
                ports = struct.unpack_from(">HH", said, _V2_HEAD + 2 * size)
                ends = [str(ip_address(said[at : at + size])) for at in (_V2_HEAD, _V2_HEAD + size)]
                return _end(ends[0], ports[0]), _end(ends[1], ports[1])
        elif kind == SOCKS5:
            port = int.from_bytes(said[-2:], "big")
            name = said[2:-2].decode() if said[0] == 3 else str(ip_address(said[1:-2]))
            return None, f"{name}:{port}" if said[0] == 3 else _end(name, port)
        elif kind == CONNECT:
            return None, said.decode("ascii")
    return None, None


def _end(address: str, port: int) -> str:
    """`ip:port`, in brackets where the address has colons itself. Raises ValueError where it is none."""
    ip = ip_address(address)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
