"""Define rules of findings, and their matches.

In: functions decorated with `rule`, one a code. Out: `RULES`, in order of their families. The documentation
(`FINDINGS.md`, `kwire findings --explain`) is generated from their texts (`manual`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.query import SEVERITIES, Evidence, Query, Severity

FAMILIES = {
    "quality": "What the capture itself lacks. Said first, for it silences others.",
    "network": "TCP, and connections that come and go.",
    "errors": "What brokers answered with an error, where no other rule says it better.",
    "latency": "What answers waited for: the broker, its followers, quotas, the client's own requests.",
    "produce": "Batches written: refused, repeated, damaged, small.",
    "fetch": "Reading: positions lost, readers behind, commits.",
    "groups": "Groups of consumers: rebalances and what sets them off.",
    "transactions": "Transactions and idempotent producers.",
    "cluster": "Topics, leaders, addresses.",
    "security": "Who may, who may not, and what crosses the network in the clear.",
    "versions": "Versions of clients against what brokers take.",
    "protocol": "Messages that are not as Kafka's protocol has them.",
}
"""Families of rules, in the order in which they are reported."""


@dataclass(frozen=True, slots=True)
class Match:
    """A match of a rule. Times in us since the epoch. `rows`: the exchanges that show it, as rows of
    `capture.exchanges`: first, worst, last; `links`: connections, where there is no exchange. `severity`: if it is not
    the rule's."""

    text: str
    count: int
    since: int | None = None
    until: int | None = None
    who: Mapping[str, str | None] = field(default_factory=dict)
    what: Mapping[str, str | None] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    severity: Severity | None = None
    cause: str | None = None
    proven: bool | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of `findings`, but for the capture's name."""

    severity: Severity
    code: str
    family: str
    text: str
    who: dict[str, str]
    what: dict[str, str]
    count: int
    since: int | None
    until: int | None
    cause: str | None
    proven: bool | None
    advice: str
    first: Evidence | None
    worst: Evidence | None
    last: Evidence | None


class Rule(NamedTuple):
    """A rule. `sentence`: an example of its text; `why`: the reason for its threshold; `suppressed_when`: when it
    reports nothing; `evidence`: the traffic that proves it; `limits`: its thresholds by name; `depends_on`: what else
    of a `Query` it depends on: policies, what to look for, or `target`; `by_clock`: it uses the order or the length of
    times; `package`: the installed package that declares it, None: kwire itself."""

    code: str
    family: str
    severity: Severity
    sentence: str
    why: str
    suppressed_when: str
    advice: str
    evidence: str
    limits: Mapping[str, float]
    depends_on: frozenset[str]
    by_clock: bool
    check: Check
    package: str | None = None


class Limits:
    """The thresholds of a rule, as attributes."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None


Check: TypeAlias = Callable[[CaptureFrame, Limits], Iterator[Match]]
"""Finds the matches of a rule in a capture point."""

POLICIES = {"acks": "all", "compression": "required", "tls": "required"}
"""What `--policy NAME=VALUE` takes: a fact that is a note becomes a rule."""

_CLOCK = " The capture's clock was set back (capture-clock-back)."

RULES: dict[str, Rule] = {}
"""By code, families in order; filled when `kwire.analyzer.findings.evaluate` is imported."""


def rule(
    family: str,
    code: str,
    severity: Severity,
    sentence: str,
    *,
    why: str,
    suppressed_when: str,
    advice: str,
    evidence: str,
    depends_on: tuple[str, ...] = (),
    by_clock: bool = False,
    **limits: float,
) -> Callable[[Check], Check]:
    """Register a function as the check of a rule."""

    def register(check: Check) -> Check:
        if code in RULES:
            raise ValueError(f"there is a rule {code} already")
        if family not in FAMILIES:
            raise ValueError(f"rule {code}: {family} is none of the families {', '.join(FAMILIES)}")
        if severity not in SEVERITIES:
            raise ValueError(f"rule {code}: {severity} is none of {', '.join(SEVERITIES)}")
        suppressed = suppressed_when + _CLOCK if by_clock else suppressed_when
        texts = (code, family, severity, sentence, why, suppressed, advice, evidence)
        RULES[code] = Rule(*texts, limits, frozenset(depends_on), by_clock, check)
        return check

    return register


def limits_of(rule: Rule, query: Query) -> Limits:
    """A rule's thresholds, with those that the query changes."""
    return Limits({name: query.limits.get((rule.code, name), value) for name, value in rule.limits.items()})


def concerns(query: Query, rule: Rule) -> bool:
    """Whether a rule may find other matches than it finds for `kwire analyze`."""
    has_limits = any((rule.code, name) in query.limits for name in rule.limits)
    varied = {*query.policies, *query.look_for, *(("target",) if query.target is not None else ())}
    return has_limits or bool(rule.depends_on & varied)


def replaced(match: Match, **changes: Any) -> Match:
    """Copy a match with other values."""
    return dataclasses.replace(match, **changes)
