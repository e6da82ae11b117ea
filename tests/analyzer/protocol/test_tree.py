"""One message whole: bodies equal Kafka's own JSON, trees cover the bytes, secrets are never shown."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.analyzer.protocol import api_keys, decoding, encoding, layouts, schema, tree
from kwire.analyzer.protocol.project import Frame
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from kwire.analyzer.protocol.tree import Node, decode_message
from tests.analyzer.protocol import golden

RENAMED = {
    # (api_key, direction, name in 3.9.2): name in 4.4.0
    (28, REQUEST, "generationId"): "generationIdOrMemberEpoch",
    (52, REQUEST, "candidateEpoch"): "replicaEpoch",
    (52, REQUEST, "candidateId"): "replicaId",
    (74, RESPONSE, "clientMetricsResources"): "configResources",
    (74, RESPONSE, "name"): "resourceName",
}


def equal(body: Any, kafkas: Any, renamed: dict[str, str]) -> bool:
    """Is our body Kafka's JSON, but for secrets (of the same length) and new names?"""
    if isinstance(kafkas, dict) and isinstance(body, dict):
        expected = {renamed.get(key, key): value for key, value in kafkas.items()}
        return body.keys() == expected.keys() and all(equal(body[key], expected[key], renamed) for key in body)
    if isinstance(kafkas, list) and isinstance(body, list):
        return len(body) == len(kafkas) and all(equal(a, b, renamed) for a, b in zip(body, kafkas, strict=True))
    if golden.is_redacted(body) and isinstance(kafkas, str):
        return bool(body[tree.REDACTED] in (len(base64.b64decode(kafkas + "==")), len(kafkas.encode())))
    return type(body) is type(kafkas) and bool(body == kafkas)


@pytest.mark.parametrize("release", golden.RELEASES)
def test_bodies_are_what_kafkas_json_converters_print(release: str) -> None:
    for message in golden.golden(release):
        decoded = decode_message(message.data, message.api_key, message.version, message.direction)
        assert (decoded.reason, decoded.end) == (None, len(message.data)), str(message)
        renamed = {}
        if release == "3.9.2":
            renamed = {
                old: new
                for (key, way, old), new in RENAMED.items()
                if (key, way) == (message.api_key, message.direction)
            }
        assert equal(decoded.body, message.body, renamed), f"{message}\n{json.dumps(decoded.body)}\n{message.json}"
        json.dumps(decoded.body, allow_nan=False)


def test_a_tagged_field_sent_at_its_default_is_not_shown_as_kafka_would_not() -> None:
    data = encoding.encode_message({"clusterId": None}, 1, 13, REQUEST)
    assert data.endswith(bytes.fromhex("01 00 01 00"))
    shown = decode_message(data, 1, 13, REQUEST).body
    exact = decode_message(data, 1, 13, REQUEST, exact=True).body
    assert shown is not None
    assert exact is not None
    assert "clusterId" not in shown
    assert exact["clusterId"] is None


def test_a_tagged_struct_with_unknown_tags_inside_is_no_default_for_kafka_and_is_shown() -> None:
    for tags, shown in (({}, False), ({9: b"x"}, True)):
        epoch = {"_tags": tags} if tags else {}
        partition = {"partitionIndex": 0, "records": None, "divergingEpoch": epoch}
        data = encoding.encode_message({"responses": [{"topic": "t", "partitions": [partition]}]}, 1, 12, RESPONSE)
        body = decode_message(data, 1, 12, RESPONSE).body
        assert golden.contains(body, lambda key, _: key == "divergingEpoch") is shown


# --- what cannot be decoded -------------------------------------------------------------------------------------------


def test_trailing_bytes_are_counted_and_the_body_is_there() -> None:
    decoded = decode_message(bytes.fromhex("0001 61 00"), 36, 0, REQUEST)
    assert decoded.body is None
    decoded = decode_message(bytes.fromhex("00000007 0010 00 aabb"), 12, 4, RESPONSE)
    assert decoded.body == {"throttleTimeMs": 7, "errorCode": 16}
    assert (decoded.end, decoded.trailing, decoded.status) == (7, 2, decoding.OK)
    assert decoded.reason == "2 trailing bytes"


def test_a_failure_says_field_and_offset_and_keeps_the_nodes_before_it() -> None:
    data = bytes.fromhex("00 ffff 00007530 02 076f7264657273 02 00000003 7f aabb")
    decoded = decode_message(data, 0, 9, REQUEST, tree=True)
    assert decoded.body is None
    assert decoded.reason == "topicData.partitionData.records at byte 20: runs past the message"
    assert decoded.end == 20
    topic = decoded.nodes[3].children[0]
    assert [node.name for node in decoded.nodes] == ["transactionalId", "acks", "timeoutMs", "topicData"]
    assert topic.children[0].value == "orders"
    partition = topic.children[1].children[0]
    assert [(node.name, node.value) for node in partition.children] == [("index", 3)]


def test_unknown_apis_and_versions() -> None:
    assert decode_message(b"", 200, 0, REQUEST).reason == "unknown API 200"
    assert decode_message(b"", 0, 99, REQUEST).reason == "Produce has no version 99"
    frame = bytes.fromhex("0000 0063 00000007 0002 6d65 1234")
    decoded = tree.decode_request(frame)
    assert decoded.header == {
        "requestApiKey": 0,
        "requestApiVersion": 99,
        "correlationId": 7,
        "clientId": "me",
    }
    assert (decoded.body, decoded.reason) == (None, "Produce has no version 99")
    assert tree.decode_response(b"\0\0\0\1", 200, 0).reason == "unknown API 200"
    assert tree.decode_request(b"\0").reason == "header at byte 0: runs past the message"
    assert tree.decode_request(b"\0\0\0\3\0").reason == "RequestHeader.correlationId at byte 4: runs past the message"
    assert tree.decode_response(b"\0\0", 0, 3).reason == "ResponseHeader.correlationId at byte 0: runs past the message"


def test_hostile_bytes_never_raise() -> None:
    generator = random.Random(21)
    chosen = list(golden.every())
    generator.shuffle(chosen)
    for message in chosen[:400]:
        for _ in range(4):
            data = bytearray(message.data)
            for _ in range(generator.randrange(1, 4)):
                if data:
                    data[generator.randrange(len(data))] = generator.randrange(256)
            cut = bytes(data[: generator.randrange(len(data) + 1)] if generator.random() < 0.3 else data)
            for exact in (False, True):
                decoded = decode_message(
                    cut, message.api_key, message.version, message.direction, tree=True, exact=exact
                )
                assert (decoded.body is None) == (decoded.status != decoding.OK)
                assert (decoded.reason is None) == (decoded.status == decoding.OK and decoded.end == len(cut))
                check_spans(decoded.nodes, 0, len(cut))
            tree.secret_spans(cut, message.api_key, message.version, message.direction)
            tree.decode_request(cut, tree=True)
            tree.decode_response(cut, message.api_key, message.version, tree=True)


# --- the tree ---------------------------------------------------------------------------------------------------------


def check_spans(nodes: tuple[Node, ...], start: int, end: int) -> None:
    """Children lie in their parent, in order, and do not overlap."""
    at = start
    for node in nodes:
        assert at <= node.start <= node.end <= end, node
        check_spans(node.children, node.start, node.end)
        at = node.end


def leaves(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        if node.children:
            yield from leaves(node.children)
        else:
            yield node


def test_a_tree_has_every_field_with_its_bytes() -> None:
    data = bytes.fromhex("00 ffff 00007530 02 076f7264657273 02 00000003 03 aabb 00 00 01 05 02 0102")
    decoded = decode_message(data, 0, 9, REQUEST, tree=True)
    flat = []

    def walk(nodes: tuple[Node, ...], depth: int) -> None:
        for node in nodes:
            flat.append((depth, node.name, node.type, node.value, node.start, node.end))
            walk(node.children, depth + 1)

    walk(decoded.nodes, 0)
    assert flat == [
        (0, "transactionalId", "string", None, 0, 1),
        (0, "acks", "int16", -1, 1, 3),
        (0, "timeoutMs", "int32", 30000, 3, 7),
        (0, "topicData", "array", 1, 7, 25),
        (1, "[0]", "struct", None, 8, 25),
        (2, "name", "string", "orders", 8, 15),
        (2, "partitionData", "array", 1, 15, 24),
        (3, "[0]", "struct", None, 16, 24),
        (4, "index", "int32", 3, 16, 20),
        (4, "records", "records", "qrs=", 20, 23),
        (0, "_tags", "tags", 1, 25, 30),
        (1, "tag 5", "tag", 5, 26, 30),
    ]


@pytest.mark.parametrize("release", golden.RELEASES)
def test_nodes_are_nested_and_cover_the_message(release: str) -> None:
    for message in golden.golden(release):
        nodes = decode_message(message.data, message.api_key, message.version, message.direction, tree=True).nodes
        check_spans(nodes, 0, len(message.data))
        # What no leaf covers are lengths of arrays, markers of structs and counts of tags: no byte of a value.
        covered = sum(leaf.end - leaf.start for leaf in leaves(nodes))
        assert covered <= len(message.data)
        if nodes and not schema.layout(message.api_key, message.version, message.direction).flexible:  # type: ignore[union-attr]
            assert nodes[-1].end == len(message.data)


def test_the_trees_values_are_the_bodys() -> None:
    def body_of(node: Node) -> Any:
        if node.type == "array" and not node.null:
            return [body_of(child) for child in node.children]
        if node.type == "struct" and not node.null:
            return {child.name: body_of(child) for child in flattened(node.children) if child.type != "tag"}
        return node.value

    def flattened(nodes: tuple[Node, ...]) -> Iterator[Node]:
        for node in nodes:
            if node.type == "tags":
                yield from node.children
            else:
                yield node

    for message in list(golden.every())[::5]:
        decoded = decode_message(message.data, message.api_key, message.version, message.direction, tree=True)
        if golden.contains(message.body, lambda key, _: key.endswith("SizeInBytes") or key == "records"):
            continue
        root = Node("", "struct", None, 0, len(message.data), decoded.nodes)
        assert body_of(root) == decoded.body or golden.contains(
            decode_message(message.data, message.api_key, message.version, message.direction, exact=True).body,
            lambda key, _: key == tree.UNKNOWN_TAGS,
        ), str(message)


def test_a_frame_has_its_headers_nodes_first_and_offsets_in_the_frame() -> None:
    frame = encoding.encode_request(12, 4, 9, "me", {"groupId": "g"})
    decoded = tree.decode_request(frame, tree=True)
    assert [node.name for node in decoded.nodes] == [
        "requestApiKey",
        "requestApiVersion",
        "correlationId",
        "clientId",
        "groupId",
        "generationId",
        "memberId",
        "groupInstanceId",
    ]
    check_spans(decoded.nodes, 0, len(frame))
    assert frame[decoded.nodes[4].start : decoded.nodes[4].end] == b"\x02g"


# --- versions that answer with another --------------------------------------------------------------------------------


def test_api_versions_answered_by_error_35_is_read_as_version_0() -> None:
    body = {"errorCode": 35, "apiKeys": [{"apiKey": 18, "minVersion": 0, "maxVersion": 3}]}
    for version in (1, 3, 4, 99):
        frame = encoding.encode_response(18, 0, 7, body)
        decoded = tree.decode_response(frame, 18, version)
        assert (decoded.version, decoded.reason) == (0, None)
        assert decoded.body == body
    ordinary = encoding.encode_response(18, 3, 7, {"errorCode": 0, "apiKeys": []})
    assert tree.decode_response(ordinary, 18, 3).version == 3


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRET = "tTh1s-1s-S3cretT"
SECRET_BYTES = SECRET.encode()


def with_secret(layout: schema.Layout, path: str) -> tuple[dict[str, Any], bool]:
    """A body that has the secret at this path, under a sensitive name where names matter; and whether it could be
    put there in this version."""
    done = False

    def build(fields: tuple[schema.Field, ...], rest: list[str]) -> dict[str, Any]:
        nonlocal done
        body: dict[str, Any] = {}
        for item in fields:
            if item.name in ("name", "key") and item.kind == "string":
                body[item.name] = "ssl.key.password"
            if item.name == rest[0]:
                if len(rest) == 1:
                    body[item.name] = SECRET if item.kind == "string" else SECRET_BYTES
                    done = True
                elif item.kind == "array":
                    body[item.name] = [build(item.fields, rest[1:])]
                else:
                    body[item.name] = build(item.fields, rest[1:])
        return body

    return build(layout.fields, path.split(".")), done


@pytest.mark.parametrize(("api_key", "direction", "path"), sorted(schema.SECRET_FIELDS))
def test_a_secret_is_never_shown_only_its_length(api_key: int, direction: int, path: str) -> None:
    shown_in = 0
    for key, version, way, layout in schema.layouts():
        if (key, way) != (api_key, direction):
            continue
        body, possible = with_secret(layout, path)
        if not possible:
            continue
        shown_in += 1
        data = encoding.encode_message(body, api_key, version, direction)
        assert SECRET_BYTES in data
        decoded = decode_message(data, api_key, version, direction, tree=True)
        assert decoded.reason is None
        text = repr(decoded) + json.dumps(decoded.body)
        for spelling in (SECRET, base64.b64encode(SECRET_BYTES).decode(), base64.b64encode(SECRET_BYTES).decode()[:12]):
            assert spelling not in text
        assert golden.contains(decoded.body, lambda _, value: value == {"redactedBytes": len(SECRET)})
        secret_nodes = [node for node in leaves(decoded.nodes) if node.secret and node.value[tree.REDACTED]]
        assert [node.name for node in secret_nodes] == [path.rpartition(".")[2]]
        assert SECRET_BYTES in data[secret_nodes[0].start : secret_nodes[0].end]
        at = data.index(SECRET_BYTES)
        assert tree.secret_spans(data, api_key, version, direction) == [(at, at + len(SECRET))]
        exact = decode_message(data, api_key, version, direction, exact=True).body
        assert exact is not None
        assert encoding.encode_message(exact, api_key, version, direction) == data
    assert shown_in > 0


def test_ordinary_config_values_are_shown() -> None:
    body = {
        "resources": [{"resourceType": 2, "resourceName": "t", "configs": [{"name": "retention.ms", "value": "9"}]}]
    }
    data = encoding.encode_message(body, 33, 0, REQUEST)
    assert decode_message(data, 33, 0, REQUEST).body == {**body, "validateOnly": False}
    assert tree.secret_spans(data, 33, 0, REQUEST) == []


def test_a_config_value_of_null_is_null() -> None:
    configs = [{"name": "ssl.key.password", "value": None}]
    body = {"resources": [{"resourceType": 4, "resourceName": "1", "configs": configs}]}
    decoded = decode_message(encoding.encode_message(body, 33, 0, REQUEST), 33, 0, REQUEST)
    assert decoded.body == {**body, "validateOnly": False}


def test_bytes_that_could_not_be_decoded_where_secrets_are_count_as_secret() -> None:
    data = encoding.encode_message({"authBytes": SECRET_BYTES}, 36, 1, REQUEST)
    assert tree.secret_spans(data[:-3], 36, 1, REQUEST) == [(0, len(data) - 3)]
    assert tree.secret_spans(data + b"more", 36, 1, REQUEST) == [(4, len(data)), (len(data), len(data) + 4)]
    assert tree.secret_spans(data, 36, 99, REQUEST) == [(0, len(data))]
    frame = encoding.encode_request(36, 1, 5, "me", {"authBytes": SECRET_BYTES})
    at = frame.index(SECRET_BYTES)
    assert tree.secret_spans(frame, 36, 1, REQUEST, frame=True) == [(at, at + len(SECRET))]
    assert tree.secret_spans(b"\x00", 36, 1, REQUEST, frame=True) == [(0, 1)]
    response = encoding.encode_response(36, 1, 5, {"authBytes": SECRET_BYTES})
    at = response.index(SECRET_BYTES)
    assert tree.secret_spans(response, 36, 1, RESPONSE, frame=True) == [(at, at + len(SECRET))]


def envelope(inside: bytes) -> Any:
    data = encoding.encode_message(
        {"requestData": inside, "requestPrincipal": b"u", "clientHostAddress": b"h"}, 58, 0, REQUEST
    )
    body = decode_message(data, 58, 0, REQUEST, tree=True).body
    assert body is not None
    return body["requestData"]


def test_an_envelope_is_shown_if_what_is_inside_has_no_secret() -> None:
    harmless = encoding.encode_request(20, 5, 1, "c", {"topicNames": ["t"]})
    assert envelope(harmless) == base64.b64encode(harmless).decode()
    outer = {"requestData": harmless, "requestPrincipal": b"u", "clientHostAddress": b"h"}
    assert tree.envelope_inner(encoding.encode_request(58, 0, 1, "b", outer)) == (20, 5)
    assert tree.envelope_inner(harmless) is None
    assert tree.envelope_inner(encoding.encode_request(58, 0, 1, "b", {**outer, "requestData": b"?"})) is None
    configs = [{"name": "retention.ms", "configOperation": 0, "value": "1"}]
    resources = [{"resourceType": 2, "resourceName": "t", "configs": configs}]
    ordinary = encoding.encode_request(44, 1, 1, "c", {"resources": resources})
    assert envelope(ordinary) == base64.b64encode(ordinary).decode()
    configs[0]["name"] = "ssl.key.password"
    secret = encoding.encode_request(44, 1, 1, "c", {"resources": resources})
    assert envelope(secret) == {"redactedBytes": len(secret)}
    assert envelope(b"what is this") == {"redactedBytes": 12}
    inside = encoding.encode_response(20, 5, 1, {})
    data = encoding.encode_message({"responseData": inside}, 58, 0, RESPONSE)
    hidden, shown = decode_message(data, 58, 0, RESPONSE), decode_message(data, 58, 0, RESPONSE, inner=(20, 5))
    assert hidden.body == {"responseData": {"redactedBytes": len(inside)}, "errorCode": 0}
    assert shown.body == {"responseData": base64.b64encode(inside).decode(), "errorCode": 0}


@pytest.mark.parametrize("release", golden.RELEASES)
def test_small_messages_are_decoded_as_large_ones_are(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        (message.data, message.api_key, message.version, message.direction) for message in golden.golden(release)
    ]
    messages += [(data[: len(data) // 2], key, version, way) for data, key, version, way in messages]
    small = [decode_message(*message, tree=True, exact=True) for message in messages]
    monkeypatch.setattr(layouts, "_SMALL_BYTES", -1)
    assert small == [decode_message(*message, tree=True, exact=True) for message in messages]


def test_a_small_message_of_many_fields_needs_a_larger_tape() -> None:
    topics = [{"name": "t", "partitionIndexes": list(range(1500))}]
    data = encoding.encode_message({"groupId": "g", "topics": topics}, api_keys.OFFSET_FETCH, 1, REQUEST)
    for _ in range(2):
        decoded = decode_message(data, api_keys.OFFSET_FETCH, 1, REQUEST)
        assert decoded.body == {"groupId": "g", "topics": topics}


def test_a_large_message_grows_the_tape() -> None:
    topics = [{"name": f"topic-{number}"} for number in range(5000)]
    data = encoding.encode_message({"topics": topics}, 3, 8, REQUEST)
    decoded = decode_message(data, 3, 8, REQUEST)
    assert decoded.body is not None
    assert decoded.body["topics"] == topics
    for max_rows in (1, 100, 5001):
        limited = decode_message(data, 3, 8, REQUEST, max_rows=max_rows)
        assert (limited.body, limited.status) == (None, decoding.FULL)
        assert limited.reason is not None
        assert limited.reason.endswith("has more fields than the limit allows")
    assert decode_message(data, 3, 8, REQUEST, max_rows=20000).body == decoded.body


# --- many frames at once ---


def test_many_frames_are_decoded_as_each_alone() -> None:
    """Requests and answers, cut short anywhere, with bytes behind, of versions that nobody knows, with very many
    fields."""
    topics = [{"name": f"topic-{number}"} for number in range(40_000)]
    beat = {"groupId": "g", "generationId": 3, "memberId": "m"}
    requests: list[tuple[int, int, str | None, Any]] = [
        (api_keys.METADATA, 9, "client", {"topics": topics}),
        (api_keys.METADATA, 12, None, {"topics": [{"name": "a\udcff"}, {"name": None}]}),
        (api_keys.METADATA, 4, "", {"topics": None}),
        (api_keys.HEARTBEAT, 4, "c", beat),
    ]
    whole: list[Frame] = [
        (encoding.encode_request(key, version, 7, client, body), key, version, REQUEST)
        for key, version, client, body in requests
    ]
    answer = {"throttleTimeMs": 1, "errorCode": 27}
    whole.append((encoding.encode_response(api_keys.HEARTBEAT, 4, 7, answer), api_keys.HEARTBEAT, 4, RESPONSE))
    frames = [(frame[0][:cut], *frame[1:]) for frame in whole[1:] for cut in range(4, len(frame[0]))]
    frames += [
        *whole,
        *((frame[0] + b"\0", *frame[1:]) for frame in whole),
        (whole[0][0], api_keys.METADATA, 99, REQUEST),
    ]
    for frame, body in zip(frames, tree.decode_frames(frames), strict=True):
        data, key, version, direction = frame
        known = layouts.has_layout(key, version, direction)
        alone = tree.decode_response(data, key, version, exact=True)
        if direction == REQUEST:
            alone = tree.decode_request(data, exact=True)
        good = known and alone.reason is None
        assert body == (alone.body if good else None), (data[:40], key, version)
        assert (frame in whole) == (body is not None)
    assert tree.decode_frames([]) == []
