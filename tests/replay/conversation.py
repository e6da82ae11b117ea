"""The parts of conversation tests: a captured session, a target that answers from a script, and a clock that only
moves while everything waits. No network, no real time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import selectors
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kwire.analyzer.dataset import tables
from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.protocol import schema, tree
from kwire.analyzer.protocol.encoding import encode_request, encode_response
from kwire.analyzer.protocol.tree import Body
from kwire.replay.outcome import Outcome
from kwire.replay.plan import decisions
from kwire.replay.plan.sessions import Request, Session
from kwire.replay.plan.steps import Plan
from kwire.replay.plan.values import Offers
from kwire.replay.remap import remap, retry, topology
from kwire.replay.send.engine import Engine
from kwire.replay.send.link import LinkError, Receiver
from kwire.replay.send.progress import Standing
from kwire.replay.send.settings import Settings

START_NS = 1_700_000_000 * 10**9
EVERYTHING: Offers = {key: (0, api.max_version) for key, api in enumerate(schema.apis())}


# --- time -----------------------------------------------------------------------------------------------------------


class _Jumping(selectors.DefaultSelector):
    """Does not sleep: moves its loop's clock."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self.loop.now += max(timeout, 0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once."""

    now = 0.0

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def play(coroutine: Any) -> Any:
    """Run a coroutine in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


# --- the capture ----------------------------------------------------------------------------------------------------


@dataclass
class Captured:
    """One captured connection in the making. Times are in seconds from the start."""

    connection: str = "10.0.0.1:5000-10.0.0.9:9092#1"
    broker: tuple[str, int] = ("10.0.0.9", 9092)
    requests: list[Request] = field(default_factory=list)

    def add(
        self,
        at: float,
        api_key: int,
        version: int,
        body: Body,
        answer: Body | None = None,
        took: float = 0.01,
        client_id: str = "client",
    ) -> Captured:
        """A request, and its answer `took` seconds later (None: there was none)."""
        number = len(self.requests)
        row: Body = dict.fromkeys(column.name for column in tables.EXCHANGES)
        row |= {
            "capture": "shop.pcap",
            "connection": self.connection,
            "exchange": number,
            "reply": number,
            "api_key": api_key,
            "api": names.name(api_key),
            "api_version": version,
            "client_id": client_id,
            "request_state": "decoded",
            "request_time": _moment(at),
        }
        sent = START_NS + round(at * 1e9)
        self.requests.append(
            Request(
                row,
                sent,
                None if answer is None else sent + round(took * 1e9),
                encode_request(api_key, version, number, client_id, body),
                None if answer is None else encode_response(api_key, version, number, answer),
            )
        )
        return self

    def session(self) -> Session:
        return Session("shop.pcap", self.connection, self.broker, tuple(self.requests))


def _moment(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(START_NS / 1e9 + at, datetime.UTC)


# --- the target -----------------------------------------------------------------------------------------------------

Answer = Callable[[Body], Body | None]


@dataclass
class ReceivedRequest:
    """A request that the target got."""

    at: float
    node: int
    link: int
    api_key: int
    version: int
    body: Body
    client_id: str | None


@dataclass
class Target:
    """A cluster that answers from a script. `answers`: by API, bodies in order (the last one again and again) or
    functions of the request's body; None: the connection is closed. `delay`: seconds until an answer comes, and `held`
    how many more, by what was asked. `deaf`:
    after the greeting nothing is taken; `most_unsent`: the most bytes that waited on one connection."""

    nodes: dict[int, tuple[str, int]] = field(default_factory=lambda: {1: ("target", 9092)})
    answers: dict[int, list[Body | Answer | None]] = field(default_factory=dict)
    delay: dict[int, float] = field(default_factory=dict)
    held: dict[int, Callable[[Body], float]] = field(default_factory=dict)
    received: list[ReceivedRequest] = field(default_factory=list)
    down: set[int] = field(default_factory=set)
    links: int = 0
    deaf: bool = False
    most_unsent: int = 0

    def on(self, api_key: int, *answers: Body | Answer | None, delay: float = 0.001) -> Target:
        self.answers[api_key] = list(answers)
        self.delay[api_key] = delay
        return self

    async def dial(self, host: str, port: int, receiver: Receiver) -> _FakeLink:
        await asyncio.sleep(0.0001)
        node = next(number for number, address in self.nodes.items() if address == (host, port))
        if node in self.down:
            raise LinkError(f"{host}:{port}: Connection refused", "is it up?")
        self.links += 1
        return _FakeLink(self, node, self.links, receiver)

    def requests(self, *api_keys: int) -> list[ReceivedRequest]:
        """The requests that came, of these APIs only."""
        return [request for request in self.received if not api_keys or request.api_key in api_keys]

    def answer_for(self, api_key: int, body: Body) -> Body | None:
        script = self.answers.get(api_key)
        if script is None:
            raise AssertionError(f"the script has no answer to {names.name(api_key)}")
        scripted = script.pop(0) if len(script) > 1 else script[0]
        return scripted(body) if callable(scripted) else scripted


class _FakeLink:
    """Answers each request after its delay, in order."""

    def __init__(self, target: Target, node: int, number: int, receiver: Receiver) -> None:
        self.target, self.node, self.number, self.receiver = target, node, number, receiver
        self._loop = asyncio.get_running_loop()
        self._free = 0.0
        self._closed = False
        self._unsent = 0

    def send(self, frame: bytes) -> None:
        if self._closed:
            return
        decoded = tree.decode_request(frame[4:], exact=True)
        assert decoded.body is not None, decoded.reason
        assert decoded.header is not None
        key, version = decoded.api_key, decoded.version
        correlation = decoded.header["correlationId"]
        if key == names.API_VERSIONS:
            self._later(0.0001, encode_response(key, version, correlation, {"errorCode": 0, "apiKeys": []}))
            return
        if self.target.deaf:
            self._unsent += len(frame)
            self.target.most_unsent = max(self.target.most_unsent, self._unsent)
            return
        now = self._loop.time()
        self.target.received.append(
            ReceivedRequest(now, self.node, self.number, key, version, decoded.body, decoded.header["clientId"])
        )
        if key == names.PRODUCE and decoded.body["acks"] == 0:
            return
        answer = self.target.answer_for(key, decoded.body)
        if answer is None:
            self._loop.call_soon(self._close, "closed by the target")
            return
        held = self.target.held[key](decoded.body) if key in self.target.held else 0.0
        self._later(self.target.delay.get(key, 0.001) + held, encode_response(key, version, correlation, answer))

    def _later(self, delay: float, frame: bytes) -> None:
        # One request of a connection at a time: what is behind a slow one waits (Kafka mutes the channel).
        self._free = max(self._free, self._loop.time()) + delay
        self._loop.call_at(self._free, lambda: None if self._closed else self.receiver.frame(frame))

    def backlog(self) -> int:
        return self._unsent

    def close(self) -> None:
        self._loop.call_soon(self._close, "closed by the replayer")

    def _close(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self.receiver.closed(reason)


# --- the run --------------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """How a replay went."""

    outcomes: list[Outcome]
    engine: Engine
    seconds: float

    def of(self, api_key: int) -> list[Outcome]:
        """The outcomes of an API in order of capture."""
        return [
            outcome
            for outcome in sorted(self.outcomes, key=lambda outcome: outcome.step or 0)
            if outcome.row["api_key"] == api_key
        ]


def replayed(
    captured: Sequence[Captured],
    target: Target,
    *,
    offers: Offers | None = None,
    speed: float | None = None,
    options: remap.RemapOptions | None = None,
    topics: dict[str, int] | None = None,
    leaders: dict[tuple[str, int], int] | None = None,
    limits: retry.Limits | None = None,
    allow: frozenset[int] = frozenset(),
    nodes: dict[int, int] | None = None,
    interrupted_after: float | None = None,
    progress: Callable[[Standing], None] | None = None,
    feeding: Callable[[Engine, Plan], Awaitable[None]] | None = None,
    record: Callable[[Outcome], None] | None = None,
    **settings: Any,
) -> Played:
    """Plan and send. The target has `topics` (name: partitions), led by its first node where `leaders` says no more;
    `interrupted_after`: seconds of it until Ctrl-C; `progress` is told how far it is; `feeding` gives the
    engine the steps of the plan while it runs; `record` gets what came of each; `settings`: others of the engine's."""

    async def run() -> Played:
        known = topology.Topology(nodes=dict(target.nodes), partitions=dict(topics or {}))
        first = min(target.nodes)
        known.leaders = {(name, p): first for name, count in known.partitions.items() for p in range(count)}
        known.leaders.update(leaders or {})
        sessions = [capture.session() for capture in captured]
        offered = offers or EVERYTHING
        planned, facts = decisions.make(sessions, offered, decisions.PlanOptions(allow))
        outcomes: list[Outcome] = []
        learned = remap.Remap(options or remap.RemapOptions(), facts.assignments, nodes)
        feed = None if feeding is None else functools.partial(_fed, feeding, planned)
        engine = Engine(
            sessions,
            planned if feed is None else Plan((), (), ()),
            facts,
            learned,
            known,
            offered,
            target.dial,
            target.nodes[first],
            Settings(speed=speed, limits=limits or retry.Limits(), **settings),
            record or outcomes.append,
            progress,
            feed,
        )
        begun = asyncio.get_running_loop().time()
        if interrupted_after is None:
            await engine.run()
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(engine.run(), interrupted_after or 1e-9)
        return Played(outcomes, engine, asyncio.get_running_loop().time() - begun)

    played: Played = play(run())
    return played


async def _fed(feeding: Callable[[Engine, Plan], Awaitable[None]], planned: Plan, engine: Engine) -> None:
    await feeding(engine, planned)
