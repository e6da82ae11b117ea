"""A capture that is gone through twice and never held: once for the survey, then in windows of requests. Pure.

In: what gives the captured exchanges, each time that it is called. Out: `surveyed` (sessions without requests, and a
`Survey`), and `Window`s in order of captured time. Rules: sessions have the numbers that they would have if all were
read at once, and requests come in the same order, as far as they are out of order by no more than `HELD` requests or
`HELD_BYTES`; what is later than that comes when it is there. A session's requests stay in order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from replay.plan import decisions, renaming, sessions
from replay.plan.first_pass import Survey
from replay.plan.renaming import Renaming
from replay.plan.sessions import Decoded, Request, Session, Told

if TYPE_CHECKING:
    from analyzer.analysis.traffic_summary import Asked
    from analyzer.api import ChooseExchanges
    from analyzer.bulk import rows

HELD: Final = 4_096
HELD_BYTES: Final = 32 << 20
"""Requests that are held back, and bytes of theirs and their answers', so that earlier ones go first."""
WINDOW: Final = 256
WINDOW_BYTES: Final = 4 << 20
"""Requests of a window, and bytes."""

Key = tuple[str, str]


@dataclass(slots=True)
class Window:
    """Requests in order of time, each with its session; sessions that are met first, and those that have sent their
    last; rows of responses without a request."""

    requests: list[tuple[int, Decoded]] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    orphans: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _Met:
    """A session as the survey meets it; `began`: when it sent its first request, 0: none; `first`: its ordinal."""

    number: int
    broker: tuple[str, int]
    began: int = 0
    requests: int = 0
    user: str | None = None
    first: int = -1

    def take(self, asked: Asked) -> None:
        """What it sent, some of it."""
        self.requests += asked.requests
        if asked.requests and (self.first < 0 or asked.first < self.first):
            self.first, self.began = asked.first, _micro(asked.first_ns)


def _micro(nanoseconds: int) -> int:
    """As the tables have it."""
    return nanoseconds // 1000 * 1000


@dataclass(slots=True)
class Flow:
    """`told`: goes through the capture; `names`: how groups and clients are renamed; `glanced`: goes through it as
    well, telling Produce and Fetch in columns, where it has any; `topic_ids`: as of a `Session`."""

    told: Callable[[], Iterable[Told]]
    names: Renaming = field(default_factory=Renaming)
    glanced: Callable[[ChooseExchanges], Iterable[Told]] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    survey: Survey = field(default_factory=lambda: Survey(timed=True))
    _numbers: dict[Key, int] = field(default_factory=dict)
    _left: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Go through it for the first time."""
        met: dict[Key, _Met] = {}
        if self.glanced is not None:
            self._glance(self.glanced, met)
        else:
            for number, message in sessions.decoded(self._surveyed(met)):
                self.survey.take(number, message)
        order = sorted(met.items(), key=lambda each: (each[1].began, each[0][1]))
        self._numbers = {key: number for number, (key, _) in enumerate(order)}
        self._left = [one.requests for _, one in order]
        ids = self.topic_ids
        self.sessions = [Session(*key, one.broker, (), (), ids, user=one.user) for key, one in order]
        places = {one.number: number for number, (_, one) in enumerate(order)}
        self.survey.ends = {places[number]: end for number, end in self.survey.ends.items()}

    def again(self) -> Iterator[Decoded]:
        """All requests once more."""
        for _, message, _ in self._ordered(self.told, lambda row: 0, lambda one: None):
            yield message

    def windows(self) -> Iterator[Window]:
        """Go through it for the second time."""
        window, size = Window(), 0
        left, seen = list(self._left), set[int]()

        def orphan(one: Told) -> None:
            window.orphans.append(one.row)

        for number, message, bytes_ in self._ordered(
            self.told, lambda row: self._numbers[row["capture"], row["connection"]], orphan
        ):
            window.requests.append((number, message))
            size += bytes_
            if number not in seen:
                seen.add(number)
                window.met.append(number)
            left[number] -= 1
            if not left[number]:
                seen.discard(number)
                window.over.append(number)
            if len(window.requests) >= WINDOW or size >= WINDOW_BYTES:
                yield window
                window, size = Window(), 0
        if window.requests or window.orphans:
            yield window

    def _glance(self, glanced: Callable[[ChooseExchanges], Iterable[Told]], met: dict[Key, _Met]) -> None:
        """Survey it by its columns, and the bodies of what is not in them."""
        from analyzer.analysis.traffic_summary import Gists

        survey = self.survey
        gists = Gists(survey.learning.cluster.topic_names)

        def look(window: rows.Window) -> rows.Exchanges:
            gist = gists.take(window)
            for asked in gist.asked:
                session = met.setdefault((window.names.capture, asked.connection), _Met(len(met), asked.broker))
                session.take(asked)
                if asked.requests:
                    survey.sent(session.number, _micro(asked.earliest_ns))
                    survey.sent(session.number, _micro(asked.last_ns), asked.requests - 1)
            for touched in gist.touched:
                address, client = touched.client
                survey.touch(touched, (address, self.names.transaction(client or "") or client))
            for fetched in gist.fetched:
                survey.learning.fetched(*fetched)
            return gist.rest

        def see(one: Told) -> None:
            session = met[one.row["capture"], one.row["connection"]]
            session.user = session.user or one.user

        def number(row: Mapping[str, Any]) -> int:
            return met[row["capture"], row["connection"]].number

        rest = self._ordered(lambda: glanced(look), number, lambda one: None, see)
        for _, message in sessions.decoded((index, message) for index, message, _ in rest):
            survey.learn(message)

    def _surveyed(self, met: dict[Key, _Met]) -> Iterator[tuple[int, Decoded]]:
        def number(row: Mapping[str, Any]) -> int:
            return met[row["capture"], row["connection"]].number

        def see(one: Told) -> None:
            row = one.row
            key = row["capture"], row["connection"]
            session = met.get(key)
            if session is None:
                session = met[key] = _Met(len(met), (row["broker_ip"], row["broker_port"]))
            session.user = session.user or one.user

        by_number: dict[int, _Met] = {}
        for index, message, _ in self._ordered(self.told, number, lambda one: None, see):
            session = by_number.get(index)
            if session is None:
                row = message.request.row
                session = by_number[index] = met[row["capture"], row["connection"]]
            session.requests += 1
            session.began = session.began or message.request.sent_ns
            yield index, message

    def _ordered(
        self,
        told: Callable[[], Iterable[Told]],
        number: Callable[[Mapping[str, Any]], int],
        orphan: Callable[[Told], None],
        see: Callable[[Told], None] = lambda one: None,
    ) -> Iterator[tuple[int, Decoded, int]]:
        """(session, request, bytes) in order of time. `see` gets all that is told, `orphan` what has no request."""
        held = _Held()
        for one in told():
            see(one)
            if one.row["exchange"] is None:
                orphan(one)
                continue
            request = sessions.request_of(*one[:3])
            if self.names:
                request = renaming.request(request, self.names)
            held.put(request, number(one.row))
            while len(held) > HELD or held.bytes > HELD_BYTES:
                yield held.pop()
        while len(held):
            yield held.pop()


class _Held:
    """Requests that are held back, `bytes` of them. Nearly all come in order: those wait in a row, and only who is
    late in a heap."""

    def __init__(self) -> None:
        self.bytes = 0
        self._count = 0
        self._row: deque[_Place] = deque()
        self._late: list[_Place] = []

    def __len__(self) -> int:
        return len(self._row) + len(self._late)

    def put(self, request: Request, session: int) -> None:
        size = len(request.data or b"") + len(request.answer or b"")
        self._count += 1
        place = request.sent_ns, session, request.exchange, self._count, size, request
        if not self._row or self._row[-1] < place:
            self._row.append(place)
        else:
            heapq.heappush(self._late, place)
        self.bytes += size

    def pop(self) -> tuple[int, Decoded, int]:
        """(session, request, bytes) of the earliest."""
        late = self._late and (not self._row or self._late[0] < self._row[0])
        _, session, _, _, size, first = heapq.heappop(self._late) if late else self._row.popleft()
        self.bytes -= size
        return session, Decoded(first, decisions.quick(first)), size


_Place = tuple[int, int, int, int, int, Request]
"""When a request was sent, its session, its ordinal there, how many came before it, and bytes."""
