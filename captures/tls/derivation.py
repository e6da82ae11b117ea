"""From secrets to keys: HKDF-Expand-Label of TLS 1.3 (RFC 8446, 7.1), the PRF of TLS 1.2 (RFC 5246, 5 and 6.3).

In: secrets as bytes, the name of a hash. Out: keys as bytes. Rule: nothing here checks what it is given; callers know
the lengths.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple


def expand_label(secret: bytes, label: bytes, size: int, hash_name: str) -> bytes:
    """HKDF-Expand-Label with an empty context."""
    info = struct.pack(">HB", size, 6 + len(label)) + b"tls13 " + label + b"\0"
    out = block = b""
    number = 1
    while len(out) < size:
        block = hmac.digest(secret, block + info + bytes([number]), hash_name)
        out += block
        number += 1
    return out[:size]


def following(secret: bytes, hash_name: str) -> bytes:
    """The traffic secret after a KeyUpdate (RFC 8446, 7.2)."""
    return expand_label(secret, b"traffic upd", len(secret), hash_name)


def _p_hash(secret: bytes, seed: bytes, size: int, hash_name: str) -> bytes:
    state, out = seed, b""
    while len(out) < size:
        state = hmac.digest(secret, state, hash_name)
        out += hmac.digest(secret, state + seed, hash_name)
    return out[:size]


def prf(secret: bytes, label: bytes, seed: bytes, size: int, hash_name: str, version: int = 0x0303) -> bytes:
    """The PRF of TLS 1.2, or of 1.0 and 1.1 (RFC 2246, 5), whose two hashes are fixed."""
    seed = label + seed
    if version >= 0x0303:
        return _p_hash(secret, seed, size, hash_name)
    half = (len(secret) + 1) // 2
    left, right = _p_hash(secret[:half], seed, size, "md5"), _p_hash(secret[len(secret) - half :], seed, size, "sha1")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class KeyBlock(NamedTuple):
    """Keys of one direction."""

    mac: bytes
    key: bytes
    iv: bytes


def key_block(
    master: bytes, randoms: bytes, sizes: tuple[int, int, int], hash_name: str, version: int, server: bool
) -> KeyBlock:
    """The keys of one direction from the master secret. `randoms`: the server's, then the client's; `sizes`: of the
    MAC's key, the cipher's key, and the fixed part of the IV."""
    mac, key, iv = sizes
    block = prf(master, b"key expansion", randoms, 2 * (mac + key + iv), hash_name, version)
    side = int(server)
    at = 2 * mac + side * key
    vector = 2 * (mac + key) + side * iv
    return KeyBlock(block[side * mac : (side + 1) * mac], block[at : at + key], block[vector : vector + iv])
