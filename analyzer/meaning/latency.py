"""Where the time of each exchange went: behind others, a throttle, the network, the broker's waiting, its work.

In: windows in order, each once. Out: the same windows with `muted_us`, `network_us`, `hold_us`, `broker_us` and `cause`
of their exchanges filled, in place. Rules: queue, muted, network, hold and broker add up to `total_us` exactly where
all are known, and none is negative; where it cannot be told how long the broker waited on purpose, `hold_us` and
`broker_us` are NULL. What is said of an exchange follows from it and those completed before it.

`measure` asks nothing of other connections; `decide` does, for the APIs of `ACROSS`. Where a capture point's
connections are shared out, shares measure, and what is across them is decided where their facts come together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from analyzer import arrow
from analyzer.bulk import state as s
from analyzer.bulk.rows import Exchanges, Window
from analyzer.columns import CAUSES, latency_us, queue_us
from analyzer.meaning.sessions import Sessions
from analyzer.protocol import errors
from analyzer.protocol import names as apis

HOLD, BROKER, NETWORK, THROTTLE, CLIENT, UNKNOWN = range(len(CAUSES))

ACROSS: Final = (apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS, apis.SHARE_FETCH)
"""APIs whose exchanges tell how long others' were held, or need others'."""

_REPLICATED: Final = (
    apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT, apis.OFFSET_DELETE, apis.DELETE_GROUPS, apis.INIT_PRODUCER_ID,
    apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN,
)  # fmt: skip
"""Answered once replicas have what the coordinator wrote; what is refused is refused at once."""
_COMMITTED: Final = (
    apis.WRITE_TXN_MARKERS, apis.DELETE_RECORDS, apis.ELECT_LEADERS, apis.CREATE_TOPICS, apis.CREATE_PARTITIONS,
    apis.DELETE_TOPICS, apis.ALTER_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS, apis.ALTER_REPLICA_LOG_DIRS,
    apis.ALTER_PARTITION_REASSIGNMENTS, apis.CREATE_ACLS, apis.DELETE_ACLS, apis.CREATE_DELEGATION_TOKEN,
    apis.RENEW_DELEGATION_TOKEN, apis.EXPIRE_DELEGATION_TOKEN, apis.ALTER_CLIENT_QUOTAS,
    apis.ALTER_USER_SCRAM_CREDENTIALS, apis.UPDATE_FEATURES, apis.ENVELOPE, apis.BROKER_REGISTRATION,
    apis.BROKER_HEARTBEAT, apis.UNREGISTER_BROKER, apis.ALTER_PARTITION, apis.CONTROLLER_REGISTRATION,
    apis.ASSIGN_REPLICAS_TO_DIRS, apis.ALLOCATE_PRODUCER_IDS, apis.CONTROLLED_SHUTDOWN, apis.ADD_RAFT_VOTER,
    apis.REMOVE_RAFT_VOTER, apis.UPDATE_RAFT_VOTER, apis.WRITE_SHARE_GROUP_STATE, apis.INITIALIZE_SHARE_GROUP_STATE,
    apis.DELETE_SHARE_GROUP_STATE, apis.SHARE_ACKNOWLEDGE,
)  # fmt: skip
"""Answered once the quorum of controllers, replicas or the other brokers have it, refused or not."""
_FIRST_USE: Final = (
    apis.DESCRIBE_SHARE_GROUP_OFFSETS, apis.ALTER_SHARE_GROUP_OFFSETS, apis.DELETE_SHARE_GROUP_OFFSETS,
)  # fmt: skip
"""The first of these makes an internal topic, which takes seconds."""
LONG_US: Final = 100_000
"""More than any of 7,057 answers took but for a few [measured: FINDINGS 2.2]: then it was that, or a remote look-up."""
REMOTE_OFFSETS_VERSION: Final = 10
"""Of ListOffsets, from which on it may look into tiered storage (KIP-1005)."""

MEMBERS_US: Final = 5000
"""JoinGroup and SyncGroup answered sooner did not wait for others [measured: FINDINGS 4]."""
COORDINATOR_US: Final = 2000
"""Of a wait for members, what the coordinator takes itself."""
REFUSED_LOGIN_US: Final = 100_000
"""`connection.failed.authentication.delay.ms`: how long a broker keeps a refused login waiting."""

THROTTLED_AFTER: Final = 2
"""Version of ApiVersions from which on brokers answer first and keep silent afterwards (KIP-219, Kafka 2.0)."""
_SPAN: Final = 1 << 41
"""Microseconds that pauses of one window may be apart: 25 days, as long as an int32 of milliseconds."""


class Latency:
    """The parts of latencies of one capture point; `sessions` are those of its fetches."""

    def __init__(self) -> None:
        self._mutes = _Mutes()
        self.sessions = Sessions()

    def take(self, window: Window) -> Window:
        """One window with all parts; before anything is filtered out of it."""
        x = _to_be_filled(window)
        latency, queue = self._measure(window, x)
        self._decide(window, x, latency, queue)
        _put_rest(x, latency, queue)
        return _with(window, x)

    def measure(self, window: Window) -> Window:
        """One window of a share of the connections: all but what is across connections."""
        x = _to_be_filled(window)
        _put_rest(x, *self._measure(window, x))
        return _with(window, x)

    def decide(self, window: Window) -> Window:
        """One window of facts of all shares: what is across connections, of exchanges that were measured."""
        x = _to_be_filled(window)
        latency, _ = latency_us(x)
        queue = queue_us(x, latency)
        self._decide(window, x, latency, queue)
        _put_rest(x, latency, queue)
        return _with(window, x)

    def _measure(self, window: Window, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All that follows from each connection alone, but for what is left for the broker; latencies and queues."""
        latency, _ = latency_us(x)
        queue = queue_us(x, latency)
        known = latency != s.NULL
        muted = self._mutes.take(window, latency, queue)
        x[s.X_MUTED_US] = np.where(known, muted, s.NULL)
        way = np.where(_on_one_machine(window.every), 0, x[s.X_WAY_NS] // 1000)
        x[s.X_WAY_NS] = 1000 * np.where(known, np.minimum(way, latency - queue - muted), 0)
        ends = x[s.X_REQUEST_FIRST_NS], x[s.X_REQUEST_LAST_NS], x[s.X_RESPONSE_FIRST_NS], x[s.X_RESPONSE_LAST_NS]
        asked, asked_end, answered, answered_end = map(arrow.micros, ends)
        transfers = asked_end - asked + answered_end - answered
        whole = known & (answered_end != s.NULL)
        x[s.X_NETWORK_US] = np.where(whole, transfers + x[s.X_WAY_NS] // 1000, s.NULL)
        served = _served(x, latency, queue)
        x[s.X_HOLD_US] = np.where(known & (x[s.X_STATUS] == s.ANSWERED), _held_alone(x, served), s.NULL)
        return latency, queue

    def _decide(self, window: Window, x: np.ndarray, latency: np.ndarray, queue: np.ndarray) -> None:
        rows = np.flatnonzero(is_across(x))
        before = np.where(latency == s.NULL, 0, queue + x[s.X_MUTED_US])
        held = self.sessions.take(window, rows, _served(x, latency, queue), x[s.X_REQUEST_LAST_NS] + 1000 * before)
        x[s.X_HOLD_US, rows] = np.where(latency[rows] == s.NULL, s.NULL, held)


def is_across(x: np.ndarray) -> np.ndarray:
    """bool[n]: which exchanges are decided where all connections come together. x int64[X_COLUMNS, n]."""
    whole = (x[s.X_REQUEST_STATE] == s.DECODED_STATE) & (x[s.X_RESPONSE_STATE] == s.DECODED_STATE)
    found: np.ndarray = _of(x, ACROSS) & (x[s.X_STATUS] == s.ANSWERED) & whole
    return found


def _to_be_filled(window: Window) -> np.ndarray:
    """The columns of a window, of which those are still to be filled that nobody reads before: they are where nobody
    else has them, for they are hundreds of megabytes in all."""
    x = window.every.columns
    if not x.flags.owndata:
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
    wanted = np.zeros(_APIS + 1, np.bool_)
    wanted[list(keys)] = True
    key = x[s.X_API_KEY]
    found: np.ndarray = wanted[np.where((key >= 0) & (key < _APIS), key, _APIS)]
    return found


_APIS: Final = 256
"""More than there are."""


def _served(x: np.ndarray, latency: np.ndarray, queue: np.ndarray) -> np.ndarray:
    """int64[n]: latencies from when the broker could begin, without the way to it and back; NULL where unknown."""
    rest = latency - queue - x[s.X_MUTED_US] - x[s.X_WAY_NS] // 1000
    return np.where(latency == s.NULL, s.NULL, rest)


def _on_one_machine(exchanges: Exchanges) -> np.ndarray:
    """bool[n]: client and broker have one address, so there is no way between them."""
    used = arrow.distinct(exchanges.connection)
    ends = exchanges.names.ends
    same = np.array([ends[number][0] == ends[number][2] for number in used.tolist()], np.bool_)
    found: np.ndarray = same[np.searchsorted(used, exchanges.connection)]
    return found


def _held_alone(x: np.ndarray, served: np.ndarray) -> np.ndarray:
    """int64[n]: how long each exchange was held on purpose, as far as it says so itself; NULL: it does not."""
    error, version = x[s.X_ERROR], x[s.X_API_VERSION]
    hold = np.zeros(x.shape[1], np.int64)
    read = (x[s.X_RESPONSE_STATE] == s.DECODED_STATE) & (error != s.NULL)
    key = x[s.X_API_KEY]
    refused = read & (error != errors.NONE) & (error != errors.REQUEST_TIMED_OUT)
    hold[_of(x, _REPLICATED) & ~refused] = s.NULL
    hold[_of(x, _COMMITTED) | _of(x, ACROSS) | (key < 0) | (key >= _APIS)] = s.NULL
    hold[_of(x, _FIRST_USE) & (served > LONG_US)] = s.NULL
    listed = (key == apis.LIST_OFFSETS) & ((version < REMOTE_OFFSETS_VERSION) | (served <= LONG_US))
    hold[listed] = 0
    members = ((key == apis.JOIN_GROUP) | (key == apis.SYNC_GROUP)) & (served >= MEMBERS_US)
    hold = np.where(members & (error == errors.NONE), served - COORDINATOR_US, hold)
    # The leader of a group brings the assignments: it waits for nobody but the replicas of the group's log.
    leads = (key == apis.SYNC_GROUP) & (x[s.X_ASSIGNMENTS] != 0)
    hold[members & (~read | (leads & (error == errors.NONE)))] = s.NULL
    penalty = (key == apis.SASL_AUTHENTICATE) & (error == errors.SASL_AUTHENTICATION_FAILED)
    return np.where(penalty, np.minimum(REFUSED_LOGIN_US, served), hold)


def _put_rest(x: np.ndarray, latency: np.ndarray, queue: np.ndarray) -> None:
    """What is left for the broker, and which part is the largest."""
    total = arrow.minus(arrow.micros(x[s.X_RESPONSE_LAST_NS]), arrow.micros(x[s.X_REQUEST_FIRST_NS]))
    muted, network, hold = x[s.X_MUTED_US], x[s.X_NETWORK_US], x[s.X_HOLD_US]
    whole = (latency != s.NULL) & (total != s.NULL)
    told = whole & (hold != s.NULL)
    x[s.X_BROKER_US] = np.where(told, total - queue - muted - network - hold, s.NULL)
    parts = np.stack([hold, x[s.X_BROKER_US], network, muted, queue])
    parts[:2, ~told] = s.NULL
    largest = np.argmax(parts, axis=0)  # of equal ones the first
    clear = told | (2 * np.max(parts, axis=0) > total)
    cause = np.where(whole & clear, largest, UNKNOWN)
    x[s.X_CAUSE] = np.where(x[s.X_STATUS] == s.ANSWERED, cause, s.NULL)


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
        answered = arrow.micros(rows.column("response_time"))
        if self._any or throttle.any():
            self._any = True
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
        """bool[n] each: after whose answer the broker keeps silent, and whose latency has the throttle in it. Of a
        broker whose version is not known, an answer that came sooner than its throttle tells."""
        after = self._after[connection]
        inside = (throttle > 0) & known & ((after == 0) | ((after < 0) & (10 * rest >= 9 * throttle)))
        return (throttle > 0) & known & ~inside, inside

    def _pauses(self, connection: np.ndarray, pause: np.ndarray) -> np.ndarray:
        """int64[n]: the latest end of a pause that an earlier exchange of each one's connection ordered. `pause`: those
        that each orders, 0: none."""
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

        found = latest(before)
        until = np.zeros(len(connection), np.int64)
        until[order] = np.where(found > 0, found + base - 1, 0)
        lasts = np.append(begins[1:], True) if len(begins) else begins
        ends = latest(np.maximum(before, own))[lasts]
        self._until[first] = np.where(ends > 0, ends + base - 1, 0)
        return until

    def _make_room(self, connections: int) -> None:
        while len(self._until) < connections:
            self._until = np.concatenate([self._until, np.zeros_like(self._until)])
            self._after = np.concatenate([self._after, np.full_like(self._after, -1)])
