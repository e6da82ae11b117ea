"""Count the last seconds: exchanges by API and broker, by client, and groups in rebalance.

In: windows, measured. Out: a `Moment`. Rules: time is that of the packets; what is kept is bounded by `SECONDS` and by
`MOST` of each kind, and what is more is counted among others; no Python object an exchange.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.bulk.exchange_tables import latency_us
from kwire.analyzer.bulk.rows import Exchanges, end_point
from kwire.analyzer.frame import arrow
from kwire.analyzer.live.open_requests import OpenAtBroker, OpenRequests
from kwire.analyzer.live.reader_delays import ReaderDelays, ReaderLine, concerned, lines_of
from kwire.analyzer.live.reader_lag import ReaderStanding
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.kernels import NULL

SECONDS: Final = 10
"""What "now" is: rates and percentiles are of so long."""

MOST: Final = 2000
"""Pairs of API and broker, and clients, told apart in one second; groups remembered."""

STEPS: Final = 16
"""Buckets of latencies to a power of two: a percentile is right within 5 %."""
_BUCKETS: Final = 42 * STEPS
_SECOND_NS: Final = 10**9
_FORGOTTEN_SECONDS: Final = 300
_LONGEST_PAUSE: Final = 60
"""Seconds without anything that are told one by one."""

_IN_PROGRESS: Final = 27
"""REBALANCE_IN_PROGRESS, which members hear until they join again."""

Key = tuple[int, str]
"""API key, and the broker's address."""


def bucket(micros: np.ndarray) -> np.ndarray:
    """The bucket of each duration."""
    at: np.ndarray = (np.log2(np.maximum(micros, 1).astype(np.float64)) * STEPS).astype(np.int64)
    at[at >= _BUCKETS] = _BUCKETS - 1
    return at


def quantile(histogram: np.ndarray, share: float) -> int | None:
    """Microseconds that so large a share did not exceed: the middle of its bucket; None where there is none."""
    total = int(histogram.sum())
    if not total:
        return None
    at = int(np.searchsorted(np.cumsum(histogram), max(1, np.ceil(total * share))))
    return round(2 ** ((at + 0.5) / STEPS)) if at else 1


@dataclass(slots=True)
class Tally:
    """Exchanges of one kind: how many, those with an error or no answer, buckets of what they took but for what was
    held on purpose, and of what was held."""

    count: int = 0
    errors: int = 0
    took: np.ndarray = field(default_factory=lambda: np.zeros(_BUCKETS, np.int64))
    held: np.ndarray = field(default_factory=lambda: np.zeros(_BUCKETS, np.int64))

    def add(self, other: Tally) -> None:
        self.count += other.count
        self.errors += other.errors
        self.took += other.took
        self.held += other.held


@dataclass(slots=True)
class Second:
    """One second of packets' time."""

    number: int
    bytes: int = 0
    kinds: dict[Key, Tally] = field(default_factory=dict)
    clients: dict[str, list[int]] = field(default_factory=dict)
    delays: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    """By reader and topic: buckets of how long batches took from their producer to it."""
    standing: list[ReaderStanding] | None = None
    """How readers stood at its end, where seconds are told; None: as in the second before."""


class Line(NamedTuple):
    """An API at a broker: exchanges and errors a second, what they took (microseconds), and what was held."""

    api: str
    broker: str
    rate: float
    error_rate: float
    p50_us: int | None
    p99_us: int | None
    held_p50_us: int | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The last seconds, or one. `clients`: exchanges and errors a second, busiest first; `rebalancing`: groups, and
    since when (nanoseconds)."""

    time_ns: int
    exchanges: float
    errors: float
    bytes: float
    lines: list[Line]
    clients: list[tuple[str, float, float]]
    client_count: int
    rebalancing: list[tuple[str, int]]
    open: list[OpenAtBroker] = field(default_factory=list)
    seconds: float = 1.0
    """How long rates and percentiles are of."""
    readers: list[ReaderLine] = field(default_factory=list)


OTHERS: Final = "(others)"


class Counts:
    """Takes windows; `moment` says how it stands. `telling`: each second is put in `told` when it is over: every
    exchange is in one of them, a late one in the next. Which one follows from the exchanges and their order alone."""

    def __init__(self, telling: bool = False, topic_name: Callable[[str], str] = str) -> None:
        self.time_ns = 0
        self.told: deque[Moment] = deque()
        self._telling, self._told = telling, -1
        self._seconds: deque[Second] = deque()
        self._groups: dict[str, int] = {}
        """When a group was last heard of, in that order."""
        self._since: dict[str, int] = {}
        """Since when it is in rebalance."""
        self.open = OpenRequests()
        self.delays = ReaderDelays()
        self._standing: list[ReaderStanding] = []
        """How readers stood at the end of the last second that was forgotten."""
        self._topic_name = topic_name

    def take(self, rows: Exchanges, open_: np.ndarray | None = None) -> None:
        """The exchanges of one window; open_: the requests without an answer at its end (`Window.open`)."""
        if open_ is not None:
            self.open.take(rows, open_, rows.names)
        if not len(rows):
            return
        when = rows.column("response_end")
        when = np.where(when == NULL, rows.column("request_end"), when)
        when = np.where(when == NULL, rows.column("request_time"), when)
        # How late it was before each: by the rows alone, so that no border of windows puts one into another second.
        clock = np.maximum.accumulate(np.append(self.time_ns, when))[:-1]
        when = np.where(when == NULL, clock, when)
        self._groups_of(rows, when)
        code, answered = rows.column("error_code"), rows.column("response_end") != NULL
        failed = ((code != NULL) & (code != 0)) | (~answered & (rows.column("acks") != 0))
        latency, _ = latency_us(rows.columns)
        held = np.where(rows.column("hold_us") == NULL, 0, rows.column("hold_us"))
        request_bytes, answer = (np.where(rows.column(name) == NULL, 0, rows.column(name)) for name in _SIZES)
        size = request_bytes + answer
        brokers, where = np.unique(
            np.array([rows.names.ends[i][2:] for i in _used(rows)] or [(0, 0)]), axis=0, return_inverse=True
        )
        broker = where.reshape(-1)[np.searchsorted(_used(rows), rows.connection)]
        names = [end_point(rows.names.strings[address], port) for address, port in brokers.tolist()]
        second = when // _SECOND_NS
        if self._telling:
            second = np.maximum(second, clock // _SECOND_NS - 1)  # those before are told
        self.delays.learn_groups(rows)
        parts = concerned(rows)
        of_part = second[rows.owner[parts]]
        for number in arrow.distinct(second).tolist():
            self._add(number, np.flatnonzero(second == number), rows, broker, names, failed, latency, held, size)
            self._delay(number, rows, parts[of_part == number])
        self.time_ns = max(self.time_ns, int(when.max()))
        self.advance(self.time_ns)

    def _add(
        self,
        number: int,
        here: np.ndarray,
        rows: Exchanges,
        broker: np.ndarray,
        broker_names: list[str],
        failed: np.ndarray,
        latency: np.ndarray,
        held: np.ndarray,
        size: np.ndarray,
    ) -> None:
        second = self._second(number)
        second.bytes += int(size[here].sum())
        api = rows.column("api_key")[here]
        kind = np.where(api == NULL, -1, api) * len(broker_names) + broker[here]
        for kind_number in arrow.distinct(kind).tolist():
            rows_of_kind = here[kind == kind_number]
            key = (kind_number // len(broker_names), broker_names[kind_number % len(broker_names)])
            if key not in second.kinds and len(second.kinds) >= MOST:
                key = (-1, OTHERS)
            tally = second.kinds.setdefault(key, Tally())
            tally.count += len(rows_of_kind)
            tally.errors += int(failed[rows_of_kind].sum())
            timed = rows_of_kind[latency[rows_of_kind] != NULL]
            tally.took += np.bincount(bucket(np.maximum(latency[timed] - held[timed], 0)), minlength=_BUCKETS)
            held_rows = timed[held[timed] > 0]
            tally.held += np.bincount(bucket(held[held_rows]), minlength=_BUCKETS)
        client = rows.column("client_id")[here]
        for number_of in arrow.distinct(client).tolist():
            rows_of_kind = here[client == number_of]
            name = rows.names.strings[number_of] if number_of != NULL else ""
            if name not in second.clients and len(second.clients) >= MOST:
                name = OTHERS
            counted = second.clients.setdefault(name, [0, 0])
            counted[0] += len(rows_of_kind)
            counted[1] += int(failed[rows_of_kind].sum())

    def _delay(self, number: int, rows: Exchanges, parts: np.ndarray) -> None:
        """Learn how readers stand from topic-partitions of a second."""
        second = self._second(number)
        for key, took in self.delays.take(rows, parts, self._topic_name).items():
            if key in second.delays or len(second.delays) < MOST:
                known = second.delays.setdefault(key, np.zeros(_BUCKETS, np.int64))
                known += np.bincount(bucket(np.array(took)), minlength=_BUCKETS)
        if self._telling:
            second.standing = self.delays.lag.standing((second.number + 1) * _SECOND_NS)

    def _second(self, number: int) -> Second:
        """The second that something of `number` counts in: its own, or, where that was told, the next."""
        number = max(number, self._told + 1)
        at = len(self._seconds)
        while at and self._seconds[at - 1].number > number:
            at -= 1
        if at and self._seconds[at - 1].number == number:
            return self._seconds[at - 1]
        self._seconds.insert(at, Second(number))
        return self._seconds[at]

    def advance(self, time_ns: int) -> None:
        """It is so late: seconds that are over are told, and old ones forgotten."""
        self.time_ns = max(self.time_ns, time_ns)
        now = self.time_ns // _SECOND_NS
        if self._telling:
            self._tell(now - 1)
        self._forget(now - SECONDS)
        old = self.time_ns - _FORGOTTEN_SECONDS * _SECOND_NS
        while self._groups and next(iter(self._groups.values())) < old:
            name = next(iter(self._groups))
            self._groups.pop(name)
            self._since.pop(name, None)

    def _forget(self, until: int) -> None:
        """Forget the seconds up to `until`."""
        while self._seconds and self._seconds[0].number <= until:
            self._standing = self._seconds.popleft().standing or self._standing

    def _readers(self, chosen: list[Second], number: int | None) -> list[ReaderLine]:
        """How readers stand: now, or at the end of a second."""
        histograms: dict[tuple[str, str], np.ndarray] = {}
        for entry in chosen:
            for key, took in entry.delays.items():
                histograms[key] = histograms[key] + took if key in histograms else took
        delays = {key: (int(took.sum()), quantile(took, 0.99)) for key, took in histograms.items()}
        if number is None:
            return lines_of(self.delays.lag.standing(self.time_ns), self.time_ns, delays)
        standing = self._standing
        for entry in self._seconds:
            if entry.number <= number and entry.standing is not None:
                standing = entry.standing
        return lines_of(standing, (number + 1) * _SECOND_NS, delays)

    def _tell(self, until: int) -> None:
        """Seconds before `until` are over; a second in which nothing came is one too, unless many follow."""
        if self._told < 0:
            if not self._seconds:
                return
            self._told = self._seconds[0].number - 1
        if until - self._told > _LONGEST_PAUSE and not any(second.number < until for second in self._seconds):
            self._told = until - 1
        while self._told + 1 < until:
            following = next((second.number for second in self._seconds), until)
            if following - self._told > _LONGEST_PAUSE:
                self._told = min(following, until) - 1
                continue
            self._told += 1
            self.told.append(self.moment(self._told))
            self._forget(self._told - SECONDS)

    def end(self) -> None:
        """Nothing follows: all seconds are over."""
        if self._telling and self._seconds:
            self._tell(self._seconds[-1].number + 1)

    @property
    def until(self) -> int:
        """The last second that is over, for all that is told; -1: none is."""
        return self._told

    def end_as_before(self, until: int) -> None:
        """Here somebody ended it, when the seconds up to `until` had been told; it goes on."""
        self.end()
        self._told = max(self._told, until)

    # -- groups --------------------------------------------------------------------------------------------------------
    def _groups_of(self, rows: Exchanges, when: np.ndarray) -> None:
        """Members that join, or hear that they should, are in rebalance; who got an assignment is not any more."""
        api, code, group = rows.column("api_key"), rows.column("error_code"), rows.column("group_id")
        about = (group != NULL) & (
            (code == _IN_PROGRESS)
            | arrow.among(api, (apis.JOIN_GROUP, apis.SYNC_GROUP))
            | (arrow.among(api, (apis.HEARTBEAT, apis.LEAVE_GROUP)) & (code == 0) & bool(self._since))
        )
        for i in np.flatnonzero(about).tolist():
            name, key = rows.names.strings[int(group[i])], int(api[i])
            begins = int(code[i]) == _IN_PROGRESS or key == apis.JOIN_GROUP
            if begins:
                self._since.setdefault(name, int(when[i]))
            elif int(code[i]) == 0:
                self._since.pop(name, None)
            self._groups.pop(name, None)
            self._groups[name] = int(when[i])
            if len(self._groups) > MOST:
                oldest = next(iter(self._groups))
                self._groups.pop(oldest)
                self._since.pop(oldest, None)

    # -- how it stands -------------------------------------------------------------------------------------------------
    def moment(self, number: int | None = None) -> Moment:
        """The last seconds, the one that is not over included; or one second that is kept, by its number."""
        chosen = [entry for entry in self._seconds if number is None or entry.number == number]
        begun = self._seconds[0].number if self._seconds else 0
        length = 1.0 if number is not None else max(1.0, min(SECONDS, self.time_ns / 1e9 - begun))
        kinds: dict[Key, Tally] = {}
        clients: dict[str, list[int]] = {}
        for entry in chosen:
            for key, tally in entry.kinds.items():
                kinds.setdefault(key, Tally()).add(tally)
            for name, (count, errors) in entry.clients.items():
                counted = clients.setdefault(name, [0, 0])
                counted[0] += count
                counted[1] += errors
        lines = [
            Line(
                apis.name(key[0]) if key[0] >= 0 else "?",
                key[1],
                tally.count / length,
                tally.errors / length,
                quantile(tally.took, 0.5),
                quantile(tally.took, 0.99),
                quantile(tally.held, 0.5),
            )
            for key, tally in kinds.items()
        ]
        busiest = sorted(
            ((name, count / length, errors / length) for name, (count, errors) in clients.items()),
            key=lambda entry: (-entry[1], entry[0]),
        )
        return Moment(
            self.time_ns if number is None else number * _SECOND_NS,
            sum(entry.count for entry in kinds.values()) / length,
            sum(entry.errors for entry in kinds.values()) / length,
            sum(entry.bytes for entry in chosen) / length,
            sorted(lines, key=lambda entry: (-entry.rate, entry.api, entry.broker)),
            busiest[:50],
            len(clients),
            sorted(self._since.items(), key=lambda entry: (entry[1], entry[0])),
            self.open.now(self.time_ns) if number is None else self.open.at_end_of(number),
            length,
            self._readers(chosen, number),
        )


_SIZES: Final = ("request_bytes", "response_bytes")


def _used(rows: Exchanges) -> np.ndarray:
    return arrow.distinct(rows.connection)
