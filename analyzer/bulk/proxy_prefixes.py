"""Skip prefixes of balancers and proxies before Kafka's first byte, and the answers to them.

In: the first bytes of a direction (`kwire.captures.prefixes` tells a prefix). Out: the direction without it. Rules

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

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.regions import release
from kwire.analyzer.bulk.symbols import intern
from kwire.captures.kernels import Bytes, Flag, Int, inline
from kwire.captures.prefixes import CONNECT, PROXY_BINARY, PROXY_LINE, SOCKS5, V2_HEAD, broker_prefix, client_prefix

MAX_NAMED: Final = 512
"""Bytes kept of what names the two ends: a host's name has 255 at most."""

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8).copy()


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
    """Keep a side's first 8 bytes in one number, with their length in the low bits (0: none)."""
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
        fr.v[s.V_TLS] += 1


@inline
def is_sealed(fr: s.Framing, slot: Int) -> Flag:
    """Note a connection that `--port` declares as Kafka, and that is TLS."""
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
    """Return the ends that a prefix names, from its kind and K_PREFIX_TEXT: source and destination.

    They are `ip:port` (a name instead of the address if only that was sent), None if the prefix does not have it."""
    content = bytes.fromhex(text)
    with contextlib.suppress(ValueError, IndexError, struct.error):
        if kind == PROXY_LINE:
            _, family, source, target, source_port, target_port = content.decode("ascii").split(" ")
            if family in ("TCP4", "TCP6"):
                return _end(source, int(source_port)), _end(target, int(target_port))
        elif kind == PROXY_BINARY and content[12] & 15 == 1:  # LOCAL is the balancer's own
            size = {1: 4, 2: 16}.get(content[13] >> 4)  # families: IPv4, IPv6
            if size is not None:
                ports = struct.unpack_from(">HH", content, V2_HEAD + 2 * size)
                ends = [str(ip_address(content[at : at + size])) for at in (V2_HEAD, V2_HEAD + size)]
                return _end(ends[0], ports[0]), _end(ends[1], ports[1])
        elif kind == SOCKS5:
            port = int.from_bytes(content[-2:], "big")
            name = content[2:-2].decode() if content[0] == 3 else str(ip_address(content[1:-2]))
            return None, f"{name}:{port}" if content[0] == 3 else _end(name, port)
        elif kind == CONNECT:
            return None, content.decode("ascii")
    return None, None


def _end(address: str, port: int) -> str:
    """`ip:port`, in brackets where the address has colons itself. Raises ValueError where it is none."""
    ip = ip_address(address)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
