"""Sending what was planned, from one process or several.

In: a `Sending` (the plan, the target, what translates between both clusters, where outcomes go). Out: what was done,
as `workers.Done`; outcomes are in the `RunWriter`. Errors of the target end the run, and are in `Done.failure`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kwire.replay.options import Options
from kwire.replay.outcome import Outcome
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.sessions import Session
from kwire.replay.plan.steps import Plan
from kwire.replay.remap.remap import Remap, row
from kwire.replay.run_writer import Recorder
from kwire.replay.send import link, progress, workers
from kwire.replay.send.engine import Engine
from kwire.replay.send.target import Target

Tell = Callable[[str], None]
"""Takes a line for the user."""


@dataclass(slots=True)
class Sending:
    """Everything that sending needs.

    - `recorder`: takes outcomes
    - `notes`: lines for the user, at the end; `changed`: settings that seeding changed, by topic
    - `tell`: takes a line of progress again and again; `announce`: takes a line that cannot wait, if the caller shows
      such lines
    """

    options: Options
    plan: Plan
    cluster: Cluster
    target: Target
    remap: Remap
    recorder: Recorder
    dial: link.Dial
    notes: list[str]
    changed: dict[str, list[str]]
    tell: Tell
    announce: Tell | None


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of sending. `end_ns`: when the last answer came in the capture, in nanoseconds from its start."""

    done: workers.Done
    end_ns: int


class Feed(Protocol):
    """Brings steps to an engine while it sends, and takes their outcomes."""

    def record(self, outcome: Outcome) -> None:
        """Take the end of an exchange."""

    async def feed(self, engine: Engine) -> None:
        """Bring steps until there are no more."""

    async def finish(self) -> None:
        """Record the rest, once the engine is done."""


async def from_one_process(
    sending: Sending, known: Sequence[Session], planned: Sequence[Session], feed: Feed | None = None
) -> workers.Done:
    """Send from this process. `known`: sessions whose brokers are known; `planned`: those that the plan's steps are of.
    `feed`: brings steps, and takes outcomes, while the engine runs; by default it has all of them from the start."""
    dead = False
    options, target = sending.options, sending.target

    def progressed(standing: progress.Standing) -> None:
        nonlocal dead
        if standing.dead and not dead and sending.announce is not None:
            sending.announce(f"{standing.dead}; it is tried for {options.settings.reconnect:.0f} s")
        dead = bool(standing.dead)
        sending.tell(progress.line(standing))

    engine = Engine(
        planned,
        sending.plan,
        sending.cluster,
        sending.remap,
        target.topology,
        target.offers,
        target.dial,
        (options.host, options.port),
        options.settings,
        sending.recorder.add if feed is None else feed.record,
        progressed,
        None if feed is None else feed.feed,
    )
    engine.know({session.broker for session in known})
    interrupted = False
    seconds, cpu = time.monotonic(), time.process_time()
    try:
        await engine.run()
    except asyncio.CancelledError:
        interrupted = True
    if feed is not None:
        await feed.finish()
    seconds, cpu = time.monotonic() - seconds, time.process_time() - cpu
    sending.recorder.counts.loop_lags_us += engine.loop_lags_us  # type: ignore[operator]
    return workers.Done(
        sending.recorder.counts,
        dict(engine.own_requests),
        dict(engine.notes),
        interrupted,
        engine.failure,
        seconds,
        cpu,
        cpu / max(seconds, 1e-9),
    )


async def from_workers(sending: Sending, captured: Sequence[Session]) -> workers.Done:
    """Send from `Options.processes` processes."""
    options, target, recorder = sending.options, sending.target, sending.recorder
    surroundings = workers.Surroundings(
        sending.cluster,
        target.offers,
        target.topology,
        sending.remap,
        (options.host, options.port),
        options.settings,
        options.access,
    )
    own_requests: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    failures: list[link.LinkError] = []
    # Beside the RUN, because there is room, and a process that is killed while it sends leaves nothing elsewhere.
    with tempfile.TemporaryDirectory(prefix="workers-", dir=recorder.folder) as folder:
        shares = workers.shares(captured, sending.plan, options.processes)
        done, dead = await workers.send(shares, surroundings, Path(folder), recorder.take)
        for lost in dead:
            share = shares[lost.number]
            remainder = workers.take_over(lost, share, sending.plan, options.settings, recorder)
            recorder.remapped(row(share.sessions[0].capture, learned) for learned in remainder.learned)
            own_requests.update(remainder.own_requests)
            notes.update(remainder.notes)
            error_text = (
                f"worker {lost.number + 1} of {len(shares)} {lost.reason}: what became of {remainder.unknown} of its "
                f"{len(share.numbers)} requests is not known"
            )
            failures.append(link.LinkError(error_text, "was memory short? fewer --workers need less"))
    for worker in done:
        recorder.counts.add(worker.counts)
        own_requests.update(worker.own_requests)
        notes.update(worker.notes)
    failures += [worker.failure for worker in done if worker.failure]
    interrupted = any(worker.interrupted for worker in done)
    # Starting processes and making rows is not part of the sending: it does not make a target slower.
    seconds = max([0.0, *(worker.seconds for worker in done), *(lost.seconds for lost in dead)])
    busy = max((worker.busy for worker in done), default=0.0)
    cpu = sum(worker.cpu_seconds for worker in done)
    failure = next(iter(failures), None)
    return workers.Done(recorder.counts, dict(own_requests), dict(notes), interrupted, failure, seconds, cpu, busy)
