"""The client's side of SCRAM (RFC 5802, RFC 7677), as Kafka speaks it (KIP-84).

In: user, password, and the server's messages. Out: the client's messages. Pure: the nonce is handed in. Rules: the
server proves that it knows the password as well, or the login fails; a server that asks for absurd work is refused. As
in Kafka's own client, no SASLprep: user and password are taken as they are, in UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
from typing import Final

ALGORITHMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
LEAST_ITERATIONS: Final = 4096
"""Kafka's own bound (ScramMechanism): below it a listener could learn the password too cheaply."""
MOST_ITERATIONS: Final = 1 << 20
"""About half a second of work. More is a server that wants to keep the client busy."""


class ScramError(ValueError):
    """The server's message is not what RFC 5802 says, or does not prove what it must. Holds no secret."""


@functools.lru_cache(maxsize=64)
def _salted(algorithm: str, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802 allows to keep it; thousands of connections of one user need it once."""
    return hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)


class Conversation:
    """One login: `first()`, then `final(server's first)`, then `verify(server's final)`."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._algorithm = ALGORITHMS[mechanism]
        self._password = password
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        attributes = _attributes(server_first)
        nonce = attributes.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not continue ours")
        try:
            salt = base64.b64decode(attributes["s"], validate=True)
            iterations = int(attributes["i"])
        except (KeyError, ValueError, binascii.Error):
            raise ScramError("the server's first message has no salt and iterations") from None
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise ScramError(f"the server asks for {iterations} iterations")
        salted = _salted(self._algorithm, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        signed = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._algorithm, client_key).digest(), signed)
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        attributes = _attributes(server_final)
        if "e" in attributes:
            raise ScramError("the server refused the proof")
        try:
            signature = base64.b64decode(attributes["v"], validate=True)
        except (KeyError, ValueError, binascii.Error):
            raise ScramError("the server's final message has no signature") from None
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ScramError("the server does not know this password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._algorithm)


def _attributes(message: bytes) -> dict[str, str]:
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError:
        raise ScramError("the server's message is not text") from None
    return {name: value for name, equals, value in (part.partition("=") for part in parts) if equals}
