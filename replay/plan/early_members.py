"""Finds members that had joined their group before the capture began, and how to join for them. Pure.

In: captured requests, in order of time. Out: each such member with the body of the request that joins it. A capture
that begins later shows their heartbeats and commits, and not their subscription: that comes from a join of theirs that
was captured later, else of another member of the group, else from the topics that they fetched or that their group
committed. If nothing shows it, there is no such body, and the requests are skipped (`no_member`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.encoding import encode_data
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis

SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 300_000
"""The defaults of the Java consumer (`session.timeout.ms`, `max.poll.interval.ms`)."""

_CLASSIC: Final = (api_keys.JOIN_GROUP, api_keys.SYNC_GROUP, api_keys.HEARTBEAT, api_keys.LEAVE_GROUP)
_COMMITS: Final = (api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT)


_ID: Final = "\0"
"""Prefix of a topic id in a list of names: no name has it."""


class MemberRequest(NamedTuple):
    """A captured request: its API, both bodies (the request's in the newest version's form), the errors of its answer,
    and its client (address and client id)."""

    api_key: int
    body: Body
    answer: Body | None
    errors: frozenset[int]
    client: tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Early:
    """A member that had joined before the capture began.

    - `generation`: as in its first request (its epoch in a KIP-848 group; -1: unknown)
    - `body`: of the request `api_key` that joins it, in the newest version's form
    """

    group: str
    member: str
    generation: int
    api_key: int
    body: Body


class EarlyMembers:
    """Finds the members that had joined before the capture began. Memory grows with groups and members."""

    def __init__(self) -> None:
        self._joined: set[tuple[str, str]] = set()
        self._first: dict[tuple[str, str], tuple[int, str | None, tuple[Any, Any]]] = {}
        self._kinds: dict[str, set[int]] = {}
        self._joins: dict[tuple[str, str], Body] = {}
        self._topics: dict[str, set[str]] = {}
        self._fetched: dict[tuple[Any, Any], set[str]] = {}

    def take(self, request: MemberRequest) -> None:
        """Take a request of a group, or a Fetch, in order of time."""
        if request.api_key == api_keys.FETCH:
            self.fetched(request.client, _topics(request.api_key, request.body))
        else:
            self._see(request)

    def fetched(self, client: tuple[Any, Any], topics: Iterable[str]) -> None:
        """Note that a client fetched these topics (`label`)."""
        self._fetched.setdefault(client, set()).update(topics)

    def finish(self, topic_names: Mapping[str, str]) -> dict[str, tuple[Early, ...]]:
        """List the early members by group, in order of their first request. `topic_names`: by id."""
        members: dict[str, list[Early]] = {}
        for (group, member), (generation, instance, client) in self._first.items():
            kinds = self._kinds.get(group, set())
            committed = _named(self._topics.get(group, ()), topic_names)
            fetched = _named(self._fetched.get(client, ()), topic_names)
            body = None
            if api_keys.CONSUMER_GROUP_HEARTBEAT in kinds:
                api_key = api_keys.CONSUMER_GROUP_HEARTBEAT
                body = _assigned_join(group, member, instance, committed or fetched)
            elif kinds & set(_CLASSIC):
                api_key = api_keys.JOIN_GROUP
                join = self._joins.get((group, member)) or self._joins.get((group, ""))
                body = _classic_join(join, group, instance, fetched or committed)
            if body is not None:
                members.setdefault(group, []).append(Early(group, member, generation, api_key, body))
        return {group: tuple(early) for group, early in members.items()}

    def _see(self, request: MemberRequest) -> None:
        key, body = request.api_key, request.body
        group = body.get("groupId")
        if not group:
            return
        if key in (*_CLASSIC, *apis.GROUP_HEARTBEATS):
            self._kinds.setdefault(group, set()).add(key)
        if key in (*_COMMITS, api_keys.OFFSET_FETCH):
            self._topics.setdefault(group, set()).update(_topics(key, body))
        if key == api_keys.CONSUMER_GROUP_HEARTBEAT:
            self._topics.setdefault(group, set()).update(body.get("subscribedTopicNames") or ())
        given = (request.answer or {}).get("memberId")
        joins = key == api_keys.JOIN_GROUP or (key in apis.GROUP_HEARTBEATS and body["memberEpoch"] == 0)
        if key == api_keys.JOIN_GROUP:
            for member in ("", body["memberId"], given or ""):
                self._joins.setdefault((group, member), body)
        if errors.UNKNOWN_MEMBER_ID not in request.errors:
            for member, generation, instance in _speakers(key, body):
                if member and (group, member) not in self._joined:
                    self._joined.add((group, member))
                    self._first[group, member] = generation, instance, request.client
        if joins:
            self._joined.add((group, given or body["memberId"]))


def _topics(key: int, body: Body) -> Iterator[str]:
    """List the topics of a request by name, else by id (`_ID`)."""
    for where, topic in topics_of(key, body):
        name = topic.get(where.name) if where.name else None
        name = label(name or "", topic.get(where.id, ZERO_UUID) if where.id else ZERO_UUID)
        if name:
            yield name


def label(topic: str, topic_id: str) -> str:
    """Label a topic by its name or, without one, by its id; empty if it has neither."""
    return topic or (_ID + topic_id if topic_id not in ("", ZERO_UUID) else "")


def _named(topics: Iterable[str], topic_names: Mapping[str, str]) -> list[str]:
    """List the topics that have a name, in order."""
    names = (topic_names.get(topic[1:]) if topic.startswith(_ID) else topic for topic in topics)
    return sorted({name for name in names if name})


def speakers(key: int, body: Body) -> Iterator[tuple[str, str]]:
    """List the (group, member) that a request speaks for as having joined."""
    for member, _, _ in _speakers(key, body):
        yield body["groupId"], member


def _speakers(key: int, body: Body) -> Iterator[tuple[str, int, str | None]]:
    """Give (member, generation or epoch, static instance) of members that a request speaks for as having joined."""
    if key in (api_keys.HEARTBEAT, api_keys.SYNC_GROUP):
        yield body["memberId"], body["generationId"], body.get("groupInstanceId")
    elif key in _COMMITS:
        yield body.get("memberId", ""), body.get("generationIdOrMemberEpoch", -1), body.get("groupInstanceId")
    elif key == api_keys.JOIN_GROUP:
        yield body["memberId"], -1, body.get("groupInstanceId")
    elif key == api_keys.LEAVE_GROUP:
        for leaver in body["members"]:
            yield leaver["memberId"], -1, leaver.get("groupInstanceId")
    elif key == api_keys.CONSUMER_GROUP_HEARTBEAT and body["memberEpoch"] != 0:
        yield body["memberId"], body["memberEpoch"], body.get("instanceId")
    elif key == api_keys.OFFSET_FETCH:
        for group in body["groups"]:
            if group["groupId"] == body["groupId"]:
                yield group.get("memberId") or "", group.get("memberEpoch", -1), None


def _classic_join(join: Body | None, group: str, instance: str | None, topics: list[str]) -> Body:
    """Make a JoinGroup from `join`, which was captured of this member or of its group."""
    if join is not None:
        return {**copy.deepcopy(join), "memberId": "", "groupInstanceId": instance}
    # ConsumerProtocol.java: a version, then the message; a client that subscribed to nothing joins as well.
    metadata = (0).to_bytes(2, "big") + encode_data(
        {"topics": topics, "userData": None}, "ConsumerProtocolSubscription", 0
    )
    return {
        "groupId": group,
        "memberId": "",
        "groupInstanceId": instance,
        "sessionTimeoutMs": SESSION_TIMEOUT_MS,
        "rebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }


def _assigned_join(group: str, member: str, instance: str | None, topics: list[str]) -> Body | None:
    if not topics:
        return None  # a broker refuses to join who subscribes to nothing (KIP-848)
    return {
        "groupId": group,
        "memberId": member,
        "memberEpoch": 0,
        "instanceId": instance,
        "rebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
        "subscribedTopicNames": topics,
        "topicPartitions": [],
    }
