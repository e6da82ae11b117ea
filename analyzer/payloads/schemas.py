"""Schemas by their ids, and the codecs that read payloads with them.

In: sources (`folder`, `registry`), asked in order. Out: for an id a codec, or the reason why there is none; every
schema that was looked up, for the table `schemas`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError

if TYPE_CHECKING:
    from kwire.analyzer.payloads.avro import AvroCodec
    from kwire.analyzer.payloads.protobuf import ProtobufCodec

AVRO, PROTOBUF, JSON_SCHEMA = "avro", "protobuf", "json_schema"
FOLDER, REGISTRY, CAPTURE = "folder", "registry", "capture"


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a source has it.

    schema_id   id in the registry, or UUID; None: the source knows only the subject
    format      AVRO, PROTOBUF or JSON_SCHEMA
    subject     what it was registered for, as `orders-value`; None where not known
    source      `folder`, `registry` or `capture`
    text        as registered; of a descriptor set its base64
    references  texts of the schemas that it uses, by the name that it has for them
    """

    schema_id: str | None
    format: str
    subject: str | None
    source: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


def format_of(schema_type: object) -> str:
    """Return the format that a registry's `schemaType` names; Avro has none. Raises UndecodableError."""
    formats = {None: AVRO, "AVRO": AVRO, "PROTOBUF": PROTOBUF, "JSON": JSON_SCHEMA}
    if (schema_type is not None and not isinstance(schema_type, str)) or schema_type not in formats:
        raise UndecodableError(f"schemas of type {str(schema_type)[:40]!r} are not known")
    return formats[schema_type]


class SchemaSource(Protocol):
    """Where schemas come from."""

    def by_id(self, schema_id: str) -> Schema | None:
        """Return the schema with an id; None where it has none. Raises UndecodableError where it cannot say."""

    def by_subject(self, subject: str) -> Schema | None:
        """Return the schema of a subject, if the source knows exactly one for sure."""

    def every(self) -> Iterator[Schema]:
        """Yield the schemas that are known without asking anybody."""


class KnownSchemas:
    """A source whose schemas are all there: by id, and by subject."""

    def __init__(self, by_id: dict[str, Schema], by_subject: dict[str, Schema]) -> None:
        self._by_id = by_id
        self._by_subject = by_subject

    def by_id(self, schema_id: str) -> Schema | None:
        """Return the schema with an id."""
        return self._by_id.get(schema_id)

    def by_subject(self, subject: str) -> Schema | None:
        """Return the schema of a subject."""
        return self._by_subject.get(subject)

    def every(self) -> Iterator[Schema]:
        """Yield all schemas."""
        yield from self._by_id.values()
        yield from self._by_subject.values()


class JsonCodec:
    """Payloads of a JSON Schema: JSON, which needs no schema to be read."""

    format = JSON_SCHEMA

    def __init__(self, limits: PayloadLimits) -> None:
        self._limits = limits

    def decode(self, data: bytes, start: int = 0, message: str | None = None) -> bytes:
        """Return a payload, if it is JSON. Raises UndecodableError."""
        from kwire.analyzer.payloads import json_text
        from kwire.analyzer.payloads.limits import size_reason

        payload = data[start:]
        if len(payload) > self._limits.payload_bytes:
            raise UndecodableError(size_reason(len(payload), self._limits.payload_bytes))
        json_text.check(payload)
        return payload


Codec = Any
"""`AvroCodec`, `ProtobufCodec` or `JsonCodec`."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In the place of a codec: why a schema cannot be used. `is_known`: the schema is there."""

    reason: str
    is_known: bool
    format: str | None = None


class Schemas:
    """All sources as one, with the codecs made so far."""

    def __init__(self, sources: Sequence[SchemaSource], limits: PayloadLimits) -> None:
        self._sources = sources
        self._limits = limits
        self._codecs: dict[str, Codec | Unreadable] = {}
        self._of_subjects: dict[str, Codec | Unreadable | None] = {}
        self.used: dict[tuple[str | None, str | None], Schema] = {}
        """Schemas that payloads were read with, or that would not be read; by id and subject."""

    def by_id(self, schema_id: str) -> Codec | Unreadable:
        """Return the codec of an id."""
        codec = self._codecs.get(schema_id)
        if codec is None:
            codec = self._look_up(schema_id)
            if len(self._codecs) < self._limits.schemas:
                self._codecs[schema_id] = codec
        return codec

    def by_subject(self, subject: str) -> Codec | Unreadable | None:
        """Return the codec for payloads of a subject that say no id; None: no source knows it."""
        if subject not in self._of_subjects:
            if len(self._of_subjects) >= self._limits.schemas:
                return None
            schemas = (source.by_subject(subject) for source in self._sources)
            schema = next((schema for schema in schemas if schema is not None), None)
            self._of_subjects[subject] = None if schema is None else self._codec(schema)
        return self._of_subjects[subject]

    def known(self) -> list[Schema]:
        """Return the schemas that payloads were read with, then what the capture holds besides."""
        rows = {(schema.schema_id, schema.subject): schema for schema in self.used.values()}
        for source in self._sources:
            for schema in source.every():
                if schema.source == CAPTURE:
                    rows.setdefault((schema.schema_id, schema.subject), schema)
        return list(rows.values())

    def _look_up(self, schema_id: str) -> Codec | Unreadable:
        problem = None
        for source in self._sources:
            try:
                schema = source.by_id(schema_id)
            except UndecodableError as failure:
                problem = failure
                continue
            if schema is not None:
                return self._codec(schema)
        if problem is not None:
            return Unreadable(f"schema {schema_id}: {problem}", False)
        return Unreadable(f"schema {schema_id} is not known", False)

    def _codec(self, schema: Schema) -> Codec | Unreadable:
        self.used[schema.schema_id, schema.subject] = schema
        try:
            return codec_of(schema, self._limits)
        except UndecodableError as failure:
            name = schema.schema_id or schema.subject
            return Unreadable(f"schema {name}: {failure}", True, schema.format)


def codec_of(schema: Schema, limits: PayloadLimits) -> AvroCodec | ProtobufCodec | JsonCodec:
    """Return the codec of a schema. Raises UndecodableError."""
    if schema.format == AVRO:
        from kwire.analyzer.payloads.avro import AvroCodec

        return AvroCodec(schema.text, list(schema.references.values()), limits)
    if schema.format == PROTOBUF:
        from kwire.analyzer.payloads.protobuf import ProtobufCodec

        return ProtobufCodec(schema.text, schema.references, limits)
    return JsonCodec(limits)
