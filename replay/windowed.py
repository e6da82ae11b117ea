"""Sending a capture that is never held whole: windows of it are read, planned, sent and recorded one after another.

In: a `WindowReader` (a capture after its first pass, or a live one), a `Planner` and an engine. Out: outcomes in the
`Recorder`. Reading, planning and writing happen in one thread beside the event loop, so neither needs a lock. Rules:
the plan is as far ahead as the engine has room for (`Settings.ahead`), and bytes of outcomes without a row count too;
with more than `UNRECORDED` of those nothing is sent until they are rows. Each captured exchange gets its row, also in a
run that ends early, as long as reading on for `READ_ON` seconds comes to it; the rest is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from kwire.analyzer.frame.buffer_pool import give_back
from kwire.captures.errors import KwireError
from kwire.replay import pace
from kwire.replay.outcome import Outcome
from kwire.replay.plan.decisions import Planner
from kwire.replay.plan.steps import Skip, Step
from kwire.replay.plan.windows import Window, WindowReader
from kwire.replay.run_plan import pause_warnings, topic_id_of
from kwire.replay.run_writer import Recorder
from kwire.replay.send.engine import Engine
from kwire.replay.send.link import LinkError

READ_ON: Final = 2.0
"""Seconds for which a run that ended early still reads, to record that requests were not sent: Ctrl-C is to end it."""
UNRECORDED: Final = 64 << 20
"""Bytes of outcomes without a row: a target may answer more than was captured, and faster than rows are made."""
_PAUSE: Final = 0.01
_RECORDED: Final = 1_000
_RECORDED_BYTES: Final = 8 << 20
"""Outcomes, or their bytes, that become rows together while nothing is planned."""
_SWITCH: Final = 0.001
"""Seconds after which the thread that reads gives the event loop its turn."""
_COLLECTED: Final = 60.0
"""Seconds between two garbage collections: with so many objects on their way each takes a tenth of a second."""


class TopicChecks(Protocol):
    """Checks topics when they first appear."""

    async def check(self, named: Iterable[str]) -> None:
        """Check the topics that requests named so far. Raises KwireError."""


class WindowFeed:
    """Feeds an engine from windows of a capture, and records the outcomes that it gives.

    - `checks`: looks at each window of a live capture before it is sent
    - `announce`: gets a line if that capture pauses for long
    - `end_ns`: as `pace.end_ns`, so far
    - `unread`: requests that were not read, in a run that ended early
    - `unnamed`: how many requests were skipped, by topic id without a name
    - `seconds`: from the first step until the last outcome, because a live capture may be silent after it
    """

    def __init__(
        self,
        reader: WindowReader,
        planner: Planner,
        recorder: Recorder,
        checks: TopicChecks | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        self.end_ns = 0
        self.unread = 0
        self.seconds = 0.0
        self.unnamed: Counter[str] = Counter()
        self._reader = reader
        self._planner = planner
        self._recorder = recorder
        self._checks = checks
        self._announce = announce
        self._windows = reader.windows()
        self._ready: deque[Outcome] = deque()
        self._arrived_bytes = self._recorded_bytes = 0  # of outcomes; each is counted by one thread only
        self._planned: list[Step] = []  # planned, and not yet given to the engine
        self._engine: Engine | None = None
        self._pool = ThreadPoolExecutor(1, "kwire-windows")
        self._read = 0
        self._has_begun = False
        self._collected = self._began = time.monotonic()

    def record(self, outcome: Outcome) -> None:
        """Take the end of an exchange; the thread makes its row."""
        self._ready.append(outcome)
        self._arrived_bytes += _size(outcome)
        if self._engine is not None and self._unrecorded > UNRECORDED:
            self._engine.hold_back()
        self.seconds = time.monotonic() - self._began

    @property
    def _unrecorded(self) -> int:
        """Bytes of outcomes that have no row."""
        return self._arrived_bytes - self._recorded_bytes

    async def feed(self, engine: Engine) -> None:
        """Read and plan as long as there are windows and the engine has room; then make rows until it is done."""
        self._engine = engine
        loop = asyncio.get_running_loop()
        engine.total = self._reader.request_count
        while True:
            while not engine.has_room(self._unrecorded):
                await self._record_some(engine)
            planned = await loop.run_in_executor(self._pool, self._next)
            if self._unrecorded <= UNRECORDED // 2:
                engine.go_on()
            if planned is None:
                break
            window, steps = planned
            if self._checks is not None and window.requests:
                try:
                    await self._checks.check(self._planner.topics | self._planner.subscribed)
                except KwireError as error:
                    if not self._has_begun:
                        raise
                    engine.failure = engine.failure or LinkError(error.message, error.hint)
                    break  # these steps are given up with what is not read
            self._give(engine, window, steps)
            if time.monotonic() - self._collected > _COLLECTED:
                give_back()
                self._collected = time.monotonic()
        engine.no_more()
        while True:
            await self._record_some(engine)

    def _give(self, engine: Engine, window: Window, steps: list[Step]) -> None:
        """Give the engine the steps of a window, and its sessions as they begin and end."""
        for number in window.met:
            session = self._reader.session(number)
            engine.meet(number, session.broker, session.user)
        if steps and not self._has_begun:
            engine.begin_now()
            self._began = time.monotonic()
            self._has_begun = True
        self._planned = []
        engine.add(steps, live=self._reader.request_count is None)
        for number in window.over:
            engine.over(number)
            self._reader.forget(number)

    async def _record_some(self, engine: Engine) -> None:
        """Make rows of the outcomes that have come, or wait a moment if they are few."""
        if len(self._ready) >= _RECORDED or self._unrecorded >= _RECORDED_BYTES:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._rows)
            if self._unrecorded <= UNRECORDED // 2:
                engine.go_on()
        else:
            await asyncio.sleep(_PAUSE)

    async def finish(self) -> None:
        """Record the rest of the outcomes, and requests that were not read yet as not sent."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._rest)
        self._pool.shutdown()

    def _rows(self) -> None:
        while self._ready:
            outcome = self._ready.popleft()
            self._recorder.add(outcome)
            self._recorded_bytes += _size(outcome)

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
            self._recorder.add_exchange(message.request)
        self._read += len(window.requests)
        steps, skips = self._planner.take(window.requests)
        for skip in skips:
            self._recorder.skip(skip)
            if skip.rule == "unknown_topic_id":
                self.unnamed[topic_id_of(skip)] += 1
        self.end_ns = max(self.end_ns, pace.end_ns(steps))
        self._tell_pause()
        self._planned = steps
        return window, steps

    def _tell_pause(self) -> None:
        """Announce the first long pause, which nobody could know before."""
        announce, pause = self._announce, self._planner.clock.longest
        if announce is not None and self._engine is not None:
            for line in pause_warnings(self._engine.settings, pause, pause[0]):
                announce(line)
                self._announce = None

    def _rest(self) -> None:
        self._rows()
        self._give_up(self._planned)
        count, began = self._reader.request_count, time.monotonic()
        while count is not None and time.monotonic() - began < READ_ON:
            planned = self._next()
            if planned is None:
                break
            self._give_up(planned[1])
        if count is not None:
            self.unread = count - self._read
            self._recorder.counts.leave(self.unread)

    def _give_up(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._recorder.add(Outcome(step.request.row, step.number, "not_sent", "not_sent", "aborted"))


def _size(outcome: Outcome) -> int:
    """Bytes that an outcome holds: the request, the answer, and the captured answer."""
    return sum(len(frame) for frame in (outcome.request, outcome.answer, outcome.captured_answer) if frame)


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Make turns of threads short, and collect no garbage, in a run that reads and plans beside the event loop."""
    interval, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_SWITCH)
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if collects:
            gc.enable()
