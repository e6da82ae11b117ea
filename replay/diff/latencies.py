"""Latencies of both sides by API, and by API and captured broker, and which of them are slower beyond noise.

In: pairs whose latencies are the broker's own. Out: a difference for each API that is slower, else for each broker at
which it is. Pure. A name is an API's, or `API at HOST:PORT`.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
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
"""The largest factor, or time, of APIs that are slower alike, over the smallest."""


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
        self, noise: Noise | None, busy: bool = False, share: float = SHARE, evidence: str = "", late_us: float = 0.0
    ) -> Iterator[Difference]:
        """Yield what is slower, with the exchange that took longest; one difference, where most APIs are slower by like
        factors or times. `busy`: both sides were sent as fast as answers allowed; `share`: of a latency, more than
        which is slower; `evidence`: of how busy the replayer's machine was, and `late_us`: how late its event loop was
        at the 99th percentile, which explains as much.
        """
        if len({name.partition(_AT)[2] for name in self.by_broker}) < 2:
            self.by_broker.clear()
        every = {**self.by_api, **self.by_broker}
        if noise is not None:
            self.shifts = noise.shifts(every, share)
        differences: dict[str, Difference] = {}
        for name, both in sorted(every.items()):  # an API comes before its brokers
            api, _, broker = name.partition(_AT)
            others = (each for other, each in self.by_api.items() if other != api)
            load = slower.load(others, slower.MOST_LOAD if busy else 1.0)
            texts = None if broker and api in self.slower else self._slower_texts(name, both, noise, load, share)
            if texts is None and noise is None and not busy and not broker:
                texts = self._tail_texts(api, share)
            if texts is not None:
                row = {**self._slowest[name][1], "api_version": None}
                differences[name] = Difference(row, "(latency)", SLOWER, *texts, (broker,) if broker else ())
        explained = self._explained(evidence, late_us)
        together = self._together(evidence)
        if together is not None:
            yield together
        else:
            yield from (difference for name, difference in differences.items() if name in self.slower)
        if explained is not None:
            yield explained

    def _explained(self, evidence: str, late_us: float) -> Difference | None:
        """One difference for what is slower by no more than the replayer was late itself, which is not slower then."""
        names = [name for name, (_, _, least) in self.slower.items() if least <= late_us]
        if not names:
            return None
        more = [here - there for there, here, _ in map(self.slower.pop, names)]
        row = {**self._slowest[names[0]][1], "api_version": None}
        what = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {_span(more)} more"
        text = what + (f" ({evidence})" if evidence else "")
        return Difference(row, "(latency)", SLOWER, "", text, rule="busy_replayer")

    def _tail_texts(self, api: str, share: float) -> tuple[str, str] | None:
        """Describe an API whose slowest answers are slower, by more than those of all others together are."""
        shift = slower.tail(*self.by_api[api])
        if shift is None:
            return None
        others: Both = array("q"), array("q")
        for other, both in self.by_api.items():
            if other != api:
                for own, values in zip(others, both, strict=True):
                    own.extend(values)
        before, after, least = shift
        common = slower.tail(*others)
        least -= max(common[1] - common[0], 0.0) if common is not None else 0.0
        if least <= slower.MICROSECONDS or least <= share * before:
            return None
        self.slower[api] = before, after, least
        there, here, more = (f"{each / 1000:.1f} ms" for each in self.slower[api])
        return f"p98 {there}", f"p98 {here}, at least {more} more"

    def _together(self, evidence: str) -> Difference | None:
        """One difference for all, where most APIs are slower, and by like factors or times; None: they are not."""
        shifts = {name: shift for name, shift in self.slower.items() if name in self.by_api}
        factors = {name: here / max(there, 1.0) for name, (there, here, _) in shifts.items()}
        times = {name: here - there for name, (there, here, _) in shifts.items()}
        enough = [name for name, both in self.by_api.items() if min(map(len, both)) >= slower.ENOUGH]
        if len(factors) < _MOST_APIS or 2 * len(factors) <= len(enough):
            return None
        least, most = min(factors.values()), max(factors.values())
        how = f"{least:.1f} to {most:.1f} times as long"
        if most > _LIKE * least:
            if max(times.values()) > _LIKE * min(times.values()):
                return None
            how = f"{_span(times.values())} more"
        row = {**self._slowest[max(factors, key=lambda name: factors[name])][1], "api_version": None}
        what = f"{len(factors)} of {len(enough)} APIs alike, {how}"
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


def _span(times_us: Collection[float]) -> str:
    """Least and largest of some times, as text."""
    least, most = (f"{each(times_us) / 1000:.1f}" for each in (min, max))
    return f"{least} ms" if least == most else f"{least} to {most} ms"


def _broker(connection: str) -> str:
    """HOST:PORT of a connection's name."""
    return connection.partition("-")[2].partition("#")[0]
