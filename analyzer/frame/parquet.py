"""Read chosen columns of a dataset's tables, by capture point.

In: tables in memory, or Parquet files of a dataset, of a finished one or of one that is being written. Out: frames.
Files are read row group by row group into arrays of their final size, statistics first, so that only the result takes
memory; a column that an older dataset lacks is null.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset, StoredDataset, readable
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.columns import CachedColumns, ColumnBuilder, append_rows
from kwire.analyzer.frame.frame import NULL, Codes, Column, Frame, Lists
from kwire.analyzer.frame.grouping import group

CACHED_ROWS: Final = 3_000_000
"""Rows of a table up to which its columns are cached once they are read: 24 MB each."""

_READ_AHEAD: Final = 2
"""Row groups that are read while one is used."""

SMALL_ROWS: Final = 10_000
"""Rows of a table up to which all of its columns are read at once: every start of a reader costs a millisecond."""


class RowGroup(NamedTuple):
    """A row group of a file, or a chunk of a table in memory (its first row), and the capture points that have rows in
    it."""

    where: tuple[Path, int] | int
    rows: int
    captures: tuple[str, ...]


@dataclass
class RowGroups:
    """The tables of a dataset. `captures`: the entries of its capture points, and `unrecognised`: its connections
    without Kafka, as the manifest lists both; `cached`: columns of large tables, of the only capture point, that need
    not be read."""

    parts: Mapping[str, pa.Table | Sequence[Path]]
    captures: Sequence[Mapping[str, Any]]
    unrecognised: Sequence[Mapping[str, Any]] = ()
    name: str = ""
    cached: Mapping[str, CachedColumns] = field(default_factory=dict)
    _groups: dict[str, list[RowGroup]] = field(default_factory=dict)
    _files: dict[Path, tuple[Any, dict[str, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Dataset | StoredDataset) -> RowGroups:
        """The tables of a dataset."""
        if isinstance(dataset, Dataset):
            return cls(dataset.tables, dataset.captures, dataset.unrecognised.get("listed", ()))
        files: dict[str, list[Path]] = {}
        for entry in dataset.manifest["files"]:
            files.setdefault(entry["table"], []).append(dataset.path / entry["path"])
        return cls(files, dataset.captures, dataset.manifest["unrecognised"]["listed"], str(dataset.path))

    def groups(self, table: str) -> list[RowGroup]:
        """The row groups of a table."""
        if table not in self._groups:
            self._groups[table] = list(self._find_groups(table))
        return self._groups[table]

    def _find_groups(self, table: str) -> Iterator[RowGroup]:
        part = self.parts.get(table, ())
        if isinstance(part, pa.Table):
            start = 0  # in rows: chunks of other columns may be others
            for chunk in part.column("capture").chunks:
                if len(chunk):
                    yield RowGroup(start, len(chunk), self._captures_in(chunk))
                start += len(chunk)
            return
        for path in part:
            with readable(self.name, f"{table}/{path.name}"):
                file, _ = self._file(table, path)
                for number in range(file.num_row_groups):
                    rows = file.metadata.row_group(number).num_rows
                    if rows:
                        column = file.read_row_group(number, columns=["capture"]).column(0) if self._several else None
                        yield RowGroup((path, number), rows, self._captures_in(column))

    @property
    def _several(self) -> bool:
        return len(self.captures) > 1

    def _captures_in(self, column: Any) -> tuple[str, ...]:
        """The capture points in a row group. Where there is one, PyArrow's functions need not be loaded."""
        if self._several:
            return tuple(column.unique().to_pylist())
        return tuple(entry["name"] for entry in self.captures)

    def _file(self, table: str, path: Path) -> tuple[Any, dict[str, int]]:
        """An open file, and its columns with their position in it, -1 for lists."""
        if path not in self._files:
            metadata = pyarrow.parquet.read_metadata(path)
            positions = dict.fromkeys(metadata.schema.to_arrow_schema().names, -1)
            kinds = {column.name: column.type for column in tables.TABLES[table] if column.name in positions}
            texts = {name for name, kind in kinds.items() if kind in (pa.string(), pa.list_(pa.string()))}
            encoded = []
            for position in range(metadata.num_columns):
                column_path = metadata.schema.column(position).path
                if column_path in positions:
                    positions[column_path] = position
                if column_path.partition(".")[0] in texts:
                    encoded.append(column_path)
            self._files[path] = pyarrow.parquet.ParquetFile(path, metadata=metadata, read_dictionary=encoded), positions
        return self._files[path]

    def _statistics(self, table: str, row_group: RowGroup, columns: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield columns of a row group, all rows of which are of one capture point, with their statistics."""
        if isinstance(row_group.where, int) or len(row_group.captures) > 1:
            return
        path, number = row_group.where
        with readable(self.name, f"{table}/{path.name}"):
            file, positions = self._file(table, path)
            metadata = file.metadata.row_group(number)
            for name in columns:
                if positions.get(name, -1) >= 0 and name not in _times(table):
                    statistics = metadata.column(positions[name]).statistics
                    if statistics is not None:
                        yield name, statistics

    def constants(self, table: str, row_group: RowGroup, columns: Iterable[str]) -> dict[str, int | str | None]:
        """Columns that have one value in all rows of a row group, by statistics, so that they need not be read. None:
        all rows are null."""
        values: dict[str, int | str | None] = {}
        for name, statistics in self._statistics(table, row_group, columns):
            if not statistics.has_null_count:
                continue
            if statistics.null_count == row_group.rows:
                values[name] = None
            elif not statistics.null_count and statistics.has_min_max and statistics.min == statistics.max:
                values[name] = statistics.min
        return values

    def greatest(self, table: str, row_group: RowGroup, column: str) -> int | None:
        """The greatest value of an integer column in a row group, by statistics; NULL if all rows are null. None:
        unknown."""
        for _, statistics in self._statistics(table, row_group, [column]):
            if statistics.has_null_count and statistics.null_count == row_group.rows:
                return NULL
            if statistics.has_min_max:
                return int(statistics.max)
        return None

    def read_group(self, table: str, row_group: RowGroup, capture: str | None, columns: Sequence[str]) -> pa.Table:
        """Read columns of a capture point's rows in a row group; None: of all rows."""
        is_shared = capture is not None and len(row_group.captures) > 1
        wanted = [*columns, *(["capture"] if is_shared and "capture" not in columns else ())]
        if isinstance(row_group.where, int):
            part = self.parts[table]
            assert isinstance(part, pa.Table)
            rows = part.select(wanted).slice(row_group.where, row_group.rows)
        else:
            path, number = row_group.where
            with readable(self.name, f"{table}/{path.name}"):
                file, positions = self._file(table, path)
                rows = file.read_row_group(number, columns=[name for name in wanted if name in positions])
            for name in wanted:
                if name not in positions:
                    rows = rows.append_column(name, pa.nulls(row_group.rows, tables.schema(table).field(name).type))
        if is_shared:
            import pyarrow.compute as pc

            rows = rows.filter(pc.equal(rows.column("capture").cast(pa.string()), capture))
        return rows.select(list(columns))


@functools.cache
def _times(table: str) -> frozenset[str]:
    """The columns of times, of which PyArrow needs Pandas to return the least and the greatest."""
    return frozenset(column.name for column in tables.TABLES[table] if pa.types.is_timestamp(column.type))


_PendingGroup: TypeAlias = "tuple[RowGroup, Mapping[str, int | str | None], Future[pa.Table] | None]"
"""A row group, its columns of one value, and the other columns, if there are any."""


def read(row_groups: RowGroups, table: str, columns: Sequence[str] = (), capture: str | None = None) -> StoredFrame:
    """Return a table's rows, of one capture point or of all; `columns` are read in one pass, others when they are
    used."""
    frame = StoredFrame(row_groups, capture, table)
    types = {column.name: column.type for column in tables.TABLES[table]}
    frame.load(
        {name: np.int64 for name in columns if types[name] != pa.string() and not pa.types.is_list(types[name])},
        [name for name in columns if types[name] == pa.string()],
    )
    return frame


class StoredFrame(Frame):
    """A stored table's rows, of one capture point or (None) of all."""

    def __init__(self, row_groups: RowGroups, capture: str | None, name: str) -> None:
        self._source = row_groups
        self._capture = capture
        self.name = name
        self._cached = row_groups.cached.get(name)
        super().__init__(self._cached.rows if self._cached is not None else int(self._ends[-1]))
        self._numbers: dict[tuple[str, str], np.ndarray] = {}
        self._texts: dict[str, Codes] = {}
        self._whole: list[pa.Table] | None = None

    @property
    def is_cached(self) -> bool:
        """Whether some of its columns were cached while it was written."""
        return self._cached is not None

    @functools.cached_property
    def _groups(self) -> list[RowGroup]:
        groups = self._source.groups(self.name)
        return [group for group in groups if self._capture is None or self._capture in group.captures]

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """int64[groups + 1]: where the rows of each begin."""
        is_shared = self._capture is not None and any(len(group.captures) > 1 for group in self._groups)
        sizes = [len(part) for part in self._read(["capture"])] if is_shared else [g.rows for g in self._groups]
        return np.cumsum([0, *sizes])

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield columns, a row group at a time."""
        if self.length > SMALL_ROWS:
            yield from self._read(columns)
            return
        if self._whole is None:
            self._whole = list(self._read([column.name for column in tables.TABLES[self.name]]))
        yield from (part.select(list(columns)) for part in self._whole)

    def _read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for row_group in self._groups:
            yield self._source.read_group(self.name, row_group, self._capture, columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.numbers(name)

    def column(self, name: str) -> Column:
        """A column of any kind."""
        kind = tables.schema(self.name).field(name).type
        if pa.types.is_list(kind):
            return self.lists(name)
        return self.text(name) if pa.types.is_string(kind) else self.numbers(name)

    def numbers(self, column: str, dtype: Any = np.int64) -> np.ndarray:
        """A column of integers, times (us) or truths: dtype[rows], the least value of the type where null."""
        key = _key(column, dtype)
        if key not in self._numbers:
            values = self.gather({column: dtype})[column]
            if self.length > CACHED_ROWS:
                return values
            self._numbers[key] = values
        return self._numbers[key]

    def text(self, name: str) -> Codes:
        if name not in self._texts:
            column = self.gather({}, {name: {}}).text(name)
            if self.length > CACHED_ROWS:
                return column
            self._texts[name] = column
        return self._texts[name]

    def lists(self, name: str) -> Lists:
        """A column of lists, read anew each time; the elements of a list of text are the column `value`."""
        chunks = [chunk for part in self.read([name]) for chunk in part.column(0).chunks]
        lengths = [arrow.list_lengths(chunk) for chunk in chunks]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *lengths]))])
        elements = [arrow.list_elements(chunk) for chunk in chunks]
        kind = tables.schema(self.name).field(name).type.value_type
        fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {"value": kind}
        columns: dict[str, Column] = {}
        for field_name, field_type in fields.items():
            is_text = pa.types.is_string(field_type)
            dtype = np.dtype(np.int32 if is_text else np.int64)
            builder = ColumnBuilder(int(offsets[-1]), dtype, {} if is_text else None)
            for part in elements:
                builder.append(part.field(field_name) if pa.types.is_struct(kind) else part)
            columns[field_name] = Codes(builder.array(), list(builder.known)) if is_text else builder.array()
        return Lists(offsets, Frame(int(offsets[-1]), columns))

    def greatest(self, column: str) -> int:
        """The greatest value of an integer column, NULL if all rows are null; by statistics where files have them."""
        cached = None if self._cached is None else self._cached.greatest(column)
        if cached is not None:
            return cached
        is_read = self.length <= SMALL_ROWS or _key(column, np.int64) in self._numbers
        greatest = [] if is_read else [self._source.greatest(self.name, group, column) for group in self._groups]
        known = [value for value in greatest if value is not None]
        if is_read or len(known) < len(greatest):
            return int(self.numbers(column).max(initial=NULL))
        return max(known, default=NULL)

    def load(self, numbers: Mapping[str, Any], texts: Sequence[str] = ()) -> None:
        """Read columns that will be used, numbers with their types, in one pass, if they can be cached."""
        if 0 < self.length <= CACHED_ROWS and (numbers or texts):
            columns = self.gather(numbers, {name: {} for name in texts})
            self._numbers |= {_key(name, numbers[name]): columns[name] for name in numbers}
            self._texts |= {name: columns.text(name) for name in texts}

    def together(self, names: Sequence[str]) -> list[np.ndarray]:
        """Return several columns as int64, read in one pass."""
        wanted = {name: np.int64 for name in names if _key(name, np.int64) not in self._numbers}
        columns = self.gather(wanted)
        if self.length <= CACHED_ROWS:
            self._numbers |= {_key(name, np.int64): columns[name] for name in wanted}
        return [columns[name] if name in wanted else self._numbers[_key(name, np.int64)] for name in names]

    def pop(self, numbers: Mapping[str, Any], texts: Sequence[str]) -> Frame:
        """Return columns that are used once, read in one pass; texts among them are not cached any longer."""
        columns: dict[str, Column] = {name: self._texts.pop(name) for name in texts if name in self._texts}
        for name, dtype in numbers.items():
            if _key(name, dtype) in self._numbers:
                columns[name] = self._numbers[_key(name, dtype)]
        rest = {name: dtype for name, dtype in numbers.items() if name not in columns}
        return self.gather(rest, {name: {} for name in texts if name not in columns}).with_columns(**columns)

    def gather(
        self, numbers: Mapping[str, Any], texts: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    ) -> Frame:
        """Read columns in one pass: numbers with their types, texts with codes that are known. Every start of a reader
        costs, and columns that are read together are read by several threads."""
        columns: dict[str, Column] = {}
        cached = self._cached
        if cached is not None:
            columns |= {
                name: cached.array(name) for name, dtype in numbers.items() if cached.has(name, np.dtype(dtype))
            }
            for name in (name for name in texts if not texts[name] and cached.has(name, np.dtype(np.int32))):
                columns[name] = Codes(cached.array(name), cached.values(name))
        builders = {
            name: ColumnBuilder(self.length, np.dtype(dtype)) for name, dtype in numbers.items() if name not in columns
        }
        for name in (name for name in texts if name not in columns):
            builders[name] = ColumnBuilder(self.length, np.dtype(np.int32), dict(texts[name]))
        self._append_stored(builders)
        for name, builder in builders.items():
            columns[name] = builder.array() if name in numbers else Codes(builder.array(), list(builder.known))
        return Frame(self.length, columns)

    def _append_stored(self, builders: Mapping[str, ColumnBuilder]) -> None:
        """Append the stored rows."""
        if not builders:
            return
        if self.length <= SMALL_ROWS:
            for part in self.read(tuple(builders)):
                append_rows(builders, part)
            return
        for row_group, constants, rows in self._read_ahead(tuple(builders)):
            for name, value in constants.items():
                builders[name].repeat(value, row_group.rows)
            if rows is not None:
                append_rows(builders, rows.result())

    def _read_ahead(self, columns: Sequence[str]) -> Iterator[_PendingGroup]:
        """Yield row groups with their columns of one value, and the others, which a thread reads ahead."""
        pending: deque[_PendingGroup] = deque()
        with ThreadPoolExecutor(1, "kwire-read") as reader:
            for row_group in self._groups:
                constants = self._source.constants(self.name, row_group, columns)
                rest = [name for name in columns if name not in constants]
                arguments = (self.name, row_group, self._capture, rest)
                rows = reader.submit(self._source.read_group, *arguments) if rest else None
                pending.append((row_group, constants, rows))
                if len(pending) > _READ_AHEAD:
                    yield pending.popleft()
            yield from pending

    def rows(self, chosen: np.ndarray | Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return chosen rows as dictionaries, in the order given; times as us."""
        order = np.asarray(chosen, np.int64)
        out: list[dict[str, Any]] = [{}] * len(order)
        for positions, part in self.chosen(order, columns):
            for position, row in zip(positions.tolist(), _times_as_integers(part).to_pylist(), strict=True):
                out[position] = row
        return out

    def chosen(self, rows: np.ndarray, columns: Sequence[str]) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield chosen rows, of one row group at a time: their positions in `rows`, and their columns."""
        group_of = (np.searchsorted(self._ends, rows, side="right") - 1).astype(np.int32)
        for positions in group(group_of):
            number = int(group_of[positions[0]])
            part = self._source.read_group(self.name, self._groups[number], self._capture, columns)
            yield positions, compute.take(part, rows[positions] - self._ends[number])

    def every(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return all rows of a small table as dictionaries; times as us."""
        wanted = list(columns or (column.name for column in tables.TABLES[self.name]))
        return [row for part in self.read(wanted) for row in _times_as_integers(part).to_pylist()]


def _key(column: str, dtype: Any) -> tuple[str, str]:
    return column, np.dtype(dtype).str


def _times_as_integers(table: pa.Table) -> pa.Table:
    """Replace times by integers of us."""
    for position, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            chunks = [chunk.view(pa.int64()) for chunk in table.column(position).chunks]
            table = table.set_column(position, column.name, pa.chunked_array(chunks, pa.int64()))
    return table
