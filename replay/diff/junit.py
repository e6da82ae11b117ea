"""A comparison as JUnit XML, which builds show as tests: one for each API that was compared, and one for the audit.

In: a `Comparison`. Out: XML. Rules: a test fails where something unexpected differs, each difference with what follows
from it and its examples; an API that is slower beyond noise fails its own test; text is printable, as XML 1.0 wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kwire.analyzer.common import junit
from kwire.analyzer.protocol import schema
from kwire.replay.diff.audit_results import TRANSACTION
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import Grouped, grouped
from kwire.replay.diff.latencies import SLOWER
from kwire.replay.diff.text import group_lines, verdict

_SUITE: Final = "kwire diff"
_CLASS: Final = "kwire.diff"
_AUDIT: Final = "acknowledged records"
_RECORDS: Final = "(records)"


def as_junit(comparison: Comparison) -> str:
    """The suite."""
    unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
    groups_of: dict[str, list[Grouped]] = {name: [] for name in sorted(comparison.apis)}
    if comparison.audit is not None:
        groups_of[_AUDIT] = []
    for group in unexpected:
        groups_of.setdefault(_test_of(group), []).append(group)
    tests = [_test(name, groups) for name, groups in groups_of.items()]
    return junit.as_xml(_SUITE, tests, output=f"verdict: {verdict(comparison, unexpected)}")


def _test_of(group: Grouped) -> str:
    if group.path == TRANSACTION or (group.path == _RECORDS and group.kind.startswith(("acknowledged", "stored"))):
        return _AUDIT
    return schema.api_name(group.api_key)


def _test(name: str, groups: Sequence[Grouped]) -> junit.TestCase:
    if not groups:
        return junit.TestCase(_CLASS, name)
    kind = SLOWER if all(group.kind == SLOWER for group in groups) else "difference"
    first = groups[0]
    message = f"{first.count} x {first.path} {first.kind}" + (f": {first.left} -> {first.right}" if first.right else "")
    lines = [line for group in groups for line in group_lines(group)]
    return junit.TestCase(_CLASS, name, "failure", kind, message, lines)
