"""Interpretation of decoded traffic: connections, names, groups, transactions, offsets, latencies, the summary.

Each part is a `Collector`. In: the `Window`s of a capture point, in order, with the decoded exchanges of the control
APIs. Out: rows of small tables. Rules: a collector does not change a window, reads nothing but windows, and keeps plain
arrays, strings and numbers, because its state is stored in checkpoints and joined with that of other shards, chunks or
capture points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from kwire.analyzer.analysis.control_exchanges import Border, ControlExchange
    from kwire.analyzer.bulk.rows import Window

TopicName = Callable[[str], str]
"""The name for a topic id, where a message of the capture point says it; else the argument."""


class Collector(Protocol):
    """Learns from exchanges in order."""

    def take(self, window: Window, control: Sequence[ControlExchange] = (), /) -> None:
        """Take one window of the capture point, or a piece of one (`ControlExchanges.pieces`).

        `control`: the decoded exchanges of the control APIs that ended in it, for collectors that read
        `window.every`, filtered by nothing; the others ignore it.
        """
        ...

    def tables(self, capture: str = "", topic_name: TopicName = str, /) -> Iterator[tuple[str, Any]]:
        """Yield (name of a table, Arrow rows) of all that is final and was not yielded before.

        `capture` and `topic_name` name the capture point and its topics, for collectors whose rows are made at the end.
        """
        ...

    def join(self, other: Self, /) -> None:
        """Add the state of another shard's, chunk's or capture point's collector; rows it yielded stay yielded."""
        ...


class ResumableCollector(Collector, Protocol):
    """A collector that keeps events until the capture ends, because their order over connections decides the rows.

    State is pickled where a capture point's connections are divided into shards. So names are kept as text, not as
    numbers of `Names`, and each event carries its place in the capture; `tables` works out what depends on the order.
    """

    @property
    def held_bytes(self) -> int:
        """Estimate the bytes of memory that events take until `onward` turns them into rows."""
        ...

    def onward(self, border: Border, /) -> Self:
        """Return the collector for what follows `border`.

        It has what began here and has not ended, and makes the rows of that when it ends; this collector makes the
        other rows, and takes no more exchanges.
        """
        ...
