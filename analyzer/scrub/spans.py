"""What the bytes of many messages are, as rows of numbers: most of them in one pass of the kernel that decodes.

In: a window's messages. Out: `Parts`: of each what is not a `KEEP`. Rules: `messages` says what is what, and does it
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

from analyzer.protocol import embedded, program, schema
from analyzer.protocol.api_keys import API_VERSIONS, ENVELOPE
from analyzer.protocol.decoding import OK
from analyzer.protocol.many import AT as PLACE_AT
from analyzer.protocol.many import BODY, ENDED, HEADER, PLACE_COLUMNS, STATUS, decode_all
from analyzer.protocol.many import END as PLACE_END
from analyzer.protocol.schema import REQUEST, RESPONSE, Field
from analyzer.scrub.message_spans import (
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
    Frame,
    Messages,
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


class Batch(NamedTuple):
    """Messages as columns: where each lies in `heap` with its length before it, and what is known of it."""

    heap: np.ndarray
    at: np.ndarray
    size: np.ndarray
    connection: np.ndarray
    request: np.ndarray
    api_key: np.ndarray
    version: np.ndarray

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> Batch:
        """From messages one by one."""
        sizes = np.array([len(one.data) for one in frames], np.int64)
        known = np.array([(one.connection, one.request, one.api_key, one.version) for one in frames], np.int64)
        connection, request, api_key, version = known.reshape(-1, 4).T
        heap = np.frombuffer(bytearray(b"".join(one.data for one in frames)), np.uint8)
        return cls(heap, np.cumsum(sizes) - sizes, sizes, connection, request == 1, api_key, version)

    def frame(self, i: int) -> Frame:
        """One of them."""
        at = int(self.at[i])
        return Frame(
            self.heap[at : at + int(self.size[i])].tobytes(),
            int(self.connection[i]),
            bool(self.request[i]),
            int(self.api_key[i]),
            int(self.version[i]),
        )


class Parts(NamedTuple):
    """`rows` int32[k, COLUMNS]; those of message i are rows[begins[i]:begins[i + 1]]."""

    rows: np.ndarray
    begins: np.ndarray


@dataclass(frozen=True, slots=True)
class _Tables:
    """What fields are, by field id: `kinds`; `saying`: they say a topic; `naming`: which struct's topic they name, with
    its id beside it, or -1. `odd` bool[2, APIs]: messages for which all that is not enough."""

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
    found: dict[int, frozenset[int]] = {}

    def walk(fields: tuple[Field, ...], prefix: str) -> None:
        known = frozenset(item.tag for item in fields if item.tag is not None)
        found[loaded.field_id(api_key, direction, prefix + "_tags[]")] = known
        for item in fields:
            if item.fields:
                walk(item.fields, item.path + ".")

    layout = schema.layout(api_key, version, direction)
    if layout is not None:
        walk(layout.fields, "")
    return found


class Spans:
    """Says what the bytes of messages are, which come in the order in which they were captured. `topics`: what RECORDS
    were said to be of, by their number: names and ids; `called` says what those are called."""

    def __init__(self) -> None:
        self._messages = Messages()
        self._topics: list[str] = []
        self._numbers: dict[str, int] = {}

    def of(self, batch: Batch) -> Parts:
        """Of some messages."""
        which, places = self._plain(batch)
        found: list[np.ndarray] = []
        done = np.zeros(len(batch.at), np.bool_)
        for tape, endings in decode_all(batch.heap, places, (_tables().kinds != KEEP).astype(np.uint8), program.load()):
            whole = (endings[:, STATUS] == OK) & (endings[:, ENDED] == places[:, PLACE_END])
            done[which[whole]] = True
            rows = tape[whole[tape[:, 0]]]
            rows[:, 0] = which[rows[:, 0]]
            found.append(self._rows(rows, batch))
        for i in np.flatnonzero(~done).tolist():
            parts = [
                (i, part.start, part.end, part.kind, self._number(part.topic) if part.kind == RECORDS else 0)
                for part in self._messages.parts(batch.frame(i))
                if part.kind != KEEP
            ]
            found.append(np.array(parts, np.int64).reshape(-1, COLUMNS + 1))
        every = np.concatenate(found) if found else np.zeros((0, COLUMNS + 1), np.int64)
        every = every[np.argsort(every[:, 0], kind="stable")]
        return Parts(every[:, 1:].astype(np.int32), np.searchsorted(every[:, 0], np.arange(len(batch.at) + 1)))

    def called(self) -> list[str]:
        """What the topics of RECORDS are called, by their number, as far as messages have said so."""
        return [self._messages.topic(said) for said in self._topics]

    def _number(self, topic: str) -> int:
        number = self._numbers.setdefault(topic, len(self._numbers))
        if number == len(self._topics):
            self._topics.append(topic)
        return number

    def _plain(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Which messages may be decoded together, and where they are, as `many` wants it."""
        loaded, odd = program.load(), _tables().odd
        _, apis, versions = loaded.start.shape
        key, version = batch.api_key, batch.version
        which = np.flatnonzero(
            (batch.size >= 2 * _LENGTH_BYTES) & (key >= 0) & (key < apis) & (version >= 0) & (version < versions)
        )
        at, size, key, version = batch.at[which], batch.size[which], key[which], version[which]
        direction = np.where(batch.request[which], REQUEST, RESPONSE)
        head = np.zeros(len(which), np.int64)
        for i in range(_LENGTH_BYTES):
            head = head << 8 | batch.heap[at + i]
        header = loaded.header_version[direction, key, version].astype(np.int64)
        body = loaded.start[direction, key, version].astype(np.int64)
        fit = (head == size - _LENGTH_BYTES) & (header >= 0) & (body >= 0) & ~odd[direction, key]
        places = np.zeros((int(fit.sum()), PLACE_COLUMNS), np.int64)
        places[:, PLACE_AT], places[:, PLACE_END] = at[fit] + _LENGTH_BYTES, at[fit] + size[fit]
        places[:, HEADER], places[:, BODY] = loaded.header_start[direction[fit], header[fit]], body[fit]
        return which[fit], places

    def _rows(self, tape: np.ndarray, batch: Batch) -> np.ndarray:
        """The tape's rows as parts: int64[k, 1 + COLUMNS], the number of the message before."""
        tables = _tables()
        message, field, value, position, length = tape.T
        kind = tables.kinds[field]
        for i in np.flatnonzero(kind == _TAG).tolist():
            one = int(message[i])
            direction = REQUEST if batch.request[one] else RESPONSE
            known = _known_tags(int(batch.api_key[one]), int(batch.version[one]), direction)
            kind[i] = KEEP if int(value[i]) in known.get(int(field[i]), ()) else CONTENT
        topic = np.zeros(len(tape), np.int64)
        saying = np.flatnonzero(tables.saying[field] & (length > 0))
        for i in np.flatnonzero((kind == RECORDS) & (length > 0)).tolist():
            before = int(np.searchsorted(saying, i)) - 1
            last = int(saying[before]) if before >= 0 and message[saying[before]] == message[i] else -1
            topic[i] = self._number(self._said(tape, last, batch) if last >= 0 else "")
        self._names(tape, batch)
        start = position - batch.at[message]
        here = (kind != KEEP) & (length > 0)
        return np.stack([column[here] for column in (message, start, start + length, kind, topic)], axis=1)

    def _said(self, tape: np.ndarray, row: int, batch: Batch) -> str:
        """A string, or an id as Kafka prints it."""
        _, field, _, position, length = tape[row].tolist()
        raw = batch.heap[position : position + length].tobytes()
        if _tables().kinds[field] == IDENTIFIER:
            return base64.urlsafe_b64encode(raw)[:22].decode()
        return raw.decode("utf-8", "replace")

    def _names(self, tape: np.ndarray, batch: Batch) -> None:
        """Take in which ids are called what: fields beside each other, one of which may be null."""
        naming = _tables().naming[tape[:, 1]]
        waiting: dict[int, int] = {}
        message = -1
        for i in np.flatnonzero(naming >= 0).tolist():
            if tape[i, 0] != message:
                message = int(tape[i, 0])
                waiting.clear()
            other = waiting.pop(int(naming[i]), None)
            if other is None or tape[other, 1] == tape[i, 1]:
                waiting[int(naming[i])] = i
                continue
            if min(tape[i, 4], tape[other, 4]) >= 0:
                ids = _tables().kinds[tape[i, 1]] == IDENTIFIER
                named, name = (i, other) if ids else (other, i)
                self._messages.topics[self._said(tape, named, batch)] = self._said(tape, name, batch)
