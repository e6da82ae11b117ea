"""Learns settings of topics and groups that captured requests changed, as they were at the end. Pure.

In: AlterConfigs and IncrementalAlterConfigs with their answers, and when topics were created, in order of time. Out:
settings by topic and by group. Rules: only requests that were answered without an error count; a topic that is created
again starts anew; a list is added to and taken from only if its value is known (`SET`, or Kafka's default); the
largest record that was ever allowed stays allowed, because what was sent then has to fit; settings that name brokers
of the captured cluster are left out. Source: KIP-339 (operations), KIP-848 and KIP-932 (settings of groups); Kafka's
IncrementalAlterConfigsRequest.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body

Settings = dict[str, str | None]

GROUP_RESOURCE: Final = 32
"""Resource type of a group (`ConfigResource.Type`)."""

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_LISTS: Final = {"cleanup.policy": "delete"}
"""Settings that are lists, and their defaults."""
_LARGEST: Final = "max.message.bytes"
_OF_BROKERS: Final = frozenset(
    (
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    )
)


class ConfigRequest(NamedTuple):
    """A request that changed settings, or created topics, with its answer; when it was sent, in nanoseconds."""

    sent_ns: int
    api_key: int
    body: Body
    answer: Body


@dataclass(slots=True)
class Changed:
    """Settings that were changed, by name. `topics` also has topics whose creation was not captured, as far as requests
    set them."""

    topics: dict[str, Settings] = field(default_factory=dict)
    groups: dict[str, Settings] = field(default_factory=dict)


def changed(requests: Iterable[ConfigRequest], created: Mapping[str, Settings]) -> Changed:
    """Settings as they were at the end. `created`: topics with the settings that they were last created with."""
    changes = Changed()
    for request in sorted(requests, key=lambda request: request.sent_ns):
        if request.api_key == api_keys.CREATE_TOPICS:
            for name in _created(request):
                changes.topics.pop(name, None)
            continue
        for kind, name, resource in _altered(request):
            if kind == api_keys.TOPIC_RESOURCE:
                start = created.get(name, {})
                changes.topics[name] = _applied(
                    request.api_key, changes.topics.get(name, dict(start)), resource["configs"]
                )
            elif kind == GROUP_RESOURCE:
                changes.groups[name] = _applied(request.api_key, changes.groups.get(name, {}), resource["configs"])
    return changes


def _created(request: ConfigRequest) -> Iterator[str]:
    if not request.body.get("validateOnly"):
        yield from (topic["name"] for topic in request.answer["topics"] if not topic["errorCode"])


def _altered(request: ConfigRequest) -> Iterator[tuple[int, str, Body]]:
    """Give (type, name, requested change) of each resource that was altered."""
    if request.body["validateOnly"]:
        return
    good = {
        (response["resourceType"], response["resourceName"])
        for response in request.answer["responses"]
        if not response["errorCode"]
    }
    for resource in request.body["resources"]:
        if (resource["resourceType"], resource["resourceName"]) in good:
            yield resource["resourceType"], resource["resourceName"], resource


def _applied(api_key: int, before: Settings, configs: Iterable[Body]) -> Settings:
    """Apply a change: AlterConfigs has all settings, the incremental request only those that change."""
    after: Settings = dict(before) if api_key == api_keys.INCREMENTAL_ALTER_CONFIGS else {}
    largest = before.get(_LARGEST)
    for config in configs:
        name, value = config["name"], config["value"]
        if name in _OF_BROKERS:
            continue
        operation = config.get("configOperation", _SET)
        if operation == _SET:
            after[name] = value
        elif operation == _DELETE:
            after.pop(name, None)
        else:
            known = after.get(name, _LISTS.get(name))
            parts = [part.strip() for part in (known or "").split(",") if part.strip()]
            these = [part.strip() for part in (value or "").split(",") if part.strip()]
            if operation == _APPEND and (known is not None or name in after):
                parts += [part for part in these if part not in parts]
            elif operation == _SUBTRACT and known is not None:
                parts = [part for part in parts if part not in these]
            else:
                continue
            after[name] = ",".join(parts)
    if largest is not None and _number(largest) > _number(after.get(_LARGEST)):
        after[_LARGEST] = largest
    return after


def _number(value: str | None) -> int:
    return int(value) if value is not None and value.isdecimal() else -1
