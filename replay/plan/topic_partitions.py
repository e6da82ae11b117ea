"""Names, splits and merges the topics and partitions of requests and answers. Pure.

In: bodies. Out: bodies, or what they name. Rule: whatever a message's version says of a topic (its name, its id), the
replayer keeps the topic's captured name beside it, under `NAME`, unless nothing names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.topic_lists import RESPONSE_LISTS, lists_of, structs, topics_of
from kwire.analyzer.protocol.tree import Body

NAME: Final = "_topic"
"""Key of a topic's struct under which the replayer keeps the topic's name, whatever the message's version says."""

Partition = tuple[str, int]

# --- naming ---

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{22}")


def is_topic(name: str) -> bool:
    """Whether Kafka allows this as a topic's name."""
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


def is_id(name: str) -> bool:
    """Whether this may be a topic's id. (It may be a name, too.)"""
    return bool(_ID.fullmatch(name))


def name_topics(api_key: int, body: Body, by_id: Mapping[str, str]) -> str | None:
    """Put each topic's name beside it in a request; return the first id whose name is not known."""
    unknown = None
    for where, topic in topics_of(api_key, body):
        name = topic.get(where.name) if where.name else None
        if not name and where.id and topic.get(where.id, ZERO_UUID) != ZERO_UUID:
            name = by_id.get(topic[where.id])
            if name is None:
                unknown = topic[where.id]
        if name:
            topic[NAME] = name
    return unknown


def name_answer(api_key: int, body: Body, by_id: Mapping[str, str]) -> None:
    """Put each topic's name beside it in an answer."""
    where = RESPONSE_LISTS.get(api_key)
    if where is None:
        return
    for topic in structs(body, where.path):
        name = topic.get(where.name) if where.name else None
        if not name and where.id:
            name = by_id.get(topic.get(where.id, ""))
        if name:
            topic[NAME] = name


def without_names(body: Any) -> Any:
    """A body without the replayer's own keys."""
    if isinstance(body, dict):
        return {name: without_names(value) for name, value in body.items() if name != NAME}
    if isinstance(body, list):
        return [without_names(element) for element in body]
    return body


# --- what is named ---


def partitions(api_key: int, body: Body) -> Iterator[tuple[str, int, Body | None]]:
    """Give (topic, partition, the partition's struct if it is one) of a request whose topics were named."""
    for where, topic in topics_of(api_key, body):
        if where.partitions:
            for partition in topic.get(where.partitions) or ():
                if where.number:
                    yield topic.get(NAME, ""), partition[where.number], partition
                else:
                    yield topic.get(NAME, ""), partition, None


def named(api_key: int, body: Body) -> list[Partition]:
    """The partitions of a request by their captured names, each once."""
    return list(dict.fromkeys((topic, partition) for topic, partition, _ in partitions(api_key, body)))


def answered(api_key: int, body: Body | None) -> dict[Partition, Body]:
    """The partitions of an answer whose topics were named."""
    where = RESPONSE_LISTS[api_key]
    return {
        (topic.get(NAME) or topic.get(where.name) or "", partition[where.number]): partition
        for topic in structs(body or {}, where.path)
        for partition in topic[where.partitions]
    }


def named_broker(body: Body) -> int | None:
    """The broker that a request about its configuration has to go to; None if it is about none, or several."""
    brokers = {
        int(resource["resourceName"])
        for resource in body["resources"]
        if resource["resourceType"] in api_keys.BROKER_RESOURCES and resource["resourceName"].isdigit()
    }
    return brokers.pop() if len(brokers) == 1 else None


# --- parts ---


def subset(api_key: int, body: Body, wanted: set[Partition]) -> Body:
    """The request with these captured (topic, partition) only; topics that have none left are left out."""
    out = dict(body)
    for where in lists_of(api_key):
        if len(where.path) != 1 or where.path[0] not in body or not where.partitions:
            continue
        topics = []
        for topic in body[where.path[0]] or ():
            left = [
                partition
                for partition in topic.get(where.partitions) or ()
                if (topic.get(NAME), partition[where.number] if where.number else partition) in wanted
            ]
            if left:
                topics.append({**topic, where.partitions: left})
        out[where.path[0]] = topics
    return out


def without(api_key: int, answer: Body, failed: set[Partition]) -> Body:
    """The answer without these partitions, by their names on the target; topics that have none left are left out."""
    where = RESPONSE_LISTS[api_key]
    good = []
    for topic in structs(answer, where.path):
        name = topic.get(NAME) or topic.get(where.name) or ""
        left = [partition for partition in topic[where.partitions] if (name, partition[where.number]) not in failed]
        if left:
            good.append({**topic, where.partitions: left})
    return {**answer, where.path[0]: good}


def merged(api_key: int, answers: Iterable[Body]) -> Body:
    """Merge the answers to parts of a request: arrays are joined (a topic's partitions too), the longest throttle and
    the first error stay."""
    out: Body | None = None
    for answer in answers:
        if out is None:
            out = dict(answer)
            continue
        for name, value in answer.items():
            if isinstance(value, list):
                out[name] = _joined(api_key, name, out.get(name) or [], value)
            elif name == "throttleTimeMs":
                out[name] = max(out[name], value)
            elif name == "errorCode" and not out[name]:
                out[name] = value
    assert out is not None
    return out


def _joined(api_key: int, name: str, first: list[Any], second: list[Any]) -> list[Any]:
    where = RESPONSE_LISTS.get(api_key)
    if where is None or where.path != (name,):
        return first + second
    by_topic: dict[Any, Body] = {}
    for topic in first + second:
        key = topic.get(where.name) or topic.get(where.id)
        if key in by_topic:
            by_topic[key][where.partitions] = by_topic[key][where.partitions] + topic[where.partitions]
        else:
            by_topic[key] = dict(topic)
    return list(by_topic.values())
