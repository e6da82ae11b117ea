"""A comparison as JUnit XML, which builds show as tests: one for each API that was compared, and one for the audit.

In: a `Comparison`. Out: XML. Rules: a test fails where something unexpected differs, each difference with what follows
from it and its examples; an API that is slower beyond noise fails its own test; text is printable, as XML 1.0 wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.protocol import schema
from kwire.replay.diff.audit_results import TRANSACTION
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import Grouped, grouped
from kwire.replay.diff.latencies import SLOWER
from kwire.replay.diff.text import group_lines, verdict

_SUITE: Final = "kwire diff"
_AUDIT: Final = "acknowledged records"
_RECORDS: Final = "(records)"


def as_junit(comparison: Comparison) -> str:
    """The suite."""
    unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
    tests: dict[str, list[Grouped]] = {name: [] for name in sorted(comparison.apis)}
    if comparison.audit is not None:
        tests[_AUDIT] = []
    for group in unexpected:
        tests.setdefault(_test_of(group), []).append(group)
    suite = ElementTree.Element(
        "testsuite",
        name=_SUITE,
        tests=str(len(tests)),
        failures=str(sum(map(bool, tests.values()))),
        errors="0",
        skipped="0",
    )
    for name, groups in tests.items():
        test = ElementTree.SubElement(suite, "testcase", classname="kwire.diff", name=name)
        if groups:
            _fail(test, groups)
    out = ElementTree.SubElement(suite, "system-out")
    out.text = printable(f"verdict: {verdict(comparison, unexpected)}")
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _test_of(group: Grouped) -> str:
    if group.path == TRANSACTION or (group.path == _RECORDS and group.kind.startswith(("acknowledged", "stored"))):
        return _AUDIT
    return schema.api_name(group.api_key)


def _fail(test: ElementTree.Element, groups: Sequence[Grouped]) -> None:
    kind = SLOWER if all(group.kind == SLOWER for group in groups) else "difference"
    first = groups[0]
    message = f"{first.count} x {first.path} {first.kind}" + (f": {first.left} -> {first.right}" if first.right else "")
    failure = ElementTree.SubElement(test, "failure", type=kind, message=printable(message))
    failure.text = "\n".join(printable(line) for group in groups for line in group_lines(group))
