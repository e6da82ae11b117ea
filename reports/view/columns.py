"""Columns of exchanges as mapped files, which the page filters, sorts and counts.

In: the table `exchanges`, as a frame. Out: `Columns`, NumPy arrays mapped from files of a folder, in order of the
requests. Rules: text is stored as codes into distinct values, and so are lists (`list_columns`); integers have the
narrowest type that fits, whose smallest number is null; the folder is complete once `columns.json`, written last, is
there. The system may evict mapped pages, so memory does not grow with the dataset.
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

from kwire.analyzer.common import address_names
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import StoredDataset
from kwire.analyzer.filter.names import ADDRESSES
from kwire.analyzer.frame import spill
from kwire.analyzer.frame.counting import blocks
from kwire.analyzer.frame.frame import NULL, Codes
from kwire.analyzer.frame.list_columns import ListColumn, distinct, numbered
from kwire.analyzer.frame.parquet import RowGroups, StoredFrame

LAYOUT: Final = 2
"""Version of the folder's layout; folders of other versions are made again."""

LIST: Final = "columns.json"
TYPES: Final = {column.name: column.type for column in tables.EXCHANGES}
Ranges = dict[str, tuple[int, int] | None]
"""Smallest and largest number of each column; None if all are null."""
LISTS: Final = ("topics", "errors")
INTEGERS: Final = tuple(name for name, kind in TYPES.items() if name not in LISTS and not pa.types.is_string(kind))
COUNT: Final = len(TYPES)
TEXTS: Final = tuple(name for name, kind in TYPES.items() if pa.types.is_string(kind))


@dataclass(frozen=True)
class Columns:
    """n exchanges by column.

    integers  numbers, and times in us since 1970; the smallest number of an array's type is null
    codes     index in `values`, -1 for null; `client` and `broker` are addresses, [ip, port]
    empty     columns in which no exchange has a value: an older dataset's, or one without analysis
    """

    n: int
    integers: dict[str, np.ndarray]
    codes: dict[str, np.ndarray]
    values: dict[str, list[Any]]
    topics: ListColumn
    errors: ListColumn
    empty: frozenset[str] = frozenset()
    _ranges: Ranges = field(default_factory=dict, init=False, repr=False)
    _has_no_null: dict[str, bool] = field(default_factory=dict, init=False, repr=False)

    def integer(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Get a column's numbers, and bool[n] whether they are present."""
        values = self.integers[name]
        return values, values != np.iinfo(values.dtype).min

    def has_no_null(self, name: str) -> bool:
        """Tell whether every exchange has a number in a column. Cached."""
        if name not in self._has_no_null:
            values = self.integers[name]
            null = np.iinfo(values.dtype).min
            self._has_no_null[name] = not any((values[part] == null).any() for part in blocks(len(values)))
        return self._has_no_null[name]

    def is_constant(self, name: str) -> bool:
        """Tell whether every exchange has the same value in a column of numbers or text."""
        if name in self.integers:
            ends = self.range(name)
            return ends is not None and ends[0] == ends[1] and self.has_no_null(name)
        if name in LISTS or not self.n:
            return False
        codes = self.codes[name]
        first = codes[0]  # values may be listed that no exchange has
        return bool(first >= 0) and all((codes[part] == first).all() for part in blocks(self.n))

    def range(self, name: str) -> tuple[int, int] | None:
        """Get the smallest and largest number of a column; None if all are null. Cached."""
        if name not in self._ranges:
            values = self.integers[name]
            self._ranges[name] = spill.value_range(values, int(np.iinfo(values.dtype).min))
        return self._ranges[name]


# --- writing ----------------------------------------------------------------------------------------------------------


def write_columns(
    dataset: StoredDataset,
    topic_name: Callable[[str], str],
    folder: Path,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the columns of a dataset. `progress` is called with the number of columns read so far, and may raise to
    stop. Raises DatasetError for unreadable files, OSError if the folder cannot be written."""
    _write_frame(_Exchanges(RowGroups.of(dataset), progress), topic_name, folder)


def write_columns_of(rows: Sequence[pa.Table], topic_name: Callable[[str], str], folder: Path) -> None:
    """Write the columns of rows that are in no dataset yet. Raises OSError."""
    _write_frame(_Exchanges(RowGroups({"exchanges": pa.concat_tables(rows)}, ()), None), topic_name, folder)


class _Exchanges:
    """Reads one column of `exchanges` at a time, so that memory is bounded, and reports how many are read."""

    def __init__(self, row_groups: RowGroups, progress: Callable[[int], None] | None) -> None:
        self._frame = StoredFrame(row_groups, None, "exchanges")
        self._progress = progress
        self._names: set[str] = set()

    def _begin(self, name: str) -> None:
        if self._progress is not None:
            self._progress(len(self._names))
            self._names.add(name)

    def numbers(self, name: str) -> np.ndarray:
        """Read a column of integers or times: int64[n]."""
        self._begin(name)
        return self._frame.gather({name: np.int64})[name]

    def text(self, name: str) -> Codes:
        """Read a column of text."""
        self._begin(name)
        return self._frame.gather({}, {name: {}}).text(name)

    def lists(self, name: str) -> tuple[np.ndarray, Any]:
        """Read a column of lists: their lengths, int64[n], and their elements."""
        self._begin(name)
        column = self._frame.lists(name)
        return np.diff(column.offsets), column.elements


def _write_frame(exchanges: _Exchanges, topic_name: Callable[[str], str], folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    first, late = exchanges.numbers("request_time"), exchanges.numbers("response_time")
    order = np.argsort(np.where(first == NULL, late, first), kind="stable")
    del first, late
    values: dict[str, list[Any]] = {}
    ranges: Ranges = {}
    for name in INTEGERS:
        numbers = exchanges.numbers(name)
        ranges[name] = spill.value_range(numbers, NULL)
        _save(folder, name, _narrow(numbers, ranges[name])[order])
    for name in TEXTS:
        codes, values[name] = exchanges.text(name)
        _save(folder, name, _narrow_codes(codes, values[name])[order])
    for name, (ip, port) in ADDRESSES.items():
        codes, values[name] = _addresses(exchanges.text(ip), exchanges.numbers(port))
        _save(folder, name, _narrow_codes(codes, values[name])[order])
    lengths, elements = exchanges.lists("topics")
    codes, values["topics"] = elements.text("value").rename(topic_name)
    _save_lists(folder, "topics", lengths, order, codes.astype(np.int64), {"code": codes})
    lengths, elements = exchanges.lists("errors")
    code, count = elements["code"].astype(np.int16), elements["count"].astype(np.int32)
    both = code.astype(np.int64) << 32 | count.astype(np.int64)
    _save_lists(folder, "errors", lengths, order, both, {"code": code, "count": count})
    empty = [*(name for name in INTEGERS if ranges[name] is None), *(name for name in TEXTS if not values[name])]
    _list(folder, len(order), values, empty, ranges)


def _list(folder: Path, rows: int, values: dict[str, list[Any]], empty: list[str], ranges: Ranges) -> None:
    summary = {"layout": LAYOUT, "rows": rows, "values": values, "empty": empty, "ranges": ranges}
    _write(folder / LIST, json.dumps(summary).encode())


def complete(folder: Path) -> bool:
    """Tell whether all columns are there, in the layout of this version."""
    try:
        return bool(json.loads((folder / LIST).read_bytes())["layout"] == LAYOUT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_columns(folder: Path) -> Columns:
    """Map the columns that `write_columns` wrote. Raises OSError and ValueError if they are damaged."""
    listed = json.loads((folder / LIST).read_bytes())
    n, values = listed["rows"], listed["values"]
    codes = {name: _load(folder, name) for name in (*TEXTS, *ADDRESSES)}
    if address_names.known_names():
        for name, ip in address_names.COLUMNS.items():
            codes[name], values[name] = _names_of(codes[ip], values[ip])
    columns = Columns(
        n,
        {name: _load(folder, name) for name in INTEGERS},
        codes,
        values,
        ListColumn(*_load_lists(folder, "topics"), None, values["topics"]),
        ListColumn(*_load_lists(folder, "errors"), _load(folder, "errors.count")),
        frozenset(listed["empty"]),
    )
    # The page begins with the range of all times, which would take as long to find as all else. (Older folders have
    # none.)
    columns._ranges.update((name, span and (span[0], span[1])) for name, span in dict(listed.get("ranges", {})).items())
    arrays = (*columns.integers.values(), *columns.codes.values(), columns.topics.of, columns.errors.of)
    if any(len(array) != n for array in arrays):
        raise ValueError("columns of different lengths")
    return columns


def _names_of(codes: np.ndarray, addresses: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Look up the names of addresses (`--names`): codes of each row, -1 for null, and the distinct names."""
    names: dict[str, int] = {}
    named = (address_names.name_of(ip) for ip in addresses)
    of = [-1 if name is None else names.setdefault(name, len(names)) for name in named]
    table = _narrow_codes(np.array([*of, -1]), addresses)
    return table[codes], list(names)


def _narrow(array: np.ndarray, span: tuple[int, int] | None) -> np.ndarray:
    """Convert int64 to the narrowest type that has room for the range and for null."""
    low, high = span or (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min < low and high <= np.iinfo(kind).max:
            narrow = array.astype(kind)
            narrow[array == NULL] = np.iinfo(kind).min
            return narrow
    return array


def _narrow_codes(codes: np.ndarray, values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Convert codes to the narrowest type that has room for all of them and -1."""
    return codes.astype(np.min_scalar_type(-max(len(values), 1)))


def _addresses(ips: Codes, ports: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """Combine addresses and ports: int64[n] codes, and the distinct [ip, port]."""
    present = (ips.codes >= 0) & (ports != NULL)
    packed = np.where(present, ips.codes.astype(np.int64) << 16 | (ports & 0xFFFF), -1)
    place = numbered(packed)
    known = np.zeros(int(place.max()) + 1 if len(place) else 0, np.int64)
    known[place] = packed
    there = known >= 0
    codes = np.where(there, np.cumsum(there) - 1, -1)[place]
    return codes, [[ips.values[pair >> 16], pair & 0xFFFF] for pair in known[there].tolist()]


def _save_lists(
    folder: Path, name: str, lengths: np.ndarray, order: np.ndarray, elements: np.ndarray, parts: dict[str, np.ndarray]
) -> None:
    """Save a column of lists, equal ones once. `elements`: numbers that tell elements apart; `parts`: their columns."""
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


def _load_lists(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Map the lists of rows, the ends of lists, and the codes of elements."""
    return _load(folder, f"{name}.of"), _load(folder, f"{name}.ends"), _load(folder, f"{name}.code")


def _load(folder: Path, name: str) -> np.ndarray:
    """Map an array from its file, read-only."""
    array: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return array.view(np.ndarray) if len(array) else np.array(array)
