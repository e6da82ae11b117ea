"""Alerts of TLS: what a side says before it gives a connection up.

In: the two bytes of an alert (RFC 8446, 6; RFC 5246, 7.2), which anybody may have made up. Out: its name. Rule: an
alert that ends a connection in order is none here.
"""

from __future__ import annotations

from typing import Final

# fmt: off
NAMES: Final = {
    10: "unexpected_message", 20: "bad_record_mac", 21: "decryption_failed", 22: "record_overflow",
    30: "decompression_failure", 40: "handshake_failure", 41: "no_certificate", 42: "bad_certificate",
    43: "unsupported_certificate", 44: "certificate_revoked", 45: "certificate_expired", 46: "certificate_unknown",
    47: "illegal_parameter", 48: "unknown_ca", 49: "access_denied", 50: "decode_error", 51: "decrypt_error",
    60: "export_restriction", 70: "protocol_version", 71: "insufficient_security", 80: "internal_error",
    86: "inappropriate_fallback", 100: "no_renegotiation", 109: "missing_extension", 110: "unsupported_extension",
    111: "certificate_unobtainable", 112: "unrecognized_name", 113: "bad_certificate_status_response",
    115: "unknown_psk_identity", 116: "certificate_required", 120: "no_application_protocol",
}
# fmt: on
"""Names as IANA has them (TLS Alerts)."""

_CLOSE_NOTIFY, _USER_CANCELED = 0, 90
_WARNING: Final = 1

SEALED: Final = "sealed"
"""In the place of a name: an alert whose keys are not there."""


def fatal(body: bytes, always: bool) -> int | None:
    """The number of an alert that gives the connection up, None for one that does not. `always`: TLS 1.3, where the
    level says nothing (RFC 8446, 6)."""
    if len(body) != 2 or body[1] in (_CLOSE_NOTIFY, _USER_CANCELED):
        return None
    return body[1] if always or body[0] != _WARNING else None


def alert_name(number: int) -> str:
    """Return an alert's name, or its number if it is unknown."""
    return NAMES.get(number, str(number))
