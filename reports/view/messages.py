"""A cache of the messages of a view's exchanges.

In: the identity of an exchange. Out: its `ExchangeMessages`. Rule: the modules that read and decode messages (`bodies`)
are most of kwire, and are loaded with the first message, so that the list of exchanges does not wait for them.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kwire.reports.view.source_captures import SourceCaptures
from kwire.reports.view.tables import Key, Tables

if TYPE_CHECKING:
    from kwire.analyzer.payloads.options import PayloadOptions
    from kwire.analyzer.protocol.embedded import PayloadReader
    from kwire.reports.view.bodies import ExchangeMessages, MessageReader

CACHED_EXCHANGES: Final = 8
"""Exchanges whose messages are cached: users go back and forth between a few."""

CACHE_BYTES: Final = 200_000_000
"""Bytes of the cached messages, unless there is only one; their trees take as much again."""


class Messages:
    """Messages of a view's exchanges, read on demand."""

    def __init__(
        self,
        tables: Tables,
        captures: SourceCaptures | None,
        payloads: Callable[[], PayloadOptions | None] = lambda: None,
    ) -> None:
        """`payloads`: says how keys and values are decoded, when the first message is looked at."""
        self._tables = tables
        self._captures = captures
        self._payloads = functools.cache(payloads)
        self._trees = functools.cache(self._made_trees)
        self._stored = any(entry["table"] == "messages" for entry in tables.dataset.manifest["files"])
        self._cache: OrderedDict[Key, ExchangeMessages] = OrderedDict()
        self._ahead: dict[Key, ExchangeMessages] = {}
        self._lock = threading.Lock()

    @property
    def captures(self) -> SourceCaptures | None:
        """The captures that messages are read from; None if they are not there."""
        return self._captures

    @property
    def available(self) -> bool:
        """True if there is a table or a capture to read messages from."""
        return self._stored or self._captures is not None

    def of(self, key: Key) -> ExchangeMessages:
        """Get the messages of an exchange. Raises BadRequestError if that is impossible."""
        with self._lock:  # the page requests both sides at once: the second waits for the first
            if key in self._ahead:
                return self._ahead[key]
            messages = self._cache.get(key)
            if messages is not None:
                self._cache.move_to_end(key)
                return messages
            row = self._tables.require_row(key)
            messages = self._cache[key] = self.reader().look(key, self._tables.row(row))
            messages.exchange.payloads = self._trees()
            while len(self._cache) > CACHED_EXCHANGES or (len(self._cache) > 1 and self._bytes() > CACHE_BYTES):
                self._cache.popitem(last=False)
            return messages

    def read_ahead(self, keys: Sequence[Key]) -> None:
        """Read the messages of exchanges that are going to be asked for, as far as `CACHE_BYTES`: of a compressed
        capture in one pass, and not in one for each. They take the place of those read ahead before."""
        with self._lock:
            known = {**self._cache, **self._ahead}
            self._ahead = {key: known[key] for key in keys if key in known}
            size = sum(messages.size for messages in self._ahead.values())
            missing = [key for key in keys if key not in known]
            for key, messages in self.reader().look_at_all(missing) if missing else ():
                messages.exchange.payloads = self._trees()
                self._ahead[key] = messages
                size += messages.size
                if size > CACHE_BYTES:
                    break

    def matching(self, text: str, rows: np.ndarray) -> Iterator[Key]:
        """Find the exchanges among `rows` whose bodies match a filter. Raises BadRequestError."""
        yield from self.reader().matching(text, rows)

    def warm_up(self) -> None:
        """Load the modules that read and decode messages, before they are needed."""
        self.reader()
        from kwire.reports.view import lazy_tree

        lazy_tree.warm_up()

    def reader(self) -> MessageReader:
        """Make a reader of messages."""
        from kwire.reports.view.bodies import MessageReader  # takes more than 0.1 s to import

        return MessageReader(self._tables, self._captures, self._stored, self._payloads)

    def _made_trees(self) -> PayloadReader | None:
        options = self._payloads()
        return None if options is None else options.trees()

    def _bytes(self) -> int:
        return sum(messages.size for messages in self._cache.values())
