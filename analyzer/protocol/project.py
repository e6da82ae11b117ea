"""Read some fields of many messages as columns, by one call of the decoding kernel for all messages.

In: `Messages`, and either paths of fields of one API (`project`) or a selection of fields of all APIs (`decode_rows`).
Out: a `Projection`, one table for the messages and one for the elements of each array; or the rows of the tape. A
message is its header and then its body, decoded by the rules of `decoding.decode`. Only messages that decode have rows;
bytes behind the body are no error (`ended` says where it ended).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kwire.analyzer.protocol import program, schema
from kwire.analyzer.protocol.decoding import FULL, NO_LAYOUT, OK, STACK_COLUMNS, TAPE_COLUMNS, decode
from kwire.analyzer.protocol.schema import REQUEST, Field
from kwire.captures.kernels import NULL, Array, Bytes, Int, Table, kernel

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Frame = tuple[bytes, int, int, int]
"""A frame without the four bytes of its length; its API, version and direction."""

(BEGIN, END, API_KEY, VERSION, DIRECTION, MESSAGE_COLUMNS) = range(6)
"""Of a message: [BEGIN, END) of its frame without the length; what it is."""

(ENDED, STATUS, ENDING_COLUMNS) = range(3)
"""Where a message ended, or the field that could not be read; `decoding`'s status."""

(MESSAGE, FIELD, VALUE, POSITION, LENGTH) = range(TAPE_COLUMNS)
"""Of a row of the tape (`decoding`)."""

_ROWS: Final = 1 << 14
_MOST_ROWS: Final = 1 << 20
HEADER_BYTES: Final = 4  # API and version, with which every request starts


class Messages(NamedTuple):
    """Messages as `rows` int64[n, MESSAGE_COLUMNS]; `buffer`: a writable uint8 array in which their frames lie."""

    buffer: npt.NDArray[np.uint8]
    rows: Numbers

    @classmethod
    def from_columns(
        cls,
        buffer: npt.NDArray[np.uint8],
        begin: Numbers,
        end: Numbers,
        api_key: Numbers,
        version: Numbers,
        direction: Numbers | int,
    ) -> Messages:
        """Take messages by columns, int64[n] each."""
        rows = np.empty((len(begin), MESSAGE_COLUMNS), np.int64)
        for column, values in enumerate((begin, end, api_key, version, direction)):
            rows[:, column] = values
        return cls(buffer, rows)

    @classmethod
    def from_frames(cls, frames: Sequence[Frame]) -> Messages:
        """Copy frames one behind the other."""
        end = 0
        rows = [(end, end := end + len(data), *others) for data, *others in frames]
        buffer = np.frombuffer(bytearray(b"".join([frame[0] for frame in frames])), np.uint8)
        return cls(buffer, np.array(rows, np.int64).reshape(-1, MESSAGE_COLUMNS))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def begin(self) -> Numbers:
        return self.rows[:, BEGIN]

    @property
    def end(self) -> Numbers:
        return self.rows[:, END]

    @property
    def api_key(self) -> Numbers:
        return self.rows[:, API_KEY]

    @property
    def version(self) -> Numbers:
        return self.rows[:, VERSION]

    @property
    def direction(self) -> Numbers:
        return self.rows[:, DIRECTION]


@functools.cache
def _code_starts() -> Numbers:
    """Where the code of a message's header and of its body starts: int64[directions * APIs * versions, 2]; -1: Kafka
    never had such a message."""
    loaded = program.load()
    directions = np.arange(2)[:, np.newaxis, np.newaxis]
    header = loaded.header_start[directions, np.maximum(loaded.header_version, 0)]
    header = np.where(loaded.start < 0, -1, header)
    return np.stack([header.reshape(-1), loaded.start.reshape(-1)], axis=1).astype(np.int64)


# --- rows -------------------------------------------------------------------------------------------------------------


@kernel
def decode_many(
    buffer: Bytes,
    messages: Table,
    begin: Int,
    starts: Table,
    versions: Int,
    code: Array,
    tags: Array,
    tag_entries: Array,
    selected: Bytes,
    tape: Table,
    endings: Table,
    stack: Table,
) -> tuple[Int, Int]:
    """Decode messages int64[n, MESSAGE_COLUMNS] from `begin` on, as long as `tape` has room -> (the first that is not
    decoded, rows of the tape in use). `endings` int64[n, ENDING_COLUMNS] is filled in; `starts`: of the code of headers
    and bodies, with a row for each direction, API and version. A request whose own first bytes name another API or
    version has no layout."""
    apis = len(starts) // (2 * versions)
    used = np.int64(0)
    row = begin
    while row < len(messages):
        before = used
        at, end = messages[row, BEGIN], messages[row, END]
        api_key, version, direction = messages[row, API_KEY], messages[row, VERSION], messages[row, DIRECTION]
        status: Int = np.int64(NO_LAYOUT)
        if 0 <= api_key < apis and 0 <= version < versions and 0 <= direction < 2:
            if at >= 0 and end - at >= HEADER_BYTES and end <= len(buffer):
                start = (direction * apis + api_key) * versions + version
                own_key = np.int64(buffer[at]) << 8 | np.int64(buffer[at + 1])
                own_version = np.int64(buffer[at + 2]) << 8 | np.int64(buffer[at + 3])
                if direction != REQUEST or (own_key == api_key and own_version == version):
                    at, used, status, _ = decode(
                        buffer, at, end, starts[start, 0], code, tags, tag_entries, selected, tape, used, row, stack
                    )
                    if status == OK:
                        at, used, status, _ = decode(
                            buffer, at, end, starts[start, 1], code, tags, tag_entries, selected, tape, used, row, stack
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
    starts = _code_starts()
    versions = loaded.start.shape[2]
    endings = np.zeros((len(messages), ENDING_COLUMNS), np.int64)
    endings[:, STATUS] = FULL
    stack = np.empty((program.STACK_DEPTH, STACK_COLUMNS), np.int64)
    tape = np.empty((_ROWS, TAPE_COLUMNS), np.int64)
    at = 0
    while at < len(messages):
        following, used = decode_many(
            messages.buffer, messages.rows, at, starts, versions, *loaded.arrays, selected, tape, endings, stack
        )
        if following == at and len(tape) < _MOST_ROWS:
            tape = np.empty((len(tape) * 8, TAPE_COLUMNS), np.int64)
            continue
        yield tape[:used], endings
        at = max(int(following), at + 1)


class FieldRows(NamedTuple):
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
    which = None if wanted is None else np.flatnonzero(wanted)
    some = messages if which is None else Messages(messages.buffer, messages.rows[which])
    blocks: list[Numbers] = []
    rows = 0
    endings = np.zeros((0, ENDING_COLUMNS), np.int64)
    for tape, endings in decode_blocks(some, selected):
        decoded = endings[:, STATUS] == OK
        block = tape.copy() if decoded.all() else tape[decoded[tape[:, MESSAGE]]]
        blocks.append(block)
        rows += len(block)
        if max_rows is not None and rows > max_rows:
            break
    every = blocks[0] if len(blocks) == 1 else np.concatenate([np.empty((0, TAPE_COLUMNS), np.int64), *blocks])
    message, field, value, position, length = np.ascontiguousarray(every.T)
    decoded, ended = endings[:, STATUS] == OK, endings[:, ENDED]
    if which is not None:
        message = which[message]
        decoded, ended = np.zeros(len(messages), np.bool_), np.zeros(len(messages), np.int64)
        decoded[which], ended[which] = endings[:, STATUS] == OK, endings[:, ENDED]
    return FieldRows(message, field, value, position, length, decoded, ended)


# --- columns ----------------------------------------------------------------------------------------------------------


class FieldColumn(NamedTuple):
    """A field of all rows of a table: its value, or of strings, bytes and arrays their length (-1: null; NULL where the
    row has no such field); position of its bytes (-1: there are none) and their number."""

    value: Numbers
    position: Numbers
    length: Numbers

    @property
    def present(self) -> Flags:
        """Whether the row has the field, which may be null."""
        return self.position >= 0

    def where(self, rows: Flags | Numbers) -> FieldColumn:
        """Some of the rows."""
        return FieldColumn(self.value[rows], self.position[rows], self.length[rows])

    def filled(self, absent: int) -> Numbers:
        """The values, with a default where the row has no such field."""
        return np.where(self.present, self.value, absent)

    def otherwise(self, other: FieldColumn) -> FieldColumn:
        """This column, or the other one in rows that do not have this field."""
        pairs = zip(self, other, strict=True)
        return FieldColumn(*(np.where(self.present, here, there) for here, there in pairs))


class Elements(NamedTuple):
    """Elements of an array in all messages, in order: whose message, and the row of the element of the next outer array
    that holds them (of outermost arrays: the message)."""

    message: Numbers
    parent: Numbers


class Projection(NamedTuple):
    """Columns by path, as they were asked for, and elements by the path of their array (with `[]`). Columns are aligned
    with the elements of the innermost array of their path, and with the messages where there is none."""

    decoded: Flags
    ended: Numbers
    elements: dict[str, Elements]
    columns: dict[str, FieldColumn]

    def column(self, path: str, below: str = "") -> FieldColumn:
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
    count = len(messages)
    starts: dict[str, Numbers] = {}  # rows in which elements begin
    elements: dict[str, Elements] = {}
    columns: dict[str, FieldColumn] = {}
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
        column = FieldColumn(
            *(np.full(len(starts[array]) if array else count, none, np.int64) for none in (NULL, -1, -1))
        )
        column.value[row], column.position[row] = rows.value[where], rows.position[where]
        column.length[row] = rows.length[where]
        columns[path] = column
    return Projection(rows.decoded, rows.ended, elements, columns)


class _Plan(NamedTuple):
    """Fields that a projection selects: arrays with the field by which an element begins, by version; columns with
    theirs."""

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
