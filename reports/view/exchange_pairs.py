"""Pairs of exchanges that were recorded twice: captured and replayed, or at two capture points.

In: a view's tables, and for a RUN a comparison (`Compare`). Out: the other row of each row, and a list of pairs. Rules:
exchanges of a RUN are joined by its contract (connection and ordinal, the capture's name prefixed by `replay:`); those
of capture points by the ends of the connection, correlation id and API, and among several by the nearest time, because
clocks of two machines differ; a pair is chosen if either side is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.cli import exchange_lines
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import readable
from kwire.captures.errors import KwireError
from kwire.reports.view.tables import BadRequestError, Key, Tables, format_key

Row = dict[str, Any]
PairDifference = tuple[str, str, str, str, str, str | None]
"""A difference of a pair: field, enclosing elements, kind, both values, and the rule by which it is expected."""

Compare = Callable[[str], tuple[str, Mapping[tuple[str, str, int], Sequence[PairDifference]]]]
"""Compares a RUN: returns its verdict in a line, and the differences by (capture, connection, exchange)."""

SAME, ALONE, EXPECTED, DIFFERENT = range(4)
VERDICTS: Final = ("same", "not compared", "expected", "different")
SORTS: Final = ("shift_us", "verdict")
"""Columns that pairs can be sorted by, besides the order of their requests."""


class RunComparison:
    """The comparison of a RUN, made once in the background."""

    def __init__(self, judge: Compare, run: str) -> None:
        self._judge, self._run = judge, run
        self._ready = threading.Event()
        self.line = ""
        self.differences: Mapping[tuple[str, str, int], Sequence[PairDifference]] | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.line, self.differences = self._judge(self._run)
        except KwireError as problem:
            self.line = f"not compared: {problem.message}"
        finally:
            self._ready.set()

    @property
    def done(self) -> bool:
        """True once the comparison is complete."""
        return self._ready.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the comparison; returns whether it is complete."""
        return self._ready.wait(seconds)


@dataclass
class ExchangePairs:
    """Pairs of a view's rows.

    replay  True for captured and replayed exchanges, False for two capture points
    names   names of the two sides
    of      int64[n]: the other row of each row; -1 if there is none
    left    bool[n]: rows of the first side
    """

    replay: bool
    names: tuple[str, str]
    of: np.ndarray
    left: np.ndarray
    comparison: RunComparison | None = None
    _outcomes: tuple[np.ndarray, pa.Table] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- one pair ---------------------------------------------------------------------------------------------------
    def outcome(self, shown: Tables, row: int) -> dict[str, Any] | None:
        """Get what the replay did with a captured exchange; None if it is not known."""
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

    def differences(self, key: Key) -> Sequence[PairDifference]:
        """List the differences of a captured exchange, as far as it was compared."""
        if self.comparison is None or self.comparison.differences is None or key[2] is None:
            return ()
        return self.comparison.differences.get((key[0], key[1], key[2]), ())

    # -- all pairs --------------------------------------------------------------------------------------------------
    def verdicts(self, shown: Tables) -> np.ndarray:
        """Rate each row of the first side SAME, ALONE, EXPECTED or DIFFERENT: int8[n]; by the comparison, or without
        one by status and errors. On a connection that both points saw, an exchange that only one saw is DIFFERENT."""
        differences = None if self.comparison is None else self.comparison.differences
        if differences is None:
            return shown.cached("ends", lambda: self._ends(shown))
        return shown.cached("verdicts", lambda: self._compared_verdicts(shown, differences))

    def _compared_verdicts(
        self, shown: Tables, differences: Mapping[tuple[str, str, int], Sequence[PairDifference]]
    ) -> np.ndarray:
        status, verdicts = shown.columns.codes["status"], np.full(shown.columns.n, SAME, np.int8)
        verdicts[(self.of < 0) | (status != status[np.maximum(self.of, 0)])] = ALONE
        names = zip(*differences, strict=True) if differences else ([], [], [])
        rows = shown.joined(pa.table(dict(zip(_JOINED, map(list, names), strict=True))))
        bad = np.array(
            [any(difference[5] is None for difference in of_pair) for of_pair in differences.values()], np.bool_
        )
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
        """Get the first row of each pair that a filter chooses, and chosen rows without a pair, in order of the
        requests: int64[k]. `differing`: only pairs that differ."""
        rows = shown.chosen(text).rows.astype(np.int64)
        second = (self.of[rows] >= 0) & ~self.left[rows]
        rows = np.unique(np.where(second, self.of[rows], rows))
        return rows[self.verdicts(shown)[rows] >= EXPECTED] if differing else rows

    def shifts(self, shown: Tables, rows: np.ndarray) -> np.ndarray:
        """Get how much longer the second side took, in us: int64[k]; the smallest number if a latency is missing."""
        latency, none = shown.columns.integers["latency_us"], np.iinfo(np.int64).min
        least = np.iinfo(latency.dtype).min
        other = self.of[rows]
        here, there = latency[rows].astype(np.int64), latency[np.maximum(other, 0)].astype(np.int64)
        return np.where((other >= 0) & (here != least) & (there != least), there - here, none)

    def window(self, shown: Tables, text: str, sort: str, differing: bool, start: int, count: int) -> dict[str, Any]:
        """Get a window of the pairs: columns as lists, and their descriptions. Raises BadRequestError."""
        rows = self.chosen(shown, text, differing)
        by = sort.removeprefix("-")
        if by and by not in SORTS:
            raise BadRequestError(f"sort={sort[:40]}: pairs cannot be sorted by that", f"one of {', '.join(SORTS)}")
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
            "time": [row["request_time"] for row in first],
            "client_id": [row["client_id"] for row in first],
            "api": [exchange_lines.api(row) for row in first],
            "verdict": [VERDICTS[code] for code in verdicts.tolist()],
            **{name: [row and exchange_lines.outcome(row) for row in side] for name, side in sides.items()},
            **{f"{name}_latency_us": [row and row["latency_us"] for row in side] for name, side in sides.items()},
            "shift_us": [None if value == np.iinfo(np.int64).min else value for value in shift.tolist()],
            "differences": [self._difference_text(shown, int(row), key) for row, key in zip(part, keys, strict=True)],
            "connection": [row["connection"] for row in first],
        }
        words = {
            "time": "First byte of the request.",
            "client_id": "Client id of the request.",
            "api": "API and version.",
            **{name: f"How it ended: {title}." for name, title in about.items()},
            **{f"{name}_latency_us": f"Latency: {title}." for name, title in about.items()},
            "shift_us": "How much longer the second side took.",
            "verdict": "same, different, or expected: a rule of kwire diff explains what differs.",
            "differences": "What differs first, and how many more do.",
            "connection": "The connection.",
        }
        kinds = {"time": "time", "shift_us": "duration"} | {f"{name}_latency_us": "duration" for name in names}
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
            "keys": list(map(format_key, keys)),
        }

    def _sides(self, shown: Tables, part: np.ndarray) -> tuple[list[Row], Sequence[Row | None]]:
        names = tables.schema("exchanges").names
        other = self.of[part]
        there = iter(shown.rows_at(other[other >= 0], names))
        return shown.rows_at(part, names), [next(there) if partner >= 0 else None for partner in other.tolist()]

    def _difference_text(self, shown: Tables, row: int, key: Key) -> str | None:
        differing = self.differences(key)
        if differing:
            first = min(differing, key=lambda difference: difference[5] is not None)
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            return difference_text(first) + more
        if self.of[row] >= 0:
            return None
        outcome = self.outcome(shown, row)
        if outcome is None:
            return f"only {self.names[0 if self.left[row] else 1]}"
        rule = f"({outcome['rule']})" if outcome["rule"] else ""
        return f"{outcome['verdict'].replace('_', ' ')} {rule}".strip()


_JOINED: Final = ("capture", "connection", "exchange")
_OUTCOME: Final = ("action", "verdict", "rule", "reason", "retries", "lag_us", "sent_version")


def difference_text(difference: PairDifference) -> str:
    """Write a difference as text."""
    path, around, kind, left, right, rule = difference
    place = f"{path} of {around}" if around else path
    return f"{place}: {kind}: {left} -> {right}" + (f" ({rule})" if rule else "")


# --- finding pairs ----------------------------------------------------------------------------------------------------


def find_pairs(shown: Tables, judge: Callable[[], RunComparison] | None = None) -> ExchangePairs | None:
    """Find the pairs of a view; None if there are none. `judge` starts the comparison of a RUN."""
    names = shown.columns.values["capture"]
    replayed = {name: names.index(tables.REPLAYED + name) for name in names if tables.REPLAYED + name in names}
    if replayed:
        of, left = _replayed(shown, {names.index(name): code for name, code in replayed.items()})
        return ExchangePairs(True, ("captured", "replayed"), of, left, judge and judge())
    if len(names) < 2:
        return None
    of = _points(shown)
    if not (of >= 0).any():
        return None
    captures = shown.columns.codes["capture"]
    left = (of < 0) | (captures < captures[np.maximum(of, 0)])
    some = [names[code] for code in np.unique(captures[of >= 0]).tolist()]
    return ExchangePairs(False, (some[0], ", ".join(some[1:])), of, left)


def _replayed(shown: Tables, replays: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    columns = shown.columns
    captures, connections = (columns.codes[name].astype(np.int64) for name in ("capture", "connection"))
    exchanges = columns.integers["exchange"].astype(np.int64)
    other = np.full(len(columns.values["capture"]) + 1, -1)
    for captured, replayed in replays.items():
        other[captured], other[replayed] = replayed, captured
    of = shown.rows_by(shown.packed(other[captures], connections, exchanges))
    return of, np.isin(captures, list(replays))


def _points(shown: Tables) -> np.ndarray:
    """Pair the rows of capture points that saw the same exchange: int64[n], -1 for none."""
    columns = shown.columns
    of = np.full(columns.n, -1)
    captures, client, broker = (columns.codes[name].astype(np.int64) for name in ("capture", "client", "broker"))
    ends = client * len(columns.values["broker"]) + broker
    _, links = np.unique(np.where((client < 0) | (broker < 0), -1, ends), return_inverse=True)
    # Only connections that were seen at several points can have pairs.
    captures_of_link = np.zeros((links.max(initial=0) + 1, len(columns.values["capture"])), np.bool_)
    captures_of_link[links, captures] = True
    number, there = columns.integer("correlation_id")
    sent, began = columns.integer("request_time")
    rows = np.flatnonzero((captures_of_link.sum(1) > 1)[links] & there & began & (client >= 0) & (broker >= 0))
    api = columns.integers["api_key"]
    rows = rows[np.lexsort((sent[rows], number[rows], api[rows], links[rows]))]
    equal = np.ones(max(len(rows) - 1, 0), np.bool_)
    for column in (links, api, number):
        equal &= column[rows[:-1]] == column[rows[1:]]
    near = equal & (captures[rows[:-1]] != captures[rows[1:]])
    # Of three successive ones the two nearest are a pair.
    gap = np.where(near, np.diff(sent[rows].astype(np.int64)), np.iinfo(np.int64).max)
    before = np.append(np.iinfo(np.int64).max, gap)[: len(gap)]
    after = np.append(gap, np.iinfo(np.int64).max)[1:]
    first = np.flatnonzero(near & (gap < before) & (gap <= after))
    of[rows[first]], of[rows[first + 1]] = rows[first + 1], rows[first]
    return of
