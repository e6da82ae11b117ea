"""Addresses -> others: of IP packets, link layers and of host fields in messages, consistently.

In: a key, then every address that is named as text (`name`), then addresses. Out: addresses of the same kind. Rules

- Two addresses that share their first n bits share the first n bits afterwards, and no more (Crypto-PAn: Xu, Fan, Ammar
  and Moon, Prefix-Preserving IP Address Anonymization, 2002).
- An address that a message names must be as long as text afterwards as it was. Where Crypto-PAn's is not, the address
  becomes one whose numbers have as many digits; two such ones share first numbers where they did (`bent` counts them).
- No two addresses become one. Loopback addresses stay such: 127.x becomes 127.y, and ::1 stays.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable
from typing import Any, Final

_ATTEMPTS: Final = 1000
_LOOPBACK: Final = 127
_LOOPBACK_6: Final = bytes(15) + b"\1"


def _cipher(key: bytes) -> Callable[[bytes], bytes]:
    """AES-128 of whole blocks, each for itself."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encryptor: Any = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # one block a bit: no message, no mode
    return lambda blocks: bytes(encryptor.update(blocks))


class CryptoPan:
    """Crypto-PAn with a key of 32 bytes: AES's, and what the pad is made of."""

    def __init__(self, key: bytes) -> None:
        self._encrypt = _cipher(key[:16])
        self._pad = int.from_bytes(self._encrypt(key[16:32]), "big")

    def address(self, raw: bytes) -> bytes:
        """4 or 16 bytes -> as many. The address's first bits come before the pad's others, a block for each bit."""
        bits = 8 * len(raw)
        prefix_bits = 8 if raw[0] == _LOOPBACK and len(raw) == 4 else 0
        value = int.from_bytes(raw, "big") << (128 - bits)
        blocks = b"".join(
            (value >> (128 - n) << (128 - n) | self._pad & (1 << (128 - n)) - 1).to_bytes(16, "big")
            for n in range(bits)
        )
        flips = 0
        for block in self._encrypt(blocks)[::16]:
            flips = flips << 1 | block >> 7
        flips &= (1 << (bits - prefix_bits)) - 1
        return (int.from_bytes(raw, "big") ^ flips).to_bytes(len(raw), "big")


def parsed(text: bytes) -> bytes | None:
    """The address that a text is, as 4 or 16 bytes; None where it is none, or not written as it is printed."""
    if not 2 <= len(text) <= 45 or text[:1] not in b"0123456789abcdef:" or b"%" in text:
        return None
    try:
        literal = text.decode("ascii")
        address = ipaddress.ip_address(literal)
    except ValueError:
        return None
    return address.packed if str(address) == literal else None


def written(raw: bytes) -> bytes:
    """An address as text."""
    return str(ipaddress.ip_address(raw)).encode()


class Addresses:
    """Maps addresses. `name` all that are written in messages and `meet` all of packets before the first is asked for.
    `bent`: named ones whose prefix gave way to their length."""

    def __init__(self, key: bytes, keep: bool = False) -> None:
        self._key = hashlib.blake2b(b"digits", key=key, digest_size=32).digest()
        self._pan = CryptoPan(hashlib.blake2b(b"addresses", key=key, digest_size=32).digest())
        self._keep = keep
        self._named: set[bytes] = set()
        self._met: set[bytes] = set()
        self._map: dict[bytes, bytes] = {}
        self._taken: set[bytes] = set()
        self._settled = False
        self.bent = 0

    def name(self, text: bytes) -> bool:
        """A text of a message: whether it is an address."""
        raw = parsed(text)
        if raw is not None:
            self._named.add(raw)
        return raw is not None

    def meet(self, raw: bytes) -> None:
        """An address of a packet."""
        self._met.add(raw)

    def address(self, raw: bytes) -> bytes:
        """4 or 16 bytes of an IP header."""
        if self._keep or raw == _LOOPBACK_6:
            return raw
        if not self._settled:
            self._settle()
        clean = self._map.get(raw)
        if clean is None:
            clean = self._pan.address(raw)
            if clean in self._taken:
                clean = self._digits(raw)
            self._put(raw, clean)
        return clean

    def literal(self, text: bytes) -> bytes | None:
        """An address written in a message, as long as it was; None where a text is none."""
        raw = parsed(text)
        if raw is None:
            return None
        clean = text if self._keep else written(self.address(raw))
        return clean if len(clean) == len(text) else None

    def link(self, raw: bytes) -> bytes:
        """Six bytes of a link-layer address; no vendor's. Broadcast, groups and zero stay what they are."""
        if self._keep or raw in (bytes(6), b"\xff" * 6):
            return raw
        clean = bytearray(hashlib.blake2b(b"link" + raw, key=self._key, digest_size=6).digest())
        clean[0] = clean[0] & 0xFC | 2 | raw[0] & 1
        return bytes(clean)

    def label(self, raw: bytes) -> bytes:
        """A number that names a network, as a GRE key or a VXLAN id, of as many bytes; zero stays what it is."""
        if self._keep or not any(raw):
            return raw
        clean = hashlib.blake2b(b"label" + raw, key=self._key, digest_size=len(raw)).digest()
        return clean if any(clean) else raw[:-1] + b"\1"

    def _put(self, raw: bytes, clean: bytes) -> None:
        self._map[raw] = clean
        self._taken.add(clean)

    def _settle(self) -> None:
        """Choose for all that are known: first those that need not be written."""
        self._settled = True
        later = []
        for raw in sorted((self._met | self._named) - {_LOOPBACK_6}):
            clean = self._pan.address(raw)
            if raw in self._named and len(written(clean)) != len(written(raw)):
                later.append(raw)
            else:
                self._put(raw, clean)
        for raw in later:
            self.bent += 1
            self._put(raw, self._digits(raw))

    def _digits(self, raw: bytes) -> bytes:
        """Another address whose numbers have as many digits, depending on those before each."""
        for attempt in range(_ATTEMPTS):
            clean = self._of_four(raw, attempt) if len(raw) == 4 else self._of_sixteen(raw, attempt)
            if clean != raw and clean not in self._taken and len(written(clean)) == len(written(raw)):
                return clean
        return self._pan.address(raw)  # as long as that many others are taken: its texts become names

    def _number(self, before: bytes, number: int, attempt: int) -> int:
        message = before + bytes([len(before), attempt & 255, attempt >> 8]) + number.to_bytes(2, "big")
        return int.from_bytes(hashlib.blake2b(message, key=self._key, digest_size=8).digest(), "big")

    def _of_four(self, raw: bytes, attempt: int) -> bytes:
        clean = bytearray()
        for place, number in enumerate(raw):
            if place == 0 and number == _LOOPBACK:
                clean.append(number)
                continue
            low, high = ((0, 9), (10, 99), (100, 255))[len(str(number)) - 1]
            # Only the last number pays for a second attempt: what stands before it is shared.
            drawn = self._number(raw[:place], number, attempt if place == 3 or attempt > 300 else 0)
            clean.append(low + drawn % (high - low + 1))
        return bytes(clean)

    def _of_sixteen(self, raw: bytes, attempt: int) -> bytes:
        clean = bytearray()
        for place in range(0, 16, 2):
            number = int.from_bytes(raw[place : place + 2], "big")
            if number:
                digits = len(f"{number:x}")
                low, high = (1 if digits == 1 else 16 ** (digits - 1)), 16**digits - 1
                drawn = self._number(raw[:place], number, attempt)
                number = low + drawn % (high - low + 1)
            clean += number.to_bytes(2, "big")
        return bytes(clean)
