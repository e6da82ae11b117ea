"""What clients and brokers tell each other of groups, transactions and logins: the few messages whose bodies matter.

In: windows with the raw messages of `APIS`. Out: their exchanges with decoded bodies, in order (`Heard`), for whoever
learns from them (`Listener`). Rules: bodies are decoded when somebody asks; what is frequent (Produce, Fetch,
Heartbeat, OffsetCommit) is not here: a window's columns say of it what matters. A window in which much is heard is
handed on in pieces, each a window of its own: a decoded body takes some kilobytes, and a window may have fifty
thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from analyzer.bulk import exchange_tables
from analyzer.bulk.rows import NEVER, Window
from analyzer.exchanges.exchange import Exchange
from analyzer.exchanges.raw_messages import Messages
from analyzer.frame import arrow, cells
from analyzer.protocol import api_keys as apis
from analyzer.protocol.embedded import Groups

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

__all__ = ["APIS", "NEVER", "Border", "Heard", "Hearing", "Listener"]


class Heard(NamedTuple):
    """An exchange of `APIS` with its bodies and topic-partitions. `place`: the packet that completed it and the age of
    its connection, which order all exchanges of a capture point; `row`: which of `Window.every` it is."""

    exchange: Exchange
    place: tuple[int, int]
    row: int


class Border(NamedTuple):
    """Where a stretch of a capture ends and another goes on with it. `topic_name`: see `Listener.tables`; `ordinal`:
    the first packet of the first request about transactions that waits for its answer, so what was asked before it is
    all there."""

    topic_name: Callable[[str], str]
    ordinal: int


class Listener(Protocol):
    """Learns what traffic means: a `Watcher` that also hears the bodies of `APIS`.

    Its state is plain (arrays, strings, numbers, dataclasses of these), for it is pickled where a capture point's
    connections are shared out, and each share's is joined to the first's. So names are kept as text, not as numbers of
    `Names`, and events carry their `place`: what depends on the order of events over connections is worked out in
    `tables`, when all are there."""

    def take(self, window: Window, heard: Sequence[Heard]) -> None:
        """One window of the capture point, or a piece of one (`Hearing.pieces`): `window.every`, filtered by nothing,
        and what was heard in it."""
        ...

    def join(self, other: Self) -> None:
        """Take in what another share's learned."""
        ...

    @property
    def held_bytes(self) -> int:
        """About how much memory is held by what happened so far, and goes where it is told (`onward`)."""
        ...

    def onward(self, border: Border) -> Self:
        """Another stretch goes on where this one ends: who learns from that. It knows what began here and has not
        ended, and tells it when it ends; this one tells the rest, and takes no more exchanges."""
        ...

    def tables(self, capture: str, topic_name: Callable[[str], str]) -> Iterator[tuple[str, pa.Table]]:
        """All has been taken: (name of a table, its rows). `topic_name` gives the name for a topic's id, where some
        message of the capture point says it, else what was given."""
        ...


class Hearing:
    """The exchanges of `APIS`, window by window."""

    def __init__(self) -> None:
        self._messages = Messages(APIS)
        self._groups = Groups()

    def pieces(self, window: Window) -> Iterator[tuple[Window, list[Heard]]]:
        """A window in pieces, mostly one, each with the exchanges that ended in it. Whoever keeps none of those that it
        was handed lets go of their bodies before the next are read."""
        wanted = arrow.among(window.every.column("api_key"), _KEYS)
        rows = np.flatnonzero(wanted)
        for piece in window.pieces(rows[MOST_AT_ONCE::MOST_AT_ONCE].tolist()):
            yield piece, self._take(piece)

    def _take(self, window: Window) -> list[Heard]:
        self._messages.take(window)
        every = window.every
        wanted = arrow.among(every.column("api_key"), _KEYS)
        if not wanted.any():
            return []
        rows, chosen = np.flatnonzero(wanted).tolist(), every.where(wanted)
        # Rows stay columns: a dict of all cells takes some kilobytes.
        table = _rows(exchange_tables.exchanges(window.names, [chosen]))
        parts = _rows(exchange_tables.partitions(window.names, [chosen]))
        ends = np.searchsorted(chosen.owner, np.arange(len(chosen) + 1)).tolist()
        keys = (chosen.connection, *(chosen.column(name) for name in ("exchange", "reply", "completed_by")))
        heard = []
        for i, (connection, asked, answered, trigger) in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
            exchange = Exchange(table[i], *self._messages.pop(connection, asked, answered))
            exchange.partitions = parts[ends[i] : ends[i + 1]]
            exchange.learn_group(self._groups)
            heard.append(Heard(exchange, (trigger, window.names.serials[connection]), rows[i]))
        return heard


def _rows(table: pa.Table) -> list[Any]:
    return [row for part in cells.parts(table) for row in part.rows()]


_KEYS: Final = np.array(sorted(APIS), np.int64)
