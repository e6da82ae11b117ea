"""Kafka's names: a constant for each API, and for the numbers of its requests that no definition names.

In: the definitions. Out: `names.FETCH` is the API key that they give Fetch. Error codes have their constants in
`errors`, the fields in which messages list topics in `topics`. Rules: no number stands here that the definitions tell;
a constant that they lack fails when this is imported, and one that they have and this lacks fails its test.
"""

from __future__ import annotations

import re
from typing import Final

from kwire.analyzer.protocol import schema

# API keys, declared for type checkers and readers; their values are set below.
PRODUCE: int
FETCH: int
LIST_OFFSETS: int
METADATA: int
LEADER_AND_ISR: int
STOP_REPLICA: int
UPDATE_METADATA: int
CONTROLLED_SHUTDOWN: int
OFFSET_COMMIT: int
OFFSET_FETCH: int
FIND_COORDINATOR: int
JOIN_GROUP: int
HEARTBEAT: int
LEAVE_GROUP: int
SYNC_GROUP: int
DESCRIBE_GROUPS: int
LIST_GROUPS: int
SASL_HANDSHAKE: int
API_VERSIONS: int
CREATE_TOPICS: int
DELETE_TOPICS: int
DELETE_RECORDS: int
INIT_PRODUCER_ID: int
OFFSET_FOR_LEADER_EPOCH: int
ADD_PARTITIONS_TO_TXN: int
ADD_OFFSETS_TO_TXN: int
END_TXN: int
WRITE_TXN_MARKERS: int
TXN_OFFSET_COMMIT: int
DESCRIBE_ACLS: int
CREATE_ACLS: int
DELETE_ACLS: int
DESCRIBE_CONFIGS: int
ALTER_CONFIGS: int
ALTER_REPLICA_LOG_DIRS: int
DESCRIBE_LOG_DIRS: int
SASL_AUTHENTICATE: int
CREATE_PARTITIONS: int
CREATE_DELEGATION_TOKEN: int
RENEW_DELEGATION_TOKEN: int
EXPIRE_DELEGATION_TOKEN: int
DESCRIBE_DELEGATION_TOKEN: int
DELETE_GROUPS: int
ELECT_LEADERS: int
INCREMENTAL_ALTER_CONFIGS: int
ALTER_PARTITION_REASSIGNMENTS: int
LIST_PARTITION_REASSIGNMENTS: int
OFFSET_DELETE: int
DESCRIBE_CLIENT_QUOTAS: int
ALTER_CLIENT_QUOTAS: int
DESCRIBE_USER_SCRAM_CREDENTIALS: int
ALTER_USER_SCRAM_CREDENTIALS: int
VOTE: int
BEGIN_QUORUM_EPOCH: int
END_QUORUM_EPOCH: int
DESCRIBE_QUORUM: int
ALTER_PARTITION: int
UPDATE_FEATURES: int
ENVELOPE: int
FETCH_SNAPSHOT: int
DESCRIBE_CLUSTER: int
DESCRIBE_PRODUCERS: int
BROKER_REGISTRATION: int
BROKER_HEARTBEAT: int
UNREGISTER_BROKER: int
DESCRIBE_TRANSACTIONS: int
LIST_TRANSACTIONS: int
ALLOCATE_PRODUCER_IDS: int
CONSUMER_GROUP_HEARTBEAT: int
CONSUMER_GROUP_DESCRIBE: int
CONTROLLER_REGISTRATION: int
GET_TELEMETRY_SUBSCRIPTIONS: int
PUSH_TELEMETRY: int
ASSIGN_REPLICAS_TO_DIRS: int
LIST_CONFIG_RESOURCES: int
DESCRIBE_TOPIC_PARTITIONS: int
SHARE_GROUP_HEARTBEAT: int
SHARE_GROUP_DESCRIBE: int
SHARE_FETCH: int
SHARE_ACKNOWLEDGE: int
ADD_RAFT_VOTER: int
REMOVE_RAFT_VOTER: int
UPDATE_RAFT_VOTER: int
INITIALIZE_SHARE_GROUP_STATE: int
READ_SHARE_GROUP_STATE: int
WRITE_SHARE_GROUP_STATE: int
DELETE_SHARE_GROUP_STATE: int
READ_SHARE_GROUP_STATE_SUMMARY: int
STREAMS_GROUP_HEARTBEAT: int
STREAMS_GROUP_DESCRIBE: int
DESCRIBE_SHARE_GROUP_OFFSETS: int
ALTER_SHARE_GROUP_OFFSETS: int
DELETE_SHARE_GROUP_OFFSETS: int
STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: int
UNREGISTER_CONTROLLER: int


def constant(api: str) -> str:
    """The constant of an API: `LIST_OFFSETS` for `ListOffsets`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", api).upper()


_keys: Final = {constant(api.name): api.api_key for api in schema.apis()}
globals().update({declared: _keys[declared] for declared in __annotations__ if declared.isupper()})


def name(api_key: int) -> str:
    """`Produce` for 0."""
    return schema.api_name(api_key)


def key(text: str) -> int | None:
    """The number of an API's name, in any case; None where there is none."""
    return schema.api_keys().get(text.lower())


TOPIC_RESOURCE: Final = 2
BROKER_RESOURCES: Final = (4, 8)
"""Resource types of the configuration APIs (`ConfigResource.Type`): a topic; a broker, and its loggers."""

GROUP_COORDINATOR: Final = 0
TRANSACTION_COORDINATOR: Final = 1
SHARE_COORDINATOR: Final = 2
"""Key types of FindCoordinator (`CoordinatorType`)."""

START_OF_LOG: Final = -2
END_OF_LOG: Final = -1
"""Timestamps by which ListOffsets is asked where a partition begins and ends (`ListOffsetsRequest`)."""
