"""Sends a plan: when it is due, once what it waits for is there, to whoever serves it now.

One task a session sends its steps in order; one task a sent step waits for its answers, sends it again where a rule
says so, and learns. Nothing here decides what may be sent: that is the plan. Time is the event loop's, the network is a
`Dial`, so a test hands in both. Rules: every wait has a bound; what cannot go on is released, never deadlocked; what
was done is recorded whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer import tree
from analyzer.decoding import OK
from analyzer.encoding import EncodeError, encode_request, encode_response
from replay import apis, convert, joining, plan, quick, retry, topology
from replay.apis import NAME
from replay.channel import Channel, ChannelClosed, connect, introduce
from replay.link import Dial, LinkError
from replay.outcome import Outcome
from replay.remap import KEEP, Producer, Remap
from replay.sessions import Session
from replay.steps import Plan, Route, Step

Body = dict[str, Any]
TRANSACTION_TIMEOUT_MS: Final = 60_000
_LATEST: Final = -1
"""The timestamp by which ListOffsets is asked for the end."""
_LEAST_BACKLOG: Final = 64 << 10
_V2_PRODUCE: Final = 12
_V2_COMMIT: Final = 5
"""From these versions on a broker adds partitions and groups to transactions by itself (KIP-890)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """speed: 1 is as captured, None as fast as answers allow. Seconds: how long an answer is waited for (a join waits
    for others), how long a broker is dialled again, how long after the end answers that the capture lacks too are
    waited for, and after what silence of the whole target the run ends (longer than an answer is waited for, so that a
    connection that went dead is first opened again). backlog_bytes, in_flight: what a connection may have unsent, and a
    session unanswered, before the session waits; no client pipelines as much as that. unsent_bytes: what all sessions
    together may have unsent; each may have its part of it, and never less than 64 KiB."""

    speed: float | None = 1.0
    answer_timeout: float = 90.0
    reconnect: float = 30.0
    grace: float = 1.0
    silence: float = 120.0
    backlog_bytes: int = 4 << 20
    unsent_bytes: int = 256 << 20
    in_flight: int = 1000
    limits: retry.Limits = field(default_factory=retry.Limits)


@dataclass(slots=True)
class _Job:
    """A step on its way: what was sent, what came."""

    step: Step
    outcome: Outcome
    body: Body = field(default_factory=dict)
    parts: list[tuple[int, Body]] = field(default_factory=list)
    waiters: list[asyncio.Future[bytes] | None] = field(default_factory=list)
    connections: list[Channel] = field(default_factory=list)


class _SessionState:
    """What a session has open."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.channels: dict[int, Channel] = {}
        self.again = asyncio.Lock()
        self.retried = False
        self.waited_in_vain = False
        self.quick: dict[int, tuple[Step, Outcome]] = {}  # sent the short way and not answered yet
        self.landed: asyncio.Future[None] | None = None  # told of each answer, while somebody waits for one
        self.jobs: dict[asyncio.Task[None], _Job] = {}
        self.owed: set[asyncio.Task[None]] = set()  # of the jobs, those that were answered in the capture
        self.lost = ""
        self.dialled: dict[int, asyncio.Lock] = {}

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
        self.offers = offers
        self.settings = settings
        self.own_requests: dict[str, int] = {}
        self.notes: dict[str, int] = {}
        self.failure: LinkError | None = None
        """What the target did that kept something from being sent."""
        self._dial = dial
        self._bootstrap = bootstrap
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._states = [_SessionState(session) for session in sessions]
        self._brokers = sorted({session.broker for session in sessions})
        self._done = bytearray(len(planned.steps))
        self._sent = bytearray(len(planned.steps))
        self._awaiting = bytearray(len(planned.steps))  # answered, and sent again until the group rebalances
        self._waiters: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}
        self._blocked: dict[int, asyncio.Future[None]] = {}
        self._busy = 0
        self._control: Channel | None = None
        self._control_lock = asyncio.Lock()
        self._added: dict[str, set[tuple[str, int] | str]] = {}
        self._absent: set[str] = set()  # the target's names of topics that were waited for, and did not appear
        self._early: dict[str, asyncio.Task[None]] = {}
        part = max(settings.unsent_bytes // max(len(sessions), 1), _LEAST_BACKLOG)
        self._most_unsent = min(settings.backlog_bytes, part)
        self._plain = not remap.options.map_topic and remap.options.timestamps == KEEP
        self._refused: set[int] = set()
        self._down: dict[int, float] = {}
        self._started = 0.0
        self._epoch_ns = 0
        self._heard = 0

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
                if not self._done[step.number]:
                    _abort(step, outcome)
                    self._finish(step, outcome)
            self.give_up_rest()
            self.close()
            await asyncio.sleep(0)

    def give_up_rest(self) -> None:
        """Record what was not sent as that."""
        for step in self.plan.steps:
            if not self._done[step.number]:
                self._give_up(step, "aborted", None)

    def close(self) -> None:
        """End all connections."""
        for state in self._states:
            for channel in state.channels.values():
                channel.close()
        if self._control is not None:
            self._control.close()

    def _now_ns(self) -> int:
        return self._epoch_ns + round((self._loop.time() - self._started) * 1e9)

    def _due(self, step: Step) -> float:
        if self.settings.speed is None:
            return self._started
        return self._started + step.at_ns / 1e9 / self.settings.speed

    async def _run_session(self, state: _SessionState, numbers: Sequence[int]) -> None:
        self._busy += 1
        try:
            for number in numbers:
                step = self.plan.steps[number]
                if state.in_flight >= self.settings.in_flight:
                    self._note("back_pressure")
                    await state.landing()
                if not (step.quick is not None and self._is_ready(step) and self._send_quick(state, step, None)):
                    await self._run_step(state, step)
            while state.owed or state.quick:
                await state.landing()
        finally:
            self._busy -= 1
            self._check_stall()

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
        self._mark(self._sent, step.number)
        self._mark(self._done, step.number)

    def _mark(self, table: bytearray, number: int) -> None:
        if not table[number]:
            table[number] = 1
            for _, waiter in self._waiters.pop(number if table is self._done else -1 - number, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def _let_others_go_on(self, step: Step) -> None:
        """A member awaits its group's rebalance, which needs the other members' next requests: only its own connection
        still waits. (A member that joins again makes such a rebalance.)"""
        self._awaiting[step.number] = 1
        for session, waiter in self._waiters.get(step.number, ()):
            if session != step.session and not waiter.done():
                waiter.set_result(None)

    def _is_there(self, number: int, session: int) -> bool:
        """Is an answer there, for a step of this session?"""
        awaiting = self._awaiting[number] and self.plan.steps[number].session != session
        return bool(self._done[number] or awaiting)

    # --- waiting ---

    async def _hold(self, step: Step, outcome: Outcome) -> None:
        """Wait until the step is due and what it waits for is there."""
        due = self._due(step)
        now = self._loop.time()
        if due > now:
            await asyncio.sleep(due - now)
        missing = [number for number in step.waits if not self._is_there(number, step.session)]
        missing += [-1 - number for number in step.after if not self._sent[number]]
        for key in missing:
            if outcome.rule == "wait_released":
                break
            if self._is_there(key, step.session) if key >= 0 else self._sent[-1 - key]:
                continue
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.setdefault(key, []).append((step.session, waiter))
            self._blocked[step.number] = waiter
            self._busy -= 1
            self._check_stall()
            try:
                await waiter
            finally:
                self._busy += 1
                if self._blocked.pop(step.number, None) is None:
                    outcome.retries.append("wait_released")
                    self._note("wait_released")
                    outcome.rule = "wait_released"
        if outcome.rule == "wait_released":
            outcome.rule = step.rules[0] if step.rules else None

    def _check_stall(self) -> None:
        """Nothing is on its way and nothing will come: let the earliest of those who wait go on without it."""
        if self._busy == 0 and self._blocked and not any(waiter.done() for waiter in self._blocked.values()):
            self._blocked.pop(min(self._blocked)).set_result(None)

    def _note(self, rule: str) -> None:
        self.notes[rule] = self.notes.get(rule, 0) + 1

    # --- one step ---

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
        self._mark(self._sent, step.number)
        if all(waiter is None for waiter in job.waiters):
            outcome.verdict, outcome.rule = "not_comparable", "no_answer_expected"
            return self._finish(step, outcome)
        self._follow(state, job)
        return None

    def _follow(self, state: _SessionState, job: _Job) -> None:
        """Wait for the answer of what was sent, beside the session."""
        self._busy += 1
        task = self._loop.create_task(self._await_answer(state, job))
        state.jobs[task] = job
        if job.step.request.answer is not None:
            state.owed.add(task)
        task.add_done_callback(lambda done: self._job_done(state, done))

    def _job_done(self, state: _SessionState, task: asyncio.Task[None]) -> None:
        self._busy -= 1
        del state.jobs[task]
        state.owed.discard(task)
        state.has_landed()
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "a step failed", "exception": task.exception()})
        self._check_stall()

    # --- the short way ---

    def _is_ready(self, step: Step) -> bool:
        """Is it due, and is everything there that it waits for?"""
        done = self._done
        for number in step.waits:
            if not done[number]:
                return False
        if step.after:
            return False
        return self.settings.speed is None or self._loop.time() >= self._due(step)

    def _send_quick(self, state: _SessionState, step: Step, outcome: Outcome | None) -> bool:
        """Send a step the short way; False where it has to take the other one."""
        assert step.quick is not None
        assert step.request.data is not None
        if len(self.topology.nodes) != 1 or not self._plain or state.again.locked() or state.lost:
            return False
        channel = state.channels.get(next(iter(self.topology.nodes)))
        if channel is None or not channel.open or channel.backlog() > self._most_unsent:
            return False
        outcome = outcome or self._outcome(step)
        outcome.ready_ns = self._now_ns()
        correlation = channel.correlation()
        frame = quick.frame(step.quick, step.request.data, correlation, self.remap)
        if frame is None:
            return False
        state.quick[step.number] = step, outcome
        self._busy += 1
        channel.send_whole(frame, correlation, functools.partial(self._quick_answer, state, step, outcome, channel))
        outcome.request = frame
        outcome.sent_version = step.version
        outcome.targets = channel.addresses
        outcome.sent_ns = outcome.first_sent_ns = self._now_ns()
        self._mark(self._sent, step.number)
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
            body = self.remap.request(step)
            node = next(iter(self.topology.nodes))
            self._follow(state, _Job(step, outcome, body, [(node, body)], [waiter], [channel]))
        else:
            self._heard += 1
            outcome.answered_ns = self._now_ns()
            outcome.answer = answer if isinstance(answer, bytes) else None
            if short.base >= 0:
                self.remap.offset_map(short.topic, short.partition).learn(short.base, good[0], short.count)
            self._finish(step, outcome)
        self._busy -= 1
        state.has_landed()
        if not self._busy:
            self._check_stall()

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
                    for channel in state.channels.values():
                        channel.close()

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
                    await self._ask_producer(producer, name)
                    job.outcome.retries.append("producer_asked")
        elif key in (apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN, apis.TXN_OFFSET_COMMIT):
            unknown = self.remap.unknown_transaction(step, step.body)
            if unknown is not None:
                await self._ask_producer(*unknown)
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
        unknown = [name for name in names if name not in self.topology.partitions and name not in self._absent]
        if unknown and apis.api(key).route is Route.LEADER:
            await self.refresh(unknown)

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
        key = step.request.api_key
        first = _V2_PRODUCE if key == apis.PRODUCE else _V2_COMMIT
        name = job.body.get("transactionalId")
        if not name or step.request.version < first or step.version >= first:
            return
        added = self._added.setdefault(name, set())
        producer = self.remap.transactions.get(name)
        if producer is None:
            return
        wanted: set[Any]
        if key == apis.PRODUCE:
            wanted = {(topic, partition) for topic, partition, _ in apis.partitions(key, job.body)} - added
            topics = {topic for topic, _ in wanted}
            body: Body = {
                "v3AndBelowTransactionalId": name,
                "v3AndBelowProducerId": producer.id,
                "v3AndBelowProducerEpoch": producer.epoch,
                "v3AndBelowTopics": [
                    {"name": self.remap.topic(topic), "partitions": sorted(p for t, p in wanted if t == topic)}
                    for topic in sorted(topics)
                ],
            }
            api_key = apis.ADD_PARTITIONS_TO_TXN
        else:
            wanted = {job.body["groupId"]} - added
            body = {"transactionalId": name, "producerId": producer.id, "producerEpoch": producer.epoch,
                    "groupId": job.body["groupId"]}  # fmt: skip
            api_key = apis.ADD_OFFSETS_TO_TXN
        if not wanted:
            return
        version = min(self.offers[api_key][1], 3)
        await self._ask_until(api_key, version, body, name)
        added |= wanted
        job.outcome.retries.append("transaction_v1")

    # --- sending ---

    async def _send(self, state: _SessionState, job: _Job) -> None:
        """Send all parts now, in one turn of the loop, so that the order on each connection is the session's."""
        channels = await self._reach(state, job)
        for channel in channels:
            await self._drained(channel)
        if job.outcome.ready_ns is None:
            job.outcome.ready_ns = self._now_ns()
        job.waiters, job.connections = [], channels
        step = job.step
        outcome = job.outcome
        answered = not (step.request.api_key == apis.PRODUCE and job.body["acks"] == 0)
        for (_, body), channel in zip(job.parts, channels, strict=True):
            correlation = channel.correlation()
            frame = self._encoded(step, body, correlation)
            try:
                job.waiters.append(channel.send(frame, correlation, answered))
            except ChannelClosed as closed:
                failed: asyncio.Future[bytes] = self._loop.create_future()
                failed.set_exception(closed)
                failed.exception()
                job.waiters.append(failed)
            if len(job.parts) == 1:
                outcome.request = frame
        if len(job.parts) != 1:
            if "split" not in outcome.retries:
                outcome.retries.append("split")
            outcome.request = self._encoded(step, job.body, 0)
        outcome.sent_ns = self._now_ns()
        outcome.first_sent_ns = outcome.first_sent_ns or outcome.sent_ns
        outcome.sent_version = step.version
        outcome.targets = [channel.address for channel in channels]

    async def _drained(self, channel: Channel) -> None:
        """Back-pressure: wait until a connection has taken what was queued. Raises LinkError where it does not move."""
        if channel.backlog() > self._most_unsent:
            self._note("back_pressure")
            await self._taken(channel, self._most_unsent)

    async def _taken(self, channel: Channel, most: int) -> None:
        """Wait until a connection has at most that many bytes unsent, or ends. Raises LinkError where it does not
        move."""
        least, since = channel.backlog(), self._loop.time()
        while channel.open and channel.backlog() > most:
            await asyncio.sleep(0.001)
            if channel.backlog() < least:
                least, since = channel.backlog(), self._loop.time()
            elif self._loop.time() - since > self.settings.answer_timeout:
                channel.close()
                raise LinkError(f"{channel.address}: takes no more data", "see the broker's log; a lower --speed")

    async def _all_taken(self) -> None:
        """What expects no answer may still be unsent when everything else is answered."""
        channels = [channel for state in self._states for channel in state.channels.values() if channel.backlog()]
        for failed in await asyncio.gather(*(self._taken(one, 0) for one in channels), return_exceptions=True):
            if isinstance(failed, LinkError):
                self.failure = self.failure or failed

    async def _reach(self, state: _SessionState, job: _Job) -> list[Channel]:
        """Split a request by who serves it now, and open what it needs. A broker that is gone is asked about until
        others have taken over, with a bound. Raises LinkError."""
        started = self._loop.time()
        while True:
            job.parts = await self._parts(state, job)
            channels = []
            try:
                for node, _ in job.parts:
                    channels.append(await self._channel(state, node))
                return channels
            except LinkError:
                if len(self.topology.nodes) <= 1 or self._loop.time() - started > self.settings.reconnect:
                    raise
                self._down[job.parts[len(channels)][0]] = self._loop.time()
                self.topology.forget_node(job.parts[len(channels)][0])
            self._note("dialled_again")
            await asyncio.sleep(self.settings.limits.longest_pause)
            names = {self.remap.topic(topic) for topic, _ in topology.named(job.step.request.api_key, job.body)}
            await self.refresh(sorted(names))

    def _encoded(self, step: Step, body: Body, correlation: int) -> bytes:
        key = step.request.api_key
        try:
            return encode_request(
                key, step.version, correlation, step.request.row["client_id"], convert.fit(key, step.version, body)
            )
        except EncodeError as problem:
            raise _Skipped("target_lacks_version", f"v{step.version}: {problem}") from None

    async def _parts(self, state: _SessionState, job: _Job) -> list[tuple[int, Body]]:
        """(node, body) of each part of a request."""
        key = job.step.request.api_key
        route = apis.api(key).route
        body = job.body
        home = self._home(state)
        if len(self.topology.nodes) <= 1 or route is Route.ANY:
            return [(home, body)]
        if route is Route.BROKER:
            broker = topology.named_broker(body)
            return [(broker if broker in self.topology.nodes and broker is not None else home, body)]
        if route is Route.LEADER:
            by_leader: dict[int, set[tuple[str, int]]] = {}
            for topic, partition in topology.named(key, body):
                leader = self.topology.leaders.get((self.remap.topic(topic), partition), home)
                by_leader.setdefault(leader, set()).add((topic, partition))
            if len(by_leader) <= 1:
                return [(next(iter(by_leader), home), body)]
            return [(node, topology.subset(key, body, wanted)) for node, wanted in sorted(by_leader.items())]
        if route is Route.TRANSACTION:
            name = body.get("transactionalId") or body.get("v3AndBelowTransactionalId") or ""
            return [(await self._coordinator(topology.TRANSACTION, name) if name else home, body)]
        return await self._group_parts(home, body)

    async def _group_parts(self, home: int, body: Body) -> list[tuple[int, Body]]:
        for name in ("groups", "groupIds", "groupsNames"):
            listed = body.get(name)
            if not isinstance(listed, list):
                continue
            by_node: dict[int, list[Any]] = {}
            for one in listed:
                group = one if isinstance(one, str) else one["groupId"]
                by_node.setdefault(await self._coordinator(topology.GROUP, group), []).append(one)
            if not by_node:
                return [(home, body)]
            return [(node, {**body, name: some}) for node, some in sorted(by_node.items())]
        return [(await self._coordinator(topology.GROUP, body.get("groupId") or ""), body)]

    def _home(self, state: _SessionState) -> int:
        """The node that stands for the session's captured broker; while that is down, another."""
        node = self.topology.home(self._brokers, state.session.broker)
        recently = self._loop.time() - self.settings.reconnect
        if self._down.get(node, recently) > recently:
            up = [other for other in sorted(self.topology.nodes) if self._down.get(other, recently) <= recently]
            return up[0] if up else node
        return node

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
                        self._note("topic_absent")
                    if rule == "records_awaited" and (state.waited_in_vain or not step.expects):
                        rule = None
                    if rule == "position_asked" and not any(self.remap.lost_places(step, job.body, captured, replayed)):
                        rule = None
                    if rule == "rejoined" and not self.remap.can_rejoin(step, captured, retry.codes(replayed)):
                        rule = None
                if rule is None or self._loop.time() - started > self._bound(rule):
                    state.waited_in_vain |= rule == "records_awaited"
                    if replayed is not None and rule == "topic_appears":
                        self._absent |= self._not_there(job, captured, replayed)
                    break
                if replayed is not None and rule == "rebalance_awaited":
                    # Its epoch and its partitions are new all the same.
                    self._learn(job, captured, replayed)
                elif replayed is not None and rule != "records_awaited":
                    kept += self._keep_good(job, replayed, captured)
                if rule in ("rebalance_awaited", "rejoined"):
                    self._let_others_go_on(step)
                outcome.retries.append(rule)
                self._note(rule)
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
        return bool(topics) and topics <= self._absent

    async def _answers(self, job: _Job) -> Body:
        """The answer of all parts, merged, its topics named. Raises ChannelClosed."""
        step = job.step
        frames = []
        for waiter, channel in zip(job.waiters, job.connections, strict=True):
            assert waiter is not None
            try:
                frames.append(await asyncio.wait_for(asyncio.shield(waiter), self.settings.answer_timeout))
            except TimeoutError:
                channel.close()
                raise ChannelClosed(f"{channel.address}: no answer after {self.settings.answer_timeout:g} s") from None
        bodies = []
        for frame, channel in zip(frames, job.connections, strict=True):
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
        where = apis.RESPONSE_LISTS[key]
        good = []
        for topic in apis.structs(replayed, where.path):
            name = topic.get(NAME) or topic.get(where.name) or ""
            some = [one for one in topic[where.partitions] if (name, one[where.number]) not in failed]
            if some:
                good.append({**topic, where.partitions: some})
        return [{**replayed, where.path[0]: good}]

    async def _again(self, state: _SessionState, job: _Job, rule: str, replayed: Body | None) -> None:
        """Send a step again, after what the rule asks for."""
        key = job.step.request.api_key
        if rule in ("topic_appears", "leader_moved", "reconnected"):
            await self.refresh(sorted({self.remap.topic(topic) for topic, _ in topology.named(key, job.body)}))
            self.remap.name_topics(key, job.body)
        if rule in ("coordinator_loads", "reconnected"):
            for key_type, name in list(self.topology.coordinators):
                if name in (job.body.get("groupId"), job.body.get("transactionalId")):
                    self.topology.coordinators.pop((key_type, name), None)
        if rule == "coordinator_loads":
            group = apis.api(key).route is Route.GROUP
            asked = job.body.get("groupId" if group else "transactionalId")
            if asked:
                await self._find_coordinator(topology.GROUP if group else topology.TRANSACTION, asked)
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
                (topic, partition): (end, await self._end(self.remap.topic(topic), partition))
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
            self._learn_metadata(replayed)
        elif key == apis.FETCH:
            self.remap.fetch_answered(job.step, job.body, captured, replayed)
        elif key == apis.END_TXN:
            self._added.pop(job.body["transactionalId"], None)
        elif key == apis.CREATE_TOPICS:
            self._absent -= {topic["name"] for topic in replayed["topics"] if not topic["errorCode"]}
        self.remap.learn(job.step, job.body, captured, replayed)

    def _learn_metadata(self, answer: Body) -> None:
        self.topology.learn_metadata(answer)
        self._absent -= {topic["name"] for topic in answer["topics"] if not topic["errorCode"]}
        self.remap.topic_ids.update(self.topology.topic_ids)
        self.remap.leader_epochs.update(self.topology.leader_epochs)

    # --- connections and requests of our own ---

    async def _channel(self, state: _SessionState, node: int) -> Channel:
        channel = state.channels.get(node)
        if channel is not None and channel.open:
            return channel
        lock = state.dialled.setdefault(node, asyncio.Lock())
        async with lock:
            channel = state.channels.get(node)
            if channel is not None and channel.open:
                return channel
            channel = await self._dialled(node)
            state.channels[node] = channel
            return channel

    async def _dialled(self, node: int) -> Channel:
        """Connect to a node; to the only one again and again until a bound, for brokers restart. Raises LinkError."""
        started = self._loop.time()
        pause = 0.05
        while True:
            host, port = self.topology.nodes.get(node, self._bootstrap)
            try:
                channel = await connect(self._dial, host, port)
                await introduce(channel, self.offers, self.settings.answer_timeout)
                return channel
            except LinkError:
                # Of several brokers others may have taken over: `_reach` asks.
                if len(self.topology.nodes) > 1 or self._loop.time() - started > self.settings.reconnect:
                    raise
            self._note("dialled_again")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def _ask(self, api_key: int, version: int, body: Body, node: int | None = None) -> Body:
        """A request of our own on the control connection, or on one to a node for this request only."""
        self.own_requests[apis.name(api_key)] = self.own_requests.get(apis.name(api_key), 0) + 1
        if node is not None and len(self.topology.nodes) > 1:
            channel = await self._dialled(node)
            try:
                return await channel.ask(api_key, version, body, self.settings.answer_timeout)
            finally:
                channel.close()
        async with self._control_lock:
            for attempt in (0, 1):
                if self._control is None or not self._control.open:
                    self._control = await self._any_channel()
                try:
                    return await self._control.ask(api_key, version, body, self.settings.answer_timeout)
                except ChannelClosed as closed:
                    if attempt:
                        raise LinkError(str(closed), "see the broker's log") from None
        raise AssertionError

    async def _any_channel(self) -> Channel:
        started = self._loop.time()
        while True:
            addresses = [self._bootstrap, *self.topology.nodes.values()]
            for host, port in dict.fromkeys(addresses):
                with contextlib.suppress(LinkError):
                    channel = await connect(self._dial, host, port)
                    await introduce(channel, self.offers, self.settings.answer_timeout)
                    return channel
            if self._loop.time() - started > self.settings.reconnect:
                host, port = self._bootstrap
                raise LinkError(f"{host}:{port}: no broker of the target answers", "is it up?")
            await asyncio.sleep(0.2)

    async def _ask_until(self, api_key: int, version: int, body: Body, transaction: str | None = None) -> Body:
        """The same until no retriable error comes, with a bound; the last answer comes back. `transaction`: ask the
        coordinator of this transactional id."""
        started = self._loop.time()
        pause = self.settings.limits.first_pause
        while True:
            late = self._loop.time() - started > self.settings.limits.errors
            try:
                node = await self._coordinator(topology.TRANSACTION, transaction) if transaction else None
                answer = await self._ask(api_key, version, body, node)
            except (LinkError, ChannelClosed) as failure:
                if late:
                    raise LinkError(str(failure), getattr(failure, "hint", "")) from None
                rule: str | None = "reconnected"
            else:
                rule = retry.rule(api_key, {"errorCode": 0}, answer, False)
                if rule is None or late:
                    return answer
            if transaction and rule == "coordinator_loads":
                await self._find_coordinator(topology.TRANSACTION, transaction)
            elif transaction:
                self.topology.coordinators.pop((topology.TRANSACTION, transaction), None)
            assert rule is not None
            self._note(rule)
            await asyncio.sleep(pause)
            pause = min(pause * 2, self.settings.limits.longest_pause)

    async def refresh(self, names: Sequence[str]) -> None:
        """Ask for the leaders of topics (and all brokers)."""
        low, high = self.offers[apis.METADATA]
        version = max(low, min(high, 12))
        body: Body = {"topics": [{"name": name} for name in names], "allowAutoTopicCreation": False}
        self._learn_metadata(await self._ask(apis.METADATA, version, convert.fit(apis.METADATA, version, body)))

    async def _end(self, topic: str, partition: int) -> int:
        """Where a partition of the target ends; 0 where it does not say."""
        version = min(self.offers[apis.LIST_OFFSETS][1], 5)
        asked = {"partitionIndex": partition, "timestamp": _LATEST, "maxNumOffsets": 1}
        body: Body = {"replicaId": -1, "topics": [{"name": topic, "partitions": [asked]}]}
        body = convert.fit(apis.LIST_OFFSETS, version, body)
        answer = await self._ask(apis.LIST_OFFSETS, version, body, self.topology.leaders.get((topic, partition)))
        one = answer["topics"][0]["partitions"][0]
        return max(one["offset"] if "offset" in one else max(one["oldStyleOffsets"], default=0), 0)

    async def _coordinator(self, key_type: int, key: str) -> int:
        if len(self.topology.nodes) <= 1:
            return next(iter(self.topology.nodes))
        known = self.topology.coordinators.get((key_type, key))
        return known if known is not None else await self._find_coordinator(key_type, key)

    async def _find_coordinator(self, key_type: int, key: str) -> int:
        """Ask for a coordinator. A cluster that was never asked has none: the question makes the topic that it keeps
        its state in, and a capture may begin after its clients had asked."""
        self.topology.coordinators.pop((key_type, key), None)
        version = min(self.offers[apis.FIND_COORDINATOR][1], 3)
        body = convert.fit(apis.FIND_COORDINATOR, version, {"key": key, "keyType": key_type})
        answer = await self._ask_until(apis.FIND_COORDINATOR, version, body)
        if answer["errorCode"]:
            return next(iter(self.topology.nodes))
        self.topology.learn_coordinator(key_type, key, answer["nodeId"], answer["host"], answer["port"])
        return int(answer["nodeId"])

    async def _join_early(self, group: str) -> None:
        """Join the members that had joined before the capture began. Raises _Skipped, for each of their steps."""
        some = self.facts.early[group]
        self.notes["joined_early"] = self.notes.get("joined_early", 0) + len(some)
        try:
            async with asyncio.timeout(self.settings.answer_timeout):
                await joining.early(some, self.remap, functools.partial(self._ask_group, group))
        except (joining.JoinRefused, TimeoutError, LinkError, ChannelClosed) as failure:
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
        ask = functools.partial(self._ask_group, group)
        if self.remap.subscription(group, member) or not self.remap.moved_on(job.step, job.body):
            with contextlib.suppress(joining.JoinRefused, TimeoutError, LinkError, ChannelClosed):
                async with asyncio.timeout(self.settings.limits.errors):
                    await joining.again(group, member, generation, self.remap, ask)
        job.body = self.remap.request(job.step)

    async def _ask_group(self, group: str, api_key: int, version: int, body: Body) -> Body:
        """Ask a group's coordinator as one of its members, on a connection of its own: a join holds up the others."""
        low, high = self.offers[api_key]
        version = max(low, min(high, version))
        node = await self._coordinator(topology.GROUP, group)
        self.own_requests[apis.name(api_key)] = self.own_requests.get(apis.name(api_key), 0) + 1
        channel = await self._dialled(node)
        try:
            answer = await channel.ask(
                api_key, version, convert.fit(api_key, version, body), self.settings.answer_timeout
            )
        finally:
            channel.close()
        if answer["errorCode"] in retry.NO_COORDINATOR:
            await self._find_coordinator(topology.GROUP, group)
        return answer

    async def _ask_producer(self, captured: Producer, transactional_id: str | None) -> None:
        """Get a producer id that the capture does not show how its client got."""
        version = min(self.offers[apis.INIT_PRODUCER_ID][1], 4)
        body = {"transactionalId": transactional_id or None, "transactionTimeoutMs": TRANSACTION_TIMEOUT_MS}
        answer = await self._ask_until(apis.INIT_PRODUCER_ID, version, body, transactional_id)
        given = Producer(answer["producerId"], answer["producerEpoch"])
        self.remap.give_producer(captured, transactional_id, given)


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
