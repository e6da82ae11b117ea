"""Sends the replayer's own requests to the target: leaders, coordinators, producer ids, joins of groups.

In: a request, with the newest version that it is written for. Out: the answer; topics' leaders and coordinators go to
the topology, topics' ids to the remap too. One control connection serves; requests that only one broker of several
answers, or that hold up others, go over a connection of their own. Rules: nothing captured is sent from here; every
request is counted, and repeated by the rules of `retry` with a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import convert
from kwire.replay.plan.values import NO_COORDINATOR, Offers, Producer
from kwire.replay.remap import retry
from kwire.replay.remap.offsets import listed_offset
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology
from kwire.replay.send import principals
from kwire.replay.send.channel import Channel, ChannelClosedError, connect, introduce
from kwire.replay.send.link import Dial, LinkError
from kwire.replay.send.reach import ForbiddenAddressError
from kwire.replay.send.settings import Settings

_TRANSACTION_TIMEOUT_MS: Final = 60_000
_SETTLING: Final = 5.0
"""Seconds for brokers to learn of topics that were created or deleted; requests that are refused after that are
repeated."""


def list_offsets(topic: str, partition: int, timestamp: int) -> Body:
    """Make a ListOffsets for one partition, in every version's form."""
    partition_body = {"partitionIndex": partition, "timestamp": timestamp, "maxNumOffsets": 1}
    return {"replicaId": -1, "topics": [{"name": topic, "partitions": [partition_body]}]}


class Asker:
    """Sends the own requests of one run. `own_requests`: how many requests, by API; `notes`: the run's, by rule;
    `dialling`: connections that are being opened now."""

    def __init__(
        self,
        dial: Dial,
        bootstrap: tuple[str, int],
        offers: Offers,
        topology: Topology,
        remap: Remap,
        settings: Settings,
        notes: Counter[str],
    ) -> None:
        self.own_requests: Counter[str] = Counter()
        self.dialling = 0
        self._dial = dial
        self._bootstrap = bootstrap
        self._offers = offers
        self._topology = topology
        self._remap = remap
        self._settings = settings
        self._notes = notes
        self._control: Channel | None = None
        self._control_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """End the control connection."""
        if self._control is not None:
            self._control.close()

    # --- connections ---

    async def dialled(self, node: int, user: str | None = None) -> Channel:
        """Connect to a node, for a captured user; to the only node again and again until a bound, because brokers
        restart. Raises LinkError."""
        started = self._loop.time()
        pause = 0.05
        self.dialling += 1
        try:
            while True:
                try:
                    return await self._opened(*self._topology.nodes.get(node, self._bootstrap), user)
                except ForbiddenAddressError:
                    raise
                except LinkError:
                    # Of several brokers others may have taken over: the router asks.
                    if len(self._topology.nodes) > 1 or self._loop.time() - started > self._settings.reconnect:
                        raise
                self._notes["dialled_again"] += 1
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
        finally:
            self.dialling -= 1

    async def _dialled_any(self) -> Channel:
        started = self._loop.time()
        while True:
            for address in dict.fromkeys((self._bootstrap, *self._topology.nodes.values())):
                with contextlib.suppress(LinkError):
                    return await self._opened(*address)
            if self._loop.time() - started > self._settings.reconnect:
                host, port = self._bootstrap
                raise LinkError(f"{host}:{port}: no broker of the target answers", "is it up?")
            await asyncio.sleep(0.2)

    async def _opened(self, host: str, port: int, user: str | None = None) -> Channel:
        channel = await connect(principals.of(self._dial, user), host, port)
        await introduce(channel, self._offers, self._settings.answer_timeout)
        return channel

    async def alive(self, timeout: float) -> bool:
        """Whether any broker answers a new connection in time."""
        for address in dict.fromkeys((self._bootstrap, *self._topology.nodes.values())):
            with contextlib.suppress(LinkError, TimeoutError):
                channel = await asyncio.wait_for(connect(self._dial, *address), timeout)
                try:
                    await introduce(channel, self._offers, timeout)
                finally:
                    channel.close()
                return True
        return False

    # --- asking ---

    def offers(self, api_key: int) -> bool:
        """Whether the target offers an API."""
        return api_key in self._offers

    async def _ask(self, api_key: int, version: int, body: Body, node: int | None = None) -> Body:
        """Ask on the control connection; a node of several gets a connection of its own."""
        if node is not None and len(self._topology.nodes) > 1:
            return await self._ask_apart(node, api_key, version, body)
        question = self._question(api_key, version, body)
        async with self._control_lock:
            for attempt in (0, 1):
                if self._control is None or not self._control.open:
                    self._control = await self._dialled_any()
                try:
                    return await self._control.ask(*question)
                except ChannelClosedError as closed:
                    if attempt:
                        raise _went_away(closed) from None
        raise AssertionError

    async def _ask_apart(self, node: int, api_key: int, version: int, body: Body) -> Body:
        """Ask a node on a connection for this request only."""
        question = self._question(api_key, version, body)
        channel = await self.dialled(node)
        try:
            return await channel.ask(*question)
        except ChannelClosedError as closed:
            raise _went_away(closed) from None
        finally:
            channel.close()

    def _question(self, api_key: int, version: int, body: Body) -> tuple[int, int, Body, float]:
        """The arguments of `Channel.ask`, in the nearest version that is offered."""
        if api_key not in self._offers:
            host, port = self._bootstrap
            raise LinkError(f"{host}:{port}: does not offer {api_keys.name(api_key)}", "is it Kafka?")
        version = convert.choose(version, self._offers[api_key])
        self.own_requests[api_keys.name(api_key)] += 1
        return api_key, version, convert.fit(api_key, version, body), self._settings.answer_timeout

    async def ask_until(self, api_key: int, version: int, body: Body, transaction: str | None = None) -> Body:
        """Ask until no retriable error comes, with a bound; return the last answer. `transaction`: ask the coordinator
        of this transactional id. Raises LinkError."""
        started = self._loop.time()
        pause = self._settings.limits.first_pause
        while True:
            late = self._loop.time() - started > self._settings.limits.errors
            try:
                node = await self.coordinator(api_keys.TRANSACTION_COORDINATOR, transaction) if transaction else None
                answer = await self._ask(api_key, version, body, node)
            except LinkError:
                if late:
                    raise
                rule: str | None = "reconnected"
            else:
                rule = retry.rule_for(api_key, {"errorCode": 0}, answer, False)
                if rule is None or late:
                    return answer
            if transaction and rule == "coordinator_loads":
                await self.find_coordinator(api_keys.TRANSACTION_COORDINATOR, transaction)
            elif transaction:
                self._topology.coordinators.pop((api_keys.TRANSACTION_COORDINATOR, transaction), None)
            assert rule is not None
            self._notes[rule] += 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._settings.limits.longest_pause)

    async def ask_as_member(self, group: str, api_key: int, version: int, body: Body) -> Body:
        """Ask a group's coordinator as one of its members (`joining.Ask`, once the group is given). Raises
        LinkError."""
        answer = await self._ask_apart(
            await self.coordinator(api_keys.GROUP_COORDINATOR, group), api_key, version, body
        )
        if answer["errorCode"] in NO_COORDINATOR:
            await self.find_coordinator(api_keys.GROUP_COORDINATOR, group)
        return answer

    # --- the questions ---

    async def refresh(self, topics: Sequence[str]) -> None:
        """Ask for the leaders of topics (and all brokers). Raises LinkError."""
        body: Body = {"topics": [{"name": name} for name in topics], "allowAutoTopicCreation": False}
        self._topology.learn_metadata(await self._ask(api_keys.METADATA, 12, body))
        self._remap.topics.learn_from(self._topology)

    async def settle(self, created: Mapping[str, int], gone: Collection[str]) -> None:
        """Wait, with a bound, until topics that were created (with this many partitions at least) have leaders that
        know it. And until those that were deleted are not named any more. Raises LinkError."""
        deadline = self._loop.time() + _SETTLING
        body: Body = {"topics": [{"name": name} for name in (*created, *gone)], "allowAutoTopicCreation": False}
        pause = self._settings.limits.first_pause
        while self._loop.time() < deadline:
            answer = await self._ask(api_keys.METADATA, 12, body)
            self._topology.learn_metadata(answer)
            self._remap.topics.learn_from(self._topology)
            there = {topic["name"]: topic["partitions"] for topic in answer["topics"] if not topic["errorCode"]}
            missing = [name for name, count in created.items() if len(there.get(name, ())) < max(count, 1)]
            if (
                not missing
                and there.keys().isdisjoint(gone)
                and await self._are_led({topic: there[topic] for topic in created})
            ):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._settings.limits.longest_pause)

    async def _are_led(self, topics: Mapping[str, list[Body]]) -> bool:
        """Whether each of these partitions (as Metadata lists them) has a leader that says where it ends."""
        by_broker: dict[int, list[Body]] = {}
        for name, partitions in topics.items():
            by_leader: dict[int, list[Body]] = {}
            for partition in partitions:
                numbers = by_leader.setdefault(partition["leaderId"], [])
                numbers += list_offsets(name, partition["partitionIndex"], api_keys.END_OF_LOG)["topics"][0][
                    "partitions"
                ]
            for leader, numbers in by_leader.items():
                by_broker.setdefault(leader, []).append({"name": name, "partitions": numbers})
        for leader, some in by_broker.items():
            if leader < 0:
                return False
            answer = await self._ask(api_keys.LIST_OFFSETS, 5, {"replicaId": -1, "topics": some}, leader)
            if any(partition["errorCode"] for topic in answer["topics"] for partition in topic["partitions"]):
                return False
        return True

    async def end(self, topic: str, partition: int) -> int | None:
        """Where a partition of the target ends; None if it does not say. Raises LinkError."""
        leader = self._topology.leaders.get((topic, partition))
        answer = await self._ask(api_keys.LIST_OFFSETS, 5, list_offsets(topic, partition, api_keys.END_OF_LOG), leader)
        listed = [partition for each in answer["topics"][:1] for partition in each["partitions"][:1]]
        return None if not listed or listed[0]["errorCode"] else max(listed_offset(listed[0]), 0)

    async def coordinator(self, key_type: int, key: str) -> int:
        """The node that coordinates a group or a transactional id; asked for if it is not known."""
        if len(self._topology.nodes) <= 1:
            return next(iter(self._topology.nodes))
        known = self._topology.coordinators.get((key_type, key))
        return known if known is not None else await self.find_coordinator(key_type, key)

    async def find_coordinator(self, key_type: int, key: str) -> int:
        """Ask for a coordinator. A cluster that was never asked has none: the request creates the topic for its state,
        and a capture may begin after its clients had asked."""
        self._topology.coordinators.pop((key_type, key), None)
        answer = await self.ask_until(api_keys.FIND_COORDINATOR, 3, {"key": key, "keyType": key_type})
        if answer["errorCode"]:
            return next(iter(self._topology.nodes))
        self._topology.learn_coordinator(key_type, key, answer["nodeId"], answer["host"], answer["port"])
        return int(answer["nodeId"])

    async def producer(self, transactional_id: str | None) -> Producer | int:
        """Get a producer id of the target, or the error with which it refuses one. Raises LinkError."""
        body = {"transactionalId": transactional_id or None, "transactionTimeoutMs": _TRANSACTION_TIMEOUT_MS}
        answer = await self.ask_until(api_keys.INIT_PRODUCER_ID, 4, body, transactional_id)
        return int(answer["errorCode"]) or Producer(answer["producerId"], answer["producerEpoch"])


def _went_away(closed: ChannelClosedError) -> LinkError:
    return LinkError(str(closed), "see the broker's log")
