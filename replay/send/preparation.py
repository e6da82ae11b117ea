"""Prepares a step: own requests before it is sent, or repeated, and what is learned from its answers.

In: a step on its way (`Job`). Out: its body as it goes to the target. Own requests go through `own_requests`, what is
learned to the remap and the topology. Rule: nothing captured is sent from here; a step that turns out not to be
sendable raises `SkippedError` with the rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.captures.errors import message_of
from kwire.replay.outcome import Outcome
from kwire.replay.plan import apis
from kwire.replay.plan.apis import Route
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME, name_answer, named
from kwire.replay.plan.values import Producer
from kwire.replay.remap import retry, transactions
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology
from kwire.replay.send import joining
from kwire.replay.send.channel import Channel
from kwire.replay.send.link import LinkError
from kwire.replay.send.own_requests import Asker
from kwire.replay.send.settings import Settings


@dataclass(slots=True)
class Job:
    """A step on its way: what was sent, to which nodes in which parts, and what came. `captured`: the captured answer,
    once it was needed (`Preparation.captured`)."""

    step: Step
    outcome: Outcome
    body: Body = field(default_factory=dict)
    waiters: list[asyncio.Future[bytes] | None] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    parts: list[tuple[int, Body]] = field(default_factory=list)
    answers: list[Body] = field(default_factory=list)
    captured: Body | None = None


def _took_ms(step: Step) -> int:
    """How long the captured answer took, rounded up."""
    answered = step.request.answered_ns
    return -(-(answered - step.request.sent_ns) // 1_000_000) if answered is not None else 0


_MAKERS: Final = {
    api_keys.CREATE_TOPICS: "topics",
    api_keys.CREATE_PARTITIONS: "results",
    api_keys.DELETE_TOPICS: "responses",
}
"""APIs that create and delete topics: where their answers list them."""


class SkippedError(Exception):
    """A step that turns out not to be sendable."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule
        self.reason = reason


@dataclass(slots=True)
class Preparation:
    """Prepares one run's steps. `notes`: the run's, by rule."""

    cluster: Cluster
    remap: Remap
    topology: Topology
    asker: Asker
    settings: Settings
    notes: Counter[str]
    _additions: transactions.Additions = field(default_factory=transactions.Additions, init=False)
    _refused: set[int] = field(default_factory=set, init=False)
    _early: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def begin(self, groups: Iterable[str | None]) -> None:
        """Let members of these groups that had joined before the capture began join now, unless they have."""
        loop = asyncio.get_running_loop()
        for group in (self.cluster.early.keys() - self._early.keys()) & set(groups):
            self._early[group] = loop.create_task(self._join_early(group))

    @property
    def joins(self) -> list[asyncio.Task[None]]:
        """The tasks that join them."""
        return list(self._early.values())

    def refuse(self, api_key: int) -> None:
        """Note that the target offers this API, and does not serve it."""
        self._refused.add(api_key)

    async def first(self, job: Job) -> None:
        """The body to send, after own requests that it needs. Raises SkippedError, LinkError."""
        step = job.step
        key = step.request.api_key
        if key in self._refused:
            raise SkippedError("target_refuses", f"{api_keys.name(key)}: UNSUPPORTED_VERSION (35)")
        for producer, transactional_id in self.remap.producers.unknown(key, step.body):
            await self._producer(job, producer, transactional_id)
        await self._know(key, step.body)
        early = self._early.get(step.body.get("groupId") or "")
        if early is not None:
            await asyncio.shield(early)
        stranger = self.remap.groups.stranger(step)
        if stranger is not None:
            raise SkippedError("not_joined", f"group {stranger[0]}: member {stranger[1] or '(without id)'}")
        if self.remap.fetches.lacks_share_session(step):
            raise SkippedError("no_session", f"share session of group {step.body['groupId']}")
        job.body = self.remap.request(step)
        if key == api_keys.FETCH:
            self._fetch_session(step, job)
        if key in (api_keys.PRODUCE, api_keys.TXN_OFFSET_COMMIT):
            await self._transaction_v1(step, job)

    async def _producer(self, job: Job, captured: Producer, transactional_id: str | None) -> None:
        """Ask for a producer id for a captured one. Raises SkippedError if the target gives none, now and later."""
        producers = self.remap.producers
        if producers.given(captured) is not None:
            return
        error = producers.refused(captured)
        if not self.asker.offers(api_keys.INIT_PRODUCER_ID):
            raise SkippedError("no_producer", "the target does not offer InitProducerId")
        if error is None:
            given = await self.asker.producer(transactional_id)
            if isinstance(given, Producer):
                producers.give(captured, transactional_id, given)
                job.outcome.retries.append("producer_asked")
                return
            producers.refuse(captured, given)
            error = given
        raise SkippedError("no_producer", f"InitProducerId was answered {errors.label(error)}")

    def _is_told(self, topic: str) -> bool:
        return topic in self.topology.partitions or topic in self.topology.absent

    async def _know(self, key: int, body: Body) -> None:
        """Ask for the leaders and ids of topics that were never asked for."""
        topics = {self.remap.topics.name(topic[NAME]) for _, topic in topics_of(key, body) if topic.get(NAME)}
        unknown = [name for name in topics if not self._is_told(name)]
        if unknown and apis.api(key).route is Route.LEADER:
            await self.asker.refresh(unknown)

    def _fetch_session(self, step: Step, job: Job) -> None:
        several = len(self.topology.nodes) > 1
        captured = self.captured(job)
        rule = self.remap.fetches.enter(step, job.body, captured, several)
        self.remap.topics.address(api_keys.FETCH, job.body)
        if rule == "no_session":
            raise SkippedError(rule, f"session {step.body['sessionId'] if step.body else 0}")
        if rule is not None:
            job.outcome.retries.append(rule)
        speed = self.settings.speed_at(step.at_ns)
        if captured is None:
            return
        wait_ms = job.body["maxWaitMs"]
        has_records = retry.has_records(captured)
        fast = speed is None or speed > 1
        in_vain = fast and (not has_records or self.remap.fetches.has_read(step, job.body, captured))
        if has_records and not in_vain:
            # If this replay does not write them they are there at once, or never.
            wait_ms = wait_ms if self._are_written(captured) else min(wait_ms, _took_ms(step))
        if in_vain or wait_ms < job.body["maxWaitMs"]:
            job.body["maxWaitMs"] = int(wait_ms / speed) if speed else 0
            job.outcome.retries.append("long_poll_scaled")

    def _are_written(self, answer: Body) -> bool:
        """Whether this replay writes to a topic that an answer to Fetch (named) has records of."""
        return any(
            topic.get(NAME) in self.cluster.produced
            for topic in answer["responses"]
            if any(partition.get("records") for partition in topic["partitions"])
        )

    async def _transaction_v1(self, step: Step, job: Job) -> None:
        """Send the request that adds partitions to transactions, if the target does not do it by itself (KIP-890)."""
        missing = self._additions.missing(step, job.body, self.remap)
        if missing is None:
            return
        answer = await self.asker.ask_until(
            missing.api_key, transactions.VERSION, missing.body, missing.transactional_id
        )
        if not retry.codes(answer):
            self._additions.add(missing)
        job.outcome.retries.append("transaction_v1")

    async def again(self, job: Job, rule: str, captured: Body | None, replayed: Body | None) -> None:
        """The body to repeat, after own requests that the rule needs. Raises LinkError."""
        key = job.step.request.api_key
        if rule in ("topic_appears", "leader_moved", "reconnected"):
            await self.asker.refresh(sorted({self.remap.topics.name(topic) for topic, _ in named(key, job.body)}))
        if rule in ("coordinator_loads", "reconnected"):
            for key_type, name in list(self.topology.coordinators):
                if name in (job.body.get("groupId"), job.body.get("transactionalId")):
                    self.topology.coordinators.pop((key_type, name), None)
        if rule == "coordinator_loads":
            group = apis.api(key).route is Route.GROUP
            coordinated = job.body.get("groupId" if group else "transactionalId")
            if coordinated:
                kind = api_keys.GROUP_COORDINATOR if group else api_keys.TRANSACTION_COORDINATOR
                await self.asker.find_coordinator(kind, coordinated)
        if rule == "position_asked" and replayed is not None:
            ends = {}
            for topic, partition, end in self.remap.fetches.lost_places(job.step, job.body, captured, replayed):
                there = await self.asker.end(self.remap.topics.name(topic), partition)
                if there is not None:
                    ends[topic, partition] = end, there
            self.remap.fetches.found_places(job.step, job.body, ends)
            self.remap.topics.address(key, job.body)
        elif rule == "rejoined" and key not in (*apis.GROUP_HEARTBEATS, api_keys.JOIN_GROUP):
            await self._join_again(job)
        else:
            job.body = self.remap.again(job.step, job.body, rule, captured, replayed)

    def captured(self, job: Job) -> Body | None:
        """The captured answer, its topics named; callers must not change it."""
        if job.captured is None:
            request = job.step.request
            decoded = request.decoded_answer()
            if decoded is not None and decoded.status == OK and decoded.body is not None:
                name_answer(request.api_key, decoded.body, self.cluster.topic_names)
                job.captured = decoded.body
        return job.captured

    def learn(self, job: Job, captured: Body | None, replayed: Body) -> None:
        """Learn from a pair of answers what the target assigned, and where it is."""
        key = job.step.request.api_key
        if key == api_keys.METADATA:
            self.topology.learn_metadata(replayed)
            self.remap.topics.learn_from(self.topology)
        elif key == api_keys.END_TXN:
            self._additions.ended(job.body["transactionalId"])
        elif key == api_keys.CREATE_TOPICS:
            created = {topic["name"] for topic in replayed["topics"] if not topic["errorCode"]}
            self.topology.absent -= created
            self.topology.created |= created if not job.body.get("validateOnly") else set()
        elif key == api_keys.DELETE_TOPICS:
            self.topology.created -= {topic["name"] for topic in replayed["responses"] if not topic["errorCode"]}
        self.remap.learn(job.step, job.body, captured, replayed)

    async def settle(self, job: Job, replayed: Body) -> None:
        """Wait until brokers know what a step has created or deleted: its clients had waited for that, and steps that
        depend on it go on at once. Raises LinkError."""
        key = job.step.request.api_key
        if key not in _MAKERS or job.body.get("validateOnly"):
            return
        done = {topic["name"] for topic in replayed[_MAKERS[key]] if not topic["errorCode"]} - {None}
        if done and key == api_keys.DELETE_TOPICS:
            await self.asker.settle({}, done)
        elif done:
            counts = {topic["name"]: topic.get("count", 1) for topic in job.body["topics"]}
            await self.asker.settle({name: counts.get(name, 1) for name in sorted(done)}, ())

    def hear_shares(self, job: Job) -> None:
        """Note which share sessions are lost, by the brokers' answers to a request's parts, or because a connection
        ended without one."""
        shares = self.remap.fetches.shares
        for index, (node, part) in enumerate(job.parts):
            if job.answers:
                shares.answered(node, part, job.answers[index])
            elif not job.channels[index].open:
                shares.answered(node, part, None)

    async def _join_early(self, group: str) -> None:
        """Join the members that had joined before the capture began. Raises SkippedError, for each of their steps."""
        some = self.cluster.early[group]
        self.notes["joined_early"] += len(some)
        try:
            async with asyncio.timeout(self.settings.answer_timeout):
                await joining.early(some, self.remap, functools.partial(self.asker.ask_as_member, group))
        except (joining.JoinRefusedError, TimeoutError, LinkError) as failure:
            raise SkippedError(
                "no_member", message_of(failure) or f"group {group}: its members could not join in time"
            ) from None

    async def _join_again(self, job: Job) -> None:
        """Join the group of a step's member again; if that fails, the step's next answer shows why."""
        body = job.step.body
        group, member = body["groupId"], body["memberId"]
        name = "generationId" if "generationId" in body else "generationIdOrMemberEpoch"
        generation = body.get(name, -1)
        ask = functools.partial(self.asker.ask_as_member, group)
        if self.remap.groups.subscription(group, member) or not self.remap.groups.moved_on(job.step, job.body):
            with contextlib.suppress(joining.JoinRefusedError, TimeoutError, LinkError):
                async with asyncio.timeout(self.settings.limits.errors):
                    await joining.again(group, member, generation, self.remap, ask)
        job.body = self.remap.request(job.step)
