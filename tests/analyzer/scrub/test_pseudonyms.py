"""Names become others of the same length, consistently.

proves: kwire.analyzer.scrub.pseudonyms.
"""

from __future__ import annotations

import string
import uuid

from kwire.analyzer.scrub.addresses import Addresses
from kwire.analyzer.scrub.pseudonyms import PUBLIC, Pseudonyms


def names(key: bytes = b"k" * 32, **keep: bool) -> Pseudonyms:
    return Pseudonyms(key, Addresses(key), **keep)


def test_the_same_name_becomes_the_same_and_another_another() -> None:
    pseudonyms, other = names(), names()
    texts = [f"orders-{i}".encode() for i in range(3000)] + [b"a", b"ab", "größe".encode(), b"x" * 300]
    results = [pseudonyms.text(text) for text in texts]
    assert [len(text) for text in results] == [len(text) for text in texts]
    assert len(set(results)) == len(texts)
    assert results == [other.text(text) for text in texts]
    assert results != [names(b"o" * 32).text(text) for text in texts]
    assert not set(results) & set(texts)
    allowed = set((string.ascii_lowercase + string.digits).encode())
    assert all(set(text) <= allowed for text in results)


def test_short_names_give_way_until_there_are_no_others() -> None:
    pseudonyms = names()
    texts = [character.encode() for character in string.ascii_letters]
    results = [pseudonyms.text(text) for text in texts]
    assert all(len(text) == 1 for text in results)
    assert pseudonyms.shared >= len(texts) - 20
    assert len(set(results)) >= 15


def test_a_member_begins_with_its_clients_pseudonym() -> None:
    pseudonyms = names()
    client, member = b"rebalancer", b"rebalancer-" + str(uuid.UUID(int=7 << 100)).encode()
    texts = pseudonyms.text(member)
    assert texts.startswith(pseudonyms.text(client) + b"-")
    assert uuid.UUID(texts[11:].decode()) != uuid.UUID(int=7 << 100)
    assert len(texts) == len(member)


def test_no_pseudonym_has_a_text_of_the_capture_in_it() -> None:
    pieces = [f"{a}{b}{c}{d}".encode() for a in "bcdf" for b in "0123" for c in "xyzw" for d in "6789"]
    pseudonyms = names()
    pseudonyms.know(pieces)
    for i in range(2000):
        texts = pseudonyms.text(f"a-rather-long-name-{i}".encode())
        assert not any(piece in texts for piece in pieces)


def test_what_is_everybodys_stays() -> None:
    pseudonyms = names()
    assert pseudonyms.text(b"") == b""
    for text in PUBLIC:
        assert pseudonyms.text(text) == text
    assert pseudonyms.text(b"4.3.0", "clientSoftwareVersion") == b"4.3.0"
    assert pseudonyms.text(b"4.3.0", "name") != b"4.3.0"
    assert pseudonyms.text(b"my-build-4.3.0", "clientSoftwareVersion") != b"my-build-4.3.0"


def test_numbers_become_numbers_and_short_ones_stay() -> None:
    """A broker's client id is its number (KafkaConfig.brokerId, as text)."""
    pseudonyms = names()
    assert [pseudonyms.text(text) for text in (b"0", b"12", b"101")] == [b"0", b"12", b"101"]
    texts = [pseudonyms.text(str(number).encode()) for number in range(1000, 1100)]
    assert all(text.isdigit() and len(text) == 4 and text[:1] != b"0" for text in texts)
    assert len(set(texts)) == 100


def test_ids() -> None:
    pseudonyms = names()
    raw = bytes(range(16))
    assert pseudonyms.identifier(raw) == pseudonyms.identifier(raw) != raw
    assert len(pseudonyms.identifier(raw)) == 16
    assert pseudonyms.identifier(bytes(16)) == bytes(16)
    assert pseudonyms.identifier(bytes(15) + b"\1") == bytes(15) + b"\1"
    assert names(keep_ids=True).identifier(raw) == raw


def test_noise_is_no_text() -> None:
    pseudonyms = names()
    for size in (0, 1, 100, 5000):
        for about in (b"", b"something"):
            texts = pseudonyms.noise(size, about)
            assert len(texts) == size
            assert all(byte > 127 for byte in texts)
    assert pseudonyms.noise(16, b"a") == pseudonyms.noise(16, b"a") != pseudonyms.noise(16, b"b")
