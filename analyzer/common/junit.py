"""Test results as JUnit XML, which builds show as tests.

In: `TestCase`s. Out: XML. Rules: it is valid for the two schemas in use, that of Ant (one result a test, and all of its
attributes) and that of Jenkins' xunit plugin; every text is made printable first, which XML 1.0 wants too.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from kwire.analyzer.common.escapes import printable

Outcome = Literal["passed", "failure", "skipped"]

_HOST: Final = "localhost"
"""The schema wants a host; which one it was says nothing about a capture, and is nobody else's business."""


class TestCase(NamedTuple):
    """One test. kind: class of a failure, as `warning`; message: one line; lines: details of a failure."""

    classname: str
    name: str
    outcome: Outcome = "passed"
    kind: str = ""
    message: str = ""
    lines: Sequence[str] = ()


def as_xml(
    suite: str, tests: Sequence[TestCase], *, properties: Mapping[str, str] | None = None, output: str = ""
) -> str:
    """Return the document of one suite. output: text that is shown beside its tests."""
    from xml.etree import ElementTree  # not at every start of a command that can write JUnit XML

    root = ElementTree.Element(
        "testsuite",
        name=printable(suite),
        tests=str(len(tests)),
        failures=str(sum(test.outcome == "failure" for test in tests)),
        errors="0",
        skipped=str(sum(test.outcome == "skipped" for test in tests)),
        time="0",
        timestamp=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        hostname=_HOST,
    )
    described = ElementTree.SubElement(root, "properties")
    for name, value in (properties or {}).items():
        ElementTree.SubElement(described, "property", name=name, value=printable(value))
    for test in tests:
        element = ElementTree.SubElement(
            root, "testcase", classname=printable(test.classname), name=printable(test.name), time="0"
        )
        if test.outcome == "skipped":
            ElementTree.SubElement(element, "skipped", message=printable(test.message))
        elif test.outcome == "failure":
            failure = ElementTree.SubElement(element, "failure", type=test.kind, message=printable(test.message))
            failure.text = "\n".join(map(printable, test.lines))
    ElementTree.SubElement(root, "system-out").text = printable(output)
    ElementTree.SubElement(root, "system-err")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
