"""Every error of Kafka's enum has its judgement, and the pairs that matter have theirs.

Proves `protocol/error_severity.py`.
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import error_severity, errors, schema
from kwire.analyzer.protocol.error_severity import judge


def test_every_error_of_the_enum_is_judged_once() -> None:
    usual = [judgement.code for judgement in error_severity.judgements() if judgement.api is None]
    assert sorted(usual) == sorted(set(errors.errors()) - {errors.NONE})
    assert len(error_severity.judgements()) == len(
        {(message.code, message.api) for message in error_severity.judgements()}
    )


def test_lines_name_the_error_as_kafka_does_and_apis_that_there_are() -> None:
    import json
    from pathlib import Path

    rows = json.loads(Path(error_severity.__file__).with_name("judgements.json").read_text(encoding="utf-8"))
    assert all(row["name"] == errors.name(row["code"]) for row in rows)
    assert {api for row in rows for api in row.get("apis", {})} <= {api.name for api in schema.apis()}


@pytest.mark.parametrize(
    "judgement", error_severity.judgements(), ids=lambda message: f"{errors.name(message.code)}-{message.api}"
)
def test_a_judgement_has_its_grace_and_a_sentence(judgement: error_severity.Judgement) -> None:
    assert judgement.kind in error_severity.GRACE
    assert (judgement.kind == "bad") == (judgement.grace_s == 0)
    assert judgement.kind != "transient" or judgement.grace_s
    assert judgement.kind != "admin" or judgement.grace_s is None
    assert judgement.why.endswith(".")


@pytest.mark.parametrize(
    ("code", "api", "kind"),
    [
        (errors.UNSUPPORTED_VERSION, "ApiVersions", "normal"),
        (errors.UNSUPPORTED_VERSION, "Fetch", "bad"),
        (errors.UNSUPPORTED_VERSION, "ConsumerGroupDescribe", "normal"),  # of a tool that finds out a group's kind
        (errors.MEMBER_ID_REQUIRED, "JoinGroup", "normal"),
        (errors.COORDINATOR_NOT_AVAILABLE, "FindCoordinator", "transient"),
        (errors.UNKNOWN_TOPIC_OR_PARTITION, "Metadata", "transient"),
        (errors.UNKNOWN_TOPIC_OR_PARTITION, "DeleteTopics", "admin"),
        (errors.REQUEST_TIMED_OUT, "Produce", "bad"),
        (errors.REQUEST_TIMED_OUT, "CreateTopics", "admin"),
        (errors.REQUEST_TIMED_OUT, "AlterUserScramCredentials", "admin"),
        (errors.SASL_AUTHENTICATION_FAILED, "SaslAuthenticate", "bad"),
        (9999, "Fetch", "bad"),
    ],
)
def test_a_judgement_is_of_a_code_as_the_answer_of_an_api(code: int, api: str, kind: str) -> None:
    assert judge(code, api).kind == kind
