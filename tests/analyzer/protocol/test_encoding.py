"""Encoding is decoding backwards: for all 736 layouts, on values that Hypothesis makes and on Kafka's own bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kwire.analyzer.protocol import api_keys, decoding, encoding, program, schema, tree
from kwire.analyzer.protocol.encoding import EncodeError, encode_message
from kwire.analyzer.protocol.schema import REQUEST
from tests.analyzer.protocol import golden, values

EXAMPLES = 8


@pytest.mark.parametrize("api_key", range(95))
def test_decode_of_encode_is_the_body_in_every_version(api_key: int) -> None:
    seen: set[int] = set()
    for key, version, direction, layout in schema.layouts():
        if key != api_key:
            continue
        if id(layout) in seen:
            # Versions with the same layout run the same code; that is what is to be shown for them.
            assert program.load().start[direction, key, version] == program.load().start[direction, key, version - 1]
            continue
        seen.add(id(layout))
        round_trips(values.bodies(layout), api_key, version, direction)


def round_trips(bodies: st.SearchStrategy[dict[str, Any]], api_key: int, version: int, direction: int) -> None:
    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies)
    def check(body: dict[str, Any]) -> None:
        data = encode_message(body, api_key, version, direction)
        decoded = tree.decode_message(data, api_key, version, direction, exact=True)
        assert decoded.reason is None
        assert decoded.end == len(data)
        assert decoded.body == body

    check()


def test_kafkas_own_bytes_come_back_bit_for_bit() -> None:
    """Decoded exactly and encoded again: unknown tagged fields, records and secrets included."""
    for message in golden.every():
        body = tree.decode_message(message.data, message.api_key, message.version, message.direction, exact=True).body
        assert body is not None, str(message)
        assert encode_message(body, message.api_key, message.version, message.direction) == message.data, str(message)


def test_kafkas_own_json_encodes_to_kafkas_own_bytes() -> None:
    """Where the JSON says all: it leaves out records and unknown tagged fields. (4.4.0: names are today's.)"""
    compared = 0
    for message in golden.golden("4.4.0"):
        exact = tree.decode_message(message.data, message.api_key, message.version, message.direction, exact=True).body
        unknown = golden.contains(exact, lambda key, _: key == tree.UNKNOWN_TAGS)
        if not unknown and not golden.contains(message.body, lambda key, _: key.endswith("SizeInBytes")):
            assert encode_message(message.body, message.api_key, message.version, message.direction) == message.data, (
                str(message)
            )
            compared += 1
    assert compared > 2000


def test_the_decoders_tape_is_the_encoders_input() -> None:
    loaded = program.load()
    stack = np.zeros((program.STACK_DEPTH, 3), np.int64)
    for message in list(golden.every())[::7]:
        buffer = np.frombuffer(bytearray(message.data + b"!"), np.uint8)
        tape = np.zeros((4096, 5), np.int64)
        pc = int(loaded.start[message.direction, message.api_key, message.version])
        _, used, _, _ = decoding.decode(
            buffer, 0, len(message.data), pc, *loaded.arrays, loaded.everything(), tape, 0, 0, stack
        )
        out = np.zeros(32 * (int(used) + 1) + len(message.data), np.uint8)
        for encode in (encoding.encode, golden.interpreted(encoding.encode)):
            out[:] = 0
            at, rows, status = encode(tape[:used], buffer, pc, *loaded.arrays, out, 0, stack)
            assert (int(rows), int(status)) == (int(used), encoding.OK), str(message)
            assert out[:at].tobytes() == message.data


def test_too_little_room_and_wrong_rows_are_statuses() -> None:
    loaded = program.load()
    stack = np.zeros((program.STACK_DEPTH, 3), np.int64)
    body = {
        "topicData": [{"name": "orders", "partitionData": [{"index": 3, "records": bytes(100)}]}],
        "_tags": {5: b"ab"},
    }
    data = encode_message(body, 0, 9, REQUEST)
    buffer = np.frombuffer(bytearray(data), np.uint8)
    tape = np.zeros((64, 5), np.int64)
    pc = int(loaded.start[REQUEST, 0, 9])
    used = int(decoding.decode(buffer, 0, len(data), pc, *loaded.arrays, loaded.everything(), tape, 0, 0, stack)[1])
    for size in range(len(data)):
        # Content larger than what any row may need beside it; what lies behind `out` must stay as it was.
        behind = np.full(len(data) + 8, 0x5A, np.uint8)
        _, _, status = encoding.encode(tape[:used], buffer, pc, *loaded.arrays, behind[:size], 0, stack)
        assert status == encoding.NO_ROOM
        assert (behind[size:] == 0x5A).all()
    out = np.zeros(400, np.uint8)
    for rows in range(used):
        _, at_row, status = encoding.encode(tape[:rows], buffer, pc, *loaded.arrays, out, 0, stack)
        assert (int(at_row), int(status)) == (rows, encoding.BAD_ROWS)
    outside = tape[:used].copy()
    outside[4, 3] = len(data) - 2  # the topic's name would end outside the payload
    assert encoding.encode(outside, buffer, pc, *loaded.arrays, out, 0, stack)[2] == encoding.BAD_ROWS


# --- bodies by hand ---------------------------------------------------------------------------------------------------


def test_small_messages_are_encoded_as_large_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = []
    for message in golden.golden(golden.RELEASES[-1]):
        exact = tree.decode_message(message.data, message.api_key, message.version, message.direction, exact=True).body
        assert exact is not None
        bodies.append((exact, message.api_key, message.version, message.direction))
    for count in (encoding._SMALL_ROWS // 2, encoding._SMALL_ROWS, encoding._SMALL_BYTES):
        topics = [{"name": "t" * 20, "partitionIndexes": list(range(count))}]
        bodies.append(({"groupId": "g", "topics": topics}, api_keys.OFFSET_FETCH, 1, REQUEST))
    small = [encode_message(*message) for message in bodies]
    monkeypatch.setattr(encoding, "_SMALL_ROWS", 0)
    assert small == [encode_message(*message) for message in bodies]


def test_absent_fields_take_their_defaults() -> None:
    data = encode_message({"groupId": "g", "memberId": "m"}, 12, 4, REQUEST)
    assert data == bytes.fromhex("0267 00000000 026d 00 00")
    assert encode_message({}, 18, 0, REQUEST) == b""
    fetch = tree.decode_message(encode_message({}, 1, 13, REQUEST), 1, 13, REQUEST).body
    assert fetch is not None
    assert fetch["replicaId"] == -1
    assert fetch["maxBytes"] == 0x7FFFFFFF
    assert "clusterId" not in fetch


def test_a_tagged_field_is_written_if_and_only_if_it_is_in_the_body() -> None:
    plain = encode_message({}, 1, 13, REQUEST)
    tagged = encode_message({"clusterId": "c"}, 1, 13, REQUEST)
    assert plain.endswith(b"\x00")
    assert tagged == plain[:-1] + bytes.fromhex("01 00 02 0263")


def test_a_long_tagged_field_has_a_long_size() -> None:
    data = encode_message({"clusterId": "c" * 20000}, 1, 13, REQUEST)
    assert tree.decode_message(data, 1, 13, REQUEST, exact=True).body["clusterId"] == "c" * 20000  # type: ignore[index]


@pytest.mark.parametrize(
    ("body", "api_key", "version", "path", "problem"),
    [
        ({"generationId": 1 << 31}, 12, 0, "generationId", "is no int32"),
        ({"generationId": "1"}, 12, 0, "generationId", "is no int32"),
        ({"groupId": None}, 12, 0, "groupId", "is null, which this version does not allow"),
        ({"groupId": 5}, 12, 0, "groupId", "is int, not a string"),
        ({"groupId": "g" * 40000}, 12, 0, "groupId", "has 40000 bytes"),
        ({"groupInstanceId": "x"}, 12, 0, "groupInstanceId", "this version has no such field"),
        (
            {"topicData": [{"partitionData": [{"recordsSizeInBytes": 5}]}]},
            0,
            9,
            "topicData[0].partitionData[0].recordsSizeInBytes",
            "has the size only",
        ),
        (
            {"topicData": [{"partitionData": [{"records": "%%%"}]}]},
            0,
            9,
            "topicData[0].partitionData[0].records",
            "is not base64",
        ),
        ({"topicData": {}}, 0, 9, "topicData", "is dict, not an array"),
        ({"topicData": [5]}, 0, 9, "topicData[0]", "is int, not a struct"),
        ({"authBytes": {"redactedBytes": 3}}, 36, 1, "authBytes", "was redacted"),
        ({"topics": [{"topicId": "short"}]}, 3, 12, "topics[0].topicId", "is no uuid"),
        ({"_tags": {7: b""}}, 12, 0, "_tags", "has no tagged fields"),
        ({"_tags": {0: b""}}, 1, 13, "_tags", "tag 0 is a known field"),
        ({"allowAutoTopicCreation": "yes"}, 3, 12, "allowAutoTopicCreation", "is no bool"),
    ],
)
def test_a_body_that_does_not_fit_says_what_and_where(
    body: dict[str, Any], api_key: int, version: int, path: str, problem: str
) -> None:
    with pytest.raises(EncodeError) as raised:
        encode_message(body, api_key, version, REQUEST)
    assert raised.value.path == path
    assert problem in str(raised.value)
    assert raised.value.hint


def test_a_version_that_does_not_exist() -> None:
    with pytest.raises(EncodeError, match="Produce has no version 99"):
        encode_message({}, 0, 99, REQUEST)
    with pytest.raises(EncodeError, match="RequestHeader has no version 9"):
        encoding.encode_data({}, "RequestHeader", 9)


@pytest.mark.parametrize(("name", "version"), sorted({(name, version) for name, version, _ in schema.data_layouts()}))
def test_headers_and_embedded_data_round_trip(name: str, version: int) -> None:
    layout = schema.data_layout(name, version)
    assert layout is not None

    @settings(max_examples=EXAMPLES, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values.bodies(layout))
    def check(body: dict[str, Any]) -> None:
        decoded = tree.decode_data(encoding.encode_data(body, name, version), name, version, exact=True)
        assert decoded.reason is None
        assert decoded.body == body

    check()


def test_requests_and_responses_with_their_headers() -> None:
    for api_key, version in ((0, 3), (0, 9), (7, 0), (7, 1), (18, 0), (18, 3), (68, 0)):
        frame = encoding.encode_request(api_key, version, 42, "me", {})
        request = tree.decode_request(frame)
        assert (request.api_key, request.version, request.reason) == (api_key, version, None)
        assert request.header is not None
        assert request.header["correlationId"] == 42
        assert request.header.get("clientId") == (None if (api_key, version) == (7, 0) else "me")
        response = tree.decode_response(encoding.encode_response(api_key, version, 42, {}), api_key, version)
        assert (response.header, response.reason) == ({"correlationId": 42}, None)
    tags = {5: b"new"}
    exact = tree.decode_request(encoding.encode_request(3, 12, 1, None, {}, tags), exact=True)
    assert exact.header is not None
    assert exact.header["_tags"] == tags
    assert encoding.encode_response(18, 3, 1, {"errorCode": 0})[:6] == bytes.fromhex("00000001 0000")
    assert encoding.encode_response(3, 12, 1, {}, tags)[4:10] == bytes.fromhex("01 05 03") + b"new"


def test_floats_that_are_no_numbers_survive() -> None:
    for text in ("NaN", "Infinity", "-Infinity"):
        body = {
            "entries": [{"ops": [{"key": "k", "value": text, "remove": False}], "entity": []}],
            "validateOnly": False,
        }
        data = encode_message(body, 49, 0, REQUEST)
        assert tree.decode_message(data, 49, 0, REQUEST).body == body


def test_strings_that_are_not_utf8_survive() -> None:
    data = bytes.fromhex("0003 61ff62")
    response = encode_message({"groups": ["abc"]}, 15, 0, REQUEST)
    broken = response[:4] + data
    exact = tree.decode_message(broken, 15, 0, REQUEST, exact=True).body
    assert exact is not None
    assert encode_message(exact, 15, 0, REQUEST) == broken
    assert tree.decode_message(broken, 15, 0, REQUEST).body == {"groups": ["a\ufffdb"]}
