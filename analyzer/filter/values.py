"""Values of a filter: numbers with units, times, patterns, names of APIs and errors become tests (`conditions`).

In: an operator and values, as typed. Out: a test. Rule: an invalid value raises WordError with a valid example.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.filter.conditions import (
    DAY_US,
    AddressTest,
    BoolTest,
    DecodedPatternTest,
    DecodedTest,
    ErrorNameTest,
    IntegerRangeTest,
    Network,
    NumberTest,
    Test,
    TextTest,
    merge_spans,
    number_of,
)
from kwire.analyzer.filter.tokens import INT64_MAX, INT64_MIN, Word, WordError, did_you_mean, short, suggest
from kwire.analyzer.protocol import errors as kafka_errors
from kwire.analyzer.protocol import schema

ENUMERATED: Final = {
    "status": exchange_tables.STATUSES,
    "request_state": exchange_tables.STATES,
    "response_state": exchange_tables.STATES,
    "cause": exchange_tables.CAUSES,
}
"""Columns of text with a fixed set of values."""


DURATIONS: Final = {"us": 1, "µs": 1, "μs": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000}
SIZES: Final = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """A kind of number: its description, the units it may have, and an example."""

    what: str
    units: dict[str, int]
    example: str


PLAIN: Final = Scale("a whole number", {}, "-1")
REAL: Final = Scale("a number", {}, "0.5")
DURATION: Final = Scale("a duration", DURATIONS, "100ms")
SIZE: Final = Scale("a size", SIZES, "10kB")

_NUMBER: Final = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([^\W\d_]*)")
_ORDER: Final = ("<", "<=", ">", ">=")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
_MOMENT: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[Tt ]([^Zz+-]+)([Zz]|[+-][0-9]{2}:[0-9]{2})?)?")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _no_unit_hint(scale: Scale, unit: str) -> str:
    if not scale.units:
        return "leave the unit out"
    if scale is SIZE and unit.lower() in ("k", "kb", "kib"):
        return "write `kB` (1000 bytes) or `KiB` (1024)"
    same = [known for known in scale.units if known.lower() == unit.lower()]
    return did_you_mean(same) or f"units here: {', '.join(known for known in scale.units if known.isascii())}"


def _fraction(word: Word, scale: Scale, bare: int | None = 1) -> Fraction:
    """Read a number in the smallest unit. `bare`: smallest units per number without a unit; None: a unit is needed."""
    match = _NUMBER.fullmatch(word.text)
    if match is None:
        hint = f"write a number, as in `{scale.example}`"
        raise WordError(word, f"`{short(word.text)}` is not {scale.what}", hint)
    number, unit = Fraction(match[1]), match[2]
    if not unit:
        if bare is None and number != 0:
            hint = f"write `{word.text}us` or `{word.text}ms`"
            raise WordError(word, f"`{word.text}` has no unit, and this is {scale.what}", hint)
        return number * (bare or 1)
    if unit not in scale.units:
        raise WordError(word, f"`{unit}` is no unit of {scale.what}", _no_unit_hint(scale, unit))
    return number * scale.units[unit]


def _integer(word: Word, scale: Scale, bare: int | None = 1) -> int:
    value = _fraction(word, scale, bare)
    if value.denominator != 1:
        hint = "the smallest unit is one microsecond" if scale is DURATION else "leave the fraction out"
        raise WordError(word, f"`{short(word.text)}` is not a whole number", hint)
    if not INT64_MIN < value.numerator < INT64_MAX:
        raise WordError(word, f"`{short(word.text)}` is too large", "numbers have 64 bits at most")
    return value.numerator


def _range_test(operator: str, values: Sequence[int]) -> IntegerRangeTest:
    """Build the test of an operator that compares integers."""
    first = values[0]
    if operator in ("==", "in", "!=", "not in"):
        return IntegerRangeTest(merge_spans((value, value) for value in values), (), operator in ("!=", "not in"))
    spans = {
        "<": (INT64_MIN, first - 1),
        "<=": (INT64_MIN, first),
        ">": (first + 1, INT64_MAX),
        ">=": (first, INT64_MAX),
    }
    return IntegerRangeTest((spans[operator],))


def _clock(word: Word, text: str) -> tuple[int, int]:
    """Read a time of day: microseconds after midnight, and how many of them its last digit stands for."""
    match = _CLOCK.fullmatch(text)
    hour, minute, second = (int(match[i] or 0) for i in (1, 2, 3)) if match else (99, 0, 0)
    if match is None or hour > 23 or minute > 59 or second > 59:
        raise WordError(
            word,
            f"`{short(word.text)}` is not a time",
            "write `12:03:20` (UTC), `2026-11-21` or `2026-11-21T12:03:20.5Z`",
        )
    digits = match[4] or ""
    micros = int((digits + "000000")[:6])
    width = 60_000_000 if match[3] is None else 10 ** (6 - min(6, len(digits)))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros, width


def _moment(word: Word) -> tuple[bool, int, int]:
    """Read a time of day, a date, or both, UTC by default: (whether it is a time of day, microseconds, width)."""
    match = _MOMENT.fullmatch(word.text)
    if match is None:
        return True, *_clock(word, word.text)
    clock, width = (0, DAY_US) if match[4] is None else _clock(word, match[4])
    try:
        day = datetime.datetime(int(match[1]), int(match[2]), int(match[3]), tzinfo=datetime.UTC)
    except ValueError as error:
        hint = "write year, month and day: `2026-11-21`"
        raise WordError(word, f"`{word.text}` is no date: {error}", hint) from None
    zone = match[5] or "Z"
    if zone not in "Zz":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 23 or minutes > 59:
            raise WordError(word, f"`{zone}` is no offset from UTC", "write `Z` or hours and minutes: `+02:00`")
        clock -= (hours * 60 + minutes) * 60_000_000 * (1 if zone[0] == "+" else -1)
    return False, micros(day) + clock, width


def micros(moment: Any) -> int:
    """Convert a datetime to microseconds since 1970; integers are returned as they are."""
    if isinstance(moment, datetime.datetime):
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        since: datetime.timedelta = moment - _EPOCH
        return since // datetime.timedelta(microseconds=1)
    return int(moment)


def _times(operator: str, values: Sequence[Word]) -> IntegerRangeTest:
    """Build a test of times: `<` and the like compare with the instant; `==` and `in` accept the whole day, minute,
    second or fraction that is written."""
    spans: list[tuple[int, int]] = []
    daytimes: list[tuple[int, int]] = []
    negated = operator in ("!=", "not in")
    for word in values:
        daily, start, width = _moment(word)
        if operator in _ORDER:
            # After midnight there are DAY_US microseconds, and none below 0, so the ends of int64 do no harm.
            span = _range_test(operator, [start]).spans[0]
        else:
            span = (start, start + width - 1)
        (daytimes if daily else spans).append(span)
    return IntegerRangeTest(merge_spans(spans), merge_spans(daytimes), negated)


def _pattern(word: Word) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            # Python warns of patterns whose meaning may change in later versions: no concern of a filter's author.
            warnings.simplefilter("ignore")
            return re.compile(word.text)
    except re.error as error:
        where = f" at its character {error.pos + 1}" if error.pos is not None else ""
        raise WordError(
            word,
            f"not a regular expression: {error.msg}{where}",
            "escape special characters with a backslash, and quote the expression",
        ) from None
    except (RecursionError, OverflowError, MemoryError):
        raise WordError(word, "this regular expression is too large", "write a shorter one") from None


def _code(word: Word) -> int:
    """Read an error by its name or number."""
    text = word.text
    if re.fullmatch(r"[+-]?[0-9]{1,6}", text):
        code = int(text)
        if -(1 << 15) <= code < 1 << 15:
            return code
        raise WordError(word, f"error codes have 16 bits: `{text}` is none", "see Kafka's list of error codes")
    by_name = _error_codes()
    known_code = by_name.get(text.upper())
    if known_code is None:
        unknown = re.fullmatch(r"UNKNOWN_CODE_(-?[0-9]{1,5})", text.upper())
        if unknown is not None and -(1 << 15) <= int(unknown[1]) < 1 << 15:
            return int(unknown[1])
        near = suggest(text, by_name)
        raise WordError(
            word,
            f"Kafka has no error `{short(text)}`",
            did_you_mean(near) or "errors have Kafka's names, as NOT_LEADER_OR_FOLLOWER, or numbers",
        )
    return known_code


@functools.cache
def _error_codes() -> dict[str, int]:
    return {error.name.upper(): error.code for error in kafka_errors.errors().values()}


def _api_key(word: Word) -> int:
    """Read an API by its name (old names too) or number."""
    text = word.text
    if re.fullmatch(r"[+-]?[0-9]{1,6}", text):
        if schema.has_api(int(text)):
            return int(text)
        hint = f"for a number that Kafka does not have: `api_key == {text}`"
        raise WordError(word, f"Kafka has no API {text}", hint)
    key = schema.api_keys().get(text.lower())
    if key is None:
        near = suggest(text, [api.name for api in schema.apis()])
        hint = did_you_mean(near) or "APIs have Kafka's names, as Produce, Fetch or Metadata"
        raise WordError(word, f"Kafka has no API `{short(text)}`", hint)
    return key


def _network(word: Word) -> tuple[Network, int | None]:
    """Read a network and port: `10.0.0.1`, `10.0.0.1:9092`, `10.0.0.0/8`, `::1` or `[::1]:9092`."""
    text, port = word.text, None
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::([0-9]{1,5}))?", text)
    plain = re.fullmatch(r"([^:]*):([0-9]{1,5})", text)
    matched = bracketed or plain
    if matched is not None:
        text = matched[1]
        port = int(matched[2]) if matched[2] is not None else None
    try:
        if port is not None and port > 65535:
            raise ValueError("no such port")
        return ipaddress.ip_network(text, strict=False), port
    except ValueError:
        hint = "write `10.0.0.1`, `10.0.0.1:9092`, `10.0.0.0/8`, `::1` or `[::1]:9092`; a client's name is `client_id`"
        raise WordError(word, f"`{short(word.text)}` is not an address", hint) from None


def _text_test(operator: str, values: Sequence[Word]) -> TextTest:
    if operator in ("~", "!~"):
        return TextTest(frozenset(), _pattern(values[0]), operator == "!~")
    return TextTest(frozenset(word.text for word in values), None, operator in ("!=", "not in"))


def _bool(word: Word) -> bool:
    if word.text.lower() not in ("true", "false"):
        raise WordError(word, f"`{short(word.text)}` is neither true nor false", "write `true` or `false`")
    return word.text.lower() == "true"


def _needs(operator: Word, allowed: Sequence[str], what: str) -> None:
    if operator.text not in allowed:
        raise WordError(
            operator,
            f"`{operator.text}` does not go with {what}",
            f"what does: {', '.join(f'`{sign}`' for sign in allowed)}, `is null`, `is not null`",
        )


_EQUAL: Final = ("==", "!=", "in", "not in")
_SEARCH: Final = ("~", "!~")

Binder = Callable[[Word, Sequence[Word]], Test]


def integers_of(scale: Scale, bare: int | None = 1, unit: int = 1) -> Binder:
    """Build tests of integers that count `unit` smallest units each."""

    def bind(operator: Word, values: Sequence[Word]) -> Test:
        _needs(operator, (*_EQUAL, *_ORDER), scale.what)
        test = _range_test(operator.text, [_integer(word, scale, bare) for word in values])
        return test if unit == 1 else _scaled_down(test, unit)

    return bind


def _scaled_down(test: IntegerRangeTest, unit: int) -> IntegerRangeTest:
    """Convert a test of x * unit to a test of x."""
    spans = merge_spans((-(-low // unit), high // unit) for low, high in test.spans)
    return IntegerRangeTest(spans, (), test.negated)


def codes_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH, *_ORDER), "an error code")
    if operator.text in _SEARCH:
        return ErrorNameTest(_pattern(values[0]), operator.text == "!~")
    return _range_test(operator.text, [_code(word) for word in values])


def errors_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "an error")
    if operator.text in _SEARCH:
        return ErrorNameTest(_pattern(values[0]), operator.text == "!~")
    for word in values:
        if _code(word) == kafka_errors.NONE:
            raise WordError(word, "success is not an error here", "write `error is null`, or `error_code == 0`")
    return _range_test(operator.text, [_code(word) for word in values])


def apis_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "an API")
    if operator.text in _SEARCH:
        pattern = _pattern(values[0])
        keys = [api.api_key for api in schema.apis() if pattern.search(api.name)]
        return IntegerRangeTest(merge_spans((key, key) for key in keys), (), operator.text == "!~")
    return _range_test(operator.text, [_api_key(word) for word in values])


def words_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "text")
    return _text_test(operator.text, values)


def enumerated_as(name: str) -> Binder:
    def bind(operator: Word, values: Sequence[Word]) -> Test:
        _needs(operator, (*_EQUAL, *_SEARCH), "text")
        if operator.text in _SEARCH:
            return _text_test(operator.text, values)
        for word in values:
            if word.text.lower() not in ENUMERATED[name]:
                near = did_you_mean(suggest(word.text, ENUMERATED[name], 1))
                raise WordError(
                    word, f"`{short(word.text)}` is no {name}", f"{near} values: {', '.join(ENUMERATED[name])}".strip()
                )
        return _text_test(operator.text, [Word(word.text.lower(), word.start, word.end) for word in values])

    return bind


def moments_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_ORDER), "a time")
    return _times(operator.text, values)


def addresses_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "an address")
    if operator.text in _SEARCH:
        return AddressTest((), _pattern(values[0]), operator.text == "!~")
    return AddressTest(tuple(_network(word) for word in values), None, operator.text in ("!=", "not in"))


def bools_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, _EQUAL, "true or false")
    wanted = frozenset(_bool(word) for word in values)
    return BoolTest(frozenset((True, False)) - wanted if operator.text in ("!=", "not in") else wanted)


def reals_of(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_ORDER), "a number")
    return NumberTest(operator.text, tuple(_fraction(word, REAL) for word in values))


def decoded_of(operator: Word, values: Sequence[Word]) -> Test:
    """Build a test of fields of decoded keys and values. Raises WordError where values have no order."""
    if operator.text in _SEARCH:
        return DecodedPatternTest(_pattern(values[0]), operator.text == "!~")
    texts = tuple(word.text for word in values)
    numbers = [number for number in map(number_of, texts) if number is not None]
    dates = [word for word in values if _MOMENT.fullmatch(word.text)]
    if operator.text in _ORDER and not (numbers or dates):
        hint = "for text there are `==`, `!=`, `~`, `!~` and `in`"
        raise WordError(values[0], f"`{short(texts[0])}` is neither a number nor a time", hint)
    sign = operator.text if operator.text in _ORDER else "=="
    return DecodedTest(operator.text, texts, tuple(numbers), _times(sign, dates) if dates else None)
