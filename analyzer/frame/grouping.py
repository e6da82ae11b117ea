"""Rows put together by what they have in common: arrays in, arrays out.

Keys are whole numbers, one a row in each array. Nothing here knows what a row is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from analyzer.frame import arrow, spill


def dense(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different values of keys that are not negative, and for each key its number among them, int32."""
    top = int(keys.max(initial=-1)) + 1
    if top > 4 * len(keys) + (1 << 16):
        known, at = np.unique(keys, return_inverse=True)
        return known, at.astype(np.int32)
    there = np.zeros(top, np.bool_)
    there[keys] = True
    return np.flatnonzero(there), spill.taken(np.cumsum(there, dtype=np.int32) - 1, keys)


def highest(place: np.ndarray, values: np.ndarray, count: int, none: int) -> np.ndarray:
    """int64[count]: the highest value at each place, `none` where there is none higher."""
    out = np.full(count, none, np.int64)
    for block in spill.blocks(len(place)):
        # Of other types it takes ten times as long.
        np.maximum.at(out, place[block].astype(np.intp, copy=False), values[block].astype(np.int64, copy=False))
    return out


def in_order(key: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """A key and what has a value for each of it, in order of the key; equal ones as they are. Rows come by time, so
    that mostly nothing is sorted."""
    if not (key[1:] < key[:-1]).any():
        return key, *others
    order = np.argsort(key, kind="stable")
    return tuple(spill.taken(values, order) for values in (key, *others))


def summed(place: np.ndarray, amounts: np.ndarray, count: int) -> np.ndarray:
    """float64[count]: the sum of the amounts at each place, of those that are positive."""
    out = np.zeros(count)
    for block in spill.blocks(len(place)):
        out += np.bincount(place[block], weights=np.maximum(amounts[block], 0), minlength=count)
    return out


def indexed(
    rows: np.ndarray | None, link: np.ndarray, ordinal: np.ndarray, links: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (None: row k is k) by connection (a number below `links`) and ordinal: row = index[base[link] + ordinal],
    -1: none."""
    base = np.concatenate([[0], np.cumsum(highest(link, ordinal, links, -1) + 1)])
    index = spill.full(int(base[-1]), -1, np.int32)
    for block in spill.blocks(len(link)):
        some = np.arange(block.start, block.stop) if rows is None else rows[block]
        index[base[link[block]] + ordinal[block]] = some
    return index, base


def put_owners(
    out: np.ndarray, known: tuple[np.ndarray, np.ndarray], link: np.ndarray, ordinal: np.ndarray, wanted: np.ndarray
) -> None:
    """Of rows that are `wanted` the exchange; `known`: as `indexed` gives it."""
    for block in spill.blocks(len(out)):
        _put_owners(out[block], known, link[block], ordinal[block], wanted[block])


def _put_owners(
    out: np.ndarray, known: tuple[np.ndarray, np.ndarray], link: np.ndarray, ordinal: np.ndarray, wanted: np.ndarray
) -> None:
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
    if one is not None and one.itemsize <= 2 and len(one) > spill.BLOCK:
        return _counted(one)
    order = np.lexsort(tuple(reversed(keys))) if one is None else np.argsort(one, kind="stable")
    change = np.zeros(len(order), bool)
    change[0] = True
    for key in keys if one is None else (one,):
        sorted_key = key[order]
        change[1:] |= sorted_key[1:] != sorted_key[:-1]
    starts = np.flatnonzero(change)
    return order, starts, np.append(starts[1:], len(order))


def first_of(*keys: np.ndarray) -> np.ndarray:
    """int64: the first row of each combination of keys, in their order."""
    order, starts, _ = grouped(*keys)
    found: np.ndarray = order[starts]
    return found


def numbered(*keys: np.ndarray) -> np.ndarray:
    """int64: which combination of its keys each row has, in their order."""
    order, starts, ends = grouped(*keys)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.repeat(np.arange(len(starts)), ends - starts)
    return numbers


def parted(rows: np.ndarray | None, *keys: np.ndarray, least: float = 1) -> Iterator[np.ndarray]:
    """The rows of each combination of keys that has at least so many, in order of the keys. A key has a value a row;
    None: row k is k."""
    if least > 1 and len(keys[0]) > spill.BLOCK:
        mine = _often(keys, least)
        if mine is not None:
            rows = mine if rows is None else spill.taken(rows, mine)
            keys = tuple(spill.taken(key, mine) for key in keys)
    order, starts, ends = grouped(*keys)
    for number in np.flatnonzero(ends - starts >= least).tolist():
        some = order[starts[number] : ends[number]]
        yield some if rows is None else spill.taken(rows, some)


def by(rows: np.ndarray, *keys: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """The rows (or what stands for each) of every combination of keys, to be looked up, in order of the keys."""
    order, starts, ends = grouped(*keys)
    heads = zip(*(key[order[starts]].tolist() for key in keys), strict=True)
    together = spill.taken(rows, order)
    each = zip(starts.tolist(), ends.tolist(), strict=True)
    return {head: together[start:end] for head, (start, end) in zip(heads, each, strict=True)}


def _often(keys: tuple[np.ndarray, ...], least: float) -> np.ndarray | None:
    """Rows whose combination of keys at least so many rows have: mostly few or none, which is soon known, for to sort
    values takes a tenth of what it takes to order rows by them. None: not known."""
    one = _as_one(keys)
    if one is None or one.itemsize <= 2:
        return None
    ordered = spill.made(len(one), one.dtype, lambda block: one[block])
    ordered.sort()
    apart = math.ceil(least) - 1
    again = spill.where(len(one) - apart, lambda block: ordered[apart:][block] == ordered[block])
    wanted = arrow.distinct(ordered[again])
    return spill.where(len(one), lambda block: arrow.among(one[block], wanted))


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

    def of_block(block: slice) -> np.ndarray:
        one: np.ndarray = np.zeros(block.stop - block.start, width)
        for key, low, span in zip(keys, lows, spans, strict=True):
            if span > 1:
                one = one * width.type(span) + np.subtract(key[block], low, dtype=np.int64).astype(width)
        return one

    return spill.made(len(keys[0]), width, of_block)


def _counted(key: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`grouped` by one narrow key, of many rows: those of a block, in order, go to where those of their key belong."""
    each = [np.bincount(key[block]) for block in spill.blocks(len(key))]
    counts = np.zeros(max(map(len, each)), np.int64)
    for some in each:
        counts[: len(some)] += some
    begins = np.cumsum(counts) - counts
    order, following = spill.empty(len(key), np.int64), begins.copy()
    for block, some in zip(spill.blocks(len(key)), each, strict=True):
        mine = np.argsort(key[block], kind="stable")
        ahead = following[: len(some)] - (np.cumsum(some) - some)  # how far from where they stand in the block
        order[np.arange(len(mine)) + np.repeat(ahead, some)] = mine + block.start
        following[: len(some)] += some
    used = np.flatnonzero(counts)
    return order, begins[used], begins[used] + counts[used]


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
