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
from analyzer.bulk.rows import EndPoints, Exchanges

_WORKED_OUT = (s.X_MUTED_US, s.X_NETWORK_US, s.X_HOLD_US, s.X_WAY_NS)
_OF_EXCHANGES = [
    column for column in range(s.X_COLUMNS) if column not in (s.X_SLOT, s.X_CLIENT_SIDE, s.X_TRIGGER)
]
"""What is not said of an exchange that only names its connection."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the connections of a share said in one window that matters for others: an `Ended` with one exchange a
    connection, of which it says the connection alone, and those that matter with their topic-partitions; slots numbered
    over all shares, and the connections that it is the first to name: end points, reuse and number by slot."""

    ended: Ended
    named: dict[int, tuple[Any, Any, int, int]]


class Naming:
    """Which connections a share has named, slots numbered over all shares: the `number`-th of `of`."""

    def __init__(self, flows: EndPoints, number: int, of: int) -> None:
        self._flows = flows
        self._number = number
        self._of = of
        self._named = np.zeros(0, np.int64)  # by slot: 1 + the number of the connection last named in it

    def born(self, slots: np.ndarray) -> np.ndarray:
        """Which connection of the capture point is in each slot."""
        return self._flows.born(slots)

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


def facts_of(ended: Ended, naming: Naming, every: Exchanges | None = None, matter: np.ndarray | None = None) -> Facts:
    """The facts of one window of a share. `every`: its exchanges as the share's `Window` has them, with what has been
    worked out; `matter` bool[n]: those of them that matter for others."""
    x = ended.exchanges
    kept = np.zeros(x.shape[1], np.bool_)
    if every is not None and matter is not None and len(every):
        order = np.lexsort((naming.born(x[s.X_SLOT]), x[s.X_TRIGGER]))  # as `Merging` has them
        kept[order] = matter
        x = x.copy()
        for column in _WORKED_OUT:
            x[column, order] = every.columns[column]
    whole = np.flatnonzero(kept)
    _, first = np.unique(x[s.X_SLOT], return_index=True)
    chosen = np.union1d(first, whole)
    exchanges = x[:, chosen]
    others = ~kept[chosen]
    exchanges[np.ix_(np.array(_OF_EXCHANGES), np.flatnonzero(others))] = s.NULL
    owner = ended.parts[s.P_OWNER]
    parts = ended.parts[:, kept[owner]] if len(whole) else ended.parts[:, :0].copy()
    parts[s.P_OWNER] = np.searchsorted(chosen, parts[s.P_OWNER])
    parts[s.P_SET] = s.NULL
    facts, leaders, connections = ended.facts.copy(), ended.leaders.copy(), ended.connections
    slots = (exchanges[s.X_SLOT], facts[:, s.FACT_SLOT], leaders[:, s.L_SLOT])
    spoken = np.array([one.slot for one in ended.zookeeper], np.int64)
    named = naming.new(np.concatenate([*slots, connections.number, spoken]))
    for numbers in slots:
        numbers[:] = naming.slots(numbers)
    thin = replace(
        ended,
        exchanges=exchanges,
        facts=facts,
        leaders=leaders,
        connections=replace(connections, number=naming.slots(connections.number)),
        parts=parts,
        messages=ended.messages[:0],
        message_bytes=ended.message_bytes[:0],
        sets=ended.sets[:0],
        set_bytes=ended.set_bytes[:0],
        zookeeper=[
            one._replace(slot=slot) for one, slot in zip(ended.zookeeper, naming.slots(spoken).tolist(), strict=True)
        ],
    )
    return Facts(thin, named)
