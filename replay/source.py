"""Where the exchanges come from that a replay sends: sessions in memory, a capture or dataset read twice, live traffic.

In: captured exchanges, and `Options`. Out: a `Source`, which says what is known before anything is sent
(`first_pass`), and sends its requests (`send`). Live traffic has a module of its own.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kwire.captures.kernels import without_collection
from kwire.replay import pace
from kwire.replay.options import Options
from kwire.replay.plan import decisions, record_times
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.decisions import Planner
from kwire.replay.plan.pauses import Pauses
from kwire.replay.plan.record_times import Times
from kwire.replay.plan.sessions import Session
from kwire.replay.plan.steps import Plan, Skip, Step
from kwire.replay.plan.values import Offers
from kwire.replay.plan.windows import TwoPassReader, WindowReader
from kwire.replay.remap.topology import Topology
from kwire.replay.run_plan import (
    RunPlan,
    check_names,
    plan_options,
    prefixed,
    topic_names,
    unnamed_counts,
    window_planner,
)
from kwire.replay.sending import Sending, Sent, Tell, from_one_process, from_workers
from kwire.replay.windowed import TopicChecks, WindowFeed, short_turns

PlannedWindow = tuple[Iterable[Step], Iterable[Skip]]


class Source(ABC):
    """Captured exchanges that a replay sends.

    - `sessions`: those that are known before anything is sent
    - `capture_names`: of the captures, for the RUN
    - `start_ns`: when the first request was captured, 0 if there is none
    - `is_windowed`: exchanges are planned, sent and recorded window by window, so they become rows as they end
    """

    is_windowed = True

    @property
    @abstractmethod
    def sessions(self) -> Sequence[Session]: ...

    @property
    def capture_names(self) -> list[str]:
        return list(dict.fromkeys(session.capture for session in self.sessions))

    @property
    @abstractmethod
    def start_ns(self) -> int: ...

    async def exclude_target(self, options: Options, topology: Topology, asked_ns: int) -> None:
        """Leave out requests that go to the target itself, if the capture may have those of this run. `asked_ns`: when
        the target was first asked something."""
        return

    @abstractmethod
    def first_pass(self, options: Options, offers: Offers, topology: Topology, tell: Tell | None = None) -> RunPlan:
        """Find out what can be known before anything is sent. Raises BadNamesError."""

    @abstractmethod
    def planned_windows(self, run_plan: RunPlan, offers: Offers, topology: Topology) -> Iterable[PlannedWindow]:
        """Plan all of it, window by window, without sending it."""

    @abstractmethod
    def record_times(self, run_plan: RunPlan, delta_ms: int) -> dict[str, Times]:
        """Times of the records that will be produced, by captured topic. `delta_ms`: by how much they are moved."""

    @abstractmethod
    async def send(self, sending: Sending) -> Sent:
        """Plan what is not planned yet, and send all of it."""


@dataclass(frozen=True, slots=True)
class MemorySource(Source):
    """Sessions that are held in memory: planned at once, and sent from one process or several."""

    sessions: Sequence[Session]
    is_windowed = False

    @property
    def start_ns(self) -> int:
        return min((session.requests[0].sent_ns for session in self.sessions if session.requests), default=0)

    def first_pass(self, options: Options, offers: Offers, topology: Topology, tell: Tell | None = None) -> RunPlan:
        if tell is not None:
            tell(f"planning {sum(len(session.requests) for session in self.sessions):,} requests")
        with without_collection():
            return self._first_pass(options, offers, topology)

    def _first_pass(self, options: Options, offers: Offers, topology: Topology) -> RunPlan:
        ids = topic_names(options, self.sessions, topology)
        planned, cluster = decisions.make(self.sessions, offers, plan_options(options, ids, topology))
        if options.prefix_topics:
            options = dataclasses.replace(options, map_topic=prefixed(options, cluster, planned))
            if options.partial:
                planned, cluster = decisions.make(self.sessions, offers, plan_options(options, ids, topology))
        check_names(options, planned)
        if options.rate is not None:
            span = max((step.at_ns for step in planned.steps), default=0) / 1e9
            speed = options.rate * span / max(len(planned.steps), 1)
            options = dataclasses.replace(options, settings=dataclasses.replace(options.settings, speed=speed or None))
        pauses = Pauses()
        for step in planned.steps if options.longest_pause_ns is None else ():
            pauses.add(step.request.sent_ns)
        return RunPlan(options, planned, cluster, pause=pauses.longest())

    def planned_windows(self, run_plan: RunPlan, offers: Offers, topology: Topology) -> Iterable[PlannedWindow]:
        return [(run_plan.plan.steps, run_plan.plan.skips)]

    def record_times(self, run_plan: RunPlan, delta_ms: int) -> dict[str, Times]:
        return record_times.record_times(run_plan.plan, delta_ms)

    async def send(self, sending: Sending) -> Sent:
        sending.tell("writing the captured side")
        sending.recorder.captured(self.sessions)
        for skip in sending.plan.skips:
            sending.recorder.skip(skip)
        processes = sending.options.processes
        if processes == 1:
            done = await from_one_process(sending, self.sessions, self.sessions)
        else:
            sending.tell(f"sending from {processes} processes")
            done = await from_workers(sending, self.sessions)
        return Sent(done, pace.end_ns(sending.plan.steps))


@dataclass(frozen=True, slots=True)
class TwoPassSource(Source):
    """A capture or dataset that is read twice and never held: `reader` has made its first pass."""

    reader: TwoPassReader

    @property
    def sessions(self) -> Sequence[Session]:
        return self.reader.sessions

    @property
    def start_ns(self) -> int:
        return self.reader.first.start_ns or 0

    def first_pass(self, options: Options, offers: Offers, topology: Topology, tell: Tell | None = None) -> RunPlan:
        first = self.reader.first
        cluster = first.finish(self.reader.again, topic_names(options, self.sessions, topology))
        planned = Plan((), (), (), first.topics(options.allow, cluster), frozenset(first.subscribed))
        if options.prefix_topics:
            options = dataclasses.replace(options, map_topic=prefixed(options, cluster, planned))
        check_names(options, planned)
        pause = first.pauses.longest() if options.longest_pause_ns is None else None
        return RunPlan(options, planned, cluster, pause=pause)

    def planned_windows(self, run_plan: RunPlan, offers: Offers, topology: Topology) -> Iterator[PlannedWindow]:
        planner = self._planner(run_plan.options, run_plan.cluster, offers, topology)
        for window in self.reader.windows():
            steps, skips = planner.take(window.requests)
            yield steps, [*(Skip(row, "no_request") for row in window.orphans), *skips]

    def record_times(self, run_plan: RunPlan, delta_ms: int) -> dict[str, Times]:
        times = self.reader.first.record_times(run_plan.cluster)
        return {topic: topic_times.shifted(delta_ms) for topic, topic_times in times.items()}

    async def send(self, sending: Sending) -> Sent:
        target = sending.target
        planner = self._planner(sending.options, sending.cluster, target.offers, target.topology)
        sent, _ = await send_windows(sending, self.reader, self.sessions, planner)
        return sent

    def _planner(self, options: Options, cluster: Cluster, offers: Offers, topology: Topology) -> Planner:
        return window_planner(options, self.sessions, cluster, offers, topology, self.start_ns, self.reader.first.ends)


async def send_windows(
    sending: Sending,
    reader: WindowReader,
    known: Sequence[Session],
    planner: Planner,
    checks: TopicChecks | None = None,
) -> tuple[Sent, float]:
    """Send windows as they are read and planned. The second result is the seconds from the first step until the last
    outcome. `known`, `checks`: as of `from_one_process` and `WindowFeed`."""
    sending.remap.offsets.joined = True
    announce = sending.announce if reader.request_count is None else None
    feed = WindowFeed(reader, planner, sending.recorder, checks, announce)
    with short_turns():
        done = await from_one_process(sending, known, (), feed)
    sending.notes += unnamed_counts(feed.unnamed)
    if feed.unread:
        sending.notes.append(f"{feed.unread:,} captured requests were not read any more, and have no row")
    return Sent(done, feed.end_ns), feed.seconds
