"""What `kwire diff` does, once the command line is read.

In: parsed options: a RUN, or two. Out: what differs, grouped, on stdout (`--json`: as JSON); exit code 1 where
something unexpected differs, else 0.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any, Final

from analyzer import schema
from analyzer.cli import Failure
from analyzer.dataset import DatasetError
from replay import pairs
from replay.compare import RULES, Comparison, Difference, Grouped, compare, grouped

EXIT_DIFFERS: Final = 1
_SLOWER: Final = 10
"""A latency that many times the other's is pointed at. It never decides the exit code: machines differ."""
_ENOUGH: Final = 20
"""Answers on each side below which latencies are not judged."""


def diff(options: argparse.Namespace) -> int:
    """The subcommand."""
    try:
        if options.run_b is None:
            found, sides = compare(pairs.from_run(options.run_a)), ("captured", "replayed")
        else:
            found, sides = compare(pairs.from_runs(options.run_a, options.run_b)), ("A", "B")
    except DatasetError as failure:
        raise Failure(str(failure), failure.hint) from None
    if options.json:
        print(json.dumps(as_json(found, sides), indent=2))
    else:
        print(as_text(found, sides))
    return EXIT_DIFFERS if any(one.unexpected for one in found.differences) else 0


def as_json(found: Comparison, sides: tuple[str, str]) -> dict[str, Any]:
    """Everything, in plain values."""
    return {
        "sides": list(sides),
        "exchanges": {
            "total": found.total,
            "compared": found.compared,
            "same": found.same,
            "expected": found.expected,
            "unexpected": found.unexpected,
            "not_compared": dict(sorted(found.skipped.items())),
        },
        "differences": [_group_json(one) for one in grouped(found.differences)],
        "noise": dict(sorted(found.noise.items())),
        "latency_us": {
            api: {side: quantiles(values) for side, values in zip(sides, both)}
            for api, both in sorted(found.latencies.items())
        },
    }


def _group_json(one: Grouped) -> dict[str, Any]:
    return {
        "verdict": "unexpected" if one.unexpected else "expected",
        "rule": one.rule,
        "api": schema.api_name(one.api_key),
        "api_version": one.version,
        "field": one.path,
        "kind": one.kind,
        "count": one.count,
        "examples": [_example_json(example) for example in one.examples],
    }


def _example_json(one: Difference) -> dict[str, Any]:
    row = one.row
    return {
        "capture": row["capture"],
        "file": row["request_file"],
        "packet": row["request_packet"],
        "connection": row["connection"],
        "exchange": row["exchange"],
        "correlation_id": row["correlation_id"],
        "key": list(one.key),
        "left": one.left,
        "right": one.right,
    }


def quantiles(values: list[int]) -> dict[str, int]:
    """Nearest-rank quantiles; empty for none."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    ranks = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    picked = {name: ordered[max(math.ceil(rank * len(ordered)), 1) - 1] for name, rank in ranks.items()}
    return {"count": len(ordered), **picked}


def as_text(found: Comparison, sides: tuple[str, str]) -> str:
    """For a person: the verdict first, then what it rests on."""
    groups = grouped(found.differences)
    unexpected = [one for one in groups if one.unexpected]
    expected = [one for one in groups if not one.unexpected]
    lines = [
        f"{found.total} exchanges, {sides[0]} against {sides[1]}: {found.compared} compared "
        f"({found.same} same, {found.expected} differ as expected, {found.unexpected} differ unexpectedly)"
    ]
    if found.skipped:
        lines.append(f"  not compared: {_counts(found.skipped)}")
    if found.noise:
        lines.append(f"  values that may differ, and do: {_counts(found.noise)}")
    if unexpected:
        lines += ["", "unexpected"]
        for one in unexpected:
            lines += _group_lines(one)
    if expected:
        lines += ["", "expected"]
        for one in expected:
            lines.append(f"  {_title(one)}: {one.rule} ({RULES[one.rule or ''].partition(';')[0]})")
    if any(left and right for left, right in found.latencies.values()):
        lines += ["", *_latency_lines(found, sides)]
    total = sum(one.count for one in unexpected)
    lines += ["", f"verdict: {total} unexpected difference{'s' * (total != 1)}" if total else "verdict: same"]
    return "\n".join(lines)


def _counts(some: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(some.items(), key=lambda one: (-one[1], one[0])))


def _title(one: Grouped) -> str:
    name = schema.api_name(one.api_key) + (f" v{one.version}" if one.version is not None else "")
    values = f": {one.left} -> {one.right}" if one.left or one.right else ""
    return f"{one.count} x {name}  {one.path}  {one.kind}{values}"


def _group_lines(one: Grouped) -> list[str]:
    lines = [f"  {_title(one)}"]
    for example in one.examples:
        row = example.row
        key = "/".join(example.key)
        values = "" if one.left or one.right else f"  {example.left} -> {example.right}"
        lines.append(
            f"      {row['request_file']} packet {row['request_packet']}  {row['connection']}  "
            f"id {row['correlation_id']}  {key}{values}"
        )
    if one.count > len(one.examples):
        lines.append(f"      and {one.count - len(one.examples)} more")
    return lines


def _latency_lines(found: Comparison, sides: tuple[str, str]) -> list[str]:
    lines = [
        f"  {'latency, ms':<24}{'answers':>9}" + "".join(f"{f'{side} p50':>15}{'p95':>9}{'p99':>9}" for side in sides)
    ]
    for api, both in sorted(found.latencies.items()):
        left, right = (quantiles(values) for values in both)
        if not left["count"] or not right["count"]:
            continue
        figures = "".join(
            f"{side['p50'] / 1000:>15.2f}{side['p95'] / 1000:>9.2f}{side['p99'] / 1000:>9.2f}" for side in (left, right)
        )
        slower = min(left["count"], right["count"]) >= _ENOUGH and all(
            right[name] > _SLOWER * max(left[name], 1) for name in ("p50", "p95")
        )
        lines.append(f"  {api:<24}{right['count']:>9}{figures}{'  slower' if slower else ''}")
    return lines
