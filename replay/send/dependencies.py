"""Lets steps wait for what they depend on: answers that their clients had, and requests of other sessions.

In: what was sent, what has its answer, what is on its way. Out: waiting steps go on. Rule: no step waits for ever. If
nothing is on its way and nothing will come, the earliest waiting step goes on without it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kwire.replay.plan.steps import Step
from kwire.replay.remap import share_sessions

_TRIMMED: Final = 1 << 16
"""How many finished steps at the beginning the lists collect before they are dropped."""


class Waiting:
    """The state of all steps of a run, numbered from 0, as far as they were announced (`expect`). Those before `low`
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
        """Announce more steps; now and then the first ones, which are done, are forgotten."""
        self._done.extend(bytes(steps))
        self._sent.extend(bytes(steps))
        first = self._done.find(0)
        if first >= _TRIMMED:
            del self._done[:first], self._sent[:first]
            self.low += first

    # --- what happens ---

    def begin(self) -> None:
        """Note that something is on its way that others may wait for: a session that sends, an awaited answer."""
        self._busy += 1

    def end(self) -> None:
        """Note that it is not on its way any more."""
        self._busy -= 1
        if self._busy == 0 and self._blocked:
            self._loop.call_soon(self._release)  # sessions that were given steps just now have not begun yet

    def _release(self) -> None:
        if self._busy == 0 and self._blocked and not any(waiter.done() for waiter in self._blocked.values()):
            self._blocked.pop(min(self._blocked)).set_result(None)

    def sent(self, number: int) -> None:
        """Note that a step was sent, or never will be."""
        at = number - self.low
        if at >= 0 and not self._sent[at]:
            self._sent[at] = 1
            self._sent_count += 1
            self._wake(-1 - number)

    def done(self, number: int) -> None:
        """Note that a step has its outcome."""
        self.sent(number)
        at = number - self.low
        if at >= 0 and not self._done[at]:
            self._done[at] = 1
            self._awaiting.pop(number, None)
            self._wake(number)

    def let_others_go_on(self, step: Step) -> None:
        """Let the others go on while a member awaits its group's rebalance, which needs their next requests.

        Only its own connection still waits, and its fetches of a share group. (A member that joins again causes such a
        rebalance.)
        """
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
        """Whether the step has its outcome."""
        at = number - self.low
        return at < 0 or bool(self._done[at])

    def is_sent(self, number: int) -> bool:
        """Whether the step was sent, or never will be."""
        at = number - self.low
        return at < 0 or bool(self._sent[at])

    def sent_count(self) -> int:
        """How many steps were sent, or never will be."""
        return self._sent_count

    def is_ready(self, step: Step) -> bool:
        """Whether everything is there that the step waits for. Cheap: false if that takes a closer look."""
        done, low = self._done, self.low
        for number in step.waits:
            if number >= low and not done[number - low]:
                return False
        return not step.after

    async def until_ready(self, step: Step) -> bool:
        """Wait until everything is there that the step waits for; false: it goes on without."""
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
        """Whether it is there, for this step."""
        if key < 0:
            return self.is_sent(-1 - key)
        awaiting = self._awaiting.get(key)
        return self.is_done(key) or (awaiting is not None and not _has_to_wait(step, awaiting))


def _has_to_wait(step: Step, awaiting: Step) -> bool:
    """Whether a step needs the rebalance that a member awaits. The broker of a share group has created its state by the
    time it assigns partitions; before that the member has nothing to fetch from (KIP-932)."""
    if step.session == awaiting.session:
        return True
    return step.request.api_key in share_sessions.APIS and step.body["memberId"] == awaiting.body.get("memberId")
