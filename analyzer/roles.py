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
