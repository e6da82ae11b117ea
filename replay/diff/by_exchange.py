"""List the differences of a RUN by exchange, as plain values, for `kwire view`.

In: a RUN. Out: the verdict in a line, and the differences of each captured exchange that has some. Rule: the
differences are those of `kwire diff`; at most `MOST` exchanges have them listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from kwire.replay.diff import pairs, text
from kwire.replay.diff.compare import compare
from kwire.replay.diff.differences import Difference, Differences, grouped

MOST: Final = 100_000
"""Exchanges of which differences are listed, and at most so many of each."""
OF_ONE: Final = 50

Entry = tuple[str, str, str, str, str, str | None]
"""Field, elements around it, kind, both values, and the rule by which it is expected (None: it is not)."""


class _All(Differences):
    """Keeps what differs of each exchange, besides."""

    def __init__(self) -> None:
        super().__init__()
        self.by_exchange: dict[tuple[str, str, int], list[Entry]] = {}

    def take(self, differences: Iterable[Difference]) -> None:
        every = list(differences)
        super().take(every)
        for difference in every:
            row = difference.row
            key = row["capture"], row["connection"], row["exchange"]
            if key not in self.by_exchange and len(self.by_exchange) >= MOST:
                continue
            entries = self.by_exchange.setdefault(key, [])
            if len(entries) < OF_ONE:
                entries.append(
                    (
                        difference.path,
                        "/".join(difference.key),
                        difference.kind,
                        difference.left,
                        difference.right,
                        difference.rule,
                    )
                )


def differing(path: str | os.PathLike[str]) -> tuple[str, dict[tuple[str, str, int], list[Entry]]]:
    """The verdict on a RUN, and what differs by (capture, connection, exchange). Raises DatasetError."""
    every = _All()
    comparison = compare(pairs.from_run(path), every)
    unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
    return text.verdict(comparison, unexpected), every.by_exchange
