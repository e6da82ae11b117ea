"""Connections that were captured at two points, as at a client and at its broker: to send both is to send it twice.

In: sessions. Out: the names of two captures that have the same connection, and how many such connections there are.
Pure. Rules: it is one connection where both ends have the same addresses and a request is there twice, to the byte and
within `APART`; files that were rotated go on where the last one ended, and have no request twice. What brokers say to
each other is in the captures of both, and never sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from analyzer.protocol import api_keys
from replay.plan import apis, decisions
from replay.plan.sessions import Decoded, Request, Session

APART: Final = 60 * 10**9
"""Nanoseconds between the two times of a request: clocks of two machines, and its way."""
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
"""APIs that write, read and commit, for clients."""


def duplicate_points(sessions: Sequence[Session]) -> tuple[str, str, int] | None:
    """Two captures, and how many connections are in both; None where there are none."""
    found: Counter[tuple[str, str]] = Counter()
    by_ends: dict[str, list[Session]] = {}
    for session in sessions:
        by_ends.setdefault(session.connection.partition("#")[0], []).append(session)
    for some in by_ends.values():
        if len({session.capture for session in some}) < 2:
            continue
        for at, first in enumerate(some):
            found.update(
                (first.capture, second.capture)
                for second in some[at + 1 :]
                if first.capture != second.capture and _is_the_same(first, second)
            )
    if not found:
        return None
    (pair, count), *_ = found.most_common(1)
    return *pair, count


def _is_the_same(first: Session, second: Session) -> bool:
    there = {one.data: one.sent_ns for one in _of_clients(first)}
    for one in _of_clients(second):
        if abs(one.sent_ns - there.get(one.data, -APART)) < APART:
            body = Decoded(one).body
            return body is not None and not (one.api_key == api_keys.FETCH and decisions.replica(body) >= 0)
    return False


def _of_clients(session: Session) -> Iterator[Request]:
    """What a client asks for. (The API and the correlation id are in the bytes.)"""
    for one in session.requests:
        if one.data is not None and one.row["api_key"] in _OF_CLIENTS:
            yield one
