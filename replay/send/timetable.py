"""Decides when steps are due, and which steps the replayer itself was late with.

In: steps, with their times of the capture; the loop's clock. Out: when each is due (seconds of the loop's clock), and
for its outcome (nanoseconds since 1970) when it was due and until when the replayer held it up. Rule: one absolute
schedule from the start on, never gap by gap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from kwire.replay.outcome import Outcome
from kwire.replay.plan.steps import Step
from kwire.replay.send.settings import Settings


class Timetable:
    """The timetable of one run. `started`: of the loop's clock, in seconds; `epoch_ns`: the same moment, since 1970."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.started = 0.0
        self.epoch_ns = 0
        self._settings = settings
        self._loop = loop
        # The time is asked for three times a request: of the loop it would cost four times as much.
        own = type(loop).time is not asyncio.BaseEventLoop.time
        self._clock_ns: Callable[[], int] = self._loops_ns if own else time.monotonic_ns
        self._ahead_ns = 0
        self._late: dict[int, int] = {}

    def begin_at(self, epoch_ns: int, started: float) -> None:
        """Begin the schedule at that time of day, which is that of the loop's clock."""
        self.epoch_ns, self.started = epoch_ns, started
        self._ahead_ns = epoch_ns - round(started * 1e9)

    def now_ns(self) -> int:
        """The time in nanoseconds since 1970, by the loop's clock."""
        return self._clock_ns() + self._ahead_ns

    def due(self, step: Step) -> float:
        """When a step is to be sent, by the loop's clock."""
        return self.started + self._settings.due(step.at_ns)

    def is_due(self, step: Step) -> bool:
        """Whether a step is due."""
        return self._settings.speed is None or self._loop.time() >= self.due(step)

    def planned(self, step: Step, now: float, live: bool) -> None:
        """Note that a step was planned during the run, at `now` of the loop's clock: it may be due already. `live`:
        then it is due when it is planned."""
        if self._settings.speed_at(step.at_ns) is not None and self.due(step) < now:
            self._late[step.number] = self.now_ns() if not live else -self.now_ns()

    def note_late(self, step: Step) -> bool:
        """Note that a step could not be sent before now; False where it is not due."""
        if self._settings.speed_at(step.at_ns) is None or self.due(step) >= self._loop.time():
            return False
        self._late.setdefault(step.number, self.now_ns())
        return True

    def stamp(self, step: Step, outcome: Outcome) -> None:
        """Put into its outcome when a step was due, and planned if that was later."""
        outcome.scheduled_ns = self.epoch_ns
        if self._settings.speed is not None or self._settings.schedule is not None:
            outcome.scheduled_ns += round(self._settings.due(step.at_ns) * 1e9)
        late = self._late.pop(step.number, None) if self._late else None
        if late is not None:
            if late < 0:
                outcome.scheduled_ns = -late
            outcome.planned_ns = abs(late)

    def _loops_ns(self) -> int:
        return round(self._loop.time() * 1e9)
