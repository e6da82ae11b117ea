"""What steps wait for: answers that their clients had, and requests that others had sent.

In: what was sent, what has its answer, what is on its way. Out: whoever waited goes on. Rule: nobody waits for ever.
When nothing is on its way and nothing will come, the earliest of those who wait goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from replay.plan.steps import Step


class Waiting:
    """Of all steps of a run, which are numbered from 0."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        self._done = bytearray(len(steps))
        self._sent = bytearray(len(steps))
        self._awaiting = bytearray(len(steps))  # answered, and sent again until the group rebalances
        # By a step's number who waits for its answer, by -1 - number who waits for it to be sent: session, waiter.
        self._waiters: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}
        self._blocked: dict[int, asyncio.Future[None]] = {}
        self._busy = 0

    # --- what happens ---

    def begin(self) -> None:
        """Something is on its way from now on that others may wait for: a session that sends, an awaited answer."""
        self._busy += 1

    def end(self) -> None:
        """It is not any more."""
        self._busy -= 1
        if self._busy == 0 and self._blocked and not any(waiter.done() for waiter in self._blocked.values()):
            self._blocked.pop(min(self._blocked)).set_result(None)

    def sent(self, number: int) -> None:
        """A step was sent, or never will be."""
        if not self._sent[number]:
            self._sent[number] = 1
            self._wake(-1 - number)

    def done(self, number: int) -> None:
        """A step has its outcome."""
        self.sent(number)
        if not self._done[number]:
            self._done[number] = 1
            self._wake(number)

    def let_others_go_on(self, step: Step) -> None:
        """A member awaits its group's rebalance, which needs the other members' next requests: only its own connection
        still waits. (A member that joins again makes such a rebalance.)"""
        self._awaiting[step.number] = 1
        for session, waiter in self._waiters.get(step.number, ()):
            if session != step.session and not waiter.done():
                waiter.set_result(None)

    def _wake(self, key: int) -> None:
        for _, waiter in self._waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    # --- who asks ---

    def is_done(self, number: int) -> bool:
        """Has the step its outcome?"""
        return bool(self._done[number])

    def is_sent(self, number: int) -> bool:
        """Was the step sent, or will it never be?"""
        return bool(self._sent[number])

    def sent_count(self) -> int:
        """How many steps were sent, or never will be."""
        return sum(self._sent)

    def is_ready(self, step: Step) -> bool:
        """Is everything there that the step waits for? Answers cheaply, and False where that takes a closer look."""
        done = self._done
        for number in step.waits:
            if not done[number]:
                return False
        return not step.after

    async def until_ready(self, step: Step) -> bool:
        """Wait until everything is there that the step waits for; False: it goes on without."""
        for key in (*step.waits, *(-1 - number for number in step.after)):
            if self._is_there(key, step.session):
                continue
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.setdefault(key, []).append((step.session, waiter))
            self._blocked[step.number] = waiter
            self.end()
            try:
                await waiter
            finally:
                self.begin()
                released = self._blocked.pop(step.number, None) is None
            if released:
                return False
        return True

    def _is_there(self, key: int, session: int) -> bool:
        """Is it there, for a step of this session?"""
        if key < 0:
            return bool(self._sent[-1 - key])
        return bool(self._done[key] or (self._awaiting[key] and self._steps[key].session != session))
