"""The encoder: the program of `program.py` in the other direction.

In: a body in Kafka's JSON naming (see `tree.py`). Out: the message's bytes. A body becomes rows as the decoder makes
them, in the same order, and a kernel writes them. Rules: an absent field takes its definition's default; tagged fields
are written when they are in the body; a field that the version does not have is an error, not lost in silence.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from kwire.analyzer.protocol import program, schema
from kwire.analyzer.protocol.decoding import STACK_COLUMNS, TAPE_COLUMNS
from kwire.analyzer.protocol.program import (
    ARRAY,
    ARRAY_NEXT,
    BOOL,
    BYTES,
    COMPACT,
    COMPACT_ARRAY,
    END,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    STRUCT,
    TAG_END,
    TAG_NEXT,
    TAGS,
    UINT16,
    UINT32,
    UUID,
)
from kwire.analyzer.protocol.schema import NEITHER, REQUEST, RESPONSE, Field, Layout
from kwire.analyzer.protocol.tree import REDACTED, UNKNOWN_TAGS
from kwire.captures.errors import KwireError
from kwire.captures.kernels import Array, Bytes, Held, Int, Table, holding, inline, kernel

OK: Final = 0
NO_ROOM: Final = 1
BAD_ROWS: Final = 2

ROW_ROOM: Final = 32
"""Bytes of output that a row may need beside its content: a value of 16, or a tag's number and size of 5 each."""

MAX_STRING: Final = 0x7FFF
"""Kafka's limit, in flexible versions too."""


@inline
def write_integer(out: Bytes, at: Int, value: Int, size: Int) -> Int:
    """Big-endian, two's complement; returns where it ends."""
    for index in range(size):
        out[at + index] = (value >> (8 * (size - 1 - index))) & 255
    return at + size


@inline
def write_varint(out: Bytes, at: Int, value: Int) -> Int:
    """Unsigned; returns where it ends."""
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@kernel
def encode(
    rows: Table,
    payload: Bytes,
    pc: Int,
    code: Array,
    tags: Array,
    tag_entries: Array,
    out: Bytes,
    at: Int,
    stack: Table,
) -> tuple[Int, Int, Int]:
    """Write one body or header -> (at, rows used, status).

    rows int64[n, 5] as `decoding.decode` makes them with everything selected (message and field are not read);
    payload uint8[:] is what positions refer to; `pc` where the layout's code starts; out uint8[:], written from `at`;
    stack int64[STACK_DEPTH, 3] is scratch. NO_ROOM: `out` is too small (`ROW_ROOM` a row and the content is enough).
    BAD_ROWS: the rows do not fit the layout; row number `rows used` is the first that does not.
    """
    row = np.int64(0)
    level = 0
    n_rows = rows.shape[0]
    depth = stack.shape[0]
    while True:
        operation = np.int64(code[pc, 0])
        if operation == END:
            return at, row, OK
        if operation == ARRAY_NEXT:
            stack[level - 1, 1] -= 1
            if stack[level - 1, 1] > 0:
                pc = stack[level - 1, 0]
            else:
                level -= 1
                pc += 1
            continue
        if operation == TAG_END:
            # The size goes before what was written; only now is it known.
            begin = stack[level - 1, 2]
            size = at - begin
            width = 1
            while size >> (7 * width) > 0:
                width += 1
            if out.shape[0] - at < width:
                return at, row, NO_ROOM
            for index in range(at - 1, begin - 1, -1):
                out[index + width] = out[index]
            write_varint(out, begin, size)
            at += width
            pc = stack[level - 1, 0]
            continue
        if operation == TAG_NEXT and stack[level - 1, 1] == 0:
            level -= 1
            pc += 1
            continue
        if row == n_rows:
            return at, row, BAD_ROWS
        value = np.int64(rows[row, 2])
        position = np.int64(rows[row, 3])
        length = np.int64(rows[row, 4])
        if out.shape[0] - at < 16:
            return at, row, NO_ROOM
        following = pc + 1
        content = np.int64(0)
        if operation == INT32 or operation == UINT32:
            at = write_integer(out, at, value, 4)
        elif operation == INT16 or operation == UINT16:
            at = write_integer(out, at, value, 2)
        elif operation == INT64 or operation == FLOAT64:
            at = write_integer(out, at, value, 8)
        elif operation == INT8 or operation == BOOL:
            at = write_integer(out, at, value, 1)
        elif operation == UUID:
            content = np.int64(16)
        elif operation == STRING:
            at = write_integer(out, at, length, 2)
            content = max(length, np.int64(0))
        elif operation == BYTES:
            at = write_integer(out, at, length, 4)
            content = max(length, np.int64(0))
        elif operation == COMPACT:
            at = write_varint(out, at, length + 1)
            content = max(length, np.int64(0))
        elif operation == STRUCT:
            at = write_integer(out, at, value, 1)
            if value < 0:
                following = np.int64(code[pc, 2])
        elif operation == ARRAY or operation == COMPACT_ARRAY:
            at = write_integer(out, at, value, 4) if operation == ARRAY else write_varint(out, at, value + 1)
            if value <= 0:
                following = np.int64(code[pc, 2])
            else:
                if level == depth:
                    return at, row, BAD_ROWS
                stack[level, 0] = following
                stack[level, 1] = value
                level += 1
        elif operation == TAGS:
            at = write_varint(out, at, value)
            if value == 0:
                following = pc + 2
            else:
                if level == depth:
                    return at, row, BAD_ROWS
                stack[level, 0] = following
                stack[level, 1] = value
                level += 1
        else:  # TAG_NEXT
            stack[level - 1, 1] -= 1
            at = write_varint(out, at, value)
            table = np.int64(code[pc, 2])
            following = pc
            content = length
            first = np.int64(tags[table, 0])
            for entry in range(first, first + np.int64(tags[table, 1])):
                if tag_entries[entry, 0] == value:
                    stack[level - 1, 2] = at
                    following = np.int64(tag_entries[entry, 1])
                    content = np.int64(0)
            if following == pc:
                at = write_varint(out, at, length)
        if content > 0:
            if position < 0 or content > payload.shape[0] - position:
                return at, row, BAD_ROWS
            if content > out.shape[0] - at:
                return at, row, NO_ROOM
            for index in range(content):
                out[at + index] = payload[position + index]
            at += content
        row += 1
        pc = following


class EncodeError(KwireError, ValueError):
    """A body does not fit its layout."""

    def __init__(self, path: str, problem: str, hint: str) -> None:
        self.path = path.rstrip(".")
        super().__init__(f"{self.path or 'body'}: {problem}", hint)


_RANGES: Final = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint16": (0, (1 << 16) - 1),
    "uint32": (0, (1 << 32) - 1),
}
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class _Flattener:
    """Turns a body into the rows and the payload that the kernel takes."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.payload = bytearray()

    def add(self, value: int, content: bytes | None = None) -> None:
        if content is None:
            self.rows.append((0, 0, value, 0, 0))
        else:
            self.rows.append((0, 0, value, len(self.payload), len(content)))
            self.payload += content

    def struct(self, fields: tuple[Field, ...], flexible: bool, body: Any, path: str) -> None:
        if not isinstance(body, Mapping):
            raise EncodeError(path, f"is {type(body).__name__}, not a struct", "give a dict of its fields")
        known = 0
        tagged = []
        for item in fields:
            present = item.name in body
            known += present
            if item.tag is not None:
                if present:
                    tagged.append(item)
            else:
                self.field(item, flexible, body[item.name] if present else item.default, path + item.name)
        unknown: Mapping[int, bytes] = body.get(UNKNOWN_TAGS, {})
        if known + (UNKNOWN_TAGS in body) != len(body):
            self.refuse(fields, body, path)
        if not flexible:
            if unknown:
                raise EncodeError(path + UNKNOWN_TAGS, "this version has no tagged fields", "leave them out")
            return
        self.add(len(tagged) + len(unknown))
        # Kafka reads tags in any order and writes them in ascending order.
        entries: list[tuple[int, Any]] = [(item.tag or 0, item) for item in tagged]
        entries += [(int(number), content) for number, content in unknown.items()]
        for number, what in sorted(entries, key=lambda entry: entry[0]):
            if isinstance(what, Field):
                self.add(number)
                self.field(what, flexible, body[what.name], path + what.name)
            elif any(item.tag == number for item in fields):
                raise EncodeError(path + UNKNOWN_TAGS, f"tag {number} is a known field", "give it by its name")
            else:
                self.add(number, self.content(what, f"{path}{UNKNOWN_TAGS}.{number}"))

    def refuse(self, fields: tuple[Field, ...], body: Mapping[str, Any], path: str) -> None:
        names = {item.name for item in fields} | {UNKNOWN_TAGS}
        for key in body:
            if key not in names:
                base = str(key).removesuffix("SizeInBytes")
                if base != key and base in names:
                    raise EncodeError(path + str(key), "has the size only", f"give `{base}` as bytes")
                raise EncodeError(
                    path + str(key), "this version has no such field", f"known: {', '.join(sorted(names))}"
                )

    def field(self, item: Field, flexible: bool, value: Any, path: str) -> None:
        if item.kind == "struct":
            if item.nullable:
                self.add(-1 if value is None else 1)
                if value is None:
                    return
            self.struct(item.fields, flexible, value, path + ".")
        elif item.kind == "array":
            if value is None:
                self.null(item.nullable, path)
            elif not isinstance(value, Sequence) or isinstance(value, str | bytes):
                raise EncodeError(path, f"is {type(value).__name__}, not an array", "give a list")
            else:
                self.add(len(value))
                for index, element in enumerate(value):
                    if item.element == "struct":
                        self.struct(item.fields, flexible, element, f"{path}[{index}].")
                    else:
                        self.scalar(item.element or "", False, element, f"{path}[{index}]")
        else:
            self.scalar(item.kind, item.nullable, value, path)

    def null(self, nullable: bool, path: str) -> None:
        if not nullable:
            raise EncodeError(path, "is null, which this version does not allow", "give a value")
        self.rows.append((0, 0, -1, 0, -1))

    def content(self, value: Any, path: str) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except binascii.Error:
                raise EncodeError(path, "is not base64", "give bytes, or base64 text") from None
        if isinstance(value, Mapping) and REDACTED in value:
            raise EncodeError(path, "was redacted", "decode with exact=True to encode it again")
        raise EncodeError(path, f"is {type(value).__name__}, not bytes", "give bytes, or base64 text")

    def scalar(self, kind: str, nullable: bool, value: Any, path: str) -> None:
        if kind in _RANGES:
            low, high = _RANGES[kind]
            if not isinstance(value, int) or not low <= value <= high:
                raise EncodeError(path, f"{value!r:.60} is no {kind}", f"give an integer from {low} to {high}")
            self.add(value)
        elif kind == "bool":
            if not isinstance(value, int):
                raise EncodeError(path, f"{value!r:.60} is no bool", "give True or False")
            self.add(int(value))
        elif kind == "float64":
            number = _NON_FINITE.get(value, value) if isinstance(value, str) else value
            if not isinstance(number, int | float):
                raise EncodeError(path, f"{value!r:.60} is no float64", "give a number")
            self.add(struct.unpack(">q", struct.pack(">d", number))[0])
        elif kind == "uuid":
            self.add(0, self.uuid(value, path))
        elif value is None:
            self.null(nullable, path)
        elif kind == "string":
            if not isinstance(value, str):
                if isinstance(value, Mapping) and REDACTED in value:
                    raise EncodeError(path, "was redacted", "decode with exact=True to encode it again")
                raise EncodeError(path, f"is {type(value).__name__}, not a string", "give a str")
            text = value.encode("utf-8", "surrogateescape")
            if len(text) > MAX_STRING:
                raise EncodeError(path, f"has {len(text)} bytes", f"Kafka's strings have at most {MAX_STRING}")
            self.add(len(text), text)
        else:
            content = self.content(value, path)
            self.add(len(content), content)

    def uuid(self, value: Any, path: str) -> bytes:
        try:
            content = base64.urlsafe_b64decode(value + "==")
        except (TypeError, ValueError):
            content = b""
        if len(content) != 16:
            raise EncodeError(path, f"{value!r:.60} is no uuid", "give 22 characters of base64url")
        return content


_SMALL_ROWS: Final = 256
_SMALL_BYTES: Final = 1 << 12
"""Messages up to here have arrays that stay: most time goes into telling the kernel where these are."""


class _Small(threading.local):
    """The kernel's arguments for a small message; one a thread, because it runs without the GIL."""

    def __init__(self) -> None:
        self.rows = np.zeros((_SMALL_ROWS, TAPE_COLUMNS), np.int64)
        self.payload = np.zeros(_SMALL_BYTES, np.uint8)
        self.view = self.payload.data
        self.out = np.empty(ROW_ROOM * (_SMALL_ROWS + 1) + _SMALL_BYTES, np.uint8)
        self.stack = np.empty((program.STACK_DEPTH, STACK_COLUMNS), np.int64)
        self.held: dict[program.Program, Held] = {}

    def encode(self, loaded: program.Program, pc: int, rows: list[tuple[int, ...]], payload: bytearray) -> Any:
        """Run the kernel `encode`; the bytes are in `out`. Rows of an earlier message may follow: they are not read
        where the rows fit the layout."""
        self.rows[: len(rows)] = rows
        self.view[: len(payload)] = payload
        held = self.held.get(loaded)
        if held is None:
            arguments = self.rows, self.payload, 0, *loaded.arrays, self.out, 0, self.stack
            held = self.held[loaded] = holding(encode, arguments, (2,))
        return held(pc)


_small = _Small()


def _encode(layout: Layout, loaded: program.Program, pc: int, body: Any) -> bytes:
    flattener = _Flattener()
    flattener.struct(layout.fields, layout.flexible, body, "")
    count = len(flattener.rows)
    if 0 < count <= _SMALL_ROWS and len(flattener.payload) <= _SMALL_BYTES:
        out = _small.out
        at, used, status = _small.encode(loaded, pc, flattener.rows, flattener.payload)
    else:
        rows = np.array(flattener.rows, np.int64).reshape(-1, TAPE_COLUMNS)
        payload = np.frombuffer(flattener.payload or bytearray(1), np.uint8)
        out = np.empty(ROW_ROOM * (len(rows) + 1) + len(payload), np.uint8)
        stack = np.empty((program.STACK_DEPTH, STACK_COLUMNS), np.int64)
        at, used, status = encode(rows, payload, pc, *loaded.arrays, out, 0, stack)
    if status != OK or used != count:
        # The rows were made from the same layout, so this is our mistake and not the caller's.
        raise RuntimeError(f"{layout.name}: row {used} of {count} does not fit (status {status})")
    return out[:at].tobytes()


def encode_message(body: Mapping[str, Any], api_key: int, version: int, direction: int) -> bytes:
    """The bytes of a request's or response's body.

    `bytes` and `records` fields are given as bytes (or, as in JSON, base64 text). Raises EncodeError where the body
    does not fit, or where the API has no such version."""
    layout = schema.layout(api_key, version, direction)
    if layout is None:
        raise EncodeError("", f"{schema.api_name(api_key)} has no version {version}", "see `schema.apis()`")
    loaded = program.load()
    return _encode(layout, loaded, int(loaded.start[direction, api_key, version]), body)


def encode_data(body: Mapping[str, Any], name: str, version: int) -> bytes:
    """The bytes of a header or of data that lies in records or `bytes` fields, by its definition's name."""
    layout = schema.data_layout(name, version)
    if layout is None:
        raise EncodeError("", f"{name} has no version {version}", "see `schema.data_layouts()`")
    assert layout.direction == NEITHER
    loaded = program.of_data(name)
    return _encode(layout, loaded, loaded.data_start[name, version], body)


def encode_request(
    api_key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    body: Mapping[str, Any],
    header_tags: Mapping[int, bytes] | None = None,
) -> bytes:
    """A request frame without its length: header and body."""
    encoded = encode_message(body, api_key, version, REQUEST)
    header: dict[str, Any] = {
        "requestApiKey": api_key,
        "requestApiVersion": version,
        "correlationId": correlation_id,
        "clientId": client_id,
    }
    header_version = int(program.load().header_version[REQUEST, api_key, version])
    if header_version == 0:
        del header["clientId"]
    if header_tags:
        header[UNKNOWN_TAGS] = header_tags
    return encode_data(header, "RequestHeader", header_version) + encoded


def encode_response(
    api_key: int,
    version: int,
    correlation_id: int,
    body: Mapping[str, Any],
    header_tags: Mapping[int, bytes] | None = None,
) -> bytes:
    """A response frame without its length: header and body."""
    encoded = encode_message(body, api_key, version, RESPONSE)
    header: dict[str, Any] = {"correlationId": correlation_id}
    if header_tags:
        header[UNKNOWN_TAGS] = header_tags
    return (
        encode_data(header, "ResponseHeader", int(program.load().header_version[RESPONSE, api_key, version])) + encoded
    )
