"""The columns of `records` that tell what keys and values are.

In: rows of `records` with their content (`--records full`). Out: `PayloadColumns`, which fills `key_format`,
`value_format`, `key_schema_id`, `value_schema_id`, `key_json`, `value_json` and `undecodable`. Control records and
Kafka's own topics stay as they are: `decoded` has what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.payloads.decoder import KEY, NO_HEADERS, VALUE, PayloadDecoder
from kwire.analyzer.payloads.framing import PROTOBUF_TYPE
from kwire.analyzer.payloads.schemas import Schema
from kwire.analyzer.protocol import schema

_HEADERS: Final = (
    PROTOBUF_TYPE,
    *(f"__{side}_schema_id" for side in (KEY, VALUE)),
    *(f"apicurio.{side}.{name}" for side in (KEY, VALUE) for name in ("globalId", "contentId", "msgType", "encoding")),
)
"""Headers that name a schema, or say how a key or value is written with it."""
_MOST_USED: Final = 4 << 20
"""Characters of what one schema refers to that are kept."""
_ROWS: Final = 1 << 14
"""Rows that are decoded before they become a column: Python objects of more would fill the memory."""


class PayloadColumns:
    """Decodes keys and values of rows of `records`. `topic_name`: gives the name for a topic's id."""

    def __init__(self, decoder: PayloadDecoder, topic_name: Callable[[str], str]) -> None:
        self._decoder = decoder
        self._names = _TopicNames(topic_name)

    def fill(self, table: pa.Table) -> pa.Table:
        """Return rows with their keys and values decoded."""
        if not len(table):
            return table
        starts = range(0, len(table), _ROWS)
        parts = [_columns(table.slice(at, _ROWS), self._decoder, self._names) for at in starts]
        for name in parts[0]:
            position = table.schema.get_field_index(name)
            table = table.set_column(position, name, pa.chunked_array([part[name] for part in parts], pa.string()))
        return table

    def schemas(self, capture: str) -> pa.Table:
        """Return the rows of `schemas`: what keys and values were decoded with, and what the capture itself holds."""
        known = self._decoder.schemas.known()
        columns: dict[str, list[str | None]] = {
            "capture": [capture] * len(known),
            "schema_id": [schema.schema_id for schema in known],
            "format": [schema.format for schema in known],
            "subject": [schema.subject for schema in known],
            "source": [schema.source for schema in known],
            "text": [schema.text for schema in known],
            "uses": [_uses(schema) for schema in known],
        }
        arrays = [pa.array(columns[name], pa.string()) for name in columns]
        return pa.Table.from_arrays(arrays, names=list(columns))


def _uses(schema: Schema) -> str | None:
    """Return what a schema refers to, for the table `schemas`; None: nothing, or more than is kept."""
    if not schema.references or sum(map(len, schema.references.values())) > _MOST_USED:
        return None
    return json.dumps(dict(schema.references))


class _TopicNames:
    """Names of topics; None: records of that topic are not decoded here."""

    def __init__(self, topic_name: Callable[[str], str]) -> None:
        self._topic_name = topic_name
        self._known: dict[tuple[str | None, str | None], tuple[bool, str | None]] = {}

    def of_rows(self, topics: Sequence[str | None], topic_ids: Sequence[str | None]) -> list[tuple[bool, str | None]]:
        """Return what `of` says of each row."""
        known = self._known
        return [known.get(key) or self.of(*key) for key in zip(topics, topic_ids, strict=True)]

    def of(self, topic: str | None, topic_id: str | None) -> tuple[bool, str | None]:
        """Return whether records of a topic are decoded, and its name where it is known."""
        key = (topic, topic_id)
        if key not in self._known:
            name = topic
            if topic is None and topic_id is not None:
                name = self._topic_name(topic_id)
                name = None if name == topic_id else name
            self._known[key] = (name not in schema.TOPICS, name)
        return self._known[key]


def _columns(table: pa.Table, decoder: PayloadDecoder, names: _TopicNames) -> dict[str, pa.Array]:
    """Return the columns of some rows."""
    topics = names.of_rows(table.column("topic").to_pylist(), table.column("topic_id").to_pylist())
    plain = pc.is_null(table.column("control_type")).to_pylist()
    wanted = [is_plain and topic[0] for is_plain, topic in zip(plain, topics, strict=True)]
    headers = _headers(table.column("headers"), decoder.needs_headers)
    columns: dict[str, Any] = {}
    reasons: list[str | None] = [None] * len(table)
    for side in (KEY, VALUE):
        formats: list[str | None] = [None] * len(table)
        ids: list[str | None] = [None] * len(table)
        texts: list[bytes | None] = [None] * len(table)
        decode = decoder.decode
        for i, data in enumerate(table.column(side).to_pylist()):
            if data is None or not wanted[i]:
                continue
            formats[i], ids[i], texts[i], reason = decode(data, topics[i][1], side, headers.get(i, NO_HEADERS))
            if reason is not None:
                before = reasons[i]
                reasons[i] = f"{side}: {reason}" if before is None else f"{before}; {side}: {reason}"
        columns[f"{side}_format"], columns[f"{side}_schema_id"], columns[f"{side}_json"] = formats, ids, texts
    columns["undecodable"] = reasons
    return {name: pa.array(values, pa.string()) for name, values in columns.items()}


def _headers(column: pa.ChunkedArray, every: bool) -> Mapping[int, Mapping[str, bytes]]:
    """Return the headers that name a schema, or all, by the rows that have any."""
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):  # of no rows
        return {}
    keys = lists.flatten().field("key")
    rows = pc.list_parent_indices(lists)
    named = pc.is_valid(keys) if every else pc.is_in(keys, pa.array(_HEADERS, pa.string()))
    if not pc.any(named).as_py():
        return {}
    values = lists.flatten().field("value")
    headers: dict[int, dict[str, bytes]] = {}
    for row, key, value in zip(*(_picked(array, named) for array in (rows, keys, values)), strict=True):
        if value is not None:
            headers.setdefault(row, {}).setdefault(key, value)
    return headers


def _picked(array: pa.Array, which: pa.Array) -> Sequence[Any]:
    picked: list[Any] = array.filter(which).to_pylist()
    return picked
