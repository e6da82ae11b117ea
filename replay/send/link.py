"""Connections to the target, as the engine uses them.

`Link` and `Receiver` are all that the engine knows of a network: a scripted fake fits, and so does a link that has
logged in first. In: whole request frames (their four bytes of length included). Out: whole response frames (without
the length), in the order in which they came. Rules: a link never decodes; it reports that it closed, and why, once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol

from kwire.captures.errors import KwireError

MAX_FRAME = 256 << 20
"""Largest answer: a broker's own limit for a fetch is far below. A link whose answer claims more is closed."""

MAX_HELD = 512 << 20
"""Bytes of incomplete answers, of all connections together.

A target that begins an answer on every connection and ends none must not fill the memory; some ten of the largest
honest answers fit.
"""

_TLS_ALERT = b"\x15\x03"
"""How a TLS listener answers what is not TLS: no Kafka frame is that long (RFC 8446, section 5.1)."""

_PORT_HINT = "is the broker up, and the port right?"
_TLS_HINT = "is this a TLS listener, and its certificate's issuer known?"


class LinkError(KwireError):
    """The target cannot be reached, or does not answer as Kafka would."""


class Receiver(Protocol):
    """Takes what a link receives."""

    def frame(self, data: bytes) -> None:
        """Take one response frame, without its length."""

    def closed(self, reason: str) -> None:
        """Take the end of the link; called once, also after `Link.close`."""


class Link(Protocol):
    """An open connection for requests, logged in if that is needed."""

    def send(self, frame: bytes) -> None:
        """Send (or queue) a whole request frame, its length included. Does nothing after the link has closed."""

    def backlog(self) -> int:
        """Bytes that are queued and not sent yet."""

    def close(self) -> None:
        """Close the link; `Receiver.closed` follows. What is not sent by now is lost."""


class Dial(Protocol):
    """Opens a link to a host and port, for this receiver. Raises LinkError."""

    async def __call__(self, host: str, port: int, receiver: Receiver) -> Link: ...


@dataclass(slots=True)
class _Held:
    """Bytes of incomplete answers that all links of one process hold."""

    limit: int
    bytes: int = 0


class _TcpLink(asyncio.Protocol):
    """Length-prefixed frames over a stream."""

    def __init__(self, receiver: Receiver, held: _Held) -> None:
        self.receiver = receiver
        self._held = held
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._reason = ""
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        before = len(buffer)
        buffer += data
        at, end = 0, len(buffer)
        while end - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
            if buffer[at : at + 2] == _TLS_ALERT:
                self._reason = "it speaks TLS only (answered with a TLS alert)"
                self.close()
                return
            if not 4 <= size <= MAX_FRAME:
                self._reason = f"not Kafka: answered with a frame of {size} bytes ({bytes(buffer[at : at + 4]).hex()})"
                self.close()
                return
            if end - at - 4 < size:
                break
            self.receiver.frame(bytes(buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        if at:
            del buffer[:at]
        self._held.bytes += len(buffer) - before
        if self._held.bytes > self._held.limit and buffer:
            self._reason = f"more than {self._held.limit >> 20} MiB of answers have come in part"
            self._forget()
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget()
        self.receiver.closed(self._reason or (f"{exc}" if exc else "closed by the target"))

    def _forget(self) -> None:
        """Drop an incomplete answer."""
        self._held.bytes -= len(self._buffer)
        self._buffer.clear()

    def send(self, frame: bytes) -> None:
        # What is sent within one turn of the loop goes out in one write.
        if not self._queued:
            self._loop.call_soon(self._flush)
        self._queued.append(frame)
        self._queued_bytes += len(frame)

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._queued))
        self._queued.clear()
        self._queued_bytes = 0

    def backlog(self) -> int:
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + self._queued_bytes

    def close(self) -> None:
        self._reason = self._reason or "closed by the replayer"
        if self._transport is not None:
            self._flush()
            if self._transport.get_write_buffer_size():
                self._transport.abort()  # closing would wait for a target that may never take the rest
            else:
                self._transport.close()


def tcp(
    context: ssl.SSLContext | None = None, server_name: str | None = None, timeout: float = 10.0, most: int = MAX_HELD
) -> Dial:
    """Open TCP links, or TLS links with a context. `timeout` in seconds covers connecting and the handshake; `most`:
    bytes of incomplete answers, on all of them together."""
    held = _Held(most)

    async def dial(host: str, port: int, receiver: Receiver) -> Link:
        loop = asyncio.get_running_loop()
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            _, link = await asyncio.wait_for(
                loop.create_connection(
                    lambda: _TcpLink(receiver, held),
                    host,
                    port,
                    ssl=context,
                    server_hostname=(server_name or host) if context is not None else None,
                ),
                timeout,
            )
        except TimeoutError:
            raise LinkError(f"{where}: no connection after {timeout:g} s", _PORT_HINT) from None
        except ssl.SSLCertVerificationError as failure:
            raise LinkError(f"{where}: TLS: certificate refused: {failure.verify_message}", _TLS_HINT) from None
        except ssl.SSLError as failure:
            raise LinkError(f"{where}: TLS: {failure.reason or failure}", _TLS_HINT) from None
        except (OverflowError, ValueError) as failure:
            # What is no host name at all, or no port: a target may name anything.
            raise LinkError(f"{where}: no address ({failure})", _PORT_HINT) from None
        except OSError as failure:
            if context is not None and not isinstance(failure, ConnectionRefusedError | socket.gaierror):
                # A plain listener takes a TLS greeting for a frame too large, and hangs up.
                raise LinkError(f"{where}: closed the connection during the TLS handshake", _TLS_HINT) from None
            error_text = failure.strerror or str(failure)
            raise LinkError(f"{where}: {error_text}", _PORT_HINT) from None
        return link

    return dial
