"""Cipher suites of TLS 1.3 and 1.2 that can be opened, by their numbers.

In: a suite's number (IANA, TLS Cipher Suites). Out: its name, and how its records are protected. Rules: what nobody
should use any more (RC4, 3DES, NULL, export) and what is not met with Kafka (ARIA, Camellia, GOST) is left out, and
is named by its number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

GCM, CHACHA, CCM, CBC = "gcm", "chacha", "ccm", "cbc"


class Suite(NamedTuple):
    """How a suite protects records.

    name    as IANA has it
    kind    GCM, CHACHA, CCM or CBC
    key     bytes of the cipher's key
    prf     hash of the key derivation
    mac     hash of the HMAC (CBC only, else empty)
    tag     bytes of an AEAD's tag
    """

    name: str
    kind: str
    key: int
    prf: str
    mac: str = ""
    tag: int = 16


def _suites() -> dict[int, Suite]:
    suites = {
        0x1301: Suite("TLS_AES_128_GCM_SHA256", GCM, 16, "sha256"),
        0x1302: Suite("TLS_AES_256_GCM_SHA384", GCM, 32, "sha384"),
        0x1303: Suite("TLS_CHACHA20_POLY1305_SHA256", CHACHA, 32, "sha256"),
        0x1304: Suite("TLS_AES_128_CCM_SHA256", CCM, 16, "sha256"),
        0x1305: Suite("TLS_AES_128_CCM_8_SHA256", CCM, 16, "sha256", tag=8),
    }
    # By key exchange, the first of two numbers: AES-128 and AES-256 in CBC with SHA-1, and in GCM; both in CBC with
    # SHA-2; CHACHA20; both in CCM, the ones with a short tag 4 (ECDHE: 2) further on. 0: there is none.
    numbers = {
        "RSA": (0x002F, 6, 0x009C, (0x003C, 0x003D), 0, 0xC09C, 4),
        "DHE_RSA": (0x0033, 6, 0x009E, (0x0067, 0x006B), 0xCCAA, 0xC09E, 4),
        "ECDHE_RSA": (0xC013, 1, 0xC02F, (0xC027, 0xC028), 0xCCA8, 0, 0),
        "ECDHE_ECDSA": (0xC009, 1, 0xC02B, (0xC023, 0xC024), 0xCCA9, 0xC0AC, 2),
    }
    for exchange, (sha1, step, gcm, sha2, chacha, ccm, short) in numbers.items():
        elliptic = exchange.startswith("ECDHE")
        for i, size in enumerate((16, 32)):
            aes = f"TLS_{exchange}_WITH_AES_{8 * size}"
            strong = "sha384" if size == 32 else "sha256"
            suites[sha1 + step * i] = Suite(f"{aes}_CBC_SHA", CBC, size, "sha256", "sha1")
            mac = strong if elliptic else "sha256"
            suites[sha2[i]] = Suite(f"{aes}_CBC_{mac.upper()}", CBC, size, mac, mac)
            suites[gcm + i] = Suite(f"{aes}_GCM_{strong.upper()}", GCM, size, strong)
            if ccm:
                suites[ccm + i] = Suite(f"{aes}_CCM", CCM, size, "sha256")
                suites[ccm + short + i] = Suite(f"{aes}_CCM_8", CCM, size, "sha256", tag=8)
        if chacha:
            suites[chacha] = Suite(f"TLS_{exchange}_WITH_CHACHA20_POLY1305_SHA256", CHACHA, 32, "sha256")
    return suites


SUITES: Final = _suites()

BY_SECRET: Final = {32: (0x1301, 0x1303, 0x1304, 0x1305), 48: (0x1302,)}
"""Suites of TLS 1.3 that a secret of so many bytes may belong to (RFC 8446, B.4), where no ServerHello says which."""


def suite_name(number: int) -> str:
    """Return a suite's name, or its number if it is unknown."""
    return SUITES[number].name if number in SUITES else f"{number:#06x}"
