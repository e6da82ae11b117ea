"""Sends a plan: when it is due, once what it waits for is there, to whoever serves it now.

One task a session sends its steps in order; one task a sent step waits for its answers, sends it again where a rule
says so, and learns. Nothing here decides what may be sent (the plan does), who gets it (`routing`), or when a wait is
over (`waiting`); what the replayer asks for itself goes through `asking`. Time is the event loop's, the network is a
`Dial`, so a test hands in both. Rules: every wait has a bound; what was done is recorded whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer import tree
from analyzer.decoding import OK
from analyzer.encoding import EncodeError, encode_request, encode_response
from replay import apis, convert, joining, plan, quick, retry, topology, transactions
from replay.apis import NAME
from replay.asking import Asker
from replay.channel import Channel, ChannelClosed
from replay.link import Dial, LinkError
from replay.outcome import Outcome
from replay.remap import KEEP, Producer, Remap
from replay.routing import Connections, Router
from replay.sessions import Session
from replay.settings import Settings
from replay.steps import Plan, Route, Step
from replay.waiting import Waiting

Body = dict[str, Any]
_LEAST_BACKLOG: Final = 64 << 10


@dataclass(slots=True)
class _Job:
    """A step on its way: what was sent, what came."""

    step: Step
    outcome: Outcome
    body: Body = field(default_factory=dict)
    waiters: list[asyncio.Future[bytes] | None] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)


class _SessionState:
    """What a session has open."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self.connections = Connections(broker)
        self.again = asyncio.Lock()
        self.retried = False
        self.waited_in_vain = False
        self.quick: dict[int, tuple[Step, Outcome]] = {}  # sent the short way and not answered yet
        self.landed: asyncio.Future[None] | None = None  # told of each answer, while somebody waits for one
        self.jobs: dict[asyncio.Task[None], _Job] = {}
        self.owed: set[asyncio.Task[None]] = set()  # of the jobs, those that were answered in the capture
        self.lost = ""

    @property
    def in_flight(self) -> int:
        return len(self.quick) + len(self.jobs)

    async def landing(self) -> None:
        """Wait until one more of the steps that were sent has its answer, or none will come."""
        self.landed = asyncio.get_running_loop().create_future()
        await self.landed

    def has_landed(self) -> None:
        if self.landed is not None and not self.landed.done():
            self.landed.set_result(None)


class Engine:
    """One run. `record` gets each step's outcome when it is known."""

    def __init__(
        self,
        sessions: Sequence[Session],
        planned: Plan,
        facts: plan.Facts,
        remap: Remap,
        known: topology.Topology,
        offers: plan.Offers,
        dial: Dial,
        bootstrap: tuple[str, int],
        settings: Settings,
        record: Callable[[Outcome], None],
    ) -> None:
        self.plan = planned
        self.facts = facts
        self.remap = remap
        self.topology = known
        self.settings = settings
        self.notes: Counter[str] = Counter()
        """How often each rule was applied."""
        self.failure: LinkError | None = None
        """What the target did that kept something from being sent."""
        self._bootstrap = bootstrap
        self._asker = Asker(dial, bootstrap, offers, known, remap, settings, self.notes)
        brokers = sorted({session.broker for session in sessions})
        self._router = Router(brokers, known, remap, self._asker, settings, self.notes)
        self._waiting = Waiting(planned.steps)
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._states = [_SessionState(session.broker) for session in sessions]
        self._additions = transactions.Additions()
        self._early: dict[str, asyncio.Task[None]] = {}
        part = max(settings.unsent_bytes // max(len(sessions), 1), _LEAST_BACKLOG)
        self._most_unsent = min(settings.backlog_bytes, part)
        self._plain = not remap.options.map_topic and remap.options.timestamps == KEEP
        self._refused: set[int] = set()
        self._started = 0.0
        self._epoch_ns = 0
        self._heard = 0

    @property
    def own_requests(self) -> Counter[str]:
        """What the replayer asked for itself, by API."""
        return self._asker.own_requests

    # --- the run ---

    async def run(self, start_ns: int | None = None) -> None:
        """Send everything, from now or from that time on. Cancelling it ends the run, as a target does that is silent
        for too long (`failure`): what was not sent is recorded as that."""
        self._epoch_ns = start_ns or time.time_ns()
        self._started = self._loop.time() + (self._epoch_ns - time.time_ns() if start_ns else 0) / 1e9
        mine = {(step.body or {}).get("groupId") for step in self.plan.steps}
        for group in self.facts.early.keys() & mine:
            self._early[group] = self._loop.create_task(self._join_early(group))
        runners = [
            self._loop.create_task(self._run_session(state, self.plan.sessions[index]))
            for index, state in enumerate(self._states)
        ]
        sending = asyncio.gather(*runners)
        watch = self._loop.create_task(self._watch())
        try:
            done, _ = await asyncio.wait((sending, watch), return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
            jobs = [job for state in self._states for job in state.jobs]
            if not watch.done():
                await self._all_taken()
                if jobs:
                    await asyncio.wait(jobs, timeout=self.settings.grace)
        finally:
            following = {task: job for state in self._states for task, job in state.jobs.items()}
            owed = [(job.step, job.outcome) for job in following.values()]
            for state in self._states:
                owed += state.quick.values()
                state.quick.clear()
            joins = self._early.values()
            for task in (watch, *runners, *joins, *following):
                task.cancel()
            await asyncio.gather(sending, watch, *runners, *joins, *following, return_exceptions=True)
            for step, outcome in owed:
                if not self._waiting.is_done(step.number):
                    _abort(step, outcome)
                    self._finish(step, outcome)
            self.give_up_rest()
            self.close()
            await asyncio.sleep(0)

    def give_up_rest(self) -> None:
        """Record what was not sent as that."""
        for step in self.plan.steps:
            if not self._waiting.is_done(step.number):
                self._give_up(step, "aborted", None)

    def close(self) -> None:
        """End all connections."""
        for state in self._states:
            state.connections.close()
        self._asker.close()

    def _now_ns(self) -> int:
        return self._epoch_ns + round((self._loop.time() - self._started) * 1e9)

    def _due(self, step: Step) -> float:
        if self.settings.speed is None:
            return self._started
        return self._started + step.at_ns / 1e9 / self.settings.speed

    async def _run_session(self, state: _SessionState, numbers: Sequence[int]) -> None:
        self._waiting.begin()
        try:
            for number in numbers:
                step = self.plan.steps[number]
                if state.in_flight >= self.settings.in_flight:
                    self.notes["back_pressure"] += 1
                    await state.landing()
                if not (step.quick is not None and self._is_ready(step) and self._send_quick(state, step, None)):
                    await self._run_step(state, step)
            while state.owed or state.quick:
                await state.landing()
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
        outcome.scheduled_ns = self._epoch_ns + round((self._due(step) - self._started) * 1e9)
        return outcome

    def _finish(self, step: Step, outcome: Outcome) -> None:
        self._record(outcome)
        self._waiting.done(step.number)

    # --- one step ---

    async def _hold(self, step: Step, outcome: Outcome) -> None:
        """Wait until the step is due and what it waits for is there."""
        due = self._due(step)
        now = self._loop.time()
        if due > now:
            await asyncio.sleep(due - now)
        if not await self._waiting.until_ready(step):
            outcome.retries.append("wait_released")
            self.notes["wait_released"] += 1

    async def _run_step(self, state: _SessionState, step: Step) -> None:
        outcome = self._outcome(step)
        await self._hold(step, outcome)
        if step.quick is not None and self._send_quick(state, step, outcome):
            return None
        job = _Job(step, outcome)
        if state.lost:
            return self._give_up(step, "session_lost", state.lost)
        try:
            async with state.again:
                await self._prepare(state, job)
                await self._send(state, job)
        except _Skipped as skipped:
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

    def _follow(self, state: _SessionState, job: _Job) -> None:
        """Wait for the answer of what was sent, beside the session."""
        self._waiting.begin()
        task = self._loop.create_task(self._await_answer(state, job))
        state.jobs[task] = job
        if job.step.request.answer is not None:
            state.owed.add(task)
        task.add_done_callback(lambda done: self._job_done(state, done))

    def _job_done(self, state: _SessionState, task: asyncio.Task[None]) -> None:
        del state.jobs[task]
        state.owed.discard(task)
        state.has_landed()
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "a step failed", "exception": task.exception()})
        self._waiting.end()

    # --- the short way ---

    def _is_ready(self, step: Step) -> bool:
        """Is it due, and is everything there that it waits for?"""
        if not self._waiting.is_ready(step):
            return False
        return self.settings.speed is None or self._loop.time() >= self._due(step)

    def _send_quick(self, state: _SessionState, step: Step, outcome: Outcome | None) -> bool:
        """Send a step the short way; False where it has to take the other one."""
        assert step.quick is not None
        assert step.request.data is not None
        if len(self.topology.nodes) != 1 or not self._plain or state.again.locked() or state.lost:
            return False
        channel = state.connections.channels.get(next(iter(self.topology.nodes)))
        if channel is None or not channel.open or channel.backlog() > self._most_unsent:
            return False
        outcome = outcome or self._outcome(step)
        outcome.ready_ns = self._now_ns()
        correlation = channel.correlation()
        frame = quick.frame(step.quick, step.request.data, correlation, self.remap)
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
        self, state: _SessionState, step: Step, outcome: Outcome, channel: Channel, answer: bytes | ChannelClosed
    ) -> None:
        """What came for a step sent the short way. Anything but a plain success goes the other way from here."""
        short = step.quick
        assert short is not None
        if state.quick.pop(step.number, None) is None:
            return  # the run has ended without it
        good = None
        if isinstance(answer, bytes):
            good = quick.success(answer, step.version, short.partition)
        if good is None:
            waiter: asyncio.Future[bytes] = self._loop.create_future()
            if isinstance(answer, bytes):
                waiter.set_result(answer)
            else:
                waiter.set_exception(answer)
                waiter.exception()
            self._follow(state, _Job(step, outcome, self.remap.request(step), [waiter], [channel]))
        else:
            self._heard += 1
            outcome.answered_ns = self._now_ns()
            outcome.answer = answer if isinstance(answer, bytes) else None
            if short.base >= 0:
                self.remap.offset_map(short.topic, short.partition).learn(short.base, good[0], short.count)
            self._finish(step, outcome)
        state.has_landed()
        self._waiting.end()

    async def _watch(self) -> None:
        """Steps sent the short way have no clock of their own: end connections whose oldest answer is overdue. Returns
        when the target has been silent for too long, while answers were owed."""
        tick = min(self.settings.answer_timeout / 4, 5.0)
        heard, silent = 0, 0.0
        while True:
            await asyncio.sleep(tick)
            if self._heard != heard:
                heard, silent = self._heard, 0.0
            elif any(state.in_flight for state in self._states):
                silent += tick
            if silent > self.settings.silence:
                host, port = self._bootstrap
                self.failure = LinkError(
                    f"{host}:{port}: no answer to anything for {self.settings.silence:g} s",
                    "see the broker's log; a lower --speed",
                )
                return
            overdue = self._now_ns() - round(self.settings.answer_timeout * 1e9)
            for state in self._states:
                oldest = next(iter(state.quick.values()), None)
                if oldest is not None and (oldest[1].sent_ns or overdue) < overdue:
                    state.connections.close()

    async def _prepare(self, state: _SessionState, job: _Job) -> None:
        """The body to send, after whatever has to be asked for first."""
        step = job.step
        key = step.request.api_key
        assert step.body is not None
        if key in self._refused:
            raise _Skipped("target_refuses", f"{apis.name(key)}: UNSUPPORTED_VERSION (35)")
        if key == apis.PRODUCE:
            for producer, name in list(self.remap.unknown_producers(step.body)):
                if producer not in self.remap.producers:
                    await self._get_producer(producer, name)
                    job.outcome.retries.append("producer_asked")
        elif key in (apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN, apis.TXN_OFFSET_COMMIT):
            unknown = self.remap.unknown_transaction(step, step.body)
            if unknown is not None:
                await self._get_producer(*unknown)
                job.outcome.retries.append("producer_asked")
        await self._know(key, step.body)
        early = self._early.get(step.body.get("groupId") or "")
        if early is not None:
            await asyncio.shield(early)
        job.body = self.remap.request(step)
        if key == apis.FETCH:
            self._fetch_session(step, job)
        if key in (apis.PRODUCE, apis.TXN_OFFSET_COMMIT):
            await self._transaction_v1(step, job)

    async def _know(self, key: int, body: Body) -> None:
        """Ask for the leaders and ids of topics that were never asked for."""
        names = {self.remap.topic(topic[NAME]) for _, topic in apis.topics(key, body) if topic.get(NAME)}
        unknown = [name for name in names if name not in self.topology.partitions and name not in self.topology.absent]
        if unknown and apis.api(key).route is Route.LEADER:
            await self._asker.refresh(unknown)

    async def _get_producer(self, captured: Producer, transactional_id: str | None) -> None:
        """Get a producer id that the capture does not show how its client got."""
        self.remap.give_producer(captured, transactional_id, await self._asker.producer(transactional_id))

    def _fetch_session(self, step: Step, job: _Job) -> None:
        several = len(self.topology.nodes) > 1
        captured = self._captured(step)
        rule = self.remap.fetch_session(step, job.body, captured, several)
        self.remap.name_topics(apis.FETCH, job.body)
        if rule == "no_session":
            raise _Skipped(rule, f"session {step.body['sessionId'] if step.body else 0}")
        if rule is not None:
            job.outcome.retries.append(rule)
        speed = self.settings.speed
        if (speed is None or speed > 1) and captured is not None and not retry.has_records(captured):
            job.body["maxWaitMs"] = int(job.body["maxWaitMs"] / speed) if speed else 0
            job.outcome.retries.append("long_poll_scaled")

    async def _transaction_v1(self, step: Step, job: _Job) -> None:
        """A target that does not add partitions to transactions by itself gets the request for it (KIP-890)."""
        missing = self._additions.missing(step, job.body, self.remap)
        if missing is None:
            return
        await self._asker.ask_until(missing.api_key, transactions.VERSION, missing.body, missing.transactional_id)
        self._additions.add(missing)
        job.outcome.retries.append("transaction_v1")

    # --- sending ---

    async def _send(self, state: _SessionState, job: _Job) -> None:
        """Send all parts now, in one turn of the loop, so that the order on each connection is the session's."""
        reached = await self._router.reach(state.connections, job.step.request.api_key, job.body)
        for channel, _ in reached:
            if channel.backlog() > self._most_unsent:
                self.notes["back_pressure"] += 1
                await channel.taken(self._most_unsent, self.settings.answer_timeout)
        if job.outcome.ready_ns is None:
            job.outcome.ready_ns = self._now_ns()
        job.waiters, job.channels = [], [channel for channel, _ in reached]
        step = job.step
        outcome = job.outcome
        answered = not (step.request.api_key == apis.PRODUCE and job.body["acks"] == 0)
        for channel, body in reached:
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
        """What expects no answer may still be unsent when everything else is answered."""
        taken = [
            channel.taken(0, self.settings.answer_timeout)
            for state in self._states
            for channel in state.connections.channels.values()
            if channel.backlog()
        ]
        for failed in await asyncio.gather(*taken, return_exceptions=True):
            if isinstance(failed, LinkError):
                self.failure = self.failure or failed

    def _encoded(self, step: Step, body: Body, correlation: int) -> bytes:
        key = step.request.api_key
        try:
            return encode_request(
                key, step.version, correlation, step.request.row["client_id"], convert.fit(key, step.version, body)
            )
        except EncodeError as problem:
            raise _Skipped("target_lacks_version", f"v{step.version}: {problem}") from None

    # --- answers ---

    async def _await_answer(self, state: _SessionState, job: _Job) -> None:
        """Wait for the answers of a sent step; send again by rule; learn; record."""
        step, outcome = job.step, job.outcome
        started = self._loop.time()
        pause = self.settings.limits.first_pause
        captured = self._captured(step)
        kept: list[Body] = []
        closed_before = False
        try:
            while True:
                rule, replayed = None, None
                try:
                    replayed = await self._answers(job)
                except ChannelClosed as closed:
                    outcome.reason = str(closed)
                    if step.request.answer is not None and not closed_before:
                        rule = "reconnected"
                    closed_before = True
                else:
                    outcome.reason = None
                    self._heard += 1
                    outcome.answered_ns = self._now_ns()
                    rule = retry.rule(step.request.api_key, captured, replayed, state.retried)
                    if rule == "topic_appears" and self._is_absent(self._not_there(job, captured, replayed)):
                        rule = retry.rule(step.request.api_key, captured, replayed, state.retried, retry.NO_TOPIC)
                        outcome.retries.append("topic_absent")
                        self.notes["topic_absent"] += 1
                    if rule == "records_awaited" and (state.waited_in_vain or not step.expects):
                        rule = None
                    if rule == "position_asked" and not any(self.remap.lost_places(step, job.body, captured, replayed)):
                        rule = None
                    if rule == "rejoined" and not self.remap.can_rejoin(step, captured, retry.codes(replayed)):
                        rule = None
                if rule is None or self._loop.time() - started > self._bound(rule):
                    state.waited_in_vain |= rule == "records_awaited"
                    if replayed is not None and rule == "topic_appears":
                        self.topology.absent |= self._not_there(job, captured, replayed)
                    break
                if replayed is not None and rule == "rebalance_awaited":
                    # Its epoch and its partitions are new all the same.
                    self._learn(job, captured, replayed)
                elif replayed is not None and rule != "records_awaited":
                    kept += self._keep_good(job, replayed, captured)
                if rule in ("rebalance_awaited", "rejoined"):
                    self._waiting.let_others_go_on(step)
                outcome.retries.append(rule)
                self.notes[rule] += 1
                await asyncio.sleep(pause)
                pause = min(pause * 2, self.settings.limits.longest_pause)
                state.retried = True
                async with state.again:
                    await self._again(state, job, rule, replayed)
            self._conclude(job, captured, replayed, kept)
        except asyncio.CancelledError:
            _abort(step, outcome)
            raise
        except (LinkError, _Skipped) as failure:
            outcome.verdict, outcome.reason = "unanswered", str(failure)
        except Exception as failure:
            outcome.verdict, outcome.rule = "unanswered", "tool_error"
            outcome.reason = f"{type(failure).__name__}: {failure}"
        finally:
            self._finish(step, outcome)

    def _bound(self, rule: str) -> float:
        limits = self.settings.limits
        return {"records_awaited": limits.records, "rebalance_awaited": limits.rebalance}.get(rule, limits.errors)

    def _not_there(self, job: _Job, captured: Body | None, replayed: Body) -> set[str]:
        """The target's names of the topics that an answer says are not there."""
        key = job.step.request.api_key
        told = retry.absent_topics(key, replayed, captured)
        if told and "" not in told:
            return told
        asked = {self.remap.topic(topic[NAME]) for _, topic in apis.topics(key, job.body) if topic.get(NAME)}
        return {name for name in asked if name not in self.topology.partitions} or asked

    def _is_absent(self, topics: set[str]) -> bool:
        return bool(topics) and topics <= self.topology.absent

    async def _answers(self, job: _Job) -> Body:
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
        bodies = []
        for frame, channel in zip(frames, job.channels, strict=True):
            decoded = tree.decode_response(frame, step.request.api_key, step.version, exact=True)
            if decoded.status != OK or decoded.body is None:
                channel.close()
                raise ChannelClosed(f"{channel.address}: the answer cannot be decoded: {decoded.reason}")
            plan.name_answer(step.request.api_key, decoded.body, self._target_names())
            bodies.append(decoded.body)
        job.outcome.answer = frames[0] if len(frames) == 1 else None
        return bodies[0] if len(bodies) == 1 else topology.merged(step.request.api_key, bodies)

    def _target_names(self) -> dict[str, str]:
        return {topic_id: name for name, topic_id in self.topology.topic_ids.items()}

    def _captured(self, step: Step) -> Body | None:
        """The captured answer, its topics named."""
        decoded = step.request.decoded_answer()
        if decoded is None or decoded.status != OK or decoded.body is None:
            return None
        plan.name_answer(step.request.api_key, decoded.body, self.facts.topic_names)
        return decoded.body

    def _keep_good(self, job: _Job, replayed: Body, captured: Body | None) -> list[Body]:
        """Of an answer with retriable errors for some partitions: keep the others, and send again only these."""
        key = job.step.request.api_key
        if apis.api(key).route is not Route.LEADER or key == apis.FETCH:
            return []
        failed = retry.failed_partitions(key, replayed, captured)
        if not failed:
            return []
        everything = {(self.remap.topic(topic), partition) for topic, partition in topology.named(key, job.body)}
        if not failed < everything:
            return []
        wanted = {
            (topic, partition)
            for topic, partition in topology.named(key, job.body)
            if (self.remap.topic(topic), partition) in failed
        }
        job.body = topology.subset(key, job.body, wanted)
        return [topology.without(key, replayed, failed)]

    async def _again(self, state: _SessionState, job: _Job, rule: str, replayed: Body | None) -> None:
        """Send a step again, after what the rule asks for."""
        key = job.step.request.api_key
        if rule in ("topic_appears", "leader_moved", "reconnected"):
            await self._asker.refresh(sorted({self.remap.topic(topic) for topic, _ in topology.named(key, job.body)}))
            self.remap.name_topics(key, job.body)
        if rule in ("coordinator_loads", "reconnected"):
            for key_type, name in list(self.topology.coordinators):
                if name in (job.body.get("groupId"), job.body.get("transactionalId")):
                    self.topology.coordinators.pop((key_type, name), None)
        if rule == "coordinator_loads":
            group = apis.api(key).route is Route.GROUP
            asked = job.body.get("groupId" if group else "transactionalId")
            if asked:
                await self._asker.find_coordinator(topology.GROUP if group else topology.TRANSACTION, asked)
        if rule == "member_id_given" and replayed is not None:
            job.body["memberId"] = replayed["memberId"]
        if key in apis.GROUP_HEARTBEATS and rule in ("rebalance_awaited", "rejoined"):
            self.remap.heartbeat_again(job.step, job.body, self._captured(job.step), rule == "rejoined")
        elif rule == "rejoined":
            await self._join_again(job)
        if rule == "member_epoch_moved":
            job.body = self.remap.request(job.step)
        if rule == "position_asked" and replayed is not None:
            captured = self._captured(job.step)
            ends = {
                (topic, partition): (end, await self._asker.end(self.remap.topic(topic), partition))
                for topic, partition, end in self.remap.lost_places(job.step, job.body, captured, replayed)
            }
            self.remap.found_places(job.step, job.body, ends)
            self.remap.name_topics(key, job.body)
        elif key == apis.FETCH:
            self.remap.fetch_again(job.step, job.body, rule, replayed)
            self.remap.name_topics(key, job.body)
        await self._send(state, job)

    def _conclude(self, job: _Job, captured: Body | None, replayed: Body | None, kept: list[Body]) -> None:
        step, outcome = job.step, job.outcome
        key = step.request.api_key
        if replayed is None:
            if captured is None:
                outcome.verdict, outcome.rule = "not_comparable", "not_captured"
            else:
                outcome.verdict = "unanswered"
            return
        self._learn(job, captured, replayed)
        if kept:
            replayed = topology.merged(key, [*kept, replayed])
            outcome.answer = None
        if outcome.answer is None:
            outcome.answer = encode_response(key, step.version, 0, _without_names(replayed))
        if captured is None:
            outcome.verdict, outcome.rule = "not_comparable", "not_captured"
        elif retry.UNSUPPORTED_VERSION in retry.codes(replayed) - retry.codes(captured):
            self._refused.add(key)
            outcome.reason = f"the target offers {apis.name(key)} and answers UNSUPPORTED_VERSION (35)"

    def _learn(self, job: _Job, captured: Body | None, replayed: Body) -> None:
        key = job.step.request.api_key
        if key == apis.METADATA:
            self.topology.learn_metadata(replayed)
            self.remap.learn_topics(self.topology)
        elif key == apis.FETCH:
            self.remap.fetch_answered(job.step, job.body, captured, replayed)
        elif key == apis.END_TXN:
            self._additions.ended(job.body["transactionalId"])
        elif key == apis.CREATE_TOPICS:
            self.topology.absent -= {topic["name"] for topic in replayed["topics"] if not topic["errorCode"]}
        self.remap.learn(job.step, job.body, captured, replayed)

    # --- groups ---

    async def _join_early(self, group: str) -> None:
        """Join the members that had joined before the capture began. Raises _Skipped, for each of their steps."""
        some = self.facts.early[group]
        self.notes["joined_early"] += len(some)
        try:
            async with asyncio.timeout(self.settings.answer_timeout):
                await joining.early(some, self.remap, functools.partial(self._asker.ask_as_member, group))
        except (joining.JoinRefused, TimeoutError, LinkError) as failure:
            raise _Skipped("no_member", str(failure) or f"group {group}: its members could not join in time") from None

    async def _join_again(self, job: _Job) -> None:
        """Join the group of a step's member again; what keeps it from that the step's next answer says."""
        body = job.step.body
        assert body is not None
        if job.step.request.api_key == apis.JOIN_GROUP:
            job.body["memberId"] = ""
            return
        group, member = body["groupId"], body["memberId"]
        generation = body.get("generationId", body.get("generationIdOrMemberEpoch", -1))
        ask = functools.partial(self._asker.ask_as_member, group)
        if self.remap.subscription(group, member) or not self.remap.moved_on(job.step, job.body):
            with contextlib.suppress(joining.JoinRefused, TimeoutError, LinkError):
                async with asyncio.timeout(self.settings.limits.errors):
                    await joining.again(group, member, generation, self.remap, ask)
        job.body = self.remap.request(job.step)


class _Skipped(Exception):
    """A step that turns out not to be sendable."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule
        self.reason = reason


def _abort(step: Step, outcome: Outcome) -> None:
    """The run ends before the answer of what was sent."""
    if step.request.answer is None:
        outcome.verdict, outcome.rule = "not_comparable", "not_captured"
    else:
        outcome.verdict, outcome.rule = "unanswered", "aborted"


def _without_names(body: Any) -> Any:
    """A body without the replayer's own keys."""
    if isinstance(body, dict):
        return {name: _without_names(value) for name, value in body.items() if name != NAME}
    if isinstance(body, list):
        return [_without_names(one) for one in body]
    return body
