"""Find the secret and record number of a TLS 1.3 connection whose beginning was not captured.

In: a record, and the traffic secrets of a key log. Out: the secret that opens it, with the record's sequence number.
Rules

- A counter mode gives each byte of the text its own byte of the key stream, so one block of AES per number tells
  whether the last byte is the content type, or a zero of the padding behind it (RFC 8446, 5.2 and 5.4): Java pads
  every record. Who passes that is proved by the tag.
- Small numbers first, over all secrets; all together are bounded (`MOST_NUMBERS`), by what a record costs.
- TLS 1.2 cannot be begun so: its keys are made of the server's random, which no key log has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.captures.tls.ciphers import Opened, Opener13
from kwire.captures.tls.derivation import expand_label
from kwire.captures.tls.keylog import TRAFFIC, KeyLog
from kwire.captures.tls.suites import BY_SECRET, GCM, SUITES

MOST_NUMBERS: Final = 1 << 24
"""Sequence numbers tried for one connection, over all secrets: some seconds."""

MOST_RECORDS: Final = 1 << 22
"""Of one secret: records that its connection has sent before the capture began."""

MOST_TRIED: Final = 1 << 12
"""Of one secret with a cipher whose key stream takes a call a record: ChaCha20, CCM."""

MOST_SECRETS: Final = 64
"""A log with more secrets holds those of others; which, nothing says."""

_FIRST: Final = 1 << 12
_DATA, _PADDING = 23, 0


class Match(NamedTuple):
    """`random`: the client's, which names the secrets of both directions; `server`: which side's secret it is."""

    random: bytes
    server: bool
    opener: Opener13
    number: int
    opened: Opened


class Guess(NamedTuple):
    """A secret that a record may be under, by one suite."""

    random: bytes
    server: bool
    secret: bytes
    suite: int


def guesses(keys: KeyLog, random: bytes | None = None, server: bool | None = None, suite: int = 0) -> list[Guess]:
    """Return the guesses that a log allows, the newest secrets first.

    random, server, suite: the connection's, if known."""
    results = []
    for side in (False, True) if server is None else (server,):
        names = keys.names(TRAFFIC[side]) if random is None else [random]
        for name in names:
            secret = keys.find(TRAFFIC[side], name)
            if secret is not None:
                results += [
                    Guess(name, side, secret, number)
                    for number in BY_SECRET.get(len(secret), ())
                    if suite in (0, number)
                ]
    return results


class Search:
    """The numbers of one record under several guesses; `budget` falls by what is tried."""

    def __init__(self, budget: int = MOST_NUMBERS) -> None:
        self.budget = budget

    def find(self, candidates: list[Guess], head: bytes, body: bytes) -> Match | None:
        """None: no guess opens it. A record takes half of what is left: it may be one that nothing can tell."""
        left = self.budget - self.budget // 2
        openers = [(guess, Opener13(guess.secret, guess.suite)) for guess in candidates]
        tried, size = 0, _FIRST
        while left > 0 and openers and tried < MOST_RECORDS:
            for guess, opener in openers:
                numbers = range(tried, tried + min(size, left))
                left -= len(numbers)
                self.budget -= len(numbers)
                for number in _likely(guess, numbers, body):
                    opened = opener.open(number, head, body)
                    if opened is not None:
                        return Match(guess.random, guess.server, opener, number, opened)
            tried += size
            size = min(2 * size, 1 << 18)
            openers = [pair for pair in openers if SUITES[pair[0].suite].kind == GCM or tried < MOST_TRIED]
        return None


def _likely(guess: Guess, numbers: range, body: bytes) -> Iterator[int]:
    """Yield those numbers under which the record may end as application data does."""
    suite = SUITES[guess.suite]
    if suite.kind != GCM:
        yield from numbers
        return
    last = len(body) - suite.tag - 1
    if last < 0 or not numbers:
        return
    key = expand_label(guess.secret, b"key", suite.key, suite.prf)
    vector = np.frombuffer(expand_label(guess.secret, b"iv", 12, suite.prf), np.uint8)
    # A block for each number: the nonce, and the counter of the block that the last byte lies in. The counter of the
    # first one is 2 (NIST SP 800-38D, 7.1).
    blocks = np.zeros((len(numbers), 16), np.uint8)
    blocks[:, :12] = vector
    wide = np.arange(numbers.start, numbers.stop, dtype=np.uint64).astype(">u8").view(np.uint8).reshape(-1, 8)
    blocks[:, 4:12] ^= wide
    blocks[:, 12:] = np.frombuffer((2 + last // 16).to_bytes(4, "big"), np.uint8)
    stream = np.frombuffer(_encrypted(key, blocks.tobytes()), np.uint8).reshape(-1, 16)[:, last % 16]
    ends = stream ^ body[last]
    for place in np.flatnonzero((ends == _DATA) | (ends == _PADDING)).tolist():
        yield numbers.start + place


def _encrypted(key: bytes, blocks: bytes) -> bytes:
    """Blocks under AES, each for itself: the key stream of a counter mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encryptor: Any = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    encrypted: bytes = encryptor.update(blocks) + encryptor.finalize()
    return encrypted
