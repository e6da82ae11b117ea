"""Latencies over time: how many of the chosen exchanges began when and took how long, held ones apart.

In: a view's tables and what a filter chooses. Out: a `Grid` of counts. Rules: a cell is an interval of times and one of
latencies, both whole microseconds, so that a filter can say exactly the same; the axes go as far as there are
exchanges; a count is exact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import numpy as np

from reports.view.tables import Selection, Tables
from reports.view.value_counts import before, blocks, wanted

WIDEST: Final = 2_000
"""Intervals of time in a grid: more than a screen has pixels."""

LAYERS: Final = ("worked", "held")
"""Exchanges that the broker did not answer late on purpose, and those that it did (`cause == hold`)."""

_PER_DOUBLING: Final = 4
_LOWEST: Final = _PER_DOUBLING - 1
"""The bucket of all below 4 us."""

_SHIFT: Final = 52 - 2
_BASE: Final = (1023 + 1) * _PER_DOUBLING


@dataclass(frozen=True)
class Grid:
    """`counts` uint32[layers, buckets, columns]: column i is [first + i * step, first + (i + 1) * step), bucket j is
    [edges[j], edges[j + 1]) us. `without`: chosen exchanges without a latency, which are in no cell."""

    first: int
    step: int
    edges: list[int]
    counts: np.ndarray
    without: int

    def packed(self) -> bytes:
        """A line of JSON, then the counts, little-endian."""
        _, buckets, columns = self.counts.shape
        about = {
            "first": self.first,
            "step": self.step,
            "edges": self.edges,
            "layers": LAYERS,
            "buckets": buckets,
            "columns": columns,
            "most": int(self.counts.sum(axis=0, dtype=np.int64).max()) if self.counts.size else 0,
            "exchanges": int(self.counts.sum(dtype=np.int64)),
            "without": self.without,
        }
        return json.dumps(about).encode() + b"\n" + self.counts.astype("<u4").tobytes()


def bucket(latency: np.ndarray) -> np.ndarray:
    """int64: which of the buckets, four for each doubling, a latency is in."""
    exponents: np.ndarray = latency.astype(np.float64).view(np.int64) >> _SHIFT  # and two bits of what follows
    return np.asarray(np.maximum(exponents - _BASE, _LOWEST))


def edge(number: int) -> int:
    """Where a bucket begins, in us."""
    if number <= _LOWEST:
        return 0
    return (_PER_DOUBLING + number % _PER_DOUBLING) << (number // _PER_DOUBLING - 1)


def grid(tables: Tables, chosen: Selection, width: int) -> Grid:
    """Counts in at most `width` intervals of time."""
    columns, rows = tables.columns, chosen.rows
    times, latency, cause = columns.integers["request_time"], columns.integers["latency_us"], columns.codes["cause"]
    every = chosen.every
    if not columns.whole("request_time"):  # an answer without its request: it has no latency either
        rows, every = rows[times[rows] != np.iinfo(times.dtype).min], False
    null = np.iinfo(latency.dtype).min
    ends = _ends(latency, rows, null)
    if ends is None:
        return Grid(0, 1, [0], np.zeros((len(LAYERS), 0, 0), np.uint32), len(chosen.rows))
    # Rows are in order of their requests, so each interval of time is one run of them.
    first, last = (int(times[rows[end]]) for end in ends)
    width = min(max(width, 1), WIDEST, last - first + 1)
    step = -(-(last - first + 1) // width)
    width = -(-(last - first + 1) // step)
    places = before(times, rows, first + step * np.arange(width + 1))
    values = columns.values["cause"]
    hold = values.index("hold") if "hold" in values else len(values) + 1
    _, high = columns.range("latency_us") or (0, 0)
    size = int(bucket(np.array([high]))[0]) + 1
    counts = np.zeros((width, size, len(LAYERS)), np.uint32)
    for column in range(width):
        wanted()
        part = slice(int(places[column]), int(places[column + 1]))
        which = part if every else rows[part]  # a few thousand at a time, which fit a processor's cache
        here = latency[which]
        cell = bucket(here) * len(LAYERS) + (cause[which] == hold)
        cell = cell[here != null]
        counts[column] = np.bincount(cell, minlength=size * len(LAYERS)).reshape(size, len(LAYERS))
    filled = np.flatnonzero(counts.any(axis=(0, 2)))
    shortest, longest = int(filled[0]), int(filled[-1]) + 1
    edges = [edge(number) for number in range(shortest, longest + 1)]
    found = np.ascontiguousarray(counts[:, shortest:longest].transpose(2, 1, 0))
    return Grid(first, step, edges, found, len(chosen.rows) - int(found.sum(dtype=np.int64)))


def _ends(latency: np.ndarray, rows: np.ndarray, null: int) -> tuple[int, int] | None:
    """Where the first and the last row with a latency stand among some rows; None: there is none."""
    parts = list(blocks(len(rows)))
    for part in parts:
        there = latency[rows[part]] != null
        if there.any():
            break
    else:
        return None
    first = part.start + int(np.argmax(there))
    for part in reversed(parts):
        there = latency[rows[part]] != null
        if there.any():
            break
    return first, part.stop - 1 - int(np.argmax(there[::-1]))
