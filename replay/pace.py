"""Did a run keep its pace? How long it took and what its requests waited for, against the capture.

In: what was planned and counted. Out: a `Pace`. Pure. Rule: a target that is slower slows a replay down by itself; that
is no fault of the replayer, and no success either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replay.outcome import Counts, quantiles
from replay.plan.steps import Plan

SHARE: Final = 0.2
SECONDS: Final = 5.0
"""A run may take so much longer than the captured exchanges did, and a request wait so much longer; beyond both it is
slower."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`wanted`, `took`: seconds of the sending at this speed (at full speed: as captured), and as it was; `queue`: the
    99th percentile of what requests waited for answers and connections, in seconds (None at full speed, where all are
    due at once)."""

    speed: float | None
    wanted: float
    took: float
    queue: float | None
    why: str

    @property
    def slower(self) -> bool:
        return self._beyond(self.took - self.wanted) or (self.queue is not None and self._beyond(self.queue))

    def _beyond(self, seconds: float) -> bool:
        return seconds > SECONDS and seconds > SHARE * self.wanted

    def text(self) -> str:
        """For a person, in a line; empty where the pace was kept."""
        if not self.slower:
            return ""
        than = "captured" if self.speed in (None, 1) else f"at --speed {self.speed:g}"
        said = f"slower than {than}: took {self.took:.1f} s in place of {self.wanted:.1f} s"
        if self.speed is not None and self._beyond(self.took - self.wanted):
            said += f", {100 * self.wanted / self.took:.0f} % of that rate"
        if self.queue is not None and self._beyond(self.queue):
            said += f"; one request in a hundred waited for more than {self.queue:.1f} s"
        return f"{said}; {self.why}" if self.why else said


def pace(counts: Counts, planned: Plan, speed: float | None, seconds: float) -> Pace:
    """Of a run whose sending took so many seconds."""
    ends = (step.at_ns + (step.request.answered_ns or step.request.sent_ns) - step.request.sent_ns
            for step in planned.steps)  # fmt: skip
    wanted = max(ends, default=0) / 1e9 / (speed or 1.0)
    queue = quantiles(counts.queues_us).get("p99", 0) / 1e6 if speed is not None else None
    return Pace(speed, wanted, seconds, queue, _why(counts))


def _why(counts: Counts) -> str:
    """Which API's answers took most of what the run took longer, and what was sent again most often."""
    said = []
    for api, excess in counts.excess_us.most_common(1):
        if excess > 0:
            said.append(f"answers to {api} took {excess / 1e6:.1f} s longer in all than captured")
    for rule, count in counts.retries.most_common(1):
        said.append(f"{rule} {count:,} times")
    return ", ".join(said)
