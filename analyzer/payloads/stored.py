"""Schemas of a dataset: those that its keys and values were decoded with, from its table `schemas`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kwire.analyzer.payloads.schemas import FOLDER, Schema


class StoredSource:
    """The schemas of a dataset, as a source. What they refer to is not stored: such schemas cannot be used."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self._by_id = {schema.schema_id: schema for schema in schemas if schema.schema_id is not None}
        self._by_subject = {
            schema.subject: schema
            for schema in schemas
            if schema.schema_id is None and schema.subject is not None and schema.source == FOLDER
        }

    def by_id(self, schema_id: str) -> Schema | None:
        """Return the schema with an id."""
        return self._by_id.get(schema_id)

    def by_subject(self, subject: str) -> Schema | None:
        """Return the schema of a subject, if a folder had it."""
        return self._by_subject.get(subject)

    def every(self) -> Iterator[Schema]:
        """Yield all schemas."""
        yield from self._by_id.values()
        yield from self._by_subject.values()
