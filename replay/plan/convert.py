"""Converts a request's body to another version of its API.

In: a body decoded with `exact=True`, and the two versions. Out: a body for the encoder, or `ConversionError` with what
would be lost. Rules: a field that the new version lacks is dropped if it has its default or only carries information
(`_MEANING` lists those that do not); what moved (one key or many, one group or many, names or ids of topics) is moved.
"""

from __future__ import annotations

from typing import Any, Final

from kwire.analyzer.protocol import api_keys, schema, tree
from kwire.analyzer.protocol.schema import REQUEST, ZERO_UUID, Field
from kwire.analyzer.protocol.tree import Body


class ConversionError(ValueError):
    """The version that the target offers cannot express the request."""


# fmt: off
_MEANING: Final = frozenset(
    (
        "transactionalId",  # Produce: the batch would be outside its transaction
        "isolationLevel",  # Fetch, ListOffsets: would show aborted records
        "groupInstanceId",  # static members would become dynamic ones
        "enable2Pc", "keepPreparedTxn",
        "subscribedTopicRegex",
        "shareAcquireMode", "isRenewAck",
        "statesFilter", "typesFilter", "durationFilter", "transactionalIdPattern",
        "validateOnly",
        "patternTypeFilter", "resourcePatternType",
    )
)
# fmt: on
"""Fields whose loss would change what the request asks for."""

_FIRST_WITH: Final = {
    (api_keys.LIST_OFFSETS, -3): 7,
    (api_keys.LIST_OFFSETS, -4): 8,
    (api_keys.LIST_OFFSETS, -5): 9,
    (api_keys.LIST_OFFSETS, -6): 11,
}
"""Special timestamps of ListOffsets, and the first version that has them (KIP-734, 405, 1005, 1023)."""


def choose(version: int, offered: tuple[int, int]) -> int:
    """Choose the version to send: the captured one if it is offered, else the nearest."""
    low, high = offered
    return min(max(version, low), high)


def canonical(api_key: int, version: int, body: Body) -> Body:
    """Convert the body to the form of the newest version, from which it can be taken to any other. Changes `body`."""
    if api_key == api_keys.FIND_COORDINATOR and version >= 4:
        keys = body.get("coordinatorKeys") or [""]
        body.setdefault("key", keys[0])
    elif api_key == api_keys.FIND_COORDINATOR:
        body["coordinatorKeys"] = [body["key"]]
        body.setdefault("keyType", 0)
    elif api_key == api_keys.OFFSET_FETCH and version < 8:
        body["groups"] = [{"groupId": body["groupId"], "topics": _copied(body["topics"])}]
    elif api_key == api_keys.OFFSET_FETCH:
        first = body["groups"][0] if body["groups"] else {}
        body["groupId"], body["topics"] = first.get("groupId", ""), _copied(first.get("topics", []))
    elif api_key == api_keys.LEAVE_GROUP and version < 3:
        body["members"] = [{"memberId": body["memberId"]}]
    elif api_key == api_keys.LEAVE_GROUP:
        body["memberId"] = body["members"][0]["memberId"] if body["members"] else ""
    elif api_key == api_keys.JOIN_GROUP and version == 0:
        body["rebalanceTimeoutMs"] = body["sessionTimeoutMs"]  # KIP-62: before, one timeout was both
    elif api_key == api_keys.METADATA and version == 0 and body.get("topics") == []:
        body["topics"] = None  # v0: an empty list asks for every topic
    elif api_key == api_keys.FETCH and version >= 15:
        body.setdefault("replicaId", body.get("replicaState", {}).get("replicaId", -1))
    elif api_key == api_keys.DELETE_TOPICS:
        if version >= 6:
            body["topicNames"] = [topic["name"] for topic in body["topics"]]
        else:
            body["topics"] = [{"name": name, "topicId": ZERO_UUID} for name in body["topicNames"]]
    elif api_key == api_keys.ADD_PARTITIONS_TO_TXN and version >= 4:
        raise ConversionError("the form of AddPartitionsToTxn that brokers use")
    return body


def _copied(topics: list[Body] | None) -> list[Body] | None:
    return None if topics is None else [dict(topic) for topic in topics]


def check(api_key: int, version: int, body: Body) -> None:
    """Check that this version can express a canonical body. Raises ConversionError."""
    layout = schema.layout(api_key, version, REQUEST)
    if layout is None:
        raise ConversionError(f"{api_keys.name(api_key)} v{version} is not known")
    if api_key == api_keys.FIND_COORDINATOR:
        if version < 4 and len(body["coordinatorKeys"]) != 1:
            raise ConversionError(f"{len(body['coordinatorKeys'])} keys, and v{version} has one")
        if version < 1 and body["keyType"] != api_keys.GROUP_COORDINATOR:
            raise ConversionError("transaction coordinators are asked for from v1 on")
        if body["keyType"] == api_keys.SHARE_COORDINATOR and version < 6:
            raise ConversionError("share coordinators are asked for from v6 on")
    if api_key == api_keys.OFFSET_FETCH and version < 8 and len(body["groups"]) != 1:
        raise ConversionError(f"{len(body['groups'])} groups, and v{version} has one")
    if api_key == api_keys.OFFSET_FETCH and version < 2 and body["topics"] is None:
        raise ConversionError("all topics are asked for from v2 on")
    if api_key == api_keys.LEAVE_GROUP and version < 3 and len(body["members"]) != 1:
        raise ConversionError(f"{len(body['members'])} members, and v{version} has one")
    if api_key == api_keys.LIST_OFFSETS:
        for topic in body["topics"]:
            for partition in topic["partitions"]:
                first = _FIRST_WITH.get((api_key, partition["timestamp"]), 0)
                if version < first:
                    raise ConversionError(f"timestamp {partition['timestamp']} is asked for from v{first} on")
    if api_key == api_keys.OFFSET_COMMIT and version < 9 and body.get("_member_epoch"):
        raise ConversionError("a member of a KIP-848 group commits from v9 on")
    _check(layout.fields, body, _newest(api_key), "")


def _newest(api_key: int) -> tuple[Field, ...]:
    api = schema.apis()[api_key]
    layout = schema.layout(api_key, api.max_version, REQUEST)
    return () if layout is None else layout.fields


def _check(fields: tuple[Field, ...], body: Body, newest: tuple[Field, ...], path: str) -> None:
    """Check that each field of `body` that `fields` lacks has its default or carries no meaning."""
    here = {item.name: item for item in fields}
    newest_fields = {item.name: item for item in newest}
    for name, value in body.items():
        item = here.get(name)
        if item is None:
            default = newest_fields[name].default if name in newest_fields else None
            if name in _MEANING and value and value != default:
                raise ConversionError(f"{path}{name} cannot be said")
        elif item.element == "struct" and value:
            inner = newest_fields[name].fields if name in newest_fields else item.fields
            for element in value:
                _check(item.fields, element, inner, f"{path}{name}.")


def fit(api_key: int, version: int, body: Body) -> Body:
    """Reduce a canonical body to the fields of this version, as the encoder wants it."""
    layout = schema.layout(api_key, version, REQUEST)
    assert layout is not None
    return _fit(layout.fields, body)


def _fit(fields: tuple[Field, ...], body: Body) -> Body:
    out: Body = {}
    for item in fields:
        if item.name not in body:
            continue
        value = body[item.name]
        if value is not None and item.element == "struct":
            value = [_fit(item.fields, element) for element in value]
        elif value is not None and item.kind == "struct":
            value = _fit(item.fields, value)
        elif value is None and not item.nullable:
            value = _absent(item)
        out[item.name] = value
    if tree.UNKNOWN_TAGS in body and any(item.flexible for item in fields):
        out[tree.UNKNOWN_TAGS] = body[tree.UNKNOWN_TAGS]
    return out


def _absent(item: Field) -> Any:
    """The value for null in a version that has no null."""
    return item.default if item.default is not None else ([] if item.kind == "array" else "")
