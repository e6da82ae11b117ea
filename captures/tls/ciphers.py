"""One direction's keys, ready to open records.

In: a record's header, its body and its sequence number. Out: `Opened`, or None where it does not authenticate: by its
tag (AEAD), or by its HMAC and padding (CBC). Rules: nothing is given out that was not authenticated; a plaintext byte
lies in the record where its ciphertext lay (`skip` bytes after the header), so each keeps its packet.
"""

from __future__ import annotations

import functools
import hmac
import struct
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from kwire.captures.errors import CaptureError
from kwire.captures.extras import install
from kwire.captures.tls import evp
from kwire.captures.tls.derivation import KeyBlock, expand_label, following, key_block
from kwire.captures.tls.suites import CBC, CCM, CHACHA, GCM, SUITES, Suite

TLS13: Final = 0x0304
HEADER: Final = 5
"""Bytes of a record's header: type, version, length (RFC 8446, 5.1)."""

_NOT_THERE: Final = "TLS needs the package cryptography"


class Opened(NamedTuple):
    """A decrypted record: content type, plaintext, and number of the body's bytes before it."""

    kind: int
    plain: bytes
    skip: int


class Keys(NamedTuple):
    """Keys for many records at once.

    They are OpenSSL's context, the fixed part of the nonce (uint8[12]), and how many bytes of it a record carries."""

    context: evp.Context
    vector: np.ndarray
    tls13: bool
    explicit: int


def _many(suite: Suite, key: bytes, vector: bytes, tls13: bool, explicit: int) -> Keys | None:
    context = evp.context(suite.kind, key) if suite.tag == 16 else None
    return (
        Keys(context, np.frombuffer(bytearray(vector.ljust(12, b"\0")), np.uint8), tls13, explicit) if context else None
    )


class Opener(Protocol):
    """Keys of one direction. `overhead`: bytes that each record has beside its plaintext, the header included; None
    where that depends on its padding. `keys`: what opens many records at once; None: they are opened one by one."""

    overhead: int | None

    @property
    def keys(self) -> Keys | None: ...

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        """A record with this sequence number; None: it does not authenticate."""
        ...

    def following(self) -> Opener | None:
        """The keys after a KeyUpdate; None where there is no such thing."""
        ...


def available() -> bool:
    """Whether records can be opened at all here."""
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError:
        return False
    return True


def need() -> None:
    """Raise CaptureError where they cannot."""
    if not available():
        raise CaptureError(f"{_NOT_THERE}, which is not installed", install("tls"))


def _aead(suite: Suite, key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import aead

    if suite.kind == GCM:
        return aead.AESGCM(key)
    if suite.kind == CHACHA:
        return aead.ChaCha20Poly1305(key)
    return aead.AESCCM(key, suite.tag)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    error: type[Exception] = InvalidTag
    return error


class Opener13:
    """TLS 1.3: an AEAD, the nonce made of the sequence number, the content type behind the text (RFC 8446, 5.2)."""

    def __init__(self, secret: bytes, number: int) -> None:
        suite = SUITES[number]
        self._secret, self._suite = secret, number
        self._key = expand_label(secret, b"key", suite.key, suite.prf)
        self._cipher = _aead(suite, self._key)
        self._iv = int.from_bytes(expand_label(secret, b"iv", 12, suite.prf), "big")
        self._invalid = _invalid_tag()
        self._tag = suite.tag
        self.suite = number
        self.overhead: int | None = HEADER + 1 + suite.tag

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        if len(body) <= self._tag:
            return None
        try:
            plain = self._cipher.decrypt((self._iv ^ number).to_bytes(12, "big"), body, head)
        except self._invalid:
            return None
        kind = plain[-1]
        if kind:
            return Opened(kind, plain[:-1], 0)
        text = plain.rstrip(b"\0")  # padding
        return Opened(text[-1], text[:-1], 0) if text else Opened(0, b"", 0)

    @functools.cached_property
    def keys(self) -> Keys | None:
        return _many(SUITES[self.suite], self._key, self._iv.to_bytes(12, "big"), True, 0)

    def following(self) -> Opener13:
        return Opener13(following(self._secret, SUITES[self._suite].prf), self._suite)


class Aead12:
    """TLS 1.2 with an AEAD: GCM and CCM send half of the nonce (RFC 5288, 6655), ChaCha20 none of it (RFC 7905)."""

    def __init__(self, suite: Suite, keys: KeyBlock) -> None:
        self._cipher = _aead(suite, keys.key)
        self._suite, self._key = suite, keys.key
        self._iv = keys.iv
        self._whole = int.from_bytes(keys.iv, "big") if suite.kind == CHACHA else None
        self._skip = 0 if suite.kind == CHACHA else 8
        self._beside = self._skip + suite.tag
        self._invalid = _invalid_tag()
        self.overhead: int | None = HEADER + self._beside

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        size = len(body) - self._beside
        if size < 0:
            return None
        about = struct.pack(">Q3sH", number, head[:3], size)
        nonce = self._iv + body[:8] if self._whole is None else (self._whole ^ number).to_bytes(12, "big")
        try:
            plain = self._cipher.decrypt(nonce, body[self._skip :], about)
        except self._invalid:
            return None
        return Opened(head[0], plain, self._skip)

    @functools.cached_property
    def keys(self) -> Keys | None:
        return _many(self._suite, self._key, self._iv, False, self._skip)

    def following(self) -> None:
        return None


class Cbc12:
    """TLS 1.2 and 1.1 with AES-CBC and HMAC, inside (RFC 5246, 6.2.3.2) or behind the ciphertext (RFC 7366)."""

    def __init__(self, suite: Suite, keys: KeyBlock, outside: bool) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher: Any = Cipher
        self._aes: Any = algorithms.AES(keys.key)
        self._mode: Any = modes.CBC
        self._mac, self._hash = keys.mac, suite.mac
        self._size = len(keys.mac)
        self._outside = outside
        self.overhead: int | None = None
        self.keys: Keys | None = None

    def _right(self, number: int, head: bytes, data: bytes, mac: bytes) -> bool:
        about = struct.pack(">Q3sH", number, head[:3], len(data))
        return hmac.compare_digest(mac, hmac.digest(self._mac, about + data, self._hash))

    def open(self, number: int, head: bytes, body: bytes) -> Opened | None:
        inner = len(body) - (self._size if self._outside else 0)
        if inner < 32 or inner % 16:
            return None
        if self._outside and not self._right(number, head, body[:inner], body[inner:]):
            return None
        decryptor = self._cipher(self._aes, self._mode(body[:16])).decryptor()
        plain: bytes = decryptor.update(body[16:inner]) + decryptor.finalize()
        padding = plain[-1] + 1
        size = len(plain) - padding - (0 if self._outside else self._size)
        if size < 0 or plain[-padding:] != bytes([padding - 1]) * padding:
            return None
        if not self._outside and not self._right(number, head, plain[:size], plain[size : size + self._size]):
            return None
        return Opened(head[0], plain[:size], 16)

    def following(self) -> None:
        return None


_MAC_BYTES: Final = {"sha1": 20, "sha256": 32, "sha384": 48, "": 0}


def opener12(
    master: bytes, randoms: bytes, number: int, version: int, server: bool, outside: bool
) -> Aead12 | Cbc12 | None:
    """One direction's keys of TLS 1.1 or 1.2, None where the suite is not known. `randoms`: the server's and the
    client's; `outside`: encrypt-then-MAC was agreed on."""
    suite = SUITES.get(number)
    if suite is None or version < 0x0302 or (version < 0x0303 and suite.kind != CBC):
        return None
    vector = {GCM: 4, CCM: 4, CHACHA: 12, CBC: 0}[suite.kind]
    keys = key_block(master, randoms, (_MAC_BYTES[suite.mac], suite.key, vector), suite.prf, version, server)
    return Cbc12(suite, keys, outside) if suite.kind == CBC else Aead12(suite, keys)
