"""SASL logins: the name of the client, and nothing else of the exchange.

In: the token of a client's first message, and the broker's response. Out: the name, once the login has ended. Rules:
of a token only the name is kept, and that only until the response is known; a token without a plain name (GSSAPI, a
delegation token's id) gives none.

    PLAIN             RFC 4616: authzid NUL authcid NUL passwd
    SCRAM-SHA-...     RFC 5802: n,a=authzid,n=name,r=nonce; KIP-48: `tokenauth=true` makes the name a token's id
    OAUTHBEARER       RFC 7628: n,a=authzid,^Aauth=Bearer TOKEN^A^A; without an authzid the token's `sub` (RFC 7519)
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from kwire.analyzer.frame.arrow import text
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import errors, tree
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE

MAX_TOKEN = 1 << 16
"""Bytes of a token that is looked at: real ones have a few thousand."""


class LoginResult(NamedTuple):
    """The end of a login with a name (empty: it has none); `status`: of the challenge that refused it."""

    name: str
    let_in: bool
    status: str | None = None


@dataclass(slots=True)
class Login:
    """One connection's login: `mechanism` of its SaslHandshake, and the name so far."""

    mechanism: str | None = None
    name: str | None = None

    def take(self, exchange: Exchange) -> LoginResult | None:
        """SaslHandshake or SaslAuthenticate; returns how a login ended where this one ended it."""
        if exchange.api_key == apis.SASL_HANDSHAKE:
            request = exchange.request
            self.mechanism, self.name = request["mechanism"] if request is not None else None, None
            return None
        token = _token(exchange, "request")
        answer = _token(exchange, "response")
        error = exchange.error_code
        first = self.name is None
        if first and token is not None:
            self.name = name_in_token(self.mechanism, token)
        scram = self.mechanism is not None and self.mechanism.startswith("SCRAM-")
        if first and scram and error == 0 and answer is not None:
            return None  # the proof is still to come
        name, self.name = self.name, None
        status = challenge_status(exchange)
        if status is not None:
            return LoginResult(name or "", False, status)
        if name is None or answer is None or error not in (0, errors.SASL_AUTHENTICATION_FAILED):
            return None
        challenged = self.mechanism == "OAUTHBEARER" and answer  # with the reason for the refusal (RFC 7628)
        return LoginResult(name, error == 0 and not challenged)


def session_lifetime(exchange: Exchange) -> int:
    """How long the session that an answer grants lasts (KIP-368), ms; 0: it has no end, or none is granted."""
    if exchange.api_key != apis.SASL_AUTHENTICATE or exchange.error_code != 0:
        return 0
    answer = exchange.response
    return int(answer.get("sessionLifetimeMs", 0)) if answer is not None else 0


def challenge_status(exchange: Exchange) -> str | None:
    """Return the status of a challenge that refuses a login by OAUTHBEARER although the answer has no error, as
    `invalid_token`; `unknown` where it says none, None if the answer is no such challenge (RFC 7628, 3.2.2)."""
    if exchange.api_key != apis.SASL_AUTHENTICATE or exchange.error_code != 0:
        return None
    answer = _token(exchange, "response")
    if not answer or not answer.startswith(b"{") or len(answer) > MAX_TOKEN:
        return None
    try:
        challenge = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    status = challenge.get("status") if isinstance(challenge, dict) else None
    return status if isinstance(status, str) and _STATUS.fullmatch(status) else "unknown"


_STATUS = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _token(exchange: Exchange, side: str) -> bytes | None:
    """The `authBytes` of a message; None where it is not whole."""
    message = exchange.request_message if side == "request" else exchange.response_message
    if message is None or exchange.row[f"{side}_state"] != "decoded" or len(message.data) < 4:
        return None
    direction = REQUEST if side == "request" else RESPONSE
    frame = message.data[4:]
    spans = tree.secret_spans(frame, apis.SASL_AUTHENTICATE, exchange.row["api_version"], direction, frame=True)
    return frame[slice(*spans[0])] if len(spans) == 1 else b""


def name_in_token(mechanism: str | None, token: bytes) -> str | None:
    """Return the name in a client's first token; None if it has no plain one."""
    if len(token) > MAX_TOKEN or mechanism is None:
        return None
    if mechanism == "PLAIN":
        parts = token.split(b"\0")
        return (text(parts[1]) or None) if len(parts) == 3 else None
    if mechanism.startswith("SCRAM-"):
        return _scram_name(token)
    return _bearer_name(token) if mechanism == "OAUTHBEARER" else None


def _scram_name(token: bytes) -> str | None:
    parts = token.split(b",")
    if len(parts) < 4 or not parts[2].startswith(b"n=") or b"tokenauth=true" in parts[4:]:
        return None
    return text(parts[2][2:].replace(b"=2C", b",").replace(b"=3D", b"=")) or None


def _bearer_name(token: bytes) -> str | None:
    header, *pairs = token.split(b"\x01")
    for part in header.split(b","):
        if part.startswith(b"a=") and len(part) > 2:
            return text(part[2:].replace(b"=2C", b",").replace(b"=3D", b"="))
    bearer = [pair[len(b"auth=") :] for pair in pairs if pair.startswith(b"auth=")]
    words = bearer[0].split() if bearer else []
    claims = words[1].split(b".") if len(words) == 2 and words[0].lower() == b"bearer" else []
    if len(claims) < 2:
        return None
    try:
        payload = json.loads(base64.urlsafe_b64decode(claims[1] + b"=" * (-len(claims[1]) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return None
    name = payload.get("sub") if isinstance(payload, dict) else None
    return name if isinstance(name, str) and name else None
