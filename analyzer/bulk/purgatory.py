"""Compute how long a broker waited on purpose: for data, or for replicas; and the readers' state.

In: answered exchanges of Fetch, ShareFetch, Produce and ListOffsets in the order in which they were completed, and
their topic-partitions by number. Out: how long each was held, or NULL; rows of readers that are over. Rules: the result
for an exchange follows from it and from those before it alone, so that cutting them into windows changes nothing; the
latest `RING` ends of a partition are kept, so memory is bounded by partitions and open sessions.

When an answer holds enough records, the question is whether they were there when the broker took the request up. Only
partitions that it brings records of matter: one that had some would be in it. A partition's end at that time is at
least what an answer before it said (high watermark, listed offset, end of records acknowledged), and at most the base
offset of records that were sent later.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.protocol import api_keys
from kwire.captures.kernels import NULL, Int, Table, inline, kernel

RING: Final = 8
"""Ends remembered of a partition: those that came while a Fetch waited, which are few, for the first lets it go."""

# What is known of a partition: how many replicas, whether a broker fetches it here, its end, and the ring.
(
    E_REPLICAS,
    E_FOLLOWED,
    E_COUNT,  # entries that were ever put into the ring
    E_NEWEST_NS,
    E_END,
    E_STABLE,
    E_FLOOR_NS,  # of entries that fell out of the ring
    E_FLOOR_END,
    E_FLOOR_STABLE,
    E_RING,
) = range(10)
(N_KNOWN_NS, N_END, N_STABLE, N_BASE, N_ASKED_NS, N_COLUMNS) = range(6)
E_COLUMNS: Final = E_RING + RING * N_COLUMNS

# A reader: a partition in a session. A row of the first table while it lasts, then of `gone`.
(
    S_NEXT,  # in the list of its session
    S_BEFORE,
    S_CHAIN,  # in the hash table
    S_SESSION,
    S_NUMBER,
    S_CONNECTION,
    S_ID,
    S_CLIENT,
    S_TOPIC,
    S_TOPIC_ID,
    S_PARTITION,
    S_FROM_NS,
    S_TO_NS,
    S_FIRST,
    S_OFFSET,
    S_LAST,
    S_RECORDS,  # NULL once they cannot be told
    S_BYTES,
    S_BEGUN,
    S_ISOLATION,
    S_COLUMNS,
) = range(21)

# A session: real ones have an id; fetches without one are one session of their connection.
(Z_NEXT, Z_ID, Z_HEAD, Z_WHOLE, Z_TO_NS, Z_COLUMNS) = range(6)

(V_ENTRY_FREE, V_ENTRIES, V_LIVE, V_SESSION_FREE, V_SESSIONS, V_GONE, V_COLUMNS) = range(7)

UNKNOWN, AT_END, BEHIND = 0, 1, 2
NO_SESSION: Final = 0
AT_ONCE_US: Final = 1500
"""An answer that came sooner was not held."""
SERVICE_US: Final = 1000
"""Of a time held, what the broker itself takes, and as much too early a wait may seem to end by rounding."""
PARKED_US: Final = 50_000
"""An error after so long, and no records, is a Fetch that was let go: a leader that changes, a broker that stops."""
REQUEST_TIMED_OUT, NOT_ENOUGH_AFTER_APPEND = 7, 20


class Rows(NamedTuple):
    """Exchanges of a window, and what they name.

    x           int64[X_COLUMNS, n], and parts, left int64[P_COLUMNS, m]: as `Exchanges` has columns, topic-partitions,
                and those that leave a session; read-only
    connection  [n]
    served      [n]: the latency but for queue, throttle and way, us; NULL: not known
    taken_up    [n]: when the broker could begin with it, ns
    firsts      [n + 1]: where the topic-partitions of each begin; numbers [m]: which partitions they are, -1: of none
    left_firsts, left_numbers: the same of `left`
    """

    x: Table
    connection: Table
    served: Table
    taken_up: Table
    parts: Table
    firsts: Table
    numbers: Table
    left_firsts: Table
    left_numbers: Table


class PurgatoryState(NamedTuple):
    """State between windows.

    ends         [partitions, E_COLUMNS]
    entries      [n, S_COLUMNS]: readers that last
    chains       [2^k]: hash table of them, -1 or the first entry
    sessions     [n, Z_COLUMNS]
    connections  [n, 2]: session of a connection, -1: none; whether its last ShareFetch brought nothing
    gone         [n, S_COLUMNS]: readers that are over, until the caller takes them
    v            [V_COLUMNS]
    """

    ends: Table
    entries: Table
    chains: Table
    sessions: Table
    connections: Table
    gone: Table
    v: Table


# --- ends of partitions -----------------------------------------------------------------------------------------------


@inline
def _forget_ends(ends: Table, at: Int) -> None:
    ends[at, E_COUNT] = 0
    for column in range(E_NEWEST_NS, E_RING):
        ends[at, column] = NULL


@inline
def _learn_end(ends: Table, at: Int, known_ns: Int, end: Int, stable: Int, base: Int, asked_ns: Int) -> None:
    """By `known_ns` the partition's end was at least `end` (`stable`: for who reads what is committed); before
    `asked_ns` it was at most `base`. NULL: not said."""
    if base == NULL and end <= ends[at, E_END] and stable <= ends[at, E_STABLE]:
        return
    count = ends[at, E_COUNT]
    entry = E_RING + count % RING * N_COLUMNS
    if count >= RING:
        ends[at, E_FLOOR_NS] = max(ends[at, E_FLOOR_NS], ends[at, entry + N_KNOWN_NS])
        ends[at, E_FLOOR_END] = max(ends[at, E_FLOOR_END], ends[at, entry + N_END])
        ends[at, E_FLOOR_STABLE] = max(ends[at, E_FLOOR_STABLE], ends[at, entry + N_STABLE])
    ends[at, entry + N_KNOWN_NS] = known_ns
    ends[at, entry + N_END] = end
    ends[at, entry + N_STABLE] = stable
    ends[at, entry + N_BASE] = base
    ends[at, entry + N_ASKED_NS] = asked_ns
    ends[at, E_COUNT] = count + 1
    ends[at, E_NEWEST_NS] = max(ends[at, E_NEWEST_NS], known_ns)
    ends[at, E_END] = max(ends[at, E_END], end)
    ends[at, E_STABLE] = max(ends[at, E_STABLE], stable)


@inline
def _was_there(ends: Table, at: Int, when_ns: Int, offset: Int, committed: Int) -> Int:
    """Whether there were records from `offset` on at `when_ns`: BEHIND, AT_END or UNKNOWN."""
    which = N_STABLE if committed == 1 else N_END
    lower = np.int64(NULL)
    upper = np.int64(NULL)
    if ends[at, E_FLOOR_NS] != NULL and ends[at, E_FLOOR_NS] <= when_ns:
        lower = ends[at, E_FLOOR_END - N_END + which]
    for i in range(min(ends[at, E_COUNT], RING)):
        entry = E_RING + i * N_COLUMNS
        if ends[at, entry + N_KNOWN_NS] <= when_ns:
            lower = max(lower, ends[at, entry + which])
        elif ends[at, entry + N_BASE] != NULL and ends[at, entry + N_ASKED_NS] >= when_ns:
            base = ends[at, entry + N_BASE]
            upper = base if upper == NULL else min(upper, base)
    if lower != NULL and offset < lower:
        return BEHIND
    if lower != NULL or (upper != NULL and offset >= upper):
        return AT_END
    return UNKNOWN


@inline
def _released(ends: Table, at: Int, when_ns: Int, offset: Int) -> Int:
    """By when the first records were there that came to a partition after `when_ns`: they were acknowledged then. NULL:
    they were not seen, or are not acknowledged yet."""
    earliest = np.int64(NULL)
    for i in range(min(ends[at, E_COUNT], RING)):
        entry = E_RING + i * N_COLUMNS
        later = ends[at, entry + N_ASKED_NS] >= when_ns
        if ends[at, entry + N_BASE] != NULL and ends[at, entry + N_BASE] >= offset and later:
            known = ends[at, entry + N_KNOWN_NS]
            earliest = known if earliest == NULL else min(earliest, known)
    return earliest


# --- sessions ---------------------------------------------------------------------------------------------------------


@inline
def _chain(know: PurgatoryState, session: Int, number: Int) -> Int:
    h = np.uint64(session) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(number) * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return np.int64(h & np.uint64(0x7FFFFFFFFFFFFFFF)) & (len(know.chains) - 1)


@inline
def _find(know: PurgatoryState, session: Int, number: Int) -> Int:
    """The reader of a partition in a session, or -1."""
    at = know.chains[_chain(know, session, number)]
    while at >= 0 and (know.entries[at, S_SESSION] != session or know.entries[at, S_NUMBER] != number):
        at = know.entries[at, S_CHAIN]
    return at


@inline
def _end_reader(know: PurgatoryState, at: Int) -> None:
    """A reader is over: out of the hash table, into `gone`. Its session's list is the caller's."""
    entries = know.entries
    session = entries[at, S_SESSION]
    chain = _chain(know, session, entries[at, S_NUMBER])
    if know.chains[chain] == at:
        know.chains[chain] = entries[at, S_CHAIN]
    else:
        before = know.chains[chain]
        while entries[before, S_CHAIN] != at:
            before = entries[before, S_CHAIN]
        entries[before, S_CHAIN] = entries[at, S_CHAIN]
    if entries[at, S_ID] != NULL:
        entries[at, S_TO_NS] = know.sessions[session, Z_TO_NS]
    to = know.v[V_GONE]
    know.v[V_GONE] = to + 1
    for column in range(S_COLUMNS):
        know.gone[to, column] = entries[at, column]
    entries[at, S_NEXT] = know.v[V_ENTRY_FREE]
    know.v[V_ENTRY_FREE] = at
    know.v[V_LIVE] -= 1


@inline
def _end_session(know: PurgatoryState, connection: Int) -> None:
    """The session of a connection is over, if it has one."""
    session = know.connections[connection, 0]
    if session < 0:
        return
    at = know.sessions[session, Z_HEAD]
    while at >= 0:
        following = know.entries[at, S_NEXT]
        _end_reader(know, at)
        at = following
    know.sessions[session, Z_NEXT] = know.v[V_SESSION_FREE]
    know.v[V_SESSION_FREE] = session
    know.connections[connection, 0] = -1


@inline
def _begin_session(know: PurgatoryState, connection: Int, identity: Int, whole: Int) -> Int:
    _end_session(know, connection)
    session = know.v[V_SESSION_FREE]
    if session >= 0:
        know.v[V_SESSION_FREE] = know.sessions[session, Z_NEXT]
    else:
        session = know.v[V_SESSIONS]
        know.v[V_SESSIONS] = session + 1
    know.sessions[session, Z_ID] = identity
    know.sessions[session, Z_HEAD] = -1
    know.sessions[session, Z_WHOLE] = whole
    know.sessions[session, Z_TO_NS] = NULL
    know.connections[connection, 0] = session
    return session


@inline
def _session_of(know: PurgatoryState, rows: Rows, i: Int) -> Int:
    """The session that a Fetch belongs to, begun if it is new or was not seen to begin."""
    connection = rows.connection[i]
    session = know.connections[connection, 0]
    full = rows.x[s.X_SESSION, i] == NULL or rows.x[s.X_SESSION_EPOCH, i] <= 0
    given = max(rows.x[s.X_SESSION_GIVEN, i], NO_SESSION)
    if not full:
        if session < 0 or know.sessions[session, Z_ID] != rows.x[s.X_SESSION, i]:
            session = _begin_session(know, connection, rows.x[s.X_SESSION, i], np.int64(0))
    elif given != NO_SESSION or session < 0 or know.sessions[session, Z_ID] != NO_SESSION:
        session = _begin_session(know, connection, given, np.int64(1))
    return session


@inline
def _name_readers(know: PurgatoryState, rows: Rows, i: Int, session: Int) -> None:
    """Update a session by a Fetch request: partitions that it asks for, and those that leave it."""
    entries = know.entries
    for j in range(rows.firsts[i], rows.firsts[i + 1]):
        if rows.parts[s.P_OFFSET, j] == NULL or rows.numbers[j] < 0:
            continue
        at = _find(know, session, rows.numbers[j])
        if at < 0:
            at = know.v[V_ENTRY_FREE]
            if at >= 0:
                know.v[V_ENTRY_FREE] = entries[at, S_NEXT]
            else:
                at = know.v[V_ENTRIES]
                know.v[V_ENTRIES] = at + 1
            know.v[V_LIVE] += 1
            chain = _chain(know, session, rows.numbers[j])
            entries[at, S_CHAIN] = know.chains[chain]
            know.chains[chain] = at
            first = know.sessions[session, Z_HEAD]
            entries[at, S_NEXT] = first
            entries[at, S_BEFORE] = -1
            if first >= 0:
                entries[first, S_BEFORE] = at
            know.sessions[session, Z_HEAD] = at
            entries[at, S_SESSION] = session
            entries[at, S_NUMBER] = rows.numbers[j]
            entries[at, S_CONNECTION] = rows.connection[i]
            identity = know.sessions[session, Z_ID]
            entries[at, S_ID] = identity if identity != NO_SESSION else NULL
            entries[at, S_CLIENT] = rows.x[s.X_CLIENT_ID, i]
            entries[at, S_TOPIC] = rows.parts[s.P_TOPIC, j]
            entries[at, S_TOPIC_ID] = rows.parts[s.P_TOPIC_ID, j]
            entries[at, S_PARTITION] = rows.parts[s.P_PARTITION, j]
            entries[at, S_FROM_NS] = rows.x[s.X_REQUEST_FIRST_NS, i]
            entries[at, S_FIRST] = rows.parts[s.P_OFFSET, j]
            entries[at, S_RECORDS] = 0
            entries[at, S_BYTES] = 0
            entries[at, S_BEGUN] = know.sessions[session, Z_WHOLE]
            entries[at, S_ISOLATION] = rows.x[s.X_ISOLATION_LEVEL, i]
        entries[at, S_OFFSET] = rows.parts[s.P_OFFSET, j]
        entries[at, S_LAST] = rows.parts[s.P_OFFSET, j]
        entries[at, S_TO_NS] = rows.x[s.X_RESPONSE_LAST_NS, i]
    for j in range(rows.left_firsts[i], rows.left_firsts[i + 1]):
        if rows.left_numbers[j] < 0:
            continue
        at = _find(know, session, rows.left_numbers[j])
        if at >= 0:
            _unlist(know, session, at)
            _end_reader(know, at)
    know.sessions[session, Z_TO_NS] = rows.x[s.X_RESPONSE_LAST_NS, i]


@inline
def _unlist(know: PurgatoryState, session: Int, at: Int) -> None:
    """Take a reader out of its session's list."""
    before, following = know.entries[at, S_BEFORE], know.entries[at, S_NEXT]
    if before < 0:
        know.sessions[session, Z_HEAD] = following
    else:
        know.entries[before, S_NEXT] = following
    if following >= 0:
        know.entries[following, S_BEFORE] = before


@inline
def _longest_wait(rows: Rows, i: Int) -> Int:
    """How long a broker may wait before it answers, in microseconds: Fetch for records, Produce for replicas."""
    longest = rows.x[s.X_MAX_WAIT, i]
    if longest == NULL:
        longest = rows.x[s.X_TIMEOUT, i]
    return 1000 * max(longest, np.int64(0))


# --- how long each was held -------------------------------------------------------------------------------------------


@inline
def _fetch_held(know: PurgatoryState, rows: Rows, i: Int, session: Int) -> Int:
    """How long a Fetch was held, in microseconds, or NULL."""
    served = rows.served[i]
    if served == NULL:
        return np.int64(NULL)
    wait = _longest_wait(rows, i)
    amount = np.int64(0)
    sent_on = False
    moved = False
    verdict = np.int64(AT_END)
    released = np.int64(NULL)
    for j in range(rows.firsts[i], rows.firsts[i + 1]):
        sent_on = sent_on or rows.parts[s.P_SENT_ON, j] != NULL
        if rows.parts[s.P_RECORD_BYTES, j] == NULL or rows.parts[s.P_RECORD_BYTES, j] == 0:
            continue
        amount += rows.parts[s.P_RECORD_BYTES, j]
        number = rows.numbers[j]
        presence = np.int64(UNKNOWN)
        reader = _find(know, session, number) if number >= 0 else np.int64(-1)
        if reader >= 0:
            offset = know.entries[reader, S_OFFSET]
            committed = rows.x[s.X_ISOLATION_LEVEL, i] if rows.x[s.X_REPLICA, i] < 0 else np.int64(0)
            presence = _was_there(know.ends, number, rows.taken_up[i], offset, committed)
            came = _released(know.ends, number, rows.taken_up[i], offset)
            if came != NULL:
                released = came if released == NULL else min(released, came)
            moved = moved or rows.parts[s.P_HIGH_WATERMARK, j] > know.ends[number, E_END]
        if presence == BEHIND:
            verdict = np.int64(BEHIND)
        elif presence == UNKNOWN and verdict == AT_END:
            verdict = np.int64(UNKNOWN)
    least = max(rows.x[s.X_MIN_BYTES, i], np.int64(0))
    if rows.x[s.X_REPLICA, i] >= 0:
        least = max(least, np.int64(1))  # voters and observers of the quorum ask for 0, and wait all the same
    if wait > 0 and amount < least and served >= wait - SERVICE_US:
        return min(wait, served)
    if wait <= 0 or served < AT_ONCE_US or rows.x[s.X_THROTTLE, i] > 0 or sent_on or least == 0:
        return np.int64(0)
    if rows.x[s.X_ERROR, i] != 0:
        return served - SERVICE_US if amount == 0 and served >= PARKED_US else np.int64(0)
    if amount < least:
        return np.int64(0) if served < PARKED_US else np.int64(NULL)
    if verdict == BEHIND:
        # There was something, but perhaps not enough.
        return np.int64(0) if least <= 1 or not moved else np.int64(NULL)
    if verdict == UNKNOWN:
        return np.int64(NULL)
    held = min(served - SERVICE_US, wait)
    # One record ends the wait only where a byte is enough.
    return held if released == NULL or least > 1 else min(held, (released - rows.taken_up[i]) // 1000)


@inline
def _learn_fetch(know: PurgatoryState, rows: Rows, i: Int, session: Int) -> None:
    """Note the ends in the answer to a Fetch, and the records that its readers got."""
    ends = know.ends
    for j in range(rows.firsts[i], rows.firsts[i + 1]):
        number = rows.numbers[j]
        if number < 0 or rows.parts[s.P_ERROR, j] == NULL:
            continue
        if rows.x[s.X_REPLICA, i] >= 0:
            ends[number, E_FOLLOWED] = 1
        high = rows.parts[s.P_HIGH_WATERMARK, j]
        if high != NULL and rows.parts[s.P_ERROR, j] == 0:
            stable = rows.parts[s.P_LAST_STABLE, j] if rows.parts[s.P_LAST_STABLE, j] != NULL else high
            if high < ends[number, E_END] and rows.taken_up[i] >= ends[number, E_NEWEST_NS]:
                _forget_ends(ends, number)  # the log was cut, or this is a replica that lags
            _learn_end(ends, number, rows.x[s.X_RESPONSE_FIRST_NS, i], high, stable, np.int64(NULL), np.int64(NULL))
        reader = _find(know, session, number)
        if reader < 0:
            continue
        entries = know.entries
        if rows.parts[s.P_RECORD_BYTES, j] != NULL and rows.parts[s.P_RECORD_BYTES, j] > 0:
            entries[reader, S_BYTES] += rows.parts[s.P_RECORD_BYTES, j]
            if rows.parts[s.P_RECORDS, j] == NULL:
                entries[reader, S_RECORDS] = NULL
            elif entries[reader, S_RECORDS] != NULL:
                entries[reader, S_RECORDS] += rows.parts[s.P_RECORDS, j]
        if rows.parts[s.P_FOLLOWING, j] != NULL:
            entries[reader, S_LAST] = max(entries[reader, S_LAST], rows.parts[s.P_FOLLOWING, j])


@inline
def _produce_held(know: PurgatoryState, rows: Rows, i: Int) -> Int:
    """How long a Produce with acks=all waited for replicas, or NULL. Where they fetch in sight, waiting is all but what
    the broker takes itself (right in 93.6 % of 3,211 in a cluster of three)."""
    if rows.x[s.X_ACKS, i] != -1:
        return np.int64(0)
    error = rows.x[s.X_ERROR, i]
    if error != 0 and error != REQUEST_TIMED_OUT and error != NOT_ENOUGH_AFTER_APPEND:
        return np.int64(0)
    alone = True
    followed = False
    for j in range(rows.firsts[i], rows.firsts[i + 1]):
        number = rows.numbers[j]
        alone = alone and number >= 0 and know.ends[number, E_REPLICAS] == 1
        followed = followed or (number >= 0 and know.ends[number, E_FOLLOWED] == 1)
    if alone:
        return np.int64(0)
    served = rows.served[i]
    if not followed or served == NULL:
        return np.int64(NULL)
    held = served - SERVICE_US if served >= AT_ONCE_US else np.int64(0)
    return min(held, _longest_wait(rows, i)) if _longest_wait(rows, i) > 0 else held


@inline
def _learn_produce(know: PurgatoryState, rows: Rows, i: Int) -> None:
    """Records acknowledged: the end of their partition, for readers once all replicas have them."""
    ends = know.ends
    for j in range(rows.firsts[i], rows.firsts[i + 1]):
        number = rows.numbers[j]
        base = rows.parts[s.P_OFFSET, j]
        if number < 0 or base == NULL or rows.parts[s.P_ERROR, j] != 0:
            continue
        count = rows.parts[s.P_RECORDS, j] if rows.parts[s.P_RECORDS, j] != NULL else np.int64(1)
        copied = ends[number, E_FOLLOWED] == 1 or ends[number, E_REPLICAS] > 1
        before = ends[number, E_END]
        end = base + count if rows.x[s.X_ACKS, i] == -1 or not copied else before
        committed = rows.x[s.X_TRANSACTIONAL_ID, i] == NULL and (before == NULL or ends[number, E_STABLE] == before)
        stable = end if committed else ends[number, E_STABLE]
        _learn_end(ends, number, rows.x[s.X_RESPONSE_FIRST_NS, i], end, stable, base, rows.taken_up[i])


@inline
def _learn_listed(know: PurgatoryState, rows: Rows, i: Int) -> None:
    """An offset that ListOffsets found: the end is there or later. Who reads committed records may see less."""
    ends = know.ends
    for j in range(rows.firsts[i], rows.firsts[i + 1]):
        number = rows.numbers[j]
        if number >= 0 and rows.parts[s.P_OFFSET, j] != NULL and rows.parts[s.P_ERROR, j] == 0:
            offset = rows.parts[s.P_OFFSET, j]
            none = np.int64(NULL)
            _learn_end(ends, number, rows.x[s.X_RESPONSE_FIRST_NS, i], offset, ends[number, E_STABLE], none, none)


@inline
def _share_fetch_held(know: PurgatoryState, rows: Rows, i: Int) -> Int:
    """Like `_fetch_held`, for a ShareFetch.

    Nothing on the wire tells where a share group's records end: after an answer without any there were none."""
    amount = np.int64(0)
    for j in range(rows.firsts[i], rows.firsts[i + 1]):
        amount += max(rows.parts[s.P_RECORD_BYTES, j], np.int64(0))
    was_empty = know.connections[rows.connection[i], 1]
    know.connections[rows.connection[i], 1] = 1 if amount == 0 else 0
    served = rows.served[i]
    if served == NULL:
        return np.int64(NULL)
    wait = _longest_wait(rows, i)
    if wait > 0 and amount == 0 and served >= wait - SERVICE_US:
        return min(wait, served)
    if wait <= 0 or served < AT_ONCE_US or rows.x[s.X_ERROR, i] != 0 or amount == 0:
        return np.int64(0)
    return min(served - SERVICE_US, wait) if was_empty == 1 else np.int64(NULL)


@kernel
def hold(begin: Int, end: Int, chosen: Table, rows: Rows, held: Table, know: PurgatoryState) -> None:
    """Decide of exchanges `begin` to `end` of those chosen (int64[k]: which of the rows each is) how long they were
    held (`held`, int64[k], microseconds, NULL: it cannot be told), and learn from each. Room was made sure of: for an
    entry and a row of `gone` a topic-partition more, a session an exchange more."""
    for at in range(begin, end):
        i = chosen[at]
        api = rows.x[s.X_API_KEY, i]
        if api == api_keys.FETCH:
            session = _session_of(know, rows, i)
            _name_readers(know, rows, i, session)
            held[at] = _fetch_held(know, rows, i, session)
            _learn_fetch(know, rows, i, session)
        elif api == api_keys.PRODUCE:
            held[at] = _produce_held(know, rows, i)
            _learn_produce(know, rows, i)
        elif api == api_keys.SHARE_FETCH:
            held[at] = _share_fetch_held(know, rows, i)
        else:
            held[at] = 0
            _learn_listed(know, rows, i)


@kernel
def end_sessions(connections: Table, know: PurgatoryState) -> None:
    """These connections are closed: what they read is over, and their numbers may be others' next."""
    for i in range(len(connections)):
        _end_session(know, connections[i])
        know.connections[connections[i], 1] = 0


@kernel
def chain_again(know: PurgatoryState) -> None:
    """Enter all readers that last into the (larger) hash table, through their sessions."""
    for i in range(len(know.chains)):
        know.chains[i] = -1
    for connection in range(len(know.connections)):
        session = know.connections[connection, 0]
        if session < 0:
            continue
        at = know.sessions[session, Z_HEAD]
        while at >= 0:
            chain = _chain(know, session, know.entries[at, S_NUMBER])
            know.entries[at, S_CHAIN] = know.chains[chain]
            know.chains[chain] = at
            at = know.entries[at, S_NEXT]
