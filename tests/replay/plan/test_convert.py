"""Bodies taken to other versions. The judge is Kafka's own definition of the other version: what was converted must
encode, and decode to the same meaning.

Proves: replay/plan/convert.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys, encoding, schema, tree
from kwire.analyzer.protocol.schema import REQUEST
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis, convert


def converted(api_key: int, old: int, new: int, body: Body) -> Body:
    """Through the wire: encoded as the capture has it, converted, encoded and decoded as the target will."""
    captured = tree.decode_message(
        encoding.encode_message(body, api_key, old, REQUEST), api_key, old, REQUEST, exact=True
    )
    assert captured.body is not None
    canonical = convert.canonical(api_key, old, captured.body)
    convert.check(api_key, new, canonical)
    sent = encoding.encode_message(convert.fit(api_key, new, canonical), api_key, new, REQUEST)
    decoded = tree.decode_message(sent, api_key, new, REQUEST, exact=True)
    assert decoded.body is not None
    return decoded.body


@pytest.mark.parametrize(("offered", "expected"), [((0, 9), 7), ((8, 9), 8), ((0, 4), 4)])
def test_the_captured_version_or_the_nearest(offered: tuple[int, int], expected: int) -> None:
    assert convert.choose(7, offered) == expected


@pytest.mark.parametrize(
    "api_key",
    [key for key, api in apis.APIS.items() if api.policy is apis.Policy.SEND or api.policy is apis.Policy.REMAP],
)
def test_every_version_s_empty_request_can_be_said_in_every_other(api_key: int) -> None:
    """Defaults lose nothing; what has no counterpart says so and nothing else."""
    api = schema.apis()[api_key]
    for old in range(api.min_version, api.max_version + 1):
        for new in range(api.min_version, api.max_version + 1):
            if api_key == api_keys.ADD_PARTITIONS_TO_TXN and old >= 4:
                continue
            try:
                converted(api_key, old, new, {})
            except convert.ConversionError:
                assert api_key in (api_keys.OFFSET_FETCH, api_keys.LEAVE_GROUP, api_keys.FIND_COORDINATOR)
                assert old > new  # no group, member or key at all, where older versions have exactly one


def test_one_coordinator_key_or_many() -> None:
    assert converted(api_keys.FIND_COORDINATOR, 2, 5, {"key": "g", "keyType": 1})["coordinatorKeys"] == ["g"]
    assert converted(api_keys.FIND_COORDINATOR, 5, 2, {"keyType": 0, "coordinatorKeys": ["g"]})["key"] == "g"
    with pytest.raises(convert.ConversionError, match="2 keys"):
        converted(api_keys.FIND_COORDINATOR, 5, 2, {"keyType": 0, "coordinatorKeys": ["g", "h"]})


def test_one_group_s_offsets_or_many_groups() -> None:
    topics = [{"name": "t", "partitionIndexes": [0, 1]}]
    newer = converted(api_keys.OFFSET_FETCH, 5, 9, {"groupId": "g", "topics": topics})
    assert [(group["groupId"], group["topics"]) for group in newer["groups"]] == [("g", topics)]
    older = converted(api_keys.OFFSET_FETCH, 9, 7, {"groups": [{"groupId": "g", "topics": topics}]})
    assert (older["groupId"], older["topics"]) == ("g", topics)


def test_one_member_leaves_or_many() -> None:
    newer = converted(api_keys.LEAVE_GROUP, 1, 4, {"groupId": "g", "memberId": "m"})
    assert [member["memberId"] for member in newer["members"]] == ["m"]
    assert converted(api_keys.LEAVE_GROUP, 4, 1, {"groupId": "g", "members": [{"memberId": "m"}]})["memberId"] == "m"


def test_a_join_without_a_rebalance_timeout_had_the_session_s() -> None:
    body = {"groupId": "g", "sessionTimeoutMs": 6000, "memberId": "", "protocolType": "consumer", "protocols": []}
    assert converted(api_keys.JOIN_GROUP, 0, 5, body)["rebalanceTimeoutMs"] == 6000


def test_all_topics_of_metadata_v0_is_null_from_v1_on() -> None:
    assert converted(api_keys.METADATA, 0, 4, {"topics": []})["topics"] is None
    assert converted(api_keys.METADATA, 1, 4, {"topics": []})["topics"] == []


def test_what_would_change_the_meaning_is_refused() -> None:
    producing = {"transactionalId": "tx", "acks": 1, "timeoutMs": 1, "topicData": []}
    with pytest.raises(convert.ConversionError, match="transactionalId"):
        converted(api_keys.PRODUCE, 9, 2, producing)
    static = {"groupId": "g", "generationId": 1, "memberId": "m", "groupInstanceId": "i"}
    with pytest.raises(convert.ConversionError, match="groupInstanceId"):
        converted(api_keys.HEARTBEAT, 4, 2, static)
    newest = {"replicaId": -1, "topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "timestamp": -3}]}]}
    with pytest.raises(convert.ConversionError, match="timestamp -3"):
        converted(api_keys.LIST_OFFSETS, 7, 5, newest)


def test_what_only_informs_is_dropped() -> None:
    body = {"groupId": "g", "sessionTimeoutMs": 1, "memberId": "", "protocolType": "consumer", "reason": "why"}
    assert "reason" not in converted(api_keys.JOIN_GROUP, 9, 7, body)
