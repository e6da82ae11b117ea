"""Read chosen columns and rows of stored tables for stories.

In: a `StoredDataset`. Out: rows as dictionaries, topics by name. Rules: nothing is loaded that is not asked for; what
an older dataset lacks is absent or null.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.analysis.cluster_metadata import METADATA_TOPIC
from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import StoredDataset
from kwire.analyzer.frame import parquet as stored_tables
from kwire.analyzer.frame.parquet import StoredFrame
from kwire.analyzer.story.events import Row

FETCHER = re.compile(r"broker-(\d+)-fetcher-\d+")
"""Client ids of brokers that follow others; the group is their node id."""

EXCHANGE_COLUMNS = (
    "connection",
    "exchange",
    "reply",
    "client_id",
    "client_ip",
    "broker_ip",
    "broker_port",
    "api",
    "request_time",
    "response_end",
    "topics",
    "group_id",
    "transactional_id",
    "error_code",
    "error",
    "status",
)
"""Columns of an exchange that stories use."""

_TOGETHER = 10_000
"""Rows converted to objects at a time."""


class Source:
    """A dataset, one capture point of it at a time (`capture`)."""

    def __init__(self, dataset: StoredDataset, capture: str) -> None:
        self.dataset = dataset
        self.capture = capture
        captured = {row["topic_id"]: row["topic"] for row in self.rows("topic_ids")}
        self.topics: dict[str, str] = {**METADATA_TOPIC, **captured}
        self.nodes: dict[tuple[str, int], int] = {
            (row["host"], row["port"]): row["node_id"] for row in self.rows("brokers")
        }
        self.ends: dict[str, Row] = {}

    @functools.cached_property
    def remade(self) -> set[str]:
        """Names that several topics had in turn, each with offsets of its own."""
        return {name for name, number in Counter(self.topics.values()).items() if number > 1}

    def table(self, name: str, columns: Sequence[str] = (), where: Any = None) -> pa.Table:
        """Read columns of the rows that match an Arrow expression."""
        chosen = where
        if len(self.dataset.captures) > 1:
            here = pc.field("capture") == self.capture
            chosen = here if where is None else here & where
        stored = getattr(self.dataset, name)
        wanted = list(columns) or [column.name for column in tables.TABLES[name]]
        there = [column for column in wanted if column in stored.schema.names]
        if where is None:
            return stored.to_table(columns=there, filter=chosen)
        # What is asked for is rare: to know which row groups have some takes only the columns that it is known by.
        empty = pa.schema([stored.schema.field(column) for column in there]).empty_table()
        groups = (group for file in stored.get_fragments() for group in _row_groups(file))
        parts = [group.to_table(stored.schema, there, chosen) for group in groups if group.count_rows(filter=chosen)]
        return pa.concat_tables([empty, *parts])

    def stored(self, name: str) -> StoredFrame:
        """The rows of a table as arrays of numbers."""
        return StoredFrame(self._read, self.capture, name)

    @functools.cached_property
    def _read(self) -> stored_tables.RowGroups:
        return stored_tables.RowGroups.of(self.dataset)

    def rows(self, name: str, columns: Sequence[str] = (), where: Any = None) -> list[Row]:
        """Like `table`, as dictionaries, with topics by the names in the capture."""
        return self._named(name, self.table(name, columns, where).to_pylist())

    def each(self, name: str, table: pa.Table, order: np.ndarray | None = None) -> Iterator[Row]:
        """Yield rows of a table as objects, in the given order or as they stand; converted in parts, because objects
        take twenty times the memory."""
        for start in range(0, len(table) if order is None else len(order), _TOGETHER):
            if order is None:
                some = table.slice(start, _TOGETHER)
            else:
                some = compute.take(table, order[start : start + _TOGETHER])
            yield from self._named(name, some.to_pylist())

    def picked(self, stored: StoredFrame, chosen: np.ndarray, columns: Sequence[str]) -> Iterator[Row]:
        """Yield chosen rows in the given order; times as us."""
        for start in range(0, len(chosen), _TOGETHER):
            yield from self._named(stored.name, stored.rows(chosen[start : start + _TOGETHER], columns))

    def _named(self, name: str, rows: list[Row]) -> list[Row]:
        """Fill in names of topics in rows of a table."""
        for row in rows:
            if "topic_id" in row and row.get("topic") is None and row["topic_id"] is not None and name != "topic_ids":
                row["topic"] = self.topics.get(row["topic_id"], row["topic_id"])
            if row.get("topics"):
                row["topics"] = [self.topics.get(topic, topic) for topic in row["topics"]]
        return rows

    def broker(self, ip: str, port: int) -> str:
        """A broker as a sentence names it."""
        node = self.nodes.get((ip, port))
        at = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        return f"broker {node} ({at})" if node is not None else f"the broker at {at}"

    def connection(self, name: str) -> Row:
        """The row of a connection; empty if there is none of that name."""
        if not self.ends:
            self.ends = {row["connection"]: row for row in self.rows("connections")}
        return self.ends.get(name, {})


def _row_groups(file: Any) -> Sequence[Any]:
    """Return the row groups of a dataset's fragment; of a table that no file has, the fragment."""
    return file.split_by_row_group() if hasattr(file, "split_by_row_group") else [file]


def names_in(stored: Any, column: str, where: Any = None) -> set[str]:
    """Distinct texts in a column of a stored table, of the rows that match an Arrow expression. Read in parts: a table
    may have millions of rows, and names are few."""
    there = pc.is_valid(pc.field(column))
    batches = stored.to_batches(columns=[column], filter=there if where is None else there & where)
    return {name for batch in batches for name in pc.unique(batch.column(0)).to_pylist()}


def moments(values: Iterable[datetime.datetime | None]) -> list[datetime.datetime]:
    """Times that are not null."""
    return [value for value in values if value is not None]
