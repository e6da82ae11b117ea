"""Sends the requests of a session on one connection to one broker, and matches answers to them in order.

Kafka answers the requests of a connection in order, so a queue is enough; the correlation id is checked all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kwire.analyzer.protocol import api_keys, tree
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.encoding import encode_request
from kwire.analyzer.protocol.tree import Body
from kwire.replay.send.link import Dial, Link, LinkError

CLIENT_ID = "kwire"


Answered = Callable[["bytes | ChannelClosedError"], None]
"""Takes the answer's frame, or the reason why there is none."""


class ChannelClosedError(Exception):
    """The connection ended before the answer came; the message says why."""


class Channel:
    """A `Receiver` that pairs answers with requests."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.addresses = [address]
        self.reason = ""
        self._link: Link | None = None
        self._waiting: deque[tuple[int, asyncio.Future[bytes] | Answered]] = deque()
        self._correlation = 0
        self._loop = asyncio.get_running_loop()

    @property
    def open(self) -> bool:
        return self._link is not None and not self.reason

    def correlation(self) -> int:
        """The next correlation id."""
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        return self._correlation

    def send(self, frame: bytes, correlation: int, answered: bool) -> asyncio.Future[bytes] | None:
        """Send a frame (without length); the future has the answer's frame, and None if no answer is expected."""
        if self._link is None or self.reason:
            raise ChannelClosedError(self.reason or "not open")
        waiter = None
        if answered:
            waiter = self._loop.create_future()
            self._waiting.append((correlation, waiter))
        self._link.send(len(frame).to_bytes(4, "big") + frame)
        return waiter

    def send_whole(self, frame: bytes | bytearray, correlation: int, answered: Answered) -> None:
        """Send a frame with its length, and pass its answer to a function."""
        assert self._link is not None
        self._waiting.append((correlation, answered))
        self._link.send(bytes(frame))

    def backlog(self) -> int:
        """Bytes that the connection has not taken yet."""
        return self._link.backlog() if self._link is not None else 0

    async def drained(self, most: int, timeout: float) -> None:
        """Wait until at most this many bytes are unsent, or the connection ends. Raises LinkError if it takes nothing
        for `timeout` seconds."""
        least, since = self.backlog(), self._loop.time()
        while self.open and self.backlog() > most:
            await asyncio.sleep(0.001)
            if self.backlog() < least:
                least, since = self.backlog(), self._loop.time()
            elif self._loop.time() - since > timeout:
                self.close()
                raise LinkError(f"{self.address}: takes no more data", "see the broker's log; a lower --speed")

    async def ask(self, api_key: int, version: int, body: Body, timeout: float) -> Body:
        """Send a request of the replayer's own, and return its answer. Raises ChannelClosedError, also if nothing (or
        nothing that Kafka would answer) comes in time."""
        correlation = self.correlation()
        waiter = self.send(encode_request(api_key, version, correlation, CLIENT_ID, body), correlation, True)
        assert waiter is not None
        try:
            answer = await asyncio.wait_for(waiter, timeout)
        except TimeoutError:
            self.close()
            raise ChannelClosedError(
                f"{self.address}: no answer to {api_keys.name(api_key)} after {timeout:g} s"
            ) from None
        decoded = tree.decode_response(answer, api_key, version, exact=True)
        if decoded.status != OK or decoded.body is None:
            self.close()
            raise ChannelClosedError(
                f"{self.address}: not Kafka: the answer to {api_keys.name(api_key)} cannot be decoded"
            )
        return decoded.body

    def frame(self, data: bytes) -> None:
        """`Receiver.frame`."""
        expected = None
        while self._waiting:
            expected, waiter = self._waiting.popleft()
            if int.from_bytes(data[:4], "big") != expected:
                self._waiting.appendleft((expected, waiter))
                break
            if not isinstance(waiter, asyncio.Future):
                waiter(data)
            elif not waiter.done():
                waiter.set_result(data)
            return
        size = int.from_bytes(data[:4], "big", signed=True)
        self.reason = f"{self.address}: answered correlation id {size}, " + (
            f"{expected} was due" if expected is not None else "none was due"
        )
        self.close()

    def closed(self, reason: str) -> None:
        """`Receiver.closed`."""
        self.reason = self.reason or f"{self.address}: {reason}"
        while self._waiting:
            _, waiter = self._waiting.popleft()
            if not isinstance(waiter, asyncio.Future):
                waiter(ChannelClosedError(self.reason))
            elif not waiter.done():
                waiter.set_exception(ChannelClosedError(self.reason))
                waiter.exception()  # a waiting task gets it, but there may be none

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close()


async def connect(dial: Dial, host: str, port: int) -> Channel:
    """Open a channel. Raises LinkError."""
    channel = Channel(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    channel._link = await dial(host, port, channel)
    return channel


async def introduce(channel: Channel, offers: dict[int, tuple[int, int]] | None, timeout: float) -> Body | None:
    """Send ApiVersions, as a client's first request. The version is one that `offers` has, or (None) 0, which every
    broker since 0.10 accepts. Raises LinkError if the target does not speak Kafka."""
    version = 0 if offers is None else min(3, offers.get(api_keys.API_VERSIONS, (0, 0))[1])
    body: Body = {"clientSoftwareName": "kwire", "clientSoftwareVersion": "0"} if version >= 3 else {}
    try:
        return await channel.ask(api_keys.API_VERSIONS, version, body, timeout)
    except ChannelClosedError as failure:
        raise LinkError(
            str(failure), "is this a Kafka listener (0.10 or newer), and does it want TLS or a login?"
        ) from None
