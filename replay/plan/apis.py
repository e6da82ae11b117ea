"""What is done with each API by default: the table of replay/README.md in code.

A policy (may it be sent, and what for) and a route (which broker has to serve it).
Source: Kafka's definitions (listeners, fields) and KafkaApis; what was measured on brokers is in the README.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from analyzer.protocol import names

GROUP_HEARTBEATS: Final = (names.CONSUMER_GROUP_HEARTBEAT, names.SHARE_GROUP_HEARTBEAT)
"""By which members join, stay and leave where the broker assigns (KIP-848, KIP-932)."""


class Route(Enum):
    """Which broker has to serve a request."""

    ANY = "any"
    LEADER = "leader"
    GROUP = "group coordinator"
    TRANSACTION = "transaction coordinator"
    BROKER = "the broker that it names"


class Policy(Enum):
    """May a request of this API be sent? Values are the rule's name where it may not."""

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
    names.METADATA, names.FIND_COORDINATOR, names.LIST_GROUPS, names.DESCRIBE_ACLS, names.DESCRIBE_LOG_DIRS,
    names.LIST_PARTITION_REASSIGNMENTS, names.DESCRIBE_CLIENT_QUOTAS, names.DESCRIBE_USER_SCRAM_CREDENTIALS,
    names.DESCRIBE_QUORUM, names.DESCRIBE_CLUSTER, names.LIST_TRANSACTIONS, names.LIST_CONFIG_RESOURCES,
    names.DESCRIBE_TOPIC_PARTITIONS,
)
# fmt: on
_GROUP_SEND: Final = (
    names.DESCRIBE_GROUPS,
    names.CONSUMER_GROUP_DESCRIBE,
    names.SHARE_GROUP_DESCRIBE,
    names.STREAMS_GROUP_DESCRIBE,
    names.DESCRIBE_SHARE_GROUP_OFFSETS,
)
_GROUP_REMAP: Final = (
    names.OFFSET_COMMIT,
    names.OFFSET_FETCH,
    names.JOIN_GROUP,
    names.HEARTBEAT,
    names.LEAVE_GROUP,
    names.SYNC_GROUP,
    names.TXN_OFFSET_COMMIT,
    names.CONSUMER_GROUP_HEARTBEAT,
    names.SHARE_GROUP_HEARTBEAT,
)
_LEADER_REMAP: Final = (
    names.PRODUCE,
    names.FETCH,
    names.LIST_OFFSETS,
    names.OFFSET_FOR_LEADER_EPOCH,
    names.SHARE_FETCH,
    names.SHARE_ACKNOWLEDGE,
)
_TRANSACTION_REMAP: Final = (
    names.INIT_PRODUCER_ID,
    names.ADD_PARTITIONS_TO_TXN,
    names.ADD_OFFSETS_TO_TXN,
    names.END_TXN,
)
# fmt: off
_ALLOW: Final = (
    names.CREATE_TOPICS, names.DELETE_TOPICS, names.CREATE_ACLS, names.DELETE_ACLS, names.ALTER_REPLICA_LOG_DIRS,
    names.CREATE_PARTITIONS, names.CREATE_DELEGATION_TOKEN, names.RENEW_DELEGATION_TOKEN,
    names.EXPIRE_DELEGATION_TOKEN, names.DESCRIBE_DELEGATION_TOKEN, names.ELECT_LEADERS,
    names.ALTER_PARTITION_REASSIGNMENTS, names.ALTER_CLIENT_QUOTAS, names.ALTER_USER_SCRAM_CREDENTIALS,
    names.UPDATE_FEATURES, names.UNREGISTER_BROKER, names.GET_TELEMETRY_SUBSCRIPTIONS, names.PUSH_TELEMETRY,
    names.ADD_RAFT_VOTER, names.REMOVE_RAFT_VOTER, names.UNREGISTER_CONTROLLER,
)
# fmt: on
_GROUP_ALLOW: Final = (
    names.DELETE_GROUPS,
    names.OFFSET_DELETE,
    names.ALTER_SHARE_GROUP_OFFSETS,
    names.DELETE_SHARE_GROUP_OFFSETS,
)
# fmt: off
_INTERNAL: Final = (
    names.LEADER_AND_ISR, names.STOP_REPLICA, names.UPDATE_METADATA, names.CONTROLLED_SHUTDOWN,
    names.WRITE_TXN_MARKERS, names.VOTE, names.BEGIN_QUORUM_EPOCH, names.END_QUORUM_EPOCH, names.ALTER_PARTITION,
    names.ENVELOPE, names.FETCH_SNAPSHOT, names.BROKER_REGISTRATION, names.BROKER_HEARTBEAT,
    names.ALLOCATE_PRODUCER_IDS, names.CONTROLLER_REGISTRATION, names.ASSIGN_REPLICAS_TO_DIRS,
    names.UPDATE_RAFT_VOTER, names.INITIALIZE_SHARE_GROUP_STATE, names.READ_SHARE_GROUP_STATE,
    names.WRITE_SHARE_GROUP_STATE, names.DELETE_SHARE_GROUP_STATE, names.READ_SHARE_GROUP_STATE_SUMMARY,
    names.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
)
# fmt: on

APIS: Final[dict[int, Api]] = {
    **{key: Api(Policy.SEND) for key in _SEND},
    **{key: Api(Policy.SEND, Route.GROUP) for key in _GROUP_SEND},
    names.DESCRIBE_CONFIGS: Api(Policy.SEND, Route.BROKER),
    names.ALTER_CONFIGS: Api(Policy.ALLOW, Route.BROKER),
    names.INCREMENTAL_ALTER_CONFIGS: Api(Policy.ALLOW, Route.BROKER),
    names.DESCRIBE_PRODUCERS: Api(Policy.SEND, Route.LEADER),
    names.DESCRIBE_TRANSACTIONS: Api(Policy.SEND, Route.TRANSACTION),
    **{key: Api(Policy.REMAP, Route.GROUP) for key in _GROUP_REMAP},
    **{key: Api(Policy.REMAP, Route.LEADER) for key in _LEADER_REMAP},
    **{key: Api(Policy.REMAP, Route.TRANSACTION) for key in _TRANSACTION_REMAP},
    **{key: Api(Policy.ALLOW) for key in _ALLOW},
    **{key: Api(Policy.ALLOW, Route.GROUP) for key in _GROUP_ALLOW},
    names.DELETE_RECORDS: Api(Policy.ALLOW, Route.LEADER),
    **{key: Api(Policy.INTERNAL) for key in _INTERNAL},
    names.STREAMS_GROUP_HEARTBEAT: Api(Policy.STREAMS, Route.GROUP),
    names.API_VERSIONS: Api(Policy.REPLAYER),
    names.SASL_HANDSHAKE: Api(Policy.LOGIN),
    names.SASL_AUTHENTICATE: Api(Policy.LOGIN),
}


ADMIN: Final = frozenset(
    (
        names.CREATE_TOPICS,
        names.CREATE_PARTITIONS,
        names.CREATE_ACLS,
        names.ALTER_CONFIGS,
        names.INCREMENTAL_ALTER_CONFIGS,
        names.ALTER_CLIENT_QUOTAS,
        names.ALTER_SHARE_GROUP_OFFSETS,
        names.ALTER_PARTITION_REASSIGNMENTS,
        names.ALTER_REPLICA_LOG_DIRS,
    )
)
"""`--allow admin`: what creates and alters. What deletes, elects, or hands out secrets is allowed by its own name."""


def api(api_key: int) -> Api:
    """What is done with an API; what Kafka never had is internal to somebody else."""
    return APIS.get(api_key, Api(Policy.INTERNAL))
