"""What a target acknowledged in a replay: which record it has to have at which offset of which partition.

In: the pairs of a RUN (`replay.diff.pairs`). Out: a `Partition` for each topic-partition; told what was read of it, it
says what is missing and what is out of order. Pure. Rules: a record is there if its key, value and headers lie at the
offset that the target gave for it, and no other one counts for it; of an order only what one producer (without an id:
one client, on connections of which one had ended before the next wrote there) had stored when captured is a promise;
what the replay itself deleted is not awaited.
"""

from __future__ import annotations

import bisect
import datetime
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from analyzer.protocol import names
from replay.diff.correspondence import TopicNames
from replay.diff.pairs import Pair
from replay.diff.records import FORMS, Form, Reader, Record

Where = tuple[str, int]

_UNKNOWN: Final = -1
_TOGETHER: Final = 1_000
_TOGETHER_BYTES: Final = 8 << 20
"""Records fields, and bytes of theirs, that are opened together."""


@dataclass(slots=True)
class Batch:
    """Records that were acknowledged together. `base`: the target's offset of the first; `captured`: the captured one,
    -1 where nothing says it; `writer`: a number for whose order it is; `digests`: of its records, one behind the other;
    `found`: for each record whether it was read; `form`: how it should be stored (of `records.FORMS`)."""

    base: int
    captured: int
    writer: int
    digests: bytes = field(repr=False)
    found: bytearray = field(repr=False)
    form: Form = FORMS[0]

    @property
    def end(self) -> int:
        return self.base + len(self.found)

    def has(self, inside: int, digest: bytes) -> bool:
        """Is this its record at that place?"""
        size = len(digest)
        return inside < len(self.found) and self.digests[inside * size : (inside + 1) * size] == digest


@dataclass(slots=True)
class Partition:
    """`batches` in the order in which they were captured; `again`: records of batches that were taken for others;
    `otherwise`: how many records are stored with another codec or timestamp type, by how (a place in `FORMS`)."""

    batches: list[Batch] = field(default_factory=list)
    again: list[Batch] = field(default_factory=list)
    read: bool = False
    otherwise: Counter[int] = field(default_factory=Counter)
    _bases: array[int] = field(default_factory=lambda: array("q"))
    _sorted: list[Batch] = field(default_factory=list)
    _beside: dict[int, list[Batch]] = field(default_factory=dict)

    def settle(self) -> None:
        """To be called when all batches are there: of those with the same base offset only one was stored. One that the
        captured broker took for the same too is no other one."""
        first: dict[int, Batch] = {}
        kept = []
        for batch in self.batches:
            before = first.setdefault(batch.base, batch)
            if before is batch:
                kept.append(batch)
            elif before.digests != batch.digests or before.captured != batch.captured:
                self.again.append(batch)
        self.batches = kept
        for batch in self.again:
            self._beside.setdefault(batch.base, []).append(batch)
        self._sorted = sorted(kept, key=lambda batch: batch.base)
        self._bases = array("q", (batch.base for batch in self._sorted))

    @property
    def first(self) -> int:
        """The first offset that is awaited."""
        return self._bases[0]

    @property
    def end(self) -> int:
        """Behind the last."""
        return max(batch.end for batch in self._sorted)

    def see(self, records: Iterable[Record]) -> None:
        """Take note of records that the target has."""
        for record in records:
            at = bisect.bisect_right(self._bases, record.offset) - 1
            if at < 0 or record.control is not None:
                continue
            batch = self._sorted[at]
            inside = record.offset - batch.base
            # Of two that were acknowledged at one offset either may be what is stored there.
            some = (one for one in (batch, *self._beside.get(batch.base, ())) if one.has(inside, record.digest))
            stored = next(some, None)
            if stored is None:
                continue
            batch = stored
            self.otherwise[record.form] += not batch.found[inside] and _otherwise(batch.form, FORMS[record.form])
            batch.found[inside] = 1

    def row(self, where: Where) -> dict[str, Any]:
        """Of the table `audit`."""
        lost = [batch for batch in (*self._sorted, *self.again) if not all(batch.found)]
        first = min((batch.base + batch.found.index(0) for batch in lost), default=None)
        total = sum(len(batch.found) for batch in (*self.batches, *self.again))
        missing = sum(batch.found.count(0) for batch in lost)
        most = max(self.otherwise.items(), key=lambda each: each[1], default=(0, 0))
        return {
            "topic": where[0],
            "partition": where[1],
            "acknowledged": total,
            "readable": total - missing if self.read else None,
            "missing": missing if self.read else None,
            "out_of_order": out_of_order(self.batches),
            "first_missing_offset": first if self.read else None,
            "stored_otherwise": self.otherwise.total() if self.read else None,
            "stored_as": FORMS[most[0]].text() if most[1] and self.read else None,
        }


def _otherwise(sent: Form, stored: Form) -> bool:
    """Has the target made something else of it? (A format of its own is no more than its version.)"""
    timed = sent.magic >= 1 and stored.magic >= 1
    return sent.codec != stored.codec or (timed and sent.appended != stored.appended)


def out_of_order(batches: Sequence[Batch]) -> int:
    """How many records would have to move for each writer's batches to lie as they did when captured."""
    writers: dict[int, list[Batch]] = {}
    for batch in batches:
        writers.setdefault(batch.writer, []).append(batch)
    moved = 0
    for mine in writers.values():
        if all(batch.captured >= 0 for batch in mine):
            mine.sort(key=lambda batch: batch.captured)
        kept = _longest_rising([batch.base for batch in mine])
        moved += sum(len(batch.found) for at, batch in enumerate(mine) if at not in kept)
    return moved


def _longest_rising(numbers: Sequence[int]) -> set[int]:
    """Places of the longest part of some numbers, in order, that rises (patience sorting)."""
    tops: list[int] = []  # the least last number of a rising part of each length ...
    places: list[int] = []  # ... and where it stands
    before = [_UNKNOWN] * len(numbers)
    for place, number in enumerate(numbers):
        at = bisect.bisect_left(tops, number)
        if at:
            before[place] = places[at - 1]
        tops[at : at + 1] = [number]
        places[at : at + 1] = [place]
    found = set()
    place = places[-1] if places else _UNKNOWN
    while place != _UNKNOWN:
        found.add(place)
        place = before[place]
    return found


class _Writers:
    """Numbers for whose order batches have: a producer id's, or a client's while one connection follows another."""

    def __init__(self, ends: Mapping[tuple[str, str], int]) -> None:
        self._ends = ends
        self._numbers: dict[Any, int] = {}
        self._chains: dict[Any, tuple[tuple[str, str], int]] = {}  # by partition and client: connection, number

    def number(self, where: Where, pair: Pair, producer: int) -> int:
        """For whoever sent a batch to a partition: `producer` is its producer id, -1 without one."""
        if producer >= 0:
            return self._numbers.setdefault((where, producer), len(self._numbers))
        connection = str(pair.row["capture"]), str(pair.row["connection"])
        address = connection[1].partition("-")[0].rpartition(":")[0]
        client = where, connection[0], address, pair.row.get("client_id")
        last, number = self._chains.get(client, (("", ""), _UNKNOWN))
        sent = _sent_us(pair)
        if last != connection:
            follows = number != _UNKNOWN and self._ends.get(last, sent) < sent
            known = self._numbers.get((where, connection), number if follows else len(self._numbers))
            number = self._numbers.setdefault((where, connection), known)
            self._chains[client] = connection, number
        return number


def acknowledged(pairs: Iterable[Pair], ends: Mapping[tuple[str, str], int]) -> dict[Where, Partition]:
    """Partitions by their names on the target. `pairs`: requests to produce or to delete, in order of captured time;
    `ends`: when each captured connection (capture, connection) sent its last request, us."""
    found = _Acknowledged(_Writers(ends))
    renamed: Mapping[str, str] = {}
    for pair in pairs:
        renamed = pair.right.renamed
        found.take(pair)
    found.settle()
    for partition in found.partitions.values():
        partition.settle()
    there = {old: new for new, old in renamed.items()}
    return {(there.get(topic, topic), index): one for (topic, index), one in found.partitions.items() if one.batches}


class _Stored(NamedTuple):
    """A records field that was acknowledged, before it is opened. `base`: the target's offset; `captured`: that of the
    capture, and whether it has a log append time; `form`: how it was sent, None: as it was captured."""

    pair: Pair
    where: Where
    records: bytes
    base: int
    captured: tuple[int, bool]
    form: Form | None


class _Acknowledged:
    """Partitions in the making, by their captured names. Records are opened many at a time (`settle`)."""

    def __init__(self, writers: _Writers) -> None:
        self.partitions: dict[Where, Partition] = {}
        self._waiting: list[_Stored] = []
        self._waiting_bytes = 0
        self._writers = writers
        self._reader = Reader()
        self._left: TopicNames | None = None
        self._right = TopicNames()

    def take(self, pair: Pair) -> None:
        if self._left is None:
            self._left, self._right = TopicNames(dict(pair.left.named)), TopicNames(dict(pair.right.named))
        asked, said = pair.left.asked(), pair.right.said(pair.api_key)
        if asked is None or said is None or said.body is None:
            return
        if pair.api_key == names.PRODUCE:
            self._produced(pair, asked, said.body, self._left)
            if len(self._waiting) >= _TOGETHER or self._waiting_bytes >= _TOGETHER_BYTES:
                self.settle()
        else:
            self.settle()
            _deleted(pair.api_key, said.body, self._right, self.partitions)

    def _produced(self, pair: Pair, asked: dict[str, Any], answer: dict[str, Any], left: TopicNames) -> None:
        bases = _bases(answer, self._right)
        before = pair.left.said(names.PRODUCE)
        captured = _bases(before.body, left) if before is not None and before.body is not None else {}
        forms = self._forms(pair)
        for topic in asked["topicData"]:
            for part in topic["partitionData"]:
                where = left.of(topic), part["index"]
                if where in bases and part["records"]:
                    there = captured.get(where, (_UNKNOWN, False))
                    one = _Stored(pair, where, part["records"], bases[where][0], there, forms.get(where))
                    self._waiting.append(one)
                    self._waiting_bytes += len(one.records)

    def settle(self) -> None:
        """Open what waits."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        heap = np.frombuffer(bytearray(b"".join(one.records for one in waiting)), np.uint8)
        length = np.array([len(one.records) for one in waiting], np.int64)
        content = self._reader.content(heap, np.cumsum(length) - length, length)
        ends = np.searchsorted(content.field, np.arange(len(waiting) + 1)).tolist()
        for one, first, end in zip(waiting, ends, ends[1:], strict=False):
            if first == end:
                continue
            writer = self._writers.number(one.where, one.pair, int(content.producer_id[first]))
            captured, timed = one.captured
            form = (one.form or FORMS[content.form[first]])._replace(appended=timed)
            digests = b"".join(content.digests[first:end])
            batch = Batch(one.base, captured, writer, digests, bytearray(end - first), form)
            self.partitions.setdefault(one.where, Partition()).batches.append(batch)

    def _forms(self, pair: Pair) -> dict[Where, Form]:
        """How batches were sent to the target where that is not as they were captured: it may take older message sets
        as batches only. What is as long as it was, and of the same version, has its producers and times replaced."""
        left, right = pair.left, pair.right
        if left.version == right.version and len(left.request or b"") == len(right.request or b""):
            return {}
        return {
            (self._right.of(topic), part["index"]): FORMS[records[0].form]
            for topic in (right.asked() or {}).get("topicData", ())
            for part in topic["partitionData"]
            if (records := self._reader.read(part["records"] or b""))
        }


def _bases(answer: dict[str, Any], called: TopicNames) -> dict[Where, tuple[int, bool]]:
    """The base offsets that an answer to Produce gives, where it is no error, each with whether it has a log append
    time."""
    return {
        (called.of(topic), part["index"]): (part["baseOffset"], part.get("logAppendTimeMs", -1) >= 0)
        for topic in answer.get("responses", ())
        for part in topic["partitionResponses"]
        if not part["errorCode"] and part["baseOffset"] >= 0
    }


def _deleted(api_key: int, answer: dict[str, Any], called: TopicNames, found: dict[Where, Partition]) -> None:
    """What the target was asked to delete, and did."""
    if api_key == names.DELETE_TOPICS:
        gone = {called.of(topic) for topic in answer.get("responses", ()) if not topic["errorCode"]}
        for where in [where for where in found if where[0] in gone]:
            del found[where]
        return
    for topic in answer.get("topics", ()):
        for part in topic["partitions"]:
            partition = found.get((called.of(topic), part["partitionIndex"]))
            if partition is not None and not part["errorCode"]:
                partition.batches = [batch for batch in partition.batches if batch.base >= part["lowWatermark"]]


def _sent_us(pair: Pair) -> int:
    """When the captured request was sent, in microseconds since the epoch."""
    sent: datetime.datetime = pair.row["request_time"]
    return round(sent.timestamp() * 1e6)
