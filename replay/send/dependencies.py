"""What steps wait for: answers that their clients had, and requests that others had sent.

In: what was sent, what has its answer, what is on its way. Out: whoever waited goes on. Rule: nobody waits for ever.
When nothing is on its way and nothing will come, the earliest of those who wait goes on without it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from replay.plan.steps import Step
from replay.remap import share_sessions

_TRIMMED: Final = 1 << 16
"""Of how many steps that are done, and before which all are, the lists are rid at once."""


class Waiting:
    """Of all steps of a run, which are numbered from 0, as far as they were announced (`expect`). Those before `low`
    are done, and forgotten."""

    def __init__(self, steps: int = 0) -> None:
        self.low = 0
        self._loop = asyncio.get_running_loop()
        self._done = bytearray(steps)
        self._sent = bytearray(steps)
        self._sent_count = 0
        self._awaiting: dict[int, Step] = {}  # answered, and sent again until the group rebalances
        # By a step's number who waits for its answer, by -1 - number who waits for it to be sent.
        self._waiters: dict[int, list[tuple[Step, asyncio.Future[None]]]] = {}
        self._blocked: dict[int, asyncio.Future[None]] = {}
        self._busy = 0

    def expect(self, steps: int) -> None:
        """So many more steps are there; what was done of the first ones is forgotten now and then."""
        self._done.extend(bytes(steps))
        self._sent.extend(bytes(steps))
        first = self._done.find(0)
        if first >= _TRIMMED:
            del self._done[:first], self._sent[:first]
            self.low += first

    # --- what happens ---

    def begin(self) -> None:
        """Something is on its way from now on that others may wait for: a session that sends, an awaited answer."""
        self._busy += 1

    def end(self) -> None:
        """It is not any more."""
        self._busy -= 1
        if self._busy == 0 and self._blocked:
            self._loop.call_soon(self._release)  # sessions that were given steps just now have not begun yet

    def _release(self) -> None:
        if self._busy == 0 and self._blocked and not any(waiter.done() for waiter in self._blocked.values()):
            self._blocked.pop(min(self._blocked)).set_result(None)

    def sent(self, number: int) -> None:
        """A step was sent, or never will be."""
        at = number - self.low
        if at >= 0 and not self._sent[at]:
            self._sent[at] = 1
            self._sent_count += 1
            self._wake(-1 - number)

    def done(self, number: int) -> None:
        """A step has its outcome."""
        self.sent(number)
        at = number - self.low
        if at >= 0 and not self._done[at]:
            self._done[at] = 1
            self._awaiting.pop(number, None)
            self._wake(number)

    def let_others_go_on(self, step: Step) -> None:
        """A member awaits its group's rebalance, which needs the other members' next requests: only its own connection
        still waits, and what it fetches of a share group. (A member that joins again makes such a rebalance.)"""
        self._awaiting[step.number] = step
        for waiting, waiter in self._waiters.get(step.number, ()):
            if not _has_to_wait(waiting, step) and not waiter.done():
                waiter.set_result(None)

    def _wake(self, key: int) -> None:
        for _, waiter in self._waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    # --- who asks ---

    def is_done(self, number: int) -> bool:
        """Has the step its outcome?"""
        at = number - self.low
        return at < 0 or bool(self._done[at])

    def is_sent(self, number: int) -> bool:
        """Was the step sent, or will it never be?"""
        at = number - self.low
        return at < 0 or bool(self._sent[at])

    def sent_count(self) -> int:
        """How many steps were sent, or never will be."""
        return self._sent_count

    def is_ready(self, step: Step) -> bool:
        """Is everything there that the step waits for? Answers cheaply, and False where that takes a closer look."""
        done, low = self._done, self.low
        for number in step.waits:
            if number >= low and not done[number - low]:
                return False
        return not step.after

    async def until_ready(self, step: Step) -> bool:
        """Wait until everything is there that the step waits for; False: it goes on without."""
        for key in (*step.waits, *(-1 - number for number in step.after)):
            if self._is_there(key, step):
                continue
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.setdefault(key, []).append((step, waiter))
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

    def _is_there(self, key: int, step: Step) -> bool:
        """Is it there, for this step?"""
        if key < 0:
            return self.is_sent(-1 - key)
        awaiting = self._awaiting.get(key)
        return self.is_done(key) or (awaiting is not None and not _has_to_wait(step, awaiting))


def _has_to_wait(step: Step, awaiting: Step) -> bool:
    """Does a step need the rebalance that a member awaits? Where the broker assigns partitions to members of a share
    group it has made their state first; before that it has none to fetch from (KIP-932)."""
    if step.session == awaiting.session:
        return True
    return step.request.api_key in share_sessions.APIS and step.body["memberId"] == awaiting.body.get("memberId")
