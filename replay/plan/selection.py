"""Selects what of a capture is replayed: whole clients, and a span of its time. Pure.

In: sessions, and a `Selection`. Out: the chosen sessions; requests that were left out and say something of the
captured cluster (topics, ids, settings) stay with them (`Session.beside`). Rules: a client is a client id at an
address, with all of its connections: a filter of requests would cut a member's join from its heartbeats, and make a
replay that never was. So would a group without some of its members, whose rebalances would never come: members are
chosen together. Of a span of time the requests that were sent in it are chosen, with their answers, whenever these
came.
"""

from __future__ import annotations

import datetime
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kwire.analyzer.bulk.rows import Message
from kwire.analyzer.common.times import utc
from kwire.analyzer.filter.evaluation import Filter, parse
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.pipeline.selection import record_payloads
from kwire.analyzer.protocol import api_keys
from kwire.captures.errors import KwireError
from kwire.replay.plan import apis
from kwire.replay.plan.sessions import Decoded, Request, Session

if TYPE_CHECKING:
    from kwire.analyzer.messages.record_payloads import RecordPayloads

_TELLING: Final = frozenset(
    (
        api_keys.METADATA,
        api_keys.DESCRIBE_CLUSTER,
        api_keys.DESCRIBE_TOPIC_PARTITIONS,
        api_keys.CREATE_TOPICS,
        api_keys.ALTER_CONFIGS,
        api_keys.INCREMENTAL_ALTER_CONFIGS,
    )
)
_OF_MEMBERS: Final = frozenset((api_keys.JOIN_GROUP, api_keys.SYNC_GROUP, api_keys.HEARTBEAT, *apis.GROUP_HEARTBEATS))
_NAMED: Final = 5
"""How many clients a note names."""
_UNITS: Final = {"us": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "": 10**9}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|)")


class NothingChosenError(KwireError):
    """Nothing in the capture matches the selection."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of the capture: nanoseconds after its first request, or (`absolute`) since 1970."""

    ns: int
    absolute: bool = False

    def since_1970(self, start_ns: int) -> int:
        return self.ns if self.absolute else start_ns + self.ns


def moment(text: str) -> Moment:
    """Parse a time: `90s`, `1.5m`, `250ms` after the capture's first request, or RFC 3339 (without a zone: UTC). Raises
    ValueError."""
    if span := _SPAN.fullmatch(text):
        return Moment(round(float(span[1]) * _UNITS[span[2]]))
    when = utc(datetime.datetime.fromisoformat(text))
    return Moment(round(when.timestamp() * 1e6) * 1000, True)


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of what to replay.

    - `clients`: those of which any exchange matches
    - `topics`: clients that touch a topic that matches one of these patterns (`*`, `?`, `[...]`)
    - `since`, `until`: only requests that were sent from then on, and before then
    """

    clients: Filter | None = None
    topics: tuple[str, ...] = ()
    since: Moment | None = None
    until: Moment | None = None

    def __bool__(self) -> bool:
        return any(
            criterion is not None and criterion != ()
            for criterion in (self.clients, self.topics, self.since, self.until)
        )


def chosen(sessions: Sequence[Session], selection: Selection, notes: list[str]) -> list[Session]:
    """Choose the sessions of the chosen clients, with their requests of the span. Raises NothingChosenError."""
    if not selection:
        return list(sessions)
    clients = _clients(sessions, selection)
    if clients:
        notes += _join_others(sessions, clients)
    start = min((request.sent_ns for session in sessions for request in session.requests), default=0)
    first = selection.since.since_1970(start) if selection.since is not None else -1
    end = selection.until.since_1970(start) if selection.until is not None else 1 << 63
    result: list[Session] = []
    beside: list[Request] = []
    for session in sessions:
        wanted = clients is None or any(_who(request.row) in clients for request in session.requests)
        inside = tuple(request for request in session.requests if wanted and first <= request.sent_ns < end)
        beside += session.requests if not inside else _outside(session, first, end)
        if inside:
            result.append(replace(session, requests=inside, orphans=()))
    if not result:
        raise NothingChosenError("no request of the capture is chosen", "kwire show lists clients, topics and times")
    count = sum(len(session.requests) for session in result)
    total = sum(len(session.requests) for session in sessions)
    notes.append(f"chosen: {count:,} of {total:,} requests, on {len(result):,} of {len(sessions):,} connections")
    telling = tuple(request for request in beside if request.row["api_key"] in _TELLING)
    return [replace(result[0], beside=telling), *result[1:]]


def matching(sessions: Sequence[Session], wanted: Filter | str | None) -> list[Session]:
    """Choose the requests of a dataset that match, in their sessions, as `--filter` does for a capture. Raises
    FilterError."""
    condition = parse(wanted) if isinstance(wanted, str) else wanted
    if condition is None:
        return list(sessions)
    payloads = record_payloads(condition, None)
    return [
        replace(
            session,
            requests=tuple(request for request in session.requests if _matches(condition, request, payloads)),
            orphans=(),
        )
        for session in sessions
    ]


def _outside(session: Session, first: int, end: int) -> list[Request]:
    return [request for request in session.requests if not first <= request.sent_ns < end]


def _who(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """The client of an exchange: its address and its client id."""
    return row["client_ip"], row["client_id"]


def _clients(sessions: Sequence[Session], selection: Selection) -> set[tuple[Any, Any]] | None:
    """The chosen clients; None for all."""
    if selection.clients is None and not selection.topics:
        return None
    clients: set[tuple[Any, Any]] | None = None
    if selection.clients is not None:
        payloads = record_payloads(selection.clients, None)
        clients = {
            _who(request.row)
            for session in sessions
            for request in session.requests
            if _matches(selection.clients, request, payloads)
        }
    if selection.topics:
        patterns = [re.compile(fnmatch.translate(pattern)) for pattern in selection.topics]
        touching = {
            _who(request.row)
            for session in sessions
            for request in session.requests
            if any(pattern.match(topic) for topic in request.row["topics"] or () for pattern in patterns)
        }
        clients = touching if clients is None else clients & touching
    return clients


def _join_others(sessions: Sequence[Session], clients: set[tuple[Any, Any]]) -> Iterator[str]:
    """Choose the other members of the chosen clients' groups too, and note it."""
    members: dict[str, set[tuple[Any, Any]]] = {}
    for session in sessions:
        for request in session.requests:
            if request.row["api_key"] in _OF_MEMBERS and request.row["group_id"]:
                members.setdefault(request.row["group_id"], set()).add(_who(request.row))
    while touched := [group for group, some in members.items() if some & clients]:
        for group in touched:
            others = members.pop(group) - clients
            clients |= others
            if others:
                named = ", ".join(sorted(str(client_id) for _, client_id in others)[:_NAMED])
                more = " ..." if len(others) > _NAMED else ""
                yield f"chosen with them, as members of group {group}: {named}{more}"


def _matches(wanted: Filter, request: Request, payloads: RecordPayloads | None) -> bool:
    if not wanted.needs_bodies:
        return wanted.matches(request.row)
    decoded = Decoded(request)
    records = () if payloads is None else payloads.of(_exchange(request))
    return wanted.matches(request.row, decoded.body, decoded.answer, records)


def _exchange(request: Request) -> Exchange:
    """The exchange of a request, with its messages."""
    length = bytes(4)
    sent = None if request.data is None else Message(length + request.data, True, request=True)
    answer = None if request.answer is None else Message(length + request.answer, True, request=False)
    return Exchange(dict(request.row), sent, answer)
