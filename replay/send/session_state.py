"""The state of a session while it is sent: planned steps, open connections, and tasks that wait for more.

In: steps as they are planned, answers as they come. Out: bells that ring for waiting tasks. Rule: one task sends a
session's steps in order; code that changes what it waits for rings its bell.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kwire.replay.outcome import Outcome
from kwire.replay.plan.steps import Step
from kwire.replay.remap import retry
from kwire.replay.send.preparation import Job
from kwire.replay.send.routing import Connections


class Bell:
    """Wakes one task, again and again; does nothing if no task waits."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until it rings next."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def ring(self) -> None:
        """Wake the waiting task."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class SessionState:
    """The state of one session.

    - `claimed`: how many more steps may be sent without claiming further ones
    - `more`: rings when steps are planned, or none will come any more (`over`)
    - `fast`: sent on the fast path and not answered yet
    - `landed`: rings when one more of the sent steps has its answer, or none will come
    - `owed`: those jobs that were answered in the capture
    - `lost`: why its connection cannot be opened again
    - `next`: is held until it is due and ready
    """

    def __init__(self, broker: tuple[str, int], user: str | None) -> None:
        self.steps: deque[Step] = deque()
        self.claimed = 0
        self.more = Bell()
        self.over = False
        self.runner: asyncio.Task[None] | None = None
        self.connections = Connections(broker, user)
        self.again = asyncio.Lock()
        self.history = retry.History()
        self.fast: dict[int, tuple[Step, Outcome]] = {}
        self.landed = Bell()
        self.jobs: dict[asyncio.Task[None], Job] = {}
        self.owed: set[asyncio.Task[None]] = set()
        self.lost = ""
        self.next: Step | None = None

    @property
    def in_flight(self) -> int:
        return len(self.fast) + len(self.jobs)
