"""The target before anything is sent: its versions, brokers and topics, asked on connections of their own.

In: an address, and how to open connections. Out: a `Target`. Errors leave as LinkError.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.protocol import names
from analyzer.protocol.tree import Body
from replay.plan import convert
from replay.plan.values import Offers, offers_of
from replay.remap.offsets import listed_offset
from replay.remap.topology import Topology
from replay.send.channel import Channel, ChannelClosed, connect, introduce
from replay.send.link import Dial, LinkError
from replay.send.own_requests import list_offsets


@dataclass(slots=True)
class Target:
    """What a target said of itself. `others`: connections to its brokers, by node."""

    offers: Offers
    topology: Topology
    channel: Channel
    dial: Dial
    others: dict[int, Channel] = field(default_factory=dict)

    async def at(self, node: int) -> Channel:
        """A channel to one of its brokers. Raises LinkError."""
        if node not in self.others:
            host, port = self.topology.nodes[node]
            self.others[node] = await connect(self.dial, host, port)
            await introduce(self.others[node], self.offers, 10.0)
        return self.others[node]

    async def ends(self, topics: list[str], timestamp: int) -> list[int | None]:
        """The first (`START_OF_LOG`) or next (`END_OF_LOG`) offset of each partition, asked of its leader; None where
        it has no leader yet."""
        version = min(self.offers[names.LIST_OFFSETS][1], 5)
        listed: list[int | None] = []
        for topic in topics:
            for partition in range(self.topology.partitions.get(topic, 0)):
                leader = self.topology.leaders.get((topic, partition))
                if leader is None:
                    listed.append(None)
                    continue
                body = convert.fit(names.LIST_OFFSETS, version, list_offsets(topic, partition, timestamp))
                try:
                    channel = await self.at(leader)
                    answer = await channel.ask(names.LIST_OFFSETS, version, body, 10.0)
                except (LinkError, ChannelClosed):
                    self.others.pop(leader, None)  # it went away; another will lead
                    listed.append(None)
                    continue
                told = answer["topics"][0]["partitions"][0]
                listed.append(None if told["errorCode"] else listed_offset(told))
        return listed

    async def learn(self, topics: list[str] | None, timeout: float = 10.0) -> set[str]:
        """Ask for topics (None: all) and brokers, and take what comes; the topics that are there. Raises
        ChannelClosed."""
        version = min(self.offers.get(names.METADATA, (0, 0))[1], 12)
        everything: list[Body] | None = None if version else []
        asked = everything if topics is None else [{"name": topic} for topic in topics]
        body: Body = {"topics": asked, "allowAutoTopicCreation": False}
        answer = await self.channel.ask(names.METADATA, version, convert.fit(names.METADATA, version, body), timeout)
        self.topology.learn_metadata(answer)
        return {topic["name"] for topic in answer["topics"] if not topic["errorCode"]}

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
    try:
        await target.learn(None, timeout)
    except ChannelClosed as closed:
        raise LinkError(str(closed), "is this a Kafka listener, and does it want a login?") from None
    if not target.topology.nodes:
        raise LinkError(f"{channel.address}: names no brokers", "is the cluster up?")
    return target
