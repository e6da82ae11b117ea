"""What a word names: a column of `exchanges`, a short name of one, or a path in the decoded bodies.

In: a word as typed in `--filter`, `--fields`, `--sort` or `--count-by`. Out: a `Named`, which knows where its values
are and what kind they are, and takes them from a row and its bodies. Rule: all doors ask here, so that they know the
same names; a word that names nothing raises WordProblem with what may have been meant.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from analyzer.bulk import exchange_tables
from analyzer.dataset import tables
from analyzer.filter.tokens import Word, WordProblem, did_you_mean, short, suggest
from analyzer.filter.values import STATED, micros
from analyzer.protocol import program
from analyzer.protocol.schema import REQUEST, RESPONSE

# --- where values are -------------------------------------------------------------------------------------------------


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


# --- names ------------------------------------------------------------------------------------------------------------

SHORT: Final = {
    "latency": "latency_us",
    "total": "total_us",
    "throttle": "throttle_us",
    "topic": "topics",
    "error": "errors",
    "group": "group_id",
    "max_wait": "max_wait_ms",
    "muted": "muted_us",
    "network": "network_us",
    "hold": "hold_us",
    "queue": "queue_us",
    "time": "request_time",
}
"""Short names of columns. `error` is, in a filter, about all errors of the response, not only the first."""

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
class Info:
    """A field as one API has it: `kind` of the values (an array's are its elements); `listed`: the column of lists that
    has all of them, if there is one."""

    api_key: int
    kind: str
    secret: str
    listed: str | None


@functools.cache
def paths() -> dict[str, tuple[Info, ...]]:
    """Every path with `request.` or `response.` before it, and what it is in each API. A body shows the size of records
    in their place, so they have a second spelling."""
    loaded = program.load()
    listed = exchange_tables.lists_of_fields(loaded)
    found: dict[str, list[Info]] = {}
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
        found.setdefault(name, []).append(Info(info.api_key, kind, secret, column))
        if kind == "records":
            found.setdefault(name + "SizeInBytes", []).append(Info(info.api_key, kind, secret, column))
    return {name: tuple(infos) for name, infos in found.items()}


@functools.cache
def _lists() -> frozenset[str]:
    """Paths that are a list in some API."""
    return frozenset(
        ("request." if info.direction == REQUEST else "response.") + info.path
        for info in program.load().fields
        if info.api_key >= 0 and info.kind == "array" and info.path and not info.path.endswith("[]")
    )


def spelled(word: Word) -> Word:
    """The word without the `[]` that may stand behind lists in a path. Raises WordProblem where it is no list."""
    if "[]" not in word.text:
        return word
    so_far: list[str] = []
    for part in word.text.split("."):
        so_far.append(part.removesuffix("[]"))
        path = ".".join(so_far)
        if part.endswith("[]") and path in paths() and path not in _lists():
            raise WordProblem(word, f"`{short(path)}` is no list", "leave the `[]` out")
    return Word(".".join(so_far), word.start, word.end)


def unknown(word: Word, purpose: str) -> WordProblem:
    """What is wrong with a word that names nothing; `purpose`: what it was to be good for."""
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
    return WordProblem(word, f"there is no `{short(name)}` {purpose}", hint)


# --- what a word names ------------------------------------------------------------------------------------------------

_INTEGER_KINDS: Final = frozenset(("int8", "int16", "int32", "int64", "uint16", "uint32"))


def family(path: str, info: Info) -> str:
    """Which kinds of fields share tests: `opaque`, `size`, `code`, `duration`, `integer`, `text`, `bool`, `float64`."""
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


TYPES: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int,),
    "duration": (int,),
    "size": (int,),
    "code": (int,),
    "time": (int,),
    "api": (int,),
    "errors": (int,),
    "text": (str,),
    "topics": (str,),
    "bool": (bool,),
    "float64": (int, float),
    "address": (tuple,),
    "opaque": (),
}
"""By kind: the Python types of values that are compared. (A float64 that is no number is text in a body.)"""


@dataclass(frozen=True, slots=True)
class Named:
    """What a word names. `kind`: one of `TYPES`, `opaque` where there is no single value to compare; `unit`: how many
    microseconds or bytes one stored is; `per`: how many stored make one as the word means it; `several`: there may be
    many values; `apis`: those that have the path, None for a column."""

    word: str
    about: Columns | Path
    kind: str
    unit: int = 1
    per: int = 1
    several: bool = False
    apis: frozenset[int] | None = None

    def values(self, row: Mapping[str, Any], request: Any = None, response: Any = None) -> list[Any]:
        """What there is to compare of one exchange, nulls left out: times as microseconds, errors as codes."""
        if isinstance(self.about, Columns):
            return column_values(row, self.about)
        if self.apis is None or row["api_key"] not in self.apis:
            return []
        found = body_values(request if self.about.side == "request" else response, self.about.parts)
        return [value for value in found if type(value) in TYPES[self.kind]]

    def shown(self, row: Mapping[str, Any], request: Any = None, response: Any = None) -> Any:
        """The same to be printed: the column as the table has it, of a path the value or, where there may be several,
        all of them; None where there is none."""
        if isinstance(self.about, Path):
            if self.apis is None or row["api_key"] not in self.apis:
                return None
            values = body_values(request if self.about.side == "request" else response, self.about.parts)
            return (values or None) if self.several else values[0] if values else None
        if self.about.form == "address":
            ip, port = (row[name] for name in self.about.names)
            return None if ip is None else f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        value = next((row[name] for name in self.about.names if row[name] is not None), None)
        return value if value is None or self.per == 1 else value // self.per

    def parts(self, row: Mapping[str, Any], request: Any = None, response: Any = None) -> list[Any]:
        """The same one by one: the elements of lists, errors by their names; [None] where there is none."""
        value = self.shown(row, request, response)
        if not isinstance(value, list):
            return [value]
        values = [one["error"] if isinstance(one, dict) and self.kind == "errors" else one for one in value]
        return values or [None]


def named(word: Word, purpose: str = "to filter by") -> Named:
    """What a word names. Raises WordProblem where that is nothing."""
    word = spelled(word)
    found = _column(word.text)
    if found is not None:
        return found
    infos = paths().get(word.text)
    if infos is None:
        raise unknown(word, purpose)
    kinds = {family(word.text, info) for info in infos}
    kind = kinds.pop() if len(kinds) == 1 else "opaque"
    unit = 1000 if kind == "duration" else 1
    if word.text in PATH_COLUMNS:
        column, per = PATH_COLUMNS[word.text]
        return Named(word.text, Columns((column,), "integer"), kind, unit // per, per)
    steps = word.text.split(".")
    several = any(".".join(steps[:end]) in _lists() for end in range(2, len(steps) + 1))
    apis = frozenset(info.api_key for info in infos)
    return Named(word.text, path_of(word.text), kind, unit, several=several, apis=apis)


def path_of(name: str) -> Path:
    """A path as bodies have it, which show the size of records in their place."""
    side, *parts = name.split(".")
    if all(info.kind == "records" for info in paths()[name]) and not parts[-1].endswith("SizeInBytes"):
        parts[-1] += "SizeInBytes"
    return Path(side, tuple(parts))


def _column(name: str) -> Named | None:
    """What a name that is no path is about."""
    if name in ADDRESSES:
        return Named(name, Columns(ADDRESSES[name], "address"), "address")
    if name == "packet":
        return Named(name, Columns(PACKETS, "integer"), "integer")
    column = SHORT.get(name, name)
    kind = column_types().get(column)
    if kind is None:
        return None
    if column in ("api", "errors"):
        return Named(name, Columns((column,), column), column, several=column == "errors")
    if column == "error_code":
        return Named(name, Columns((column,), "integer"), "code")
    if pa.types.is_list(kind):
        return Named(name, Columns((column,), "topics"), "topics", several=True)
    if pa.types.is_timestamp(kind):
        return Named(name, Columns((column,), "time"), "time")
    if column in STATED or pa.types.is_string(kind):
        return Named(name, Columns((column,), "text"), "text")
    about = Columns((column,), "integer")
    if column.endswith("_us"):
        return Named(name, about, "duration")
    if column.endswith("_ms"):
        return Named(name, about, "duration", 1000)
    return Named(name, about, "size" if column.endswith("_bytes") else "integer")


def printed(word: Word, purpose: str) -> Named:
    """What a word names where values are printed or sorted: `error` is then the column, the first of the errors, and
    `api` is a name, not a number."""
    if word.text in ("error", "api"):
        return Named(word.text, Columns((word.text,), "text"), "text")
    return named(word, purpose)


# --- values of one exchange -------------------------------------------------------------------------------------------


def column_values(row: Mapping[str, Any], about: Columns) -> list[Any]:
    """The values, nulls left out, of one exchange's columns."""
    if about.form == "api":
        return [row["api_key"]] if row["api"] is not None and row["api_key"] is not None else []
    if about.form == "errors":
        return [error["code"] for error in row["errors"] or ()]
    if about.form == "address":
        pair = tuple(row[name] for name in about.names)
        return [] if None in pair else [pair]
    found = []
    for name in about.names:
        value = row[name]
        if value is not None:
            found.extend(value) if about.form == "topics" else found.append(value)
    found = [value for value in found if value is not None]
    return [micros(value) for value in found] if about.form == "time" else found


def body_values(body: dict[str, Any] | None, parts: tuple[str, ...]) -> list[Any]:
    """All values at a path, elements of lists one by one, nulls left out."""
    current: list[Any] = [] if body is None else [body]
    for part in parts:
        found: list[Any] = []
        for one in current:
            value = one.get(part) if isinstance(one, dict) else None
            if isinstance(value, list):
                found.extend(value)
            elif value is not None:
                found.append(value)
        current = found
    return [value for value in current if value is not None]
