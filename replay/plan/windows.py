"""Reads a capture twice without ever holding it: once for the first pass, then in windows of requests. Pure.

In: a function that gives the captured exchanges, each time that it is called. Out: sessions without requests, a
`FirstPass`, and `Window`s in order of captured time. Rules: sessions have the numbers that they would have if all were
read at once, and requests come in the same order, as long as they are out of order by no more than `HELD` requests or
`HELD_BYTES`; what comes later than that is passed on when it comes. A session's requests stay in order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from kwire.replay.plan import decisions, renaming, sessions
from kwire.replay.plan.first_pass import FirstPass
from kwire.replay.plan.renaming import Renaming
from kwire.replay.plan.sessions import CapturedExchange, Decoded, Request, Session

if TYPE_CHECKING:
    from kwire.analyzer.analysis.traffic_summary import ConnectionActivity
    from kwire.analyzer.api import ChooseExchanges
    from kwire.analyzer.bulk import rows

HELD: Final = 4_096
HELD_BYTES: Final = 32 << 20
"""Requests, and bytes of them and their answers, that are held back so that earlier ones go first."""
WINDOW: Final = 256
WINDOW_BYTES: Final = 4 << 20
"""Requests of a window, and bytes of them and their answers."""

Key = tuple[str, str]


@dataclass(slots=True)
class Window:
    """A bounded number of requests in order of time, each with its session. `met`: sessions that begin here; `over`:
    sessions that have sent their last request; `orphans`: rows of responses without a request."""

    requests: list[tuple[int, Decoded]] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    orphans: list[Mapping[str, Any]] = field(default_factory=list)


class WindowReader(Protocol):
    """Gives the windows of a capture."""

    @property
    def request_count(self) -> int | None:
        """How many requests there are; None if the capture may go on for ever."""

    def windows(self) -> Iterator[Window]:
        """Give the windows, in order of time."""

    def session(self, number: int) -> Session:
        """The session of this number, until it is forgotten."""

    def forget(self, number: int) -> None:
        """Drop a session that is over, and was handed on as that."""


@dataclass(slots=True)
class _MetSession:
    """A session as the first pass meets it. `began`: when it sent its first request, 0 if it sent none; `first`: the
    ordinal of that request."""

    number: int
    broker: tuple[str, int]
    began: int = 0
    requests: int = 0
    user: str | None = None
    first: int = -1

    def take(self, activity: ConnectionActivity) -> None:
        """Count requests of this session."""
        self.requests += activity.requests
        if activity.requests and (self.first < 0 or activity.first < self.first):
            self.first, self.began = activity.first, _micro(activity.first_ns)


def _micro(nanoseconds: int) -> int:
    """Round down to microseconds, as the tables have times."""
    return nanoseconds // 1000 * 1000


@dataclass(slots=True)
class TwoPassReader:
    """Reads a capture twice.

    - `exchanges`: goes through the capture
    - `names`: how groups and clients are renamed
    - `by_columns`: goes through it too, but gives Produce and Fetch in columns, if there are columns
    - `topic_ids`: as of a `Session`
    - `sessions`, `first`: what `read_first_pass` finds
    """

    exchanges: Callable[[], Iterable[CapturedExchange]]
    names: Renaming = field(default_factory=Renaming)
    by_columns: Callable[[ChooseExchanges], Iterable[CapturedExchange]] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    first: FirstPass = field(default_factory=lambda: FirstPass(timed=True))
    _numbers: dict[Key, int] = field(default_factory=dict)
    _left: list[int] = field(default_factory=list)

    @property
    def request_count(self) -> int:
        return self.first.requests

    def session(self, number: int) -> Session:
        return self.sessions[number]

    def forget(self, number: int) -> None:
        """Keep the session: it was there before the windows."""

    def read_first_pass(self) -> None:
        """Go through the capture for the first time."""
        met: dict[Key, _MetSession] = {}
        if self.by_columns is not None:
            self._read_columns(self.by_columns, met)
        else:
            for number, message in sessions.decoded(self._read_bodies(met)):
                self.first.take(number, message)
        order = sorted(met.items(), key=lambda entry: (entry[1].began, entry[0][1]))
        self._numbers = {key: number for number, (key, _) in enumerate(order)}
        self._left = [session.requests for _, session in order]
        ids = self.topic_ids
        self.sessions = [Session(*key, session.broker, (), (), ids, user=session.user) for key, session in order]
        positions = {session.number: number for number, (_, session) in enumerate(order)}
        self.first.ends = {positions[number]: end for number, end in self.first.ends.items()}

    def again(self) -> Iterator[Decoded]:
        """Go through all requests once more."""
        for _, message, _ in self._ordered(self.exchanges, lambda row: 0, lambda exchange: None):
            yield message

    def windows(self) -> Iterator[Window]:
        """Go through the capture for the second time."""
        window, size = Window(), 0
        left, open_sessions = list(self._left), set[int]()

        def orphan(exchange: CapturedExchange) -> None:
            window.orphans.append(exchange.row)

        for number, message, bytes_ in self._ordered(
            self.exchanges, lambda row: self._numbers[row["capture"], row["connection"]], orphan
        ):
            window.requests.append((number, message))
            size += bytes_
            if number not in open_sessions:
                open_sessions.add(number)
                window.met.append(number)
            left[number] -= 1
            if not left[number]:
                open_sessions.discard(number)
                window.over.append(number)
            if len(window.requests) >= WINDOW or size >= WINDOW_BYTES:
                yield window
                window, size = Window(), 0
        if window.requests or window.orphans:
            yield window

    def _read_columns(
        self, by_columns: Callable[[ChooseExchanges], Iterable[CapturedExchange]], met: dict[Key, _MetSession]
    ) -> None:
        """Make the first pass over columns, and over the bodies of what is not in them."""
        from kwire.analyzer.analysis.traffic_summary import TrafficSummarizer

        first = self.first
        summarizer = TrafficSummarizer(first.learning.cluster.topic_names)

        def look(window: rows.Window) -> rows.Exchanges:
            summary = summarizer.take(window)
            first.pauses.take(summary.sent_ns)
            for activity in summary.connections:
                key = window.names.capture, activity.connection
                session = met.setdefault(key, _MetSession(len(met), activity.broker))
                session.take(activity)
                if activity.requests:
                    first.sent(session.number, _micro(activity.earliest_ns))
                    first.sent(session.number, _micro(activity.last_ns), activity.requests - 1)
            for topic in summary.topics:
                address, client = topic.client
                first.touch(topic, (address, self.names.transaction(client or "") or client))
            for fetched in summary.fetched:
                first.learning.fetched(*fetched)
            return summary.rest

        def see(exchange: CapturedExchange) -> None:
            session = met[exchange.row["capture"], exchange.row["connection"]]
            session.user = session.user or exchange.user

        def number(row: Mapping[str, Any]) -> int:
            return met[row["capture"], row["connection"]].number

        rest = self._ordered(lambda: by_columns(look), number, lambda exchange: None, see)
        for _, message in sessions.decoded((index, message) for index, message, _ in rest):
            first.learn(message)

    def _read_bodies(self, met: dict[Key, _MetSession]) -> Iterator[tuple[int, Decoded]]:
        def number(row: Mapping[str, Any]) -> int:
            return met[row["capture"], row["connection"]].number

        def see(exchange: CapturedExchange) -> None:
            row = exchange.row
            key = row["capture"], row["connection"]
            session = met.get(key)
            if session is None:
                session = met[key] = _MetSession(len(met), (row["broker_ip"], row["broker_port"]))
            session.user = session.user or exchange.user

        by_number: dict[int, _MetSession] = {}
        for index, message, _ in self._ordered(self.exchanges, number, lambda exchange: None, see):
            session = by_number.get(index)
            if session is None:
                row = message.request.row
                session = by_number[index] = met[row["capture"], row["connection"]]
            session.requests += 1
            session.began = session.began or message.request.sent_ns
            yield index, message

    def _ordered(
        self,
        exchanges: Callable[[], Iterable[CapturedExchange]],
        number: Callable[[Mapping[str, Any]], int],
        orphan: Callable[[CapturedExchange], None],
        see: Callable[[CapturedExchange], None] = lambda exchange: None,
    ) -> Iterator[tuple[int, Decoded, int]]:
        """Give (session, request, bytes) in order of time. `see` gets each exchange, `orphan` those without a
        request."""
        held = _HeldRequests()
        for exchange in exchanges():
            see(exchange)
            if exchange.row["exchange"] is None:
                orphan(exchange)
                continue
            request = sessions.request_of(*exchange[:3])
            if self.names:
                request = renaming.request(request, self.names)
            held.put(request, number(exchange.row))
            while len(held) > HELD or held.bytes > HELD_BYTES:
                yield held.pop()
        while len(held):
            yield held.pop()


class _HeldRequests:
    """Requests that are held back; `bytes`: their size. Nearly all come in order: those wait in a queue, and only late
    ones in a heap."""

    def __init__(self) -> None:
        self.bytes = 0
        self._count = 0
        self._queue: deque[_HeldRequest] = deque()
        self._late: list[_HeldRequest] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._late)

    def put(self, request: Request, session: int) -> None:
        size = len(request.data or b"") + len(request.answer or b"")
        self._count += 1
        held = request.sent_ns, session, request.exchange, self._count, size, request
        if not self._queue or self._queue[-1] < held:
            self._queue.append(held)
        else:
            heapq.heappush(self._late, held)
        self.bytes += size

    def pop(self) -> tuple[int, Decoded, int]:
        """Take the earliest, as (session, request, bytes)."""
        is_late = self._late and (not self._queue or self._late[0] < self._queue[0])
        _, session, _, _, size, request = heapq.heappop(self._late) if is_late else self._queue.popleft()
        self.bytes -= size
        return session, Decoded(request, decisions.fast_path(request)), size


_HeldRequest = tuple[int, int, int, int, int, Request]
"""When a request was sent, its session, its ordinal there, how many came before it, bytes, and itself."""
