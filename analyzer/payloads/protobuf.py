"""Protocol Buffers: payloads of a message type, by the protobuf library with descriptors made at run time.

In: a schema: text of a `.proto` file, a `FileDescriptorProto` in base64 (as clients in Python and .NET register it), or
a descriptor set, and the files that it imports. Out: a `ProtobufCodec`. JSON has fields by their own names and only
those that were sent, as ProtoJSON, but for integers of 64 bits, which are numbers. Google's own types are as ProtoJSON
has them, as `Timestamp` in RFC 3339.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kwire.analyzer.payloads import json_text, proto_text
from kwire.analyzer.payloads.framing import APICURIO, CONFLUENT, GLUE
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError, size_reason
from kwire.analyzer.protocol.tree import Node

_OWN: Final = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
}
"""Files that every compiler brings along, and the modules with their descriptors."""
_CONFLUENT: Final = {
    "confluent/type/decimal.proto": (
        'syntax = "proto3"; package confluent.type; '
        "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
    ),
}
"""Files that Confluent's serializers bring along."""
_AS_JSON: Final = frozenset(
    f"google.protobuf.{name}"
    for name in (
        *("Timestamp", "Duration", "FieldMask", "Struct", "Value", "ListValue", "Any"),
        *(f"{kind}Value" for kind in ("Double", "Float", "Int32", "UInt32", "Bool", "String", "Bytes")),
    )
)
"""Messages with a form of their own in JSON."""
_WRAPPED_LONGS: Final = frozenset({"google.protobuf.Int64Value", "google.protobuf.UInt64Value"})
_MOST_IMPORTS: Final = 500
_MOST_INDEXES: Final = 32
_REF_NAME: Final = 0x0A
_WIRE_KINDS: Final = ("varint", "64 bits", "bytes", "group", "end of group", "32 bits")


class ProtobufCodec:
    """Messages of one schema. `files`: texts of what it may import, by name. Raises UndecodableError."""

    format = "protobuf"

    def __init__(self, text: str, files: Mapping[str, str] | None = None, limits: PayloadLimits | None = None) -> None:
        self._limits = limits or PayloadLimits()
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()
        self._files = files or {}
        main = descriptor_of(text, "schema.proto", self._limits)
        try:
            self._add(main, 0)
        except (TypeError, ValueError, KeyError, RuntimeError) as failure:
            reason = " ".join(str(failure).split())
            raise UndecodableError(f"the schema cannot be used: {reason}"[:300]) from None
        self._file = main
        self._classes: dict[str, type[Message]] = {}
        self._in_order: list[str] | None = None

    def _add(self, file: descriptor_pb2.FileDescriptorProto, depth: int) -> None:
        """Put a file into the pool, after what it imports; files that are not known are left out."""
        self._added.add(file.name)
        known = []
        for name in file.dependency:
            if name in self._added or self._import(name, depth):
                known.append(name)
        if len(known) < len(file.dependency):
            reduced = descriptor_pb2.FileDescriptorProto()
            reduced.CopyFrom(file)
            del reduced.dependency[:], reduced.public_dependency[:], reduced.weak_dependency[:]
            reduced.dependency.extend(known)
            file = reduced
        self._pool.Add(file)

    def _import(self, name: str, depth: int) -> bool:
        if len(self._added) > _MOST_IMPORTS or depth > _MOST_IMPORTS // 10:
            raise UndecodableError("the schema imports too many files")
        if name in self._files:
            file = descriptor_of(self._files[name], name, self._limits)
        elif name in _OWN:
            file = descriptor_pb2.FileDescriptorProto()
            importlib.import_module(_OWN[name]).DESCRIPTOR.CopyToProto(file)
        elif name in _CONFLUENT:
            file = proto_text.parse(_CONFLUENT[name], name)
        else:
            return False
        file.name = name
        self._add(file, depth + 1)
        return True

    def decode(self, data: bytes, start: int = 0, message: str | None = None, registry: str | None = None) -> bytes:
        """Return a payload as JSON: `data` from `start` on, of the message that is named, or the first one.

        `registry`: whose framing is before it, which names the message in a way of its own. Raises UndecodableError."""
        parsed = self._parsed(data, start, message, registry)[0]
        return json_text.dump(_Values(self._limits).of(parsed))

    def nodes(
        self, data: bytes, start: int = 0, message: str | None = None, registry: str | None = None
    ) -> tuple[Node, ...]:
        """Return a payload as nodes with the bytes of each field. Raises UndecodableError."""
        _, descriptor, at = self._parsed(data, start, message, registry)
        return _Fields(data, self._limits).of(descriptor, at, len(data), 0)

    def _parsed(
        self, data: bytes, at: int, message: str | None, registry: str | None
    ) -> tuple[Message, Descriptor, int]:
        if len(data) - at > self._limits.payload_bytes:
            raise UndecodableError(size_reason(len(data) - at, self._limits.payload_bytes))
        may_refer = message is None and registry in (APICURIO, CONFLUENT)  # Apicurio has Confluent's framing too
        reference = self._referred(data, at) if may_refer else None
        if reference is not None:
            names, at = [reference[0]], reference[1]
        elif registry == CONFLUENT:
            path, at = _indexes(data, at)
            names = self._indexed(path)
        elif registry == GLUE:
            index, at = _varint(data, at)
            names = [self._sorted(index)]
        else:
            names = [self._named(message)]
        parsed = [self._message(name, data, at) for name in names]
        if len(parsed) > 1:
            parsed = [message for message in parsed if not len(unknown_fields.UnknownFieldSet(message))]
            if len(parsed) != 1:
                raise UndecodableError(f"the message indexes may mean {' or '.join(names)}")
        return parsed[0], parsed[0].DESCRIPTOR, at

    def _message(self, name: str, data: bytes, at: int) -> Message:
        message_class = self._class(name)
        try:
            return message_class.FromString(data[at:])
        except DecodeError as failure:
            _Fields(data, self._limits).of(message_class.DESCRIPTOR, at, len(data), 0)  # says where, if it can
            raise UndecodableError(f"no {name}: {failure}") from None

    def _class(self, name: str) -> type[Message]:
        if name not in self._classes:
            try:
                descriptor = self._pool.FindMessageTypeByName(name)
            except KeyError:
                raise UndecodableError(f"the schema has no message {name[:100]}") from None
            self._classes[name] = message_factory.GetMessageClass(descriptor)
        return self._classes[name]

    def _named(self, message: str | None) -> str:
        """Return the full name of a message; a header may have its short name, or that of its class in Java."""
        if not self._file.message_type:
            raise UndecodableError("the schema has no message")
        package = f"{self._file.package}." if self._file.package else ""
        if message is None:
            return f"{package}{self._file.message_type[0].name}"
        names = [message, package + message, package + re.split(r"[.$]", message)[-1]]
        return next((name for name in names if self._has(name)), names[0])

    def _has(self, name: str) -> bool:
        try:
            self._pool.FindMessageTypeByName(name)
        except KeyError:
            return False
        return True

    def _referred(self, data: bytes, at: int) -> tuple[str, int] | None:
        """Return the message that Apicurio's serializers name before a payload, as a message `Ref` with a length
        before it, and where the payload begins; None: there is none."""
        if len(data) < at + 3 or data[at + 1] != _REF_NAME or data[at + 2] + 2 != data[at]:
            return None
        end = at + 1 + data[at]
        name = data[at + 3 : end].decode(errors="replace")
        named = [kind.name for kind in self._file.message_type if kind.name == name]
        return (self._named(name), end) if named and end <= len(data) else None

    def _sorted(self, index: int) -> str:
        """Return the message with an index of Glue's: of all in a file, nested ones too, in order of their names."""
        if self._in_order is None:
            package = f"{self._file.package}." if self._file.package else ""
            waiting = [(package + kind.name, kind) for kind in self._file.message_type]
            names = []
            while waiting:
                name, kind = waiting.pop()
                names.append(name)
                waiting += [(f"{name}.{nested.name}", nested) for nested in kind.nested_type]
            self._in_order = sorted(names)
        if index >= len(self._in_order):
            raise UndecodableError(f"the schema has no message with the index {index}")
        return self._in_order[index]

    def _indexed(self, path: Sequence[int]) -> list[str]:
        """Return the messages that Confluent's indexes may name: its clients for Java do not count the entries of maps
        among nested messages, and that for Python does."""
        names = []
        for counts_entries in (False, True):
            name = [self._file.package] if self._file.package else []
            types: Any = self._file.message_type
            for index in path:
                types = [kind for kind in types if counts_entries or not kind.options.map_entry]
                if not 0 <= index < len(types) or types[index].options.map_entry:
                    break
                name.append(types[index].name)
                types = types[index].nested_type
            else:
                if (full := ".".join(name)) not in names:
                    names.append(full)
        if not names:
            raise UndecodableError(f"the schema has no message with the indexes {', '.join(map(str, path))}")
        return names


def descriptor_of(text: str, name: str, limits: PayloadLimits) -> descriptor_pb2.FileDescriptorProto:
    """Return a schema's descriptor, whether it is text or base64 of a descriptor. Raises UndecodableError."""
    if len(text) > limits.schema_bytes:
        raise UndecodableError(f"the schema has {size_reason(len(text), limits.schema_bytes)}")
    try:
        packed = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return proto_text.parse(text, name, limits)
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(packed)
    except DecodeError:
        raise UndecodableError("the schema is neither .proto text nor a descriptor") from None
    file.name = file.name or name
    return file


def of_descriptor_set(packed: bytes) -> tuple[str, dict[str, str]]:
    """Return a descriptor set as the base64 of its last file, which the others are for, and of each by name."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(packed).file
    except DecodeError:
        raise UndecodableError("no descriptor set") from None
    texts = {file.name: base64.b64encode(file.SerializeToString()).decode() for file in files}
    if not texts:
        raise UndecodableError("the descriptor set is empty")
    return texts[files[-1].name], texts


def _indexes(data: bytes, at: int) -> tuple[list[int], int]:
    """Return Confluent's message indexes and where they end: a count and so many, zigzag varints; 0 alone is the first
    message."""
    count, at = _zigzag(data, at)
    if not 0 <= count <= _MOST_INDEXES:
        raise UndecodableError(f"{count} message indexes")
    path = [] if count else [0]
    for _ in range(count):
        index, at = _zigzag(data, at)
        path.append(index)
    return path, at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise UndecodableError(f"the value ends too early at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7
        if shift > 63:
            raise UndecodableError(f"a number of more than 64 bits at byte {at}")


class _Values:
    """Turns messages into plain values, as many as the limits allow."""

    def __init__(self, limits: PayloadLimits) -> None:
        self._left = limits.nodes
        self._limits = limits

    def of(self, message: Message) -> Any:
        """Return a message's value. Raises UndecodableError."""
        name = message.DESCRIPTOR.full_name
        if name in _WRAPPED_LONGS:
            return message.value
        if name in _AS_JSON:
            try:
                self._count(message.ByteSize())
                return json_format.MessageToDict(message, preserving_proto_field_name=True)
            except (json_format.Error, TypeError, ValueError, OverflowError, RecursionError):
                pass  # a time in the year 20000, or Any of an unknown message: its fields say it
        values = {}
        for field, value in message.ListFields():
            self._count(1)
            values[field.name] = self._field(field, value)
        return values

    def _count(self, nodes: int) -> None:
        self._left -= nodes
        if self._left < 0:
            raise UndecodableError(f"more than {self._limits.nodes:,} fields and elements")

    def _field(self, field: FieldDescriptor, value: Any) -> Any:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            kind = entry.fields_by_name["value"]
            self._count(len(value))
            return {_key(key): self._single(kind, value[key]) for key in value}
        if field.is_repeated:
            self._count(len(value))
            return [self._single(field, part) for part in value]
        return self._single(field, value)

    def _single(self, field: FieldDescriptor, value: Any) -> Any:
        if field.message_type is not None:
            return self.of(value)
        if field.enum_type is not None:
            named = field.enum_type.values_by_number.get(value)
            return value if named is None else named.name
        return _shortest(value) if field.type == FieldDescriptor.TYPE_FLOAT else value


def _key(key: Any) -> str:
    """Return the key of a map as JSON has it."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def _shortest(value: float) -> float:
    """Return the shortest number that is this one in 32 bits: 0.1, not 0.10000000149011612."""
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", short) == struct.pack("<f", value):
                return short
        except OverflowError:
            continue
    return value


class _Fields:
    """Makes nodes of a message's bytes, by wire format and descriptor."""

    def __init__(self, data: bytes, limits: PayloadLimits) -> None:
        self._data = data
        self._limits = limits
        self._left = limits.nodes

    def of(self, descriptor: Descriptor | None, at: int, end: int, depth: int, group: int = 0) -> tuple[Node, ...]:
        """Return the nodes of a message in `data[at:end]`; `group`: the number of the group that it is."""
        return self._message(descriptor, at, end, depth, group)[0]

    def _message(
        self, descriptor: Descriptor | None, at: int, end: int, depth: int, group: int
    ) -> tuple[tuple[Node, ...], int]:
        if depth > self._limits.depth:
            raise UndecodableError(f"nested deeper than {self._limits.depth} levels at byte {at}")
        nodes: list[Node] = []
        while at < end:
            start = at
            tag, at = _varint(self._data, at)
            number, kind = tag >> 3, tag & 7
            if kind == 4 and group and number == group:
                return tuple(nodes), at
            if kind == 4 or kind > 5 or not 0 < number < 1 << 29:
                raise UndecodableError(f"tag {tag} at byte {start} begins no field")
            self._left -= 1
            if self._left < 0:
                raise UndecodableError(f"more than {self._limits.nodes:,} fields and elements")
            field = None if descriptor is None else descriptor.fields_by_number.get(number)
            node, at = self._field(field, number, kind, start, at, end, depth)
            nodes.append(node)
        if group:
            raise UndecodableError(f"a group has no end at byte {at}")
        return tuple(nodes), at

    def _field(
        self, field: FieldDescriptor | None, number: int, kind: int, start: int, at: int, end: int, depth: int
    ) -> tuple[Node, int]:
        name = f"field {number}" if field is None else field.name
        inner = None if field is None else field.message_type
        if kind == 3:
            children, at = self._message(inner, at, end, depth + 1, number)
            return Node(name, "group", None, start, at, children), at
        if kind == 0:
            value, at = _varint(self._data, at)
            return Node(name, _type(field, kind), _scalar(field, value), start, at), at
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _varint(self._data, at)
        if size > end - at:
            raise UndecodableError(f"{name}: {size} bytes where {end - at} are left at byte {at}")
        stop = at + size
        content = self._data[at:stop]
        if kind != 2:
            return Node(name, _type(field, kind), _fixed(field, content), start, stop), stop
        if inner is not None:
            return Node(name, inner.name, None, start, stop, self.of(inner, at, stop, depth + 1)), stop
        text = field is not None and field.type == FieldDescriptor.TYPE_STRING
        shown = content.decode(errors="backslashreplace") if text else f"0x{content[:100].hex()}"
        return Node(name, _type(field, kind), shown, start, stop), stop


_TYPES: Final = {
    value: name.removeprefix("TYPE_").lower() for name, value in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def _type(field: FieldDescriptor | None, kind: int) -> str:
    return _WIRE_KINDS[kind] if field is None else _TYPES[field.type]


def _scalar(field: FieldDescriptor | None, value: int) -> Any:
    """Return the value of a varint by the type of its field."""
    kind = None if field is None else field.type
    if kind in (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64):
        return (value >> 1) ^ -(value & 1)
    if kind == FieldDescriptor.TYPE_BOOL:
        return bool(value)
    if kind in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_ENUM):
        value = value - (1 << 64) if value >> 63 else value
        named = None if field is None or field.enum_type is None else field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value


def _fixed(field: FieldDescriptor | None, content: bytes) -> Any:
    kind = None if field is None else field.type
    if kind in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return struct.unpack("<d" if len(content) == 8 else "<f", content)[0]
    signed = kind in (FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64)
    return int.from_bytes(content, "little", signed=signed)
