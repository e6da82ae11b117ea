"""Schemas of a dataset: those that its keys and values were decoded with, from its table `schemas`."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.analyzer.payloads.schemas import FOLDER, KnownSchemas, Schema


class StoredSource(KnownSchemas):
    """The schemas of a dataset, as a source. What they refer to is not stored: such schemas cannot be used."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        super().__init__(
            {schema.schema_id: schema for schema in schemas if schema.schema_id is not None},
            {
                schema.subject: schema
                for schema in schemas
                if schema.schema_id is None and schema.subject is not None and schema.source == FOLDER
            },
        )
