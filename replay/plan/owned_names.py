"""Decides what a replay under other names may change and delete: only what it has named itself. Pure.

In: requests that change a cluster. Out: the first thing in one that does not belong to this replay. Rule: what cannot
be told from the property of others (brokers, users, quotas, ACLs, all topics at once) does not belong to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.config_changes import GROUP_RESOURCE
from kwire.replay.plan.renaming import Renaming

_TOPICS: Final = frozenset(
    (
        api_keys.CREATE_TOPICS,
        api_keys.DELETE_TOPICS,
        api_keys.CREATE_PARTITIONS,
        api_keys.DELETE_RECORDS,
    )
)
_CONFIGS: Final = frozenset((api_keys.ALTER_CONFIGS, api_keys.INCREMENTAL_ALTER_CONFIGS))
_GROUPS: Final = frozenset(
    (
        api_keys.DELETE_GROUPS,
        api_keys.OFFSET_DELETE,
        api_keys.ALTER_SHARE_GROUP_OFFSETS,
        api_keys.DELETE_SHARE_GROUP_OFFSETS,
    )
)


@dataclass(frozen=True, slots=True)
class OwnedNames:
    """Names that belong to this replay.

    - `map_topic`: captured topics with other names on the target; `all_topics`: all have (`--prefix-topics`)
    - `groups`: the names under which groups are sent
    """

    map_topic: Mapping[str, str] = field(default_factory=dict)
    all_topics: bool = False
    groups: Renaming = field(default_factory=Renaming)

    def stranger(self, api_key: int, body: Body, by_id: Mapping[str, str]) -> str:
        """Name the first thing that a request would change and that does not belong to this replay; empty if there is
        none."""
        if api_key in _TOPICS:
            named = list(_topics(api_key, body, by_id))
            return next((f"topic {name}" for name in named if not self._is_topic(name)), "" if named else "all topics")
        if api_key in _GROUPS:
            groups = [body["groupId"]] if body.get("groupId") else list(body.get("groupsNames") or ())
            return next(
                (f"group {name}" for name in groups if not self.groups.is_ours(name)), "" if groups else "all groups"
            )
        if api_key in _CONFIGS:
            return next((name for name in map(self._resource, body["resources"]) if name), "")
        return f"what {api_keys.name(api_key)} changes is nobody's alone"

    def _is_topic(self, name: str) -> bool:
        return name in self.map_topic or (self.all_topics and bool(name) and not name.startswith("__"))

    def _resource(self, resource: dict[str, Any]) -> str:
        kind, name = resource["resourceType"], resource["resourceName"]
        if kind == api_keys.TOPIC_RESOURCE:
            return "" if self._is_topic(name) else f"topic {name}"
        if kind == GROUP_RESOURCE:
            return "" if self.groups.is_ours(name) else f"group {name}"
        return f"resource {name} of type {kind}"


def _topics(api_key: int, body: Body, by_id: Mapping[str, str]) -> Iterator[str]:
    """List the topics of a request by name; empty for an id without a name."""
    for where, topic in topics_of(api_key, body):
        name = topic.get(where.name) if where.name else None
        yield name or (by_id.get(topic.get(where.id, ""), "") if where.id else "")
    yield from body.get("topicNames") or ()
