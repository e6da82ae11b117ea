"""One message, decoded whole: as a body in Kafka's JSON naming, and as a tree with byte spans.

In: the bytes of one message. Out: a `Decoded`. It is the same kernel and program as on the bulk path, with every field
selected; here its tape becomes Python objects. Rules: trailing bytes and what cannot be decoded are values, never
exceptions; secrets (`schema.SECRET_FIELDS`) appear as `{"redactedBytes": n}`, unless the caller asks for the exact
message to encode it again.

A body has the conventions of kafka-clients' generated JsonConverters, which brokers use for their request log:

    field names            first letter lowered; a field that this version lacks is absent
    null                   None
    uuid                   22 characters of base64url
    bytes                  base64
    records                the size, named `…SizeInBytes`
    tagged fields          left out at their default; those that no definition knows are left out
    float64                a number; NaN and the infinities as strings

With `exact`, bytes and records are `bytes` under the field's own name, tagged fields are all there, unknown ones are in
`_tags` (number: bytes), and nothing is redacted: `encoding.encode_message` makes the same bytes of it.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.protocol import program, project, schema
from kwire.analyzer.protocol.api_keys import ENVELOPE
from kwire.analyzer.protocol.budget import DEPTH
from kwire.analyzer.protocol.decoding import NO_LAYOUT, OK, REASONS, SHORT
from kwire.analyzer.protocol.layouts import (
    BOOL,
    FLOAT,
    INTEGER,
    INTEGERS,
    MAX_ROWS,
    OTHERS,
    RECORDS,
    SCALARS,
    STRING,
    STRUCT,
    STRUCTS,
    UUID,
    Compiled,
    Plan,
    compiled_data,
    compiled_message,
    run,
    values_of,
)
from kwire.analyzer.protocol.project import Frame
from kwire.analyzer.protocol.schema import (
    API_VERSIONS,
    NEITHER,
    NO_API,
    REQUEST,
    RESPONSE,
    UNSUPPORTED_VERSION,
    Field,
)

REDACTED: Final = "redactedBytes"
UNKNOWN_TAGS: Final = "_tags"

Body = dict[str, Any]
_Row = tuple[int, int, int]
_Pull = Callable[[], _Row]


class Node(NamedTuple):
    """One field of a message, with its bytes. (A named tuple, because a tree has a node for every field of a message:
    a frozen dataclass takes five times as long to make.)

    `type` is the field's kind (`int32`, `string`, `struct`, `array`, …); `tags`: the tagged fields' section where it is
    not empty, `tag`: a tagged field that no definition knows (value: its number). `value` is None for a struct and for
    null, the count for an array. [start, end) are the bytes in what was decoded, length prefixes included. The bytes
    of a node with `secret` are not to be shown.
    """

    name: str
    type: str
    value: Any
    start: int
    end: int
    children: tuple[Node, ...] = ()
    null: bool = False
    secret: bool = False


class Decoded(NamedTuple):
    """A message or what could be read of it.

    `body` is None unless `status` is OK. `header` only where a whole frame was decoded. `nodes` only where asked for,
    and also holds what came before a failure. `end` is where the message ended, or where the field starts that could
    not be read. `reason` is None if and only if all bytes were decoded; `trailing` counts bytes after the message.
    """

    api_key: int
    version: int
    direction: int
    header: Body | None
    body: Body | None
    nodes: tuple[Node, ...]
    end: int
    trailing: int
    status: int
    reason: str | None


# --- values -----------------------------------------------------------------------------------------------------------


class _Reading(NamedTuple):
    """Context for making values: the bytes, and what may be shown of them."""

    data: bytes | memoryview
    exact: bool
    direction: int
    inner: tuple[int, int] | None = None
    max_rows: int = MAX_ROWS
    depth: int = 0


def _float(data: bytes | memoryview, position: int) -> Any:
    number = float(np.frombuffer(data, ">f8", 1, position)[0])
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _value(reading: _Reading, what: int, row: _Row) -> Any:
    """A value that is no integer, array or struct, as a body shows it."""
    value, position, length = row
    if what == STRING:
        if length < 0:
            return None
        # There are strings on real wires that are not UTF-8; the exact form keeps their bytes.
        errors = "surrogateescape" if reading.exact else "replace"
        return str(reading.data[position : position + length], "utf-8", errors)
    if what == INTEGER:
        return value
    if what == BOOL:
        return value != 0
    if what == UUID:
        return base64.urlsafe_b64encode(reading.data[position : position + 16])[:22].decode()
    if what == FLOAT:
        return _float(reading.data, position)
    if length < 0:
        return None
    content = reading.data[position : position + length]
    return content if reading.exact else base64.b64encode(content).decode()


def _hidden(reading: _Reading, secret: str, config: str | None, row: _Row) -> bool:
    """Must a value of this secrecy not be shown? `config` is the name beside it, where it has one."""
    _, position, length = row
    if reading.exact or length <= 0:
        return False  # nothing there to hide
    if secret == "by_name":
        return schema.is_sensitive_config(config)
    if secret == "envelope":
        content = bytes(reading.data[position : position + length])
        return _envelope_hides(content, reading.direction, reading.inner, reading.depth + 1)
    return True


def _envelope_hides(content: bytes, direction: int, inner: tuple[int, int] | None, depth: int) -> bool:
    """Does the request or response inside an Envelope hold a secret, or is it unknown what it holds? (So it is where
    Envelopes lie in Envelopes `budget.DEPTH` deep.)

    `inner`: (api_key, version) of the request inside; a response does not say it itself."""
    if depth >= DEPTH:
        return True
    if direction == REQUEST:
        frame = decode_request(content, exact=True)
        if frame.body is None:
            return True
        return bool(secret_spans(content, frame.api_key, frame.version, REQUEST, frame=True, depth=depth))
    return inner is None or bool(secret_spans(content, *inner, RESPONSE, frame=True, depth=depth))


# --- bodies -----------------------------------------------------------------------------------------------------------


def _read_struct(plan: Plan, pull: _Pull, reading: _Reading) -> tuple[Body, bool]:
    """-> the struct, and whether it or a struct in it has tagged fields that no definition knows: Kafka then never
    takes it for a default."""
    body: Body = {}
    unknown = False
    for name, what, inner, nullable, secret in plan.fields:
        if what == STRUCT:
            if nullable and pull()[0] < 0:
                body[name] = None
            else:
                body[name], inside = _read_struct(inner, pull, reading)
                unknown |= inside
            continue
        row = pull()
        value = row[0]
        if secret and _hidden(reading, secret, body.get("name", body.get("key")), row):
            body[name] = {REDACTED: row[2]}
        elif what == INTEGER:
            body[name] = value
        elif what == STRUCTS:
            body[name] = None if value < 0 else [_read_struct(inner, pull, reading)[0] for _ in range(value)]
        elif what == INTEGERS:
            body[name] = None if value < 0 else [pull()[0] for _ in range(value)]
        elif what == OTHERS:
            body[name] = None if value < 0 else [_value(reading, inner, pull()) for _ in range(value)]
        elif what == RECORDS and value >= 0 and not reading.exact:
            body[name + "SizeInBytes"] = value
        else:
            body[name] = _value(reading, what, row)
    if plan.tagged is not None:
        left: dict[int, bytes] = {}
        for _ in range(pull()[0]):
            number, position, length = pull()
            known = plan.tagged.get(number)
            if known is None:
                left[number] = bytes(reading.data[position : position + length])
                continue
            inside_plan, name, default = known
            alone, inside = _read_struct(inside_plan, pull, reading)
            # A value at its default is only ever sent by others than Kafka, and Kafka does not show it.
            if reading.exact or inside or alone.get(name, alone) != default:
                body.update(alone)
        if left:
            unknown = True
            if reading.exact:
                body[UNKNOWN_TAGS] = left
    return body, unknown


# --- trees ------------------------------------------------------------------------------------------------------------


class _TreeBuilder:
    """Makes nodes from rows. `at` is where the last row's bytes ended; rows may end anywhere (a message that could not
    be decoded): `ended` is then set, and what there is becomes nodes."""

    def __init__(self, rows: Iterator[_Row], at: int, reading: _Reading) -> None:
        self.rows = rows
        self.at = at
        self.reading = reading
        self.ended = False

    def next(self) -> _Row | None:
        row = next(self.rows, None)
        if row is None:
            self.ended = True
            return None
        self.at = row[1] + max(row[2], 0)
        return row

    def struct(self, fields: tuple[Field, ...], flexible: bool) -> tuple[Node, ...]:
        nodes: list[Node] = []
        config: str | None = None
        for item in fields:
            if item.tag is None and not self.ended:
                node = self.field(item, flexible, config)
                if node is not None:
                    nodes.append(node)
                    if item.name in ("name", "key") and item.kind == "string":
                        config = node.value
        if flexible and not self.ended:
            nodes += self.tagged(fields)
        return tuple(nodes)

    def tagged(self, fields: tuple[Field, ...]) -> list[Node]:
        start = self.at
        count = self.next()
        if count is None or count[0] == 0:
            return []
        known = {item.tag: item for item in fields if item.tag is not None}
        nodes: list[Node] = []
        for _ in range(count[0]):
            before = self.at
            row = self.next()
            if row is None:
                break
            item = known.get(row[0])
            if item is None:
                nodes.append(Node(f"tag {row[0]}", "tag", row[0], before, self.at))
                continue
            self.at = row[1]
            node = self.field(item, True, None)
            if node is not None:
                # The tag's number and size belong to the field.
                nodes.append(node._replace(start=before))
        return [Node("_tags", "tags", count[0], start, self.at, tuple(nodes))]

    def field(self, item: Field, flexible: bool, config: str | None) -> Node | None:
        start = self.at
        if item.kind == "struct":
            if item.nullable:
                row = self.next()
                if row is None:
                    return None
                if row[0] < 0:
                    return Node(item.name, "struct", None, start, self.at, null=True)
            children = self.struct(item.fields, flexible)
            return Node(item.name, "struct", None, start, self.at, children)
        row = self.next()
        if row is None:
            return None
        if item.kind != "array":
            if item.secret and _hidden(self.reading, item.secret, config, row):
                return Node(item.name, item.kind, {REDACTED: row[2]}, start, self.at, secret=True)
            value = _value(self.reading, SCALARS[item.kind], row)
            return Node(item.name, item.kind, value, start, self.at, null=value is None)
        if row[0] < 0:
            return Node(item.name, "array", None, start, self.at, null=True)
        elements: list[Node] = []
        for index in range(row[0]):
            before = self.at
            if item.element == "struct":
                children = self.struct(item.fields, flexible)
                if children or not self.ended:
                    elements.append(Node(f"[{index}]", "struct", None, before, self.at, children))
            else:
                node = self.next()
                if node is not None:
                    value = _value(self.reading, SCALARS[item.element or ""], node)
                    elements.append(Node(f"[{index}]", item.element or "", value, before, self.at))
            if self.ended:
                break
        return Node(item.name, "array", row[0], start, self.at, tuple(elements))


# --- messages ---------------------------------------------------------------------------------------------------------


def _decode_layout(
    compiled: Compiled, version: int, data: bytes | memoryview, at: int, tree: bool, reading: _Reading
) -> Decoded:
    layout, plan, loaded, pc = compiled
    tape, end, status, fail_pc = run(data, at, loaded, pc, reading.max_rows)
    columns = values_of(tape)
    body, reason, trailing = None, None, 0
    if status == OK:
        body = _read_struct(plan, zip(*columns).__next__, reading)[0]
        trailing = len(data) - end
        if trailing:
            reason = f"{trailing} trailing bytes"
    else:
        reason = f"{loaded.field_path(fail_pc)} at byte {end}: {REASONS[status]}"
    nodes: tuple[Node, ...] = ()
    if tree:
        nodes = _TreeBuilder(zip(*columns), at, reading).struct(layout.fields, layout.flexible)
    return Decoded(layout.api_key, version, layout.direction, None, body, nodes, end, trailing, status, reason)


def _no_layout(api_key: int, version: int, direction: int, at: int) -> Decoded:
    name = schema.api_name(api_key)
    reason = f"{name} has no version {version}" if schema.has_api(api_key) else f"unknown API {api_key}"
    return Decoded(api_key, version, direction, None, None, (), at, 0, NO_LAYOUT, reason)


def decode_message(
    data: bytes | memoryview,
    api_key: int,
    version: int,
    direction: int,
    *,
    start: int = 0,
    tree: bool = False,
    exact: bool = False,
    inner: tuple[int, int] | None = None,
    max_rows: int = MAX_ROWS,
) -> Decoded:
    """Decode one body, which starts at `start` and has all of `data` from there.

    `tree` asks for nodes too; `exact` for a body that can be encoded to the same bytes (secrets included). `inner` is
    (api_key, version) of the request in the Envelope that this message answers. Offsets are in `data`. A message
    with more than `max_rows` fields and elements is not decoded. Of a view that can be written nothing large is copied:
    exact bytes are views, too.
    """
    compiled = compiled_message(api_key, version, direction)
    if compiled is None:
        return _no_layout(api_key, version, direction, start)
    reading = _Reading(data, exact, direction, inner, max_rows)
    return _decode_layout(compiled, version, data, start, tree, reading)


def decode_data(
    data: bytes,
    name: str,
    version: int,
    *,
    start: int = 0,
    tree: bool = False,
    exact: bool = False,
    max_rows: int = MAX_ROWS,
) -> Decoded:
    """Decode a header or what lies in records and `bytes` fields, by its definition's name (`RequestHeader`,
    `ConsumerProtocolSubscription`, …). It starts at `start` and has all of `data` from there; what says its version
    lies before it."""
    compiled = compiled_data(name, version)
    if compiled is None:
        reason = f"{name} has no version {version}"
        return Decoded(NO_API, version, NEITHER, None, None, (), start, 0, NO_LAYOUT, reason)
    reading = _Reading(data, exact, NEITHER, None, max_rows)
    return _decode_layout(compiled, version, data, start, tree, reading)


def _with_header(header: Decoded, body: Decoded) -> Decoded:
    """A frame: the header's fields first, then the body's."""
    return Decoded(
        body.api_key,
        body.version,
        body.direction,
        header.body,
        body.body,
        header.nodes + body.nodes,
        body.end,
        body.trailing,
        body.status,
        body.reason,
    )


def decode_request(
    frame: bytes | memoryview,
    *,
    tree: bool = False,
    exact: bool = False,
    inner: tuple[int, int] | None = None,
    max_rows: int = MAX_ROWS,
) -> Decoded:
    """Decode a request with its header; `frame` is what follows the four bytes of the length."""
    if len(frame) < 4:
        return Decoded(NO_API, -1, REQUEST, None, None, (), 0, 0, SHORT, f"header at byte 0: {REASONS[SHORT]}")
    api_key = int.from_bytes(frame[0:2], "big", signed=True)
    version = int.from_bytes(frame[2:4], "big", signed=True)
    return _framed(frame, api_key, version, REQUEST, tree, exact, inner, max_rows)


def decode_response(
    frame: bytes | memoryview,
    api_key: int,
    version: int,
    *,
    tree: bool = False,
    exact: bool = False,
    inner: tuple[int, int] | None = None,
    max_rows: int = MAX_ROWS,
) -> Decoded:
    """Decode a response with its header to a request of this API and version. The answer may be of another version
    than was asked for (`Decoded.version`): a broker that does not know the version of an ApiVersions request answers
    UNSUPPORTED_VERSION in the layout of version 0 (KIP-511)."""
    if compiled_message(api_key, version, RESPONSE) is None and api_key != API_VERSIONS:
        return _no_layout(api_key, version, RESPONSE, 0)
    if api_key == API_VERSIONS and int.from_bytes(frame[4:6], "big") == UNSUPPORTED_VERSION:
        version = 0
    return _framed(frame, api_key, version, RESPONSE, tree, exact, inner, max_rows)


_HEADERS: Final = {REQUEST: ("RequestHeader", 1), RESPONSE: ("ResponseHeader", 0)}
"""By direction: the header's layout, and its version where that of the message is not known."""


def _framed(
    frame: bytes | memoryview,
    api_key: int,
    version: int,
    direction: int,
    tree: bool,
    exact: bool,
    inner: tuple[int, int] | None,
    max_rows: int,
) -> Decoded:
    """A message with its header; where the header does not decode, that alone."""
    name, header_version = _HEADERS[direction]
    if compiled_message(api_key, version, direction) is not None:
        header_version = int(program.load().header_version[direction, api_key, version])
    layout = compiled_data(name, header_version)
    assert layout is not None
    reading = _Reading(frame, exact, NEITHER)
    header = _decode_layout(layout, header_version, frame, 0, tree, reading)
    if header.status != OK:
        return header._replace(api_key=api_key, version=version, direction=direction)
    body = decode_message(
        frame, api_key, version, direction, start=header.end, tree=tree, exact=exact, inner=inner, max_rows=max_rows
    )
    return _with_header(header, body)


def decode_frames(frames: Sequence[Frame]) -> list[Body | None]:
    """The exact bodies (`decode_message`) of many frames, by one call of the kernel for all of them; None of what is
    not whole and well-formed, has bytes left, or is very large: `decode_request` and `decode_response` say why."""
    bodies: list[Body | None] = [None] * len(frames)
    messages = project.Messages.from_frames(frames)
    reading = _Reading(messages.buffer.tobytes(), True, NEITHER)
    fitting = (messages.api_key != API_VERSIONS) | (messages.direction == REQUEST)  # its version may be another
    for tape, endings in project.decode_blocks(messages, _of_bodies(program.load())):
        if not len(tape):
            continue
        first, last = int(tape[0, project.MESSAGE]), int(tape[-1, project.MESSAGE])
        whole = fitting & (endings[:, project.STATUS] == OK) & (endings[:, project.ENDED] == messages.end)
        starts = np.searchsorted(tape[:, project.MESSAGE], np.arange(first, last + 2)).tolist()
        columns = values_of(tape)
        for row in np.flatnonzero(whole[first : last + 1]).tolist():
            _, api_key, version, direction = frames[first + row]
            compiled = compiled_message(api_key, version, direction)
            assert compiled is not None
            rows = zip(*(column[starts[row] : starts[row + 1]] for column in columns), strict=True)
            bodies[first + row] = _read_struct(compiled.plan, rows.__next__, reading)[0]
    return bodies


@functools.cache
def _of_bodies(loaded: program.Program) -> Any:
    return loaded.selection(lambda info: info.api_key != NO_API)


def envelope_inner(frame: bytes) -> tuple[int, int] | None:
    """(api_key, version) of the request inside an Envelope request's frame, for decoding the answer to it; None where
    the frame is no Envelope or cannot be decoded."""
    outer = decode_request(frame, exact=True)
    if outer.api_key != ENVELOPE or outer.body is None:
        return None
    inside = decode_request(outer.body["requestData"], exact=True)
    return None if inside.body is None else (inside.api_key, inside.version)


def secret_spans(
    data: bytes,
    api_key: int,
    version: int,
    direction: int,
    *,
    frame: bool = False,
    inner: tuple[int, int] | None = None,
    depth: int = 0,
) -> list[tuple[int, int]]:
    """[start, end) of every secret in a body (`frame`: with its header before it), for masking stored bytes.

    In a message that may hold secrets, what could not be decoded and what trails counts as one. `depth`: how many
    Envelopes are around it."""
    if not schema.has_secrets(api_key, direction):
        return []
    start = 0
    if frame:
        header = decode_request(data, exact=True) if direction == REQUEST else decode_response(data, api_key, version)
        if header.header is None:
            return [(0, len(data))]
        version = header.version
    compiled = compiled_message(api_key, version, direction)
    if frame:
        # A request of a version that we do not know has a header of version 1 at least.
        header_version = program.load().header_version[direction, api_key, version] if compiled is not None else 1
        start = _header_end(data, int(header_version), direction)
    if compiled is None:
        return [(start, len(data))]
    return _secret_spans(compiled, data, start, _Reading(data, False, direction, inner, depth=depth))


def data_secret_spans(data: bytes, name: str, version: int, *, start: int = 0) -> list[tuple[int, int]]:
    """Like `secret_spans`, for data that `decode_data` decodes."""
    if not schema.data_has_secrets(name):
        return []
    compiled = compiled_data(name, version)
    if compiled is None:
        return [(start, len(data))] if start < len(data) else []
    return _secret_spans(compiled, data, start, _Reading(data, False, NEITHER))


def _secret_spans(compiled: Compiled, data: bytes, start: int, reading: _Reading) -> list[tuple[int, int]]:
    tape, end, _, _ = run(data, start, compiled.program, compiled.pc, MAX_ROWS)
    fields = compiled.program.fields
    latest: dict[str, str | None] = {}
    spans = []
    for _, field, value, position, length in tape.tolist():
        info = fields[field]
        parent, _, name = info.path.rpartition(".")
        if info.kind == "string" and name in ("name", "key"):
            latest[parent] = _value(reading, STRING, (value, position, length))
        elif (
            length > 0 and info.secret and _hidden(reading, info.secret, latest.get(parent), (value, position, length))
        ):
            spans.append((position, position + length))
    if end < len(data):
        spans.append((end, len(data)))
    return spans


def _header_end(frame: bytes, header_version: int, direction: int) -> int:
    compiled = compiled_data("RequestHeader" if direction == REQUEST else "ResponseHeader", header_version)
    assert compiled is not None
    return run(frame, 0, compiled.program, compiled.pc, MAX_ROWS)[1]
