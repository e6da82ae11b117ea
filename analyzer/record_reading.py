"""Record sets of a capture point -> rows of `batches` and `records`, window by window.

In: the batches of a window (`analyzer.conversation.Batch`), and the exchanges that ended in it, before and after the
filter. Out: (name of a table, rows), in row groups of good size.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from analyzer import state as s
from analyzer.columns import Columns, Rows
from analyzer.conversation import Batch
from analyzer.dataset import ROW_GROUP_ROWS
from analyzer.record_batches import Limits
from analyzer.record_tables import (
    FETCH,
    NO_RECORDS,
    PRODUCE,
    WITHOUT,
    Kept,
    Origins,
    RecordCounts,
    RecordTables,
    empty_table,
)
from analyzer.state import NULL

GROUP_BYTES = 32 << 20
"""Bytes after which a row group ends early (`--records full`): they wait in memory."""
_PRODUCE_KEY = 0


class RowGroups:
    """Gathers rows until they make a row group."""

    def __init__(self) -> None:
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
        """What has not been given yet."""
        for name in list(self._parts):
            yield name, self._joined(name)

    def _joined(self, name: str) -> pa.Table:
        parts = self._parts.pop(name)
        self._rows[name] = self._bytes[name] = 0
        # Each part has dictionaries of its own; Parquet wants one.
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts).unify_dictionaries()


class OpenedRecords:
    """The record sets of one capture point, opened as far as `mode` says."""

    def __init__(self, columns: Columns, mode: str, threads: int, limits: Limits) -> None:
        self._columns = columns
        self._mode = mode
        self._groups = RowGroups()
        self._pool = ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="kwire-records")
        self._made = RecordTables(mode, self._pool, max(1, threads), limits)

    @property
    def counts(self) -> RecordCounts:
        """What was found so far."""
        return self._made.counts

    def take(self, batches: list[Batch], every: Rows, taken: Rows) -> Iterator[tuple[str, pa.Table]]:
        """One window: `every` exchange that ended in it, and those that were `taken`."""
        if self._mode == NO_RECORDS:
            return
        kept = []
        for shard, batch in enumerate(batches):
            numbers = self._columns.set_numbers(shard, batch.sets[:, s.SET_NUMBER])
            at, length = batch.sets[:, s.SET_AT], batch.sets[:, s.SET_LENGTH]
            kept.append(Kept(batch.set_bytes, numbers, np.ascontiguousarray(at), np.ascontiguousarray(length)))
        origins = self._origins(taken)
        gone = np.zeros(0, np.int64)
        if taken is not every:
            numbers = every.parts[s.P_SET]
            gone = np.setdiff1d(numbers[numbers != NULL], origins.number)
        for name, table in self._made.take(kept, origins, gone):
            yield from self._groups.put(name, table)

    def flush(self) -> Iterator[tuple[str, pa.Table]]:
        """The rows of the windows so far that have not been given yet."""
        yield from self._groups.rest()

    def finish(self, everything: bool) -> Iterator[tuple[str, pa.Table]]:
        """All has been read. `everything`: no filter, so that sets that no exchange told of are wanted too."""
        if self._mode != NO_RECORDS:
            if everything:
                for name, table in self._made.rest(self._origins(None)):
                    yield from self._groups.put(name, table)
            yield from self._groups.rest()
            for name in ("batches", "records"):
                if name not in WITHOUT[self._mode]:
                    yield name, empty_table(name)
        self._pool.shutdown()

    def _origins(self, rows: Rows | None) -> Origins:
        """Where the record sets of some exchanges come from, in their order."""
        if rows is None:
            parts, owner = np.zeros((s.P_COLUMNS, 0), np.int64), np.zeros(0, np.int64)
            x, connection = np.zeros((s.X_COLUMNS, 0), np.int64), owner
        else:
            parts = rows.parts.compress(rows.parts[s.P_SET] != NULL, axis=1)
            x, connection, owner = rows.x, rows.connection, parts[s.P_OWNER]
        return Origins(
            number=parts[s.P_SET],
            connection=connection[owner],
            exchange=x[s.X_EXCHANGE, owner],
            reply=x[s.X_REPLY, owner],
            side=np.where(x[s.X_API_KEY, owner] == _PRODUCE_KEY, PRODUCE, FETCH),
            topic=parts[s.P_TOPIC],
            topic_id=parts[s.P_TOPIC_ID],
            partition=parts[s.P_PARTITION],
            capture=self._columns.capture,
            connections=self._columns.connection_names,
            strings=self._columns.strings,
            topic_name=self._columns.topic_name,
        )
