"""Requests without an answer, by broker, second for second: how many, how old, and whether the broker stands still.

In: windows' exchanges, and the requests that were open at their end. Out: `OpenAtBroker`s of the end of a second, and
`Standstill`s. Rules: what a request may wait for on purpose (a Fetch its longest wait, JoinGroup and SyncGroup the
other members) is not counted as waiting; a second is judged when the one after it is over, so that no border of windows
changes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.bulk.rows import Exchanges, Names, end_point
from kwire.analyzer.frame import arrow
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.kernels import NULL

_SECOND_NS: Final = 10**9
STALLED_NS: Final = _SECOND_NS
"""A broker that answers nothing for so long, while a request is open for so long, stands still."""
MOST_BROKERS: Final = 2000
MOST_OPEN: Final = 100_000
"""Answered requests that were open at the end of a second, remembered until it is judged."""
_FOREVER: Final = 1 << 62
_MEMBERS: Final = (apis.JOIN_GROUP, apis.SYNC_GROUP)
(O_REQUEST, O_ANSWER, O_ALLOWED, O_BROKER, O_CLIENT, O_REPLICAS) = range(6)


class OpenAtBroker(NamedTuple):
    """Requests without an answer at a broker: all, those that wait longer than they may, the age of the oldest of
    these and how long the broker has answered nothing (microseconds), and whether it stands still."""

    broker: str
    requests: int
    waiting: int
    oldest_us: int | None
    silent_us: int | None
    is_stalled: bool


class Standstill(NamedTuple):
    """A broker that answers nobody: since when (ns), and how many clients and requests wait."""

    broker: str
    since_ns: int
    until_ns: int
    clients: int
    requests: int


@dataclass(slots=True)
class OpenRequests:
    """Takes windows; knows the open requests at their end, and those of the last seconds."""

    brokers: dict[str, int] = field(default_factory=dict)
    answers: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By second, then broker: its first and its last answer, ns."""
    last_answer: dict[int, int] = field(default_factory=dict)
    pending: np.ndarray = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    closed: np.ndarray = field(default_factory=lambda: np.zeros((0, 6), np.int64))

    def take(self, rows: Exchanges, open_: np.ndarray, names: Names) -> None:
        """Take a window. open_: int64[n, 6] as `Window.open` has them."""
        ends, connections = names.ends, open_[:, 0].tolist()
        brokers = {number: self._broker(ends[number], names) for number in dict.fromkeys(connections)}
        self.pending = np.stack(
            [
                open_[:, 1],
                np.full(len(open_), _FOREVER),
                _allowed(open_[:, 2], open_[:, 4]),
                np.array([brokers[number] for number in connections], np.int64),
                open_[:, 5],
                _is_replicas(open_[:, 2], open_[:, 3]),
            ],
            axis=1,
        ).reshape(-1, 6)
        if not len(rows):
            return
        used, where = np.unique(rows.connection, return_inverse=True)
        broker = np.array([self._broker(ends[number], names) for number in used.tolist()], np.int64)[where.reshape(-1)]
        request, answer = rows.column("request_end"), rows.column("response_end")
        answered = answer != NULL
        self._learn_answers(broker[answered], answer[answered])
        crossing = answered & (request != NULL) & (request // _SECOND_NS < answer // _SECOND_NS)
        columns = [
            request,
            answer,
            _allowed(rows.column("api_key"), rows.column("max_wait_ms")),
            broker,
            rows.column("client_id"),
            _is_replicas(rows.column("api_key"), rows.column("acks")),
        ]
        late = np.stack([column[crossing] for column in columns], axis=1)
        self.closed = np.concatenate([self.closed, late])[-MOST_OPEN:]

    def _broker(self, end: tuple[int, ...], names: Names) -> int:
        name = end_point(names.strings[end[2]], end[3])
        if name not in self.brokers and len(self.brokers) >= MOST_BROKERS:
            return -1
        return self.brokers.setdefault(name, len(self.brokers))

    def _learn_answers(self, broker: np.ndarray, answer: np.ndarray) -> None:
        if not len(broker):
            return
        second = answer // _SECOND_NS
        order = np.lexsort((answer, broker, second))
        broker, answer, second = broker[order], answer[order], second[order]
        starts = np.flatnonzero(np.append(True, (broker[1:] != broker[:-1]) | (second[1:] != second[:-1])))
        ends = np.append(starts[1:], len(broker)) - 1
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            of, number = int(broker[first]), int(second[first])
            known = self.answers.setdefault(number, {})
            before = known.get(of, (_FOREVER, NULL))
            known[of] = min(before[0], int(answer[first])), max(before[1], int(answer[last]))
            self.last_answer[of] = max(self.last_answer.get(of, NULL), int(answer[last]))

    def at_end_of(self, number: int) -> list[OpenAtBroker]:
        """Open requests at the end of a second, when the one after it is over; forgets what only earlier ones need."""
        end = (number + 1) * _SECOND_NS
        every = np.concatenate([self.closed, self.pending])
        every = every[(every[:, O_REQUEST] <= end) & (every[:, O_ANSWER] > end) & (every[:, O_BROKER] >= 0)]
        names = list(self.brokers)
        before = {
            broker: known[1]
            for second in sorted(self.answers)
            if second <= number
            for broker, known in self.answers[second].items()
        }
        after = self.answers.get(number + 1, {})
        out = []
        for broker in arrow.distinct(every[:, O_BROKER]).tolist():
            rows = every[every[:, O_BROKER] == broker]
            waited = end - rows[:, O_REQUEST] - rows[:, O_ALLOWED]
            waiting = rows[waited > 0]
            silent_since = before.get(broker)
            following = after.get(broker, (end + _SECOND_NS,))[0]
            longest = np.minimum(waiting[:, O_ANSWER], following) - waiting[:, O_REQUEST] - waiting[:, O_ALLOWED]
            quiet = silent_since is None or following - silent_since >= STALLED_NS
            out.append(
                OpenAtBroker(
                    names[broker],
                    len(rows),
                    len(waiting),
                    int(end - waiting[:, O_REQUEST].min()) // 1000 if len(waiting) else None,
                    None if silent_since is None else (end - silent_since) // 1000,
                    bool(quiet and len(longest) and longest.max() >= STALLED_NS),
                )
            )
        self.closed = self.closed[self.closed[:, O_ANSWER] > end]
        for second in [second for second in self.answers if second < number]:
            gone = self.answers.pop(second)
            kept_on = self.answers.setdefault(number, {})
            for broker, (_, last) in gone.items():
                if broker not in kept_on:
                    kept_on[broker] = last, last
        return sorted(out, key=lambda entry: (-(entry.oldest_us or 0), entry.broker))

    def now(self, time_ns: int) -> list[OpenAtBroker]:
        """Open requests as the last window left them."""
        out = []
        names = list(self.brokers)
        rows_of = self.pending[(self.pending[:, O_BROKER] >= 0) & (self.pending[:, O_REQUEST] != NULL)]
        for broker in arrow.distinct(rows_of[:, O_BROKER]).tolist():
            rows = rows_of[rows_of[:, O_BROKER] == broker]
            waited = time_ns - rows[:, O_REQUEST] - rows[:, O_ALLOWED]
            waiting = rows[waited > 0]
            last = self.last_answer.get(broker)
            quiet = last is None or time_ns - last >= STALLED_NS
            oldest = int(time_ns - waiting[:, O_REQUEST].min()) // 1000 if len(waiting) else None
            is_stalled = bool(quiet and len(waiting) and waited.max() >= STALLED_NS)
            silent = None if last is None else (time_ns - last) // 1000
            out.append(OpenAtBroker(names[broker], len(rows), len(waiting), oldest, silent, is_stalled))
        return sorted(out, key=lambda entry: (-(entry.oldest_us or 0), entry.broker))

    def standstills(self, time_ns: int, least_ns: int) -> list[Standstill]:
        """Brokers that have answered nobody for so long while clients wait for what waits for no replica."""
        out = []
        for name, broker in self.brokers.items():
            last = self.last_answer.get(broker)
            if last is None or time_ns - last < least_ns:
                continue
            rows = self.pending[(self.pending[:, O_BROKER] == broker)]
            rows = rows[time_ns - rows[:, O_REQUEST] - rows[:, O_ALLOWED] >= least_ns // 2]
            if len(rows) and not rows[:, O_REPLICAS].all():
                clients = len(arrow.distinct(rows[:, O_CLIENT]))
                out.append(Standstill(name, last, time_ns, clients, len(rows)))
        return out


def _allowed(api: np.ndarray, max_wait_ms: np.ndarray) -> np.ndarray:
    """int64[n]: how long requests may wait on purpose, ns."""
    fetches = arrow.among(api, (apis.FETCH, apis.SHARE_FETCH)) & (max_wait_ms > 0)
    allowed = np.where(fetches, np.maximum(max_wait_ms, 0) * 1_000_000, 0)
    result: np.ndarray = np.where(arrow.among(api, _MEMBERS), _FOREVER // 2, allowed)
    return result


def _is_replicas(api: np.ndarray, acks: np.ndarray) -> np.ndarray:
    """int64[n]: 1 for requests that may wait for replicas at other brokers."""
    waits = ((api == apis.PRODUCE) & (acks == -1)) | arrow.among(api, (apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT))
    result: np.ndarray = waits.astype(np.int64)
    return result
