"""Which fields the bulk path puts on the tape, and what each means for the tables.

The definitions carry entity types (`topicName`, `groupId` ...); with a field's name they are enough to find topics,
groups and errors in any API and version, so no API is listed here by hand but where a column belongs to one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from analyzer.program import FieldInfo, Program
from analyzer.schema import REQUEST, RESPONSE

NONE: Final = 0
ERROR: Final = 1
THROTTLE: Final = 2
TOPIC: Final = 3
TOPIC_ID: Final = 4
ACKS: Final = 5
MAX_WAIT: Final = 6
MIN_BYTES: Final = 7
GROUP: Final = 8
MEMBER: Final = 9
GENERATION: Final = 10
MEMBER_EPOCH: Final = 11
TRANSACTIONAL_ID: Final = 12
SOFTWARE_NAME: Final = 13
SOFTWARE_VERSION: Final = 14
MECHANISM: Final = 15
API_KEY: Final = 16
API_MIN: Final = 17
API_MAX: Final = 18

# Of topic-partitions, and of who leads them.
FIRST_OF_PARTITIONS: Final = 19
PARTITION: Final = 19  # its index: starts one
PART_ERROR: Final = 20
PART_ERROR_EARLY: Final = 21  # stands before the index
PART_OFFSET: Final = 22
RECORDS: Final = 23
HIGH_WATERMARK: Final = 24  # this and the next three in the order of `state.P_HIGH_WATERMARK`
LAST_STABLE: Final = 25
LOG_START: Final = 26
PART_EPOCH: Final = 27
GROUP_SECTION: Final = 28  # one of several groups of a request
TRANSACTION_SECTION: Final = 29  # one of several transactional ids
SECTION: Final = 30  # either, in a response
LEADER_ID: Final = 31  # a redirect: current leader
LEADER_EPOCH: Final = 32
META_PARTITION: Final = 33
META_LEADER: Final = 34
ISR_COUNT: Final = 35
ISR: Final = 36
NODE_ID: Final = 37  # host, port and rack follow
NODE_HOST: Final = 38
NODE_PORT: Final = 39
NODE_RACK: Final = 40

API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
PRODUCE: Final = 0

_BY_PATH: Final = {
    (0, REQUEST, "acks"): ACKS,
    (1, REQUEST, "maxWaitMs"): MAX_WAIT,
    (1, REQUEST, "minBytes"): MIN_BYTES,
    (78, REQUEST, "maxWaitMs"): MAX_WAIT,
    (78, REQUEST, "minBytes"): MIN_BYTES,
    (API_VERSIONS, REQUEST, "clientSoftwareName"): SOFTWARE_NAME,
    (API_VERSIONS, REQUEST, "clientSoftwareVersion"): SOFTWARE_VERSION,
    (SASL_HANDSHAKE, REQUEST, "mechanism"): MECHANISM,
    (API_VERSIONS, RESPONSE, "apiKeys.apiKey"): API_KEY,
    (API_VERSIONS, RESPONSE, "apiKeys.minVersion"): API_MIN,
    (API_VERSIONS, RESPONSE, "apiKeys.maxVersion"): API_MAX,
}
PARTITION_APIS: Final = (0, 1, 2, 8, 9, 21, 23, 24, 28, 47, 61, 78, 79, 90, 91)
"""APIs whose topic-partitions are rows of `partitions`: data, offsets, group offsets, transactions. Not Metadata (it
has `leaders`) and not what brokers tell each other."""

_PARTITION_FIELDS: Final = frozenset(("index", "partition", "partitionIndex", "partitions[]", "partitionIndexes[]"))
_SKIPPED_PARENTS: Final = ("forgottenTopicsData",)
_PART_FIELDS: Final = {
    (0, REQUEST, "records"): RECORDS,
    (0, RESPONSE, "baseOffset"): PART_OFFSET,
    (0, RESPONSE, "logStartOffset"): LOG_START,
    (1, REQUEST, "fetchOffset"): PART_OFFSET,
    (1, REQUEST, "currentLeaderEpoch"): PART_EPOCH,
    (1, RESPONSE, "records"): RECORDS,
    (1, RESPONSE, "highWatermark"): HIGH_WATERMARK,
    (1, RESPONSE, "lastStableOffset"): LAST_STABLE,
    (1, RESPONSE, "logStartOffset"): LOG_START,
    (2, REQUEST, "currentLeaderEpoch"): PART_EPOCH,
    (2, RESPONSE, "oldStyleOffsets[]"): PART_OFFSET,
    (2, RESPONSE, "offset"): PART_OFFSET,
    (2, RESPONSE, "leaderEpoch"): PART_EPOCH,
    (8, REQUEST, "committedOffset"): PART_OFFSET,
    (8, REQUEST, "committedLeaderEpoch"): PART_EPOCH,
    (9, RESPONSE, "committedOffset"): PART_OFFSET,
    (9, RESPONSE, "committedLeaderEpoch"): PART_EPOCH,
    (21, REQUEST, "offset"): PART_OFFSET,
    (21, RESPONSE, "lowWatermark"): LOG_START,
    (23, REQUEST, "leaderEpoch"): PART_EPOCH,
    (23, RESPONSE, "leaderEpoch"): PART_EPOCH,
    (23, RESPONSE, "endOffset"): PART_OFFSET,
    (28, REQUEST, "committedOffset"): PART_OFFSET,
    (28, REQUEST, "committedLeaderEpoch"): PART_EPOCH,
    (78, RESPONSE, "records"): RECORDS,
    (90, RESPONSE, "startOffset"): PART_OFFSET,
    (90, RESPONSE, "leaderEpoch"): PART_EPOCH,
    (91, REQUEST, "startOffset"): PART_OFFSET,
}
"""Fields of a topic-partition, by API, direction and name: each stands in the struct that has the partition's index."""

_LEADER_FIELDS: Final = {
    "topics.partitions.partitionIndex": META_PARTITION,
    "topics.partitions.leaderId": META_LEADER,
    "topics.partitions.leaderEpoch": LEADER_EPOCH,
    "topics.partitions.isrNodes": ISR_COUNT,
    "topics.partitions.isrNodes[]": ISR,
}
"""Of Metadata (3) and DescribeTopicPartitions (75)."""

_NODE_FIELDS: Final = {
    "nodeId": NODE_ID, "brokerId": NODE_ID, "host": NODE_HOST, "port": NODE_PORT, "rack": NODE_RACK,
}  # fmt: skip

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
    if info.api_key in (3, 75) and info.direction == RESPONSE and info.path in _LEADER_FIELDS:
        return _LEADER_FIELDS[info.path]
    if info.direction == RESPONSE and last in _NODE_FIELDS:
        clients = parent == "nodeEndpoints" and info.api_key in PARTITION_APIS  # others give quorum nodes
        if clients or (parent == "brokers" and info.api_key in (3, 60)):
            return _NODE_FIELDS[last]
    if info.api_key in PARTITION_APIS and parent and not parent.startswith(_SKIPPED_PARENTS):
        if last in _PARTITION_FIELDS and info.kind == "int32":
            return PARTITION
        if parent.endswith("currentLeader") and last == "leaderId":
            return LEADER_ID
        if parent.endswith("currentLeader") and last == "leaderEpoch":
            return LEADER_EPOCH
        if (info.api_key, info.direction, last) in _PART_FIELDS:
            return _PART_FIELDS[info.api_key, info.direction, last]
        if last in ("errorCode", "partitionErrorCode") and info.direction == RESPONSE and "artition" in parent:
            return PART_ERROR_EARLY if info.api_key == 23 else PART_ERROR
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
