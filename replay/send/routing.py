"""Routes requests to the brokers that serve them now, on their session's connections.

In: a request's body, as it is to be sent. Out: its parts, one per broker, each with the open connection that takes it.
Rules: a session has at most one connection to a broker; for a broker that cannot be reached, the others are asked
until they have taken over, with a bound.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis
from kwire.replay.plan.apis import Route
from kwire.replay.plan.topic_partitions import named, named_broker, subset
from kwire.replay.remap import share_sessions
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology
from kwire.replay.send.channel import Channel
from kwire.replay.send.link import LinkError
from kwire.replay.send.own_requests import Asker
from kwire.replay.send.reach import ForbiddenAddressError
from kwire.replay.send.settings import Settings


class Connections:
    """The connections of one session, by node. `broker`: the captured one that it was connected to; `user`: the user
    that had logged in there."""

    def __init__(self, broker: tuple[str, int], user: str | None = None) -> None:
        self.broker = broker
        self.user = user
        self.channels: dict[int, Channel] = {}

    async def to(self, node: int, asker: Asker) -> Channel:
        """The connection to a node, opened if it is not. Raises LinkError."""
        channel = self.channels.get(node)
        if channel is None or not channel.open:
            channel = self.channels[node] = await asker.dialled(node, self.user)
        return channel

    def close(self) -> None:
        """Close all connections."""
        for channel in self.channels.values():
            channel.close()


class Router:
    """Routes one run's requests. `brokers`: the captured ones; `notes`: the run's, by rule."""

    def __init__(
        self,
        brokers: Sequence[tuple[str, int]],
        topology: Topology,
        remap: Remap,
        asker: Asker,
        settings: Settings,
        notes: Counter[str],
    ) -> None:
        self._brokers = brokers
        self._topology = topology
        self._remap = remap
        self._asker = asker
        self._settings = settings
        self._notes = notes
        self._down: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()

    async def reach(self, connections: Connections, api_key: int, body: Body) -> list[tuple[int, Channel, Body]]:
        """Split a request by the brokers that serve it now: node and connection, which is opened if it is not. A
        session does one of these at a time. Raises LinkError."""
        started = self._loop.time()
        while True:
            parts = await self._parts(connections.broker, api_key, body)
            reached: list[tuple[int, Channel, Body]] = []
            try:
                for node, part in parts:
                    reached.append((node, await connections.to(node, self._asker), part))
                if api_key in share_sessions.APIS:
                    self._remap.fetches.shares.sent(api_key, parts)
                return reached
            except ForbiddenAddressError:
                raise
            except LinkError:
                if len(self._topology.nodes) <= 1 or self._loop.time() - started > self._settings.reconnect:
                    raise
                lost = parts[len(reached)][0]
                self._down[lost] = self._loop.time()
                self._topology.forget_node(lost)
            self._notes["dialled_again"] += 1
            await asyncio.sleep(self._settings.limits.longest_pause)
            names = {self._remap.topics.name(topic) for topic, _ in named(api_key, body)}
            await self._asker.refresh(sorted(names))

    async def _parts(self, broker: tuple[str, int], api_key: int, body: Body) -> list[tuple[int, Body]]:
        """Give (node, body) of each part of a request."""
        route = apis.api(api_key).route
        home = self._home(broker)
        if api_key not in share_sessions.APIS and (len(self._topology.nodes) <= 1 or route is Route.ANY):
            return [(home, body)]
        if route is Route.BROKER:
            node = named_broker(body)
            return [(node if node in self._topology.nodes and node is not None else home, body)]
        if route is Route.LEADER:
            by_leader: dict[int, set[tuple[str, int]]] = {}
            for topic, partition in named(api_key, body):
                leader = self._topology.leaders.get((self._remap.topics.name(topic), partition), home)
                by_leader.setdefault(leader, set()).add((topic, partition))
            if api_key in share_sessions.APIS:
                return self._remap.fetches.shares.parts(api_key, body, by_leader, home)
            if len(by_leader) <= 1:
                return [(next(iter(by_leader), home), body)]
            return [(node, subset(api_key, body, wanted)) for node, wanted in sorted(by_leader.items())]
        if route is Route.TRANSACTION:
            if "transactionalIds" in body:
                return await self._listed(home, body, "transactionalIds", names.TRANSACTION_COORDINATOR)
            name = body.get("transactionalId") or body.get("v3AndBelowTransactionalId") or ""
            return [(await self._asker.coordinator(names.TRANSACTION_COORDINATOR, name) if name else home, body)]
        return await self._group_parts(home, body)

    async def _group_parts(self, home: int, body: Body) -> list[tuple[int, Body]]:
        for list_name in ("groups", "groupIds", "groupsNames"):
            if isinstance(body.get(list_name), list):
                return await self._listed(home, body, list_name, names.GROUP_COORDINATOR)
        return [(await self._asker.coordinator(names.GROUP_COORDINATOR, body.get("groupId") or ""), body)]

    async def _listed(self, home: int, body: Body, list_name: str, kind: int) -> list[tuple[int, Body]]:
        """Give the parts of a request that lists groups or transactional ids: one per coordinator."""
        by_node: dict[int, list[Any]] = {}
        for element in body[list_name]:
            key = element if isinstance(element, str) else element["groupId"]
            by_node.setdefault(await self._asker.coordinator(kind, key), []).append(element)
        return [(node, {**body, list_name: part}) for node, part in sorted(by_node.items())] or [(home, body)]

    def _home(self, broker: tuple[str, int]) -> int:
        """The node that stands for a captured broker; while that is down, another."""
        node = self._topology.home(self._brokers, broker)
        recently = self._loop.time() - self._settings.reconnect
        if self._down.get(node, recently) > recently:
            up = [other for other in sorted(self._topology.nodes) if self._down.get(other, recently) <= recently]
            return up[0] if up else node
        return node
