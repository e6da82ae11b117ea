"""Latencies of both sides by API, and by API and captured broker, and which of them are slower beyond noise.

In: pairs whose latencies are the broker's own. Out: a difference for each API that is slower, else for each broker at
which it is. Pure. A name is an API's, or `API at HOST:PORT`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.analyzer.protocol import schema
from kwire.replay.diff import slower
from kwire.replay.diff.differences import Difference
from kwire.replay.diff.noise import Noise, Shift
from kwire.replay.diff.pairs import Block, Pair, Pairs
from kwire.replay.diff.slower import SHARE
from kwire.replay.diff.stored_run import Flags

SLOWER: Final = "slower"
"""The kind of difference that an API is which is slower beyond noise."""
Both = tuple["array[int]", "array[int]"]
_AT: Final = " at "
_MOST_APIS: Final = 3
"""APIs that are slower together, at least, before that is taken for one thing."""
_LIKE: Final = 2.0
"""The largest factor of APIs that are slower by like factors, over the smallest."""


@dataclass(slots=True)
class Latencies:
    """us, both sides, by name. `by_broker`: once `judged`, only where there are several brokers; `slower`: (there,
    here, at least so much more); `shifts`: of quantiles, where noise was learned."""

    by_api: dict[str, Both] = field(default_factory=dict)
    by_broker: dict[str, Both] = field(default_factory=dict)
    slower: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    shifts: dict[str, list[Shift]] = field(default_factory=dict)
    _slowest: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)

    def add(self, pair: Pair) -> None:
        """Take those of one more exchange that was answered on both sides."""
        before, after = pair.left.latency_us, pair.right.latency_us
        if before is None or after is None:
            return
        api = schema.api_name(pair.api_key)
        broker = _broker(str(pair.row["connection"]))
        for name, latencies in ((api, self.by_api), (f"{api}{_AT}{broker}", self.by_broker)):
            slowest = self._slowest.get(name, (-1, pair.row))
            self._slowest[name] = max(slowest, (after, pair.row), key=lambda each: each[0])
            left, right = latencies.setdefault(name, (array("q"), array("q")))
            left.append(before)
            right.append(after)

    def add_all(self, block: Block, chosen: Flags, pairs: Pairs) -> None:
        """Take those of the chosen exchanges of a block."""
        before, after = block.left.latency_us, block.right.latency_us
        rows = np.flatnonzero(chosen & (before >= 0) & (after >= 0))
        brokers = [_broker(connection) for _, connection in pairs.connections(block.places[rows])]
        names = np.array(
            [f"{api}{_AT}{broker}" for api, broker in zip(block.api_key[rows].tolist(), brokers, strict=True)]
        )
        for name in np.unique(names).tolist():
            some = rows[names == name]
            api_key, _, broker = name.partition(_AT)
            api = schema.api_name(int(api_key))
            slowest = some[np.argmax(after[some])]
            for named, latencies in ((api, self.by_api), (f"{api}{_AT}{broker}", self.by_broker)):
                if int(after[slowest]) > self._slowest.get(named, (-1, {}))[0]:
                    self._slowest[named] = int(after[slowest]), pairs[int(block.places[slowest])].row
                left, right = latencies.setdefault(named, (array("q"), array("q")))
                left.frombytes(before[some].tobytes())
                right.frombytes(after[some].tobytes())

    def judged(
        self, noise: Noise | None, busy: bool = False, share: float = SHARE, evidence: str = ""
    ) -> Iterator[Difference]:
        """Yield what is slower, with the exchange that took longest; one difference, where most APIs are slower by like
        factors. `busy`: both sides were sent as fast as answers allowed; `share`: of a latency, more than which is
        slower; `evidence`: of how busy the replayer's machine was.
        """
        if len({name.partition(_AT)[2] for name in self.by_broker}) < 2:
            self.by_broker.clear()
        every = {**self.by_api, **self.by_broker}
        if noise is not None:
            self.shifts = noise.shifts(every, share)
        differences: list[Difference] = []
        for name, both in sorted(every.items()):  # an API comes before its brokers
            api, _, broker = name.partition(_AT)
            others = (each for other, each in self.by_api.items() if other != api)
            load = slower.load(others, slower.MOST_LOAD if busy else 1.0)
            texts = None if broker and api in self.slower else self._slower_texts(name, both, noise, load, share)
            if texts is not None:
                row = {**self._slowest[name][1], "api_version": None}
                differences.append(Difference(row, "(latency)", SLOWER, *texts, (broker,) if broker else ()))
        together = self._together(evidence)
        yield from differences if together is None else [together]

    def _together(self, evidence: str) -> Difference | None:
        """One difference for all, where most APIs are slower, and by like factors; None: they are not."""
        factors = {
            name: here / max(there, 1.0) for name, (there, here, _) in self.slower.items() if name in self.by_api
        }
        enough = [name for name, both in self.by_api.items() if min(map(len, both)) >= slower.ENOUGH]
        if len(factors) < _MOST_APIS or 2 * len(factors) <= len(enough):
            return None
        least, most = min(factors.values()), max(factors.values())
        if most > _LIKE * least:
            return None
        row = {**self._slowest[max(factors, key=lambda name: factors[name])][1], "api_version": None}
        what = f"{len(factors)} of {len(enough)} APIs alike, {least:.1f} to {most:.1f} times as long"
        return Difference(row, "(latency)", SLOWER, "", what + (f" ({evidence})" if evidence else ""))

    def _slower_texts(
        self, name: str, both: Both, noise: Noise | None, load: float, share: float
    ) -> tuple[str, str] | None:
        """Describe latencies that are slower: left, and right; None: they are not."""
        if noise is None:
            shift, what = slower.shift(*both, load, share), "median"
        else:
            slower_shift = next((each for each in self.shifts.get(name, ()) if each.slower), None)
            shift = (
                (slower_shift.before, slower_shift.before + slower_shift.shift, slower_shift.low)
                if slower_shift is not None
                else None
            )
            what = slower_shift.quantile if slower_shift is not None else ""
        if shift is None:
            return None
        self.slower[name] = shift
        there, here, least = (f"{each / 1000:.1f} ms" for each in shift)
        return f"{what} {there}", f"{what} {here}, at least {least} more"


def _broker(connection: str) -> str:
    """HOST:PORT of a connection's name."""
    return connection.partition("-")[2].partition("#")[0]
