"""Requests that wait for their answer, and exchanges that end.

In: the row of an exchange. Out: rows of `Output.exchanges` as each ends. Rules: requests of a connection wait in a
queue, because a broker answers them in order; one that an answer passes over waits on; how many may wait is bounded.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.partitions import MAX_WAITING, put_parts
from kwire.analyzer.protocol import api_keys
from kwire.captures.kernels import Flag, Int, Table, inline, shared

MAX_PENDING: Final = 4096
"""Requests of one connection without an answer. Brokers handle one at a time and clients keep a handful in flight; a
capture of one direction only would else pile them up without end."""

MAX_OPEN: Final = 1 << 16
"""Requests without an answer of all connections of a shard. Beyond it a connection keeps KEPT_OPEN of its own: all that
still wait when a capture ends become rows at once."""

MAX_SILENT: Final = 64
"""Produce requests with acks=0 that wait, in case this broker answers them (some of other makes do). Kafka's own does
not, which the first answer to a later request shows, or so many requests without any."""

KEPT_OPEN: Final = 64
"""More than clients have in flight: Java's and idempotent producers have five at most."""


@inline
def put_out(st: s.State, row: Table, status: Int, completed_by: Int) -> None:
    """Copy an exchange that ended, int64[X_PENDING_COLUMNS], to the output, where slots are those of `Flows`.

    The caller has made sure that there is room."""
    fr = st.framing
    parts = st.parts
    out = st.output
    to = out.v[s.V_OUT]
    for column in range(s.X_COLUMNS):
        out.exchanges[to, column] = row[column]
    out.exchanges[to, s.X_SLOT] = row[s.X_SLOT] * out.v[s.V_SHARDS] + out.v[s.V_SHARD]
    out.exchanges[to, s.X_STATUS] = status
    out.exchanges[to, s.X_CLIENT_SIDE] = fr.k[row[s.X_SLOT], s.K_CLIENT]
    out.exchanges[to, s.X_COMPLETED_BY] = completed_by
    out.v[s.V_OUT] = to + 1
    if row[s.X_PARTS] >= 0:
        put_parts(parts, out, row[s.X_PARTS], to)
    if row[s.X_ERROR] != s.NULL and row[s.X_ERROR] != 0:
        fr.k[row[s.X_SLOT], s.K_ERRORS] += 1


@inline
def take_first(fr: s.Framing, mt: s.Matching, slot: Int) -> Int:
    """Remove the oldest pending request of a connection; its row stays readable until the next push."""
    k = fr.k
    first = k[slot, s.K_HEAD]
    k[slot, s.K_HEAD] = mt.pending[first, s.X_NEXT]
    if k[slot, s.K_HEAD] < 0:
        k[slot, s.K_TAIL] = -1
    k[slot, s.K_COUNT] -= 1
    mt.pending[first, s.X_NEXT] = mt.v[s.V_PENDING_FREE]
    mt.v[s.V_PENDING_FREE] = first
    mt.v[s.V_PENDING_LIVE] -= 1
    return first


@shared
def take_pending(fr: s.Framing, mt: s.Matching, slot: Int, request: Int) -> None:
    """Remove a pending request of a connection, wherever it waits; its row stays readable until the next push."""
    k = fr.k
    first = k[slot, s.K_HEAD]
    if request == first:
        take_first(fr, mt, slot)
        return
    before = first
    while mt.pending[before, s.X_NEXT] != request:
        before = mt.pending[before, s.X_NEXT]
    mt.pending[before, s.X_NEXT] = mt.pending[request, s.X_NEXT]
    if k[slot, s.K_TAIL] == request:
        k[slot, s.K_TAIL] = before
    k[slot, s.K_COUNT] -= 1
    mt.pending[request, s.X_NEXT] = mt.v[s.V_PENDING_FREE]
    mt.v[s.V_PENDING_FREE] = request
    mt.v[s.V_PENDING_LIVE] -= 1


@shared
def pass_over(st: s.State, slot: Int, request: Int, lossy: Flag, completed_by: Int) -> None:
    """An answer to `request` came before those to the requests before it. They wait on, because their answers may still
    come, but for those that brokers do not answer; if bytes of answers are missing (`lossy`), theirs are among them."""
    fr = st.framing
    mt = st.matching
    k = fr.k
    if lossy:
        while k[slot, s.K_HEAD] != request:
            end_first(st, slot, s.UNANSWERED, completed_by)
        return
    at = k[slot, s.K_HEAD]
    while at != request:
        following = mt.pending[at, s.X_NEXT]
        if is_silent(mt.pending[at]):
            take_pending(fr, mt, slot, at)
            k[slot, s.K_ZERO_HELD] -= 1
            put_out(st, mt.pending[at], s.NO_RESPONSE_EXPECTED, completed_by)
        at = following


@inline
def flush_pending(st: s.State, slot: Int, status: Int, completed_by: Int) -> None:
    """No answer will come any more. Room was made sure of before."""
    fr = st.framing
    while fr.k[slot, s.K_HEAD] >= 0:
        end_first(st, slot, status, completed_by)


@inline
def is_silent(row: Table) -> Flag:
    """Whether the request of an exchange is one that brokers do not answer: Produce with acks=0."""
    return row[s.X_API_KEY] == api_keys.PRODUCE and row[s.X_ACKS] == 0


@inline
def end_first(st: s.State, slot: Int, status: Int, completed_by: Int) -> None:
    """The oldest pending request ends without an answer: with `status`, where one was to be expected."""
    fr = st.framing
    mt = st.matching
    first = take_first(fr, mt, slot)
    if is_silent(mt.pending[first]):
        fr.k[slot, s.K_ZERO_HELD] -= 1
        put_out(st, mt.pending[first], s.NO_RESPONSE_EXPECTED, completed_by)
    else:
        passed = status == s.IN_FLIGHT and mt.pending[first, s.X_EXCHANGE] < fr.k[slot, s.K_ANSWERED_TO]
        put_out(st, mt.pending[first], s.UNANSWERED if passed else status, completed_by)


@inline
def find_pending(fr: s.Framing, mt: s.Matching, slot: Int, correlation: Int) -> tuple[Int, Int]:
    """The first pending request with this correlation id -> (row, how many are before it); row -1: none. One that
    brokers do not answer only where no other has the id."""
    at = fr.k[slot, s.K_HEAD]
    before = np.int64(0)
    silent = np.int64(-1)
    silent_before = np.int64(0)
    while at >= 0:
        if mt.pending[at, s.X_CORRELATION_ID] == correlation:
            if not is_silent(mt.pending[at]):
                return at, before
            if silent < 0:
                silent = at
                silent_before = before
        at = mt.pending[at, s.X_NEXT]
        before += 1
    return silent, silent_before


@inline
def wait(st: s.State, slot: Int, row: Table, completed_by: Int) -> None:
    """A request waits for its answer from now on, unless none can come."""
    fr = st.framing
    mt = st.matching
    k = fr.k
    v = mt.v
    silent = is_silent(row)
    if silent and (k[slot, s.K_ZERO_SILENT] != 0 or k[slot, s.K_CLOSED] != 0):
        put_out(st, row, s.NO_RESPONSE_EXPECTED, completed_by)
        return
    if k[slot, s.K_FINS] >> (1 - k[slot, s.K_CLIENT]) & 1 != 0 and not silent:
        row[s.X_RESPONSE_REASON] = s.R_SHUT
    if k[slot, s.K_CLOSED] != 0:
        put_out(st, row, s.UNANSWERED, completed_by)
        return
    if silent:
        if k[slot, s.K_ZERO_HELD] >= MAX_SILENT:
            k[slot, s.K_ZERO_SILENT] = 1
            while k[slot, s.K_HEAD] >= 0 and is_silent(mt.pending[k[slot, s.K_HEAD]]):
                end_first(st, slot, s.NO_RESPONSE_EXPECTED, completed_by)
            put_out(st, row, s.NO_RESPONSE_EXPECTED, completed_by)
            return
        k[slot, s.K_ZERO_HELD] += 1
    open_here = k[slot, s.K_COUNT]
    full = open_here >= KEPT_OPEN and v[s.V_PENDING_LIVE] >= MAX_OPEN
    if open_here >= MAX_PENDING or full or (open_here > 0 and v[s.V_PARTS_LIVE] > MAX_WAITING):
        first = k[slot, s.K_HEAD]
        if not is_silent(mt.pending[first]):
            mt.pending[first, s.X_RESPONSE_REASON] = s.R_TOO_MANY
        end_first(st, slot, s.UNANSWERED, completed_by)
    at = v[s.V_PENDING_FREE]
    if at >= 0:
        v[s.V_PENDING_FREE] = mt.pending[at, s.X_NEXT]
    else:
        at = v[s.V_PENDINGS]
        v[s.V_PENDINGS] = at + 1
    v[s.V_PENDING_LIVE] += 1
    for column in range(s.X_PENDING_COLUMNS):
        mt.pending[at, column] = row[column]
    mt.pending[at, s.X_NEXT] = -1
    if k[slot, s.K_TAIL] >= 0:
        mt.pending[k[slot, s.K_TAIL], s.X_NEXT] = at
    else:
        k[slot, s.K_HEAD] = at
    k[slot, s.K_TAIL] = at
    k[slot, s.K_COUNT] += 1
