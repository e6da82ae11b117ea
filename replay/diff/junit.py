"""A comparison as JUnit XML, which builds show as tests: one for each API that was compared, and one for the audit.

In: a `Comparison`. Out: XML; of a rehearsal also a test for the verdict, for each topic and for each group. Rules: a
test fails where something unexpected differs, each difference with what follows from it and its examples; an API that
is slower beyond noise fails its own test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kwire.analyzer.common import junit
from kwire.analyzer.protocol import schema
from kwire.replay.diff.audit_results import is_of_records
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import Grouped, grouped
from kwire.replay.diff.latencies import SLOWER
from kwire.replay.diff.text import group_lines, verdict

_SUITE: Final = "kwire diff"
_CLASS: Final = "kwire.diff"
_REHEARSAL: Final = "kwire rehearse"
_OF_REHEARSAL: Final = "kwire.rehearse"
_AUDIT: Final = "acknowledged records"


def as_junit(comparison: Comparison) -> str:
    """The suite."""
    unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
    tests = _by_api(_CLASS, comparison, unexpected)
    return junit.as_xml(_SUITE, tests, output=f"verdict: {verdict(comparison, unexpected)}")


def of_rehearsal(line: str, reasons: Sequence[tuple[str, str]], comparison: Comparison | None) -> str:
    """The suite of a rehearsal. `line`: its verdict; `reasons`: (name, text) of why it is not good; `comparison`: None
    where a run ended too early for one."""
    tests = [junit.TestCase(_OF_REHEARSAL, "verdict")]
    if reasons:
        lines = [f"{name}: {text}" for name, text in reasons]
        tests = [junit.TestCase(_OF_REHEARSAL, "verdict", "failure", *reasons[0], lines)]
    if comparison is not None:
        unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
        tests += _by_api(f"{_OF_REHEARSAL}.api", comparison, unexpected)
        for kind, names in (("topic", comparison.topics), ("group", comparison.groups)):
            for name in sorted(names):
                groups = [group for group in unexpected if name in group.names]
                tests.append(_test(f"{_OF_REHEARSAL}.{kind}", name, groups))
    return junit.as_xml(_REHEARSAL, tests, output=f"verdict: {line}")


def _by_api(classname: str, comparison: Comparison, unexpected: Sequence[Grouped]) -> list[junit.TestCase]:
    groups_of: dict[str, list[Grouped]] = {name: [] for name in sorted(comparison.apis)}
    if comparison.audit is not None:
        groups_of[_AUDIT] = []
    for group in unexpected:
        groups_of.setdefault(_test_of(group), []).append(group)
    return [_test(classname, name, groups) for name, groups in groups_of.items()]


def _test_of(group: Grouped) -> str:
    return _AUDIT if is_of_records(group.path, group.kind) else schema.api_name(group.api_key)


def _test(classname: str, name: str, groups: Sequence[Grouped]) -> junit.TestCase:
    if not groups:
        return junit.TestCase(classname, name)
    kind = SLOWER if all(group.kind == SLOWER for group in groups) else "difference"
    first = groups[0]
    message = f"{first.count} x {first.path} {first.kind}" + (f": {first.left} -> {first.right}" if first.right else "")
    lines = [line for group in groups for line in group_lines(group)]
    return junit.TestCase(classname, name, "failure", kind, message, lines)
