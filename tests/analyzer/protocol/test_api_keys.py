"""Names of Kafka's, and where messages list topics, against the definitions.

Proves: analyzer/protocol/api_keys.py, analyzer/protocol/topic_lists.py, the constants of analyzer/protocol/errors.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kwire.analyzer.protocol import api_keys, errors, schema, topic_lists
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE, Field
from kwire.analyzer.protocol.topic_lists import TopicField


def test_every_api_has_a_constant_and_every_constant_an_api() -> None:
    declared = {
        name for name in api_keys.__annotations__ if name.isupper() and "Final" not in api_keys.__annotations__[name]
    }
    assert declared == {api_keys.constant(api.name) for api in schema.apis()}
    assert all(getattr(api_keys, api_keys.constant(api.name)) == api.api_key for api in schema.apis())


def test_every_error_has_a_constant_and_every_constant_an_error() -> None:
    assert {name for name in errors.__annotations__ if name.isupper()} == {api.name for api in errors.errors().values()}
    assert all(getattr(errors, api.name) == api.code for api in errors.errors().values())


def test_some_that_everybody_knows() -> None:
    assert (api_keys.PRODUCE, api_keys.FETCH, api_keys.LIST_OFFSETS, api_keys.SASL_HANDSHAKE, api_keys.SHARE_FETCH) == (
        0,
        1,
        2,
        17,
        78,
    )
    assert (errors.NONE, errors.NOT_COORDINATOR, errors.UNKNOWN_TOPIC_ID) == (0, 16, 100)
    assert api_keys.name(api_keys.SYNC_GROUP) == "SyncGroup"
    assert api_keys.key("syncgroup") == api_keys.SYNC_GROUP
    assert api_keys.key("no such") is None


# --- where messages list topics ---

LISTS = [(key, REQUEST, where) for key in range(len(schema.apis())) for where in topic_lists.lists_of(key)]
LISTS += [(key, RESPONSE, where) for key, where in topic_lists.RESPONSE_LISTS.items()]


def fields_at(api_key: int, direction: int, path: tuple[str, ...]) -> Iterator[dict[str, Field]]:
    """Of each version that has the path: the fields of the structs there."""
    api = schema.apis()[api_key]
    for version in range(api.min_version, api.max_version + 1):
        layout = schema.layout(api_key, version, direction)
        fields = {item.name: item for item in (layout.fields if layout is not None else ())}
        for name in path:
            fields = {item.name: item for item in fields[name].fields} if name in fields else {}
        if fields:
            yield fields


@pytest.mark.parametrize(
    ("api_key", "direction", "where"), LISTS, ids=[f"{api_keys.name(key)}-{way}-{at.path[0]}" for key, way, at in LISTS]
)
def test_what_the_lists_name_the_definitions_have(api_key: int, direction: int, where: TopicField) -> None:
    versions = list(fields_at(api_key, direction, where.path))
    assert versions
    seen: dict[str, Field] = {}
    for fields in versions:
        seen |= fields
        # In each version the topic has a name or an id, and its partitions stand where the list says.
        assert (where.name in fields and fields[where.name].kind == "string") or (
            where.id in fields and fields[where.id].kind == "uuid"
        )
        if where.partitions:
            assert fields[where.partitions].kind == "array"
            inside = {item.name: item for item in fields[where.partitions].fields}
            if where.number:
                assert inside[where.number].kind == "int32"
            else:
                assert fields[where.partitions].element == "int32"
    if (api_key, where.path) == (api_keys.OFFSET_FETCH, ("topics",)):
        return  # a body of version 10 that is taken to version 7 keeps its ids there
    assert {where.name, where.id} - {""} <= seen.keys()


def test_topics_of_a_request() -> None:
    body = {"groups": [{"topics": [{"name": "a"}]}, {"topics": None}, {"topics": [{"name": "b"}]}], "topics": None}
    assert [topic["name"] for _, topic in topic_lists.topics_of(api_keys.OFFSET_FETCH, body)] == ["a", "b"]
    assert list(topic_lists.topics_of(api_keys.HEARTBEAT, body)) == []


def test_codes_of_a_body() -> None:
    body = {"errorCode": 0, "topics": [{"partitions": [{"errorCode": 3, "baseOffset": 7}]}, {"topicErrorCode": 29}]}
    assert list(errors.codes(body)) == [3, 29]
