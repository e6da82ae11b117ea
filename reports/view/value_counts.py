"""Counts and quantiles over many rows: functions from arrays to arrays, a block at a time.

Rules: a block fits the processor's cache; between two blocks a request whose client has disconnected is cancelled
(`check_cancelled`).
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
"""Values up to which codes are compared with each; more are looked up in a table."""


class RequestCancelledError(Exception):
    """The client has disconnected; raised to stop its request."""


_gone: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("_gone", default=None)


@contextlib.contextmanager
def cancellable(gone: threading.Event) -> Iterator[None]:
    """Cancel the work inside with RequestCancelledError once `gone` is set."""
    token = _gone.set(gone)
    try:
        yield
    finally:
        _gone.reset(token)


def check_cancelled() -> None:
    """Raise RequestCancelledError if the client has disconnected."""
    gone = _gone.get()
    if gone is not None and gone.is_set():
        raise RequestCancelledError


def blocks(n: int, least: int = 0) -> Iterator[slice]:
    """Split 0 ... n into slices of `BLOCK` rows, or `least` if that is more."""
    size = max(least, BLOCK)
    for start in range(0, n, size):
        check_cancelled()
        yield slice(start, min(start + size, n))


def look_up(passed: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Tell for each code whether its value passed (bool[values]): bool[n]; code -1, null, does not."""
    true = np.flatnonzero(passed).tolist()
    if not true:
        return np.zeros(len(codes), np.bool_)
    if len(true) <= _FEW:
        passing = codes == true[0]
        for code in true[1:]:
            passing |= codes == code
        return np.asarray(passing)
    false = np.flatnonzero(~passed).tolist()
    if len(false) <= _FEW:
        passing = codes >= 0
        for code in false:
            passing &= codes != code
        return np.asarray(passing)
    table = np.append(passed, False)
    passing = np.empty(len(codes), np.bool_)
    for part in blocks(len(codes)):
        passing[part] = table[codes[part]]
    return passing


def count_codes(codes: np.ndarray, rows: np.ndarray | None, size: int) -> np.ndarray:
    """Count each code among some rows or all: int64[size]; code -1 is not counted."""
    counts = np.zeros(size + 1, np.int64)
    short = codes.itemsize <= 2
    for part in blocks(len(codes) if rows is None else len(rows), 4 * size):
        here = codes[part] if rows is None else codes[rows[part]]
        if short:  # -1 as an unsigned number is larger than all codes
            frequencies = np.bincount(here.view(f"u{here.itemsize}"))[:size]
            counts[1 : 1 + len(frequencies)] += frequencies
        else:
            counts += np.bincount(here.astype(np.int64) + 1, minlength=size + 1)
    return counts[1:]


def count_before(times: np.ndarray, rows: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Count the rows before each moment: int64. The rows are in order of their times, which are not gathered."""
    low, high = np.zeros(len(moments), np.int64), np.full(len(moments), len(rows))
    while (low < high).any():
        middle = (low + high) >> 1
        less = (low < high) & (times[rows[np.minimum(middle, len(rows) - 1)]] < moments)
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    return low


_CELLS: Final = 1 << 16
"""Intervals in which numbers are counted to locate quantiles."""


def quantiles(parts: Callable[[], Iterator[np.ndarray]], high: int, shares: tuple[float, ...]) -> list[float] | None:
    """Get quantiles, interpolated like Spark's `percentile`; None if there are no numbers. `parts` is called twice, and
    returns the numbers, from 0 to `high`, in pieces."""
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
    candidates = np.sort(np.concatenate([part[near[part >> shift]] for part in parts()]))
    # Among the candidates a cell's numbers come after those of the selected cells before it.
    before = np.cumsum(np.where(near, counts, 0)) - counts
    values = {
        rank: int(candidates[rank - (ends[cell] - counts[cell]) + before[cell]])
        for rank, cell in zip(ranks, cells.tolist(), strict=True)
    }
    result = []
    for place in places:
        low = int(place)
        result.append(values[low] + (values[min(low + 1, n - 1)] - values[low]) * (place - low))
    return result
