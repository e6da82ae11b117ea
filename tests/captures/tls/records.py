"""Records of TLS 1.3 under secrets of our own: what OpenSSL's Python door does not let one write.

In: what the two sides say, and how (key updates, early data, padding). Out: bytes for each side, and a key log. Keys
are derived by `cryptography`'s HKDF, so nothing here shares code with what it proves.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.captures.forge import Write
from tests.captures.tls.sealing import HOST

CHANGE_CIPHER = b"\x14\x03\x03\x00\x01\x01"
HANDSHAKE, ALERT, DATA = 22, 21, 23
EARLY, SHAKING, TRAFFIC = 0, 1, 2
LABELS = (
    ("CLIENT_EARLY_TRAFFIC_SECRET", ""),
    ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET"),
    ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"),
)
SUITES = {0x1301: ("aes", 16, "SHA256"), 0x1302: ("aes", 32, "SHA384"), 0x1303: ("chacha", 32, "SHA256")}


def extension(kind: int, content: bytes) -> bytes:
    return struct.pack(">HH", kind, len(content)) + content


def message(kind: int, body: bytes) -> bytes:
    """A handshake message."""
    return bytes([kind]) + len(body).to_bytes(3, "big") + body


def record(kind: int, body: bytes) -> bytes:
    return struct.pack(">BHH", kind, 0x0303, len(body)) + body


class Forged:
    """One connection of TLS 1.3; `log` is its key log."""

    def __init__(self, seed: int, suite: int = 0x1302, early: bool = False) -> None:
        rng = random.Random(seed)
        self._suite, self._early = suite, early
        self.random = rng.randbytes(32)
        self._server_random = rng.randbytes(32)
        size = 48 if suite == 0x1302 else 32
        self._secrets = {(epoch, side): rng.randbytes(size) for epoch in (0, 1, 2) for side in (True, False)}
        self._numbers: dict[tuple[int, bool], int] = {}
        self.log = "".join(
            f"{label} {self.random.hex()} {self._secrets[epoch, side].hex()}\n"
            for epoch, both in enumerate(LABELS)
            for side, label in zip((True, False), both, strict=True)
            if label
        ).encode()

    def client_hello(self) -> bytes:
        name = struct.pack(">HBH", len(HOST) + 3, 0, len(HOST)) + HOST.encode()
        extensions = extension(0, name) + extension(43, b"\x02\x03\x04") + (extension(42, b"") if self._early else b"")
        body = b"\x03\x03" + self.random + b"\x00" + struct.pack(">HH", 2, self._suite) + b"\x01\x00"
        return record(HANDSHAKE, message(1, body + struct.pack(">H", len(extensions)) + extensions))

    def server_hello(self, random_: bytes | None = None) -> bytes:
        extensions = extension(43, b"\x03\x04")
        body = b"\x03\x03" + (random_ or self._server_random) + b"\x00" + struct.pack(">HB", self._suite, 0)
        return record(HANDSHAKE, message(2, body + struct.pack(">H", len(extensions)) + extensions))

    def sealed(self, side: bool, epoch: int, kind: int, data: bytes, padding: int = 0) -> bytes:
        """A protected record; `side`: the client's."""
        from cryptography.hazmat.primitives.ciphers import aead

        cipher, size, _ = SUITES[self._suite]
        secret = self._secrets[epoch, side]
        key, vector = self._expanded(secret, b"key", size), self._expanded(secret, b"iv", 12)
        aead_cipher: Any = aead.AESGCM(key) if cipher == "aes" else aead.ChaCha20Poly1305(key)
        number = self._numbers.get((epoch, side), 0)
        self._numbers[epoch, side] = number + 1
        plain = data + bytes([kind]) + bytes(padding)
        head = struct.pack(">BHH", DATA, 0x0303, len(plain) + 16)
        nonce = bytes(a ^ b for a, b in zip(vector, number.to_bytes(12, "big"), strict=True))
        return head + bytes(aead_cipher.encrypt(nonce, plain, head))

    def updated(self, side: bool) -> bytes:
        """A KeyUpdate; what this side says afterwards is under the next keys."""
        out = self.sealed(side, TRAFFIC, HANDSHAKE, message(24, b"\x00"))
        secret = self._secrets[TRAFFIC, side]
        self._secrets[TRAFFIC, side] = self._expanded(secret, b"traffic upd", len(secret))
        self._numbers[TRAFFIC, side] = 0
        return out

    def expanded(self, label: bytes, size: int) -> bytes:
        """Key or vector of what the client says."""
        return self._expanded(self._secrets[TRAFFIC, True], label, size)

    def _expanded(self, secret: bytes, label: bytes, size: int) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        about = struct.pack(">HB", size, 6 + len(label)) + b"tls13 " + label + b"\x00"
        return bytes(HKDFExpand(getattr(hashes, SUITES[self._suite][2])(), size, about).derive(secret))

    def answered(self, accepted: bool = False) -> bytes:
        """The server's hello and what follows it up to its Finished."""
        extensions = extension(42, b"") if accepted else b""
        flight = message(8, struct.pack(">H", len(extensions)) + extensions) + message(20, bytes(48))
        return self.server_hello() + CHANGE_CIPHER + self.sealed(False, SHAKING, HANDSHAKE, flight)

    def shaken(self) -> list[Write]:
        """A whole handshake without early data."""
        finished = CHANGE_CIPHER + self.sealed(True, SHAKING, HANDSHAKE, message(20, bytes(48)))
        return [Write(True, self.client_hello()), Write(False, self.answered()), Write(True, finished)]

    def sealed_write(self, write: Write, padding: int = 0) -> Write:
        return Write(write.to_broker, self.sealed(write.to_broker, TRAFFIC, DATA, write.data, padding))
