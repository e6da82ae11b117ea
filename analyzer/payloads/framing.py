"""The framing that registries put around or beside a payload: which schema it was written with.

In: a key or value, and the record's headers. Out: a `SchemaReference`, or None where nothing names a schema.

- Confluent (`SchemaRegistry` wire format): byte 0, a 4-byte id, the payload; Apicurio's 4-byte ids are the same
- Confluent by header: `__key_schema_id` and `__value_schema_id` hold byte 1 and a GUID, or byte 0 and an id
- Apicurio (`DefaultIdHandler`): byte 0 and an 8-byte id; by header: `apicurio.value.globalId`, `.contentId` and others
- AWS Glue (`GlueSchemaRegistrySerializer`): byte 3, a byte for compression (0 none, 5 zlib), a UUID

Before Protobuf each has a way to name the message: Confluent its indexes, Glue one index, Apicurio its name.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError, size_reason

CONFLUENT, APICURIO, GLUE = "confluent", "apicurio", "glue"

FRAMING: Final = "framing"
"""Type of a tree's node for what stands before a payload."""
PROTOBUF_TYPE: Final = "apicurio.protobuf.type"
"""Header with the name of a value's message; keys have none of their own."""
_GLUE_VERSION: Final = 3
_GLUE_PLAIN, _GLUE_ZLIB = 0, 5
_GLUE_HEADER: Final = 18
_LONG: Final = 8
_LARGEST_ID: Final = 10_000_000
"""Ids are counted from 1 on: in a larger number content is more likely than an id."""

SCHEMA_HEADERS: Final = frozenset(
    name
    for side in ("key", "value")
    for name in (f"__{side}_schema_id", f"apicurio.{side}.globalId", f"apicurio.{side}.contentId")
)
"""Headers whose value is the id of a schema."""


class SchemaReference(NamedTuple):
    """The schema that a payload names.

    registry   CONFLUENT, APICURIO or GLUE
    schema_id  id, or UUID as text
    data       bytes that hold the payload; start: where it begins in them
    sure       False: other bytes may look so too
    message    Protobuf: the name of the message, where a header says it
    is_json    Avro: in its form as JSON, as a header says
    """

    registry: str
    schema_id: str
    data: bytes
    start: int
    sure: bool = True
    message: str | None = None
    is_json: bool = False


def frame_of(data: bytes, side: str, headers: Mapping[str, bytes], limits: PayloadLimits) -> SchemaReference | None:
    """Return the frame of a key or value (`side`). Raises UndecodableError where a frame's content is broken."""
    if headers and (frame := _by_header(data, side, headers)) is not None:
        return frame
    if len(data) < 5:
        return None
    if data[0] == 0:
        return _by_magic(data)
    if data[0] == _GLUE_VERSION and data[1] in (_GLUE_PLAIN, _GLUE_ZLIB) and len(data) >= _GLUE_HEADER:
        return _glue(data, limits)
    return None


def framing_bytes(data: bytes) -> int:
    """Return how many bytes at the beginning of a key or value are framing, and nothing that it says; 0: none."""
    if len(data) >= 5 and data[0] == 0 and len(data) != _LONG:
        if 0 < int.from_bytes(data[1:5], "big") <= _LARGEST_ID:
            return 5
        return 9 if len(data) > 9 and 0 < int.from_bytes(data[1:9], "big") <= _LARGEST_ID else 0
    if len(data) > _GLUE_HEADER and data[0] == _GLUE_VERSION and data[1] in (_GLUE_PLAIN, _GLUE_ZLIB):
        return _GLUE_HEADER if _is_uuid(data[2:_GLUE_HEADER]) else 0
    return 0


def header_bytes(name: str, value: bytes) -> int:
    """Return how many bytes of a header's value are the id of a schema, and nothing else; 0: none."""
    if name not in SCHEMA_HEADERS:
        return 0
    if not name.startswith("__"):
        fits = len(value) in (4, 8) and 0 < int.from_bytes(value, "big") <= _LARGEST_ID
        return len(value) if fits else 0
    if len(value) >= 17 and value[0] == 1:
        return 17 if _is_uuid(value[1:17]) else 0
    return 5 if len(value) >= 5 and value[0] == 0 and 0 < int.from_bytes(value[1:5], "big") <= _LARGEST_ID else 0


def _is_uuid(data: bytes) -> bool:
    """Return whether 16 bytes have the version and variant of a UUID (RFC 9562)."""
    return 1 <= data[6] >> 4 <= 8 and data[8] >> 6 == 2


def _by_magic(data: bytes) -> SchemaReference | None:
    number = int.from_bytes(data[1:5], "big", signed=True)
    if number > 0:
        # A long of 8 bytes, as Kafka's own serializer writes it, may begin so: a time in milliseconds does.
        return SchemaReference(CONFLUENT, str(number), data, 5, sure=len(data) != _LONG)
    if number == 0 and len(data) > 9 and (number := int.from_bytes(data[1:9], "big", signed=True)) > 0:
        return SchemaReference(APICURIO, str(number), data, 9, sure=False)
    return None


def _by_header(data: bytes, side: str, headers: Mapping[str, bytes]) -> SchemaReference | None:
    named = headers.get(f"__{side}_schema_id")
    if named is not None and len(named) >= 17 and named[0] == 1:
        # Of Protobuf, what follows the GUID are the message indexes: they come first in a payload.
        return SchemaReference(CONFLUENT, str(uuid.UUID(bytes=bytes(named[1:17]))), bytes(named[17:]) + data, 0)
    if named is not None and len(named) >= 5 and named[0] == 0:
        return SchemaReference(CONFLUENT, str(int.from_bytes(named[1:5], "big")), bytes(named[5:]) + data, 0)
    for kind in ("globalId", "contentId"):
        number = headers.get(f"apicurio.{side}.{kind}")
        if number is not None and len(number) in (4, 8):
            message = headers.get(PROTOBUF_TYPE) or headers.get(f"apicurio.{side}.msgType")
            name = message.decode(errors="replace") if message else None
            is_json = headers.get(f"apicurio.{side}.encoding") == b"JSON"
            return SchemaReference(APICURIO, str(int.from_bytes(number, "big")), data, 0, True, name, is_json)
    return None


def _glue(data: bytes, limits: PayloadLimits) -> SchemaReference:
    schema_id = str(uuid.UUID(bytes=data[2:_GLUE_HEADER]))
    if data[1] == _GLUE_PLAIN:
        return SchemaReference(GLUE, schema_id, data, _GLUE_HEADER, sure=_is_uuid(data[2:_GLUE_HEADER]))
    opened = zlib.decompressobj()
    try:
        payload = opened.decompress(data[_GLUE_HEADER:], limits.payload_bytes + 1)
    except zlib.error as failure:
        raise UndecodableError(f"Glue: zlib: {failure}") from None
    if len(payload) > limits.payload_bytes:
        raise UndecodableError(f"Glue: decompressed {size_reason(len(payload), limits.payload_bytes)}")
    if not opened.eof:
        raise UndecodableError("Glue: the compressed payload ends too early")
    return SchemaReference(GLUE, schema_id, payload, 0)
