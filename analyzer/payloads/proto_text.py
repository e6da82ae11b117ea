"""The language of `.proto` files (https://protobuf.dev/reference/protobuf/proto3-spec/), read into descriptors.

In: text. Out: a `FileDescriptorProto`, as protoc makes it, with names of types as the text has them: the pool of the
protobuf library, which has no reader for text, resolves these. Options that do not change how bytes are read are left
out, and so are services and extensions.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import descriptor_pb2

from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError, size_reason

Field = descriptor_pb2.FieldDescriptorProto

_TOKEN: Final = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
      | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>(?:0[xX][0-9A-Fa-f]+ | \d+\.?\d*(?:[eE][+-]?\d+)? | \.\d+(?:[eE][+-]?\d+)?)f?)
      | (?P<symbol>[;{}()\[\]<>=,.:+\-/])
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_DEPTH: Final = 30
_SCALARS: Final = {
    "double": Field.TYPE_DOUBLE,
    "float": Field.TYPE_FLOAT,
    "int64": Field.TYPE_INT64,
    "uint64": Field.TYPE_UINT64,
    "int32": Field.TYPE_INT32,
    "fixed64": Field.TYPE_FIXED64,
    "fixed32": Field.TYPE_FIXED32,
    "bool": Field.TYPE_BOOL,
    "string": Field.TYPE_STRING,
    "bytes": Field.TYPE_BYTES,
    "uint32": Field.TYPE_UINT32,
    "sfixed32": Field.TYPE_SFIXED32,
    "sfixed64": Field.TYPE_SFIXED64,
    "sint32": Field.TYPE_SINT32,
    "sint64": Field.TYPE_SINT64,
}
_LABELS: Final = {
    "optional": Field.LABEL_OPTIONAL,
    "required": Field.LABEL_REQUIRED,
    "repeated": Field.LABEL_REPEATED,
}


def parse(text: str, name: str, limits: PayloadLimits | None = None) -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of a file; `name`: what others import it by. Raises UndecodableError."""
    limits = limits or PayloadLimits()
    if len(text) > limits.schema_bytes:
        raise UndecodableError(f"the schema has {size_reason(len(text), limits.schema_bytes)}")
    return _Parser(text, name).file()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text):
            if match.lastgroup is not None:
                self._tokens.append((match.lastgroup, match.group(), match.start()))
        self._text = text
        self._at = 0
        self._file = descriptor_pb2.FileDescriptorProto(name=name)

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        """Read all."""
        while self._at < len(self._tokens):
            word = self._peek()
            if self._accepts(";"):
                continue
            if word in ("syntax", "edition"):
                self._version()
            elif word == "package":
                self._next()
                self._file.package = self._name()
                self._expect(";")
            elif word == "import":
                self._next()
                if self._peek() in ("public", "weak", "option"):
                    self._next()
                self._file.dependency.append(self._string())
                self._expect(";")
            elif word == "message":
                self._next()
                self._message(self._file.message_type.add(), 0)
            elif word == "enum":
                self._next()
                self._enum(self._file.enum_type.add())
            elif word == "option":
                self._skip_statement()
            elif word in ("service", "extend"):
                self._skip_statement()
            else:
                raise self._error(f"{word!r} begins no statement")
        return self._file

    def _version(self) -> None:
        word = self._next()
        self._expect("=")
        version = self._string()
        self._expect(";")
        if word == "edition":
            self._file.syntax = "editions"
            if version not in ("2023", "2024"):
                raise self._error(f"edition {version} is not known")
            self._file.edition = descriptor_pb2.Edition.Value(f"EDITION_{version}")
        elif version in ("proto2", "proto3"):
            self._file.syntax = version
        else:
            raise self._error(f"syntax {version} is not known")

    def _message(self, message: Any, depth: int, name: str | None = None) -> None:
        if depth > _DEPTH:
            raise self._error(f"messages nested deeper than {_DEPTH} levels")
        message.name = name or self._word()
        self._expect("{")
        while not self._accepts("}"):
            word = self._peek()
            if self._accepts(";"):
                continue
            if word == "message" and self._peek(2) == "{":
                self._next()
                self._message(message.nested_type.add(), depth + 1)
            elif word == "enum" and self._peek(2) == "{":
                self._next()
                self._enum(message.enum_type.add())
            elif word == "oneof" and self._peek(2) == "{":
                self._next()
                message.oneof_decl.add(name=self._word())
                self._expect("{")
                index = len(message.oneof_decl) - 1
                while not self._accepts("}"):
                    if self._peek() == "option":
                        self._skip_statement()
                    elif not self._accepts(";"):
                        self._field(message, depth, index)
            elif word in ("option", "extensions", "reserved", "extend") and self._peek(1) not in ("=", "."):
                if word == "option" and self._is_message_set():
                    raise self._error("message sets are not decoded")
                self._skip_statement()
            else:
                self._field(message, depth, None)
        self._place_optional(message)

    def _is_message_set(self) -> bool:
        return self._peek(1) == "message_set_wire_format"

    def _place_optional(self, message: Any) -> None:
        """Give `optional` fields of proto3 the oneofs that stand for their presence, after all others."""
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _field(self, message: Any, depth: int, oneof: int | None) -> None:
        field = message.field.add(label=Field.LABEL_OPTIONAL)
        if oneof is not None:
            field.oneof_index = oneof
        label = self._peek()
        if label in _LABELS and (self._peek(1) not in ("=", ".") or self._has_gap()):
            self._next()
            field.label = _LABELS[label]
            if label == "optional" and self._file.syntax == "proto3":
                field.proto3_optional = True
        if self._peek() == "map" and self._peek(1) == "<":
            self._map(message, field)
        elif self._peek() == "group" and self._peek(2) == "=":
            self._next()
            group = self._word()
            field.name = group.lower()
            self._number(field)
            field.type = Field.TYPE_GROUP
            field.type_name = group
            self._message(message.nested_type.add(), depth + 1, group)
            return
        else:
            self._type(field)
            field.name = self._word()
        self._number(field)
        self._expect(";")

    def _has_gap(self) -> bool:
        """Return whether there is a dot after a blank: a name from the outermost package on, as in `repeated .a.B`."""
        _, word, start = self._tokens[self._at]
        return self._peek(1) == "." and self._tokens[self._at + 1][2] > start + len(word)

    def _number(self, field: Any) -> None:
        """Read `= N [options]`."""
        self._expect("=")
        field.number = self._integer()
        if not 0 < field.number < 1 << 29:
            raise self._error(f"field number {field.number}")
        if self._peek() == "[":
            self._skip_balanced()

    def _type(self, field: Any) -> None:
        name = self._name()
        if name in _SCALARS:
            field.type = _SCALARS[name]
        else:
            field.type_name = name

    def _map(self, message: Any, field: Any) -> None:
        self._next()
        self._expect("<")
        entry = descriptor_pb2.DescriptorProto(options=descriptor_pb2.MessageOptions(map_entry=True))
        for number, name in enumerate(("key", "value"), 1):
            part = entry.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
            self._type(part)
            self._expect("," if number == 1 else ">")
        field.name = self._word()
        field.label = Field.LABEL_REPEATED
        entry.name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        field.type_name = entry.name
        field.type = Field.TYPE_MESSAGE
        message.nested_type.append(entry)

    def _enum(self, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        enum.name = self._word()
        self._expect("{")
        numbers = set()
        while not self._accepts("}"):
            word = self._peek()
            if self._accepts(";"):
                continue
            if word in ("option", "reserved") and self._peek(1) != "=":
                self._skip_statement()
                continue
            value = enum.value.add(name=self._word())
            self._expect("=")
            value.number = self._integer()
            if value.number in numbers:
                enum.options.allow_alias = True
            numbers.add(value.number)
            if self._peek() == "[":
                self._skip_balanced()
            self._expect(";")

    def _skip_statement(self) -> None:
        """Leave out all up to a semicolon, or a block in braces that no semicolon follows."""
        is_option = self._peek() == "option"
        while True:
            if self._peek() in ("{", "[", "("):
                is_block = self._peek() == "{"
                self._skip_balanced()
                if is_block and not is_option:
                    return
            elif self._next() == ";":
                return

    def _skip_balanced(self) -> None:
        ends = {"{": "}", "[": "]", "(": ")", "<": ">"}
        expected = [ends[self._next()]]
        while expected:
            word = self._next()
            if word == expected[-1]:
                expected.pop()
            elif word in ("{", "[", "("):
                expected.append(ends[word])

    def _name(self) -> str:
        """Read a name with dots."""
        name = "." if self._accepts(".") else ""
        name += self._word()
        while self._accepts("."):
            name += "." + self._word()
        return name

    def _word(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != "word":
            raise self._error(f"a name is missing before {self._peek()!r}")
        return self._next()

    def _string(self) -> str:
        """Read a string; adjacent ones are one."""
        parts = []
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "string":
            parts.append(self._next()[1:-1])
        if not parts:
            raise self._error("a string is missing")
        return "".join(parts)

    def _integer(self) -> int:
        sign = -1 if self._accepts("-") else 1
        word = self._next()
        try:
            number = int(word, 8) if len(word) > 1 and word[0] == "0" and word.isdigit() else int(word, 0)
        except ValueError:
            raise self._error(f"{word!r} is no integer") from None
        if number > 1 << 31:
            raise self._error(f"{word} is too large")
        return sign * number

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise self._error("the text ends too early")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _accepts(self, symbol: str) -> bool:
        if self._peek() == symbol and self._tokens[self._at][0] == "symbol":
            self._at += 1
            return True
        return False

    def _expect(self, symbol: str) -> None:
        if not self._accepts(symbol):
            raise self._error(f"{symbol!r} is missing before {self._peek()!r}")

    def _error(self, reason: str) -> UndecodableError:
        at = self._tokens[min(self._at, len(self._tokens) - 1)][2] if self._tokens else 0
        line = self._text.count("\n", 0, at) + 1
        return UndecodableError(f"the .proto text, line {line}: {reason[:200]}")
