"""What the original cluster assigned, and what the target has in its place.

In: bodies of captured requests, answers of both sides. Out: bodies to send. Pure: no I/O, no clock; the state is what
was learned. Rules: a value is replaced only by what an answer brought (or what the engine asked for itself); leader
epochs are sent as unknown (-1), which every broker takes; a sequence keeps its order and its gaps.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from analyzer.schema import ZERO_UUID
from replay import apis, batches, offsets
from replay.apis import NAME
from replay.retry import ILLEGAL_GENERATION, OFFSET_OUT_OF_RANGE, UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION
from replay.steps import Step
from replay.topology import Topology

Body = dict[str, Any]
_BY_NAME_OR_ID: Final = (apis.METADATA, apis.DELETE_TOPICS)
"""Requests that ask by name or by id; brokers refuse both at once."""

_SEQUENCES: Final = 1 << 31
"""Sequences are 31 bits wide and wrap."""

_LOST: Final = frozenset((ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID))
"""The target has no such member, or not in this generation."""

_SUBSCRIPTION: Final = (
    "instanceId", "rackId", "rebalanceTimeoutMs", "subscribedTopicNames", "subscribedTopicRegex", "serverAssignor",
)  # fmt: skip
"""What a member says of itself when it joins, and later only where it changes (KIP-848)."""

KEEP: Final = "keep"
SHIFT: Final = "shift"


@dataclass(frozen=True, slots=True)
class Options:
    """offsets: a mode of `offsets`; timestamps: `keep`, or `shift` by `time_delta_ms`; map_topic: new names of
    topics."""

    offsets: str = offsets.SHIFT
    timestamps: str = KEEP
    time_delta_ms: int = 0
    map_topic: dict[str, str] = field(default_factory=dict)


class Producer(NamedTuple):
    """A producer id with its epoch. (A tuple, because it is looked up several times a request.)"""

    id: int
    epoch: int


@dataclass(slots=True)
class FetchSession:
    """A fetch session of the capture: its partitions as the client last named them, and the target's session (id 0:
    none; `epoch` is the next one to send). `partial`: its start was not seen, so partitions may be missing."""

    partitions: dict[tuple[str, int], Body] = field(default_factory=dict)
    id: int = 0
    epoch: int = 0
    partial: bool = False


@dataclass(slots=True)
class Member:
    """A member of a KIP-848 or share group on the target. `assignment` is the target's last one, `owned` what the
    member has confirmed, `subscription` what it has said of itself, as it was sent."""

    epoch: int = 0
    subscription: Body = field(default_factory=dict)
    assignment: list[Body] | None = None
    owned: list[Body] | None = None


@dataclass(slots=True)
class Remap:
    """All that was learned. `assignments`: of the captured leaders' SyncGroup, by group and generation. Of members of
    classic groups: `joins`, the last JoinGroup that was sent; `current`, their generation. `rejoins`: how often members
    of a group had to join again."""

    options: Options = field(default_factory=Options)
    assignments: dict[tuple[str, int], list[Body]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    leader_epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    producers: dict[Producer, Producer] = field(default_factory=dict)
    transactions: dict[str, Producer] = field(default_factory=dict)
    members: dict[tuple[str, str], str] = field(default_factory=dict)
    generations: dict[tuple[str, str, int], int] = field(default_factory=dict)
    leads: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    joins: dict[tuple[str, str], Body] = field(default_factory=dict)
    current: dict[tuple[str, str], int] = field(default_factory=dict)
    rejoins: dict[str, int] = field(default_factory=dict)
    epochs: dict[tuple[str, str], Member] = field(default_factory=dict)
    sessions: dict[tuple[str, int], FetchSession] = field(default_factory=dict)
    share_epochs: dict[tuple[str, str, str], int] = field(default_factory=dict)
    offset_maps: dict[tuple[str, int], offsets.OffsetMap] = field(default_factory=dict)
    positions: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    refused_groups: set[str] = field(default_factory=set)
    _next_sequence: dict[tuple[Producer, str, int], int] = field(default_factory=dict)
    _sequence_delta: dict[tuple[Producer, Producer, str, int], int] = field(default_factory=dict)
    _asked: set[Producer] = field(default_factory=set)
    _settled: dict[tuple[str, str], int] = field(default_factory=dict)

    # --- small values ---

    def topic(self, name: str) -> str:
        """The topic's name on the target."""
        return self.options.map_topic.get(name, name)

    def offset(self, topic: str, partition: int, captured: int) -> int:
        """An offset of a captured partition, by the mode."""
        if self.options.offsets == offsets.AS_IS:
            return captured
        known = self.offset_maps.get((topic, partition))
        return captured if known is None else known.replayed(captured)

    def offset_map(self, topic: str, partition: int) -> offsets.OffsetMap:
        """The pairs of a captured partition."""
        return self.offset_maps.setdefault((topic, partition), offsets.OffsetMap())

    def member(self, group: str, member: str) -> str:
        """A member's id on the target; its own where none was learned."""
        return self.members.get((group, member), member)

    def generation(self, group: str, member: str, generation: int) -> int:
        """The generation of a classic group, or the epoch that a member has now."""
        state = self.epochs.get((group, member))
        if state is not None and generation >= 0:
            return state.epoch
        return self.generations.get((group, member, generation), generation)

    def unknown_producers(self, body: Body) -> Iterator[tuple[Producer, str | None]]:
        """(producer, transactional id) that a Produce request uses and no answer has brought."""
        for topic in body["topicData"]:
            for one in topic["partitionData"]:
                for batch in batches.produced(one["records"]):
                    producer = Producer(batch.producer_id, batch.producer_epoch)
                    if batch.producer_id >= 0 and producer not in self.producers:
                        yield producer, body.get("transactionalId") if batch.transactional else None

    def unknown_transaction(self, step: Step, body: Body) -> tuple[Producer, str] | None:
        """The producer of a transaction request, where no answer has brought it."""
        found = _transaction(step.request.api_key, body)
        if found is None or found[0].id < 0 or found[0] in self.producers:
            return None
        return found

    def give_producer(self, captured: Producer, transactional_id: str | None, given: Producer) -> None:
        """The engine asked for a producer id itself: its sequences start at 0."""
        self.producers[captured] = given
        self._asked.add(captured)
        if transactional_id:
            self.transactions[transactional_id] = given

    def learn_topics(self, known: Topology) -> None:
        """The target's topic ids and leader epochs, as its Metadata says them."""
        self.topic_ids.update(known.topic_ids)
        self.leader_epochs.update(known.leader_epochs)

    # --- requests ---

    def request(self, step: Step) -> Body:
        """What to send for a step: its body with the target's values. Topics' structs keep `NAME`."""
        body = copy.deepcopy(step.body)
        assert body is not None
        api_key = step.request.api_key
        write = _WRITERS.get(api_key)
        if write is not None:
            write(self, step, body)
        self.name_topics(api_key, body)
        return body

    def name_topics(self, api_key: int, body: Body) -> None:
        """Give each topic its name and id on the target."""
        for where, one in apis.topics(api_key, body):
            name = one.get(NAME)
            if name is None:
                continue
            there = self.topic(name)
            if where.name and (one.get(where.name) is not None or api_key != apis.METADATA):
                one[where.name] = there
            if where.id and (api_key not in _BY_NAME_OR_ID or one.get(where.id, ZERO_UUID) != ZERO_UUID):
                one[where.id] = self.topic_ids.get(there, one.get(where.id, ZERO_UUID))

    def _produce(self, step: Step, body: Body) -> None:
        for topic in body["topicData"]:
            for one in topic["partitionData"]:
                records = one["records"]
                changed: bytearray | None = None
                for batch in batches.produced(records):
                    if self.options.timestamps == SHIFT:
                        changed = changed if changed is not None else bytearray(records)
                        batches.shift_times(changed, batch.at, batch.size, self.options.time_delta_ms)
                    captured = Producer(batch.producer_id, batch.producer_epoch)
                    given = self.producers.get(captured)
                    if given is None:
                        continue
                    sequence = self.sequence(captured, given, topic.get(NAME, ""), one["index"], batch)
                    changed = changed if changed is not None else bytearray(records)
                    batches.set_producer(changed, batch.at, batch.size, given.id, given.epoch, sequence)
                if changed is not None:
                    one["records"] = bytes(changed)

    def sequence(self, captured: Producer, given: Producer, topic: str, partition: int, batch: batches.Batch) -> int:
        """The base sequence to send: the captured one, moved to where this producer is on the target."""
        if batch.base_sequence < 0:
            return batch.base_sequence
        moved = captured, given, topic, partition
        here = given, topic, partition
        if moved not in self._sequence_delta:
            # The first batch of an epoch: where the target's epoch already wrote, it goes on from there.
            if here in self._next_sequence:
                start = self._next_sequence[here]
            else:
                start = 0 if captured in self._asked else batch.base_sequence
            self._sequence_delta[moved] = start - batch.base_sequence
        sequence = (batch.base_sequence + self._sequence_delta[moved]) % _SEQUENCES
        self._next_sequence[here] = (sequence + batch.last_offset_delta + 1) % _SEQUENCES
        return sequence

    def _fetch(self, step: Step, body: Body) -> None:
        body.pop("clusterId", None)
        body["replicaId"] = -1
        body.pop("replicaState", None)
        for topic in body["topics"]:
            for one in topic["partitions"]:
                one["currentLeaderEpoch"] = -1
                one["lastFetchedEpoch"] = -1
                one["logStartOffset"] = -1
                one["fetchOffset"] = self._fetch_offset(step, topic.get(NAME, ""), one["partition"], one["fetchOffset"])
                one.pop("replicaDirectoryId", None)
                one.pop("highWatermark", None)

    def _fetch_offset(self, step: Step, topic: str, partition: int, captured: int) -> int:
        if self.options.offsets == offsets.POSITION:
            position = self.positions.get((step.request.connection, topic, partition))
            if position is not None and position[0] == captured:
                return position[1]
        known = self.offset_maps.get((topic, partition))
        if known is None or self.options.offsets == offsets.AS_IS:
            return captured
        return known.start(captured)

    def _list_offsets(self, step: Step, body: Body) -> None:
        for topic in body["topics"]:
            for one in topic["partitions"]:
                one["currentLeaderEpoch"] = -1

    def _epoch_ends(self, step: Step, body: Body) -> None:
        for topic in body["topics"]:
            for one in topic["partitions"]:
                one["currentLeaderEpoch"] = -1
                # The epoch is the question: the target's epoch of now has what the capture's had.
                known = self.leader_epochs.get((self.topic(topic[NAME]), one["partition"]))
                one["leaderEpoch"] = known if known is not None else one["leaderEpoch"]

    def _metadata(self, step: Step, body: Body) -> None:
        body["allowAutoTopicCreation"] = False

    def _offset_commit(self, step: Step, body: Body) -> None:
        group, member = body["groupId"], body.get("memberId", "")
        if group in self.refused_groups:
            body["memberId"], body["generationIdOrMemberEpoch"] = "", -1
        elif "generationIdOrMemberEpoch" in body:
            body["generationIdOrMemberEpoch"] = self.generation(group, member, body["generationIdOrMemberEpoch"])
            body["memberId"] = self.member(group, member)
        for topic in body["topics"]:
            for one in topic["partitions"]:
                one["committedOffset"] = self.offset(topic.get(NAME, ""), one["partitionIndex"], one["committedOffset"])
                if "committedLeaderEpoch" in one:
                    one["committedLeaderEpoch"] = -1

    def _txn_offset_commit(self, step: Step, body: Body) -> None:
        self._offset_commit(step, body)
        self._producer(step, body)

    def _offset_fetch(self, step: Step, body: Body) -> None:
        for one in body["groups"]:
            group, member = one["groupId"], one.get("memberId")
            if group in self.refused_groups:
                one["memberId"], one["memberEpoch"] = None, -1
            elif member:
                one["memberEpoch"] = self.generation(group, member, one["memberEpoch"])
                one["memberId"] = self.member(group, member)

    def _producer(self, step: Step, body: Body) -> None:
        found = _transaction(step.request.api_key, body)
        if found is None:
            return
        given = self.producers.get(found[0])
        if given is not None:
            id_field, epoch_field = _PRODUCER_FIELDS[step.request.api_key][1:]
            body[id_field], body[epoch_field] = given.id, given.epoch

    def _join(self, step: Step, body: Body) -> None:
        body["memberId"] = self.member(body["groupId"], body["memberId"])

    def _sync(self, step: Step, body: Body) -> None:
        group, member, generation = body["groupId"], body["memberId"], body["generationId"]
        mine = self.leads.get((group, member, generation))
        if mine is None:
            given = body["assignments"]
        elif mine:
            given = copy.deepcopy(self.assignments.get((group, generation), body["assignments"]))
        else:
            given = []
        for one in given:
            one["memberId"] = self.member(group, one["memberId"])
        body["assignments"] = given
        self._heartbeat(step, body)

    def _heartbeat(self, step: Step, body: Body) -> None:
        group, member = body["groupId"], body["memberId"]
        body["generationId"] = self.generation(group, member, body["generationId"])
        body["memberId"] = self.member(group, member)

    def _leave(self, step: Step, body: Body) -> None:
        group = body["groupId"]
        body["memberId"] = self.member(group, body.get("memberId", ""))
        for one in body["members"]:
            one["memberId"] = self.member(group, one["memberId"])

    def _group_heartbeat(self, step: Step, body: Body) -> None:
        """KIP-848: the member has its epoch and its partitions from the target, not from the capture."""
        group, member = body["groupId"], body["memberId"]
        if body.get("subscribedTopicNames") is not None:
            body["subscribedTopicNames"] = [self.topic(name) for name in body["subscribedTopicNames"]]
        if not member:  # version 0 joins without an id: whose state it is, the answer says
            body["topicPartitions"] = []
            return
        state = self.epochs.setdefault((group, member), Member())
        joins = body["memberEpoch"] <= 0
        if joins:
            state.assignment = state.owned = None
        else:
            body["memberEpoch"] = state.epoch
        body["memberId"] = self.member(group, member)
        if joins and body["memberEpoch"] == 0:
            body["topicPartitions"] = []
        elif not joins and (body.get("topicPartitions") is not None or state.assignment != state.owned):
            body["topicPartitions"] = copy.deepcopy(state.assignment or [])
            state.owned = state.assignment

    def can_rejoin(self, step: Step, captured: Body | None, errors: set[int]) -> bool:
        """May the member that got these errors join again? Not where it leaves, nor where it never joined; because of a
        rebalance only if that comes from another member's joining again: others are the capture's, with joins of its
        own."""
        assert step.body is not None
        group, member = _beating(step, captured)
        if step.request.api_key == apis.JOIN_GROUP:
            return bool(step.body["memberId"])
        if step.request.api_key in apis.GROUP_HEARTBEATS and step.body["memberEpoch"] < 0:
            return False
        if self.subscription(group, member):
            return True
        if (group, member) not in self.joins:
            return False
        return self.behind(group, member) or bool(errors & _LOST)

    def behind(self, group: str, member: str) -> bool:
        """Did another member have to join again after this one did?"""
        return self.rejoins.get(group, 0) > self._settled.get((group, member), 0)

    def subscription(self, group: str, member: str) -> Body:
        """What a member of a KIP-848 or share group has said of itself; nothing where it is none."""
        state = self.epochs.get((group, member))
        return copy.deepcopy(state.subscription) if state is not None else {}

    def moved_on(self, step: Step, sent: Body) -> bool:
        """Is a member of a classic group in another generation by now than a request of it that was sent? Then the
        captured generation stands for that."""
        assert step.body is not None
        group, member = step.body["groupId"], step.body["memberId"]
        now = self.current.get((group, member))
        name = "generationId" if "generationId" in sent else "generationIdOrMemberEpoch"
        if now is None or now == sent[name]:
            return False
        self.generations[group, member, step.body[name]] = now
        return True

    def joined(self, group: str, member: str, generation: int, body: Body, answer: Body) -> None:
        """The replayer joined a classic group for a member: `member` and `generation` are the captured ones (-1: not
        said), `body` is what it joined with."""
        self.members[group, member] = answer["memberId"]
        self._settle(group, member, body, answer)
        if generation >= 0:
            key = group, member, generation
            self.generations[key] = answer["generationId"]
            self.leads[key] = answer["leader"] == answer["memberId"]

    def _settle(self, group: str, member: str, body: Body, answer: Body) -> None:
        self.joins[group, member] = body
        self.current[group, member] = answer["generationId"]
        self._settled[group, member] = self.rejoins.get(group, 0)

    def joined_assigned(self, group: str, member: str, body: Body, answer: Body) -> None:
        """The replayer joined a KIP-848 group for a member: the same for its epoch and its partitions."""
        state = self.epochs[group, member] = Member()
        self._take_heartbeat(group, member, state, body, answer)

    def heartbeat_again(self, step: Step, body: Body, captured: Body | None, rejoins: bool) -> None:
        """Make a group heartbeat that was answered fit to be sent again: the member is where its last answer put it
        (an older epoch is fenced), or it joins with all that it has said of itself, and owns nothing."""
        group, member = _beating(step, captured)
        state = self.epochs.setdefault((group, member), Member())
        body["memberId"] = self.member(group, member)
        owned: list[Body] | None = None
        if rejoins:
            body.update(copy.deepcopy(state.subscription))
            state.epoch, state.assignment, state.owned, owned = 0, None, None, []
        elif state.assignment != state.owned:
            owned, state.owned = copy.deepcopy(state.assignment or []), state.assignment
        body["memberEpoch"] = state.epoch
        if "topicPartitions" in body:
            body["topicPartitions"] = owned

    def _share_heartbeat(self, step: Step, body: Body) -> None:
        group, member = body["groupId"], body["memberId"]
        if body.get("subscribedTopicNames") is not None:
            body["subscribedTopicNames"] = [self.topic(name) for name in body["subscribedTopicNames"]]
        state = self.epochs.setdefault((group, member), Member())
        if body["memberEpoch"] > 0:
            body["memberEpoch"] = state.epoch

    def _share_session(self, step: Step, body: Body) -> None:
        """ShareFetch and ShareAcknowledge: the session's epoch is counted anew, acquired offsets are mapped."""
        key = body["groupId"] or "", body["memberId"] or "", step.request.connection
        if body["shareSessionEpoch"] > 0:
            body["shareSessionEpoch"] = self.share_epochs.get(key, body["shareSessionEpoch"])
        for topic in body["topics"]:
            for one in topic["partitions"]:
                for acknowledged in one.get("acknowledgementBatches") or ():
                    for name in ("firstOffset", "lastOffset"):
                        name_of = topic.get(NAME)
                        if name_of is not None:
                            acknowledged[name] = self.offset(name_of, one["partitionIndex"], acknowledged[name])

    def _resources(self, step: Step, body: Body) -> None:
        """Configurations of a topic or a broker: by their name on the target."""
        for one in body["resources"]:
            if one["resourceType"] == apis.TOPIC_RESOURCE:
                one["resourceName"] = self.topic(one["resourceName"])
            elif one["resourceType"] in apis.BROKER_RESOURCES and one["resourceName"].isdigit():
                node = int(one["resourceName"])
                one["resourceName"] = str(self.nodes.get(node, node))

    # --- fetch sessions (KIP-227) ---

    def fetch_session(self, step: Step, body: Body, captured: Body | None, several: bool) -> str | None:
        """Put a fetch into the target's session; the rule by which it became something else, if it did.

        `several`: the target has several brokers; a session is one broker's, so fetches are then full ones."""
        if "sessionId" not in body:
            body["sessionId"], body["sessionEpoch"] = 0, -1
        captured_id, epoch = body["sessionId"], body["sessionEpoch"]
        if captured_id == 0 and epoch == -1:
            return None
        key = step.request.connection, captured_id
        session = self.sessions.get(key)
        if epoch > 0:
            if session is None:
                session = self.sessions[key] = FetchSession(partial=True)
            if session.partial:
                self._adopt(session, body, captured)
            _track(session, body)
            if not session.partitions:
                return "no_session"
            if session.id and not several:
                body["sessionId"], body["sessionEpoch"] = session.id, session.epoch
                return None
            _whole(session, body)
        elif session is None:
            # (0, 0) makes a session; the answer says its captured id, see `fetch_answered`.
            session = self.sessions[key] = FetchSession()
            _track(session, body)
        if several or epoch == -1:
            if epoch == -1 and session.id and not several:
                body["sessionId"] = session.id
                session.id = 0
                return None
            body["sessionId"], body["sessionEpoch"] = 0, -1
            return "sessionless" if several and epoch >= 0 else None
        if epoch == 0:
            session.partitions.clear()
            _track(session, body)
            body["sessionId"] = session.id
            return None
        body["sessionId"], body["sessionEpoch"] = 0, 0
        return "session_remade"

    def _adopt(self, session: FetchSession, body: Body, captured: Body | None) -> None:
        """Name the partitions that the captured answer has records of, and nobody named since the capture began: they
        were asked for from these records on."""
        named = {(topic.get(NAME, ""), one["partition"]) for topic in body["topics"] for one in topic["partitions"]}
        for topic in (captured or {}).get("responses", ()):
            name = topic.get(NAME)
            for one in topic["partitions"]:
                where = name, one["partitionIndex"]
                found = batches.produced(one.get("records"))
                if name and found and where not in named and where not in session.partitions:
                    asked = {
                        "partition": one["partitionIndex"],
                        "fetchOffset": self.offset(name, one["partitionIndex"], found[0].base_offset),
                        "partitionMaxBytes": 1 << 20,
                    }
                    body["topics"].append({NAME: name, "topic": name, "topicId": ZERO_UUID, "partitions": [asked]})

    def fetch_again(self, step: Step, body: Body, rule: str, replayed: Body | None) -> None:
        """Make a fetch that was answered (or lost) fit to be sent again."""
        if body["sessionEpoch"] == -1:
            return
        captured_id = (step.body or {}).get("sessionId", 0)
        session = self.sessions.get((step.request.connection, captured_id))
        if session is None:
            body["sessionId"], body["sessionEpoch"] = 0, -1
        elif rule in ("session_remade", "reconnected") or replayed is None or not replayed.get("sessionId"):
            _whole(session, body)
            body["sessionId"], body["sessionEpoch"] = 0, 0
        else:
            body["sessionId"], body["sessionEpoch"] = replayed["sessionId"], body["sessionEpoch"] + 1

    def lost_places(
        self, step: Step, sent: Body, captured: Body | None, replayed: Body
    ) -> Iterator[tuple[str, int, int]]:
        """(captured topic, partition, captured high watermark) where a fetch is out of range on the target, and was not
        when captured, because nothing had said yet how offsets here and there belong together when it was sent."""
        if self.options.offsets == offsets.AS_IS:
            return
        before = _by_partition(apis.FETCH, captured, self)
        asked, had = _places(step.body or {}), _places(sent)
        for (topic, partition), now in _by_partition(apis.FETCH, replayed, self).items():
            where = self.captured_topic(topic), partition
            was = before.get(where)
            if now["errorCode"] != OFFSET_OUT_OF_RANGE or was is None or was["errorCode"] or was["highWatermark"] < 0:
                continue
            known = self.offset_maps.get(where)
            unknown = known is None or not (known.produced or known.hints)
            if unknown or (known and where in asked and known.start(asked[where]) != had.get(where)):
                yield *where, was["highWatermark"]

    def found_places(self, step: Step, body: Body, ends: dict[tuple[str, int], tuple[int, int]]) -> None:
        """The captured high watermark and the target's of each such partition: read from the place that is as far from
        them."""
        session = self.sessions.get((step.request.connection, (step.body or {}).get("sessionId", 0)))
        places = dict(session.partitions) if session is not None else {}
        places |= {(name, index): one for name, index, one in apis.partitions(apis.FETCH, body) if one is not None}
        for where, one in places.items():
            if where in ends:
                known = self.offset_map(*where)
                captured, replayed = known.guess or (0, 0)
                known.guess = ends[where]
                one["fetchOffset"] = known.start(one["fetchOffset"] + captured - replayed)
        self.fetch_again(step, body, "session_remade", None)

    def fetch_answered(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """Take the target's session id, and count its epoch."""
        if sent["sessionEpoch"] == -1 or replayed.get("errorCode"):
            return
        captured_id = (step.body or {}).get("sessionId", 0)
        key = step.request.connection, captured_id
        session = self.sessions.get(key)
        if session is None:
            return
        if captured_id == 0 and captured is not None and captured.get("sessionId"):
            self.sessions[step.request.connection, captured["sessionId"]] = self.sessions.pop(key)
        session.id = replayed.get("sessionId", 0)
        session.epoch = sent["sessionEpoch"] + 1

    # --- answers ---

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """Take from a pair of answers what the target assigned. `sent` is the body that was sent."""
        read = _READERS.get(step.request.api_key)
        if read is not None:
            read(self, step, sent, captured, replayed)

    def _learn_produce(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        assert step.body is not None
        before = _by_partition(apis.PRODUCE, captured, self)
        after = _by_partition(apis.PRODUCE, replayed, self)
        for topic in step.body["topicData"]:
            for one in topic["partitionData"]:
                name = topic.get(NAME, "")
                was = before.get((name, one["index"]))
                now = after.get((self.topic(name), one["index"]))
                if was is None or now is None or was["errorCode"] or now["errorCode"]:
                    continue
                if was["baseOffset"] < 0 or now["baseOffset"] < 0:
                    continue
                count = sum(batch.last_offset_delta + 1 for batch in batches.produced(one["records"]))
                self.offset_map(name, one["index"]).learn(was["baseOffset"], now["baseOffset"], count)

    def _learn_list_offsets(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        before = _by_partition(apis.LIST_OFFSETS, captured, self)
        for (topic, partition), now in _by_partition(apis.LIST_OFFSETS, replayed, self).items():
            name = self.captured_topic(topic)
            was = before.get((name, partition))
            if was is None or was["errorCode"] or now["errorCode"]:
                continue
            there, here = listed_offset(was), listed_offset(now)
            if there >= 0 and here >= 0:
                self.offset_map(name, partition).hint(there, here)

    def captured_topic(self, name: str) -> str:
        """A target's topic by its name in the capture."""
        return next((old for old, new in self.options.map_topic.items() if new == name), name)

    def _learn_fetch(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        if self.options.offsets != offsets.POSITION:
            return
        before = _by_partition(apis.FETCH, captured, self)
        for (topic, partition), now in _by_partition(apis.FETCH, replayed, self).items():
            name = self.captured_topic(topic)
            was = before.get((name, partition))
            ends = _end(was), _end(now)
            if ends[0] is not None and ends[1] is not None:
                self.positions[step.request.connection, name, partition] = ends[0], ends[1]

    def _learn_producer(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        if captured is None or captured["errorCode"] or replayed["errorCode"]:
            return
        given = Producer(replayed["producerId"], replayed["producerEpoch"])
        self.producers[Producer(captured["producerId"], captured["producerEpoch"])] = given
        if sent.get("transactionalId"):
            self.transactions[sent["transactionalId"]] = given

    def _learn_end(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """EndTxn v5 and newer bumps the epoch (KIP-890); a target without it keeps the old one."""
        if captured is None or captured["errorCode"] or replayed["errorCode"]:
            return
        given = Producer(sent["producerId"], sent["producerEpoch"])
        if replayed.get("producerId", -1) >= 0:
            given = Producer(replayed["producerId"], replayed["producerEpoch"])
        if captured.get("producerId", -1) >= 0:
            self.producers[Producer(captured["producerId"], captured["producerEpoch"])] = given
        self.transactions[sent["transactionalId"]] = given

    def _learn_join(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        assert step.body is not None
        group = step.body["groupId"]
        asked = step.body["memberId"]
        was = captured["memberId"] if captured is not None else ""
        if replayed["memberId"]:
            for old in (asked, was):
                if old:
                    self.members[group, old] = replayed["memberId"]
        if captured is not None and not captured["errorCode"] and not replayed["errorCode"]:
            key = group, was, captured["generationId"]
            self.generations[key] = replayed["generationId"]
            self.leads[key] = replayed["leader"] == replayed["memberId"]
            self._settle(group, was, sent, replayed)

    def _learn_group_heartbeat(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        group, was = _beating(step, captured)
        state = self.epochs.setdefault((group, was), Member())
        self._take_heartbeat(group, was, state, sent, replayed)

    def _take_heartbeat(self, group: str, was: str, state: Member, sent: Body, replayed: Body) -> None:
        said = {name: sent.get(name) for name in _SUBSCRIPTION}
        state.subscription |= {name: value for name, value in said.items() if value not in (None, -1)}
        if replayed["errorCode"]:
            if replayed["errorCode"] == UNSUPPORTED_VERSION:  # offered, and not configured (3.9: KIP-848 groups)
                self.refused_groups.add(group)
            return
        state.epoch = replayed["memberEpoch"]
        if replayed.get("memberId"):
            self.members[group, was] = replayed["memberId"]
        if replayed.get("assignment") is not None:
            state.assignment = replayed["assignment"]["topicPartitions"]

    def _learn_share(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        if not replayed["errorCode"]:
            key = sent["groupId"] or "", sent["memberId"] or "", step.request.connection
            self.share_epochs[key] = 1 if sent["shareSessionEpoch"] == 0 else sent["shareSessionEpoch"] + 1

    def rows(self, capture: str) -> Iterator[Body]:
        """What was learned, as rows of the table `remaps`."""

        def row(kind: str, scope: str | None, captured: object, replayed: object, records: int | None = None) -> Body:
            return {"capture": capture, "kind": kind, "scope": scope, "captured": str(captured),
                    "replayed": str(replayed), "records": records}  # fmt: skip

        for old, new in self.producers.items():
            yield row("producer", None, f"{old.id}/{old.epoch}", f"{new.id}/{new.epoch}")
        for (group, member), there in self.members.items():
            yield row("member", group, member, there)
        for (group, _, generation), there_generation in self.generations.items():
            yield row("generation", group, generation, there_generation)
        for node, other in self.nodes.items():
            yield row("node", None, node, other)
        for (topic, partition), known in self.offset_maps.items():
            for base, there_base, count in known.produced:
                yield row("offset", f"{topic}-{partition}", base, there_base, count)


def _track(session: FetchSession, body: Body) -> None:
    """Keep the partitions that a fetch names, as it was made for the target; let go of those that it forgets."""
    for topic in body["topics"]:
        for one in topic["partitions"]:
            session.partitions[topic.get(NAME, ""), one["partition"]] = one
    for topic in body.get("forgottenTopicsData") or ():
        for partition in topic["partitions"]:
            session.partitions.pop((topic.get(NAME, ""), partition), None)


def _whole(session: FetchSession, body: Body) -> None:
    """Name all partitions of the session."""
    topics: dict[str, Body] = {}
    for (name, _), one in session.partitions.items():
        topics.setdefault(name, {NAME: name, "topic": name, "topicId": ZERO_UUID, "partitions": []})
        topics[name]["partitions"].append(one)
    body["topics"] = list(topics.values())
    body["forgottenTopicsData"] = []


def _end(partition: Body | None) -> int | None:
    """The offset after the records of a fetched partition; None without any."""
    if partition is None or not partition.get("records"):
        return None
    last = None
    try:
        for batch in batches.batches(partition["records"]):
            last = batch.base_offset + batch.last_offset_delta + 1
    except batches.BadRecords:
        return None
    return last


def _beating(step: Step, captured: Body | None) -> tuple[str, str]:
    """The group and the member, by its captured id, that a request speaks for; version 0 of a group heartbeat is given
    it by the answer."""
    assert step.body is not None
    return step.body["groupId"], step.body.get("memberId") or (captured or {}).get("memberId") or ""


def _places(fetch: Body) -> dict[tuple[str, int], int]:
    """The offsets that a fetch asks for."""
    return {
        (topic, partition): one["fetchOffset"]
        for topic, partition, one in apis.partitions(apis.FETCH, fetch)
        if one is not None and "fetchOffset" in one
    }


def listed_offset(partition: Body) -> int:
    """The offset that ListOffsets answers, -1 for none; version 0 has a list of them, the one asked for first."""
    listed = partition["offset"] if "offset" in partition else next(iter(partition.get("oldStyleOffsets") or ()), -1)
    return int(listed)


def _by_partition(api_key: int, body: Body | None, remap: Remap) -> dict[tuple[str, int], Body]:
    """The partitions of an answer whose topics were named."""
    found: dict[tuple[str, int], Body] = {}
    where = apis.RESPONSE_LISTS[api_key]
    for topic in apis.structs(body or {}, where.path):
        for one in topic[where.partitions]:
            found[topic.get(NAME) or topic.get(where.name) or "", one[where.number]] = one
    return found


_PRODUCER_FIELDS: Final = {
    apis.ADD_PARTITIONS_TO_TXN: (
        "v3AndBelowTransactionalId", "v3AndBelowProducerId", "v3AndBelowProducerEpoch",
    ),
    **dict.fromkeys(
        (apis.INIT_PRODUCER_ID, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN, apis.TXN_OFFSET_COMMIT),
        ("transactionalId", "producerId", "producerEpoch"),
    ),
}  # fmt: skip


def _transaction(api_key: int, body: Body) -> tuple[Producer, str] | None:
    """Producer and transactional id of a transaction request; None for others."""
    if api_key not in _PRODUCER_FIELDS:
        return None
    name, producer_id, epoch = _PRODUCER_FIELDS[api_key]
    if producer_id not in body:
        return None
    return Producer(body[producer_id], body[epoch]), body[name] or ""


_WRITERS: Final = {
    apis.PRODUCE: Remap._produce,
    apis.FETCH: Remap._fetch,
    apis.LIST_OFFSETS: Remap._list_offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: Remap._epoch_ends,
    apis.METADATA: Remap._metadata,
    apis.OFFSET_COMMIT: Remap._offset_commit,
    apis.OFFSET_FETCH: Remap._offset_fetch,
    apis.INIT_PRODUCER_ID: Remap._producer,
    apis.ADD_PARTITIONS_TO_TXN: Remap._producer,
    apis.ADD_OFFSETS_TO_TXN: Remap._producer,
    apis.END_TXN: Remap._producer,
    apis.TXN_OFFSET_COMMIT: Remap._txn_offset_commit,
    apis.JOIN_GROUP: Remap._join,
    apis.SYNC_GROUP: Remap._sync,
    apis.HEARTBEAT: Remap._heartbeat,
    apis.LEAVE_GROUP: Remap._leave,
    apis.CONSUMER_GROUP_HEARTBEAT: Remap._group_heartbeat,
    apis.SHARE_GROUP_HEARTBEAT: Remap._share_heartbeat,
    apis.SHARE_FETCH: Remap._share_session,
    apis.SHARE_ACKNOWLEDGE: Remap._share_session,
    apis.DESCRIBE_CONFIGS: Remap._resources,
    apis.ALTER_CONFIGS: Remap._resources,
    apis.INCREMENTAL_ALTER_CONFIGS: Remap._resources,
}

_READERS: Final = {
    apis.PRODUCE: Remap._learn_produce,
    apis.FETCH: Remap._learn_fetch,
    apis.LIST_OFFSETS: Remap._learn_list_offsets,
    apis.INIT_PRODUCER_ID: Remap._learn_producer,
    apis.END_TXN: Remap._learn_end,
    apis.JOIN_GROUP: Remap._learn_join,
    apis.CONSUMER_GROUP_HEARTBEAT: Remap._learn_group_heartbeat,
    apis.SHARE_GROUP_HEARTBEAT: Remap._learn_group_heartbeat,
    apis.SHARE_FETCH: Remap._learn_share,
    apis.SHARE_ACKNOWLEDGE: Remap._learn_share,
}
