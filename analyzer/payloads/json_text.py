"""JSON: of decoded values, and values that are JSON themselves.

Out: text as bytes (UTF-8). Times are RFC 3339 with six decimals, UTC where they have a zone; bytes are base64; decimals
are strings with all their digits; NaN and the infinities, for which JSON has no number, are strings.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import uuid
from typing import Any

import orjson

from kwire.analyzer.payloads.limits import UndecodableError

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME


def dump(value: Any, floats: bool = True) -> bytes:
    """Return a decoded value as JSON. `floats`: it may hold numbers that JSON has not. Raises UndecodableError."""
    try:
        text = orjson.dumps(value, _plain, _OPTIONS)
        if floats and b"null" in text:  # so NaN and the infinities are written
            text = orjson.dumps(_with_names(value), _plain, _OPTIONS)
    except orjson.JSONEncodeError as failure:
        raise UndecodableError(f"no JSON can be made of it: {failure}") from None
    return text


def check(data: bytes) -> None:
    """Raise UndecodableError where bytes are no JSON."""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as failure:
        raise UndecodableError(f"no JSON: {failure}") from None


def load(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises UndecodableError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as failure:
        raise UndecodableError(f"no JSON: {failure}") from None


def looks_like(data: bytes) -> bool:
    """Return whether bytes begin and end as an object or a list does; blanks around them do not count."""
    ends = data[:64].lstrip()[:1] + data[-64:].rstrip()[-1:]
    return ends in (b"{}", b"[]")


def _plain(value: Any) -> Any:
    """Return a value that JSON has no kind for as one that it has."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, datetime.time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, int):  # beyond 64 bits
        return str(value)
    raise TypeError


def _with_names(value: Any) -> Any:
    """Return a value with strings in the place of NaN and the infinities."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _with_names(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_names(part) for part in value]
    return value
