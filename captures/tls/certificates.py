"""A certificate's subject, and until when it is valid.

In: the DER of an X.509 certificate (RFC 5280, 4.1), which anybody may have made up. Out: text, and a time. Rule: what
does not read as it should is None; nothing raises.
"""

from __future__ import annotations

import datetime
from typing import Final

_NAMES: Final = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("0992268993f22c640119"): "DC",
    bytes.fromhex("0992268993f22c640101"): "UID",
}
"""Attributes that RFC 4514 (3) has names for, by the bytes of their object identifiers."""

_SEQUENCE, _SET, _CONTEXT_0 = 0x30, 0x31, 0xA0
_UTC_TIME, _LONG_TIME = 0x17, 0x18
_TEXTS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be"}

MOST_TEXT: Final = 1024
"""Characters of a subject."""


class _Bad(Exception):
    """This is no certificate."""


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag, content, and where the next one is."""
    if at + 2 > len(data):
        raise _Bad
    tag, size, begin = data[at], data[at + 1], at + 2
    if size & 0x80:
        width = size & 0x7F
        if not 1 <= width <= 3:
            raise _Bad
        size, begin = int.from_bytes(data[begin : begin + width], "big"), begin + width
    if begin + size > len(data):
        raise _Bad
    return tag, data[begin : begin + size], begin + size


def _expect(data: bytes, at: int, wanted: int) -> tuple[bytes, int]:
    tag, content, after = _element(data, at)
    if tag != wanted:
        raise _Bad
    return content, after


def _escaped(text: str) -> str:
    """A value as RFC 4514 (2.4) writes it."""
    out = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in text)
    return f"\\{out}" if out[:1] in (" ", "#") else out


def _name(data: bytes) -> str:
    """A distinguished name, the last part first (RFC 4514)."""
    parts = []
    at = 0
    while at < len(data):
        several, at = _expect(data, at, _SET)
        pairs, place = [], 0
        while place < len(several):
            pair, place = _expect(several, place, _SEQUENCE)
            kind, after = _expect(pair, 0, 6)
            tag, value, _ = _element(pair, after)
            if tag in _TEXTS and kind in _NAMES:
                pairs.append(f"{_NAMES[kind]}={_escaped(value.decode(_TEXTS[tag], 'replace'))}")
        if pairs:
            parts.append("+".join(pairs))
    return ",".join(reversed(parts))[:MOST_TEXT]


def _micros(tag: int, content: bytes) -> int | None:
    """A time in microseconds since 1970."""
    text = content.decode("ascii", "replace")
    if tag == _UTC_TIME:  # RFC 5280, 4.1.2.5.1
        text = ("20" if text[:2] < "50" else "19") + text
    elif tag != _LONG_TIME:
        raise _Bad
    try:
        moment = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1_000_000


def subject_and_end(der: bytes) -> tuple[str | None, int | None]:
    """The subject (as RFC 4514 writes names), and until when it is valid, in microseconds since 1970."""
    try:
        certificate, _ = _expect(der, 0, _SEQUENCE)
        body, _ = _expect(certificate, 0, _SEQUENCE)
        tag, _, after = _element(body, 0)
        at = after if tag == _CONTEXT_0 else 0  # version
        for _ in range(3):  # serial number, signature, issuer
            _, _, at = _element(body, at)
        validity, at = _expect(body, at, _SEQUENCE)
        _, _, after = _element(validity, 0)
        kind, until, _ = _element(validity, after)
        subject, _ = _expect(body, at, _SEQUENCE)
        return _name(subject) or None, _micros(kind, until)
    except _Bad:
        return None, None
