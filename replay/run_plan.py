"""Resolves what a run is going to do before anything is sent: topic names, and what the target lacks. Pure.

In: `Options`, the captured cluster, and the target's topology. Out: a `RunPlan`, options of planning, and lines for
the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kwire.analyzer.common.times import rfc3339
from kwire.captures.errors import KwireError
from kwire.replay.options import Options
from kwire.replay.plan import decisions
from kwire.replay.plan.cluster import Cluster, Topic
from kwire.replay.plan.decisions import Planner
from kwire.replay.plan.owned_names import OwnedNames
from kwire.replay.plan.pauses import LONG_SECONDS, Pause
from kwire.replay.plan.sessions import Session
from kwire.replay.plan.steps import Plan, Skip
from kwire.replay.plan.topic_partitions import is_id, is_topic
from kwire.replay.plan.values import Offers
from kwire.replay.remap.topology import Topology
from kwire.replay.send import seeding
from kwire.replay.send.lifetime import span
from kwire.replay.send.settings import Settings

_LISTED_IDS: Final = 5
"""Topic ids without a name that are listed."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run as planned before anything is sent.

    - `options`: with the names of topics, and the speed, that follow from the capture
    - `plan`: without steps if they are planned window by window; it has the topics that they name all the same
    - `cluster`: the captured cluster, as far as it is known
    - `has_seen_all`: whether the whole capture was looked at
    - `pause`: the longest between two requests, as captured, if it is not cut
    """

    options: Options
    plan: Plan
    cluster: Cluster
    has_seen_all: bool = True
    pause: Pause | None = None


class BadNamesError(KwireError):
    """Captured topics cannot have the names that they were to have on the target."""


def topic_names(options: Options, captured: Sequence[Session], topology: Topology) -> dict[str, str]:
    """Names of captured topic ids from other sources than the capture. Sources: the user (`--map-topic ID=NAME`), the
    dataset's own table, and the target, if it is the captured cluster or a copy with its ids."""
    renamed = {new: old for old, new in options.map_topic.items()}
    by_id = {topic_id: renamed.get(name, name) for name, topic_id in topology.topic_ids.items()}
    for session in captured:
        by_id.update(session.topic_ids)
    return by_id | options.map_topic


def plan_options(options: Options, topic_ids: dict[str, str], topology: Topology) -> decisions.PlanOptions:
    """How to plan for this target."""
    captured = {new: old for old, new in options.map_topic.items()}
    counts = {captured.get(topic, topic): count for topic, count in topology.partitions.items()}
    owned = None
    if options.map_topic or options.prefix_topics or options.renaming:
        owned = OwnedNames(options.map_topic, bool(options.prefix_topics), options.renaming)
    return decisions.PlanOptions(
        options.allow, topic_ids, counts if options.partial else {}, owned, options.longest_pause_ns
    )


def window_planner(
    options: Options,
    captured: Sequence[Session],
    cluster: Cluster,
    offers: Offers,
    topology: Topology,
    start_ns: int,
    ends: Mapping[int, int],
) -> Planner:
    """A planner for windows of a capture of any length. `start_ns`, `ends`: as of a `Planner`."""
    how = plan_options(options, topic_names(options, captured, topology), topology)
    return Planner(cluster, offers, how, start_ns, ends, horizon=options.settings.horizon)


def broker_ids(cluster: Cluster, topology: Topology) -> dict[int, int]:
    """The target's broker id of each captured one, in order, again from the first if it has fewer brokers."""
    there = sorted(topology.nodes)
    return {node: there[index % len(there)] for index, node in enumerate(sorted(cluster.nodes))}


# --- names ---


def check_names(options: Options, planned: Plan) -> None:
    """Check the names that topics will have on the target. Raises BadNamesError if two topics would become one (nobody
    could tell whose a record is), or Kafka does not allow a name."""
    captured_names: dict[str, str] = {}
    for name in sorted(planned.topics):
        new = options.map_topic.get(name, name)
        if new != name and not is_topic(new):
            raise BadNamesError(f"{name} would be {new}, which is no name of a topic", "a shorter --prefix-topics")
        other = captured_names.setdefault(new, name)
        if other != name:
            raise BadNamesError(f"{other} and {name} would both be {new}", "another --map-topic for one of them")


def unmapped(options: Options, cluster: Cluster, planned: Plan) -> list[str]:
    """Lines for topics that `--map-topic` renames and nothing names; what may be a topic id is not among them."""
    known = cluster.topics.keys() | planned.topics | planned.subscribed
    return [
        f"--map-topic {old}={new}: the capture has no topic {old}"
        for old, new in options.map_topic.items()
        if old not in known and not is_id(old)
    ]


def prefixed(options: Options, cluster: Cluster, planned: Plan) -> dict[str, str]:
    """New names of all topics that the capture names: with the prefix, but Kafka's own keep theirs."""
    named = planned.topics | planned.subscribed
    named |= {name for name, topic in cluster.topics.items() if not topic.internal}
    with_prefix = {name: options.prefix_topics + name for name in named if not name.startswith("__")}
    return with_prefix | options.map_topic


def pause_warnings(settings: Settings, pause: Pause | None, start_ns: int) -> list[str]:
    """A line if a pause of the capture would make the replay wait for long. `start_ns`: of the capture."""
    begin, end = pause or (0, 0)
    if settings.due(end - start_ns) - settings.due(begin - start_ns) <= LONG_SECONDS:
        return []
    long, when = span((end - begin) // 1_000_000), rfc3339(begin // 1000)
    return [f"the capture pauses for {long} after {when}, and so will the replay: --longest-pause 60s cuts that"]


# --- what the target lacks ---


def _used(options: Options, cluster: Cluster, planned: Plan) -> Iterator[tuple[str, Topic]]:
    """(name on the target, topic) of captured topics that requests name."""
    for name in sorted(cluster.topics.keys() & planned.topics):
        if not cluster.topics[name].internal:
            yield options.map_topic.get(name, name), cluster.topics[name]


def too_few(options: Options, cluster: Cluster, topology: Topology, planned: Plan) -> list[str]:
    """Lines for topics with fewer partitions on the target than captured, of those that requests name."""
    return seeding.too_few(_used(options, cluster, planned), topology)


def more_partitions(options: Options, cluster: Cluster, topology: Topology, planned: Plan) -> list[str]:
    """Lines for topics with more partitions on the target than captured, of those that requests name."""
    return [
        f"{there} has {topology.partitions[there]} partitions, the capture shows {topic.partitions}: nothing is "
        "sent to the others"
        for there, topic in _used(options, cluster, planned)
        if topology.partitions.get(there, 0) > topic.partitions
    ]


def missing(options: Options, cluster: Cluster, topology: Topology, planned: Plan) -> list[str]:
    """Lines for captured topics that the target lacks, or has with other numbers of partitions."""
    notes = seeding.absent(_used(options, cluster, planned), topology, cluster, options.allow)
    return notes + too_few(options, cluster, topology, planned) + more_partitions(options, cluster, topology, planned)


def topic_id_of(skip: Skip) -> str:
    """The topic id without a name, of a request that is skipped for that reason."""
    return skip.reason.partition(":")[0]


def unnamed(planned: Plan) -> list[str]:
    """Lines for topic ids that keep requests from being sent, because nothing names them."""
    return unnamed_counts(Counter(topic_id_of(skip) for skip in planned.skips if skip.rule == "unknown_topic_id"))


def unnamed_counts(skips: Counter[str]) -> list[str]:
    """Like `unnamed`, for skipped requests counted by topic id."""
    return [
        f"nothing says the name of topic id {topic_id}: {count} requests are not sent; --map-topic {topic_id}=NAME"
        for topic_id, count in skips.most_common(_LISTED_IDS)
    ]
