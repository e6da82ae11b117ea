"""The last fetch of a connection, at a target that cuts its answers at other places, in conversations. See
`test_engine.py` for how these tests read.

Proves: replay/remap/unread.py, replay/send/step_sender.py
"""

from __future__ import annotations

import gzip
import struct
import zlib

from kwire.analyzer.protocol import api_keys, tree
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.remap import retry
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import Captured, Target, replayed

FIRST, SECOND, THIRD = (batch(count=count) for count in (3, 2, 4))
STORED = ((50, FIRST), (53, SECOND), (55, THIRD))
"""Where the target has the batches, which the capture has at 0, 3 and 5."""


def test_it_reads_on_until_it_has_what_the_captured_one_had() -> None:
    target = writable().on(api_keys.FETCH, one_batch)

    run = replayed([capture()], target, topics={"orders": 1})

    assert wanted_offsets(target) == [50, 53, 55]
    (fetch,) = run.of(api_keys.FETCH)
    assert (fetch.verdict, fetch.retries) == ("answered", ["read_on"] * 2)
    assert offsets_in(fetch.answer) == [50, 53, 55]
    # It is recorded as it was sent first.
    assert fetch.request is not None
    sent = tree.decode_request(bytes(fetch.request), exact=True).body
    assert sent is not None
    assert sent["topics"][0]["partitions"][0]["fetchOffset"] == 50


def test_what_a_later_fetch_asks_for_it_leaves_to_that() -> None:
    """The captured reader's next fetch found nothing, and asks from where this one ended here."""
    reading = capture()
    reading.add(0.4, api_keys.FETCH, 4, fetch_from(9), fetched(b""))
    target = writable().on(api_keys.FETCH, one_batch)

    run = replayed([reading], target, topics={"orders": 1})

    assert wanted_offsets(target) == [50, 53, 55]
    assert ["read_on" in fetch.retries for fetch in run.of(api_keys.FETCH)] == [False, True]


def test_a_batch_that_is_cut_off_is_there_once() -> None:
    target = writable().on(api_keys.FETCH, fetched(at(50, FIRST) + at(53, SECOND)[:-5]), one_batch)

    run = replayed([capture()], target, topics={"orders": 1})

    assert wanted_offsets(target) == [50, 53, 55]
    answer = run.of(api_keys.FETCH)[0].answer
    assert offsets_in(answer) == [50, 53, 55]
    assert records_in(answer) == b"".join(at(*stored) for stored in STORED)


def test_what_does_not_come_is_waited_for_only_so_long() -> None:
    limits = retry.Limits()
    target = writable().on(api_keys.FETCH, fetched(at(50, FIRST)), fetched(b""))

    run = replayed([capture()], target, topics={"orders": 1})

    assert limits.records < run.seconds < limits.records + 2
    assert offsets_in(run.of(api_keys.FETCH)[0].answer) == [50]


def test_a_target_that_gives_the_same_again_is_asked_no_more() -> None:
    target = writable().on(api_keys.FETCH, fetched(at(50, FIRST)))

    run = replayed([capture()], target, topics={"orders": 1})

    assert wanted_offsets(target) == [50, 53]
    assert offsets_in(run.of(api_keys.FETCH)[0].answer) == [50]


def test_old_message_sets_are_read_on_too() -> None:
    """A broker that makes message sets of batches gives that of the first, and of others what fits (KIP-283)."""
    old = Captured()
    for number, (base, count) in enumerate(((0, 3), (3, 2))):
        body = produced(packed(*range(count)))
        del body["transactionalId"]
        old.add(number / 10, api_keys.PRODUCE, 2, body, old_answer(base))
    old.add(0.3, api_keys.FETCH, 4, fetch_from(0), fetched(packed(0, 1, 2) + packed(3, 4)))
    target = Target().on(api_keys.PRODUCE, old_answer(50), old_answer(53))
    target.on(api_keys.FETCH, fetched(packed(50, 51, 52)), fetched(packed(53, 54)))

    run = replayed([old], target, topics={"orders": 1})

    assert wanted_offsets(target) == [50, 53]
    assert run.of(api_keys.FETCH)[0].retries == ["read_on"]


def test_an_error_ends_it_and_is_not_its_answer() -> None:
    target = writable().on(api_keys.FETCH, fetched(at(50, FIRST)), fetched(b"", error=1))

    run = replayed([capture()], target, topics={"orders": 1})

    (fetch,) = run.of(api_keys.FETCH)
    assert (fetch.verdict, fetch.reason) == ("answered", None)
    assert offsets_in(fetch.answer) == [50]


def test_of_a_session_only_the_partition_that_lacks_records_is_asked_for() -> None:
    reading = Captured()
    write(reading)
    wanted = fetch_from(0, 0)
    reading.add(0.2, api_keys.FETCH, 11, {**wanted, **session(0, 0)}, {**fetched(b""), "sessionId": 77, "errorCode": 0})
    everything = FIRST + at(3, SECOND) + at(5, THIRD)
    following = {**wanted, "topics": [], **session(77, 1)}
    reading.add(0.3, api_keys.FETCH, 11, following, {**fetched(everything), "sessionId": 77, "errorCode": 0})
    answers = [fetched(b""), fetched(at(50, FIRST)), fetched(at(53, SECOND) + at(55, THIRD))]
    target = writable().on(api_keys.FETCH, *({**answer, "sessionId": 1234, "errorCode": 0} for answer in answers))

    replayed([reading], target, topics={"orders": 2})

    requests = [request.body for request in target.requests(api_keys.FETCH)]
    assert [(body["sessionId"], body["sessionEpoch"]) for body in requests] == [(0, 0), (1234, 1), (0, -1)]
    (topic,) = requests[-1]["topics"]
    assert [(part["partition"], part["fetchOffset"]) for part in topic["partitions"]] == [(0, 53)]


# --- the capture ---


def capture() -> Captured:
    """Three batches, and a reader that gets them at once."""
    writing = Captured()
    write(writing)
    return writing.add(0.3, api_keys.FETCH, 4, fetch_from(0), fetched(FIRST + at(3, SECOND) + at(5, THIRD)))


def write(connection: Captured) -> None:
    for number, (base, records) in enumerate(((0, FIRST), (3, SECOND), (5, THIRD))):
        connection.add(number / 20, api_keys.PRODUCE, 9, produced(records), produced_answer(base))


def at(offset: int, records: bytes) -> bytes:
    """A batch as it is stored at an offset."""
    return offset.to_bytes(8, "big") + records[8:]


def old_answer(base: int) -> Body:
    """The answer to a Produce of version 2."""
    part = {"index": 0, "errorCode": 0, "baseOffset": base, "logAppendTimeMs": -1}
    return {"responses": [{"name": "orders", "partitionResponses": [part]}], "throttleTimeMs": 0}


def packed(*offsets: int) -> bytes:
    """Messages of magic 0, compressed together: what is around them has the offset of the last one."""
    inside = b"".join(message(offset, 0, b"v%d" % offset) for offset in offsets)
    return message(offsets[-1], 1, gzip.compress(inside, mtime=0))


def message(offset: int, attributes: int, value: bytes) -> bytes:
    body = struct.pack(">bbii", 0, attributes, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def fetch_from(*offsets: int) -> Body:
    parts = [{"partition": number, "fetchOffset": at, "partitionMaxBytes": 1000} for number, at in enumerate(offsets)]
    asking = {"replicaId": -1, "maxWaitMs": 5, "minBytes": 1, "maxBytes": 1000, "isolationLevel": 0}
    return {**asking, "topics": [{"topic": "orders", "partitions": parts}]}


def session(number: int, epoch: int) -> Body:
    return {"sessionId": number, "sessionEpoch": epoch, "forgottenTopicsData": []}


def fetched(records: bytes, error: int = 0) -> Body:
    part: Body = {"partitionIndex": 0, "errorCode": error, "highWatermark": 59, "lastStableOffset": 59}
    return {
        "responses": [{"topic": "orders", "partitions": [{**part, "abortedTransactions": None, "records": records}]}]
    }


# --- the target ---


def writable() -> Target:
    return Target().on(api_keys.PRODUCE, *(produced_answer(base) for base, _ in STORED))


def one_batch(body: Body) -> Body:
    """The batch at the offset that is asked for."""
    wanted = body["topics"][0]["partitions"][0]["fetchOffset"]
    return fetched(b"".join(at(base, records) for base, records in STORED if base == wanted))


def wanted_offsets(target: Target) -> list[int]:
    """The offsets that were asked for."""
    return [request.body["topics"][0]["partitions"][0]["fetchOffset"] for request in target.requests(api_keys.FETCH)]


def records_in(answer: bytes | None) -> bytes:
    assert answer is not None
    body = tree.decode_response(answer, api_keys.FETCH, 4, exact=True).body
    assert body is not None
    ((part,),) = (topic["partitions"] for topic in body["responses"])
    return bytes(part["records"])


def offsets_in(answer: bytes | None) -> list[int]:
    """Base offsets of the batches in an answer."""
    return [base for base, _, _ in batches.fetched(records_in(answer))]
