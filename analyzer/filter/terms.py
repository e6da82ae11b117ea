"""The words of a filter: which names there are, and what a value means beside each.

In: a name, an operator and values, as typed. Out: a `Comparison`, bound to columns of the table `exchanges` or to a
path in the decoded bodies, whose values have become tests on integers, text or addresses. Rule: everything that can be
wrong is found here, before a capture is opened: unknown names, wrong units, names of APIs, errors and statuses that
Kafka does not have, paths that no API has, bad regular expressions. `FILTER.md` is the language for people.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from analyzer import columns, tables
from analyzer.filter.conditions import Test, Text
from analyzer.filter.values import (
    DURATION,
    PLAIN,
    SIZE,
    STATED,
    Binder,
    addresses_of,
    apis_of,
    bools_of,
    codes_of,
    errors_of,
    integers_of,
    moments_of,
    reals_of,
    stated_as,
    words_of,
)
from analyzer.filter.words import Word, WordProblem, did_you_mean, short, suggest
from analyzer.protocol import errors as kafka_errors
from analyzer.protocol import program
from analyzer.protocol.schema import REQUEST, RESPONSE

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


@dataclass(frozen=True, slots=True)
class _Info:
    """A field as one API has it: `kind` of the values (an array's are its elements); `listed`: the column of lists that
    has all of them, if there is one."""

    api_key: int
    kind: str
    secret: str
    listed: str | None


@functools.cache
def paths() -> dict[str, tuple[_Info, ...]]:
    """Every path with `request.` or `response.` before it, and what it is in each API. A body shows the size of records
    in their place, so they have a second spelling."""
    loaded = program.load()
    listed = columns.lists_of_fields(loaded)
    found: dict[str, list[_Info]] = {}
    for info in loaded.fields:
        if info.api_key < 0 or info.direction not in (REQUEST, RESPONSE) or not info.path:
            continue
        if info.kind in ("tags", "tag", "message") or info.path.endswith("[]"):
            continue
        kind, secret, column = info.kind, info.secret, listed[info.id]
        if kind == "array" and info.element != "struct":
            element = loaded.fields[loaded.field_id(info.api_key, info.direction, info.path + "[]")]
            kind, secret, column = element.kind, info.secret or element.secret, listed[element.id]
        elif kind == "array":
            kind = "struct"
        name = ("request." if info.direction == REQUEST else "response.") + info.path
        found.setdefault(name, []).append(_Info(info.api_key, kind, secret, column))
        if kind == "records":
            found.setdefault(name + "SizeInBytes", []).append(_Info(info.api_key, kind, secret, column))
    return {name: tuple(infos) for name, infos in found.items()}


def _unknown_name(word: Word) -> WordProblem:
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
        return WordProblem(word, f"no API has a field `{short(name)}` in any version", hint)
    if name in ("request", "response"):
        hint = f"write `{name}.` and a path, as in `request.acks`"
        return WordProblem(word, f"`{name}` needs a field after it", hint)
    near = suggest(name, names())
    last = "." + name.rpartition(".")[2].lower()
    if not near:
        near = sorted((path for path in paths() if path.lower().endswith(last)), key=len)[:3]
    hint = did_you_mean(near) or (
        "a name is a column of the table exchanges, one of "
        f"{', '.join(sorted([*SHORT, *ADDRESSES, 'packet']))}, or a path that starts with request. or response."
    )
    return WordProblem(word, f"there is no `{short(name)}` to filter by", hint)


# --- binding ----------------------------------------------------------------------------------------------------------


def _column(name: str) -> tuple[Columns, Binder] | None:
    """What a name that is no path is about, and how its values are read."""
    if name in ADDRESSES:
        return Columns(ADDRESSES[name], "address"), addresses_of
    if name == "packet":
        return Columns(PACKETS, "integer"), integers_of(PLAIN)
    column = SHORT.get(name, name)
    kind = column_types().get(column)
    if kind is None:
        return None
    about = Columns((column,), "integer")
    if column == "api":
        return Columns(("api",), "api"), apis_of
    if column == "errors":
        return Columns(("errors",), "errors"), errors_of
    if column == "error_code":
        return about, codes_of
    if column in STATED:
        return Columns((column,), "text"), stated_as(column)
    if pa.types.is_list(kind):
        return Columns((column,), "topics"), words_of
    if pa.types.is_timestamp(kind):
        return Columns((column,), "time"), moments_of
    if pa.types.is_string(kind):
        return Columns((column,), "text"), words_of
    if column.endswith("_us"):
        return about, integers_of(DURATION, 1 if name == column else None)
    if column.endswith("_ms"):
        return about, integers_of(DURATION, 1000, 1000)
    if column.endswith("_bytes"):
        return about, integers_of(SIZE)
    return about, integers_of(PLAIN)


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
    "size": (integers_of(SIZE), (int,)),
    "code": (codes_of, (int,)),
    "duration": (integers_of(DURATION, 1000, 1000), (int,)),
    "integer": (integers_of(PLAIN), (int,)),
    "text": (words_of, (str,)),
    "bool": (bools_of, (bool,)),
    "float64": (reals_of, (int, float)),
}


def _opaque(name: Word, operator: Word) -> WordProblem:
    secret = any(info.secret for info in paths()[name.text])
    if secret:
        hint = "write `is null` or `is not null`"
        return WordProblem(operator, f"`{name.text}` is secret: it cannot be compared", hint)
    inner = sorted((path for path in paths() if path.startswith(name.text + ".")), key=len)[:3]
    hint = f"write `is null` or `is not null`{', or go on to a field in it: ' if inner else ''}" + ", ".join(
        f"`{path}`" for path in inner
    )
    return WordProblem(operator, f"`{name.text}` has no single value", hint)


def _implied(about: Path, infos: Sequence[_Info], test: Test) -> Comparison | None:
    """What the columns must show for the test of a field to pass: every error of a response other than 0 is in
    `errors`, every topic name in `topics`."""
    if all(info.listed == "errors" for info in infos) and not test(kafka_errors.NONE):
        return Comparison(Columns(("errors",), "errors"), None, "", test)
    if all(info.listed == "topics" for info in infos) and isinstance(test, Text):
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
        return Comparison(about, None, source, integers_of(scale, smallest, smallest // column[1])(operator, values))
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
    problem: WordProblem | None = None
    for family, members in families.items():
        if family == "opaque":
            problem = problem or _opaque(name, operator)
            continue
        bind, takes = _FAMILIES[family]
        try:
            test = bind(operator, values)
        except WordProblem as found:
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
    WordProblem."""
    bound = _column(name.text)
    if bound is None:
        if name.text not in paths():
            raise _unknown_name(name)
        return _path(name, operator, values, source)
    about, bind = bound
    if operator.text in ("is null", "is not null"):
        return Comparison(about, operator.text == "is not null", source)
    return Comparison(about, None, source, bind(operator, values))
