"""A rule: what it says, why its threshold is what it is, when it keeps silent; and what a rule finds.

In: functions decorated with `rule`, one a code. Out: `RULES`, in order of their families. The documentation
(`FINDINGS.md`, `kwire findings --explain`) is made of the same words (`manual`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from analyzer.findings.capture import CaptureFrame
from analyzer.findings.query import Asked, Evidence, Severity

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
"""Families of rules, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found. Times in us since the epoch. `rows`: the exchanges that show it, as rows of `seen.exchanges`:
    first, worst, last; `links`: where there is no exchange, connections. `severity`: where it is not the rule's.
    `key`: what it is about, for rules that take symptoms of others away."""

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


@dataclass(frozen=True, slots=True)
class Rule:
    """`sentence`: an example of what it says; `unless`: when it keeps silent; `judge`: what proves it; `limits`: its
    thresholds by name; `minds`: what else of `Asked` it answers to: policies, or `target`;
    `by_clock`: it argues with the order or the length of times."""

    code: str
    family: str
    severity: Severity
    sentence: str
    why: str
    unless: str
    advice: str
    judge: str
    limits: Mapping[str, float]
    minds: frozenset[str]
    by_clock: bool
    look: Callable[[CaptureFrame, Limits], Iterator[Found]]


class Limits:
    """The thresholds of a rule, as attributes."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None


POLICIES = {"acks": "all", "compression": "required", "tls": "required"}
"""What `--policy NAME=VALUE` takes: a fact that is a note becomes a rule."""

_CLOCK = " The capture's clock was set back (capture-clock-back)."

RULES: dict[str, Rule] = {}
"""By code, families in order; filled when `analyzer.findings.evaluate` is imported."""


def rule(
    family: str,
    code: str,
    severity: Severity,
    sentence: str,
    *,
    why: str,
    unless: str,
    advice: str,
    judge: str,
    minds: tuple[str, ...] = (),
    by_clock: bool = False,
    **limits: float,
) -> Callable[[Callable[[CaptureFrame, Limits], Iterator[Found]]], Callable[[CaptureFrame, Limits], Iterator[Found]]]:
    """Make a function a rule."""

    def take(
        look: Callable[[CaptureFrame, Limits], Iterator[Found]],
    ) -> Callable[[CaptureFrame, Limits], Iterator[Found]]:
        assert code not in RULES, code
        assert family in FAMILIES, family
        silent = unless + _CLOCK if by_clock else unless
        told = (code, family, severity, sentence, why, silent, advice, judge)
        RULES[code] = Rule(*told, limits, frozenset(minds), by_clock, look)
        return look

    return take


def limits_of(one: Rule, asked: Asked) -> Limits:
    """A rule's thresholds, with those that were asked for."""
    return Limits({name: asked.limits.get((one.code, name), value) for name, value in one.limits.items()})


def concerns(asked: Asked, one: Rule) -> bool:
    """Whether a rule may answer otherwise than it answers `kwire analyze`."""
    own = any((one.code, name) in asked.limits for name in one.limits)
    return own or bool(one.minds & {*asked.policies, *(("target",) if asked.target is not None else ())})


def replaced(found: Found, **changes: Any) -> Found:
    """The same with other values."""
    return dataclasses.replace(found, **changes)
