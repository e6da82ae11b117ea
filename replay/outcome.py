"""What became of each captured exchange, and the RUN that says it.

In: outcomes as they are known. Out: a dataset (`analyzer.dataset.Writer`) that needs nothing beside it to be compared:

- `outcomes`: a row per captured exchange; the counts of its actions, and of its verdicts, add up to the captured total;
- `exchanges` and `messages` twice: the captured rows under the capture's name, the replayed ones under
  `replay:CAPTURE` with the captured connection's name and the captured ordinals (`exchange`, and `reply` the same), so
  that the two sides join on (connection, exchange). What was sent to several brokers is stored whole, as it was before
  it was split and after its answers were merged;
- `remaps`: what the target has in place of the capture's values.

Rules: secrets are overwritten; files are there for their owner only; an interrupted run is written too.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

REPLAYED = "replay:"


@dataclass(slots=True)
class Outcome:
    """One captured exchange's row in the making. Times are int nanoseconds since the epoch.

    `request` and `answer` are the frames (without length) as sent and as merged, None where there are none;
    `row` is the captured row of the table `exchanges`."""

    row: dict[str, Any]
    step: int | None
    action: str
    verdict: str
    rule: str | None = None
    reason: str | None = None
    retries: list[str] = field(default_factory=list)
    sent_version: int | None = None
    scheduled_ns: int | None = None
    ready_ns: int | None = None
    sent_ns: int | None = None
    answered_ns: int | None = None
    targets: list[str] = field(default_factory=list)
    request: bytes | None = field(default=None, repr=False)
    answer: bytes | None = field(default=None, repr=False)


def moment(nanoseconds: int | None) -> datetime.datetime | None:
    """A time as the tables have it."""
    if nanoseconds is None:
        return None
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=nanoseconds // 1000)
