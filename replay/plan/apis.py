"""How each API is treated by default: the table of docs/reference/replay.md in code.

A policy (may it be sent, and if not, why) and a route (which broker has to serve it). Source: Kafka's definitions
(listeners, fields) and KafkaApis; what was measured on brokers is in the README.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kwire.analyzer.protocol import api_keys

GROUP_HEARTBEATS: Final = (api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT)
"""Heartbeats by which members join, stay and leave if the broker assigns partitions (KIP-848, KIP-932)."""


class Route(Enum):
    """Which broker has to serve a request."""

    ANY = "any"
    LEADER = "leader"
    GROUP = "group coordinator"
    TRANSACTION = "transaction coordinator"
    BROKER = "the broker that it names"


class Policy(Enum):
    """Whether a request of this API may be sent; if not, the value is the name of the rule."""

    SEND = "sent"
    REMAP = "sent, with what the target assigns"
    ALLOW = "mutating"
    INTERNAL = "internal"
    REPLAYER = "replayer"
    LOGIN = "login"
    STREAMS = "streams_group"


@dataclass(frozen=True, slots=True)
class Api:
    """An API's policy and route."""

    policy: Policy
    route: Route = Route.ANY


# fmt: off
_SEND: Final = (
    api_keys.METADATA, api_keys.FIND_COORDINATOR, api_keys.LIST_GROUPS, api_keys.DESCRIBE_ACLS,
    api_keys.DESCRIBE_LOG_DIRS,
    api_keys.LIST_PARTITION_REASSIGNMENTS, api_keys.DESCRIBE_CLIENT_QUOTAS, api_keys.DESCRIBE_USER_SCRAM_CREDENTIALS,
    api_keys.DESCRIBE_QUORUM, api_keys.DESCRIBE_CLUSTER, api_keys.LIST_TRANSACTIONS, api_keys.LIST_CONFIG_RESOURCES,
    api_keys.DESCRIBE_TOPIC_PARTITIONS,
)
# fmt: on
_GROUP_SEND: Final = (
    api_keys.DESCRIBE_GROUPS,
    api_keys.CONSUMER_GROUP_DESCRIBE,
    api_keys.SHARE_GROUP_DESCRIBE,
    api_keys.STREAMS_GROUP_DESCRIBE,
    api_keys.DESCRIBE_SHARE_GROUP_OFFSETS,
)
_GROUP_REMAP: Final = (
    api_keys.OFFSET_COMMIT,
    api_keys.OFFSET_FETCH,
    api_keys.JOIN_GROUP,
    api_keys.HEARTBEAT,
    api_keys.LEAVE_GROUP,
    api_keys.SYNC_GROUP,
    api_keys.TXN_OFFSET_COMMIT,
    api_keys.CONSUMER_GROUP_HEARTBEAT,
    api_keys.SHARE_GROUP_HEARTBEAT,
)
_LEADER_REMAP: Final = (
    api_keys.PRODUCE,
    api_keys.FETCH,
    api_keys.LIST_OFFSETS,
    api_keys.OFFSET_FOR_LEADER_EPOCH,
    api_keys.SHARE_FETCH,
    api_keys.SHARE_ACKNOWLEDGE,
)
_TRANSACTION_REMAP: Final = (
    api_keys.INIT_PRODUCER_ID,
    api_keys.ADD_PARTITIONS_TO_TXN,
    api_keys.ADD_OFFSETS_TO_TXN,
    api_keys.END_TXN,
)
# fmt: off
_ALLOW: Final = (
    api_keys.CREATE_TOPICS, api_keys.DELETE_TOPICS, api_keys.CREATE_ACLS, api_keys.DELETE_ACLS,
    api_keys.ALTER_REPLICA_LOG_DIRS,
    api_keys.CREATE_PARTITIONS, api_keys.CREATE_DELEGATION_TOKEN, api_keys.RENEW_DELEGATION_TOKEN,
    api_keys.EXPIRE_DELEGATION_TOKEN, api_keys.DESCRIBE_DELEGATION_TOKEN, api_keys.ELECT_LEADERS,
    api_keys.ALTER_PARTITION_REASSIGNMENTS, api_keys.ALTER_CLIENT_QUOTAS, api_keys.ALTER_USER_SCRAM_CREDENTIALS,
    api_keys.UPDATE_FEATURES, api_keys.UNREGISTER_BROKER, api_keys.GET_TELEMETRY_SUBSCRIPTIONS, api_keys.PUSH_TELEMETRY,
    api_keys.ADD_RAFT_VOTER, api_keys.REMOVE_RAFT_VOTER, api_keys.UNREGISTER_CONTROLLER,
)
# fmt: on
_GROUP_ALLOW: Final = (
    api_keys.DELETE_GROUPS,
    api_keys.OFFSET_DELETE,
    api_keys.ALTER_SHARE_GROUP_OFFSETS,
    api_keys.DELETE_SHARE_GROUP_OFFSETS,
)
# fmt: off
_INTERNAL: Final = (
    api_keys.LEADER_AND_ISR, api_keys.STOP_REPLICA, api_keys.UPDATE_METADATA, api_keys.CONTROLLED_SHUTDOWN,
    api_keys.WRITE_TXN_MARKERS, api_keys.VOTE, api_keys.BEGIN_QUORUM_EPOCH, api_keys.END_QUORUM_EPOCH,
    api_keys.ALTER_PARTITION,
    api_keys.ENVELOPE, api_keys.FETCH_SNAPSHOT, api_keys.BROKER_REGISTRATION, api_keys.BROKER_HEARTBEAT,
    api_keys.ALLOCATE_PRODUCER_IDS, api_keys.CONTROLLER_REGISTRATION, api_keys.ASSIGN_REPLICAS_TO_DIRS,
    api_keys.UPDATE_RAFT_VOTER, api_keys.INITIALIZE_SHARE_GROUP_STATE, api_keys.READ_SHARE_GROUP_STATE,
    api_keys.WRITE_SHARE_GROUP_STATE, api_keys.DELETE_SHARE_GROUP_STATE, api_keys.READ_SHARE_GROUP_STATE_SUMMARY,
    api_keys.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
)
# fmt: on

APIS: Final[dict[int, Api]] = {
    **{key: Api(Policy.SEND) for key in _SEND},
    **{key: Api(Policy.SEND, Route.GROUP) for key in _GROUP_SEND},
    api_keys.DESCRIBE_CONFIGS: Api(Policy.SEND, Route.BROKER),
    api_keys.ALTER_CONFIGS: Api(Policy.ALLOW, Route.BROKER),
    api_keys.INCREMENTAL_ALTER_CONFIGS: Api(Policy.ALLOW, Route.BROKER),
    api_keys.DESCRIBE_PRODUCERS: Api(Policy.SEND, Route.LEADER),
    api_keys.DESCRIBE_TRANSACTIONS: Api(Policy.SEND, Route.TRANSACTION),
    **{key: Api(Policy.REMAP, Route.GROUP) for key in _GROUP_REMAP},
    **{key: Api(Policy.REMAP, Route.LEADER) for key in _LEADER_REMAP},
    **{key: Api(Policy.REMAP, Route.TRANSACTION) for key in _TRANSACTION_REMAP},
    **{key: Api(Policy.ALLOW) for key in _ALLOW},
    **{key: Api(Policy.ALLOW, Route.GROUP) for key in _GROUP_ALLOW},
    api_keys.DELETE_RECORDS: Api(Policy.ALLOW, Route.LEADER),
    **{key: Api(Policy.INTERNAL) for key in _INTERNAL},
    api_keys.STREAMS_GROUP_HEARTBEAT: Api(Policy.STREAMS, Route.GROUP),
    api_keys.API_VERSIONS: Api(Policy.REPLAYER),
    api_keys.SASL_HANDSHAKE: Api(Policy.LOGIN),
    api_keys.SASL_AUTHENTICATE: Api(Policy.LOGIN),
}


ADMIN: Final = frozenset(
    (
        api_keys.CREATE_TOPICS,
        api_keys.CREATE_PARTITIONS,
        api_keys.CREATE_ACLS,
        api_keys.ALTER_CONFIGS,
        api_keys.INCREMENTAL_ALTER_CONFIGS,
        api_keys.ALTER_CLIENT_QUOTAS,
        api_keys.ALTER_SHARE_GROUP_OFFSETS,
        api_keys.ALTER_PARTITION_REASSIGNMENTS,
        api_keys.ALTER_REPLICA_LOG_DIRS,
    )
)
"""APIs of `--allow admin`, which create and alter. Those that delete, elect, or return secrets are allowed by name."""


def api(api_key: int) -> Api:
    """The policy and route of an API; one that Kafka never had counts as internal."""
    return APIS.get(api_key, Api(Policy.INTERNAL))
