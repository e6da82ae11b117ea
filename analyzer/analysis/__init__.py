"""What is learned from exchanges in order: connections, names, the summary, opened records.

Each part is a `Watcher`. In: the `Window`s of a capture point, in order. Out: rows of the small tables, and what is
known at the end. Rules: a watcher does not change a window, reads nothing but windows, and keeps plain arrays, strings
and numbers, so that what it knows can be stored and joined with what watchers of other shares, chunks or capture points
know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from analyzer.bulk.rows import Window


class Watcher(Protocol):
    """Learns from exchanges in order."""

    def take(self, window: Window) -> None:
        """One window of the capture point."""
        ...

    def tables(self) -> Iterator[tuple[str, Any]]:
        """(name of a table, Arrow rows): those known for good since the last call."""
        ...

    def join(self, other: Self) -> None:
        """Take in what another share's, chunk's or capture point's watcher knows; rows that it gave stay given."""
        ...
