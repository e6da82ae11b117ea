"""Compares how long a run took, and how long its requests waited, with the capture.

In: what was planned and counted. Out: a `Pace`. Pure. Rule: a slow target slows the replay down by itself, which is
neither the replayer's fault nor a success. If nothing waited for the target because the replayer was busy all the
time, it is the replayer's fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kwire.replay.outcome import Counts, quantiles
from kwire.replay.plan.schedule import Schedule
from kwire.replay.plan.steps import Plan, Step

SHARE: Final = 0.2
SECONDS: Final = 5.0
"""A run may take this much longer than the captured exchanges did, and a request may wait this much longer; beyond
both limits the run is slower."""


BUSY: Final = 0.9
"""Part of its one core beyond which the replayer had no time to wait for the target."""


_TOLD_US: Final = 50_000
"""Microseconds below which a delay reads as 0.0 s, and is not given as a reason."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run took.

    - `wanted`, `took`: seconds of sending as planned at this speed (at full speed: as captured), and as measured
    - `queue`: the 99th percentile of how long requests waited for answers and connections, in seconds (None at full
      speed, where all are due at once)
    - `busy`: the part of the sending in which the replayer used a core; 0 if unknown
    """

    speed: float | None
    wanted: float
    took: float
    queue: float | None
    why: str
    busy: float = 0.0
    schedule: str = ""

    @property
    def own(self) -> bool:
        """Whether the replayer, and not the target, kept a schedule from being met."""
        return self.speed is not None and self.slower and self.busy >= BUSY

    @property
    def slower(self) -> bool:
        return self._beyond(self.took - self.wanted) or (self.queue is not None and self._beyond(self.queue))

    def _beyond(self, seconds: float) -> bool:
        return seconds > SECONDS and seconds > SHARE * self.wanted

    def text(self) -> str:
        """One line for the user; empty if the pace was kept."""
        if not self.slower:
            return ""
        than = "captured" if self.speed in (None, 1) else f"at --speed {self.speed:g}"
        than = f"at --speed {self.schedule}" if self.schedule else than
        text = f"slower than {than}: took {self.took:.1f} s in place of {self.wanted:.1f} s"
        if self.speed is not None and self._beyond(self.took - self.wanted):
            text += f", {100 * self.wanted / self.took:.0f} % of that rate"
        if self.queue is not None and self._beyond(self.queue):
            text += f"; one request in a hundred waited for more than {self.queue:.1f} s"
        why = f"the replayer was busy for {100 * self.busy:.0f} % of the time" if self.own else self.why
        return f"{text}; {why}" if why else text


def end_ns(steps: Iterable[Step]) -> int:
    """When the last answer came in the capture, in nanoseconds from its start."""
    ends = (step.at_ns + (step.request.answered_ns or step.request.sent_ns) - step.request.sent_ns for step in steps)
    return max(ends, default=0)


def pace(
    counts: Counts,
    planned: Plan | int,
    speed: float | None,
    seconds: float,
    busy: float = 0.0,
    schedule: Schedule | None = None,
) -> Pace:
    """Measure a run that sent for this many seconds, using a core for the part `busy`. `planned`: what was sent, or
    when its last answer came in the capture, in nanoseconds from its start (`end_ns`)."""
    end = planned if isinstance(planned, int) else end_ns(planned.steps)
    wanted = schedule.wanted(end) if schedule is not None else end / 1e9 / (speed or 1.0)
    scheduled = speed is not None and (schedule is None or schedule.pieces[-1][1] is not None)
    queue = quantiles(counts.queues_us).get("p99", 0) / 1e6 if scheduled else None
    return Pace(speed, wanted, seconds, queue, _why(counts), busy, schedule.text if schedule is not None else "")


def _why(counts: Counts) -> str:
    """Explain a slow run: the API whose answers never came or took longest, and the request that was repeated most."""
    text = []
    for api, count in counts.silent.most_common(1):  # each was waited for, and has no time that counts as an answer's
        text.append(f"{count:,} request{'s' * (count != 1)} of {api} got no answer")
    for api, excess in counts.excess_us.most_common(1):
        if excess >= _TOLD_US:
            text.append(f"answers to {api} took {excess / 1e6:.1f} s longer in all than captured")
    for rule, count in counts.retries.most_common(1):
        text.append(f"{rule} {count:,} times")
    return ", ".join(text)
