"""Writes records that captured consumers read and no captured producer wrote, before anything is sent.

In: `Fetched` batches, a `Target`. Out: where each batch is now, and lines for the user. Rules: batches are written in
order of their captured offsets, with acks=all, to the leader of their partition; a partition that the target lacks, or
that refuses a batch, is reported and gets no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import convert
from kwire.replay.plan.fetched_records import Fetched
from kwire.replay.plan.topic_partitions import Partition
from kwire.replay.send.channel import ChannelClosedError
from kwire.replay.send.link import LinkError
from kwire.replay.send.target import Target

_NEWEST: Final = 9
"""Produce by the topic's name, flexible; 7 and newer take zstd (KIP-110)."""
_TIMEOUT_MS: Final = 30_000


@dataclass(slots=True)
class Written:
    """`placed`: (captured partition, captured base offset, offset on the target, records) of each batch."""

    placed: list[tuple[Partition, int, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def write(fetched: Fetched, target: Target, map_topic: Mapping[str, str]) -> Written:
    """Write the batches. Raises LinkError if the target goes away."""
    done = Written()
    for (topic, index), some in sorted(fetched.batches.items()):
        where = map_topic.get(topic, topic), index
        refused = await _partition(done, (topic, index), where, some, target)
        if refused:
            done.notes.append(f"--seed-fetched: {where[0]}-{index}: {refused}")
    records, parts = sum(count for *_, count in done.placed), len({where for where, *_ in done.placed})
    if records:
        note = f"wrote {records:,} records of {parts} partition{'s' * (parts != 1)}, which the capture shows being read"
        done.notes.append(f"--seed-fetched: {note}")
    done.notes += [f"--seed-fetched: {count} {what} are left out" for what, count in fetched.left_out.items() if count]
    return done


async def _partition(
    done: Written, captured: Partition, where: Partition, some: list[tuple[int, int, bytes]], target: Target
) -> str:
    """Write one partition's batches; return why it stopped, empty if it did not."""
    leader = target.topology.leaders.get(where)
    if leader is None:
        return "the target has no such partition; --seed-topics makes topics"
    channel = await target.at(leader)
    version = target.version(api_keys.PRODUCE, _NEWEST)
    for offset, count, data in some:
        # A broker takes one batch of a partition in a request (KIP-98).
        body = convert.fit(api_keys.PRODUCE, version, _produce(where, data))
        try:
            answer = await channel.ask(api_keys.PRODUCE, version, body, 2 * _TIMEOUT_MS / 1000)
        except ChannelClosedError as closed:
            raise LinkError(str(closed), "see the broker's log") from None
        answered = next(_answers(answer), None)
        if answered is None or answered["errorCode"]:
            return errors.label(answered["errorCode"]) if answered is not None else "no answer about it"
        done.placed.append((captured, offset, answered["baseOffset"], count))
    return ""


def _produce(where: Partition, data: bytes) -> Body:
    partition = {"index": where[1], "records": data}
    topic = {"name": where[0], "partitionData": [partition]}
    return {"transactionalId": None, "acks": -1, "timeoutMs": _TIMEOUT_MS, "topicData": [topic]}


def _answers(answer: Body) -> Iterator[Body]:
    for topic in answer["responses"]:
        yield from topic["partitionResponses"]
