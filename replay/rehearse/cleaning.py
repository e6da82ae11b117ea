"""Deletes what the runs of a rehearsal made on a target: topics and groups, by the prefix of their names.

In: a `Target`, and a prefix that no other has. Out: lines that say what was deleted, and what could not be. Rule:
nothing without the prefix is named in any request. Transactional ids cannot be deleted: brokers forget them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kwire.analyzer.common.listing import listed
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import convert
from kwire.replay.send.channel import ChannelClosedError
from kwire.replay.send.link import LinkError
from kwire.replay.send.target import Target

_SECONDS: Final = 60.0
"""For members that are gone without a word to be forgotten: the longest usual session timeout and a little."""
_PAUSE: Final = 1.0
_ANSWER: Final = 30.0
_NAMED: Final = 5


async def clean(target: Target, prefix: str) -> list[str]:
    """Delete the topics and groups whose names begin with a prefix; lines for the user."""
    assert prefix, "everything would be deleted"
    notes = []
    try:
        notes += await _delete_groups(target, prefix)
        notes += await _delete_topics(target, prefix)
    except (LinkError, ChannelClosedError) as failure:
        notes.append(f"--clean: {failure}; what begins with {prefix} may still be there")
    return notes


async def _delete_topics(target: Target, prefix: str) -> list[str]:
    names = sorted(name for name in await target.learn(None) if name.startswith(prefix))
    if not names:
        return []
    version = target.version(api_keys.DELETE_TOPICS, 5)
    answer = await target.ask(api_keys.DELETE_TOPICS, version, {"topicNames": names, "timeoutMs": 30_000}, _ANSWER)
    refused = {each["name"]: each["errorCode"] for each in answer["responses"] if each["errorCode"]}
    return _lines("topic", names, refused)


async def _delete_groups(target: Target, prefix: str) -> list[str]:
    """Delete the groups, of each broker those that it coordinates, once their members are gone."""
    if api_keys.LIST_GROUPS not in target.offers or api_keys.DELETE_GROUPS not in target.offers:
        return []
    deadline = asyncio.get_running_loop().time() + _SECONDS
    names: set[str] = set()
    refused: dict[str, int] = {}
    for node in sorted(target.topology.nodes):
        answer = await _ask_node(target, node, api_keys.LIST_GROUPS, 4, {"statesFilter": []})
        there = sorted(group["groupId"] for group in answer["groups"] if group["groupId"].startswith(prefix))
        names.update(there)
        refused |= await _delete_until(target, node, there, deadline)
    return _lines("group", sorted(names), refused)


async def _delete_until(target: Target, node: int, groups: list[str], deadline: float) -> dict[str, int]:
    """Delete groups that a broker coordinates; return those that it refused to delete until the end, with the error."""
    refused: dict[str, int] = {}
    while groups:
        answer = await _ask_node(target, node, api_keys.DELETE_GROUPS, 2, {"groupsNames": groups})
        codes = {each["groupId"]: each["errorCode"] for each in answer["results"]}
        refused = {group: codes[group] for group in groups if codes.get(group)}
        groups = [group for group, code in refused.items() if code == errors.NON_EMPTY_GROUP]
        if not groups or asyncio.get_running_loop().time() > deadline:
            break
        await _remove_members(target, node, groups)
        await asyncio.sleep(_PAUSE)
    return refused


async def _remove_members(target: Target, node: int, groups: list[str]) -> None:
    """Take the members out of classic groups; those of others are forgotten after their session timeout."""
    if api_keys.DESCRIBE_GROUPS not in target.offers or target.offers.get(api_keys.LEAVE_GROUP, (0, 0))[1] < 3:
        return
    answer = await _ask_node(target, node, api_keys.DESCRIBE_GROUPS, 5, {"groups": groups})
    for group in answer["groups"]:
        members = [
            {"memberId": member["memberId"], "groupInstanceId": member.get("groupInstanceId"), "reason": None}
            for member in group["members"]
        ]
        if members:
            body = {"groupId": group["groupId"], "members": members}
            await _ask_node(target, node, api_keys.LEAVE_GROUP, 5, body)


async def _ask_node(target: Target, node: int, api_key: int, newest: int, body: Body) -> Body:
    version = target.version(api_key, newest)
    channel = await target.at(node)
    return await channel.ask(api_key, version, convert.fit(api_key, version, body), _ANSWER)


def _lines(kind: str, names: list[str], refused: dict[str, int]) -> list[str]:
    lines = []
    done = len(names) - len(refused)
    if done:
        lines.append(f"--clean: {done:,} {kind}{'s' * (done != 1)} deleted")
    if refused:
        shown = [f"{name} ({errors.label(code)})" for name, code in sorted(refused.items())[:_NAMED]]
        lines.append(f"--clean: could not be deleted: {kind} {listed(shown, len(refused))}")
    return lines
