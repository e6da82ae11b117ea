"""Schemas from the capture itself: traffic of a registry in clear HTTP.

In: a capture point. Out: the schemas that requests and answers in it hold: `GET /schemas/ids/N`, `GET
/subjects/S/versions/V`, `POST /subjects/S/versions` and `POST /subjects/S`. The capture is read for them before its
records are; where it has no such request, which a search of its bytes shows, it is not.

Rule: bytes are taken in the order of TCP's sequence numbers; what a connection lacks ends what is known of it. All that
is kept has a bound.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from kwire.analyzer.payloads.limits import UndecodableError
from kwire.analyzer.payloads.schemas import CAPTURE, Schema, format_of
from kwire.captures.files import CapturePoint
from kwire.captures.files.sources import is_compressed
from kwire.captures.packets import Packets, Reader
from kwire.captures.windows import PacketColumns

_MARKERS: Final = (b"/schemas/ids/", b"/schemas/guids/", b"/subjects/")
"""What requests to a registry have in their first line."""
_REQUEST: Final = re.compile(rb"(GET|POST) (\S{1,4000}) HTTP/1\.[01]$")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_BLOCK_BYTES: Final = 4 << 20
_MOST_BYTES: Final = 64 << 20
_MOST_CONNECTIONS: Final = 4_096
_MOST_HEADERS: Final = 64 << 10
_SYN: Final = 0x02
_WRAP: Final = 1 << 32

Ends = tuple[int, int, int, int, int, int]
"""Address (two halves) and port of the sender, then of the receiver."""


@dataclass(slots=True)
class Entry:
    """A schema as HTTP had it. `references`: (name, subject, version) of what it uses."""

    schema_type: object
    text: str
    subject: str | None
    references: list[tuple[str, str, int]]


@dataclass(slots=True)
class CapturedSchemas:
    """Schemas of a capture's registry traffic, by id, and by subject and version."""

    by_id: dict[str, Entry] = field(default_factory=dict)
    versions: dict[tuple[str, int], Entry] = field(default_factory=dict)

    def references(self, entry: Entry, depth: int = 0) -> dict[str, str]:
        """Return the texts of what a schema uses, as far as the capture has them, what they need before them."""
        texts: dict[str, str] = {}
        for name, subject, version in entry.references if depth < 20 else ():
            other = self.versions.get((subject, version))
            if other is not None and name not in texts and len(texts) < 200:
                texts.update(self.references(other, depth + 1))
                texts[name] = other.text
        return texts


def may_have_any(point: CapturePoint, compressed: bool) -> bool:
    """Return whether a capture point may hold requests to a registry, by a search of its files' bytes. `compressed`:
    what to say of files that only reading opens. False for what cannot be read twice: stdin, pipes, URLs."""
    places = [os.path.join(point.folder, path) for path in point.paths]
    if "-" in point.paths or not all(map(os.path.isfile, places)):
        return False
    is_unknown = False
    for place in places:
        try:
            with open(place, "rb") as file:
                if is_compressed(file.read(4)):
                    is_unknown = True
                elif _has_marker(file):
                    return True
        except (OSError, ValueError):
            continue  # what is wrong with a file, reading it says
    return is_unknown and compressed


def _has_marker(file: BufferedReader) -> bool:
    """Return whether any marker stands in a file. It is read in blocks, not mapped: a mapped file that another process
    cuts off ends this one (SIGBUS)."""
    overlap = max(map(len, _MARKERS)) - 1
    block = bytearray(overlap + _BLOCK_BYTES)
    view = memoryview(block)
    file.seek(0)
    while size := file.readinto(view[overlap:]):
        if any(block.find(marker, 0, overlap + size) >= 0 for marker in _MARKERS):
            return True
        block[:overlap] = block[size : overlap + size]
    return False


def read_schemas(point: CapturePoint) -> CapturedSchemas:
    """Read a capture point for its registry traffic. Raises CaptureError."""
    streams = _Streams()
    with Reader(point) as reader:
        for packets in reader:
            streams.take(packets)
            packets.release()
    schemas = CapturedSchemas()
    for requests, answers in streams.conversations():
        _learn(schemas, requests, answers)
    return schemas


class _Streams:
    """The bytes of connections to registries, in both directions."""

    def __init__(self) -> None:
        self._segments: dict[Ends, list[tuple[int, int, bytes]]] = {}
        self._order: dict[Ends, None] = {}
        self._bytes = 0

    def take(self, packets: Packets) -> None:
        """Keep what a window holds of connections that are known, or become so in it."""
        columns = packets.columns
        if not len(columns.number):
            return
        content = packets.buffer.tobytes()
        for marker in _MARKERS:
            self._find(content, marker, columns)
        if not self._order:
            return
        ports = np.array(sorted({ends[2] for ends in self._order} | {ends[5] for ends in self._order}), np.int32)
        rows = np.isin(columns.src_port, ports) & np.isin(columns.dst_port, ports)
        rows &= (columns.payload_captured > 0) | (columns.flags & _SYN != 0)
        for row in np.flatnonzero(rows).tolist():
            ends = _ends(columns, row)
            if ends in self._segments and self._bytes < _MOST_BYTES:
                at, size = int(columns.payload_at[row]), int(columns.payload_captured[row])
                data = content[at : at + size]
                self._bytes += size + 64
                self._segments[ends].append((int(columns.seq[row]), int(columns.flags[row]), data))

    def _find(self, content: bytes, marker: bytes, columns: PacketColumns) -> None:
        """Find the connections whose client sends a request to a registry in this window."""
        order = np.argsort(columns.payload_at, kind="stable")
        starts = columns.payload_at[order]
        at = content.find(marker)
        while at >= 0 and len(self._order) < _MOST_CONNECTIONS:
            near = int(np.searchsorted(starts, at, "right")) - 1
            if near >= 0:
                row = int(order[near])
                start, size = int(columns.payload_at[row]), int(columns.payload_captured[row])
                line = content[start : min(start + size, start + 16)]
                if at < start + size and line.startswith((b"GET ", b"POST ")):
                    ends = _ends(columns, row)
                    if ends not in self._order:
                        self._order[ends] = None
                        self._segments.setdefault(ends, [])
                        self._segments.setdefault(ends[3:] + ends[:3], [])
            at = content.find(marker, at + 1)

    def conversations(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what each client sent and what it got."""
        for ends in self._order:
            sent = list(_streams(self._segments[ends]))
            received = list(_streams(self._segments[ends[3:] + ends[:3]]))
            yield from zip(sent, received, strict=False)


def _ends(columns: PacketColumns, row: int) -> Ends:
    sender = int(columns.src_hi[row]), int(columns.src_lo[row]), int(columns.src_port[row])
    receiver = int(columns.dst_hi[row]), int(columns.dst_lo[row]), int(columns.dst_port[row])
    return sender + receiver


def _streams(segments: list[tuple[int, int, bytes]]) -> Iterator[bytes]:
    """Yield the bytes of a direction, each time a port is used again anew; up to the first that are missing."""
    parts: list[list[tuple[int, bytes]]] = [[]]
    first = None
    for seq, flags, data in segments:
        if flags & _SYN:
            start = (seq + 1) % _WRAP
            if first is not None and start != first:
                parts.append([])
            first = start
        if first is None:
            first = seq
        if data:
            offset = (seq - first + (flags & _SYN > 0)) % _WRAP
            if offset > _WRAP // 2:  # before what was seen first
                offset -= _WRAP
            parts[-1].append((offset, data))
    for part in parts:
        part.sort(key=lambda segment: segment[0])
        whole = bytearray()
        begin = part[0][0] if part else 0
        for offset, data in part:
            known = begin + len(whole)
            if offset > known:
                break
            whole += data[known - offset :]
        yield bytes(whole)


@dataclass(slots=True)
class _Message:
    line: bytes
    body: bytes


def _messages(data: bytes, are_answers: bool) -> Iterator[_Message]:
    """Yield the HTTP messages of a direction, up to what is not whole."""
    at = 0
    while at < len(data):
        end = data.find(b"\r\n\r\n", at, at + _MOST_HEADERS)
        if end < 0:
            return
        line, *lines = data[at:end].split(b"\r\n")
        headers = {}
        for header in lines:
            name, _, value = header.partition(b":")
            headers[name.strip().lower()] = value.strip()
        at = end + 4
        status = _STATUS.match(line)
        if are_answers and status is None:
            return
        if status is not None and (status[1].startswith(b"1") or status[1] in (b"204", b"304")):
            if not status[1].startswith(b"1"):
                yield _Message(line, b"")
            continue
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            read = _chunked(data, at)
        else:
            length = headers.get(b"content-length")
            if length is None:
                read = (data[at:], len(data)) if are_answers else (b"", at)
            elif length.isdigit() and len(length) < 12 and at + int(length) <= len(data):
                read = data[at : at + int(length)], at + int(length)
            else:
                read = None
        if read is None:
            return
        body, at = read
        yield _Message(line, _opened(body, headers.get(b"content-encoding", b"").lower()))


def _chunked(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return a body in chunks, and where it ends; None: it is not whole."""
    body = bytearray()
    while True:
        end = data.find(b"\r\n", at, at + 1024)
        size = data[at:end].split(b";")[0].strip() if end >= 0 else b""
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size):
            return None
        length = int(size, 16)
        at = end + 2
        if not length:
            end = data.find(b"\r\n", at)
            while end > at:  # trailers
                at = end + 2
                end = data.find(b"\r\n", at)
            return (bytes(body), end + 2) if end == at else None
        if at + length + 2 > len(data):
            return None
        body += data[at : at + length]
        at += length + 2


def _opened(body: bytes, encoding: bytes) -> bytes:
    """Return a body decompressed; of other encodings, or a larger one, nothing."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        return b""
    try:
        return zlib.decompressobj(47).decompress(body, 4 << 20)
    except zlib.error:
        return b""


def _learn(schemas: CapturedSchemas, requests: bytes, answers: bytes) -> None:
    """Learn from one connection: answers come in the order of requests."""
    for request, answer in zip(_messages(requests, False), _messages(answers, True), strict=False):
        method = _REQUEST.match(request.line)
        status = _STATUS.match(answer.line)
        if method is None or status is None or status[1] != b"200":
            continue
        path = method[2].decode("latin-1").partition("?")[0].rstrip("/")
        _learn_answer(schemas, method[1], path, _json(request.body), _json(answer.body))


def _json(body: bytes) -> dict[str, Any]:
    from kwire.analyzer.payloads import json_text  # orjson, which only captures with such traffic need

    try:
        value = json_text.load(body)
    except UndecodableError:
        return {}
    return value if isinstance(value, dict) else {}


def _learn_answer(
    schemas: CapturedSchemas, method: bytes, path: str, request: dict[str, Any], answer: dict[str, Any]
) -> None:
    """Learn from one request and its answer."""
    named = re.search(r"/schemas/(?:ids|guids)/([0-9A-Fa-f-]{1,40})$", path)
    subject = re.search(r"/subjects/([^/]+)(?:/versions(?:/[^/]+)?)?$", path)
    if method == b"GET" and named is not None and isinstance(answer.get("schema"), str):
        entry = _entry(answer, answer, None)
        schemas.by_id.setdefault(named[1].lower(), entry)
    elif subject is not None:
        text = answer if isinstance(answer.get("schema"), str) else request
        if not isinstance(text.get("schema"), str):
            return
        entry = _entry(text, answer if text is answer else request, unquote(subject[1]))
        if isinstance(answer.get("id"), int):
            known = schemas.by_id.get(str(answer["id"]))
            if known is None or known.subject is None:
                schemas.by_id[str(answer["id"])] = entry
        if isinstance(answer.get("version"), int):
            schemas.versions[unquote(subject[1]), answer["version"]] = entry
    guid = answer.get("guid")
    if isinstance(guid, str) and (named is not None or subject is not None) and isinstance(answer.get("schema"), str):
        schemas.by_id.setdefault(guid.lower(), _entry(answer, answer, unquote(subject[1]) if subject else None))


def _entry(text: dict[str, Any], about: dict[str, Any], subject: str | None) -> Entry:
    references = []
    for reference in about.get("references") or []:
        if isinstance(reference, dict):
            name, other, version = (reference.get(key) for key in ("name", "subject", "version"))
            if isinstance(name, str) and isinstance(other, str) and isinstance(version, int):
                references.append((name, other, version))
    return Entry(about.get("schemaType"), text["schema"], subject, references)


class CapturedSource:
    """The schemas of a capture, as a source."""

    def __init__(self, schemas: CapturedSchemas) -> None:
        self._schemas = schemas

    def by_id(self, schema_id: str) -> Schema | None:
        """Return the schema with an id. Raises UndecodableError for a type that is not known."""
        entry = self._schemas.by_id.get(schema_id)
        if entry is None:
            return None
        references = self._schemas.references(entry)
        return Schema(schema_id, format_of(entry.schema_type), entry.subject, CAPTURE, entry.text, references)

    def by_subject(self, subject: str) -> Schema | None:
        """Return None: of a subject's versions the capture may lack some."""
        return None

    def every(self) -> Iterator[Schema]:
        """Yield all schemas whose type is known."""
        for schema_id in self._schemas.by_id:
            with contextlib.suppress(UndecodableError):
                schema = self.by_id(schema_id)
                if schema is not None:
                    yield schema
