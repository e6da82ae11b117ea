"""A replay from end to end: ask the target, plan, seed, send, write, audit.

In: a `Source` of captured exchanges, and a target. Out: a RUN, and a `Result` with its counts. Errors of the target
leave as LinkError, those of the input as the reading's own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kwire.analyzer.common.listing import listed
from kwire.analyzer.dataset import dataset
from kwire.analyzer.frame.buffer_pool import give_back
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.analyzer.protocol.tree import Body
from kwire.replay import pace
from kwire.replay.audit import auditor as audit
from kwire.replay.options import Options
from kwire.replay.outcome import Counts, quantiles
from kwire.replay.plan import fetched_records
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.sessions import Session
from kwire.replay.plan.steps import Plan
from kwire.replay.remap.offsets import AS_IS
from kwire.replay.remap.remap import SHIFT, Remap, RemapOptions
from kwire.replay.run_plan import RunPlan, broker_ids, missing, pause_warnings, too_few, unmapped, unnamed
from kwire.replay.run_writer import Recorder
from kwire.replay.send import lifetime, link, principals, seeding, seeding_records
from kwire.replay.send import target as targets
from kwire.replay.send.reach import Reach
from kwire.replay.send.same_cluster import SameClusterError, why_same
from kwire.replay.send.target import Target
from kwire.replay.sending import Sending, Sent, Tell
from kwire.replay.source import Source

_NAMES: Final = 3
"""Partitions that a note names."""


@dataclass(slots=True)
class Result:
    """How a run went.

    - `valid`: all was sent that should be, and the replayer's own lag was small enough for the times to mean something
    - `failure`: what kept something from being sent
    - `audit`: None if there was none, and `not_audited` says why
    """

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


async def replay(
    source: Source,
    options: Options,
    dial: link.Dial,
    out: str | os.PathLike[str],
    notes: list[str],
    wait: bool = False,
    tell: Tell | None = None,
    announce: Tell | None = None,
) -> Result:
    """Send a source to the target and write the RUN; when cancelled (Ctrl-C), write what was done.

    - `wait`: for another process that is writing the RUN
    - `tell`: gets a line again and again that says how far the run is
    - `announce`: gets lines that cannot wait, among them which brokers will be sent to

    Raises KwireError, among others ForbiddenAddressError if one of the brokers must not be sent to.
    """
    tell = tell or (lambda line: None)
    writer = dataset.Writer(out, wait=wait)
    started = time.monotonic()
    target: Target | None = None
    asked_ns = time.time_ns()
    try:
        target = await targets.ask(options.host, options.port, dial, options.settings.answer_timeout)
        reach = options.access.reach(options.host, options.port)
        reach.check(target.topology.nodes.values())
        await principals.log_in(dial, {session.user for session in source.sessions}, options.host, options.port)
        await source.exclude_target(options, target.topology, asked_ns)
        run_plan = source.first_pass(options, target.offers, target.topology, tell)
        sending, manifest = await _prepare(source, run_plan, target, reach, dial, notes, tell, announce, writer)
        target.close()
        sent = await source.send(sending)
        tell("writing what was answered")
        sending.recorder.settle()
        result = _result(sending, sent, started)
        _finish(source, sending, result, manifest)
        # What the run has learned is in the RUN now, and the audit needs the memory.
        del sending
        give_back()
        tell("reading what was acknowledged")
        await _audit(out, options, dial, result)
        return result
    finally:
        if target is not None:
            target.close()
            await asyncio.sleep(0)  # the loop may end with us: let it close what was opened
        writer.__exit__()


async def _prepare(
    source: Source,
    run_plan: RunPlan,
    target: Target,
    reach: Reach,
    dial: link.Dial,
    notes: list[str],
    tell: Tell,
    announce: Tell | None,
    writer: dataset.Writer,
) -> tuple[Sending, dict[str, Any]]:
    """Check the target, and make it ready: topics, and records that are only read. Also what the manifest says of that.
    Raises SameClusterError, MissingTopicsError, TooFewPartitionsError, NotEmptyError and LinkError."""
    planned, cluster, topology = run_plan.plan, run_plan.cluster, target.topology
    options = run_plan.options
    same = "" if options.same_cluster else why_same(cluster, source.sessions, topology)
    if same:
        raise SameClusterError(same)
    mapped = {old: new for old, new in options.map_topic.items() if old not in cluster.topic_names}
    options = dataclasses.replace(options, map_topic=mapped)  # a topic id in it has served its purpose
    short = too_few(options, cluster, topology, planned)
    if short and not options.partial and api_keys.CREATE_PARTITIONS not in options.allow:
        raise seeding.TooFewPartitionsError(short)
    remap_options = _remap_options(options, source)
    remap = Remap(remap_options, cluster.assignments, broker_ids(cluster, topology))
    remap.groups.fewer = options.partial and bool(short)
    before = _read_before(options, source.sessions, cluster, remap_options.time_delta_ms)
    if not options.yes:
        written = cluster.produced | {topic for topic, _ in before.batches}
        full = await seeding.not_empty(written, target, options.map_topic)
        if full:
            raise seeding.NotEmptyError(full)
    lacks = seeding.lacking(cluster.produced, topology, cluster, options.map_topic, options.allow)
    if lacks and not (options.seed_topics or options.missing_topics_ok):
        raise seeding.MissingTopicsError(lacks)
    if announce is not None:
        announce(reach.text(topology.nodes))
    seeded = seeding.Seeded()
    if options.seed_topics:
        seeded = await seeding.seed(cluster, target, options.map_topic, options.allow, options.seed_as_captured)
        notes += seeded.notes
    warnings = await lifetime_warnings(options, source, run_plan, target, remap_options.time_delta_ms)
    warnings += pause_warnings(options.settings, run_plan.pause, source.start_ns)
    for warning in warnings:
        (announce or notes.append)(warning)
    notes += reach.unused(topology.nodes)
    notes += missing(options, cluster, topology, planned) + unnamed(planned)
    if run_plan.has_seen_all:
        notes += unmapped(options, cluster, planned)
    remap.topics.learn_from(topology)
    if options.seed_fetched:
        tell(f"writing {before.records:,} records that the capture shows being read")
        notes += await _seed_fetched(before, target, remap, options)
    recorder = Recorder(writer, at_once=source.is_windowed)
    sending = Sending(options, planned, cluster, target, remap, recorder, dial, notes, seeded.changed, tell, announce)
    manifest = {
        "warnings": warnings,
        "seeded_topics": seeded.changed,
        "empty_before": not options.yes and not before.records,
    }
    return sending, manifest


def _result(sending: Sending, sent: Sent, started: float) -> Result:
    done, counts, options = sent.done, sending.recorder.counts, sending.options
    settings = options.settings
    if done.interrupted:  # what was on its way then says nothing of the target
        counts.unanswered = ""
        counts.silent.clear()
    offsets = sending.remap.offsets
    older = [] if options.seed_fetched or offsets.mode == AS_IS else offsets.read_older()
    if older:
        what = listed([f"{topic}-{number}" for topic, number in older[:_NAMES]], len(older))
        sending.notes.append(
            f"readers of {what} began in records from before the capture, which the target does not have: "
            "--seed-fetched writes those first that the capture shows being read"
        )
    failure = done.failure or (None if done.interrupted else nonsense(counts, options))
    lag = quantiles(counts.lags_us).get("p99", 0)
    in_time = settings.speed is None or lag <= options.lag_limit_us
    run_pace = pace.pace(counts, sent.end_ns, settings.speed, done.seconds, done.busy, settings.schedule)
    return Result(
        counts,
        sending.plan,
        sending.notes,
        done.own_requests,
        done.notes,
        in_time and not run_pace.own and not counts.tool_errors and not failure,
        done.interrupted,
        failure,
        time.monotonic() - started,
        done.seconds,
        done.cpu_seconds,
        run_pace,
    )


def _finish(source: Source, sending: Sending, result: Result, manifest: dict[str, Any]) -> None:
    """Write what the run has learned, and its manifest."""
    names, remap = source.capture_names, sending.remap
    sending.recorder.finish(
        itertools.chain(*map(remap.rows, names), _topic_id_rows(names, sending.cluster, remap)),
        [{"name": name, "files": []} for name in names],
        {**_about(sending, result, source.sessions), **manifest},
    )


async def _audit(out: str | os.PathLike[str], options: Options, dial: link.Dial, result: Result) -> None:
    """Read back what the target acknowledged, if that is possible, and put what was found into the result."""
    if not options.audit:
        result.not_audited = "--no-audit"
    elif result.interrupted:
        result.not_audited = "the run was interrupted"
    elif result.failure is not None:
        result.not_audited = result.failure.message
    else:
        reach = options.access.reach(options.host, options.port)
        try:
            result.audit = await audit.audit(out, options.host, options.port, dial, reach)
        except (link.LinkError, dataset.DatasetError) as failure:  # another replay may already write this RUN
            result.not_audited = failure.message
        except asyncio.CancelledError:
            result.not_audited = "the audit was interrupted"
            result.interrupted = True


def _read_before(
    options: Options, captured: Sequence[Session], cluster: Cluster, delta_ms: int
) -> fetched_records.Fetched:
    """Records that are written first because they are read and not produced; none without `--seed-fetched`."""
    if not options.seed_fetched:
        return fetched_records.Fetched()
    return fetched_records.shifted(fetched_records.unproduced(captured, cluster), delta_ms)


async def _seed_fetched(read: fetched_records.Fetched, target: Target, remap: Remap, options: Options) -> list[str]:
    """Write these records, and learn their offsets; lines for the user."""
    written = await seeding_records.write(read, target, options.map_topic)
    for where, offset, there, count in written.placed:
        remap.offsets.appended(where, offset, there, count)
    return written.notes


def nonsense(counts: Counts, options: Options) -> link.LinkError | None:
    """Why a run is not a replay: most requests that expect an answer got none, or none that Kafka would give. None if
    that is not so."""
    answered, unanswered = counts.verdicts["answered"], counts.verdicts["unanswered"]
    if unanswered <= answered:
        return None
    why = f": {counts.unanswered}" if counts.unanswered else ""
    where = f"{options.host}:{options.port}"
    return link.LinkError(
        f"{where}: {unanswered} of {unanswered + answered} requests got no answer that Kafka would give{why}",
        "is it a Kafka broker, with nothing between that changes what it says? see its log",
    )


def _about(sending: Sending, result: Result, captured: Sequence[Session]) -> dict[str, Any]:
    """The replay's part of the manifest."""
    options, target = sending.options, sending.target
    settings = options.settings
    return {
        "target": f"{options.host}:{options.port}",
        "cluster_id": target.topology.cluster_id,
        "brokers": {str(node): f"{host}:{port}" for node, (host, port) in target.topology.nodes.items()},
        "offers": {api_keys.name(key): list(pair) for key, pair in sorted(target.offers.items())},
        "speed": settings.schedule.text if settings.schedule is not None else settings.speed or "max",
        "offsets": options.offsets,
        "timestamps": options.timestamps,
        "map_topic": dict(sending.remap.topics.renamed),
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
        "failure": result.failure.message if result.failure is not None else "",
        "slower": result.pace.text(),
        "seconds": round(result.seconds, 3),
        "own_requests": result.own_requests,
        "engine": result.engine_notes,
        "workers": options.processes,
        "notes": result.notes,
    }


def _remap_options(options: Options, source: Source) -> RemapOptions:
    delta = (time.time_ns() - source.start_ns) // 1_000_000 if options.timestamps == SHIFT else 0
    return RemapOptions(options.offsets, options.timestamps, delta, options.map_topic)


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


async def lifetime_warnings(
    options: Options, source: Source, run_plan: RunPlan, target: Target, delta_ms: int | None = None
) -> list[str]:
    """Lines that say what the settings of the target's topics do to the records, because of their times. `delta_ms`: by
    how much the times are moved; by default what the options say. Raises LinkError."""
    if delta_ms is None:
        delta_ms = _remap_options(options, source).time_delta_ms
    times = source.record_times(run_plan, delta_ms)
    return await lifetime.warnings(target, times, options.map_topic, time.time_ns() // 1_000_000)
