"""Read some fields of many messages as columns, by one call of the decoding kernel for all messages.

In: `Messages`, and either paths of fields of one API (`project`) or a selection of fields of all APIs (`decode_rows`).
Out: a `Projection`, one table for the messages and one for the elements of each array; or the rows of the tape. A
message is its header and then its body, decoded by the rules of `decoding.decode`. Only messages that decode have rows;
bytes behind the body are no error (`ended` says where it ended).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from analyzer.protocol import program, schema
from analyzer.protocol.decoding import FULL, NO_LAYOUT, OK, STACK_COLUMNS, TAPE_COLUMNS, decode
from analyzer.protocol.schema import REQUEST, Field
from captures.kernels import NULL, Array, Bytes, Int, Table, kernel

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Frame = tuple[bytes, int, int, int]
"""A frame without the four bytes of its length; its API, version and direction."""

(BEGIN, END, HEADER, BODY, SPAN_COLUMNS) = range(5)
"""Of a message: its bytes, and where the code of its header and of its body starts."""

(ENDED, STATUS, ENDING_COLUMNS) = range(3)
"""Where a message ended, or the field that could not be read; `decoding`'s status."""

(MESSAGE, FIELD, VALUE, POSITION, LENGTH) = range(TAPE_COLUMNS)
"""Of a row of the tape (`decoding`)."""

_ROWS: Final = 1 << 14
_MOST_ROWS: Final = 1 << 20
_HEADER_BYTES: Final = 4  # API and version, with which every request starts


class Messages(NamedTuple):
    """Messages as columns: [begin, end) of their frames (without the length) in `buffer`, a writable uint8 array; API,
    version and direction, int64[n] each."""

    buffer: npt.NDArray[np.uint8]
    begin: Numbers
    end: Numbers
    api_key: Numbers
    version: Numbers
    direction: Numbers

    @classmethod
    def from_frames(cls, frames: Sequence[Frame]) -> Messages:
        """Copy frames one behind the other."""
        numbers = np.array([(len(data), *others) for data, *others in frames], np.int64).reshape(-1, 4)
        size, api_key, version, direction = np.ascontiguousarray(numbers.T)
        buffer = np.frombuffer(bytearray(b"".join(data for data, *_ in frames)), np.uint8)
        end = np.cumsum(size)
        return cls(buffer, end - size, end, api_key, version, direction)

    def spans(self) -> Numbers:
        """int64[n, SPAN_COLUMNS] as the kernel takes them; code starts are -1 where Kafka never had such a message, or
        where a request's own first bytes name another API or version."""
        loaded = program.load()
        _, apis, versions = loaded.start.shape
        known = (self.api_key >= 0) & (self.api_key < apis) & (self.version >= 0) & (self.version < versions)
        known &= (self.end - self.begin >= _HEADER_BYTES) & (self.end <= len(self.buffer))
        code = np.where(known, self.direction, 0), np.where(known, self.api_key, 0), np.where(known, self.version, 0)
        spans = np.empty((len(self.begin), SPAN_COLUMNS), np.int64)
        spans[:, BEGIN], spans[:, END] = self.begin, self.end
        spans[:, BODY] = loaded.start[code]
        spans[:, HEADER] = loaded.header_start[code[0], np.maximum(loaded.header_version[code], 0)]
        requests = np.flatnonzero(known & (self.direction == REQUEST))
        first = self.buffer[self.begin[requests, np.newaxis] + np.arange(_HEADER_BYTES)].astype(np.int64)
        known[requests] = (first[:, 0] << 8 | first[:, 1]) == self.api_key[requests]
        known[requests] &= (first[:, 2] << 8 | first[:, 3]) == self.version[requests]
        spans[~known | (spans[:, BODY] < 0), HEADER] = -1
        return spans


# --- rows -------------------------------------------------------------------------------------------------------------


@kernel
def decode_many(
    buffer: Bytes,
    spans: Table,
    begin: Int,
    code: Array,
    tags: Array,
    tag_entries: Array,
    selected: Bytes,
    tape: Table,
    endings: Table,
    stack: Table,
) -> tuple[Int, Int]:
    """Decode the messages of `spans` int64[n, SPAN_COLUMNS] from `begin` on, as long as `tape` has room -> (the first
    that is not decoded, rows of the tape in use). `endings` int64[n, ENDING_COLUMNS] is filled in."""
    used = np.int64(0)
    row = begin
    while row < len(spans):
        before = used
        end = spans[row, END]
        at, used, status, _ = decode(
            buffer,
            spans[row, BEGIN],
            end,
            spans[row, HEADER],
            code,
            tags,
            tag_entries,
            selected,
            tape,
            used,
            row,
            stack,
        )
        if status == OK:
            at, used, status, _ = decode(
                buffer, at, end, spans[row, BODY], code, tags, tag_entries, selected, tape, used, row, stack
            )
        if status == FULL:
            return row, before
        endings[row, ENDED] = at
        endings[row, STATUS] = status
        row += 1
    return row, used


def decode_blocks(messages: Messages, selected: np.ndarray) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the tape of the selected fields, block after block of messages (valid until the next), and the endings so
    far. A message with more than a million selected fields has the status FULL, and no rows."""
    loaded = program.load()
    spans = messages.spans()
    endings = np.zeros((len(spans), ENDING_COLUMNS), np.int64)
    endings[:, STATUS] = FULL
    stack = np.empty((program.STACK_DEPTH, STACK_COLUMNS), np.int64)
    tape = np.empty((_ROWS, TAPE_COLUMNS), np.int64)
    at = 0
    while at < len(spans):
        following, used = decode_many(messages.buffer, spans, at, *loaded.arrays, selected, tape, endings, stack)
        if following == at and len(tape) < _MOST_ROWS:
            tape = np.empty((len(tape) * 8, TAPE_COLUMNS), np.int64)
            continue
        yield tape[:used], endings
        at = max(int(following), at + 1)


@dataclass(frozen=True, slots=True)
class FieldRows:
    """Rows of the tape as columns, in order (`decoding`); by message: was it decoded (`decoding`'s OK), where it
    ended."""

    message: Numbers
    field: Numbers
    value: Numbers
    position: Numbers
    length: Numbers
    decoded: Flags
    ended: Numbers

    def where(self, mask: Flags | Numbers) -> FieldRows:
        """Some of the rows."""
        columns = (self.message, self.field, self.value, self.position, self.length)
        message, field, value, position, length = (column[mask] for column in columns)
        return FieldRows(message, field, value, position, length, self.decoded, self.ended)


def decode_rows(
    messages: Messages, selected: np.ndarray, wanted: Flags | None = None, max_rows: int | None = None
) -> FieldRows:
    """Decode the selected fields (uint8[n_fields]) of the messages, or of the `wanted` ones. Once there are more than
    `max_rows` rows the messages that are left are not decoded."""
    which = np.arange(len(messages.begin)) if wanted is None else np.flatnonzero(wanted)
    some = messages if wanted is None else Messages(messages.buffer, *(column[which] for column in messages[1:]))
    blocks: list[Numbers] = []
    rows = 0
    endings = np.zeros((len(which), ENDING_COLUMNS), np.int64)
    endings[:, STATUS] = NO_LAYOUT
    for tape, endings in decode_blocks(some, selected):
        block = tape[endings[tape[:, MESSAGE], STATUS] == OK]
        block[:, MESSAGE] = which[block[:, MESSAGE]]
        blocks.append(block)
        rows += len(block)
        if max_rows is not None and rows > max_rows:
            break
    decoded = np.zeros(len(messages.begin), np.bool_)
    ended = np.zeros(len(messages.begin), np.int64)
    decoded[which], ended[which] = endings[:, STATUS] == OK, endings[:, ENDED]
    every = np.concatenate(blocks) if blocks else np.empty((0, TAPE_COLUMNS), np.int64)
    message, field, value, position, length = np.ascontiguousarray(every.T)
    return FieldRows(message, field, value, position, length, decoded, ended)


# --- columns ----------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A field of all rows of a table: its value, or of strings, bytes and arrays their length (-1: null; NULL where the
    row has no such field); position of its bytes (-1: there are none) and their number."""

    value: Numbers
    position: Numbers
    length: Numbers

    @property
    def present(self) -> Flags:
        """Whether the row has the field, which may be null."""
        return self.position >= 0

    def where(self, rows: Flags | Numbers) -> Column:
        """Some of the rows."""
        return Column(self.value[rows], self.position[rows], self.length[rows])

    def filled(self, absent: int) -> Numbers:
        """The values, with a default where the row has no such field."""
        return np.where(self.present, self.value, absent)

    def otherwise(self, other: Column) -> Column:
        """This column, or the other one in rows that do not have this field."""
        pairs = zip(self, other, strict=True)
        return Column(*(np.where(self.present, here, there) for here, there in pairs))


class Elements(NamedTuple):
    """Elements of an array in all messages, in order: whose message, and the row of the element of the next outer array
    that holds them (of outermost arrays: the message)."""

    message: Numbers
    parent: Numbers


@dataclass(frozen=True, slots=True)
class Projection:
    """Columns by path, as they were asked for, and elements by the path of their array (with `[]`). Columns are aligned
    with the elements of the innermost array of their path, and with the messages where there is none."""

    decoded: Flags
    ended: Numbers
    elements: dict[str, Elements]
    columns: dict[str, Column]

    def column(self, path: str, below: str = "") -> Column:
        """A field; `below`: of the elements of this inner array, each with the field of its outer element."""
        column = self.columns[path]
        levels = []
        while len(below) > len(_array_of(path)):
            levels.append(below)
            below = _outer(below)
        for level in reversed(levels):
            column = column.where(self.elements[level].parent)
        return column


def project(
    messages: Messages,
    api_key: int,
    direction: int,
    paths: Iterable[str],
    wanted: Flags | None = None,
    max_rows: int | None = None,
) -> Projection:
    """Read fields of all requests (or responses) of one API, whatever their versions are. Messages of other APIs, or
    not among the `wanted` ones, are not decoded; nor are those after `max_rows` rows (of elements and fields).

    paths: Kafka's names, with `[]` behind each array: `topicData[].partitionData[].records`. With `[]` at the end: the
    elements of the array, and their values where these are no structs; an array without it: the number of elements.
    Raises KeyError where no version has such a field."""
    of_api = (messages.api_key == api_key) & (messages.direction == direction)
    plan = _plan(api_key, direction, tuple(paths))
    rows = decode_rows(messages, plan.selected, of_api if wanted is None else of_api & wanted, max_rows)
    version = messages.version[rows.message]
    count = len(messages.begin)
    starts: dict[str, Numbers] = {}  # rows in which elements begin
    elements: dict[str, Elements] = {}
    columns: dict[str, Column] = {}
    for path, first in plan.arrays:
        starts[path] = np.flatnonzero(rows.field == first[version])
        message = rows.message[starts[path]]
        outer = _outer(path)
        inside = np.searchsorted(starts[outer], starts[path], "right") - 1 if outer else message
        elements[path] = Elements(message, inside)
    for path, field in plan.columns:
        where = np.flatnonzero(rows.field == field)
        array = _array_of(path)
        row = np.searchsorted(starts[array], where, "right") - 1 if array else rows.message[where]
        column = Column(*(np.full(len(starts[array]) if array else count, none, np.int64) for none in (NULL, -1, -1)))
        column.value[row], column.position[row] = rows.value[where], rows.position[where]
        column.length[row] = rows.length[where]
        columns[path] = column
    return Projection(rows.decoded, rows.ended, elements, columns)


class _Plan(NamedTuple):
    """What a projection selects: arrays with the field by which an element begins, by version; columns with theirs."""

    selected: npt.NDArray[np.uint8]
    arrays: list[tuple[str, Numbers]]
    columns: list[tuple[str, int]]


def _array_of(path: str) -> str:
    """The array whose elements have a field: `a[].b` -> `a[]`."""
    array, bracket, _ = path.rpartition("[]")
    return array + bracket


def _outer(path: str) -> str:
    """The array around an array: `a[].b[]` -> `a[]`."""
    return _array_of(path.removesuffix("[]"))


@functools.lru_cache(maxsize=1 << 8)
def _plan(api_key: int, direction: int, paths: tuple[str, ...]) -> _Plan:
    loaded = program.load()
    selected = np.zeros(loaded.n_fields, np.uint8)
    arrays: dict[str, Numbers] = {}
    columns: dict[str, int] = {}
    for path in paths:
        parts = path.split("[]")
        for depth in range(1, len(parts)):
            array = "[]".join(parts[:depth]) + "[]"
            if array not in arrays:
                arrays[array] = _first_fields(api_key, direction, "".join(parts[:depth]))
        name = "".join(parts)
        field = loaded.field_id(api_key, direction, name + "[]" if path.endswith("[]") else name)
        if field >= 0:
            columns[path] = field
        elif not path.endswith("[]"):
            raise KeyError(f"{schema.api_name(api_key)} has no field {path}")
    for first in arrays.values():
        selected[first[first >= 0]] = 1
    selected[list(columns.values())] = 1
    return _Plan(selected, list(arrays.items()), list(columns.items()))


def _first_fields(api_key: int, direction: int, path: str) -> Numbers:
    """The field with which an element of an array begins, by version; -1: the version has no such array. Every element
    has exactly one row of it."""
    loaded = program.load()
    primitive = loaded.field_id(api_key, direction, path + "[]")
    first = np.full(loaded.start.shape[2], -1, np.int64)
    for version in range(loaded.start.shape[2]):
        layout = schema.layout(api_key, version, direction)
        array = None if layout is None else _find(layout.fields, path)
        if array is not None:
            name = _first_of(array.fields, path) if array.element == "struct" else ""
            first[version] = loaded.field_id(api_key, direction, name) if name else primitive
    if (first < 0).all():
        raise KeyError(f"{schema.api_name(api_key)} has no array {path}")
    return first


def _find(fields: Sequence[Field], path: str) -> Field | None:
    for field in fields:
        if field.path == path:
            return field
        if path.startswith(field.path + "."):
            return _find(field.fields, path)
    return None


def _first_of(fields: Sequence[Any], path: str) -> str:
    """The path of the first row that a struct writes to the tape."""
    for field in fields:
        if field.tag is None:
            if field.kind == "struct" and not field.nullable:
                return _first_of(field.fields, field.path)
            return str(field.path)
    return path + "._tags"
