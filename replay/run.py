"""A replay from end to end: read, ask the target, plan, seed, send, write.

In: captures or a dataset, and a target. Out: a RUN, and a `Result` with its counts. Errors of the target leave as
LinkError, those of the input as the reading's own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from analyzer import dataset
from analyzer.schema import ZERO_UUID
from replay import apis, convert, link, offsets, plan, remap, sessions, topology, workers
from replay.asking import END, START, list_offsets
from replay.channel import Channel, ChannelClosed, connect, introduce
from replay.engine import Engine
from replay.outcome import Counts, Recorder, quantiles
from replay.sessions import Session
from replay.settings import Settings
from replay.steps import Plan

Body = dict[str, Any]

LAG_LIMIT_US: Final = 50_000
"""99th percentile of the replayer's own delay above which a run is no valid load test."""


class NotEmpty(Exception):
    """The target has records in topics that would be written to."""

    def __init__(self, topics: list[str]) -> None:
        super().__init__(f"the target's {', '.join(topics)} {'is' if len(topics) == 1 else 'are'} not empty")
        self.hint = "--yes writes to them all the same"


@dataclass(frozen=True, slots=True)
class Options:
    """What `kwire replay` takes. `access`: how workers, which are processes of their own, open connections."""

    host: str
    port: int
    allow: frozenset[int] = frozenset()
    settings: Settings = field(default_factory=Settings)
    map_topic: dict[str, str] = field(default_factory=dict)
    offsets: str = offsets.SHIFT
    timestamps: str = remap.KEEP
    seed_topics: bool = False
    yes: bool = False
    lag_limit_us: int = LAG_LIMIT_US
    processes: int = 1
    access: workers.Access = field(default_factory=workers.Access)


@dataclass(slots=True)
class Target:
    """What a target said of itself."""

    offers: plan.Offers
    topology: topology.Topology
    channel: Channel
    dial: link.Dial
    others: dict[int, Channel] = field(default_factory=dict)

    async def at(self, node: int) -> Channel:
        """A channel to one of its brokers. Raises LinkError."""
        if node not in self.others:
            host, port = self.topology.nodes[node]
            self.others[node] = await connect(self.dial, host, port)
            await introduce(self.others[node], self.offers, 10.0)
        return self.others[node]

    async def ends(self, topics: list[str], timestamp: int) -> list[int | None]:
        """The first (`START`) or next (`END`) offset of each partition, asked of its leader; None where it has no
        leader yet."""
        version = min(self.offers[apis.LIST_OFFSETS][1], 5)
        found: list[int | None] = []
        for topic in topics:
            for partition in range(self.topology.partitions.get(topic, 0)):
                leader = self.topology.leaders.get((topic, partition))
                if leader is None:
                    found.append(None)
                    continue
                body = convert.fit(apis.LIST_OFFSETS, version, list_offsets(topic, partition, timestamp))
                try:
                    channel = await self.at(leader)
                    answer = await channel.ask(apis.LIST_OFFSETS, version, body, 10.0)
                except (link.LinkError, ChannelClosed):
                    self.others.pop(leader, None)  # it went away; another will lead
                    found.append(None)
                    continue
                one = answer["topics"][0]["partitions"][0]
                found.append(None if one["errorCode"] else remap.listed_offset(one))
        return found

    def close(self) -> None:
        """End its connections."""
        for channel in (self.channel, *self.others.values()):
            channel.close()


@dataclass(slots=True)
class Result:
    """How a run went. `valid`: all was sent that should be, and its own lag was small enough for its times to mean
    something. `failure`: what kept something from being sent."""

    counts: Counts
    plan: Plan
    notes: list[str]
    own_requests: dict[str, int]
    engine_notes: dict[str, int]
    valid: bool
    interrupted: bool
    failure: link.LinkError | None
    seconds: float
    sending_seconds: float
    sending_cpu_seconds: float


def read(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    filter: Any = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    notes: list[str] | None = None,
) -> list[Session]:
    """Sessions of captures, or of a dataset."""
    some = [captures] if isinstance(captures, str | os.PathLike) else list(captures)
    if len(some) == 1 and dataset.is_dataset(some[0]):
        return sessions.from_dataset(some[0])
    return sessions.from_captures(some, filter=filter, rotated=rotated, ports=ports, notes=notes)


async def ask_target(options: Options, dial: link.Dial) -> Target:
    """Connect, and learn versions, brokers and topics. Raises LinkError."""
    channel = await connect(dial, options.host, options.port)
    timeout = min(options.settings.answer_timeout, 10.0)
    answer = await introduce(channel, None, timeout)
    assert answer is not None
    if answer["errorCode"]:
        raise link.LinkError(f"{channel.address}: refused ApiVersions", "is it Kafka 0.10 or newer?")
    offers = plan.offers_of(answer)
    version = min(offers.get(apis.METADATA, (0, 0))[1], 12)
    known = topology.Topology()
    body = convert.fit(apis.METADATA, version, {"topics": None if version else [], "allowAutoTopicCreation": False})
    try:
        known.learn_metadata(await channel.ask(apis.METADATA, version, body, timeout))
    except ChannelClosed as closed:
        raise link.LinkError(str(closed), "is this a Kafka listener, and does it want a login?") from None
    if not known.nodes:
        raise link.LinkError(f"{channel.address}: names no brokers", "is the cluster up?")
    return Target(offers, known, channel, dial)


async def replay(
    found: Sequence[Session], options: Options, dial: link.Dial, out: str | os.PathLike[str], notes: list[str]
) -> Result:
    """Send sessions to the target and write the RUN. Cancelling it (Ctrl-C) writes what was done."""
    writer = dataset.Writer(out)
    started = time.monotonic()
    target: Target | None = None
    try:
        target = await ask_target(options, dial)
        names = topic_names(options, found, target.topology)
        planned, facts = plan.make(found, target.offers, plan.PlanOptions(options.allow, names))
        mapped = {old: new for old, new in options.map_topic.items() if old not in facts.topic_names}
        options = dataclasses.replace(options, map_topic=mapped)  # an id that it named is no name any more
        learned = remap.Remap(_remap_options(options, found), facts.assignments)
        learned.nodes = _nodes(facts, target.topology)
        await _check_empty(options, facts, target)
        if options.seed_topics:
            notes += await seed(options, facts, target)
        notes += missing(options, facts, target.topology, planned)
        learned.learn_topics(target.topology)
        target.close()
        recorder = Recorder(writer)
        recorder.captured(found)
        for skip in planned.skips:
            recorder.skip(skip)
        sending, cpu = time.monotonic(), time.process_time()
        sender = _one_process if options.processes == 1 else _workers
        done = await sender(found, planned, facts, target, learned, options, recorder)
        sending, cpu = time.monotonic() - sending, time.process_time() - cpu
        recorder.settle()
        lag = quantiles(recorder.counts.lags_us).get("p99", 0)
        in_time = options.settings.speed is None or lag <= options.lag_limit_us
        valid = in_time and not recorder.counts.tool_errors and not done.failure
        seconds = time.monotonic() - started
        captures = [{"name": name, "files": []} for name in dict.fromkeys(session.capture for session in found)]
        about = {
            "target": f"{options.host}:{options.port}",
            "brokers": {str(node): f"{host}:{port}" for node, (host, port) in target.topology.nodes.items()},
            "offers": {apis.name(key): list(pair) for key, pair in sorted(target.offers.items())},
            "speed": options.settings.speed or "max",
            "offsets": options.offsets,
            "timestamps": options.timestamps,
            "map_topic": options.map_topic,
            "seeded": options.seed_topics,
            "allow": sorted(apis.name(key) for key in options.allow),
            "valid": valid,
            "interrupted": done.interrupted,
            "failure": str(done.failure or ""),
            "seconds": round(seconds, 3),
            "own_requests": done.own_requests,
            "engine": done.notes,
            "workers": options.processes,
            "notes": notes,
        }
        remaps = [row for name in dict.fromkeys(s.capture for s in found) for row in learned.rows(name)]
        remaps += _topic_id_rows(found, facts, learned)
        recorder.finish(remaps, captures, about)
        return Result(
            recorder.counts,
            planned,
            notes,
            done.own_requests,
            done.notes,
            valid,
            done.interrupted,
            done.failure,
            seconds,
            sending,
            cpu,
        )
    finally:
        if target is not None:
            target.close()
            await asyncio.sleep(0)  # the loop may end with us: let it close what was opened
        writer.__exit__()


async def _one_process(
    found: Sequence[Session], planned: Plan, facts: plan.Facts, target: Target, learned: remap.Remap,
    options: Options, recorder: Recorder,
) -> workers.Done:  # fmt: skip
    """Send from here."""
    engine = Engine(
        found, planned, facts, learned, target.topology, target.offers, target.dial, (options.host, options.port),
        options.settings, recorder.add,
    )  # fmt: skip
    interrupted = False
    try:
        await engine.run()
    except asyncio.CancelledError:
        interrupted = True
    return workers.Done(recorder.counts, engine.own_requests, engine.notes, interrupted, engine.failure)


async def _workers(
    found: Sequence[Session], planned: Plan, facts: plan.Facts, target: Target, learned: remap.Remap,
    options: Options, recorder: Recorder,
) -> workers.Done:  # fmt: skip
    """Send from several processes."""
    known = workers.Surroundings(
        facts, target.offers, target.topology, learned, (options.host, options.port), options.settings, options.access
    )
    own_requests: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="kwire-replay-") as folder:
        parts = workers.shares(found, planned, options.processes)
        done, dead = await workers.send(parts, known, Path(folder), recorder.take)
    for one in done:
        recorder.counts.add(one.counts)
        own_requests.update(one.own_requests)
        notes.update(one.notes)
    failures = [one.failure for one in done if one.failure]
    for lost in dead:
        for number in parts[lost.number].numbers:
            recorder.lost(planned.steps[number], lost.reason)
        what = f"worker {lost.number + 1} of {len(parts)} {lost.reason}"
        told = f"{what}: what became of its {len(parts[lost.number].numbers)} requests is not known"
        failures.insert(0, link.LinkError(told, "was memory short? fewer --workers need less"))
    interrupted = any(one.interrupted for one in done)
    return workers.Done(recorder.counts, dict(own_requests), dict(notes), interrupted, next(iter(failures), None))


def _remap_options(options: Options, found: Sequence[Session]) -> remap.Options:
    first = min((session.requests[0].sent_ns for session in found if session.requests), default=0)
    delta = (time.time_ns() - first) // 1_000_000 if options.timestamps == remap.SHIFT else 0
    return remap.Options(options.offsets, options.timestamps, delta, options.map_topic)


def topic_names(options: Options, found: Sequence[Session], known: topology.Topology) -> dict[str, str]:
    """Captured names of topic ids, from elsewhere than the capture: the user (`--map-topic ID=NAME`), the dataset's own
    table, and the target, if it is the captured cluster or a copy with its ids."""
    captured = {new: old for old, new in options.map_topic.items()}
    names = {topic_id: captured.get(name, name) for name, topic_id in known.topic_ids.items()}
    for session in found:
        names.update(session.topic_ids)
    return names | options.map_topic


def _nodes(facts: plan.Facts, known: topology.Topology) -> dict[int, int]:
    """Captured broker ids to the target's, in order, again from the first where it has fewer."""
    there = sorted(known.nodes)
    return {node: there[index % len(there)] for index, node in enumerate(sorted(facts.nodes))}


def _topic_id_rows(found: Sequence[Session], facts: plan.Facts, learned: remap.Remap) -> list[Body]:
    name = found[0].capture if found else ""
    return [
        {"capture": name, "kind": "topic_id", "scope": topic, "captured": topic_id,
         "replayed": learned.topic_ids.get(learned.topic(topic), ZERO_UUID), "records": None}
        for topic_id, topic in facts.topic_names.items()
    ]  # fmt: skip


def missing(options: Options, facts: plan.Facts, known: topology.Topology, planned: Plan) -> list[str]:
    """What the target lacks of the captured topics."""
    notes = []
    used = {
        topic.get(apis.NAME)
        for step in planned.steps
        for _, topic in apis.topics(step.request.api_key, step.body or {})
    }
    for name in sorted(facts.topics.keys() & used):
        there = options.map_topic.get(name, name)
        wanted = facts.topics[name]
        if wanted.internal:
            continue
        if there not in known.partitions:
            notes.append(f"the target has no topic {there}; --seed-topics makes it")
        elif known.partitions[there] < wanted.partitions:
            notes.append(f"{there} has {known.partitions[there]} partitions, the captured one {wanted.partitions}")
    return notes


async def _check_empty(options: Options, facts: plan.Facts, target: Target) -> None:
    """Raises NotEmpty where captured records would be added to others, unless that is wanted."""
    if options.yes:
        return
    full = []
    for name in sorted(facts.produced):
        there = options.map_topic.get(name, name)
        if await target.ends([there], START) != await target.ends([there], END):
            full.append(there)
    if full:
        raise NotEmpty(full)


async def seed(options: Options, facts: plan.Facts, target: Target) -> list[str]:
    """Create the captured topics that the target lacks; returns what the user should know."""
    notes: list[str] = []
    wanted = [
        topic
        for topic in facts.topics.values()
        if not topic.internal
        and not topic.name.startswith("__")
        and options.map_topic.get(topic.name, topic.name) not in target.topology.partitions
        and not (topic.created and apis.CREATE_TOPICS in options.allow)
    ]
    if not wanted:
        return notes
    version = min(target.offers[apis.CREATE_TOPICS][1], 4)
    replicas = len(target.topology.nodes)
    for with_configs in (True, False):
        body = {
            "topics": [
                {
                    "name": options.map_topic.get(topic.name, topic.name),
                    "numPartitions": topic.partitions,
                    "replicationFactor": max(1, min(topic.replicas, replicas)),
                    "assignments": [],
                    "configs": [{"name": n, "value": v} for n, v in topic.configs.items()] if with_configs else [],
                }
                for topic in wanted
            ],
            "timeoutMs": 30_000,
            "validateOnly": False,
        }
        answer = await target.channel.ask(
            apis.CREATE_TOPICS, version, convert.fit(apis.CREATE_TOPICS, version, body), 60.0
        )
        failed = {one["name"]: one for one in answer["topics"] if one["errorCode"] not in (0, 36)}
        wanted = [t for t in wanted if options.map_topic.get(t.name, t.name) in failed]
        if not wanted:
            break
        if not with_configs:
            for name, one in failed.items():
                notes.append(f"{name} could not be created: error {one['errorCode']}")
        else:
            notes += [f"{name} was refused with its captured configuration; created without" for name in failed]
    await _settle(options, facts, target)
    return notes


async def _settle(options: Options, facts: plan.Facts, target: Target) -> None:
    """Wait, with a bound, until every partition has a leader that knows it: right after CreateTopics brokers answer
    UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER for a while."""
    names = [options.map_topic.get(name, name) for name, topic in facts.topics.items() if not topic.internal]
    version = min(target.offers[apis.METADATA][1], 12)
    body: Body = {"topics": [{"name": name} for name in names], "allowAutoTopicCreation": False}
    for _ in range(100):
        answer = await target.channel.ask(apis.METADATA, version, convert.fit(apis.METADATA, version, body), 10.0)
        target.topology.learn_metadata(answer)
        made = {topic["name"] for topic in answer["topics"] if not topic["errorCode"]}
        if made >= set(names) and None not in await target.ends(names, END):
            return
        await asyncio.sleep(0.1)
