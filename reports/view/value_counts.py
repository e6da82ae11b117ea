"""Numbers of many rows: what passed, how often, which quantile. Functions from arrays to arrays, a block at a time.

Rule: a block fits a processor's cache, and between two of them a question that nobody waits for any more ends
(`wanted`).
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

BLOCK: Final = 1 << 17
"""Rows of a block."""

_FEW: Final = 3
"""So many values are compared one by one; more are looked up."""


class GivenUp(Exception):
    """Nobody waits for the answer any more."""


_gone: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("_gone", default=None)


@contextlib.contextmanager
def asked(gone: threading.Event) -> Iterator[None]:
    """What is counted in here ends with GivenUp once `gone` is set."""
    token = _gone.set(gone)
    try:
        yield
    finally:
        _gone.reset(token)


def wanted() -> None:
    """Raises GivenUp where nobody waits any more."""
    gone = _gone.get()
    if gone is not None and gone.is_set():
        raise GivenUp


def blocks(n: int, least: int = 0) -> Iterator[slice]:
    """0 ... n in parts."""
    size = max(least, BLOCK)
    for start in range(0, n, size):
        wanted()
        yield slice(start, min(start + size, n))


def spread(passed: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """bool[n]: whether the value of each code passed (bool[values]); -1, no value, never does."""
    true = np.flatnonzero(passed).tolist()
    if not true:
        return np.zeros(len(codes), np.bool_)
    if len(true) <= _FEW:
        found = codes == true[0]
        for code in true[1:]:
            found |= codes == code
        return np.asarray(found)
    false = np.flatnonzero(~passed).tolist()
    if len(false) <= _FEW:
        found = codes >= 0
        for code in false:
            found &= codes != code
        return np.asarray(found)
    table = np.append(passed, False)
    found = np.empty(len(codes), np.bool_)
    for part in blocks(len(codes)):
        found[part] = table[codes[part]]
    return found


def tally(codes: np.ndarray, rows: np.ndarray | None, size: int) -> np.ndarray:
    """int64[size]: how often each code occurs, among some rows or all; -1 is not counted."""
    counts = np.zeros(size + 1, np.int64)
    short = codes.itemsize <= 2
    for part in blocks(len(codes) if rows is None else len(rows), 4 * size):
        here = codes[part] if rows is None else codes[rows[part]]
        if short:  # -1 is the greatest number without a sign, behind all codes
            found = np.bincount(here.view(f"u{here.itemsize}"))[:size]
            counts[1 : 1 + len(found)] += found
        else:
            counts += np.bincount(here.astype(np.int64) + 1, minlength=size + 1)
    return counts[1:]


def before(times: np.ndarray, rows: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """int64: of each moment, how many of the rows, which are in order of their times, are before it. (Their times need
    not be gathered for that.)"""
    low, high = np.zeros(len(moments), np.int64), np.full(len(moments), len(rows))
    while (low < high).any():
        middle = (low + high) >> 1
        less = (low < high) & (times[rows[np.minimum(middle, len(rows) - 1)]] < moments)
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    return low


_CELLS: Final = 1 << 16
"""Numbers are counted in so many intervals to find those in which quantiles are."""


def quantiles(parts: Callable[[], Iterator[np.ndarray]], high: int, shares: tuple[float, ...]) -> list[float] | None:
    """Quantiles as Spark's `percentile` has them: between the two neighbours. `parts` gives the numbers, which are from
    0 to `high`, in pieces; twice. None: there are none."""
    shift = max(high.bit_length() - _CELLS.bit_length() + 1, 0)
    counts = np.zeros((high >> shift) + 1, np.int64)
    for part in parts():
        counts += np.bincount(part >> shift, minlength=len(counts))
    ends = np.cumsum(counts)
    n = int(ends[-1])
    if not n:
        return None
    places = [share * (n - 1) for share in shares]
    ranks = sorted({min(int(place) + step, n - 1) for place in places for step in (0, 1)})
    cells = np.searchsorted(ends, ranks, "right")
    near = np.zeros(len(counts), np.bool_)
    near[cells] = True
    found = np.sort(np.concatenate([part[near[part >> shift]] for part in parts()]))
    # Before the numbers of a cell stand, among those found, all of the cells before it that are looked at.
    before = np.cumsum(np.where(near, counts, 0)) - counts
    values = {
        rank: int(found[rank - (ends[cell] - counts[cell]) + before[cell]])
        for rank, cell in zip(ranks, cells.tolist(), strict=True)
    }
    told = []
    for place in places:
        low = int(place)
        told.append(values[low] + (values[min(low + 1, n - 1)] - values[low]) * (place - low))
    return told
