"""The fast path reads what the decoder reads, and leaves all other bytes to it.

Proves: replay/plan/produce_requests.py, replay/plan/sessions.py
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.analyzer.protocol import api_keys, encoding, tree
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import produce_requests
from kwire.replay.plan.produce_requests import PRODUCE_BY_ID, FastPath
from kwire.replay.plan.topic_partitions import name_answer, name_topics
from tests.replay.batching import batch, produced

VERSIONS = range(3, 14)
ID = "zizHtibnSdSFmiPSHtiLWA"
BATCHES = (batch(), batch((7, 0), 12), batch((7, 3), 0, 5, transactional=True), batch((7, 0), 0) + batch((9, 1), 4))


def _request(version: int, records: bytes, client: str | None = "client", **fields: Any) -> bytes:
    body = {**produced(records), **fields}
    if version >= PRODUCE_BY_ID:
        (topic,) = body["topicData"]
        del topic["name"]
        topic["topicId"] = ID
    return encoding.encode_request(api_keys.PRODUCE, version, 4, client, body)


def _answer(version: int, **partition: Any) -> bytes:
    topic: Body = {"topicId": ID} if version >= PRODUCE_BY_ID else {"name": "orders"}
    part = {"index": 0, "errorCode": 0, "baseOffset": 40, "logAppendTimeMs": -1, **partition}
    body = {"responses": [{**topic, "partitionResponses": [part]}], "throttleTimeMs": 3}
    return encoding.encode_response(api_keys.PRODUCE, version, 1, body)


def _decoded(data: bytes, answer: bytes) -> FastPath | None:
    """Read the frames with the decoder; None where it has no such bodies."""
    request = tree.decode_request(data, exact=True)
    if request.body is None or request.api_key != api_keys.PRODUCE:
        return None
    answered = tree.decode_response(answer, api_keys.PRODUCE, request.version, exact=True)
    if answered.body is None:
        return None
    known = {topic.get("topicId", ""): "" for topic in request.body["topicData"]}
    for known_part in known:
        known[known_part] = "named"
    name_topics(api_keys.PRODUCE, request.body, known)
    name_answer(api_keys.PRODUCE, answered.body, known)
    quick = produce_requests.plain(request.version, request.body, data, answered.body)
    if quick is not None and quick.topic_id:
        quick.topic = ""
    return quick


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", BATCHES)
@pytest.mark.parametrize("transaction", [None, "tx"])
@pytest.mark.parametrize("client", [None, "", "client"])
def test_it_is_what_the_decoder_reads(
    version: int, records: bytes, transaction: str | None, client: str | None
) -> None:
    data = _request(version, records, client, transactionalId=transaction)
    quick = produce_requests.read(data, _answer(version))
    assert quick is not None
    assert quick == _decoded(data, _answer(version))
    assert quick.transactional_id == transaction
    assert quick.base == 40
    assert data[quick.at : quick.end] == records


def test_its_batches_are_where_they_are() -> None:
    records = BATCHES[3]
    data = _request(9, records)
    quick = produce_requests.read(data, _answer(9))
    assert quick is not None
    first, second = quick.spots(data)
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_offset_delta) == (7, 0, 0, 2)
    assert (second.producer_id, second.producer_epoch, second.base_sequence, second.last_offset_delta) == (9, 1, 4, 2)
    assert data[first.at : first.at + first.size] + data[second.at : second.at + second.size] == records
    assert sorted(quick.producers) == [7, 9]
    assert quick.count == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_short_or_with_bytes_left_it_is_left_to_the_decoder(version: int) -> None:
    data, answer = _request(version, batch((7, 0), 12)), _answer(version)
    for cut in range(len(data)):
        assert produce_requests.read(data[:cut], answer) is None
    for cut in range(len(answer)):
        assert produce_requests.read(data, answer[:cut]) is None
    assert produce_requests.read(data + b"\0", answer) is None
    assert produce_requests.read(data, answer + b"\0") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_with_any_byte_changed_it_is_what_the_decoder_reads_or_nothing(version: int) -> None:
    data, answer = _request(version, batch((7, 0), 12)), _answer(version)
    chosen = random.Random(version)
    read = 0
    for side in (0, 1):
        whole = (data, answer)[side]
        for at in range(len(whole)):
            for value in {0, 1, 2, 3, 127, 128, 255, whole[at] ^ 1, chosen.randrange(256)} - {whole[at]}:
                changed = whole[:at] + bytes([value]) + whole[at + 1 :]
                frames = (data, changed) if side else (changed, answer)
                quick = produce_requests.read(*frames)
                if quick is not None:
                    read += 1
                    assert quick == _decoded(*frames), (side, at, value)
    assert read


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_plain_is_left_to_the_decoder(version: int) -> None:
    data = _request(version, batch())
    assert produce_requests.read(_request(version, batch(), acks=0), _answer(version)) is None
    assert produce_requests.read(data, _answer(version, errorCode=6, baseOffset=-1)) is None
    assert produce_requests.read(data, _answer(version, index=1)) is None
    assert produce_requests.read(_request(version, b""), _answer(version)) is None
    assert produce_requests.read(_request(version, batch()[:-1]), _answer(version)) is None
    assert (
        produce_requests.read(encoding.encode_request(api_keys.METADATA, 4, 1, "", {"topics": None}), _answer(version))
        is None
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_success_is_a_success(version: int) -> None:
    assert produce_requests.success(_answer(version), version, 0) == (40, -1)
    assert produce_requests.success(_answer(version, logAppendTimeMs=5), version, 0) == (40, 5)


@pytest.mark.parametrize("version", VERSIONS)
def test_anything_else_is_left_to_the_decoder(version: int) -> None:
    assert produce_requests.success(_answer(version, errorCode=6), version, 0) is None
    assert produce_requests.success(_answer(version), version, 1) is None
    if version >= 8:
        assert produce_requests.success(_answer(version, errorMessage="late"), version, 0) is None
    whole = _answer(version)
    for cut in range(4, len(whole)):
        assert produce_requests.success(whole[:cut], version, 0) is None
    assert produce_requests.success(whole + b"\0", version, 0) is None
