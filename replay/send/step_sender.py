"""Sends single steps, and takes their answers: repeats a step by rule, learns from its answers, records its outcome.

In: a step whose turn has come, and its session's state. Out: its outcome, to `finish`. Rules: a step that fails does
not end the run; a step has one outcome whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
from collections import Counter
from typing import Final, Protocol

from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.encoding import EncodeError, encode_request, encode_response
from kwire.analyzer.protocol.tree import Body
from kwire.captures.errors import message_of
from kwire.replay.outcome import Outcome
from kwire.replay.plan import apis, batches, convert, produce_requests
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import merged, name_answer, without_names
from kwire.replay.plan.values import NO_COORDINATOR
from kwire.replay.remap import retry, share_sessions, unread
from kwire.replay.remap.groups import moves
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology
from kwire.replay.send import produce_in_place
from kwire.replay.send.channel import Channel, ChannelClosedError
from kwire.replay.send.dependencies import Waiting
from kwire.replay.send.keep_alive import KEPT_ALIVE, KeepAlive
from kwire.replay.send.link import LinkError
from kwire.replay.send.preparation import Job, Preparation, SkippedError
from kwire.replay.send.reach import ForbiddenAddressError
from kwire.replay.send.routing import Router
from kwire.replay.send.session_state import SessionState
from kwire.replay.send.settings import Settings
from kwire.replay.send.target_watch import Watch
from kwire.replay.send.timetable import Timetable

_SPLIT: Final = 1.0
"""Seconds between the answers to JoinGroups of one generation, which brokers send together: a member without one by
then has come too late for it."""


NEW: Final = 5.0
"""Seconds for which a target may not be ready yet for a topic, group or transactional id that it has just met."""
_NOT_READY: Final = frozenset(
    (
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.LEADER_NOT_AVAILABLE,
        errors.NOT_LEADER_OR_FOLLOWER,
        errors.UNKNOWN_TOPIC_ID,
        *NO_COORDINATOR,
    )
)
"""Errors that it answers until it is."""


class SenderRun(Protocol):
    """The run of a `StepSender`, as far as the sender needs it.

    - `notes`: how often each rule was applied; `failure`: the fault of the target that kept something from being sent
    - `states`: of the sessions that are open, by index
    """

    remap: Remap
    topology: Topology
    settings: Settings
    notes: Counter[str]
    failure: LinkError | None
    timetable: Timetable
    waiting: Waiting
    preparation: Preparation
    keep_alive: KeepAlive
    watch: Watch
    states: dict[int, SessionState]

    @property
    def is_planned(self) -> bool:
        """Whether all steps are there."""

    @property
    def most_unsent(self) -> int:
        """Unsent bytes that a connection may have before its session waits."""

    def finish(self, step: Step, outcome: Outcome) -> None:
        """Record the outcome of a step."""

    def fail(self, failure: BaseException) -> None:
        """End the run with this error."""

    def leave(self, index: int, state: SessionState) -> None:
        """Close the connections of a session if it is over and everything is answered."""


class StepSender:
    """Sends the steps of one run, each when its session's turn comes."""

    def __init__(self, run: SenderRun, router: Router) -> None:
        self._run = run
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._remap, self._topology, self._settings, self._notes = run.remap, run.topology, run.settings, run.notes
        self._timetable, self._waiting, self._preparation = run.timetable, run.waiting, run.preparation
        self._due, self._now_ns = run.timetable.due, run.timetable.now_ns
        # Since when topics are there, and groups and transactional ids are used.
        self._since: dict[tuple[str, str], float] = dict.fromkeys(
            (("topic", name) for name in run.topology.partitions), self._loop.time()
        )

    # --- sending one step ---

    def _outcome(self, step: Step) -> Outcome:
        outcome = Outcome(step.request.row, step.number, "converted" if step.rules else "sent", "answered")
        outcome.rule = step.rules[0] if step.rules else None
        outcome.captured_answer = step.request.answer
        self._timetable.stamp(step, outcome)
        return outcome

    def give_up(self, step: Step, rule: str, reason: str | None) -> None:
        """Record that a step is not sent, by this rule."""
        outcome = self._outcome(step)
        outcome.action, outcome.verdict, outcome.rule, outcome.reason = "not_sent", "not_sent", rule, reason
        self._run.finish(step, outcome)

    async def send(self, state: SessionState, step: Step) -> None:
        """Send a step once it is due and ready, and follow it until its outcome is known."""
        outcome = self._outcome(step)
        await self._hold(state, step, outcome)
        if step.fast_path is not None and self.send_fast(state, step, outcome):
            return None
        for used in _coordinated(step):
            self._since.setdefault(used, self._loop.time())
        job = Job(step, outcome)
        if state.lost:
            return self.give_up(step, "session_lost", state.lost)
        try:
            async with state.again:
                await self._preparation.first(job)
                await self._send_parts(state, job)
        except SkippedError as skipped:
            outcome.action = outcome.verdict = "skipped"
            outcome.rule, outcome.reason = skipped.rule, skipped.reason
            return self._run.finish(step, outcome)
        except LinkError as failure:
            state.lost = failure.message
            self._run.failure = self._run.failure or failure
            return self.give_up(step, "unreachable", failure.message)
        except Exception as failure:
            # One step must not take the run down; the run is not valid, and says why.
            return self.give_up(step, "tool_error", f"{type(failure).__name__}: {failure}")
        self._waiting.sent(step.number)
        if all(waiter is None for waiter in job.waiters):
            outcome.verdict, outcome.rule = "not_comparable", "no_answer_expected"
            return self._run.finish(step, outcome)
        self._follow(state, job)
        return None

    async def _hold(self, state: SessionState, step: Step, outcome: Outcome) -> None:
        """Wait until the step is due and what it waits for is there."""
        state.next = step
        due = self._due(step)
        now = self._loop.time()
        if due > now:
            await asyncio.sleep(due - now)
        if not await self._waiting.until_ready(step):
            outcome.retries.append("wait_released")
            self._notes["wait_released"] += 1
        state.next = None

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
            self._run.fail(failure)
        self._waiting.end()
        self._run.leave(index, state)

    # --- the fast path ---

    def is_ready(self, step: Step) -> bool:
        """Whether a step is due, and everything is there that it waits for."""
        return self._waiting.is_ready(step) and self._timetable.is_due(step)

    def send_fast(self, state: SessionState, step: Step, outcome: Outcome | None) -> bool:
        """Send a step on the fast path; false if it has to be decoded."""
        assert step.fast_path is not None
        assert step.request.data is not None
        if len(self._topology.nodes) != 1 or not self._remap.in_place or state.again.locked() or state.lost:
            return False
        channel = state.connections.channels.get(next(iter(self._topology.nodes)))
        if channel is None or not channel.open or channel.backlog() > self._run.most_unsent:
            return False
        outcome = outcome or self._outcome(step)
        outcome.ready_ns = self._now_ns()
        correlation = channel.correlation()
        frame = produce_in_place.frame(step.fast_path, step.request.data, correlation, self._remap)
        if frame is None:
            return False
        state.fast[step.number] = step, outcome
        self._waiting.begin()
        channel.send_whole(frame, correlation, functools.partial(self._fast_answer, state, step, outcome, channel))
        outcome.request = frame
        outcome.sent_version = step.version
        outcome.targets = channel.addresses
        outcome.sent_ns = outcome.first_sent_ns = self._now_ns()
        self._waiting.sent(step.number)
        return True

    def _fast_answer(
        self, state: SessionState, step: Step, outcome: Outcome, channel: Channel, answer: bytes | ChannelClosedError
    ) -> None:
        """Take the answer to a step on the fast path. Anything but a plain success is handled like other answers from
        here."""
        short = step.fast_path
        assert short is not None
        if state.fast.pop(step.number, None) is None:
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
            self._follow(state, Job(step, outcome, self._remap.request(step), [waiter], [channel]))
        else:
            self._run.watch.answered += 1
            outcome.answered_ns = self._now_ns()
            outcome.answer = answer if isinstance(answer, bytes) else None
            if short.base >= 0:
                self._remap.offsets.appended((short.topic, short.partition), short.base, good[0], short.count)
            self._run.finish(step, outcome)
        state.landed.ring()
        self._waiting.end()

    # --- sending its parts ---

    async def _send_parts(self, state: SessionState, job: Job) -> None:
        """Send all parts now, in one turn of the loop, so that the order on each connection is the session's."""
        reached = await self._router.reach(state.connections, job.step.request.api_key, job.body)
        for _, channel, _ in reached:
            if channel.backlog() > self._run.most_unsent:
                self._notes["back_pressure"] += 1
                await channel.drained(self._run.most_unsent, self._settings.answer_timeout)
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
            except ChannelClosedError as closed:
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

    def _encoded(self, step: Step, body: Body, correlation: int) -> bytes:
        key = step.request.api_key
        try:
            return encode_request(
                key, step.version, correlation, step.request.row["client_id"], convert.fit(key, step.version, body)
            )
        except EncodeError as problem:
            raise SkippedError("target_lacks_version", f"v{step.version}: {problem.message}") from None

    # --- answers ---

    async def _await_answer(self, state: SessionState, job: Job) -> None:
        """Wait for the answers of a sent step; repeat it by rule; learn; record."""
        step, outcome = job.step, job.outcome
        captured = self._preparation.captured(job)
        retries = retry.Retries(
            step, captured, state.history, self._remap, self._topology, self._settings.limits, self._loop.time()
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
                self._discard(step, outcome, decision.rule, captured, replayed)
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
                    await self._send_parts(state, job)
            if step.request.api_key == api_keys.FETCH and captured is not None and replayed is not None:
                replayed = await self._read_on(state, job, captured, replayed)
            self._conclude(job, captured, replayed, good_answers)
            if replayed is not None:
                with contextlib.suppress(LinkError):  # the next step finds out
                    await self._preparation.settle(job, replayed)
        except asyncio.CancelledError:
            abort(step, outcome)
            raise
        except (LinkError, SkippedError) as failure:
            outcome.verdict, outcome.reason = "unanswered", message_of(failure)
            if isinstance(failure, ForbiddenAddressError):
                self._run.failure = self._run.failure or failure
        except Exception as failure:
            outcome.verdict, outcome.rule = "unanswered", "tool_error"
            outcome.reason = f"{type(failure).__name__}: {failure}"
        finally:
            self._run.finish(step, outcome)

    async def _read_on(self, state: SessionState, job: Job, captured: Body, replayed: Body) -> Body:
        """Read on, for a time, where a reader's last fetch ended before the captured one; return all that it read.

        What is recorded as sent, and when, stays that of its own fetch.
        """
        if retry.codes(replayed) or not self._is_last_fetch(state, job.step):
            return replayed
        step, outcome, remap = job.step, job.outcome, self._remap
        own = job.body, outcome.request, outcome.sent_ns, outcome.answered_ns, outcome.targets
        until, pause = self._loop.time() + self._settings.limits.records, self._settings.limits.first_pause
        with contextlib.suppress(LinkError, SkippedError, batches.BadRecordsError):
            rest = unread.unread(step, own[0], captured, replayed, remap)
            while rest and self._loop.time() < until:
                self._apply(outcome, "read_on")
                job.body = unread.request(step, own[0], rest, remap)
                async with state.again:
                    await self._send_parts(state, job)
                more = await self._answer(job)
                outcome.answer = outcome.reason = None
                if more is None or retry.codes(more):
                    break
                both = unread.joined(replayed, more)
                left = unread.unread(step, own[0], captured, both, remap)
                if left != rest:
                    replayed, rest = both, left
                elif retry.has_records(more):
                    break
                else:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, self._settings.limits.longest_pause)
        job.body, outcome.request, outcome.sent_ns, outcome.answered_ns, outcome.targets = own
        return replayed

    def _is_last_fetch(self, state: SessionState, step: Step) -> bool:
        """Whether no fetch of the session comes after this one."""
        if not (state.over or self._run.is_planned):
            return False
        others = (*(job.step for job in state.jobs.values()), *([state.next] if state.next is not None else []))
        return not any(
            other.request.api_key == api_keys.FETCH and other.number > step.number
            for other in itertools.chain(others, state.steps)
        )

    def _apply(self, outcome: Outcome, *rules: str) -> None:
        outcome.retries += rules
        self._notes.update(rules)

    def _discard(self, step: Step, outcome: Outcome, rule: str, captured: Body | None, replayed: Body | None) -> None:
        """Keep what an answer said in place of which the step is sent again; that the target waits is no error."""
        if replayed is None:
            outcome.discarded.append((rule, None, False))
            return
        now = self._loop.time()
        names = {("topic", name) for name in retry.absent_topics(step.request.api_key, replayed, None)}
        names |= {("topic", name) for name, _ in retry.failed_partitions(step.request.api_key, replayed, None) or ()}
        used = [self._since.setdefault(name, now) for name in names or _coordinated(step)]
        is_new = any(was_early for _, _, was_early in outcome.discarded) or any(now - since <= NEW for since in used)
        for code in sorted(retry.codes(replayed) - retry.codes(captured)):
            outcome.discarded.append((rule, code, is_new and code in _NOT_READY))

    def take_kept_alive(self, step: Step, outcome: Outcome) -> None:
        """Record with a step the errors that heartbeats of the replayer's own met, sent while its turn did not come."""
        since = self._since.get(("group", step.group or ""), math.inf)
        for code, at in self._run.keep_alive.errors.pop(step.number):
            outcome.discarded.append((KEPT_ALIVE, code, at - since <= NEW and code in _NOT_READY))

    async def _answer(self, job: Job) -> Body | None:
        """The answer of all parts; None if a connection ended before it came."""
        replayed, job.answers = None, []
        try:
            replayed = await self._answers(job)
        except ChannelClosedError as closed:
            job.outcome.reason = str(closed)
        if job.step.request.api_key in share_sessions.APIS:
            self._preparation.hear_shares(job)
        if replayed is None:
            return None
        job.outcome.reason = None
        self._run.watch.answered += 1
        job.outcome.answered_ns = self._now_ns()
        return replayed

    async def _answers(self, job: Job) -> Body:
        """The answer of all parts, merged, its topics named. Raises ChannelClosedError."""
        step = job.step
        frames = []
        for waiter, channel in zip(job.waiters, job.channels, strict=True):
            assert waiter is not None
            try:
                frames.append(await asyncio.wait_for(asyncio.shield(waiter), self._settings.answer_timeout))
            except TimeoutError:
                channel.close()
                raise ChannelClosedError(
                    f"{channel.address}: no answer after {self._settings.answer_timeout:g} s"
                ) from None
        bodies: list[Body] = []
        for frame, channel in zip(frames, job.channels, strict=True):
            decoded = tree.decode_response(frame, step.request.api_key, step.version, exact=True)
            if decoded.status != OK or decoded.body is None:
                channel.close()
                raise ChannelClosedError(f"{channel.address}: the answer cannot be decoded: {decoded.reason}")
            name_answer(step.request.api_key, decoded.body, self._topology.names_by_id())
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
        if key == api_keys.CREATE_TOPICS:
            created = (topic["name"] for topic in replayed["topics"] if not topic["errorCode"])
            self._since.update(dict.fromkeys((("topic", name) for name in created), self._loop.time()))
        others = retry.codes(replayed) - retry.codes(captured)
        self._run.watch.errors += bool(others)
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

    # --- rebalances ---

    def _let_go_on_without(self, step: Step) -> None:
        """Let others go on that a member waits for which joins too late for its generation. It waits for the others to
        join again, and they for its answer, which they had in the capture."""
        if self._waiting.is_done(step.number):
            return
        if self._remap.groups.is_late(step):
            self._waiting.let_others_go_on(step)
        self._loop.call_later(_SPLIT, self._let_go_on_without, step)

    def _is_in_vain(self, step: Step) -> bool:
        """Whether the rebalance that a member awaits will not come.

        It is over for this member. Or it belonged to a member that the target keeps out, or had begun before the
        capture did; and no member joins at this moment, and none is there that falls silent from now on and will be
        expired.
        """
        groups, group = self._remap.groups, step.group or ""
        if step.request.api_key == api_keys.HEARTBEAT and groups.is_past(step):
            return True
        kept_out = groups.keeps_out(group)
        if not kept_out and not self._stands_still(step, group):
            return False
        flying = (job.step for state in self._run.states.values() for job in state.jobs.values())
        if any(other.group == group and other is not step and _joins(other) for other in flying):
            return False
        others = groups.others(group, step.body["memberId"])
        if kept_out and step.request.api_key in apis.GROUP_HEARTBEATS:
            return not others  # what they gave up may be on its way
        return all(self._run.keep_alive.will_speak(who) for who in others)

    def _stands_still(self, step: Step, group: str) -> bool:
        """Whether all members of a group are as the replayer joined them, and nothing before this step is on its way,
        or still to be sent, that would move them."""
        if not self._remap.groups.stands_still(group):
            return False
        before = (
            other
            for state in self._run.states.values()
            for other in (
                *(job.step for job in state.jobs.values()),
                *([state.next] if state.next is not None else []),
                *itertools.takewhile(lambda other: other.number < step.number, state.steps),
            )
            if other.number < step.number and other.group == group
        )
        return not any(map(moves, before))


def _coordinated(step: Step) -> list[tuple[str, str]]:
    """The group and the transactional id that a step is about, or the producer ids of brokers, which they have to be
    given first (ProducerIdManager)."""
    names = [("group", step.group), ("transaction", step.request.row.get("transactional_id"))]
    if step.request.api_key == api_keys.INIT_PRODUCER_ID and not names[1][1]:
        names.append(("producer ids", "all"))
    if step.request.api_key == api_keys.FIND_COORDINATOR:  # which its row does not say
        kind = "transaction" if step.body.get("keyType") == api_keys.TRANSACTION_COORDINATOR else "group"
        names += [(kind, name) for name in step.body.get("coordinatorKeys") or [step.body.get("key")]]
    return [(kind, name) for kind, name in names if name]


def _joins(step: Step) -> bool:
    """Whether the step's member asks to be let into its group."""
    key = step.request.api_key
    return key == api_keys.JOIN_GROUP or (key in apis.GROUP_HEARTBEATS and step.body["memberEpoch"] == 0)


def abort(step: Step, outcome: Outcome) -> None:
    """Record a step whose answer had not come when the run ended."""
    if step.request.answer is None:
        outcome.verdict, outcome.rule = "not_comparable", "not_captured"
    else:
        outcome.verdict, outcome.rule = "unanswered", "aborted"
