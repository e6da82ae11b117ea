"""Sends a plan: each step when it is due and what it waits for is there, to the broker that serves it now.

In: a plan, the captured cluster, the target. Out: an `Outcome` for each step. One task per session sends its steps in
order; one task per sent step waits for its answers and repeats it where a rule says so. Nothing here decides what may
be sent (the plan does), as what it goes to the target (`preparation`), which broker gets it (`routing`), when a wait
is over (`dependencies`), or what an answer means (`retry`). Time is the event loop's, the network is a `Dial`, so a
test provides both. Rules: every wait has a bound; what was done is recorded whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from analyzer.protocol import api_keys, errors, tree
from analyzer.protocol.decoding import OK
from analyzer.protocol.encoding import EncodeError, encode_request, encode_response
from analyzer.protocol.tree import Body
from replay.outcome import Outcome
from replay.plan import apis, convert, produce_requests
from replay.plan.cluster import Cluster
from replay.plan.sessions import Session
from replay.plan.steps import Plan, Step
from replay.plan.topic_partitions import merged, name_answer, without_names
from replay.plan.values import Offers
from replay.remap import retry, share_sessions
from replay.remap.groups import moves
from replay.remap.remap import Remap
from replay.remap.topology import Topology
from replay.send import produce_in_place
from replay.send.channel import Channel, ChannelClosed
from replay.send.dependencies import Waiting
from replay.send.keep_alive import KeepAlive
from replay.send.link import Dial, LinkError
from replay.send.own_requests import Asker
from replay.send.preparation import Job, Preparation, Skipped
from replay.send.progress import Standing
from replay.send.reach import NotReached
from replay.send.routing import Router
from replay.send.session_state import SessionState
from replay.send.settings import Settings
from replay.send.target_watch import Watch
from replay.send.timetable import Timetable

_LEAST_BACKLOG: Final = 64 << 10
_SPLIT: Final = 1.0
"""Seconds between the answers to JoinGroups of one generation, which brokers send together: a member without one by
then has come too late for it."""
_GARBAGE: Final = (50_000, 1_000, 1_000)
"""Thresholds of garbage collection: only new objects are searched, some milliseconds at a time, because outcomes stay,
and searching the older ones again and again took a sixth of a run."""
_CLAIMED: Final = 32
"""Steps of a session that are claimed together: the outcomes of this many are unknown if a process dies."""
_UNNOTICED: Final = 0.1
"""Seconds until a task that was cancelled and goes on is cancelled again."""
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
        self._due, self._now_ns = self.timetable.due, self.timetable.now_ns
        self._asker = Asker(dial, bootstrap, offers, topology, remap, settings, self.notes)
        self._brokers = sorted({session.broker for session in sessions})
        self._router = Router(self._brokers, topology, remap, self._asker, settings, self.notes)
        self._preparation = Preparation(cluster, remap, topology, self._asker, settings, self.notes)
        self._waiting = Waiting()
        self._keep_alive = KeepAlive(self._waiting, remap.groups, self._asker.ask_as_member, self._due, self.notes)
        self._record = record
        self._states: dict[int, SessionState] = {}
        for index, session in enumerate(sessions):
            self._states[index] = SessionState(session.broker, session.user)
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
        self._watch = Watch(
            bootstrap, settings, self._asker, self._states, self._waiting, self.timetable, self._total, progress
        )

    @property
    def own_requests(self) -> Counter[str]:
        """How many requests of its own the replayer sent, by API."""
        return self._asker.own_requests

    def _total(self) -> int:
        """How many requests there will be, as far as that is known."""
        return self._count if self.total is None else self.total

    # --- the run ---

    async def run(self, start_ns: int | None = None) -> None:
        """Send everything, from now or from that time on.

        The run ends if this is cancelled, or the target is silent for too long (`failure`): what was not sent is
        recorded as that.
        """
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
        self._keep_alive.more = self._feed is not None
        self.add(self.plan.steps)
        gc.freeze()  # no garbage is in what was captured and planned: walking it again and again took a fifth of a run
        if self._feed is None:
            self.no_more()
        feeding = [self._loop.create_task(self._fed(self._feed))] if self._feed is not None else []
        watch = self._loop.create_task(self._watch.run())
        besides = [self._loop.create_task(self._watch.tell()), self._loop.create_task(self._keep_alive.run())]
        try:
            await asyncio.wait((self._ended, watch), return_when=asyncio.FIRST_COMPLETED)
            self._raise_failed()
            if watch.done():
                self.failure = watch.result()
            jobs = [job for state in self._states.values() for job in state.jobs]
            if not watch.done():
                await self._all_taken()
                if jobs:
                    await asyncio.wait(jobs, timeout=self.settings.grace)
            self._raise_failed()
        finally:
            following = {task: job for state in self._states.values() for task, job in state.jobs.items()}
            owed = [(job.step, job.outcome) for job in following.values()]
            for state in self._states.values():
                owed += state.quick.values()
                state.quick.clear()
            runners = [state.runner for state in self._states.values() if state.runner is not None]
            ending = (watch, *feeding, *besides, *runners, *self._preparation.joins, *following)
            await _ended(ending)
            if not self._ended.done():
                self._ended.cancel()
            for step, outcome in owed:
                if not self._waiting.is_done(step.number):
                    _abort(step, outcome)
                    self._finish(step, outcome)
            self.give_up_rest()
            self.close()
            await asyncio.sleep(0)

    def give_up_rest(self) -> None:
        """Record what was not sent as that."""
        if self._feed is None and not self._count:  # it never began
            self._announce(self.plan.steps)
        for step in list(self._undone.values()):
            if not self._waiting.is_done(step.number):
                self._give_up(step, "aborted", None)

    # --- steps come ---

    async def _fed(self, feed: Callable[[Engine], Awaitable[None]]) -> None:
        """Run the feed; if it fails the run ends with its error."""
        try:
            await feed(self)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self._fail(failure)
            return
        self.no_more()

    def know(self, brokers: Iterable[tuple[str, int]]) -> None:
        """Take the captured brokers, if they are known before the sessions begin."""
        self._brokers[:] = sorted({*self._brokers, *brokers})

    def meet(self, index: int, broker: tuple[str, int], user: str | None) -> None:
        """Begin a session, to which steps of the plan belong from now on."""
        self._states[index] = SessionState(broker, user)
        if broker not in self._brokers:
            self._brokers.append(broker)

    def over(self, index: int) -> None:
        """Note that no more steps of a session come."""
        state = self._states.get(index)
        if state is not None:
            state.over = True
            state.more.ring()
            if state.runner is None:
                del self._states[index]

    def no_more(self) -> None:
        """Note that no more steps come."""
        self._no_more = True
        self._keep_alive.more = False
        for state in self._states.values():
            state.more.ring()
        self._has_ended()

    def begin_now(self) -> None:
        """Begin the schedule now: the first steps are there."""
        self.timetable.begin_at(time.time_ns(), self._loop.time())

    def add(self, steps: Sequence[Step], live: bool = False) -> None:
        """Add the next steps of the plan, in order. `live`: they are due when they come, at the earliest."""
        self._announce(steps)
        self._preparation.begin(step.group for step in steps)
        now, fresh = self._loop.time(), []
        for step in steps:
            state = self._states[step.session]
            state.steps.append(step)
            if self._feed is not None:
                self.timetable.planned(step, now, live)
            if state.runner is None:
                fresh.append(step.session)
            else:
                state.more.ring()
        for index in sorted(set(fresh)):
            state = self._states[index]
            self._running += 1
            state.runner = self._loop.create_task(self._run_session(state))
            state.runner.add_done_callback(functools.partial(self._runner_done, index, state))

    def _announce(self, steps: Sequence[Step]) -> None:
        self._waiting.expect(len(steps))
        self._count += len(steps)
        for step in steps:
            self._undone[step.number] = step
            self._keep_alive.expect(step)
        if self._feed is not None:
            self._undone_bytes += sum(map(_size, steps))
        if steps:
            self._last_ns = max(self._last_ns, steps[-1].at_ns)

    def has_room(self, unrecorded_bytes: int = 0) -> bool:
        """Whether the plan is so little ahead of the sending that more should be planned.

        Counted in requests, in their bytes and those of outcomes that are not recorded yet, and by time if there is a
        schedule.
        """
        settings = self.settings
        ahead_bytes = self._undone_bytes + unrecorded_bytes
        if len(self._undone) >= settings.ahead_requests or ahead_bytes >= settings.ahead_bytes:
            return False
        if settings.speed_at(self._last_ns) is None:
            return self._count - self._waiting.low < settings.horizon // 2
        return self.timetable.started + settings.due(self._last_ns) - self._loop.time() < settings.ahead

    def hold_back(self) -> None:
        """Send no further step until `go_on`, because recording is behind."""
        self._open.clear()

    def go_on(self) -> None:
        """Send again. Steps that became due meanwhile are late by the replayer's own fault."""
        if self._open.is_set():
            return
        self._open.set()
        for state in self._states.values():
            for step in state.steps:
                if not self.timetable.note_late(step):
                    break

    async def _held_back(self, step: Step) -> None:
        """Wait until steps are sent again."""
        self.notes["recording_behind"] += 1
        await self._open.wait()
        self.timetable.note_late(step)

    @property
    def _most_unsent(self) -> int:
        """Unsent bytes that a connection may have before its session waits."""
        part = max(self.settings.unsent_bytes // max(len(self._states), 1), _LEAST_BACKLOG)
        return min(self.settings.backlog_bytes, part)

    def _runner_done(self, index: int, state: SessionState, task: asyncio.Task[None]) -> None:
        self._running -= 1
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._fail(failure)
        self._leave(index, state)
        self._has_ended()

    def _fail(self, failure: BaseException) -> None:
        """End the run, because an outcome cannot be recorded, or nothing more be planned.

        The first reason is reported: it usually causes the others, which come as tasks end.
        """
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

    def _leave(self, index: int, state: SessionState) -> None:
        """Close the connections of a session that is over, once everything is answered and sent: a long capture has
        many."""
        if self._feed is None or not state.over or state.jobs or state.runner is None or not state.runner.done():
            return
        if any(channel.backlog() for channel in state.connections.channels.values()):
            self._loop.call_later(_LATER, self._leave, index, state)
            return
        if self._states.get(index) is state:
            state.connections.close()
            del self._states[index]

    def close(self) -> None:
        """End all connections."""
        for state in self._states.values():
            state.connections.close()
        self._asker.close()

    async def _run_session(self, state: SessionState) -> None:
        self._waiting.begin()
        try:
            while True:
                if not state.steps:
                    if state.over or self._no_more:
                        break
                    self._waiting.end()
                    try:
                        await state.more.wait()
                    finally:
                        self._waiting.begin()
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
                if not (step.quick is not None and self._is_ready(step) and self._send_quick(state, step, None)):
                    await self._run_step(state, step)
            while state.owed or state.quick:
                await state.landed.wait()
        finally:
            self._waiting.end()

    def _give_up(self, step: Step, rule: str, reason: str | None) -> None:
        outcome = self._outcome(step)
        outcome.action, outcome.verdict, outcome.rule, outcome.reason = "not_sent", "not_sent", rule, reason
        self._finish(step, outcome)

    def _outcome(self, step: Step) -> Outcome:
        outcome = Outcome(step.request.row, step.number, "converted" if step.rules else "sent", "answered")
        outcome.rule = step.rules[0] if step.rules else None
        outcome.captured_answer = step.request.answer
        self.timetable.stamp(step, outcome)
        return outcome

    def _finish(self, step: Step, outcome: Outcome) -> None:
        self._record(outcome)
        self._waiting.done(step.number)
        if self._undone.pop(step.number, None) is not None and self._feed is not None:
            self._undone_bytes -= _size(step)
        step.forget()

    # --- one step ---

    async def _hold(self, state: SessionState, step: Step, outcome: Outcome) -> None:
        """Wait until the step is due and what it waits for is there."""
        state.next = step
        due = self._due(step)
        now = self._loop.time()
        if due > now:
            await asyncio.sleep(due - now)
        if not await self._waiting.until_ready(step):
            outcome.retries.append("wait_released")
            self.notes["wait_released"] += 1
        state.next = None

    async def _run_step(self, state: SessionState, step: Step) -> None:
        outcome = self._outcome(step)
        await self._hold(state, step, outcome)
        if step.quick is not None and self._send_quick(state, step, outcome):
            return None
        job = Job(step, outcome)
        if state.lost:
            return self._give_up(step, "session_lost", state.lost)
        try:
            async with state.again:
                await self._preparation.first(job)
                await self._send(state, job)
        except Skipped as skipped:
            outcome.action = outcome.verdict = "skipped"
            outcome.rule, outcome.reason = skipped.rule, skipped.reason
            return self._finish(step, outcome)
        except LinkError as failure:
            state.lost = str(failure)
            self.failure = self.failure or failure
            return self._give_up(step, "unreachable", str(failure))
        except Exception as failure:
            # One step must not take the run down; the run is not valid, and says why.
            return self._give_up(step, "tool_error", f"{type(failure).__name__}: {failure}")
        self._waiting.sent(step.number)
        if all(waiter is None for waiter in job.waiters):
            outcome.verdict, outcome.rule = "not_comparable", "no_answer_expected"
            return self._finish(step, outcome)
        self._follow(state, job)
        return None

    def _follow(self, state: SessionState, job: Job) -> None:
        """Wait for the answer of a sent step, beside the session."""
        self._waiting.begin()
        task = self._loop.create_task(self._await_answer(state, job))
        state.jobs[task] = job
        if job.step.request.answer is not None:
            state.owed.add(task)
        task.add_done_callback(functools.partial(self._job_done, state, job.step.session))

    def _job_done(self, state: SessionState, index: int, task: asyncio.Task[None]) -> None:
        del state.jobs[task]
        state.owed.discard(task)
        state.landed.ring()
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._fail(failure)
        self._waiting.end()
        self._leave(index, state)

    # --- the short way ---

    def _is_ready(self, step: Step) -> bool:
        """Whether a step is due, and everything is there that it waits for."""
        return self._waiting.is_ready(step) and self.timetable.is_due(step)

    def _send_quick(self, state: SessionState, step: Step, outcome: Outcome | None) -> bool:
        """Send a step on the fast path; false if it has to be decoded."""
        assert step.quick is not None
        assert step.request.data is not None
        if len(self.topology.nodes) != 1 or not self.remap.in_place or state.again.locked() or state.lost:
            return False
        channel = state.connections.channels.get(next(iter(self.topology.nodes)))
        if channel is None or not channel.open or channel.backlog() > self._most_unsent:
            return False
        outcome = outcome or self._outcome(step)
        outcome.ready_ns = self._now_ns()
        correlation = channel.correlation()
        frame = produce_in_place.frame(step.quick, step.request.data, correlation, self.remap)
        if frame is None:
            return False
        state.quick[step.number] = step, outcome
        self._waiting.begin()
        channel.send_whole(frame, correlation, functools.partial(self._quick_answer, state, step, outcome, channel))
        outcome.request = frame
        outcome.sent_version = step.version
        outcome.targets = channel.addresses
        outcome.sent_ns = outcome.first_sent_ns = self._now_ns()
        self._waiting.sent(step.number)
        return True

    def _quick_answer(
        self, state: SessionState, step: Step, outcome: Outcome, channel: Channel, answer: bytes | ChannelClosed
    ) -> None:
        """Take the answer to a step on the fast path. Anything but a plain success is handled like other answers from
        here."""
        short = step.quick
        assert short is not None
        if state.quick.pop(step.number, None) is None:
            return  # the run has ended without it
        good = None
        if isinstance(answer, bytes):
            good = produce_requests.success(answer, step.version, short.partition)
        if good is None:
            waiter: asyncio.Future[bytes] = self._loop.create_future()
            if isinstance(answer, bytes):
                waiter.set_result(answer)
            else:
                waiter.set_exception(answer)
                waiter.exception()
            self._follow(state, Job(step, outcome, self.remap.request(step), [waiter], [channel]))
        else:
            self._watch.answered += 1
            outcome.answered_ns = self._now_ns()
            outcome.answer = answer if isinstance(answer, bytes) else None
            if short.base >= 0:
                self.remap.offsets.appended((short.topic, short.partition), short.base, good[0], short.count)
            self._finish(step, outcome)
        state.landed.ring()
        self._waiting.end()

    # --- sending ---

    async def _send(self, state: SessionState, job: Job) -> None:
        """Send all parts now, in one turn of the loop, so that the order on each connection is the session's."""
        reached = await self._router.reach(state.connections, job.step.request.api_key, job.body)
        for _, channel, _ in reached:
            if channel.backlog() > self._most_unsent:
                self.notes["back_pressure"] += 1
                await channel.drained(self._most_unsent, self.settings.answer_timeout)
        if job.outcome.ready_ns is None:
            job.outcome.ready_ns = self._now_ns()
        job.waiters, job.channels = [], [channel for _, channel, _ in reached]
        job.parts = [(node, body) for node, _, body in reached]
        step = job.step
        outcome = job.outcome
        answered = not (step.request.api_key == api_keys.PRODUCE and job.body["acks"] == 0)
        for _, channel, body in reached:
            correlation = channel.correlation()
            frame = self._encoded(step, body, correlation)
            try:
                job.waiters.append(channel.send(frame, correlation, answered))
            except ChannelClosed as closed:
                failed: asyncio.Future[bytes] = self._loop.create_future()
                failed.set_exception(closed)
                failed.exception()
                job.waiters.append(failed)
            if len(reached) == 1:
                outcome.request = frame
        if len(reached) != 1:
            if "split" not in outcome.retries:
                outcome.retries.append("split")
            outcome.request = self._encoded(step, job.body, 0)
        outcome.sent_ns = self._now_ns()
        outcome.first_sent_ns = outcome.first_sent_ns or outcome.sent_ns
        outcome.sent_version = step.version
        outcome.targets = [channel.address for channel in job.channels]

    async def _all_taken(self) -> None:
        """Wait until requests that expect no answer are sent too, when everything else is answered."""
        drains = [
            channel.drained(0, self.settings.answer_timeout)
            for state in self._states.values()
            for channel in state.connections.channels.values()
            if channel.backlog()
        ]
        for failed in await asyncio.gather(*drains, return_exceptions=True):
            if isinstance(failed, LinkError):
                self.failure = self.failure or failed

    def _encoded(self, step: Step, body: Body, correlation: int) -> bytes:
        key = step.request.api_key
        try:
            return encode_request(
                key, step.version, correlation, step.request.row["client_id"], convert.fit(key, step.version, body)
            )
        except EncodeError as problem:
            raise Skipped("target_lacks_version", f"v{step.version}: {problem}") from None

    # --- answers ---

    async def _await_answer(self, state: SessionState, job: Job) -> None:
        """Wait for the answers of a sent step; repeat it by rule; learn; record."""
        step, outcome = job.step, job.outcome
        captured = self._preparation.captured(job)
        retries = retry.Retries(
            step, captured, state.history, self.remap, self.topology, self.settings.limits, self._loop.time()
        )
        good_answers: list[Body] = []
        if step.request.api_key == api_keys.JOIN_GROUP:
            self._loop.call_later(_SPLIT, self._let_go_on_without, step)
        try:
            while True:
                replayed = await self._answer(job)
                decision = retries.after(job.body, replayed, self._loop.time())
                if decision.rule == "rebalance_awaited" and self._is_in_vain(step):
                    decision = retry.Decision(None, also=("rebalance_in_vain",))
                self._apply(outcome, *decision.also)
                if decision.rule is None:
                    break
                if replayed is not None and decision.rule == "rebalance_awaited":
                    # Its epoch and its partitions are new all the same.
                    self._preparation.learn(job, captured, replayed)
                elif decision.rule == "session_remade" and step.request.api_key == api_keys.SHARE_FETCH:
                    # Each broker has a session of its own: what the others gave stays.
                    good_answers += [answer for answer in job.answers if not answer["errorCode"]]
                elif replayed is not None and decision.rule != "records_awaited":
                    job.body, good = retries.parted(job.body, replayed)
                    good_answers += good
                if decision.rule in ("rebalance_awaited", "rejoined"):
                    self._waiting.let_others_go_on(step)
                self._apply(outcome, decision.rule)
                await asyncio.sleep(decision.pause)
                state.history.retried = True
                async with state.again:
                    await self._preparation.again(job, decision.rule, captured, replayed)
                    await self._send(state, job)
            self._conclude(job, captured, replayed, good_answers)
            if replayed is not None:
                with contextlib.suppress(LinkError):  # whoever goes on finds out
                    await self._preparation.settle(job, replayed)
        except asyncio.CancelledError:
            _abort(step, outcome)
            raise
        except (LinkError, Skipped) as failure:
            outcome.verdict, outcome.reason = "unanswered", str(failure)
            if isinstance(failure, NotReached):
                self.failure = self.failure or failure
        except Exception as failure:
            outcome.verdict, outcome.rule = "unanswered", "tool_error"
            outcome.reason = f"{type(failure).__name__}: {failure}"
        finally:
            self._finish(step, outcome)

    def _let_go_on_without(self, step: Step) -> None:
        """Let others go on that a member waits for which joins too late for its generation.

        It waits for the others to join again, and they for its answer, which they had in the capture.
        """
        if self._waiting.is_done(step.number):
            return
        if self.remap.groups.is_late(step):
            self._waiting.let_others_go_on(step)
        self._loop.call_later(_SPLIT, self._let_go_on_without, step)

    def _is_in_vain(self, step: Step) -> bool:
        """Whether the rebalance that a member awaits will not come.

        It belonged to a member that the target keeps out, or had begun before the capture did; and no member joins at
        this moment, and none is there that falls silent from now on and will be expired.
        """
        groups, group = self.remap.groups, step.group or ""
        kept_out = groups.keeps_out(group)
        if not kept_out and not self._stands_still(step, group):
            return False
        flying = (job.step for state in self._states.values() for job in state.jobs.values())
        if any(other.group == group and other is not step and _joins(other) for other in flying):
            return False
        others = groups.others(group, step.body["memberId"])
        if kept_out and step.request.api_key in apis.GROUP_HEARTBEATS:
            return not others  # what they gave up may be on its way
        return all(self._keep_alive.will_speak(who) for who in others)

    def _stands_still(self, step: Step, group: str) -> bool:
        """Whether all members of a group are as the replayer joined them, and nothing before this step is on its way,
        or still to be sent, that would move them."""
        if not self.remap.groups.stands_still(group):
            return False
        before = (
            other
            for state in self._states.values()
            for other in (
                *(job.step for job in state.jobs.values()),
                *([state.next] if state.next is not None else []),
                *itertools.takewhile(lambda other: other.number < step.number, state.steps),
            )
            if other.number < step.number and other.group == group
        )
        return not any(map(moves, before))

    def _apply(self, outcome: Outcome, *rules: str) -> None:
        outcome.retries += rules
        self.notes.update(rules)

    async def _answer(self, job: Job) -> Body | None:
        """The answer of all parts; None if a connection ended before it came."""
        replayed, job.answers = None, []
        try:
            replayed = await self._answers(job)
        except ChannelClosed as closed:
            job.outcome.reason = str(closed)
        if job.step.request.api_key in share_sessions.APIS:
            self._preparation.hear_shares(job)
        if replayed is None:
            return None
        job.outcome.reason = None
        self._watch.answered += 1
        job.outcome.answered_ns = self._now_ns()
        return replayed

    async def _answers(self, job: Job) -> Body:
        """The answer of all parts, merged, its topics named. Raises ChannelClosed."""
        step = job.step
        frames = []
        for waiter, channel in zip(job.waiters, job.channels, strict=True):
            assert waiter is not None
            try:
                frames.append(await asyncio.wait_for(asyncio.shield(waiter), self.settings.answer_timeout))
            except TimeoutError:
                channel.close()
                raise ChannelClosed(f"{channel.address}: no answer after {self.settings.answer_timeout:g} s") from None
        bodies: list[Body] = []
        for frame, channel in zip(frames, job.channels, strict=True):
            decoded = tree.decode_response(frame, step.request.api_key, step.version, exact=True)
            if decoded.status != OK or decoded.body is None:
                channel.close()
                raise ChannelClosed(f"{channel.address}: the answer cannot be decoded: {decoded.reason}")
            name_answer(step.request.api_key, decoded.body, self.topology.names_by_id())
            bodies.append(decoded.body)
        job.answers = bodies
        job.outcome.answer = frames[0] if len(frames) == 1 else None
        return bodies[0] if len(bodies) == 1 else merged(step.request.api_key, bodies)

    def _conclude(self, job: Job, captured: Body | None, replayed: Body | None, good_answers: list[Body]) -> None:
        step, outcome = job.step, job.outcome
        key = step.request.api_key
        if replayed is None:
            if captured is None:
                outcome.verdict, outcome.rule = "not_comparable", "not_captured"
            else:
                outcome.verdict = "unanswered"
            return
        self._preparation.learn(job, captured, replayed)
        others = retry.codes(replayed) - retry.codes(captured)
        self._watch.errors += bool(others)
        if good_answers:
            replayed = merged(key, [*good_answers, replayed])
            outcome.answer = None
        if outcome.answer is None:
            outcome.answer = encode_response(key, step.version, 0, without_names(replayed))
        if captured is None:
            outcome.verdict, outcome.rule = "not_comparable", "not_captured"
        elif errors.UNSUPPORTED_VERSION in others:
            self._preparation.refuse(key)
            outcome.reason = f"the target offers {api_keys.name(key)} and answers UNSUPPORTED_VERSION (35)"


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End tasks.

    A task that is cancelled at the moment at which it gets what it waits for may not notice (`wait_for`, before Python
    3.12): it is cancelled again, else a session would go on to its last step.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_UNNOTICED)


def _size(step: Step) -> int:
    return len(step.request.data or b"") + len(step.request.answer or b"")


def _joins(step: Step) -> bool:
    """Whether the step's member asks to be let into its group."""
    key = step.request.api_key
    return key == api_keys.JOIN_GROUP or (key in apis.GROUP_HEARTBEATS and step.body["memberEpoch"] == 0)


def _abort(step: Step, outcome: Outcome) -> None:
    """Record a step whose answer had not come when the run ended."""
    if step.request.answer is None:
        outcome.verdict, outcome.rule = "not_comparable", "not_captured"
    else:
        outcome.verdict, outcome.rule = "unanswered", "aborted"
