"""Records that would become more than any budget allows are sent as they stand: replay does not open them.

Proves: kwire.replay.plan.batches, kwire.replay.send.engine
"""

from __future__ import annotations

import gzip
import struct

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.budget import BYTES
from kwire.analyzer.records import codecs
from kwire.replay.plan import batches
from tests.replay.batching import produced, produced_answer, producer_of
from tests.replay.conversation import Captured, Target, replayed

_LAYER = 1 << 20
_LAYERS = 1024


def bomb(producer: int = -1) -> bytes:
    """Compressed thrice: a few kilobytes that say they are two thousand million records, hold a batch that says so too,
    and become a gigabyte when that is opened as well."""
    inner = batches.sealed(gzip.compress(bytes(_LAYER)) * _LAYERS, 1, 2_000_000_000, 0, 0)
    data = bytearray(batches.sealed(inner, 1, 2_000_000_000, 0, 0))
    if producer >= 0:
        batches.set_producer(data, 0, len(data), producer, 0, 0)
    assert len(data) < 20_000 < BYTES < _LAYER * _LAYERS
    return bytes(data)


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decompressed from now on."""

    def refused(*_: object) -> None:
        raise AssertionError("records were opened")

    monkeypatch.setattr(codecs, "decompress", refused)


@pytest.mark.parametrize("version", [5, 9])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_bomb_is_sent_byte_for_byte(version: int, partitions: int, unopened: None) -> None:
    """The short way for one partition, the long way for two."""
    sent = dict.fromkeys(range(partitions), bomb())
    answer = produced_answer(dict.fromkeys(range(partitions), 0))
    capture = Captured().add(0.0, api_keys.PRODUCE, version, produced(sent), answer)
    target = Target().on(api_keys.PRODUCE, answer)

    run = replayed([capture], target, topics={"orders": partitions})

    assert [outcome.verdict for outcome in run.outcomes] == ["answered"]
    (request,) = target.requests(api_keys.PRODUCE)
    parts = request.body["topicData"][0]["partitionData"]
    assert {part["index"]: bytes(part["records"]) for part in parts} == sent


def test_of_a_producer_s_bomb_only_the_header_changes(unopened: None) -> None:
    records, answer = bomb(7), produced_answer(0)
    request_body = {"transactionalId": None, "transactionTimeoutMs": 60_000}
    given = ({"errorCode": 0, "producerId": number, "producerEpoch": 0} for number in (7, 900))
    capture = Captured().add(0.0, api_keys.INIT_PRODUCER_ID, 4, request_body, next(given))
    capture.add(0.1, api_keys.PRODUCE, 9, produced(records), answer)
    target = Target().on(api_keys.INIT_PRODUCER_ID, next(given)).on(api_keys.PRODUCE, answer)

    replayed([capture], target, topics={"orders": 1})

    (request,) = target.requests(api_keys.PRODUCE)
    assert producer_of(request.body) == (900, 0, 0)
    sent_records = bytes(request.body["topicData"][0]["partitionData"][0]["records"])
    assert sent_records[: batches.HEADER - 44] == records[: batches.HEADER - 44]  # up to the checksum
    assert sent_records[batches.HEADER - 4 :] == records[batches.HEADER - 4 :]
    assert struct.unpack_from(">i", sent_records, batches.HEADER - 4) == (2_000_000_000,)
