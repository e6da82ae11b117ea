"""Sends from several processes: sessions that belong together go to one, and all start at the same instant.

In: a plan. Out: shares of it, and what each worker's engine did. Sessions of one client instance (client id and
address), of one group, of one transactional or producer id (`plan` names their states) stay together, and so do those
that wait for another's answers: a reader goes with the writers of its records, because what one worker learns another
does not know. Rules: a worker writes a dataset of its own, which the parent takes over. The parent handles Ctrl-C: it
tells the workers, which then write what they did; so does a worker whose parent is gone. Meanwhile a worker keeps a
journal (`kwire.replay.journal`): if it dies the parent takes over what that has, and the others go on to their end.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.dataset import dataset
from kwire.replay import journal
from kwire.replay.journal import Journal
from kwire.replay.outcome import Counts, Outcome
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.order import used_by_fast_path, uses
from kwire.replay.plan.sessions import Session
from kwire.replay.plan.steps import Plan, Step
from kwire.replay.plan.values import Offers
from kwire.replay.remap.remap import Learned, News, Remap, offset
from kwire.replay.remap.topology import Topology
from kwire.replay.run_writer import Recorder
from kwire.replay.send import link, login, principals
from kwire.replay.send.engine import Engine
from kwire.replay.send.reach import Reach
from kwire.replay.send.settings import Settings

_LEAD: Final = 0.2
"""Seconds between telling the workers when to start, and that."""
_PATIENCE: Final = 10.0
"""Seconds for a worker to end after its last message."""
_WRITTEN: Final = 0.5
"""Seconds until a worker's journal has what is known: newer facts are lost with the worker."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to open connections, in a form that can be handed to a process.

    - `follow_advertised`: also to other hosts that the target names
    - `map_host`: a host (or host:port) that it names, and the address in its place
    - `plaintext_login`: PLAIN without TLS, to a host that is not this one
    - `principals`: credentials for captured users (`principals.read`), the first of them for the replayer's own
      requests if there are no `credentials`
    """

    tls: bool = False
    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None
    credentials: login.Credentials | None = None
    follow_advertised: bool = False
    map_host: dict[str, str] = field(default_factory=dict)
    plaintext_login: bool = False
    principals: Mapping[str, login.Credentials] = field(default_factory=dict)

    def dial(self, host: str, port: int) -> link.Dial:
        """How to connect to the target at this address, and to the brokers that it names. Raises LinkError if a file
        cannot be read."""
        context = login.tls_context(self.authorities, self.certificate, self.key) if self.tls else None
        plain, reach = link.tcp(context), self.reach(host, port)

        def logged_in(who: login.Credentials | None) -> link.Dial:
            return reach.guard(plain if who is None else login.sasl(plain, who))

        own = logged_in(self.credentials or next(iter(self.principals.values()), None))
        if not self.principals:
            return own
        return principals.Dials(own, {user: logged_in(who) for user, who in self.principals.items()})

    def reach(self, host: str, port: int) -> Reach:
        """Which brokers the replayer may connect to."""
        every = (*self.principals.values(), *filter(None, (self.credentials,)))
        plain = any(who.mechanism == login.PLAIN for who in every)
        clear = plain and not self.tls and not self.plaintext_login
        return Reach((host, port), self.follow_advertised, self.map_host, clear)


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one worker: a plan of its own, and the numbers that its steps have in the whole one."""

    sessions: tuple[Session, ...]
    plan: Plan
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that each worker knows from the start."""

    cluster: Cluster
    offers: Offers
    topology: Topology
    remap: Remap
    bootstrap: tuple[str, int]
    settings: Settings
    access: Access


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a worker. `failure`: what kept something from being sent; `seconds`, `cpu_seconds`: how long it
    sent, and used cores meanwhile; `busy`: the part of that in which it used its own."""

    counts: Counts
    own_requests: dict[str, int]
    notes: dict[str, int]
    interrupted: bool
    failure: link.LinkError | None
    seconds: float
    cpu_seconds: float
    busy: float


@dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker that ended without its result. Its position among the shares, how it ended, how many seconds after the
    start it was certainly dead (negative: it never started), and its journal."""

    number: int
    reason: str
    seconds: float
    journal: Path


@dataclass(slots=True)
class Remainder:
    """Steps of a dead worker: those with known outcomes, and how many have none (they may have been sent or not)."""

    known: set[int] = field(default_factory=set)
    unknown: int = 0
    learned: list[Learned] = field(default_factory=list)
    own_requests: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


def take_over(lost: DeadWorker, share: Share, planned: Plan, settings: Settings, recorder: Recorder) -> Remainder:
    """Record the outcomes of a dead worker's steps, from its journal. Other steps were not sent if the worker had not
    claimed them, or they were not due while it lived; else their outcome is unknown."""
    remainder = Remainder()
    claims: list[tuple[int, int]] = []
    ids: dict[tuple[object, ...], Learned] = {}
    for entry in journal.read(lost.journal):
        for outcome in entry.outcomes:
            if outcome.step is None:
                continue
            step = planned.steps[outcome.step]
            outcome.row, outcome.captured_answer = step.request.row, step.request.answer
            remainder.known.add(step.number)
            recorder.add(outcome)
        remainder.learned += map(offset, entry.appended)
        for learned in entry.learned:
            # Of a member that joined again, and a producer that was given another id, the last counts.
            ids[learned if learned[0] == "generation" else learned[:3]] = learned
        if entry.own_requests or entry.notes:
            remainder.own_requests, remainder.notes = Counter(entry.own_requests), Counter(entry.notes)
        claims += entry.claims
    claimed = _claimed(claims, planned)
    remainder.learned += ids.values()
    for number in share.numbers:
        step = planned.steps[number]
        if number in remainder.known:
            continue
        waited = settings.speed_at(step.at_ns) is not None and settings.due(step.at_ns) > lost.seconds
        if number not in claimed or waited or lost.seconds < 0:
            reason = f"its worker {lost.reason}"
            recorder.add(Outcome(step.request.row, number, "not_sent", "not_sent", "aborted", reason))
        else:
            remainder.unknown += 1
            recorder.lost(step, lost.reason)
    return remainder


def _claimed(claims: Sequence[tuple[int, int]], planned: Plan) -> set[int]:
    """The steps that a worker may have sent."""
    claimed: set[int] = set()
    for number, count in claims:
        of_session = planned.sessions[planned.steps[number].session]
        at = bisect.bisect_left(of_session, number)
        claimed.update(of_session[at : at + count])
    return claimed


def groups(sessions: Sequence[Session], planned: Plan) -> list[list[int]]:
    """Indices of the sessions that must stay together, each list in order, the list with most steps first."""
    parent = list(range(len(sessions)))

    def find(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[Any, int] = {}
    for step in planned.steps:
        row = step.request.row
        keys: set[Any] = {("client", row["client_id"], row["client_ip"])}
        used = (
            used_by_fast_path(step.fast_path)
            if step.fast_path is not None
            else uses(step.request.api_key, step.fresh(), None)
        )
        keys.update(state for state, _ in used if state[0] not in ("topic", "end"))
        for number in (*step.waits, *step.after):
            parent[find(step.session)] = find(planned.steps[number].session)
        for key in keys:
            parent[find(step.session)] = find(first.setdefault(key, step.session))
    together: dict[int, list[int]] = {}
    for index in range(len(sessions)):
        together.setdefault(find(index), []).append(index)
    return sorted(together.values(), key=lambda indices: -sum(len(planned.sessions[index]) for index in indices))


def shares(sessions: Sequence[Session], planned: Plan, count: int) -> list[Share]:
    """At most `count` shares of about the same number of steps; none is empty."""
    loads: list[tuple[int, list[int]]] = [(0, []) for _ in range(count)]
    for together in groups(sessions, planned):
        at = min(range(count), key=lambda index: loads[index][0])
        steps = sum(len(planned.sessions[index]) for index in together)
        loads[at] = loads[at][0] + steps, loads[at][1] + together
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
            waits=tuple(here[other] for other in planned.steps[number].waits if other in here),
            after=tuple(here[other] for other in planned.steps[number].after if other in here),
        )
        for number in numbers
    )
    by_session = tuple(tuple(here[number] for number in planned.sessions[index]) for index in chosen)
    return Share(tuple(sessions[index] for index in chosen), Plan(steps, (), by_session), tuple(numbers))


def _work(share: Share, surroundings: Surroundings, out: str, pipe: Connection) -> None:
    """Run a worker's process. Report that it is ready, get the start (None: there is none), send until everything is
    sent or the parent speaks again, write, report what was done."""
    recorder = Recorder(dataset.Writer(out))
    written, news = Journal(_journal(Path(out))), News(surroundings.remap)

    def record(outcome: Outcome) -> None:
        if outcome.step is not None:
            outcome.step = share.numbers[outcome.step]
        written.add(outcome)
        recorder.add(outcome)

    async def keep(engine: Engine) -> None:
        while True:
            await asyncio.sleep(_WRITTEN)
            written.write(news.take(), engine.own_requests, engine.notes)

    seconds = cpu_seconds = 0.0

    def claim(step: Step, count: int) -> None:
        written.claim(share.numbers[step.number], count)

    async def send() -> tuple[Engine, bool]:
        nonlocal seconds, cpu_seconds
        engine = Engine(
            share.sessions,
            share.plan,
            surroundings.cluster,
            surroundings.remap,
            surroundings.topology,
            surroundings.offers,
            surroundings.access.dial(*surroundings.bootstrap),
            surroundings.bootstrap,
            surroundings.settings,
            record,
            claim=claim,
        )
        loop = asyncio.get_running_loop()
        pipe.send("ready")
        start_ns = await loop.run_in_executor(None, _received, pipe)
        if start_ns is None:
            engine.give_up_rest()
            return engine, True
        cpu = time.process_time()
        sending, keeping = loop.create_task(engine.run(start_ns)), loop.create_task(keep(engine))

        def stop() -> None:
            loop.remove_reader(pipe)  # once: a second time it would end the recording of what was done
            sending.cancel()

        loop.add_reader(pipe, stop)
        try:
            await sending
        except asyncio.CancelledError:
            return engine, True
        finally:
            keeping.cancel()
            seconds, cpu_seconds = max((time.time_ns() - start_ns) / 1e9, 0.0), time.process_time() - cpu
        return engine, False

    engine, interrupted = asyncio.run(send())
    written.write(news.take(all_of_it=True), engine.own_requests, engine.notes)
    written.close()
    recorder.finish(list(surroundings.remap.rows(share.sessions[0].capture)), [], {})
    recorder.counts.loop_lags_us += engine.loop_lags_us  # type: ignore[operator]
    with contextlib.suppress(BrokenPipeError):
        busy = cpu_seconds / max(seconds, 1e-9)
        own, notes = dict(engine.own_requests), dict(engine.notes)
        pipe.send(Done(recorder.counts, own, notes, interrupted, engine.failure, seconds, cpu_seconds, busy))


_TO_ALL: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that terminals, systemd and `timeout` send to each process of a run; the parent decides when its workers
end."""


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Let processes that are started in this context ignore these signals, from their first instruction on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_ALL)
    try:
        resource_tracker.ensure_running()  # starting it, as the first of these processes would, undoes the mask
        signal.pthread_sigmask(signal.SIG_BLOCK, _TO_ALL)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def send(
    parts: Sequence[Share], surroundings: Surroundings, folder: Path, take: Callable[[Path], None]
) -> tuple[list[Done], list[DeadWorker]]:
    """Run the workers and `take` the datasets of those that end well; return (results, dead workers). If this is
    cancelled they write what they did, and stop."""
    context = multiprocessing.get_context("spawn")
    running: list[tuple[SpawnProcess, Connection, Path]] = []
    listening = ThreadPoolExecutor(len(parts))
    loop = asyncio.get_running_loop()
    stopped = False

    async def next_message(waiting: asyncio.Future[Any]) -> Any:
        """The next message of a worker."""
        nonlocal stopped
        while True:
            try:
                return await asyncio.shield(waiting)
            except asyncio.CancelledError:
                stopped = True
                for _, other, _ in running:
                    _tell(other, None)

    done: list[Done] = []
    dead: list[DeadWorker] = []
    try:
        with _deaf():
            for number, share in enumerate(parts):
                receiving, sending = context.Pipe()
                out = folder / f"worker-{number}"
                process = context.Process(target=_work, args=(share, surroundings, str(out), sending))
                process.start()
                sending.close()
                running.append((process, receiving, out))
        ready = [await next_message(loop.run_in_executor(listening, _received, pipe)) for _, pipe, _ in running]
        start_ns = time.time_ns() + round(_LEAD * 1e9)
        for _, pipe, _ in running:
            if not stopped:
                _tell(pipe, start_ns)
        # All at once: the moment at which one dies says what it cannot have sent.
        last_words = [loop.run_in_executor(listening, _last_word, pipe) for _, pipe, _ in running]
        for number, (process, _, out) in enumerate(running):
            last, ended_ns = await next_message(last_words[number])
            if isinstance(last, Done):
                take(out)
                done.append(last)
            else:
                process.join(_PATIENCE)
                seconds = (ended_ns - start_ns) / 1e9 if ready[number] is not None else -1.0
                dead.append(DeadWorker(number, _ending(process.exitcode), seconds, _journal(out)))
        return done, dead
    finally:
        for process, _, _ in running:
            if len(done) + len(dead) == len(parts):
                process.join(_PATIENCE)
            if process.is_alive():
                process.kill()  # it is deaf to SIGTERM
            process.join()
        listening.shutdown()


def _received(pipe: Connection) -> Any:
    """The next message of a pipe; None if there will be none."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _last_word(pipe: Connection) -> tuple[Any, int]:
    """The result of a worker, and when it came; None if it is dead."""
    return _received(pipe), time.time_ns()


def _journal(out: Path) -> Path:
    """The journal of the worker that writes this dataset."""
    return out.with_name(out.name + ".journal")


def _tell(pipe: Connection, what: int | None) -> None:
    """Send a worker a message, if it still lives."""
    with contextlib.suppress(OSError):
        pipe.send(what)


def _ending(code: int | None) -> str:
    """Describe how a process ended."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
