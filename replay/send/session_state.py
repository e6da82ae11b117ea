"""What a session has planned and open while it is sent, and who waits for more of it.

In: steps as they are planned, answers as they come. Out: futures that are told. Rule: one task sends a session's steps
in order; whoever changes what it waits for tells it here.
"""

from __future__ import annotations

import asyncio
from collections import deque

from replay.outcome import Outcome
from replay.plan.steps import Step
from replay.remap import retry
from replay.send.preparing import Job
from replay.send.routing import Connections


class SessionState:
    """Of one session. `claimed`: so many more steps may be sent without claiming further ones; `more`: told of each
    step that is planned, while there is none; `over`: no more steps come; `quick`: sent the short way and not answered
    yet; `landed`: told of each answer, while somebody waits for one; `owed`: of the jobs, those that were answered in
    the capture; `lost`: why its connection cannot be opened again; `next`: is held until it is due and ready."""

    def __init__(self, broker: tuple[str, int], user: str | None) -> None:
        self.steps: deque[Step] = deque()
        self.claimed = 0
        self.more: asyncio.Future[None] | None = None
        self.over = False
        self.runner: asyncio.Task[None] | None = None
        self.connections = Connections(broker, user)
        self.again = asyncio.Lock()
        self.history = retry.History()
        self.quick: dict[int, tuple[Step, Outcome]] = {}
        self.landed: asyncio.Future[None] | None = None
        self.jobs: dict[asyncio.Task[None], Job] = {}
        self.owed: set[asyncio.Task[None]] = set()
        self.lost = ""
        self.next: Step | None = None

    @property
    def in_flight(self) -> int:
        return len(self.quick) + len(self.jobs)

    async def planned(self) -> None:
        """Wait until there are more steps, or none will come."""
        self.more = asyncio.get_running_loop().create_future()
        await self.more

    def has_more(self) -> None:
        if self.more is not None and not self.more.done():
            self.more.set_result(None)

    async def landing(self) -> None:
        """Wait until one more of the steps that were sent has its answer, or none will come."""
        self.landed = asyncio.get_running_loop().create_future()
        await self.landed

    def has_landed(self) -> None:
        if self.landed is not None and not self.landed.done():
            self.landed.set_result(None)
