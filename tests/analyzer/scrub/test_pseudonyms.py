"""Names become others of the same length, consistently.

proves: analyzer.scrub.pseudonyms.
"""

from __future__ import annotations

import string
import uuid

from analyzer.scrub.addresses import Addresses
from analyzer.scrub.pseudonyms import PUBLIC, Pseudonyms


def names(key: bytes = b"k" * 32, **keep: bool) -> Pseudonyms:
    return Pseudonyms(key, Addresses(key), **keep)


def test_the_same_name_becomes_the_same_and_another_another() -> None:
    one, other = names(), names()
    texts = [f"orders-{i}".encode() for i in range(3000)] + [b"a", b"ab", "größe".encode(), b"x" * 300]
    made = [one.text(text) for text in texts]
    assert [len(text) for text in made] == [len(text) for text in texts]
    assert len(set(made)) == len(texts)
    assert made == [other.text(text) for text in texts]
    assert made != [names(b"o" * 32).text(text) for text in texts]
    assert not set(made) & set(texts)
    allowed = set((string.ascii_lowercase + string.digits).encode())
    assert all(set(text) <= allowed for text in made)


def test_short_names_give_way_until_there_are_no_others() -> None:
    one = names()
    texts = [character.encode() for character in string.ascii_letters]
    made = [one.text(text) for text in texts]
    assert all(len(text) == 1 for text in made)
    assert one.shared >= len(texts) - 20
    assert len(set(made)) >= 15


def test_a_member_begins_with_its_clients_pseudonym() -> None:
    one = names()
    client, member = b"rebalancer", b"rebalancer-" + str(uuid.UUID(int=7 << 100)).encode()
    made = one.text(member)
    assert made.startswith(one.text(client) + b"-")
    assert uuid.UUID(made[11:].decode()) != uuid.UUID(int=7 << 100)
    assert len(made) == len(member)


def test_no_pseudonym_has_a_text_of_the_capture_in_it() -> None:
    pieces = [f"{a}{b}{c}{d}".encode() for a in "bcdf" for b in "0123" for c in "xyzw" for d in "6789"]
    one = names()
    one.know(pieces)
    for i in range(2000):
        made = one.text(f"a-rather-long-name-{i}".encode())
        assert not any(piece in made for piece in pieces)


def test_what_is_everybodys_stays() -> None:
    one = names()
    assert one.text(b"") == b""
    for text in PUBLIC:
        assert one.text(text) == text
    assert one.text(b"4.3.0", "clientSoftwareVersion") == b"4.3.0"
    assert one.text(b"4.3.0", "name") != b"4.3.0"
    assert one.text(b"my-build-4.3.0", "clientSoftwareVersion") != b"my-build-4.3.0"


def test_numbers_become_numbers_and_short_ones_stay() -> None:
    """A broker's client id is its number (KafkaConfig.brokerId, as text)."""
    one = names()
    assert [one.text(text) for text in (b"0", b"12", b"101")] == [b"0", b"12", b"101"]
    made = [one.text(str(number).encode()) for number in range(1000, 1100)]
    assert all(text.isdigit() and len(text) == 4 and text[:1] != b"0" for text in made)
    assert len(set(made)) == 100


def test_ids() -> None:
    one = names()
    raw = bytes(range(16))
    assert one.identifier(raw) == one.identifier(raw) != raw
    assert len(one.identifier(raw)) == 16
    assert one.identifier(bytes(16)) == bytes(16)
    assert one.identifier(bytes(15) + b"\1") == bytes(15) + b"\1"
    assert names(keep_ids=True).identifier(raw) == raw


def test_noise_is_no_text() -> None:
    one = names()
    for size in (0, 1, 100, 5000):
        for about in (b"", b"something"):
            made = one.noise(size, about)
            assert len(made) == size
            assert all(byte > 127 for byte in made)
    assert one.noise(16, b"a") == one.noise(16, b"a") != one.noise(16, b"b")
