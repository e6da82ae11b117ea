"""The short way sends the same bytes as the long one.

Proves: replay/send/produce_in_place.py, replay/plan/values.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys, encoding
from kwire.replay.plan import convert, decisions
from kwire.replay.plan.produce_requests import PRODUCE_BY_ID
from kwire.replay.plan.steps import Step
from kwire.replay.remap import remap
from kwire.replay.remap.topology import Topology
from kwire.replay.send import produce_in_place
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import EVERYTHING, Captured

INIT_PRODUCER = {"transactionalId": None, "transactionTimeoutMs": 60_000}
VERSIONS = range(3, 14)
OLD_ID, NEW_ID = "zizHtibnSdSFmiPSHtiLWA", "AAAAAAAAAAAAAAAAAAAAAQ"


def _step(version: int, records: bytes) -> Step:
    """A planned Produce of that version, as captured."""
    capture = Captured()
    body = produced(records)
    answer = produced_answer(40)
    answer["responses"][0]["partitionResponses"][0].pop("logStartOffset")
    if version >= PRODUCE_BY_ID:
        metadata = {"brokers": [], "topics": [{"name": "orders", "topicId": OLD_ID, "partitions": []}]}
        capture.add(0.0, api_keys.METADATA, 12, {"topics": None}, metadata)
        for topic in (body["topicData"][0], answer["responses"][0]):
            del topic["name"]
            topic["topicId"] = OLD_ID
    capture.add(0.1, api_keys.PRODUCE, version, body, answer)
    return decisions.make([capture.session()], EVERYTHING, decisions.PlanOptions())[0].steps[-1]


def _learned() -> remap.Remap:
    learned = remap.Remap()
    captured, given = ({"errorCode": 0, "producerId": i, "producerEpoch": epoch} for i, epoch in ((7, 0), (900, 5)))
    capture = Captured().add(0.0, api_keys.INIT_PRODUCER_ID, 4, INIT_PRODUCER, captured)
    (step,) = decisions.make([capture.session()], EVERYTHING, decisions.PlanOptions())[0].steps
    learned.learn(step, INIT_PRODUCER, captured, given)
    learned.topics.learn_from(Topology(topic_ids={"orders": NEW_ID}))
    return learned


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", [batch(), batch((7, 0), 12), batch((7, 0), 0, transactional=True)])
def test_the_short_way_sends_what_the_long_way_sends(version: int, records: bytes) -> None:
    step = _step(version, records)
    assert step.fast_path is not None
    assert step.request.data is not None
    long = convert.fit(api_keys.PRODUCE, version, _learned().request(step))
    expected = encoding.encode_request(api_keys.PRODUCE, version, 4711, "client", long)
    frame = produce_in_place.frame(step.fast_path, step.request.data, 4711, _learned())
    assert frame is not None
    assert bytes(frame) == len(expected).to_bytes(4, "big") + expected


def test_what_is_not_known_yet_takes_the_long_way() -> None:
    step = _step(9, batch((7, 0), 12))
    assert step.fast_path is not None
    assert produce_in_place.frame(step.fast_path, step.request.data or b"", 1, remap.Remap()) is None


def test_what_is_not_plain_has_no_short_way() -> None:
    two = Captured().add(0.0, api_keys.PRODUCE, 9, produced({0: batch(), 1: batch()}), produced_answer({0: 0, 1: 0}))
    failed = Captured().add(0.0, api_keys.PRODUCE, 9, produced(batch()), produced_answer(-1, error=10))
    unanswered = Captured().add(0.0, api_keys.PRODUCE, 9, produced(batch()))
    for capture in (two, failed, unanswered):
        planned, _ = decisions.make([capture.session()], EVERYTHING, decisions.PlanOptions())
        assert [step.fast_path for step in planned.steps] == [None]
