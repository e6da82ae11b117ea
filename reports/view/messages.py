"""Messages of a view's exchanges, a few of them at hand.

In: the identity of an exchange. Out: a `Found`, its two messages. Rule: what they are read and decoded with (`bodies`)
is most of what kwire is made of, and loaded when the first one is asked for: a list of exchanges does not wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from reports.view.source_captures import Captures
from reports.view.tables import Key, Tables, Wrong

if TYPE_CHECKING:
    from reports.view.bodies import Bodies, Found

KEPT: Final = 8
"""Exchanges whose messages stay at hand: people go back and forth between a few."""

KEPT_BYTES: Final = 200_000_000
"""Of their messages, unless it is one alone: what is made of one takes as much again."""


class Messages:
    """Messages of a view's exchanges, found when they are asked for."""

    def __init__(self, tables: Tables, captures: Captures | None) -> None:
        self._tables = tables
        self._captures = captures
        self._stored = any(entry["table"] == "messages" for entry in tables.dataset.manifest["files"])
        self._kept: OrderedDict[Key, Found] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def captures(self) -> Captures | None:
        """What the messages are read from, if it is there."""
        return self._captures

    @property
    def at_hand(self) -> bool:
        """Is there anything to find messages in?"""
        return self._stored or self._captures is not None

    def of(self, key: Key) -> Found:
        """The messages of an exchange. Raises Wrong where they are not to be had."""
        with self._lock:  # both sides are asked for at once: the second waits for what the first finds
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
            row = self._tables.row_of(key)
            if row is None:
                raise Wrong("there is no such exchange", "it may be of another capture")
            found = self._kept[key] = self.bodies().look(key, self._tables.row(row))
            while len(self._kept) > KEPT or (len(self._kept) > 1 and self._bytes() > KEPT_BYTES):
                self._kept.popitem(last=False)
            return found

    def matching(self, text: str, rows: np.ndarray) -> Iterator[Key]:
        """The exchanges that a filter chooses by what their bodies say; `rows`: those that it may choose. Raises
        Wrong."""
        yield from self.bodies().matching(text, rows)

    def ready(self) -> None:
        """Load what they are read and decoded with, before somebody waits for it."""
        self.bodies()
        from reports.view import lazy_tree

        lazy_tree.ready()

    def bodies(self) -> Bodies:
        """What reads them."""
        from reports.view.bodies import Bodies  # a tenth of a second of a processor, and more

        return Bodies(self._tables, self._captures, self._stored)

    def _bytes(self) -> int:
        return sum(found.size for found in self._kept.values())
