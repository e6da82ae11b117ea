"""When the same request is sent again. Pure: the errors of both answers in, the name of a rule out.

A fresh target meets a faithful resend with races that the capture does not show (replay/README.md has what brokers
answered): such an answer is retried as a client would, with a bound, and counted. An error that the capture has too is
the answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from replay import apis
from replay.outcome import error_codes

Body = dict[str, Any]

OFFSET_OUT_OF_RANGE: Final = 1
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
UNSUPPORTED_VERSION: Final = 35
OUT_OF_ORDER_SEQUENCE: Final = 45
MEMBER_ID_REQUIRED: Final = 79
UNKNOWN_TOPIC_ID: Final = 100
FENCED_MEMBER_EPOCH: Final = 110

NO_TOPIC: Final = (3, UNKNOWN_TOPIC_ID)
"""UNKNOWN_TOPIC_OR_PARTITION, and the same by id."""
NO_COORDINATOR: Final = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
_LEADER_MOVED: Final = (5, 6, 7, 9, 13, 19, 20, 56, 74, 75)
"""What clients ask for the leader after: it moves, times out, lacks replicas or its disk, is of another epoch."""
_SESSION_LOST: Final = (70, 71)
"""FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH."""

_BY_CODE: Final = {
    **dict.fromkeys(NO_TOPIC, "topic_appears"),
    **dict.fromkeys(NO_COORDINATOR, "coordinator_loads"),
    **dict.fromkeys(_LEADER_MOVED, "leader_moved"),
    **dict.fromkeys(_SESSION_LOST, "session_remade"),
    51: "transaction_ends",  # CONCURRENT_TRANSACTIONS
    113: "member_epoch_moved",  # STALE_MEMBER_EPOCH
}
_REJOINS: Final = {
    **dict.fromkeys(apis.GROUP_HEARTBEATS, (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH)),
    **dict.fromkeys(
        (apis.HEARTBEAT, apis.SYNC_GROUP, apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT),
        (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS),
    ),
    apis.JOIN_GROUP: (UNKNOWN_MEMBER_ID,),
}
"""Errors after which a client joins its group again, by API."""
_NOT_FOR: Final = frozenset((apis.METADATA, apis.DESCRIBE_CONFIGS, apis.DELETE_TOPICS))
"""APIs that ask about a topic: that it is not there is an answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long (seconds) an answer of a kind is retried: `errors` covers an election after a broker died, `records`
    and `rebalance` what another member or producer of the capture still has to do."""

    errors: float = 30.0
    records: float = 5.0
    rebalance: float = 30.0
    first_pause: float = 0.02
    longest_pause: float = 0.5


def codes(body: Body | None) -> set[int]:
    """Every error code of an answer but 0, at any depth."""
    return set(error_codes(body))


def rule(
    api_key: int, captured: Body | None, replayed: Body, after_retry: bool, given_up: Collection[int] = ()
) -> str | None:
    """The rule by which a request with this answer is sent again; None: it is the answer. `after_retry`: an earlier
    request of the connection was sent again, so that this one came before it. `given_up`: errors that are waited for no
    more."""
    expected = codes(captured).union(given_up)
    for code in sorted(codes(replayed) - expected):
        found = _BY_CODE.get(code)
        if code in NO_TOPIC and api_key in _NOT_FOR:
            continue
        if found is not None:
            return found
        if code == OUT_OF_ORDER_SEQUENCE and after_retry:
            return "leader_moved"
        if code == OFFSET_OUT_OF_RANGE and api_key == apis.FETCH:
            return "position_asked"
        if code in _REJOINS.get(api_key, ()):
            return "rejoined"
        if code == MEMBER_ID_REQUIRED and captured is not None and not expected:
            return "member_id_given"
    if captured is None:
        return None
    if api_key == apis.FETCH and has_records(captured) and not has_records(replayed) and not codes(replayed):
        return "records_awaited"
    if api_key == apis.HEARTBEAT and captured["errorCode"] == REBALANCE_IN_PROGRESS and not replayed["errorCode"]:
        return "rebalance_awaited"
    if api_key in apis.GROUP_HEARTBEATS and not codes(replayed):
        if _assigned(captured) and not _assigned(replayed):
            return "rebalance_awaited"
    return None


def _assigned(answer: Body) -> bool:
    assignment = answer.get("assignment")
    return bool(assignment and assignment["topicPartitions"])


def has_records(answer: Body) -> bool:
    """Does a Fetch answer carry records?"""
    return any(partition.get("records") for topic in answer.get("responses", ()) for partition in topic["partitions"])


def absent_topics(api_key: int, answer: Body, captured: Body | None) -> set[str]:
    """The topics of a named answer (`apis.NAME`) that are not there, and were in the capture; "" for one that the
    target knows no id of. Nothing where the API's answer does not tell topics apart."""
    where = apis.RESPONSE_LISTS.get(api_key)
    if where is None:
        return set()
    missing = set(NO_TOPIC) - codes(captured)
    return {
        topic.get(apis.NAME) or topic.get(where.name) or ""
        for topic in apis.structs(answer, where.path)
        if missing & codes({where.partitions: topic[where.partitions]})
    }


def failed_partitions(api_key: int, answer: Body, captured: Body | None) -> set[tuple[str, int]] | None:
    """The partitions of a named answer (`apis.NAME`) whose errors are retried; None where the API's answer does not
    tell partitions apart."""
    where = apis.RESPONSE_LISTS.get(api_key)
    if where is None or codes({"errorCode": answer.get("errorCode", 0)}):
        return None
    expected = codes(captured)
    return {
        (topic.get(apis.NAME) or topic.get(where.name) or "", one[where.number])
        for topic in apis.structs(answer, where.path)
        for one in topic[where.partitions]
        if codes({"errorCode": one.get("errorCode", 0)}) - expected
    }
