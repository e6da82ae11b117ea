"""Raw messages of a capture point: kept until their exchanges are handed on, and as the table `messages`.

In: windows with the bytes of messages. Out: the two messages of an exchange; rows of `messages`, secrets overwritten.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk.message_columns import MessageColumns, WaitingMessages
from kwire.analyzer.bulk.rows import Exchanges, Message, Names, Window
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.numbers import frozen
from kwire.analyzer.protocol import embedded, layouts, tree
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE, has_secrets
from kwire.captures.kernels import NULL

DIRECTIONS: Final = ("request", "response")

Key = tuple[int, int]
"""Number of a connection, and ordinal of a message on its side."""


class HeldMessages:
    """The raw messages of a capture point whose exchanges have not been handed on yet; of some APIs, or of all.

    `directions`: as of `Window.messages`."""

    def __init__(
        self,
        apis: Collection[int] | None = None,
        keep_secrets: bool = False,
        directions: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._apis = apis
        self._directions = directions
        self._keep_secrets = keep_secrets
        self._requests: dict[Key, Message] = {}
        self._responses: dict[Key, Message] = {}

    def take(self, window: Window, newest: int | None = None) -> None:
        """Add one window's messages; `newest`: no more than so many of each shard."""
        requests, responses = self._requests, self._responses
        for message in window.messages(self._apis, self._directions, newest):
            (requests if message.request else responses)[message.connection, message.ordinal] = message

    def pop(self, connection: int, exchange: int, reply: int) -> tuple[Message | None, Message | None]:
        """Request and response of an exchange; they are not kept any longer."""
        return self._requests.pop((connection, exchange), None), self._responses.pop((connection, reply), None)

    def pop_columns(
        self, connection: np.ndarray, exchange: np.ndarray, reply: np.ndarray
    ) -> tuple[MessageColumns, MessageColumns]:
        """`pop` of many exchanges."""
        keys = zip(connection.tolist(), exchange.tolist(), reply.tolist(), strict=True)
        pairs = [self.pop(*key) for key in keys]
        return MessageColumns.of([request for request, _ in pairs]), MessageColumns.of([reply for _, reply in pairs])

    def as_columns(self) -> WaitingMessages:
        """Messages of the same APIs and directions, for callers that take none before its exchange is handed on."""
        return WaitingMessages(self._apis, self._directions)

    def peek(self, connection: int, exchange: int, reply: int) -> tuple[Message | None, Message | None]:
        """Like `pop`, but the messages stay."""
        return self._requests.get((connection, exchange)), self._responses.get((connection, reply))

    def forget(self, every: Exchanges, remaining: Exchanges) -> None:
        """Let go of the messages of exchanges that were not chosen."""
        stay = {(connection, exchange) for connection, exchange, _ in _keys(remaining)}
        replies = {(connection, reply) for connection, _, reply in _keys(remaining)}
        for connection, exchange, reply in _keys(every):
            if (connection, exchange) not in stay:
                self._requests.pop((connection, exchange), None)
            if (connection, reply) not in replies:
                self._responses.pop((connection, reply), None)

    def places(self, exchanges: Exchanges) -> tuple[np.ndarray, np.ndarray]:
        """(trigger, number of the connection) of the exchange of each row that `table` gives of these exchanges."""
        there = [sum(message is not None for message in self.peek(*key)) for key in _keys(exchanges)]
        return np.repeat(exchanges.column("completed_by"), there), np.repeat(exchanges.connection, there)

    def table(self, exchanges: Exchanges) -> pa.Table:
        """The table `messages` of these exchanges, secrets overwritten, in their order (which no size of windows
        changes), each request before its response."""
        messages: list[Message] = []
        for key in _keys(exchanges):
            messages += [message for message in self.pop(*key) if message is not None]
        return _table(messages, exchanges.names, self._keep_secrets)


def _keys(exchanges: Exchanges) -> Collection[tuple[int, int, int]]:
    """Connection, and ordinals of request and response, of each exchange."""
    columns = (exchanges.connection, exchanges.column("exchange"), exchanges.column("reply"))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _table(messages: Sequence[Message], names: Names, keep_secrets: bool) -> pa.Table:
    """A row each, in their order, secrets overwritten."""
    data = [message.data for message in messages]
    if not keep_secrets:
        data = [masked(message.data, message.api_key, message.api_version, message.request) for message in messages]
    numbers = [
        (
            message.connection,
            not message.request,
            message.ordinal,
            message.complete,
            message.first_ns,
            NULL if message.last_ns is None else message.last_ns,
        )
        for message in messages
    ]
    return _rows(names, np.array(numbers, np.int64).reshape(-1, 6).T, pa.array(data, pa.binary()))


def _rows(names: Names, numbers: np.ndarray, data: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The table `messages`. numbers int64[6, n]: connection, direction (1: response), ordinal, whether it is complete,
    times of the first and last byte in ns."""
    connection, direction, ordinal, complete, first, last = numbers
    columns = {
        "capture": arrow.dictionary(np.zeros(len(ordinal), np.int32), [names.capture]),
        "connection": arrow.strings(connection, names.connections),
        "exchange": arrow.integers(np.where(direction == 0, ordinal, NULL), pa.int64()),
        "reply": arrow.integers(np.where(direction == 0, NULL, ordinal), pa.int64()),
        "direction": arrow.dictionary(direction, DIRECTIONS),
        "first_time": arrow.times(arrow.micros(first)),
        "last_time": arrow.times(arrow.micros(last)),
        "complete": arrow.flags(complete != 0),
        "bytes": data,
    }
    wanted = [column.name for column in tables.MESSAGES]
    return pa.Table.from_arrays([columns[name] for name in wanted], names=wanted)


MOST_BYTES: Final = 1 << 30
"""Of a piece of the column `bytes`: Arrow counts them in 32 bits."""


def table_of(window: Window, keep_secrets: bool) -> pa.Table:
    """The table `messages` of all that a window has, secrets overwritten, each where it became complete. There may be
    millions of small ones, and none makes an object."""
    from kwire.analyzer.records.batch_reader import collect

    raw, names = window.raw(), window.names
    order = np.lexsort((raw.direction, names.serials_of(raw.connection), raw.completed_by))
    length = raw.length
    ends = np.cumsum(length[order])
    start = np.empty(len(order), np.int64)
    start[order] = ends - length[order]
    memory = bytearray(int(ends[-1]) if len(ends) else 0)
    heap, done = np.frombuffer(memory, np.uint8), 0
    for source, count in raw.heaps:
        part = slice(done, done + count)
        done = part.stop
        collect(frozen(source), raw.at[part], length[part], heap, start[part])
    if not keep_secrets:
        _mask(memory, ends, raw.api_key[order], raw.api_version[order], raw.direction[order])
    numbers = np.stack([raw.connection, raw.direction, raw.ordinal, raw.complete, raw.first_ns, raw.last_ns])[:, order]
    return _rows(names, numbers, pa.chunked_array(_binary(heap, ends), pa.binary()))


def _binary(heap: np.ndarray, ends: np.ndarray) -> Iterator[pa.Array]:
    """Bytes that end there, one behind the other, as columns of no more than `MOST_BYTES`, but for what is larger
    alone."""
    first = 0
    while first < len(ends):
        begin = int(ends[first - 1]) if first else 0
        until = max(int(np.searchsorted(ends, begin + MOST_BYTES, side="right")), first + 1)
        offsets = np.append(0, ends[first:until] - begin).astype(np.int32)
        content = heap[begin : int(ends[until - 1])]
        yield pa.Array.from_buffers(pa.binary(), until - first, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
        first = until


def _mask(data: bytearray, ends: np.ndarray, key: np.ndarray, version: np.ndarray, direction: np.ndarray) -> None:
    """Overwrite the secrets of messages that end there in `data`, one behind the other."""
    kinds = np.zeros(len(ends), np.int64)
    for number in (key, version, direction):
        kinds = kinds << 17 | np.where(number == NULL, _NO_NUMBER, number & 0xFFFF)
    some = arrow.distinct(kinds)
    which = np.searchsorted(some, kinds)
    example = np.empty(len(some), np.int64)
    example[which] = np.arange(len(ends))
    secrets = [_secret(int(key[i]), int(version[i]), direction[i] == 0) for i in example.tolist()]
    secret = np.array(secrets, np.int64)[which]
    wanted = (secret == _ALL) | (secret == _LOOK)
    if (secret == _RECORDS).any():
        wanted[[i for i in _with_markers(data, ends) if secret[i] == _RECORDS]] = True
    for i in np.flatnonzero(wanted).tolist():
        part = slice(int(ends[i - 1]) if i else 0, int(ends[i]))
        data[part] = masked(bytes(data[part]), int(key[i]), int(version[i]), direction[i] == 0)


def _with_markers(data: bytearray, ends: np.ndarray) -> Iterator[int]:
    """The messages, and some more, that have in them what records with secrets are known by."""
    from kwire.analyzer.records.record_trees import MARKERS

    for marker in MARKERS:
        at = data.find(marker)
        while at >= 0:
            i = int(np.searchsorted(ends, at, side="right"))
            yield i
            at = data.find(marker, int(ends[i]))


_ALL, _LOOK, _RECORDS, _NOTHING = range(4)
_NO_NUMBER: Final = 1 << 16


@functools.lru_cache(maxsize=1 << 12)
def _secret(api_key: int, version: int, request: bool) -> int:
    """Return which part of such a message is overwritten: all, its secret fields, those of its records, or nothing."""
    direction = REQUEST if request else RESPONSE
    if not layouts.has_layout(api_key, version, direction):
        return _ALL
    if has_secrets(api_key, direction):
        return _LOOK
    return _RECORDS if (api_key, direction) in embedded.RECORD_FIELDS else _NOTHING


def masked(data: bytes, api_key: int, version: int, request: bool) -> bytes:
    """A frame with its secrets overwritten with `*`. What no layout describes is one as a whole: an answer whose
    request was not seen may be a token, and a raw SASL token looks like a request of an unknown API."""
    secret = _secret(api_key, version, request)
    if secret == _NOTHING:
        return data
    if secret == _ALL:
        head = 4 if request else 8  # the length; an answer's correlation id, which its request has too
        return data[:head] + b"*" * (len(data) - head)
    direction = REQUEST if request else RESPONSE
    spans = [] if secret == _RECORDS else tree.secret_spans(data[4:], api_key, version, direction, frame=True)
    if (api_key, direction) in embedded.RECORD_FIELDS:
        from kwire.analyzer.records import record_trees as record_tree

        spans += record_tree.message_secrets(data, api_key, version, direction)
    if not spans:
        return data
    changed = bytearray(data)
    for start, stop in spans:
        changed[4 + start : 4 + stop] = b"*" * (stop - start)
    return bytes(changed)
