"""What a view looks at: the exchanges of a dataset as columns, chosen and sorted, and its other tables.

In: an open dataset and its mapped columns. Out: row numbers for a filter and an order; identities of rows. Rules: a
selection is an identity (capture, connection, exchange, reply), never a row number; results are kept by the filter's
own text and bounded in bytes; what only bodies can tell is asked of whoever can read them (`bodies`), once a filter.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from analyzer import tables
from analyzer.dataset import StoredDataset, readable
from analyzer.filter import evaluation, naming
from analyzer.filter.words import Word, WordProblem
from captures.problems import Problem
from reports.view.columns import Columns
from reports.view.source import Mapped

Key = tuple[str, str, int | None, int | None]
"""capture, connection, exchange, reply: unique (the contract of datasets)."""

KEPT_BYTES: Final = 400_000_000
"""Of results of filters and sorts: ten million rows chosen and sorted take 40 MB."""

OTHER_ROWS: Final = 100_000
"""Rows of a small table (connections, findings) that are read; the page says where there are more."""


class Wrong(Problem):
    """A question that has no answer; `place`: where in the text that was asked (start, length), if it is about that."""

    def __init__(self, message: str, hint: str = "", place: tuple[int, int] | None = None) -> None:
        super().__init__(message, hint)
        self.place = place


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows (uint32, in order of the requests) that a filter chooses."""

    text: str
    rows: np.ndarray


class _Kept:
    """Arrays by name; those not asked for longest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._arrays: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str]) -> np.ndarray | None:
        with self._lock:
            found = self._arrays.get(key)
            if found is not None:
                self._arrays.move_to_end(key)
            return found

    def put(self, key: tuple[str, str], array: np.ndarray) -> None:
        with self._lock:
            if key not in self._arrays:
                self._arrays[key] = array
                self._bytes += array.nbytes
            while self._bytes > self._limit and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes


@dataclass
class Tables:
    """A dataset as the page sees it. `bodies`: keys of the exchanges that match a filter, for filters that ask for
    what only bodies say; None where there are none at hand."""

    dataset: StoredDataset
    columns: Columns
    topic_names: Mapping[str, str]
    bodies: Callable[[str], Iterable[Key]] | None = None
    _kept: _Kept = field(default_factory=lambda: _Kept(KEPT_BYTES))
    _source: Mapped = field(init=False)
    _others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._source = Mapped(self.columns)

    # -- choosing and sorting ---------------------------------------------------------------------------------------
    def parse(self, text: str) -> evaluation.Filter | None:
        """The filter of a text; none where it is empty. Raises Wrong with the mistake's place."""
        if not text.strip():
            return None
        try:
            return evaluation.parse(text)
        except evaluation.FilterError as error:
            raise Wrong(error.problem, error.hint, (error.column - 1, error.length)) from None

    def chosen(self, text: str) -> Selection:
        """The exchanges that a filter chooses. Raises Wrong."""
        wanted = self.parse(text)
        said = "" if wanted is None else str(wanted)
        rows = self._kept.get((said, ""))
        if rows is None:
            if wanted is None:
                rows = np.arange(self.columns.n, dtype=np.uint32)
            else:
                true, false = wanted.verdict(self._source)
                if not (true | false).all():
                    true = true | self._told(said, ~false)
                rows = np.flatnonzero(true).astype(np.uint32)
            self._kept.put((said, ""), rows)
        return Selection(said, rows)

    def _told(self, text: str, possible: np.ndarray) -> np.ndarray:
        """bool[n]: what a filter chooses of the rows for which the columns cannot tell."""
        if self.bodies is None:
            raise Wrong(
                "this filter asks for fields of messages, whose bytes are not at hand",
                "analyse with --keep-bytes, or keep the capture where the dataset is",
            )
        chosen = np.zeros(self.columns.n, np.bool_)
        for key in self.bodies(text):
            row = self.row_of(key)
            if row is not None:
                chosen[row] = True
        chosen &= possible
        return chosen

    def ordered(self, text: str, sort: str) -> Selection:
        """The same, largest of a column first (`-` before it: smallest first), null last, as `kwire show --sort` does;
        equal ones in order of the requests."""
        selection = self.chosen(text)
        name = sort.removeprefix("-")
        if not name:
            return selection
        rows = self._kept.get((selection.text, sort))
        if rows is None:
            rows = selection.rows[self._order(name, selection.rows, not sort.startswith("-"))]
            self._kept.put((selection.text, sort), rows)
        return Selection(selection.text, rows)

    def _order(self, name: str, rows: np.ndarray, descending: bool) -> np.ndarray:
        values, present = self._sortable(self.column_of(name), rows)
        order = np.argsort(-values if descending else values, kind="stable")
        return np.concatenate([order[present[order]], np.flatnonzero(~present)])

    def _sortable(self, column: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers in the order of a column's values, and whether there is a value."""
        columns = self.columns
        if column in columns.integers:
            numbers, present = columns.integer(column)
            return numbers[rows].astype(np.int64), present[rows]
        if column in ("topics", "errors"):
            listed = columns.topics if column == "topics" else columns.errors
            at = listed.ends[rows]
            present = listed.ends[rows.astype(np.int64) + 1] > at
            first = listed.code[np.minimum(at, max(len(listed.code) - 1, 0))] if len(listed.code) else at * 0
            codes = np.where(present, first, -1)
            if column == "errors":
                return codes.astype(np.int64), present
        else:
            codes = columns.codes[column][rows]
        values = columns.values[column]
        rank = np.empty(len(values) + 1, np.int64)
        rank[np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)] = np.arange(len(values))
        return rank[codes], codes >= 0

    def about(self, name: str) -> naming.Columns:
        """The columns that a word names. Raises Wrong where it names none, or a field of a body."""
        try:
            found = naming.named(Word(name, 0, len(name)), "to look at")
        except WordProblem as problem:
            raise Wrong(problem.problem, problem.hint) from None
        if not isinstance(found.about, naming.Columns):
            raise Wrong(f"`{name}` is a field of messages, not a column", "kwire show --sort sorts by fields")
        return found.about

    def column_of(self, name: str) -> str:
        """The first of them."""
        return self.about(name).names[0]

    # -- identities -------------------------------------------------------------------------------------------------
    def key_of(self, row: int) -> Key:
        """The identity of a row."""
        columns = self.columns
        capture, connection = (columns.values[name][columns.codes[name][row]] for name in ("capture", "connection"))
        return capture, connection, self._number("exchange", row), self._number("reply", row)

    def _number(self, name: str, row: int) -> int | None:
        column = self.columns.integers[name]
        value = int(column[row])
        return None if value == np.iinfo(column.dtype).min else value

    def row_of(self, key: Key) -> int | None:
        """The row with an identity; None: there is none."""
        columns = self.columns
        code = []
        for name, value in zip(("capture", "connection"), key[:2], strict=True):
            if value not in columns.values[name]:
                return None
            code.append(columns.values[name].index(value))
        of_connection = self._rows_of(*code)
        same = np.ones(len(of_connection), np.bool_)
        for name, number in zip(("exchange", "reply"), key[2:], strict=True):
            column = columns.integers[name]
            least = np.iinfo(column.dtype).min
            same &= column[of_connection] == (least if number is None else number)
        found = of_connection[same]
        return int(found[0]) if len(found) else None

    def _rows_of(self, capture: int, connection: int) -> np.ndarray:
        name = (f"{capture} {connection}", "connection")
        rows = self._kept.get(name)
        if rows is None:
            codes = self.columns.codes
            rows = np.flatnonzero((codes["connection"] == connection) & (codes["capture"] == capture))
            self._kept.put(name, rows)
        return rows

    def addresses(self, names: tuple[str, ...], rows: np.ndarray | None) -> list[tuple[str, int]]:
        """Ends of connections, as `10.0.0.1:9092`, with how many of the rows (all) have each."""
        where, present, ends = self._source.addresses(names) or (np.zeros(0, np.int32), np.zeros(0, np.bool_), [])
        if rows is not None:
            where, present = where[rows], present[rows]
        counts = np.bincount(where[present], minlength=len(ends))
        shown = [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in ends]
        return [(shown[i], int(counts[i])) for i in np.flatnonzero(counts).tolist()]

    def beside(self, key: Key, step: int) -> Key | None:
        """The exchange before or after another in its connection; None: there is none."""
        row = self.row_of(key)
        if row is None:
            return None
        codes = self.columns.codes
        rows = self._rows_of(int(codes["capture"][row]), int(codes["connection"][row]))
        at = int(np.searchsorted(rows, row)) + step
        return self.key_of(int(rows[at])) if 0 <= at < len(rows) else None

    def place_of(self, text: str, sort: str, key: Key) -> int | None:
        """Where the row with an identity stands under a filter and an order; None: filtered out, or there is none."""
        row = self.row_of(key)
        if row is None:
            return None
        found = np.flatnonzero(self.ordered(text, sort).rows == row)
        return int(found[0]) if len(found) else None

    # -- rows -------------------------------------------------------------------------------------------------------
    def row(self, number: int) -> dict[str, Any]:
        """One exchange as `Table.to_pylist` would give it, but for times, which are microseconds."""
        columns = self.columns
        found: dict[str, Any] = {}
        for name in tables.schema("exchanges").names:
            if name in columns.integers:
                found[name] = self._number(name, number)
            elif name in columns.codes:
                code = int(columns.codes[name][number])
                found[name] = None if code < 0 else columns.values[name][code]
        topics = columns.topics.code[columns.topics.of(number)].tolist()
        found["topics"] = [columns.values["topics"][code] for code in topics if code >= 0]
        span = columns.errors.of(number)
        codes, counts = columns.errors.code[span].tolist(), columns.errors.count
        assert counts is not None
        found["errors"] = [{"code": c, "count": k} for c, k in zip(codes, counts[span].tolist(), strict=True)]
        return found

    def other(self, name: str) -> list[dict[str, Any]]:
        """Rows of another table of the dataset (`OTHER_ROWS` at most); times as microseconds."""
        if name not in self._others:
            with readable(self.dataset.path, name):
                table = getattr(self.dataset, name).head(OTHER_ROWS)
            for place, column in enumerate(table.schema):
                if column.type == tables.TIME:
                    table = table.set_column(place, column.name, table.column(place).cast("int64"))
            self._others[name] = table.to_pylist()
        return self._others[name]


def key_text(key: Key) -> str:
    """An identity as one word of a URL."""
    return json.dumps(key, ensure_ascii=True, separators=(",", ":"))


def key_read(text: str) -> Key:
    """The reverse. Raises Wrong."""
    try:
        capture, connection, exchange, reply = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise Wrong("key: not an identity of an exchange", "it is [capture, connection, exchange, reply]") from None
    numbers = all(one is None or (type(one) is int and 0 <= one < 1 << 63) for one in (exchange, reply))
    if not (isinstance(capture, str) and isinstance(connection, str) and numbers):
        raise Wrong("key: not an identity of an exchange", "it is [capture, connection, exchange, reply]")
    return capture, connection, exchange, reply
