"""A comparison as JUnit XML, which builds show as tests: one for each API that was compared, and one for the audit.

In: a `Comparison`. Out: XML; of a rehearsal also a test for each topic and each group. Rules: a test fails where
something unexpected differs, each difference with what follows from it and its examples; an API that is slower beyond
noise fails its own test; text is printable, as XML 1.0 wants it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from xml.etree import ElementTree

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.protocol import schema
from kwire.replay.diff.audit_results import is_of_records
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import Grouped, grouped
from kwire.replay.diff.latencies import SLOWER
from kwire.replay.diff.text import group_lines, verdict

_SUITE: Final = "kwire diff"
_REHEARSAL: Final = "kwire rehearse"
_AUDIT: Final = "acknowledged records"


def as_junit(comparison: Comparison) -> str:
    """The suite."""
    unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
    suite = _suite(_SUITE, _by_api(comparison, unexpected))
    out = ElementTree.SubElement(suite, "system-out")
    out.text = printable(f"verdict: {verdict(comparison, unexpected)}")
    return _written(suite)


def as_suites(comparison: Comparison | None, reasons: Sequence[tuple[str, str]]) -> str:
    """Suites of a rehearsal: a test an API, a topic, a group, and one for the verdict. `reasons`: (name, text) of why
    it is not good. `comparison`: None where a run ended too early for one."""
    suites = ElementTree.Element("testsuites", name=_REHEARSAL)
    judged = _suite(_REHEARSAL, {})
    test = ElementTree.SubElement(judged, "testcase", classname=_REHEARSAL, name="verdict")
    judged.set("tests", "1")
    judged.set("failures", str(int(bool(reasons))))
    if reasons:
        failure = ElementTree.SubElement(test, "failure", type=reasons[0][0], message=printable(reasons[0][1]))
        failure.text = "\n".join(printable(f"{name}: {text}") for name, text in reasons)
    suites.append(judged)
    if comparison is not None:
        unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
        suites.append(_suite("APIs", _by_api(comparison, unexpected)))
        for kind, names in (("topics", comparison.topics), ("groups", comparison.groups)):
            shown = sorted(name for name in names if not name.startswith("__"))
            suites.append(
                _suite(kind, {name: [group for group in unexpected if name in group.names] for name in shown})
            )
    return _written(suites)


def _by_api(comparison: Comparison, unexpected: Sequence[Grouped]) -> dict[str, list[Grouped]]:
    """Unexpected differences by the test that they fail."""
    tests: dict[str, list[Grouped]] = {name: [] for name in sorted(comparison.apis)}
    if comparison.audit is not None:
        tests[_AUDIT] = []
    for group in unexpected:
        tests.setdefault(_test_of(group), []).append(group)
    return tests


def _suite(name: str, tests: Mapping[str, Sequence[Grouped]]) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(tests)),
        failures=str(sum(map(bool, tests.values()))),
        errors="0",
        skipped="0",
    )
    for test_name, groups in tests.items():
        # Names of topics and groups are the target's.
        what = {"classname": name.replace(" ", "."), "name": printable(test_name)}
        test = ElementTree.SubElement(suite, "testcase", what)
        if groups:
            _fail(test, groups)
    return suite


def _written(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _test_of(group: Grouped) -> str:
    if is_of_records(group.path, group.kind):
        return _AUDIT
    return schema.api_name(group.api_key)


def _fail(test: ElementTree.Element, groups: Sequence[Grouped]) -> None:
    kind = SLOWER if all(group.kind == SLOWER for group in groups) else "difference"
    first = groups[0]
    message = f"{first.count} x {first.path} {first.kind}" + (f": {first.left} -> {first.right}" if first.right else "")
    failure = ElementTree.SubElement(test, "failure", type=kind, message=printable(message))
    failure.text = "\n".join(printable(line) for group in groups for line in group_lines(group))
