"""What a session has planned and open while it is sent, and who waits for more of it.

In: steps as they are planned, answers as they come. Out: bells that ring for who waits. Rule: one task sends a
session's steps in order; whoever changes what it waits for tells it here.
"""

from __future__ import annotations

import asyncio
from collections import deque

from replay.outcome import Outcome
from replay.plan.steps import Step
from replay.remap import retry
from replay.send.preparation import Job
from replay.send.routing import Connections


class Bell:
    """What one task waits for, again and again; it rings for nobody where nobody waits."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Until it rings next."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def ring(self) -> None:
        """Tell who waits."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class SessionState:
    """Of one session. `claimed`: so many more steps may be sent without claiming further ones; `more`: rings where
    steps are planned, or none will come any more (`over`); `quick`: sent the short way and not answered yet; `landed`:
    rings where one more of the steps that were sent has its answer, or none will come; `owed`: of the jobs, those that
    were answered in the capture; `lost`: why its connection cannot be opened again; `next`: is held until it is due and
    ready."""

    def __init__(self, broker: tuple[str, int], user: str | None) -> None:
        self.steps: deque[Step] = deque()
        self.claimed = 0
        self.more = Bell()
        self.over = False
        self.runner: asyncio.Task[None] | None = None
        self.connections = Connections(broker, user)
        self.again = asyncio.Lock()
        self.history = retry.History()
        self.quick: dict[int, tuple[Step, Outcome]] = {}
        self.landed = Bell()
        self.jobs: dict[asyncio.Task[None], Job] = {}
        self.owed: set[asyncio.Task[None]] = set()
        self.lost = ""
        self.next: Step | None = None

    @property
    def in_flight(self) -> int:
        return len(self.quick) + len(self.jobs)
