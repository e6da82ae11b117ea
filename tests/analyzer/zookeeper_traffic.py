"""Encode traffic between clients of the 0.8 era and ZooKeeper (zookeeper.jute), without code of the reader."""

from __future__ import annotations

import struct

SESSION = 0x14D0_0000_0000_0001


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def text(value: str) -> bytes:
    return buffer(value.encode())


def buffer(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def connect() -> bytes:
    """Encode a ConnectRequest as ZooKeeper 3.4's client writes it, followed by `readOnly`."""
    return frame(struct.pack(">iqiq", 0, 0, 6000, 0) + buffer(bytes(16)) + b"\0")


def connected() -> bytes:
    return frame(struct.pack(">iiq", 0, 6000, SESSION) + buffer(b"secret-passwd-16") + b"\0")


def request_frame(xid: int, kind: int, record: bytes = b"") -> bytes:
    return frame(struct.pack(">ii", xid, kind) + record)


def response_frame(xid: int, record: bytes = b"", error: int = 0) -> bytes:
    return frame(struct.pack(">iqi", xid, 77, error) + record)


STAT = struct.pack(">qqqqiiiqiiq", 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11)
ACL = struct.pack(">ii", 1, 31) + text("world") + text("anyone")


def ping() -> tuple[bytes, bytes]:
    return request_frame(-2, 11), response_frame(-2)


def get(xid: int, path: str, value: bytes | None) -> tuple[bytes, bytes]:
    """Encode getData without a watch, and its answer; a `value` of None: no such node."""
    answer = response_frame(xid, b"", -101) if value is None else response_frame(xid, buffer(value) + STAT)
    return request_frame(xid, 4, text(path) + b"\0"), answer


def put(xid: int, path: str, value: bytes, error: int = 0) -> tuple[bytes, bytes]:
    """Encode setData of any version, and its answer."""
    request = request_frame(xid, 5, text(path) + buffer(value) + struct.pack(">i", -1))
    return request, response_frame(xid, b"" if error else STAT, error)


def make(xid: int, path: str, value: bytes) -> tuple[bytes, bytes]:
    """Encode create of a persistent node that anybody may change, and its answer."""
    return request_frame(xid, 1, text(path) + buffer(value) + ACL + struct.pack(">i", 0)), response_frame(
        xid, text(path)
    )


def together(xid: int, *parts: tuple[int, bytes]) -> tuple[bytes, bytes]:
    """Encode multi of operations (type, record), and an answer in which all succeed."""
    inside = b"".join(struct.pack(">iBi", kind, 0, -1) + record for kind, record in parts)
    end = struct.pack(">iBi", -1, 1, -1)
    results = b"".join(struct.pack(">iBi", kind, 0, 0) for kind, _ in parts)
    return request_frame(xid, 14, inside + end), response_frame(xid, results + end)


def login(xid: int = -4) -> tuple[bytes, bytes]:
    """Encode addAuth, whose credentials must never be stored, and its answer."""
    return request_frame(xid, 100, struct.pack(">i", 0) + text("digest") + buffer(b"super:geheim")), response_frame(xid)
