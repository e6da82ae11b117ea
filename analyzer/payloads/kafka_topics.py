"""Keys and values of topics that Kafka's own tools write in forms of their own: MirrorMaker and Kafka Streams.

In: bytes of a topic whose name says what it is. Out: a value of JSON, or None where the bytes do not have that form.
Kafka Connect's topics need nothing of this: they hold JSON.

MirrorMaker (Checkpoint, Heartbeat, OffsetSync in `connect/mirror-client` and `connect/mirror`):
`SOURCE.checkpoints.internal`, `heartbeats`, `mm2-offset-syncs.TARGET.internal`. Fields have the names of Kafka's
schemas.

Streams (`WindowKeySchema`, `SessionKeySchema`, `CombinedKeySchema`, `SubscriptionWrapperSerde`,
`SubscriptionResponseWrapperSerde`): keys of windowed stores' `-changelog` and `-repartition` topics, and foreign-key
joins. No topic says whether its store is windowed: such a key must be no text, and end with times of this century.
Values of KTables in repartition topics (`ChangedSerializer`) and of suppressed tables are not told from others.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kwire.analyzer.payloads.text import text_of

MIRROR_MAKER, STREAMS = "mirrormaker", "streams"
Inner = Callable[[bytes], Any]
"""Decodes what Streams has wrapped; bytes of no known format as they are."""

_FIRST_MS, _LAST_MS = 946_684_800_000, 4_102_444_800_000
"""2000 and 2100: times of windows."""
_MOST_SEQUENCE: Final = 1 << 24
_MOST_TOPICS: Final = 10_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_INSTRUCTIONS: Final = (
    "DELETE_KEY_NO_PROPAGATE",
    "DELETE_KEY_AND_PROPAGATE",
    "PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE",
    "PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE",
)


class _FormError(Exception):
    """The bytes do not have the form."""


class _Fields:
    """Reads fields one after another. Raises _FormError where they are not there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str:
        try:
            return self.take(self.number(2)).decode()
        except UnicodeDecodeError:
            raise _FormError from None

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise _FormError
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self, without: int = 0) -> bytes:
        return self.take(len(self._data) - self._at - without)

    def version(self, most: int) -> int:
        version = self.number(2)
        if not 0 <= version <= most:
            raise _FormError
        return version

    def end(self) -> None:
        if self._at != len(self._data):
            raise _FormError


def _checkpoint_key(fields: _Fields, inner: Inner) -> Any:
    return {"group": fields.text(), "topic": fields.text(), "partition": fields.number(4)}


def _checkpoint(fields: _Fields, inner: Inner) -> Any:
    version, upstream, offset = fields.version(0), fields.number(8), fields.number(8)
    return {"version": version, "upstreamOffset": upstream, "offset": offset, "metadata": fields.text()}


def _heartbeat_key(fields: _Fields, inner: Inner) -> Any:
    return {"sourceClusterAlias": fields.text(), "targetClusterAlias": fields.text()}


def _heartbeat(fields: _Fields, inner: Inner) -> Any:
    return {"version": fields.version(0), "timestamp": _time(fields.number(8))}


def _offset_sync_key(fields: _Fields, inner: Inner) -> Any:
    return {"topic": fields.text(), "partition": fields.number(4)}


def _offset_sync(fields: _Fields, inner: Inner) -> Any:
    return {"upstreamOffset": fields.number(8), "offset": fields.number(8)}


def _store_key(fields: _Fields, inner: Inner) -> Any:
    """Return the key of a windowed store: of a session store, else of a window store."""
    data = fields.rest()
    try:
        return _session_key(data, inner)
    except _FormError:
        tail = _Fields(data[-12:])
        start, sequence = _time(tail.number(8)), tail.number(4)
        if not 0 <= sequence < _MOST_SEQUENCE:
            raise
        return {"key": _inner_key(data[:-12], inner), "start": start, "sequence": sequence}


def _windowed_key(fields: _Fields, inner: Inner) -> Any:
    """Return the key of a windowed table that is written to a topic."""
    data = fields.rest()
    try:
        return _session_key(data, inner)
    except _FormError:
        return {"key": _inner_key(data[:-8], inner), "start": _time(_Fields(data[-8:]).number(8))}


def _session_key(data: bytes, inner: Inner) -> Any:
    tail = _Fields(data[-16:])
    end, start = _time(tail.number(8)), _time(tail.number(8))
    if end < start:
        raise _FormError
    return {"key": _inner_key(data[:-16], inner), "start": start, "end": end}


def _inner_key(data: bytes, inner: Inner) -> Any:
    if not data:
        raise _FormError
    return inner(data)


def _combined_key(fields: _Fields, inner: Inner) -> Any:
    foreign = fields.take(fields.number(4))
    return {"foreignKey": inner(foreign), "primaryKey": inner(fields.rest())}


def _subscription(fields: _Fields, inner: Inner) -> Any:
    version, has_hash = _wrapper(fields, 1)
    instruction = fields.number(1)
    if not 0 <= instruction < len(_INSTRUCTIONS):
        raise _FormError
    read: dict[str, Any] = {"version": version, "instruction": _INSTRUCTIONS[instruction]}
    read["hash"] = fields.take(16).hex() if has_hash else None
    read["primaryKey"] = inner(fields.rest(4 if version else 0))
    return {**read, "primaryPartition": fields.number(4)} if version else read


def _subscription_response(fields: _Fields, inner: Inner) -> Any:
    version, has_hash = _wrapper(fields, 0)
    read = {"version": version, "hash": fields.take(16).hex() if has_hash else None}
    value = fields.rest()
    return {**read, "value": inner(value) if value else None}


def _wrapper(fields: _Fields, most: int) -> tuple[int, bool]:
    first = fields.number(1) & 0xFF
    if first & 0x7F > most:
        raise _FormError
    return first & 0x7F, first < 0x80


def _time(millis: int) -> datetime.datetime:
    if not _FIRST_MS <= millis < _LAST_MS:
        raise _FormError
    return _EPOCH + datetime.timedelta(milliseconds=millis)


Reader = Callable[[_Fields, Inner], Any]


class Form(NamedTuple):
    """The form of the keys and values of a topic; None: nothing of Kafka's own. `never_text`: text is what it is."""

    name: str
    key: Reader | None
    value: Reader | None
    never_text: bool = False

    def read(self, data: bytes, side: str, inner: Inner) -> Any:
        """Return what a key or value (`side`) holds; None: it does not have this form."""
        reader = self.key if side == "key" else self.value
        if reader is None or (self.never_text and text_of(data) is not None):
            return None
        fields = _Fields(data)
        try:
            value = reader(fields, inner)
            fields.end()
        except _FormError:
            return None
        return value


_FORMS: Final = (
    (re.compile(r"(?:.*[._-])?checkpoints[._-]internal"), Form(MIRROR_MAKER, _checkpoint_key, _checkpoint)),
    (re.compile(r"(?:.*[._-])?heartbeats"), Form(MIRROR_MAKER, _heartbeat_key, _heartbeat)),
    (re.compile(r"mm2-offset-syncs[._-].*[._-]internal"), Form(MIRROR_MAKER, _offset_sync_key, _offset_sync)),
    (
        re.compile(r".*-KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-\d{10}-changelog"),
        Form(STREAMS, _combined_key, _subscription),
    ),
    (re.compile(r".*-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-\d{10}-topic"), Form(STREAMS, None, _subscription)),
    (re.compile(r".*-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-\d{10}-topic"), Form(STREAMS, None, _subscription_response)),
    (re.compile(r".*-changelog"), Form(STREAMS, _store_key, None, True)),
    (re.compile(r".*-repartition"), Form(STREAMS, _windowed_key, None, True)),
)


class KafkaTopics:
    """The forms of topics by their names."""

    def __init__(self) -> None:
        self._forms: dict[str, Form | None] = {}

    def form(self, topic: str) -> Form | None:
        """Return the form of a topic; None: it has none of Kafka's own tools."""
        try:
            return self._forms[topic]
        except KeyError:
            if len(self._forms) >= _MOST_TOPICS:
                self._forms.clear()
            form = self._forms[topic] = next((form for name, form in _FORMS if name.fullmatch(topic)), None)
            return form
