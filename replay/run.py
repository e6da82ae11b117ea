"""A replay from end to end: read, ask the target, plan, seed, send, write.

In: captures or a dataset, and a target. Out: a RUN, and a `Result` with its counts. Errors of the target leave as
LinkError, those of the input as the reading's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from analyzer.dataset import dataset
from analyzer.frame.buffer_pool import give_back
from analyzer.protocol import api_keys
from analyzer.protocol.schema import ZERO_UUID
from analyzer.protocol.tree import Body
from captures.errors import KwireError
from captures.kernels import without_collection
from replay import pace
from replay.audit import auditor as audit
from replay.live_traffic import Live, Meeting, nodes
from replay.options import Options
from replay.outcome import Counts, quantiles
from replay.plan import decisions, fetched_records, record_times
from replay.plan.cluster import Cluster, Topic
from replay.plan.decisions import Planner
from replay.plan.owned_names import Ours
from replay.plan.sessions import Session
from replay.plan.steps import Plan, Skip, Step
from replay.plan.topic_partitions import is_id, is_topic
from replay.plan.values import Offers
from replay.plan.windows import Flow
from replay.remap.remap import SHIFT, Remap, RemapOptions, row
from replay.remap.topology import Topology
from replay.run_writer import Recorder
from replay.send import lifetime, link, principals, progress, seeding, seeding_records, workers
from replay.send import target as targets
from replay.send.engine import Engine
from replay.send.same_cluster import SameCluster, why_same
from replay.send.target import Target
from replay.windowed import Flowing, beside, topic_id


@dataclass(slots=True)
class Result:
    """How a run went. `valid`: all was sent that should be, and its own lag was small enough for its times to mean
    something. `failure`: what kept something from being sent. `audit`: None where there was none, `not_audited` says
    why."""

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
    pace: pace.Pace
    audit: audit.Audit | None = None
    not_audited: str = ""


def planned_for(
    options: Options, captured: Sequence[Session], offers: Offers, topology: Topology
) -> tuple[Options, Plan, Cluster]:
    """The plan, and the options with the topics' names, and the speed, that come of it."""
    with without_collection():
        return _planned_for(options, captured, offers, topology)


def _planned_for(
    options: Options, captured: Sequence[Session], offers: Offers, topology: Topology
) -> tuple[Options, Plan, Cluster]:
    ids = topic_names(options, captured, topology)
    planned, cluster = decisions.make(captured, offers, plan_options(options, ids, topology))
    if options.prefix_topics:
        options = dataclasses.replace(options, map_topic=_prefixed(options, cluster, planned))
        if options.partial:
            planned, cluster = decisions.make(captured, offers, plan_options(options, ids, topology))
    _check_names(options, cluster, planned)
    if options.rate is not None:
        span = max((step.at_ns for step in planned.steps), default=0) / 1e9
        speed = options.rate * span / max(len(planned.steps), 1)
        options = dataclasses.replace(options, settings=dataclasses.replace(options.settings, speed=speed or None))
    return options, planned, cluster


def _surveyed(options: Options, flow: Flow, topology: Topology) -> tuple[Options, Plan, Cluster]:
    """What is known before anything is planned: a plan without steps, which has the topics that they name."""
    cluster = flow.survey.finish(flow.again, topic_names(options, flow.sessions, topology))
    planned = Plan((), (), (), flow.survey.topics(options.allow, cluster), frozenset(flow.survey.subscribed))
    if options.prefix_topics:
        options = dataclasses.replace(options, map_topic=_prefixed(options, cluster, planned))
    _check_names(options, cluster, planned)
    return options, planned, cluster


def rehearsed(
    options: Options, flow: Flow, offers: Offers, topology: Topology
) -> tuple[Options, Plan, Cluster, Iterator[tuple[list[Step], list[Skip]]]]:
    """What `planned_for` gives, of a flow: the plan is without steps, these come window by window."""
    options, planned, cluster = _surveyed(options, flow, topology)
    planner = _planner(options, flow.sessions, cluster, offers, topology, flow.survey.start_ns or 0, flow.survey.ends)

    def windows() -> Iterator[tuple[list[Step], list[Skip]]]:
        for window in flow.windows():
            steps, skips = planner.take(window.requests)
            yield steps, [*(Skip(row, "no_request") for row in window.orphans), *skips]

    return options, planned, cluster, windows()


def _planner(
    options: Options,
    captured: Sequence[Session],
    cluster: Cluster,
    offers: Offers,
    topology: Topology,
    start_ns: int,
    ends: Mapping[int, int],
) -> Planner:
    """For a flow of any length."""
    how = plan_options(options, topic_names(options, captured, topology), topology)
    return Planner(cluster, offers, how, start_ns, ends, horizon=options.settings.horizon)


class BadNames(KwireError):
    """Captured topics cannot have the names that they were to have on the target."""


def _check_names(options: Options, cluster: Cluster, planned: Plan) -> None:
    """Raises BadNames where two topics would be one (nobody could tell whose a record is), or Kafka takes no such
    name."""
    there: dict[str, str] = {}
    for name in sorted(planned.topics):
        new = options.map_topic.get(name, name)
        if new != name and not is_topic(new):
            raise BadNames(f"{name} would be {new}, which is no name of a topic", "a shorter --prefix-topics")
        if there.setdefault(new, name) != name:
            raise BadNames(f"{there[new]} and {name} would both be {new}", "another --map-topic for one of them")


def unmapped(options: Options, cluster: Cluster, planned: Plan) -> list[str]:
    """Topics that were to have another name, and that nothing names; what may be an id is none of these."""
    known = cluster.topics.keys() | planned.topics | planned.subscribed
    return [
        f"--map-topic {old}={new}: the capture has no topic {old}"
        for old, new in options.map_topic.items()
        if old not in known and not is_id(old)
    ]


def _prefixed(options: Options, cluster: Cluster, planned: Plan) -> dict[str, str]:
    """All topics that the capture names, by their names with the prefix; Kafka's own keep theirs."""
    named = planned.topics | planned.subscribed
    named |= {name for name, topic in cluster.topics.items() if not topic.internal}
    with_prefix = {name: options.prefix_topics + name for name in named if not name.startswith("__")}
    return with_prefix | options.map_topic


async def replay(
    asked: Sequence[Session] | Flow | Live,
    options: Options,
    dial: link.Dial,
    out: str | os.PathLike[str],
    notes: list[str],
    wait: bool = False,
    tell: Callable[[str], None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> Result:
    """Send sessions, or a flow, to the target and write the RUN. Cancelling it (Ctrl-C) writes what was done. `wait`:
    for another process that is writing the RUN; `tell` gets a line again and again that says how far it is, `announce`
    one before anything is sent: which brokers will get it. Raises KwireError, among others NotReached where one of them
    must not."""
    tell = tell or (lambda line: None)
    writer = dataset.Writer(out, wait=wait)
    started = time.monotonic()
    target: Target | None = None
    flow = asked if isinstance(asked, Flow) else None
    live = asked if isinstance(asked, Live) else None
    captured = asked.sessions if isinstance(asked, Flow) else () if isinstance(asked, Live) else asked
    asked_ns = time.time_ns()
    try:
        target = await targets.ask(options.host, options.port, dial, options.settings.answer_timeout)
        reach = options.access.reach(options.host, options.port)
        reach.check(target.topology.nodes.values())
        await principals.log_in(dial, {session.user for session in captured}, options.host, options.port)
        if live is not None:
            live.elsewhere = topic_names(options, (), target.topology)
            live.leave_out(await _addresses(options, target.topology), asked_ns)
            planned, cluster = Plan((), (), ()), live.cluster
        elif flow is None:
            tell(f"planning {sum(len(session.requests) for session in captured):,} requests")
            options, planned, cluster = planned_for(options, captured, target.offers, target.topology)
        else:
            options, planned, cluster = _surveyed(options, flow, target.topology)
        same = "" if options.same_cluster else why_same(cluster, captured, target.topology)
        if same:
            raise SameCluster(same)
        mapped = {old: new for old, new in options.map_topic.items() if old not in cluster.topic_names}
        options = dataclasses.replace(options, map_topic=mapped)  # an id that it named is no name any more
        short = too_few(options, cluster, target.topology, planned)
        if short and not options.partial and api_keys.CREATE_PARTITIONS not in options.allow:
            raise seeding.TooFewPartitions(short)
        start_ns = flow.survey.start_ns if flow is not None else live.start_ns if live is not None else None
        remap_options = _remap_options(options, captured, start_ns)
        remap = Remap(remap_options, cluster.assignments, nodes(cluster, target.topology))
        remap.groups.fewer = options.partial and bool(short)
        before = _read_before(options, captured, cluster)
        written = cluster.produced | {topic for topic, _ in before.batches}
        full = [] if options.yes else await seeding.not_empty(written, target, options.map_topic)
        if full:
            raise seeding.NotEmpty(full)
        if announce is not None:
            announce(reach.told(target.topology.nodes))
        seeded = seeding.Seeded()
        if options.seed_topics:
            as_captured = options.seed_as_captured
            seeded = await seeding.seed(cluster, target, options.map_topic, options.allow, as_captured)
            notes += seeded.notes
        if flow is None:
            made = record_times.record_times(planned, remap_options.time_delta_ms)
        else:
            seen = flow.survey.record_times(cluster)
            made = {name: one.shifted(remap_options.time_delta_ms) for name, one in seen.items()}
        warnings = await lifetime.told(target, made, options.map_topic, time.time_ns() // 1_000_000)
        for warning in warnings:
            (announce or notes.append)(warning)
        notes += reach.unused(target.topology.nodes)
        notes += missing(options, cluster, target.topology, planned) + unnamed(planned)
        if live is None:
            notes += unmapped(options, cluster, planned)
        remap.topics.learn_from(target.topology)
        if options.seed_fetched:
            tell(f"writing {before.records:,} records that the capture shows being read")
            notes += await _seed_fetched(before, target, remap, options)
        target.close()
        flows = flow or live
        recorder = Recorder(writer, at_once=flows is not None)
        if flows is None:
            tell("writing the captured side")
            recorder.captured(captured)
            for skip in planned.skips:
                recorder.skip(skip)
        end_ns: Plan | int = planned
        spoken: float | None = None
        if flows is not None:
            ends = flow.survey.ends if flow is not None else live.ends if live is not None else {}
            planner = _planner(options, captured, cluster, target.offers, target.topology, start_ns or 0, ends)
            remap.offsets.joined = True
            meeting = None
            if live is not None:
                meeting = Meeting(live, options, dial, target.topology, remap, notes, seeded.changed)
            flowing = Flowing(flows, planner, recorder, meeting)
            with beside():
                done = await _one_process(
                    captured, planned, cluster, target, remap, options, recorder, tell, announce, flowing
                )
            end_ns, spoken = flowing.end_ns, flowing.seconds
            notes += unnamed_counts(flowing.unnamed)
            if live is not None:
                notes += live.told_after()
                options = dataclasses.replace(options, map_topic=dict(remap.topics.renamed))
            if flowing.unread:
                notes.append(f"{flowing.unread:,} captured requests were not read any more, and have no row")
            del flowing, planner, meeting
        elif options.processes == 1:
            done = await _one_process(captured, planned, cluster, target, remap, options, recorder, tell, announce)
        else:
            tell(f"sending from {options.processes} processes")
            done = await _workers(captured, planned, cluster, target, remap, options, recorder)
        tell("writing what was answered")
        recorder.settle()
        failure = done.failure or nonsense(recorder.counts, options)
        lag = quantiles(recorder.counts.lags_us).get("p99", 0)
        in_time = options.settings.speed is None or lag <= options.lag_limit_us
        settings = options.settings
        lasted = done.seconds if live is None or spoken is None else spoken  # its source may be silent in the end
        kept = pace.pace(recorder.counts, end_ns, settings.speed, lasted, done.busy, settings.schedule)
        result = Result(
            recorder.counts,
            planned,
            notes,
            done.own_requests,
            done.notes,
            in_time and not kept.own and not recorder.counts.tool_errors and not failure,
            done.interrupted,
            failure,
            time.monotonic() - started,
            lasted,
            done.cpu_seconds,
            kept,
        )
        capture_names = list(dict.fromkeys(session.capture for session in captured)) if live is None else [live.capture]
        recorder.finish(
            itertools.chain(*map(remap.rows, capture_names), _topic_id_rows(capture_names, cluster, remap)),
            [{"name": name, "files": []} for name in capture_names],
            {
                **_about(options, target, result, captured),
                "warnings": warnings,
                "seeded_topics": seeded.changed,
                "empty_before": not options.yes and not before.records,
            },
        )
        # What the run has learned is in the RUN now, and the audit needs the memory.
        del recorder, remap
        give_back()
        tell("reading what was acknowledged")
        await _audit(out, options, dial, result)
        return result
    finally:
        if target is not None:
            target.close()
            await asyncio.sleep(0)  # the loop may end with us: let it close what was opened
        writer.__exit__()


async def _addresses(options: Options, topology: Topology) -> list[tuple[str, int]]:
    """Of the target, by name and as they are found in packets."""
    found = [(options.host, options.port), *topology.nodes.values()]
    for host, port in list(found):
        with contextlib.suppress(OSError):
            found += [(str(one[4][0]), port) for one in await asyncio.get_running_loop().getaddrinfo(host, port)]
    return found


async def _audit(out: str | os.PathLike[str], options: Options, dial: link.Dial, result: Result) -> None:
    """Read back what the target acknowledged, where that is wanted and can be; it is said in the result."""
    if not options.audit:
        result.not_audited = "--no-audit"
    elif result.interrupted:
        result.not_audited = "the run was interrupted"
    elif result.failure is not None:
        result.not_audited = str(result.failure)
    else:
        reach = options.access.reach(options.host, options.port)
        try:
            result.audit = await audit.audit(out, options.host, options.port, dial, reach)
        except (link.LinkError, dataset.DatasetError) as failure:  # another replay may already write this RUN
            result.not_audited = str(failure)
        except asyncio.CancelledError:
            result.not_audited = "the audit was interrupted"
            result.interrupted = True


def _read_before(options: Options, captured: Sequence[Session], cluster: Cluster) -> fetched_records.Fetched:
    """What is written first, for it is read and not produced; nothing where that is not wanted."""
    if not options.seed_fetched:
        return fetched_records.Fetched()
    return fetched_records.shifted(
        fetched_records.unproduced(captured, cluster), _remap_options(options, captured).time_delta_ms
    )


async def _seed_fetched(read: fetched_records.Fetched, target: Target, remap: Remap, options: Options) -> list[str]:
    """Write it, and learn where it is; what the user should know."""
    done = await seeding_records.write(read, target, options.map_topic)
    for where, offset, there, count in done.placed:
        remap.offsets.appended(where, offset, there, count)
    return done.notes


def nonsense(counts: Counts, options: Options) -> link.LinkError | None:
    """Why a run is no replay of anything: of the requests that wanted an answer most got none, or none that is Kafka's.
    None where that is not so."""
    answered, unanswered = counts.verdicts["answered"], counts.verdicts["unanswered"]
    if unanswered <= answered:
        return None
    why = f": {counts.unanswered}" if counts.unanswered else ""
    where = f"{options.host}:{options.port}"
    return link.LinkError(
        f"{where}: {unanswered} of {unanswered + answered} requests got no answer that Kafka would give{why}",
        "is it a Kafka broker, with nothing between that changes what it says? see its log",
    )


def _about(options: Options, target: Target, result: Result, captured: Sequence[Session]) -> dict[str, Any]:
    """What the manifest says of the replay."""
    settings = options.settings
    return {
        "target": f"{options.host}:{options.port}",
        "cluster_id": target.topology.cluster_id,
        "brokers": {str(node): f"{host}:{port}" for node, (host, port) in target.topology.nodes.items()},
        "offers": {api_keys.name(key): list(pair) for key, pair in sorted(target.offers.items())},
        "speed": settings.schedule.text if settings.schedule is not None else settings.speed or "max",
        "offsets": options.offsets,
        "timestamps": options.timestamps,
        "map_topic": options.map_topic,
        "map_group": dict(options.renaming.groups),
        "prefix_groups": options.renaming.prefix,
        "times": options.times,
        "seeded": options.seed_topics,
        "seeded_fetched": options.seed_fetched,
        "audited": False,
        "own_users": principals.are_all(captured, options.access.principals),
        "allow": sorted(api_keys.name(key) for key in options.allow),
        "valid": result.valid,
        "interrupted": result.interrupted,
        "failure": str(result.failure or ""),
        "slower": result.pace.text(),
        "seconds": round(result.seconds, 3),
        "own_requests": result.own_requests,
        "engine": result.engine_notes,
        "workers": options.processes,
        "notes": result.notes,
    }


async def _one_process(
    captured: Sequence[Session],
    planned: Plan,
    cluster: Cluster,
    target: Target,
    remap: Remap,
    options: Options,
    recorder: Recorder,
    tell: Callable[[str], None],
    announce: Callable[[str], None] | None,
    flowing: Flowing | None = None,
) -> workers.Done:
    """Send from here, the plan or what flows."""
    dead = False

    def progressed(standing: progress.Standing) -> None:
        nonlocal dead
        if standing.dead and not dead and announce is not None:
            announce(f"{standing.dead}; it is tried for {options.settings.reconnect:.0f} s")
        dead = bool(standing.dead)
        tell(progress.line(standing))

    engine = Engine(
        captured if flowing is None else (),
        planned,
        cluster,
        remap,
        target.topology,
        target.offers,
        target.dial,
        (options.host, options.port),
        options.settings,
        recorder.add if flowing is None else flowing.record,
        progressed,
        None if flowing is None else flowing.feed,
    )
    engine.know({session.broker for session in captured})
    interrupted = False
    sending, cpu = time.monotonic(), time.process_time()
    try:
        await engine.run()
    except asyncio.CancelledError:
        interrupted = True
    if flowing is not None:
        await flowing.finish()
    sending, cpu = time.monotonic() - sending, time.process_time() - cpu
    own, notes = dict(engine.own_requests), dict(engine.notes)
    return workers.Done(
        recorder.counts, own, notes, interrupted, engine.failure, sending, cpu, cpu / max(sending, 1e-9)
    )


async def _workers(
    captured: Sequence[Session],
    planned: Plan,
    cluster: Cluster,
    target: Target,
    remap: Remap,
    options: Options,
    recorder: Recorder,
) -> workers.Done:
    """Send from several processes."""
    surroundings = workers.Surroundings(
        cluster, target.offers, target.topology, remap, (options.host, options.port), options.settings, options.access
    )
    own_requests: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    failures: list[link.LinkError] = []
    # Beside the RUN, for there is room for it; and who is killed while it sends leaves nothing elsewhere.
    with tempfile.TemporaryDirectory(prefix="workers-", dir=recorder.folder) as folder:
        parts = workers.shares(captured, planned, options.processes)
        done, dead = await workers.send(parts, surroundings, Path(folder), recorder.take)
        for lost in dead:
            share = parts[lost.number]
            left = workers.take_over(lost, share, planned, options.settings, recorder)
            recorder.remapped(row(share.sessions[0].capture, one) for one in left.learned)
            own_requests.update(left.own_requests)
            notes.update(left.notes)
            told = (
                f"worker {lost.number + 1} of {len(parts)} {lost.reason}: what became of {left.unknown} of its "
                f"{len(share.numbers)} requests is not known"
            )
            failures.append(link.LinkError(told, "was memory short? fewer --workers need less"))
    for worker in done:
        recorder.counts.add(worker.counts)
        own_requests.update(worker.own_requests)
        notes.update(worker.notes)
    failures += [worker.failure for worker in done if worker.failure]
    interrupted = any(worker.interrupted for worker in done)
    # Starting processes and making rows are no part of the sending: a target is not slower for these.
    lasted = max([0.0, *(worker.seconds for worker in done), *(lost.seconds for lost in dead)])
    busy = max((worker.busy for worker in done), default=0.0)
    cpu = sum(worker.cpu_seconds for worker in done)
    failure = next(iter(failures), None)
    return workers.Done(recorder.counts, dict(own_requests), dict(notes), interrupted, failure, lasted, cpu, busy)


def _remap_options(options: Options, captured: Sequence[Session], start_ns: int | None = None) -> RemapOptions:
    """`start_ns`: when the first request was sent, where the sessions do not have them."""
    first = start_ns or min((session.requests[0].sent_ns for session in captured if session.requests), default=0)
    delta = (time.time_ns() - first) // 1_000_000 if options.timestamps == SHIFT else 0
    return RemapOptions(options.offsets, options.timestamps, delta, options.map_topic)


def topic_names(options: Options, captured: Sequence[Session], topology: Topology) -> dict[str, str]:
    """Captured names of topic ids, from elsewhere than the capture: the user (`--map-topic ID=NAME`), the dataset's own
    table, and the target, if it is the captured cluster or a copy with its ids."""
    renamed = {new: old for old, new in options.map_topic.items()}
    by_id = {topic_id: renamed.get(name, name) for name, topic_id in topology.topic_ids.items()}
    for session in captured:
        by_id.update(session.topic_ids)
    return by_id | options.map_topic


def _topic_id_rows(captures: Sequence[str], cluster: Cluster, remap: Remap) -> list[Body]:
    name = captures[0] if captures else ""
    return [
        {
            "capture": name,
            "kind": "topic_id",
            "scope": topic,
            "captured": topic_id,
            "replayed": remap.topics.id(topic) or ZERO_UUID,
            "records": None,
        }
        for topic_id, topic in cluster.topic_names.items()
    ]


def plan_options(options: Options, topic_ids: dict[str, str], topology: Topology) -> decisions.PlanOptions:
    """How to plan for this target."""
    captured = {new: old for old, new in options.map_topic.items()}
    counts = {captured.get(topic, topic): count for topic, count in topology.partitions.items()}
    ours = None
    if options.map_topic or options.prefix_topics or options.renaming:
        ours = Ours(options.map_topic, bool(options.prefix_topics), options.renaming)
    return decisions.PlanOptions(options.allow, topic_ids, counts if options.partial else {}, ours)


def too_few(options: Options, cluster: Cluster, topology: Topology, planned: Plan) -> list[str]:
    """The topics that have fewer partitions on the target than captured, of those that requests name."""
    return seeding.too_few(_used(options, cluster, planned), topology)


def _used(options: Options, cluster: Cluster, planned: Plan) -> Iterator[tuple[str, Topic]]:
    """(name on the target, topic) of captured topics that requests name."""
    for name in sorted(cluster.topics.keys() & planned.topics):
        if not cluster.topics[name].internal:
            yield options.map_topic.get(name, name), cluster.topics[name]


def more_partitions(options: Options, cluster: Cluster, topology: Topology, planned: Plan) -> list[str]:
    """The topics that have more partitions on the target than captured, of those that requests name."""
    return [
        f"{there} has {topology.partitions[there]} partitions, the capture shows {wanted.partitions}: nothing is "
        "sent to the others"
        for there, wanted in _used(options, cluster, planned)
        if topology.partitions.get(there, 0) > wanted.partitions
    ]


async def warned(
    options: Options, captured: Sequence[Session] | Flow, planned: Plan, cluster: Cluster, target: Target
) -> list[str]:
    """What the target's topics will do to the records, for their times. Raises LinkError."""
    if isinstance(captured, Flow):
        delta_ms = _remap_options(options, (), captured.survey.start_ns).time_delta_ms
        found = {name: one.shifted(delta_ms) for name, one in captured.survey.record_times(cluster).items()}
    else:
        found = record_times.record_times(planned, _remap_options(options, captured).time_delta_ms)
    return await lifetime.told(target, found, options.map_topic, time.time_ns() // 1_000_000)


def missing(options: Options, cluster: Cluster, topology: Topology, planned: Plan) -> list[str]:
    """What the target lacks of the captured topics."""
    notes = seeding.absent(_used(options, cluster, planned), topology, cluster, options.allow)
    return notes + too_few(options, cluster, topology, planned) + more_partitions(options, cluster, topology, planned)


UNNAMED: Final = 5
"""Topic ids without a name that are told."""


def unnamed(planned: Plan) -> list[str]:
    """Topic ids that keep requests from being sent, because nothing says the names."""
    return unnamed_counts(Counter(topic_id(skip) for skip in planned.skips if skip.rule == "unknown_topic_id"))


def unnamed_counts(skips: Counter[str]) -> list[str]:
    """The same of how many there are by topic id."""
    return [
        f"nothing says the name of topic id {topic_id}: {count} requests are not sent; --map-topic {topic_id}=NAME"
        for topic_id, count in skips.most_common(UNNAMED)
    ]
