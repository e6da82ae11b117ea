"""Rows of a table that convert to Python objects column by column, when a cell is first used.

In: a table. Out: `Row`s, equal to those of `to_pylist`, and tables made of rows. Most callers read a few cells of a
row, and a dict of all cells takes longer than reading the table. Rows are converted in parts; equal strings of a part
are one object, and a row keeps only the columns of its part alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables

ROWS: Final = 1024
"""Rows of a part, which stay in memory as long as one of them does."""


class Part:
    """Some rows of a table, in memory of their own. Strings may come as dictionaries."""

    __slots__ = ("_micros", "batch", "columns")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.columns: dict[str, list[Any]] = {}
        """Columns that were converted."""
        self._micros: dict[str, list[int | None]] = {}

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __reduce__(self) -> tuple[type[Part], tuple[pa.RecordBatch]]:
        return Part, (self.batch,)

    def rows(self) -> list[Row]:
        """All rows of the part."""
        return [Row(self, at) for at in range(len(self))]

    def column(self, name: str) -> list[Any]:
        """A column as `to_pylist` gives it. Raises KeyError."""
        values = self.columns.get(name)
        if values is None:
            values = self.columns[name] = _objects(self.batch.column(name))
        return values

    def micros(self, name: str) -> list[int | None]:
        """A column of times as microseconds since 1970. Raises KeyError."""
        values = self._micros.get(name)
        if values is None:
            values = self._micros[name] = compute.cast(self.batch.column(name), pa.int64()).to_pylist()
        return values


def _objects(values: pa.Array) -> list[Any]:
    if pa.types.is_list(values.type) and pa.types.is_dictionary(values.type.value_type):
        values = compute.cast(values, pa.list_(values.type.value_type.value_type))
    if not pa.types.is_dictionary(values.type):
        return list(values.to_pylist())
    few = [*values.dictionary.to_pylist(), None]
    return [few[-1 if at is None else at] for at in values.indices.to_pylist()]


class Row(Mapping[str, Any]):
    """A row of a part."""

    __slots__ = ("at", "part")

    def __init__(self, part: Part, at: int) -> None:
        self.part = part
        self.at = at

    def __getitem__(self, name: str) -> Any:
        columns = self.part.columns
        return (columns[name] if name in columns else self.part.column(name))[self.at]

    def __iter__(self) -> Iterator[str]:
        return iter(self.part.batch.schema.names)

    def __len__(self) -> int:
        return int(self.part.batch.num_columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    def micros(self, name: str) -> int | None:
        """A time in microseconds since 1970."""
        return self.part.micros(name)[self.at]


def parts(table: pa.Table) -> Iterator[Part]:
    """All rows of a table, in order, in memory of their own: what is put together is copied."""
    for batch in table.to_batches(max_chunksize=ROWS):
        copies = [pa.concat_arrays([column, column[:0]]) for column in batch.columns]
        yield Part(pa.RecordBatch.from_arrays(copies, schema=batch.schema))


def table(rows: Sequence[Mapping[str, Any]], name: str, wanted: Sequence[str] | None = None) -> pa.Table:
    """Rows of one of `tables.TABLES`, each a `Row` or a dict (in which columns may be missing), as a table with the
    contract's plain types: of all columns, or of some."""
    schema = tables.schema(name)
    if wanted is not None:
        schema = pa.schema([schema.field(column) for column in wanted])
    batches: list[pa.RecordBatch] = []
    loose = [row for row in rows if type(row) is not Row]
    if loose:
        batches.append(pa.RecordBatch.from_pylist(loose, schema=schema))
    if len(loose) == len(rows):
        return pa.Table.from_batches(batches, schema)
    first: dict[Part, int] = {}
    count, seen = len(loose), 0
    places = []
    for row in rows:
        if type(row) is Row:
            at = first.get(row.part)
            if at is None:
                at = first[row.part] = count
                count += len(row.part)
                batches.append(row.part.batch.select(schema.names))
            places.append(at + row.at)
        else:
            places.append(seen)
            seen += 1
    if len({batch.schema for batch in batches}) > 1:
        batches = [tables.cast(batch, schema) for batch in batches]
    rows = compute.take(pa.Table.from_batches(batches).unify_dictionaries(), np.array(places, np.int64))
    return tables.cast(rows, schema)
