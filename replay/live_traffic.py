"""Traffic that is still being captured, or that nobody looks at first: planned as it comes, without a survey.

In: what gives captured exchanges as they end (stdin, or a capture with `--no-survey`). Out: a `Live` flow, whose
windows are as large as what waits; and `Meeting`, which checks of each topic, when it is first met, what a survey would
have told before. Rules: an exchange goes on as soon as it has ended, so whatever was answered before it was sent went
before it; what is sent to the target itself while we send is our own, and never sent again. A capture that never ends
has no end of connections either: which of them are over is not told, so one that has long said nothing is.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from analyzer.protocol import api_keys as names
from replay.options import Options
from replay.plan import decisions, renaming, sessions
from replay.plan.cluster import Cluster, Learning
from replay.plan.renaming import Renaming
from replay.plan.sessions import Decoded, Session, Told
from replay.plan.windows import WINDOW, WINDOW_BYTES, Window
from replay.remap.remap import Remap
from replay.remap.topology import Topology
from replay.send import link, seeding
from replay.send import target as targets
from replay.send.reach import same_host
from replay.send.same_cluster import SameCluster, why_same

WAITING: Final = 4_096
"""Exchanges that wait to be planned; then who reads waits too."""
IDLE_NS: Final = 15 * 60 * 10**9
"""For how long a connection is silent until it is taken for over: brokers end them after 10 minutes
(`connections.max.idle.ms`). One that speaks again after all is met again, as another one."""
KNOWN: Final = 1 << 16
"""Connections that are remembered; beyond that who was silent for longest is taken for over."""
_QUIET: Final = 0.1
"""Seconds after which a window is handed on, though nothing came: outcomes are recorded between two windows."""


class _Known(NamedTuple):
    """A connection: its session's number, -1 where it is our own; when its last request was sent."""

    number: int
    heard_ns: int


@dataclass(slots=True)
class Live:
    """`told`: what is captured; `names`: how groups and clients are renamed. `cluster`: so far; `sessions`: by number,
    of connections that are not over; `ends`: when each sent its last request, so far, also of the last that are over;
    `met`: how many there were; `elsewhere`: names of topic ids that the capture may lack; `start_ns`: when the first
    request was sent; `own`: requests that were left out, for they went to the target itself (`leave_out`); `unasked`:
    answers without their requests that came before the first request, and are not kept; `capture`: its name; `said`:
    what the reading says of the source."""

    told: Callable[[], Iterable[Told]]
    names: Renaming = field(default_factory=Renaming)
    sessions: dict[int, Session] = field(default_factory=dict)
    met: int = 0
    unasked: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    start_ns: int = 0
    own: int = 0
    capture: str = ""
    said: Sequence[str] = ()
    _learning: Learning = field(default_factory=Learning)
    _known: dict[tuple[str, str], _Known] = field(default_factory=dict)  # who was heard last comes last
    _over: deque[int] = field(default_factory=deque)
    _now_ns: int = 0
    _target: frozenset[tuple[str, int]] = frozenset()
    _asked_ns: int = 0
    _queue: queue.Queue[Told | BaseException | None] = field(default_factory=lambda: queue.Queue(WAITING))
    _first: deque[Told] = field(default_factory=deque)

    @property
    def cluster(self) -> Cluster:
        return self._learning.cluster

    def begin(self) -> bool:
        """Read, in a thread of its own, until there is a request; False where there is none. Raises what the reading
        does."""
        threading.Thread(target=self._read, name="kwire capture", daemon=True).start()
        while True:
            one = self._queue.get()
            if one is None:
                return False
            if isinstance(one, BaseException):
                raise one
            self._first.append(one)
            if len(self._first) > WAITING:
                self._first.popleft()
                self.unasked += 1
            if one.row["exchange"] is not None:
                request = sessions.request_of(*one[:3])
                self.start_ns, self.capture = request.sent_ns, request.capture
                return True

    def told_after(self) -> list[str]:
        """What the user should know."""
        notes = [
            "nothing was looked at before: topics were checked when they were met, and members that had joined before "
            "were not joined"
        ]
        if self.own:
            notes.append(f"{self.own:,} captured requests to the target itself were left out: what is sent is captured")
        if self.unasked:
            notes.append(f"{self.unasked:,} answers came before the first request, and are not in the RUN")
        return [*self.said, *notes]

    def leave_out(self, addresses: Iterable[tuple[str, int]], asked_ns: int) -> None:
        """These are the target's. What was sent there before it was asked for the first time is not ours."""
        self._target = frozenset((same_host(host), port) for host, port in addresses)
        self._asked_ns = asked_ns

    def windows(self) -> Iterator[Window]:
        """What has come, again and again: an empty window where nothing has. Raises what the reading does."""
        while True:
            window, size, more = Window(), 0, True
            while more and len(window.requests) < WINDOW and size < WINDOW_BYTES:
                one = self._next(wait=not window.requests)
                if one is None:
                    more = False
                elif isinstance(one, Told):
                    size += self._put(one, window)
                else:
                    break
            self._learn(window)
            self._age(window)
            yield window
            if not more:
                return

    def _next(self, wait: bool) -> Told | queue.Empty | None:
        """The next exchange; Empty: there is none at this moment, None: there will be none."""
        if self._first:
            return self._first.popleft()
        try:
            one = self._queue.get(timeout=_QUIET) if wait else self._queue.get_nowait()
        except queue.Empty as empty:
            return empty
        if isinstance(one, BaseException):
            raise one
        return one

    def _put(self, one: Told, window: Window) -> int:
        """Into the window, or left out; its bytes."""
        row = one.row
        if row["exchange"] is None:
            window.orphans.append(row)
            return 0
        request = sessions.request_of(*one[:3])
        key = row["capture"], row["connection"]
        known = self._known.pop(key, None)
        if known is None:
            broker = row["broker_ip"], row["broker_port"]
            ours = (same_host(broker[0]), broker[1]) in self._target and request.sent_ns >= self._asked_ns
            known = _Known(-1 if ours else self.met, request.sent_ns)
            if not ours:
                self.sessions[known.number] = Session(*key, broker, ())
                window.met.append(known.number)
                self.met += 1
        number = known.number
        self._known[key] = known._replace(heard_ns=max(request.sent_ns, known.heard_ns))
        self._now_ns = max(request.sent_ns, self._now_ns)
        if number < 0:
            self.own += 1
            return 0
        if self.names:
            request = renaming.request(request, self.names)
        self.ends[number] = max(request.sent_ns, self.ends.get(number, 0))
        window.requests.append((number, Decoded(request, decisions.quick(request))))
        return len(request.data or b"") + len(request.answer or b"")

    def _age(self, window: Window) -> None:
        """Forget connections that have been silent for too long, and the most silent ones where there are too many."""
        while self._known:
            key = next(iter(self._known))
            number, heard_ns = self._known[key]
            if self._now_ns - heard_ns < IDLE_NS and len(self._known) <= KNOWN:
                break
            del self._known[key]
            if number >= 0:
                window.over.append(number)
                self._over.append(number)
        # Whoever connects again waits for what was sent before: of who is long gone nothing is on its way.
        while len(self._over) > KNOWN:
            del self.ends[self._over.popleft()]

    def forget(self, number: int) -> None:
        """A session is over, and was handed on as that."""
        del self.sessions[number]

    def _learn(self, window: Window) -> None:
        # The planner changes what it decodes.
        again = ((number, Decoded(one.request, one.quick)) for number, one in window.requests)
        for _, message in sessions.decoded(again):
            self._learning.take(message)
        if window.requests:
            self._learning.so_far(self.elsewhere)

    def _read(self) -> None:
        try:
            for one in self.told():
                self._queue.put(one)
        except BaseException as failure:
            self._queue.put(failure)
        else:
            self._queue.put(None)


@dataclass(slots=True)
class Meeting:
    """What is checked of topics when they are first met. `sending`: something was sent, so that what is wrong ends the
    run with what was done. `notes`: what the user should know."""

    live: Live
    options: Options
    dial: link.Dial
    topology: Topology
    remap: Remap
    notes: list[str]
    changed: dict[str, list[str]] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _ids: int = 0

    async def look(self, named: Iterable[str]) -> None:
        """After each window, before it is sent. `named`: topics that requests named so far. Raises SameCluster,
        NotEmpty, TooFewPartitions and LinkError."""
        cluster = self.live.cluster
        known = len(cluster.ids) + len(cluster.brokers) + self.live.met
        if known != self._ids:
            self._ids = known
            same = "" if self.options.same_cluster else why_same(cluster, self.live.sessions.values(), self.topology)
            if same:
                raise SameCluster(same)
            self.remap.topics.nodes.update(nodes(cluster, self.topology))
        fresh = [name for name, topic in cluster.topics.items() if name not in self._known and not topic.internal]
        written = sorted(cluster.produced & cluster.topics.keys() - self._written)
        self._name([*named, *fresh])
        if fresh or written:
            await self._meet(cluster, fresh, written)
            self._known.update(fresh)
            self._written.update(written)

    def _name(self, some: Iterable[str]) -> None:
        prefix = self.options.prefix_topics
        for name in some if prefix else ():
            if not name.startswith("__") and name not in self.remap.topics.renamed:
                self.remap.rename(name, prefix + name)

    async def _meet(self, cluster: Cluster, fresh: list[str], written: list[str]) -> None:
        options, renamed = self.options, self.remap.topics.renamed
        asked = await targets.ask(options.host, options.port, self.dial, options.settings.answer_timeout)
        try:
            target = dataclasses.replace(asked, topology=self.topology)
            await target.learn(None)
            full = [] if options.yes else await seeding.not_empty(written, target, renamed)
            if full:
                raise seeding.NotEmpty(full)
            used = [(renamed.get(name, name), cluster.topics[name]) for name in fresh]
            short = seeding.too_few(used, self.topology)
            if short and not options.partial and names.CREATE_PARTITIONS not in options.allow:
                raise seeding.TooFewPartitions(short)
            if options.seed_topics:
                done = await seeding.seed(cluster, target, renamed, options.allow, options.seed_as_captured)
                self.notes += done.notes
                self.changed.update(done.changed)
            else:
                self.notes += seeding.absent(used, self.topology, cluster, options.allow)
            self.remap.topics.learn_from(self.topology)
        finally:
            asked.close()


def nodes(cluster: Cluster, topology: Topology) -> dict[int, int]:
    """Captured broker ids to the target's, in order, again from the first where it has fewer."""
    there = sorted(topology.nodes)
    return {node: there[index % len(there)] for index, node in enumerate(sorted(cluster.nodes))}
