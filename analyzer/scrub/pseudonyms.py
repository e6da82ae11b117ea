"""Names, ids and contents -> others of the same length, from a key.

In: a key, then every text there is (`know`), then texts, ids and sizes. Out: as many bytes. Rules

- The same text becomes the same pseudonym, wherever it stands; with the same key in other captures too, but for texts
  of a few bytes: those must give way to others that are there.
- Two texts become two pseudonyms, as long as there are enough of their length (`shared` counts where not).
- No pseudonym has a text of the capture in it (of `LEAST` bytes or more), and noise has none, for it is no ASCII.
- What everybody's Kafka says stays: internal topics, assignors, mechanisms, states, features; numbers of up to three
  digits too, and longer ones become numbers: brokers' client ids are their numbers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Final

from kwire.analyzer.scrub.addresses import Addresses

LEAST: Final = 4
"""Bytes of a text from which on it is looked for in what is written."""

_DIGITS: Final = b"0123456789"
_LETTERS: Final = b"bcdfghjklmnpqrstvwxz"
_OTHERS: Final = b"bcdfghjklmnpqrstvwxz0123456789yu"  # 32: five bits of a byte choose one
_FOLDED: Final = bytes(_OTHERS[byte & 31] for byte in range(256))
_RAISED: Final = bytes(byte | 128 for byte in range(256))
_ATTEMPTS: Final = 500

PUBLIC: Final = frozenset(
    b"""
    __consumer_offsets __transaction_state __share_group_state __cluster_metadata
    consumer connect share streams classic range roundrobin sticky cooperative-sticky uniform simple stream
    sessioned compatible eager default homogeneous heterogeneous
    PLAIN SCRAM-SHA-256 SCRAM-SHA-512 GSSAPI OAUTHBEARER
    Unknown PreparingRebalance CompletingRebalance Stable Dead Empty Assigning Reconciling NotReady
    Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort PrepareEpochFence
    metadata.version kraft.version transaction.version group.version eligible.leader.replicas.version share.version
    streams.version
    apache-kafka-java librdkafka confluent-kafka-python confluent-kafka-go confluent-kafka-dotnet confluent-kafka-js
    kafka-python kafka-python-ng aiokafka kafkajs sarama kgo franz-go segmentio github.com/twmb/franz-go kafka-go
    node-rdkafka rdkafka ruby-kafka rskafka pykafka
    """.split()
)
"""Texts of Kafka and of its clients, in no message anybody's own."""

_RELEASE: Final = re.compile(
    rb"v?\d{1,4}(\.\d{1,5}){1,2}([-.](rc|RC|M|beta|alpha|ccs|ce|SNAPSHOT|dev)\.?\d{0,4})?|unknown"
)
_MEMBER: Final = re.compile(rb"(.+)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", re.DOTALL)


def is_public(text: bytes, field: str = "") -> bool:
    """Whether a text of this field stays as it is."""
    if not text or text in PUBLIC or (text.isdigit() and len(text) < LEAST):  # a broker's id is its client id
        return True
    return field == "clientSoftwareVersion" and _RELEASE.fullmatch(text) is not None


class Pseudonyms:
    """Pseudonyms of texts and ids. `shared`: texts that had to take a pseudonym that others have. `public`: texts that
    stayed."""

    def __init__(self, key: bytes, addresses: Addresses, keep_names: bool = False, keep_ids: bool = False) -> None:
        self._key = hashlib.blake2b(b"names", key=key, digest_size=32).digest()
        self._addresses = addresses
        self._keep_names = keep_names
        self._keep_ids = keep_ids
        self._map: dict[bytes, bytes] = {}
        self._taken: set[bytes] = set()
        self._lengths: list[int] = []
        self.known: set[bytes] = set()
        self.public: set[bytes] = set()
        self.shared = 0
        self._noise = b""

    def know(self, texts: Iterable[bytes]) -> None:
        """The texts of the capture."""
        self.known.update(text for text in texts if len(text) >= LEAST and not is_public(text))
        self._lengths = sorted({len(text) for text in self.known})

    @property
    def names(self) -> int:
        """How many texts were replaced."""
        return len(self._map)

    def text(self, text: bytes, field: str = "") -> bytes:
        """A string of a message."""
        if is_public(text, field):
            self.public.add(text)
            return text
        pseudonym = self._map.get(text)
        if pseudonym is None:
            pseudonym = self._literal(text)
            if pseudonym is None:
                pseudonym = text if self._keep_names else self._name(text)
            self._map[text] = pseudonym
        return pseudonym

    def has_number(self, window: bytes) -> bool:
        """Whether a pseudonym has these digits: other numbers have them by chance."""
        return any(window in pseudonym for text, pseudonym in self._map.items() if pseudonym != text)

    def identifier(self, raw: bytes) -> bytes:
        """A uuid: a topic's, a directory's, a member's. Kafka's own (Uuid.isReserved: the first hundred) stay."""
        if self._keep_ids or not any(raw[:-1]):
            return raw
        return hashlib.blake2b(raw, key=self._key, digest_size=len(raw)).digest()

    def noise(self, size: int, about: bytes = b"") -> bytes:
        """So many bytes, all of them above 127: the same about the same."""
        if about:
            return hashlib.shake_128(self._key + about).digest(size).translate(_RAISED)
        if size > len(self._noise):
            self._noise = hashlib.shake_128(self._key).digest(2 * size).translate(_RAISED)
        return self._noise[:size]

    def _literal(self, text: bytes) -> bytes | None:
        """An address, as it is (`10.0.0.9`) or behind a slash, as Java prints one."""
        if text[:1] == b"/":
            pseudonym = self._addresses.literal(text[1:])
            return None if pseudonym is None else b"/" + pseudonym
        return self._addresses.literal(text)

    def _name(self, text: bytes) -> bytes:
        member = _MEMBER.fullmatch(text)
        if member is not None:  # a client's id and a uuid (GroupMetadataManager.java)
            other = hashlib.blake2b(member[2], key=self._key, digest_size=16).hexdigest().encode()
            groups = other[:8], other[8:12], other[12:16], other[16:20], other[20:]
            pseudonym = b"-".join((self.text(member[1]), *groups))
            if not self._tells(pseudonym):
                return pseudonym
        if len(text) == 22 and (raw := _uuid(text)) is not None:
            pseudonym = base64.urlsafe_b64encode(hashlib.blake2b(raw, key=self._key, digest_size=16).digest())[:22]
            if not self._tells(pseudonym):
                return pseudonym
        pseudonym = b""
        for attempt in range(_ATTEMPTS):
            pseudonym = self._drawn(text, attempt)
            if (
                pseudonym not in self._taken
                and pseudonym != text
                and pseudonym not in PUBLIC
                and not self._tells(pseudonym)
            ):
                self._taken.add(pseudonym)
                return pseudonym
        self.shared += 1
        return pseudonym

    def _drawn(self, text: bytes, attempt: int) -> bytes:
        drawn = hashlib.shake_128(self._key + attempt.to_bytes(2, "big") + text).digest(len(text))
        if text.isdigit():
            return bytes([_DIGITS[1 + drawn[0] % 9]]) + bytes(_DIGITS[byte % 10] for byte in drawn[1:])
        return bytes([_LETTERS[drawn[0] % len(_LETTERS)]]) + drawn[1:].translate(_FOLDED)

    def _tells(self, pseudonym: bytes) -> bool:
        """Whether a pseudonym has a text of the capture in it."""
        return any(
            pseudonym[at : at + length] in self.known
            for length in self._lengths
            if length <= len(pseudonym)
            for at in range(len(pseudonym) - length + 1)
        )


def _uuid(text: bytes) -> bytes | None:
    """The 16 bytes that 22 characters of base64url stand for."""
    try:
        raw = base64.urlsafe_b64decode(text + b"==")
    except ValueError:
        return None
    return raw if base64.urlsafe_b64encode(raw)[:22] == text else None
