"""Decides when requests are due if the speed changes over the capture: `0s:1,60s:5,120s:max`. Pure.

In: times of the capture, each with a speed that holds from there on. Out: when a request that was sent at a time of
the capture is due. Rules: one absolute schedule, as with one speed; `max` (as fast as answers allow) can only come
last, because nothing says how long it will take.
"""

from __future__ import annotations

from dataclasses import dataclass

from kwire.replay.plan.selection import moment


@dataclass(frozen=True, slots=True)
class Schedule:
    """Speeds over a capture.

    - `pieces`: (nanoseconds from the capture's start, speed; None: max), in order, the first from 0 on
    - `text`: as the user wrote it
    """

    pieces: tuple[tuple[int, float | None], ...]
    text: str

    def due(self, at_ns: int) -> float:
        """When a request is due, in seconds from the start."""
        seconds = 0.0
        for place, (start, speed) in enumerate(self.pieces):
            if at_ns < start or speed is None:
                break
            end = self.pieces[place + 1][0] if place + 1 < len(self.pieces) else at_ns
            seconds += (min(end, at_ns) - start) / 1e9 / speed
        return seconds

    def speed(self, at_ns: int) -> float | None:
        """The speed at a time of the capture."""
        return next(speed for start, speed in reversed(self.pieces) if start <= max(at_ns, 0))

    def wanted(self, end_ns: int) -> float:
        """Seconds until what is sent at `end_ns` of the capture; at full speed it should take no longer than then."""
        start, speed = self.pieces[-1]
        return self.due(end_ns) + (max(end_ns - start, 0) / 1e9 if speed is None else 0.0)


def speed(text: str) -> float | None:
    """Parse a speed: a positive number, or `max` (None). Raises ValueError."""
    if text == "max":
        return None
    number = float(text)
    if not 0 < number < 1e6:
        raise ValueError(text)
    return number


def schedule(text: str) -> Schedule:
    """Parse `TIME:SPEED,TIME:SPEED,...`, the first from `0s` on. Raises ValueError."""
    pieces: list[tuple[int, float | None]] = []
    for part in text.split(","):
        when, colon, how = part.strip().rpartition(":")
        at = moment(when)
        later = at.ns > pieces[-1][0] and pieces[-1][1] is not None if pieces else at.ns == 0
        if not colon or at.absolute or not later:
            raise ValueError(part)
        pieces.append((at.ns, speed(how)))
    return Schedule(tuple(pieces), text)
