"""What a view looks at: the exchanges of a dataset as columns, chosen and sorted, and its other tables.

In: an open dataset and its mapped columns. Out: row numbers for a filter and an order; identities of rows. Rules: a
selection is an identity (capture, connection, exchange, reply), never a row number; results are kept by the filter's
own text and bounded in bytes; what only bodies can tell is asked of whoever can read them (`bodies`), once a filter; a
window of an order is there before the whole order is, which is made in the background.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer.dataset import tables
from analyzer.dataset.dataset import StoredDataset, readable
from analyzer.filter import evaluation
from analyzer.filter import names as naming
from analyzer.filter.tokens import Word, WordError
from captures.errors import KwireError
from reports.view import orders
from reports.view.cache import Kept
from reports.view.columns import Columns
from reports.view.source import Mapped, Memory
from reports.view.value_counts import blocks, wanted

Key = tuple[str, str, int | None, int | None]
"""capture, connection, exchange, reply: unique (the contract of datasets)."""

KEPT_BYTES: Final = 400_000_000
"""Of results of filters and sorts: ten million rows chosen and sorted take 40 MB."""

FILTERED: Final = 1 << 18
"""Rows that a filter looks at together."""

AT_ONCE: Final = 300_000
"""Rows that are sorted while one waits: that takes a few hundredths of a second."""

_ORDINALS: Final = 40
"""Bits of a number that hold an exchange's ordinal in its connection; the others hold the connection's."""

OTHER_ROWS: Final = 100_000
"""Rows of a small table (connections, findings) that are read; the page says where there are more."""


class Wrong(KwireError):
    """A question that has no answer; `place`: where in the text that was asked (start, length), if it is about that."""

    def __init__(self, message: str, hint: str = "", place: tuple[int, int] | None = None) -> None:
        super().__init__(message, hint)
        self.place = place


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows (uint32, in order of the requests) that a filter chooses; `every`: all there are; `name`: what tells it from
    others (the filter, and what it is within)."""

    text: str
    rows: np.ndarray
    every: bool
    name: str


@dataclass
class Tables:
    """A dataset as the page sees it. `bodies`: keys of the exchanges that match a filter, of those that may,
    for filters that ask for what only bodies say; None where there are none at hand. `part`: a topic and a partition,
    to look at nothing but the exchanges that are about it (`about_partition`)."""

    dataset: StoredDataset
    columns: Columns
    topic_names: Mapping[str, str]
    bodies: Callable[[str, np.ndarray], Iterable[Key]] | None = None
    part: tuple[str, int] | None = None
    _kept: Kept = field(default_factory=lambda: Kept(KEPT_BYTES))
    _places: dict[str, dict[str, int]] = field(default_factory=dict)
    _sorting: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "sorting"))
    _sorted: set[tuple[str, str]] = field(default_factory=set)
    _others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

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
        asked = self.parse(text)
        said = "" if asked is None else str(asked)
        rows = self._kept.made((said, ""), lambda: self._choose(asked))
        if self.part is None:
            return Selection(said, rows, len(rows) == self.columns.n, said)
        name = f"{said}\0{self.part}"
        rows = self._kept.made((name, ""), lambda: np.intersect1d(rows, self._of_partition(), assume_unique=True))
        return Selection(said, rows, False, name)

    def about_partition(self, topic: str, partition: int) -> Tables:
        """The same, of which nothing is looked at but exchanges about a partition: of its producers, its consumers and
        its followers, and what asked for its offsets."""
        return replace(self, part=(topic, partition))

    def _of_partition(self) -> np.ndarray:
        """uint32: rows about the partition, by the table `partitions`."""
        assert self.part is not None
        topic, partition = self.part

        def make() -> np.ndarray:
            import pyarrow.compute as pc  # it takes a fifth of a second, which nobody is to wait for at the start

            field = pc.field
            ids = [one for one, name in self.topic_names.items() if name == topic]
            with readable(self.dataset.path, "partitions"):
                found = self.dataset.partitions.to_table(
                    columns=["capture", "connection", "exchange"],
                    filter=((field("topic") == topic) | field("topic_id").isin(ids))
                    & (field("partition") == partition),
                )
            rows = self.joined(found)
            return np.unique(rows[rows >= 0]).astype(np.uint32)

        return self._kept.made((str(self.part), "partition"), make)

    def _choose(self, asked: evaluation.Filter | None) -> np.ndarray:
        if asked is None:
            return np.arange(self.columns.n, dtype=np.uint32)
        memory: Memory = {}
        found, possible = [], []
        for part in blocks(self.columns.n, FILTERED):
            true, false = asked.verdict(Mapped(self.columns, part, memory))
            found.append(np.flatnonzero(true).astype(np.uint32) + np.uint32(part.start))
            if asked.needs_bodies:
                possible.append(~(true | false))
        rows = np.concatenate([np.zeros(0, np.uint32), *found])
        if any(map(np.any, possible)):
            told = self._told(str(asked), np.concatenate(possible))
            told[rows] = True
            rows = np.flatnonzero(told).astype(np.uint32)
        return rows

    def _told(self, text: str, possible: np.ndarray) -> np.ndarray:
        """bool[n]: what a filter chooses of the rows for which the columns cannot tell."""
        if self.bodies is None:
            raise Wrong(
                "this filter asks for fields of messages, whose bytes are not at hand",
                "analyse with --keep-bytes, or keep the capture where the dataset is",
            )
        chosen = np.zeros(self.columns.n, np.bool_)
        for key in self.bodies(text, np.flatnonzero(possible)):
            wanted()
            row = self.row_of(key)
            if row is not None:
                chosen[row] = True
        chosen &= possible
        return chosen

    def among(self, text: str, numbers: np.ndarray) -> np.ndarray:
        """bool[k]: which of some rows a filter chooses. Raises Wrong."""
        rows = self.chosen(text).rows
        at = np.minimum(np.searchsorted(rows, numbers), max(len(rows) - 1, 0))
        return rows[at] == numbers if len(rows) else np.zeros(len(numbers), np.bool_)

    def window(self, text: str, sort: str, start: int, count: int) -> tuple[Selection, np.ndarray]:
        """What a filter chooses, and a part of its rows: largest of a column first (`-` before it: smallest first),
        null last, as `kwire show --sort` does; equal ones in order of the requests."""
        selection = self.chosen(text)
        if not sort:
            return selection, selection.rows[start : start + count]
        order = self._order(selection, sort)
        if order is not None:
            return selection, selection.rows[order[start : start + count]]
        return selection, selection.rows[orders.window(self._keys(selection, sort), start, count)]

    def ordered(self, text: str, sort: str) -> Selection:
        """All of them."""
        selection = self.chosen(text)
        if not sort:
            return selection
        order = self._whole(selection, sort)
        return Selection(selection.text, selection.rows[order], selection.every, selection.name)

    def _order(self, selection: Selection, sort: str) -> np.ndarray | None:
        """The whole order, if it is quickly there; else it is begun, and None."""
        name = (selection.name, sort)
        order = self._kept.get(name)
        if order is not None:
            return order
        if len(selection.rows) <= AT_ONCE:
            return self._whole(selection, sort)
        if name not in self._sorted:
            self._sorted.add(name)
            self._sorting.submit(self._behind, selection, sort)
        return None

    def _behind(self, selection: Selection, sort: str) -> None:
        try:
            self._whole(selection, sort)
        finally:
            self._sorted.discard((selection.name, sort))

    def _whole(self, selection: Selection, sort: str) -> np.ndarray:
        """Places in the selection's rows, in order."""
        return self._kept.made((selection.name, sort), lambda: orders.whole(self._keys(selection, sort)))

    def _keys(self, selection: Selection, sort: str) -> np.ndarray:
        """What the rows are sorted by."""
        word, descending = sort.removeprefix("-"), not sort.startswith("-")
        about = self.about(word, naming.resolve_printed)

        def make() -> np.ndarray:
            numbers, low, high = self._sortable(word if about.form == "address" else about.names[0], descending)
            rows = None if selection.every else selection.rows
            return orders.keys(
                lambda part: numbers(part if rows is None else rows[part]), len(selection.rows), low, high, descending
            )

        return self._kept.made((selection.name, f"keys {sort}"), make)

    def _sortable(self, column: str, descending: bool) -> tuple[Callable[[Any], np.ndarray], int, int]:
        """Numbers of some rows in the order of a column's values, the smallest of their type where there is none; from
        which to which they are. Of a list it is the element that comes first."""
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
        """int64[values + 1]: the place of each of a column's values among them, sorted; last, where code -1 finds it,
        the smallest number: no value."""
        values = self.columns.values[column]
        rank = np.full(len(values) + 1, np.iinfo(np.int64).min)
        rank[np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)] = np.arange(len(values))
        return rank

    def about(self, name: str, meaning: Callable[[Word, str], naming.Operand] = naming.resolve) -> naming.Columns:
        """The columns that a word names. Raises Wrong where it names none, or a field of a body."""
        try:
            found = meaning(Word(name, 0, len(name)), "to look at")
        except WordError as problem:
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
        return self.keys_of(np.array([row]))[0]

    def keys_of(self, rows: np.ndarray) -> list[Key]:
        """The identities of rows."""
        found = self.some(rows, ("capture", "connection", "exchange", "reply"))
        return [(one["capture"], one["connection"], one["exchange"], one["reply"]) for one in found]

    def row_of(self, key: Key) -> int | None:
        """The row with an identity; None: there is none."""
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
        found = of_connection[same]
        return int(found[0]) if len(found) else None

    def joined(self, found: pa.Table) -> np.ndarray:
        """int64[k]: of each row of a table with `capture`, `connection` and `exchange`, the row of its exchange; -1:
        none."""
        import pyarrow.compute as pc

        codes = []
        for name in ("capture", "connection"):
            places = self._places_of(name)
            column = found.column(name).dictionary_encode().unify_dictionaries().combine_chunks()
            known = np.array([places.get(value, -1) for value in column.dictionary.to_pylist()] + [-1], np.int64)
            codes.append(known[pc.fill_null(column.indices, len(known) - 1).to_numpy(zero_copy_only=False)])
        numbers = found.column("exchange").combine_chunks()
        numbers = pc.fill_null(numbers, -1).to_numpy(zero_copy_only=False)
        return self.rows_by(self.packed(codes[0], codes[1], numbers))

    def packed(self, captures: np.ndarray, connections: np.ndarray, exchanges: np.ndarray) -> np.ndarray:
        """int64: an exchange's capture, connection (codes) and ordinal as one number; -1 where one of them is none."""
        links = captures.astype(np.int64) * len(self.columns.values["connection"]) + connections
        known = (captures >= 0) & (connections >= 0) & (exchanges >= 0) & (exchanges < 1 << _ORDINALS)
        return np.where(known, links << _ORDINALS | exchanges, -1)

    def rows_by(self, packed: np.ndarray) -> np.ndarray:
        """int64: the rows of what is `packed`; -1: there is none."""

        def all_of_them() -> np.ndarray:
            codes, exchanges = self.columns.codes, self.columns.integers["exchange"].astype(np.int64)
            return self.packed(codes["capture"], codes["connection"], exchanges)

        order = self._kept.made(("", "rows by exchange"), lambda: np.argsort(all_of_them(), kind="stable"))
        there = self._kept.made(("", "exchanges in order"), lambda: all_of_them()[order])
        if not len(there):
            return np.full(len(packed), -1)
        at = np.minimum(np.searchsorted(there, packed), len(there) - 1)
        return np.where((packed >= 0) & (there[at] == packed), order[at], -1)

    def made(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What is kept under a name, else made."""
        return self._kept.made(("", name), make)

    def _places_of(self, name: str) -> dict[str, int]:
        """Codes of a column's values."""
        if name not in self._places:
            self._places[name] = {value: place for place, value in enumerate(self.columns.values[name])}
        return self._places[name]

    def _rows_of(self, capture: int, connection: int) -> np.ndarray:
        """Rows of a connection."""

        def make() -> np.ndarray:
            codes = self.columns.codes
            return np.flatnonzero((codes["connection"] == connection) & (codes["capture"] == capture))

        return self._kept.made((f"{capture} {connection}", "connection"), make)

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
        selection = self.chosen(text)
        at = int(np.searchsorted(selection.rows, row))
        if at == len(selection.rows) or selection.rows[at] != row:
            return None
        return orders.place(self._keys(selection, sort), at) if sort else at

    # -- rows -------------------------------------------------------------------------------------------------------
    def row(self, number: int) -> dict[str, Any]:
        """One exchange as `Table.to_pylist` would give it, but for times, which are microseconds, and errors, which
        are numbers."""
        return self.some(np.array([number]), tables.schema("exchanges").names)[0]

    def some(self, numbers: np.ndarray, names: Iterable[str]) -> list[dict[str, Any]]:
        """Some columns of some rows, in the same way."""
        columns = self.columns
        found: dict[str, list[Any]] = {}
        for name in names:
            if name in columns.integers:
                column = columns.integers[name]
                least = int(np.iinfo(column.dtype).min)
                found[name] = [None if value == least else value for value in column[numbers].tolist()]
            elif name in columns.codes:
                values = columns.values[name]
                found[name] = [None if code < 0 else values[code] for code in columns.codes[name][numbers].tolist()]
            elif name == "topics":
                found[name] = [self._topics(number) for number in numbers.tolist()]
            elif name == "errors":
                found[name] = [self._errors(number) for number in numbers.tolist()]
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]

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
