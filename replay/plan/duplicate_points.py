"""Finds connections that were captured at two points, as at a client and at its broker, and would be sent twice.

In: sessions. Out: the names of two captures that have the same connections, and how many. Pure. Rules: two are one
connection if both ends have the same addresses and both have the same request, byte by byte and within `APART`;
rotated files go on where the last one ended, and have no request twice. What brokers send each other is in the
captures of both, and never sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.replay.plan import apis, decisions
from kwire.replay.plan.sessions import Decoded, Request, Session

APART: Final = 60 * 10**9
"""Nanoseconds between the two times of a request: clocks of two machines, and the path between them."""
_OF_CLIENTS: Final = frozenset(
    (
        api_keys.PRODUCE,
        api_keys.FETCH,
        api_keys.OFFSET_COMMIT,
        api_keys.OFFSET_FETCH,
        api_keys.JOIN_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.HEARTBEAT,
        api_keys.LEAVE_GROUP,
        api_keys.INIT_PRODUCER_ID,
        api_keys.ADD_OFFSETS_TO_TXN,
        api_keys.END_TXN,
        api_keys.TXN_OFFSET_COMMIT,
        api_keys.SHARE_FETCH,
        api_keys.SHARE_ACKNOWLEDGE,
        *apis.GROUP_HEARTBEATS,
    )
)
"""APIs with which clients write, read and commit."""


def duplicate_points(sessions: Sequence[Session]) -> tuple[str, str, int] | None:
    """Find two captures with the same connections, and how many; None if there are none."""
    counts: Counter[tuple[str, str]] = Counter()
    by_ends: dict[str, list[Session]] = {}
    for session in sessions:
        by_ends.setdefault(session.connection.partition("#")[0], []).append(session)
    for some in by_ends.values():
        if len({session.capture for session in some}) < 2:
            continue
        for at, first in enumerate(some):
            counts.update(
                (first.capture, second.capture)
                for second in some[at + 1 :]
                if first.capture != second.capture and _is_the_same(first, second)
            )
    if not counts:
        return None
    (pair, count), *_ = counts.most_common(1)
    return *pair, count


def _is_the_same(first: Session, second: Session) -> bool:
    there = {request.data: request.sent_ns for request in _of_clients(first)}
    for request in _of_clients(second):
        if abs(request.sent_ns - there.get(request.data, -APART)) < APART:
            body = Decoded(request).body
            return body is not None and not (request.api_key == api_keys.FETCH and decisions.replica(body) >= 0)
    return False


def _of_clients(session: Session) -> Iterator[Request]:
    """List the requests that clients send. (The API and the correlation id are in the bytes.)"""
    for request in session.requests:
        if request.data is not None and request.row["api_key"] in _OF_CLIENTS:
            yield request
