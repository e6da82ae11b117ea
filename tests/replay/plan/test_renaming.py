"""A capture under other names, and several times.

Proves: replay/plan/renaming.py, replay/plan/owned_names.py
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay import inputs
from kwire.replay.options import Options
from kwire.replay.plan import apis, batches, decisions
from kwire.replay.plan.config_changes import GROUP_RESOURCE
from kwire.replay.plan.owned_names import OwnedNames
from kwire.replay.plan.renaming import Renaming, copies, renamed
from kwire.replay.plan.sessions import Session
from tests.replay.batching import batch, produced, produced_answer, producer_of
from tests.replay.conversation import EVERYTHING, Captured, Target, replayed
from tests.shared import capture_files, shared_folder

P = Renaming({"billing": "invoices"}, "t-")


def renamed_exchange(api_key: int, version: int, body: Body, answer: Body, how: Renaming = P) -> tuple[Any, Any, Body]:
    """(request, answer, row) under their new names."""
    (session,) = renamed([Captured().add(0.0, api_key, version, body, answer).session()], how)
    (request,) = session.requests
    renamed_request, renamed_answer = request.decoded(), request.decoded_answer()
    assert renamed_request is not None
    assert renamed_answer is not None
    assert renamed_request.header is not None
    assert renamed_request.header["clientId"] == request.row["client_id"] == f"{how.prefix}client"
    assert isinstance(request.row, dict)
    return renamed_request.body, renamed_answer.body, request.row


def test_groups_in_requests_and_answers() -> None:
    request, _, _ = renamed_exchange(
        api_keys.HEARTBEAT, 3, {"groupId": "orders", "generationId": 1, "memberId": "m"}, {"errorCode": 0}
    )
    assert (request["groupId"], request["memberId"]) == ("t-orders", "m")
    described = {"groups": [{"groupId": "orders"}]}
    request, answer, _ = renamed_exchange(api_keys.DESCRIBE_GROUPS, 3, {"groups": ["orders", "billing"]}, described)
    assert request["groups"] == ["t-orders", "invoices"]
    assert answer["groups"][0]["groupId"] == "t-orders"
    request, _, _ = renamed_exchange(api_keys.DELETE_GROUPS, 1, {"groupsNames": ["orders"]}, {"results": []})
    assert request["groupsNames"] == ["t-orders"]
    fetched = {"groups": [{"groupId": "orders", "topics": None}], "requireStable": False}
    request, _, _ = renamed_exchange(api_keys.OFFSET_FETCH, 8, fetched, {"groups": []})
    assert request["groups"][0]["groupId"] == "t-orders"


@pytest.mark.parametrize(("kind", "wanted"), [(0, "invoices"), (1, "t-billing")])
def test_coordinators_are_asked_for_by_the_new_name_of_what_they_coordinate(kind: int, wanted: str) -> None:
    request, _, _ = renamed_exchange(
        api_keys.FIND_COORDINATOR, 1, {"key": "billing", "keyType": kind}, {"nodeId": 1, "host": "h"}
    )
    assert request["key"] == wanted
    coordinator = {"key": "billing", "nodeId": 1, "host": "h", "port": 1, "errorCode": 0}
    listed = {"keyType": kind, "coordinatorKeys": ["billing"]}
    request, answer, _ = renamed_exchange(api_keys.FIND_COORDINATOR, 4, listed, {"coordinators": [coordinator]})
    assert request["coordinatorKeys"] == [wanted]
    assert answer["coordinators"][0]["key"] == wanted


def test_settings_of_groups_and_of_nothing_else() -> None:
    kinds = api_keys.TOPIC_RESOURCE, GROUP_RESOURCE
    resources: list[Body] = [{"resourceType": kind, "resourceName": "orders", "configs": []} for kind in kinds]
    body = {"resources": resources, "validateOnly": False}
    request, _, _ = renamed_exchange(api_keys.INCREMENTAL_ALTER_CONFIGS, 1, body, {"responses": []})
    assert [resource["resourceName"] for resource in request["resources"]] == ["orders", "t-orders"]


def test_transactions_have_the_prefix_and_keep_their_producer() -> None:
    given = {"producerId": 7, "producerEpoch": 0}
    request, answer, _ = renamed_exchange(
        api_keys.INIT_PRODUCER_ID, 1, {"transactionalId": "pay", "transactionTimeoutMs": 1}, given
    )
    assert (request["transactionalId"], answer["producerId"]) == ("t-pay", 7)
    records = batch((7, 0), 0, transactional=True)
    request, _, row = renamed_exchange(api_keys.PRODUCE, 9, produced(records, name="pay"), produced_answer(0))
    assert request["transactionalId"] == "t-pay"
    assert request["topicData"][0]["partitionData"][0]["records"] == records
    assert row["topics"] is None  # as it was
    request, _, _ = renamed_exchange(api_keys.PRODUCE, 9, produced(batch()), produced_answer(0))
    assert request["transactionalId"] is None


def test_a_copy_has_producers_and_connections_of_its_own() -> None:
    captured = Captured()
    given = {"errorCode": 0, "producerId": 7, "producerEpoch": 3}
    captured.add(0.0, api_keys.INIT_PRODUCER_ID, 1, {"transactionalId": None, "transactionTimeoutMs": 1}, given)
    captured.add(1.0, api_keys.PRODUCE, 9, produced(batch((7, 3), 5)), produced_answer(0))
    first, second = copies([captured.session()], 2)
    assert (first.connection, second.connection) == (captured.connection, f"{captured.connection}~2")
    assert {request.row["connection"] for request in second.requests} == {second.connection}
    initialised, wrote = (request.decoded_answer() or request.decoded() for request in second.requests)
    assert initialised is not None
    assert initialised.body is not None
    there = initialised.body["producerId"]
    assert there != 7
    copied = second.requests[1].decoded()
    assert copied is not None
    assert copied.body is not None
    assert producer_of(copied.body) == (there, 3, 5)  # its checksum is right, too
    assert wrote is not None
    assert first == captured.session()


def test_copies_are_played_side_by_side() -> None:
    """Each asks for a producer of its own, and writes the records of the capture with it; a reader waits for the writer
    of its own copy, not for the other one."""
    writer, reader = Captured("10.0.0.1:1-10.0.0.9:9092#1"), Captured("10.0.0.1:2-10.0.0.9:9092#1")
    given = {"errorCode": 0, "producerId": 7, "producerEpoch": 0}
    writer.add(0.0, api_keys.INIT_PRODUCER_ID, 1, {"transactionalId": None, "transactionTimeoutMs": 1}, given)
    writer.add(1.0, api_keys.PRODUCE, 9, produced(batch((7, 0), 0)), produced_answer(0))
    part = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}
    got = {"partitionIndex": 0, "errorCode": 0, "highWatermark": 3, "records": batch((7, 0), 0)}
    reader.add(
        2.0,
        api_keys.FETCH,
        11,
        {"topics": [{"topic": "orders", "partitions": [part]}], "sessionEpoch": -1},
        {"responses": [{"topic": "orders", "partitions": [got]}]},
    )
    sessions = copies([writer.session(), reader.session()], 2)
    planned, _ = decisions.make(sessions, EVERYTHING, decisions.PlanOptions())
    fetches = [step for step in planned.steps if step.request.api_key == api_keys.FETCH]
    assert [[planned.steps[at].session for at in step.waits] for step in fetches] == [[0], [2]]

    class Again(Captured):
        def session(self) -> Session:
            return next(session for session in sessions if session.connection == self.connection)

    target = Target().on(
        api_keys.INIT_PRODUCER_ID, *({"errorCode": 0, "producerId": 900 + at, "producerEpoch": 0} for at in range(2))
    )
    target.on(api_keys.PRODUCE, produced_answer(0), produced_answer(3))
    replayed(
        [Again(session.connection) for session in sessions if "1:1-" in session.connection],
        target,
        topics={"orders": 1},
    )
    assert {producer_of(request.body)[0] for request in target.requests(api_keys.PRODUCE)} == {900, 901}
    assert {request.client_id for request in target.requests(api_keys.PRODUCE)} == {"client", "copy-2.client"}


def test_a_captured_transaction_is_the_same_but_for_its_names() -> None:
    """Every request and answer of a real capture, decoded again after it was renamed."""
    files = [str(path) for path in capture_files(shared_folder("txn-librdkafka-4.3"))]
    before = inputs.read(files, how=ReadOptions())
    after = renamed(before, Renaming({}, "t-"))
    back = renamed(after, _Removing())
    both = zip(before, back, strict=True)
    pairs = [each for before, other in both for each in zip(before.requests, other.requests, strict=True)]
    assert len(pairs) > 100
    for was, now in pairs:
        assert (was.data, was.answer, was.row) == (now.data, now.answer, now.row)
    transactional = {request.row["transactional_id"] for session in after for request in session.requests} - {None}
    assert transactional
    assert all(name.startswith("t-") for name in transactional)


@dataclasses.dataclass(frozen=True, slots=True)
class _Removing(Renaming):
    """The other way."""

    def __bool__(self) -> bool:
        return True

    def group(self, name: str) -> str:
        return name.removeprefix("t-")

    def transaction(self, name: str) -> str:
        return name.removeprefix("t-")


def test_nothing_is_changed_without_being_asked_for() -> None:
    sessions = [Captured().session()]
    assert renamed(sessions, Renaming()) == sessions
    assert copies(sessions, 1) == sessions
    assert inputs.prepared(sessions, Options("h", 1), []) == sessions


# --- what may be changed ---


def stranger(api_key: int, body: Body, **options: Any) -> str:
    return OwnedNames(**options).stranger(api_key, body, {"AAAAAAAAAAAAAAAAAAAAAQ": "orders"})


def test_topics_with_a_name_of_ours() -> None:
    both = {"topics": [{"name": "orders"}, {"name": "audit"}]}
    assert stranger(api_keys.CREATE_TOPICS, both, map_topic={"orders": "copy"}) == "topic audit"
    assert stranger(api_keys.CREATE_TOPICS, both, all_topics=True) == ""
    assert stranger(api_keys.CREATE_TOPICS, {"topics": [{"name": "__hidden"}]}, all_topics=True) == "topic __hidden"
    assert stranger(api_keys.CREATE_TOPICS, both, groups=P) == "topic orders"
    by_id = {"topics": [{"name": None, "topicId": "AAAAAAAAAAAAAAAAAAAAAQ"}]}
    assert stranger(api_keys.DELETE_TOPICS, by_id, map_topic={"orders": "copy"}) == ""
    unknown = {"topics": [{"name": None, "topicId": "AAAAAAAAAAAAAAAAAAAAAg"}]}
    assert stranger(api_keys.DELETE_TOPICS, unknown, all_topics=True) == "topic "


def test_groups_with_a_name_of_ours() -> None:
    assert stranger(api_keys.DELETE_GROUPS, {"groupsNames": ["t-orders", "invoices"]}, groups=P) == ""
    assert stranger(api_keys.DELETE_GROUPS, {"groupsNames": ["t-orders", "orders"]}, groups=P) == "group orders"
    assert stranger(api_keys.OFFSET_DELETE, {"groupId": "orders", "topics": []}, all_topics=True) == "group orders"


def test_settings_of_ours_and_what_is_nobodys_alone() -> None:
    def altering(kind: int, name: str) -> str:
        body = {"resources": [{"resourceType": kind, "resourceName": name, "configs": []}]}
        return stranger(api_keys.INCREMENTAL_ALTER_CONFIGS, body, all_topics=True, groups=P)

    assert altering(api_keys.TOPIC_RESOURCE, "orders") == ""
    assert altering(GROUP_RESOURCE, "t-orders") == ""
    assert altering(GROUP_RESOURCE, "orders") == "group orders"
    assert altering(api_keys.BROKER_RESOURCES[0], "1") == "resource 1 of type 4"
    for api_key in (api_keys.CREATE_ACLS, api_keys.ALTER_CLIENT_QUOTAS, api_keys.DELETE_ACLS, api_keys.UPDATE_FEATURES):
        assert stranger(api_key, {}, all_topics=True, groups=P)


def test_what_is_not_ours_is_skipped_by_name() -> None:
    captured = Captured()
    for name in ("orders", "audit"):
        wanted: Body = {"name": name, "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": []}
        captured.add(0.0, api_keys.CREATE_TOPICS, 5, {"topics": [wanted]}, {"topics": [{"name": name, "errorCode": 0}]})
    options = decisions.PlanOptions(frozenset((api_keys.CREATE_TOPICS,)), owned_names=OwnedNames({"orders": "copy"}))
    planned, _ = decisions.make([captured.session()], EVERYTHING, options)
    assert [(skip.rule, skip.reason) for skip in planned.skips] == [("outside", "topic audit")]
    assert len(planned.steps) == 1


def test_admin_is_what_creates_and_alters() -> None:
    names = {api_keys.name(key) for key in apis.ADMIN}
    assert all(apis.api(key).policy is apis.Policy.ALLOW for key in apis.ADMIN)
    assert all(name.startswith(("Create", "Alter", "IncrementalAlter")) for name in names)
    assert {"CreateTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs"} <= names
    assert not any("Delegation" in name or "Scram" in name for name in names)  # these hold secrets


def test_records_without_a_producer_are_those_of_the_capture() -> None:
    plain = batch()
    captured = Captured().add(0.0, api_keys.PRODUCE, 9, produced(plain), produced_answer(0))
    session, second = copies([captured.session()], 2)
    assert batches.produced(plain)[0].producer_id == -1
    for one_of in (session, second):
        body = one_of.requests[0].decoded()
        assert body is not None
        assert body.body is not None
        assert body.body["topicData"][0]["partitionData"][0]["records"] == plain
