"""Sending from several processes: what must stay together goes to one, all start at the same instant.

In: a plan. Out: shares of it, and what each worker's engine did. Together stay the connections of one client instance
(client id and address), of one group, of one transactional or producer id (`plan` names their states), and whatever
waits for another's answers: a reader goes with the writers of its records, because what one worker learns another does
not know.
Rules: a worker writes a dataset of its own, which the parent takes over; an interrupted worker writes what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from analyzer import dataset
from replay import link, login, plan, remap, topology
from replay.engine import Engine, Settings
from replay.outcome import Counts, Outcome, Recorder
from replay.sessions import Session
from replay.steps import Plan

_LEAD: Final = 0.2
"""Seconds between telling the workers when to start, and that."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to open connections, in a form that can be handed to a process."""

    tls: bool = False
    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None
    credentials: login.Credentials | None = None

    def dial(self) -> link.Dial:
        """Raises LinkError where a file cannot be read."""
        context = login.tls_context(self.authorities, self.certificate, self.key) if self.tls else None
        dial = link.tcp(context)
        return dial if self.credentials is None else login.sasl(dial, self.credentials)


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker sends: a plan of its own, and the numbers that its steps have in the whole one."""

    sessions: tuple[Session, ...]
    plan: Plan
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every worker knows from the start."""

    facts: plan.Facts
    offers: plan.Offers
    topology: topology.Topology
    learned: remap.Remap
    bootstrap: tuple[str, int]
    settings: Settings
    access: Access


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker says in the end."""

    counts: Counts
    own_requests: dict[str, int]
    notes: dict[str, int]
    interrupted: bool


def groups(sessions: Sequence[Session], planned: Plan) -> list[list[int]]:
    """Indices of the sessions that must stay together, each list in order, the list with most steps first."""
    parent = list(range(len(sessions)))

    def find(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    first: dict[Any, int] = {}
    for step in planned.steps:
        row = step.request.row
        keys: set[Any] = {("client", row["client_id"], row["client_ip"])}
        if step.body is not None:
            keys.update(
                state
                for state, _ in plan.uses(step.request.api_key, step.body, None)
                if state[0] not in ("topic", "end")
            )
        for number in (*step.waits, *step.after):
            parent[find(step.session)] = find(planned.steps[number].session)
        for key in keys:
            parent[find(step.session)] = find(first.setdefault(key, step.session))
    together: dict[int, list[int]] = {}
    for index in range(len(sessions)):
        together.setdefault(find(index), []).append(index)
    return sorted(together.values(), key=lambda some: -sum(len(planned.sessions[index]) for index in some))


def shares(sessions: Sequence[Session], planned: Plan, count: int) -> list[Share]:
    """At most `count` shares of about the same number of steps; none is empty."""
    loads: list[tuple[int, list[int]]] = [(0, []) for _ in range(count)]
    for some in groups(sessions, planned):
        at = min(range(count), key=lambda index: loads[index][0])
        steps = sum(len(planned.sessions[index]) for index in some)
        loads[at] = loads[at][0] + steps, loads[at][1] + some
    return [_share(sessions, planned, sorted(chosen)) for steps, chosen in loads if steps]


def _share(sessions: Sequence[Session], planned: Plan, chosen: list[int]) -> Share:
    numbers = sorted(number for index in chosen for number in planned.sessions[index])
    here = {number: at for at, number in enumerate(numbers)}
    place = {index: at for at, index in enumerate(chosen)}
    steps = tuple(
        replace(
            planned.steps[number],
            number=here[number],
            session=place[planned.steps[number].session],
            waits=tuple(here[one] for one in planned.steps[number].waits if one in here),
            after=tuple(here[one] for one in planned.steps[number].after if one in here),
        )
        for number in numbers
    )
    by_session = tuple(tuple(here[number] for number in planned.sessions[index]) for index in chosen)
    return Share(tuple(sessions[index] for index in chosen), Plan(steps, (), by_session), tuple(numbers))


def _work(share: Share, known: Surroundings, out: str, pipe: Connection) -> None:
    """A worker's process: say that it is ready, get the start, send, write, say what was done."""
    recorder = Recorder(dataset.Writer(out))

    def record(outcome: Outcome) -> None:
        if outcome.step is not None:
            outcome.step = share.numbers[outcome.step]
        recorder.add(outcome)

    async def send() -> tuple[Engine, bool]:
        engine = Engine(
            share.sessions, share.plan, known.facts, known.learned, known.topology, known.offers,
            known.access.dial(), known.bootstrap, known.settings, record,
        )  # fmt: skip
        pipe.send("ready")
        start_ns = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        try:
            await engine.run(start_ns)
        except asyncio.CancelledError:
            return engine, True
        return engine, False

    engine, interrupted = asyncio.run(send())
    recorder.finish(list(known.learned.rows(share.sessions[0].capture)), [], {})
    pipe.send(Done(recorder.counts, engine.own_requests, engine.notes, interrupted))


async def send(
    parts: Sequence[Share], known: Surroundings, folder: Path, take: Callable[[Path], None]
) -> tuple[list[Done], int]:
    """Run the workers and `take` their datasets; (what they did, when they started). Raises LinkError if one dies."""
    context = multiprocessing.get_context("spawn")
    loop = asyncio.get_running_loop()
    running = []
    try:
        for number, share in enumerate(parts):
            mine, theirs = context.Pipe()
            out = folder / f"worker-{number}"
            process = context.Process(target=_work, args=(share, known, str(out), theirs))
            process.start()
            theirs.close()
            running.append((process, mine, out))
        for _, pipe, _ in running:
            await loop.run_in_executor(None, _receive, pipe)
        start_ns = time.time_ns() + round(_LEAD * 1e9)
        for _, pipe, _ in running:
            pipe.send(start_ns)
        done: list[Done] = []
        for _, pipe, out in running:
            waiting = loop.run_in_executor(None, _receive, pipe)
            while True:
                # Ctrl-C reaches the workers too: they write what they did, and this waits for it.
                with contextlib.suppress(asyncio.CancelledError):
                    done.append(await asyncio.shield(waiting))
                    break
            take(out)
        return done, start_ns
    finally:
        for process, _, _ in running:
            process.join(10)
            if process.is_alive():
                process.terminate()


def _receive(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise link.LinkError("a worker ended before its work", "see what it wrote above; fewer --workers") from None
