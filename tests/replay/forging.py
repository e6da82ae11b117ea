"""Pairs made by hand: `pair("Produce", 9, request, left answer, right answer)`, with real frames inside."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from kwire.analyzer.protocol import schema
from kwire.analyzer.protocol.encoding import encode_request, encode_response
from kwire.replay.diff.pairs import Pair, Side
from kwire.replay.plan.batches import sealed, varint

Body = Mapping[str, Any]
_numbers = itertools.count()


def pair(
    api: str,
    version: int,
    request: Body,
    left: Body | str,
    right: Body | str,
    *,
    right_request: Body | None = None,
    right_version: int | None = None,
    captured: bool = True,
    connection: str = "10.0.0.1:50000-10.0.0.2:9092#1",
    **row: Any,
) -> Pair:
    """Both sides of an exchange. An answer that is a word is a state without one."""
    key = schema.api_keys()[api.lower()]
    number = next(_numbers)
    other = right_version if right_version is not None else version
    whole = {
        "capture": "capture.pcap",
        "connection": connection,
        "exchange": number,
        "api_key": key,
        "api_version": version,
        "correlation_id": number,
        "request_file": "capture.pcap",
        "request_packet": number + 1,
        "group_id": request.get("groupId"),
        "transactional_id": request.get("transactionalId"),
        **row,
    }
    return Pair(
        whole,
        dataclasses.replace(_side(key, version, request, left), captured=captured),
        _side(key, other, right_request if right_request is not None else request, right),
    )


def _side(key: int, version: int, request: Body, answer: Body | str) -> Side:
    frame = encode_request(key, version, 1, "client", request)
    if isinstance(answer, str):
        state, _, rule = answer.partition(":")
        return Side(state, version, frame, None, None, rule or None)
    return Side("answered", version, frame, encode_response(key, version, 1, answer), 1000)


def batch(
    *values: str, producer: int = -1, base_offset: int = 0, transactional: bool = False, control: int = -1
) -> bytes:
    """A record batch with these values, as produced (or, with a base offset, as fetched). `control` 0: an abort marker,
    1: a commit marker."""
    body = b""
    for index, value in enumerate(values or ("",)):
        key = varint(-1) if control < 0 else varint(4) + b"\0\0" + control.to_bytes(2, "big")
        content = value.encode() if control < 0 else b"\0\0\0\0\0\0"
        record = b"\0" + varint(0) + varint(index) + key + varint(len(content)) + content + varint(0)
        body += varint(len(record)) + record
    data = bytearray(sealed(body, 0, len(values) or 1, 0, 0))
    attributes = (0x10 if transactional or control >= 0 else 0) | (0x20 if control >= 0 else 0)
    data[0:8] = base_offset.to_bytes(8, "big")
    data[21:23] = attributes.to_bytes(2, "big")
    data[43:51] = producer.to_bytes(8, "big", signed=True)
    return bytes(data)
