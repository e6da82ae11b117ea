"""Clean what stands before Kafka's first byte of the names in it.

In: the first bytes of a direction, up to its first message. Out: as many bytes, read as the same kind of prefix: a
PROXY line or header, SOCKS5, HTTP CONNECT (`kwire.captures.prefixes`); none where they are none of these. Rule:
addresses and hosts become what they become everywhere; logins, headers and further values become zeros or `x`.
"""

from __future__ import annotations

import re

import numpy as np

from kwire.analyzer.scrub.addresses import Addresses, parsed
from kwire.analyzer.scrub.pseudonyms import Pseudonyms
from kwire.captures.prefixes import CONNECT, NO_PREFIX, PROXY_BINARY, PROXY_LINE, SOCKS5, broker_prefix, client_prefix

_V2_HEAD = 16
_NOT_A_LINE_END = re.compile(rb"[^\r\n]")


def named(data: bytes) -> list[bytes]:
    """The texts and addresses that a client's prefix names, as texts."""
    kind, size, at, length = _client(data)
    if size <= 0:
        return []
    if kind == PROXY_LINE:
        return data[at : at + length].split(b" ")[2:4]
    if kind == CONNECT:
        return [data[at : at + length].rpartition(b":")[0].strip(b"[]")]
    if kind == SOCKS5 and data[at] == 3:
        return [data[at + 2 : at + length - 2]]
    return []


def client(data: bytes, pseudonyms: Pseudonyms, addresses: Addresses) -> tuple[int, bytes]:
    """The opener's: its kind, and what it becomes (empty: there is none)."""
    kind, size, at, length = _client(data)
    if size <= 0:
        return NO_PREFIX, b""
    data = data[:size]
    if kind == PROXY_LINE:
        words = data[:-2].split(b" ")
        clean = [pseudonyms.text(word) if parsed(word) is not None else b"x" * len(word) for word in words[2:4]]
        ports = [word if word.isdigit() and len(word) <= 5 else b"x" * len(word) for word in words[4:]]
        family = words[1] if words[1] in (b"TCP4", b"TCP6", b"UNKNOWN") else b"x" * len(words[1])
        return kind, b" ".join([b"PROXY", family, *clean, *ports]) + data[-2:]
    if kind == PROXY_BINARY:
        width = {1: 4, 2: 16}.get(data[13] >> 4, 0)
        made_head = bytearray(data[:_V2_HEAD] + bytes(size - _V2_HEAD))
        if width and size >= _V2_HEAD + 2 * width + 4:
            for place in (_V2_HEAD, _V2_HEAD + width):
                made_head[place : place + width] = addresses.address(data[place : place + width])
            ports_at = _V2_HEAD + 2 * width
            made_head[ports_at : ports_at + 4] = data[ports_at : ports_at + 4]
        return kind, bytes(made_head)
    if kind == CONNECT:
        host, _, port = data[at : at + length].rpartition(b":")
        inner = host.strip(b"[]")
        target = host.replace(inner, pseudonyms.text(inner)) if inner else b""
        rest = data[at + length :]
        first = rest.find(b"\r\n")
        version = rest[:first] if rest[:first] in (b" HTTP/1.1", b" HTTP/1.0") else b"x" * first
        port = port if port.isdigit() and len(port) <= 5 else b"x" * len(port)
        return kind, data[:at] + target + b":" + port + version + _NOT_A_LINE_END.sub(b"x", rest[first:])
    return kind, _socks(data, at, pseudonyms, addresses)


def broker(data: bytes, kind: int) -> bytes:
    """Clean the other side's answer to a prefix of this kind (empty: there is none)."""
    size = int(broker_prefix(np.frombuffer(bytearray(data), np.uint8), 0, len(data), kind)) if data else 0
    if size <= 0:
        return b""
    data = data[:size]
    if kind == CONNECT:
        head = 12 if re.match(rb"HTTP/1\.[01] \d{3}", data) else 8
        return data[:head] + _NOT_A_LINE_END.sub(b"x", data[head:])
    at = 2 + (2 if data[1] == 2 else 0)
    clean = bytearray(data[: at + 4])  # version, method, [login's answer], version, reply, reserved, type
    return bytes(clean + _address_blank(data[at + 3], data[at + 4 :]))


def _address_blank(kind: int, data: bytes) -> bytes:
    """The address that a proxy says it is bound to: nobody's."""
    return (data[:1] if kind == 3 else b"").ljust(len(data), b"\0")


def _socks(data: bytes, at: int, pseudonyms: Pseudonyms, addresses: Addresses) -> bytes:
    clean = bytearray(len(data))
    methods = data[1]
    clean[: 2 + methods] = data[: 2 + methods]
    place = 2 + methods
    if data[place] == 1:  # a name and a password: their lengths
        clean[place : place + 2] = data[place : place + 2]
        place += 2 + data[place + 1]
        clean[place] = data[place]
    clean[at - 3 : at + 1] = data[at - 3 : at + 1]
    if data[at] == 3:
        clean[at + 1] = data[at + 1]
        clean[at + 2 : -2] = pseudonyms.text(data[at + 2 : -2])
    else:
        clean[at + 1 : -2] = addresses.address(data[at + 1 : -2])
    clean[-2:] = data[-2:]
    return bytes(clean)


def _client(data: bytes) -> tuple[int, int, int, int]:
    if not data:
        return NO_PREFIX, 0, 0, 0
    prefix = client_prefix(np.frombuffer(bytearray(data), np.uint8), 0, len(data))
    return int(prefix[0]), int(prefix[1]), int(prefix[2]), int(prefix[3])
