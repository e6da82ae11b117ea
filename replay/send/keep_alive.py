"""Keeps members that the replayer holds back in their groups, with heartbeats of its own.

A client sends heartbeats while its other requests wait. A replayed member sends its captured requests, each when its
turn comes; and a broker expires a member that is silent for longer than the session timeout, which makes the whole
group join again (KIP-62).

In: a plan's steps, which of them were sent and answered, what is known of the members. Out: heartbeats. Rules

- Only for members that the target has let in, and that have requests left to send: a member that fell silent for good
  in the capture expires here too. A captured silence that was long enough to expire is not filled, before its end
- Of what the target answers only epoch and assignment are kept (KIP-848), and errors, which are recorded with the
  member's next request
- While a request of a member is on its way no heartbeat is sent for it
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis
from kwire.replay.plan.steps import Step
from kwire.replay.remap.groups import Groups, Who
from kwire.replay.send.dependencies import Waiting
from kwire.replay.send.link import LinkError

KEPT_ALIVE: Final = "kept_alive"
"""The note that counts the heartbeats, and the rule of errors that they were answered with."""

_SPEAKS: Final = frozenset(
    (
        *apis.GROUP_HEARTBEATS,
        api_keys.JOIN_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.HEARTBEAT,
        api_keys.LEAVE_GROUP,
        api_keys.OFFSET_COMMIT,
        api_keys.TXN_OFFSET_COMMIT,
    )
)
_TICK: Final = 0.5
_BEATS: Final = 4
"""Heartbeats per session timeout: clients send three."""


@dataclass(slots=True)
class _Turns:
    """The steps of a member that have no outcome yet, in order; when its last answer came (the loop's time), and how
    far into the capture that was."""

    steps: deque[Step] = field(default_factory=deque)
    last_answer: float = 0.0
    at_ns: int = 0


class KeepAlive:
    """Keeps the members of one run alive, whose steps are announced as they are planned (`expect`).

    `more`: there will be others; `due`: when a step is due, in the loop's time; `ask`: asks a group's coordinator
    (`Asker.ask_as_member`).
    """

    def __init__(
        self,
        waiting: Waiting,
        groups: Groups,
        ask: Callable[[str, int, int, Body], Awaitable[Body]],
        due: Callable[[Step], float],
        notes: Counter[str],
    ) -> None:
        self.more = False
        self._turns: dict[Who, _Turns] = {}
        self._waiting = waiting
        self._groups = groups
        self._ask = ask
        self._due = due
        self._notes = notes
        self._loop = asyncio.get_running_loop()
        self._beating: dict[Who, asyncio.Task[None]] = {}
        self.errors: dict[int, list[tuple[int, float]]] = {}
        """Errors that heartbeats were answered with, and when (the loop's time), by the number of the member's next
        step."""

    def expect(self, step: Step) -> None:
        """Announce a step that will be sent."""
        if (who := _speaker(step)) is not None:
            turns = self._turns.get(who)
            if turns is None:
                turns = self._turns[who] = _Turns(last_answer=self._loop.time() if self.more else 0.0)
            turns.steps.append(step)

    def will_speak(self, who: Who) -> bool:
        """Whether a member has requests left to send."""
        turns = self._turns.get(who)
        return self.more or (turns is not None and not self._waiting.is_done(turns.steps[-1].number))

    async def run(self) -> None:
        """Send heartbeats until no member has requests left, or this is cancelled."""
        try:
            while self._turns or self.more:
                await asyncio.sleep(_TICK)
                for who in self._silent(self._loop.time()):
                    self._beating[who] = self._loop.create_task(self._beat(who, self._turns[who].steps[0]))
        finally:
            beating = list(self._beating.values())
            for task in beating:
                task.cancel()
            await asyncio.gather(*beating, return_exceptions=True)

    def _silent(self, now: float) -> list[Who]:
        """The members that need a heartbeat now."""
        return [who for who, turns in list(self._turns.items()) if self._is_silent(who, turns, now)]

    def _is_silent(self, who: Who, turns: _Turns, now: float) -> bool:
        steps = turns.steps
        while steps and self._waiting.is_done(steps[0].number):
            turns.last_answer, turns.at_ns = now, steps.popleft().at_ns
        if not steps:
            del self._turns[who]
            return False
        if who in self._beating or self._waiting.is_sent(steps[0].number):
            turns.last_answer = now
            return False
        timeout = self._groups.session_timeout(who)
        if timeout is None or now - turns.last_answer < timeout / _BEATS:
            return False
        was_silent = (steps[0].at_ns - turns.at_ns) / 1e9 >= timeout
        return not was_silent or self._due(steps[0]) <= now

    async def _beat(self, who: Who, before: Step) -> None:
        """Send a heartbeat of a member before its next step."""
        api_key, version, body = self._groups.heartbeat(who)
        try:
            with contextlib.suppress(LinkError, TimeoutError):
                answer = await self._ask(who[0], api_key, version, body)
                self._groups.learn_heartbeat(who, body, answer)
                self._notes[KEPT_ALIVE] += 1
                if answer["errorCode"] and not self._waiting.is_done(before.number):
                    self.errors.setdefault(before.number, []).append((answer["errorCode"], self._loop.time()))
        finally:
            del self._beating[who]


def _speaker(step: Step) -> Who | None:
    """The group and the member, by its captured id, that a step speaks for; None if there is none, or it has no id
    yet."""
    if step.request.api_key not in _SPEAKS:
        return None
    body = step.fresh()
    members = [body.get("memberId"), *(entry["memberId"] for entry in body.get("members") or ())]
    member = next((entry for entry in members if entry), None)
    return (body["groupId"], member) if member else None
