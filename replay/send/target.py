"""The target before anything is sent: its versions, brokers and topics, asked on connections of their own.

In: an address, and how to open connections. Out: a `Target`. Errors leave as LinkError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import convert
from kwire.replay.plan.values import Offers, offers_of
from kwire.replay.remap.offsets import listed_offset
from kwire.replay.remap.topology import Topology
from kwire.replay.send.channel import Channel, ChannelClosedError, connect, introduce
from kwire.replay.send.link import Dial, LinkError
from kwire.replay.send.own_requests import list_offsets

_LIES: Final = "what it says of itself does not fit together: is it Kafka, and is the cluster up?"


@dataclass(slots=True)
class Target:
    """A target as it described itself. `others`: connections to its brokers, by node; `refused`: topics about which it
    answered the last request with an error."""

    offers: Offers
    topology: Topology
    channel: Channel
    dial: Dial
    others: dict[int, Channel] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    async def at(self, node: int) -> Channel:
        """Open a channel to one of its brokers. Raises LinkError."""
        if node not in self.topology.nodes:
            raise LinkError(f"{self.channel.address}: names node {node} as a leader, and no address for it", _LIES)
        if node not in self.others:
            host, port = self.topology.nodes[node]
            self.others[node] = await connect(self.dial, host, port)
            await introduce(self.others[node], self.offers, 10.0)
        return self.others[node]

    async def ends(self, topics: list[str], timestamp: int) -> list[int | None]:
        """The first (`START_OF_LOG`) or next (`END_OF_LOG`) offset of each partition, from its leader; None if it has
        no leader yet."""
        version = self.version(api_keys.LIST_OFFSETS, 5)
        listed: list[int | None] = []
        for topic in topics:
            for partition in range(self.topology.partitions.get(topic, 0)):
                leader = self.topology.leaders.get((topic, partition))
                if leader is None:
                    listed.append(None)
                    continue
                body = convert.fit(api_keys.LIST_OFFSETS, version, list_offsets(topic, partition, timestamp))
                try:
                    channel = await self.at(leader)
                    answer = await channel.ask(api_keys.LIST_OFFSETS, version, body, 10.0)
                except (LinkError, ChannelClosedError):
                    self.others.pop(leader, None)  # it went away; another will lead
                    listed.append(None)
                    continue
                partitions = [partition for each in answer["topics"][:1] for partition in each["partitions"][:1]]
                listed.append(None if not partitions or partitions[0]["errorCode"] else listed_offset(partitions[0]))
        return listed

    def version(self, api_key: int, newest: int) -> int:
        """The version in which an API is requested, at most `newest`. Raises LinkError if it is not offered."""
        if api_key not in self.offers:
            raise LinkError(f"{self.channel.address}: does not offer {api_keys.name(api_key)}", "is it Kafka?")
        return min(self.offers[api_key][1], newest)

    async def ask(self, api_key: int, version: int, body: Body, timeout: float) -> Body:
        """Ask on the connection to `--to`. Raises LinkError."""
        try:
            return await self.channel.ask(api_key, version, convert.fit(api_key, version, body), timeout)
        except ChannelClosedError as closed:
            raise LinkError(str(closed), "is this a Kafka listener, and does it want a login?") from None

    async def learn(self, topics: list[str] | None, timeout: float = 10.0) -> set[str]:
        """Ask for topics (None: all) and brokers, and take the answer; return the topics that exist. Raises
        LinkError."""
        version = min(self.offers.get(api_keys.METADATA, (0, 0))[1], 12)
        everything: list[Body] | None = None if version else []
        topic_bodies = everything if topics is None else [{"name": topic} for topic in topics]
        body: Body = {"topics": topic_bodies, "allowAutoTopicCreation": False}
        answer = await self.ask(api_keys.METADATA, version, body, timeout)
        self.topology.learn_metadata(answer)
        codes = {topic["name"]: topic["errorCode"] for topic in answer["topics"]}
        self.refused = {name: code for name, code in {**self.refused, **codes}.items() if code}
        return {name for name, code in codes.items() if not code}

    def close(self) -> None:
        """End its connections."""
        for channel in (self.channel, *self.others.values()):
            channel.close()


async def ask(host: str, port: int, dial: Dial, answer_timeout: float) -> Target:
    """Connect, and learn versions, brokers and topics. Raises LinkError."""
    channel = await connect(dial, host, port)
    timeout = min(answer_timeout, 10.0)
    answer = await introduce(channel, None, timeout)
    assert answer is not None
    if answer["errorCode"]:
        raise LinkError(f"{channel.address}: refused ApiVersions", "is it Kafka 0.10 or newer?")
    target = Target(offers_of(answer), Topology(), channel, dial)
    await target.learn(None, timeout)
    if not target.topology.nodes:
        raise LinkError(f"{channel.address}: names no brokers", "is the cluster up?")
    return target
