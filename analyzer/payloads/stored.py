"""Schemas of a dataset: those that its keys and values were decoded with, from its table `schemas`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kwire.analyzer.payloads.schemas import FOLDER, KnownSchemas, Schema


class StoredSource(KnownSchemas):
    """The schemas of a dataset, as a source."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        super().__init__(
            {schema.schema_id: schema for schema in schemas if schema.schema_id is not None},
            {
                schema.subject: schema
                for schema in schemas
                if schema.schema_id is None and schema.subject is not None and schema.source == FOLDER
            },
        )


def stored_schema(row: Mapping[str, Any]) -> Schema:
    """Return the schema of a row of `schemas`. Datasets of versions before have nothing of what it refers to."""
    try:
        uses = json.loads(row.get("uses") or "{}")
    except (ValueError, RecursionError):
        uses = {}
    texts = {name: text for name, text in uses.items() if isinstance(text, str)} if isinstance(uses, dict) else {}
    return Schema(row["schema_id"], row["format"], row["subject"], row["source"], row["text"], texts)
