"""A comparison, told: for a person, and as plain values for JSON.

In: a `Comparison`. Out: what differs, grouped, the unexpected first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kwire.analyzer.cli.color import Paint, unpainted
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.protocol import schema
from kwire.replay.diff import noise
from kwire.replay.diff.audit_results import OF_TRANSACTIONS, Audited
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import RULES, Consequence, Difference, Grouped, grouped

_CHANGED: Final = "changed"
_CONSEQUENCES: Final = 6
"""Kinds of what follows from a difference that are listed; the others are counted."""


def as_json(comparison: Comparison, sides: tuple[str, str]) -> dict[str, Any]:
    """Everything, in plain values."""
    return {
        "sides": list(sides),
        "ended_first": comparison.ended or None,
        "exchanges": {
            "total": comparison.total,
            "compared": comparison.compared,
            "same": comparison.same,
            "expected": comparison.expected,
            "unexpected": comparison.unexpected,
            "of_the_whole_run": {kind: count for kind, count in sorted(comparison.whole.items()) if count},
            "not_compared": dict(sorted(comparison.skipped.items())),
        },
        "audit": _audit_json(comparison),
        "differences": [_group_json(group) for group in grouped(comparison.differences)],
        "latency_judged": comparison.judged,
        "slower": sorted(comparison.slower),
        "noise_learned": comparison.learned,
        "shifts": {
            api: {shift.quantile: shift.as_dict() for shift in some}
            for api, some in sorted(comparison.measured.shifts.items())
        },
        "noise": dict(sorted(comparison.noise.items())),
        "latency_us": {
            api: {side: quantiles(values) for side, values in zip(sides, both)}
            for api, both in sorted(comparison.latencies.items())
        },
    }


def _audit_json(comparison: Comparison) -> dict[str, Any] | None:
    """Results of audits; null where there was none."""
    audit = comparison.audit
    if audit is None:
        return None
    columns = ("acknowledged", "missing", "out_of_order", "unread")
    transactions = {column: audit.total(column) for column in OF_TRANSACTIONS}
    return {**{column: getattr(audit, column) for column in columns}, **transactions}


def _group_json(group: Grouped) -> dict[str, Any]:
    return {
        "verdict": "unexpected" if group.unexpected else "expected",
        "rule": group.rule,
        "api": schema.api_name(group.api_key),
        "api_version": group.version,
        "field": group.path,
        "kind": group.kind,
        "count": group.count,
        "consequences": [
            {
                "api": schema.api_name(consequence.api_key),
                "field": consequence.path,
                "kind": consequence.kind,
                "count": consequence.count,
            }
            for consequence in group.consequences
        ],
        "examples": [_example_json(example) for example in group.examples],
    }


def _example_json(example: Difference) -> dict[str, Any]:
    row = example.row
    return {
        "capture": row["capture"],
        "file": row["request_file"],
        "packet": row["request_packet"],
        "connection": row["connection"],
        "exchange": row["exchange"],
        "correlation_id": row["correlation_id"],
        "key": list(example.key),
        "left": example.left,
        "right": example.right,
    }


def quantiles(values: Sequence[int]) -> dict[str, int]:
    """Quantiles: the smallest value that at least so many in a hundred do not exceed; only the count of none."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    ranks = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    picked = {name: ordered[-(-percent * len(ordered) // 100) - 1] for name, percent in ranks.items()}
    return {"count": len(ordered), **picked}


_UNEXPECTED: Final = "unexpected"
_EXPECTED: Final = "expected"


def as_text(comparison: Comparison, sides: tuple[str, str], paint: Paint = unpainted) -> str:
    """For a person: the verdict first, then what it rests on. paint: colours what is unexpected as an error."""
    groups = grouped(comparison.differences)
    unexpected = [group for group in groups if group.unexpected]
    lines = [f"verdict: {verdict(comparison, unexpected)}", *summary_lines(comparison, sides)]
    if unexpected:
        lines += ["", _UNEXPECTED]
        for group in unexpected:
            lines += group_lines(group)
    # What follows from a difference is told beneath it.
    expected = [group for group in groups if not group.unexpected and group.examples[0].cause is None]
    if expected:
        lines += ["", _EXPECTED]
        for group in expected:
            lines.append(f"  {group_title(group)}: {group.rule} ({RULES[group.rule or ''].partition(';')[0]})")
    if any(left and right for left, right in comparison.latencies.values()):
        lines += ["", *_latency_lines(comparison, sides)]
    severities = {_UNEXPECTED: "error", _EXPECTED: "note"}
    if unexpected:
        severities[lines[0]] = "error"
    # Names, keys and values are the target's; they stand in no line that is nothing but a heading.
    return "\n".join(paint(printable(line), severities.get(line)) for line in lines)


def summary_lines(comparison: Comparison, sides: tuple[str, str]) -> list[str]:
    """How much was compared, and what was not."""
    lines = [
        f"{comparison.total} exchanges, {sides[0]} against {sides[1]}: {comparison.compared} compared "
        f"({comparison.same} same, {comparison.expected} differ as expected, "
        f"{comparison.unexpected} differ unexpectedly)",
    ]
    whole = +comparison.whole
    if whole:
        lines.append(f"  unexpected, and seen over the whole run only: {_counts(whole)}")
    if comparison.skipped:
        lines.append(f"  not compared: {_counts(comparison.skipped)}")
    if comparison.noise:
        lines.append(f"  values that may differ, and do: {_counts(comparison.noise)}")
    if comparison.audit is not None:
        lines.append(f"  {_audit_line(comparison.audit)}")
    return lines


def verdict(comparison: Comparison, unexpected: Sequence[Grouped]) -> str:
    """In a line: what it comes to, and what is behind it."""
    if not unexpected:
        if not comparison.compared:
            return "nothing was compared"
        if comparison.ended:
            return f"the run ended first ({printable(comparison.ended)}): same answers to what is known, not audited"
        if comparison.audit is None:
            return "same answers, not audited"
        unread = comparison.audit.unread
        return f"same answers, {unread} partition{'s' * (unread != 1)} not audited" if unread else "same"
    named = kinds(unexpected)
    return f"the run ended first ({printable(comparison.ended)}): {named}" if comparison.ended else named


def kinds(unexpected: Sequence[Grouped]) -> str:
    """Unexpected differences, one kind or more, in a line: how many, what the first is, what follows."""
    total = sum(group.count for group in unexpected)
    following = sum(consequence.count for group in unexpected for consequence in group.consequences)
    first = unexpected[0]
    values = first.right or (first.examples[0].right if first.count == 1 else "")
    field = f"{first.path.rpartition('.')[2]} " if first.kind == _CHANGED else ""
    what = f"{_name(first)} {field}{first.kind}" + (f" {values}" if values else "")
    about = "/".join(first.examples[0].key)
    text = f"{total} unexpected difference{'s' * (total != 1)}: {what}" + (f" ({about})" if about else "")
    if len(unexpected) > 1:
        text += f" and {len(unexpected) - 1} more kind{'s' * (len(unexpected) > 2)}"
    if not following:
        return text
    return f"{text}; {following:,} more follow{'s' * (following == 1)} from {'it' if len(unexpected) == 1 else 'them'}"


def _audit_line(audit: Audited) -> str:
    unread = ""
    if audit.unread:
        there = f"{audit.unread} partition{'s' * (audit.unread != 1)}"
        unread = f"{audit.acknowledged - audit.looked_for:,} are in {there} that could not be read"
        if not audit.looked_for:
            return f"audit: of {audit.acknowledged:,} records that the target acknowledged {unread}"
    if not audit.acknowledged:
        return "audit: the target acknowledged no record"
    line = f"audit: of {audit.looked_for:,} records that the target acknowledged "
    line += f"{audit.missing:,} are missing, {audit.out_of_order:,} out of order"
    for column, what in OF_TRANSACTIONS.items():
        count = audit.total(column)
        line += f"; {count:,} {what}" if count else ""
    return line + (f"; {unread}" if unread else "")


def _counts(counts: Any) -> str:
    most_first = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    return ", ".join(f"{name} {count}" for name, count in most_first)


def _name(group: Grouped) -> str:
    return schema.api_name(group.api_key) + (f" v{group.version}" if group.version is not None else "")


def group_title(group: Grouped) -> str:
    """A group of differences, in a line."""
    values = f": {group.left} -> {group.right}" if group.left or group.right else ""
    return f"{group.count} x {_name(group)}  {group.path}  {group.kind}{values}"


def group_lines(group: Grouped) -> list[str]:
    """It with its examples, and what follows from it."""
    lines = [f"  {group_title(group)}"]
    for example in group.examples:
        row = example.row
        key = "/".join(example.key)
        values = "" if group.left or group.right else f"  {example.left} -> {example.right}"
        lines.append(
            f"      {row['request_file']} packet {row['request_packet']}  {row['connection']}  "
            f"id {row['correlation_id']}  {key}{values}"
        )
    if group.count > len(group.examples):
        lines.append(f"      and {group.count - len(group.examples)} more")
    shown = group.consequences[:_CONSEQUENCES]
    if shown:
        lines.append(f"      from which follow {', '.join(map(consequence_text, shown))}")
    if len(group.consequences) > len(shown):
        rest = sum(consequence.count for consequence in group.consequences[_CONSEQUENCES:])
        lines.append(f"      and {rest} others")
    return lines


def consequence_text(consequence: Consequence) -> str:
    """Describe a consequence of a difference in words."""
    what = f"{consequence.kind} {consequence.right}" if consequence.right else consequence.kind
    return f"{consequence.count} x {schema.api_name(consequence.api_key)} {what}"


def _latency_lines(comparison: Comparison, sides: tuple[str, str]) -> list[str]:
    lines = [
        f"  {'latency, ms':<24}{'answers':>9}" + "".join(f"{f'{side} p50':>15}{'p95':>9}{'p99':>9}" for side in sides)
    ]
    for api, both in sorted(comparison.latencies.items()):
        left, right = (quantiles(values) for values in both)
        if not left["count"] or not right["count"]:
            continue
        figures = "".join(
            f"{side['p50'] / 1000:>15.2f}{side['p95'] / 1000:>9.2f}{side['p99'] / 1000:>9.2f}" for side in (left, right)
        )
        lines.append(f"  {api:<24}{right['count']:>9}{figures}{'  slower' if api in comparison.slower else ''}")
    if not comparison.judged:
        lines.append(f"  not judged: {sides[1]} was sent at another speed than {sides[0]}")
    if comparison.measured.shifts:
        lines += ["", f"  shift of quantiles, {noise.CONFIDENCE:.0%} intervals, and what old differs from old"]
        lines += noise.lines(comparison.measured.shifts)
    return lines
