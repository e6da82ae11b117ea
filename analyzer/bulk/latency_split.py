"""Where the time of each exchange went, as far as it and its connection say.

In: the columns of a window's exchanges. Out: the columns of the parts, filled in place
(`kwire.analyzer.analysis.latency` says
what each is and what it adds itself). Rules: a row is worked out by itself; times are nanoseconds, parts microseconds,
each time rounded down to microseconds before it is subtracted, as the table `exchanges` has them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import errors
from kwire.captures.kernels import NULL, Int, Table, inline, kernel

HOLD, BROKER, NETWORK, THROTTLE, CLIENT, UNKNOWN = range(6)
"""Causes, as `kwire.analyzer.bulk.exchange_tables.CAUSES` has them."""

READING: Final = (apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS, apis.SHARE_FETCH)
"""APIs that read and write partitions."""
ACROSS: Final = (*READING, apis.SYNC_GROUP)
"""APIs whose exchanges tell how long others' were held, or need others'."""

_REPLICATED: Final = (
    apis.OFFSET_COMMIT,
    apis.TXN_OFFSET_COMMIT,
    apis.OFFSET_DELETE,
    apis.DELETE_GROUPS,
    apis.INIT_PRODUCER_ID,
    apis.ADD_PARTITIONS_TO_TXN,
    apis.ADD_OFFSETS_TO_TXN,
    apis.END_TXN,
)
"""Answered once replicas have what the coordinator wrote; what is refused is refused at once."""
# fmt: off
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
)
# fmt: on
"""Answered once the quorum of controllers, replicas or the other brokers have it, refused or not."""
_FIRST_USE: Final = (
    apis.DESCRIBE_SHARE_GROUP_OFFSETS,
    apis.ALTER_SHARE_GROUP_OFFSETS,
    apis.DELETE_SHARE_GROUP_OFFSETS,
)
"""The first of these makes an internal topic, which takes seconds."""
LONG_US: Final = 100_000
"""More than any of 7,057 answers took but for a few: then it was that, or a remote look-up."""
REMOTE_OFFSETS_VERSION: Final = 10
"""Of ListOffsets, from which on it may look into tiered storage (KIP-1005)."""
MEMBERS_US: Final = 5000
"""JoinGroup and SyncGroup answered sooner did not wait for others."""
COORDINATOR_US: Final = 2000
"""Of a wait for members, what the coordinator takes itself."""
REFUSED_LOGIN_US: Final = 100_000
"""`connection.failed.authentication.delay.ms`: how long a broker keeps a refused login waiting."""

KEYS: Final = 256
"""More APIs than there are."""
_NONE, _REPLICAS, _OTHERS, _FIRST, _OFFSETS, _JOINED, _SYNCED, _LOGIN = range(8)
_WAITS: Final = np.full(KEYS, _NONE, np.int64)
"""By API, what its answers wait for."""
_WAITS[list(_REPLICATED)] = _REPLICAS
_WAITS[[*_COMMITTED, *READING]] = _OTHERS
_WAITS[list(_FIRST_USE)] = _FIRST
_WAITS[apis.LIST_OFFSETS] = _OFFSETS
_WAITS[apis.JOIN_GROUP] = _JOINED
_WAITS[apis.SYNC_GROUP] = _SYNCED
_WAITS[apis.SASL_AUTHENTICATE] = _LOGIN


@inline
def _apart(later: Int, earlier: Int) -> Int:
    """Microseconds from one time to another, NULL where one of them is."""
    if later == NULL or earlier == NULL:
        return np.int64(NULL)
    return later // 1000 - earlier // 1000


@kernel
def wait_behind(x: Table, latency: Table, queue: Table) -> None:
    """Compute latency and queue time, int64[n], of exchanges x [X_COLUMNS, n].

    The latter is the wait behind earlier exchanges of the connection. NULL: there is no latency, or it would be
    negative."""
    for i in range(x.shape[1]):
        waited = _apart(x[s.X_RESPONSE_FIRST_NS, i], x[s.X_REQUEST_LAST_NS, i])
        if waited == NULL or waited < 0:
            latency[i] = NULL
            queue[i] = NULL
            continue
        latency[i] = waited
        behind = _apart(x[s.X_EARLIER_NS, i], x[s.X_REQUEST_LAST_NS, i])
        queue[i] = min(behind, waited) if behind > 0 else np.int64(0)  # NULL is below 0


@inline
def _held(x: Table, i: Int, served: Int) -> Int:
    """Return how long an answer was held on purpose, as far as its exchange tells; NULL: it does not."""
    key = x[s.X_API_KEY, i]
    none = np.int64(NULL)
    if key < 0 or key >= KEYS:
        return none
    waits = _WAITS[key]
    error = x[s.X_ERROR, i]
    read = x[s.X_RESPONSE_STATE, i] == s.DECODED_STATE and error != NULL
    if waits == _NONE:
        return np.int64(0)
    if waits == _REPLICAS:
        refused = read and error != errors.NONE and error != errors.REQUEST_TIMED_OUT
        return np.int64(0) if refused else none
    if waits == _FIRST:
        return np.int64(0) if served <= LONG_US else none
    if waits == _OFFSETS:
        return np.int64(0) if x[s.X_API_VERSION, i] < REMOTE_OFFSETS_VERSION or served <= LONG_US else none
    if waits == _LOGIN:
        return min(np.int64(REFUSED_LOGIN_US), served) if error == errors.SASL_AUTHENTICATION_FAILED else np.int64(0)
    if waits == _OTHERS:
        return none
    if served < MEMBERS_US:
        return np.int64(0)
    if not read:
        return none
    if error != errors.NONE:
        return np.int64(0)
    # The leader of a group brings the assignments: it waits for nobody but the replicas of the group's log.
    return none if waits == _SYNCED and x[s.X_ASSIGNMENTS, i] != 0 else served - COORDINATOR_US


@kernel
def measure(
    x: Table, latency: Table, queue: Table, muted: Table, connection: Table, near: Table, served: Table
) -> None:
    """All that follows from each connection alone, but for what is left for the broker. muted int64[n]: waited because
    of a throttle; connection int64[n], near int64[connections]: 1 where client and broker are one machine; `served`
    int64[n] becomes the latency from when the broker could begin, without the way there and back, NULL: unknown."""
    for i in range(x.shape[1]):
        if latency[i] == NULL:
            x[s.X_MUTED_US, i] = NULL
            x[s.X_PATH_DELAY_NS, i] = 0
            x[s.X_NETWORK_US, i] = NULL
            x[s.X_HOLD_US, i] = NULL
            served[i] = NULL
            continue
        own = latency[i] - queue[i] - muted[i]
        way = np.int64(0) if near[connection[i]] == 1 else min(x[s.X_PATH_DELAY_NS, i] // 1000, own)
        x[s.X_MUTED_US, i] = muted[i]
        x[s.X_PATH_DELAY_NS, i] = 1000 * way
        transfer = _apart(x[s.X_RESPONSE_LAST_NS, i], x[s.X_RESPONSE_FIRST_NS, i])
        asking = _apart(x[s.X_REQUEST_LAST_NS, i], x[s.X_REQUEST_FIRST_NS, i])
        # A clock that steps back while a message is under way leaves nothing to be said of that.
        x[s.X_NETWORK_US, i] = transfer + asking + way if transfer >= 0 and asking >= 0 else np.int64(NULL)
        served[i] = own - way
        x[s.X_HOLD_US, i] = _held(x, i, own - way) if x[s.X_STATUS, i] == s.ANSWERED else np.int64(NULL)


@kernel
def put_rest(x: Table, latency: Table, queue: Table) -> None:
    """Compute the broker's part of latencies and which part is the largest; of equal ones the first."""
    for i in range(x.shape[1]):
        total = _apart(x[s.X_RESPONSE_LAST_NS, i], x[s.X_REQUEST_FIRST_NS, i])
        x[s.X_BROKER_US, i] = NULL
        x[s.X_CAUSE, i] = UNKNOWN if x[s.X_STATUS, i] == s.ANSWERED else np.int64(NULL)
        if latency[i] == NULL or total < 0 or x[s.X_NETWORK_US, i] == NULL:
            continue
        muted, network, hold = x[s.X_MUTED_US, i], x[s.X_NETWORK_US, i], x[s.X_HOLD_US, i]
        cause = np.int64(HOLD)
        largest = np.int64(NULL)
        if hold != NULL:
            broker = total - queue[i] - muted - network - hold
            x[s.X_BROKER_US, i] = broker
            largest = hold
            if broker > largest:
                cause = np.int64(BROKER)
                largest = broker
        if network > largest:
            cause = np.int64(NETWORK)
            largest = network
        if muted > largest:
            cause = np.int64(THROTTLE)
            largest = muted
        if queue[i] > largest:
            cause = np.int64(CLIENT)
            largest = queue[i]
        if x[s.X_STATUS, i] == s.ANSWERED and (hold != NULL or 2 * largest > total):
            x[s.X_CAUSE, i] = cause
