"""The words of a filter: which names there are, and what a value means beside each.

In: a name, an operator and values, as typed. Out: a `Comparison`, bound to columns of the table `exchanges` or to a
path in the decoded bodies, whose values have become tests on integers, text or addresses. Rule: everything that can be
wrong is found here, before a capture is opened: unknown names, wrong units, names of APIs, errors and statuses that
Kafka does not have, paths that no API has, bad regular expressions. `FILTER.md` is the language for people.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import ipaddress
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer import errors as kafka_errors
from analyzer import program, roles, schema, tables
from analyzer.schema import REQUEST, RESPONSE

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1


class FilterError(ValueError):
    """A filter that cannot be used. `str()` is one line that says what and where; `hint` says what to try; `column`
    counts from 1; `pointer` is the place in the filter with a caret line under it."""

    def __init__(self, problem: str, text: str, start: int, end: int, hint: str = "") -> None:
        self.problem = problem
        self.text = text
        self.column = start + 1
        self.hint = hint
        first = max(0, start - 60)
        shown = "".join(c if c.isprintable() else " " for c in text[first : first + 100])
        width = max(1, min(end, first + 100) - start)
        self.pointer = f"  {shown}\n  {' ' * (start - first)}{'^' * width}"
        super().__init__(f"filter, column {self.column}: {problem}")


@dataclass(frozen=True, slots=True)
class Word:
    """A name, operator or value as it stands in the filter."""

    text: str
    start: int
    end: int


class Problem(Exception):
    """What is wrong with one word; `filtering.parse` makes a FilterError of it."""

    def __init__(self, word: Word, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.word = word
        self.problem = problem
        self.hint = hint


# --- tests ------------------------------------------------------------------------------------------------------------

Spans = tuple[tuple[int, int], ...]
DAY_US: Final = 86_400_000_000


def _merged(spans: Iterable[tuple[int, int]]) -> Spans:
    """Sorted, without overlaps; empty spans go."""
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
            inside |= (values >= low) & (values <= high)
        return inside
    lows = np.array([low for low, _ in spans], np.int64)
    highs = np.array([high for _, high in spans], np.int64)
    at = np.searchsorted(lows, values, "right") - 1
    inside = (at >= 0) & (values <= highs[np.maximum(at, 0)])
    return inside


@dataclass(frozen=True, slots=True)
class Whole:
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

    def many(self, values: np.ndarray) -> np.ndarray:
        """The same for int64[n] -> bool[n]."""
        inside = _within(values, self.spans)
        if self.daytimes:
            inside |= _within(values % DAY_US, self.daytimes)
        return ~inside if self.negated else inside


@dataclass(frozen=True, slots=True)
class Text:
    """A test on text: one of `exact`, or found by `pattern`; the opposite if `negated`."""

    exact: frozenset[str]
    pattern: re.Pattern[str] | None = None
    negated: bool = False

    def __call__(self, value: Any) -> bool:
        inside = value in self.exact or (self.pattern is not None and self.pattern.search(value) is not None)
        return inside != self.negated


@dataclass(frozen=True, slots=True)
class ErrorNames:
    """A test on error codes by their names."""

    pattern: re.Pattern[str]
    negated: bool

    def __call__(self, value: Any) -> bool:
        return (self.pattern.search(kafka_errors.name(value)) is not None) != self.negated


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Addresses:
    """A test on (ip, port): in one of the networks, with that port unless it is None; or `ip:port` found by `pattern`;
    the opposite if `negated`."""

    networks: tuple[tuple[Network, int | None], ...]
    pattern: re.Pattern[str] | None = None
    negated: bool = False

    def __call__(self, value: Any) -> bool:
        ip, port = value
        if self.pattern is not None:
            shown = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
            return (self.pattern.search(shown) is not None) != self.negated
        address = ipaddress.ip_address(ip)
        inside = any(address in network and wanted in (None, port) for network, wanted in self.networks)
        return inside != self.negated


@dataclass(frozen=True, slots=True)
class Reals:
    """A test on float64 values; `text` NaN and infinities in bodies are no numbers here."""

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
class Truth:
    """A test on bool values."""

    wanted: frozenset[bool]

    def __call__(self, value: Any) -> bool:
        return value in self.wanted


Test = Whole | Text | ErrorNames | Addresses | Reals | Truth


# --- what a comparison is about ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """One or more columns of `exchanges`, all of one `form`: `integer`, `time`, `text`, `api`, `errors`, `topics`,
    `address`."""

    names: tuple[str, ...]
    form: str


@dataclass(frozen=True, slots=True)
class Path:
    """A field of the decoded bodies. `side` is `request` or `response`; `parts` are keys from the outside in."""

    side: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The test for bodies of some APIs: a path may have different types in different APIs. `takes` are the Python types
    of the values in a body that the test is for. `implies` is a test of columns that holds wherever this one does,
    so that most bodies need not be decoded."""

    apis: frozenset[int]
    takes: tuple[type, ...]
    test: Test | None
    implies: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`about` has a value that passes. `present`: True for `is not null`, False for `is null`, None for a test.
    Of columns `test` holds; of a path `choices`. `source` is the comparison as text."""

    about: Columns | Path
    present: bool | None
    source: str = field(compare=False)
    test: Test | None = None
    choices: tuple[Choice, ...] = ()


# --- names ------------------------------------------------------------------------------------------------------------

SHORT: Final = {
    "latency": "latency_us",
    "total": "total_us",
    "throttle": "throttle_us",
    "topic": "topics",
    "error": "errors",
    "group": "group_id",
    "time": "request_time",
}
"""Short names of columns. `error` is about all errors of the response, not only the first."""

ADDRESSES: Final = {"client": ("client_ip", "client_port"), "broker": ("broker_ip", "broker_port")}
PACKETS: Final = ("request_packet", "response_packet")

STATED: Final = {
    "status": ("answered", "no_response_expected", "unanswered", "in_flight", "orphan_response"),
    "request_state": ("decoded", "truncated", "undecoded"),
    "response_state": ("decoded", "truncated", "undecoded"),
}
"""Columns of text that have these values only."""

PATH_COLUMNS: Final = {
    "request.acks": ("acks", 1),
    "request.maxWaitMs": ("max_wait_ms", 1),
    "request.minBytes": ("min_bytes", 1),
    "response.throttleTimeMs": ("throttle_us", 1000),
}
"""Paths that the table has as a column for every API that has the path, and how many of the column's units one is."""


@functools.cache
def column_types() -> dict[str, pa.DataType]:
    """Every column of `exchanges`."""
    return {column.name: column.type for column in tables.EXCHANGES}


@functools.cache
def names() -> tuple[str, ...]:
    """Every name that is no path."""
    return tuple(sorted({*column_types(), *SHORT, *ADDRESSES, "packet"}))


_ERRORS: Final = (roles.ERROR, roles.PART_ERROR, roles.PART_ERROR_EARLY)
"""Roles of error codes: all of them are in the column `errors`."""


@dataclass(frozen=True, slots=True)
class _Info:
    """A field as one API has it: `kind` of the values (an array's are its elements), its role for the tables."""

    api_key: int
    kind: str
    secret: str
    role: int


@functools.cache
def paths() -> dict[str, tuple[_Info, ...]]:
    """Every path with `request.` or `response.` before it, and what it is in each API. A body shows the size of records
    in their place, so they have a second spelling."""
    loaded = program.load()
    role, _ = roles.roles(loaded)
    found: dict[str, list[_Info]] = {}
    for info in loaded.fields:
        if info.api_key < 0 or info.direction not in (REQUEST, RESPONSE) or not info.path:
            continue
        if info.kind in ("tags", "tag", "message") or info.path.endswith("[]"):
            continue
        kind, secret, number = info.kind, info.secret, int(role[info.id])
        if kind == "array" and info.element != "struct":
            element = loaded.fields[loaded.field_id(info.api_key, info.direction, info.path + "[]")]
            kind, secret, number = element.kind, info.secret or element.secret, int(role[element.id])
        elif kind == "array":
            kind = "struct"
        name = ("request." if info.direction == REQUEST else "response.") + info.path
        found.setdefault(name, []).append(_Info(info.api_key, kind, secret, number))
        if kind == "records":
            found.setdefault(name + "SizeInBytes", []).append(_Info(info.api_key, kind, secret, number))
    return {name: tuple(infos) for name, infos in found.items()}


def suggest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The nearest of the known words, best first."""
    choices = list(known)
    same = [choice for choice in choices if choice.lower() == wanted.lower()]
    near = difflib.get_close_matches(wanted[:200].lower(), [choice.lower() for choice in choices], count, 0.6)
    by_lower = {choice.lower(): choice for choice in choices}
    return list(dict.fromkeys([*same, *(by_lower[choice] for choice in near)]))[:count]


def did_you_mean(found: Sequence[str]) -> str:
    return f"did you mean {' or '.join(f'`{word}`' for word in found)}?" if found else ""


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_name(word: Word) -> Problem:
    name = word.text
    side, dot, rest = name.partition(".")
    if dot and side in ("request", "response"):
        prefix = side + "."
        known = [path for path in paths() if path.startswith(prefix)]
        last = "." + rest.rpartition(".")[2].lower()
        other = ("response." if side == "request" else "request.") + rest
        near = [other] if other in paths() else []
        near += sorted((path for path in known if path.lower().endswith(last)), key=len)[:2]
        near += sorted((path for path in known if path.lower().startswith(name.lower())), key=len)[:2]
        near += suggest(name, known, 2)
        hint = did_you_mean(list(dict.fromkeys(near))[:3]) or "paths have the names of Kafka's message definitions"
        return Problem(word, f"no API has a field `{_short(name)}` in any version", hint)
    if name in ("request", "response"):
        return Problem(word, f"`{name}` needs a field after it", f"write `{name}.` and a path, as in `request.acks`")
    near = suggest(name, names())
    last = "." + name.rpartition(".")[2].lower()
    if not near:
        near = sorted((path for path in paths() if path.lower().endswith(last)), key=len)[:3]
    hint = did_you_mean(near) or (
        "a name is a column of the table exchanges, one of "
        f"{', '.join(sorted([*SHORT, *ADDRESSES, 'packet']))}, or a path that starts with request. or response."
    )
    return Problem(word, f"there is no `{_short(name)}` to filter by", hint)


# --- values -----------------------------------------------------------------------------------------------------------

DURATIONS: Final = {"us": 1, "µs": 1, "μs": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000}
SIZES: Final = {
    "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """What a number is, the units it may have, and one as an example."""

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
    """A number in the smallest of the units; `bare`: how many of these a number without unit is, None: it needs one."""
    match = _NUMBER.fullmatch(word.text)
    if match is None:
        raise Problem(word, f"`{_short(word.text)}` is not {scale.what}", f"write a number, as in `{scale.example}`")
    number, unit = Fraction(match[1]), match[2]
    if not unit:
        if bare is None and number != 0:
            hint = f"write `{word.text}us` or `{word.text}ms`"
            raise Problem(word, f"`{word.text}` has no unit, and this is {scale.what}", hint)
        return number * (bare or 1)
    if unit not in scale.units:
        raise Problem(word, f"`{unit}` is no unit of {scale.what}", _no_unit_hint(scale, unit))
    return number * scale.units[unit]


def _integer(word: Word, scale: Scale, bare: int | None = 1) -> int:
    value = _fraction(word, scale, bare)
    if value.denominator != 1:
        hint = "the smallest unit is one microsecond" if scale is DURATION else "leave the fraction out"
        raise Problem(word, f"`{_short(word.text)}` is not a whole number", hint)
    if not INT64_MIN < value.numerator < INT64_MAX:
        raise Problem(word, f"`{_short(word.text)}` is too large", "numbers have 64 bits at most")
    return value.numerator


def _whole(operator: str, values: Sequence[int]) -> Whole:
    """The test of an operator that compares integers."""
    first = values[0]
    if operator in ("==", "in", "!=", "not in"):
        return Whole(_merged((value, value) for value in values), (), operator in ("!=", "not in"))
    spans = {
        "<": (INT64_MIN, first - 1),
        "<=": (INT64_MIN, first),
        ">": (first + 1, INT64_MAX),
        ">=": (first, INT64_MAX),
    }
    return Whole((spans[operator],))


def _clock(word: Word, text: str) -> tuple[int, int]:
    """A time of day -> (microseconds after midnight, how many of them the last digit written stands for)."""
    match = _CLOCK.fullmatch(text)
    hour, minute, second = (int(match[i] or 0) for i in (1, 2, 3)) if match else (99, 0, 0)
    if match is None or hour > 23 or minute > 59 or second > 59:
        raise Problem(
            word,
            f"`{_short(word.text)}` is not a time",
            "write `12:03:20` (UTC), `2026-11-21` or `2026-11-21T12:03:20.5Z`",
        )
    digits = match[4] or ""
    micros = int((digits + "000000")[:6])
    width = 60_000_000 if match[3] is None else 10 ** (6 - min(6, len(digits)))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros, width


def _moment(word: Word) -> tuple[bool, int, int]:
    """(is it a time of day, microseconds, width): a time of day, a date, or both; UTC unless it says otherwise."""
    match = _MOMENT.fullmatch(word.text)
    if match is None:
        return True, *_clock(word, word.text)
    clock, width = (0, DAY_US) if match[4] is None else _clock(word, match[4])
    try:
        day = datetime.datetime(int(match[1]), int(match[2]), int(match[3]), tzinfo=datetime.UTC)
    except ValueError as error:
        raise Problem(word, f"`{word.text}` is no date: {error}", "write year, month and day: `2026-11-21`") from None
    zone = match[5] or "Z"
    if zone not in "Zz":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 23 or minutes > 59:
            raise Problem(word, f"`{zone}` is no offset from UTC", "write `Z` or hours and minutes: `+02:00`")
        clock -= (hours * 60 + minutes) * 60_000_000 * (1 if zone[0] == "+" else -1)
    return False, micros(day) + clock, width


def micros(moment: Any) -> int:
    """A datetime as microseconds since 1970; an integer is that already."""
    if isinstance(moment, datetime.datetime):
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        since: datetime.timedelta = moment - _EPOCH
        return since // datetime.timedelta(microseconds=1)
    return int(moment)


def _times(operator: str, values: Sequence[Word]) -> Whole:
    """`<` and the like compare with the instant as written; `==` and `in` are true all through the day, minute, second
    or part of it that is written."""
    spans: list[tuple[int, int]] = []
    daytimes: list[tuple[int, int]] = []
    negated = operator in ("!=", "not in")
    for word in values:
        daily, start, width = _moment(word)
        if operator in _ORDER:
            # After midnight there are DAY_US microseconds, and none below 0, so the ends of int64 do no harm.
            span = _whole(operator, [start]).spans[0]
        else:
            span = (start, start + width - 1)
        (daytimes if daily else spans).append(span)
    return Whole(_merged(spans), _merged(daytimes), negated)


def _pattern(word: Word) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            # Python warns of patterns whose meaning may change one day; that is no concern of a filter's reader.
            warnings.simplefilter("ignore")
            return re.compile(word.text)
    except re.error as error:
        where = f" at its character {error.pos + 1}" if error.pos is not None else ""
        raise Problem(
            word,
            f"not a regular expression: {error.msg}{where}",
            "a backslash before a special character takes it literally; quote the expression",
        ) from None
    except (RecursionError, OverflowError, MemoryError):
        raise Problem(word, "this regular expression is too large", "write a shorter one") from None


def _code(word: Word) -> int:
    """An error by its name or number."""
    text = word.text
    if re.fullmatch(r"[+-]?[0-9]{1,6}", text):
        code = int(text)
        if -(1 << 15) <= code < 1 << 15:
            return code
        raise Problem(word, f"error codes have 16 bits: `{text}` is none", "see Kafka's list of error codes")
    by_name = _error_codes()
    found = by_name.get(text.upper())
    if found is None:
        unknown = re.fullmatch(r"UNKNOWN_CODE_(-?[0-9]{1,5})", text.upper())
        if unknown is not None and -(1 << 15) <= int(unknown[1]) < 1 << 15:
            return int(unknown[1])
        near = suggest(text, by_name)
        raise Problem(
            word,
            f"Kafka has no error `{_short(text)}`",
            did_you_mean(near) or "errors have Kafka's names, as NOT_LEADER_OR_FOLLOWER, or numbers",
        )
    return found


@functools.cache
def _error_codes() -> dict[str, int]:
    return {error.name.upper(): error.code for error in kafka_errors.errors().values()}


def _api_key(word: Word) -> int:
    """An API by its name (old names too) or number."""
    text = word.text
    if re.fullmatch(r"[+-]?[0-9]{1,6}", text):
        if schema.has_api(int(text)):
            return int(text)
        raise Problem(word, f"Kafka has no API {text}", f"for a number that Kafka does not have: `api_key == {text}`")
    found = schema.api_keys().get(text.lower())
    if found is None:
        near = suggest(text, [api.name for api in schema.apis()])
        hint = did_you_mean(near) or "APIs have Kafka's names, as Produce, Fetch or Metadata"
        raise Problem(word, f"Kafka has no API `{_short(text)}`", hint)
    return found


def _network(word: Word) -> tuple[Network, int | None]:
    """`10.0.0.1`, `10.0.0.1:9092`, `10.0.0.0/8`, `::1`, `[::1]:9092`"""
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
        raise Problem(word, f"`{_short(word.text)}` is not an address", hint) from None


def _text_test(operator: str, values: Sequence[Word]) -> Text:
    if operator in ("~", "!~"):
        return Text(frozenset(), _pattern(values[0]), operator == "!~")
    return Text(frozenset(word.text for word in values), None, operator in ("!=", "not in"))


def _bool(word: Word) -> bool:
    if word.text.lower() not in ("true", "false"):
        raise Problem(word, f"`{_short(word.text)}` is neither true nor false", "write `true` or `false`")
    return word.text.lower() == "true"


def _needs(operator: Word, allowed: Sequence[str], what: str) -> None:
    if operator.text not in allowed:
        raise Problem(
            operator,
            f"`{operator.text}` does not go with {what}",
            f"what does: {', '.join(f'`{sign}`' for sign in allowed)}, `is null`, `is not null`",
        )


_EQUAL: Final = ("==", "!=", "in", "not in")
_SEARCH: Final = ("~", "!~")

Binder = Callable[[Word, Sequence[Word]], Test]


def _integers(scale: Scale, bare: int | None = 1, unit: int = 1) -> Binder:
    """Tests on a count of `unit` smallest units each."""

    def bind(operator: Word, values: Sequence[Word]) -> Test:
        _needs(operator, (*_EQUAL, *_ORDER), scale.what)
        test = _whole(operator.text, [_integer(word, scale, bare) for word in values])
        return test if unit == 1 else _scaled_down(test, unit)

    return bind


def _scaled_down(test: Whole, unit: int) -> Whole:
    """The test for x where `test` is for x * unit."""
    spans = _merged((-(-low // unit), high // unit) for low, high in test.spans)
    return Whole(spans, (), test.negated)


def _codes(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH, *_ORDER), "an error code")
    if operator.text in _SEARCH:
        return ErrorNames(_pattern(values[0]), operator.text == "!~")
    return _whole(operator.text, [_code(word) for word in values])


def _errors(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "an error")
    if operator.text in _SEARCH:
        return ErrorNames(_pattern(values[0]), operator.text == "!~")
    for word in values:
        if _code(word) == kafka_errors.NONE:
            raise Problem(word, "success is not an error here", "write `error is null`, or `error_code == 0`")
    return _whole(operator.text, [_code(word) for word in values])


def _apis(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "an API")
    if operator.text in _SEARCH:
        pattern = _pattern(values[0])
        keys = [api.api_key for api in schema.apis() if pattern.search(api.name)]
        return Whole(_merged((key, key) for key in keys), (), operator.text == "!~")
    return _whole(operator.text, [_api_key(word) for word in values])


def _words(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "text")
    return _text_test(operator.text, values)


def _stated(name: str) -> Binder:
    def bind(operator: Word, values: Sequence[Word]) -> Test:
        _needs(operator, (*_EQUAL, *_SEARCH), "text")
        if operator.text in _SEARCH:
            return _text_test(operator.text, values)
        for word in values:
            if word.text.lower() not in STATED[name]:
                near = did_you_mean(suggest(word.text, STATED[name], 1))
                raise Problem(
                    word, f"`{_short(word.text)}` is no {name}", f"{near} values: {', '.join(STATED[name])}".strip()
                )
        return _text_test(operator.text, [Word(word.text.lower(), word.start, word.end) for word in values])

    return bind


def _moments(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_ORDER), "a time")
    return _times(operator.text, values)


def _addresses(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_SEARCH), "an address")
    if operator.text in _SEARCH:
        return Addresses((), _pattern(values[0]), operator.text == "!~")
    return Addresses(tuple(_network(word) for word in values), None, operator.text in ("!=", "not in"))


def _bools(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, _EQUAL, "true or false")
    wanted = frozenset(_bool(word) for word in values)
    return Truth(frozenset((True, False)) - wanted if operator.text in ("!=", "not in") else wanted)


def _reals(operator: Word, values: Sequence[Word]) -> Test:
    _needs(operator, (*_EQUAL, *_ORDER), "a number")
    return Reals(operator.text, tuple(_fraction(word, REAL) for word in values))


# --- binding ----------------------------------------------------------------------------------------------------------


def _column(name: str) -> tuple[Columns, Binder] | None:
    """What a name that is no path is about, and how its values are read."""
    if name in ADDRESSES:
        return Columns(ADDRESSES[name], "address"), _addresses
    if name == "packet":
        return Columns(PACKETS, "integer"), _integers(PLAIN)
    column = SHORT.get(name, name)
    kind = column_types().get(column)
    if kind is None:
        return None
    about = Columns((column,), "integer")
    if column == "api":
        return Columns(("api",), "api"), _apis
    if column == "errors":
        return Columns(("errors",), "errors"), _errors
    if column == "error_code":
        return about, _codes
    if column in STATED:
        return Columns((column,), "text"), _stated(column)
    if pa.types.is_list(kind):
        return Columns((column,), "topics"), _words
    if pa.types.is_timestamp(kind):
        return Columns((column,), "time"), _moments
    if pa.types.is_string(kind):
        return Columns((column,), "text"), _words
    if column.endswith("_us"):
        return about, _integers(DURATION, 1 if name == column else None)
    if column.endswith("_ms"):
        return about, _integers(DURATION, 1000, 1000)
    if column.endswith("_bytes"):
        return about, _integers(SIZE)
    return about, _integers(PLAIN)


_INTEGER_KINDS: Final = frozenset(("int8", "int16", "int32", "int64", "uint16", "uint32"))


def _family(path: str, info: _Info) -> str:
    """Which kinds share tests."""
    if info.secret in ("always", "envelope") or info.kind in ("struct", "bytes"):
        return "opaque"
    if info.kind == "records":
        return "size"
    if info.kind in _INTEGER_KINDS:
        last = path.rpartition(".")[2]
        if info.kind == "int16" and last.lower().endswith("errorcode"):
            return "code"
        return "duration" if last.endswith("Ms") else "size" if last.lower().endswith("bytes") else "integer"
    return "text" if info.kind in ("string", "uuid") else info.kind


_FAMILIES: Final[dict[str, tuple[Binder, tuple[type, ...]]]] = {
    "size": (_integers(SIZE), (int,)),
    "code": (_codes, (int,)),
    "duration": (_integers(DURATION, 1000, 1000), (int,)),
    "integer": (_integers(PLAIN), (int,)),
    "text": (_words, (str,)),
    "bool": (_bools, (bool,)),
    "float64": (_reals, (int, float)),
}


def _opaque(name: Word, operator: Word) -> Problem:
    secret = any(info.secret for info in paths()[name.text])
    if secret:
        return Problem(operator, f"`{name.text}` is secret: it cannot be compared", "write `is null` or `is not null`")
    inner = sorted((path for path in paths() if path.startswith(name.text + ".")), key=len)[:3]
    hint = f"write `is null` or `is not null`{', or go on to a field in it: ' if inner else ''}" + ", ".join(
        f"`{path}`" for path in inner
    )
    return Problem(operator, f"`{name.text}` has no single value", hint)


def _implied(about: Path, infos: Sequence[_Info], test: Test) -> Comparison | None:
    """What the columns must show for the test of a field to pass: every error of a response other than 0 is in
    `errors`, every topic name in `topics`."""
    if all(info.role in _ERRORS for info in infos) and not test(kafka_errors.NONE):
        return Comparison(Columns(("errors",), "errors"), None, "", test)
    if all(info.role == roles.TOPIC for info in infos) and isinstance(test, Text):
        return Comparison(Columns(("topics",), "topics"), None, "", test)
    return None


def _path(name: Word, operator: Word, values: Sequence[Word], source: str) -> Comparison:
    infos = paths()[name.text]
    column = PATH_COLUMNS.get(name.text)
    if column is not None:
        scale = SIZE if name.text.endswith("Bytes") else DURATION if name.text.endswith("Ms") else PLAIN
        smallest = 1000 if scale is DURATION else 1
        about = Columns((column[0],), "integer")
        if operator.text in ("is null", "is not null"):
            return Comparison(about, operator.text == "is not null", source)
        return Comparison(about, None, source, _integers(scale, smallest, smallest // column[1])(operator, values))
    side, *parts = name.text.split(".")
    records = all(info.kind == "records" for info in infos)
    if records and not parts[-1].endswith("SizeInBytes"):
        parts[-1] += "SizeInBytes"
    path = Path(side, tuple(parts))
    if operator.text in ("is null", "is not null"):
        everywhere = Choice(frozenset(info.api_key for info in infos), (), None)
        return Comparison(path, operator.text == "is not null", source, choices=(everywhere,))
    families: dict[str, list[_Info]] = {}
    for info in infos:
        families.setdefault(_family(name.text, info), []).append(info)
    choices: list[Choice] = []
    problem: Problem | None = None
    for family, members in families.items():
        if family == "opaque":
            problem = problem or _opaque(name, operator)
            continue
        bind, takes = _FAMILIES[family]
        try:
            test = bind(operator, values)
        except Problem as found:
            problem = found
            continue
        apis = frozenset(info.api_key for info in members)
        choices.append(Choice(apis, takes, test, _implied(path, members, test)))
    if not choices:
        assert problem is not None
        raise problem
    return Comparison(path, None, source, choices=tuple(choices))


def compare(name: Word, operator: Word, values: Sequence[Word], source: str) -> Comparison:
    """Bind one comparison; `operator` is one of == != < <= > >= ~ !~, `in`, `not in`, `is null`, `is not null`. Raises
    Problem."""
    bound = _column(name.text)
    if bound is None:
        if name.text not in paths():
            raise _unknown_name(name)
        return _path(name, operator, values, source)
    about, bind = bound
    if operator.text in ("is null", "is not null"):
        return Comparison(about, operator.text == "is not null", source)
    return Comparison(about, None, source, bind(operator, values))
