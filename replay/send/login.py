"""Logs in to the target with the user's own credentials: links have done SASL before the engine uses them.

In: a `Dial` and `Credentials`. Out: a `Dial` of the same kind. PLAIN (RFC 4616) and SCRAM, in SaslHandshake and
SaslAuthenticate frames (KIP-152). If the target limits a session's life, the link logs in again in time (KIP-368), and
holds back what the engine sends meanwhile. Rules: captured logins are never replayed; a secret is in no message, no
repr and no log; every wait has a limit.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.protocol import errors
from kwire.analyzer.protocol.encoding import encode_request
from kwire.analyzer.protocol.tree import decode_response
from kwire.captures.errors import message_of
from kwire.replay.send import scram
from kwire.replay.send.link import Dial, Link, LinkError, Receiver

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36
_HANDSHAKE_VERSION: Final = 1
"""Version 0 is followed by tokens without headers; version 1 exists since Kafka 1.0."""
_AUTHENTICATE_VERSION: Final = 1
"""Version 1 (Kafka 2.2) tells how long the session may live."""

CLIENT_ID: Final = "kwire"
PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *scram.ALGORITHMS)
LOGIN_SECONDS: Final = 15.0
"""Seconds: a refused password is answered some 0.3 s late; a target that takes longer than this does not answer."""
REAUTHENTICATE_AT: Final = 0.85
"""The part of a session's life after which Kafka's own client, too, logs in again (it draws 0.85 to 0.95)."""

USER_VARIABLE: Final = "KWIRE_SASL_USERNAME"
PASSWORD_VARIABLE: Final = "KWIRE_SASL_PASSWORD"  # the variable's name, not a password
_WHERE_FROM: Final = (
    f"set {USER_VARIABLE} and {PASSWORD_VARIABLE}, or name a file with lines username=... and password=..."
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """User, password and mechanism of a login. The password is not in the repr."""

    mechanism: str
    user: str
    password: str = field(repr=False)


def credentials(mechanism: str, file: str | None = None, environment: Mapping[str, str] = os.environ) -> Credentials:
    """Read credentials from a file (lines `username=` and `password=`), else from the environment. Raises LinkError."""
    if mechanism not in MECHANISMS:
        raise LinkError(f"--sasl {mechanism}: not one of {', '.join(MECHANISMS)}", "choose one of these")
    if file is None:
        user, password = environment.get(USER_VARIABLE), environment.get(PASSWORD_VARIABLE)
        if user is None or password is None:
            missing = USER_VARIABLE if user is None else PASSWORD_VARIABLE
            raise LinkError(f"SASL {mechanism}: {missing} is not set", _WHERE_FROM)
        return Credentials(mechanism, user, password)
    try:
        text = Path(file).read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else "not UTF-8"
        raise LinkError(f"{file}: {why}", _WHERE_FROM) from None
    settings = {
        key.strip(): value for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals
    }
    if "username" not in settings or "password" not in settings:
        raise LinkError(f"{file}: has no lines username=... and password=...", _WHERE_FROM)
    return Credentials(mechanism, settings["username"], settings["password"])


def tls_context(
    authorities: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Make a context that checks the target's certificate against the system's authorities, or those in a PEM file.
    `certificate` and `key` (PEM) are the client's own. Raises LinkError."""
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            # An encrypted key would make OpenSSL ask at the terminal.
            context.load_cert_chain(certificate, key, password=_no_password)
    except _EncryptedKey:
        raise LinkError(
            f"{key or certificate}: the key is encrypted", "give a file with the key in the clear"
        ) from None
    except (OSError, ssl.SSLError) as failure:
        files = ", ".join(name for name in (authorities, certificate, key) if name is not None)
        raise LinkError(f"{files}: {failure.strerror or failure}", "PEM files are expected") from None
    return context


class _EncryptedKey(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedKey


def sasl(dial: Dial, who: Credentials, timeout: float = LOGIN_SECONDS) -> Dial:
    """Open links of `dial` that have logged in. Raises LinkError if the target does not let the user in."""

    async def logged_in(host: str, port: int, receiver: Receiver) -> Link:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        link = _SaslLink(receiver, who, where)
        link.inner = await dial(host, port, link)
        try:
            await asyncio.wait_for(link.log_in(), timeout)
        except TimeoutError:
            link.close()
            raise LinkError(
                f"{where}: no answer to the SASL login after {timeout:g} s", "is this a SASL listener of Kafka?"
            ) from None
        except BaseException:
            link.close()
            raise
        return link

    return logged_in


class _SaslLink:
    """A link that handles answers itself while it logs in, and passes everything else through.

    Its own requests have negative correlation ids, which the engine never uses; so answers are told apart even if the
    engine's requests (acks=0) have none. `inner` is the link below.
    """

    inner: Link | None = None

    def __init__(self, receiver: Receiver, who: Credentials, where: str) -> None:
        self._receiver = receiver
        self._who = who
        self._where = where
        self._next_id = -2
        self._answer: tuple[int, asyncio.Future[bytes]] | None = None
        self._held: list[bytes] | None = []
        self._opened = False
        self._again: asyncio.Task[None] | None = None
        self._ended = ""

    # --- what the engine sees

    def send(self, frame: bytes) -> None:
        if self._held is not None or self.inner is None:
            self._held = [*(self._held or ()), frame]
        else:
            self.inner.send(frame)

    def backlog(self) -> int:
        below = self.inner.backlog() if self.inner is not None else 0
        return below + sum(len(frame) for frame in self._held or ())

    def close(self) -> None:
        if self.inner is not None:
            self.inner.close()

    # --- what the link below tells

    def frame(self, data: bytes) -> None:
        if self._answer is not None and int.from_bytes(data[:4], "big", signed=True) == self._answer[0]:
            _, waiting = self._answer
            self._answer = None
            if not waiting.done():
                waiting.set_result(data)
        elif self._opened:
            self._receiver.frame(data)
        else:
            self._end("it answers before it is asked, or with something else")

    def closed(self, reason: str) -> None:
        if self._again is not None:
            self._again.cancel()
        self._end(reason)
        if self._opened:
            self._receiver.closed(self._ended)

    def _end(self, reason: str) -> None:
        """End the link; the first reason is the one that is reported."""
        self._ended = self._ended or reason
        if self._answer is not None and not self._answer[1].done():
            self._answer[1].set_exception(self._failure(self._ended))
        self._answer = None
        self.close()

    # --- logging in

    async def log_in(self) -> None:
        """Log in, for the first time or again. What the engine sends meanwhile waits."""
        if self._held is None:
            self._held = []
        answer = await self._ask(HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": self._who.mechanism})
        if answer["errorCode"]:
            offered = ", ".join(sorted(answer.get("mechanisms") or ()))
            hint = f"it offers {offered}" if offered else "this listener wants no SASL login"
            raise self._failure(errors.label(answer["errorCode"]), hint)
        lifetime = await self._authenticate()
        self._opened = True
        held, self._held = self._held or [], None
        for frame in held:
            self.send(frame)
        if lifetime > 0:
            self._again = asyncio.get_running_loop().create_task(self._log_in_again(lifetime / 1000))

    async def _authenticate(self) -> int:
        """Authenticate; return how long the session may live, in ms; 0: without a limit."""
        who = self._who
        if who.mechanism == PLAIN:
            _, lifetime = await self._token(b"\0".join((b"", who.user.encode(), who.password.encode())))
            return lifetime
        conversation = scram.Conversation(who.mechanism, who.user, who.password, secrets.token_urlsafe(24))
        try:
            answer, _ = await self._token(conversation.first())
            answer, lifetime = await self._token(conversation.final(answer))
            conversation.verify(answer)
        except scram.ScramError as failure:
            raise self._failure(str(failure)) from None
        return lifetime

    async def _token(self, token: bytes) -> tuple[bytes, int]:
        answer = await self._ask(AUTHENTICATE, _AUTHENTICATE_VERSION, {"authBytes": token})
        if answer["errorCode"]:
            raise self._failure(errors.label(answer["errorCode"]), "are user and password those of this cluster?")
        return answer["authBytes"], answer["sessionLifetimeMs"]

    async def _ask(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        own_id, self._next_id = self._next_id, self._next_id - 1 if self._next_id > -(1 << 31) else -2
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._ended or self.inner is None:
            raise self._failure(self._ended)
        self._answer = own_id, waiting
        frame = encode_request(api_key, version, own_id, CLIENT_ID, body)
        self.inner.send(len(frame).to_bytes(4, "big") + frame)
        decoded = decode_response(await waiting, api_key, version, exact=True)
        if decoded.body is None:
            raise self._failure(f"its answer cannot be decoded: {decoded.reason}", "is this a Kafka listener?")
        return decoded.body

    async def _log_in_again(self, lifetime: float) -> None:
        await asyncio.sleep(lifetime * REAUTHENTICATE_AT)
        try:
            await asyncio.wait_for(self.log_in(), min(LOGIN_SECONDS, lifetime))
        except (LinkError, TimeoutError) as failure:
            self._end(message_of(failure) or f"{self._where}: no answer to the SASL login")

    def _failure(self, reason: str, hint: str = "") -> LinkError:
        return LinkError(f"{self._where}: SASL {self._who.mechanism} login of {self._who.user!r}: {reason}", hint)
