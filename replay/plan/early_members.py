"""Members that had joined their group when the capture began, and how the replayer joins for them. Pure.

In: what was captured, in order of time. Out: each such member with the body of the request that joins it. A mid-stream
capture shows their heartbeats and commits, and not what they subscribed to: that comes from a join of theirs that was
captured later, else of another member of the group, else from the topics that they fetched or that their group
committed. Where nothing says it, there is no such body, and the requests are skipped (`no_member`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from analyzer.protocol import errors, names
from analyzer.protocol.encoding import encode_data
from analyzer.protocol.topics import topics_of
from analyzer.protocol.tree import Body
from replay.plan import apis
from replay.plan.parts import NAME

SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 300_000
"""The defaults of the Java consumer (`session.timeout.ms`, `max.poll.interval.ms`)."""

_CLASSIC: Final = (names.JOIN_GROUP, names.SYNC_GROUP, names.HEARTBEAT, names.LEAVE_GROUP)
_COMMITS: Final = (names.OFFSET_COMMIT, names.TXN_OFFSET_COMMIT)


class Said(NamedTuple):
    """A captured request: its API, both bodies (topics named, `NAME`), the errors of its answer, and who sent it
    (address and client id)."""

    api_key: int
    body: Body
    answer: Body | None
    errors: frozenset[int]
    client: tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Early:
    """A member that had joined when the capture began. `generation`: what its first request says (its epoch in a
    KIP-848 group; -1: nothing). `body`: of the request `api_key` that joins it, in the newest version's form."""

    group: str
    member: str
    generation: int
    api_key: int
    body: Body


@dataclass(slots=True)
class _Seen:
    """What was seen of the groups."""

    joined: set[tuple[str, str]] = field(default_factory=set)
    first: dict[tuple[str, str], tuple[int, str | None, tuple[Any, Any]]] = field(default_factory=dict)
    kinds: dict[str, set[int]] = field(default_factory=dict)
    joins: dict[tuple[str, str], Body] = field(default_factory=dict)
    topics: dict[str, dict[str, None]] = field(default_factory=dict)
    fetched: dict[tuple[Any, Any], dict[str, None]] = field(default_factory=dict)


def early_members(requests: Iterable[Said], fetches: Iterable[Said]) -> dict[str, tuple[Early, ...]]:
    """The early members by group, in order of their first request. `fetches`: all requests to fetch, which are gone
    through only where there are such members."""
    seen = _Seen()
    for request in requests:
        _see(seen, request)
    for request in fetches if seen.first else ():
        fetched = seen.fetched.setdefault(request.client, {})
        fetched.update((topic[NAME], None) for _, topic in topics_of(request.api_key, request.body) if topic.get(NAME))
    members: dict[str, list[Early]] = {}
    for (group, member), (generation, instance, client) in seen.first.items():
        kinds = seen.kinds.get(group, set())
        body = None
        if names.CONSUMER_GROUP_HEARTBEAT in kinds:
            api_key = names.CONSUMER_GROUP_HEARTBEAT
            body = _assigned_join(seen, group, member, instance, client)
        elif kinds & set(_CLASSIC):
            api_key = names.JOIN_GROUP
            body = _classic_join(seen, group, member, instance, client)
        if body is not None:
            members.setdefault(group, []).append(Early(group, member, generation, api_key, body))
    return {group: tuple(early) for group, early in members.items()}


def _see(seen: _Seen, said: Said) -> None:
    key, body = said.api_key, said.body
    group = body.get("groupId")
    if not group:
        return
    if key in (*_CLASSIC, *apis.GROUP_HEARTBEATS):
        seen.kinds.setdefault(group, set()).add(key)
    if key in (*_COMMITS, names.OFFSET_FETCH):
        committed = seen.topics.setdefault(group, {})
        committed.update((topic[NAME], None) for _, topic in topics_of(key, body) if topic.get(NAME))
    if key == names.CONSUMER_GROUP_HEARTBEAT:
        seen.topics.setdefault(group, {}).update(dict.fromkeys(body.get("subscribedTopicNames") or ()))
    given = (said.answer or {}).get("memberId")
    joins = key == names.JOIN_GROUP or (key in apis.GROUP_HEARTBEATS and body["memberEpoch"] == 0)
    if key == names.JOIN_GROUP:
        for member in ("", body["memberId"], given or ""):
            seen.joins.setdefault((group, member), body)
    if errors.UNKNOWN_MEMBER_ID not in said.errors:
        for member, generation, instance in _speakers(key, body):
            if member and (group, member) not in seen.joined:
                seen.joined.add((group, member))
                seen.first[group, member] = generation, instance, said.client
    if joins:
        seen.joined.add((group, given or body["memberId"]))


def speakers(key: int, body: Body) -> Iterator[tuple[str, str]]:
    """(group, member) of who speaks in a request as a member that has joined."""
    for member, _, _ in _speakers(key, body):
        yield body["groupId"], member


def _speakers(key: int, body: Body) -> Iterator[tuple[str, int, str | None]]:
    """(member, generation or epoch, static instance) of who speaks as a member that has joined."""
    if key in (names.HEARTBEAT, names.SYNC_GROUP):
        yield body["memberId"], body["generationId"], body.get("groupInstanceId")
    elif key in _COMMITS:
        yield body.get("memberId", ""), body.get("generationIdOrMemberEpoch", -1), body.get("groupInstanceId")
    elif key == names.JOIN_GROUP:
        yield body["memberId"], -1, body.get("groupInstanceId")
    elif key == names.LEAVE_GROUP:
        for leaver in body["members"]:
            yield leaver["memberId"], -1, leaver.get("groupInstanceId")
    elif key == names.CONSUMER_GROUP_HEARTBEAT and body["memberEpoch"] != 0:
        yield body["memberId"], body["memberEpoch"], body.get("instanceId")
    elif key == names.OFFSET_FETCH:
        for asked in body["groups"]:
            if asked["groupId"] == body["groupId"]:
                yield asked.get("memberId") or "", asked.get("memberEpoch", -1), None


def _classic_join(seen: _Seen, group: str, member: str, instance: str | None, client: tuple[Any, Any]) -> Body | None:
    join = seen.joins.get((group, member)) or seen.joins.get((group, ""))
    if join is not None:
        return {**copy.deepcopy(join), "memberId": "", "groupInstanceId": instance}
    topics = sorted(seen.fetched.get(client) or seen.topics.get(group) or ())
    # ConsumerProtocol.java: a version, then the message; a client that subscribed to nothing joins as well.
    metadata = (0).to_bytes(2, "big") + encode_data(
        {"topics": topics, "userData": None}, "ConsumerProtocolSubscription", 0
    )
    return {
        "groupId": group, "memberId": "", "groupInstanceId": instance, "sessionTimeoutMs": SESSION_TIMEOUT_MS,
        "rebalanceTimeoutMs": REBALANCE_TIMEOUT_MS, "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }  # fmt: skip


def _assigned_join(seen: _Seen, group: str, member: str, instance: str | None, client: tuple[Any, Any]) -> Body | None:
    topics = sorted(seen.topics.get(group) or seen.fetched.get(client) or ())
    if not topics:
        return None  # a broker refuses to join who subscribes to nothing (KIP-848)
    return {
        "groupId": group, "memberId": member, "memberEpoch": 0, "instanceId": instance,
        "rebalanceTimeoutMs": REBALANCE_TIMEOUT_MS, "subscribedTopicNames": topics, "topicPartitions": [],
    }  # fmt: skip
