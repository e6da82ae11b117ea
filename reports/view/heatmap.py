"""Heatmap of latencies over time: counts of the chosen exchanges, long polls apart.

In: a view's tables and a selection. Out: a `Grid` of counts. Rules: a cell is an interval of times and one of
latencies, both in whole microseconds, so that a filter can choose exactly its exchanges; the axes end where the
exchanges do; counts are exact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import numpy as np

from kwire.analyzer.frame.counting import blocks, count_before
from kwire.analyzer.frame.spill import check_cancelled
from kwire.reports.view.tables import Selection, Tables

WIDEST: Final = 2_000
"""Intervals of time in a grid: more than a screen has pixels."""

LAYERS: Final = ("worked", "held", "errors")
"""Exchanges that the broker answered at once, and those that it held on purpose (`cause == hold`); of both, those with
errors."""

_APART: Final = 2
"""Layers that have each exchange once."""

_PER_DOUBLING: Final = 4
_LOWEST: Final = _PER_DOUBLING - 1
"""The bucket of all latencies below 4 us."""

_SHIFT: Final = 52 - 2
_BASE: Final = (1023 + 1) * _PER_DOUBLING


@dataclass(frozen=True)
class Grid:
    """Counts of exchanges by time and latency.

    counts   uint32[layers, buckets, columns]; column i is [first + i * step, first + (i + 1) * step) us since 1970,
             bucket j is [edges[j], edges[j + 1]) us
    without  chosen exchanges without a latency, which are in no cell
    """

    first: int
    step: int
    edges: list[int]
    counts: np.ndarray
    without: int

    def packed(self) -> bytes:
        """Serialise: a line of JSON, then the counts, little-endian."""
        _, buckets, columns = self.counts.shape
        about = {
            "first": self.first,
            "step": self.step,
            "edges": self.edges,
            "layers": LAYERS,
            "buckets": buckets,
            "columns": columns,
            "most": int(self.counts[:_APART].sum(axis=0, dtype=np.int64).max()) if self.counts.size else 0,
            "exchanges": int(self.counts[:_APART].sum(dtype=np.int64)),
            "without": self.without,
        }
        return json.dumps(about).encode() + b"\n" + self.counts.astype("<u4").tobytes()


def bucket(latency: np.ndarray) -> np.ndarray:
    """Number the bucket of each latency, four per doubling: int64[n]."""
    exponents: np.ndarray = latency.astype(np.float64).view(np.int64) >> _SHIFT  # and two bits of what follows
    return np.asarray(np.maximum(exponents - _BASE, _LOWEST))


def edge(number: int) -> int:
    """Get the lower edge of a bucket, in us."""
    if number <= _LOWEST:
        return 0
    return (_PER_DOUBLING + number % _PER_DOUBLING) << (number // _PER_DOUBLING - 1)


def grid(tables: Tables, chosen: Selection, width: int) -> Grid:
    """Count exchanges in at most `width` intervals of time."""
    columns, rows = tables.columns, chosen.rows
    times, latency, cause = columns.integers["request_time"], columns.integers["latency_us"], columns.codes["cause"]
    every = chosen.every
    if not columns.has_no_null("request_time"):  # a response without its request has no latency either
        rows, every = rows[times[rows] != np.iinfo(times.dtype).min], False
    null = np.iinfo(latency.dtype).min
    ends = _ends(latency, rows, null)
    if ends is None:
        return Grid(0, 1, [0], np.zeros((len(LAYERS), 0, 0), np.uint32), len(chosen.rows))
    # Rows are in order of their requests, so each interval of time is a slice.
    first, last = (int(times[rows[end]]) for end in ends)
    width = min(max(width, 1), WIDEST, last - first + 1)
    step = -(-(last - first + 1) // width)
    width = -(-(last - first + 1) // step)
    places = count_before(times, rows, first + step * np.arange(width + 1))
    values = columns.values["cause"]
    hold = values.index("hold") if "hold" in values else len(values) + 1
    _, high = columns.range("latency_us") or (0, 0)
    size = int(bucket(np.array([high]))[0]) + 1
    counts = np.zeros((width, size, len(LAYERS)), np.uint32)
    has_errors = np.diff(columns.errors.ends) > 0
    for column in range(width):
        check_cancelled()
        part = slice(int(places[column]), int(places[column + 1]))
        which = part if every else rows[part]  # a few thousand at a time fit the processor's cache
        here = latency[which]
        there, cell = here != null, bucket(here)
        pair = (cell * _APART + (cause[which] == hold))[there]
        counts[column, :, :_APART] = np.bincount(pair, minlength=size * _APART).reshape(size, _APART)
        if has_errors.any():
            failed = cell[there & has_errors[columns.errors.of[which]]]
            counts[column, :, _APART] = np.bincount(failed, minlength=size)
    filled = np.flatnonzero(counts.any(axis=(0, 2)))
    shortest, longest = int(filled[0]), int(filled[-1]) + 1
    edges = [edge(number) for number in range(shortest, longest + 1)]
    shown = np.ascontiguousarray(counts[:, shortest:longest].transpose(2, 1, 0))
    return Grid(first, step, edges, shown, len(chosen.rows) - int(shown[:_APART].sum(dtype=np.int64)))


def _ends(latency: np.ndarray, rows: np.ndarray, null: int) -> tuple[int, int] | None:
    """Find the positions of the first and last row with a latency; None if there is none."""
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
