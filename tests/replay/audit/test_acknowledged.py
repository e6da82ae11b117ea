"""Which records a target has to have, by hand-made pairs.

Proves: replay/audit/acknowledged.py
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import random
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.records.batches import LOG_APPEND_TIME
from kwire.replay.audit.acknowledged import ExpectedPartition, acknowledged, out_of_order
from kwire.replay.diff.pairs import Pair, decode
from kwire.replay.diff.record_facts import DIGEST, FORMS, Reader
from tests.replay.forging import Body, batch, pair

WHERE = "orders", 0
FIRST, SECOND = "10.0.0.1:50000-10.0.0.2:9092#1", "10.0.0.1:50001-10.0.0.2:9092#1"


def produce(
    values: str,
    left: int | None,
    right: int | None,
    *,
    second: int = 0,
    answered: float | None = None,
    producer: int = -1,
    error: int = 0,
    connection: str = FIRST,
    appended: int = -1,
) -> Pair:
    """Records of one letter each, answered with these base offsets; None: there is no answer. `appended`: the captured
    log append time."""

    def answer(offset: int | None, failed: int = 0, time: int = -1) -> Body | str:
        if offset is None:
            return "not_captured"
        part = {"index": 0, "errorCode": failed, "baseOffset": -1 if failed else offset, "logAppendTimeMs": time}
        return {"responses": [{"name": "orders", "partitionResponses": [part]}]}

    records = batch(*values, producer=producer)
    request = {"acks": -1, "topicData": [{"name": "orders", "partitionData": [{"index": 0, "records": records}]}]}
    captured = answer(left, time=appended)
    return pair("Produce", 8, request, captured, answer(right, error), connection=connection, **at(second, answered))


def at(second: int, answered: float | None = None) -> dict[str, Any]:
    start = datetime.datetime.fromtimestamp(1_700_000_000 + second, datetime.UTC)
    return {
        "request_time": start,
        "response_end": None if answered is None else start + datetime.timedelta(seconds=answered - second),
    }


def audited(
    *pairs: Pair, log: str = "", start: int = 0, ends: Mapping[tuple[str, str], int] | None = None, alone: bool = True
) -> Body:
    """The row of orders-0 where the target has these letters from offset `start` on."""
    partition = acknowledged(pairs, ends or {}, alone)[WHERE]
    partition.read = True
    for offset, value in enumerate(log, start):
        partition.see(Reader().read(batch(value, base_offset=offset)))
    row_of = partition.row(WHERE)
    row_of.pop("alignment")
    return row_of


def row(acknowledged: int, missing: int = 0, first: int | None = None, moved: int = 0, more: int | None = 0) -> Body:
    return {
        "topic": "orders",
        "partition": 0,
        "acknowledged": acknowledged,
        "readable": acknowledged - missing,
        "missing": missing,
        "displaced": 0,
        "out_of_order": moved,
        "first_missing_offset": first,
        "stored_otherwise": 0,
        "stored_as": None,
        "unclaimed": more,
        "hidden": None,
        "visible": None,
        "left_open": None,
        "transactions": [],
    }


def test_all_that_was_acknowledged_is_there() -> None:
    assert audited(produce("ab", 0, 5), produce("c", 2, 7), log="abc", start=5) == row(3)


@pytest.mark.parametrize(("log", "missing", "first"), [("", 3, 5), ("ab", 1, 7), ("axc", 1, 6)])
def test_what_is_not_there_or_is_another_record(log: str, missing: int, first: int) -> None:
    assert audited(produce("ab", 0, 5), produce("c", 2, 7), log=log, start=5) == row(3, missing, first)


def test_what_was_refused_or_not_answered_is_not_awaited() -> None:
    some = produce("a", 0, 0), produce("b", 1, 0, error=10), produce("c", 2, None)
    assert audited(*some, log="a") == row(1, more=None)  # and nobody knows whether it is there
    assert acknowledged(some[1:], {}) == {}


def test_two_batches_that_got_one_offset_are_stored_once() -> None:
    """The target took the second for a duplicate; or it was one in the capture too."""
    assert audited(produce("a", 0, 0, producer=7), produce("b", 1, 0, producer=7), log="a") == row(2, 1, 0)
    assert audited(produce("a", 0, 0, producer=7), produce("a", 0, 0, producer=7), log="a") == row(1)


def test_records_at_offsets_that_no_answer_gave() -> None:
    """A batch that was stored, not answered, and sent again; or one of somebody else's."""
    some = produce("ab", 0, 2), produce("c", 2, 5)
    assert audited(*some, log="ababcc") == row(3, more=3)
    assert acknowledged(some, {}, alone=True)[WHERE].first == 0  # where they begin
    assert audited(*some, log="ababcc", alone=False) == row(3, more=None)
    assert acknowledged(some, {}, alone=False)[WHERE].first == 2
    lost = produce("d", 3, None)
    assert audited(*some, lost, log="ababcc") == row(3, more=None)
    unsent = dataclasses.replace(lost, right=dataclasses.replace(lost.right, state="not_sent"))
    assert audited(*some, unsent, log="ababcc") == row(3, more=3)


def test_a_batch_that_went_behind_others_of_its_producer() -> None:
    some = produce("a", 0, 3, producer=7), produce("b", 1, 0, producer=7), produce("cd", 2, 1, producer=7)
    assert audited(*some, log="bcda") == row(4, moved=1)


def test_two_producers_have_no_order_to_each_other() -> None:
    some = produce("a", 0, 1, producer=7), produce("b", 1, 0, producer=8)
    assert audited(*some, log="ba") == row(2)


def test_a_topic_that_was_made_again_while_captured_has_the_order_of_its_requests() -> None:
    """Captured offsets begin anew there, and the replay, which deletes nothing, has all in one log."""
    some = [produce(value, left, right, producer=7) for value, left, right in zip("abcd", (0, 1, 0, 1), range(4))]
    assert audited(*some, log="abcd") == row(4)
    late = [produce(value, left, right, producer=7) for value, left, right in zip("abcd", (0, 1, 0, 1), (0, 1, 3, 2))]
    assert audited(*late, log="abdc") == row(4, moved=1)


def test_a_client_keeps_its_order_on_connections_that_follow_each_other() -> None:
    """Without a producer id. While both are open there is no order."""
    some = produce("a", 0, 1), produce("b", 1, 0, second=5, connection=SECOND)
    ended = {("capture.pcap", FIRST): 1_700_000_001 * 10**6}
    still_open = {("capture.pcap", FIRST): 1_700_000_009 * 10**6}
    assert audited(*some, log="ba", ends=ended) == row(2, moved=1)
    assert audited(*some, log="ba", ends=still_open) == row(2)


def test_a_client_keeps_its_order_on_connections_that_it_uses_in_turn() -> None:
    """Where it had the answer on one before it sent on the other. Else, and of another client, there is no order."""
    open_until = {("capture.pcap", FIRST): 1_700_000_009 * 10**6}
    first, other = produce("a", 0, 2, answered=1), produce("c", 2, 1, second=9)
    second = produce("b", 1, 0, second=5, connection=SECOND)
    assert audited(first, second, other, log="bca", ends=open_until) == row(3, moved=1)
    assert audited(first, produce("b", 1, 3, second=5, connection=SECOND), log="..ab")["out_of_order"] == 0
    late = produce("a", 0, 1, answered=6)
    assert audited(late, second, log="ba", ends=open_until) == row(2)
    stranger = produce("b", 1, 0, second=5, connection=SECOND.replace("10.0.0.1", "10.0.0.3"))
    assert audited(produce("a", 0, 1, answered=1), stranger, log="ba") == row(2)


def test_what_is_stored_otherwise_than_sent() -> None:
    """By a topic with a codec of its own, or with the broker's times; not where the captured one did so too."""

    def stored(attributes: int, pair: Pair) -> tuple[int | None, str | None]:
        partition = acknowledged([pair], {})[WHERE]
        partition.read = True
        log = bytearray(batch("a", "b"))
        log[21:23] = attributes.to_bytes(2, "big")
        for _ in range(2):  # a record that is fetched twice is one record
            partition.see(Reader().read(bytes(log)))
        row = partition.row(WHERE)
        assert row["missing"] == 0
        return row["stored_otherwise"], row["stored_as"]

    assert stored(0, produce("ab", 0, 0)) == (0, None)
    assert stored(LOG_APPEND_TIME, produce("ab", 0, 0)) == (2, "not compressed, LogAppendTime, format v2")
    assert stored(LOG_APPEND_TIME, produce("ab", 0, 0, appended=5)) == (0, None)
    assert stored(0, produce("ab", 0, 0, appended=5)) == (2, "not compressed, CreateTime, format v2")


def test_a_codec_of_the_topics_own() -> None:
    partition = acknowledged([produce("ab", 0, 0)], {})[WHERE]
    partition.read = True
    plain = Reader().read(batch("a", "b"))
    gzip = next(at for at, form in enumerate(FORMS) if form == ("gzip", False, 2))
    partition.see(dataclasses.replace(record, form=gzip) for record in plain)
    row = partition.row(WHERE)
    assert (row["stored_otherwise"], row["stored_as"]) == (2, "gzip, CreateTime, format v2")


def test_what_the_replay_deleted_is_not_awaited() -> None:
    def deleting(low: int) -> Pair:
        request = {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "offset": low}]}]}
        part = {"partitionIndex": 0, "lowWatermark": low, "errorCode": 0}
        answer = {"topics": [{"name": "orders", "partitions": [part]}]}
        return pair("DeleteRecords", 1, request, answer, answer)

    gone = pair("DeleteTopics", 3, {"topicNames": ["orders"]}, {}, {"responses": [{"name": "orders", "errorCode": 0}]})
    some = produce("a", 0, 0), produce("b", 1, 1)
    assert audited(*some, deleting(1), log="b", start=1) == row(1)
    assert acknowledged([*some, gone], {}) == {}
    assert audited(*some, gone, produce("c", 0, 0), log="c") == row(1)


def test_what_could_not_be_read_is_not_said_to_be_missing() -> None:
    partition = acknowledged([produce("a", 0, 0)], {})[WHERE]
    assert isinstance(partition, ExpectedPartition)
    row = partition.row(WHERE)
    assert (row["acknowledged"], row["readable"], row["missing"], row["first_missing_offset"]) == (
        1,
        None,
        None,
        None,
    )


def test_a_batch_of_one_record_takes_little_memory() -> None:
    """Of a day that is millions of them; the bound leaves room for what sorts them."""
    count = 20_000
    tracemalloc.start()
    try:
        partition = ExpectedPartition()
        for at in range(count):
            partition.add(2 * at, at, at % 7, at.to_bytes(DIGEST, "big"))
        partition.settle()
        memory, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert partition.row(WHERE)["acknowledged"] == count
    assert (memory / count, most / count) < (120, 200)


def test_records_out_of_order_are_those_that_a_plain_count_finds() -> None:
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randint(0, 12)
        base = rng.sample(range(30), count)
        rows = [
            (rng.randrange(3), rng.choice((-1, at, count - at)), base[at], rng.randint(1, 4)) for at in range(count)
        ]
        moved = 0
        for writer in range(3):
            written = [row for row in rows if row[0] == writer]
            if all(captured >= 0 for _, captured, _, _ in written):
                written.sort(key=lambda row: row[1])
            rising = [
                some
                for size in range(len(written), -1, -1)
                for some in itertools.combinations(written, size)
                if all(first[2] < other[2] for first, other in itertools.pairwise(some))
            ]
            longest = max(map(len, rising))
            lost = {sum(row[3] for row in written if row not in some) for some in rising if len(some) == longest}
            moved += min(lost)
            if len(lost) > 1:
                break  # several parts are as long, and any of them will do
        else:
            columns = np.array(rows, np.int64).reshape(-1, 4).T
            assert out_of_order(*columns) == moved


def test_bodies_that_are_decoded_together_are_those_that_are_decoded_alone() -> None:
    alone, together = (produce("ab", 0, 5) for _ in range(2))
    decode([together])
    assert together.left._decoded.keys() == {"request", "answer"}
    assert together.left.request_body() == alone.left.request_body()
    for first, other in ((together.left, alone.left), (together.right, alone.right)):
        answer, expected = first.decoded_answer(0), other.decoded_answer(0)
        assert answer is not None
        assert expected is not None
        assert (answer.body, answer.status, answer.reason) == (expected.body, expected.status, expected.reason)
