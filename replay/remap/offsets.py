"""Translates offsets of the capture to those of the same records on the target. Pure.

Pairs are learned from answers: each produced batch has a base offset on both sides. With several producers on a
partition batches may interleave differently, so a pair holds for its batch, and for what follows until the next one. A
reader that goes on from where its last answer ended does so here too: it is never ahead of what it has read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME, Partition, answered, partitions
from kwire.replay.remap.topics import Topics

AS_IS: Final = "as-is"
SHIFT: Final = "shift"
POSITION: Final = "position"
Appended = tuple[Partition, int, int, int]
"""A batch: its captured partition, its base offset there and on the target, and how many offsets it takes."""


@dataclass(slots=True)
class OffsetMap:
    """The offsets of one partition.

    - `produced`: (captured base, replayed base, offsets) of batches, sorted
    - `hints`: pairs from ListOffsets, used if no batch was produced before
    - `guess`: where the log ended on both sides when nothing else was known
    - `mixed`: batches are in another order on the target
    - `joined`: batches that follow each other on both sides are kept as one
    - `log_start`: where the target's log begins, as far as its answers say
    """

    produced: list[tuple[int, int, int]] = field(default_factory=list)
    hints: list[tuple[int, int]] = field(default_factory=list)
    guess: tuple[int, int] | None = None
    mixed: bool = False
    joined: bool = False
    log_start: int = 0

    def learn(self, captured: int, replayed: int, count: int) -> None:
        """Note a batch that was appended on both sides."""
        entry = captured, replayed, count
        if self.joined and self.produced:
            base, there, before = self.produced[-1]
            if (base + before, there + before) == (captured, replayed):
                self.produced[-1] = base, there, before + count
                return
        if self.produced and self.produced[-1] <= entry:
            self.mixed |= self.produced[-1][1] > replayed  # by far the most: a batch behind all others
            self.produced.append(entry)
            return
        at = bisect.bisect_left(self.produced, entry)
        self.mixed |= at > 0 and self.produced[at - 1][1] > replayed
        self.mixed |= at < len(self.produced) and self.produced[at][1] < replayed
        self.produced.insert(at, entry)

    def start(self, captured: int) -> int:
        """Where to read on the target, so that no record from `captured` on is missed. Batches of several producers may
        be in another order there, and some lie before."""
        here = self.replayed(captured)
        if captured < 0 or not self.mixed:
            return here
        at = bisect.bisect_left(self.produced, (captured, -1, -1))
        beside = [max(there + captured - near, 0) for near, there in self._nearest_hint(captured)]
        return min([here, *beside, *(there for _, there, _ in self.produced[at:])])

    def _nearest_hint(self, captured: int) -> list[tuple[int, int]]:
        """The nearest answer about this partition, in a list; empty if there is none."""
        return [min(self.hints, key=lambda pair: abs(pair[0] - captured))] if self.hints else []

    def hint(self, captured: int, replayed: int) -> None:
        """Note the offsets with which both sides answered the same question."""
        at = bisect.bisect_left(self.hints, (captured, -1))
        if at < len(self.hints) and self.hints[at][0] == captured:
            self.hints[at] = captured, replayed
        else:
            self.hints.insert(at, (captured, replayed))

    def stored(self, captured: int) -> int | None:
        """The offset on the target of a record that was produced there; None if it was not, or not yet."""
        at = bisect.bisect_right(self.produced, (captured, 1 << 62, 0))
        base, there, count = self.produced[at - 1] if at else (0, 0, 0)
        return there + captured - base if captured < base + count else None

    def last_before(self, captured: int) -> int | None:
        """The highest offset on the target of the records that were produced there and lie before this offset in the
        capture; None if there are none."""
        at = bisect.bisect_right(self.produced, (captured - 1, 1 << 62, 0))
        before = self.produced[:at] if self.mixed else self.produced[max(at - 1, 0) : at]
        return max((there + min(captured - base, count) - 1 for base, there, count in before), default=None)

    def replayed(self, captured: int) -> int:
        """The offset on the target; special values (negative) stay."""
        if captured < 0:
            return captured
        at = bisect.bisect_right(self.produced, (captured, 1 << 62, 0))
        if at:
            base, there, _ = self.produced[at - 1]
            return there + captured - base
        near = self.guess
        if self.hints:
            # Nothing was produced before it: the nearest answer about this partition is the best that is known.
            near = min(self.hints, key=lambda pair: abs(pair[0] - captured))
        elif self.produced:
            near = self.produced[0][:2]
        if near is None:
            return captured
        there = near[1] + captured - near[0]
        if self.produced:
            # Older than the capture: whatever else is known, the first batch of the replay lies behind it.
            base, first, _ = self.produced[0]
            there = min(there, first + captured - base)
        return max(there, self.log_start)


class Offsets:
    """The offsets of all partitions.

    - `mode`: `AS_IS`, the target is a copy; `SHIFT`, by pairs; `POSITION`, a reader goes on from where its own last
      answer ended
    - `joined`: of an `OffsetMap`, for those that are made from then on
    - `news`: batches that were appended, for a reader that removes them; None: nobody reads them
    """

    joined = False
    news: list[Appended] | None = None

    def __init__(self, mode: str, topics: Topics) -> None:
        self.mode = mode
        self._topics = topics
        self._maps: dict[Partition, OffsetMap] = {}
        self._positions: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._least: dict[Partition, int] = {}  # offsets that captured readers asked for

    def items(self) -> Iterator[tuple[Partition, OffsetMap]]:
        """Give all partitions that something is known of."""
        yield from self._maps.items()

    def map_of(self, where: Partition) -> OffsetMap | None:
        """The offsets of a captured partition."""
        return self._maps.get(where)

    def appended(self, where: Partition, captured: int, replayed: int, count: int) -> None:
        """Note a batch that was appended on both sides."""
        self._map(where).learn(captured, replayed, count)
        if self.news is not None:
            self.news.append((where, captured, replayed, count))

    def guess(self, where: Partition, ends: tuple[int, int]) -> tuple[int, int]:
        """Note where the log ended on both sides, if nothing else is known; return the guess before (0, 0: none)."""
        map_ = self._map(where)
        before, map_.guess = map_.guess or (0, 0), ends
        return before

    def offset(self, where: Partition, captured: int) -> int:
        """Translate an offset of a captured partition, by the mode."""
        known = None if self.mode == AS_IS else self._maps.get(where)
        return captured if known is None else known.replayed(captured)

    def lie_before(self, where: Partition, records: bytes, offset: int) -> bool:
        """Whether all the records that a captured reader got are stored on the target, before this offset. (Nothing
        says where on the target the ends of transactions are, which the reader got with them.)"""
        known = self._maps.get(where)
        data_batches = [
            located
            for located in batches.fetched(records)
            if located[2] is None or not located[2].attributes & batches.CONTROL
        ]
        if known is None or not data_batches:
            return False
        # From the last on, which is the first that a reader lacks.
        ends = (known.stored(end - 1) for _, end, _ in reversed(data_batches))
        return all(end is not None and end < offset for end in ends)

    def unread(
        self, reader: tuple[str, str, int], requested: tuple[int | None, int | None], was: Body | None, now: Body | None
    ) -> int | None:
        """Where a reader goes on after an answer that ended before what the captured reader had by then, and the target
        has stored; None if it has all of it, or nothing says so.

        - `reader`: connection, topic and partition
        - `requested`: the captured offset and the target's that a fetch asked for, if it named the partition
        - `was`, `now`: the captured answer about it, and the target's
        """
        known = None if self.mode == AS_IS else self._maps.get(reader[1:])
        before = self._positions.get(reader, (None, None))
        there, here = (
            read_until(part, place if offset is None else offset)
            for part, place, offset in zip((was, now), before, requested)
        )
        if known is None or there is None or here is None:
            return None
        last = known.last_before(there)
        return here if last is not None and here <= last else None

    def read_from(self, connection: str, where: Partition, captured: int) -> int:
        """Where a reader goes on that asked for this offset in the capture."""
        if 0 <= captured < self._least.get(where, captured + 1):
            self._least[where] = captured
        known = None if self.mode == AS_IS else self._maps.get(where)
        there = captured if known is None else known.start(captured)
        position = self._positions.get((connection, *where))
        if position is None or position[0] != captured:
            return there
        return position[1] if self.mode == POSITION else min(position[1], there)

    def read_older(self) -> list[Partition]:
        """List partitions of which readers asked for records from before the first batch that was produced again."""
        maps = ((where, self._maps.get(where), least) for where, least in self._least.items())
        return sorted(
            where for where, known, least in maps if known and known.produced and least < known.produced[0][0]
        )

    def _map(self, where: Partition) -> OffsetMap:
        known = self._maps.get(where)
        if known is None:
            known = self._maps[where] = OffsetMap(joined=self.joined)
        return known

    # --- as a family ---

    def write(self, step: Step, body: Body) -> None:
        match step.request.api_key:
            case api_keys.OFFSET_COMMIT | api_keys.TXN_OFFSET_COMMIT:
                for where, partition in _named(body):
                    partition["committedOffset"] = self.offset(where, partition["committedOffset"])
                    if "committedLeaderEpoch" in partition:
                        partition["committedLeaderEpoch"] = -1
            case api_keys.ALTER_SHARE_GROUP_OFFSETS:
                for where, partition in _named(body):
                    partition["startOffset"] = self.offset(where, partition["startOffset"])
            case api_keys.SHARE_FETCH | api_keys.SHARE_ACKNOWLEDGE:
                for where, partition in _named(body, known_only=True):
                    for acknowledged in partition.get("acknowledgementBatches") or ():
                        for end in ("firstOffset", "lastOffset"):
                            acknowledged[end] = self.offset(where, acknowledged[end])

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        match step.request.api_key:
            case api_keys.PRODUCE:
                self._learn_produce(step, captured, replayed)
            case api_keys.LIST_OFFSETS:
                self._learn_listed(captured, replayed)
            case api_keys.FETCH:
                self._learn_position(step, sent, captured, replayed)

    def again(self, step: Step, body: Body, rule: str, captured: Body | None, replayed: Body | None) -> None:
        """Do nothing: what is known of a partition only grows."""

    def _learn_produce(self, step: Step, captured: Body | None, replayed: Body) -> None:
        before, after = answered(api_keys.PRODUCE, captured), answered(api_keys.PRODUCE, replayed)
        for topic in step.body["topicData"]:
            name = topic.get(NAME, "")
            for partition in topic["partitionData"]:
                was = before.get((name, partition["index"]))
                now = after.get((self._topics.name(name), partition["index"]))
                if was is None or now is None or was["errorCode"] or now["errorCode"]:
                    continue
                if was["baseOffset"] < 0 or now["baseOffset"] < 0:
                    continue
                self._learn_start((name, partition["index"]), now)
                inside = batches.produced(partition["records"])
                count = sum(batch.last_offset_delta + 1 for batch in inside) or batches.messages(partition["records"])
                self.appended((name, partition["index"]), was["baseOffset"], now["baseOffset"], count)

    def _learn_start(self, where: Partition, answered_: Body) -> None:
        """Learn where the target's log begins, from an answer about a partition."""
        start = answered_.get("logStartOffset", -1)
        if start > 0 and not answered_["errorCode"]:
            known = self._map(where)
            known.log_start = max(known.log_start, start)

    def _learn_listed(self, captured: Body | None, replayed: Body) -> None:
        before = answered(api_keys.LIST_OFFSETS, captured)
        for (topic, partition), now in answered(api_keys.LIST_OFFSETS, replayed).items():
            where = self._topics.captured(topic), partition
            was = before.get(where)
            if was is None or was["errorCode"] or now["errorCode"]:
                continue
            there, here = listed_offset(was), listed_offset(now)
            if there >= 0 and here >= 0:
                self._map(where).hint(there, here)

    def _learn_position(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """Learn where a reader is on both sides: after the records that it got, else where it asked."""
        before = answered(api_keys.FETCH, captured)
        now = {
            (self._topics.captured(topic), number): partition
            for (topic, number), partition in answered(api_keys.FETCH, replayed).items()
        }
        for where, partition in now.items():
            self._learn_start(where, partition)
        asked_there, asked_here = asked_offsets(step.body), asked_offsets(sent)
        for where in (before.keys() | now.keys()) if captured is not None else ():
            reader = step.request.connection, *where
            was = self._positions.get(reader, (None, None))
            there = read_until(before.get(where), asked_there.get(where, was[0]))
            here = read_until(now.get(where), asked_here.get(where, was[1]))
            if there is None or here is None:
                self._positions.pop(reader, None)
            else:
                self._positions[reader] = there, here


def _named(body: Body, known_only: bool = False) -> Iterator[tuple[Partition, Body]]:
    """The partitions of a request by captured name. `known_only`: of topics that have one."""
    for topic in body["topics"]:
        if NAME in topic or not known_only:
            for partition in topic["partitions"]:
                yield (topic.get(NAME, ""), partition["partitionIndex"]), partition


def asked_offsets(fetch: Body) -> dict[Partition, int]:
    """The offsets that a fetch asks for."""
    return {
        (topic, number): partition["fetchOffset"]
        for topic, number, partition in partitions(api_keys.FETCH, fetch)
        if partition is not None and "fetchOffset" in partition
    }


def read_until(partition: Body | None, requested: int | None) -> int | None:
    """The offset after the records of a fetched partition; without records the offset that was asked for. None if the
    bytes are not records, or nothing says it."""
    try:
        end = batches.end_offset((partition or {}).get("records") or b"")
    except batches.BadRecordsError:
        return None
    return requested if end is None else end


def listed_offset(partition: Body) -> int:
    """The offset in an answer to ListOffsets, -1 for none; version 0 has a list of them, the requested one first."""
    listed = partition["offset"] if "offset" in partition else next(iter(partition.get("oldStyleOffsets") or ()), -1)
    return int(listed)
