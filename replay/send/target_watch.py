"""Watches the target while steps are sent: whether it still answers, and how far the run is.

In: what sessions have open, and how often an answer came. Out: connections ended whose oldest answer is overdue, a
failure if the target has been silent for too long, and a `Standing` again and again. Rule: silence counts only while
answers are owed, or a connection is being opened; before a target is called dead a new connection asks whether it is
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.replay.outcome import Outcome
from kwire.replay.plan.steps import Step
from kwire.replay.send.dependencies import Waiting
from kwire.replay.send.link import LinkError
from kwire.replay.send.own_requests import Asker
from kwire.replay.send.progress import Standing
from kwire.replay.send.session_state import SessionState
from kwire.replay.send.settings import Settings
from kwire.replay.send.timetable import Timetable

_TELLING: Final = 1.0
"""Seconds between two lines about how far a run is."""


class Watch:
    """Watches one run. `answered`: answers that came; `errors`: those with errors that the capture does not have, both
    counted by the code that takes answers. `total`: how many requests there will be, as far as that is known."""

    def __init__(
        self,
        bootstrap: tuple[str, int],
        settings: Settings,
        asker: Asker,
        states: Mapping[int, SessionState],
        waiting: Waiting,
        timetable: Timetable,
        total: Callable[[], int],
        progress: Callable[[Standing], None] | None,
    ) -> None:
        self.answered = 0
        self.errors = 0
        self._bootstrap = bootstrap
        self._settings = settings
        self._asker = asker
        self._states = states
        self._waiting = waiting
        self._timetable = timetable
        self._total = total
        self._progress = progress
        self._dead = ""
        self._loop = asyncio.get_running_loop()

    async def run(self) -> LinkError:
        """End connections whose oldest answer is overdue, because steps on the fast path have no timer of their own.
        Returns the target's fault if it has been silent for too long, while answers were owed."""
        tick = min(self._settings.answer_timeout / 4, self._settings.suspicion / 2)
        received, silent, alive, unasked = 0, 0.0, self._loop.time(), 0.0
        while True:
            await asyncio.sleep(tick)
            if self.answered != received:
                received, silent = self.answered, 0.0
            elif self._asker.dialling or any(state.in_flight for state in self._states.values()):
                silent += tick
            if silent < self._settings.suspicion:
                alive, self._dead = self._loop.time(), ""
            elif self._loop.time() < unasked:
                pass  # it was alive just now
            elif await self._asker.alive(self._settings.suspicion / 2):
                alive, self._dead = self._loop.time(), ""
                unasked = alive + self._settings.suspicion
            elif (failure := self._given_up(self._loop.time() - alive)) is not None:
                return failure
            if silent > self._settings.silence and silent > self._settings.silence + self._captured_wait():
                host, port = self._bootstrap
                return LinkError(
                    f"{host}:{port}: no answer to anything for {silent:.0f} s",
                    "see the broker's log; a lower --speed, or a longer --give-up-after",
                )
            overdue = self._timetable.now_ns() - round(self._settings.answer_timeout * 1e9)
            for state in self._states.values():
                oldest = next(iter(state.fast.values()), None)
                if oldest is not None and (oldest[1].sent_ns or overdue) < overdue:
                    state.connections.close()

    def _captured_wait(self) -> float:
        """The longest time, in seconds, that the capture waited for an answer that is owed now, up to the limit of an
        answer."""
        jobs = (job.step.request for state in self._states.values() for job in state.jobs.values())
        waits = ((request.answered_ns - request.sent_ns) / 1e9 for request in jobs if request.answered_ns is not None)
        return min(max(waits, default=0.0), self._settings.answer_timeout)

    def _given_up(self, seconds: float) -> LinkError | None:
        """Report a target that answers nothing and accepts no connection, and in the end give up."""
        host, port = self._bootstrap
        self._dead = f"{host}:{port}: no answer to anything, and no broker greets a new connection, for {seconds:.0f} s"
        if seconds <= self._settings.reconnect:
            return None
        return LinkError(self._dead, "is it up? see the broker's log")

    async def tell(self) -> None:
        """Report how far the run is, again and again."""
        before = (0, 0)
        while self._progress is not None:
            await asyncio.sleep(_TELLING)
            now = self._waiting.sent_count(), self.answered
            self._progress(self._standing(now[0], now != before))
            before = now

    def _standing(self, sent: int, moves: bool) -> Standing:
        now_ns = self._timetable.now_ns()
        flying: list[tuple[Step, Outcome]] = []
        for state in self._states.values():
            flying += [(job.step, job.outcome) for job in state.jobs.values()]
            flying += list(state.fast.values())[:1]
        awaited = None
        if flying:
            step, outcome = min(flying, key=lambda each: each[1].first_sent_ns or now_ns)
            at = outcome.targets[0] if outcome.targets else "the target"
            what = f"the answer to {api_keys.name(step.request.api_key)} of {step.request.row['client_id']} from {at}"
            awaited = what, (now_ns - (outcome.first_sent_ns or now_ns)) / 1e9
        due = [self._timetable.due(state.next) for state in self._states.values() if state.next is not None]
        behind = None if self._settings.speed is None else max(self._loop.time() - min(due, default=float("inf")), 0.0)
        in_flight = sum(state.in_flight for state in self._states.values())
        return Standing(self._total(), sent, self.answered, self.errors, in_flight, behind, awaited, moves, self._dead)
