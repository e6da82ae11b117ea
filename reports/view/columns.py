"""Columns of exchanges as mapped files: what the page filters, sorts and counts.

In: the table `exchanges` of a dataset. Out: `Columns`, NumPy arrays over files of a folder, in order of the requests.
Rules: text is numbers of a list of distinct values, and lists are (`listed`); integers are as narrow as they fit, their
smallest number means null; the folder is complete when `columns.json` is there, which is written last. What is mapped
stays the system's to evict, so memory does not grow with the dataset.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from analyzer.dataset import tables
from analyzer.dataset.dataset import StoredDataset, readable
from analyzer.filter.names import ADDRESSES
from analyzer.frame.arrow import absent, numbers
from analyzer.frame.counting import blocks
from captures.kernels import NULL
from reports.view.list_columns import Listed, distinct, numbered

LAYOUT: Final = 2
"""Of the folder; another one is made again."""

LIST: Final = "columns.json"
TYPES: Final = {column.name: column.type for column in tables.EXCHANGES}
Ranges = dict[str, tuple[int, int] | None]
"""Of columns of numbers, the least and the greatest; None where there is none."""
LISTS: Final = ("topics", "errors")
INTEGERS: Final = tuple(name for name, kind in TYPES.items() if name not in LISTS and not pa.types.is_string(kind))
COUNT: Final = len(TYPES)
TEXTS: Final = tuple(name for name, kind in TYPES.items() if pa.types.is_string(kind))


@dataclass(frozen=True)
class Columns:
    """n exchanges by column. `integers`: times as microseconds since 1970; the smallest number of an array's type is
    null. `codes`: -1 is null, else which of `values`; `client` and `broker` are addresses, [ip, port]."""

    n: int
    integers: dict[str, np.ndarray]
    codes: dict[str, np.ndarray]
    values: dict[str, list[Any]]
    topics: Listed
    errors: Listed
    empty: frozenset[str] = frozenset()
    """Columns in which no exchange has a value: an older dataset's, or one without what traffic means."""
    _ranges: Ranges = field(default_factory=dict, init=False, repr=False)
    _whole: dict[str, bool] = field(default_factory=dict, init=False, repr=False)

    def integer(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A column's numbers, and bool[n] whether there is one."""
        values = self.integers[name]
        return values, values != np.iinfo(values.dtype).min

    def has_no_null(self, name: str) -> bool:
        """Has every exchange a number in a column? Looked for once."""
        if name not in self._whole:
            values = self.integers[name]
            least = np.iinfo(values.dtype).min
            self._whole[name] = not any((values[part] == least).any() for part in blocks(len(values)))
        return self._whole[name]

    def range(self, name: str) -> tuple[int, int] | None:
        """The least and the greatest number of a column; None where there is none. Looked for once."""
        if name not in self._ranges:
            values = self.integers[name]
            least, low, high = int(np.iinfo(values.dtype).min), [], []
            for part in blocks(len(values)):
                here = values[part]
                low.append(int(np.min(here, where=here != least, initial=np.iinfo(values.dtype).max)))
                high.append(int(here.max()))
            some = bool(high) and max(high) > least
            self._ranges[name] = (min(low), max(high)) if some else None
        return self._ranges[name]


# --- making -----------------------------------------------------------------------------------------------------------


def write_columns(
    dataset: StoredDataset,
    topic_name: Callable[[str], str],
    folder: Path,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the columns of a dataset; before each `told` is told how many are made, and may raise what ends it. Raises
    DatasetError where its files cannot be read, OSError where the folder cannot be written."""
    files = [dataset.path / entry["path"] for entry in dataset.manifest["files"] if entry["table"] == "exchanges"]
    with readable(dataset.path, "exchanges"):
        _make(_ParquetSource(files, progress), topic_name, folder)


def write_columns_of(rows: Sequence[pa.Table], topic_name: Callable[[str], str], folder: Path) -> None:
    """The same of rows of the table that are in no dataset yet. Raises OSError."""
    _make(_MemorySource(rows), topic_name, folder)


def _make(source: _TableSource, topic_name: Callable[[str], str], folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = _times(source, "request_time")
    late = first == _null(first)
    first[late] = _times(source, "response_time")[late]
    order = np.argsort(first, kind="stable")
    del first, late
    values: dict[str, list[Any]] = {}
    ranges: Ranges = {}
    for name in INTEGERS:
        numbers = _times(source, name)
        ranges[name] = _range(numbers)
        _save(folder, name, _narrow(numbers, ranges[name])[order])
    for name in TEXTS:
        codes, values[name] = _coded(source.column(name), str)
        _save(folder, name, _narrow_codes(codes, values[name])[order])
    for name, parts in ADDRESSES.items():
        codes, values[name] = _addresses(source, *parts)
        _save(folder, name, _narrow_codes(codes, values[name])[order])
    values["topics"] = _save_topics(folder, source, order, topic_name)
    _save_errors(folder, source, order)
    empty = [*(name for name in INTEGERS if ranges[name] is None), *(name for name in TEXTS if not values[name])]
    _list(folder, len(order), values, empty, ranges)


def _list(folder: Path, rows: int, values: dict[str, list[Any]], empty: list[str], ranges: Ranges) -> None:
    summary = {"layout": LAYOUT, "rows": rows, "values": values, "empty": empty, "ranges": ranges}
    _write(folder / LIST, json.dumps(summary).encode())


def complete(folder: Path) -> bool:
    """Whether the columns are all there, in the layout of this version."""
    try:
        return bool(json.loads((folder / LIST).read_bytes())["layout"] == LAYOUT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_columns(folder: Path) -> Columns:
    """The columns that `make` wrote. Raises OSError and ValueError where they are not what it wrote."""
    listed = json.loads((folder / LIST).read_bytes())
    n, values = listed["rows"], listed["values"]
    columns = Columns(
        n,
        {name: _load(folder, name) for name in INTEGERS},
        {name: _load(folder, name) for name in (*TEXTS, *ADDRESSES)},
        values,
        Listed(*(_load(folder, f"topics.{part}") for part in ("of", "ends", "code"))),
        Listed(*(_load(folder, f"errors.{part}") for part in ("of", "ends", "code", "count"))),
        frozenset(listed["empty"]),
    )
    # The page begins with the range of all times: to look for it takes as long as all else. (Older folders have none.)
    columns._ranges.update((name, span and (span[0], span[1])) for name, span in dict(listed.get("ranges", {})).items())
    arrays = (*columns.integers.values(), *columns.codes.values(), columns.topics.of, columns.errors.of)
    if any(len(array) != n for array in arrays):
        raise ValueError("columns of different lengths")
    return columns


def parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    """A file of exchanges; text comes as numbers of distinct values."""
    metadata = pyarrow.parquet.read_metadata(path)
    paths = (metadata.schema.column(i).path for i in range(len(metadata.schema)))
    texts = [path for path in paths if path in TEXTS or path.startswith("topics.")]
    return pyarrow.parquet.ParquetFile(path, memory_map=True, metadata=metadata, read_dictionary=texts)


class _TableSource:
    """The table's rows, a column at a time."""

    def pieces(self, name: str) -> list[Any]:
        """Arrays of a column, one behind the other."""
        raise NotImplementedError

    def column(self, name: str) -> Any:
        """A column as one array; text may be numbers of distinct values."""
        chunks = self.pieces(name)
        if not chunks:
            return pa.nulls(0, TYPES[name])
        if any(pa.types.is_dictionary(chunk.type) for chunk in chunks):
            chunks = [c if pa.types.is_dictionary(c.type) else c.dictionary_encode() for c in chunks]
            column = pa.chunked_array(chunks).unify_dictionaries()
        else:
            column = pa.chunked_array(chunks)
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


class _ParquetSource(_TableSource):
    """Parquet files; text comes as numbers of distinct values."""

    def __init__(self, files: Sequence[Path], progress: Callable[[int], None] | None = None) -> None:
        self._files = list(map(parquet, files))
        self._progress = progress
        self._names: set[str] = set()

    def pieces(self, name: str) -> list[Any]:
        if self._progress is not None:
            self._progress(len(self._names))
            self._names.add(name)
        chunks: list[Any] = []
        for file in self._files:
            if name in file.schema_arrow.names:
                for group in range(file.num_row_groups):  # lists have a dictionary in each: Arrow reads no two at once
                    chunks += file.read_row_group(group, columns=[name]).column(0).chunks
            else:  # an older dataset
                chunks.append(pa.nulls(file.metadata.num_rows, TYPES[name]))
        return chunks


class _MemorySource(_TableSource):
    """Tables in memory."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._tables = tables

    def pieces(self, name: str) -> list[Any]:
        return [chunk for table in self._tables for chunk in table.column(name).chunks]


def _null(array: np.ndarray) -> int:
    return int(np.iinfo(array.dtype).min)


def _times(source: _TableSource, name: str) -> np.ndarray:
    """A column of integers or times as int64[n]."""
    array = source.column(name)
    return numbers(array, NULL) if not pa.types.is_null(array.type) else np.full(len(array), NULL)


def _range(array: np.ndarray) -> tuple[int, int] | None:
    """The least and the greatest number; None where there is none."""
    there = array[array != _null(array)]
    return (int(there.min()), int(there.max())) if len(there) else None


def _narrow(array: np.ndarray, span: tuple[int, int] | None) -> np.ndarray:
    """The same numbers, of that range, in the narrowest type that has room for null, too."""
    low, high = span or (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min < low and high <= np.iinfo(kind).max:
            narrow = array.astype(kind)
            narrow[array == _null(array)] = np.iinfo(kind).min
            return narrow
    return array


def _narrow_codes(codes: np.ndarray, values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Codes in the narrowest type that has room for all of them and -1."""
    return codes.astype(np.min_scalar_type(-max(len(values), 1)))


def _addresses(source: _TableSource, ip: str, port: str) -> tuple[np.ndarray, list[Any]]:
    """Ends of connections as int64[n] of distinct (ip, port)."""
    ips, values = _coded(source.column(ip), str)
    ports = _times(source, port)
    present = (ips >= 0) & (ports != _null(ports))
    packed = np.where(present, ips.astype(np.int64) << 16 | (ports & 0xFFFF), -1)
    place = numbered(packed)
    known = np.zeros(int(place.max()) + 1 if len(place) else 0, np.int64)
    known[place] = packed
    there = known >= 0
    codes = np.where(there, np.cumsum(there) - 1, -1)[place]
    return codes, [[values[pair >> 16], pair & 0xFFFF] for pair in known[there].tolist()]


def _coded(array: Any, named: Callable[[str], str]) -> tuple[np.ndarray, list[str]]:
    """Text as int32[n] of distinct values; `named`: what a value is called (two may be called the same)."""
    if pa.types.is_null(array.type):
        return np.full(len(array), -1, np.int32), []
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    places: dict[str, int] = {}
    names = [None if value is None else named(value) for value in array.dictionary.to_pylist()]
    place = np.array([-1 if name is None else places.setdefault(name, len(places)) for name in names] + [-1], np.int32)
    return place[numbers(array.indices, len(names))], list(places)


def _save_topics(folder: Path, source: _TableSource, order: np.ndarray, topic_name: Callable[[str], str]) -> list[str]:
    array = source.column("topics")
    codes, values = _coded(_elements(array), topic_name)
    _save_lists(folder, "topics", _lengths(array), order, codes.astype(np.int64), {"code": codes})
    return values


def _save_errors(folder: Path, source: _TableSource, order: np.ndarray) -> None:
    array = source.column("errors")
    flat = _elements(array)
    code, count = (
        numbers(flat.field(name), 0).astype(kind) for name, kind in (("code", np.int16), ("count", np.int32))
    )
    both = code.astype(np.int64) << 32 | count.astype(np.int64)
    _save_lists(folder, "errors", _lengths(array), order, both, {"code": code, "count": count})


def _elements(array: Any) -> Any:
    """The elements of lists, one behind the other."""
    if not len(array):
        return array.values.slice(0, 0)
    if array.null_count and np.diff(np.asarray(array.offsets))[absent(array)].any():
        return array.flatten()  # there are elements below a null; pyarrow.compute is loaded to leave them out
    first, last = (array.offsets[at].as_py() for at in (0, len(array)))
    return array.values.slice(first, last - first)


def _lengths(array: Any) -> np.ndarray:
    """Of each list, how many elements it has; a null has none."""
    lengths = np.diff(np.asarray(array.offsets)).astype(np.int64)
    if array.null_count:
        lengths[absent(array)] = 0
    return lengths


def _save_lists(
    folder: Path, name: str, lengths: np.ndarray, order: np.ndarray, elements: np.ndarray, parts: dict[str, np.ndarray]
) -> None:
    """A column of lists, equal ones as one. `elements`: what tells them apart; `parts`: what there is of each."""
    of, first = distinct(lengths, elements)
    ends = np.zeros(len(first) + 1, np.int64)
    np.cumsum(lengths[first], out=ends[1:])
    starts = (np.cumsum(lengths) - lengths)[first]
    at = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths[first])
    _save(folder, f"{name}.of", _narrow_codes(of, first)[order])
    _save(folder, f"{name}.ends", ends)
    for part, content in parts.items():
        _save(folder, f"{name}.{part}", content[at])


# --- files ------------------------------------------------------------------------------------------------------------


def _write(path: Path, content: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)


def _save(folder: Path, name: str, array: np.ndarray) -> None:
    path = folder / f"{name}.npy"
    _write(path, b"")
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)


def _load(folder: Path, name: str) -> np.ndarray:
    """An array over its file; it cannot be written."""
    array: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return array.view(np.ndarray) if len(array) else np.array(array)
