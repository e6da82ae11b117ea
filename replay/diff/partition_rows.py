"""Read topics and partitions of many Produce and Fetch messages as columns.

In: a projection (`kwire.analyzer.protocol.project`) of the messages. Out: rows of topics, and of partitions. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kwire.analyzer.protocol.project import FieldColumn, Flags, Messages, Numbers, Projection
from kwire.analyzer.protocol.topic_lists import TopicField
from kwire.replay.diff.stored_run import Heap

MAX_ROWS: Final = 1 << 20
"""Rows of the messages that are decoded together; messages beyond are left to be decoded one by one."""


class TopicColumn(NamedTuple):
    """Names or ids of topics: where they lie in `heap`, how long they are (-1: null), and which are ids."""

    heap: Heap
    position: Numbers
    length: Numbers
    by_id: Flags

    def where(self, rows: Flags | Numbers) -> TopicColumn:
        """Some of the rows."""
        return TopicColumn(self.heap, self.position[rows], self.length[rows], self.by_id[rows])


class PartitionRows(NamedTuple):
    """Partitions in order: the message, the topic, the partition's number; other fields by name."""

    message: Numbers
    topic: TopicColumn
    number: Numbers
    columns: Mapping[str, FieldColumn]

    def where(self, rows: Flags | Numbers) -> PartitionRows:
        """Some of the rows."""
        columns = {name: column.where(rows) for name, column in self.columns.items()}
        return PartitionRows(self.message[rows], self.topic.where(rows), self.number[rows], columns)


def _topics(where: TopicField) -> str:
    return "".join(f"{name}[]." for name in where.path)


def _partitions(where: TopicField) -> str:
    return f"{_topics(where)}{where.partitions}[]."


def topic_paths(where: TopicField) -> list[str]:
    """List the paths of topics' names and ids, for `topic_rows`."""
    return [_topics(where) + name for name in (where.name, where.id) if name]


def partition_paths(where: TopicField, fields: Iterable[str]) -> list[str]:
    """List the paths of topics and of fields of their partitions, for `partition_rows`."""
    return [*topic_paths(where), *(_partitions(where) + name for name in (where.number, *fields))]


def topic_rows(
    messages: Messages, projection: Projection, where: TopicField, below: str = ""
) -> tuple[Numbers, TopicColumn]:
    """Return the message of each topic, and the topics' names; `below`: one for each element of this inner array."""
    array = _topics(where).removesuffix(".")
    name, *ids = (projection.column(path, below) for path in topic_paths(where))
    topic = name.otherwise(ids[0]) if ids else name
    column = TopicColumn(messages.buffer, topic.position, topic.length, ~name.present)
    return projection.elements[below or array].message, column


def partition_rows(
    messages: Messages, projection: Projection, where: TopicField, fields: Iterable[str]
) -> PartitionRows:
    """Return the partitions that the messages list."""
    inside = _partitions(where)
    message, topic = topic_rows(messages, projection, where, inside.removesuffix("."))
    columns = {name: projection.column(inside + name) for name in fields}
    return PartitionRows(message, topic, projection.column(inside + where.number).value, columns)
