"""Rows put together by what they have in common: arrays in, arrays out.

Keys are whole numbers, one a row in each array. Nothing here knows what a row is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np


def dense(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different values of keys that are not negative, and for each key its number among them, int32."""
    top = int(keys.max(initial=-1)) + 1
    if top > 4 * len(keys) + (1 << 16):
        known, at = np.unique(keys, return_inverse=True)
        return known, at.astype(np.int32)
    there = np.zeros(top, np.bool_)
    there[keys] = True
    return np.flatnonzero(there), (np.cumsum(there, dtype=np.int32) - 1)[keys]


def highest(place: np.ndarray, values: np.ndarray, count: int, none: int) -> np.ndarray:
    """int64[count]: the highest value at each place, `none` where there is none higher."""
    out = np.full(count, none, np.int64)
    # Of other types it takes ten times as long.
    np.maximum.at(out, place.astype(np.intp, copy=False), values.astype(np.int64, copy=False))
    return out


def indexed(rows: np.ndarray, link: np.ndarray, ordinal: np.ndarray, links: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows by connection (a number below `links`) and ordinal: row = index[base[link] + ordinal], -1: none."""
    base = np.concatenate([[0], np.cumsum(highest(link, ordinal, links, -1) + 1)])
    index = np.full(int(base[-1]), -1, np.int32)
    place = base[link]
    place += ordinal
    index[place] = rows
    return index, base


def put_owners(
    out: np.ndarray, known: tuple[np.ndarray, np.ndarray], link: np.ndarray, ordinal: np.ndarray, wanted: np.ndarray
) -> None:
    """Of rows that are `wanted` the exchange; `known`: as `indexed` gives it."""
    index, base = known
    wanted = wanted & (link >= 0) & (link < len(base) - 1)
    if wanted.all():  # mostly: then nothing is chosen, which takes longer than the rest
        place = base[link]
        place += ordinal
        if (place < base[1:][link]).all():
            out[:] = index[place]
            return
    chosen = np.flatnonzero(wanted)
    place = base[link[chosen]] + ordinal[chosen]
    inside = place < base[link[chosen] + 1]
    out[chosen[inside]] = index[place[inside]]


def grouped(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows by their keys: (order, starts, ends) so that order[starts[i]:ends[i]] are the rows of one combination, in
    their order."""
    if not len(keys[0]):
        none = np.zeros(0, np.int64)
        return none, none, none
    one = _as_one(keys)
    order = np.lexsort(tuple(reversed(keys))) if one is None else np.argsort(one, kind="stable")
    change = np.zeros(len(order), bool)
    change[0] = True
    for key in keys if one is None else (one,):
        sorted_key = key[order]
        change[1:] |= sorted_key[1:] != sorted_key[:-1]
    starts = np.flatnonzero(change)
    return order, starts, np.append(starts[1:], len(order))


def parted(rows: np.ndarray, *keys: np.ndarray, least: float = 1) -> Iterator[np.ndarray]:
    """The rows of each combination of keys that has at least so many, in order of the keys. A key has a value a row."""
    order, starts, ends = grouped(*keys)
    for number in np.flatnonzero(ends - starts >= least).tolist():
        yield rows[order[starts[number] : ends[number]]]


def _as_one(keys: tuple[np.ndarray, ...]) -> np.ndarray | None:
    """Keys as one that orders as they do, as narrow as can be (16 bits are sorted without comparing, 8 in half the
    time); None where their spans are too wide."""
    spans, lows = [], []
    for key in keys:
        lows.append(int(key.min()))
        spans.append(int(key.max()) - lows[-1] + 1)
    whole = math.prod(spans)
    if whole >= 1 << 62:
        return None
    width = np.dtype(np.uint8 if whole < 1 << 8 else np.uint16 if whole < 1 << 16 else np.int64)
    one: np.ndarray = np.zeros(len(keys[0]), width)
    for key, low, span in zip(keys, lows, spans, strict=True):
        if span > 1:
            one = one * width.type(span) + (key - low).astype(width)
    return one


def busiest(times: np.ndarray, width_us: int) -> tuple[int, int, int]:
    """Of sorted times the window of that width with the most: (how many, the first's index, one past the last's)."""
    if not len(times):
        return 0, 0, 0
    if times[-1] - times[0] <= width_us:
        return len(times), 0, len(times)
    ends = np.searchsorted(times, times + width_us, side="right")
    counts = ends - np.arange(len(times))
    at = int(counts.argmax())
    return int(counts[at]), at, int(ends[at])
