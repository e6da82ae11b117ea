"""Two sides compared: what changed, for whom, by how much at least, and what was too little to tell.

In: two `Side`s. Out: `Comparison`. Settings and versions are compared as they are; figures by intervals
(`intervals.py`). Changes of a client stand in the order of what causes what: who, with which software and settings,
speaking which versions, how much there was to do, and then what came of it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.listing import listed
from kwire.analyzer.findings.query import Severity
from kwire.analyzer.findings.wording import count
from kwire.analyzer.protocol import error_severity, errors
from kwire.reports.compare import brokers, intervals, measures, roles
from kwire.reports.compare.change import KINDS, Change, finite, rank
from kwire.reports.compare.intervals import Interval, Sums, Values
from kwire.reports.compare.measures import NOT_SAID, Measures
from kwire.reports.compare.roles import Role
from kwire.reports.compare.side import Side

SAME, DIFFERENT, WORSE = "no difference", "different", "worse"
"""Verdicts; `WORSE`: a change of severity `warning` or `error`."""

_MILLISECOND: Final = 1_000
LATENCY_US: Final = 5_000
"""A shift of a median latency below it is none, as of `kwire diff`."""
_WAIT_US: Final = 3_000
"""Of the time that records wait for their batch: timestamps count milliseconds."""
_MOST_LOAD: Final = 2.0
"""So many times longer or shorter is what a busy machine explains at most, as of `kwire diff`."""
_FEWEST_APIS: Final = 3
"""Latencies besides one's own that are needed to tell load from it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a pair, changed or not. `changed`: None where there was too little on a side."""

    what: str
    about: str | None
    before: float | None
    after: float | None
    low: float | None
    high: float | None
    changed: bool | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A role on both sides."""

    name: str
    before: Role
    after: Role
    seconds: tuple[float, float]
    changes: list[Change] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = zip(("before", "after"), (self.before, self.after), self.seconds, strict=True)
        return {
            "name": self.name,
            **{name: {"seconds": round(seconds, 6), **role.as_dict()} for name, role, seconds in sides},
            "figures": [dataclasses.asdict(figure) for figure in self.figures],
            "too_little": self.unjudged,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """A side in one line."""

    name: str
    captures: list[str]
    seconds: float
    exchanges: int
    roles: int
    clients: int

    def text(self) -> str:
        """For people."""
        what = f"{count(self.exchanges, 'exchange')} of {count(self.roles, 'role')} in {self.seconds:,.1f} s"
        return f"{printable(self.name)}: {what}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Changes between two sides. `notes`: what should be known of how they could be compared."""

    before: Summary
    after: Summary
    pairs: list[Pair]
    changes: list[Change]
    notes: list[str]
    compared: int

    @property
    def verdict(self) -> str:
        """`no difference`, `different`, or `worse`."""
        if not self.changes:
            return SAME
        return DIFFERENT if all(change.severity == "note" for change in self.changes) else WORSE

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "verdict": self.verdict,
            "before": dataclasses.asdict(self.before),
            "after": dataclasses.asdict(self.after),
            "confidence": intervals.CONFIDENCE,
            "compared": self.compared,
            "changes": [change.as_dict() for change in self.changes],
            "roles": [pair.as_dict() for pair in self.pairs],
            "notes": self.notes,
        }

    def at_least(self, severity: str) -> list[Change]:
        """The changes that are as bad as `note`, `warning` or `error`."""
        return [change for change in self.changes if rank(change.severity) >= rank(severity)]


def compare(before: Side, after: Side) -> Comparison:
    """Compare two sides. Raises UsageError where one of them has no exchange of Kafka."""
    for side, word in ((before, "before"), (after, "after")):
        if not len(side.exchanges):
            raise UsageError(
                f"{side.name}: no exchange of Kafka, so there is nothing to compare ({word})",
                "kwire analyze says what is in it; --port for Kafka on a port that is not recognised",
            )
    first, second = roles.roles_of(before), roles.roles_of(after)
    changes: list[Change] = list(brokers.changes(before, after))
    pairs: list[tuple[Role, Role, Measures, Measures]] = []
    for left, right in roles.paired(first, second):
        if left is not None and right is not None:
            pairs.append((left, right, measures.measured(before, left), measures.measured(after, right)))
        else:
            changes.append(_alone(left, right))
    compared = sum(_comparisons(*pair[2:]) for pair in pairs)
    load = _Load(pairs)
    notes = _notes(before, after)
    if (common := load.common()) is not None:
        changes.append(common)
    done = _without_echoes([_pair(at, compared, load, pairs) for at in range(len(pairs))], notes)
    every = [*changes, *(change for pair in done for change in pair.changes)]
    every.sort(key=lambda change: (-rank(change.severity), KINDS.index(change.kind)))
    return Comparison(_summary(before, first), _summary(after, second), done, every, notes, compared)


def beyond(comparison: Comparison, noise: Comparison) -> Comparison:
    """Leave out changes that are not beyond what two runs of the job before differ in themselves. `noise`: of these,
    the same one before. A figure is beyond where the near end of its interval is farther than that of the two; anything
    else, where they do not differ in it."""
    figures = {(pair.name, figure.what, figure.about): figure for pair in noise.pairs for figure in pair.figures}
    known = {(change.client, change.what, change.about) for change in noise.changes}

    def is_beyond(change: Change) -> bool:
        figure = figures.get((change.client or "", change.what, change.about))
        if figure is None or not figure.before or figure.after is None or change.low is None or change.high is None:
            return (change.client, change.what, change.about) not in known
        is_amount = change.unit == "us"
        differs_by = figure.after - figure.before if is_amount else figure.after / figure.before
        return change.low > differs_by if change.low > (0.0 if is_amount else 1.0) else change.high < differs_by

    changes = [change for change in comparison.changes if is_beyond(change)]
    pairs = [
        dataclasses.replace(pair, changes=[change for change in pair.changes if change in changes])
        for pair in comparison.pairs
    ]
    left_out = len(comparison.changes) - len(changes)
    note = f"{count(left_out, 'change')} left out: {noise.after.name} differs from {noise.before.name} as much"
    notes = [*comparison.notes, note] if left_out else comparison.notes
    return dataclasses.replace(comparison, pairs=pairs, changes=changes, notes=notes)


def _without_echoes(pairs: list[Pair], notes: list[str]) -> list[Pair]:
    """Leave out how often a reader asks, and for how many bytes a record, where what it reads is written otherwise than
    before: larger batches come with fewer answers. Where a setting of the reader itself has changed, they stay."""
    writers = [pair for pair in pairs if any(_is_of_writing(change) for change in pair.changes)]
    result, left_out = [], 0
    for pair in pairs:
        follows = any(
            other.before.writes & pair.before.reads and other.after.writes & pair.after.reads for other in writers
        )
        if follows and not any(change.kind == "settings" and not _is_of_writing(change) for change in pair.changes):
            changes = [change for change in pair.changes if not _is_echo(change)]
            left_out += len(pair.changes) - len(changes)
            pair = dataclasses.replace(pair, changes=changes)
        result.append(pair)
    if left_out:
        notes.append(
            f"{count(left_out, 'change')} of readers left out (requests, bytes a record): what they read is written "
            "otherwise"
        )
    return result


def _is_of_writing(change: Change) -> bool:
    return change.what.startswith("write_") or change.what in ("wait", "codec")


def _is_echo(change: Change) -> bool:
    return change.what in _ECHOES or (change.what == "requests" and change.about in ("Fetch", "ShareFetch"))


def _summary(side: Side, some: list[Role]) -> Summary:
    captures = [entry["name"] for entry in side.dataset.captures]
    clients = len({client for role in some for client in role.clients})
    return Summary(side.name, captures, side.seconds, len(side.exchanges), len(some), clients)


def _notes(before: Side, after: Side) -> list[str]:
    notes = []
    for side in (before, after):
        if any(not entry.get("meaning") for entry in side.dataset.captures):
            notes.append(f"{side.name}: groups and offsets were not analysed (--no-analysis): not compared")
        if not len(side.frame("batches")) and len(side.frame("partitions")):
            sizes = side.frame("partitions")["batch_count"]
            if (sizes > 0).any():
                notes.append(
                    f"{side.name}: batches were not kept (--records none): codecs, idempotence and linger are not "
                    "compared"
                )
    shorter = min(before.seconds, after.seconds)
    if shorter < _SHORT_S:
        side = before if before.seconds == shorter else after
        notes.append(
            f"{side.name}: {shorter:.1f} s of traffic: rates and latencies of so little are hardly ever sure; "
            f"capture {_SHORT_S} s or more"
        )
    return notes


_SHORT_S: Final = 10


def _alone(left: Role | None, right: Role | None) -> Change:
    role = left or right
    assert role is not None
    where = "before" if left is not None else "after"
    severity: Severity = "warning" if (role.writes or role.reads) and not role.is_broker else "note"
    task = role.task()
    text = f"only {where}: {printable(role.name)} ({printable(task)}; {count(len(role.rows), 'exchange')})"
    there = f"{len(role.rows):,}"
    sides = (there, "none") if left is not None else ("none", there)
    return Change(severity, "clients", f"only_{where}", role.name, None, *sides, text)


# --- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a ratio is named. `worse`: 1 where more of it is worse, -1 where less is, 0: neither. show: for people."""

    kind: str
    title: str
    worse: int
    show: Callable[[float], str]


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.01 or not value else f"{value:.2g}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _bytes(value: float) -> str:
    return f"{value:,.0f} B" if value < 10_000 else f"{value / 1000:,.1f} kB"


_RATIOS: Final[Mapping[str, _Kind]] = {
    "write_records_s": _Kind("load", "records written a second", 0, _number),
    "read_records_s": _Kind("load", "records read a second", 0, _number),
    "write_requests_record": _Kind("records", "Produce requests a record", 1, _number),
    "write_wire_record": _Kind("records", "bytes a record written", 1, _bytes),
    "write_records_batch": _Kind("records", "records a batch written", 0, _number),
    "write_bytes_batch": _Kind("records", "bytes a batch written", 0, _bytes),
    "read_requests_record": _Kind("records", "fetch requests a record", 1, _number),
    "read_wire_record": _Kind("records", "bytes a record read", 1, _bytes),
    "read_records_batch": _Kind("records", "records a batch read", 0, _number),
    "read_bytes_batch": _Kind("records", "bytes a batch read", 0, _bytes),
    "read_empty": _Kind("records", "fetch answers without records", 0, _percent),
    "connections": _Kind("rates", "connections opened a minute", 1, _number),
    "unanswered": _Kind("errors", "requests without an answer", 1, _percent),
    "throttled": _Kind("errors", "answers with a throttle time", 1, _percent),
}

_AS_WRITTEN: Final = frozenset(("read_records_batch", "read_bytes_batch", "codec_read"))
"""Of what is read: said of the writer, where that is captured too."""

_ECHOES: Final = frozenset(("read_requests_record", "read_wire_record", "read_empty"))
"""Of a reader: they follow from how records are written too."""

_ONCE: Final = frozenset(
    ("ApiVersions", "SaslHandshake", "SaslAuthenticate", "GetTelemetrySubscriptions", "InitProducerId", "JoinGroup",
     "ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat")
)  # fmt: skip
"""What a client sends when it starts, or never: to have it on one side alone is a change, however few there are."""


def _comparisons(before: Measures, after: Measures) -> int:
    """How many figures of a pair have an interval."""
    shared = (
        (before.sums, after.sums),
        (before.rates, after.rates),
        (before.latencies, after.latencies),
        (before.errors, after.errors),
        (before.facts, after.facts),
    )
    return sum(len({*left, *right}) for left, right in shared)


class _Load:
    """How many times longer everything takes after than before, for a reason that is no single API's."""

    def __init__(self, pairs: list[tuple[Role, Role, Measures, Measures]]) -> None:
        self._ratios: dict[tuple[int, str], float] = {}
        for at, (_, _, before, after) in enumerate(pairs):
            for (api, part), values in before.latencies.items():
                other = after.latencies.get((api, part))
                if part == "broker" and other is not None:
                    if min(len(values.values), len(other.values)) >= intervals.ENOUGH:
                        first = float(np.median(values.values))
                        self._ratios[at, api] = float(np.median(other.values)) / max(first, 1.0)

    def factor(self, pair: int, api: str) -> float:
        """By the latencies of all others."""
        others = [ratio for key, ratio in self._ratios.items() if key != (pair, api)]
        if len(others) < _FEWEST_APIS:
            return 1.0
        middle = float(np.median(others))
        return min(max(middle, 1 / _MOST_LOAD), _MOST_LOAD)

    def common(self) -> Change | None:
        """A change of nearly all latencies alike."""
        ratios = list(self._ratios.values())
        if len(ratios) <= _FEWEST_APIS:
            return None
        quarter, middle, three = (float(np.quantile(ratios, part)) for part in (0.25, 0.5, 0.75))
        if not (quarter > 1 + intervals.SHARE or three < 1 / (1 + intervals.SHARE)):
            return None
        word = "longer" if middle > 1 else "less long"
        text = f"nearly all answers take {word}: {middle:.2f} times (of the cluster or its machine, not of one API)"
        return Change("note", "latency", "load", None, None, "1.00", f"{middle:.2f}", text, quarter, three)


def _pair(
    at: int,
    compared: int,
    load: _Load,
    pairs: list[tuple[Role, Role, Measures, Measures]],
) -> Pair:
    left, right, before, after = pairs[at]
    name = left.name if left.name == right.name else f"{left.name}, then {right.name}"
    result = Pair(name, left, right, (before.seconds, after.seconds))
    is_written = any(other[0].writes & left.reads and other[1].writes & right.reads for other in pairs)
    result.changes.extend(_settings(name, before, after, compared, is_written))
    result.changes.extend(_versions(name, before, after))
    for what, kind in _RATIOS.items():
        if what in _AS_WRITTEN and is_written:
            continue
        _ratio(result, what, None, kind, before.sums.get(what), after.sums.get(what), compared)
    for api in sorted({*before.rates, *after.rates}):
        kind = _Kind("rates", f"{api} requests a minute", int(api == "Metadata"), _number)
        none = Sums(np.zeros(intervals.BLOCKS), np.full(intervals.BLOCKS, 1.0))
        if api in _ONCE and (api in before.rates) != (api in after.rates):
            continue
        first = before.rates.get(api) or Sums(none.numerator, none.denominator * before.seconds / 60 / intervals.BLOCKS)
        second = after.rates.get(api) or Sums(none.numerator, none.denominator * after.seconds / 60 / intervals.BLOCKS)
        _ratio(result, "requests", api, kind, first, second, compared)
    _errors(result, before, after, compared)
    _latency(result, before, after, compared, load, at)
    _wait(result, before, after, compared)
    result.changes.sort(key=lambda change: KINDS.index(change.kind))
    return result


def _ratio(
    pair: Pair, what: str, about: str | None, kind: _Kind, before: Sums | None, after: Sums | None, compared: int
) -> None:
    if before is None or after is None or before.value is None or after.value is None:
        return
    interval = intervals.of_ratio(before, after, compared)
    if interval is None:
        pair.figures.append(Figure(what, about, before.value, after.value, None, None, None))
        if _looks_changed(before.value, after.value):
            pair.unjudged.append(f"{kind.title} ({kind.show(before.value)} and {kind.show(after.value)})")
        return
    changed = intervals.factor_changed(interval)
    low, high = finite(interval.low), finite(interval.high)
    pair.figures.append(Figure(what, about, before.value, after.value, low, high, changed))
    if changed:
        more = interval.after > interval.before
        severity: Severity = "warning" if kind.worse and more == (kind.worse > 0) else "note"
        pair.changes.append(_change(pair.name, severity, kind, what, about, interval))


def _change(client: str, severity: Severity, kind: _Kind, what: str, about: str | None, interval: Interval) -> Change:
    before, after = kind.show(interval.before), kind.show(interval.after)
    text = f"{kind.title}: {before} before, {after} after{_reach(interval)}"
    return Change(severity, kind.kind, what, client, about, before, after, text, interval.low, interval.high, "factor")


def _reach(interval: Interval) -> str:
    """The ends of an interval, for people."""
    if not interval.before or not interval.after:
        return ""
    factor = interval.after / interval.before

    def shown(value: float) -> str:
        return f"{value:,.1f} times" if factor >= 2 else f"{100 * (value - 1):+.0f} %"

    return f" ({shown(factor)}; at least {shown(min(interval.low, interval.high, key=lambda end: abs(end - 1)))})"


def _errors(pair: Pair, before: Measures, after: Measures, compared: int) -> None:
    for api, code in sorted({*before.errors, *after.errors}):
        if not code:
            continue
        none = before.errors.get((api, 0)), after.errors.get((api, 0))
        first, second = before.errors.get((api, code), none[0]), after.errors.get((api, code), none[1])
        if first is None or second is None:
            continue  # an API that one side does not use is a change of its own
        judgement = error_severity.judge(code, api)
        name = errors.name(code)
        title = f"{api} answered {name}"
        kind = _Kind("errors", title, int(judgement.kind in ("bad", "transient")), _percent)
        known = len(pair.changes)
        _ratio(pair, "error", f"{api} {name}", kind, first, second, compared)
        if len(pair.changes) > known and judgement.kind == "bad":
            latest = pair.changes[-1]
            if latest.severity == "warning" and not first.value:
                pair.changes[-1] = dataclasses.replace(latest, severity="error")


def _latency(pair: Pair, before: Measures, after: Measures, compared: int, load: _Load, at: int) -> None:
    titles = {"broker": "time at the broker", "network": "time in the network", "queue": "wait behind earlier requests"}
    for api, part in sorted({*before.latencies} & {*after.latencies}):
        expected = load.factor(at, api) if part == "broker" else 1.0
        sides = before.latencies[api, part], after.latencies[api, part]
        title = f"{api}: {titles[part]}"
        _median(pair, f"latency_{part}", api, "latency", title, sides, LATENCY_US, compared, expected, 1)


def _wait(pair: Pair, before: Measures, after: Measures, compared: int) -> None:
    if before.wait is not None and after.wait is not None:
        title = "records wait for their batch (linger as seen, in-flight requests too)"
        _median(pair, "wait", None, "settings", title, (before.wait, after.wait), _WAIT_US, compared, 1.0, 0)


def _median(
    pair: Pair,
    what: str,
    about: str | None,
    kind: str,
    title: str,
    sides: tuple[Values, Values],
    least: float,
    compared: int,
    load: float,
    worse: int,
) -> None:
    interval = intervals.of_median(*sides, compared, load)
    if interval is None:
        first, second = map(_middle, sides)
        pair.figures.append(Figure(what, about, first, second, None, None, None))
        if abs(second - first) > least and _looks_changed(first, second):
            shown = " and ".join(f"{value / _MILLISECOND:,.1f} ms" for value in (first, second))
            counts = " and ".join(f"{len(side.values):,}" for side in sides)
            pair.unjudged.append(f"{title} ({shown}, of {counts}; {intervals.ENOUGH} are needed)")
        return
    changed = intervals.amount_changed(interval, least, load)
    pair.figures.append(Figure(what, about, interval.before, interval.after, interval.low, interval.high, changed))
    if changed:
        left, right = (f"{value / _MILLISECOND:,.1f} ms" for value in (interval.before, interval.after))
        nearer = min(abs(interval.low), abs(interval.high)) / _MILLISECOND
        word = "more" if interval.low > 0 else "less"
        text = f"{title}: median {left} before, {right} after (at least {nearer:,.1f} ms {word})"
        severity: Severity = "warning" if worse and interval.low > 0 else "note"
        pair.changes.append(
            Change(severity, kind, what, pair.name, about, left, right, text, interval.low, interval.high, "us")
        )


def _middle(side: Values) -> float:
    return float(np.median(side.values)) if len(side.values) else 0.0


def _looks_changed(before: float, after: float) -> bool:
    """Whether two figures differ by as much as would count, if it were sure."""
    return max(before, after) > (1 + intervals.SHARE) * max(min(before, after), 0.0)


# --- settings ---------------------------------------------------------------------------------------------------------

_TITLES: Final[Mapping[str, str]] = {
    "software": "software",
    "tls": "TLS",
    "sasl": "SASL mechanism",
    "acks": "acks",
    "codec": "codec",
    "codec_read": "codec of what is read",
    "idempotence": "idempotence",
    "transactions": "transactions",
    "message_format": "message format",
    "fetch_max_wait_ms": "fetch.max.wait.ms",
    "fetch_min_bytes": "fetch.min.bytes",
    "fetch_max_bytes": "fetch.max.bytes",
    "fetch_partition_max_bytes": "max.partition.fetch.bytes",
    "isolation": "isolation level",
    "rack": "client.rack",
    "group_protocol": "group protocol",
    "assignors": "assignors offered",
    "session_timeout_ms": "session.timeout.ms",
    "rebalance_timeout_ms": "max.poll.interval.ms (rebalance timeout)",
    "static_membership": "static membership",
    "offset_reset": "auto.offset.reset, as it asks for offsets",
}

_RANKS: Final[Mapping[str, Mapping[str, int]]] = {
    "acks": {"0": 0, "1": 1, "all": 2},
    "idempotence": {"no": 0, "yes": 1},
    "transactions": {"no": 0, "yes": 1},
    "isolation": {"read_uncommitted": 0, "read_committed": 1},
    "tls": {"none": 0},
    "sasl": {"none": 0},
}
"""Settings that promise less with a lower rank; a value that is not here ranks above."""


def _settings(client: str, before: Measures, after: Measures, compared: int, is_written: bool) -> Iterator[Change]:
    for name, title in _TITLES.items():
        if name in _AS_WRITTEN and is_written:
            continue
        first, second = before.facts.get(name, Counter()), after.facts.get(name, Counter())
        if name == "software":
            differs = bool(first and second) and {*first} - {NOT_SAID} != {*second} - {NOT_SAID}
        else:
            differs = intervals.shares_changed(first, second, compared)
        if differs:
            left, right = _shares(first), _shares(second)
            kind = "software" if name == "software" else "settings"
            ranks = _RANKS.get(name, {})
            weaker = _rank(ranks, second) < _rank(ranks, first)
            severity: Severity = "warning" if weaker else "note"
            yield Change(severity, kind, name, client, None, left, right, f"{title}: {left} before, {right} after")


def _rank(ranks: Mapping[str, int], counts: Mapping[str, int]) -> int:
    """The lowest rank among values."""
    return min((ranks.get(value, len(ranks)) for value in counts), default=0) if ranks else 0


def _shares(counts: Mapping[str, int]) -> str:
    """`zstd`, or `zstd 80 %, none 20 %`."""
    total = sum(counts.values())
    if len(counts) == 1:
        return printable(next(iter(counts)))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{printable(value)} {100 * number / total:.0f} %" for value, number in ordered[:3]]
    return listed(parts, len(ordered))


def _versions(client: str, before: Measures, after: Measures) -> Iterator[Change]:
    """Versions of an API that one side alone speaks; APIs that a client sends when it starts on one side alone."""
    changed = []
    for api in sorted({*before.versions} & {*after.versions}):
        first, second = before.versions[api], after.versions[api]
        if {*first} != {*second}:
            changed.append((api, _numbers(first), _numbers(second)))
    if changed:
        shown = ", ".join(f"{api} {first} to {second}" for api, first, second in changed)
        left, right = (", ".join(f"{row[0]} {row[at]}" for row in changed) for at in (1, 2))
        yield Change("note", "versions", "versions", client, None, left, right, f"versions spoken: {shown}")
    for where, some, other in (("before", before, after), ("after", after, before)):
        alone = sorted(api for api in {*some.versions} - {*other.versions} if api in _ONCE)
        if alone:
            names = ", ".join(alone)
            left, right = (names, "none") if where == "before" else ("none", names)
            text = f"only {where}: {names} requests"
            yield Change("note", "versions", f"apis_{where}", client, None, left, right, text)


def _numbers(versions: Mapping[str, int]) -> str:
    return "/".join(sorted(versions, key=int))
