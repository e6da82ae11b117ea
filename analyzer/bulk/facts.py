"""The facts of a share: what its connections said in a window that matters for those of other shares.

In: what a shard hands out (`Ended`). Out: `Facts`, which can be stored and merged with those of other shares. Rule:
nothing that was handed out is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzer.bulk import state as s
from analyzer.bulk.ended import Ended
from analyzer.bulk.rows import EndPoints


@dataclass(frozen=True, slots=True)
class Facts:
    """What the connections of a share said in one window that matters for others: an `Ended` without exchanges but one
    a connection, slots numbered over all shares, and the connections that it is the first to name: end points, reuse
    and number by slot."""

    ended: Ended
    named: dict[int, tuple[Any, Any, int, int]]


class Naming:
    """Which connections a share has named, slots numbered over all shares: the `number`-th of `of`."""

    def __init__(self, flows: EndPoints, number: int, of: int) -> None:
        self._flows = flows
        self._number = number
        self._of = of
        self._named = np.zeros(0, np.int64)  # by slot: 1 + the number of the connection last named in it

    def slots(self, slots: np.ndarray) -> np.ndarray:
        """Slots as all shares number them."""
        return slots * self._of + self._number

    def new(self, slots: np.ndarray) -> dict[int, tuple[Any, Any, int, int]]:
        """Those of the connections in some slots that were not named yet."""
        used = np.unique(slots)
        if len(used) and used[-1] >= len(self._named):
            self._named = np.append(self._named, np.zeros(used[-1] + 1, np.int64))
        now = self._flows.born(used) + 1
        fresh = used[self._named[used] != now]
        self._named[used] = now
        return {slot * self._of + self._number: self._flows.end_points(slot) for slot in fresh.tolist()}


def facts_of(ended: Ended, naming: Naming) -> Facts:
    """The facts of one window of a share."""
    _, first = np.unique(ended.exchanges[s.X_SLOT], return_index=True)
    exchanges = np.full((s.X_COLUMNS, len(first)), s.NULL, np.int64)
    for row in (s.X_SLOT, s.X_CLIENT_SIDE, s.X_TRIGGER):
        exchanges[row] = ended.exchanges[row, first]
    facts, leaders, connections = ended.facts.copy(), ended.leaders.copy(), ended.connections
    slots = (exchanges[s.X_SLOT], facts[:, s.FACT_SLOT], leaders[:, s.L_SLOT])
    named = naming.new(np.concatenate([*slots, connections.number]))
    for column in slots:
        column[:] = naming.slots(column)
    thin = replace(
        ended,
        exchanges=exchanges,
        facts=facts,
        leaders=leaders,
        connections=replace(connections, number=naming.slots(connections.number)),
        parts=ended.parts[:, :0].copy(),
        messages=ended.messages[:0],
        message_bytes=ended.message_bytes[:0],
        sets=ended.sets[:0],
        set_bytes=ended.set_bytes[:0],
    )
    return Facts(thin, named)
