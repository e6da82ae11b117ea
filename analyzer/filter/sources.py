"""Columns that filters are evaluated on: of rows of integers, of Arrow tables, of API keys.

In: `Exchanges`, a table of exchanges, or the keys of APIs. Out: `ExchangeColumns`: columns of integers, of coded text
and of lists by name; None for a column that the source does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from analyzer.bulk import exchange_tables
from analyzer.bulk.column_names import COLUMNS
from analyzer.filter.conditions import Test, apply_test
from analyzer.filter.values import ENUMERATED
from analyzer.protocol import schema
from captures.kernels import NULL

if TYPE_CHECKING:
    from analyzer.bulk.rows import Exchanges

TopicName = Callable[[str], str]
Ints = tuple[np.ndarray, np.ndarray]  # int[n] values, of any width; bool[n] present
Coded = tuple[np.ndarray, np.ndarray, Sequence[Any]]  # int[n] index in the values; bool[n] present; distinct values


@dataclass(frozen=True, slots=True)
class TextLists:
    """A column of lists of text. Equal lists may be stored once.

    list_of   int64[n]   number of each row's list; `lists` for a null
    lists     number of lists
    element   int64[m]   list of each element
    index     int64[m]   index of the element in `values`
    open      bool[m]    True if the element's text may change: a topic's id whose name is unknown yet
    """

    list_of: np.ndarray
    lists: int
    element: np.ndarray
    index: np.ndarray
    open: np.ndarray
    values: Sequence[str]

    def rows(self, passed: np.ndarray) -> np.ndarray:
        """Mark rows with an element that passed (bool[m]): bool[n]."""
        lists = np.zeros(self.lists + 1, np.bool_)
        lists[self.element[passed]] = True
        return np.asarray(lists[self.list_of])


class ExchangeColumns:
    """Columns of n exchanges. Methods return None for a column that is not there; the filter is undecided then."""

    n: int

    def integers(self, name: str) -> Ints | None:
        """Get a column of integers; times in microseconds since 1970; `api` is the key of an API that Kafka has."""
        raise NotImplementedError

    def texts(self, name: str) -> Coded | None:
        """Get a column of text."""
        raise NotImplementedError

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        """Get an address and its port as one column of (ip, port)."""
        raise NotImplementedError

    def topics(self, name: str) -> TextLists | None:
        """Get a column of lists of text."""
        raise NotImplementedError

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Get the errors: int64[m] row of each, int64[m] its code."""
        raise NotImplementedError

    def test_texts(self, test: Test, texts: Coded) -> np.ndarray:
        """Test a column of text or addresses: bool[n]."""
        return test_used_values(test, texts)

    def rows_with_error(self, test: Test | None) -> np.ndarray | None:
        """Mark rows with an error whose code passes, or with any error if there is no test: bool[n]."""
        errors = self.codes()
        if errors is None:
            return None
        rows = np.zeros(self.n, np.bool_)
        rows[errors[0] if test is None else errors[0][apply_test(test, errors[1])]] = True
        return rows

    def rows_with_text(self, name: str, test: Test | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Test a column of lists: bool[n] rows with an element that passes (without a test, with any element), bool[n]
        rows certainly without one."""
        listed = self.topics(name)
        if listed is None:
            return None
        everything = np.ones(len(listed.index), np.bool_)
        if test is None:
            there = listed.rows(everything)
            return there, ~there
        right = test_used_values(test, (listed.index, everything, listed.values))
        true = listed.rows(right & ~listed.open)
        return true, ~true & ~listed.rows(listed.open)

    def error_counts(self) -> np.ndarray | None:
        """Count the errors of each row: int[n]."""
        errors = self.codes()
        return None if errors is None else np.bincount(errors[0], minlength=self.n)

    def api_keys(self) -> np.ndarray:
        """Get the API's key of each row: int64[n], -1 for null."""
        keys = self.integers("api_key")
        if keys is None:
            return np.full(self.n, -1, np.int64)
        return np.where(keys[1], keys[0], -1)


def test_used_values(test: Test, texts: Coded) -> np.ndarray:
    """Test a coded column, each distinct value that occurs once: bool[n]."""
    indices, present, values = texts
    used = np.zeros(len(values) + 1, np.bool_)
    used[np.where(present, indices, len(values))] = True
    passed = np.zeros(len(values) + 1, np.bool_)
    for i in np.flatnonzero(used[:-1]).tolist():
        passed[i] = test(values[i])
    return np.asarray(passed[np.where(present, indices, len(values))])


def distinct(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct numbers from 0 to count - 1, sorted, and each number's position among them; like `np.unique`
    with `return_inverse`, but in linear time."""
    used = np.zeros(count, np.bool_)
    used[numbers] = True
    used_numbers = np.flatnonzero(used)
    place = np.zeros(count, np.int64)
    place[used_numbers] = np.arange(len(used_numbers))
    return used_numbers, place[numbers]


class TableColumns(ExchangeColumns):
    """Columns of an Arrow table of exchanges; text may be dictionary-encoded."""

    def __init__(self, table: pa.Table, topic_name: TopicName | None) -> None:
        self.table = table
        self.topic_name = topic_name
        self.n = len(table)
        self._arrays: dict[str, Any] = {}

    def _array(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            column = self.table.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.unify_dictionaries()
            array = column.combine_chunks()
            if isinstance(array, pa.ChunkedArray):  # some versions of pyarrow return a column without rows unchanged
                array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
            self._arrays[name] = array
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

    def topics(self, name: str) -> TextLists | None:
        rows, elements = self._flat(name)
        indices, present, values = self._coded(elements)
        if self.topic_name is not None:
            values = [value if value is None else self.topic_name(value) for value in values]
        open_ = np.zeros(int(present.sum()), np.bool_)
        return TextLists(np.arange(self.n), self.n, rows[present], indices[present], open_, values)

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        rows, elements = self._flat("errors")
        codes = elements.field("code").cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return rows, codes

    def _flat(self, name: str) -> tuple[np.ndarray, Any]:
        """Flatten a column of lists: each element's row, and the elements."""
        array = self._array(name)
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return np.repeat(np.arange(self.n), lengths), array.flatten()


_TIMES: Final = ("request_time", "request_end", "response_time", "response_end")
_TEXTS: Final = ("client_id", "group_id", "member_id", "transactional_id")
_ID_LENGTH: Final = 22
"""Characters of a topic's id, which stands for a topic until another message tells its name."""


class RowColumns(ExchangeColumns):
    """Columns of rows of integers. Without `topic_name` the text of a topic known by its id is open."""

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
        """Get one of the four numbers in `Names.ends` for each row."""
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
        if name in _TEXTS or name in ENUMERATED:
            numbers = self.exchanges.column(name)
            return numbers, numbers != NULL, ENUMERATED.get(name, self.names.strings)
        return None

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        first = 0 if names[0] == "client_ip" else 2
        known = self.names
        used, where = distinct(self.exchanges.connection, len(known.ends))
        values = [(known.strings[known.ends[i][first]], known.ends[i][first + 1]) for i in used.tolist()]
        return where, np.ones(self.n, np.bool_), values

    def topics(self, name: str) -> TextLists | None:
        numbers = self.exchanges.column("topics")
        count = len(self.names.lists)
        used, place = distinct(np.where(numbers == NULL, count, numbers), count + 1)
        lists = [self.names.lists[i] for i in used.tolist() if i < count]
        sizes = np.array([len(members) for members in lists], np.int64)
        flat = np.array([number for members in lists for number in members], np.int64)
        strings = self.names.strings
        used_strings, index = distinct(flat, len(strings))
        values = [strings[i] for i in used_strings.tolist()]
        open_ = np.fromiter((len(value) == _ID_LENGTH for value in values), np.bool_, len(values))
        if self.topic_name is not None:
            values = list(map(self.topic_name, values))
            open_[:] = False
        # A row without a list has the number after the last list's.
        return TextLists(place, len(lists), np.repeat(np.arange(len(lists)), sizes), index, open_[index], values)

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        errors = self.exchanges.column("errors")
        has = np.flatnonzero(errors != NULL)
        used, where = distinct(errors[has], len(self.names.lists))
        lists = [self.names.lists[i][::2] for i in used.tolist()]
        lengths = np.array([len(members) for members in lists], np.int64)
        flat = np.array([code for members in lists for code in members], np.int64)
        sizes = lengths[where]
        # Element j of a row's list is in `flat` at the list's start plus j.
        start = (np.cumsum(lengths) - lengths)[where] - (np.cumsum(sizes) - sizes)
        return np.repeat(has, sizes), flat[np.arange(sizes.sum()) + np.repeat(start, sizes)]


class ApiKeys(ExchangeColumns):
    """A row for each possible API key and one without a key: tells which APIs a filter can match at all."""

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

    def topics(self, name: str) -> TextLists | None:
        return None

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        return None
