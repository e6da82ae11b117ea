"""Derive columns of exchanges and topic-partitions that rows of integers do not have.

In: columns of exchanges and of their topic-partitions, window by window. Out: columns computed from several of them.
Rules: `at` is where a window's rows begin among those of all. Each kernel does in one pass what would be a pass for
each step; `tests/analyzer/bulk/test_cast.py` has their reference implementations. (Summaries of columns of any rows:
`captures/cast.py`.)
"""

from __future__ import annotations

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.captures.kernels import NULL, Array, Int, Table, inline, kernel

(
    T_REQUEST,
    T_REQUEST_END,
    T_RESPONSE,
    T_RESPONSE_END,
    T_LATENCY,
    T_TOTAL,
    T_QUEUE,
    T_THROTTLE,
    T_BROKER_LOW,
    T_BROKER_HIGH,
    T_COLUMNS,
) = range(11)
"""What `timed` works out, in microseconds."""


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
    count = np.int64(0)
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
        count += np.int64(wrong)
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
        total = _apart(response_end, request)
        out[T_TOTAL, at + i] = total if total >= 0 else np.int64(NULL)
        out[T_QUEUE, at + i] = behind if latency != NULL else np.int64(NULL)
        out[T_THROTTLE, at + i] = throttle * 1000 if throttle != NULL else np.int64(NULL)
        broker = x[s.X_BROKER_US, i]
        out[T_BROKER_LOW, at + i] = broker
        out[T_BROKER_HIGH, at + i] = broker
        spent = x[s.X_NETWORK_US, i]
        if broker == NULL and latency != NULL and total >= 0 and spent != NULL and x[s.X_MUTED_US, i] != NULL:
            rest = max(total - behind - x[s.X_MUTED_US, i] - spent, np.int64(0))
            wait = x[s.X_MAX_WAIT, i] if x[s.X_MAX_WAIT, i] != NULL else x[s.X_TIMEOUT, i]
            out[T_BROKER_LOW, at + i] = max(rest - 1000 * wait, np.int64(0)) if wait > 0 else np.int64(0)
            out[T_BROKER_HIGH, at + i] = rest
    return count


@kernel
def belong(p: Table, x: Table, owner: Table, kinds: Table, fetch: Int, out: Table, at: Int) -> None:
    """Derive columns of topic-partitions p[P_COLUMNS, m] from their exchanges x[X_COLUMNS, n], into int64[4, rows].

    They are ordinals of request and response, the lag of a Fetch (`fetch`: its key), and the kind of the offset,
    kinds[key]."""
    for i in range(p.shape[1]):
        of = owner[i]
        key = x[s.X_API_KEY, of]
        following, offset, watermark = p[s.P_FOLLOWING, i], p[s.P_OFFSET, i], p[s.P_HIGH_WATERMARK, i]
        after = following if following != NULL else offset
        out[0, at + i] = x[s.X_EXCHANGE, of]
        out[1, at + i] = x[s.X_REPLY, of]
        out[2, at + i] = _apart(watermark, after) if key == fetch else np.int64(NULL)
        out[3, at + i] = kinds[key] if offset != NULL and 0 <= key < len(kinds) else np.int64(NULL)
