"""What will be sent, as what, and what each request waits for. Pure: sessions and the target's versions in, a plan out.

A request waits for
- the answers of its own connection that its client had when it sent it (so pipelining is as captured);
- whatever shares its state on other connections and was answered before it was sent: its group, its transactional or
  producer id, its topics' creation, the records that it fetched (see `_Order`).
What shares no state is not ordered across connections.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer import errors, tree
from analyzer.decoding import OK
from analyzer.schema import REQUEST, ZERO_UUID
from replay import apis, batches, convert, quick, topology
from replay.apis import NAME, Policy
from replay.members import Early, Said, early_members, speakers
from replay.outcome import error_codes
from replay.retry import UNKNOWN_TOPIC_ID
from replay.sessions import Request, Session
from replay.steps import Plan, Skip, Step

Body = dict[str, Any]
Offers = dict[int, tuple[int, int]]
"""The versions that a target offers, by API."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """allow: API keys that change the cluster and may be sent all the same. topic_ids: names of topic ids that the
    capture may lack, from elsewhere; what it says itself comes first."""

    allow: frozenset[int] = frozenset()
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the capture: how many partitions (the most that were seen), how many replicas, and its configuration
    where a CreateTopics said it. `created`: the capture shows how it was made."""

    name: str
    partitions: int
    replicas: int
    configs: dict[str, str | None]
    created: bool
    internal: bool


@dataclass(slots=True)
class Facts:
    """What the answers of a capture say about its cluster. `early`: members that had joined before it began, by group;
    `members`: those, and who joined while it ran."""

    topic_names: dict[str, str] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    assignments: dict[tuple[str, int], list[Body]] = field(default_factory=dict)
    produced: set[str] = field(default_factory=set)
    members: set[tuple[str, str]] = field(default_factory=set)
    early: dict[str, tuple[Early, ...]] = field(default_factory=dict)


class _Decoded:
    """Both bodies of a request, decoded once."""

    __slots__ = ("answer", "body", "reason", "request", "version")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.body: Body | None = None
        self.answer: Body | None = None
        self.reason = ""
        self.version = -1
        if request.data is None or request.row["api_key"] is None:
            self.reason = request.row["reason"] or "bytes are missing"
            return
        decoded = request.decoded()
        assert decoded is not None
        self.version = decoded.version
        self.body = decoded.body if decoded.status == OK else None
        self.reason = decoded.reason or ""
        answer = request.decoded_answer()
        if answer is not None and answer.status == OK:
            self.answer = answer.body


def offers_of(answer: Body) -> Offers:
    """The versions in an ApiVersions answer. Produce 0 to 2 are advertised by 4.x for an old client's sake, and their
    connection is closed (KAFKA-18659): such a broker lacks Fetch 0 to 3 too."""
    offers = {one["apiKey"]: (one["minVersion"], one["maxVersion"]) for one in answer["apiKeys"]}
    if apis.PRODUCE in offers and offers.get(apis.FETCH, (0, 0))[0] >= 4:
        offers[apis.PRODUCE] = max(offers[apis.PRODUCE][0], 3), offers[apis.PRODUCE][1]
    return offers


# --- facts ----------------------------------------------------------------------------------------------------------


def _facts(decoded: Iterable[_Decoded]) -> Facts:
    facts = Facts()
    for one in decoded:
        if one.body is None:
            continue
        key = one.request.api_key
        if key == apis.JOIN_GROUP or (key in apis.GROUP_HEARTBEATS and one.body["memberEpoch"] == 0):
            facts.members.add((one.body["groupId"], one.body["memberId"]))
            facts.members.add((one.body["groupId"], (one.answer or {}).get("memberId") or ""))
        elif key == apis.SYNC_GROUP and one.body["assignments"]:
            facts.assignments[one.body["groupId"], one.body["generationId"]] = one.body["assignments"]
        elif key == apis.PRODUCE:
            facts.produced.update(topic.get("name") or topic.get("topicId") for topic in one.body["topicData"])
        if one.answer is None:
            continue
        if key == apis.METADATA:
            facts.nodes.update(broker["nodeId"] for broker in one.answer["brokers"])
            for topic in one.answer["topics"]:
                if not topic["errorCode"] and topic["name"] is not None:
                    _note_id(facts, topic)
                    replicas = max((len(p["replicaNodes"]) for p in topic["partitions"]), default=1)
                    _note(
                        facts, topic["name"], len(topic["partitions"]), replicas, None, topic.get("isInternal", False)
                    )
        elif key == apis.DESCRIBE_TOPIC_PARTITIONS:
            for topic in one.answer["topics"]:
                if not topic["errorCode"]:
                    _note_id(facts, topic)
        elif key == apis.CREATE_TOPICS:
            asked = {topic["name"]: topic for topic in one.body["topics"]}
            for topic in one.answer["topics"]:
                wanted = asked.get(topic["name"])
                if topic["errorCode"] or wanted is None or one.body.get("validateOnly"):
                    continue
                _note_id(facts, topic)
                count = max(wanted["numPartitions"], len(wanted["assignments"]), topic.get("numPartitions", 0))
                configs = {config["name"]: config["value"] for config in wanted["configs"]}
                _note(facts, topic["name"], count, wanted["replicationFactor"], configs, False)
        elif key in (apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS):
            # A capture that began later may have no Metadata: what was served exists.
            where = apis.RESPONSE_LISTS[key]
            for topic in apis.structs(one.answer, where.path):
                for partition in topic[where.partitions]:
                    if not partition["errorCode"] and topic.get(where.name):
                        _note(facts, topic[where.name], partition[where.number] + 1, 1, None, False)
    facts.produced = {facts.topic_names.get(name, name) for name in facts.produced}
    return facts


_OF_GROUPS: Final = frozenset(
    (apis.FETCH, apis.OFFSET_COMMIT, apis.OFFSET_FETCH, apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT,
     apis.LEAVE_GROUP, apis.TXN_OFFSET_COMMIT, *apis.GROUP_HEARTBEATS)
)  # fmt: skip


def _said(decoded: Iterable[_Decoded], facts: Facts) -> Iterator[Said]:
    """What tells who is a member of what."""
    for one in decoded:
        key = one.request.api_key
        if one.body is not None and key in _OF_GROUPS:
            body = convert.canonical(key, one.version, one.body)
            name_topics(key, body, facts)
            row = one.request.row
            found = frozenset(error_codes(one.answer))
            yield Said(key, body, one.answer, found, (row["client_ip"], row["client_id"]))


def _match_ids(facts: Facts, decoded: Iterable[_Decoded]) -> None:
    """Names of topic ids that no Metadata told: by records that were both produced (by name) and fetched (by id). A
    batch's checksum is the same in both, because the broker's own fields lie before it."""
    produced: dict[tuple[int, bytes], str] = {}
    fetched: list[tuple[str, int, bytes]] = []
    for one in decoded:
        if one.body is None:
            continue
        if one.request.api_key == apis.PRODUCE:
            for topic in one.body["topicData"]:
                for part in topic["partitionData"]:
                    for batch in batches.produced(part["records"]):
                        if topic.get("name"):
                            produced[part["index"], _checksum(part["records"], batch)] = topic["name"]
        elif one.request.api_key == apis.FETCH and one.answer is not None:
            for topic in one.answer["responses"]:
                if topic.get("topicId", ZERO_UUID) in (ZERO_UUID, *facts.topic_names):
                    continue
                for part in topic["partitions"]:
                    for batch in batches.produced(part.get("records"))[:1]:
                        fetched.append((topic["topicId"], part["partitionIndex"], _checksum(part["records"], batch)))
    for topic_id, partition, checksum in fetched:
        if (partition, checksum) in produced:
            facts.topic_names[topic_id] = produced[partition, checksum]


def _name_ids(facts: Facts, decoded: Iterable[_Decoded], elsewhere: Mapping[str, str]) -> None:
    """Names from elsewhere for the topic ids that are used and that the capture does not name."""
    captured = set(facts.topic_names)
    for one in decoded:
        for where, topic in apis.topics(one.request.api_key, one.body or {}):
            topic_id = topic.get(where.id) if where.id else None
            if topic_id is None or topic_id in captured or topic_id not in elsewhere:
                continue
            name = facts.topic_names[topic_id] = elsewhere[topic_id]
            some = topic.get(where.partitions) or () if where.partitions else ()
            last = max((part[where.number] if where.number else part for part in some), default=0)
            _note(facts, name, last + 1, 1, None, False)


def _checksum(records: bytes, batch: batches.Batch) -> bytes:
    return bytes(records[batch.at + 17 : batch.at + 21])


def _note_id(facts: Facts, topic: Body) -> None:
    if topic.get("topicId", ZERO_UUID) != ZERO_UUID:
        facts.topic_names[topic["topicId"]] = topic["name"]


def _note(
    facts: Facts, name: str, partitions: int, replicas: int, configs: dict[str, str | None] | None, internal: bool
) -> None:
    old = facts.topics.get(name)
    facts.topics[name] = Topic(
        name,
        max(partitions, old.partitions if old else 0),
        max(replicas, old.replicas if old else 1),
        configs if configs is not None else (old.configs if old else {}),
        configs is not None or (old is not None and old.created),
        internal or (old is not None and old.internal),
    )


# --- one request ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sendable:
    """A request that will be sent, before its place in the order is known."""

    version: int
    rules: tuple[str, ...]
    body: Body


def _judge(one: _Decoded, offers: Offers, options: PlanOptions, facts: Facts) -> _Sendable | Skip:
    """May this request be sent, and as what?"""
    row = one.request.row
    if row["api_key"] is None or (row["request_state"] != "decoded" and row["reason"] and "sasl" in row["reason"]):
        return Skip(row, "raw_token" if "sasl" in (row["reason"] or "") else "incomplete", row["reason"] or "")
    key = one.request.api_key
    policy = apis.api(key).policy
    if policy in (Policy.INTERNAL, Policy.REPLAYER, Policy.LOGIN, Policy.STREAMS):
        return Skip(row, policy.value)
    if one.body is None:
        return Skip(row, "incomplete", one.reason)
    if policy is Policy.ALLOW and key not in options.allow:
        return Skip(row, "mutating", f"--allow {apis.name(key)} sends it")
    assert one.request.data is not None
    if tree.secret_spans(one.request.data, key, one.version, REQUEST, frame=True):
        return Skip(row, "secret")
    if key == apis.ADD_PARTITIONS_TO_TXN and one.version >= 4:
        return Skip(row, "internal", "AddPartitionsToTxn v4 and newer is for brokers")
    body = one.body
    if key == apis.FETCH and _replica(body) >= 0:
        return Skip(row, "follower", f"replica {_replica(body)}")
    if key == apis.OFFSET_FOR_LEADER_EPOCH and body.get("replicaId", -2) >= 0:
        return Skip(row, "follower", f"replica {body['replicaId']}")
    if key == apis.LIST_OFFSETS and body["replicaId"] >= 0:
        return Skip(row, "follower", f"replica {body['replicaId']}")
    if key == apis.JOIN_GROUP and (one.answer or {}).get("errorCode") in _NO_COORDINATOR:
        return Skip(row, "client_retried", errors.label(one.answer["errorCode"]) if one.answer else "")
    offered = offers.get(key)
    if offered is None:
        return Skip(row, "target_lacks_api", apis.name(key))
    return _convert(one, key, body, offered, facts)


def _joined(key: int, body: Body, facts: Facts) -> bool:
    """Did whoever speaks as a member of a group join it while the capture ran? True where nobody does."""
    group = body.get("groupId")
    if key in (apis.SHARE_FETCH, apis.SHARE_ACKNOWLEDGE, *apis.GROUP_HEARTBEATS):
        return body.get("memberEpoch") == 0 or (group or "", body["memberId"] or "") in facts.members
    if key in (apis.HEARTBEAT, apis.SYNC_GROUP):
        return (group, body["memberId"]) in facts.members
    if key in (apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT):
        return not body.get("memberId") or (group, body["memberId"]) in facts.members
    if key == apis.OFFSET_FETCH:
        return all(
            not one.get("memberId") or (one["groupId"], one["memberId"]) in facts.members for one in body["groups"]
        )
    if key == apis.LEAVE_GROUP:
        static = any(one.get("groupInstanceId") for one in body["members"])
        return static or any((group, one["memberId"]) in facts.members for one in body["members"])
    return True


_NO_COORDINATOR: Final = (14, 15, 16)
"""Answers to a client that asked a coordinator too early: it asks again. A broker that is ready would take both."""


def _retried(body: Body, answer: Body | None, facts: Facts) -> set[tuple[str, int]]:
    """The partitions of a Produce request that failed with an error that clients retry: their records come again, and
    a target without the fault would have them twice. A topic that never was is no such fault."""
    where = apis.RESPONSE_LISTS[apis.PRODUCE]
    found = set()
    for topic in apis.structs(answer or {}, where.path):
        name = topic.get("name") or facts.topic_names.get(topic.get("topicId", ""))
        for one in topic[where.partitions]:
            if name in facts.topics and one["errorCode"] and errors.retriable(one["errorCode"]):
                found.add((name, one[where.number]))
    return found


def _replica(body: Body) -> int:
    return int(body.get("replicaState", body).get("replicaId", -1))


def _convert(one: _Decoded, key: int, body: Body, offered: tuple[int, int], facts: Facts) -> _Sendable | Skip:
    row = one.request.row
    version = convert.choose(one.version, offered)
    rules: list[str] = []
    if key == apis.METADATA and version < 4 <= offered[1]:
        version = 4
        rules.append("no_auto_create")
    elif version != one.version:
        rules.append("version")
    if key in (apis.OFFSET_COMMIT, apis.OFFSET_FETCH) and one.version == 0:
        # Version 0 keeps its offsets in ZooKeeper, where later requests (and newer brokers) do not look.
        version = max(version, 1)
        rules = ["zookeeper_offsets"]
    try:
        body = convert.canonical(key, one.version, body)
        convert.check(key, version, body)
    except convert.CannotConvert as problem:
        return Skip(row, "target_lacks_version", f"{apis.name(key)} v{one.version} as v{version}: {problem}")
    if not _joined(key, body, facts):
        if key not in (apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT, apis.OFFSET_FETCH):
            return Skip(row, "no_member", f"group {body['groupId']}: nothing says what it subscribed to")
        rules.append("committed_alone")
        body["memberId"], body["generationIdOrMemberEpoch"] = "", -1
        for group in body.get("groups", ()):
            group["memberId"], group["memberEpoch"] = None, -1
    unknown = name_topics(key, body, facts)
    known_to_fail = UNKNOWN_TOPIC_ID in {code["code"] for code in row["errors"] or ()}
    # What a member says that it owns is replaced by what the target assigned to it.
    if unknown is not None and not known_to_fail and key != apis.CONSUMER_GROUP_HEARTBEAT:
        return Skip(row, "unknown_topic_id", f"{unknown}: --map-topic {unknown}=NAME names it")
    if key == apis.PRODUCE:
        failed = _retried(body, one.answer, facts)
        if failed:
            rules.append("client_retried")
            body = topology.subset(key, body, set(topology.named(key, body)) - failed)
            if not body["topicData"]:
                return Skip(row, "client_retried", row["error"] or "")
        try:
            if not _produce(body, version):
                return Skip(row, "null_records")
        except batches.BadRecords as problem:
            if version != one.version:
                return Skip(row, "bad_records", str(problem))
        else:
            if body.pop("_converted", False):
                rules.append("batches")
    return _Sendable(version, tuple(rules), body)


def name_topics(key: int, body: Body, facts: Facts) -> str | None:
    """Put each topic's name beside it; the first id whose name is not known comes back."""
    unknown = None
    for where, topic in apis.topics(key, body):
        name = topic.get(where.name) if where.name else None
        if not name and where.id and topic.get(where.id, ZERO_UUID) != ZERO_UUID:
            name = facts.topic_names.get(topic[where.id])
            if name is None:
                unknown = topic[where.id]
        if name:
            topic[NAME] = name
    return unknown


def _produce(body: Body, version: int) -> bool:
    """Make batches of old message sets where the version demands it; False where there are no records at all."""
    for topic in body["topicData"]:
        for one in topic["partitionData"]:
            records = one["records"]
            if records is None:
                return False
            if version >= 3 and records and batches.magic(records) < 2:
                one["records"] = batches.from_message_set(records)
                body["_converted"] = True
    return True


# --- order ----------------------------------------------------------------------------------------------------------

_EXCLUSIVE_GROUP: Final = frozenset(
    (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.LEAVE_GROUP, apis.DELETE_GROUPS, apis.DESCRIBE_GROUPS, apis.OFFSET_DELETE,
     apis.CONSUMER_GROUP_HEARTBEAT, apis.CONSUMER_GROUP_DESCRIBE, apis.SHARE_GROUP_HEARTBEAT,
     apis.SHARE_GROUP_DESCRIBE, apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT)
)  # fmt: skip
_TRANSACTIONS: Final = frozenset(
    (apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN, apis.TXN_OFFSET_COMMIT)
)
_TOPIC_MAKERS: Final = frozenset((apis.CREATE_TOPICS, apis.DELETE_TOPICS, apis.CREATE_PARTITIONS, apis.DELETE_RECORDS))

_NEAR: Final = 64
"""Batches before an offset among which the last of each session is looked for."""

Key = tuple[str, Any]


def uses(key: int, body: Body, answer: Body | None) -> Iterator[tuple[Key, bool]]:
    """(state, exclusively) that a request touches. What uses a state exclusively waits for all who used it and were
    answered; who shares it, for those who had it exclusively."""
    for group in _groups(key, body):
        yield ("group", group), key in _EXCLUSIVE_GROUP
    if key in _TRANSACTIONS:
        name = body.get("transactionalId") or body.get("v3AndBelowTransactionalId")
        if name:
            yield ("transaction", name), True
        for one in (body, answer or {}):
            used: Any = one.get("producerId", one.get("v3AndBelowProducerId", -1))
            if used >= 0:
                yield ("producer", used), True
    elif key == apis.DESCRIBE_TRANSACTIONS:
        for name in body["transactionalIds"]:
            yield ("transaction", name), False
    elif key == apis.PRODUCE:
        if body.get("transactionalId"):
            yield ("transaction", body["transactionalId"]), False
        for produced in _producers(body):
            yield ("producer", produced), False
    for _, topic in apis.topics(key, body):
        if topic.get(NAME):
            yield ("topic", topic[NAME]), key in _TOPIC_MAKERS
            if key in (apis.PRODUCE, apis.LIST_OFFSETS):
                yield ("end", topic[NAME]), key == apis.LIST_OFFSETS


def _groups(key: int, body: Body) -> Iterator[str]:
    if isinstance(body.get("groupId"), str):
        yield body["groupId"]
    for field_name in ("groups", "groupIds", "groupsNames"):
        for one in body.get(field_name) or ():
            if isinstance(one, str):
                yield one
            elif one.get("groupId") and one["groupId"] != body.get("groupId"):
                yield one["groupId"]


def _producers(body: Body) -> set[int]:
    found: set[int] = set()
    for topic in body["topicData"]:
        for one in topic["partitionData"]:
            found.update(batch.producer_id for batch in batches.produced(one["records"]))
    return found - {-1}


@dataclass(slots=True)
class _Users:
    """Who used a state: by session, (time of the answer, step), answered first."""

    by_session: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def before(self, session: int, moment: int) -> Iterator[int]:
        """Of each other session, the last step that had been answered."""
        for other, steps in self.by_session.items():
            if other != session:
                at = bisect.bisect_left(steps, (moment, 1 << 60))
                if at:
                    yield steps[at - 1][1]

    def add(self, session: int, answered: int, step: int) -> None:
        bisect.insort(self.by_session.setdefault(session, []), (answered, step))


@dataclass(slots=True)
class _State:
    exclusive: _Users = field(default_factory=_Users)
    shared: _Users = field(default_factory=_Users)
    open: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Order:
    """Finds what each step waits for; steps come in order of captured time."""

    states: dict[Key, _State] = field(default_factory=dict)
    answered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    produced: dict[tuple[str | None, int], list[tuple[int, int, int, int]]] = field(default_factory=dict)
    ended: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    known: dict[int, set[int]] = field(default_factory=dict)
    expects: bool = False

    def waits(self, number: int, session: int, one: _Decoded, body: Body) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(steps whose answers it waits for, steps that must have been sent)."""
        request = one.request
        self.expects = False
        sent, done = request.sent_ns, request.answered_ns
        waits: set[int] = set()
        after: set[int] = set()
        mine = self.answered.setdefault(session, [])
        at = bisect.bisect_right(mine, (sent, 1 << 60))
        if at:
            waits.add(mine[at - 1][1])
        for state_key, exclusive in uses(request.api_key, body, one.answer):
            state = self.states.setdefault(state_key, _State())
            waits.update(state.exclusive.before(session, sent))
            if exclusive:
                waits.update(state.shared.before(session, sent))
            if state_key[0] == "group" and request.api_key == apis.JOIN_GROUP:
                # Who rejoins does it because somebody else wants to join: that one goes first.
                after.update(step for step, other in state.open.items() if other != session)
                state.open[number] = session
            users = state.exclusive if exclusive else state.shared
            if done is not None:
                users.add(session, done, number)
        if request.api_key == apis.FETCH:
            waits.update(self._below(body, session))
        if request.api_key == apis.FETCH and one.answer is not None and done is not None:
            makers = set(self._records(one.answer, done))
            self.expects = bool(makers)
            waits.update(step for step, other in makers if other != session)
        if done is not None:
            mine.append((done, number))
        self._note(number, session, one, body)
        known = self.known.setdefault(session, set())
        fresh = waits - known
        known.update(fresh)
        return tuple(sorted(fresh)), tuple(sorted(after - waits))

    def _below(self, body: Body, session: int) -> Iterator[int]:
        """The steps that wrote what is below the offsets that a fetch asks for, the last of each session: before them
        these offsets are out of range."""
        for topic in body["topics"]:
            for part in topic["partitions"]:
                known = self.produced.get((topic.get(NAME, ""), part["partition"]))
                if known is None:
                    continue
                at = bisect.bisect_left(known, (part["fetchOffset"],))
                seen: set[int] = set()
                # Nearest first; a session's last covers its earlier ones, so a few are looked at.
                for _, _, step, other in reversed(known[max(at - _NEAR, 0) : at]):
                    if other != session and other not in seen:
                        seen.add(other)
                        yield step

    def _records(self, answer: Body, done: int) -> Iterator[tuple[int, int]]:
        """(step, session) of what produced the records of an answer, the last of each session, and of what committed
        them."""
        latest: dict[tuple[str, int], tuple[int, int]] = {}
        for topic in answer["responses"]:
            for partition in topic["partitions"]:
                found = batches.produced(partition.get("records"))
                name = topic.get(NAME) or topic.get("topic") or ""
                known = self.produced.get((name, partition["partitionIndex"]), [])
                for batch in found:
                    end = batch.base_offset + batch.last_offset_delta + 1
                    at = bisect.bisect_left(known, (end,))
                    while at > 0 and known[at - 1][1] > batch.base_offset:
                        at -= 1
                        _, _, step, other = known[at]
                        latest["session", other] = max(latest.get(("session", other), (-1, other)), (step, other))
                    if batch.transactional:
                        for when, step, other in self.ended.get(batch.producer_id, ()):
                            if when < done:
                                latest["producer", batch.producer_id] = step, other
        yield from latest.values()

    def _note(self, number: int, session: int, one: _Decoded, body: Body) -> None:
        if one.request.api_key == apis.END_TXN and not (one.answer or {}).get("errorCode", -1):
            self.ended.setdefault(body["producerId"], []).append((one.request.sent_ns, number, session))
        if one.request.api_key != apis.PRODUCE or one.answer is None:
            return
        counts = {}
        for topic in body["topicData"]:
            for part in topic["partitionData"]:
                found = batches.produced(part["records"])
                counts[topic.get(NAME), part["index"]] = max(sum(b.last_offset_delta + 1 for b in found), 1)
        for topic in one.answer["responses"]:
            for part in topic["partitionResponses"]:
                where = topic.get(NAME) or topic.get("name"), part["index"]
                if not part["errorCode"] and part["baseOffset"] >= 0:
                    base = part["baseOffset"]
                    end = base + counts.get(where, 1)
                    bisect.insort(self.produced.setdefault(where, []), (base, end, number, session))


# --- the plan -------------------------------------------------------------------------------------------------------


def make(sessions: Sequence[Session], offers: Offers, options: PlanOptions) -> tuple[Plan, Facts]:
    """Decide about every captured exchange. Steps are numbered in order of captured time."""
    decoded = [[_Decoded(request) for request in session.requests] for session in sessions]
    every = [one for some in decoded for one in some]
    facts = _facts(every)
    _match_ids(facts, every)
    _name_ids(facts, every, options.topic_ids)
    merged = sorted(
        ((one.request.sent_ns, index, one.request.exchange, one) for index, some in enumerate(decoded) for one in some),
        key=lambda entry: entry[:3],
    )
    facts.early = early_members(_said((one for *_, one in merged), facts))
    waiting = {(one.group, one.member) for some in facts.early.values() for one in some}
    facts.members |= waiting
    start = merged[0][0] if merged else 0
    steps: list[Step] = []
    skips = [Skip(row, "no_request") for session in sessions for row in session.orphans]
    by_session: list[list[int]] = [[] for _ in sessions]
    order = _Order()
    for sent, index, _, one in merged:
        found = _judge(one, offers, options, facts)
        if isinstance(found, Skip):
            skips.append(found)
            continue
        if one.answer is not None:
            name_answer(one.request.api_key, one.answer, facts.topic_names)
        rules = found.rules
        first = waiting & set(speakers(one.request.api_key, found.body))
        if first:
            waiting -= first
            rules = (*rules, "joined_early")
        number = len(steps)
        waits, after = order.waits(number, index, one, found.body)
        route = apis.api(one.request.api_key).route
        short = None
        if one.request.api_key == apis.PRODUCE and not found.rules and one.request.data is not None:
            short = quick.plain(found.version, found.body, one.request.data, one.answer)
        steps.append(
            Step(
                number,
                index,
                one.request,
                sent - start,
                found.version,
                route,
                waits,
                after,
                rules,
                found.body,
                order.expects,
                short,
            )
        )
        by_session[index].append(number)
    return Plan(tuple(steps), tuple(skips), tuple(map(tuple, by_session))), facts


def name_answer(key: int, body: Body, names: dict[str, str]) -> None:
    """Put each topic's name beside it in an answer."""
    where = apis.RESPONSE_LISTS.get(key)
    if where is None:
        return
    for topic in apis.structs(body, where.path):
        name = topic.get(where.name) if where.name else None
        if not name and where.id:
            name = names.get(topic.get(where.id, ""))
        if name:
            topic[NAME] = name
