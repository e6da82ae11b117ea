"""Cache columns of a capture point while its rows are written, so that rules need not read them back.

In: the rows of its tables, in order, on their way to their files. Out: `RowGroups`: small tables whole, and chosen
columns of large ones. Rows are copied in the thread that makes them. Of a table beyond `MOST_ROWS` nothing is cached;
what is not cached is read from the files once they are there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from kwire.analyzer.dataset.parquet_files import LazyTable, as_table
from kwire.analyzer.frame.columns import CachedColumns, ColumnSet
from kwire.analyzer.frame.parquet import CACHED_ROWS, SMALL_ROWS, RowGroups

MOST_ROWS: Final = CACHED_ROWS
"""Rows of a large table whose columns are cached: some 50 bytes each. Reading them back takes twice as long, and more
memory, that of the readers."""

NEVER_READ: Final = frozenset({"messages", "records"})
"""Tables that no rule reads. Their rows may be of any size, so that a few thousand would be gigabytes."""


class _PendingTable:
    """Cached rows of one table: all of them up to `SMALL_ROWS`, `columns` of more."""

    def __init__(self, columns: ColumnSet | None) -> None:
        self.column_set = columns
        self.rows = 0
        self.pieces = 0
        """Pieces that were announced."""
        self.whole: list[pa.Table] = []
        self.columns: CachedColumns | None = None
        self._appended = 0
        self._waiting: dict[int, pa.Table] = {}
        self._lock = threading.Lock()

    def put(self, number: int, rows: pa.Table) -> None:
        """Append a piece once all pieces with a smaller number, from 0, are there."""
        with self._lock:
            self._waiting[number] = rows
            while (following := self._waiting.pop(self._appended, None)) is not None:
                self._appended += 1
                self._append(following)

    def _append(self, rows: pa.Table) -> None:
        self.rows += len(rows)
        if not len(rows) and self.rows:
            return
        if len(rows) == self.rows:
            self.whole = []  # tables without rows may have types of their own
        self.whole.append(rows)
        if self.rows <= SMALL_ROWS:
            return
        waiting, self.whole = self.whole, []
        if self.column_set is None or self.rows > MOST_ROWS:
            self.columns = None
            return
        self.columns = self.columns or CachedColumns(self.column_set, MOST_ROWS)
        for piece in waiting:
            self.columns.append(piece)


class PendingTables:
    """Cached tables of one capture point. `columns`: those to cache of large tables, by name."""

    def __init__(self, columns: Mapping[str, ColumnSet]) -> None:
        self._columns = columns
        self._tables: dict[str, _PendingTable] = {}
        self._unmade = 0
        self._changed = threading.Condition()

    def take(self, name: str, rows: LazyTable) -> LazyTable:
        """Take the next rows of a table, and return what is to be written in their place."""
        if name in NEVER_READ:
            return rows
        table = self._tables.setdefault(name, _PendingTable(self._columns.get(name)))
        number = table.pieces
        table.pieces += 1
        if not callable(rows) and (table.column_set is None or not len(rows)):
            table.put(number, rows)
            return rows
        with self._changed:
            self._unmade += 1
        return functools.partial(self._make, table, number, rows)

    def _make(self, table: _PendingTable, number: int, rows: LazyTable) -> pa.Table:
        ready = as_table(rows)
        table.put(number, ready)
        with self._changed:
            self._unmade -= 1
            self._changed.notify_all()
        return ready

    def row_groups(
        self,
        files: Future[dict[str, list[Path]]],
        captures: Sequence[Mapping[str, Any]],
        unrecognised: Sequence[Mapping[str, Any]],
    ) -> RowGroups:
        """Return the tables once all rows are made, before their `files` are there. Raises what writing them raises."""
        files.add_done_callback(self._wake)
        with self._changed:
            self._changed.wait_for(lambda: not self._unmade or files.done())
        if self._unmade:  # some could not be made, or were given up
            return RowGroups(files.result(), captures, unrecognised)
        small: dict[str, pa.Table] = {}
        large: dict[str, CachedColumns] = {}
        for name, table in self._tables.items():
            if table.rows <= SMALL_ROWS:
                small[name] = pa.concat_tables(table.whole)
            elif table.columns is not None:
                large[name] = table.columns
        return RowGroups(_Parts(small, files), captures, unrecognised, cached=large)

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()


class _Parts(Mapping[str, "pa.Table | Sequence[Path]"]):
    """Small tables in memory, and the files of others when they are there."""

    def __init__(self, small: Mapping[str, pa.Table], files: Future[dict[str, list[Path]]]) -> None:
        self._small = small
        self._files = files

    def __getitem__(self, name: str) -> pa.Table | Sequence[Path]:
        return self._small[name] if name in self._small else self._files.result()[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._files.result(), **self._small})

    def __len__(self) -> int:
        return len(self._files.result() | dict(self._small))
