"""Group, join, and index rows by integer keys.

In: keys, arrays with one integer for each row. Out: arrays of row numbers, or a value for each group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kwire.analyzer.frame import arrow, spill

_WIDEST: Final = 1 << 62
"""Keys of several columns are combined into one number below it."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows by their keys: order[starts[i]:ends[i]] are the rows of group i, ascending; groups are in order of their
    keys."""

    order: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.at_least(1)

    def at_least(self, rows: float) -> Iterator[np.ndarray]:
        """Yield the rows of each group that has at least so many."""
        for number in np.flatnonzero(self.counts >= rows).tolist():
            yield self.order[self.starts[number] : self.ends[number]]

    @property
    def counts(self) -> np.ndarray:
        """int64[groups]: how many rows each group has."""
        return np.asarray(self.ends - self.starts)

    @property
    def first(self) -> np.ndarray:
        """int64[groups]: the first row of each group."""
        return np.asarray(self.order[self.starts])

    def numbers(self) -> np.ndarray:
        """int64[rows]: the group of each row."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self)), self.counts)
        return numbers

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum a column by group."""
        return np.asarray(np.add.reduceat(values[self.order], self.starts)) if len(self) else values[:0]


def group(*keys: np.ndarray) -> Groups:
    """Group rows by the combination of their keys."""
    if not len(keys[0]):
        none = np.zeros(0, np.int64)
        return Groups(none, none, none)
    single = _combine(keys)
    if single is not None and single.itemsize <= 2 and len(single) > spill.BLOCK:
        return _group_narrow(single)
    order = np.lexsort(tuple(reversed(keys))) if single is None else np.argsort(single, kind="stable")
    is_first = np.zeros(len(order), bool)
    is_first[0] = True
    for key in keys if single is None else (single,):
        sorted_key = key[order]
        is_first[1:] |= sorted_key[1:] != sorted_key[:-1]
    starts = np.flatnonzero(is_first)
    return Groups(order, starts, np.append(starts[1:], len(order)))


def split(rows: np.ndarray | None, *keys: np.ndarray, least: float = 1) -> Iterator[np.ndarray]:
    """Yield the rows of each group that has at least `least`, in order of the keys. Key k belongs to rows[k]; None:
    to row k."""
    if least > 1 and len(keys[0]) > spill.BLOCK:
        frequent = _frequent(keys, least)
        if frequent is not None:
            rows = frequent if rows is None else spill.take(rows, frequent)
            keys = tuple(spill.take(key, frequent) for key in keys)
    for positions in group(*keys).at_least(least):
        yield positions if rows is None else spill.take(rows, positions)


def rows_by_key(rows: np.ndarray, *keys: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Map each combination of keys, in ascending order, to its rows. Key k belongs to rows[k]."""
    groups = group(*keys)
    combinations = zip(*(key[groups.first].tolist() for key in keys), strict=True)
    ordered = spill.take(rows, groups.order)
    bounds = zip(groups.starts.tolist(), groups.ends.tolist(), strict=True)
    return {key: ordered[start:end] for key, (start, end) in zip(combinations, bounds, strict=True)}


def first_rows(*keys: np.ndarray) -> np.ndarray:
    """int64: the first row of each combination of keys, in their order."""
    return group(*keys).first


def sort_by(key: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """A key and columns in order of the key, stable. Rows come by time, so mostly nothing is sorted."""
    if not (key[1:] < key[:-1]).any():
        return key, *columns
    order = np.argsort(key, kind="stable")
    return tuple(spill.take(values, order) for values in (key, *columns))


def max_by(numbers: np.ndarray, values: np.ndarray, count: int, none: int) -> np.ndarray:
    """int64[count]: the greatest value of each group number, `none` where there is none greater."""
    out = np.full(count, none, np.int64)
    for block in spill.blocks(len(numbers)):
        # Of other types it takes ten times as long.
        np.maximum.at(out, numbers[block].astype(np.intp, copy=False), values[block].astype(np.int64, copy=False))
    return out


def sum_positive_by(numbers: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """float64[count]: the sum of the positive values of each group number."""
    out = np.zeros(count)
    for block in spill.blocks(len(numbers)):
        out += np.bincount(numbers[block], weights=np.maximum(values[block], 0), minlength=count)
    return out


def median_count(numbers: np.ndarray, size: int) -> float:
    """Median of how often each number from 0 to `size` - 1, or to the greatest one, occurs. `size` may be huge: a clock
    that jumps makes decades of windows, so only the numbers that occur take memory."""
    _, counts = np.unique(numbers, return_counts=True)
    counts.sort()
    total = max(size, int(numbers.max(initial=-1)) + 1)
    absent = total - len(counts)
    middle = [int(counts[rank - absent]) if rank >= absent else 0 for rank in ((total - 1) // 2, total // 2)]
    return sum(middle) / 2


def number_values(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values of keys that are not negative, ascending, and int32[n]: the position of each key among them."""
    top = int(keys.max(initial=-1)) + 1
    if top > 4 * len(keys) + (1 << 16):
        known, positions = np.unique(keys, return_inverse=True)
        return known, positions.astype(np.int32)
    is_used = np.zeros(top, np.bool_)
    is_used[keys] = True
    return np.flatnonzero(is_used), spill.take(np.cumsum(is_used, dtype=np.int32) - 1, keys)


# --- joins ------------------------------------------------------------------------------------------------------------


def left_join(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> np.ndarray:
    """int32[rows of left]: the first row of `right` with the same keys, -1 where there is none."""
    rows, size = len(left[0]), len(right[0])
    if not rows or not size:
        return spill.full(rows, -1, np.int32)
    low, high = int(right[0].min()), int(right[0].max())
    if high - low > 4 * size + (1 << 16):
        return _join_sorted(left, right, np.arange(rows), spill.full(rows, -1, np.int32))
    # Mostly the first row with the first key is the one, and nothing is sorted.
    first = spill.full(high - low + 1, 0, np.int32)
    for block in reversed(list(spill.blocks(size))):  # of rows with one key the last that is written stays
        first[right[0][block][::-1] - low] = np.arange(block.stop - 1, block.start - 1, -1)

    def candidates(block: slice) -> np.ndarray:
        key = left[0][block].astype(np.int64, copy=False)
        return np.asarray(first[np.clip(key, low, high) - low])

    result = spill.compute(rows, np.int32, candidates)

    def is_match(block: slice) -> Any:
        some = result[block]
        match = right[0][some] == left[0][block]
        for own, other in zip(left[1:], right[1:], strict=True):
            match &= other[some] == own[block]
        return match

    rest = spill.true_rows(~spill.compute(rows, np.bool_, is_match))
    if not len(rest):
        return result
    if len(left) == 1:
        result[rest] = -1
        return result
    return _join_sorted(left, right, rest, result)


def _join_sorted(
    left: Sequence[np.ndarray], right: Sequence[np.ndarray], rows: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Join some rows of `left` by searching in the sorted keys of `right`."""
    known = [_Ranks(key) for key in right]
    sizes = [ranks.count for ranks in known]
    if math.prod(sizes) >= _WIDEST:
        raise OverflowError("keys of a join have too many combinations")

    def combined(keys: Sequence[np.ndarray]) -> np.ndarray:
        key = np.zeros(len(keys[0]), np.int64)
        for ranks, part in zip(known, keys, strict=True):
            rank = ranks.of(part)
            key = np.where((key < 0) | (rank < 0), -1, key * ranks.count + rank)
        return key

    keys = spill.compute(len(right[0]), np.int64, lambda block: combined([key[block] for key in right]))
    order = np.argsort(keys, kind="stable")
    ordered = spill.take(keys, order)
    for block in spill.blocks(len(rows)):
        some = rows[block]
        own = combined([key[some] for key in left])
        match = order[np.minimum(np.searchsorted(ordered, own), len(order) - 1)]
        out[some] = np.where(keys[match] == own, match, -1)
    return out


class _Ranks:
    """Numbers values of a key: their distance from the least, or their position among those in use if they are far
    apart."""

    def __init__(self, key: np.ndarray) -> None:
        self._low = int(key.min())
        self.count = int(key.max()) - self._low + 1
        self._values: np.ndarray | None = None
        if self.count > 1 << 31:
            self._values = spill.distinct(key)
            self.count = len(self._values)

    def of(self, key: np.ndarray) -> np.ndarray:
        """int64[n]: the rank of each value, -1 where it has none."""
        if self._values is not None:
            ranks = np.minimum(np.searchsorted(self._values, key), self.count - 1)
            return np.where(self._values[ranks] == key, ranks, -1)
        ranks = key.astype(np.int64) - self._low
        return np.where((ranks >= 0) & (ranks < self.count), ranks, -1)


class OrdinalIndex:
    """Finds rows by connection (a number below `links`) and ordinal, which has few gaps. `rows`: the row of each pair;
    None: its position."""

    def __init__(self, link: np.ndarray, ordinal: np.ndarray, links: int, rows: np.ndarray | None = None) -> None:
        self._base = np.concatenate([[0], np.cumsum(max_by(link, ordinal, links, -1) + 1)])
        self._index = spill.full(int(self._base[-1]), -1, np.int32)
        for block in spill.blocks(len(link)):
            some = np.arange(block.start, block.stop) if rows is None else rows[block]
            self._index[self._base[link[block]] + ordinal[block]] = some

    def row(self, link: int, ordinal: int) -> int | None:
        """The row of one pair, or None."""
        if not 0 <= ordinal < self._base[link + 1] - self._base[link]:
            return None
        row = int(self._index[self._base[link] + ordinal])
        return row if row >= 0 else None

    def join(self, out: np.ndarray, link: np.ndarray, ordinal: np.ndarray, wanted: np.ndarray) -> None:
        """Write the row of each pair that is `wanted` and known into `out`."""
        for block in spill.blocks(len(out)):
            self._join_block(out[block], link[block], ordinal[block], wanted[block])

    def _join_block(self, out: np.ndarray, link: np.ndarray, ordinal: np.ndarray, wanted: np.ndarray) -> None:
        base = self._base
        wanted = wanted & (link >= 0) & (link < len(base) - 1)
        if wanted.all():  # mostly: then nothing is chosen, which takes longer than the rest
            position = base[link]
            position += ordinal
            if (position < base[1:][link]).all():
                out[:] = self._index[position]
                return
        chosen = np.flatnonzero(wanted)
        position = base[link[chosen]] + ordinal[chosen]
        is_inside = position < base[link[chosen] + 1]
        out[chosen[is_inside]] = self._index[position[is_inside]]


# --- keys -------------------------------------------------------------------------------------------------------------


def _frequent(keys: tuple[np.ndarray, ...], least: float) -> np.ndarray | None:
    """Rows whose combination of keys at least so many rows have; None if that is not known. Mostly there are few or
    none, and sorting values takes a tenth of ordering rows by them."""
    single = _combine(keys)
    if single is None or single.itemsize <= 2:
        return None
    ordered = spill.compute(len(single), single.dtype, lambda block: single[block])
    ordered.sort()
    apart = math.ceil(least) - 1
    repeated = spill.where(len(single) - apart, lambda block: ordered[apart:][block] == ordered[block])
    values = arrow.distinct(ordered[repeated])
    return spill.where(len(single), lambda block: arrow.among(single[block], values))


def _combine(keys: tuple[np.ndarray, ...]) -> np.ndarray | None:
    """One key that orders as all do, as narrow as possible (16 bits are sorted without comparing, 8 in half the time);
    None if their ranges are too wide."""
    spans, lows = [], []
    for key in keys:
        lows.append(int(key.min()))
        spans.append(int(key.max()) - lows[-1] + 1)
    whole = math.prod(spans)
    if whole >= _WIDEST:
        return None
    width = np.dtype(np.uint8 if whole < 1 << 8 else np.uint16 if whole < 1 << 16 else np.int64)

    def of_block(block: slice) -> np.ndarray:
        single: np.ndarray = np.zeros(block.stop - block.start, width)
        for key, low, span in zip(keys, lows, spans, strict=True):
            if span > 1:
                single = single * width.type(span) + np.subtract(key[block], low, dtype=np.int64).astype(width)
        return single

    return spill.compute(len(keys[0]), width, of_block)


def _group_narrow(key: np.ndarray) -> Groups:
    """`group` by one narrow key of many rows: sorts each block, and moves its rows to where those of their key
    belong."""
    block_counts = [np.bincount(key[block]) for block in spill.blocks(len(key))]
    counts = np.zeros(max(map(len, block_counts)), np.int64)
    for some in block_counts:
        counts[: len(some)] += some
    begins = np.cumsum(counts) - counts
    order, following = spill.empty(len(key), np.int64), begins.copy()
    for block, some in zip(spill.blocks(len(key)), block_counts, strict=True):
        sorted_rows = np.argsort(key[block], kind="stable")
        ahead = following[: len(some)] - (np.cumsum(some) - some)  # how far from where they stand in the block
        order[np.arange(len(sorted_rows)) + np.repeat(ahead, some)] = sorted_rows + block.start
        following[: len(some)] += some
    used = np.flatnonzero(counts)
    return Groups(order, begins[used], begins[used] + counts[used])


def busiest_window(times: np.ndarray, width_us: int) -> tuple[int, int, int]:
    """Of sorted times the window of that width with the most: (how many, index of the first, index past the last)."""
    if not len(times):
        return 0, 0, 0
    if times[-1] - times[0] <= width_us:
        return len(times), 0, len(times)
    ends = np.searchsorted(times, times + width_us, side="right")
    counts = ends - np.arange(len(times))
    start = int(counts.argmax())
    return int(counts[start]), start, int(ends[start])
