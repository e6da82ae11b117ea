"""What will be sent, and as what. Pure: sessions and the target's versions in, a plan out.

Every captured exchange becomes a `Step`, or by a rule of `steps.RULES` a `Skip`; what steps wait for, `order` says.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from analyzer.protocol import errors, names, tree
from analyzer.protocol.schema import REQUEST
from analyzer.protocol.topics import RESPONSE_LISTS, structs, topics_of
from analyzer.protocol.tree import Body
from replay.plan import apis, batches, convert, plain, sessions
from replay.plan import cluster as clusters
from replay.plan.apis import Policy, Route
from replay.plan.cluster import Cluster
from replay.plan.early_members import Said, early_members, speakers
from replay.plan.order import Order
from replay.plan.ours import Ours
from replay.plan.parts import NAME, name_answer, name_topics, named, subset
from replay.plan.plain import Quick
from replay.plan.sessions import Decoded, Request, Session
from replay.plan.steps import Plan, Skip, Step
from replay.plan.values import NO_COORDINATOR, Offers


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """allow: API keys that change the cluster and may be sent all the same. topic_ids: names of topic ids that the
    capture may lack, from elsewhere; what it says itself comes first. partitions: how many the target has of captured
    topics, where requests are to be cut down to those. ours: what may be changed and deleted, where not everything."""

    allow: frozenset[int] = frozenset()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    ours: Ours | None = None


# --- one request ---


@dataclass(frozen=True, slots=True)
class _Sendable:
    """A request that will be sent, before its place in the order is known."""

    version: int
    rules: tuple[str, ...]
    body: Body


def _judge(message: Decoded, offers: Offers, options: PlanOptions, cluster: Cluster) -> _Sendable | Skip:
    """May this request be sent, and as what?"""
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
        return Skip(row, "mutating", f"--allow {names.name(key)} sends it")
    assert message.request.data is not None
    if tree.secret_spans(message.request.data, key, message.version, REQUEST, frame=True):
        return Skip(row, "secret")
    if key == names.ADD_PARTITIONS_TO_TXN and message.version >= 4:
        return Skip(row, "internal", "AddPartitionsToTxn v4 and newer is for brokers")
    body = message.body
    if key == names.FETCH and _replica(body) >= 0:
        return Skip(row, "follower", f"replica {_replica(body)}")
    if key == names.OFFSET_FOR_LEADER_EPOCH and body.get("replicaId", -2) >= 0:
        return Skip(row, "follower", f"replica {body['replicaId']}")
    if key == names.LIST_OFFSETS and body["replicaId"] >= 0:
        return Skip(row, "follower", f"replica {body['replicaId']}")
    if key == names.JOIN_GROUP and (message.answer or {}).get("errorCode") in NO_COORDINATOR:
        # It asks again. A broker that is ready would take both.
        return Skip(row, "client_retried", errors.label(message.answer["errorCode"]) if message.answer else "")
    offered = offers.get(key)
    if offered is None:
        return Skip(row, "target_lacks_api", names.name(key))
    stranger = options.ours.stranger(key, body, cluster.topic_names) if policy is Policy.ALLOW and options.ours else ""
    if stranger:
        return Skip(row, "outside", stranger)
    sendable = _convert(message, key, body, offered, cluster)
    return sendable if isinstance(sendable, Skip) else _cut_down(sendable, row, key, options.partitions)


_CUT_DOWN: Final = frozenset((
    names.PRODUCE, names.FETCH, names.LIST_OFFSETS, names.OFFSET_FOR_LEADER_EPOCH, names.OFFSET_COMMIT,
    names.TXN_OFFSET_COMMIT, names.ADD_PARTITIONS_TO_TXN, names.SHARE_FETCH, names.SHARE_ACKNOWLEDGE,
))  # fmt: skip
"""Requests that say something to partitions, and wait for those that are not there."""


def _cut_down(sendable: _Sendable, row: Body, key: int, counts: Mapping[str, int]) -> _Sendable | Skip:
    """What is left of a request without partitions that the target does not have."""
    asked = set(named(key, sendable.body)) if counts and key in _CUT_DOWN else set()
    absent = {where for where in asked if where[1] >= counts.get(where[0], where[1] + 1)}
    if not absent:
        return sendable
    if absent == asked:
        return Skip(row, "partition_absent", ", ".join(f"{topic}-{number}" for topic, number in sorted(absent)[:3]))
    body = subset(key, sendable.body, asked - absent)
    return _Sendable(sendable.version, (*sendable.rules, "partition_absent"), body)


def _joined(key: int, body: Body, cluster: Cluster) -> bool:
    """Did whoever speaks as a member of a group join it while the capture ran? True where nobody does."""
    group = body.get("groupId")
    if key in (names.SHARE_FETCH, names.SHARE_ACKNOWLEDGE, *apis.GROUP_HEARTBEATS):
        return body.get("memberEpoch") == 0 or (group or "", body["memberId"] or "") in cluster.members
    if key in (names.HEARTBEAT, names.SYNC_GROUP):
        return (group, body["memberId"]) in cluster.members
    if key in (names.OFFSET_COMMIT, names.TXN_OFFSET_COMMIT):
        return not body.get("memberId") or (group, body["memberId"]) in cluster.members
    if key == names.OFFSET_FETCH:
        return all(
            not asked.get("memberId") or (asked["groupId"], asked["memberId"]) in cluster.members
            for asked in body["groups"]
        )
    if key == names.LEAVE_GROUP:
        static = any(member.get("groupInstanceId") for member in body["members"])
        return static or any((group, member["memberId"]) in cluster.members for member in body["members"])
    return True


def _retried(body: Body, answer: Body | None, cluster: Cluster) -> set[tuple[str, int]]:
    """The partitions of a Produce request that failed with an error that clients retry: their records come again, and
    a target without the fault would have them twice. A topic that never was is no such fault."""
    where = RESPONSE_LISTS[names.PRODUCE]
    failed = set()
    for topic in structs(answer or {}, where.path):
        name = topic.get("name") or cluster.topic_names.get(topic.get("topicId", ""))
        for partition in topic[where.partitions]:
            if name in cluster.topics and partition["errorCode"] and errors.retriable(partition["errorCode"]):
                failed.add((name, partition[where.number]))
    return failed


def _replica(body: Body) -> int:
    return int(body.get("replicaState", body).get("replicaId", -1))


def _convert(message: Decoded, key: int, body: Body, offered: tuple[int, int], cluster: Cluster) -> _Sendable | Skip:
    row = message.request.row
    version = convert.choose(message.version, offered)
    rules: list[str] = []
    if key == names.METADATA and version < 4 <= offered[1]:
        version = 4
        rules.append("no_auto_create")
    elif version != message.version:
        rules.append("version")
    if key in (names.OFFSET_COMMIT, names.OFFSET_FETCH) and message.version == 0:
        # Version 0 keeps its offsets in ZooKeeper, where later requests (and newer brokers) do not look.
        version = max(version, 1)
        rules = ["zookeeper_offsets"]
    try:
        body = convert.canonical(key, message.version, body)
        convert.check(key, version, body)
    except convert.CannotConvert as problem:
        return Skip(row, "target_lacks_version", f"{names.name(key)} v{message.version} as v{version}: {problem}")
    if not _joined(key, body, cluster):
        if key not in (names.OFFSET_COMMIT, names.TXN_OFFSET_COMMIT, names.OFFSET_FETCH):
            return Skip(row, "no_member", f"group {body['groupId']}: nothing says what it subscribed to")
        rules.append("committed_alone")
        body["memberId"], body["generationIdOrMemberEpoch"] = "", -1
        for group in body.get("groups", ()):
            group["memberId"], group["memberEpoch"] = None, -1
    unknown = name_topics(key, body, cluster.topic_names)
    known_to_fail = errors.UNKNOWN_TOPIC_ID in {code["code"] for code in row["errors"] or ()}
    # What a member says that it owns is replaced by what the target assigned to it.
    if unknown is not None and not known_to_fail and key != names.CONSUMER_GROUP_HEARTBEAT:
        return Skip(row, "unknown_topic_id", f"{unknown}: --map-topic {unknown}=NAME names it")
    if key == names.PRODUCE:
        failed = _retried(body, message.answer, cluster)
        if failed:
            rules.append("client_retried")
            body = subset(key, body, set(named(key, body)) - failed)
            if not body["topicData"]:
                return Skip(row, "client_retried", row["error"] or "")
        try:
            if not _produce(body, version):
                return Skip(row, "null_records")
        except batches.BadRecords as problem:
            if version != message.version:
                return Skip(row, "bad_records", str(problem))
        else:
            if body.pop("_converted", False):
                rules.append("batches")
    return _Sendable(version, tuple(rules), body)


def _produce(body: Body, version: int) -> bool:
    """Make batches of old message sets where the version demands it; False where there are no records at all."""
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


_OF_GROUPS: Final = frozenset((
    names.OFFSET_COMMIT, names.OFFSET_FETCH, names.JOIN_GROUP, names.SYNC_GROUP, names.HEARTBEAT,
    names.LEAVE_GROUP, names.TXN_OFFSET_COMMIT, *apis.GROUP_HEARTBEATS,
))  # fmt: skip


def _said(messages: Iterable[Decoded], cluster: Cluster) -> Iterator[Said]:
    """What tells who is a member of what."""
    for message in sessions.decoded(messages):
        if message.body is None:  # of one whose bytes are missing not even the API may be known
            continue
        key = message.request.api_key
        body = convert.canonical(key, message.version, message.body)
        name_topics(key, body, cluster.topic_names)
        row = message.request.row
        codes = frozenset(errors.codes(message.answer))
        yield Said(key, body, message.answer, codes, (row["client_ip"], row["client_id"]))


@dataclass(slots=True)
class _Captured:
    """All requests of the sessions; `in_time`: (when sent, session, place in it), in this order; `quick`: what was read
    by hand, by session and place."""

    sessions: Sequence[Session]
    in_time: list[tuple[int, int, int]] = field(default_factory=list)
    quick: list[list[Quick | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, session in enumerate(self.sessions):
            self.quick.append([_quick(request) for request in session.requests])
            self.in_time += [(request.sent_ns, index, place) for place, request in enumerate(session.requests)]
        self.in_time.sort()

    def by_session(self) -> Iterator[Decoded]:
        """Session after session, then what is beside them."""
        for session, some in zip(self.sessions, self.quick, strict=True):
            yield from map(Decoded, session.requests, some)
        for session in self.sessions:
            yield from map(Decoded, session.beside)

    def by_time(self) -> Iterator[tuple[int, Decoded]]:
        """(session, request), some of them decoded at once."""
        some = (
            Decoded(self.sessions[index].requests[place], self.quick[index][place]) for _, index, place in self.in_time
        )
        for (_, index, _), message in zip(self.in_time, sessions.decoded(some), strict=True):
            yield index, message

    def of(self, keys: Collection[int]) -> Iterator[Decoded]:
        """Requests of some APIs, in order of time."""
        for _, index, place in self.in_time:
            request = self.sessions[index].requests[place]
            if request.row["api_key"] in keys:
                yield Decoded(request)


def _quick(request: Request) -> Quick | None:
    if request.row["api_key"] != names.PRODUCE or request.data is None or request.answer is None:
        return None
    return plain.read(request.data, request.answer)


def make(captured: Sequence[Session], offers: Offers, options: PlanOptions) -> tuple[Plan, Cluster]:
    """Decide about every captured exchange. Steps are numbered in order of captured time."""
    everything = _Captured(captured)
    cluster = clusters.learn(everything.by_session, options.topic_ids)
    cluster.early = early_members(
        _said(everything.of(_OF_GROUPS), cluster), _said(everything.of((names.FETCH,)), cluster)
    )
    waiting = {(early.group, early.member) for members in cluster.early.values() for early in members}
    cluster.members |= waiting
    start = everything.in_time[0][0] if everything.in_time else 0
    steps: list[Step] = []
    skips = [Skip(row, "no_request") for session in captured for row in session.orphans]
    by_session: list[array[int]] = [array("q") for _ in captured]
    ends = {index: max((one.sent_ns for one in each.requests), default=0) for index, each in enumerate(captured)}
    order = Order(ends, {index: each.copy for index, each in enumerate(captured) if each.copy})
    named_topics: set[str] = set()
    subscribed: set[str] = set()
    for index, message in everything.by_time():
        number = len(steps)
        if _sent_as_captured(message, offers, options, cluster):
            quick = message.quick
            assert quick is not None
            named_topics.add(quick.topic)
            waits, after = order.waits(number, index, message, None)
            request = message.request
            steps.append(
                Step(
                    number, index, request, request.sent_ns - start, request.version, Route.LEADER, waits, after,
                    topic_names=cluster.topic_names, quick=quick,
                )
            )  # fmt: skip
            by_session[index].append(number)
            continue
        verdict = _judge(message, offers, options, cluster)
        if isinstance(verdict, Skip):
            skips.append(verdict)
            continue
        key = message.request.api_key
        body = verdict.body
        if message.answer is not None:
            name_answer(key, message.answer, cluster.topic_names)
        rules = verdict.rules
        first = waiting & set(speakers(key, body)) if waiting else set()
        if first:
            waiting -= first
            rules = (*rules, "joined_early")
        named_topics.update(topic[NAME] for _, topic in topics_of(key, body) if topic.get(NAME))
        subscribed.update(body.get("subscribedTopicNames") or ())
        waits, after = order.waits(number, index, message, body)
        steps.append(
            Step(
                number,
                index,
                message.request,
                message.request.sent_ns - start,
                verdict.version,
                apis.api(key).route,
                waits,
                after,
                rules,
                body if _CHANGING.intersection(rules) else None,
                cluster.topic_names,
                body.get("groupId"),
                order.expects,
                _short(message, verdict),
            )
        )
        by_session[index].append(number)
    plan = Plan(tuple(steps), tuple(skips), tuple(by_session), frozenset(named_topics), frozenset(subscribed))
    return plan, cluster


_CHANGING: Final = frozenset(("committed_alone", "client_retried", "batches", "partition_absent"))
"""Rules by which what is sent is not what was captured."""


def _sent_as_captured(message: Decoded, offers: Offers, options: PlanOptions, cluster: Cluster) -> bool:
    """Is a request that was read by hand sent as it is? (`_judge` says the same of it, after decoding it.) Names its
    topic."""
    quick = message.quick
    if quick is None:
        return False
    if quick.topic_id:
        quick.topic = cluster.topic_names.get(quick.topic_id, "")
    low, high = offers.get(names.PRODUCE, (1, 0))
    return bool(
        quick.topic
        and low <= message.request.version <= high
        and quick.partition < options.partitions.get(quick.topic, quick.partition + 1)
    )


def _short(message: Decoded, verdict: _Sendable) -> Quick | None:
    """The short way for a request that is sent just as it was captured, where there is one."""
    if message.request.api_key != names.PRODUCE or verdict.rules or message.request.data is None:
        return None
    return plain.plain(verdict.version, verdict.body, message.request.data, message.answer)
