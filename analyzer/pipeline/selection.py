"""Selection of exchanges: what a filter and the name of a connection let through, and its raw messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk.rows import Exchanges, Window
from kwire.analyzer.frame.arrow import plain, row_dicts
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.messages.raw_messages import HeldMessages, table_of
from kwire.analyzer.payloads.options import PayloadOptions
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions

if TYPE_CHECKING:
    from kwire.analyzer.messages.record_payloads import RecordPayloads


_ROWS_AT_ONCE: Final = 4096
"""Rows made Python objects at a time."""


class Selection:
    """Chooses the exchanges of each window. `messages`: those whose exchange has not ended; `look_up`: gives the name
    for a topic's id; `matched`, `seen`: how many exchanges were let through so far, of how many."""

    def __init__(self, options: AnalysisOptions, look_up: Callable[[str], str], messages: HeldMessages | None) -> None:
        self.messages = HeldMessages(keep_secrets=options.keep_secrets) if messages is None else messages
        self.matched = self.seen = 0
        self._options = options
        self._look_up = look_up
        self._payloads = record_payloads(options.filter, options.payloads)
        self._window: Window | None = None

    def take(self, window: Window) -> Window:
        """Return the window with the exchanges that are let through."""
        options = self._options
        if not options.everything:
            if options.keep is True:
                self.messages.take(window)
            rows = chosen(window, self.messages, options.filter, options.connection, self._look_up, self._payloads)
            window = window.only(rows)
            if options.keep is True:
                self.messages.forget(window.every, window.exchanges)
        self.seen += len(window.every)
        self.matched += len(window.exchanges)
        self._window = window
        return window

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """Return the raw messages of the window taken last, if they are to be kept."""
        window, self._window = self._window, None
        if self._options.keep_bytes and window is not None:
            if self._options.everything:
                yield "messages", table_of(window, self._options.keep_secrets)
            else:
                yield "messages", self.messages.table(window.exchanges)

    def message_order(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Return (completing packet, number of the connection) of the rows that `rows` will give, in their order;
        `window` is the one taken last."""
        if self._options.everything or self._window is None:
            packet, connection = window.message_places()
            order = np.lexsort((window.names.serials_of(connection), packet))
            return packet[order], connection[order]
        return self.messages.places(self._window.exchanges)


def record_payloads(filter: Any, options: PayloadOptions | None) -> RecordPayloads | None:
    """Return what decodes keys and values for a filter that tests their fields: without options, those that need no
    schema; None for other filters. Raises UsageError."""
    if filter is None or not filter.needs_payloads:
        return None
    decoder = (options or PayloadOptions()).decoder()
    from kwire.analyzer.messages.record_payloads import RecordPayloads  # imports what decodes

    return RecordPayloads(decoder)


def chosen(
    window: Window,
    messages: HeldMessages,
    filter: Any,
    connection: str | None,
    look_up: Callable[[str], str],
    payloads: RecordPayloads | None = None,
) -> Exchanges:
    """Return the exchanges of a window that a filter and the name of a connection let through, cheap tests first.
    `payloads`: of a filter that tests keys and values."""
    exchanges, names = window.exchanges, window.names
    if connection is not None:
        used = np.unique(exchanges.connection)
        named = np.array([names.connections[number] == connection for number in used.tolist()], bool)
        exchanges = exchanges.where(np.isin(exchanges.connection, used[named]))
    if filter is None or not len(exchanges):
        return exchanges
    yes, no = filter.rows_verdict(exchanges, look_up)
    exchanges, yes = exchanges.where(~no), yes[~no]
    if yes.all():
        return exchanges
    keep = yes.copy()
    undecided = np.flatnonzero(~yes)
    table = exchange_tables.exchanges(names, [exchanges.where(~yes)])
    requests, replies = exchanges.column("exchange"), exchanges.column("reply")
    for i, row in zip(undecided.tolist(), _rows(table), strict=True):
        if row["topics"]:
            row["topics"] = list(dict.fromkeys(map(look_up, row["topics"])))
        held = messages.peek(int(exchanges.connection[i]), int(requests[i]), int(replies[i]))
        exchange = Exchange(row, *held, None, look_up)
        request = exchange.request if filter.needs_request else None
        response = exchange.response if filter.needs_response else None
        keep[i] = filter.matches(row, request, response, () if payloads is None else payloads.of(exchange))
    return exchanges.where(keep)


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows of `exchanges` in plain types."""
    for begin in range(0, len(table), _ROWS_AT_ONCE):
        yield from row_dicts(plain(table.slice(begin, _ROWS_AT_ONCE), "exchanges"))
