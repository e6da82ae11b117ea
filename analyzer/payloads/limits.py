"""Bounds on what a key, a value or a schema may become, and the error that says why one is not decoded."""

from __future__ import annotations

from typing import NamedTuple


class UndecodableError(Exception):
    """A key, value or schema that cannot be decoded; its text is the reason."""


class PayloadLimits(NamedTuple):
    """Bounds against hostile keys, values and schemas.

    payload_bytes  of one key or value that is decoded: brokers take 1 MiB by default
    nodes          fields and elements that one may hold
    depth          levels of nesting
    schema_bytes   of the text of one schema
    schemas        number of schemas that are kept
    """

    payload_bytes: int = 4 << 20
    nodes: int = 200_000
    depth: int = 100
    schema_bytes: int = 1 << 20
    schemas: int = 10_000


def size_reason(size: int, limit: int) -> str:
    """Return the reason for something that is too large."""
    return f"{size:,} bytes, more than the {limit:,} that are decoded"
