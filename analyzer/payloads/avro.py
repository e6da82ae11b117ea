"""Avro (https://avro.apache.org/docs/1.12.0/specification/): binary values of a writer's schema, by fastavro.

In: a schema's text and those that it refers to. Out: an `AvroCodec`, which turns payloads into JSON or into nodes with
their bytes. Values are plain: a union is the value of its branch, without the branch's name; logical types are what
they mean.

Rule: fastavro checks neither depth nor counts, and crashes on a deep value of a recursive schema. So only schemas whose
values cannot be larger than a small multiple of their bytes go to it, and payloads of moderate size; all else is read
by `_Reader`, which counts. That one also says what is wrong where fastavro fails.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Sequence
from typing import Any, Final

import fastavro
from fastavro.read import LOGICAL_READERS, schemaless_reader
from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form

from kwire.analyzer.payloads import json_text
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError, size_reason
from kwire.analyzer.protocol.tree import Node

FAST_BYTES: Final = 64 << 10
"""Payloads up to this size are fastavro's: a byte becomes an object of 232 bytes at most."""
_FAST_NODES: Final = 5_000
"""Values that a schema may hold without a byte of payload, if fastavro is to read it."""
_SCHEMA_DEPTH: Final = 64
_INFINITE: Final = {
    frozenset({"float"}): re.compile(rb"[\x80-\xff][\x7f\xff]"),
    frozenset({"double"}): re.compile(rb"[\xf0-\xff][\x7f\xff]"),
    frozenset({"float", "double"}): re.compile(rb"[\x80-\xff][\x7f\xff]"),
}
"""The last two bytes of NaN and the infinities, whose exponent has all bits set, by the kinds of numbers. (Others may
look so; where none does, a value need not be searched for them.)"""

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_KINDS: Final = _PRIMITIVES | {"record", "error", "enum", "fixed", "array", "map"}
_FINGERPRINT: Final = "CRC-64-AVRO"


class AvroCodec:
    """Values of one schema. `references`: schemas with the named types that it uses. Raises UndecodableError."""

    format = "avro"

    def __init__(self, text: str, references: Sequence[str] = (), limits: PayloadLimits | None = None) -> None:
        self._limits = limits or PayloadLimits()
        self._types: dict[str, Any] = {}
        try:
            for reference in references:
                fastavro.parse_schema(_loaded(reference, self._limits), self._types)
            self._schema = fastavro.parse_schema(_loaded(text, self._limits), self._types)
        except (SchemaParseException, RecursionError, KeyError, TypeError, ValueError, AttributeError) as failure:
            raise UndecodableError(f"the schema is no Avro: {type(failure).__name__}: {failure}"[:300]) from None
        size = _Size(self._types)
        nodes = size.of(self._schema)
        self._fast = not size.is_unbounded and nodes <= _FAST_NODES and not (references and size.is_named_apart)
        self._infinite = _INFINITE.get(frozenset(size.floats))

    def fingerprint(self) -> bytes:
        """Return the schema's fingerprint, as single-object encoding has it: 8 bytes, the lowest first."""
        return bytes.fromhex(fingerprint(to_parsing_canonical_form(self._schema), _FINGERPRINT))

    def decode(self, data: bytes, start: int = 0, message: str | None = None) -> bytes:
        """Return a payload as JSON: `data` from `start` on. Raises UndecodableError."""
        if self._fast and len(data) - start <= FAST_BYTES:
            source = io.BytesIO(data)
            source.seek(start)
            try:
                value = schemaless_reader(source, self._schema, None)
                if source.tell() == len(data):
                    return json_text.dump(value, self._infinite is not None and self._infinite.search(data) is not None)
            except Exception:  # whatever is wrong, the reader below says where
                pass
        return json_text.dump(self._reader(data, start).whole(self._schema))

    def nodes(self, data: bytes, start: int = 0, message: str | None = None) -> tuple[Node, ...]:
        """Return a payload as nodes with the bytes of each field. Raises UndecodableError."""
        reader = self._reader(data, start)
        reader.traced = []
        reader.whole(self._schema)
        return tuple(reader.traced[0].children or reader.traced)

    def _reader(self, data: bytes, start: int) -> _Reader:
        size = len(data) - start
        if size > self._limits.payload_bytes:
            raise UndecodableError(size_reason(size, self._limits.payload_bytes))
        return _Reader(data, start, self._types, self._limits)


def _loaded(text: str, limits: PayloadLimits) -> Any:
    """Return a schema's JSON. Raises UndecodableError."""
    if len(text) > limits.schema_bytes:
        raise UndecodableError(f"the schema has {size_reason(len(text), limits.schema_bytes)}")
    try:
        schema = json.loads(text)
    except RecursionError:
        raise UndecodableError("the schema is nested too deeply") from None
    except ValueError:
        if text.strip().strip('"') in _PRIMITIVES:
            return text.strip().strip('"')
        raise UndecodableError("the schema is no JSON") from None
    level = [schema]
    for _ in range(4 * _SCHEMA_DEPTH):
        level = [
            part
            for value in level
            for part in (value.values() if isinstance(value, dict) else value)
            if isinstance(part, dict | list)
        ] if isinstance(schema, dict | list) else []  # fmt: skip
        if not level:
            return _with_names(schema)
    raise UndecodableError("the schema is nested too deeply")


def _with_names(schema: Any) -> Any:
    """Return a schema with the bare name where it says `{"type": "shop.Money"}`, which Java's parser takes and
    fastavro does not."""
    if isinstance(schema, list):
        return [_with_names(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and kind not in _KINDS and "name" not in schema:
        return kind
    parts = {name: _with_names(schema[name]) for name in ("type", "items", "values") if name in schema}
    if isinstance(fields := schema.get("fields"), list):
        parts["fields"] = [
            {**field, "type": _with_names(field["type"])} if isinstance(field, dict) and "type" in field else field
            for field in fields
        ]
    return {**schema, **parts}


class _Size:
    """Bounds on the values of a schema: in number, and in bytes."""

    def __init__(self, types: dict[str, Any]) -> None:
        self._types = types
        self._nodes: dict[str, int] = {}
        self._open: set[str] = set()
        self._least: dict[str, int] = {}
        self.is_unbounded = False
        self.is_named_apart = False
        self.floats: set[str] = set()

    def of(self, schema: Any, depth: int = 0) -> int:
        """Return how many values one of this schema holds, if each of its lists had one element."""
        if depth > _SCHEMA_DEPTH:
            raise UndecodableError("the schema is nested too deeply")
        if isinstance(schema, list):
            return 1 + max((self.of(branch, depth + 1) for branch in schema), default=0)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.of(kind, depth + 1)
        if kind in _PRIMITIVES:
            self.floats |= {kind} & {"float", "double"}
            return 1
        if kind in ("enum", "fixed"):
            return 1
        if kind in ("array", "map"):
            items = schema["items" if kind == "array" else "values"]
            if kind == "array" and self._least_bytes(items) == 0:
                self.is_unbounded = True
            return 1 + self.of(items, depth + 1)
        if kind in ("record", "error"):
            name = schema["name"]
            self._open.add(name)
            nodes = 1 + sum(self.of(field["type"], depth + 1) for field in schema["fields"])
            self._open.discard(name)
            self._nodes[name] = min(nodes, 1 << 40)
            return self._nodes[name]
        self.is_named_apart = True
        if kind in self._open:
            self.is_unbounded = True
            return 1
        if kind not in self._nodes:
            definition = self._types.get(kind)
            if definition is None:
                raise UndecodableError(f"the schema refers to {kind}, which is not known")
            self._nodes[kind] = self.of(definition, depth + 1)
        return self._nodes[kind]

    def _least_bytes(self, schema: Any, depth: int = 0) -> int:
        """Return 0 if a value may have no bytes, else 1."""
        if depth > _SCHEMA_DEPTH:
            return 0
        if isinstance(schema, list):
            return 1
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self._least_bytes(kind, depth + 1)
        if kind == "null":
            return 0
        if kind == "fixed":
            return min(int(schema["size"]), 1)
        if kind in ("record", "error"):
            name = schema["name"]
            if name not in self._least:
                self._least[name] = 0  # of a record within itself
                sizes = (self._least_bytes(field["type"], depth + 1) for field in schema["fields"])
                self._least[name] = max(sizes, default=0)
            return self._least[name]
        if kind in self._types and kind not in _PRIMITIVES:
            if kind in self._least:
                return self._least[kind]
            return self._least_bytes(self._types[kind], depth + 1)
        return 1


class _Reader:
    """Reads one value and counts. `traced`: nodes of what was read, if it is a list."""

    def __init__(self, data: bytes, start: int, types: dict[str, Any], limits: PayloadLimits) -> None:
        self.traced: list[Node] | None = None
        self._data = data
        self._at = start
        self._types = types
        self._limits = limits
        self._nodes = limits.nodes
        self._path: list[str] = []

    def whole(self, schema: Any) -> Any:
        """Return the value that fills the data. Raises UndecodableError."""
        try:
            value = self._value(schema, "value")
        except RecursionError:
            raise self._error("nested too deeply") from None
        if self._at != len(self._data):
            raise UndecodableError(f"{len(self._data) - self._at} bytes are left over at byte {self._at}")
        return value

    def _error(self, reason: str) -> UndecodableError:
        path = ".".join(self._path[1:])
        return UndecodableError(f"{path + ': ' if path else ''}{reason} at byte {self._at}")

    def _value(self, schema: Any, name: str, start: int | None = None) -> Any:
        """Read a value. `start`: where its branch of a union is named."""
        self._nodes -= 1
        if self._nodes < 0:
            raise self._error(f"more than {self._limits.nodes:,} fields and elements")
        if len(self._path) > self._limits.depth:
            raise UndecodableError(f"nested deeper than {self._limits.depth} levels at byte {self._at}")
        while True:  # to the definition of the type
            kind = schema["type"] if isinstance(schema, dict) else schema
            if isinstance(kind, dict | list):
                schema = kind
            elif isinstance(kind, str) and isinstance(schema, str) and kind not in _PRIMITIVES:
                schema = self._types[kind]
            else:
                break
            if isinstance(schema, list):
                kind = "union"
                break
        if isinstance(schema, list):
            start = self._at
            branch = self._long()
            if not 0 <= branch < len(schema):
                raise self._error(f"branch {branch} of a union of {len(schema)}")
            return self._value(schema[branch], name, start)
        self._path.append(name)
        outer, start = self.traced, self._at if start is None else start
        if outer is not None:
            self.traced = []
        value = self._logical(self._plain(kind, schema), kind, schema)
        if outer is not None:
            shown = kind if self.traced else value
            label = len(value) if isinstance(value, list | dict) and kind in ("array", "map") else shown
            node = Node(name, str(kind), _shown(label), start, self._at, tuple(self.traced or ()), null=value is None)
            outer.append(node)
            self.traced = outer
        self._path.pop()
        return value

    def _plain(self, kind: str, schema: Any) -> Any:
        if kind == "null":
            return None
        if kind == "boolean":
            byte = self._take(1)[0]
            if byte > 1:
                raise self._error(f"boolean {byte}")
            return byte == 1
        if kind in ("int", "long"):
            return self._long()
        if kind in ("float", "double"):
            return struct.unpack(*(("<f", self._take(4)) if kind == "float" else ("<d", self._take(8))))[0]
        if kind in ("bytes", "string"):
            data = self._take(self._long())
            if kind == "bytes":
                return data
            try:
                return data.decode()
            except UnicodeDecodeError:
                raise self._error("a string is no UTF-8") from None
        if kind == "fixed":
            return self._take(int(schema["size"]))
        if kind == "enum":
            which = self._long()
            if not 0 <= which < len(schema["symbols"]):
                raise self._error(f"symbol {which} of an enum of {len(schema['symbols'])}")
            return schema["symbols"][which]
        if kind == "array":
            return [self._value(schema["items"], f"[{i}]") for i in self._blocks()]
        if kind == "map":
            return {name: self._value(schema["values"], name) for name in map(self._key, self._blocks())}
        return {field["name"]: self._value(field["type"], field["name"]) for field in schema["fields"]}

    def _key(self, _: int) -> str:
        return str(self._plain("string", None))

    def _blocks(self) -> Any:
        """Yield the number of each element; blocks with a negative count say their size too."""
        at = 0
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            for _ in range(count):
                yield at
                at += 1

    def _logical(self, value: Any, kind: str, schema: Any) -> Any:
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        convert = LOGICAL_READERS.get(f"{kind}-{logical}") if logical else None
        if convert is None:
            return value
        try:
            return convert(value, schema, None)
        except Exception:  # a date in the year 20000: the number is what was sent
            return value

    def _long(self) -> int:
        data, at = self._data, self._at
        value = shift = 0
        while True:
            if at >= len(data):
                raise self._error("the value ends too early")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise self._error("a number of more than 64 bits")
        self._at = at
        return (value >> 1) ^ -(value & 1)

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise self._error(f"{size} bytes where {len(self._data) - self._at} are left")
        data = self._data[self._at : self._at + size]
        self._at += size
        return data


def _shown(value: Any) -> Any:
    """Return a value as a node shows it."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return json_text.dump(value).decode().strip('"')
