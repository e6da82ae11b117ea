"""Replays traffic that is still being captured, or that is sent without a first pass: planned as it comes.

In: a function that gives captured exchanges as they end (stdin, or a capture with `--no-survey`). Out: a `LiveSource`,
whose windows hold what waits; and `NewTopicChecks`, which checks each topic when it first appears. Rules: an exchange
is passed on as soon as it has ended, so whatever was answered before it was sent went before it; what this replay sends
to the target is never sent again. A capture that never ends has no last request of a connection either, so a connection
that has been silent for long counts as over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kwire.analyzer.protocol import api_keys
from kwire.replay.options import Options
from kwire.replay.plan import decisions, renaming, sessions
from kwire.replay.plan.cluster import Cluster, Learning
from kwire.replay.plan.record_times import Times
from kwire.replay.plan.renaming import Renaming
from kwire.replay.plan.sessions import CapturedExchange, Decoded, Session
from kwire.replay.plan.steps import Plan
from kwire.replay.plan.values import Offers
from kwire.replay.plan.windows import WINDOW, WINDOW_BYTES, Window
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology
from kwire.replay.run_plan import RunPlan, broker_ids, topic_names, window_planner
from kwire.replay.send import link, seeding
from kwire.replay.send import target as targets
from kwire.replay.send.reach import same_host
from kwire.replay.send.same_cluster import SameClusterError, why_same
from kwire.replay.sending import Sending, Sent, Tell
from kwire.replay.source import PlannedWindow, Source, send_windows

WAITING: Final = 4_096
"""Exchanges that wait to be planned; with more, reading waits too."""
IDLE_NS: Final = 15 * 60 * 10**9
"""How long a connection may be silent before it counts as over: brokers close them after 10 minutes
(`connections.max.idle.ms`). One that goes on after all is taken for another connection."""
KNOWN: Final = 1 << 16
"""Connections that are remembered; beyond that the one that was silent for longest counts as over."""
_QUIET: Final = 0.1
"""Seconds after which a window is handed on although nothing came: outcomes are recorded between two windows."""


class _KnownConnection(NamedTuple):
    """A connection: its session's number, -1 if it is this replay's own; when its last request was sent."""

    number: int
    last_ns: int


@dataclass(slots=True)
class LiveSource(Source):
    """Traffic that is planned as it comes.

    - `exchanges`: gives what is captured; `names`: how groups and clients are renamed
    - `open_sessions`: sessions of connections that are not over, by number; `met`: how many sessions there were
    - `unasked`: responses without their requests that came before the first request, and are dropped
    - `ends`: when each session sent its last request, so far; also of those that were over last
    - `names_by_id`: names of topic ids that the capture may lack
    - `first_ns`: when the first request was sent; `capture`: the name of the capture
    - `own`: requests that were left out because they went to the target itself (`leave_out`)
    - `reading_notes`: lines for the user about the capture
    """

    exchanges: Callable[[], Iterable[CapturedExchange]]
    names: Renaming = field(default_factory=Renaming)
    open_sessions: dict[int, Session] = field(default_factory=dict)
    met: int = 0
    unasked: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    names_by_id: Mapping[str, str] = field(default_factory=dict)
    first_ns: int = 0
    own: int = 0
    capture: str = ""
    reading_notes: Sequence[str] = ()
    _learning: Learning = field(default_factory=Learning)
    _known: dict[tuple[str, str], _KnownConnection] = field(default_factory=dict)  # the last to send comes last
    _over: deque[int] = field(default_factory=deque)
    _now_ns: int = 0
    _target: frozenset[tuple[str, int]] = frozenset()
    _asked_ns: int = 0
    _queue: queue.Queue[CapturedExchange | BaseException | None] = field(default_factory=lambda: queue.Queue(WAITING))
    _first: deque[CapturedExchange] = field(default_factory=deque)

    @property
    def cluster(self) -> Cluster:
        return self._learning.cluster

    @property
    def sessions(self) -> Sequence[Session]:
        return ()

    @property
    def capture_names(self) -> list[str]:
        return [self.capture]

    @property
    def start_ns(self) -> int:
        return self.first_ns

    @property
    def request_count(self) -> None:
        return None

    def session(self, number: int) -> Session:
        return self.open_sessions[number]

    async def exclude_target(self, options: Options, topology: Topology, asked_ns: int) -> None:
        self.leave_out(await _addresses(options, topology), asked_ns)

    def first_pass(self, options: Options, offers: Offers, topology: Topology, tell: Tell | None = None) -> RunPlan:
        self.names_by_id = topic_names(options, (), topology)
        return RunPlan(options, Plan((), (), ()), self.cluster, has_seen_all=False)

    def planned_windows(self, run_plan: RunPlan, offers: Offers, topology: Topology) -> Iterable[PlannedWindow]:
        raise NotImplementedError("live traffic is planned when it is sent")

    def record_times(self, run_plan: RunPlan, delta_ms: int) -> dict[str, Times]:
        return {}

    async def send(self, sending: Sending) -> Sent:
        options, topology = sending.options, sending.target.topology
        planner = window_planner(options, (), self.cluster, sending.target.offers, topology, self.first_ns, self.ends)
        checks = NewTopicChecks(self, options, sending.dial, topology, sending.remap, sending.notes, sending.changed)
        sent, seconds = await send_windows(sending, self, (), planner, checks)
        sending.notes += self.notes_at_end()
        # The source may be silent at the end.
        return Sent(dataclasses.replace(sent.done, seconds=seconds), sent.end_ns)

    def begin(self) -> bool:
        """Read, in a thread of its own, until there is a request; False if there is none. Raises the errors of
        reading."""
        threading.Thread(target=self._read, name="kwire capture", daemon=True).start()
        while True:
            exchange = self._queue.get()
            if exchange is None:
                return False
            if isinstance(exchange, BaseException):
                raise exchange
            self._first.append(exchange)
            if len(self._first) > WAITING:
                self._first.popleft()
                self.unasked += 1
            if exchange.row["exchange"] is not None:
                request = sessions.request_of(*exchange[:3])
                self.first_ns, self.capture = request.sent_ns, request.capture
                return True

    def notes_at_end(self) -> list[str]:
        """Lines for the user, once all is sent."""
        notes = [
            "nothing was looked at before: topics were checked when they were met, and members that had joined before "
            "were not joined"
        ]
        if self.own:
            notes.append(f"{self.own:,} captured requests to the target itself were left out: what is sent is captured")
        if self.unasked:
            notes.append(f"{self.unasked:,} answers came before the first request, and are not in the RUN")
        return [*self.reading_notes, *notes]

    def leave_out(self, addresses: Iterable[tuple[str, int]], asked_ns: int) -> None:
        """Leave out requests to these addresses, which are the target's. Requests from before `asked_ns`, when the
        target was first asked something, are not this replay's, and stay."""
        self._target = frozenset((same_host(host), port) for host, port in addresses)
        self._asked_ns = asked_ns

    def windows(self) -> Iterator[Window]:
        """Give what has come, again and again: an empty window if nothing has. Raises the errors of reading."""
        while True:
            window, size, more = Window(), 0, True
            while more and len(window.requests) < WINDOW and size < WINDOW_BYTES:
                exchange = self._next(wait=not window.requests)
                if exchange is None:
                    more = False
                elif isinstance(exchange, CapturedExchange):
                    size += self._put(exchange, window)
                else:
                    break
            self._learn(window)
            self._age(window)
            yield window
            if not more:
                return

    def _next(self, wait: bool) -> CapturedExchange | queue.Empty | None:
        """The next exchange; Empty if there is none at this moment, None if there will be none."""
        if self._first:
            return self._first.popleft()
        try:
            exchange = self._queue.get(timeout=_QUIET) if wait else self._queue.get_nowait()
        except queue.Empty as empty:
            return empty
        if isinstance(exchange, BaseException):
            raise exchange
        return exchange

    def _put(self, exchange: CapturedExchange, window: Window) -> int:
        """Put an exchange into the window, or leave it out; return its bytes."""
        row = exchange.row
        if row["exchange"] is None:
            window.orphans.append(row)
            return 0
        request = sessions.request_of(*exchange[:3])
        key = row["capture"], row["connection"]
        known = self._known.pop(key, None)
        if known is None:
            broker = row["broker_ip"], row["broker_port"]
            is_own = (same_host(broker[0]), broker[1]) in self._target and request.sent_ns >= self._asked_ns
            known = _KnownConnection(-1 if is_own else self.met, request.sent_ns)
            if not is_own:
                self.open_sessions[known.number] = Session(*key, broker, ())
                window.met.append(known.number)
                self.met += 1
        number = known.number
        self._known[key] = known._replace(last_ns=max(request.sent_ns, known.last_ns))
        self._now_ns = max(request.sent_ns, self._now_ns)
        if number < 0:
            self.own += 1
            return 0
        if self.names:
            request = renaming.request(request, self.names)
        self.ends[number] = max(request.sent_ns, self.ends.get(number, 0))
        window.requests.append((number, Decoded(request, decisions.fast_path(request))))
        return len(request.data or b"") + len(request.answer or b"")

    def _age(self, window: Window) -> None:
        """Forget connections that have been silent for too long, and the most silent ones if there are too many."""
        while self._known:
            key = next(iter(self._known))
            number, last_ns = self._known[key]
            if self._now_ns - last_ns < IDLE_NS and len(self._known) <= KNOWN:
                break
            del self._known[key]
            if number >= 0:
                window.over.append(number)
                self._over.append(number)
        # A client that connects again waits for what it sent before: of those long gone nothing is on its way.
        while len(self._over) > KNOWN:
            del self.ends[self._over.popleft()]

    def forget(self, number: int) -> None:
        """Drop a session that is over, and was handed on as that."""
        del self.open_sessions[number]

    def _learn(self, window: Window) -> None:
        # The planner changes what it decodes.
        again = ((number, Decoded(message.request, message.fast_path)) for number, message in window.requests)
        for _, message in sessions.decoded(again):
            self._learning.take(message)
        if window.requests:
            self._learning.so_far(self.names_by_id)

    def _read(self) -> None:
        try:
            for exchange in self.exchanges():
                self._queue.put(exchange)
        except BaseException as failure:
            self._queue.put(failure)
        else:
            self._queue.put(None)


async def _addresses(options: Options, topology: Topology) -> list[tuple[str, int]]:
    """Addresses of the target, by name and as they stand in packets."""
    addresses = [(options.host, options.port), *topology.nodes.values()]
    for host, port in list(addresses):
        with contextlib.suppress(OSError):
            infos = await asyncio.get_running_loop().getaddrinfo(host, port)
            addresses += [(str(info[4][0]), port) for info in infos]
    return addresses


@dataclass(slots=True)
class NewTopicChecks:
    """Checks topics when they first appear. `notes`: lines for the user; `changed`: as of a `Sending`."""

    live: LiveSource
    options: Options
    dial: link.Dial
    topology: Topology
    remap: Remap
    notes: list[str]
    changed: dict[str, list[str]] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _ids: int = 0

    async def check(self, named: Iterable[str]) -> None:
        """Check the topics of a window before it is sent. `named`: topics that requests named so far. Raises
        KwireError, as SameClusterError or NotEmptyError."""
        cluster = self.live.cluster
        known = len(cluster.ids) + len(cluster.brokers) + self.live.met
        if known != self._ids:
            self._ids = known
            same = (
                "" if self.options.same_cluster else why_same(cluster, self.live.open_sessions.values(), self.topology)
            )
            if same:
                raise SameClusterError(same)
            self.remap.topics.nodes.update(broker_ids(cluster, self.topology))
        fresh = [name for name, topic in cluster.topics.items() if name not in self._known and not topic.internal]
        written = sorted(cluster.produced & cluster.topics.keys() - self._written)
        self._name([*named, *fresh])
        if fresh or written:
            await self._check(cluster, fresh, written)
            self._known.update(fresh)
            self._written.update(written)

    def _name(self, topics: Iterable[str]) -> None:
        prefix = self.options.prefix_topics
        for name in topics if prefix else ():
            if not name.startswith("__") and name not in self.remap.topics.renamed:
                self.remap.rename(name, prefix + name)

    async def _check(self, cluster: Cluster, fresh: list[str], written: list[str]) -> None:
        options, renamed = self.options, self.remap.topics.renamed
        connected = await targets.ask(options.host, options.port, self.dial, options.settings.answer_timeout)
        try:
            target = dataclasses.replace(connected, topology=self.topology)
            await target.learn(None)
            full = [] if options.yes else await seeding.not_empty(written, target, renamed)
            if full:
                raise seeding.NotEmptyError(full)
            used = [(renamed.get(name, name), cluster.topics[name]) for name in fresh]
            short = seeding.too_few(used, self.topology)
            if short and not options.partial and api_keys.CREATE_PARTITIONS not in options.allow:
                raise seeding.TooFewPartitionsError(short)
            lacks = seeding.lacking(written, self.topology, cluster, renamed, options.allow)
            if lacks and not (options.seed_topics or options.missing_topics_ok):
                raise seeding.MissingTopicsError(lacks)
            if options.seed_topics:
                seeded = await seeding.seed(cluster, target, renamed, options.allow, options.seed_as_captured)
                self.notes += seeded.notes
                self.changed.update(seeded.changed)
            else:
                self.notes += seeding.absent(used, self.topology, cluster, options.allow)
            self.remap.topics.learn_from(self.topology)
        finally:
            connected.close()
