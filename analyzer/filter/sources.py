"""Columns that filters are evaluated on: of rows of integers, of API keys.

In: `Exchanges`, or the keys of APIs. Out: `ExchangeColumns`: columns of integers, of text as
codes and of lists by name, as in `kwire.analyzer.frame`: the smallest number of an array's type is null, and code -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk.column_names import COLUMNS
from kwire.analyzer.common import address_names
from kwire.analyzer.filter.conditions import Test, apply_test
from kwire.analyzer.filter.values import ENUMERATED
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.counting import select_codes
from kwire.analyzer.frame.list_columns import ListColumn
from kwire.analyzer.protocol import schema
from kwire.captures.kernels import NULL

if TYPE_CHECKING:
    from kwire.analyzer.bulk.rows import Exchanges

TopicName = Callable[[str], str]


class Coded(NamedTuple):
    """A column of text or addresses: int[n] index in `values`, -1 for null; the distinct values."""

    codes: np.ndarray
    values: Sequence[Any]


class ExchangeColumns:
    """Columns of n exchanges. Methods return None for a column that is not there; the filter is undecided then."""

    n: int

    def integers(self, name: str) -> np.ndarray | None:
        """Get a column of integers; times in microseconds since 1970; `api` is the key of an API that Kafka has."""
        return None

    def texts(self, name: str) -> Coded | None:
        """Get a column of text."""
        return None

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        """Get an address and its port as one column of (ip, port)."""
        return None

    def lists(self, name: str) -> ListColumn | None:
        """Get the column `topics` or `errors`."""
        return None

    def is_open(self, topic: str) -> bool:
        """Tell whether a topic's text may change: an id whose name is not known yet."""
        return False

    def test_values(self, test: Callable[[Any], bool], coded: Coded) -> np.ndarray:
        """Test the distinct values of a column that occur: bool[values]."""
        used = np.zeros(len(coded.values) + 1, np.bool_)
        used[coded.codes] = True  # -1 marks the last
        passed = np.zeros(len(coded.values), np.bool_)
        for code in np.flatnonzero(used[:-1]).tolist():
            passed[code] = test(coded.values[code])
        return passed

    def test_lists(self, column: ListColumn, test: Test | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Test the lists of a column, or without a test whether they have elements: bool[lists] certainly, bool[lists]
        perhaps, or None if all is certain."""
        if column.values is None:
            return column.filled() if test is None else column.having(apply_test(test, column.code)), None
        coded = Coded(column.code, column.values)
        if test is None:
            return column.having(column.code >= 0), None
        passed = select_codes(self.test_values(test, coded), column.code)
        open_ = select_codes(self.test_values(self.is_open, coded), column.code)
        return column.having(passed & ~open_), column.having(open_) if open_.any() else None

    def rows_with(self, name: str, test: Test | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Test a column of lists: bool[n] rows with an element that passes (without a test, with any element), bool[n]
        rows certainly without one."""
        column = self.lists(name)
        if column is None:
            return None
        certain, perhaps = self.test_lists(column, test)
        passed = select_codes(certain, column.of)
        return passed, ~passed if perhaps is None else ~(passed | select_codes(perhaps, column.of))

    def api_keys(self) -> np.ndarray:
        """Get the API's key of each row: int[n], -1 for null."""
        keys = self.integers("api_key")
        return np.full(self.n, -1) if keys is None else np.where(keys == null_of(keys), -1, keys)


def null_of(values: np.ndarray) -> int:
    """Get the number that stands for null in an array."""
    return int(np.iinfo(values.dtype).min)


def _distinct(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct numbers from 0 to count - 1, sorted, and each number's position among them; like `np.unique`
    with `return_inverse`, but in linear time."""
    used = np.zeros(count, np.bool_)
    used[numbers] = True
    used_numbers = np.flatnonzero(used)
    place = np.zeros(count, np.int64)
    place[used_numbers] = np.arange(len(used_numbers))
    return used_numbers, place[numbers]


def named(coded: Coded) -> Coded:
    """Replace addresses by their names: null where an address has none."""
    used, where = _distinct(coded.codes + 1, len(coded.values) + 1)
    names = [address_names.name_of(coded.values[code - 1]) if code else None for code in used.tolist()]
    codes = np.array([-1 if name is None else code for code, name in enumerate(names)], np.int64)
    return Coded(codes[where], names)


def _known_apis(keys: np.ndarray) -> np.ndarray:
    """Replace keys that Kafka does not have by null."""
    return np.where((keys >= 0) & (keys < len(schema.apis())), keys, NULL)


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

    def is_open(self, topic: str) -> bool:
        return self.topic_name is None and len(topic) == _ID_LENGTH

    def _micros(self, name: str) -> np.ndarray:
        return arrow.micros(self.exchanges.column(name))

    def integers(self, name: str) -> np.ndarray | None:
        if name in _TIMES:
            return self._micros(name)
        if name in ("latency_us", "total_us"):
            ends = ("request_end", "response_time") if name == "latency_us" else ("request_time", "response_end")
            lasted = arrow.minus(self._micros(ends[1]), self._micros(ends[0]))
            return np.where(lasted >= 0, lasted, NULL)
        if name == "queue_us":
            latency, _ = exchange_tables.latency_us(self.exchanges.columns)
            return exchange_tables.queue_us(self.exchanges.columns, latency)
        if name == "throttle_us":
            throttle = self.exchanges.column("throttle_ms")
            return np.where(throttle == NULL, NULL, throttle * 1000)
        if name == "api":
            return _known_apis(self.exchanges.column("api_key"))
        if name in ("client_port", "broker_port"):
            return self._end(1 if name == "client_port" else 3)
        return self.exchanges.column(name) if name in COLUMNS else None

    def _end(self, which: int) -> np.ndarray:
        """Get one of the four numbers in `Names.ends` for each row."""
        used, where = _distinct(self.exchanges.connection, len(self.names.ends))
        ends: np.ndarray = np.array([self.names.ends[i][which] for i in used.tolist()], np.int64)[where]
        return ends

    def texts(self, name: str) -> Coded | None:
        if (address := address_names.COLUMNS.get(name)) is not None:
            ips = self.texts(address)
            return ips and named(ips)
        if name == "capture":
            return Coded(np.zeros(self.n, np.int64), (self.names.capture,))
        if name == "connection":
            return Coded(self.exchanges.connection, self.names.connections)
        if name in ("client_ip", "broker_ip"):
            return Coded(self._end(0 if name == "client_ip" else 2), self.names.strings)
        if name in _TEXTS or name in ENUMERATED:
            codes = np.maximum(self.exchanges.column(name), -1)
            return Coded(codes, ENUMERATED.get(name, self.names.strings))
        return None

    def addresses(self, names: tuple[str, ...]) -> Coded:
        first = 0 if names[0] == "client_ip" else 2
        known = self.names
        used, where = _distinct(self.exchanges.connection, len(known.ends))
        values = [(known.strings[known.ends[i][first]], known.ends[i][first + 1]) for i in used.tolist()]
        return Coded(where, values)

    def lists(self, name: str) -> ListColumn:
        numbers = self.exchanges.column(name)
        count = len(self.names.lists)
        used, of = _distinct(np.where(numbers == NULL, count, numbers), count + 1)
        lists = [self.names.lists[number] if number < count else () for number in used.tolist()]
        if name == "errors":
            lists = [members[::2] for members in lists]  # codes and counts alternate
        ends = np.cumsum([0, *map(len, lists)])
        flat = np.array([member for members in lists for member in members], np.int64)
        if name == "errors":
            return ListColumn(of, ends, flat)
        strings = self.names.strings
        used, codes = _distinct(flat, len(strings))
        values = [strings[number] for number in used.tolist()]
        if self.topic_name is not None:
            values = list(map(self.topic_name, values))
        return ListColumn(of, ends, codes, values=values)


class ApiKeys(ExchangeColumns):
    """A row for each possible API key and one without a key: tells which APIs a filter can match at all."""

    def __init__(self) -> None:
        self.keys = np.append(np.arange(-(1 << 15), 1 << 15), NULL)
        self.n = len(self.keys)

    def integers(self, name: str) -> np.ndarray | None:
        if name == "api_key":
            return self.keys
        return _known_apis(self.keys) if name == "api" else None
