"""Compares what a target holds after a replay, read by an independent client, with what was stored when captured.

In: a RUN's pairs. Out: sentences, one for each thing that is not as it must be; none if all is well. What must hold,
for each topic-partition: the same records (key, value, headers) as the captured produce requests that were
acknowledged, as often; in order per producer; committed transactions visible and others not; the groups' committed
offsets at the same records.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from kwire.analyzer.protocol import api_keys
from kwire.replay.diff.correspondence import Correspondence, TopicNames
from kwire.replay.diff.learning import learn
from kwire.replay.diff.pairs import Pair
from kwire.replay.diff.record_facts import Reader

Where = tuple[str, int]
SECONDS = 60.0


@dataclass(slots=True)
class Expected:
    """The records that a partition must hold. `maybe`: was sent and not acknowledged; `by_producer`: in which order."""

    records: Counter[bytes] = field(default_factory=Counter)
    maybe: Counter[bytes] = field(default_factory=Counter)
    aborted: Counter[bytes] = field(default_factory=Counter)
    by_producer: dict[Any, list[bytes]] = field(default_factory=dict)


def expected(pairs: Sequence[Pair], called: TopicNames) -> dict[Where, Expected]:
    """From the captured requests that were replayed, and the captured answers to them."""
    reader = Reader()
    result: dict[Where, Expected] = {}
    open_transactions: dict[int, list[tuple[Expected, bytes]]] = {}
    for pair in pairs:
        if pair.right.request is None:
            continue
        produced, answered = pair.left.request_body(), pair.left.decoded_answer(pair.api_key)
        if produced is None:
            continue
        if pair.api_key == api_keys.END_TXN:
            ended = open_transactions.pop(produced["producerId"], [])
            if not produced["committed"]:
                for partition, digest in ended:
                    partition.aborted[digest] += 1
        if pair.api_key != api_keys.PRODUCE:
            continue
        errors = {
            (called.of(topic), partition["index"]): partition["errorCode"]
            for topic in ((answered.body or {}) if answered is not None else {}).get("responses", ())
            for partition in topic["partitionResponses"]
        }
        for topic in produced["topicData"]:
            for partition in topic["partitionData"]:
                where = called.of(topic), partition["index"]
                into = result.setdefault(where, Expected())
                records = reader.read(partition["records"] or b"")
                if errors.get(where) == 0:
                    into.records.update(record.digest for record in records)
                    for record in records:
                        key = record.producer_id if record.producer_id >= 0 else pair.row["connection"]
                        into.by_producer.setdefault(key, []).append(record.digest)
                        if record.transactional:
                            open_transactions.setdefault(record.producer_id, []).append((into, record.digest))
                else:  # nobody said whether it was stored, or the target may have taken what was refused
                    into.maybe.update(record.digest for record in records)
    for ended in open_transactions.values():  # never ended: not visible either
        for partition, digest in ended:
            partition.aborted[digest] += 1
    return result


def digest_of(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """As `replay.contents.Record.digest`."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (key, value, *(part for name, content in headers for part in (name.encode(), content))):
        digest.update(((1 << 64) - 1 if part is None else len(part)).to_bytes(8, "big"))
        digest.update(part or b"")
    return digest.digest()


def stored(bootstrap: str, topics: Iterable[str], isolation: str = "read_uncommitted") -> dict[Where, list[bytes]]:
    """Read what the target holds, in order of offsets, as librdkafka reads it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "auditing",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        known = consumer.list_topics(timeout=SECONDS).topics
        places = [(topic, index) for topic in topics if topic in known for index in known[topic].partitions]
        records: dict[Where, list[bytes]] = {place: [] for place in places}
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for topic, index in places])
        ended: set[Where] = set()
        while len(ended) < len(places):
            message = consumer.poll(SECONDS)
            if message is None:
                raise TimeoutError(f"partitions {sorted(set(places) - ended)} did not come to their end")
            where = message.topic(), message.partition()
            if message.error() is None:
                records[where].append(digest_of(message.key(), message.value(), message.headers() or ()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(where)
            else:
                raise RuntimeError(f"{where}: {message.error()}")
        return records
    finally:
        consumer.close()


def more_than_sent(pairs: Sequence[Pair], bootstrap: str) -> dict[Where, int]:
    """How many records partitions hold beyond what was sent to them, where it is any."""
    wanted = expected(pairs, learn(pairs).left)
    have = stored(bootstrap, sorted({topic for topic, _ in wanted}))
    excess = {
        where: (Counter(have.get(where, ())) - expectation.records - expectation.maybe).total()
        for where, expectation in wanted.items()
    }
    return {where: more for where, more in excess.items() if more}


def audit(pairs: Sequence[Pair], bootstrap: str, times: int = 1) -> Iterator[str]:
    """`times`: how often the capture was replayed at this target."""
    correspondence = learn(pairs)
    wanted = expected(pairs, correspondence.left)
    topics = sorted({topic for topic, _ in wanted})
    everything = stored(bootstrap, topics)
    visible = stored(bootstrap, topics, "read_committed")
    for where, want in sorted(wanted.items()):
        have = Counter(everything.get(where, ()))
        must = Counter({digest: count * times for digest, count in want.records.items()})
        may = Counter({digest: count * times for digest, count in want.maybe.items()})
        if missing := (must - have).total():
            yield f"{where}: {missing} of {must.total()} records are missing"
        if extra := (have - must - may).total():
            yield f"{where}: {extra} records more than the captured {must.total()}"
        for producer, digests in want.by_producer.items():
            if not _in_order(digests, everything.get(where, ())):
                yield f"{where}: records of producer {producer} are out of order"
        aborted = Counter({digest: count * times for digest, count in want.aborted.items()})
        shown = Counter(visible.get(where, ()))
        if shown - (must - aborted) - may:
            yield f"{where}: records of transactions that did not commit are visible"
        if must - aborted - shown:
            yield f"{where}: {(must - aborted - shown).total()} committed records are not visible"
    yield from _audit_groups(pairs, correspondence, bootstrap)


def _in_order(wanted: Iterable[bytes], have: Iterable[bytes]) -> bool:
    rest = iter(have)
    return all(any(record == other for other in rest) for record in wanted)


def _accepted(answer: dict[str, Any], called: TopicNames) -> set[Where]:
    return {
        (called.of(topic), partition["partitionIndex"])
        for topic in answer.get("topics", ())
        for partition in topic["partitions"]
        if not partition["errorCode"]
    }


def _audit_groups(pairs: Sequence[Pair], correspondence: Correspondence, bootstrap: str) -> Iterator[str]:
    committed: dict[str, dict[Where, int]] = {}
    for pair in pairs:
        if pair.api_key != api_keys.OFFSET_COMMIT or pair.right.request is None:
            continue
        body, answered = pair.left.request_body(), pair.left.decoded_answer(pair.api_key)
        if body is None or answered is None or answered.body is None:
            continue
        fine = _accepted(answered.body, correspondence.left)
        answer = pair.right.decoded_answer(pair.api_key)
        accepted = _accepted((answer.body or {}) if answer is not None else {}, correspondence.right)
        for topic in body["topics"]:
            for partition in topic["partitions"]:
                where = correspondence.left.of(topic), partition["partitionIndex"]
                offsets = committed.setdefault(body["groupId"], {})
                if where in fine & accepted:
                    offsets[where] = partition["committedOffset"]
                elif where in fine | accepted:  # one side refused it, which the comparison tells
                    offsets.pop(where, None)
    if not committed:
        return
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for group, offsets in sorted(committed.items()):
        if not offsets:
            continue
        asking = [TopicPartition(topic, index) for topic, index in offsets]
        future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, asking)])[group]
        for partition in future.result(SECONDS).topic_partitions:
            captured = offsets[partition.topic, partition.partition]
            verdict = correspondence.position(partition.topic, partition.partition, captured, partition.offset)
            if verdict not in ("same", "interleaved"):
                name = f"{partition.topic}-{partition.partition}"
                yield f"group {group}: {name} is at {partition.offset}, captured {captured} ({verdict})"
