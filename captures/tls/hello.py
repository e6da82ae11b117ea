"""Read handshake messages: which keys open the records that follow, and who the peers are.

In: the bodies of handshake messages (RFC 8446, 4; RFC 5246, 7.4), which anybody may have made up. Out: what they say.
Rule: a length that is not true ends the message there; what was read before it counts.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

CLIENT_HELLO, SERVER_HELLO, NEW_TICKET, END_OF_EARLY, ENCRYPTED_EXTENSIONS, CERTIFICATE, KEY_UPDATE = (
    1,
    2,
    4,
    5,
    8,
    11,
    24,
)
RETRY: Final = hashlib.sha256(b"HelloRetryRequest").digest()
"""The random of a ServerHello that asks for another ClientHello (RFC 8446, 4.1.3)."""

_SERVER_NAME, _ALPN, _OUTSIDE, _VERSIONS, _EARLY = 0, 16, 22, 43, 42

MOST_TEXT: Final = 255
"""Characters kept of a name that a hello says: as long as a host's may be."""

VERSIONS: Final = {0x0300: "3.0", 0x0301: "1.0", 0x0302: "1.1", 0x0303: "1.2", 0x0304: "1.3"}


class ClientHello(NamedTuple):
    """`early`: data comes before the server has answered."""

    random: bytes
    server_name: str | None
    early: bool


class ServerHello(NamedTuple):
    """`outside`: the MAC is behind the ciphertext (encrypt-then-MAC). `retry`: it asks for another ClientHello."""

    random: bytes
    session: bytes
    version: int
    suite: int
    outside: bool
    protocol: str | None
    retry: bool


def _vector(data: bytes, at: int, width: int) -> tuple[bytes, int]:
    """A vector at `at` with a length of `width` bytes, cut off where the message ends; and where the next thing is."""
    begin = at + width
    size = int.from_bytes(data[at:begin], "big")
    return data[begin : begin + size], begin + size


def _extensions(data: bytes, at: int) -> dict[int, bytes]:
    """The first of each kind."""
    block, _ = _vector(data, at, 2)
    extensions: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(block):
        kind = int.from_bytes(block[at : at + 2], "big")
        content, at = _vector(block, at + 2, 2)
        extensions.setdefault(kind, content)
    return extensions


def _text(data: bytes) -> str | None:
    """Return a hello's name: printable ASCII, or an empty text."""
    if not data or len(data) > MOST_TEXT or any(not 32 < byte < 127 for byte in data):
        return None
    return data.decode("ascii")


def _protocol(extensions: dict[int, bytes]) -> str | None:
    """The protocol chosen (RFC 7301)."""
    names, _ = _vector(extensions.get(_ALPN, b""), 0, 2)
    return _text(_vector(names, 0, 1)[0])


def client_hello(body: bytes) -> ClientHello | None:
    """None: it ends inside the random."""
    if len(body) < 34:
        return None
    _, at = _vector(body, 34, 1)  # session id
    _, at = _vector(body, at, 2)  # suites
    _, at = _vector(body, at, 1)  # compression
    extensions = _extensions(body, at)
    names, _ = _vector(extensions.get(_SERVER_NAME, b""), 0, 2)
    name = _text(_vector(names, 1, 2)[0]) if names[:1] == b"\0" else None  # RFC 6066, 3
    return ClientHello(body[2:34], name, _EARLY in extensions)


def server_hello(body: bytes) -> ServerHello | None:
    """None: it ends before its suite."""
    if len(body) < 35:
        return None
    session, at = _vector(body, 34, 1)
    if len(body) < at + 2:
        return None
    extensions = _extensions(body, at + 3)
    version = extensions.get(_VERSIONS, body[:2])
    return ServerHello(
        random=body[2:34],
        session=session,
        version=int.from_bytes(version[:2], "big"),
        suite=int.from_bytes(body[at : at + 2], "big"),
        outside=_OUTSIDE in extensions,
        protocol=_protocol(extensions),
        retry=body[2:34] == RETRY,
    )


def encrypted_extensions(body: bytes) -> tuple[str | None, bool]:
    """The protocol chosen, and whether early data was accepted."""
    extensions = _extensions(body, 0)
    return _protocol(extensions), _EARLY in extensions


def first_certificate(body: bytes, version: int) -> bytes:
    """The first of the certificates that a server shows, DER; empty: there is none."""
    at = 0
    if version >= 0x0304:
        _, at = _vector(body, 0, 1)  # context
    certificates, _ = _vector(body, at, 3)
    return _vector(certificates, 0, 3)[0]
