"""The outcome of each captured exchange, and counts of outcomes.

An outcome becomes a row of the RUN (`run_writer`), a dataset that can be compared without anything else:

- `outcomes`: a row per captured exchange; the counts of its actions, and of its verdicts, add up to the captured total
- `exchanges` and `messages` twice: the captured rows under the capture's name, the replayed ones under
  `replay:CAPTURE` with the captured connection's name and the captured ordinals (`exchange` and `reply`), so that both
  sides join on (connection, exchange). A request that was sent to several brokers is stored whole, as it was before it
  was split and after its answers were merged
- `remaps`: the target's values for those of the capture
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(slots=True)
class Outcome:
    """The outcome of one captured exchange, before it is a row. Times are int nanoseconds since the epoch.

    - `request`, `answer`: the frames (without length) as sent and as merged, None if there are none
    - `captured_answer`: the answer to compare with
    - `row`: the captured row of the table `exchanges`
    - `discarded`: answers in place of which the request was sent again: the rule, the error (None: its connection ended
      without one), and whether the target may not be ready yet for what it names
    - `planned_ns`: when the request was planned, if that was after it was due
    """

    row: Mapping[str, Any]
    step: int | None
    action: str
    verdict: str
    rule: str | None = None
    reason: str | None = None
    retries: list[str] = field(default_factory=list)
    discarded: list[tuple[str, int | None, bool]] = field(default_factory=list)
    sent_version: int | None = None
    scheduled_ns: int | None = None
    planned_ns: int | None = None
    ready_ns: int | None = None
    first_sent_ns: int | None = None
    sent_ns: int | None = None
    answered_ns: int | None = None
    targets: list[str] = field(default_factory=list)
    request: bytes | bytearray | None = field(default=None, repr=False)
    answer: bytes | None = field(default=None, repr=False)
    captured_answer: bytes | None = field(default=None, repr=False)


class Durations:
    """Many durations in little memory, as counts of each value. Once there are `DISTINCT` different values, only the
    first three digits of those above a thousand are kept, so a quantile is right to a thousandth."""

    DISTINCT: Final = 50_000

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._often: Counter[int] = Counter(values)
        self._rough = False
        self._coarsen()

    def append(self, value: int) -> None:
        """Add a duration."""
        self._often[_rough(value) if self._rough else value] += 1
        if len(self._often) > self.DISTINCT and not self._rough:
            self._coarsen()

    def __iadd__(self, others: Durations | Iterable[int]) -> Durations:
        self._often.update(others._often if isinstance(others, Durations) else others)
        self._rough |= isinstance(others, Durations) and others._rough
        self._coarsen()
        return self

    def _coarsen(self) -> None:
        if self._rough or len(self._often) > self.DISTINCT:
            self._rough = True
            often, self._often = self._often, Counter()
            for value, count in often.items():
                self._often[_rough(value)] += count

    def __len__(self) -> int:
        return self._often.total()

    def __iter__(self) -> Iterator[int]:
        """Iterate in order of size."""
        for value in sorted(self._often):
            yield from itertools.repeat(value, self._often[value])

    def at(self, place: int) -> int:
        """The duration at this position, in order of size."""
        for value in sorted(self._often):
            place -= self._often[value]
            if place < 0:
                return value
        raise IndexError(place)


def _rough(value: int) -> int:
    """Round a duration to its first three digits."""
    scale: int = 10 ** max(len(str(abs(value))) - 3, 0)
    return value // scale * scale


@dataclass(slots=True)
class Counts:
    """Counts of outcomes.

    - `total`: the sum of `actions`, and of `verdicts`
    - `skipped`, `not_sent`: by rule
    - `unanswered`: why the first request that expected an answer got none; `silent`: how many got none, by API
    - `excess_us`: by API, how much longer answers took than the captured ones, from the first time that a request was
      sent
    - `loop_lags_us`: how late the sender's event loop came to what was due, each 50 ms
    - `apart`: by group, requests of members that the target lost too often (`rejoins_spent`)
    """

    actions: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    not_sent: Counter[str] = field(default_factory=Counter)
    unanswered: str = ""
    silent: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    tool_errors: int = 0
    lags_us: Durations | list[int] = field(default_factory=Durations)
    queues_us: Durations | list[int] = field(default_factory=Durations)
    latencies_us: Durations | list[int] = field(default_factory=Durations)
    loop_lags_us: Durations | list[int] = field(default_factory=Durations)
    excess_us: Counter[str] = field(default_factory=Counter)
    apart: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.actions.values())

    def add(self, other: Counts) -> None:
        """Add the counts of another."""
        for own, other_values in (
            (self.actions, other.actions),
            (self.verdicts, other.verdicts),
            (self.skipped, other.skipped),
            (self.not_sent, other.not_sent),
            (self.retries, other.retries),
            (self.excess_us, other.excess_us),
            (self.apart, other.apart),
            (self.silent, other.silent),
        ):
            own.update(other_values)
        self.unanswered = self.unanswered or other.unanswered
        self.duplicates += other.duplicates
        self.tool_errors += other.tool_errors
        self.lags_us += other.lags_us  # type: ignore[operator]
        self.queues_us += other.queues_us  # type: ignore[operator]
        self.latencies_us += other.latencies_us  # type: ignore[operator]
        self.loop_lags_us += other.loop_lags_us  # type: ignore[operator]

    def leave(self, count: int) -> None:
        """Count requests that were not read, for the run had ended."""
        if count > 0:
            self.actions["not_sent"] += count
            self.verdicts["not_sent"] += count
            self.not_sent["aborted"] += count

    def as_dict(self) -> dict[str, Any]:
        """The counts as `_kwire.json` and `--json` have them."""
        return {
            "total": self.total,
            "actions": dict(sorted(self.actions.items())),
            "verdicts": dict(sorted(self.verdicts.items())),
            "skipped": dict(sorted(self.skipped.items())),
            "not_sent": dict(sorted(self.not_sent.items())),
            "retries": dict(sorted(self.retries.items())),
            "groups_apart": dict(sorted(self.apart.items())),
            "duplicates": self.duplicates,
            "tool_errors": self.tool_errors,
            "lag_us": quantiles(self.lags_us),
            "queue_us": quantiles(self.queues_us),
            "latency_us": quantiles(self.latencies_us),
            "loop_lag_us": quantiles(self.loop_lags_us),
        }


def quantiles(values: Sequence[int] | Durations) -> dict[str, int]:
    """Median, 99th percentile (the smallest value that at least that many do not exceed) and largest; empty if there
    are no durations."""
    if not values:
        return {}
    half, most = (-(-percent * len(values) // 100) - 1 for percent in (50, 99))
    if isinstance(values, Durations):
        return {"p50": values.at(half), "p99": values.at(most), "max": values.at(len(values) - 1)}
    ordered = sorted(values)
    return {"p50": ordered[half], "p99": ordered[most], "max": ordered[-1]}
