"""Record sets of a capture point -> rows of `batches` and `records`, window by window.

In: windows with their record sets, and the exchanges that ended in them, before and after the filter. Out: (name of a
table, rows), in row groups of good size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Names, Window, no_exchanges
from kwire.analyzer.dataset.parquet_files import ROW_GROUP_ROWS
from kwire.analyzer.payloads.options import PayloadOptions
from kwire.analyzer.protocol import api_keys as api_names
from kwire.analyzer.records.arrow_tables import (
    FETCH,
    FULL,
    NO_RECORDS,
    PRODUCE,
    WITHOUT,
    Origins,
    RecordCounts,
    RecordSetColumns,
    RecordTables,
    empty_table,
)
from kwire.analyzer.records.batches import BatchLimits
from kwire.captures.kernels import NULL

if TYPE_CHECKING:
    from kwire.analyzer.payloads.columns import PayloadColumns

GROUP_BYTES = 32 << 20
"""Bytes after which a row group ends early (`--records full`): they wait in memory."""


Change = Callable[[pa.Table], pa.Table]
"""What rows of `records` become before they are handed on."""


class RowGroupBuffer:
    """Gathers rows until they make a row group. `change`: what rows of `records` become then."""

    def __init__(self, change: Change | None = None) -> None:
        self._change = change
        self._parts: dict[str, list[pa.Table]] = {}
        self._rows: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def put(self, name: str, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Add rows to a table; what is full comes back."""
        self._parts.setdefault(name, []).append(table)
        self._rows[name] = self._rows.get(name, 0) + len(table)
        if "value" in table.column_names:
            self._bytes[name] = self._bytes.get(name, 0) + table.column("value").nbytes
        if self._rows[name] >= ROW_GROUP_ROWS or self._bytes.get(name, 0) >= GROUP_BYTES:
            yield name, self._joined(name)

    def rest(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows that were not yielded yet."""
        for name in list(self._parts):
            yield name, self._joined(name)

    def join(self, other: RowGroupBuffer) -> None:
        """Take over another's rows that wait."""
        for name, parts in other._parts.items():
            self._parts.setdefault(name, []).extend(parts)
            self._rows[name] = self._rows.get(name, 0) + other._rows[name]
            self._bytes[name] = self._bytes.get(name, 0) + other._bytes.get(name, 0)
        other._parts.clear()

    def _joined(self, name: str) -> pa.Table:
        parts = self._parts.pop(name)
        self._rows[name] = self._bytes[name] = 0
        # Each part has dictionaries of its own; Parquet wants one.
        table = parts[0] if len(parts) == 1 else pa.concat_tables(parts).unify_dictionaries()
        return self._change(table) if self._change is not None and name == "records" else table


def payload_columns(payloads: PayloadOptions, topic_name: Callable[[str], str]) -> PayloadColumns:
    """Return what decodes keys and values of rows of `records`. Raises UsageError."""
    decoder = payloads.decoder()
    from kwire.analyzer.payloads.columns import PayloadColumns  # so that who decodes nothing imports nothing

    return PayloadColumns(decoder, topic_name)


class OpenedRecords:
    """The record sets of one capture point, opened as far as `mode` says. `topic_name` gives the name for a topic's id,
    and `payloads` decodes keys and values.

    The rows of a window come from the `tables` that follows its `take`: sets are views of the window's bytes."""

    def __init__(
        self,
        mode: str,
        threads: int,
        limits: BatchLimits,
        topic_name: Callable[[str], str],
        everything: bool = True,
        payloads: PayloadOptions | None = None,
    ) -> None:
        self._mode = mode
        self._topic_name = topic_name
        self._everything = everything
        self._payloads = payloads if mode == FULL else None
        self._groups = self._row_groups()
        self._pool = ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="kwire-records")
        self._tables = RecordTables(mode, self._pool, max(1, threads), limits)
        self._waiting: list[tuple[list[RecordSetColumns], Origins, np.ndarray]] = []

    @property
    def counts(self) -> RecordCounts:
        """Counts of batches and records so far."""
        return self._tables.counts

    @property
    def schema_sources(self) -> list[str] | None:
        """Where the schemas of keys and values come from; None: these are not decoded."""
        return None if self._payloads is None else self._payloads.sources()

    def take(self, window: Window, *_: object) -> None:
        if self._mode == NO_RECORDS:
            return
        origins = self._origins(window.exchanges)
        gone = np.zeros(0, np.int64)
        if window.exchanges is not window.every:
            numbers = window.every.partitions[s.P_SET]
            gone = np.setdiff1d(numbers[numbers != NULL], origins.number)
        self._waiting.append(([RecordSetColumns(*sets) for sets in window.sets], origins, gone))

    def tables(self, *_: object) -> Iterator[tuple[str, pa.Table]]:
        windows, self._waiting = self._waiting, []
        for record_sets in windows:
            for name, table in self._tables.take(*record_sets):
                yield from self._groups.put(name, table)

    def onward(self, topic_name: Callable[[str], str]) -> OpenedRecords:
        """For another capture point, which begins where this one ends: sets that wait are known to it, what was found
        in others is not. This one must not be used any more, but for what it found."""
        after = copy.copy(self)
        after._topic_name = topic_name
        after._tables = copy.copy(self._tables)
        after._tables.counts = RecordCounts()
        after._groups = after._row_groups()
        return after

    def _row_groups(self) -> RowGroupBuffer:
        """Return groups whose rows have keys and values decoded, where that was asked for."""
        self._columns = None if self._payloads is None else payload_columns(self._payloads, self._topic_name)
        return RowGroupBuffer(None if self._columns is None else self._columns.fill)

    def join(self, other: OpenedRecords) -> None:
        """Take over the other's counts and the rows that wait for more in it. Sets whose exchange has not ended have
        numbers that mean something to their own reader alone: it makes their rows (`finish`), or ValueError."""
        if other._waiting or other._tables.waiting:
            raise ValueError("record sets of the other wait: its `tables` and `finish` come first")
        self.counts.join(other.counts)
        self._groups.join(other._groups)

    def flush(self) -> Iterator[tuple[str, pa.Table]]:
        """The rows of the windows so far that have not been given yet."""
        yield from self._groups.rest()

    def finish(self, names: Names) -> Iterator[tuple[str, pa.Table]]:
        """Finish after the last window. Without a filter, sets that no exchange has are rows too."""
        if self._mode != NO_RECORDS:
            if self._everything:
                for name, table in self._tables.rest(self._origins(no_exchanges(names))):
                    yield from self._groups.put(name, table)
            yield from self._groups.rest()
            for name in ("batches", "records"):
                if name not in WITHOUT[self._mode]:
                    yield name, empty_table(name)
            if self._columns is not None:
                yield "schemas", self._columns.schemas(names.capture)
        self._pool.shutdown()

    def _origins(self, exchanges: Exchanges) -> Origins:
        """Where the record sets of some exchanges come from, in their order."""
        with_set = exchanges.partitions[s.P_SET] != NULL
        # Of each column by itself: the few that are asked for take a fifth of the time of all.
        number, owner, topic, topic_id, partition = (
            exchanges.partitions[row].compress(with_set)
            for row in (s.P_SET, s.P_OWNER, s.P_TOPIC, s.P_TOPIC_ID, s.P_PARTITION)
        )
        x, names = exchanges.columns, exchanges.names
        return Origins(
            number=number,
            connection=exchanges.connection[owner],
            exchange=x[s.X_EXCHANGE, owner],
            reply=x[s.X_REPLY, owner],
            side=np.where(x[s.X_API_KEY, owner] == api_names.PRODUCE, PRODUCE, FETCH),
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            capture=names.capture,
            connections=names.connections,
            strings=names.strings,
            topic_name=self._topic_name,
        )
