"""A change between two sides of a comparison.

In: what differs. Out: `Change`, for people and for JSON. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from kwire.analyzer.findings.query import SEVERITIES, Severity

KINDS: Final = (
    "clients",
    "software",
    "settings",
    "brokers",
    "versions",
    "load",
    "records",
    "rates",
    "errors",
    "latency",
)
"""What a change is about, causes before what comes of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that differs. client: the role, None: the cluster. about: the API, where it is about one. low, high:
    the ends of the interval, as a factor or (unit `us`) an amount; None where no interval is needed."""

    severity: Severity
    kind: str
    what: str
    client: str | None
    about: str | None
    before: str
    after: str
    text: str
    low: float | None = None
    high: float | None = None
    unit: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; an end that is infinite (there was nothing before) is null."""
        row = {name: getattr(self, name) for name in self.__slots__}
        return {**row, **{name: finite(row[name]) for name in ("low", "high")}}


def rank(severity: str) -> int:
    """How bad a severity is, from 0."""
    severities: list[str] = [*SEVERITIES]
    return severities.index(severity)


def finite(value: float | None) -> float | None:
    """None for an end of an interval that is infinite: JSON has no number for it."""
    return None if value is None or not math.isfinite(value) else value
