"""Exchanges of the control APIs with decoded bodies: groups, transactions and logins.

In: windows with the raw messages of `APIS`. Out: their exchanges, in order (`ControlExchange`), for collectors
(`kwire.analyzer.analysis.Collector`). Rules: bodies are decoded on access; frequent APIs (Produce, Fetch, Heartbeat,
OffsetCommit) are not here, because a window's columns hold all that matters of them. A window with many control
exchanges is handed on in pieces, each a window of its own: a decoded body takes some kilobytes, and a window may have
fifty thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import TopicName
from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk.rows import NEVER, Window
from kwire.analyzer.frame import arrow, cells
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.messages.raw_messages import HeldMessages
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol.embedded import GroupProtocols

# fmt: off
APIS: Final = frozenset(
    (
        apis.FIND_COORDINATOR, apis.JOIN_GROUP, apis.SYNC_GROUP, apis.LEAVE_GROUP, apis.LIST_OFFSETS,
        apis.CONSUMER_GROUP_HEARTBEAT, apis.SHARE_GROUP_HEARTBEAT, apis.STREAMS_GROUP_HEARTBEAT,
        apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN,
        apis.WRITE_TXN_MARKERS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE,
    )
)
# fmt: on
"""APIs whose bodies are kept and decoded one by one."""

MOST_AT_ONCE: Final = 4096
"""Exchanges of these that are decoded at a time."""

__all__ = ["APIS", "NEVER", "Border", "ControlExchange", "ControlExchanges"]


class ControlExchange(NamedTuple):
    """An exchange of `APIS` with its bodies and topic-partitions.

    place   the packet that completed it and the age of its connection: they order all exchanges of a capture point
    row     its index in `Window.every`
    """

    exchange: Exchange
    place: tuple[int, int]
    row: int


class Border(NamedTuple):
    """The end of a rotation of a capture that another one continues.

    topic_name   see `Collector.tables`
    ordinal      the first packet of the first transaction request without a response so far: all requests before it
                 are answered
    """

    topic_name: TopicName
    ordinal: int


class ControlExchanges:
    """Pairs and decodes the exchanges of `APIS`, window by window."""

    def __init__(self) -> None:
        self._messages = HeldMessages(APIS)
        self._groups = GroupProtocols()

    def pieces(self, window: Window) -> Iterator[tuple[Window, list[ControlExchange]]]:
        """Divide a window into pieces, mostly one, each with the control exchanges that ended in it.

        A caller that keeps no exchange of a piece frees their bodies before the next piece is decoded.
        """
        is_control = arrow.among(window.every.column("api_key"), _KEYS)
        rows = np.flatnonzero(is_control)
        for piece in window.pieces(rows[MOST_AT_ONCE::MOST_AT_ONCE].tolist()):
            yield piece, self._take(piece)

    def _take(self, window: Window) -> list[ControlExchange]:
        self._messages.take(window)
        every = window.every
        is_control = arrow.among(every.column("api_key"), _KEYS)
        if not is_control.any():
            return []
        rows, chosen = np.flatnonzero(is_control).tolist(), every.where(is_control)
        # Rows stay columns: a dict of all cells takes some kilobytes.
        table = _rows(exchange_tables.exchanges(window.names, [chosen]))
        parts = _rows(exchange_tables.partitions(window.names, [chosen]))
        ends = np.searchsorted(chosen.owner, np.arange(len(chosen) + 1)).tolist()
        keys = (chosen.connection, *(chosen.column(name) for name in ("exchange", "reply", "completed_by")))
        exchanges = []
        for i, (connection, request, reply, trigger) in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
            exchange = Exchange(table[i], *self._messages.pop(connection, request, reply))
            exchange.partitions = parts[ends[i] : ends[i + 1]]
            exchange.learn_group(self._groups)
            exchanges.append(ControlExchange(exchange, (trigger, window.names.serials[connection]), rows[i]))
        return exchanges


def _rows(table: pa.Table) -> list[Any]:
    return [row for part in cells.parts(table) for row in part.rows()]


_KEYS: Final = np.array(sorted(APIS), np.int64)
