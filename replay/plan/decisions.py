"""Decides what will be sent, and in which version. Pure: sessions and the target's versions in, a plan out.

Every captured exchange becomes a `Step`, or a `Skip` by a rule of `steps.RULES`. `order` says what steps wait for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.analyzer.protocol.schema import REQUEST
from kwire.analyzer.protocol.topic_lists import RESPONSE_LISTS, structs, topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis, batches, convert, produce_requests, sessions
from kwire.replay.plan.apis import Policy, Route
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.early_members import speakers
from kwire.replay.plan.first_pass import FirstPass
from kwire.replay.plan.order import Order
from kwire.replay.plan.owned_names import OwnedNames
from kwire.replay.plan.pauses import ReplayClock
from kwire.replay.plan.produce_requests import FastPath
from kwire.replay.plan.sessions import Decoded, Request, Session
from kwire.replay.plan.steps import Plan, Skip, Step
from kwire.replay.plan.topic_partitions import NAME, name_answer, name_topics, named, subset
from kwire.replay.plan.values import NO_COORDINATOR, Offers


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How to plan.

    - `allow`: API keys that change the cluster and may be sent all the same
    - `topic_ids`: names of topic ids from other sources, for those that the capture does not name
    - `partitions`: how many partitions the target has of captured topics, if requests are to be reduced to those
    - `owned_names`: what may be changed and deleted, if not everything
    - `longest_pause_ns`: to which a pause between two requests is cut
    """

    allow: frozenset[int] = frozenset()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    owned_names: OwnedNames | None = None
    longest_pause_ns: int | None = None


# --- one request ---


@dataclass(frozen=True, slots=True)
class _Sendable:
    """A request that will be sent, before its position in the order is known."""

    version: int
    rules: tuple[str, ...]
    body: Body


def _judge(message: Decoded, offers: Offers, options: PlanOptions, cluster: Cluster) -> _Sendable | Skip:
    """Decide whether this request may be sent, and in which version."""
    row = message.request.row
    if row["api_key"] is None or (row["request_state"] != "decoded" and row["reason"] and "sasl" in row["reason"]):
        return Skip(row, "raw_token" if "sasl" in (row["reason"] or "") else "incomplete", row["reason"] or "")
    key = message.request.api_key
    policy = apis.api(key).policy
    if policy in (Policy.INTERNAL, Policy.REPLAYER, Policy.LOGIN, Policy.STREAMS):
        return Skip(row, policy.value)
    if message.body is None:
        return Skip(row, "incomplete", message.reason)
    if policy is Policy.ALLOW and key not in options.allow:
        return Skip(row, "mutating", f"--allow {api_keys.name(key)} sends it")
    assert message.request.data is not None
    if tree.secret_spans(message.request.data, key, message.version, REQUEST, frame=True):
        return Skip(row, "secret")
    if key == api_keys.ADD_PARTITIONS_TO_TXN and message.version >= 4:
        return Skip(row, "internal", "AddPartitionsToTxn v4 and newer is for brokers")
    body = message.body
    if key == api_keys.FETCH and replica(body) >= 0:
        return Skip(row, "follower", f"replica {replica(body)}")
    if key == api_keys.OFFSET_FOR_LEADER_EPOCH and body.get("replicaId", -2) >= 0:
        return Skip(row, "follower", f"replica {body['replicaId']}")
    if key == api_keys.LIST_OFFSETS and body["replicaId"] >= 0:
        return Skip(row, "follower", f"replica {body['replicaId']}")
    offered = offers.get(key)
    if key == api_keys.JOIN_GROUP and _joins_again(message, offered):
        return Skip(row, "client_retried", errors.label(message.answer["errorCode"]) if message.answer else "")
    if offered is None:
        return Skip(row, "target_lacks_api", api_keys.name(key))
    stranger = (
        options.owned_names.stranger(key, body, cluster.topic_names)
        if policy is Policy.ALLOW and options.owned_names
        else ""
    )
    if stranger:
        return Skip(row, "outside", stranger)
    sendable = _convert(message, key, body, offered, cluster)
    return sendable if isinstance(sendable, Skip) else _cut_down(sendable, row, key, options.partitions)


def _joins_again(message: Decoded, offered: tuple[int, int] | None) -> bool:
    """Whether a JoinGroup was answered with an error after which its client asks again, and this target would accept
    both.

    A broker that is ready would, and one older than KIP-394 lets in a member without an id: it would wait for the
    others to rejoin, which they do when its next request comes.
    """
    error = (message.answer or {}).get("errorCode")
    if error == errors.MEMBER_ID_REQUIRED and offered is not None:
        return convert.choose(message.version, offered) < _GIVES_ID
    return error in NO_COORDINATOR


_GIVES_ID: Final = 4
"""The first version of JoinGroup that gives a member its id before it joins (KIP-394)."""

_CUT_DOWN: Final = frozenset(
    (
        api_keys.PRODUCE,
        api_keys.FETCH,
        api_keys.LIST_OFFSETS,
        api_keys.OFFSET_FOR_LEADER_EPOCH,
        api_keys.OFFSET_COMMIT,
        api_keys.TXN_OFFSET_COMMIT,
        api_keys.ADD_PARTITIONS_TO_TXN,
        api_keys.SHARE_FETCH,
        api_keys.SHARE_ACKNOWLEDGE,
    )
)
"""Requests to partitions, which wait if the partitions are not there."""


def _cut_down(sendable: _Sendable, row: Mapping[str, Any], key: int, counts: Mapping[str, int]) -> _Sendable | Skip:
    """Reduce a request to the partitions that the target has."""
    requested = set(named(key, sendable.body)) if counts and key in _CUT_DOWN else set()
    absent = {where for where in requested if where[1] >= counts.get(where[0], where[1] + 1)}
    if not absent:
        return sendable
    if absent == requested:
        return Skip(row, "partition_absent", ", ".join(f"{topic}-{number}" for topic, number in sorted(absent)[:3]))
    body = subset(key, sendable.body, requested - absent)
    return _Sendable(sendable.version, (*sendable.rules, "partition_absent"), body)


def _joined(key: int, body: Body, cluster: Cluster) -> bool:
    """Whether the member that a request speaks for joined its group while the capture ran; true if there is none."""
    group = body.get("groupId")
    if key in (api_keys.SHARE_FETCH, api_keys.SHARE_ACKNOWLEDGE, *apis.GROUP_HEARTBEATS):
        return body.get("memberEpoch") == 0 or (group or "", body["memberId"] or "") in cluster.members
    if key in (api_keys.HEARTBEAT, api_keys.SYNC_GROUP):
        return (group, body["memberId"]) in cluster.members
    if key in (api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT):
        return not body.get("memberId") or (group, body["memberId"]) in cluster.members
    if key == api_keys.OFFSET_FETCH:
        return all(
            not group.get("memberId") or (group["groupId"], group["memberId"]) in cluster.members
            for group in body["groups"]
        )
    if key == api_keys.LEAVE_GROUP:
        static = any(member.get("groupInstanceId") for member in body["members"])
        return static or any((group, member["memberId"]) in cluster.members for member in body["members"])
    return True


def _retried(body: Body, answer: Body | None, cluster: Cluster) -> set[tuple[str, int]]:
    """List the partitions of a Produce request that failed with an error that clients retry. Their records come again,
    and a target without the fault would have them twice. That a topic does not exist is not such a fault."""
    where = RESPONSE_LISTS[api_keys.PRODUCE]
    failed = set()
    for topic in structs(answer or {}, where.path):
        name = topic.get("name") or cluster.topic_names.get(topic.get("topicId", ""))
        for partition in topic[where.partitions]:
            if name in cluster.topics and partition["errorCode"] and errors.retriable(partition["errorCode"]):
                failed.add((name, partition[where.number]))
    return failed


def replica(body: Body) -> int:
    return int(body.get("replicaState", body).get("replicaId", -1))


def _convert(message: Decoded, key: int, body: Body, offered: tuple[int, int], cluster: Cluster) -> _Sendable | Skip:
    row = message.request.row
    version = convert.choose(message.version, offered)
    rules: list[str] = []
    if key == api_keys.METADATA and version < 4 <= offered[1]:
        version = 4
        rules.append("no_auto_create")
    elif version != message.version:
        rules.append("version")
    if key in (api_keys.OFFSET_COMMIT, api_keys.OFFSET_FETCH) and message.version == 0:
        # Version 0 keeps its offsets in ZooKeeper, where later requests (and newer brokers) do not look.
        version = max(version, 1)
        rules = ["zookeeper_offsets"]
    try:
        body = convert.canonical(key, message.version, body)
        convert.check(key, version, body)
    except convert.ConversionError as problem:
        return Skip(row, "target_lacks_version", f"{api_keys.name(key)} v{message.version} as v{version}: {problem}")
    if not _joined(key, body, cluster):
        if key not in (api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT, api_keys.OFFSET_FETCH):
            return Skip(row, "no_member", f"group {body['groupId']}: nothing says what it subscribed to")
        rules.append("committed_alone")
        body["memberId"], body["generationIdOrMemberEpoch"] = "", -1
        for group in body.get("groups", ()):
            group["memberId"], group["memberEpoch"] = None, -1
    unknown = name_topics(key, body, cluster.topic_names)
    known_to_fail = errors.UNKNOWN_TOPIC_ID in {code["code"] for code in row["errors"] or ()}
    # What a member says that it owns is replaced by what the target assigned to it.
    if unknown is not None and not known_to_fail and key != api_keys.CONSUMER_GROUP_HEARTBEAT:
        return Skip(row, "unknown_topic_id", f"{unknown}: --map-topic {unknown}=NAME names it")
    if key == api_keys.PRODUCE:
        failed = _retried(body, message.answer, cluster)
        if failed:
            rules.append("client_retried")
            body = subset(key, body, set(named(key, body)) - failed)
            if not body["topicData"]:
                return Skip(row, "client_retried", row["error"] or "")
        try:
            if not _produce(body, version):
                return Skip(row, "null_records")
        except batches.BadRecordsError as problem:
            if version != message.version:
                return Skip(row, "bad_records", str(problem))
        else:
            if body.pop("_converted", False):
                rules.append("batches")
    return _Sendable(version, tuple(rules), body)


def _produce(body: Body, version: int) -> bool:
    """Convert old message sets to batches if the version requires it; false if there are no records at all."""
    for topic in body["topicData"]:
        for partition in topic["partitionData"]:
            records = partition["records"]
            if records is None:
                return False
            if version >= 3 and records and batches.magic(records) < 2:
                partition["records"] = batches.from_message_set(records)
                body["_converted"] = True
    return True


# --- the plan ---


@dataclass(slots=True)
class _Captured:
    """All requests of the sessions. `in_time`: (when sent, session, position in it), in this order; `fast_paths`: by
    session and position."""

    sessions: Sequence[Session]
    in_time: list[tuple[int, int, int]] = field(default_factory=list)
    fast_paths: list[list[FastPath | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, session in enumerate(self.sessions):
            self.fast_paths.append([fast_path(request) for request in session.requests])
            self.in_time += [(request.sent_ns, index, position) for position, request in enumerate(session.requests)]
        self.in_time.sort()

    def again(self) -> Iterator[Decoded]:
        """All requests, session by session, then those that are not sent."""
        for session, some in zip(self.sessions, self.fast_paths, strict=True):
            yield from map(Decoded, session.requests, some)
        yield from self.beside()

    def beside(self) -> Iterator[Decoded]:
        """Requests that are not sent, but say something of the captured cluster."""
        for session in self.sessions:
            yield from map(Decoded, session.beside)

    def by_time(self) -> Iterator[tuple[int, Decoded]]:
        """Give (session, request) in order of time."""
        for _, index, position in self.in_time:
            yield index, Decoded(self.sessions[index].requests[position], self.fast_paths[index][position])


def fast_path(request: Request) -> FastPath | None:
    """Read a Produce request without decoding it, if it is simple enough."""
    if request.row["api_key"] != api_keys.PRODUCE or request.data is None or request.answer is None:
        return None
    return produce_requests.read(request.data, request.answer)


def make(captured: Sequence[Session], offers: Offers, options: PlanOptions) -> tuple[Plan, Cluster]:
    """Decide about every captured exchange. Steps are numbered in order of captured time."""
    everything = _Captured(captured)
    survey = FirstPass()
    for index, message in sessions.decoded(everything.by_time()):
        survey.take(index, message)
    for message in everything.beside():
        survey.learning.take(message)
    cluster = survey.finish(everything.again, dict(options.topic_ids))
    copies = {index: each.copy for index, each in enumerate(captured) if each.copy}
    planner = Planner(cluster, offers, options, survey.start_ns or 0, survey.ends, copies)
    skips = [Skip(row, "no_request") for session in captured for row in session.orphans]
    steps, skipped = planner.take(everything.by_time())
    by_session: list[array[int]] = [array("q") for _ in captured]
    for step in steps:
        by_session[step.session].append(step.number)
    named, subscribed = frozenset(planner.topics), frozenset(planner.subscribed)
    return Plan(tuple(steps), (*skips, *skipped), tuple(by_session), named, subscribed), cluster


class Planner:
    """Plans requests as they come, in order of captured time over all sessions.

    - `start_ns`: the time of the first request; `ends`: when each session sends its last one
    - `copies`: which copy of the capture a session belongs to, if not to the first; `horizon`: of an `Order`
    - `count`: steps so far, which is the number of the next one; `topics`, `subscribed`: as of a `Plan`, so far
    - `clock`: says when steps are due
    """

    def __init__(
        self,
        cluster: Cluster,
        offers: Offers,
        options: PlanOptions,
        start_ns: int,
        ends: Mapping[int, int] | None = None,
        copies: Mapping[int, int] | None = None,
        horizon: int | None = None,
    ) -> None:
        self.cluster = cluster
        self.count = 0
        self.topics: set[str] = set()
        self.subscribed: set[str] = set()
        self.clock = ReplayClock(start_ns, options.longest_pause_ns)
        self._offers = offers
        self._options = options
        self._order = Order({} if ends is None else ends, copies or {}, horizon)
        self._waiting = {(early.group, early.member) for members in cluster.early.values() for early in members}

    def take(self, some: Iterable[tuple[int, Decoded]]) -> tuple[list[Step], list[Skip]]:
        """Plan the next requests, each with its session."""
        steps: list[Step] = []
        skips: list[Skip] = []
        for index, message in sessions.decoded(some):
            planned = self._fast_step(index, message) or self._planned(index, message)
            if isinstance(planned, Skip):
                skips.append(planned)
            else:
                steps.append(planned)
                self.count += 1
        return steps, skips

    def _fast_step(self, index: int, message: Decoded) -> Step | None:
        """The step of a request that took the fast path and is sent as it is; None if it needs decoding."""
        if not _sent_as_captured(message, self._offers, self._options, self.cluster):
            return None
        fast_path = message.fast_path
        assert fast_path is not None
        self.topics.add(fast_path.topic)
        waits, after = self._order.waits(self.count, index, message, None)
        request = message.request
        return Step(
            self.count,
            index,
            request,
            self.clock.at_ns(request.sent_ns),
            request.version,
            Route.LEADER,
            waits,
            after,
            topic_names=self.cluster.topic_names,
            fast_path=fast_path,
        )

    def _planned(self, index: int, message: Decoded) -> Step | Skip:
        verdict = _judge(message, self._offers, self._options, self.cluster)
        if isinstance(verdict, Skip):
            return verdict
        key = message.request.api_key
        body = verdict.body
        if message.answer is not None:
            name_answer(key, message.answer, self.cluster.topic_names)
        rules = verdict.rules
        first = self._waiting & set(speakers(key, body)) if self._waiting else set()
        if first:
            self._waiting -= first
            rules = (*rules, "joined_early")
        self.topics.update(topic[NAME] for _, topic in topics_of(key, body) if topic.get(NAME))
        self.subscribed.update(body.get("subscribedTopicNames") or ())
        waits, after = self._order.waits(self.count, index, message, body)
        return Step(
            self.count,
            index,
            message.request,
            self.clock.at_ns(message.request.sent_ns),
            verdict.version,
            apis.api(key).route,
            waits,
            after,
            rules,
            body if _CHANGING.intersection(rules) else None,
            self.cluster.topic_names,
            body.get("groupId"),
            self._order.expects,
            _fast_path_of(message, verdict),
        )


_CHANGING: Final = frozenset(("committed_alone", "client_retried", "batches", "partition_absent"))
"""Rules that change what is sent."""


def _sent_as_captured(message: Decoded, offers: Offers, options: PlanOptions, cluster: Cluster) -> bool:
    """Whether a request that took the fast path is sent as it is; names its topic. `_judge` decides the same after
    decoding it."""
    fast_path = message.fast_path
    if fast_path is None:
        return False
    if fast_path.topic_id:
        fast_path.topic = cluster.topic_names.get(fast_path.topic_id, "")
    low, high = offers.get(api_keys.PRODUCE, (1, 0))
    return bool(
        fast_path.topic
        and low <= message.request.version <= high
        and fast_path.partition < options.partitions.get(fast_path.topic, fast_path.partition + 1)
    )


def _fast_path_of(message: Decoded, verdict: _Sendable) -> FastPath | None:
    """The fast path of a request that is sent just as it was captured, if there is one."""
    if message.request.api_key != api_keys.PRODUCE or verdict.rules or message.request.data is None:
        return None
    return produce_requests.plain(verdict.version, verdict.body, message.request.data, message.answer)
