"""A marker in every string and bytes field of every API in every version, and none afterwards.

proves: kwire.analyzer.scrub.message_spans, kwire.analyzer.scrub.spans, kwire.analyzer.scrub.content,
kwire.analyzer.protocol.project.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kwire.analyzer.bulk.state import NULL
from kwire.analyzer.protocol import schema, tree
from kwire.analyzer.protocol.encoding import encode_data, encode_request, encode_response
from kwire.analyzer.protocol.schema import REQUEST, Field
from kwire.analyzer.protocol.tree import UNKNOWN_TAGS
from kwire.analyzer.scrub.content import Content
from kwire.analyzer.scrub.message_spans import KEEP, RECORDS, FramedMessage, MessageReader
from kwire.analyzer.scrub.spans import CapturedMessages, SpanReader
from tests.bench.messages import batch, record

KEY = b"k" * 32
MARK = b"CaNaRy"

counter = itertools.count(1)


def marker() -> str:
    return f"{MARK.decode()}.{next(counter)}"


def records() -> bytes:
    return batch([record(0, marker().encode(), marker().encode() * 3), record(1, b"", marker().encode())])


def value(item: Field, kind: str) -> Any:
    if kind == "string":
        return marker()
    if kind == "bytes":
        return marker().encode()
    if kind == "records":
        return records()
    if kind == "uuid":
        return base64.urlsafe_b64encode(MARK + next(counter).to_bytes(10, "big"))[:22].decode()
    return True if kind == "bool" else 1.5 if kind == "float64" else 3


def body(fields: tuple[Field, ...], flexible: bool, tags: bool) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for item in fields:
        if item.kind == "struct":
            filled[item.name] = body(item.fields, flexible, tags)
        elif item.kind == "array":
            element = body(item.fields, flexible, tags) if item.element == "struct" else None
            filled[item.name] = [element if element is not None else value(item, item.element or "") for _ in range(2)]
        else:
            filled[item.name] = value(item, item.kind)
    if flexible and tags:
        filled[UNKNOWN_TAGS] = {7_777: marker().encode()}
    return filled


def frames(api_key: int) -> Iterator[FramedMessage]:
    """A request and a response of each layout of an API."""
    seen: set[int] = set()
    for key, version, direction, layout in schema.layouts():
        if key != api_key or id(layout) in seen:
            continue
        seen.add(id(layout))
        content = body(layout.fields, layout.flexible, tags=True)
        if direction == REQUEST:
            message = encode_request(key, version, 5, marker(), content, None)
        else:
            message = encode_response(key, version, 5, {**content, "errorCode": 0} if key == 18 else content)
        yield FramedMessage(len(message).to_bytes(4, "big") + message, 9, direction == REQUEST, key, version)


def cleaned(all_frames: list[FramedMessage], keep: frozenset[str] = frozenset()) -> list[bytes]:
    content, spans = Content(KEY, keep), SpanReader()
    batch = CapturedMessages.from_frames(all_frames)
    parts = spans.read(batch)
    content.learn(batch, parts)
    content.settle()
    rows = np.split(parts.rows, parts.begins[1:-1])
    return [
        content.clean(frame.data, some.tolist(), spans.topic_names())
        for frame, some in zip(all_frames, rows, strict=True)
    ]


def numbers(body: Any) -> Any:
    """Keep what is neither text nor bytes; lists with their lengths."""
    if isinstance(body, dict):
        return {name: numbers(inner) for name, inner in body.items()}
    if isinstance(body, list):
        return [numbers(inner) for inner in body]
    return len(body) if isinstance(body, (str, bytes)) else body


@pytest.mark.parametrize("api_key", range(95))
def test_no_marker_is_left_in_any_layout(api_key: int) -> None:
    every = list(frames(api_key))
    assert any(MARK in frame.data for frame in every)
    for frame, clean in zip(every, cleaned(every), strict=True):
        assert len(clean) == len(frame.data)
        assert MARK not in clean
        before, after = (decoded(data, frame) for data in (frame.data, clean))
        assert before.reason is None
        assert after.reason is None
        if frame.api_key != 58:  # what an Envelope holds is noise
            assert numbers(after.body) == numbers(before.body)


@pytest.mark.parametrize("api_key", range(95))
def test_the_quick_way_says_what_the_careful_one_says(api_key: int) -> None:
    """All layouts, whole; with bytes behind; with the last byte missing: all of them at once, and one by one."""
    whole = list(frames(api_key))
    every = [
        FramedMessage(resized(frame.data + more if more else frame.data[:-1] if cut else frame.data), 9, *known)
        for cut, more in ((0, b""), (0, b"ABCDEFGH"), (1, b""))
        for frame in whole
        for known in [(frame.request, frame.api_key, frame.version)]
    ]
    spans, careful = SpanReader(), MessageReader()
    parts = spans.read(CapturedMessages.from_frames(every))
    called = [careful.parts(frame) for frame in every]
    assert len(parts.begins) == len(every) + 1
    for i, expected in enumerate(called):
        quick = parts.rows[parts.begins[i] : parts.begins[i + 1]].tolist()
        assert [(start, end, kind) for start, end, kind, _ in quick] == [
            part[:3] for part in expected if part.kind != KEEP
        ]
        topics = [spans.topic_names()[topic] for _, _, kind, topic in quick if kind == RECORDS]
        assert topics == [careful.topic(part.topic) for part in expected if part.kind == RECORDS]


def resized(data: bytes) -> bytes:
    """A message whose length is what it is."""
    return (len(data) - 4).to_bytes(4, "big") + data[4:]


def decoded(data: bytes, frame: FramedMessage) -> tree.Decoded:
    if frame.request:
        return tree.decode_request(data[4:], exact=True)
    return tree.decode_response(data[4:], frame.api_key, frame.version, exact=True)


@pytest.mark.parametrize("name", ["ConsumerProtocolSubscription", "ConsumerProtocolAssignment"])
def test_formats_inside_bytes_are_understood_and_cleaned(name: str) -> None:
    """Topics of a subscription become the topics that other messages call by those names."""
    for version, layout in schema.data_versions(name):
        content = body(layout.fields, False, tags=False)
        content["userData"] = marker().encode()
        topics = content["topics"] if "topics" in content else [part["topic"] for part in content["assignedPartitions"]]
        inside = version.to_bytes(2, "big") + encode_data(content, name, version)
        metadata = encode_request(3, 1, 1, "me", {"topics": [{"name": topic} for topic in topics]})
        joined: dict[str, Any] = {"groupId": "g", "memberId": "m", "protocolType": "consumer"}
        if name.endswith("Subscription"):
            message = encode_request(11, 5, 2, "me", {**joined, "protocols": [{"name": "range", "metadata": inside}]})
        else:
            message = encode_request(
                14,
                5,
                2,
                "me",
                {**joined, "protocolName": "range", "assignments": [{"memberId": "m", "assignment": inside}]},
            )
        both = [
            FramedMessage(len(part).to_bytes(4, "big") + part, 1, True, key, of)
            for part, key, of in ((metadata, 3, 1), (message, 11 if name.endswith("Subscription") else 14, 5))
        ]
        request, clean = cleaned(both)
        assert MARK not in request + clean
        renamed = [part["name"] for part in tree.decode_request(request[4:]).body["topics"]]  # type: ignore[index]
        for topic in renamed:
            assert topic.encode() in clean
        after = tree.decode_request(clean[4:], exact=True).body
        assert after is not None


@pytest.mark.parametrize("keep", ["names", "ids", "values", "keys", "headers"])
def test_what_is_to_be_kept_is_kept_and_nothing_else(keep: str) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 16)
    builder.append(0, 0, b"the-key", b"the-value", [("the-header", b"the-content")])
    raw = bytes(builder.build())
    message = encode_request(
        0, 9, 1, "the-client", {"topicData": [{"name": "the-topic", "partitionData": [{"index": 0, "records": raw}]}]}
    )
    (clean,) = cleaned([FramedMessage(len(message).to_bytes(4, "big") + message, 1, True, 0, 9)], frozenset([keep]))
    stayed = {text for text in (b"the-client", b"the-topic", b"the-key", b"the-value", b"the-header") if text in clean}
    assert (
        stayed
        == {
            "names": {b"the-client", b"the-topic", b"the-header"},
            "ids": set(),
            "values": {b"the-value"},
            "keys": {b"the-key"},
            "headers": {b"the-header"},
        }[keep]
    )


@pytest.mark.parametrize(
    ("request_side", "api_key", "version", "head"),
    [(True, NULL, NULL, 4), (False, NULL, NULL, 8), (True, 3, 99, 12), (True, 300, 1, 12), (True, 3, 30_000, 4)],
)
def test_of_what_nobody_can_read_hardly_a_number_stays(
    request_side: bool, api_key: int, version: int, head: int
) -> None:
    data = (40).to_bytes(4, "big") + MARK * 6 + b"more"
    (clean,) = cleaned([FramedMessage(data, 1, request_side, api_key, version)])
    assert clean == data[:head] + b"\xff" * (len(data) - head)


def test_what_is_cut_off_inside_is_blank_from_there() -> None:
    message = encode_request(3, 1, 1, "the-client", {"topics": [{"name": MARK.decode() + "x" * 50}]})
    data = (len(message).to_bytes(4, "big") + message)[:-30]
    (clean,) = cleaned([FramedMessage(data, 1, True, 3, 1)])
    assert MARK not in clean
    assert b"the-client" not in clean
    assert clean[:12] == data[:12]
