"""Where a filter's comparisons find their columns: rows of integers, Arrow tables, API keys.

In: `Exchanges`, a table of exchanges, or the keys of APIs. Out: columns of integers, of coded text and of lists, as the
filter asks for them by name; None where a source does not have what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from analyzer.bulk import exchange_tables
from analyzer.bulk.column_names import COLUMNS
from analyzer.filter.conditions import Test, tested
from analyzer.filter.values import STATED
from analyzer.protocol import schema
from captures.kernels import NULL

if TYPE_CHECKING:
    from analyzer.bulk.rows import Exchanges

TopicName = Callable[[str], str]
Ints = tuple[np.ndarray, np.ndarray]  # int[n] values, of any width, bool[n] whether there is one
Coded = tuple[np.ndarray, np.ndarray, Sequence[Any]]  # int64[n] which of the values, bool[n] whether there is one


@dataclass(frozen=True, slots=True)
class Listed:
    """A column of lists of text. Equal lists may be one, so that each is looked at once.

    list_of   int64[n]   number of each row's list, `lists` where it has none
    lists     how many lists there are
    element   int64[m]   the list of each element
    index     int64[m]   which of `values` the element is
    open      bool[m]    may the element turn out to be another text?
    """

    list_of: np.ndarray
    lists: int
    element: np.ndarray
    index: np.ndarray
    open: np.ndarray
    values: Sequence[str]

    def rows(self, passed: np.ndarray) -> np.ndarray:
        """bool[n]: rows with an element that passed (bool[m])."""
        lists = np.zeros(self.lists + 1, np.bool_)
        lists[self.element[passed]] = True
        return np.asarray(lists[self.list_of])


class Source:
    """Columns of n exchanges. A method returns None where this source does not have what is asked for; then only the
    full test can tell."""

    n: int

    def integers(self, name: str) -> Ints | None:
        """A column of integers, times as microseconds since 1970; `api` is the key of an API that Kafka has."""
        raise NotImplementedError

    def texts(self, name: str) -> Coded | None:
        """A column of text."""
        raise NotImplementedError

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        """Columns of address and port; the values are (ip, port)."""
        raise NotImplementedError

    def topics(self, name: str) -> Listed | None:
        """A column of lists of text."""
        raise NotImplementedError

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The errors: int64[m] row of each, int64[m] its code."""
        raise NotImplementedError

    def looked_up(self, test: Test, found: Coded) -> np.ndarray:
        """bool[n]: a test on coded values."""
        return looked_up(test, found)

    def with_code(self, test: Test | None) -> np.ndarray | None:
        """bool[n]: rows with an error whose code passes, or with any."""
        found = self.codes()
        if found is None:
            return None
        rows = np.zeros(self.n, np.bool_)
        rows[found[0] if test is None else found[0][tested(test, found[1])]] = True
        return rows

    def with_text(self, name: str, test: Test | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Of a column of lists: bool[n] rows with an element that passes (any, without a test), bool[n] surely
        without."""
        listed = self.topics(name)
        if listed is None:
            return None
        everything = np.ones(len(listed.index), np.bool_)
        if test is None:
            there = listed.rows(everything)
            return there, ~there
        right = looked_up(test, (listed.index, everything, listed.values))
        true = listed.rows(right & ~listed.open)
        return true, ~true & ~listed.rows(listed.open)

    def code_counts(self) -> np.ndarray | None:
        """int[n]: how many errors each row has."""
        found = self.codes()
        return None if found is None else np.bincount(found[0], minlength=self.n)

    def api_keys(self) -> np.ndarray:
        """int64[n]: the key of the API, -1 where there is none."""
        found = self.integers("api_key")
        if found is None:
            return np.full(self.n, -1, np.int64)
        return np.where(found[1], found[0], -1)


def looked_up(test: Test, found: Coded) -> np.ndarray:
    """bool[n]: a test on distinct values, of which only those in use are tested."""
    indices, present, values = found
    used = np.zeros(len(values) + 1, np.bool_)
    used[np.where(present, indices, len(values))] = True
    passed = np.zeros(len(values) + 1, np.bool_)
    for i in np.flatnonzero(used[:-1]).tolist():
        passed[i] = test(values[i])
    return np.asarray(passed[np.where(present, indices, len(values))])


def distinct(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers in use of 0 ... count - 1, in order, and the place of each among them; like `np.unique`, faster."""
    used = np.zeros(count, np.bool_)
    used[numbers] = True
    found = np.flatnonzero(used)
    place = np.zeros(count, np.int64)
    place[found] = np.arange(len(found))
    return found, place[numbers]


class Table(Source):
    """An Arrow table of exchanges; text may be dictionary-encoded."""

    def __init__(self, table: pa.Table, topic_name: TopicName | None) -> None:
        self.table = table
        self.topic_name = topic_name
        self.n = len(table)
        self._kept: dict[str, Any] = {}

    def _array(self, name: str) -> Any:
        array = self._kept.get(name)
        if array is None:
            column = self.table.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.unify_dictionaries()
            array = column.combine_chunks()
            if isinstance(array, pa.ChunkedArray):  # some versions leave a column of no rows as it is
                array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
            self._kept[name] = array
        return array

    def integers(self, name: str) -> Ints | None:
        array = self._array("api_key" if name == "api" else name)
        present = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        kind = pa.int64()
        if pa.types.is_null(array.type):
            values = np.zeros(self.n, np.int64)
        else:
            values = array.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
        if name == "api":
            present = present & np.asarray(self._array("api").is_valid().to_numpy(zero_copy_only=False), np.bool_)
        return values, present

    def _coded(self, array: Any) -> Coded:
        if pa.types.is_null(array.type):
            return np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_), ()
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        values = array.dictionary.to_pylist()
        indices = array.indices.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        present = np.asarray(array.indices.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        if None in values:
            missing = np.fromiter((value is None for value in values), np.bool_, len(values))
            present = present & ~missing[indices]
        return indices, present, values

    def texts(self, name: str) -> Coded | None:
        return self._coded(self._array(name))

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        indices, has_ip, ips = self._coded(self._array(names[0]))
        ports = self.integers(names[1])
        assert ports is not None
        present = has_ip & ports[1]
        pairs, where = np.unique(np.where(present, indices << 16 | ports[0], 0), return_inverse=True)
        values = [(ips[pair >> 16] if ips else "", pair & 0xFFFF) for pair in pairs.tolist()]
        return where, present, values

    def topics(self, name: str) -> Listed | None:
        rows, elements = self._flat(name)
        indices, present, values = self._coded(elements)
        if self.topic_name is not None:
            values = [value if value is None else self.topic_name(value) for value in values]
        open_ = np.zeros(int(present.sum()), np.bool_)
        return Listed(np.arange(self.n), self.n, rows[present], indices[present], open_, values)

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        rows, elements = self._flat("errors")
        codes = elements.field("code").cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return rows, codes

    def _flat(self, name: str) -> tuple[np.ndarray, Any]:
        """A column of lists: each element's row, and the elements."""
        array = self._array(name)
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return np.repeat(np.arange(self.n), lengths), array.flatten()


_TIMES: Final = ("request_time", "request_end", "response_time", "response_end")
_TEXTS: Final = ("client_id", "group_id", "member_id", "transactional_id")
_ID_LENGTH: Final = 22
"""A topic that was only named by its id shows as the id; its name may be learned from another message."""


class Rows(Source):
    """Rows of integers. Without `topic_name` a topic that was only named by its id stays open."""

    def __init__(self, exchanges: Exchanges, topic_name: TopicName | None) -> None:
        self.exchanges = exchanges
        self.names = exchanges.names
        self.topic_name = topic_name
        self.n = len(exchanges)

    def _micros(self, name: str) -> Ints:
        nanos = self.exchanges.column(name)
        return nanos // 1000, nanos != NULL

    def _between(self, first: str, last: str) -> Ints:
        a, b = self._micros(first), self._micros(last)
        present = a[1] & b[1]
        return np.where(present, b[0] - a[0], 0), present

    def integers(self, name: str) -> Ints | None:
        if name in _TIMES:
            return self._micros(name)
        if name in ("latency_us", "total_us"):
            ends = ("request_end", "response_time") if name == "latency_us" else ("request_time", "response_end")
            values, present = self._between(*ends)
            return values, present & (values >= 0)
        if name == "queue_us":
            latency, _ = exchange_tables.latency_us(self.exchanges.columns)
            queue = exchange_tables.queue_us(self.exchanges.columns, latency)
            return queue, queue != NULL
        if name == "throttle_us":
            throttle = self.exchanges.column("throttle_ms")
            present = throttle != NULL
            return np.where(present, throttle, 0) * 1000, present
        if name == "api":
            keys = self.exchanges.column("api_key")
            return keys, (keys >= 0) & (keys < len(schema.apis()))
        if name in ("client_port", "broker_port"):
            return self._end(1 if name == "client_port" else 3)
        if name in COLUMNS:
            values = self.exchanges.column(name)
            return values, values != NULL
        return None

    def _end(self, which: int) -> Ints:
        """One of the four numbers in `Names.ends`, for each row."""
        used, where = distinct(self.exchanges.connection, len(self.names.ends))
        ends = np.array([self.names.ends[i][which] for i in used.tolist()], np.int64)
        return ends[where], np.ones(self.n, np.bool_)

    def texts(self, name: str) -> Coded | None:
        everywhere = np.ones(self.n, np.bool_)
        if name == "capture":
            return np.zeros(self.n, np.int64), everywhere, (self.names.capture,)
        if name == "connection":
            return self.exchanges.connection, everywhere, self.names.connections
        if name in ("client_ip", "broker_ip"):
            return (*self._end(0 if name == "client_ip" else 2), self.names.strings)
        if name in _TEXTS or name in STATED:
            numbers = self.exchanges.column(name)
            return numbers, numbers != NULL, STATED.get(name, self.names.strings)
        return None

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        first = 0 if names[0] == "client_ip" else 2
        known = self.names
        used, where = distinct(self.exchanges.connection, len(known.ends))
        values = [(known.strings[known.ends[i][first]], known.ends[i][first + 1]) for i in used.tolist()]
        return where, np.ones(self.n, np.bool_), values

    def topics(self, name: str) -> Listed | None:
        numbers = self.exchanges.column("topics")
        count = len(self.names.lists)
        used, place = distinct(np.where(numbers == NULL, count, numbers), count + 1)
        lists = [self.names.lists[i] for i in used.tolist() if i < count]
        sizes = np.array([len(one) for one in lists], np.int64)
        flat = np.array([number for one in lists for number in one], np.int64)
        strings = self.names.strings
        used_strings, index = distinct(flat, len(strings))
        values = [strings[i] for i in used_strings.tolist()]
        open_ = np.fromiter((len(value) == _ID_LENGTH for value in values), np.bool_, len(values))
        if self.topic_name is not None:
            values = list(map(self.topic_name, values))
            open_[:] = False
        # A row without a list is in the place after the last list, if there is such a row.
        return Listed(place, len(lists), np.repeat(np.arange(len(lists)), sizes), index, open_[index], values)

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        errors = self.exchanges.column("errors")
        has = np.flatnonzero(errors != NULL)
        used, where = distinct(errors[has], len(self.names.lists))
        lists = [self.names.lists[i][::2] for i in used.tolist()]
        lengths = np.array([len(one) for one in lists], np.int64)
        flat = np.array([code for one in lists for code in one], np.int64)
        sizes = lengths[where]
        # Element j of a row's list is `flat` at where that list starts, plus j.
        start = (np.cumsum(lengths) - lengths)[where] - (np.cumsum(sizes) - sizes)
        return np.repeat(has, sizes), flat[np.arange(sizes.sum()) + np.repeat(start, sizes)]


class Apis(Source):
    """One row for each number that an API could have, and one without: which of them can match at all?"""

    def __init__(self) -> None:
        self.keys = np.arange(-(1 << 15), (1 << 15) + 1)
        self.n = len(self.keys)
        self.present = self.keys < 1 << 15

    def integers(self, name: str) -> Ints | None:
        if name == "api_key":
            return self.keys, self.present
        if name == "api":
            return self.keys, (self.keys >= 0) & (self.keys < len(schema.apis()))
        return None

    def texts(self, name: str) -> Coded | None:
        return None

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        return None

    def topics(self, name: str) -> Listed | None:
        return None

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        return None
