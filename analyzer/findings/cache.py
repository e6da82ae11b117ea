"""What rules ask for of a capture point while it is being read, so that nobody reads back what is just being written.

In: the rows of its tables, in order, on their way to their files. Out: the parts of a `Source`: small tables whole, and
of large ones the columns that rules ask for whatever was captured. Rules: they are taken where rows are made, in any
thread; of a table beyond `MOST_ROWS` nothing is kept, and what is not kept is read from the files once they are there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from analyzer.dataset.parquet_files import LazyTable, as_table
from analyzer.findings.columns import Columns, Wanted
from analyzer.findings.source import KEPT_ROWS, SMALL_ROWS, Source

MOST_ROWS: Final = KEPT_ROWS
"""Rows of a large table whose columns are kept: some 50 bytes each. Of so many they would be kept once they are read
back, which takes twice as long, and more memory: that of the readers comes on top."""

NEVER_ASKED: Final = frozenset({"messages", "records"})
"""Tables that no rule reads. Their rows may be of any size, so that a few thousand would be gigabytes."""


class _Kept:
    """What is kept of one table. `large`: of which columns, beyond `SMALL_ROWS`."""

    def __init__(self, large: Wanted | None) -> None:
        self.large = large
        self.rows = 0
        self.given = 0
        self.whole: list[pa.Table] = []
        self.columns: Columns | None = None
        self._taken = 0
        self._waiting: dict[int, pa.Table] = {}
        self._lock = threading.Lock()

    def put(self, number: int, rows: pa.Table) -> None:
        """Some rows; numbers say in which order they stand, from 0."""
        with self._lock:
            self._waiting[number] = rows
            while (following := self._waiting.pop(self._taken, None)) is not None:
                self._taken += 1
                self._take(following)

    def _take(self, rows: pa.Table) -> None:
        self.rows += len(rows)
        if not len(rows) and self.rows:
            return
        if len(rows) == self.rows:
            self.whole = []  # tables without rows may have types of their own
        self.whole.append(rows)
        if self.rows <= SMALL_ROWS:
            return
        waiting, self.whole = self.whole, []
        if self.large is None or self.rows > MOST_ROWS:
            self.columns = None
            return
        self.columns = self.columns or Columns(self.large, MOST_ROWS)
        for some in waiting:
            self.columns.take(some)


class Kept:
    """What is kept of one capture point. `large`: columns of large tables, by name."""

    def __init__(self, large: Mapping[str, Wanted]) -> None:
        self._large = large
        self._tables: dict[str, _Kept] = {}
        self._coming = 0
        self._changed = threading.Condition()

    def take(self, name: str, rows: LazyTable) -> LazyTable:
        """Rows of a table, in order -> what is to be written in their place."""
        if name in NEVER_ASKED:
            return rows
        table = self._tables.setdefault(name, _Kept(self._large.get(name)))
        number = table.given
        table.given += 1
        if not callable(rows) and (table.large is None or not len(rows)):
            table.put(number, rows)
            return rows
        with self._changed:
            self._coming += 1
        return functools.partial(self._made, table, number, rows)

    def _made(self, table: _Kept, number: int, rows: LazyTable) -> pa.Table:
        ready = as_table(rows)
        table.put(number, ready)
        with self._changed:
            self._coming -= 1
            self._changed.notify_all()
        return ready

    def source(
        self,
        files: Future[dict[str, list[Path]]],
        captures: Sequence[Mapping[str, Any]],
        unrecognised: Sequence[Mapping[str, Any]],
    ) -> Source:
        """All rows have been given: where rules read, before the `files` are there. Raises what writing them does."""
        files.add_done_callback(self._wake)
        with self._changed:
            self._changed.wait_for(lambda: not self._coming or files.done())
        if self._coming:  # some could not be made, or were given up
            return Source(files.result(), captures, unrecognised)
        small: dict[str, pa.Table] = {}
        large: dict[str, Columns] = {}
        for name, table in self._tables.items():
            if table.rows <= SMALL_ROWS:
                small[name] = pa.concat_tables(table.whole)
            elif table.columns is not None:
                large[name] = table.columns
        return Source(_Parts(small, files), captures, unrecognised, kept=large)

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
