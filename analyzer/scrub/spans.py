"""Classify the bytes of many messages, most of them by one projection of all messages.

In: a window's messages. Out: `SpanRows`: of each what is not a `KEEP`. Rules: `messages` says what is what, and does it
itself wherever a message is not plain: cut off, not all of it decoded, with formats of their own inside, with secrets
that only another field tells, of an unknown layout. Of all others the decoder has read every byte: those that are in no
row of the tape are lengths, counts and markers.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.protocol import embedded, program, schema
from kwire.analyzer.protocol.api_keys import API_VERSIONS, ENVELOPE
from kwire.analyzer.protocol.project import FieldRows, Messages, decode_rows
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE, Field
from kwire.analyzer.scrub.message_spans import (
    CONTENT,
    IDENTIFIER,
    KEEP,
    NAMING_FIELDS,
    RECORDS,
    RELEASE,
    RELEASE_FIELD,
    SECRET,
    TEXT,
    TOPIC_FIELDS,
    FramedMessage,
    MessageReader,
)

(START, END, KIND, TOPIC, COLUMNS) = range(5)
"""A part: [START, END) of its message, what it is, and of RECORDS the number of their topic."""

_LENGTH_BYTES: Final = 4
_TAG: Final = 100  # in place of a kind: a tagged field, which may be one that nobody knows
_KINDS: Final = {
    "string": TEXT,
    "bytes": CONTENT,
    "records": RECORDS,
    "uuid": IDENTIFIER,
    "tag": _TAG,
}


class CapturedMessages(NamedTuple):
    """Messages as columns: where each lies in `heap` with its length before it, and what is known of it."""

    heap: np.ndarray
    at: np.ndarray
    size: np.ndarray
    connection: np.ndarray
    request: np.ndarray
    api_key: np.ndarray
    version: np.ndarray

    @classmethod
    def from_frames(cls, frames: Sequence[FramedMessage]) -> CapturedMessages:
        """From messages one by one."""
        sizes = np.array([len(frame.data) for frame in frames], np.int64)
        numbers = [(frame.connection, frame.request, frame.api_key, frame.version) for frame in frames]
        connection, request, api_key, version = np.array(numbers, np.int64).reshape(-1, 4).T
        heap = np.frombuffer(bytearray(b"".join(frame.data for frame in frames)), np.uint8)
        return cls(heap, np.cumsum(sizes) - sizes, sizes, connection, request == 1, api_key, version)

    def frame(self, i: int) -> FramedMessage:
        """One of them."""
        at = int(self.at[i])
        return FramedMessage(
            self.heap[at : at + int(self.size[i])].tobytes(),
            int(self.connection[i]),
            bool(self.request[i]),
            int(self.api_key[i]),
            int(self.version[i]),
        )


class SpanRows(NamedTuple):
    """`rows` int32[k, COLUMNS]; those of message i are rows[begins[i]:begins[i + 1]]."""

    rows: np.ndarray
    begins: np.ndarray


@dataclass(frozen=True, slots=True)
class _Tables:
    """Properties of fields, by field id: `kinds`; `saying`: they say a topic; `naming`: which struct's topic they name,
    with its id beside it, or -1. `odd` bool[2, APIs]: messages for which all that is not enough."""

    kinds: np.ndarray
    saying: np.ndarray
    naming: np.ndarray
    odd: np.ndarray


@functools.cache
def _tables() -> _Tables:
    loaded = program.load()
    kinds = np.full(loaded.n_fields, KEEP, np.int64)
    saying = np.zeros(loaded.n_fields, np.bool_)
    naming = np.full(loaded.n_fields, -1, np.int64)
    structs: dict[tuple[int, int, str], list[int]] = {}
    for info in loaded.fields:
        prefix, _, name = info.path.rpartition(".")
        kind = _KINDS.get(info.kind, KEEP)
        if kind in (TEXT, CONTENT, RECORDS) and info.secret:
            kind = SECRET
        kinds[info.id] = RELEASE if name == RELEASE_FIELD and kind == TEXT else kind
        saying[info.id] = name in TOPIC_FIELDS and kind in (TEXT, IDENTIFIER)
        if name in NAMING_FIELDS and kind in (TEXT, IDENTIFIER):
            structs.setdefault((info.api_key, info.direction, prefix), []).append(info.id)
    for number, fields in enumerate(structs.values()):
        if {int(kinds[field]) for field in fields} == {TEXT, IDENTIFIER}:
            naming[fields] = number
    odd = np.zeros((2, loaded.start.shape[1]), np.bool_)
    for (api_key, direction, _), secrecy in schema.SECRET_FIELDS.items():
        odd[direction, api_key] |= secrecy != "always"
    for api_key in range(odd.shape[1]):
        for direction in (REQUEST, RESPONSE):
            odd[direction, api_key] |= embedded.has_embedded(api_key, direction)
    odd[:, (*embedded.GROUP_APIS, ENVELOPE)] = True
    odd[RESPONSE, API_VERSIONS] = True  # its version may be another (KIP-511)
    return _Tables(kinds, saying, naming, odd)


@functools.cache
def _known_tags(api_key: int, version: int, direction: int) -> dict[int, frozenset[int]]:
    """The tags that a layout knows, by the field id of its sections' entries."""
    loaded = program.load()
    tags: dict[int, frozenset[int]] = {}

    def walk(fields: tuple[Field, ...], prefix: str) -> None:
        known = frozenset(item.tag for item in fields if item.tag is not None)
        tags[loaded.field_id(api_key, direction, prefix + "_tags[]")] = known
        for item in fields:
            if item.fields:
                walk(item.fields, item.path + ".")

    layout = schema.layout(api_key, version, direction)
    if layout is not None:
        walk(layout.fields, "")
    return tags


class SpanReader:
    """Reads what the bytes of messages are, which come in the order in which they were captured. The topics of RECORDS
    have numbers; `topic_names` says what they are called."""

    def __init__(self) -> None:
        self._reader = MessageReader()
        self._topics: list[str] = []
        self._numbers: dict[str, int] = {}

    def read(self, captured: CapturedMessages) -> SpanRows:
        """Find the spans of some messages."""
        messages, plain = _columns(captured)
        rows = decode_rows(messages, (_tables().kinds != KEEP).astype(np.uint8), plain)
        whole = rows.decoded & (rows.ended == messages.end)
        blocks = [self._rows(rows.where(whole[rows.message]), captured)]
        for i in np.flatnonzero(~whole).tolist():
            spans = [
                (i, part.start, part.end, part.kind, self._number(part.topic) if part.kind == RECORDS else 0)
                for part in self._reader.parts(captured.frame(i))
                if part.kind != KEEP
            ]
            blocks.append(np.array(spans, np.int64).reshape(-1, COLUMNS + 1))
        every = np.concatenate(blocks)
        every = every[np.argsort(every[:, 0], kind="stable")]
        return SpanRows(every[:, 1:].astype(np.int32), np.searchsorted(every[:, 0], np.arange(len(captured.at) + 1)))

    def topic_names(self) -> list[str]:
        """Return the names of the topics of RECORDS, by their number, as far as messages tell them."""
        return [self._reader.topic(topic) for topic in self._topics]

    def _number(self, topic: str) -> int:
        number = self._numbers.setdefault(topic, len(self._numbers))
        if number == len(self._topics):
            self._topics.append(topic)
        return number

    def _rows(self, rows: FieldRows, captured: CapturedMessages) -> np.ndarray:
        """The fields as spans: int64[k, 1 + COLUMNS], the number of the message before."""
        tables = _tables()
        message, length = rows.message, rows.length
        kind = tables.kinds[rows.field]
        for i in np.flatnonzero(kind == _TAG).tolist():
            owner = int(message[i])
            direction = REQUEST if captured.request[owner] else RESPONSE
            tags = _known_tags(int(captured.api_key[owner]), int(captured.version[owner]), direction)
            kind[i] = KEEP if int(rows.value[i]) in tags.get(int(rows.field[i]), ()) else CONTENT
        topic = np.zeros(len(message), np.int64)
        with_topic = np.flatnonzero(tables.saying[rows.field] & (length > 0))
        records = np.flatnonzero((kind == RECORDS) & (length > 0))
        before = np.searchsorted(with_topic, records) - 1
        for i, nearest in zip(records.tolist(), before.tolist(), strict=True):
            row = int(with_topic[nearest]) if nearest >= 0 and message[with_topic[nearest]] == message[i] else -1
            topic[i] = self._number(_text(rows, row, captured) if row >= 0 else "")
        self._learn_names(rows, captured)
        start = rows.position - captured.at[message]
        covered = (kind != KEEP) & (length > 0)
        return np.stack([column[covered] for column in (message, start, start + length, kind, topic)], axis=1)

    def _learn_names(self, rows: FieldRows, captured: CapturedMessages) -> None:
        """Learn the names of topic ids from fields beside each other, one of which may be null."""
        naming = _tables().naming[rows.field]
        waiting: dict[int, int] = {}
        message = -1
        for i in np.flatnonzero(naming >= 0).tolist():
            if rows.message[i] != message:
                message = int(rows.message[i])
                waiting.clear()
            other = waiting.pop(int(naming[i]), None)
            if other is None or rows.field[other] == rows.field[i]:
                waiting[int(naming[i])] = i
                continue
            if min(rows.length[i], rows.length[other]) >= 0:
                ids = _tables().kinds[rows.field[i]] == IDENTIFIER
                topic_id, name = (i, other) if ids else (other, i)
                self._reader.topics[_text(rows, topic_id, captured)] = _text(rows, name, captured)


def _columns(captured: CapturedMessages) -> tuple[Messages, np.ndarray]:
    """The messages as the decoder takes them, and which of them it may decode."""
    at, size, key = captured.at, captured.size, captured.api_key
    odd = _tables().odd
    direction = np.where(captured.request, REQUEST, RESPONSE)
    plain = (size >= 2 * _LENGTH_BYTES) & (key >= 0) & (key < odd.shape[1])
    which = np.flatnonzero(plain)
    head = np.zeros(len(which), np.int64)
    for i in range(_LENGTH_BYTES):
        head = head << 8 | captured.heap[at[which] + i]
    plain[which] = (head == size[which] - _LENGTH_BYTES) & ~odd[direction[which], key[which]]
    messages = Messages.from_columns(captured.heap, at + _LENGTH_BYTES, at + size, key, captured.version, direction)
    return messages, plain


def _text(rows: FieldRows, row: int, captured: CapturedMessages) -> str:
    """A string, or an id as Kafka prints it."""
    position = int(rows.position[row])
    raw = captured.heap[position : position + int(rows.length[row])].tobytes()
    if _tables().kinds[rows.field[row]] == IDENTIFIER:
        return base64.urlsafe_b64encode(raw)[:22].decode()
    return raw.decode("utf-8", "replace")
