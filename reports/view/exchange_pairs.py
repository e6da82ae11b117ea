"""The same exchange seen twice: as captured and as replayed, or at two capture points.

In: a view's tables, and of a RUN what somebody judges of it (`Judge`). Out: which row is which other's, and a list of
pairs. Rules: a RUN's sides are joined by its own contract (connection and ordinal, the capture's name with `replay:`
before it); capture points by the ends of the connection, correlation id and API, and of several such the nearest in
time, for clocks of two machines differ; a pair is chosen where either side is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer.cli import exchange_lines
from analyzer.dataset import tables
from analyzer.dataset.dataset import readable
from captures.errors import KwireError
from reports.view.tables import Key, Tables, Wrong, key_text

Row = dict[str, Any]
Told = tuple[str, str, str, str, str, str | None]
"""A difference of a pair: field, elements around it, kind, both values, and the rule by which it is expected."""

Judge = Callable[[str], tuple[str, Mapping[tuple[str, str, int], Sequence[Told]]]]
"""What compares a RUN: its verdict in a line, and the differences by (capture, connection, exchange)."""

SAME, ALONE, EXPECTED, DIFFERENT = range(4)
VERDICTS: Final = ("same", "not compared", "expected", "different")
SORTS: Final = ("shift_us", "verdict")
"""What pairs are sorted by, besides the order of their requests."""


class Judging:
    """What a judge says of a RUN, which may take it a while: asked once, in the background."""

    def __init__(self, judge: Judge, run: str) -> None:
        self._judge, self._run = judge, run
        self._ready = threading.Event()
        self.line = ""
        self.found: Mapping[tuple[str, str, int], Sequence[Told]] | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.line, self.found = self._judge(self._run)
        except KwireError as problem:
            self.line = f"not compared: {problem}"
        finally:
            self._ready.set()

    @property
    def done(self) -> bool:
        """Is it said?"""
        return self._ready.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for it."""
        return self._ready.wait(seconds)


@dataclass
class Pairing:
    """Pairs of a view's rows. `replay`: captured and replayed, else two capture points; `of`: int64[n], the other row
    of each, -1 where there is none; `left`: bool[n], the rows that stand first; `names`: what the sides are called."""

    replay: bool
    names: tuple[str, str]
    of: np.ndarray
    left: np.ndarray
    judging: Judging | None = None
    _outcomes: tuple[np.ndarray, pa.Table] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- one pair ---------------------------------------------------------------------------------------------------
    def outcome(self, shown: Tables, row: int) -> dict[str, Any] | None:
        """What the replay did with a captured exchange."""
        if not self.replay:
            return None
        with self._lock:
            if self._outcomes is None:
                with readable(shown.dataset.path, "outcomes"):
                    table = shown.dataset.outcomes.to_table(columns=[*_JOINED, *_OUTCOME])
                place = np.full(shown.columns.n, -1)
                rows = shown.joined(table)
                place[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
                self._outcomes = place, table.select(list(_OUTCOME))
        place, table = self._outcomes
        at = int(place[row])
        return None if at < 0 else dict(table.slice(at, 1).to_pylist()[0])

    def told(self, key: Key) -> Sequence[Told]:
        """What differs of a captured exchange, as far as it was judged."""
        if self.judging is None or self.judging.found is None or key[2] is None:
            return ()
        return self.judging.found.get((key[0], key[1], key[2]), ())

    # -- all pairs --------------------------------------------------------------------------------------------------
    def verdicts(self, shown: Tables) -> np.ndarray:
        """int8[n]: SAME, ALONE, EXPECTED or DIFFERENT by row of the first side: as judged, else by how they ended.
        Where two points saw a connection, an exchange that one alone saw is DIFFERENT."""
        found = None if self.judging is None else self.judging.found
        if found is None:
            return shown.made("ends", lambda: self._ends(shown))
        return shown.made("verdicts", lambda: self._judged(shown, found))

    def _judged(self, shown: Tables, found: Mapping[tuple[str, str, int], Sequence[Told]]) -> np.ndarray:
        status, verdicts = shown.columns.codes["status"], np.full(shown.columns.n, SAME, np.int8)
        verdicts[(self.of < 0) | (status != status[np.maximum(self.of, 0)])] = ALONE
        names = zip(*found, strict=True) if found else ([], [], [])
        rows = shown.joined(pa.table(dict(zip(_JOINED, map(list, names), strict=True))))
        bad = np.array([any(one[5] is None for one in told) for told in found.values()], np.bool_)
        verdicts[rows[rows >= 0]] = np.where(bad, DIFFERENT, EXPECTED)[rows >= 0]
        return verdicts

    def _ends(self, shown: Tables) -> np.ndarray:
        columns, other = shown.columns, np.maximum(self.of, 0)
        status, errors = columns.codes["status"], columns.errors.of
        apart = (errors != errors[other]) | (status != status[other])
        if not self.replay:
            client, broker = (columns.codes[name].astype(np.int64) for name in ("client", "broker"))
            ends = client * len(columns.values["broker"]) + broker
            apart |= (self.of < 0) & np.isin(ends, np.unique(ends[self.of >= 0]))
        verdicts = np.where(apart, DIFFERENT, SAME).astype(np.int8)
        verdicts[(self.of < 0) & (~apart | self.replay)] = ALONE
        return verdicts

    def chosen(self, shown: Tables, text: str, differing: bool) -> np.ndarray:
        """int64: the first row of each pair of which a filter chooses a side, in order of the requests; rows that stand
        alone too. `differing`: only where the sides differ."""
        rows = shown.chosen(text).rows.astype(np.int64)
        second = (self.of[rows] >= 0) & ~self.left[rows]
        rows = np.unique(np.where(second, self.of[rows], rows))
        return rows[self.verdicts(shown)[rows] >= EXPECTED] if differing else rows

    def shifts(self, shown: Tables, rows: np.ndarray) -> np.ndarray:
        """int64: how much longer the second side took than the first, us; the least number where one has no latency."""
        latency, none = shown.columns.integers["latency_us"], np.iinfo(np.int64).min
        least = np.iinfo(latency.dtype).min
        other = self.of[rows]
        here, there = latency[rows].astype(np.int64), latency[np.maximum(other, 0)].astype(np.int64)
        return np.where((other >= 0) & (here != least) & (there != least), there - here, none)

    def window(self, shown: Tables, text: str, sort: str, differing: bool, start: int, count: int) -> dict[str, Any]:
        """Some pairs: columns as lists, and what they are. Raises Wrong."""
        rows = self.chosen(shown, text, differing)
        by = sort.removeprefix("-")
        if by and by not in SORTS:
            raise Wrong(f"sort={sort[:40]}: pairs are not sorted by that", f"one of {', '.join(SORTS)}")
        if by:
            numbers = self.shifts(shown, rows) if by == "shift_us" else self.verdicts(shown)[rows].astype(np.int64)
            none = numbers == np.iinfo(np.int64).min
            rows = rows[np.lexsort((numbers if sort != by else -numbers, none))]
        part = rows[start : start + count]
        first, second = self._sides(shown, part)
        shift = self.shifts(shown, part)
        verdicts = self.verdicts(shown)[part]
        keys = shown.keys_of(part)
        names = ("captured", "replayed") if self.replay else ("first", "second")
        about = dict(zip(names, self.names, strict=True))
        sides: dict[str, Sequence[Row | None]] = dict(zip(names, (first, second), strict=True))
        listed: dict[str, list[Any]] = {
            "time": [one["request_time"] for one in first],
            "client_id": [one["client_id"] for one in first],
            "api": [exchange_lines.api(one) for one in first],
            "verdict": [VERDICTS[one] for one in verdicts.tolist()],
            **{name: [one and exchange_lines.outcome(one) for one in side] for name, side in sides.items()},
            **{f"{name}_latency_us": [one and one["latency_us"] for one in side] for name, side in sides.items()},
            "shift_us": [None if one == np.iinfo(np.int64).min else one for one in shift.tolist()],
            "differences": [self._said(shown, int(row), key) for row, key in zip(part, keys, strict=True)],
            "connection": [one["connection"] for one in first],
        }
        words = {
            "time": "First byte of the request.",
            "client_id": "Client id of the request.",
            "api": "API and version.",
            **{name: f"How it ended: {said}." for name, said in about.items()},
            **{f"{name}_latency_us": f"Latency: {said}." for name, said in about.items()},
            "shift_us": "How much longer the second side took.",
            "verdict": "same, different, or expected: a rule of kwire diff explains what differs.",
            "differences": "What differs first, and how many more do.",
            "connection": "The connection.",
        }
        kinds = {"time": "since", "shift_us": "duration"} | {f"{name}_latency_us": "duration" for name in names}
        titles = {} if self.replay else about
        return {
            "total": len(rows),
            "more": False,
            "start": start,
            "about": [
                {
                    "name": name,
                    "kind": kinds.get(name, "text"),
                    "about": words[name],
                    "sorted": name in SORTS,
                    "title": titles.get(name),
                }
                for name in listed
            ],
            "columns": listed,
            "keys": list(map(key_text, keys)),
        }

    def _sides(self, shown: Tables, part: np.ndarray) -> tuple[list[Row], Sequence[Row | None]]:
        names = tables.schema("exchanges").names
        other = self.of[part]
        there = iter(shown.some(other[other >= 0], names))
        return shown.some(part, names), [next(there) if one >= 0 else None for one in other.tolist()]

    def _said(self, shown: Tables, row: int, key: Key) -> str | None:
        told = self.told(key)
        if told:
            first = min(told, key=lambda one: one[5] is not None)
            more = f" and {len(told) - 1} more" if len(told) > 1 else ""
            return said(first) + more
        if self.of[row] >= 0:
            return None
        outcome = self.outcome(shown, row)
        if outcome is None:
            return f"only {self.names[0 if self.left[row] else 1]}"
        rule = f"({outcome['rule']})" if outcome["rule"] else ""
        return f"{outcome['verdict'].replace('_', ' ')} {rule}".strip()


_JOINED: Final = ("capture", "connection", "exchange")
_OUTCOME: Final = ("action", "verdict", "rule", "reason", "retries", "lag_us", "sent_version")


def said(told: Told) -> str:
    """A difference in words."""
    path, around, kind, left, right, rule = told
    place = f"{path} of {around}" if around else path
    return f"{place}: {kind}: {left} -> {right}" + (f" ({rule})" if rule else "")


# --- which is which other's -------------------------------------------------------------------------------------------


def paired(shown: Tables, judge: Callable[[], Judging] | None = None) -> Pairing | None:
    """The pairs of a view; None where nothing is there twice. `judge` is asked where it is a RUN."""
    names = shown.columns.values["capture"]
    replayed = {name: names.index(tables.REPLAYED + name) for name in names if tables.REPLAYED + name in names}
    if replayed:
        of, left = _replayed(shown, {names.index(name): code for name, code in replayed.items()})
        return Pairing(True, ("captured", "replayed"), of, left, judge and judge())
    if len(names) < 2:
        return None
    of = _points(shown)
    if not (of >= 0).any():
        return None
    captures = shown.columns.codes["capture"]
    left = (of < 0) | (captures < captures[np.maximum(of, 0)])
    some = [names[code] for code in np.unique(captures[of >= 0]).tolist()]
    return Pairing(False, (some[0], ", ".join(some[1:])), of, left)


def _replayed(shown: Tables, twins: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    columns = shown.columns
    captures, connections = (columns.codes[name].astype(np.int64) for name in ("capture", "connection"))
    exchanges = columns.integers["exchange"].astype(np.int64)
    other = np.full(len(columns.values["capture"]) + 1, -1)
    for captured, replayed in twins.items():
        other[captured], other[replayed] = replayed, captured
    of = shown.rows_by(shown.packed(other[captures], connections, exchanges))
    return of, np.isin(captures, list(twins))


def _points(shown: Tables) -> np.ndarray:
    """Rows of two capture points that saw the same exchange."""
    columns = shown.columns
    of = np.full(columns.n, -1)
    captures, client, broker = (columns.codes[name].astype(np.int64) for name in ("capture", "client", "broker"))
    ends = client * len(columns.values["broker"]) + broker
    _, links = np.unique(np.where((client < 0) | (broker < 0), -1, ends), return_inverse=True)
    # Only ends of connections that were seen at several points are looked at further.
    seen = np.zeros((links.max(initial=0) + 1, len(columns.values["capture"])), np.bool_)
    seen[links, captures] = True
    number, there = columns.integer("correlation_id")
    asked, began = columns.integer("request_time")
    rows = np.flatnonzero((seen.sum(1) > 1)[links] & there & began & (client >= 0) & (broker >= 0))
    api = columns.integers["api_key"]
    rows = rows[np.lexsort((asked[rows], number[rows], api[rows], links[rows]))]
    alike = np.ones(max(len(rows) - 1, 0), np.bool_)
    for column in (links, api, number):
        alike &= column[rows[:-1]] == column[rows[1:]]
    near = alike & (captures[rows[:-1]] != captures[rows[1:]])
    # Of three in a row the two that are nearest are a pair.
    gap = np.where(near, np.diff(asked[rows].astype(np.int64)), np.iinfo(np.int64).max)
    before = np.append(np.iinfo(np.int64).max, gap)[: len(gap)]
    after = np.append(gap, np.iinfo(np.int64).max)[1:]
    first = np.flatnonzero(near & (gap < before) & (gap <= after))
    of[rows[first]], of[rows[first + 1]] = rows[first + 1], rows[first]
    return of
