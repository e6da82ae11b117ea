"""Which fields the bulk path puts on the tape, and what each means for the tables.

The definitions carry entity types (`topicName`, `groupId` ...); with a field's name they are enough to find topics,
groups and errors in any API and version, so no API is listed here by hand but where a column belongs to one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.program import FieldInfo, Program
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE

# The number of a role means nothing but its group: roles of an exchange, then those of its topic-partitions.
(
    NONE,
    ERROR,
    THROTTLE,
    TOPIC,
    TOPIC_ID,
    ACKS,
    MAX_WAIT,
    MIN_BYTES,
    ISOLATION_LEVEL,
    REPLICA,
    SESSION,
    SESSION_EPOCH,
    TIMEOUT,
    ASSIGNMENTS,  # how many there are
    GROUP,
    MEMBER,
    GENERATION,
    MEMBER_EPOCH,
    TRANSACTIONAL_ID,
    RACK,
    SOFTWARE_NAME,
    SOFTWARE_VERSION,
    MECHANISM,
    API_KEY,
    API_MIN,
    API_MAX,
    # Of topic-partitions, and of who leads them.
    PARTITION,  # its index: starts one
    PART_ERROR,
    PART_ERROR_EARLY,  # stands before the index
    PART_OFFSET,
    RECORDS,
    HIGH_WATERMARK,
    LAST_STABLE,
    LOG_START,
    PART_EPOCH,
    PREFERRED,  # Fetch: the replica that it shall read instead (KIP-392)
    SENT_ON,  # what else makes an answer come at once: another log
    DIVERGES,  # Fetch: where the log that is there ends for the reader's epoch
    ACQUIRED_FROM,  # ShareFetch: first and last of some records, and how often they have been given out
    ACQUIRED_TO,
    DELIVERED,
    FORGOTTEN,  # the index of one that leaves the session
    GROUP_SECTION,  # one of several groups of a request
    TRANSACTION_SECTION,  # one of several transactional ids
    SECTION,  # either, in a response
    LEADER_ID,  # a redirect: current leader
    LEADER_EPOCH,
    META_PARTITION,
    META_LEADER,
    META_REPLICAS,  # how many there are
    ISR_COUNT,
    ISR,
    NODE_ID,  # host, port and rack follow
    NODE_HOST,
    NODE_PORT,
    NODE_RACK,
    ROLES,
) = range(57)
FIRST_OF_PARTITIONS: Final = PARTITION

NAMES: Final = np.zeros(ROLES, np.uint8)
"""By role: does such a field make a string, a list, or a row of facts or leaders?"""
NAMES[
    [
        TOPIC,
        TOPIC_ID,
        API_KEY,
        GROUP_SECTION,
        TRANSACTION_SECTION,
        SECTION,
        LEADER_ID,
        META_PARTITION,
        ISR_COUNT,
        NODE_ID,
        NODE_HOST,
        NODE_RACK,
    ]
] = 1

_BY_PATH: Final = {
    (api_keys.PRODUCE, REQUEST, "acks"): ACKS,
    (api_keys.FETCH, REQUEST, "maxWaitMs"): MAX_WAIT,
    (api_keys.FETCH, REQUEST, "minBytes"): MIN_BYTES,
    (api_keys.FETCH, REQUEST, "isolationLevel"): ISOLATION_LEVEL,
    (api_keys.FETCH, REQUEST, "rackId"): RACK,
    (api_keys.FETCH, REQUEST, "replicaId"): REPLICA,
    (api_keys.FETCH, REQUEST, "replicaState.replicaId"): REPLICA,
    (api_keys.FETCH, REQUEST, "sessionId"): SESSION,
    (api_keys.FETCH, RESPONSE, "sessionId"): SESSION,
    (api_keys.FETCH, REQUEST, "sessionEpoch"): SESSION_EPOCH,
    (api_keys.PRODUCE, REQUEST, "timeoutMs"): TIMEOUT,
    (api_keys.JOIN_GROUP, REQUEST, "rebalanceTimeoutMs"): TIMEOUT,
    (api_keys.SYNC_GROUP, REQUEST, "assignments"): ASSIGNMENTS,
    (api_keys.SHARE_FETCH, REQUEST, "maxWaitMs"): MAX_WAIT,
    (api_keys.SHARE_FETCH, REQUEST, "minBytes"): MIN_BYTES,
    (api_keys.API_VERSIONS, REQUEST, "clientSoftwareName"): SOFTWARE_NAME,
    (api_keys.API_VERSIONS, REQUEST, "clientSoftwareVersion"): SOFTWARE_VERSION,
    (api_keys.SASL_HANDSHAKE, REQUEST, "mechanism"): MECHANISM,
    (api_keys.API_VERSIONS, RESPONSE, "apiKeys.apiKey"): API_KEY,
    (api_keys.API_VERSIONS, RESPONSE, "apiKeys.minVersion"): API_MIN,
    (api_keys.API_VERSIONS, RESPONSE, "apiKeys.maxVersion"): API_MAX,
}
PARTITION_APIS: Final = (
    api_keys.PRODUCE,
    api_keys.FETCH,
    api_keys.LIST_OFFSETS,
    api_keys.OFFSET_COMMIT,
    api_keys.OFFSET_FETCH,
    api_keys.DELETE_RECORDS,
    api_keys.OFFSET_FOR_LEADER_EPOCH,
    api_keys.ADD_PARTITIONS_TO_TXN,
    api_keys.TXN_OFFSET_COMMIT,
    api_keys.OFFSET_DELETE,
    api_keys.DESCRIBE_PRODUCERS,
    api_keys.SHARE_FETCH,
    api_keys.SHARE_ACKNOWLEDGE,
    api_keys.DESCRIBE_SHARE_GROUP_OFFSETS,
    api_keys.ALTER_SHARE_GROUP_OFFSETS,
)
"""APIs whose topic-partitions are rows of `partitions`: data, offsets, group offsets, transactions. Not Metadata (it
has `leaders`) and not what brokers tell each other."""

_PARTITION_FIELDS: Final = frozenset(("index", "partition", "partitionIndex", "partitions[]", "partitionIndexes[]"))
_FORGOTTEN: Final = "forgottenTopicsData"
_PART_FIELDS: Final = {
    (api_keys.PRODUCE, REQUEST, "records"): RECORDS,
    (api_keys.PRODUCE, RESPONSE, "baseOffset"): PART_OFFSET,
    (api_keys.PRODUCE, RESPONSE, "logStartOffset"): LOG_START,
    (api_keys.FETCH, REQUEST, "fetchOffset"): PART_OFFSET,
    (api_keys.FETCH, REQUEST, "currentLeaderEpoch"): PART_EPOCH,
    (api_keys.FETCH, RESPONSE, "records"): RECORDS,
    (api_keys.FETCH, RESPONSE, "highWatermark"): HIGH_WATERMARK,
    (api_keys.FETCH, RESPONSE, "lastStableOffset"): LAST_STABLE,
    (api_keys.FETCH, RESPONSE, "logStartOffset"): LOG_START,
    (api_keys.FETCH, RESPONSE, "preferredReadReplica"): PREFERRED,
    (api_keys.FETCH, RESPONSE, "epoch"): SENT_ON,  # of `divergingEpoch`, and of a snapshot to fetch first
    (api_keys.LIST_OFFSETS, REQUEST, "currentLeaderEpoch"): PART_EPOCH,
    (api_keys.LIST_OFFSETS, RESPONSE, "oldStyleOffsets[]"): PART_OFFSET,
    (api_keys.LIST_OFFSETS, RESPONSE, "offset"): PART_OFFSET,
    (api_keys.LIST_OFFSETS, RESPONSE, "leaderEpoch"): PART_EPOCH,
    (api_keys.OFFSET_COMMIT, REQUEST, "committedOffset"): PART_OFFSET,
    (api_keys.OFFSET_COMMIT, REQUEST, "committedLeaderEpoch"): PART_EPOCH,
    (api_keys.OFFSET_FETCH, RESPONSE, "committedOffset"): PART_OFFSET,
    (api_keys.OFFSET_FETCH, RESPONSE, "committedLeaderEpoch"): PART_EPOCH,
    (api_keys.DELETE_RECORDS, REQUEST, "offset"): PART_OFFSET,
    (api_keys.DELETE_RECORDS, RESPONSE, "lowWatermark"): LOG_START,
    (api_keys.OFFSET_FOR_LEADER_EPOCH, REQUEST, "leaderEpoch"): PART_EPOCH,
    (api_keys.OFFSET_FOR_LEADER_EPOCH, RESPONSE, "leaderEpoch"): PART_EPOCH,
    (api_keys.OFFSET_FOR_LEADER_EPOCH, RESPONSE, "endOffset"): PART_OFFSET,
    (api_keys.TXN_OFFSET_COMMIT, REQUEST, "committedOffset"): PART_OFFSET,
    (api_keys.TXN_OFFSET_COMMIT, REQUEST, "committedLeaderEpoch"): PART_EPOCH,
    (api_keys.SHARE_FETCH, RESPONSE, "records"): RECORDS,
    (api_keys.SHARE_FETCH, RESPONSE, "firstOffset"): ACQUIRED_FROM,
    (api_keys.SHARE_FETCH, RESPONSE, "lastOffset"): ACQUIRED_TO,
    (api_keys.SHARE_FETCH, RESPONSE, "deliveryCount"): DELIVERED,
    (api_keys.DESCRIBE_SHARE_GROUP_OFFSETS, RESPONSE, "startOffset"): PART_OFFSET,
    (api_keys.DESCRIBE_SHARE_GROUP_OFFSETS, RESPONSE, "leaderEpoch"): PART_EPOCH,
    (api_keys.ALTER_SHARE_GROUP_OFFSETS, REQUEST, "startOffset"): PART_OFFSET,
}
"""Fields of a topic-partition, by API, direction and name: each stands in the struct that has the partition's index."""

_LEADER_APIS: Final = (api_keys.METADATA, api_keys.DESCRIBE_TOPIC_PARTITIONS)
_LEADER_FIELDS: Final = {
    "topics.partitions.partitionIndex": META_PARTITION,
    "topics.partitions.leaderId": META_LEADER,
    "topics.partitions.leaderEpoch": LEADER_EPOCH,
    "topics.partitions.replicaNodes": META_REPLICAS,
    "topics.partitions.isrNodes": ISR_COUNT,
    "topics.partitions.isrNodes[]": ISR,
}
"""What answers that list topics say of who leads a partition."""

_NODE_APIS: Final = (api_keys.METADATA, api_keys.DESCRIBE_CLUSTER)
_NODE_FIELDS: Final = {
    "nodeId": NODE_ID,
    "brokerId": NODE_ID,
    "host": NODE_HOST,
    "port": NODE_PORT,
    "rack": NODE_RACK,
}

_BY_NAME: Final = {
    "throttleTimeMs": THROTTLE,
    "memberId": MEMBER,
    "generationId": GENERATION,
    "generationIdOrMemberEpoch": GENERATION,
    "memberEpoch": MEMBER_EPOCH,
}


def _role(info: FieldInfo) -> int:
    if info.api_key < 0:
        return NONE
    parent, _, last = info.path.rpartition(".")
    if info.api_key in _LEADER_APIS and info.direction == RESPONSE and info.path in _LEADER_FIELDS:
        return _LEADER_FIELDS[info.path]
    if info.direction == RESPONSE and last in _NODE_FIELDS:
        clients = parent == "nodeEndpoints" and info.api_key in PARTITION_APIS  # others give quorum nodes
        if clients or (parent == "brokers" and info.api_key in _NODE_APIS):
            return _NODE_FIELDS[last]
    if info.api_key in PARTITION_APIS and parent == _FORGOTTEN:
        if last in _PARTITION_FIELDS and info.kind == "int32":
            return FORGOTTEN
    elif info.api_key in PARTITION_APIS and parent:
        if last in _PARTITION_FIELDS and info.kind == "int32":
            return PARTITION
        if parent.endswith("currentLeader") and last == "leaderId":
            return LEADER_ID
        if parent.endswith("currentLeader") and last == "leaderEpoch":
            return LEADER_EPOCH
        if parent.endswith("divergingEpoch") and last == "endOffset":
            return DIVERGES
        if (info.api_key, info.direction, last) in _PART_FIELDS:
            return _PART_FIELDS[info.api_key, info.direction, last]
        if last in ("errorCode", "partitionErrorCode") and info.direction == RESPONSE and "artition" in parent:
            return PART_ERROR_EARLY if info.api_key == api_keys.OFFSET_FOR_LEADER_EPOCH else PART_ERROR
        if info.entity_type in ("groupId", "transactionalId") and info.kind == "string":
            if info.direction == RESPONSE:
                return SECTION
            return GROUP_SECTION if info.entity_type == "groupId" else TRANSACTION_SECTION
    by_path = _BY_PATH.get((info.api_key, info.direction, info.path))
    if by_path is not None:
        return by_path
    if "." not in info.path and info.path in _BY_NAME:
        role = _BY_NAME[info.path]
        return NONE if role == THROTTLE and info.direction == REQUEST else role
    name = info.path.rsplit(".", 1)[-1].removesuffix("[]")
    if info.kind == "string":
        if info.entity_type == "topicName":
            return TOPIC
        if info.entity_type == "groupId" and info.direction == REQUEST:
            return GROUP
        if info.entity_type == "transactionalId" and info.direction == REQUEST:
            return TRANSACTIONAL_ID
    if info.kind == "uuid" and name in ("topicId", "topicIds"):
        return TOPIC_ID
    if info.kind == "int16" and info.direction == RESPONSE and (name == "errorCode" or name.endswith("ErrorCode")):
        return ERROR
    return NONE


def roles(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """(role uint8[n_fields], parent int32[n_fields]): fields of one struct share their parent's number."""
    role = np.fromiter((_role(info) for info in program.fields), np.uint8, program.n_fields)
    numbers: dict[tuple[int, int, str], int] = {}
    parent = np.zeros(program.n_fields, np.int32)
    for info in program.fields:
        key = (info.api_key, info.direction, info.path.rpartition(".")[0])
        parent[info.id] = numbers.setdefault(key, len(numbers))
    return role, parent
