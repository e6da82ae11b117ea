"""Tests on values: ranges of integers, patterns of text, networks. Pure functions; equal tests compare equal.

In: one value, or an array of integers. Out: whether it passes.
"""

from __future__ import annotations

import datetime
import ipaddress
import operator as operators
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

from kwire.analyzer.protocol import errors as kafka_errors

Spans = tuple[tuple[int, int], ...]
DAY_US: Final = 86_400_000_000


def merge_spans(spans: Iterable[tuple[int, int]]) -> Spans:
    """Sort spans, merge those that overlap, and drop empty ones."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if low > high:
            continue
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def _within(values: np.ndarray, spans: Spans) -> np.ndarray:
    inside = np.zeros(len(values), np.bool_)
    if len(spans) <= 4:
        for low, high in spans:
            inside |= (values == low) if low == high else (values >= low) & (values <= high)
        return inside
    lows = np.array([low for low, _ in spans], np.int64)
    highs = np.array([high for _, high in spans], np.int64)
    at = np.searchsorted(lows, values, "right") - 1
    inside = (at >= 0) & (values <= highs[np.maximum(at, 0)])
    return inside


@dataclass(frozen=True, slots=True)
class IntegerRangeTest:
    """A test on integers: inside one of `spans` (both ends included), or, for a time in microseconds, inside one of
    `daytimes` after midnight UTC; the opposite if `negated`."""

    spans: Spans
    daytimes: Spans = ()
    negated: bool = False

    def __call__(self, value: Any) -> bool:
        inside = any(low <= value <= high for low, high in self.spans) or any(
            low <= value % DAY_US <= high for low, high in self.daytimes
        )
        return inside != self.negated

    def test_array(self, values: np.ndarray) -> np.ndarray:
        """Test int[n] of any width; returns bool[n]."""
        inside = _within(values, self.spans)
        if self.daytimes:
            inside |= _within(values.astype(np.int64, copy=False) % DAY_US, self.daytimes)
        return ~inside if self.negated else inside


@dataclass(frozen=True, slots=True)
class TextTest:
    """A test on text: one of `exact`, or matched by `pattern`; the opposite if `negated`."""

    exact: frozenset[str]
    pattern: re.Pattern[str] | None = None
    negated: bool = False

    def __call__(self, value: Any) -> bool:
        inside = value in self.exact or (self.pattern is not None and self.pattern.search(value) is not None)
        return inside != self.negated


@dataclass(frozen=True, slots=True)
class ErrorNameTest:
    """A test on error codes by their names; the opposite if `negated`."""

    pattern: re.Pattern[str]
    negated: bool

    def __call__(self, value: Any) -> bool:
        return (self.pattern.search(kafka_errors.name(value)) is not None) != self.negated


def end_point(ip: str, port: int) -> str:
    """Write an address and a port, IPv6 in brackets."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class AddressTest:
    """A test on (ip, port): in one of the networks, with that port unless it is None; or `ip:port` matched by
    `pattern`; the opposite if `negated`."""

    networks: tuple[tuple[Network, int | None], ...]
    pattern: re.Pattern[str] | None = None
    negated: bool = False

    def __call__(self, value: Any) -> bool:
        ip, port = value
        if self.pattern is not None:
            return (self.pattern.search(end_point(ip, port)) is not None) != self.negated
        address = ipaddress.ip_address(ip)
        inside = any(address in network and network_port in (None, port) for network, network_port in self.networks)
        return inside != self.negated


@dataclass(frozen=True, slots=True)
class NumberTest:
    """A test on float64 values. (Bodies show NaN and infinities as text, which is never tested.)"""

    operator: str
    values: tuple[Fraction, ...]

    def __call__(self, value: Any) -> bool:
        if self.operator in ("==", "in"):
            return value in self.values
        if self.operator in ("!=", "not in"):
            return value not in self.values
        limit = self.values[0]
        return bool({"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[self.operator])


@dataclass(frozen=True, slots=True)
class BoolTest:
    """A test on bool values."""

    accepted: frozenset[bool]

    def __call__(self, value: Any) -> bool:
        return value in self.accepted


ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,100}(?:\.[0-9]{1,100})?(?:[eE][+-]?[0-9]{1,4})?")
_TIME_LENGTH: Final = 40


def number_of(text: str) -> Decimal | None:
    """Read a number as decimals are written in JSON; None: it is none."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def time_of(text: str) -> int | None:
    """Read a time of RFC 3339, UTC where it has no zone, in microseconds since 1970; None: it is none."""
    if not 10 <= len(text) <= _TIME_LENGTH or text[4] != "-":
        return None
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    when = when.replace(tzinfo=datetime.UTC) if when.tzinfo is None else when
    return (when - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class DecodedTest:
    """A test on fields of decoded keys and values, whose kind only the values tell: numbers (int, Decimal), text, bool.

    operator  `==`, `in`, their opposites, or one of `ORDER`
    texts     what was written; a number that is text, as Avro's decimals are, is compared as a number
    numbers   those of the texts that are numbers
    times     those of the texts that are times, as a test of microseconds since 1970; None: none is
    """

    operator: str
    texts: tuple[str, ...]
    numbers: tuple[Decimal, ...]
    times: IntegerRangeTest | None

    def __call__(self, value: Any) -> bool:
        if self.operator in ORDER:
            return self._is_in_order(value)
        return self._is_equal(value) != (self.operator in ("!=", "not in"))

    def _is_in_order(self, value: Any) -> bool:
        if isinstance(value, bool):
            return False
        number = number_of(value) if isinstance(value, str) else value
        if number is not None:
            return any(ORDER[self.operator](number, limit) for limit in self.numbers)
        return self._has_time(value)

    def _is_equal(self, value: Any) -> bool:
        if isinstance(value, bool):
            return ("true" if value else "false") in map(str.lower, self.texts)
        if not isinstance(value, str):
            return value in self.numbers
        if value in self.texts:
            return True
        number = number_of(value) if self.numbers else None
        return number in self.numbers if number is not None else self._has_time(value)

    def _has_time(self, value: str) -> bool:
        when = None if self.times is None else time_of(value)
        return when is not None and self.times is not None and self.times(when)


@dataclass(frozen=True, slots=True)
class DecodedPatternTest:
    """A test on fields of decoded keys and values: text and numbers, as they are written, by a pattern."""

    pattern: re.Pattern[str]
    negated: bool

    def __call__(self, value: Any) -> bool:
        return (self.pattern.search(str(value)) is not None) != self.negated


Test = (
    IntegerRangeTest | TextTest | ErrorNameTest | AddressTest | NumberTest | BoolTest | DecodedTest | DecodedPatternTest
)


def apply_test(test: Test, values: np.ndarray) -> np.ndarray:
    """Apply a test to int[n]; returns bool[n]."""
    if isinstance(test, IntegerRangeTest):
        return test.test_array(values)
    distinct, where = np.unique(values, return_inverse=True)
    passed = np.fromiter(map(test, distinct.tolist()), np.bool_, len(distinct))
    return np.asarray(passed[where])
