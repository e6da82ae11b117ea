"""The status of many answers is the one that each body has.

Proves: replay/answers.py, replay/plan/produce_requests.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.encoding import encode_response
from kwire.replay.answers import Answer, AnswerStatus, answer_statuses
from kwire.replay.plan import produce_requests, sessions
from tests.replay.batching import produced_answer
from tests.shared import capture_files, sample_folders

CAPTURES = {folder.name: folder for folder in sample_folders()}
SHUT = "tls13-aiokafka-4.3"  # needs keys to be read


def alone(answer: Answer) -> AnswerStatus:
    data, key, version = answer
    decoded = tree.decode_response(data, key, version, exact=True)
    if decoded.status != OK or decoded.body is None:
        return AnswerStatus(False, decoded.reason)
    return AnswerStatus(True, None, decoded.body.get("throttleTimeMs"), tuple(errors.codes(decoded.body)))


@pytest.mark.parametrize("name", sorted(CAPTURES.keys() - {SHUT}))
def test_captured_answers_say_what_their_bodies_say(name: str) -> None:
    files = [str(path) for path in capture_files(CAPTURES[name])]
    some: list[Answer] = []
    for answer in sessions.read_exchanges(files, how=ReadOptions(rotated=len(files) > 1)):
        if answer.answer is not None and answer.row["api_key"] is not None:
            some.append((answer.answer, answer.row["api_key"], answer.row["api_version"]))
    cut = [(data[:-1], key, version) for data, key, version in some]
    longer = [(data + b"\0", key, version) for data, key, version in some]
    answers = [*some, *cut, *longer, (b"\0\0\0\1", 999, 0)]

    assert answer_statuses(answers) == [alone(answer) for answer in answers]


def test_errors_are_told_in_their_order_and_throttling_beside_them() -> None:
    body = produced_answer(0)
    (topic,) = body["responses"]
    (part,) = topic["partitionResponses"]
    topic["partitionResponses"] = [{**part, "index": at, "errorCode": code} for at, code in enumerate((6, 0, 3, 6))]
    body["throttleTimeMs"] = 7
    failed = encode_response(api_keys.PRODUCE, 7, 1, body)
    statuses = answer_statuses([(failed, api_keys.PRODUCE, 7), (failed[:9], api_keys.PRODUCE, 7)])
    assert statuses[0] == AnswerStatus(True, None, 7, (6, 3, 6))
    assert not statuses[1].decoded
    assert "responses" in (statuses[1].reason or "")
    assert answer_statuses([]) == []


@pytest.mark.parametrize("version", range(3, 13))
def test_what_is_read_of_a_stored_batch_is_what_the_body_says(version: int) -> None:
    body = produced_answer(40, appended=5)
    body["throttleTimeMs"] = 9
    if version < 5:
        del body["responses"][0]["partitionResponses"][0]["logStartOffset"]
    data = encode_response(api_keys.PRODUCE, version, 1, body)
    stored = produce_requests.stored(data, version)
    decoded = tree.decode_response(data, api_keys.PRODUCE, version, exact=True).body
    assert stored is not None
    assert decoded is not None
    (topic,) = decoded["responses"]
    (part,) = topic["partitionResponses"]
    assert stored == (topic["name"], part["index"], part["baseOffset"], part["logAppendTimeMs"], 9)
    assert produce_requests.stored(data[:-1], version) is None
    part["errorCode"] = 6
    assert produce_requests.stored(encode_response(api_keys.PRODUCE, version, 1, decoded), version) is None
