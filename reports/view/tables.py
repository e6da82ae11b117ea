"""Tables of a view: exchanges as columns, filtered and sorted, and the dataset's other tables.

In: an open dataset and its mapped columns. Out: row numbers for a filter and an order; identities of rows. Rules: the
page identifies exchanges by (capture, connection, exchange, reply), never by row number; results are cached by the
filter's canonical text, bounded in bytes; rows that only bodies can decide are read once per filter (`bodies`); a
window of an order is available before the whole order, which is made in the background.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import StoredDataset, readable
from kwire.analyzer.filter import evaluation
from kwire.analyzer.filter import names as naming
from kwire.analyzer.filter.tokens import Word, WordError
from kwire.analyzer.frame.counting import blocks
from kwire.analyzer.frame.spill import check_cancelled
from kwire.captures.errors import KwireError
from kwire.reports import named_ends
from kwire.reports.view import orders
from kwire.reports.view.cache import ArrayCache
from kwire.reports.view.columns import Columns
from kwire.reports.view.source import MappedColumns, Memory

Key = tuple[str, str, int | None, int | None]
"""Identity of an exchange: capture, connection, exchange, reply (unique in a dataset)."""

CACHE_BYTES: Final = 400_000_000
"""Bytes of cached filters and orders: ten million rows take 40 MB."""

FILTER_ROWS: Final = 1 << 18
"""Rows that a filter is evaluated on at a time."""

SORT_ROWS: Final = 300_000
"""Rows up to which an order is made at once, in a few hundredths of a second."""

_ORDINALS: Final = 40
"""Bits of an exchange's ordinal in a packed identity; the higher bits number the connection."""

OTHER_ROWS: Final = 100_000
"""Rows of another table (connections, findings) that are read; the page tells if there are more."""


class BadRequestError(KwireError):
    """An invalid query. `span`: the position and length of the problem in the filter, if it is in the filter."""

    def __init__(self, message: str, hint: str = "", span: tuple[int, int] | None = None) -> None:
        super().__init__(message, hint)
        self.place = span


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows that a filter chooses.

    text   the filter's canonical text
    rows   uint32[k], in order of the requests
    every  True if all rows are chosen
    name   key in caches: the filter, and the partition if there is one
    """

    text: str
    rows: np.ndarray
    every: bool
    name: str


@dataclass
class Tables:
    """A dataset's tables.

    bodies  function that finds matching exchanges among rows by their bodies; None if there are no bodies to read
    part    topic and partition that the exchanges are restricted to (`about_partition`)
    """

    dataset: StoredDataset
    columns: Columns
    topic_names: Mapping[str, str]
    bodies: Callable[[str, np.ndarray], Iterable[Key]] | None = None
    part: tuple[str, int] | None = None
    _cache: ArrayCache = field(default_factory=lambda: ArrayCache(CACHE_BYTES))
    _places: dict[str, dict[str, int]] = field(default_factory=dict)
    _sorting: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "sorting"))
    _sorted: set[tuple[str, str]] = field(default_factory=set)
    _others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    # -- choosing and sorting ---------------------------------------------------------------------------------------
    def parse(self, text: str) -> evaluation.Filter | None:
        """Parse a filter; None if it is empty. Raises BadRequestError with the problem's span."""
        if not text.strip():
            return None
        try:
            return evaluation.parse(text)
        except evaluation.FilterError as error:
            raise BadRequestError(error.problem, error.hint, (error.column - 1, error.length)) from None

    def chosen(self, text: str) -> Selection:
        """Get the exchanges that a filter chooses. Raises BadRequestError."""
        parsed = self.parse(text)
        canonical = "" if parsed is None else str(parsed)
        rows = self._cache.get_or_make((canonical, ""), lambda: self._choose(parsed))
        if self.part is None:
            return Selection(canonical, rows, len(rows) == self.columns.n, canonical)
        name = f"{canonical}\0{self.part}"
        rows = self._cache.get_or_make(
            (name, ""), lambda: np.intersect1d(rows, self._of_partition(), assume_unique=True)
        )
        return Selection(canonical, rows, False, name)

    def about_partition(self, topic: str, partition: int) -> Tables:
        """Restrict the tables to exchanges about a partition: those of its producers, consumers and followers, and
        those about its offsets."""
        return replace(self, part=(topic, partition))

    def _of_partition(self) -> np.ndarray:
        """Find the rows about the partition with the table `partitions`: uint32[k]."""
        assert self.part is not None
        topic, partition = self.part

        def make() -> np.ndarray:
            import pyarrow.compute as pc  # takes 0.2 s to import

            field = pc.field
            ids = [topic_id for topic_id, name in self.topic_names.items() if name == topic]
            with readable(self.dataset.path, "partitions"):
                matches = self.dataset.partitions.to_table(
                    columns=["capture", "connection", "exchange"],
                    filter=((field("topic") == topic) | field("topic_id").isin(ids))
                    & (field("partition") == partition),
                )
            rows = self.joined(matches)
            return np.unique(rows[rows >= 0]).astype(np.uint32)

        return self._cache.get_or_make((str(self.part), "partition"), make)

    def _choose(self, parsed: evaluation.Filter | None) -> np.ndarray:
        if parsed is None:
            return np.arange(self.columns.n, dtype=np.uint32)
        memory: Memory = {}
        matching, possible = [], []
        for part in blocks(self.columns.n, FILTER_ROWS):
            true, false = parsed.verdict(MappedColumns(self.columns, part, memory))
            matching.append(np.flatnonzero(true).astype(np.uint32) + np.uint32(part.start))
            if parsed.needs_bodies:
                possible.append(~(true | false))
        rows = np.concatenate([np.zeros(0, np.uint32), *matching])
        if any(map(np.any, possible)):
            chosen = self._match_bodies(str(parsed), np.concatenate(possible))
            chosen[rows] = True
            rows = np.flatnonzero(chosen).astype(np.uint32)
        return rows

    def _match_bodies(self, text: str, possible: np.ndarray) -> np.ndarray:
        """Evaluate a filter on the bodies of undecided rows (`possible`, bool[n]): bool[n]."""
        if self.bodies is None:
            raise BadRequestError(
                "this filter tests fields of messages, whose bytes are not available",
                "analyse with --keep-bytes, or keep the capture beside the dataset",
            )
        chosen = np.zeros(self.columns.n, np.bool_)
        for key in self.bodies(text, np.flatnonzero(possible)):
            check_cancelled()
            row = self.row_of(key)
            if row is not None:
                chosen[row] = True
        chosen &= possible
        return chosen

    def among(self, text: str, numbers: np.ndarray) -> np.ndarray:
        """Tell which of some rows a filter chooses: bool[k]. Raises BadRequestError."""
        rows = self.chosen(text).rows
        at = np.minimum(np.searchsorted(rows, numbers), max(len(rows) - 1, 0))
        return rows[at] == numbers if len(rows) else np.zeros(len(numbers), np.bool_)

    def window(self, text: str, sort: str, start: int, count: int) -> tuple[Selection, np.ndarray]:
        """Get a filter's selection and a window of its rows, sorted like `kwire show --sort`: largest first (`-` before
        the column: smallest first), nulls last, equal ones in order of the requests."""
        selection = self.chosen(text)
        if not sort:
            return selection, selection.rows[start : start + count]
        order = self._order(selection, sort)
        if order is not None:
            return selection, selection.rows[order[start : start + count]]
        return selection, selection.rows[orders.window(self._keys(selection, sort), start, count)]

    def ordered(self, text: str, sort: str) -> Selection:
        """Get a filter's selection with all rows sorted."""
        selection = self.chosen(text)
        if not sort:
            return selection
        order = self._whole(selection, sort)
        return Selection(selection.text, selection.rows[order], selection.every, selection.name)

    def _order(self, selection: Selection, sort: str) -> np.ndarray | None:
        """Get the whole order if it is cached or quickly made; otherwise start making it, and return None."""
        name = (selection.name, sort)
        order = self._cache.get(name)
        if order is not None:
            return order
        if len(selection.rows) <= SORT_ROWS:
            return self._whole(selection, sort)
        if name not in self._sorted:
            self._sorted.add(name)
            self._sorting.submit(self._sort_in_background, selection, sort)
        return None

    def _sort_in_background(self, selection: Selection, sort: str) -> None:
        try:
            self._whole(selection, sort)
        finally:
            self._sorted.discard((selection.name, sort))

    def _whole(self, selection: Selection, sort: str) -> np.ndarray:
        """Get the whole order as positions in the selection's rows."""
        return self._cache.get_or_make((selection.name, sort), lambda: orders.whole(self._keys(selection, sort)))

    def _keys(self, selection: Selection, sort: str) -> np.ndarray:
        """Make the sort keys of the rows."""
        word, descending = sort.removeprefix("-"), not sort.startswith("-")
        about = self.about(word, naming.resolve_printed)

        def make() -> np.ndarray:
            numbers, low, high = self._sortable(word if about.form == "address" else about.names[0], descending)
            rows = None if selection.every else selection.rows
            return orders.keys(
                lambda part: numbers(part if rows is None else rows[part]), len(selection.rows), low, high, descending
            )

        return self._cache.get_or_make((selection.name, f"keys {sort}"), make)

    def _sortable(self, column: str, descending: bool) -> tuple[Callable[[Any], np.ndarray], int, int]:
        """Get a function from rows to numbers that sort like a column's values (the type's smallest number is null),
        and their range. A list counts as its element that sorts first."""
        columns = self.columns
        if column in columns.integers:
            low, high = columns.range(column) or (0, 0)
            return columns.integers[column].__getitem__, low, high
        if column in ("errors", "topics"):
            lists = columns.errors if column == "errors" else columns.topics
            each = lists.code.astype(np.int64) if column == "errors" else self._ranks(column)[lists.code]
            codes, table = lists.of, lists.extremes(each, largest=descending)
        else:
            codes, table = columns.codes[column], self._ranks(column)
        there = table[table != np.iinfo(np.int64).min]
        low, high = (int(there.min()), int(there.max())) if len(there) else (0, 0)
        table = np.where(table == np.iinfo(np.int64).min, np.iinfo(np.int32).min, table).astype(np.int32)
        return lambda part: table[codes[part]], low, high

    def _ranks(self, column: str) -> np.ndarray:
        """Rank a column's distinct values: int64[values + 1]; the last element, which code -1 selects, is the smallest
        number, for null."""
        values = self.columns.values[column]
        rank = np.full(len(values) + 1, np.iinfo(np.int64).min)
        rank[np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)] = np.arange(len(values))
        return rank

    def about(self, name: str, meaning: Callable[[Word, str], naming.Operand] = naming.resolve) -> naming.Columns:
        """Resolve a name to columns. Raises BadRequestError for unknown names and fields of bodies."""
        try:
            operand = meaning(Word(name, 0, len(name)), "to look at")
        except WordError as problem:
            raise BadRequestError(problem.problem, problem.hint) from None
        if not isinstance(operand.about, naming.Columns):
            raise BadRequestError(f"`{name}` is a field of messages, not a column", "kwire show --sort sorts by fields")
        return operand.about

    def column_of(self, name: str) -> str:
        """Resolve a name to its first column."""
        return self.about(name).names[0]

    # -- identities -------------------------------------------------------------------------------------------------
    def key_of(self, row: int) -> Key:
        """Get the identity of a row."""
        return self.keys_of(np.array([row]))[0]

    def keys_of(self, rows: np.ndarray) -> list[Key]:
        """Get the identities of rows."""
        selected = self.rows_at(rows, ("capture", "connection", "exchange", "reply"))
        return [(row["capture"], row["connection"], row["exchange"], row["reply"]) for row in selected]

    def row_of(self, key: Key) -> int | None:
        """Find the row with an identity; None if there is none."""
        columns = self.columns
        code = []
        for name, value in zip(("capture", "connection"), key[:2], strict=True):
            place = self._places_of(name).get(value)
            if place is None:
                return None
            code.append(place)
        of_connection = self._rows_of(*code)
        same = np.ones(len(of_connection), np.bool_)
        for name, number in zip(("exchange", "reply"), key[2:], strict=True):
            column = columns.integers[name]
            least = np.iinfo(column.dtype).min
            same &= column[of_connection] == (least if number is None else number)
        matches = of_connection[same]
        return int(matches[0]) if len(matches) else None

    def require_row(self, key: Key) -> int:
        """Find the row with an identity. Raises BadRequestError if there is none."""
        row = self.row_of(key)
        if row is None:
            raise BadRequestError("there is no such exchange", "it may be of another capture")
        return row

    def joined(self, table: pa.Table) -> np.ndarray:
        """Find the exchange of each row of a table with `capture`, `connection` and `exchange`: int64[k], -1 if there
        is none."""
        import pyarrow.compute as pc

        codes = []
        for name in ("capture", "connection"):
            places = self._places_of(name)
            column = table.column(name).dictionary_encode().unify_dictionaries().combine_chunks()
            known = np.array([places.get(value, -1) for value in column.dictionary.to_pylist()] + [-1], np.int64)
            codes.append(known[pc.fill_null(column.indices, len(known) - 1).to_numpy(zero_copy_only=False)])
        numbers = table.column("exchange").combine_chunks()
        numbers = pc.fill_null(numbers, -1).to_numpy(zero_copy_only=False)
        return self.rows_by(self.packed(codes[0], codes[1], numbers))

    def packed(self, captures: np.ndarray, connections: np.ndarray, exchanges: np.ndarray) -> np.ndarray:
        """Pack codes of capture and connection and the exchange's ordinal into one number: int64[k], -1 if one is
        null."""
        links = captures.astype(np.int64) * len(self.columns.values["connection"]) + connections
        known = (captures >= 0) & (connections >= 0) & (exchanges >= 0) & (exchanges < 1 << _ORDINALS)
        return np.where(known, links << _ORDINALS | exchanges, -1)

    def rows_by(self, packed: np.ndarray) -> np.ndarray:
        """Find the rows of packed identities: int64[k], -1 if there is none."""

        def all_of_them() -> np.ndarray:
            codes, exchanges = self.columns.codes, self.columns.integers["exchange"].astype(np.int64)
            return self.packed(codes["capture"], codes["connection"], exchanges)

        order = self._cache.get_or_make(("", "rows by exchange"), lambda: np.argsort(all_of_them(), kind="stable"))
        there = self._cache.get_or_make(("", "exchanges in order"), lambda: all_of_them()[order])
        if not len(there):
            return np.full(len(packed), -1)
        at = np.minimum(np.searchsorted(there, packed), len(there) - 1)
        return np.where((packed >= 0) & (there[at] == packed), order[at], -1)

    def cached(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Get an array from the cache, or make it."""
        return self._cache.get_or_make(("", name), make)

    def _places_of(self, name: str) -> dict[str, int]:
        """Map a column's values to their codes."""
        if name not in self._places:
            self._places[name] = {value: place for place, value in enumerate(self.columns.values[name])}
        return self._places[name]

    def _rows_of(self, capture: int, connection: int) -> np.ndarray:
        """Find the rows of a connection."""

        def make() -> np.ndarray:
            codes = self.columns.codes
            return np.flatnonzero((codes["connection"] == connection) & (codes["capture"] == capture))

        return self._cache.get_or_make((f"{capture} {connection}", "connection"), make)

    def beside(self, key: Key, step: int) -> Key | None:
        """Find the exchange `step` rows from another in its connection; None if there is none."""
        row = self.row_of(key)
        if row is None:
            return None
        codes = self.columns.codes
        rows = self._rows_of(int(codes["capture"][row]), int(codes["connection"][row]))
        at = int(np.searchsorted(rows, row)) + step
        return self.key_of(int(rows[at])) if 0 <= at < len(rows) else None

    def place_of(self, text: str, sort: str, key: Key) -> int | None:
        """Locate an exchange under a filter and an order; None if it is excluded, or does not exist."""
        row = self.row_of(key)
        if row is None:
            return None
        selection = self.chosen(text)
        at = int(np.searchsorted(selection.rows, row))
        if at == len(selection.rows) or selection.rows[at] != row:
            return None
        return orders.position(self._keys(selection, sort), at) if sort else at

    # -- rows -------------------------------------------------------------------------------------------------------
    def row(self, number: int) -> dict[str, Any]:
        """Get one exchange like `Table.to_pylist`, except that times are microseconds, and errors are codes."""
        return self.rows_at(np.array([number]), (column.name for column in self.described()))[0]

    def described(self) -> list[tables.Column]:
        """List the columns of exchanges, with those of names (`--names`) where there are names."""
        named = (tables.Column(name, pa.string(), about) for name, about in named_ends.ABOUT.items())
        return [*tables.EXCHANGES, *(column for column in named if column.name in self.columns.codes)]

    def rows_at(self, numbers: np.ndarray, names: Iterable[str]) -> list[dict[str, Any]]:
        """Get some columns of some rows, like `row`."""
        columns = self.columns
        selected: dict[str, list[Any]] = {}
        for name in names:
            if name in columns.integers:
                column = columns.integers[name]
                least = int(np.iinfo(column.dtype).min)
                selected[name] = [None if value == least else value for value in column[numbers].tolist()]
            elif name in columns.codes:
                values = columns.values[name]
                selected[name] = [None if code < 0 else values[code] for code in columns.codes[name][numbers].tolist()]
            elif name == "topics":
                selected[name] = [self._topics(number) for number in numbers.tolist()]
            elif name == "errors":
                selected[name] = [self._errors(number) for number in numbers.tolist()]
        return [dict(zip(selected, values, strict=True)) for values in zip(*selected.values(), strict=True)]

    def _topics(self, number: int) -> list[str]:
        topics, values = self.columns.topics, self.columns.values["topics"]
        return [values[code] for code in topics.code[topics.elements(number)].tolist() if code >= 0]

    def _errors(self, number: int) -> list[dict[str, int]]:
        errors = self.columns.errors
        span = errors.elements(number)
        assert errors.count is not None
        pairs = zip(errors.code[span].tolist(), errors.count[span].tolist(), strict=True)
        return [{"code": code, "count": count} for code, count in pairs]

    def other(self, name: str) -> list[dict[str, Any]]:
        """Get at most `OTHER_ROWS` rows of another table of the dataset; times as microseconds."""
        if name not in self._others:
            with readable(self.dataset.path, name):
                table = getattr(self.dataset, name).head(OTHER_ROWS)
            for place, column in enumerate(table.schema):
                if column.type == tables.TIME:
                    table = table.set_column(place, column.name, table.column(place).cast("int64"))
            self._others[name] = table.to_pylist()
        return self._others[name]

    def links_of(self, rows: np.ndarray) -> tuple[list[tuple[str, str]], np.ndarray]:
        """List the distinct captures and connections of rows, and number each row's."""
        columns = self.columns
        capture, connection = (columns.codes[name][rows].astype(np.int64) for name in ("capture", "connection"))
        many = len(columns.values["connection"])
        both, link = np.unique(capture * many + connection, return_inverse=True)
        captures, connections = columns.values["capture"], columns.values["connection"]
        return [(captures[pair // many], connections[pair % many]) for pair in both.tolist()], link


def format_key(key: Key) -> str:
    """Write an identity as a parameter of a URL."""
    return json.dumps(key, ensure_ascii=True, separators=(",", ":"))


def parse_key(text: str) -> Key:
    """Read an identity from a parameter of a URL. Raises BadRequestError."""
    try:
        capture, connection, exchange, reply = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise BadRequestError(
            "key: not an identity of an exchange", "it is [capture, connection, exchange, reply]"
        ) from None
    numbers = all(number is None or (type(number) is int and 0 <= number < 1 << 63) for number in (exchange, reply))
    if not (isinstance(capture, str) and isinstance(connection, str) and numbers):
        raise BadRequestError("key: not an identity of an exchange", "it is [capture, connection, exchange, reply]")
    return capture, connection, exchange, reply
