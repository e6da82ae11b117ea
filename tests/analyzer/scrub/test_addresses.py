"""Addresses become others: as the reference implementation of Crypto-PAn says, and as long as text where they must.

proves: kwire.analyzer.scrub.addresses.
"""

from __future__ import annotations

import ipaddress
import random

import pytest

from kwire.analyzer.scrub.addresses import Addresses, CryptoPan, parsed

REFERENCE_KEY = bytes(
    [
        21,
        34,
        23,
        141,
        51,
        164,
        207,
        128,
        19,
        10,
        91,
        22,
        73,
        144,
        125,
        16,
        216,
        152,
        143,
        131,
        121,
        121,
        101,
        39,
        98,
        87,
        76,
        45,
        42,
        132,
        34,
        2,
    ]
)
"""Of the sample program that comes with Crypto-PAn 1.0, as are these."""


@pytest.mark.parametrize(
    ("address", "becomes"),
    [
        ("128.11.68.132", "135.242.180.132"),
        ("129.118.74.4", "134.136.186.123"),
        ("130.132.252.244", "133.68.164.234"),
        ("141.223.7.43", "141.167.8.160"),
        ("141.233.145.108", "141.129.237.235"),
        ("152.163.225.39", "151.140.114.167"),
    ],
)
def test_the_reference_sample(address: str, becomes: str) -> None:
    raw = CryptoPan(REFERENCE_KEY).address(ipaddress.ip_address(address).packed)
    assert str(ipaddress.ip_address(raw)) == becomes


def shared(a: bytes, b: bytes) -> int:
    """Bits that two addresses share at their beginning."""
    return 8 * len(a) - (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_length()


@pytest.mark.parametrize("size", [4, 16])
def test_prefixes_are_preserved_exactly(size: int) -> None:
    rng = random.Random(size)
    addresses = Addresses(b"k" * 32)
    raws = [bytes([10]) + rng.randbytes(size - 1) for _ in range(40)]
    raws += [raw[:-1] + bytes([raw[-1] ^ 1]) for raw in raws]
    pseudonyms = [addresses.address(raw) for raw in raws]
    assert len(set(pseudonyms)) == len(set(raws))
    for raw, clean in zip(raws[:20], pseudonyms[:20], strict=True):
        for other, another in zip(raws, pseudonyms, strict=True):
            assert shared(raw, other) == shared(clean, another)
        assert raw != clean


def test_a_named_address_keeps_its_length_as_text_and_others_keep_their_prefixes() -> None:
    addresses = Addresses(b"k" * 32)
    named = [b"10.0.0.9", b"10.0.0.17", b"192.168.100.200", b"8.8.8.8", b"127.0.0.1", b"fd00::1:2", b"fe80::1"]
    for text in named:
        assert addresses.name(text)
    for raw in (bytes([10, 0, 0, 9]), bytes([10, 7, 7, 7])):
        addresses.meet(raw)
    pseudonyms = [addresses.literal(text) for text in named]
    assert all(
        clean is not None and len(clean) == len(text) and clean != text
        for clean, text in zip(pseudonyms, named, strict=True)
    )
    assert len(set(pseudonyms)) == len(named)
    assert addresses.bent > 0
    assert str(ipaddress.ip_address(addresses.address(bytes([10, 0, 0, 9])))).encode() == pseudonyms[0]
    assert addresses.address(bytes([10, 7, 7, 7])) == CryptoPan(_pan_key()).address(bytes([10, 7, 7, 7]))
    assert pseudonyms[4].startswith(b"127.")  # type: ignore[union-attr]
    assert addresses.literal(b"::1") == b"::1"


def _pan_key() -> bytes:
    import hashlib

    return hashlib.blake2b(b"addresses", key=b"k" * 32, digest_size=32).digest()


@pytest.mark.parametrize(
    "text",
    [b"", b"orders", b"10.0.0", b"010.0.0.1", b"fe80::1%eth0", b"FD00::1", b"1.2.3.4:9092", b"::ffff:1.2.3.4", b"\xff"],
)
def test_what_is_no_address_as_it_is_printed(text: bytes) -> None:
    assert parsed(text) is None


def test_link_layer_addresses_lose_their_vendor_and_keep_their_kind() -> None:
    addresses = Addresses(b"k" * 32)
    single, group = bytes.fromhex("001b21aabbcc"), bytes.fromhex("01005e000001")
    assert addresses.link(single) == addresses.link(single) != single
    assert addresses.link(single)[0] & 3 == 2
    assert addresses.link(group)[0] & 3 == 3
    assert addresses.link(b"\xff" * 6) == b"\xff" * 6
    assert Addresses(b"k" * 32, keep=True).link(single) == single
