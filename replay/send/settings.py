"""How a run is sent: its speed, and the bounds of every wait and every buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

from kwire.analyzer.options.replay import SILENCE_SECONDS
from kwire.replay.plan.schedule import Schedule
from kwire.replay.remap.retry import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is sent.

    - `speed`: 1 is as captured, None as fast as answers allow; `schedule`: if it changes over the capture (`speed` is
      then that of its first part)
    - in seconds: how long to wait for an answer (a join waits for others), how long to try to connect to a broker, how
      long after the end to wait for answers that the capture lacks too, and after what silence of the whole target the
      run ends (an answer that took long in the capture too may take that long besides)
    - `suspicion`: after what silence a new connection asks whether the target is there at all; if it is not for as
      long as a broker is tried, the run ends
    - `backlog_bytes`, `in_flight`: what a connection may have unsent, and a session unanswered, before the session
      waits; no client pipelines this much
    - `unsent_bytes`: what all sessions together may have unsent; each may have its part of it, and never less than 64
      KiB
    - `ahead`, `ahead_requests`, `ahead_bytes`: how far planning may be ahead of sending (seconds), and of what is done
      (requests, bytes of them and their answers), if steps are planned during the run; `horizon`: how many requests
      back nothing waits for any more there
    """

    speed: float | None = 1.0
    schedule: Schedule | None = None
    answer_timeout: float = 90.0
    reconnect: float = 30.0
    grace: float = 1.0
    silence: float = SILENCE_SECONDS
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
