"""Reads a target's partitions, from the first record that it acknowledged to the last.

In: what was acknowledged (`acknowledged`), a `Target`. Out: each partition has seen what is there. Rules: nothing is
written, no group is joined; what is not there yet (behind the high watermark, no leader) is waited for, `PATIENCE`
seconds in all; what cannot be read is left unread, and the reason told.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.captures.errors import message_of
from kwire.replay.audit.acknowledged import ExpectedPartition, Where
from kwire.replay.diff.correspondence import visible
from kwire.replay.diff.record_facts import Reader
from kwire.replay.plan import batches, convert
from kwire.replay.send.channel import ChannelClosedError
from kwire.replay.send.link import LinkError
from kwire.replay.send.target import Target

PATIENCE: Final = 10.0
"""Seconds for which what is not there yet is waited for, and one answer."""
_MOST: Final = 8 << 20
"""Bytes that one answer may have; a batch that is larger comes whole all the same (KIP-74)."""
_LARGEST: Final = 64 << 20
_PAUSE: Final = 0.1
_NEWEST: Final = 12
"""The last version of Fetch that names topics (KIP-516)."""
_PASSING: Final = frozenset(
    (
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.LEADER_NOT_AVAILABLE,
        errors.NOT_LEADER_OR_FOLLOWER,
        errors.REPLICA_NOT_AVAILABLE,
        errors.FENCED_LEADER_EPOCH,
        errors.UNKNOWN_LEADER_EPOCH,
        errors.UNKNOWN_TOPIC_ID,
        errors.KAFKA_STORAGE_ERROR,
        errors.OFFSET_NOT_AVAILABLE,
        errors.INCONSISTENT_TOPIC_ID,
    )
)

_GONE: Final = frozenset((errors.UNKNOWN_TOPIC_OR_PARTITION, errors.UNKNOWN_TOPIC_ID))
"""Of these, those that mean in the end: it is not there, and nothing of what it had."""


async def read(target: Target, partitions: dict[Where, ExpectedPartition]) -> list[str]:
    """Read all of them, one after the other; returns why some could not be. Raises LinkError where the target does not
    serve Fetch."""
    if api_keys.FETCH not in target.offers:
        raise LinkError(f"{target.channel.address}: does not offer {api_keys.name(api_keys.FETCH)}", "is it Kafka?")
    await target.learn(sorted({topic for topic, _ in partitions}))
    failed = []
    patience = _Patience()
    for where, partition in sorted(partitions.items()):
        reason = await _Reading(target, where, partition, patience).run()
        if reason:
            failed.append(f"{where[0]}-{where[1]} could not be read: {reason}")
            continue
        partition.finish()
        ended = partition.ended
        if ended is not None:
            reading = _Reading(target, where, partition, patience, committed=True)
            reason = await reading.run(*ended)
            if reason:
                failed.append(f"{where[0]}-{where[1]} could not be read at read_committed: {reason}")
            else:
                partition.decided = reading.reached
    return failed


class _Patience:
    """Time that is left for retries, shared by all partitions."""

    def __init__(self) -> None:
        self._left = PATIENCE

    async def wait(self) -> bool:
        """Wait a while; False where there was enough of that."""
        if self._left <= 0:
            return False
        self._left -= _PAUSE
        await asyncio.sleep(_PAUSE)
        return True


class _Reading:
    """Of one partition. `committed`: as a consumer of committed records reads it; `reached`: up to which offset."""

    def __init__(
        self, target: Target, where: Where, partition: ExpectedPartition, patience: _Patience, committed: bool = False
    ) -> None:
        self.reached = 0
        self._committed = committed
        self._target = target
        self._where = where
        self._partition = partition
        self._reader = Reader()
        self._patience = patience
        self._most = _MOST

    async def run(self, at: int | None = None, end: int | None = None) -> str:
        """Read it, by default all that is awaited; why that did not go, empty where it did."""
        at = self._partition.first if at is None else at
        end = self._partition.end if end is None else end
        while at < end:
            self.reached = at
            answer = await self._fetched(at)
            if isinstance(answer, str):
                if not await self._again():
                    return answer
                continue
            code = answer["errorCode"]
            if code == errors.OFFSET_OUT_OF_RANGE:
                start = await self._start()
                if start is not None and at < start:
                    at = start  # what was before is deleted
                elif not await self._again():
                    return ""  # it ends before: the rest is missing
            elif code in _PASSING:
                if not await self._again():
                    return "" if code in _GONE else errors.label(code)
            elif code:
                return errors.label(code)
            else:
                before, at = at, self._took(at, answer)
                self.reached = at
                if at == before and self._is_open(at):
                    return ""  # a transaction that did not end in the capture either
                if at == before and answer["records"] and self._most < _LARGEST:
                    self._most *= 2  # an old broker cuts off what is larger
                elif at == before and not await self._patience.wait():
                    return ""
        return ""

    def _is_open(self, at: int) -> bool:
        """Does a reader of committed records wait here for a transaction that no EndTxn has ended?"""
        number = self._partition.transaction_at(at) if self._committed else -1
        return number >= 0 and number not in self._partition.ends

    def _took(self, at: int, answer: Body) -> int:
        """See the records of an answer; the offset behind them."""
        data = answer["records"] or b""
        records = self._reader.read(data)
        if self._committed:
            shown = visible(records, answer.get("abortedTransactions") or ())
            self._partition.see_committed(record for record in shown if record.offset >= at)
        else:
            self._partition.see(record for record in records if record.offset >= at)
        ends = [record.offset + 1 for record in records[-1:]]
        # A batch from which records were compacted away ends where it did before.
        ends += [batch.base_offset + batch.last_offset_delta + 1 for batch in batches.produced(data)]
        return max([at, *ends])

    async def _again(self) -> bool:
        """Wait a while, and ask who leads by now; False where there was enough of that."""
        if not await self._patience.wait():
            return False
        await self._target.learn([self._where[0]])
        return True

    async def _start(self) -> int | None:
        """Where the partition begins."""
        topic, index = self._where
        listed = await self._target.ends([topic], api_keys.START_OF_LOG)
        return listed[index] if index < len(listed) else None

    async def _fetched(self, offset: int) -> Body | str:
        """The partition's part of an answer, or why there is none."""
        topic, index = self._where
        topology = self._target.topology
        leader = topology.leaders.get(self._where)
        if leader is None:
            code = self._target.refused.get(topic, errors.NONE)
            if not code and index >= topology.partitions.get(topic, index + 1):
                code = errors.UNKNOWN_TOPIC_OR_PARTITION  # the topic was made again, with fewer
            return {"errorCode": code} if code else "no leader"
        version = convert.choose(_NEWEST, self._target.offers[api_keys.FETCH])
        part = {
            "partition": index,
            "currentLeaderEpoch": -1,
            "fetchOffset": offset,
            "lastFetchedEpoch": -1,
            "logStartOffset": -1,
            "partitionMaxBytes": self._most,
        }
        topic_request = {"topic": topic, "partitions": [part]}
        if topic in topology.topic_ids:
            topic_request["topicId"] = topology.topic_ids[topic]
        body = {
            "replicaId": -1,
            "maxWaitMs": 0,
            "minBytes": 1,
            "maxBytes": self._most,
            "isolationLevel": int(self._committed),
            "sessionId": 0,
            "sessionEpoch": -1,
            "topics": [topic_request],
            "forgottenTopicsData": [],
            "rackId": "",
        }
        try:
            channel = await self._target.at(leader)
            answer = await channel.ask(api_keys.FETCH, version, convert.fit(api_keys.FETCH, version, body), PATIENCE)
        except (LinkError, ChannelClosedError) as failure:
            self._target.others.pop(leader, None)
            return message_of(failure)
        if answer.get("errorCode"):
            return errors.label(answer["errorCode"])
        partitions: list[Body] = [partition for each in answer["responses"][:1] for partition in each["partitions"][:1]]
        return partitions[0] if partitions else "an answer without it"
