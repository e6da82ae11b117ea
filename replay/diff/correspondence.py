"""Learn which names, ids and offsets of two sides correspond, before the sides are compared.

In: pairs (`learning` has the order). Out: a `Correspondence`: topic names by id on either side, which member ids mean
one member, which offsets mean one record, what each connection has read of a partition, what each group assigned. Pure;
it takes nothing from the replayer's own remapping, which is one of the things that a comparison is there to check.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.analyzer.frame.spill import Heap
from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.protocol import tree
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.replay.diff.offsets import LEFT, RIGHT, OffsetRanges, Seen, Stored, StoredBatches
from kwire.replay.diff.pairs import Pair, Side
from kwire.replay.diff.record_facts import Numbers, Reader, Record

_ABORT = "abort"
_READ_COMMITTED = 1
_FOLLOWER = "follower"
"""Rule of the replay: a fetch that it did not send, for a broker had sent it."""
_AWAITED, _RELEASED = "records_awaited", "wait_released"
"""Rules of the replay: it fetched again and again; it did not wait for what the records come from."""


@dataclass(slots=True)
class TopicNames:
    """Topics by id, on one side."""

    by_id: dict[str, str] = field(default_factory=dict)

    def topic(self, topic_id: str) -> str:
        return self.by_id.get(topic_id, topic_id)

    def of(self, struct: dict[str, Any]) -> str:
        """The topic that a struct of a request or answer is about."""
        for name in ("topic", "name"):
            if struct.get(name):
                return str(struct[name])
        return self.topic(struct.get("topicId", ZERO_UUID))


@dataclass(slots=True)
class Twins:
    """Ids that mean the same on both sides, each with one of the other side, by scope (a group)."""

    _pairs: dict[tuple[str, str], str] = field(default_factory=dict)
    _back: dict[tuple[str, str], str] = field(default_factory=dict)

    def same(self, scope: str, left: str, right: str) -> bool:
        """Do they? Two that nobody has met yet do from now on."""
        if not left or not right:
            return left == right
        twin = self._pairs.setdefault((scope, left), right)
        return twin == right and self._back.setdefault((scope, right), left) == left

    def of_right(self, scope: str, right: str) -> str:
        """The left's name for one of the right."""
        return self._back.get((scope, right), right)


@dataclass(slots=True)
class Reading:
    """Records of a partition that one connection has read, as its consumer sees them. `place`: of its last fetch;
    `hidden`: the left's offsets of records of transactions that did not commit; `served`: what each answer of the right
    covers, from the offset asked for to its last record; `starved`: where the right asked for records that the left
    got, was given time for them (`records_awaited`) and got none, each with its place."""

    place: int
    left: Seen
    right: Seen
    hidden: set[int] = field(default_factory=set)
    served: list[tuple[int, int]] = field(default_factory=list)
    starved: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Watermarks:
    """High watermarks of one side's answers that have records of a partition. `below`: how many are not behind the last
    record of their answer; `place`, `first`: of the first of these, with (high watermark, last record)."""

    answers: int = 0
    below: int = 0
    place: int = -1
    first: tuple[int, int] = (-1, -1)

    def add(self, high: int, last: int, place: int) -> None:
        self.answers += 1
        if 0 <= high <= last:
            if not self.below:
                self.place, self.first = place, (high, last)
            self.below += 1


@dataclass(slots=True)
class Partition:
    """A topic-partition that was written to or read. `failed`: a batch was stored on the left only; `gained`: records
    that were stored on the right only, by digest; `unseen`: something was produced whose offset no answer tells
    (acks=0); `interleaved`: batches are in another order on the right, or several copies of the capture are there
    (`--times`); `swallowed`: places of exchanges whose batch one side took for a duplicate; `resent`: of those whose
    batch it took for their own, sent again; `untimed`: has the left, has the right answered a batch without a log
    append time? `forms`: how what either side has read is stored (`records.FORMS`); `watermarks`:
    of either side. `heap`: where most of what is known of it lies."""

    topic: str
    index: int
    heap: Heap = field(default_factory=Heap, repr=False)
    batches: StoredBatches = field(init=False)
    failed: bool = False
    gained: Counter[bytes] = field(default_factory=Counter)
    unseen: bool = False
    transactional: bool = False
    interleaved: bool = False
    swallowed: set[int] = field(default_factory=set)
    resent: set[int] = field(default_factory=set)
    untimed: list[bool] = field(default_factory=lambda: [False, False])
    forms: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    watermarks: tuple[Watermarks, Watermarks] = field(default_factory=lambda: (Watermarks(), Watermarks()))
    _timed: StoredBatches = field(init=False)  # with a log append time on one side only
    _timed_left: set[int] = field(default_factory=set)  # of these, places where that is the left
    _again: set[int] = field(default_factory=set)  # of these, places where a replay sent it again
    _readings: dict[tuple[str, str], Reading] = field(default_factory=dict)
    _by_left: OffsetRanges = field(default_factory=OffsetRanges)
    _by_right: OffsetRanges = field(default_factory=OffsetRanges)

    def __post_init__(self) -> None:
        self.batches, self._timed = StoredBatches(self.heap), StoredBatches(self.heap)

    @property
    def readings(self) -> Iterable[Reading]:
        return self._readings.values()

    def reading(self, connection: tuple[str, str], place: int) -> Reading:
        """Of a (capture, connection), which fetches now."""
        reading = self._readings.get(connection)
        if reading is None:
            reading = self._readings[connection] = Reading(place, Seen(self.heap), Seen(self.heap))
        reading.place = place
        return reading

    def add(self, batch: Stored, times: tuple[int, int], again: bool = False) -> None:
        """A batch that both sides answered with a base offset, with these log append times (-1: none). `again`: a
        replay did something for it more than once."""
        for side in (0, 1):
            self.untimed[side] |= times[side] < 0
        if (times[0] < 0) == (times[1] < 0):
            self.batches.append(batch)
            return
        self._timed.append(batch)
        if times[0] >= 0:
            self._timed_left.add(batch.place)
        if again:
            self._again.add(batch.place)

    def _settle_timed(self) -> None:
        """An answer with a log append time is that of a topic with LogAppendTime, or that of a batch that was taken for
        a duplicate and not stored. The time alone does not tell: the second has the base offset of a batch before it,
        or stands among answers without times. One that was sent again, at an offset that no other has, is stored: the
        first time."""
        if not len(self._timed):
            return
        stored = sorted([*self.batches, *self._timed], key=lambda batch: batch.place)
        timed = {batch.place for batch in self._timed}
        given: tuple[set[int], set[int]] = (set(), set())
        self.batches = StoredBatches(self.heap)
        for batch in stored:
            side = 0 if batch.place in self._timed_left else 1
            base = (batch.left, batch.right)
            if batch.place in timed and (self.untimed[side] or base[side] in given[side]):
                if batch.place not in self._again or base[side] in given[side]:
                    self.swallowed.add(batch.place)
                    self.failed |= side == 1
                    continue
                self.resent.add(batch.place)
            given[0].add(batch.left)
            given[1].add(batch.right)
            self.batches.append(batch)

    def index_batches(self) -> None:
        """To be called when all batches are there."""
        self._settle_timed()
        self._by_left = self.batches.ranges(LEFT, RIGHT)
        self._by_right = self.batches.ranges(RIGHT, LEFT)
        here, there, counts = (
            np.array(column, np.int64) for column in (self._by_left.here, self._by_left.there, self._by_left.counts)
        )
        self.interleaved = bool((np.diff(there) < 0).any() or (here[1:] < (here + counts)[:-1]).any())

    def to_right(self, offset: int) -> int | None:
        """The right side's offset of the record that the left has at `offset`."""
        return self._by_left.translated(offset)

    def read_at(self, offset: int, read: Container[int]) -> int | None:
        """Like `to_right`, but prefers the place at which the offset was read, if it is one of several: with several
        copies of a capture (`--times`) a reader gets the records that are there by then, even another copy's."""
        there = list(self._by_left.places(offset))
        return next((place for place in there if place in read), there[0] if there else None)

    def to_left(self, offset: int) -> int | None:
        return self._by_right.translated(offset)

    def all_to_right(self, offsets: Numbers) -> Numbers:
        """Like `to_right`, for many offsets; -1: there is none."""
        return self._by_left.all_translated(offsets)

    def all_to_left(self, offsets: Numbers) -> Numbers:
        return self._by_right.all_translated(offsets)

    def position(self, left: int, right: int) -> str | None:
        """Are two positions between the same records? `same`, the rule why not, or None."""
        here, there, counts = self._by_left.here, self._by_left.there, self._by_left.counts
        if not here:
            return "same" if left == right else "before_capture"
        at = bisect.bisect_left(here, left)
        before = at - 1 if at else None
        if before is not None and here[before] + counts[before] > left:
            least = most = there[before] + left - here[before]  # inside a batch
        else:
            least = there[before] + counts[before] if before is not None else 0
            if at < len(here):
                most = there[at]
            else:
                # Behind the last batch only markers can follow, at most one a batch, and what only one side has.
                beyond = left - (here[before] + counts[before]) if before is not None else left
                most = least + beyond + (len(self.batches) if self.transactional else 0)
        if least <= right <= max(most, least):
            return "same"
        if self.interleaved:
            return "interleaved"
        if self.failed or self.gained:
            return "not_stored"
        return "before_capture" if self.unseen or before is None else None


@dataclass(slots=True)
class GroupSide:
    """One side of a group: partitions assigned to members, and those that two had at once."""

    assigned: set[tuple[str, int]] = field(default_factory=set)
    doubled: set[tuple[str, int]] = field(default_factory=set)
    _owners: dict[tuple[int, tuple[str, int]], str] = field(default_factory=dict)

    def assign(self, generation: int | None, member: str, partitions: Iterable[tuple[str, int]]) -> None:
        for partition in partitions:
            self.assigned.add(partition)
            if generation is not None and self._owners.setdefault((generation, partition), member) != member:
                self.doubled.add(partition)


@dataclass(slots=True)
class Generation:
    """Partitions that the members of one captured generation were given together, on each side. `whole`: all of them
    were answered at once on both sides; `row`: the last exchange that says so."""

    row: dict[str, Any] = field(repr=False)
    left: set[tuple[str, int]] = field(default_factory=set)
    right: set[tuple[str, int]] = field(default_factory=set)
    whole: bool = True


@dataclass(slots=True)
class Group:
    """A consumer group. `row`: the last exchange that told something; `generations`: by the left's number."""

    name: str
    left: GroupSide = field(default_factory=GroupSide)
    right: GroupSide = field(default_factory=GroupSide)
    row: dict[str, Any] | None = field(default=None, repr=False)
    generations: dict[int, Generation] = field(default_factory=dict)


@dataclass(slots=True)
class Acquired:
    """Offsets of a partition that the members of a share group acquired, on each side. `row`: their last fetch."""

    row: dict[str, Any] = field(repr=False)
    left: set[int] = field(default_factory=set)
    right: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Committed:
    """Offsets that a captured group committed for a partition: `place` of the first commit, and the range of the
    offsets."""

    place: int
    least: int
    most: int

    def before(self, place: int, offset: int) -> bool:
        """Can a commit be where this offset comes from, which was asked for at this place?"""
        return self.place < place and self.least <= offset <= self.most


@dataclass(slots=True)
class Correspondence:
    """All names, ids and offsets that correspond between the two sides. `named_topics`: topics that captured requests
    name; `committed`: of captured commits by (group, topic, partition); `acquired`: by the same; `counts`: the most
    partitions that each side says a topic has; `deleted`: topics that were deleted on the left, and not on the right;
    `anew`: places at which both sides have deleted a topic, in order."""

    left: TopicNames = field(default_factory=TopicNames)
    right: TopicNames = field(default_factory=TopicNames)
    members: Twins = field(default_factory=Twins)
    partitions: dict[tuple[str, int], Partition] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    named_topics: set[str] = field(default_factory=set)
    committed: dict[tuple[str, str, int], Committed] = field(default_factory=dict)
    acquired: dict[tuple[str, str, int], Acquired] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    anew: dict[str, list[int]] = field(default_factory=dict)
    reader: Reader = field(default_factory=Reader, repr=False)
    heap: Heap = field(default_factory=Heap, repr=False)
    _producers: dict[Any, int] = field(default_factory=dict)

    def partition(self, topic: str, index: int) -> Partition:
        partition = self.partitions.get((topic, index))
        if partition is None:
            partition = self.partitions[topic, index] = Partition(topic, index, self.heap)
        return partition

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(name))

    def position(self, topic: str, index: int, left: int, right: int) -> str | None:
        return self.partition(topic, index).position(left, right)

    def producer(self, who: int | str) -> int:
        """A number for a producer id, or for a connection that produces without one."""
        return who if isinstance(who, int) else -1 - self._producers.setdefault(who, len(self._producers) + 1)

    def batches_of(self, pair: Pair) -> list[tuple[str, int, int]]:
        """(topic, partition, producer id) of the idempotent batches of a produce request."""
        batches = []
        for topic in (pair.left.request_body() or {}).get("topicData", ()):
            for partition in topic["partitionData"]:
                records = self.reader.read(partition["records"] or b"")
                if records and records[0].producer_id >= 0:
                    batches.append((self.left.of(topic), partition["index"], records[0].producer_id))
        return batches


def learn_names(correspondence: Correspondence, pair: Pair) -> None:
    """Learn topic ids from a Metadata or CreateTopics exchange."""
    for side, topics in ((pair.left, correspondence.left), (pair.right, correspondence.right)):
        for topic in (_body(side, pair.api_key) or {}).get("topics", ()):
            if topic.get("topicId", ZERO_UUID) != ZERO_UUID and topic.get("name"):
                topics.by_id[topic["topicId"]] = topic["name"]


def learn_step(correspondence: Correspondence, pair: Pair, place: int) -> None:
    """Learn all but names from one exchange."""
    if pair.api_key in STEPS:
        body = pair.left.request_body()
        if body is not None:
            named = (correspondence.left.of(topic) for _, topic in topics_of(pair.api_key, body))
            correspondence.named_topics.update(named)
        STEPS[pair.api_key](correspondence, pair, place)


def _body(side: Side, api_key: int) -> dict[str, Any] | None:
    decoded = side.decoded_answer(api_key)
    return None if decoded is None else decoded.body


def _nothing(correspondence: Correspondence, pair: Pair, place: int) -> None:
    """Only its topics are of interest."""


def _learn_counts(correspondence: Correspondence, pair: Pair, place: int) -> None:
    """How many partitions topics have; one that was grown in the capture counts with what it has then."""
    for at, (side, topics) in enumerate(((pair.left, correspondence.left), (pair.right, correspondence.right))):
        for topic in (_body(side, pair.api_key) or {}).get("topics", ()):
            counts = correspondence.counts.setdefault(topics.of(topic), [0, 0])
            counts[at] = max(counts[at], len(topic["partitions"]))


def _learn_growth(correspondence: Correspondence, pair: Pair, place: int) -> None:
    """CreatePartitions: what a replay does not send, its topics have from the start."""
    error_codes = {
        topic["name"]: topic["errorCode"] for topic in (_body(pair.left, pair.api_key) or {}).get("results", ())
    }
    for topic in (pair.left.request_body() or {}).get("topics", ()):
        if not error_codes.get(topic["name"], -1):
            counts = correspondence.counts.setdefault(topic["name"], [0, 0])
            counts[0] = max(counts[0], topic["count"])


def _learn_deleted(correspondence: Correspondence, pair: Pair, place: int) -> None:
    """Topics that only the left has deleted: their offsets begin anew there; those that both have: on both sides."""
    left, right = (
        {topics.of(topic) for topic in (_body(side, pair.api_key) or {}).get("responses", ()) if not topic["errorCode"]}
        for side, topics in ((pair.left, correspondence.left), (pair.right, correspondence.right))
    )
    correspondence.deleted |= left - right
    for topic in left & right:
        correspondence.anew.setdefault(topic, []).append(place)


# --- what is stored ---


def _produced(body: dict[str, Any] | None, names: TopicNames) -> dict[tuple[str, int], dict[str, Any]]:
    """The answer's partitions without an error."""
    return {
        (names.of(topic), partition["index"]): partition
        for topic in (body or {}).get("responses", ())
        for partition in topic["partitionResponses"]
        if not partition["errorCode"] and partition["baseOffset"] >= 0
    }


def _learn_produce(correspondence: Correspondence, pair: Pair, place: int) -> None:
    request = pair.left.request_body()
    if request is None:
        return
    left = _produced(_body(pair.left, names.PRODUCE), correspondence.left)
    right = _produced(_body(pair.right, names.PRODUCE), correspondence.right)
    for topic in request["topicData"]:
        for asked_partition in topic["partitionData"]:
            key = correspondence.left.of(topic), asked_partition["index"]
            partition = correspondence.partition(*key)
            records = correspondence.reader.read(asked_partition["records"] or b"")
            producer = records[0].producer_id if records else -1
            partition.transactional |= any(record.transactional for record in records)
            if key in left and key in right:
                by = correspondence.producer(producer if producer >= 0 else pair.row["connection"])
                stored = Stored(left[key]["baseOffset"], right[key]["baseOffset"], len(records), by, place)
                times = (left[key].get("logAppendTimeMs", -1), right[key].get("logAppendTimeMs", -1))
                partition.add(stored, times, bool(pair.left.retries or pair.right.retries))
            elif key in left:
                partition.failed = True
            elif key in right and pair.left.state == "answered":
                partition.gained.update(record.digest for record in records)
            elif pair.left.state != "answered":
                partition.unseen = True


# --- what is read ---


def _learn_fetch(correspondence: Correspondence, pair: Pair, place: int) -> None:
    # The target's own brokers follow each other: who followed in the capture is no reader that could read less here.
    follows = pair.right.rule == _FOLLOWER
    for side, topics, left in ((pair.left, correspondence.left, True), (pair.right, correspondence.right, False)):
        answer, request = _body(side, names.FETCH), side.request_body()
        if answer is None or request is None:
            continue
        starts = {
            (topics.of(topic), partition["partition"]): partition["fetchOffset"]
            for topic in request["topics"]
            for partition in topic["partitions"]
        }
        committed = request.get("isolationLevel", 0) == _READ_COMMITTED
        for topic in answer["responses"]:
            for partition in topic["partitions"]:
                if not partition.get("records"):
                    continue
                key = topics.of(topic), partition["partitionIndex"]
                aborted = partition.get("abortedTransactions") if committed else None
                reading = correspondence.partition(*key).reading(_connection(pair), place)
                into = reading.left if left else reading.right
                records = correspondence.reader.read(partition["records"])
                shown = list(visible(records, aborted or ()))
                for record in shown:
                    # A batch may begin before the offset that was asked for. What the right has of it, it has shown.
                    if not left or record.offset >= starts.get(key, 0):
                        if not follows:
                            into.add(record)
                        correspondence.partition(*key).forms[not left].add(record.form)
                if records and not follows:
                    high = partition.get("highWatermark", -1)
                    correspondence.partition(*key).watermarks[not left].add(high, records[-1].offset, place)
                if not left and records:
                    reading.served.append((starts.get(key, records[0].offset), records[-1].offset))
                if left and not follows:
                    hidden = {record.offset for record in records if not record.control}
                    reading.hidden |= hidden - {record.offset for record in shown}
    _learn_starved(correspondence, pair, place)


def _connection(pair: Pair) -> tuple[str, str]:
    return pair.row["capture"], pair.row["connection"]


def _learn_starved(correspondence: Correspondence, pair: Pair, place: int) -> None:
    """Where the right asked for records that the left got, and still got none when time was up."""
    if _AWAITED not in pair.right.retries or _RELEASED in pair.right.retries:
        return
    got = {
        (correspondence.left.of(topic), partition["partitionIndex"])
        for topic in (_body(pair.left, names.FETCH) or {}).get("responses", ())
        for partition in topic["partitions"]
        if partition.get("records")
    }
    answered = {
        (correspondence.right.of(topic), partition["partitionIndex"]): bool(
            partition.get("records") or partition["errorCode"]
        )
        for topic in (_body(pair.right, names.FETCH) or {}).get("responses", ())
        for partition in topic["partitions"]
    }
    for topic in (pair.right.request_body() or {}).get("topics", ()):
        for partition in topic["partitions"]:
            key = correspondence.right.of(topic), partition["partition"]
            if key in got and not answered.get(key, False):
                correspondence.partition(*key).reading(_connection(pair), place).starved.append(
                    (partition["fetchOffset"], place)
                )


def visible(records: Iterable[Record], aborted: Iterable[dict[str, Any]]) -> Iterator[Record]:
    """Return the records that a consumer sees: no markers, and nothing of the transactions that the answer calls
    aborted (KIP-98)."""
    waiting = sorted(((transaction["firstOffset"], transaction["producerId"]) for transaction in aborted), reverse=True)
    inside: set[int] = set()
    for record in records:
        while waiting and waiting[-1][0] <= record.offset:
            inside.add(waiting.pop()[1])
        if record.control is not None:
            if record.control == _ABORT:
                inside.discard(record.producer_id)
        elif not (record.transactional and record.producer_id in inside):
            yield record


_MOST_ACQUIRED = 1 << 20
"""Offsets that a range of acquired ones may have: a broker hands out some hundreds."""


def _learn_acquired(correspondence: Correspondence, pair: Pair, place: int) -> None:
    """Learn which records a share group acquires together; which member gets which is a race (KIP-932)."""
    group = str(pair.row.get("group_id"))
    for side, topics, left in ((pair.left, correspondence.left, True), (pair.right, correspondence.right, False)):
        for topic in (_body(side, names.SHARE_FETCH) or {}).get("responses", ()):
            for partition in topic["partitions"]:
                key = group, topics.of(topic), partition["partitionIndex"]
                for given in partition.get("acquiredRecords") or ():
                    acquired = correspondence.acquired.setdefault(key, Acquired(pair.row))
                    acquired.row = pair.row
                    into = acquired.left if left else acquired.right
                    first = given["firstOffset"]
                    into.update(range(first, min(given["lastOffset"] + 1, first + _MOST_ACQUIRED)))


# --- groups ---


def _learn_join(correspondence: Correspondence, pair: Pair, place: int) -> None:
    left, right = _body(pair.left, names.JOIN_GROUP), _body(pair.right, names.JOIN_GROUP)
    name = pair.row.get("group_id")
    if left is None or right is None or not name:
        return
    if not left["errorCode"] and not right["errorCode"]:
        correspondence.members.same(name, left["memberId"], right["memberId"])


def _learn_commit(correspondence: Correspondence, pair: Pair, place: int) -> None:
    request = pair.left.request_body() or {}
    for topic in request.get("topics", ()):
        for partition in topic["partitions"]:
            key = request["groupId"], correspondence.left.of(topic), partition["partitionIndex"]
            offset = partition["committedOffset"]
            known = correspondence.committed.get(key)
            if known is None:
                correspondence.committed[key] = Committed(place, offset, offset)
            else:
                known.least, known.most = min(known.least, offset), max(known.most, offset)


def _learn_sync(correspondence: Correspondence, pair: Pair, place: int) -> None:
    name = pair.row.get("group_id")
    if not name:
        return
    group = correspondence.group(name)
    captured = pair.left.request_body()
    generation = group.generations.setdefault((captured or {}).get("generationId", -1), Generation(pair.row))
    generation.row = pair.row
    generation.whole &= not (pair.left.retries or pair.right.retries)
    together = generation.left, generation.right
    for (side, into), partitions in zip(((pair.left, group.left), (pair.right, group.right)), together, strict=True):
        answer, request = _body(side, names.SYNC_GROUP), side.request_body()
        if answer is None or request is None or answer["errorCode"]:
            generation.whole = False
            continue
        given = [(side.renamed.get(topic, topic), index) for topic, index in _assignment(answer["assignment"])]
        into.assign(request["generationId"], request["memberId"], given)
        partitions.update(given)
        group.row = pair.row


def _assignment(data: bytes) -> list[tuple[str, int]]:
    """The partitions of a consumer's assignment; none where it is something else (Connect has its own)."""
    version = int.from_bytes(data[:2], "big", signed=True) if len(data) >= 2 else -1
    decoded = tree.decode_data(data[2:], "ConsumerProtocolAssignment", max(0, min(version, 3)), exact=True)
    if version < 0 or decoded.body is None:
        return []
    return [
        (topic["topic"], partition) for topic in decoded.body["assignedPartitions"] for partition in topic["partitions"]
    ]


def _learn_heartbeat(correspondence: Correspondence, pair: Pair, place: int) -> None:
    name = pair.row.get("group_id")
    left, right = _body(pair.left, pair.api_key), _body(pair.right, pair.api_key)
    if not name or left is None or right is None:
        return
    group = correspondence.group(name)
    if left.get("memberId") and right.get("memberId"):
        correspondence.members.same(name, left["memberId"], right["memberId"])
    for body, topics, into in ((left, correspondence.left, group.left), (right, correspondence.right, group.right)):
        given = body.get("assignment")
        if given is not None:
            listed = given["topicPartitions"]
            partitions = [(topics.of(topic), index) for topic in listed for index in topic["partitions"]]
            into.assign(None, body.get("memberId") or "", partitions)
            group.row = pair.row


STEPS: Final = {
    names.PRODUCE: _learn_produce,
    names.FETCH: _learn_fetch,
    names.SHARE_FETCH: _learn_acquired,
    names.METADATA: _learn_counts,
    names.CREATE_PARTITIONS: _learn_growth,
    names.CREATE_TOPICS: _nothing,
    names.DELETE_TOPICS: _learn_deleted,
    names.OFFSET_COMMIT: _learn_commit,
    names.TXN_OFFSET_COMMIT: _learn_commit,
    names.JOIN_GROUP: _learn_join,
    names.SYNC_GROUP: _learn_sync,
    names.CONSUMER_GROUP_HEARTBEAT: _learn_heartbeat,
}
"""What answers of which APIs teach."""
