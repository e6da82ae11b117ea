"""Rows of integers as the numbers that columns of tables are made of.

In: columns of exchanges and of their topic-partitions, window by window. Out: what is in them (how many are absent, the
least and the greatest), the same numbers as narrow as a column has them, and what follows from several of them. Rules:
`at` is where a window's rows begin among those of all; an absent number is 0 where it is narrow, and `marks` tells
where those are. Each kernel does in one pass what would be a pass for each step; `tests/analyzer/bulk/test_forming.py`
has their slow twins.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from analyzer.bulk import state as s
from captures.kernels import NULL, Array, Int, Table, inline, kernel

ABSENT, LEAST, GREATEST = range(3)
"""What is known of a column: how many numbers are absent, and the least and the greatest of the others."""

(
    T_REQUEST,
    T_REQUEST_END,
    T_RESPONSE,
    T_RESPONSE_END,
    T_LATENCY,
    T_TOTAL,
    T_QUEUE,
    T_THROTTLE,
    T_COLUMNS,
) = range(9)
"""What `timed` works out, in microseconds."""

_LARGEST: Final = (1 << 63) - 1


@kernel
def look(x: Table, which: Table, found: Table) -> None:
    """Into found[which[j]] of int64[columns, 3] what is known of the column which[j] of x[columns, n]: of one of which
    all is absent the least is the largest number there is."""
    n = x.shape[1]
    for j in range(len(which)):
        column = which[j]
        absent = np.int64(0)
        least = np.int64(_LARGEST)
        greatest = np.int64(NULL)
        for i in range(n):
            value = x[column, i]
            absent += np.int64(value == NULL)
            greatest = max(greatest, value)
            least = min(least, np.int64(_LARGEST) if value == NULL else value)
        found[column, ABSENT] = absent
        found[column, LEAST] = least
        found[column, GREATEST] = greatest


@kernel
def narrow(x: Table, which: Table, out: Array, at: Int) -> None:
    """out[j, at + i] = x[which[j], i], in as many bits as `out` has; absent ones are 0."""
    for j in range(len(which)):
        column = which[j]
        for i in range(x.shape[1]):
            out[j, at + i] = x[column, i]


@kernel
def marks(values: Table, bits: Array, at: Int) -> None:
    """Set the bits, from bit `at` on, of the numbers that are there, as Arrow wants them; they are 0 before."""
    for i in range(len(values)):
        if values[i] != NULL:
            bits[(at + i) >> 3] |= np.uint8(1) << np.uint8((at + i) & 7)


@inline
def _micros(nanos: Int) -> Int:
    return nanos // 1000 if nanos != NULL else np.int64(NULL)


@inline
def _apart(later: Int, earlier: Int) -> Int:
    return later - earlier if later != NULL and earlier != NULL else np.int64(NULL)


@kernel
def timed(x: Table, out: Table, backwards: Array, at: Int) -> Int:
    """Times and durations of exchanges x[X_COLUMNS, n] into out int64[T_COLUMNS, rows]. backwards bool[rows]: the
    response was captured before the end of its request, so there is no latency; returns how many of these are."""
    found = np.int64(0)
    for i in range(x.shape[1]):
        request = _micros(x[s.X_REQUEST_FIRST_NS, i])
        request_end = _micros(x[s.X_REQUEST_LAST_NS, i])
        response = _micros(x[s.X_RESPONSE_FIRST_NS, i])
        response_end = _micros(x[s.X_RESPONSE_LAST_NS, i])
        earlier = _micros(x[s.X_EARLIER_NS, i])
        throttle = x[s.X_THROTTLE, i]
        latency = _apart(response, request_end)
        wrong = latency < 0 and latency != NULL
        backwards[at + i] = wrong
        found += np.int64(wrong)
        if wrong:
            latency = np.int64(NULL)
        behind = np.int64(0)
        if earlier != NULL:
            # A request that nobody saw the end of has no latency either.
            behind = min(max(earlier - request_end, np.int64(0)), max(latency, np.int64(0)))
        out[T_REQUEST, at + i] = request
        out[T_REQUEST_END, at + i] = request_end
        out[T_RESPONSE, at + i] = response
        out[T_RESPONSE_END, at + i] = response_end
        out[T_LATENCY, at + i] = latency
        out[T_TOTAL, at + i] = _apart(response_end, request)
        out[T_QUEUE, at + i] = behind if latency != NULL else np.int64(NULL)
        out[T_THROTTLE, at + i] = throttle * 1000 if throttle != NULL else np.int64(NULL)
    return found


@kernel
def compact(values: Table, place: Array, local: Array) -> Int:
    """Number those that are in use of the numbers below len(place), in their order: place int32[numbers] becomes which
    of them each is, -1 where it is not in use; local int32[n]: the same of each value, 0 where it is absent. Returns
    how many are in use."""
    for k in range(len(place)):
        place[k] = -1
    for i in range(len(values)):
        if 0 <= values[i] < len(place):
            place[values[i]] = 0
    used = np.int32(0)
    for k in range(len(place)):
        if place[k] == 0:
            place[k] = used
            used += np.int32(1)
    for i in range(len(values)):
        local[i] = place[values[i]] if 0 <= values[i] < len(place) else np.int32(0)
    return np.int64(used)


@kernel
def take(table: Array, local: Array, out: Array) -> None:
    """out[j, i] = table[j, local[i]], all int32."""
    for j in range(table.shape[0]):
        for i in range(len(local)):
            out[j, i] = table[j, local[i]]


@kernel
def list_ends(local: Array, values: Table, ends: Table, offsets: Array) -> Int:
    """offsets int32[n + 1]: where the list of each row begins, if they stand one after the other; row i has none where
    values[i] is absent, else the list local[i] of those that end at `ends`. Returns how many items these have."""
    total = np.int64(0)
    for i in range(len(local)):
        offsets[i] = total
        if values[i] != NULL:
            k = local[i]
            total += ends[k] - (ends[k - 1] if k > 0 else np.int64(0))
    offsets[len(local)] = total
    return total


@kernel
def list_items(local: Array, values: Table, ends: Table, items: Array, out: Array) -> None:
    """The items of those lists, one after the other: out int32[`list_ends`]; `items` int32: those of the lists that end
    at `ends`."""
    at = np.int64(0)
    for i in range(len(local)):
        if values[i] != NULL:
            k = local[i]
            for j in range(ends[k - 1] if k > 0 else np.int64(0), ends[k]):
                out[at] = items[j]
                at += 1


@kernel
def belong(p: Table, x: Table, owner: Table, kinds: Table, fetch: Int, out: Table, at: Int) -> None:
    """Of topic-partitions p[P_COLUMNS, m] what their exchanges x[X_COLUMNS, n] say, into out int64[4, rows]: ordinals
    of request and response, how far behind a Fetch (`fetch`: its key) is, and what their offset is, kinds[key]."""
    for i in range(p.shape[1]):
        of = owner[i]
        key = x[s.X_API_KEY, of]
        following, offset, watermark = p[s.P_FOLLOWING, i], p[s.P_OFFSET, i], p[s.P_HIGH_WATERMARK, i]
        after = following if following != NULL else offset
        out[0, at + i] = x[s.X_EXCHANGE, of]
        out[1, at + i] = x[s.X_REPLY, of]
        out[2, at + i] = _apart(watermark, after) if key == fetch else np.int64(NULL)
        out[3, at + i] = kinds[key] if offset != NULL and 0 <= key < len(kinds) else np.int64(NULL)
