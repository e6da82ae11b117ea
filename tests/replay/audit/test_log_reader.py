"""Partitions read back from a target that answers from a script, in a time of its own.

Proves: replay/audit/log_reader.py
"""

from __future__ import annotations

from typing import Any

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.audit import log_reader
from kwire.replay.audit.acknowledged import ExpectedPartition, Where
from kwire.replay.diff.record_facts import Reader
from kwire.replay.remap.topology import Topology
from kwire.replay.send.channel import connect
from kwire.replay.send.target import Target
from tests.replay import conversation
from tests.replay.forging import batch

WHERE: Where = ("orders", 0)


def wanted(values: str, base: int) -> ExpectedPartition:
    digests = b"".join(record.digest for record in Reader().read(batch(*values)))
    partition = ExpectedPartition()
    partition.add(base, base, 0, digests)
    partition.settle()
    return partition


def answer(records: bytes, end: int, error: int = 0) -> Body:
    part = {"partitionIndex": 0, "errorCode": error, "highWatermark": end, "records": records}
    return {"responses": [{"topic": "orders", "partitions": [part]}]}


def metadata(leader: int = 1) -> Body:
    """The target's metadata of the topic: its leader, or an error."""
    if leader > 1:
        return {**metadata(), "topics": [{"errorCode": leader, "name": "orders", "partitions": []}]}
    part = {"errorCode": 0, "partitionIndex": 0, "leaderId": leader, "replicaNodes": [1], "isrNodes": [1]}
    return {
        "brokers": [{"nodeId": 1, "host": "target", "port": 9092}],
        "topics": [{"errorCode": 0, "name": "orders", "partitions": [part]}],
    }


def started(offset: int) -> Body:
    return {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "offset": offset}]}]}


def read(
    partition: ExpectedPartition, *fetched: Any, leaders: tuple[int, ...] = (1,), start: int = 0, where: Where = WHERE
) -> tuple[Body, list[str]]:
    """The partition's row, and why it could not be read, where the target answers fetches with these."""
    script = conversation.Target().on(api_keys.METADATA, *map(metadata, leaders))
    if fetched:
        script.on(api_keys.FETCH, *fetched)
    script.on(api_keys.LIST_OFFSETS, started(start))

    async def run() -> list[str]:
        channel = await connect(script.dial, "target", 9092)
        offers = {api_keys.METADATA: (0, 9), api_keys.FETCH: (4, 17), api_keys.LIST_OFFSETS: (1, 6)}
        target = Target(offers, Topology(nodes=dict(script.nodes)), channel, script.dial)
        return await log_reader.read(target, {where: partition})

    failed: list[str] = conversation.play(run())
    assert {request.version for request in script.requests(api_keys.FETCH)} == ({12} if fetched else set())
    return partition.row(where), failed


def test_fetch_after_fetch_until_the_last_awaited_record() -> None:
    offsets: list[int] = []

    def fetched(body: Body) -> Body:
        at = body["topics"][0]["partitions"][0]["fetchOffset"]
        offsets.append(at)
        return answer(batch("abcde"[at], base_offset=at), 9)

    row, failed = read(wanted("bcd", 1), fetched)
    assert (row["readable"], row["missing"], failed, offsets) == (3, 0, [], [1, 2, 3])


def test_what_lies_behind_the_end_is_awaited_and_then_missing() -> None:
    row, failed = read(wanted("ab", 0), answer(batch("a"), 1), answer(b"", 1))
    assert (row["readable"], row["missing"], row["first_missing_offset"], failed) == (1, 1, 1, [])


def test_records_that_come_late_are_there() -> None:
    row, _ = read(wanted("a", 0), *[answer(b"", 0)] * 5, answer(batch("a"), 1))
    assert (row["readable"], row["missing"]) == (1, 0)


def test_what_was_deleted_from_the_front_is_missing() -> None:
    gone = answer(b"", 2, errors.OFFSET_OUT_OF_RANGE)
    row, _ = read(wanted("ab", 0), gone, answer(batch("b", base_offset=1), 2), start=1)
    assert (row["readable"], row["missing"], row["first_missing_offset"]) == (1, 1, 0)


def test_a_batch_whose_records_were_compacted_away() -> None:
    """Its end is known from its header."""
    empty = bytearray(batch("x", "y"))
    empty[57:61] = (0).to_bytes(4, "big")
    empty = empty[:61]
    empty[8:12] = (49).to_bytes(4, "big")
    row, failed = read(wanted("abc", 0), answer(bytes(empty), 3), answer(batch("c", base_offset=2), 3))
    assert (row["readable"], row["missing"], row["first_missing_offset"], failed) == (1, 2, 0, [])


def test_a_leader_that_is_not_there_yet() -> None:
    row, _ = read(wanted("a", 0), answer(batch("a"), 1), leaders=(-1, -1, 1))
    assert row["missing"] == 0


def test_a_topic_that_is_gone_has_nothing() -> None:
    row, failed = read(wanted("ab", 0), answer(b"", -1, errors.UNKNOWN_TOPIC_OR_PARTITION))
    assert (row["missing"], failed) == (2, [])


def test_a_topic_that_was_deleted_before_the_audit_began_has_nothing() -> None:
    """Metadata says so already, and nobody is there to be asked for records."""
    row, failed = read(wanted("ab", 0), leaders=(errors.UNKNOWN_TOPIC_OR_PARTITION,))
    assert (row["missing"], failed) == (2, [])


def test_a_partition_that_its_topic_has_not_any_more_has_nothing() -> None:
    """The topic was deleted, and made again with fewer."""
    row, failed = read(wanted("ab", 0), where=("orders", 3))
    assert (row["missing"], failed) == (2, [])


def test_a_topic_that_may_not_be_seen_is_told() -> None:
    """Metadata refuses it, and it is not said to have no leader, nor to be gone."""
    row, failed = read(wanted("ab", 0), leaders=(errors.TOPIC_AUTHORIZATION_FAILED,))
    assert (row["readable"], failed) == (None, ["orders-0 could not be read: TOPIC_AUTHORIZATION_FAILED (29)"])


def test_what_may_not_be_read_is_told() -> None:
    row, failed = read(wanted("ab", 0), answer(b"", -1, errors.TOPIC_AUTHORIZATION_FAILED))
    assert (row["acknowledged"], row["readable"]) == (2, None)
    assert failed == ["orders-0 could not be read: TOPIC_AUTHORIZATION_FAILED (29)"]
