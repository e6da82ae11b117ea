"""Raw messages of a capture point: kept until their exchanges are handed on, and as the table `messages`.

In: windows with the bytes of messages. Out: the two messages of an exchange; rows of `messages`, secrets overwritten.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer import tables
from analyzer.bulk.rows import Exchanges, Message, Names, Window
from analyzer.protocol import embedded, plans, tree
from analyzer.protocol.schema import REQUEST, RESPONSE, has_secrets

Key = tuple[int, int]
"""Number of a connection, and ordinal of a message on its side."""


class Messages:
    """The raw messages of a capture point whose exchanges have not been handed on yet; of some APIs, or of all."""

    def __init__(self, apis: Collection[int] | None = None, keep_secrets: bool = False) -> None:
        self._apis = apis
        self._keep_secrets = keep_secrets
        self._requests: dict[Key, Message] = {}
        self._responses: dict[Key, Message] = {}

    def take(self, window: Window) -> None:
        """Add one window's messages."""
        for message in window.messages(self._apis):
            into = self._requests if message.request else self._responses
            into[message.connection, message.ordinal] = message

    def pop(self, connection: int, exchange: int, reply: int) -> tuple[Message | None, Message | None]:
        """Request and response of an exchange; they are not kept any longer."""
        return self._requests.pop((connection, exchange), None), self._responses.pop((connection, reply), None)

    def peek(self, connection: int, exchange: int, reply: int) -> tuple[Message | None, Message | None]:
        """The same, and they are kept."""
        return self._requests.get((connection, exchange)), self._responses.get((connection, reply))

    def forget(self, every: Exchanges, kept: Exchanges) -> None:
        """Let go of the messages of exchanges that were not chosen."""
        stay = {(connection, exchange) for connection, exchange, _ in _keys(kept)}
        replies = {(connection, reply) for connection, _, reply in _keys(kept)}
        for connection, exchange, reply in _keys(every):
            if (connection, exchange) not in stay:
                self._requests.pop((connection, exchange), None)
            if (connection, reply) not in replies:
                self._responses.pop((connection, reply), None)

    def places(self, exchanges: Exchanges) -> tuple[np.ndarray, np.ndarray]:
        """(trigger, number of the connection) of the exchange of each row that `table` gives of these exchanges."""
        there = [sum(message is not None for message in self.peek(*key)) for key in _keys(exchanges)]
        return np.repeat(exchanges.column("trigger"), there), np.repeat(exchanges.connection, there)

    def table(self, exchanges: Exchanges, everything: bool) -> pa.Table:
        """The table `messages`, secrets overwritten: of these exchanges, in their order (which no size of windows
        changes), each request before its response; or (`everything`) all at hand, each where it became complete."""
        taken: list[Message] = []
        names = exchanges.names
        if everything:
            for kept in (self._requests, self._responses):
                taken += kept.values()
                kept.clear()
            taken.sort(key=lambda message: (message.trigger, names.born[message.connection]))
        else:
            for key in _keys(exchanges):
                taken += [message for message in self.pop(*key) if message is not None]
        return _table(taken, names, self._keep_secrets)


def _keys(exchanges: Exchanges) -> Collection[tuple[int, int, int]]:
    """Connection, and ordinals of request and response, of each exchange."""
    columns = (exchanges.connection, exchanges.column("exchange"), exchanges.column("reply"))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _table(messages: Sequence[Message], names: Names, keep_secrets: bool) -> pa.Table:
    """Column by column: there may be millions of small ones, and an object for each cell takes most of the time."""
    connections = names.connections
    data = [one.data for one in messages]
    if not keep_secrets:
        data = [masked(one.data, one.api_key, one.api_version, one.request) for one in messages]
    columns: dict[str, list[Any]] = {
        "capture": [names.capture] * len(messages),
        "connection": [connections[one.connection] for one in messages],
        "exchange": [one.ordinal if one.request else None for one in messages],
        "reply": [None if one.request else one.ordinal for one in messages],
        "direction": ["request" if one.request else "response" for one in messages],
        "first_time": [one.first_ns // 1000 for one in messages],
        "last_time": [None if one.last_ns is None else one.last_ns // 1000 for one in messages],
        "complete": [one.complete for one in messages],
        "bytes": data,
    }
    schema = tables.schema("messages")
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


_ALL, _LOOK, _RECORDS, _NOTHING = range(4)


@functools.lru_cache(maxsize=1 << 12)
def _secret(api_key: int, version: int, request: bool) -> int:
    """What of such a message is overwritten: all of it, what is found in it, what is found in its records, or
    nothing."""
    direction = REQUEST if request else RESPONSE
    if not plans.has_layout(api_key, version, direction):
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
        kept = 4 if request else 8  # the length; an answer's correlation id, which its request has too
        return data[:kept] + b"*" * (len(data) - kept)
    direction = REQUEST if request else RESPONSE
    spans = [] if secret == _RECORDS else tree.secret_spans(data[4:], api_key, version, direction, frame=True)
    if (api_key, direction) in embedded.RECORD_FIELDS:
        from analyzer.records import tree as record_tree

        spans += record_tree.message_secrets(data, api_key, version, direction)
    if not spans:
        return data
    changed = bytearray(data)
    for start, stop in spans:
        changed[4 + start : 4 + stop] = b"*" * (stop - start)
    return bytes(changed)
