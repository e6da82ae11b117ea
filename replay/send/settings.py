"""How a run is sent: its speed, and the bounds of every wait and every buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

from replay.plan.schedule import Schedule
from replay.remap.retry import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    """speed: 1 is as captured, None as fast as answers allow; schedule: where it changes on the way (speed is then that
    of its first part). Seconds: how long an answer is waited for (a join waits
    for others), how long a broker is dialled again, how long after the end answers that the capture lacks too are
    waited for, and after what silence of the whole target the run ends (longer than an answer is waited for, so that a
    connection that went dead is first opened again). suspicion: after what silence a new connection asks whether the
    target is there at all; one that is not, for as long as a broker is dialled, ends the run. backlog_bytes, in_flight:
    what a connection may have unsent, and a session unanswered, before the session waits; no client pipelines as much
    as that. unsent_bytes: what all sessions together may have unsent; each may have its part of it, and never less than
    64 KiB. ahead, ahead_requests, ahead_bytes: how far what is planned may be ahead of what is sent (seconds), and of
    what is done (requests, bytes of theirs and their answers'), where it is planned on the way; horizon: how many
    requests back nobody waits for any more there."""

    speed: float | None = 1.0
    schedule: Schedule | None = None
    answer_timeout: float = 90.0
    reconnect: float = 30.0
    grace: float = 1.0
    silence: float = 120.0
    suspicion: float = 5.0
    backlog_bytes: int = 4 << 20
    unsent_bytes: int = 256 << 20
    in_flight: int = 1000
    ahead: float = 10.0
    ahead_requests: int = 20_000
    ahead_bytes: int = 128 << 20
    horizon: int = 1 << 19
    limits: Limits = field(default_factory=Limits)

    def due(self, at_ns: int) -> float:
        """When what was sent at a time of the capture is due, in seconds from the start."""
        if self.schedule is not None:
            return self.schedule.due(at_ns)
        return 0.0 if self.speed is None else at_ns / 1e9 / self.speed

    def speed_at(self, at_ns: int) -> float | None:
        """The speed at a time of the capture; None: max."""
        return self.speed if self.schedule is None else self.schedule.speed(at_ns)
