"""Collects records that the capture shows being read but not produced: older ones, or those of other producers. Pure.

In: captured sessions, and the captured cluster. Out: batches by partition, in order of offsets, as they can be
produced: without a producer, a transaction and the broker's own marks. Rules: each batch once, no matter how often it
was read. Left out are markers and transactions that the answer lists as aborted; also, and counted, batches that a
producer could not send (old message sets, batches with gaps from compaction) and those of topics without a name.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.batches import Batch
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.sessions import Decoded, Session
from kwire.replay.plan.topic_partitions import Partition, answered, name_answer, name_topics

_READS: Final = (api_keys.FETCH, api_keys.SHARE_FETCH)
_CODEC: Final = 7
"""Attributes that a producer sets, without those of a transaction."""
_ATTRIBUTES_AT: Final = 21
NO_BATCHES, HOLES = "old message sets", "batches with holes"
UNNAMED = "answers about topic ids that nothing names (--map-topic ID=NAME)"


@dataclass(slots=True)
class Fetched:
    """Records to be written first.

    - `batches`: by captured partition, (captured base offset, records, the batch) in order of offsets
    - `left_out`: how many could not be produced, by reason
    """

    batches: dict[Partition, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def records(self) -> int:
        return sum(count for some in self.batches.values() for _, count, _ in some)


def unproduced(sessions: Iterable[Session], cluster: Cluster) -> Fetched:
    """Collect what answers to Fetch and ShareFetch contain that was not produced while the capture ran."""
    stored: dict[Partition, set[int]] = {}
    read: dict[Partition, dict[int, bytes]] = {}
    fetched = Fetched()
    for session in sessions:
        for request in session.requests if not session.copy else ():
            if request.row["api_key"] == api_keys.PRODUCE:
                for where, offset in _appended(Decoded(request), cluster.topic_names):
                    stored.setdefault(where, set()).add(offset)
            elif request.row["api_key"] in _READS and request.answer is not None:
                for where, batch, data in _read(Decoded(request), cluster.topic_names, fetched.left_out):
                    read.setdefault(where, {}).setdefault(batch.base_offset, data)
    for where, some in read.items():
        stored_offsets = stored.get(where, set())
        left = [(offset, *_producible(some[offset])) for offset in sorted(some.keys() - stored_offsets)]
        fetched.left_out[HOLES] += sum(data is None for _, _, data in left)
        remaining = [(offset, count, data) for offset, count, data in left if data is not None]
        if remaining:
            fetched.batches[where] = remaining
    return fetched


def shifted(fetched: Fetched, delta_ms: int) -> Fetched:
    """Move the times of these records."""
    if not delta_ms:
        return fetched
    return replace(
        fetched,
        batches={
            where: [(at, count, _shifted(data, delta_ms)) for at, count, data in some]
            for where, some in fetched.batches.items()
        },
    )


def _shifted(data: bytes, delta_ms: int) -> bytes:
    moved = bytearray(data)
    batches.shift_times(moved, 0, len(moved), delta_ms)
    return bytes(moved)


def _appended(message: Decoded, by_id: Mapping[str, str]) -> Iterator[tuple[Partition, int]]:
    """Give (partition, offset) of each batch that the broker accepted."""
    if message.body is None or message.answer is None:
        return
    name_topics(api_keys.PRODUCE, message.body, by_id)
    name_answer(api_keys.PRODUCE, message.answer, by_id)
    answers = answered(api_keys.PRODUCE, message.answer)
    for topic in message.body["topicData"]:
        name = topic.get("name") or by_id.get(topic.get("topicId", ""), "")
        for part in topic["partitionData"]:
            answer = answers.get((name, part["index"]))
            if answer is None or answer["errorCode"] or answer["baseOffset"] < 0:
                continue
            offset = answer["baseOffset"]
            for batch in batches.produced(part["records"]):
                yield (name, part["index"]), offset
                offset += batch.last_offset_delta + 1


def _read(
    message: Decoded, by_id: Mapping[str, str], left_out: Counter[str]
) -> Iterator[tuple[Partition, Batch, bytes]]:
    """Give (partition, batch, bytes) of each batch in the answer that a reader would not skip."""
    if message.answer is None:
        return
    key = message.request.api_key
    name_answer(key, message.answer, by_id)
    for where, part in answered(key, message.answer).items():
        records = part.get("records")
        if not records or where[0].startswith("__"):
            continue
        if not where[0]:
            left_out[UNNAMED] += 1
            continue
        try:
            inside = list(batches.batches(records))
        except batches.BadRecordsError:
            left_out[NO_BATCHES] += 1
            continue
        for batch in _committed(inside, part):
            yield where, batch, records[batch.at : batch.at + batch.size]


def _committed(some: Iterable[Batch], part: Body) -> Iterator[Batch]:
    """Leave out markers, and transactions that `abortedTransactions` lists (KIP-98: each from its first offset to its
    marker)."""
    beginning = sorted(
        (transaction["firstOffset"], transaction["producerId"]) for transaction in part.get("abortedTransactions") or ()
    )
    aborting: set[int] = set()
    for batch in some:
        while beginning and beginning[0][0] <= batch.base_offset + batch.last_offset_delta:
            aborting.add(beginning.pop(0)[1])
        if batch.attributes & batches.CONTROL:
            aborting.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in aborting):
            yield batch


def _producible(data: bytes) -> tuple[int, bytes | None]:
    """Give (records, the batch as a producer without an id sends it); None if none could."""
    (batch,) = batches.batches(data)
    if batch.count != batch.last_offset_delta + 1:
        return max(batch.count, 0), None
    sealed = bytearray(data)
    struct.pack_into(">q", sealed, 0, 0)
    struct.pack_into(">h", sealed, _ATTRIBUTES_AT, batch.attributes & _CODEC)
    batches.set_producer(sealed, 0, batch.size, batches.NO_PRODUCER, -1, -1)
    return batch.count, bytes(sealed)
