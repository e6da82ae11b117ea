"""Schemas from a folder (`--schemas DIR`).

In: files named by the id or the subject of their schema: `17.avsc`, `orders-value.proto`,
`7f2d0d5c-….json`. `.avsc` is Avro, `.proto` Protobuf, `.desc`, `.pb` and `.protoset` a descriptor set (`protoc
--include_imports --descriptor_set_out`), `.json` a JSON Schema, an Avro schema or a registry's answer. Files in folders
below are found too, and serve for what others import. A file that cannot be read is an error: the user named it.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads import json_text
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError, size_reason
from kwire.analyzer.payloads.schemas import AVRO, FOLDER, JSON_SCHEMA, PROTOBUF, KnownSchemas, Schema, format_of

DESCRIPTOR_SETS: Final = (".desc", ".pb", ".protoset", ".binpb", ".fds")
ENDINGS: Final = (".avsc", ".proto", ".json", *DESCRIPTOR_SETS)
_MOST_ENTRIES: Final = 100_000
"""Files and folders that are looked at: more are no folder of schemas, but somebody's home."""
_AVRO_KINDS: Final = frozenset(
    {"record", "error", "enum", "array", "map", "fixed", "null", "boolean", "int", "long", "float", "double", "bytes"}
)
"""`type` of a schema that is Avro; of a JSON Schema it is `object`, `string` or others, which Avro's string also is."""

_IMPORT: Final = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?["\']([^"\']+)["\']', re.MULTILINE)

_BASE64: Final = re.compile(r"[A-Za-z0-9+/=\s]+")


class SchemaFolder(KnownSchemas):
    """The schemas of a folder. Raises UsageError."""

    def __init__(self, path: str, limits: PayloadLimits) -> None:
        self._limits = limits
        self._root = Path(path)
        super().__init__({}, {})
        self._protos: dict[str, str] = {}
        self._avro: dict[str, str] = {}
        if not self._root.is_dir():
            raise UsageError(
                f"--schemas {path}: not a folder", "name the folder that holds .avsc, .proto or .json files"
            )
        files = self._files()
        if not files:
            raise UsageError(
                f"--schemas {path}: no schemas in it", f"schemas are files that end with {', '.join(ENDINGS)}"
            )
        texts = [(file, self._text(file)) for file in files]
        for file, text in texts:
            if file.suffix == ".proto":
                self._protos[file.relative_to(self._root).as_posix()] = text
            elif file.suffix == ".avsc":
                for name in _avro_names(text):
                    self._avro.setdefault(name, text)
        for file, text in texts:
            self._add(file, text)

    def _files(self) -> list[Path]:
        files: list[Path] = []
        for count, file in enumerate(self._root.rglob("*")):
            if count > _MOST_ENTRIES or len(files) > self._limits.schemas:
                raise UsageError(
                    f"--schemas {self._root}: more than {self._limits.schemas:,} schemas, or files that are none",
                    "name a folder that holds schemas alone",
                )
            if file.suffix in ENDINGS and file.is_file():
                files.append(file)
        return sorted(files)

    def _text(self, file: Path) -> str:
        """Return a file's text; of a descriptor set its base64."""
        try:
            with file.open("rb") as opened:
                data = opened.read(self._limits.schema_bytes + 1)
        except OSError as failure:
            raise UsageError(f"{file}: {failure.strerror}", "schemas must be readable") from None
        if len(data) > self._limits.schema_bytes:
            reason = size_reason(file.stat().st_size, self._limits.schema_bytes)
            raise UsageError(f"{file}: {reason}", "take it out of the folder of --schemas")
        if file.suffix in DESCRIPTOR_SETS:
            return base64.b64encode(data).decode()
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UsageError(f"{file}: not text in UTF-8", "schemas are text; take it out of the folder") from None

    def _add(self, file: Path, text: str) -> None:
        schema_id, subject = _named(file.stem)
        try:
            schema, number = self._schema(file, text, schema_id, subject)
        except UndecodableError as failure:
            raise UsageError(f"{file}: {failure}", "correct it, or take it out of the folder of --schemas") from None
        if schema_id is not None:
            self._by_id[schema_id] = schema
        if number is not None:
            self._by_id.setdefault(number, schema)
        if schema.subject is not None:
            self._by_subject[schema.subject] = schema

    def _schema(self, file: Path, text: str, schema_id: str | None, subject: str | None) -> tuple[Schema, str | None]:
        """Return a file's schema, and the id that its content says."""

        def schema_of(kind: str, content: str, references: Mapping[str, str], number: str | None = None) -> Schema:
            return Schema(schema_id or number, kind, subject, FOLDER, content, references)

        if file.suffix == ".proto":
            return schema_of(PROTOBUF, text, self._imports(text)), None
        if file.suffix == ".avsc":
            return schema_of(AVRO, text, self._references(text)), None
        if file.suffix in DESCRIPTOR_SETS:
            from kwire.analyzer.payloads.protobuf import of_descriptor_set

            main, files = of_descriptor_set(base64.b64decode(text))
            return schema_of(PROTOBUF, main, files), None
        content = json_text.load(text)
        if isinstance(content, dict) and isinstance(content.get("schema"), str):
            number = content.get("id")
            if subject is not None and content.get("subject"):
                subject = str(content["subject"])
            kind, inner = format_of(content.get("schemaType")), content["schema"]
            needed = {AVRO: self._references, PROTOBUF: self._imports}.get(kind)
            references = {} if needed is None else needed(inner)
            number = str(number) if isinstance(number, int) else None
            return schema_of(kind, inner, references, number), number
        if is_avro(content):
            return schema_of(AVRO, text, self._references(text)), None
        return schema_of(JSON_SCHEMA, text, {}), None

    def _imports(self, text: str) -> dict[str, str]:
        """Return the files of the folder that a `.proto` imports, and what these import."""
        if _BASE64.fullmatch(text):  # a descriptor, as the serializer for Python registers it
            return self._protos
        needed: dict[str, str] = {}
        waiting = [text]
        while waiting:
            for name in _IMPORT.findall(waiting.pop()):
                if name in self._protos and name not in needed:
                    needed[name] = self._protos[name]
                    waiting.append(needed[name])
        return needed

    def _references(self, text: str) -> dict[str, str]:
        """Return the schemas that an Avro schema needs, each after what it needs itself."""
        needed: dict[str, str] = {}
        own = _avro_names(text)

        def collect(text: str, own: set[str], depth: int) -> None:
            for name in sorted(self._avro.keys() - own):
                short = name.rsplit(".", 1)[-1]
                if f'"{name}"' in text or f'"{short}"' in text:
                    other = self._avro[name]
                    if depth < 10 and other not in needed.values():
                        collect(other, own | _avro_names(other), depth + 1)
                        if not own & _avro_names(other):
                            needed[name] = other

        collect(text, own, 0)
        return needed


def is_avro(content: Any) -> bool:
    """Return whether JSON is an Avro schema, not a JSON Schema."""
    if isinstance(content, str):
        return True
    if isinstance(content, list):
        return True
    if not isinstance(content, dict):
        return False
    kind = content.get("type")
    if kind == "array":
        return isinstance(content.get("items"), str | list) or (
            isinstance(content.get("items"), dict) and is_avro(content["items"])
        )
    return isinstance(kind, str) and kind in _AVRO_KINDS - {"null", "array"} and "properties" not in content


def _named(stem: str) -> tuple[str | None, str | None]:
    """Return (id, subject) that a file's name says, one of them."""
    if re.fullmatch("[0-9]{1,19}", stem):
        return str(int(stem)), None
    try:
        return str(uuid.UUID(stem)), None
    except ValueError:
        return None, stem


def _avro_names(text: str) -> set[str]:
    """Return the full names of the types that an Avro schema defines."""
    names: set[str] = set()
    try:
        content = json_text.load(text)
    except UndecodableError:
        return names
    waiting = [(content, "")]
    while waiting:
        part, space = waiting.pop()
        if isinstance(part, list):
            waiting += [(inner, space) for inner in part]
        elif isinstance(part, dict):
            if isinstance(name := part.get("name"), str) and part.get("type") in ("record", "error", "enum", "fixed"):
                own = part.get("namespace", space)
                full = name if "." in name else f"{own}.{name}" if own else name
                names.add(full)
                space = full.rpartition(".")[0]
            waiting += [(inner, space) for inner in part.values() if isinstance(inner, dict | list)]
    return names
