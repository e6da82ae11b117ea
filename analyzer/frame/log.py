"""Append-only logs of integer rows, and tables of rows that are known in another order than they stand.

In: rows of integers, single or as columns, of which some number a text; beside a single row a list of plain values
(None, bool, numbers, text, lists and tuples of these). Out: all rows as columns, in order; the values, lists in place
of tuples. Rule: nothing is a Python object while it waits: a row takes a third of what it takes as an object, and none
makes a node where it is stored (`kwire.analyzer.checkpoints`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame.arrow import distinct
from kwire.captures.kernels import NULL

Columns = dict[str, np.ndarray]

MOST_AT_ONCE: Final = 4096
"""Rows that are dicts at a time: one takes two kilobytes where it has lists of members and their partitions."""

_FEW_ROWS: Final = 64  # room for single rows to begin with
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True)
class Log:
    """Rows with the same columns.

    columns   their names
    texts     names of columns that hold numbers of `strings`, NULL where absent
    order     names of the columns that rows are read in order of; none: as they came. Then they may have values
    strings   texts by number, in order of their first row
    """

    columns: tuple[str, ...]
    texts: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    strings: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _parts: list[list[np.ndarray]] = field(default_factory=list)  # columns of each, then where values end in `_heap`
    _rows: np.ndarray = field(init=False)  # single rows since, the same
    _count: int = 0  # of these
    _heap: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._rows = np.zeros((0, len(self.columns) + 1), np.int64)  # a checkpoint goes by the number of columns

    def __len__(self) -> int:
        return self._count + sum(len(part[0]) for part in self._parts)

    @property
    def held_bytes(self) -> int:
        """Estimate the bytes of memory that rows, values and texts take."""
        return 8 * len(self.columns) * len(self) + len(self._heap) + 100 * len(self.strings)

    def append(
        self, values: Mapping[str, np.ndarray], strings: Sequence[str], connections: Sequence[str] | None = None
    ) -> None:
        """Append rows as columns int64[n]. Numbers in text columns are positions in `strings`, in the column
        `connection` positions in `connections` if there are any."""
        count = len(values[self.columns[0]])
        if not count:
            return
        part = []
        for name in self.columns:
            column = values[name]
            if name in self.texts:
                own_texts = name == "connection" and connections is not None
                column = self._own(column, connections if own_texts and connections is not None else strings)
            part.append(_compact(column))
        self._settle()
        self._parts.append([*part, np.broadcast_to(np.int64(len(self._heap)), count)])

    def append_row(self, row: Sequence[int], values: list[Any]) -> None:
        """Append one row with values beside it; nulls at their end take no memory."""
        while values and values[-1] is None:
            values.pop()
        self._heap += _encode(values).encode()
        if self._count == len(self._rows):
            larger = np.zeros((max(_FEW_ROWS, self._count + (self._count >> 1)), len(self.columns) + 1), np.int64)
            if self._count:
                larger[: self._count] = self._rows
            self._rows = larger
        self._rows[self._count] = (*row, len(self._heap))
        self._count += 1

    def join(self, other: Log) -> None:
        """Append the rows of another log."""
        self._settle()
        other._settle()
        behind = len(self._heap)
        for *columns, ends in other._parts:
            pairs = zip(self.columns, columns, strict=True)
            own = [self._own(column, other.strings) if name in self.texts else column for name, column in pairs]
            self._parts.append([*own, _compact(ends + behind)])
        self._heap += other._heap

    def read(self) -> Columns:
        """Return all rows in order. They are held as returned from then on; each column is joined as its parts go."""
        self._settle()
        parts, self._parts = self._parts, []
        if not parts:
            return {name: np.zeros(0, np.int64) for name in self.columns}
        merged = [_joined([part.pop() for part in parts]) for _ in (*self.columns, "ends")][::-1]
        columns = dict(zip(self.columns, merged, strict=False))
        keys = [columns[name] for name in self.order]
        if not _is_sorted(keys):
            order = np.lexsort(keys[::-1])  # stable: rows of one connection and packet stay in order
            merged = [*(_compact(column[order]) for column in merged[:-1]), merged[-1]]
        self._parts.append(merged)
        return dict(zip(self.columns, merged, strict=False))

    def values(self, position: int, count: int) -> list[Any]:
        """Return the `count` values beside a row, by its position in `read`."""
        ends = self._parts[0][-1]
        begin = int(ends[position - 1]) if position else 0
        values: list[Any] = json.loads(self._heap[begin : int(ends[position])])
        return values + [None] * (count - len(values))

    def replace(self, name: str, column: np.ndarray) -> None:
        """Replace a column of what `read` returned last."""
        if len(column):
            self._parts[0][self.columns.index(name)] = column

    def take(self, rows: np.ndarray, **replaced: np.ndarray) -> Log:
        """Return a log of some rows (a mask, or positions in order of `read`), with some columns replaced."""
        columns = {**self.read(), **replaced}
        positions = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        log = Log(self.columns, self.texts, self.order)
        log.append({name: column[positions] for name, column in columns.items()}, self.strings)
        if self._heap and len(positions):
            ends = self._parts[0][-1]
            begins, stops = np.where(positions > 0, ends[positions - 1], 0), ends[positions]
            # Rows that stand side by side are copied at once: mostly all do, and as pieces they would be there twice.
            first = np.append(True, positions[1:] != positions[:-1] + 1)
            heap = memoryview(self._heap)
            for begin, end in zip(begins[first].tolist(), stops[np.append(first[1:], True)].tolist(), strict=True):
                log._heap += heap[begin:end]
            log._parts[0][-1] = np.cumsum(stops - begins)
        return log

    def number(self, text: str | None) -> int:
        """Return the number of a text, a new one if it is new; NULL for None."""
        if text is None:
            return NULL
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.strings)
            self.strings.append(text)
        return number

    def known(self, text: str) -> int | None:
        """Return the number of a text; None if it has none."""
        return self._numbers.get(text)

    def text(self, number: int) -> str | None:
        """Return the text of a number."""
        return None if number == NULL else self.strings[number]

    def _settle(self) -> None:
        """Make a part of the single rows."""
        if self._count:
            self._parts.append([_compact(column) for column in self._rows[: self._count].T])
            self._rows, self._count = self._rows[:0].copy(), 0

    def _own(self, numbers: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Return positions in `texts` as numbers of `strings`."""
        used = distinct(numbers[numbers != NULL])
        if not len(used):
            return numbers
        own = np.array([self.number(texts[i]) for i in used.tolist()], np.int64)
        positions = np.minimum(np.searchsorted(used, numbers), len(used) - 1)
        renumbered: np.ndarray = np.where(numbers == NULL, NULL, own[positions])
        return renumbered


def _compact(column: np.ndarray) -> np.ndarray:
    """Return a copy of a column; if all values are equal, as in most rare columns, it takes no memory."""
    if len(column) and (column == column[0]).all():
        return np.broadcast_to(np.int64(column[0]), column.shape)
    return np.array(column, np.int64)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the parts of a column as one, which takes no memory if no part does and all are equal."""
    if len(parts) == 1:
        return parts[0]
    if all(part.strides == (0,) and part[0] == parts[0][0] for part in parts):
        return np.broadcast_to(parts[0][0], (sum(map(len, parts)),))
    return np.concatenate(parts)


def _is_sorted(keys: Sequence[np.ndarray]) -> bool:
    """Return whether rows are in order of some columns."""
    if not keys:
        return True
    rises = np.zeros(max(len(keys[0]) - 1, 0), np.bool_)
    equal = ~rises
    for key in keys:
        rises |= equal & (key[1:] > key[:-1])
        equal &= key[1:] == key[:-1]
    return bool(np.all(rises | equal))


class OrderedRows:
    """The rows of one table, appended as dicts in any order; few of them are Python objects at a time."""

    def __init__(self, name: str) -> None:
        self._schema = tables.schema(name)
        self._capture = self._schema.get_field_index("capture")
        self._orders: list[Any] = []
        self._rows: list[dict[str, Any]] = []
        self._parts: list[pa.Table] = []

    def append(self, order: Any, row: dict[str, Any]) -> None:
        """Append a row without its capture; rows stand in order of `order`, equal ones as they came."""
        self._orders.append(order)
        self._rows.append(row)
        if len(self._rows) >= MOST_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        self._parts.append(pa.Table.from_pylist(self._rows, self._schema))
        self._rows = []

    def table(self, capture: str) -> pa.Table:
        """Return all rows, of that capture."""
        if not self._orders:
            return self._schema.empty_table()
        self._settle()
        whole, self._parts = pa.concat_tables(self._parts), []
        order = sorted(range(len(whole)), key=self._orders.__getitem__)
        if any(at != position for position, at in enumerate(order)):
            whole = compute.take(whole, np.array(order))
        return whole.set_column(self._capture, "capture", pa.repeat(pa.scalar(capture, pa.string()), len(whole)))
