"""Kafka's error codes: a constant for each, their names, and whether the same request may succeed when sent again.

In: `definitions/errors.json`, from `org.apache.kafka.common.protocol.Errors` (see `tools/refresh_definitions.py`).
Rules: no code stands here as a number; a constant that the file lacks fails when this is imported, and one that the
file has and this lacks fails its test.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from kwire.analyzer.protocol.schema import FOLDER

# Codes, declared for type checkers and readers; their values are set below.
UNKNOWN_SERVER_ERROR: int
NONE: int
OFFSET_OUT_OF_RANGE: int
CORRUPT_MESSAGE: int
UNKNOWN_TOPIC_OR_PARTITION: int
INVALID_FETCH_SIZE: int
LEADER_NOT_AVAILABLE: int
NOT_LEADER_OR_FOLLOWER: int
REQUEST_TIMED_OUT: int
BROKER_NOT_AVAILABLE: int
REPLICA_NOT_AVAILABLE: int
MESSAGE_TOO_LARGE: int
STALE_CONTROLLER_EPOCH: int
OFFSET_METADATA_TOO_LARGE: int
NETWORK_EXCEPTION: int
COORDINATOR_LOAD_IN_PROGRESS: int
COORDINATOR_NOT_AVAILABLE: int
NOT_COORDINATOR: int
INVALID_TOPIC_EXCEPTION: int
RECORD_LIST_TOO_LARGE: int
NOT_ENOUGH_REPLICAS: int
NOT_ENOUGH_REPLICAS_AFTER_APPEND: int
INVALID_REQUIRED_ACKS: int
ILLEGAL_GENERATION: int
INCONSISTENT_GROUP_PROTOCOL: int
INVALID_GROUP_ID: int
UNKNOWN_MEMBER_ID: int
INVALID_SESSION_TIMEOUT: int
REBALANCE_IN_PROGRESS: int
INVALID_COMMIT_OFFSET_SIZE: int
TOPIC_AUTHORIZATION_FAILED: int
GROUP_AUTHORIZATION_FAILED: int
CLUSTER_AUTHORIZATION_FAILED: int
INVALID_TIMESTAMP: int
UNSUPPORTED_SASL_MECHANISM: int
ILLEGAL_SASL_STATE: int
UNSUPPORTED_VERSION: int
TOPIC_ALREADY_EXISTS: int
INVALID_PARTITIONS: int
INVALID_REPLICATION_FACTOR: int
INVALID_REPLICA_ASSIGNMENT: int
INVALID_CONFIG: int
NOT_CONTROLLER: int
INVALID_REQUEST: int
UNSUPPORTED_FOR_MESSAGE_FORMAT: int
POLICY_VIOLATION: int
OUT_OF_ORDER_SEQUENCE_NUMBER: int
DUPLICATE_SEQUENCE_NUMBER: int
INVALID_PRODUCER_EPOCH: int
INVALID_TXN_STATE: int
INVALID_PRODUCER_ID_MAPPING: int
INVALID_TRANSACTION_TIMEOUT: int
CONCURRENT_TRANSACTIONS: int
TRANSACTION_COORDINATOR_FENCED: int
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: int
SECURITY_DISABLED: int
OPERATION_NOT_ATTEMPTED: int
KAFKA_STORAGE_ERROR: int
LOG_DIR_NOT_FOUND: int
SASL_AUTHENTICATION_FAILED: int
UNKNOWN_PRODUCER_ID: int
REASSIGNMENT_IN_PROGRESS: int
DELEGATION_TOKEN_AUTH_DISABLED: int
DELEGATION_TOKEN_NOT_FOUND: int
DELEGATION_TOKEN_OWNER_MISMATCH: int
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: int
DELEGATION_TOKEN_AUTHORIZATION_FAILED: int
DELEGATION_TOKEN_EXPIRED: int
INVALID_PRINCIPAL_TYPE: int
NON_EMPTY_GROUP: int
GROUP_ID_NOT_FOUND: int
FETCH_SESSION_ID_NOT_FOUND: int
INVALID_FETCH_SESSION_EPOCH: int
LISTENER_NOT_FOUND: int
TOPIC_DELETION_DISABLED: int
FENCED_LEADER_EPOCH: int
UNKNOWN_LEADER_EPOCH: int
UNSUPPORTED_COMPRESSION_TYPE: int
STALE_BROKER_EPOCH: int
OFFSET_NOT_AVAILABLE: int
MEMBER_ID_REQUIRED: int
PREFERRED_LEADER_NOT_AVAILABLE: int
GROUP_MAX_SIZE_REACHED: int
FENCED_INSTANCE_ID: int
ELIGIBLE_LEADERS_NOT_AVAILABLE: int
ELECTION_NOT_NEEDED: int
NO_REASSIGNMENT_IN_PROGRESS: int
GROUP_SUBSCRIBED_TO_TOPIC: int
INVALID_RECORD: int
UNSTABLE_OFFSET_COMMIT: int
THROTTLING_QUOTA_EXCEEDED: int
PRODUCER_FENCED: int
RESOURCE_NOT_FOUND: int
DUPLICATE_RESOURCE: int
UNACCEPTABLE_CREDENTIAL: int
INCONSISTENT_VOTER_SET: int
INVALID_UPDATE_VERSION: int
FEATURE_UPDATE_FAILED: int
PRINCIPAL_DESERIALIZATION_FAILURE: int
SNAPSHOT_NOT_FOUND: int
POSITION_OUT_OF_RANGE: int
UNKNOWN_TOPIC_ID: int
DUPLICATE_BROKER_REGISTRATION: int
BROKER_ID_NOT_REGISTERED: int
INCONSISTENT_TOPIC_ID: int
INCONSISTENT_CLUSTER_ID: int
TRANSACTIONAL_ID_NOT_FOUND: int
FETCH_SESSION_TOPIC_ID_ERROR: int
INELIGIBLE_REPLICA: int
NEW_LEADER_ELECTED: int
OFFSET_MOVED_TO_TIERED_STORAGE: int
FENCED_MEMBER_EPOCH: int
UNRELEASED_INSTANCE_ID: int
UNSUPPORTED_ASSIGNOR: int
STALE_MEMBER_EPOCH: int
MISMATCHED_ENDPOINT_TYPE: int
UNSUPPORTED_ENDPOINT_TYPE: int
UNKNOWN_CONTROLLER_ID: int
UNKNOWN_SUBSCRIPTION_ID: int
TELEMETRY_TOO_LARGE: int
INVALID_REGISTRATION: int
TRANSACTION_ABORTABLE: int
INVALID_RECORD_STATE: int
SHARE_SESSION_NOT_FOUND: int
INVALID_SHARE_SESSION_EPOCH: int
FENCED_STATE_EPOCH: int
INVALID_VOTER_KEY: int
DUPLICATE_VOTER: int
VOTER_NOT_FOUND: int
INVALID_REGULAR_EXPRESSION: int
REBOOTSTRAP_REQUIRED: int
STREAMS_INVALID_TOPOLOGY: int
STREAMS_INVALID_TOPOLOGY_EPOCH: int
STREAMS_TOPOLOGY_FENCED: int
SHARE_SESSION_LIMIT_REACHED: int
GROUP_DELETION_FAILED: int
STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: int
CONTROLLER_ID_NOT_REGISTERED: int


class KafkaError(NamedTuple):
    """`retriable`: Kafka's exception for the code is a RetriableException."""

    code: int
    name: str
    retriable: bool
    message: str


@functools.cache
def errors() -> dict[int, KafkaError]:
    """Every error by its code."""
    rows = json.loads((FOLDER / "errors.json").read_bytes())
    return {row["code"]: KafkaError(**row) for row in rows}


globals().update({error.name: error.code for error in errors().values() if error.name in __annotations__})


def name(code: int) -> str:
    """`NOT_COORDINATOR` for 16; `UNKNOWN_CODE_n` for a code that Kafka does not have."""
    error = errors().get(code)
    return error.name if error is not None else f"UNKNOWN_CODE_{code}"


def retriable(code: int) -> bool:
    """Unknown codes are not retriable."""
    error = errors().get(code)
    return error is not None and error.retriable


def label(code: int) -> str:
    """As errors are shown to people: `NOT_COORDINATOR (16)`."""
    return f"{name(code)} ({code})"


def codes(body: Any) -> Iterator[int]:
    """The error codes of a body (`tree.Body`) that are not 0, at any depth, in order."""
    if isinstance(body, dict):
        for field, value in body.items():
            if isinstance(value, (dict, list)):
                yield from codes(value)
            elif isinstance(value, int) and value and (field == "errorCode" or field.endswith("ErrorCode")):
                yield value
    elif isinstance(body, list):
        for element in body:
            yield from codes(element)
