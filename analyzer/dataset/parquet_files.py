"""The Parquet files of a dataset, written in the background.

In: rows, table by table: as tables, or as what makes one (`Made`). Out: a file a table, and what the manifest says of
each. Rules: rows stand in a file in the order in which they were given, whoever makes and stores them; several tables
are made, and several files written, at once; how much is on its way is bounded; what goes wrong in the background is
raised by a later call.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet

from kwire.analyzer.dataset import tables

ROW_GROUP_ROWS = 64_000
"""Rows of a row group, far below what the contract allows: they wait in memory until there are so many, and fresh
memory is dear (measured: 700,000 exchanges took 1.9 s with 64,000, 4.3 s with 250,000, at equal CPU time)."""
ENOUGH_ROWS = 32_000
"""Exchanges that need not wait for more: a window of small messages has somewhat more. Alone, its numbers become
columns as they stand; those of two windows would be copied together first, each in fresh memory."""
ALONE_BYTES = 4 << 20
"""A message from this size on is a row group of its own: Parquet unpacks a group's column whole, and whoever looks for
one beside it waits for all of it."""
PENDING_TABLES = 2
"""Tables on their way beside those that threads are at work on, each a row group: memory is bounded by them, and the
reader seldom waits."""
MOST_WRITERS = 8
"""Threads that make and store tables. Rows of one file are stored one after the other, and a dataset has at most five
large tables."""

RANGED = frozenset(
    ("api_key", "error_code", "latency_us", "total_us", "offset", "base_offset", "request_bytes", "response_bytes")
)
"""Columns by whose range a query may pass over row groups, besides times."""
# fmt: off
LIKE = frozenset(
    (
        "acks", "base_sequence", "broker_us", "codec", "delivery_count", "diverging_offset", "generation", "group_id",
        "high_watermark", "hold_us", "isolation_level", "lag", "last_stable_offset", "leader_epoch", "log_start_offset",
        "magic", "max_wait_ms", "member_id", "min_bytes", "muted_us", "network_us", "preferred_replica",
        "producer_epoch", "producer_id", "queue_us", "rack_id", "reason", "record_bytes", "record_count",
        "request_state", "status", "throttle_us", "topic_id",
    )
)
# fmt: on
"""Columns that often have one value in all rows of a group, or none: then nobody needs to read it (`findings`)."""

RANGED_OF = {"journeys": ("base_offset", "kind", "sent")}
"""All such columns of a table whose times rise together."""

# fmt: off
FEW_TEXTS = frozenset(
    (
        "api", "broker_ip", "capture", "cause", "codec", "error", "kind", "offset_kind", "outcome", "request_file",
        "request_state", "response_file", "response_state", "side", "status", "timestamp_type",
    )
)
# fmt: on
"""Columns of texts of which there are few: a row group has each once, which compression makes no smaller."""

_MANY = (
    "_packet",
    "_offset",
    "exchange",
    "reply",
    "_port",
    "_us",
    "_bytes",
    "offset",
    "batch",
    "correlation_id",
    "crc",
    "high_watermark",
    "lag",
    "record_count",
)
"""How names of columns of integers end that have many values."""

LazyTable: TypeAlias = "pa.Table | Callable[[], pa.Table]"
"""Rows of a table, or what makes them: it is called once, in some thread."""


def as_table(rows: LazyTable) -> pa.Table:
    """Return the table; make it now if it is not there yet."""
    return rows() if callable(rows) else rows


def tables_of(rows: Iterable[tuple[str, LazyTable]]) -> Iterator[tuple[str, pa.Table]]:
    """Make the tables of (name of a table, rows)."""
    for name, lazy in rows:
        yield name, as_table(lazy)


@dataclass(slots=True)
class _Rows:
    """Rows on their way; `making`: a thread may have taken it upon itself to make them."""

    rows: LazyTable
    making: Future[pa.Table] | None = None

    def table(self) -> pa.Table:
        """The table. Nobody waits for a thread that has not begun."""
        return as_table(self.rows) if self.making is None or self.making.cancel() else self.making.result()


@dataclass(slots=True)
class _File:
    """One table's file. `empty`: a table without rows, which becomes the file if no other comes: strings that have
    numbers (dictionaries) are another type than those of it. `stored`: rows in the file; `busy`: a thread stores what
    waits, and goes on while there is more."""

    path: Path
    options: dict[str, Any]
    empty: pa.Table | None = None
    writer: pyarrow.parquet.ParquetWriter | None = None
    stored: int = 0
    waiting: deque[_Rows] = field(default_factory=deque)
    busy: bool = False

    def make(self) -> None:
        """A file that is its owner's alone."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))

    def store(self, table: pa.Table) -> None:
        if not len(table):
            self.empty = table
            return
        writer = self._begun(table)
        # Windows end where they do: a table goes whole up to twice the size, lest a small rest make a group.
        for part in _groups(table):
            writer.write_table(part, 2 * ROW_GROUP_ROWS)
        self.stored += len(table)

    def finish(self) -> bool:
        """Write the file's end. Returns False if it was given no table."""
        if self.writer is None and self.empty is None:
            return False
        self._begun(self.empty).close()
        return True

    def _begun(self, table: pa.Table | None) -> pyarrow.parquet.ParquetWriter:
        """Return the writer, made for tables like this one if there is none."""
        if self.writer is None and table is not None:
            self.writer = pyarrow.parquet.ParquetWriter(self.path, table.schema, **self.options)
        return self.writer


class TableFiles:
    """Parquet files in `folder`, one a table, named by `label`, made by so many threads (`writers`). Tasks on other
    machines write them too: what `close` says of them makes them part of a dataset (`Writer.adopt`)."""

    def __init__(self, folder: Path, label: str, writers: int = 1) -> None:
        self._folder = folder
        self._label = label
        self._files: dict[str, _File] = {}
        writers = max(1, min(writers, MOST_WRITERS))
        self._pool = ThreadPoolExecutor(max_workers=writers, thread_name_prefix="kwire-parquet")
        self._room = threading.Semaphore(PENDING_TABLES + writers - 1)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def write(self, name: str, rows: LazyTable) -> None:
        """Add rows to a table, as one row group (or several where they are many)."""
        self._raise_failure()
        file = self._files.get(name)
        if file is None:
            path = self._folder / name / f"part-{self._label}.parquet"
            file = self._files[name] = _File(path, _options(name))
            file.make()
        if not callable(rows) and not len(rows):
            file.empty = rows  # a file without rows is one too
            return
        self._room.acquire()
        coming = _Rows(rows, self._pool.submit(rows) if callable(rows) else None)
        with self._lock:
            file.waiting.append(coming)
            if file.busy:
                return
            file.busy = True
        self._pool.submit(self._store, file)

    def _store(self, file: _File) -> None:
        """Store what waits for a file, in order, until nothing does."""
        while True:
            with self._lock:
                if not file.waiting:
                    file.busy = False
                    return
                rows = file.waiting.popleft()
            try:
                if self._failure is None:
                    file.store(rows.table())
            except BaseException as failure:
                self._failure = self._failure or failure
            finally:
                self._room.release()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> list[dict[str, Any]]:
        """Finish the files; what the manifest says of each."""
        self._pool.shutdown()
        self._raise_failure()
        files: list[dict[str, Any]] = []
        for name, file in self._files.items():
            if not file.finish():
                continue
            sync(file.path)
            entry = {"table": name, "path": f"{name}/{file.path.name}", "rows": file.stored}
            files.append({**entry, "size": file.path.stat().st_size})
        return files

    def abandon(self) -> None:
        """Take the files away."""
        self._failure = self._failure or RuntimeError("abandoned")  # what waits is stored no more
        self._pool.shutdown(cancel_futures=True)
        for file in self._files.values():
            with contextlib.suppress(Exception):
                if file.writer is not None:
                    file.writer.close()
            with contextlib.suppress(OSError):
                file.path.unlink()


def _groups(table: pa.Table) -> Iterator[pa.Table]:
    """A table's rows in order; what is large stands alone."""
    large: set[int] = set()
    for column in table.columns:
        if column.type == pa.binary() and column.nbytes >= ALONE_BYTES:
            import pyarrow.compute as pc

            large.update(pc.indices_nonzero(pc.greater_equal(pc.binary_length(column), ALONE_BYTES)).to_pylist())
    start = 0
    for at in sorted(large):
        if start < at:
            yield table.slice(start, at - start)
        yield table.slice(at, 1)
        start = at + 1
    if start < len(table):
        yield table.slice(start)


def _options(name: str) -> dict[str, Any]:
    """How a table is stored. Times and counters rise slowly, and durations and sizes have many values: differences take
    a fraction of their size, and less time than finding each value among those there were. Least and greatest value of
    each row group are kept where a query may pass over groups by them. Few large batches: each costs the encoders a
    start. Compressed are texts alone: encoded numbers would lose a tenth, and each page costs a compressor's start, a
    quarter of the time to write."""
    schema = tables.schema(name)
    leaves = [leaf for column in schema for leaf in _leaves(column.name, column.type)]
    deltas = {
        path: "DELTA_BINARY_PACKED"
        for path, kind in leaves
        if pa.types.is_timestamp(kind) or (pa.types.is_integer(kind) and path.endswith(_MANY))
    }
    usual = (column.name for column in schema if pa.types.is_timestamp(column.type) or column.name in RANGED | LIKE)
    ranged = [*RANGED_OF.get(name, usual)]
    texts = [
        path
        for path, kind in leaves
        if kind == pa.binary() or (kind == pa.string() and path.rpartition(".")[2] not in FEW_TEXTS)
    ]
    return {
        "compression": dict.fromkeys(texts, "zstd"),
        "compression_level": dict.fromkeys(texts, 1),
        # Readers take half as long over topics that have numbers.
        "use_dictionary": [path for path, kind in leaves if path not in deltas and kind != pa.binary()],
        "column_encoding": deltas,
        "store_schema": False,  # else readers would see our dictionaries instead of plain strings
        "write_statistics": ranged,
        "write_batch_size": 2 * ROW_GROUP_ROWS,
    }


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Return what a column, or a part of one, holds: the path of each in Parquet, and its type."""
    if pa.types.is_struct(kind):
        for part in kind:
            yield from _leaves(f"{path}.{part.name}", part.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def sync(file: Path) -> None:
    """Force what was written to a file onto the disk."""
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())
