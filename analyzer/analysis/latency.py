"""Parts of each exchange's latency: queue behind others, throttle, network, purgatory, the broker's work.

In: windows in order, each once. Out: the same windows with `muted_us`, `network_us`, `hold_us`, `broker_us` and `cause`
of their exchanges filled in, in place. Rules: queue, muted, network, hold and broker add up to `total_us` exactly if
all are known, and none is negative; if it is unknown how long the broker waited on purpose, `hold_us` and `broker_us`
are NULL. The parts of an exchange follow from it and those completed before it.

`measure` needs one connection alone; `decide` needs all, for the APIs of `latency_split.ACROSS`. If a capture point's
connections are divided into shards, shards measure, and the rest is decided where their facts come together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from kwire.analyzer.analysis.sessions import Sessions
from kwire.analyzer.bulk import latency_split as m
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Window
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.buffer_pool import lent
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import errors

THROTTLED_AFTER: Final = 2
"""Version of ApiVersions from which on brokers answer first and keep silent afterwards (KIP-219, Kafka 2.0)."""
_SPAN: Final = 1 << 41
"""Microseconds that pauses of one window may be apart: 25 days, as long as an int32 of milliseconds."""


class Latency:
    """The parts of latencies of one capture point; `sessions` are those of its fetches."""

    def __init__(self) -> None:
        self._mutes = _Mutes()
        self._leaders = _Leaders()
        self.sessions = Sessions()

    def take(self, window: Window) -> Window:
        """One window with all parts; before anything is filtered out of it."""
        x = _to_be_filled(window)
        latency, queue = _waited(x)
        served = self._measure(window, x, latency, queue)
        self._decide(window, x, latency, queue, served)
        m.put_rest(x, latency, queue)
        return _with(window, x)

    def named(self) -> Iterator[np.ndarray]:
        """Numbers of strings that are meant here from window to window."""
        yield self._leaders.named()
        yield from self.sessions.named()

    def measure(self, window: Window) -> Window:
        """One window of a share of the connections: all but what is across connections."""
        x = _to_be_filled(window)
        latency, queue = _waited(x)
        self._measure(window, x, latency, queue)
        m.put_rest(x, latency, queue)
        return _with(window, x)

    def decide(self, window: Window) -> Window:
        """Fill in how long exchanges were held that depend on other connections: one window of facts of all shards.

        The exchanges were measured; `put_rest` then fills in the broker's part, where their rows are.
        """
        x = _to_be_filled(window)
        latency, queue = _waited(x)
        rest = latency - queue - x[s.X_MUTED_US] - x[s.X_PATH_DELAY_NS] // 1000
        self._decide(window, x, latency, queue, np.where(latency == s.NULL, s.NULL, rest))
        return _with(window, x)

    def _measure(self, window: Window, x: np.ndarray, latency: np.ndarray, queue: np.ndarray) -> np.ndarray:
        """Fill in all that follows from each connection alone, but for the broker's part.

        Returns int64[n]: latencies from when the broker could begin, without the network; NULL if unknown.
        """
        muted = self._mutes.take(window, latency, queue)
        served = np.empty(len(latency), np.int64)
        connection = window.every.connection.copy()  # one kind of array, so one kernel: it may be read-only
        m.measure(x, latency, queue, muted, connection, _on_one_machine(window.every), served)
        return served

    def _decide(
        self, window: Window, x: np.ndarray, latency: np.ndarray, queue: np.ndarray, served: np.ndarray
    ) -> None:
        across = is_across(x)
        synced = across & (x[s.X_API_KEY] == apis.SYNC_GROUP)
        rows = np.flatnonzero(across ^ synced)
        unknown = latency == s.NULL
        taken_up = queue + x[s.X_MUTED_US]
        taken_up[unknown] = 0
        taken_up *= 1000
        taken_up += x[s.X_REQUEST_LAST_NS]
        held = self.sessions.take(window, rows, served, taken_up)
        held[unknown[rows]] = s.NULL
        if len(rows) == len(latency):
            x[s.X_HOLD_US] = held
        else:
            x[s.X_HOLD_US, rows] = held
        for row in np.flatnonzero(synced).tolist():
            x[s.X_HOLD_US, row] = self._leaders.held(x[:, row], int(taken_up[row]))


def put_rest(x: np.ndarray) -> None:
    """Fill in the broker's part of the latency and the cause, after `measure` and `decide`.

    x   int64[X_COLUMNS, n], filled in place
    """
    m.put_rest(x, *_waited(x))


def is_across(x: np.ndarray) -> np.ndarray:
    """bool[n]: which exchanges are decided where all connections come together. x int64[X_COLUMNS, n]."""
    whole = (x[s.X_REQUEST_STATE] == s.DECODED_STATE) & (x[s.X_RESPONSE_STATE] == s.DECODED_STATE)
    across: np.ndarray = _of(x, m.ACROSS) & (x[s.X_STATUS] == s.ANSWERED) & whole
    return across


def _to_be_filled(window: Window) -> np.ndarray:
    """Return the columns of a window, writable, without a copy if no one else holds them: they are hundreds of
    megabytes."""
    x = window.every.columns
    if not x.flags.owndata and not lent(x):
        return x.copy()
    x.flags.writeable = True
    return x


def _with(window: Window, x: np.ndarray) -> Window:
    """The window with other columns."""
    x.flags.writeable = False
    exchanges = replace(window.every, columns=x)
    return replace(window, every=exchanges, exchanges=exchanges, measured=True)


def _of(x: np.ndarray, keys: tuple[int, ...]) -> np.ndarray:
    """bool[n]: which exchanges are of some APIs."""
    return arrow.among(x[s.X_API_KEY], keys)


def _waited(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[n] each: latencies, and what of them was behind earlier requests of the connection; NULL where unknown."""
    latency, queue = np.empty((2, x.shape[1]), np.int64)
    m.wait_behind(x, latency, queue)
    return latency, queue


def _on_one_machine(exchanges: Exchanges) -> np.ndarray:
    """Return int64[connections]: 1 if client and broker have the same address, so that there is no network between
    them.

    Only connections of these exchanges are filled in.
    """
    ends = exchanges.names.ends
    near = np.zeros(len(ends), np.int64)
    near[exchanges.connection] = 1
    used = np.flatnonzero(near)
    near[used] = [ends[number][0] == ends[number][2] for number in used.tolist()]
    return near


MAX_GROUPS: Final = 1 << 16
"""Groups whose last generation is remembered."""


class _Leaders:
    """When leaders of groups were answered: that ends the wait of all members, for then the assignments are stored."""

    def __init__(self) -> None:
        self._answered: dict[int, tuple[int, int]] = {}  # by number of the group: generation, ns

    def named(self) -> np.ndarray:
        """Numbers of the groups."""
        return np.fromiter(self._answered, np.int64, len(self._answered))

    def held(self, row: np.ndarray, taken_up_ns: int) -> int:
        """Return how long a SyncGroup (int64[X_COLUMNS]) was held; it may be the leader's."""
        group, generation, hold = int(row[s.X_GROUP]), int(row[s.X_GENERATION]), int(row[s.X_HOLD_US])
        if row[s.X_ERROR] != errors.NONE or group == s.NULL:
            return hold
        if row[s.X_ASSIGNMENTS] > 0 and row[s.X_RESPONSE_FIRST_NS] != s.NULL:
            if group in self._answered or len(self._answered) < MAX_GROUPS:
                self._answered[group] = generation, int(row[s.X_RESPONSE_FIRST_NS])
            return hold
        known, answered_ns = self._answered.get(group, (s.NULL, s.NULL))
        if hold <= 0 or known != generation:
            return hold
        return min(hold, max(answered_ns - taken_up_ns, 0) // 1000)


class _Mutes:
    """Until when brokers do not read from connections that they throttle, and which brokers are older than that."""

    def __init__(self) -> None:
        self._until = np.zeros(64, np.int64)  # by connection: microseconds since 1970
        self._after = np.full(64, -1, np.int64)  # 1 throttled after the answer, 0 inside its latency
        self._any = False

    def take(self, window: Window, latency: np.ndarray, queue: np.ndarray) -> np.ndarray:
        """int64[n]: of each exchange of a window, what it waited because of a throttle."""
        self._make_room(len(window.names.connections))
        for connection, key, _, highest in window.offers.tolist():
            if key == apis.API_VERSIONS:
                self._after[connection] = highest >= THROTTLED_AFTER
        rows = window.every
        throttle = np.maximum(rows.column("throttle_ms"), 0) * 1000
        muted = np.zeros(len(rows), np.int64)
        if self._any or throttle.any():
            self._any = True
            answered = arrow.micros(rows.column("response_time"))
            after, inside = self._throttled(rows.connection, throttle, latency - queue, latency != s.NULL)
            until = self._pauses(rows.connection, np.where(after, answered + throttle, 0))
            begun = arrow.micros(rows.column("request_end")) + queue
            paused = np.clip(until - begun, 0, np.maximum(latency - queue, 0))
            muted = np.where(latency == s.NULL, 0, paused)
            muted += np.where(inside, np.minimum(throttle, latency - queue - muted), 0)
        ended = window.connections.number
        self._until[ended] = 0
        self._after[ended] = -1
        return muted

    def _throttled(
        self, connection: np.ndarray, throttle: np.ndarray, rest: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return bool[n] each: exchanges after whose response the broker is silent, and those with the throttle in the
        latency.

        If the broker's version is unknown, a response sooner than its throttle decides.
        """
        after = self._after[connection]
        inside = (throttle > 0) & known & ((after == 0) | ((after < 0) & (10 * rest >= 9 * throttle)))
        return (throttle > 0) & known & ~inside, inside

    def _pauses(self, connection: np.ndarray, pause: np.ndarray) -> np.ndarray:
        """Return int64[n]: the latest end of a pause by an earlier exchange of the same connection.

        pause   the end of the pause that each exchange begins, 0: none
        """
        order = np.argsort(connection, kind="stable")
        ordered, own = connection[order], pause[order]
        begins = np.append(True, ordered[1:] != ordered[:-1]) if len(ordered) else np.zeros(0, np.bool_)
        rank = np.cumsum(begins) - 1
        first = ordered[begins]
        # What came before each: the exchange before it on the connection, or what earlier windows left.
        before = np.where(begins, self._until[ordered], np.append(0, own[:-1]) if len(own) else own)
        base = int(min(before[before > 0].min(initial=1 << 62), own[own > 0].min(initial=1 << 62)))

        def latest(ends: np.ndarray) -> np.ndarray:
            """The largest so far on the connection: each connection's numbers are above those of the one before."""
            apart = np.where(ends > 0, np.minimum(ends - base + 1, _SPAN - 1), 0) + rank * _SPAN
            so_far: np.ndarray = np.maximum.accumulate(apart) - rank * _SPAN
            return so_far

        latest_ends = latest(before)
        until = np.zeros(len(connection), np.int64)
        until[order] = np.where(latest_ends > 0, latest_ends + base - 1, 0)
        lasts = np.append(begins[1:], True) if len(begins) else begins
        ends = latest(np.maximum(before, own))[lasts]
        self._until[first] = np.where(ends > 0, ends + base - 1, 0)
        return until

    def _make_room(self, connections: int) -> None:
        while len(self._until) < connections:
            self._until = np.concatenate([self._until, np.zeros_like(self._until)])
            self._after = np.concatenate([self._after, np.full_like(self._after, -1)])
