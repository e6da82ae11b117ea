"""Sends a plan: each step when it is due and what it waits for is there, to the broker that serves it now.

In: a plan, the captured cluster, the target. Out: an `Outcome` for each step. One task per session sends its steps in
order; one task per sent step waits for its answers and repeats it where a rule says so. Nothing here decides what may
be sent (the plan does), as what it goes to the target (`preparation`), which broker gets it (`routing`), when a wait
is over (`dependencies`), or what an answer means (`retry`). Time is the event loop's, the network is a `Dial`, so a
test provides both. Rules: every wait has a bound; what was done is recorded whatever happens.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from kwire.replay.outcome import Durations, Outcome
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.sessions import Session
from kwire.replay.plan.steps import Plan, Step
from kwire.replay.plan.values import Offers
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology
from kwire.replay.send.dependencies import Waiting
from kwire.replay.send.keep_alive import KeepAlive
from kwire.replay.send.link import Dial, LinkError
from kwire.replay.send.own_requests import Asker
from kwire.replay.send.preparation import Preparation
from kwire.replay.send.progress import Standing
from kwire.replay.send.routing import Router
from kwire.replay.send.session_state import SessionState
from kwire.replay.send.settings import Settings
from kwire.replay.send.step_sender import StepSender, abort
from kwire.replay.send.target_watch import Watch
from kwire.replay.send.timetable import Timetable

_LEAST_BACKLOG: Final = 64 << 10
_GARBAGE: Final = (50_000, 1_000, 1_000)
"""Thresholds of garbage collection: only new objects are searched, some milliseconds at a time, because outcomes stay,
and searching the older ones again and again took a sixth of a run."""
_CLAIMED: Final = 32
"""Steps of a session that are claimed together: the outcomes of this many are unknown if a process dies."""
_UNNOTICED: Final = 0.1
"""Seconds until a task that was cancelled and goes on is cancelled again."""
_TICK: Final = 0.05
"""Seconds between two looks at how late the event loop is."""
_LATER: Final = 0.5
"""Seconds until a session that is over is checked again, whose connections have unsent bytes."""


class Engine:
    """Sends the steps of one run.

    - `record`: gets each step's outcome when it is known
    - `feed`: plans the rest of the steps while others are sent (`meet`, `add`, `over`), as long as there is room
      (`has_room`); without it the plan has all
    - `claim`: is called before steps of a session are sent, with the first of them and how many there may be
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        planned: Plan,
        cluster: Cluster,
        remap: Remap,
        topology: Topology,
        offers: Offers,
        dial: Dial,
        bootstrap: tuple[str, int],
        settings: Settings,
        record: Callable[[Outcome], None],
        progress: Callable[[Standing], None] | None = None,
        feed: Callable[[Engine], Awaitable[None]] | None = None,
        claim: Callable[[Step, int], None] | None = None,
    ) -> None:
        self.plan = planned
        self.remap = remap
        self.topology = topology
        self.settings = settings
        self.notes: Counter[str] = Counter()
        """How often each rule was applied."""
        self.failure: LinkError | None = None
        """The fault of the target that kept something from being sent."""
        self._loop = asyncio.get_running_loop()
        self.timetable = Timetable(settings, self._loop)
        self._asker = Asker(dial, bootstrap, offers, topology, remap, settings, self.notes)
        self._brokers = sorted({session.broker for session in sessions})
        self.preparation = Preparation(cluster, remap, topology, self._asker, settings, self.notes)
        self.waiting = Waiting()
        self.keep_alive = KeepAlive(
            self.waiting, remap.groups, self._asker.ask_as_member, self.timetable.due, self.notes
        )
        self._record = record
        self.loop_lags_us = Durations()
        """How late the event loop was, whenever that was looked at."""
        self.states: dict[int, SessionState] = {}
        for index, session in enumerate(sessions):
            self.states[index] = SessionState(session.broker, session.user)
        self.total: int | None = None
        """How many requests there will be, if more are planned during the run and that is known."""
        self._feed = feed
        self._claim = claim
        self._undone: dict[int, Step] = {}
        self._undone_bytes = 0
        self._count = 0
        self._last_ns = 0
        self._no_more = False
        self._running = 0
        self._ended: asyncio.Future[None] | None = None
        self._failed: BaseException | None = None
        self._open = asyncio.Event()  # else no further step is sent
        self._open.set()
        self.watch = Watch(
            bootstrap, settings, self._asker, self.states, self.waiting, self.timetable, self._total, progress
        )
        router = Router(self._brokers, topology, remap, self._asker, settings, self.notes)
        self._sender = StepSender(self, router)

    @property
    def own_requests(self) -> Counter[str]:
        """How many requests of its own the replayer sent, by API."""
        return self._asker.own_requests

    def _total(self) -> int:
        """How many requests there will be, as far as that is known."""
        return self._count if self.total is None else self.total

    # --- the run ---

    async def run(self, start_ns: int | None = None) -> None:
        """Send everything, from now or from that time on. The run ends if this is cancelled, or the target is silent
        for too long (`failure`): what was not sent is recorded as that."""
        before = gc.get_threshold()
        gc.set_threshold(*_GARBAGE)
        try:
            await self._run(start_ns)
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()

    async def _run(self, start_ns: int | None) -> None:
        epoch_ns = start_ns or time.time_ns()
        self.timetable.begin_at(epoch_ns, self._loop.time() + (epoch_ns - time.time_ns() if start_ns else 0) / 1e9)
        self._ended = self._loop.create_future()
        self.keep_alive.more = self._feed is not None
        self.add(self.plan.steps)
        gc.freeze()  # no garbage is in what was captured and planned: walking it again and again took a fifth of a run
        if self._feed is None:
            self.no_more()
        feeding = [self._loop.create_task(self._fed(self._feed))] if self._feed is not None else []
        watch = self._loop.create_task(self.watch.run())
        besides = [
            self._loop.create_task(beside)
            for beside in (self.watch.tell(), self.keep_alive.run(), self._measure_loop())
        ]
        try:
            await asyncio.wait((self._ended, watch), return_when=asyncio.FIRST_COMPLETED)
            self._raise_failed()
            if watch.done():
                self.failure = watch.result()
            jobs = [job for state in self.states.values() for job in state.jobs]
            if not watch.done():
                await self._all_taken()
                if jobs:
                    await asyncio.wait(jobs, timeout=self.settings.grace)
            self._raise_failed()
        finally:
            following = {task: job for state in self.states.values() for task, job in state.jobs.items()}
            owed = [(job.step, job.outcome) for job in following.values()]
            for state in self.states.values():
                owed += state.fast.values()
                state.fast.clear()
            runners = [state.runner for state in self.states.values() if state.runner is not None]
            ending = (watch, *feeding, *besides, *runners, *self.preparation.joins, *following)
            await _ended(ending)
            if not self._ended.done():
                self._ended.cancel()
            for step, outcome in owed:
                if not self.waiting.is_done(step.number):
                    abort(step, outcome)
                    self.finish(step, outcome)
            self.give_up_rest()
            self.close()
            await asyncio.sleep(0)

    async def _measure_loop(self) -> None:
        """Measure again and again how much later than due this process comes to what it has to do."""
        while True:
            due = self._loop.time() + _TICK
            await asyncio.sleep(_TICK)
            self.loop_lags_us.append(max(round((self._loop.time() - due) * 1e6), 0))

    def give_up_rest(self) -> None:
        """Record what was not sent as that."""
        if self._feed is None and not self._count:  # it never began
            self._announce(self.plan.steps)
        for step in list(self._undone.values()):
            if not self.waiting.is_done(step.number):
                self._sender.give_up(step, "aborted", None)

    # --- steps come ---

    async def _fed(self, feed: Callable[[Engine], Awaitable[None]]) -> None:
        """Run the feed; if it fails the run ends with its error."""
        try:
            await feed(self)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self.fail(failure)
            return
        self.no_more()

    def know(self, brokers: Iterable[tuple[str, int]]) -> None:
        """Take the captured brokers, if they are known before the sessions begin."""
        self._brokers[:] = sorted({*self._brokers, *brokers})

    def meet(self, index: int, broker: tuple[str, int], user: str | None) -> None:
        """Begin a session, to which steps of the plan belong from now on."""
        self.states[index] = SessionState(broker, user)
        if broker not in self._brokers:
            self._brokers.append(broker)

    def over(self, index: int) -> None:
        """Note that no more steps of a session come."""
        state = self.states.get(index)
        if state is not None:
            state.over = True
            state.more.ring()
            if state.runner is None:
                del self.states[index]

    def no_more(self) -> None:
        """Note that no more steps come."""
        self._no_more = True
        self.keep_alive.more = False
        for state in self.states.values():
            state.more.ring()
        self._has_ended()

    @property
    def is_planned(self) -> bool:
        """Whether all steps are there."""
        return self._no_more

    def begin_now(self) -> None:
        """Begin the schedule now: the first steps are there."""
        self.timetable.begin_at(time.time_ns(), self._loop.time())

    def add(self, steps: Sequence[Step], live: bool = False) -> None:
        """Add the next steps of the plan, in order. `live`: they are due when they come, at the earliest."""
        self._announce(steps)
        self.preparation.begin(step.group for step in steps)
        now, fresh = self._loop.time(), []
        for step in steps:
            state = self.states[step.session]
            state.steps.append(step)
            if self._feed is not None:
                self.timetable.planned(step, now, live)
            if state.runner is None:
                fresh.append(step.session)
            else:
                state.more.ring()
        for index in sorted(set(fresh)):
            state = self.states[index]
            self._running += 1
            state.runner = self._loop.create_task(self._run_session(state))
            state.runner.add_done_callback(functools.partial(self._runner_done, index, state))

    def _announce(self, steps: Sequence[Step]) -> None:
        self.waiting.expect(len(steps))
        self._count += len(steps)
        for step in steps:
            self._undone[step.number] = step
            self.keep_alive.expect(step)
        if self._feed is not None:
            self._undone_bytes += sum(map(_size, steps))
        if steps:
            self._last_ns = max(self._last_ns, steps[-1].at_ns)

    def has_room(self, unrecorded_bytes: int = 0) -> bool:
        """Whether the plan is so little ahead of the sending that more should be planned. Counted in requests, in their
        bytes and those of outcomes that are not recorded yet, and by time if there is a schedule."""
        settings = self.settings
        ahead_bytes = self._undone_bytes + unrecorded_bytes
        if len(self._undone) >= settings.ahead_requests or ahead_bytes >= settings.ahead_bytes:
            return False
        if settings.speed_at(self._last_ns) is None:
            return self._count - self.waiting.low < settings.horizon // 2
        return self.timetable.started + settings.due(self._last_ns) - self._loop.time() < settings.ahead

    def hold_back(self) -> None:
        """Send no further step until `go_on`, because recording is behind."""
        self._open.clear()

    def go_on(self) -> None:
        """Send again. Steps that became due meanwhile are late by the replayer's own fault."""
        if self._open.is_set():
            return
        self._open.set()
        for state in self.states.values():
            for step in state.steps:
                if not self.timetable.note_late(step):
                    break

    async def _held_back(self, step: Step) -> None:
        """Wait until steps are sent again."""
        self.notes["recording_behind"] += 1
        await self._open.wait()
        self.timetable.note_late(step)

    @property
    def most_unsent(self) -> int:
        """Unsent bytes that a connection may have before its session waits."""
        part = max(self.settings.unsent_bytes // max(len(self.states), 1), _LEAST_BACKLOG)
        return min(self.settings.backlog_bytes, part)

    def _runner_done(self, index: int, state: SessionState, task: asyncio.Task[None]) -> None:
        self._running -= 1
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.fail(failure)
        self.leave(index, state)
        self._has_ended()

    def fail(self, failure: BaseException) -> None:
        """End the run, because an outcome cannot be recorded, or nothing more be planned. The first reason is reported:
        it usually causes the others, which come as tasks end."""
        self._failed = self._failed or failure
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _has_ended(self) -> None:
        if self._no_more and not self._running and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def leave(self, index: int, state: SessionState) -> None:
        """Close the connections of a session that is over, once everything is answered and sent: a long capture has
        many."""
        if self._feed is None or not state.over or state.jobs or state.runner is None or not state.runner.done():
            return
        if any(channel.backlog() for channel in state.connections.channels.values()):
            self._loop.call_later(_LATER, self.leave, index, state)
            return
        if self.states.get(index) is state:
            state.connections.close()
            del self.states[index]

    def close(self) -> None:
        """End all connections."""
        for state in self.states.values():
            state.connections.close()
        self._asker.close()

    async def _run_session(self, state: SessionState) -> None:
        self.waiting.begin()
        try:
            while True:
                if not state.steps:
                    if state.over or self._no_more:
                        break
                    self.waiting.end()
                    try:
                        await state.more.wait()
                    finally:
                        self.waiting.begin()
                    continue
                step = state.steps.popleft()
                if self._claim is not None:
                    if not state.claimed:
                        self._claim(step, _CLAIMED)
                        state.claimed = _CLAIMED
                    state.claimed -= 1
                if state.in_flight >= self.settings.in_flight:
                    self.notes["back_pressure"] += 1
                    await state.landed.wait()
                if not self._open.is_set():
                    await self._held_back(step)
                if not (
                    step.fast_path is not None
                    and self._sender.is_ready(step)
                    and self._sender.send_fast(state, step, None)
                ):
                    await self._sender.send(state, step)
            while state.owed or state.fast:
                await state.landed.wait()
        finally:
            self.waiting.end()

    def finish(self, step: Step, outcome: Outcome) -> None:
        if step.number in self.keep_alive.errors:
            self._sender.take_kept_alive(step, outcome)
        self._record(outcome)
        self.waiting.done(step.number)
        if self._undone.pop(step.number, None) is not None and self._feed is not None:
            self._undone_bytes -= _size(step)
        step.forget()

    async def _all_taken(self) -> None:
        """Wait until requests that expect no answer are sent too, when everything else is answered."""
        drains = [
            channel.drained(0, self.settings.answer_timeout)
            for state in self.states.values()
            for channel in state.connections.channels.values()
            if channel.backlog()
        ]
        for failed in await asyncio.gather(*drains, return_exceptions=True):
            if isinstance(failed, LinkError):
                self.failure = self.failure or failed


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End tasks. A task that is cancelled at the moment at which it gets what it waits for may not notice (`wait_for`,
    before Python 3.12): it is cancelled again, else a session would go on to its last step."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_UNNOTICED)


def _size(step: Step) -> int:
    return len(step.request.data or b"") + len(step.request.answer or b"")
