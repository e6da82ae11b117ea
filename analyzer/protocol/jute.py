"""ZooKeeper's protocol, as clients and brokers of Kafka before KRaft spoke it: requests by path, with their answers.

In: ordered bytes of both directions of a connection. Out: `Spoken`, one a request that was answered. Pure. Rules: what
is kept of a value is the caller's choice (`wanted`), for values may be anybody's, and of logins nothing is kept; bytes
that make no sense end the reading of that direction until a segment begins with a frame again; a frame is at most
`MAX_FRAME` long, as ZooKeeper itself has it (`jute.maxbuffer`).

Jute has big-endian integers, `buffer` and `ustring` with an int32 length (-1: null), vectors with an int32 count
(zookeeper.jute). A request is `xid`, `type` and a record; its answer `xid`, `zxid`, `err` and a record; the first
frame of each side is ConnectRequest and ConnectResponse, which have neither.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_FRAME: Final = (1 << 20) + 1024
"""`jute.maxbuffer` is 0xfffff, and what stands around a value adds to that."""
MAX_OPEN: Final = 1000
"""Requests without an answer: more are none of a client that this reads."""
MAX_PARTS: Final = 10_000
"""Operations of one multi."""

OPERATIONS: Final = {
    1: "create",
    2: "delete",
    3: "exists",
    4: "getData",
    5: "setData",
    6: "getACL",
    7: "setACL",
    8: "getChildren",
    9: "sync",
    12: "getChildren2",
    13: "check",
    15: "create2",
    16: "reconfig",
    18: "removeWatches",
    19: "createContainer",
    21: "createTTL",
}
"""Those whose record begins with a path (ZooDefs.OpCode)."""
GET_DATA, SET_DATA, MULTI, CLOSE = 4, 5, 14, -11
_WRITING: Final = (1, 5, 15, 19, 21)
"""Whose path is followed by data."""
_WITHOUT_PATH: Final = (11, 100, 101, 102, 104, 105, 106, 107, MULTI, CLOSE)
"""Ping, logins, watches that are set again, reconnects."""
NOTIFICATION: Final = -1
"""`xid` of what the server says unasked."""


class Spoken(NamedTuple):
    """One operation on a node, answered. `data`: what was written or read, where it was wanted; `error`: ZooKeeper's
    code, 0 on success; `origin`: trigger and time of the bytes
    that completed the answer."""

    operation: str
    path: str
    data: bytes | None
    error: int
    origin: tuple[int, int]


class _Request(NamedTuple):
    xid: int
    kind: int
    parts: tuple[tuple[int, str, bytes | None], ...]
    """Operation, path, data."""


@dataclass(slots=True)
class _Side:
    """Bytes of one direction that are no whole frame yet."""

    waiting: bytearray = field(default_factory=bytearray)
    lost: bool = False
    begun: bool = False


def looks_like(first: bytes) -> bool:
    """Whether a client's first bytes are a ConnectRequest: 44 or 45 bytes of protocol version 0."""
    return len(first) >= 8 and first[:3] == b"\0\0\0" and first[3] in (44, 45) and first[4:8] == bytes(4)


class Conversation:
    """One connection to ZooKeeper. `wanted`: of which paths the data is kept."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._sides = (_Side(), _Side())  # of the client, of the server
        self._open: deque[_Request] = deque()

    def lose(self, client: bool) -> None:
        """Bytes of a direction are missing."""
        side = self._sides[0 if client else 1]
        side.waiting.clear()
        side.lost = side.begun = True
        if client:
            return
        self._open.clear()

    def take(self, client: bool, data: bytes, origin: tuple[int, int]) -> list[Spoken]:
        """Further bytes of a direction."""
        side = self._sides[0 if client else 1]
        if side.lost:
            if not _plausible(data):
                return []
            side.lost = False
        side.waiting += data
        operations: list[Spoken] = []
        while len(side.waiting) >= 4:
            size = int.from_bytes(side.waiting[:4], "big", signed=True)
            if not 0 < size <= MAX_FRAME:
                self.lose(client)
                break
            if len(side.waiting) < 4 + size:
                break
            frame = bytes(side.waiting[4 : 4 + size])
            del side.waiting[: 4 + size]
            operations += self._frame(client, frame, origin)
        return operations

    def _frame(self, client: bool, frame: bytes, origin: tuple[int, int]) -> list[Spoken]:
        side = self._sides[0 if client else 1]
        begins, side.begun = not side.begun, True
        if begins and (looks_like(len(frame).to_bytes(4, "big") + frame) if client else len(frame) in (36, 37)):
            return []  # ConnectRequest, ConnectResponse
        try:
            if client:
                self._request(_Reader(frame))
                return []
            return self._response(_Reader(frame), origin)
        except (_ShortError, UnicodeDecodeError):
            return []

    def _request(self, frame: _Reader) -> None:
        xid, kind = frame.int32(), frame.int32()
        parts: list[tuple[int, str, bytes | None]] = []
        if kind in OPERATIONS:
            parts.append(self._operation(kind, frame))
        elif kind == MULTI:
            while len(parts) < MAX_PARTS:
                kind_, done = frame.int32(), frame.boolean()
                frame.int32()
                if done or kind_ not in OPERATIONS:
                    break
                parts.append(self._operation(kind_, frame))
                if kind_ in (1, 15):
                    _pass_acl(frame)
                if kind_ in (1, 2, 5, 13, 15):
                    frame.int32()  # flags, or a version
        elif kind not in _WITHOUT_PATH:
            return
        if len(self._open) == MAX_OPEN:
            self._open.popleft()
        self._open.append(_Request(xid, kind, tuple(parts)))

    def _operation(self, kind: int, frame: _Reader) -> tuple[int, str, bytes | None]:
        path = frame.text()
        data = frame.buffer() if kind in _WRITING else None
        return kind, path, data if self._wanted(path) else None

    def _response(self, frame: _Reader, origin: tuple[int, int]) -> list[Spoken]:
        xid, _, error = frame.int32(), frame.int64(), frame.int32()
        if xid == NOTIFICATION:
            return []
        while self._open and self._open[0].xid != xid:  # answers come in the order asked
            if not any(request.xid == xid for request in self._open):
                return []
            self._open.popleft()
        if not self._open:
            return []
        answered = self._open.popleft()
        operations = []
        for kind, path, data in answered.parts:
            if kind == GET_DATA and answered.kind == GET_DATA and error == 0 and self._wanted(path):
                data = frame.buffer()
            operations.append(Spoken(OPERATIONS[kind], path, data, error, origin))
        return operations


def _plausible(data: bytes) -> bool:
    """Whether bytes begin with a frame."""
    return len(data) >= 8 and 8 <= int.from_bytes(data[:4], "big", signed=True) <= MAX_FRAME


def _pass_acl(frame: _Reader) -> None:
    for _ in range(min(max(frame.int32(), 0), MAX_PARTS)):
        frame.int32()
        frame.buffer()
        frame.buffer()


class _ShortError(Exception):
    """A frame ends before its record does."""


@dataclass(slots=True)
class _Reader:
    """Jute's types, one after the other."""

    data: bytes
    at: int = 0

    def _take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise _ShortError
        self.at += size
        return self.data[self.at - size : self.at]

    def int32(self) -> int:
        number: int = struct.unpack(">i", self._take(4))[0]
        return number

    def int64(self) -> int:
        number: int = struct.unpack(">q", self._take(8))[0]
        return number

    def boolean(self) -> bool:
        return self._take(1) != b"\0"

    def buffer(self) -> bytes:
        size = self.int32()
        return self._take(size) if size != -1 else b""

    def text(self) -> str:
        return self.buffer().decode()
