"""Where rules read: tables of a dataset by capture point, chosen columns only.

In: tables in memory, or Parquet files, of a dataset or of one that is being written. Out: `Table`s, whose columns come
as NumPy arrays. Rules: files are read row group by row group into arrays of their final size, so that what is held is
what was asked for; a column that an older dataset lacks is null.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from analyzer.dataset import tables
from analyzer.dataset.dataset import Dataset, StoredDataset, readable
from analyzer.findings.columns import NULL, Columns, Filled, fill
from analyzer.frame.grouping import grouped

KEPT_ROWS: Final = 3_000_000
"""Rows of a table up to which its columns are kept once they are read: 24 MB each."""

_AHEAD: Final = 2
"""Row groups that are read while one is taken."""

SMALL_ROWS: Final = 10_000
"""Rows of a table up to which all of its columns are read at once: every start of a reader costs a millisecond."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group (or a chunk of a table in memory) and the capture points that have rows in it."""

    where: tuple[Path, int] | int
    rows: int
    captures: tuple[str, ...]


@dataclass
class Source:
    """The tables of a dataset. `captures`: the entries of its capture points, and `unrecognised`: its connections
    without Kafka, as the manifest lists both."""

    parts: Mapping[str, pa.Table | Sequence[Path]]
    captures: Sequence[Mapping[str, Any]]
    unrecognised: Sequence[Mapping[str, Any]] = ()
    name: str = ""
    kept: Mapping[str, Columns] = field(default_factory=dict)
    """Columns of large tables of the only capture point, which need not be read."""
    _groups: dict[str, list[_Group]] = field(default_factory=dict)
    _files: dict[Path, tuple[Any, dict[str, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Dataset | StoredDataset) -> Source:
        """A dataset's tables."""
        if isinstance(dataset, Dataset):
            return cls(dataset.tables, dataset.captures, dataset.unrecognised.get("listed", ()))
        files: dict[str, list[Path]] = {}
        for entry in dataset.manifest["files"]:
            files.setdefault(entry["table"], []).append(dataset.path / entry["path"])
        return cls(files, dataset.captures, dataset.manifest["unrecognised"]["listed"], str(dataset.path))

    def groups(self, table: str) -> list[_Group]:
        """The row groups of a table."""
        if table not in self._groups:
            self._groups[table] = list(self._look(table))
        return self._groups[table]

    def _look(self, table: str) -> Iterator[_Group]:
        part = self.parts.get(table, ())
        if isinstance(part, pa.Table):
            start = 0  # in rows: chunks of other columns may be others
            for chunk in part.column("capture").chunks:
                if len(chunk):
                    yield _Group(start, len(chunk), self._captures_in(chunk))
                start += len(chunk)
            return
        for path in part:
            with readable(self.name, f"{table}/{path.name}"):
                file, _ = self._file(table, path)
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    if rows:
                        column = file.read_row_group(group, columns=["capture"]).column(0) if self._several else None
                        yield _Group((path, group), rows, self._captures_in(column))

    @property
    def _several(self) -> bool:
        return len(self.captures) > 1

    def _captures_in(self, column: Any) -> tuple[str, ...]:
        """Of which capture points a row group is. Where there is one, PyArrow's functions need not be loaded."""
        if self._several:
            return tuple(column.unique().to_pylist())
        return tuple(entry["name"] for entry in self.captures)

    def _file(self, table: str, path: Path) -> tuple[Any, dict[str, int]]:
        """A file, open, and the columns that it has, with the place in it of those that are no lists."""
        if path not in self._files:
            metadata = pyarrow.parquet.read_metadata(path)
            there = dict.fromkeys(metadata.schema.to_arrow_schema().names, -1)
            for place in range(metadata.num_columns):
                if (path_in_file := metadata.schema.column(place).path) in there:
                    there[path_in_file] = place
            strings = [column.name for column in tables.TABLES[table] if column.type == pa.string()]
            coded = [name for name in strings if name in there]
            self._files[path] = pyarrow.parquet.ParquetFile(path, metadata=metadata, read_dictionary=coded), there
        return self._files[path]

    def read(self, table: str, capture: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of a capture point's rows, a row group at a time, in order."""
        for group in self.groups(table):
            if capture in group.captures:
                yield self.piece(table, group, capture, columns)

    def constants(self, table: str, group: _Group, columns: Iterable[str]) -> dict[str, int | str | None]:
        """Those of these columns that have one value in all rows of a row group, as its statistics say: they need not
        be read. None: it has none in any row."""
        if isinstance(group.where, int) or len(group.captures) > 1:
            return {}
        path, number = group.where
        found: dict[str, int | str | None] = {}
        with readable(self.name, f"{table}/{path.name}"):
            file, there = self._file(table, path)
            about = file.metadata.row_group(number)
            for name in columns:
                if there.get(name, -1) < 0 or name in _times(table):
                    continue
                said = about.column(there[name]).statistics
                if said is None or not said.has_null_count:
                    continue
                if said.null_count == group.rows:
                    found[name] = None
                elif not said.null_count and said.has_min_max and said.min == said.max:
                    found[name] = said.min
        return found

    def most(self, table: str, group: _Group, column: str) -> int | None:
        """The greatest value of a column of integers in a row group, as its statistics say; NULL: it has none in any
        row. None: they do not say it."""
        if isinstance(group.where, int) or len(group.captures) > 1:
            return None
        path, number = group.where
        with readable(self.name, f"{table}/{path.name}"):
            file, there = self._file(table, path)
            if there.get(column, -1) < 0 or column in _times(table):
                return None
            said = file.metadata.row_group(number).column(there[column]).statistics
            if said is None:
                return None
            if said.has_null_count and said.null_count == group.rows:
                return NULL
            return int(said.max) if said.has_min_max else None

    def piece(self, table: str, group: _Group, capture: str, columns: Sequence[str]) -> pa.Table:
        """One row group of it."""
        wanted = [*columns, *(["capture"] if len(group.captures) > 1 else ())]
        if isinstance(group.where, int):
            part = self.parts[table]
            assert isinstance(part, pa.Table)
            read = part.select(wanted).slice(group.where, group.rows)
        else:
            path, number = group.where
            with readable(self.name, f"{table}/{path.name}"):
                file, there = self._file(table, path)
                read = file.read_row_group(number, columns=[name for name in wanted if name in there])
            for name in wanted:
                if name not in there:
                    read = read.append_column(name, pa.nulls(group.rows, tables.schema(table).field(name).type))
        if len(group.captures) > 1:
            import pyarrow.compute as pc

            read = read.filter(pc.equal(read.column("capture").cast(pa.string()), capture))
        return read.select(list(columns))


@functools.cache
def _times(table: str) -> frozenset[str]:
    """Columns of times: PyArrow needs Pandas to say the least and the greatest of them."""
    return frozenset(column.name for column in tables.TABLES[table] if pa.types.is_timestamp(column.type))


_Coming: TypeAlias = "tuple[_Group, Mapping[str, int | str | None], Future[pa.Table] | None]"
"""A row group, columns that have one value in it, and the others, where there are some."""


class Table:
    """A capture point's rows of one table."""

    def __init__(self, source: Source, capture: str, name: str) -> None:
        self._source = source
        self._capture = capture
        self.name = name
        self._held = source.kept.get(name)
        self.length = self._held.rows if self._held is not None else int(self._ends[-1])
        self._kept: dict[str, Any] = {}
        self._whole: list[pa.Table] | None = None

    def __len__(self) -> int:
        return self.length

    @property
    def held(self) -> bool:
        """Some of its columns were kept while it was written."""
        return self._held is not None

    @functools.cached_property
    def _groups(self) -> list[_Group]:
        return [group for group in self._source.groups(self.name) if self._capture in group.captures]

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """int64[groups + 1]: where the rows of each begin."""
        shared = any(len(group.captures) > 1 for group in self._groups)
        sizes = [len(part) for part in self._read(["capture"])] if shared else [group.rows for group in self._groups]
        return np.cumsum([0, *sizes])

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns, a row group at a time."""
        if self.length > SMALL_ROWS:
            yield from self._read(columns)
            return
        if self._whole is None:
            self._whole = list(self._read([column.name for column in tables.TABLES[self.name]]))
        yield from (part.select(list(columns)) for part in self._whole)

    def _read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for group in self._groups:
            yield self._source.piece(self.name, group, self._capture, columns)

    def numbers(self, column: str, dtype: Any = np.int64) -> np.ndarray:
        """A column of integers, times (us) or truths: dtype[rows], the least value of the type where null."""
        key = _key(column, dtype)
        if key in self._kept:
            kept: np.ndarray = self._kept[key]
            return kept
        out: np.ndarray = self.gather({column: dtype})[column]
        self._keep(key, out)
        return out

    def most(self, column: str) -> int:
        """The greatest value of a column of integers, NULL where there is none: without reading it, where its files say
        so."""
        kept = None if self._held is None else self._held.most(column)
        if kept is not None:
            return kept
        said = [self._source.most(self.name, group, column) for group in self._groups]
        if self.length <= SMALL_ROWS or _key(column, np.int64) in self._kept or None in said:
            return int(self.numbers(column).max(initial=NULL))
        return max((one for one in said if one is not None), default=NULL)

    def codes(self, column: str, known: dict[str, int] | None = None) -> tuple[np.ndarray, list[str]]:
        """A column of strings as int32[rows] (-1 where null) and the strings. `known`: numbers that some have."""
        if known is None and column in self._kept:
            found: tuple[np.ndarray, list[str]] = self._kept[column]
            return found
        result: tuple[np.ndarray, list[str]] = self.gather({}, {column: known or {}})[column]
        if known is None:
            self._keep(column, result)
        return result

    def load(self, numbers: Mapping[str, Any], codes: Sequence[str] = ()) -> None:
        """Read columns that are going to be asked for, numbers with their types, where they can be kept."""
        if 0 < self.length <= KEPT_ROWS:
            for column, values in self.gather(numbers, {name: {} for name in codes}).items():
                self._kept[column if column in codes else _key(column, numbers[column])] = values

    def together(self, columns: Sequence[str]) -> list[np.ndarray]:
        """`numbers` of several columns, as int64, read in one pass."""
        wanted = {name: np.int64 for name in columns if _key(name, np.int64) not in self._kept}
        found = self.gather(wanted) if wanted else {}
        for name, values in found.items():
            self._keep(_key(name, np.int64), values)
        return [found[name] if name in found else self._kept[_key(name, np.int64)] for name in columns]

    def take(self, numbers: Mapping[str, Any], codes: Sequence[str]) -> dict[str, Any]:
        """Columns that are asked for once, in one pass; those that were read already are not kept any longer."""
        kept = {name: self._kept.pop(name) for name in codes if name in self._kept}
        kept |= {name: self._kept[key] for name in numbers if (key := _key(name, numbers[name])) in self._kept}
        rest = {name: dtype for name, dtype in numbers.items() if name not in kept}
        text: dict[str, dict[str, int]] = {name: {} for name in codes if name not in kept}
        return kept | (self.gather(rest, text) if rest or text else {})

    def gather(
        self, numbers: Mapping[str, Any], codes: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Columns as `numbers` (each with its type) and as `codes` (each with the numbers that are known) give them,
        in one pass: every start of a reader costs, and columns that are read together are read by several threads."""
        found: dict[str, Any] = {}
        held = self._held
        if held is not None:
            found = {name: held.whole(name) for name, dtype in numbers.items() if held.has(name, np.dtype(dtype))}
            for name in (name for name in codes if not codes[name] and held.has(name, np.dtype(np.int32))):
                found[name] = held.whole(name), held.strings(name)
        out = {name: Filled(self.length, np.dtype(numbers[name])) for name in numbers if name not in found}
        out |= {name: Filled(self.length, np.dtype(np.int32), dict(codes[name])) for name in codes if name not in found}
        self._put_stored(out)
        whole = {name: column.whole() for name, column in out.items()}
        return found | {
            name: values if name in numbers else (values, list(out[name].known)) for name, values in whole.items()
        }

    def _put_stored(self, out: Mapping[str, Filled]) -> None:
        """Columns as they are stored."""
        if self.length <= SMALL_ROWS:
            for part in self.read(tuple(out)) if out else ():
                fill(out, part)
            return
        for group, one_value, read in self._ahead(tuple(out)) if out else ():
            for name, value in one_value.items():
                out[name].repeat(value, group.rows)
            if read is not None:
                fill(out, read.result())

    def _ahead(self, columns: Sequence[str]) -> Iterator[_Coming]:
        """Row groups with those columns that have one value there, and the others, which a thread reads meanwhile."""
        coming: deque[_Coming] = deque()
        with ThreadPoolExecutor(1, "kwire-read") as reader:
            for group in self._groups:
                one_value = self._source.constants(self.name, group, columns)
                rest = [name for name in columns if name not in one_value]
                read = reader.submit(self._source.piece, self.name, group, self._capture, rest) if rest else None
                coming.append((group, one_value, read))
                if len(coming) > _AHEAD:
                    yield coming.popleft()
            yield from coming

    def _keep(self, key: str, value: Any) -> None:
        if self.length <= KEPT_ROWS:
            self._kept[key] = value

    def rows(self, chosen: np.ndarray | Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Chosen rows as dictionaries, in the order given; times as us."""
        order = np.asarray(chosen, np.int64)
        out: list[dict[str, Any]] = [{}] * len(order)
        for places, some in self.some(order, columns):
            for place, row in zip(places.tolist(), _plain(some).to_pylist(), strict=True):
                out[place] = row
        return out

    def some(self, chosen: np.ndarray, columns: Sequence[str]) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Chosen rows, of one row group at a time: where they stand among those chosen, and they."""
        group_of = (np.searchsorted(self._ends, chosen, side="right") - 1).astype(np.int32)
        order, starts, ends = grouped(group_of)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            places = order[start:end]
            number = int(group_of[places[0]])
            part = self._source.piece(self.name, self._groups[number], self._capture, columns)
            yield places, part.take(pa.array(chosen[places] - self._ends[number]))

    def every(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """All rows, of a table that is small; times as us."""
        wanted = list(columns or (column.name for column in tables.TABLES[self.name]))
        return [row for part in self.read(wanted) for row in _plain(part).to_pylist()]


def _key(column: str, dtype: Any) -> str:
    return f"{column}:{np.dtype(dtype)}"


def _plain(table: pa.Table) -> pa.Table:
    """Times as integers of us."""
    for at, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            plain = [chunk.view(pa.int64()) for chunk in table.column(at).chunks]
            table = table.set_column(at, column.name, pa.chunked_array(plain, pa.int64()))
    return table
