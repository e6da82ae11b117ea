"""Settings that captured requests changed, and what seeding makes of them.

Proves: replay/plan/config_changes.py, replay/send/seeding.py
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay import inputs
from kwire.replay.plan import decisions
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.config_changes import GROUP_RESOURCE
from kwire.replay.remap.topology import Topology
from kwire.replay.send import seeding
from kwire.replay.send.target import Target
from tests.replay.conversation import EVERYTHING, Captured
from tests.shared import capture_files, shared_folder

SET, DELETE, APPEND, SUBTRACT = range(4)
RETENTION = "retention.ms"


def create(name: str, at: float, captured: Captured, **configs: str) -> None:
    settings = [{"name": setting.replace("_", "."), "value": value} for setting, value in configs.items()]
    request_body = {"name": name, "numPartitions": 2, "replicationFactor": 3, "assignments": [], "configs": settings}
    created = {"name": name, "errorCode": 0, "numPartitions": 2}
    captured.add(at, api_keys.CREATE_TOPICS, 5, {"topics": [request_body]}, {"topics": [created]})


def alter(
    captured: Captured,
    at: float,
    name: str,
    *operations: tuple[str, int, str | None],
    kind: int = 2,
    error: int = 0,
    only_validate: bool = False,
) -> None:
    configs = [
        {"name": setting, "configOperation": operation, "value": value} for setting, operation, value in operations
    ]
    body = {"resources": [{"resourceType": kind, "resourceName": name, "configs": configs}]}
    answer = {"responses": [{"resourceType": kind, "resourceName": name, "errorCode": error}]}
    captured.add(at, api_keys.INCREMENTAL_ALTER_CONFIGS, 1, {**body, "validateOnly": only_validate}, answer)


def learned(*captured: Captured) -> Cluster:
    return decisions.make([capture.session() for capture in captured], EVERYTHING, decisions.PlanOptions())[1]


def test_operations_in_order_of_time_over_what_the_topic_was_made_with() -> None:
    """The second connection speaks between the requests of the first."""
    first, second = Captured(), Captured("10.0.0.1:5001-10.0.0.9:9092#1")
    create("orders", 0.0, first, retention_ms="1", segment_bytes="9")
    alter(first, 1.0, "orders", (RETENTION, SET, "2"), ("max.message.bytes", SET, "5000000"))
    alter(second, 2.0, "orders", (RETENTION, SET, "3"), ("segment.bytes", DELETE, None))
    alter(first, 3.0, "orders", ("cleanup.policy", APPEND, "compact"), ("unknown.list", APPEND, "a"))
    assert learned(first, second).altered == {
        "orders": {RETENTION: "3", "max.message.bytes": "5000000", "cleanup.policy": "delete,compact"}
    }
    alter(second, 4.0, "orders", ("cleanup.policy", SUBTRACT, "delete"))
    assert learned(first, second).altered["orders"]["cleanup.policy"] == "compact"


def test_the_request_of_before_says_all_settings() -> None:
    captured = Captured()
    create("orders", 0.0, captured, segment_bytes="9")
    resource = {"resourceType": 2, "resourceName": "orders", "configs": [{"name": RETENTION, "value": "7"}]}
    answer = {"responses": [{"resourceType": 2, "resourceName": "orders", "errorCode": 0}]}
    captured.add(1.0, api_keys.ALTER_CONFIGS, 1, {"resources": [resource], "validateOnly": False}, answer)
    assert learned(captured).altered == {"orders": {RETENTION: "7"}}


def test_what_changed_nothing_is_not_taken() -> None:
    captured = Captured()
    create("orders", 0.0, captured)
    alter(captured, 1.0, "orders", (RETENTION, SET, "2"), error=errors.INVALID_CONFIG)
    alter(captured, 2.0, "orders", (RETENTION, SET, "2"), only_validate=True)
    alter(captured, 3.0, "1", ("log.retention.ms", SET, "2"), kind=api_keys.BROKER_RESOURCES[0])
    cluster = learned(captured)
    assert (cluster.altered, cluster.group_configs) == ({}, {})
    alter(captured, 4.0, "orders", ("leader.replication.throttled.replicas", SET, "0:1"))
    assert learned(captured).altered == {"orders": {}}


def test_a_topic_that_is_made_again_begins_anew() -> None:
    captured = Captured()
    create("orders", 0.0, captured, segment_bytes="9")
    alter(captured, 1.0, "orders", (RETENTION, SET, "2"))
    create("orders", 2.0, captured)
    cluster = learned(captured)
    assert cluster.altered == {}
    assert cluster.topics["orders"].configs == {}


def test_a_size_that_was_allowed_stays_allowed() -> None:
    """Records that were sent before have to fit at the start of a replay."""
    captured = Captured()
    create("orders", 0.0, captured, max_message_bytes="9000")
    alter(captured, 1.0, "orders", ("max.message.bytes", SET, "500"))
    assert learned(captured).altered == {"orders": {"max.message.bytes": "9000"}}
    alter(captured, 2.0, "orders", ("max.message.bytes", SET, "10000"))
    alter(captured, 3.0, "orders", ("max.message.bytes", DELETE, None))
    assert learned(captured).altered == {"orders": {"max.message.bytes": "10000"}}


def test_a_shared_capture_of_an_administrator() -> None:
    """An administrator of librdkafka, which asks for both kinds of change."""
    sessions = inputs.read(
        [str(path) for path in capture_files(shared_folder("admin-librdkafka-4.3"))], how=ReadOptions()
    )
    _, cluster = decisions.make(sessions, EVERYTHING, decisions.PlanOptions())
    made_with = {"cleanup.policy": "compact,delete"}
    assert cluster.altered == {"adm": {**made_with, "max.message.bytes": "200000"}, "adm2": {RETENTION: "7200000"}}


# --- what seeding makes of it ---


class Channel:
    """A broker that takes everything; `creating`: errors with which it answers CreateTopics first, one a time."""

    address = "target:9092"

    def __init__(self, topology: Topology, refused: int = 0, creating: tuple[int, ...] = ()) -> None:
        self.asked: list[tuple[int, Body]] = []
        self.creating = list(creating)
        self.topology = topology
        self.refused = refused

    async def ask(self, api_key: int, version: int, body: Body, timeout: float) -> Body:
        self.asked.append((api_key, body))
        if api_key == api_keys.CREATE_TOPICS:
            code = self.creating.pop(0) if self.creating else 0
            return {"topics": [{"name": topic["name"], "errorCode": code} for topic in body["topics"]]}
        if api_key == api_keys.INCREMENTAL_ALTER_CONFIGS:
            return {"responses": [{**resource, "errorCode": self.refused} for resource in body["resources"]]}
        if api_key == api_keys.METADATA:
            part = {"partitionIndex": 0, "leaderId": 1, "errorCode": 0}
            topics = [{"name": topic["name"], "errorCode": 0, "partitions": [part]} for topic in body["topics"]]
            return {"brokers": [{"nodeId": 1, "host": "target", "port": 9092}], "topics": topics}
        assert api_key == api_keys.LIST_OFFSETS
        return {"topics": [{"partitions": [{"errorCode": 0, "offset": 0}]}]}


def seeded(
    cluster: Cluster,
    allow: tuple[int, ...] = (),
    as_captured: bool = False,
    refused: int = 0,
    creating: tuple[int, ...] = (),
) -> tuple[dict[str, str | None], list[Body], seeding.Seeded]:
    """(settings of the topic that was made, resources that were altered, what was done)."""
    topology = Topology(nodes={1: ("target", 9092)})
    channel: Any = Channel(topology, refused, creating)
    target = Target(EVERYTHING, topology, channel, None, {1: channel})  # type: ignore[arg-type]
    done = asyncio.run(seeding.seed(cluster, target, {}, frozenset(allow), as_captured))
    created: dict[str, str | None] = {}
    altered: list[Body] = []
    for api_key, body in channel.asked:
        if api_key == api_keys.CREATE_TOPICS:
            created = {topic["name"]: topic["value"] for topic in body["topics"][0]["configs"]}
        elif api_key == api_keys.INCREMENTAL_ALTER_CONFIGS:
            altered += body["resources"]
    return created, altered, done


def test_a_topic_that_cannot_be_made_is_told_once_and_with_the_errors_name() -> None:
    captured = Captured()
    create("orders", 0.0, captured, segment_bytes="9")
    policy = errors.POLICY_VIOLATION
    for times, note in (
        (1, "orders was refused with its captured configuration; created without"),
        (2, "orders was refused with its captured configuration; created without"),
        (3, "orders could not be created: POLICY_VIOLATION (44)"),
    ):
        assert seeded(learned(captured), creating=(policy,) * times)[2].notes == [note]


def administered() -> Cluster:
    captured = Captured()
    create("orders", 0.0, captured, retention_ms="1000", min_insync_replicas="2")
    alter(captured, 1.0, "orders", ("max.message.bytes", SET, "5000000"), (RETENTION, SET, "2000"))
    alter(captured, 2.0, "billing", ("consumer.session.timeout.ms", SET, "50000"), kind=GROUP_RESOURCE)
    return learned(captured)


def test_topics_and_groups_are_made_with_the_settings_that_they_were_left_with() -> None:
    created, altered, done = seeded(administered(), as_captured=True)
    # One replica cannot be two in sync.
    assert created == {RETENTION: "2000", "max.message.bytes": "5000000", "min.insync.replicas": "1"}
    assert altered == [
        {
            "resourceType": GROUP_RESOURCE,
            "resourceName": "billing",
            "configs": [{"name": "consumer.session.timeout.ms", "configOperation": SET, "value": "50000"}],
        }
    ]
    # What answers of before said is another value than there is now, and no difference.
    assert done.changed == {"orders": ["max.message.bytes", "min.insync.replicas", RETENTION]}
    assert done.notes == []
    created, _, _ = seeded(administered())
    assert (created[RETENTION], created["max.message.bytes"]) == ("-1", "5000000")


def test_where_the_requests_are_sent_themselves_nothing_is_folded() -> None:
    created, altered, _ = seeded(administered(), (api_keys.INCREMENTAL_ALTER_CONFIGS,), as_captured=True)
    assert created == {RETENTION: "1000", "min.insync.replicas": "1"}
    assert altered == []


def test_settings_of_groups_that_the_target_refuses_are_told() -> None:
    _, _, done = seeded(administered(), refused=errors.INVALID_REQUEST)
    assert done.notes == ["group billing: its captured settings were refused: INVALID_REQUEST (42)"]


def delete(name: str, at: float, captured: Captured, error: int = 0) -> None:
    answer = {"responses": [{"name": name, "errorCode": error}]}
    captured.add(at, api_keys.DELETE_TOPICS, 4, {"topicNames": [name], "timeoutMs": 1000}, answer)


BOTH = (api_keys.CREATE_TOPICS, api_keys.DELETE_TOPICS)


@pytest.mark.parametrize(
    ("life", "allow", "left"),
    [
        pytest.param("c", BOTH[:1], True, id="made"),
        pytest.param("c", (), False, id="made, and that is not sent"),
        pytest.param("", BOTH, False, id="there before"),
        pytest.param("dc", BOTH, False, id="there before, and made again"),
        pytest.param("cdc", BOTH, True, id="made again"),
        pytest.param("cdc", BOTH[:1], False, id="made again, and not deleted before"),
        pytest.param("cxc", BOTH[:1], True, id="made, and not deleted when captured either"),
    ],
)
def test_a_topic_is_left_to_the_capture_where_that_makes_it_first(
    life: str, allow: tuple[int, ...], left: bool
) -> None:
    """Else it is made before anything is sent, with as many partitions as it ever had."""
    captured = Captured()
    alter(captured, 0.0, "orders", (RETENTION, SET, "2"))
    captured.add(0.1, api_keys.METADATA, 12, {"topics": None}, metadata("orders", 3))
    for at, what in enumerate(life, 1):
        if what == "c":
            create("orders", at, captured)
        else:
            delete("orders", at, captured, errors.TOPIC_AUTHORIZATION_FAILED if what == "x" else 0)
    cluster = learned(captured)
    created, _, _ = seeded(cluster, allow)
    assert (created == {}) == left
    lacks = seeding.absent([("there", cluster.topics["orders"])], Topology(), cluster, allow)
    assert lacks == ([] if left else ["the target has no topic there; --seed-topics makes it"])


def metadata(topic: str, partitions: int) -> Body:
    parts = [
        {
            "errorCode": 0,
            "partitionIndex": number,
            "leaderId": 1,
            "replicaNodes": [1],
            "isrNodes": [1],
            "offlineReplicas": [],
        }
        for number in range(partitions)
    ]
    named = {"errorCode": 0, "name": topic, "isInternal": False, "partitions": parts}
    return {"brokers": [], "clusterId": "c", "controllerId": 1, "topics": [named]}
