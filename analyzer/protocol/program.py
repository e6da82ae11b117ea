"""All of Kafka's layouts, compiled into an integer program that kernels interpret: one of messages and their headers,
one of data (what lies in records and `bytes` fields).

In: the layouts of `schema.py`. Out: a frozen `Program` of arrays. Rule: what a kernel needs is in the arrays; what a
person needs (names, paths, entity types) is in the field table, reached by field id. A field has one id for all
versions of its (api_key, direction, path), so a selection made once holds for every version.

The code is rows of four int32: operation, field id, argument, extra.

    INT8 ... UUID, FLOAT64   a value of fixed size
    STRING                   int16 length, then bytes; extra: 1 if null is allowed
    BYTES                    int32 length, then bytes (`bytes` and `records`); extra as above
    COMPACT                  unsigned varint length + 1, then bytes (all three in flexible versions, KIP-482)
    ARRAY, COMPACT_ARRAY     count; argument: where to go on when there is no (more) element; extra as above
    ARRAY_NEXT               end of an element
    STRUCT                   a nullable struct's marker byte; argument: where to go on when it is null
    TAGS                     number of tagged fields; argument: index into `tags`; always followed by
    TAG_NEXT                 the next tagged field: its number and size; argument as above; its field is the entry's
    TAG_END                  end of a tagged field that we know
    END                      end of the message
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kwire.analyzer.protocol import schema
from kwire.analyzer.protocol.schema import NEITHER, NO_API, REQUEST, RESPONSE, Field, Layout
from kwire.captures.cache import cached

END: Final = 0
INT8: Final = 1
INT16: Final = 2
INT32: Final = 3
INT64: Final = 4
BOOL: Final = 5
UINT16: Final = 6
UINT32: Final = 7
FLOAT64: Final = 8
UUID: Final = 9
STRING: Final = 10
BYTES: Final = 11
COMPACT: Final = 12
ARRAY: Final = 13
COMPACT_ARRAY: Final = 14
ARRAY_NEXT: Final = 15
STRUCT: Final = 16
TAGS: Final = 17
TAG_NEXT: Final = 18
TAG_END: Final = 19

STACK_DEPTH: Final = 32
"""Rows of the kernels' stack. A level of arrays or of tagged fields takes one row; a test proves that no layout needs
half as many."""

REQUEST_HEADER: Final = "RequestHeader"
RESPONSE_HEADER: Final = "ResponseHeader"

_OPERATIONS: Final = {
    "int8": INT8,
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "bool": BOOL,
    "uint16": UINT16,
    "uint32": UINT32,
    "float64": FLOAT64,
    "uuid": UUID,
}

Int32Array = npt.NDArray[np.int32]
Int8Array = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]


class FieldInfo(NamedTuple):
    """One row of the field table.

    `path` has Kafka's JSON names, joined by dots. Beside the definitions' fields there are three structural kinds:
    `…[]` is an element of an array of primitives; `…_tags` (kind `tags`) the tag section of a struct and its `…_tags[]`
    (kind `tag`) one tagged field in it, known or not. `api_key` is -1 and `direction` `NEITHER` for headers and data,
    whose path starts with the definition's name.
    """

    id: int
    api_key: int
    direction: int
    path: str
    kind: str
    element: str
    entity_type: str
    secret: str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The compiled layouts.

    code          int32[n, 4]   operation, field id, argument, extra
    tags          int32[t, 2]   first entry and number of entries of a tag section
    tag_entries   int32[e, 2]   tag number, where its code starts
    start         int32[2, n_api, n_versions]   0 request, 1 response: where a body's code starts, -1 unknown
    flexible      uint8[2, n_api, n_versions]   1 where the body is flexible (KIP-482)
    header_version int8[2, n_api, n_versions]   version of the header before that body, -1 unknown
    header_start  int32[2, 3]   0 request, 1 response header: where the code of a header version starts, -1 none
    max_version   int16[n_api]  the highest version that has a layout
    fields        the field table, by field id
    data_start    where the code of a header or data definition starts, by (name, version)
    """

    code: Int32Array
    tags: Int32Array
    tag_entries: Int32Array
    start: Int32Array
    flexible: Bytes
    header_version: Int8Array
    header_start: Int32Array
    max_version: npt.NDArray[np.int16]
    fields: tuple[FieldInfo, ...]
    data_start: dict[tuple[str, int], int]
    _ids: dict[tuple[int, int, str], int]

    @property
    def arrays(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """`code, tags, tag_entries`, as the decode and encode kernels take them."""
        return self.code, self.tags, self.tag_entries

    @property
    def n_fields(self) -> int:
        return len(self.fields)

    def field_id(self, api_key: int, direction: int, path: str) -> int:
        """The id of a field; -1 where no version of that message has it."""
        return self._ids.get((api_key, direction, path), -1)

    def field_path(self, pc: int) -> str:
        """The path of the field that the code at `pc` reads, as in `topics.partitions.errorCode`."""
        return self.fields[int(self.code[pc, 1])].path

    def selection(self, predicate: Callable[[FieldInfo], bool]) -> Bytes:
        """uint8[n_fields]: 1 for the fields that are to go on the tape."""
        return np.fromiter((predicate(info) for info in self.fields), np.uint8, len(self.fields))

    def everything(self) -> Bytes:
        """The selection that puts all on the tape that a tree of the message needs."""
        return np.ones(len(self.fields), np.uint8)


class _Compiler:
    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []
        self.tags: list[tuple[int, int]] = []
        self.tag_entries: list[tuple[int, int]] = []
        self.fields: list[FieldInfo] = []
        self.ids: dict[tuple[int, int, str], int] = {}
        self.api_key = NO_API
        self.direction = NEITHER
        self.root = ""
        self.later: list[tuple[int, tuple[Field, ...]]] = []

    def field_id(self, path: str, kind: str, element: str, entity_type: str, secret: str) -> int:
        key = (self.api_key, self.direction, self.root + path)
        known = self.ids.get(key)
        if known is not None:
            info = self.fields[known]
            if (info.kind, info.element) != (kind, element):
                # Nothing in Kafka does so today; sharing an id would then mix two types in one column.
                raise ValueError(f"{schema.api_name(self.api_key)} {path} is {kind} and {info.kind}")
            return known
        self.ids[key] = len(self.fields)
        self.fields.append(FieldInfo(len(self.fields), *key, kind, element, entity_type, secret))
        return len(self.fields) - 1

    def layout(self, layout: Layout) -> int:
        """Compile a layout; return where its code starts."""
        self.api_key, self.direction = layout.api_key, layout.direction
        self.root = layout.name + "." if layout.api_key == NO_API else ""
        begin = len(self.code)
        self.struct(layout.fields, layout.flexible, "")
        end = self.field_id("", "message", "", "", "")
        self.code.append((END, end, 0, 0))
        while self.later:
            table, tagged = self.later.pop()
            entries = []
            for item in tagged:
                entries.append((item.tag or 0, len(self.code)))
                self.field(item)
                self.code.append((TAG_END, self.ids[self.api_key, self.direction, self.root + item.path], 0, 0))
            self.tags[table] = (len(self.tag_entries), len(entries))
            self.tag_entries += entries
        return begin

    def struct(self, fields: tuple[Field, ...], flexible: bool, prefix: str) -> None:
        tagged = []
        for item in fields:
            if item.tag is None:
                self.field(item)
            else:
                tagged.append(item)
        if flexible:
            table = len(self.tags)
            self.tags.append((0, 0))
            section = self.field_id(prefix + "_tags", "tags", "", "", "")
            entry = self.field_id(prefix + "_tags[]", "tag", "", "", "")
            self.code.append((TAGS, section, table, 0))
            self.code.append((TAG_NEXT, entry, table, 0))
            self.later.append((table, tuple(tagged)))

    def field(self, item: Field) -> None:
        code = self.code
        kind = item.kind
        entity = "" if kind == "array" and item.element != "struct" else item.entity_type
        field = self.field_id(item.path, kind, item.element or "", entity, item.secret)
        nullable = int(item.nullable)
        if kind == "array":
            at = len(code)
            code.append((COMPACT_ARRAY if item.flexible else ARRAY, field, 0, nullable))
            if item.element == "struct":
                self.struct(item.fields, item.flexible, item.path + ".")
            else:
                element = self.field_id(item.path + "[]", item.element or "", "", item.entity_type, item.secret)
                self.primitive(item.element or "", element, item.flexible, 0)
            code.append((ARRAY_NEXT, field, 0, 0))
            code[at] = (code[at][0], field, len(code), nullable)
        elif kind == "struct":
            at = len(code)
            if item.nullable:
                code.append((STRUCT, field, 0, 1))
            self.struct(item.fields, item.flexible, item.path + ".")
            if item.nullable:
                code[at] = (STRUCT, field, len(code), 1)
        else:
            self.primitive(kind, field, item.flexible, nullable)

    def primitive(self, kind: str, field: int, flexible: bool, nullable: int) -> None:
        if kind in _OPERATIONS:
            self.code.append((_OPERATIONS[kind], field, 0, 0))
        elif flexible:
            self.code.append((COMPACT, field, 0, nullable))
        else:
            self.code.append((STRING if kind == "string" else BYTES, field, 0, nullable))


def build() -> Program:
    """Compile the layouts of messages and their headers."""
    compiler = _Compiler()
    apis = schema.apis()
    n_api = apis[-1].api_key + 1
    n_versions = max(api.max_version for api in apis) + 1
    start = np.full((2, n_api, n_versions), -1, np.int32)
    flexible = np.zeros((2, n_api, n_versions), np.uint8)
    header_version = np.full((2, n_api, n_versions), -1, np.int8)
    starts: dict[int, int] = {}
    for api_key, version, direction, layout in schema.layouts():
        if id(layout) not in starts:
            starts[id(layout)] = compiler.layout(layout)
        start[direction, api_key, version] = starts[id(layout)]
        flexible[direction, api_key, version] = layout.flexible
        header_of = schema.request_header_version if direction == REQUEST else schema.response_header_version
        header_version[direction, api_key, version] = header_of(api_key, version, layout.flexible)
    header_start = np.full((2, 3), -1, np.int32)
    data_start: dict[tuple[str, int], int] = {}
    for direction, name in ((REQUEST, REQUEST_HEADER), (RESPONSE, RESPONSE_HEADER)):
        for version, header in schema.data_versions(name):
            header_start[direction, version] = data_start[name, version] = compiler.layout(header)
    max_version = np.array([api.max_version for api in apis], np.int16)
    return _program(compiler, start, flexible, header_version, header_start, max_version, data_start)


def build_data() -> Program:
    """Compile the layouts of data: what lies in records and `bytes` fields."""
    compiler = _Compiler()
    starts: dict[int, int] = {}
    data_start: dict[tuple[str, int], int] = {}
    for name, version, layout in schema.data_layouts():
        if name not in (REQUEST_HEADER, RESPONSE_HEADER):
            if id(layout) not in starts:
                starts[id(layout)] = compiler.layout(layout)
            data_start[name, version] = starts[id(layout)]
    of_messages = np.empty((2, 0, 0), np.int32)
    return _program(
        compiler,
        of_messages,
        of_messages.astype(np.uint8),
        of_messages.astype(np.int8),
        np.full((2, 3), -1, np.int32),
        np.empty(0, np.int16),
        data_start,
    )


def _program(
    compiler: _Compiler,
    start: Int32Array,
    flexible: Bytes,
    header_version: Int8Array,
    header_start: Int32Array,
    max_version: npt.NDArray[np.int16],
    data_start: dict[tuple[str, int], int],
) -> Program:
    def array(rows: list[Any]) -> Int32Array:
        return np.array(rows, np.int32)

    return Program(
        array(compiler.code),
        array(compiler.tags),
        array(compiler.tag_entries),
        start,
        flexible,
        header_version,
        header_start,
        max_version,
        tuple(compiler.fields),
        data_start,
        compiler.ids,
    )


@functools.cache
def load() -> Program:
    """The program of messages and their headers, built once a machine (some 50 ms)."""
    return _restored(cached("program", schema.sources(), lambda: _plain(build())))


@functools.cache
def load_data() -> Program:
    """The program of data, built once a machine. It is apart because most runs never open an embedded format."""
    return _restored(cached("program-data", schema.sources(), lambda: _plain(build_data())))


def _plain(program: Program) -> dict[str, Any]:
    """A program in the types that a cache keeps. Field ids follow from the fields."""
    parts = {name: getattr(program, name) for name in Program.__dataclass_fields__ if name != "_ids"}
    data_start = [[name, version, at] for (name, version), at in program.data_start.items()]
    return parts | {"fields": [tuple(info) for info in program.fields], "data_start": data_start}


def _restored(parts: dict[str, Any]) -> Program:
    fields = tuple(FieldInfo(*row) for row in parts["fields"])
    data_start = {(name, version): at for name, version, at in parts["data_start"]}
    ids = {(info.api_key, info.direction, info.path): info.id for info in fields}
    return Program(**parts | {"fields": fields, "data_start": data_start, "_ids": ids})


def of_data(name: str) -> Program:
    """The program that has a header or data definition."""
    return load() if name in (REQUEST_HEADER, RESPONSE_HEADER) else load_data()
