"""Sending a capture that is never held whole: windows of it are read, planned, sent and recorded one after another.

In: a `Flow` that was surveyed, or a `Live` one, a `Planner` and an engine. Out: outcomes in the recorder. What reads,
plans and writes is one thread beside the event loop, so neither needs a lock. Rules: the plan is so far ahead as the
engine has room for (`Settings.ahead`), and bytes of outcomes that have no row yet count as well; with more than
`UNRECORDED` of those nothing is sent until they are rows. Each captured exchange gets its row, also of a run that ends
early, up to `READ_ON` requests more.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from analyzer.frame.buffer_pool import give_back
from captures.errors import KwireError
from replay import pace
from replay.live_traffic import Live, Meeting
from replay.outcome import Outcome
from replay.plan.decisions import Planner
from replay.plan.steps import Skip, Step
from replay.plan.windows import Flow, Window
from replay.run_writer import Recorder
from replay.send.engine import Engine
from replay.send.link import LinkError

READ_ON: Final = 500_000
"""Requests that a run which ended early still reads, to record that they were not sent."""
UNRECORDED: Final = 64 << 20
"""Bytes of outcomes without a row: a target may answer more than was captured, and faster than rows are made."""
_PAUSE: Final = 0.01
_RECORDED: Final = 1_000
_RECORDED_BYTES: Final = 8 << 20
"""Outcomes, or bytes of theirs, that become rows at once, while nothing is planned."""
_SWITCH: Final = 0.001
"""Seconds after which the event loop gets its turn from the thread that reads."""
_COLLECTED: Final = 60.0
"""Seconds between two looks for garbage: with so many objects on their way each takes a tenth of a second."""


class Flowing:
    """One run of a flow. `record` is what the engine gives outcomes to; `feed` what it gets steps from. `end_ns`: as
    `pace.end_ns`, so far; `unread`: requests that were not read, of a run that ended early; `unnamed`: how
    many requests were skipped by topic id that nothing names. `meeting`: what looks at each window of a live flow
    before it is sent; `seconds`: from the first step until the last outcome, for a live source may be silent after."""

    def __init__(self, flow: Flow | Live, planner: Planner, recorder: Recorder, meeting: Meeting | None = None) -> None:
        self.end_ns = 0
        self.unread = 0
        self.seconds = 0.0
        self.unnamed: Counter[str] = Counter()
        self._flow = flow
        self._planner = planner
        self._recorder = recorder
        self._meeting = meeting
        self._windows = flow.windows()
        self._ready: deque[Outcome] = deque()
        self._taken_bytes = self._given_bytes = 0  # of outcomes: those of the engine's thread, and of the other one
        self._planned: list[Step] = []  # planned, and not the engine's yet
        self._engine: Engine | None = None
        self._pool = ThreadPoolExecutor(1, "kwire-flow")
        self._read = 0
        self._collected = self._began = time.monotonic()

    def record(self, outcome: Outcome) -> None:
        """An exchange's end; its row is made by the thread."""
        self._ready.append(outcome)
        self._taken_bytes += _size(outcome)
        if self._engine is not None and self._unrecorded > UNRECORDED:
            self._engine.hold_back()
        self.seconds = time.monotonic() - self._began

    @property
    def _unrecorded(self) -> int:
        """Bytes of outcomes that have no row."""
        return self._taken_bytes - self._given_bytes

    async def feed(self, engine: Engine) -> None:
        """Read and plan, as long as there is something and the engine has room; then make rows until it is done."""
        self._engine = engine
        loop = asyncio.get_running_loop()
        engine.total = self._flow.survey.requests if isinstance(self._flow, Flow) else None
        begun = False
        while True:
            while not engine.has_room(self._unrecorded):
                await self._record_some(engine)
            found = await loop.run_in_executor(self._pool, self._next)
            if self._unrecorded <= UNRECORDED // 2:
                engine.go_on()
            if found is None:
                break
            window, steps = found
            if self._meeting is not None and window.requests:
                try:
                    await self._meeting.look(self._planner.topics | self._planner.subscribed)
                except KwireError as problem:
                    if not begun:
                        raise
                    engine.failure = engine.failure or LinkError(str(problem), problem.hint)
                    break  # these steps are given up with what is not read
            for number in window.met:
                session = self._flow.sessions[number]
                engine.meet(number, session.broker, session.user)
            if not begun and steps:
                engine.begin_now()
                self._began = time.monotonic()
                begun = True
            self._planned = []
            engine.add(steps, live=isinstance(self._flow, Live))
            for number in window.over:
                engine.over(number)
                if isinstance(self._flow, Live):
                    self._flow.forget(number)
            if time.monotonic() - self._collected > _COLLECTED:
                give_back()
                self._collected = time.monotonic()
        engine.no_more()
        while True:
            await self._record_some(engine)

    async def _record_some(self, engine: Engine) -> None:
        """Make rows of what has come, or wait a moment where that is little."""
        if len(self._ready) >= _RECORDED or self._unrecorded >= _RECORDED_BYTES:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._rows)
            if self._unrecorded <= UNRECORDED // 2:
                engine.go_on()
        else:
            await asyncio.sleep(_PAUSE)

    async def finish(self) -> None:
        """The engine is done: record what it gave, and what was not read yet as not sent."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._rest)
        self._pool.shutdown()

    def _rows(self) -> None:
        while self._ready:
            outcome = self._ready.popleft()
            self._recorder.add(outcome)
            self._given_bytes += _size(outcome)

    def _next(self) -> tuple[Window, list[Step]] | None:
        """The next window, planned, its captured side written."""
        self._rows()
        window = next(self._windows, None)
        if window is None:
            return None
        for row in window.orphans:
            self._recorder.orphan(row)
            self._recorder.skip(Skip(row, "no_request"))
        for _, message in window.requests:
            self._recorder.asked(message.request)
        self._read += len(window.requests)
        steps, skips = self._planner.take(window.requests)
        for skip in skips:
            self._recorder.skip(skip)
            if skip.rule == "unknown_topic_id":
                self.unnamed[topic_id(skip)] += 1
        self.end_ns = max(self.end_ns, pace.end_ns(steps))
        self._planned = steps
        return window, steps

    def _rest(self) -> None:
        self._rows()
        self._give_up(self._planned)
        begun = self._read
        while isinstance(self._flow, Flow) and self._read - begun < READ_ON:
            found = self._next()
            if found is None:
                break
            self._give_up(found[1])
        if isinstance(self._flow, Flow):
            self.unread = self._flow.survey.requests - self._read

    def _give_up(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._recorder.add(Outcome(step.request.row, step.number, "not_sent", "not_sent", "aborted"))


def _size(outcome: Outcome) -> int:
    """Bytes that it keeps, of what was sent and answered, and of the captured answer."""
    return sum(len(frame) for frame in (outcome.request, outcome.answer, outcome.captured_answer) if frame)


def topic_id(skip: Skip) -> str:
    """Which topic id has no name, of a skip for that reason."""
    return skip.reason.partition(":")[0]


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """For a run that reads and plans beside the event loop: turns are short, and nobody looks for garbage meanwhile."""
    interval, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_SWITCH)
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if collects:
            gc.enable()
