"""Names in filters and column lists: columns of `exchanges`, their short names, and paths in the decoded bodies.

In: a word as typed in `--filter`, `--fields`, `--sort` or `--count-by`. Out: an `Operand`, which knows the kind of its
values and gets them from a row and its bodies. Rules: every option resolves names here, so that all accept the same
ones; an unknown name raises WordError with suggestions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.common import address_names
from kwire.analyzer.dataset import tables
from kwire.analyzer.filter.conditions import end_point
from kwire.analyzer.filter.tokens import Word, WordError, did_you_mean, short, suggest
from kwire.analyzer.filter.values import ENUMERATED, micros
from kwire.analyzer.protocol import api_keys, program
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE

# --- where values are -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """One or more columns of `exchanges`, all of one `form`: `integer`, `time`, `text`, `api`, `errors`, `topics`,
    `address`."""

    names: tuple[str, ...]
    form: str


@dataclass(frozen=True, slots=True)
class Path:
    """A field of the decoded bodies (`side`: `request`, `response`), or of decoded keys and values (`key`, `value`).
    `parts` are keys from the outside in."""

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
"""Short names of columns. In a filter `error` means all errors of the response, not only the first."""

ADDRESSES: Final = {"client": ("client_ip", "client_port"), "broker": ("broker_ip", "broker_port")}
PACKETS: Final = ("request_packet", "response_packet")

PATH_COLUMNS: Final = {
    "request.acks": ("acks", 1),
    "request.maxWaitMs": ("max_wait_ms", 1),
    "request.minBytes": ("min_bytes", 1),
    "response.throttleTimeMs": ("throttle_us", 1000),
}
"""Paths that are a column for every API that has the path, and how many of the column's units one unit is."""


@functools.cache
def column_types() -> dict[str, pa.DataType]:
    """Types of the columns of `exchanges` by name."""
    return {column.name: column.type for column in tables.EXCHANGES}


@functools.cache
def names() -> tuple[str, ...]:
    """List every name that is no path, sorted."""
    return tuple(sorted({*column_types(), *SHORT, *ADDRESSES, *address_names.COLUMNS, "packet"}))


@dataclass(frozen=True, slots=True)
class PathInfo:
    """A field in one API. `kind`: type of its values (of an array, of its elements); `listed`: the column of lists that
    holds all of them, or None."""

    api_key: int
    kind: str
    secret: str
    listed: str | None


@functools.cache
def paths() -> dict[str, tuple[PathInfo, ...]]:
    """Map every path, with its prefix `request.` or `response.`, to the field in each API. Records have a second
    spelling, `...SizeInBytes`, because bodies show their size instead of them."""
    loaded = program.load()
    listed = exchange_tables.lists_of_fields(loaded)
    by_name: dict[str, list[PathInfo]] = {}
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
        by_name.setdefault(name, []).append(PathInfo(info.api_key, kind, secret, column))
        if kind == "records":
            by_name.setdefault(name + "SizeInBytes", []).append(PathInfo(info.api_key, kind, secret, column))
    return {name: tuple(infos) for name, infos in by_name.items()}


PAYLOAD_SIDES: Final = ("key", "value")
PAYLOAD_APIS: Final = frozenset((api_keys.PRODUCE, api_keys.FETCH, api_keys.SHARE_FETCH))
"""APIs whose records have keys and values of anybody's."""


def payload_path(name: str) -> Path | None:
    """Get the path of a field of decoded keys or values (`value.order.id`; `value` is the whole); None: it is none."""
    side, *parts = name.replace("[]", "").split(".")
    return Path(side, tuple(parts)) if side in PAYLOAD_SIDES and all(parts) else None


@functools.cache
def _lists() -> frozenset[str]:
    """Paths that are a list in at least one API."""
    return frozenset(
        ("request." if info.direction == REQUEST else "response.") + info.path
        for info in program.load().fields
        if info.api_key >= 0 and info.kind == "array" and info.path and not info.path.endswith("[]")
    )


def without_brackets(word: Word) -> Word:
    """Remove the optional `[]` after lists in a path. Raises WordError if `[]` follows a field that is no list."""
    if "[]" not in word.text:
        return word
    so_far: list[str] = []
    for part in word.text.split("."):
        so_far.append(part.removesuffix("[]"))
        path = ".".join(so_far)
        if part.endswith("[]") and path in paths() and path not in _lists():
            raise WordError(word, f"`{short(path)}` is no list", "leave the `[]` out")
    return Word(".".join(so_far), word.start, word.end)


HEADINGS: Final = {
    "id": "correlation_id",
    "mostly": "cause",
    "result": "error` and `status",
}
"""Headings of the list of exchanges that are no names, and what has what they show."""


def unknown_name(word: Word, purpose: str) -> WordError:
    """Describe an unknown name with suggestions. `purpose`: what the name is for, as in "to filter by"."""
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
        return WordError(word, f"no API has a field `{short(name)}` in any version", hint)
    if side in PAYLOAD_SIDES:
        hint = "--filter has fields of keys and values, and so has --fields with --records"
        return WordError(word, f"there is no `{short(name)}` {purpose}", hint)
    if name in ("request", "response"):
        hint = f"write `{name}.` and a path, as in `request.acks`"
        return WordError(word, f"`{name}` needs a field after it", hint)
    if name in HEADINGS:
        return WordError(
            word, f"there is no `{name}` {purpose}", f"what the list shows as {name} is `{HEADINGS[name]}`"
        )
    near = suggest(name, names())
    last = "." + name.rpartition(".")[2].lower()
    if not near:
        near = sorted((path for path in paths() if path.lower().endswith(last)), key=len)[:3]
    hint = did_you_mean(near) or (
        "a name is a column of the table exchanges, one of "
        f"{', '.join(sorted([*SHORT, *ADDRESSES, 'packet']))}, or a path that starts with request. or response."
    )
    return WordError(word, f"there is no `{short(name)}` {purpose}", hint)


# --- names to operands ------------------------------------------------------------------------------------------------

_INTEGER_KINDS: Final = frozenset(("int8", "int16", "int32", "int64", "uint16", "uint32"))


def family(path: str, info: PathInfo) -> str:
    """Kind of a field for tests: `opaque`, `size`, `code`, `duration`, `integer`, `text`, `bool` or `float64`."""
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
"""By kind: the Python types of values that are compared. (Bodies show a float64 NaN as text.)"""


@dataclass(frozen=True, slots=True)
class Operand:
    """A column or path that a word names.

    kind     one of `TYPES`; `opaque` if there is no single value to compare
    unit     microseconds or bytes per stored unit
    per      stored units per unit of the word
    several  True if there may be many values
    apis     keys of the APIs that have the path; None for a column
    """

    word: str
    about: Columns | Path
    kind: str
    unit: int = 1
    per: int = 1
    several: bool = False
    apis: frozenset[int] | None = None

    @property
    def heading(self) -> str:
        """The name above values: of a duration with a short name the column's, which says the unit."""
        return SHORT[self.word] if self.kind == "duration" and self.word in SHORT else self.word

    def values(self, row: Mapping[str, Any], request: Any = None, response: Any = None) -> list[Any]:
        """Get one exchange's values to compare, without nulls: times as microseconds, errors as codes."""
        if isinstance(self.about, Columns):
            return column_values(row, self.about)
        if self.apis is None or row["api_key"] not in self.apis:
            return []
        values = body_values(request if self.about.side == "request" else response, self.about.parts)
        return [value for value in values if type(value) in TYPES[self.kind]]

    def shown(self, row: Mapping[str, Any], request: Any = None, response: Any = None) -> Any:
        """Get one exchange's value for output: a column as in the table, a path's value, or a list if there may be
        several; None if there is none."""
        if isinstance(self.about, Path):
            if self.apis is None or row["api_key"] not in self.apis:
                return None
            values = body_values(request if self.about.side == "request" else response, self.about.parts)
            return (values or None) if self.several else values[0] if values else None
        if self.about.form == "address":
            ip, port = (row[name] for name in self.about.names)
            return None if ip is None else end_point(ip, port)
        value = next((value for name in self.about.names if (value := cell(row, name)) is not None), None)
        return value if value is None or self.per == 1 else value // self.per

    def parts(self, row: Mapping[str, Any], request: Any = None, response: Any = None) -> list[Any]:
        """Get one exchange's values one by one: elements of lists, errors by name; [None] if there is none."""
        value = self.shown(row, request, response)
        if not isinstance(value, list):
            return [value]
        values = [
            element["error"] if isinstance(element, dict) and self.kind == "errors" else element for element in value
        ]
        return values or [None]


def resolve(word: Word, purpose: str = "to filter by") -> Operand:
    """Resolve a name to its column or path. Raises WordError for an unknown name."""
    word = without_brackets(word)
    if word.text in address_names.COLUMNS and not address_names.known_names():
        raise WordError(word, f"`{word.text}` needs names of addresses", "--names FILE has them (kwire help filter)")
    operand = _column(word.text)
    if operand is not None:
        return operand
    infos = paths().get(word.text)
    if infos is None:
        raise unknown_name(word, purpose)
    kinds = {family(word.text, info) for info in infos}
    kind = kinds.pop() if len(kinds) == 1 else "opaque"
    unit = 1000 if kind == "duration" else 1
    if word.text in PATH_COLUMNS:
        column_name, per = PATH_COLUMNS[word.text]
        return Operand(word.text, Columns((column_name,), "integer"), kind, unit // per, per)
    steps = word.text.split(".")
    several = any(".".join(steps[:end]) in _lists() for end in range(2, len(steps) + 1))
    apis = frozenset(info.api_key for info in infos)
    return Operand(word.text, path_of(word.text), kind, unit, several=several, apis=apis)


def path_of(name: str) -> Path:
    """Get the path of a name in decoded bodies, which show the size of records instead of them."""
    side, *parts = name.split(".")
    if all(info.kind == "records" for info in paths()[name]) and not parts[-1].endswith("SizeInBytes"):
        parts[-1] += "SizeInBytes"
    return Path(side, tuple(parts))


def _column(name: str) -> Operand | None:
    """Resolve a name that is no path; None if it is unknown."""
    if name in ADDRESSES:
        return Operand(name, Columns(ADDRESSES[name], "address"), "address")
    if name == "packet":
        return Operand(name, Columns(PACKETS, "integer"), "integer")
    if name in address_names.COLUMNS:
        return Operand(name, Columns((name,), "text"), "text")
    column = SHORT.get(name, name)
    kind = column_types().get(column)
    if kind is None:
        return None
    if column in ("api", "errors"):
        return Operand(name, Columns((column,), column), column, several=column == "errors")
    if column == "error_code":
        return Operand(name, Columns((column,), "integer"), "code")
    if pa.types.is_list(kind):
        return Operand(name, Columns((column,), "topics"), "topics", several=True)
    if pa.types.is_timestamp(kind):
        return Operand(name, Columns((column,), "time"), "time")
    if column in ENUMERATED or pa.types.is_string(kind):
        return Operand(name, Columns((column,), "text"), "text")
    about = Columns((column,), "integer")
    if column.endswith("_us"):
        return Operand(name, about, "duration")
    if column.endswith("_ms"):
        return Operand(name, about, "duration", 1000)
    return Operand(name, about, "size" if column.endswith("_bytes") else "integer")


def resolve_printed(word: Word, purpose: str) -> Operand:
    """Resolve a name for output or sorting: there `error` is the column of the first error, and `api` is a name, not a
    number. Raises WordError."""
    if word.text in ("error", "api"):
        return Operand(word.text, Columns((word.text,), "text"), "text")
    return resolve(word, purpose)


# --- values of one exchange -------------------------------------------------------------------------------------------


def cell(row: Mapping[str, Any], name: str) -> Any:
    """Get one exchange's value of a column, which may be the name of an address."""
    address = address_names.COLUMNS.get(name)
    return row[name] if address is None else address_names.name_of(row[address])


def column_values(row: Mapping[str, Any], about: Columns) -> list[Any]:
    """Get the values, without nulls, of one exchange's columns."""
    if about.form == "api":
        return [row["api_key"]] if row["api"] is not None and row["api_key"] is not None else []
    if about.form == "errors":
        return [error["code"] for error in row["errors"] or ()]
    if about.form == "address":
        pair = tuple(row[name] for name in about.names)
        return [] if None in pair else [pair]
    values = []
    for name in about.names:
        value = cell(row, name)
        if value is not None:
            values.extend(value) if about.form == "topics" else values.append(value)
    values = [value for value in values if value is not None]
    return [micros(value) for value in values] if about.form == "time" else values


def body_values(body: dict[str, Any] | None, parts: tuple[str, ...]) -> list[Any]:
    """Get all values at a path, elements of lists one by one, without nulls."""
    nodes: list[Any] = [] if body is None else [body]
    for part in parts:
        next_nodes: list[Any] = []
        for node in nodes:
            value = node.get(part) if isinstance(node, dict) else None
            if isinstance(value, list):
                next_nodes.extend(value)
            elif value is not None:
                next_nodes.append(value)
        nodes = next_nodes
    return [value for value in nodes if value is not None]
