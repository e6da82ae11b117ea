"""Decode keys and values: by their frame, by their topic's subject, or by what their bytes are.

In: bytes, the topic, the side (`key` or `value`) and the headers of the record. Out: a `Payload`: format, schema id,
JSON, or the reason why there is none. Nothing raises, whatever the bytes are.

Order: what a package's decoder recognizes; what topics of MirrorMaker and Kafka Streams hold; a schema that the record
names; a schema that a source has for the topic (`TOPIC-value`, or `TOPIC` for values); JSON, text and MessagePack,
which name themselves. Bytes that are none of these have no format, and the reason says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kwire.analyzer.payloads import extensions, json_text, messagepack
from kwire.analyzer.payloads.extensions import ExtensionDecoder
from kwire.analyzer.payloads.framing import CONFLUENT, SchemaReference, frame_of
from kwire.analyzer.payloads.kafka_topics import Form, KafkaTopics
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError, size_reason
from kwire.analyzer.payloads.schemas import AVRO, JSON_SCHEMA, PROTOBUF, Codec, Schemas, Unreadable
from kwire.analyzer.payloads.text import text_of
from kwire.analyzer.protocol.tree import Node

KEY, VALUE = "key", "value"
JSON, TEXT, MESSAGEPACK = "json", "text", "messagepack"
NO_HEADERS: Final[Mapping[str, bytes]] = {}


class Payload(NamedTuple):
    """A key or value as far as it was decoded.

    format     as `avro`; None: not known
    schema_id  that it names; None: none
    json       its value; None: null, or not decoded
    reason     why it is not decoded; None: it is, or it is null
    """

    format: str | None
    schema_id: str | None
    json: bytes | None
    reason: str | None


NULL: Final = Payload(None, None, None, None)


class PayloadDecoder:
    """Decodes with the schemas of all sources."""

    def __init__(
        self, schemas: Schemas, limits: PayloadLimits | None = None, own: Sequence[ExtensionDecoder] = ()
    ) -> None:
        """`own`: decoders of other packages, which are asked first."""
        self.schemas = schemas
        self._own = own
        self._limits = limits or PayloadLimits()
        self._kafka = KafkaTopics()
        self._seen: dict[bytes, tuple[str, str, Any]] = {}
        """Codecs that have decoded, by the first bytes of Confluent's frames: most payloads begin as others did."""

    @property
    def needs_headers(self) -> bool:
        """Whether all headers of a record matter, not only those that name a schema."""
        return bool(self._own)

    def decode(
        self, data: bytes | None, topic: str | None, side: str, headers: Mapping[str, bytes] = NO_HEADERS
    ) -> Payload:
        """Decode one key or value (`side`)."""
        if data is None:
            return NULL
        for own in self._own:
            try:
                text = extensions.decode(own, data, topic, side, headers, self._limits)
            except UndecodableError as failure:
                return Payload(own.format, None, None, str(failure))
            if text is not None:
                return Payload(own.format, None, text, None)
        if topic is not None and (form := self._kafka.form(topic)) is not None:
            payload = self._of_kafka(data, form, topic, side)
            if payload is not None:
                return payload
        return self._decode(data, topic, side, headers)

    def _of_kafka(self, data: bytes, form: Form, topic: str, side: str) -> Payload | None:
        """Return a key or value of a topic that MirrorMaker or Kafka Streams write; None: it is not what they write."""

        def inner(part: bytes) -> Any:
            decoded = self._decode(part, topic, side, NO_HEADERS).json
            return part if decoded is None else json_text.load(decoded)

        value = None if len(data) > self._limits.payload_bytes else form.read(data, side, inner)
        return None if value is None else Payload(form.name, None, json_text.dump(value), None)

    def _decode(self, data: bytes, topic: str | None, side: str, headers: Mapping[str, bytes]) -> Payload:
        if not headers and (seen := self._seen.get(data[:5])) is not None:
            format, schema_id, decode = seen
            try:
                return Payload(format, schema_id, decode(data, 5), None)
            except UndecodableError:
                pass  # below, with the reason
        try:
            frame = frame_of(data, side, headers, self._limits)
        except UndecodableError as failure:
            return Payload(None, None, None, str(failure))
        if frame is not None and (payload := self._framed(frame)) is not None:
            return payload
        reason = None
        if topic is not None:
            codec = self._of_topic(topic, side)
            if codec is not None and not isinstance(codec, Unreadable):
                try:
                    return Payload(codec.format, None, codec.decode(data), None)
                except UndecodableError as failure:
                    reason = f"{codec.format} of the topic's schema: {failure}"
            elif codec is not None:
                reason = codec.reason
        return self._unframed(data, reason)

    def nodes(
        self, data: bytes, topic: str, side: str, headers: Mapping[str, bytes] = NO_HEADERS
    ) -> tuple[tuple[Node, ...] | None, SchemaReference | None]:
        """Return the nodes of a key or value that `decode` decodes, None for formats whose fields have no bytes of
        their own, and its frame, if it has one. Raises UndecodableError."""
        frame = frame_of(data, side, headers, self._limits)
        if frame is not None:
            codec = self.schemas.by_id(frame.schema_id)
            if not isinstance(codec, Unreadable) and not frame.is_json:
                if codec.format == PROTOBUF:
                    return codec.nodes(frame.data, frame.start, frame.message, frame.registry), frame
                return codec.nodes(frame.data, frame.start) if codec.format == AVRO else None, frame
        codec = self._of_topic(topic, side)
        if codec is not None and not isinstance(codec, Unreadable) and codec.format in (AVRO, PROTOBUF):
            with contextlib.suppress(UndecodableError):  # it names itself
                return codec.nodes(data), None
        return None, None

    def _of_topic(self, topic: str, side: str) -> Codec | Unreadable | None:
        """Return the codec of a topic whose keys or values name no schema."""
        codec = self.schemas.by_subject(f"{topic}-{side}")
        return self.schemas.by_subject(topic) if codec is None and side == VALUE else codec

    def _framed(self, frame: SchemaReference) -> Payload | None:
        """Return the payload of a frame; None where the bytes are more likely no frame."""
        if frame.is_json:
            with contextlib.suppress(UndecodableError):
                return Payload(JSON, frame.schema_id, self._json(frame.data), None)
        codec = self.schemas.by_id(frame.schema_id)
        if isinstance(codec, Unreadable):
            if not codec.is_known and frame.registry == CONFLUENT and json_text.looks_like(frame.data[frame.start :]):
                try:  # of a JSON Schema, which nobody needs to read it
                    payload = self._json(frame.data[frame.start :])
                    return Payload(JSON_SCHEMA, frame.schema_id, payload, None)
                except UndecodableError:
                    pass
            if not codec.is_known and not frame.sure:
                return None
            return Payload(codec.format, frame.schema_id, None, codec.reason)
        try:
            decoded = Payload(codec.format, frame.schema_id, _decoded(codec, frame), None)
            if frame.registry == CONFLUENT and frame.start == 5 and codec.format != PROTOBUF:
                self._seen[frame.data[:5]] = codec.format, frame.schema_id, codec.decode
            return decoded
        except UndecodableError as failure:
            reason = f"{codec.format} of schema {frame.schema_id}: {failure}"
            return Payload(codec.format, frame.schema_id, None, reason)

    def _unframed(self, data: bytes, reason: str | None) -> Payload:
        """Decode what names itself. `reason`: why the schema of its topic does not do."""
        if json_text.looks_like(data):
            try:
                return Payload(JSON, None, self._json(data), reason)
            except UndecodableError as failure:
                reason = reason or (str(failure) if len(data) > self._limits.payload_bytes else None)
        if len(data) > self._limits.payload_bytes:
            return Payload(None, None, None, reason or size_reason(len(data), self._limits.payload_bytes))
        if (text := text_of(data)) is not None:
            return Payload(TEXT, None, json_text.dump(text), reason)
        if messagepack.looks_like(data):
            try:
                return Payload(MESSAGEPACK, None, json_text.dump(messagepack.decode(data, self._limits)), reason)
            except UndecodableError:
                pass
        return Payload(None, None, None, reason or f"{len(data):,} bytes of no known format")

    def _json(self, data: bytes) -> bytes:
        if len(data) > self._limits.payload_bytes:
            raise UndecodableError(f"JSON of {size_reason(len(data), self._limits.payload_bytes)}")
        json_text.check(data)
        return data


def _decoded(codec: Any, frame: SchemaReference) -> bytes:
    """Return a frame's payload as JSON. Raises UndecodableError."""
    if codec.format != PROTOBUF:
        decoded: bytes = codec.decode(frame.data, frame.start)
        return decoded
    decoded = codec.decode(frame.data, frame.start, frame.message, frame.registry)
    return decoded
