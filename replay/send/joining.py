"""Joins groups for members that had joined before the capture began, and for those that the target lost.

The network is a function that asks the group's coordinator (`Ask`), each time on a connection of its own, because a
join holds up what comes behind it. What the target assigned goes to the remap. Rule: a member that joins syncs too,
and as leader hands out what the captured leader did, if that was captured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.early_members import Early
from kwire.replay.plan.values import NO_COORDINATOR
from kwire.replay.remap.remap import Remap

Ask = Callable[[int, int, Body], Awaitable[Body]]
"""Asks a group's coordinator: API, the version wanted (the nearest offered is sent), body; returns its answer."""

_DYNAMIC_JOIN: Final = 3
"""The last version of JoinGroup in which a member joins at once; from 4 on it is given an id first (KIP-394)."""
_STATIC_JOIN: Final = 5
_SYNC: Final = 3
_HEARTBEAT: Final = 3
"""The first versions that know static members (KIP-345)."""
_GROUP_HEARTBEAT: Final = 1

_AGAIN: Final = (errors.ILLEGAL_GENERATION, errors.UNKNOWN_MEMBER_ID, errors.REBALANCE_IN_PROGRESS)
"""Errors that send a member back to JoinGroup."""
_PAUSE: Final = 0.1
_ROUNDS: Final = 50
"""Heartbeats in which a KIP-848 group may settle: members that the replayer does not have may prevent it."""


async def early(members: Sequence[Early], remap: Remap, ask: Ask) -> None:
    """Join all early members of a group, until all are in one generation, and each has its final assignment. Raises
    JoinRefusedError."""
    generations: dict[str, int] = {}

    async def classic(who: Early) -> None:
        member = ""
        while True:
            answer = await _join(ask, {**who.body, "memberId": member})
            member = answer["memberId"]
            remap.groups.joined(who.group, who.member, who.generation, who.body, answer)
            if not await _sync(ask, remap, who.group, who.member, who.generation, answer, who.body):
                continue
            generations[who.member] = answer["generationId"]
            while len(generations) < len(members) or len(set(generations.values())) > 1:
                # Somebody has not joined yet; when it does, everybody has to join again.
                await asyncio.sleep(_PAUSE)
                if await _beat(ask, who.body, answer) in _AGAIN:
                    break
            else:
                return

    async def assigned(who: Early) -> None:
        topics = [remap.topics.name(name) for name in who.body["subscribedTopicNames"]]
        await _join_assigned(ask, remap, who.group, who.member, {**who.body, "subscribedTopicNames": topics})

    await asyncio.gather(*(classic(who) if who.api_key == api_keys.JOIN_GROUP else assigned(who) for who in members))
    there = [(who.group, who.member) for who in members if who.api_key == api_keys.CONSUMER_GROUP_HEARTBEAT]
    if await _settle(there, remap, ask):
        for group in {who.group for who in members}:
            remap.groups.all_in(group)


async def _settle(members: Sequence[tuple[str, str]], remap: Remap, ask: Ask) -> bool:
    """Send heartbeats for the members of a KIP-848 group until nothing moves: partitions have to be given up before
    another member gets them. False if it does not settle."""
    if len(members) < 2:
        return True
    for _ in range(_ROUNDS):
        moved, epochs = False, set[int]()
        for who in members:
            body = remap.groups.settling(who)
            if body is None:
                return False
            answer = await _ask_coordinator(ask, api_keys.CONSUMER_GROUP_HEARTBEAT, _GROUP_HEARTBEAT, body)
            if answer["errorCode"]:
                return False
            moved |= not remap.groups.settled(who, body, answer)
            epochs.add(answer["memberEpoch"])
        if not moved and len(epochs) < 2:
            return True
        await asyncio.sleep(_PAUSE)
    return False


async def again(group: str, member: str, generation: int, remap: Remap, ask: Ask) -> None:
    """Join a member again that the target does not know, or knows in another generation. Raises JoinRefusedError."""
    subscription = remap.groups.subscription(group, member)
    if subscription:
        body = {"groupId": group, "memberId": remap.groups.member(group, member), "memberEpoch": 0, **subscription}
        return await _join_assigned(ask, remap, group, member, {**body, "topicPartitions": []})
    body = remap.groups.join_of(group, member)
    remap.groups.rejoins(group, member)
    while True:
        answer = await _join(ask, {**body, "memberId": remap.groups.member(group, member)})
        remap.groups.joined(group, member, generation, body, answer)
        if await _sync(ask, remap, group, member, generation, answer, body):
            return None


class JoinRefusedError(Exception):
    """The target does not let a member in; the message says the error."""


async def _join(ask: Ask, body: Body) -> Body:
    """Send JoinGroup until it is accepted: with the id that the target gives, without the one that it does not know."""
    version = _STATIC_JOIN if body.get("groupInstanceId") else _DYNAMIC_JOIN
    while True:
        answer = await _ask_coordinator(ask, api_keys.JOIN_GROUP, version, body)
        error = answer["errorCode"]
        if not error:
            return answer
        if error == errors.UNKNOWN_MEMBER_ID and body["memberId"]:
            body = {**body, "memberId": ""}
        elif answer["memberId"] and answer["memberId"] != body["memberId"]:
            body = {**body, "memberId": answer["memberId"]}
        elif error in _AGAIN:
            await asyncio.sleep(_PAUSE)
        else:
            raise JoinRefusedError(f"JoinGroup of group {body['groupId']}: error {error}")


async def _sync(ask: Ask, remap: Remap, group: str, member: str, generation: int, joined: Body, body: Body) -> bool:
    """Send the SyncGroup after a join; false if the group rebalances again."""
    given: list[Body] = []
    if joined["leader"] == joined["memberId"]:
        if remap.groups.assignment(group, generation, []):
            await asyncio.sleep(_PAUSE)  # the others' ids come with their answers to the same rebalance
        given = remap.groups.assignment(group, generation, [])
    request = {
        "groupId": group,
        "generationId": joined["generationId"],
        "memberId": joined["memberId"],
        "groupInstanceId": body.get("groupInstanceId"),
        "assignments": given,
    }
    answer = await _ask_coordinator(ask, api_keys.SYNC_GROUP, _SYNC, request)
    if answer["errorCode"] and answer["errorCode"] not in _AGAIN:
        raise JoinRefusedError(f"SyncGroup of group {group}: error {answer['errorCode']}")
    return not answer["errorCode"]


async def _beat(ask: Ask, body: Body, joined: Body) -> int:
    """Send a Heartbeat; return its error."""
    request = {
        "groupId": body["groupId"],
        "generationId": joined["generationId"],
        "memberId": joined["memberId"],
        "groupInstanceId": body.get("groupInstanceId"),
    }
    return int((await _ask_coordinator(ask, api_keys.HEARTBEAT, _HEARTBEAT, request))["errorCode"])


async def _join_assigned(ask: Ask, remap: Remap, group: str, member: str, body: Body) -> None:
    """Join a KIP-848 group: the broker assigns. A broker that does not serve them says so again to the next
    heartbeat."""
    answer = await _ask_coordinator(ask, api_keys.CONSUMER_GROUP_HEARTBEAT, _GROUP_HEARTBEAT, body)
    if answer["errorCode"] == errors.UNSUPPORTED_VERSION:
        remap.groups.refuse(group)
        return
    if answer["errorCode"]:
        raise JoinRefusedError(f"ConsumerGroupHeartbeat of group {group}: error {answer['errorCode']}")
    remap.groups.joined_assigned(group, member, body, answer)


async def _ask_coordinator(ask: Ask, api_key: int, version: int, body: Body) -> Body:
    """The coordinator's answer, once the coordinator is there."""
    while True:
        answer = await ask(api_key, version, body)
        if answer["errorCode"] not in NO_COORDINATOR:
            return answer
        await asyncio.sleep(_PAUSE)
